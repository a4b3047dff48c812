//! Multicast packets that the graph leaves to the slow path though their group has an entry: packets with IPv4
//! options or a hop-by-hop header (RFC 1812, 5.3.13.1; RFC 8200, 4), and packets that exceed the MTU of an outgoing
//! interface.
//!
//! Each interface gets the packet as the graph would send it: TTL decremented, record route and timestamp filled in
//! with the interface's address, fragmented if it is an IPv4 packet that may be. An interface whose MTU the packet
//! exceeds is left out, and the others get it. The sender gets one "packet too big", with the smallest of the MTUs
//! (RFC 4443, 3.2; RFC 8201, 4). IPv4 has no errors about groups (RFC 1812, 4.3.2.7). The received buffer leaves by
//! the last interface; copies for the others are originated, so that the counters' sum closes.
//!
//! Groups that stay on their link, packets with TTL 1 (IGMP reports among them) and packets without an
//! entry are the router's own business, see [`crate::local`] and [`crate::host`].
//!
//! Each interface's outbound filter judges its copy; a copy that it rejects is not made, and the filter's rule
//! counts it. If no copy is made, the packet is dropped with the reason of the last filter.
//!
//! Drops: `multicast-wrong-interface`, `multicast-no-receiver`, `too-big`, `filtered`, `policed`.

use std::net::IpAddr;

use dataplane::filters::Judgement;
use dataplane::interface::InterfaceId;
use dataplane::interface::InterfaceSet;
use dataplane::multicast::Replication;
use dataplane::reason::{DropReason, Punt, PuntReason};
use wire::MacAddr;
use wire::address::{multicast_mac_v4, multicast_mac_v6};

use crate::context::Context;
use crate::frame::IpPacket;
use crate::host::stays_on_link;
use crate::icmp::{self, Error};
use crate::interfaces::Interfaces;
use crate::neighbour::Waiting;
use crate::{Output, Packet, transmit};

/// The outgoing interfaces of a packet to a group, and the smallest MTU of the interfaces left out.
#[derive(Default)]
struct Leaves {
    by: Vec<InterfaceId>,
    too_small: Option<u16>,
}

/// Looks up the group's entry for a punted packet; `None` if the packet is not to be forwarded by an entry.
pub(crate) fn replication<P>(
    ip: &IpPacket<'_>,
    punt: Punt,
    out: &mut impl Output<P>,
) -> Option<Replication> {
    use PuntReason::{HopByHop, Ip4Options, TooBig};
    let (source, group) = (ip.source(), ip.destination());
    let forwarded = matches!(punt.reason, Ip4Options | HopByHop | TooBig)
        && group.is_multicast()
        && !stays_on_link(group)
        && !is_of_link(source)
        && ip.ttl() > 1;
    if !forwarded {
        return None;
    }
    out.replication((source, group), (punt.interface, ip.ttl()), ip.bytes().len())
}

/// Returns true for a source that is meaningless on another link (RFC 4291, 2.5.2 and 2.5.6).
fn is_of_link(source: IpAddr) -> bool {
    matches!(source, IpAddr::V6(source) if source.is_unicast_link_local() || source.is_unspecified())
}

/// Returns the link-layer group of an IP group; for a unicast address, a group that is never joined.
pub(crate) fn group_mac(group: IpAddr) -> MacAddr {
    match group {
        IpAddr::V4(group) => multicast_mac_v4(group),
        IpAddr::V6(group) => multicast_mac_v6(group),
    }
}

/// Forwards a packet by its group's entry. Returns a packet that is for the router itself.
#[must_use]
pub(crate) fn replicate<P: Packet>(
    packet: P,
    from: InterfaceId,
    replication: Replication,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Option<P> {
    match replication {
        Replication::Interfaces(interfaces) => send(packet, from, interfaces, context),
        Replication::WrongInterface => {
            context.out.drop(packet, DropReason::MulticastWrongInterface);
        }
        Replication::Sample => return Some(packet),
    }
    None
}

fn send<P: Packet>(
    mut packet: P,
    from: InterfaceId,
    interfaces: InterfaceSet,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let Ok(ip) = IpPacket::parse(packet.bytes()) else {
        return context.out.drop(packet, DropReason::Runt);
    };
    let mac = group_mac(ip.destination());
    let Leaves { by, too_small } = leaves(&ip, interfaces, context.interfaces);
    if let Some(mtu) = too_small {
        icmp::report(packet.bytes(), from, Error::TooBig { mtu }, context);
    }
    let mut reason = match too_small {
        Some(_) => DropReason::TooBig,
        None => DropReason::MulticastNoReceiver,
    };
    let mut copies = Vec::new();
    for interface in by {
        // A filter may modify the packets that it passes.
        let mut frame = packet.bytes().to_vec();
        match context.out.judge_copy(&mut frame, from, interface) {
            Judgement::Pass => copies.push((interface, frame)),
            Judgement::Police => reason = DropReason::Policed,
            _ => reason = DropReason::Filtered,
        }
    }
    let Some((last, frame)) = copies.pop() else { return context.out.drop(packet, reason) };
    for (interface, frame) in copies {
        transmit::send_copy(&frame, interface, mac, context.interfaces, context.out);
    }
    packet.bytes_mut().copy_from_slice(&frame);
    transmit::send(Waiting::Received { packet, from }, last, mac, context);
}

/// Selects the interfaces that can send the packet, whole or in fragments.
fn leaves(ip: &IpPacket<'_>, set: InterfaceSet, interfaces: &Interfaces) -> Leaves {
    let may_fragment = matches!(ip, IpPacket::V4 { header, .. } if !header.dont_fragment());
    let mut leaves = Leaves::default();
    for interface in set.interfaces().filter_map(|id| interfaces.get(id)) {
        let speaks = matches!(ip, IpPacket::V4 { .. }) || interface.speaks_v6();
        if speaks && (may_fragment || ip.bytes().len() <= usize::from(interface.mtu)) {
            leaves.by.push(interface.id);
        } else if speaks {
            leaves.too_small =
                Some(leaves.too_small.map_or(interface.mtu, |mtu| mtu.min(interface.mtu)));
        }
    }
    leaves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Bench, LEFT, Out, R, config, drops, fix_v4_checksum, icmp_type, originated, right, udp, v4,
        v4_with_options, v6,
    };
    use dataplane::next_hop::MULTICAST;

    const GROUP_MAC: [u8; 6] = [1, 0, 0x5e, 1, 1, 1];

    /// A bench whose multicast entries return `replication`.
    fn bench_that_says(replication: Replication) -> Bench {
        let mut bench = Bench::with_hosts(third_port());
        bench.net.replication = Some(replication);
        bench
    }

    fn third() -> InterfaceId {
        InterfaceId::new(2).unwrap()
    }

    /// `right` and an interface with an MTU of 1280.
    fn both() -> Replication {
        Replication::Interfaces([right(), third()].into_iter().collect())
    }

    fn third_port() -> crate::Config {
        let mut config = config();
        let mut interface = config.interfaces[1].clone();
        interface.id = third();
        interface.mtu = 1280;
        interface.addresses = vec!["10.0.3.1/24".parse().unwrap()];
        config.interfaces.push(interface);
        config
    }

    /// Interfaces and frames that were sent, in the order of interfaces.
    fn sent(outs: &[Out]) -> Vec<(InterfaceId, &[u8])> {
        let frames = outs.iter().filter_map(|out| match out {
            Out::Forward(interface, frame) | Out::Originate(interface, frame) => {
                Some((*interface, &frame[..]))
            }
            _ => None,
        });
        let mut frames: Vec<_> = frames.collect();
        frames.sort_by_key(|&(interface, _)| interface);
        frames
    }

    #[test]
    fn packets_with_options_leave_by_every_port_with_its_own_address() {
        let mut bench = bench_that_says(both());
        let route = [7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut frame = v4_with_options("239.1.1.1", &route);
        frame[..6].copy_from_slice(&GROUP_MAC);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, 0, frame.clone());
        let sent = sent(&outs);
        let interfaces: Vec<_> = sent.iter().map(|&(interface, _)| interface).collect();
        assert_eq!(interfaces, [right(), third()]);
        for (&(_, frame), address) in sent.iter().zip([[10, 0, 2, 1], [10, 0, 3, 1]]) {
            assert_eq!((&frame[..6], &frame[6..12], frame[22]), (&GROUP_MAC[..], &R.0[..], 63));
            assert_eq!((frame[36], &frame[37..41]), (8, &address[..]));
        }
        assert_eq!(outs.iter().filter(|out| matches!(out, Out::Forward(..))).count(), 1);
        bench.assert_nothing_lost();
    }

    #[test]
    fn a_hop_by_hop_header_is_no_obstacle() {
        let mut bench = bench_that_says(both());
        let payload = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(20)].concat();
        let outs =
            bench.punt(PuntReason::HopByHop, LEFT, 0, v6("fd00:1::2", "ff05::9", 0, &payload));
        let sent = sent(&outs);
        assert_eq!(sent.len(), 2);
        assert!(
            sent.iter().all(|(_, frame)| frame[..6] == [0x33, 0x33, 0, 0, 0, 9] && frame[21] == 63)
        );
    }

    #[test]
    fn what_is_too_long_for_one_port_is_cut_for_it_alone() {
        let mut bench = bench_that_says(both());
        let frame = v4("10.0.1.2", "239.1.1.1", 17, &udp(1400));
        let outs = bench.punt(PuntReason::TooBig, LEFT, MULTICAST, frame.clone());
        let lengths: Vec<_> =
            sent(&outs).iter().map(|(interface, f)| (interface.index(), f.len())).collect();
        assert_eq!(lengths, [(1, frame.len()), (2, 14 + 1276), (2, 14 + 20 + 1408 - 1256)]);
    }

    #[test]
    fn what_may_not_be_cut_leaves_by_the_ports_that_take_it() {
        let mut bench = bench_that_says(both());
        let mut frame = v4("10.0.1.2", "239.1.1.1", 17, &udp(1400));
        frame[20] = 0x40;
        fix_v4_checksum(&mut frame);
        let outs = bench.punt(PuntReason::TooBig, LEFT, MULTICAST, frame);
        assert_eq!(sent(&outs).len(), 1, "and no error: {outs:?}");
        let outs = bench.punt(
            PuntReason::TooBig,
            LEFT,
            MULTICAST,
            v6("fd00:1::2", "ff0e::9", 17, &udp(1400)),
        );
        let [error] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!((icmp_type(error), &error[58..62]), ((2, 0), &1280u32.to_be_bytes()[..]));
        assert!(
            outs.iter()
                .any(|out| matches!(out, Out::Forward(interface, _) if *interface == right()))
        );
    }

    #[test]
    fn what_no_port_takes_is_dropped_by_name() {
        let mut bench = bench_that_says(Replication::Interfaces([third()].into_iter().collect()));
        let long = v6("fd00:1::2", "ff0e::9", 17, &udp(1400));
        let outs = bench.punt(PuntReason::TooBig, LEFT, MULTICAST, long);
        assert_eq!(drops(&outs), [DropReason::TooBig]);
        assert_eq!(originated(&outs).len(), 1);
        let options = || v4_with_options("239.1.1.1", &[1; 4]);
        for (replication, reason) in [
            (Replication::Interfaces(InterfaceSet::EMPTY), DropReason::MulticastNoReceiver),
            (Replication::WrongInterface, DropReason::MulticastWrongInterface),
            (Replication::Sample, DropReason::MulticastNotRouted),
        ] {
            let outs =
                bench_that_says(replication).punt(PuntReason::Ip4Options, LEFT, 0, options());
            assert_eq!(outs, [Out::Drop(reason)]);
        }
    }

    #[test]
    fn what_stays_on_its_link_has_no_entry() {
        let mut bench = bench_that_says(both());
        let mut report = v4_with_options("239.1.1.1", &[0x94, 4, 0, 0]);
        report[22] = 1;
        fix_v4_checksum(&mut report);
        let alert = [&[17, 0, 5, 2, 0, 0, 1, 0][..], &udp(20)].concat();
        for (reason, frame) in [
            (PuntReason::Ip4Options, v4_with_options("224.0.0.22", &[0x94, 4, 0, 0])),
            (PuntReason::Ip4Options, report),
            (PuntReason::HopByHop, v6("fe80::2", "ff05::9", 0, &alert)),
            (PuntReason::HopByHop, v6("fd00:1::2", "ff02::9", 0, &alert)),
        ] {
            let outs = bench.punt(reason, LEFT, 0, frame);
            assert_eq!(outs, [Out::Drop(DropReason::MulticastNotRouted)]);
        }
    }

    #[test]
    fn a_kernel_gets_only_what_has_no_entry() {
        let mut config = third_port();
        config.interfaces.iter_mut().for_each(|interface| interface.host = true);
        let mut bench = Bench::with(config);
        bench.net.joined.push(MacAddr(GROUP_MAC));
        let frame = v4_with_options("239.1.1.1", &[1; 4]);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, 0, frame.clone());
        assert_eq!(outs, [Out::Deliver(LEFT, frame.clone())]);
        bench.net.replication = Some(Replication::Sample);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, 0, frame.clone());
        assert_eq!(outs, [Out::Deliver(LEFT, frame.clone())]);
        bench.net.replication = Some(both());
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, 0, frame);
        assert_eq!(sent(&outs).len(), 2);
    }

    #[test]
    fn filters_are_asked_for_each_copy() {
        let mut bench = bench_that_says(both());
        let mut frame = v4_with_options("239.1.1.1", &[148, 4, 0, 0]);
        frame[..6].copy_from_slice(&GROUP_MAC);
        for (judgement, reason) in
            [(Judgement::Drop, DropReason::Filtered), (Judgement::Police, DropReason::Policed)]
        {
            bench.net.asked.clear();
            bench.net.judgement = judgement;
            let outs = bench.punt(PuntReason::Ip4Options, LEFT, 0, frame.clone());
            assert_eq!((sent(&outs).len(), drops(&outs)), (0, vec![reason]));
            assert_eq!(bench.net.asked, [(LEFT, right()), (LEFT, third())]);
        }
    }
}
