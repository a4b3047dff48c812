//! How long a turn of the owner may work.

use std::time::{Duration, Instant};

/// The most that a turn works before others have theirs: ten kinds of work that all have more than they can
/// do keep a question waiting for some tens of milliseconds.
const LONGEST: Duration = Duration::from_millis(4);

/// A turn that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn(Instant);

impl Turn {
    /// Begins one.
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    /// Whether another piece of work, of a fraction of a millisecond, may be begun.
    pub(super) fn has_time(self) -> bool {
        self.0.elapsed() < LONGEST
    }
}
