//! The model: each answer is searched in all data, without any intermediate results.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;

/// Result of a forwarder's lookup: next hops with their shares, reduced.
pub(super) type Found = BTreeMap<String, u128>;

/// Converts next hops and weights to shares of the whole, in lowest terms.
pub(super) fn shares(hops: impl Iterator<Item = (NextHop, u128)>) -> Found {
    let mut found = Found::new();
    for (hop, weight) in hops {
        *found.entry(format!("{hop:?}")).or_default() += weight;
    }
    let divisor = found.values().fold(0, |a, &b| gcd(a, b)).max(1);
    found.values_mut().for_each(|weight| *weight /= divisor);
    found
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Destination of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leaf {
    Network(InterfaceId),
    Gateway(InterfaceId, IpAddr),
    Blackhole,
    Prohibited,
    Unreachable,
}

/// Leaves with weights.
type Leaves = BTreeMap<Leaf, u128>;

/// Result of a route or gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It depends on gateways that are not computed yet.
    Waits,
    Dead,
    /// Dead because it depends on itself.
    Circle,
    /// It leads to the router itself, or to the host.
    Router,
    Martian,
    Live {
        leaves: Leaves,
        /// True if one of several paths leads in a circle.
        circular: bool,
    },
}

impl State {
    fn live(leaves: impl IntoIterator<Item = Leaf>) -> Self {
        let leaves = leaves.into_iter().map(|leaf| (leaf, 1)).collect();
        Self::Live { leaves, circular: false }
    }
}

/// Gateways without interface that are computed already.
pub(super) type Vias = BTreeMap<IpAddr, State>;

/// A route to an address.
struct Candidate {
    prefix: IpNet,
    rank: (u8, u64, usize),
    state: State,
    /// The interface, if it leads to that interface's network only.
    network: Option<InterfaceId>,
    /// True if its shares are rounded to buckets.
    rounded: bool,
}

/// Returns the interface of a leaf that is an interface's network.
fn networks<'a>(mut leaves: impl Iterator<Item = &'a Leaf>) -> Option<InterfaceId> {
    match leaves.next() {
        Some(&Leaf::Network(interface)) => Some(interface),
        _ => None,
    }
}

/// The changes made so far.
#[derive(Default)]
pub(super) struct Naive {
    routes: BTreeMap<(IpNet, RouteSource, u64), (RouteKind, u32)>,
    groups: BTreeMap<GroupKey, (GroupSpec, u32)>,
    pub(super) generations: BTreeMap<RouteSource, u32>,
    pub(super) distances: BTreeMap<RouteSource, u8>,
    pub(super) neighbours: BTreeMap<(InterfaceId, IpAddr), MacAddr>,
    pub(super) down: [bool; 2],
    pub(super) addresses: [Vec<IpNet>; 2],
    pub(super) locals: BTreeSet<IpAddr>,
}

impl Naive {
    fn generation(&self, source: RouteSource) -> u32 {
        self.generations.get(&source).copied().unwrap_or_default()
    }

    /// Adds a route; returns true if the RIB accepts it at once.
    pub(super) fn add(&mut self, route: &Route) -> bool {
        if matches!(&route.kind, RouteKind::Unicast(paths) if paths.is_empty()) {
            return false;
        }
        let value = (route.kind.clone(), self.generation(route.source));
        self.routes.insert((route.prefix, route.source, route.metric), value);
        !matches!(&route.kind, RouteKind::NextHopGroup(key) if !self.groups.contains_key(key))
    }

    pub(super) fn remove(&mut self, prefix: IpNet, from: RouteSource, with: Option<u64>) -> usize {
        let before = self.routes.len();
        self.routes.retain(|&(net, source, metric), _| {
            net != prefix || source != from || with.is_some_and(|with| metric != with)
        });
        before - self.routes.len()
    }

    pub(super) fn set_group(&mut self, key: GroupKey, spec: GroupSpec) -> bool {
        let fine = spec.blackhole || !spec.paths.is_empty();
        if fine {
            self.groups.insert(key, (spec, self.generation(key.source)));
        }
        fine
    }

    pub(super) fn remove_group(&mut self, key: GroupKey) -> bool {
        let removed = self.groups.remove(&key).is_some();
        if removed {
            self.routes.retain(|_, (kind, _)| *kind != RouteKind::NextHopGroup(key));
        }
        removed
    }

    pub(super) fn end_resync(&mut self, from: RouteSource) -> usize {
        let generation = self.generation(from);
        let before = self.routes.len();
        self.routes.retain(|&(_, source, _), value| source != from || value.1 == generation);
        let stale = self.groups.iter().filter(|(k, v)| k.source == from && v.1 != generation);
        let stale: Vec<GroupKey> = stale.map(|(&key, _)| key).collect();
        let routes = before - self.routes.len();
        stale.iter().for_each(|&key| {
            self.remove_group(key);
        });
        routes + stale.len()
    }

    // ---- destinations ------------------------------------------------------------------------

    /// Returns the RIB's own routes, best first for each prefix.
    fn own(&self) -> Vec<(IpNet, State)> {
        let mut own = vec![
            (net("0.0.0.0/8"), State::Martian),
            (net("127.0.0.0/8"), State::Martian),
            (net("fe80::/10"), State::Router),
        ];
        own.extend(self.locals.iter().map(|&address| (address.into(), State::Router)));
        for (index, addresses) in self.addresses.iter().enumerate() {
            let link_local = |address: &&IpNet| net("fe80::/10").contains(*address);
            for address in addresses.iter().filter(|address| !link_local(address)) {
                let last: IpAddr = match address {
                    IpNet::V4(v4) => v4.broadcast().into(),
                    IpNet::V6(v6) => v6.network().into(),
                };
                own.push((address.addr().into(), State::Router));
                if address.prefix_len() < address.max_prefix_len() {
                    own.push((IpNet::from(last), State::Router));
                    own.push((address.trunc(), self.leaf(Leaf::Network(interface(index as u16)))));
                }
            }
        }
        own
    }

    /// Returns the state of a leaf, which is live while its interface's link is up.
    fn leaf(&self, leaf: Leaf) -> State {
        match leaf {
            Leaf::Network(interface) | Leaf::Gateway(interface, _)
                if self.down[interface.index()] =>
            {
                State::Dead
            }
            leaf => State::live([leaf]),
        }
    }

    fn path(&self, path: &Path, vias: &Vias) -> State {
        match (path.interface, path.via) {
            (Some(interface), Some(via)) => self.leaf(Leaf::Gateway(interface, via)),
            (Some(interface), None) => self.leaf(Leaf::Network(interface)),
            (None, Some(via)) => vias.get(&via).cloned().unwrap_or(State::Waits),
            (None, None) => unreachable!("refused"),
        }
    }

    /// Combines several paths; each shares its weight among its leaves.
    fn group(&self, paths: &[Path], vias: &Vias) -> State {
        let parts: Vec<(u128, State)> =
            paths.iter().map(|path| (path.weight.into(), self.path(path, vias))).collect();
        if parts.iter().any(|(_, state)| *state == State::Waits) {
            return State::Waits;
        }
        let circular = parts.iter().any(|(_, state)| *state == State::Circle);
        let live: Vec<(u128, &Leaves)> = parts
            .iter()
            .filter_map(|(weight, state)| match state {
                State::Live { leaves, .. } => Some((*weight, leaves)),
                _ => None,
            })
            .collect();
        let sum = |leaves: &Leaves| leaves.values().sum::<u128>();
        let common: u128 =
            live.iter().map(|(_, leaves)| sum(leaves)).fold(1, |a, b| a / gcd(a, b) * b);
        let mut merged = Leaves::new();
        for (weight, leaves) in live {
            for (&leaf, part) in leaves {
                *merged.entry(leaf).or_default() += weight * part * common / sum(leaves);
            }
        }
        match merged.is_empty() {
            true if circular => State::Circle,
            true => State::Dead,
            false => State::Live { leaves: merged, circular },
        }
    }

    fn kind(&self, kind: &RouteKind, vias: &Vias) -> State {
        match kind {
            RouteKind::Blackhole => State::live([Leaf::Blackhole]),
            RouteKind::Prohibited => State::live([Leaf::Prohibited]),
            RouteKind::Unreachable => State::live([Leaf::Unreachable]),
            RouteKind::Host => State::Router,
            RouteKind::Unicast(paths) => self.group(paths, vias),
            RouteKind::NextHopGroup(key) => match self.groups.get(key) {
                None => State::Dead,
                Some((spec, _)) if spec.blackhole => State::live([Leaf::Blackhole]),
                Some((spec, _)) => self.group(&spec.paths, vias),
            },
        }
    }

    /// Returns the candidates for an address: longest prefix first, best first.
    fn candidates(&self, address: IpAddr, vias: &Vias) -> Vec<Candidate> {
        let own = self.own().into_iter().enumerate().map(|(at, (prefix, state))| Candidate {
            prefix,
            rank: (0, 0, at),
            network: match &state {
                State::Live { leaves, .. } => networks(leaves.keys()),
                _ => None,
            },
            state,
            rounded: false,
        });
        let set = self.routes.iter().map(|((prefix, source, metric), (kind, _))| {
            let distance = self.distances.get(source).copied().unwrap_or(source.distance());
            let network = match kind {
                RouteKind::Unicast(paths) if paths.iter().all(|p| p.via.is_none()) => {
                    let interfaces: BTreeSet<_> =
                        paths.iter().filter_map(|path| path.interface).collect();
                    if interfaces.len() == 1 { interfaces.first().copied() } else { None }
                }
                _ => None,
            };
            let rounded = match kind {
                RouteKind::NextHopGroup(key) => {
                    self.groups.get(key).is_some_and(|(spec, _)| spec.resilient.is_some())
                }
                _ => false,
            };
            let (rank, state) = ((distance, *metric, source.index()), self.kind(kind, vias));
            Candidate { prefix: *prefix, rank, state, network, rounded }
        });
        let mut all: Vec<Candidate> =
            own.chain(set).filter(|candidate| candidate.prefix.contains(&address)).collect();
        all.sort_by_key(|c| (std::cmp::Reverse(c.prefix.prefix_len()), c.rank));
        all
    }

    /// Computes the gateways without interface, repeatedly until no further one can be computed.
    pub(super) fn resolve(&self) -> Vias {
        let of_routes = self.routes.values().filter_map(|(kind, _)| match kind {
            RouteKind::Unicast(paths) => Some(paths),
            _ => None,
        });
        let paths = of_routes.chain(self.groups.values().map(|(spec, _)| &spec.paths)).flatten();
        let wanted: BTreeSet<IpAddr> =
            paths.filter(|path| path.interface.is_none()).filter_map(|path| path.via).collect();
        let mut vias = Vias::new();
        loop {
            let unknown = wanted.iter().filter(|via| !vias.contains_key(*via));
            let found = unknown.map(|&via| (via, self.resolve_one(via, &vias)));
            let new: Vec<_> = found.filter(|(_, state)| *state != State::Waits).collect();
            if new.is_empty() {
                break;
            }
            vias.extend(new);
        }
        wanted.into_iter().for_each(|via| {
            vias.entry(via).or_insert(State::Circle);
        });
        vias
    }

    fn resolve_one(&self, via: IpAddr, vias: &Vias) -> State {
        for candidate in self.candidates(via, vias) {
            return match candidate.state {
                State::Dead => continue,
                State::Live { circular: true, .. } => State::Circle,
                State::Live { leaves, .. } => State::Live {
                    leaves: leaves.into_iter().fold(Leaves::new(), |mut all, (leaf, weight)| {
                        let leaf = match leaf {
                            Leaf::Network(interface) => Leaf::Gateway(interface, via),
                            leaf => leaf,
                        };
                        *all.entry(leaf).or_default() += weight;
                        all
                    }),
                    circular: false,
                },
                State::Router | State::Martian => State::Dead,
                other => other,
            };
        }
        State::Dead
    }

    // ---- forwarders' lookups -----------------------------------------------------------------

    /// Returns the result of a forwarder's lookup, and true if its shares are exact: buckets round.
    pub(super) fn lookup(&self, address: IpAddr, vias: &Vias) -> (Found, bool) {
        let single = |hop| (shares([(hop, 1)].into_iter()), true);
        let alive = |candidate: &&Candidate| {
            matches!(candidate.state, State::Router | State::Martian | State::Live { .. })
        };
        let candidates = self.candidates(address, vias);
        let Some(best) = candidates.iter().find(alive) else { return single(NextHop::NoRoute) };
        match (&best.state, best.network) {
            (State::Router, _) => single(NextHop::Local),
            (State::Martian, _) => single(NextHop::Martian),
            (_, Some(interface)) if self.neighbours.contains_key(&(interface, address)) => {
                single(self.towards(interface, address))
            }
            (State::Live { leaves, .. }, _) => {
                let hops = leaves.iter().map(|(&leaf, &weight)| (self.hop(leaf), weight));
                (shares(hops), !best.rounded)
            }
            (state, _) => unreachable!("{state:?} is not alive"),
        }
    }

    fn towards(&self, interface: InterfaceId, via: IpAddr) -> NextHop {
        match self.neighbours.get(&(interface, via)) {
            Some(&mac) => NextHop::Forward { interface, mac },
            None => NextHop::Unresolved { interface },
        }
    }

    fn hop(&self, leaf: Leaf) -> NextHop {
        match leaf {
            Leaf::Network(interface) => NextHop::Glean { interface },
            Leaf::Gateway(interface, via) => self.towards(interface, via),
            Leaf::Blackhole => NextHop::Blackhole,
            Leaf::Prohibited => NextHop::Prohibited,
            Leaf::Unreachable => NextHop::Unreachable,
        }
    }
}
