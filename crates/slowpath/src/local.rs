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
