//! Queries of commands: routes, lookups, summaries.

use dataplane::next_hop::FIRST_DYNAMIC;

use super::groups::RouteId;
use super::next_hops::{NO_GROUP, NO_ROOM};
use super::*;

impl Rib {
    /// Returns all routes, by VRF, IPv4 first, by prefix and preference.
    pub fn routes(&self) -> impl Iterator<Item = RouteInfo> {
        self.vrfs().flat_map(|vrf| self.routes_from(vrf, Bound::Unbounded))
    }

    /// Returns a VRF's routes to this prefix and those after it, in the order of [`Self::routes`],
    /// for readers that proceed piece by piece. A prefix follows those that contain it.
    pub fn routes_from(&self, vrf: VrfId, start: Bound<IpNet>) -> impl Iterator<Item = RouteInfo> {
        self.vrfs.get(vrf.index()).into_iter().flat_map(move |Vrf { v4, v6 }| {
            let v4 = v4.from(family::start(start)).flat_map(move |(p, e)| self.infos(vrf, p, e));
            let v6 = v6.from(family::start(start)).flat_map(move |(p, e)| self.infos(vrf, p, e));
            v4.chain(v6)
        })
    }

    /// Returns a VRF's routes to prefixes within `outer`, including itself, by prefix and
    /// preference.
    pub fn routes_within(&self, vrf: VrfId, outer: IpNet) -> impl Iterator<Item = RouteInfo> {
        self.vrfs.get(vrf.index()).into_iter().flat_map(move |routes| {
            let v4 = Ipv4Addr::prefix(&outer).into_iter().flat_map(|outer| routes.v4.within(outer));
            let v6 = Ipv6Addr::prefix(&outer).into_iter().flat_map(|outer| routes.v6.within(outer));
            v4.flat_map(move |(prefix, entry)| self.infos(vrf, prefix, entry))
                .chain(v6.flat_map(move |(prefix, entry)| self.infos(vrf, prefix, entry)))
        })
    }

    /// Returns a VRF's routes to exactly this prefix, by preference.
    pub fn routes_to(&self, vrf: VrfId, prefix: IpNet) -> impl Iterator<Item = RouteInfo> {
        self.vrfs.get(vrf.index()).into_iter().flat_map(move |routes| {
            let v4 = Ipv4Addr::prefix(&prefix).and_then(|p| Some((p, routes.v4.entry(p)?)));
            let v6 = Ipv6Addr::prefix(&prefix).and_then(|p| Some((p, routes.v6.entry(p)?)));
            v4.into_iter()
                .flat_map(move |(prefix, entry)| self.infos(vrf, prefix, entry))
                .chain(v6.into_iter().flat_map(move |(prefix, e)| self.infos(vrf, prefix, e)))
        })
    }

    /// Returns a VRF's routes of one source or all; to a prefix, to those within it (`longer`), or
    /// to all.
    pub fn routes_filtered(
        &self,
        vrf: VrfId,
        source: Option<RouteSource>,
        prefix: Option<IpNet>,
        longer: bool,
    ) -> Box<dyn Iterator<Item = RouteInfo> + '_> {
        let of_source = move |info: &RouteInfo| source.is_none_or(|source| info.source == source);
        match prefix {
            None => Box::new(self.routes_from(vrf, Bound::Unbounded).filter(of_source)),
            Some(prefix) if longer => Box::new(self.routes_within(vrf, prefix).filter(of_source)),
            Some(prefix) => Box::new(self.routes_to(vrf, prefix).filter(of_source)),
        }
    }

    /// Returns true if a VRF has a matching route to exactly this prefix; `fits` gets source and origin AS.
    pub fn has_route(
        &self,
        vrf: VrfId,
        prefix: IpNet,
        fits: impl Fn(RouteSource, Option<u32>) -> bool,
    ) -> bool {
        let Some(routes) = self.vrfs.get(vrf.index()) else { return false };
        let v4 = Ipv4Addr::prefix(&prefix).and_then(|prefix| routes.v4.entry(prefix));
        let v6 = Ipv6Addr::prefix(&prefix).and_then(|prefix| routes.v6.entry(prefix));
        let mut candidates = v4
            .or(v6)
            .into_iter()
            .flat_map(|entry| entry.candidates().filter(|candidate| !entry.withholds(candidate)));
        candidates.any(|Candidate { source, metric, hop, .. }| {
            !self.hops.is_gone(hop) && fits(source, shown_metric(source, metric).1)
        })
    }

    /// Returns a VRF's prefixes with routes, from this one on, IPv4 first.
    pub fn prefixes_from(&self, vrf: VrfId, start: Bound<IpNet>) -> impl Iterator<Item = IpNet> {
        self.vrfs.get(vrf.index()).into_iter().flat_map(move |Vrf { v4, v6 }| {
            let v4 = v4.from(family::start(start)).map(|(prefix, _)| Ipv4Addr::net(prefix));
            v4.chain(v6.from(family::start(start)).map(|(prefix, _)| Ipv6Addr::net(prefix)))
        })
    }

    /// Starts the recording of changes of a VRF's FIBs.
    pub fn follow_installed(&mut self, vrf: VrfId) {
        if let Some(Vrf { v4, v6 }) = self.vrfs.get_mut(vrf.index()) {
            v4.follow_installed();
            v6.follow_installed();
        }
    }

    /// Returns true if changes of a VRF's FIBs have been recorded and not drained.
    pub fn has_installed(&self, vrf: VrfId) -> bool {
        self.vrfs
            .get(vrf.index())
            .is_some_and(|Vrf { v4, v6 }| v4.has_installed() || v6.has_installed())
    }

    /// Returns the prefixes whose entry in a VRF's FIBs has changed since the last call, in no order.
    pub fn drain_installed(&mut self, vrf: VrfId) -> Vec<IpNet> {
        let Some(Vrf { v4, v6 }) = self.vrfs.get_mut(vrf.index()) else { return Vec::new() };
        let v4 = v4.drain_installed().into_iter().map(Ipv4Addr::net);
        v4.chain(v6.drain_installed().into_iter().map(Ipv6Addr::net)).collect()
    }

    /// Returns the treatment of packets by exactly this prefix of a VRF's FIB; `None` if it is not in the FIB.
    pub fn treatment(&self, vrf: VrfId, prefix: IpNet) -> Option<Treatment> {
        let routes = self.vrfs.get(vrf.index())?;
        let v4 = Ipv4Addr::prefix(&prefix).and_then(|prefix| routes.v4.entry(prefix));
        let v6 = Ipv6Addr::prefix(&prefix).and_then(|prefix| routes.v6.entry(prefix));
        treatment(v4.or(v6)?)
    }

    /// Returns the first prefix of a VRF's FIB behind this place, which is of the same family as the prefix there.
    pub fn prefix_after(&self, vrf: VrfId, place: IpNet) -> Option<IpNet> {
        let Vrf { v4, v6 } = self.vrfs.get(vrf.index())?;
        let start = Bound::Excluded(place);
        match place {
            IpNet::V4(_) => {
                let mut all =
                    v4.from(family::start(start)).filter(|(_, of)| treatment(of).is_some());
                all.next().map(|(prefix, _)| Ipv4Addr::net(prefix))
            }
            IpNet::V6(_) => {
                let mut all =
                    v6.from(family::start(start)).filter(|(_, of)| treatment(of).is_some());
                all.next().map(|(prefix, _)| Ipv6Addr::net(prefix))
            }
        }
    }

    /// Returns the treatment of packets by each prefix of a VRF's FIBs from this one on, in the order of prefixes, IPv4
    /// first.
    pub fn treatments_from(
        &self,
        vrf: VrfId,
        start: Bound<IpNet>,
    ) -> impl Iterator<Item = (IpNet, Treatment)> {
        self.vrfs.get(vrf.index()).into_iter().flat_map(move |Vrf { v4, v6 }| {
            let v4 = v4.from(family::start(start)).map(|(prefix, of)| (Ipv4Addr::net(prefix), of));
            let v6 = v6.from(family::start(start)).map(|(prefix, of)| (Ipv6Addr::net(prefix), of));
            v4.chain(v6).filter_map(|(prefix, entry)| Some((prefix, treatment(entry)?)))
        })
    }

    fn infos<'a, A: Family>(
        &'a self,
        vrf: VrfId,
        prefix: Prefix<A>,
        entry: &'a Entry,
    ) -> impl Iterator<Item = RouteInfo> + 'a {
        let best = family::best(entry, &self.hops);
        let known = entry.candidates().filter(|candidate| !self.hops.is_gone(candidate.hop));
        known.map(move |candidate| {
            let inactive = match self.hops.reason(candidate.hop) {
                Some(reason) => Some(reason),
                None if entry.withholds(&candidate) => Some(Inactive::NotAccepted),
                None if best != Some(candidate) => Some(Inactive::Shadowed),
                None => (entry.installed != candidate.hop).then_some(Inactive::Pending),
            };
            let prefix = A::net(prefix);
            let (metric, origin_as) = shown_metric(candidate.source, candidate.metric);
            RouteInfo {
                vrf,
                prefix,
                source: candidate.source,
                metric,
                origin_as,
                distance: self.distances[candidate.source.index()],
                target: self.target(vrf, prefix, &candidate),
                active: inactive.is_none(),
                inactive,
            }
        })
    }

    fn target(&self, vrf: VrfId, prefix: IpNet, candidate: &Candidate) -> Target {
        match candidate.hop {
            LOCAL if candidate.source.is_settable() => Target::Host,
            LOCAL => Target::Local,
            MARTIAN => Target::Martian,
            MULTICAST => Target::Multicast,
            BLACKHOLE => Target::Blackhole,
            PROHIBITED => Target::Prohibited,
            UNREACHABLE => Target::Unreachable,
            NO_ROOM | NO_GROUP => {
                self.waiting_target(&(vrf, prefix, candidate.source, candidate.metric))
            }
            hop => match (self.hops.object_key(hop), self.hops.glean_port(hop)) {
                (Some(key), _) => Target::Group(key, self.hops.paths(hop)),
                (_, Some(interface)) if candidate.source == RouteSource::Connected => {
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
                let paths = self.groups.spec(&key).map(|spec| spec.paths.clone());
                Target::Group(key, paths.unwrap_or_default())
            }
            // Only these kinds can wait.
            _ => Target::Unicast(Vec::new()),
        }
    }

    /// Looks up an address in a VRF; `None` if no route leads there.
    pub fn lookup(&self, vrf: VrfId, address: IpAddr) -> Option<LookupInfo> {
        let routes = self.vrfs.get(vrf.index())?;
        let (hop, route) = match address {
            IpAddr::V4(v4) => self.chosen(vrf, &routes.v4, v4)?,
            IpAddr::V6(v6) => self.chosen(vrf, &routes.v6, v6)?,
        };
        let mut paths = self.hops.live_paths(hop);
        for path in paths.iter_mut().filter(|path| path.gateway.is_none()) {
            path.mac = self.neighbours.mac(path.interface, address);
        }
        Some(LookupInfo { route, next_hop: self.fib_lookup(vrf, address), paths })
    }

    /// Returns the best live route to an address.
    fn chosen<A: Family>(
        &self,
        vrf: VrfId,
        routes: &Routes<A>,
        address: A,
    ) -> Option<(u16, RouteInfo)> {
        let (prefix, entry) = routes.longest(address, &self.hops)?;
        let best = family::best(entry, &self.hops)?;
        let shown = entry.candidates().filter(|candidate| !self.hops.is_gone(candidate.hop));
        let at = shown.take_while(|candidate| *candidate != best).count();
        Some((best.hop, self.infos(vrf, prefix, entry).nth(at)?))
    }

    pub(super) fn fib_lookup(&self, vrf: VrfId, address: IpAddr) -> u16 {
        let Some(routes) = self.vrfs.get(vrf.index()) else { return NO_ROUTE };
        match address {
            IpAddr::V4(v4) => routes.v4.fib().reader().lookup(v4),
            IpAddr::V6(v6) => routes.v6.fib().reader().lookup(v6),
        }
    }

    /// Returns the path of a flow of a VRF with this hash to an address, as a forwarder selects it;
    /// `None` if its packets do not leave by an interface.
    pub fn lookup_flow(&self, vrf: VrfId, address: IpAddr, hash: u32) -> Option<LivePath> {
        let mut path = self.hops.flow_path(self.fib_lookup(vrf, address), hash)?;
        if path.gateway.is_none() {
            path.mac = self.neighbours.mac(path.interface, address);
        }
        Some(path)
    }

    /// Returns the numbers of a VRF's routes and the sizes of its tables; other counts are zero.
    pub fn vrf_summary(&self, vrf: VrfId) -> Summary {
        self.vrfs.get(vrf.index()).map(Vrf::summary).unwrap_or_default()
    }

    /// Returns the counts and sizes of the whole RIB.
    pub fn summary(&self) -> Summary {
        let (next_hops, next_hops_waiting, group_places) = self.hops.usage();
        let tables = self.vrfs.iter().map(Vrf::summary).fold(Summary::default(), Summary::with);
        Summary {
            neighbours: self.neighbours.len(),
            next_hops,
            next_hops_waiting,
            group_places,
            groups: self.groups.len(),
            refused: self.refusals.count(),
            waiting: self.waiting.len(),
            ..tables
        }
    }
}

/// Returns the treatment of packets by an entry of the FIB; `None` if the FIB has none.
fn treatment(entry: &Entry) -> Option<Treatment> {
    match entry.installed {
        NO_ROUTE => None,
        hop if hop < FIRST_DYNAMIC => Some(Treatment::Other),
        _ => Some(Treatment::Forwarded),
    }
}
