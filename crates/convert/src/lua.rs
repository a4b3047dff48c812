//! Filters as Lua: prints lists of decisions.

use std::collections::{BTreeMap, BTreeSet};

use acl::text;

use crate::Left;
use crate::flatten::{Decision, Item, is_for_all};
use crate::matches::{Field, Match, Names};
use crate::ranges::Ranges;
use crate::rules::{Limit, Verdict};

/// Protocols whose headers begin with ports.
const WITH_PORTS: [u128; 5] = [6, 17, 33, 132, 136];

/// Most rules of a filter whose packets go on.
const MARKS_MAX: usize = 64;

/// Most rules into which one decision is split.
const PARTS_MAX: usize = 256;

/// A filter to be printed.
pub struct Filter<'r> {
    pub name: String,
    pub items: Vec<Item<'r>>,
}

/// Prints the filters as Lua, and returns the rules left out.
pub fn print(filters: &[Filter<'_>]) -> (String, Vec<Left>) {
    let mut printer = Printer { rates: rates(filters), ..Printer::default() };
    for filter in filters {
        printer.filter(filter);
    }
    (printer.lua, printer.left)
}

#[derive(Default)]
struct Printer {
    lua: String,
    left: Vec<Left>,
    /// By the place of a rule with a rate: the number of rules that it becomes.
    rates: BTreeMap<String, usize>,
    /// Names of rules in this filter.
    names: BTreeSet<String>,
    /// The rule named last, whose text is not repeated.
    last: Option<String>,
    /// Rules of this filter whose packets go on.
    marks: usize,
}

/// Returns the number of rules that each rule with a rate becomes.
fn rates(filters: &[Filter<'_>]) -> BTreeMap<String, usize> {
    let mut rates = BTreeMap::new();
    for item in filters.iter().flat_map(|filter| &filter.items) {
        if let Item::Rule(Decision { rule: Some(rule), packets, police: Some(_), .. }) = item {
            let count = parts(packets).map_or(0, |parts| parts.len());
            *rates.entry(rule.origin.place.clone()).or_default() += count;
        }
    }
    rates
}

impl Printer {
    fn filter(&mut self, filter: &Filter<'_>) {
        self.names.clear();
        self.last = None;
        self.marks = 0;
        let (items, default) = with_default(&filter.items);
        self.lua += &format!("turnpike.filter {} {{\n", quoted(&filter.name));
        for item in items {
            match item {
                Item::Rule(decision) => self.decision(decision),
                Item::Left { rule, reasons, matters } => {
                    let origin = &rule.origin;
                    let what = if *matters { "; its packets meet later rules instead" } else { "" };
                    let reason = reasons.join("; ") + what;
                    self.leave(&origin.place, &origin.text, &reason, *matters);
                }
                Item::Nothing { rule, why } => {
                    self.text_of(&rule.origin.place, &rule.origin.text);
                    self.comment(&format!("  nothing to convert: {why}"));
                }
            }
        }
        self.lua += &format!("  default = \"{default}\",\n}}\n");
    }

    fn comment(&mut self, text: &str) {
        self.lua += &format!("  -- {}\n", one_line(text));
    }

    /// Prints a rule's text above its result.
    fn text_of(&mut self, place: &str, text: &str) {
        if self.last.as_deref() != Some(place) {
            self.comment(&format!("{place}: {text}"));
            self.last = Some(place.to_owned());
        }
    }

    fn leave(&mut self, place: &str, text: &str, reason: &str, matters: bool) {
        let left = Left::new(place, text, reason, matters);
        let mark = if matters { "!! NOT CONVERTED" } else { "left out" };
        self.comment(&format!("{mark}: {place}: {text}"));
        self.comment(&format!("   {reason}"));
        if !self.left.contains(&left) {
            self.left.push(left);
        }
        self.last = None;
    }

    fn decision(&mut self, decision: &Decision<'_>) {
        let (place, text) = match decision.rule {
            Some(rule) => (rule.origin.place.clone(), rule.origin.text.clone()),
            None => (String::new(), String::new()),
        };
        let parts = match parts(&decision.packets) {
            Ok(parts) => parts,
            Err(reason) => return self.leave(&place, &text, &reason, true),
        };
        let police = match decision.police.map(police).transpose() {
            Ok(police) => police,
            Err(reason) => return self.leave(&place, &text, &reason, true),
        };
        if decision.mark.is_some() {
            self.marks += parts.len();
            if self.marks > MARKS_MAX {
                let reason = format!("a filter may have {MARKS_MAX} rules whose packets go on");
                return self.leave(&place, &text, &reason, true);
            }
        }
        let rules = self.rates.get(&place).copied().filter(|_| police.is_some());
        if let Some(rules) = rules.filter(|rules| *rules > 1) {
            let reason = format!(
                "it becomes {rules} rules here, each of which has the whole rate by itself: together they let \
                 more pass"
            );
            self.leave(&place, &text, &reason, true);
        }
        match decision.rule {
            Some(_) => self.text_of(&place, &text),
            None if self.last.as_deref() != Some("policy") => {
                self.comment("the policy of a base chain");
                self.last = Some("policy".into());
            }
            None => {}
        }
        if let (Some(answer), false) =
            (other_answer(&decision.verdict, &decision.packets), police.is_some())
        {
            self.comment(&format!("  the answer differs: {answer}"));
        }
        if parts.is_empty() {
            self.comment("  nothing to convert: no packet that comes here fits it");
        }
        let is_one = parts.len() == 1;
        let name = decision.rule.and_then(|rule| rule.name.clone());
        let name = name.filter(|name| is_one && self.names.insert(name.clone()));
        for mut fields in parts {
            if let Some(name) = &name {
                fields.insert(0, format!("name = {}", quoted(name)));
            }
            fields.extend(police.iter().cloned());
            fields.extend(decision.mark.map(|dscp| format!("mark = {{ dscp = {dscp} }}")));
            fields.push(format!("action = \"{}\"", action(&decision.verdict)));
            if decision.log {
                fields.push("log = true".into());
            }
            self.lua += &format!("  {{ {} }},\n", fields.join(", "));
        }
    }
}

/// Returns the list without its last decision, if that is a default, and the default.
fn with_default<'i, 'r>(items: &'i [Item<'r>]) -> (&'i [Item<'r>], &'static str) {
    match items {
        [rest @ .., Item::Rule(Decision { rule: None, packets, verdict, .. })]
            if is_for_all(packets) =>
        {
            (rest, action(verdict))
        }
        // A rule for all packets ends the list: without it the default would have the same effect.
        [.., Item::Rule(Decision { packets, verdict, police: None, mark: None, .. })]
            if is_for_all(packets) =>
        {
            (items, action(verdict))
        }
        _ => (items, "drop"),
    }
}

fn action(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Accept => "accept",
        Verdict::Reject(_) => "reject",
        Verdict::Continue => "continue",
        _ => "drop",
    }
}

/// Returns Turnpike's answer to a rejected packet, if the rule's answer differs.
fn other_answer(verdict: &Verdict, packets: &Match) -> Option<String> {
    let Verdict::Reject(with) = verdict else { return None };
    let protocols = packets.get(Field::Protocol);
    let (tcp, others) = (protocols.has(6), protocols != Ranges::one(6));
    let wanted = with.as_deref().unwrap_or("port-unreachable");
    let is_reset = wanted.contains("reset");
    let is_prohibited = wanted.ends_with("admin-prohibited") || wanted.ends_with("adm-prohibited");
    let differs = (tcp && !is_reset) || (others && !is_reset && !is_prohibited);
    differs.then(|| format!("TCP is reset, else administratively prohibited, not {wanted}"))
}

fn police(limit: &Limit) -> Result<String, String> {
    let unit = if limit.is_bytes { 8 } else { 1 };
    let rate = limit.rate.saturating_mul(unit);
    if rate == 0 || rate % limit.seconds != 0 {
        let what = if limit.is_bytes { "bits" } else { "packets" };
        return Err(format!(
            "its rate, {} in {} s, is no whole number of {what} a second",
            rate, limit.seconds
        ));
    }
    let per_source = match limit.per_source {
        Some((ip4, ip6)) => format!(" per source/{ip4}/{ip6}"),
        None => String::new(),
    };
    let (rate, burst) = (rate / limit.seconds, limit.burst.saturating_mul(unit).max(1));
    if rate > 1_000_000_000_000 || burst > 1_000_000_000_000 {
        return Err("its rate or burst is above what a rule here may have".into());
    }
    let (unit, amount) = if limit.is_bytes { ("bit", "bit") } else { ("pps", "") };
    Ok(format!("police = {{ rate = \"{rate}{unit}{per_source}\", burst = \"{burst}{amount}\" }}"))
}

/// Returns rules, each as its fields, that together match these packets.
fn parts(packets: &Match) -> Result<Vec<Vec<String>>, String> {
    let mut parts = Vec::new();
    for one in by_family(packets) {
        let mut of = vec![common(&one)?];
        of = times(&of, &flags(&one));
        of = times(&of, &fragments(&one));
        of = times(&of, &each_range(&one, Field::Ttl, "ttl"));
        of = times(&of, &each_range(&one, Field::Length, "length"));
        parts.extend(of);
        if parts.len() > PARTS_MAX {
            return Err(format!("it would become more than {PARTS_MAX} rules"));
        }
    }
    Ok(parts)
}

/// Splits packets by family, unless their addresses are given; returns none if a field can have no
/// value.
fn by_family(packets: &Match) -> Vec<Match> {
    if packets.is_impossible() {
        return Vec::new();
    }
    let addresses =
        [Field::From4, Field::From6, Field::To4, Field::To6, Field::Icmp4, Field::Icmp6];
    let says = addresses.iter().any(|field| packets.condition(*field).is_some());
    let families = packets.get(Field::Family);
    if !says && families.has(4) && families.has(6) {
        return vec![packets.clone()];
    }
    [4, 6].iter().filter_map(|family| packets.and(&Match::family(*family))).collect()
}

fn times(rules: &[Vec<String>], choices: &[String]) -> Vec<Vec<String>> {
    if choices.is_empty() {
        return rules.to_vec();
    }
    let with = |rule: &Vec<String>, choice: &String| {
        let mut rule = rule.clone();
        rule.push(choice.clone());
        rule
    };
    rules.iter().flat_map(|rule| choices.iter().map(move |choice| with(rule, choice))).collect()
}

/// Returns the fields that are one list or value each.
fn common(packets: &Match) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let is_ip4 = packets.is_only(4);
    let (from, to) = match is_ip4 {
        true => (Field::From4, Field::To4),
        false => (Field::From6, Field::To6),
    };
    let mut says_family = false;
    for (key, field) in [("from", from), ("to", to)] {
        if let Some(set) = packets.condition(field) {
            let nets = if is_ip4 { set.ip4_nets() } else { set.ip6_nets() };
            fields.push(list(key, nets.iter().map(|net| quoted(&host_or_net(net)))));
            says_family = true;
        }
    }
    let (icmp, protocol) = if is_ip4 { (Field::Icmp4, 1) } else { (Field::Icmp6, 58) };
    let protocols = packets.get(Field::Protocol);
    let types = packets.condition(icmp).filter(|_| packets.condition(Field::Family).is_some());
    if let Some(types) = types {
        if protocols != Ranges::one(protocol) {
            return Err("ICMP types of more than one protocol".into());
        }
        let key = if is_ip4 { "icmp" } else { "icmp6" };
        fields.push(list(key, types.numbers().map(|number| number.to_string())));
        says_family = true;
    } else if packets.condition(Field::Protocol).is_some() {
        let names = protocols.numbers().map(|number| quoted(&text::protocol_name(number as u8)));
        fields.push(list("proto", names));
    }
    if !says_family && packets.condition(Field::Family).is_some() {
        fields.insert(0, format!("family = \"{}\"", if is_ip4 { "ip4" } else { "ip6" }));
    }
    for (key, field) in [("from_port", Field::FromPort), ("to_port", Field::ToPort)] {
        if let Some(ports) = packets.condition(field) {
            if protocols.numbers().any(|number| !WITH_PORTS.contains(&number)) {
                return Err("ports of protocols that have none".into());
            }
            fields.push(list(key, ports.ranges().iter().map(range)));
        }
    }
    if let Some(set) = packets.condition(Field::Routing) {
        fields.push(routing(set)?);
    }
    if let Some(set) = packets.condition(Field::Dscp) {
        fields.push(list("dscp", set.numbers().map(|number| number.to_string())));
    }
    if let Names::In(names) = &packets.ingress {
        fields.push(list("interface", names.iter().map(|name| quoted(name))));
    }
    if let Some(set) = packets.condition(Field::State) {
        let names = ["new", "established", "related"];
        fields.push(list("state", set.numbers().map(|state| quoted(names[state as usize % 3]))));
    }
    Ok(fields)
}

/// Returns `fragment = …` for each group of values of the field that has a word.
fn fragments(packets: &Match) -> Vec<String> {
    let Some(set) = packets.condition(Field::Fragment) else { return Vec::new() };
    let words = match (set.has(1), set.has(2)) {
        (true, true) => vec!["true"],
        (true, false) => vec!["\"first\""],
        (false, true) => vec!["\"later\""],
        (false, false) => vec![],
    };
    let whole = set.has(0).then_some("false");
    whole.into_iter().chain(words).map(|word| format!("fragment = {word}")).collect()
}

/// Types of routing headers that a filter may name.
const ROUTING_TYPES_MAX: usize = 8;

fn routing(types: &Ranges) -> Result<String, String> {
    if *types == Ranges::all(Field::Routing.most()) {
        return Ok("extension = \"routing\"".into());
    }
    let count = types.numbers().count();
    if count > ROUTING_TYPES_MAX {
        return Err(format!("{count} types of routing headers; at most {ROUTING_TYPES_MAX}"));
    }
    Ok(list("routing", types.numbers().map(|kind| kind.to_string())))
}

fn each_range(packets: &Match, field: Field, key: &str) -> Vec<String> {
    let ranges = packets.condition(field).map_or(&[][..], Ranges::ranges);
    ranges.iter().map(|of| format!("{key} = {}", range(of))).collect()
}

/// Formats a range: `22`, `"1024-65535"`.
fn range(&(low, high): &(u128, u128)) -> String {
    if low == high { low.to_string() } else { format!("\"{low}-{high}\"") }
}

/// Returns `flags = "syn,!ack"` for each group of flags that together are the set.
fn flags(packets: &Match) -> Vec<String> {
    let Some(set) = packets.condition(Field::Flags) else { return Vec::new() };
    let mut cubes = Vec::new();
    split_flags(set, 0, 0, &mut cubes);
    let name = |bit: u8| text::flag_names(bit);
    let cube = |&(value, mask): &(u8, u8)| {
        let bits = (0..8).map(|bit| 1u8 << bit).filter(|bit| mask & bit != 0);
        let words = bits.map(|bit| match value & bit {
            0 => format!("!{}", name(bit)),
            _ => name(bit),
        });
        format!("flags = {}", quoted(&words.collect::<Vec<_>>().join(",")))
    };
    match cubes[..] {
        // Any flags: the condition requires a whole TCP header.
        [(_, 0)] => ["flags = \"syn\"", "flags = \"!syn\""].map(str::to_owned).into(),
        _ => cubes.iter().map(cube).collect(),
    }
}

/// Splits values of flags into groups that agree in some bits: halves by the bit that leaves the
/// fewest groups.
fn split_flags(set: &Ranges, value: u8, mask: u8, cubes: &mut Vec<(u8, u8)>) {
    let in_cube = |flags: &u8| flags & mask == value;
    let members = || (0..=u8::MAX).filter(in_cube);
    if members().all(|flags| set.has(flags.into())) {
        cubes.push((value, mask));
    } else if members().any(|flags| set.has(flags.into())) {
        let bits = (0..8).map(|bit| 1u8 << bit).filter(|bit| mask & bit == 0);
        // A bit that all members have, or that decides the most.
        let wanted = |bit: &u8| {
            let with = members().filter(|flags| set.has((*flags).into()) && flags & bit != 0);
            let without = members().filter(|flags| set.has((*flags).into()) && flags & bit == 0);
            with.count().abs_diff(without.count())
        };
        let Some(bit) = bits.max_by_key(wanted) else { return };
        split_flags(set, value | bit, mask | bit, cubes);
        split_flags(set, value, mask | bit, cubes);
    }
}

fn host_or_net(net: &ipnet::IpNet) -> String {
    match net.prefix_len() == net.max_prefix_len() {
        true => net.addr().to_string(),
        false => net.to_string(),
    }
}

/// Formats a list: `key = value`, or `key = { value, value }`.
fn list(key: &str, values: impl Iterator<Item = String>) -> String {
    let values: Vec<String> = values.collect();
    match &values[..] {
        [one] => format!("{key} = {one}"),
        _ => format!("{key} = {{ {} }}", values.join(", ")),
    }
}

/// Quotes a text for Lua.
pub fn quoted(text: &str) -> String {
    let mut lua = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => lua.extend(['\\', char]),
            _ if char.is_control() => {
                let mut bytes = [0; 4];
                lua.extend(char.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\{byte:03}")));
            }
            _ => lua.push(char),
        }
    }
    lua + "\""
}

/// Makes a text safe for a one-line comment.
pub fn one_line(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}
