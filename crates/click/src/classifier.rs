//! Patterns of `Classifier`: `12/0806 20/0001`.
//!
//! ```text
//! pattern = "-" | clause { clause }
//! clause  = [ "!" ] OFFSET "/" HEX [ "%" HEX ]
//! ```
//!
//! A clause compares bytes from an offset on with the value, under the mask; `?` stands for any nibble. A pattern
//! matches if all of its clauses do; `-` matches everything. A packet that is too short for a clause does not match it.
//!
//! ```
//! # use click::classifier::Classifier;
//! let patterns = ["12/0806 20/0001".to_owned(), "12/0800".to_owned(), "-".to_owned()];
//! let classifier = Classifier::parse(&patterns)?;
//! assert_eq!(classifier.output(&[0; 60]), Some(2));
//! # Ok::<(), String>(())
//! ```

use winnow::Parser;
use winnow::ascii::{digit1, multispace0};
use winnow::combinator::{cut_err, opt, preceded};
use winnow::error::{ContextError, ErrMode, StrContext};
use winnow::token::take_while;

use crate::decision::{Base, Expr, Layers, Program, Test};

type Result<T> = winnow::ModalResult<T, ContextError>;

/// Highest offset of a clause, beyond any packet.
const HIGHEST_OFFSET: usize = 65535;

/// Compiled patterns.
#[derive(Clone, Debug)]
pub struct Classifier {
    program: Program,
}

/// One clause as written.
struct Clause<'t> {
    negated: bool,
    offset: usize,
    value: &'t str,
    mask: Option<&'t str>,
}

impl Classifier {
    /// Compiles one pattern for each output.
    pub fn parse(patterns: &[String]) -> std::result::Result<Classifier, String> {
        let program = Program::new(&rules(patterns)?).ok_or("patterns too large for a program")?;
        Ok(Classifier { program })
    }

    /// The output for a packet, from its first byte; `None` if no pattern matches.
    #[inline]
    pub fn output(&self, packet: &[u8]) -> Option<usize> {
        let layers = Layers { start: packet, ..Layers::default() };
        self.program.run(&layers).map(|output| output as usize)
    }
}

fn rules(patterns: &[String]) -> std::result::Result<Vec<(Expr, Option<u32>)>, String> {
    let numbered = patterns.iter().zip(0u32..);
    let rule = |(pattern, output): (&String, u32)| {
        let wrong = |problem| format!("pattern {output} \"{pattern}\": {problem}");
        Ok((expr(pattern).map_err(wrong)?, Some(output)))
    };
    numbered.map(rule).collect()
}

fn expr(pattern: &str) -> std::result::Result<Expr, String> {
    if pattern.trim() == "-" {
        return Ok(Expr::Const(true));
    }
    let mut rest = pattern;
    let mut clauses = Vec::new();
    loop {
        let _ = multispace0::<_, ErrMode<ContextError>>.parse_next(&mut rest);
        if rest.is_empty() {
            return Ok(Expr::And(clauses));
        }
        let read = clause.parse_next(&mut rest).map_err(|_| {
            let found: String = rest.chars().take(8).collect();
            let found =
                if found.is_empty() { "the end".to_owned() } else { format!("\"{found}\"") };
            format!("found {found}; expected a clause such as 12/0800, !12/0800 or 12/08??%ff00")
        })?;
        clauses.push(compared(&read)?);
    }
}

fn clause<'t>(input: &mut &'t str) -> Result<Clause<'t>> {
    let nibbles = || take_while(1.., |c: char| c.is_ascii_hexdigit() || c == '?');
    let negated = opt(('!', multispace0)).parse_next(input)?.is_some();
    let offset = digit1.parse_to().context(StrContext::Label("offset")).parse_next(input)?;
    let value = preceded('/', cut_err(nibbles())).parse_next(input)?;
    let mask = opt(preceded('%', cut_err(nibbles()))).parse_next(input)?;
    Ok(Clause { negated, offset, value, mask })
}

/// Tests of a clause, a word of four bytes each.
fn compared(clause: &Clause) -> std::result::Result<Expr, String> {
    let Clause { negated, offset, value, mask } = clause;
    if value.len() % 2 != 0 {
        return Err(format!("value {value} has an odd number of digits"));
    }
    if let Some(mask) = mask.filter(|mask| mask.len() != value.len()) {
        return Err(format!("mask {mask} has {} digits, its value {}", mask.len(), value.len()));
    }
    if *offset > HIGHEST_OFFSET {
        return Err(format!("offset {offset} is beyond {HIGHEST_OFFSET}"));
    }
    let mut tests = Vec::new();
    for start in (0..value.len()).step_by(8) {
        let end = (start + 8).min(value.len());
        let (wanted, known) = nibbles(&value[start..end]);
        let masked = mask.map_or(u32::MAX, |mask| {
            let (mask, known) = nibbles(&mask[start..end]);
            mask & known
        });
        tests.push(Expr::Test(Test::equal(
            Base::Start,
            offset + start / 2,
            known & masked,
            wanted,
        )));
    }
    let all = Expr::And(tests);
    Ok(if *negated { Expr::Not(Box::new(all)) } else { all })
}

/// Value of up to eight digits at the left of a word, and the mask of those that are not `?`.
fn nibbles(digits: &str) -> (u32, u32) {
    digits.chars().enumerate().fold((0, 0), |(value, mask), (place, digit)| {
        let shift = 28 - 4 * place as u32;
        match digit.to_digit(16) {
            Some(digit) => (value | digit << shift, mask | 0xf << shift),
            None => (value, mask),
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decision::tests::reference;

    fn output(patterns: &[&str], packet: &[u8]) -> Option<usize> {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        Classifier::parse(&patterns).unwrap().output(packet)
    }

    #[test]
    fn patterns_match_by_their_clauses() {
        let mut frame = [0u8; 42];
        frame[12..14].copy_from_slice(&[8, 6]);
        frame[21] = 1;
        let arp = ["12/0806 20/0001", "12/0806 20/0002", "12/0800", "-"];
        assert_eq!(output(&arp, &frame), Some(0));
        frame[21] = 2;
        assert_eq!(output(&arp, &frame), Some(1));
        frame[13] = 0;
        assert_eq!(output(&arp, &frame), Some(2));
        assert_eq!(output(&arp, &frame[..13]), Some(3));
        assert_eq!(output(&["12/18%f0"], &frame), None);
        assert_eq!(output(&["12/0?0?", "! 12/0800"], &frame), Some(0));
        assert_eq!(output(&["!12/0800", "12/0801%ff00"], &frame), Some(1));
        let long = ["0/0000000000000000000000000900", "0/0000000000000000000000000800"];
        assert_eq!(output(&long, &frame), Some(1));
    }

    #[test]
    fn a_clause_beyond_the_end_fails_and_its_negation_matches() {
        assert_eq!(output(&["2/00"], &[0, 0]), None);
        assert_eq!(output(&["!2/00"], &[0, 0]), Some(0));
        assert_eq!(output(&["1/00"], &[0, 0]), Some(0));
    }

    #[test]
    fn wrong_patterns_are_errors() {
        let error = |pattern: &str| Classifier::parse(&[pattern.to_owned()]).unwrap_err();
        assert_eq!(error("12/080"), "pattern 0 \"12/080\": value 080 has an odd number of digits");
        assert_eq!(
            error("12/0800%ff"),
            "pattern 0 \"12/0800%ff\": mask ff has 2 digits, its value 4"
        );
        assert!(
            error("x").contains("found \"x\"; expected a clause such as 12/0800"),
            "{}",
            error("x")
        );
        assert!(error("12/").contains("found the end; expected a clause"));
        assert!(error("99999/00").contains("offset 99999 is beyond 65535"));
    }

    proptest! {
        #[test]
        fn no_pattern_is_too_odd(pattern in "[0-9a-f?%/! -]{0,20}|.{0,20}") {
            let _ = Classifier::parse(&[pattern]);
        }

        #[test]
        fn programs_agree_with_the_reference(
            patterns in prop::collection::vec("(!?[0-9]/[01?]{2}(%[0f]{2})? ){1,3}", 1..6),
            packet in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(16), Just(17)], 0..12),
        ) {
            let rules = rules(&patterns).unwrap();
            let layers = Layers { start: &packet, ..Layers::default() };
            let expected = reference(&rules, &layers).map(|output| output as usize);
            prop_assert_eq!(Classifier::parse(&patterns).unwrap().output(&packet), expected);
        }
    }
}
