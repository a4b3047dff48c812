//! Tests with a listener and a simulated zebra.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::netlink::message::tests::{zebra_nexthop, zebra_route, zebra_route_over};
use crate::netlink::message::{RTM_DELNEXTHOP, RTM_DELROUTE, RTM_NEWNEXTHOP, RTM_NEWROUTE};
use crate::netlink::{Change, RouteKind};

fn interfaces() -> Interfaces {
    Interfaces {
        by_index: [(1, None), (10, InterfaceId::new(0)), (11, InterfaceId::new(1))].into(),
        vrfs: BTreeMap::new(),
    }
}

/// A frame of these messages.
fn frame(messages: &[Vec<u8>]) -> Vec<u8> {
    let body = messages.concat();
    let length = u16::try_from(body.len() + frame::HEADER).unwrap().to_be_bytes();
    [&[1, 1, length[0], length[1]][..], &body].concat()
}

fn add(net: &str, via: [u8; 4]) -> Vec<u8> {
    zebra_route(RTM_NEWROUTE, net, Some((10, via)))
}

fn delete(net: &str) -> Vec<u8> {
    zebra_route(RTM_DELROUTE, net, None)
}

/// A listener with its clients, and the routes from its events.
struct Scene {
    source: FpmSource,
    events: mpsc::Receiver<Vec<SourceEvent>>,
    _interfaces: watch::Sender<Arc<Interfaces>>,
    routes: BTreeMap<IpNet, RouteKind>,
    /// Withdrawals counted.
    withdrawn: usize,
    begun: usize,
    ended: usize,
}

impl Scene {
    fn new(keep: Duration) -> Self {
        let (send, events) = mpsc::channel(8);
        let (interfaces_out, known) = watch::channel(Arc::new(interfaces()));
        let listen = "127.0.0.1:0".parse().unwrap();
        let entrance = Entrance::open(None, Some(listen), Vec::new()).unwrap();
        let source = spawn(entrance, keep, known, send).unwrap();
        let routes = BTreeMap::new();
        let (withdrawn, begun, ended) = (0, 0, 0);
        Self { source, events, _interfaces: interfaces_out, routes, withdrawn, begun, ended }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.source.local_addr()).unwrap()
    }

    fn take(&mut self) {
        while let Ok(batch) = self.events.try_recv() {
            for event in batch {
                match event {
                    SourceEvent::Route { prefix, change: Change::Set(kind), .. } => {
                        self.routes.insert(prefix, kind);
                    }
                    SourceEvent::Route { prefix, change: Change::Withdraw, .. } => {
                        self.routes.remove(&prefix);
                        self.withdrawn += 1;
                    }
                    SourceEvent::ResyncBegin(_) => self.begun += 1,
                    SourceEvent::ResyncEnd(_) => self.ended += 1,
                    _ => {}
                }
            }
        }
    }

    #[track_caller]
    fn wait(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.take();
            if holds(self) {
                return;
            }
            assert!(Instant::now() < end, "{what}: {:?} {:?}", self.routes, self.source.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn nets(&self) -> Vec<String> {
        self.routes.keys().map(IpNet::to_string).collect()
    }
}

fn nets(list: &[&str]) -> Vec<String> {
    list.iter().map(|net| (*net).to_owned()).collect()
}

#[test]
fn routes_are_kept_while_zebra_is_away_and_swept_when_it_is_back() {
    let mut scene = Scene::new(Duration::from_secs(60));
    let mut zebra = scene.connect();
    let all = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"];
    let many: Vec<String> = (0..30).map(|i| format!("100.64.{i}.0/24")).collect();
    let mut replay: Vec<Vec<u8>> = many.iter().map(|net| add(net, [10, 0, 0, 1])).collect();
    replay.extend(all.iter().map(|net| add(net, [10, 0, 0, 1])));
    // In pieces, as TCP may deliver it.
    for piece in frame(&replay).chunks(7) {
        zebra.write_all(piece).unwrap();
    }
    scene.wait("the replay", |scene| scene.routes.len() == 33);
    scene.wait("its end", |scene| scene.ended == 1);
    assert_eq!(scene.source.status().state, SourceState::Synchronised);
    drop(zebra);
    scene.wait("the end", |scene| scene.source.status().state == SourceState::Disconnected);
    std::thread::sleep(Duration::from_millis(100));
    scene.take();
    assert_eq!((scene.routes.len(), scene.withdrawn), (33, 0), "kept");
    let mut zebra = scene.connect();
    replay.truncate(31);
    zebra.write_all(&frame(&replay)).unwrap();
    scene.wait("the sweep", |scene| scene.withdrawn == 2);
    assert_eq!(scene.nets().iter().filter(|net| all.contains(&net.as_str())).count(), 1);
    assert_eq!((scene.begun, scene.ended), (1, 1), "only the first replay is all that there is");
    assert_eq!(scene.source.status().resyncs, 2);
}

/// Another entrance and another time for a zebra that stays connected; then its routes are withdrawn.
#[test]
fn settings_change_under_a_connected_zebra() {
    let mut scene = Scene::new(Duration::from_secs(60));
    let mut zebra = scene.connect();
    let first = scene.source.local_addr();
    zebra.write_all(&frame(&[add("192.0.2.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("a route", |scene| scene.routes.len() == 1);
    let taken = Entrance::open(None, Some(first), Vec::new()).unwrap_err().to_string();
    assert!(taken.contains(&format!("cannot listen on {first}")), "{taken}");
    let unknown = Entrance::open(None, None, vec!["nobody-of-that-name".into()]).unwrap_err();
    assert!(unknown.to_string().contains("nobody-of-that-name"), "{unknown}");
    let other = Entrance::open(None, Some("127.0.0.1:0".parse().unwrap()), Vec::new()).unwrap();
    scene.source.set(other, Duration::ZERO);
    assert_ne!(scene.source.local_addr(), first);
    scene.wait("nobody listens there", |_| TcpStream::connect(first).is_err());
    zebra.write_all(&frame(&[add("198.51.100.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("another route", |scene| scene.routes.len() == 2);
    drop(zebra);
    scene.wait("the end of zero seconds", |scene| scene.withdrawn == 2);
    let same = Entrance::open(None, None, Vec::new()).unwrap();
    scene.source.set(same, Duration::from_secs(60));
    let mut zebra = scene.connect();
    zebra.write_all(&frame(&[add("192.0.2.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("a route again", |scene| scene.routes.len() == 1);
    let listener = scene.source.local_addr();
    scene.source.end();
    scene.wait("the withdrawal", |scene| scene.routes.is_empty());
    scene.wait("nobody listens", |_| TcpStream::connect(listener).is_err());
}

/// A restarted zebra has few routes at first: routes that it sent before stay in use.
#[test]
fn a_zebra_that_begins_anew_has_time_to_learn() {
    let keep = Duration::from_secs(1000);
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let mut session = Session::new(keep);
    session.set_interfaces(&interfaces());
    session.connected(begin);
    let many: Vec<Vec<u8>> =
        (0..100).map(|i| add(&format!("100.64.{i}.0/24"), [10, 0, 0, 1])).collect();
    session.take(&many.concat(), begin);
    session.tick(at(2));
    assert!(matches!(session.phase, Phase::Replay { .. }), "zebra pauses for a second");
    session.tick(at(4));
    assert_eq!(session.phase, Phase::Synchronised);
    session.disconnected(at(10));
    session.connected(at(20));
    session.take(&many[0], at(20));
    session.tick(at(900));
    assert_eq!(session.routes.count(), 100);
    session.take(&many[1..80].concat(), at(950));
    session.tick(at(1020));
    assert_eq!((session.routes.count(), session.phase), (80, Phase::Synchronised));
    // Disconnected for longer than routes are kept.
    session.disconnected(at(1100));
    session.tick(at(2099));
    assert_eq!(session.routes.count(), 80);
    session.tick(at(2100));
    assert_eq!(session.routes.count(), 0);
}

/// Zebra changes a route by a deletion and an addition in one frame.
#[test]
fn a_changed_route_is_never_gone() {
    let mut scene = Scene::new(Duration::from_secs(60));
    let mut zebra = scene.connect();
    zebra.write_all(&frame(&[add("192.0.2.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("the route", |scene| scene.routes.len() == 1);
    let changed = frame(&[delete("192.0.2.0/24"), add("192.0.2.0/24", [10, 0, 0, 2])]);
    zebra.write_all(&changed).unwrap();
    let via = "10.0.0.2".parse().unwrap();
    let over = RouteKind::Unicast(vec![crate::rib::Path::over(InterfaceId::new(0).unwrap(), via)]);
    scene.wait("the change", |scene| scene.routes.values().all(|kind| *kind == over));
    assert_eq!(scene.withdrawn, 0);
    // With a deletion of another route in between, only that route is withdrawn.
    zebra.write_all(&frame(&[add("198.51.100.0/24", [10, 0, 0, 2])])).unwrap();
    let both =
        [delete("198.51.100.0/24"), delete("192.0.2.0/24"), add("192.0.2.0/24", [10, 0, 0, 1])];
    zebra.write_all(&frame(&both)).unwrap();
    scene.wait("the deletion", |scene| scene.withdrawn == 1);
    assert_eq!(scene.nets(), nets(&["192.0.2.0/24"]));
}

#[test]
fn a_table_of_a_vrf_has_its_routes() {
    let vrf = VrfId::new(4);
    // The test messages name table 254.
    let known = Interfaces { vrfs: [(254, vrf)].into(), ..interfaces() };
    let events = replay(&frame(&[add("192.0.2.0/24", [10, 0, 0, 1])]), &known);
    let of = |event: &SourceEvent| match event {
        SourceEvent::Route { vrf, .. } => Some(*vrf),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(of).collect::<Vec<_>>(), [VrfId::DEFAULT, vrf]);
}

#[test]
fn nexthop_objects_come_and_go_as_zebra_says() {
    let messages = [
        zebra_route_over("192.0.2.0/24", 5),
        zebra_nexthop(RTM_NEWNEXTHOP, 5, 10, [10, 0, 0, 1]),
        zebra_nexthop(RTM_DELNEXTHOP, 5, 0, [0; 4]),
        zebra_nexthop(RTM_NEWNEXTHOP, 5, 11, [10, 0, 0, 2]),
    ];
    let events = replay(&frame(&messages), &interfaces());
    let word = |event: &SourceEvent| match event {
        SourceEvent::Route { change: Change::Set(RouteKind::NextHopGroup(key)), .. } => {
            format!("route over {}", key.id)
        }
        SourceEvent::Group { change: Change::Set(spec), .. } => {
            format!("group by {:?}", spec.paths[0].interface.map(InterfaceId::index))
        }
        SourceEvent::Group { change: Change::Withdraw, .. } => "no group".to_owned(),
        SourceEvent::ResyncBegin(_) => "begin".to_owned(),
        other => format!("{other:?}"),
    };
    let words: Vec<String> = events.iter().map(word).collect();
    // The RIB drops the routes of a group that it loses, so they are sent again together with the
    // group.
    let expected = [
        "begin",
        "route over 5",
        "group by Some(0)",
        "route over 5",
        "no group",
        "group by Some(1)",
        "route over 5",
    ];
    assert_eq!(words, expected);
}

/// Result of a capture's events, in words.
fn captured(stream: &[u8]) -> Vec<String> {
    let by_index =
        [(1, None), (2, None), (3, InterfaceId::new(0)), (4, None), (5, InterfaceId::new(1))];
    let mut routes = BTreeMap::new();
    let mut groups = BTreeMap::new();
    for event in replay(stream, &Interfaces { by_index: by_index.into(), ..Interfaces::default() })
    {
        match event {
            SourceEvent::Route { prefix, change: Change::Set(kind), metric, .. } => {
                assert_eq!(metric, 20, "zebra's only metric");
                routes.insert(prefix, kind);
            }
            SourceEvent::Route { prefix, change: Change::Withdraw, .. } => {
                assert!(routes.remove(&prefix).is_some());
            }
            SourceEvent::Group { key, change: Change::Set(spec) } => {
                groups.insert(key, spec.paths);
            }
            SourceEvent::Group { key, change: Change::Withdraw } => {
                assert!(groups.remove(&key).is_some());
            }
            _ => {}
        }
    }
    let words = |(prefix, kind): (&IpNet, &RouteKind)| {
        let paths = match kind {
            RouteKind::Unicast(paths) => paths,
            RouteKind::NextHopGroup(key) => &groups[key],
            other => return format!("{prefix} {other:?}"),
        };
        let port = |path: &crate::rib::Path| ["lan", "wan"][path.interface.unwrap().index()];
        let via = |path: &crate::rib::Path| path.via.map_or("link".into(), |via| via.to_string());
        let path = |path| format!(" {} {}", port(path), via(path));
        format!("{prefix}{}", paths.iter().map(path).collect::<String>())
    };
    routes.iter().map(words).collect()
}

#[test]
fn a_real_zebra_is_understood() {
    let groups = include_bytes!("../../tests/data/zebra-8.4.4-nexthop-groups.fpm");
    let plain = include_bytes!("../../tests/data/zebra-8.4.4-plain.fpm");
    let expected = |gateway: &str| {
        [
            "10.0.1.0/24 lan link".to_owned(),
            "10.0.2.0/24 wan link".to_owned(),
            "10.255.0.1/32 Host".to_owned(),
            "100.65.0.0/16 Unreachable".to_owned(),
            format!("192.0.2.0/24 lan {gateway}"),
            "198.51.100.0/24 lan 10.0.1.2 wan 10.0.2.2".to_owned(),
            format!("203.0.113.0/24 lan {gateway}"),
            "2001:db8:1::/64 lan link".to_owned(),
            "2001:db8:100::/48 lan 2001:db8:1::2".to_owned(),
        ]
    };
    assert_eq!(captured(groups), expected("10.0.1.77"));
    assert_eq!(captured(plain), expected("10.0.1.2"));
}

#[test]
fn a_broken_stream_costs_its_connection_only() {
    let mut scene = Scene::new(Duration::from_secs(60));
    let mut zebra = scene.connect();
    // A malformed message in a well-formed frame is skipped.
    let mut nonsense = add("198.51.100.0/24", [10, 0, 0, 1]);
    nonsense[16 + 1] = 99;
    let good = add("192.0.2.0/24", [10, 0, 0, 1]);
    zebra.write_all(&frame(&[nonsense, good])).unwrap();
    scene.wait("the good one", |scene| scene.nets() == nets(&["192.0.2.0/24"]));
    scene.wait("the count", |scene| scene.source.status().errors == 1);
    zebra.write_all(&[9, 9, 9, 9, 9]).unwrap();
    assert_eq!(zebra.read(&mut [0; 1]).unwrap_or(0), 0, "the connection is closed");
    scene.wait("the count", |scene| scene.source.status().errors == 2);
    let mut zebra = scene.connect();
    zebra.write_all(&frame(&[add("203.0.113.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("a new start", |scene| scene.nets() == nets(&["192.0.2.0/24", "203.0.113.0/24"]));
}

/// Otherwise any new connection would end zebra's session.
#[test]
fn a_second_connection_is_refused_until_the_first_is_closed() {
    let mut scene = Scene::new(Duration::from_secs(60));
    let mut first = scene.connect();
    first.write_all(&frame(&[add("192.0.2.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("the first", |scene| scene.routes.len() == 1);
    let mut second = scene.connect();
    assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0, "the second is closed");
    scene.wait("the count", |scene| scene.source.status().errors == 1);
    first.write_all(&frame(&[add("203.0.113.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("the first goes on", |scene| scene.routes.len() == 2);
    let status = scene.source.status();
    assert_eq!((status.connections, status.peer), (1, Some(first.local_addr().unwrap())));
    // Immediately, before the end of the first can have been read.
    drop(first);
    let mut third = scene.connect();
    third.write_all(&frame(&[add("198.51.100.0/24", [10, 0, 0, 1])])).unwrap();
    scene.wait("the third", |scene| scene.routes.len() == 3);
    let status = scene.source.status();
    assert_eq!((status.connections, status.peer), (2, Some(third.local_addr().unwrap())));
}

proptest! {
    /// Arbitrary bytes do no harm.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300), framed in any::<bool>()) {
        let stream = if framed { frame(std::slice::from_ref(&bytes)) } else { bytes };
        replay(&stream, &interfaces());
    }
}

/// A next hop over an unknown interface is counted and not used until the interface appears.
#[test]
fn ways_over_unknown_interfaces_are_refused_until_they_appear() {
    let mut session = Session::new(Duration::ZERO);
    let now = Instant::now();
    session.set_interfaces(&interfaces());
    session.connected(now);
    let over = |net: &str, index| zebra_route(RTM_NEWROUTE, net, Some((index, [10, 0, 1, 2])));
    let single = zebra_nexthop(RTM_NEWNEXTHOP, 5, 77, [10, 0, 1, 3]);
    let messages = [
        over("20.1.0.0/16", 77),
        over("20.2.0.0/16", 10),
        over("20.3.0.0/16", 1),
        single,
        zebra_route_over("20.4.0.0/16", 5),
    ];
    session.take(&messages.concat(), now);
    let told = |session: &mut Session| -> Vec<(String, RouteKind)> {
        let events = session.routes.take_events().into_iter();
        let set = events.filter_map(|event| match event {
            SourceEvent::Route { prefix, change: Change::Set(kind), .. } => {
                Some((prefix.to_string(), kind))
            }
            _ => None,
        });
        let group = |kind: &RouteKind| matches!(kind, RouteKind::NextHopGroup(_));
        set.filter(|(_, kind)| !group(kind)).collect()
    };
    let first = told(&mut session);
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["20.2.0.0/16", "20.3.0.0/16"]);
    assert_eq!(first[1].1, RouteKind::Host, "an interface that is no port is the kernel's");
    assert_eq!((session.errors, session.routes.count()), (2, 4));
    let mut more = interfaces();
    more.by_index.insert(77, InterfaceId::new(1));
    session.set_interfaces(&more);
    let then = told(&mut session);
    assert_eq!(then[0].0, "20.1.0.0/16", "{then:?}");
    assert!(
        matches!(&then[0].1, RouteKind::Unicast(paths) if paths[0].interface == InterfaceId::new(1))
    );
}

/// Zebra's machine may end without closing its connection.
#[tokio::test]
async fn a_silent_peer_is_asked_whether_it_is_there() {
    use nix::sys::socket::getsockopt;

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let local = listener.local_addr().unwrap();
    let _client = TcpStream::connect(local).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    notice_death(&stream).unwrap();
    assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
    assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), KEEPALIVE_IDLE_S);
}
