//! Statistics of received packets: loss, duplicates, order, delay.
//!
//! The sequence numbers of the last [`WINDOW`] packets are recorded in a bitmap, one bit each, so
//! that duplicates are distinguished from late packets. An older packet counts as late, and cannot
//! be recognised as a duplicate.
//!
//! Reordering is that of RFC 4737, 3.3: a packet is reordered if a later one has arrived before it.
//! Jitter is the delay variation between consecutive packets as received (RFC 3393), absolute.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::Bin;

/// Number of sequence numbers recorded.
const WINDOW: u64 = 1 << 20;
/// Longest delay that is measured, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// The statistics of a receiver.
pub struct Tracker {
    seen: Vec<u64>,
    /// The highest number that arrived, plus one.
    next: u64,
    /// Different packets.
    pub packets: u64,
    /// Bytes of all packets, FCS included.
    pub bytes: u64,
    /// Packets that had arrived before.
    pub duplicates: u64,
    /// Packets overtaken by a later one.
    pub reordered: u64,
    delay: Histogram<u64>,
    jitter: Histogram<u64>,
    last_delay: Option<u64>,
    /// Clock readings of the first and the last arrival.
    pub span: Option<(u64, u64)>,
}

/// A distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq)]
pub struct Distribution {
    /// The smallest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The largest.
    pub max: u64,
}

impl Tracker {
    /// Creates empty statistics.
    pub fn new() -> Self {
        let histogram =
            || Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds that the crate allows");
        Self {
            seen: vec![0; (WINDOW / 64) as usize],
            next: 0,
            packets: 0,
            bytes: 0,
            duplicates: 0,
            reordered: 0,
            delay: histogram(),
            jitter: histogram(),
            last_delay: None,
            span: None,
        }
    }

    /// Records a packet of this many bytes that arrived at a clock reading with this delay in
    /// nanoseconds.
    pub fn arrived(&mut self, sequence: u64, bytes: usize, now: u64, delay: u64) {
        self.bytes += bytes as u64;
        self.span = Some((self.span.map_or(now, |(first, _)| first), now));
        if !self.is_new(sequence) {
            self.duplicates += 1;
            return;
        }
        self.packets += 1;
        self.delay.saturating_record(delay);
        if let Some(last) = self.last_delay.replace(delay) {
            self.jitter.saturating_record(delay.abs_diff(last));
        }
    }

    /// Marks a number as seen; returns false if it was already.
    fn is_new(&mut self, sequence: u64) -> bool {
        if sequence >= self.next {
            self.forget(self.next, sequence);
            self.next = sequence + 1;
            return self.mark(sequence);
        }
        if self.next - sequence > WINDOW {
            self.reordered += 1;
            return true;
        }
        let new = self.mark(sequence);
        self.reordered += u64::from(new);
        new
    }

    /// Clears the places of numbers that leave the window, for those from `first` to `last`.
    fn forget(&mut self, first: u64, last: u64) {
        if last - first >= WINDOW {
            self.seen.fill(0);
            return;
        }
        for sequence in first..=last {
            let at = sequence % WINDOW;
            self.seen[(at / 64) as usize] &= !(1 << (at % 64));
        }
    }

    fn mark(&mut self, sequence: u64) -> bool {
        let at = sequence % WINDOW;
        let (word, bit) = (&mut self.seen[(at / 64) as usize], 1 << (at % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Returns the delays of all packets.
    pub fn delay(&self) -> Distribution {
        summary(&self.delay)
    }

    /// Returns the differences between the delays of consecutively received packets.
    pub fn jitter(&self) -> Distribution {
        summary(&self.jitter)
    }

    /// Returns the delays' histogram: upper bounds in nanoseconds, doubling, each with its count.
    pub fn histogram(&self) -> Vec<Bin> {
        let steps = self.delay.iter_log(100, 2.0);
        steps
            .map(|step| Bin {
                to_ns: step.value_iterated_to(),
                packets: step.count_since_last_iteration(),
            })
            .collect()
    }
}

fn summary(histogram: &Histogram<u64>) -> Distribution {
    if histogram.is_empty() {
        return Distribution::default();
    }
    Distribution {
        min: histogram.min(),
        mean: histogram.mean(),
        p50: histogram.value_at_quantile(0.5),
        p99: histogram.value_at_quantile(0.99),
        p999: histogram.value_at_quantile(0.999),
        max: histogram.max(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(sequences: impl IntoIterator<Item = u64>) -> Tracker {
        let mut tracker = Tracker::new();
        for (now, sequence) in (0..).zip(sequences) {
            tracker.arrived(sequence, 64, now, 1000);
        }
        tracker
    }

    fn account(tracker: &Tracker) -> (u64, u64, u64) {
        (tracker.packets, tracker.duplicates, tracker.reordered)
    }

    #[test]
    fn in_order_nothing_is_wrong() {
        let tracker = track(0..3 * WINDOW);
        assert_eq!(account(&tracker), (3 * WINDOW, 0, 0));
        assert_eq!(tracker.bytes, 3 * WINDOW * 64);
    }

    #[test]
    fn late_and_double_packets_are_told_apart() {
        assert_eq!(account(&track([0, 2, 1, 3])), (4, 0, 1));
        assert_eq!(account(&track([0, 1, 1, 2, 0])), (3, 2, 0));
        assert_eq!(account(&track([5, 4, 4, 6])), (3, 1, 1));
        assert_eq!(account(&track([0, 3, 1, 2])), (4, 0, 2), "1 and 2 came after 3");
    }

    #[test]
    fn gaps_wider_than_the_window_forget_everything() {
        let far = 5 * WINDOW + 3;
        assert_eq!(account(&track([0, 1, far, far, far - 1])), (4, 1, 1));
        assert_eq!(account(&track([far, 0])), (2, 0, 1), "too old to know");
    }

    #[test]
    fn delays_are_summed_up() {
        let mut tracker = Tracker::new();
        assert_eq!(tracker.delay(), Distribution::default());
        for (sequence, delay) in [(0, 1000), (1, 3000), (2, 2000)] {
            tracker.arrived(sequence, 64, 10 + sequence, delay);
        }
        let delay = tracker.delay();
        assert_eq!((delay.min, delay.mean.round()), (1000, 2000.0));
        assert!((2000..2010).contains(&delay.p50) && (3000..3010).contains(&delay.max));
        let jitter = tracker.jitter();
        assert!((1000..1005).contains(&jitter.min) && (2000..2010).contains(&jitter.max));
        assert_eq!(tracker.span, Some((10, 12)));
        assert_eq!(tracker.histogram().iter().map(|bin| bin.packets).sum::<u64>(), 3);
    }
}
