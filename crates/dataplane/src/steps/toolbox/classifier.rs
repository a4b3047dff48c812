//! `classifier`: sorts packets by bytes at fixed places.
//!
//! Takes any frame; a pattern's places count from `offset`. A packet takes the output of the first pattern that it
//! matches:
//!
//! | pattern | packets |
//! |---|---|
//! | `12/0806` | bytes 12 and 13 are 08 06, in hexadecimal |
//! | `12/08??` | `?` is any digit |
//! | `33/02%12` | of the bits of mask 12, only those of 02 are set |
//! | `!12/0806` | not these bytes |
//! | `12/0806 20/0001` | all of several |
//! | `-` | all |
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of this pattern, and of no earlier one |
//! | drop `unmatched` | of none, or too short for a pattern that they would match so far |
//!
//! ```lua
//! graph:path("port-switch.left", { "classifier", patterns = { "12/0806", "12/0800", "-" } })
//! ```

use super::{offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param};

/// A pattern.
static PATTERN: Grammar = Grammar {
    expected: "a pattern such as \"12/0806 20/0001\" or \"-\"",
    check: |text| click::classifier::Classifier::parse(&[text.to_owned()]).map(drop),
};

pub(super) fn spec() -> StepSpec {
    let patterns = Param::new("patterns", Kind::ParsedList(&PATTERN), "a pattern for each output");
    StepSpec::new("classifier", &[], make)
        .outputs_by(all)
        .param(patterns.or(Arg::Texts(vec!["-".to_owned()])))
        .param(offset(0, "the place from which patterns count"))
}

fn all(args: &Args) -> Vec<Output> {
    let numbers = (0..args.texts("patterns").len()).map(|n| Output::Next(n.to_string().into()));
    numbers.chain([Output::DropAs("unmatched".into())]).collect()
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    // Texts that are no patterns do not pass the configuration's check.
    let patterns = click::classifier::Classifier::parse(context.args.texts("patterns")).ok();
    Box::new(Classifier { outputs: all(context.args), patterns, at: place(context.args) })
}

struct Classifier {
    outputs: Vec<Output>,
    patterns: Option<click::classifier::Classifier>,
    at: usize,
}

impl Step for Classifier {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let last = (self.outputs.len() - 1) % MAX_OUTPUTS;
        for slot in input.slots() {
            let bytes = batch.frame(slot).get(self.at..).unwrap_or(&[]);
            let way = self.patterns.as_ref().and_then(|patterns| patterns.output(bytes));
            out[way.unwrap_or(last).min(last)] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{list, make, number};
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let arp = |op| {
            let mut frame = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 28]).build();
            frame[21] = op;
            frame
        };
        let frames = [
            arp(1),
            arp(2),
            FrameBuilder::ip4().build(),
            FrameBuilder::ethernet([1; 6], 0x88cc).build(),
            arp(1)[..20].to_vec(),
        ];
        let patterns = list(&["12/0806 20/0001", "12/0806 20/0002", "12/0800", "-"]);
        let (result, _) = run_step(&mut *make("classifier", &[("patterns", patterns)]), &frames);
        assert_eq!(
            ["0", "1", "2", "3"].map(|output| result[output].clone()),
            [vec![0], vec![1], vec![2], vec![3, 4]]
        );
        let args = [("patterns", list(&["0/0800", "0/0806"])), ("offset", number(12))];
        let (result, _) = run_step(&mut *make("classifier", &args), &frames);
        assert_eq!(
            (&result["0"], &result["1"], &result["unmatched"]),
            (&vec![2], &vec![0, 1, 4], &vec![3])
        );
    }

    #[test]
    fn texts_that_are_no_patterns_are_refused() {
        for text in ["12", "12/080", "x/08", "12/0800%ff"] {
            assert!((PATTERN.check)(text).is_err(), "{text}");
        }
        assert!((PATTERN.check)("!12/08?? 20/0001%00ff").is_ok());
    }
}
