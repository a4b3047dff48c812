//! UDP (RFC 768) and the fixed part of TCP (RFC 9293).

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in a UDP header.
pub const UDP_LEN: usize = size_of::<UdpHeader>();
/// Bytes in a TCP header without options.
pub const TCP_MIN_LEN: usize = size_of::<TcpHeader>();

/// The UDP header.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct UdpHeader {
    /// Source port.
    pub source_port: U16,
    /// Destination port.
    pub destination_port: U16,
    /// Bytes in header and data.
    pub length: U16,
    /// Over pseudo-header, header and data; over IPv4, 0 means no checksum.
    pub checksum: U16,
}

/// The TCP header without options.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TcpHeader {
    /// Source port.
    pub source_port: U16,
    /// Destination port.
    pub destination_port: U16,
    /// Sequence number.
    pub sequence: U32,
    /// Acknowledgment number.
    pub acknowledgment: U32,
    /// Data offset in 32-bit words (4 bits), reserved, and the control bits.
    pub offset_flags: U16,
    /// Receive window.
    pub window: U16,
    /// Over pseudo-header, header and data.
    pub checksum: U16,
    /// Urgent pointer.
    pub urgent: U16,
}

impl TcpHeader {
    /// Returns the length of the header, options included: 0 to 60; below 20 the header is invalid.
    pub fn header_len(&self) -> usize {
        usize::from(self.offset_flags.get() >> 12) * 4
    }
}
