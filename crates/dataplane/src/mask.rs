//! Masks: the packets of a batch that take an edge of the graph.
//!
//! A batch has at most 64 slots, so a set of its packets is one `u64`. Joining two paths is one OR
//! and keeps the packets' order; no packet is ever moved between vectors.

use std::fmt;
use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Not};

/// The most packets in a batch.
pub const BATCH_MAX: usize = dpdk::BURST_MAX;

/// A set of the slots 0 to 63 of a batch; bit `i` stands for slot `i`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Mask(pub u64);

impl Mask {
    /// No slot.
    pub const EMPTY: Self = Self(0);

    /// The first `n` slots; all 64 from 64 on.
    pub fn first(n: usize) -> Self {
        if n >= 64 { Self(u64::MAX) } else { Self((1 << n) - 1) }
    }

    /// Returns slot `i` if `condition`, else none: a loop can collect a mask without a branch.
    #[inline(always)]
    pub fn when(condition: bool, i: usize) -> Self {
        Self(u64::from(condition) << (i & 63))
    }

    /// Returns the slots with a 1 among these bytes, of which the others are 0. The product of eight bytes has all of them
    /// as bits in its upper byte, so that a comparison of vectors becomes a mask by few instructions.
    #[inline(always)]
    pub(crate) fn of_bytes(bytes: &[u8; BATCH_MAX]) -> Self {
        const GATHER: u64 = 0x0102_0408_1020_4080;
        let (words, _) = bytes.as_chunks();
        let bits = |&word: &[u8; 8]| u64::from_le_bytes(word).wrapping_mul(GATHER) >> 56;
        let place = |all, (place, bits): (usize, u64)| all | bits << (8 * place);
        Self(words.iter().map(bits).enumerate().fold(0, place))
    }

    /// True if the set has no slot.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if slot `i` is in the set.
    #[inline(always)]
    pub fn has(self, i: usize) -> bool {
        self.0 >> (i & 63) & 1 != 0
    }

    /// The number of slots in the set.
    #[inline(always)]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The slots of this set that are not in `other`.
    #[inline(always)]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the number of slots if they are the first ones, without gaps: the usual case for steps, in which
    /// the compiler can unroll a plain loop over `0..n`.
    #[inline(always)]
    pub fn as_first(self) -> Option<usize> {
        (self.0 & self.0.wrapping_add(1) == 0).then(|| self.0.trailing_ones() as usize)
    }

    /// Calls `each` for every slot, in ascending order.
    #[inline(always)]
    pub fn for_each(self, mut each: impl FnMut(usize)) {
        match self.as_first() {
            Some(count) => (0..count).for_each(each),
            None => {
                for slot in self.slots() {
                    each(slot);
                }
            }
        }
    }

    /// Returns the slots of the set for which `test` returns true. The order of the calls is
    /// undefined.
    #[inline(always)]
    pub fn filter(self, mut test: impl FnMut(usize) -> bool) -> Self {
        let [found] = self.sort(|slot| [test(slot)]);
        found
    }

    /// Like [`Self::filter`], for several results at once. The order of the calls is undefined.
    #[inline(always)]
    pub fn sort<const N: usize>(self, mut test: impl FnMut(usize) -> [bool; N]) -> [Self; N] {
        let mut found = [Self::EMPTY; N];
        if let Some(count) = self.as_first() {
            // From the last: each result is shifted in after the others, by one instruction that
            // needs no slot number.
            for slot in (0..count).rev() {
                for (found, answer) in found.iter_mut().zip(test(slot)) {
                    found.0 = found.0 + found.0 + u64::from(answer);
                }
            }
        } else {
            for slot in self.slots() {
                for (found, answer) in found.iter_mut().zip(test(slot)) {
                    *found |= Self::when(answer, slot);
                }
            }
        }
        found
    }

    /// The slots in ascending order.
    #[inline(always)]
    pub fn slots(self) -> Slots {
        Slots(self.0)
    }
}

impl FromIterator<usize> for Mask {
    #[inline(always)]
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        slots.into_iter().fold(Self::EMPTY, |all, slot| all | Self::when(true, slot))
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.slots()).finish()
    }
}

impl BitOr for Mask {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Mask {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Mask {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitAndAssign for Mask {
    #[inline(always)]
    fn bitand_assign(&mut self, other: Self) {
        self.0 &= other.0;
    }
}

impl Not for Mask {
    type Output = Self;
    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// Iterates over the slots of a mask, one `tzcnt` each.
#[derive(Clone, Debug)]
pub struct Slots(u64);

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_in_order_and_all() {
        let mask = Mask(1 << 63 | 0b1010);
        assert_eq!(mask.slots().collect::<Vec<_>>(), [1, 3, 63]);
        assert_eq!(mask.count(), 3);
        assert_eq!(Mask::EMPTY.slots().next(), None);
    }

    proptest::proptest! {
        #[test]
        fn each_slot_has_its_turn(any: u64, first in 0usize..=64) {
            for mask in [Mask(any), Mask::first(first)] {
                let mut seen = Vec::new();
                mask.for_each(|slot| seen.push(slot));
                proptest::prop_assert_eq!(seen, mask.slots().collect::<Vec<_>>());
            }
        }

        #[test]
        fn each_slot_is_tested_once(any: u64, yes: u64, no: u64, first in 0usize..=64) {
            for mask in [Mask(any), Mask::first(first)] {
                let mut seen = Mask::EMPTY;
                let found = mask.sort(|slot| {
                    assert!(!seen.has(slot));
                    seen |= Mask::when(true, slot);
                    [Mask(yes).has(slot), Mask(no).has(slot)]
                });
                proptest::prop_assert_eq!(seen, mask);
                proptest::prop_assert_eq!(found, [mask & Mask(yes), mask & Mask(no)]);
                proptest::prop_assert_eq!(mask.filter(|slot| Mask(yes).has(slot)), mask & Mask(yes));
            }
        }
    }

    #[test]
    fn first_n_covers_the_edges() {
        assert_eq!(Mask::first(0), Mask::EMPTY);
        assert_eq!(Mask::first(1), Mask(1));
        assert_eq!(Mask::first(63), Mask(u64::MAX >> 1));
        assert_eq!(Mask::first(64), Mask(u64::MAX));
        assert_eq!(Mask::first(65), Mask(u64::MAX));
    }

    proptest::proptest! {
        #[test]
        fn bytes_become_bits(any: u64) {
            let bytes = std::array::from_fn(|slot| u8::from(Mask(any).has(slot)));
            proptest::prop_assert_eq!(Mask::of_bytes(&bytes), Mask(any));
        }
    }

    #[test]
    fn set_operations() {
        let (a, b) = (Mask(0b1100), Mask(0b1010));
        assert_eq!(a | b, Mask(0b1110));
        assert_eq!(a & b, Mask(0b1000));
        assert_eq!(a.without(b), Mask(0b0100));
        assert!(Mask::when(true, 5).has(5));
        assert!(Mask::when(false, 5).is_empty());
        assert!((!Mask::EMPTY).has(63));
    }
}
