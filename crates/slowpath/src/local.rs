//! Packets for the router itself: RFC 1122, 3.2 and 3.3.4 (hosts), RFC 1812, 5.3.4 and 5.3.5
//! (broadcasts), RFC 4291, 2.8 (addresses of a router).
//!
//! A packet to any address of the router is local, regardless of the interface that received it
//! (weak host model); link-local addresses only on their interface. ICMP, neighbour discovery and
//! multicast listener queries are processed; everything else is refused, since nothing listens
//! here but the DHCP relay agent (`relay.rs`): UDP and TCP in `reset.rs`, other protocols by an ICMP error. Fragments are reassembled;
//! the packet is processed as if it had been received whole, except for neighbour discovery, which
//! is never accepted in fragments (RFC 6980, 5).
//!
//! Limited broadcasts, broadcasts directed to the network that they came from, and 224.0.0.1, which every
//! host has joined and no report names (RFC 1812, 4.2.2.11, RFC 2236, 6), are received like others, but no
//! errors are sent about them, and pings are not answered: they are a means of amplification.
//!
//! Drops: `not-local`, `multicast-not-routed`, `directed-broadcast`, `l2-broadcast`,
//! `local-fragment`, `reassembly-timeout`, `ip6-extension`, `icmp-malformed`, `nd-malformed`,
//! `udp-malformed`, `tcp-malformed`, `no-listener`.

use std::net::Ipv4Addr;

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::checksum::{checksum, pseudo_header_v6};
use wire::icmp::{ICMP_LEN, v4, v6};
use wire::ip::{
    Ipv4Header, Ipv6Header, PROTOCOL_FRAGMENT, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_NONE,
    PROTOCOL_TCP, PROTOCOL_UDP,
};

use crate::context::Context;
use crate::extension::{self, has_router_alert};
use crate::frame::{self, IpPacket};
use crate::icmp::{self, Error};
use crate::interfaces::Interfaces;
use crate::links::Links;
use crate::nd::Message;
use crate::reassembly::{Outcome, Piece, Reassembly};
use crate::{Output, Packet, discovery, echo, host, relay, reset};

/// The group of all systems of a link.
const ALL_SYSTEMS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// Outcome of a packet for the router.
enum Verdict {
    /// Processed.
    Taken,
    /// Dropped silently.
    Drop(DropReason),
    /// Dropped, and its sender gets an error.
    Refuse(Error, DropReason),
    /// A fragment.
    Part(Piece),
}

impl Verdict {
    fn refuse(error: Option<Error>, reason: DropReason) -> Self {
        error.map_or(Self::Drop(reason), |error| Self::Refuse(error, reason))
    }
}

/// Origin of a packet.
#[derive(Clone, Copy)]
struct Arrival {
    from: InterfaceId,
    /// The frame's source.
    mac: MacAddr,
    /// True if it was received in more than one fragment.
    reassembled: bool,
}

/// Processes a packet whose route leads to the router.
pub(crate) fn process<P: Packet>(
    packet: P,
    from: InterfaceId,
    links: &mut Links,
    reassembly: &mut Reassembly<P>,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let interfaces = context.interfaces;
    if interfaces.is_host(from)
        && !IpPacket::parse(packet.bytes())
            .is_ok_and(|ip| relay::is_for_agent(&ip, from, interfaces))
    {
        return host::for_kernel(packet, from, interfaces, context.out);
    }
    let arrival = Arrival { from, mac: source_mac(packet.bytes()), reassembled: false };
    match receive(packet.bytes(), arrival, links, context) {
        Verdict::Taken => context.out.to_host(packet),
        Verdict::Drop(reason) => context.out.drop(packet, reason),
        Verdict::Refuse(error, reason) => icmp::refuse(packet, from, error, reason, context),
        Verdict::Part(piece) => collect(piece, packet, from, (links, reassembly), context),
    }
}

/// Takes a fragment; when it completes a packet, processes that packet.
fn collect<P: Packet>(
    piece: Piece,
    packet: P,
    from: InterfaceId,
    (links, reassembly): (&mut Links, &mut Reassembly<P>),
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let mut displaced = Vec::new();
    let outcome = reassembly.add(piece, packet, from, context.now, &mut displaced);
    drop_all(displaced, DropReason::LocalFragment, context.out);
    match outcome {
        Outcome::Waits => {}
        Outcome::Refused(packets) => drop_all(packets, DropReason::LocalFragment, context.out),
        Outcome::Whole(frame, packets) => {
            let arrival = Arrival { from, mac: source_mac(&frame), reassembled: true };
            match receive(&frame, arrival, links, context) {
                Verdict::Taken => {
                    packets.into_iter().for_each(|packet| context.out.to_host(packet));
                }
                Verdict::Drop(reason) => drop_all(packets, reason, context.out),
                Verdict::Refuse(error, reason) => {
                    icmp::report(&frame, from, error, context);
                    drop_all(packets, reason, context.out);
                }
                // A reassembled packet that is a fragment itself.
                Verdict::Part(_) => drop_all(packets, DropReason::LocalFragment, context.out),
            }
        }
    }
}

fn receive<P: Packet>(
    frame: &[u8],
    arrival: Arrival,
    links: &mut Links,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    let ip = match IpPacket::parse(frame) {
        Ok(ip) => ip,
        Err(reason) => return Verdict::Drop(reason),
    };
    if let IpPacket::V4 { header, bytes } = ip
        && discovery::is_for_routers(header, arrival.from, context.interfaces)
        && links.router_solicited(header, bytes, arrival.from, context)
    {
        return Verdict::Taken;
    }
    if let Some(reason) = not_for_us(&ip, frame, arrival.from, context.interfaces) {
        return Verdict::Drop(reason);
    }
    match ip {
        IpPacket::V4 { header, bytes } => receive_v4(header, bytes, arrival, links, context),
        IpPacket::V6 { header, bytes } => receive_v6(header, bytes, arrival, links, context),
    }
}

fn receive_v4<P: Packet>(
    header: &Ipv4Header,
    bytes: &[u8],
    arrival: Arrival,
    links: &mut Links,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    if header.is_fragment() {
        let piece = Piece::v4(header, bytes.len());
        let piece = piece.map(|piece| piece.in_vrf(context.interfaces.vrf_of(arrival.from)));
        return piece.map_or(Verdict::Drop(DropReason::LocalFragment), Verdict::Part);
    }
    match header.protocol {
        PROTOCOL_ICMP => icmp_v4(header, bytes, arrival.from, links, context),
        PROTOCOL_UDP => {
            let ip = IpPacket::V4 { header, bytes };
            udp(&ip, header.header_len(), arrival.from, context)
        }
        PROTOCOL_TCP => {
            let ip = IpPacket::V4 { header, bytes };
            no_tcp_listener(&ip, header.header_len(), arrival.from, context)
        }
        _ => Verdict::Refuse(UNKNOWN_PROTOCOL, DropReason::NoListener),
    }
}

fn receive_v6<P: Packet>(
    header: &Ipv6Header,
    bytes: &[u8],
    arrival: Arrival,
    links: &mut Links,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    let end = match extension::take(header.next_header, bytes) {
        Ok(end) => end,
        Err(refusal) => return Verdict::refuse(refusal.error, refusal.reason),
    };
    match end.protocol {
        PROTOCOL_FRAGMENT => match Piece::v6(header, bytes, end) {
            Ok(piece) => Verdict::Part(piece.in_vrf(context.interfaces.vrf_of(arrival.from))),
            Err(error) => Verdict::refuse(error, DropReason::LocalFragment),
        },
        PROTOCOL_ICMPV6 => {
            let reassembled = end.fragmented || arrival.reassembled;
            let arrival = Arrival { reassembled, ..arrival };
            icmp_v6(header, (bytes, end.offset), arrival, links, context)
        }
        PROTOCOL_UDP => udp(&IpPacket::V6 { header, bytes }, end.offset, arrival.from, context),
        PROTOCOL_TCP => {
            let ip = IpPacket::V6 { header, bytes };
            no_tcp_listener(&ip, end.offset, arrival.from, context)
        }
        // There is no upper layer to listen to (RFC 8200, 4.7).
        PROTOCOL_NONE => Verdict::Drop(DropReason::NoListener),
        _ => {
            let error = Error::ProtocolUnreachable { pointer: end.named_at as u32 };
            Verdict::Refuse(error, DropReason::NoListener)
        }
    }
}

/// Returns the drop reason of a packet that is not for this router.
fn not_for_us(
    ip: &IpPacket<'_>,
    frame: &[u8],
    from: InterfaceId,
    interfaces: &Interfaces,
) -> Option<DropReason> {
    let group_frame = frame::ethernet(frame).is_some_and(|(e, _)| e.destination.is_multicast());
    match ip {
        IpPacket::V4 { header, .. } => {
            let destination = header.destination();
            let interface = interfaces.get(from);
            if destination.is_multicast() {
                (destination != ALL_SYSTEMS).then_some(DropReason::MulticastNotRouted)
            } else if destination.is_broadcast()
                || interface.is_some_and(|interface| interface.is_broadcast(destination))
            {
                None
            } else if interfaces.is_own(destination.into(), from) {
                // RFC 1122, 3.3.6: a unicast address in a broadcast frame.
                group_frame.then_some(DropReason::L2Broadcast)
            } else if interfaces.is_directed_broadcast(destination, from) {
                Some(DropReason::DirectedBroadcast)
            } else {
                Some(DropReason::NotLocal)
            }
        }
        IpPacket::V6 { header, .. } => {
            let destination = header.destination();
            if destination.is_multicast() {
                let interface = interfaces.get(from);
                let joined = interface.is_some_and(|interface| interface.has_joined(destination));
                (!joined).then_some(DropReason::MulticastNotRouted)
            } else {
                let own = interfaces.is_own(destination.into(), from)
                    || interfaces.is_anycast(destination.into(), from);
                (!own).then_some(DropReason::NotLocal)
            }
        }
    }
}

/// Answers a valid TCP segment with a reset, since nothing listens to TCP here.
fn no_tcp_listener<P: Packet>(
    ip: &IpPacket<'_>,
    offset: usize,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    let Some(segment) = reset::Segment::parse(ip, offset) else {
        return Verdict::Drop(DropReason::TcpMalformed);
    };
    reset::answer(ip, &segment, from, context);
    Verdict::Drop(DropReason::NoListener)
}

fn icmp_v4<P: Packet>(
    header: &Ipv4Header,
    bytes: &[u8],
    from: InterfaceId,
    links: &mut Links,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    let message = &bytes[header.header_len()..];
    if message.len() < ICMP_LEN || checksum(message) != 0 {
        return Verdict::Drop(DropReason::IcmpMalformed);
    }
    let asked = context.interfaces.is_own(header.destination().into(), from);
    if message[0] == v4::ECHO_REQUEST && message[1] == 0 && context.icmp.echo && asked {
        echo::answer_v4(header, bytes, from, context);
    }
    links.router_solicited(header, bytes, from, context);
    // Other types have no use here; RFC 1122, 3.2.2: unknown types are discarded silently.
    Verdict::Taken
}

fn icmp_v6<P: Packet>(
    header: &Ipv6Header,
    (bytes, offset): (&[u8], usize),
    arrival: Arrival,
    links: &mut Links,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    let (message, from) = (&bytes[offset..], arrival.from);
    let (source, destination) = (header.source(), header.destination());
    // Fits: the payload length has 16 bits.
    let length = message.len() as u32;
    let mut sum = pseudo_header_v6(source, destination, PROTOCOL_ICMPV6, length);
    sum.add(message);
    let malformed = message.len() < ICMP_LEN || sum.finish() != 0;
    match message.first() {
        Some(v6::ROUTER_SOLICITATION..=v6::REDIRECT) => {
            if malformed || arrival.reassembled {
                return Verdict::Drop(DropReason::NdMalformed);
            }
            let hop_limit = header.hop_limit;
            let mac = arrival.mac;
            let nd = Message { source, destination, hop_limit, mac, bytes: message };
            let refused = links.neighbour_discovery(&nd, from, context);
            return refused.map_or(Verdict::Taken, Verdict::Drop);
        }
        _ if malformed => return Verdict::Drop(DropReason::IcmpMalformed),
        Some(&v6::LISTENER_QUERY) => {
            let valid = header.hop_limit == 1
                && source.is_unicast_link_local()
                && has_router_alert(header.next_header, bytes);
            if !links.listener_query(message, valid, from, context) {
                return Verdict::Drop(DropReason::NdMalformed);
            }
        }
        Some(&v6::ECHO_REQUEST) if message[1] == 0 && context.icmp.echo => {
            echo::answer_v6(header, message, from, context);
        }
        _ => {}
    }
    Verdict::Taken
}

/// The router does not implement the protocol of an IPv4 packet; the header's tenth byte names it.
const UNKNOWN_PROTOCOL: Error = Error::ProtocolUnreachable { pointer: 9 };

/// Gives a UDP packet to the DHCP relay agent, or refuses it.
fn udp<P: Packet>(
    ip: &IpPacket<'_>,
    offset: usize,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Verdict {
    match relay::take(ip, offset, from, context) {
        Some(Ok(())) => Verdict::Taken,
        Some(Err(reason)) => Verdict::Drop(reason),
        None => no_udp_listener(ip, offset),
    }
}

/// Refuses a UDP packet, since nothing listens to UDP here. Only a valid one is answered by an error.
fn no_udp_listener(ip: &IpPacket<'_>, offset: usize) -> Verdict {
    if reset::is_valid_udp(ip, offset) {
        Verdict::Refuse(Error::PortUnreachable, DropReason::NoListener)
    } else {
        Verdict::Drop(DropReason::UdpMalformed)
    }
}

/// Returns the source MAC of a frame.
fn source_mac(frame: &[u8]) -> MacAddr {
    frame::ethernet(frame).map_or(MacAddr::default(), |(ethernet, _)| ethernet.source)
}

fn drop_all<P>(packets: Vec<P>, reason: DropReason, out: &mut impl Output<P>) {
    for packet in packets {
        out.drop(packet, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Bench, Out, config, drops, fix_icmpv6_checksum, fix_v4_checksum, hex, icmp_type,
        originated, secs, udp, v4, v6, with_l4_checksum,
    };

    fn bench() -> Bench {
        Bench::with_hosts(config())
    }

    /// Drop reason and type and code of the error, if one was sent.
    fn result(outs: &[Out]) -> (DropReason, Option<(u8, u8)>) {
        (drops(outs)[0], originated(outs).first().map(|frame| icmp_type(frame)))
    }

    #[test]
    fn nothing_listens() {
        let mut bench = bench();
        for (protocol, error4, error6) in [(17, (3, 3), (1, 4)), (47, (3, 2), (4, 1))] {
            let outs = bench.local(v4("10.0.1.2", "10.0.1.1", protocol, &udp(20)));
            assert_eq!(result(&outs), (DropReason::NoListener, Some(error4)));
            let frame = v6("fd00:1::2", "fd00:1::1", protocol, &udp(20));
            let frame = if protocol == 17 { with_l4_checksum(frame) } else { frame };
            let outs = bench.local(frame);
            assert_eq!(result(&outs), (DropReason::NoListener, Some(error6)));
        }
        // 59 is "no next header" in IPv6 only.
        let outs = bench.local(v4("10.0.1.2", "10.0.1.1", 59, &[]));
        assert_eq!(result(&outs), (DropReason::NoListener, Some((3, 2))));
        let outs = bench.local(v6("fd00:1::2", "fd00:1::1", 59, &[]));
        assert_eq!(result(&outs), (DropReason::NoListener, None));
    }

    #[test]
    fn the_error_comes_from_the_address_that_was_asked() {
        let mut bench = bench();
        let outs = bench.local(v4("10.0.1.2", "10.0.2.1", 17, &udp(20)));
        assert_eq!(originated(&outs)[0][26..30], [10, 0, 2, 1]);
    }

    #[test]
    fn the_pointer_names_the_unknown_next_header() {
        let mut bench = bench();
        // Destination options, then protocol 200.
        let outs = bench.local(v6("fd00:1::2", "fd00:1::1", 60, &[200, 0, 1, 4, 0, 0, 0, 0, 9, 9]));
        assert_eq!(result(&outs), (DropReason::NoListener, Some((4, 1))));
        assert_eq!(originated(&outs)[0][58..62], 40u32.to_be_bytes());
    }

    #[test]
    fn addresses_that_are_not_ours() {
        let mut bench = bench();
        for (destination, reason) in [
            ("10.0.1.77", DropReason::NotLocal),
            // Received, but nothing listens, and no error about broadcasts and groups.
            ("10.0.1.255", DropReason::NoListener),
            ("224.0.0.1", DropReason::NoListener),
            ("10.0.2.255", DropReason::DirectedBroadcast),
            ("255.255.255.255", DropReason::NoListener),
            ("224.0.0.5", DropReason::MulticastNotRouted),
        ] {
            let outs = bench.local(v4("10.0.1.2", destination, 17, &udp(20)));
            assert_eq!(result(&outs), (reason, None), "{destination}");
        }
        for (destination, reason) in [
            ("fd00:1::77", DropReason::NotLocal),
            ("ff02::5", DropReason::MulticastNotRouted),
            // All nodes: joined, but nothing listens, and no error about multicast.
            ("ff02::1", DropReason::NoListener),
        ] {
            let frame = with_l4_checksum(v6("fd00:1::2", destination, 17, &udp(20)));
            assert_eq!(result(&bench.local(frame)), (reason, None), "{destination}");
        }
    }

    #[test]
    fn broadcasts_and_the_group_of_all_systems_are_received_and_not_answered() {
        let ping = hex("0800 f7fd 0001 0001");
        for destination in ["255.255.255.255", "10.0.1.255", "224.0.0.1"] {
            let outs = bench().local(v4("10.0.1.2", destination, 1, &ping));
            assert!(matches!(outs[..], [Out::ToHost(_)]), "{destination}: {outs:?}");
            let mut wrong = ping.clone();
            wrong[7] ^= 1;
            let outs = bench().local(v4("10.0.1.2", destination, 1, &wrong));
            assert_eq!(result(&outs), (DropReason::IcmpMalformed, None), "{destination}");
        }
        let outs = bench().local(v4("10.0.1.2", "10.0.1.1", 1, &ping));
        assert_eq!(originated(&outs).len(), 1);
    }

    #[test]
    fn a_unicast_packet_in_a_broadcast_frame_is_dropped() {
        let mut frame = v4("10.0.1.2", "10.0.1.1", 17, &udp(20));
        frame[..6].fill(0xff);
        assert_eq!(result(&bench().local(frame)), (DropReason::L2Broadcast, None));
    }

    /// Builds the first or the second half of a ping with 48 bytes of data.
    fn ping4_part(second: bool) -> Vec<u8> {
        let mut message = [&[8, 0, 0, 0, 0, 7, 0, 1][..], &[0xa5; 48]].concat();
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let (part, field) = if second { (&message[24..], 3u16) } else { (&message[..24], 0x2000) };
        let mut frame = v4("10.0.1.2", "10.0.1.1", 1, part);
        frame[20..22].copy_from_slice(&field.to_be_bytes());
        fix_v4_checksum(&mut frame);
        frame
    }

    /// The same over IPv6, for any ICMPv6 message.
    fn part6(message: &[u8], second: bool) -> Vec<u8> {
        let (part, field) = if second { (&message[24..], 24) } else { (&message[..24], 1) };
        v6("fd00:1::2", "fd00:1::1", 44, &[&[58, 0, 0, field, 0, 0, 0, 9][..], part].concat())
    }

    /// Returns a message with its checksum.
    fn message6(message: &[u8]) -> Vec<u8> {
        let mut whole = v6("fd00:1::2", "fd00:1::1", 58, message);
        fix_icmpv6_checksum(&mut whole, 54);
        whole.split_off(54)
    }

    #[test]
    fn a_fragmented_ping_is_answered_in_any_order() {
        for order in [[false, true], [true, false]] {
            let mut bench = bench();
            assert_eq!(bench.local(ping4_part(order[0])), []);
            assert_eq!(bench.router.held(), 1);
            let outs = bench.local(ping4_part(order[1]));
            let [reply] = originated(&outs)[..] else { panic!("{outs:?}") };
            assert_eq!((icmp_type(reply), reply.len()), ((0, 0), 34 + 56));
            assert_eq!(outs.iter().filter(|out| matches!(out, Out::ToHost(_))).count(), 2);
            let ping = message6(&[&[128, 0, 0, 0, 0, 7, 0, 1][..], &[0xa5; 48]].concat());
            assert_eq!(bench.local(part6(&ping, order[0])), []);
            let outs = bench.local(part6(&ping, order[1]));
            let [reply] = originated(&outs)[..] else { panic!("{outs:?}") };
            assert_eq!((icmp_type(reply), reply.len()), ((129, 0), 54 + 56));
            bench.assert_nothing_lost();
        }
    }

    #[test]
    fn an_error_about_a_reassembled_packet_quotes_it_whole() {
        let mut bench = bench();
        let datagram = udp(48);
        let part = |data: &[u8], field: u16| {
            let mut frame = v4("10.0.1.2", "10.0.1.1", 17, data);
            frame[20..22].copy_from_slice(&field.to_be_bytes());
            fix_v4_checksum(&mut frame);
            frame
        };
        assert_eq!(bench.local(part(&datagram[..24], 0x2000)), []);
        let outs = bench.local(part(&datagram[24..], 3));
        let [error] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!(icmp_type(error), (3, 3));
        assert_eq!(error[42..], v4("10.0.1.2", "10.0.1.1", 17, &datagram)[14..]);
        assert_eq!(drops(&outs), [DropReason::NoListener; 2]);
    }

    #[test]
    fn who_sent_no_second_fragment_is_told_after_a_minute() {
        let mut bench = bench();
        bench.local(ping4_part(false));
        bench.local(part6(&message6(&[&[128, 0, 0, 0][..], &[0; 40]].concat()), false));
        assert_eq!(bench.pass(secs(59)), []);
        let outs = bench.pass(secs(2));
        let told: Vec<_> = originated(&outs).iter().map(|frame| icmp_type(frame)).collect();
        assert_eq!(told, [(11, 1), (3, 1)]);
        assert_eq!(drops(&outs), [DropReason::ReassemblyTimeout; 2]);
        // No error about the second one alone.
        bench.local(ping4_part(true));
        assert_eq!(bench.pass(secs(61)), [Out::Drop(DropReason::ReassemblyTimeout)]);
        bench.assert_nothing_lost();
    }

    #[test]
    fn fragments_that_cannot_be_used_are_dropped_and_their_senders_told() {
        let mut bench = bench();
        let fragment = |field: u8, data: &[u8]| {
            let headers = [17, 0, 0, field, 0, 0, 0, 1];
            v6("fd00:1::2", "fd00:1::1", 44, &[&headers[..], data].concat())
        };
        for (frame, error, pointer) in
            [(fragment(1, &udp(5)), (4, 0), 4u32), (fragment(1, &[0; 0]), (4, 3), 0)]
        {
            let outs = bench.local(frame);
            assert_eq!(result(&outs), (DropReason::LocalFragment, Some(error)));
            assert_eq!(originated(&outs)[0][58..62], pointer.to_be_bytes());
        }
        let mut odd = v4("10.0.1.2", "10.0.1.1", 17, &udp(5));
        odd[20] = 0x20;
        assert_eq!(result(&bench.local(odd)), (DropReason::LocalFragment, None));
        // An overlap: both are dropped, without an error.
        assert_eq!(bench.local(fragment(1, &udp(16))), []);
        let outs = bench.local(fragment(16, &udp(16)));
        assert_eq!(
            outs,
            [Out::Drop(DropReason::LocalFragment), Out::Drop(DropReason::LocalFragment)]
        );
        bench.assert_nothing_lost();
    }

    #[test]
    fn neighbour_discovery_in_fragments_is_ignored() {
        let target: std::net::Ipv6Addr = "fd00:1::1".parse().unwrap();
        let question = message6(
            &[&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets(), &[1, 1, 2, 0, 0, 0, 0x0a, 1]]
                .concat(),
        );
        let with_limit = |mut frame: Vec<u8>| {
            frame[21] = 255;
            frame
        };
        let mut bench = bench();
        // Unfragmented: answered. In one fragment, and in two: not.
        let plain = with_limit(v6("fd00:1::2", "fd00:1::1", 58, &question));
        assert_eq!(originated(&bench.local(plain)).len(), 1);
        let atomic = [&[58, 0, 0, 0, 0, 0, 0, 1][..], &question].concat();
        let outs = bench.local(with_limit(v6("fd00:1::2", "fd00:1::1", 44, &atomic)));
        assert_eq!(outs, [Out::Drop(DropReason::NdMalformed)]);
        assert_eq!(bench.local(with_limit(part6(&question, false))), []);
        let outs = bench.local(with_limit(part6(&question, true)));
        assert_eq!(outs, [Out::Drop(DropReason::NdMalformed), Out::Drop(DropReason::NdMalformed)]);
    }

    #[test]
    fn destination_options_are_obeyed() {
        let mut bench = bench();
        for (option, error) in [(0x7e, None), (0xbe, Some((4, 2))), (0xfe, Some((4, 2)))] {
            let options = [17, 0, option, 4, 0, 0, 0, 0];
            let outs =
                bench.local(v6("fd00:1::2", "fd00:1::1", 60, &[&options[..], &udp(8)].concat()));
            assert_eq!(result(&outs), (DropReason::Ip6Extension, error), "{option:#x}");
        }
    }

    #[test]
    fn hop_by_hop_options_further_on_are_an_unknown_header() {
        let headers = [0, 0, 1, 4, 0, 0, 0, 0, 17, 0, 1, 4, 0, 0, 0, 0];
        let outs =
            bench().local(v6("fd00:1::2", "fd00:1::1", 60, &[&headers[..], &udp(8)].concat()));
        assert_eq!(result(&outs), (DropReason::Ip6Extension, Some((4, 1))));
        assert_eq!(originated(&outs)[0][58..62], 40u32.to_be_bytes());
    }

    #[test]
    fn the_subnet_router_anycast_address_is_ours_but_no_source() {
        let mut bench = bench();
        let mut ping = v6("fd00:1::2", "fd00:1::", 58, &[128, 0, 0, 0, 0, 1, 0, 1]);
        fix_icmpv6_checksum(&mut ping, 54);
        let mut link = v6("fd00:1::2", "fe80::", 58, &[128, 0, 0, 0, 0, 1, 0, 1]);
        fix_icmpv6_checksum(&mut link, 54);
        assert_eq!(icmp_type(originated(&bench.local(link))[0]), (129, 0));
        let outs = bench.local(ping);
        let own: std::net::Ipv6Addr = "fd00:1::1".parse().unwrap();
        assert_eq!(originated(&outs)[0][22..38], own.octets());
        let outs = bench.local(with_l4_checksum(v6("fd00:1::2", "fd00:2::", 17, &udp(8))));
        assert_eq!(result(&outs), (DropReason::NoListener, Some((1, 4))));
        assert_eq!(originated(&outs)[0][22..38], own.octets());
    }

    #[test]
    fn echo_can_be_switched_off() {
        let mut config = config();
        config.icmp.echo = false;
        let mut bench = Bench::with_hosts(config);
        bench.local(ping4_part(false));
        let outs = bench.local(ping4_part(true));
        assert!(matches!(outs[..], [Out::ToHost(_), Out::ToHost(_)]), "{outs:?}");
        let mut ping = v6("fd00:1::2", "fd00:1::1", 58, &[128, 0, 0, 0, 0, 1, 0, 1]);
        fix_icmpv6_checksum(&mut ping, 54);
        assert!(matches!(bench.local(ping)[..], [Out::ToHost(_)]));
    }

    #[test]
    fn source_routing_over_ipv6_is_refused() {
        let header = [&[17, 2, 0, 1][..], &[0; 20], &udp(8)].concat();
        let outs = bench().local(v6("fd00:1::2", "fd00:1::1", 43, &header));
        assert_eq!(result(&outs), (DropReason::Ip6Extension, Some((4, 0))));
        assert_eq!(originated(&outs)[0][58..62], 42u32.to_be_bytes());
        let cut = v6("fd00:1::2", "fd00:1::1", 60, &[17, 9, 0, 0, 0, 0, 0, 0]);
        assert_eq!(drops(&bench().local(cut)), [DropReason::Ip6Extension]);
    }

    #[test]
    fn malformed_icmp_is_dropped() {
        let mut bench = bench();
        for message in [&[8, 0, 0, 0, 0, 0, 0, 1][..], &[8, 0, 0xf7, 0xff], &[]] {
            let outs = bench.local(v4("10.0.1.2", "10.0.1.1", 1, message));
            assert_eq!(drops(&outs), [DropReason::IcmpMalformed]);
            let outs = bench.local(v6("fd00:1::2", "fd00:1::1", 58, message));
            assert_eq!(drops(&outs), [DropReason::IcmpMalformed]);
        }
    }

    #[test]
    fn other_icmp_is_taken_without_an_answer() {
        let mut bench = bench();
        // Port unreachable; an echo request with an unknown code.
        for kind in [[3, 3, 0xfc, 0xfc], [8, 1, 0xf7, 0xfe]] {
            let message = [&kind[..], &[0; 4]].concat();
            let outs = bench.local(v4("10.0.1.2", "10.0.1.1", 1, &message));
            assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
        }
        let mut frame = v6("fd00:1::2", "fd00:1::1", 58, &[1, 4, 0, 0, 0, 0, 0, 0]);
        fix_icmpv6_checksum(&mut frame, 54);
        assert!(matches!(bench.local(frame)[..], [Out::ToHost(_)]));
    }

    /// A general query with the given hop limit, behind a hop-by-hop header with a router alert.
    fn query(source: &str, hop_limit: u8, option: u8) -> Vec<u8> {
        let mut payload = vec![58, 0, option, 2, 0, 0, 1, 0];
        payload.extend([130, 0, 0, 0, 0x03, 0xe8, 0, 0]);
        payload.extend([0; 20]);
        let mut frame = v6(source, "ff02::1", 0, &payload);
        frame[21] = hop_limit;
        // The checksum covers the message, not the hop-by-hop header.
        let mut plain = v6(source, "ff02::1", 58, &payload[8..]);
        fix_icmpv6_checksum(&mut plain, 54);
        frame[64..66].copy_from_slice(&plain[56..58]);
        frame
    }

    #[test]
    fn a_query_is_answered_with_our_groups_within_its_time() {
        let mut bench = bench();
        let outs = bench.local(query("fe80::9", 1, 5));
        assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
        let outs = bench.pass(secs(1));
        let [report] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!(report[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!(report[21], 1, "hop limit");
        assert_eq!(report[62], 143);
        let groups: Vec<_> = report[70..].chunks(20).map(|r| (r[0], r[4..].to_vec())).collect();
        let group = |text: &str| (2, text.parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec());
        // Both addresses of the interface end in 0:1, so they share a solicited-node group; the other one
        // is the anycast address's.
        let solicited = [group("ff02::1:ff00:0"), group("ff02::1:ff00:1")];
        assert_eq!(groups, [&[group("ff02::2")][..], &solicited, &[group("ff05::2")]].concat());
        assert_eq!(bench.pass(secs(60)), []);
    }

    #[test]
    fn a_query_that_was_punted_for_its_options_is_answered_too() {
        use dataplane::interface::InterfaceId;
        use dataplane::reason::PuntReason;
        let mut bench = bench();
        let frame = query("fe80::9", 1, 5);
        let outs = bench.punt(PuntReason::HopByHop, InterfaceId::FIRST, 0, frame);
        assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
        assert!(bench.router.next_deadline().is_some());
    }

    #[test]
    fn invalid_queries_are_dropped() {
        let mut bench = bench();
        for frame in [query("fd00:1::2", 1, 5), query("fe80::9", 2, 5), query("fe80::9", 1, 1)] {
            assert_eq!(drops(&bench.local(frame)), [DropReason::NdMalformed]);
        }
    }
}
