//! Frame parsing: the headers of a punted packet, checked again before they are used.

use std::net::IpAddr;

use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::chain::{self, Header};
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
use wire::ip::{
    AuthenticationHeader, IPV4_MIN_LEN, IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_AUTHENTICATION,
};
use zerocopy::FromBytes;

/// Splits a frame into its Ethernet header and the payload.
pub(crate) fn ethernet(frame: &[u8]) -> Option<(&EthernetHeader, &[u8])> {
    EthernetHeader::ref_from_prefix(frame).ok()
}

/// Writes the addresses of an Ethernet header; a frame without one stays as it is.
pub(crate) fn set_macs(frame: &mut [u8], destination: MacAddr, source: MacAddr) {
    if let Ok((header, _)) = EthernetHeader::mut_from_prefix(frame) {
        header.destination = destination;
        header.source = source;
    }
}

/// An IP packet whose headers and lengths are consistent. `bytes` begin with the IP header and end
/// where the IP header says.
#[derive(Clone, Copy)]
pub(crate) enum IpPacket<'a> {
    V4 { header: &'a Ipv4Header, bytes: &'a [u8] },
    V6 { header: &'a Ipv6Header, bytes: &'a [u8] },
}

impl<'a> IpPacket<'a> {
    /// Reads the IP packet in a frame.
    pub(crate) fn parse(frame: &'a [u8]) -> Result<Self, DropReason> {
        let (ethernet, bytes) = ethernet(frame).ok_or(DropReason::Runt)?;
        match ethernet.ethertype.get() {
            ETHERTYPE_IPV4 => Self::parse_v4(bytes),
            ETHERTYPE_IPV6 => Self::parse_v6(bytes),
            _ => Err(DropReason::UnknownEthertype),
        }
    }

    /// Like [`Self::parse`], for a packet that may be truncated; `bytes` hold the part that is
    /// present.
    pub(crate) fn parse_beginning(frame: &'a [u8]) -> Result<Self, DropReason> {
        let whole = Self::parse(frame);
        if let (Err(DropReason::Ip4TotalLength), Some((_, bytes))) = (&whole, ethernet(frame))
            && let Ok((header, _)) = Ipv4Header::ref_from_prefix(bytes)
            && usize::from(header.total_length.get()) > bytes.len()
        {
            return Ok(Self::V4 { header, bytes });
        }
        whole
    }

    fn parse_v4(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (header, _) = Ipv4Header::ref_from_prefix(bytes).map_err(|_| DropReason::Runt)?;
        if header.version() != 4 {
            return Err(DropReason::Ip4Version);
        }
        if header.header_len() < IPV4_MIN_LEN || header.header_len() > bytes.len() {
            return Err(DropReason::Ip4HeaderLength);
        }
        let total = usize::from(header.total_length.get());
        let bytes = bytes.get(..total).ok_or(DropReason::Ip4TotalLength)?;
        if total < header.header_len() {
            return Err(DropReason::Ip4TotalLength);
        }
        Ok(Self::V4 { header, bytes })
    }

    fn parse_v6(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let (header, _) = Ipv6Header::ref_from_prefix(bytes).map_err(|_| DropReason::Runt)?;
        if header.version() != 6 {
            return Err(DropReason::Ip6Version);
        }
        let total = IPV6_LEN + usize::from(header.payload_length.get());
        let bytes = bytes.get(..total).ok_or(DropReason::Ip6PayloadLength)?;
        Ok(Self::V6 { header, bytes })
    }

    pub(crate) fn source(&self) -> IpAddr {
        match self {
            Self::V4 { header, .. } => header.source().into(),
            Self::V6 { header, .. } => header.source().into(),
        }
    }

    pub(crate) fn destination(&self) -> IpAddr {
        match self {
            Self::V4 { header, .. } => header.destination().into(),
            Self::V6 { header, .. } => header.destination().into(),
        }
    }

    /// Returns the TTL or hop limit.
    pub(crate) fn ttl(&self) -> u8 {
        match self {
            Self::V4 { header, .. } => header.ttl,
            Self::V6 { header, .. } => header.hop_limit,
        }
    }

    /// Returns the packet, from the IP header to its end.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match self {
            Self::V4 { bytes, .. } | Self::V6 { bytes, .. } => bytes,
        }
    }

    /// Returns the number of bytes in the frame up to the packet's end.
    pub(crate) fn frame_len(&self) -> usize {
        ETHERNET_LEN + self.bytes().len()
    }

    /// Returns the upper-layer protocol and its offset, regardless of the headers before it; `None`
    /// if IPv6 extension headers or authentication headers are truncated.
    pub(crate) fn upper(&self) -> Option<Upper> {
        match self {
            Self::V4 { header, bytes } => {
                let fragment = header.is_fragment().then(|| header.fragment_offset());
                let (protocol, offset) = (header.protocol, header.header_len());
                behind_authentication(Upper { protocol, offset, fragment }, bytes)
            }
            Self::V6 { header, bytes } => upper_v6(header.next_header, bytes),
        }
    }
}

/// Upper layer of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upper {
    /// Protocol number.
    pub protocol: u8,
    /// Offset of its header in the IP packet.
    pub offset: usize,
    /// The fragment's offset, if the packet is a fragment; IPv6 atomic fragments (RFC 6946) do not
    /// count as fragments.
    pub fragment: Option<usize>,
}

impl Upper {
    pub(crate) fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|offset| offset > 0)
    }
}

/// Passes over the authentication headers of an IPv4 packet (RFC 4302, 3.1.1), which are present in
/// all but later fragments.
fn behind_authentication(mut upper: Upper, packet: &[u8]) -> Option<Upper> {
    while upper.protocol == PROTOCOL_AUTHENTICATION && !upper.is_later_fragment() {
        let rest = packet.get(upper.offset..)?;
        let (header, _) = AuthenticationHeader::ref_from_prefix(rest).ok()?;
        upper.protocol = header.next_header;
        upper.offset += header.header_len();
    }
    Some(upper)
}

/// Finds the upper layer behind IPv6 extension headers, or the data of a later fragment.
fn upper_v6(next_header: u8, packet: &[u8]) -> Option<Upper> {
    let mut fragment = None;
    let headers = packet.get(IPV6_LEN..)?;
    let end = chain::walk(next_header, headers, usize::MAX, |header| {
        let Header::Fragment(header) = header else { return };
        if header.more() || header.fragment_offset() != 0 {
            fragment = Some(header.fragment_offset());
        }
    });
    let (protocol, rest) = end.ok()?;
    Some(Upper { protocol, offset: packet.len() - rest.len(), fragment })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(next_header: u8, behind: &[u8]) -> Option<Upper> {
        let mut packet = vec![0; IPV6_LEN];
        packet.extend_from_slice(behind);
        upper_v6(next_header, &packet)
    }

    #[test]
    fn extension_headers_are_walked() {
        let chain = [
            60, 0, 1, 4, 0, 0, 0, 0, // hop-by-hop, destination options follow
            43, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // routing follows
            44, 0, 0, 1, 0, 0, 0, 0, // one segment left, fragment follows
            17, 0, 0, 1, 0, 0, 0, 7, // first fragment, more to come; UDP
            1, 2, 3, 4, 5, 6, 7, 8,
        ];
        let upper = v6(0, &chain).unwrap();
        assert_eq!(upper.protocol, 17);
        assert_eq!(upper.offset, 40 + 40);
        assert_eq!(upper.fragment, Some(0));
    }

    #[test]
    fn an_atomic_fragment_is_no_fragment_and_a_later_one_ends_the_walk() {
        let atomic = v6(44, &[58, 0, 0, 0, 0, 0, 0, 1, 128]).unwrap();
        assert_eq!((atomic.protocol, atomic.fragment), (58, None));
        let later = v6(44, &[60, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff]).unwrap();
        assert_eq!((later.protocol, later.fragment), (60, Some(8)));
    }

    #[test]
    fn authentication_headers_have_units_of_four_bytes() {
        let header = [[58, 1, 0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 128, 0, 0, 0]].concat();
        let upper = v6(51, &header).unwrap();
        assert_eq!((upper.protocol, upper.offset), (58, 52));
        assert_eq!(v6(51, &header[..8]), None);
        let first = Upper { protocol: 51, offset: 2, fragment: Some(0) };
        let upper = behind_authentication(first, &[&[0; 2][..], &header].concat()).unwrap();
        assert_eq!((upper.protocol, upper.offset), (58, 14));
        let later = Upper { fragment: Some(8), ..first };
        assert_eq!(behind_authentication(later, &[0; 20]), Some(later));
    }

    #[test]
    fn a_cut_chain_has_no_upper_layer() {
        assert_eq!(v6(0, &[]), None);
        assert_eq!(v6(0, &[17, 1, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(v6(44, &[17, 0, 0, 1]), None);
    }
}
