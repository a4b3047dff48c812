//! Keeps a flood of bad input from becoming a flood of log lines.

use std::time::{Duration, Instant};

/// Lines in a row.
const BURST: u32 = 20;

/// Time for which no more lines are written after that.
const PAUSE: Duration = Duration::from_secs(10);

/// Lets [`BURST`] lines through in [`PAUSE`], and counts the rest.
#[derive(Debug, Default)]
pub struct Limiter {
    since: Option<Instant>,
    said: u32,
    suppressed: u64,
}

impl Limiter {
    /// Returns true if another line may be written now; if not, it is counted.
    pub fn allows(&mut self, now: Instant) -> bool {
        if self.said == 0 {
            self.since = Some(now);
        }
        if self.said < BURST {
            self.said += 1;
            return true;
        }
        self.suppressed += 1;
        false
    }

    /// Returns the number of suppressed lines, once the pause is over.
    pub fn suppressed(&mut self, now: Instant) -> Option<u64> {
        self.since.filter(|&since| now.duration_since(since) >= PAUSE)?;
        let Self { suppressed, .. } = std::mem::take(self);
        (suppressed > 0).then_some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let start = Instant::now();
        let mut limiter = Limiter::default();
        let allowed = (0..100).filter(|_| limiter.allows(start)).count();
        assert_eq!(allowed, BURST as usize);
        assert_eq!(limiter.suppressed(start + PAUSE / 2), None);
        assert_eq!(limiter.suppressed(start + PAUSE), Some(80));
        assert!(limiter.allows(start + PAUSE), "the next flood is heard of again");
        assert_eq!(limiter.suppressed(start + PAUSE * 3), None, "nothing was kept back");
    }
}
