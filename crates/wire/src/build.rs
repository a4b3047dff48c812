//! Whole frames, ready to send: ARP, neighbour discovery, multicast listener reports, ICMP.
//!
//! Every function returns the frame from the Ethernet header on, without padding (the device pads
//! short frames) and with all checksums filled in.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32};

use crate::MacAddr;
use crate::address::{ALL_MLDV2_ROUTERS, multicast_mac_v6, solicited_node};
use crate::arp::ArpMessage;
use crate::checksum::{checksum, pseudo_header_v6};
use crate::ethernet::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
use crate::icmp::{ICMP_LEN, IcmpHeader, v6};
use crate::ip::{
    IPV4_DONT_FRAGMENT, IPV4_MIN_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_HOP_BY_HOP,
    PROTOCOL_ICMP, PROTOCOL_ICMPV6,
};
use crate::nd::{
    LinkLayerOption, ListenerRecord, ListenerReport, ND_HOP_LIMIT, NeighbourAdvertisement,
    NeighbourSolicitation, OPTION_SOURCE_LINK_LAYER, OPTION_TARGET_LINK_LAYER,
};

/// The longest IPv4 packet that carries an ICMP error (RFC 1812, 4.3.2.3).
pub const ICMPV4_ERROR_MAX: usize = 576;
/// The longest IPv6 packet that carries an ICMPv6 error: the minimum MTU (RFC 4443, 2.4 (c)).
pub const ICMPV6_ERROR_MAX: usize = 1280;

/// Source and destination MAC of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Destination of the frame.
    pub destination: MacAddr,
    /// Source of the frame.
    pub source: MacAddr,
}

/// The fields of an IPv4 header that a sender chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Fields {
    /// Differentiated services and ECN.
    pub tos: u8,
    /// Identification; matters only when the packet is fragmented.
    pub identification: u16,
    /// True if routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

/// The fields of an IPv6 header that a sender chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Fields {
    /// Traffic class.
    pub class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Protocol of the payload, or the number of an extension header.
    pub next_header: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
}

/// Builds an Ethernet frame around a payload.
pub fn ethernet(link: Link, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let header = EthernetHeader {
        destination: link.destination,
        source: link.source,
        ethertype: U16::new(ethertype),
    };
    [header.as_bytes(), payload].concat()
}

/// Builds the header of an unfragmented IPv4 packet without options. `payload` is the length after the header;
/// a total beyond 65535 saturates.
pub fn ipv4_header(fields: Ipv4Fields, payload: usize) -> Ipv4Header {
    let flags = if fields.dont_fragment { IPV4_DONT_FRAGMENT } else { 0 };
    let total = u16::try_from(IPV4_MIN_LEN + payload).unwrap_or(u16::MAX);
    let mut header = Ipv4Header {
        version_ihl: 0x45,
        tos: fields.tos,
        total_length: U16::new(total),
        identification: U16::new(fields.identification),
        flags_fragment: U16::new(flags),
        ttl: fields.ttl,
        protocol: fields.protocol,
        checksum: U16::new(0),
        source_address: fields.source.octets(),
        destination_address: fields.destination.octets(),
    };
    header.checksum = U16::new(checksum(header.as_bytes()));
    header
}

/// Builds the header of an IPv6 packet, flow label 0. `payload` is the length after the header; beyond 65535 it
/// saturates.
pub fn ipv6_header(fields: Ipv6Fields, payload: usize) -> Ipv6Header {
    Ipv6Header {
        version_class_flow: U32::new(6 << 28 | u32::from(fields.class) << 20),
        payload_length: U16::new(u16::try_from(payload).unwrap_or(u16::MAX)),
        next_header: fields.next_header,
        hop_limit: fields.hop_limit,
        source_address: fields.source.octets(),
        destination_address: fields.destination.octets(),
    }
}

/// Builds an ARP message in its frame.
pub fn arp(link: Link, message: &ArpMessage) -> Vec<u8> {
    ethernet(link, ETHERTYPE_ARP, message.as_bytes())
}

/// Builds an ICMP message in its frame: `fields.protocol` is ignored, the checksum computed.
pub fn icmpv4(link: Link, fields: Ipv4Fields, message: (u8, u8, u32), data: &[u8]) -> Vec<u8> {
    icmpv4_with_options(link, fields, &[], message, data)
}

/// Like [`icmpv4`], with IP options: whole words, at most 40 bytes; further ones are left out.
pub fn icmpv4_with_options(
    link: Link,
    fields: Ipv4Fields,
    options: &[u8],
    (kind, code, rest): (u8, u8, u32),
    data: &[u8],
) -> Vec<u8> {
    let options = &options[..options.len().min(40) & !3];
    let header = IcmpHeader { kind, code, checksum: U16::new(0), rest: U32::new(rest) };
    let mut message = [header.as_bytes(), data].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let fields = Ipv4Fields { protocol: PROTOCOL_ICMP, ..fields };
    let mut ip = ipv4_header(fields, options.len() + message.len());
    ip.version_ihl += (options.len() / 4) as u8;
    ip.checksum = U16::new(0);
    let mut packet = [ip.as_bytes(), options, &message].concat();
    let sum = checksum(&packet[..IPV4_MIN_LEN + options.len()]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    ethernet(link, ETHERTYPE_IPV4, &packet)
}

/// Builds an ICMPv6 message in its frame: `message` is complete, its checksum field is overwritten;
/// `fields.next_header` is ignored. A message shorter than 4 bytes has no checksum field and is
/// sent as it is.
pub fn icmpv6(link: Link, fields: Ipv6Fields, mut message: Vec<u8>) -> Vec<u8> {
    fill_icmpv6_checksum(fields.source, fields.destination, &mut message);
    let ip = ipv6_header(Ipv6Fields { next_header: PROTOCOL_ICMPV6, ..fields }, message.len());
    ethernet(link, ETHERTYPE_IPV6, &[ip.as_bytes(), &message].concat())
}

/// Computes and stores the checksum of an ICMPv6 message.
fn fill_icmpv6_checksum(source: Ipv6Addr, destination: Ipv6Addr, message: &mut [u8]) {
    if message.len() < 4 {
        return;
    }
    message[2..4].fill(0);
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut sum = pseudo_header_v6(source, destination, PROTOCOL_ICMPV6, length);
    sum.add(message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
}

/// Builds an ICMP error about `offending` (an IPv4 packet without its Ethernet header), quoting as
/// much of it as fits [`ICMPV4_ERROR_MAX`]. `message` is type, code and the four type-dependent
/// bytes; `fields.protocol` is ignored.
pub fn icmpv4_error(
    link: Link,
    fields: Ipv4Fields,
    message: (u8, u8, u32),
    offending: &[u8],
) -> Vec<u8> {
    let room = ICMPV4_ERROR_MAX - IPV4_MIN_LEN - ICMP_LEN;
    icmpv4(link, fields, message, &offending[..offending.len().min(room)])
}

/// Builds an ICMPv6 error about `offending` (an IPv6 packet without its Ethernet header), quoting
/// as much of it as fits [`ICMPV6_ERROR_MAX`].
pub fn icmpv6_error(
    link: Link,
    fields: Ipv6Fields,
    (kind, code, rest): (u8, u8, u32),
    offending: &[u8],
) -> Vec<u8> {
    let room = ICMPV6_ERROR_MAX - IPV6_LEN - ICMP_LEN;
    let header = IcmpHeader { kind, code, checksum: U16::new(0), rest: U32::new(rest) };
    let message = [header.as_bytes(), &offending[..offending.len().min(room)]].concat();
    icmpv6(link, fields, message)
}

/// Builds a neighbour solicitation for `target`, with the sender's link-layer address (RFC 4861,
/// 4.3). It goes to the target itself when its MAC is given (a probe), else to its solicited-node
/// group.
pub fn neighbour_solicitation(
    source_mac: MacAddr,
    source: Ipv6Addr,
    target: Ipv6Addr,
    probe: Option<MacAddr>,
) -> Vec<u8> {
    let (destination, destination_mac) = match probe {
        Some(mac) => (target, mac),
        None => (solicited_node(target), multicast_mac_v6(solicited_node(target))),
    };
    let fixed = NeighbourSolicitation {
        kind: v6::NEIGHBOUR_SOLICITATION,
        code: 0,
        checksum: U16::new(0),
        reserved: U32::new(0),
        target_address: target.octets(),
    };
    let option = LinkLayerOption { kind: OPTION_SOURCE_LINK_LAYER, length: 1, mac: source_mac };
    let link = Link { destination: destination_mac, source: source_mac };
    icmpv6(link, nd_fields(source, destination), [fixed.as_bytes(), option.as_bytes()].concat())
}

/// Builds a neighbour advertisement for `target`, with the target's link-layer address, which is
/// the sender's (RFC 4861, 4.4). `flags` are the `FLAG_*` of [`crate::nd`].
pub fn neighbour_advertisement(
    link: Link,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    target: Ipv6Addr,
    flags: u8,
) -> Vec<u8> {
    let fixed = NeighbourAdvertisement {
        kind: v6::NEIGHBOUR_ADVERTISEMENT,
        code: 0,
        checksum: U16::new(0),
        flags,
        reserved: [0; 3],
        target_address: target.octets(),
    };
    let option = LinkLayerOption { kind: OPTION_TARGET_LINK_LAYER, length: 1, mac: link.source };
    icmpv6(link, nd_fields(source, destination), [fixed.as_bytes(), option.as_bytes()].concat())
}

/// Builds a frame to a group from a neighbour discovery message; only its checksum is filled in.
pub fn neighbour_discovery(
    source_mac: MacAddr,
    source: Ipv6Addr,
    group: Ipv6Addr,
    message: Vec<u8>,
) -> Vec<u8> {
    let link = Link { destination: multicast_mac_v6(group), source: source_mac };
    icmpv6(link, nd_fields(source, group), message)
}

fn nd_fields(source: Ipv6Addr, destination: Ipv6Addr) -> Ipv6Fields {
    Ipv6Fields {
        class: 0,
        hop_limit: ND_HOP_LIMIT,
        next_header: PROTOCOL_ICMPV6,
        source,
        destination,
    }
}

/// Builds an MLDv2 report with one record of this kind per group: hop limit 1, a router alert
/// option in a hop-by-hop header, to `ff02::16` (RFC 3810, 5.2). `source` is the port's link-local
/// address.
pub fn listener_report(
    source_mac: MacAddr,
    source: Ipv6Addr,
    record_kind: u8,
    groups: &[Ipv6Addr],
) -> Vec<u8> {
    let fixed = ListenerReport {
        kind: v6::LISTENER_REPORT_V2,
        reserved1: 0,
        checksum: U16::new(0),
        reserved2: U16::new(0),
        records: U16::new(u16::try_from(groups.len()).unwrap_or(u16::MAX)),
    };
    let mut message = fixed.as_bytes().to_vec();
    for group in groups {
        let record = ListenerRecord {
            kind: record_kind,
            auxiliary_length: 0,
            sources: U16::new(0),
            group: group.octets(),
        };
        message.extend_from_slice(record.as_bytes());
    }
    fill_icmpv6_checksum(source, ALL_MLDV2_ROUTERS, &mut message);
    // Router alert with value 0 (RFC 2711, 2.1) and two bytes of padding (PadN).
    let hop_by_hop = [PROTOCOL_ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    let fields = Ipv6Fields {
        class: 0,
        hop_limit: 1,
        next_header: PROTOCOL_HOP_BY_HOP,
        source,
        destination: ALL_MLDV2_ROUTERS,
    };
    let ip = ipv6_header(fields, hop_by_hop.len() + message.len());
    let link = Link { destination: multicast_mac_v6(ALL_MLDV2_ROUTERS), source: source_mac };
    ethernet(link, ETHERTYPE_IPV6, &[ip.as_bytes(), &hop_by_hop, &message].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arp::{REPLY, REQUEST};
    use crate::icmp::v4;
    use crate::ip::PROTOCOL_UDP;
    use crate::nd::{CHANGE_TO_EXCLUDE, FLAG_OVERRIDE, FLAG_ROUTER, FLAG_SOLICITED};
    use proptest::prelude::*;
    use zerocopy::FromBytes;

    const ROUTER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const HOST: MacAddr = MacAddr([2, 0, 0, 0, 0x0a, 1]);

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> =
            text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn to_host() -> Link {
        Link { destination: HOST, source: ROUTER }
    }

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    // The frames below were made by scapy 2, not by this code.

    #[test]
    fn arp_messages() {
        let (router, host) = (Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 1, 2));
        let reply = ArpMessage::new(REPLY, (ROUTER, router), (HOST, host));
        assert_eq!(
            arp(to_host(), &reply),
            hex("020000000a01 020000000001 0806 0001080006040002
                 020000000001 0a000101 020000000a01 0a000102")
        );
        let request = ArpMessage::new(REQUEST, (ROUTER, router), (MacAddr::default(), router));
        let link = Link { destination: MacAddr::BROADCAST, source: ROUTER };
        assert_eq!(
            arp(link, &request),
            hex("ffffffffffff 020000000001 0806 0001080006040001
                 020000000001 0a000101 000000000000 0a000101")
        );
        assert!(reply.is_ethernet_ipv4());
    }

    #[test]
    fn neighbour_discovery_messages() {
        let (router, host) = (address("fd00:1::1"), address("fd00:1::2"));
        assert_eq!(
            neighbour_solicitation(ROUTER, router, host, None),
            hex("3333ff000002 020000000001 86dd 6000000000203aff
                 fd000001000000000000000000000001 ff0200000000000000000001ff000002
                 87007d95 00000000 fd000001000000000000000000000002 0101020000000001")
        );
        let probe = neighbour_solicitation(ROUTER, router, host, Some(HOST));
        assert_eq!((&probe[..6], &probe[38..54]), (&HOST.0[..], &host.octets()[..]));
        let flags = FLAG_ROUTER | FLAG_SOLICITED | FLAG_OVERRIDE;
        assert_eq!(
            neighbour_advertisement(to_host(), router, host, router, flags),
            hex("020000000a01 020000000001 86dd 6000000000203aff
                 fd000001000000000000000000000001 fd000001000000000000000000000002
                 88009c98 e0000000 fd000001000000000000000000000001 0201020000000001")
        );
    }

    #[test]
    fn a_listener_report() {
        let groups = [address("ff02::2"), address("ff02::1:ff00:1")];
        let source = address("fe80::ff:fe00:1");
        assert_eq!(
            listener_report(ROUTER, source, CHANGE_TO_EXCLUDE, &groups),
            hex("333300000016 020000000001 86dd 6000000000380001
                 fe80000000000000000000fffe000001 ff020000000000000000000000000016
                 3a00050200000100 8f006eed00000002
                 04000000ff020000000000000000000000000002
                 04000000ff0200000000000000000001ff000001")
        );
    }

    fn fields_v4() -> Ipv4Fields {
        Ipv4Fields {
            tos: 0xc0,
            identification: 1,
            dont_fragment: false,
            ttl: 64,
            protocol: PROTOCOL_UDP,
            source: Ipv4Addr::new(10, 0, 1, 1),
            destination: Ipv4Addr::new(10, 0, 1, 2),
        }
    }

    fn fields_v6() -> Ipv6Fields {
        Ipv6Fields {
            class: 0,
            hop_limit: 64,
            next_header: PROTOCOL_UDP,
            source: address("fd00:1::1"),
            destination: address("fd00:1::2"),
        }
    }

    #[test]
    fn icmp_errors() {
        let offending = hex("4500002142420000011160870a0001020a000202 80e8829a000da07870726f6265");
        assert_eq!(
            icmpv4_error(to_host(), fields_v4(), (v4::TIME_EXCEEDED, 0, 0), &offending),
            hex("020000000a01 020000000001 0800 45c0003d00010000400163fd0a0001010a000102
                 0b000c2200000000
                 4500002142420000011160870a0001020a000202 80e8829a000da07870726f6265")
        );
        let offending = hex("60000000000d1101 fd000001000000000000000000000002
                             fd000002000000000000000000000002 80e8829a000dbd7370726f6265");
        assert_eq!(
            icmpv6_error(to_host(), fields_v6(), (v6::TIME_EXCEEDED, 0, 0), &offending),
            hex("020000000a01 020000000001 86dd 60000000003d3a40
                 fd000001000000000000000000000001 fd000001000000000000000000000002
                 0300919100000000 60000000000d1101
                 fd000001000000000000000000000002 fd000002000000000000000000000002
                 80e8829a000dbd7370726f6265")
        );
    }

    #[test]
    fn the_traffic_class_stands_between_version_and_flow_label() {
        let header = ipv6_header(Ipv6Fields { class: 0xb8, ..fields_v6() }, 9);
        assert_eq!(header.as_bytes()[..6], [0x6b, 0x80, 0, 0, 0, 9]);
        assert_eq!(header.version(), 6);
    }

    #[test]
    fn lengths_beyond_the_fields_saturate() {
        assert_eq!(ipv4_header(fields_v4(), 70_000).total_length, 65_535);
        assert_eq!(ipv6_header(fields_v6(), 70_000).payload_length, 65_535);
    }

    proptest! {
        #[test]
        fn errors_quote_what_fits_and_verify(offending in prop::collection::vec(any::<u8>(), 0..1500)) {
            let frame = icmpv4_error(to_host(), fields_v4(), (3, 4, 1400), &offending);
            let (header, message) = Ipv4Header::ref_from_prefix(&frame[14..]).unwrap();
            let quoted = offending.len().min(576 - 28);
            prop_assert_eq!(usize::from(header.total_length.get()), 28 + quoted);
            prop_assert_eq!(frame.len(), 14 + 28 + quoted);
            prop_assert_eq!(checksum(&frame[14..34]), 0);
            prop_assert_eq!(checksum(message), 0);
            prop_assert_eq!(&message[4..8], [0, 0, 5, 120]);
            prop_assert_eq!(&message[8..], &offending[..quoted]);

            let frame = icmpv6_error(to_host(), fields_v6(), (2, 0, 1400), &offending);
            let (header, message) = Ipv6Header::ref_from_prefix(&frame[14..]).unwrap();
            let quoted = offending.len().min(1280 - 48);
            prop_assert_eq!(usize::from(header.payload_length.get()), 8 + quoted);
            let length = message.len() as u32;
            let mut sum = pseudo_header_v6(header.source(), header.destination(), 58, length);
            sum.add(message);
            prop_assert_eq!(sum.finish(), 0);
            prop_assert_eq!(&message[8..], &offending[..quoted]);
        }

        #[test]
        fn headers_read_back_what_was_built(
            tos in any::<u8>(), identification in any::<u16>(), ttl in any::<u8>(),
            protocol in any::<u8>(), source in any::<[u8; 4]>(), destination in any::<[u8; 4]>(),
            payload in 0usize..1500,
        ) {
            let (source, destination) = (Ipv4Addr::from(source), Ipv4Addr::from(destination));
            let dont_fragment = ttl % 2 == 1;
            let fields = Ipv4Fields {
                tos, identification, dont_fragment, ttl, protocol, source, destination,
            };
            let header = ipv4_header(fields, payload);
            prop_assert_eq!(checksum(header.as_bytes()), 0);
            prop_assert_eq!((header.version(), header.header_len()), (4, 20));
            prop_assert_eq!((header.source(), header.destination()), (source, destination));
            prop_assert_eq!((header.tos, header.ttl, header.protocol), (tos, ttl, protocol));
            prop_assert_eq!(usize::from(header.total_length.get()), 20 + payload);
            prop_assert!(!header.is_fragment());
            prop_assert_eq!(header.dont_fragment(), dont_fragment);
        }
    }
}
