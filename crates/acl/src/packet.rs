//! A packet in words, for the log and for queries of the rule that it matches: `tcp 198.51.100.7:4000 >
//! 192.0.2.1:22 in wan`.
//!
//! ```text
//! PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT] [in INTERFACE] [flags syn,ack] [icmp TYPE] [ttl N]
//!          [length N] [dscp NAME] [state NAME] [from_mac MAC] [to_mac MAC] [priority N] [fragment]
//!          [routing TYPE] … [extension NAME] …
//! ```
//!
//! An IPv6 address with a port stands in brackets: `[2001:db8::1]:443`. `length` is that of the IP packet,
//! `fragment` a later fragment. Omitted values are 0, except for the TTL, which is 64, and the length, which is
//! that of the headers.

use std::net::{IpAddr, SocketAddr};

use wire::checksum::{Checksum, checksum, pseudo_header_v4, pseudo_header_v6};
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use wire::ip::{
    PROTOCOL_AUTHENTICATION, PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_FRAGMENT, PROTOCOL_HOP_BY_HOP,
    PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_ROUTING, PROTOCOL_TCP, PROTOCOL_UDP,
};

use crate::{
    Extension, Family, Key, State,
    key::{MAX_HEADERS, mac_number},
    text,
};

/// Reads a packet. `interface` gives an interface's number by its name, or the names that there are.
///
/// # Errors
/// The unreadable word, and the expected ones.
pub fn read(
    words: &str,
    interface: impl Fn(&str) -> Result<u16, String>,
) -> Result<(Family, Key), String> {
    let Words { frame, from, state, macs, priority } = Words::read(words, interface)?;
    let (family, bytes) = (frame.family(), frame.bytes());
    let key = match family {
        Family::Ip4 => Key::of_ip4(&bytes, bytes.len(), from.unwrap_or(0)),
        Family::Ip6 => Key::of_ip6(&bytes, bytes.len(), from.unwrap_or(0)),
    };
    Ok((family, Key { macs, priority, ..key.with_state(state) }))
}

/// A frame made from words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeFrame {
    /// An Ethernet frame without tags, with correct checksums. A MAC that is not given is 0.
    pub bytes: Vec<u8>,
    /// The number of the interface that receives it; `None`: not given.
    pub interface: Option<u16>,
}

/// Makes a whole frame of a packet's words, as [`read`] reads them.
///
/// # Errors
/// As those of [`read`].
pub fn make(
    words: &str,
    interface: impl Fn(&str) -> Result<u16, String>,
) -> Result<MadeFrame, String> {
    let Words { frame, from, macs: [to, source], .. } = Words::read(words, interface)?;
    let mut bytes = frame.bytes();
    bytes[..6].copy_from_slice(&to.to_be_bytes()[2..]);
    bytes[6..12].copy_from_slice(&source.to_be_bytes()[2..]);
    let ethertype = match frame.family() {
        Family::Ip4 => ETHERTYPE_IPV4,
        Family::Ip6 => ETHERTYPE_IPV6,
    };
    bytes[12..ETHERNET_LEN].copy_from_slice(&ethertype.to_be_bytes());
    frame.put_checksums(&mut bytes[ETHERNET_LEN..]);
    Ok(MadeFrame { bytes, interface: from })
}

/// A packet's words.
struct Words {
    frame: Frame,
    /// The number of the ingress interface.
    from: Option<u16>,
    state: State,
    /// Destination, source.
    macs: [u64; 2],
    priority: u8,
}

impl Words {
    fn read(words: &str, interface: impl Fn(&str) -> Result<u16, String>) -> Result<Self, String> {
        const USAGE: &str = "write PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT] [in INTERFACE] [flags F] [icmp TYPE] \
                         [ttl N] [length N] [dscp D] [state S] [from_mac M] [to_mac M] [priority N] [fragment] \
                         [routing T] [extension E]";
        let mut words = words.split_whitespace();
        let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} missing; {USAGE}"));
        let protocol = text::protocol(next("protocol")?).map_err(|error| error.to_string())?;
        let (source, from_port) = place(next("source")?)?;
        let arrow = next(">")?;
        if arrow != ">" {
            return Err(format!("\"{arrow}\" stands where > is expected; {USAGE}"));
        }
        let (destination, to_port) = place(next("destination")?)?;
        let mut frame = Frame::new(protocol, (source, destination), (from_port, to_port))?;
        let (mut from, mut state, mut macs, mut priority) = (None, State::New, [0; 2], 0);
        while let Ok(key) = next("") {
            if key == "fragment" {
                frame.fragment = true;
                continue;
            }
            let value = next(key)?;
            let told = |error: text::TextError| error.to_string();
            match key {
                "in" => from = Some(interface(value)?),
                "flags" => frame.flags = text::flags(value).map_err(told)?.value,
                "icmp" => frame.icmp = text::icmp_type(frame.family(), value).map_err(told)?,
                "ttl" => frame.ttl = *text::ttl(value).map_err(told)?.start(),
                "length" => frame.length = Some(*text::length(value).map_err(told)?.start()),
                "state" => state = text::state(value).map_err(told)?,
                "to_mac" => macs[0] = mac(value)?,
                "from_mac" => macs[1] = mac(value)?,
                "priority" => priority = text::priority(value).map_err(told)?,
                "dscp" => frame.dscp = text::dscp(value).map_err(told)?,
                "routing" => frame.add_routing(text::routing_type(value).map_err(told)?)?,
                "extension" => frame.add_extension(text::extension(value).map_err(told)?)?,
                _ => return Err(format!("\"{key}\" unknown; {USAGE}")),
            }
        }
        Ok(Self { frame, from, state, macs, priority })
    }
}

fn mac(word: &str) -> Result<u64, String> {
    let mac = word.parse().map_err(|_| format!("\"{word}\" is no MAC; write 02:00:00:00:00:01"))?;
    Ok(mac_number(mac))
}

/// Formats a packet in the notation of [`read`], without its MACs; `interface` is the name of its
/// ingress interface.
pub fn write(family: Family, key: &Key, interface: &str) -> String {
    let place = |address: IpAddr, port: u16| match (key.ports, address) {
        ([0, 0], _) => address.to_string(),
        (_, address) => SocketAddr::new(address, port).to_string(),
    };
    let [from_port, to_port] = key.ports;
    let protocol = text::protocol_name(key.protocol());
    let from = place(key.source(family), from_port);
    let to = place(key.destination(family), to_port);
    let mut words = format!("{protocol} {from} > {to} in {interface}");
    if key.flags() != 0 {
        words += &format!(" flags {}", text::flag_names(key.flags()));
    }
    if matches!(key.protocol(), PROTOCOL_ICMP | PROTOCOL_ICMPV6) {
        words += &format!(" icmp {}", key.icmp_type());
    }
    words += &format!(" ttl {} length {}", key.ttl(), key.length());
    if key.dscp() != 0 {
        words += &format!(" dscp {}", key.dscp());
    }
    if key.priority() != 0 {
        words += &format!(" priority {}", key.priority());
    }
    if key.state() != State::New {
        words += &format!(" state {}", text::state_name(key.state()));
    }
    if key.is_later_fragment() {
        words += " fragment";
    }
    for kind in key.routing_types() {
        words += &format!(" routing {kind}");
    }
    let is_said = |of: &Extension| match of {
        Extension::Routing => !key.routing_types().is_empty(),
        Extension::Fragment => key.is_later_fragment(),
        _ => false,
    };
    for of in Extension::ALL.into_iter().filter(|of| key.has_extension(*of) && !is_said(of)) {
        words += &format!(" extension {}", text::extension_name(of));
    }
    words
}

/// An address, with or without a port.
fn place(word: &str) -> Result<(IpAddr, u16), String> {
    let whole = word.parse::<IpAddr>().map(|address| (address, 0));
    whole.or_else(|_| word.parse::<SocketAddr>().map(|place| (place.ip(), place.port()))).map_err(|_| {
        format!("\"{word}\" is no address; write 192.0.2.1, 192.0.2.1:22, 2001:db8::1 or [2001:db8::1]:22")
    })
}

struct Frame {
    protocol: u8,
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    flags: u8,
    icmp: u8,
    ttl: u8,
    dscp: u8,
    length: Option<u16>,
    fragment: bool,
    /// Extension headers in front of the upper layer: numbers, and types of routing headers.
    headers: Vec<(u8, u8)>,
}

/// Bytes of upper-layer header that every packet has: TCP's.
const UPPER: usize = 20;

impl Frame {
    fn new(protocol: u8, addresses: (IpAddr, IpAddr), ports: (u16, u16)) -> Result<Self, String> {
        if addresses.0.is_ipv4() != addresses.1.is_ipv4() {
            return Err(format!("{} and {} are of two families", addresses.0, addresses.1));
        }
        let ttl = 64;
        Ok(Self {
            protocol,
            addresses,
            ports,
            flags: 0,
            icmp: 0,
            ttl,
            dscp: 0,
            length: None,
            fragment: false,
            headers: Vec::new(),
        })
    }

    fn add_routing(&mut self, kind: u8) -> Result<(), String> {
        self.add_header((PROTOCOL_ROUTING, kind))
    }

    fn add_extension(&mut self, extension: Extension) -> Result<(), String> {
        let number = match extension {
            Extension::HopByHop => PROTOCOL_HOP_BY_HOP,
            Extension::Routing => return Err("write routing and a type, as routing 0".into()),
            Extension::Fragment => PROTOCOL_FRAGMENT,
            Extension::Authentication => PROTOCOL_AUTHENTICATION,
            Extension::DestinationOptions => PROTOCOL_DESTINATION_OPTIONS,
            Extension::TooMany => {
                return (self.headers.len()..=MAX_HEADERS)
                    .try_for_each(|_| self.add_header((PROTOCOL_DESTINATION_OPTIONS, 0)));
            }
        };
        self.add_header((number, 0))
    }

    fn add_header(&mut self, header: (u8, u8)) -> Result<(), String> {
        if self.family() == Family::Ip4 {
            return Err("IPv4 packets have no extension headers".into());
        }
        self.headers.push(header);
        Ok(())
    }

    /// The headers between the IPv6 header and the upper layer, and the number of the first.
    fn chain(&self) -> (u8, Vec<u8>) {
        let mut chain = self.headers.clone();
        if self.fragment {
            chain.push((PROTOCOL_FRAGMENT, 0));
        }
        let next = |place: usize| chain.get(place).map_or(self.protocol, |(number, _)| *number);
        let mut bytes = Vec::new();
        for (place, (number, kind)) in chain.iter().enumerate() {
            let offset: [u8; 2] =
                if self.fragment && place + 1 == chain.len() { [3, 32] } else { [0, 0] };
            match *number {
                PROTOCOL_ROUTING => bytes.extend([next(place + 1), 0, *kind, 0, 0, 0, 0, 0]),
                PROTOCOL_FRAGMENT => {
                    bytes.extend([next(place + 1), 0, offset[0], offset[1], 0, 0, 0, 0])
                }
                // An option that fills up (RFC 8200, 4.2), or an authentication header without a value.
                PROTOCOL_AUTHENTICATION => bytes.extend([next(place + 1), 0, 0, 0, 0, 0, 0, 1]),
                _ => bytes.extend([next(place + 1), 0, 1, 4, 0, 0, 0, 0]),
            }
        }
        (next(0), bytes)
    }

    fn family(&self) -> Family {
        if self.addresses.0.is_ipv4() { Family::Ip4 } else { Family::Ip6 }
    }

    /// An Ethernet frame with these headers.
    fn bytes(&self) -> Vec<u8> {
        let mut upper = [0; UPPER];
        match self.protocol {
            1 | 58 => upper[0] = self.icmp,
            _ => {
                upper[..2].copy_from_slice(&self.ports.0.to_be_bytes());
                upper[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
                if self.protocol == 6 {
                    upper[12] = 0x50;
                    upper[13] = self.flags;
                }
            }
        }
        let mut packet = match self.addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut head =
                    vec![0x45, self.dscp << 2, 0, 0, 0, 0, 0, 0, self.ttl, self.protocol, 0, 0];
                if self.fragment {
                    head[7] = 100;
                }
                head.extend(source.octets());
                head.extend(destination.octets());
                head
            }
            (source, destination) => {
                let (first, chain) = self.chain();
                let mut head =
                    vec![0x60 | self.dscp >> 2, self.dscp << 6, 0, 0, 0, 0, first, self.ttl];
                for address in [source, destination] {
                    if let IpAddr::V6(address) = address {
                        head.extend(address.octets());
                    }
                }
                head.extend(chain);
                head
            }
        };
        packet.extend(upper);
        let length = self.length.map_or(packet.len(), usize::from).max(packet.len());
        packet.resize(length, 0);
        match self.family() {
            Family::Ip4 => packet[2..4].copy_from_slice(&(length as u16).to_be_bytes()),
            Family::Ip6 => packet[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes()),
        }
        [vec![0; ETHERNET_LEN], packet].concat()
    }

    /// Writes the lengths and checksums of the packet's headers.
    fn put_checksums(&self, packet: &mut [u8]) {
        let upper = match self.addresses.0 {
            IpAddr::V4(_) => 20,
            IpAddr::V6(_) => 40 + self.chain().1.len(),
        };
        if self.family() == Family::Ip4 {
            let sum = checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        // Later fragments have no header of the upper layer.
        if self.fragment {
            return;
        }
        let length = packet.len() - upper;
        if self.protocol == PROTOCOL_UDP {
            packet[upper + 4..upper + 6].copy_from_slice(&(length as u16).to_be_bytes());
        }
        let at = match self.protocol {
            PROTOCOL_TCP => 16,
            PROTOCOL_UDP => 6,
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => 2,
            _ => return,
        };
        let mut sum = match self.addresses {
            _ if self.protocol == PROTOCOL_ICMP => Checksum::new(),
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                pseudo_header_v4(from, to, self.protocol, length as u16)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                pseudo_header_v6(from, to, self.protocol, length as u32)
            }
            // Both are of one family.
            _ => return,
        };
        sum.add(&packet[upper..]);
        let sum = match sum.finish() {
            0 if self.protocol == PROTOCOL_UDP => 0xffff,
            sum => sum,
        };
        packet[upper + at..upper + at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(words: &str) -> (Family, Key) {
        read(words, |name| if name == "wan" { Ok(7) } else { Err("known: wan".into()) }).unwrap()
    }

    #[test]
    fn words_become_the_fields_that_rules_match() {
        let (family, key) = packet(
            "tcp 198.51.100.7:4000 > 192.0.2.1:22 in wan flags syn,ack ttl 3 length 900 dscp ef",
        );
        assert_eq!((family, key.protocol(), key.interface()), (Family::Ip4, 6, 7));
        assert_eq!((key.from_port(), key.to_port(), key.flags()), (4000, 22, 0x12));
        assert_eq!((key.ttl(), key.length(), key.dscp()), (3, 900, 46));
        assert_eq!(key.source(family).to_string(), "198.51.100.7");
        assert!(key.has_upper_layer() && !key.is_fragment());
        let (family, key) = packet("udp [2001:db8::1]:53 > 2001:db8::2 dscp 46");
        assert_eq!((family, key.from_port(), key.to_port(), key.dscp()), (Family::Ip6, 53, 0, 46));
        assert_eq!(key.destination(family).to_string(), "2001:db8::2");
        let (_, key) = packet("icmp6 fe80::1 > fe80::2 icmp echo-request");
        assert_eq!((key.protocol(), key.icmp_type(), key.ttl()), (58, 128, 64));
        for words in ["udp 10.0.0.1 > 10.0.0.2 fragment", "udp ::1 > ::2 fragment"] {
            assert!(packet(words).1.is_later_fragment(), "{words}");
        }
    }

    #[test]
    fn words_become_whole_frames() {
        for (words, ethertype) in [
            ("udp 10.0.0.1:1 > 10.0.0.2:2 in wan length 99", [0x08, 0x00]),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 flags syn", [0x08, 0x00]),
            ("icmp 10.0.0.1 > 10.0.0.2 icmp echo-request", [0x08, 0x00]),
            ("udp [::1]:1 > [::2]:2 extension hop-by-hop", [0x86, 0xdd]),
            ("icmp6 fe80::1 > fe80::2 icmp 128", [0x86, 0xdd]),
        ] {
            let known = |name: &str| if name == "wan" { Ok(7) } else { Err(String::new()) };
            let words = format!("{words} to_mac 02:00:00:00:00:01 from_mac 02:00:00:00:00:02");
            let MadeFrame { bytes, interface } = make(&words, known).unwrap();
            assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
            assert_eq!(
                (&bytes[12..14], interface.is_some()),
                (&ethertype[..], words.contains("wan"))
            );
            // As a receiver does it: over the header, and over the rest with the pseudo-header.
            let packet = &bytes[ETHERNET_LEN..];
            let v4 = packet[0] >> 4 == 4;
            assert!(!v4 || checksum(&packet[..20]) == 0, "{words}");
            let (upper, protocol) = match (v4, packet[6]) {
                (true, _) => (20, packet[9]),
                (false, PROTOCOL_HOP_BY_HOP) => (48, packet[40]),
                (false, protocol) => (40, protocol),
            };
            let mut sum = Checksum::new();
            if protocol != PROTOCOL_ICMP {
                sum.add(if v4 { &packet[12..20] } else { &packet[8..40] });
                sum.add_u16((packet.len() - upper) as u16);
                sum.add_u16(protocol.into());
            }
            sum.add(&packet[upper..]);
            assert_eq!(sum.finish(), 0, "{words}");
        }
    }

    #[test]
    fn later_fragments_have_data_and_no_header() {
        for (words, head) in [
            ("udp 10.0.0.1 > 10.0.0.2 fragment length 60", 20),
            ("udp ::1 > ::2 fragment length 80", 48),
        ] {
            let MadeFrame { bytes, .. } = make(words, |_| Err(String::new())).unwrap();
            assert!(bytes[ETHERNET_LEN + head..].iter().all(|&byte| byte == 0), "{words}");
        }
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        for words in [
            "tcp 198.51.100.7:4000 > 192.0.2.1:22 in wan flags syn,ack ttl 3 length 900 dscp 46",
            "udp [2001:db8::1]:53 > [2001:db8::2]:0 in wan ttl 64 length 60",
            "icmp6 fe80::1 > fe80::2 in wan icmp 128 ttl 255 length 60",
            "udp 10.0.0.1:1 > 10.0.0.2:2 in wan priority 5",
            "udp 10.0.0.1 > 10.0.0.2 in wan ttl 64 length 40 fragment",
            "47 10.0.0.1 > 10.0.0.2 in wan ttl 64 length 40",
            "udp [::1]:1 > [::2]:2 in wan ttl 64 length 76 routing 4 routing 0",
            "udp ::1 > ::2 in wan fragment routing 0 extension ah",
            "udp [::1]:1 > [::2]:2 in wan extension fragment extension hop-by-hop extension destination-options",
            "60 ::1 > ::2 in wan extension too-many routing 0 extension destination-options",
        ] {
            let (family, key) = packet(words);
            let written = write(family, &key, "wan");
            assert_eq!(packet(&written), (family, key), "{words}: {written}");
        }
        let (family, key) = packet("tcp 10.0.0.1:1 > 10.0.0.2:2 flags psh,ack ttl 9");
        let written = write(family, &key, "wan");
        assert_eq!(written, "tcp 10.0.0.1:1 > 10.0.0.2:2 in wan flags psh,ack ttl 9 length 40");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (words, named) in [
            ("", "protocol missing"),
            ("tpc 10.0.0.1 > 10.0.0.2", "tpc"),
            ("tcp 10.0.0.1", "> missing"),
            ("tcp 10.0.0.1 10.0.0.2", "where > is expected"),
            ("tcp 10.0.0.300 > 10.0.0.2", "10.0.0.300"),
            ("tcp 10.0.0.1 > ::1", "two families"),
            ("tcp 10.0.0.1 > 10.0.0.2 in lan", "known: wan"),
            ("tcp 10.0.0.1 > 10.0.0.2 on wan", "\"on\" unknown"),
            ("tcp 10.0.0.1 > 10.0.0.2 ttl", "ttl missing"),
            ("tcp 10.0.0.1 > 10.0.0.2 priority 8", "0 to 7"),
            ("tcp 10.0.0.1 > 10.0.0.2 routing 0", "no extension headers"),
            ("tcp ::1 > ::2 extension routing", "write routing and a type"),
            ("tcp ::1 > ::2 extension esp", "write proto"),
        ] {
            let error = read(words, |_| Err("known: wan".into())).unwrap_err();
            assert!(error.contains(named), "{words}: {error}");
        }
    }
}
