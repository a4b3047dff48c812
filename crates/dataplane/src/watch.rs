//! Observation of packets on their path through a graph, without code in steps.
//!
//! A graph with a watch runs its steps in a loop of its own, which shows the watch each step's outputs; one without, as
//! nearly always, tests this once a batch. A watch stays with its forwarder when the graph is exchanged, and comes and
//! goes by an exchange itself ([`Watching`]), which may also bring a packet made by hand. It may not change packets.

use std::sync::Arc;

use crate::batch::Batch;
use crate::graph::Shape;
use crate::mask::Mask;
use crate::port::PortId;

/// In place of an output's number: the step gave the packet to none.
pub const LOST: usize = usize::MAX;

/// Observes a forwarder's packets.
pub trait Watch: Send {
    /// A batch begins with the first step, or with the packets that a step emits. It may reset results of lookups, which
    /// have no meaning before these.
    fn begin(&mut self, shape: &Arc<Shape>, batch: &mut Batch);

    /// The step at this place of the graph has given each of its packets to an output: its index by slot.
    fn passed(
        &mut self,
        shape: &Arc<Shape>,
        place: usize,
        packets: (Mask, &dyn Fn(usize) -> usize),
        batch: &Batch,
    );
}

/// Another watch for a forwarder, or none; after the exchange, the one before.
#[derive(Default)]
pub struct Watching {
    /// The watch.
    pub watch: Option<Box<dyn Watch>>,
    /// A packet that runs through the graph once, under the new watch, and is not sent.
    pub made: Option<Made>,
}

/// A packet made by hand.
pub struct Made {
    /// The port that receives it.
    pub port: PortId,
    /// Its Ethernet frame.
    pub frame: Vec<u8>,
    /// Set by the forwarder: it has run, or not for this reason.
    pub outcome: Result<(), Refusal>,
}

/// Reason for which a packet made by hand does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It was not taken yet.
    NotYet,
    /// Steps of the graph keep packets, and would send it later.
    KeptBySteps,
    /// There is no packet memory for it.
    NoBuffer,
    /// A step panicked over it.
    Panic,
}
