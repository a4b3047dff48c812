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
//! *Down to /32.* A /16 with many routes has a slab of 2^11 words, each with 32 slots of one /32, exactly as in the
//! IPv4 table. Every other /16 has one word, whose single answer is a next hop or a node. The directory distinguishes
//! them: word = base + (next 11 bits AND mask), with an empty mask for the single words. A /32 in which more than 33
//! runs of /48s end has such a slab, too: its leaf is the slab, and the next 16 bits choose word and slot in it. (Few
//! /32s are so large, but in tables of today a fifth to a third of the prefixes lie in them.)
//!
//! *Nodes.* The bits below are decided 16 at a time, one *digit*. A digit's range 0 to 65,535 falls into runs with one
//! answer each; a node is one cache line with the first digits of up to 11 runs (the first begins at 0 and is not
//! stored) and their answers. The rank of the address's digit among the keys is the index of its answer. More than 11
//! runs make a B-tree of such nodes over the same digit. An answer is a next hop, or a node with the number of its
//! digit. Digits fit the lengths that are in use: a /48 or /64 nested in a /32 costs one or two nodes, where a trie
//! with 5 or 6 bits per step takes three to six steps.
//!
//! # Cost of a lookup
//!
//! Three dependent loads down to /32 (the directory's is nearly always in the first-level cache), two more in the slab
//! of a /32, then one cache line per node. The only branch that depends on addresses is "are there lookups left in this
//! batch that met a node". Every prefix length from 0 to 128 is handled by the same steps, and 2000::/3 is not special.
//!
//! # Cost of an update
//!
//! The changed prefix is located in the writer's copy of the routes. The work depends on the routes
//! within it, not on those beside it: of a digit's tree only the nodes on the way to the change are
//! built, the rest is shared (`ipv6/splice.rs`); where the way ends in a slab, its words. A host
//! route is a store where its slot has an answer of its own already, else some nodes, regardless of
//! the number of hosts. New nodes are written before the word, leaf or cell that leads to them is
//! stored; the pieces they replace retire afterwards.
//!
//! For a short prefix, only the parts that depend on it are built: its own route has the next hop [`MARK`] in the
//! writer's copy meanwhile, so that a /16, /32 or slot of a slab that has a longer route above it shows another cover,
//! and keeps its nodes. A default route then costs a store per word that has one answer, and the nodes of the ranges
//! that no other route covers. (An indirection in the last leaf, one store for all, would be wrong: a reader that found
//! "default" before the answer became another may read the default after that has changed as well, and return a next
//! hop that was never in force for its address.) Changes that arrive together are merged: a /32 without slab is built
//! once for all of them, a slab as a whole if they are many for the routes in it.
//!
//! # Why readers are not disturbed
//!
//! The keys of a node are not changed once it is reachable. Directory entry, word, leaf and a node's answer are atomic
//! stores with release ordering, and a reader's acquire load or fence follows each stage. A lookup finds the answer
//! before or after the change, and pieces that readers still see are not reused before their grace period ends.
//!
//! # Limits
//!
//! Next hops: 32,767. Nodes: 2^22, four times as many as a million routes of today's mix need ([`Error::Full`] beyond).
//! Slabs: 4,096; if none is left, a B-tree is used instead. A /16 keeps its slab, a /32 as long as there are routes in
//! it. Memory that lookups read: 1 MiB, plus 16 KiB per slab, 4 bytes per run of /32s or, in a slab, /48s, 64 bytes per
//! node.
//!
//! # Alternatives measured
//!
//! Cycles per lookup, in-table, 27,693 real routes, batches of 32, minimum; the same run's figure
//! for the table before in brackets.
//!
//! | change | cycles | kept |
//! |---|---|---|
//! | word and leaf in one loop, overlapped by the processor, instead of a prefetched stage each | 21.0 (26.9) | yes |
//! | slabs for /32s with more than 33 runs; the 99th percentile of updates from 25 to 4 us | 24.6 (26.0) | yes |
//! | the same with more than 66: less memory (2.2 instead of 2.8 MB), less gain | 25.3 (27.1) | no |
//! | lists filled up to multiples of 4 or 8, so that loops end predictably | 31 to 38 (26 to 28) | no |
//!
//! # Origin
//!
//! The upper part is the IPv4 table's. Searching ranges instead of walking bits is known from
//! Lampson, Srinivasan and Varghese (INFOCOM 1998) and DXR (Zec, Rizzo and Mikuc, CCR 2012);
//! trees of fixed-size key slices, each a B-tree, from Masstree (Mao, Kohler and Morris, EuroSys
//! 2012).

use std::{
    net::Ipv6Addr,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use lookup::{
    Answer, DIGIT, DIGITS, FAN_OUT, IS_NODE, KEY_CELLS, NODE_CELLS, NODES, SLAB, SLABS, Shared,
    node_answer, node_digit, node_number, slab_answer, slab_of, word_index,
};

use crate::{
    Bits, Change, Error, GracePeriod, Lookup, MAX_NEXT_HOP, NO_ROUTE, NextHopId, Prefix, Table,
    check_changes, check_next_hop,
    rib::{NONE, NodeId, Rib, Slot, SlotRuns},
    runs::{NoRoom, Retired},
    words::{Leaves, OldHalf, SLOTS, leaf_index, own_leaves, store_leaves},
};

mod lookup;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "assembly")]
mod rank;
mod small;
mod splice;

/// A /16 with more runs of /32s than this, which one node could not hold, gets a slab.
const SLAB_RUNS: usize = FAN_OUT;
/// Likewise a /32 with more runs of /48s than this, which would take three levels of nodes or long to rebuild at every
/// change; the slab is given back below the other number.
const DENSE_RUNS: usize = 3 * FAN_OUT;
const SPARSE_RUNS: usize = FAN_OUT;

/// Routes of a slab that can be rebuilt in the time of one change.
const NODES_PER_CHANGE: usize = 16;

/// A digit's range as runs with one answer each: first digit and answer, ascending.
type AnswerRuns = Vec<(u32, Answer)>;

/// A piece that waits for its grace period.
enum Piece {
    Leaves { base: u32, len: usize },
    Node { number: u32 },
    Slab { first: u32 },
    Half(OldHalf),
}

/// The next hop, in the writer's copy of the routes, of the route whose change is being published: results computed
/// from the routes thus show whether they depend on the change.
const MARK: NextHopId = MAX_NEXT_HOP + 1;

/// A range that does not yet reflect the routes. Ordered by first address, the larger ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    bits: u128,
    len: u8,
    /// True if all of it may have changed; else only the route to this prefix has.
    whole: bool,
}

impl Pending {
    fn whole(bits: u128, len: u8) -> Self {
        Self { bits: bits & u128::mask(len), len, whole: true }
    }

    fn contains(&self, other: &Self) -> bool {
        self.len <= other.len && other.bits & u128::mask(self.len) == self.bits
    }
}

/// Drops ranges that lie in one to be built whole, from a sorted list.
fn drop_covered(ranges: &mut Vec<Pending>) {
    let mut outer: Option<Pending> = None;
    ranges.dedup();
    ranges.retain(|range| {
        let covered = outer.is_some_and(|outer| outer.contains(range));
        if range.whole && !covered {
            outer = Some(*range);
        }
        !covered
    });
}

/// Builds a B-tree over the runs, writing its nodes by `node`; returns the runs' answer if there is only one.
fn tree(
    mut level: AnswerRuns,
    digit: u8,
    node: &mut impl FnMut(&[(u32, Answer)]) -> Result<u32, NoRoom>,
) -> Result<Answer, NoRoom> {
    while level.len() > 1 {
        level = level_above(&level, digit, node)?;
    }
    Ok(level[0].1)
}

/// Builds the nodes for some runs of a B-tree; returns the runs of the level above.
fn level_above(
    level: &[(u32, Answer)],
    digit: u8,
    node: &mut impl FnMut(&[(u32, Answer)]) -> Result<u32, NoRoom>,
) -> Result<AnswerRuns, NoRoom> {
    let nodes = level.len().div_ceil(FAN_OUT);
    let size = level.len().div_ceil(nodes);
    let node = |group: &[(u32, Answer)]| Ok((group[0].0, node_answer(node(group)?, digit)));
    level.chunks(size).map(node).collect()
}

/// Returns the contents of a node of at most [`FAN_OUT`] runs.
fn node_cells(runs: &[(u32, Answer)]) -> [Answer; NODE_CELLS] {
    let (_, last) = runs[runs.len() - 1];
    // Unused keys are the highest digit and unused answers the last run's, which is right for that digit as well.
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
    cells
}

/// The writer.
pub(crate) struct Runmap6 {
    shared: Arc<Shared>,
    rib: Rib<u128>,
    leaves: Leaves,
    /// Number of slabs that have ever been in use, and the first words of those free again. These keep their contents
    /// until they are used again.
    slabs: usize,
    free_slabs: Vec<u32>,
    /// Slabs taken since the last publication, to be given back if it fails.
    fresh_slabs: Vec<u32>,
    /// Number of nodes that have ever been in use.
    nodes: usize,
    free_nodes: Vec<u32>,
    /// Nodes made since the last publication, to be given back if it fails.
    fresh: Vec<u32>,
    /// Pieces that the change under way takes out of use, to be retired when it is published.
    replaced: splice::Replaced,
    retired: Retired<Piece>,
    /// Ranges that do not yet reflect the routes.
    pending: Vec<Pending>,
    /// The next hop that [`MARK`] stands for.
    marked: NextHopId,
}

impl Runmap6 {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        Self {
            shared: Arc::new(Shared::new()),
            rib: Rib::new(),
            leaves: Leaves::new(),
            slabs: 0,
            free_slabs: Vec::new(),
            fresh_slabs: Vec::new(),
            nodes: 0,
            free_nodes: Vec::new(),
            fresh: Vec::new(),
            replaced: splice::Replaced::default(),
            retired: Retired::new(grace),
            pending: Vec::new(),
            marked: NO_ROUTE,
        }
    }

    // ---- building ---------------------------------------------------------------------------

    /// Builds the answers below each slot of a digit. In a slab that is `kept`, parts that do not depend on the change
    /// being published keep their answers.
    fn answers_of(
        &mut self,
        runs: &SlotRuns,
        digit: u8,
        kept: Option<usize>,
    ) -> Result<AnswerRuns, NoRoom> {
        self.answers_by(runs, kept, |table, at, cover, _| table.below(at, digit + 1, cover))
    }

    /// Like [`Self::answers_of`], for the second digit below the /16 of a slab: a /32 can have a slab as well.
    fn answers_of_slab(
        &mut self,
        runs: &SlotRuns,
        slab: usize,
        kept: Option<usize>,
    ) -> Result<AnswerRuns, NoRoom> {
        self.answers_by(runs, kept, |table, at, cover, slot| {
            let before = table.slot_answer(slab, slot);
            table.below_slab(at, cover, before)
        })
    }

    fn answers_by(
        &mut self,
        runs: &SlotRuns,
        kept: Option<usize>,
        mut below: impl FnMut(&mut Self, NodeId, NextHopId, usize) -> Result<Answer, NoRoom>,
    ) -> Result<AnswerRuns, NoRoom> {
        let mut answers = AnswerRuns::with_capacity(runs.runs.len());
        for &(first, slot) in &runs.runs {
            let answer = match (slot, kept) {
                (Slot::Leaf(next_hop), _) => self.unmarked(next_hop).into(),
                (Slot::Below(_, cover), Some(slab)) if cover != MARK => {
                    self.slot_answer(slab, first as usize)
                }
                (Slot::Below(at, cover), _) => below(self, at, cover, first as usize)?,
            };
            splice::append(&mut answers, (first, answer));
        }
        Ok(answers)
    }

    fn unmarked(&self, next_hop: NextHopId) -> NextHopId {
        if next_hop == MARK { self.marked } else { next_hop }
    }

    /// Builds the answer for all addresses with one value of the digits before `digit`, given the topmost node of the
    /// RIB in this range.
    fn below(&mut self, at: NodeId, digit: u8, cover: NextHopId) -> Result<Answer, NoRoom> {
        let runs = self.rib.slots(at, DIGIT * digit, DIGIT, cover);
        let answers = self.answers_of(&runs, digit, None)?;
        self.tree(answers, digit)
    }

    /// Builds the answer for a /32 whose /16 has a slab: a slab if there are many routes, or if there is one already
    /// and the routes are not few.
    fn below_slab(
        &mut self,
        at: NodeId,
        cover: NextHopId,
        before: Answer,
    ) -> Result<Answer, NoRoom> {
        let runs = self.rib.slots(at, 2 * DIGIT, DIGIT, cover);
        let dense = runs.runs.len() > DENSE_RUNS;
        let slab = match slab_of(before) {
            Some(slab) if runs.runs.len() > SPARSE_RUNS => Some(slab),
            _ if dense => self.take_slab(),
            _ => None,
        };
        // The nodes made so far are given back if the publication fails; those of the slab are in use once it is
        // stored.
        let others = std::mem::take(&mut self.fresh);
        let answers = self.answers_of(&runs, 2, None);
        let answer = match (slab, answers) {
            (None, Ok(answers)) => self.tree(answers, 2),
            (Some(slab), Ok(answers)) => {
                self.store_slots(slab, 0, DIGITS, &answers).map(|()| slab_answer(slab))
            }
            (_, Err(NoRoom)) => Err(NoRoom),
        };
        self.fresh.extend(others);
        answer
    }

    /// Takes a free slab; returns its first word.
    fn take_slab(&mut self) -> Option<usize> {
        let first = match self.free_slabs.pop() {
            Some(first) => first as usize,
            None if self.slabs == SLABS => return None,
            None => {
                self.slabs += 1;
                DIGITS + (self.slabs - 1) * SLAB
            }
        };
        self.fresh_slabs.push(first as u32);
        Some(first)
    }

    /// Returns true if a node of the RIB that begins a /32 has enough routes for a slab.
    fn is_dense(&self, slot: Slot) -> bool {
        match slot {
            Slot::Leaf(_) => false,
            Slot::Below(at, cover) => {
                self.rib.slots(at, 2 * DIGIT, DIGIT, cover).runs.len() > DENSE_RUNS
            }
        }
    }

    /// Builds a B-tree over the runs; returns their answer if there is only one.
    fn tree(&mut self, level: AnswerRuns, digit: u8) -> Result<Answer, NoRoom> {
        tree(level, digit, &mut |runs| self.node(runs))
    }

    /// Builds the nodes for some runs of a B-tree; returns the runs of the level above.
    fn level_above(&mut self, level: &[(u32, Answer)], digit: u8) -> Result<AnswerRuns, NoRoom> {
        level_above(level, digit, &mut |runs| self.node(runs))
    }

    /// Writes a node of at most [`FAN_OUT`] runs; returns its number.
    fn node(&mut self, runs: &[(u32, Answer)]) -> Result<u32, NoRoom> {
        let number = self.take_node()?;
        self.fresh.push(number);
        store_leaves(&self.shared.nodes.all()[number as usize], &node_cells(runs));
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

    /// Updates a range to the routes.
    fn refresh(&mut self, pending: Pending) -> Result<(), NoRoom> {
        let Pending { bits, len, whole } = pending;
        if whole {
            return self.refresh_range(pending);
        }
        let before = self.rib.replace(bits, len, MARK);
        self.marked = match before {
            NO_ROUTE => self.rib.cover(bits, len).0,
            own => own,
        };
        let done = self.refresh_range(pending);
        self.rib.replace(bits, len, before);
        done
    }

    fn refresh_range(&mut self, Pending { bits, len, whole }: Pending) -> Result<(), NoRoom> {
        if len <= DIGIT {
            return self.refresh_16s(bits, len, whole);
        }
        let number = bits.slice(0, DIGIT) as usize;
        if let Some(place) = self.place_of(number, bits, len).filter(|_| !whole) {
            let done = self.refresh_place(place, bits, len);
            self.settle(done)?;
            self.widen(number, bits);
            return Ok(());
        }
        let Some(slab) = self.slab(number) else {
            let (cover, at) = self.rib.cover(bits & u128::mask(DIGIT), DIGIT);
            return self.refresh_16(number, at, cover, true);
        };
        let done = match self.slab_below(slab, bits, len) {
            Some(below) => self.refresh_slots(below, 2, bits, len, whole),
            None => self.refresh_slots(slab, 1, bits, len, whole),
        };
        self.settle(done)
    }

    /// Returns the cover and the topmost node of a range. The cover is [`MARK`] unless all is to be built.
    fn cover(&self, bits: u128, len: u8, whole: bool) -> (NextHopId, NodeId) {
        let (cover, at) = self.rib.cover(bits, len);
        (if whole { cover } else { MARK }, at)
    }

    /// Updates the /16s of a prefix to the routes.
    fn refresh_16s(&mut self, bits: u128, len: u8, whole: bool) -> Result<(), NoRoom> {
        let first = bits.slice(0, DIGIT);
        let end = first as usize + (1 << (DIGIT - len));
        let (cover, at) = self.cover(bits, len, whole);
        let mut runs = SlotRuns::new(first, DIGITS as u32, cover);
        self.rib.fill(at, 0, DIGIT, cover, &mut runs);
        for (numbers, slot) in runs.ranges() {
            let (at, cover) = match slot {
                Slot::Leaf(next_hop) => (NONE, next_hop),
                Slot::Below(at, cover) => (at, cover),
            };
            if !whole && cover != MARK {
                continue;
            }
            self.refresh_alike(numbers.start..numbers.end.min(end), at, cover, whole)?;
        }
        Ok(())
    }

    /// The same for /16s with one cover and topmost node: a single one, or many without nodes.
    fn refresh_alike(
        &mut self,
        mut numbers: Range<usize>,
        at: NodeId,
        cover: NextHopId,
        whole: bool,
    ) -> Result<(), NoRoom> {
        while !numbers.is_empty() {
            if at == NONE {
                // Readers may be on their way to the single word of a /16 that now has a slab.
                let singles = numbers.clone().take_while(|&number| self.slab(number).is_none());
                let singles = numbers.start..numbers.start + singles.count();
                numbers.start += self.store_uniform(singles, self.unmarked(cover));
            }
            if let Some(number) = numbers.next() {
                self.refresh_16(number, at, cover, whole)?;
            }
        }
        Ok(())
    }

    /// Ends a publication: pieces made for it and not in use are given back.
    fn settle(&mut self, done: Result<(), NoRoom>) -> Result<(), NoRoom> {
        match done {
            Ok(()) => {
                self.fresh_slabs.clear();
                self.retire_replaced();
            }
            Err(NoRoom) => {
                self.free_slabs.append(&mut self.fresh_slabs);
                self.replaced.clear();
            }
        }
        self.free_nodes.append(&mut self.fresh);
        done
    }

    fn entry(&self, number: usize) -> u64 {
        self.shared.directory.all()[number].load(Ordering::Relaxed)
    }

    /// Returns the first word of a /16's slab.
    fn slab(&self, number: usize) -> Option<usize> {
        let entry = self.entry(number);
        (entry >> 32 != 0).then(|| word_index(entry, (number as u128) << 112))
    }

    /// Returns the slab of the /32 that holds a prefix, if it has one and keeps it.
    fn slab_below(&self, slab: usize, bits: u128, len: u8) -> Option<usize> {
        if len <= 2 * DIGIT {
            return None;
        }
        let slot = bits.slice(DIGIT, DIGIT) as usize;
        let below = slab_of(self.slot_answer(slab, slot))?;
        let (_, at) = self.rib.cover(bits & u128::mask(2 * DIGIT), 2 * DIGIT);
        // Without routes, it is released.
        (at != NONE && self.is_split(at, 2 * DIGIT)).then_some(below)
    }

    /// Returns true if there are routes longer than `len` at and below a node.
    fn is_split(&self, at: NodeId, len: u8) -> bool {
        self.rib.node(at).len > len || self.rib.node(at).children != [NONE; 2]
    }

    /// Updates a /16 to the routes, given its cover and its topmost node.
    fn refresh_16(
        &mut self,
        number: usize,
        at: NodeId,
        cover: NextHopId,
        whole: bool,
    ) -> Result<(), NoRoom> {
        let runs = self.rib.slots(at, DIGIT, DIGIT, cover);
        let done = match self.slab(number) {
            Some(slab) => self.store_slab(slab, &runs, Some(slab).filter(|_| !whole)),
            None if whole => self.refresh_single(number, &runs),
            None => self.refresh_kept(number, &runs),
        };
        self.settle(done)
    }

    /// The same for a /16 that has a single word, and may get a slab instead.
    fn refresh_single(&mut self, number: usize, runs: &SlotRuns) -> Result<(), NoRoom> {
        let dense = |&(_, slot): &(u32, Slot)| self.is_dense(slot);
        if (runs.runs.len() > SLAB_RUNS || runs.runs.iter().any(dense))
            && let Some(slab) = self.take_slab()
        {
            return self.make_slab(number, slab, runs);
        }
        let answers = self.answers_of(runs, 1, None)?;
        let answer = self.tree(answers, 1)?;
        self.check_room(1)?;
        self.store_word(number, &[answer; SLOTS])?;
        self.fresh.clear();
        Ok(())
    }

    /// Updates a /16 with a slab to the routes.
    fn store_slab(
        &mut self,
        slab: usize,
        runs: &SlotRuns,
        kept: Option<usize>,
    ) -> Result<(), NoRoom> {
        let answers = self.answers_of_slab(runs, slab, kept)?;
        self.store_slots(slab, 0, DIGITS, &answers)
    }

    /// Updates the slots of a prefix to the routes, in the slab that is indexed by the digit in which the prefix ends,
    /// or the last one before that.
    fn refresh_slots(
        &mut self,
        slab: usize,
        digit: u8,
        bits: u128,
        len: u8,
        whole: bool,
    ) -> Result<(), NoRoom> {
        let from = DIGIT * digit;
        // The slot of a prefix that ends below it is built whole.
        let whole = whole || len > from + DIGIT;
        let len = len.min(from + DIGIT);
        let bits = bits & u128::mask(len);
        let first = bits.slice(from, DIGIT);
        let (cover, at) = self.cover(bits, len, whole);
        let mut runs = SlotRuns::new(first, DIGITS as u32, cover);
        self.rib.fill(at, from, DIGIT, cover, &mut runs);
        let kept = Some(slab).filter(|_| !whole);
        let answers = match digit {
            1 => self.answers_of_slab(&runs, slab, kept)?,
            _ => self.answers_of(&runs, digit, kept)?,
        };
        let count = 1usize << (from + DIGIT - len);
        self.store_slots(slab, first as usize, first as usize + count, &answers)
    }

    /// Replaces a /16's single word by a slab.
    fn make_slab(&mut self, number: usize, slab: usize, runs: &SlotRuns) -> Result<(), NoRoom> {
        self.store_slab(slab, runs, None)?;
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
        // A word with runs of its own has a leaf for each and one for the run that reaches in; the words at both ends
        // may keep leaves.
        self.check_room(2 * runs.len() + 2 * SLOTS)?;
        let (mut rest, mut word) = (runs, first / SLOTS);
        while word < end.div_ceil(SLOTS) {
            let slots = (word * SLOTS).max(first)..((word + 1) * SLOTS).min(end);
            // The runs that begin in this word, and the one that reaches into it.
            while rest.len() > 1 && rest[1].0 as usize <= slots.start {
                rest = &rest[1..];
            }
            let done = self.store_whole_words(slab, slots.start, end, rest);
            if done > 0 {
                word += done;
                continue;
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
            word += 1;
        }
        // The new nodes are in use now and must not be given back.
        self.fresh.clear();
        Ok(())
    }

    /// Stores the words at the start that one next hop fills before and after, as most of a slab's words are: those
    /// that begin with a slot and that the first run covers. Returns their number.
    fn store_whole_words(
        &self,
        slab: usize,
        slot: usize,
        end: usize,
        runs: &[(u32, Answer)],
    ) -> usize {
        let ((from, answer), first) = (runs[0], slot / SLOTS);
        let until = runs.get(1).map_or(end, |next| end.min(next.0 as usize)) / SLOTS;
        let begins = slot.is_multiple_of(SLOTS) && from as usize <= slot;
        if !begins || until <= first || answer & IS_NODE != 0 {
            return 0;
        }
        self.store_uniform(slab + first..slab + until, answer as NextHopId)
    }

    /// Gives words that had one next hop each another one; returns their number, up to the first word that had more.
    fn store_uniform(&self, words: Range<usize>, next_hop: NextHopId) -> usize {
        let new = Leaves::uniform(&self.shared.leaves, next_hop);
        let words = &self.shared.words.all()[words];
        let has_more = |word: &AtomicU64| own_leaves(word.load(Ordering::Relaxed)).is_some();
        let count = words.iter().position(has_more).unwrap_or(words.len());
        for word in &words[..count] {
            if word.load(Ordering::Relaxed) != new {
                word.store(new, Ordering::Release);
            }
        }
        count
    }

    fn word(&self, word: usize) -> u64 {
        self.shared.words.all()[word].load(Ordering::Relaxed)
    }

    /// Returns the answers of a word's slots.
    fn answers(&self, word: usize) -> [Answer; SLOTS] {
        let word = self.word(word);
        std::array::from_fn(|slot| self.answer(word, slot))
    }

    /// Returns the answer of a slab's slot.
    fn slot_answer(&self, slab: usize, slot: usize) -> Answer {
        self.answer(self.word(slab + slot / SLOTS), slot % SLOTS)
    }

    fn answer(&self, word: u64, slot: usize) -> Answer {
        self.shared.leaves.all()[leaf_index(word, slot as u32)].load(Ordering::Relaxed)
    }

    /// Ensures that there is room for this many leaves.
    fn check_room(&mut self, leaves: usize) -> Result<(), NoRoom> {
        if self.leaves.room() < leaves {
            self.reclaim();
            self.compact();
        }
        if self.leaves.room() < leaves { Err(NoRoom) } else { Ok(()) }
    }

    /// Stores a word's answers and retires the pieces it led to before.
    fn store_word(&mut self, index: usize, answers: &[Answer; SLOTS]) -> Result<(), NoRoom> {
        let before = self.word(index);
        let old_answers = match own_leaves(before) {
            Some(_) => self.answers(index),
            None => [self.answer(before, 0); SLOTS],
        };
        if old_answers == *answers {
            return Ok(());
        }
        self.put_word(index, answers)?;
        let mut last = NO_ROUTE.into();
        for (&old, &new) in old_answers.iter().zip(answers) {
            if old != new && old != last {
                self.retire_nodes(old);
            }
            last = old;
        }
        Ok(())
    }

    /// Stores a word's answers. The caller retires the nodes that the word led to before.
    fn put_word(&mut self, index: usize, answers: &[Answer; SLOTS]) -> Result<(), NoRoom> {
        let before = self.word(index);
        let cells = &self.shared.leaves;
        let uniform =
            |answer| (answer & IS_NODE == 0).then(|| Leaves::uniform(cells, answer as NextHopId));
        let word = self.leaves.word(cells, before, answers, uniform).ok_or(NoRoom)?;
        if word != before {
            self.shared.words.all()[index].store(word, Ordering::Release);
            self.retire_leaves(before);
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
        if let Some(slab) = slab_of(answer) {
            self.retired.put(Piece::Slab { first: slab as u32 });
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

    /// Merges ranges that are cheaper to build together.
    fn merge_pending(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.sort_unstable();
        pending.dedup();
        for len in [DIGIT, 2 * DIGIT] {
            let mut merged = Vec::with_capacity(pending.len());
            let mask = u128::mask(len);
            // In this order, ranges within one prefix of this length are adjacent.
            for group in pending
                .chunk_by(|a, b| a.len > len && b.len > len && a.bits & mask == b.bits & mask)
            {
                match group {
                    [first, _, ..] if self.pays(first.bits & mask, len, group.len()) => {
                        merged.push(Pending::whole(first.bits, len));
                    }
                    _ => merged.extend(group),
                }
            }
            pending = merged;
        }
        pending.sort_unstable();
        drop_covered(&mut pending);
        self.pending = pending;
    }

    /// Returns true if building a /16 or /32 whole costs less than this many changes in it.
    fn pays(&self, bits: u128, len: u8, changes: usize) -> bool {
        let (_, at) = self.rib.cover(bits, len);
        self.rib.is_at_most(at, changes * NODES_PER_CHANGE)
    }

    /// Publishes all pending ranges; those without room stay pending.
    fn publish(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&range| self.refresh(range).is_err());
        self.pending = pending;
        if self.retired.is_due() {
            self.reclaim();
            self.compact();
        }
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Reclaims pieces that no reader can see any more; returns the number of pieces that still wait.
    fn reclaim(&mut self) -> usize {
        let Self { retired, leaves, free_nodes, free_slabs, shared, .. } = self;
        retired.collect(|piece| match piece {
            Piece::Leaves { base, len } => leaves.release(base, len),
            Piece::Node { number } => free_nodes.push(number),
            Piece::Slab { first } => free_slabs.push(first),
            Piece::Half(half) => leaves.release_half(&shared.leaves, half),
        })
    }

    /// Closes the gaps between the leaves if there are many gaps.
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
            let (bits, len) = (prefix.bits(), prefix.len());
            self.pending.push(Pending { bits, len, whole: false });
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

    fn place(&mut self, node: u32) {
        self.shared.place(node);
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
        self.merge_pending();
        self.publish();
        if self.pending.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv6Addr>, NextHopId)>,
    ) -> Result<(), Error> {
        let made = self.set_all(routes);
        // Each /16 once; prefixes shorter than /16 stand for all of theirs.
        for range in &mut self.pending {
            *range = Pending::whole(range.bits, range.len.min(DIGIT));
        }
        self.pending.sort_unstable();
        drop_covered(&mut self.pending);
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
    use crate::{NoReaders, reference::Reference, synthetic::Random};

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
    fn a_32_with_many_routes_gets_a_slab_and_gives_it_back() {
        let (mut table, mut reference) = (Runmap6::new(Box::new(NoReaders)), Reference::new());
        let readers = [table.reader(), reference.reader()];
        let mut random = Random::new(3);
        let mut routes: Vec<Prefix<Ipv6Addr>> = Vec::new();
        let near = |random: &mut Random| {
            (0x2001_0db8 << 96) | random.wide() & 0xffc3 << 80 | random.wide() & 0xc003 << 48
        };
        let (most, rounds) = if cfg!(miri) { (90, 1) } else { (150, 3) };
        let compare = |table: &mut Runmap6, random: &mut Random| {
            for _ in 0..if cfg!(miri) { 2 } else { 300 } {
                let address = Ipv6Addr::from(near(random));
                let answers = readers.each_ref().map(|reader| reader.lookup(address));
                let mut batch = [0];
                readers[0].lookup_batch(&[u128::from(address)], &mut batch);
                assert_eq!((answers[0], batch[0]), (answers[1], answers[1]), "{address}");
            }
            table.collect();
        };
        for round in 0..rounds {
            // Grow, and shrink until the table is empty; in between shorter routes are added and removed.
            while routes.len() < most {
                let prefix = Prefix::covering(
                    Ipv6Addr::from(near(&mut random)),
                    [31, 32, 33, 40, 48, 48, 48, 48, 56, 64][random.below(10) as usize],
                );
                let next_hop = 1 + random.below(9) as u16;
                table.insert(prefix, next_hop).unwrap();
                if reference.insert(prefix, next_hop).unwrap().is_none() {
                    routes.push(prefix);
                }
                compare(&mut table, &mut random);
            }
            // One for the /16 and one for the /32, the same ones every time.
            assert_eq!((table.slabs, table.free_slabs.len()), (2, 0), "round {round}");
            while !routes.is_empty() {
                let prefix = routes.swap_remove(random.below(routes.len() as u64) as usize);
                assert_eq!(table.remove(prefix), reference.remove(prefix));
                compare(&mut table, &mut random);
            }
            assert_eq!((table.slabs, table.free_slabs.len()), (2, 1), "round {round}");
        }
    }

    fn prefix(text: &str) -> Prefix<Ipv6Addr> {
        text.parse().unwrap()
    }

    #[test]
    fn a_change_of_a_short_prefix_builds_only_what_depends_on_it() {
        let mut table = Runmap6::new(Box::new(NoReaders));
        table.insert(prefix("::/0"), 1).unwrap();
        // Enough /32s for a slab, each with longer routes; one of these not within a /32's route.
        for number in 0..40 {
            let net = Ipv6Addr::from(0x2a00 << 112 | number << 97);
            table.insert(Prefix::covering(net, 32), 100).unwrap();
            table.insert(Prefix::covering(net, 48), 101).unwrap();
        }
        table.insert(prefix("2a00:ffff:1::/48"), 102).unwrap();
        table.insert(prefix("2c00:1::/32"), 103).unwrap();
        table.collect();
        let waits = crate::Epochs::default();
        let late = waits.register();
        table.retired = Retired::new(Box::new(waits));
        let reader = table.reader();
        let at = |text: &str| reader.lookup(text.parse().unwrap());
        table.insert(prefix("::/0"), 2).unwrap();
        let answers = [at("::1"), at("2a00:0:1::"), at("2a00::"), at("2a00:ffff::"), at("2c00::")];
        assert_eq!(answers, [2, 100, 101, 2, 2]);
        // One node for the /32 with the /48 in it, one for the /16 without a slab.
        assert_eq!(table.collect(), 2);
        table.remove(prefix("::/0"));
        let answers = [at("::1"), at("2a00:0:1::"), at("2a00::"), at("2a00:ffff::"), at("2c00::")];
        assert_eq!(answers, [NO_ROUTE, 100, 101, NO_ROUTE, NO_ROUTE]);
        assert_eq!((at("2a00:ffff:1::"), at("2c00:1::")), (102, 103));
        assert_eq!(table.collect(), 4);
        late.quiescent();
        assert_eq!(table.collect(), 0);
    }

    #[test]
    fn many_changes_at_once_are_built_once() {
        let mut table = Runmap6::new(Box::new(NoReaders));
        let net = |number: u128| Prefix::covering(Ipv6Addr::from(0x2a00 << 112 | number << 92), 36);
        let change = |number| Change::Insert { prefix: net(number), next_hop: 5 };
        table.apply(&(0..400).map(change).collect::<Vec<_>>()).unwrap();
        let pending = |table: &mut Runmap6, numbers: &[u128]| {
            for &number in numbers {
                let before = table.rib.get(net(number).bits(), 36).unwrap();
                table.set(net(number), before + 1);
            }
            table.merge_pending();
            let ranges: Vec<_> = table.pending.iter().map(|r| (r.len, r.whole)).collect();
            table.publish();
            ranges
        };
        // Two of one /32, and one of another; then so many that the /16 is built.
        assert_eq!(pending(&mut table, &[3, 17, 1]), [(32, true), (36, false)]);
        let many: Vec<u128> = (0..400).step_by(2).collect();
        assert_eq!(pending(&mut table, &many), [(16, true)]);
        let reader = table.reader();
        for number in 0..400 {
            let expected = table.get(net(number)).unwrap();
            assert_eq!(reader.lookup(net(number).address()), expected, "{number}");
        }
    }

    /// A host of 2001:db8:0:1::/64, such that some share all digits but the last.
    fn host(random: &mut Random, spread: u64) -> u128 {
        let tail = random.below(spread) as u128 * 0x1_0003_0000_0005;
        0x2001_0db8_0000_0001 << 64 | tail & u128::from(u64::MAX)
    }

    #[test]
    fn hosts_come_and_go_beside_the_reference() {
        let spreads: &[u64] = if cfg!(miri) { &[40] } else { &[9, 300, 20_000] };
        for &spread in spreads {
            let (mut table, mut reference) = (Runmap6::new(Box::new(NoReaders)), Reference::new());
            let readers = [table.reader(), reference.reader()];
            let mut random = Random::new(spread);
            let mut change =
                |table: &mut Runmap6, prefix: Prefix<Ipv6Addr>, next_hop| match next_hop {
                    NO_ROUTE => assert_eq!(table.remove(prefix), reference.remove(prefix)),
                    _ => assert_eq!(
                        table.insert(prefix, next_hop).unwrap(),
                        reference.insert(prefix, next_hop).unwrap()
                    ),
                };
            let steps = if cfg!(miri) { 60 } else { 3000 };
            let mut used = 0;
            for step in 0..2 * steps {
                // Few next hops, so that hosts are joined with their neighbours.
                let grows = random.below(4) < if step < steps { 3 } else { 1 };
                let next_hop = if grows { 1 + random.below(3) as u16 } else { NO_ROUTE };
                let len = if random.below(20) > 0 { 128 } else { 40 + random.below(89) as u8 };
                let at = Prefix::covering(host(&mut random, spread).into(), len);
                change(&mut table, at, next_hop);
                let ends = [at.bits(), at.last_bits(), at.last_bits().wrapping_add(1)];
                for address in
                    ends.into_iter().chain([at.bits().wrapping_sub(1), host(&mut random, spread)])
                {
                    let answers = readers.each_ref().map(|r| r.lookup(address.into()));
                    assert_eq!(answers[0], answers[1], "{}", Ipv6Addr::from(address));
                }
                table.collect();
                used = used.max(table.nodes - table.free_nodes.len());
            }
            // No node is lost: without routes none is in use.
            let mut left = Vec::new();
            every_route(&table.rib, crate::rib::ROOT, &mut left);
            left.into_iter().for_each(|prefix| change(&mut table, prefix, NO_ROUTE));
            table.collect();
            assert_eq!(table.nodes, table.free_nodes.len(), "of {used} nodes");
        }
    }

    fn every_route(rib: &Rib<u128>, at: NodeId, out: &mut Vec<Prefix<Ipv6Addr>>) {
        let node = *rib.node(at);
        if node.next_hop != NO_ROUTE {
            out.push(Prefix::covering(node.bits.into(), node.len));
        }
        node.children.iter().filter(|&&at| at != NONE).for_each(|&at| every_route(rib, at, out));
    }

    #[test]
    fn a_host_route_costs_a_few_nodes_however_many_hosts_there_are() {
        let mut table = Runmap6::new(Box::new(NoReaders));
        table.insert(prefix("2001:db8:0:1::/64"), 1).unwrap();
        let mut random = Random::new(5);
        let hosts = if cfg!(miri) { 200 } else { 100_000 };
        let at = |random: &mut Random| {
            let tail = random.wide() & u128::from(u64::MAX);
            Prefix::host(Ipv6Addr::from(0x2001_0db8_0000_0001 << 64 | tail))
        };
        let routes: Vec<_> = (0..hosts).map(|n| (at(&mut random), 2 + (n % 900) as u16)).collect();
        table.load(&mut routes.iter().copied()).unwrap();
        table.collect();
        let waits = crate::Epochs::default();
        let _late = waits.register();
        table.retired = Retired::new(Box::new(waits));
        let most = |table: &mut Runmap6, change: &mut dyn FnMut(&mut Runmap6)| {
            let before = table.retired.waiting();
            change(table);
            table.retired.waiting() - before
        };
        for &(host, next_hop) in routes.iter().step_by(hosts / 100) {
            // Another MAC: a store. Removed and added: the nodes on the way down, at most five a digit and two that are
            // joined.
            let new = next_hop + 1;
            assert_eq!(most(&mut table, &mut |table| drop(table.insert(host, new))), 0);
            assert!(most(&mut table, &mut |table| assert!(table.remove(host).is_some())) <= 12);
            assert!(most(&mut table, &mut |table| drop(table.insert(host, next_hop))) <= 12);
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
