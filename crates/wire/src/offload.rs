//! Work that a kernel leaves to a network device, done in software: checksums, segmentation, and
//! their counterpart on receive.
//!
//! A virtual device hands over a TCP frame of up to 64 KiB and a [`NetHeader`] with the checksum's
//! position and the amount of data per frame on the wire. [`segment`] makes the frames (GSO),
//! [`coalesce`] makes one large frame of several (GRO). Segmenting a coalesced frame gives the
//! original bytes; a property test checks this.
//!
//! ```text
//!   kernel -- header, 64 KiB frame --> segment  --> frames of the port's MTU --> port
//!   kernel <-- header, 64 KiB frame -- coalesce <-- frames of the port's MTU <-- port
//! ```

pub mod coalesce;
#[cfg(test)]
mod samples;
pub mod segment;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in a [`NetHeader`].
pub const NET_HEADER_LEN: usize = size_of::<NetHeader>();

/// [`NetHeader::flags`]: the checksum field holds the sum over the pseudo-header only.
pub const NEEDS_CHECKSUM: u8 = 1;

/// [`NetHeader::segmentation`]: one frame of any size.
pub const SEGMENT_NONE: u8 = 0;
/// [`NetHeader::segmentation`]: TCP over IPv4.
pub const SEGMENT_TCP4: u8 = 1;
/// [`NetHeader::segmentation`]: TCP over IPv6.
pub const SEGMENT_TCP6: u8 = 4;
/// [`NetHeader::segmentation`]: UDP datagrams of one size (`UDP_SEGMENT`).
pub const SEGMENT_UDP: u8 = 5;
/// [`NetHeader::segmentation`], in addition to the above: CWR is set, and only the first segment has
/// it.
pub const SEGMENT_ECN: u8 = 0x80;

/// `struct virtio_net_hdr` (virtio 1.2, 5.1.6), in front of each frame of a TAP with
/// `IFF_VNET_HDR`, little-endian.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct NetHeader {
    /// [`NEEDS_CHECKSUM`] or 0.
    pub flags: u8,
    /// `gso_type`: one of the `SEGMENT_` constants.
    pub segmentation: u8,
    /// `hdr_len`: bytes in front of the transport's data; a hint.
    pub header_len: U16,
    /// `gso_size`: bytes of data in each segment but the last.
    pub segment_size: U16,
    /// `csum_start`: offset of the transport header.
    pub checksum_start: U16,
    /// `csum_offset`: offset of the checksum field in the transport header.
    pub checksum_offset: U16,
}

/// TCP control bits in [`crate::l4::TcpHeader::offset_flags`].
mod control {
    pub const FIN: u16 = 0x01;
    pub const PSH: u16 = 0x08;
    pub const ACK: u16 = 0x10;
    pub const ECE: u16 = 0x40;
    pub const CWR: u16 = 0x80;
    /// All bits other than the data offset, reserved ones included.
    pub const ALL: u16 = 0x0fff;
}
