//! Keys of flows: addresses, protocol, ports and VRF, the same for both directions.
//!
//! | packet | ports in its key |
//! |---|---|
//! | TCP, UDP, UDP-Lite, SCTP, DCCP | as they are, also of a first fragment |
//! | ICMP echo and timestamp, ICMPv6 echo | the identifier for the requester, 0 for the responder: only a reply is the other direction of a request |
//! | a later fragment | its identification; the flow is that of the fragments of one packet, "protocol" 44 |
//! | other ICMP | none: it has no flow |
//! | anything else | 0: a flow for each pair of addresses and protocol |
//!
//! An ICMP error has no flow of its own: it belongs to the flow of the packet that it quotes (RFC 792, RFC 4443
//! 2.1), if the error's destination is that packet's sender.

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use acl::key::MAX_HEADERS;
use acl::{Ends, Family, Fields, FilterAddress};
use fib::Address;
use wire::chain::{self, Header};
use wire::ip::{
    IPV4_MIN_LEN, Ipv4Header, Ipv6Header, PROTOCOL_FRAGMENT, PROTOCOL_ICMP, PROTOCOL_ICMPV6,
    PROTOCOL_TCP, PROTOCOL_UDP,
};
use zerocopy::FromBytes;

use super::table::Mark;
use crate::head::ETHERNET;

/// A family whose flows are tracked.
pub trait Tracked: FilterAddress {
    /// A key's words. Ports, VRF and protocol are in the second.
    type Words: AsRef<[u64]> + Copy + Debug + Default + Eq + Send;

    /// A key that no flow has.
    const NOTHING: Self::Words;

    /// Returns the words of a key with these ends, the lower one first, and true if `from` is the
    /// higher one; `rest` is in the low half of the second word.
    fn ordered(from: End<Self>, to: End<Self>, rest: u64) -> (Self::Words, bool);

    /// Returns the words of a key as stored.
    fn words_of(words: &[u64; 5]) -> Self::Words;

    /// Returns both addresses in a key's words, of which IPv4 has two.
    fn addresses(words: &[u64; 5]) -> [IpAddr; 2];

    /// Returns a number for one end's address in a key's words.
    fn end(words: &[u64; 5], end: usize) -> u64;

    /// Parses the frame's IP header and the headers after it.
    fn headers(packet: &[u8]) -> Option<Headers<'_, Self>>;
}

/// An IP packet without its extension headers.
pub struct Headers<'a, A: FilterAddress> {
    source: A::Bits,
    destination: A::Bits,
    protocol: u8,
    /// The identification, and the first byte's place, of a fragment.
    fragment: Option<(u32, usize)>,
    payload: &'a [u8],
}

/// The identity of the packet that a fragment is of: addresses, identification, and IPv4's protocol (RFC 791, RFC
/// 8200 4.5).
pub(crate) type Fragmented<A> = (<A as Address>::Bits, <A as Address>::Bits, u32, u8);

/// Returns the identity of the packet that a fragment is of, and true for the first one; `None` for a whole packet.
pub(crate) fn fragment<A: Tracked>(packet: &[u8]) -> Option<(Fragmented<A>, bool)> {
    let Headers { source, destination, protocol, fragment, .. } = A::headers(packet)?;
    let (identification, offset) = fragment?;
    let protocol = if A::OF == Family::Ip4 { protocol } else { 0 };
    Some(((source, destination, identification, protocol), offset == 0))
}

impl Tracked for Ipv4Addr {
    type Words = [u64; 2];

    const NOTHING: [u64; 2] = [0; 2];

    #[inline(always)]
    fn ordered(from: End<Self>, to: End<Self>, rest: u64) -> ([u64; 2], bool) {
        let number = |end: End<Self>| u64::from(end.0) << 16 | u64::from(end.1);
        let is_high = number(from) > number(to);
        // Halves change places by rotation: a jump could not be predicted.
        let addresses = u64::from(from.0) << 32 | u64::from(to.0);
        let ports = u32::from(from.1) << 16 | u32::from(to.1);
        let addresses = addresses.rotate_left(u32::from(is_high) * 32);
        let ports = ports.rotate_left(u32::from(is_high) * 16);
        ([addresses, u64::from(ports) << 32 | rest], is_high)
    }

    fn words_of(words: &[u64; 5]) -> [u64; 2] {
        [words[0], words[1]]
    }

    fn addresses(words: &[u64; 5]) -> [IpAddr; 2] {
        [(words[0] >> 32) as u32, words[0] as u32].map(|bits| Ipv4Addr::from_bits(bits).into())
    }

    fn end(words: &[u64; 5], end: usize) -> u64 {
        [words[0] >> 32, words[0] & 0xffff_ffff][end & 1]
    }

    fn headers(packet: &[u8]) -> Option<Headers<'_, Self>> {
        let (ip, _) = Ipv4Header::ref_from_prefix(packet).ok()?;
        let fragmented = ip.is_fragment();
        Some(Headers {
            source: ip.source().to_bits(),
            destination: ip.destination().to_bits(),
            protocol: ip.protocol,
            fragment: fragmented.then(|| (ip.identification.get().into(), ip.fragment_offset())),
            payload: packet.get(ip.header_len().max(IPV4_MIN_LEN)..)?,
        })
    }
}

impl Tracked for Ipv6Addr {
    type Words = [u64; 5];

    const NOTHING: [u64; 5] = [0; 5];

    #[inline(always)]
    fn ordered(from: End<Self>, to: End<Self>, rest: u64) -> ([u64; 5], bool) {
        let is_high = from > to;
        let (low, high) = if is_high { (to, from) } else { (from, to) };
        let ports = u64::from(low.1) << 48 | u64::from(high.1) << 32 | rest;
        let half = |address: u128| (address >> 64) as u64;
        ([half(low.0), ports, low.0 as u64, half(high.0), high.0 as u64], is_high)
    }

    fn words_of(words: &[u64; 5]) -> [u64; 5] {
        *words
    }

    fn addresses(words: &[u64; 5]) -> [IpAddr; 2] {
        let address = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        [address(words[0], words[2]), address(words[3], words[4])]
            .map(|bits| Ipv6Addr::from_bits(bits).into())
    }

    /// The network's: a host can use any address of its network.
    fn end(words: &[u64; 5], end: usize) -> u64 {
        [words[0], words[3]][end & 1]
    }

    fn headers(packet: &[u8]) -> Option<Headers<'_, Self>> {
        let (ip, rest) = Ipv6Header::ref_from_prefix(packet).ok()?;
        let (source, destination) = (ip.source().to_bits(), ip.destination().to_bits());
        let mut fragment = None;
        let end = chain::walk(ip.next_header, rest, MAX_HEADERS, |header| {
            let Header::Fragment(header) = header else { return };
            let offset = header.fragment_offset();
            if header.more() || offset != 0 {
                fragment = Some((header.identification.get(), offset));
            }
        });
        let (protocol, payload) = end.ok()?;
        Some(Headers { source, destination, protocol, fragment, payload })
    }
}

/// The flow of a packet, and the packet's direction in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowKey<A: Tracked> {
    pub words: A::Words,
    /// 0: from the lower of both ends.
    pub direction: usize,
}

/// A packet's identity for flow tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity<A: Tracked> {
    pub key: FlowKey<A>,
    pub mark: Mark,
    pub part: Part,
}

/// The role of a packet in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// None: it belongs to no flow.
    None,
    /// One of its packets.
    Packet,
    /// The same, of which this is the first fragment.
    FirstFragment,
    /// A later one of the fragments that are the flow.
    LaterFragment,
    /// An ICMP error about one of its packets of this direction.
    Error,
}

/// An end of a flow: address and port.
pub type End<A> = (<A as fib::Address>::Bits, u16);

impl<A: Tracked> FlowKey<A> {
    #[inline(always)]
    fn new(from: End<A>, to: End<A>, protocol: u8, vrf: u16) -> Self {
        let (words, is_high) = A::ordered(from, to, u64::from(vrf) << 8 | u64::from(protocol));
        Self { words, direction: usize::from(is_high) }
    }
}

/// Returns ports, protocol and VRF of a key, those of the lower end first.
pub(super) fn unpack(ports: u64) -> ([u16; 2], u8, u16) {
    ([(ports >> 48) as u16, (ports >> 32) as u16], ports as u8, (ports >> 8) as u16)
}

impl<A: Tracked> Identity<A> {
    /// The identity of a packet without a flow.
    pub const NONE: Self = Self {
        key: FlowKey { words: A::NOTHING, direction: 0 },
        mark: Mark::Plain,
        part: Part::None,
    };

    /// Returns the identity of the packet at this place of a batch, if its fields tell: it is TCP or UDP, and whole.
    #[inline(always)]
    pub fn of_plain(fields: &Fields<A>, place: usize, vrf: u16) -> Option<Self> {
        let Ends { source, destination, ports, protocol, flags } = fields.ends(place);
        let protocol = protocol?;
        let mark = match protocol {
            PROTOCOL_UDP => Mark::Plain,
            PROTOCOL_TCP => Mark::of_tcp(flags),
            _ => return None,
        };
        let (from, to) = ((source, (ports >> 16) as u16), (destination, ports as u16));
        Some(Self { key: FlowKey::new(from, to, protocol, vrf), mark, part: Part::Packet })
    }

    /// Returns the identity of any packet.
    pub fn of_frame(frame: &[u8], vrf: u16) -> Self {
        let identity = frame.get(ETHERNET..).and_then(|packet| Self::of_packet(packet, vrf));
        identity.unwrap_or(Self::NONE)
    }

    /// Returns the identity of an IP packet; `None`: it has no flow.
    pub fn of_packet(packet: &[u8], vrf: u16) -> Option<Self> {
        let headers = A::headers(packet)?;
        match headers.fragment {
            Some((_, offset)) if offset != 0 => headers.of_fragments(vrf),
            Some(_) => Some(Self { part: Part::FirstFragment, ..headers.of_whole(vrf)? }),
            None => headers.of_whole(vrf),
        }
    }

    /// Returns the identity of the fragments of the packet whose first fragment this is.
    pub fn of_rest(packet: &[u8], vrf: u16) -> Option<Self> {
        A::headers(packet)?.of_fragments(vrf)
    }
}

impl<A: Tracked> Headers<'_, A> {
    fn key(&self, ports: [u16; 2], protocol: u8, vrf: u16) -> FlowKey<A> {
        FlowKey::new((self.source, ports[0]), (self.destination, ports[1]), protocol, vrf)
    }

    fn of_fragments(&self, vrf: u16) -> Option<Identity<A>> {
        let (identification, _) = self.fragment?;
        // Both ends have the same, so that the direction is that of the addresses.
        let [high, low] = [(identification >> 16) as u16, identification as u16];
        let from_is_low = self.source <= self.destination;
        let ports = if from_is_low { [high, low] } else { [low, high] };
        let key = self.key(ports, PROTOCOL_FRAGMENT, vrf);
        Some(Identity { key, mark: Mark::Plain, part: Part::LaterFragment })
    }

    fn of_whole(&self, vrf: u16) -> Option<Identity<A>> {
        const UDP_LITE: u8 = acl::text::PROTOCOL_UDPLITE;
        const SCTP: u8 = acl::text::PROTOCOL_SCTP;
        const DCCP: u8 = acl::text::PROTOCOL_DCCP;
        let plain = |ports| {
            let key = self.key(ports, self.protocol, vrf);
            Some(Identity { key, mark: Mark::Plain, part: Part::Packet })
        };
        let ports = |length: usize| {
            let [a, b, c, d] = *self.payload.get(..length)?.first_chunk()?;
            Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
        };
        match self.protocol {
            PROTOCOL_TCP => {
                let mark = Mark::of_tcp(*self.payload.get(13)?);
                Some(Identity { mark, ..plain(ports(20)?)? })
            }
            PROTOCOL_UDP | UDP_LITE => plain(ports(8)?),
            SCTP | DCCP => plain(ports(12)?),
            PROTOCOL_ICMP if A::OF == Family::Ip4 => self.of_icmp(vrf),
            PROTOCOL_ICMPV6 if A::OF == Family::Ip6 => self.of_icmp(vrf),
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => None,
            _ => plain([0, 0]),
        }
    }

    fn of_icmp(&self, vrf: u16) -> Option<Identity<A>> {
        let header: &[u8; 8] = self.payload.first_chunk()?;
        let identifier = u16::from_be_bytes([header[4], header[5]]);
        let ports = match (A::OF, header[0]) {
            (Family::Ip4, 8 | 13) | (Family::Ip6, 128) => [identifier, 0],
            (Family::Ip4, 0 | 14) | (Family::Ip6, 129) => [0, identifier],
            (Family::Ip4, 3 | 11 | 12) | (Family::Ip6, 1..=4) => return self.of_quoted(vrf),
            _ => return None,
        };
        let key = self.key(ports, self.protocol, vrf);
        Some(Identity { key, mark: Mark::Plain, part: Part::Packet })
    }

    /// The identity of the packet that an ICMP error quotes, as far as it is quoted: at least eight bytes after
    /// its IP header, which contain the ports.
    fn of_quoted(&self, vrf: u16) -> Option<Identity<A>> {
        let quoted = A::headers(self.payload.get(8..)?)?;
        if quoted.source != self.destination || quoted.fragment.is_some_and(|(_, at)| at != 0) {
            return None;
        }
        let ports = match quoted.protocol {
            PROTOCOL_TCP
            | PROTOCOL_UDP
            | acl::text::PROTOCOL_UDPLITE
            | acl::text::PROTOCOL_SCTP
            | acl::text::PROTOCOL_DCCP => {
                let [a, b, c, d] = *quoted.payload.first_chunk()?;
                [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]
            }
            // No error is about another (RFC 1122 3.2.2, RFC 4443 2.4).
            PROTOCOL_ICMP | PROTOCOL_ICMPV6 => {
                let identity =
                    quoted.of_icmp(vrf).filter(|identity| identity.part != Part::Error)?;
                return Some(Identity { part: Part::Error, ..identity });
            }
            _ => [0, 0],
        };
        let key = quoted.key(ports, quoted.protocol, vrf);
        Some(Identity { key, mark: Mark::Plain, part: Part::Error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FrameBuilder;

    fn identity<A: Tracked>(frame: &[u8]) -> Option<Identity<A>> {
        Identity::of_packet(&frame[ETHERNET..], 7)
    }

    const TCP: [u8; 20] = [0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x12, 0, 0, 0, 0, 0, 0];

    fn ip4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        FrameBuilder::ip4().protocol(protocol).payload(payload).build()
    }

    /// The same packet in the reverse direction: addresses exchanged.
    fn back(mut frame: Vec<u8>) -> Vec<u8> {
        let (from, to) = if frame[ETHERNET] >> 4 == 4 { (26, 30) } else { (22, 38) };
        let length = to - from;
        let (source, destination) = frame[from..to + length].split_at_mut(length);
        source.swap_with_slice(destination);
        frame
    }

    #[test]
    fn both_directions_are_one_flow() {
        let there = FrameBuilder::ip4().udp(1000, 53, b"x").build();
        let answer = back(FrameBuilder::ip4().udp(53, 1000, b"x").build());
        let one = identity::<Ipv4Addr>(&there).unwrap().key;
        let other = identity::<Ipv4Addr>(&answer).unwrap().key;
        assert_eq!((one.words, one.direction ^ other.direction), (other.words, 1));
        assert_ne!(one, identity(&FrameBuilder::ip4().udp(1001, 53, b"x").build()).unwrap().key);
        let there = FrameBuilder::ip6().udp(1000, 53, b"x").build();
        let answer = back(FrameBuilder::ip6().udp(53, 1000, b"x").build());
        let one = identity::<Ipv6Addr>(&there).unwrap().key;
        let other = identity::<Ipv6Addr>(&answer).unwrap().key;
        assert_eq!((one.words, one.direction ^ other.direction), (other.words, 1));
        assert_eq!(unpack(one.words[1]).1, 17);
        assert_eq!(unpack(one.words[1]).2, 7);
    }

    #[test]
    fn fields_and_frames_say_the_same() {
        let frames = [
            ip4(6, &TCP),
            FrameBuilder::ip4().udp(3, 4, b"x").build(),
            ip4(47, &[0; 20]),
            ip4(1, &[8, 0, 0, 0, 0, 9, 0, 1]),
        ];
        let mut fields = Fields::<Ipv4Addr>::default();
        for (place, frame) in frames.iter().enumerate() {
            fields.push_frame(frame, frame.len(), 0);
            let of_fields = Identity::of_plain(&fields, place, 7);
            assert_eq!(of_fields, identity(frame).filter(|_| place < 2), "{place}");
            let of_frame = Identity::<Ipv4Addr>::of_frame(frame, 7);
            assert_eq!(Some(of_frame), identity(frame), "{place}");
        }
    }

    #[test]
    fn only_an_answer_is_the_other_direction_of_a_question() {
        let message = |kind| ip4(1, &[kind, 0, 0, 0, 0x12, 0x34, 0, 1]);
        let question = identity::<Ipv4Addr>(&message(8)).unwrap().key;
        let answer = identity::<Ipv4Addr>(&back(message(0))).unwrap().key;
        assert_eq!((question.words, question.direction), (answer.words, 1 - answer.direction));
        assert_ne!(question.words, identity::<Ipv4Addr>(&back(message(8))).unwrap().key.words);
        assert_eq!(identity::<Ipv4Addr>(&message(5)), None, "a redirect");
    }

    #[test]
    fn an_error_is_about_the_flow_that_it_quotes() {
        let sent = FrameBuilder::ip4().udp(1000, 53, b"payload").build();
        let error = |quoted: &[u8]| {
            let payload = [&[3, 4, 0, 0, 0, 0, 5, 0][..], quoted].concat();
            // From any node on the path, to the sender of the packet.
            back(
                FrameBuilder::ip4()
                    .protocol(1)
                    .destination4("192.0.2.99")
                    .payload(&payload)
                    .build(),
            )
        };
        let mut about = error(&sent[ETHERNET..ETHERNET + 28]);
        about[30..34].copy_from_slice(&sent[26..30]);
        let found = identity::<Ipv4Addr>(&about).unwrap();
        let flow = identity::<Ipv4Addr>(&sent).unwrap();
        assert_eq!((found.part, flow.part), (Part::Error, Part::Packet));
        assert_eq!(found.key, flow.key);
        // For a host that did not send it, or about another error, or too short.
        let mut other = about.clone();
        other[33] ^= 1;
        assert_eq!(identity::<Ipv4Addr>(&other), None);
        assert_eq!(identity::<Ipv4Addr>(&about[..about.len() - 5]), None);
        let mut of_error = error(&about[ETHERNET..ETHERNET + 56]);
        of_error[30..34].copy_from_slice(&about[26..30]);
        assert_eq!(identity::<Ipv4Addr>(&of_error), None);
    }

    #[test]
    fn later_fragments_are_of_their_first() {
        let mut first = FrameBuilder::ip4().udp(1000, 53, b"payload").build();
        (first[18], first[19], first[20]) = (0x12, 0x34, 0x20);
        let mut later = first.clone();
        (later[20], later[21]) = (0, 9);
        let rest = Identity::<Ipv4Addr>::of_rest(&first[ETHERNET..], 7);
        assert_eq!(rest, identity(&later));
        assert_ne!(rest, identity(&first));
        later[19] ^= 1;
        assert_ne!(rest, identity(&later), "of another packet");
        let whole = FrameBuilder::ip4().udp(1000, 53, b"payload").build();
        assert_eq!(Identity::<Ipv4Addr>::of_rest(&whole[ETHERNET..], 7), None);
    }

    #[test]
    fn any_bytes_are_read() {
        let frames = [
            ip4(6, &TCP),
            ip4(1, &[3, 0, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 40, 1, 1, 0, 0, 9, 6, 0, 0]),
            FrameBuilder::ip6()
                .protocol(0)
                .payload(&[44, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 1, 0])
                .build(),
            FrameBuilder::ip6().protocol(58).payload(&[1, 0, 0, 0, 0, 0, 0, 0, 0x60]).build(),
        ];
        for frame in frames {
            for length in ETHERNET..frame.len() {
                for at in ETHERNET..length {
                    let mut frame = frame[..length].to_vec();
                    for value in [0, 1, 0x45, 0x4f, 255] {
                        frame[at] = value;
                        let _ = (identity::<Ipv4Addr>(&frame), identity::<Ipv6Addr>(&frame));
                        let _ = Identity::<Ipv6Addr>::of_rest(&frame[ETHERNET..], 0);
                    }
                }
            }
        }
    }
}
