//! Static routes in the RIB, one by one and from one configuration to another.

use std::collections::BTreeMap;

use control::rib::{Path, Resilient, Target};
use fib::NoReaders;
use proptest::prelude::*;
use wire::MacAddr;

use super::*;

fn rib() -> Rib {
    let grace = || Box::new(NoReaders);
    let port = RibInterface {
        id: dataplane::port::PortId::FIRST.into(),
        vrf: VrfId::DEFAULT,
        name: "left".to_owned(),
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        addresses: vec!["10.0.1.1/24".parse().unwrap()],
        is_loopback: false,
    };
    let fib4 = fib::new_ipv4(fib::Algorithm::default(), grace()).unwrap();
    let fib6 = fib::new_ipv6(fib::Algorithm::default(), grace()).unwrap();
    Rib::new(vec![port], fib4, fib6, Arc::new(NextHopTable::new()), grace()).unwrap()
}

fn route(net: u8, metric: u32, kind: u8) -> config::Route {
    let path = |host: u8| {
        Path::over(
            dataplane::port::PortId::FIRST.into(),
            IpNet::from(std::net::IpAddr::from([10, 0, 1, host])).addr(),
        )
    };
    let (kind, resilient) = match kind {
        0 => (RouteKind::Blackhole, None),
        1 => (RouteKind::Unicast(vec![path(2)]), None),
        2 => (RouteKind::Unicast(vec![path(2), path(3)]), None),
        n => (RouteKind::Unicast(vec![path(2), path(n)]), Some(Resilient { buckets: 64 })),
    };
    let prefix = IpNet::new(std::net::IpAddr::from([10, 100 + net, 0, 0]), 16).unwrap();
    config::Route { vrf: VrfId::DEFAULT, line: 1, prefix, kind, metric, resilient }
}

/// The static routes of a RIB, and how many groups there are; those of a group without its number.
fn shown(rib: &mut Rib) -> (Vec<String>, usize) {
    while rib.is_busy() {
        rib.tick();
    }
    let line = |info: control::rib::RouteInfo| {
        let target = match &info.target {
            Target::Group(_, paths) => format!("group {paths:?}"),
            other => format!("{other:?}"),
        };
        format!("{} {} {target} {}", info.prefix, info.metric, info.active)
    };
    let routes = rib
        .routes_filtered(VrfId::DEFAULT, Some(RouteSource::Static), None, false)
        .map(line)
        .collect();
    (routes, rib.groups().count())
}

fn all() -> impl Strategy<Value = BTreeMap<(u8, u32), config::Route>> {
    let one = (0u8..5, 0u32..2, 0u8..6);
    let key = |(net, metric, kind)| ((net, metric), route(net, metric, kind));
    proptest::collection::vec(one.prop_map(key), 0..8)
        .prop_map(|routes| routes.into_iter().collect())
}

proptest! {
    /// Changed from one set of routes to another, and back, the RIB is as if it had never had others.
    #[test]
    fn a_changed_rib_is_as_a_new_one(old in all(), new in all()) {
        let (mut changed, mut routes) = (rib(), StaticRoutes::default());
        old.values().for_each(|route| routes.put(&mut changed, route).unwrap());
        let before = shown(&mut changed);
        for (from, to) in [(&old, &new), (&new, &old)] {
            let different = to.iter().filter(|(key, route)| from.get(key) != Some(route));
            different.for_each(|(_, route)| routes.put(&mut changed, route).unwrap());
            let gone = from.iter().filter(|(key, _)| !to.contains_key(key));
            gone.for_each(|(_, route)| routes.remove(&mut changed, route));
            let (mut fresh, mut its) = (rib(), StaticRoutes::default());
            to.values().for_each(|route| its.put(&mut fresh, route).unwrap());
            prop_assert_eq!(shown(&mut changed), shown(&mut fresh));
        }
        prop_assert_eq!(shown(&mut changed), before);
    }
}

#[test]
fn other_paths_of_a_resilient_route_are_of_the_same_group() {
    let (mut rib, mut routes) = (rib(), StaticRoutes::default());
    routes.put(&mut rib, &route(1, 0, 3)).unwrap();
    let group = rib.groups().map(|(key, _)| key).collect::<Vec<_>>();
    routes.put(&mut rib, &route(1, 0, 4)).unwrap();
    assert_eq!(rib.groups().map(|(key, _)| key).collect::<Vec<_>>(), group);
    routes.put(&mut rib, &route(1, 0, 1)).unwrap();
    assert_eq!(rib.groups().count(), 0);
}
