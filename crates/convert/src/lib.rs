//! Rules of nftables and iptables as filters of Turnpike, and Click configurations as its configurations (`click.rs`).
//!
//! ```text
//! nft      `nft list ruleset`, `nft -j list ruleset`  -+
//! iptables `iptables-save`, `ip6tables-save`          -+-> rules    Ruleset: chains of rules, as they are there
//!                                                           flatten  Ruleset -> one list for each filter
//! ranges, matches  sets of values of a packet's fields      lua      lists -> Lua, and what is left out
//! ```
//!
//! A printed filter accepts and drops the same packets as the original, except for the rules reported as left
//! out. The treatment of each kind of rule is documented beside the code that reads it.
#![forbid(unsafe_code)]

pub mod click;
mod flatten;
mod iptables;
mod lua;
mod matches;
mod nft;
mod ranges;
mod rules;
mod values;

use std::collections::BTreeSet;

use matches::{Field, Names};
use ranges::Ranges;
use rules::{Base, ChainName, Hook, Ruleset, Verdict};

/// The program that wrote the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `nft list ruleset`, or `nft -j list ruleset`.
    Nftables,
    /// `iptables-save`, `ip6tables-save`, or the output of both, one behind the other.
    Iptables,
}

/// The converted rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The filters, with comments about their place and the rules left out.
    pub lua: String,
    /// Rules and statements left out.
    pub left: Vec<Left>,
    /// The filters for forwarded packets.
    pub forward: Vec<Forward>,
}

/// A filter for forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Its name.
    pub filter: String,
    /// The port for whose packets it is; `None`: all other ports.
    pub outward: Option<String>,
}

/// A rule or statement left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// `line 12`, or a rule's handle.
    pub place: String,
    /// Its text.
    pub text: String,
    /// Reason for leaving it out.
    pub reason: String,
    /// True if packets are treated differently without it.
    pub matters: bool,
}

impl Left {
    fn new(place: &str, text: &str, reason: &str, matters: bool) -> Self {
        let (place, text, reason) = (place.to_owned(), lua::one_line(text), reason.to_owned());
        Self { place, text, reason, matters }
    }
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { place, text, reason, matters } = self;
        let mark = if *matters { "NOT CONVERTED" } else { "left out" };
        write!(f, "{place}: {mark}: {text}: {reason}")
    }
}

/// Error: the input cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// The filter for packets to the router itself.
const INPUT: &str = "to-router";

/// The filter for forwarded packets.
const FORWARD: &str = "forward";

/// Converts the rules of `input` to Lua; `name` is the name of the input.
///
/// # Errors
/// The input does not have this format.
pub fn convert(format: Format, name: &str, input: &str) -> Result<Converted, Unreadable> {
    let rules = match format {
        Format::Nftables => nft::read(input)?,
        Format::Iptables => iptables::read(input)?,
    };
    Ok(print(&rules, name))
}

fn print(rules: &Ruleset, name: &str) -> Converted {
    let (mut filters, mut left, mut attach) = (Vec::new(), Vec::new(), Vec::new());
    let mut forward = Vec::new();
    left.extend(outside(rules));
    left.extend(unreached(rules));
    for (hook, name) in [(Hook::Forward, FORWARD), (Hook::Input, INPUT)] {
        if !rules.bases.iter().any(|base| base.hook == hook && decides(rules, base)) {
            continue;
        }
        match lists(rules, hook, name) {
            Ok(lists) => {
                attach.extend(places(hook, &lists));
                if hook == Hook::Forward {
                    forward.extend(lists.iter().map(Forward::of));
                }
                filters.extend(lists);
            }
            Err(error) => left.push(Left::new(name, "all its rules", &error.to_string(), true)),
        }
    }
    let comment = |left: &Left| {
        let mark = if left.matters { "!! NOT CONVERTED" } else { "left out" };
        format!("-- {mark}: {}: {}\n--    {}\n", left.place, left.text, left.reason)
    };
    let comments: String = left.iter().map(comment).collect();
    let (body, more) = lua::print(&filters);
    left.extend(more);
    let head = head(name, &left, &attach);
    let lua = format!("{head}{comments}{body}");
    Converted { lua, left, forward }
}

impl Forward {
    fn of(filter: &lua::Filter<'_>) -> Self {
        let outward = filter.name.strip_prefix(&format!("{FORWARD}-")).map(str::to_owned);
        Self { filter: filter.name.clone(), outward }
    }
}

/// Returns true if a base chain has rules, or a policy that drops.
fn decides(rules: &Ruleset, base: &Base) -> bool {
    !base.accepts || rules.chains.get(&base.chain).is_some_and(|chain| !chain.is_empty())
}

/// Returns the chains with rules to which no base chain leads.
fn unreached(rules: &Ruleset) -> Vec<Left> {
    let mut reached: BTreeSet<ChainName> = BTreeSet::new();
    let mut next: Vec<ChainName> = rules.bases.iter().map(|base| base.chain.clone()).collect();
    while let Some(name) = next.pop() {
        let arms = rules.chains.get(&name).into_iter().flatten().flat_map(|rule| &rule.arms);
        let targets = arms.filter_map(|(_, verdict)| match verdict {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        });
        let table = &name.table;
        let targets = targets.map(|chain| ChainName { table: table.clone(), chain: chain.clone() });
        next.extend(targets.filter(|target| !reached.contains(target)));
        reached.insert(name);
    }
    let idle = rules.chains.iter().filter(|(name, _)| !reached.contains(*name));
    let left = idle.filter_map(|(name, chain)| {
        let place = &chain.first()?.origin.place;
        Some(Left::new(
            place,
            &format!("chain {}", name.chain),
            "no chain that is converted leads to it",
            false,
        ))
    });
    left.collect()
}

fn outside(rules: &Ruleset) -> Vec<Left> {
    let left =
        |of: &rules::Outside| Left::new(&of.origin.place, &of.origin.text, &of.reason, of.matters);
    rules.outside.iter().map(left).collect()
}

/// Returns the filters of a hook: one for each outgoing port that rules name, and one for the other ports.
fn lists<'r>(
    rules: &'r Ruleset,
    hook: Hook,
    name: &str,
) -> Result<Vec<lua::Filter<'r>>, flatten::TooLong> {
    let ports = flatten::egress_names(rules, hook);
    let mut filters = Vec::new();
    for port in &ports {
        let items = items(rules, hook, Names::In([port.clone()].into()))?;
        filters.push(lua::Filter { name: format!("{name}-{port}"), items });
    }
    let items = items(rules, hook, Names::NotIn(ports))?;
    filters.push(lua::Filter { name: name.to_owned(), items });
    Ok(filters)
}

/// The kernel's forward chains see the TTL after it is decremented, filters before.
fn items(
    rules: &Ruleset,
    hook: Hook,
    egress: Names,
) -> Result<Vec<flatten::Item<'_>>, flatten::TooLong> {
    let mut items = flatten::flatten(rules, hook, egress)?;
    for item in &mut items {
        let flatten::Item::Rule(decision) = item else { continue };
        if let (Hook::Forward, Some(set)) = (hook, decision.packets.condition(Field::Ttl)) {
            let before = set.ranges().iter().map(|(low, high)| (low + 1, (high + 1).min(255)));
            let before = Ranges::new(before);
            decision.packets = decision.packets.clone().with(Field::Ttl, before);
        }
    }
    Ok(items)
}

/// Returns the places of the filters, in words.
fn places(hook: Hook, filters: &[lua::Filter<'_>]) -> Vec<String> {
    if hook == Hook::Input {
        return vec![format!(
            "\"{INPUT}\" is for packets for the router, by its name: no port names it"
        )];
    }
    let place = |filter: &lua::Filter<'_>| {
        let setting = format!("filter = {{ outward = {} }}", lua::quoted(&filter.name));
        match filter.name.strip_prefix(&format!("{FORWARD}-")) {
            Some(port) => format!("turnpike.port {} {{ …, {setting} }}", lua::quoted(port)),
            None if filters.len() == 1 => {
                format!("every port: turnpike.port \"…\" {{ …, {setting} }}")
            }
            None => format!("every other port: {setting}"),
        }
    };
    filters.iter().map(place).collect()
}

fn head(name: &str, left: &[Left], attach: &[String]) -> String {
    let mut head = format!("-- Filters from {}.\n", lua::one_line(name));
    let matter = left.iter().filter(|left| left.matters).count();
    match (left.len(), matter) {
        (0, _) => {}
        (all, 0) => head += &format!("-- Left out: {all}, which let pass and drop nothing.\n"),
        (all, matter) => {
            head += &format!(
                "-- Left out: {all}, of which {matter} LET PASS, DROP OR CHANGE PACKETS: look for \"!!\".\n"
            );
        }
    }
    for place in attach {
        head += &format!("-- {place}\n");
    }
    if attach.iter().any(|place| place.contains("outward")) {
        head += "-- Packets to groups are filtered inward only: those that are forwarded pass these filters by.\n";
    }
    head
}
