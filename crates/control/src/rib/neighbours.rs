//! Neighbours, and the host routes of those on connected networks.
//!
//! A resolved neighbour gets a /32 or /128 route, so that packets to it need no slow path. It gets
//! one exactly if the best live route to the address, apart from neighbours' routes, leads to the
//! hosts on the neighbour's interface: so a static route to a part of that network stays in effect.
//! This applies in the VRF of the interface, and in any other with a route to the interface's
//! hosts.
//!
//! The host routes within a prefix are reviewed when its routes change. When a link goes down or
//! comes up, all are reviewed, a piece at a time: until then a neighbour is reached as before, or
//! by the slow path.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::ops::Bound;

use super::next_hops::Referrer;
use super::*;

/// A resolved neighbour.
#[derive(Clone, Debug)]
pub(super) struct Neighbour {
    mac: MacAddr,
    /// The VRFs in which it has a host route: nearly always one.
    host_routes: Vec<VrfId>,
}

/// The resolved neighbours, and what their host routes depend on.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// By address, so that those within a prefix are one range.
    all: BTreeMap<(IpAddr, InterfaceId), Neighbour>,
    /// Their number by interface; none is 0.
    counts: BTreeMap<InterfaceId, usize>,
    gleaning: Gleaning,
    review: Review,
}

/// A walk over all neighbours that resumes where it stopped.
#[derive(Debug, Default)]
struct Review {
    running: bool,
    again: bool,
    last: Option<(IpAddr, InterfaceId)>,
}

/// The VRFs with a route to the hosts on an interface, now or earlier: only in these may its neighbours need host
/// routes. There may be a thousand others.
#[derive(Debug, Default)]
struct Gleaning(BTreeSet<(InterfaceId, VrfId)>);

impl Gleaning {
    fn add(&mut self, interface: InterfaceId, vrf: VrfId) {
        self.0.insert((interface, vrf));
    }

    fn has(&self, interface: InterfaceId, vrf: VrfId) -> bool {
        self.0.contains(&(interface, vrf))
    }

    fn of(&self, interface: InterfaceId) -> impl Iterator<Item = VrfId> {
        let first = (interface, VrfId::DEFAULT);
        self.0.range(first..).take_while(move |pair| pair.0 == interface).map(|pair| pair.1)
    }

    /// Forgets an interface that is gone.
    fn forget(&mut self, interface: InterfaceId) {
        self.0.retain(|pair| pair.0 != interface);
    }
}

/// Most neighbours that are reviewed within a route change, and most that are looked at: those of other VRFs may have
/// the same addresses.
const AT_ONCE: usize = 64;
const LOOKED_AT: usize = 2048;

impl Review {
    fn start(&mut self) {
        self.again = self.running;
        self.running = true;
    }
}

impl Neighbours {
    /// Returns the MAC of a neighbour, if it is resolved.
    pub(super) fn mac(&self, interface: InterfaceId, address: IpAddr) -> Option<MacAddr> {
        self.all.get(&(address, interface)).map(|known| known.mac)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// A VRF has a route to the hosts on an interface.
    pub(super) fn glean(&mut self, interface: InterfaceId, vrf: VrfId) {
        self.gleaning.add(interface, vrf);
    }

    /// Forgets an interface that was removed, and whose neighbours were.
    pub(super) fn forget(&mut self, interface: InterfaceId) {
        self.gleaning.forget(interface);
    }

    /// Starts a review of the host routes of all.
    pub(super) fn start_review(&mut self) {
        self.review.start();
    }

    pub(super) fn are_under_review(&self) -> bool {
        self.review.running
    }

    fn set(&mut self, interface: InterfaceId, address: IpAddr, mac: MacAddr) {
        let known = self.all.entry((address, interface));
        if let Entry::Vacant(_) = known {
            *self.counts.entry(interface).or_default() += 1;
        }
        known.or_insert(Neighbour { mac, host_routes: Vec::new() }).mac = mac;
    }

    fn remove(&mut self, interface: InterfaceId, address: IpAddr) -> Option<Neighbour> {
        let known = self.all.remove(&(address, interface))?;
        if let Entry::Occupied(mut count) = self.counts.entry(interface) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(known)
    }
}

impl Rib {
    /// Sets the MAC of a neighbour.
    ///
    /// # Errors
    /// There is no room for its host route; the neighbour is resolved nevertheless, and routes over
    /// it use it.
    pub fn neighbour_up(
        &mut self,
        interface: InterfaceId,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), Error> {
        let route = (self.vrf_of(interface), IpNet::from(address));
        self.checked(Some(route), |rib| {
            rib.neighbours.set(interface, address, mac);
            rib.hops.resolve(interface, address, Some(mac));
            rib.review_neighbour(interface, address)
        })
    }

    /// Handles a neighbour that no longer answers. Routes over it wait for the slow path to resolve
    /// it.
    pub fn neighbour_down(&mut self, interface: InterfaceId, address: IpAddr) {
        let Some(known) = self.neighbours.remove(interface, address) else { return };
        // The host route is removed first: packets are gleaned then, not punted as unresolved.
        if !known.host_routes.is_empty() {
            self.change(|rib| {
                let vrfs = known.host_routes.iter();
                vrfs.for_each(|vrf| rib.remove_host_route(*vrf, interface, address));
            });
        }
        self.hops.resolve(interface, address, None);
    }

    /// Adds a static neighbour, which the slow path learns by a command.
    ///
    /// # Errors
    /// Those of [`Self::neighbour_up`].
    pub fn add_static_neighbour(
        &mut self,
        interface: InterfaceId,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), Error> {
        self.hops.command(Command::AddStaticNeighbour { interface, address, mac });
        self.neighbour_up(interface, address, mac)
    }

    /// Removes a neighbour, here and in the slow path.
    pub fn remove_neighbour(&mut self, interface: InterfaceId, address: IpAddr) {
        self.hops.command(Command::RemoveNeighbour { interface, address });
        self.neighbour_down(interface, address);
    }

    /// Returns the number of resolved neighbours of each interface that has some.
    pub fn neighbour_counts(&self) -> &BTreeMap<InterfaceId, usize> {
        &self.neighbours.counts
    }

    /// Returns the resolved neighbours in the order of their addresses.
    pub fn neighbours(&self) -> impl Iterator<Item = (InterfaceId, IpAddr, MacAddr)> {
        let all = self.neighbours.all.iter();
        all.map(|(&(address, interface), known)| (interface, address, known.mac))
    }

    /// Adds or removes a VRF's host routes of the neighbours within a prefix whose route there has changed. If there
    /// are many, the review is deferred.
    pub(super) fn review_neighbours(&mut self, vrf: VrfId, prefix: &IpNet) {
        let first = (prefix.network(), InterfaceId::FIRST);
        let within = self.neighbours.all.range(first..);
        let within = within.take_while(|((address, _), _)| prefix.contains(address));
        let (mut affected, mut looked_at) = (Vec::new(), 0);
        for (&(address, interface), known) in within {
            if looked_at == LOOKED_AT || affected.len() > AT_ONCE {
                return self.neighbours.review.start();
            }
            looked_at += 1;
            if self.neighbours.gleaning.has(interface, vrf) || known.host_routes.contains(&vrf) {
                affected.push((address, interface));
            }
        }
        if affected.len() > AT_ONCE {
            return self.neighbours.review.start();
        }
        for (address, interface) in affected {
            let done = self.review_host_route(vrf, interface, address);
            self.refusals.add(u64::from(done.is_err()));
        }
    }

    /// Reviews the next neighbours of the walk over all.
    pub(super) fn review_some(&mut self, most: usize) {
        if !self.neighbours.review.running {
            return;
        }
        let from = self.neighbours.review.last.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<_> = self
            .neighbours
            .all
            .range((from, Bound::Unbounded))
            .take(most)
            .map(|(&k, _)| k)
            .collect();
        self.neighbours.review.last = some.last().copied();
        if some.len() < most {
            self.neighbours.review =
                Review { running: self.neighbours.review.again, again: false, last: None };
        }
        self.review_each(&some);
    }

    fn review_each(&mut self, neighbours: &[(IpAddr, InterfaceId)]) {
        for &(address, interface) in neighbours {
            if self.review_neighbour(interface, address).is_err() {
                self.refusals.add(1);
            }
        }
    }

    /// Adds the required host routes of a neighbour and removes the others.
    fn review_neighbour(&mut self, interface: InterfaceId, address: IpAddr) -> Result<(), Error> {
        let mut vrfs: Vec<_> = self.neighbours.gleaning.of(interface).collect();
        let known = self.neighbours.all.get(&(address, interface));
        vrfs.extend(known.into_iter().flat_map(|known| &known.host_routes));
        vrfs.sort_unstable();
        vrfs.dedup();
        vrfs.into_iter().try_for_each(|vrf| self.review_host_route(vrf, interface, address))
    }

    fn review_host_route(
        &mut self,
        vrf: VrfId,
        interface: InterfaceId,
        address: IpAddr,
    ) -> Result<(), Error> {
        let Some(known) = self.neighbours.all.get(&(address, interface)) else { return Ok(()) };
        let (mac, has) = (known.mac, known.host_routes.contains(&vrf));
        let due = self.covering_glean(vrf, address) == Some(interface);
        match (has, due) {
            (false, true) => self.add_host_route(vrf, interface, address, mac)?,
            (true, false) => self.remove_host_route(vrf, interface, address),
            _ => return Ok(()),
        }
        if let Some(known) = self.neighbours.all.get_mut(&(address, interface)) {
            match due {
                true => known.host_routes.push(vrf),
                false => known.host_routes.retain(|other| *other != vrf),
            }
        }
        Ok(())
    }

    fn add_host_route(
        &mut self,
        vrf: VrfId,
        interface: InterfaceId,
        address: IpAddr,
        mac: MacAddr,
    ) -> Result<(), Error> {
        let prefix = IpNet::from(address);
        let hop = self
            .hops
            .gateway(interface, address, || Some(mac), Referrer::Other)
            .map_err(|refused| refuse(Subject::Route(prefix), refused))?;
        self.put_own(vrf, prefix, RouteSource::Neighbour, interface.index() as u64, hop);
        Ok(())
    }

    fn remove_host_route(&mut self, vrf: VrfId, interface: InterfaceId, address: IpAddr) {
        self.take_own(vrf, IpNet::from(address), RouteSource::Neighbour, interface.index() as u64);
    }

    /// Returns the interface to whose hosts a VRF's best live route to the address leads, apart
    /// from neighbours' routes.
    fn covering_glean(&self, vrf: VrfId, address: IpAddr) -> Option<InterfaceId> {
        let routes = self.vrfs.get(vrf.index())?;
        match address {
            IpAddr::V4(v4) => glean_towards(&routes.v4, v4, &self.hops),
            IpAddr::V6(v6) => glean_towards(&routes.v6, v6, &self.hops),
        }
    }
}

fn glean_towards<A: Family>(
    routes: &Routes<A>,
    address: A,
    hops: &NextHops,
) -> Option<InterfaceId> {
    let best = routes.covering(address).find_map(|(_, entry)| {
        entry.find(|candidate| {
            candidate.source != RouteSource::Neighbour
                && hops.is_live(candidate.hop)
                && !entry.withholds(candidate)
        })
    })?;
    hops.glean_port(best.hop)
}
