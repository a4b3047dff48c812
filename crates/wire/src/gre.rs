//! Mirrored frames on their way over IP: ERSPAN type II (draft-foschiano-erspan-03, 4.2) in GRE (RFC 2784) with a
//! sequence number (RFC 2890).
//!
//! ```text
//!   Ethernet | IPv4 or IPv6 | GreHeader | ErspanHeader | the frame, without FCS
//! ```

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// GRE, as the protocol of an IP packet.
pub const PROTOCOL_GRE: u8 = 47;
/// "Sequence number present", in [`GreHeader::flags`] (RFC 2890, 2).
pub const GRE_SEQUENCE: u16 = 0x1000;
/// ERSPAN type II, in [`GreHeader::protocol`].
pub const GRE_ERSPAN: u16 = 0x88be;

/// The most sessions that [`ErspanHeader`] tells apart.
pub const ERSPAN_ID_MAX: u16 = 0x3ff;

/// A GRE header with a sequence number, without checksum and key.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct GreHeader {
    /// Flags and version.
    pub flags: U16,
    /// Ethertype of the payload.
    pub protocol: U16,
    /// Number of the packet in its tunnel.
    pub sequence: U32,
}

/// The header of ERSPAN type II.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ErspanHeader {
    /// Version (4 bits, 1 for type II), VLAN identifier of the frame (12 bits).
    pub version_vlan: U16,
    /// Priority of the frame (3 bits), encapsulation of its VLAN (2 bits), truncated (1 bit), session (10 bits).
    pub priority_session: U16,
    /// Reserved (12 bits), source port and direction in the sender's numbers (20 bits).
    pub index: U32,
}

/// The content of an [`ErspanHeader`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erspan {
    /// The session.
    pub id: u16,
    /// The control information of the frame's VLAN tag, which is still in the frame.
    pub tag: Option<u16>,
    /// True if the frame was longer.
    pub is_truncated: bool,
    /// Source port and direction in the sender's numbers, 20 bits.
    pub index: u32,
}

impl Erspan {
    const VERSION: u16 = 1;
    /// "The tag is in the frame".
    const TAG_PRESERVED: u16 = 0b11;

    /// Returns the header.
    pub fn header(self) -> ErspanHeader {
        let Self { id, tag, is_truncated, index } = self;
        let (control, encapsulation) = tag.map_or((0, 0), |tag| (tag, Self::TAG_PRESERVED));
        let priority = control & 0xe000;
        let truncated = u16::from(is_truncated) << 10;
        ErspanHeader {
            version_vlan: U16::new(Self::VERSION << 12 | control & 0x0fff),
            priority_session: U16::new(
                priority | encapsulation << 11 | truncated | id & ERSPAN_ID_MAX,
            ),
            index: U32::new(index & 0xf_ffff),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_stand_where_the_draft_draws_them() {
        let erspan = Erspan { id: 0x2a5, tag: Some(0xa064), is_truncated: true, index: 0x1_2345 };
        assert_eq!(
            erspan.header().as_bytes(),
            [0x10, 0x64, 5 << 5 | 3 << 3 | 1 << 2 | 2, 0xa5, 0x00, 0x01, 0x23, 0x45]
        );
        let plain = Erspan { id: 1, ..Erspan::default() };
        assert_eq!(plain.header().as_bytes(), [0x10, 0, 0, 1, 0, 0, 0, 0]);
        // Neighbouring fields are not touched by values that are too large.
        let large = Erspan { id: 0xffff, index: u32::MAX, ..Erspan::default() };
        assert_eq!(large.header().as_bytes(), [0x10, 0, 0x03, 0xff, 0, 0x0f, 0xff, 0xff]);
        let gre = GreHeader {
            flags: U16::new(GRE_SEQUENCE),
            protocol: U16::new(GRE_ERSPAN),
            sequence: U32::new(7),
        };
        assert_eq!(gre.as_bytes(), [0x10, 0, 0x88, 0xbe, 0, 0, 0, 7]);
    }
}
