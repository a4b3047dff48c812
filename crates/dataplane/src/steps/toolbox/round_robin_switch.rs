//! `round-robin-switch`: gives each packet to the next one of its outputs.
//!
//! Takes any frame. Packets of a flow may be reordered. Each forwarder has turns of its own.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | in turn |

use std::any::Any;

use super::{numbered, outputs};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

pub(super) fn spec() -> StepSpec {
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(RoundRobinSwitch { outputs: numbered(context.args), next: 0 })
    };
    StepSpec::new("round-robin-switch", &[], make).outputs_by(numbered).param(outputs())
}

struct RoundRobinSwitch {
    outputs: Vec<Output>,
    next: usize,
}

impl Step for RoundRobinSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            // The state of a step with more outputs may point behind the last one.
            self.next = if self.next < self.outputs.len() { self.next } else { 0 };
            out[self.next] |= Mask::when(true, slot);
            self.next += 1;
        }
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.next)
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        if let Some(next) = old.downcast_mut::<usize>() {
            std::mem::swap(&mut self.next, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn outputs_take_turns_over_batches_and_changes() {
        let frames = vec![FrameBuilder::ip4().build(); 4];
        let mut step = make("round-robin-switch", &[("outputs", number(3))]);
        let (result, _) = run_step(&mut *step, &frames);
        assert_eq!([&result["0"], &result["1"], &result["2"]], [&vec![0, 3], &vec![1], &vec![2]]);
        let mut other = make("round-robin-switch", &[("outputs", number(3))]);
        other.take_state(step.state().unwrap());
        let (result, _) = run_step(&mut *other, &frames);
        assert_eq!([&result["0"], &result["1"], &result["2"]], [&vec![2], &vec![0, 3], &vec![1]]);
        let mut fewer = make("round-robin-switch", &[("outputs", number(1))]);
        fewer.take_state(other.state().unwrap());
        assert_eq!(run_step(&mut *fewer, &frames).0["0"], [0, 1, 2, 3]);
    }
}
