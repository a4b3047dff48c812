//! Rules, as packets of established flows meet them that a fast path takes: whether they depend on more than the flow.
//!
//! The kernel sees the first packets of a flow in each direction, and its verdict on these is that on all later ones, as
//! long as the rules that they meet look at nothing else and do nothing else. The packets that are taken are known in some
//! respects, so that many rules are none for them:
//!
//! | field | value |
//! |---|---|
//! | `ct state` | established |
//! | protocol | TCP or UDP |
//! | TCP flags | ACK; no SYN, FIN, RST, URG |
//!
//! A rule that never matches such packets is passed over, and behind one that accepts all of them no other is met.

use std::collections::BTreeMap;

/// `1 << (IP_CT_ESTABLISHED + 1)`, in `ct state` and in the matches of iptables.
pub const STATE_ESTABLISHED: u32 = 2;

/// TCP flags that are the same in all packets taken: FIN, SYN, RST, ACK, URG; and those of them that are set.
const FLAGS_KNOWN: u8 = 0x37;
const FLAGS_SET: u8 = 0x10;

/// The packets that a condition holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Holds {
    /// All of them.
    #[default]
    Always,
    /// Those of some flows.
    OfFlow,
    /// None.
    Never,
}

impl Holds {
    /// Returns that of a condition which is known.
    pub fn known(holds: bool) -> Self {
        if holds { Self::Always } else { Self::Never }
    }

    /// Returns that of both conditions together.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::OfFlow, _) | (_, Self::OfFlow) => Self::OfFlow,
            _ => Self::Always,
        }
    }

    /// Returns that of the opposite condition.
    #[must_use]
    pub fn not(self) -> Self {
        match self {
            Self::Always => Self::Never,
            Self::OfFlow => Self::OfFlow,
            Self::Never => Self::Always,
        }
    }
}

/// Returns when `flags & mask == value` holds; `None` if it depends on each packet.
pub fn tcp_flags(mask: u8, value: u8) -> Option<Holds> {
    let known = mask & FLAGS_KNOWN;
    if (value ^ FLAGS_SET) & known != 0 || value & !mask != 0 {
        return Some(Holds::Never);
    }
    (mask & !FLAGS_KNOWN == 0).then_some(Holds::Always)
}

/// The end of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum End {
    /// The next rule.
    #[default]
    Next,
    /// The packet leaves the chains of the hook: it is accepted, or goes no further.
    Final,
    /// The packet returns to the chain that it came from.
    Return,
    /// A chain, and the next rule behind it.
    Jump(String),
    /// A chain in the place of this one.
    Goto(String),
    /// Any of the table's chains, or any other end.
    Any,
}

/// A rule as packets of established flows meet it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Met {
    /// The packets that it matches.
    pub holds: Holds,
    /// The part that depends on each packet, or changes something, if any.
    pub part: Option<String>,
    pub end: End,
    /// The sets of nftables that it looks into.
    pub sets: Vec<String>,
}

/// A rule that is met and depends on more than the flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    pub chain: String,
    /// Its number there, from 1 on.
    pub number: usize,
    pub part: String,
}

/// Deepest nesting of chains; the kernel has 16.
const DEPTH: usize = 32;

/// A walk over chains; `rules` returns those of a chain.
pub struct Walk<'r, R> {
    rules: &'r R,
    /// The chains that a map may lead to.
    all: Vec<String>,
    /// The chains walked, and true for those that all packets leave by a final end.
    known: BTreeMap<String, bool>,
    depth: usize,
}

impl<'r, R: Fn(&str) -> Vec<&'r Met>> Walk<'r, R> {
    /// Returns the first rule that is met by packets of established flows in a chain, or in those that it leads to, and
    /// depends on more than the flow.
    pub fn obstacle(rules: &'r R, first: &str, all: Vec<String>) -> Option<Obstacle> {
        let mut walk = Self { rules, all, known: BTreeMap::new(), depth: 0 };
        walk.chain(first).err()
    }

    /// Returns true if all packets leave the hook in this chain.
    fn chain(&mut self, name: &str) -> Result<bool, Obstacle> {
        if let Some(known) = self.known.get(name) {
            return Ok(*known);
        }
        if self.depth == DEPTH {
            return Ok(false);
        }
        self.known.insert(name.to_owned(), false);
        self.depth += 1;
        let is_final = self.rules_of(name);
        self.depth -= 1;
        let is_final = is_final?;
        self.known.insert(name.to_owned(), is_final);
        Ok(is_final)
    }

    fn rules_of(&mut self, chain: &str) -> Result<bool, Obstacle> {
        for (index, rule) in (self.rules)(chain).into_iter().enumerate() {
            if let Some(part) = &rule.part {
                let (chain, number) = (chain.to_owned(), index + 1);
                return Err(Obstacle { chain, number, part: part.clone() });
            }
            if rule.holds == Holds::Never {
                continue;
            }
            let is_final = match &rule.end {
                End::Next | End::Return => false,
                End::Final => true,
                End::Jump(to) | End::Goto(to) => self.chain(to)?,
                End::Any => {
                    for chain in self.all.clone() {
                        self.chain(&chain)?;
                    }
                    false
                }
            };
            let all = rule.holds == Holds::Always;
            if all && (is_final || matches!(rule.end, End::Return | End::Goto(_))) {
                return Ok(is_final);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_compared_as_far_as_they_are_known() {
        // SYN of SYN, RST; none of all six; ACK; PSH.
        assert_eq!(tcp_flags(0x06, 0x02), Some(Holds::Never));
        assert_eq!(tcp_flags(0x3f, 0x00), Some(Holds::Never));
        assert_eq!(tcp_flags(0x10, 0x10), Some(Holds::Always));
        assert_eq!(tcp_flags(0x07, 0x00), Some(Holds::Always));
        assert_eq!(tcp_flags(0x18, 0x18), None);
        assert_eq!(tcp_flags(0x02, 0x12), Some(Holds::Never));
        for (mask, value) in (0..=0xff).flat_map(|mask| (0..=0xff).map(move |value| (mask, value)))
        {
            let taken = (0..=0xff_u8).filter(|flags| flags & FLAGS_KNOWN == FLAGS_SET);
            let holds: Vec<bool> = taken.map(|flags| flags & mask == value).collect();
            let expected = match (holds.iter().all(|of| *of), holds.iter().any(|of| *of)) {
                (true, _) => Some(Holds::Always),
                (_, false) => Some(Holds::Never),
                _ => None,
            };
            assert_eq!(tcp_flags(mask, value), expected, "{mask:#x} {value:#x}");
        }
    }

    fn met(holds: Holds, end: End) -> Met {
        Met { holds, end, ..Met::default() }
    }

    fn part() -> Met {
        Met { part: Some("limit".into()), ..Met::default() }
    }

    fn obstacle(chains: &[(&str, Vec<Met>)]) -> Option<(String, usize)> {
        let rules = |name: &str| {
            let chain = chains.iter().find(|(of, _)| *of == name);
            chain.into_iter().flat_map(|(_, rules)| rules).collect()
        };
        let all = chains.iter().map(|(name, _)| (*name).to_owned()).collect();
        Walk::obstacle(&rules, "forward", all).map(|of| (of.chain, of.number))
    }

    #[test]
    fn rules_behind_one_that_accepts_all_are_not_met() {
        let accepted = met(Holds::Always, End::Final);
        assert_eq!(obstacle(&[("forward", vec![accepted, part()])]), None);
        let some = met(Holds::OfFlow, End::Final);
        assert_eq!(obstacle(&[("forward", vec![some, part()])]), Some(("forward".into(), 2)));
        let never = met(Holds::Never, End::Final);
        assert_eq!(obstacle(&[("forward", vec![never, part()])]), Some(("forward".into(), 2)));
    }

    #[test]
    fn chains_that_all_leave_end_the_one_that_leads_there() {
        let to = |holds, end: fn(String) -> End| vec![met(holds, end("lan".into())), part()];
        let accepts = || ("lan", vec![met(Holds::Always, End::Final), part()]);
        let passes = || ("lan", vec![met(Holds::OfFlow, End::Final)]);
        let returns = || ("lan", vec![met(Holds::Always, End::Return), part()]);
        let here = Some(("forward".to_owned(), 2));
        assert_eq!(obstacle(&[("forward", to(Holds::Always, End::Jump)), accepts()]), None);
        assert_eq!(obstacle(&[("forward", to(Holds::OfFlow, End::Jump)), accepts()]), here);
        assert_eq!(obstacle(&[("forward", to(Holds::Always, End::Jump)), passes()]), here);
        assert_eq!(obstacle(&[("forward", to(Holds::Always, End::Jump)), returns()]), here);
        assert_eq!(obstacle(&[("forward", to(Holds::Always, End::Goto)), passes()]), None);
        assert_eq!(obstacle(&[("forward", to(Holds::Never, End::Goto)), passes()]), here);
        let there = Some(("lan".to_owned(), 1));
        let limited = ("lan", vec![part()]);
        assert_eq!(obstacle(&[("forward", to(Holds::OfFlow, End::Jump)), limited.clone()]), there);
        assert_eq!(obstacle(&[("forward", vec![met(Holds::OfFlow, End::Any)]), limited]), there);
    }

    #[test]
    fn chains_that_lead_to_each_other_end() {
        let lead = |to: &str| vec![met(Holds::OfFlow, End::Jump(to.into()))];
        assert_eq!(obstacle(&[("forward", lead("a")), ("a", lead("b")), ("b", lead("a"))]), None);
    }
}
