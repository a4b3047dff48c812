//! The flows of one family: a table of fixed size, read and written by all forwarders at once.
//!
//! A flow has a slot among the [`WAYS`] slots of a bucket selected by its hash. The bucket has a
//! tag for each slot, 16 bits of the hash, so that a lookup reads one line for the tags and one for
//! the flow. A new flow takes an empty slot, an expired one, or that of a flow that is not assured:
//! one of the source with the most such flows in the bucket, so that a flood by one source
//! displaces its own flows, and among these the least recently used. Assured flows are never
//! displaced; if all others are, the new flow is refused, which is counted.
//!
//! There are no locks. A slot is claimed by exchanging its tag, and its flow is found once the tag
//! is written. A flow's state is one word, exchanged as a whole, which includes the number of the
//! slot's use, so that a state is never written to another flow's slot. Two forwarders that see a
//! flow's first packets at once may enter it twice; the first entry is found from then on.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::ip::{PROTOCOL_FRAGMENT, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP};

use super::Timeouts;
use super::key::{FlowKey, Tracked, unpack};
use crate::counters::Traffic;
use crate::flow::fold;

/// Slots of a bucket.
const WAYS: usize = 16;

/// Tags in a word.
const TAGS: usize = 4;

/// The tag of a slot in which a flow is being written.
const BUSY: u16 = 1;

const LANES: u64 = 0x0001_0001_0001_0001;
const HIGHS: u64 = LANES << 15;

type Bucket = [AtomicU64; WAYS / TAGS];

/// Slots of a bucket with the tag of a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// The bucket's first slot.
    first: u32,
    /// One bit for each slot: bit 12 for the first tag of the first word, 13 for that of the second, 28 for the second
    /// tag of the first word. Tags of different words meet no bits of each other, so the words are joined as they are.
    slots: u64,
}

impl Candidates {
    #[inline(always)]
    fn next(self) -> Option<usize> {
        let bit = self.slots.trailing_zeros();
        let slot = bit % TAGS as u32 * TAGS as u32 + bit / u16::BITS;
        (self.slots != 0).then_some((self.first + slot) as usize)
    }
}

/// One flow; its counters are of each direction.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// The first words of its key.
    key: [AtomicU64; 2],
    state: AtomicU64,
    /// Arrival time of its first packet, in ticks.
    since: AtomicU64,
    traffic: [Traffic; 2],
}

/// The effect of a packet on its flow, beyond keeping it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// None.
    Plain,
    /// TCP: opens a connection.
    Syn,
    /// TCP: opens it from the other side.
    SynAck,
    /// TCP: the last data.
    Fin,
    /// TCP: ends the connection at once.
    Rst,
    /// TCP: anything else.
    Data,
}

impl Mark {
    /// Of TCP flags (RFC 9293, 3.1).
    #[inline(always)]
    pub fn of_tcp(flags: u8) -> Self {
        const FIN: u8 = 0x01;
        const SYN: u8 = 0x02;
        const RST: u8 = 0x04;
        const ACK: u8 = 0x10;
        match flags & (FIN | SYN | RST | ACK) {
            flags if flags & RST != 0 => Self::Rst,
            flags if flags & (SYN | ACK) == SYN | ACK => Self::SynAck,
            flags if flags & SYN != 0 => Self::Syn,
            flags if flags & FIN != 0 => Self::Fin,
            _ => Self::Data,
        }
    }
}

/// The state of a flow: the last packet's time in ticks in the low 32 bits, the number of the slot's use in the
/// upper 16, and between them the following flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

/// Bits of a [`State`]; those of a direction are shifted by it.
const SEEN: u64 = 1 << 32;
const DATA: u64 = 1 << 34;
const FIN: u64 = 1 << 36;
const RST: u64 = 1 << 38;
/// The direction of the first packet.
const ORIGIN: u64 = 1 << 39;
const USE: u32 = 48;

impl State {
    fn first(direction: usize, mark: Mark, tick: u32, uses: u64) -> Self {
        let empty = uses << USE | (direction as u64) << ORIGIN.trailing_zeros();
        Self(empty).after(direction, mark, tick)
    }

    pub fn tick(self) -> u32 {
        self.0 as u32
    }

    fn uses(self) -> u64 {
        self.0 >> USE
    }

    /// Returns true if packets passed in this direction.
    #[inline(always)]
    pub fn has_seen(self, direction: usize) -> bool {
        self.0 & SEEN << direction != 0
    }

    /// Returns the direction of the first packet.
    pub fn origin(self) -> usize {
        usize::from(self.0 & ORIGIN != 0)
    }

    fn has_both(self, bit: u64) -> bool {
        let both = bit | bit << 1;
        self.0 & both == both
    }

    /// Returns true for a connection that is ending.
    pub fn is_closing(self) -> bool {
        self.0 & RST != 0 || self.has_both(FIN)
    }

    /// Returns true if both sides have confirmed the flow. For TCP both have sent more than the opening
    /// handshake: an address that does not answer, or a forged one, never gets so far.
    pub fn is_assured(self, protocol: u8) -> bool {
        match protocol {
            PROTOCOL_TCP => self.has_both(DATA) && !self.is_closing(),
            PROTOCOL_FRAGMENT => false,
            _ => self.has_both(SEEN),
        }
    }

    /// Returns the state after a packet.
    #[inline(always)]
    fn after(self, direction: usize, mark: Mark, tick: u32) -> Self {
        let mark = mark as usize;
        Self(self.0 & !CLEARED[mark] | SET[mark][direction & 1] | u64::from(tick))
    }
}

/// The flags that a packet of each [`Mark`] sets, by its direction.
const SET: [[u64; 2]; 6] = {
    const fn both(bits: u64) -> [u64; 2] {
        [bits, bits << 1]
    }
    let reset = [SEEN | RST, SEEN << 1 | RST];
    let (seen, data) = (both(SEEN), both(SEEN | DATA));
    [seen, seen, seen, both(SEEN | DATA | FIN), reset, data]
};

/// The flags that it clears, besides the time: a sender that continues has not been reset, so the
/// reset was not from the other side.
const CLEARED: [u64; 6] = {
    const TIME: u64 = u32::MAX as u64;
    [TIME, TIME, TIME, TIME | RST, TIME, TIME | RST]
};

/// A flow's slot and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    slot: u32,
    state: State,
}

impl Found {
    /// Returns true if packets passed in this direction.
    #[inline(always)]
    pub fn has_seen(self, direction: usize) -> bool {
        self.state.has_seen(direction)
    }
}

/// The result of entering a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It existed already.
    Known,
    /// It is new.
    New,
    /// It is new and replaced another.
    Instead,
    /// There is no room for it.
    Full,
}

/// A snapshot of a flow.
pub(crate) struct View {
    /// The key's words.
    pub key: [u64; 5],
    pub state: State,
    /// Arrival time of its first packet, in ticks.
    pub since: u32,
    /// Packets and bytes of each direction.
    pub traffic: [(u64, u64); 2],
}

/// See the module's documentation.
pub(crate) struct Table<A: Tracked> {
    seed: u64,
    buckets: Box<[Bucket]>,
    slots: Box<[Slot]>,
    /// The other words of the keys, for families with long addresses.
    rest: Box<[[AtomicU64; 3]]>,
    family: PhantomData<A>,
}

impl<A: Tracked> Table<A> {
    /// Creates a table for about this many flows.
    pub fn new(room: usize, seed: u64) -> Self {
        let buckets = room.div_ceil(WAYS).max(1);
        let slots = buckets * WAYS;
        let long = A::Words::default().as_ref().len() > 2;
        Self {
            seed,
            buckets: dpdk::on_huge_pages(buckets, |_| Bucket::default()),
            slots: dpdk::on_huge_pages(slots, |_| Slot::default()),
            rest: dpdk::on_huge_pages(if long { slots } else { 0 }, |_| Default::default()),
            family: PhantomData,
        }
    }

    /// The seed of the hashes.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the capacity in flows.
    pub fn room(&self) -> usize {
        self.slots.len()
    }

    /// Returns a hash that outsiders cannot predict.
    #[inline(always)]
    pub fn hash(&self, words: &A::Words) -> u64 {
        words.as_ref().iter().fold(self.seed, |state, &word| fold(state, word))
    }

    /// Prefetches a flow's bucket into the cache.
    #[inline(always)]
    pub fn prefetch(&self, hash: u64) {
        dpdk::prefetch(&raw const self.buckets[self.bucket(hash)]);
    }

    /// Returns slots that may be the flow's, and prefetches the first one into the cache.
    #[inline(always)]
    pub fn candidates(&self, hash: u64) -> Candidates {
        let bucket = self.bucket(hash);
        let wanted = u64::from(Self::tag(hash)) * LANES;
        let mut slots = 0;
        for (place, word) in self.buckets[bucket].iter().enumerate() {
            let differs = word.load(Ordering::Acquire) ^ wanted;
            // The top bit of each lane that is 0, and rarely of another.
            let equal = differs.wrapping_sub(LANES) & !differs & HIGHS;
            slots |= equal >> (WAYS / TAGS - 1 - place);
        }
        let candidates = Candidates { first: (bucket * WAYS) as u32, slots };
        if let Some(slot) = candidates.next() {
            dpdk::prefetch(&raw const self.slots[slot]);
            if let Some(rest) = self.rest.get(slot) {
                dpdk::prefetch(&raw const *rest);
            }
        }
        candidates
    }

    #[inline(always)]
    fn bucket(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    /// A tag is never 0, which means empty, nor [`BUSY`].
    #[inline(always)]
    fn tag(hash: u64) -> u16 {
        (hash as u16).max(BUSY + 1)
    }

    /// Returns the flow with this key among these slots, unless it has expired.
    #[inline(always)]
    pub fn find_among(
        &self,
        mut candidates: Candidates,
        words: &A::Words,
        clock: Clock<'_>,
    ) -> Option<Found> {
        while let Some(slot) = candidates.next() {
            let state = State(self.slots[slot].state.load(Ordering::Acquire));
            if self.has_key(slot, words) && !clock.is_over(state, protocol(words)) {
                return Some(Found { slot: slot as u32, state });
            }
            candidates.slots &= candidates.slots - 1;
        }
        None
    }

    /// Returns the flow with this key, unless it has expired.
    pub fn find(&self, words: &A::Words, hash: u64, clock: Clock<'_>) -> Option<Found> {
        self.find_among(self.candidates(hash), words, clock)
    }

    #[inline(always)]
    fn has_key(&self, slot: usize, words: &A::Words) -> bool {
        let (words, first) = (words.as_ref(), &self.slots[slot].key);
        let differs = |cell: &AtomicU64, word: u64| cell.load(Ordering::Relaxed) ^ word;
        let two = differs(&first[0], words[0]) | differs(&first[1], words[1]);
        let &[_, _, third, fourth, fifth] = words else { return two == 0 };
        let rest = &self.rest[slot];
        let three = differs(&rest[0], third) | differs(&rest[1], fourth) | differs(&rest[2], fifth);
        two | three == 0
    }

    /// Records a packet of a known flow that passed.
    #[inline(always)]
    pub fn note(&self, found: Found, packet: Packet, tick: u32) {
        let Some(slot) = self.slots.get(found.slot as usize) else { return };
        slot.count(packet);
        let mut after = found.state.after(packet.direction, packet.mark, tick);
        if packet.mark == Mark::Syn && found.state.is_closing() {
            after = State::first(packet.direction, packet.mark, tick, found.state.uses());
        }
        let (old, new) = (found.state.0, after.0);
        if old != new
            && let Err(now) =
                slot.state.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
        {
            slot.note_once_more(State(now), found.state.uses(), packet, tick);
        }
    }

    /// Enters the flow of a packet that passed, unless it exists.
    #[cold]
    pub fn enter(&self, key: &FlowKey<A>, hash: u64, packet: Packet, clock: Clock<'_>) -> Entered {
        if let Some(found) = self.find(&key.words, hash, clock) {
            self.note(found, packet, clock.now);
            return Entered::Known;
        }
        // Other forwarders may be faster; after some attempts there is no room.
        for _ in 0..WAYS {
            let Some(Place { slot, tag, entered }) = self.place(hash, clock) else { break };
            if self.exchange_tag(slot, tag, BUSY) {
                self.write(slot, &key.words, packet, clock.now);
                self.exchange_tag(slot, BUSY, Self::tag(hash));
                return entered;
            }
        }
        Entered::Full
    }

    /// Selects the slot of a new flow.
    fn place(&self, hash: u64, clock: Clock<'_>) -> Option<Place> {
        let first = self.bucket(hash) * WAYS;
        // Flows that may be displaced: their source, idle time and slot.
        let mut weak = [(0, 0, Place { slot: 0, tag: 0, entered: Entered::Instead }); WAYS];
        let mut count = 0;
        for slot in first..first + WAYS {
            let tag = self.tag_of(slot);
            if tag == 0 {
                return Some(Place { slot, tag, entered: Entered::New });
            }
            let View { key, state, .. } = self.read(slot);
            let (_, protocol, _) = unpack(key[1]);
            if tag == BUSY {
                continue;
            }
            if clock.is_over(state, protocol) {
                return Some(Place { slot, tag, entered: Entered::New });
            }
            if !state.is_assured(protocol) {
                let place = Place { slot, tag, entered: Entered::Instead };
                let idle = clock.now.wrapping_sub(state.tick());
                weak[count] = (A::end(&key, state.origin()), idle, place);
                count += 1;
            }
        }
        let weak = &weak[..count];
        let flows = |of: u64| weak.iter().filter(|(source, ..)| *source == of).count();
        weak.iter().max_by_key(|(source, idle, _)| (flows(*source), *idle)).map(|weak| weak.2)
    }

    /// Takes over the flows of another table, as far as there is room.
    pub fn take_over(&self, other: &Self, clock: Clock<'_>) {
        for View { key, state, since, traffic } in other.flows(clock) {
            let words = A::words_of(&key);
            let hash = self.hash(&words);
            let Some(place) = self.place(hash, clock) else { continue };
            if self.exchange_tag(place.slot, place.tag, BUSY) {
                self.write_key(place.slot, &words, since);
                let to = &self.slots[place.slot];
                for (to, (packets, bytes)) in to.traffic.iter().zip(traffic) {
                    to.packets.set(packets);
                    to.bytes.set(bytes);
                }
                to.state.store(state.0, Ordering::Release);
                self.exchange_tag(place.slot, BUSY, Self::tag(hash));
            }
        }
    }

    fn write_key(&self, slot: usize, words: &A::Words, since: u32) {
        let (to, words) = (&self.slots[slot], words.as_ref());
        let store = |(cell, word): (&AtomicU64, &u64)| cell.store(*word, Ordering::Relaxed);
        to.key.iter().zip(words).for_each(store);
        if let Some(rest) = self.rest.get(slot) {
            rest.iter().zip(&words[2..]).for_each(store);
        }
        to.since.store(since.into(), Ordering::Relaxed);
    }

    fn write(&self, slot: usize, words: &A::Words, packet: Packet, tick: u32) {
        let to = &self.slots[slot];
        let uses = State(to.state.load(Ordering::Relaxed)).uses().wrapping_add(1);
        self.write_key(slot, words, tick);
        to.traffic.iter().for_each(|traffic| {
            traffic.packets.set(0);
            traffic.bytes.set(0);
        });
        let state = State::first(packet.direction, packet.mark, tick, uses);
        to.state.store(state.0, Ordering::Release);
        to.count(packet);
    }

    fn read(&self, slot: usize) -> View {
        let from = &self.slots[slot];
        let state = State(from.state.load(Ordering::Acquire));
        let mut key = [0; 5];
        let rest = self.rest.get(slot).into_iter().flatten();
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        key.iter_mut().zip(from.key.iter().chain(rest)).for_each(|(word, cell)| *word = load(cell));
        let traffic = from.traffic.each_ref();
        let traffic = traffic.map(|traffic| (traffic.packets.get(), traffic.bytes.get()));
        View { key, state, since: from.since.load(Ordering::Relaxed) as u32, traffic }
    }

    /// Returns all flows that have not expired.
    pub fn flows(&self, clock: Clock<'_>) -> impl Iterator<Item = View> {
        let slots = (0..self.slots.len()).filter(|slot| self.tag_of(*slot) > BUSY);
        slots.map(|slot| self.read(slot)).filter(move |view| {
            let (_, protocol, _) = unpack(view.key[1]);
            !clock.is_over(view.state, protocol)
        })
    }

    /// Returns the number of flows. Of more than `looked_at` the part that has expired is estimated.
    pub fn count(&self, clock: Clock<'_>, looked_at: usize) -> usize {
        let taken = || (0..self.slots.len()).filter(|slot| self.tag_of(*slot) > BUSY);
        let is_live = |slot: &usize| {
            let view = self.read(*slot);
            !clock.is_over(view.state, unpack(view.key[1]).1)
        };
        let all = taken().count();
        let live = taken().take(looked_at).filter(is_live).count();
        if all <= looked_at { live } else { all * live / looked_at }
    }

    /// Removes the flows for which this is true; returns their number.
    pub fn forget(&self, clock: Clock<'_>, is_one: impl Fn(&View) -> bool) -> usize {
        let is_gone = |slot: &usize| {
            let tag = self.tag_of(*slot);
            if tag <= BUSY {
                return false;
            }
            let view = self.read(*slot);
            let is_live = !clock.is_over(view.state, unpack(view.key[1]).1);
            is_live && is_one(&view) && self.exchange_tag(*slot, tag, 0)
        };
        (0..self.slots.len()).filter(is_gone).count()
    }

    fn tag_of(&self, slot: usize) -> u16 {
        let word = self.buckets[slot / WAYS][slot % WAYS / TAGS].load(Ordering::Acquire);
        (word >> (slot % TAGS * 16)) as u16
    }

    /// Replaces a slot's tag; returns false if the slot has another tag by now.
    fn exchange_tag(&self, slot: usize, before: u16, after: u16) -> bool {
        let cell = &self.buckets[slot / WAYS][slot % WAYS / TAGS];
        let shift = slot % TAGS * 16;
        let exchanged = |word: u64| {
            let is_before = (word >> shift) as u16 == before;
            is_before.then(|| word & !(0xffff << shift) | u64::from(after) << shift)
        };
        cell.fetch_update(Ordering::AcqRel, Ordering::Acquire, exchanged).is_ok()
    }
}

impl Slot {
    /// Records the packet again after another forwarder's concurrent change, unless the slot now
    /// belongs to another flow.
    #[cold]
    fn note_once_more(&self, mut now: State, uses: u64, packet: Packet, tick: u32) {
        while now.uses() == uses {
            let after = now.after(packet.direction, packet.mark, tick).0;
            let exchange =
                self.state.compare_exchange(now.0, after, Ordering::AcqRel, Ordering::Relaxed);
            let Err(other) = exchange else { return };
            now = State(other);
        }
    }

    #[inline(always)]
    fn count(&self, packet: Packet) {
        let traffic = &self.traffic[packet.direction & 1];
        traffic.packets.add(1);
        traffic.bytes.add(packet.length as u64);
    }
}

/// A slot for a new flow, its current tag, and the effect of taking it.
#[derive(Clone, Copy)]
struct Place {
    slot: usize,
    tag: u16,
    entered: Entered,
}

#[inline(always)]
fn protocol<W: AsRef<[u64]>>(words: &W) -> u8 {
    words.as_ref()[1] as u8
}

/// A packet that passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub direction: usize,
    pub mark: Mark,
    /// Bytes of the IP packet.
    pub length: usize,
}

/// The time, and the timeouts of flows.
#[derive(Clone, Copy)]
pub(crate) struct Clock<'a> {
    /// In ticks.
    pub now: u32,
    /// In ticks.
    pub timeouts: &'a Timeouts,
}

impl Clock<'_> {
    #[inline(always)]
    fn is_over(self, state: State, protocol: u8) -> bool {
        let age = self.now.wrapping_sub(state.tick());
        // Another forwarder's clock may be a tick ahead.
        age != 0 && age > self.timeout(state, protocol) && age < u32::MAX / 2
    }

    #[inline(always)]
    fn timeout(self, state: State, protocol: u8) -> u32 {
        let timeouts = self.timeouts;
        match protocol {
            PROTOCOL_TCP if state.is_assured(protocol) => timeouts.tcp,
            PROTOCOL_TCP => timeouts.opening,
            PROTOCOL_UDP if state.has_both(SEEN) => timeouts.udp,
            PROTOCOL_UDP => timeouts.unanswered,
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => timeouts.icmp,
            PROTOCOL_FRAGMENT => timeouts.fragments,
            _ => timeouts.other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        tcp: 1000,
        opening: 100,
        udp: 300,
        unanswered: 50,
        icmp: 20,
        fragments: 10,
        other: 200,
    };

    fn at(now: u32) -> Clock<'static> {
        Clock { now, timeouts: &TIMEOUTS }
    }

    fn packet(direction: usize, mark: Mark) -> Packet {
        Packet { direction, mark, length: 100 }
    }

    /// A key of this protocol between two ports of 10.0.0.x and 10.1.0.0.
    fn key(host: u32, port: u16, protocol: u8) -> FlowKey<Ipv4Addr> {
        let (from, to) = ((0x0a00_0000 + host, port), (0x0a01_0000, 80));
        FlowKey { words: Ipv4Addr::ordered(from, to, protocol.into()).0, direction: 0 }
    }

    fn table(room: usize) -> Table<Ipv4Addr> {
        Table::new(room, 7)
    }

    /// Enters or keeps a flow by a packet.
    fn pass(table: &Table<Ipv4Addr>, key: &FlowKey<Ipv4Addr>, of: Packet, now: u32) -> Entered {
        table.enter(key, table.hash(&key.words), of, at(now))
    }

    fn found(table: &Table<Ipv4Addr>, key: &FlowKey<Ipv4Addr>, now: u32) -> Option<State> {
        let found = table.find(&key.words, table.hash(&key.words), at(now));
        found.map(|found| found.state)
    }

    #[test]
    fn flows_last_as_long_as_their_state_says() {
        let ends = |protocol, marks: &[(usize, Mark)]| {
            let (table, key) = (table(16), key(1, 9, protocol));
            for &(direction, mark) in marks {
                pass(&table, &key, packet(direction, mark), 5);
            }
            let last = (5..2000).rev().find(|&now| found(&table, &key, now).is_some());
            last.map_or(0, |last| last - 5)
        };
        use Mark::{Data, Fin, Plain, Rst, Syn, SynAck};
        assert_eq!(ends(17, &[(0, Plain)]), 50);
        assert_eq!(ends(17, &[(0, Plain), (1, Plain)]), 300);
        assert_eq!(ends(1, &[(0, Plain), (1, Plain)]), 20);
        assert_eq!(ends(44, &[(0, Plain)]), 10);
        assert_eq!(ends(47, &[(0, Plain)]), 200);
        assert_eq!(ends(6, &[(0, Syn), (1, SynAck), (0, Data)]), 100, "the server is silent");
        let open = [(0, Syn), (1, SynAck), (0, Data), (1, Data)];
        assert_eq!(ends(6, &open), 1000);
        assert_eq!(ends(6, &[&open[..], &[(0, Fin)]].concat()), 1000, "half closed");
        assert_eq!(ends(6, &[&open[..], &[(0, Fin), (1, Fin)]].concat()), 100);
        assert_eq!(ends(6, &[&open[..], &[(1, Rst)]].concat()), 100);
        assert_eq!(ends(6, &[&open[..], &[(1, Rst), (0, Data)]].concat()), 1000);
        // The tick counter wraps.
        let (table, key) = (table(16), key(1, 9, 17));
        pass(&table, &key, packet(0, Plain), u32::MAX - 3);
        assert!(found(&table, &key, 40).is_some() && found(&table, &key, 60).is_none());
    }

    #[test]
    fn a_flow_over_begins_anew_in_its_place() {
        let (table, key) = (table(16), key(1, 9, 17));
        pass(&table, &key, packet(0, Mark::Plain), 0);
        pass(&table, &key, packet(1, Mark::Plain), 0);
        assert_eq!(pass(&table, &key, packet(1, Mark::Plain), 1000), Entered::New);
        let state = found(&table, &key, 1000).unwrap();
        assert!(state.has_seen(1) && !state.has_seen(0) && state.origin() == 1);
        assert_eq!(table.flows(at(1000)).count(), 1);
        assert_eq!(table.flows(at(1000)).next().unwrap().traffic, [(0, 0), (1, 100)]);
    }

    #[test]
    fn assured_flows_are_never_pushed_out() {
        let table = table(WAYS);
        let assured: Vec<_> = (0..WAYS as u32).map(|n| key(n, 9, 17)).collect();
        for key in &assured {
            assert_eq!(pass(&table, key, packet(0, Mark::Plain), 0), Entered::New);
            pass(&table, key, packet(1, Mark::Plain), 0);
        }
        assert_eq!(pass(&table, &key(99, 9, 17), packet(0, Mark::Plain), 0), Entered::Full);
        assert!(assured.iter().all(|key| found(&table, key, 0).is_some()));
        // They expire then.
        assert_eq!(pass(&table, &key(99, 9, 17), packet(0, Mark::Plain), 301), Entered::New);
    }

    #[test]
    fn flows_are_counted_or_estimated() {
        let table = table(256);
        (0..20).for_each(|n| _ = pass(&table, &key(n, 9, 17), packet(0, Mark::Plain), 0));
        assert_eq!((table.count(at(0), 1000), table.count(at(0), 10)), (20, 20));
        (20..40).for_each(|n| _ = pass(&table, &key(n, 9, 17), packet(0, Mark::Plain), 100));
        // Those of before have run out.
        assert_eq!((table.count(at(100), 1000), table.count(at(1000), 10)), (20, 0));
        let estimate = table.count(at(100), 20);
        assert!((10..=29).contains(&estimate), "{estimate}");
    }

    #[test]
    fn who_has_the_most_attempts_loses_one_of_his() {
        let table = table(WAYS);
        let few: Vec<_> = (1..4).map(|n| key(n, 9, 17)).collect();
        let many: Vec<_> = (3..WAYS as u16).map(|port| key(77, port, 17)).collect();
        for (now, key) in few.iter().chain(&many).enumerate() {
            pass(&table, key, packet(0, Mark::Plain), now as u32);
        }
        for (now, port) in (20..40).zip(100..) {
            let entered = pass(&table, &key(77, port, 17), packet(0, Mark::Plain), now);
            assert_eq!(entered, Entered::Instead);
        }
        assert!(few.iter().all(|key| found(&table, key, 40).is_some()));
        assert!(found(&table, &many[0], 40).is_none(), "the oldest first");
        assert_eq!(pass(&table, &key(5, 9, 17), packet(0, Mark::Plain), 40), Entered::Instead);
    }

    #[test]
    fn another_table_takes_flows_over() {
        let (small, large) = (table(64), Table::<Ipv4Addr>::new(4096, 7));
        let keys: Vec<_> = (0..40).map(|n| key(n, 9, 17)).collect();
        for key in &keys {
            pass(&small, key, packet(0, Mark::Plain), 3);
        }
        large.take_over(&small, at(20));
        let here: Vec<_> = keys.iter().map(|key| found(&small, key, 20).is_some()).collect();
        assert_eq!(
            here,
            keys.iter().map(|key| found(&large, key, 20).is_some()).collect::<Vec<_>>()
        );
        assert!(
            large.flows(at(20)).all(|view| view.traffic == [(1, 100), (0, 0)] && view.since == 3)
        );
        large.take_over(&small, at(1000));
        assert_eq!(large.forget(at(20), |view| unpack(view.key[1]).0[0] == 9), large_count(&here));
        assert_eq!(large.flows(at(20)).count(), 0);
    }

    fn large_count(here: &[bool]) -> usize {
        here.iter().filter(|here| **here).count()
    }

    #[test]
    fn forwarders_that_write_at_once_lose_no_flow() {
        let table = Table::<Ipv6Addr>::new(1 << 14, 7);
        let key = |n: u64| {
            let words = [n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n << 48 | 17, !n, 5, n];
            FlowKey::<Ipv6Addr> { words, direction: 0 }
        };
        let flow = |n: u64, direction, now| {
            let key = key(n);
            table.enter(&key, table.hash(&key.words), packet(direction, Mark::Plain), at(now))
        };
        // A flow in each direction from another thread, among attempts that displace each other.
        std::thread::scope(|scope| {
            for direction in 0..2 {
                scope.spawn(move || {
                    for n in 0..4000 {
                        flow(n, direction, 1);
                        flow(1 << 20 | (direction as u64) << 19 | n, direction, 1);
                    }
                });
            }
        });
        let mut seen: HashMap<[u64; 5], u64> = HashMap::new();
        for view in table.flows(at(1)) {
            let sum = view.traffic[0].0 + view.traffic[1].0;
            *seen.entry(view.key).or_default() += sum;
        }
        let there = (0..4000).filter(|&n| seen.contains_key(&key(n).words)).count();
        assert!(there > 3900, "{there}");
        // No flow is a mixture of two: every flow found was entered.
        let known = |words: &[u64; 5]| {
            let n = words[4];
            *words == key(n).words
        };
        assert!(seen.keys().all(known));
    }

    proptest! {
        /// Comparison with an unbounded map: with enough room, the same flows are known.
        #[test]
        fn with_room_it_is_a_map(steps in vec((0u32..40, 0usize..2, 0u32..30), 1..300)) {
            let table = table(4096);
            let mut map: HashMap<u32, (u32, [bool; 2])> = HashMap::new();
            let mut now = 0;
            for (host, direction, later) in steps {
                now += later;
                let key = key(host, 9, 17);
                let timeout = |seen: [bool; 2]| if seen == [true; 2] { 300 } else { 50 };
                let known = map.get(&host).copied().filter(|(last, seen)| now - last <= timeout(*seen));
                let state = found(&table, &key, now);
                prop_assert_eq!(
                    state.map(|state| [state.has_seen(0), state.has_seen(1)]),
                    known.map(|(_, seen)| seen)
                );
                pass(&table, &key, packet(direction, Mark::Plain), now);
                let mut seen = known.map_or([false; 2], |(_, seen)| seen);
                seen[direction] = true;
                map.insert(host, (now, seen));
            }
        }
    }
}
