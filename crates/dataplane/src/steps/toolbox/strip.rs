//! `strip`: removes bytes at the beginning of frames.
//!
//! Takes any frame. The frame's data are not moved, only its beginning.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | begin `bytes` later now |
//! | `short` | have no more bytes than that, or too few are left of their buffer; unchanged |
//!
//! ```lua
//! graph:path("unwrap.ok", { "strip", bytes = 8 }, "classify")
//! ```

use crate::batch::Batch;
use crate::catalogue::StepSpec;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("short")];

pub(super) fn spec() -> StepSpec {
    let bytes = Param::new("bytes", Kind::Integer(0..=super::OFFSET_MOST), "bytes to remove");
    let make = |context: &crate::catalogue::MakeContext<'_>| -> Box<dyn Step> {
        Box::new(Strip(context.args.integer("bytes") as u16))
    };
    StepSpec::new("strip", OUTPUTS, make).param(bytes.or(Arg::Integer(14))).moves_data()
}

struct Strip(u16);

impl Step for Strip {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            out[usize::from(!batch.strip(slot, self.0))] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::run_step;

    #[test]
    fn frames_begin_later_if_they_are_long_enough() {
        let frames = [vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4]];
        let (result, batch) = run_step(&mut *make("strip", &[("bytes", number(4))]), &frames);
        assert_eq!((&result["ok"], &result["short"]), (&vec![0], &vec![1]));
        assert_eq!((batch.frame(0), batch.frame(1)), (&[5][..], &[1, 2, 3, 4][..]));
    }
}
