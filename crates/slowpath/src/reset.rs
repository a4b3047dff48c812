//! UDP and TCP to the router, on interfaces without a kernel: nothing listens, and senders get an error or a reset.
//!
//! | packet | answer |
//! |---|---|
//! | UDP whose length or checksum is wrong, or over IPv6 without checksum (RFC 1122, 4.1.3.4; RFC 8200, 8.1) | none |
//! | other UDP | ICMP "port unreachable", by [`crate::icmp`] |
//! | TCP whose lengths or checksum are wrong (RFC 9293, 3.1) | none |
//! | TCP with RST | none (RFC 9293, 3.10.7.1) |
//! | TCP to a group, a broadcast or an anycast address, or from a source that is not one host (RFC 9293, 3.9.2.3) | none |
//! | other TCP | a reset (RFC 9293, 3.10.7.1) |
//!
//! A reset is no longer than the segment it answers, and there is one per segment, so like echo replies resets are
//! bounded by the rate of their class alone.
//!
//! A packet that a filter of the configuration refuses by the step `reset` is answered by a reset from its
//! destination, on the conditions above except that the destination is the router. Since anyone who spoofs sources
//! can provoke these resets, they are subject to the rates of ICMP errors. A fragment of a segment is not answered:
//! its checksum cannot be verified.
//!
//! Drops (by [`crate::local`]): `udp-malformed`, `tcp-malformed`, `no-listener`; here `prohibited`.

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::build::{self, Ipv4Fields, Ipv6Fields};
use wire::checksum::{Checksum, pseudo_header_v4, pseudo_header_v6};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use wire::ip::{IPV4_MIN_LEN, PROTOCOL_TCP, PROTOCOL_UDP};
use wire::l4::{TCP_MIN_LEN, TcpHeader, UDP_LEN, UdpHeader};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::context::Context;
use crate::frame::IpPacket;
use crate::icmp::{self, Error};
use crate::originate::{self, NO_LINK};
use crate::{Output, Packet};

/// Control bits (RFC 9293, 3.1).
const FIN: u16 = 0x01;
const SYN: u16 = 0x02;
const RST: u16 = 0x04;
const ACK: u16 = 0x10;

/// Returns true if the UDP packet that begins at `offset` of an IP packet has a correct length and checksum.
pub(crate) fn is_valid_udp(ip: &IpPacket<'_>, offset: usize) -> bool {
    let rest = ip.bytes().get(offset..).unwrap_or_default();
    let Ok((header, _)) = UdpHeader::ref_from_prefix(rest) else { return false };
    let length = usize::from(header.length.get());
    let Some(datagram) = rest.get(..length).filter(|_| length >= UDP_LEN) else { return false };
    let unchecked = header.checksum.get() == 0;
    let may_be_unchecked = matches!(ip, IpPacket::V4 { .. });
    if unchecked { may_be_unchecked } else { is_sum_right(ip, PROTOCOL_UDP, datagram) }
}

fn is_sum_right(ip: &IpPacket<'_>, protocol: u8, upper: &[u8]) -> bool {
    let mut sum = pseudo_header(ip, protocol, upper.len());
    sum.add(upper);
    sum.finish() == 0
}

/// Starts the checksum with the pseudo-header. `length` fits: an IP packet's payload length has 16 bits.
fn pseudo_header(ip: &IpPacket<'_>, protocol: u8, length: usize) -> Checksum {
    match ip {
        IpPacket::V4 { header, .. } => {
            pseudo_header_v4(header.source(), header.destination(), protocol, length as u16)
        }
        IpPacket::V6 { header, .. } => {
            pseudo_header_v6(header.source(), header.destination(), protocol, length as u32)
        }
    }
}

/// A TCP segment with correct lengths and checksum.
#[derive(Debug)]
pub(crate) struct Segment {
    source_port: U16,
    destination_port: U16,
    sequence: u32,
    acknowledgment: u32,
    flags: u16,
    /// Sequence space that it occupies: its data, SYN and FIN.
    length: u32,
}

impl Segment {
    /// Reads the segment that begins at `offset` of an IP packet.
    pub(crate) fn parse(ip: &IpPacket<'_>, offset: usize) -> Option<Self> {
        let bytes = ip.bytes().get(offset..)?;
        let (header, _) = TcpHeader::ref_from_prefix(bytes).ok()?;
        let header_len = header.header_len();
        let data = bytes.len().checked_sub(header_len)?;
        if header_len < TCP_MIN_LEN || !is_sum_right(ip, PROTOCOL_TCP, bytes) {
            return None;
        }
        let flags = header.offset_flags.get();
        let controls = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        Some(Self {
            source_port: header.source_port,
            destination_port: header.destination_port,
            sequence: header.sequence.get(),
            acknowledgment: header.acknowledgment.get(),
            flags,
            length: data as u32 + controls,
        })
    }

    /// Builds the header that answers a segment without a connection (RFC 9293, 3.10.7.1), without checksum.
    fn reset(&self) -> TcpHeader {
        let (sequence, acknowledgment, flags) = if self.flags & ACK != 0 {
            (self.acknowledgment, 0, RST)
        } else {
            (0, self.sequence.wrapping_add(self.length), RST | ACK)
        };
        TcpHeader {
            source_port: self.destination_port,
            destination_port: self.source_port,
            sequence: U32::new(sequence),
            acknowledgment: U32::new(acknowledgment),
            offset_flags: U16::new((TCP_MIN_LEN as u16 / 4) << 12 | flags),
            window: U16::new(0),
            checksum: U16::new(0),
            urgent: U16::new(0),
        }
    }
}

/// Answers a segment to the router with a reset, if that is allowed.
pub(crate) fn answer<P: Packet>(
    ip: &IpPacket<'_>,
    segment: &Segment,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    if segment.flags & RST == 0 && context.interfaces.is_own(ip.destination(), from) {
        send(ip, segment, from, context);
    }
}

/// Drops a packet that a filter refuses: a TCP segment is answered by a reset, anything else by an ICMP
/// error.
pub(crate) fn refuse<P: Packet>(
    packet: P,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let reason = DropReason::Prohibited;
    if answer_in_transit(packet.bytes(), from, context) {
        context.out.drop(packet, reason);
    } else {
        icmp::refuse(packet, from, Error::Prohibited, reason, context);
    }
}

/// Answers a segment in transit, if that is allowed; returns false if the packet is not a segment.
fn answer_in_transit<P: Packet>(
    frame: &[u8],
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) -> bool {
    let Ok(ip) = IpPacket::parse(frame) else { return true };
    let Some(upper) = ip.upper().filter(|upper| upper.protocol == PROTOCOL_TCP) else {
        return false;
    };
    let whole = upper.fragment.is_none().then(|| Segment::parse(&ip, upper.offset)).flatten();
    if let Some(segment) = whole
        && segment.flags & RST == 0
        && context.rates.error(ip.source(), false, context.now)
    {
        send(&ip, &segment, from, context);
    }
    true
}

/// Sends a reset from the packet's destination to its source, unless one of them is not a host.
fn send<P: Packet>(
    ip: &IpPacket<'_>,
    segment: &Segment,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    // From the packet's destination to its source: the pseudo-header has the same sum.
    let mut header = segment.reset();
    let mut sum = pseudo_header(ip, PROTOCOL_TCP, TCP_MIN_LEN);
    sum.add(header.as_bytes());
    header.checksum = U16::new(sum.finish());
    let packet = match ip {
        IpPacket::V4 { header: to, bytes } if icmp::may_report_v4(ip, to, bytes, from, context) => {
            let Some(identification) = context.identify(IPV4_MIN_LEN + TCP_MIN_LEN, true) else {
                return;
            };
            let fields = Ipv4Fields {
                // The same service, and no ECN (RFC 3168, 6.1.1).
                tos: to.tos & 0xfc,
                identification: identification.unwrap_or(0),
                dont_fragment: identification.is_none(),
                ttl: context.icmp.ttl,
                protocol: PROTOCOL_TCP,
                source: to.destination(),
                destination: to.source(),
            };
            let to_source = build::ipv4_header(fields, TCP_MIN_LEN);
            (ETHERTYPE_IPV4, [to_source.as_bytes(), header.as_bytes()].concat())
        }
        IpPacket::V6 { header: to, bytes }
            if icmp::may_report_v6(ip, to, bytes, from, context.interfaces) =>
        {
            let fields = Ipv6Fields {
                class: (to.version_class_flow.get() >> 20) as u8 & 0xfc,
                hop_limit: context.icmp.ttl,
                next_header: PROTOCOL_TCP,
                source: to.destination(),
                destination: to.source(),
            };
            let to_source = build::ipv6_header(fields, TCP_MIN_LEN);
            (ETHERTYPE_IPV6, [to_source.as_bytes(), header.as_bytes()].concat())
        }
        _ => return,
    };
    let frame = build::ethernet(NO_LINK, packet.0, &packet.1);
    originate::send(frame, ip.source(), from, context);
}

#[cfg(test)]
mod tests {
    use crate::testing::{
        Bench, LEFT, Out, config, drops, fix_v4_checksum, icmp_type, originated, udp, v4, v6,
        with_l4_checksum,
    };
    use dataplane::next_hop::NO_ROUTE;
    use dataplane::reason::{DropReason, PuntReason};

    fn bench() -> Bench {
        Bench::with_hosts(config())
    }

    /// A segment from port 50000 to port 179.
    fn tcp(sequence: u32, acknowledgment: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xc3, 0x50, 0, 179];
        bytes.extend(sequence.to_be_bytes());
        bytes.extend(acknowledgment.to_be_bytes());
        bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(data);
        bytes
    }

    fn to_router(protocol: u8, upper: &[u8]) -> [Vec<u8>; 2] {
        [
            with_l4_checksum(v4("10.0.1.2", "10.0.1.1", protocol, upper)),
            with_l4_checksum(v6("fd00:1::2", "fd00:1::1", protocol, upper)),
        ]
    }

    #[test]
    fn a_segment_of_no_connection_is_reset() {
        const SYN: u8 = 2;
        let cases = [
            (tcp(1000, 0, SYN, &[]), (0, 1001, 0x14)),
            (tcp(u32::MAX, 0, SYN | 1, b"data"), (0, 5, 0x14)),
            (tcp(1000, 77, 0x10, b"data"), (77, 0, 0x04)),
            (tcp(1000, 77, SYN | 0x10, &[]), (77, 0, 0x04)),
            (tcp(1000, 77, 0, b"data"), (0, 1004, 0x14)),
        ];
        for (segment, (sequence, acknowledgment, flags)) in cases {
            for frame in to_router(6, &segment) {
                let outs = bench().local(frame.clone());
                assert_eq!(drops(&outs), [DropReason::NoListener]);
                let [answer] = originated(&outs)[..] else { panic!("{outs:?}") };
                let at = if frame[12] == 8 { 34 } else { 54 };
                let (mine, theirs) = (&answer[at..], &frame[at..]);
                assert_eq!((&mine[..2], &mine[2..4]), (&theirs[2..4], &theirs[..2]), "interfaces");
                assert_eq!(mine[4..8], u32::to_be_bytes(sequence));
                assert_eq!(mine[8..12], u32::to_be_bytes(acknowledgment));
                assert_eq!((mine[12], mine[13], mine.len()), (0x50, flags, 20));
                assert_eq!(with_l4_checksum(answer.to_vec()), answer, "checksum");
            }
        }
    }

    /// The same upper layer between two hosts, over IPv4 and IPv6.
    fn on_the_way(protocol: u8, upper: &[u8]) -> [Vec<u8>; 2] {
        [
            with_l4_checksum(v4("10.0.1.2", "10.0.2.2", protocol, upper)),
            with_l4_checksum(v6("fd00:1::2", "fd00:2::2", protocol, upper)),
        ]
    }

    fn refused(frame: Vec<u8>) -> Vec<Out> {
        bench().punt(PuntReason::Reset, LEFT, NO_ROUTE, frame)
    }

    #[test]
    fn what_a_filter_refuses_is_reset_in_the_name_of_its_destination() {
        for frame in on_the_way(6, &tcp(1000, 0, 2, &[])) {
            let outs = refused(frame.clone());
            assert_eq!(drops(&outs), [DropReason::Prohibited]);
            let [answer] = originated(&outs)[..] else { panic!("{outs:?}") };
            let at = if frame[12] == 8 { 34 } else { 54 };
            let size = if frame[12] == 8 { 4 } else { 16 };
            assert_eq!(answer[at - 2 * size..at - size], frame[at - size..at], "from");
            assert_eq!(answer[at - size..at], frame[at - 2 * size..at - size], "to");
            assert_eq!(
                (&answer[at..at + 2], &answer[at + 2..at + 4]),
                (&[0, 179][..], &[0xc3, 0x50][..])
            );
            assert_eq!(answer[at + 8..at + 12], u32::to_be_bytes(1001));
            assert_eq!(answer[at + 13], 0x14);
            assert_eq!(with_l4_checksum(answer.to_vec()), answer, "checksum");
        }
        // The router's own addresses are refused like all others.
        for frame in to_router(6, &tcp(1000, 0, 2, &[])) {
            let outs = refused(frame);
            assert_eq!(drops(&outs), [DropReason::Prohibited]);
            assert_eq!(originated(&outs).len(), 1);
        }
    }

    #[test]
    fn what_is_no_whole_segment_is_not_reset() {
        let silent = [Out::Drop(DropReason::Prohibited)];
        for frame in on_the_way(6, &tcp(1, 2, 0x14, &[])) {
            assert_eq!(refused(frame), silent, "a reset");
        }
        let mut wrong = on_the_way(6, &tcp(1, 0, 2, &[]));
        wrong.iter_mut().for_each(|frame| *frame.last_mut().unwrap() ^= 1);
        for frame in wrong {
            assert_eq!(refused(frame), silent, "a wrong checksum");
        }
        for bits in [0x20, 0x01] {
            let [mut part, _] = on_the_way(6, &tcp(1, 0, 2, b"12345678"));
            part[if bits == 1 { 21 } else { 20 }] = bits;
            fix_v4_checksum(&mut part);
            assert_eq!(refused(part), silent, "a fragment");
        }
        for (frame, code) in on_the_way(17, &udp(20)).into_iter().zip([(3, 13), (1, 1)]) {
            let outs = refused(frame);
            assert_eq!(drops(&outs), [DropReason::Prohibited]);
            assert_eq!(icmp_type(originated(&outs)[0]), code);
        }
    }

    #[test]
    fn resets_of_a_filter_keep_to_the_rate_of_errors() {
        let mut bench = bench();
        let [syn, _] = on_the_way(6, &tcp(1000, 0, 2, &[]));
        let answers = (0..500)
            .map(|_| originated(&bench.punt(PuntReason::Reset, LEFT, NO_ROUTE, syn.clone())).len());
        let answers: usize = answers.sum();
        assert!((1..500).contains(&answers), "{answers}");
    }

    #[test]
    fn a_reset_is_from_the_address_that_was_asked() {
        let mut syn = v4("10.0.1.2", "10.0.2.1", 6, &tcp(1, 0, 2, &[]));
        syn[15] = 0xb9;
        fix_v4_checksum(&mut syn);
        let outs = bench().local(with_l4_checksum(syn));
        let answer = originated(&outs)[0];
        assert_eq!((&answer[26..34], answer[15]), (&[10, 0, 2, 1, 10, 0, 1, 2][..], 0xb8));
    }

    #[test]
    fn a_reset_and_what_is_no_segment_have_no_answer() {
        for frame in to_router(6, &tcp(1, 2, 0x14, &[])) {
            assert_eq!(bench().local(frame), [Out::Drop(DropReason::NoListener)]);
        }
        let mut wrong = to_router(6, &tcp(1, 0, 2, &[]));
        wrong.iter_mut().for_each(|frame| *frame.last_mut().unwrap() ^= 1);
        let mut long_header = tcp(1, 0, 2, &[]);
        long_header[12] = 0x60;
        let mut short_header = tcp(1, 0, 2, &[0; 20]);
        short_header[12] = 0x40;
        let cut = tcp(1, 0, 2, &[])[..19].to_vec();
        let malformed = [long_header, short_header, cut].map(|segment| to_router(6, &segment));
        for frame in malformed.into_iter().chain([wrong]).flatten() {
            assert_eq!(bench().local(frame), [Out::Drop(DropReason::TcpMalformed)]);
        }
    }

    #[test]
    fn only_one_host_is_sent_a_reset_and_only_from_an_address() {
        let syn = tcp(1, 0, 2, &[]);
        for frame in [
            v4("10.0.1.255", "10.0.1.1", 6, &syn),
            v4("10.0.2.1", "10.0.1.1", 6, &syn),
            v6("fd00:1::1", "fd00:2::1", 6, &syn),
            v6("fd00:1::2", "fd00:1::", 6, &syn),
            v6("fd00:1::2", "ff02::1", 6, &syn),
        ] {
            let outs = bench().local(with_l4_checksum(frame));
            assert_eq!(outs, [Out::Drop(DropReason::NoListener)]);
        }
    }

    #[test]
    fn udp_that_is_none_has_no_answer() {
        let good = udp(20);
        let told = |frame: Vec<u8>| {
            let outs = bench().local(frame);
            (drops(&outs)[0], originated(&outs).first().map(|frame| icmp_type(frame)))
        };
        let [four, six] = to_router(17, &good);
        assert_eq!(told(four), (DropReason::NoListener, Some((3, 3))));
        assert_eq!(told(six), (DropReason::NoListener, Some((1, 4))));
        // No checksum.
        let [four, six] =
            [v4("10.0.1.2", "10.0.1.1", 17, &good), v6("fd00:1::2", "fd00:1::1", 17, &good)];
        assert_eq!(told(four), (DropReason::NoListener, Some((3, 3))));
        assert_eq!(told(six), (DropReason::UdpMalformed, None));
        let mut wrong = to_router(17, &good);
        wrong.iter_mut().for_each(|frame| *frame.last_mut().unwrap() ^= 1);
        let with_length = |length: u16| {
            let mut datagram = good.clone();
            datagram[4..6].copy_from_slice(&length.to_be_bytes());
            to_router(17, &datagram)
        };
        let lengths = [0, 7, 29, 65_535].map(with_length);
        let cut = to_router(17, &good[..7]);
        for frame in lengths.into_iter().chain([wrong, cut]).flatten() {
            assert_eq!(told(frame), (DropReason::UdpMalformed, None));
        }
        // Bytes behind the datagram are not part of it.
        let mut frame = v4("10.0.1.2", "10.0.1.1", 17, &[&udp(4)[..], &[0xee; 3]].concat());
        let length = frame.len();
        frame.truncate(length - 3);
        let mut frame = with_l4_checksum(frame);
        frame.extend([0xee; 3]);
        assert_eq!(told(frame), (DropReason::NoListener, Some((3, 3))));
    }
}
