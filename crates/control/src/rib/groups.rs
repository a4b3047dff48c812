//! Named groups, resynchronisation, and routes that wait for room.
//!
//! # Groups
//!
//! A group is one next hop with a name. Its routes refer to its number, so changing its paths takes
//! the same time for any number of routes. When it is removed, its number means "no route"
//! immediately, and the sweep removes its routes; a group set under the same name later is a
//! different one, as in the kernel.
//!
//! # Resynchronisation
//!
//! A source that may have missed a change reports all its routes and groups once more, between
//! [`Rib::begin_resync`] and [`Rib::end_resync`]. What is reported again is marked with the new
//! generation, without a difference for forwarders; everything else is withdrawn at the end.
//!
//! # Waiting routes
//!
//! A route without a free next-hop number stays in the RIB with a dead next hop, and is retried
//! whenever numbers become free. A route whose group does not exist waits for the group in the same
//! way.

use super::next_hops::{NO_GROUP, NO_ROOM, Referrer};
use super::*;

/// A group.
#[derive(Debug)]
struct Group {
    spec: GroupSpec,
    /// Its number; `None` while it waits for one.
    hop: Option<u16>,
    generation: u16,
}

/// The groups by their names.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: BTreeMap<GroupKey, Group>,
    /// Those that wait for room for their present specification.
    waiting: BTreeSet<GroupKey>,
}

impl Groups {
    /// Returns a group's specification.
    pub(super) fn spec(&self, key: &GroupKey) -> Option<&GroupSpec> {
        self.all.get(key).map(|group| &group.spec)
    }

    /// Returns a group's number. The outer `None`: there is no such group; the inner one: it waits for a number.
    pub(super) fn hop(&self, key: &GroupKey) -> Option<Option<u16>> {
        self.all.get(key).map(|group| group.hop)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// Identity of a route.
pub(super) type RouteId = (VrfId, IpNet, RouteSource, u64);

/// Routes without a next hop.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    kinds: BTreeMap<RouteId, RouteKind>,
    /// The routes whose group does not exist, by group.
    groups: BTreeSet<(GroupKey, RouteId)>,
    /// Position of the attempts to find room; `None`: there is nothing new to try.
    next: Option<Option<RouteId>>,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn kind(&self, id: &RouteId) -> Option<&RouteKind> {
        self.kinds.get(id)
    }

    fn put(&mut self, id: RouteId, kind: RouteKind) {
        self.forget(&id);
        if let RouteKind::NextHopGroup(key) = kind {
            self.groups.insert((key, id));
        }
        self.kinds.insert(id, kind);
    }

    pub(super) fn forget(&mut self, id: &RouteId) {
        if let Some(RouteKind::NextHopGroup(key)) = self.kinds.remove(id) {
            self.groups.remove(&(key, *id));
        }
    }

    fn of_group(&self, key: GroupKey) -> Vec<RouteId> {
        let first = (key, (VrfId::DEFAULT, IpNet::default(), RouteSource::Reserved, 0));
        let same = self.groups.range(first..).take_while(|(other, _)| *other == key);
        same.map(|&(_, id)| id).collect()
    }
}

impl Rib {
    /// Sets a group, or replaces the paths of an existing one for all its routes at once.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub fn set_group(&mut self, key: GroupKey, spec: GroupSpec) -> Result<(), Error> {
        self.change(|rib| {
            let done = rib.put_group(key, spec);
            if done.is_err() {
                rib.refusals.add(1);
            }
            done
        })
    }

    pub(super) fn put_group(&mut self, key: GroupKey, spec: GroupSpec) -> Result<(), Error> {
        let what = Subject::Group(key);
        self.check_group(what, &spec)?;
        let generation = self.generation(key.source, key.space);
        match self.groups.all.get_mut(&key) {
            Some(known) if known.spec == spec && known.hop.is_some() => {
                known.generation = generation;
                return Ok(());
            }
            Some(known) => (known.spec, known.generation) = (spec, generation),
            None => {
                self.groups.all.insert(key, Group { spec, hop: None, generation });
            }
        }
        self.realise_group(key).map_err(|refused| refuse(what, refused))
    }

    pub(super) fn check_group(&self, what: Subject, spec: &GroupSpec) -> Result<(), Error> {
        if spec.resilient.is_some_and(|resilient| resilient.buckets == 0) {
            return Err(Error::Buckets { what });
        }
        if spec.blackhole { Ok(()) } else { self.check_paths(what, &spec.paths) }
    }

    /// Updates the paths of a group's number, and assigns it to the routes that wait for it.
    fn realise_group(&mut self, key: GroupKey) -> Result<(), Refused> {
        let Self { groups, hops, neighbours, .. } = self;
        let Some(group) = groups.all.get_mut(&key) else { return Ok(()) };
        let mac = |interface, via| neighbours.mac(interface, via);
        groups.waiting.insert(key);
        match group.hop {
            Some(hop) => hops.change_object(hop, &group.spec, mac)?,
            None => group.hop = Some(hops.add_object(key, &group.spec, mac)?),
        }
        self.groups.waiting.remove(&key);
        for id in self.waiting.of_group(key) {
            self.try_again(id);
        }
        Ok(())
    }

    /// Removes a group and withdraws its routes; returns false if there is none. When it returns,
    /// no forwarder uses the group any more; the routes are removed piece by piece, see
    /// [`Self::is_busy`].
    pub fn remove_group(&mut self, key: GroupKey) -> bool {
        self.change(|rib| {
            let Some(group) = rib.groups.all.remove(&key) else { return false };
            rib.groups.waiting.remove(&key);
            if let Some(hop) = group.hop {
                rib.hops.remove_object(hop);
            }
            for (vrf, prefix, source, metric) in rib.waiting.of_group(key) {
                rib.take(vrf, prefix, |c| c.source == source && c.metric == metric);
            }
            true
        })
    }

    /// Returns the number of a group, for steps that send packets to it; `None` while it waits for
    /// one.
    pub fn group_hop(&self, key: GroupKey) -> Option<u16> {
        self.groups.hop(&key)?
    }

    /// Returns the groups with their names and specifications.
    pub fn groups(&self) -> impl Iterator<Item = (GroupKey, &GroupSpec)> {
        self.groups.all.iter().map(|(&key, group)| (key, &group.spec))
    }

    /// Begins a resynchronisation of all routes and groups of a source, see [`Self::end_resync`]; of those of the kernel
    /// without the VRFs that are apart. If called again before its end, it starts over: earlier reports do not count
    /// any more.
    pub fn begin_resync(&mut self, source: RouteSource) {
        let generation = &mut self.generations[source.index()];
        *generation = generation.wrapping_add(1);
    }

    /// Withdraws the routes and groups of the source that were not added again since
    /// [`Self::begin_resync`], and returns their number.
    pub fn end_resync(&mut self, source: RouteSource) -> usize {
        let mut vrfs: Vec<_> = self.vrfs().collect();
        vrfs.retain(|vrf| !self.is_apart(source, *vrf));
        self.withdraw_stale(source, &vrfs)
    }

    /// The same for the kernel's routes of one VRF, which are those of a network namespace of its own from now on.
    pub fn begin_resync_apart(&mut self, vrf: VrfId) {
        let generation = self.apart.entry(vrf).or_insert(0);
        *generation = generation.wrapping_add(1);
    }

    /// Ends a resynchronisation that [`Self::begin_resync_apart`] has begun.
    pub fn end_resync_apart(&mut self, vrf: VrfId) -> usize {
        self.withdraw_stale(RouteSource::Kernel, &[vrf])
    }

    /// Withdraws everything that a VRF has from its network namespace, which is not followed any more.
    pub fn leave_apart(&mut self, vrf: VrfId) {
        if self.apart.contains_key(&vrf) {
            self.begin_resync_apart(vrf);
            self.end_resync_apart(vrf);
            self.remove_locals(vrf);
            self.apart.remove(&vrf);
        }
    }

    /// Returns true if a source's routes of a VRF are resynchronised by themselves.
    pub(super) fn is_apart(&self, source: RouteSource, vrf: VrfId) -> bool {
        source == RouteSource::Kernel && self.apart.contains_key(&vrf)
    }

    /// Returns the number of the latest resynchronisation of a source's routes of a VRF.
    pub(super) fn generation(&self, source: RouteSource, vrf: VrfId) -> u16 {
        match self.apart.get(&vrf) {
            Some(generation) if source == RouteSource::Kernel => *generation,
            _ => self.generations[source.index()],
        }
    }

    fn withdraw_stale(&mut self, source: RouteSource, vrfs: &[VrfId]) -> usize {
        self.change(|rib| {
            let mut count = 0;
            for &vrf in vrfs {
                let generation = rib.generation(source, vrf);
                let stale = |c: &Candidate| c.source == source && c.generation != generation;
                count += rib.take_in(vrf, stale);
            }
            let is_stale = |key: &GroupKey, group: &Group| {
                key.source == source
                    && vrfs.contains(&key.space)
                    && group.generation != rib.generation(source, key.space)
            };
            let groups = rib.groups.all.iter().filter(|(key, group)| is_stale(key, group));
            let groups: Vec<GroupKey> = groups.map(|(&key, _)| key).collect();
            count += groups.len();
            for key in groups {
                rib.remove_group(key);
            }
            count
        })
    }

    /// Returns the placeholder next hop of a waiting route. The error determines what it
    /// waits for.
    pub(super) fn wait(&mut self, route: &Route, error: &Error) -> Option<u16> {
        let hop = match error {
            Error::NextHopsFull { .. } | Error::GroupsFull { .. } => NO_ROOM,
            Error::NoGroup { .. } => NO_GROUP,
            _ => return None,
        };
        self.waiting.put((route.vrf, route.prefix, route.source, route.metric), route.kind.clone());
        Some(hop)
    }

    /// Assigns the next hop of a waiting route, if there is room now.
    fn try_again(&mut self, id: RouteId) {
        let Some(kind) = self.waiting.kind(&id).cloned() else { return };
        let (vrf, prefix, source, metric) = id;
        let Ok(hop) = self.next_hop(prefix, &kind) else { return };
        self.waiting.forget(&id);
        let waits = |c: &Candidate| {
            c.source == source && c.metric == metric && matches!(c.hop, NO_ROOM | NO_GROUP)
        };
        match self.candidate(vrf, prefix, waits) {
            Some(candidate) => self.put(vrf, prefix, Candidate { hop, ..candidate }),
            None => self.hops.release(hop, Referrer::of(source)),
        }
    }

    /// Returns the first matching candidate.
    pub(super) fn candidate(
        &self,
        vrf: VrfId,
        prefix: IpNet,
        fits: impl Fn(&Candidate) -> bool,
    ) -> Option<Candidate> {
        let routes = self.vrfs.get(vrf.index())?;
        match prefix {
            IpNet::V4(_) => find(&routes.v4, &prefix, fits),
            IpNet::V6(_) => find(&routes.v6, &prefix, fits),
        }
    }

    /// Retries some of the waiting routes and groups after room was freed.
    pub(super) fn retry_waiting(&mut self, most: usize) {
        if self.hops.take_freed() && (self.waiting.len() > 0 || !self.groups.waiting.is_empty()) {
            self.waiting.next = Some(None);
            for key in std::mem::take(&mut self.groups.waiting) {
                // A refusal adds it to the waiting groups again.
                let _ = self.realise_group(key);
            }
        }
        let Some(from) = self.waiting.next else { return };
        let from = from.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<RouteId> = self
            .waiting
            .kinds
            .range((from, Bound::Unbounded))
            .take(most)
            .map(|(&id, _)| id)
            .collect();
        self.waiting.next = if some.len() < most { None } else { Some(some.last().copied()) };
        for id in some {
            self.try_again(id);
        }
    }

    /// Returns true if waiting routes are being retried.
    pub(super) fn is_retrying(&self) -> bool {
        self.waiting.next.is_some()
    }
}

fn find<A: Family>(
    routes: &Routes<A>,
    net: &IpNet,
    fits: impl Fn(&Candidate) -> bool,
) -> Option<Candidate> {
    routes.entry(A::prefix(net)?)?.find(fits)
}
