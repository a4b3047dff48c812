//! Random changes; after each, forwarders see what a naive model says.
//!
//! The model keeps routes and neighbours in plain maps and searches all of them for each answer.
//! A reader that is quiescent only now and then holds numbers of earlier lookups: these must not
//! change their kind, port or members under it.

use std::collections::{BTreeMap, BTreeSet};

use fib::EpochReader;
use proptest::prelude::*;

use super::*;

/// Prefixes that nest, coincide with the RIB's own, and lie apart.
const PREFIXES: [&str; 18] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.0.1.0/24",
    "10.0.1.0/25",
    "10.0.1.0/29",
    "10.0.1.2/32",
    "10.0.1.1/32",
    "10.0.2.2/31",
    "198.51.100.0/24",
    "198.51.100.128/25",
    "198.51.100.129/32",
    "::/0",
    "fd00::/16",
    "fd00:1::/64",
    "fd00:1::/120",
    "fd00:1::2/128",
    "2001:db8::/32",
    "2001:db8::1/128",
];

/// Hosts that are neighbours, gateways, or neither.
const HOSTS: [&str; 12] = [
    "10.0.1.1",
    "10.0.1.2",
    "10.0.1.3",
    "10.0.1.9",
    "10.0.2.2",
    "10.0.2.3",
    "198.51.100.129",
    "fd00:1::2",
    "fd00:1::3",
    "fd00:2::2",
    "fe80::2",
    "fe80::3",
];

/// Addresses that are looked up besides.
const OTHERS: [&str; 8] = [
    "8.8.8.8",
    "10.9.9.9",
    "10.0.1.200",
    "198.51.100.1",
    "127.0.0.1",
    "2001:db8::1",
    "2001:db8::2",
    "fd00:1::ffff",
];

#[derive(Clone, Debug)]
enum Step {
    Add(Route),
    Remove(usize, bool),
    Load(Vec<Route>),
    Up(u16, usize, u8),
    Down(u16, usize),
    /// The reader looks everything up and remembers it.
    Hold,
    /// The reader lets go.
    Quiescent,
    Tick,
}

fn any_route() -> impl Strategy<Value = Route> {
    let path = (0..2u16, 0..HOSTS.len(), 1..4u16);
    (0..PREFIXES.len(), any::<bool>(), prop::collection::vec(path, 1..4), 0..8u8, 0..2u64).prop_map(
        |(prefix, import, paths, kind, metric)| {
            let prefix = net(PREFIXES[prefix]);
            let paths = paths
                .into_iter()
                .map(|(index, host, weight)| {
                    Path::over(port(index), ip(HOSTS[host])).weighing(weight)
                })
                .collect();
            let kind = match kind {
                0 => RouteKind::Blackhole,
                1 => RouteKind::Prohibited,
                2 => RouteKind::Unreachable,
                _ => RouteKind::Unicast(paths),
            };
            let source = if import { Source::Import } else { Source::Static };
            Route { prefix, source, kind, metric }
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any_route().prop_map(Step::Add),
        4 => (0..PREFIXES.len(), any::<bool>()).prop_map(|(p, import)| Step::Remove(p, import)),
        2 => prop::collection::vec(any_route(), 0..8).prop_map(Step::Load),
        4 => (0..2u16, 0..HOSTS.len(), 0..3u8).prop_map(|(p, host, m)| Step::Up(p, host, m)),
        3 => (0..2u16, 0..HOSTS.len()).prop_map(|(p, host)| Step::Down(p, host)),
        1 => Just(Step::Hold),
        1 => Just(Step::Quiescent),
        1 => Just(Step::Tick),
    ]
}

/// What a forwarder finds: a single next hop, or the members of a group in sorted order.
type Found = Vec<String>;

#[derive(Default)]
struct Model {
    routes: BTreeMap<(IpNet, u8, u64, Source), RouteKind>,
    neighbours: BTreeMap<(PortId, IpAddr), MacAddr>,
}

impl Model {
    /// Whether the RIB takes the route.
    fn add(&mut self, route: &Route) -> bool {
        if matches!(&route.kind, RouteKind::Unicast(paths) if paths.is_empty()) {
            return false;
        }
        let key = (route.prefix, route.source.distance(), route.metric, route.source);
        self.routes.insert(key, route.kind.clone());
        true
    }

    fn towards(&self, port: PortId, via: IpAddr) -> NextHop {
        match self.neighbours.get(&(port, via)) {
            Some(&mac) => NextHop::Forward { port, mac },
            None => NextHop::Unresolved { port },
        }
    }

    fn lookup(&self, address: IpAddr) -> Found {
        let own = own_route(address);
        let set = self.routes.keys().filter(|key| key.0.contains(&address));
        // Longest prefix, then smallest distance, then smallest metric.
        let best = set.max_by_key(|key| (key.0.prefix_len(), std::cmp::Reverse((key.1, key.2))));
        match (own, best) {
            (None, None) => one(NextHop::NoRoute),
            (Some((_, hop)), None) => self.own(address, hop),
            (Some((length, hop)), Some(best)) if length >= best.0.prefix_len() => {
                self.own(address, hop)
            }
            (_, Some(best)) => match &self.routes[best] {
                RouteKind::Blackhole => one(NextHop::Blackhole),
                RouteKind::Prohibited => one(NextHop::Prohibited),
                RouteKind::Unreachable => one(NextHop::Unreachable),
                RouteKind::Unicast(paths) => self.over(paths),
                kind => panic!("{kind:?} is not among the steps"),
            },
        }
    }

    fn own(&self, address: IpAddr, hop: NextHop) -> Found {
        one(match hop {
            NextHop::Glean { port } if self.neighbours.contains_key(&(port, address)) => {
                self.towards(port, address)
            }
            hop => hop,
        })
    }

    fn over(&self, paths: &[Path]) -> Found {
        let mut weights: BTreeMap<(PortId, IpAddr), u16> = BTreeMap::new();
        for path in paths {
            let (Some(port), Some(via)) = (path.port, path.via) else { continue };
            *weights.entry((port, via)).or_default() += path.weight;
        }
        let gateways: BTreeSet<_> = weights.keys().copied().collect();
        if let (1, Some(&(port, via))) = (gateways.len(), gateways.first()) {
            return one(self.towards(port, via));
        }
        let divisor = (1..=20).rev().find(|d| weights.values().all(|w| w % d == 0)).unwrap();
        let mut found: Found = weights
            .iter()
            .flat_map(|(&(port, via), weight)| {
                let hop = format!("{:?}", self.towards(port, via));
                std::iter::repeat_n(hop, (weight / divisor).into())
            })
            .collect();
        found.sort();
        found
    }
}

fn one(hop: NextHop) -> Found {
    vec![format!("{hop:?}")]
}

/// The RIB's own route to one of the test's addresses: prefix length and next hop.
fn own_route(address: IpAddr) -> Option<(u8, NextHop)> {
    let inside = |prefix: &str| net(prefix).contains(&address);
    for (prefix, hop) in [
        ("10.0.1.1/32", NextHop::Local),
        ("fd00:1::1/128", NextHop::Local),
        ("10.0.1.0/24", NextHop::Glean { port: port(0) }),
        ("10.0.2.0/24", NextHop::Glean { port: port(1) }),
        ("fd00:1::/64", NextHop::Glean { port: port(0) }),
        ("fd00:2::/64", NextHop::Glean { port: port(1) }),
        ("fe80::/10", NextHop::Local),
        ("127.0.0.0/8", NextHop::Martian),
    ] {
        if inside(prefix) {
            return Some((net(prefix).prefix_len(), hop));
        }
    }
    None
}

fn addresses() -> impl Iterator<Item = IpAddr> {
    HOSTS.into_iter().chain(OTHERS).map(ip)
}

/// The system under test, and what its surroundings know.
struct Checked {
    bench: Bench,
    model: Model,
    reader: EpochReader,
    /// Numbers that the reader holds, with their meaning then.
    held: BTreeMap<u16, (NextHop, Vec<u16>)>,
    /// What the slow path has been told.
    told: BTreeMap<u16, (PortId, IpAddr)>,
}

impl Checked {
    fn new() -> Self {
        let epochs = Epochs::default();
        let reader = epochs.register();
        let bench = Bench::new(|| Box::new(epochs.clone()));
        let (model, held, told) = (Model::default(), BTreeMap::new(), BTreeMap::new());
        Self { bench, model, reader, held, told }
    }

    fn apply(&mut self, step: Step) {
        let rib = &mut self.bench.rib;
        match step {
            Step::Add(route) => assert_eq!(rib.add(route.clone()).is_ok(), self.model.add(&route)),
            Step::Remove(index, import) => {
                let source = if import { Source::Import } else { Source::Static };
                let prefix = net(PREFIXES[index]);
                let before = self.model.routes.len();
                self.model.routes.retain(|key, _| key.0 != prefix || key.3 != source);
                assert_eq!(rib.remove(prefix, source), before - self.model.routes.len());
            }
            Step::Load(routes) => {
                let accepted = routes.iter().filter(|route| self.model.add(route)).count();
                let report = rib.load(routes.clone());
                assert_eq!((report.accepted, report.refused), (accepted, routes.len() - accepted));
            }
            Step::Up(index, host, last) => {
                self.model.neighbours.insert((port(index), ip(HOSTS[host])), mac(last));
                rib.neighbour_up(port(index), ip(HOSTS[host]), mac(last)).unwrap();
            }
            Step::Down(index, host) => {
                self.model.neighbours.remove(&(port(index), ip(HOSTS[host])));
                rib.neighbour_down(port(index), ip(HOSTS[host]));
            }
            Step::Hold => self.hold(),
            Step::Quiescent => {
                self.held.clear();
                self.reader.quiescent();
            }
            Step::Tick => {
                rib.tick();
            }
        }
        self.check();
    }

    fn hold(&mut self) {
        for id in addresses().map(|address| self.bench.id(address)).collect::<Vec<_>>() {
            let members = self.bench.members(id);
            for &id in members.iter().chain([&id]) {
                let meaning = (self.bench.table.get(id).into(), self.bench.members(id));
                self.held.entry(id).or_insert(meaning);
            }
        }
    }

    fn check(&mut self) {
        for command in self.bench.rib.drain_commands() {
            match command {
                ResolverCommand::NextHop { id, port, address } => {
                    assert_eq!(self.told.insert(id, (port, address)), None, "told twice");
                }
                ResolverCommand::RemoveNextHop { id } => {
                    assert!(self.told.remove(&id).is_some(), "{id} was never told");
                }
                other => panic!("{other:?} was not asked for"),
            }
        }
        for address in addresses() {
            let id = self.bench.id(address);
            let mut found: Found = match self.bench.members(id) {
                members if members.is_empty() => one(self.bench.table.get(id).into()),
                members => {
                    members.iter().flat_map(|&id| one(self.bench.table.get(id).into())).collect()
                }
            };
            found.sort();
            assert_eq!(found, self.model.lookup(address), "{address}");
            self.check_told(id, address);
            if id != 0 {
                let info = self.bench.rib.lookup(address).unwrap();
                assert!(info.route.active && info.next_hop == id, "{info:?}");
            }
        }
        for (&id, (hop, members)) in &self.held {
            let now = NextHop::from(self.bench.table.get(id));
            assert_eq!(without_mac(now), without_mac(*hop), "{id} changed under its reader");
            assert_eq!(&self.bench.members(id), members, "{id} changed under its reader");
        }
    }

    /// Whoever is punted as unresolved names a gateway that the slow path knows.
    fn check_told(&self, id: u16, address: IpAddr) {
        for id in self.bench.members(id).into_iter().chain([id]) {
            if let NextHop::Unresolved { port } = self.bench.table.get(id).into() {
                let told = self.told.get(&id).unwrap_or_else(|| panic!("{address}: {id} not told"));
                assert_eq!(told.0, port);
            }
        }
    }

    /// Takes everything back: nothing may be left.
    fn finish(mut self) {
        for prefix in PREFIXES {
            self.bench.rib.remove(net(prefix), Source::Static);
            self.bench.rib.remove(net(prefix), Source::Import);
        }
        for index in 0..2 {
            for host in HOSTS {
                self.bench.rib.neighbour_down(port(index), ip(host));
            }
        }
        self.model = Model::default();
        self.held.clear();
        self.reader.quiescent();
        assert_eq!(self.bench.rib.tick(), 0);
        self.check();
        let summary = self.bench.rib.summary();
        assert_eq!(summary.next_hops, 2, "the ports' gleans stay");
        assert_eq!((summary.next_hops_waiting, summary.group_places), (0, 0));
        assert_eq!((summary.pending, summary.routes_set()), (0, 0));
        assert!(self.told.is_empty(), "{:?}", self.told);
        assert_eq!(self.bench.rib.routes().count(), Bench::without_readers().rib.routes().count());
    }
}

/// Kind and port of a next hop: a neighbour's MAC may come and go.
fn without_mac(hop: NextHop) -> NextHop {
    match hop {
        NextHop::Forward { port, .. } => NextHop::Unresolved { port },
        other => other,
    }
}

impl Summary {
    /// Routes that were set and are still there.
    fn routes_set(&self) -> usize {
        [self.ipv4, self.ipv6]
            .iter()
            .map(|counts| counts[Source::Static.index()] + counts[Source::Import.index()])
            .sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn forwarders_see_what_the_model_says(steps in prop::collection::vec(any_step(), 1..80)) {
        let mut checked = Checked::new();
        for step in steps {
            checked.apply(step);
        }
        checked.finish();
    }
}
