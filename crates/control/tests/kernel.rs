//! The kernel as a source, in a network namespace: the state that results from the events equals
//! that shown by `ip`.
//!
//! The tests require root, to create network namespaces, and iproute2.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use control::netlink::{
    Change, Following, GroupKey, GroupSpec, HostVlans, KernelConfig, KernelOrder, KernelSource,
    NeighbourState, RouteKind, SourceEvent, SourceState, spawn,
};
use control::rib::Path;
use dataplane::interface::InterfaceId;
use ipnet::IpNet;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use wire::MacAddr;

/// A namespace that is removed with the value.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("nl-{name}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).status();
        assert!(
            made.is_ok_and(|status| status.success()),
            "no namespace {name}: these tests need root and iproute2"
        );
        let this = Self(name);
        this.ip("link set lo up");
        this
    }

    /// Runs `ip`, which must succeed.
    fn ip(&self, arguments: &str) -> String {
        let output = self.command().args(arguments.split_whitespace()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["-n", &self.0]);
        command
    }

    /// Runs many commands of `ip` at once, continuing after errors.
    fn batch(&self, commands: &str) {
        let mut child = self
            .command()
            .args(["-force", "-batch", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), commands.as_bytes()).unwrap();
        child.wait().unwrap();
    }

    /// Creates two ports, `lan` and `wan`, whose other ends `lan-x` and `wan-x` are up.
    fn two_ports(&self) {
        for (name, v4, v6) in
            [("lan", "10.0.1.1/24", "2001:db8:1::1/64"), ("wan", "10.0.2.1/24", "2001:db8:2::1/64")]
        {
            self.ip(&format!("link add {name} type veth peer name {name}-x"));
            self.ip(&format!("addr add {v4} dev {name}"));
            self.ip(&format!("-6 addr add {v6} dev {name} nodad"));
            self.ip(&format!("link set {name} up"));
            self.ip(&format!("link set {name}-x up"));
        }
    }

    fn spawn(&self, receive_buffer: usize) -> Listener {
        let (send, events) = mpsc::channel(8);
        let port = |number, name: &str| (InterfaceId::new(number).unwrap(), name.to_owned());
        let config = KernelConfig {
            netns: Some(format!("/run/netns/{}", self.0).into()),
            ports: vec![port(0, "lan"), port(1, "wan")],
            vlans: HostVlans::default(),
            vrfs: Vec::new(),
            multicast: false,
            apart: None,
            following: Following { routes: true, exact: false, audit: None, receive_buffer },
        };
        let source = spawn(config, send).unwrap();
        Listener { source, events, state: State::default() }
    }

    /// Returns the main tables as shown by `ip`, in the form of [`State::routes`].
    fn routes(&self) -> BTreeSet<String> {
        let mut all = BTreeMap::new();
        for family in ["-4", "-6"] {
            let text = self.ip(&format!("{family} -j -N route show table 254"));
            let list: Value = serde_json::from_str(&text).unwrap_or_default();
            for route in list.as_array().into_iter().flatten() {
                if let Some((destination, leads)) = shown(route, family == "-4") {
                    // Of several with one metric the first is used.
                    all.entry(destination).or_insert(leads);
                }
            }
        }
        all.into_iter().map(|(destination, leads)| destination + &leads).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Returns a route of `ip -j route` in words, destination and metric apart; `None` for connected
/// networks and link-local addresses.
fn shown(route: &Value, ipv4: bool) -> Option<(String, String)> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let destination = match text(route, "dst") {
        any if any == "default" && ipv4 => "0.0.0.0/0".to_owned(),
        any if any == "default" => "::/0".to_owned(),
        net if net.contains('/') => net,
        host if ipv4 => format!("{host}/32"),
        host => format!("{host}/128"),
    };
    if destination.starts_with("fe80") || destination.starts_with("ff00") {
        return None;
    }
    let metric = route["metric"].as_u64().unwrap_or(0);
    let via = |hop: &Value| match &hop["via"] {
        Value::Object(via) => via["host"].as_str().unwrap_or_default().to_owned(),
        _ => text(hop, "gateway"),
    };
    let path = |hop: &Value| {
        let weight = hop["weight"].as_u64().unwrap_or(1);
        format!("{} {} {weight}", text(hop, "dev"), via(hop))
    };
    let hops = match route["nexthops"].as_array() {
        Some(hops) => hops.iter().filter(|hop| !is_dead(hop)).map(path).collect(),
        None if route["dev"].is_string() => BTreeSet::from([path(route)]),
        None => BTreeSet::new(),
    };
    let kernel = matches!(text(route, "protocol").as_str(), "2" | "kernel");
    if kernel && via(route).is_empty() && route["nexthops"].is_null() {
        return None;
    }
    let kind = match text(route, "type").as_str() {
        "6" | "blackhole" => "blackhole".to_owned(),
        "7" | "unreachable" => "unreachable".to_owned(),
        "8" | "prohibit" => "prohibit".to_owned(),
        _ if hops.iter().any(|hop| !hop.starts_with("lan ") && !hop.starts_with("wan ")) => {
            "host".to_owned()
        }
        _ => format!("{hops:?}"),
    };
    Some((format!("{destination} metric {metric} "), kind))
}

/// Returns true if the kernel does not use the hop.
fn is_dead(hop: &Value) -> bool {
    hop["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "dead"))
}

/// The state that results from the events.
#[derive(Default)]
struct State {
    routes: BTreeMap<(IpNet, u64), RouteKind>,
    groups: BTreeMap<GroupKey, GroupSpec>,
    links: BTreeMap<InterfaceId, (bool, bool, u16)>,
    addresses: BTreeMap<InterfaceId, Vec<IpNet>>,
    locals: BTreeSet<IpNet>,
    neighbours: BTreeMap<IpAddr, (NeighbourState, bool)>,
    route_events: usize,
    audited: usize,
    audits: usize,
    all_multicast: bool,
    virtual_macs: Vec<(InterfaceId, MacAddr)>,
    complete: bool,
}

impl State {
    fn apply(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Route { prefix, metric, change, .. } => {
                self.route_events += 1;
                match change {
                    Change::Set(kind) => drop(self.routes.insert((prefix, metric), kind)),
                    Change::Withdraw => drop(self.routes.remove(&(prefix, metric))),
                }
            }
            SourceEvent::Group { key, change: Change::Set(spec) } => {
                self.groups.insert(key, spec);
            }
            SourceEvent::Group { key, change: Change::Withdraw } => {
                assert!(self.groups.remove(&key).is_some(), "{key:?} withdrawn and never told");
            }
            SourceEvent::Link { port, admin_up, carrier, mtu, .. } => {
                self.links.insert(port, (admin_up, carrier, mtu));
            }
            SourceEvent::Addresses { port, addresses } => {
                self.addresses.insert(port, addresses);
            }
            SourceEvent::LocalAddress { prefix, present: true, .. } => {
                self.locals.insert(prefix);
            }
            SourceEvent::LocalAddress { prefix, present: false, .. } => {
                self.locals.remove(&prefix);
            }
            SourceEvent::Neighbour { address, mac, state, .. } => {
                self.neighbours.insert(address, (state, mac.is_some()));
            }
            SourceEvent::ResyncEnd(_) => self.complete = true,
            SourceEvent::Apart(..) => panic!("{event:?} of no VRF's namespace"),
            SourceEvent::AuditRoute { prefix, metric, kind, .. } => {
                assert_eq!(self.routes.get(&(prefix, metric)), Some(&kind), "{prefix}");
                self.audited += 1;
            }
            SourceEvent::AuditGroup { key, spec } => {
                assert_eq!(self.groups.get(&key), Some(&spec), "{key:?}");
            }
            SourceEvent::AuditBegin(_) => self.audited = 0,
            SourceEvent::Audit(_) => {
                assert_eq!(self.audited, self.routes.len(), "all recalled");
                self.audits += 1;
            }
            SourceEvent::AllMulticast { on, .. } => self.all_multicast = on,
            SourceEvent::VirtualMacs(macs) => self.virtual_macs = macs,
            SourceEvent::VlanDevices(_) => panic!("{event:?}: none are followed"),
            SourceEvent::ResyncBegin(_) => {}
        }
    }

    /// Returns the routes in words.
    fn routes(&self) -> BTreeSet<String> {
        let words = |((prefix, metric), kind): (&(IpNet, u64), &RouteKind)| {
            let paths = |paths: &[Path]| {
                let path = |path: &Path| {
                    let port = ["lan", "wan"][path.interface.unwrap().index()];
                    let via = path.via.map(|via| via.to_string()).unwrap_or_default();
                    format!("{port} {via} {}", path.weight)
                };
                format!("{:?}", paths.iter().map(path).collect::<BTreeSet<_>>())
            };
            let kind = match kind {
                RouteKind::Unicast(list) => paths(list),
                RouteKind::NextHopGroup(key) => match self.groups.get(key) {
                    Some(spec) if spec.blackhole => "blackhole".to_owned(),
                    Some(spec) => paths(&spec.paths),
                    None => "no group".to_owned(),
                },
                RouteKind::Blackhole => "blackhole".to_owned(),
                RouteKind::Prohibited => "prohibit".to_owned(),
                RouteKind::Unreachable => "unreachable".to_owned(),
                RouteKind::Host => "host".to_owned(),
            };
            format!("{prefix} metric {metric} {kind}")
        };
        self.routes.iter().map(words).collect()
    }
}

struct Listener {
    source: KernelSource,
    events: mpsc::Receiver<Vec<SourceEvent>>,
    state: State,
}

impl Listener {
    fn take(&mut self) {
        while let Ok(batch) = self.events.try_recv() {
            batch.into_iter().for_each(|event| self.state.apply(event));
        }
    }

    /// Waits until the condition holds.
    #[track_caller]
    fn wait(&mut self, what: &str, mut holds: impl FnMut(&State) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.take();
            if holds(&self.state) {
                return;
            }
            assert!(Instant::now() < end, "{what}: not within 20 s: {:#?}", self.state.routes());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until our routes are those of `ip`.
    #[track_caller]
    fn agrees(&mut self, namespace: &Namespace, after: &str) {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            self.take();
            let (ours, theirs) = (self.state.routes(), namespace.routes());
            if ours == theirs {
                return;
            }
            if Instant::now() > end {
                let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
                    a.difference(b).take(10).cloned().collect::<Vec<_>>()
                };
                panic!(
                    "after {after}: only ours {:#?}, only the kernel's {:#?}",
                    only(&ours, &theirs),
                    only(&theirs, &ours)
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Requests a comparison with the kernel and returns the number of differences.
    fn audit(&mut self) -> usize {
        let (answer, mut answered) = oneshot::channel();
        self.source.order(KernelOrder::Audit(answer));
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            self.take();
            if let Ok(report) = answered.try_recv() {
                assert_eq!(report.examples.is_empty(), report.clean());
                return report.missing + report.stale + report.different;
            }
            assert!(Instant::now() < end, "no answer to the audit");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Each step is made by `ip` while the source follows the kernel; then the tables must agree, and
/// the audit must find no difference. Among the steps are all those after which the kernel drops
/// routes without a message.
#[test]
fn what_ip_does_is_followed() {
    let namespace = Namespace::new("steps");
    namespace.two_ports();
    // As recommended by FRR: IPv6 routes are dropped without a message, too.
    let silent = "echo 1 > /proc/sys/net/ipv6/route/skip_notify_on_dev_down";
    let set = Command::new("ip").args(["netns", "exec", &namespace.0, "sh", "-c", silent]).status();
    assert!(set.is_ok_and(|status| status.success()));
    namespace.ip("route add 192.0.2.0/24 via 10.0.1.2 metric 7");
    let mut listener = namespace.spawn(16 << 20);
    listener.wait("the first reading", |state| state.complete);
    listener.agrees(&namespace, "the first reading");
    let steps = [
        "route add 198.51.100.0/24 via 10.0.1.2",
        "route add 198.51.100.0/24 via 10.0.2.2 metric 50",
        "route replace 198.51.100.0/24 via 10.0.1.3",
        "route append 198.51.100.0/24 via 10.0.1.4",
        "route del 198.51.100.0/24 via 10.0.1.3",
        "route add 203.0.113.0/24 nexthop via 10.0.1.2 weight 3 nexthop via 10.0.2.2 weight 10",
        "route add blackhole 100.64.0.0/16",
        "route add unreachable 100.65.0.0/16",
        "route add prohibit 100.66.0.0/16",
        "route add default dev lan",
        "route add 100.67.0.0/16 via inet6 2001:db8:1::9 dev lan",
        "route add 100.68.0.0/16 via 10.9.9.9 dev wan onlink",
        "route add 100.69.0.0/16 dev lan-x",
        "route add 100.70.0.0/16 via 10.0.1.5 src 10.0.2.1",
        "-6 route add 2001:db8:100::/48 via 2001:db8:1::2",
        "-6 route append 2001:db8:100::/48 via 2001:db8:1::3",
        "-6 route append 2001:db8:100::/48 via 2001:db8:2::3",
        "-6 route del 2001:db8:100::/48 via 2001:db8:1::2",
        "-6 route add 2001:db8:101::/48 nexthop via 2001:db8:1::2 weight 2 nexthop via 2001:db8:2::2",
        "-6 route replace 2001:db8:101::/48 via 2001:db8:2::7",
        "-6 route add blackhole 2001:db8:102::/48",
        "nexthop add id 1 via 10.0.1.2 dev lan",
        "nexthop add id 2 via 10.0.2.2 dev wan",
        "nexthop add id 3 blackhole",
        "nexthop add id 6 via 2001:db8:1::2 dev lan",
        "nexthop add id 10 group 1,3/2,20",
        "nexthop add id 11 group 1/2 type resilient buckets 64",
        "route add 100.80.0.0/16 nhid 10",
        "route add 100.81.0.0/16 nhid 11",
        "route add 100.82.0.0/16 nhid 3",
        "route add 100.83.0.0/16 nhid 1",
        "-6 route add 2001:db8:103::/48 nhid 6",
        "nexthop replace id 1 via 10.0.1.77 dev lan",
        "nexthop replace id 10 group 1",
        "nexthop replace id 10 group 1/2",
        // Without a message: the routes over it.
        "nexthop del id 3",
        "nexthop del id 1",
        // Without a message: the routes that prefer it as source.
        "addr del 10.0.2.1/24 dev wan",
        "addr add 10.0.2.1/24 dev wan",
        "route add 203.0.114.0/24 nexthop via 10.0.1.2 nexthop via 10.0.2.2",
        "route add 100.90.0.0/16 via 10.0.2.9",
        "nexthop replace id 2 via 10.0.2.2 dev wan",
        "route add 100.91.0.0/16 nhid 2",
        // Without a message: nexthop objects over it.
        "link set wan-x down",
        "link set wan-x up",
        // Without a message: everything over it.
        "-6 route add 2001:db8:104::/48 nexthop via 2001:db8:1::2 nexthop via 2001:db8:2::2",
        "-6 route add 2001:db8:105::/48 nexthop via 2001:db8:2::2 nexthop via fe80::9 dev lan",
        "link set lan down",
        "link set lan up",
        "route add 100.92.0.0/16 via 10.0.1.9",
        "link set lan mtu 1400",
        "link del wan",
    ];
    for step in steps {
        namespace.ip(step);
        // A path over a dead link stays in our routes, since the RIB leaves it out because of the
        // link.
        if step.starts_with("link set wan-x") {
            std::thread::sleep(Duration::from_millis(300));
        }
        if !step.contains("down") {
            listener.agrees(&namespace, step);
        }
    }
    let lan = InterfaceId::new(0).unwrap();
    listener.wait("the MTU", |state| state.links[&lan] == (true, true, 1400));
    listener.wait("the port's end", |state| {
        state.links[&InterfaceId::new(1).unwrap()] == (false, false, 0)
            && state.addresses[&InterfaceId::new(1).unwrap()].is_empty()
    });
    assert_eq!(listener.audit(), 0, "the audit found what was missed");
    assert_eq!(listener.source.status().state, SourceState::Synchronised);
    assert_eq!(listener.source.status().errors, 0);
    assert_eq!(listener.source.status().overruns, 0);
}

/// With a receive buffer for a handful of messages, nearly all of 20,000 changes are lost. The
/// final state is the same, and an unchanged route is never reported again.
#[test]
fn overruns_converge() {
    let namespace = Namespace::new("overrun");
    namespace.two_ports();
    namespace.ip("route add 192.0.2.0/24 via 10.0.1.2");
    let mut listener = namespace.spawn(2304);
    listener.wait("the first reading", |state| state.complete);
    listener.agrees(&namespace, "the first reading");
    let commands: String = (0..20_000)
        .map(|i| {
            let (a, b) = (i / 2 / 256 % 256, i / 2 % 256);
            match i % 3 {
                2 => format!("route del 100.{a}.{b}.0/24\n"),
                _ => format!("route add 100.{a}.{b}.0/24 via 10.0.{}.2\n", 1 + i % 2),
            }
        })
        .collect();
    std::thread::scope(|scope| {
        let storm = scope.spawn(|| namespace.batch(&commands));
        while !storm.is_finished() {
            listener.take();
            let kept = ("192.0.2.0/24".parse().unwrap(), 0);
            assert!(listener.state.routes.contains_key(&kept), "a route that did not change went");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    listener.agrees(&namespace, "the storm");
    let end = Instant::now() + Duration::from_secs(5);
    while listener.source.status().state != SourceState::Synchronised {
        assert!(Instant::now() < end, "still synchronising");
        listener.take();
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = listener.source.status();
    assert!(status.overruns > 0 && status.resyncs > 1, "no overrun: {status:?}");
    assert!(listener.state.routes.len() > 1000, "{} routes", listener.state.routes.len());
    assert_eq!(listener.audit(), 0);
}

/// The kernel carries out orders and reports the changes.
#[test]
fn orders_are_carried_out() {
    let namespace = Namespace::new("orders");
    namespace.two_ports();
    namespace.ip("addr add 10.255.0.1/32 dev lo");
    let mut listener = namespace.spawn(1 << 20);
    listener.wait("the first reading", |state| state.complete);
    let lan = InterfaceId::new(0).unwrap();
    listener.wait("lo's address", |state| state.locals.contains(&"10.255.0.1/32".parse().unwrap()));
    assert!(listener.state.links[&lan].0);
    let order = |listener: &Listener, order| listener.source.order(order);
    namespace.ip("link set lan mtu 1300");
    listener.wait("the MTU", |state| state.links[&lan].2 == 1300);
    let address: IpNet = "10.7.0.1/24".parse().unwrap();
    order(&listener, KernelOrder::AddAddress { port: lan, address });
    listener.wait("the address", |state| state.addresses[&lan].contains(&address));
    namespace.ip("addr del 10.7.0.1/24 dev lan");
    listener.wait("its end", |state| !state.addresses[&lan].contains(&address));
    let nobody: IpAddr = "10.0.1.200".parse().unwrap();
    order(&listener, KernelOrder::Resolve { port: lan, address: nobody });
    listener.wait("no answer", |state| {
        state.neighbours.get(&nobody) == Some(&(NeighbourState::Failed, false))
    });
    namespace.ip("neigh replace 10.0.1.9 lladdr 02:00:00:00:00:09 dev lan");
    listener.wait("a neighbour", |state| {
        state.neighbours.get(&"10.0.1.9".parse().unwrap())
            == Some(&(NeighbourState::Permanent, true))
    });
    namespace.ip("link set lan allmulticast on");
    listener.wait("all multicasts", |state| state.all_multicast);
    namespace.ip("link set lan allmulticast off");
    listener.wait("not all of them", |state| !state.all_multicast);
    namespace.ip("link set lan down");
    listener.wait("down", |state| !state.links[&lan].0);
    assert_eq!(listener.source.status().errors, 0);
}

/// A MACVLAN device on a port makes its MAC a virtual one while it has an address of its own.
#[test]
fn virtual_macs_are_followed() {
    let namespace = Namespace::new("virtual");
    namespace.two_ports();
    namespace.ip("link add v link lan address 00:00:5e:00:01:07 type macvlan mode private");
    namespace.ip("link set v addrgenmode none");
    namespace.ip("link set v up");
    namespace.ip("addr add 10.0.1.99/32 dev v");
    let (lan, mac) = (InterfaceId::new(0).unwrap(), MacAddr([0, 0, 0x5e, 0, 1, 7]));
    let mut listener = namespace.spawn(1 << 20);
    listener.wait("the first reading", |state| state.virtual_macs == [(lan, mac)]);
    namespace.ip("addr del 10.0.1.99/32 dev v");
    listener.wait("a backup", |state| state.virtual_macs.is_empty());
    namespace.ip("addr add 10.0.1.99/32 dev v");
    listener.wait("a master", |state| state.virtual_macs == [(lan, mac)]);
    let other = InterfaceId::new(5).unwrap();
    listener.source.order(KernelOrder::Ports(vec![(other, "lan".into())]));
    listener.wait("a port of another number", |state| state.virtual_macs == [(other, mac)]);
    namespace.ip("link set v down");
    listener.wait("down", |state| state.virtual_macs.is_empty());
    namespace.ip("link set v up");
    listener.wait("up", |state| state.virtual_macs == [(other, mac)]);
    namespace.ip("link del v");
    listener.wait("its end", |state| state.virtual_macs.is_empty());
}

/// Rules select the tables in use, and an earlier table hides a later one's longer prefixes.
#[test]
fn rules_are_followed() {
    let namespace = Namespace::new("rules");
    namespace.two_ports();
    namespace.ip("route add 100.64.0.0/16 via 10.0.1.2");
    namespace.ip("route add 100.64.7.0/24 via 10.0.1.7");
    namespace.ip("route add 100.64.0.0/16 via 10.0.2.2 table 100");
    let mut listener = namespace.spawn(1 << 20);
    listener.wait("the first reading", |state| state.complete);
    listener.agrees(&namespace, "the first reading");
    namespace.ip("rule add pref 100 lookup 100");
    let kind =
        |state: &State, prefix: &str| state.routes.get(&(prefix.parse().unwrap(), 0)).cloned();
    let over = |port: u16, via: &str| {
        let path = Path::over(InterfaceId::new(port).unwrap(), via.parse().unwrap());
        Some(RouteKind::Unicast(vec![path]))
    };
    listener.wait("table 100 to count", |state| {
        kind(state, "100.64.0.0/16") == over(1, "10.0.2.2")
            && kind(state, "100.64.7.0/24").is_none()
    });
    namespace.ip("route add throw 100.64.7.0/24 table 100");
    listener.wait("the throw", |state| kind(state, "100.64.7.0/24") == over(0, "10.0.1.7"));
    namespace.ip("rule del pref 100");
    listener.agrees(&namespace, "the rule's end");
    assert_eq!(listener.audit(), 0);
}

/// The owner changes the set of ports while the source runs.
#[test]
fn interfaces_become_ports_and_cease_to_be() {
    let namespace = Namespace::new("ports");
    namespace.two_ports();
    namespace.ip("route add 198.51.100.0/24 via 10.0.2.9");
    let mut listener = namespace.spawn(1 << 20);
    let (lan, wan) = (InterfaceId::new(0).unwrap(), InterfaceId::new(1).unwrap());
    let key: (IpNet, u64) = ("198.51.100.0/24".parse().unwrap(), 0);
    let over = move |state: &State, port: InterfaceId| {
        let Some(RouteKind::Unicast(paths)) = state.routes.get(&key) else { return false };
        paths.len() == 1 && paths[0].interface == Some(port)
    };
    listener.wait("over a port", |state| over(state, wan));
    listener.source.order(KernelOrder::Ports(vec![(lan, "lan".into())]));
    listener.wait("an interface that is no port any more", |state| {
        let gone = state.links.get(&wan) == Some(&(false, false, 0));
        let host = state.routes.get(&key) == Some(&RouteKind::Host);
        gone && host && state.addresses[&wan].is_empty()
    });
    let other = InterfaceId::new(5).unwrap();
    listener.source.order(KernelOrder::Ports(vec![(lan, "lan".into()), (other, "wan".into())]));
    listener.wait("a port of another number", |state| {
        let link = state.links.get(&other) == Some(&(true, true, 1500));
        let addresses = state.addresses.get(&other).is_some_and(|all| all.len() == 2);
        link && addresses && over(state, other)
    });
    // An interface that appears after its name was given.
    let late = InterfaceId::new(2).unwrap();
    let ports = vec![(lan, "lan".into()), (other, "wan".into()), (late, "late".into())];
    listener.source.order(KernelOrder::Ports(ports));
    namespace.ip("link add late type veth peer name late-x");
    namespace.ip("link set late up");
    namespace.ip("link set late-x up");
    listener.wait("a new interface", |state| state.links.get(&late) == Some(&(true, true, 1500)));
    assert_eq!(listener.audit(), 0);
}

/// Routes are followed, no longer and again; links, addresses and neighbours stay.
#[test]
fn routes_are_followed_when_they_are_wanted() {
    let namespace = Namespace::new("follow");
    namespace.two_ports();
    namespace.ip("addr add 10.255.0.1/32 dev lo");
    namespace.ip("route add 100.64.0.0/16 via 10.0.1.2");
    let mut listener = namespace.spawn(1 << 20);
    listener.wait("the first reading", |state| state.complete);
    listener.agrees(&namespace, "the first reading");
    let lo: IpNet = "10.255.0.1/32".parse().unwrap();
    let links = listener.state.links.clone();
    for _ in 0..2 {
        let off = Following { routes: false, exact: false, audit: None, receive_buffer: 1 << 20 };
        listener.source.order(KernelOrder::Follow(off));
        listener.wait("the withdrawal", |state| state.routes.is_empty());
        listener.wait("lo's address", |state| state.locals.contains(&lo));
        namespace.ip("route add 100.65.0.0/16 via 10.0.1.2");
        listener.state.complete = false;
        let on = Following { routes: true, exact: false, audit: None, receive_buffer: 2 << 20 };
        listener.source.order(KernelOrder::Follow(on));
        listener.wait("another first reading", |state| state.complete);
        listener.agrees(&namespace, "another first reading");
        assert!(listener.state.locals.contains(&lo));
        namespace.ip("route del 100.65.0.0/16");
        listener.agrees(&namespace, "what changes after it");
        assert_eq!(listener.state.links, links);
    }
    let (audit, before) = (Some(Duration::from_millis(300)), listener.state.audits);
    let often = Following { routes: true, exact: false, audit, receive_buffer: 2 << 20 };
    listener.source.order(KernelOrder::Follow(often));
    listener.wait("an audit by time", |state| state.audits > before);
    namespace.ip("addr del 10.255.0.1/32 dev lo");
    listener.wait("its end", |state| !state.locals.contains(&lo));
}
