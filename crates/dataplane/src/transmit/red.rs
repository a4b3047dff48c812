//! Random Early Detection (Floyd and Jacobson 1993; RFC 7567), with ECN (RFC 3168).
//!
//! An exponentially weighted average of the length decides on each arriving packet. Below `least`
//! all pass, from `most` on none; between them the probability rises from 0 to `probability`,
//! corrected by the number of packets since the last selection, so that selections are spread
//! evenly. A selected packet of an ECN-capable transport is marked in place of being dropped, but
//! not from `most` on (RFC 3168 7).
//!
//! While the queue is empty no packet arrives that could lower the average: the first packet after
//! an idle time lowers it by as many small packets as the link could have sent meanwhile.

use super::lane::{Cause, Lane, Packet, Waiting};

/// The weight of the present length in the average: the paper's 0.002.
const WEIGHT: f64 = 0.002;

/// Settings of RED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedConfig {
    /// Average length in packets below which none is dropped.
    pub least: u32,
    /// Average length in packets from which on all are dropped, above `least`.
    pub most: u32,
    /// The probability just below `most`, in percent, 1 to 100.
    pub percent: u8,
    /// True if packets of ECN-capable transports are marked.
    pub ecn: bool,
}

/// A queue with RED.
#[derive(Debug)]
pub struct Red<P> {
    lane: Lane<P>,
    choice: Choice,
    ecn: bool,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// Selected at random: marked or dropped.
    Chosen,
    /// Dropped in any case.
    Forced,
}

/// Thresholds of the decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Thresholds {
    /// Average length below which all pass.
    pub least: f64,
    /// Average length up to which the probability rises to `probability`.
    pub most: f64,
    /// From 0 to 1.
    pub probability: f64,
    /// Average length from which none passes; if it is above `most`, the probability rises from there to 1.
    pub all: f64,
    /// The weight of the present length in the average.
    pub weight: f64,
}

/// The state of the decisions, apart from the packets.
#[derive(Debug)]
pub(crate) struct Choice {
    thresholds: Thresholds,
    average: f64,
    /// Packets since the last selection; `None` while the average is below `least`.
    count: Option<u32>,
    /// The time at which the queue became empty, in TSC cycles.
    idle_since: Option<u64>,
    /// TSC cycles for sending a small packet.
    packet_time: u64,
    random: fastrand::Rng,
}

impl<P: Packet> Red<P> {
    /// Creates a queue of at most so many packets, for a link that sends a small packet in
    /// `packet_time` TSC cycles.
    pub fn new(length: usize, config: RedConfig, packet_time: u64, seed: u64) -> Self {
        let thresholds = Thresholds {
            least: config.least.into(),
            most: config.most.into(),
            probability: f64::from(config.percent) / 100.0,
            all: config.most.into(),
            weight: WEIGHT,
        };
        let choice = Choice::new(thresholds, packet_time, seed);
        Self { lane: Lane::new(length), choice, ecn: config.ecn }
    }

    /// Adds a packet, or drops it.
    pub fn offer(&mut self, mut waiting: Waiting<P>, now: u64, drop: &mut impl FnMut(P, Cause)) {
        match self.choice.judge(self.lane.len(), now) {
            Verdict::Pass => (),
            Verdict::Chosen if self.ecn && waiting.packet.mark() => waiting.marked = true,
            Verdict::Chosen | Verdict::Forced => return drop(waiting.packet, Cause::Red),
        }
        if let Err(packet) = self.lane.push(waiting) {
            drop(packet, Cause::Full);
        }
    }

    /// Takes the packet at the front.
    pub fn take(&mut self, now: u64) -> Option<Waiting<P>> {
        let waiting = self.lane.pop()?;
        if self.lane.is_empty() {
            self.choice.emptied(now);
        }
        Some(waiting)
    }

    /// Returns the packets.
    pub fn lane(&self) -> &Lane<P> {
        &self.lane
    }
}

impl Choice {
    /// With an average of 0. While the queue is empty, the average falls as with a packet every `packet_time` TSC cycles.
    pub(crate) fn new(thresholds: Thresholds, packet_time: u64, seed: u64) -> Self {
        Self {
            thresholds,
            average: 0.0,
            count: None,
            idle_since: None,
            packet_time: packet_time.max(1),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Begins an idle time.
    pub(crate) fn emptied(&mut self, now: u64) {
        self.idle_since = Some(now);
    }

    /// Continues with the average of another.
    pub(crate) fn continue_from(&mut self, other: &Self) {
        self.average = other.average;
        self.idle_since = other.idle_since;
    }

    /// Decides on a packet that arrives at a queue of this length.
    pub(crate) fn judge(&mut self, length: usize, now: u64) -> Verdict {
        let Thresholds { least, most, probability, all, weight } = self.thresholds;
        match self.idle_since.take() {
            Some(since) if length == 0 => {
                let missed = now.saturating_sub(since) / self.packet_time;
                let missed = i32::try_from(missed).unwrap_or(i32::MAX);
                self.average *= (1.0 - weight).powi(missed);
            }
            _ => self.average += weight * (length as f64 - self.average),
        }
        if self.average < least {
            self.count = None;
            return Verdict::Pass;
        }
        if self.average >= all {
            self.count = Some(0);
            return Verdict::Forced;
        }
        let count = self.count.map_or(0, |count| count.saturating_add(1));
        let base = if self.average < most {
            probability * (self.average - least) / (most - least)
        } else {
            probability + (1.0 - probability) * (self.average - most) / (all - most)
        };
        let rest = 1.0 - f64::from(count) * base;
        let chosen = rest <= 0.0 || self.random.f64() < base / rest;
        self.count = Some(if chosen { 0 } else { count });
        if chosen { Verdict::Chosen } else { Verdict::Pass }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::{Numbered, numbered};
    use super::*;

    const CONFIG: RedConfig = RedConfig { least: 20, most: 60, percent: 10, ecn: false };

    fn red(config: RedConfig) -> Red<Numbered> {
        Red::new(100, config, 10, 42)
    }

    /// The average of the paper's detailed algorithm, one packet at a time.
    fn average_of(lengths: impl Iterator<Item = usize>) -> f64 {
        lengths.fold(0.0, |average, length| (1.0 - WEIGHT) * average + WEIGHT * length as f64)
    }

    #[test]
    fn a_short_burst_passes_whole() {
        let mut red = red(CONFIG);
        let mut dropped = 0;
        for number in 0..100 {
            red.offer(Waiting::new(numbered(number, 60), 0), 0, &mut |_, _| dropped += 1);
        }
        assert_eq!((red.lane().len(), dropped), (100, 0), "the average lags behind");
        let expected = average_of(0..100);
        assert!((red.choice.average - expected).abs() < 1e-9, "{}", red.choice.average);
        let mut causes = Vec::new();
        red.offer(Waiting::new(numbered(100, 60), 0), 0, &mut |_, cause| causes.push(cause));
        assert_eq!(causes, [Cause::Full]);
    }

    /// The paper, section 7: with the correction by `count`, which is 1 for the first packet after
    /// a selection, the gaps between selections are uniform from 1 to 1/pb - 1, so their mean is
    /// half of 1/pb.
    #[test]
    fn choices_come_with_the_papers_probability_and_evenly() {
        let mut red = red(CONFIG);
        let (mut gaps, mut gap, mut longest) = (0u64, 0u64, 0u64);
        for _ in 0..200_000 {
            // Half way from `least` to `most`: pb is 0.05.
            red.choice.average = 40.0;
            gap += 1;
            if red.choice.judge(40, 0) == Verdict::Chosen {
                (gaps, longest) = (gaps + 1, longest.max(gap));
                gap = 0;
            }
        }
        let mean = 200_000.0 / gaps as f64;
        assert!((mean - 10.0).abs() < 0.3, "a choice every {mean} packets");
        assert_eq!(longest, 19);
    }

    #[test]
    fn above_the_upper_threshold_everything_is_dropped_whatever_ecn_says() {
        let mut red = red(RedConfig { ecn: true, ..CONFIG });
        red.choice.average = 70.0;
        let ect = Numbered { ect: true, ..numbered(1, 60) };
        let mut causes = Vec::new();
        for _ in 0..10 {
            red.offer(Waiting::new(ect.clone(), 0), 0, &mut |_, cause| causes.push(cause));
        }
        assert_eq!((causes, red.lane().len()), (vec![Cause::Red; 10], 0));
    }

    #[test]
    fn chosen_packets_of_ecn_capable_transports_are_marked_and_others_dropped() {
        for ect in [true, false] {
            let mut red = red(RedConfig { ecn: true, ..CONFIG });
            let (mut dropped, mut marked) = (0, 0);
            for number in 0..10_000 {
                red.choice.average = 40.0;
                let packet = Numbered { ect, ..numbered(number, 60) };
                red.offer(Waiting::new(packet, 0), 0, &mut |_, _| dropped += 1);
                marked += red.take(0).map_or(0, |waiting| u32::from(waiting.marked));
            }
            let (some, none) = if ect { (marked, dropped) } else { (dropped, marked) };
            assert!((800..1100).contains(&some) && none == 0, "ect {ect}: {some}, {none}");
        }
    }

    #[test]
    fn an_idle_time_lowers_the_average_as_the_packets_that_did_not_come_would_have() {
        let mut red = red(CONFIG);
        red.choice.average = 50.0;
        red.offer(Waiting::new(numbered(0, 60), 0), 0, &mut |_, _| ());
        let before = red.choice.average;
        assert!(red.take(1000).is_some());
        // 1,000 cycles later 100 small packets would have left.
        red.choice.judge(0, 2000);
        let expected = before * (1.0 - WEIGHT).powi(100);
        assert!((red.choice.average - expected).abs() < 1e-9);
    }
}
