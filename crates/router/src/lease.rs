//! The lease of accelerated interfaces, renewed by a thread of its own.
//!
//! XDP programs take packets only while the process has a lease (`dpdk::Lease`). The thread renews it as long as the owner
//! is there to follow the kernel's routes, and each forwarder makes rounds; when the process is killed or stopped, or one
//! of its threads has no processor, it runs out, and the kernel forwards.
//!
//! A forwarder that blocks makes no rounds. The thread wakes it, so that it makes one if it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use dpdk::Lease;

use super::pulse::Watched;

/// Interval of renewals.
const INTERVAL: Duration = Duration::from_millis(20);

/// Time of a lease.
const TIME: Duration = Duration::from_millis(100);

/// Time after which the owner is missed.
const OWNER_PATIENCE: Duration = Duration::from_secs(2);

/// Time without a round after which a forwarder is missed. Its packets wait in a ring of the interface, which is full after
/// this time at 20,000 packets/s.
const FORWARDER_PATIENCE: Duration = Duration::from_millis(100);

/// Time between two log lines about forwarders that are missed.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A lease that is renewed as long as the owner and forwarders are there. Dropping it ends the lease.
pub struct Keeper {
    lease: Lease,
    begun: Instant,
    /// Milliseconds since then at which the owner was there last.
    owner: Arc<AtomicU64>,
    /// The forwarders that the thread watches.
    watched: Vec<Watched>,
    thread: Sender<Vec<Watched>>,
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
        Ok(Self { lease, begun, owner, watched: Vec::new(), thread: sender })
    }

    /// The owner is there.
    pub fn owner_is_there(&self) {
        self.owner.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Sets the forwarders without which nothing is to be taken.
    pub fn watch(&mut self, forwarders: Vec<Watched>) {
        let same = |(one, other): (&Watched, &Watched)| Arc::ptr_eq(&one.1, &other.1);
        if forwarders.len() == self.watched.len() && forwarders.iter().zip(&self.watched).all(same)
        {
            return;
        }
        // Only a panic ends the thread before; the lease runs out then.
        let _ = self.thread.send(forwarders.clone());
        self.watched = forwarders;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The thread may renew it once more; nothing is to be taken any more by then.
        self.lease.end();
    }
}

/// Renews the lease until the keeper is dropped.
fn renew(lease: &Lease, begun: Instant, owner: &AtomicU64, news: &Receiver<Vec<Watched>>) {
    let mut forwarders = Forwarders::default();
    loop {
        let seen = Duration::from_millis(owner.load(Ordering::Relaxed));
        let has_owner = begun.elapsed().saturating_sub(seen) < OWNER_PATIENCE;
        if forwarders.are_there(Instant::now()) && has_owner {
            lease.renew(TIME);
        }
        match news.recv_timeout(INTERVAL) {
            Ok(watched) => forwarders.watch(watched, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The forwarders that are watched.
#[derive(Default)]
struct Forwarders {
    all: Vec<Rounds>,
    /// The last log line about one that is missed.
    logged: Option<Instant>,
}

/// The rounds of a forwarder.
struct Rounds {
    of: Watched,
    /// The number at the last look.
    count: u64,
    /// The time since which it is the same.
    since: Instant,
}

impl Forwarders {
    fn watch(&mut self, watched: Vec<Watched>, now: Instant) {
        let rounds = |of: Watched| Rounds { count: of.0.rounds.get(), of, since: now };
        self.all = watched.into_iter().map(rounds).collect();
    }

    /// Returns true if each has made a round lately. Wakes those that have not since the last look.
    fn are_there(&mut self, now: Instant) -> bool {
        let mut missed = None;
        for (number, rounds) in self.all.iter_mut().enumerate() {
            let count = rounds.of.0.rounds.get();
            if count != rounds.count {
                (rounds.count, rounds.since) = (count, now);
                continue;
            }
            rounds.of.1.wake();
            if now.saturating_duration_since(rounds.since) >= FORWARDER_PATIENCE {
                missed = Some(number);
            }
        }
        missed.inspect(|&number| self.say_missed(number, now)).is_none()
    }

    fn say_missed(&mut self, forwarder: usize, now: Instant) {
        if self.logged.is_some_and(|last| now.saturating_duration_since(last) < LOG_INTERVAL) {
            return;
        }
        self.logged = Some(now);
        tracing::warn!(
            "accelerate: forwarder {forwarder} has not come to the end of a batch for {} ms, perhaps for want of a \
             processor; the kernel forwards until it does",
            FORWARDER_PATIENCE.as_millis()
        );
    }
}

#[cfg(test)]
mod tests {
    use dataplane::exchange::Exchange;

    use super::*;

    fn forwarder() -> Watched {
        (Arc::default(), Arc::new(Exchange::new(Arc::new(dpdk::Doorbell::new().unwrap()))))
    }

    #[test]
    fn a_forwarder_without_rounds_is_missed_until_it_makes_one() {
        let (one, other) = (forwarder(), forwarder());
        let (mut forwarders, begin) = (Forwarders::default(), Instant::now());
        assert!(forwarders.are_there(begin));
        forwarders.watch(vec![one.clone(), other.clone()], begin);
        let after = |ms| begin + Duration::from_millis(ms);
        assert!(forwarders.are_there(after(99)));
        one.0.rounds.add(1);
        assert!(!forwarders.are_there(after(100)));
        other.0.rounds.add(1);
        assert!(forwarders.are_there(after(150)));
        assert!(!forwarders.are_there(after(200)), "the first has made none for 100 ms");
        forwarders.watch(vec![other], after(200));
        assert!(forwarders.are_there(after(299)));
    }

    #[test]
    fn a_forwarder_that_blocks_is_woken() {
        let set = dpdk::WaitSet::new().unwrap();
        let of: Watched = (Arc::default(), Arc::new(Exchange::new(set.doorbell().clone())));
        let (mut forwarders, begin) = (Forwarders::default(), Instant::now());
        forwarders.watch(vec![of], begin);
        set.doorbell().listen();
        assert!(forwarders.are_there(begin));
        assert!(set.doorbell().ignore().control);
    }
}
