//! Packets that a forwarder keeps under overload because of their connection or their category: see
//! [`shed`](crate::shed).
//!
//! The filter of a packet's port is looked up twice: here, without an effect, and again in the graph if the packet is
//! kept. A packet is in a category if a rule puts it there and no rule drops or rejects it. The flows of
//! [`flows`](crate::flows) tell established connections; looking does not prolong them.
//!
//! Frames with VLAN tags and those of bonds are in no category and of no connection here: their interfaces, which have
//! the filters, are known only in the graph.
//!
//! Each forwarder's graph has one if a filter has categories or states, so that it changes with the graph, between two
//! batches.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use acl::Action;

use crate::batch::{BATCH_MAX, Batch};
use crate::filters::{Direction, FilterTable, Filtered, Guard, Guards, Reader};
use crate::flows::FlowTable;
use crate::interface::MAX_INTERFACES;
use crate::mask::Mask;
use crate::shed::Connections;
use crate::tables::Tables;

/// See the module's documentation.
pub struct ShedFilter {
    known: Known,
    ip4: Reader<Ipv4Addr>,
    ip6: Reader<Ipv6Addr>,
}

struct Known {
    /// By their numbers less one.
    filters: Vec<Option<Arc<FilterTable>>>,
    guards: Box<Guards>,
    flows: Option<Arc<FlowTable>>,
}

impl ShedFilter {
    /// Creates it from these tables; `None` if no filter has categories or states.
    pub fn of(tables: &Tables) -> Option<Box<Self>> {
        let all = tables.filters.get();
        let has_use = |table: &Arc<FilterTable>| {
            let spec = table.spec();
            spec.asks_for_state() || spec.treatments.iter().any(|rule| rule.category.is_some())
        };
        all.tables.iter().flatten().any(has_use).then_some(())?;
        let guards = Guard::all(&all, &tables.interfaces.get());
        let own = || all.tables.iter().flatten().map(|table| &**table);
        let (ip4, ip6) = (Reader::of(own()), Reader::of(own()));
        let known = Known { guards, flows: all.flows.clone(), filters: all.tables };
        Some(Box::new(Self { known, ip4, ip6 }))
    }

    /// Returns those of these packets that are to be kept.
    pub(crate) fn keep(&mut self, batch: &Batch, packets: Mask, wanted: Connections) -> Mask {
        let Self { known, ip4, ip6 } = self;
        let [of_ip4, of_ip6, _] = batch.by_family(packets);
        known.keep(ip4, batch, of_ip4, wanted) | known.keep(ip6, batch, of_ip6, wanted)
    }
}

impl Known {
    fn keep<A: Filtered>(
        &self,
        reader: &mut Reader<A>,
        batch: &Batch,
        packets: Mask,
        wanted: Connections,
    ) -> Mask {
        let Some(first) = packets.slots().next() else { return Mask::EMPTY };
        let guard = self.guards[batch.interface(first).index() & (MAX_INTERFACES - 1)];
        let hidden = reader.read(batch, packets);
        let mut kept = Mask::EMPTY;
        if let Some(flows) = self.flows.as_ref().filter(|_| guard.tracks()) {
            let of = packets.slots().map(|slot| (guard.vrf, move || batch.frame(slot)));
            reader.lookups.look_up(flows, &mut reader.fields, batch.now, of);
            if wanted.established {
                let known = |&(place, _): &(usize, usize)| reader.fields.is_of_connection(place);
                let places = packets.slots().enumerate().filter(known);
                kept = places.map(|(_, slot)| slot).collect();
            }
        }
        let number = usize::from(guard.numbers[Direction::In as usize]);
        let filter = self.filters.get(number.wrapping_sub(1)).and_then(Option::as_ref);
        if let Some(table) = filter.filter(|_| wanted.categories != 0) {
            kept |= of_categories(reader, table, batch, packets, wanted.categories);
        }
        // Nothing may rely on fields of the others.
        kept.without(hidden)
    }
}

/// Returns the packets, all that `reader` has read, that this filter puts into one of these categories.
fn of_categories<A: Filtered>(
    reader: &mut Reader<A>,
    table: &FilterTable,
    batch: &Batch,
    packets: Mask,
    categories: u16,
) -> Mask {
    let frames = packets.slots().map(|slot| batch.frame(slot));
    table.lend_to_fragments(&mut reader.fields, batch.now, frames);
    let mut found = [0; BATCH_MAX];
    A::classifier(table).classify(&reader.fields, &mut found);
    let is_in = |place, rule| categories_of(reader, table, place, rule) & categories != 0;
    let places = packets.slots().zip(found).enumerate();
    places
        .fold(Mask::EMPTY, |all, (place, (slot, rule))| all | Mask::when(is_in(place, rule), slot))
}

/// Returns the categories of a packet, a bit each: of the rules it matches from its first on; none if the last one
/// does not let it pass.
fn categories_of<A: Filtered>(
    reader: &Reader<A>,
    table: &FilterTable,
    place: usize,
    first: u32,
) -> u16 {
    let (mut categories, mut last) = (0, table.verdict(first).action);
    for rule in reader.met(table, place, first) {
        last = table.verdict(rule).action;
        let treatment = table.spec().treatments.get(rule as usize);
        let category = treatment.and_then(|treatment| treatment.category);
        categories |= category.map_or(0, |number| 1_u16.wrapping_shl(number.into()));
    }
    if matches!(last, Action::Drop | Action::Reject) { 0 } else { categories }
}

#[cfg(test)]
mod tests {
    use acl::{Filter, State};

    use super::*;
    use crate::features::Features;
    use crate::filters::{FILTER_IN, FilterSpec, Filters, Treatment};
    use crate::flows::{FlowSettings, Passed};
    use crate::testing::{FrameBuilder, TestTables, batch_of, udp_to};

    /// UDP to 53 is in category 0 and goes on, to 54 in category 1; that to 52 and 53 from port 9 is dropped.
    fn tables() -> Arc<Tables> {
        let mut from = udp_to(52..=53, Action::Drop);
        from.matches.from_port = vec![9..=9];
        let mut established = udp_to(1..=1, Action::Accept);
        established.matches.state = vec![State::Established];
        let rules = vec![
            udp_to(53..=53, Action::Continue),
            udp_to(54..=54, Action::Accept),
            from,
            established,
        ];
        let mut treatments = vec![Treatment::default(); 4];
        (treatments[0].category, treatments[1].category) = (Some(0), Some(1));
        let filter = Filter { name: "f".into(), rules, default: Action::Accept };
        let spec = FilterSpec { filter, treatments, targets: vec![] };
        let table = FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap();
        let tables = TestTables::every_kind();
        let flows = FlowTable::new(FlowSettings::default(), dpdk::tsc_hz(), 1);
        tables.filters.set(Filters {
            tables: vec![Some(Arc::new(table))],
            flows: Some(Arc::new(flows)),
            ..Filters::default()
        });
        let mut interfaces = tables.interfaces.get();
        interfaces[0].features = Features::NONE.with(FILTER_IN, 1);
        tables.interfaces.set(interfaces);
        tables
    }

    fn frame(from: u16, to: u16) -> Vec<u8> {
        FrameBuilder::ip4().udp(from, to, b"x").build()
    }

    #[test]
    fn packets_are_kept_by_category_unless_they_are_dropped() {
        let mut filter = ShedFilter::of(&tables()).unwrap();
        let ip6 = FrameBuilder::ip6().udp(1, 54, b"x").build();
        let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]).build();
        let batch = batch_of(&[frame(1, 53), frame(9, 53), frame(1, 54), frame(1, 55), ip6, arp]);
        let all = batch.packets();
        let mut kept =
            |categories| filter.keep(&batch, all, Connections { established: false, categories });
        assert_eq!(kept(0b01), Mask(0b00_0001));
        assert_eq!(kept(0b10), Mask(0b01_0100));
        assert_eq!(kept(0b11), Mask(0b01_0101));
        assert_eq!(kept(0), Mask::EMPTY);
    }

    #[test]
    fn packets_of_connections_that_answer_are_kept() {
        let tables = tables();
        let flows = tables.filters.get().flows.unwrap();
        let mut filter = ShedFilter::of(&tables).unwrap();
        let batch = batch_of(&[frame(1, 55), frame(2, 55)]);
        let wanted = Connections { established: true, categories: 0 };
        let all = batch.packets();
        assert_eq!(filter.keep(&batch, all, wanted), Mask::EMPTY);
        // Packets that answer the first one have passed.
        let answered = FrameBuilder::ip4().source4("198.51.100.1").destination4("192.0.2.1");
        let asked = batch_of(&[answered.udp(55, 1, b"x").build()]);
        let reader = &mut filter.ip4;
        reader.read(&asked, Mask(1));
        let of = std::iter::once((0, || asked.frame(0)));
        reader.lookups.look_up(&flows, &mut reader.fields, asked.now, of);
        let passed = Passed { length: 29, enters: true, now: asked.now };
        reader.lookups.note(&flows, 0, passed, || asked.frame(0));
        assert_eq!(filter.keep(&batch, all, wanted), Mask(0b01));
    }

    #[test]
    fn without_categories_and_states_there_is_none() {
        assert!(ShedFilter::of(&TestTables::every_kind()).is_none());
    }
}
