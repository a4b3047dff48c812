//! The form of a graph: its steps, their outputs, and the targets of these.

use crate::reason::{DropReason, PuntReason};

/// The target of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the step at this position of the topological order.
    Step(usize),
    /// Out by the packet's egress port.
    Transmit,
    /// Out by each of the packet's [`Batch::receivers`](crate::Batch::receivers).
    Replicate,
    /// To the slow path.
    SlowPath(PuntReason),
    /// Freed and counted.
    Drop(DropReason),
}

/// A step as shown in pictures and commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// The step's name in the graph.
    pub name: String,
    /// Its kind, by the name in the catalogue or in the configuration.
    pub kind: String,
    /// Its outputs and their targets.
    pub outputs: Vec<(String, Target)>,
    /// Index of its first output in [`GraphCounters`](crate::graph::GraphCounters).
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
