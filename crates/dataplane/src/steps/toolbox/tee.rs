//! `tee`: sends a copy of each packet to each of its outputs.
//!
//! Takes any frame. The packets themselves go on by output 0 at once; copies leave by the others in a later batch. They
//! count as replicated.
//!
//! | output | packets |
//! |---|---|
//! | `0` | all |
//! | `1`, `2`, … | copies |
//!
//! Copies for which there is no buffer, or that the graph takes up too slowly, are left out and counted as `lost`, as are
//! those of copies that have come back here 64 times, and copies that wait for an output which a new graph does not have.
//!
//! ```lua
//! graph:path("counter.next", { "tee", outputs = 2 }, { "to-port", port = "right" }, "transmit")
//! graph:path("tee.1", { "to-port", as = "to-analyser", port = "analyser" }, "transmit")
//! ```

use std::any::Any;
use std::collections::VecDeque;

use super::outputs;
use super::queue::PASSES_MOST;
use crate::batch::{Batch, Held};
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Origin, Output, Outputs, Step, StepCounters};
use crate::mask::{BATCH_MAX, Mask};
use crate::params::Args;

/// Batches of copies that can wait.
const BATCHES: usize = 4;

pub(super) fn spec() -> StepSpec {
    StepSpec::new("tee", &[], make).outputs_by(all).param(outputs())
}

fn all(args: &Args) -> Vec<Output> {
    let copies = (1..args.integer("outputs")).map(|n| Output::Deferred(n.to_string().into()));
    std::iter::once(Output::next("0")).chain(copies).collect()
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let outputs = all(context.args);
    let room = BATCHES * BATCH_MAX * outputs.len();
    let (copies, counters) = (VecDeque::with_capacity(room), StepCounters::new(&["lost"]));
    Box::new(Tee { outputs, copies: Copies(copies), room, counters })
}

/// Copies, and the outputs that they take: what the step hands over to the one that replaces it.
struct Copies(VecDeque<(usize, Held)>);

struct Tee {
    outputs: Vec<Output>,
    copies: Copies,
    room: usize,
    counters: StepCounters,
}

impl Step for Tee {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        for slot in input.slots() {
            for output in 1..self.outputs.len() {
                let may = self.copies.0.len() < self.room && batch.passes(slot) < PASSES_MOST;
                let copy = if may { batch.copy(slot) } else { None };
                self.counters.at(0).add(copy.is_none().into());
                self.copies.0.extend(copy.map(|copy| (output, copy)));
            }
        }
    }

    fn emit(&mut self, batch: &mut Batch, most: usize, out: &mut Outputs) -> Origin {
        for _ in 0..most {
            if !self.copies.0.front().is_some_and(|(_, copy)| batch.admits(copy)) {
                break;
            }
            let Some((output, copy)) = self.copies.0.pop_front() else { break };
            if let Ok(slot) = batch.put(copy) {
                out[output] |= Mask::when(true, slot);
            }
        }
        Origin::Made
    }

    fn is_waiting(&self) -> bool {
        !self.copies.0.is_empty()
    }

    fn release(&mut self, _: &mut dyn FnMut(Held)) {
        self.counters.at(0).add(self.copies.0.len() as u64);
        self.copies.0.clear();
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.copies)
    }

    /// Copies for outputs that this step does not have, or beyond its room, are lost.
    fn take_state(&mut self, old: &mut dyn Any) {
        let Some(Copies(old)) = old.downcast_mut() else { return };
        for (output, copy) in old.drain(..) {
            if output < self.outputs.len() && self.copies.0.len() < self.room {
                self.copies.0.push_back((output, copy));
            } else {
                self.counters.at(0).add(1);
            }
        }
    }

    fn counters(&self) -> Option<&StepCounters> {
        Some(&self.counters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number, released};
    use super::*;
    use crate::graph::MAX_OUTPUTS;
    use crate::mirror;
    use crate::testing::{batch_of, dpdk};

    #[test]
    fn each_output_gets_all_packets_in_their_order() {
        let mut step = make("tee", &[("outputs", number(3))]);
        let frames = [vec![1; 60], vec![2; 300]];
        let mut batch = batch_of(&frames);
        batch.copies = Some(mirror::Copies::new(dpdk().1.clone()));
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        step.process(&mut batch, Mask(3), &mut out);
        assert_eq!(
            (out[0], out[1], step.held(), step.is_waiting()),
            (Mask(3), Mask::EMPTY, 0, true)
        );
        let mut later = batch_of(&[]);
        later.begin_emitted(0);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        assert_eq!(step.emit(&mut later, 64, &mut out), Origin::Made);
        assert_eq!((out[1], out[2]), (Mask(0b0101), Mask(0b1010)));
        for (slot, frame) in [0, 0, 1, 1].into_iter().enumerate() {
            assert_eq!(later.frame(slot), frames[frame], "{slot}");
        }
        assert!(!step.is_waiting());
    }

    fn lost(step: &dyn Step) -> u64 {
        step.counters().unwrap().all().next().unwrap().1
    }

    #[test]
    fn copies_are_handed_over_to_a_new_graph_as_far_as_it_has_their_outputs() {
        let mut old = make("tee", &[("outputs", number(3))]);
        let mut batch = batch_of(&[vec![1; 60], vec![2; 60]]);
        batch.copies = Some(mirror::Copies::new(dpdk().1.clone()));
        old.process(&mut batch, Mask(3), &mut [Mask::EMPTY; MAX_OUTPUTS]);
        let mut new = make("tee", &[("outputs", number(2))]);
        new.take_state(old.state().unwrap());
        assert!(!old.is_waiting() && new.is_waiting());
        let mut later = batch_of(&[]);
        later.begin_emitted(0);
        let mut out = [Mask::EMPTY; MAX_OUTPUTS];
        new.emit(&mut later, 64, &mut out);
        assert_eq!((out[1], [0, 1].map(|slot| later.frame(slot)[0])), (Mask(3), [1, 2]));
        assert_eq!((lost(&*old), lost(&*new)), (0, 2), "those of output 2");
    }

    #[test]
    fn copies_that_nobody_takes_are_counted_as_lost() {
        let mut step = make("tee", &[]);
        let mut batch = batch_of(&vec![vec![1; 60]; 64]);
        batch.copies = Some(mirror::Copies::new(dpdk().1.clone()));
        for _ in 0..10 {
            let mut out = [Mask::EMPTY; MAX_OUTPUTS];
            step.process(&mut batch, Mask(u64::MAX), &mut out);
        }
        assert_eq!(lost(&*step), 2 * 64, "8 batches fit");
        assert_eq!((released(&mut *step), step.is_waiting()), (0, false));
        assert_eq!(lost(&*step), 10 * 64, "those that were never emitted too");
    }
}
