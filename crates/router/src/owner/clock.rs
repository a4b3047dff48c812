//! Ticks of the owner, for what changes without a notification: fewer while nothing happens, so that an idle router
//! hardly uses the processor.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

/// Interval of polling for changes without notifications.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// Ticks without anything else to do after which only one in [`QUIET_STEP`] is made.
const QUIET_TICKS: u32 = 100;

/// A multiple of [`super::SLOW_TICKS`], of which the others are multiples.
const QUIET_STEP: u32 = 20;

/// The ticks of a loop of which each turn may be one.
pub(super) struct Clock {
    ticks: Interval,
    count: u32,
    /// Turns without anything but ticks.
    quiet: u32,
    /// This turn is a tick.
    ticked: bool,
}

impl Clock {
    /// Starts one; to be called in a runtime.
    pub(super) fn start() -> Self {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, count: 0, quiet: 0, ticked: false }
    }

    /// Waits for the next tick. May be given up.
    pub(super) async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    /// Counts the tick that has come; returns its number, before which some are left out while nothing happens.
    pub(super) fn count(&mut self) -> u32 {
        self.ticked = true;
        self.count = self.count.wrapping_add(1);
        if self.is_quiet() {
            self.count = self.count.next_multiple_of(QUIET_STEP);
            self.ticks.reset_after(TICK * QUIET_STEP);
        }
        self.count
    }

    /// Ends a turn. One that was no tick is followed by all ticks again.
    pub(super) fn end_turn(&mut self) {
        let ticked = std::mem::take(&mut self.ticked);
        if !ticked && self.is_quiet() {
            self.ticks.reset_after(TICK);
        }
        self.quiet = if ticked { self.quiet.saturating_add(1) } else { 0 };
    }

    fn is_quiet(&self) -> bool {
        self.quiet >= QUIET_TICKS
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn ticks_are_left_out_while_nothing_happens_and_all_come_again() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let mut clock = Clock::start();
        let ticks = |clock: &mut Clock, turns: u32| {
            let counts = (0..turns).map(|_| {
                let count = clock.count();
                clock.end_turn();
                count
            });
            counts.collect::<Vec<_>>()
        };
        assert_eq!(ticks(&mut clock, QUIET_TICKS), (1..=QUIET_TICKS).collect::<Vec<_>>());
        assert_eq!(ticks(&mut clock, 3), [120, 140, 160]);
        clock.end_turn();
        assert_eq!(ticks(&mut clock, 3), [161, 162, 163], "something has happened");
    }
}
