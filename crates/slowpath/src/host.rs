//! Interfaces with a host interface: packets for the kernel.
//!
//! ARP and every packet whose route is local go unchanged to the kernel, which answers ARP, ND and
//! ping, reassembles fragments, and delivers the rest to its sockets. Not delivered to the kernel
//! are
//!
//! * multicasts that no socket there has joined; those that stay on their link (`224.0.0.0/24`,
//!   `ff02::/16`, and the link-layer groups of IEEE 802.1 and ISO 9542) are always delivered, since
//!   routing daemons join some of them by packet sockets that the kernel does not report;
//! * broadcasts to a network that is not on this interface (RFC 2644);
//! * unicast packets in broadcast frames (RFC 1122, 3.3.6).
//!
//! A packet to any other unicast address is delivered when its route in the FIB leads to the
//! kernel, or when it may be a DHCP server's offer of that address to a client there
//! ([`is_dhcp_offer`]).
//!
//! Drops: `multicast-not-routed`, `directed-broadcast`, `l2-broadcast`, `unknown-ethertype`.

use std::net::IpAddr;

use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use dataplane::reason::{DropReason, is_link_group};

use wire::ip::PROTOCOL_UDP;
use wire::l4::UdpHeader;
use zerocopy::FromBytes;

use crate::frame::{self, IpPacket};
use crate::interfaces::Interfaces;
use crate::multicast::group_mac;
use crate::{Output, Packet};

/// Takes an IP packet for the router, on an interface with a host interface.
pub(crate) fn for_kernel<P: Packet>(
    packet: P,
    from: InterfaceId,
    interfaces: &Interfaces,
    out: &mut impl Output<P>,
) {
    match not_for_kernel(packet.bytes(), from, interfaces, out) {
        None => out.deliver(from, packet),
        Some(reason) => out.drop(packet, reason),
    }
}

/// Returns true for a reply of a DHCP server to a client, sent to the address that it offers (RFC 2131, 4.1): no route
/// leads to the address, or one back to the link. Renewals of clients elsewhere have a route.
pub(crate) fn is_dhcp_offer(ip: &IpPacket<'_>, from: InterfaceId, hop: NextHop) -> bool {
    const SERVER: u16 = 67;
    const CLIENT: u16 = 68;
    let IpPacket::V4 { header, bytes } = ip else { return false };
    let leads_nowhere = match hop {
        NextHop::NoRoute => true,
        NextHop::Glean { interface } => interface == from,
        _ => false,
    };
    leads_nowhere
        && header.protocol == PROTOCOL_UDP
        && !header.is_fragment()
        && bytes
            .get(header.header_len()..)
            .and_then(|rest| UdpHeader::ref_from_prefix(rest).ok())
            .is_some_and(|(udp, _)| udp.source_port == SERVER && udp.destination_port == CLIENT)
}

/// Takes a frame that is not IP, punted for its link-layer group.
pub(crate) fn non_ip<P: Packet>(
    packet: P,
    from: InterfaceId,
    interfaces: &Interfaces,
    out: &mut impl Output<P>,
) {
    let group = frame::ethernet(packet.bytes()).map(|(ethernet, _)| ethernet.destination);
    let host = interfaces.is_host(from);
    if host && group.is_some_and(|mac| is_link_group(mac.0) || out.has_joined(from, mac)) {
        out.deliver(from, packet);
    } else {
        out.drop(packet, DropReason::UnknownEthertype);
    }
}

/// Takes a frame that a filter rule sends to the host interface, regardless of its contents.
pub(crate) fn frame_to_host<P>(
    packet: P,
    from: InterfaceId,
    interfaces: &Interfaces,
    out: &mut impl Output<P>,
) {
    if interfaces.is_host(from) {
        out.deliver(from, packet);
    } else {
        out.drop(packet, DropReason::UnknownEthertype);
    }
}

fn not_for_kernel<P>(
    frame: &[u8],
    from: InterfaceId,
    interfaces: &Interfaces,
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
        && !interfaces.is_own(destination, from)
    {
        let on_link = interfaces.get(from).is_some_and(|interface| interface.is_broadcast(address));
        if on_link || address.is_broadcast() {
            return None;
        }
        if interfaces.is_directed_broadcast(address, from) {
            return Some(DropReason::DirectedBroadcast);
        }
    }
    let group_frame = frame::ethernet(frame).is_some_and(|(e, _)| e.destination.is_multicast());
    group_frame.then_some(DropReason::L2Broadcast)
}

/// Returns true for groups that no router forwards: RFC 5771, 4; RFC 4291, 2.7.
pub(crate) fn stays_on_link(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        // The lower four bits of the second byte are the scope.
        IpAddr::V6(group) => group.octets()[1] & 0xf <= 2,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{
        A, B, Bench, GATEWAY, GLEAN_LEFT, GLEAN_RIGHT, LEFT, Out, config, drops, icmp_type, ip,
        originated, right, secs, udp, v4, v4_with_options, v6,
    };
    use crate::{Command, Config, Event, NeighbourState};
    use dataplane::next_hop::NO_ROUTE;
    use dataplane::reason::PuntReason;
    use wire::MacAddr;

    fn with_hosts(mut config: Config) -> Bench {
        config.interfaces.iter_mut().for_each(|interface| interface.host = true);
        Bench::with(config)
    }

    fn bench() -> Bench {
        with_hosts(config())
    }

    fn delivered(frame: &[u8]) -> [Out; 1] {
        [Out::Deliver(LEFT, frame.to_vec())]
    }

    /// Output for a packet from A to 10.0.2.`host`.
    fn glean(bench: &mut Bench, host: u8) -> Vec<Out> {
        let packet = v4("10.0.1.2", &format!("10.0.2.{host}"), 17, &udp(8));
        bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, packet)
    }

    fn resolve(address: &str) -> Out {
        Out::Event(Event::Resolve { interface: right(), address: ip(address) })
    }

    fn kernel_says(bench: &mut Bench, address: &str, mac: Option<MacAddr>) -> Vec<Out> {
        bench.command(Command::KernelNeighbour { interface: right(), address: ip(address), mac });
        bench.take()
    }

    fn state(bench: &Bench, address: &str) -> Option<NeighbourState> {
        let all = bench.router.neighbours(bench.now);
        all.iter().find(|info| info.address == ip(address)).map(|info| info.state)
    }

    #[test]
    fn an_offer_of_an_address_goes_up_and_replies_to_other_clients_do_not() {
        let mut bench = bench();
        let reply = |to: &str, ports: [u8; 4]| {
            let mut bytes = udp(300);
            bytes[..4].copy_from_slice(&ports);
            v4("10.0.1.2", to, 17, &bytes)
        };
        let offer = [0, 67, 0, 68];
        // An address without a route, and one of the link.
        let nowhere = reply("10.77.0.1", offer);
        let outs = bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, nowhere.clone());
        assert_eq!(outs, delivered(&nowhere));
        let on_link = reply("10.0.1.77", offer);
        let outs = bench.punt(PuntReason::Glean, LEFT, GLEAN_LEFT, on_link.clone());
        assert_eq!(outs, delivered(&on_link));
        // To a client behind another interface, to other ports, and a later fragment.
        let outs = bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, reply("10.0.2.77", offer));
        assert_eq!(outs, [resolve("10.0.2.77")]);
        let mut fragment = nowhere.clone();
        fragment[21] = 1;
        for other in
            [reply("10.77.0.1", [0, 67, 0, 67]), reply("10.77.0.1", [0, 68, 0, 68]), fragment]
        {
            let outs = bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, other);
            assert_eq!(drops(&outs), [DropReason::NoRoute]);
        }
        // Without a host interface nobody asks.
        let mut without = Bench::new();
        let outs = without.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, nowhere);
        assert_eq!(drops(&outs), [DropReason::NoRoute]);
    }

    #[test]
    fn everything_for_the_router_goes_up_unchanged() {
        let mut bench = bench();
        let mut arp = vec![0xff; 6];
        arp.extend([2, 0, 0, 0, 0x0a, 1, 8, 6, 0, 1]);
        assert_eq!(bench.arp(arp.clone()), delivered(&arp), "even one that is not understood");
        let mut fragment = v4("10.0.1.2", "10.0.1.1", 6, &udp(40));
        fragment[20] = 0x20;
        let frames = [
            v4("10.0.1.2", "10.0.1.1", 6, &udp(20)),
            v4("10.0.1.2", "10.0.2.1", 1, &[8, 0, 0, 0, 0, 0, 0, 1]),
            v4("10.0.1.2", "10.0.1.255", 17, &udp(20)),
            v4("10.0.1.2", "255.255.255.255", 17, &udp(20)),
            // A route leads these to the kernel.
            v4("10.0.1.2", "198.18.0.1", 17, &udp(20)),
            v6("fd00:1::2", "fd00:1::1", 6, &udp(20)),
            v6("fe80::2", "fe80::ff:fe00:1", 58, &[135, 0, 0, 0]),
            fragment,
        ];
        for frame in frames {
            assert_eq!(bench.local(frame.clone()), delivered(&frame));
        }
        bench.assert_nothing_lost();
    }

    #[test]
    fn packets_with_options_for_the_router_go_up_whatever_their_options_are() {
        let mut bench = bench();
        // A source route, which is refused on an interface without a kernel.
        let frame = v4_with_options("10.0.1.1", &[131, 7, 4, 10, 0, 9, 9, 0]);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame.clone());
        assert_eq!(outs, delivered(&frame));
        let frame = v4_with_options("224.0.0.22", &[0x94, 4, 0, 0]);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame.clone());
        assert_eq!(outs, delivered(&frame));
        // To other destinations the router handles them as usual.
        let frame = v4_with_options("192.0.2.9", &[0x94, 4, 0, 0]);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
        assert!(matches!(outs[..], [Out::Forward(..)]), "{outs:?}");
    }

    #[test]
    fn groups_that_stay_on_the_link_go_up_and_others_if_the_kernel_listens() {
        let mut bench = bench();
        for frame in [
            v4("10.0.1.2", "224.0.0.5", 89, &udp(20)),
            v6("fe80::2", "ff02::5", 89, &udp(20)),
            v6("fe80::2", "ff02::1:ff00:1", 58, &udp(20)),
        ] {
            assert_eq!(bench.local(frame.clone()), delivered(&frame));
        }
        let v4_group = v4("10.0.1.2", "239.1.2.3", 17, &udp(20));
        let v6_group = v6("fd00:1::2", "ff05::1:3", 17, &udp(20));
        let not_routed = [Out::Drop(DropReason::MulticastNotRouted)];
        assert_eq!(bench.local(v4_group.clone()), not_routed);
        assert_eq!(bench.local(v6_group.clone()), not_routed);
        bench.net.joined.push(MacAddr([0x01, 0, 0x5e, 1, 2, 3]));
        assert_eq!(bench.local(v4_group.clone()), delivered(&v4_group));
        assert_eq!(bench.local(v6_group.clone()), not_routed);
        bench.net.joined.push(MacAddr([0x33, 0x33, 0, 1, 0, 3]));
        assert_eq!(bench.local(v6_group.clone()), delivered(&v6_group));
    }

    #[test]
    fn what_the_kernel_must_not_get_is_dropped_by_name() {
        let mut bench = bench();
        let other_network = v4("10.0.1.2", "10.0.2.255", 17, &udp(20));
        assert_eq!(drops(&bench.local(other_network)), [DropReason::DirectedBroadcast]);
        let mut in_broadcast = v4("10.0.1.2", "10.0.1.1", 17, &udp(20));
        in_broadcast[..6].fill(0xff);
        assert_eq!(drops(&bench.local(in_broadcast)), [DropReason::L2Broadcast]);
        let mut cut = v4("10.0.1.2", "10.0.1.1", 17, &udp(20));
        cut.truncate(40);
        assert_eq!(drops(&bench.local(cut)), [DropReason::Ip4TotalLength]);
    }

    #[test]
    fn link_protocols_go_up_only_where_there_is_a_kernel() {
        let frame = |mac: [u8; 6]| [&mac[..], &[2, 0, 0, 0, 0x0a, 1, 0x88, 0xcc, 1, 2]].concat();
        let lldp = frame([0x01, 0x80, 0xc2, 0, 0, 0x0e]);
        let punt = |bench: &mut Bench, frame: &[u8]| {
            bench.punt(PuntReason::NonIp, LEFT, NO_ROUTE, frame.to_vec())
        };
        let mut bench = bench();
        assert_eq!(punt(&mut bench, &lldp), delivered(&lldp));
        let other = frame([0x01, 0x80, 0xc2, 0, 0, 0x40]);
        let unknown = [Out::Drop(DropReason::UnknownEthertype)];
        assert_eq!(punt(&mut bench, &other), unknown);
        bench.net.joined.push(MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x40]));
        assert_eq!(punt(&mut bench, &other), delivered(&other));
        assert_eq!(punt(&mut Bench::new(), &lldp), unknown);
    }

    #[test]
    fn a_neighbour_is_asked_of_the_kernel_and_packets_wait_for_its_answer() {
        let mut bench = bench();
        assert_eq!(glean(&mut bench, 2), [resolve("10.0.2.2")]);
        assert_eq!(glean(&mut bench, 2), [], "one question for all");
        assert_eq!(bench.pass(secs(1)), [resolve("10.0.2.2")], "asked again");
        let outs = kernel_says(&mut bench, "10.0.2.2", Some(B));
        let up = Event::NeighbourUp { interface: right(), address: ip("10.0.2.2"), mac: B };
        assert_eq!(outs[0], Out::Event(up));
        assert!(matches!(&outs[1..], [Out::Forward(..), Out::Forward(..)]), "{outs:?}");
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Kernel));
        assert!(matches!(glean(&mut bench, 2)[..], [Out::Forward(..)]));
        assert_eq!(bench.pass(secs(1000)), [], "the kernel's business");
        assert_eq!(kernel_says(&mut bench, "10.0.2.2", Some(B)), [], "nothing new");
        let outs = kernel_says(&mut bench, "10.0.2.2", Some(A));
        assert!(matches!(outs[..], [Out::Event(Event::NeighbourUp { mac: A, .. })]));
        let down = Event::NeighbourDown { interface: right(), address: ip("10.0.2.2") };
        assert_eq!(kernel_says(&mut bench, "10.0.2.2", None), [Out::Event(down)]);
        assert_eq!(glean(&mut bench, 2), [resolve("10.0.2.2")], "asked anew");
        bench.assert_nothing_lost();
    }

    #[test]
    fn who_the_kernel_does_not_find_has_failed_and_senders_are_told() {
        let mut bench = bench();
        let known =
            Command::KernelNeighbour { interface: LEFT, address: ip("10.0.1.2"), mac: Some(A) };
        bench.command(known);
        bench.take();
        glean(&mut bench, 3);
        let outs = kernel_says(&mut bench, "10.0.2.3", None);
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed]);
        assert_eq!(icmp_type(originated(&outs)[0]), (3, 1));
        let outs = glean(&mut bench, 3);
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed], "not asked again at once");
        let outs = kernel_says(&mut bench, "10.0.2.3", Some(B));
        assert!(matches!(outs[..], [Out::Event(Event::NeighbourUp { .. })]));
        // Without any answer the engine gives up after its own timeout.
        glean(&mut bench, 4);
        let outs = bench.pass(secs(3));
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed]);
        bench.assert_nothing_lost();
    }

    #[test]
    fn a_scan_asks_the_kernel_no_more_than_it_bears_and_gateways_are_still_asked_for() {
        let mut config = config();
        config.limits.resolve_rate = 10;
        config.limits.resolve_burst = 5;
        let mut bench = with_hosts(config);
        let asked: usize = (2..=101).map(|host| glean(&mut bench, host).len()).sum();
        assert_eq!(asked, 5);
        let gateway =
            Command::NextHop { id: GATEWAY, interface: right(), address: ip("10.0.2.254") };
        bench.command(gateway);
        assert_eq!(bench.take(), [resolve("10.0.2.254")]);
        // A hundred wait; each second ten are resolved, and the gateway.
        let outs = bench.pass(Duration::from_millis(1000));
        let questions = outs.iter().filter(|out| matches!(out, Out::Event(_))).count();
        assert!((2..=16).contains(&questions), "{questions}");
        assert!(outs.contains(&resolve("10.0.2.254")));
    }

    #[test]
    fn nothing_is_sent_that_is_the_kernels_to_send() {
        let mut config = config();
        config.interfaces[0].host = true;
        let mut router = Bench::with(config.clone());
        router.router = crate::SlowPath::new(config);
        let outs = router.pass(secs(10));
        let interfaces: Vec<_> = outs
            .iter()
            .map(|out| if let Out::Originate(interface, _) = out { *interface } else { LEFT })
            .collect();
        assert!(
            !interfaces.is_empty() && interfaces.iter().all(|&interface| interface == right()),
            "{outs:?}"
        );
        router.command(Command::PortLink { interface: LEFT, up: true });
        assert_eq!(router.pass(secs(10)), []);
    }

    #[test]
    fn a_link_that_goes_down_forgets_what_waits_and_keeps_what_the_kernel_keeps() {
        let mut bench = bench();
        kernel_says(&mut bench, "10.0.2.2", Some(B));
        glean(&mut bench, 3);
        bench.command(Command::PortLink { interface: right(), up: false });
        assert_eq!(bench.take(), [Out::Drop(DropReason::NeighbourFailed)]);
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Kernel));
    }

    #[test]
    fn static_neighbours_and_ports_without_a_kernel_ignore_the_kernel() {
        let mut bench = bench();
        let address = ip("10.0.2.2");
        bench.command(Command::AddStaticNeighbour { interface: right(), address, mac: B });
        bench.take();
        assert_eq!(kernel_says(&mut bench, "10.0.2.2", Some(A)), []);
        assert_eq!(kernel_says(&mut bench, "10.0.2.2", None), []);
        assert_eq!(state(&bench, "10.0.2.2"), Some(NeighbourState::Static));
        let mut alone = Bench::new();
        assert_eq!(kernel_says(&mut alone, "10.0.2.2", Some(A)), []);
        assert_eq!(state(&alone, "10.0.2.2"), None);
    }

    #[test]
    fn errors_come_from_the_addresses_and_follow_the_mtu_of_now() {
        let mut bench = bench();
        let known =
            Command::KernelNeighbour { interface: LEFT, address: ip("10.0.1.2"), mac: Some(A) };
        bench.command(known);
        let addresses = vec!["10.0.1.77/24".parse().unwrap()];
        bench.command(Command::Addresses { interface: LEFT, addresses });
        bench.command(Command::Mtu { interface: right(), mtu: 600 });
        bench.take();
        let mut big = v4("10.0.1.2", "192.0.2.9", 17, &udp(1000));
        big[20] |= 0x40;
        crate::testing::fix_v4_checksum(&mut big);
        let outs = bench.punt(PuntReason::TooBig, LEFT, crate::testing::TO_B, big);
        let error = originated(&outs)[0];
        assert_eq!((icmp_type(error), &error[26..30]), ((3, 4), &[10, 0, 1, 77][..]));
        assert_eq!(error[40..42], 600u16.to_be_bytes());
    }
}
