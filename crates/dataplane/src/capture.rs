//! Captures: copies of packets for an operator, made while one is running.
//!
//! ```text
//!   CaptureWatch, DropCapture --> records.rs --> API thread --> client
//! ```
//!
//! A [`CaptureWatch`] is the [`Watch`] of one forwarder: it looks at the packets in front of steps and behind them. A
//! [`DropCapture`] is the [`DropObserver`] of one unit: it sees the packets that are dropped outside the graph. A packet that
//! finds no free record is counted as lost.

use std::iter::once;
use std::sync::Arc;

use wire::ethernet::{customer_tag, with_tag};

use crate::batch::Batch;
use crate::drop_watch::{DropObserver, Dropped, Parts};
use crate::filters::{FilterTable, SIEVED, Sieve};
use crate::interface::InterfaceId;
use crate::mask::Mask;
use crate::reason::{DropOrigin, DropReason, PuntReason};
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
    /// Those that are dropped, for this reason or for any, by steps and elsewhere.
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
    /// The step, or another part of the router, dropped it.
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
    /// True if it is sent, or was to be sent by the interface.
    pub is_outbound: bool,
    /// The place of the event.
    place: Option<At>,
    /// The length of the frame.
    pub length: usize,
    /// Its first bytes.
    pub frame: Vec<u8>,
}

/// The place of an event.
#[derive(Debug)]
enum At {
    /// A graph, and a step's place in it.
    Step(Arc<Shape>, usize),
    /// Outside the graph.
    Origin(DropOrigin),
}

impl Record {
    /// The name of the step, or of the part of the router outside the graph.
    pub fn step(&self) -> &str {
        match &self.place {
            Some(At::Step(shape, place)) => shape.steps.get(*place).map_or("", |step| &step.name),
            Some(At::Origin(origin)) => origin.name(),
            None => "",
        }
    }
}

/// A packet for a record, without its bytes.
struct Seen {
    event: Event,
    interface: u16,
    is_outbound: bool,
    place: At,
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
            is_outbound: false,
            place: None,
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
        record.place = None;
        self.records.give_back(record);
    }

    /// Packets that found no free record.
    pub fn lost(&self) -> u64 {
        self.records.lost()
    }

    /// Records a packet, with the tag that its device removed or is to insert.
    fn put_slot(&self, batch: &Batch, slot: usize, event: Event, (shape, place): Place<'_>) {
        let (interface, is_outbound) = match event {
            Event::Sent => (batch.out_interface[slot], true),
            _ => (batch.interface(slot).index() as u16, false),
        };
        if self.is_of(interface) {
            let place = At::Step(shape.clone(), place);
            let tag = match event {
                Event::Received => batch.burst.removed_tag(slot),
                _ => batch.burst.requested_tag(slot).or(batch.burst.stripped_tag(slot)),
            };
            let tag = tag.map(customer_tag);
            let bytes = |take: &mut dyn FnMut(&[u8])| {
                with_tag(tag.as_ref(), batch.burst.chunks(slot)).for_each(take);
            };
            self.put(Seen { event, interface, is_outbound, place }, &bytes);
        }
    }

    /// Returns true if packets of this interface are wanted.
    fn is_of(&self, interface: u16) -> bool {
        self.interface.is_none_or(|wanted| wanted.index() == usize::from(interface))
    }

    fn put(&self, seen: Seen, bytes: Parts<'_>) {
        let Some(mut record) = self.records.free() else { return };
        let (at, mut length) = (dpdk::tsc(), 0);
        bytes(&mut |part| {
            keep(&mut record.frame, self.snap, once(part));
            length += part.len();
        });
        let Seen { event, interface, is_outbound, place } = seen;
        (record.at, record.interface, record.event, record.length) = (at, interface, event, length);
        (record.is_outbound, record.place) = (is_outbound, Some(place));
        self.records.put(record);
    }

    /// Returns true if drops for this reason are captured.
    fn wants(&self, reason: DropReason) -> bool {
        matches!(&self.what, What::Dropped(wanted) if wanted.is_none_or(|wanted| wanted == reason))
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
            (What::Dropped(_), Target::Drop(reason)) => {
                self.wants(reason).then_some(Event::Dropped(reason))
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
            self.capture.put_slot(batch, slot, event, step);
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

/// The observer of one unit's drops outside the graph for a capture.
pub struct DropCapture {
    capture: Arc<Capture>,
    sieve: Option<Sieve>,
    /// The first bytes of a packet, in one piece.
    head: Box<[u8; SIEVED]>,
}

impl DropCapture {
    /// Of packets that the first rule of this filter matches, or of all. `None` if the capture is not of drops.
    pub fn new(capture: Arc<Capture>, filter: Option<Arc<FilterTable>>) -> Option<Self> {
        let sieve = filter.map(Sieve::new);
        let is_of_drops = matches!(capture.what, What::Dropped(_));
        is_of_drops.then(|| Self { capture, sieve, head: Box::new([0; SIEVED]) })
    }

    /// Returns true if the rule matches the packet.
    fn fits(&mut self, interface: u16, bytes: Parts<'_>) -> bool {
        let Some(sieve) = &mut self.sieve else { return true };
        let (mut kept, mut length) = (0, 0);
        bytes(&mut |part| {
            let more = part.len().min(SIEVED - kept);
            self.head[kept..kept + more].copy_from_slice(&part[..more]);
            (kept, length) = (kept + more, length + part.len());
        });
        sieve.fits(&mut self.head[..kept], length, interface)
    }
}

impl DropObserver for DropCapture {
    fn dropped(&mut self, drop: &Dropped, bytes: Parts<'_>) {
        let &Dropped { origin, reason, interface, is_outbound, tag: _ } = drop;
        let interface = interface.index() as u16;
        if !self.capture.wants(reason) || !self.capture.is_of(interface) {
            return;
        }
        if self.fits(interface, bytes) {
            let (event, place) = (Event::Dropped(reason), At::Origin(origin));
            self.capture.put(Seen { event, interface, is_outbound, place }, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use acl::{Action, Filter, Rule, SetReaders};
    use dpdk::PacketList;

    use super::*;
    use crate::builder::GraphBuilder;
    use crate::counters::DropsByOrigin;
    use crate::filters::{FilterSpec, Treatment};
    use crate::graph::{Graph, Output, Outputs, Step, StepCounters};
    use crate::testing::{FrameBuilder, batch_of, tagged, udp_to};

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
        run_on(captures, &mut four())
    }

    fn four() -> Batch {
        let frame = |n: u8| FrameBuilder::ip4().udp(1, n.into(), b"x").build();
        batch_of(&[frame(0), frame(1), frame(2), frame(3)])
    }

    fn run_on(captures: &[Arc<Capture>], batch: &mut Batch) -> Graph {
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
        graph.run(batch);
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
    fn a_tag_that_a_device_removed_or_is_to_insert_is_part_of_the_frame() {
        let mut batch = four();
        let len = batch.len(0);
        batch.burst.say_removed(1, 0x2007);
        batch.burst.request_tags_of(1, 0x6005, |_, _| ());
        let (wire, cut) = (capture(What::Wire), Arc::new(Capture::new(What::Wire, None, 14)));
        run_on(&[wire.clone(), cut.clone()], &mut batch);
        let records: Vec<_> = std::iter::from_fn(|| wire.take()).collect();
        let tag = |record: &Record| record.frame[12..16].to_vec();
        let tagged = |record: &Record| record.length == len + 4 && record.frame.len() == len + 4;
        assert_eq!(records.iter().filter(|record| tagged(record)).count(), 2);
        assert_eq!(tag(&records[1]), [0x81, 0, 0x20, 7]);
        let sent = records.last().unwrap();
        assert_eq!((sent.event, tag(sent)), (Event::Sent, vec![0x81, 0, 0x60, 5]));
        assert!(std::iter::from_fn(|| cut.take()).all(|record| record.frame.len() == 14));
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

    fn drop_of(origin: DropOrigin, reason: DropReason) -> Dropped {
        Dropped::sent(origin, reason, InterfaceId::new(3).unwrap())
    }

    /// Counters whose drops these captures observe, of packets that the rule matches.
    fn watched(captures: &[Arc<Capture>], rule: Option<Rule>) -> DropsByOrigin {
        let table = |rule| {
            let (name, default) = ("captured".to_owned(), Action::Accept);
            let filter = Filter { name, rules: vec![rule], default };
            let spec =
                FilterSpec { filter, treatments: vec![Treatment::default()], targets: vec![] };
            Arc::new(FilterTable::new(&spec, None, &SetReaders::none()).unwrap())
        };
        let rule = rule.map(table);
        let drops = DropsByOrigin::default();
        let observer = |capture: &Arc<Capture>| -> Option<Box<dyn DropObserver>> {
            Some(Box::new(DropCapture::new(capture.clone(), rule.clone())?))
        };
        drops.watch.set(captures.iter().filter_map(observer).collect());
        drops
    }

    /// Frames of all captured packets.
    fn frames(capture: &Capture) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| capture.take()).map(|record| record.frame).collect()
    }

    #[test]
    fn every_reason_is_captured_wherever_the_packet_is_freed() {
        let frame = FrameBuilder::ip4().udp(1, 7, b"x").build();
        for &reason in DropReason::ALL {
            let captures = [What::Dropped(Some(reason)), What::Dropped(None), What::Punted];
            let captures = captures.map(capture);
            let drops = watched(&captures, None);
            for &origin in DropOrigin::ALL {
                let (drop, mut batch) =
                    (drop_of(origin, reason), batch_of(&vec![frame.clone(); 4]));
                drops.free(&drop, batch.burst.take(0).unwrap());
                assert_eq!(drops.free_slots(&drop, &mut batch.burst, Mask(0b11)), 1);
                let mut list = PacketList::new();
                batch.burst.move_to(0b100, &mut list);
                assert_eq!(drops.free_tail(&drop, &mut list, 0), 1);
                drops.lose(&drop, || std::iter::once(&frame[..]));
                assert_eq!(batch.discard(Mask(u64::MAX), (origin, reason), &drops), 1);
                let expected = vec![(Event::Dropped(reason), origin.name().to_owned(), 7); 5];
                assert_eq!(taken(&captures[0]), expected);
                assert_eq!(taken(&captures[1]), expected);
                assert_eq!(drops.of(origin).get(reason), 5);
            }
            assert!(captures[2].take().is_none());
        }
    }

    #[test]
    fn a_drop_is_that_of_its_interface_reason_and_way() {
        let [own, other, reason] = [InterfaceId::new(3), InterfaceId::new(4), None].map(|wanted| {
            let what = What::Dropped(wanted.is_none().then_some(DropReason::Runt));
            Arc::new(Capture::new(what, wanted, 20))
        });
        let drops = watched(&[own.clone(), other.clone(), reason.clone()], None);
        let parts = [&[1; 14][..], &[2; 50]];
        drops.lose(&drop_of(DropOrigin::Transmit, DropReason::TxFull), || parts.into_iter());
        let record = own.take().unwrap();
        assert_eq!((record.interface, record.is_outbound, record.length), (3, true, 64));
        assert_eq!(record.frame, [&[1; 14][..], &[2; 6]].concat());
        assert!(other.take().is_none() && reason.take().is_none());
        drops.watch.set(Vec::new());
        drops.lose(&drop_of(DropOrigin::Transmit, DropReason::TxFull), || parts.into_iter());
        assert!(own.take().is_none());
    }

    #[test]
    fn a_rule_selects_among_drops_also_behind_tags() {
        let ip4 = |port| FrameBuilder::ip4().udp(1, port, b"x").build();
        let ip6 = FrameBuilder::ip6().udp(1, 7, b"x").build();
        let (seven, eight) = (ip4(7), ip4(8));
        let with_tags = tagged(&tagged(&seven, 0x8100, 5), 0x88a8, 6);
        let arp = FrameBuilder::ethernet([2; 6], 0x0806).payload(&[0; 46]).build();
        let rule = udp_to(7..=7, Action::Accept);
        let all = capture(What::Dropped(None));
        let drops = watched(std::slice::from_ref(&all), Some(rule));
        for frame in [&seven, &eight, &with_tags, &ip6, &arp, &vec![0; 13]] {
            // In two parts, as replicas of multicast packets are.
            let parts = || frame.chunks(14);
            drops.lose(&drop_of(DropOrigin::Spread, DropReason::SpreadFull), parts);
        }
        assert_eq!(
            frames(&all),
            [seven, with_tags, ip6].map(|frame| frame[..frame.len().min(60)].to_vec())
        );
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
