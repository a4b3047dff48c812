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
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

use crate::{
    Address, Bits, Change, Error, GracePeriod, Lookup, NO_ROUTE, NextHopId, Prefix, Table,
    arena::Arena,
    check_changes, check_next_hop,
    prefetch::prefetch,
    rib::{NodeId, Rib, Slot, SlotRuns},
    runs::Retired,
    words::{LEAVES, Leaves, OldHalf, SLOTS, leaf_index, own_leaves, store_leaves},
};

/// Bits of a digit; the first one is the directory's.
const DIGIT: u8 = 16;
/// Values of a digit.
const DIGITS: usize = 1 << DIGIT;
/// Words of a slab.
const SLAB: usize = DIGITS / SLOTS;
const SLABS: usize = if cfg!(miri) { 4 } else { 4096 };
/// A /16 with more runs of /32s than this gets a slab.
const SLAB_RUNS: usize = 64;
/// Words: one per /16, then the slabs.
const WORDS: usize = DIGITS + SLABS * SLAB;

/// Runs of a node.
const FAN_OUT: usize = 11;
/// 32-bit cells of a node: ten keys in five cells, then the answers.
const NODE_CELLS: usize = 16;
const KEY_CELLS: usize = 5;
const NODES: usize = if cfg!(miri) { 1 << 12 } else { 1 << 22 };

/// A next hop, or a node: bit 31 set, bits 28 to 30 the digit it looks at, then its number.
type Answer = u32;
const IS_NODE: Answer = 1 << 31;
const DIGIT_SHIFT: u32 = 28;

fn node_answer(number: u32, digit: u8) -> Answer {
    IS_NODE | u32::from(digit) << DIGIT_SHIFT | number
}

/// The cell at which the node of an answer begins.
#[inline(always)]
fn first_cell(answer: Answer) -> usize {
    answer as usize % NODES * NODE_CELLS
}

/// What readers see.
struct Shared {
    /// Per /16: low half what to add to its number to get the (first) word, high half the mask.
    directory: Arena<AtomicU64>,
    words: Arena<AtomicU64>,
    leaves: Arena<AtomicU32>,
    nodes: Arena<AtomicU32>,
}

/// Index of an address's word.
#[inline(always)]
fn word_index(entry: u64, address: u128) -> usize {
    let offset = (address >> 101) as u32 & (entry >> 32) as u32;
    ((address >> 112) as u32).wrapping_add(entry as u32).wrapping_add(offset) as usize
}

/// Addresses looked up together.
const BATCH: usize = 64;

impl Shared {
    #[inline(always)]
    fn lookup(&self, address: u128) -> NextHopId {
        let entry = self.directory.all()[(address >> 112) as usize].load(Ordering::Acquire);
        let word = self.words.all()[word_index(entry, address)].load(Ordering::Acquire);
        let leaf = &self.leaves.all()[leaf_index(word, (address >> 96) as u32)];
        let mut answer = leaf.load(Ordering::Acquire);
        while answer & IS_NODE != 0 {
            answer = self.step(answer, address);
            fence(Ordering::Acquire);
        }
        answer as NextHopId
    }

    /// The answer of a node for an address.
    #[inline(always)]
    fn step(&self, answer: Answer, address: u128) -> Answer {
        let cells: &[AtomicU32; NODES * NODE_CELLS] = self.nodes.array();
        let first = first_cell(answer);
        let shift = 112 - 16 * (answer >> DIGIT_SHIFT & 7);
        let digit = (address >> shift) as u16;
        let mut rank = 0;
        for cell in 0..KEY_CELLS {
            let keys = cells[first + cell].load(Ordering::Relaxed);
            rank += usize::from(keys as u16 <= digit) + usize::from((keys >> 16) as u16 <= digit);
        }
        cells[first + KEY_CELLS + rank].load(Ordering::Relaxed)
    }

    /// Any number of addresses, in batches of at most 64.
    #[inline(always)]
    fn lookup_batch(&self, addresses: &[u128], out: &mut [NextHopId]) {
        for (addresses, out) in addresses.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.lookup_chunk(addresses, out);
        }
    }

    #[inline(always)]
    fn lookup_chunk(&self, addresses: &[u128], out: &mut [NextHopId]) {
        let directory: &[AtomicU64; DIGITS] = self.directory.array();
        let words: &[AtomicU64; WORDS] = self.words.array();
        let leaves: &[AtomicU32; LEAVES] = self.leaves.array();
        let mut places = [0u32; BATCH];
        for (&address, place) in addresses.iter().zip(&mut places) {
            let entry = directory[(address >> 112) as usize].load(Ordering::Relaxed);
            *place = word_index(entry, address) as u32;
            prefetch(words, *place as usize);
        }
        // Each fence pairs with the release stores of what was loaded before it.
        fence(Ordering::Acquire);
        for (&address, place) in addresses.iter().zip(&mut places) {
            let word = words[*place as usize].load(Ordering::Relaxed);
            *place = leaf_index(word, (address >> 96) as u32) as u32;
            prefetch(leaves, *place as usize);
        }
        fence(Ordering::Acquire);
        let mut list = [0u8; BATCH];
        let mut count = 0;
        for (at, (place, out)) in places.iter_mut().zip(out.iter_mut()).enumerate() {
            if at == addresses.len() {
                break;
            }
            let answer = leaves[*place as usize].load(Ordering::Relaxed);
            *place = answer;
            *out = answer as NextHopId;
            list[count % BATCH] = at as u8;
            count += (answer >> 31) as usize;
            prefetch(self.nodes.all(), first_cell(answer));
        }
        while count > 0 {
            count = self.step_all(addresses, out, &mut places, &mut list, count);
        }
    }

    /// One node further for every lookup on the list; returns how many stay on it.
    #[inline(always)]
    fn step_all(
        &self,
        addresses: &[u128],
        out: &mut [NextHopId],
        answers: &mut [Answer; BATCH],
        list: &mut [u8; BATCH],
        count: usize,
    ) -> usize {
        fence(Ordering::Acquire);
        let mut left = 0;
        for index in 0..count.min(BATCH) {
            let at = usize::from(list[index]) % BATCH;
            let (Some(&address), Some(out)) = (addresses.get(at), out.get_mut(at)) else { break };
            let answer = self.step(answers[at], address);
            answers[at] = answer;
            *out = answer as NextHopId;
            list[left % BATCH] = at as u8;
            left += (answer >> 31) as usize;
            prefetch(self.nodes.all(), first_cell(answer));
        }
        left
    }
}

/// A reader; `FAST` where the processor has `popcnt` and BMI2, found out once at construction.
struct Reader<const FAST: bool>(Arc<Shared>);

impl<const FAST: bool> Lookup<Ipv6Addr> for Reader<FAST> {
    fn lookup(&self, address: Ipv6Addr) -> NextHopId {
        self.0.lookup(address.bits())
    }

    fn lookup_batch(&self, addresses: &[u128], out: &mut [NextHopId]) {
        #[cfg(target_arch = "x86_64")]
        if FAST {
            // SAFETY: `Reader<true>` is only made by `reader()`, after it has seen that the
            // processor has the instructions that `lookup_batch_fast` is compiled for.
            return unsafe { lookup_batch_fast(&self.0, addresses, out) };
        }
        self.0.lookup_batch(addresses, out);
    }
}

/// [`Shared::lookup_batch`] compiled for processors since 2013.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,bmi1,bmi2,avx2")]
fn lookup_batch_fast(shared: &Shared, addresses: &[u128], out: &mut [NextHopId]) {
    shared.lookup_batch(addresses, out);
}

fn reader(shared: &Arc<Shared>) -> Arc<dyn Lookup<Ipv6Addr>> {
    let shared = Arc::clone(shared);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("avx2")
    {
        return Arc::new(Reader::<true>(shared));
    }
    Arc::new(Reader::<false>(shared))
}

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
        let shared = Shared {
            directory: Arena::new(DIGITS),
            words: Arena::new(WORDS),
            leaves: Arena::new(LEAVES),
            nodes: Arena::new(NODES * NODE_CELLS),
        };
        Self {
            shared: Arc::new(shared),
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
        let first = number as usize * NODE_CELLS;
        store_leaves(&self.shared.nodes.all()[first..first + NODE_CELLS], &cells);
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
        self.check_room((end - first).div_ceil(SLOTS))?;
        let mut next = 0;
        for word in first / SLOTS..end.div_ceil(SLOTS) {
            let mut answers = self.answers(slab + word);
            for (slot, answer) in answers.iter_mut().enumerate() {
                let slot = word * SLOTS + slot;
                if !(first..end).contains(&slot) {
                    continue;
                }
                while runs.get(next + 1).is_some_and(|run| run.0 as usize <= slot) {
                    next += 1;
                }
                *answer = runs[next].1;
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
        let (word, leaves) = (self.word(word), self.shared.leaves.all());
        std::array::from_fn(|slot| leaves[leaf_index(word, slot as u32)].load(Ordering::Relaxed))
    }

    /// Sees that there are leaves for this many words.
    fn check_room(&mut self, words: usize) -> Result<(), NoRoom> {
        if self.leaves.room() < words * SLOTS {
            self.reclaim();
            self.compact();
        }
        if self.leaves.room() < words * SLOTS { Err(NoRoom) } else { Ok(()) }
    }

    /// Stores a word's answers and retires what it led to before.
    fn store_word(&mut self, index: usize, answers: &[Answer; SLOTS]) -> Result<(), NoRoom> {
        let (before, old_answers) = (self.word(index), self.answers(index));
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
        let first = first_cell(answer);
        self.retired.put(Piece::Node { number: (first / NODE_CELLS) as u32 });
        let mut last = NO_ROUTE.into();
        for cell in first + KEY_CELLS..first + NODE_CELLS {
            let below = self.shared.nodes.all()[cell].load(Ordering::Relaxed);
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
        for (prefix, next_hop) in routes {
            check_next_hop(next_hop)?;
            self.set(prefix, next_hop);
        }
        Ok(())
    }
}

impl Table<Ipv6Addr> for Runmap6 {
    fn reader(&self) -> Arc<dyn Lookup<Ipv6Addr>> {
        reader(&self.shared)
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
