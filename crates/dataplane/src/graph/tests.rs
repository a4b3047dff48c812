use proptest::prelude::*;

use super::*;
use crate::builder::GraphBuilder;
use crate::plan::PlanError;
use crate::testing::{FrameBuilder, batch_of};

/// Sends the slots of a fixed mask to `left`, the others to `right`.
struct Split(u64);

impl Step for Split {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("left"), Output::next("right"), Output::Drop(DropReason::Blackhole)] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input & Mask(self.0);
        out[1] = input.without(Mask(self.0));
    }
}

/// The masks that a step received, call by call.
type Log = Arc<std::sync::Mutex<Vec<Mask>>>;

/// Records the packets that pass.
struct Watch(Log);

impl Step for Watch {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next"), Output::Punt(PuntReason::Arp)] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        self.0.lock().unwrap().push(input);
        out[0] = input;
    }
}

fn batch(packets: usize) -> Batch {
    batch_of(&vec![FrameBuilder::ip4().build(); packets])
}

fn diamond() -> (GraphBuilder, Log) {
    let log = Log::default();
    let mut graph = GraphBuilder::new();
    graph.add("split", Split(0b0101)).unwrap();
    // Added before its predecessors, so that the order must come from the edges.
    graph.add("join", Watch(Arc::clone(&log))).unwrap();
    graph.add("a", Split(u64::MAX)).unwrap();
    graph.add("b", Split(0)).unwrap();
    graph.connect("split", "left", "a").unwrap();
    graph.connect("split", "right", "b").unwrap();
    graph.connect("a", "left", "join").unwrap();
    graph.connect("a", "right", "join").unwrap();
    graph.connect("b", "left", "join").unwrap();
    graph.connect("b", "right", "join").unwrap();
    graph.transmit("join", "next").unwrap();
    (graph, log)
}

#[test]
fn merging_paths_is_one_visit_with_all_packets() {
    let (graph, log) = diamond();
    let mut graph = graph.build().unwrap();
    let ends = graph.run(&mut batch(4));
    assert_eq!(ends, Ends { transmit: Mask(0b1111), ..Ends::default() });
    assert_eq!(*log.lock().unwrap(), [Mask(0b1111)]);
}

#[test]
fn edges_count_their_packets() {
    let (graph, _) = diamond();
    let mut graph = graph.build().unwrap();
    graph.run(&mut batch(4));
    graph.run(&mut batch(3));
    let shape = Arc::clone(graph.shape());
    let count = |step: &str, output: &str| {
        let step = shape.steps.iter().find(|s| s.name == step).unwrap();
        let edge = step.outputs.iter().position(|(name, _)| *name == output).unwrap();
        graph.counters().get(step.first_edge + edge)
    };
    assert_eq!(count("split", "left"), 4);
    assert_eq!(count("split", "right"), 3);
    assert_eq!(count("a", "left"), 4);
    assert_eq!(count("b", "right"), 3);
    assert_eq!(count("join", "next"), 7);
    assert_eq!(count("join", "arp"), 0);
}

#[test]
fn an_empty_batch_visits_no_step() {
    let (graph, log) = diamond();
    let mut graph = graph.build().unwrap();
    assert_eq!(graph.run(&mut batch(0)), Ends::default());
    assert!(log.lock().unwrap().is_empty());
}

#[test]
fn mistakes_are_named() {
    let error = |build: fn(&mut GraphBuilder) -> Result<(), PlanError>| {
        let (mut graph, _) = diamond();
        build(&mut graph).and_then(|()| graph.build().map(drop)).unwrap_err().to_string()
    };
    assert_eq!(
        error(|g| g.add("a", Split(0))),
        "step \"a\" is in the graph already; give the second one another name"
    );
    assert_eq!(
        error(|g| g.connect("split", "blackhole", "a")),
        "step \"split\": output \"blackhole\" not found; known: left, right"
    );
    assert_eq!(error(|g| g.add("c", Wide(MAX_OUTPUTS + 1))), "step \"c\": 17 outputs; at most 16");
    assert!(diamond().0.add("c", Wide(MAX_OUTPUTS)).is_ok());
}

/// A step with so many outputs.
struct Wide(usize);

impl Step for Wide {
    fn outputs(&self) -> &[Output] {
        static OUTPUTS: [Output; 17] = [const { Output::Punt(PuntReason::Arp) }; 17];
        &OUTPUTS[..self.0]
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
    }
}

#[test]
fn an_inserted_step_sees_what_went_to_the_one_behind_it() {
    let (mut graph, behind) = diamond();
    let log = Log::default();
    graph.insert("watch", Watch(Arc::clone(&log)), "join").unwrap();
    let mut graph = graph.build().unwrap();
    let ends = graph.run(&mut batch(4));
    assert_eq!(ends.transmit, Mask(0b1111));
    assert_eq!(*log.lock().unwrap(), [Mask(0b1111)]);
    assert_eq!(*behind.lock().unwrap(), [Mask(0b1111)]);
    let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["split", "a", "b", "watch", "join"]);
}

#[test]
fn a_step_goes_in_front_of_one_that_there_is() {
    let (mut graph, log) = diamond();
    let error = graph.insert("watch", Watch(Arc::clone(&log)), "end").unwrap_err();
    assert_eq!(error.to_string(), "step \"end\" not found in the graph; known: split, join, a, b");
    graph.insert("watch", Watch(log), "split").unwrap();
    assert_eq!(graph.build().unwrap().shape().steps[0].name, "watch");
}

/// Counts packets; the total is its state.
struct Tally {
    counters: StepCounters,
    seen: u64,
    panics: bool,
}

impl Tally {
    fn graph(names: &[&str], panics: bool) -> Graph {
        let mut graph = GraphBuilder::new();
        for name in names {
            let counters = StepCounters::new(&["batches", "seen"]);
            graph.add(name, Self { counters, seen: 0, panics }).unwrap();
        }
        for pair in names.windows(2) {
            graph.connect(pair[0], "next", pair[1]).unwrap();
        }
        graph.transmit(names[names.len() - 1], "next").unwrap();
        graph.build().unwrap()
    }
}

impl Step for Tally {
    fn outputs(&self) -> &[Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        self.seen += u64::from(input.count());
        self.counters.at(0).add(1);
        self.counters.at(1).set(self.seen);
        out[0] = input;
    }

    fn counters(&self) -> Option<&StepCounters> {
        Some(&self.counters)
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.seen)
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        assert!(!self.panics, "another's state");
        if let Some(seen) = old.downcast_mut() {
            std::mem::swap(&mut self.seen, seen);
        }
    }
}

fn counted(graph: &Graph, step: &str) -> Vec<(&'static str, u64)> {
    let place = graph.shape().steps.iter().position(|shape| shape.name == step).unwrap();
    graph.counters().of_step(place).collect()
}

#[test]
fn counters_of_a_step_are_read_by_anyone() {
    let mut graph = Tally::graph(&["a", "b"], false);
    let counters = graph.counters().clone();
    graph.run(&mut batch(3));
    graph.run(&mut batch(2));
    let read = std::thread::spawn(move || counters.of_step(1).collect::<Vec<_>>());
    assert_eq!(read.join().unwrap(), [("batches", 2), ("seen", 5)]);
    let (plain, _) = diamond();
    let plain = plain.build().unwrap();
    assert_eq!(plain.counters().of_step(0).count() + plain.counters().of_step(99).count(), 0);
}

#[test]
fn a_step_takes_the_state_of_the_one_with_its_name_and_gives_it_back() {
    let (mut old, mut new) = (Tally::graph(&["a", "b"], false), Tally::graph(&["c", "a"], false));
    old.run(&mut batch(3));
    new.take_state(&mut old);
    new.run(&mut batch(1));
    assert_eq!((counted(&new, "a")[1], counted(&new, "c")[1]), (("seen", 4), ("seen", 1)));
    // The change is undone.
    old.take_state(&mut new);
    old.run(&mut batch(1));
    assert_eq!((counted(&old, "a")[1], counted(&old, "b")[1]), (("seen", 5), ("seen", 4)));
}

#[test]
fn a_step_takes_no_state_of_another_kind() {
    let mut old = GraphBuilder::new();
    old.add("a", Watch(Log::default())).unwrap();
    old.transmit("a", "next").unwrap();
    let (mut old, mut new) = (old.build().unwrap(), Tally::graph(&["a"], true));
    new.take_state(&mut old);
    let mut other = Tally::graph(&["b"], false);
    new.take_state(&mut other);
    let mut same = Tally::graph(&["a"], false);
    assert!(guard(|| new.take_state(&mut same)).is_err(), "it was asked");
}

/// Sends the slots of a mask to `left` and the others to `right`, and panics over those of another one.
struct Fragile {
    left: u64,
    breaks: u64,
}

impl Step for Fragile {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("left"), Output::next("right")] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        assert!((input & Mask(self.breaks)).is_empty());
        (out[0], out[1]) = (input & Mask(self.left), input.without(Mask(self.left)));
    }
}

/// A step of a random graph: its slots for the left, those over which it panics, and the number of steps that its outputs
/// leave out. The right one leaves out none, so that each step can be reached.
type Arbitrary = (u64, u64, [usize; 2]);

/// The way of one packet: the edges that it takes, and the end, `false` if a step panics over it.
fn walk(steps: &[Arbitrary], slot: usize) -> (Vec<usize>, bool) {
    let (mut edges, mut at) = (Vec::new(), 0);
    while let Some(&(left, breaks, ahead)) = steps.get(at) {
        if Mask(breaks).has(slot) {
            return (edges, false);
        }
        let output = usize::from(!Mask(left).has(slot));
        edges.push(2 * at + output);
        at += 1 + ahead[output];
    }
    (edges, true)
}

#[test]
fn packets_of_any_graph_take_the_ways_that_each_would_take_alone() {
    let mask = || prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    let breaks = prop_oneof![8 => Just(0), 1 => any::<u64>(), 1 => Just(1 << 5)];
    let steps =
        proptest::collection::vec((mask(), breaks, (0usize..3).prop_map(|left| [left, 0])), 1..9);
    proptest!(|(steps in steps, packets in prop_oneof![Just(1usize), 1usize..=64])| {
        let name = |place: usize| format!("step {place}");
        let mut graph = GraphBuilder::new();
        for (place, &(left, breaks, _)) in steps.iter().enumerate() {
            graph.add(&name(place), Fragile { left, breaks }).unwrap();
        }
        for (place, (_, _, ahead)) in steps.iter().enumerate() {
            for (output, ahead) in ["left", "right"].iter().zip(ahead) {
                match place + 1 + ahead {
                    to if to < steps.len() => graph.connect(&name(place), output, &name(to)).unwrap(),
                    _ => graph.transmit(&name(place), output).unwrap(),
                }
            }
        }
        let mut graph = graph.build().unwrap();
        let edge = |edge: usize| {
            let shape = graph.shape().steps.iter().find(|step| step.name == name(edge / 2));
            shape.map(|shape| shape.first_edge + edge % 2).unwrap()
        };
        let edges: Vec<_> = (0..2 * steps.len()).map(edge).collect();
        let (mut expected, mut broken) = (vec![0; 2 * steps.len()], Mask::EMPTY);
        for slot in 0..packets {
            let (taken, arrives) = walk(&steps, slot);
            taken.iter().for_each(|&edge| expected[edge] += 1);
            broken |= Mask::when(!arrives, slot);
        }
        let mut batch = batch(packets);
        let mut guilty = Mask::EMPTY;
        let ends = guard(|| graph.run(&mut batch)).unwrap_or_else(|_| {
            graph.resume(&mut batch, |_, slot, _| guilty |= Mask::when(true, slot))
        });
        prop_assert_eq!(guilty, broken);
        prop_assert_eq!(ends.transmit, batch.packets().without(broken));
        let counted: Vec<_> = edges.iter().map(|&edge| graph.counters().get(edge)).collect();
        prop_assert_eq!(counted, expected);
        // Nothing is left for the next batch.
        prop_assert_eq!(graph.run(&mut self::batch(0)), Ends::default());
    });
}
