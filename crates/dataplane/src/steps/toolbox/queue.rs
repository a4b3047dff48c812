//! `queue`: holds packets, and gives them to the rest of the graph later.
//!
//! Takes any frame. Each forwarder has a queue of its own, which it serves once a round. The output may lead back to an
//! earlier step: packets then make another pass, in a later batch, up to 64 passes. Facts about packets (their route,
//! their protocol) are not kept; their mark and their ingress interface are.
//!
//! | output | packets |
//! |---|---|
//! | `next` | first come, first served, at most at `rate` |
//! | drop `queue-full` | there are `capacity` packets already |
//! | drop `looped` | held 64 times |
//!
//! A rate is that of one forwarder.
//!
//! ```lua
//! graph:path("port-switch.left", { "queue", capacity = 200, rate = "10mbit" }, { "to-port", port = "right" })
//! ```

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

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
];

/// Passes of a packet through queues.
pub(super) const PASSES_MOST: u8 = 64;

/// Packets that may leave at once after a pause, if there is a rate.
const BURST: u64 = 16;

pub(super) fn spec() -> StepSpec {
    let capacity = Param::new("capacity", Kind::Integer(1..=65_536), "the most packets");
    StepSpec::new("queue", OUTPUTS, make)
        .param(capacity.or(Arg::Integer(1000)))
        .param(rate("the rate at which they leave").or(Arg::Flag(false)))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let capacity = context.args.integer("capacity") as usize;
    let departures = Pace::read(context.args).map(Departures::new);
    let waiting = Waiting { held: VecDeque::with_capacity(capacity), departures };
    let length = context.tables.shared.get::<Gauges>().make(context.name);
    Box::new(Queue { waiting, capacity, length })
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

/// What the step hands over to the one that replaces it.
struct Waiting {
    held: VecDeque<Held>,
    departures: Option<Departures>,
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
    /// The number of packets, for others to see.
    length: Arc<Gauge>,
}

impl Step for Queue {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
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
        for _ in 0..most {
            let Some(first) = self.waiting.held.front().filter(|first| batch.admits(first)) else {
                break;
            };
            let len = first.packet.len();
            let departures = &mut self.waiting.departures;
            if departures.as_mut().is_some_and(|departures| !departures.admit(len, batch.now)) {
                break;
            }
            let Some(first) = self.waiting.held.pop_front() else { break };
            if let Ok(slot) = batch.put(first) {
                out[0] |= Mask::when(true, slot);
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

    fn release(&mut self) -> usize {
        let count = self.waiting.held.len();
        self.waiting.held.clear();
        self.length.set(0);
        count
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
        }
        self.length.set(self.waiting.held.len());
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number, text};
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
        assert_eq!((other.release(), other.held()), (3, 0));
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
