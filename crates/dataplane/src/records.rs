//! Bounded stocks of records that forwarders fill and another thread reads.
//!
//! ```text
//!   forwarder --> free record --> filled --> queue --> reader
//!                      ^                                 |
//!                      +------------- empty -------------+
//! ```
//!
//! Records are made beforehand, so forwarders neither allocate nor wait: what finds no free record is counted as lost.
//! That also bounds the time that it takes from forwarding.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

/// A stock of records.
pub struct Records<T> {
    free: ArrayQueue<Box<T>>,
    full: ArrayQueue<Box<T>>,
    lost: AtomicU64,
}

impl<T> Records<T> {
    /// Creates it with so many records, at least one.
    pub fn new(count: usize, make: impl Fn() -> T) -> Self {
        let count = count.max(1);
        let (free, full) = (ArrayQueue::new(count), ArrayQueue::new(count));
        for _ in 0..count {
            // There is room for as many.
            let _ = free.push(Box::new(make()));
        }
        Self { free, full, lost: AtomicU64::new(0) }
    }

    /// Returns a record to be filled; without a free one, that is counted.
    pub(crate) fn free(&self) -> Option<Box<T>> {
        let free = self.free.pop();
        if free.is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        free
    }

    /// Adds a filled record.
    pub(crate) fn put(&self, record: Box<T>) {
        // There is room for all.
        let _ = self.full.push(record);
    }

    /// Returns the oldest filled record, to be given back.
    pub fn take(&self) -> Option<Box<T>> {
        self.full.pop()
    }

    /// Returns the number of filled records.
    pub fn waiting(&self) -> usize {
        self.full.len()
    }

    /// Takes a record back, empty.
    pub fn give_back(&self, record: Box<T>) {
        // There is room for all.
        let _ = self.free.push(record);
    }

    /// Returns the number of those that found no free record.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// Appends the first bytes of a frame in several buffers to a record's, up to its bound.
pub(crate) fn keep<'a>(kept: &mut Vec<u8>, bound: usize, parts: impl Iterator<Item = &'a [u8]>) {
    for part in parts {
        let room = bound.saturating_sub(kept.len());
        kept.extend_from_slice(&part[..part.len().min(room)]);
    }
}
