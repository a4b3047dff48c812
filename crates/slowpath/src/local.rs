//! Packets for the router itself: RFC 1122, 3.2 and 3.3.4 (hosts), RFC 1812, 5.3.4 and 5.3.5
//! (broadcasts), RFC 4291, 2.8 (addresses of a router).
//!
//! A packet to any address of the router is local, whatever port it came by (weak host model);
//! link-local addresses only on their port. ICMP, neighbour discovery and multicast listener
//! queries are dealt with; everything else is refused, since nothing here listens. Fragments are
//! not reassembled. No IPv4 group is joined.
//!
//! Drops: `not-local`, `multicast-not-routed`, `directed-broadcast`, `l2-broadcast`,
//! `local-fragment`, `ip6-extension`, `icmp-malformed`, `nd-malformed`, `no-listener`.

use dataplane::port::PortId;
use dataplane::reason::DropReason;
use wire::checksum::{checksum, pseudo_header_v6};
use wire::icmp::{ICMP_LEN, v4, v6};
use wire::ip::{
    Ipv4Header, Ipv6Header, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_NONE, PROTOCOL_TCP,
    PROTOCOL_UDP,
};

use crate::frame::{self, IpPacket, Upper};
use crate::icmp::Error;
use crate::nd::Message;
use crate::options::has_router_alert;
use crate::{Output, Packet, SlowPath, Time};

/// What becomes of a packet for the router.
enum Verdict {
    /// Dealt with.
    Taken,
    /// Dropped without a word.
    Drop(DropReason),
    /// Dropped, the sender is told.
    Refuse(Error, DropReason),
}

impl<P: Packet> SlowPath<P> {
    /// Deals with a packet that the FIB says is for the router.
    pub(crate) fn local(&mut self, packet: P, from: PortId, now: Time, out: &mut impl Output<P>) {
        if self.ports.is_host(from) {
            return self.for_kernel(packet, from, out);
        }
        match self.receive(packet.bytes(), from, now, out) {
            Verdict::Taken => out.to_host(packet),
            Verdict::Drop(reason) => out.drop(packet, reason),
            Verdict::Refuse(error, reason) => {
                self.refuse(packet, from, error, reason, now, out);
            }
        }
    }

    fn receive(
        &mut self,
        frame: &[u8],
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Verdict {
        let ip = match IpPacket::parse(frame) {
            Ok(ip) => ip,
            Err(reason) => return Verdict::Drop(reason),
        };
        if let Some(reason) = self.not_for_us(&ip, frame, from) {
            return Verdict::Drop(reason);
        }
        let Some(upper) = ip.upper() else { return Verdict::Drop(DropReason::Ip6Extension) };
        if let Some(at) = upper.routing {
            // RFC 8200, 4.4: no routing type is known here; point at the type.
            let error = Error::BadField { pointer: at as u32 + 2 };
            return Verdict::Refuse(error, DropReason::Ip6Extension);
        }
        if upper.fragment.is_some() {
            return Verdict::Drop(DropReason::LocalFragment);
        }
        match (ip, upper.protocol) {
            (IpPacket::V4 { header, bytes }, PROTOCOL_ICMP) => {
                self.icmp_v4(header, &bytes[upper.offset..], from, now, out)
            }
            (IpPacket::V6 { header, bytes }, PROTOCOL_ICMPV6) => {
                self.icmp_v6(header, bytes, upper.offset, from, now, out)
            }
            _ => no_listener(upper),
        }
    }

    /// Why a packet is not for this router after all.
    fn not_for_us(&self, ip: &IpPacket<'_>, frame: &[u8], from: PortId) -> Option<DropReason> {
        let group_frame = frame::ethernet(frame).is_some_and(|(e, _)| e.destination.is_multicast());
        match ip {
            IpPacket::V4 { header, .. } => {
                let destination = header.destination();
                if destination.is_multicast() {
                    Some(DropReason::MulticastNotRouted)
                } else if destination.is_broadcast() {
                    Some(DropReason::NoListener)
                } else if self.ports.is_own(destination.into(), from) {
                    // RFC 1122, 3.3.6: a unicast address in a broadcast frame.
                    group_frame.then_some(DropReason::L2Broadcast)
                } else if self.ports.is_directed_broadcast(destination) {
                    Some(DropReason::DirectedBroadcast)
                } else {
                    Some(DropReason::NotLocal)
                }
            }
            IpPacket::V6 { header, .. } => {
                let destination = header.destination();
                if destination.is_multicast() {
                    let port = self.ports.get(from);
                    let joined = port.is_some_and(|port| port.has_joined(destination));
                    (!joined).then_some(DropReason::MulticastNotRouted)
                } else {
                    let own = self.ports.is_own(destination.into(), from);
                    (!own).then_some(DropReason::NotLocal)
                }
            }
        }
    }

    fn icmp_v4(
        &mut self,
        header: &Ipv4Header,
        message: &[u8],
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Verdict {
        if message.len() < ICMP_LEN || checksum(message) != 0 {
            return Verdict::Drop(DropReason::IcmpMalformed);
        }
        if message[0] == v4::ECHO_REQUEST && message[1] == 0 {
            self.echo_v4(header, message, from, now, out);
        }
        // Other types have no use here; RFC 1122, 3.2.2: unknown ones are discarded silently.
        Verdict::Taken
    }

    fn icmp_v6(
        &mut self,
        header: &Ipv6Header,
        bytes: &[u8],
        offset: usize,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Verdict {
        let message = &bytes[offset..];
        let (source, destination) = (header.source(), header.destination());
        // Fits: the payload length has 16 bits.
        let length = message.len() as u32;
        let mut sum = pseudo_header_v6(source, destination, PROTOCOL_ICMPV6, length);
        sum.add(message);
        let malformed = message.len() < ICMP_LEN || sum.finish() != 0;
        match message.first() {
            Some(v6::ROUTER_SOLICITATION..=v6::REDIRECT) => {
                if malformed {
                    return Verdict::Drop(DropReason::NdMalformed);
                }
                let hop_limit = header.hop_limit;
                let nd = Message { source, destination, hop_limit, bytes: message };
                let refused = self.neighbour_discovery(&nd, from, now, out);
                return refused.map_or(Verdict::Taken, Verdict::Drop);
            }
            _ if malformed => return Verdict::Drop(DropReason::IcmpMalformed),
            Some(&v6::LISTENER_QUERY) => {
                let valid = header.hop_limit == 1
                    && source.is_unicast_link_local()
                    && has_router_alert(header.next_header, bytes);
                if !self.listener_query(message, valid, from, now) {
                    return Verdict::Drop(DropReason::NdMalformed);
                }
            }
            Some(&v6::ECHO_REQUEST) if message[1] == 0 => {
                self.echo_v6(header, message, from, now, out);
            }
            _ => {}
        }
        Verdict::Taken
    }
}

/// Nothing here speaks this protocol or listens on this port. TCP is told the same as UDP: an
/// ICMP error ends a connection attempt as a reset would, and needs no TCP.
fn no_listener(upper: Upper) -> Verdict {
    let reason = DropReason::NoListener;
    match upper.protocol {
        PROTOCOL_NONE => Verdict::Drop(reason),
        PROTOCOL_TCP | PROTOCOL_UDP => Verdict::Refuse(Error::PortUnreachable, reason),
        _ => {
            let error = Error::ProtocolUnreachable { pointer: upper.named_at as u32 };
            Verdict::Refuse(error, reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Bench, Out, config, drops, fix_icmpv6_checksum, icmp_type, originated, secs, udp, v4, v6,
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
        for (protocol, error4, error6) in
            [(17, (3, 3), (1, 4)), (6, (3, 3), (1, 4)), (47, (3, 2), (4, 1))]
        {
            let outs = bench.local(v4("10.0.1.2", "10.0.1.1", protocol, &udp(20)));
            assert_eq!(result(&outs), (DropReason::NoListener, Some(error4)));
            let outs = bench.local(v6("fd00:1::2", "fd00:1::1", protocol, &udp(20)));
            assert_eq!(result(&outs), (DropReason::NoListener, Some(error6)));
        }
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
            ("10.0.1.255", DropReason::DirectedBroadcast),
            ("10.0.2.255", DropReason::DirectedBroadcast),
            ("255.255.255.255", DropReason::NoListener),
            ("224.0.0.5", DropReason::MulticastNotRouted),
        ] {
            let outs = bench.local(v4("10.0.1.2", destination, 17, &udp(20)));
            assert_eq!(result(&outs), (reason, None), "{destination}");
        }
        for (destination, reason) in [
            ("fe80::77", DropReason::NotLocal),
            ("fd00:1::77", DropReason::NotLocal),
            ("ff02::5", DropReason::MulticastNotRouted),
            // All nodes: joined, but nothing listens, and no error about multicast.
            ("ff02::1", DropReason::NoListener),
        ] {
            let outs = bench.local(v6("fd00:1::2", destination, 17, &udp(20)));
            assert_eq!(result(&outs), (reason, None), "{destination}");
        }
    }

    #[test]
    fn a_unicast_packet_in_a_broadcast_frame_is_dropped() {
        let mut frame = v4("10.0.1.2", "10.0.1.1", 17, &udp(20));
        frame[..6].fill(0xff);
        assert_eq!(result(&bench().local(frame)), (DropReason::L2Broadcast, None));
    }

    #[test]
    fn fragments_are_not_reassembled() {
        let mut bench = bench();
        let mut frame = v4("10.0.1.2", "10.0.1.1", 17, &udp(20));
        frame[20] = 0x20;
        assert_eq!(result(&bench.local(frame)), (DropReason::LocalFragment, None));
        let fragment = [&[17, 0, 0, 1, 0, 0, 0, 1][..], &udp(8)].concat();
        let outs = bench.local(v6("fd00:1::2", "fd00:1::1", 44, &fragment));
        assert_eq!(result(&outs), (DropReason::LocalFragment, None));
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
        // Port unreachable; an echo request with a code nobody knows.
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
        // Both addresses of the port end in 0:1, so they share a solicited-node group.
        assert_eq!(groups, [group("ff02::2"), group("ff02::1:ff00:1"), group("ff05::2")]);
        assert_eq!(bench.pass(secs(60)), []);
    }

    #[test]
    fn a_query_that_was_punted_for_its_options_is_answered_too() {
        use dataplane::port::PortId;
        use dataplane::reason::PuntReason;
        let mut bench = bench();
        let frame = query("fe80::9", 1, 5);
        let outs = bench.punt(PuntReason::HopByHop, PortId::FIRST, 0, frame);
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
