//! `ip-classifier`: sorts IPv4 packets by patterns over their headers.
//!
//! Takes frames with an IPv4 header at `offset`. A packet takes the output of the first pattern that it matches. Patterns
//! are those of Click's `IPClassifier`: `"tcp dst port 80"`, `"src net 10.0.0.0/8 and not udp"`, `"icmp type echo"`,
//! `"-"` for all (`crates/click/src/ip.rs`).
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | of this pattern, and of no earlier one |
//! | drop `unmatched` | of none |
//!
//! ```lua
//! graph:path("check.ok", { "ip-classifier", patterns = { "tcp dst port 80 or 443", "-" } })
//! ```

use click::ip::IpClassifier;
use click::names::{Names, Scope};
use click::{Element, Flat, Place};

use super::{IP, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param};

/// Reads patterns.
type Read = fn(&[String]) -> Result<IpClassifier, String>;

/// A pattern.
static PATTERN: Grammar = Grammar {
    expected: "a pattern such as \"tcp dst port 80\" or \"-\"",
    check: |text| patterns(&[text.to_owned()]).map(drop),
};

pub(super) fn spec() -> StepSpec {
    let param = Param::new("patterns", Kind::ParsedList(&PATTERN), "a pattern for each output");
    let spec = StepSpec::new("ip-classifier", &[], |context| {
        Box::new(Sorter::new(context, "patterns", patterns, outputs(context.args)))
    });
    spec.outputs_by(outputs)
        .param(param.or(Arg::Texts(vec!["-".to_owned()])))
        .param(offset(IP, "the IPv4 header's place"))
}

fn outputs(args: &Args) -> Vec<Output> {
    all(args.texts("patterns").len(), "unmatched")
}

/// So many outputs, and a drop.
pub(super) fn all(count: usize, dropped: &'static str) -> Vec<Output> {
    let numbers = (0..count).map(|n| Output::Next(n.to_string().into()));
    numbers.chain([Output::DropAs(dropped.into())]).collect()
}

fn patterns(texts: &[String]) -> Result<IpClassifier, String> {
    read(texts, IpClassifier::classifier)
}

/// Reads arguments that mention no names of a configuration.
pub(super) fn read(
    texts: &[String],
    read: impl Fn(&[String], &Scope<'_>) -> Result<IpClassifier, String>,
) -> Result<IpClassifier, String> {
    let names = Names::of(&Flat::default()).map_err(|errors| errors.to_string())?;
    let place = Place { file: "".into(), line: 1, column: 1, source: "".into() };
    let (name, class, config) = (String::new(), String::new(), String::new());
    read(texts, &names.scope(&Element { name, class, arguments: Vec::new(), config, place }))
}

/// A step that sorts packets by patterns.
pub(super) struct Sorter {
    outputs: Vec<Output>,
    /// `None`: the patterns are none, which the configuration's check does not let pass; all packets are dropped.
    patterns: Option<IpClassifier>,
    at: usize,
}

impl Sorter {
    pub(super) fn new(
        context: &MakeContext<'_>,
        param: &str,
        read: Read,
        outputs: Vec<Output>,
    ) -> Self {
        let patterns = read(context.args.texts(param)).ok();
        Self { outputs, patterns, at: place(context.args) }
    }
}

impl Step for Sorter {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let last = (self.outputs.len() - 1) % MAX_OUTPUTS;
        let Some(patterns) = &self.patterns else {
            out[last] = input;
            return;
        };
        for slot in input.slots() {
            let frame = batch.frame(slot);
            let mac = self.at.checked_sub(14).and_then(|at| frame.get(at..)).unwrap_or(&[]);
            let way = patterns.output_of_frame(mac, frame.get(self.at..).unwrap_or(&[]));
            out[way.unwrap_or(last).min(last)] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{list, make};
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn the_first_pattern_that_matches_counts() {
        let frames = [
            FrameBuilder::ip4().udp(1000, 53, b"x").build(),
            FrameBuilder::ip4().source4("10.1.2.3").udp(1000, 54, b"x").build(),
            FrameBuilder::ip4().protocol(1).payload(&[8, 0, 0, 0, 0, 0, 0, 0]).build(),
            FrameBuilder::ip4().protocol(6).payload(&[0; 20]).build(),
        ];
        let texts = list(&["udp dst port 53", "src net 10.0.0.0/8", "icmp type echo"]);
        let (result, _) = run_step(&mut *make("ip-classifier", &[("patterns", texts)]), &frames);
        assert_eq!(
            ["0", "1", "2", "unmatched"].map(|output| result[output].clone()),
            [vec![0], vec![1], vec![2], vec![3]]
        );
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        assert!(patterns(&["tcp dst port".to_owned()]).is_err());
        assert!(patterns(&["-".to_owned()]).is_ok());
    }
}
