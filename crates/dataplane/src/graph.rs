//! The mask graph: steps, the edges between them, and the loop that runs a batch through.
//!
//! A graph is a directed acyclic graph of [`Step`]s. Each output of a step is an edge; it leads to
//! another step or to one of four ends: *transmit* (the packet leaves by its egress port), *replicate*
//! (by all its [`Batch::replicas`]), *slow path* (with a [`PuntReason`]), *drop* (with a
//! [`DropReason`]). While a batch runs through, an
//! edge is one [`Mask`] saying which of the batch's packets take it:
//!
//! ```text
//!                 masks[ip4]         masks[lookup]        masks[TRANSMIT]
//!  batch --> classify ====> ip4-validate ====> ip4-lookup ====> ... ====> transmit
//!               |  |             |                 |
//!               |  +== arp ====> | == options ===> | == glean ==> masks[SLOW_PATH] + reason
//!               +===== runt ===> + == checksum ==> + ===========> masks[DROP]
//! ```
//!
//! [`GraphBuilder::build`] checks the graph and flattens it into topological order. Running it
//! then costs, per step, one virtual call, and per edge one OR, one population count and one
//! addition. A step whose mask is empty costs one branch. Packets never change their slot, so
//! merging paths keeps their order.
//!
//! Idea: drop-out batching of MoonRoute, from one line of steps to any graph.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::batch::{BATCH_MAX, Batch};
use crate::mask::Mask;
use crate::quarantine::guard;
use crate::reason::{DropReason, PuntReason};

/// The most outputs that a step can have.
pub const MAX_OUTPUTS: usize = 16;

/// One unit of the packet path.
pub trait Step: Send {
    /// The step's outputs, in the order in which [`Step::process`] sets their masks.
    fn outputs(&self) -> &'static [Output];

    /// Handles the packets of `input` (never empty) and says by `out` where each of them goes.
    /// Every packet of `input` must be in exactly one output; a packet in none is dropped with
    /// [`DropReason::StepLost`].
    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs);
}

/// The masks of a step's outputs, all empty when [`Step::process`] is called.
pub type Outputs = [Mask; MAX_OUTPUTS];

/// A step's declaration of one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Leads to the step, or to transmit or replicate, that the graph connects it to by this name.
    Next(&'static str),
    /// Leads to the slow path.
    Punt(PuntReason),
    /// Leads to the end that frees and counts.
    Drop(DropReason),
    /// Leads there as well, counted as [`DropReason::ByStep`] and by this name among the step's own counters.
    DropAs(&'static str),
}

impl Output {
    /// The name that connections and pictures use.
    pub fn name(self) -> &'static str {
        match self {
            Output::Next(name) | Output::DropAs(name) => name,
            Output::Punt(reason) => reason.name(),
            Output::Drop(reason) => reason.name(),
        }
    }
}

/// Where an edge leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the step at this position of the topological order.
    Step(usize),
    /// Out by the packet's egress port.
    Transmit,
    /// Out by each of the packet's [`Batch::replicas`].
    Replicate,
    /// To the slow path.
    SlowPath(PuntReason),
    /// Freed and counted.
    Drop(DropReason),
}

/// Why a graph cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphError {
    /// Two steps have this name.
    DuplicateStep(String),
    /// A connection names a step that does not exist.
    UnknownStep {
        /// The name that was not found.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A connection names an output that the step does not have.
    UnknownOutput {
        /// The step.
        step: String,
        /// The name that was not found.
        output: String,
        /// The outputs that can be connected.
        known: Vec<&'static str>,
    },
    /// An output is connected twice.
    ConnectedTwice {
        /// The step.
        step: String,
        /// Its output.
        output: String,
    },
    /// An output leads nowhere.
    Unconnected {
        /// The step.
        step: String,
        /// Its output.
        output: &'static str,
    },
    /// A step declares more outputs than a graph can carry.
    TooManyOutputs {
        /// The step.
        step: String,
        /// How many it declares.
        outputs: usize,
    },
    /// These steps form a circle, or can be reached only through one.
    Cycle(Vec<String>),
    /// No path leads from the first step to this one.
    Unreachable(String),
    /// There is no step at all.
    Empty,
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GraphError::DuplicateStep(name) => {
                write!(f, "step \"{name}\" exists already; give the second one another name")
            }
            GraphError::UnknownStep { name, known } => {
                write!(f, "step \"{name}\" not found; known: {}", known.join(", "))
            }
            GraphError::UnknownOutput { step, output, known } => {
                write!(
                    f,
                    "step \"{step}\": output \"{output}\" not found; known: {}",
                    known.join(", ")
                )
            }
            GraphError::ConnectedTwice { step, output } => {
                write!(f, "step \"{step}\": output \"{output}\" is connected twice; remove one")
            }
            GraphError::Unconnected { step, output } => {
                write!(f, "step \"{step}\": output \"{output}\" leads nowhere; connect it")
            }
            GraphError::TooManyOutputs { step, outputs } => {
                write!(f, "step \"{step}\": {outputs} outputs; at most {MAX_OUTPUTS}")
            }
            GraphError::Cycle(steps) => {
                write!(f, "steps {} form a circle; remove one connection", steps.join(", "))
            }
            GraphError::Unreachable(step) => {
                write!(f, "step \"{step}\": no path leads to it; connect it or remove it")
            }
            GraphError::Empty => f.write_str("the graph has no steps; add one"),
        }
    }
}

impl std::error::Error for GraphError {}

struct Node {
    name: String,
    kind: String,
    step: Box<dyn Step>,
    targets: Vec<Option<Target>>,
}

/// Collects steps and connections; the first step added receives every batch.
///
/// ```
/// # use dataplane::graph::*; use dataplane::{Batch, Mask};
/// struct Pass;
/// impl Step for Pass {
///     fn outputs(&self) -> &'static [Output] { &[Output::Next("next")] }
///     fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) { out[0] = input; }
/// }
/// let mut graph = GraphBuilder::new();
/// graph.add("first", Pass)?;
/// graph.add("second", Pass)?;
/// graph.connect("first", "next", "second")?;
/// graph.transmit("second", "next")?;
/// assert_eq!(graph.build()?.shape().steps.len(), 2);
/// # Ok::<(), GraphError>(())
/// ```
#[derive(Default)]
pub struct GraphBuilder {
    nodes: Vec<Node>,
}

impl GraphBuilder {
    /// A graph without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step under a name of its own; punts and drops are connected at once.
    pub fn add(&mut self, name: &str, step: impl Step + 'static) -> Result<(), GraphError> {
        self.add_boxed(name, name, Box::new(step))
    }

    /// [`Self::add`] for a step whose type only its maker knows, and which may be one of several of its
    /// kind.
    pub fn add_boxed(
        &mut self,
        name: &str,
        kind: &str,
        step: Box<dyn Step>,
    ) -> Result<(), GraphError> {
        if self.nodes.iter().any(|node| node.name == name) {
            return Err(GraphError::DuplicateStep(name.to_owned()));
        }
        let outputs = step.outputs();
        if outputs.len() > MAX_OUTPUTS {
            return Err(GraphError::TooManyOutputs {
                step: name.to_owned(),
                outputs: outputs.len(),
            });
        }
        let targets = outputs
            .iter()
            .map(|output| match *output {
                Output::Next(_) => None,
                Output::Punt(reason) => Some(Target::SlowPath(reason)),
                Output::Drop(reason) => Some(Target::Drop(reason)),
                Output::DropAs(_) => Some(Target::Drop(DropReason::ByStep)),
            })
            .collect();
        self.nodes.push(Node { name: name.to_owned(), kind: kind.to_owned(), step, targets });
        Ok(())
    }

    /// Leads an output of step `from` to step `to`.
    pub fn connect(&mut self, from: &str, output: &str, to: &str) -> Result<(), GraphError> {
        let to = self.find(to)?;
        self.lead(from, output, Target::Step(to))
    }

    /// Leads an output of step `from` out of the router.
    pub fn transmit(&mut self, from: &str, output: &str) -> Result<(), GraphError> {
        self.lead(from, output, Target::Transmit)
    }

    /// Frees the packets of an output, under [`DropReason::ByStep`].
    pub fn discard(&mut self, from: &str, output: &str) -> Result<(), GraphError> {
        self.lead(from, output, Target::Drop(DropReason::ByStep))
    }

    /// Puts a new step in front of step `before`: all that led there leads to the new one, whose
    /// `output` leads on.
    pub fn insert(
        &mut self,
        name: &str,
        step: impl Step + 'static,
        output: &str,
        before: &str,
    ) -> Result<(), GraphError> {
        let next = self.find(before)?;
        self.add(name, step)?;
        let new = self.nodes.len() - 1;
        for target in self.nodes.iter_mut().flat_map(|node| &mut node.targets) {
            if *target == Some(Target::Step(next)) {
                *target = Some(Target::Step(new));
            }
        }
        self.connect(name, output, before)
    }

    /// Leads an output of step `from` out of the router, by several ports at once.
    pub fn replicate(&mut self, from: &str, output: &str) -> Result<(), GraphError> {
        self.lead(from, output, Target::Replicate)
    }

    fn find(&self, name: &str) -> Result<usize, GraphError> {
        self.nodes.iter().position(|node| node.name == name).ok_or_else(|| {
            GraphError::UnknownStep {
                name: name.to_owned(),
                known: self.nodes.iter().map(|node| node.name.clone()).collect(),
            }
        })
    }

    fn lead(&mut self, from: &str, output: &str, target: Target) -> Result<(), GraphError> {
        let from = self.find(from)?;
        let node = &mut self.nodes[from];
        let outputs = node.step.outputs();
        let wanted = |candidate: &Output| *candidate == Output::Next(candidate.name());
        let Some(index) = outputs.iter().position(|o| wanted(o) && o.name() == output) else {
            return Err(GraphError::UnknownOutput {
                step: node.name.clone(),
                output: output.to_owned(),
                known: outputs.iter().filter(|o| wanted(o)).map(|o| o.name()).collect(),
            });
        };
        if node.targets[index].is_some() {
            return Err(GraphError::ConnectedTwice {
                step: node.name.clone(),
                output: output.to_owned(),
            });
        }
        node.targets[index] = Some(target);
        Ok(())
    }

    /// Checks the graph and brings it into the form that runs.
    pub fn build(self) -> Result<Graph, GraphError> {
        let order = self.topological_order()?;
        let mut position = vec![0; order.len()];
        for (place, &node) in order.iter().enumerate() {
            position[node] = place;
        }
        let mut nodes: Vec<_> = self.nodes.into_iter().map(Some).collect();
        let mut steps = Vec::new();
        let mut shape = Vec::new();
        let mut first_edge = 0;
        for &index in &order {
            let Some(node) = nodes[index].take() else { continue };
            let targets = place_targets(&node, &position)?;
            let edges = targets.len();
            shape.push(StepShape {
                name: node.name,
                kind: node.kind,
                outputs: node
                    .step
                    .outputs()
                    .iter()
                    .map(|o| o.name())
                    .zip(targets.clone())
                    .collect(),
                first_edge,
            });
            steps.push(Placed {
                step: node.step,
                edges: edges_of(&targets, order.len()),
                first_edge,
            });
            first_edge += edges;
        }
        let shape = Arc::new(Shape { steps: shape, edges: first_edge });
        Ok(Graph::new(steps, shape))
    }

    /// Kahn's algorithm, starting at the first step added; ties keep the order of adding, so the
    /// same description always gives the same graph.
    fn topological_order(&self) -> Result<Vec<usize>, GraphError> {
        if self.nodes.is_empty() {
            return Err(GraphError::Empty);
        }
        let mut incoming = vec![0; self.nodes.len()];
        for next in self.nodes.iter().flat_map(next_steps) {
            incoming[next] += 1;
        }
        if let Some(lonely) = (1..self.nodes.len()).find(|&n| incoming[n] == 0) {
            return Err(GraphError::Unreachable(self.nodes[lonely].name.clone()));
        }
        let mut order = Vec::new();
        let mut ready = if incoming[0] == 0 { vec![0] } else { Vec::new() };
        while let Some(&lowest) = ready.iter().min() {
            ready.retain(|&n| n != lowest);
            order.push(lowest);
            for next in next_steps(&self.nodes[lowest]) {
                incoming[next] -= 1;
                if incoming[next] == 0 {
                    ready.push(next);
                }
            }
        }
        if order.len() < self.nodes.len() {
            let stuck = (0..self.nodes.len()).filter(|n| !order.contains(n));
            return Err(GraphError::Cycle(stuck.map(|n| self.nodes[n].name.clone()).collect()));
        }
        Ok(order)
    }
}

fn next_steps(node: &Node) -> impl Iterator<Item = usize> {
    node.targets.iter().filter_map(|target| match target {
        Some(Target::Step(next)) => Some(*next),
        _ => None,
    })
}

fn place_targets(node: &Node, position: &[usize]) -> Result<Vec<Target>, GraphError> {
    let outputs = node.step.outputs().iter();
    let place = |(output, target): (&Output, &Option<Target>)| match target {
        Some(Target::Step(next)) => Ok(Target::Step(position[*next])),
        Some(end) => Ok(*end),
        None => Err(GraphError::Unconnected { step: node.name.clone(), output: output.name() }),
    };
    outputs.zip(&node.targets).map(place).collect()
}

fn edges_of(targets: &[Target], steps: usize) -> Vec<Edge> {
    let edge = |target: &Target| match *target {
        Target::Step(next) => Edge { to: next, punt: None },
        Target::Transmit => Edge { to: steps + TRANSMIT, punt: None },
        Target::Replicate => Edge { to: steps + REPLICATE, punt: None },
        Target::SlowPath(reason) => Edge { to: steps + SLOW_PATH, punt: Some(reason) },
        Target::Drop(_) => Edge { to: steps + DROP, punt: None },
    };
    targets.iter().map(edge).collect()
}

/// The ends stand behind the steps in the array of masks.
const TRANSMIT: usize = 0;
const SLOW_PATH: usize = 1;
const DROP: usize = 2;
const REPLICATE: usize = 3;
const ENDS: usize = 4;

struct Edge {
    /// Index into the masks: a step, or an end behind the steps.
    to: usize,
    punt: Option<PuntReason>,
}

struct Placed {
    step: Box<dyn Step>,
    edges: Vec<Edge>,
    first_edge: usize,
}

/// A step as pictures and commands see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// The step's name in the graph.
    pub name: String,
    /// What it is, by its name in the catalogue or in the configuration.
    pub kind: String,
    /// Its outputs and where they lead.
    pub outputs: Vec<(&'static str, Target)>,
    /// Index of its first output in [`EdgeCounters`].
    pub first_edge: usize,
}

/// The form of a graph, in the order in which it runs; the same for all forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The steps in topological order.
    pub steps: Vec<StepShape>,
    /// The number of edges of all steps together.
    pub edges: usize,
}

/// How many packets took each edge; written by one forwarder, read by anyone.
#[derive(Default)]
pub struct EdgeCounters {
    edges: Box<[AtomicU64]>,
}

impl EdgeCounters {
    fn new(edges: usize) -> Self {
        Self { edges: (0..edges).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Packets that took this edge so far.
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

/// Where the packets of a batch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// To be sent by [`Batch::out_port`].
    pub transmit: Mask,
    /// To be sent by all ports of [`Batch::replicas`].
    pub replicate: Mask,
    /// To be given to the slow path; [`Graph::punt_reason`] says why.
    pub slow_path: Mask,
    /// To be freed; already counted by their edges.
    pub drop: Mask,
}

/// A graph ready to run, owned by one forwarder.
pub struct Graph {
    steps: Vec<Placed>,
    /// One mask a step, then one an end.
    masks: Box<[Mask]>,
    punt_reasons: [PuntReason; BATCH_MAX],
    /// The step that runs, and its packets: where a panic was.
    at: (usize, Mask),
    shape: Arc<Shape>,
    counters: Arc<EdgeCounters>,
}

impl Graph {
    fn new(steps: Vec<Placed>, shape: Arc<Shape>) -> Self {
        Self {
            masks: vec![Mask::EMPTY; steps.len() + ENDS].into(),
            punt_reasons: [PuntReason::Arp; BATCH_MAX],
            at: (0, Mask::EMPTY),
            counters: Arc::new(EdgeCounters::new(shape.edges)),
            steps,
            shape,
        }
    }

    /// The graph's form.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// The counters of this forwarder's copy of the graph.
    pub fn counters(&self) -> &Arc<EdgeCounters> {
        &self.counters
    }

    /// Runs all packets of the batch through the steps and says where they ended.
    pub fn run(&mut self, batch: &mut Batch) -> Ends {
        self.masks[0] = batch.packets();
        self.run_from(0, batch)
    }

    /// Goes on after a panic in [`Self::run`] or here. The step in which it happened gets the packets
    /// that it had once more, one at a time; `guilty` takes over those over which it panics again
    /// (slot and message). All others go on behind that step, and so do those that were not in it.
    ///
    /// A step that changes packets is thus run twice over those that it had changed before it
    /// panicked over another.
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
                if let Err(message) = guard(|| self.run_step(place, one, batch)) {
                    guilty(batch, slot, message);
                }
            }
            // Each panic is in a later step than the one before, so this ends.
            if let Ok(ends) = guard(|| self.run_from(place + 1, batch)) {
                return ends;
            }
        }
    }

    #[inline(always)]
    fn run_from(&mut self, first: usize, batch: &mut Batch) -> Ends {
        for place in first..self.steps.len() {
            let input = std::mem::take(&mut self.masks[place]);
            if !input.is_empty() {
                self.at = (place, input);
                self.run_step(place, input, batch);
            }
        }
        let ends = self.steps.len();
        Ends {
            transmit: std::mem::take(&mut self.masks[ends + TRANSMIT]),
            replicate: std::mem::take(&mut self.masks[ends + REPLICATE]),
            slow_path: std::mem::take(&mut self.masks[ends + SLOW_PATH]),
            drop: std::mem::take(&mut self.masks[ends + DROP]),
        }
    }

    /// One step over these packets. What it says counts when it has returned.
    #[inline(always)]
    fn run_step(&mut self, place: usize, input: Mask, batch: &mut Batch) {
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        self.steps[place].step.process(batch, input, &mut out);
        if out[0] == input {
            // Nothing is left for the other outputs.
            return self.take_edge(place, 0, input);
        }
        for (index, &mask) in out.iter().enumerate() {
            if !mask.is_empty() {
                self.take_edge(place, index, mask);
            }
        }
    }

    /// Leads packets, and counts them, from an output of the step at this place to where it goes.
    #[inline(always)]
    fn take_edge(&mut self, place: usize, index: usize, packets: Mask) {
        let placed = &self.steps[place];
        // An output that the step did not declare: what it says there is said to nobody.
        let Some(edge) = placed.edges.get(index) else { return };
        self.masks[edge.to] |= packets;
        self.counters.add(placed.first_edge + index, packets.count());
        if let Some(reason) = edge.punt {
            for slot in packets.slots() {
                self.punt_reasons[slot] = reason;
            }
        }
    }

    /// Why the packet in this slot was punted by the last [`Graph::run`]; meaningful for packets
    /// of [`Ends::slow_path`].
    pub fn punt_reason(&self, slot: usize) -> PuntReason {
        self.punt_reasons[slot & (BATCH_MAX - 1)]
    }
}

#[cfg(test)]
mod tests;
