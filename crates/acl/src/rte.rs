//! The same rules for DPDK's `rte_acl`, with which benchmarks compare the [`crate::Classifier`].
//!
//! A rule becomes the product of its lists, each minimised first: prefixes are aggregated, ranges
//! merged. Only fields that a rule of the family uses are looked up, because each group of 4 bytes
//! costs a lookup four steps. `rte_acl` requires every byte of a used group to belong to a field, so
//! the other bytes of the group become fields that match any value.
//!
//! It reads byte 0 of a packet's key and then groups of 4 bytes, in network byte order:
//!
//! ```text
//!  0  protocol     -           -      -          16  source port       destination port
//!  4  TCP flags    ICMP type   DSCP   TTL        20  source address (4 or 16 bytes)
//!  8  frag., state -           IP length         24  destination address of IPv4
//! 12  interface                -      -          36  destination address of IPv6
//! ```

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{
    Bits, Family, Filter, Key, Matches,
    conditions::merge,
    key::{FRAGMENT, LATER, NO_UPPER},
};

/// Bytes in a packet's key.
pub const KEY: usize = 52;

const PROTOCOL_AT: usize = 0;
const FLAGS_AT: usize = 4;
const ICMP_AT: usize = 5;
const DSCP_AT: usize = 6;
const TTL_AT: usize = 7;
const FRAGMENT_AT: usize = 8;
/// Position of the state in the fragment byte.
const STATE: u32 = 4;
const LENGTH_AT: usize = 10;
const INTERFACE_AT: usize = 12;
const FROM_PORT_AT: usize = 16;
const TO_PORT_AT: usize = 18;
const SOURCE_AT: usize = 20;
const DESTINATION4_AT: usize = 24;
const DESTINATION6_AT: usize = 36;

/// Returns the bytes that `rte_acl` reads of a packet of `family`.
pub fn bytes(key: &Key, family: Family) -> [u8; KEY] {
    let mut bytes = [0; KEY];
    bytes[PROTOCOL_AT] = key.protocol;
    bytes[FLAGS_AT..=TTL_AT].copy_from_slice(&[key.flags, key.icmp_type, key.dscp, key.ttl]);
    bytes[FRAGMENT_AT] = key.fragment | (key.state as u8) << STATE;
    let words = [
        (LENGTH_AT, key.length),
        (INTERFACE_AT, key.interface),
        (FROM_PORT_AT, key.ports[0]),
        (TO_PORT_AT, key.ports[1]),
    ];
    for (at, word) in words {
        bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
    let addresses = [key.source, key.destination].map(u128::to_be_bytes);
    let first = if family == Family::Ip4 { 12 } else { 0 };
    let addresses = addresses.iter().flat_map(|address| &address[first..]);
    bytes[SOURCE_AT..].iter_mut().zip(addresses).for_each(|(byte, &value)| *byte = value);
    bytes
}

/// Most entries of a compiled filter.
pub const TOO_MANY: usize = 1 << 18;

/// A filter for one family, in the form of `rte_acl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The fields, by offset; the protocol, byte 0, first.
    pub fields: Vec<Field>,
    /// The entries, by rule; an earlier one has the higher priority.
    pub entries: Vec<Entry>,
}

/// One field of the [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The comparison.
    pub kind: FieldKind,
    /// Bytes: 1, 2 or 4.
    pub size: u8,
    /// First byte in the key.
    pub offset: u16,
    /// Group of 4 bytes, counted from 1 over the groups used; 0 for byte 0.
    pub group: u8,
}

/// Comparison of a [`Field`], and the meaning of an entry's second number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A prefix; the second number is its length in bits.
    Mask,
    /// A range; the second number is its end, included.
    Range,
    /// Single bits; the second number is the mask.
    Bitmask,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// For each field the value and its mask or end, in host byte order.
    pub values: Vec<(u64, u64)>,
    /// Index of the rule in [`Filter::rules`].
    pub rule: u32,
}

/// Error: a filter needs more than [`TOO_MANY`] entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "filter \"{filter}\": {rule}, line {line}, becomes {entries} entries ({lists}) of {total} for \
     {family}, at most {TOO_MANY}: give it fewer or shorter lists, or leave one list to another rule"
)]
pub struct TooMany {
    /// The filter.
    pub filter: String,
    /// The rule with most entries.
    pub rule: String,
    /// Its line.
    pub line: u32,
    /// Its entries.
    pub entries: u64,
    /// Its lists and their lengths, for example `from 300 x to 200`.
    pub lists: String,
    /// Entries of the whole filter.
    pub total: u64,
    /// The family.
    pub family: Family,
}

/// Compiles the rules of `filter` that packets of `family` can match.
///
/// # Errors
/// More than [`TOO_MANY`] entries. Rules with faults ([`Filter::check`]) are no error; their entries
/// match like [`crate::walk`].
pub fn compile(filter: &Filter, family: Family) -> Result<Compiled, TooMany> {
    let (rules, total) = sized(filter, family)?;
    let fields = layout(family, &rules);
    let mut entries = Vec::with_capacity(total as usize);
    for (at, choices) in &rules {
        expand(*at as u32, choices, &fields, &mut entries);
    }
    Ok(Compiled { fields, entries })
}

/// A rule's place in its filter, and its choices.
type Part = (usize, Vec<Choice>);

/// Returns the rules that packets of `family` can match, and their total number of entries.
fn sized(filter: &Filter, family: Family) -> Result<(Vec<Part>, u64), TooMany> {
    let rules: Vec<Part> = filter
        .rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.matches.allows(family))
        .map(|(at, rule)| (at, choices(&rule.matches, family)))
        .collect();
    let total = rules.iter().map(|(_, choices)| product(choices)).fold(0, u64::saturating_add);
    if total > TOO_MANY as u64 {
        return Err(too_many(filter, family, &rules, total));
    }
    Ok((rules, total))
}

impl Compiled {
    /// Returns the rule of the first entry that matches: the result of `rte_acl`, by linear search.
    pub fn find(&self, key: &[u8; KEY]) -> Option<u32> {
        let holds = |entry: &&Entry| {
            self.fields.iter().zip(&entry.values).all(|(field, values)| field.holds(key, *values))
        };
        self.entries.iter().find(holds).map(|entry| entry.rule)
    }
}

impl Field {
    fn holds(&self, key: &[u8; KEY], (value, second): (u64, u64)) -> bool {
        let at = usize::from(self.offset);
        let bytes = &key[at..at + usize::from(self.size)];
        let found = bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        match self.kind {
            FieldKind::Range => (value..=second).contains(&found),
            FieldKind::Bitmask => found & second == value,
            FieldKind::Mask => {
                let ignored = u32::from(self.size) * 8 - second as u32;
                found >> ignored == value >> ignored
            }
        }
    }

    /// Returns the value that matches any field.
    fn anything(&self) -> (u64, u64) {
        match self.kind {
            FieldKind::Range => (0, (1 << (u32::from(self.size) * 8)) - 1),
            FieldKind::Mask | FieldKind::Bitmask => (0, 0),
        }
    }
}

/// The alternatives of one list of a rule; a list that matches any value has no choice.
struct Choice {
    /// The list's name in the rule.
    name: &'static str,
    /// Offset of its first field in the key; an address continues in the next ones.
    offset: usize,
    options: Vec<Vec<(u64, u64)>>,
}

impl Choice {
    fn ranges(name: &'static str, offset: usize, ranges: Vec<RangeInclusive<u16>>) -> Self {
        let options = ranges.into_iter().map(|r| vec![((*r.start()).into(), (*r.end()).into())]);
        Self { name, offset, options: options.collect() }
    }

    fn bits(name: &'static str, offset: usize, values: impl Iterator<Item = (u8, u8)>) -> Self {
        let options = values.map(|(value, mask)| vec![(value.into(), mask.into())]);
        Self { name, offset, options: options.collect() }
    }
}

fn choices(matches: &Matches, family: Family) -> Vec<Choice> {
    let destination_at = match family {
        Family::Ip4 => DESTINATION4_AT,
        Family::Ip6 => DESTINATION6_AT,
    };
    let mut choices: Vec<Choice> = Vec::new();
    choices.extend(protocols(&matches.protocol));
    choices.extend(matches.flags.map(|Bits { value, mask }| {
        let possible = Some((value, mask)).filter(|_| value & !mask == 0);
        Choice::bits("flags", FLAGS_AT, possible.into_iter())
    }));
    choices.extend(numbers("icmp", ICMP_AT, matches.icmp.iter().map(|&n| n.into())));
    choices.extend(numbers("dscp", DSCP_AT, matches.dscp.iter().map(|&n| n.into())));
    choices.extend(matches.ttl.as_ref().map(|ttl| {
        Choice::ranges("ttl", TTL_AT, merge(vec![(*ttl.start()).into()..=(*ttl.end()).into()]))
    }));
    choices.extend(fragment(matches));
    choices.extend(ranges("length", LENGTH_AT, matches.length.as_slice()));
    choices.extend(numbers("interface", INTERFACE_AT, matches.interface.iter().copied()));
    choices.extend(ranges("from_port", FROM_PORT_AT, &matches.from_port));
    choices.extend(ranges("to_port", TO_PORT_AT, &matches.to_port));
    choices.extend(addresses("from", SOURCE_AT, &matches.from, family));
    choices.extend(addresses("to", destination_at, &matches.to, family));
    choices
}

fn protocols(protocols: &[u8]) -> Option<Choice> {
    let mut sorted = protocols.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let values = sorted.iter().map(|&protocol| (protocol, u8::MAX));
    (!sorted.is_empty() && sorted.len() < 256).then(|| Choice::bits("proto", PROTOCOL_AT, values))
}

fn numbers(
    name: &'static str,
    offset: usize,
    numbers: impl Iterator<Item = u16>,
) -> Option<Choice> {
    let ranges = merge(numbers.map(|number| number..=number).collect());
    (!ranges.is_empty()).then(|| Choice::ranges(name, offset, ranges))
}

fn ranges(name: &'static str, offset: usize, ranges: &[RangeInclusive<u16>]) -> Option<Choice> {
    (!ranges.is_empty()).then(|| Choice::ranges(name, offset, merge(ranges.to_vec())))
}

/// Returns the choice of fragments and states. A rule that reads the upper layer requires its presence.
fn fragment(matches: &Matches) -> Option<Choice> {
    let upper = if matches.needs_upper_layer() { NO_UPPER } else { 0 };
    let (value, mask) = match matches.fragment {
        Some(true) => (FRAGMENT, FRAGMENT | upper),
        Some(false) => (0, FRAGMENT | upper),
        None => (0, upper),
    };
    let (value, mask) = match matches.later {
        Some(true) => (value | LATER, mask | LATER),
        Some(false) => (value, mask | LATER),
        None => (value, mask),
    };
    let states = match &matches.state[..] {
        [] => vec![(value, mask)],
        states => states
            .iter()
            .map(|&state| (value | (state as u8) << STATE, mask | 3 << STATE))
            .collect(),
    };
    let asks = states.iter().any(|(_, mask)| *mask != 0);
    asks.then(|| Choice::bits("fragment", FRAGMENT_AT, states.into_iter()))
}

/// Returns the choice of prefixes; `None` if they cover all addresses.
fn addresses(name: &'static str, offset: usize, nets: &[IpNet], family: Family) -> Option<Choice> {
    let nets = aggregate(nets, family);
    if nets.first().is_none_or(|net| net.prefix_len() == 0) {
        return None;
    }
    Some(Choice { name, offset, options: nets.iter().map(words).collect() })
}

/// Aggregates the prefixes of `family`: without those within another, and neighbours joined.
fn aggregate(nets: &[IpNet], family: Family) -> Vec<IpNet> {
    let of_family = nets.iter().filter(|net| Family::of(net) == family);
    match family {
        Family::Ip4 => {
            let nets = of_family.filter_map(|net| match net {
                IpNet::V4(net) => Some(*net),
                IpNet::V6(_) => None,
            });
            Ipv4Net::aggregate(&nets.collect()).into_iter().map(IpNet::V4).collect()
        }
        Family::Ip6 => {
            let nets = of_family.filter_map(|net| match net {
                IpNet::V4(_) => None,
                IpNet::V6(net) => Some(*net),
            });
            Ipv6Net::aggregate(&nets.collect()).into_iter().map(IpNet::V6).collect()
        }
    }
}

/// Splits a prefix into 4-byte words, each with its part of the prefix length.
fn words(net: &IpNet) -> Vec<(u64, u64)> {
    let bytes = match net.network() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let word = |(at, bytes): (usize, &[u8])| {
        let value = bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        (value, u64::from(net.prefix_len()).saturating_sub(32 * at as u64).min(32))
    };
    bytes.chunks(4).enumerate().map(word).collect()
}

fn product(choices: &[Choice]) -> u64 {
    choices.iter().map(|choice| choice.options.len() as u64).fold(1, u64::saturating_mul)
}

fn too_many(filter: &Filter, family: Family, rules: &[Part], total: u64) -> TooMany {
    let largest = rules.iter().rev().max_by_key(|(_, choices)| product(choices));
    let (at, choices) = largest.map_or((0, &[][..]), |(at, choices)| (*at, choices));
    let lists = choices.iter().filter(|choice| choice.options.len() > 1);
    let lists: Vec<String> =
        lists.map(|choice| format!("{} {}", choice.name, choice.options.len())).collect();
    TooMany {
        filter: filter.name.clone(),
        rule: filter.label(at),
        line: filter.rules.get(at).map_or(0, |rule| rule.line),
        entries: product(choices),
        lists: lists.join(" x "),
        total,
        family,
    }
}

/// Returns kind and size of the fields in each group of 4 bytes after byte 0.
fn groups(family: Family) -> Vec<&'static [(FieldKind, u8)]> {
    use FieldKind::{Bitmask, Mask, Range};
    let addresses = match family {
        Family::Ip4 => 2,
        Family::Ip6 => 8,
    };
    let mut groups: Vec<&'static [(FieldKind, u8)]> = vec![
        &[(Bitmask, 1), (Range, 1), (Range, 1), (Range, 1)],
        &[(Bitmask, 1), (Bitmask, 1), (Range, 2)],
        &[(Range, 2), (Bitmask, 2)],
        &[(Range, 2), (Range, 2)],
    ];
    groups.extend(std::iter::repeat_n(&[(Mask, 4)][..], addresses));
    groups
}

/// Returns the fields: the protocol, and the groups in which some rule compares a value.
fn layout(family: Family, rules: &[Part]) -> Vec<Field> {
    let used = used_groups(rules);
    let protocol = Field { kind: FieldKind::Bitmask, size: 1, offset: 0, group: 0 };
    let mut fields = vec![protocol];
    let mut group = 0;
    for (at, kinds) in groups(family).into_iter().enumerate() {
        if used & 1 << (at + 1) == 0 {
            continue;
        }
        group += 1;
        let mut offset = 4 * (at + 1) as u16;
        for &(kind, size) in kinds {
            fields.push(Field { kind, size, offset, group });
            offset += u16::from(size);
        }
    }
    fields
}

/// Returns a bit for each 4 bytes of the key that some rule compares.
fn used_groups(rules: &[Part]) -> u32 {
    let mut used = 0;
    for choice in rules.iter().flat_map(|(_, choices)| choices) {
        for option in &choice.options {
            let reached = option.iter().enumerate().filter(|(at, word)| *at == 0 || word.1 != 0);
            used |= reached.fold(0, |bits, (at, _)| bits | 1 << (choice.offset / 4 + at));
        }
    }
    used
}

/// Appends the product of a rule's lists.
fn expand(rule: u32, choices: &[Choice], fields: &[Field], entries: &mut Vec<Entry>) {
    let start = entries.len();
    let values = fields.iter().map(Field::anything).collect();
    entries.push(Entry { values, rule });
    for choice in choices {
        let index = fields.iter().position(|field| usize::from(field.offset) == choice.offset);
        let Some((first, others)) = choice.options.split_first() else {
            entries.truncate(start);
            return;
        };
        let index = index.expect("fields have all choices");
        let width = entries.len() - start;
        for option in others {
            for at in start..start + width {
                let mut entry = entries[at].clone();
                set(&mut entry, index, option);
                entries.push(entry);
            }
        }
        entries[start..start + width].iter_mut().for_each(|entry| set(entry, index, first));
    }
}

/// Sets a field's values. Words of an address beyond the last that some rule compares have no field.
fn set(entry: &mut Entry, index: usize, option: &[(u64, u64)]) {
    for (at, &value) in option.iter().enumerate().filter(|(at, value)| *at == 0 || value.1 != 0) {
        entry.values[index + at] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Rule};

    fn filter(matches: Vec<Matches>) -> Filter {
        let rule = |matches| Rule { name: None, line: 9, matches, action: Action::Accept };
        let rules = matches.into_iter().map(rule).collect();
        Filter { name: "f".into(), rules, default: Action::Drop }
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn offsets(compiled: &Compiled) -> Vec<(u16, u8, u8)> {
        compiled.fields.iter().map(|field| (field.offset, field.size, field.group)).collect()
    }

    #[test]
    fn a_filter_without_conditions_reads_the_protocol_only() {
        let compiled = compile(&filter(vec![Matches::default()]), Family::Ip4).unwrap();
        assert_eq!(offsets(&compiled), [(0, 1, 0)]);
        assert_eq!(compiled.entries, [Entry { values: vec![(0, 0)], rule: 0 }]);
    }

    #[test]
    fn groups_are_complete_and_counted_without_gaps() {
        let ttl = Matches { ttl: Some(1..=2), ..Matches::default() };
        let to = Matches { to: nets(&["192.0.2.0/24"]), ..Matches::default() };
        let compiled = compile(&filter(vec![ttl, to]), Family::Ip4).unwrap();
        let wanted = [(0, 1, 0), (4, 1, 1), (5, 1, 1), (6, 1, 1), (7, 1, 1), (24, 4, 2)];
        assert_eq!(offsets(&compiled), wanted);
        let any = [(0, 0), (0, 0), (0, 255), (0, 255)];
        let ttl = [&any[..], &[(1, 2), (0, 0)]].concat();
        let to = [&any[..], &[(0, 255), (0xc000_0200, 24)]].concat();
        let entries: Vec<_> = compiled.entries.into_iter().map(|entry| entry.values).collect();
        assert_eq!(entries, [ttl, to]);
    }

    #[test]
    fn ip6_prefixes_are_split_and_unused_words_left_out() {
        let from = Matches { from: nets(&["2001:db8:1234::/40"]), ..Matches::default() };
        let to = Matches { to: nets(&["2001:db8::/127"]), ..Matches::default() };
        let compiled = compile(&filter(vec![from, to]), Family::Ip6).unwrap();
        let offsets: Vec<u16> = compiled.fields.iter().map(|field| field.offset).collect();
        assert_eq!(offsets, [0, 20, 24, 36, 40, 44, 48]);
        assert_eq!(compiled.entries[0].values[1..3], [(0x2001_0db8, 32), (0x1200_0000, 8)]);
        let words = [(0x2001_0db8, 32), (0, 32), (0, 32), (0, 31)];
        assert_eq!(compiled.entries[1].values[3..], words);
    }

    #[test]
    fn lists_are_minimised_before_they_are_multiplied() {
        let matches = Matches {
            from: nets(&["192.0.2.0/25", "192.0.2.128/25", "192.0.2.7/32", "2001:db8::/32"]),
            protocol: vec![6, 17, 6],
            to_port: vec![1..=10, 5..=20, 21..=30, 80..=80],
            ..Matches::default()
        };
        let compiled = compile(&filter(vec![matches]), Family::Ip4).unwrap();
        assert_eq!(compiled.entries.len(), 2 * 2);
    }

    #[test]
    fn rules_that_read_ports_want_an_upper_layer() {
        let ports = Matches { protocol: vec![17], to_port: vec![0..=65535], ..Matches::default() };
        let first = Matches { fragment: Some(true), ..ports.clone() };
        let compiled = compile(&filter(vec![ports, first]), Family::Ip4).unwrap();
        let at = compiled.fields.iter().position(|field| field.offset == 8).unwrap();
        assert_eq!(compiled.entries[0].values[at], (0, 0x80));
        assert_eq!(compiled.entries[1].values[at], (1, 0x81));
    }

    #[test]
    fn rules_of_the_other_family_have_no_entries() {
        let ip6 = Matches { from: nets(&["2001:db8::/32"]), ..Matches::default() };
        let compiled = compile(&filter(vec![ip6, Matches::default()]), Family::Ip4).unwrap();
        let rules: Vec<u32> = compiled.entries.iter().map(|entry| entry.rule).collect();
        assert_eq!(rules, [1]);
        assert_eq!(compiled.fields.len(), 1);
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "an empty range matches nothing")]
    fn rules_that_match_nothing_have_no_entries() {
        let empty = Matches { ttl: Some(2..=1), ..Matches::default() };
        let flags = Matches { flags: Some(Bits { value: 1, mask: 2 }), ..Matches::default() };
        assert_eq!(compile(&filter(vec![empty, flags]), Family::Ip4).unwrap().entries, []);
    }

    #[test]
    fn too_many_entries_name_the_rule_and_its_lists() {
        let many = |count: u16| (0..count).map(|n| 2 * n..=2 * n).collect::<Vec<_>>();
        let product = |from, to| Matches {
            protocol: vec![6],
            from_port: many(from),
            to_port: many(to),
            ..Matches::default()
        };
        let exact = filter(vec![product(512, 512)]);
        assert_eq!(compile(&exact, Family::Ip4).unwrap().entries.len(), TOO_MANY);
        let over = filter(vec![product(2, 1), product(512, 512)]);
        let said = compile(&over, Family::Ip4).unwrap_err().to_string();
        let wanted = "filter \"f\": rule 2, line 9, becomes 262144 entries (from_port 512 x \
                      to_port 512) of 262146 for IPv4, at most 262144: give it fewer";
        assert!(said.starts_with(wanted), "{said}");
    }
}
