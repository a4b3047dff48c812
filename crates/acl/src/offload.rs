//! Rules that a device can hold, to drop packets before software sees them, or to bring them to a receive queue.
//!
//! A device gets dropping rules as patterns. All rules stay in software as well, so a packet that the device
//! misses meets them there; but the device must never drop a packet that the filter would not. Therefore
//!
//! * a rule is left to it only if no earlier rule that does anything but drop may match the same packet, by a
//!   comparison that errs towards yes ([`overlap`](crate::shadow::overlap));
//! * rules with ports, flags or ICMP types are left to it for whole packets. Where IPv6 has extension headers,
//!   fragments among them, no pattern fits: each names the next header of the fixed header;
//! * packets exempt from the filter match no pattern: neighbour discovery (RFC 4861: ICMPv6 types 133 to 137
//!   with hop limit 255), and those in [`Port::unfiltered`].
//!
//! A rule that selects forwarders is left to the device as well, which brings its packets to queues of these forwarders.
//! Nothing is decided by that, as the packets meet all rules in software; packets that the device brings elsewhere are
//! handed over there. So such a rule may fit packets exempt from the filter, but not those of an earlier rule that does
//! anything but drop: these would go to the wrong forwarder first.
//!
//! So patterns are narrower than rules: an IPv6 rule without a protocol is left to the device for TCP and UDP.
//! Lists become patterns for each of their combinations, ranges become masks.
//!
//! MACs and the tags of the interface are part of a rule's patterns ([`Offload::links`]): those of a VLAN have its tags,
//! those of a port with VLANs none. A rule with priorities has them in the outer tag; on a port's own interface, frames
//! without a tag have priority 0, and those with a priority tag (VLAN 0) its priority.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use wire::MacAddr;
use wire::ethernet::ETHERTYPE_VLAN;
use wire::ip::{
    PROTOCOL_AUTHENTICATION, PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP,
    PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_ROUTING, PROTOCOL_TCP, PROTOCOL_UDP,
};
use wire::pattern::{Addresses, Frames, Link, Masked, Pattern, Tag, Tags, Traffic, Upper};

use crate::conditions::merge;
use crate::shadow::overlap::Earlier;
use crate::text::PROTOCOL_SCTP;
use crate::{Action, Bits, Family, Filter, Matches};

/// The most patterns of a rule.
pub const PATTERNS: usize = 64;

/// Prefixes that are looked at whether they make up fewer.
const PREFIXES: usize = 16 * PATTERNS;

/// The most patterns of a filter.
pub const PATTERNS_OF_FILTER: usize = 16_384;

/// Comparisons of rules with earlier ones, for one filter and family.
pub const BUDGET: usize = 500_000;

/// IPv6's headers that others can follow.
const EXTENSIONS: [u8; 5] = [
    PROTOCOL_HOP_BY_HOP,
    PROTOCOL_ROUTING,
    PROTOCOL_FRAGMENT,
    PROTOCOL_AUTHENTICATION,
    PROTOCOL_DESTINATION_OPTIONS,
];

/// The bits of a VLAN tag's control information with the priority, and those with the identifier.
const PRIORITY: u16 = 0xe000;
const ID: u16 = 0x0fff;

/// Types of neighbour discovery's messages.
const DISCOVERY: RangeInclusive<u8> = 133..=137;

/// The interface of a port whose device is to hold rules.
#[derive(Clone, Debug, Default)]
pub struct Port {
    /// The number of the interface that has the filter: rules may name others.
    pub interface: u16,
    /// The tags of that interface's frames.
    pub tags: Tags,
    /// Packets received on it that are exempt from its filter, except discovery, with their names.
    pub unfiltered: Vec<(Matches, &'static str)>,
}

/// The parts of a rule that a device can do and cannot do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Patterns of the packets that it drops or brings to forwarders.
    pub patterns: Vec<Pattern>,
    /// Ethertypes of frames other than IP packets that it drops or brings to forwarders.
    pub frames: Vec<u16>,
    /// The Ethernet headers with which each of these counts.
    pub links: Vec<Link>,
    /// True: the packets are for forwarders that the rule selects; false: they are dropped.
    pub steers: bool,
    /// The parts that it cannot do, by family, and why.
    pub kept: Vec<(Family, Kept)>,
}

impl Offload {
    /// Returns all frames that it drops or brings to forwarders.
    pub fn all(&self) -> impl Iterator<Item = Frames> {
        let frames = self.frames.iter().copied().map(Traffic::EtherType);
        let traffics = self.patterns.iter().copied().map(Traffic::Ip).chain(frames);
        traffics.flat_map(|traffic| self.links.iter().map(move |&link| Frames { link, traffic }))
    }
}

/// The effects of a rule beyond its action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treated {
    /// An effect on packets that only software has: `log`, `police`, …
    pub by_software: Option<&'static str>,
    /// True if it selects forwarders for packets that it lets pass.
    pub steers: bool,
}

/// The reason for which a rule stays in software.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The rule's action is not drop, and it selects no forwarders.
    Action,
    /// The rule does more than drop: `log`, `police`, …
    Treated(&'static str),
    /// A condition that devices do not support.
    Condition(&'static str),
    /// Ports of this protocol.
    Ports(u8),
    /// The rule is for other ports.
    OtherPorts,
    /// The rule matches neighbour discovery only.
    Discovery,
    /// The rule matches after extension headers only.
    Extension,
    /// This earlier rule may match the same packets: its name in messages.
    Earlier(String),
    /// The rule would drop packets that are not filtered.
    Unfiltered(&'static str),
    /// The rule takes this many patterns.
    Many(usize),
    /// The rules before it in the filter take all that there may be.
    Full,
    /// There are too many rules before it to be compared with.
    Far,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Action => write!(f, "a device only drops, or brings packets to a forwarder"),
            Self::Treated(what) => write!(f, "{what} is software's"),
            Self::Condition(what) => write!(f, "devices do not look at {what}"),
            Self::Ports(number) => {
                let name = crate::text::protocol_name(*number);
                write!(f, "devices do not look at ports of {name}")
            }
            Self::OtherPorts => write!(f, "it is for other ports"),
            Self::Discovery => write!(f, "neighbour discovery is not filtered"),
            Self::Extension => write!(f, "devices do not look behind extension headers"),
            Self::Earlier(rule) => write!(f, "{rule} comes first and may fit the same packets"),
            Self::Unfiltered(what) => write!(f, "it may fit {what}, which is not filtered"),
            Self::Many(count) => {
                write!(f, "it takes {count} device rules; at most {PATTERNS}: make it narrower")
            }
            Self::Full => write!(f, "the rules before it take {PATTERNS_OF_FILTER} device rules"),
            Self::Far => write!(f, "too many rules come first to be compared with it; move it up"),
        }
    }
}

/// Returns the parts of each rule of a port's filter that its device can do; `treated` returns a rule's effects
/// beyond its action.
pub fn offload(filter: &Filter, treated: impl Fn(usize) -> Treated, port: &Port) -> Vec<Offload> {
    let mut offloads = vec![Offload::default(); filter.rules.len()];
    frames(filter, &treated, port, &mut offloads);
    let mut room = PATTERNS_OF_FILTER;
    for family in Family::ALL {
        let mut search = Search::new(family, port);
        let rules = filter.rules.iter().enumerate().zip(&mut offloads);
        for ((at, rule), offload) in rules.filter(|((_, rule), _)| rule.matches.allows(family)) {
            let interface = &rule.matches.interface;
            let Treated { by_software, steers } = treated(at);
            let passes = matches!(rule.action, Action::Accept | Action::Continue);
            offload.steers = steers && passes;
            let kept = match (rule.action, by_software) {
                _ if !interface.is_empty() && !interface.contains(&port.interface) => {
                    offload.kept.push((family, Kept::OtherPorts));
                    continue;
                }
                _ if offload.steers => None,
                (Action::Drop, None) => None,
                (Action::Drop, Some(what)) => Some(Kept::Treated(what)),
                _ => Some(Kept::Action),
            };
            if let Some(kept) = kept {
                search.earlier.push(at, &rule.matches);
                offload.kept.push((family, kept));
                continue;
            }
            let drops = !offload.steers;
            let found = search.patterns(filter, (&rule.matches, drops), family);
            let found = found.and_then(|patterns| {
                offload.links = links(&rule.matches, port.tags).map_err(Kept::Many)?;
                let count = patterns.len() * offload.links.len();
                (count <= PATTERNS).then_some(()).ok_or(Kept::Many(count))?;
                room = room.checked_sub(count).ok_or(Kept::Full)?;
                Ok(patterns)
            });
            if !drops {
                search.earlier.push(at, &rule.matches);
            }
            match found {
                Ok(patterns) => offload.patterns.extend(patterns),
                Err(kept) => offload.kept.push((family, kept)),
            }
        }
    }
    offloads
}

/// Offloads rules for frames other than IP packets.
fn frames(
    filter: &Filter,
    treated: &impl Fn(usize) -> Treated,
    port: &Port,
    offloads: &mut [Offload],
) {
    // Rules that do anything but drop.
    let mut earlier: Vec<usize> = Vec::new();
    let rules = filter.rules.iter().enumerate().zip(offloads);
    for ((at, rule), offload) in rules.filter(|((_, rule), _)| !rule.matches.is_ip()) {
        let Treated { by_software, steers } = treated(at);
        offload.steers = steers && rule.action == Action::Accept;
        let of = &rule.matches;
        let meets = |other: &&usize| frames_meet(of, &filter.rules[**other].matches);
        let is_for_others = !of.interface.is_empty() && !of.interface.contains(&port.interface);
        let links = links(of, port.tags);
        let count = links.as_ref().map_or_else(|count| *count, Vec::len) * of.ethertype.len();
        let kept = match (rule.action, by_software) {
            _ if is_for_others => Some(Kept::OtherPorts),
            (Action::Drop, Some(what)) => Some(Kept::Treated(what)),
            (action, _) if action != Action::Drop && !offload.steers => Some(Kept::Action),
            _ if count > PATTERNS => Some(Kept::Many(count)),
            _ => earlier.iter().find(meets).map(|rule| Kept::Earlier(filter.label(*rule))),
        };
        let only_drops = rule.action == Action::Drop && by_software.is_none();
        if !only_drops && !is_for_others {
            earlier.push(at);
        }
        match kept {
            None => {
                offload.frames.clone_from(&of.ethertype);
                offload.links = links.unwrap_or_default();
            }
            Some(kept) => offload.kept = Family::ALL.map(|family| (family, kept.clone())).into(),
        }
    }
}

/// Returns true if a frame other than an IP packet may match both, whatever its interface.
fn frames_meet(one: &Matches, other: &Matches) -> bool {
    share(&one.ethertype, &other.ethertype)
        && meet(&one.from_mac, &other.from_mac)
        && meet(&one.to_mac, &other.to_mac)
        && meet(&one.priority, &other.priority)
}

/// Returns true if a value may be in both lists, of which an empty one has all values.
fn meet<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.is_empty() || other.is_empty() || share(one, other)
}

fn share<T: PartialEq>(one: &[T], other: &[T]) -> bool {
    one.iter().any(|value| other.contains(value))
}

/// Returns the Ethernet headers of frames that match a rule on an interface whose frames have these tags, one for each
/// combination; if these are too many for a device, their number.
fn links(matches: &Matches, tags: Tags) -> Result<Vec<Link>, usize> {
    let tags = with_priorities(&matches.priority, tags);
    let counts = [matches.from_mac.len().max(1), matches.to_mac.len().max(1)];
    let count = counts.iter().fold(tags.len(), |all, count| all.saturating_mul(*count));
    if count > PATTERNS {
        return Err(count);
    }
    let (sources, destinations) = (macs(&matches.from_mac), macs(&matches.to_mac));
    let links = pairs(&pairs(&sources, &destinations), &tags).into_iter();
    Ok(links.map(|((source, destination), tags)| Link { source, destination, tags }).collect())
}

fn macs(list: &[MacAddr]) -> Vec<Option<MacAddr>> {
    let mut macs: Vec<_> = list.iter().copied().map(Some).collect();
    macs.sort_unstable();
    macs.dedup();
    if macs.is_empty() { vec![None] } else { macs }
}

/// Returns the tags of an interface's frames that have one of these priorities.
fn with_priorities(priorities: &[u8], tags: Tags) -> Vec<Tags> {
    if priorities.is_empty() {
        return vec![tags];
    }
    let of = |priority: u8, tag: Tag| {
        let Masked { value, mask } = tag.control;
        let control = Masked { value: value | u16::from(priority) << 13, mask: mask | PRIORITY };
        Tag { control, ..tag }
    };
    let for_priority = Tag { protocol: ETHERTYPE_VLAN, control: Masked { value: 0, mask: ID } };
    let with = |priority: u8| match tags {
        Tags::Any | Tags::None => Tags::One(of(priority, for_priority)),
        Tags::One(tag) => Tags::One(of(priority, tag)),
        Tags::Two(outer, inner) => Tags::Two(of(priority, outer), inner),
    };
    let mut with: Vec<Tags> = each(priorities, tags, with);
    if matches!(tags, Tags::Any | Tags::None) && priorities.contains(&0) {
        with.push(Tags::None);
    }
    with
}

struct Search<'p> {
    /// Rules that do anything but drop.
    earlier: Earlier,
    budget: usize,
    unfiltered: Earlier,
    port: &'p Port,
}

impl<'p> Search<'p> {
    fn new(family: Family, port: &'p Port) -> Self {
        let mut unfiltered = Earlier::new(family);
        for (place, (matches, _)) in port.unfiltered.iter().enumerate() {
            unfiltered.push(place, matches);
        }
        Self { earlier: Earlier::new(family), budget: BUDGET, unfiltered, port }
    }

    /// The patterns of a rule that drops, or selects a forwarder.
    fn patterns(
        &mut self,
        filter: &Filter,
        (matches, drops): (&Matches, bool),
        family: Family,
    ) -> Result<Vec<Pattern>, Kept> {
        let Some(matches) = narrowed(matches, family)? else { return Ok(Vec::new()) };
        let patterns = patterns(&matches, family)?;
        match self.earlier.first(&matches, &mut self.budget) {
            None => return Err(Kept::Far),
            Some(Some(rule)) => return Err(Kept::Earlier(filter.label(rule))),
            Some(None) => {}
        }
        if !drops {
            return Ok(patterns);
        }
        let mut enough = usize::MAX;
        match self.unfiltered.first(&matches, &mut enough) {
            Some(None) => Ok(patterns),
            Some(Some(place)) => Err(Kept::Unfiltered(self.port.unfiltered[place].1)),
            None => Err(Kept::Far),
        }
    }
}

/// Returns the part of a rule that patterns can express; `None`: no packet of the family matches it.
fn narrowed(matches: &Matches, family: Family) -> Result<Option<Matches>, Kept> {
    // A new condition must be handled here.
    let Matches {
        family: _,
        ethertype: _,
        from: _,
        to: _,
        from_set,
        to_set,
        from_mac: _,
        to_mac: _,
        priority: _,
        protocol,
        from_port,
        to_port,
        flags: _,
        icmp,
        fragment,
        later,
        dscp: _,
        ttl,
        length,
        interface: _,
        state,
        routing,
        extension,
    } = matches;
    if !routing.is_empty() || !extension.is_empty() {
        return Err(Kept::Condition("extension headers"));
    }
    if *fragment == Some(true) || later.is_some() {
        return Err(Kept::Condition("fragments"));
    }
    if length.is_some() {
        return Err(Kept::Condition("lengths"));
    }
    if !from_set.is_empty() || !to_set.is_empty() {
        return Err(Kept::Condition("sets"));
    }
    if !state.is_empty() {
        return Err(Kept::Condition("connections"));
    }
    let has_ports = !from_port.is_empty() || !to_port.is_empty();
    const WITH_PORTS: [u8; 3] = [PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_SCTP];
    if let (true, Some(other)) = (has_ports, protocol.iter().find(|of| !WITH_PORTS.contains(of))) {
        return Err(Kept::Ports(*other));
    }
    let mut narrow = matches.clone();
    if matches.needs_upper_layer() {
        narrow.fragment = Some(false);
    }
    let other_icmp = match family {
        Family::Ip4 => PROTOCOL_ICMPV6,
        Family::Ip6 => PROTOCOL_ICMP,
    };
    if !icmp.is_empty() && protocol.contains(&other_icmp) {
        return Ok(None);
    }
    if family == Family::Ip4 {
        return Ok(Some(narrow));
    }
    narrow.fragment = Some(false);
    narrow.protocol.retain(|protocol| !EXTENSIONS.contains(protocol));
    match (protocol.is_empty(), narrow.protocol.is_empty()) {
        (true, _) => narrow.protocol = vec![PROTOCOL_TCP, PROTOCOL_UDP],
        (false, true) => return Err(Kept::Extension),
        (false, false) => {}
    }
    if narrow.protocol.contains(&PROTOCOL_ICMPV6)
        && (icmp.is_empty() || icmp.iter().any(|kind| DISCOVERY.contains(kind)))
    {
        let given = ttl.clone().unwrap_or(0..=u8::MAX);
        narrow.ttl = Some(*given.start()..=(*given.end()).min(u8::MAX - 1));
        if narrow.ttl.as_ref().is_some_and(RangeInclusive::is_empty) {
            return Err(Kept::Discovery);
        }
    }
    Ok(Some(narrow))
}

/// Returns a pattern for each combination of the lists in [`narrowed`] conditions.
fn patterns(matches: &Matches, family: Family) -> Result<Vec<Pattern>, Kept> {
    let ports = |list: &[RangeInclusive<u16>]| match list {
        [] => vec![Masked::default()],
        list => merge(list.to_vec()).iter().flat_map(|range| split(range, 16)).collect(),
    };
    let (from_ports, to_ports) = (ports(&matches.from_port), ports(&matches.to_port));
    let ttl = matches.ttl.as_ref().map(|ttl| u16::from(*ttl.start())..=u16::from(*ttl.end()));
    let ttls: Vec<Masked<u8>> = match ttl {
        None => vec![Masked::default()],
        Some(range) => split(&range, 8).into_iter().map(byte).collect(),
    };
    let classes =
        each(&matches.dscp, Masked::default(), |dscp| Masked { value: dscp << 2, mask: 0xfc });
    let protocols = each(&matches.protocol, None, Some);
    let Bits { value, mask } = matches.flags.unwrap_or(Bits { value: 0, mask: 0 });
    let flags = Masked { value, mask };
    let has_ports =
        !matches.from_port.is_empty() || !matches.to_port.is_empty() || matches.flags.is_some();
    let mut uppers = match has_ports {
        false => each(&matches.icmp, Upper::Any, Upper::Icmp),
        true => Vec::new(),
    };
    if has_ports {
        for &from in &from_ports {
            uppers.extend(to_ports.iter().map(|&to| Upper::Ports { from, to, flags }));
        }
    }
    let most = matches.from.len().max(matches.to.len());
    if most > PREFIXES {
        return Err(Kept::Many(most));
    }
    let (sources, destinations) = (nets(&matches.from, family), nets(&matches.to, family));
    let counts = [sources.len(), destinations.len(), ttls.len(), classes.len(), protocols.len()];
    let count = counts.iter().fold(uppers.len(), |all, count| all.saturating_mul(*count));
    if count > PATTERNS {
        return Err(Kept::Many(count));
    }
    let whole = family == Family::Ip4 && matches.fragment == Some(false);
    let mut patterns = Vec::with_capacity(count);
    for (source, destination) in pairs(&sources, &destinations) {
        let addresses = match family {
            Family::Ip4 => Addresses::Ip4 { source: word(source), destination: word(destination) },
            Family::Ip6 => Addresses::Ip6 { source, destination },
        };
        for ((class, ttl), (protocol, upper)) in
            pairs(&pairs(&classes, &ttls), &pairs(&protocols, &uppers))
        {
            patterns.push(Pattern { addresses, class, ttl, protocol, whole, upper });
        }
    }
    Ok(patterns)
}

fn pairs<A: Copy, B: Copy>(ones: &[A], others: &[B]) -> Vec<(A, B)> {
    ones.iter().flat_map(|&one| others.iter().map(move |&other| (one, other))).collect()
}

/// Returns the distinct results of `make` over a list; `none` for an empty one.
fn each<T>(list: &[u8], none: T, make: impl Fn(u8) -> T) -> Vec<T> {
    let mut values = list.to_vec();
    values.sort_unstable();
    values.dedup();
    if values.is_empty() { vec![none] } else { values.into_iter().map(make).collect() }
}

/// The prefixes of a family that no other one contains; all addresses if there are no prefixes at all.
fn nets(list: &[IpNet], family: Family) -> Vec<Masked<u128>> {
    if list.is_empty() {
        return vec![Masked::default()];
    }
    let of_family = list.iter().filter(|net| Family::of(net) == family).copied();
    let masked = |net: IpNet| match (net.network(), net.netmask()) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => {
            Masked { value: address.to_bits().into(), mask: mask.to_bits().into() }
        }
        (IpAddr::V6(address), IpAddr::V6(mask)) => {
            Masked { value: address.to_bits(), mask: mask.to_bits() }
        }
        _ => Masked::default(),
    };
    IpNet::aggregate(&of_family.collect()).into_iter().map(masked).collect()
}

fn word(address: Masked<u128>) -> Masked<u32> {
    Masked { value: address.value as u32, mask: address.mask as u32 }
}

fn byte(number: Masked<u16>) -> Masked<u8> {
    Masked { value: number.value as u8, mask: number.mask as u8 }
}

/// The values of a range of numbers of so many bits, as few masks.
fn split(range: &RangeInclusive<u16>, bits: u32) -> Vec<Masked<u16>> {
    let (mut next, end) = (u32::from(*range.start()), u32::from(*range.end()));
    let mut masks = Vec::new();
    while next <= end {
        // The largest block that begins here and does not go beyond the end.
        let aligned = if next == 0 { bits } else { next.trailing_zeros() };
        let fitting = (end - next + 1).ilog2();
        let size = 1u32 << aligned.min(fitting);
        let all = (1u32 << bits) - 1;
        masks.push(Masked { value: next as u16, mask: (all & !(size - 1)) as u16 });
        next += size;
    }
    masks
}

#[cfg(test)]
mod tests;
