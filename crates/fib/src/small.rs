//! Small tables, of some thousand routes: those of VRFs, of which a router may have a thousand.
//!
//! The structures of `ipv4.rs` and `ipv6.rs` index their first level directly, which takes megabytes however few the
//! routes are. A small table begins at the /16s, with 16 KiB that are touched a page at a time:
//!
//! ```text
//!  address  | 11 bits | 5 |  below  |
//!              |        |
//!  root     [ word | word | ... 2^11 ]     base and bitmap, as in `words.rs`
//!              '-- base + popcount(bitmap >> 5 bits)
//!  leaves   ... [ answer | answer ] ...    next hop, or piece --> pieces [ 64 bytes | ... ]
//! ```
//!
//! A /16 with longer prefixes leads to *pieces*, of one cache line each, which differ by family: tables of eight words
//! for IPv4 (`ipv4/small.rs`), nodes for IPv6 (`ipv6/small.rs`).
//!
//! # Cost
//!
//! Two loads for a /16 with one answer, then two a table (IPv4) or one a node (IPv6); all are in near caches as long as
//! the table is small. Memory: 16 KiB for the root, if some route or other reaches all of it, 4 KiB each for leaves and
//! pieces, 64 bytes and some leaves for each /16, IPv4 /24 or IPv6 node with longer prefixes.
//!
//! # Updates
//!
//! The routes are a [`Rib`]. A change computes the answers of its /16s anew and stores those that differ, so it takes
//! as long as there are routes in these /16s: microseconds for hundreds. The rules for readers are those of
//! `ipv4.rs`: pieces are written before the word or leaf that leads to them, and reused after a grace period.
//!
//! A table that has run out of pieces, of leaves, or of patience with many routes in one /16 is replaced by one of the
//! large structures: `growing.rs`.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    Address, Bits, GracePeriod, Lookup, NO_ROUTE, NextHopId, Pages, Prefix,
    rib::{NodeId, ROOT, Rib, Slot, SlotRuns},
    runs::{NoRoom, Retired},
    words::{Cell, Leaves, OldHalf, SLOTS, leaf_index},
};

/// Bits that the root decides.
pub(crate) const ROOT_BITS: u8 = 16;
/// Words of the root.
pub(crate) const ROOT_WORDS: usize = (1 << ROOT_BITS) / SLOTS;

/// The value of a leaf.
pub(crate) type Leaf<A> = <<A as Layout>::Cell as Cell>::Leaf;

/// A family's pieces below the root.
pub(crate) trait Layout: Address {
    /// The cell of a leaf.
    type Cell: Cell;
    /// A piece, one cache line.
    type Piece: bytemuck::Zeroable + Send + Sync + 'static;
    /// Leaves of a table: a power of two, so that no index leaves the array.
    const LEAVES: usize;
    /// The most pieces of a table.
    const PIECES: usize;

    /// Builds the answer of a /16 whose topmost node and cover are these; `before` is its answer now, whose pieces may
    /// be updated in place.
    fn build(
        table: &mut Small<Self>,
        at: NodeId,
        cover: NextHopId,
        before: Leaf<Self>,
    ) -> Result<Leaf<Self>, NoRoom>;

    /// Retires the pieces that an answer leads to.
    fn retire(table: &mut Small<Self>, answer: Leaf<Self>);

    /// Returns the words of pieces, which own leaves as those of the root do.
    fn words(pieces: &[Self::Piece]) -> impl Iterator<Item = &AtomicU64>;

    /// Returns the fastest reader for this processor.
    fn reader(shared: &Arc<Shared<Self>>) -> Arc<dyn Lookup<Self>>;
}

/// The part of a table that readers see.
pub(crate) struct Shared<A: Layout> {
    pub root: Pages<AtomicU64>,
    pub leaves: Pages<A::Cell>,
    pub pieces: Pages<A::Piece>,
}

impl<A: Layout> Shared<A> {
    fn new() -> Self {
        Self {
            root: Pages::new(ROOT_WORDS),
            leaves: Pages::new(A::LEAVES),
            pieces: Pages::new(A::PIECES),
        }
    }

    /// Returns the leaf of a slot.
    #[inline(always)]
    pub fn leaf<const LEAVES: usize>(
        leaves: &[A::Cell; LEAVES],
        word: u64,
        position: u32,
    ) -> &A::Cell {
        &leaves[leaf_index(word, position) % LEAVES]
    }
}

/// A part that waits for its grace period.
enum Part {
    Leaves {
        base: u32,
        len: usize,
    },
    Piece {
        number: u32,
    },
    Half(OldHalf),
    /// The whole table.
    All,
}

/// The writer.
pub(crate) struct Small<A: Layout> {
    pub(crate) shared: Arc<Shared<A>>,
    pub(crate) rib: Rib<A::Bits>,
    leaves: Leaves,
    /// Number of pieces that have ever been in use since the last [`Self::trim`], and those free again: the lowest are
    /// used first, so that the last pages become free.
    pieces: u32,
    free: BTreeSet<u32>,
    retired: Retired<Part>,
    /// Prefixes of at most [`ROOT_BITS`] whose slots do not yet reflect the routes.
    dirty: Vec<(A::Bits, u8)>,
}

impl<A: Layout> Small<A> {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        Self {
            shared: Arc::new(Shared::new()),
            rib: Rib::new(),
            leaves: Leaves::small(A::LEAVES),
            pieces: 0,
            free: BTreeSet::new(),
            retired: Retired::new(grace),
            dirty: Vec::new(),
        }
    }

    pub fn reader(&self) -> Arc<dyn Lookup<A>> {
        A::reader(&self.shared)
    }

    /// Sets or (with [`NO_ROUTE`]) removes a route, which [`Self::publish`] makes visible; returns the next hop before.
    pub fn set(&mut self, prefix: Prefix<A>, next_hop: NextHopId) -> NextHopId {
        let (bits, len) = (prefix.bits(), prefix.len());
        let before = match next_hop {
            NO_ROUTE => self.rib.remove(bits, len),
            _ => self.rib.insert(bits, len, next_hop),
        };
        if before != next_hop {
            let len = len.min(ROOT_BITS);
            self.dirty.push((bits & A::Bits::mask(len), len));
        }
        before
    }

    /// Returns all routes.
    pub fn routes(&self) -> Vec<(Prefix<A>, NextHopId)> {
        let mut routes = Vec::with_capacity(self.rib.len());
        self.rib.visit(ROOT, &mut |bits, len, next_hop| {
            routes.push((Prefix::covering(A::from(bits), len), next_hop));
        });
        routes
    }

    /// Returns true if [`Self::publish`] has something to do.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Publishes all changes. Those without room stay for the next time.
    pub fn publish(&mut self) -> Result<(), NoRoom> {
        let mut dirty = std::mem::take(&mut self.dirty);
        // The larger ranges first, and then those in them, which are left out.
        dirty.sort_unstable();
        let mut outer: Option<(A::Bits, u8)> = None;
        dirty.retain(|&(bits, len)| {
            let inside = outer
                .is_some_and(|(outer, most)| len >= most && bits & A::Bits::mask(most) == outer);
            if !inside {
                outer = Some((bits, len));
            }
            !inside
        });
        let done = dirty.iter().try_for_each(|&(bits, len)| self.refresh(bits, len));
        if done.is_err() {
            self.dirty = dirty;
        }
        if self.retired.is_due() {
            self.reclaim();
            self.compact();
        }
        done
    }

    /// Updates the slots of a prefix to the routes.
    fn refresh(&mut self, bits: A::Bits, len: u8) -> Result<(), NoRoom> {
        let first = bits.slice(0, ROOT_BITS);
        let end = first + (1 << (ROOT_BITS - len));
        let (cover, at) = self.rib.cover(bits, len);
        let mut runs = SlotRuns::new(first, end, cover);
        self.rib.fill(at, 0, ROOT_BITS, cover, &mut runs);
        let runs: Vec<_> = runs.ranges().collect();
        let mut rest = &runs[..];
        for word in first as usize / SLOTS..(end as usize).div_ceil(SLOTS) {
            let before = self.answers(word);
            let mut after = before;
            let slots = word * SLOTS..(word + 1) * SLOTS;
            while let [(range, slot), behind @ ..] = rest {
                let part = range.start.max(slots.start)..range.end.min(slots.end);
                for at in part {
                    after[at % SLOTS] = match *slot {
                        Slot::Leaf(next_hop) => next_hop.into(),
                        Slot::Below(node, cover) => {
                            A::build(self, node, cover, before[at % SLOTS])?
                        }
                    };
                }
                if range.end > slots.end {
                    break;
                }
                rest = behind;
            }
            self.store(|shared| &shared.root.all()[word], &before, &after)?;
        }
        Ok(())
    }

    fn answers(&self, word: usize) -> [Leaf<A>; SLOTS] {
        self.answers_of(self.shared.root.all()[word].load(Ordering::Relaxed))
    }

    /// Returns the answers of a word's slots.
    pub fn answers_of(&self, word: u64) -> [Leaf<A>; SLOTS] {
        let cells = self.shared.leaves.all();
        std::array::from_fn(|slot| cells[leaf_index(word, slot as u32)].get())
    }

    /// Stores a word's answers and retires the pieces of those that change.
    pub fn store(
        &mut self,
        place: impl Fn(&Shared<A>) -> &AtomicU64,
        before: &[Leaf<A>; SLOTS],
        after: &[Leaf<A>; SLOTS],
    ) -> Result<(), NoRoom> {
        if before == after {
            return Ok(());
        }
        if self.leaves.room() < SLOTS {
            self.reclaim();
            self.compact();
        }
        let shared = Arc::clone(&self.shared);
        let place = place(&shared);
        let old = place.load(Ordering::Relaxed);
        let no_route = |answer| (answer == Leaf::<A>::default()).then_some(0);
        let new = self.leaves.word(&shared.leaves, old, after, no_route).ok_or(NoRoom)?;
        if new != old {
            place.store(new, Ordering::Release);
            if let Some((base, len)) = self.leaves.own(old) {
                self.retired.put(Part::Leaves { base, len });
            }
        }
        let changed = before.iter().zip(after).filter(|(old, new)| old != new);
        changed.for_each(|(&old, _)| A::retire(self, old));
        Ok(())
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Takes a piece that no reader sees.
    pub fn take(&mut self) -> Result<u32, NoRoom> {
        if self.free.is_empty() && self.pieces as usize == A::PIECES {
            self.reclaim();
        }
        if let Some(number) = self.free.pop_first() {
            return Ok(number);
        }
        if self.pieces as usize == A::PIECES {
            return Err(NoRoom);
        }
        self.pieces += 1;
        Ok(self.pieces - 1)
    }

    /// Retires a piece.
    pub fn put_back(&mut self, number: u32) {
        self.retired.put(Part::Piece { number });
    }

    /// Retires the whole table, which nobody looks up any more; [`Self::collect`] returns its memory.
    pub fn retire_all(&mut self) {
        self.retired.put(Part::All);
    }

    /// Reclaims parts that no reader can see any more; returns the number of parts that still wait.
    fn reclaim(&mut self) -> usize {
        let Self { retired, leaves, free, shared, .. } = self;
        retired.collect(|part| match part {
            Part::Leaves { base, len } => leaves.release(base, len),
            Part::Piece { number } => {
                let piece = &shared.pieces.all()[number as usize..][..1];
                // The leaves retired with it: no reader finds them by another way.
                for word in A::words(piece) {
                    if let Some((base, len)) = leaves.own(word.swap(0, Ordering::Relaxed)) {
                        leaves.release(base, len);
                    }
                }
                free.insert(number);
            }
            Part::Half(half) => leaves.release_half(&shared.leaves, half),
            Part::All => {
                shared.root.discard(0..ROOT_WORDS);
                shared.leaves.discard(0..A::LEAVES);
                shared.pieces.discard(0..A::PIECES);
            }
        })
    }

    /// Closes the gaps between the leaves if there are many gaps.
    fn compact(&mut self) {
        let shared = &self.shared;
        let words = shared.root.all().iter();
        let words = words.chain(A::words(&shared.pieces.all()[..self.pieces as usize]));
        if let Some(half) = self.leaves.compact(&shared.leaves, words) {
            self.retired.put(Part::Half(half));
        }
    }

    /// Returns the pages of the last pieces, if these are free, to the system.
    fn trim(&mut self) {
        let before = self.pieces;
        while self.pieces > 0 && self.free.remove(&(self.pieces - 1)) {
            self.pieces -= 1;
        }
        if self.pieces < before {
            self.shared.pieces.discard(self.pieces as usize..before as usize);
        }
    }

    /// Frees what no reader can see any more, and publishes what had no room; returns the number of parts that still
    /// wait.
    pub fn collect(&mut self) -> usize {
        self.reclaim();
        self.compact();
        self.trim();
        self.reclaim()
    }

    /// Returns the bytes of the parts in use that lookups read.
    pub fn memory_bytes(&self) -> usize {
        ROOT_WORDS * size_of::<u64>()
            + self.leaves.used() * size_of::<A::Cell>()
            + self.pieces as usize * size_of::<A::Piece>()
    }

    #[cfg(test)]
    pub fn pieces_in_use(&self) -> usize {
        self.pieces as usize - self.free.len()
    }
}
