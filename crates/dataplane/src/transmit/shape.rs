//! A port's rate: a token bucket that all forwarders share (RFC 3290 5.1.3 and appendix A).
//!
//! The bucket is the time at which it would be full again, one atomic word. A forwarder takes a
//! quantum of bytes at a time, not those of one packet, and spends it itself, so that the word
//! moves between cores some thousand times per second at any rate; it returns its remaining bytes
//! when its queue is empty.
//!
//! A packet leaves as long as the forwarder has credit at all, and may overdraw it by less than its
//! own length, by which the next quantum is larger. In any time t a port thus sends at most `rate ·
//! t + burst` bytes, and for each forwarder a quantum and a frame more. The rate itself is exact:
//! every byte sent was taken from the bucket.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bucket;

/// The rate of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes per second, at least 1.
    pub rate: u64,
    /// Bytes at once after an idle time, at least a frame.
    pub burst: u64,
    /// Bytes counted for each frame in addition to its own, which begin at the Ethernet header and
    /// end before the FCS: 24 for the wire's (preamble, FCS, gap).
    pub overhead: u32,
}

/// As in configurations: `95000000 bit, burst 64000 bytes, overhead 24`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, overhead } = self;
        write!(f, "{} bit, burst {burst} bytes, overhead {overhead}", rate * 8)
    }
}

/// The least quantum, in bytes, where the burst is large enough: about a quarter of a full frame.
const QUANTUM_LEAST: u64 = 380;

/// Least number of quanta in a burst: if a forwarder takes one late, the bucket is not full yet,
/// and nothing is lost.
const OF_BURST: u64 = 4;

/// Quanta per second at full rate.
const QUANTA: u64 = 4000;

/// Fraction bits of [`Bucket::cost`].
const SHIFT: u32 = 16;

/// The remaining tokens of a rate, for all forwarders.
#[derive(Debug)]
pub struct Bucket {
    /// The time at which the bucket is full again, in TSC cycles.
    full_at: AtomicU64,
    /// TSC cycles for a byte, times 2^[`SHIFT`].
    cost: u64,
    /// TSC cycles for the whole burst.
    depth: u64,
    /// Bytes taken at once.
    quantum: u64,
}

impl Bucket {
    /// Creates a full bucket, with `hz` TSC cycles per second.
    pub fn new(shape: Shape, hz: u64) -> Self {
        let cycles = |bytes: u64, shift: u32| {
            let cycles = (u128::from(bytes) * u128::from(hz)) << shift;
            u64::try_from(cycles.div_ceil(u128::from(shape.rate.max(1)))).unwrap_or(u64::MAX >> 1)
        };
        let quantum = (shape.rate / QUANTA).max(QUANTUM_LEAST).min(shape.burst / OF_BURST).max(1);
        let (cost, depth) = (cycles(1, SHIFT), cycles(shape.burst, 0));
        Self { full_at: AtomicU64::new(0), cost, depth, quantum }
    }

    /// TSC cycles and their fractions.
    fn time_of(&self, bytes: u64) -> u128 {
        u128::from(self.cost) * u128::from(bytes)
    }

    /// Takes so many bytes.
    ///
    /// # Errors
    /// The time at which there will be as many, in TSC cycles.
    fn take(&self, bytes: u64, now: u64) -> Result<(), u64> {
        // Rounded up; rounded down when returned: the rate is never exceeded.
        let cost = self.time_of(bytes).div_ceil(1 << SHIFT) as u64;
        let depth = self.depth.max(cost);
        let taken = bucket::take(&self.full_at, cost, depth, now);
        taken.map_err(|full_at| (full_at + cost).saturating_sub(depth))
    }

    /// Returns unused bytes to the bucket.
    fn give_back(&self, bytes: u64) {
        let time = (self.time_of(bytes) >> SHIFT) as u64;
        let less = |full_at: u64| Some(full_at.saturating_sub(time));
        let _ = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// A forwarder's side of a bucket.
#[derive(Debug)]
pub struct Shaper {
    bucket: Arc<Bucket>,
    overhead: u32,
    /// Bytes that may be sent; below 0: bytes sent in advance.
    credit: i64,
    /// The time before which there is no quantum, in TSC cycles.
    due: u64,
}

impl Shaper {
    /// Creates a forwarder's, without credit.
    pub fn new(bucket: Arc<Bucket>, overhead: u32) -> Self {
        Self { bucket, overhead, credit: 0, due: 0 }
    }

    /// Returns true if a packet may leave now.
    #[inline]
    pub fn may_send(&mut self, now: u64) -> bool {
        if self.credit > 0 {
            return true;
        }
        if now < self.due {
            return false;
        }
        let bytes = self.bucket.quantum.max(self.credit.unsigned_abs() + 1);
        match self.bucket.take(bytes, now) {
            Ok(()) => self.credit += bytes as i64,
            Err(due) => {
                self.due = due;
                return false;
            }
        }
        true
    }

    /// Charges a frame of so many bytes that has left.
    #[inline]
    pub fn spend(&mut self, bytes: u32) {
        self.credit -= i64::from(bytes) + i64::from(self.overhead);
    }

    /// Returns the remaining credit for other forwarders: no packet waits any more.
    #[inline]
    pub fn rest(&mut self) {
        if self.credit > 0 {
            self.bucket.give_back(self.credit as u64);
            self.credit = 0;
        }
    }

    /// Returns the time at which the next packet may leave, in TSC cycles, if [`Self::may_send`]
    /// has returned false.
    #[inline]
    pub fn due(&self) -> u64 {
        self.due
    }
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cycle is a microsecond.
    const HZ: u64 = 1_000_000;

    fn shapers(shape: Shape, count: usize) -> Vec<Shaper> {
        let bucket = Arc::new(Bucket::new(shape, HZ));
        (0..count).map(|_| Shaper::new(bucket.clone(), shape.overhead)).collect()
    }

    const SLOW: Shape = Shape { rate: 250_000, burst: 10_000, overhead: 0 };

    #[test]
    fn a_shaper_sends_its_burst_and_then_its_rate() {
        let mut shaper = shapers(SLOW, 1).remove(0);
        let mut send = |now: u64| {
            let mut bytes = 0u64;
            while shaper.may_send(now) {
                shaper.spend(1000);
                bytes += 1000;
            }
            bytes
        };
        let burst = send(HZ);
        assert!((9_000..=10_000).contains(&burst), "{burst}");
        let after: u64 = (1..=1_000_000).step_by(100).map(|micros| send(HZ + micros)).sum();
        assert!((247_000..=252_000).contains(&after), "{after}");
    }

    #[test]
    fn it_says_when_the_next_packet_may_leave() {
        let mut shaper = shapers(SLOW, 1).remove(0);
        while shaper.may_send(HZ) {
            shaper.spend(1500);
        }
        let due = shaper.due();
        assert!(due > HZ && !shaper.may_send(due - 1), "{due}");
        assert!(shaper.may_send(due));
    }

    #[test]
    fn overhead_counts_as_much_as_bytes() {
        let shape = Shape { overhead: 500, ..SLOW };
        let mut shaper = shapers(shape, 1).remove(0);
        let mut packets = 0;
        while shaper.may_send(0) {
            shaper.spend(500);
            packets += 1;
        }
        assert!((9..=10).contains(&packets), "{packets}");
    }

    #[test]
    fn what_is_not_spent_goes_back() {
        let mut two = shapers(SLOW, 2);
        assert!(two[0].may_send(HZ));
        two[0].spend(100);
        two[0].rest();
        let mut bytes = 100;
        while two[1].may_send(HZ) {
            two[1].spend(100);
            bytes += 100;
        }
        // Less than a quantum stays in the bucket.
        assert!((9_500..=10_000).contains(&bytes), "{bytes}");
    }

    proptest! {
        /// In every time t at most rate · t + burst, and a quantum and a frame for each forwarder; and with
        /// enough to send not less than the rate.
        #[test]
        fn the_rate_holds_for_any_number_of_forwarders_and_any_frames(
            count in 1usize..5,
            rate in 20_000u64..2_000_000_000,
            burst in 20_000u64..200_000,
            frames in proptest::collection::vec((60u32..1515, 0u64..3000, 0usize..5, any::<bool>()), 300),
        ) {
            let shape = Shape { rate, burst, overhead: 24 };
            let mut shapers = shapers(shape, count);
            let (mut now, mut sent) = (HZ, 0u64);
            for (bytes, pause, at, empty) in frames {
                now += pause;
                let shaper = &mut shapers[at % count];
                for _ in 0..200 {
                    if shaper.may_send(now) {
                        shaper.spend(bytes);
                        sent += u64::from(bytes) + 24;
                    }
                }
                if empty {
                    shaper.rest();
                }
                let quantum = shapers[0].bucket.quantum;
                let granted = u128::from(rate) * u128::from(now - HZ) / u128::from(HZ);
                let slack = count as u64 * (quantum + 1538);
                prop_assert!(u128::from(sent) <= granted + u128::from(burst + slack));
            }
        }
    }
}
