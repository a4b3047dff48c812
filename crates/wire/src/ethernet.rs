//! Ethernet II and the 802.1Q tag.

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MacAddr;

/// Ethertype of IPv4 (RFC 894).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// Ethertype of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// Ethertype of an 802.1ad service tag.
pub const ETHERTYPE_QINQ: u16 = 0x88a8;
/// Ethertype of IPv6 (RFC 2464, 3).
pub const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Bytes in an Ethernet header without tags.
pub const ETHERNET_LEN: usize = size_of::<EthernetHeader>();

/// The header of every frame.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct EthernetHeader {
    /// Destination of the frame.
    pub destination: MacAddr,
    /// Source of the frame.
    pub source: MacAddr,
    /// Protocol of the payload.
    pub ethertype: U16,
}

/// An 802.1Q tag: the four bytes between the source address and the inner ethertype are the outer ethertype
/// (0x8100) and this tag's first field; read this struct right after an [`EthernetHeader`] whose ethertype is
/// [`ETHERTYPE_VLAN`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1 bit), VLAN identifier (12 bits).
    pub control: U16,
    /// Protocol after the tag.
    pub ethertype: U16,
}

impl VlanTag {
    /// Returns the VLAN identifier, 0 to 4095.
    pub fn vlan(&self) -> u16 {
        self.control.get() & 0x0fff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tagged_frame_is_read_header_by_header() {
        let frame =
            [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0xe0, 0x64, 0x86, 0xdd, 0x60];
        let (ethernet, rest) = EthernetHeader::ref_from_prefix(&frame).unwrap();
        assert_eq!(ethernet.ethertype, ETHERTYPE_VLAN);
        assert!(ethernet.destination.is_multicast() && !ethernet.source.is_multicast());
        let (tag, rest) = VlanTag::ref_from_prefix(rest).unwrap();
        assert_eq!((tag.vlan(), tag.ethertype.get()), (100, ETHERTYPE_IPV6));
        assert_eq!(rest, [0x60]);
    }
}
