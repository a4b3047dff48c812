//! The filter [`ROUTER`]: packets for the router itself, before they are sorted into classes.
//!
//! It covers packets punted as `local`, and packets with options or a hop-by-hop header that are for one of the
//! router's addresses or for a group on the link. A rule drops them, rejects them, limits their rate, or sets
//! their class; a packet that passes without a class has that of [`PuntClass::of`]. ARP is exempt, as is
//! neighbour discovery of the link (RFC 4861: hop limit 255): without them no packet could be answered.
//!
//! | packet | becomes |
//! |---|---|
//! | accepted, or `to-host` | sorted into its class, or the rule's |
//! | rejected | punted as `reset`: with an error to the sender (RFC 1812 5.2.7.1, RFC 4443 3.1) |
//! | drop `filtered` | by a rule or the default; or a fragment whose fields could be hidden |
//! | drop `policed` | more than the rule's rate |
//!
//! Each forwarder's graph has one, so that it changes with the graph, between two batches.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::batch::{BATCH_MAX, Batch, ETHERNET};
pub use crate::filters::ROUTER;
use crate::filters::{Counted, Filtered, Judged, Judgement, Reader, Together, ways};
use crate::flows::{FlowTable, Passed};
use crate::head::{ip4, ip6, is_neighbour_discovery};
use crate::mask::Mask;
use crate::next_hop::{NextHop, NextHopTable};
use crate::reason::{PuntClass, PuntReason};
use crate::tables::{Tables, VrfTables};

/// See the module's documentation.
pub struct RouterFilter {
    filter: Counted,
    /// Present if a rule matches the state of connections.
    flows: Option<Arc<FlowTable>>,
    vrfs: Arc<VrfTables>,
    next_hops: Arc<NextHopTable>,
    ip4: Reader<Ipv4Addr>,
    ip6: Reader<Ipv6Addr>,
}

/// The decisions on a batch's packets for the router.
pub(crate) struct Sorted {
    /// To be dropped.
    pub filtered: Mask,
    /// To be dropped because they exceed their rule's rate.
    pub policed: Mask,
    /// To be rejected with an error to their sender.
    pub rejected: Mask,
    /// The class set by a rule for each slot's packet.
    pub classes: [Option<PuntClass>; BATCH_MAX],
}

impl Sorted {
    /// No decisions: all packets unchanged.
    pub const NONE: Self = Self {
        filtered: Mask::EMPTY,
        policed: Mask::EMPTY,
        rejected: Mask::EMPTY,
        classes: [None; BATCH_MAX],
    };
}

impl RouterFilter {
    /// Creates it from these tables' filters; `None` if there is none of this name.
    pub fn of(tables: &Tables) -> Option<Box<Self>> {
        let filters = tables.filters.get();
        let mut all = filters.tables.iter().flatten();
        let table = all.find(|table| table.spec().filter.name == ROUTER)?.clone();
        let flows = filters.flows.filter(|_| table.spec().asks_for_state());
        let (vrfs, next_hops) = (tables.vrfs.clone(), tables.next_hops.clone());
        let of = || std::iter::once(&*table);
        let (ip4, ip6) = (Reader::of(of()), Reader::of(of()));
        Some(Box::new(Self { filter: Counted::new(table), flows, vrfs, next_hops, ip4, ip6 }))
    }

    /// Decides on those of the punted packets that are for the router.
    pub(crate) fn sort(
        &mut self,
        batch: &Batch,
        punted: Mask,
        reason: impl Fn(usize) -> PuntReason,
    ) -> Sorted {
        let own = punted.filter(|slot| self.is_for_router(batch, slot, reason(slot)));
        let is_ip6 = |slot| batch.head(slot)[ETHERNET] >> 4 == 6;
        let ip6 = own.filter(is_ip6);
        let looked_at = ip6.filter(|slot| !is_neighbour_discovery(batch.head(slot)));
        let mut sorted = Sorted::NONE;
        let Self { filter, flows, ip4, ip6: reader6, .. } = self;
        let by = By { filter, flows: flows.as_deref() };
        decide(ip4, &by, batch, own.without(ip6), &mut sorted);
        decide(reader6, &by, batch, looked_at, &mut sorted);
        sorted
    }

    fn is_for_router(&self, batch: &Batch, slot: usize, reason: PuntReason) -> bool {
        match reason {
            PuntReason::Local => true,
            PuntReason::Ip4Options | PuntReason::HopByHop if batch.link_multicast.has(slot) => {
                PuntClass::of(reason, true, batch.head(slot)) != PuntClass::Options
            }
            PuntReason::Ip4Options | PuntReason::HopByHop => self.is_own_address(batch, slot),
            _ => false,
        }
    }

    /// Packets with options arrive here before the lookup of their destination.
    fn is_own_address(&self, batch: &Batch, slot: usize) -> bool {
        let head = batch.head(slot);
        let fibs = self.vrfs.get(batch.info(slot).vrf);
        let number = match ip4(head).version() {
            4 => fibs.fib4.lookup(ip4(head).destination()),
            _ => fibs.fib6.lookup(ip6(head).destination()),
        };
        NextHop::from(self.next_hops.get(number)) == NextHop::Local
    }
}

/// The filter and tables for judging packets.
struct By<'a> {
    filter: &'a Counted,
    flows: Option<&'a FlowTable>,
}

/// Adds the decisions on packets of one family.
fn decide<A: Filtered>(
    reader: &mut Reader<A>,
    by: &By<'_>,
    batch: &Batch,
    packets: Mask,
    sorted: &mut Sorted,
) {
    if packets.is_empty() {
        return;
    }
    let hidden = reader.read(batch, packets);
    if let Some(flows) = by.flows {
        let Reader { fields, lookups, .. } = reader;
        let frame = |slot| move || batch.frame(slot);
        let seen = packets.slots().map(|slot| (batch.info(slot).vrf.index() as u16, frame(slot)));
        lookups.look_up(flows, fields, batch.now, seen);
    }
    let frames = packets.slots().map(|slot| batch.frame(slot));
    by.filter.table.follow_fragments(&mut reader.fields, batch.now, frames);
    let mut found = [0; BATCH_MAX];
    A::classifier(&by.filter.table).classify(&reader.fields, &mut found);
    let Together { mut decided, places } =
        reader.judge_together(by.filter, batch, (packets, hidden), &found);
    for (place, slot) in ways(packets, places) {
        let Judged { judgement, effects } =
            reader.judge(by.filter, found[place], batch, (place, slot));
        decided[judgement as usize] |= Mask::when(true, slot);
        if matches!(judgement, Judgement::Pass | Judgement::ToHost) {
            sorted.classes[slot] = effects.and_then(|effects| effects.class);
        }
    }
    sorted.rejected |= decided[Judgement::Reject as usize];
    sorted.filtered |= decided[Judgement::Drop as usize];
    sorted.policed |= decided[Judgement::Police as usize];
    let passing = decided[Judgement::Pass as usize] | decided[Judgement::ToHost as usize];
    for (place, slot) in packets.slots().enumerate().filter(|(_, slot)| passing.has(*slot)) {
        note(reader, by.flows, place, batch, slot);
    }
}

/// Updates the flow of a packet that passes, or enters it.
fn note<A: Filtered>(
    reader: &Reader<A>,
    flows: Option<&FlowTable>,
    place: usize,
    batch: &Batch,
    slot: usize,
) {
    let Some(flows) = flows else { return };
    let length = batch.len(slot).saturating_sub(ETHERNET);
    let packet = Passed { length, enters: true, now: batch.now };
    reader.lookups.note(flows, place, packet, || batch.frame(slot));
}
