//! The lease of accelerated interfaces, renewed by a thread of its own.
//!
//! XDP programs take packets only while the process has a lease (`dpdk::Lease`). The thread renews it as long as the owner
//! is there to follow the kernel's routes; when the process is killed, stopped or without a processor, it runs out, and
//! the kernel forwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use dpdk::Lease;

/// Interval of renewals.
const INTERVAL: Duration = Duration::from_millis(20);

/// Time of a lease.
const TIME: Duration = Duration::from_millis(100);

/// Time after which the owner is missed.
const OWNER_PATIENCE: Duration = Duration::from_secs(2);

/// A lease that is renewed as long as the owner is there. Dropping it ends the lease.
pub struct Keeper {
    lease: Lease,
    begun: Instant,
    /// Milliseconds since then at which the owner was there last.
    owner: Arc<AtomicU64>,
    _thread: Sender<()>,
}

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system makes no thread.
    pub fn start(lease: Lease) -> std::io::Result<Self> {
        let (sender, end) = mpsc::channel();
        let (begun, owner, own) = (Instant::now(), Arc::<AtomicU64>::default(), lease.clone());
        let seen = owner.clone();
        let body = move || {
            privileges::keep_to(privileges::Role::Unit);
            renew(&own, begun, &seen, &end);
        };
        thread::Builder::new().name("lease".to_owned()).spawn(body)?;
        Ok(Self { lease, begun, owner, _thread: sender })
    }

    /// The owner is there.
    pub fn owner_is_there(&self) {
        self.owner.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The thread may renew it once more; nothing is to be taken any more by then.
        self.lease.end();
    }
}

/// Renews the lease until the keeper is dropped.
fn renew(lease: &Lease, begun: Instant, owner: &AtomicU64, end: &Receiver<()>) {
    loop {
        let seen = Duration::from_millis(owner.load(Ordering::Relaxed));
        if begun.elapsed().saturating_sub(seen) < OWNER_PATIENCE {
            lease.renew(TIME);
        }
        if end.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
