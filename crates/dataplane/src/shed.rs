//! Overload control: what a forwarder drops by itself when more comes than it can forward.
//!
//! A receive queue that is never found empty overflows, and the device then loses whatever comes next: a BGP
//! keepalive as well as a packet of the flood. A forwarder that is behind therefore looks at more packets than
//! it can forward. Of those beyond its quota it forwards the classes to be kept, and drops all others before any
//! step has worked on them, as `shed`.
//!
//! # Bounds
//!
//! | | bound | because |
//! |---|---|---|
//! | time | [`Shedding::percent`] of the forwarder's, of the last [`MEMORY`] | looking costs less than forwarding, but not nothing: with a bound the rate never collapses |
//! | packets kept | half of the quota in a turn; and where most of a burst is to be kept, none for a while | a sender that marks everything as network control gains nothing |
//! | begin | [`BEHIND`] packets in full turns | a burst that the receive queue can hold is forwarded whole |
//! | end | a turn that is not full | what is left can be forwarded |
//!
//! Where a packet costs much more than a look at it (steps in Lua, long filters), the whole excess is looked at and
//! nothing to be kept is lost. Where forwarding is cheap, the time bound is met first; then a queue of their own in
//! the device protects control packets better.

use std::time::Duration;

use dpdk::Burst;

use crate::mask::Mask;
use crate::transmit::frame::Class;

/// Packets taken from a queue in turns that its packets filled, after which it counts as overloaded. More than receive
/// queues hold by default.
pub const BEHIND: u32 = 8192;

/// Time whose share for shedding may be used at once.
pub const MEMORY: Duration = Duration::from_millis(10);

/// The largest [`Shedding::percent`].
pub const PERCENT_MOST: u8 = 50;

/// The part of its quota that a port can add to it by packets to be kept.
const KEPT_PART: usize = 2;

/// Settings of overload control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shedding {
    /// Part of a forwarder's time for it, 1 to [`PERCENT_MOST`]; 0 switches it off.
    pub percent: u8,
    /// Classes that are not shed.
    pub keep: Classes,
}

impl Shedding {
    /// None.
    pub const OFF: Self = Self { percent: 0, keep: Classes::NONE };
}

impl Default for Shedding {
    fn default() -> Self {
        Self { percent: 3, keep: Classes::NONE.with(Class::Control) }
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

    /// Whether a class is in it.
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

/// What a forwarder has spent on shedding.
#[derive(Debug, Default)]
pub(crate) struct Shedder {
    /// [`MEMORY`] in TSC cycles.
    memory: u64,
    /// When all time spent has been earned back, in TSC cycles.
    earned_at: u64,
}

impl Shedder {
    /// For a TSC of this frequency.
    pub(crate) fn new(hz: u64) -> Self {
        Self { memory: (hz as f64 * MEMORY.as_secs_f64()) as u64, earned_at: 0 }
    }

    /// Whether there is time for another burst.
    pub(crate) fn may(&self, now: u64) -> bool {
        self.earned_at <= now
    }

    /// It took so many cycles, and may take so many percent of all.
    pub(crate) fn spent(&mut self, cycles: u64, now: u64, percent: u8) {
        let from = self.earned_at.max(now.saturating_sub(self.memory));
        self.earned_at = from + cycles * 100 / u64::from(percent.max(1));
    }
}

/// Whether a port of this quota has kept its part, so that nothing more is kept in this turn.
pub(crate) fn is_full(kept: usize, quota: usize) -> bool {
    kept * KEPT_PART >= quota
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

    #[test]
    fn half_of_the_quota_is_kept() {
        assert!(!is_full(31, 64) && is_full(32, 64) && !is_full(0, 64));
        assert!(is_full(1, 1));
    }
}
