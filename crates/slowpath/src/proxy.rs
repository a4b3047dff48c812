//! Proxy ARP (RFC 1027) and proxy neighbour discovery (RFC 4861, 7.2.8): answers for other hosts' addresses.
//!
//! Hosts that take an address behind the router for one of their own link ask for its MAC there. The router answers
//! with its own, and forwards their packets.
//!
//! * The address is in a prefix that the configuration names.
//! * A route leads to it, by another interface: the router never answers for a host that can answer by itself, nor
//!   for one that it cannot reach (RFC 1027, 2.3 and 2.4).
//! * Probes for duplicates (RFC 5227, RFC 4862) are answered as well: no host of the link may take the address.
//! * A host that announces such an address as its own is not contradicted; its packets are what shows the mistake.
//! * Advertisements of IPv6 are sent without "override", so that a host of that address comes first, and without the
//!   flag of a router, which the host may not be.

use std::net::IpAddr;

use dataplane::next_hop::NextHop;

use crate::Output;
use crate::interfaces::Interface;

/// Returns true if requests for this address, which is not the router's, are answered on this interface.
pub(crate) fn answers_for<P>(address: IpAddr, interface: &Interface, out: &impl Output<P>) -> bool {
    let settings = &interface.settings;
    let named = settings.proxy.iter().any(|net| net.contains(&address));
    named
        && match out.route(settings.vrf, address, 0).hop {
            NextHop::Forward { interface: egress, .. }
            | NextHop::Glean { interface: egress }
            | NextHop::Unresolved { interface: egress } => egress != interface.id,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use dataplane::reason::DropReason;
    use wire::MacAddr;
    use wire::address::{multicast_mac_v6, solicited_node};
    use wire::arp::{ArpMessage, REPLY, REQUEST};
    use wire::build::{self, Link};
    use wire::icmp::v6;
    use wire::nd::FLAG_SOLICITED;

    use crate::testing::{
        A, Bench, L, Out, config, fix_icmpv6_checksum, hex, icmp_type, originated,
    };

    /// A router that answers for these prefixes on its left interface.
    fn proxy(prefixes: &[&str]) -> Bench {
        let mut config = config();
        config.interfaces[0].settings.proxy =
            prefixes.iter().map(|net| net.parse().unwrap()).collect();
        Bench::with(config)
    }

    fn request(sender: &str, target: &str) -> Vec<u8> {
        let sender = (A, sender.parse().unwrap());
        let target = (MacAddr::default(), target.parse().unwrap());
        let message = ArpMessage::new(REQUEST, sender, target);
        build::arp(Link { destination: MacAddr::BROADCAST, source: A }, &message)
    }

    /// A's solicitation; its source is unspecified if it is a probe.
    fn solicitation(target: &str, probe: bool) -> Vec<u8> {
        let target: Ipv6Addr = target.parse().unwrap();
        let mut frame = hex("333300000000 020000000a01 86dd 6000000000203aff
             fd000001000000000000000000000002 ff020000000000000000000000000000
             87000000 00000000 00000000000000000000000000000000 0101020000000a01");
        let group = solicited_node(target);
        frame[..6].copy_from_slice(&multicast_mac_v6(group).0);
        frame[38..54].copy_from_slice(&group.octets());
        frame[62..78].copy_from_slice(&target.octets());
        if probe {
            frame[22..38].fill(0);
            frame.truncate(78);
            frame[19] = 24;
        }
        fix_icmpv6_checksum(&mut frame, 54);
        frame
    }

    #[test]
    fn requests_for_hosts_behind_the_router_are_answered_with_its_mac() {
        let mut bench = proxy(&["10.0.2.0/24", "192.0.2.0/25"]);
        // A neighbour of another interface, and a host behind a gateway there.
        for target in ["10.0.2.77", "192.0.2.9"] {
            let outs = bench.arp(request("10.0.1.2", target));
            let reply = ArpMessage::new(
                REPLY,
                (L, target.parse().unwrap()),
                (A, "10.0.1.2".parse().unwrap()),
            );
            let link = Link { destination: A, source: L };
            assert_eq!(originated(&outs), [build::arp(link, &reply)], "{target}");
            assert!(matches!(outs.last(), Some(Out::ToHost(_))), "{outs:?}");
        }
        // A probe: no host of this link may take the address.
        let outs = bench.arp(request("0.0.0.0", "192.0.2.9"));
        assert_eq!(originated(&outs).len(), 1);
        // Outside the prefixes.
        assert_eq!(
            bench.arp(request("0.0.0.0", "192.0.2.200")),
            [Out::Drop(DropReason::ArpRejected)]
        );
    }

    #[test]
    fn requests_for_what_no_route_leads_away_to_are_not_answered() {
        let mut bench = proxy(&["0.0.0.0/0"]);
        for target in [
            "10.0.1.77",   // on the same link
            "10.9.9.9",    // no route
            "203.0.113.1", // a refusal
            "10.0.2.1",    // the router's own, on another interface
            "224.0.0.9",   // a group
        ] {
            let outs = bench.arp(request("10.0.1.2", target));
            assert!(originated(&outs).is_empty(), "{target}: {outs:?}");
        }
        // An announcement is no request.
        let outs = bench.arp(request("192.0.2.9", "192.0.2.9"));
        assert_eq!(outs, [Out::Drop(DropReason::ArpRejected)]);
    }

    #[test]
    fn solicitations_are_answered_without_override_and_not_as_a_router() {
        let mut bench = proxy(&["fd00:2::/64", "2001:db8::/112"]);
        for target in ["fd00:2::ab:cdef", "2001:db8::77"] {
            let outs = bench.local(solicitation(target, false));
            let [answer] = originated(&outs)[..] else { panic!("{outs:?}") };
            assert_eq!(icmp_type(answer), (v6::NEIGHBOUR_ADVERTISEMENT, 0));
            assert_eq!(answer[58], FLAG_SOLICITED);
            // From an address of the router, about the host's.
            assert_eq!(answer[22..38], hex("fd000001000000000000000000000001"));
            assert_eq!(answer[62..78], target.parse::<Ipv6Addr>().unwrap().octets());
            assert_eq!((&answer[..6], &answer[80..86]), (&A.0[..], &L.0[..]));
        }
        let outs = bench.local(solicitation("2001:db8::77", true));
        let [answer] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!((answer[58], &answer[..6]), (0, &hex("333300000001")[..]));
    }

    #[test]
    fn groups_of_other_hosts_are_heard_for_configured_prefixes_only() {
        let mut bench = proxy(&["fd00:2::100/120", "fd00:1::/64"]);
        let mut drop_of = |target| match &bench.local(solicitation(target, false))[..] {
            [Out::Drop(reason)] => Some(*reason),
            outs => {
                assert_eq!(originated(outs).len(), 1, "{outs:?}");
                None
            }
        };
        assert_eq!(drop_of("fd00:2::1ff"), None);
        // The group of an address of fd00:1::/64, which is on this link.
        assert_eq!(drop_of("fd00:2::2ff"), Some(DropReason::NotLocal));
        assert_eq!(drop_of("fd00:1::77"), Some(DropReason::NotLocal));
        let mut bench = proxy(&["fd00:2::100/120"]);
        let outs = bench.local(solicitation("fd00:2::2ff", false));
        assert_eq!(outs, [Out::Drop(DropReason::MulticastNotRouted)]);
    }
}
