//! A token bucket in one atomic number: the time at which it is full again (the generic cell rate algorithm,
//! ITU-T I.371 annex A). Taking from it is one exchange of a word, and a full bucket is the same as an unused
//! one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Takes the tokens that arrive in a time of `cost` from a bucket that fills in a time of `depth`, all or
/// nothing. Times are of one clock, for instance TSC cycles.
///
/// # Errors
/// The time at which the bucket is full, if it holds too little.
#[inline(always)]
pub fn take(full_at: &AtomicU64, cost: u64, depth: u64, now: u64) -> Result<(), u64> {
    let taken = |full_at: u64| {
        let next = full_at.max(now).saturating_add(cost);
        (next - now <= depth).then_some(next)
    };
    full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_depth_and_fills_with_time() {
        let full_at = AtomicU64::new(0);
        let mut now = 1000;
        assert_eq!(take(&full_at, 60, 100, now), Ok(()));
        assert_eq!(take(&full_at, 60, 100, now), Err(1060));
        assert_eq!(take(&full_at, 40, 100, now), Ok(()), "what is left");
        now += 59;
        assert_eq!(take(&full_at, 60, 100, now), Err(1100));
        assert_eq!(take(&full_at, 60, 100, now + 1), Ok(()));
        assert_eq!(take(&full_at, 101, 100, now + 10_000), Err(1160), "more than it ever holds");
        assert_eq!(take(&full_at, u64::MAX, 100, now), Err(1160));
    }
}
