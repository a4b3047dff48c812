//! Checks that forwarders complete rounds: on a thread that may wait, before one that may not relies on it.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use dataplane::counters::ForwarderCounters;
use dataplane::exchange::Exchange;

/// The longest that a forwarder is waited for: a step may run for as long as its budget says.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A forwarder that was waited for long enough.
pub fn stuck(forwarder: usize) -> Error {
    anyhow::anyhow!(
        "forwarder {forwarder} has not come to the end of a batch for {} s; see turnpike show steps for a \
         step that does not end, and the log",
        PATIENCE.as_secs()
    )
}

/// A forwarder, by what shows that it makes rounds and what wakes it.
pub type Watched = (Arc<ForwarderCounters>, Arc<Exchange>);

/// The rounds of forwarders. One that blocks is woken to make one.
pub struct Pulse(Vec<Watched>);

impl Pulse {
    /// Of the forwarders that count here, by their numbers.
    pub fn new(forwarders: impl Iterator<Item = Watched>) -> Self {
        Self(forwarders.collect())
    }

    /// Has each forwarder make a round now.
    pub fn wake(&self) {
        self.0.iter().for_each(|(_, exchange)| exchange.wake());
    }

    /// Waits until each forwarder has come to the end of a round.
    ///
    /// # Errors
    /// One has not for [`PATIENCE`].
    pub fn wait(&self) -> Result<()> {
        self.wait_for(PATIENCE)
    }

    fn wait_for(&self, patience: Duration) -> Result<()> {
        let begin = Instant::now();
        let rounds: Vec<u64> = self.0.iter().map(|(counters, _)| counters.rounds.get()).collect();
        self.wake();
        for (number, ((counters, _), before)) in self.0.iter().zip(rounds).enumerate() {
            while counters.rounds.get() == before {
                if begin.elapsed() > patience {
                    return Err(stuck(number));
                }
                sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarder_that_blocks_is_woken() {
        let set = dpdk::WaitSet::new().unwrap();
        let exchange = Arc::new(Exchange::new(set.doorbell().clone()));
        let counters = Arc::<ForwarderCounters>::default();
        let pulse = Pulse::new([(counters.clone(), exchange)].into_iter());
        set.doorbell().listen();
        let thread = std::thread::spawn(move || {
            set.wait(None);
            counters.rounds.add(1);
        });
        assert!(pulse.wait().is_ok());
        thread.join().unwrap();
    }

    #[test]
    fn a_forwarder_that_stands_still_is_named() {
        let (turning, still) = (Arc::<ForwarderCounters>::default(), Arc::default());
        let turn = turning.clone();
        let stop = Arc::new(());
        let alive = Arc::downgrade(&stop);
        let thread = std::thread::spawn(move || {
            while alive.upgrade().is_some() {
                turn.rounds.add(1);
                sleep(Duration::from_micros(50));
            }
        });
        let exchange = || Arc::new(Exchange::new(Arc::new(dpdk::Doorbell::new().unwrap())));
        assert!(Pulse::new([(turning.clone(), exchange())].into_iter()).wait().is_ok());
        let both = Pulse::new([(turning, exchange()), (still, exchange())].into_iter());
        let error = both.wait_for(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("forwarder "), "{error}");
        let error = both.wait_for(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.starts_with("forwarder 1 has not come to the end of a batch"), "{error}");
        drop(stop);
        thread.join().unwrap();
    }
}
