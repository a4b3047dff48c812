//! Overload control: packets that a forwarder drops itself when more arrive than it can forward.
//!
//! A receive queue that is never found empty overflows, and the device then loses arriving packets without
//! distinction: a BGP keepalive as well as a packet of the flood. A forwarder that has fallen behind therefore
//! takes more packets than it can forward. Of those beyond its quota it forwards the classes to be kept, and
//! drops all others before any step has worked on them, as `shed`.
//!
//! # Bounds
//!
//! | | bound | because |
//! |---|---|---|
//! | time | [`Shedding::percent`] of the forwarder's, of the last [`MEMORY`] | examining costs less than forwarding, but not nothing: with a bound the rate never collapses |
//! | packets kept | half of the quota in a turn; and where most of a burst is to be kept, none for a while | a sender that marks everything as network control gains nothing |
//! | of them kept for their connection or category | half of those; none of a burst that has more | classes come first |
//! | begin | [`BEHIND`] packets in full turns | a burst that the receive queue can hold is forwarded whole |
//! | end | an empty queue for [`IDLE`] in [`WINDOW`] | shedding empties the queue, so a partial turn does not indicate the end of the excess; idle time does |
//!
//! Where a packet costs much more than receiving it (steps in Lua, long filters), the whole excess
//! is examined and nothing to be kept is lost. Where forwarding is cheap or receiving is expensive
//! (kernel interfaces), the time bound is reached first; then a separate queue in the device
//! protects control packets better.

use std::time::Duration;

use dpdk::Burst;

use crate::frame::Class;
use crate::mask::Mask;

/// Packets taken from a queue in consecutive full turns, after which it counts as overloaded. More
/// than receive queues hold by default.
pub const BEHIND: u32 = 8192;

/// Time whose share for shedding may be used at once.
pub const MEMORY: Duration = Duration::from_millis(10);

/// Time with an empty queue, within the last [`WINDOW`], after which it is no longer overloaded.
pub const IDLE: Duration = Duration::from_millis(1);

/// See [`IDLE`].
pub const WINDOW: Duration = Duration::from_millis(100);

/// The largest [`Shedding::percent`].
pub const PERCENT_MOST: u8 = 50;

/// Fraction of its quota by which a port can exceed it with packets to be kept.
const KEPT_PART: usize = 2;

/// Fraction of its quota by which a port can exceed it with packets kept for their connection or category.
const CONNECTIONS_PART: usize = 4;

/// Settings of overload control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shedding {
    /// Part of a forwarder's time for it, 1 to [`PERCENT_MOST`]; 0 switches it off.
    pub percent: u8,
    /// Classes that are not shed.
    pub keep: Classes,
    /// Other packets that are not shed.
    pub connections: Connections,
}

/// Packets kept for what a filter or the flow table knows of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Packets of connections that answer.
    pub established: bool,
    /// The categories of filters, one bit each.
    pub categories: u16,
}

impl Connections {
    /// No packets.
    pub const NONE: Self = Self { established: false, categories: 0 };
}

impl Shedding {
    /// Disabled.
    pub const OFF: Self = Self { percent: 0, keep: Classes::NONE, connections: Connections::NONE };
}

impl Default for Shedding {
    fn default() -> Self {
        let keep = Classes::NONE.with(Class::Control);
        Self { percent: 3, keep, connections: Connections::NONE }
    }
}

/// A set of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classes(u8);

impl Classes {
    /// The empty one.
    pub const NONE: Self = Self(0);

    /// With one more.
    #[must_use]
    pub const fn with(self, class: Class) -> Self {
        Self(self.0 | 1 << class as u8)
    }

    /// Returns true if the class is in the set.
    pub const fn has(self, class: Class) -> bool {
        self.0 & 1 << class as u8 != 0
    }

    /// Its classes.
    pub fn iter(self) -> impl Iterator<Item = Class> {
        Class::ALL.into_iter().filter(move |&class| self.has(class))
    }

    /// The packets of its classes.
    pub(crate) fn of(self, burst: &Burst) -> Mask {
        let kept = |slot: usize| Mask::when(self.has(Class::of_frame(burst.frame(slot))), slot);
        Mask(burst.owned()).slots().fold(Mask::EMPTY, |mask, slot| mask | kept(slot))
    }
}

/// The time that a forwarder has spent on shedding.
#[derive(Debug, Default)]
pub(crate) struct Shedder {
    /// [`MEMORY`], [`IDLE`] and [`WINDOW`] in TSC cycles.
    memory: u64,
    idle: u64,
    window: u64,
    /// When all time spent has been earned back, in TSC cycles.
    earned_at: u64,
}

impl Shedder {
    /// Creates it for a TSC of this frequency.
    pub(crate) fn new(hz: u64) -> Self {
        let cycles = |time: Duration| (hz as f64 * time.as_secs_f64()) as u64;
        Self { memory: cycles(MEMORY), idle: cycles(IDLE), window: cycles(WINDOW), earned_at: 0 }
    }

    /// Returns true if there is time for another burst.
    pub(crate) fn may(&self, now: u64) -> bool {
        self.earned_at <= now
    }

    /// Records so many cycles, of a budget of so many percent of all.
    pub(crate) fn spent(&mut self, cycles: u64, now: u64, percent: u8) {
        let from = self.earned_at.max(now.saturating_sub(self.memory));
        self.earned_at = from + cycles * 100 / u64::from(percent.max(1));
    }
}

/// The lag of a forwarder on a receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Packets taken in full turns; from [`BEHIND`] on the queue is overloaded.
    packets: u32,
    /// Time of the last turn if it found nothing, else 0; times are in TSC cycles.
    empty_at: u64,
    /// Time with an empty queue since `window_at`.
    idle: u64,
    window_at: u64,
}

impl Backlog {
    /// Records a full turn, after which there may be more packets. Returns true if the queue is
    /// overloaded.
    #[inline(always)]
    pub(crate) fn full_turn(&mut self, taken: usize) -> bool {
        self.packets = self.packets.saturating_add(taken as u32);
        self.empty_at = 0;
        self.packets >= BEHIND
    }

    /// Records a turn that began now and emptied the queue.
    #[inline(always)]
    pub(crate) fn last_turn(&mut self, taken: usize, now: u64, shedder: &Shedder) {
        if self.packets > 0 {
            self.relax(taken, now, shedder);
        }
    }

    #[cold]
    fn relax(&mut self, taken: usize, now: u64, shedder: &Shedder) {
        if now.saturating_sub(self.window_at) > shedder.window {
            (self.window_at, self.idle) = (now, 0);
        }
        if self.empty_at > 0 {
            self.idle += now.saturating_sub(self.empty_at);
        }
        self.empty_at = if taken == 0 { now } else { 0 };
        if self.packets < BEHIND || self.idle > shedder.idle {
            self.clear();
        }
    }

    /// Ends shedding until the queue is overloaded anew.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns true if a port of this quota has kept its share, so that no more packets are kept in
/// this turn.
pub(crate) fn is_full(kept: usize, quota: usize) -> bool {
    kept * KEPT_PART >= quota
}

/// Returns the packets of a burst to be kept: those of classes, and of others as many as there is room for. `kept`:
/// others kept in this turn before; `count`: all of the burst.
pub(crate) fn choose(
    by_class: Mask,
    others: Mask,
    kept: usize,
    (count, quota): (usize, usize),
) -> Mask {
    let more = others.without(by_class);
    if (by_class | more).count() as usize > count / 2 {
        return by_class;
    }
    let room = (quota / CONNECTIONS_PART).saturating_sub(kept);
    by_class | more.slots().take(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FrameBuilder;

    #[test]
    fn a_set_has_what_was_put_into_it() {
        let set = Classes::NONE.with(Class::Voice).with(Class::Control);
        assert_eq!(set.iter().collect::<Vec<_>>(), [Class::Control, Class::Voice]);
        assert!(!set.has(Class::Default) && !Shedding::OFF.keep.has(Class::Control));
        assert!(Shedding::default().keep.iter().eq([Class::Control]));
    }

    #[test]
    fn packets_are_kept_by_class() {
        let dscp = |dscp: u8| FrameBuilder::ip4().tos(dscp << 2).udp(1, 2, b"x").build();
        let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]).build();
        let mut burst = Burst::new();
        for frame in [dscp(0), dscp(48), arp, dscp(46)] {
            burst.put(crate::testing::dpdk().1.copy_of(&frame).unwrap()).unwrap();
        }
        assert_eq!(Shedding::default().keep.of(&burst), Mask(0b0110));
        assert_eq!(Classes::NONE.of(&burst), Mask::EMPTY);
    }

    #[test]
    fn it_takes_its_part_of_the_time_and_no_more() {
        let mut shedder = Shedder::new(1_000_000);
        assert_eq!(shedder.memory, 10_000);
        let (mut now, mut spent) = (1_000_000, 0);
        let end = now + 1_000_000;
        while now < end {
            if shedder.may(now) {
                now += 50;
                spent += 50;
                shedder.spent(50, now, 3);
            }
            now += 10;
        }
        let most = 1_000_000 * 3 / 100 + 10_000 * 3 / 100 + 50;
        assert!((29_000..=most).contains(&spent), "{spent}");
    }

    #[test]
    fn time_that_was_not_used_is_remembered_for_a_while() {
        let mut shedder = Shedder::new(1_000_000);
        let now = 5_000_000;
        let mut bursts = 0;
        while shedder.may(now) {
            shedder.spent(50, now, 10);
            bursts += 1;
        }
        assert_eq!(bursts, 21, "a tenth of 10,000 cycles, by 50, and the burst that ends it");
    }

    /// A queue of 1,024 places that fills while its forwarder works, at a microsecond a packet
    /// forwarded and 20 ns a packet examined; the clock counts nanoseconds.
    struct Model {
        backlog: Backlog,
        shedder: Shedder,
        now: u64,
        waiting: u64,
        arrived: u64,
        lost: u64,
        shed: u64,
        forwarded: u64,
    }

    impl Model {
        fn new() -> Self {
            let (backlog, shedder) = (Backlog::default(), Shedder::new(1_000_000_000));
            Self {
                backlog,
                shedder,
                now: 0,
                waiting: 0,
                arrived: 0,
                lost: 0,
                shed: 0,
                forwarded: 0,
            }
        }

        /// Advances the time; `arrivals`: packets that have arrived until a time.
        fn pass(&mut self, nanoseconds: u64, arrivals: &impl Fn(u64) -> u64) {
            self.now += nanoseconds;
            let new = arrivals(self.now) - self.arrived;
            self.arrived += new;
            self.waiting += new;
            self.lost += self.waiting.saturating_sub(1024);
            self.waiting = self.waiting.min(1024);
        }

        fn run(mut self, until: u64, arrivals: impl Fn(u64) -> u64) -> Self {
            while self.now < until {
                let (began, taken) = (self.now, self.waiting.min(64));
                self.waiting -= taken;
                self.forwarded += taken;
                self.pass(100 + taken * 1000, &arrivals);
                if taken < 64 {
                    self.backlog.last_turn(taken as usize, began, &self.shedder);
                } else if self.backlog.full_turn(64) {
                    self.shed(&arrivals);
                }
            }
            self
        }

        fn shed(&mut self, arrivals: &impl Fn(u64) -> u64) {
            while self.shedder.may(self.now) {
                let count = self.waiting.min(64);
                self.waiting -= count;
                self.shed += count;
                self.pass(100 + count * 20, arrivals);
                self.shedder.spent(100 + count * 20, self.now, 3);
                if count < 64 {
                    return;
                }
            }
        }
    }

    #[test]
    fn the_excess_is_looked_at_and_little_is_lost_unseen() {
        const SECOND: u64 = 1_000_000_000;
        for packets_per_us in [1.05, 1.5, 2.0] {
            let model =
                Model::new().run(10 * SECOND, |now| (now as f64 / 1000.0 * packets_per_us) as u64);
            let lost = model.lost as f64 / model.arrived as f64;
            assert!(lost < 0.01, "{packets_per_us}: {lost}");
            let rate = model.forwarded as f64 / 10e6;
            assert!(rate > 0.96, "{packets_per_us}: {rate}");
        }
    }

    #[test]
    fn bursts_that_the_queue_can_hold_are_forwarded_whole() {
        const MILLISECOND: u64 = 1_000_000;
        // 800 packets each millisecond: a burst of 400 at once, and 400 after it.
        let bursts =
            |now: u64| now / MILLISECOND * 800 + (now % MILLISECOND).div_ceil(2500).min(400) + 400;
        let model = Model::new().run(1000 * MILLISECOND, bursts);
        assert_eq!((model.shed, model.lost), (0, 0));
        // An earlier flood changes that only for a while.
        let flood = |now: u64| 2 * now.min(50 * MILLISECOND) / 1000 + bursts(now);
        let [until_2_s, until_3_s] =
            [2000, 3000].map(|end| Model::new().run(end * MILLISECOND, flood));
        assert!(until_2_s.shed > 0);
        assert_eq!(until_3_s.shed, until_2_s.shed);
    }

    #[test]
    fn classes_come_before_connections() {
        let (control, others) = (Mask(0b11), Mask(0b1110));
        assert_eq!(choose(control, others, 0, (64, 64)), Mask(0b1111));
        assert_eq!(choose(control, others, 13, (64, 64)), Mask(0b1111));
        assert_eq!(choose(control, others, 15, (64, 64)), Mask(0b111));
        assert_eq!(choose(control, others, 16, (64, 64)), control, "a quarter is theirs");
        assert_eq!(choose(control, others, 0, (7, 64)), control, "they are most of the burst");
    }

    #[test]
    fn half_of_the_quota_is_kept() {
        assert!(!is_full(31, 64) && is_full(32, 64) && !is_full(0, 64));
        assert!(is_full(1, 1));
    }
}
