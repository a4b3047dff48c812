//! Keys: the fields of a packet that rules match.
//!
//! # The upper-layer header
//!
//! Ports, flags and ICMP type are read only if the upper-layer header is whole; otherwise they are
//! zero and [`NO_UPPER`] is set, and no rule with ports, flags or ICMP types matches. That holds for:
//!
//! | packet | asked for by |
//! |---|---|
//! | a later fragment: it has no upper-layer header, and its first bytes look like one | RFC 1858, 2 |
//! | a first fragment that ends within the upper-layer header ("tiny") | RFC 1858, 3 |
//! | an IPv6 first fragment that ends within the header chain | RFC 7112, 5 |
//! | an IPv6 chain of more than [`MAX_HEADERS`] extension headers, or that leaves the first buffer | RFC 7045, 2.1 leaves the limit to the node |
//! | a packet that ends within the upper-layer header, or has the other family's ICMP | - |
//!
//! [`TINY`] marks the fragments that RFC 1858 (3.2, 4.2), RFC 3128 and RFC 7112 (5) let a filter drop
//! regardless of its rules: first fragments that end too early, and TCP fragments at offset 8, which overwrite
//! the flags of the first at a receiver that lets fragments overlap. An atomic fragment (RFC 6946: offset 0, no
//! more fragments) is a whole packet.
//!
//! The protocol is that of the upper layer. Where an IPv6 chain cannot be followed to its end it is
//! the number of the header at which the walk ended, so that a rule can name it. The walk passes
//! hop-by-hop, routing, fragment, authentication and destination options headers. ESP ends it, and
//! so do the headers of mobility, HIP and shim6, which a host without those protocols discards.
//! IPv4's authentication header is not passed: its protocol is 51.
//!
//! # Extension headers
//!
//! The walk records the kinds of all headers that it has seen and the types of all routing headers: a second
//! routing header hides no first one (RFC 8200 4.1 has one, and a receiver may enforce that there are no more).
//! It sees one header beyond [`MAX_HEADERS`], and none after that: [`Extension::TooMany`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{
    MacAddr,
    chain::{self, Header},
    ethernet::ETHERNET_LEN,
    ip::{
        IPV4_MIN_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_AUTHENTICATION,
        PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_HOP_BY_HOP, PROTOCOL_ICMP, PROTOCOL_ICMPV6,
        PROTOCOL_TCP, PROTOCOL_UDP,
    },
    l4::{TcpHeader, UdpHeader},
};
use zerocopy::FromBytes;

use crate::{
    Extension, Family, State,
    text::{PROTOCOL_DCCP, PROTOCOL_SCTP, PROTOCOL_UDPLITE},
};

/// Bit of the fragment byte: the first or a later fragment of a fragmented packet.
pub const FRAGMENT: u8 = 0x01;
/// Bit of the fragment byte: a later fragment.
pub const LATER: u8 = 0x02;
/// Bit of the fragment byte: a fragment that a filter should drop.
pub const TINY: u8 = 0x04;
/// Bit of the fragment byte: ports, flags and ICMP type are not known.
pub const NO_UPPER: u8 = 0x80;

#[cfg(test)]
use wire::ip::{Ipv6FragmentHeader, PROTOCOL_FRAGMENT, PROTOCOL_ROUTING};

/// IPv6 extension headers that are passed at most.
pub const MAX_HEADERS: usize = 8;

/// Bytes of the TCP header's fixed part.
pub(crate) const TCP_LEN: usize = size_of::<TcpHeader>();
/// Bytes of the UDP header; UDP-Lite's is as long.
pub(crate) const UDP_LEN: usize = size_of::<UdpHeader>();
/// Bytes of SCTP's common header (RFC 9260, 3.1) and DCCP's shortest generic one (RFC 4340, 5.1).
const SCTP_LEN: usize = 12;
/// Bytes of an ICMP header: type, code, checksum.
const ICMP_LEN: usize = 4;

/// The IPv6 extension headers of a packet, as far as rules ask for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    /// A bit for each [`Extension`] that it has.
    kinds: u8,
    /// Headers seen.
    count: u8,
    /// Routing headers seen.
    routing: u8,
    /// The types of the routing headers, in order.
    types: [u8; MAX_HEADERS + 1],
}

/// Bit of [`Headers::kinds`] of a later fragment of either family, which no [`Extension`] has.
pub(crate) const LATER_KIND: u8 = 1 << 7;

impl Headers {
    /// A bit for each [`Extension`] that the packet has.
    #[inline(always)]
    pub fn kinds(&self) -> u8 {
        self.kinds
    }

    /// The types of its routing headers.
    #[inline(always)]
    pub fn routing_types(&self) -> &[u8] {
        self.types.get(..usize::from(self.routing)).unwrap_or_default()
    }

    /// With another header: its number, and its type if it is a routing header.
    #[cfg(test)]
    pub fn with(mut self, (number, kind): (u8, u8)) -> Self {
        let fragment = Ipv6FragmentHeader {
            next_header: 17,
            reserved: 0,
            offset_more: 0.into(),
            identification: 0.into(),
        };
        self.add(match number {
            PROTOCOL_ROUTING => Header::Routing(kind),
            PROTOCOL_FRAGMENT => Header::Fragment(&fragment),
            other => Header::Other(other),
        });
        self
    }

    fn add(&mut self, header: Header<'_>) {
        self.count += 1;
        let kind = match header {
            Header::Fragment(_) => Extension::Fragment,
            Header::Routing(of) => {
                if let Some(place) = self.types.get_mut(usize::from(self.routing)) {
                    *place = of;
                    self.routing += 1;
                }
                Extension::Routing
            }
            Header::Other(PROTOCOL_HOP_BY_HOP) => Extension::HopByHop,
            Header::Other(PROTOCOL_AUTHENTICATION) => Extension::Authentication,
            Header::Other(PROTOCOL_DESTINATION_OPTIONS) => Extension::DestinationOptions,
            Header::Other(_) => return,
        };
        self.kinds |= kind.bit();
        if usize::from(self.count) > MAX_HEADERS {
            self.kinds |= Extension::TooMany.bit();
        }
    }
}

/// One packet's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// An IPv4 address is the low 32 bits.
    pub(crate) source: u128,
    pub(crate) destination: u128,
    /// Source and destination port; 0 for protocols without ports.
    pub(crate) ports: [u16; 2],
    /// IP length in bytes; 65535 for longer packets.
    pub(crate) length: u16,
    /// Ingress interface number.
    pub(crate) interface: u16,
    pub(crate) protocol: u8,
    /// TCP flags; 0 for other protocols.
    pub(crate) flags: u8,
    /// ICMP type; 0 for other protocols.
    pub(crate) icmp_type: u8,
    pub(crate) dscp: u8,
    pub(crate) ttl: u8,
    /// [`FRAGMENT`], [`LATER`], [`TINY`] and [`NO_UPPER`].
    pub(crate) fragment: u8,
    /// The state of its connection, which is not in the frame.
    pub(crate) state: State,
    /// The destination and the source MAC of the frame, see [`mac_number`].
    pub(crate) macs: [u64; 2],
    /// The priority of its VLAN tag, which is no longer in the frame.
    pub(crate) priority: u8,
    /// Its IPv6 extension headers.
    pub(crate) headers: Headers,
}

/// A MAC as a number.
pub(crate) fn mac_number(MacAddr([a, b, c, d, e, f]): MacAddr) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The MAC that a number stands for.
fn mac_of(number: u64) -> MacAddr {
    let [_, _, mac @ ..] = number.to_be_bytes();
    MacAddr(mac)
}

impl Key {
    /// [`Self::of_ip4`] of a whole TCP or UDP packet without options, as nearly all are: nothing to walk.
    #[inline(always)]
    pub(crate) fn of_plain_ip4(frame: &[u8], length: usize, interface: u16) -> Option<Key> {
        let head: &[u8; ETHERNET_LEN + IPV4_MIN_LEN + TCP_LEN] = frame.first_chunk()?;
        let (ip, upper) = Ipv4Header::ref_from_prefix(&head[ETHERNET_LEN..]).ok()?;
        let ip_length = usize::from(ip.total_length.get()).min(length.saturating_sub(ETHERNET_LEN));
        let is_whole = ip.version_ihl == 0x45 && !ip.more_fragments() && ip.fragment_offset() == 0;
        if !is_whole || ip_length < IPV4_MIN_LEN + upper_len(ip.protocol)? {
            return None;
        }
        Some(Key {
            source: u32::from_be_bytes(ip.source_address).into(),
            destination: u32::from_be_bytes(ip.destination_address).into(),
            length: ip_length as u16,
            dscp: ip.tos >> 2,
            ttl: ip.ttl,
            ..Self::plain(upper, ip.protocol, interface)
        })
    }

    /// The fields of a plain packet's upper-layer header; `upper` is at least [`TCP_LEN`] bytes.
    #[inline(always)]
    fn plain(upper: &[u8], protocol: u8, interface: u16) -> Key {
        let flags = if protocol == PROTOCOL_TCP { upper[13] } else { 0 };
        let port = |at: usize| u16::from_be_bytes([upper[at], upper[at + 1]]);
        Key { ports: [port(0), port(2)], protocol, flags, interface, ..Key::default() }
    }

    /// The key of an IPv4 frame.
    ///
    /// `frame` is the Ethernet frame's first buffer, whose IP header at byte 14 has been validated;
    /// `length` is the whole frame's length in bytes. A frame too short for its header gives a key
    /// without addresses that has [`NO_UPPER`] set.
    pub fn of_ip4(frame: &[u8], length: usize, interface: u16) -> Key {
        let mut key = Key { interface, ..Key::default() }.with_macs(frame);
        let packet = frame.get(ETHERNET_LEN..).unwrap_or_default();
        let Ok((ip, _)) = Ipv4Header::ref_from_prefix(packet) else {
            return key.without_upper();
        };
        let ip_length = usize::from(ip.total_length.get()).min(length.saturating_sub(ETHERNET_LEN));
        key.put_common(ip.tos, ip.ttl, ip_length);
        key.source = u32::from_be_bytes(ip.source_address).into();
        key.destination = u32::from_be_bytes(ip.destination_address).into();
        let start = ip.header_len().max(IPV4_MIN_LEN);
        let payload = packet.get(start..ip_length.min(packet.len())).unwrap_or_default();
        key.put_fragment(ip.fragment_offset(), ip.more_fragments(), ip.protocol);
        key.put_upper(ip.protocol, PROTOCOL_ICMP, payload);
        key
    }

    /// [`Self::of_ip6`] of a TCP or UDP packet without extension headers, as nearly all are: nothing to walk.
    #[inline(always)]
    pub(crate) fn of_plain_ip6(frame: &[u8], length: usize, interface: u16) -> Option<Key> {
        let head: &[u8; ETHERNET_LEN + IPV6_LEN + TCP_LEN] = frame.first_chunk()?;
        let (ip, upper) = Ipv6Header::ref_from_prefix(&head[ETHERNET_LEN..]).ok()?;
        let ip_length = ip6_length(ip, length);
        if ip_length < IPV6_LEN + upper_len(ip.next_header)? {
            return None;
        }
        Some(Key {
            source: u128::from_be_bytes(ip.source_address),
            destination: u128::from_be_bytes(ip.destination_address),
            length: u16::try_from(ip_length).unwrap_or(u16::MAX),
            dscp: (ip.version_class_flow.get() >> 22) as u8 & 0x3f,
            ttl: ip.hop_limit,
            ..Self::plain(upper, ip.next_header, interface)
        })
    }

    /// The key of an IPv6 frame; arguments as for [`Key::of_ip4`].
    pub fn of_ip6(frame: &[u8], length: usize, interface: u16) -> Key {
        let mut key = Key { interface, ..Key::default() }.with_macs(frame);
        let packet = frame.get(ETHERNET_LEN..).unwrap_or_default();
        let Ok((ip, _)) = Ipv6Header::ref_from_prefix(packet) else {
            return key.without_upper();
        };
        let ip_length = ip6_length(ip, length);
        let class = (ip.version_class_flow.get() >> 20) as u8;
        key.put_common(class, ip.hop_limit, ip_length);
        key.source = u128::from_be_bytes(ip.source_address);
        key.destination = u128::from_be_bytes(ip.destination_address);
        let payload = packet.get(IPV6_LEN..ip_length.min(packet.len())).unwrap_or_default();
        match key.put_chain(ip.next_header, payload) {
            Some((protocol, payload)) => key.put_upper(protocol, PROTOCOL_ICMPV6, payload),
            None => key.put_no_upper(),
        }
        key
    }

    /// The same packet, with the MACs of its frame.
    #[inline(always)]
    pub(crate) fn with_macs(self, frame: &[u8]) -> Self {
        let mac = |at: usize| {
            let bytes: Option<&[u8; 6]> = frame.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |mac| mac_number(MacAddr(*mac)))
        };
        Self { macs: [mac(0), mac(6)], ..self }
    }

    /// Returns the source MAC of the frame.
    pub fn from_mac(&self) -> MacAddr {
        mac_of(self.macs[1])
    }

    /// Returns the destination MAC of the frame.
    pub fn to_mac(&self) -> MacAddr {
        mac_of(self.macs[0])
    }

    /// Its extension headers, and [`LATER_KIND`].
    #[inline(always)]
    pub(crate) fn headers_and_later(&self) -> Headers {
        let later = if self.is_later_fragment() { LATER_KIND } else { 0 };
        Headers { kinds: self.headers.kinds | later, ..self.headers }
    }

    /// The same packet, of which this is known.
    pub fn with_state(self, state: State) -> Self {
        Self { state, ..self }
    }

    /// The same packet, whose VLAN tag had this priority.
    pub fn with_priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    /// The priority of its VLAN tag; 0 without one.
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// The state of its connection.
    pub fn state(&self) -> State {
        self.state
    }

    /// The upper-layer protocol.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// TCP flags; 0 for other protocols.
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// ICMP type; 0 for other protocols.
    pub fn icmp_type(&self) -> u8 {
        self.icmp_type
    }

    /// DSCP, 0 to 63.
    pub fn dscp(&self) -> u8 {
        self.dscp
    }

    /// Time to live or hop limit.
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// IP length in bytes; 65535 for longer packets.
    pub fn length(&self) -> u16 {
        self.length
    }

    /// Ingress interface number.
    pub fn interface(&self) -> u16 {
        self.interface
    }

    /// True if it has such an extension header.
    pub fn has_extension(&self, extension: Extension) -> bool {
        self.headers.kinds() & extension.bit() != 0
    }

    /// The types of its routing headers, in their order.
    pub fn routing_types(&self) -> &[u8] {
        self.headers.routing_types()
    }

    /// Source port; 0 for protocols without ports.
    pub fn from_port(&self) -> u16 {
        self.ports[0]
    }

    /// Destination port; 0 for protocols without ports.
    pub fn to_port(&self) -> u16 {
        self.ports[1]
    }

    /// Source address of a packet of `family`.
    pub fn source(&self, family: Family) -> IpAddr {
        match family {
            Family::Ip4 => Ipv4Addr::from_bits(self.source as u32).into(),
            Family::Ip6 => Ipv6Addr::from_bits(self.source).into(),
        }
    }

    /// Destination address of a packet of `family`.
    pub fn destination(&self, family: Family) -> IpAddr {
        match family {
            Family::Ip4 => Ipv4Addr::from_bits(self.destination as u32).into(),
            Family::Ip6 => Ipv6Addr::from_bits(self.destination).into(),
        }
    }

    /// True for the first and the later fragments of a fragmented packet.
    pub fn is_fragment(&self) -> bool {
        self.fragment & FRAGMENT != 0
    }

    /// True for later fragments.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment & LATER != 0
    }

    /// True for fragments that a filter should drop: see [`TINY`].
    #[inline]
    pub fn is_tiny(&self) -> bool {
        self.fragment & TINY != 0
    }

    /// True if ports, flags and ICMP type are known.
    pub fn has_upper_layer(&self) -> bool {
        self.fragment & NO_UPPER == 0
    }

    #[inline(always)]
    fn put_common(&mut self, class: u8, ttl: u8, ip_length: usize) {
        self.dscp = class >> 2;
        self.ttl = ttl;
        self.length = u16::try_from(ip_length).unwrap_or(u16::MAX);
    }

    fn without_upper(mut self) -> Self {
        self.put_no_upper();
        self
    }

    /// Marks the upper layer as unknown; a first fragment without one is tiny.
    #[inline(always)]
    fn put_no_upper(&mut self) {
        let bits = &mut self.fragment;
        *bits |= NO_UPPER;
        if *bits & (FRAGMENT | LATER) == FRAGMENT {
            *bits |= TINY;
        }
    }

    /// Marks fragments; `offset` is in bytes, `protocol` that of the data.
    #[inline(always)]
    fn put_fragment(&mut self, offset: usize, more: bool, protocol: u8) {
        let later = offset != 0;
        let overwrites_flags = offset == 8 && protocol == PROTOCOL_TCP;
        self.fragment |= match (later, more) {
            (false, false) => 0,
            (false, true) => FRAGMENT,
            (true, _) if overwrites_flags => FRAGMENT | LATER | NO_UPPER | TINY,
            (true, _) => FRAGMENT | LATER | NO_UPPER,
        };
    }

    /// Reads the upper-layer header at the start of `payload`; `icmp` is the family's ICMP.
    #[inline(always)]
    fn put_upper(&mut self, protocol: u8, icmp: u8, payload: &[u8]) {
        self.protocol = protocol;
        if self.fragment & LATER != 0 {
            return;
        }
        let read = match protocol {
            PROTOCOL_TCP => self.put_tcp(payload),
            PROTOCOL_UDP | PROTOCOL_UDPLITE => self.put_ports(payload.first_chunk::<UDP_LEN>()),
            PROTOCOL_SCTP | PROTOCOL_DCCP => self.put_ports(payload.first_chunk::<SCTP_LEN>()),
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 if protocol != icmp => None,
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => self.put_icmp(payload),
            _ => Some(()),
        };
        if read.is_none() {
            self.put_no_upper();
        }
    }

    #[inline(always)]
    fn put_tcp(&mut self, payload: &[u8]) -> Option<()> {
        let tcp = payload.first_chunk::<TCP_LEN>();
        self.put_ports(tcp)?;
        let (tcp, _) = TcpHeader::ref_from_prefix(payload).ok()?;
        self.flags = tcp.offset_flags.get() as u8;
        Some(())
    }

    #[inline(always)]
    fn put_ports<const N: usize>(&mut self, header: Option<&[u8; N]>) -> Option<()> {
        let [from0, from1, to0, to1] = *header?.first_chunk()?;
        self.ports = [u16::from_be_bytes([from0, from1]), u16::from_be_bytes([to0, to1])];
        Some(())
    }

    #[inline(always)]
    fn put_icmp(&mut self, payload: &[u8]) -> Option<()> {
        let [kind, ..] = payload.first_chunk::<ICMP_LEN>()?;
        self.icmp_type = *kind;
        Some(())
    }

    /// Walks an IPv6 header chain, noting its headers and marking fragments: the upper-layer protocol and its header, or
    /// `None` with the number of the header where the walk ended as the protocol.
    #[inline]
    fn put_chain<'a>(&mut self, first: u8, payload: &'a [u8]) -> Option<(u8, &'a [u8])> {
        let end = chain::walk(first, payload, MAX_HEADERS, |header| {
            self.headers.add(header);
            if let Header::Fragment(header) = header {
                self.put_fragment(header.fragment_offset(), header.more(), header.next_header);
            }
        });
        end.map_err(|number| self.protocol = number).ok()
    }
}

/// Bytes of the upper-layer header of plain packets.
#[inline(always)]
fn upper_len(protocol: u8) -> Option<usize> {
    match protocol {
        PROTOCOL_TCP => Some(TCP_LEN),
        PROTOCOL_UDP => Some(UDP_LEN),
        _ => None,
    }
}

/// Bytes in the packet; a payload length of 0 is a jumbogram's or a coalesced segment's.
#[inline(always)]
fn ip6_length(ip: &Ipv6Header, frame_length: usize) -> usize {
    let most = frame_length.saturating_sub(ETHERNET_LEN);
    match usize::from(ip.payload_length.get()) {
        0 if ip.next_header == PROTOCOL_HOP_BY_HOP => most,
        payload => (payload + IPV6_LEN).min(most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: [u8; 20] =
        [0x10, 0x01, 0, 22, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0];
    const UDP: [u8; 8] = [0x13, 0x88, 0, 53, 0, 8, 0, 0];

    /// An IPv4 frame: options, flags and offset field, protocol, payload.
    fn ip4(options: &[u8], fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header_len = 20 + options.len();
        let mut frame = vec![0u8; 12];
        frame.extend([0x08, 0x00, 0x40 | (header_len / 4) as u8, 0xb8]);
        frame.extend(((header_len + payload.len()) as u16).to_be_bytes());
        frame.extend([0x12, 0x34]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([61, protocol, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]);
        frame.extend(options);
        frame.extend(payload);
        frame
    }

    /// An IPv6 frame: the chain and the data after it, as bytes.
    fn ip6(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0u8; 12];
        frame.extend([0x86, 0xdd, 0x6b, 0x80, 0, 0]);
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([next_header, 61]);
        frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([0x20, 0x01, 0x0d, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend(payload);
        frame
    }

    fn key4(frame: &[u8]) -> Key {
        Key::of_ip4(frame, frame.len(), 0x0102)
    }

    fn key6(frame: &[u8]) -> Key {
        Key::of_ip6(frame, frame.len(), 0x0102)
    }

    fn bits(key: Key) -> u8 {
        key.fragment
    }

    fn ports(key: Key) -> (u8, u16, u16) {
        (key.protocol(), key.from_port(), key.to_port())
    }

    #[test]
    fn plain_packets_are_read_as_all_are() {
        let v4 = ip4(&[], 0x4000, 6, &TCP);
        let v6 = ip6(17, &[&UDP[..], &[0; 12]].concat());
        let (mut plain4, mut plain6) = (0, 0);
        // Each byte of the headers, all values; and frames longer or shorter than their length fields.
        for (at, value) in (14..v4.len()).flat_map(|at| (0..=255).map(move |value| (at, value))) {
            let (mut one, mut other) = (v4.clone(), v6.clone());
            (one[at], other[at]) = (value, value);
            for length in [20, 33, 41, 53, 54, 74, 1514] {
                if let Some(key) = Key::of_plain_ip4(&one, length, 9) {
                    assert_eq!(
                        key.with_macs(&one),
                        Key::of_ip4(&one, length, 9),
                        "{at} {value} {length}"
                    );
                    plain4 += 1;
                }
                if let Some(key) = Key::of_plain_ip6(&other, length, 9) {
                    assert_eq!(
                        key.with_macs(&other),
                        Key::of_ip6(&other, length, 9),
                        "{at} {value} {length}"
                    );
                    plain6 += 1;
                }
            }
        }
        assert!(plain4 > 10_000 && plain6 > 10_000, "{plain4} {plain6}");
    }

    #[test]
    fn ip4_fields_are_read() {
        let key = key4(&ip4(&[], 0x4000, 6, &TCP));
        let wanted = Key {
            source: 0xc000_0201,
            destination: 0xc633_6407,
            ports: [0x1001, 22],
            length: 40,
            interface: 0x0102,
            protocol: 6,
            flags: 0x12,
            icmp_type: 0,
            dscp: 46,
            ttl: 61,
            fragment: 0,
            state: State::New,
            macs: key.macs,
            priority: 0,
            headers: Headers::default(),
        };
        assert_eq!(key, wanted);
        assert_eq!(key.source(Family::Ip4).to_string(), "192.0.2.1");
        assert_eq!(key.destination(Family::Ip4).to_string(), "198.51.100.7");
    }

    #[test]
    fn macs_are_read() {
        let mut frame = ip6(58, &[135, 0, 0, 0]);
        frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9]);
        let key = key6(&frame);
        assert_eq!(
            (key.to_mac().to_string(), key.from_mac().0[5]),
            ("02:00:00:00:00:01".into(), 9)
        );
    }

    #[test]
    fn ip6_fields_are_read() {
        let key = key6(&ip6(58, &[135, 0, 0, 0]));
        assert_eq!((key.protocol, key.icmp_type, key.dscp, key.ttl), (58, 135, 46, 61));
        assert_eq!((key.length, key.interface, key.fragment), (44, 0x0102, 0));
        assert_eq!(key.source(Family::Ip6).to_string(), "2001:db8::1");
        assert_eq!(key.destination(Family::Ip6).to_string(), "2001:db8:9::2");
    }

    #[test]
    fn ip4_options_are_skipped() {
        let key = key4(&ip4(&[7, 7, 4, 0, 0, 0, 0, 0], 0, 17, &UDP));
        assert_eq!((ports(key), bits(key), key.length()), ((17, 5000, 53), 0, 36));
    }

    #[test]
    fn padding_is_not_an_upper_layer_header() {
        let mut frame = ip4(&[], 0, 17, &UDP[..4]);
        frame.resize(60, 0xff);
        assert_eq!((ports(key4(&frame)), bits(key4(&frame))), ((17, 0, 0), NO_UPPER));
        let mut frame = ip6(17, &UDP[..4]);
        frame.resize(80, 0xff);
        assert_eq!((ports(key6(&frame)), bits(key6(&frame))), ((17, 0, 0), NO_UPPER));
        assert_eq!(key6(&frame).length(), 44);
    }

    #[test]
    fn each_protocol_needs_its_own_header() {
        let headers = [(6, 20), (17, 8), (136, 8), (132, 12), (33, 12), (1, 4)];
        for (protocol, needed) in headers {
            let whole = [9u8; 20];
            assert_eq!(bits(key4(&ip4(&[], 0, protocol, &whole[..needed]))), 0, "{protocol}");
            let short = key4(&ip4(&[], 0, protocol, &whole[..needed - 1]));
            assert_eq!((bits(short), ports(short)), (NO_UPPER, (protocol, 0, 0)), "{protocol}");
        }
        assert_eq!(bits(key4(&ip4(&[], 0, 89, &[]))), 0);
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let key = key4(&ip4(&[], 0x2010, 6, &TCP));
        assert_eq!((ports(key), key.flags()), ((6, 0, 0), 0));
        assert_eq!(bits(key), FRAGMENT | LATER | NO_UPPER);
        let last = key4(&ip4(&[], 0x0010, 6, &TCP));
        assert_eq!(bits(last), FRAGMENT | LATER | NO_UPPER);
    }

    #[test]
    fn first_fragments_have_ports_unless_tiny() {
        let first = key4(&ip4(&[], 0x2000, 6, &TCP));
        assert_eq!((ports(first), bits(first)), ((6, 4097, 22), FRAGMENT));
        let tiny = key4(&ip4(&[], 0x2000, 6, &TCP[..8]));
        assert_eq!((ports(tiny), bits(tiny)), ((6, 0, 0), FRAGMENT | NO_UPPER | TINY));
        assert!(tiny.is_tiny() && !first.is_tiny());
    }

    #[test]
    fn tcp_fragments_that_overwrite_flags_are_tiny() {
        let later = FRAGMENT | LATER | NO_UPPER;
        assert_eq!(bits(key4(&ip4(&[], 0x2001, 6, &TCP))), later | TINY);
        assert_eq!(bits(key4(&ip4(&[], 0x2001, 17, &UDP))), later);
        let at8 = [&[6, 0, 0, 8, 0, 0, 0, 1], &TCP[..]].concat();
        assert_eq!(bits(key6(&ip6(44, &at8))), later | TINY);
    }

    #[test]
    fn extension_headers_are_passed() {
        let hop = [43, 0, 1, 4, 0, 0, 0, 0];
        let routing = [60, 2, 0, 0, 0, 0, 0, 0].into_iter().chain([0; 16]);
        let options = [51, 0, 1, 4, 0, 0, 0, 0];
        let authentication = [6, 4, 0, 0].into_iter().chain([7; 20]);
        let chain: Vec<u8> = hop
            .into_iter()
            .chain(routing)
            .chain(options)
            .chain(authentication)
            .chain(TCP)
            .collect();
        let key = key6(&ip6(0, &chain));
        assert_eq!((ports(key), key.flags(), bits(key)), ((6, 4097, 22), 0x12, 0));
    }

    #[test]
    fn extension_headers_are_noted() {
        let has = |key: Key| {
            Extension::ALL.into_iter().filter(|&of| key.has_extension(of)).collect::<Vec<_>>()
        };
        assert_eq!(has(key6(&ip6(6, &TCP))), []);
        let routing = |next, kind| [next, 0, kind, 0, 0, 0, 0, 0];
        let chain =
            [&routing(43, 4)[..], &routing(60, 0), &[17, 0, 1, 4, 0, 0, 0, 0], &UDP].concat();
        let key = key6(&ip6(43, &chain));
        assert_eq!(has(key), [Extension::Routing, Extension::DestinationOptions]);
        assert_eq!((key.routing_types(), ports(key)), (&[4, 0][..], (17, 5000, 53)));
        let chain =
            [&[51, 0, 1, 4, 0, 0, 0, 0][..], &[44, 0, 0, 0, 0, 0, 0, 0], &[17; 8], &UDP].concat();
        let key = key6(&ip6(0, &chain));
        assert_eq!(has(key), [Extension::HopByHop, Extension::Fragment, Extension::Authentication]);
    }

    #[test]
    fn a_routing_header_hides_behind_no_others() {
        let options = [60, 0, 1, 4, 0, 0, 0, 0].repeat(7);
        let chain = |more: usize| {
            let more = [60, 0, 1, 4, 0, 0, 0, 0].repeat(more);
            let routing = [17, 0, 0, 0, 0, 0, 0, 0];
            let last = [43, 0, 1, 4, 0, 0, 0, 0];
            key6(&ip6(60, &[&options[8..], &more, &last, &routing, &UDP].concat()))
        };
        let seen = |key: Key| (key.routing_types().to_vec(), key.has_extension(Extension::TooMany));
        assert_eq!(seen(chain(0)), (vec![0], false));
        assert_eq!(seen(chain(1)), (vec![0], true), "the ninth header");
        assert_eq!(seen(chain(2)), (vec![], true));
        // A header that extends beyond the packet: its type is present.
        assert_eq!(seen(key6(&ip6(43, &[17, 9, 0, 1]))), (vec![0], false));
    }

    #[test]
    fn ip6_fragments() {
        let fragment = |offset_more: u16, rest: &[u8]| {
            let [high, low] = offset_more.to_be_bytes();
            key6(&ip6(44, &[&[17, 0, high, low, 0, 0, 0, 1], rest].concat()))
        };
        let atomic = fragment(0, &UDP);
        assert_eq!((ports(atomic), bits(atomic)), ((17, 5000, 53), 0));
        let first = fragment(1, &UDP);
        assert_eq!((ports(first), bits(first)), ((17, 5000, 53), FRAGMENT));
        let later = fragment(0x0081, &UDP);
        assert_eq!((ports(later), bits(later)), ((17, 0, 0), FRAGMENT | LATER | NO_UPPER));
        let tiny = fragment(1, &UDP[..4]);
        assert_eq!(bits(tiny), FRAGMENT | NO_UPPER | TINY);
    }

    #[test]
    fn a_first_fragment_that_ends_in_the_chain_is_tiny() {
        let chain = [60, 0, 0, 1, 0, 0, 0, 1, 17, 1, 1, 4, 0, 0, 0, 0];
        let key = key6(&ip6(44, &chain));
        assert_eq!((ports(key), bits(key)), ((60, 0, 0), FRAGMENT | NO_UPPER | TINY));
    }

    #[test]
    fn a_later_fragment_of_an_extension_header_has_its_number() {
        let key = key6(&ip6(44, &[60, 0, 0, 0x80, 0, 0, 0, 1, 6, 0, 1, 4, 0, 0, 0, 0]));
        assert_eq!((ports(key), bits(key)), ((60, 0, 0), FRAGMENT | LATER | NO_UPPER));
    }

    #[test]
    fn chains_end_at_eight_headers() {
        let chain = |headers: usize| {
            let mut bytes = [60, 0, 1, 4, 0, 0, 0, 0].repeat(headers - 1);
            bytes.extend([17, 0, 1, 4, 0, 0, 0, 0]);
            bytes.extend(UDP);
            key6(&ip6(60, &bytes))
        };
        assert_eq!((ports(chain(8)), bits(chain(8))), ((17, 5000, 53), 0));
        assert_eq!((ports(chain(9)), bits(chain(9))), ((60, 0, 0), NO_UPPER));
    }

    #[test]
    fn chains_that_leave_the_frame_have_no_upper_layer() {
        for (first, payload) in [(0, &[6, 9, 1, 4, 0, 0, 0, 0][..]), (51, &[6]), (44, &[6, 0, 0])] {
            let key = key6(&ip6(first, payload));
            assert_eq!(bits(key), NO_UPPER, "{first}");
            assert!(!key.has_upper_layer());
        }
        let key = key6(&ip6(0, &[43, 0, 1, 4, 0, 0, 0, 0, 6, 9, 1, 4, 0, 0, 0, 0]));
        assert_eq!(key.protocol(), 43);
    }

    #[test]
    fn esp_and_no_next_header_end_the_chain() {
        for protocol in [50, 59, 135] {
            let key = key6(&ip6(60, &[protocol, 0, 1, 4, 0, 0, 0, 0, 1, 2, 3, 4]));
            assert_eq!((ports(key), bits(key)), ((protocol, 0, 0), 0));
        }
    }

    #[test]
    fn the_other_familys_icmp_has_no_type() {
        let keys = [key4(&ip4(&[], 0, 58, &[135; 20])), key6(&ip6(1, &[8; 20]))];
        assert!(keys.iter().all(|key| key.icmp_type() == 0 && !key.has_upper_layer()));
        assert_eq!(key6(&ip6(58, &[135; 4])).icmp_type(), 135);
        assert!(!key6(&ip6(58, &[135; 3])).has_upper_layer());
    }

    #[test]
    fn the_first_buffer_may_end_anywhere() {
        let v4 = ip4(&[7, 7, 4, 0, 0, 0, 0, 0], 0, 6, &TCP);
        let v6 = ip6(0, &[&[6, 0, 1, 4, 0, 0, 0, 0], &TCP[..]].concat());
        for end in 0..v4.len() {
            let key = Key::of_ip4(&v4[..end], v4.len(), 0);
            assert!(!key.has_upper_layer(), "{end}");
        }
        for end in 0..v6.len() {
            let key = Key::of_ip6(&v6[..end], v6.len(), 0);
            assert!(!key.has_upper_layer(), "{end}");
        }
        assert!(key4(&v4).has_upper_layer() && key6(&v6).has_upper_layer());
    }

    #[test]
    fn jumbograms_are_65535_long() {
        let mut frame = ip6(0, &[&[17, 0, 0xc2, 4, 0, 1, 0x86, 0xa0], &UDP[..]].concat());
        frame[18..20].fill(0);
        let key = Key::of_ip6(&frame, 14 + 40 + 100_000, 0);
        assert_eq!((key.length(), ports(key)), (u16::MAX, (17, 5000, 53)));
    }
}
