//! `check-paint`: sorts packets by one colour.
//!
//! Takes any frame; see `paint.rs`.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | of this colour |
//! | `others` | of any other |

use super::paint::{colour, colour_of};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("others")];

pub(super) fn spec() -> StepSpec {
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(CheckPaint(context.args.integer("colour") as u32))
    };
    StepSpec::new("check-paint", OUTPUTS, make).param(colour())
}

struct CheckPaint(u32);

impl Step for CheckPaint {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input.filter(|slot| colour_of(&batch.marks, slot) == self.0);
        out[1] = input.without(out[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::mask::Mask;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn one_colour_is_told_from_others() {
        let frames = vec![FrameBuilder::ip4().build(); 3];
        for (colour, ok) in [(5, vec![0]), (6, vec![1]), (0, vec![2])] {
            let mut step = make("check-paint", &[("colour", number(colour))]);
            let (result, _) = run_step_on(&mut *step, &frames, |batch| {
                batch.marks.marked = Mask(0b11);
                batch.marks.values[..3].copy_from_slice(&[5, 6, 6]);
            });
            assert_eq!(result["ok"], ok, "{colour}");
        }
    }
}
