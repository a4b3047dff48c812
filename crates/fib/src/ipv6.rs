//! The IPv6 table: bitmap words down to /32, then a search tree over 16-bit digits.
//!
//! # The structure
//!
//! ```text
//!  address  | 16 bits | 11 bits | 5 |    digit 2    |    digit 3    | ... digit 7 |
//!               |          |      |         |               |
//!  directory [  d  ]       |      |         |               |
//!            base, mask    |      |         |               |
//!               |          |      |         |               |
//!  words     [ base + (11 bits & mask) ]    |               |
//!               '-- base and bitmap         |               |
//!  leaves    [ base + popcount(bitmap >> 5 bits) ]          |
//!               '-- next hop, or node ------|               |
//!  nodes     [ 10 keys | 11 answers ]  rank of the digit among the keys
//!                           '-- next hop, or node ----------|
//! ```
//!
//! *Down to /32.* A /16 with many routes has a slab of 2^11 words, each with 32 slots of one /32,
//! exactly as in the IPv4 table. All other /16s have one word, whose one answer is a next hop or
//! a node. The directory says which: word = base + (next 11 bits AND mask), with an empty mask
//! for the single words.
//!
//! *Nodes.* What lies below is decided 16 bits at a time, one *digit*. A digit's range 0 to
//! 65,535 falls into runs with one answer each; a node is one cache line with the first digits of
//! up to 11 runs (the first begins at 0 and is not stored) and their answers. The rank of the
//! address's digit among the keys is the index of its answer. More than 11 runs make a B-tree of
//! such nodes over the same digit. An answer is a next hop or a node and the digit it looks at.
//! Digits fit the lengths that are in use: a /48 or /64 nested in a /32 costs one or two nodes,
//! where a trie with 5 or 6 bits per step takes three to six steps.
//!
//! # What a lookup costs
//!
//! Three dependent loads down to /32 (the directory's is nearly always in the first-level cache),
//! then one cache line per node; no branch depends on the address but "are there lookups left in
//! this batch that met a node". Every prefix length from 0 to 128 is handled by the same steps,
//! and 2000::/3 is not special.
//!
//! # What an update costs
//!
//! The changed prefix is looked for in the writer's copy of the routes. Below /32, the nodes of
//! the /32 that holds it are built anew; from /17 to /32, those of the words it covers; in a /16
//! with a single word, those of the /16. New nodes are written before the word or leaf that leads
//! to them is stored; the old ones retire as a whole.
//!
//! # Why readers never notice
//!
//! Nodes are not changed once they are reachable. Directory entry, word and leaf are atomic
//! stores with release ordering, and a reader's acquire fence follows each stage. So one store
//! replaces all answers of a /32 (or of a word's 32) at once, and what readers still see is not
//! reused before their grace period ends.
//!
//! # Limits
//!
//! Next hops: 32,767. Nodes: 2^22, four times as many as a million routes of today's mix need
//! ([`Error::Full`] beyond). Slabs: 4,096; further /16s with many routes use a B-tree instead. A
//! /16 keeps its slab. Memory that lookups read: 0.5 MiB, plus 16 KiB per /16 with a slab, 4
//! bytes per run of /32s, 64 bytes per node.
//!
//! # Where it comes from
//!
//! The upper part is the IPv4 table's. Searching ranges instead of walking bits is known from
//! Lampson, Srinivasan and Varghese (INFOCOM 1998) and DXR (Zec, Rizzo and Mikuc, CCR 2012);
//! trees of fixed-size key slices, each a B-tree, from Masstree (Mao, Kohler and Morris, EuroSys
//! 2012).

use std::{
    net::Ipv6Addr,
    sync::{Arc, atomic::Ordering},
};

use lookup::{
    Answer, DIGIT, DIGITS, FAN_OUT, IS_NODE, KEY_CELLS, NODE_CELLS, NODES, SLAB, SLABS, Shared,
    node_answer, node_number, word_index,
};

use crate::{
    Bits, Change, Error, GracePeriod, Lookup, NO_ROUTE, NextHopId, Prefix, Table, check_changes,
    check_next_hop,
    rib::{NodeId, Rib, Slot, SlotRuns},
    runs::Retired,
    words::{Leaves, OldHalf, SLOTS, leaf_index, own_leaves, store_leaves},
};

mod lookup;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "assembly")]
mod rank;

/// A /16 with more runs of /32s than this, which one node could not hold, gets a slab.
const SLAB_RUNS: usize = FAN_OUT;

/// A digit's range as runs with one answer each: first digit and answer, ascending.
type AnswerRuns = Vec<(u32, Answer)>;

/// A piece that waits for its grace period.
enum Piece {
    Leaves { base: u32, len: usize },
    Node { number: u32 },
    Half(OldHalf),
}

/// There is no room for a node or a leaf.
struct NoRoom;

/// The writer.
pub(crate) struct Runmap6 {
    shared: Arc<Shared>,
    rib: Rib<u128>,
    leaves: Leaves,
    slabs: usize,
    /// Nodes that were in use at some time.
    nodes: usize,
    free_nodes: Vec<u32>,
    /// Nodes made since the last publication, to be given back if it fails.
    fresh: Vec<u32>,
    retired: Retired<Piece>,
    /// Prefixes whose range does not yet show the routes.
    pending: Vec<(u128, u8)>,
}

impl Runmap6 {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        Self {
            shared: Arc::new(Shared::new()),
            rib: Rib::new(),
            leaves: Leaves::new(),
            slabs: 0,
            nodes: 0,
            free_nodes: Vec::new(),
            fresh: Vec::new(),
            retired: Retired::new(grace),
            pending: Vec::new(),
        }
    }

    // ---- building ---------------------------------------------------------------------------

    /// Builds what lies below each slot of a digit.
    fn answers_of(&mut self, runs: &SlotRuns, digit: u8) -> Result<AnswerRuns, NoRoom> {
        let mut answers = AnswerRuns::with_capacity(runs.runs.len());
        for &(first, slot) in &runs.runs {
            let answer = match slot {
                Slot::Leaf(next_hop) => u32::from(next_hop),
                Slot::Below(at, cover) => self.below(at, digit + 1, cover)?,
            };
            answers.push((first, answer));
        }
        Ok(answers)
    }

    /// The answer for all addresses with one value of the digits before `digit`, given the
    /// topmost node of the RIB in this range.
    fn below(&mut self, at: NodeId, digit: u8, cover: NextHopId) -> Result<Answer, NoRoom> {
        let runs = self.rib.slots(at, DIGIT * digit, DIGIT, cover);
        let answers = self.answers_of(&runs, digit)?;
        self.tree(answers, digit)
    }

    /// A B-tree over the runs; their answer if there is but one.
    fn tree(&mut self, mut level: AnswerRuns, digit: u8) -> Result<Answer, NoRoom> {
        while level.len() > 1 {
            let nodes = level.len().div_ceil(FAN_OUT);
            let size = level.len().div_ceil(nodes);
            level = level
                .chunks(size)
                .map(|group| Ok((group[0].0, node_answer(self.node(group)?, digit))))
                .collect::<Result<_, NoRoom>>()?;
        }
        Ok(level[0].1)
    }

    /// Writes a node of at most [`FAN_OUT`] runs.
    fn node(&mut self, runs: &[(u32, Answer)]) -> Result<u32, NoRoom> {
        let number = self.take_node()?;
        self.fresh.push(number);
        let (_, last) = runs[runs.len() - 1];
        // Unused keys are the highest digit and unused answers the last run's, which is right for
        // that digit as well.
        let mut keys = [u16::MAX; FAN_OUT - 1];
        let mut cells = [last; NODE_CELLS];
        for (index, &(first, answer)) in runs.iter().enumerate() {
            cells[KEY_CELLS + index] = answer;
            if index > 0 {
                keys[index - 1] = first as u16;
            }
        }
        for (cell, pair) in cells.iter_mut().zip(keys.chunks_exact(2)) {
            *cell = u32::from(pair[0]) | u32::from(pair[1]) << 16;
        }
        store_leaves(&self.shared.nodes.all()[number as usize], &cells);
        Ok(number)
    }

    fn take_node(&mut self) -> Result<u32, NoRoom> {
        if let Some(number) = self.free_nodes.pop() {
            return Ok(number);
        }
        if self.nodes == NODES {
            self.reclaim();
            return self.free_nodes.pop().ok_or(NoRoom);
        }
        self.nodes += 1;
        Ok((self.nodes - 1) as u32)
    }

    // ---- publication ------------------------------------------------------------------------

    /// Makes a prefix's range show the routes.
    fn refresh(&mut self, bits: u128, len: u8) -> Result<(), NoRoom> {
        let first = bits.slice(0, DIGIT) as usize;
        let done = if len <= DIGIT {
            (first..first + (1 << (DIGIT - len))).try_for_each(|number| self.refresh_16(number))
        } else if self.slab(first).is_some() {
            self.refresh_slots(first, bits, len.min(2 * DIGIT))
        } else {
            self.refresh_16(first)
        };
        // Left over only if the publication failed.
        self.free_nodes.append(&mut self.fresh);
        done
    }

    fn entry(&self, number: usize) -> u64 {
        self.shared.directory.all()[number].load(Ordering::Relaxed)
    }

    /// The first word of a /16's slab.
    fn slab(&self, number: usize) -> Option<usize> {
        let entry = self.entry(number);
        (entry >> 32 != 0).then(|| word_index(entry, (number as u128) << 112))
    }

    /// Makes a whole /16 show the routes.
    fn refresh_16(&mut self, number: usize) -> Result<(), NoRoom> {
        let bits = u128::place(number as u32, 0, DIGIT);
        let (cover, at) = self.rib.cover(bits, DIGIT);
        let runs = self.answers_of(&self.rib.slots(at, DIGIT, DIGIT, cover), 1)?;
        if let Some(slab) = self.slab(number) {
            return self.store_slots(slab, 0, DIGITS, &runs);
        }
        if runs.len() > SLAB_RUNS && self.slabs < SLABS {
            return self.make_slab(number, &runs);
        }
        let answer = self.tree(runs, 1)?;
        self.check_room(1)?;
        self.store_word(number, &[answer; SLOTS])?;
        self.fresh.clear();
        Ok(())
    }

    /// Makes the /32s of a prefix of lengths 17 to 32, in a /16 with a slab, show the routes.
    fn refresh_slots(&mut self, number: usize, bits: u128, len: u8) -> Result<(), NoRoom> {
        let bits = bits & u128::mask(len);
        let first = bits.slice(DIGIT, DIGIT);
        let (cover, at) = self.rib.cover(bits, len);
        let mut runs = SlotRuns::new(first, DIGITS as u32, cover);
        self.rib.fill(at, DIGIT, DIGIT, cover, &mut runs);
        let runs = self.answers_of(&runs, 1)?;
        let Some(slab) = self.slab(number) else { return Ok(()) };
        let count = 1usize << (2 * DIGIT - len);
        self.store_slots(slab, first as usize, first as usize + count, &runs)
    }

    /// Replaces a /16's single word by a slab.
    fn make_slab(&mut self, number: usize, runs: &[(u32, Answer)]) -> Result<(), NoRoom> {
        let slab = DIGITS + self.slabs * SLAB;
        self.store_slots(slab, 0, DIGITS, runs)?;
        self.slabs += 1;
        let mask = (SLAB as u64 - 1) << 32;
        self.shared.directory.all()[number].store(mask | (slab - number) as u64, Ordering::Release);
        // The single word keeps its contents for readers that are on their way to it.
        let before = self.answers(number);
        self.retire_leaves(self.word(number));
        self.retire_nodes(before[0]);
        Ok(())
    }

    /// Stores the runs of the slots `first` to before `end`.
    fn store_slots(
        &mut self,
        slab: usize,
        first: usize,
        end: usize,
        runs: &[(u32, Answer)],
    ) -> Result<(), NoRoom> {
        // A word with runs of its own has a leaf for each and one for the run that reaches in; the
        // words at both ends may keep leaves.
        self.check_room(2 * runs.len() + 2 * SLOTS)?;
        let mut rest = runs;
        for word in first / SLOTS..end.div_ceil(SLOTS) {
            let slots = (word * SLOTS).max(first)..((word + 1) * SLOTS).min(end);
            // The runs that begin in this word, and the one that reaches into it.
            while rest.len() > 1 && rest[1].0 as usize <= slots.start {
                rest = &rest[1..];
            }
            let mut answers = match slots.len() {
                SLOTS => [NO_ROUTE.into(); SLOTS],
                _ => self.answers(slab + word),
            };
            for (index, &(from, answer)) in rest.iter().enumerate() {
                if from as usize >= slots.end {
                    break;
                }
                let next = rest.get(index + 1).map_or(slots.end, |run| run.0 as usize);
                let part = slots.start.max(from as usize)..slots.end.min(next);
                answers[part.start % SLOTS..][..part.len()].fill(answer);
            }
            self.store_word(slab + word, &answers)?;
        }
        // The new nodes are in use now, not to be given back.
        self.fresh.clear();
        Ok(())
    }

    fn word(&self, word: usize) -> u64 {
        self.shared.words.all()[word].load(Ordering::Relaxed)
    }

    /// The answers of a word's slots.
    fn answers(&self, word: usize) -> [Answer; SLOTS] {
        let word = self.word(word);
        std::array::from_fn(|slot| self.answer(word, slot))
    }

    fn answer(&self, word: u64, slot: usize) -> Answer {
        self.shared.leaves.all()[leaf_index(word, slot as u32)].load(Ordering::Relaxed)
    }

    /// Sees that there are this many leaves.
    fn check_room(&mut self, leaves: usize) -> Result<(), NoRoom> {
        if self.leaves.room() < leaves {
            self.reclaim();
            self.compact();
        }
        if self.leaves.room() < leaves { Err(NoRoom) } else { Ok(()) }
    }

    /// Stores a word's answers and retires what it led to before.
    fn store_word(&mut self, index: usize, answers: &[Answer; SLOTS]) -> Result<(), NoRoom> {
        let before = self.word(index);
        let old_answers = match own_leaves(before) {
            Some(_) => self.answers(index),
            None => [self.answer(before, 0); SLOTS],
        };
        if old_answers == *answers {
            return Ok(());
        }
        let cells = &self.shared.leaves;
        let uniform =
            |answer| (answer & IS_NODE == 0).then(|| Leaves::uniform(cells, answer as NextHopId));
        let word = self.leaves.word(cells, before, answers, uniform).ok_or(NoRoom)?;
        if word != before {
            self.shared.words.all()[index].store(word, Ordering::Release);
            self.retire_leaves(before);
        }
        let mut last = NO_ROUTE.into();
        for (&old, &new) in old_answers.iter().zip(answers) {
            if old != new && old != last {
                self.retire_nodes(old);
            }
            last = old;
        }
        Ok(())
    }

    fn retire_leaves(&mut self, word: u64) {
        if let Some((base, len)) = own_leaves(word) {
            self.retired.put(Piece::Leaves { base, len });
        }
    }

    /// Retires the nodes that an answer leads to.
    fn retire_nodes(&mut self, answer: Answer) {
        if answer & IS_NODE == 0 {
            return;
        }
        let number = node_number(answer);
        self.retired.put(Piece::Node { number: number as u32 });
        let mut last = NO_ROUTE.into();
        for cell in KEY_CELLS..NODE_CELLS {
            let below = self.shared.nodes.all()[number][cell].load(Ordering::Relaxed);
            // Unused places repeat the last answer.
            if below != last {
                self.retire_nodes(below);
            }
            last = below;
        }
    }

    /// Publishes all pending ranges; those for which there is no room stay pending.
    fn publish(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&(bits, len)| self.refresh(bits, len).is_err());
        self.pending = pending;
        if self.retired.is_due() {
            self.reclaim();
            self.compact();
        }
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Takes back what is out of every reader's sight; returns how many pieces still wait.
    fn reclaim(&mut self) -> usize {
        let Self { retired, leaves, free_nodes, shared, .. } = self;
        retired.collect(|piece| match piece {
            Piece::Leaves { base, len } => leaves.release(base, len),
            Piece::Node { number } => free_nodes.push(number),
            Piece::Half(half) => leaves.release_half(&shared.leaves, half),
        })
    }

    /// Closes the gaps between the leaves if there are many.
    fn compact(&mut self) {
        let (directory, words) = (self.shared.directory.all(), self.shared.words.all());
        // A single word is in use unless the /16 has a slab.
        let singles = words[..DIGITS].iter().zip(directory);
        let singles = singles.filter(|(_, entry)| entry.load(Ordering::Relaxed) == 0);
        let slabs = &words[DIGITS..DIGITS + self.slabs * SLAB];
        let live = singles.map(|(word, _)| word).chain(slabs);
        if let Some(half) = self.leaves.compact(&self.shared.leaves, live) {
            self.retired.put(Piece::Half(half));
        }
    }

    fn full(&self) -> Error {
        match self.retired.waiting() {
            0 => {
                Error::Full { structure: "runmap", what: "the number of IPv6 nodes", limit: NODES }
            }
            waiting => Error::Stalled { structure: "runmap", waiting },
        }
    }

    /// Makes a change in the RIB only; returns the next hop before, or [`NO_ROUTE`].
    fn set(&mut self, prefix: Prefix<Ipv6Addr>, next_hop: NextHopId) -> NextHopId {
        let before = match next_hop {
            NO_ROUTE => self.rib.remove(prefix.bits(), prefix.len()),
            _ => self.rib.insert(prefix.bits(), prefix.len(), next_hop),
        };
        if before != next_hop {
            self.pending.push((prefix.bits(), prefix.len()));
        }
        before
    }

    /// Adds routes to the RIB only; stops at the first that fails.
    fn set_all(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv6Addr>, NextHopId)>,
    ) -> Result<(), Error> {
        self.rib.reserve(routes.size_hint().0);
        for (prefix, next_hop) in routes {
            check_next_hop(next_hop)?;
            self.set(prefix, next_hop);
        }
        Ok(())
    }
}

impl Table<Ipv6Addr> for Runmap6 {
    fn reader(&self) -> Arc<dyn Lookup<Ipv6Addr>> {
        lookup::reader(&self.shared)
    }

    fn insert(
        &mut self,
        prefix: Prefix<Ipv6Addr>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error> {
        check_next_hop(next_hop)?;
        let before = self.set(prefix, next_hop);
        self.publish();
        if !self.pending.is_empty() {
            let error = self.full();
            self.set(prefix, before);
            self.publish();
            return Err(error);
        }
        Ok(Some(before).filter(|&before| before != NO_ROUTE))
    }

    fn remove(&mut self, prefix: Prefix<Ipv6Addr>) -> Option<NextHopId> {
        let before = self.set(prefix, NO_ROUTE);
        self.publish();
        Some(before).filter(|&before| before != NO_ROUTE)
    }

    fn get(&self, prefix: Prefix<Ipv6Addr>) -> Option<NextHopId> {
        self.rib.get(prefix.bits(), prefix.len())
    }

    fn len(&self) -> usize {
        self.rib.len()
    }

    fn memory_bytes(&self) -> usize {
        let words = 2 * DIGITS + self.slabs * SLAB;
        let cells = self.leaves.used() + self.nodes * NODE_CELLS;
        words * size_of::<u64>() + cells * size_of::<u32>()
    }

    fn writer_bytes(&self) -> usize {
        self.rib.bytes()
    }

    fn apply(&mut self, changes: &[Change<Ipv6Addr>]) -> Result<(), Error> {
        check_changes(changes)?;
        for change in changes {
            match *change {
                Change::Insert { prefix, next_hop } => self.set(prefix, next_hop),
                Change::Remove { prefix } => self.set(prefix, NO_ROUTE),
            };
        }
        self.pending.sort_unstable();
        self.pending.dedup();
        self.publish();
        if self.pending.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv6Addr>, NextHopId)>,
    ) -> Result<(), Error> {
        let made = self.set_all(routes);
        // Each /16 once; prefixes shorter than /16 stand for all theirs.
        for (bits, len) in &mut self.pending {
            *len = (*len).min(DIGIT);
            *bits &= u128::mask(*len);
        }
        self.pending.sort_unstable();
        self.pending.dedup();
        self.publish();
        made?;
        if self.pending.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    fn collect(&mut self) -> usize {
        self.reclaim();
        if !self.pending.is_empty() {
            self.publish();
        }
        self.compact();
        self.reclaim()
    }

    fn name(&self) -> &'static str {
        "runmap"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoReaders, synthetic::Random};

    #[test]
    fn every_kernel_gives_the_same_answers_at_every_batch_length() {
        let mut table = Runmap6::new(Box::new(NoReaders));
        let mut random = Random::new(1);
        // One /32 with many routes, so that its nodes form a tree; all digits' ends occur.
        let near = |random: &mut Random| {
            let tail = random.wide()
                & (u128::MAX >> 32)
                & [0, u128::MAX, 7 << 80][random.below(3) as usize];
            0x2001_0db8 << 96 | random.wide() & 0xffff << 80 | tail
        };
        let routes = if cfg!(miri) { 20 } else { 2000 };
        for _ in 0..routes {
            let prefix =
                Prefix::covering(Ipv6Addr::from(near(&mut random)), 33 + random.below(96) as u8);
            table.insert(prefix, 1 + random.below(0x7fff) as u16).unwrap();
        }
        let addresses: Vec<u128> =
            (0..150).map(|_| near(&mut random)).chain([0, u128::MAX]).collect();
        for reader in lookup::all_readers(&table.shared) {
            for len in (0..=addresses.len()).step_by(if cfg!(miri) { 37 } else { 1 }) {
                let mut out = vec![0x1234; addresses.len()];
                reader.lookup_batch(&addresses[..len], &mut out);
                let single = |&address: &u128| reader.lookup(Ipv6Addr::from(address));
                let expected: Vec<u16> = addresses[..len].iter().map(single).collect();
                assert_eq!(out[..len], expected);
                assert!(out[len..].iter().all(|&untouched| untouched == 0x1234));
            }
        }
    }

    #[test]
    fn a_net_with_many_routes_gets_a_slab_and_keeps_its_answers() {
        let mut table = Runmap6::new(Box::new(NoReaders));
        let reader = table.reader();
        let net =
            |number: u128| Prefix::covering(Ipv6Addr::from((0x2a00 << 112) | number << 97), 31);
        for number in 0..200 {
            table.insert(net(number), 1 + (number % 7) as u16).unwrap();
            for earlier in 0..=number {
                assert_eq!(reader.lookup(net(earlier).address()), 1 + (earlier % 7) as u16);
            }
        }
        assert_eq!(table.slabs, 1);
        for number in 0..200 {
            table.remove(net(number));
            assert_eq!(reader.lookup(net(number).address()), NO_ROUTE);
        }
    }
}
