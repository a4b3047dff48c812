//! Rules with `forwarder`: selection of the forwarder of a packet that is spread by software.
//!
//! Of several forwarders of a rule, the [`Spreader`](crate::spread::Spreader) takes one by the hash of the packet's flow.
//!
//! The [`Spreader`](crate::spread::Spreader) of a port applies it before the graph, on the
//! forwarder that receives, and hashes the packets for which no rule selects a forwarder. The rule
//! that matches is the one that matches in the graph of the forwarder that takes the packet, where
//! it counts and has all other effects: the fields that rules match do not change on the way, and
//! the configuration refuses rules with states of connections beside these.
//!
//! Each forwarder's graph has one if a filter has such rules, so that it changes with the graph, between two batches.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::batch::{BATCH_MAX, Batch};
use crate::filters::{FILTER_IN, FilterTable, Filtered, Forwarders, Reader};
use crate::mask::Mask;
use crate::spread::{Chosen, Spreader};
use crate::tables::Tables;

/// See the module's documentation.
pub struct SpreadFilter {
    /// By their numbers less one; those without such rules are `None`.
    filters: Vec<Option<Arc<FilterTable>>>,
    ip4: Reader<Ipv4Addr>,
    ip6: Reader<Ipv6Addr>,
}

impl SpreadFilter {
    /// Creates it from these tables; `None` if no filter selects forwarders.
    pub fn of(tables: &Tables) -> Option<Box<Self>> {
        let chooses = |table: &Arc<FilterTable>| table.spec().chooses_forwarders();
        let all = tables.filters.get().tables;
        let filters: Vec<_> = all.into_iter().map(|table| table.filter(chooses)).collect();
        let own = || filters.iter().flatten().map(|table| &**table);
        own().next()?;
        let (ip4, ip6) = (Reader::of(own()), Reader::of(own()));
        Some(Box::new(Self { filters, ip4, ip6 }))
    }

    /// Selects forwarders by the filter of a batch's ingress port, whose spreader this is.
    pub(crate) fn choose(&mut self, batch: &Batch, spreader: &Spreader) -> Chosen {
        let mut chosen = Chosen::NONE;
        let number = usize::from(batch.own.features.get(FILTER_IN));
        let Some(Some(table)) = self.filters.get(number.wrapping_sub(1)) else { return chosen };
        let [of_ip4, of_ip6, others] = batch.by_family(batch.packets());
        choose_of(&mut self.ip4, table, (batch, spreader), of_ip4, &mut chosen);
        choose_of(&mut self.ip6, table, (batch, spreader), of_ip6, &mut chosen);
        if table.chooses_for_frames() {
            for slot in others.slots() {
                if let Some(forwarder) = table.forwarder_of_frame(batch, slot) {
                    chosen.packets |= Mask::when(true, slot);
                    chosen.forwarders[slot] = forwarder;
                }
            }
        }
        chosen
    }
}

fn choose_of<A: Filtered>(
    reader: &mut Reader<A>,
    table: &FilterTable,
    (batch, spreader): (&Batch, &Spreader),
    packets: Mask,
    chosen: &mut Chosen,
) {
    if packets.is_empty() {
        return;
    }
    reader.read(batch, packets);
    let frames = packets.slots().map(|slot| batch.frame(slot));
    table.follow_fragments(&mut reader.fields, batch.now, frames);
    let mut found = [0; BATCH_MAX];
    A::classifier(table).classify(&reader.fields, &mut found);
    for (place, (slot, rule)) in packets.slots().zip(found).enumerate() {
        if let Some(forwarders) = forwarders_of(reader, table, place, rule) {
            chosen.packets |= Mask::when(true, slot);
            chosen.forwarders[slot] = spreader.one_of(forwarders, batch.frame(slot));
        }
    }
}

/// Returns the forwarders of the last rule with some that the packet at this index meets, from its
/// first rule on.
fn forwarders_of<'t, A: Filtered>(
    reader: &Reader<A>,
    table: &'t FilterTable,
    place: usize,
    first: u32,
) -> Option<&'t Forwarders> {
    let treatment = |rule| table.spec().treatments.get(rule as usize);
    reader.met(table, place, first).filter_map(|rule| treatment(rule)?.forwarders.as_ref()).last()
}

#[cfg(test)]
mod tests {
    use acl::{Action, Filter, Matches};

    use super::*;
    use crate::features::Features;
    use crate::filters::{FilterSpec, Filters, Treatment};
    use crate::spread::{DEFAULT_KEY, Toeplitz};
    use crate::testing::{FrameBuilder, TestTables, batch_of, udp_to};

    /// ARP is for forwarder 3; UDP to port 53 is for forwarder 1, to 54 for 2 regardless of a later rule, to 55 for none.
    fn tables() -> Arc<Tables> {
        let mut arp = udp_to(53..=53, Action::Accept);
        arp.matches = Matches { ethertype: vec![0x0806], ..Matches::default() };
        let rules = vec![
            udp_to(53..=54, Action::Continue),
            udp_to(54..=54, Action::Accept),
            udp_to(55..=55, Action::Drop),
            udp_to(53..=99, Action::Accept),
            arp,
        ];
        let mut treatments = vec![Treatment::default(); 5];
        treatments[4].forwarders = Forwarders::new(&[3]);
        treatments[0].forwarders = Forwarders::new(&[1]);
        treatments[1].forwarders = Forwarders::new(&[2]);
        let filter = Filter { name: "f".into(), rules, default: Action::Accept };
        let spec = FilterSpec { filter, treatments, targets: vec![] };
        let table = FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap();
        let tables = TestTables::every_kind();
        tables.filters.set(Filters {
            tables: vec![None, Some(Arc::new(table))],
            flows: None,
            ..Filters::default()
        });
        tables
    }

    #[test]
    fn the_last_rule_that_a_packet_meets_chooses() {
        let mut filter = SpreadFilter::of(&tables()).unwrap();
        let ports = [53, 54, 55, 56, 53, 54];
        let frame = |(place, port)| {
            let frame = if place < 4 { FrameBuilder::ip4() } else { FrameBuilder::ip6() };
            frame.udp(1, port, b"x").build()
        };
        let mut frames: Vec<_> = ports.into_iter().enumerate().map(frame).collect();
        frames.push(FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]).build());
        let mut batch = batch_of(&frames);
        batch.own.features = Features::NONE.with(FILTER_IN, 2);
        let spreader = Spreader::by_rules(Toeplitz::new(&DEFAULT_KEY, true), vec![]);
        let chosen = filter.choose(&batch, &spreader);
        assert_eq!((chosen.packets, chosen.forwarders[6]), (Mask(0b111_0011), 3));
        assert_eq!([0, 1, 4, 5].map(|slot| chosen.forwarders[slot]), [1, 2, 1, 2]);
        for number in [0, 1, 9] {
            batch.own.features = Features::NONE.with(FILTER_IN, number);
            assert_eq!(
                filter.choose(&batch, &spreader).packets,
                Mask::EMPTY,
                "another filter: {number}"
            );
        }
    }

    #[test]
    fn filters_without_such_rules_are_not_asked() {
        assert!(SpreadFilter::of(&TestTables::every_kind()).is_none());
    }
}
