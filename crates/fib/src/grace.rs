//! Grace periods: they determine when memory removed from a table may be reused.
//!
//! A grace period that starts now has passed once every reader that was inside a lookup has left
//! it. The writer keeps the token of [`GracePeriod::start`] with the pieces it removed from the
//! table, and calls [`GracePeriod::passed`] later; it never waits.
//!
//! A router implements this by quiescent-state counters that its forwarders advance once per loop
//! (QSBR). [`Epochs`] is the same in a few lines, for programs without one and for tests.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering, fence},
};

/// Reports when all readers have finished with the pieces they could see at a given time.
pub trait GracePeriod: Send {
    /// Starts a grace period: the token covers all pieces removed from the table before this call.
    fn start(&mut self) -> u64;

    /// Returns true if every reader has been outside a lookup at least once since `token` was
    /// given.
    fn passed(&mut self, token: u64) -> bool;
}

/// The grace period of a program whose readers never run at the same time as the writer.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReaders;

impl GracePeriod for NoReaders {
    fn start(&mut self) -> u64 {
        0
    }

    fn passed(&mut self, _token: u64) -> bool {
        true
    }
}

/// Quiescent-state counters in shared memory: a registry of readers and the writer's epoch.
///
/// Each reading thread takes an [`EpochReader`] and calls [`EpochReader::quiescent`] between
/// batches; a thread that blocks for long drops its reader or calls [`EpochReader::pause`].
///
/// ```
/// use fib::{Epochs, GracePeriod};
/// let mut epochs = Epochs::default();
/// let reader = epochs.register();
/// let token = epochs.start();
/// assert!(!epochs.passed(token));
/// reader.quiescent();
/// assert!(epochs.passed(token));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Epochs {
    shared: Arc<EpochState>,
}

#[derive(Debug, Default)]
struct EpochState {
    now: AtomicU64,
    readers: Mutex<Vec<Arc<AtomicU64>>>,
}

/// The epoch of a reader that is outside all lookups until it is resumed.
const PAUSED: u64 = u64::MAX;

/// One thread's mark in [`Epochs`].
#[derive(Debug)]
pub struct EpochReader {
    seen: Arc<AtomicU64>,
    shared: Arc<EpochState>,
}

impl Epochs {
    /// Registers a thread that begins to read now.
    pub fn register(&self) -> EpochReader {
        let seen = Arc::new(AtomicU64::new(PAUSED));
        let mut readers = self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.push(Arc::clone(&seen));
        drop(readers);
        let reader = EpochReader { seen, shared: Arc::clone(&self.shared) };
        reader.quiescent();
        reader
    }
}

impl EpochReader {
    /// Marks this thread as outside any lookup at this moment. One load, one store, and a full
    /// fence, which keeps later lookups from being executed before it.
    pub fn quiescent(&self) {
        self.seen.store(self.shared.now.load(Ordering::Acquire), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Marks this thread as outside any lookup until it calls [`EpochReader::quiescent`] again.
    pub fn pause(&self) {
        self.seen.store(PAUSED, Ordering::Release);
    }
}

impl Drop for EpochReader {
    fn drop(&mut self) {
        let mut readers = self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|reader| !Arc::ptr_eq(reader, &self.seen));
    }
}

impl GracePeriod for Epochs {
    fn start(&mut self) -> u64 {
        // The fence orders the stores that removed pieces from the table before the new epoch.
        fence(Ordering::SeqCst);
        self.shared.now.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn passed(&mut self, token: u64) -> bool {
        fence(Ordering::SeqCst);
        let readers = self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.iter().all(|reader| reader.load(Ordering::Acquire) >= token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_passes_when_all_readers_have_been_quiescent() {
        let mut epochs = Epochs::default();
        let (a, b) = (epochs.register(), epochs.register());
        let token = epochs.start();
        a.quiescent();
        assert!(!epochs.passed(token), "b has not been seen");
        b.quiescent();
        assert!(epochs.passed(token));
        let later = epochs.start();
        assert!(!epochs.passed(later), "an earlier quiescent state does not count");
    }

    #[test]
    fn paused_and_dropped_readers_hold_nothing_back() {
        let mut epochs = Epochs::default();
        let (a, b) = (epochs.register(), epochs.register());
        a.pause();
        drop(b);
        let token = epochs.start();
        assert!(epochs.passed(token));
        a.quiescent();
        let token = epochs.start();
        assert!(!epochs.passed(token), "a reads again");
    }
}
