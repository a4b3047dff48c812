//! The routing information base: every route of every source, and the resulting state of the
//! forwarders.
//!
//! One owner, the control thread, holds the RIB and through it writes the FIBs and the next-hop
//! table.
//!
//! ```text
//!   rib.rs          add, remove, load, batch: changes by sources     Rib
//!   vrf.rs          the routes of each VRF, its creation and removal |
//!   own.rs          interfaces, links, addresses, their routes       |
//!   neighbours.rs   neighbours and their host routes                 |
//!   groups.rs       named groups, resynchronisation, waiting routes  |
//!   refusals.rs     what the FIB or the next-hop table refused       |
//!   audit.rs        comparison of sources, RIB and FIB               |
//!   show.rs         queries of commands                              |
//!                                                                    |
//!   family.rs       per prefix: all candidates, the best in the FIB  Routes<A> -> fib::Table<A>
//!   entry.rs        the candidates of a prefix                       |
//!                                                                    |
//!   next_hops.rs    numbers shared and counted, freed after grace    NextHops  -> NextHopTable
//!     evaluate.rs   liveness and paths of next hops
//!     spread.rs     paths into table entries
//! ```
//!
//! Changes are ordered so that a forwarder never finds a number without a meaning: a next hop is
//! written before a FIB entry refers to it, and freed a grace period after its last reference.
//! A gateway, link, group or neighbour that appears, moves or vanishes costs stores in the next-hop
//! table only, however many routes lead over it.
//!
//! # Commits
//!
//! Each call that changes something ends with a commit; [`Rib::batch`] commits several calls at once:
//!
//! ```text
//!   candidates change -> dependent next hops are computed (evaluate.rs) -> the FIB, one batch
//!                                     |
//!                                     +-> numbers that died or came alive: the sweep of all routes
//!                                         finds their users, a piece per commit and tick
//! ```
//!
//! # VRFs
//!
//! Each VRF has routes and FIBs of its own; next hops, groups and neighbours are shared by all, since
//! a next hop's number means the same to every forwarder in any VRF. So a route of one VRF may lead
//! over an interface of another, or over a gateway that is resolved by another's routes.
//!
//! # Selection of a route
//!
//! Of the live routes to a prefix the one with the smallest administrative distance, then metric, is
//! used. A route is live if its next hop leads somewhere. If no route is live, the prefix is not in
//! the FIB, and a shorter one is used.

mod audit;
mod entry;
mod error;
mod family;
mod groups;
mod neighbours;
mod next_hops;
mod own;
mod places;
mod refusals;
mod show;
#[cfg(test)]
pub(crate) mod tests;
mod types;
mod vrf;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use dataplane::interface::{InterfaceId, VRFS_MOST, VrfId};
use dataplane::next_hop::{
    BLACKHOLE, LOCAL, MARTIAN, MULTICAST, NO_ROUTE, NextHopTable, PROHIBITED, UNREACHABLE,
};
use dataplane::own::OwnAddresses;
use fib::{GracePeriod, Prefix, Table};
use ipnet::IpNet;
use slowpath::Command;
use wire::MacAddr;

use entry::{Candidate, Distances, Entry};
use family::{Family, Refusal, Routes};
use groups::{Groups, Waiting};
use neighbours::Neighbours;
use next_hops::{Covering, NO_GROUP, NO_ROOM, NextHops, Referrer, Refused};
use own::Locals;
use refusals::Refusals;
use vrf::{Vrf, numbered};

pub use audit::Findings;
pub use error::{Error, Subject};
use types::shown_metric;
pub use types::{
    GroupKey, GroupSpec, Inactive, LivePath, LoadReport, LookupInfo, PATHS_MOST, Path, Resilient,
    RibInterface, Route, RouteInfo, RouteKind, RouteSource, Summary, Target, WEIGHT_MOST,
    import_metric,
};

/// Most buckets of a resilient group.
pub const BUCKETS_MOST: u16 = 4096;

/// Sizes of the pieces of deferred work, see [`Rib::is_busy`].
#[derive(Clone, Copy, Debug)]
struct Pieces {
    /// Prefixes and neighbours processed within the change that causes the work.
    at_once: usize,
    /// Prefixes and neighbours processed per tick.
    tick: usize,
}

/// Some tens of microseconds within a change, some milliseconds per tick.
const PIECES: Pieces = Pieces { at_once: 1024, tick: 65_536 };

fn refuse(what: Subject, refused: Refused) -> Error {
    match refused {
        Refused::Numbers => Error::NextHopsFull { what },
        Refused::Places(places) => Error::GroupsFull { what, places },
    }
}

/// Returns, as text, the range of never forwarded addresses that contains a prefix. 240.0.0.0/4 is
/// not among these ranges: it is configured per router, see [`Rib::accept_class_e`].
pub fn reserved_range(prefix: &IpNet) -> Option<&'static str> {
    // All reserved ranges begin like this; a full table is checked route by route.
    let suspect = match prefix {
        IpNet::V4(net) => matches!(net.addr().octets()[0], 0 | 127 | 224..),
        IpNet::V6(net) => matches!(net.addr().octets()[0], 0 | 0xfe..),
    };
    if !suspect {
        return None;
    }
    reserved().find(|(range, _, _)| range.contains(prefix)).map(|(_, _, name)| name)
}

/// Ranges with a meaning of their own: the range, its next hop, its name in messages.
fn reserved() -> impl Iterator<Item = (IpNet, u16, &'static str)> {
    let v4 = |a, len| IpNet::new_assert(Ipv4Addr::new(a, 0, 0, 0).into(), len);
    let v6 = |a, len| IpNet::new_assert(Ipv6Addr::new(a, 0, 0, 0, 0, 0, 0, 0).into(), len);
    [
        (v4(0, 8), MARTIAN, "0.0.0.0/8 (this network)"),
        (v4(127, 8), MARTIAN, "127.0.0.0/8 (loopback)"),
        (v4(224, 4), MULTICAST, "224.0.0.0/4 (multicast)"),
        (IpNet::from(IpAddr::from(Ipv4Addr::BROADCAST)), LOCAL, "255.255.255.255/32 (broadcast)"),
        (IpNet::from(IpAddr::from(Ipv6Addr::UNSPECIFIED)), MARTIAN, "::/128 (unspecified)"),
        (IpNet::from(IpAddr::from(Ipv6Addr::LOCALHOST)), MARTIAN, "::1/128 (loopback)"),
        (v6(0xfe80, 10), LOCAL, "fe80::/10 (link-local)"),
        (v6(0xff00, 8), MULTICAST, "ff00::/8 (multicast)"),
    ]
    .into_iter()
}

/// 240.0.0.0/4: "reserved for future use" (RFC 1112 4), and not to be forwarded unless the router
/// is configured to do so (RFC 1812 4.2.2.11, 5.3.7).
fn class_e() -> IpNet {
    IpNet::new_assert(Ipv4Addr::new(240, 0, 0, 0).into(), 4)
}

const NOT_ACCEPTED: &str =
    "240.0.0.0/4 (reserved; turnpike.forwarding { class_e = true } accepts it)";

/// Returns, as text, the range that contains a prefix and is not forwarded, with or without
/// acceptance of 240.0.0.0/4.
pub fn refused_range(prefix: &IpNet, class_e_accepted: bool) -> Option<&'static str> {
    let refused = !class_e_accepted && class_e().contains(prefix);
    reserved_range(prefix).or(refused.then_some(NOT_ACCEPTED))
}

/// The routing information base.
pub struct Rib {
    interfaces: Vec<RibInterface>,
    /// The VRFs by number.
    vrfs: Vec<Vrf>,
    hops: NextHops,
    neighbours: Neighbours,
    groups: Groups,
    waiting: Waiting,
    distances: Distances,
    /// Number of the latest resynchronisation of each source.
    generations: [u16; RouteSource::ALL.len()],
    /// The VRFs whose routes of the kernel are those of a network namespace of their own, with the number of its latest
    /// resynchronisation.
    apart: BTreeMap<VrfId, u16>,
    /// Nesting depth of calls to [`Self::change`].
    depth: u32,
    pieces: Pieces,
    refusals: Refusals,
    audit: Option<audit::Audit>,
    class_e: bool,
    locals: Locals,
    /// Prefixes whose routes have changed; `None`: nobody follows them.
    changed: Option<Vec<(VrfId, IpNet)>>,
}

/// Treatment of packets by the route of a prefix that the FIB has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// They leave by an interface, at once or when their neighbour is known.
    Forwarded,
    /// They are the host's, or dropped, with an answer or without.
    Other,
}

impl Rib {
    /// Creates a RIB with the routes that follow from the interfaces: reserved ranges, connected
    /// networks, own addresses. `grace` reports when forwarders no longer hold a next hop.
    ///
    /// # Errors
    /// A FIB or the next-hop table has no room for even these.
    pub fn new(
        interfaces: Vec<RibInterface>,
        fib4: Box<dyn Table<Ipv4Addr>>,
        fib6: Box<dyn Table<Ipv6Addr>>,
        next_hops: Arc<NextHopTable>,
        grace: Box<dyn GracePeriod>,
    ) -> Result<Self, Error> {
        let mut rib = Self {
            interfaces: Vec::new(),
            vrfs: vec![Vrf { v4: Routes::new(fib4), v6: Routes::new(fib6) }],
            hops: NextHops::new(next_hops, grace),
            neighbours: Neighbours::default(),
            groups: Groups::default(),
            waiting: Waiting::default(),
            distances: RouteSource::ALL.map(RouteSource::distance),
            generations: [0; RouteSource::ALL.len()],
            apart: BTreeMap::new(),
            depth: 0,
            pieces: PIECES,
            refusals: Refusals::default(),
            audit: None,
            class_e: false,
            locals: Locals::default(),
            changed: None,
        };
        rib.checked(None, |rib| {
            rib.reserve(VrfId::DEFAULT);
            interfaces.into_iter().try_for_each(|interface| rib.add_interface(interface))
        })?;
        Ok(rib)
    }

    /// Enables or disables forwarding of 240.0.0.0/4, like any other unicast range. The RIB holds routes there
    /// that are not used, so it needs nothing from their sources when the range is accepted.
    pub fn accept_class_e(&mut self, on: bool) {
        if on == self.class_e {
            return;
        }
        self.class_e = on;
        self.change(|rib| {
            for vrf in rib.vrfs() {
                rib.reserve_class_e(vrf);
            }
        });
        self.publish_class_e();
    }

    /// Gives all groups of paths so many buckets, by which a lost path moves its own flows only: for groups that other
    /// programs make anew for each change. To be called before there are routes.
    pub fn spread_in_buckets(&mut self, buckets: Option<u16>) {
        self.hops.spread_in_buckets(buckets);
    }

    /// Enables or disables the resolution of gateways by default routes: without, a gateway that is on no
    /// interface's network needs a longer route.
    pub fn resolve_via_default(&mut self, on: bool) {
        self.change(|rib| rib.hops.resolve_via_default(on));
    }

    /// Returns true if only a default route of a VRF leads to a gateway that is on no interface's
    /// network.
    pub fn is_by_default(&self, vrf: VrfId, gateway: IpAddr) -> bool {
        self.hops.is_by_default(vrf, gateway)
    }

    /// Returns true if 240.0.0.0/4 is forwarded.
    pub fn accepts_class_e(&self) -> bool {
        self.class_e
    }

    // ---- changes by sources -----------------------------------------------------------------

    /// Adds a route; one of the same VRF, prefix, source and metric is replaced.
    ///
    /// # Errors
    /// The reason for the refusal, which is counted in [`Summary::refused`]. After errors for which
    /// [`Error::is_waiting`] is true, the RIB holds the route and uses it when it can. Refusals of
    /// the FIB within a [`Self::batch`] are returned by [`Self::drain_refusals`].
    pub fn add(&mut self, route: Route) -> Result<(), Error> {
        self.checked(Some((route.vrf, route.prefix)), |rib| rib.put_route(&route))
    }

    /// Removes a source's routes to a prefix, with any metric, and returns their number. The next
    /// best route takes over.
    pub fn remove(&mut self, vrf: VrfId, prefix: IpNet, source: RouteSource) -> usize {
        if !source.is_settable() {
            return 0;
        }
        self.change(|rib| rib.take(vrf, prefix, |candidate| candidate.source == source))
    }

    /// Removes a source's route with this metric; returns false if there is none.
    pub fn remove_one(
        &mut self,
        vrf: VrfId,
        prefix: IpNet,
        source: RouteSource,
        metric: u64,
    ) -> bool {
        let fits = |candidate: &Candidate| candidate.source == source && candidate.metric == metric;
        source.is_settable() && self.change(|rib| rib.take(vrf, prefix, fits) > 0)
    }

    /// Adds many routes, faster than one by one; forwarders see them together. A refused route does
    /// not affect the others.
    pub fn load(&mut self, routes: impl IntoIterator<Item = Route>) -> LoadReport {
        let mut report = LoadReport::default();
        let (kept, refused) = (self.refusals.kept(), self.refusals.count());
        self.change(|rib| {
            for route in routes {
                match rib.put_route(&route) {
                    Ok(()) => report.accepted += 1,
                    Err(error) => report.refuse(error),
                }
            }
        });
        if self.depth == 0 {
            let by_fib = (self.refusals.count() - refused) as usize - report.refused;
            report.accepted -= by_fib;
            report.refused += by_fib;
            let room = LoadReport::ERRORS_KEPT - report.errors.len();
            report.errors.extend(self.refusals.take_since(kept).take(room));
        }
        report
    }

    /// Makes several changes as one; forwarders see the changes of each family's routes together.
    pub fn batch<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.change(change)
    }

    /// Sets the administrative distance of a source, which ranks its routes; that of sources that
    /// are not settable is fixed.
    pub fn set_distance(&mut self, source: RouteSource, distance: u8) {
        if !source.is_settable() || self.distances[source.index()] == distance {
            return;
        }
        self.distances[source.index()] = distance;
        self.change(|rib| {
            for vrf in &mut rib.vrfs {
                vrf.v4.rank(&rib.distances);
                vrf.v6.rank(&rib.distances);
            }
            rib.hops.mark_all_vias();
            rib.neighbours.start_review();
        });
    }

    /// Returns the routes refused by the FIB since the last call whose refusal no call has returned
    /// as its error; the RIB tries them again.
    pub fn drain_refusals(&mut self) -> Vec<Error> {
        self.refusals.take_since(0).collect()
    }

    /// Starts or ends the recording of changed prefixes.
    pub fn follow_changes(&mut self, on: bool) {
        match on {
            true => _ = self.changed.get_or_insert_default(),
            false => self.changed = None,
        }
    }

    /// Returns true if a recorded change has not been drained.
    pub fn has_changes(&self) -> bool {
        self.changed.as_ref().is_some_and(|changed| !changed.is_empty())
    }

    /// Returns the prefixes whose routes have been added or removed since the last call, in no order.
    pub fn drain_changes(&mut self) -> Vec<(VrfId, IpNet)> {
        self.changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns the changes for the slow path since the last call, in order.
    pub fn drain_commands(&mut self) -> Vec<Command> {
        self.hops.drain_commands()
    }

    // ---- routes -----------------------------------------------------------------------------

    fn put_route(&mut self, route: &Route) -> Result<(), Error> {
        let found = self.check(route).and_then(|()| self.next_hop(route.prefix, &route.kind));
        let (hop, outcome) = match found {
            Ok(hop) => (hop, Ok(())),
            Err(error) => {
                self.refusals.add(1);
                match self.wait(route, &error) {
                    Some(hop) => (hop, Err(error)),
                    None => return Err(error),
                }
            }
        };
        let &Route { vrf, prefix, source, metric, .. } = route;
        let generation = self.generation(source, vrf);
        self.put(vrf, prefix, Candidate { source, metric, hop, generation });
        outcome?;
        if self.is_withheld(vrf, &prefix) {
            self.refusals.add(1);
            return Err(Error::NotAccepted { prefix });
        }
        Ok(())
    }

    /// Returns true if routes of a VRF to this prefix are held, but not used.
    fn is_withheld(&self, vrf: VrfId, prefix: &IpNet) -> bool {
        let routes = self.vrfs.get(vrf.index());
        let prefix = Ipv4Addr::prefix(prefix);
        routes.zip(prefix).is_some_and(|(routes, prefix)| routes.v4.is_withheld(prefix))
    }

    fn check(&self, route: &Route) -> Result<(), Error> {
        let prefix = route.prefix;
        if route.vrf.index() >= self.vrfs.len() {
            return Err(Error::UnknownVrf { prefix, vrf: route.vrf });
        }
        if !route.source.is_settable() {
            return Err(Error::NotSettable { prefix, from: route.source });
        }
        if prefix.trunc() != prefix {
            return Err(Error::HostBits { prefix });
        }
        // An operator gets an error for a route to 240/4; those of the other sources are held.
        let is_held = !matches!(route.source, RouteSource::Static | RouteSource::Command);
        if let Some(range) = refused_range(&prefix, self.class_e || is_held) {
            return Err(Error::Reserved { prefix, range });
        }
        match &route.kind {
            RouteKind::Unicast(paths) => self.check_paths(Subject::Route(prefix), paths),
            _ => Ok(()),
        }
    }

    fn check_paths(&self, what: Subject, paths: &[Path]) -> Result<(), Error> {
        if paths.is_empty() || paths.len() > PATHS_MOST {
            return Err(Error::Paths { what, count: paths.len() });
        }
        for &Path { interface, via, weight, .. } in paths {
            if !(1..=WEIGHT_MOST).contains(&weight) {
                return Err(Error::Weight { what, via, weight });
            }
            match interface {
                Some(interface) if !self.hops.has_interface(interface) => {
                    return Err(Error::UnknownPort { what, via, interface });
                }
                None if via.is_none() => return Err(Error::EmptyPath { what }),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the number of a route's next hop, with a reference for the route.
    fn next_hop(&mut self, prefix: IpNet, kind: &RouteKind) -> Result<u16, Error> {
        let what = Subject::Route(prefix);
        match kind {
            RouteKind::Blackhole => Ok(BLACKHOLE),
            RouteKind::Prohibited => Ok(PROHIBITED),
            RouteKind::Unreachable => Ok(UNREACHABLE),
            RouteKind::Host => Ok(LOCAL),
            &RouteKind::NextHopGroup(key) => {
                let hop = self.groups.hop(&key).ok_or(Error::NoGroup { prefix, key })?;
                let hop = hop.ok_or(Error::NextHopsFull { what })?;
                self.hops.retain(hop, Referrer::Route);
                Ok(hop)
            }
            RouteKind::Unicast(paths) => {
                let Self { neighbours, hops, .. } = self;
                let mac = |interface, via| neighbours.mac(interface, via);
                hops.over(paths, mac).map_err(|refused| refuse(what, refused))
            }
        }
    }

    /// Adds a candidate to the RIB, which takes over the caller's reference to the next hop. The
    /// reference of a replaced candidate is released: the FIB's own reference keeps the next hop
    /// until the FIB has the new one.
    fn put(&mut self, vrf: VrfId, prefix: IpNet, new: Candidate) {
        let Some(routes) = self.vrfs.get_mut(vrf.index()) else { return };
        let glean = self.hops.glean_port(new.hop);
        glean.into_iter().for_each(|interface| self.neighbours.glean(interface, vrf));
        let old = match prefix {
            IpNet::V4(_) => put(&mut routes.v4, &prefix, new, &self.distances),
            IpNet::V6(_) => put(&mut routes.v6, &prefix, new, &self.distances),
        };
        if let Some(old) = old {
            if is_waiting(&old) && !is_waiting(&new) {
                self.waiting.forget(&(vrf, prefix, old.source, old.metric));
            }
            self.hops.release(old.hop, Referrer::of(old.source));
        }
    }

    /// Removes candidates from the RIB and returns their number, without those whose group was
    /// removed before.
    fn take(&mut self, vrf: VrfId, prefix: IpNet, fits: impl Fn(&Candidate) -> bool) -> usize {
        let Self { vrfs, waiting, hops, .. } = self;
        let Some(routes) = vrfs.get_mut(vrf.index()) else { return 0 };
        let mut count = 0;
        while let Some(gone) = match prefix {
            IpNet::V4(_) => take(&mut routes.v4, &prefix, &fits),
            IpNet::V6(_) => take(&mut routes.v6, &prefix, &fits),
        } {
            count += let_go(waiting, hops, (vrf, prefix), gone);
        }
        count
    }

    /// Removes all matching candidates of a VRF and returns their number.
    fn take_in(&mut self, vrf: VrfId, fits: impl Fn(&Candidate) -> bool) -> usize {
        let Self { vrfs, waiting, hops, .. } = self;
        let Some(routes) = vrfs.get_mut(vrf.index()) else { return 0 };
        let mut count = 0;
        routes.v4.take_all(&fits, |prefix, gone| {
            count += let_go(waiting, hops, (vrf, Ipv4Addr::net(prefix)), gone);
        });
        routes.v6.take_all(&fits, |prefix, gone| {
            count += let_go(waiting, hops, (vrf, Ipv6Addr::net(prefix)), gone);
        });
        count
    }

    // ---- commits ----------------------------------------------------------------------------

    /// Makes a change and, if it is not part of a larger one, commits it to the forwarders.
    fn change<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        self.depth += 1;
        let result = change(self);
        self.depth -= 1;
        if self.depth == 0 {
            self.commit();
        }
        result
    }

    /// Like [`Self::change`], but fails if the FIB refuses the prefix, or any prefix for `None`.
    fn checked(
        &mut self,
        prefix: Option<(VrfId, IpNet)>,
        change: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let kept = self.refusals.kept();
        self.change(change)?;
        self.refusals.take_first(kept, prefix).map_or(Ok(()), Err)
    }

    /// Makes the changes visible to forwarders.
    fn commit(&mut self) {
        loop {
            self.settle();
            self.publish();
            if self.hops.take_flipped() {
                self.vrfs.iter_mut().for_each(Vrf::start_sweep);
                self.neighbours.start_review();
                self.put_off(self.pieces.at_once);
            }
            let done = self.vrfs.iter().all(Vrf::is_synced);
            if done && !self.hops.is_unsettled() {
                break;
            }
        }
    }

    /// Computes the next hops that depend on the changes.
    fn settle(&mut self) {
        let Self { vrfs, hops, neighbours, .. } = self;
        if hops.has_vias() {
            for (id, Vrf { v4, v6 }) in numbered(vrfs) {
                v4.touched().iter().for_each(|&prefix| hops.mark_vias(id, &Ipv4Addr::net(prefix)));
                v6.touched().iter().for_each(|&prefix| hops.mark_vias(id, &Ipv6Addr::net(prefix)));
            }
        }
        hops.settle(&View { vrfs, neighbours });
    }

    /// Updates the FIBs, and then the host routes of neighbours.
    fn publish(&mut self) {
        self.vrfs().for_each(|vrf| self.publish_vrf(vrf));
    }

    fn publish_vrf(&mut self, id: VrfId) {
        let Self { vrfs, hops, .. } = self;
        let vrf = &mut vrfs[id.index()];
        if vrf.is_synced() {
            return;
        }
        let (refused4, touched4) = vrf.v4.sync(hops);
        let (refused6, touched6) = vrf.v6.sync(hops);
        self.note(id, refused4);
        self.note(id, refused6);
        if let Some(changed) = &mut self.changed {
            changed.extend(touched4.iter().map(|&prefix| (id, Ipv4Addr::net(prefix))));
            changed.extend(touched6.iter().map(|&prefix| (id, Ipv6Addr::net(prefix))));
        }
        if self.neighbours.len() > 0 {
            let nets4 = touched4.into_iter().map(Ipv4Addr::net);
            let nets6 = touched6.into_iter().map(Ipv6Addr::net);
            nets4.chain(nets6).for_each(|net| self.review_neighbours(id, &net));
        }
    }

    fn note<A: Family>(&mut self, vrf: VrfId, refusals: Vec<Refusal<A>>) {
        let error = |(prefix, error)| (vrf, Error::Fib { prefix: A::net(prefix), error });
        self.refusals.extend(refusals.into_iter().map(error));
    }

    /// Does a piece of the deferred work, of as many VRFs as it is enough for.
    fn put_off(&mut self, most: usize) {
        let mut left = most;
        for id in self.vrfs() {
            let vrf = &mut self.vrfs[id.index()];
            if !vrf.is_sweeping() {
                continue;
            }
            let refused4 = vrf.v4.sweep(&mut left, &mut self.hops);
            let refused6 = vrf.v6.sweep(&mut left, &mut self.hops);
            self.note(id, refused4);
            self.note(id, refused6);
            if left == 0 {
                break;
            }
        }
        self.review_some(most.div_ceil(8));
    }

    /// Does a piece of the deferred work, frees next hops that forwarders no longer hold, and
    /// retries changes that had no room. Call it a few times per second, and again immediately
    /// while [`Self::is_busy`]; it takes some milliseconds at most. Returns the number of pieces
    /// that still wait for a grace period.
    pub fn tick(&mut self) -> usize {
        let most = self.pieces.tick;
        for vrf in &mut self.vrfs {
            vrf.v4.retry(&mut self.hops, most.div_ceil(16));
            vrf.v6.retry(&mut self.hops, most.div_ceil(16));
        }
        let waiting = self.hops.recycle();
        self.change(|rib| {
            rib.put_off(most);
            rib.retry_waiting(most.div_ceil(16));
        });
        self.audit_some();
        waiting
    }

    /// Returns true if [`Self::tick`] has urgent work left: routes whose next hop has died or come
    /// alive, or routes for which there is room now.
    pub fn is_busy(&self) -> bool {
        self.vrfs.iter().any(Vrf::is_sweeping)
            || self.neighbours.are_under_review()
            || self.is_retrying()
            || self.is_auditing()
    }
}

/// The routes and neighbours, as input of the computation of next hops.
struct View<'a> {
    vrfs: &'a [Vrf],
    neighbours: &'a Neighbours,
}

impl Covering for View<'_> {
    fn visit(
        &self,
        vrf: VrfId,
        address: IpAddr,
        visit: &mut dyn FnMut(u8, u16) -> ControlFlow<()>,
    ) {
        let Some(Vrf { v4: routes4, v6: routes6 }) = self.vrfs.get(vrf.index()) else { return };
        match address {
            IpAddr::V4(v4) => visit_covering(routes4, v4, visit),
            IpAddr::V6(v6) => visit_covering(routes6, v6, visit),
        }
    }

    fn mac(&self, interface: InterfaceId, address: IpAddr) -> Option<MacAddr> {
        self.neighbours.mac(interface, address)
    }
}

fn visit_covering<A: Family>(
    routes: &Routes<A>,
    address: A,
    visit: &mut dyn FnMut(u8, u16) -> ControlFlow<()>,
) {
    for (prefix, entry) in routes.covering(address) {
        let is_usable = |c: &Candidate| c.source != RouteSource::Neighbour && !entry.withholds(c);
        for candidate in entry.candidates().filter(is_usable) {
            if visit(prefix.len(), candidate.hop).is_break() {
                return;
            }
        }
    }
}

fn is_waiting(candidate: &Candidate) -> bool {
    matches!(candidate.hop, NO_ROOM | NO_GROUP)
}

/// Releases the references of a removed candidate. Returns 0 if its group was removed before, else
/// 1.
fn let_go(
    waiting: &mut Waiting,
    hops: &mut NextHops,
    (vrf, prefix): (VrfId, IpNet),
    gone: Candidate,
) -> usize {
    if is_waiting(&gone) {
        waiting.forget(&(vrf, prefix, gone.source, gone.metric));
    }
    let counts = usize::from(!hops.is_gone(gone.hop));
    hops.release(gone.hop, Referrer::of(gone.source));
    counts
}

fn put<A: Family>(
    routes: &mut Routes<A>,
    net: &IpNet,
    new: Candidate,
    distances: &Distances,
) -> Option<Candidate> {
    routes.put(A::prefix(net)?, new, distances)
}

fn take<A: Family>(
    routes: &mut Routes<A>,
    net: &IpNet,
    fits: impl Fn(&Candidate) -> bool,
) -> Option<Candidate> {
    routes.take(A::prefix(net)?, fits)
}
