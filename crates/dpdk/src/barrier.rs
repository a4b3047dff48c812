//! A memory barrier on every core that runs a thread of this process, issued by one of them.
//!
//! Linux's `membarrier` system call interrupts those cores, so that the accesses of threads which order
//! them only for the compiler are ordered for the processor as well when the call returns. User-space
//! RCU uses it today instead of signals to all its readers.

use crate::{Errno, Error};

/// Permission to issue the barrier. The process is registered with the kernel once.
#[derive(Clone, Copy, Debug)]
pub struct ProcessBarrier(());

impl ProcessBarrier {
    /// Registers this process with the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no such call (Linux before 4.14).
    pub fn register() -> Result<Self, Error> {
        match membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
            0 => Ok(Self(())),
            _ => Err(Error::Unsupported { what: "membarrier".into(), errno: Errno::last() }),
        }
    }

    /// Returns when every running thread of this process has passed a full memory barrier.
    pub fn issue(&self) {
        // It cannot fail: the process is registered.
        membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    }
}

fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

    use super::*;

    /// Waits until another thread has reached this round.
    fn meet(other: &AtomicU64, round: u64) {
        while other.load(Ordering::Acquire) < round {
            std::hint::spin_loop();
            // The other thread may need this core.
            if other.load(Ordering::Acquire) + 1 < round {
                std::thread::yield_now();
            }
        }
    }

    /// Two threads each set a flag and read the other's. With a barrier for the compiler on one side and a
    /// process barrier on the other they never both miss each other; without the latter they do, since a
    /// processor's loads may overtake its stores.
    #[test]
    fn it_orders_stores_before_loads_of_a_thread_that_has_no_barrier() {
        const ROUNDS: u64 = 20_000;
        let barrier = ProcessBarrier::register().unwrap();
        let flags = [AtomicU64::new(0), AtomicU64::new(0)];
        let (ready, done, seen) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let mut missed = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    meet(&ready, round);
                    flags[0].store(round, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    seen.store(flags[1].load(Ordering::Relaxed), Ordering::Relaxed);
                    done.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                ready.store(round, Ordering::Release);
                // Varies the distance between the two.
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                flags[1].store(round, Ordering::Relaxed);
                barrier.issue();
                let ours = flags[0].load(Ordering::Relaxed);
                meet(&done, round);
                let theirs = seen.load(Ordering::Relaxed);
                missed += u64::from(ours < round && theirs < round);
            }
        });
        assert_eq!(missed, 0, "of {ROUNDS} rounds: both missed the other");
    }
}
