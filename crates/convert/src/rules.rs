//! Rules as nftables and iptables have them, whichever they came from.

use std::collections::BTreeMap;

use crate::matches::Match;

/// Where a rule stands, and what it says there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// `line 12`, or `ip filter FORWARD, handle 5`.
    pub place: String,
    /// Its text.
    pub text: String,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    /// With this answer, in the words of the rule; `None`: the default one.
    Reject(Option<String>),
    Jump(String),
    Goto(String),
    Return,
    /// The next rule is asked.
    Continue,
}

impl Verdict {
    /// Does it end the way of a packet, and is it let pass?
    pub fn passes(&self) -> Option<bool> {
        match self {
            Self::Accept => Some(true),
            Self::Drop | Self::Reject(_) => Some(false),
            _ => None,
        }
    }
}

/// A rate that a rule keeps account of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Packets or bytes in [`Self::seconds`].
    pub rate: u64,
    pub seconds: u64,
    /// What may come at once, in the same unit.
    pub burst: u64,
    pub is_bytes: bool,
    /// The rule is for what exceeds the rate, else for what is within it.
    pub is_over: bool,
    /// Each source by itself: lengths of IPv4 and IPv6 prefixes.
    pub per_source: Option<(u8, u8)>,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub origin: Origin,
    /// What becomes of which packets; of several that fit, the first decides. If there is none, the rule does
    /// nothing to the way of a packet.
    pub arms: Vec<(Match, Verdict)>,
    pub name: Option<String>,
    pub log: bool,
    pub limit: Option<Limit>,
    /// Why it cannot be converted; the arms are then for what is known of its packets.
    pub blocked: Vec<String>,
    /// Parts of it that are left out; the arms are for the others.
    pub omitted: Vec<String>,
    /// Packets would be treated otherwise without it.
    pub matters: bool,
}

/// The packets that a base chain sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// On their way through the router.
    Forward,
    /// For the router.
    Input,
}

/// A chain that packets enter by themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Its table and its own name.
    pub chain: ChainName,
    pub hook: Hook,
    /// 4, 6 or both (`None`).
    pub family: Option<u8>,
    pub priority: i64,
    /// What its policy lets pass.
    pub accepts: bool,
}

/// A table and a chain of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    pub table: String,
    pub chain: String,
}

/// Something of the input that is not converted, whatever the rules say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    pub origin: Origin,
    pub reason: String,
    pub matters: bool,
}

/// All rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub chains: BTreeMap<ChainName, Vec<Rule>>,
    pub bases: Vec<Base>,
    pub outside: Vec<Outside>,
}
