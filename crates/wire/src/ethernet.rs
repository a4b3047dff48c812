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

/// Bytes in both addresses of a frame, behind which its tags stand.
pub const ADDRESSES_LEN: usize = 2 * size_of::<MacAddr>();

/// Bytes in a VLAN tag.
pub const TAG_LEN: usize = size_of::<VlanTag>();

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

/// Returns the four bytes of a customer tag in a frame, with this control information.
pub const fn customer_tag(control: u16) -> [u8; TAG_LEN] {
    tag_bytes(ETHERTYPE_VLAN, control)
}

/// Returns the four bytes of a tag in a frame, with this Ethertype and this control information.
pub const fn tag_bytes(ethertype: u16, control: u16) -> [u8; TAG_LEN] {
    let ([a, b], [c, d]) = (ethertype.to_be_bytes(), control.to_be_bytes());
    [a, b, c, d]
}

/// Iterates over the parts of a frame, the first of which has both addresses, with the bytes of a tag behind them; without
/// one over the parts as they are.
pub fn with_tag<'a, 'b: 'a>(
    tag: Option<&'a [u8; TAG_LEN]>,
    mut parts: impl Iterator<Item = &'b [u8]>,
) -> impl Iterator<Item = &'a [u8]> {
    let first = parts.next().unwrap_or_default();
    let (addresses, first) = first.split_at(first.len().min(ADDRESSES_LEN));
    let tag = tag.map_or(&[][..], |tag| tag);
    [addresses, tag, first].into_iter().chain(parts.map(|part| -> &'a [u8] { part }))
}

/// The most tags that [`payload`] skips: an 802.1ad service tag and an 802.1Q one.
const TAGS_MAX: usize = 2;

/// Returns the Ethertype of a frame behind its VLAN tags, two at most, and the offset of the bytes behind it; `None`
/// if the frame ends before. The Ethertype of a third tag is returned as it is.
#[inline]
pub fn payload(frame: &[u8]) -> Option<(u16, usize)> {
    let mut end = ETHERNET_LEN;
    for tags in 0.. {
        let &[a, b] = frame.get(end - 2..end)? else { return None };
        let ethertype = u16::from_be_bytes([a, b]);
        if tags == TAGS_MAX || !matches!(ethertype, ETHERTYPE_VLAN | ETHERTYPE_QINQ) {
            return Some((ethertype, end));
        }
        end += size_of::<VlanTag>();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_stands_behind_two_tags_at_most() {
        let tag = |kind: u16, id: u16| [kind.to_be_bytes(), id.to_be_bytes()].concat();
        let (outer, inner) = (tag(ETHERTYPE_QINQ, 7), tag(ETHERTYPE_VLAN, 9));
        let frame = |tags: &[&[u8]]| [&[2; 12], &tags.concat()[..], &[0x86, 0xdd, 0x60]].concat();
        assert_eq!(payload(&frame(&[])), Some((ETHERTYPE_IPV6, 14)));
        assert_eq!(payload(&frame(&[&inner])), Some((ETHERTYPE_IPV6, 18)));
        assert_eq!(payload(&frame(&[&outer])), Some((ETHERTYPE_IPV6, 18)));
        assert_eq!(payload(&frame(&[&outer, &inner])), Some((ETHERTYPE_IPV6, 22)));
        assert_eq!(payload(&frame(&[&outer, &inner, &inner])), Some((ETHERTYPE_VLAN, 22)));
        let short = frame(&[&outer, &inner]);
        for len in [0, 13, 15, 17, 21] {
            assert_eq!(payload(&short[..len]), None, "{len} bytes");
        }
    }

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
