//! `paint`: marks packets with a colour.
//!
//! Takes any frame. The colour is the packet's mark, which `check-paint`, `paint-switch` and steps in Lua read
//! ([`Batch::marks`](crate::Batch::marks)); a packet without a mark has colour 0.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |
//!
//! ```lua
//! graph:path("port-switch.left", { "paint", colour = 1 }, "classify")
//! ```

use crate::batch::{Batch, Marks};
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("next")];

/// The parameter `colour`.
pub(super) fn colour() -> Param {
    Param::new("colour", Kind::Integer(0..=i64::from(u32::MAX)), "the colour").or(Arg::Integer(0))
}

/// The colour of a packet.
#[inline(always)]
pub(super) fn colour_of(marks: &Marks, slot: usize) -> u32 {
    if marks.marked.has(slot) { marks.values[slot % crate::mask::BATCH_MAX] } else { 0 }
}

pub(super) fn spec() -> StepSpec {
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(Paint(context.args.integer("colour") as u32))
    };
    StepSpec::new("paint", OUTPUTS, make).param(colour())
}

struct Paint(u32);

impl Step for Paint {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        batch.marks.marked |= input;
        input.for_each(|slot| batch.marks.values[slot] = self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::mask::Mask;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn packets_get_the_colour() {
        let frames = [FrameBuilder::ip4().build(), FrameBuilder::ip4().build()];
        let (result, batch) = run_step(&mut *make("paint", &[("colour", number(7))]), &frames);
        assert_eq!(result["next"], [0, 1]);
        assert_eq!((batch.marks.marked, &batch.marks.values[..3]), (Mask(3), &[7, 7, 0][..]));
    }
}
