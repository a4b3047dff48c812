//! `random-switch`: gives each packet to one of its outputs at random.
//!
//! Takes any frame. Packets of a flow may be reordered.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | with equal probability |

use super::{numbered, outputs};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

pub(super) fn spec() -> StepSpec {
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let random = fastrand::Rng::with_seed(dpdk::tsc());
        Box::new(RandomSwitch { outputs: numbered(context.args), random })
    };
    StepSpec::new("random-switch", &[], make).outputs_by(numbered).param(outputs())
}

struct RandomSwitch {
    outputs: Vec<Output>,
    random: fastrand::Rng,
}

impl Step for RandomSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            out[self.random.usize(..self.outputs.len())] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn every_output_gets_some() {
        let mut step = make("random-switch", &[("outputs", number(2))]);
        let frames = vec![FrameBuilder::ip4().build(); 64];
        let (result, _) = run_step(&mut *step, &frames);
        // Fewer than 8 of 64 have a probability of 1e-10.
        assert!(result["0"].len() >= 8 && result["1"].len() >= 8, "{result:?}");
    }
}
