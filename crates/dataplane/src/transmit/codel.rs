//! CoDel, controlled delay (RFC 8289), with ECN (RFC 3168).
//!
//! A queue is too long when the time that packets spend in it has been above `target` for a whole
//! `interval`. Then packets are dropped (marked, if their transport is ECN-capable) when they
//! leave, at intervals that shrink with the square root of their number, until the time is below
//! the target again. The functions have the names of the pseudo code in RFC 8289 5.

use super::FULL_FRAME;
use super::lane::{Cause, Lane, Packet, Waiting};

/// Settings of CoDel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelConfig {
    /// The acceptable standing delay in the queue, in microseconds (RFC 8289 3.2: 5 ms).
    pub target_us: u32,
    /// The longest round-trip time of the traffic, in microseconds (RFC 8289 3.2: 100 ms).
    pub interval_us: u32,
    /// True if packets of ECN-capable transports are marked.
    pub ecn: bool,
}

impl Default for CodelConfig {
    fn default() -> Self {
        Self { target_us: 5_000, interval_us: 100_000, ecn: true }
    }
}

/// Bytes that may always wait (RFC 8289 5.4, `maxpacket`).
const MAXPACKET: u64 = FULL_FRAME as u64;

/// A queue with CoDel.
#[derive(Debug)]
pub struct Codel<P> {
    lane: Lane<P>,
    law: Law,
    ecn: bool,
}

/// The state machine, apart from the packets. All times are in TSC cycles.
#[derive(Debug)]
struct Law {
    target: u64,
    interval: u64,
    /// The time at which the delay will have been above the target for an interval; `None` if it is
    /// not above.
    first_above_time: Option<u64>,
    drop_next: u64,
    count: u32,
    last_count: u32,
    dropping: bool,
}

impl<P: Packet> Codel<P> {
    /// Creates a queue of at most so many packets, with `hz` TSC cycles per second.
    pub fn new(length: usize, config: CodelConfig, hz: u64) -> Self {
        let cycles = |micros: u32| (u128::from(micros) * u128::from(hz) / 1_000_000) as u64;
        let law = Law {
            target: cycles(config.target_us),
            interval: cycles(config.interval_us).max(1),
            first_above_time: None,
            drop_next: 0,
            count: 0,
            last_count: 0,
            dropping: false,
        };
        Self { lane: Lane::new(length), law, ecn: config.ecn }
    }

    /// Adds a packet, or drops it.
    pub fn offer(&mut self, waiting: Waiting<P>, drop: &mut impl FnMut(P, Cause)) {
        if let Err(packet) = self.lane.push(waiting) {
            drop(packet, Cause::Full);
        }
    }

    /// Takes the next packet to leave; earlier ones selected by CoDel are dropped.
    pub fn take(&mut self, now: u64, drop: &mut impl FnMut(P, Cause)) -> Option<Waiting<P>> {
        let (mut next, mut ok_to_drop) = self.dodequeue(now);
        if self.law.dropping {
            if !ok_to_drop {
                self.law.dropping = false;
            }
            while self.law.dropping && now >= self.law.drop_next {
                self.law.count = self.law.count.saturating_add(1);
                if self.mark(&mut next) {
                    self.law.schedule(self.law.drop_next);
                    return next;
                }
                if let Some(waiting) = next.take() {
                    drop(waiting.packet, Cause::Codel);
                }
                (next, ok_to_drop) = self.dodequeue(now);
                if ok_to_drop {
                    self.law.schedule(self.law.drop_next);
                } else {
                    self.law.dropping = false;
                }
            }
        } else if ok_to_drop {
            if !self.mark(&mut next) {
                if let Some(waiting) = next.take() {
                    drop(waiting.packet, Cause::Codel);
                }
                next = self.dodequeue(now).0;
            }
            self.law.begin_dropping(now);
        }
        next
    }

    /// Returns the packets.
    pub fn lane(&self) -> &Lane<P> {
        &self.lane
    }

    fn mark(&self, next: &mut Option<Waiting<P>>) -> bool {
        let Some(waiting) = next else { return false };
        waiting.marked |= self.ecn && waiting.packet.mark();
        waiting.marked
    }

    /// Returns the packet at the front, and true if its delay permits a drop.
    fn dodequeue(&mut self, now: u64) -> (Option<Waiting<P>>, bool) {
        let Some(waiting) = self.lane.pop() else {
            self.law.first_above_time = None;
            return (None, false);
        };
        let sojourn_time = now.saturating_sub(waiting.since);
        let ok_to_drop = self.law.is_too_long(sojourn_time, self.lane.bytes(), now);
        (Some(waiting), ok_to_drop)
    }
}

impl Law {
    fn is_too_long(&mut self, sojourn_time: u64, bytes: u64, now: u64) -> bool {
        if sojourn_time < self.target || bytes <= MAXPACKET {
            self.first_above_time = None;
            return false;
        }
        let first = *self.first_above_time.get_or_insert(now + self.interval);
        now >= first
    }

    /// Makes the first drop of a dropping state. A state that begins soon after another starts near
    /// the other's last rate.
    fn begin_dropping(&mut self, now: u64) {
        self.dropping = true;
        let delta = self.count.saturating_sub(self.last_count);
        let is_soon = now.saturating_sub(self.drop_next) < 16 * self.interval;
        self.count = if delta > 1 && is_soon { delta } else { 1 };
        self.last_count = self.count;
        self.schedule(now);
    }

    /// The control law: the next drop is an interval, divided by the square root of their number,
    /// after `t`.
    fn schedule(&mut self, t: u64) {
        self.drop_next = t + (self.interval as f64 / f64::from(self.count).sqrt()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::{Numbered, numbered};
    use super::*;

    /// A cycle is a microsecond.
    const HZ: u64 = 1_000_000;
    const MS: u64 = 1000;

    fn codel(ecn: bool) -> Codel<Numbered> {
        Codel::new(10_000, CodelConfig { ecn, ..CodelConfig::default() }, HZ)
    }

    fn fill(codel: &mut Codel<Numbered>, count: u64, ect: bool) {
        for number in 0..count {
            let packet = Numbered { ect, ..numbered(number, 1514) };
            codel.offer(Waiting::new(packet, 0), &mut |_, _| panic!("it has room"));
        }
    }

    /// Takes a packet each millisecond; returns the times at which packets were dropped, in
    /// milliseconds.
    fn drops(codel: &mut Codel<Numbered>, millis: std::ops::Range<u64>) -> Vec<u64> {
        let mut drops = Vec::new();
        for ms in millis {
            codel.take(ms * MS, &mut |_, cause| {
                assert_eq!(cause, Cause::Codel);
                drops.push(ms);
            });
        }
        drops
    }

    #[test]
    fn a_standing_queue_is_dropped_from_by_the_control_law() {
        let mut codel = codel(false);
        fill(&mut codel, 2000, false);
        // Above the target since 5 ms, for an interval at 105 ms; then after 100/sqrt(n) ms each.
        let expected = (1..9).scan(105.0, |at, count| {
            let this = *at;
            *at += 100.0 / f64::from(count).sqrt();
            Some(this)
        });
        let expected: Vec<u64> = expected.map(|at: f64| at.ceil() as u64).collect();
        assert_eq!(drops(&mut codel, 1..expected[7] + 1), expected);
    }

    #[test]
    fn a_short_queue_and_a_burst_of_less_than_an_interval_pass() {
        let mut codel = codel(false);
        fill(&mut codel, 100, false);
        assert_eq!(drops(&mut codel, 1..104), [0u64; 0]);
        // Never more than a frame behind the packet that leaves: no drop, regardless of the delay.
        for ms in 5000..5400 {
            let waiting = Waiting::new(numbered(ms, 1514), (ms - 10) * MS);
            codel.offer(waiting, &mut |_, _| panic!("it has room"));
            assert_eq!(drops(&mut codel, ms..ms + 1), [0u64; 0]);
        }
    }

    #[test]
    fn a_dropping_state_that_begins_soon_again_goes_on_at_its_rate() {
        let mut codel = codel(false);
        codel.law = Law { count: 10, last_count: 4, drop_next: 1000 * MS, ..codel.law };
        codel.law.begin_dropping(1500 * MS);
        assert_eq!((codel.law.count, codel.law.last_count), (6, 6));
        codel.law.count = 12;
        codel.law.begin_dropping(9000 * MS);
        assert_eq!(codel.law.count, 1, "too long ago");
    }

    #[test]
    fn ecn_capable_packets_are_marked_at_the_same_times_and_none_is_lost() {
        let mut codel = codel(true);
        fill(&mut codel, 600, true);
        let (mut marks, mut expected) = (Vec::new(), 105.0);
        for ms in 1..400 {
            let waiting = codel.take(ms * MS, &mut |_, _| panic!("marked, not dropped")).unwrap();
            assert_eq!(waiting.packet.number, ms - 1);
            if waiting.marked {
                marks.push(ms);
            }
        }
        let times = (1..).map(|count| {
            let this = expected;
            expected += 100.0 / f64::from(count).sqrt();
            f64::ceil(this) as u64
        });
        let times: Vec<u64> = times.take_while(|&ms| ms < 400).collect();
        assert_eq!(marks, times);
    }

    #[test]
    fn a_full_queue_drops_what_comes() {
        let mut codel = Codel::new(2, CodelConfig::default(), HZ);
        let mut full = Vec::new();
        for number in 0..3 {
            let waiting = Waiting::new(numbered(number, 60), 0);
            codel.offer(waiting, &mut |packet, cause| full.push((packet.number, cause)));
        }
        assert_eq!(full, [(2, Cause::Full)]);
    }
}
