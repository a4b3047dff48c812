//! Ports with a host interface: what the kernel gets.
//!
//! ARP and everything that the FIB calls local goes to the kernel as it was received, which answers
//! ARP, ND and ping, puts fragments together, and hands the rest to whoever listens. Not for the
//! kernel are
//!
//! * multicasts that nobody there listens to; those that stay on their link (`224.0.0.0/24`,
//!   `ff02::/16`, and the link-layer groups of IEEE 802.1 and ISO 9542) always go up, since routing
//!   daemons join some of them by packet sockets that the kernel does not report;
//! * broadcasts to a network that is not on this port (RFC 2644);
//! * unicast packets in broadcast frames (RFC 1122, 3.3.6).
//!
//! A packet to any other unicast address goes up when the FIB says so: a route may lead to the
//! kernel.
//!
//! Drops: `multicast-not-routed`, `directed-broadcast`, `l2-broadcast`, `unknown-ethertype`.

use std::net::IpAddr;

use dataplane::port::PortId;
use dataplane::reason::{DropReason, is_link_group};
use wire::MacAddr;
use wire::address::{multicast_mac_v4, multicast_mac_v6};

use crate::frame::{self, IpPacket};
use crate::{Output, Packet, SlowPath};

impl<P: Packet> SlowPath<P> {
    /// An IP packet for the router, on a port with a host interface.
    pub(crate) fn for_kernel(&self, packet: P, from: PortId, out: &mut impl Output<P>) {
        match self.not_for_kernel(packet.bytes(), from, out) {
            None => out.deliver(from, packet),
            Some(reason) => out.drop(packet, reason),
        }
    }

    /// A frame that is not IP, which the forwarders give here for its link-layer group.
    pub(crate) fn non_ip(&self, packet: P, from: PortId, out: &mut impl Output<P>) {
        let group = frame::ethernet(packet.bytes()).map(|(ethernet, _)| ethernet.destination);
        let host = self.ports.is_host(from);
        if host && group.is_some_and(|mac| is_link_group(mac.0) || out.has_joined(from, mac)) {
            out.deliver(from, packet);
        } else {
            out.drop(packet, DropReason::UnknownEthertype);
        }
    }

    fn not_for_kernel(
        &self,
        frame: &[u8],
        from: PortId,
        out: &mut impl Output<P>,
    ) -> Option<DropReason> {
        let ip = match IpPacket::parse(frame) {
            Ok(ip) => ip,
            Err(reason) => return Some(reason),
        };
        let destination = ip.destination();
        if destination.is_multicast() {
            let up = stays_on_link(destination) || out.has_joined(from, group_mac(destination));
            return (!up).then_some(DropReason::MulticastNotRouted);
        }
        if let IpAddr::V4(address) = destination
            && !self.ports.is_own(destination, from)
        {
            let on_link = self.ports.get(from).is_some_and(|port| port.is_broadcast(address));
            if on_link || address.is_broadcast() {
                return None;
            }
            if self.ports.is_directed_broadcast(address) {
                return Some(DropReason::DirectedBroadcast);
            }
        }
        let group_frame = frame::ethernet(frame).is_some_and(|(e, _)| e.destination.is_multicast());
        group_frame.then_some(DropReason::L2Broadcast)
    }
}

/// Groups that no router forwards: RFC 5771, 4; RFC 4291, 2.7.
fn stays_on_link(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        // The lower four bits of the second byte are the scope.
        IpAddr::V6(group) => group.octets()[1] & 0xf <= 2,
    }
}

/// The link-layer group of an IP group; of a unicast address nothing that anybody joins.
fn group_mac(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(group) => multicast_mac_v4(group),
        IpAddr::V6(group) => multicast_mac_v6(group),
    }
}
