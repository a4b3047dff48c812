//! Flow lookups of a batch: the flows of all packets first, then the updates after judgement.

use acl::{Fields, State};

use super::key::{Identity, Part, unpack};
use super::table::{Candidates, Found, Mark, Packet, Table};
use super::{FlowTable, Kept};
use crate::head::ETHERNET;
use crate::mask::BATCH_MAX;

/// One packet.
#[derive(Clone, Copy)]
struct Lookup<A: Kept> {
    identity: Identity<A>,
    hash: u64,
    candidates: Candidates,
    found: Option<Found>,
}

impl<A: Kept> Lookup<A> {
    #[cold]
    fn set_other(&mut self, table: &Table<A>, frame: &[u8], vrf: u16) {
        self.identity = Identity::of_frame(frame, vrf);
        self.hash = table.hash(&self.identity.key.words);
    }
}

/// The packets of a batch in their order.
pub(crate) struct Lookups<A: Kept>(Box<[Lookup<A>; BATCH_MAX]>);

impl<A: Kept> Default for Lookups<A> {
    fn default() -> Self {
        let (identity, candidates) = (Identity::NONE, Candidates::default());
        Self(Box::new([Lookup { identity, hash: 0, candidates, found: None }; BATCH_MAX]))
    }
}

impl<A: Kept> Lookups<A> {
    /// Looks up the flows of packets and sets their states in `fields`. `packets`: for each packet of `fields`
    /// its VRF and a function that returns its frame; `now`: in TSC cycles.
    #[inline(always)]
    pub fn look_up<'p, F: FnOnce() -> &'p [u8]>(
        &mut self,
        flows: &FlowTable,
        fields: &mut Fields<A>,
        now: u64,
        packets: impl Iterator<Item = (u16, F)>,
    ) {
        let table = A::kept(flows);
        let clock = flows.clock(now);
        let lookups = &mut self.0[..fields.len().min(BATCH_MAX)];
        for ((place, lookup), (vrf, frame)) in lookups.iter_mut().enumerate().zip(packets) {
            match Identity::of_plain(fields, place, vrf) {
                // Hashed before it is written: what was just written in parts cannot be read as a whole at once.
                Some(identity) => {
                    lookup.hash = table.hash(&identity.key.words);
                    lookup.identity = identity;
                }
                None => lookup.set_other(table, frame(), vrf),
            }
            table.prefetch(lookup.hash);
        }
        for lookup in &mut *lookups {
            lookup.candidates = table.candidates(lookup.hash);
        }
        for (place, lookup) in lookups.iter_mut().enumerate() {
            let words = &lookup.identity.key.words;
            lookup.found = table.find_among(lookup.candidates, words, clock);
            if let Some(found) = lookup.found {
                fields.set_state(place, state(&lookup.identity, found));
            }
        }
    }

    /// Records that the packet at this index, of so many bytes of IP, passed; an unknown flow is
    /// entered only if requested. Call [`Self::look_up`] before.
    #[inline(always)]
    pub fn note<'p>(
        &self,
        flows: &FlowTable,
        place: usize,
        packet: Passed,
        frame: impl FnOnce() -> &'p [u8],
    ) {
        let lookup = &self.0[place & (BATCH_MAX - 1)];
        match (lookup.identity.part, lookup.found) {
            (Part::Packet, Some(found)) => {
                let tick = flows.clock(packet.now).now;
                A::kept(flows).note(found, packet.of(&lookup.identity), tick);
            }
            _ => note_other(flows, lookup, packet, frame()),
        }
    }
}

/// Like [`Lookups::note`], for a packet of an unknown flow, or one that is not an ordinary packet
/// of its flow.
#[inline(never)]
fn note_other<A: Kept>(flows: &FlowTable, lookup: &Lookup<A>, packet: Passed, frame: &[u8]) {
    let Lookup { identity, hash, found, .. } = lookup;
    match identity.part {
        Part::Packet => {}
        Part::FirstFragment => note_rest::<A>(flows, identity, packet, frame),
        Part::LaterFragment | Part::Error | Part::None => return,
    }
    let (table, clock) = (A::kept(flows), flows.clock(packet.now));
    let of_flow = packet.of(identity);
    match found {
        Some(found) => table.note(*found, of_flow, clock.now),
        None if packet.enters => flows.count(table.enter(&identity.key, *hash, of_flow, clock)),
        None => {}
    }
}

/// A packet that passed.
#[derive(Clone, Copy)]
pub(crate) struct Passed {
    /// Bytes of the IP packet.
    pub length: usize,
    /// True if an unknown flow is entered.
    pub enters: bool,
    /// The time in TSC cycles.
    pub now: u64,
}

impl Passed {
    #[inline(always)]
    fn of<A: Kept>(&self, identity: &Identity<A>) -> Packet {
        let Identity { key, mark, .. } = identity;
        Packet { direction: key.direction, mark: *mark, length: self.length }
    }
}

/// Permits the other fragments of a packet whose first fragment passed.
#[cold]
fn note_rest<A: Kept>(flows: &FlowTable, first: &Identity<A>, packet: Passed, frame: &[u8]) {
    let (_, _, vrf) = unpack(first.key.words.as_ref()[1]);
    let rest = frame.get(ETHERNET..).and_then(|packet| Identity::<A>::of_rest(packet, vrf));
    if let Some(rest) = rest {
        let table = A::kept(flows);
        let hash = table.hash(&rest.key.words);
        flows.count(table.enter(&rest.key, hash, packet.of(&rest), flows.clock(packet.now)));
    }
}

/// Returns the state of a packet by its flow.
#[inline(always)]
fn state<A: Kept>(identity: &Identity<A>, found: Found) -> State {
    let direction = identity.key.direction;
    match identity.part {
        Part::Error if found.has_seen(direction) => State::Related,
        // The rest of a packet whose first fragment has passed.
        Part::LaterFragment if found.has_seen(direction) => State::Established,
        Part::Error | Part::LaterFragment | Part::None => State::New,
        // A connection attempt is not a reply.
        _ if identity.mark == Mark::Syn => State::New,
        _ if found.has_seen(1 - direction) => State::Established,
        _ => State::New,
    }
}
