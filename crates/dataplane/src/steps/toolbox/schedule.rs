//! `schedule`: holds packets in several queues, and gives them to the rest of the graph in an order.
//!
//! Takes any frame, for the queue that `to-queue` has selected, else for the first one. Each forwarder has queues of its
//! own, which it serves once a round, as far as a rate and `port` permit. Facts about packets are not kept, except their
//! mark and their ingress interface.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of the queue of this place in `order` |
//! | `early-0`, `early-1`, … | selected early, of the queue of this place, if its order has `aside` |
//! | drop `queue-full` | there are as many packets in their queue as it has room for |
//! | drop `queue-red` | selected early, by the average length of their queue |
//! | drop `looped` | held 64 times |
//! | drop `emptied` | held when their queue was emptied by a handler |
//!
//! `order` is a tree: a queue is `NAME[CAPACITY]`; other nodes have queues or further nodes in parentheses. A node may have
//! a label in front of it, `LABEL:prio(a, b)`, by which handlers of Click elements find its numbers.
//!
//! | node | serves |
//! |---|---|
//! | `prio(a, b, …)` | the first that has packets |
//! | `round-robin(a, b, …)` | one after the other, a packet each |
//! | `drr(QUANTUM, a, b, …)` | one after the other, as many bytes each (deficit round robin, Shreedhar and Varghese 1995) |
//! | `stride(TICKETS a, TICKETS b, …)` | as many packets as they have tickets (stride scheduling, Waldspurger 1995) |
//! | `switch(NUMBER, a, b, …)` | one of them only; -1: none |
//! | `rate(RATE, a)` | at most at a rate, that of one forwarder |
//!
//! `NAME[CAPACITY red MIN MAX P]` drops early (Floyd and Jacobson 1993): the probability rises from 0 at an average length
//! of MIN to P, a number up to 1, at MAX. `stability N` after it is the weight of the present length, 2^-N (default 4);
//! `gentle` lets the probability rise further to 1 at twice MAX, where it otherwise is 1 from MAX on. With `aside` the
//! selected packets leave by an output of their own, up to 256 at a time.
//!
//! With `port` packets wait while that port has a burst to send that its device does not take: the order decides which of
//! them leave next. Queues keep their packets, by their names, when a configuration changes.
//!
//! ```lua
//! graph:path("classify.0", { "to-queue", as = "voice", number = 0 },
//!     { "schedule", order = "rate(10mbit, prio(voice[100], data[1000 red 50 500 0.02]))" })
//! graph:path("classify.1", { "to-queue", as = "data", number = 1 }, "schedule")
//! graph:path("schedule.0", { "to-port", port = "right" }, "transmit")
//! graph:path("schedule.1", "to-port")
//! ```

mod order;
mod tree;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use self::order::{Early, QueueConfig};
pub use self::order::{OrderNumber, order_number, with_order_number};
use self::tree::Node;
use super::queue::{PASSES_MOST, exchange};
use crate::batch::{BATCH_MAX, Batch, Held};
use crate::catalogue::{MakeContext, StepSpec};
use crate::gauge::{Gauge, Gauges};
use crate::graph::{MAX_OUTPUTS, Origin, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param};
use crate::port::PortId;
use crate::reason::DropReason;
use crate::transmit::red::{Choice, Thresholds, Verdict};

/// Most queues: each has an output.
pub(super) const QUEUES_MOST: usize = MAX_OUTPUTS - DROPS;

/// Outputs of packets that are dropped, behind all others: queue-full, queue-red, looped, emptied.
const DROPS: usize = 4;
const FULL: usize = 0;
const RED: usize = 1;
const LOOPED: usize = 2;
const EMPTIED: usize = 3;

/// Most packets of a queue that were selected early and wait for their own output.
const ASIDE_MOST: usize = 256;

static ORDER: Grammar = Grammar {
    expected: "an order such as \"prio(voice[100], data[1000])\"",
    check: |text| order::read(text, 1).map(drop),
};

pub(super) fn spec() -> StepSpec {
    let order =
        Param::new("order", Kind::Parsed(&ORDER), "the queues, and the order of their service");
    let port = Param::new("port", Kind::Text, "the port whose device the packets wait for");
    StepSpec::new("schedule", &[], make)
        .outputs_by(outputs)
        .param(order.or(Arg::Text("queue[1000]".to_owned())))
        .param(port.or(Arg::Text(String::new())))
}

fn read(args: &Args) -> (Node, Vec<QueueConfig>) {
    // Checked by the grammar.
    order::read(args.text("order"), dpdk::tsc_hz()).unwrap_or((Node::Queue(0), Vec::new()))
}

fn outputs(args: &Args) -> Vec<Output> {
    let configs = read(args).1;
    let queues = (0..configs.len()).map(|number| number.to_string());
    let early = aside(&configs).map(|number| format!("early-{number}"));
    let drops = [
        Output::Drop(DropReason::QueueFull),
        Output::Drop(DropReason::QueueRed),
        Output::DropAs("looped".into()),
        Output::DropAs("emptied".into()),
    ];
    queues.chain(early).map(|name| Output::Deferred(name.into())).chain(drops).collect()
}

/// The queues whose early packets have an output.
fn aside(configs: &[QueueConfig]) -> impl Iterator<Item = usize> {
    let has = |config: &QueueConfig| config.early.is_some_and(|early| early.aside);
    configs.iter().enumerate().filter(move |(_, config)| has(config)).map(|(number, _)| number)
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let (order, configs) = read(context.args);
    let gauges = context.tables.shared.get::<Gauges>();
    let with_aside: Vec<usize> = aside(&configs).collect();
    let (count, of) =
        (configs.len(), |number: usize| with_aside.iter().position(|&at| at == number));
    let queue = |(number, config): (usize, QueueConfig)| {
        let length = gauges.make(&config.name);
        Queue::new(config, of(number).map(|place| count + place), length)
    };
    let queues = configs.into_iter().enumerate().map(queue).collect();
    let port = context.port(context.args.text("port"));
    let outputs = outputs(context.args);
    Box::new(Schedule { outputs, order, queues, port, aside_first: false })
}

struct Queue {
    name: String,
    held: VecDeque<Held>,
    capacity: usize,
    early: Option<Choice>,
    aside: Option<Aside>,
    /// The first so many packets are dropped, as the queue is being emptied.
    emptied: usize,
    /// The number of packets, for others to see.
    length: Arc<Gauge>,
}

/// Packets that were selected early, and their output.
struct Aside {
    held: VecDeque<Held>,
    output: usize,
}

impl Queue {
    fn new(config: QueueConfig, aside: Option<usize>, length: Arc<Gauge>) -> Self {
        let QueueConfig { name, capacity, early } = config;
        let early = early.map(choice);
        let aside = aside.map(|output| Aside { held: VecDeque::with_capacity(ASIDE_MOST), output });
        let held = VecDeque::with_capacity(capacity);
        Self { name, held, capacity, early, aside, emptied: 0, length }
    }

    /// All that it holds.
    fn count(&self) -> usize {
        self.held.len() + self.aside.as_ref().map_or(0, |aside| aside.held.len())
    }

    /// Empties the queue if a handler asks for it: its packets leave as drops.
    #[inline(always)]
    fn look_for_handlers(&mut self) {
        if self.length.begins_anew() {
            self.emptied = self.held.len();
        }
    }

    /// Puts a packet that was selected early aside; returns false without room or output for it.
    fn put_aside(&mut self, batch: &mut Batch, slot: usize) -> bool {
        let Some(aside) = &mut self.aside else { return false };
        let may = aside.held.len() < ASIDE_MOST && batch.passes(slot) < PASSES_MOST;
        if may {
            aside.held.extend(batch.take(slot));
        }
        may
    }

    /// Returns true if the packet that arrives now is dropped early.
    fn drops_early(&mut self, now: u64) -> bool {
        let len = self.held.len();
        self.early.as_mut().is_some_and(|early| early.judge(len, now) != Verdict::Pass)
    }

    fn pop(&mut self, now: u64) -> Option<Held> {
        let first = self.held.pop_front()?;
        self.note_empty(now);
        Some(first)
    }

    /// Lets the average length fall from now on, if the last packet has left.
    fn note_empty(&mut self, now: u64) {
        if let (Some(early), true) = (&mut self.early, self.held.is_empty()) {
            early.emptied(now);
        }
    }
}

/// The averages of queues that are empty fall as with 50 packets a second.
const IDLE_HZ: u64 = 50;

fn choice(early: Early) -> Choice {
    let Early { least, most, probability, stability, gentle, aside: _ } = early;
    let thresholds = Thresholds {
        least: least.into(),
        most: most.into(),
        probability,
        all: f64::from(most) * if gentle { 2.0 } else { 1.0 },
        weight: 0.5f64.powi(stability.into()),
    };
    Choice::new(thresholds, dpdk::tsc_hz() / IDLE_HZ, dpdk::tsc())
}

/// Moves at most so many packets into the batch; returns their number.
fn emit_from(held: &mut VecDeque<Held>, batch: &mut Batch, most: usize, out: &mut Mask) -> usize {
    for count in 0..most {
        // Packets of another port are for a batch of their own.
        if !held.front().is_some_and(|first| batch.admits(first)) {
            return count;
        }
        let Some(first) = held.pop_front() else { return count };
        if let Ok(slot) = batch.put(first) {
            *out |= Mask::when(true, slot);
        }
    }
    most
}

struct Schedule {
    outputs: Vec<Output>,
    order: Node,
    queues: Vec<Queue>,
    port: Option<PortId>,
    /// Packets put aside come before those of the order: every second time.
    aside_first: bool,
}

impl Schedule {
    /// Publishes the lengths of the queues.
    fn publish(&self) {
        self.queues.iter().for_each(|queue| queue.length.set(queue.held.len()));
    }

    /// Emits packets of queues that are being emptied, as drops; returns their number.
    fn emit_emptied(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> usize {
        let (mut count, emptied) = (0, self.outputs.len() - DROPS + EMPTIED);
        for queue in &mut self.queues {
            queue.look_for_handlers();
            let some = queue.emptied.min(most - count);
            let gone = emit_from(&mut queue.held, batch, some, &mut out[emptied]);
            if gone > 0 {
                queue.note_empty(batch.now);
            }
            queue.emptied -= gone;
            count += gone;
        }
        count
    }

    /// Emits packets put aside, which no order holds back; returns their number.
    fn emit_aside(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> usize {
        let mut count = 0;
        for aside in self.queues.iter_mut().filter_map(|queue| queue.aside.as_mut()) {
            count += emit_from(&mut aside.held, batch, most - count, &mut out[aside.output]);
        }
        count
    }

    /// Emits packets by the order; returns their number.
    fn emit_ordered(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> usize {
        let Self { order, queues, port, .. } = self;
        if port.is_some_and(|port| batch.full.contains(port)) {
            return 0;
        }
        for count in 0..most {
            let front = |queue: usize| Some(queues.get(queue)?.held.front()?.packet.len());
            let Some(next) = order.next(&front, batch.now) else { return count };
            // Packets of another port are for a batch of their own.
            if !queues[next].held.front().is_some_and(|first| batch.admits(first)) {
                return count;
            }
            let taken = order.take(&front, batch.now);
            debug_assert_eq!(taken, Some(next));
            let Some(first) = queues[next].pop(batch.now) else { return count };
            if let Ok(slot) = batch.put(first) {
                out[next] |= Mask::when(true, slot);
            }
        }
        most
    }
}

impl Step for Schedule {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let (count, now) = (self.queues.len(), batch.now);
        let drops = self.outputs.len() - DROPS;
        self.queues.iter_mut().for_each(Queue::look_for_handlers);
        for slot in input.slots() {
            let number = std::mem::take(&mut batch.queue[slot & (BATCH_MAX - 1)]);
            let number = usize::from(number).min(count - 1);
            let Some(queue) = self.queues.get_mut(number) else { continue };
            if queue.drops_early(now) {
                out[drops + RED] |= Mask::when(!queue.put_aside(batch, slot), slot);
            } else if queue.held.len() >= queue.capacity {
                out[drops + FULL] |= Mask::when(true, slot);
            } else if batch.passes(slot) >= PASSES_MOST {
                out[drops + LOOPED] |= Mask::when(true, slot);
            } else {
                queue.held.extend(batch.take(slot));
            }
        }
        self.publish();
    }

    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        let mut left = most - self.emit_emptied(batch, most, out);
        // Half of the places each, as far as both have packets; and the first one decides of which port the batch is.
        self.aside_first = !self.aside_first;
        let (first, half) = (self.aside_first, left.div_ceil(2));
        for (is_aside, limit) in [(first, half), (!first, most), (first, most)] {
            let limit = limit.min(left);
            left -= if is_aside {
                self.emit_aside(batch, limit, out)
            } else {
                self.emit_ordered(batch, limit, out)
            };
        }
        self.publish();
        Origin::Held
    }

    fn held(&self) -> usize {
        self.queues.iter().map(Queue::count).sum()
    }

    fn is_waiting(&self) -> bool {
        self.queues.iter().any(|queue| queue.count() > 0)
    }

    fn release(&mut self, drop: &mut dyn FnMut(Held)) {
        for queue in &mut self.queues {
            queue.held.drain(..).for_each(&mut *drop);
            queue.emptied = 0;
            let aside = queue.aside.iter_mut().flat_map(|aside| aside.held.drain(..));
            aside.for_each(&mut *drop);
        }
        self.publish();
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.queues)
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        let Some(old) = old.downcast_mut::<Vec<Queue>>() else { return };
        for new in &mut self.queues {
            let Some(old) = old.iter_mut().find(|old| old.name == new.name) else { continue };
            exchange(&mut new.held, &mut old.held, new.capacity);
            std::mem::swap(&mut new.emptied, &mut old.emptied);
            if let (Some(new), Some(old)) = (&mut new.aside, &mut old.aside) {
                std::mem::swap(&mut new.held, &mut old.held);
            }
            if let (Some(new), Some(old)) = (&mut new.early, &old.early) {
                new.continue_from(old);
            }
        }
        self.publish();
    }
}

#[cfg(test)]
mod tests;
