//! Trace: the way of some packets through the graph, step by step.
//!
//! A [`Trace`] is the [`Watch`] of one forwarder. For each selected packet it puts a [`Sighting`] into a queue after each
//! step, from which the owner makes the report. The queue has room for all steps of as many packets as are to be traced,
//! so that a sighting is lost only where packets run through a graph several times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::batch::{BATCH_MAX, Batch};
use crate::category::CATEGORIES_MAX;
use crate::filters::FilterTable;
use crate::interface::InterfaceId;
use crate::mask::Mask;
use crate::next_hop::{NO_ROUTE, NextHop};
use crate::shape::Shape;
use crate::watch::{Place, Selection, StepOutcome, Watch};

/// Bytes of a frame in a sighting: all headers that steps read and write.
pub const SIGHTED: usize = 128;

/// In place of an interface: none yet.
pub const NO_INTERFACE: u16 = u16::MAX;

/// The place of a sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Where the packet was selected.
    Entry,
    /// Behind a step.
    Step {
        /// Its place in the graph.
        place: usize,
        /// The way that it gave the packet.
        way: StepOutcome,
    },
}

/// A packet as it was at one place.
#[derive(Clone)]
pub struct Sighting {
    /// The packet's number in the trace, from 0.
    pub packet: u32,
    /// The number of its forwarder.
    pub forwarder: usize,
    /// The graph.
    pub shape: Arc<Shape>,
    /// The place.
    pub at: At,
    /// The interface that received it, as known there.
    pub interface: InterfaceId,
    /// Its next hop, as known there.
    pub hop: NextHop,
    /// The number of its egress interface, as known there; [`NO_INTERFACE`]: none.
    pub out_interface: u16,
    /// Its mark.
    pub mark: Option<u32>,
    /// Its categories, a bit each.
    pub categories: u16,
    /// Bytes of the frame.
    pub length: usize,
    head: [u8; SIGHTED],
    head_len: usize,
}

impl Sighting {
    /// The frame's first bytes, at most [`SIGHTED`].
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }
}

/// The sightings of a trace, of all forwarders.
pub struct Sightings {
    queue: ArrayQueue<Sighting>,
    /// The number of the next packet.
    next: AtomicU32,
    /// Number of packets to be traced.
    most: u32,
    lost: AtomicU64,
}

impl Sightings {
    /// For so many packets, in graphs of so many steps.
    pub fn new(packets: u32, steps: usize) -> Self {
        let room = (packets as usize).saturating_mul(steps + 1).max(1);
        let queue = ArrayQueue::new(room);
        Self { queue, next: AtomicU32::new(0), most: packets, lost: AtomicU64::new(0) }
    }

    /// The next sighting; those of a packet come in their order.
    pub fn take(&self) -> Option<Sighting> {
        self.queue.pop()
    }

    /// Sightings that found no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The number of packets selected so far.
    pub fn selected(&self) -> u32 {
        self.next.load(Ordering::Relaxed).min(self.most)
    }

    /// A number for another packet, if there may be one.
    fn number(&self) -> Option<u32> {
        if self.next.load(Ordering::Relaxed) >= self.most {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.most).then_some(number)
    }

    fn put(&self, sighting: Sighting) {
        if self.queue.push(sighting).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The watch of one forwarder.
pub struct Trace {
    forwarder: usize,
    selection: Selection,
    sightings: Arc<Sightings>,
    /// Packets of the batch that are traced, and their numbers by slot.
    traced: Mask,
    numbers: [u32; BATCH_MAX],
}

impl Trace {
    /// Of packets that the first rule of this filter matches, or of all.
    pub fn new(
        forwarder: usize,
        filter: Option<Arc<FilterTable>>,
        sightings: Arc<Sightings>,
    ) -> Self {
        let selection = Selection::new(filter);
        Self { forwarder, selection, sightings, traced: Mask::EMPTY, numbers: [0; BATCH_MAX] }
    }

    fn look(&mut self, shape: &Arc<Shape>, packets: Mask, batch: &Batch) {
        for slot in self.selection.look(packets, batch).slots() {
            let Some(number) = self.sightings.number() else { return };
            self.traced |= Mask::when(true, slot);
            self.numbers[slot] = number;
            self.sight(shape, At::Entry, slot, batch);
        }
    }

    fn sight(&self, shape: &Arc<Shape>, at: At, slot: usize, batch: &Batch) {
        let frame = batch.frame(slot);
        let head_len = frame.len().min(SIGHTED);
        let mut head = [0; SIGHTED];
        head[..head_len].copy_from_slice(&frame[..head_len]);
        let is_in = |number: &usize| batch.categories.packets(*number).has(slot);
        self.sightings.put(Sighting {
            packet: self.numbers[slot],
            forwarder: self.forwarder,
            shape: shape.clone(),
            at,
            interface: batch.interface(slot),
            hop: batch.hop[slot].into(),
            out_interface: batch.out_interface[slot],
            mark: batch.marks.marked.has(slot).then(|| batch.marks.values[slot]),
            categories: (0..CATEGORIES_MAX).filter(is_in).fold(0, |all, number| all | 1 << number),
            length: batch.len(slot),
            head,
            head_len,
        });
    }
}

impl Watch for Trace {
    fn begin(&mut self, shape: &Arc<Shape>, batch: &mut Batch) {
        self.traced = Mask::EMPTY;
        self.selection.begin();
        batch.next_hop = [NO_ROUTE; BATCH_MAX];
        batch.hop = [NextHop::NoRoute.into(); BATCH_MAX];
        batch.out_interface = [NO_INTERFACE; BATCH_MAX];
        self.look(shape, batch.packets(), batch);
    }

    fn entering(&mut self, _: Place<'_>, _: Mask, _: &mut Batch) {}

    fn passed(
        &mut self,
        (shape, place): Place<'_>,
        (packets, out): (Mask, &[Mask]),
        batch: &mut Batch,
    ) {
        let present = batch.packets();
        self.look(shape, packets & present, batch);
        for slot in (packets & self.traced).slots() {
            let way = match out.iter().position(|taken| taken.has(slot)) {
                Some(output) => StepOutcome::Output(output),
                None if present.has(slot) => StepOutcome::Lost,
                None => StepOutcome::Kept,
            };
            self.sight(shape, At::Step { place, way }, slot, batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use acl::{Action, Filter, SetReaders};

    use super::*;
    use crate::builder::GraphBuilder;
    use crate::filters::{FilterSpec, Treatment};
    use crate::graph::{Graph, Output, Outputs, Step};
    use crate::reason::DropReason;
    use crate::testing::{FrameBuilder, batch_of, udp_to};

    /// Of its packets, drops those in odd slots and loses that in slot 4.
    struct Odd;

    impl Step for Odd {
        fn outputs(&self) -> &[Output] {
            const { &[Output::next("even"), Output::Drop(DropReason::Blackhole)] }
        }

        fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
            out[0] = input.filter(|slot| slot.is_multiple_of(2) && slot != 4);
            out[1] = input.filter(|slot| !slot.is_multiple_of(2));
            batch.out_interface = [2; BATCH_MAX];
        }
    }

    struct Mark;

    impl Step for Mark {
        fn outputs(&self) -> &[Output] {
            const { &[Output::next("next")] }
        }

        fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
            out[0] = input;
            (batch.marks.marked, batch.marks.values) = (input, [7; BATCH_MAX]);
        }
    }

    fn watched(filter: Option<Arc<FilterTable>>, packets: u32) -> (Graph, Arc<Sightings>) {
        let mut builder = GraphBuilder::new();
        builder.add("odd", Odd).unwrap();
        builder.add("mark", Mark).unwrap();
        builder.connect("odd", "even", "mark").unwrap();
        builder.transmit("mark", "next").unwrap();
        let mut graph = builder.build().unwrap();
        let sightings = Arc::new(Sightings::new(packets, 2));
        graph.watches.push(Box::new(Trace::new(1, filter, sightings.clone())));
        (graph, sightings)
    }

    fn ways(sightings: &Sightings) -> Vec<(u32, At)> {
        std::iter::from_fn(|| sightings.take()).map(|seen| (seen.packet, seen.at)).collect()
    }

    fn step(place: usize, output: usize) -> At {
        At::Step { place, way: StepOutcome::Output(output) }
    }

    fn udp(port: u16) -> Vec<u8> {
        FrameBuilder::ip4().udp(9, port, b"data").build()
    }

    #[test]
    fn each_step_s_output_is_seen_as_well_as_a_packet_that_it_loses() {
        let (mut graph, sightings) = watched(None, 9);
        let mut batch = batch_of(&vec![udp(1); 5]);
        let ends = graph.run(&mut batch);
        assert_eq!((ends.transmit.0, ends.drop.0), (0b101, 0b1010));
        let ways = ways(&sightings);
        let of = |packet: u32| -> Vec<_> {
            ways.iter().filter(|(of, _)| *of == packet).map(|(_, at)| *at).collect()
        };
        assert_eq!(of(0), [At::Entry, step(0, 0), step(1, 0)]);
        assert_eq!(of(1), [At::Entry, step(0, 1)]);
        assert_eq!(of(4), [At::Entry, At::Step { place: 0, way: StepOutcome::Lost }]);
        assert_eq!(sightings.lost(), 0);
    }

    #[test]
    fn a_sighting_has_the_packet_as_it_is_there() {
        let (mut graph, sightings) = watched(None, 1);
        graph.run(&mut batch_of(&[udp(1)]));
        let seen: Vec<_> = std::iter::from_fn(|| sightings.take()).collect();
        assert_eq!(seen.iter().map(|seen| seen.mark).collect::<Vec<_>>(), [None, None, Some(7)]);
        let out: Vec<_> = seen.iter().map(|seen| seen.out_interface).collect();
        assert_eq!(out, [NO_INTERFACE, 2, 2]);
        assert!(seen.iter().all(|seen| seen.head() == udp(1) && seen.length == udp(1).len()));
    }

    #[test]
    fn only_so_many_packets_of_all_batches_are_traced() {
        let (mut graph, sightings) = watched(None, 3);
        for _ in 0..3 {
            graph.run(&mut batch_of(&vec![udp(1); 2]));
        }
        let packets: Vec<_> = ways(&sightings).into_iter().map(|(packet, _)| packet).collect();
        assert_eq!(packets, [0, 1, 0, 1, 0, 2, 2, 2]);
        assert_eq!(sightings.selected(), 3);
    }

    #[test]
    fn a_filter_s_first_rule_selects() {
        let filter = Filter {
            name: "trace".into(),
            rules: vec![udp_to(53..=53, Action::Accept)],
            default: Action::Drop,
        };
        let spec = FilterSpec { filter, treatments: vec![Treatment::default()], targets: vec![] };
        let table = FilterTable::new(&spec, None, &SetReaders::none()).unwrap();
        let (mut graph, sightings) = watched(Some(Arc::new(table)), 9);
        let other = FrameBuilder::ip4().build();
        graph.run(&mut batch_of(&[udp(54), udp(53), other, vec![0; 60], udp(53)]));
        let entered: Vec<_> = std::iter::from_fn(|| sightings.take())
            .filter(|seen| seen.at == At::Entry)
            .map(|seen| seen.head().to_vec())
            .collect();
        assert_eq!(entered, [udp(53), udp(53)]);
    }
}
