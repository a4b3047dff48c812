//! `random-sample`: picks packets at random.
//!
//! Takes any frame.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | with a probability of `per_million` in a million |
//! | `others` | the rest |

use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("others")];

const MILLION: u32 = 1_000_000;

pub(super) fn spec() -> StepSpec {
    let kind = Kind::Integer(0..=i64::from(MILLION));
    let per_million = Param::new("per_million", kind, "packets of a million");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let per_million = context.args.integer("per_million") as u32;
        Box::new(RandomSample { per_million, random: fastrand::Rng::with_seed(dpdk::tsc()) })
    };
    StepSpec::new("random-sample", OUTPUTS, make).param(per_million.or(Arg::Integer(10_000)))
}

struct RandomSample {
    per_million: u32,
    random: fastrand::Rng,
}

impl Step for RandomSample {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let is_picked = self.random.u32(..MILLION) < self.per_million;
            out[usize::from(!is_picked)] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn about_the_asked_part_is_picked() {
        let frames = vec![FrameBuilder::ip4().build(); 64];
        for (per_million, least, most) in [(0, 0, 0), (1_000_000, 640, 640), (500_000, 240, 400)] {
            let mut step = make("random-sample", &[("per_million", number(per_million))]);
            let picked: usize = (0..10).map(|_| run_step(&mut *step, &frames).0["ok"].len()).sum();
            // Half of 640 is six standard deviations away from these limits.
            assert!((least..=most).contains(&picked), "{per_million}: {picked}");
        }
    }
}
