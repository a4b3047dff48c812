//! Captures: copies of packets for an operator, made while one is running.
//!
//! ```text
//!   CaptureWatch --> records.rs --> API thread --> client
//! ```
//!
//! A [`CaptureWatch`] is the [`Watch`] of one forwarder: it looks at the packets in front of steps and behind them. A
//! packet that finds no free record is counted as lost.

use std::iter::once;
use std::sync::Arc;

use crate::batch::Batch;
use crate::filters::FilterTable;
use crate::interface::InterfaceId;
use crate::mask::Mask;
use crate::reason::{DropReason, PuntReason};
use crate::records::{Records, keep};
use crate::shape::{Shape, Target};
use crate::watch::{Place, Selection, Watch};

/// Bytes of a capture's records together, about.
const ROOM: usize = 4 << 20;

/// Bounds of the number of records.
const RECORDS: (usize, usize) = (64, 8192);

/// The packets of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// As received, and as the graph sends them.
    Wire,
    /// Those that enter the step of this name.
    Step(String),
    /// Those that steps drop, for this reason or for any.
    Dropped(Option<DropReason>),
    /// Those that steps give to the slow path.
    Punted,
}

/// The event of which a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was received.
    Received,
    /// It is being sent.
    Sent,
    /// It enters the step.
    Entered,
    /// The step dropped it.
    Dropped(DropReason),
    /// The step gave it to the slow path.
    Punted(PuntReason),
}

/// A captured packet.
#[derive(Debug)]
pub struct Record {
    /// The time, in TSC cycles.
    pub at: u64,
    /// The ingress interface, or the egress interface of a sent one.
    pub interface: u16,
    /// The event.
    pub event: Event,
    /// The graph, and the step's place in it.
    step: Option<(Arc<Shape>, usize)>,
    /// The length of the frame.
    pub length: usize,
    /// Its first bytes.
    pub frame: Vec<u8>,
}

impl Record {
    /// The step's name.
    pub fn step(&self) -> &str {
        let shape = self.step.as_ref().and_then(|(shape, place)| shape.steps.get(*place));
        shape.map_or("", |step| &step.name)
    }
}

/// A capture that runs.
pub struct Capture {
    what: What,
    interface: Option<InterfaceId>,
    snap: usize,
    records: Records<Record>,
}

impl Capture {
    /// Creates it with all its records. `interface`: only packets of this one; `snap`: bytes kept of each.
    pub fn new(what: What, interface: Option<InterfaceId>, snap: usize) -> Self {
        let count = (ROOM / (snap + size_of::<Record>())).clamp(RECORDS.0, RECORDS.1);
        let record = || Record {
            at: 0,
            interface: 0,
            event: Event::Received,
            step: None,
            length: 0,
            frame: Vec::with_capacity(snap),
        };
        Self { what, interface, snap, records: Records::new(count, record) }
    }

    /// The interface whose packets are wanted.
    pub fn interface(&self) -> Option<InterfaceId> {
        self.interface
    }

    /// The oldest record, to be given back.
    pub fn take(&self) -> Option<Box<Record>> {
        self.records.take()
    }

    /// The number of records to be taken.
    pub fn waiting(&self) -> usize {
        self.records.waiting()
    }

    /// Takes a record back.
    pub fn give_back(&self, mut record: Box<Record>) {
        record.frame.clear();
        // Not by a forwarder, if it is the last user of a former graph's form.
        record.step = None;
        self.records.give_back(record);
    }

    /// Packets that found no free record.
    pub fn lost(&self) -> u64 {
        self.records.lost()
    }

    fn put(&self, batch: &mut Batch, slot: usize, event: Event, (shape, place): Place<'_>) {
        let interface = match event {
            Event::Sent => batch.out_interface[slot],
            _ => batch.interface(slot).index() as u16,
        };
        if self.interface.is_some_and(|wanted| wanted.index() != usize::from(interface)) {
            return;
        }
        let Some(mut record) = self.records.free() else { return };
        let (at, length) = (dpdk::tsc(), batch.len(slot));
        let (first, rest) = batch.frame_and_rest(slot);
        keep(&mut record.frame, self.snap, once(&*first).chain(rest));
        (record.at, record.interface, record.event, record.length) = (at, interface, event, length);
        record.step = Some((shape.clone(), place));
        self.records.put(record);
    }

    /// The event of packets that enter a step, if it is captured.
    fn event_in_front(&self, (shape, place): Place<'_>) -> Option<Event> {
        match &self.what {
            What::Step(wanted) => {
                let is_wanted = shape.steps.get(place).is_some_and(|step| step.name == *wanted);
                is_wanted.then_some(Event::Entered)
            }
            What::Wire => (place == 0).then_some(Event::Received),
            What::Dropped(_) | What::Punted => None,
        }
    }

    /// The event of packets that take an edge to this target, if it is captured.
    fn event_behind(&self, target: Target) -> Option<Event> {
        match (&self.what, target) {
            (What::Wire, Target::Transmit) => Some(Event::Sent),
            (What::Dropped(wanted), Target::Drop(reason)) => {
                wanted.is_none_or(|wanted| wanted == reason).then_some(Event::Dropped(reason))
            }
            (What::Punted, Target::SlowPath(reason)) => Some(Event::Punted(reason)),
            _ => None,
        }
    }
}

/// The watch of one forwarder for a capture.
pub struct CaptureWatch {
    capture: Arc<Capture>,
    selection: Selection,
}

impl CaptureWatch {
    /// Of packets that the first rule of this filter matches, or of all.
    pub fn new(capture: Arc<Capture>, filter: Option<Arc<FilterTable>>) -> Self {
        Self { capture, selection: Selection::new(filter) }
    }

    fn put_all(&mut self, step: Place<'_>, event: Event, packets: Mask, batch: &mut Batch) {
        self.selection.look(packets, batch);
        for slot in self.selection.of(packets).slots() {
            self.capture.put(batch, slot, event, step);
        }
    }
}

impl Watch for CaptureWatch {
    fn begin(&mut self, _: &Arc<Shape>, _: &mut Batch) {
        self.selection.begin();
    }

    fn entering(&mut self, step: Place<'_>, packets: Mask, batch: &mut Batch) {
        if let Some(event) = self.capture.event_in_front(step) {
            self.put_all(step, event, packets, batch);
        }
    }

    fn passed(&mut self, step: Place<'_>, (packets, out): (Mask, &[Mask]), batch: &mut Batch) {
        let (shape, place) = step;
        let Some(of_step) = shape.steps.get(place) else { return };
        for ((_, target), &taken) in of_step.outputs.iter().zip(out) {
            if let Some(event) = self.capture.event_behind(*target) {
                self.put_all(step, event, packets & taken, batch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::{Graph, Output, Outputs, Step, StepCounters};
    use crate::testing::{FrameBuilder, batch_of};

    const OUTPUTS: &[Output] =
        &[Output::next("next"), Output::Drop(DropReason::Blackhole), Output::Punt(PuntReason::Arp)];

    /// Gives its first packet on, its second to the slow path, and drops the others.
    struct Sort(StepCounters);

    impl Step for Sort {
        fn outputs(&self) -> &'static [Output] {
            OUTPUTS
        }

        fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
            self.0.at(0).add(u64::from(input.count()));
            (out[0], out[2]) = (input & Mask(1), input & Mask(2));
            out[1] = input.without(Mask(3));
        }

        fn counters(&self) -> Option<&StepCounters> {
            Some(&self.0)
        }
    }

    /// Two steps, of which the first drops and punts, and a batch of four packets.
    fn run(captures: &[Arc<Capture>]) -> Graph {
        let sort = || Sort(StepCounters::new(&["seen"]));
        let mut builder = GraphBuilder::new();
        builder.add("sort", sort()).unwrap();
        builder.add("last", sort()).unwrap();
        builder.connect("sort", "next", "last").unwrap();
        builder.transmit("last", "next").unwrap();
        let mut graph = builder.build().unwrap();
        let watch = |capture: &Arc<Capture>| -> Box<dyn Watch> {
            Box::new(CaptureWatch::new(capture.clone(), None))
        };
        graph.watches = captures.iter().map(watch).collect();
        let frame = |n: u8| FrameBuilder::ip4().udp(1, n.into(), b"x").build();
        graph.run(&mut batch_of(&[frame(0), frame(1), frame(2), frame(3)]));
        graph
    }

    fn taken(capture: &Capture) -> Vec<(Event, String, u8)> {
        let record = || {
            let record = capture.take()?;
            let port = record.frame.get(37).copied().unwrap_or(255);
            let found = (record.event, record.step().to_owned(), port);
            capture.give_back(record);
            Some(found)
        };
        std::iter::from_fn(record).collect()
    }

    fn capture(what: What) -> Arc<Capture> {
        Arc::new(Capture::new(what, None, 60))
    }

    #[test]
    fn each_place_has_its_packets() {
        let places = [
            What::Wire,
            What::Step("last".to_owned()),
            What::Dropped(None),
            What::Dropped(Some(DropReason::Runt)),
            What::Punted,
        ];
        let captures = places.map(capture);
        let graph = run(&captures);
        let all: Vec<_> = captures.iter().map(|capture| taken(capture)).collect();
        let of = |event, step: &str, port| (event, step.to_owned(), port);
        let received = (0..4).map(|port| of(Event::Received, "sort", port));
        let wire: Vec<_> = received.chain([of(Event::Sent, "last", 0)]).collect();
        let dropped = Event::Dropped(DropReason::Blackhole);
        assert_eq!(all[0], wire);
        assert_eq!(all[1], [of(Event::Entered, "last", 0)]);
        assert_eq!(all[2], [of(dropped, "sort", 2), of(dropped, "sort", 3)]);
        assert_eq!(all[3], []);
        assert_eq!(all[4], [of(Event::Punted(PuntReason::Arp), "sort", 1)]);
        // The step is what it was, for readers of its counters too.
        assert_eq!(graph.counters().of_step(0).collect::<Vec<_>>(), [("seen", 4)]);
        assert!(run(&[]).counters().of_step(1).eq([("seen", 1)]));
    }

    #[test]
    fn records_are_bounded_and_used_again() {
        let all = Arc::new(Capture::new(What::Punted, None, ROOM));
        for _ in 0..RECORDS.0 + 5 {
            run(std::slice::from_ref(&all));
        }
        assert_eq!((taken(&all).len(), all.lost()), (RECORDS.0, 5));
        run(std::slice::from_ref(&all));
        assert_eq!((taken(&all).len(), all.lost()), (1, 5));
    }

    #[test]
    fn a_packet_is_cut_and_of_one_interface() {
        let cut = Arc::new(Capture::new(What::Punted, None, 20));
        let other = Arc::new(Capture::new(What::Punted, InterfaceId::new(7), 20));
        run(&[cut.clone(), other.clone()]);
        let record = cut.take().unwrap();
        assert_eq!((record.frame.len(), record.length > 20), (20, true));
        assert!(other.take().is_none());
    }
}
