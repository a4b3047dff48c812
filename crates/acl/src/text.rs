//! Readers of the values that a configuration writes as text.
//!
//! Names are those of IANA's registries, or of common firewalls where those differ; numbers do
//! everywhere. Each error names the value and the known ones.

use std::{fmt::Display, ops::RangeInclusive, str::FromStr};

use wire::ip::{
    PROTOCOL_AUTHENTICATION, PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP,
    PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_IGMP, PROTOCOL_ROUTING, PROTOCOL_TCP, PROTOCOL_UDP,
};

use crate::{Bits, Extension, Family, State};

/// DCCP (RFC 4340).
pub const PROTOCOL_DCCP: u8 = 33;
/// SCTP (RFC 9260).
pub const PROTOCOL_SCTP: u8 = 132;
/// UDP-Lite (RFC 3828).
pub const PROTOCOL_UDPLITE: u8 = 136;

/// Protocol names (IANA "Protocol Numbers") and their other names.
const PROTOCOLS: &[(&str, u8)] = &[
    ("icmp", PROTOCOL_ICMP),
    ("igmp", PROTOCOL_IGMP),
    ("ipip", 4),
    ("tcp", PROTOCOL_TCP),
    ("egp", 8),
    ("udp", PROTOCOL_UDP),
    ("dccp", PROTOCOL_DCCP),
    ("ip6ip", 41),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", PROTOCOL_AUTHENTICATION),
    ("icmp6", PROTOCOL_ICMPV6),
    ("icmpv6", PROTOCOL_ICMPV6),
    ("ipv6-icmp", PROTOCOL_ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("etherip", 97),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", PROTOCOL_SCTP),
    ("mobility", 135),
    ("udplite", PROTOCOL_UDPLITE),
    ("mpls", 137),
    ("hip", 139),
];

/// TCP flags (RFC 9293, 3.1), low bit first.
const FLAGS: &[(&str, u8)] = &[
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("psh", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
];

/// ICMP types (RFC 792, 950, 1256).
const ICMP4: &[(&str, u8)] = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];

/// ICMPv6 types (RFC 4443, 2710, 4861, 3810, 4286), with the American spelling of the neighbours.
const ICMP6: &[(&str, u8)] = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-query", 130),
    ("mld-report", 131),
    ("mld-done", 132),
    ("router-solicitation", 133),
    ("router-advertisement", 134),
    ("neighbour-solicitation", 135),
    ("neighbor-solicitation", 135),
    ("neighbour-advertisement", 136),
    ("neighbor-advertisement", 136),
    ("redirect", 137),
    ("mld2-report", 143),
];

/// DSCP names (RFC 2474, 2597, 3246, 8622).
const DSCPS: &[(&str, u8)] = &[
    ("cs0", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Types of routing headers (RFC 5095, 6275, 6554, 8754).
const ROUTING_TYPES: &[(&str, u8)] = &[("source-route", 0), ("mobile", 2), ("rpl", 3), ("srh", 4)];

/// States of connections.
const STATES: [(&str, State); 3] =
    [("new", State::New), ("established", State::Established), ("related", State::Related)];

/// Extension headers by name, and by number (IANA "IPv6 Extension Header Types").
const EXTENSIONS: [(&str, Option<u8>, Extension); 6] = [
    ("hop-by-hop", Some(PROTOCOL_HOP_BY_HOP), Extension::HopByHop),
    ("routing", Some(PROTOCOL_ROUTING), Extension::Routing),
    ("fragment", Some(PROTOCOL_FRAGMENT), Extension::Fragment),
    ("ah", Some(PROTOCOL_AUTHENTICATION), Extension::Authentication),
    ("destination-options", Some(PROTOCOL_DESTINATION_OPTIONS), Extension::DestinationOptions),
    ("too-many", None, Extension::TooMany),
];

/// A value that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} \"{value}\": {way_out}")]
pub struct TextError {
    /// The kind of value: `port`, `protocol`, …
    pub kind: &'static str,
    /// The text.
    pub value: String,
    /// The problem, and the values that can be read.
    pub way_out: String,
}

/// A port or a range of ports: `"22"`, `"1024-65535"`.
///
/// # Errors
/// Neither, beyond 65535, or an empty range.
pub fn ports(text: &str) -> Result<RangeInclusive<u16>, TextError> {
    range("port", text, u16::MAX)
}

/// Times to live: `"1"`, `"254-255"`.
///
/// # Errors
/// Neither, beyond 255, or an empty range.
pub fn ttl(text: &str) -> Result<RangeInclusive<u8>, TextError> {
    range("ttl", text, u8::MAX)
}

/// IP lengths in bytes: `"1500"`, `"0-576"`.
///
/// # Errors
/// Neither, beyond 65535, or an empty range.
pub fn length(text: &str) -> Result<RangeInclusive<u16>, TextError> {
    range("length", text, u16::MAX)
}

/// A protocol by name or number: `"tcp"`, `"89"`.
///
/// # Errors
/// An unknown name, or a number beyond 255.
pub fn protocol(text: &str) -> Result<u8, TextError> {
    named("protocol", text, PROTOCOLS, u8::MAX)
}

/// Ethertypes (IEEE 802 Numbers) by names.
const ETHERTYPES: &[(&str, u16)] = &[
    ("arp", 0x0806),
    ("slow", 0x8809),
    ("mpls", 0x8847),
    ("pppoe-discovery", 0x8863),
    ("pppoe", 0x8864),
    ("eapol", 0x888e),
    ("lldp", 0x88cc),
    ("macsec", 0x88e5),
    ("ptp", 0x88f7),
];

/// An Ethertype by name or number: `"lldp"`, `"0x88cc"`, `"35020"`.
///
/// # Errors
/// An unknown name, a length field (below 0x0600), that of a VLAN tag, or that of IP packets.
pub fn ethertype(text: &str) -> Result<u16, TextError> {
    let wrong = |way_out: String| TextError { kind: "ethertype", value: text.to_owned(), way_out };
    let word = text.trim();
    let number = match word.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    let named = ETHERTYPES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
    match number.or(named.map(|&(_, number)| number)) {
        Some(0x0800 | 0x86dd) => {
            Err(wrong("rules for IP packets have family, and no ethertype".into()))
        }
        Some(0x8100 | 0x88a8) => Err(wrong("tagged frames are dropped before filters".into())),
        Some(number @ 0x0600..) => Ok(number),
        _ => {
            let known: Vec<_> = ETHERTYPES.iter().map(|(name, _)| *name).collect();
            Err(wrong(format!("unknown; known: {}, or a number from 0x0600", known.join(", "))))
        }
    }
}

/// A protocol's name, or its number if it has none; [`protocol`] reads it.
pub fn protocol_name(number: u8) -> String {
    name_of(number, PROTOCOLS)
}

/// The names of TCP flags, none if there are none; [`flags`] reads them.
pub fn flag_names(flags: u8) -> String {
    let set = FLAGS.iter().filter(|(_, bit)| flags & bit != 0);
    set.map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}

fn name_of(number: u8, names: &[(&'static str, u8)]) -> String {
    let known = names.iter().find(|(_, value)| *value == number);
    known.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// A DSCP by name or number: `"ef"`, `"46"`.
///
/// # Errors
/// An unknown name, or a number beyond 63.
pub fn dscp(text: &str) -> Result<u8, TextError> {
    named("dscp", text, DSCPS, 63)
}

/// The priority code point of a VLAN tag: `"5"`.
///
/// # Errors
/// No number from 0 to 7.
pub fn priority(text: &str) -> Result<u8, TextError> {
    let number = text.trim().parse().ok().filter(|&number| number <= 7);
    let way_out = || "not a priority: write a number from 0 to 7".to_owned();
    number.ok_or_else(|| TextError { kind: "priority", value: text.to_owned(), way_out: way_out() })
}

/// An ICMP type of `family` by name or number: `"echo-request"` is 8 or 128.
///
/// # Errors
/// An unknown name, or a number beyond 255.
pub fn icmp_type(family: Family, text: &str) -> Result<u8, TextError> {
    match family {
        Family::Ip4 => named("icmp", text, ICMP4, u8::MAX),
        Family::Ip6 => named("icmp6", text, ICMP6, u8::MAX),
    }
}

/// A connection's state: `"established"`.
///
/// # Errors
/// An unknown name.
pub fn state(text: &str) -> Result<State, TextError> {
    let found = STATES.iter().find(|(name, _)| *name == text);
    let known = || "unknown; known: new, established, related".to_owned();
    let error = || TextError { kind: "state", value: text.to_owned(), way_out: known() };
    found.map(|&(_, state)| state).ok_or_else(error)
}

/// As [`state`] reads it.
pub fn state_name(state: State) -> &'static str {
    STATES.iter().find(|(_, known)| *known == state).map_or("?", |(name, _)| name)
}

/// An IPv6 extension header by name or number: `"hop-by-hop"`, `"43"`.
///
/// # Errors
/// Any other header: the last one of a chain (ESP, mobility, HIP, no next header) is a protocol.
pub fn extension(text: &str) -> Result<Extension, TextError> {
    let word = text.trim();
    let number = word.parse::<u8>().ok();
    let is = |of: &&(&str, Option<u8>, Extension)| {
        of.0.eq_ignore_ascii_case(word) || (number.is_some() && of.1 == number)
    };
    if let Some((_, _, found)) = EXTENSIONS.iter().find(is) {
        return Ok(*found);
    }
    let known = EXTENSIONS.map(|(name, ..)| name).join(", ");
    let way_out = match protocol(word) {
        Ok(_) => format!("no extension header that others follow; write proto; known: {known}"),
        Err(_) => format!("unknown; known: {known}"),
    };
    Err(TextError { kind: "extension", value: text.to_owned(), way_out })
}

/// As [`extension`] reads it.
pub fn extension_name(extension: Extension) -> &'static str {
    EXTENSIONS.iter().find(|(.., known)| *known == extension).map_or("?", |(name, ..)| name)
}

/// A routing header's type (IANA "Routing Types"): `"0"`, `"srh"`.
///
/// # Errors
/// An unknown name, or a number beyond 255.
pub fn routing_type(text: &str) -> Result<u8, TextError> {
    named("routing", text, ROUTING_TYPES, u8::MAX)
}

/// TCP flags that must be set, or with `!` must not: `"syn,!ack"` is value 0x02, mask 0x12.
///
/// # Errors
/// An unknown flag, the same flag with and without `!`, or no flag.
pub fn flags(text: &str) -> Result<Bits, TextError> {
    let mut bits = Bits { value: 0, mask: 0 };
    for word in text.split(',').map(str::trim) {
        let (wanted, name) = match word.strip_prefix('!') {
            Some(name) => (false, name.trim()),
            None => (true, word),
        };
        let bit = lookup(name, FLAGS).ok_or_else(|| unknown("flag", name, FLAGS, ""))?;
        if bits.mask & bit != 0 && (bits.value & bit != 0) != wanted {
            let way_out = format!("{name} is both wanted and not: name it once");
            return Err(TextError { kind: "flags", value: text.to_owned(), way_out });
        }
        bits.mask |= bit;
        bits.value |= if wanted { bit } else { 0 };
    }
    Ok(bits)
}

fn range<T>(kind: &'static str, text: &str, most: T) -> Result<RangeInclusive<T>, TextError>
where
    T: FromStr + PartialOrd + Display + Copy,
{
    let wrong = |way_out| TextError { kind, value: text.to_owned(), way_out };
    let number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        digits
            .then(|| part.parse::<T>().ok())
            .flatten()
            .ok_or_else(|| wrong(format!("write a number from 0 to {most}, or a range, low-high")))
    };
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (number(low.trim())?, number(high.trim())?);
    if low > high {
        return Err(wrong(format!("the range is empty: write {high}-{low}")));
    }
    Ok(low..=high)
}

fn named(
    kind: &'static str,
    text: &str,
    names: &[(&'static str, u8)],
    most: u8,
) -> Result<u8, TextError> {
    let text = text.trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse::<u8>().ok()).flatten().filter(|&n| n <= most);
    let known = number.or_else(|| lookup(text, names));
    known.ok_or_else(|| unknown(kind, text, names, &format!(", or a number from 0 to {most}")))
}

fn lookup(text: &str, names: &[(&'static str, u8)]) -> Option<u8> {
    names.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|&(_, value)| value)
}

fn unknown(
    kind: &'static str,
    text: &str,
    names: &[(&'static str, u8)],
    numbers: &str,
) -> TextError {
    let known: Vec<&str> = names.iter().map(|&(name, _)| name).collect();
    let known = format!("known: {}{numbers}", known.join(", "));
    let way_out = match nearest(text, names) {
        Some(name) => format!("is it \"{name}\"? {known}"),
        None => format!("unknown; {known}"),
    };
    TextError { kind, value: text.to_owned(), way_out }
}

/// The name that differs from `text` least, by at most two letters and less than half of them.
fn nearest(text: &str, names: &[(&'static str, u8)]) -> Option<&'static str> {
    let text = text.to_ascii_lowercase();
    let distances = names.iter().map(|&(name, _)| (strsim::levenshtein(&text, name), name));
    let (least, name) = distances.min_by_key(|&(distance, _)| distance)?;
    (least <= 2 && 2 * least < name.len()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethertypes_are_names_or_numbers() {
        for text in ["lldp", "LLDP", "0x88cc", "35020"] {
            assert_eq!(ethertype(text), Ok(0x88cc), "{text}");
        }
        for (text, said) in [
            ("ipv4", "known: arp"),
            ("1500", "a number from 0x0600"),
            ("0x10000", "unknown"),
            ("0x0800", "rules for IP packets have family"),
            ("0x8100", "tagged frames are dropped before filters"),
        ] {
            let error = ethertype(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    fn said<T: std::fmt::Debug>(result: Result<T, TextError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn ranges_are_numbers_or_two() {
        assert_eq!(ports("22").unwrap(), 22..=22);
        assert_eq!(ports(" 1024 - 65535 ").unwrap(), 1024..=65535);
        assert_eq!(ttl("254-255").unwrap(), 254..=255);
        assert_eq!(length("0-576").unwrap(), 0..=576);
    }

    #[test]
    fn ranges_that_cannot_be_read_name_the_value() {
        let all = "write a number from 0 to 65535, or a range, low-high";
        for text in ["", "-", "22-", "ssh", "65536", "+1", "1-2-3"] {
            assert_eq!(said(ports(text)), format!("port \"{text}\": {all}"));
        }
        assert_eq!(said(ttl("9-3")), "ttl \"9-3\": the range is empty: write 3-9");
        assert!(said(ttl("256")).contains("from 0 to 255"));
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        for (text, number) in [("tcp", 6), ("UDP", 17), ("icmp6", 58), ("ipip", 4), ("ip6ip", 41)] {
            assert_eq!(protocol(text), Ok(number), "{text}");
        }
        for (text, number) in [("ospf", 89), ("vrrp", 112), ("l2tp", 115), ("255", 255), ("0", 0)] {
            assert_eq!(protocol(text), Ok(number), "{text}");
        }
        assert!(said(protocol("tpc")).starts_with("protocol \"tpc\": unknown; known: icmp, "));
        assert!(said(protocol("udplit")).starts_with("protocol \"udplit\": is it \"udplite\"?"));
        assert!(said(protocol("256")).ends_with("or a number from 0 to 255"));
    }

    #[test]
    fn dscps_follow_the_classes() {
        for class in 0..8 {
            assert_eq!(dscp(&format!("cs{class}")), Ok(class * 8));
        }
        for (class, drop) in (1..5).flat_map(|class| (1..4).map(move |drop| (class, drop))) {
            assert_eq!(dscp(&format!("af{class}{drop}")), Ok(class * 8 + drop * 2));
        }
        assert_eq!((dscp("ef"), dscp("le"), dscp("63")), (Ok(46), Ok(1), Ok(63)));
        assert!(said(dscp("64")).ends_with("or a number from 0 to 63"));
    }

    #[test]
    fn icmp_names_depend_on_the_family() {
        assert_eq!(icmp_type(Family::Ip4, "echo-request"), Ok(8));
        assert_eq!(icmp_type(Family::Ip6, "echo-request"), Ok(128));
        assert_eq!(icmp_type(Family::Ip6, "neighbour-solicitation"), Ok(135));
        assert_eq!(icmp_type(Family::Ip6, "neighbor-solicitation"), Ok(135));
        assert_eq!(icmp_type(Family::Ip4, "30"), Ok(30));
        let wrong = said(icmp_type(Family::Ip4, "packet-too-big"));
        assert!(
            wrong.starts_with("icmp \"packet-too-big\": unknown; known: echo-reply"),
            "{wrong}"
        );
        let wrong = said(icmp_type(Family::Ip6, "echo-reqest"));
        assert!(wrong.starts_with("icmp6 \"echo-reqest\": is it \"echo-request\"?"), "{wrong}");
    }

    #[test]
    fn extension_headers_have_names_and_numbers() {
        for of in Extension::ALL {
            assert_eq!(extension(extension_name(of)), Ok(of));
        }
        assert_eq!(
            (extension("0"), extension("43")),
            (Ok(Extension::HopByHop), Ok(Extension::Routing))
        );
        assert!(said(extension("esp")).contains("write proto; known: hop-by-hop, routing"));
        assert!(said(extension("50")).contains("write proto"));
        assert!(said(extension("hopbyhop")).contains("unknown; known: hop-by-hop"));
        assert_eq!(
            (routing_type("0"), routing_type("SRH"), routing_type("253")),
            (Ok(0), Ok(4), Ok(253))
        );
        assert!(said(routing_type("rhp")).starts_with("routing \"rhp\": "));
    }

    #[test]
    fn flags_have_value_and_mask() {
        assert_eq!(flags("syn,!ack"), Ok(Bits { value: 0x02, mask: 0x12 }));
        assert_eq!(flags(" CWR , ! fin"), Ok(Bits { value: 0x80, mask: 0x81 }));
        assert_eq!(flags("ack,ack"), Ok(Bits { value: 0x10, mask: 0x10 }));
        let wrong = said(flags("syn,!sync"));
        assert!(wrong.starts_with("flag \"sync\": is it \"syn\"? known: fin, syn, rst"), "{wrong}");
        assert!(said(flags("")).starts_with("flag \"\": unknown"));
        assert!(said(flags("syn,!syn")).contains("syn is both wanted and not"));
    }
}
