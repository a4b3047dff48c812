//! The common form of nftables and iptables rules.

use std::collections::BTreeMap;

use crate::matches::Match;

/// Position and text of a rule in the input.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// `line 12`, or `ip filter FORWARD, handle 5`.
    pub place: String,
    /// Its text.
    pub text: String,
}

/// Effect of a rule on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    /// Rejected with this answer, in the words of the rule; `None`: the default one.
    Reject(Option<String>),
    Jump(String),
    Goto(String),
    Return,
    /// The packet goes on to the next rule.
    Continue,
}

impl Verdict {
    /// Returns true for a verdict that accepts a packet, false for one that drops it, `None` for the others.
    pub fn passes(&self) -> Option<bool> {
        match self {
            Self::Accept => Some(true),
            Self::Drop | Self::Reject(_) => Some(false),
            _ => None,
        }
    }
}

/// A rate limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Packets or bytes in [`Self::seconds`].
    pub rate: u64,
    pub seconds: u64,
    /// Size of the burst, in the same unit.
    pub burst: u64,
    pub is_bytes: bool,
    /// True if the rule matches packets beyond the rate, false for packets within it.
    pub is_over: bool,
    /// Separate limits per source: lengths of IPv4 and IPv6 prefixes.
    pub per_source: Option<(u8, u8)>,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub origin: Origin,
    /// Packets and their verdicts; the first match decides. If there is none, the rule does not affect the
    /// packet's way.
    pub arms: Vec<(Match, Verdict)>,
    pub name: Option<String>,
    pub log: bool,
    pub limit: Option<Limit>,
    /// The DSCP that it gives its packets.
    pub mark: Option<u8>,
    /// Reasons for which the rule cannot be converted; the arms then cover the known conditions.
    pub blocked: Vec<String>,
    /// Parts of the rule that are left out; the arms cover the others.
    pub omitted: Vec<String>,
    /// True if packets would be treated differently without the rule.
    pub matters: bool,
}

/// The packets that a base chain sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Forwarded packets.
    Forward,
    /// Packets to the router.
    Input,
}

/// A chain attached to a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Names of its table and of the chain.
    pub chain: ChainName,
    pub hook: Hook,
    /// 4, 6 or both (`None`).
    pub family: Option<u8>,
    pub priority: i64,
    /// True if its policy is to accept.
    pub accepts: bool,
}

/// The names of a table and of a chain in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChainName {
    pub table: String,
    pub chain: String,
}

/// A part of the input that is never converted.
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
