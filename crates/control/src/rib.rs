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

mod family;
mod next_hops;
mod places;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use dataplane::next_hop::{BLACKHOLE, LOCAL, MARTIAN, NextHopTable, PROHIBITED, UNREACHABLE};
use dataplane::port::PortId;
use fib::{GracePeriod, Prefix, Table};
use ipnet::IpNet;
use wire::MacAddr;

use family::{Candidate, Family, Routes};
use next_hops::{NextHops, Referrer, Refused};

/// The most paths of one route.
pub const PATHS_MOST: usize = 128;

/// The largest weight of a path.
pub const WEIGHT_MOST: u16 = 256;

/// A port as the RIB knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct RibPort {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// Its MAC.
    pub mac: MacAddr,
    /// The largest IP packet it sends, in bytes.
    pub mtu: u16,
    /// Own addresses with the length of their network; host bits are set.
    pub addresses: Vec<IpNet>,
}

/// Where a route comes from. The order is that of preference between equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Ranges that are never forwarded: martians, multicast, link-local.
    Reserved,
    /// The router's own addresses, and its networks' broadcast addresses.
    Local,
    /// Networks that a port is on.
    Connected,
    /// The configuration.
    Static,
    /// A table loaded from a file.
    Import,
    /// Resolved neighbours' host routes.
    Neighbour,
}

impl Source {
    /// Every source, in the order of [`Self::index`].
    pub const ALL: [Self; 6] =
        [Self::Reserved, Self::Local, Self::Connected, Self::Static, Self::Import, Self::Neighbour];

    /// Position in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Local => "local",
            Self::Connected => "connected",
            Self::Static => "static",
            Self::Import => "import",
            Self::Neighbour => "neighbour",
        }
    }

    /// The administrative distance: of several routes to one prefix the smallest wins.
    pub fn distance(self) -> u8 {
        match self {
            Self::Reserved | Self::Local | Self::Connected => 0,
            Self::Static => 1,
            Self::Import => 20,
            Self::Neighbour => 250,
        }
    }
}

/// One of a route's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The port the gateway is on.
    pub port: PortId,
    /// The gateway.
    pub via: IpAddr,
    /// Its share of the flows, 1 to [`WEIGHT_MOST`].
    pub weight: u16,
}

/// What becomes of a route's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// They are sent on, over one path or several.
    Unicast(Vec<Path>),
    /// They are dropped in silence.
    Blackhole,
    /// They are refused: "administratively prohibited".
    Prohibited,
    /// They are refused: "host unreachable".
    Unreachable,
}

/// A route to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination; no host bits are set.
    pub prefix: IpNet,
    /// [`Source::Static`] or [`Source::Import`]; the others are the RIB's own.
    pub source: Source,
    /// What becomes of its packets.
    pub kind: RouteKind,
    /// Among a source's routes to one prefix the smallest wins.
    pub metric: u32,
}

/// What a route of the RIB leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over gateways, or to a neighbour's host route.
    Unicast(Vec<Path>),
    /// To the hosts on a port's network.
    Connected(PortId),
    /// To the router itself.
    Local,
    /// Nowhere: martians.
    Martian,
    /// Dropped in silence.
    Blackhole,
    /// Refused: "administratively prohibited".
    Prohibited,
    /// Refused: "host unreachable".
    Unreachable,
}

/// A route as commands show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// The destination.
    pub prefix: IpNet,
    /// Where it comes from.
    pub source: Source,
    /// Its metric.
    pub metric: u32,
    /// Where it leads; weights are reduced by their greatest common divisor.
    pub target: Target,
    /// Forwarders use it: it is the best to its prefix, and in the FIB.
    pub active: bool,
}

/// The answer to "where does a packet to this address go?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupInfo {
    /// The route.
    pub route: RouteInfo,
    /// The number that the FIB answers with.
    pub next_hop: u16,
    /// The MAC of each path's gateway in the order of the paths; for a connected network that of
    /// the destination itself. `None`: not resolved.
    pub macs: Vec<Option<MacAddr>>,
}

/// What the slow path has to learn from the RIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolverCommand {
    /// Routes lead over this gateway; punted packets name it by the number.
    NextHop {
        /// The next hop's number.
        id: u16,
        /// The port the gateway is on.
        port: PortId,
        /// The gateway.
        address: IpAddr,
    },
    /// No route leads over the gateway with this number any more.
    RemoveNextHop {
        /// The next hop's number.
        id: u16,
    },
    /// A neighbour whose MAC is given.
    AddStaticNeighbour {
        /// The port it is on.
        port: PortId,
        /// Its address.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
    /// A neighbour is to be forgotten, static or not.
    RemoveNeighbour {
        /// The port it is on.
        port: PortId,
        /// Its address.
        address: IpAddr,
    },
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// IPv4 routes by source, in the order of [`Source::ALL`], those not in the FIB included.
    pub ipv4: [usize; Source::ALL.len()],
    /// IPv6 routes by source.
    pub ipv6: [usize; Source::ALL.len()],
    /// Prefixes in the IPv4 FIB.
    pub fib4: usize,
    /// Prefixes in the IPv6 FIB.
    pub fib6: usize,
    /// Bytes that lookups in the IPv4 FIB read.
    pub fib4_bytes: usize,
    /// Bytes that lookups in the IPv6 FIB read.
    pub fib6_bytes: usize,
    /// Neighbours that are resolved.
    pub neighbours: usize,
    /// Next-hop numbers in use.
    pub next_hops: usize,
    /// Next-hop numbers that wait for a grace period.
    pub next_hops_waiting: usize,
    /// Places of group members in use or waiting.
    pub group_places: usize,
    /// Routes refused since the start.
    pub refused: u64,
    /// Prefixes whose change the FIB had no room for; they are tried again by [`Rib::tick`].
    pub pending: usize,
}

/// What [`Rib::load`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Routes taken.
    pub accepted: usize,
    /// Routes refused.
    pub refused: usize,
    /// The first refusals, at most [`LoadReport::ERRORS_KEPT`].
    pub errors: Vec<Error>,
}

impl LoadReport {
    /// The most refusals that are kept.
    pub const ERRORS_KEPT: usize = 20;

    fn refuse(&mut self, error: Error) {
        self.refused += 1;
        if self.errors.len() < Self::ERRORS_KEPT {
            self.errors.push(error);
        }
    }
}

/// Why a change was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A prefix with host bits.
    #[error("route {prefix}: host bits are set; the prefix is {}", .prefix.trunc())]
    HostBits {
        /// What was given.
        prefix: IpNet,
    },
    /// A prefix that is never forwarded.
    #[error("route {prefix}: lies in {range}, which is never forwarded")]
    Reserved {
        /// What was given.
        prefix: IpNet,
        /// The range.
        range: &'static str,
    },
    /// A unicast route without a path, or with too many.
    #[error("route {prefix}: {count} paths; a route has 1 to {PATHS_MOST}")]
    Paths {
        /// The route.
        prefix: IpNet,
        /// The paths given.
        count: usize,
    },
    /// A weight out of range.
    #[error("route {prefix}: weight {weight} of path {via}; a weight is 1 to {WEIGHT_MOST}")]
    Weight {
        /// The route.
        prefix: IpNet,
        /// The path.
        via: IpAddr,
        /// What was given.
        weight: u16,
    },
    /// A path of the other family.
    #[error("route {prefix}: next hop {via} is of the other address family")]
    Family {
        /// The route.
        prefix: IpNet,
        /// The path.
        via: IpAddr,
    },
    /// A path over a port that the router does not have.
    #[error("route {prefix}: next hop {via} is on {port}, which this router does not have")]
    UnknownPort {
        /// The route.
        prefix: IpNet,
        /// The path.
        via: IpAddr,
        /// The port.
        port: PortId,
    },
    /// Routes of this source are made by the RIB itself.
    #[error("route {prefix}: {} routes follow from ports and neighbours; they cannot be set", .from.name())]
    NotSettable {
        /// The route.
        prefix: IpNet,
        /// The source given.
        from: Source,
    },
    /// No number is left for another next hop.
    #[error(
        "route {prefix}: all {} next hops are in use; let routes share gateways, or remove some",
        dataplane::next_hop::NEXT_HOPS
    )]
    NextHopsFull {
        /// The route.
        prefix: IpNet,
    },
    /// No room for another group of paths.
    #[error(
        "route {prefix}: no room for a group of {places} among {} places; use fewer paths or smaller weights",
        dataplane::next_hop::GROUP_MEMBERS
    )]
    GroupsFull {
        /// The route.
        prefix: IpNet,
        /// The places the group needs.
        places: u32,
    },
    /// Weights that cannot be kept exactly.
    #[error(
        "route {prefix}: its weights need {places} places, {} is the most; use weights with a common divisor",
        next_hops::GROUP_PLACES_MOST
    )]
    WeightsTooFine {
        /// The route.
        prefix: IpNet,
        /// The places they need.
        places: u32,
    },
    /// The FIB refused.
    #[error("route {prefix}: {error}")]
    Fib {
        /// The route.
        prefix: IpNet,
        /// Why.
        error: fib::Error,
    },
}

impl Error {
    fn refused(prefix: IpNet, refused: Refused) -> Self {
        match refused {
            Refused::Numbers => Self::NextHopsFull { prefix },
            Refused::Places(places) => Self::GroupsFull { prefix, places },
            Refused::Weights(places) => Self::WeightsTooFine { prefix, places },
        }
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
                let hop = self.hops.glean(port.id).map_err(|r| Error::refused(prefix, r))?;
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
            RouteKind::Unicast(paths) => {
                let neighbours = &self.neighbours;
                let mac = |port, via| neighbours.get(&(via, port)).map(|known| known.mac);
                self.hops.over(paths, mac).map_err(|refused| Error::refused(prefix, refused))?
            }
        };
        Ok(Candidate { source: route.source, metric: route.metric, hop })
    }

    fn check(&self, route: &Route) -> Result<(), Error> {
        let prefix = route.prefix;
        if !matches!(route.source, Source::Static | Source::Import) {
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
            return Err(Error::Paths { prefix, count: paths.len() });
        }
        for &Path { port, via, weight } in paths {
            if via.is_ipv4() != prefix.addr().is_ipv4() {
                return Err(Error::Family { prefix, via });
            }
            if !(1..=WEIGHT_MOST).contains(&weight) {
                return Err(Error::Weight { prefix, via, weight });
            }
            if !self.ports.iter().any(|known| known.id == port) {
                return Err(Error::UnknownPort { prefix, via, port });
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
    pub fn remove_one(&mut self, prefix: IpNet, source: Source, metric: u32) -> bool {
        let fits = |candidate: &Candidate| candidate.source == source && candidate.metric == metric;
        self.remove_if(prefix, fits) > 0
    }

    fn remove_if(&mut self, prefix: IpNet, fits: impl Fn(&Candidate) -> bool) -> usize {
        let fits = |candidate: &Candidate| {
            matches!(candidate.source, Source::Static | Source::Import) && fits(candidate)
        };
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
            .map_err(|refused| Error::refused(prefix, refused))?;
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
        let macs = match &route.target {
            Target::Unicast(paths) => paths.iter().map(|path| mac(path.port, path.via)).collect(),
            Target::Connected(port) => vec![mac(*port, address)],
            _ => Vec::new(),
        };
        Some(LookupInfo { route, next_hop, macs })
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
type Touched<A> = (Prefix<A>, Source, u32);

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
