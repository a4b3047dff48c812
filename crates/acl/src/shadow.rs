//! Rules that can never match: covered by an earlier terminal rule, or contradicting themselves.
//!
//! A rule is covered if one earlier rule with a terminal action matches all its packets, field by field; for a
//! rule of both families one for each. Several rules that cover it only together are not found.
//!
//! Rules are compared only with those whose prefixes contain theirs: earlier rules lie in a hash table by pair
//! of source and destination prefix, and a rule looks up each existing pair of prefix lengths (tuple space
//! search, Srinivasan et al., SIGCOMM 1999). The work is bounded by [`BUDGET`] look-ups and comparisons.

pub(crate) mod overlap;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    net::IpAddr,
    ops::RangeInclusive,
};

use ipnet::IpNet;

use wire::MacAddr;

use crate::{Bits, Extension, Family, Filter, Matches, State};

/// Look-ups and comparisons for one family of one filter.
pub const BUDGET: usize = 10_000_000;

/// Pairs of prefixes by which one rule is found; one with more is compared with every later rule.
const PAIRS: usize = 64;

/// A rule that the operator may not have meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Earlier rules match all packets of the rule.
    Covered {
        /// Index of the rule.
        rule: usize,
        /// Its name in messages: `rule 7 "bogon"`.
        label: String,
        /// Its line.
        line: u32,
        /// Indices of the earlier rules: one, or one for each family.
        by: Vec<usize>,
        /// Their names in messages and lines.
        covers: String,
    },
    /// The rule contradicts itself.
    Contradiction {
        /// Index of the rule.
        rule: usize,
        /// Its name in messages.
        label: String,
        /// Its line.
        line: u32,
        /// The contradiction.
        fault: crate::Fault,
    },
    /// Rules from this one on were not compared, because the filter is large.
    Unchecked {
        /// Index of the first such rule.
        first: usize,
        /// The family.
        family: Family,
    },
}

impl Warning {
    /// Index of the rule that can never match.
    pub fn rule(&self) -> Option<usize> {
        match self {
            Self::Covered { rule, .. } | Self::Contradiction { rule, .. } => Some(*rule),
            Self::Unchecked { .. } => None,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Covered { label, line, by, covers, .. } => {
                let verb = if by.len() == 1 { "covers" } else { "cover" };
                write!(to, "{label}, line {line}, can never match: {covers} {verb} it; ")?;
                write!(to, "move it up or delete it")
            }
            Self::Contradiction { label, line, fault, .. } => {
                write!(to, "{label}, line {line}, can never match: {fault}")
            }
            Self::Unchecked { first, family } => {
                write!(to, "rules from {} on were not compared with earlier ones for ", first + 1)?;
                write!(to, "{family}: the filter is too large for it")
            }
        }
    }
}

/// Rules of `filter` that can never match, by rule.
pub fn warnings(filter: &Filter) -> Vec<Warning> {
    let mut warnings: Vec<Warning> = contradictions(filter);
    let impossible: BTreeSet<usize> = warnings.iter().filter_map(Warning::rule).collect();
    let [four, six] = Family::ALL.map(|family| Search::run(filter, family, &impossible));
    for at in (0..filter.rules.len()).filter(|at| !impossible.contains(at)) {
        let by = match (four.answer(at), six.answer(at)) {
            (Answer::Free, _) | (_, Answer::Free) | (Answer::Absent, Answer::Absent) => continue,
            (Answer::By(one), Answer::By(other)) if one != other => vec![one, other],
            (Answer::By(one), _) | (_, Answer::By(one)) => vec![one],
        };
        warnings.push(covered(filter, at, by));
    }
    warnings.sort_by_key(Warning::rule);
    let cut = [(four.cut, Family::Ip4), (six.cut, Family::Ip6)];
    warnings.extend(
        cut.into_iter()
            .filter_map(|(first, family)| first.map(|first| Warning::Unchecked { first, family })),
    );
    warnings
}

fn contradictions(filter: &Filter) -> Vec<Warning> {
    let rules = filter.rules.iter().enumerate();
    let fault = |(at, rule): (usize, &crate::Rule)| {
        let fault = rule.matches.implied().err()?.into_iter().find(|f| f.is_contradiction())?;
        let label = filter.label(at);
        Some(Warning::Contradiction { rule: at, label, line: rule.line, fault })
    };
    rules.filter_map(fault).collect()
}

fn covered(filter: &Filter, at: usize, by: Vec<usize>) -> Warning {
    let name = |&at: &usize| format!("{} (line {})", filter.label(at), filter.rules[at].line);
    let covers = by.iter().map(name).collect::<Vec<_>>().join(" and ");
    let line = filter.rules[at].line;
    Warning::Covered { rule: at, label: filter.label(at), line, by, covers }
}

/// The state of one rule in one family.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// No packet of the family matches the rule's prefixes or family.
    Absent,
    /// No earlier rule covers it.
    Free,
    /// That rule covers it.
    By(usize),
}

/// Prefix: first address, and length.
type Net = (u128, u8);

/// A multiplicative hash of prefixes, a few times faster than the standard one. Its collisions cost
/// time only, and the rules are the operator's own.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u128(&mut self, word: u128) {
        self.write_u64(word as u64);
        self.write_u64((word >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Terminal rules by source and destination prefix, filled in order of the rules.
struct Search {
    answers: Vec<Answer>,
    /// First rule that was not compared.
    cut: Option<usize>,
    width: u8,
    shapes: Vec<Shape>,
    by_pair: HashMap<(Net, Net), Vec<usize>, BuildHasherDefault<Mix>>,
    lengths: BTreeSet<(u8, u8)>,
    wide: Vec<usize>,
    budget: usize,
}

impl Search {
    fn run(filter: &Filter, family: Family, impossible: &BTreeSet<usize>) -> Self {
        let mut search = Self {
            answers: Vec::with_capacity(filter.rules.len()),
            cut: None,
            width: if family == Family::Ip4 { 32 } else { 128 },
            shapes: Vec::new(),
            by_pair: HashMap::default(),
            lengths: BTreeSet::new(),
            wide: Vec::new(),
            budget: BUDGET,
        };
        for (at, rule) in filter.rules.iter().enumerate() {
            if impossible.contains(&at) || !rule.matches.allows(family) {
                search.answers.push(Answer::Absent);
                continue;
            }
            let shape = Shape::new(at, &rule.matches, family);
            let Some(answer) = search.ask(&shape) else {
                search.cut = Some(at);
                break;
            };
            search.answers.push(answer);
            if rule.action.is_terminal() && answer == Answer::Free {
                search.add(shape);
            }
        }
        search
    }

    fn answer(&self, at: usize) -> Answer {
        self.answers.get(at).copied().unwrap_or(Answer::Free)
    }

    /// The first earlier rule that covers `shape`; `None` if the budget is spent.
    fn ask(&mut self, shape: &Shape) -> Option<Answer> {
        let (from, to) = (shape.from[0], shape.to[0]);
        let mut best: Option<usize> = None;
        let none = Vec::new();
        let mut budget = self.budget;
        let lengths = self.lengths.iter().filter(|(a, b)| *a <= from.1 && *b <= to.1);
        let buckets = lengths.map(|&(a, b)| {
            let pair = (self.shorten(from, a), self.shorten(to, b));
            self.by_pair.get(&pair).unwrap_or(&none)
        });
        for bucket in buckets.chain([&self.wide]) {
            budget = budget.checked_sub(1)?;
            let earlier = bucket.iter().take_while(|&&at| best.is_none_or(|best| at < best));
            for &at in earlier {
                budget = budget.checked_sub(1)?;
                if self.shapes[at].covers(shape, self.width) {
                    best = Some(at);
                    break;
                }
            }
        }
        self.budget = budget;
        Some(best.map_or(Answer::Free, |at| Answer::By(self.shapes[at].rule)))
    }

    fn add(&mut self, shape: Shape) {
        let at = self.shapes.len();
        if shape.from.len().saturating_mul(shape.to.len()) > PAIRS {
            self.wide.push(at);
        } else {
            for (from, to) in shape.from.iter().flat_map(|a| shape.to.iter().map(move |b| (a, b))) {
                self.lengths.insert((from.1, to.1));
                self.by_pair.entry((*from, *to)).or_default().push(at);
            }
        }
        self.shapes.push(shape);
    }

    fn shorten(&self, net: Net, length: u8) -> Net {
        (shorten(net.0, length, self.width), length)
    }
}

/// The first `length` bits of an address of `width` bits.
fn shorten(address: u128, length: u8, width: u8) -> u128 {
    match u32::from(width - length) {
        128 => 0,
        cleared => address >> cleared << cleared,
    }
}

/// A rule's conditions for one family as sets.
struct Shape {
    rule: usize,
    from: Vec<Net>,
    to: Vec<Net>,
    protocol: Set,
    from_port: Vec<RangeInclusive<u16>>,
    to_port: Vec<RangeInclusive<u16>>,
    upper: bool,
    flags: Bits,
    icmp: Set,
    fragment: Option<bool>,
    later: Option<bool>,
    dscp: Set,
    ttl: RangeInclusive<u8>,
    length: RangeInclusive<u16>,
    interface: Vec<u16>,
    from_set: Vec<String>,
    to_set: Vec<String>,
    from_mac: Vec<MacAddr>,
    to_mac: Vec<MacAddr>,
    priority: Set,
    state: Vec<State>,
    routing: Vec<u8>,
    extension: Vec<Extension>,
}

impl Shape {
    fn new(rule: usize, matches: &Matches, family: Family) -> Self {
        Self {
            rule,
            from: nets(&matches.from, family),
            to: nets(&matches.to, family),
            protocol: Set::new(&matches.protocol),
            from_port: joined(&matches.from_port),
            to_port: joined(&matches.to_port),
            upper: matches.needs_upper_layer(),
            flags: matches.flags.unwrap_or(Bits { value: 0, mask: 0 }),
            icmp: Set::new(&matches.icmp),
            fragment: matches.fragment,
            later: matches.later,
            dscp: Set::new(&matches.dscp),
            ttl: matches.ttl.clone().unwrap_or(0..=u8::MAX),
            length: matches.length.clone().unwrap_or(0..=u16::MAX),
            interface: matches.interface.clone(),
            from_set: matches.from_set.clone(),
            to_set: matches.to_set.clone(),
            from_mac: matches.from_mac.clone(),
            to_mac: matches.to_mac.clone(),
            priority: Set::new(&matches.priority),
            state: matches.state.clone(),
            routing: matches.routing.clone(),
            extension: matches.extension.clone(),
        }
    }

    /// True if this rule matches all packets of `other`; the cheap comparisons first.
    fn covers(&self, other: &Shape, width: u8) -> bool {
        (!self.upper || other.upper)
            && self.protocol.contains(&other.protocol)
            && ranges_cover(&self.to_port, &other.to_port)
            && ranges_cover(&self.from_port, &other.from_port)
            && self.flags.mask & !other.flags.mask == 0
            && other.flags.value & self.flags.mask == self.flags.value
            && self.icmp.contains(&other.icmp)
            && self.fragment.is_none_or(|wanted| other.fragment == Some(wanted))
            && self.later.is_none_or(|wanted| other.later == Some(wanted))
            && self.dscp.contains(&other.dscp)
            && within(&self.ttl, &other.ttl)
            && within(&self.length, &other.length)
            && list_covers(&self.interface, &other.interface)
            && list_covers(&self.from_set, &other.from_set)
            && list_covers(&self.to_set, &other.to_set)
            && list_covers(&self.from_mac, &other.from_mac)
            && list_covers(&self.to_mac, &other.to_mac)
            && self.priority.contains(&other.priority)
            && list_covers(&self.state, &other.state)
            && list_covers(&self.routing, &other.routing)
            && self.covers_extensions(other)
            && nets_cover(&self.from, &other.from, width)
            && nets_cover(&self.to, &other.to, width)
    }

    /// A packet with a routing header of some type has a routing header.
    fn covers_extensions(&self, other: &Shape) -> bool {
        list_covers(&self.extension, &other.extension)
            || !other.routing.is_empty() && self.extension.contains(&Extension::Routing)
    }
}

/// A set of bytes; an empty list is all of them.
struct Set([u64; 4]);

impl Set {
    fn new(list: &[u8]) -> Self {
        if list.is_empty() {
            return Self([u64::MAX; 4]);
        }
        let mut words = [0; 4];
        list.iter().for_each(|&byte| words[usize::from(byte / 64)] |= 1 << (byte % 64));
        Self(words)
    }

    fn contains(&self, other: &Set) -> bool {
        self.0.iter().zip(other.0).all(|(own, others)| others & !own == 0)
    }
}

/// Prefixes of the family, sorted; all addresses if there are no prefixes at all.
fn nets(list: &[IpNet], family: Family) -> Vec<Net> {
    if list.is_empty() {
        return vec![(0, 0)];
    }
    let of_family = list.iter().filter(|net| Family::of(net) == family);
    let mut nets: Vec<Net> =
        of_family.map(|net| (number(net.network()), net.prefix_len())).collect();
    nets.sort_unstable();
    nets.dedup();
    nets
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Sorted ranges, those that overlap or touch joined; an empty list is all ports.
fn joined(list: &[RangeInclusive<u16>]) -> Vec<RangeInclusive<u16>> {
    if list.is_empty() {
        return vec![0..=u16::MAX];
    }
    let mut sorted: Vec<_> = list.iter().map(|range| (*range.start(), *range.end())).collect();
    sorted.sort_unstable();
    let mut joined: Vec<RangeInclusive<u16>> = Vec::with_capacity(sorted.len());
    for (low, high) in sorted {
        match joined.last_mut() {
            Some(last) if u32::from(low) <= u32::from(*last.end()) + 1 => {
                *last = *last.start()..=high.max(*last.end());
            }
            _ => joined.push(low..=high),
        }
    }
    joined
}

fn ranges_cover(own: &[RangeInclusive<u16>], others: &[RangeInclusive<u16>]) -> bool {
    others.iter().all(|other| {
        let at = own.partition_point(|range| range.end() < other.end());
        own.get(at).is_some_and(|range| within(range, other))
    })
}

fn within<T: PartialOrd>(outer: &RangeInclusive<T>, inner: &RangeInclusive<T>) -> bool {
    outer.start() <= inner.start() && inner.end() <= outer.end()
}

/// An empty list is that of all values.
fn list_covers<T: PartialEq>(own: &[T], others: &[T]) -> bool {
    own.is_empty() || (!others.is_empty() && others.iter().all(|other| own.contains(other)))
}

/// True if each prefix of `others` lies within one of `own`.
fn nets_cover(own: &[Net], others: &[Net], width: u8) -> bool {
    let lengths = own.iter().fold(0u128, |bits, net| bits | 1u128.unbounded_shl(net.1.into()));
    let whole = own.iter().any(|net| net.1 == 128);
    others.iter().all(|&(address, length)| {
        let holds = |at: u8| own.binary_search(&(shorten(address, at, width), at)).is_ok();
        (0..=length.min(127)).any(|at| lengths >> at & 1 == 1 && holds(at))
            || (whole && length == 128 && holds(128))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Rule};

    fn filter(rules: Vec<(Matches, Action)>) -> Filter {
        let rule =
            |(at, (matches, action))| Rule { name: None, line: 10 + at as u32, matches, action };
        let rules = rules.into_iter().enumerate().map(rule).collect();
        Filter { name: "f".into(), rules, default: Action::Drop }
    }

    fn pair(earlier: Matches, later: Matches) -> Vec<String> {
        let filter = filter(vec![(earlier, Action::Accept), (later, Action::Drop)]);
        warnings(&filter).iter().map(Warning::to_string).collect()
    }

    fn from(texts: &[&str]) -> Matches {
        Matches { from: texts.iter().map(|t| t.parse().unwrap()).collect(), ..Matches::default() }
    }

    fn tcp(to_port: &[RangeInclusive<u16>]) -> Matches {
        Matches { protocol: vec![6], to_port: to_port.to_vec(), ..Matches::default() }
    }

    #[test]
    fn a_covered_rule_names_the_one_that_covers_it() {
        let said = pair(from(&["10.0.0.0/8"]), from(&["10.1.0.0/16", "10.2.0.0/16"]));
        let wanted = "rule 2, line 11, can never match: rule 1 (line 10) covers it; move it up or \
                      delete it";
        assert_eq!(said, [wanted]);
    }

    #[test]
    fn every_field_must_cover() {
        let narrow = Matches {
            family: Some(Family::Ip4),
            ethertype: vec![],
            from: vec!["10.1.0.0/16".parse().unwrap()],
            to: vec!["10.2.0.0/16".parse().unwrap()],
            protocol: vec![6],
            from_port: vec![5..=6],
            to_port: vec![7..=8],
            flags: Some(Bits { value: 2, mask: 0x12 }),
            icmp: vec![],
            fragment: Some(false),
            later: Some(false),
            dscp: vec![46],
            ttl: Some(5..=6),
            length: Some(50..=60),
            interface: vec![3],
            from_set: vec!["a".into()],
            to_set: vec!["b".into(), "c".into()],
            from_mac: vec![MacAddr([1; 6])],
            to_mac: vec![MacAddr([2; 6])],
            priority: vec![5],
            state: vec![State::New],
            routing: vec![],
            extension: vec![],
        };
        let base = narrow.clone();
        let change = |change: fn(&mut Matches)| {
            let mut earlier = base.clone();
            change(&mut earlier);
            let said = pair(earlier, narrow.clone());
            said.iter().filter(|said| said.starts_with("rule 2")).count()
        };
        assert_eq!(change(|_| ()), 1);
        assert_eq!(change(|m| m.family = Some(Family::Ip6)), 0);
        assert_eq!(change(|m| m.from = vec!["10.1.0.0/17".parse().unwrap()]), 0);
        assert_eq!(change(|m| m.to = vec!["10.3.0.0/16".parse().unwrap()]), 0);
        assert_eq!(change(|m| m.protocol = vec![17]), 0);
        assert_eq!(change(|m| m.from_port = vec![5..=5, 7..=7]), 0);
        assert_eq!(change(|m| m.to_port = vec![8..=8]), 0);
        assert_eq!(change(|m| m.flags = Some(Bits { value: 2, mask: 0x13 })), 0);
        assert_eq!(change(|m| m.flags = Some(Bits { value: 0, mask: 0x02 })), 0);
        assert_eq!(change(|m| m.flags = Some(Bits { value: 2, mask: 0x02 })), 1);
        assert_eq!(change(|m| m.fragment = Some(true)), 0);
        assert_eq!(change(|m| m.later = Some(true)), 0);
        assert_eq!(change(|m| m.dscp = vec![45]), 0);
        assert_eq!(change(|m| m.ttl = Some(6..=9)), 0);
        assert_eq!(change(|m| m.length = Some(51..=60)), 0);
        assert_eq!(change(|m| m.interface = vec![4]), 0);
        assert_eq!(change(|m| m.from_set = vec!["b".into()]), 0);
        assert_eq!(change(|m| m.from_set.push("b".into())), 1);
        assert_eq!(change(|m| drop(m.to_set.pop())), 0);
        assert_eq!(change(|m| m.from_mac = vec![MacAddr([2; 6])]), 0);
        assert_eq!(change(|m| m.to_mac = vec![MacAddr([1; 6])]), 0);
        assert_eq!(change(|m| m.priority = vec![4, 6]), 0);
        assert_eq!(change(|m| m.priority = vec![4, 5]), 1);
        assert_eq!(change(|m| m.state = vec![State::Established]), 0);
        assert_eq!(change(|m| m.state = vec![State::Established, State::New]), 1);
        assert_eq!(pair(narrow, Matches::default()).len(), 0);
    }

    #[test]
    fn joined_ranges_cover() {
        assert_eq!(pair(tcp(&[1..=5, 6..=9]), tcp(&[2..=8])).len(), 1);
        assert_eq!(pair(tcp(&[1..=5, 7..=9]), tcp(&[2..=8])).len(), 0);
    }

    #[test]
    fn all_ports_do_not_cover_packets_without_ports() {
        assert_eq!(pair(tcp(&[0..=65535]), tcp(&[])).len(), 0);
        assert_eq!(pair(tcp(&[0..=65535]), tcp(&[22..=22])).len(), 1);
    }

    #[test]
    fn icmp_types_cover_as_sets() {
        let icmp = |types: &[u8]| Matches {
            protocol: vec![1],
            icmp: types.to_vec(),
            ..Matches::default()
        };
        assert_eq!(pair(icmp(&[8, 0, 3]), icmp(&[0, 8])).len(), 1);
        assert_eq!(pair(icmp(&[8]), icmp(&[0, 8])).len(), 0);
    }

    #[test]
    fn a_type_of_routing_headers_is_covered_by_more_types_and_by_all() {
        let routing = |types: &[u8]| Matches { routing: types.to_vec(), ..Matches::default() };
        let extension = |of: &[Extension]| Matches { extension: of.to_vec(), ..Matches::default() };
        assert_eq!(pair(routing(&[0, 4]), routing(&[4])).len(), 1);
        assert_eq!(pair(routing(&[4]), routing(&[0, 4])).len(), 0);
        let several = || extension(&[Extension::Fragment, Extension::Routing]);
        assert_eq!(pair(several(), routing(&[0])).len(), 1);
        assert_eq!(pair(several(), extension(&[Extension::Routing])).len(), 1);
        assert_eq!(pair(extension(&[Extension::Routing]), several()).len(), 0);
        assert_eq!(pair(extension(&[Extension::Fragment]), routing(&[0])).len(), 0);
        assert_eq!(pair(routing(&[0]), extension(&[Extension::Routing])).len(), 0);
        let ip6 = Matches { family: Some(Family::Ip6), ..Matches::default() };
        assert_eq!(pair(ip6, routing(&[0])).len(), 1, "no IPv4 packet has one");
    }

    #[test]
    fn rules_that_let_packets_continue_cover_nothing() {
        let any = Matches::default;
        let rules = filter(vec![(any(), Action::Continue), (any(), Action::Drop)]);
        assert_eq!(warnings(&rules), []);
    }

    #[test]
    fn each_family_may_be_covered_by_another_rule() {
        let both = || from(&["10.0.0.0/8", "2001:db8::/32"]);
        let rules = vec![from(&["10.0.0.0/8"]), from(&["::/0"]), both(), from(&["10.0.0.0/9"])];
        let rules = filter(rules.into_iter().map(|matches| (matches, Action::Drop)).collect());
        let said = warnings(&rules);
        assert_eq!(said.iter().filter_map(Warning::rule).collect::<Vec<_>>(), [2, 3]);
        let wanted =
            "rule 3, line 12, can never match: rule 1 (line 10) and rule 2 (line 11) cover it";
        assert!(said[0].to_string().starts_with(wanted), "{}", said[0]);
        assert_eq!(pair(from(&["10.0.0.0/8"]), both()).len(), 0);
    }

    #[test]
    fn hosts_and_whole_families_cover() {
        assert_eq!(pair(from(&["2001:db8::1/128"]), from(&["2001:db8::1/128"])).len(), 1);
        assert_eq!(pair(from(&["2001:db8::1/128"]), from(&["2001:db8::2/128"])).len(), 0);
        assert_eq!(pair(from(&["0.0.0.0/0"]), from(&["192.0.2.1/32"])).len(), 1);
    }

    #[test]
    fn rules_with_long_lists_cover_too() {
        let many = |count: u32| {
            let net = |n| IpNet::new(std::net::Ipv4Addr::from_bits(n << 9).into(), 24).unwrap();
            Matches { from: (0..count).map(net).collect(), ..Matches::default() }
        };
        assert_eq!(pair(many(1000), many(999)).len(), 1);
        assert_eq!(pair(many(999), many(1000)).len(), 0);
    }

    #[test]
    fn contradictions_are_warned_of() {
        let ip6 = Matches { family: Some(Family::Ip6), ..from(&["192.0.2.0/24"]) };
        let said = pair(Matches { dscp: vec![9], ..Matches::default() }, ip6);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("rule 2, line 11, can never match: from = 192.0.2.0/24"));
    }

    #[test]
    fn large_filters_are_compared_within_the_budget() {
        let port = |at: u16| (tcp(&[at..=at]), Action::Drop);
        let mut rules: Vec<_> = (0..10_000).map(port).collect();
        rules.insert(1, port(0));
        let said = warnings(&filter(rules));
        assert_eq!(said[0].rule(), Some(1));
        assert!(matches!(said[1], Warning::Unchecked { first: 4000..5000, .. }), "{:?}", said[1]);
    }
}
