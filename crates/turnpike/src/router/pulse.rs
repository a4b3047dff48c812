//! Whether forwarders go round: asked from a thread that may wait, before one that may not counts on it.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use dataplane::counters::ForwarderCounters;

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

/// The rounds of forwarders.
pub struct Pulse(Vec<Arc<ForwarderCounters>>);

impl Pulse {
    /// Of the forwarders that count here, by their numbers.
    pub fn new(forwarders: impl Iterator<Item = Arc<ForwarderCounters>>) -> Self {
        Self(forwarders.collect())
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
        let rounds: Vec<u64> = self.0.iter().map(|counters| counters.rounds.get()).collect();
        for (number, (counters, before)) in self.0.iter().zip(rounds).enumerate() {
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
        assert!(Pulse::new([turning.clone()].into_iter()).wait().is_ok());
        let both = Pulse::new([turning, still].into_iter());
        let error = both.wait_for(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("forwarder "), "{error}");
        let error = both.wait_for(Duration::from_millis(50)).unwrap_err().to_string();
        assert!(error.starts_with("forwarder 1 has not come to the end of a batch"), "{error}");
        drop(stop);
        thread.join().unwrap();
    }
}
