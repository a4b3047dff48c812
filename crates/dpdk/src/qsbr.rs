//! Grace periods by quiescent states (DPDK's `rte_rcu_qsbr`): a writer replaces shared data and
//! waits until no reader can still see the old data.
//!
//! Each reading thread has a [`Reader`]. Between two calls of [`Reader::quiescent`] it may read
//! shared data; at the call it holds none of them. A reader that sleeps calls [`Reader::offline`]
//! before, so that writers do not wait for it. A writer unlinks the old data, calls
//! [`Qsbr::start`], and frees it when [`Qsbr::passed`] returns true, or just waits in
//! [`Qsbr::synchronize`].
//!
//! Needs no EAL.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use crate::Error;

/// One group of readers, and the writers that wait for them.
pub struct Qsbr {
    state: NonNull<sys::rte_rcu_qsbr>,
    layout: Layout,
    /// The reader numbers in use.
    taken: Mutex<Vec<bool>>,
}

// SAFETY: the state is made to be used by many threads at once; the operations that belong to one
// reader are `&mut self` methods of `Reader`.
unsafe impl Send for Qsbr {}
// SAFETY: as above.
unsafe impl Sync for Qsbr {}

/// A time that readers have to pass, from [`Qsbr::start`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(u64);

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

/// For tokens that were kept as numbers; a number that was never a token may never pass.
impl From<u64> for Token {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

/// A reading thread. Offline at first; dropping it removes it from the group.
pub struct Reader {
    group: Arc<Qsbr>,
    number: u32,
    not_sync: PhantomData<std::cell::Cell<()>>,
}

impl Qsbr {
    /// Creates a group for at most `max_threads` readers at a time (clamped to 1 to 65,536).
    pub fn new(max_threads: usize) -> Arc<Self> {
        let count = max_threads.clamp(1, 65_536) as u32;
        // SAFETY: computes a size from a number above 0.
        let size = unsafe { sys::rte_rcu_qsbr_get_memsize(count) };
        let layout = Layout::from_size_align(size, sys::RTE_CACHE_LINE_SIZE as usize)
            .expect("a few kilobytes, aligned to a cache line");
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(state) = NonNull::new(memory.cast()) else { handle_alloc_error(layout) };
        // SAFETY: the memory is ours and has the size that DPDK requires for this many readers; the
        // function fails only for null or 0.
        unsafe { sys::rte_rcu_qsbr_init(state.as_ptr(), count) };
        Arc::new(Self { state, layout, taken: Mutex::new(vec![false; count as usize]) })
    }

    /// Adds a reader, offline.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] when there are `max_threads` readers.
    pub fn register(self: &Arc<Self>) -> Result<Reader, Error> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = taken.iter().position(|&taken| !taken) else {
            let (what, value) = ("the number of RCU readers".into(), taken.len() + 1);
            return Err(Error::OutOfRange { what, value, range: format!("1 to {}", taken.len()) });
        };
        taken[number] = true;
        let number = number as u32;
        // SAFETY: the number is below the maximum, and not in use.
        unsafe { sys::rte_rcu_qsbr_thread_register(self.state.as_ptr(), number) };
        Ok(Reader { group: self.clone(), number, not_sync: PhantomData })
    }

    /// Begins a grace period: once the token has passed, no reader sees data that were unlinked
    /// before this call.
    pub fn start(&self) -> Token {
        // SAFETY: the state is alive.
        Token(unsafe { sys::rte_rcu_qsbr_start(self.state.as_ptr()) })
    }

    /// Returns true if every reader that is online has been quiescent since the token was made.
    pub fn passed(&self, token: Token) -> bool {
        // SAFETY: the state is alive; without `wait` the function returns at once.
        unsafe { sys::rte_rcu_qsbr_check(self.state.as_ptr(), token.0, false) == 1 }
    }

    /// Waits for a grace period, yielding to other threads. Must not be called by a thread whose
    /// own reader is online: it would wait for itself.
    pub fn synchronize(&self) {
        let token = self.start();
        while !self.passed(token) {
            std::thread::yield_now();
        }
    }
}

impl Qsbr {
    /// Returns the pointer for DPDK's own structures that use grace periods; valid as long as the
    /// group.
    pub(crate) fn as_ptr(&self) -> *mut sys::rte_rcu_qsbr {
        self.state.as_ptr()
    }
}

impl Drop for Qsbr {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; readers hold the group, so none is left.
        unsafe { dealloc(self.state.as_ptr().cast(), self.layout) };
    }
}

impl Reader {
    /// Reports that this thread holds none of the shared data that it has read.
    #[inline]
    pub fn quiescent(&mut self) {
        // SAFETY: the reader is registered and used by one thread.
        unsafe { sys::rte_rcu_qsbr_quiescent(self.group.state.as_ptr(), self.number) }
    }

    /// Goes online: from now on, writers wait for this reader. Required before it reads shared
    /// data.
    #[inline]
    pub fn online(&mut self) {
        // SAFETY: the reader is registered and used by one thread.
        unsafe { sys::rte_rcu_qsbr_thread_online(self.group.state.as_ptr(), self.number) }
    }

    /// Goes offline, for instance to sleep: writers do not wait for this reader.
    #[inline]
    pub fn offline(&mut self) {
        // SAFETY: the reader is registered and used by one thread.
        unsafe { sys::rte_rcu_qsbr_thread_offline(self.group.state.as_ptr(), self.number) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.offline();
        // SAFETY: the reader is registered, and not used any more.
        unsafe { sys::rte_rcu_qsbr_thread_unregister(self.group.state.as_ptr(), self.number) };
        let mut taken = self.group.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken[self.number as usize] = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_grace_period_waits_for_each_reader_that_is_online() {
        let group = Qsbr::new(3);
        let (mut first, mut second) = (group.register().unwrap(), group.register().unwrap());
        let asleep = group.register().unwrap();
        first.online();
        second.online();
        let token = group.start();
        assert!(!group.passed(token));
        first.quiescent();
        assert!(!group.passed(token), "the second reader may still look");
        second.offline();
        assert!(group.passed(token), "the third reader was never online");
        let next = group.start();
        assert!(!group.passed(next), "one grace period is not another");
        drop(first);
        assert!(group.passed(next), "a reader that is gone looks at nothing");
        drop(asleep);
    }

    #[test]
    fn readers_are_counted_and_their_numbers_used_again() {
        let group = Qsbr::new(2);
        let first = group.register().unwrap();
        let _second = group.register().unwrap();
        let error = group.register().map(drop).unwrap_err().to_string();
        assert_eq!(error, "the number of RCU readers is 3, which must be 1 to 2");
        drop(first);
        group.register().unwrap();
    }

    /// A writer swaps between two cells and poisons the one that readers cannot see any more; a
    /// reader that sees poison would have read freed memory.
    #[test]
    fn synchronize_protects_readers_in_other_threads() {
        let group = Qsbr::new(2);
        let (cells, current) = ([AtomicUsize::new(0), AtomicUsize::new(0)], AtomicUsize::new(0));
        let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let mut reader = group.register().unwrap();
                let (cells, current, stop, rounds) = (&cells, &current, &stop, &rounds);
                scope.spawn(move || {
                    reader.online();
                    while !stop.load(Ordering::Relaxed) {
                        let cell = &cells[current.load(Ordering::Acquire)];
                        std::thread::yield_now();
                        assert_eq!(cell.load(Ordering::Relaxed), 0, "poison");
                        rounds.fetch_add(1, Ordering::Relaxed);
                        reader.quiescent();
                    }
                    reader.offline();
                });
            }
            for round in 0.. {
                if round >= 500 && rounds.load(Ordering::Relaxed) >= 500 {
                    break;
                }
                let (old, new) = (round % 2, (round + 1) % 2);
                cells[new].store(0, Ordering::Relaxed);
                current.store(new, Ordering::Release);
                group.synchronize();
                cells[old].store(1, Ordering::Relaxed);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
