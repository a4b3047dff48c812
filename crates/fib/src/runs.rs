//! Allocation of short runs of leaves, and the queue of retired pieces.
//!
//! [`Runs`] hands out 1 to 32 consecutive places of a fixed range, exactly as many as requested:
//! rounding up to size classes would spread the leaves over more cache lines and slow lookups.
//!
//! ```text
//!  first                                   bump                         end
//!   | run | run |free 3| run | run |free 2| .  .  .  never used  .  .  . |
//! ```
//!
//! A run comes from the list of free runs of its size, else is cut from a longer free run, else
//! from the end. Neighbouring free runs are not joined; the owner copies everything that is in use
//! to a fresh range when [`Runs::is_ragged`] reports that it pays.

use std::collections::VecDeque;

use crate::GracePeriod;

/// Error: there is no room for a piece.
pub(crate) struct NoRoom;

/// The longest run.
pub(crate) const LONGEST: usize = 32;

/// A range of places, with its free runs.
pub(crate) struct Runs {
    first: u32,
    end: u32,
    bump: u32,
    /// Free runs by length.
    free: [Vec<u32>; LONGEST + 1],
    free_places: u32,
}

impl Runs {
    /// Creates a range of free places from `first` to before `end`.
    pub fn new(first: u32, end: u32) -> Self {
        Self { first, end, bump: first, free: [const { Vec::new() }; LONGEST + 1], free_places: 0 }
    }

    /// Allocates `len` (1 to 32) places; returns the first; `None` if there is no such run.
    pub fn allocate(&mut self, len: usize) -> Option<u32> {
        if let Some(run) = self.free[len].pop() {
            self.free_places -= len as u32;
            return Some(run);
        }
        if let Some(longer) = (len + 1..=LONGEST).rev().find(|&n| !self.free[n].is_empty()) {
            let run = self.free[longer].pop()?;
            self.free[longer - len].push(run + len as u32);
            self.free_places -= len as u32;
            return Some(run);
        }
        let run = self.bump;
        (self.end - run >= len as u32).then(|| {
            self.bump += len as u32;
            run
        })
    }

    /// Frees a run. A run from outside the range (from before the range was changed) is ignored.
    pub fn release(&mut self, run: u32, len: usize) {
        if self.contains(run) {
            self.free[len].push(run);
            self.free_places += len as u32;
        }
    }

    /// Returns true if the place belongs to this range.
    pub fn contains(&self, place: u32) -> bool {
        (self.first..self.end).contains(&place)
    }

    /// Returns the number of places from the first to the last ever used.
    pub fn used(&self) -> usize {
        (self.bump - self.first) as usize
    }

    /// Returns the number of places that are certainly available, in runs of any length.
    pub fn room(&self) -> usize {
        (self.end - self.bump) as usize
    }

    /// Returns true if more than a sixteenth of the used range is free.
    pub fn is_ragged(&self) -> bool {
        self.free_places as usize > 2048 + self.used() / 16
    }
}

/// Pieces removed from a table that wait for their grace period.
pub(crate) struct Retired<T> {
    grace: Box<dyn GracePeriod>,
    /// Pieces removed since the last grace period began.
    open: Vec<T>,
    /// Groups with the token of the grace period that began after they were removed.
    closed: VecDeque<(u64, Vec<T>)>,
    waiting: usize,
}

/// Number of pieces that share one grace period, so that starting one costs little per update.
const GROUP: usize = 32;

impl<T> Retired<T> {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        Self { grace, open: Vec::new(), closed: VecDeque::new(), waiting: 0 }
    }

    /// Adds a piece, which must already be unreachable for lookups that begin now.
    pub fn put(&mut self, piece: T) {
        self.open.push(piece);
        self.waiting += 1;
    }

    /// Returns true if enough pieces have gathered to make [`Retired::collect`] worth its cost.
    pub fn is_due(&self) -> bool {
        self.open.len() >= GROUP
    }

    /// Passes every piece whose grace period has passed to `free`; returns the number that still
    /// wait.
    pub fn collect(&mut self, mut free: impl FnMut(T)) -> usize {
        if !self.open.is_empty() {
            let token = self.grace.start();
            self.closed.push_back((token, std::mem::take(&mut self.open)));
        }
        while let Some((token, _)) = self.closed.front() {
            if !self.grace.passed(*token) {
                break;
            }
            for piece in self.closed.pop_front().into_iter().flat_map(|(_, pieces)| pieces) {
                self.waiting -= 1;
                free(piece);
            }
        }
        self.waiting
    }

    /// Returns the number of pieces that wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Epochs, NoReaders};

    #[test]
    fn runs_never_overlap_and_come_back() {
        let mut runs = Runs::new(100, 1100);
        let mut taken: Vec<(u32, usize)> = Vec::new();
        let mut seed = 1u32;
        let steps = if cfg!(miri) { 20 } else { 20_000 };
        for _ in 0..steps {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = (seed >> 16) as usize % LONGEST + 1;
            match runs.allocate(len) {
                Some(run) => taken.push((run, len)),
                None => {
                    for (run, len) in taken.drain(..taken.len().div_ceil(2)) {
                        runs.release(run, len);
                    }
                }
            }
            let places: BTreeSet<u32> =
                taken.iter().flat_map(|&(run, len)| run..run + len as u32).collect();
            assert_eq!(places.len(), taken.iter().map(|&(_, len)| len).sum::<usize>());
            assert!(places.iter().all(|&place| runs.contains(place)));
        }
    }

    #[test]
    fn a_full_range_says_so() {
        let mut runs = Runs::new(0, 40);
        assert_eq!(runs.allocate(32), Some(0));
        assert_eq!(runs.allocate(9), None);
        assert_eq!(runs.allocate(8), Some(32));
        runs.release(0, 32);
        assert!(runs.allocate(5).is_some(), "cut from the longer run");
        assert!(runs.allocate(27).is_some());
        assert!(runs.allocate(1).is_none());
    }

    #[test]
    fn retired_pieces_wait_for_their_readers() {
        let epochs = Epochs::default();
        let reader = epochs.register();
        let mut retired = Retired::new(Box::new(epochs));
        retired.put(1);
        let mut freed = Vec::new();
        assert_eq!(retired.collect(|piece| freed.push(piece)), 1);
        reader.quiescent();
        retired.put(2);
        assert_eq!(retired.collect(|piece| freed.push(piece)), 1, "2 came too late");
        assert_eq!(freed, [1]);
        reader.quiescent();
        assert_eq!(retired.collect(|piece| freed.push(piece)), 0);
        assert_eq!(freed, [1, 2]);
    }

    #[test]
    fn without_readers_nothing_waits() {
        let mut retired = Retired::new(Box::new(NoReaders));
        retired.put(());
        assert_eq!(retired.waiting(), 1);
        assert_eq!(retired.collect(|()| ()), 0);
    }
}
