//! Tests of links, groups, gateways without interface, resynchronisation and lack of room, by
//! example.

use super::*;

fn add(bench: &mut Bench, prefix: &str, source: RouteSource, kind: RouteKind) {
    bench
        .rib
        .add(Route { vrf: VrfId::DEFAULT, prefix: net(prefix), source, kind, metric: 0 })
        .unwrap();
}

fn via(address: &str) -> RouteKind {
    RouteKind::Unicast(vec![Path::recursive(VrfId::DEFAULT, ip(address))])
}

fn over(index: u16, address: &str) -> RouteKind {
    RouteKind::Unicast(vec![Path::over(interface(index), ip(address))])
}

fn unresolved(index: u16) -> NextHop {
    NextHop::Unresolved { interface: interface(index) }
}

/// Returns the next hops in the places of an address's group.
fn spread(bench: &Bench, address: &str) -> Vec<NextHop> {
    let members = bench.members(bench.id(ip(address)));
    members.into_iter().map(|id| bench.table.get(id).into()).collect()
}

fn finish(bench: &mut Bench) {
    while bench.rib.is_busy() {
        bench.rib.tick();
    }
}

fn why(bench: &Bench, prefix: &str) -> Vec<Option<Inactive>> {
    bench.rib.routes_to(VrfId::DEFAULT, net(prefix)).map(|info| info.inactive).collect()
}

const KEY: GroupKey = GroupKey::new(RouteSource::Kernel, 7);

#[test]
fn a_lost_link_leaves_the_other_paths_at_once_and_the_number_as_it_is() {
    let mut bench = Bench::without_readers();
    bench.rib.pieces = Pieces { at_once: 0, tick: 5 };
    bench.add("198.51.100.0/24", &[(0, "10.0.1.2", 1), (1, "10.0.2.2", 3)]).unwrap();
    let id = bench.id(ip("198.51.100.1"));
    bench.rib.set_link(interface(1), false);
    assert_eq!(bench.id(ip("198.51.100.1")), id);
    assert_eq!(spread(&bench, "198.51.100.1"), [unresolved(0)]);
    bench.rib.set_link(interface(0), false);
    assert_eq!(bench.hop("198.51.100.1"), NextHop::NoRoute);
    bench.rib.set_link(interface(1), true);
    assert_eq!(spread(&bench, "198.51.100.1"), [unresolved(1)]);
    bench.rib.neighbour_up(interface(1), ip("10.0.2.2"), mac(2)).unwrap();
    let forward = NextHop::Forward { interface: interface(1), mac: mac(2) };
    assert_eq!(bench.hop("198.51.100.1"), forward, "one path that is left is as fast as one");
    bench.rib.set_link(interface(0), true);
    assert_eq!(spread(&bench, "198.51.100.1").len(), 4);
    finish(&mut bench);
    assert_eq!(spread(&bench, "198.51.100.1").len(), 4);
}

#[test]
fn a_route_without_live_path_gives_way_to_the_next_and_comes_back() {
    let mut bench = Bench::without_readers();
    bench.rib.pieces = Pieces { at_once: 0, tick: 1 };
    add(&mut bench, "198.51.100.0/24", RouteSource::Static, over(0, "10.0.1.2"));
    add(&mut bench, "198.51.100.0/24", RouteSource::Kernel, over(1, "10.0.2.2"));
    add(&mut bench, "203.0.113.0/24", RouteSource::Kernel, over(0, "10.0.1.2"));
    add(&mut bench, "0.0.0.0/0", RouteSource::Kernel, RouteKind::Unreachable);
    bench.rib.set_link(interface(0), false);
    assert_eq!(bench.hop("198.51.100.1"), NextHop::NoRoute, "dead, not forgotten, until the sweep");
    finish(&mut bench);
    assert_eq!(bench.hop("198.51.100.1"), unresolved(1));
    assert_eq!(bench.hop("203.0.113.1"), NextHop::Unreachable, "the shorter route counts");
    assert_eq!(bench.hop("10.0.1.7"), NextHop::Unreachable, "so it is for the connected network");
    assert_eq!(bench.hop("10.0.1.1"), NextHop::Local);
    assert_eq!(why(&bench, "198.51.100.0/24"), [Some(Inactive::LinkDown), None]);
    bench.rib.set_link(interface(0), true);
    finish(&mut bench);
    assert_eq!(bench.hop("198.51.100.1"), unresolved(0));
    assert_eq!(bench.hop("10.0.1.7"), NextHop::Glean { interface: interface(0) });
    assert_eq!(why(&bench, "198.51.100.0/24"), [None, Some(Inactive::Shadowed)]);
}

#[test]
fn a_resilient_group_moves_the_flows_of_the_lost_path_only() {
    let mut bench = Bench::without_readers();
    let paths = [(0, "10.0.1.2"), (1, "10.0.2.2"), (0, "10.0.1.3")];
    let paths = paths.map(|(index, via)| Path::over(interface(index), ip(via))).to_vec();
    let resilient = Some(Resilient { buckets: 128 });
    let spec = GroupSpec { paths, resilient, ..GroupSpec::default() };
    bench.rib.set_group(KEY, spec.clone()).unwrap();
    add(&mut bench, "198.51.100.0/24", RouteSource::Kernel, RouteKind::NextHopGroup(KEY));
    let id = bench.id(ip("198.51.100.1"));
    let before = bench.members(id);
    assert_eq!(before.len(), 128);
    bench.rib.set_link(interface(1), false);
    let lost = bench.members(id);
    for (before, after) in before.iter().zip(&lost) {
        let kept = NextHop::from(bench.table.get(*before)) != NextHop::NoRoute;
        assert!(before == after || !kept, "a flow of a live path has moved");
        assert_eq!(NextHop::from(bench.table.get(*after)), unresolved(0));
    }
    bench.rib.set_link(interface(1), true);
    let moved = bench.members(id).iter().zip(&lost).filter(|(now, then)| now != then).count();
    assert!((42..=43).contains(&moved), "{moved} of 128 buckets moved back");
    // A path removed by the group's owner counts as lost too.
    let before = bench.members(id);
    let fewer = GroupSpec { paths: spec.paths[..2].to_vec(), ..spec };
    bench.rib.set_group(KEY, fewer).unwrap();
    let kept: Vec<_> = spread(&bench, "198.51.100.1");
    assert_eq!(kept.iter().filter(|&&hop| hop == unresolved(1)).count(), 64);
    let moved = bench.members(id).iter().zip(&before).filter(|(now, then)| now != then).count();
    assert!((42..=43).contains(&moved), "{moved} of 128 buckets moved");
}

/// As zebra does it: another group for each set of paths.
#[test]
fn with_buckets_for_all_groups_other_groups_keep_the_flows_of_remaining_paths() {
    let mut bench = Bench::without_readers();
    bench.rib.spread_in_buckets(Some(256));
    let paths = [(0, "10.0.1.2"), (1, "10.0.2.2"), (0, "10.0.1.3")];
    let paths = paths.map(|(index, via)| Path::over(interface(index), ip(via))).to_vec();
    let kind = |paths: &[Path]| RouteKind::Unicast(paths.to_vec());
    add(&mut bench, "198.51.100.0/24", RouteSource::Kernel, kind(&paths));
    add(&mut bench, "203.0.113.0/24", RouteSource::Kernel, kind(&paths[..2]));
    add(&mut bench, "192.0.2.0/24", RouteSource::Kernel, kind(&paths[..1]));
    finish(&mut bench);
    let members = |bench: &Bench, address| bench.members(bench.id(ip(address)));
    let (three, two) = (members(&bench, "198.51.100.1"), members(&bench, "203.0.113.1"));
    assert_eq!((three.len(), two.len()), (256, 256));
    let third = three.iter().find(|member| !two.contains(member)).copied();
    for (three, two) in three.iter().zip(&two) {
        assert!(Some(*three) == third || three == two, "a flow of a remaining path has moved");
    }
    // A link is lost: as well.
    bench.rib.set_link(interface(1), false);
    let lost = members(&bench, "198.51.100.1");
    assert!(three.iter().zip(&lost).filter(|(before, after)| before != after).count() < 120);
    for (before, after) in three.iter().zip(&lost) {
        assert!(before == after || !lost.contains(before), "a flow of a live path has moved");
    }
    bench.rib.set_link(interface(1), true);
    assert_eq!(members(&bench, "198.51.100.1"), three);
}

#[test]
fn a_named_group_changes_for_all_its_routes_and_takes_them_along() {
    let mut bench = Bench::without_readers();
    bench.rib.pieces = Pieces { at_once: 0, tick: 1 };
    let spec = |index, via: &str| GroupSpec {
        paths: vec![Path::over(interface(index), ip(via))],
        ..GroupSpec::default()
    };
    let route = |prefix: &str| Route {
        vrf: VrfId::DEFAULT,
        prefix: net(prefix),
        source: RouteSource::Kernel,
        kind: RouteKind::NextHopGroup(KEY),
        metric: 0,
    };
    let error = bench.rib.add(route("198.51.100.0/24")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "route 198.51.100.0/24: group 7 of kernel does not exist; the route waits for it"
    );
    assert_eq!(why(&bench, "198.51.100.0/24"), [Some(Inactive::NoGroup)]);
    bench.rib.set_group(KEY, spec(0, "10.0.1.2")).unwrap();
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Group { first: 0, len: 1 });
    assert_eq!(spread(&bench, "198.51.100.1"), [unresolved(0)]);
    let id = bench.id(ip("198.51.100.1"));
    bench.rib.set_group(KEY, spec(1, "10.0.2.2")).unwrap();
    assert_eq!(
        (bench.id(ip("198.51.100.1")), spread(&bench, "198.51.100.1")),
        (id, vec![unresolved(1)])
    );
    let blackhole = GroupSpec { blackhole: true, ..GroupSpec::default() };
    bench.rib.set_group(KEY, blackhole).unwrap();
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Blackhole);

    assert!(bench.rib.remove_group(KEY) && !bench.rib.remove_group(KEY));
    assert_eq!(bench.hop("198.51.100.1"), NextHop::NoRoute);
    assert_eq!(bench.rib.routes_to(VrfId::DEFAULT, net("198.51.100.0/24")).count(), 0);
    // A new group under the same name does not get their routes.
    bench.rib.set_group(KEY, spec(0, "10.0.1.2")).unwrap();
    bench.rib.add(route("203.0.113.0/24")).unwrap();
    assert_eq!(bench.hop("198.51.100.1"), NextHop::NoRoute);
    finish(&mut bench);
    assert_eq!(bench.id(ip("198.51.100.1")), 0);
    assert_eq!(spread(&bench, "203.0.113.1"), [unresolved(0)]);
    assert_eq!(bench.rib.summary().ipv4[RouteSource::Kernel.index()], 1);
}

#[test]
fn a_default_route_leads_to_gateways_unless_it_is_told_not_to() {
    let mut bench = Bench::without_readers();
    add(&mut bench, "0.0.0.0/0", RouteSource::Static, over(0, "10.0.1.2"));
    add(&mut bench, "198.51.100.0/24", RouteSource::Static, via("172.16.0.1"));
    finish(&mut bench);
    let gateway = ip("172.16.0.1");
    assert_eq!(
        (spread(&bench, "198.51.100.1"), bench.rib.is_by_default(VrfId::DEFAULT, gateway)),
        (vec![unresolved(0)], true)
    );
    bench.rib.resolve_via_default(false);
    finish(&mut bench);
    assert_eq!(why(&bench, "198.51.100.0/24"), [Some(Inactive::GatewayUnreachable)]);
    assert!(!bench.rib.is_by_default(VrfId::DEFAULT, gateway));
    // A longer route leads there, and its removal takes effect.
    add(&mut bench, "172.16.0.0/12", RouteSource::Static, over(1, "10.0.2.2"));
    finish(&mut bench);
    assert_eq!(
        (spread(&bench, "198.51.100.1"), bench.rib.is_by_default(VrfId::DEFAULT, gateway)),
        (vec![unresolved(1)], false)
    );
    bench.rib.remove(VrfId::DEFAULT, net("172.16.0.0/12"), RouteSource::Static);
    finish(&mut bench);
    assert_eq!(why(&bench, "198.51.100.0/24"), [Some(Inactive::GatewayUnreachable)]);
    bench.rib.resolve_via_default(true);
    finish(&mut bench);
    assert_eq!(spread(&bench, "198.51.100.1"), [unresolved(0)], "by the default route again");
}

#[test]
fn a_gateway_without_port_follows_the_best_route_to_it() {
    let mut bench = Bench::without_readers();
    add(&mut bench, "198.51.100.0/24", RouteSource::Static, via("192.0.2.1"));
    assert_eq!(bench.hop("198.51.100.1"), NextHop::NoRoute);
    assert_eq!(why(&bench, "198.51.100.0/24"), [Some(Inactive::GatewayUnreachable)]);
    add(&mut bench, "192.0.2.0/24", RouteSource::Kernel, over(0, "10.0.1.2"));
    finish(&mut bench);
    let id = bench.id(ip("198.51.100.1"));
    assert_eq!(spread(&bench, "198.51.100.1"), [unresolved(0)]);
    // A longer route to the gateway, over two paths; the recursive route keeps its number.
    let two =
        vec![Path::over(interface(0), ip("10.0.1.2")), Path::over(interface(1), ip("10.0.2.2"))];
    add(&mut bench, "192.0.2.0/28", RouteSource::Kernel, RouteKind::Unicast(two));
    assert_eq!(spread(&bench, "198.51.100.1").len(), 2);
    bench.rib.set_link(interface(0), false);
    assert_eq!(spread(&bench, "198.51.100.1"), [unresolved(1)]);
    add(&mut bench, "192.0.2.1/32", RouteSource::Static, RouteKind::Blackhole);
    assert_eq!((bench.hop("198.51.100.1"), bench.id(ip("198.51.100.1"))), (NextHop::Blackhole, id));
    for prefix in ["192.0.2.1/32", "192.0.2.0/28", "192.0.2.0/24"] {
        bench.rib.remove(VrfId::DEFAULT, net(prefix), RouteSource::Static);
        bench.rib.remove(VrfId::DEFAULT, net(prefix), RouteSource::Kernel);
    }
    finish(&mut bench);
    assert_eq!(bench.id(ip("198.51.100.1")), 0);
    // On a connected network the gateway is a neighbour, also of the other family.
    add(&mut bench, "203.0.113.0/24", RouteSource::Static, via("fd00:2::9"));
    bench.rib.neighbour_up(interface(1), ip("fd00:2::9"), mac(9)).unwrap();
    assert_eq!(bench.hop("203.0.113.1"), NextHop::Forward { interface: interface(1), mac: mac(9) });
    // The router cannot be its own gateway.
    add(&mut bench, "203.0.113.0/24", RouteSource::Command, via("10.0.2.1"));
    assert_eq!(why(&bench, "203.0.113.0/24"), [Some(Inactive::GatewayUnreachable), None]);
}

#[test]
fn routes_that_lead_in_a_circle_say_so_and_others_go_on() {
    let mut bench = Bench::without_readers();
    add(&mut bench, "192.0.2.0/24", RouteSource::Static, via("192.0.2.1"));
    assert_eq!(why(&bench, "192.0.2.0/24"), [Some(Inactive::Loop)]);
    // Two routes over each other; one of them has another path as well.
    add(&mut bench, "198.51.100.0/24", RouteSource::Static, via("203.0.113.1"));
    let both = vec![
        Path::recursive(VrfId::DEFAULT, ip("198.51.100.1")),
        Path::over(interface(0), ip("10.0.1.2")),
    ];
    add(&mut bench, "203.0.113.0/24", RouteSource::Static, RouteKind::Unicast(both));
    assert_eq!(why(&bench, "198.51.100.0/24"), [Some(Inactive::Loop)]);
    assert_eq!(spread(&bench, "203.0.113.9"), [unresolved(0)]);
    assert_eq!(bench.id(ip("198.51.100.9")), 0);
    // A route that breaks the circle.
    add(&mut bench, "203.0.113.1/32", RouteSource::Static, over(1, "10.0.2.2"));
    finish(&mut bench);
    assert_eq!(spread(&bench, "198.51.100.9"), [unresolved(1)]);
    assert_eq!(spread(&bench, "203.0.113.9"), [unresolved(0), unresolved(1)]);
}

#[test]
fn a_long_chain_of_gateways_is_followed_to_its_end() {
    let mut bench = Bench::without_readers();
    const LENGTH: u32 = 10_000;
    let address = |i: u32| IpAddr::from(Ipv4Addr::from(0x6440_0000 + i));
    let route = |i| Route {
        vrf: VrfId::DEFAULT,
        prefix: address(i).into(),
        source: RouteSource::Static,
        kind: RouteKind::Unicast(vec![Path::recursive(VrfId::DEFAULT, address(i + 1))]),
        metric: 0,
    };
    assert_eq!(bench.rib.load((0..LENGTH).map(route)).refused, 0);
    assert_eq!(bench.id(address(0)), 0);
    bench.rib.add(Route { kind: over(0, "10.0.1.2"), ..route(LENGTH) }).unwrap();
    finish(&mut bench);
    let id = bench.id(address(0));
    assert_eq!(bench.members(id).len(), 1);
    bench.rib.neighbour_up(interface(0), ip("10.0.1.2"), mac(2)).unwrap();
    let forward = NextHop::Forward { interface: interface(0), mac: mac(2) };
    assert_eq!(NextHop::from(bench.table.get(id)), forward);
    // With its ends joined, it is a circle.
    bench.rib.add(Route { kind: via("100.64.0.0"), ..route(LENGTH) }).unwrap();
    assert_eq!(NextHop::from(bench.table.get(id)), NextHop::NoRoute);
    assert_eq!(why(&bench, "100.64.0.0/32"), [Some(Inactive::Loop)]);
}

#[test]
fn a_resynchronisation_withdraws_what_is_not_told_again_and_touches_nothing_else() {
    let mut bench = Bench::without_readers();
    let spec = GroupSpec { paths: vec![Path::on_interface(interface(0))], ..GroupSpec::default() };
    let routes = [
        ("198.51.100.0/24", over(0, "10.0.1.2")),
        ("203.0.113.0/24", over(1, "10.0.2.2")),
        ("192.0.2.0/24", RouteKind::NextHopGroup(KEY)),
    ];
    bench.rib.set_group(KEY, spec.clone()).unwrap();
    for (prefix, kind) in &routes {
        add(&mut bench, prefix, RouteSource::Kernel, kind.clone());
    }
    add(&mut bench, "203.0.113.0/24", RouteSource::Static, RouteKind::Blackhole);
    let ids = ["198.51.100.1", "203.0.113.1", "192.0.2.1"].map(|address| bench.id(ip(address)));
    let unchanged = |bench: &Bench| {
        ids == ["198.51.100.1", "203.0.113.1", "192.0.2.1"].map(|address| bench.id(ip(address)))
    };
    bench.rib.begin_resync(RouteSource::Kernel);
    assert!(unchanged(&bench));
    // An overrun during the resynchronisation: it starts over.
    add(&mut bench, routes[1].0, RouteSource::Kernel, routes[1].1.clone());
    bench.rib.begin_resync(RouteSource::Kernel);
    bench.rib.set_group(KEY, spec).unwrap();
    for at in [0, 2] {
        add(&mut bench, routes[at].0, RouteSource::Kernel, routes[at].1.clone());
        assert!(unchanged(&bench));
    }
    assert_eq!(bench.rib.end_resync(RouteSource::Kernel), 1);
    assert!(unchanged(&bench));
    assert_eq!(bench.rib.remove(VrfId::DEFAULT, net("203.0.113.0/24"), RouteSource::Static), 1);
    assert_eq!(bench.id(ip("203.0.113.1")), 0, "the kernel's had gone");
    bench.rib.begin_resync(RouteSource::Kernel);
    assert_eq!(bench.rib.end_resync(RouteSource::Kernel), 3, "two routes and a group");
}

#[test]
fn routes_without_room_are_named_one_by_one_and_come_when_others_go() {
    let mut bench = Bench::without_readers();
    const ASKED: u32 = 70_000;
    let prefix = |i: u32| IpNet::from(IpAddr::from(Ipv4Addr::from(0x6440_0000 + i)));
    let gateway = |i: u32| IpAddr::from(Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(i)));
    let route = |i: u32| Route {
        vrf: VrfId::DEFAULT,
        prefix: prefix(i),
        source: RouteSource::Kernel,
        kind: RouteKind::Unicast(vec![Path::over(interface(0), gateway(i))]),
        metric: 0,
    };
    let report = bench.rib.load((0..ASKED).map(route));
    let room = dataplane::next_hop::NEXT_HOPS - 16 - 2;
    assert_eq!((report.accepted, report.refused), (room, ASKED as usize - room));
    assert!(report.errors.iter().all(Error::is_waiting), "{:?}", report.errors);
    assert_eq!(bench.rib.summary().waiting, report.refused);
    let last = prefix(ASKED - 1);
    let info = bench.rib.routes_to(VrfId::DEFAULT, last).next().unwrap();
    assert_eq!(info.inactive, Some(Inactive::NoRoom));
    assert_eq!(info.target, Target::Unicast(vec![Path::over(interface(0), gateway(ASKED - 1))]));
    for i in 0..30_000 {
        assert_eq!(bench.rib.remove(VrfId::DEFAULT, prefix(i), RouteSource::Kernel), 1);
    }
    for i in 40_000..50_000 {
        assert_eq!(bench.rib.remove(VrfId::DEFAULT, prefix(i), RouteSource::Kernel), 1);
    }
    bench.rib.tick();
    finish(&mut bench);
    assert_eq!(bench.rib.summary().waiting, 0, "30,000 are left");
    for i in (30_000..40_000).chain(50_000..ASKED).step_by(611) {
        assert_eq!(
            NextHop::from(bench.table.get(bench.id(prefix(i).addr()))),
            unresolved(0),
            "{i}"
        );
    }
}

#[test]
fn addresses_and_ports_come_and_go_with_their_routes() {
    let mut bench = Bench::without_readers();
    let kept = bench.id(ip("10.0.1.7"));
    bench.rib.set_addresses(interface(0), &[net("10.0.1.9/24"), net("fe80::9/64")]).unwrap();
    assert_eq!(bench.id(ip("10.0.1.7")), kept, "the network is the same");
    assert_eq!(bench.hop("10.0.1.9"), NextHop::Local);
    assert_eq!(bench.hop("10.0.1.1"), NextHop::Glean { interface: interface(0) });
    assert_eq!(bench.hop("fd00:1::7"), NextHop::NoRoute);
    assert_eq!(bench.hop("fe80::77"), NextHop::Local);
    assert_eq!(bench.rib.interfaces()[0].addresses, [net("10.0.1.9/24"), net("fe80::9/64")]);
    // Two interfaces on one network: the first that is up is used.
    bench.rib.set_addresses(interface(1), &[net("10.0.1.10/24")]).unwrap();
    bench.rib.neighbour_up(interface(1), ip("10.0.1.7"), mac(7)).unwrap();
    assert_eq!(bench.hop("10.0.1.7"), NextHop::Glean { interface: interface(0) });
    bench.rib.set_link(interface(0), false);
    finish(&mut bench);
    assert_eq!(bench.hop("10.0.1.8"), NextHop::Glean { interface: interface(1) });
    assert_eq!(bench.hop("10.0.1.7"), NextHop::Forward { interface: interface(1), mac: mac(7) });
    bench.rib.add_local(VrfId::DEFAULT, net("192.0.2.1/32")).unwrap();
    assert_eq!(bench.hop("192.0.2.1"), NextHop::Local);
    assert!(
        bench.rib.remove_local(VrfId::DEFAULT, net("192.0.2.1/32"))
            && !bench.rib.remove_local(VrfId::DEFAULT, net("192.0.2.1/32"))
    );
    assert_eq!(bench.hop("192.0.2.1"), NextHop::NoRoute);
    // Without the interface its routes are dead; with it they are live again.
    add(&mut bench, "198.51.100.0/24", RouteSource::Kernel, over(1, "10.0.1.3"));
    assert!(bench.rib.remove_interface(interface(1)) && !bench.rib.remove_interface(interface(1)));
    finish(&mut bench);
    assert_eq!((bench.id(ip("198.51.100.1")), bench.id(ip("10.0.1.8"))), (0, 0));
    let again = RibInterface { addresses: vec![net("10.0.1.10/24")], ..example_ports().remove(1) };
    bench.rib.add_interface(again).unwrap();
    finish(&mut bench);
    assert_eq!(bench.hop("198.51.100.1"), unresolved(1));
    assert_eq!(bench.hop("10.0.1.10"), NextHop::Local);
}

#[test]
fn a_neighbour_takes_the_place_of_a_route_to_its_port() {
    let mut bench = Bench::without_readers();
    let to_port = RouteKind::Unicast(vec![Path::on_interface(interface(1))]);
    add(&mut bench, "198.51.100.9/32", RouteSource::Kernel, to_port);
    assert_eq!(bench.hop("198.51.100.9"), NextHop::Glean { interface: interface(1) });
    bench.rib.neighbour_up(interface(1), ip("198.51.100.9"), mac(9)).unwrap();
    assert_eq!(
        bench.hop("198.51.100.9"),
        NextHop::Forward { interface: interface(1), mac: mac(9) }
    );
    let info = bench.rib.lookup(VrfId::DEFAULT, ip("198.51.100.9")).unwrap();
    assert_eq!((info.route.source, info.route.active), (RouteSource::Neighbour, true));
    bench.rib.remove(VrfId::DEFAULT, net("198.51.100.9/32"), RouteSource::Kernel);
    assert_eq!(bench.hop("198.51.100.9"), NextHop::NoRoute);
}

#[test]
fn another_distance_ranks_routes_that_are_there() {
    let mut bench = Bench::without_readers();
    add(&mut bench, "198.51.100.0/24", RouteSource::Kernel, RouteKind::Prohibited);
    add(&mut bench, "198.51.100.0/24", RouteSource::Fpm, RouteKind::Host);
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Prohibited);
    bench.rib.set_distance(RouteSource::Fpm, 5);
    finish(&mut bench);
    assert_eq!(bench.hop("198.51.100.1"), NextHop::Local);
    let shown: Vec<_> = bench
        .rib
        .routes_filtered(VrfId::DEFAULT, Some(RouteSource::Fpm), Some(net("198.51.0.0/16")), true)
        .map(|info| (info.distance, info.target, info.active))
        .collect();
    assert_eq!(shown, [(5, Target::Host, true)]);
    assert_eq!(
        bench.rib.routes_filtered(VrfId::DEFAULT, None, Some(net("198.51.0.0/16")), false).count(),
        0
    );
}

#[test]
fn a_batch_is_seen_at_its_end() {
    let mut bench = Bench::without_readers();
    let Bench { rib, reader4, .. } = &mut bench;
    rib.batch(|rib| {
        for n in 0..20 {
            let prefix = net(&format!("198.51.{n}.0/24"));
            let (source, kind) = (RouteSource::Kernel, RouteKind::Blackhole);
            rib.add(Route { vrf: VrfId::DEFAULT, prefix, source, kind, metric: 0 }).unwrap();
        }
        assert_eq!(reader4.lookup("198.51.7.1".parse().unwrap()), 0);
    });
    assert_eq!(bench.hop("198.51.7.1"), NextHop::Blackhole);
}
