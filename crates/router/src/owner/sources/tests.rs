//! A first synchronisation, what changes after it, and another one.

use std::net::IpAddr;
use std::sync::Arc;

use control::netlink::{Change, HostVlans, NeighbourState, SourceEvent};
use control::rib::{GroupKey, GroupSpec, Path, Rib, RibInterface, RouteKind};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::NextHopTable;
use fib::NoReaders;
use ipnet::IpNet;
use slowpath::Command;
use wire::MacAddr;

use super::super::super::slow_worker::{Order, OrderQueue, Orders, order_queue};
use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sources with events made by the test, and a RIB with one port on 10.0.1.0/24.
struct Bench {
    sources: Sources,
    rib: Rib,
    orders: Orders,
    told: OrderQueue,
}

impl Bench {
    fn new() -> Self {
        let grace = || Box::new(NoReaders);
        let port = RibInterface {
            id: InterfaceId::FIRST,
            vrf: VrfId::DEFAULT,
            name: "left".to_owned(),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            addresses: vec![net("10.0.1.1/24")],
            is_loopback: false,
        };
        let fib4 = fib::new_ipv4(fib::Algorithm::default(), grace()).unwrap();
        let fib6 = fib::new_ipv6(fib::Algorithm::default(), grace()).unwrap();
        let rib = Rib::new(vec![port], fib4, fib6, Arc::new(NextHopTable::new()), grace()).unwrap();
        let (orders, told) = order_queue(Arc::new(dpdk::Doorbell::new().unwrap()));
        let orders = Orders::new(vec![orders]);
        let mut sources = Sources::of(mpsc::channel(1), None, None, true);
        sources.hosts = [InterfaceId::FIRST].into_iter().collect();
        Self { sources, rib, orders, told }
    }

    fn on_events(&mut self, events: impl IntoIterator<Item = SourceEvent>) {
        for event in events {
            self.sources.apply(&mut self.rib, &self.orders, event);
        }
        while self.rib.is_busy() {
            self.rib.tick();
        }
    }

    /// Returns the slow path's commands since the last call.
    fn commands(&self) -> Vec<Command> {
        let engine = |order| match order {
            Order::Engine(command) => Some(command),
            _ => None,
        };
        std::iter::from_fn(|| self.told.take()).filter_map(engine).collect()
    }

    fn count(&self, source: RouteSource) -> usize {
        self.rib.routes_filtered(VrfId::DEFAULT, Some(source), None, false).count()
    }

    fn has(&self, prefix: &str) -> bool {
        self.rib
            .routes_filtered(VrfId::DEFAULT, Some(RouteSource::Kernel), Some(net(prefix)), false)
            .next()
            .is_some()
    }
}

fn change(source: RouteSource, prefix: &str, change: Change<RouteKind>) -> SourceEvent {
    SourceEvent::Route { vrf: VrfId::DEFAULT, source, prefix: net(prefix), metric: 20, change }
}

fn via(prefix: &str, gateway: &str) -> SourceEvent {
    let kind = RouteKind::Unicast(vec![Path::over(InterfaceId::FIRST, ip(gateway))]);
    change(RouteSource::Kernel, prefix, Change::Set(kind))
}

fn withdraw(prefix: &str) -> SourceEvent {
    change(RouteSource::Kernel, prefix, Change::Withdraw)
}

const BEGIN: SourceEvent = SourceEvent::ResyncBegin(RouteSource::Kernel);
const END: SourceEvent = SourceEvent::ResyncEnd(RouteSource::Kernel);

#[test]
fn a_first_synchronisation_is_complete_at_its_end() {
    let mut bench = Bench::new();
    assert!(bench.sources.first_is_missing());
    let many = (0..1000u32).map(|n| via(&format!("100.64.{}.{}/32", n / 256, n % 256), "10.0.1.2"));
    bench.on_events(std::iter::once(BEGIN).chain(many));
    assert!(bench.sources.first_is_missing());
    // Changes during the synchronisation keep their order.
    bench.on_events([via("198.51.100.0/24", "10.0.1.2"), withdraw("198.51.100.0/24")]);
    bench.on_events([withdraw("100.64.0.7/32"), via("100.64.0.8/32", "10.0.1.3"), END]);
    assert!(!bench.sources.first_is_missing());
    assert_eq!(bench.count(RouteSource::Kernel), 999);
    assert!(!bench.has("198.51.100.0/24") && !bench.has("100.64.0.7/32"));
    let route = bench.rib.lookup(VrfId::DEFAULT, ip("100.64.0.8")).unwrap();
    assert_eq!(route.paths[0].gateway, Some(ip("10.0.1.3")));
}

#[test]
fn what_is_not_told_again_is_gone() {
    let mut bench = Bench::new();
    let key = GroupKey::new(RouteSource::Kernel, 7);
    let spec = GroupSpec {
        paths: vec![Path::over(InterfaceId::FIRST, ip("10.0.1.2"))],
        ..GroupSpec::default()
    };
    let group = SourceEvent::Group { key, change: Change::Set(spec) };
    let over =
        |prefix| change(RouteSource::Kernel, prefix, Change::Set(RouteKind::NextHopGroup(key)));
    bench.on_events([BEGIN, group.clone(), over("100.64.0.0/24"), over("100.64.1.0/24"), END]);
    assert_eq!(bench.count(RouteSource::Kernel), 2);
    bench.on_events([BEGIN, group, over("100.64.1.0/24"), END]);
    assert!(!bench.has("100.64.0.0/24") && bench.has("100.64.1.0/24"));
    bench.on_events([SourceEvent::Group { key, change: Change::Withdraw }]);
    assert_eq!(bench.count(RouteSource::Kernel), 0, "the kernel does not withdraw them one by one");
}

#[test]
fn two_sources_may_synchronise_at_once() {
    let mut bench = Bench::new();
    let zebra = |prefix| change(RouteSource::Fpm, prefix, Change::Set(RouteKind::Blackhole));
    bench.on_events([BEGIN, via("100.64.0.0/24", "10.0.1.2")]);
    bench.on_events([SourceEvent::ResyncBegin(RouteSource::Fpm), zebra("100.64.9.0/24")]);
    bench.on_events([SourceEvent::ResyncEnd(RouteSource::Fpm), via("100.64.1.0/24", "10.0.1.2")]);
    bench.on_events([zebra("100.64.8.0/24"), END]);
    assert_eq!((bench.count(RouteSource::Kernel), bench.count(RouteSource::Fpm)), (2, 2));
}

#[test]
fn refusals_are_counted_by_source_and_the_rest_goes_on() {
    let mut bench = Bench::new();
    let bad = |n: u32| {
        let prefix = IpNet::new_assert(IpAddr::from([100, 64, n as u8, 7]), 24);
        let change = Change::Set(RouteKind::Blackhole);
        SourceEvent::Route {
            vrf: VrfId::DEFAULT,
            source: RouteSource::Kernel,
            prefix,
            metric: 0,
            change,
        }
    };
    bench.on_events(std::iter::once(BEGIN).chain((0..50).map(bad)));
    bench.on_events([via("198.51.100.0/24", "10.0.1.2"), END]);
    assert_eq!(bench.sources.refused(RouteSource::Kernel), 50);
    assert!(bench.has("198.51.100.0/24"));
    bench.on_events([bad(1), via("203.0.113.0/24", "10.0.1.2")]);
    assert_eq!(bench.sources.refused(RouteSource::Kernel), 51);
    assert_eq!(bench.count(RouteSource::Kernel), 2);
}

#[test]
fn addresses_and_neighbours_reach_rib_and_slow_path() {
    let (mut bench, port) = (Bench::new(), InterfaceId::FIRST);
    let addresses = vec![net("10.0.5.1/24")];
    bench.on_events([SourceEvent::Addresses { port, addresses: addresses.clone() }]);
    assert!(bench.rib.lookup(VrfId::DEFAULT, ip("10.0.1.7")).is_none(), "the old network is gone");
    assert_eq!(
        bench.rib.lookup(VrfId::DEFAULT, ip("10.0.5.7")).unwrap().route.source,
        RouteSource::Connected
    );
    let (address, mac) = (ip("10.0.5.7"), Some(MacAddr([2, 0, 0, 0, 0, 7])));
    let state = NeighbourState::Reachable;
    bench.on_events([SourceEvent::Neighbour { port, address, mac, state }]);
    let expected = [
        Command::Addresses { interface: port, addresses },
        Command::KernelNeighbour { interface: port, address, mac },
    ];
    assert_eq!(bench.commands(), expected);
    let prefix = net("192.0.2.1/32");
    bench.on_events([SourceEvent::LocalAddress { vrf: VrfId::DEFAULT, prefix, present: true }]);
    assert_eq!(
        bench.rib.lookup(VrfId::DEFAULT, ip("192.0.2.1")).unwrap().route.source,
        RouteSource::Local
    );
    bench.on_events([SourceEvent::LocalAddress { vrf: VrfId::DEFAULT, prefix, present: false }]);
    assert!(bench.rib.lookup(VrfId::DEFAULT, ip("192.0.2.1")).is_none());
}

#[test]
fn vlan_devices_are_missing_until_the_links_have_been_read() {
    let mut bench = Bench::new();
    assert!(!bench.sources.vlan_devices_are_missing(), "nothing is listened to");
    let followed = [(InterfaceId::FIRST, 2)].into();
    let (send, mut batches) = mpsc::channel(CHANNEL);
    let wanted = KernelConfig {
        netns: None,
        ports: vec![(InterfaceId::FIRST, "no-such-link".to_owned())],
        vlans: HostVlans { followed, ..HostVlans::default() },
        vrfs: Vec::new(),
        // Nothing but links is waited for.
        following: Following { routes: false, exact: false, audit: None, receive_buffer: 1 << 20 },
        multicast: false,
        apart: None,
    };
    bench.sources.kernel = Some(netlink::spawn(wanted, send).unwrap());
    let is_none = |event: &SourceEvent| *event == SourceEvent::VlanDevices(Vec::new());
    loop {
        assert!(bench.sources.vlan_devices_are_missing());
        let batch = batches.blocking_recv().unwrap();
        let (none, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_none);
        bench.on_events(others);
        if !none.is_empty() {
            bench.on_events(none);
            break;
        }
    }
    assert!(!bench.sources.vlan_devices_are_missing() && bench.sources.take_new_vlan_devices());
    assert_eq!(bench.sources.vlan_devices(), []);
}
