//! A buddy allocator for the arrays of nodes and leaves of a Poptrie.
//!
//! Places come in blocks of 1, 2, 4, … 64; a block's twin is the one it was split from, and two
//! free twins join again, so that memory is not lost to fragmentation for any order of changes. A
//! block begins at a multiple of its size. (Knowlton, CACM 1965; the Poptrie paper, section 3.5,
//! uses it for the same purpose.)

use std::collections::BTreeSet;

/// Block sizes are 2^0 to 2^6.
const ORDERS: usize = 7;
const LARGEST: u32 = 1 << (ORDERS - 1);

/// Free places of an array.
pub(crate) struct Buddy {
    /// Places from here on have never been used.
    bump: u32,
    end: u32,
    free: [BTreeSet<u32>; ORDERS],
}

fn order(len: usize) -> usize {
    len.max(1).next_power_of_two().trailing_zeros() as usize
}

impl Buddy {
    /// Creates an array of `end` free places.
    pub fn new(end: usize) -> Self {
        Self { bump: 0, end: end as u32, free: [const { BTreeSet::new() }; ORDERS] }
    }

    /// Returns the number of places.
    pub fn len(&self) -> usize {
        self.end as usize
    }

    /// Allocates `len` (at most 64) places; returns the first.
    pub fn allocate(&mut self, len: usize) -> Option<u32> {
        let order = order(len);
        let available = (order..ORDERS).find(|&o| !self.free[o].is_empty());
        let (block, mut size) = match available {
            Some(o) => (self.free[o].pop_first()?, o),
            None if self.end - self.bump >= LARGEST => {
                self.bump += LARGEST;
                (self.bump - LARGEST, ORDERS - 1)
            }
            None => return None,
        };
        while size > order {
            size -= 1;
            self.free[size].insert(block + (1 << size));
        }
        Some(block)
    }

    /// Frees places that [`Buddy::allocate`] returned for this length.
    pub fn release(&mut self, mut block: u32, len: usize) {
        let mut order = order(len);
        while order < ORDERS - 1 && self.free[order].remove(&(block ^ (1 << order))) {
            block &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(block);
    }

    /// Returns the number of places that take memory.
    pub fn used(&self) -> usize {
        self.bump as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::Random;

    #[test]
    fn blocks_never_overlap_and_all_join_again() {
        let mut buddy = Buddy::new(4096);
        let mut taken: Vec<(u32, usize)> = Vec::new();
        let mut owner = vec![false; 4096];
        let mut random = Random::new(3);
        let steps = if cfg!(miri) { 200 } else { 5_000 };
        for _ in 0..steps {
            let len = random.below(64) as usize + 1;
            if let Some(block) = buddy.allocate(len) {
                for place in block..block + len as u32 {
                    assert!(!std::mem::replace(&mut owner[place as usize], true));
                }
                taken.push((block, len));
            }
            if random.below(3) > 0 && !taken.is_empty() {
                let at = random.below(taken.len() as u64) as usize;
                let (block, len) = taken.swap_remove(at);
                owner[block as usize..block as usize + len].fill(false);
                buddy.release(block, len);
            }
        }
        taken.into_iter().for_each(|(block, len)| buddy.release(block, len));
        assert_eq!(buddy.free[ORDERS - 1].len() * 64, buddy.used());
    }

    #[test]
    fn a_full_array_says_so() {
        let mut buddy = Buddy::new(64);
        assert_eq!(buddy.allocate(33), Some(0));
        assert_eq!(buddy.allocate(1), None);
        buddy.release(0, 33);
        assert_eq!(buddy.allocate(1), Some(0));
    }
}
