//! The content of a listing, whether text or JSON. Values are words as in the text: `10.0.0.0/8`, `1-5`; a
//! range may have two dots, since names may contain hyphens.

use std::collections::BTreeMap;

use crate::rules::{Limit, Origin, Verdict};

/// A word for each part of a concatenation.
pub type Tuple = Vec<String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// No operator: equal, or in a list of flags.
    Implicit,
    Eq,
    Ne,
    Lt,
    Gt,
    Le,
    Ge,
    /// `!`: none of these flags.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    One(Tuple),
    /// `syn,ack`.
    Flags(Vec<String>),
    Set(Vec<Tuple>),
    Named(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pairs {
    List(Vec<(Tuple, Verdict)>),
    Named(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    Match {
        keys: Vec<String>,
        mask: Option<Vec<String>>,
        op: Op,
        values: Values,
    },
    Vmap {
        keys: Vec<String>,
        pairs: Pairs,
    },
    Verdict(Verdict),
    Counter,
    /// `ip dscp set cs1`.
    Mark {
        key: String,
        value: String,
    },
    Log {
        prefix: Option<String>,
    },
    Limit(Limit),
    /// `update @set { KEY limit … }`.
    Update {
        keys: Vec<String>,
        limit: Option<Limit>,
    },
    /// A condition or an action without counterpart.
    Other {
        text: String,
        is_condition: bool,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub origin: Origin,
    pub statements: Vec<Statement>,
    pub comment: Option<String>,
}

/// The hook at which packets enter a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: String,
    pub hook: String,
    pub priority: i64,
    pub accepts: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub origin: Origin,
    pub family: String,
    pub table: String,
    pub name: String,
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub elements: Vec<Tuple>,
    pub verdicts: Vec<(Tuple, Verdict)>,
    /// True if elements are added and removed at run time.
    pub is_dynamic: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub chains: Vec<Chain>,
    /// By family and name of the table, and name of the set.
    pub sets: BTreeMap<(String, String, String), Set>,
}

/// Converts a limit of nftables; `unit` is that of the rate: packets, or bytes with a prefix.
pub fn limit(
    rate: u64,
    unit: &str,
    per: &str,
    burst: Option<(u64, &str)>,
    is_over: bool,
) -> Option<Limit> {
    let seconds = match per {
        "second" => 1,
        "minute" => 60,
        "hour" => 3600,
        "day" => 86_400,
        "week" => 604_800,
        _ => return None,
    };
    let factor = |unit: &str| match unit {
        "packets" | "bytes" => Some(1),
        "kbytes" => Some(1 << 10),
        "mbytes" => Some(1 << 20),
        _ => None,
    };
    let rate = rate.checked_mul(factor(unit)?)?;
    let is_bytes = unit != "packets";
    let burst = match burst {
        Some((burst, unit)) => burst.checked_mul(factor(unit)?)?,
        None => 0,
    };
    // The kernel's bucket (nft_limit.c): for packets the burst, by default 5; for bytes the burst plus the
    // rate's amount for one unit of time.
    let burst = match (is_bytes, burst) {
        (true, burst) => rate.checked_add(burst)?,
        (false, 0) => 5,
        (false, burst) => burst,
    };
    Some(Limit { rate, seconds, burst, is_bytes, is_over, per_source: None })
}
