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
    check: |text| Pattern::read(text).map(drop),
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
    let texts = context.args.texts("patterns").iter();
    let patterns = texts.filter_map(|text| Pattern::read(text).ok()).collect();
    Box::new(Classifier { outputs: all(context.args), patterns, at: place(context.args) })
}

/// A condition for 8 bytes at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    at: usize,
    /// Bytes of the pattern; the packet must have them.
    len: usize,
    value: u64,
    mask: u64,
    negated: bool,
}

impl Clause {
    /// Reads `[!]AT/VALUE[%MASK]`, of which each 8 bytes become a clause. A negated one of more is refused.
    fn read(text: &str) -> Result<Vec<Self>, String> {
        let (negated, rest) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let form = || format!("clause \"{text}\": expected AT/HEX or AT/HEX%MASK");
        let (at, value) = rest.split_once('/').ok_or_else(form)?;
        let at: usize = at.parse().map_err(|_| form())?;
        let (value, mask) = value.split_once('%').map_or((value, None), |(v, m)| (v, Some(m)));
        let (values, mut masks) = nibbles(value).ok_or_else(form)?;
        if let Some(mask) = mask {
            let (given, exact) = nibbles(mask).ok_or_else(form)?;
            if given.len() != values.len() || exact.iter().any(|&byte| byte != 0xff) {
                return Err(format!("clause \"{text}\": the mask has not the value's length"));
            }
            masks.iter_mut().zip(given).for_each(|(mask, given)| *mask &= given);
        }
        if negated && values.len() > 8 {
            return Err(format!("clause \"{text}\": negated, and longer than 8 bytes"));
        }
        if at > super::OFFSET_MOST as usize {
            return Err(format!("clause \"{text}\": beyond byte {}", super::OFFSET_MOST));
        }
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let parts = values.chunks(8).zip(masks.chunks(8)).enumerate();
        let clause = |(n, (values, masks)): (usize, (&[u8], &[u8]))| {
            let mask = word(masks);
            Self { at: at + 8 * n, len: values.len(), value: word(values) & mask, mask, negated }
        };
        Ok(parts.map(clause).collect())
    }

    #[inline(always)]
    fn matches(&self, bytes: &[u8]) -> bool {
        let Some(found) = bytes.get(self.at..self.at + self.len) else { return false };
        let mut word = [0; 8];
        word[..self.len].copy_from_slice(found);
        (u64::from_le_bytes(word) & self.mask == self.value) != self.negated
    }
}

/// Bytes in hexadecimal, and masks in which a digit `?` is 0.
fn nibbles(text: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    let nibble = |digit: char| match digit {
        '?' => Some((0, 0)),
        digit => Some((digit.to_digit(16)? as u8, 0xf)),
    };
    let nibbles = text.chars().map(nibble).collect::<Option<Vec<_>>>()?;
    let byte = |pair: &[(u8, u8)]| (pair[0].0 << 4 | pair[1].0, pair[0].1 << 4 | pair[1].1);
    Some(nibbles.chunks_exact(2).map(byte).unzip())
}

/// All of its clauses must match.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(Vec<Clause>);

impl Pattern {
    fn read(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace().peekable();
        if words.peek().is_none() {
            return Err("it is empty; \"-\" matches all".to_owned());
        }
        if text.trim() == "-" {
            return Ok(Self(Vec::new()));
        }
        let clauses = words.map(Clause::read).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(clauses.into_iter().flatten().collect()))
    }

    #[inline(always)]
    fn matches(&self, bytes: &[u8]) -> bool {
        self.0.iter().all(|clause| clause.matches(bytes))
    }
}

struct Classifier {
    outputs: Vec<Output>,
    patterns: Vec<Pattern>,
    at: usize,
}

impl Step for Classifier {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mut rest = input;
        for (pattern, out) in self.patterns.iter().zip(out.iter_mut()) {
            *out = rest.filter(|slot| {
                pattern.matches(batch.frame(slot).get(self.at..).unwrap_or(&[]))
            });
            rest = rest.without(*out);
            if rest.is_empty() {
                return;
            }
        }
        out[self.patterns.len() % MAX_OUTPUTS] = rest;
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
        assert_eq!(["0", "1", "2", "3"].map(|output| result[output].clone()), [
            vec![0],
            vec![1],
            vec![2],
            vec![3, 4]
        ]);
        let args = [("patterns", list(&["0/0800", "0/0806"])), ("offset", number(12))];
        let (result, _) = run_step(&mut *make("classifier", &args), &frames);
        assert_eq!(
            (&result["0"], &result["1"], &result["unmatched"]),
            (&vec![2], &vec![0, 1, 4], &vec![3])
        );
    }

    #[test]
    fn patterns_that_are_none_are_refused() {
        for (text, why) in [
            ("", "it is empty"),
            ("12", "expected AT/HEX"),
            ("12/080", "expected AT/HEX"),
            ("x/08", "expected AT/HEX"),
            ("12/0x", "expected AT/HEX"),
            ("12/0800%ff", "has not the value's length"),
            ("12/08%f?", "has not the value's length"),
            ("!0/000000000000000000", "longer than 8 bytes"),
            ("9999/00", "beyond byte"),
            ("12/0800 -", "expected AT/HEX"),
        ] {
            let error = Pattern::read(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    /// Each clause nibble by nibble.
    fn slowly(at: usize, digits: &str, mask: &[u8], negated: bool, bytes: &[u8]) -> bool {
        let len = digits.len() / 2;
        if bytes.len() < at + len {
            return false;
        }
        let equal = digits.chars().enumerate().all(|(n, digit)| {
            let shift = if n % 2 == 0 { 4 } else { 0 };
            let mask = mask[n / 2] >> shift & 0xf;
            let value = bytes[at + n / 2] >> shift & 0xf;
            digit.to_digit(16).is_none_or(|digit| u32::from(value & mask) == digit & u32::from(mask))
        });
        equal != negated
    }

    proptest::proptest! {
        #[test]
        fn clauses_match_as_their_digits_do(
            at in 0usize..12,
            digits in "([0-3?]{2}){1,8}",
            mask in proptest::collection::vec(0u8..=0x33, 8),
            negated: bool,
            bytes in proptest::collection::vec(0u8..=0x33, 0..24),
        ) {
            let mask = &mask[..digits.len() / 2];
            let hex: String = mask.iter().map(|byte| format!("{byte:02x}")).collect();
            let text = format!("{}{at}/{digits}%{hex}", if negated { "!" } else { "" });
            let pattern = Pattern::read(&text).unwrap();
            let expected = slowly(at, &digits, mask, negated, &bytes);
            proptest::prop_assert_eq!(pattern.matches(&bytes), expected, "{}", text);
        }
    }
}
