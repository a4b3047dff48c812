//! A router's surroundings: five ports, tables with routes of every kind, and where the slow path's
//! results go.
//!
//! | port | networks | what is particular |
//! |---|---|---|
//! | 0 | 10.0.1.1/24, fd00:1::1/64 | redirects |
//! | 1 | 10.0.2.1/24, fd00:2::1/64 | a host interface |
//! | 2 | 10.0.3.1/24, fd00:3::1/64 | strict reverse path, unfinished checksums |
//! | 3 | 10.0.4.1/24, fd00:4::1/64 | loose reverse path |
//! | 4 | 10.0.5.1/24 | an MTU of 1000: no IPv6 |
//!
//! On each the host .2 is known. Frames come by VLANs too, without addresses: by 5 on port 0, and by 7 behind the service
//! tag 6 and by 6 itself on port 2.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use dataplane::bond::Bonds;
use dataplane::class::LEAST_TTL;
use dataplane::features::Features;
use dataplane::filters::Judgement;
use dataplane::flow::FlowHash;
use dataplane::interface::{InterfaceId, InterfaceInfo, InterfaceInfos, Mtus, VrfId};
use dataplane::multicast::{MulticastRoute, MulticastRoutes, MulticastTable, Replication};
use dataplane::next_hop::{self, NextHop, NextHopTable};
use dataplane::own::OwnAddresses;
use dataplane::port::PortId;
use dataplane::reason::{DropReason, Punt};
use dataplane::steps::{REDIRECTS, REVERSE_PATH, ReversePath};
use dataplane::tables::{self, Tables};
use dataplane::vlan::{Tag, TagDevices, TagProtocol, Tags, VLANS, Vlan, VlanTable, Vlans};
use fib::{Algorithm, NoReaders, Table};
use slowpath::{
    Command, Config, Event, Icmp, InterfaceConfig, InterfaceSettings, Limits, Output, Packet,
    RouteAnswer, SlowPath, Waiting,
};
use wire::MacAddr;

use crate::check;

/// How many ports there are.
pub const PORTS: u16 = 5;

/// The number of the gateway that is not resolved, 10.0.4.254 and fd00:4::fe.
const GATEWAY4: u16 = 40;
const GATEWAY6: u16 = 41;
const GROUP: u16 = 42;
/// The networks of the ports have these numbers and the following, the known hosts those.
const GLEAN: u16 = 16;
const HOST: u16 = 24;

/// A port's MAC.
pub const fn port_mac(port: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, port as u8 + 1]
}

/// A port's MTU.
pub const fn mtu(port: usize) -> u16 {
    if port == 4 { 1000 } else { 1500 }
}

/// The known host on a port's network.
pub fn host_mac(port: u16) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1 + port as u8, 2])
}

/// The port with this number.
pub fn port(number: u16) -> PortId {
    PortId::new(number).expect("five ports")
}

/// What the steps know of a port.
pub fn info(number: u16) -> InterfaceInfo {
    InterfaceInfo {
        mac: MacAddr(port_mac(number)),
        mtu: mtu(number.into()),
        vrf: VrfId::DEFAULT,
        partial_checksums: number == 2,
        loses_tag_protocol: false,
        inserts_tags: false,
        host: number == 1,
        features: match number {
            0 => Features::NONE.with(REDIRECTS, 1).with(VLANS, 1),
            2 => Features::NONE.with(REVERSE_PATH, ReversePath::Strict as u8).with(VLANS, 1),
            3 => Features::NONE.with(REVERSE_PATH, ReversePath::Loose as u8).with(LEAST_TTL, 255),
            _ => Features::NONE,
        },
    }
}

/// The VLANs, by their numbers.
fn vlans() -> [Vlan; 3] {
    let tag = |protocol, id| Tag { protocol, id, priority: 0 };
    let (customer, service) = (tag(TagProtocol::Dot1q, 5), tag(TagProtocol::Dot1ad, 6));
    let vlan = |number, on, outer, inner| Vlan {
        interface: InterfaceId::new(number).expect("a number"),
        lower: port(on).into(),
        tags: Tags { outer, inner },
    };
    [
        vlan(64, 0, customer, None),
        vlan(65, 2, service, None),
        vlan(66, 2, service, Some(tag(TagProtocol::Dot1q, 7))),
    ]
}

/// A frame that came by this port, without the tags of its VLAN. Shares no code with the router.
pub fn untagged(number: u16, frame: &[u8]) -> Vec<u8> {
    let tag = |at: usize| frame.get(at..at + 4).map(|tag| (&tag[..2], tag[3]));
    let length = match (number, tag(12), tag(16)) {
        (0, Some(([0x81, 0], 5)), _) => 4,
        (2, Some(([0x88, 0xa8], 6)), Some(([0x81, 0], 7))) if frame.len() >= 22 => 8,
        (2, Some(([0x88, 0xa8], 6)), _) => 4,
        _ => 0,
    };
    [&frame[..12.min(frame.len())], frame.get(12 + length..).unwrap_or_default()].concat()
}

struct Fibs {
    v4: Box<dyn Table<Ipv4Addr>>,
    v6: Box<dyn Table<Ipv6Addr>>,
}

impl Fibs {
    fn route(&mut self, prefix: &str, id: u16) {
        let done = match prefix.contains(':') {
            false => self.v4.insert(prefix.parse().expect("a prefix"), id).map(drop),
            true => self.v6.insert(prefix.parse().expect("a prefix"), id).map(drop),
        };
        done.expect("room for a route");
    }
}

/// The tables, with real lookup structures.
pub fn tables() -> Arc<Tables> {
    let algorithm = Algorithm::default();
    let mut fibs = Fibs {
        v4: fib::new_ipv4(algorithm, Box::new(NoReaders)).expect("a table"),
        v6: fib::new_ipv6(algorithm, Box::new(NoReaders)).expect("a table"),
    };
    let hops = NextHopTable::new();
    for number in 0..PORTS {
        let (net, id) = (number + 1, port(number));
        hops.set(GLEAN + number, NextHop::Glean { interface: id.into() });
        hops.set(HOST + number, NextHop::Forward { interface: id.into(), mac: host_mac(number) });
        fibs.route(&format!("10.0.{net}.0/24"), GLEAN + number);
        fibs.route(&format!("10.0.{net}.0/32"), next_hop::MARTIAN);
        fibs.route(&format!("10.0.{net}.1/32"), next_hop::LOCAL);
        fibs.route(&format!("10.0.{net}.2/32"), HOST + number);
        fibs.route(&format!("10.0.{net}.255/32"), next_hop::LOCAL);
        if number < 4 {
            fibs.route(&format!("fd00:{net}::/64"), GLEAN + number);
            fibs.route(&format!("fd00:{net}::/128"), next_hop::LOCAL);
            fibs.route(&format!("fd00:{net}::1/128"), next_hop::LOCAL);
            fibs.route(&format!("fd00:{net}::2/128"), HOST + number);
        }
    }
    for id in [GATEWAY4, GATEWAY6] {
        hops.set(id, NextHop::Unresolved { interface: port(3).into() });
    }
    hops.set(GROUP, NextHop::Group { first: 0, len: 2 });
    assert!(hops.set_members(0, &[HOST + 3, HOST + 4]));
    let v4 = ["192.0.2.0/24", "203.0.113.0/24", "100.64.1.0/24", "100.64.2.0/24", "100.64.3.0/24"];
    let v6 = [1, 3, 4, 5, 6].map(|n| format!("2001:db8:{n}::/48"));
    let ids = [HOST + 3, next_hop::BLACKHOLE, next_hop::PROHIBITED, next_hop::UNREACHABLE, GROUP];
    for ((v4, v6), id) in v4.iter().zip(&v6).zip(ids) {
        fibs.route(v4, id);
        fibs.route(v6, id);
    }
    fibs.route("198.51.100.0/24", GATEWAY4);
    fibs.route("2001:db8:2::/48", GATEWAY6);
    for prefix in ["0.0.0.0/8", "127.0.0.0/8", "240.0.0.0/4", "::/128", "::1/128"] {
        fibs.route(prefix, next_hop::MARTIAN);
    }
    for prefix in ["255.255.255.255/32", "fe80::/10"] {
        fibs.route(prefix, next_hop::LOCAL);
    }
    for prefix in ["224.0.0.0/4", "ff00::/8"] {
        fibs.route(prefix, next_hop::MULTICAST);
    }
    let mut ports: Vec<_> = (0..PORTS).map(info).collect();
    for vlan in vlans() {
        ports.resize(vlan.interface.index(), InterfaceInfo::NONE);
        ports.push(info(vlan.lower.index() as u16));
    }
    let table = VlanTable::default();
    table.set(Arc::new(Vlans::new(&vlans(), TagDevices::default(), &Bonds::default())));
    Arc::new(Tables {
        named_hops: Arc::default(),
        vrfs: Arc::new(tables::VrfTables::new(tables::Fibs {
            fib4: fibs.v4.reader(),
            fib6: fibs.v6.reader(),
        })),
        filters: Arc::default(),
        next_hops: Arc::new(hops),
        mtus: Arc::new(Mtus::new(&ports)),
        shared: Arc::default(),
        vlans: Arc::new(table),
        interfaces: Arc::new(InterfaceInfos::new(ports)),
        flows: FlowHash::new(1),
        own: own(),
        multicast: Arc::new(multicast()),
        mirrors: Arc::default(),
    })
}

/// The addresses of the ports.
fn own() -> Arc<OwnAddresses> {
    let own = OwnAddresses::new(false);
    let of = |number| addresses(number).iter().map(|net| net.parse().expect("a prefix")).collect();
    let all: Vec<(_, Vec<_>)> = (0..PORTS).map(|number| (port(number), of(number))).collect();
    own.publish(
        all.iter().map(|(port, nets)| (InterfaceId::from(*port), VrfId::DEFAULT, &nets[..])),
        [],
    );
    Arc::new(own)
}

/// 239.1.2.3 and ff0e::101 from port 0 to 2, 3 and, beyond a TTL of 9, 4.
fn multicast() -> MulticastTable {
    let mut routes = MulticastRoutes::default();
    let route = |to: &[(u16, u8)]| {
        let to = to.iter().map(|&(number, ttl)| (port(number).into(), ttl));
        MulticastRoute::new(port(0).into(), to, Arc::default())
    };
    routes.ip4.insert(None, [239, 1, 2, 3].into(), route(&[(2, 0), (3, 1), (4, 9)]));
    routes.ip6.insert(None, [0xff0e, 0, 0, 0, 0, 0, 0, 0x101].into(), route(&[(2, 0), (3, 9)]));
    let table = MulticastTable::default();
    table.publish(routes);
    table
}

/// An engine that knows the hosts and the gateway's address; `small`: with little room for anything.
pub fn engine<P: Packet>(small: bool, out: &mut impl Output<P>) -> SlowPath<P> {
    let mut limits = Limits::default();
    if small {
        (limits.neighbours, limits.queue, limits.held, limits.fragments) = (12, 2, 4, 3);
    }
    let ports = (0..PORTS).map(|number| InterfaceConfig {
        id: port(number).into(),
        name: format!("port{number}"),
        mac: MacAddr(port_mac(number)),
        mtu: mtu(number.into()),
        addresses: addresses(number).iter().map(|net| net.parse().expect("a prefix")).collect(),
        host: number == 1,
        is_loopback: false,
        settings: InterfaceSettings {
            redirects: number == 0,
            dad: u8::from(small && number == 2),
            advertise: (small && number == 3).then(slowpath::Advertise::default),
            ..InterfaceSettings::default()
        },
        owned: true,
    });
    let icmp = Icmp::default();
    let config =
        Config { interfaces: ports.collect(), limits, icmp, flow: FlowHash::new(1), seed: 1 };
    let mut engine = SlowPath::new(config);
    let now = Duration::ZERO;
    for number in 0..PORTS {
        for address in [host4(number), host6(number)] {
            let (port, mac) = (port(number), host_mac(number));
            engine.command(
                Command::AddStaticNeighbour { interface: port.into(), address, mac },
                now,
                out,
            );
        }
    }
    for (id, address) in [(GATEWAY4, "10.0.4.254"), (GATEWAY6, "fd00:4::fe")] {
        let address = address.parse().expect("an address");
        engine.command(Command::NextHop { id, interface: port(3).into(), address }, now, out);
    }
    engine
}

fn addresses(number: u16) -> Vec<String> {
    let net = number + 1;
    let mut all = vec![format!("10.0.{net}.1/24")];
    if number < 4 {
        all.push(format!("fd00:{net}::1/64"));
    }
    all
}

fn host4(number: u16) -> IpAddr {
    IpAddr::from([10, 0, number as u8 + 1, 2])
}

fn host6(number: u16) -> IpAddr {
    IpAddr::from([0xfd00, number + 1, 0, 0, 0, 0, 0, 2])
}

/// Takes what the slow path lets out, and checks it.
pub struct World {
    tables: Arc<Tables>,
    /// Packets came as they come behind the fast path's checks.
    validated: bool,
    /// Received packets that came back.
    pub returned: usize,
}

impl World {
    /// `validated`: the engine is given nothing that the fast path would have dropped.
    pub fn new(tables: Arc<Tables>, validated: bool) -> Self {
        Self { tables, validated, returned: 0 }
    }
}

impl<P: Packet> Output<P> for World {
    fn forward(&mut self, port: InterfaceId, packet: P) {
        self.returned += 1;
        if self.validated {
            check::passes(port.index(), packet.bytes());
        } else {
            check::framed(port.index(), packet.bytes());
        }
    }

    fn originate(&mut self, port: InterfaceId, frame: &[u8]) {
        match (check::is_to_routed_group(frame), self.validated) {
            // A copy of what was received: the router itself sends to no such group.
            (true, true) => check::passes(port.index(), frame),
            (true, false) => check::framed(port.index(), frame),
            (false, _) => check::made(port.index(), frame),
        }
    }

    fn to_host(&mut self, _: P) {
        self.returned += 1;
    }

    fn deliver(&mut self, port: InterfaceId, _: P) {
        assert_eq!(port.index(), 1, "delivered to a port without a host interface");
        self.returned += 1;
    }

    fn drop(&mut self, _: P, _: DropReason) {
        self.returned += 1;
    }

    fn hand_over(&mut self, port: InterfaceId, _: IpAddr, _: Waiting<P>) {
        panic!("{port}: there is one engine");
    }

    fn event(&mut self, _: Event) {}

    fn route(&self, vrf: VrfId, destination: IpAddr, flow_hash: u32) -> RouteAnswer {
        let mut next_hop_id = match destination {
            IpAddr::V4(address) => self.tables.vrf(vrf).fib4.lookup(address),
            IpAddr::V6(address) => self.tables.vrf(vrf).fib6.lookup(address),
        };
        let mut hop = self.tables.next_hops.get(next_hop_id);
        if hop.is_group() {
            next_hop_id = self.tables.next_hops.select(hop, flow_hash);
            hop = self.tables.next_hops.get(next_hop_id);
        }
        RouteAnswer { next_hop_id, hop: NextHop::from(hop) }
    }

    fn punted_to(&self, punt: Punt) -> Option<NextHop> {
        self.tables.next_hops.get_of(punt.next_hop, punt.generation).map(NextHop::from)
    }

    fn next_hop(&self, id: u16) -> NextHop {
        NextHop::from(self.tables.next_hops.get(id))
    }

    fn replication(
        &mut self,
        pair: (IpAddr, IpAddr),
        arrival: (InterfaceId, u8),
        bytes: usize,
    ) -> Option<Replication> {
        self.tables.multicast.replicate(pair, arrival, bytes)
    }

    fn judge(&mut self, _: &mut P, _: InterfaceId, _: InterfaceId) -> Judgement {
        Judgement::Pass
    }

    fn judge_copy(&mut self, _: &mut [u8], _: InterfaceId, _: InterfaceId) -> Judgement {
        Judgement::Pass
    }

    fn time_of_day(&self) -> Duration {
        Duration::from_millis(0x0102_0304)
    }

    fn has_joined(&mut self, _: InterfaceId, group: MacAddr) -> bool {
        group.0[5] & 1 != 0
    }
}
