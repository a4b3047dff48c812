//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, and the numbers they share.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// IPv6 hop-by-hop options; only directly after the IPv6 header.
pub const PROTOCOL_HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub const PROTOCOL_ICMP: u8 = 1;
/// IGMP.
pub const PROTOCOL_IGMP: u8 = 2;
/// TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// IPv6 routing header.
pub const PROTOCOL_ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const PROTOCOL_FRAGMENT: u8 = 44;
/// IP authentication header (RFC 4302), in both IPv4 and IPv6.
pub const PROTOCOL_AUTHENTICATION: u8 = 51;
/// ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// No next header (RFC 8200, 4.7).
pub const PROTOCOL_NONE: u8 = 59;
/// IPv6 destination options.
pub const PROTOCOL_DESTINATION_OPTIONS: u8 = 60;

/// Bytes in an IPv4 header without options.
pub const IPV4_MIN_LEN: usize = size_of::<Ipv4Header>();
/// Bytes in the fixed IPv6 header.
pub const IPV6_LEN: usize = size_of::<Ipv6Header>();

/// "Don't fragment", in [`Ipv4Header::flags_fragment`].
pub const IPV4_DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments", in [`Ipv4Header::flags_fragment`].
pub const IPV4_MORE_FRAGMENTS: u16 = 0x2000;
/// Bits of the fragment offset (in units of 8 bytes), in [`Ipv4Header::flags_fragment`].
pub const IPV4_OFFSET_BITS: u16 = 0x1fff;

/// The fixed part of an IPv4 header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv4Header {
    /// Version (high four bits) and header length in 32-bit words (low four bits).
    pub version_ihl: u8,
    /// Differentiated services and ECN (RFC 2474, RFC 3168).
    pub tos: u8,
    /// Bytes in the packet, header included.
    pub total_length: U16,
    /// Datagram to which a fragment belongs.
    pub identification: U16,
    /// Reserved, DF, MF, and the fragment offset in units of 8 bytes.
    pub flags_fragment: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// One's complement of the one's complement sum of the header.
    pub checksum: U16,
    /// Source address.
    pub source_address: [u8; 4],
    /// Destination address.
    pub destination_address: [u8; 4],
}

impl Ipv4Header {
    /// Returns the version field; 4 for a valid packet.
    pub fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Returns the length of the header, options included: 0 to 60; below 20 the header is invalid.
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// Returns the source address.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.source_address)
    }

    /// Returns the destination address.
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.destination_address)
    }

    /// Returns the offset of this fragment's data in the datagram, in bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.flags_fragment.get() & IPV4_OFFSET_BITS) * 8
    }

    /// Returns true for every fragment of a fragmented datagram, the first included.
    pub fn is_fragment(&self) -> bool {
        self.flags_fragment.get() & (IPV4_MORE_FRAGMENTS | IPV4_OFFSET_BITS) != 0
    }

    /// Returns true if more fragments of the datagram follow this one's data.
    pub fn more_fragments(&self) -> bool {
        self.flags_fragment.get() & IPV4_MORE_FRAGMENTS != 0
    }

    /// Returns true if routers must not fragment the packet.
    pub fn dont_fragment(&self) -> bool {
        self.flags_fragment.get() & IPV4_DONT_FRAGMENT != 0
    }
}

/// The fixed IPv6 header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv6Header {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub version_class_flow: U32,
    /// Bytes after this header.
    pub payload_length: U16,
    /// Protocol or extension header after this header.
    pub next_header: u8,
    /// Like the IPv4 time to live.
    pub hop_limit: u8,
    /// Source address.
    pub source_address: [u8; 16],
    /// Destination address.
    pub destination_address: [u8; 16],
}

impl Ipv6Header {
    /// Returns the version field; 6 for a valid packet.
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// Returns the source address.
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.source_address)
    }

    /// Returns the destination address.
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.destination_address)
    }
}

/// The start of the hop-by-hop, routing and destination options headers (RFC 8200, 4.3, 4.4, 4.6).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv6ExtensionHeader {
    /// Protocol or extension header after this header.
    pub next_header: u8,
    /// Length in units of 8 bytes, the first 8 bytes not counted.
    pub length: u8,
}

impl Ipv6ExtensionHeader {
    /// Returns the length of the whole extension header.
    pub fn header_len(&self) -> usize {
        (usize::from(self.length) + 1) * 8
    }
}

/// The start of the authentication header (RFC 4302, 2.2), whose length is in units of its own.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AuthenticationHeader {
    /// Protocol or extension header after this header.
    pub next_header: u8,
    /// Length in units of 4 bytes, the first 8 bytes not counted.
    pub length: u8,
}

impl AuthenticationHeader {
    /// Returns the length of the whole header.
    pub fn header_len(&self) -> usize {
        (usize::from(self.length) + 2) * 4
    }
}

/// The IPv6 fragment header (RFC 8200, 4.5).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv6FragmentHeader {
    /// Protocol or extension header that follows in the reassembled packet.
    pub next_header: u8,
    /// Zero.
    pub reserved: u8,
    /// Offset in units of 8 bytes (13 bits), reserved (2 bits), more fragments (1 bit).
    pub offset_more: U16,
    /// Packet to which the fragment belongs.
    pub identification: U32,
}

impl Ipv6FragmentHeader {
    /// Returns the offset of this fragment's data, in bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(self.offset_more.get() & 0xfff8)
    }

    /// Returns true if more fragments of the packet follow this one's data.
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_offsets_are_read_from_their_bits() {
        let mut bytes = [0u8; 20];
        bytes[0] = 0x4f;
        bytes[6..8].copy_from_slice(&0x2003u16.to_be_bytes());
        let header = Ipv4Header::ref_from_bytes(&bytes).unwrap();
        assert_eq!((header.version(), header.header_len()), (4, 60));
        assert_eq!((header.fragment_offset(), header.is_fragment()), (24, true));
        assert!(header.more_fragments() && !header.dont_fragment());
        bytes[6..8].copy_from_slice(&0x4000u16.to_be_bytes());
        let header = Ipv4Header::ref_from_bytes(&bytes).unwrap();
        assert!(header.dont_fragment() && !header.is_fragment());
    }

    #[test]
    fn extension_headers_have_their_lengths() {
        assert_eq!(Ipv6ExtensionHeader { next_header: 0, length: 0 }.header_len(), 8);
        assert_eq!(Ipv6ExtensionHeader { next_header: 0, length: 255 }.header_len(), 2048);
        assert_eq!(AuthenticationHeader { next_header: 0, length: 4 }.header_len(), 24);
        assert_eq!(AuthenticationHeader { next_header: 0, length: 255 }.header_len(), 1028);
        let fragment = Ipv6FragmentHeader::ref_from_bytes(&[17, 0, 1, 0x69, 0, 0, 0, 1]).unwrap();
        assert_eq!((fragment.fragment_offset(), fragment.more()), (0x168, true));
    }

    #[test]
    fn layouts_have_the_sizes_of_the_rfcs() {
        assert_eq!((IPV4_MIN_LEN, IPV6_LEN, size_of::<Ipv6FragmentHeader>()), (20, 40, 8));
        assert_eq!((crate::l4::UDP_LEN, crate::l4::TCP_MIN_LEN, crate::icmp::ICMP_LEN), (8, 20, 8));
        assert_eq!(size_of::<crate::arp::ArpMessage>(), 28);
        assert_eq!(size_of::<crate::nd::NeighbourSolicitation>(), 24);
        assert_eq!(size_of::<crate::nd::NeighbourAdvertisement>(), 24);
        assert_eq!(size_of::<crate::nd::RouterAdvertisement>(), 16);
        assert_eq!(size_of::<crate::nd::RouterSolicitation>(), 8);
        assert_eq!(size_of::<crate::nd::PrefixOption>(), 32);
        assert_eq!(size_of::<crate::nd::Redirect>(), 40);
        assert_eq!(size_of::<crate::nd::ListenerRecord>(), 20);
        assert_eq!(crate::ethernet::ETHERNET_LEN, 14);
    }
}
