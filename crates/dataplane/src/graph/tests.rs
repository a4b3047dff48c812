use super::*;
use crate::testing::{FrameBuilder, batch_of};

/// Sends the slots of a fixed mask to `left`, the others to `right`.
struct Split(u64);

impl Step for Split {
    fn outputs(&self) -> &'static [Output] {
        &[Output::Next("left"), Output::Next("right"), Output::Drop(DropReason::Blackhole)]
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input & Mask(self.0);
        out[1] = input.without(Mask(self.0));
    }
}

/// The masks that a step saw, call by call.
type Log = Arc<std::sync::Mutex<Vec<Mask>>>;

/// Notes which packets pass.
struct Watch(Log);

impl Step for Watch {
    fn outputs(&self) -> &'static [Output] {
        &[Output::Next("next"), Output::Punt(PuntReason::Arp)]
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
    let error = |build: fn(&mut GraphBuilder) -> Result<(), GraphError>| {
        let (mut graph, _) = diamond();
        build(&mut graph).and_then(|()| graph.build().map(drop)).unwrap_err().to_string()
    };
    assert_eq!(
        error(|g| g.add("a", Split(0))),
        "step \"a\" exists already; give the second one another name"
    );
    assert_eq!(
        error(|g| g.connect("split", "left", "jion")),
        "step \"jion\" not found; known: split, join, a, b"
    );
    assert_eq!(
        error(|g| g.connect("split", "up", "a")),
        "step \"split\": output \"up\" not found; known: left, right"
    );
    assert_eq!(
        error(|g| g.connect("split", "blackhole", "a")),
        "step \"split\": output \"blackhole\" not found; known: left, right"
    );
    assert_eq!(
        error(|g| g.connect("split", "left", "b")),
        "step \"split\": output \"left\" is connected twice; remove one"
    );
    assert_eq!(
        error(|g| g.add("c", Split(0))),
        "step \"c\": no path leads to it; connect it or remove it"
    );
    assert_eq!(GraphBuilder::new().build().err(), Some(GraphError::Empty));
}

#[test]
fn an_unconnected_output_is_named() {
    let mut graph = GraphBuilder::new();
    graph.add("only", Split(0)).unwrap();
    graph.transmit("only", "left").unwrap();
    let error = graph.build().err().unwrap();
    assert_eq!(error.to_string(), "step \"only\": output \"right\" leads nowhere; connect it");
}

#[test]
fn a_circle_is_named() {
    let mut graph = GraphBuilder::new();
    for name in ["first", "x", "y"] {
        graph.add(name, Split(0)).unwrap();
    }
    graph.connect("first", "left", "x").unwrap();
    graph.transmit("first", "right").unwrap();
    graph.connect("x", "left", "y").unwrap();
    graph.transmit("x", "right").unwrap();
    graph.connect("y", "left", "x").unwrap();
    graph.transmit("y", "right").unwrap();
    let error = graph.build().err().unwrap();
    assert_eq!(error.to_string(), "steps x, y form a circle; remove one connection");
}

#[test]
fn an_inserted_step_sees_what_went_to_the_one_behind_it() {
    let (mut graph, behind) = diamond();
    let log = Log::default();
    graph.insert("watch", Watch(Arc::clone(&log)), "next", "join").unwrap();
    let mut graph = graph.build().unwrap();
    let ends = graph.run(&mut batch(4));
    assert_eq!(ends.transmit, Mask(0b1111));
    assert_eq!(*log.lock().unwrap(), [Mask(0b1111)]);
    assert_eq!(*behind.lock().unwrap(), [Mask(0b1111)]);
    let names: Vec<_> = graph.shape().steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["split", "a", "b", "watch", "join"]);
}

#[test]
fn a_step_goes_in_front_of_one_that_there_is_and_that_is_not_the_first() {
    let (mut graph, log) = diamond();
    let error = graph.insert("watch", Watch(Arc::clone(&log)), "next", "end").unwrap_err();
    assert_eq!(error.to_string(), "step \"end\" not found; known: split, join, a, b");
    graph.insert("watch", Watch(log), "next", "split").unwrap();
    assert_eq!(graph.build().map(drop).unwrap_err(), GraphError::Unreachable("watch".into()));
}
