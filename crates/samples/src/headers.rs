//! The headers of a sampled frame.

use std::net::IpAddr;

use wire::chain::{Header, walk};
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, payload};
use wire::ip::{
    IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP,
};
use wire::l4::{TcpHeader, UdpHeader};
use zerocopy::FromBytes;

/// SCTP (RFC 9260) and UDP-Lite (RFC 3828), whose headers begin with ports as those of TCP and UDP do.
const WITH_PORTS: [u8; 4] = [PROTOCOL_TCP, PROTOCOL_UDP, 132, 136];

/// The most extension headers that are passed over.
const EXTENSIONS_MOST: usize = 8;

/// The control bits of TCP in the last octet of their field (RFC 9293, 3.1).
const TCP_FLAGS: u16 = 0xff;

/// The headers of an IP packet, as far as the sampled bytes have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The source.
    pub source: IpAddr,
    /// The destination.
    pub destination: IpAddr,
    /// The protocol behind extension headers.
    pub protocol: u8,
    /// The type of service or traffic class.
    pub tos: u8,
    /// The source port; 0: none.
    pub source_port: u16,
    /// The destination port; 0: none.
    pub destination_port: u16,
    /// Type and code of ICMP; 0 for others.
    pub icmp: u16,
    /// The control bits of TCP; 0 for others.
    pub tcp_flags: u8,
    /// The length of the IP packet by its header.
    pub length: u32,
    /// The offset of the IP header in the frame.
    pub offset: usize,
}

/// Returns the control field of a frame's outer VLAN tag; `None` without a tag.
pub fn tag(frame: &[u8]) -> Option<u16> {
    let (_, end) = payload(frame)?;
    let control = frame.get(ETHERNET_LEN..ETHERNET_LEN + 2)?;
    (end > ETHERNET_LEN).then(|| u16::from_be_bytes([control[0], control[1]]))
}

/// Reads the headers of a frame's first bytes; `None` if it has no whole IP header.
pub fn read(frame: &[u8]) -> Option<Headers> {
    let (ethertype, offset) = payload(frame)?;
    let packet = frame.get(offset..)?;
    match ethertype {
        ETHERTYPE_IPV4 => ip4(packet, offset),
        ETHERTYPE_IPV6 => ip6(packet, offset),
        _ => None,
    }
}

fn ip4(packet: &[u8], offset: usize) -> Option<Headers> {
    let (header, _) = Ipv4Header::ref_from_prefix(packet).ok()?;
    if header.version() != 4 {
        return None;
    }
    let headers = Headers {
        source: header.source().into(),
        destination: header.destination().into(),
        protocol: header.protocol,
        tos: header.tos,
        source_port: 0,
        destination_port: 0,
        icmp: 0,
        tcp_flags: 0,
        length: header.total_length.get().into(),
        offset,
    };
    let upper = packet.get(header.header_len()..).filter(|_| header.fragment_offset() == 0);
    Some(headers.with(upper.unwrap_or_default()))
}

fn ip6(packet: &[u8], offset: usize) -> Option<Headers> {
    let (header, rest) = Ipv6Header::ref_from_prefix(packet).ok()?;
    if header.version() != 6 {
        return None;
    }
    let mut is_later_fragment = false;
    let end = walk(header.next_header, rest, EXTENSIONS_MOST, |of| {
        if let Header::Fragment(of) = of {
            is_later_fragment |= of.fragment_offset() != 0;
        }
    });
    let (protocol, upper) = end.unwrap_or_else(|cut| (cut, &[]));
    let headers = Headers {
        source: header.source().into(),
        destination: header.destination().into(),
        protocol,
        tos: (header.version_class_flow.get() >> 20) as u8,
        source_port: 0,
        destination_port: 0,
        icmp: 0,
        tcp_flags: 0,
        length: IPV6_LEN as u32 + u32::from(header.payload_length.get()),
        offset,
    };
    Some(headers.with(if is_later_fragment { &[] } else { upper }))
}

impl Headers {
    /// Adds the fields of the header behind IP.
    fn with(mut self, upper: &[u8]) -> Self {
        let word = |at: usize| Some(u16::from_be_bytes(*upper.get(at..)?.first_chunk()?));
        if WITH_PORTS.contains(&self.protocol)
            && let (Some(source), Some(destination)) = (word(0), word(size_of::<u16>()))
        {
            (self.source_port, self.destination_port) = (source, destination);
        }
        if matches!(self.protocol, PROTOCOL_ICMP | PROTOCOL_ICMPV6) {
            self.icmp = word(0).unwrap_or(0);
        }
        if self.protocol == PROTOCOL_TCP
            && let Ok((tcp, _)) = TcpHeader::ref_from_prefix(upper)
        {
            self.tcp_flags = (tcp.offset_flags.get() & TCP_FLAGS) as u8;
        }
        self
    }
}

/// The least bytes of a frame that have the ports of any packet without options and extension headers, with two tags.
pub const LEAST: usize =
    ETHERNET_LEN + 2 * wire::ethernet::TAG_LEN + IPV6_LEN + size_of::<UdpHeader>();

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A UDP packet between two hosts, of 128 bytes with its IP header.
    pub(crate) fn udp4() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0xb8, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 1, 2, 10, 0, 2, 2, 0x03, 0xe8, 0x07, 0xd0, 0, 108, 0, 0]);
        frame.resize(14 + 128, 0);
        frame
    }

    /// A TCP packet between two hosts behind a hop-by-hop header.
    pub(crate) fn tcp6() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x81, 0, 0x60, 5, 0x86, 0xdd, 0x6b, 0x80, 0, 0, 0, 28, 0, 64]);
        for last in [1, 2] {
            frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        frame.extend([6, 0, 1, 4, 0, 0, 0, 0]);
        frame.extend([0, 80, 0x9c, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn packets_of_both_families_are_read() {
        let found = read(&udp4()).unwrap();
        assert_eq!((found.source, found.destination), ([10, 0, 1, 2].into(), [10, 0, 2, 2].into()));
        assert_eq!((found.source_port, found.destination_port, found.protocol), (1000, 2000, 17));
        assert_eq!((found.tos, found.length, found.offset), (0xb8, 128, 14));
        let found = read(&tcp6()).unwrap();
        assert_eq!(found.source, "fd00::1".parse::<IpAddr>().unwrap());
        assert_eq!((found.source_port, found.destination_port, found.protocol), (80, 40000, 6));
        assert_eq!((found.tos, found.length, found.offset, found.tcp_flags), (0xb8, 68, 18, 0x12));
        assert_eq!((tag(&udp4()), tag(&tcp6())), (None, Some(0x6005)));
    }

    #[test]
    fn fragments_and_icmp_have_no_ports() {
        let mut later = udp4();
        later[21] = 1;
        assert_eq!(read(&later).unwrap().source_port, 0);
        let mut echo = udp4();
        (echo[23], echo[34], echo[35]) = (PROTOCOL_ICMP, 8, 0);
        let found = read(&echo).unwrap();
        assert_eq!((found.source_port, found.icmp), (0, 0x0800));
        let mut not_ip = udp4();
        not_ip[13] = 6;
        assert_eq!(read(&not_ip), None);
    }

    proptest! {
        #[test]
        fn cut_frames_are_read_as_far_as_they_go(frame in prop::collection::vec(any::<u8>(), 0..200), cut in 0..200usize) {
            let _ = (read(&frame), tag(&frame));
            for whole in [udp4(), tcp6()] {
                let cut = &whole[..cut.min(whole.len())];
                if let Some(found) = read(cut) {
                    prop_assert_eq!(found.source, read(&whole).unwrap().source);
                }
            }
        }
    }
}
