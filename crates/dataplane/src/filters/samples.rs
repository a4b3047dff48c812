//! Samples of packets for the log: a few of each filter, read by the thread that writes the log.
//!
//! Forwarders put packets into a bounded queue, at a bounded rate, without waiting; further packets are counted
//! by their rule and not shown.

use acl::{Family, Key};
use crossbeam_queue::ArrayQueue;

use super::police::{Colour, Police, Policer, SourceKey};

/// Samples of a filter per second, and at once.
const SAMPLES_PER_SECOND: u64 = 10;

/// A packet that matched a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The rule's index.
    pub rule: u32,
    /// The packet's family.
    pub family: Family,
    /// Its fields.
    pub key: Key,
    /// True if it exceeded the rule's rate.
    pub is_policed: bool,
}

pub(super) struct Samples {
    rate: Policer,
    queue: ArrayQueue<Sample>,
}

impl Samples {
    pub fn new(tsc_hz: u64) -> Self {
        let rate = SAMPLES_PER_SECOND;
        let police = Police { rate, burst: rate, bytes: false, per_source: None, colours: None };
        Self { rate: Policer::new(police, tsc_hz, 0), queue: ArrayQueue::new(2 * rate as usize) }
    }

    /// Keeps the packet that `sample` makes, if the rate allows one at `now` in TSC cycles.
    #[inline]
    pub fn offer(&self, now: u64, sample: impl FnOnce() -> Sample) {
        if self.rate.admits(SourceKey::Ip4(0), 0, now) == Colour::Green {
            // A full queue: the log has no reader.
            let _ = self.queue.push(sample());
        }
    }

    pub fn take(&self) -> Option<Sample> {
        self.queue.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_packets_a_second_are_kept() {
        let samples = Samples::new(1_000_000);
        let sample =
            |rule| Sample { rule, family: Family::Ip4, key: Key::default(), is_policed: false };
        // A flood of a tenth of a second.
        (0..100_000).for_each(|rule| samples.offer(rule.into(), || sample(rule)));
        let kept: Vec<u32> =
            std::iter::from_fn(|| samples.take()).map(|sample| sample.rule).collect();
        assert_eq!(kept[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(kept.len() <= 11, "{kept:?}");
        // No reader for a minute: the queue holds the oldest ones.
        (0..60)
            .for_each(|second| samples.offer(1_000_000 * (second + 10), || sample(second as u32)));
        assert_eq!(std::iter::from_fn(|| samples.take()).count(), 20);
    }
}
