//! The routing information base: every route of every source, and what forwarders see of it.
//!
//! One owner, the control thread, holds the RIB and through it writes the FIBs and the next-hop
//! table. Three layers, each in its own file:
//!
//! ```text
//!   rib.rs          sources, neighbours, which host routes are due      Rib
//!                        |
//!   family.rs       per prefix: all candidates, the best in the FIB     Routes<A> -> fib::Table<A>
//!                        |
//!   next_hops.rs    numbers shared and counted, freed after grace       NextHops  -> NextHopTable
//! ```
//!
//! Changes are made so that a forwarder never meets a number without a meaning: a next hop is
//! written before a FIB entry leads to it, and freed a grace period after the last one let go.
//! A gateway or neighbour that appears, moves or vanishes costs one store in the next-hop table,
//! however many routes lead over it.
//!
//! # Host routes of neighbours
//!
//! A resolved neighbour gets a /32 or /128 route, so that packets to it need no slow path. It is
//! due exactly when the best route to the address, neighbours aside, is the connected network of
//! the neighbour's port: a static route to a part of that network keeps its meaning.

mod error;
mod family;
mod next_hops;
mod places;
#[cfg(test)]
pub(crate) mod tests;
mod types;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Bound;
use std::sync::Arc;

use dataplane::next_hop::{BLACKHOLE, LOCAL, MARTIAN, NextHopTable, PROHIBITED, UNREACHABLE};
use dataplane::port::PortId;
use fib::{GracePeriod, Prefix, Table};
use ipnet::IpNet;
use wire::MacAddr;

use family::{Candidate, Family, Routes};
use next_hops::{NextHops, Referrer, Refused};

pub use error::{Error, Subject};
pub use types::{
    GroupKey, GroupSpec, Inactive, LivePath, LoadReport, LookupInfo, PATHS_MOST, Path, Resilient,
    ResolverCommand, RibPort, Route, RouteInfo, RouteKind, Source, Summary, Target, WEIGHT_MOST,
};

/// The most buckets of a resilient group.
pub const BUCKETS_MOST: u16 = 4096;

fn refuse(prefix: IpNet, refused: Refused) -> Error {
    let what = Subject::Route(prefix);
    match refused {
        Refused::Numbers => Error::NextHopsFull { what },
        Refused::Places(places) => Error::GroupsFull { what, places },
    }
}

/// The range of addresses that are never forwarded in which a prefix lies, as text.
pub fn reserved_range(prefix: &IpNet) -> Option<&'static str> {
    reserved().find(|(range, _, _)| range.contains(prefix)).map(|(_, _, name)| name)
}

/// Ranges with a meaning of their own: the range, its next hop, how messages name it.
fn reserved() -> impl Iterator<Item = (IpNet, u16, &'static str)> {
    let v4 = |a, len| IpNet::new_assert(Ipv4Addr::new(a, 0, 0, 0).into(), len);
    let v6 = |a, len| IpNet::new_assert(Ipv6Addr::new(a, 0, 0, 0, 0, 0, 0, 0).into(), len);
    [
        (v4(0, 8), MARTIAN, "0.0.0.0/8 (this network)"),
        (v4(127, 8), MARTIAN, "127.0.0.0/8 (loopback)"),
        (v4(224, 4), LOCAL, "224.0.0.0/4 (multicast)"),
        (v4(240, 4), MARTIAN, "240.0.0.0/4 (reserved)"),
        (IpNet::from(IpAddr::from(Ipv4Addr::BROADCAST)), LOCAL, "255.255.255.255/32 (broadcast)"),
        (IpNet::from(IpAddr::from(Ipv6Addr::UNSPECIFIED)), MARTIAN, "::/128 (unspecified)"),
        (IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)), MARTIAN, "::1/128 (loopback)"),
        (v6(0xfe80, 10), LOCAL, "fe80::/10 (link-local)"),
        (v6(0xff00, 8), LOCAL, "ff00::/8 (multicast)"),
    ]
    .into_iter()
}

/// A resolved neighbour.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: MacAddr,
    /// It has a host route.
    host_route: bool,
}

/// The neighbours by address, so that those within a prefix are one range.
type Neighbours = BTreeMap<(IpAddr, PortId), Neighbour>;

/// The routing information base.
pub struct Rib {
    ports: Vec<RibPort>,
    v4: Routes<Ipv4Addr>,
    v6: Routes<Ipv6Addr>,
    hops: NextHops,
    neighbours: Neighbours,
    groups: BTreeMap<GroupKey, GroupSpec>,
    refused: u64,
}

impl Rib {
    /// A RIB with the routes that follow from the ports: reserved ranges, connected networks, own
    /// addresses. `grace` says when forwarders have let go of a next hop.
    ///
    /// # Errors
    /// A FIB or a next-hop table that has no room for even these.
    pub fn new(
        ports: Vec<RibPort>,
        fib4: Box<dyn Table<Ipv4Addr>>,
        fib6: Box<dyn Table<Ipv6Addr>>,
        next_hops: Arc<NextHopTable>,
        grace: Box<dyn GracePeriod>,
    ) -> Result<Self, Error> {
        let mut rib = Self {
            ports: Vec::new(),
            v4: Routes::new(fib4),
            v6: Routes::new(fib6),
            hops: NextHops::new(next_hops, grace),
            neighbours: Neighbours::new(),
            groups: BTreeMap::new(),
            refused: 0,
        };
        for (range, hop, _) in reserved() {
            rib.put_own(range, Source::Reserved, hop)?;
        }
        for port in ports {
            rib.add_port(port)?;
        }
        Ok(rib)
    }

    fn add_port(&mut self, port: RibPort) -> Result<(), Error> {
        for net in &port.addresses {
            for host in local_addresses(net) {
                self.put_own(IpNet::from(host), Source::Local, LOCAL)?;
            }
            let prefix = net.trunc();
            if net.prefix_len() < net.max_prefix_len() {
                let hop = self.hops.glean(port.id).map_err(|r| refuse(prefix, r))?;
                self.put_own(prefix, Source::Connected, hop)?;
            }
        }
        self.ports.push(port);
        Ok(())
    }

    /// The ports, as given.
    pub fn ports(&self) -> &[RibPort] {
        &self.ports
    }

    /// Adds a route of the RIB's own; the caller's reference to the hop becomes the candidate's.
    fn put_own(&mut self, prefix: IpNet, source: Source, hop: u16) -> Result<(), Error> {
        let candidate = Candidate { source, metric: 0, hop };
        match prefix {
            IpNet::V4(_) => put_and_sync(&mut self.v4, &mut self.hops, &prefix, candidate),
            IpNet::V6(_) => put_and_sync(&mut self.v6, &mut self.hops, &prefix, candidate),
        }
    }

    /// Adds a route; one of the same prefix, source and metric is replaced.
    ///
    /// # Errors
    /// Says why the route was refused; it is counted in [`Summary::refused`].
    pub fn add(&mut self, route: Route) -> Result<(), Error> {
        let added = self.try_add(&route);
        if added.is_err() {
            self.refused += 1;
        }
        self.review_neighbours(&route.prefix);
        added
    }

    fn try_add(&mut self, route: &Route) -> Result<(), Error> {
        let candidate = self.candidate(route)?;
        match route.prefix {
            IpNet::V4(_) => put_and_sync(&mut self.v4, &mut self.hops, &route.prefix, candidate),
            IpNet::V6(_) => put_and_sync(&mut self.v6, &mut self.hops, &route.prefix, candidate),
        }
    }

    /// Checks a route and gives it a next hop, with a reference for the candidate.
    fn candidate(&mut self, route: &Route) -> Result<Candidate, Error> {
        self.check(route)?;
        let prefix = route.prefix;
        let hop = match &route.kind {
            RouteKind::Blackhole => BLACKHOLE,
            RouteKind::Prohibited => PROHIBITED,
            RouteKind::Unreachable => UNREACHABLE,
            RouteKind::Host => LOCAL,
            RouteKind::NextHopGroup(key) => {
                let spec = self.groups.get(key).ok_or(Error::NoGroup { prefix, key: *key })?;
                let kind = match spec.blackhole {
                    true => RouteKind::Blackhole,
                    false => RouteKind::Unicast(spec.paths.clone()),
                };
                return self.candidate(&Route { kind, ..route.clone() });
            }
            RouteKind::Unicast(paths) => {
                let neighbours = &self.neighbours;
                let mac = |port, via| neighbours.get(&(via, port)).map(|known| known.mac);
                self.hops.over(paths, mac).map_err(|refused| refuse(prefix, refused))?
            }
        };
        Ok(Candidate { source: route.source, metric: route.metric, hop })
    }

    fn check(&self, route: &Route) -> Result<(), Error> {
        let prefix = route.prefix;
        if !route.source.is_settable() {
            return Err(Error::NotSettable { prefix, from: route.source });
        }
        if prefix.trunc() != prefix {
            return Err(Error::HostBits { prefix });
        }
        if let Some(range) = reserved_range(&prefix) {
            return Err(Error::Reserved { prefix, range });
        }
        let RouteKind::Unicast(paths) = &route.kind else { return Ok(()) };
        if paths.is_empty() || paths.len() > PATHS_MOST {
            return Err(Error::Paths { what: Subject::Route(prefix), count: paths.len() });
        }
        let what = Subject::Route(prefix);
        for &Path { port, via, weight, .. } in paths {
            if !(1..=WEIGHT_MOST).contains(&weight) {
                return Err(Error::Weight { what, via, weight });
            }
            let (Some(port), Some(_)) = (port, via) else { return Err(Error::EmptyPath { what }) };
            if !self.ports.iter().any(|known| known.id == port) {
                return Err(Error::UnknownPort { what, via, port });
            }
        }
        Ok(())
    }

    /// Removes a source's routes to a prefix, whatever their metrics; returns how many there were.
    /// The next best route takes over.
    pub fn remove(&mut self, prefix: IpNet, source: Source) -> usize {
        self.remove_if(prefix, |candidate| candidate.source == source)
    }

    /// Removes a source's route with this metric; false if there is none.
    pub fn remove_one(&mut self, prefix: IpNet, source: Source, metric: u64) -> bool {
        let fits = |candidate: &Candidate| candidate.source == source && candidate.metric == metric;
        self.remove_if(prefix, fits) > 0
    }

    fn remove_if(&mut self, prefix: IpNet, fits: impl Fn(&Candidate) -> bool) -> usize {
        let fits = |candidate: &Candidate| candidate.source.is_settable() && fits(candidate);
        let removed = match prefix {
            IpNet::V4(_) => take_and_sync(&mut self.v4, &mut self.hops, &prefix, fits),
            IpNet::V6(_) => take_and_sync(&mut self.v6, &mut self.hops, &prefix, fits),
        };
        if removed > 0 {
            self.review_neighbours(&prefix);
        }
        removed
    }

    /// Adds many routes, faster than one by one. A refused route does not keep others out.
    pub fn load(&mut self, routes: impl IntoIterator<Item = Route>) -> LoadReport {
        let mut report = LoadReport::default();
        let mut touched4: Vec<Touched<Ipv4Addr>> = Vec::new();
        let mut touched6: Vec<Touched<Ipv6Addr>> = Vec::new();
        for route in routes {
            match self.candidate(&route) {
                Err(error) => report.refuse(error),
                Ok(new) => {
                    match route.prefix {
                        IpNet::V4(_) => {
                            touched4.extend(put(&mut self.v4, &mut self.hops, &route.prefix, new))
                        }
                        IpNet::V6(_) => {
                            touched6.extend(put(&mut self.v6, &mut self.hops, &route.prefix, new))
                        }
                    }
                    report.accepted += 1;
                }
            }
        }
        load_fib(&mut self.v4, &mut self.hops, &touched4, &mut report);
        load_fib(&mut self.v6, &mut self.hops, &touched6, &mut report);
        self.refused += report.refused as u64;
        if !self.neighbours.is_empty() {
            for touched in &touched4 {
                self.review_neighbours(&Ipv4Addr::net(touched.0));
            }
            for touched in &touched6 {
                self.review_neighbours(&Ipv6Addr::net(touched.0));
            }
        }
        report
    }

    /// A neighbour has this MAC from now on.
    ///
    /// # Errors
    /// There is no room for its host route; the neighbour is known all the same, and routes over
    /// it use it.
    pub fn neighbour_up(
        &mut self,
        port: PortId,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), Error> {
        let known =
            self.neighbours.entry((address, port)).or_insert(Neighbour { mac, host_route: false });
        known.mac = mac;
        self.hops.resolve(port, address, Some(mac));
        self.review_neighbour(port, address)
    }

    /// A neighbour does not answer any more. Routes over it wait for the slow path to resolve it.
    pub fn neighbour_down(&mut self, port: PortId, address: IpAddr) {
        let Some(known) = self.neighbours.remove(&(address, port)) else { return };
        // The host route goes first: packets are gleaned then, not punted as unresolved.
        if known.host_route {
            self.remove_host_route(address);
        }
        self.hops.resolve(port, address, None);
    }

    /// A neighbour whose MAC is given: known at once, and to the slow path by a command.
    ///
    /// # Errors
    /// As [`Self::neighbour_up`].
    pub fn add_static_neighbour(
        &mut self,
        port: PortId,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), Error> {
        self.hops.command(ResolverCommand::AddStaticNeighbour { port, address, mac });
        self.neighbour_up(port, address, mac)
    }

    /// Forgets a neighbour, here and in the slow path.
    pub fn remove_neighbour(&mut self, port: PortId, address: IpAddr) {
        self.hops.command(ResolverCommand::RemoveNeighbour { port, address });
        self.neighbour_down(port, address);
    }

    /// The resolved neighbours in the order of their addresses.
    pub fn neighbours(&self) -> impl Iterator<Item = (PortId, IpAddr, MacAddr)> {
        self.neighbours.iter().map(|(&(address, port), known)| (port, address, known.mac))
    }

    /// Gives or takes the host routes of the neighbours within a prefix whose route has changed.
    fn review_neighbours(&mut self, prefix: &IpNet) {
        if self.neighbours.is_empty() {
            return;
        }
        // A route wider than every connected network cannot change what covers a neighbour.
        let within_network =
            self.ports.iter().flat_map(|port| &port.addresses).any(|net| {
                net.prefix_len() <= prefix.prefix_len() && net.contains(&prefix.network())
            });
        if !within_network {
            return;
        }
        let first = (prefix.network(), PortId::FIRST);
        let affected: Vec<_> = self
            .neighbours
            .range(first..)
            .take_while(|((address, _), _)| prefix.contains(address))
            .map(|(&key, _)| key)
            .collect();
        for (address, port) in affected {
            if self.review_neighbour(port, address).is_err() {
                self.refused += 1;
            }
        }
    }

    /// Gives a neighbour its host route if it is due, takes it if it is not.
    fn review_neighbour(&mut self, port: PortId, address: IpAddr) -> Result<(), Error> {
        let Some(&known) = self.neighbours.get(&(address, port)) else { return Ok(()) };
        let due = self.covering_glean(address) == Some(port);
        match (known.host_route, due) {
            (false, true) => self.add_host_route(port, address, known.mac)?,
            (true, false) => self.remove_host_route(address),
            _ => return Ok(()),
        }
        if let Some(known) = self.neighbours.get_mut(&(address, port)) {
            known.host_route = due;
        }
        Ok(())
    }

    fn add_host_route(&mut self, port: PortId, address: IpAddr, mac: MacAddr) -> Result<(), Error> {
        let prefix = IpNet::from(address);
        let hop = self
            .hops
            .gateway(port, address, Some(mac), Referrer::Other)
            .map_err(|refused| refuse(prefix, refused))?;
        self.put_own(prefix, Source::Neighbour, hop)
    }

    fn remove_host_route(&mut self, address: IpAddr) {
        let prefix = IpNet::from(address);
        let fits = |candidate: &Candidate| candidate.source == Source::Neighbour;
        match address {
            IpAddr::V4(_) => take_and_sync(&mut self.v4, &mut self.hops, &prefix, fits),
            IpAddr::V6(_) => take_and_sync(&mut self.v6, &mut self.hops, &prefix, fits),
        };
    }

    /// The port whose connected network is the best route to the address, neighbours aside.
    fn covering_glean(&self, address: IpAddr) -> Option<PortId> {
        let fits = |candidate: &Candidate| candidate.source != Source::Neighbour;
        let best = match address {
            IpAddr::V4(v4) => self.v4.longest(v4, fits).map(|(_, candidate)| candidate),
            IpAddr::V6(v6) => self.v6.longest(v6, fits).map(|(_, candidate)| candidate),
        };
        let best = best.filter(|candidate| candidate.source == Source::Connected)?;
        self.hops.glean_port(best.hop)
    }

    /// Changes several things; forwarders see the changes of each family's routes together.
    pub fn batch<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        change(self)
    }

    /// Sets a group, or gives the one of this name other paths.
    ///
    /// # Errors
    /// Says why the group was refused.
    pub fn set_group(&mut self, key: GroupKey, spec: GroupSpec) -> Result<(), Error> {
        self.groups.insert(key, spec);
        Ok(())
    }

    /// Removes a group and withdraws the routes that use it; false if there is none.
    pub fn remove_group(&mut self, key: GroupKey) -> bool {
        self.groups.remove(&key).is_some()
    }

    /// Begins to receive all routes and groups of a source anew, see [`Self::end_resync`].
    pub fn begin_resync(&mut self, _source: Source) {}

    /// Withdraws the routes and groups of the source that were not added again since
    /// [`Self::begin_resync`]; returns how many.
    pub fn end_resync(&mut self, _source: Source) -> usize {
        0
    }

    /// A port's link is up or down: whether packets can leave by it.
    pub fn set_link(&mut self, _port: PortId, _up: bool) {}

    /// A port's own addresses from now on.
    ///
    /// # Errors
    /// There is no room for a route that follows from them.
    pub fn set_addresses(&mut self, port: PortId, addresses: &[IpNet]) -> Result<(), Error> {
        if let Some(known) = self.ports.iter_mut().find(|known| known.id == port) {
            known.addresses = addresses.to_vec();
        }
        Ok(())
    }

    /// A port's MTU from now on.
    pub fn set_mtu(&mut self, port: PortId, mtu: u16) {
        if let Some(known) = self.ports.iter_mut().find(|known| known.id == port) {
            known.mtu = mtu;
        }
    }

    /// An address or prefix that is the router's own without being on a port.
    ///
    /// # Errors
    /// There is no room for the route.
    pub fn add_local(&mut self, prefix: IpNet) -> Result<(), Error> {
        self.put_own(prefix, Source::Local, LOCAL)
    }

    /// Takes back [`Self::add_local`]; false if there was none.
    pub fn remove_local(&mut self, _prefix: IpNet) -> bool {
        false
    }

    /// Gives a source another administrative distance, 1 to 255; those of sources that cannot be
    /// set are fixed.
    pub fn set_distance(&mut self, _source: Source, _distance: u8) {}

    /// The path that a flow with this hash takes to an address, as a forwarder finds it; `None` if
    /// its packets do not leave by a port.
    pub fn lookup_flow(&self, _address: IpAddr, _hash: u32) -> Option<LivePath> {
        None
    }

    /// The routes of a source, or of all; to a prefix, or to those within it, or to all.
    pub fn routes_filtered(
        &self,
        source: Option<Source>,
        prefix: Option<IpNet>,
        longer: bool,
    ) -> impl Iterator<Item = RouteInfo> {
        self.routes().filter(move |info| source.is_none_or(|source| info.source == source)).filter(
            move |info| {
                prefix.is_none_or(|prefix| {
                    info.prefix == prefix || longer && prefix.contains(&info.prefix)
                })
            },
        )
    }

    /// Whether [`Self::tick`] has something left to do that should not wait.
    pub fn is_busy(&self) -> bool {
        false
    }

    /// What the slow path has to learn since the last call, in order.
    pub fn drain_commands(&mut self) -> Vec<ResolverCommand> {
        self.hops.drain_commands()
    }

    /// Frees what forwarders have let go of, and tries again what a FIB had no room for. Call it
    /// a few times per second. Returns how many pieces still wait for a grace period.
    pub fn tick(&mut self) -> usize {
        self.v4.retry(&mut self.hops);
        self.v6.retry(&mut self.hops);
        self.hops.recycle()
    }

    /// All routes, IPv4 first, by prefix and preference.
    pub fn routes(&self) -> impl Iterator<Item = RouteInfo> {
        let v4 = self.v4.iter().flat_map(|(prefix, entry)| self.infos(prefix, entry));
        v4.chain(self.v6.iter().flat_map(|(prefix, entry)| self.infos(prefix, entry)))
    }

    /// The routes to this prefix and those that follow it, in the order of [`Self::routes`]: for
    /// who reads them piece by piece. A prefix follows those that hold it.
    pub fn routes_from(&self, start: Bound<IpNet>) -> impl Iterator<Item = RouteInfo> {
        let v4 = self.v4.from(family::start(start)).flat_map(|(p, entry)| self.infos(p, entry));
        let v6 = self.v6.from(family::start(start)).flat_map(|(p, entry)| self.infos(p, entry));
        v4.chain(v6)
    }

    /// The routes to prefixes within `outer`, itself included, by prefix and preference.
    pub fn routes_within(&self, outer: IpNet) -> impl Iterator<Item = RouteInfo> {
        let v4 = Ipv4Addr::prefix(&outer).into_iter().flat_map(|outer| self.v4.within(outer));
        let v6 = Ipv6Addr::prefix(&outer).into_iter().flat_map(|outer| self.v6.within(outer));
        v4.flat_map(|(prefix, entry)| self.infos(prefix, entry))
            .chain(v6.flat_map(|(prefix, entry)| self.infos(prefix, entry)))
    }

    fn infos<'a, A: Family>(
        &'a self,
        prefix: Prefix<A>,
        entry: &'a family::Entry,
    ) -> impl Iterator<Item = RouteInfo> + 'a {
        entry.candidates.iter().enumerate().map(move |(place, candidate)| RouteInfo {
            prefix: A::net(prefix),
            source: candidate.source,
            metric: candidate.metric,
            distance: candidate.source.distance(),
            inactive: None,
            target: self.target(candidate.hop),
            active: place == 0 && entry.installed == candidate.hop,
        })
    }

    fn target(&self, hop: u16) -> Target {
        match hop {
            LOCAL => Target::Local,
            MARTIAN => Target::Martian,
            BLACKHOLE => Target::Blackhole,
            PROHIBITED => Target::Prohibited,
            UNREACHABLE => Target::Unreachable,
            _ => match self.hops.glean_port(hop) {
                Some(port) => Target::Connected(port),
                None => Target::Unicast(self.hops.paths(hop)),
            },
        }
    }

    /// Where a packet to this address goes; `None` if no route leads there.
    pub fn lookup(&self, address: IpAddr) -> Option<LookupInfo> {
        let route = match address {
            IpAddr::V4(v4) => {
                let (prefix, _) = self.v4.longest(v4, |_| true)?;
                self.infos(prefix, self.v4.entry(prefix)?).next()?
            }
            IpAddr::V6(v6) => {
                let (prefix, _) = self.v6.longest(v6, |_| true)?;
                self.infos(prefix, self.v6.entry(prefix)?).next()?
            }
        };
        let next_hop = match address {
            IpAddr::V4(v4) => self.v4.fib().reader().lookup(v4),
            IpAddr::V6(v6) => self.v6.fib().reader().lookup(v6),
        };
        let mac = |port, via| self.neighbours.get(&(via, port)).map(|known| known.mac);
        let live = |port: Option<PortId>, gateway: Option<IpAddr>, weight: u16| {
            let port = port?;
            let mac = mac(port, gateway.unwrap_or(address));
            Some(LivePath { port, gateway, mac, weight: weight.into() })
        };
        let paths = match &route.target {
            Target::Unicast(paths) => {
                paths.iter().filter_map(|path| live(path.port, path.via, path.weight)).collect()
            }
            Target::Connected(port) => live(Some(*port), None, 1).into_iter().collect(),
            _ => Vec::new(),
        };
        Some(LookupInfo { route, next_hop, paths })
    }

    /// How much there is of everything.
    pub fn summary(&self) -> Summary {
        let (next_hops, next_hops_waiting, group_places) = self.hops.usage();
        Summary {
            ipv4: self.v4.counts,
            ipv6: self.v6.counts,
            fib4: self.v4.fib().len(),
            fib6: self.v6.fib().len(),
            fib4_bytes: self.v4.fib().memory_bytes(),
            fib6_bytes: self.v6.fib().memory_bytes(),
            neighbours: self.neighbours.len(),
            next_hops,
            next_hops_waiting,
            group_places,
            refused: self.refused,
            groups: self.groups.len(),
            waiting: 0,
            pending: self.v4.pending() + self.v6.pending(),
        }
    }
}

/// The addresses of a port's network that are the router's own.
fn local_addresses(net: &IpNet) -> Vec<IpAddr> {
    let mut addresses = vec![net.addr()];
    let hosts = net.max_prefix_len() - net.prefix_len();
    // /31, /127 and host addresses name no network (RFC 3021, RFC 6164).
    if hosts >= 2 {
        addresses.push(match net {
            IpNet::V4(net) => net.broadcast().into(),
            // A router has the subnet-router anycast address of its networks (RFC 4291 2.6.1).
            IpNet::V6(net) => net.network().into(),
        });
    }
    addresses
}

/// A prefix with a new candidate, known by source and metric.
type Touched<A> = (Prefix<A>, Source, u64);

/// Puts a candidate into the RIB; the FIB is not told. The replaced candidate's next hop is let go
/// of: the FIB's own reference keeps it until the FIB has the new one.
fn put<A: Family>(
    routes: &mut Routes<A>,
    hops: &mut NextHops,
    prefix: &IpNet,
    new: Candidate,
) -> Option<Touched<A>> {
    let prefix = A::prefix(prefix)?;
    if let Some(old) = routes.put(prefix, new) {
        hops.release(old.hop, old.referrer());
    }
    Some((prefix, new.source, new.metric))
}

/// Puts a candidate into RIB and FIB; if the FIB refuses, everything is as it was.
fn put_and_sync<A: Family>(
    routes: &mut Routes<A>,
    hops: &mut NextHops,
    net: &IpNet,
    new: Candidate,
) -> Result<(), Error> {
    let Some(prefix) = A::prefix(net) else { return Ok(()) };
    let old = routes.put(prefix, new);
    let synced = routes.sync(prefix, hops);
    let gone = match (&synced, old) {
        (Ok(()), old) => old,
        (Err(_), Some(old)) => routes.put(prefix, old),
        (Err(_), None) => routes.take(prefix, |c| c.source == new.source && c.metric == new.metric),
    };
    if let Some(gone) = gone {
        hops.release(gone.hop, gone.referrer());
    }
    synced.map_err(|error| {
        // The FIB is unchanged and so is the best candidate: this cannot fail again.
        let _ = routes.sync(prefix, hops);
        Error::Fib { prefix: *net, error }
    })
}

/// Takes candidates out of RIB and FIB; how many there were. A FIB without room for the change
/// keeps the old route until [`Rib::tick`] succeeds.
fn take_and_sync<A: Family>(
    routes: &mut Routes<A>,
    hops: &mut NextHops,
    net: &IpNet,
    fits: impl Fn(&Candidate) -> bool,
) -> usize {
    let Some(prefix) = A::prefix(net) else { return 0 };
    let mut count = 0;
    while let Some(gone) = routes.take(prefix, &fits) {
        hops.release(gone.hop, gone.referrer());
        count += 1;
    }
    if count > 0 {
        // A refusal is remembered by the prefix.
        let _ = routes.sync(prefix, hops);
    }
    count
}

/// Brings the FIB up to date with the candidates that were put; takes back those it refuses.
fn load_fib<A: Family>(
    routes: &mut Routes<A>,
    hops: &mut NextHops,
    touched: &[Touched<A>],
    report: &mut LoadReport,
) {
    let prefixes: Vec<Prefix<A>> = touched.iter().map(|touched| touched.0).collect();
    if routes.sync_all(&prefixes, hops).is_ok() {
        return;
    }
    for &(prefix, source, metric) in touched {
        let Err(error) = routes.sync(prefix, hops) else { continue };
        let fits = |c: &Candidate| c.source == source && c.metric == metric;
        if let Some(gone) = routes.take(prefix, fits) {
            hops.release(gone.hop, gone.referrer());
            report.accepted -= 1;
            report.refuse(Error::Fib { prefix: A::net(prefix), error });
        }
        let _ = routes.sync(prefix, hops);
    }
}
