//! Filters for packets outside a graph: those that the slow path forwards, and the router's own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use acl::Family;

use super::{Counted, Filtered, Guard, Guards, Hitting, Judged, Judgement, Reader, TRACKED, Way};
use crate::batch::{BATCH_MAX, ETHERNET, HEAD};
use crate::flows::{FlowTable, Passed};
use crate::interface::InterfaceId;
use crate::steps::set_dscp;
use crate::tables::Tables;

/// What a thread outside the graph looks packets up by, one at a time.
#[derive(Default)]
pub struct Gate {
    /// As of so many changes of the filters.
    changes: u64,
    /// `None`: no filter is there.
    filters: Option<Held>,
}

struct Held {
    filters: Vec<Option<Counted>>,
    flows: Option<Arc<FlowTable>>,
    guards: Arc<Guards>,
    ip4: Reader<Ipv4Addr>,
    ip6: Reader<Ipv6Addr>,
}

/// A packet that leaves.
struct Leaving<'a> {
    frame: &'a mut [u8],
    from: u16,
    to: Guard,
    now: u64,
}

impl Gate {
    /// Follows the filters that the forwarders have, if they have changed.
    pub fn follow(&mut self, tables: &Tables) {
        let changes = tables.filters.changes();
        if changes != self.changes {
            self.changes = changes;
            self.filters = Held::of(tables);
        }
    }

    /// What the filter of the interface that a routed packet leaves by says of it, and writes into it; the
    /// packet came by `from`. `now`: in TSC cycles.
    pub fn outward(
        &mut self,
        frame: &mut [u8],
        from: InterfaceId,
        to: InterfaceId,
        now: u64,
    ) -> Judgement {
        let Some(held) = &mut self.filters else { return Judgement::Pass };
        let to = held.guards[to.index()];
        if to.numbers[Way::Out as usize] == 0 {
            return Judgement::Pass;
        }
        let packet = Leaving { frame, from: from.index() as u16, to, now };
        match version(packet.frame) {
            Some(4) => held.ip4.outward(&held.filters, held.flows.as_deref(), packet),
            Some(6) => held.ip6.outward(&held.filters, held.flows.as_deref(), packet),
            _ => Judgement::Pass,
        }
    }

    /// A packet of the router's own leaves: answers to it are known. It is not filtered.
    pub fn own(&mut self, frame: &[u8], to: InterfaceId, now: u64) {
        let Some(Held { flows: Some(flows), guards, ip4, ip6, .. }) = &mut self.filters else {
            return;
        };
        let to = guards[to.index()];
        if !to.tracks() {
            return;
        }
        match version(frame) {
            Some(4) => ip4.note(flows, frame, to, now),
            Some(6) => ip6.note(flows, frame, to, now),
            _ => {}
        }
    }
}

fn version(frame: &[u8]) -> Option<u8> {
    frame.get(ETHERNET).map(|byte| byte >> 4)
}

impl Held {
    fn of(tables: &Tables) -> Option<Self> {
        let (filters, guards) = tables.filters.in_use()?;
        Some(Self {
            filters: Counted::all(&filters),
            flows: filters.flows,
            guards,
            ip4: Reader::default(),
            ip6: Reader::default(),
        })
    }
}

impl<A: Filtered> Reader<A> {
    fn outward(
        &mut self,
        filters: &[Option<Counted>],
        flows: Option<&FlowTable>,
        packet: Leaving<'_>,
    ) -> Judgement {
        let Leaving { frame, from, to, now } = packet;
        let number = to.numbers[Way::Out as usize];
        let flows = flows.filter(|_| to.tracks());
        let is_tiny = self.read_one(flows, frame, from, (to.vrf, now));
        let judgement = match filters.get(usize::from(number).wrapping_sub(1)) {
            _ if number == TRACKED => Judgement::Pass,
            Some(Some(_)) if is_tiny => Judgement::Drop,
            Some(Some(filter)) => self.judge_one(filter, frame, (from, now)),
            _ => Judgement::Drop,
        };
        if let (Some(flows), Judgement::Pass | Judgement::ToHost) = (flows, judgement) {
            self.pass(flows, frame, to, now);
        }
        judgement
    }

    /// A packet's fields and its flow; whether it hides what it is.
    fn read_one(
        &mut self,
        flows: Option<&FlowTable>,
        frame: &[u8],
        from: u16,
        (vrf, now): (u16, u64),
    ) -> bool {
        self.fields.clear();
        let is_tiny = self.fields.push_frame(frame, frame.len(), from);
        if let Some(flows) = flows {
            self.lookups.look_up(flows, &mut self.fields, now, [(vrf, || frame)].into_iter());
        }
        is_tiny
    }

    fn judge_one(
        &self,
        Counted { table, hits }: &Counted,
        frame: &mut [u8],
        (from, now): (u16, u64),
    ) -> Judgement {
        let mut found = [0; BATCH_MAX];
        A::classifier(table).classify(&self.fields, &mut found);
        let length = frame.len().saturating_sub(ETHERNET);
        let packet = Hitting { fields: &self.fields, place: 0, rule: found[0], length, now };
        let Judged { judgement, effects } =
            table.judge(hits, &packet, || A::key(frame, frame.len(), from));
        let dscp = effects.filter(|_| judgement == Judgement::Pass).and_then(|of| of.dscp);
        if let (Some(dscp), Some(head)) = (dscp, frame.first_chunk_mut::<HEAD>()) {
            set_dscp(A::OF == Family::Ip6, head, dscp);
        }
        judgement
    }

    fn note(&mut self, flows: &FlowTable, frame: &[u8], to: Guard, now: u64) {
        self.read_one(Some(flows), frame, 0, (to.vrf, now));
        self.pass(flows, frame, to, now);
    }

    fn pass(&self, flows: &FlowTable, frame: &[u8], to: Guard, now: u64) {
        let length = frame.len().saturating_sub(ETHERNET);
        let enters = to.enters[Way::Out as usize];
        self.lookups.note(flows, 0, Passed { length, enters, now }, || frame);
    }
}
