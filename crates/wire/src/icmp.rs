//! ICMP (RFC 792, RFC 1812, 4.3) and ICMPv6 (RFC 4443): the first eight bytes, types and codes.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in an ICMP or ICMPv6 header, the type-dependent four bytes included.
pub const ICMP_LEN: usize = size_of::<IcmpHeader>();

/// The first eight bytes of an ICMP or ICMPv6 message; both protocols have the same.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct IcmpHeader {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// Over the message; in ICMPv6 over a pseudo-header too.
    pub checksum: U16,
    /// Depends on the type: identifier and sequence number, MTU, pointer, or unused.
    pub rest: U32,
}

/// ICMP for IPv4: types and codes.
pub mod v4 {
    /// Type: echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Type: destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Type: source quench (deprecated, RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Type: redirect.
    pub const REDIRECT: u8 = 5;
    /// Type: echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Type: router advertisement (RFC 1256).
    pub const ROUTER_ADVERTISEMENT: u8 = 9;
    /// Type: router solicitation (RFC 1256).
    pub const ROUTER_SOLICITATION: u8 = 10;
    /// Type: time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Type: parameter problem; the pointer is the first of the type-dependent bytes.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// Code of [`UNREACHABLE`]: no route to the network.
    pub const NET_UNREACHABLE: u8 = 0;
    /// Code of [`UNREACHABLE`]: the host does not answer.
    pub const HOST_UNREACHABLE: u8 = 1;
    /// Code of [`UNREACHABLE`]: the host does not support this protocol.
    pub const PROTOCOL_UNREACHABLE: u8 = 2;
    /// Code of [`UNREACHABLE`]: nothing listens on this port.
    pub const PORT_UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: too big and DF set; the low 16 bits carry the MTU (RFC 1191, 4).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Code of [`UNREACHABLE`]: a source route cannot be followed.
    pub const SOURCE_ROUTE_FAILED: u8 = 5;
    /// Code of [`UNREACHABLE`]: refused by the administrator (RFC 1812, 5.2.7.1).
    pub const ADMIN_PROHIBITED: u8 = 13;

    /// Code of [`REDIRECT`]: for this host (RFC 1812, 5.2.7.2: the only one that routers send).
    pub const REDIRECT_HOST: u8 = 1;

    /// Code of [`TIME_EXCEEDED`]: the TTL ran out on the way.
    pub const TTL_EXCEEDED: u8 = 0;
    /// Code of [`TIME_EXCEEDED`]: reassembly timed out.
    pub const REASSEMBLY_EXCEEDED: u8 = 1;

    /// Returns true for the types that report an error, about which no error is ever sent
    /// (RFC 1122, 3.2.2). Unknown types count as errors: the safe side.
    pub fn is_error(kind: u8) -> bool {
        let asks_or_tells =
            matches!(kind, ECHO_REPLY | ECHO_REQUEST | ROUTER_ADVERTISEMENT | ROUTER_SOLICITATION);
        !asks_or_tells && !matches!(kind, 13..=18 | 42 | 43)
    }
}

/// ICMPv6: types and codes.
pub mod v6 {
    /// Type: destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Type: packet too big; the type-dependent bytes are the MTU.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Type: time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Type: parameter problem; the type-dependent bytes are the pointer.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Type: echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Type: echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Type: multicast listener query (RFC 3810, 5.1).
    pub const LISTENER_QUERY: u8 = 130;
    /// Type: multicast listener report, version 1 (RFC 2710).
    pub const LISTENER_REPORT_V1: u8 = 131;
    /// Type: multicast listener done, version 1 (RFC 2710).
    pub const LISTENER_DONE_V1: u8 = 132;
    /// Type: router solicitation (RFC 4861, 4.1).
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Type: router advertisement (RFC 4861, 4.2).
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Type: neighbour solicitation (RFC 4861, 4.3).
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Type: neighbour advertisement (RFC 4861, 4.4).
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Type: redirect (RFC 4861, 4.5).
    pub const REDIRECT: u8 = 137;
    /// Type: multicast listener report, version 2 (RFC 3810, 5.2).
    pub const LISTENER_REPORT_V2: u8 = 143;

    /// Code of [`UNREACHABLE`]: no route.
    pub const NO_ROUTE: u8 = 0;
    /// Code of [`UNREACHABLE`]: refused by the administrator.
    pub const ADMIN_PROHIBITED: u8 = 1;
    /// Code of [`UNREACHABLE`]: beyond the scope of the source address.
    pub const BEYOND_SCOPE: u8 = 2;
    /// Code of [`UNREACHABLE`]: the address does not answer.
    pub const ADDRESS_UNREACHABLE: u8 = 3;
    /// Code of [`UNREACHABLE`]: nothing listens on this port.
    pub const PORT_UNREACHABLE: u8 = 4;

    /// Code of [`TIME_EXCEEDED`]: the hop limit ran out on the way.
    pub const HOP_LIMIT_EXCEEDED: u8 = 0;
    /// Code of [`TIME_EXCEEDED`]: reassembly timed out.
    pub const REASSEMBLY_EXCEEDED: u8 = 1;

    /// Code of [`PARAMETER_PROBLEM`]: a header field is wrong.
    pub const ERRONEOUS_FIELD: u8 = 0;
    /// Code of [`PARAMETER_PROBLEM`]: the next header is not known.
    pub const UNKNOWN_NEXT_HEADER: u8 = 1;
    /// Code of [`PARAMETER_PROBLEM`]: an option is not known.
    pub const UNKNOWN_OPTION: u8 = 2;
    /// Code of [`PARAMETER_PROBLEM`]: a first fragment without all headers (RFC 7112, 5).
    pub const INCOMPLETE_CHAIN: u8 = 3;

    /// Returns true for error messages: the high bit of the type is clear (RFC 4443, 2.1).
    pub fn is_error(kind: u8) -> bool {
        kind < 128
    }
}
