//! Ranges of places for group members: first fit, adjacent ranges merged when freed.

use std::collections::BTreeMap;

/// The free ranges of a table, by their first place.
#[derive(Debug)]
pub(super) struct Places {
    free: BTreeMap<u32, u32>,
}

impl Places {
    /// Creates `count` free places.
    pub(super) fn new(count: u32) -> Self {
        Self { free: BTreeMap::from([(0, count)]) }
    }

    /// Takes `count` consecutive places; returns the first, `None` if there are none.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let (&first, &length) = self.free.iter().find(|&(_, &length)| length >= count)?;
        self.free.remove(&first);
        if length > count {
            self.free.insert(first + count, length - count);
        }
        Some(first)
    }

    /// Frees places from [`Self::take`].
    pub(super) fn give(&mut self, first: u32, count: u32) {
        let (mut first, mut count) = (first, count);
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            self.free.remove(&before);
            (first, count) = (before, length + count);
        }
        if let Some(length) = self.free.remove(&(first + count)) {
            count += length;
        }
        self.free.insert(first, count);
    }

    /// Returns the number of free places.
    pub(super) fn free(&self) -> u32 {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap_and_join_again() {
        let mut places = Places::new(10);
        let taken: Vec<u32> = (0..3).map(|_| places.take(3).unwrap()).collect();
        assert_eq!(taken, [0, 3, 6]);
        assert_eq!(places.take(3), None);
        places.give(0, 3);
        places.give(6, 3);
        assert_eq!(places.take(4), Some(6), "joined with the free place after it");
        places.give(6, 4);
        places.give(3, 3);
        assert_eq!(places.free(), 10);
        assert_eq!(places.take(10), Some(0), "everything is one range again");
    }
}
