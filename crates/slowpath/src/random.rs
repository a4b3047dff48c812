//! Random numbers that spread timers. Not for secrets.

use std::time::Duration;

/// A generator of random numbers, reproducible by its seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// Returns a random time between zero and `max`.
    pub(crate) fn up_to(&mut self, max: Duration) -> Duration {
        max.mul_f64(self.0.f64())
    }
}
