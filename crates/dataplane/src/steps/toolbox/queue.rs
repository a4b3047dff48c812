//! `queue`: holds packets, and gives them to the rest of the graph later.
//!
//! Takes any frame. Each forwarder has a queue of its own, which it serves once a round. The output may lead back to an
//! earlier step: packets then make another pass, in a later batch, up to 64 passes. Facts about packets (their route,
//! their protocol) are not kept; their mark and their ingress interface are.
//!
//! | output | packets |
//! |---|---|
//! | `next` | first come, first served, at most at `rate`, at the earliest `delay` after they came |
//! | drop `queue-full` | there are `capacity` packets already |
//! | drop `looped` | held 64 times |
//! | drop `emptied` | held when the queue was emptied by a handler |
//!
//! A rate is that of one forwarder. For a delay the queue needs room for the packets that come meanwhile.
//!
//! ```lua
//! graph:path("port-switch.left", { "queue", capacity = 200, rate = "10mbit" }, { "to-port", port = "right" })
//! ```

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{Pace, rate};
use crate::batch::{Batch, Held};
use crate::catalogue::{MakeContext, StepSpec};
use crate::gauge::{Gauge, Gauges};
use crate::graph::{Origin, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};
use crate::reason::DropReason;

const OUTPUTS: &[Output] = &[
    Output::Deferred(std::borrow::Cow::Borrowed("next")),
    Output::Drop(DropReason::QueueFull),
    Output::DropAs(std::borrow::Cow::Borrowed("looped")),
    Output::DropAs(std::borrow::Cow::Borrowed("emptied")),
];

/// The output of packets of a queue that is being emptied.
const EMPTIED: usize = 3;

/// Longest delay.
const DELAY_MOST: Duration = Duration::from_secs(60);

/// Passes of a packet through queues.
pub(super) const PASSES_MOST: u8 = 64;

/// Packets that may leave at once after a pause, if there is a rate.
const BURST: u64 = 16;

pub(super) fn spec() -> StepSpec {
    let capacity = Param::new("capacity", Kind::Integer(1..=65_536), "the most packets");
    let delay =
        Param::new("delay", Kind::Duration(Duration::ZERO..=DELAY_MOST), "the least time here");
    StepSpec::new("queue", OUTPUTS, make)
        .param(capacity.or(Arg::Integer(1000)))
        .param(rate("the rate at which they leave").or(Arg::Flag(false)))
        .param(delay.or(Arg::Duration(Duration::ZERO)))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let capacity = context.args.integer("capacity") as usize;
    let departures = Pace::read(context.args).map(Departures::new);
    let waiting = Waiting { held: VecDeque::with_capacity(capacity), departures, emptied: 0 };
    let length = context.tables.shared.get::<Gauges>().make(context.name);
    let delay = cycles(context.args.duration("delay"));
    Box::new(Queue { waiting, capacity, delay, length })
}

/// A time in TSC cycles.
fn cycles(time: Duration) -> u64 {
    (time.as_nanos() * u128::from(dpdk::tsc_hz()) / 1_000_000_000) as u64
}

/// Times of departure, in TSC cycles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departures {
    pace: Pace,
    /// The next one, if packets leave evenly.
    next: u64,
}

impl Departures {
    /// At this pace, from now on.
    pub(super) fn new(pace: Pace) -> Self {
        Self { pace, next: 0 }
    }

    /// Returns true if a packet may leave now.
    #[inline(always)]
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.next <= now
    }

    /// Returns true if a packet may leave now, and counts its time.
    #[inline(always)]
    pub(super) fn admit(&mut self, len: usize, now: u64) -> bool {
        let cost = self.pace.cost(len);
        let earliest = now.saturating_sub(BURST.saturating_mul(cost));
        // Never further than a packet's time, unless the rate was lower before.
        self.next = self.next.clamp(earliest, now.saturating_add(cost));
        if !self.is_due(now) {
            return false;
        }
        self.next = self.next.saturating_add(cost);
        true
    }
}

/// State that passes to the step's replacement.
struct Waiting {
    held: VecDeque<Held>,
    departures: Option<Departures>,
    /// The first so many packets are dropped, as the queue is being emptied.
    emptied: usize,
}

/// Gives a queue of this capacity the packets of the queue that it replaces.
pub(super) fn exchange(new: &mut VecDeque<Held>, old: &mut VecDeque<Held>, capacity: usize) {
    // Without growing: the other may have had less room.
    if new.is_empty() && old.len() <= capacity {
        new.append(old);
    } else {
        std::mem::swap(new, old);
    }
}

struct Queue {
    waiting: Waiting,
    capacity: usize,
    /// The least time that a packet stays, in TSC cycles.
    delay: u64,
    /// The number of packets, for others to see.
    length: Arc<Gauge>,
}

impl Queue {
    /// Empties the queue if a handler asks for it: its packets leave as drops.
    #[inline(always)]
    fn look_for_handlers(&mut self) {
        if self.length.begins_anew() {
            self.waiting.emptied = self.waiting.held.len();
        }
    }

    /// Returns true if the first packet leaves by `next` now.
    #[inline(always)]
    fn admits(&mut self, since: u64, len: usize, now: u64) -> bool {
        let departures = &mut self.waiting.departures;
        now.saturating_sub(since) >= self.delay
            && departures.as_mut().is_none_or(|departures| departures.admit(len, now))
    }
}

impl Step for Queue {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        self.look_for_handlers();
        for slot in input.slots() {
            if self.waiting.held.len() >= self.capacity {
                out[1] |= Mask::when(true, slot);
            } else if batch.passes(slot) >= PASSES_MOST {
                out[2] |= Mask::when(true, slot);
            } else {
                self.waiting.held.extend(batch.take(slot));
            }
        }
        self.length.set(self.waiting.held.len());
    }

    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        self.look_for_handlers();
        for _ in 0..most {
            let Some(first) = self.waiting.held.front().filter(|first| batch.admits(first)) else {
                break;
            };
            let (since, len) = (first.since, first.packet.len());
            let is_emptied = self.waiting.emptied > 0;
            if !is_emptied && !self.admits(since, len, batch.now) {
                break;
            }
            let Some(first) = self.waiting.held.pop_front() else { break };
            self.waiting.emptied -= usize::from(is_emptied);
            if let Ok(slot) = batch.put(first) {
                out[if is_emptied { EMPTIED } else { 0 }] |= Mask::when(true, slot);
            }
        }
        self.length.set(self.waiting.held.len());
        Origin::Held
    }

    fn held(&self) -> usize {
        self.waiting.held.len()
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.held.is_empty()
    }

    fn release(&mut self, drop: &mut dyn FnMut(Held)) {
        self.waiting.held.drain(..).for_each(drop);
        self.waiting.emptied = 0;
        self.length.set(0);
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.waiting)
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        if let Some(old) = old.downcast_mut::<Waiting>() {
            if let (Some(new), Some(old)) = (&mut self.waiting.departures, old.departures) {
                new.next = old.next;
            }
            exchange(&mut self.waiting.held, &mut old.held, self.capacity);
            std::mem::swap(&mut self.waiting.emptied, &mut old.emptied);
        }
        self.length.set(self.waiting.held.len());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number, released, text};
    use super::*;
    use crate::graph::MAX_OUTPUTS;
    use crate::testing::batch_of;

    fn frames(count: u8) -> Vec<Vec<u8>> {
        (0..count).map(|n| vec![n; 60]).collect()
    }

    /// Gives the step a batch; returns the masks of its outputs.
    fn put(step: &mut dyn Step, count: u8) -> Outputs {
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        let mut batch = batch_of(&frames(count));
        let input = batch.packets();
        step.process(&mut batch, input, &mut out);
        out
    }

    /// The first bytes of the packets that a step emits.
    fn emit(step: &mut dyn Step, most: usize, now: u64) -> Vec<u8> {
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        let mut batch = batch_of(&[]);
        batch.begin_emitted(now);
        assert_eq!(step.emit(&mut batch, most, &mut out), Origin::Held);
        assert_eq!(out[0], batch.packets());
        out[0].slots().map(|slot| batch.frame(slot)[0]).collect()
    }

    #[test]
    fn packets_leave_in_their_order_up_to_the_capacity() {
        let mut step = make("queue", &[("capacity", number(5))]);
        assert_eq!(put(&mut *step, 4)[1], Mask::EMPTY);
        assert_eq!(put(&mut *step, 3)[1], Mask(0b110));
        assert_eq!((step.held(), step.is_waiting()), (5, true));
        assert_eq!(emit(&mut *step, 2, 0), [0, 1]);
        let mut other = make("queue", &[]);
        other.take_state(step.state().unwrap());
        assert_eq!((emit(&mut *other, 64, 0), step.held()), (vec![2, 3, 0], 0));
        assert!(!other.is_waiting());
        put(&mut *other, 3);
        assert_eq!((released(&mut *other), other.held()), (3, 0));
    }

    #[test]
    fn a_rate_spaces_departures() {
        let hz = dpdk::tsc_hz();
        let mut step = make("queue", &[("rate", text("100pps"))]);
        put(&mut *step, 64);
        assert_eq!(emit(&mut *step, 64, hz).len(), 17, "what may leave at once, and one");
        assert_eq!(emit(&mut *step, 64, hz + hz / 101).len(), 0);
        assert_eq!(emit(&mut *step, 64, hz + hz / 99).len(), 1);
        assert_eq!(emit(&mut *step, 64, hz + hz / 10).len(), 9);
        // 480 bits a packet.
        let mut step = make("queue", &[("rate", text("48kbit"))]);
        put(&mut *step, 64);
        assert_eq!(emit(&mut *step, 64, hz).len(), 17);
        assert_eq!(emit(&mut *step, 64, hz + hz / 10 + hz / 1000).len(), 10);
    }

    #[test]
    fn the_time_of_departure_is_handed_over() {
        let hz = dpdk::tsc_hz();
        let mut step = make("queue", &[("rate", text("1pps"))]);
        put(&mut *step, 64);
        assert_eq!(emit(&mut *step, 64, 100 * hz).len(), 17);
        let mut next = make("queue", &[("rate", text("2pps"))]);
        next.take_state(step.state().unwrap());
        // Half a second of the new rate, not a second of the one before, nor at once.
        assert_eq!(emit(&mut *next, 64, 100 * hz).len(), 0);
        assert_eq!(emit(&mut *next, 64, 100 * hz + hz * 4 / 10).len(), 0);
        assert_eq!(emit(&mut *next, 64, 100 * hz + hz * 6 / 10).len(), 1);
    }

    #[test]
    fn packets_stay_for_the_delay_and_keep_it_over_changes() {
        let hz = dpdk::tsc_hz();
        let at = |step: &mut dyn Step, count: u8, now: u64| {
            let mut out = [Mask::EMPTY; MAX_OUTPUTS];
            let mut batch = batch_of(&frames(count));
            batch.now = now;
            let input = batch.packets();
            step.process(&mut batch, input, &mut out);
        };
        let mut step = make("queue", &[("delay", text("20ms"))]);
        at(&mut *step, 2, 5 * hz);
        at(&mut *step, 1, 5 * hz + hz / 100);
        let soon = 5 * hz + hz / 50;
        assert_eq!(emit(&mut *step, 64, soon - hz / 1000), []);
        assert_eq!(emit(&mut *step, 64, soon), [0, 1]);
        // A step that replaces it knows when they came.
        let mut next = make("queue", &[("delay", text("30ms"))]);
        next.take_state(step.state().unwrap());
        assert_eq!(emit(&mut *next, 64, soon + hz / 100), []);
        assert_eq!(emit(&mut *next, 64, soon + hz / 50), [0]);
        // With a rate, both count.
        let args = [("delay", text("20ms")), ("rate", text("1pps"))];
        let mut step = make("queue", &args);
        at(&mut *step, 20, 95 * hz);
        assert_eq!(emit(&mut *step, 64, 90 * hz + soon - 1).len(), 0);
        assert_eq!(emit(&mut *step, 64, 90 * hz + soon).len(), 17);
    }

    #[test]
    fn a_queue_is_emptied_by_drops() {
        let tables = crate::testing::TestTables::every_kind();
        let gauges = tables.shared.get::<Gauges>();
        let mut step = super::super::make_with(&tables, "queue", &[("rate", text("1pps"))]);
        put(&mut *step, 30);
        gauges.begin_anew("s");
        put(&mut *step, 1);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        let mut batch = batch_of(&[]);
        batch.begin_emitted(dpdk::tsc_hz());
        step.emit(&mut batch, 20, &mut out);
        assert_eq!((out[EMPTIED].count(), out[0]), (20, Mask::EMPTY));
        // The rest of what was there, and what has come since, within the rate.
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        let mut batch = batch_of(&[]);
        batch.begin_emitted(dpdk::tsc_hz());
        step.emit(&mut batch, 64, &mut out);
        assert_eq!((out[EMPTIED].count(), out[0].count(), step.held()), (10, 1, 0));
        assert_eq!(gauges.read("s").0, 0);
    }

    #[test]
    fn marks_stay_and_loops_end() {
        let mut step = make("queue", &[]);
        let mut batch = batch_of(&frames(2));
        batch.marks.marked = Mask(2);
        batch.marks.values[1] = 7;
        batch.link_multicast = Mask(1);
        let mut passes = 0;
        loop {
            let mut out = [Mask::EMPTY; MAX_OUTPUTS];
            let input = batch.packets();
            step.process(&mut batch, input, &mut out);
            if !out[2].is_empty() {
                assert_eq!((out[2], passes), (Mask(3), 64));
                break;
            }
            batch.end();
            batch.begin_emitted(0);
            let mut out = [Mask::EMPTY; MAX_OUTPUTS];
            step.emit(&mut batch, 64, &mut out);
            assert_eq!((batch.marks.marked, batch.marks.values[1]), (Mask(2), 7));
            assert_eq!(batch.link_multicast, Mask(1));
            passes += 1;
        }
    }
}
