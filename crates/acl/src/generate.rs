//! Rule sets and packets for benchmarks, in the manner of ClassBench.
//!
//! Taylor and Turner ("ClassBench: a packet classification benchmark", INFOCOM 2005) made rule sets
//! from the statistics of real ones, in three kinds. The seeds are not copied here; the shapes are:
//!
//! | kind | sources | destinations | source ports | destination ports | protocols |
//! |---|---|---|---|---|---|
//! | [`Kind::Acl`] | half any, others long | /24 to hosts | any | exact, some ranges | mostly TCP, UDP |
//! | [`Kind::Fw`] | half any, others any length | a third any | any, high, exact | any, high, ranges, exact | TCP, UDP, ICMP, any |
//! | [`Kind::Ipc`] | any length, a sixth any | any length, a sixth any | any, exact | any, exact, ranges | TCP, UDP, ICMP, any |
//!
//! Prefixes lie in few networks and nest, so that rules overlap. Rules that match fewer headers are first, so that no
//! rule is covered by an earlier one. The same arguments give the same rules and packets on every machine.
//!
//! ```
//! use acl::{Family, generate::{Kind, packets, rules}};
//!
//! let filter = rules(Kind::Fw, Family::Ip4, 1000, 7);
//! let packets = packets(&filter, Family::Ip4, 64, 1);
//! let matched = packets.iter().filter(|packet| {
//!     acl::walk(&filter, Family::Ip4, &packet.key(Family::Ip4)).is_some()
//! });
//! assert!(matched.count() >= 32);
//! ```

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use fib::synthetic::Random;
use ipnet::IpNet;
use wire::{
    checksum,
    ip::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP},
};

use crate::{Action, Family, Filter, Key, Matches, Rule};

/// The kind of rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Access lists: to single servers and services.
    Acl,
    /// Firewalls: many wildcards and port ranges.
    Fw,
    /// IP chains: a mixture of both.
    Ipc,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 3] = [Kind::Acl, Kind::Fw, Kind::Ipc];

    /// Returns `acl`, `fw` or `ipc`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Fw => "fw",
            Self::Ipc => "ipc",
        }
    }
}

/// A frame and the interface where it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Ethernet, IP and upper-layer header, 60 bytes or more.
    pub frame: Vec<u8>,
    /// Ingress interface number.
    pub interface: u16,
}

impl Packet {
    /// Returns its key as a packet of `family`.
    pub fn key(&self, family: Family) -> Key {
        match family {
            Family::Ip4 => Key::of_ip4(&self.frame, self.frame.len(), self.interface),
            Family::Ip6 => Key::of_ip6(&self.frame, self.frame.len(), self.interface),
        }
    }
}

/// Generates `size` different rules of one kind and family; each seed gives others.
pub fn rules(kind: Kind, family: Family, size: usize, seed: u64) -> Filter {
    let mut maker = Maker::new(family, size, seed);
    let mut seen = HashSet::new();
    let mut rules = Vec::with_capacity(size);
    while rules.len() < size {
        let matches = maker.matches(kind);
        if seen.insert(format!("{matches:?}")) {
            let action = if maker.random.chance(60) { Action::Accept } else { Action::Drop };
            rules.push(Rule { name: None, line: 0, matches, action });
        }
    }
    rules.sort_by(|one, other| breadth(&one.matches).total_cmp(&breadth(&other.matches)));
    rules.iter_mut().zip(1..).for_each(|(rule, line)| rule.line = line);
    let name = format!("{}-{size}", kind.name());
    Filter { name, rules, default: Action::Drop }
}

/// Returns the logarithm of the number of headers that match, minus that of all headers.
fn breadth(matches: &Matches) -> f64 {
    let nets = matches.from.iter().chain(&matches.to);
    let bits: u32 = nets.map(|net| u32::from(net.prefix_len())).sum();
    let ports = matches.from_port.iter().chain(&matches.to_port);
    let ports: f64 = ports.map(|range| (range.len() as f64).log2() - 16.0).sum();
    let protocol = if matches.protocol.is_empty() { 0.0 } else { -8.0 };
    ports + protocol - f64::from(bits)
}

/// Generates `count` packets of `family`: every second one with random headers, the others each from a random rule of
/// `filter` (which an earlier rule may match first).
pub fn packets(filter: &Filter, family: Family, count: usize, seed: u64) -> Vec<Packet> {
    let mut random = Random::new(seed);
    let anything = Matches::default();
    let packet = |at| {
        let sampled = at % 2 == 1 && !filter.rules.is_empty();
        let matches = match sampled {
            true => &filter.rules[random.below(filter.rules.len() as u64) as usize].matches,
            false => &anything,
        };
        sample(matches, family, &mut random)
    };
    (0..count).map(packet).collect()
}

/// Returns a random port of a range.
fn port(range: &RangeInclusive<u16>, random: &mut Random) -> u16 {
    let (low, high) = (u64::from(*range.start()), u64::from(*range.end()));
    (low + random.below(high - low + 1)) as u16
}

/// Well-known destination ports; the first ones are the most frequent.
const SERVICES: [u16; 20] = [
    80, 443, 53, 22, 25, 1521, 123, 161, 389, 445, 1433, 3306, 110, 143, 21, 23, 179, 514, 5432,
    8080,
];

struct Maker {
    family: Family,
    random: Random,
    /// Networks that contain the prefixes.
    sites: Vec<IpNet>,
}

impl Maker {
    fn new(family: Family, size: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = (size / 20).clamp(4, 200);
        let sites = (0..count).map(|_| site(family, &mut random)).collect();
        Self { family, random, sites }
    }

    fn matches(&mut self, kind: Kind) -> Matches {
        let any_from = [50, 50, 16][kind as usize];
        let any_to = [2, 33, 16][kind as usize];
        let shortest = [24, 8, 12][kind as usize];
        let mut matches = Matches { family: Some(self.family), ..Matches::default() };
        matches.from = self.prefixes(any_from, shortest);
        matches.to = self.prefixes(any_to, shortest);
        matches.protocol = self.protocol(kind);
        if [vec![PROTOCOL_TCP], vec![PROTOCOL_UDP]].contains(&matches.protocol) {
            matches.from_port = self.source_ports(kind);
            matches.to_port = self.destination_ports(kind);
        }
        matches
    }

    /// Generates no prefix in `any` of 100 cases; otherwise one, mostly long, of at least `shortest` bits of 32.
    fn prefixes(&mut self, any: u64, shortest: u64) -> Vec<IpNet> {
        if self.random.chance(any) {
            return Vec::new();
        }
        let length = match self.random.below(100) {
            0..45 => 32,
            45..75 => 24 + self.random.below(8),
            _ => shortest + self.random.below(33 - shortest),
        };
        let site = *self.random.pick(&self.sites);
        let length = match self.family {
            Family::Ip4 => length,
            // Networks end at /64, hosts at /128.
            Family::Ip6 if length == 32 => 128,
            Family::Ip6 => 2 * length,
        };
        vec![within(site, length as u8, &mut self.random)]
    }

    fn protocol(&mut self, kind: Kind) -> Vec<u8> {
        let icmp = match self.family {
            Family::Ip4 => PROTOCOL_ICMP,
            Family::Ip6 => PROTOCOL_ICMPV6,
        };
        let [tcp, udp, any] = [[75, 93, 97], [50, 75, 90], [50, 75, 85]][kind as usize];
        match self.random.below(100) {
            share if share < tcp => vec![PROTOCOL_TCP],
            share if share < udp => vec![PROTOCOL_UDP],
            share if share < any => Vec::new(),
            _ => vec![icmp],
        }
    }

    fn source_ports(&mut self, kind: Kind) -> Vec<RangeInclusive<u16>> {
        let [any, high] = [[98, 99], [65, 85], [70, 80]][kind as usize];
        match self.random.below(100) {
            share if share < any => Vec::new(),
            share if share < high => vec![1024..=65535],
            _ => self.service(),
        }
    }

    fn destination_ports(&mut self, kind: Kind) -> Vec<RangeInclusive<u16>> {
        let [any, high, arbitrary] = [[8, 14, 24], [25, 45, 65], [30, 38, 50]][kind as usize];
        match self.random.below(100) {
            share if share < any => Vec::new(),
            share if share < high => vec![1024..=65535],
            share if share < arbitrary => {
                let low = 1024 + self.random.below(40_000) as u16;
                vec![low..=low + 1 + self.random.below(2000) as u16]
            }
            _ => self.service(),
        }
    }

    fn service(&mut self) -> Vec<RangeInclusive<u16>> {
        let port = match self.random.below(4) {
            0 => 1024 + self.random.below(30_000) as u16,
            1 => SERVICES[self.random.below(20) as usize],
            _ => SERVICES[self.random.below(6) as usize],
        };
        vec![port..=port]
    }
}

/// Generates a network of 8 to 16 bits (IPv4), or 32 to 44 bits in 2000::/3 (IPv6).
fn site(family: Family, random: &mut Random) -> IpNet {
    let net = match family {
        Family::Ip4 => {
            let first = 1 + random.below(222) as u32;
            let address = first << 24 | random.word() as u32 >> 8;
            IpNet::new(Ipv4Addr::from_bits(address).into(), 8 + random.below(9) as u8)
        }
        Family::Ip6 => {
            let address = random.wide() >> 3 | 1 << 125;
            IpNet::new(Ipv6Addr::from_bits(address).into(), 32 + random.below(13) as u8)
        }
    };
    net.expect("lengths fit the family").trunc()
}

/// Generates a prefix of `length` bits in `site`, or around it if `length` is shorter.
fn within(site: IpNet, length: u8, random: &mut Random) -> IpNet {
    IpNet::new(address_in(&site, random), length).expect("lengths fit the family").trunc()
}

fn address_in(net: &IpNet, random: &mut Random) -> IpAddr {
    match net {
        IpNet::V4(net) => {
            let host = random.word() as u32 & net.hostmask().to_bits();
            Ipv4Addr::from_bits(net.network().to_bits() | host).into()
        }
        IpNet::V6(net) => {
            let host = random.wide() & net.hostmask().to_bits();
            Ipv6Addr::from_bits(net.network().to_bits() | host).into()
        }
    }
}

/// Generates a packet that `matches`, as far as addresses, protocol, ports, ICMP type and flags are concerned.
fn sample(matches: &Matches, family: Family, random: &mut Random) -> Packet {
    let icmp = [PROTOCOL_ICMP, PROTOCOL_ICMPV6][family as usize];
    let protocols = [PROTOCOL_TCP, PROTOCOL_TCP, PROTOCOL_UDP, icmp];
    let protocol = match matches.protocol.is_empty() {
        true => *random.pick(&protocols),
        false => *random.pick(&matches.protocol),
    };
    let from = address(&matches.from, family, random);
    let to = address(&matches.to, family, random);
    let upper = upper(matches, random, protocol);
    let interface = match matches.interface.is_empty() {
        true => random.below(8) as u16,
        false => *random.pick(&matches.interface),
    };
    let frame = match family {
        Family::Ip4 => ip4(&from, &to, protocol, &upper),
        Family::Ip6 => ip6(&from, &to, protocol, &upper),
    };
    Packet { frame, interface }
}

/// Returns the bytes of an address of `family` in one of the prefixes.
fn address(nets: &[IpNet], family: Family, random: &mut Random) -> Vec<u8> {
    let nets: Vec<&IpNet> = nets.iter().filter(|net| Family::of(net) == family).collect();
    let address = match nets.is_empty() {
        true => address_in(&site(family, random), random),
        false => {
            let net = **random.pick(&nets);
            address_in(&net, random)
        }
    };
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns 20 bytes that are a header of any protocol; its checksum is not computed.
fn upper(matches: &Matches, random: &mut Random, protocol: u8) -> [u8; 20] {
    let mut header = [0; 20];
    if [PROTOCOL_ICMP, PROTOCOL_ICMPV6].contains(&protocol) {
        header[0] = match matches.icmp.is_empty() {
            true => random.word() as u8,
            false => *random.pick(&matches.icmp),
        };
        return header;
    }
    for (at, ranges) in [(0, &matches.from_port), (2, &matches.to_port)] {
        let port = match ranges.is_empty() {
            true => random.word() as u16,
            false => {
                let range = random.pick(ranges).clone();
                port(&range, random)
            }
        };
        header[at..at + 2].copy_from_slice(&port.to_be_bytes());
    }
    header[12] = 0x50;
    let flags = random.word() as u8;
    header[13] = matches.flags.map_or(flags, |bits| flags & !bits.mask | bits.value);
    if protocol == PROTOCOL_UDP {
        header[4..8].copy_from_slice(&[0, 20, 0, 0]);
    }
    header
}

fn ip4(from: &[u8], to: &[u8], protocol: u8, upper: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 20 + upper.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0];
    ip.extend_from_slice(from);
    ip.extend_from_slice(to);
    let sum = checksum::checksum(&ip).to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    ethernet(0x0800, &[&ip, upper].concat())
}

fn ip6(from: &[u8], to: &[u8], protocol: u8, upper: &[u8]) -> Vec<u8> {
    let ip = [0x60, 0, 0, 0, 0, upper.len() as u8, protocol, 64];
    ethernet(0x86dd, &[&ip, from, to, upper].concat())
}

fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    frame.extend(ethertype.to_be_bytes());
    frame.extend_from_slice(packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{rte, walk, warnings};

    #[test]
    fn sets_are_reproducible_whole_and_without_faults() {
        for family in Family::ALL {
            for kind in Kind::ALL {
                let filter = rules(kind, family, 300, 1);
                assert_eq!(filter.rules.len(), 300);
                assert_eq!(filter.check(), []);
                assert_eq!(warnings(&filter), []);
                assert_eq!(filter, rules(kind, family, 300, 1));
                assert_ne!(filter, rules(kind, family, 300, 2));
            }
        }
    }

    #[test]
    fn half_of_the_packets_match_their_rule() {
        for (family, kind) in Family::ALL.into_iter().flat_map(|f| Kind::ALL.map(|k| (f, k))) {
            let filter = rules(kind, family, 100, 3);
            let compiled = rte::compile(&filter, family).unwrap();
            let packets = packets(&filter, family, 400, 4);
            for (at, packet) in packets.iter().enumerate() {
                let key = packet.key(family);
                let found = walk(&filter, family, &key);
                let entry = compiled.find(&rte::bytes(&key, family));
                assert_eq!(entry, found.map(|at| at as u32), "{packet:?}");
                assert!(key.has_upper_layer() && !key.is_fragment(), "{packet:?}");
                assert!(found.is_some() || at % 2 == 0, "{kind:?} {packet:?}");
            }
        }
    }

    #[test]
    fn frames_are_valid() {
        let packets = packets(&rules(Kind::Acl, Family::Ip4, 50, 5), Family::Ip4, 50, 6);
        for packet in packets {
            assert_eq!(packet.frame.len(), 60);
            assert_eq!(checksum::checksum(&packet.frame[14..34]), 0);
        }
    }
}
