//! `paint-switch`: sorts packets by colour.
//!
//! Takes any frame; see `paint.rs`.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of this colour |
//! | drop `unpainted` | of a colour without an output |

use super::paint::colour_of;
use super::{numbered, outputs};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Kind, Param};

pub(super) fn spec() -> StepSpec {
    let most = crate::graph::MAX_OUTPUTS as i64 - 1;
    let count = Param::new("outputs", Kind::Integer(1..=most), "the number of outputs, 0, 1, …");
    debug_assert_eq!(count.name(), outputs().name());
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(PaintSwitch { outputs: all(context.args) })
    };
    StepSpec::new("paint-switch", &[], make).outputs_by(all).param(count.or(Arg::Integer(2)))
}

fn all(args: &Args) -> Vec<Output> {
    numbered(args).into_iter().chain([Output::DropAs("unpainted".into())]).collect()
}

struct PaintSwitch {
    outputs: Vec<Output>,
}

impl Step for PaintSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let last = self.outputs.len() - 1;
        for slot in input.slots() {
            out[last.min(colour_of(&batch.marks, slot) as usize)] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::mask::Mask;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn each_colour_has_its_output() {
        let frames = vec![FrameBuilder::ip4().build(); 4];
        let mut step = make("paint-switch", &[("outputs", number(3))]);
        let (result, _) = run_step_on(&mut *step, &frames, |batch| {
            batch.marks.marked = Mask(0b111);
            batch.marks.values[..4].copy_from_slice(&[2, 1, 3, 1]);
        });
        assert_eq!(
            [&result["0"], &result["1"], &result["2"], &result["unpainted"]],
            [&[3][..], &[1], &[0], &[2]]
        );
    }
}
