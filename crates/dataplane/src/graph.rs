//! The mask graph: steps, the edges between them, and the loop that runs a batch through.
//!
//! A graph is a directed acyclic graph of [`Step`]s. Each output of a step is an edge; it leads to
//! another step or to one of four ends: *transmit* (the packet leaves by its egress port),
//! *replicate* (by all its [`Batch::receivers`]), *slow path* (with a [`PuntReason`]), *drop* (with
//! a [`DropReason`]). During a run, an edge is one [`Mask`] of the batch's packets that take it:
//!
//! ```text
//!                 masks[ip4]         masks[lookup]        masks[TRANSMIT]
//!  batch --> classify ====> ip4-validate ====> ip4-lookup ====> ... ====> transmit
//!               |  |             |                 |
//!               |  +== arp ====> | == options ===> | == glean ==> masks[SLOW_PATH] + reason
//!               +===== runt ===> + == checksum ==> + ===========> masks[DROP]
//! ```
//!
//! [`Plan`] describes a graph, checks it, and flattens it into topological order. Running it
//! then costs, per step, one virtual call, and per edge one OR, one population count and one
//! addition. A step whose mask is empty costs one branch. Packets never change their slot, so
//! merging paths keeps their order.
//!
//! A step may keep packets, or make some, and give them to the graph later: by its *deferred* outputs
//! ([`Output::Deferred`]), for which its forwarder calls [`Step::emit`] in each round, like a receive queue. Such an output
//! may lead anywhere, also back: the graph is acyclic without them.
//!
//! Idea: drop-out batching of MoonRoute, from one line of steps to any graph.
//!
//! [`Plan`]: crate::plan::Plan

use std::any::Any;
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::{BATCH_MAX, Batch, Held};
use crate::companions::Companions;
use crate::counters::Counter;
use crate::mask::Mask;
use crate::quarantine::guard;
use crate::reason::{DropReason, PuntReason};
pub use crate::shape::{Shape, StepShape, Target};
use crate::watch::Watch;

/// The most outputs that a step can have.
pub const MAX_OUTPUTS: usize = 16;

/// One unit of the packet path.
pub trait Step: Send {
    /// The step's outputs, in the order in which [`Step::process`] sets their masks; those that its
    /// [`StepSpec`](crate::catalogue::StepSpec) declares.
    fn outputs(&self) -> &[Output];

    /// Handles the packets of `input` (never empty) and assigns each to an output in `out`. Every packet of
    /// `input` must be in exactly one output; a packet in none is dropped with [`DropReason::StepLost`].
    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs);

    /// Puts at most `most` packets of its own into an empty batch, each into a deferred output or a drop in `out`. Called in each
    /// round of the forwarder for a step with such outputs.
    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        let _ = (batch, most, out);
        Origin::Held
    }

    /// The number of packets that it holds, without those that have not been in the graph yet.
    fn held(&self) -> usize {
        0
    }

    /// Returns true if it can emit packets now, or soon without another packet for it.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Gives up the packets of [`Self::held`], and frees others.
    fn release(&mut self, drop: &mut dyn FnMut(Held)) {
        let _ = drop;
    }

    /// The step's own counters, the same as long as it lives. Called when the graph is built.
    fn counters(&self) -> Option<&StepCounters> {
        None
    }

    /// Returns the step's state for [`Self::take_state`] of the step that replaces it; `None` if it
    /// has none.
    fn state(&mut self) -> Option<&mut dyn Any> {
        None
    }

    /// Exchanges state with a step of the same name and kind that it replaces on the same forwarder. `old` is
    /// the other's [`Self::state`]; the other may have other arguments, and gets its state back if the change
    /// is undone. Called between two batches: it must not allocate or wait.
    fn take_state(&mut self, old: &mut dyn Any) {
        let _ = old;
    }
}

/// Named counters of a step, written by its forwarder, readable by any thread. Copies share the
/// counters.
#[derive(Clone, Debug)]
pub struct StepCounters(Arc<[(&'static str, Counter)]>);

impl StepCounters {
    /// Counters of these names, at 0.
    pub fn new(names: &[&'static str]) -> Self {
        Self(names.iter().map(|&name| (name, Counter::default())).collect())
    }

    /// Returns the counter at this index of the list of names; to be changed by its step only.
    ///
    /// # Panics
    /// There are fewer.
    #[inline(always)]
    pub fn at(&self, index: usize) -> &Counter {
        &self.0[index].1
    }

    /// Every name and its value now.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, counter)| (*name, counter.get()))
    }
}

/// The masks of a step's outputs, all empty when [`Step::process`] is called.
pub type Outputs = [Mask; MAX_OUTPUTS];

/// The origin of packets that a step emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They were in the graph before.
    Held,
    /// The step has made them, of others or of its own.
    Made,
}

/// A step's declaration of one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Leads to the target that the graph connects to this name: a step, transmit or replicate.
    Next(Cow<'static, str>),
    /// Likewise, for packets that the step emits later; [`Step::process`] gives it none.
    Deferred(Cow<'static, str>),
    /// Leads to the slow path.
    Punt(PuntReason),
    /// Leads to the end that frees and counts.
    Drop(DropReason),
    /// Leads to the same end, counted as [`DropReason::ByStep`] and under this name among the
    /// step's own counters.
    DropAs(Cow<'static, str>),
}

impl Output {
    /// Creates [`Self::Next`] from a constant name.
    pub const fn next(name: &'static str) -> Self {
        Self::Next(Cow::Borrowed(name))
    }

    /// Returns the name in connections and pictures.
    pub fn name(&self) -> &str {
        match self {
            Output::Next(name) | Output::Deferred(name) | Output::DropAs(name) => name,
            Output::Punt(reason) => reason.name(),
            Output::Drop(reason) => reason.name(),
        }
    }
}

/// A step at its position of the topological order.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) step: Box<dyn Step>,
    /// The targets of its outputs; steps by their places.
    pub(crate) targets: Vec<Target>,
}

fn edges_of(targets: &[Target], steps: usize, first_edge: usize) -> Box<[Edge]> {
    let to = |target: &Target| match *target {
        Target::Step(next) => (next, None),
        Target::Transmit => (steps + TRANSMIT, None),
        Target::Replicate => (steps + REPLICATE, None),
        Target::SlowPath(reason) => (steps + SLOW_PATH, Some(reason)),
        Target::Drop(_) => (steps + DROP, None),
    };
    let edges = targets.iter().map(to).zip(first_edge..);
    edges.map(|((to, punt), counter)| Edge { to, counter, punt }).collect()
}

/// The ends follow the steps in the array of masks.
const TRANSMIT: usize = 0;
const SLOW_PATH: usize = 1;
const DROP: usize = 2;
const REPLICATE: usize = 3;
const ENDS: usize = 4;

#[derive(Clone, Copy)]
struct Edge {
    /// Index into the masks: a step, or an end after the steps.
    to: usize,
    /// Index into the counters.
    counter: usize,
    punt: Option<PuntReason>,
}

struct Placed {
    step: Box<dyn Step>,
    /// The first of the edges, which usually takes all packets: beside the step, without another access to memory.
    first: Option<Edge>,
    /// By output.
    edges: Box<[Edge]>,
}

impl Placed {
    /// Runs the step on these packets. Its outputs count only once it has returned.
    #[inline(always)]
    fn run(&mut self, input: Mask, batch: &mut Batch, tracks: &Tracks) -> Ahead {
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        self.step.process(batch, input, &mut out);
        self.lead(input, &out, tracks)
    }

    /// Leads the step's packets from its outputs to their targets; returns those that are still ahead of theirs. Bits of
    /// undeclared outputs are ignored.
    #[inline(always)]
    fn lead(&self, input: Mask, out: &Outputs, tracks: &Tracks) -> Ahead {
        match &self.first {
            // The other outputs get no packets.
            Some(first) if out[0] == input => tracks.take_all(first, input),
            _ => {
                self.lead_each(out, tracks);
                Ahead::NONE
            }
        }
    }

    #[inline(always)]
    fn lead_each(&self, out: &Outputs, tracks: &Tracks) {
        for (edge, &packets) in self.edges.iter().zip(out) {
            if !packets.is_empty() {
                tracks.take(edge, packets);
            }
        }
    }
}

/// Packets that go from one step to another, both of them usually neighbours. They are not in memory meanwhile: to write a
/// mask there and to read it again would take longer than the work of many a step on one packet.
#[derive(Clone, Copy)]
struct Ahead {
    to: usize,
    packets: Mask,
}

impl Ahead {
    const NONE: Self = Self { to: 0, packets: Mask::EMPTY };
}

/// The state of a batch's way through the graph. Of the running forwarder alone; cells, because steps run while it is
/// read.
struct Tracks {
    /// One mask a step, then one an end.
    masks: Box<[Cell<Mask>]>,
    punt_reasons: [Cell<PuntReason>; BATCH_MAX],
    counters: Arc<GraphCounters>,
}

impl Tracks {
    /// Leads packets along an edge, and counts them.
    #[inline(always)]
    fn take(&self, edge: &Edge, packets: Mask) {
        self.wait(self.take_all(edge, packets));
    }

    /// [`Self::take`] but for the last step of the way.
    #[inline(always)]
    fn take_all(&self, edge: &Edge, packets: Mask) -> Ahead {
        self.counters.add(edge.counter, packets.count());
        if let Some(reason) = edge.punt {
            for slot in packets.slots() {
                self.punt_reasons[slot].set(reason);
            }
        }
        Ahead { to: edge.to, packets }
    }

    /// Has packets wait for their step or end.
    #[inline(always)]
    fn wait(&self, ahead: Ahead) {
        if let Some(waiting) = self.masks.get(ahead.to) {
            waiting.set(waiting.get() | ahead.packets);
        }
    }

    /// Returns the packets that wait for a step or an end, which wait no longer.
    #[inline(always)]
    fn leave(&self, place: usize) -> Mask {
        self.masks.get(place).map_or(Mask::EMPTY, Cell::take)
    }
}

/// Packets per edge, and the counters of steps; written by one forwarder, readable by any thread.
#[derive(Default)]
pub struct GraphCounters {
    edges: Box<[AtomicU64]>,
    /// By place in the order.
    steps: Box<[Option<StepCounters>]>,
}

impl GraphCounters {
    fn new(edges: usize, steps: &[Placed]) -> Self {
        Self {
            edges: (0..edges).map(|_| AtomicU64::new(0)).collect(),
            steps: steps.iter().map(|placed| placed.step.counters().cloned()).collect(),
        }
    }

    /// Returns the own counters of the step at this position.
    pub fn of_step(&self, place: usize) -> impl Iterator<Item = (&'static str, u64)> {
        self.steps.get(place).into_iter().flatten().flat_map(StepCounters::all)
    }

    /// Returns the number of packets that took this edge so far.
    pub fn get(&self, edge: usize) -> u64 {
        self.edges.get(edge).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Adds to a counter of which the caller is the only writer: a load and a store, no locked
    /// instruction.
    #[inline(always)]
    fn add(&self, edge: usize, packets: u32) {
        if let Some(counter) = self.edges.get(edge) {
            let sum = counter.load(Ordering::Relaxed).wrapping_add(u64::from(packets));
            counter.store(sum, Ordering::Relaxed);
        }
    }
}

/// The ends that the packets of a batch reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// To be sent by [`Batch::out_interface`].
    pub transmit: Mask,
    /// To be sent by all ports of [`Batch::receivers`].
    pub replicate: Mask,
    /// Packets for the slow path; [`Graph::punt_reason`] has the reason.
    pub slow_path: Mask,
    /// To be freed; already counted by their edges.
    pub drop: Mask,
}

/// A graph ready to run, owned by one forwarder.
pub struct Graph {
    steps: Vec<Placed>,
    tracks: Tracks,
    /// The running step and its packets: the place of a panic.
    at: (usize, Mask),
    /// The places of the steps with deferred outputs.
    sources: Box<[usize]>,
    shape: Arc<Shape>,
    /// Parts that are exchanged with it, and act outside of its steps.
    pub companions: Companions,
    /// Observers of packets; nearly always none.
    pub(crate) watches: Vec<Box<dyn Watch>>,
}

impl Graph {
    /// Of these steps, in this order.
    pub(crate) fn assemble(parts: Vec<Part>) -> Self {
        let count = parts.len();
        let (mut steps, mut shape) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut first_edge = 0;
        for Part { name, kind, step, targets } in parts {
            let names = step.outputs().iter().map(|output| output.name().to_owned());
            let outputs = names.zip(targets.iter().copied()).collect();
            shape.push(StepShape { name, kind, outputs, first_edge });
            let edges = edges_of(&targets, count, first_edge);
            steps.push(Placed { step, first: edges.first().copied(), edges });
            first_edge += targets.len();
        }
        let shape = Arc::new(Shape { steps: shape, edges: first_edge });
        let is_deferred = |output: &Output| matches!(output, Output::Deferred(_));
        let is_source = |placed: &Placed| placed.step.outputs().iter().any(is_deferred);
        let sources = (0..count).filter(|&place| steps.get(place).is_some_and(is_source));
        let sources = sources.collect();
        let tracks = Tracks {
            masks: vec![Cell::new(Mask::EMPTY); steps.len() + ENDS].into(),
            punt_reasons: [const { Cell::new(PuntReason::Arp) }; BATCH_MAX],
            counters: Arc::new(GraphCounters::new(shape.edges, &steps)),
        };
        Self {
            tracks,
            at: (0, Mask::EMPTY),
            sources,
            steps,
            shape,
            companions: Companions::default(),
            watches: Vec::new(),
        }
    }

    /// The graph's form.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// The counters of this forwarder's copy of the graph.
    pub fn counters(&self) -> &Arc<GraphCounters> {
        &self.tracks.counters
    }

    /// Passes the state of each step of the replaced graph to the step with the same name and kind
    /// in this one.
    pub(crate) fn take_state(&mut self, old: &mut Self) {
        for (placed, shape) in self.steps.iter_mut().zip(&self.shape.steps) {
            if placed.step.state().is_none() {
                continue;
            }
            let same = |old: &StepShape| old.name == shape.name && old.kind == shape.kind;
            let before = old.shape.steps.iter().position(same).and_then(|at| old.steps.get_mut(at));
            if let Some(state) = before.and_then(|before| before.step.state()) {
                placed.step.take_state(state);
            }
        }
    }

    /// The number of steps with deferred outputs.
    #[inline(always)]
    pub(crate) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Fills an empty batch with at most so many packets of a step with deferred outputs, by its number among those, and
    /// sends them through the graph from there. Returns their origin, their number, and the ends that they reached.
    pub(crate) fn emit(
        &mut self,
        source: usize,
        batch: &mut Batch,
        most: usize,
    ) -> (Origin, usize, Ends) {
        let place = self.sources[source];
        self.at = (place, Mask::EMPTY);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        let origin = self.steps[place].step.emit(batch, most, &mut out);
        self.steps[place].lead_each(&out, &self.tracks);
        let count = batch.packets().count() as usize;
        if count == 0 {
            return (origin, 0, Ends::default());
        }
        // A deferred output may lead to an earlier place.
        (origin, count, self.run_from(Ahead::NONE, batch))
    }

    /// The packets that steps hold.
    pub(crate) fn held(&self) -> usize {
        self.sources.iter().map(|&place| self.steps[place].step.held()).sum()
    }

    /// Returns true if a step has packets to emit.
    pub(crate) fn is_waiting(&self) -> bool {
        self.sources.iter().any(|&place| self.steps[place].step.is_waiting())
    }

    /// Takes the packets that steps hold.
    pub(crate) fn release(&mut self, drop: &mut dyn FnMut(Held)) {
        let Self { sources, steps, .. } = self;
        sources.iter().for_each(|&place| steps[place].step.release(drop));
    }

    /// Runs all packets of the batch through the steps and returns the ends that they reached.
    pub fn run(&mut self, batch: &mut Batch) -> Ends {
        self.run_from(Ahead { to: 0, packets: batch.packets() }, batch)
    }

    /// Continues after a panic in [`Self::run`] or here. The step that panicked gets its packets
    /// once more, one at a time; `guilty` receives those that cause it to panic again (slot and
    /// message). All others continue after that step, as do those that were not in it.
    ///
    /// A step that changes packets thus runs twice on those that it had changed before it panicked
    /// over another.
    #[cold]
    pub fn resume(
        &mut self,
        batch: &mut Batch,
        mut guilty: impl FnMut(&mut Batch, usize, String),
    ) -> Ends {
        loop {
            let (place, input) = self.at;
            for slot in input.slots() {
                let one = Mask::when(true, slot);
                match guard(|| self.steps[place].run(one, batch, &self.tracks)) {
                    Ok(ahead) => self.tracks.wait(ahead),
                    Err(message) => guilty(batch, slot, message),
                }
            }
            // Each panic is in a later step than the one before, so the loop ends.
            if let Ok(ends) = guard(|| self.run_from(Ahead { to: place + 1, ..Ahead::NONE }, batch))
            {
                return ends;
            }
        }
    }

    /// Runs all steps from the place of the packets that are ahead on.
    #[inline(always)]
    fn run_from(&mut self, mut ahead: Ahead, batch: &mut Batch) -> Ends {
        let first = ahead.to;
        if !self.watches.is_empty() {
            self.tracks.wait(std::mem::replace(&mut ahead, Ahead::NONE));
            self.run_watched(first, batch);
        }
        let Self { steps, tracks, at, .. } = self;
        let steps = steps.as_mut_slice();
        // As long as the steps: one comparison a step checks both.
        let Some(waiting) = tracks.masks.get(..steps.len()) else { return Ends::default() };
        for place in first..steps.len() {
            let mut input = waiting[place].get();
            if place == ahead.to {
                input |= ahead.packets;
            } else if !input.is_empty() {
                // A panic must find them there.
                tracks.wait(ahead);
            }
            if !input.is_empty() {
                waiting[place].set(Mask::EMPTY);
                *at = (place, input);
                ahead = steps[place].run(input, batch, tracks);
            }
        }
        tracks.wait(ahead);
        let Some(ends) = tracks.masks.last_chunk::<ENDS>() else { return Ends::default() };
        let end = |place: usize| ends[place].take();
        Ends {
            transmit: end(TRANSMIT),
            replicate: end(REPLICATE),
            slow_path: end(SLOW_PATH),
            drop: end(DROP),
        }
    }

    /// Runs all steps from this place on, and shows the watches the packets in front of and behind each.
    #[cold]
    fn run_watched(&mut self, first: usize, batch: &mut Batch) {
        if first == 0 {
            self.watches.iter_mut().for_each(|watch| watch.begin(&self.shape, batch));
        }
        for place in first..self.steps.len() {
            let input = self.tracks.leave(place);
            if input.is_empty() {
                continue;
            }
            self.at = (place, input);
            for watch in &mut self.watches {
                watch.entering((&self.shape, place), input, batch);
            }
            let mut out = [Mask::EMPTY; MAX_OUTPUTS];
            self.steps[place].step.process(batch, input, &mut out);
            let declared = self.steps[place].edges.len().min(MAX_OUTPUTS);
            for watch in &mut self.watches {
                watch.passed((&self.shape, place), (input, &out[..declared]), batch);
            }
            self.tracks.wait(self.steps[place].lead(input, &out, &self.tracks));
        }
    }

    /// Returns the reason for which the packet in this slot was punted by the last [`Graph::run`];
    /// valid for packets of [`Ends::slow_path`].
    pub fn punt_reason(&self, slot: usize) -> PuntReason {
        self.tracks.punt_reasons[slot & (BATCH_MAX - 1)].get()
    }
}

#[cfg(test)]
mod tests;
