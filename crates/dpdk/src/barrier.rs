//! A memory barrier on every core that runs a thread of this process, asked for by one of them.
//!
//! Linux's `membarrier` system call interrupts those cores, so that threads that only order their
//! accesses for the compiler have them ordered for the processor as well when the call returns. It is
//! what user-space RCU uses today where it sent signals to all its readers.

use crate::{Errno, Error};

/// The right to ask for the barrier. The kernel is told once.
#[derive(Clone, Copy, Debug)]
pub struct ProcessBarrier(());

impl ProcessBarrier {
    /// Tells the kernel that this process will ask.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no such call (Linux before 4.14).
    pub fn register() -> Result<Self, Error> {
        match membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) {
            0 => Ok(Self(())),
            _ => Err(Error::Unsupported { what: "membarrier".into(), errno: Errno::of_system() }),
        }
    }

    /// Returns when every thread of this process that runs has passed a full memory barrier.
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
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

    use super::*;

    /// Dekker's two flags: one side stores, and loads the other's flag behind a barrier for the compiler
    /// only; the other side does it behind a process barrier. They never both miss each other.
    #[test]
    fn it_orders_stores_before_loads_of_a_thread_that_has_no_barrier() {
        let barrier = ProcessBarrier::register().unwrap();
        let (fast, slow) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (missed, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    fast.store(round, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    missed.store(slow.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            });
            for round in 1..2000 {
                slow.store(round, Ordering::Relaxed);
                barrier.issue();
                let before = fast.load(Ordering::Relaxed);
                // What it loads in a later round than that one is our store or a later one.
                while fast.load(Ordering::Relaxed) < before + 2 && before > 0 {
                    std::thread::yield_now();
                }
                assert!(before == 0 || missed.load(Ordering::Relaxed) >= round);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
