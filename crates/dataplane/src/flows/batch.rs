//! A batch's look-ups: the flows of all packets first, then what became of the packets.

use acl::{Fields, State};

use super::key::{Identity, Part, unpack};
use super::table::{Found, Mark, Packet};
use super::{FlowTable, Kept};
use crate::batch::{BATCH_MAX, ETHERNET};

/// One packet.
#[derive(Clone, Copy)]
struct Lookup<A: Kept> {
    /// `None`: it is of no flow.
    identity: Option<Identity<A>>,
    hash: u64,
    found: Option<Found>,
}

/// The packets of a batch in their order.
pub(crate) struct Lookups<A: Kept>(Box<[Lookup<A>; BATCH_MAX]>);

impl<A: Kept> Default for Lookups<A> {
    fn default() -> Self {
        Self(Box::new([Lookup { identity: None, hash: 0, found: None }; BATCH_MAX]))
    }
}

impl<A: Kept> Lookups<A> {
    /// Looks the flows of packets up, and says to `fields` what is known of them. `packets`: the frame and the
    /// VRF of each packet of `fields`; `now`: in TSC cycles.
    #[inline]
    pub fn look_up<'p>(
        &mut self,
        flows: &FlowTable,
        fields: &mut Fields<A>,
        now: u64,
        packets: impl Iterator<Item = (&'p [u8], u16)>,
    ) {
        let table = A::kept(flows);
        let clock = flows.clock(now);
        let lookups = &mut self.0[..fields.len().min(BATCH_MAX)];
        for ((place, lookup), (frame, vrf)) in lookups.iter_mut().enumerate().zip(packets) {
            lookup.identity = Identity::of(fields, place, frame, vrf);
            if let Some(identity) = &lookup.identity {
                lookup.hash = table.hash(&identity.key.words);
                table.prefetch(lookup.hash);
            }
        }
        for lookup in &*lookups {
            table.prefetch_slot(lookup.hash);
        }
        for (place, lookup) in lookups.iter_mut().enumerate() {
            let Some(identity) = &lookup.identity else { continue };
            lookup.found = table.find(&identity.key.words, lookup.hash, clock);
            let state = lookup.found.map_or(State::New, |found| state(identity, found));
            fields.set_state(place, state);
        }
    }

    /// The packet at this place, of so many bytes of IP, has been let pass; a flow that is not known is entered
    /// only if it is to be. Call [`Self::look_up`] before.
    #[inline]
    pub fn note(&self, flows: &FlowTable, place: usize, packet: Passed<'_>) {
        let Some(Lookup { identity: Some(identity), hash, found }) = self.0.get(place) else {
            return;
        };
        match identity.part {
            Part::Packet => {}
            Part::FirstFragment => note_rest::<A>(flows, identity, packet),
            Part::LaterFragment | Part::Error => return,
        }
        let (table, clock) = (A::kept(flows), flows.clock(packet.now));
        let of_flow = packet.of(identity);
        match found {
            Some(found) => table.note(*found, of_flow, clock.now),
            None if packet.enters => flows.count(table.enter(&identity.key, *hash, of_flow, clock)),
            None => {}
        }
    }
}

/// A packet that has been let pass.
#[derive(Clone, Copy)]
pub(crate) struct Passed<'a> {
    /// Its Ethernet frame.
    pub frame: &'a [u8],
    /// Bytes of the IP packet.
    pub length: usize,
    /// A flow that is not known is entered.
    pub enters: bool,
    /// The time in TSC cycles.
    pub now: u64,
}

impl Passed<'_> {
    #[inline(always)]
    fn of<A: Kept>(&self, identity: &Identity<A>) -> Packet {
        let Identity { key, mark, .. } = identity;
        Packet { direction: key.direction, mark: *mark, length: self.length }
    }
}

/// The other fragments of a packet whose first one has been let pass may follow it.
#[cold]
fn note_rest<A: Kept>(flows: &FlowTable, first: &Identity<A>, packet: Passed<'_>) {
    let (_, _, vrf) = unpack(first.key.words.as_ref()[1]);
    let rest = packet.frame.get(ETHERNET..).and_then(|packet| Identity::<A>::of_rest(packet, vrf));
    if let Some(rest) = rest {
        let table = A::kept(flows);
        let hash = table.hash(&rest.key.words);
        flows.count(table.enter(&rest.key, hash, packet.of(&rest), flows.clock(packet.now)));
    }
}

/// What a flow says of a packet.
#[inline(always)]
fn state<A: Kept>(identity: &Identity<A>, found: Found) -> State {
    let direction = identity.key.direction;
    match identity.part {
        Part::Error if found.has_seen(direction) => State::Related,
        // What goes on with a packet whose first fragment has passed.
        Part::LaterFragment if found.has_seen(direction) => State::Established,
        Part::Error | Part::LaterFragment => State::New,
        // An attempt is no answer.
        _ if identity.mark == Mark::Syn => State::New,
        _ if found.has_seen(1 - direction) => State::Established,
        _ => State::New,
    }
}
