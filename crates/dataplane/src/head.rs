//! The headers at the start of a frame as named fields.
//!
//! [`Batch::head`](crate::Batch::head) shows the first [`HEAD`] bytes of a frame. These functions
//! return them as headers of `wire`, for callers that know the protocol; sizes are checked when the
//! router is compiled, so a field costs one load.

use wire::ethernet::EthernetHeader;
use wire::ip::{Ipv4Header, Ipv6Header, PROTOCOL_ICMPV6};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute_mut, transmute_ref,
};

/// Bytes of a packet that [`Batch::head`](crate::Batch::head) shows: Ethernet and IPv6 headers, and ten more.
pub const HEAD: usize = dpdk::HEAD;

/// Length of an Ethernet header without VLAN tag: where the IP header starts.
pub const ETHERNET: usize = 14;

/// `N` bytes of a head from `AT` on, which become one load.
#[inline(always)]
pub(crate) fn bytes<const AT: usize, const N: usize>(head: &[u8; HEAD]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[AT..AT + N]);
    bytes
}

/// An untagged frame that begins with these headers, up to the end of a head.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Framed<T, const REST: usize> {
    ethernet: EthernetHeader,
    header: T,
    rest: [u8; REST],
}

type Any = Framed<[u8; 0], { HEAD - size_of::<EthernetHeader>() }>;
type Ip4 = Framed<Ipv4Header, { HEAD - size_of::<EthernetHeader>() - size_of::<Ipv4Header>() }>;
type Ip6 = Framed<Ipv6Header, { HEAD - size_of::<EthernetHeader>() - size_of::<Ipv6Header>() }>;

/// Returns the MAC at the beginning as a number, first byte lowest.
#[inline(always)]
pub(crate) fn mac_bits(head: &[u8]) -> u64 {
    match *head {
        [a, b, c, d, e, f, ..] => u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
        _ => u64::MAX,
    }
}

/// The Ethernet header.
#[inline(always)]
pub(crate) fn ethernet(head: &[u8; HEAD]) -> &EthernetHeader {
    let frame: &Any = transmute_ref!(head);
    &frame.ethernet
}

/// The IPv4 header of an untagged frame.
#[inline(always)]
pub(crate) fn ip4(head: &[u8; HEAD]) -> &Ipv4Header {
    let frame: &Ip4 = transmute_ref!(head);
    &frame.header
}

/// The IPv6 header of an untagged frame.
#[inline(always)]
pub(crate) fn ip6(head: &[u8; HEAD]) -> &Ipv6Header {
    let frame: &Ip6 = transmute_ref!(head);
    &frame.header
}

/// Returns the first byte after the IPv6 header of an untagged frame: the ICMPv6 type, if ICMPv6
/// follows.
#[inline(always)]
fn behind_ip6(head: &[u8; HEAD]) -> u8 {
    let frame: &Ip6 = transmute_ref!(head);
    frame.rest[0]
}

/// Router and neighbour solicitations and advertisements, and redirects, as their hosts sent them (RFC 4861 4); of
/// IPv6 packets in untagged frames.
pub(crate) fn is_neighbour_discovery(head: &[u8; HEAD]) -> bool {
    let ip = ip6(head);
    ip.next_header == PROTOCOL_ICMPV6
        && ip.hop_limit == 255
        && matches!(behind_ip6(head), 133..=137)
}

/// The Ethernet header, to be written.
#[inline(always)]
pub(crate) fn ethernet_mut(head: &mut [u8; HEAD]) -> &mut EthernetHeader {
    let frame: &mut Any = transmute_mut!(head);
    &mut frame.ethernet
}

/// The IPv6 header of an untagged frame, to be written.
#[inline(always)]
pub(crate) fn ip6_mut(head: &mut [u8; HEAD]) -> &mut Ipv6Header {
    let frame: &mut Ip6 = transmute_mut!(head);
    &mut frame.header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FrameBuilder;

    fn head(frame: FrameBuilder) -> [u8; HEAD] {
        let mut frame = frame.build();
        frame.resize(HEAD, 0);
        frame.try_into().unwrap()
    }

    #[test]
    fn fields_are_where_frames_have_them() {
        let head4 = head(FrameBuilder::ip4().destination4("192.0.2.7").tos(0xb8).udp(1, 2, b"x"));
        assert_eq!(ethernet(&head4).ethertype.get(), 0x0800);
        assert_eq!(
            (ip4(&head4).version_ihl, ip4(&head4).tos, ip4(&head4).protocol),
            (0x45, 0xb8, 17)
        );
        assert_eq!(ip4(&head4).destination_address, [192, 0, 2, 7]);
        let mut head6 = head(FrameBuilder::ip6().source6("2001:db8::7").udp(0x8612, 2, b"x"));
        assert_eq!(ethernet(&head6).ethertype.get(), 0x86dd);
        assert_eq!((ip6(&head6).version(), ip6(&head6).next_header), (6, 17));
        assert_eq!((ip6(&head6).source_address[15], behind_ip6(&head6)), (7, 0x86));
        ip6_mut(&mut head6).hop_limit = 3;
        ethernet_mut(&mut head6).destination.0 = [1; 6];
        assert_eq!((head6[21], &head6[..6]), (3, &[1; 6][..]));
    }
}
