//! Rules, and the faults that a rule can have by itself.

use std::{fmt, ops::RangeInclusive};

use ipnet::IpNet;
use wire::MacAddr;
use wire::ip::{
    IPV4_MIN_LEN, IPV6_LEN, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
};

use crate::text::{self, PROTOCOL_DCCP, PROTOCOL_SCTP, PROTOCOL_UDPLITE};

/// Protocols whose header begins with two ports (RFC 768, 9293, 3828, 9260, 4340).
pub(crate) const WITH_PORTS: [u8; 5] =
    [PROTOCOL_TCP, PROTOCOL_UDP, PROTOCOL_UDPLITE, PROTOCOL_SCTP, PROTOCOL_DCCP];

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ip4,
    /// IPv6.
    Ip6,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::Ip4, Family::Ip6];

    /// The family of a prefix.
    pub fn of(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::Ip4,
            IpNet::V6(_) => Self::Ip6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Ip4 => "IPv4",
            Self::Ip6 => "IPv6",
        })
    }
}

/// A list of rules; the first that matches a packet decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The name, for messages.
    pub name: String,
    /// The rules, first one first.
    pub rules: Vec<Rule>,
    /// The action for packets that no terminal rule matches.
    pub default: Action,
}

/// One rule of a [`Filter`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The operator's name for it.
    pub name: Option<String>,
    /// Its line in the configuration.
    pub line: u32,
    /// The packets it applies to.
    pub matches: Matches,
    /// The action on them.
    pub action: Action,
}

/// The end of a packet that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet passes.
    Accept,
    /// The packet is dropped silently.
    Drop,
    /// The packet is dropped and its sender gets an ICMP error or a TCP reset.
    Reject,
    /// The packet is passed to the host's own stack.
    ToHost,
    /// The next rule is tried, after this one has counted, policed or marked.
    Continue,
}

impl Action {
    /// True if it ends the search.
    pub fn is_terminal(self) -> bool {
        self != Self::Continue
    }
}

/// Conditions of a rule. All must hold; an empty list or `None` holds for any packet, and a list
/// holds if one of its elements does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// The IP version.
    pub family: Option<Family>,
    /// Source prefixes. Families may be mixed: each prefix counts for packets of its own family,
    /// and a packet of a family without prefixes does not match.
    pub from: Vec<IpNet>,
    /// Destination prefixes, as `from`.
    pub to: Vec<IpNet>,
    /// Names of sets; the source is in one of them.
    pub from_set: Vec<String>,
    /// Names of sets; the destination is in one of them.
    pub to_set: Vec<String>,
    /// Ethertypes (IEEE 802) of frames that are neither IPv4 nor IPv6; an empty list is for IP
    /// packets. Valid with MACs and interfaces only.
    pub ethertype: Vec<u16>,
    /// Source MACs of frames.
    pub from_mac: Vec<MacAddr>,
    /// MACs that frames come to.
    pub to_mac: Vec<MacAddr>,
    /// Priority code points of frames' VLAN tags (IEEE 802.1Q, 6.9.3), 0 to 7; a frame without a tag has 0.
    pub priority: Vec<u8>,
    /// Upper-layer protocols; for IPv6 the one after the extension headers.
    pub protocol: Vec<u8>,
    /// Source ports; needs protocols that have ports.
    pub from_port: Vec<RangeInclusive<u16>>,
    /// Destination ports; needs protocols that have ports.
    pub to_port: Vec<RangeInclusive<u16>>,
    /// TCP flags (RFC 9293, 3.1): "syn,!ack" is value 0x02, mask 0x12. Needs protocol TCP.
    pub flags: Option<Bits>,
    /// ICMP or ICMPv6 types; needs the one protocol (1 or 58).
    pub icmp: Vec<u8>,
    /// True: the first or a later fragment of a fragmented packet. False: a whole packet, IPv6
    /// atomic fragments (RFC 6946) included.
    pub fragment: Option<bool>,
    /// True: a later fragment, also one that has the header of the first one. False: none.
    pub later: Option<bool>,
    /// DSCP values (RFC 2474), 0 to 63.
    pub dscp: Vec<u8>,
    /// Time to live or hop limit.
    pub ttl: Option<RangeInclusive<u8>>,
    /// IP length in bytes, header included, padding of the frame excluded.
    pub length: Option<RangeInclusive<u16>>,
    /// Ingress interface numbers.
    pub interface: Vec<u16>,
    /// The state of the packet's connection.
    pub state: Vec<State>,
    /// Types of IPv6 routing headers (RFC 8200, 4.4); the packet has one of such a type.
    pub routing: Vec<u8>,
    /// IPv6 extension headers; the packet has one of these.
    pub extension: Vec<Extension>,
}

/// An IPv6 extension header that packets may have (RFC 8200, 4.1), or too many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Extension {
    /// Hop-by-hop options (0).
    HopByHop,
    /// A routing header (43) of any type.
    Routing,
    /// A fragment header (44), that of an atomic fragment included.
    Fragment,
    /// An authentication header (51).
    Authentication,
    /// Destination options (60).
    DestinationOptions,
    /// More headers than [`crate::key::MAX_HEADERS`]: later ones are not seen.
    TooMany,
}

impl Extension {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::HopByHop,
        Self::Routing,
        Self::Fragment,
        Self::Authentication,
        Self::DestinationOptions,
        Self::TooMany,
    ];

    /// Its bit in a set.
    pub(crate) fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The state of a packet's connection; without connection tracking every packet is [`State::New`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No packet has passed in the other direction.
    #[default]
    New = 0,
    /// Packets have been let pass in the other direction.
    Established = 1,
    /// An ICMP error about a packet that was let pass.
    Related = 2,
}

/// Bits that must have a value: `field & mask == value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// The bits' values; zero outside `mask`.
    pub value: u8,
    /// The bits compared.
    pub mask: u8,
}

/// Consequences of the conditions of a rule without faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Implied {
    /// Families of the packets that can match; none of a rule with Ethertypes.
    pub families: Vec<Family>,
    /// True if only packets match whose upper-layer header is whole: a rule with ports, flags or
    /// ICMP types.
    pub upper_layer: bool,
}

/// A fault in the conditions of one rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Ports without a protocol.
    #[error("{field} = {ports}: ports need proto: add proto = \"tcp\" or proto = \"udp\"")]
    PortsNeedProto {
        /// The field with the ports.
        field: &'static str,
        /// The ports.
        ports: String,
    },
    /// Ports with a protocol that has none.
    #[error(
        "{field} = {ports}: protocol {protocol} has no ports; with ports: tcp, udp, udplite, sctp, \
         dccp: write the others as a rule of their own"
    )]
    NoPorts {
        /// The field with the ports.
        field: &'static str,
        /// The ports.
        ports: String,
        /// The protocol.
        protocol: u8,
    },
    /// TCP flags and another protocol, or none.
    #[error("flags = {flags}: only TCP has flags: write proto = \"tcp\" and nothing else there")]
    FlagsNeedTcp {
        /// Value and mask.
        flags: String,
    },
    /// Bits that must be set and are not compared.
    #[error(
        "flags: value {value:#04x} has bits outside mask {mask:#04x}: no packet has them; set the \
         mask's bits"
    )]
    FlagsOutsideMask {
        /// The value.
        value: u8,
        /// The mask.
        mask: u8,
    },
    /// No flag is compared.
    #[error("flags: mask 0x00 compares nothing: name a flag, or leave flags out")]
    NoFlags,
    /// ICMP types and another protocol, or none, or both ICMP protocols.
    #[error(
        "icmp = {types}: ICMP types need protocol 1 (icmp) or 58 (icmp6), and one of them only"
    )]
    IcmpNeedsProto {
        /// The types.
        types: String,
    },
    /// A range whose end lies before its start.
    #[error("{field}: the range {low}-{high} is empty: write {high}-{low}")]
    EmptyRange {
        /// The field.
        field: &'static str,
        /// The start.
        low: u32,
        /// The end.
        high: u32,
    },
    /// One field wants IPv4, another IPv6.
    #[error(
        "{field4} = {value4} is IPv4 and {field6} = {value6} is IPv6: no packet is both; write two \
         rules, or give both families in each field"
    )]
    MixedFamilies {
        /// The field that wants IPv4.
        field4: &'static str,
        /// Its value.
        value4: String,
        /// The field that wants IPv6.
        field6: &'static str,
        /// Its value.
        value6: String,
    },
    /// A DSCP of more than 6 bits.
    #[error("dscp = {value}: a DSCP is 0 to 63; a whole traffic class byte is four times as large")]
    Dscp {
        /// The value.
        value: u8,
    },
    /// An Ethertype, and a condition on IP packets.
    #[error(
        "ethertype: the rule is for frames that are neither IPv4 nor IPv6; of other conditions only from_mac, \
         to_mac, priority and interface go with it: take them away, or ethertype"
    )]
    EthertypeOfIp,
    /// Lengths that no IP packet has.
    #[error("length = {low}-{high}: an {family} packet has at least {least} bytes: raise the end")]
    Length {
        /// Start of the range.
        low: u16,
        /// End of the range.
        high: u16,
        /// The family with the shortest header that the rule allows.
        family: Family,
        /// Bytes in its header.
        least: u16,
    },
}

impl Fault {
    /// True if the rule contradicts itself: no packet can match it.
    pub fn is_contradiction(&self) -> bool {
        matches!(
            self,
            Self::FlagsOutsideMask { .. }
                | Self::EmptyRange { .. }
                | Self::MixedFamilies { .. }
                | Self::Dscp { .. }
                | Self::Length { .. }
                | Self::EthertypeOfIp
        )
    }
}

/// A [`Fault`] and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter \"{filter}\": {rule}, line {line}: {fault}")]
pub struct Error {
    /// The filter.
    pub filter: String,
    /// The rule: `rule 7` or `rule 7 "bogon"`, counted from 1.
    pub rule: String,
    /// Its line.
    pub line: u32,
    /// The fault.
    pub fault: Fault,
}

impl Filter {
    /// All faults of all rules, in order; empty if the filter can be compiled.
    pub fn check(&self) -> Vec<Error> {
        let faults = self.rules.iter().enumerate().map(|(at, rule)| (at, rule.matches.faults()));
        faults
            .flat_map(|(at, faults)| faults.into_iter().map(move |fault| self.error(at, fault)))
            .collect()
    }

    /// Returns true if a rule matches extension headers.
    pub fn asks_for_headers(&self) -> bool {
        let asks = |of: &Matches| of.asks_for_headers() || of.later.is_some();
        self.rules.iter().any(|rule| asks(&rule.matches))
    }

    /// Returns true if a rule for IP packets matches MACs.
    pub fn asks_for_macs(&self) -> bool {
        let asks = |of: &Matches| !of.from_mac.is_empty() || !of.to_mac.is_empty();
        self.rules.iter().any(|rule| rule.matches.is_ip() && asks(&rule.matches))
    }

    /// Returns true if a rule matches ports, TCP flags or ICMP types.
    pub fn asks_for_upper_layer(&self) -> bool {
        self.rules.iter().any(|rule| rule.matches.needs_upper_layer())
    }

    /// Returns true if a rule matches priorities of VLAN tags.
    pub fn asks_for_priorities(&self) -> bool {
        self.rules.iter().any(|rule| !rule.matches.priority.is_empty())
    }

    /// A rule is for frames that are neither IPv4 nor IPv6.
    pub fn asks_for_ethertypes(&self) -> bool {
        self.rules.iter().any(|rule| !rule.matches.is_ip())
    }

    /// The name of the rule at index `at` for messages: `rule 7 "bogon"`, counted from 1.
    pub fn label(&self, at: usize) -> String {
        match self.rules.get(at).and_then(|rule| rule.name.as_deref()) {
            Some(name) => format!("rule {} \"{name}\"", at + 1),
            None => format!("rule {}", at + 1),
        }
    }

    fn error(&self, at: usize, fault: Fault) -> Error {
        let line = self.rules[at].line;
        Error { filter: self.name.clone(), rule: self.label(at), line, fault }
    }
}

impl Matches {
    /// Returns the consequences of the conditions.
    ///
    /// # Errors
    /// All faults of the conditions.
    pub fn implied(&self) -> Result<Implied, Vec<Fault>> {
        let faults = self.faults();
        if !faults.is_empty() {
            return Err(faults);
        }
        let families = Family::ALL.into_iter().filter(|&family| self.allows(family)).collect();
        Ok(Implied { families, upper_layer: self.needs_upper_layer() })
    }

    /// True if the rule is for IP packets.
    pub fn is_ip(&self) -> bool {
        self.ethertype.is_empty()
    }

    /// True if the packet's upper-layer header must be whole.
    pub(crate) fn needs_upper_layer(&self) -> bool {
        !self.from_port.is_empty()
            || !self.to_port.is_empty()
            || self.flags.is_some()
            || !self.icmp.is_empty()
    }

    /// True if the packet must have an extension header.
    pub(crate) fn asks_for_headers(&self) -> bool {
        !self.routing.is_empty() || !self.extension.is_empty()
    }

    /// True if packets of `family` can match by `family`, `from`, `to` and extension headers.
    pub(crate) fn allows(&self, family: Family) -> bool {
        let holds =
            |nets: &[IpNet]| nets.is_empty() || nets.iter().any(|n| Family::of(n) == family);
        self.is_ip()
            && self.family.is_none_or(|only| only == family)
            && holds(&self.from)
            && holds(&self.to)
            && (family == Family::Ip6 || !self.asks_for_headers())
    }

    fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        faults.extend(self.port_fault("from_port", &self.from_port));
        faults.extend(self.port_fault("to_port", &self.to_port));
        faults.extend(self.flag_fault());
        faults.extend(self.icmp_fault());
        self.range_faults(&mut faults);
        let too_large = self.dscp.iter().filter(|&&value| value > 63);
        faults.extend(too_large.map(|&value| Fault::Dscp { value }));
        faults.extend(self.family_fault());
        faults.extend(self.length_fault());
        faults.extend(self.ethertype_fault());
        faults
    }

    fn ethertype_fault(&self) -> Option<Fault> {
        let Self { ethertype, from_mac, to_mac, priority, interface, .. } = self.clone();
        let is_frame = !ethertype.is_empty();
        let frame = Self { ethertype, from_mac, to_mac, priority, interface, ..Self::default() };
        (is_frame && frame != *self).then_some(Fault::EthertypeOfIp)
    }

    fn port_fault(&self, field: &'static str, ports: &[RangeInclusive<u16>]) -> Option<Fault> {
        if ports.is_empty() {
            return None;
        }
        let ports = list(ports.iter().map(|range| format!("{}-{}", range.start(), range.end())));
        if self.protocol.is_empty() {
            return Some(Fault::PortsNeedProto { field, ports });
        }
        let without = self.protocol.iter().find(|protocol| !WITH_PORTS.contains(protocol));
        without.map(|&protocol| Fault::NoPorts { field, ports, protocol })
    }

    fn flag_fault(&self) -> Option<Fault> {
        let Bits { value, mask } = self.flags?;
        if mask == 0 && value == 0 {
            Some(Fault::NoFlags)
        } else if value & !mask != 0 {
            Some(Fault::FlagsOutsideMask { value, mask })
        } else if !only(&self.protocol, PROTOCOL_TCP) {
            Some(Fault::FlagsNeedTcp { flags: format!("{value:#04x}/{mask:#04x}") })
        } else {
            None
        }
    }

    fn icmp_fault(&self) -> Option<Fault> {
        let one = only(&self.protocol, PROTOCOL_ICMP) || only(&self.protocol, PROTOCOL_ICMPV6);
        (!self.icmp.is_empty() && !one)
            .then(|| Fault::IcmpNeedsProto { types: list(self.icmp.iter().map(u8::to_string)) })
    }

    fn range_faults(&self, faults: &mut Vec<Fault>) {
        let ports = self.from_port.iter().map(|range| ("from_port", range));
        let ports = ports.chain(self.to_port.iter().map(|range| ("to_port", range)));
        let words = ports.chain(self.length.iter().map(|range| ("length", range)));
        faults.extend(words.filter_map(|(field, range)| empty_range(field, range)));
        faults.extend(self.ttl.iter().filter_map(|range| empty_range("ttl", range)));
    }

    fn family_fault(&self) -> Option<Fault> {
        let (field4, value4) = self.only_family(Family::Ip4)?;
        let (field6, value6) = self.only_family(Family::Ip6)?;
        Some(Fault::MixedFamilies { field4, value4, field6, value6 })
    }

    /// The first field that allows packets of `family` only, and its value.
    fn only_family(&self, family: Family) -> Option<(&'static str, String)> {
        if self.family == Some(family) {
            return Some(("family", family.to_string()));
        }
        let nets = [("from", &self.from), ("to", &self.to)].into_iter();
        let mut nets = nets.filter(|(_, nets)| !nets.is_empty());
        if let Some((field, nets)) = nets.find(|(_, n)| n.iter().all(|n| Family::of(n) == family)) {
            return Some((field, list(nets.iter().map(IpNet::to_string))));
        }
        if family == Family::Ip6 && self.asks_for_headers() {
            return Some(match self.routing.is_empty() {
                true => (
                    "extension",
                    list(self.extension.iter().map(|of| text::extension_name(*of).to_owned())),
                ),
                false => ("routing", list(self.routing.iter().map(u8::to_string))),
            });
        }
        let protocol = match family {
            Family::Ip4 => PROTOCOL_ICMP,
            Family::Ip6 => PROTOCOL_ICMPV6,
        };
        (!self.icmp.is_empty() && only(&self.protocol, protocol))
            .then(|| ("icmp", list(self.icmp.iter().map(u8::to_string))))
    }

    fn length_fault(&self) -> Option<Fault> {
        let range = self.length.as_ref().filter(|range| !range.is_empty())?;
        let (family, least) = match self.allows(Family::Ip4) {
            true => (Family::Ip4, IPV4_MIN_LEN as u16),
            false => (Family::Ip6, IPV6_LEN as u16),
        };
        let (low, high) = (*range.start(), *range.end());
        (high < least).then_some(Fault::Length { low, high, family, least })
    }
}

fn only(protocols: &[u8], one: u8) -> bool {
    !protocols.is_empty() && protocols.iter().all(|&protocol| protocol == one)
}

fn empty_range<T: Copy + PartialOrd + Into<u32>>(
    field: &'static str,
    range: &RangeInclusive<T>,
) -> Option<Fault> {
    let (low, high) = (*range.start(), *range.end());
    (low > high).then(|| Fault::EmptyRange { field, low: low.into(), high: high.into() })
}

/// At most five elements, then a count of the others.
fn list(elements: impl Iterator<Item = String>) -> String {
    let elements: Vec<String> = elements.collect();
    match elements.len() {
        1 => elements[0].clone(),
        0..=5 => format!("{{ {} }}", elements.join(", ")),
        more => format!("{{ {}, and {} more }}", elements[..5].join(", "), more - 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// The message of the only fault.
    fn fault(matches: Matches) -> String {
        let faults = matches.implied().unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0].to_string()
    }

    #[test]
    fn a_rule_without_conditions_matches_both_families() {
        let implied = Matches::default().implied().unwrap();
        assert_eq!(implied, Implied { families: Family::ALL.to_vec(), upper_layer: false });
    }

    #[test]
    fn prefixes_imply_the_family_and_ports_the_upper_layer() {
        let matches = Matches {
            from: nets(&["192.0.2.0/24", "2001:db8::/32"]),
            to: nets(&["2001:db8::/32"]),
            protocol: vec![6, 17],
            to_port: vec![22..=22],
            ..Matches::default()
        };
        let implied = matches.implied().unwrap();
        assert_eq!(implied, Implied { families: vec![Family::Ip6], upper_layer: true });
    }

    #[test]
    fn ports_need_a_protocol_that_has_them() {
        let ports = Matches { to_port: vec![22..=22, 80..=81], ..Matches::default() };
        let said = fault(ports.clone());
        assert!(said.starts_with("to_port = { 22-22, 80-81 }: ports need proto"), "{said}");
        let said = fault(Matches { protocol: vec![6, 47], ..ports.clone() });
        assert!(said.contains("protocol 47 has no ports"), "{said}");
        let with_ports = Matches { protocol: WITH_PORTS.to_vec(), ..ports };
        assert!(with_ports.implied().is_ok());
    }

    #[test]
    fn flags_need_tcp_and_a_mask() {
        let syn = Matches { flags: Some(Bits { value: 2, mask: 0x12 }), ..Matches::default() };
        assert!(fault(syn.clone()).starts_with("flags = 0x02/0x12: only TCP has flags"));
        assert!(fault(Matches { protocol: vec![6, 17], ..syn.clone() }).contains("only TCP"));
        let tcp = Matches { protocol: vec![6], ..syn };
        assert!(tcp.implied().is_ok());
        let flags = |value, mask| Matches { flags: Some(Bits { value, mask }), ..tcp.clone() };
        assert!(fault(flags(3, 2)).contains("value 0x03 has bits outside mask 0x02"));
        assert!(fault(flags(0, 0)).contains("compares nothing"));
    }

    #[test]
    fn icmp_types_need_one_icmp() {
        let echo = Matches { icmp: vec![8, 0], ..Matches::default() };
        assert!(fault(echo.clone()).starts_with("icmp = { 8, 0 }: ICMP types need protocol 1"));
        assert!(fault(Matches { protocol: vec![1, 58], ..echo.clone() }).contains("one of them"));
        assert!(Matches { protocol: vec![58], ..echo }.implied().is_ok());
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "empty ranges are the fault tested")]
    fn empty_ranges_are_faults() {
        let tcp = Matches { protocol: vec![6], ..Matches::default() };
        let said = fault(Matches { from_port: vec![5..=3], ..tcp.clone() });
        assert_eq!(said, "from_port: the range 5-3 is empty: write 3-5");
        assert!(fault(Matches { to_port: vec![1..=2, 9..=8], ..tcp.clone() }).contains("9-8"));
        assert!(fault(Matches { ttl: Some(2..=1), ..tcp.clone() }).starts_with("ttl: the range"));
        assert!(fault(Matches { length: Some(99..=98), ..tcp }).starts_with("length: the range"));
    }

    #[test]
    fn fields_of_different_families_are_faults() {
        let from4 = Matches { from: nets(&["192.0.2.0/24"]), ..Matches::default() };
        let said = fault(Matches { to: nets(&["2001:db8::/32"]), ..from4.clone() });
        let wanted =
            "from = 192.0.2.0/24 is IPv4 and to = 2001:db8::/32 is IPv6: no packet is both";
        assert!(said.starts_with(wanted), "{said}");
        let said = fault(Matches { family: Some(Family::Ip6), ..from4.clone() });
        assert!(said.contains("family = IPv6 is IPv6"), "{said}");
        let said = fault(Matches { protocol: vec![58], icmp: vec![128], ..from4 });
        assert!(said.contains("icmp = 128 is IPv6"), "{said}");
        let from4 = Matches { from: nets(&["192.0.2.0/24"]), ..Matches::default() };
        let said = fault(Matches { routing: vec![0], ..from4.clone() });
        assert!(said.contains("routing = 0 is IPv6"), "{said}");
        let extension = vec![Extension::HopByHop, Extension::TooMany];
        let said = fault(Matches { extension, ..from4 });
        assert!(said.contains("extension = { hop-by-hop, too-many } is IPv6"), "{said}");
        let implied = Matches { routing: vec![0], ..Matches::default() }.implied().unwrap();
        assert_eq!(implied.families, [Family::Ip6]);
    }

    #[test]
    fn values_that_no_packet_has_are_faults() {
        assert!(fault(Matches { dscp: vec![63, 64], ..Matches::default() }).contains("dscp = 64"));
        let short = Matches { length: Some(0..=39), ..Matches::default() };
        assert!(short.implied().is_ok());
        let said = fault(Matches { family: Some(Family::Ip6), ..short });
        assert!(said.contains("an IPv6 packet has at least 40 bytes"), "{said}");
    }

    #[test]
    fn ethertypes_are_of_frames_that_are_no_ip_packets() {
        let lldp = Matches {
            ethertype: vec![0x88cc],
            from_mac: vec!["02:00:00:00:00:01".parse().unwrap()],
            priority: vec![7],
            interface: vec![1],
            ..Matches::default()
        };
        assert_eq!(lldp.implied().unwrap().families, []);
        let said = fault(Matches { dscp: vec![1], ..lldp });
        assert!(said.starts_with("ethertype: the rule is for frames"), "{said}");
    }

    #[test]
    fn errors_name_filter_rule_and_line() {
        let rule = |name: Option<&str>, dscp| Rule {
            name: name.map(str::to_owned),
            line: 12,
            matches: Matches { dscp: vec![dscp], ..Matches::default() },
            action: Action::Drop,
        };
        let rules = vec![rule(None, 1), rule(Some("bogon"), 99), rule(None, 77)];
        let filter = Filter { name: "edge-in".into(), rules, default: Action::Accept };
        let said: Vec<String> = filter.check().iter().map(Error::to_string).collect();
        assert_eq!(said.len(), 2);
        let wanted = "filter \"edge-in\": rule 2 \"bogon\", line 12: dscp = 99: ";
        assert!(said[0].starts_with(wanted), "{}", said[0]);
        assert!(said[1].starts_with("filter \"edge-in\": rule 3, line 12: dscp"), "{}", said[1]);
    }
}
