//! Words of 32 slots and their run-compressed leaves, the elements of both runmap tables.
//!
//! ```text
//!   63            38 37   32 31                                 0
//!  +----------------+-------+------------------------------------+
//!  | base, 26 bits  |   0   | bitmap: bit k = slots k, k+1 differ |
//!  +----------------+-------+------------------------------------+
//!  leaf of slot s = leaves[base + popcount(bitmap >> s)]
//! ```
//!
//! The runs of a word lie in descending order, so that one shift by the address itself (the
//! hardware takes it modulo 32) replaces a mask; bit 31 is never set. A word with an empty bitmap
//! has one answer for all slots. The first [`IDENTITY`] leaves have their own index as value, so
//! that a word whose one answer is a next hop needs no leaf of its own: its base is the answer.
//!
//! Bitmap and base change together, by one store with release ordering after the leaves were
//! written; if only leaves change, each is one store.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use bytemuck::Zeroable;

use crate::{
    NextHopId,
    arena::Arena,
    runs::{LONGEST, Runs},
};

/// Slots of a word.
pub(crate) const SLOTS: usize = 32;
/// The leaf `n` of these has the value `n`.
pub(crate) const IDENTITY: u32 = 1 << 15;

const BASE_SHIFT: u32 = 38;
/// Leaves are copied from one half to the other to close gaps.
const HALF: u32 = if cfg!(miri) { 1 << 14 } else { (BASES - IDENTITY) / 2 };
/// Bases that a word can hold.
const BASES: u32 = 1 << (u64::BITS - BASE_SHIFT);
const _: () = assert!(IDENTITY + 2 * HALF <= BASES);
/// Length of the array of leaves: no base plus 31 leaves it, as the compiler can see.
pub(crate) const LEAVES: usize =
    if cfg!(miri) { (IDENTITY + 2 * HALF) as usize } else { BASES as usize + SLOTS };

/// Returns the index of the leaf for the slot that is `position` modulo 32.
#[inline(always)]
pub(crate) fn leaf_index(word: u64, position: u32) -> usize {
    let behind = (word as u32).wrapping_shr(position);
    (word >> BASE_SHIFT) as usize + behind.count_ones() as usize
}

/// Returns the word whose slots all have the next hop's leaf.
pub(crate) fn uniform(next_hop: NextHopId) -> u64 {
    u64::from(next_hop) << BASE_SHIFT
}

/// Returns the first and the number of the leaves that belong to a word. `None` for [`uniform`].
pub(crate) fn own_leaves(word: u64) -> Option<(u32, usize)> {
    own_from(IDENTITY, word)
}

fn own_from(first: u32, word: u64) -> Option<(u32, usize)> {
    let base = (word >> BASE_SHIFT) as u32;
    (base >= first).then(|| (base, (word as u32).count_ones() as usize + 1))
}

/// Returns the next hop of a word that [`uniform`] has made.
pub(crate) fn uniform_next_hop(word: u64) -> Option<NextHopId> {
    let base = (word >> BASE_SHIFT) as u32;
    (base < IDENTITY).then_some(base as NextHopId)
}

/// An atomic cell that holds a leaf.
pub(crate) trait Cell: Zeroable + Send + Sync {
    /// Type of the cell's value.
    type Leaf: Copy + Eq + Default + From<NextHopId>;
    /// Returns the value; only the writer calls this, so no ordering is needed.
    fn get(&self) -> Self::Leaf;
    /// Stores with release ordering: a leaf may name a piece that was just written.
    fn set(&self, leaf: Self::Leaf);
}

macro_rules! cell {
    ($atomic:ty, $leaf:ty) => {
        impl Cell for $atomic {
            type Leaf = $leaf;

            fn get(&self) -> $leaf {
                self.load(Ordering::Relaxed)
            }

            fn set(&self, leaf: $leaf) {
                self.store(leaf, Ordering::Release);
            }
        }
    };
}

cell!(AtomicU16, u16);
cell!(AtomicU32, u32);

/// Stores the leaves that differ.
pub(crate) fn store_leaves<C: Cell>(places: &[C], leaves: &[C::Leaf]) {
    for (place, &leaf) in places.iter().zip(leaves) {
        if place.get() != leaf {
            place.set(leaf);
        }
    }
}

/// The runs of 32 answers.
struct Shape<L> {
    /// Bit k: slots k and k+1 differ.
    bitmap: u32,
    /// The runs' answers in descending order.
    leaves: [L; SLOTS],
    len: usize,
}

fn shape_of<L: Copy + Eq + Default>(answers: &[L; SLOTS]) -> Shape<L> {
    let differs = |slot: usize| u32::from(answers[slot] != answers[slot + 1]) << slot;
    let bitmap = (0..SLOTS - 1).fold(0, |bitmap, slot| bitmap | differs(slot));
    let mut leaves = [L::default(); SLOTS];
    leaves[0] = answers[SLOTS - 1];
    let (mut len, mut ends) = (1, bitmap);
    while ends != 0 {
        let slot = ends.ilog2();
        leaves[len] = answers[slot as usize];
        len += 1;
        ends ^= 1 << slot;
    }
    Shape { bitmap, leaves, len }
}

/// The array that holds the leaves.
pub(crate) trait Cells {
    /// The kind of cell.
    type Cell: Cell;
    /// Returns all cells.
    fn all(&self) -> &[Self::Cell];
    /// Returns the memory of a range that is not in use to the system.
    fn discard(&self, range: std::ops::Range<usize>);
}

impl<C: Cell> Cells for Arena<C> {
    type Cell = C;

    fn all(&self) -> &[C] {
        self.all()
    }

    fn discard(&self, range: std::ops::Range<usize>) {
        self.discard(range);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
impl<C: Cell> Cells for crate::Pages<C> {
    type Cell = C;

    fn all(&self) -> &[C] {
        self.all()
    }

    fn discard(&self, range: std::ops::Range<usize>) {
        self.discard(range);
    }
}

/// The half of the leaves that is no longer in use, to be given back after a grace period.
pub(crate) struct OldHalf(u32);

/// The writer's allocation of the leaves.
pub(crate) struct Leaves {
    runs: Runs,
    /// The first leaf that words may own, and the number of leaves in a half.
    first: u32,
    size: u32,
    /// The half that `runs` allocates from, 0 or 1.
    half: u32,
    other_half_free: bool,
}

impl Leaves {
    /// Of an array of [`LEAVES`].
    pub fn new() -> Self {
        Self::with(IDENTITY, HALF)
    }

    /// Of an array of this many leaves, of which only the first, [`NO_ROUTE`](crate::NO_ROUTE), is the leaf of a next
    /// hop: any other answer takes a leaf of the word's own.
    pub fn small(len: usize) -> Self {
        Self::with(1, (len as u32 - 1) / 2)
    }

    fn with(first: u32, size: u32) -> Self {
        Self { runs: half(first, size, 0), first, size, half: 0, other_half_free: true }
    }

    /// Returns the first and the number of the leaves that a word owns.
    pub fn own(&self, word: u64) -> Option<(u32, usize)> {
        own_from(self.first, word)
    }

    /// Returns the word for 32 answers, with its leaves stored. `before` is the word to be
    /// replaced; if it has runs of the same shape, its leaves are overwritten in place and it is
    /// returned. `None` if there is no room.
    pub fn word<A: Cells>(
        &mut self,
        cells: &A,
        before: u64,
        answers: &[<A::Cell as Cell>::Leaf; SLOTS],
        uniform: impl FnOnce(<A::Cell as Cell>::Leaf) -> Option<u64>,
    ) -> Option<u64> {
        let shape = shape_of(answers);
        if shape.len == 1
            && let Some(word) = uniform(answers[0])
        {
            return Some(word);
        }
        let leaves = &shape.leaves[..shape.len];
        if let Some((base, _)) = self.own(before)
            && before as u32 == shape.bitmap
        {
            store_leaves(&cells.all()[base as usize..], leaves);
            return Some(before);
        }
        let base = self.runs.allocate(shape.len)?;
        store_leaves(&cells.all()[base as usize..], leaves);
        Some(u64::from(base) << BASE_SHIFT | u64::from(shape.bitmap))
    }

    /// Returns the word whose 32 slots have this next hop.
    pub fn uniform<C: Cell>(cells: &Arena<C>, next_hop: NextHopId) -> u64 {
        let leaf = &cells.all()[usize::from(next_hop)];
        store_leaves(std::slice::from_ref(leaf), &[C::Leaf::from(next_hop)]);
        uniform(next_hop)
    }

    /// Frees leaves whose grace period has passed.
    pub fn release(&mut self, base: u32, len: usize) {
        self.runs.release(base, len);
    }

    /// Frees a half whose grace period has passed, and returns its memory to the system.
    pub fn release_half(&mut self, cells: &impl Cells, OldHalf(number): OldHalf) {
        let first = (self.first + number * self.size) as usize;
        cells.discard(first..first + self.size as usize);
        self.other_half_free = true;
    }

    /// If many leaves are free, copies those in use to the other half, in the order of `words` (all
    /// existing words) and without gaps. The old half must be retired.
    pub fn compact<'w>(
        &mut self,
        cells: &impl Cells,
        words: impl IntoIterator<Item = &'w AtomicU64>,
    ) -> Option<OldHalf> {
        if !self.other_half_free || !self.runs.is_ragged() {
            return None;
        }
        let old = OldHalf(self.half);
        self.half = 1 - self.half;
        self.runs = half(self.first, self.size, self.half);
        self.other_half_free = false;
        let cells = cells.all();
        for place in words {
            let word = place.load(Ordering::Relaxed);
            let Some((from, len)) = self.own(word) else { continue };
            let to = self.runs.allocate(len).expect("they fitted into a half of this size before");
            for (from, to) in cells[from as usize..].iter().zip(&cells[to as usize..]).take(len) {
                to.set(from.get());
            }
            let word = u64::from(to) << BASE_SHIFT | u64::from(word as u32);
            place.store(word, Ordering::Release);
        }
        Some(old)
    }

    /// Returns the number of leaves that are certainly available.
    pub fn room(&self) -> usize {
        self.runs.room()
    }

    /// Returns the number of leaves that take memory.
    pub fn used(&self) -> usize {
        let other_half = if self.other_half_free { 0 } else { self.runs.used() };
        self.first as usize + self.runs.used() + other_half
    }
}

/// Returns the allocation of a half, with all its leaves free.
fn half(first: u32, size: u32, number: u32) -> Runs {
    let first = first + number * size;
    Runs::new(first, first + size - LONGEST as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(cells: &Arena<AtomicU16>, word: u64, slot: u32) -> u16 {
        cells.all()[leaf_index(word, slot)].get()
    }

    fn next_hop_word(cells: &Arena<AtomicU16>) -> impl Fn(u16) -> Option<u64> + '_ {
        |leaf| Some(Leaves::uniform(cells, leaf))
    }

    #[test]
    fn every_shape_reads_back() {
        let cells = Arena::<AtomicU16>::new(LEAVES);
        let mut leaves = Leaves::new();
        let patterns: [fn(usize) -> u16; 5] = [
            |_| 9,
            |slot| slot as u16 + 1,
            |slot| u16::from(slot == 31),
            |slot| u16::from(slot == 0),
            |slot| (slot as u16 / 3) % 2 + 5,
        ];
        for pattern in patterns {
            let answers = std::array::from_fn(pattern);
            let word = leaves.word(&cells, 0, &answers, next_hop_word(&cells)).unwrap();
            for slot in 0..32 {
                assert_eq!(answer(&cells, word, slot), answers[slot as usize]);
                assert_eq!(leaf_index(word, slot), leaf_index(word, slot + 32 * 77));
            }
        }
    }

    #[test]
    fn the_same_shape_stays_in_place_and_another_moves() {
        let cells = Arena::<AtomicU16>::new(LEAVES);
        let mut leaves = Leaves::new();
        let mut answers = [3; SLOTS];
        answers[7] = 4;
        let first = leaves.word(&cells, 0, &answers, next_hop_word(&cells)).unwrap();
        answers[7] = 5;
        let second = leaves.word(&cells, first, &answers, next_hop_word(&cells)).unwrap();
        assert_eq!(first, second);
        assert_eq!(answer(&cells, second, 7), 5);
        answers[8] = 5;
        let third = leaves.word(&cells, second, &answers, next_hop_word(&cells)).unwrap();
        assert_ne!(second >> BASE_SHIFT, third >> BASE_SHIFT);
        assert_eq!(answer(&cells, second, 8), 3, "readers of the old word still see it whole");
        assert_eq!(answer(&cells, third, 8), 5);
    }

    #[test]
    fn compaction_keeps_the_answers_and_closes_the_gaps() {
        let cells = Arena::<AtomicU16>::new(LEAVES);
        let mut leaves = Leaves::new();
        let words: Vec<AtomicU64> = (0..if cfg!(miri) { 480 } else { 2000u16 })
            .map(|block| {
                let answers = std::array::from_fn(|slot| (slot as u16 / 4 + block) % 100 + 1);
                let word = leaves.word(&cells, 0, &answers, next_hop_word(&cells)).unwrap();
                AtomicU64::new(word)
            })
            .collect();
        // Three of four words.
        for place in words.chunks(4).flat_map(|group| &group[1..]) {
            let word = place.swap(Leaves::uniform(&cells, 6), Ordering::Relaxed);
            let (base, len) = own_leaves(word).unwrap();
            leaves.release(base, len);
        }
        let expected: Vec<u16> = words
            .iter()
            .flat_map(|word| (0..32).map(|slot| answer(&cells, word.load(Ordering::Relaxed), slot)))
            .collect();
        let used = leaves.used();
        assert!(leaves.runs.is_ragged());
        let old = leaves.compact(&cells, &words).unwrap();
        leaves.release_half(&cells, old);
        assert!(leaves.used() < used);
        let after: Vec<u16> = words
            .iter()
            .flat_map(|word| (0..32).map(|slot| answer(&cells, word.load(Ordering::Relaxed), slot)))
            .collect();
        assert_eq!(after, expected);
    }
}
