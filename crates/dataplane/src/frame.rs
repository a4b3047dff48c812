//! The fields of a transmitted frame that queues use: its class by DSCP, and the ECN bits.

use dpdk::Mbuf;
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, payload};
use wire::ip::{IPV6_LEN, PROTOCOL_ICMPV6};

/// Classes of traffic by requirements: RFC 4594's service classes, combined like the four of RFC
/// 8325 4.3, and RFC 8622's lower effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Network control: CS6, CS7, and link-local traffic, which only the router can have sent:
    /// neighbour discovery, link-local groups (OSPF, IGMP, MLD), and frames other than IP (ARP,
    /// LLDP, IS-IS). It leaves before all others, within its bound.
    Control,
    /// Telephony and signalling: EF, VOICE-ADMIT (44), CS5.
    Voice,
    /// Video and real-time: AF4x, CS4, AF3x, CS3.
    Video,
    /// Low-latency and high-throughput data: AF2x, CS2, AF1x.
    Data,
    /// Everything else.
    Default,
    /// Lower effort: LE (RFC 8622), CS1.
    Background,
}

impl Class {
    /// All, in the order of [`Self::index`].
    pub const ALL: [Self; 6] =
        [Self::Control, Self::Voice, Self::Video, Self::Data, Self::Default, Self::Background];

    /// The number of classes.
    pub const COUNT: usize = Self::ALL.len();

    /// Returns the index in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The class of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Returns the name in configurations and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Voice => "voice",
            Self::Video => "video",
            Self::Data => "data",
            Self::Default => "default",
            Self::Background => "background",
        }
    }

    /// Returns the class of a codepoint (RFC 4594 figure 3, RFC 5865 for 44, RFC 8622 for 1);
    /// unknown ones are default (RFC 2474 4).
    pub fn of_dscp(dscp: u8) -> Self {
        match dscp {
            48 | 56 => Self::Control,
            40 | 44 | 46 => Self::Voice,
            24 | 26 | 28 | 30 | 32 | 34 | 36 | 38 => Self::Video,
            10 | 12 | 14 | 16 | 18 | 20 | 22 => Self::Data,
            1 | 8 => Self::Background,
            _ => Self::Default,
        }
    }

    /// Returns the number for [`Mbuf::set_traffic_class`].
    pub(crate) fn number(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the class that a filter has set for the packet, or that of its frame.
    #[inline]
    pub fn of(packet: &Mbuf) -> Self {
        match usize::from(packet.traffic_class()).checked_sub(1) {
            Some(place) => Self::ALL.get(place).copied().unwrap_or(Self::Default),
            None => Self::of_buffers(packet),
        }
    }

    fn of_buffers(packet: &Mbuf) -> Self {
        let mut chunks = packet.chunks();
        let first = chunks.next().unwrap_or_default();
        let Some((ethertype, start)) = payload(first) else { return Self::Control };
        // A replica's first buffer ends with the Ethernet header.
        let ip = match first.get(start..) {
            Some([]) | None => chunks.next().unwrap_or_default(),
            Some(ip) => ip,
        };
        Self::of_ip(ethertype, ip)
    }

    /// Returns the class of a frame whose headers are in these bytes.
    #[inline]
    pub fn of_frame(frame: &[u8]) -> Self {
        let Some((ethertype, start)) = payload(frame) else { return Self::Control };
        Self::of_ip(ethertype, frame.get(start..).unwrap_or_default())
    }

    #[inline]
    fn of_ip(ethertype: u16, ip: &[u8]) -> Self {
        match (ethertype, ip) {
            (ETHERTYPE_IPV4, ip)
                if ip.get(IP4_DESTINATION..IP4_DESTINATION + 3) == Some(&[224, 0, 0]) =>
            {
                Self::Control
            }
            (ETHERTYPE_IPV4, [_, tos, ..]) => Self::of_dscp(tos >> 2),
            (ETHERTYPE_IPV6, ip)
                if ip.get(IP6_DESTINATION..IP6_DESTINATION + 2) == Some(&[0xff, 0x02]) =>
            {
                Self::Control
            }
            (ETHERTYPE_IPV6, ip) if is_neighbour_discovery(ip) => Self::Control,
            (ETHERTYPE_IPV6, &[first, second, ..]) => {
                Self::of_dscp((first << 2 | second >> 6) & 0x3f)
            }
            _ => Self::Control,
        }
    }
}

/// Offsets of the destination in an IPv4 and in an IPv6 header.
const IP4_DESTINATION: usize = 16;
const IP6_DESTINATION: usize = 24;

/// Returns true for router and neighbour solicitations and advertisements, and redirects (RFC 4861
/// 4), which no router forwards.
fn is_neighbour_discovery(ip: &[u8]) -> bool {
    const NEXT_HEADER: usize = 6;
    const HOP_LIMIT: usize = 7;
    ip.get(NEXT_HEADER) == Some(&PROTOCOL_ICMPV6)
        && ip.get(HOP_LIMIT) == Some(&u8::MAX)
        && matches!(ip.get(IPV6_LEN), Some(133..=137))
}

/// ECN bits (RFC 3168 5).
const NOT_ECT: u8 = 0;
const CE: u8 = 3;

/// Sets Congestion Experienced in a frame whose IP header is complete. The IP header of a replica
/// is not in its first buffer, so it is not marked.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let Some((ethertype, start)) = payload(frame) else { return false };
    let Some(ip) = frame.get_mut(start..) else { return false };
    match ethertype {
        ETHERTYPE_IPV4 => mark_ip4(ip),
        ETHERTYPE_IPV6 => mark_ip6(ip),
        _ => false,
    }
}

fn mark_ip4(ip: &mut [u8]) -> bool {
    const CHECKSUM: usize = 10;
    let Some(header) = ip.first_chunk_mut::<20>() else { return false };
    if header[1] & CE == NOT_ECT {
        return false;
    }
    let old = u16::from_be_bytes([header[0], header[1]]);
    header[1] |= CE;
    let new = u16::from_be_bytes([header[0], header[1]]);
    let checksum = u16::from_be_bytes([header[CHECKSUM], header[CHECKSUM + 1]]);
    let updated = wire::checksum::update(checksum, old, new).to_be_bytes();
    [header[CHECKSUM], header[CHECKSUM + 1]] = updated;
    true
}

/// The traffic class spans the first two bytes; its last two bits are bits 4 and 5 of the second.
fn mark_ip6(ip: &mut [u8]) -> bool {
    let Some([_, second, ..]) = ip.first_chunk_mut::<IPV6_LEN>() else { return false };
    if *second >> 4 & CE == NOT_ECT {
        return false;
    }
    *second |= CE << 4;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, dpdk, tagged};

    fn with_tos(frame: Vec<u8>, tos: u8) -> Vec<u8> {
        let mut frame = frame;
        match frame[14] >> 4 {
            4 => {
                frame[15] = tos;
                frame[24..26].fill(0);
                let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
                frame[24..26].copy_from_slice(&sum);
            }
            _ => {
                frame[14] = 0x60 | tos >> 4;
                frame[15] = frame[15] & 0x0f | tos << 4;
            }
        }
        frame
    }

    /// The frame without a tag, with a customer tag, and with a service tag before that.
    fn with_tags(frame: &[u8]) -> [Vec<u8>; 3] {
        let customer = tagged(frame, 0x8100, 7);
        [frame.to_vec(), customer.clone(), tagged(&customer, 0x88a8, 5)]
    }

    fn class(frame: &[u8]) -> Class {
        Class::of(&dpdk().1.copy_of(frame).unwrap())
    }

    #[test]
    fn codepoints_have_the_classes_of_rfc_4594() {
        let dscp = |name: &str| acl::text::dscp(name).unwrap();
        for (class, names) in [
            (Class::Control, &["cs6", "cs7"][..]),
            (Class::Voice, &["ef", "cs5", "44"]),
            (Class::Video, &["af41", "af42", "af43", "cs4", "af31", "af33", "cs3"]),
            (Class::Data, &["af21", "af23", "cs2", "af11", "af13"]),
            (Class::Default, &["0", "2", "63"]),
            (Class::Background, &["le", "cs1"]),
        ] {
            for name in names {
                let tos = dscp(name) << 2 | 1;
                for frame in [FrameBuilder::ip4().build(), FrameBuilder::ip6().build()] {
                    let frame = with_tos(frame, tos);
                    assert_eq!(with_tags(&frame).map(|frame| self::class(&frame)), [class; 3]);
                }
            }
        }
    }

    #[test]
    fn a_class_that_is_given_counts_before_the_codepoint() {
        let mut packet = dpdk().1.copy_of(&with_tos(FrameBuilder::ip4().build(), 46 << 2)).unwrap();
        assert_eq!(Class::of(&packet), Class::Voice);
        for class in Class::ALL {
            packet.set_traffic_class(class.number());
            assert_eq!(Class::of(&packet), class);
        }
    }

    #[test]
    fn what_the_link_lives_by_is_control() {
        let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).build();
        assert_eq!(class(&arp), Class::Control);
        assert_eq!(class(&arp[..13]), Class::Control);
        let mut solicitation = FrameBuilder::ip6().build();
        solicitation.resize(14 + 40 + 24, 0);
        (solicitation[20], solicitation[21], solicitation[54]) = (58, 255, 135);
        assert_eq!(class(&solicitation), Class::Control);
        solicitation[21] = 64;
        assert_eq!(class(&solicitation), Class::Default, "forwarded, so no such message");
        let groups = ["224.0.0.5", "224.0.0.251", "224.0.1.1", "225.0.0.1"];
        let groups = groups.map(|to| class(&FrameBuilder::ip4().destination4(to).build()));
        assert_eq!(groups, [Class::Control, Class::Control, Class::Default, Class::Default]);
        let groups = ["ff02::16", "ff05::2", "2001:db8::ff02"];
        let groups = groups.map(|to| class(&FrameBuilder::ip6().destination6(to).build()));
        assert_eq!(groups, [Class::Control, Class::Default, Class::Default]);
    }

    #[test]
    fn the_header_of_a_replica_is_in_its_second_buffer() {
        let pool = &dpdk().1;
        let frame = with_tos(FrameBuilder::ip4().build(), 46 << 2 | 2);
        let shared = dpdk::Shared::new(pool.copy_of(&frame[14..]).unwrap());
        let mut replica = shared.refer(&frame[..14], pool).unwrap();
        assert_eq!(Class::of(&replica), Class::Voice);
        assert!(!mark(replica.data_mut()), "others have these bytes too");
    }

    #[test]
    fn marks_keep_the_header_s_checksum_right() {
        for tos in 0..=255u8 {
            let frame = with_tos(FrameBuilder::ip4().build(), tos);
            for mut frame in with_tags(&frame) {
                let ip = frame.len() - FrameBuilder::ip4().build().len() + 14;
                assert_eq!(mark(&mut frame), tos & 3 != 0, "{tos:02x}");
                assert_eq!(frame[ip + 1], if tos & 3 != 0 { tos | 3 } else { tos });
                assert_eq!(wire::checksum::checksum(&frame[ip..ip + 20]), 0, "{tos:02x}");
            }
            let mut frame = with_tos(FrameBuilder::ip6().build(), tos);
            assert_eq!(mark(&mut frame), tos & 3 != 0, "{tos:02x}");
            let marked = frame[14] << 4 | frame[15] >> 4;
            assert_eq!(marked, if tos & 3 != 0 { tos | 3 } else { tos });
        }
    }

    #[test]
    fn what_is_too_short_or_not_ip_is_not_marked() {
        let frame = with_tos(FrameBuilder::ip4().build(), 2);
        for length in 0..34 {
            assert!(!mark(&mut frame[..length].to_vec()));
        }
        let mut arp = FrameBuilder::ethernet([0xff; 6], 0x0806).build();
        arp.resize(60, 0xff);
        assert!(!mark(&mut arp));
    }
}
