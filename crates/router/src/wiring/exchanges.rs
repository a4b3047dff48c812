//! The ways to all running forwarders: each is given something, or none is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use dataplane::exchange::{Exchange, Replacement};

use super::super::pulse::{self, PATIENCE};

/// The longest that is waited for what forwarders say of their pauses.
const PAUSES: Duration = Duration::from_millis(200);

/// At first a forwarder is looked at often: between the parts of a change packets may wait.
const SOON: Duration = Duration::from_millis(2);

/// The longest that a forwarder is waited for when the router is to end. One that is not in a step for long
/// needs a thousandth of it.
const HURRIED: Duration = Duration::from_millis(250);

/// Says that forwarders are not to be waited for any longer than [`HURRIED`]. Clones are of one.
#[derive(Clone, Default)]
pub struct Hurry(Arc<AtomicBool>);

impl Hurry {
    /// From now on.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn patience(&self, else_: Duration) -> Duration {
        if self.0.load(Ordering::Relaxed) { HURRIED.min(else_) } else { else_ }
    }
}

/// The ways to the forwarders, by their numbers.
pub struct Exchanges(Vec<Arc<Exchange>>, Hurry);

impl Exchanges {
    /// To these.
    pub fn new(forwarders: Vec<Arc<Exchange>>) -> Self {
        Self(forwarders, Hurry::default())
    }

    /// Returns the signal that shortens waits.
    pub fn hurry(&self) -> Hurry {
        self.1.clone()
    }

    /// To these from now on.
    pub fn set<'a>(&mut self, forwarders: impl Iterator<Item = &'a Arc<Exchange>>) {
        self.0 = forwarders.cloned().collect();
    }

    /// The number of forwarders.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces a part of each forwarder and returns the replaced parts; or nothing is exchanged.
    pub async fn exchange(&self, new: Vec<Replacement>) -> Result<Vec<Replacement>> {
        for (exchange, new) in self.0.iter().zip(new) {
            exchange.put(new);
        }
        self.wait(PATIENCE).await;
        let outcomes: Vec<_> = self.0.iter().map(|exchange| exchange.take()).collect();
        let Some(late) = outcomes.iter().position(|outcome| !matches!(outcome, Some(Ok(_)))) else {
            return Ok(outcomes.into_iter().flatten().flatten().collect());
        };
        for (exchange, outcome) in self.0.iter().zip(outcomes) {
            if let Some(Ok(old)) = outcome {
                exchange.put(old);
            }
        }
        self.wait(PATIENCE).await;
        // A refused part is dropped: it may hold a device open. A late forwarder still gets its former part
        // back, in its time.
        self.0.iter().filter(|late| !late.is_waiting()).for_each(|exchange| drop(exchange.take()));
        Err(pulse::stuck(late))
    }

    /// Gives some forwarders, by their places, a part back. One that is late takes it in its time.
    pub async fn give(&self, parts: impl IntoIterator<Item = Option<Replacement>>) {
        let mut to = Vec::new();
        for (exchange, part) in self.0.iter().zip(parts) {
            if let Some(part) = part {
                exchange.put(part);
                to.push(exchange);
            }
        }
        self.wait(PATIENCE).await;
        to.iter()
            .filter(|exchange| !exchange.is_waiting())
            .for_each(|exchange| drop(exchange.take()));
    }

    /// As [`Self::exchange`] for forwarders that receive nothing: no step can keep them from it.
    pub async fn exchange_idle(&self, new: Vec<Replacement>) -> Vec<Replacement> {
        for (exchange, new) in self.0.iter().zip(new) {
            exchange.put(new);
        }
        let waiting = || self.0.iter().any(|exchange| exchange.is_waiting());
        while waiting() {
            self.wait(PATIENCE).await;
        }
        self.0.iter().filter_map(|exchange| exchange.take()?.ok()).collect()
    }

    async fn wait(&self, patience: Duration) {
        let begin = Instant::now();
        let waiting = || self.0.iter().any(|exchange| exchange.is_waiting());
        while waiting() && begin.elapsed() < self.1.patience(patience) {
            if begin.elapsed() < SOON {
                std::thread::sleep(Duration::from_micros(10));
            } else {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// The longest pause of a forwarder, if all say it soon.
    pub async fn pause(&self) -> Option<Duration> {
        let deadline = Instant::now() + PAUSES;
        loop {
            let pauses = self.0.iter().map(|exchange| exchange.pause());
            if let Some(all) = pauses.collect::<Option<Vec<u64>>>() {
                let cycles = all.into_iter().max()?;
                return Some(Duration::from_secs_f64(cycles as f64 / dpdk::tsc_hz() as f64));
            }
            if Instant::now() >= deadline {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
