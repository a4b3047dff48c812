//! Observation of packets on their path through a graph, without code in steps.
//!
//! A graph with watches runs its steps in a loop of its own, which shows them the packets in front of each step and the
//! outputs behind it; one without, as nearly always, tests this once a batch. Watches stay with their forwarder when the
//! graph is exchanged, and come and go by an exchange themselves ([`Watching`]), which may also bring a packet made by hand.

use std::sync::Arc;

use crate::batch::{BATCH_MAX, Batch};
use crate::filters::{FilterTable, Sieve};
use crate::interface::InterfaceId;
use crate::mask::Mask;
use crate::port::PortId;
use crate::shape::Shape;

/// The way that a step has given a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// To the output of this number.
    Output(usize),
    /// The step keeps it, and emits it later.
    Kept,
    /// To no output: a defect of the step.
    Lost,
}

/// A step: the graph's form, and the step's place in it.
pub type Place<'a> = (&'a Arc<Shape>, usize);

/// Observes a forwarder's packets. It may not change them.
pub trait Watch: Send {
    /// A batch begins with the first step, or with the packets that a step emits. Results of lookups may be reset, which
    /// have no meaning before these.
    fn begin(&mut self, shape: &Arc<Shape>, batch: &mut Batch);

    /// Packets enter a step.
    fn entering(&mut self, step: Place<'_>, packets: Mask, batch: &mut Batch);

    /// A step has given packets to its outputs; some may be gone from the batch.
    fn passed(&mut self, step: Place<'_>, packets: (Mask, &[Mask]), batch: &mut Batch);
}

/// Other watches for a forwarder; after the exchange, those before.
#[derive(Default)]
pub struct Watching {
    /// All of them.
    pub watches: Vec<Box<dyn Watch>>,
    /// A packet that runs through the graph once, under the new watches, and is not sent.
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

/// Packets of a batch that the first rule of a filter matches, or all: where they enter the graph, and again when their
/// interface or their Ethertype has become another (VLANs, bonds).
pub struct Selection {
    sieve: Option<Sieve>,
    selected: Mask,
    /// Packets that the sieve has seen, and as what: interface and Ethertype by slot.
    seen: Mask,
    as_what: [(InterfaceId, u16); BATCH_MAX],
}

impl Selection {
    /// By this filter; without one, of all packets.
    pub fn new(filter: Option<Arc<FilterTable>>) -> Self {
        let (selected, seen) = (Mask::EMPTY, Mask::EMPTY);
        let as_what = [(InterfaceId::FIRST, 0); BATCH_MAX];
        Self { sieve: filter.map(Sieve::new), selected, seen, as_what }
    }

    /// Begins a batch, of which no packet is selected.
    pub fn begin(&mut self) {
        (self.selected, self.seen) = (Mask::EMPTY, Mask::EMPTY);
    }

    /// Looks at those of these packets that are not as they were; returns those that are selected now and were not before.
    pub fn look(&mut self, packets: Mask, batch: &Batch) -> Mask {
        let others = packets.without(self.selected);
        let found = match &mut self.sieve {
            None => others,
            Some(sieve) => {
                let what = |slot| (batch.interface(slot), batch.ethernet(slot).ethertype.get());
                let is_new = |slot| !self.seen.has(slot) || self.as_what[slot] != what(slot);
                let fresh = others.filter(is_new);
                fresh.slots().for_each(|slot| self.as_what[slot] = what(slot));
                self.seen |= fresh;
                sieve.select(batch, fresh)
            }
        };
        self.selected |= found;
        found
    }

    /// Those of these packets that are selected.
    pub fn of(&self, packets: Mask) -> Mask {
        packets & self.selected
    }
}
