//! Random changes; after each, the forwarders' view equals that of a naive model.
//!
//! The model keeps routes, groups, neighbours, links and addresses in plain maps, and computes each
//! answer from all of them (`naive.rs`). The RIB defers work in tiny pieces here, so that its
//! intermediate states are tested as well: before the rest is done, no forwarder may find an
//! interface that is down. A reader that is rarely quiescent holds numbers of earlier lookups:
//! these must not come to mean another interface in the meantime.

mod naive;

use fib::EpochReader;
use proptest::prelude::*;

use super::*;
use naive::{Found, Naive};

/// Prefixes that nest, coincide with the RIB's own, or are disjoint.
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
const HOSTS: [&str; 14] = [
    "10.0.1.1",
    "10.0.1.2",
    "10.0.1.3",
    "10.0.1.9",
    "10.0.2.2",
    "10.0.2.3",
    "198.51.100.129",
    "198.51.100.7",
    "fd00:1::2",
    "fd00:1::3",
    "fd00:2::2",
    "2001:db8::1",
    "fe80::2",
    "fe80::3",
];

/// Further addresses that are looked up.
const OTHERS: [&str; 9] = [
    "8.8.8.8",
    "10.9.9.9",
    "10.0.1.200",
    "10.0.2.255",
    "198.51.100.1",
    "127.0.0.1",
    "192.0.2.1",
    "2001:db8::2",
    "fd00:1::ffff",
];

/// Sets of addresses that an interface has in turn.
const ADDRESSES: [&[&str]; 5] = [
    &["10.0.1.1/24", "fd00:1::1/64"],
    &["10.0.1.9/24", "192.0.2.1/32", "fe80::9/64"],
    // An address in the other interface's network.
    &["10.0.2.3/24", "fd00:1::3/64", "fd00:1::4/64"],
    &["10.0.1.1/30"],
    &[],
];

/// Sources of the added routes.
const SOURCES: [RouteSource; 4] =
    [RouteSource::Command, RouteSource::Static, RouteSource::Kernel, RouteSource::Import];

#[derive(Clone, Debug)]
enum Step {
    Add(Route),
    Remove(usize, RouteSource),
    RemoveOne(usize, RouteSource, u64),
    Load(Vec<Route>),
    Batch(Vec<Step>),
    Group(GroupKey, GroupSpec),
    RemoveGroup(GroupKey),
    Begin(RouteSource),
    End(RouteSource),
    Up(u16, usize, u8),
    Down(u16, usize),
    Link(u16, bool),
    Addresses(u16, usize),
    Local(usize, bool),
    Distance(RouteSource, u8),
    /// The reader looks up every address and keeps the results.
    Hold,
    /// The reader releases its results.
    Quiescent,
    Tick,
}

fn any_source() -> impl Strategy<Value = RouteSource> {
    (0..SOURCES.len()).prop_map(|at| SOURCES[at])
}

fn any_key() -> impl Strategy<Value = GroupKey> {
    (any::<bool>(), 0..2u32).prop_map(|(kernel, id)| {
        let source = if kernel { RouteSource::Kernel } else { RouteSource::Static };
        GroupKey::new(source, id)
    })
}

fn any_path() -> impl Strategy<Value = Path> {
    (0..2u16, 0..HOSTS.len(), 1..4u16, 0..8u8).prop_map(|(index, host, weight, form)| {
        let (interface, via) = (interface(index), ip(HOSTS[host]));
        let path = match form {
            0 => Path::on_interface(interface),
            1..4 => Path::recursive(VrfId::DEFAULT, via),
            _ => Path::over(interface, via),
        };
        path.weighing(weight)
    })
}

fn any_paths() -> impl Strategy<Value = Vec<Path>> {
    prop::collection::vec(any_path(), 0..4)
}

fn any_route() -> impl Strategy<Value = Route> {
    (0..PREFIXES.len(), any_source(), any_paths(), any_key(), 0..12u8, 0..2u64).prop_map(
        |(prefix, source, paths, key, kind, metric)| {
            let kind = match kind {
                0 => RouteKind::Blackhole,
                1 => RouteKind::Prohibited,
                2 => RouteKind::Unreachable,
                3 => RouteKind::Host,
                4 | 5 => RouteKind::NextHopGroup(key),
                _ => RouteKind::Unicast(paths),
            };
            Route { vrf: VrfId::DEFAULT, prefix: net(PREFIXES[prefix]), source, kind, metric }
        },
    )
}

fn any_spec() -> impl Strategy<Value = GroupSpec> {
    (any_paths(), prop::option::weighted(0.3, 12..14u16), prop::bool::weighted(0.1)).prop_map(
        |(paths, buckets, blackhole)| GroupSpec {
            paths,
            resilient: buckets.map(|buckets| Resilient { buckets }),
            blackhole,
        },
    )
}

fn any_change() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_route().prop_map(Step::Add),
        5 => (0..PREFIXES.len(), any_source()).prop_map(|(p, source)| Step::Remove(p, source)),
        2 => (0..PREFIXES.len(), any_source(), 0..2u64).prop_map(|(p, s, m)| Step::RemoveOne(p, s, m)),
        3 => prop::collection::vec(any_route(), 0..8).prop_map(Step::Load),
        4 => (any_key(), any_spec()).prop_map(|(key, spec)| Step::Group(key, spec)),
        2 => any_key().prop_map(Step::RemoveGroup),
        2 => any_source().prop_map(Step::Begin),
        2 => any_source().prop_map(Step::End),
        4 => (0..2u16, 0..HOSTS.len(), 0..3u8).prop_map(|(p, host, m)| Step::Up(p, host, m)),
        3 => (0..2u16, 0..HOSTS.len()).prop_map(|(p, host)| Step::Down(p, host)),
        5 => (0..2u16, any::<bool>()).prop_map(|(p, up)| Step::Link(p, up)),
        2 => (0..2u16, 0..ADDRESSES.len()).prop_map(|(p, set)| Step::Addresses(p, set)),
        1 => (0..HOSTS.len(), any::<bool>()).prop_map(|(host, add)| Step::Local(host, add)),
        1 => (any_source(), 1..30u8).prop_map(|(source, distance)| Step::Distance(source, distance)),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_change(),
        2 => prop::collection::vec(any_change(), 0..6).prop_map(Step::Batch),
        1 => Just(Step::Hold),
        1 => Just(Step::Quiescent),
        1 => Just(Step::Tick),
    ]
}

fn addresses() -> impl Iterator<Item = IpAddr> {
    HOSTS.into_iter().chain(OTHERS).map(ip)
}

/// The system under test, with the state of its reader and slow path.
struct Checked {
    /// The VRF of all changes.
    vrf: VrfId,
    bench: Bench,
    model: Naive,
    reader: EpochReader,
    /// Leaves that the reader holds, with their meaning at the time of the lookup.
    held: BTreeMap<u16, NextHop>,
    /// The commands received by the slow path.
    told: BTreeMap<u16, (InterfaceId, IpAddr)>,
}

impl Checked {
    fn new(vrf: VrfId) -> Self {
        let epochs = Epochs::default();
        let reader = epochs.register();
        let mut bench = Bench::new(|| Box::new(epochs.clone()));
        bench.rib.pieces = Pieces { at_once: 3, tick: 40 };
        if vrf != VrfId::DEFAULT {
            bench.move_to(vrf, || Box::new(epochs.clone()));
        }
        let mut model = Naive::default();
        for (index, interface) in example_ports().into_iter().enumerate() {
            model.addresses[index] = interface.addresses;
        }
        let (held, told) = (BTreeMap::new(), BTreeMap::new());
        Self { vrf, bench, model, reader, held, told }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Hold => self.hold(),
            Step::Quiescent => {
                self.held.clear();
                self.reader.quiescent();
            }
            step => change(&mut self.bench.rib, &mut self.model, self.vrf, step),
        }
        self.check_ports();
        self.finish_work();
        self.check();
    }

    /// Completes the deferred work.
    fn finish_work(&mut self) {
        let mut ticks = 0;
        while self.bench.rib.is_busy() {
            self.bench.rib.tick();
            ticks += 1;
            assert!(ticks < 100, "the work that is put off does not end");
        }
    }

    /// No forwarder finds an interface that is down, regardless of deferred work.
    fn check_ports(&self) {
        for address in addresses() {
            let id = self.bench.id(address);
            for id in self.bench.members(id).into_iter().chain([id]) {
                if let NextHop::Forward { interface, .. }
                | NextHop::Unresolved { interface }
                | NextHop::Glean { interface } = self.bench.table.get(id).into()
                {
                    assert!(!self.model.down[interface.index()], "{address} leaves by {interface}");
                }
            }
        }
    }

    fn hold(&mut self) {
        for id in addresses().map(|address| self.bench.id(address)).collect::<Vec<_>>() {
            let hop = NextHop::from(self.bench.table.get(id));
            let leaf = matches!(hop, NextHop::Unresolved { .. }).then_some(id);
            for id in self.bench.members(id).into_iter().chain(leaf) {
                let hop = self.bench.table.get(id).into();
                self.held.entry(id).or_insert(hop);
            }
        }
    }

    fn check(&mut self) {
        self.hear();
        let vias = self.model.resolve();
        for address in addresses() {
            let id = self.bench.id(address);
            let (expected, exact) = self.model.lookup(address, &vias);
            let mut found = self.found(id);
            if !exact && found.keys().eq(expected.keys()) {
                found = expected.clone();
            }
            assert_eq!(found, expected, "{address}");
            self.check_told(id, address);
            let info = self.bench.rib.lookup(self.vrf, address);
            assert_eq!(info.is_some(), id != 0, "{address}: {info:?}");
            if let Some(info) = info {
                assert!(info.route.active && info.next_hop == id, "{info:?}");
                self.check_flow(address, id);
            }
        }
        for (&id, &hop) in &self.held {
            let now = NextHop::from(self.bench.table.get(id));
            let same = without_mac(now) == without_mac(hop);
            assert!(same || now == NextHop::NoRoute, "{id} changed under its reader");
        }
    }

    /// Checks that the commands to the slow path are consistent.
    fn hear(&mut self) {
        for command in self.bench.rib.drain_commands() {
            match command {
                Command::NextHop { id, interface, address } => {
                    assert_eq!(self.told.insert(id, (interface, address)), None, "told twice");
                }
                Command::RemoveNextHop { id } => {
                    assert!(self.told.remove(&id).is_some(), "{id} was never told");
                }
                other => panic!("{other:?} was not asked for"),
            }
        }
    }

    /// Returns the result of a forwarder's lookup.
    fn found(&self, id: u16) -> Found {
        let members = self.bench.members(id);
        let leaves = if members.is_empty() { vec![id] } else { members };
        naive::shares(leaves.into_iter().map(|id| (NextHop::from(self.bench.table.get(id)), 1)))
    }

    /// The reported path of a flow is the one that a forwarder takes.
    fn check_flow(&self, address: IpAddr, id: u16) {
        for hash in [0, 0x5555_5555, 0x9999_9999, u32::MAX] {
            let told = self.bench.rib.lookup_flow(self.vrf, address, hash);
            let word = self.bench.table.get(id);
            let taken = if word.is_group() { self.bench.table.select(word, hash) } else { id };
            let (interface, mac) = match self.bench.table.get(taken).into() {
                NextHop::Forward { interface, mac } => (interface, Some(mac)),
                NextHop::Unresolved { interface } => (interface, None),
                NextHop::Glean { interface } => {
                    (interface, self.model.neighbours.get(&(interface, address)).copied())
                }
                _ => {
                    assert_eq!(told, None);
                    continue;
                }
            };
            assert_eq!(
                told.map(|path| (path.interface, path.mac)),
                Some((interface, mac)),
                "{address}"
            );
        }
    }

    /// Packets punted as unresolved carry the number of a gateway that the slow path has learned.
    fn check_told(&self, id: u16, address: IpAddr) {
        for id in self.bench.members(id).into_iter().chain([id]) {
            if let NextHop::Unresolved { interface } = self.bench.table.get(id).into() {
                let told = self.told.get(&id).unwrap_or_else(|| panic!("{address}: {id} not told"));
                assert_eq!(told.0, interface);
            }
        }
    }

    /// Removes everything: nothing may be left.
    fn finish(mut self) {
        for source in SOURCES {
            self.bench.rib.begin_resync(source);
            self.bench.rib.end_resync(source);
        }
        for (index, interface) in example_ports().into_iter().enumerate() {
            self.bench.rib.set_link(interface.id, true);
            self.bench.rib.set_addresses(interface.id, &interface.addresses).unwrap();
            self.model.addresses[index] = interface.addresses;
            for host in HOSTS {
                self.bench.rib.neighbour_down(interface.id, ip(host));
            }
        }
        for host in HOSTS {
            self.bench.rib.remove_local(self.vrf, ip(host).into());
        }
        let addresses = std::mem::take(&mut self.model.addresses);
        self.model = Naive::default();
        self.model.addresses = addresses;
        self.held.clear();
        self.reader.quiescent();
        self.finish_work();
        self.reader.quiescent();
        assert_eq!(self.bench.rib.tick(), 0);
        self.check();
        let summary = self.bench.rib.summary();
        assert_eq!(summary.next_hops, 2, "the interfaces' gleans stay");
        assert_eq!((summary.next_hops_waiting, summary.group_places), (0, 0));
        assert_eq!((summary.pending, summary.waiting, summary.groups), (0, 0, 0));
        assert!(self.told.is_empty(), "{:?}", self.told);
        let left = self.bench.rib.routes_from(self.vrf, Bound::Unbounded).count();
        assert_eq!(left, Bench::without_readers().rib.routes().count());
        assert_eq!(self.bench.rib.vrf_summary(self.vrf).ipv4.iter().sum::<usize>(), 11);
    }
}

/// Moves a route of the default VRF to another.
fn moved(mut route: Route, vrf: VrfId) -> Route {
    if let RouteKind::Unicast(paths) = &mut route.kind {
        paths.iter_mut().for_each(|path| *path = moved_path(*path, vrf));
    }
    Route { vrf, ..route }
}

fn moved_path(path: Path, vrf: VrfId) -> Path {
    if path.interface.is_none() { Path { vrf, ..path } } else { path }
}

/// Neighbours by interface, added up.
fn counted(rib: &Rib) -> BTreeMap<InterfaceId, usize> {
    let mut counts = BTreeMap::new();
    rib.neighbours().for_each(|(interface, ..)| *counts.entry(interface).or_default() += 1);
    counts
}

/// Makes a change in the RIB and in the model.
fn change(rib: &mut Rib, model: &mut Naive, vrf: VrfId, step: Step) {
    match step {
        Step::Add(route) => {
            let route = moved(route, vrf);
            // Within a batch, the group's state before the batch decides.
            let added = rib.add(route.clone());
            assert_eq!(added.is_ok(), model.add(&route), "{added:?}");
        }
        Step::Remove(index, source) => {
            let prefix = net(PREFIXES[index]);
            assert_eq!(rib.remove(vrf, prefix, source), model.remove(prefix, source, None));
        }
        Step::RemoveOne(index, source, metric) => {
            let prefix = net(PREFIXES[index]);
            let removed = rib.remove_one(vrf, prefix, source, metric);
            assert_eq!(usize::from(removed), model.remove(prefix, source, Some(metric)));
        }
        Step::Load(routes) => {
            let routes: Vec<Route> = routes.into_iter().map(|route| moved(route, vrf)).collect();
            let accepted = routes.iter().filter(|route| model.add(route)).count();
            let report = rib.load(routes.clone());
            assert_eq!((report.accepted, report.refused), (accepted, routes.len() - accepted));
        }
        Step::Batch(steps) => {
            rib.batch(|rib| steps.into_iter().for_each(|step| change(rib, model, vrf, step)));
        }
        Step::Group(key, mut spec) => {
            spec.paths.iter_mut().for_each(|path| *path = moved_path(*path, vrf));
            assert_eq!(rib.set_group(key, spec.clone()).is_ok(), model.set_group(key, spec));
        }
        Step::RemoveGroup(key) => assert_eq!(rib.remove_group(key), model.remove_group(key)),
        Step::Begin(source) => {
            rib.begin_resync(source);
            *model.generations.entry(source).or_default() += 1;
        }
        Step::End(source) => assert_eq!(rib.end_resync(source), model.end_resync(source)),
        Step::Up(index, host, last) => {
            model.neighbours.insert((interface(index), ip(HOSTS[host])), mac(last));
            rib.neighbour_up(interface(index), ip(HOSTS[host]), mac(last)).unwrap();
            assert_eq!(*rib.neighbour_counts(), counted(rib));
        }
        Step::Down(index, host) => {
            model.neighbours.remove(&(interface(index), ip(HOSTS[host])));
            rib.neighbour_down(interface(index), ip(HOSTS[host]));
            assert_eq!(*rib.neighbour_counts(), counted(rib));
        }
        Step::Link(index, up) => {
            model.down[usize::from(index)] = !up;
            rib.set_link(interface(index), up);
        }
        Step::Addresses(index, set) => {
            let addresses: Vec<IpNet> = ADDRESSES[set].iter().map(|text| net(text)).collect();
            rib.set_addresses(interface(index), &addresses).unwrap();
            model.addresses[usize::from(index)] = addresses;
        }
        Step::Local(host, true) => {
            rib.add_local(vrf, ip(HOSTS[host]).into()).unwrap();
            model.locals.insert(ip(HOSTS[host]));
        }
        Step::Local(host, false) => {
            let removed = model.locals.remove(&ip(HOSTS[host]));
            assert_eq!(rib.remove_local(vrf, ip(HOSTS[host]).into()), removed);
        }
        Step::Distance(source, distance) => {
            rib.set_distance(source, distance);
            model.distances.insert(source, distance);
        }
        Step::Tick | Step::Hold | Step::Quiescent => {
            rib.tick();
        }
    }
}

/// Returns the kind and interface of a next hop: a neighbour's MAC may be absent.
fn without_mac(hop: NextHop) -> NextHop {
    match hop {
        NextHop::Forward { interface, .. } => NextHop::Unresolved { interface },
        other => other,
    }
}

proptest! {
    // A quarter of the usual number of cases, as each one is a whole life of a RIB.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: ProptestConfig::default().cases.div_ceil(4),
        ..ProptestConfig::default()
    })]
    #[test]
    fn forwarders_see_what_the_model_says(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut checked = Checked::new(VrfId::DEFAULT);
        for step in steps {
            checked.apply(step);
        }
        checked.finish();
    }

    #[test]
    fn so_they_do_in_another_vrf_whatever_the_default_one_has(
        steps in prop::collection::vec(any_step(), 1..60)
    ) {
        let mut checked = Checked::new(VrfId::new(2));
        for step in steps {
            checked.apply(step);
        }
        checked.finish();
    }
}
