//! `paint-switch`: sorts packets by colour.
//!
//! Takes any frame; see `paint.rs`.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of this colour |
//! | `all` | of colour 255, with `all = true` |
//! | drop `unpainted` | of a colour without an output |
//!
//! In a graph of Click, `all` leads to a `tee` whose outputs lead where those of this step do.

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
        let outputs = all(context.args);
        let to_all = context.args.flag("all").then(|| outputs.len() - 2);
        Box::new(PaintSwitch { outputs, to_all })
    };
    let to_all = Param::new("all", Kind::Flag, "an output for colour 255");
    StepSpec::new("paint-switch", &[], make)
        .outputs_by(all)
        .param(count.or(Arg::Integer(2)))
        .param(to_all.or(Arg::Flag(false)))
}

fn all(args: &Args) -> Vec<Output> {
    let to_all = args.flag("all").then(|| Output::next("all"));
    let others = Output::DropAs("unpainted".into());
    numbered(args).into_iter().chain(to_all).chain([others]).collect()
}

struct PaintSwitch {
    outputs: Vec<Output>,
    /// The output of packets of [`ALL`].
    to_all: Option<usize>,
}

/// The colour of packets for all outputs.
const ALL: u32 = 255;

impl Step for PaintSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let last = self.outputs.len() - 1;
        let numbered = self.to_all.unwrap_or(last);
        for slot in input.slots() {
            let way = match (colour_of(&batch.marks, slot), self.to_all) {
                (ALL, Some(all)) => all,
                (colour, _) if (colour as usize) < numbered => colour as usize,
                _ => last,
            };
            out[way] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::mask::Mask;
    use crate::params::Given;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn colour_255_is_for_all() {
        let frames = vec![FrameBuilder::ip4().build(); 3];
        let mut step = make("paint-switch", &[("all", Given::Flag(true))]);
        let (result, _) = run_step_on(&mut *step, &frames, |batch| {
            batch.marks.marked = Mask(0b111);
            (0..3).for_each(|slot| batch.marks.values[slot] = [1, 255, 2][slot]);
        });
        assert_eq!(
            (&result["1"], &result["all"], &result["unpainted"]),
            (&vec![0], &vec![1], &vec![2])
        );
    }

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
