//! Several VRFs, by example.

use super::*;

const BLUE: VrfId = VrfId::new(1);
const RED: VrfId = VrfId::new(2);

/// Interface 0 in VRF blue, interface 1 in VRF red, both 10.0.1.1/24, and one in the default VRF as well.
struct World {
    bench: Bench,
    readers: Vec<Arc<dyn Lookup<Ipv4Addr>>>,
}

impl World {
    fn new() -> Self {
        let mut bench = Bench::without_readers();
        let mut readers = vec![bench.reader4.clone()];
        for expected in [BLUE, RED] {
            let fib4 = fib::new_ipv4(fib::Algorithm::default(), Box::new(NoReaders)).unwrap();
            let fib6 = fib::new_ipv6(fib::Algorithm::default(), Box::new(NoReaders)).unwrap();
            readers.push(fib4.reader());
            assert_eq!(bench.rib.add_vrf(fib4, fib6), Ok(expected));
        }
        let third = RibInterface { id: interface(2), ..example_ports()[0].clone() };
        bench.rib.add_interface(third).unwrap();
        for (index, vrf) in [(0, BLUE), (1, RED)] {
            bench.rib.set_vrf(interface(index), vrf);
            bench.rib.set_addresses(interface(index), &[net("10.0.1.1/24")]).unwrap();
        }
        Self { bench, readers }
    }

    /// Returns the next hop that a forwarder finds.
    fn hop(&self, vrf: VrfId, address: &str) -> NextHop {
        let IpAddr::V4(address) = ip(address) else { panic!("IPv4 only") };
        self.bench.table.get(self.readers[vrf.index()].lookup(address)).into()
    }

    fn add(&mut self, vrf: VrfId, prefix: &str, path: Path) {
        let kind = RouteKind::Unicast(vec![path]);
        let route =
            Route { vrf, prefix: net(prefix), source: RouteSource::Static, kind, metric: 0 };
        self.bench.rib.add(route).unwrap();
    }

    fn up(&mut self, index: u16, address: &str, last: u8) {
        self.bench.rib.neighbour_up(interface(index), ip(address), mac(last)).unwrap();
    }
}

fn forward(index: u16, last: u8) -> NextHop {
    NextHop::Forward { interface: interface(index), mac: mac(last) }
}

fn glean(index: u16) -> NextHop {
    NextHop::Glean { interface: interface(index) }
}

#[test]
fn connected_networks_and_neighbours_are_those_of_the_interface_s_vrf() {
    let mut world = World::new();
    for (vrf, index) in [(BLUE, 0), (RED, 1), (VrfId::DEFAULT, 2)] {
        assert_eq!(world.hop(vrf, "10.0.1.7"), glean(index));
        assert_eq!(world.hop(vrf, "10.0.1.1"), NextHop::Local);
        world.up(index, "10.0.1.7", index as u8 + 1);
    }
    for (vrf, index) in [(BLUE, 0), (RED, 1), (VrfId::DEFAULT, 2)] {
        assert_eq!(world.hop(vrf, "10.0.1.7"), forward(index, index as u8 + 1), "{vrf:?}");
    }
    world.bench.rib.neighbour_down(interface(0), ip("10.0.1.7"));
    assert_eq!(world.hop(BLUE, "10.0.1.7"), glean(0));
    assert_eq!(world.hop(RED, "10.0.1.7"), forward(1, 2));
    assert_eq!(world.hop(BLUE, "127.0.0.1"), NextHop::Martian);
}

#[test]
fn one_prefix_leads_elsewhere_in_each_vrf() {
    let mut world = World::new();
    world.add(BLUE, "192.0.2.0/24", Path::over(interface(0), ip("10.0.1.7")));
    world.add(RED, "192.0.2.0/24", Path::recursive(RED, ip("10.0.1.7")));
    world.up(0, "10.0.1.7", 1);
    world.up(1, "10.0.1.7", 2);
    assert_eq!(world.hop(BLUE, "192.0.2.1"), forward(0, 1));
    assert_eq!(world.hop(RED, "192.0.2.1"), forward(1, 2));
    assert_eq!(world.hop(VrfId::DEFAULT, "192.0.2.1"), NextHop::NoRoute);
    let rib = &mut world.bench.rib;
    assert_eq!(rib.lookup(RED, ip("192.0.2.1")).unwrap().route.vrf, RED);
    let shown: Vec<_> =
        rib.routes().filter(|r| r.source == RouteSource::Static).map(|r| r.vrf).collect();
    assert_eq!(shown, [BLUE, RED]);
    assert_eq!(rib.remove(VrfId::DEFAULT, net("192.0.2.0/24"), RouteSource::Static), 0);
    assert!(rib.remove_one(BLUE, net("192.0.2.0/24"), RouteSource::Static, 0));
    assert_eq!(world.hop(BLUE, "192.0.2.1"), NextHop::NoRoute);
    assert_eq!(world.hop(RED, "192.0.2.1"), forward(1, 2));
}

#[test]
fn a_gateway_is_found_by_the_routes_of_the_path_s_vrf() {
    let mut world = World::new();
    let far = |vrf| Path::recursive(vrf, ip("198.51.100.1"));
    world.add(BLUE, "198.51.100.0/24", Path::over(interface(0), ip("10.0.1.7")));
    world.add(RED, "192.0.2.0/24", far(RED));
    world.add(RED, "203.0.113.0/24", far(BLUE));
    world.up(0, "10.0.1.7", 1);
    world.up(1, "10.0.1.7", 2);
    assert_eq!(world.hop(RED, "192.0.2.1"), NextHop::NoRoute, "red has no way to it");
    assert_eq!(world.hop(RED, "203.0.113.1"), forward(0, 1), "blue has");
    world.add(RED, "198.51.100.0/24", Path::over(interface(1), ip("10.0.1.7")));
    assert_eq!(world.hop(RED, "192.0.2.1"), forward(1, 2));
    assert_eq!(world.hop(RED, "203.0.113.1"), forward(0, 1));
}

#[test]
fn a_route_to_the_hosts_of_another_vrf_s_interface_takes_their_host_routes_along() {
    let mut world = World::new();
    world.up(1, "10.0.9.5", 5);
    world.add(BLUE, "10.0.9.0/24", Path::on_interface(interface(1)));
    assert_eq!(world.hop(BLUE, "10.0.9.5"), forward(1, 5));
    assert_eq!(world.hop(BLUE, "10.0.9.6"), glean(1));
    world.up(1, "10.0.9.6", 6);
    assert_eq!(world.hop(BLUE, "10.0.9.6"), forward(1, 6));
    assert_eq!(world.hop(RED, "10.0.9.6"), NextHop::NoRoute, "no network of its");
    world.bench.rib.neighbour_down(interface(1), ip("10.0.9.5"));
    assert_eq!(world.hop(BLUE, "10.0.9.5"), glean(1));
    world.bench.rib.remove(BLUE, net("10.0.9.0/24"), RouteSource::Static);
    assert_eq!(world.hop(BLUE, "10.0.9.6"), NextHop::NoRoute);
}

#[test]
fn an_interface_moves_with_all_that_follows_from_it() {
    let mut world = World::new();
    let before = world.bench.rib.summary();
    world.up(1, "10.0.1.7", 2);
    world.bench.rib.set_vrf(interface(0), VrfId::DEFAULT);
    world.bench.rib.set_vrf(interface(1), BLUE);
    assert_eq!(world.hop(RED, "10.0.1.7"), NextHop::NoRoute);
    assert_eq!(world.hop(BLUE, "10.0.1.7"), forward(1, 2));
    assert_eq!(world.bench.rib.vrf_of(interface(1)), BLUE);
    world.bench.rib.set_vrf(interface(1), RED);
    world.bench.rib.set_vrf(interface(0), BLUE);
    world.bench.rib.neighbour_down(interface(1), ip("10.0.1.7"));
    let after = world.bench.rib.summary();
    assert_eq!((before.ipv4, before.fib4), (after.ipv4, after.fib4));
}

#[test]
fn a_vrf_that_is_gone_has_no_routes_and_its_number_can_be_used_again() {
    let mut world = World::new();
    world.add(RED, "192.0.2.0/24", Path::over(interface(1), ip("10.0.1.7")));
    world.bench.rib.set_vrf(interface(1), BLUE);
    assert_eq!(world.bench.rib.clear_vrf(RED), 1);
    assert_eq!(world.hop(RED, "192.0.2.1"), NextHop::NoRoute);
    assert_eq!(world.bench.rib.vrf_summary(RED).fib4, world.bench.rib.vrf_summary(RED).ipv4[0]);
    world.add(RED, "192.0.2.0/24", Path::over(interface(0), ip("10.0.1.7")));
    assert_eq!(world.hop(RED, "192.0.2.1"), NextHop::Unresolved { interface: interface(0) });
    let none = VrfId::new(3);
    let kind = RouteKind::Blackhole;
    let route = Route {
        vrf: none,
        prefix: net("192.0.2.0/24"),
        source: RouteSource::Static,
        kind,
        metric: 0,
    };
    let refused = world.bench.rib.add(route).unwrap_err().to_string();
    assert_eq!(refused, "route 192.0.2.0/24: there is no VRF of number 3");
}

#[test]
fn a_resynchronisation_and_an_audit_are_of_all_vrfs() {
    let mut world = World::new();
    let route = |vrf, kind| Route {
        vrf,
        prefix: net("192.0.2.0/24"),
        source: RouteSource::Kernel,
        kind,
        metric: 0,
    };
    let rib = &mut world.bench.rib;
    rib.load([BLUE, RED, VrfId::DEFAULT].map(|vrf| route(vrf, RouteKind::Blackhole)));
    rib.begin_resync(RouteSource::Kernel);
    rib.add(route(BLUE, RouteKind::Blackhole)).unwrap();
    assert_eq!(rib.end_resync(RouteSource::Kernel), 2);
    rib.vrfs[BLUE.index()].v4.fib_for_test().remove("192.0.2.0/24".parse().unwrap());
    rib.add(route(RED, RouteKind::Blackhole)).unwrap();
    rib.begin_audit(RouteSource::Kernel);
    rib.audit_route(&route(BLUE, RouteKind::Blackhole));
    rib.end_audit();
    while rib.is_busy() {
        rib.tick();
    }
    let found = rib.take_findings().unwrap();
    assert_eq!((found.missing, found.stale, found.different, found.fib), (0, 1, 0, 1), "{found:?}");
    assert_eq!(world.hop(BLUE, "192.0.2.1"), NextHop::Blackhole);
    assert_eq!(world.hop(RED, "192.0.2.1"), NextHop::NoRoute);
}

#[test]
fn the_network_namespace_of_a_vrf_is_resynchronised_by_itself() {
    let mut world = World::new();
    let key = |space| GroupKey { space, ..GroupKey::new(RouteSource::Kernel, 7) };
    let route = |vrf, prefix: &str, kind| Route {
        vrf,
        prefix: net(prefix),
        source: RouteSource::Kernel,
        kind,
        metric: 0,
    };
    let (one, two) = ("192.0.2.0/24", "198.51.100.0/24");
    let rib = &mut world.bench.rib;
    rib.begin_resync_apart(BLUE);
    // Both kernels have a nexthop object 7.
    for (space, index) in [(BLUE, 0), (VrfId::DEFAULT, 1)] {
        let paths = vec![Path::over(interface(index), ip("10.0.1.7"))];
        rib.set_group(key(space), GroupSpec { paths, ..GroupSpec::default() }).unwrap();
    }
    rib.load([
        route(BLUE, one, RouteKind::NextHopGroup(key(BLUE))),
        route(BLUE, two, RouteKind::Blackhole),
        route(RED, one, RouteKind::NextHopGroup(key(VrfId::DEFAULT))),
    ]);
    rib.add_local(BLUE, net("203.0.113.1/32")).unwrap();
    assert_eq!(rib.end_resync_apart(BLUE), 0);
    // That of the others does not concern it, whenever it happens.
    rib.begin_resync(RouteSource::Kernel);
    rib.begin_resync_apart(BLUE);
    rib.add(route(BLUE, two, RouteKind::Blackhole)).unwrap();
    assert_eq!(rib.end_resync(RouteSource::Kernel), 2, "red's route and its group");
    let is_there = |world: &World, vrf, prefix: &str| {
        let mut routes =
            world.bench.rib.routes_filtered(vrf, Some(RouteSource::Kernel), None, false);
        routes.any(|route| route.prefix == net(prefix))
    };
    assert!(is_there(&world, BLUE, one) && !is_there(&world, RED, one));
    assert_eq!(world.bench.rib.end_resync_apart(BLUE), 2, "the route over the group, and that");
    assert!(!is_there(&world, BLUE, one) && is_there(&world, BLUE, two));
    assert_eq!(world.hop(BLUE, "203.0.113.1"), NextHop::Local);
    // An audit of the others leaves it as it is.
    let rib = &mut world.bench.rib;
    rib.begin_resync_apart(BLUE);
    rib.begin_audit(RouteSource::Kernel);
    rib.end_audit();
    while rib.is_busy() {
        rib.tick();
    }
    assert_eq!(rib.take_findings().unwrap().stale, 0);
    rib.leave_apart(BLUE);
    assert!(!is_there(&world, BLUE, two));
    assert_eq!(world.hop(BLUE, "203.0.113.1"), NextHop::NoRoute);
    assert_eq!(world.hop(BLUE, "10.0.1.1"), NextHop::Local, "an interface's address stays");
}
