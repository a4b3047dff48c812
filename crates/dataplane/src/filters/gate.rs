//! Filters for packets outside a graph: those that the slow path forwards, and the router's own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::{
    Counted, Direction, FilterTables, Filtered, Filters, Guard, Guards, Hitting, Judged, Judgement,
    Mark, Reader, TRACKED,
};
use crate::flows::{FlowTable, Passed};
use crate::head::ETHERNET;
use crate::interface::{InterfaceId, InterfaceInfo};
use crate::mask::BATCH_MAX;

/// Filtering of single packets, for threads outside the graph.
#[derive(Default)]
pub struct Gate {
    /// Number of changes of the filters that it reflects.
    changes: u64,
    /// `None`: there is no filter.
    filters: Option<Held>,
}

struct Held {
    filters: Vec<Option<Counted>>,
    flows: Option<Arc<FlowTable>>,
    guards: Arc<Guards>,
    ip4: Reader<Ipv4Addr>,
    ip6: Reader<Ipv6Addr>,
}

/// A packet to be sent.
pub(crate) struct Leaving<'a> {
    /// The frame, or its first buffer.
    pub frame: &'a [u8],
    /// Bytes of the whole frame.
    pub length: usize,
    /// The number of the ingress interface.
    pub from: u16,
    /// The egress interface.
    pub to: InterfaceId,
    /// The time in TSC cycles.
    pub now: u64,
}

impl Gate {
    /// Updates the filters, if those of the forwarders have changed.
    pub fn follow(&mut self, filters: &FilterTables) {
        let changes = filters.changes();
        if changes != self.changes {
            self.changes = changes;
            self.filters = filters.in_use().map(|(filters, guards)| Held::new(filters, guards));
        }
    }

    /// Returns the judgement of the filter of the interface that a routed packet leaves by, and the
    /// packet's mark if it passes. `from` is the ingress interface. `now`: in TSC cycles.
    pub fn outward(
        &mut self,
        frame: &[u8],
        from: InterfaceId,
        to: InterfaceId,
        now: u64,
    ) -> (Judgement, Mark) {
        self.judge(&Leaving { frame, length: frame.len(), from: from.index() as u16, to, now })
    }

    /// Like [`Self::outward`], for a packet of which only the first buffer is available.
    pub(crate) fn judge(&mut self, packet: &Leaving<'_>) -> (Judgement, Mark) {
        const PASS: (Judgement, Mark) = (Judgement::Pass, Mark::NONE);
        let Some(held) = &mut self.filters else { return PASS };
        let to = held.guards[packet.to.index()];
        if to.numbers[Direction::Out as usize] == 0 {
            return PASS;
        }
        match version(packet.frame) {
            Some(4) => held.ip4.outward(&held.filters, held.flows.as_deref(), packet, to),
            Some(6) => held.ip6.outward(&held.filters, held.flows.as_deref(), packet, to),
            _ => PASS,
        }
    }

    /// Uses the filters of graphs that are made now; `None` if no interface has an outward one.
    pub(crate) fn outward_of(filters: &FilterTables, interfaces: &[InterfaceInfo]) -> Option<Self> {
        let filters = filters.get();
        let guards = Guard::all(&filters, interfaces);
        guards
            .iter()
            .any(|guard| guard.numbers[Direction::Out as usize] != 0)
            .then(|| Self { changes: 0, filters: Some(Held::new(filters, guards.into())) })
    }

    /// Tracks a packet that the router itself sends, so that replies to it are recognised. It is
    /// not filtered.
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
    fn new(filters: Filters, guards: Arc<Guards>) -> Self {
        let tables = || filters.tables.iter().flatten().map(|table| &**table);
        Self {
            ip4: Reader::of(tables()),
            ip6: Reader::of(tables()),
            filters: Counted::all(&filters),
            flows: filters.flows,
            guards,
        }
    }
}

impl<A: Filtered> Reader<A> {
    fn outward(
        &mut self,
        filters: &[Option<Counted>],
        flows: Option<&FlowTable>,
        packet: &Leaving<'_>,
        to: Guard,
    ) -> (Judgement, Mark) {
        let &Leaving { frame, length, from, now, .. } = packet;
        let number = to.numbers[Direction::Out as usize];
        let flows = flows.filter(|_| to.tracks());
        let is_tiny = self.read_one(flows, (frame, length), from, (to.vrf, now));
        let (judgement, mark) = match filters.get(usize::from(number).wrapping_sub(1)) {
            _ if number == TRACKED => (Judgement::Pass, Mark::NONE),
            Some(Some(_)) if is_tiny => (Judgement::Drop, Mark::NONE),
            Some(Some(filter)) => self.judge_one(filter, packet),
            _ => (Judgement::Drop, Mark::NONE),
        };
        if let (Some(flows), Judgement::Pass | Judgement::ToHost) = (flows, judgement) {
            self.pass(flows, (frame, length), to, now);
        }
        (judgement, mark)
    }

    /// Reads a packet's fields and its flow, and returns true if its fields are hidden.
    fn read_one(
        &mut self,
        flows: Option<&FlowTable>,
        (frame, length): (&[u8], usize),
        from: u16,
        (vrf, now): (u16, u64),
    ) -> bool {
        self.fields.clear();
        let is_tiny = self.fields.push_frame(frame, length, from);
        if let Some(flows) = flows {
            self.lookups.look_up(flows, &mut self.fields, now, [(vrf, || frame)].into_iter());
        }
        is_tiny
    }

    fn judge_one(
        &mut self,
        Counted { table, hits }: &Counted,
        packet: &Leaving<'_>,
    ) -> (Judgement, Mark) {
        let &Leaving { frame, length, from, now, .. } = packet;
        table.follow_fragments(&mut self.fields, now, [frame].into_iter());
        let mut found = [0; BATCH_MAX];
        A::classifier(table).classify(&self.fields, &mut found);
        let of_ip = length.saturating_sub(ETHERNET);
        let hitting =
            Hitting { fields: &self.fields, place: 0, rule: found[0], length: of_ip, now };
        let Judged { judgement, effects } =
            table.judge(hits, &hitting, || A::key(frame, length, from));
        let effects = effects.filter(|_| judgement == Judgement::Pass);
        (judgement, effects.map_or(Mark::NONE, |of| of.mark))
    }

    fn note(&mut self, flows: &FlowTable, frame: &[u8], to: Guard, now: u64) {
        self.read_one(Some(flows), (frame, frame.len()), 0, (to.vrf, now));
        self.pass(flows, (frame, frame.len()), to, now);
    }

    fn pass(&self, flows: &FlowTable, (frame, length): (&[u8], usize), to: Guard, now: u64) {
        let length = length.saturating_sub(ETHERNET);
        let enters = to.enters[Direction::Out as usize];
        self.lookups.note(flows, 0, Passed { length, enters, now }, || frame);
    }
}
