//! Tests with route messages as the kernel and zebra send them, without a kernel.

use proptest::prelude::*;

use super::*;
use crate::netlink::message::{
    Hop, Hops, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REPLACE, RTN_BLACKHOLE,
};
use crate::rib::Path;
use dataplane::interface::InterfaceId;
use std::collections::BTreeMap;

/// Interfaces 10 and 11 are ports 0 and 1, interface 99 is not a port.
fn routes(policy: ReplacePolicy) -> Routes {
    let mut routes = Routes::new(policy);
    for (index, port) in [(10, InterfaceId::new(0)), (11, InterfaceId::new(1)), (99, None)] {
        routes.set_interface(index, Some(Interface { port, up: true }));
    }
    routes
}

fn hop(interface: u32, via: &str) -> Hop {
    let via = (!via.is_empty()).then(|| via.parse().unwrap());
    Hop { interface, via, weight: 1, on_link: false, encap: false }
}

fn route(prefix: &str, hops: &[Hop]) -> RouteMessage {
    RouteMessage {
        has_mtu: false,
        prefix: prefix.parse().unwrap(),
        table: RT_TABLE_MAIN,
        tos: 0,
        protocol: 3,
        scope: 0,
        kind: RTN_UNICAST,
        metric: 0,
        source: None,
        from: false,
        nexthop: None,
        hops: Hops::from_slice(hops),
        dead: 0,
        cloned: false,
    }
}

/// Routes that result from a sequence of events; the withdrawal of a missing route is a fault.
#[derive(Default)]
struct Sent(BTreeMap<(VrfId, IpNet, u64), RouteKind>);

impl Sent {
    fn take(&mut self, routes: &mut Routes) -> usize {
        let events = routes.take_events();
        let count = events.len();
        for event in events {
            match event {
                SourceEvent::Route { vrf, prefix, metric, change: Change::Set(kind), .. } => {
                    let old = self.0.insert((vrf, prefix, metric), kind.clone());
                    assert_ne!(old, Some(kind), "{prefix} sent twice");
                }
                SourceEvent::Route { vrf, prefix, metric, change: Change::Withdraw, .. } => {
                    assert!(
                        self.0.remove(&(vrf, prefix, metric)).is_some(),
                        "{prefix} was not there"
                    );
                }
                _ => {}
            }
        }
        count
    }

    /// Returns the gateways of each route, or its kind.
    fn words(&self) -> Vec<String> {
        let word = |((vrf, prefix, metric), kind): (&(VrfId, IpNet, u64), &RouteKind)| {
            let kind = match kind {
                RouteKind::Unicast(paths) => {
                    let via = |p: &Path| p.via.map_or("link".to_owned(), |via| via.to_string());
                    paths.iter().map(via).collect::<Vec<_>>().join("+")
                }
                other => format!("{other:?}"),
            };
            let vrf = (*vrf != VrfId::DEFAULT).then(|| format!("vrf {}: ", vrf.index()));
            format!("{}{prefix}@{metric} {kind}", vrf.unwrap_or_default())
        };
        self.0.iter().map(word).collect()
    }
}

fn after(policy: ReplacePolicy, steps: impl FnOnce(&mut Routes)) -> Vec<String> {
    let mut routes = routes(policy);
    steps(&mut routes);
    let mut sent = Sent::default();
    sent.take(&mut routes);
    sent.words()
}

#[test]
fn ipv4_routes_with_one_metric_are_tried_in_order() {
    let add = |routes: &mut Routes, flags: u16, via: &str| {
        routes.on_notification(flags, false, route("192.0.2.0/24", &[hop(10, via)])).unwrap();
    };
    let first = |steps: &dyn Fn(&mut Routes)| after(ReplacePolicy::Kernel, |routes| steps(routes));
    assert_eq!(
        first(&|r| {
            add(r, NLM_F_CREATE, "10.0.0.1");
            add(r, NLM_F_CREATE | NLM_F_APPEND, "10.0.0.2");
        }),
        ["192.0.2.0/24@0 10.0.0.1"]
    );
    assert_eq!(
        first(&|r| {
            add(r, NLM_F_CREATE, "10.0.0.1");
            add(r, NLM_F_CREATE, "10.0.0.2");
        }),
        ["192.0.2.0/24@0 10.0.0.2"],
        "without NLM_F_APPEND it goes before"
    );
    assert_eq!(
        first(&|r| {
            add(r, NLM_F_CREATE, "10.0.0.1");
            add(r, NLM_F_CREATE | NLM_F_APPEND, "10.0.0.2");
            add(r, NLM_F_REPLACE, "10.0.0.3");
            let gone = route("192.0.2.0/24", &[hop(10, "10.0.0.3")]);
            r.on_notification(0, true, gone).unwrap();
        }),
        ["192.0.2.0/24@0 10.0.0.2"],
        "the first is replaced, the second is left"
    );
}

#[test]
fn ipv6_paths_come_together_and_go_one_by_one() {
    let (a, b, c) = (hop(10, "2001:db8::1"), hop(10, "2001:db8::2"), hop(11, "2001:db8::3"));
    let prefix = "2001:db8:1::/48";
    let words = after(ReplacePolicy::Kernel, |r| {
        r.on_notification(NLM_F_CREATE, false, route(prefix, &[a])).unwrap();
        r.on_notification(NLM_F_CREATE | NLM_F_APPEND, false, route(prefix, &[b, a])).unwrap();
        r.on_notification(NLM_F_CREATE | NLM_F_APPEND, false, route(prefix, &[c, a, b])).unwrap();
        r.on_notification(0, true, route(prefix, &[a])).unwrap();
    });
    assert_eq!(words, ["2001:db8:1::/48@0 2001:db8::2+2001:db8::3"]);
    let words = after(ReplacePolicy::Kernel, |r| {
        r.on_notification(NLM_F_CREATE, false, route(prefix, &[a, b])).unwrap();
        r.on_notification(0, true, route(prefix, &[b, a])).unwrap();
    });
    assert!(words.is_empty(), "{words:?}");
}

#[test]
fn ipv6_replaces_its_own_sort_first() {
    let prefix = "2001:db8:1::/48";
    let black = || RouteMessage { kind: RTN_BLACKHOLE, ..route(prefix, &[]) };
    let (a, b) = (hop(10, "2001:db8::1"), hop(10, "2001:db8::2"));
    let words = after(ReplacePolicy::Kernel, |r| {
        r.on_notification(NLM_F_CREATE, false, black()).unwrap();
        r.on_notification(NLM_F_REPLACE, false, route(prefix, &[a, b])).unwrap();
    });
    assert_eq!(words, ["2001:db8:1::/48@0 2001:db8::1+2001:db8::2"]);
    let words = after(ReplacePolicy::Kernel, |r| {
        r.on_notification(NLM_F_CREATE, false, black()).unwrap();
        r.on_notification(NLM_F_CREATE | NLM_F_APPEND, false, route(prefix, &[a])).unwrap();
        r.on_notification(NLM_F_REPLACE, false, route(prefix, &[b])).unwrap();
        r.on_notification(0, true, black()).unwrap();
    });
    assert_eq!(words, ["2001:db8:1::/48@0 2001:db8::2"], "the blackhole was left");
}

#[test]
fn what_is_not_for_the_rib_is_left_out() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let good = route("192.0.2.0/24", &[hop(10, "10.0.0.1")]);
    let refused =
        |routes: &mut Routes, message| routes.on_notification(0, false, message).unwrap_err();
    let tos = RouteMessage { tos: 8, ..good.clone() };
    assert_eq!(refused(&mut routes, tos), Skipped::Ignored("routes with a TOS"));
    let cloned = RouteMessage { cloned: true, ..good.clone() };
    assert_eq!(refused(&mut routes, cloned), Skipped::Silently);
    let nowhere = route("192.0.2.0/24", &[]);
    assert_eq!(refused(&mut routes, nowhere), Skipped::Wrong("a route without a next hop"));
    for reserved in ["127.0.0.0/8", "224.0.0.0/4", "fe80::/64", "ff00::/8", "::1/128"] {
        assert_eq!(refused(&mut routes, route(reserved, &[hop(10, "")])), Skipped::Silently);
    }
    assert!(routes.take_events().is_empty());
    routes.on_notification(0, false, route("0.0.0.0/0", &[hop(10, "10.0.0.1")])).unwrap();
    routes.on_notification(0, false, route("::/0", &[hop(10, "fe80::1")])).unwrap();
    assert_eq!(routes.take_events().len(), 2, "default routes are not reserved");
}

/// The RIB derives the network of an own address from the address; but not that of a peer.
#[test]
fn connected_networks_are_not_doubled() {
    let connected = |prefix: &str, source: &str| RouteMessage {
        protocol: RTPROT_KERNEL,
        source: Some(source.parse().unwrap()),
        ..route(prefix, &[hop(10, "")])
    };
    let words = after(ReplacePolicy::Kernel, |r| {
        r.on_notification(0, false, connected("10.0.0.0/24", "10.0.0.1")).unwrap();
        r.on_notification(0, false, connected("10.9.0.2/32", "10.9.0.1")).unwrap();
    });
    assert_eq!(words, ["10.9.0.2/32@0 link"]);
}

#[test]
fn what_needs_the_kernel_goes_to_it() {
    let encap = Hop { encap: true, ..hop(10, "10.0.0.1") };
    let words = after(ReplacePolicy::Kernel, |r| {
        for (prefix, hops) in [
            ("192.0.2.0/25", &[hop(99, "")][..]),
            ("192.0.2.128/25", &[hop(10, "10.0.0.1"), hop(99, "10.1.0.1")]),
            ("198.51.100.0/24", &[encap]),
            ("203.0.113.0/24", &[hop(12345, "10.0.0.1")]),
        ] {
            r.on_notification(0, false, route(prefix, hops)).unwrap();
        }
    });
    assert!(words.iter().all(|word| word.ends_with(" Host")) && words.len() == 4, "{words:?}");
}

#[test]
fn an_interface_that_becomes_a_port_moves_its_routes() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    routes.on_notification(0, false, route("192.0.2.0/24", &[hop(99, "10.0.0.1")])).unwrap();
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["192.0.2.0/24@0 Host"]);
    routes.set_interface(99, Some(Interface { port: InterfaceId::new(2), up: true }));
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["192.0.2.0/24@0 10.0.0.1"]);
}

/// `fib_sync_down_dev`: a route is removed when all its hops are over dead links, own addresses
/// stay.
#[test]
fn a_downed_link_takes_its_routes() {
    let own = RouteMessage {
        kind: super::super::message::RTN_LOCAL,
        scope: RT_SCOPE_HOST,
        table: RT_TABLE_LOCAL,
        ..route("10.255.0.1/32", &[hop(10, "")])
    };
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    let both = [hop(10, "10.0.0.1"), hop(11, "10.1.0.1")];
    routes.on_notification(0, false, route("192.0.2.0/24", &[hop(10, "10.0.0.1")])).unwrap();
    routes.on_notification(0, false, route("198.51.100.0/24", &both)).unwrap();
    routes.on_notification(0, false, own).unwrap();
    sent.take(&mut routes);
    routes.set_interface(10, Some(Interface { port: InterfaceId::new(0), up: false }));
    routes.interface_down(10);
    assert_eq!(sent.take(&mut routes), 1, "one withdrawal, the address stays");
    assert_eq!(sent.words(), ["198.51.100.0/24@0 10.0.0.1+10.1.0.1"]);
    routes.set_interface(11, Some(Interface { port: InterfaceId::new(1), up: false }));
    routes.interface_down(11);
    sent.take(&mut routes);
    assert!(sent.words().is_empty(), "the other hop was dead already");
}

#[test]
fn the_last_address_takes_the_hops_over_its_interface() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    let both = [hop(10, "10.0.0.1"), hop(11, "10.1.0.1")];
    routes.on_notification(0, false, route("198.51.100.0/24", &both)).unwrap();
    routes.on_notification(0, false, route("192.0.2.0/24", &[hop(10, "10.0.0.1")])).unwrap();
    sent.take(&mut routes);
    routes.last_address_gone(10);
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["198.51.100.0/24@0 10.1.0.1"]);
    routes.interface_alive(10);
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["198.51.100.0/24@0 10.0.0.1+10.1.0.1"]);
}

/// `NETDEV_UNREGISTER`: an IPv4 route is removed whole, an IPv6 route loses its hops.
#[test]
fn an_interface_that_is_gone_takes_more() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    let v4 = [hop(10, "10.0.0.1"), hop(11, "10.1.0.1")];
    let v6 = [hop(10, "2001:db8::1"), hop(11, "2001:db8::2")];
    routes.on_notification(0, false, route("192.0.2.0/24", &v4)).unwrap();
    routes.on_notification(0, false, route("2001:db8:1::/48", &v6)).unwrap();
    routes.interface_gone(10);
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["2001:db8:1::/48@0 2001:db8::2"]);
    // The kernel's later message about it changes nothing.
    routes.on_notification(0, true, route("2001:db8:1::/48", &v6[..1])).unwrap();
    assert_eq!(sent.take(&mut routes), 0);
}

fn nexthop(routes: &mut Routes, id: u32, nexthop: Nexthop) {
    routes.set_nexthop(NexthopMessage { id, nexthop }).unwrap();
}

fn group(members: &[u32]) -> Nexthop {
    Nexthop::Group { members: members.iter().map(|id| (*id, 1)).collect(), buckets: None }
}

#[test]
fn a_deleted_nexthop_object_takes_what_leads_over_it() {
    let mut routes = routes(ReplacePolicy::Kernel);
    nexthop(&mut routes, 1, Nexthop::Single(hop(10, "10.0.0.1")));
    nexthop(&mut routes, 2, Nexthop::Single(hop(11, "10.1.0.1")));
    nexthop(&mut routes, 7, group(&[1, 2]));
    nexthop(&mut routes, 8, group(&[1]));
    for (prefix, id) in [("192.0.2.0/26", 1), ("192.0.2.64/26", 7), ("192.0.2.128/26", 8)] {
        let message = RouteMessage { nexthop: Some(id), ..route(prefix, &[]) };
        routes.on_notification(0, false, message).unwrap();
    }
    let mut sent = Sent::default();
    sent.take(&mut routes);
    assert_eq!(sent.0.len(), 3);
    routes.remove_nexthop(1);
    let events = routes.take_events();
    let group = |event: &SourceEvent| match event {
        SourceEvent::Group { key, change: Change::Set(spec) } => Some((key.id, spec.paths.len())),
        SourceEvent::Group { key, change: Change::Withdraw } => Some((key.id, 0)),
        _ => None,
    };
    let mut groups: Vec<_> = events.iter().filter_map(group).collect();
    groups.sort_unstable();
    assert_eq!(groups, [(1, 0), (7, 1), (8, 0)]);
    let gone =
        events.iter().filter(|e| matches!(e, SourceEvent::Route { change: Change::Withdraw, .. }));
    assert_eq!(gone.count(), 2, "all but the route over the group with another member");
    assert_eq!((routes.count(), routes.groups()), (1, 2));
}

/// An object reuses the number of one just removed: the old routes are removed, the new one stays.
#[test]
fn a_nexthop_number_can_be_used_again() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let over = |prefix: &str| RouteMessage { nexthop: Some(1), ..route(prefix, &[]) };
    nexthop(&mut routes, 1, Nexthop::Single(hop(10, "10.0.0.1")));
    routes.on_notification(0, false, over("192.0.2.0/25")).unwrap();
    routes.remove_nexthop(1);
    nexthop(&mut routes, 1, Nexthop::Single(hop(11, "10.1.0.1")));
    routes.on_notification(0, false, over("192.0.2.128/25")).unwrap();
    let mut sent = Sent::default();
    sent.take(&mut routes);
    assert_eq!(
        sent.0.keys().map(|(_, p, _)| p.to_string()).collect::<Vec<_>>(),
        ["192.0.2.128/25"]
    );
}

#[test]
fn an_earlier_table_hides_a_later_one() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    let in_100 = |prefix: &str, kind| RouteMessage {
        table: 100,
        kind,
        ..route(prefix, &[hop(11, "10.1.0.1")])
    };
    routes.on_notification(0, false, route("10.64.0.0/16", &[hop(10, "10.0.0.1")])).unwrap();
    routes.on_notification(0, false, route("10.64.1.0/24", &[hop(10, "10.0.0.2")])).unwrap();
    routes.on_notification(0, false, in_100("10.64.0.0/16", RTN_UNICAST)).unwrap();
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["10.64.0.0/16@0 10.0.0.1", "10.64.1.0/24@0 10.0.0.2"]);
    routes.set_order(false, vec![RT_TABLE_LOCAL, 100, RT_TABLE_MAIN]);
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["10.64.0.0/16@0 10.1.0.1"]);
    routes.on_notification(0, false, in_100("10.64.1.0/25", RTN_THROW)).unwrap();
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["10.64.0.0/16@0 10.1.0.1", "10.64.1.0/25@0 10.0.0.2"]);
    routes.on_notification(0, true, in_100("10.64.0.0/16", RTN_UNICAST)).unwrap();
    sent.take(&mut routes);
    let all = ["10.64.0.0/16@0 10.0.0.1", "10.64.1.0/24@0 10.0.0.2", "10.64.1.0/25@0 10.0.0.2"];
    assert_eq!(sent.words(), all);
}

#[test]
fn a_table_is_that_of_a_vrf_as_long_as_it_is_said_to_be() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    let in_100 =
        |kind| RouteMessage { table: 100, kind, ..route("192.0.2.0/24", &[hop(11, "10.1.0.1")]) };
    routes.on_notification(0, false, route("192.0.2.0/24", &[hop(10, "10.0.0.1")])).unwrap();
    routes.on_notification(0, false, in_100(RTN_UNICAST)).unwrap();
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["192.0.2.0/24@0 10.0.0.1"]);
    let [blue, red] = [1, 2].map(VrfId::new);
    routes.set_vrfs(&[(100, blue)].into());
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["192.0.2.0/24@0 10.0.0.1", "vrf 1: 192.0.2.0/24@0 10.1.0.1"]);
    routes.set_vrfs(&[(100, red)].into());
    routes.on_notification(NLM_F_REPLACE, false, in_100(RTN_THROW)).unwrap();
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["192.0.2.0/24@0 10.0.0.1", "vrf 2: 192.0.2.0/24@0 Unreachable"]);
    routes.on_notification(NLM_F_REPLACE, false, in_100(RTN_UNICAST)).unwrap();
    routes.set_interface(11, Some(Interface { port: None, up: true }));
    sent.take(&mut routes);
    assert_eq!(sent.words()[1], "vrf 2: 192.0.2.0/24@0 Host", "the kernel's from now on");
    routes.on_notification(0, true, in_100(RTN_UNICAST)).unwrap();
    sent.take(&mut routes);
    assert_eq!(sent.words(), ["192.0.2.0/24@0 10.0.0.1"]);
}

/// A route without interface is resolved by the routes of its own VRF.
#[test]
fn a_gateway_of_a_vrf_is_found_there() {
    let mut routes = routes(ReplacePolicy::Fpm);
    let vrf = VrfId::new(3);
    let in_7 = RouteMessage { table: 7, ..route("192.0.2.0/24", &[hop(0, "10.1.0.1")]) };
    let ignored = "zebra's routes of tables other than main and those of VRFs";
    assert_eq!(routes.on_notification(0, false, in_7.clone()), Err(Skipped::Ignored(ignored)));
    routes.set_vrfs(&[(7, vrf)].into());
    routes.on_notification(0, false, in_7).unwrap();
    assert_eq!(routes.count(), 1);
    let mut sent = Sent::default();
    sent.take(&mut routes);
    let paths = vec![Path::recursive(vrf, "10.1.0.1".parse().unwrap())];
    assert_eq!(sent.0.into_values().collect::<Vec<_>>(), [RouteKind::Unicast(paths)]);
}

/// Zebra has one route for a prefix, regardless of the metric, and deletes it by the prefix alone.
#[test]
fn zebra_has_one_route_for_a_prefix() {
    let words = after(ReplacePolicy::Fpm, |r| {
        let first = RouteMessage { metric: 20, ..route("192.0.2.0/24", &[hop(10, "10.0.0.1")]) };
        r.on_notification(0, false, first).unwrap();
        let second = RouteMessage { metric: 7, ..route("192.0.2.0/24", &[hop(11, "10.1.0.1")]) };
        r.on_notification(0, false, second).unwrap();
        r.on_notification(0, false, route("198.51.100.0/24", &[hop(11, "10.1.0.1")])).unwrap();
        r.on_notification(0, true, route("198.51.100.0/24", &[])).unwrap();
    });
    assert_eq!(words, ["192.0.2.0/24@7 10.1.0.1"]);
}

#[test]
fn a_reading_takes_away_what_it_did_not_have() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let mut sent = Sent::default();
    let message = |i: u8, via: &str| route(&format!("10.{i}.0.0/16"), &[hop(10, via)]);
    for i in 0..10 {
        routes.on_notification(0, false, message(i, "10.0.0.1")).unwrap();
    }
    sent.take(&mut routes);
    // An abandoned dump leaves no marks.
    routes.begin_sync();
    (0..10).for_each(|i| routes.dumped(message(i, "10.0.0.1")).unwrap());
    routes.begin_sync();
    for i in 0..8 {
        routes.dumped(message(i, if i == 3 { "10.0.0.9" } else { "10.0.0.1" })).unwrap();
    }
    routes.on_notification(0, false, message(9, "10.0.0.1")).unwrap();
    assert_eq!(routes.end_sync(), 1);
    assert_eq!(sent.take(&mut routes), 2, "one is another, one is gone, nothing else is sent");
    assert!(sent.words().contains(&"10.3.0.0/16@0 10.0.0.9".to_owned()));
    assert_eq!(sent.0.len(), 9);
}

#[test]
fn an_audit_finds_each_kind_of_difference() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let message = |i: u8, via: &str| route(&format!("10.{i}.0.0/16"), &[hop(10, via)]);
    for i in 0..6 {
        routes.on_notification(0, false, message(i, "10.0.0.1")).unwrap();
    }
    routes.begin_audit();
    routes.compare(&message(0, "10.0.0.1"));
    routes.compare(&message(1, "10.0.0.9"));
    routes.compare(&message(7, "10.0.0.1"));
    routes.compare(&message(5, "10.0.0.9"));
    // 4 is removed and 5 changes during the dump: no differences.
    routes.on_notification(0, true, message(4, "10.0.0.1")).unwrap();
    routes.on_notification(NLM_F_REPLACE, false, message(5, "10.0.0.9")).unwrap();
    let found = routes.end_audit();
    let count = |difference| found.count(difference);
    assert_eq!(found.compared, 4);
    assert_eq!(count(Difference::Missing), 1, "{found:?}");
    assert_eq!(count(Difference::Other), 1, "{found:?}");
    assert_eq!(count(Difference::Stale), 2, "{found:?}");
    assert!(found.examples(1)[0].contains("10.1.0.0/16"), "{:?}", found.examples(1));
    // A route that the audit found stale is not regarded as seen by the next dump.
    routes.begin_sync();
    assert_eq!(routes.end_sync(), 5);
}

#[test]
fn nexthop_objects_that_change_during_an_audit_and_what_they_take_along_are_no_differences() {
    let mut routes = routes(ReplacePolicy::Kernel);
    let object = |id: u32| NexthopMessage { id, nexthop: Nexthop::Single(hop(10, "10.0.0.1")) };
    let over =
        |id: u32| RouteMessage { nexthop: Some(id), ..route(&format!("10.{id}.0.0/16"), &[]) };
    for id in [1, 2] {
        routes.set_nexthop(object(id)).unwrap();
        routes.on_notification(0, false, over(id)).unwrap();
    }
    routes.begin_audit();
    // 1 and its route are removed behind the dump, 3 is new before it; 4 is the kernel's alone.
    routes.remove_nexthop(1);
    for id in 1..5 {
        routes.compare_nexthop(&object(id));
    }
    for id in [1, 2] {
        routes.compare(&over(id));
    }
    routes.set_nexthop(object(3)).unwrap();
    let found = routes.end_audit();
    assert_eq!(found.examples(9), ["nexthop object 4 is the kernel's and was not known"]);
}

/// A slow model of the rules: for each address the first table with a route decides.
fn slow_lookup(held: &[RouteMessage], order: &[u32], address: IpAddr) -> Option<Hop> {
    for table in order {
        let fits = held.iter().filter(|m| m.table == *table && m.prefix.contains(&address));
        let best = fits.max_by_key(|m| (m.prefix.prefix_len(), std::cmp::Reverse(m.metric)));
        match best {
            Some(message) if message.kind == RTN_THROW => {}
            Some(message) => return Some(message.hops[0]),
            None => {}
        }
    }
    None
}

fn sent_lookup(sent: &Sent, vrf: VrfId, address: IpAddr) -> Option<IpAddr> {
    let fits = sent.0.iter().filter(|((of, prefix, _), _)| *of == vrf && prefix.contains(&address));
    let best = fits.max_by_key(|((_, p, metric), _)| (p.prefix_len(), std::cmp::Reverse(*metric)));
    match best?.1 {
        RouteKind::Unicast(paths) => paths[0].via,
        _ => None,
    }
}

/// Returns all reported routes, reported once more in pieces.
fn recalled(routes: &mut Routes, most: usize) -> BTreeMap<(VrfId, IpNet, u64), RouteKind> {
    let mut next = Some(Recall::default());
    let mut all = BTreeMap::new();
    while let Some(place) = next {
        next = routes.recall(place, most);
        for event in routes.take_events() {
            let SourceEvent::AuditRoute { vrf, prefix, metric, kind, .. } = event else { continue };
            assert_eq!(all.insert((vrf, prefix, metric), kind), None, "{prefix} recalled twice");
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(3),
        ..ProptestConfig::default()
    })]

    /// For any sequence of additions to and removals from three tables, the longest reported prefix
    /// leads to the same next hop as the first table that has a route.
    #[test]
    fn tables_in_order_are_one_table(
        steps in prop::collection::vec(
            (0..3_usize, 0..4_u8, 0..4_u8, 0..2_u32, 0..8_u8, any::<bool>()), 1..40),
        reorder in 0..40_usize,
        vrfs_come in 0..40_usize,
    ) {
        let tables = [100, RT_TABLE_MAIN, RT_TABLE_DEFAULT];
        let mut order = tables.to_vec();
        let mut routes = routes(ReplacePolicy::Kernel);
        routes.set_order(false, order.clone());
        let mut sent = Sent::default();
        let mut held: Vec<RouteMessage> = Vec::new();
        let mut vrfs = Vec::new();
        for (at, (table, byte, len, metric, kind, gone)) in steps.into_iter().enumerate() {
            if at == reorder {
                order.swap(0, 1);
                routes.set_order(false, order.clone());
            }
            if at == vrfs_come {
                vrfs = vec![(RT_TABLE_DEFAULT, VrfId::new(1)), (100, VrfId::new(2))];
                routes.set_vrfs(&vrfs.iter().copied().collect());
            }
            let prefix = format!("10.0.0.{}/{}", u32::from(byte) * 64, [8, 24, 26, 32][usize::from(len)]);
            let via = format!("10.1.{table}.{}", u32::from(byte) * 16 + u32::from(len) * 4 + metric);
            let mut message = route(&prefix, &[hop(10, &via)]);
            message.prefix = message.prefix.trunc();
            message.table = tables[table];
            message.metric = metric;
            if kind == 0 {
                message.kind = RTN_THROW;
                message.hops.clear();
            }
            let same = |m: &RouteMessage| {
                (m.table, m.prefix, m.metric) == (message.table, message.prefix, message.metric)
            };
            if gone {
                if let Some(place) = held.iter().position(same) {
                    let old = held.remove(place);
                    routes.on_notification(0, true, old).unwrap();
                }
            } else {
                held.retain(|m| !same(m));
                held.push(message.clone());
                routes.on_notification(NLM_F_REPLACE, false, message).unwrap();
            }
            sent.take(&mut routes);
            for last in 0..=255_u8 {
                let address: IpAddr = [10, 0, 0, last].into();
                let expected = slow_lookup(&held, &order, address).and_then(|hop| hop.via);
                prop_assert_eq!(sent_lookup(&sent, VrfId::DEFAULT, address), expected, "{}", address);
                for &(table, vrf) in &vrfs {
                    let expected = slow_lookup(&held, &[table], address).and_then(|hop| hop.via);
                    prop_assert_eq!(sent_lookup(&sent, vrf, address), expected, "{}", address);
                }
            }
        }
        prop_assert_eq!(recalled(&mut routes, 3), sent.0.clone());
        routes.set_vrfs(&BTreeMap::new());
        sent.take(&mut routes);
        prop_assert!(sent.0.keys().all(|(vrf, _, _)| *vrf == VrfId::DEFAULT));
    }
}
