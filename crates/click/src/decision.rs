//! Packet expressions as programs.
//!
//! An expression is made of tests of up to four bytes. It is compiled into a flat list of steps, each with the next
//! step for "yes" and "no"; jumps lead to earlier steps only, so a program ends. A jump to a test whose outcome is
//! known from the one before goes further at once. Running a program allocates nothing.

use std::collections::HashMap;

/// Part of a packet in which a test reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Base {
    /// The packet's first byte.
    Start,
    /// The network header.
    Network,
    /// The header behind the network header.
    Transport,
    /// The Ethernet header.
    Mac,
}

/// Parts of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layers<'p> {
    pub start: &'p [u8],
    pub network: &'p [u8],
    pub transport: &'p [u8],
    pub mac: &'p [u8],
}

/// Compares four bytes, as one number in network order, under a mask. A packet that is too short fails the test,
/// a negated one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Test {
    pub base: Base,
    pub offset: usize,
    pub mask: u32,
    pub value: u32,
    /// Greater than the value, not equal to it.
    pub greater: bool,
    pub negated: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Const(bool),
    Test(Test),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    If(Box<[Expr; 3]>),
}

/// A compiled list of expressions, each with an outcome.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    steps: Vec<Step>,
    start: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Step {
    test: Test,
    yes: Target,
    no: Target,
}

/// Where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Target {
    Step(u32),
    End(Option<u32>),
}

/// Steps of a program; sharing of steps keeps real ones far below.
const MOST_STEPS: usize = 1 << 20;

impl Layers<'_> {
    fn part(&self, base: Base) -> &[u8] {
        match base {
            Base::Start => self.start,
            Base::Network => self.network,
            Base::Transport => self.transport,
            Base::Mac => self.mac,
        }
    }
}

impl Test {
    /// The test for equality under a mask.
    pub fn equal(base: Base, offset: usize, mask: u32, value: u32) -> Test {
        Test { base, offset, mask, value: value & mask, greater: false, negated: false }
    }

    fn passes(&self, layers: &Layers) -> bool {
        let Some(word) = word(layers.part(self.base), self.offset, self.mask) else { return false };
        self.holds(word)
    }

    fn holds(&self, word: u32) -> bool {
        let word = word & self.mask;
        let holds = if self.greater { word > self.value } else { word == self.value };
        holds != self.negated
    }

    /// The outcome of another test, if that of this one decides it.
    fn decides(&self, outcome: bool, other: &Test) -> Option<bool> {
        if self == other {
            return Some(outcome);
        }
        let place = self.base == other.base && self.offset == other.offset;
        let known =
            place && outcome && !self.negated && !self.greater && other.mask & !self.mask == 0;
        known.then(|| other.holds(self.value))
    }
}

/// Four bytes at an offset, of which those under the mask must be there.
fn word(bytes: &[u8], offset: usize, mask: u32) -> Option<u32> {
    let rest = bytes.get(offset..)?;
    if let Some(whole) = rest.first_chunk() {
        return Some(u32::from_be_bytes(*whole));
    }
    let mut padded = [0u8; 4];
    padded[..rest.len()].copy_from_slice(rest);
    let missing = u32::MAX.checked_shr(8 * rest.len() as u32).unwrap_or(0);
    (mask & missing == 0 && !rest.is_empty()).then(|| u32::from_be_bytes(padded))
}

impl Expr {
    /// The slow reference of a program.
    #[cfg(test)]
    pub fn holds(&self, layers: &Layers) -> bool {
        match self {
            Expr::Const(value) => *value,
            Expr::Test(test) => test.passes(layers),
            Expr::Not(inner) => !inner.holds(layers),
            Expr::And(all) => all.iter().all(|inner| inner.holds(layers)),
            Expr::Or(all) => all.iter().any(|inner| inner.holds(layers)),
            Expr::If(parts) => {
                let [condition, yes, no] = &**parts;
                if condition.holds(layers) { yes.holds(layers) } else { no.holds(layers) }
            }
        }
    }
}

impl Program {
    /// Compiles expressions, of which the first that holds gives its outcome; an outcome of `None` is that of no
    /// expression as well. `None` if the program would be too large.
    pub fn new(rules: &[(Expr, Option<u32>)]) -> Option<Program> {
        let mut compiler = Compiler { steps: Vec::new(), known: HashMap::new() };
        let mut next = Target::End(None);
        for (expr, outcome) in rules.iter().rev() {
            next = compiler.expr(expr, Target::End(*outcome), next);
        }
        let steps = compiler.steps;
        (steps.len() < MOST_STEPS).then(|| Program { steps, start: next }.without_unreached())
    }

    /// Leaves out steps that all jumps skip.
    fn without_unreached(self) -> Program {
        let mut reached = vec![false; self.steps.len()];
        let mark = |reached: &mut Vec<bool>, target| {
            if let Target::Step(index) = target {
                reached[index as usize] = true;
            }
        };
        mark(&mut reached, self.start);
        for index in (0..self.steps.len()).rev().collect::<Vec<_>>() {
            if reached[index] {
                mark(&mut reached, self.steps[index].yes);
                mark(&mut reached, self.steps[index].no);
            }
        }
        let before: Vec<u32> = reached
            .iter()
            .scan(0, |count, &reached| Some(std::mem::replace(count, *count + u32::from(reached))))
            .collect();
        let moved = |target| match target {
            Target::Step(index) => Target::Step(before[index as usize]),
            end => end,
        };
        let kept = self.steps.iter().zip(&reached).filter(|(_, reached)| **reached);
        let steps = kept.map(|(step, _)| Step {
            test: step.test,
            yes: moved(step.yes),
            no: moved(step.no),
        });
        Program { steps: steps.collect(), start: moved(self.start) }
    }

    /// The outcome of the first expression that holds for a packet.
    #[inline]
    pub fn run(&self, layers: &Layers) -> Option<u32> {
        let mut target = self.start;
        loop {
            match target {
                Target::End(outcome) => return outcome,
                Target::Step(index) => {
                    let step = &self.steps[index as usize];
                    target = if step.test.passes(layers) { step.yes } else { step.no };
                }
            }
        }
    }

    /// Number of steps.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.steps.len()
    }
}

struct Compiler {
    steps: Vec<Step>,
    known: HashMap<Step, u32>,
}

impl Compiler {
    /// Adds the steps of an expression that goes on at one of two targets, and returns their beginning.
    fn expr(&mut self, expr: &Expr, yes: Target, no: Target) -> Target {
        match expr {
            Expr::Const(true) => yes,
            Expr::Const(false) => no,
            Expr::Test(test) => self.test(*test, yes, no),
            Expr::Not(inner) => self.expr(inner, no, yes),
            Expr::And(all) => all.iter().enumerate().rev().fold(yes, |next, (number, inner)| {
                let no = all[..number].iter().fold(no, |no, before| self.behind(before, no));
                self.expr(inner, next, no)
            }),
            Expr::Or(all) => all.iter().rev().fold(no, |next, inner| self.expr(inner, yes, next)),
            Expr::If(parts) => {
                let [condition, first, second] = &**parts;
                let first = self.expr(first, yes, no);
                let second = self.expr(second, yes, no);
                self.expr(condition, first, second)
            }
        }
    }

    fn test(&mut self, test: Test, yes: Target, no: Target) -> Target {
        let (yes, no) = (self.further(&test, true, yes), self.further(&test, false, no));
        if yes == no || self.steps.len() >= MOST_STEPS {
            return yes;
        }
        let step = Step { test, yes, no };
        let index = *self.known.entry(step).or_insert(self.steps.len() as u32);
        if index as usize == self.steps.len() {
            self.steps.push(step);
        }
        Target::Step(index)
    }

    /// Skips steps whose outcome is known where an expression holds.
    fn behind(&self, expr: &Expr, target: Target) -> Target {
        match expr {
            Expr::Test(test) => self.further(test, true, target),
            Expr::And(all) => all.iter().fold(target, |target, inner| self.behind(inner, target)),
            _ => target,
        }
    }

    /// Skips steps whose outcome is known behind an outcome of a test.
    fn further(&self, test: &Test, outcome: bool, mut target: Target) -> Target {
        while let Target::Step(index) = target {
            let step = &self.steps[index as usize];
            match test.decides(outcome, &step.test) {
                Some(true) => target = step.yes,
                Some(false) => target = step.no,
                None => break,
            }
        }
        target
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn test() -> impl Strategy<Value = Expr> {
        let base = prop_oneof![Just(Base::Start), Just(Base::Network)];
        let mask =
            prop_oneof![Just(0xff00_0000u32), Just(0x00ff_0000), Just(0xffff_0000), Just(0x1f)];
        let parts = (base, 0usize..3, mask, 0u32..4, any::<bool>(), any::<bool>());
        parts.prop_map(|(base, offset, mask, value, greater, negated)| {
            let value = value.wrapping_mul(0x0101_0101) & mask;
            Expr::Test(Test { base, offset: 2 * offset, mask, value, greater, negated })
        })
    }

    fn expr() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![8 => test(), 1 => any::<bool>().prop_map(Expr::Const)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                inner.clone().prop_map(|inner| Expr::Not(Box::new(inner))),
                prop::collection::vec(inner.clone(), 0..4).prop_map(Expr::And),
                prop::collection::vec(inner.clone(), 0..4).prop_map(Expr::Or),
                (inner.clone(), inner.clone(), inner)
                    .prop_map(|(a, b, c)| Expr::If(Box::new([a, b, c]))),
            ]
        })
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..10)
    }

    /// The first expression that holds, by the reference.
    pub(crate) fn reference(rules: &[(Expr, Option<u32>)], layers: &Layers) -> Option<u32> {
        rules.iter().find(|(expr, _)| expr.holds(layers)).and_then(|(_, outcome)| *outcome)
    }

    proptest! {
        #[test]
        fn programs_do_what_their_expressions_say(
            rules in prop::collection::vec((expr(), prop::option::of(0u32..4)), 0..5),
            packets in prop::collection::vec((bytes(), bytes()), 1..20),
        ) {
            let program = Program::new(&rules).unwrap();
            for (start, network) in &packets {
                let layers = Layers { start, network, ..Layers::default() };
                prop_assert_eq!(program.run(&layers), reference(&rules, &layers));
            }
        }
    }

    #[test]
    fn known_tests_are_skipped() {
        let kind = |value: u32| Expr::Test(Test::equal(Base::Start, 12, 0xffff_0000, value << 16));
        let operation =
            |value: u32| Expr::Test(Test::equal(Base::Start, 20, 0xffff_0000, value << 16));
        let rules = [
            (Expr::And(vec![kind(0x806), operation(1)]), Some(0)),
            (Expr::And(vec![kind(0x806), operation(2)]), Some(1)),
            (kind(0x800), Some(2)),
            (Expr::Const(true), Some(3)),
        ];
        // As in the example of Click's manual.
        assert_eq!(Program::new(&rules).unwrap().len(), 4);
    }

    #[test]
    fn a_test_beyond_the_end_fails() {
        let test = Test::equal(Base::Start, 0, 0xffff_0000, 0x0102_0000);
        let layers = |start| Layers { start, ..Layers::default() };
        assert!(test.passes(&layers(&[1, 2])));
        assert!(!test.passes(&layers(&[1])));
        assert!(!Test { negated: true, ..test }.passes(&layers(&[1])));
        assert!(!Test::equal(Base::Start, 2, 0, 0).passes(&layers(&[1, 2])));
    }
}
