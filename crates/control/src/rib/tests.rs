//! Tests of the RIB by example, at its limits, and against a naive model in `model.rs`.

mod model;
mod paths;
mod vrfs;

use std::sync::atomic::{AtomicBool, Ordering};

use fib::{Change, Epochs, Lookup, NextHopId, NoReaders};

use dataplane::next_hop::NextHop;

use super::*;

pub(crate) fn interface(index: u16) -> InterfaceId {
    InterfaceId::new(index).unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, last])
}

/// Two interfaces, 10.0.1.1/24 and 10.0.2.1/24, with corresponding IPv6 addresses.
fn example_ports() -> Vec<RibInterface> {
    let make = |index: u16| RibInterface {
        id: interface(index),
        name: format!("interface{index}"),
        vrf: VrfId::DEFAULT,
        mac: MacAddr([2, 0, 0, 0, 0, index as u8]),
        mtu: 1500,
        addresses: vec![
            net(&format!("10.0.{}.1/24", index + 1)),
            net(&format!("fd00:{}::1/64", index + 1)),
        ],
        is_loopback: false,
    };
    vec![make(0), make(1)]
}

/// A RIB and the forwarders' view of it.
struct Bench {
    rib: Rib,
    table: Arc<NextHopTable>,
    reader4: Arc<dyn Lookup<Ipv4Addr>>,
    reader6: Arc<dyn Lookup<Ipv6Addr>>,
}

impl Bench {
    fn new(grace: impl Fn() -> Box<dyn GracePeriod>) -> Self {
        let fib4 = fib::new_ipv4(fib::Algorithm::default(), grace()).unwrap();
        Self::with_fib(fib4, &grace)
    }

    fn with_fib(fib4: Box<dyn Table<Ipv4Addr>>, grace: impl Fn() -> Box<dyn GracePeriod>) -> Self {
        let fib6 = fib::new_ipv6(fib::Algorithm::default(), grace()).unwrap();
        let table = Arc::new(NextHopTable::new());
        let (reader4, reader6) = (fib4.reader(), fib6.reader());
        let rib = Rib::new(example_ports(), fib4, fib6, table.clone(), grace()).unwrap();
        Self { rib, table, reader4, reader6 }
    }

    fn without_readers() -> Self {
        Self::new(|| Box::new(NoReaders))
    }

    /// Creates VRFs up to this one, moves all interfaces to it and uses its forwarders. The default
    /// VRF has routes to everything, none of which may be found.
    fn move_to(&mut self, vrf: VrfId, grace: impl Fn() -> Box<dyn GracePeriod>) {
        while self.rib.vrfs().all(|known| known != vrf) {
            let fib4 = fib::new_ipv4(fib::Algorithm::default(), grace()).unwrap();
            let fib6 = fib::new_ipv6(fib::Algorithm::default(), grace()).unwrap();
            (self.reader4, self.reader6) = (fib4.reader(), fib6.reader());
            self.rib.add_vrf(fib4, fib6).unwrap();
        }
        for interface in [0, 1].map(interface) {
            self.rib.set_vrf(interface, vrf);
        }
        for prefix in ["0.0.0.0/0", "10.0.1.0/24", "::/0", "fd00:1::/64", "2001:db8::1/128"] {
            let (kind, prefix) = (RouteKind::Blackhole, net(prefix));
            let route =
                Route { vrf: VrfId::DEFAULT, prefix, source: RouteSource::Fpm, kind, metric: 0 };
            self.rib.add(route).unwrap();
        }
    }

    /// Returns the number that a forwarder finds for an address.
    fn id(&self, address: IpAddr) -> u16 {
        match address {
            IpAddr::V4(v4) => self.reader4.lookup(v4),
            IpAddr::V6(v6) => self.reader6.lookup(v6),
        }
    }

    /// Returns the next hop that a forwarder finds.
    fn hop(&self, address: &str) -> NextHop {
        self.table.get(self.id(ip(address))).into()
    }

    /// Returns the numbers in the places of a group.
    fn members(&self, id: u16) -> Vec<u16> {
        let NextHop::Group { len, .. } = self.table.get(id).into() else { return Vec::new() };
        // The smallest hash that multiply-shift maps to each place.
        let hash = |place: u64| (place << 32).div_ceil(u64::from(len)) as u32;
        (0..u64::from(len))
            .map(|place| self.table.select(self.table.get(id), hash(place)))
            .collect()
    }

    fn add(&mut self, prefix: &str, paths: &[(u16, &str, u16)]) -> Result<(), Error> {
        self.rib.add(unicast(prefix, paths))
    }
}

/// Returns a RIB for tests of other modules.
pub(crate) fn two_ports() -> Rib {
    Bench::without_readers().rib
}

fn unicast(prefix: &str, paths: &[(u16, &str, u16)]) -> Route {
    let paths =
        paths.iter().map(|&(p, via, weight)| Path::over(interface(p), ip(via)).weighing(weight));
    Route {
        vrf: VrfId::DEFAULT,
        prefix: net(prefix),
        source: RouteSource::Static,
        kind: RouteKind::Unicast(paths.collect()),
        metric: 0,
    }
}

#[test]
fn routes_are_read_piece_by_piece() {
    let mut bench = Bench::without_readers();
    for n in 0..50 {
        bench.add(&format!("100.0.{n}.0/24"), &[(0, "10.0.1.2", 1)]).unwrap();
        bench.add(&format!("2001:db8:{n:x}::/48"), &[(0, "fd00:1::2", 1)]).unwrap();
    }
    bench.add("100.0.0.0/8", &[(0, "10.0.1.2", 1)]).unwrap();
    let whole: Vec<RouteInfo> = bench.rib.routes().collect();
    for piece in [1, 7, 1000] {
        let mut read: Vec<RouteInfo> = Vec::new();
        loop {
            let start = read.last().map_or(Bound::Unbounded, |last| Bound::Excluded(last.prefix));
            // A prefix's routes stay together.
            let next: Vec<_> = bench.rib.routes_from(VrfId::DEFAULT, start).take(piece).collect();
            let Some(last) = next.last().map(|route| route.prefix) else { break };
            let rest = bench
                .rib
                .routes_from(VrfId::DEFAULT, Bound::Included(last))
                .skip_while(|r| next.contains(r));
            let same: Vec<_> = rest.take_while(|route| route.prefix == last).collect();
            read.extend(next.into_iter().chain(same));
        }
        assert_eq!(read, whole, "in pieces of {piece}");
    }
    let within = bench.rib.routes_from(VrfId::DEFAULT, Bound::Included(net("100.0.0.0/8")));
    assert_eq!(within.take_while(|r| net("100.0.0.0/8").contains(&r.prefix)).count(), 51);
}

#[test]
fn own_addresses_are_published_as_they_come_and_go() {
    use dataplane::own::{OwnAddresses, Owner};
    let mut bench = Bench::without_readers();
    let own = Arc::new(OwnAddresses::new(false));
    bench.rib.share_addresses(own.clone());
    let is_own = |address: &str| own.owner(address.parse().unwrap(), interface(0));
    assert_eq!(is_own("10.0.2.1"), Some(Owner::Router));
    assert_eq!((is_own("10.0.1.255"), is_own("10.0.2.255")), (Some(Owner::Network), None));
    bench.rib.set_addresses(interface(0), &[net("192.0.2.1/24")]).unwrap();
    assert_eq!((is_own("192.0.2.1"), is_own("10.0.1.1")), (Some(Owner::Router), None));
    bench.rib.add_local(VrfId::DEFAULT, net("198.51.100.1/32")).unwrap();
    bench.rib.add_local(VrfId::DEFAULT, net("203.0.113.0/24")).unwrap();
    assert_eq!((is_own("198.51.100.1"), is_own("203.0.113.0")), (Some(Owner::Router), None));
    bench.rib.remove_local(VrfId::DEFAULT, net("198.51.100.1/32"));
    bench.rib.remove_interface(interface(1));
    assert_eq!((is_own("198.51.100.1"), is_own("10.0.2.1")), (None, None));
}

#[test]
fn a_loopback_has_addresses_and_no_link() {
    let mut bench = Bench::without_readers();
    let addresses = ["192.0.2.9/32", "198.51.100.1/24", "2001:db8::1/64"].map(net).to_vec();
    let loopback = RibInterface {
        id: interface(64),
        name: "lo0".into(),
        is_loopback: true,
        addresses: addresses.clone(),
        ..example_ports().remove(0)
    };
    bench.rib.add_interface(loopback).unwrap();
    bench.rib.add(unicast("203.0.113.0/24", &[(64, "198.51.100.7", 1)])).unwrap();
    for link in [true, false] {
        bench.rib.set_link(interface(64), link);
        for own in ["192.0.2.9", "198.51.100.1", "2001:db8::1", "198.51.100.255"] {
            assert_eq!(bench.hop(own), NextHop::Local, "{own}");
        }
        for other in ["198.51.100.7", "2001:db8::7"] {
            assert_eq!(bench.hop(other), NextHop::Unreachable, "{other}");
        }
        assert_eq!(bench.hop("203.0.113.1"), NextHop::NoRoute, "no path leads over it");
    }
    // The address of another interface as well (unnumbered): it stays with the one that stays.
    let both = [net("10.0.1.1/24"), net("192.0.2.9/32")];
    bench.rib.set_addresses(interface(0), &both).unwrap();
    bench.rib.set_addresses(interface(64), &addresses[1..]).unwrap();
    assert_eq!(bench.hop("192.0.2.9"), NextHop::Local);
    bench.rib.set_addresses(interface(0), &both[..1]).unwrap();
    assert_eq!(bench.hop("192.0.2.9"), NextHop::NoRoute);
    bench.rib.remove_interface(interface(64));
    assert_eq!(bench.hop("198.51.100.7"), NextHop::NoRoute);
}

#[test]
fn class_e_is_forwarded_if_it_is_accepted() {
    let mut bench = Bench::without_readers();
    let route = |to: &str| unicast(to, &[(0, "10.0.1.2", 1)]);
    let refused = bench.rib.add(route("240.1.0.0/16")).unwrap_err().to_string();
    assert!(refused.contains("class_e = true"), "{refused}");
    assert!(bench.rib.add_local(VrfId::DEFAULT, net("240.9.9.9/32")).is_err());
    // An address that an interface had before is used from then on.
    let addresses = ["10.0.1.1/24", "250.0.0.1/24"].map(net);
    bench.rib.set_addresses(interface(0), &addresses).unwrap();
    assert_eq!(bench.hop("250.0.0.7"), NextHop::Martian);
    bench.rib.accept_class_e(true);
    assert_eq!(bench.hop("250.0.0.7"), NextHop::Glean { interface: interface(0) });
    assert_eq!(bench.hop("250.0.0.1"), NextHop::Local);
    assert_eq!(bench.hop("240.0.0.1"), NextHop::NoRoute);
    assert_eq!(bench.hop("255.255.255.255"), NextHop::Local);
    assert_eq!(bench.hop("10.0.1.7"), NextHop::Glean { interface: interface(0) });
    bench.rib.add(route("240.1.0.0/16")).unwrap();
    assert_ne!(bench.hop("240.1.2.3"), NextHop::NoRoute);
    bench.rib.add(route("255.255.255.255/32")).unwrap_err();
}

#[test]
fn routes_to_class_e_are_held_while_it_is_not_accepted() {
    let mut bench = Bench::without_readers();
    let from = |source, to: &str| Route { source, ..unicast(to, &[(0, "10.0.1.2", 1)]) };
    let is_held = |bench: &mut Bench, source, to: &str| {
        let error = bench.rib.add(from(source, to)).unwrap_err();
        assert!(error.to_string().contains("class_e = true"), "{error}");
        error.is_waiting()
    };
    let held = [(RouteSource::Kernel, "240.1.0.0/16"), (RouteSource::Fpm, "241.0.0.0/8")];
    assert!(held.iter().all(|(source, to)| is_held(&mut bench, *source, to)));
    assert!(!is_held(&mut bench, RouteSource::Command, "242.0.0.0/8"), "its operator is told");
    assert_eq!(bench.rib.routes_to(VrfId::DEFAULT, net("242.0.0.0/8")).count(), 0);
    bench.rib.add_local(VrfId::DEFAULT, net("243.0.0.1/32")).unwrap_err();
    bench.rib.neighbour_up(interface(0), ip("250.0.0.7"), mac(7)).unwrap();
    bench.rib.set_addresses(interface(0), &["10.0.1.1/24", "250.0.0.1/24"].map(net)).unwrap();
    // A gateway in the range is reached as long as the range is.
    bench
        .rib
        .add(Route {
            kind: RouteKind::Unicast(vec![Path::recursive(VrfId::DEFAULT, ip("240.1.9.9"))]),
            ..from(RouteSource::Kernel, "99.0.0.0/8")
        })
        .unwrap();
    let inactive = |bench: &Bench, to: &str| {
        bench.rib.routes_to(VrfId::DEFAULT, net(to)).next().unwrap().inactive
    };
    let all =
        ["240.1.2.3", "241.0.0.1", "243.0.0.1", "250.0.0.1", "250.0.0.7", "250.0.0.8", "244.0.0.1"];
    for round in 0..2 {
        for address in all {
            assert_eq!(bench.hop(address), NextHop::Martian, "{address} in round {round}");
        }
        assert_eq!(bench.hop("99.0.0.1"), NextHop::NoRoute);
        assert_eq!(bench.hop("255.255.255.255"), NextHop::Local);
        assert_eq!(inactive(&bench, "240.1.0.0/16"), Some(Inactive::NotAccepted));
        assert!(!bench.rib.has_route(VrfId::DEFAULT, net("240.1.0.0/16"), |_, _| true));
        bench.rib.accept_class_e(true);
        for address in ["240.1.2.3", "241.0.0.1"] {
            let hop = bench.hop(address);
            assert!(matches!(hop, NextHop::Unresolved { .. }), "{address}: {hop:?}");
        }
        assert!(matches!(bench.hop("99.0.0.1"), NextHop::Group { .. }), "by the route to it");
        assert_eq!(bench.hop("243.0.0.1"), NextHop::Local);
        assert_eq!(bench.hop("250.0.0.1"), NextHop::Local);
        assert!(matches!(bench.hop("250.0.0.7"), NextHop::Forward { .. }));
        assert_eq!(bench.hop("250.0.0.8"), NextHop::Glean { interface: interface(0) });
        assert_eq!(bench.hop("244.0.0.1"), NextHop::NoRoute);
        assert_eq!(inactive(&bench, "240.1.0.0/16"), None);
        assert!(bench.rib.has_route(VrfId::DEFAULT, net("240.1.0.0/16"), |_, _| true));
        bench.rib.accept_class_e(false);
    }
    // Their sources withdraw them like others.
    bench.rib.remove(VrfId::DEFAULT, net("240.1.0.0/16"), RouteSource::Kernel);
    bench.rib.begin_resync(RouteSource::Fpm);
    assert_eq!(bench.rib.end_resync(RouteSource::Fpm), 1);
    bench.rib.accept_class_e(true);
    assert_eq!(bench.hop("240.1.2.3"), NextHop::NoRoute);
    assert_eq!(bench.hop("241.0.0.1"), NextHop::NoRoute);
}

#[test]
fn ports_make_connected_local_and_reserved_routes() {
    let bench = Bench::without_readers();
    for (address, hop) in [
        ("10.0.1.1", NextHop::Local),
        ("10.0.1.255", NextHop::Local),
        ("10.0.1.7", NextHop::Glean { interface: interface(0) }),
        ("10.0.2.7", NextHop::Glean { interface: interface(1) }),
        ("224.0.0.5", NextHop::Multicast),
        ("255.255.255.255", NextHop::Local),
        ("127.0.0.1", NextHop::Martian),
        ("0.1.2.3", NextHop::Martian),
        ("240.0.0.1", NextHop::Martian),
        ("8.8.8.8", NextHop::NoRoute),
        ("fd00:1::1", NextHop::Local),
        ("fd00:1::", NextHop::Local),
        ("fd00:1::7", NextHop::Glean { interface: interface(0) }),
        ("fe80::1", NextHop::Local),
        ("ff02::1", NextHop::Multicast),
        ("::", NextHop::Martian),
        ("::1", NextHop::Martian),
        ("2001:db8::1", NextHop::NoRoute),
    ] {
        assert_eq!(bench.hop(address), hop, "{address}");
    }
}

#[test]
fn point_to_point_networks_have_no_broadcast() {
    let mut interfaces = example_ports();
    interfaces[0].addresses = vec![net("192.0.2.0/31"), net("2001:db8::/127"), net("192.0.2.9/32")];
    let fib4 = fib::new_ipv4(fib::Algorithm::default(), Box::new(NoReaders)).unwrap();
    let fib6 = fib::new_ipv6(fib::Algorithm::default(), Box::new(NoReaders)).unwrap();
    let table = Arc::new(NextHopTable::new());
    let (reader4, reader6) = (fib4.reader(), fib6.reader());
    Rib::new(interfaces, fib4, fib6, table.clone(), Box::new(NoReaders)).unwrap();
    let hop4 = |text: &str| NextHop::from(table.get(reader4.lookup(text.parse().unwrap())));
    let hop6 = |text: &str| NextHop::from(table.get(reader6.lookup(text.parse().unwrap())));
    let glean = NextHop::Glean { interface: interface(0) };
    assert_eq!((hop4("192.0.2.0"), hop4("192.0.2.1")), (NextHop::Local, glean));
    assert_eq!((hop6("2001:db8::"), hop6("2001:db8::1")), (NextHop::Local, glean));
    assert_eq!((hop4("192.0.2.9"), hop4("192.0.2.8")), (NextHop::Local, NextHop::NoRoute));
}

#[test]
fn a_gateway_is_one_next_hop_for_all_its_routes_and_resolves_with_one_store() {
    let mut bench = Bench::without_readers();
    bench.add("198.51.100.0/24", &[(1, "10.0.2.2", 1)]).unwrap();
    bench.add("0.0.0.0/0", &[(1, "10.0.2.2", 1)]).unwrap();
    let id = bench.id(ip("198.51.100.1"));
    assert_eq!(id, bench.id(ip("8.8.8.8")));
    assert_eq!(bench.hop("8.8.8.8"), NextHop::Unresolved { interface: interface(1) });
    let told = Command::NextHop { id, interface: interface(1), address: ip("10.0.2.2") };
    assert_eq!(bench.rib.drain_commands(), [told]);
    bench.rib.neighbour_up(interface(1), ip("10.0.2.2"), mac(2)).unwrap();
    let forward = NextHop::Forward { interface: interface(1), mac: mac(2) };
    assert_eq!((bench.hop("8.8.8.8"), bench.hop("10.0.2.2")), (forward, forward));
    bench.rib.neighbour_down(interface(1), ip("10.0.2.2"));
    assert_eq!(bench.hop("8.8.8.8"), NextHop::Unresolved { interface: interface(1) });
    assert_eq!(bench.hop("10.0.2.2"), NextHop::Glean { interface: interface(1) });
    assert_eq!(bench.rib.remove(VrfId::DEFAULT, net("0.0.0.0/0"), RouteSource::Static), 1);
    assert_eq!(bench.rib.drain_commands(), []);
    assert_eq!(bench.rib.remove(VrfId::DEFAULT, net("198.51.100.0/24"), RouteSource::Static), 1);
    assert_eq!(bench.rib.drain_commands(), [Command::RemoveNextHop { id }]);
}

#[test]
fn a_link_local_gateway_gets_no_host_route() {
    let mut bench = Bench::without_readers();
    bench.add("::/0", &[(1, "fe80::2", 1)]).unwrap();
    bench.rib.neighbour_up(interface(1), ip("fe80::2"), mac(2)).unwrap();
    assert_eq!(bench.hop("2001:db8::1"), NextHop::Forward { interface: interface(1), mac: mac(2) });
    assert_eq!(bench.hop("fe80::2"), NextHop::Local);
    bench.rib.neighbour_up(interface(0), ip("fe80::2"), mac(3)).unwrap();
    assert_eq!(bench.hop("2001:db8::1"), NextHop::Forward { interface: interface(1), mac: mac(2) });
}

#[test]
fn equal_cost_paths_share_a_group_and_weights_are_reduced() {
    let mut bench = Bench::without_readers();
    bench.add("198.51.100.0/24", &[(0, "10.0.1.2", 20), (1, "10.0.2.2", 60)]).unwrap();
    bench.add("203.0.113.0/24", &[(1, "10.0.2.2", 3), (0, "10.0.1.2", 1)]).unwrap();
    let group = bench.id(ip("198.51.100.1"));
    assert_eq!(group, bench.id(ip("203.0.113.1")), "the same set in another order");
    let members = bench.members(group);
    assert_eq!(members.len(), 4);
    let to_right = members.iter().filter(|&&id| {
        NextHop::from(bench.table.get(id)) == NextHop::Unresolved { interface: interface(1) }
    });
    assert_eq!(to_right.count(), 3);
    let info = bench.rib.lookup(VrfId::DEFAULT, ip("198.51.100.1")).unwrap();
    assert_eq!(info.next_hop, group);
    let Target::Unicast(paths) = info.route.target else { panic!("not unicast") };
    let shares: Vec<_> = paths.iter().map(|path| (path.via, path.weight)).collect();
    assert_eq!(shares, [(Some(ip("10.0.1.2")), 1), (Some(ip("10.0.2.2")), 3)]);
    // Both paths over one gateway need no group.
    bench.add("192.0.2.0/24", &[(0, "10.0.1.2", 1), (0, "10.0.1.2", 5)]).unwrap();
    assert_eq!(bench.hop("192.0.2.1"), NextHop::Unresolved { interface: interface(0) });
    // A gateway given twice has the sum of its weights, before they are reduced.
    let twice = [(0, "10.0.1.2", 1), (0, "10.0.1.2", 1), (1, "10.0.2.2", 2)];
    bench.add("192.0.2.0/24", &twice).unwrap();
    assert_eq!(bench.members(bench.id(ip("192.0.2.1"))).len(), 2);
}

#[test]
fn the_best_source_wins_and_the_next_takes_over() {
    let mut bench = Bench::without_readers();
    let prefix = net("198.51.100.0/24");
    let route = |source, kind, metric| Route { vrf: VrfId::DEFAULT, prefix, source, kind, metric };
    bench.rib.add(route(RouteSource::Import, RouteKind::Blackhole, 0)).unwrap();
    bench.rib.add(route(RouteSource::Static, RouteKind::Prohibited, 5)).unwrap();
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Prohibited);
    bench.rib.add(route(RouteSource::Static, RouteKind::Unreachable, 1)).unwrap();
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Unreachable);
    let infos: Vec<_> = bench.rib.routes_within(VrfId::DEFAULT, prefix).collect();
    let shown: Vec<_> = infos.iter().map(|i| (i.source, i.metric, i.active)).collect();
    assert_eq!(
        shown,
        [
            (RouteSource::Static, 1, true),
            (RouteSource::Static, 5, false),
            (RouteSource::Import, 0, false)
        ]
    );
    assert!(bench.rib.remove_one(VrfId::DEFAULT, prefix, RouteSource::Static, 1));
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Prohibited);
    assert_eq!(bench.rib.remove(VrfId::DEFAULT, prefix, RouteSource::Static), 1);
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Blackhole);
    assert_eq!(bench.rib.remove(VrfId::DEFAULT, prefix, RouteSource::Import), 1);
    assert_eq!(bench.hop("198.51.100.1"), NextHop::NoRoute);
    assert_eq!(
        bench.rib.remove(VrfId::DEFAULT, net("10.0.1.0/24"), RouteSource::Connected),
        0,
        "the RIB's own stay"
    );
}

#[test]
fn routes_are_listed_in_order() {
    let mut bench = Bench::without_readers();
    bench.add("198.51.100.0/24", &[(1, "10.0.2.2", 1)]).unwrap();
    bench.add("0.0.0.0/0", &[(1, "10.0.2.2", 1)]).unwrap();
    bench.add("2001:db8::/32", &[(1, "fe80::2", 1)]).unwrap();
    let shown: Vec<String> = bench.rib.routes().map(|info| info.prefix.to_string()).collect();
    let expected = "0.0.0.0/0 0.0.0.0/8 10.0.1.0/24 10.0.1.1/32 10.0.1.255/32 10.0.2.0/24 \
                    10.0.2.1/32 10.0.2.255/32 127.0.0.0/8 198.51.100.0/24 224.0.0.0/4 240.0.0.0/4 \
                    255.255.255.255/32 ::/128 ::1/128 2001:db8::/32 fd00:1::/64 fd00:1::/128 \
                    fd00:1::1/128 fd00:2::/64 fd00:2::/128 fd00:2::1/128 fe80::/10 ff00::/8";
    assert_eq!(shown.join(" "), expected);
}

#[test]
fn a_static_route_within_a_network_keeps_its_meaning_for_neighbours() {
    let mut bench = Bench::without_readers();
    bench.rib.neighbour_up(interface(0), ip("10.0.1.9"), mac(9)).unwrap();
    let forward = NextHop::Forward { interface: interface(0), mac: mac(9) };
    assert_eq!(bench.hop("10.0.1.9"), forward);
    bench.rib.add(Route { kind: RouteKind::Blackhole, ..unicast("10.0.1.8/29", &[]) }).unwrap();
    assert_eq!(bench.hop("10.0.1.9"), NextHop::Blackhole);
    bench.rib.neighbour_up(interface(0), ip("10.0.1.9"), mac(10)).unwrap();
    assert_eq!(bench.hop("10.0.1.9"), NextHop::Blackhole);
    bench.rib.remove(VrfId::DEFAULT, net("10.0.1.8/29"), RouteSource::Static);
    assert_eq!(bench.hop("10.0.1.9"), NextHop::Forward { interface: interface(0), mac: mac(10) });
    // A neighbour that claims to be on the other interface does not attract traffic there.
    bench.rib.neighbour_up(interface(1), ip("10.0.1.33"), mac(11)).unwrap();
    assert_eq!(bench.hop("10.0.1.33"), NextHop::Glean { interface: interface(0) });
    // A neighbour that claims an address of the router does not either.
    bench.rib.neighbour_up(interface(0), ip("10.0.1.1"), mac(12)).unwrap();
    assert_eq!(bench.hop("10.0.1.1"), NextHop::Local);
}

#[test]
fn routes_that_cannot_be_are_refused_and_counted() {
    let mut bench = Bench::without_readers();
    let many = [(0, "10.0.1.2", 1); 129];
    for (route, message) in [
        (
            unicast("198.51.100.7/24", &[(0, "10.0.1.2", 1)]),
            "route 198.51.100.7/24: host bits are set; the prefix is 198.51.100.0/24",
        ),
        (
            unicast("127.0.0.0/16", &[(0, "10.0.1.2", 1)]),
            "route 127.0.0.0/16: lies in 127.0.0.0/8 (loopback), which is never forwarded",
        ),
        (unicast("0.0.0.0/0", &[]), "route 0.0.0.0/0: 0 paths; it has 1 to 128"),
        (unicast("0.0.0.0/0", &many), "route 0.0.0.0/0: 129 paths; it has 1 to 128"),
        (
            unicast("0.0.0.0/0", &[(0, "10.0.1.2", 0)]),
            "route 0.0.0.0/0: weight 0 of path 10.0.1.2; a weight is 1 to 256",
        ),
        (
            unicast("0.0.0.0/0", &[(2, "10.0.1.2", 1)]),
            "route 0.0.0.0/0: next hop 10.0.1.2 is on interface 2, which this router does not have",
        ),
        (
            Route { source: RouteSource::Local, ..unicast("8.8.8.8/32", &[(0, "10.0.1.2", 1)]) },
            "route 8.8.8.8/32: local routes follow from interfaces and neighbours; they cannot be set",
        ),
    ] {
        assert_eq!(bench.rib.add(route).unwrap_err().to_string(), message);
    }
    assert_eq!(bench.rib.summary().refused, 7);
    assert_eq!(bench.rib.summary().next_hops, 2, "nothing is left of refused routes");
}

#[test]
fn running_out_of_next_hops_is_an_error_and_heals() {
    let mut bench = Bench::without_readers();
    let gateway = |i: u32| IpAddr::from(Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(i)));
    let prefix =
        |i: u32| IpNet::from(IpAddr::from(Ipv6Addr::from(0x2001_u128 << 112 | u128::from(i))));
    let route = |i: u32| Route {
        vrf: VrfId::DEFAULT,
        prefix: prefix(i),
        source: RouteSource::Static,
        kind: RouteKind::Unicast(vec![Path::over(interface(0), gateway(i))]),
        metric: 0,
    };
    // Two numbers are the interfaces' gleans, 16 are reserved.
    let room = dataplane::next_hop::NEXT_HOPS as u32 - 16 - 2;
    let report = bench.rib.load((0..room + 3).map(route));
    assert_eq!((report.accepted, report.refused), (room as usize, 3));
    assert_eq!(
        report.errors[0].to_string(),
        format!(
            "route {}: all 32768 next hops are in use, it waits for one; let routes share gateways, or remove some",
            prefix(room)
        )
    );
    assert_eq!(bench.id(prefix(room).addr()), 0);
    let number = bench.id(prefix(7).addr());
    let generation = bench.table.generation(number);
    assert_eq!(bench.rib.remove(VrfId::DEFAULT, prefix(7), RouteSource::Static), 1);
    bench.rib.add(route(room)).unwrap();
    assert_eq!(bench.id(prefix(room).addr()), number, "the only one that is free");
    let known = bench.table.get_of(number, generation);
    assert_eq!(known, None, "a packet that waits with the number must not take it for the old one");
}

#[test]
fn running_out_of_group_places_is_an_error_and_leaves_nothing() {
    let mut bench = Bench::without_readers();
    // 16 gateways with weights 1 and 256 except for one: about 4000 places a group, 65 groups.
    let mut refused = None;
    for i in 0..100u32 {
        let paths: Vec<Path> = (0..16u32)
            .map(|j| {
                let weight = if j == i % 16 { 255 - (i / 16) as u16 } else { 253 };
                Path::over(interface(0), Ipv4Addr::from(0x0a00_0102 + j).into()).weighing(weight)
            })
            .collect();
        let prefix = IpNet::from(IpAddr::from(Ipv4Addr::from(0xc633_6400 + i)));
        let kind = RouteKind::Unicast(paths);
        if let Err(error) = bench.rib.add(Route {
            vrf: VrfId::DEFAULT,
            prefix,
            source: RouteSource::Static,
            kind,
            metric: 0,
        }) {
            refused.get_or_insert((prefix, error));
        }
    }
    let (prefix, error) = refused.expect("the places are used up");
    assert!(matches!(error, Error::GroupsFull { .. }), "{error}");
    assert_eq!(bench.id(prefix.addr()), 0);
    assert!(
        error
            .to_string()
            .contains("among 262144 places, it waits for room; use fewer paths or smaller weights")
    );
    for i in 0..100u32 {
        bench.rib.remove(
            VrfId::DEFAULT,
            IpNet::from(IpAddr::from(Ipv4Addr::from(0xc633_6400 + i))),
            RouteSource::Static,
        );
    }
    bench.rib.tick();
    let summary = bench.rib.summary();
    assert_eq!((summary.next_hops, summary.next_hops_waiting, summary.group_places), (2, 0, 0));
}

#[test]
fn a_number_keeps_its_meaning_until_readers_have_let_go() {
    let epochs = Epochs::default();
    let reader = epochs.register();
    let mut bench = Bench::new(|| Box::new(epochs.clone()));
    let paths = [(0, "10.0.1.2", 1), (1, "10.0.2.2", 1)];
    bench.add("198.51.100.0/24", &paths).unwrap();
    let id = bench.id(ip("198.51.100.1"));
    let (before, members) = (bench.table.get(id), bench.members(id));
    bench.rib.remove(VrfId::DEFAULT, net("198.51.100.0/24"), RouteSource::Static);
    for i in 3..9u16 {
        let (left, right) = (format!("10.0.1.{i}"), format!("10.0.2.{i}"));
        let prefix = format!("203.0.113.{i}/32");
        bench.add(&prefix, &[(0, &left, 1), (1, &right, 1)]).unwrap();
    }
    assert!(bench.rib.tick() > 0);
    assert_eq!(bench.table.get(id), before);
    assert_eq!(bench.members(id), members);
    assert!(members.iter().all(|&m| NextHop::from(bench.table.get(m)) != NextHop::NoRoute));
    reader.quiescent();
    assert_eq!(bench.rib.tick(), 0);
    assert_eq!(NextHop::from(bench.table.get(id)), NextHop::NoRoute);
}

/// A FIB that refuses insertions while its flag is set.
struct Moody(Box<dyn Table<Ipv4Addr>>, Arc<AtomicBool>);

impl Moody {
    fn check(&self) -> Result<(), fib::Error> {
        if self.1.load(Ordering::Relaxed) {
            return Err(fib::Error::Stalled { structure: "moody", waiting: 1 });
        }
        Ok(())
    }
}

impl Table<Ipv4Addr> for Moody {
    fn reader(&self) -> Arc<dyn Lookup<Ipv4Addr>> {
        self.0.reader()
    }
    fn insert(
        &mut self,
        prefix: Prefix<Ipv4Addr>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, fib::Error> {
        self.check()?;
        self.0.insert(prefix, next_hop)
    }
    fn remove(&mut self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
        self.0.remove(prefix)
    }
    fn get(&self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
        self.0.get(prefix)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn memory_bytes(&self) -> usize {
        self.0.memory_bytes()
    }
    fn writer_bytes(&self) -> usize {
        self.0.writer_bytes()
    }
    fn apply(&mut self, changes: &[Change<Ipv4Addr>]) -> Result<(), fib::Error> {
        self.check()?;
        self.0.apply(changes)
    }
    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv4Addr>, NextHopId)>,
    ) -> Result<(), fib::Error> {
        if self.check().is_err() {
            // There is room for the first of the routes.
            if let Some((prefix, next_hop)) = routes.next() {
                self.0.insert(prefix, next_hop)?;
            }
            self.check()?;
        }
        self.0.load(routes)
    }
    fn collect(&mut self) -> usize {
        self.0.collect()
    }
    fn name(&self) -> &'static str {
        "moody"
    }
}

#[test]
fn twins_have_the_same_routes_until_one_has_no_room() {
    let empty = |algorithm| {
        let fib6 = fib::new_ipv6(algorithm, Box::new(NoReaders)).unwrap();
        (fib::new_ipv4(algorithm, Box::new(NoReaders)).unwrap(), fib6)
    };
    let mut bench = Bench::without_readers();
    let blackhole = |prefix: &str| Route { kind: RouteKind::Blackhole, ..unicast(prefix, &[]) };
    bench.rib.add(blackhole("198.51.100.0/24")).unwrap();
    let refuses = Arc::new(AtomicBool::new(false));
    let (inner, fib6) = empty(fib::Algorithm::Reference);
    let other = (inner.reader(), fib6.reader());
    let fib4 = Box::new(Moody(inner, refuses.clone()));
    assert!(!bench.rib.swap_twins(), "there are none");
    bench.rib.add_twins(VrfId::DEFAULT, fib4, fib6).unwrap();
    bench.rib.add(blackhole("203.0.113.0/24")).unwrap();
    bench.rib.add(blackhole("2001:db8::/32")).unwrap();
    let many = (0..1500u32).map(|i| blackhole(&format!("192.{}.{}.0/24", 8 + i / 256, i % 256)));
    bench.rib.load(many);
    bench.rib.remove(VrfId::DEFAULT, net("192.8.0.0/24"), RouteSource::Static);
    let addresses = ["198.51.100.1", "203.0.113.1", "192.9.1.1", "192.8.0.1", "10.0.1.1"];
    let of = |reader: &Arc<dyn Lookup<Ipv4Addr>>| {
        addresses.map(|address| reader.lookup(address.parse().unwrap()))
    };
    assert_eq!(of(&bench.reader4), of(&other.0));
    assert_ne!(of(&other.0)[0], of(&other.0)[3], "one was removed");
    assert_eq!(other.1.lookup("2001:db8::1".parse().unwrap()), bench.id(ip("2001:db8::1")));

    assert!(bench.rib.swap_twins());
    assert_eq!(bench.rib.summary().fib4_structure, "moody");
    // The RIB goes by the FIB that it has now, and its former one still has every route.
    bench.rib.remove(VrfId::DEFAULT, net("203.0.113.0/24"), RouteSource::Static);
    assert_eq!(of(&bench.reader4), of(&other.0));
    refuses.store(true, Ordering::Relaxed);
    assert!(bench.rib.add(blackhole("192.0.2.0/24")).is_err());
    assert_eq!(bench.hop("192.0.2.1"), NextHop::NoRoute);
    // Swapped back, the one without room is lost with its first refusal, and the FIB goes on.
    assert!(bench.rib.swap_twins());
    bench.rib.tick();
    assert_eq!(bench.hop("192.0.2.1"), NextHop::Blackhole);
    assert!(!bench.rib.swap_twins());
}

#[test]
fn a_fib_without_room_refuses_routes_and_loses_none() {
    let refuses = Arc::new(AtomicBool::new(false));
    let set = |value| refuses.store(value, Ordering::Relaxed);
    let inner = fib::new_ipv4(fib::Algorithm::Reference, Box::new(NoReaders)).unwrap();
    let fib4 = Box::new(Moody(inner, refuses.clone()));
    let mut bench = Bench::with_fib(fib4, || Box::new(NoReaders));
    let blackhole = |prefix: &str| Route { kind: RouteKind::Blackhole, ..unicast(prefix, &[]) };
    bench.add("198.51.100.0/24", &[(0, "10.0.1.2", 1)]).unwrap();
    bench.rib.add(Route { source: RouteSource::Import, ..blackhole("198.51.100.0/24") }).unwrap();
    let before = bench.hop("198.51.100.1");

    set(true);
    let error = bench.rib.add(blackhole("198.51.100.0/24")).unwrap_err();
    assert!(error.to_string().starts_with("route 198.51.100.0/24: the moody table has no room"));
    assert!(error.is_waiting() && error.to_string().ends_with("it is tried again"), "{error}");
    assert_eq!(bench.hop("198.51.100.1"), before, "the FIB has what it had");
    assert!(bench.rib.add(blackhole("203.0.113.0/24")).is_err());
    let info = bench.rib.lookup(VrfId::DEFAULT, ip("203.0.113.1")).unwrap();
    assert_eq!((info.next_hop, info.route.inactive), (0, Some(Inactive::Pending)));
    assert_eq!(bench.rib.summary().pending, 2);

    // A bulk load accepts the routes for which there is room and reports the others.
    let many = (0..1500u32).map(|i| blackhole(&format!("192.{}.{}.0/24", 8 + i / 256, i % 256)));
    let report = bench.rib.load(many);
    assert_eq!((report.accepted, report.refused), (1, 1499));
    assert_eq!(report.errors.len(), LoadReport::ERRORS_KEPT);
    assert_eq!(bench.hop("192.8.0.1"), NextHop::Blackhole);
    assert_eq!(bench.hop("192.8.1.1"), NextHop::NoRoute);

    // A removal whose successor has no room keeps the old route and its next hop until later.
    bench.rib.remove(VrfId::DEFAULT, net("198.51.100.0/24"), RouteSource::Static);
    assert_eq!((bench.hop("198.51.100.1"), bench.rib.summary().pending), (before, 1501));
    assert!(!bench.rib.lookup(VrfId::DEFAULT, ip("198.51.100.1")).unwrap().route.active);
    set(false);
    bench.rib.tick();
    for address in ["198.51.100.1", "203.0.113.1", "192.8.1.1", "192.13.219.1"] {
        assert_eq!(bench.hop(address), NextHop::Blackhole, "{address}");
    }
    assert_eq!((bench.rib.summary().pending, bench.rib.summary().next_hops), (0, 2));
    assert_eq!(bench.rib.summary().refused, 1501);
}
