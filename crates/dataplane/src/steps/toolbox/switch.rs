//! `switch`: sends all packets to one of its outputs.
//!
//! Takes any frame. The output is an argument: to change it, apply a configuration.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | all, if `to` is this output |
//! | drop `off` | all, if `to` is -1 or an output that it has not |

use super::numbered;
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Kind, Param};

pub(super) fn spec() -> StepSpec {
    let most = MAX_OUTPUTS as i64 - 1;
    let count = Param::new("outputs", Kind::Integer(1..=most), "the number of outputs, 0, 1, …");
    let to = Param::new("to", Kind::Integer(-1..=most), "the output; -1: drop");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let outputs = all(context.args);
        let (to, last) = (context.args.integer("to"), outputs.len() - 1);
        Box::new(Switch { to: usize::try_from(to).map_or(last, |to| to.min(last)), outputs })
    };
    let spec = StepSpec::new("switch", &[], make).outputs_by(all);
    spec.param(count.or(Arg::Integer(2))).param(to.or(Arg::Integer(0)))
}

fn all(args: &Args) -> Vec<Output> {
    numbered(args).into_iter().chain([Output::DropAs("off".into())]).collect()
}

struct Switch {
    to: usize,
    outputs: Vec<Output>,
}

impl Step for Switch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[self.to] = input;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn all_take_the_output_that_the_argument_names() {
        let frames = vec![FrameBuilder::ip4().build(); 2];
        for (to, output) in [(0, "0"), (2, "2"), (-1, "off"), (3, "off"), (9, "off")] {
            let mut step = make("switch", &[("outputs", number(3)), ("to", number(to))]);
            assert_eq!(run_step(&mut *step, &frames).0[output], [0, 1], "{to}");
        }
    }
}
