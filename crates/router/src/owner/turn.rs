//! Time limit of a turn of the owner.

use std::time::{Duration, Instant};

/// Time limit of a turn: ten kinds of work, all with more than they can do, delay a question by some tens of
/// milliseconds.
const LONGEST: Duration = Duration::from_millis(4);

/// A turn that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn(Instant);

impl Turn {
    /// Begins one.
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    /// Returns true if another piece of work, of a fraction of a millisecond, may begin.
    pub(super) fn has_time(self) -> bool {
        self.0.elapsed() < LONGEST
    }
}
