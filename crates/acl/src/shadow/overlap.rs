//! Do two rules have a packet in common? Where that is not known, they do.

use wire::MacAddr;

use super::{Net, Set, Shape, shorten};
use crate::{Family, Matches};

/// Rules in their order, searched for the first that has a packet in common with another rule.
pub(crate) struct Earlier {
    family: Family,
    width: u8,
    shapes: Vec<Shape>,
}

impl Earlier {
    pub fn new(family: Family) -> Self {
        let width = if family == Family::Ip4 { 32 } else { 128 };
        Self { family, width, shapes: Vec::new() }
    }

    /// Adds the next rule, of this number.
    pub fn push(&mut self, rule: usize, matches: &Matches) {
        if matches.allows(self.family) {
            self.shapes.push(Shape::new(rule, matches, self.family));
        }
    }

    /// The number of the first rule that may fit a packet that these conditions fit; each comparison takes one
    /// from `budget`. `None`: the budget was too small.
    pub fn first(&self, matches: &Matches, budget: &mut usize) -> Option<Option<usize>> {
        *budget = budget.checked_sub(self.shapes.len())?;
        let other = Shape::new(0, matches, self.family);
        let found = self.shapes.iter().find(|shape| shape.overlaps(&other, self.width));
        Some(found.map(|shape| shape.rule))
    }
}

impl Shape {
    /// False if no packet fits both; the cheap comparisons first. Lengths, interfaces, sets, states and extension
    /// headers are not compared, nor long lists of MACs.
    fn overlaps(&self, other: &Shape, width: u8) -> bool {
        self.protocol.meets(&other.protocol)
            && meet(&self.to_port, &other.to_port)
            && meet(&self.from_port, &other.from_port)
            && (self.flags.value ^ other.flags.value) & self.flags.mask & other.flags.mask == 0
            && self.icmp.meets(&other.icmp)
            && self.fragment.is_none_or(|one| other.fragment.is_none_or(|two| one == two))
            && self.later.is_none_or(|one| other.later.is_none_or(|two| one == two))
            && self.dscp.meets(&other.dscp)
            && self.priority.meets(&other.priority)
            && self.ttl.start() <= other.ttl.end()
            && other.ttl.start() <= self.ttl.end()
            && macs_meet(&self.from_mac, &other.from_mac)
            && macs_meet(&self.to_mac, &other.to_mac)
            && nets_meet(&self.from, &other.from, width)
            && nets_meet(&self.to, &other.to, width)
    }
}

/// MACs of a list that are compared with those of another one.
const MACS: usize = 64;

/// Returns true if an address is in both lists, of which an empty one has all addresses.
fn macs_meet(own: &[MacAddr], others: &[MacAddr]) -> bool {
    let is_open = |list: &[MacAddr]| list.is_empty() || list.len() > MACS;
    is_open(own) || is_open(others) || own.iter().any(|mac| others.contains(mac))
}

impl Set {
    fn meets(&self, other: &Set) -> bool {
        self.0.iter().zip(other.0).any(|(own, others)| own & others != 0)
    }
}

/// Ranges in order and apart.
fn meet(own: &[std::ops::RangeInclusive<u16>], others: &[std::ops::RangeInclusive<u16>]) -> bool {
    others.iter().any(|other| {
        let at = own.partition_point(|range| range.end() < other.start());
        own.get(at).is_some_and(|range| range.start() <= other.end())
    })
}

/// Returns true if an address is in prefixes of both, which are sorted.
fn nets_meet(own: &[Net], others: &[Net], width: u8) -> bool {
    let lengths = own.iter().fold([0u128; 2], |[bits, whole], &(_, length)| match length {
        128 => [bits, 1],
        _ => [bits | 1 << length, whole],
    });
    let has = |length: u8| match length {
        128 => lengths[1] == 1,
        _ => lengths[0] >> length & 1 == 1,
    };
    others.iter().any(|&(address, length)| {
        let within = own.partition_point(|&(first, _)| first < address);
        // One of `own` begins in it, or one of them contains it.
        own.get(within).is_some_and(|&(first, _)| shorten(first, length, width) == address)
            || (0..=length)
                .filter(|&at| has(at))
                .any(|at| own.binary_search(&(shorten(address, at, width), at)).is_ok())
    })
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::Bits;

    fn meets(one: &Matches, other: &Matches) -> bool {
        let found = |a: &Matches, b: &Matches| {
            let mut earlier = Earlier::new(Family::Ip4);
            earlier.push(7, a);
            earlier.first(b, &mut 10).unwrap() == Some(7)
        };
        assert_eq!(found(one, other), found(other, one), "{one} / {other}");
        found(one, other)
    }

    fn from(nets: &[&str]) -> Matches {
        let from: Vec<IpNet> = nets.iter().map(|net| net.parse().unwrap()).collect();
        Matches { from, ..Matches::default() }
    }

    #[test]
    fn prefixes_meet_if_one_contains_the_other() {
        assert!(meets(&from(&["10.0.0.0/8"]), &from(&["10.1.0.0/16"])));
        assert!(meets(&from(&["0.0.0.0/0"]), &from(&["255.255.255.255/32"])));
        assert!(meets(&from(&["10.1.2.3/32"]), &from(&["10.1.2.3/32"])));
        assert!(meets(&from(&["10.0.0.0/9", "192.0.2.0/24"]), &from(&["192.0.0.0/16"])));
        assert!(!meets(&from(&["10.0.0.0/9"]), &from(&["10.128.0.0/9"])));
        assert!(!meets(&from(&["10.0.0.0/8", "12.0.0.0/8"]), &from(&["11.0.0.0/8"])));
        assert!(meets(&Matches::default(), &from(&["11.0.0.0/8"])));
        assert!(!meets(&from(&["2001:db8::/32"]), &Matches::default()), "of another family");
    }

    #[test]
    fn numbers_meet_if_one_value_is_in_both() {
        let tcp = |to_port| Matches { protocol: vec![6], to_port, ..Matches::default() };
        assert!(meets(&tcp(vec![1..=5, 20..=30]), &tcp(vec![30..=40])));
        assert!(!meets(&tcp(vec![1..=5, 20..=30]), &tcp(vec![6..=19])));
        assert!(!meets(&tcp(vec![]), &Matches { protocol: vec![17], ..Matches::default() }));
        let flags = |value, mask| Matches { flags: Some(Bits { value, mask }), ..tcp(vec![]) };
        assert!(meets(&flags(2, 2), &flags(0, 0x10)));
        assert!(!meets(&flags(2, 0x12), &flags(0x10, 0x10)));
        let ttl = |ttl| Matches { ttl: Some(ttl), ..Matches::default() };
        assert!(meets(&ttl(1..=5), &ttl(5..=9)) && !meets(&ttl(1..=4), &ttl(5..=9)));
        let priority = |list| Matches { priority: list, ..Matches::default() };
        assert!(meets(&priority(vec![1, 5]), &priority(vec![5, 6])));
        assert!(!meets(&priority(vec![1, 5]), &priority(vec![6])));
        let mac = |list: &[u8]| {
            let from_mac = list.iter().map(|&last| MacAddr([2, 0, 0, 0, 0, last])).collect();
            Matches { from_mac, ..Matches::default() }
        };
        assert!(meets(&mac(&[1, 2]), &mac(&[2, 3])) && !meets(&mac(&[1, 2]), &mac(&[3])));
        assert!(meets(&mac(&[1]), &mac(&[])));
        let many: Vec<u8> = (10..90).collect();
        assert!(meets(&mac(&[1]), &mac(&many)), "not compared");
        let to = |of: Matches| Matches { to_mac: of.from_mac, ..Matches::default() };
        assert!(!meets(&to(mac(&[1])), &to(mac(&[2]))) && meets(&to(mac(&[1])), &mac(&[2])));
        let fragment = |is| Matches { fragment: Some(is), ..Matches::default() };
        assert!(!meets(&fragment(true), &fragment(false)));
        assert!(meets(&fragment(true), &Matches::default()));
    }

    #[test]
    fn what_the_budget_does_not_allow_is_not_known() {
        let mut earlier = Earlier::new(Family::Ip4);
        earlier.push(0, &Matches::default());
        let mut budget = 1;
        assert_eq!(earlier.first(&Matches::default(), &mut budget), Some(Some(0)));
        assert_eq!(earlier.first(&Matches::default(), &mut budget), None);
    }
}
