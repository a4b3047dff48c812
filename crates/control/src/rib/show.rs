//! What commands ask: routes, where a packet goes, how much there is.

use super::groups::RouteId;
use super::next_hops::{NO_GROUP, NO_ROOM};
use super::*;

impl Rib {
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

    /// The routes to exactly this prefix, by preference.
    pub fn routes_to(&self, prefix: IpNet) -> impl Iterator<Item = RouteInfo> {
        let v4 = Ipv4Addr::prefix(&prefix).and_then(|p| Some((p, self.v4.entry(p)?)));
        let v6 = Ipv6Addr::prefix(&prefix).and_then(|p| Some((p, self.v6.entry(p)?)));
        v4.into_iter()
            .flat_map(|(prefix, entry)| self.infos(prefix, entry))
            .chain(v6.into_iter().flat_map(|(prefix, entry)| self.infos(prefix, entry)))
    }

    /// The routes of a source, or of all; to a prefix, or to those within it (`longer`), or to all.
    pub fn routes_filtered(
        &self,
        source: Option<Source>,
        prefix: Option<IpNet>,
        longer: bool,
    ) -> Box<dyn Iterator<Item = RouteInfo> + '_> {
        let of_source = move |info: &RouteInfo| source.is_none_or(|source| info.source == source);
        match prefix {
            None => Box::new(self.routes().filter(of_source)),
            Some(prefix) if longer => Box::new(self.routes_within(prefix).filter(of_source)),
            Some(prefix) => Box::new(self.routes_to(prefix).filter(of_source)),
        }
    }

    fn infos<'a, A: Family>(
        &'a self,
        prefix: Prefix<A>,
        entry: &'a Entry,
    ) -> impl Iterator<Item = RouteInfo> + 'a {
        let best = family::best(entry, &self.hops);
        let known = entry.candidates().filter(|candidate| !self.hops.is_gone(candidate.hop));
        known.map(move |candidate| {
            let inactive = match self.hops.reason(candidate.hop) {
                Some(reason) => Some(reason),
                None if best != Some(candidate) => Some(Inactive::Shadowed),
                None => (entry.installed != candidate.hop).then_some(Inactive::Pending),
            };
            let prefix = A::net(prefix);
            RouteInfo {
                prefix,
                source: candidate.source,
                metric: if candidate.source.is_settable() { candidate.metric } else { 0 },
                distance: self.distances[candidate.source.index()],
                target: self.target(prefix, &candidate),
                active: inactive.is_none(),
                inactive,
            }
        })
    }

    fn target(&self, prefix: IpNet, candidate: &Candidate) -> Target {
        match candidate.hop {
            LOCAL if candidate.source.is_settable() => Target::Host,
            LOCAL => Target::Local,
            MARTIAN => Target::Martian,
            MULTICAST => Target::Multicast,
            BLACKHOLE => Target::Blackhole,
            PROHIBITED => Target::Prohibited,
            UNREACHABLE => Target::Unreachable,
            NO_ROOM | NO_GROUP => {
                self.waiting_target(&(prefix, candidate.source, candidate.metric))
            }
            hop => match (self.hops.object_key(hop), self.hops.glean_port(hop)) {
                (Some(key), _) => Target::Group(key, self.hops.paths(hop)),
                (_, Some(interface)) if candidate.source == Source::Connected => {
                    Target::Connected(interface)
                }
                _ => Target::Unicast(self.hops.paths(hop)),
            },
        }
    }

    fn waiting_target(&self, id: &RouteId) -> Target {
        match self.waiting.kind(id) {
            Some(RouteKind::Unicast(paths)) => Target::Unicast(paths.clone()),
            Some(&RouteKind::NextHopGroup(key)) => {
                let paths = self.groups.get(&key).map(|group| group.spec.paths.clone());
                Target::Group(key, paths.unwrap_or_default())
            }
            // Only these wait.
            _ => Target::Unicast(Vec::new()),
        }
    }

    /// Where a packet to this address goes; `None` if no route leads there.
    pub fn lookup(&self, address: IpAddr) -> Option<LookupInfo> {
        let (hop, route) = match address {
            IpAddr::V4(v4) => self.chosen(&self.v4, v4)?,
            IpAddr::V6(v6) => self.chosen(&self.v6, v6)?,
        };
        let mut paths = self.hops.live_paths(hop);
        for path in paths.iter_mut().filter(|path| path.gateway.is_none()) {
            path.mac = mac_of(&self.neighbours, path.interface, address);
        }
        Some(LookupInfo { route, next_hop: self.fib_lookup(address), paths })
    }

    /// The best live route to an address.
    fn chosen<A: Family>(&self, routes: &Routes<A>, address: A) -> Option<(u16, RouteInfo)> {
        let (prefix, entry) = routes.longest(address, &self.hops)?;
        let best = family::best(entry, &self.hops)?;
        let shown = entry.candidates().filter(|candidate| !self.hops.is_gone(candidate.hop));
        let at = shown.take_while(|candidate| *candidate != best).count();
        Some((best.hop, self.infos(prefix, entry).nth(at)?))
    }

    pub(super) fn fib_lookup(&self, address: IpAddr) -> u16 {
        match address {
            IpAddr::V4(v4) => self.v4.fib().reader().lookup(v4),
            IpAddr::V6(v6) => self.v6.fib().reader().lookup(v6),
        }
    }

    /// The path that a flow with this hash takes to an address, as a forwarder finds it; `None` if
    /// its packets do not leave by an interface.
    pub fn lookup_flow(&self, address: IpAddr, hash: u32) -> Option<LivePath> {
        let mut path = self.hops.flow_path(self.fib_lookup(address), hash)?;
        if path.gateway.is_none() {
            path.mac = mac_of(&self.neighbours, path.interface, address);
        }
        Some(path)
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
            groups: self.groups.len(),
            refused: self.refused,
            waiting: self.waiting.len(),
            pending: self.v4.pending() + self.v6.pending(),
        }
    }
}
