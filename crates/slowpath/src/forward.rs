//! Forwarding of packets that the graph could not forward: RFC 1812, 5.2 and 5.3; RFC 8200.
//!
//! In this order: route, scope, TTL, MTU, the outgoing interface's filter, then the neighbour. A packet that waits for
//! a neighbour is kept as it was received, so that an error about it quotes the packet that its sender sent (RFC 1812,
//! 4.3.2.3); TTL, checksum and MACs change when it leaves (`transmit.rs`).
//!
//! Drops: `no-route`, `prohibited`, `unreachable`, `blackhole`, `martian-destination`,
//! `l2-broadcast`, `beyond-scope`, `ip6-martian-source`, `ttl-expired`, `too-big`, `filtered`, `policed`,
//! `neighbour-failed`; those of `resolution.rs` and `transmit.rs`.

use dataplane::filters::Judgement;
use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use dataplane::reason::DropReason;
use wire::MacAddr;

use crate::context::Context;
use crate::frame::{self, IpPacket};
use crate::gateways::Gateways;
use crate::icmp::{self, Error};
use crate::interfaces::Interfaces;
use crate::neighbour::{Key, Waiting};
use crate::redirect::Redirects;
use crate::{Output, Packet, reset, resolution, transmit};

/// Next destination of a packet on its way.
enum Target {
    /// To this MAC.
    Mac(InterfaceId, MacAddr),
    /// To this neighbour, whose MAC must be resolved.
    Neighbour(Key),
}

impl Target {
    fn interface(&self) -> InterfaceId {
        match self {
            Self::Mac(interface, _) | Self::Neighbour((interface, _)) => *interface,
        }
    }
}

/// The error for the packet's sender, if any, and the drop reason.
type Refused = (Option<Error>, DropReason);

/// Forwards a packet to its next hop; `judged`: it has passed the graph's filters. Returns a packet that is for the
/// router itself.
#[must_use]
pub(crate) fn forward<P: Packet>(
    mut packet: P,
    (from, judged): (InterfaceId, bool),
    (id, hop): (u16, NextHop),
    redirects: &mut Redirects,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Option<P> {
    if matches!(hop, NextHop::Local | NextHop::Multicast) {
        return Some(packet);
    }
    let target = match check(packet.bytes(), from, (id, hop), context.interfaces, context.gateways)
    {
        Ok(target) => target,
        Err((error, reason)) => {
            icmp::refuse_or_drop(packet, from, error, reason, context);
            return None;
        }
    };
    let judgement = match judged {
        true => Judgement::Pass,
        false => context.out.judge(&mut packet, from, target.interface()),
    };
    match judgement {
        Judgement::Pass => {
            if target.interface() == from {
                redirects.redirect(packet.bytes(), from, id, context);
            }
            send(packet, from, target, context);
        }
        Judgement::Drop => context.out.drop(packet, DropReason::Filtered),
        Judgement::Police => context.out.drop(packet, DropReason::Policed),
        Judgement::Reject => reset::refuse(packet, from, context),
        Judgement::ToHost => return Some(packet),
    }
    None
}

fn send<P: Packet>(
    packet: P,
    from: InterfaceId,
    target: Target,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let waiting = Waiting::Received { packet, from };
    match target {
        Target::Mac(interface, mac) => transmit::send(waiting, interface, mac, context),
        Target::Neighbour(key) => resolution::send_to(key, waiting, context),
    }
}

/// Checks that the packet may be forwarded, and returns its next destination.
fn check(
    frame: &[u8],
    from: InterfaceId,
    (id, hop): (u16, NextHop),
    interfaces: &Interfaces,
    gateways: &Gateways,
) -> Result<Target, Refused> {
    let (ethernet, _) = frame::ethernet(frame).ok_or((None, DropReason::Runt))?;
    let ip = IpPacket::parse(frame).map_err(|reason| (None, reason))?;
    if ethernet.destination.is_multicast() {
        return Err((None, DropReason::L2Broadcast));
    }
    let target = find_target(&ip, (id, hop), interfaces, gateways)?;
    if let IpPacket::V6 { header, .. } = ip {
        if header.source().is_unspecified() {
            return Err((None, DropReason::Ip6MartianSource));
        }
        // On its own link such a packet may be forwarded (RFC 4007, 9).
        if header.source().is_unicast_link_local() && target.interface() != from {
            return Err((Some(Error::BeyondScope), DropReason::BeyondScope));
        }
    }
    if ip.ttl() <= 1 {
        return Err((Some(Error::TtlExpired), DropReason::TtlExpired));
    }
    let interface = interfaces.get(target.interface()).ok_or((None, DropReason::PortDown))?;
    if matches!(ip, IpPacket::V6 { .. }) && !interface.speaks_v6() {
        // No "packet too big" with less than the minimum MTU of IPv6 (RFC 8201, 4).
        return Err((Some(Error::HostUnreachable), DropReason::Unreachable));
    }
    let may_fragment = matches!(ip, IpPacket::V4 { header, .. } if !header.dont_fragment());
    if ip.bytes().len() > usize::from(interface.mtu) && !may_fragment {
        return Err((Some(Error::TooBig { mtu: interface.mtu }), DropReason::TooBig));
    }
    Ok(target)
}

fn find_target(
    ip: &IpPacket<'_>,
    (id, hop): (u16, NextHop),
    interfaces: &Interfaces,
    gateways: &Gateways,
) -> Result<Target, Refused> {
    match hop {
        NextHop::Forward { interface, mac } => Ok(Target::Mac(interface, mac)),
        // The old form of a broadcast (RFC 1812, 4.2.3.1): no host's address, and not to be answered.
        NextHop::Glean { interface } if interfaces.is_all_zeros(interface, ip.destination()) => {
            Err((None, DropReason::MartianDestination))
        }
        NextHop::Glean { interface } => Ok(Target::Neighbour((interface, ip.destination()))),
        NextHop::Unresolved { .. } => {
            // A number without a gateway was withdrawn while the packet was on its way here.
            let gateway = gateways.get(id).map(Target::Neighbour);
            gateway.ok_or((Some(Error::HostUnreachable), DropReason::NeighbourFailed))
        }
        NextHop::Prohibited => Err((Some(Error::Prohibited), DropReason::Prohibited)),
        NextHop::Unreachable => Err((Some(Error::HostUnreachable), DropReason::Unreachable)),
        NextHop::Blackhole => Err((None, DropReason::Blackhole)),
        NextHop::Martian => Err((None, DropReason::MartianDestination)),
        NextHop::Local | NextHop::Multicast => Err((None, DropReason::NotLocal)),
        // The member of a group is chosen before a packet arrives here.
        NextHop::NoRoute | NextHop::Group { .. } => {
            Err((Some(Error::NoRoute), DropReason::NoRoute))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::testing::{
        A, B, Bench, GATEWAY, GLEAN_LEFT, GLEAN_RIGHT, LEFT, Out, R, TO_B, config, drops,
        fix_v4_checksum, icmp_type, ip, originated, right, udp, v4, v4_with_options, v6,
    };
    use dataplane::next_hop::{BLACKHOLE, LOCAL, MARTIAN, NO_ROUTE};
    use dataplane::reason::PuntReason;
    use wire::checksum::checksum;

    fn bench() -> Bench {
        Bench::with_hosts(config())
    }

    fn glean(bench: &mut Bench, frame: Vec<u8>) -> Vec<Out> {
        bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, frame)
    }

    #[test]
    fn a_forwarded_packet_has_new_macs_and_one_less_ttl() {
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(40));
        let mut want = frame.clone();
        want[..6].copy_from_slice(&B.0);
        want[6..12].copy_from_slice(&R.0);
        want[22] = 63;
        fix_v4_checksum(&mut want);
        assert_eq!(glean(&mut bench(), frame), [Out::Forward(right(), want)]);

        let frame = v6("fd00:1::2", "fd00:2::2", 17, &udp(40));
        let mut want = frame.clone();
        want[..6].copy_from_slice(&B.0);
        want[6..12].copy_from_slice(&R.0);
        want[21] = 63;
        assert_eq!(glean(&mut bench(), frame), [Out::Forward(right(), want)]);
    }

    #[test]
    fn bytes_behind_the_packet_do_not_travel() {
        let mut frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        let length = frame.len();
        frame.resize(60, 0xee);
        let outs = glean(&mut bench(), frame);
        assert!(matches!(&outs[..], [Out::Forward(_, sent)] if sent.len() == length), "{outs:?}");
    }

    #[test]
    fn a_next_hop_that_was_taken_back_while_the_packet_waited_is_sought_again() {
        // The gateway's next-hop number now belongs to a neighbour on the other interface.
        for reason in [PuntReason::Unresolved, PuntReason::TooBig, PuntReason::Redirect] {
            let mut bench = bench();
            bench.net.hops.insert(GATEWAY, NextHop::Forward { interface: LEFT, mac: A });
            let frame = || v4("10.0.1.3", "192.0.2.1", 17, &udp(4));
            let by = |outs: &[Out]| match outs {
                [Out::Forward(interface, frame), ..] => (*interface, frame[..6].to_vec()),
                _ => panic!("{outs:?}"),
            };
            let outs = bench.punt(reason, LEFT, GATEWAY, frame());
            assert_eq!(by(&outs), (LEFT, A.0.to_vec()), "the number means what it did");
            bench.net.generation = 1;
            let outs = bench.punt(reason, LEFT, GATEWAY, frame());
            assert_eq!(by(&outs), (right(), B.0.to_vec()), "routes say who has the packet now");
        }
    }

    #[test]
    fn what_must_not_be_forwarded_is_not() {
        let cases = [
            (BLACKHOLE, DropReason::Blackhole, None),
            (MARTIAN, DropReason::MartianDestination, None),
            (NO_ROUTE, DropReason::NoRoute, Some((3, 0))),
            (999, DropReason::NoRoute, Some((3, 0))),
        ];
        for (next_hop, reason, error) in cases {
            let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
            let outs = bench().punt(PuntReason::Unresolved, LEFT, next_hop, frame);
            assert_eq!(drops(&outs), [reason]);
            assert_eq!(originated(&outs).first().map(|f| icmp_type(f)), error);
        }
        let mut ttl = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        ttl[22] = 1;
        assert_eq!(drops(&glean(&mut bench(), ttl)), [DropReason::TtlExpired]);
        let mut broadcast = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        broadcast[..6].fill(0xff);
        assert_eq!(glean(&mut bench(), broadcast), [Out::Drop(DropReason::L2Broadcast)]);
        let unspecified = v6("::", "fd00:2::2", 17, &udp(4));
        assert_eq!(glean(&mut bench(), unspecified), [Out::Drop(DropReason::Ip6MartianSource)]);
        let scope = v6("fe80::a", "fd00:2::2", 17, &udp(4));
        assert_eq!(drops(&glean(&mut bench(), scope)), [DropReason::BeyondScope]);
    }

    #[test]
    fn link_local_addresses_stay_on_their_link_and_are_served_there() {
        let mut bench = bench();
        for (address, mac) in [("fe80::b", B), ("fd00:1::3", B)] {
            let command =
                Command::AddStaticNeighbour { interface: LEFT, address: ip(address), mac };
            bench.command(command);
        }
        bench.take();
        let mut sent = |reason, next_hop, frame| {
            let outs = bench.punt(reason, LEFT, next_hop, frame);
            match &outs[..] {
                [Out::Forward(interface, frame)] => {
                    (Some((*interface, frame[..6].to_vec())), vec![])
                }
                _ => (None, drops(&outs)),
            }
        };
        let on_link = (Some((LEFT, B.0.to_vec())), vec![]);
        let from_link = |to| v6("fe80::a", to, 17, &udp(4));
        // A link-local source, to a host of the link and off the link.
        assert_eq!(sent(PuntReason::Scope, GLEAN_LEFT, from_link("fd00:1::3")), on_link);
        let beyond = (None, vec![DropReason::BeyondScope]);
        assert_eq!(sent(PuntReason::Scope, GLEAN_RIGHT, from_link("fd00:2::2")), beyond);
        // A link-local destination.
        assert_eq!(sent(PuntReason::Local, LOCAL, from_link("fe80::b")), on_link);
        let hop_by_hop =
            v6("fe80::a", "fe80::b", 0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(4)].concat());
        assert_eq!(sent(PuntReason::HopByHop, NO_ROUTE, hop_by_hop), on_link);
        let mut last = from_link("fe80::b");
        last[21] = 1;
        assert_eq!(sent(PuntReason::Local, LOCAL, last), (None, vec![DropReason::TtlExpired]));
    }

    #[test]
    fn no_ipv6_goes_to_a_link_that_is_too_small_for_it() {
        let mut config = config();
        config.interfaces[1].mtu = 1279;
        let mut bench = Bench::with_hosts(config);
        let outs = bench.punt(
            PuntReason::TooBig,
            LEFT,
            TO_B,
            v6("fd00:1::2", "2001:db8::2", 17, &udp(1300)),
        );
        assert_eq!(drops(&outs), [DropReason::Unreachable]);
        assert_eq!(icmp_type(originated(&outs)[0]), (1, 3));
    }

    #[test]
    fn the_all_zeros_address_of_a_network_is_no_hosts() {
        let outs = glean(&mut bench(), v4("10.0.1.2", "10.0.2.0", 17, &udp(4)));
        assert_eq!(outs, [Out::Drop(DropReason::MartianDestination)]);
    }

    #[test]
    fn who_forwards_puts_itself_into_route_and_stamps() {
        let options = [7, 7, 4, 0, 0, 0, 0, 68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let outs = glean(&mut bench(), v4_with_options("10.0.2.2", &options));
        let [Out::Forward(interface, frame)] = &outs[..] else { panic!("{outs:?}") };
        assert_eq!(*interface, right());
        let filled = [7, 7, 8, 10, 0, 2, 1, 68, 12, 13, 1, 10, 0, 2, 1, 1, 2, 3, 4, 0];
        assert_eq!(frame[34..54], filled);
        assert_eq!((frame[22], checksum(&frame[14..54])), (63, 0));
    }

    #[test]
    fn an_error_quotes_options_as_they_came() {
        let mut frame = v4_with_options("10.0.2.2", &[7, 7, 4, 0, 0, 0, 0, 0]);
        frame[22] = 1;
        fix_v4_checksum(&mut frame);
        let outs = glean(&mut bench(), frame.clone());
        assert_eq!(originated(&outs)[0][42..], frame[14..]);
    }

    #[test]
    fn a_next_hop_without_a_gateway_or_port_is_refused() {
        let mut bench = bench();
        bench.command(crate::Command::RemoveNextHop { id: GATEWAY });
        let frame = || v4("10.0.1.2", "198.51.100.1", 17, &udp(4));
        let outs = bench.punt(PuntReason::Unresolved, LEFT, GATEWAY, frame());
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed]);
        assert_eq!(icmp_type(originated(&outs)[0]), (3, 1));
        let nowhere = InterfaceId::new(9).unwrap();
        bench.net.hops.insert(40, NextHop::Forward { interface: nowhere, mac: A });
        let outs = bench.punt(PuntReason::Unresolved, LEFT, 40, frame());
        assert_eq!(outs, [Out::Drop(DropReason::PortDown)]);
        let outs = bench.punt(PuntReason::Glean, nowhere, GLEAN_RIGHT, frame());
        assert_eq!(outs, [Out::Drop(DropReason::PortDown)]);
    }

    #[test]
    fn malformed_packets_are_dropped_by_name() {
        let good4 = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        let good6 = v6("fd00:1::2", "fd00:2::2", 17, &udp(4));
        let change = |frame: &[u8], offset: usize, value: u8| {
            let mut frame = frame.to_vec();
            frame[offset] = value;
            frame
        };
        for (frame, reason) in [
            (good4[..13].to_vec(), DropReason::Runt),
            (good4[..33].to_vec(), DropReason::Runt),
            (good6[..53].to_vec(), DropReason::Runt),
            (change(&good4, 12, 9), DropReason::UnknownEthertype),
            (change(&good4, 14, 0x55), DropReason::Ip4Version),
            (change(&good4, 14, 0x44), DropReason::Ip4HeaderLength),
            (change(&good4, 14, 0x4f), DropReason::Ip4HeaderLength),
            (change(&good4, 17, 19), DropReason::Ip4TotalLength),
            (change(&good4, 17, 200), DropReason::Ip4TotalLength),
            (change(&good6, 14, 0x50), DropReason::Ip6Version),
            (change(&good6, 19, 200), DropReason::Ip6PayloadLength),
        ] {
            assert_eq!(glean(&mut bench(), frame), [Out::Drop(reason)]);
        }
    }

    #[test]
    fn a_packet_with_good_options_is_looked_up_and_forwarded() {
        let frame = v4_with_options("192.0.2.9", &[7, 7, 4, 0, 0, 0, 0, 0]);
        let outs = bench().punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
        assert!(matches!(&outs[..], [Out::Forward(_, sent)] if sent[14] == 0x47), "{outs:?}");
        let hop_by_hop = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(9)].concat();
        let frame = v6("fd00:1::2", "2001:db8::9", 0, &hop_by_hop);
        let outs = bench().punt(PuntReason::HopByHop, LEFT, NO_ROUTE, frame);
        assert!(matches!(outs[..], [Out::Forward(..)]), "{outs:?}");
        // For the router itself.
        let frame = v4_with_options("10.0.1.1", &[1, 1, 1, 1]);
        let outs = bench().punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
        assert_eq!(drops(&outs), [DropReason::NoListener]);
    }

    #[test]
    fn bad_options_are_refused() {
        for (options, error) in [([131, 3, 4, 0], (3, 5)), ([7, 9, 4, 0], (12, 0))] {
            let frame = v4_with_options("192.0.2.9", &options);
            let outs = bench().punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
            assert_eq!(drops(&outs), [DropReason::Ip4Options]);
            assert_eq!(icmp_type(originated(&outs)[0]), error);
        }
        let silent = [&[17, 0, 0x7e, 4, 0, 0, 0, 0][..], &udp(9)].concat();
        let frame = v6("fd00:1::2", "2001:db8::9", 0, &silent);
        let outs = bench().punt(PuntReason::HopByHop, LEFT, NO_ROUTE, frame);
        assert_eq!(outs, [Out::Drop(DropReason::Ip6Extension)]);
    }

    #[test]
    fn nothing_of_the_router_s_own_goes_to_a_link_that_is_too_small_for_ipv6() {
        for (mtu, errors) in [(1279, 0), (1280, 1)] {
            let mut config = config();
            config.interfaces[1].mtu = mtu;
            let mut bench = Bench::with_hosts(config);
            // The error to its sender would leave by the right interface, where 2001:db8::/32 is.
            let frame = v6("2001:db8::7", "2003::9", 17, &udp(9));
            let outs = bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, frame);
            assert_eq!(originated(&outs).len(), errors, "{mtu}");
        }
    }
}
