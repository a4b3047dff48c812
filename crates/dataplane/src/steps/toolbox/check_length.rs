//! `check-length`: sorts packets by length.
//!
//! Takes any frame; `offset` bytes at its beginning do not count.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | at most `length` bytes |
//! | `long` | more |

use super::{offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("long")];

pub(super) fn spec() -> StepSpec {
    let length = Param::new("length", Kind::Integer(0..=65_535), "the largest length");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(CheckLength(place(context.args) + context.args.integer("length") as usize))
    };
    let spec = StepSpec::new("check-length", OUTPUTS, make);
    spec.param(length.or(Arg::Integer(1500))).param(offset(0, "bytes that do not count"))
}

struct CheckLength(usize);

impl Step for CheckLength {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input.filter(|slot| batch.len(slot) <= self.0);
        out[1] = input.without(out[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::run_step;

    #[test]
    fn the_limit_itself_passes() {
        let mut step = make("check-length", &[("length", number(100)), ("offset", number(14))]);
        let (result, _) = run_step(&mut *step, &[vec![0; 114], vec![0; 115]]);
        assert_eq!((&result["ok"], &result["long"]), (&vec![0], &vec![1]));
    }
}
