use super::super::{make, number, released, text};
use super::*;
use crate::params::Given;
use crate::testing::batch_of;

/// Gives the step packets of these lengths for a queue; returns the masks of its outputs.
fn put(step: &mut dyn Step, queue: i32, frames: &[Vec<u8>]) -> Outputs {
    let mut to = make("to-queue", &[("number", number(queue))]);
    let mut batch = batch_of(frames);
    let input = batch.packets();
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    to.process(&mut batch, input, &mut out);
    assert_eq!(out[0], input);
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    step.process(&mut batch, input, &mut out);
    assert_eq!(batch.queue, [0; BATCH_MAX], "the selection is used up");
    out
}

fn frames(first: u8, count: usize) -> Vec<Vec<u8>> {
    vec![vec![first; 60]; count]
}

/// The first bytes of the packets that a step emits, each by the output of its queue.
fn emit(step: &mut dyn Step, most: usize, prepare: impl FnOnce(&mut Batch)) -> Vec<u8> {
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    let mut batch = batch_of(&[]);
    batch.begin_emitted(dpdk::tsc_hz());
    prepare(&mut batch);
    assert_eq!(step.emit(&mut batch, most, &mut out), Origin::Held);
    for (queue, mask) in out.iter().enumerate() {
        mask.slots().for_each(|slot| assert_eq!(usize::from(batch.frame(slot)[0]), queue));
    }
    batch.packets().slots().map(|slot| batch.frame(slot)[0]).collect()
}

fn schedule(order: &str) -> Box<dyn Step> {
    make("schedule", &[("order", text(order))])
}

#[test]
fn packets_leave_by_the_order_and_are_dropped_beyond_the_capacity() {
    let mut step = schedule("prio(a[3], b[10])");
    put(&mut *step, 1, &frames(1, 5));
    let out = put(&mut *step, 0, &frames(0, 4));
    assert_eq!((out[2], step.held(), step.is_waiting()), (Mask(0b1000), 8, true));
    assert_eq!(emit(&mut *step, 5, |_| ()), [0, 0, 0, 1, 1]);
    put(&mut *step, 0, &frames(0, 1));
    assert_eq!(emit(&mut *step, 64, |_| ()), [0, 1, 1, 1]);
    assert!(!step.is_waiting());
    put(&mut *step, 1, &frames(1, 2));
    assert_eq!((released(&mut *step), step.held()), (2, 0));
    // A number beyond the queues is that of the last.
    put(&mut *step, 11, &frames(1, 1));
    assert_eq!(emit(&mut *step, 64, |_| ()), [1]);
}

#[test]
fn packets_wait_for_the_device_of_their_port() {
    let mut step = make("schedule", &[("order", text("a[9]")), ("port", text("right"))]);
    put(&mut *step, 0, &frames(0, 2));
    let right = PortId::new(1).unwrap();
    assert_eq!(emit(&mut *step, 64, |batch| batch.full.set(right, true)), []);
    assert_eq!(emit(&mut *step, 64, |batch| batch.full.set(PortId::FIRST, true)), [0, 0]);
}

#[test]
fn queues_keep_their_packets_by_their_names() {
    let mut old = schedule("prio(a[3], b[10])");
    put(&mut *old, 0, &frames(1, 2));
    put(&mut *old, 1, &frames(0, 2));
    let mut new = schedule("drr(500, b[10], a[10], c[10])");
    new.take_state(old.state().unwrap());
    assert_eq!((old.held(), new.held()), (0, 4));
    assert_eq!(emit(&mut *new, 64, |_| ()).len(), 4, "each by the output of its name");
    // A queue that is gone keeps its packets, to be counted.
    put(&mut *old, 0, &frames(0, 2));
    let mut new = schedule("z[10]");
    new.take_state(old.state().unwrap());
    assert_eq!((old.held(), new.held()), (2, 0));
}

#[test]
fn a_long_queue_drops_early() {
    let early = |step: &mut dyn Step| put(step, 0, &frames(0, 50))[2].count();
    let mut slow = schedule("a[1000 red 20 100 0.1 stability 9]");
    assert_eq!(early(&mut *slow), 0, "the average has not grown yet");
    let mut step = schedule("a[1000 red 20 100 0.1 stability 2]");
    let dropped: u32 = (0..6).map(|_| early(&mut *step)).sum();
    assert!(dropped > 0 && step.held() < 350, "{dropped}");
    // From the largest average on, all are dropped; with `gentle` not yet.
    let mut gentle = schedule("a[1000 red 20 100 0.1 stability 2 gentle]");
    for _ in 0..10 {
        early(&mut *step);
        early(&mut *gentle);
    }
    assert!(step.held() < 140, "{}", step.held());
    assert!(gentle.held() > step.held() + 20, "{} {}", gentle.held(), step.held());
    assert_eq!(early(&mut *step), 50);
}

#[test]
fn packets_selected_early_may_have_an_output() {
    // All are selected from the first one on. `b` has no such output.
    let order = "prio(b[9 red 0 0 1 stability 0], a[1000 red 0 0 1 stability 0 aside])";
    let mut step = schedule(order);
    let names: Vec<_> = step.outputs().iter().map(|output| output.name().to_owned()).collect();
    assert_eq!(names, ["0", "1", "early-1", "queue-full", "queue-red", "looped", "emptied"]);
    for _ in 0..4 {
        assert_eq!(put(&mut *step, 1, &frames(2, 60))[4], Mask::EMPTY);
    }
    assert_eq!(put(&mut *step, 0, &frames(0, 3))[4], Mask(7));
    // Beyond the room they are dropped.
    assert_eq!(put(&mut *step, 1, &frames(2, 20))[4].count(), 4);
    assert_eq!((step.held(), step.is_waiting()), (256, true));
    // The device of the order's port has nothing to do with them.
    let mut other = make("schedule", &[("order", text(order)), ("port", text("right"))]);
    other.take_state(step.state().unwrap());
    let right = PortId::new(1).unwrap();
    assert_eq!(emit(&mut *other, 64, |batch| batch.full.set(right, true)), [2; 64]);
    assert_eq!((other.held(), released(&mut *other), other.held()), (192, 192, 0));
}

#[test]
fn a_queue_is_emptied_by_drops() {
    let tables = crate::testing::TestTables::every_kind();
    let gauges = tables.shared.get::<Gauges>();
    let order = [("order", text("prio(rate(1pps, a[99]), b[99])"))];
    let mut step = super::super::make_with(&tables, "schedule", &order);
    put(&mut *step, 0, &frames(0, 30));
    put(&mut *step, 1, &frames(1, 2));
    gauges.begin_anew("a");
    put(&mut *step, 0, &frames(0, 1));
    let mut out = [Mask::EMPTY; MAX_OUTPUTS];
    let mut batch = batch_of(&[]);
    batch.begin_emitted(dpdk::tsc_hz());
    step.emit(&mut batch, 64, &mut out);
    assert_eq!(out[..6].iter().map(|mask| mask.count()).collect::<Vec<_>>(), [1, 2, 0, 0, 0, 30]);
    assert_eq!(step.held(), 0);
}

#[test]
fn packets_put_aside_leave_the_order_its_share() {
    let mut step = schedule("prio(a[1000 red 0 0 1 stability 0 aside], b[100])");
    for _ in 0..4 {
        put(&mut *step, 0, &frames(2, 64));
    }
    for _ in 0..2 {
        put(&mut *step, 1, &frames(1, 40));
    }
    for _ in 0..2 {
        let emitted = emit(&mut *step, 64, |_| ());
        let ordered = emitted.iter().filter(|&&output| output == 1).count();
        assert_eq!((emitted.len(), ordered), (64, 32));
    }
    // A place alone is for one and the other by turns.
    let mut two = [emit(&mut *step, 1, |_| ()), emit(&mut *step, 1, |_| ())].concat();
    two.sort();
    assert_eq!(two, [1, 2]);
    // The rest of the order is for the others.
    assert_eq!(emit(&mut *step, 64, |_| ()).iter().filter(|&&output| output == 1).count(), 15);
    assert_eq!(emit(&mut *step, 64, |_| ()), [2; 64]);
}

#[test]
fn the_average_of_an_emptied_queue_falls() {
    let tables = crate::testing::TestTables::every_kind();
    let gauges = tables.shared.get::<Gauges>();
    let order = [("order", text("a[99 red 2 2 1 stability 4]"))];
    let mut step = super::super::make_with(&tables, "schedule", &order);
    for _ in 0..4 {
        put(&mut *step, 0, &frames(0, 64));
    }
    let dropped = |step: &mut dyn Step, now: u64| {
        let mut batch = batch_of(&frames(0, 1));
        batch.now = now;
        let (input, mut out) = (batch.packets(), [Mask::EMPTY; MAX_OUTPUTS]);
        step.process(&mut batch, input, &mut out);
        out[2].count()
    };
    assert_eq!(dropped(&mut *step, dpdk::tsc_hz()), 1);
    gauges.begin_anew("a");
    let (mut batch, mut out) = (batch_of(&[]), [Mask::EMPTY; MAX_OUTPUTS]);
    batch.begin_emitted(dpdk::tsc_hz());
    step.emit(&mut batch, 64, &mut out);
    assert!(out[4].count() > 2 && !step.is_waiting());
    assert_eq!(dropped(&mut *step, 100 * dpdk::tsc_hz()), 0);
}

#[test]
fn orders_are_checked_as_arguments() {
    let catalogue = crate::catalogue::Catalogue::default();
    let spec = catalogue.find("schedule").unwrap();
    let given = [("order".to_owned(), Given::Text("prio(a[0])".to_owned()))].into();
    let errors = format!("{:?}", Args::read(spec.params(), &given).unwrap_err());
    assert!(errors.contains("expected its capacity, from 1 to 65536"), "{errors}");
}
