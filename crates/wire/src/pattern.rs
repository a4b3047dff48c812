//! Patterns: the headers of a packet compared under masks, as devices do it.

use zerocopy::FromBytes;

use crate::MacAddr;
use crate::ethernet::{
    ADDRESSES_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, EthernetHeader,
    TAG_LEN,
};
use crate::ip::{
    IPV4_MIN_LEN, Ipv4Header, Ipv6Header, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP,
};
use crate::l4::TcpHeader;

/// A value with a mask of the bits to compare. The other bits are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Masked<T> {
    /// The value.
    pub value: T,
    /// The bits that are compared; 0: any value matches.
    pub mask: T,
}

/// Required headers of an IP packet. A packet without such a header does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The family, and its addresses.
    pub addresses: Addresses,
    /// Type of service or traffic class.
    pub class: Masked<u8>,
    /// Time to live or hop limit.
    pub ttl: Masked<u8>,
    /// Protocol of the IP header; for IPv6 the next header of the fixed header, so that packets with
    /// extension headers do not match.
    pub protocol: Option<u8>,
    /// True: the packet must not be a fragment, by its IPv4 header.
    pub whole: bool,
    /// The header after the IP header.
    pub upper: Upper,
}

/// Frames of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// Those of an Ethertype that is none of IP's.
    EtherType(u16),
    /// IP packets.
    Ip(Pattern),
}

impl Traffic {
    /// Returns true if an untagged Ethernet frame is of this kind.
    pub fn fits(&self, frame: &[u8]) -> bool {
        match self {
            Self::Ip(pattern) => pattern.fits(frame),
            Self::EtherType(wanted) => EthernetHeader::ref_from_prefix(frame)
                .is_ok_and(|(ethernet, _)| ethernet.ethertype.get() == *wanted),
        }
    }
}

/// Frames by their addresses and tags, and by the traffic in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frames {
    /// Their header.
    pub link: Link,
    /// The traffic after their tags.
    pub traffic: Traffic,
}

/// Required Ethernet header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// Its source; `None`: any.
    pub source: Option<MacAddr>,
    /// Its destination; `None`: any.
    pub destination: Option<MacAddr>,
    /// Its tags.
    pub tags: Tags,
}

/// Required tags of a frame (IEEE 802.1Q), and no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tags {
    /// Tags are not compared: a device may find the traffic behind tags or not.
    #[default]
    Any,
    /// The frame has none.
    None,
    /// One.
    One(Tag),
    /// An outer one and an inner one.
    Two(Tag, Tag),
}

/// A required VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Its Ethertype.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN identifier.
    pub control: Masked<u16>,
}

impl Frames {
    /// Returns true if a frame is one of these: the meaning of patterns, for tests of their compilers.
    pub fn fits(&self, frame: &[u8]) -> bool {
        let Ok((ethernet, _)) = EthernetHeader::ref_from_prefix(frame) else { return false };
        let is =
            |wanted: Option<MacAddr>, found: MacAddr| wanted.is_none_or(|wanted| wanted == found);
        let Link { source, destination, tags } = self.link;
        if !is(source, ethernet.source) || !is(destination, ethernet.destination) {
            return false;
        }
        let (found, untagged) = without_tags(frame);
        let fits = |wanted: &[Tag]| {
            wanted.len() == found.len()
                && wanted.iter().zip(&found).all(|(one, tag)| one.fits(*tag))
        };
        let has_tags = match tags {
            Tags::Any => true,
            Tags::None => found.is_empty(),
            Tags::One(tag) => fits(&[tag]),
            Tags::Two(outer, inner) => fits(&[outer, inner]),
        };
        has_tags && self.traffic.fits(&untagged)
    }
}

impl Tag {
    fn fits(self, (protocol, control): (u16, u16)) -> bool {
        self.protocol == protocol && self.control.fits(control)
    }
}

/// Returns a frame's tags, by Ethertype and control information, and the frame without them.
fn without_tags(frame: &[u8]) -> (Vec<(u16, u16)>, Vec<u8>) {
    let (mut tags, mut frame) = (Vec::new(), frame.to_vec());
    while let Some(&[a, b, c, d]) = frame.get(ADDRESSES_LEN..).and_then(|rest| rest.first_chunk())
        && let protocol @ (ETHERTYPE_VLAN | ETHERTYPE_QINQ) = u16::from_be_bytes([a, b])
    {
        tags.push((protocol, u16::from_be_bytes([c, d])));
        frame.drain(ADDRESSES_LEN..ADDRESSES_LEN + TAG_LEN);
    }
    (tags, frame)
}

/// Source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    Ip4 {
        /// Source address.
        source: Masked<u32>,
        /// Destination address.
        destination: Masked<u32>,
    },
    /// IPv6.
    Ip6 {
        /// Source address.
        source: Masked<u128>,
        /// Destination address.
        destination: Masked<u128>,
    },
}

/// Required header after the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upper {
    /// Anything.
    Any,
    /// The header of a protocol with ports, which [`Pattern::protocol`] names.
    Ports {
        /// Source port.
        from: Masked<u16>,
        /// Destination port.
        to: Masked<u16>,
        /// TCP flags.
        flags: Masked<u8>,
    },
    /// The header of the family's ICMP, with this type.
    Icmp(u8),
}

impl Masked<u16> {
    /// Matches this value and no other.
    pub fn exactly(value: u16) -> Self {
        Self { value, mask: u16::MAX }
    }

    fn fits(self, value: u16) -> bool {
        value & self.mask == self.value
    }
}

impl Masked<u8> {
    fn fits(self, value: u8) -> bool {
        value & self.mask == self.value
    }
}

impl Masked<u32> {
    fn fits(self, value: [u8; 4]) -> bool {
        u32::from_be_bytes(value) & self.mask == self.value
    }
}

impl Masked<u128> {
    fn fits(self, value: [u8; 16]) -> bool {
        u128::from_be_bytes(value) & self.mask == self.value
    }
}

impl Pattern {
    /// Returns true if an untagged Ethernet frame matches: the meaning of a pattern, for tests of pattern
    /// compilers.
    pub fn fits(&self, frame: &[u8]) -> bool {
        let Ok((ethernet, packet)) = EthernetHeader::ref_from_prefix(frame) else { return false };
        match self.addresses {
            Addresses::Ip4 { source, destination } if ethernet.ethertype == ETHERTYPE_IPV4 => {
                let Ok((ip, _)) = Ipv4Header::ref_from_prefix(packet) else { return false };
                let payload = packet.get(ip.header_len().max(IPV4_MIN_LEN)..).unwrap_or_default();
                source.fits(ip.source_address)
                    && destination.fits(ip.destination_address)
                    && self.class.fits(ip.tos)
                    && self.ttl.fits(ip.ttl)
                    && self.protocol.is_none_or(|protocol| protocol == ip.protocol)
                    && !(self.whole && ip.is_fragment())
                    && self.upper_fits(ip.protocol, PROTOCOL_ICMP, payload)
            }
            Addresses::Ip6 { source, destination } if ethernet.ethertype == ETHERTYPE_IPV6 => {
                let Ok((ip, payload)) = Ipv6Header::ref_from_prefix(packet) else { return false };
                source.fits(ip.source_address)
                    && destination.fits(ip.destination_address)
                    && self.class.fits((ip.version_class_flow.get() >> 20) as u8)
                    && self.ttl.fits(ip.hop_limit)
                    && self.protocol.is_none_or(|protocol| protocol == ip.next_header)
                    && self.upper_fits(ip.next_header, PROTOCOL_ICMPV6, payload)
            }
            _ => false,
        }
    }

    fn upper_fits(&self, protocol: u8, icmp: u8, payload: &[u8]) -> bool {
        match (self.upper, payload) {
            (Upper::Any, _) => true,
            (Upper::Icmp(kind), [found, ..]) => protocol == icmp && *found == kind,
            (Upper::Ports { from, to, flags }, [a, b, c, d, ..]) => {
                let tcp = TcpHeader::ref_from_prefix(payload).ok();
                let found = match (protocol, tcp) {
                    (PROTOCOL_TCP, Some((tcp, _))) => tcp.offset_flags.get() as u8,
                    (PROTOCOL_TCP, None) => return false,
                    _ => 0,
                };
                from.fits(u16::from_be_bytes([*a, *b]))
                    && to.fits(u16::from_be_bytes([*c, *d]))
                    && flags.fits(found)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TCP from 192.0.2.1:4097 to 198.51.100.7:22, SYN and ACK.
    fn tcp(flags_fragment: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0, 0x45, 0xb8, 0, 40, 0, 1]);
        frame.extend(flags_fragment.to_be_bytes());
        frame.extend([61, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]);
        frame.extend([0x10, 0x01, 0, 22, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn masked_bits_are_compared() {
        let any = Masked::default();
        let upper = Upper::Ports {
            from: Masked { value: 0x1000, mask: 0xff00 },
            to: Masked::exactly(22),
            flags: Masked { value: 2, mask: 6 },
        };
        let pattern = Pattern {
            addresses: Addresses::Ip4 {
                source: Masked { value: 0xc000_0200, mask: 0xffff_ff00 },
                destination: any_address(),
            },
            class: Masked { value: 0xb8, mask: 0xfc },
            ttl: any,
            protocol: Some(6),
            whole: true,
            upper,
        };
        assert!(pattern.fits(&tcp(0x4000)));
        let not = [
            Pattern { class: Masked { value: 0, mask: 0xfc }, ..pattern },
            Pattern { ttl: Masked { value: 60, mask: 0xff }, ..pattern },
            Pattern { protocol: Some(17), ..pattern },
            Pattern { upper: Upper::Icmp(16), ..pattern },
            Pattern {
                upper: Upper::Ports { from: Masked::exactly(1), to: Masked::default(), flags: any },
                ..pattern
            },
        ];
        for (place, not) in not.iter().enumerate() {
            assert!(!not.fits(&tcp(0x4000)), "{place}");
        }
        for fragment in [0x2000, 0x0001] {
            assert!(!pattern.fits(&tcp(fragment)), "{fragment:#x}");
            assert!(Pattern { whole: false, ..pattern }.fits(&tcp(fragment)));
        }
        assert!(!pattern.fits(&tcp(0x4000)[..40]), "a header that ends too early");
    }

    #[test]
    fn addresses_and_tags_of_a_frame_are_compared() {
        let untagged = tcp(0x4000);
        let tagged = |tags: &[[u8; 4]]| [&untagged[..12], &tags.concat(), &untagged[12..]].concat();
        let control = Masked { value: 0xa007, mask: 0xefff };
        let tag = Tag { protocol: 0x8100, control };
        let outer = Tag { protocol: 0x88a8, control: Masked { value: 5, mask: 0x0fff } };
        let with = |tags| Frames {
            link: Link { tags, ..Link::default() },
            traffic: Traffic::EtherType(0x0800),
        };
        // Priority 5, drop eligible, VLAN 7.
        let one = tagged(&[[0x81, 0, 0xb0, 7]]);
        let two = tagged(&[[0x88, 0xa8, 0x60, 5], [0x81, 0, 0xa0, 7]]);
        let fits = |tags| [&untagged, &one, &two].map(|frame| with(tags).fits(frame));
        assert_eq!(fits(Tags::Any), [true; 3]);
        assert_eq!(fits(Tags::None), [true, false, false]);
        assert_eq!(fits(Tags::One(tag)), [false, true, false]);
        assert_eq!(fits(Tags::One(outer)), [false; 3], "its frames have no second tag");
        assert_eq!(fits(Tags::Two(outer, tag)), [false, false, true]);
        assert_eq!(fits(Tags::Two(tag, outer)), [false; 3]);
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        for link in [
            Link { source: Some(mac), ..Link::default() },
            Link { destination: Some(mac), ..Link::default() },
        ] {
            let mut frame = untagged.clone();
            assert!(!Frames { link, ..with(Tags::Any) }.fits(&frame));
            let place = if link.source.is_some() { 6 } else { 0 };
            frame[place..place + 6].copy_from_slice(&mac.0);
            assert!(Frames { link, ..with(Tags::Any) }.fits(&frame));
        }
        assert!(!with(Tags::Any).fits(&one[..13]));
    }

    fn any_address() -> Masked<u32> {
        Masked::default()
    }
}
