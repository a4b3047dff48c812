//! Captures: copies of packets for an operator, made while one is running.
//!
//! ```text
//!   step, wrapped in Tapped --> free record --> filled --> queue --> API thread --> client
//!                                    ^                                  |
//!                                    +------------- empty --------------+
//! ```
//!
//! A graph that is made while a capture runs has the steps concerned wrapped ([`tap`]): the wrapper runs the step
//! and looks at the packets before it and on its outputs. A graph made while none runs has nothing of this.
//!
//! Records are made when the capture begins, so forwarders neither allocate nor wait: a packet that finds no free record
//! is counted as lost. That also bounds the time that a capture takes from forwarding.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_queue::ArrayQueue;

use crate::batch::Batch;
use crate::graph::{Graph, Origin, Output, Outputs, Step, StepCounters, Target};
use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::mask::Mask;
use crate::reason::{DropReason, PuntReason};

/// Bytes of a capture's records together, about.
const ROOM: usize = 4 << 20;

/// Bounds of the number of records.
const RECORDS: (usize, usize) = (64, 8192);

/// The packets of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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
    /// The step's name.
    pub step: Arc<str>,
    /// The length of the frame.
    pub length: usize,
    /// Its first bytes.
    pub frame: Vec<u8>,
}

/// A capture that runs.
pub struct Capture {
    place: Place,
    interface: Option<InterfaceId>,
    snap: usize,
    free: ArrayQueue<Box<Record>>,
    full: ArrayQueue<Box<Record>>,
    lost: AtomicU64,
}

impl Capture {
    /// Creates it with all its records. `interface`: only packets of this one; `snap`: bytes kept of each.
    pub fn new(place: Place, interface: Option<InterfaceId>, snap: usize) -> Self {
        let count = (ROOM / (snap + size_of::<Record>())).clamp(RECORDS.0, RECORDS.1);
        let free = ArrayQueue::new(count);
        let step: Arc<str> = "".into();
        for _ in 0..count {
            let record = Record {
                at: 0,
                interface: 0,
                event: Event::Received,
                step: step.clone(),
                length: 0,
                frame: Vec::with_capacity(snap),
            };
            // There is room for as many.
            let _ = free.push(Box::new(record));
        }
        Self { place, interface, snap, free, full: ArrayQueue::new(count), lost: AtomicU64::new(0) }
    }

    /// The oldest record, to be given back.
    pub fn take(&self) -> Option<Box<Record>> {
        self.full.pop()
    }

    /// Takes a record back.
    pub fn give_back(&self, mut record: Box<Record>) {
        record.frame.clear();
        // There is room for all.
        let _ = self.free.push(record);
    }

    /// Packets that found no free record.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn put(&self, batch: &mut Batch, slot: usize, event: Event, step: &Arc<str>) {
        let interface = match event {
            Event::Sent => batch.out_interface[slot],
            _ => batch.interface(slot).index() as u16,
        };
        if self.interface.is_some_and(|wanted| wanted.index() != usize::from(interface)) {
            return;
        }
        let Some(mut record) = self.free.pop() else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (at, length) = (dpdk::tsc(), batch.len(slot));
        let (first, rest) = batch.frame_and_rest(slot);
        let mut keep = |part: &[u8]| {
            let room = self.snap - record.frame.len();
            record.frame.extend_from_slice(&part[..part.len().min(room)]);
        };
        keep(first);
        rest.for_each(keep);
        (record.at, record.interface, record.event, record.length) = (at, interface, event, length);
        record.step = step.clone();
        // There is room for all.
        let _ = self.full.push(record);
    }

    /// True if it concerns a step of this name, at this place of the graph, with these targets.
    fn wants(&self, name: &str, place: usize, targets: &[Target]) -> bool {
        let wants = |target: &Target| self.event_of(*target).is_some();
        match &self.place {
            Place::Step(step) => step == name,
            Place::Wire => place == 0 || targets.iter().any(wants),
            Place::Dropped(_) | Place::Punted => targets.iter().any(wants),
        }
    }

    /// The event of packets that take an edge to this target, if it is captured.
    fn event_of(&self, target: Target) -> Option<Event> {
        match (&self.place, target) {
            (Place::Wire, Target::Transmit) => Some(Event::Sent),
            (Place::Dropped(wanted), Target::Drop(reason)) => {
                wanted.is_none_or(|wanted| wanted == reason).then_some(Event::Dropped(reason))
            }
            (Place::Punted, Target::SlowPath(reason)) => Some(Event::Punted(reason)),
            _ => None,
        }
    }
}

/// The captures that run, for graphs that are made.
#[derive(Default)]
pub struct Captures(Mutex<Running>);

#[derive(Default)]
struct Running {
    all: Vec<Arc<Capture>>,
    /// Number of changes.
    changes: u64,
}

impl Captures {
    /// Adds one. Graphs made from now on have it.
    pub fn add(&self, capture: Arc<Capture>) {
        let mut running = lock(&self.0);
        running.all.push(capture);
        running.changes += 1;
    }

    /// Removes one.
    pub fn remove(&self, capture: &Arc<Capture>) {
        let mut running = lock(&self.0);
        running.all.retain(|other| !Arc::ptr_eq(other, capture));
        running.changes += 1;
    }

    /// The number of changes so far.
    pub fn changes(&self) -> u64 {
        lock(&self.0).changes
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Capture>> {
        lock(&self.0).all.clone()
    }
}

/// Wraps the steps of a graph of which these captures want packets.
pub fn tap(graph: &mut Graph, captures: &[Arc<Capture>]) {
    graph.tap(|step, shape, place| {
        let targets: Vec<_> = shape.outputs.iter().map(|(_, target)| *target).collect();
        Tapped::wrap(step, (&shape.name, place), &targets, captures)
    });
}

/// A step of which packets are captured.
struct Tapped {
    inner: Box<dyn Step>,
    name: Arc<str>,
    /// Those of packets that enter it, with their event.
    before: Vec<(Arc<Capture>, Event)>,
    /// Those of packets on an output.
    behind: Vec<(Arc<Capture>, usize, Event)>,
}

impl Tapped {
    /// Wraps a step, unless no capture concerns it.
    fn wrap(
        inner: Box<dyn Step>,
        (name, place): (&str, usize),
        targets: &[Target],
        captures: &[Arc<Capture>],
    ) -> Box<dyn Step> {
        let wanting = || captures.iter().filter(|capture| capture.wants(name, place, targets));
        if wanting().next().is_none() {
            return inner;
        }
        let enters = |capture: &&Arc<Capture>| match capture.place {
            Place::Step(_) => Some(((*capture).clone(), Event::Entered)),
            Place::Wire if place == 0 => Some(((*capture).clone(), Event::Received)),
            _ => None,
        };
        let before = wanting().filter_map(|capture| enters(&capture)).collect();
        let leaves = |capture: &Arc<Capture>| {
            let outputs = targets.iter().enumerate();
            let capture = capture.clone();
            let edges = outputs.filter_map(move |(output, target)| {
                Some((capture.clone(), output, capture.event_of(*target)?))
            });
            edges.collect::<Vec<_>>()
        };
        let behind = wanting().flat_map(leaves).collect();
        Box::new(Self { inner, name: name.into(), before, behind })
    }

    fn look_behind(&self, batch: &mut Batch, out: &Outputs) {
        for (capture, output, event) in &self.behind {
            let taken = out.get(*output).copied().unwrap_or(Mask::EMPTY);
            taken.slots().for_each(|slot| capture.put(batch, slot, *event, &self.name));
        }
    }
}

impl Step for Tapped {
    fn outputs(&self) -> &[Output] {
        self.inner.outputs()
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for (capture, event) in &self.before {
            input.slots().for_each(|slot| capture.put(batch, slot, *event, &self.name));
        }
        self.inner.process(batch, input, out);
        self.look_behind(batch, out);
    }

    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        let origin = self.inner.emit(batch, most, out);
        self.look_behind(batch, out);
        origin
    }

    fn held(&self) -> usize {
        self.inner.held()
    }

    fn is_waiting(&self) -> bool {
        self.inner.is_waiting()
    }

    fn release(&mut self) -> usize {
        self.inner.release()
    }

    fn counters(&self) -> Option<&StepCounters> {
        self.inner.counters()
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        self.inner.state()
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        self.inner.take_state(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
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
        tap(&mut graph, captures);
        let frame = |n: u8| FrameBuilder::ip4().udp(1, n.into(), b"x").build();
        graph.run(&mut batch_of(&[frame(0), frame(1), frame(2), frame(3)]));
        graph
    }

    fn taken(capture: &Capture) -> Vec<(Event, String, u8)> {
        let record = || {
            let record = capture.take()?;
            let port = record.frame.get(37).copied().unwrap_or(255);
            let found = (record.event, record.step.to_string(), port);
            capture.give_back(record);
            Some(found)
        };
        std::iter::from_fn(record).collect()
    }

    fn capture(place: Place) -> Arc<Capture> {
        Arc::new(Capture::new(place, None, 60))
    }

    #[test]
    fn each_place_has_its_packets() {
        let places = [
            Place::Wire,
            Place::Step("last".to_owned()),
            Place::Dropped(None),
            Place::Dropped(Some(DropReason::Runt)),
            Place::Punted,
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
        let all = Arc::new(Capture::new(Place::Punted, None, ROOM));
        for _ in 0..RECORDS.0 + 5 {
            run(std::slice::from_ref(&all));
        }
        assert_eq!((taken(&all).len(), all.lost()), (RECORDS.0, 5));
        run(std::slice::from_ref(&all));
        assert_eq!((taken(&all).len(), all.lost()), (1, 5));
    }

    #[test]
    fn a_packet_is_cut_and_of_one_interface() {
        let cut = Arc::new(Capture::new(Place::Punted, None, 20));
        let other = Arc::new(Capture::new(Place::Punted, InterfaceId::new(7), 20));
        run(&[cut.clone(), other.clone()]);
        let record = cut.take().unwrap();
        assert_eq!((record.frame.len(), record.length > 20), (20, true));
        assert!(other.take().is_none());
    }
}
