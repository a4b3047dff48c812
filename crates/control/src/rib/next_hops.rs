//! The next hops in use: their numbers, their references, and the reuse of numbers.
//!
//! A number is shared by all routes that lead to the same place. Meanings of a number:
//!
//! ```text
//!   leaf       Glean{interface}           the hosts on an interface's networks
//!              Gateway{interface, addr}   a neighbour that packets are sent to
//!   composite  Via{vrf, addr}        a gateway without interface: what the VRF's best route to it leads to
//!              Group{members}        equal-cost paths; one for each set of paths
//!              Object{key, members}  a group with a name, whose members change
//! ```
//!
//! A composite's members are leaves and `Via`s. Resolved completely they are *leaves with weights*,
//! from which the composite's entry in the next-hop table is made (`spread.rs`). When an interface
//! goes down or a route to a gateway changes, the composites above are computed again
//! (`evaluate.rs`); routes keep their numbers. A number whose paths are all dead means "no route"
//! until the sweep of the routes has found its users.
//!
//! References of routes, composites and FIB entries to a number are counted. After the last one has
//! been released, the number keeps its meaning until a grace period has passed, because a forwarder
//! may still hold it from a lookup; then it is free. The places of a group's members are treated
//! the same way.

mod evaluate;
mod spread;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::{BLACKHOLE, FIRST_DYNAMIC, GROUP_MEMBERS, NEXT_HOPS, NextHopTable};
use fib::GracePeriod;
use slowpath::Command;
use wire::MacAddr;

use super::places::Places;
use super::{BUCKETS_MOST, GroupKey, GroupSpec, Inactive, LivePath, Path, RouteSource};
use spread::{merge, reduce};

pub(super) use evaluate::Covering;

/// Next hop of routes that wait for room among the next hops.
pub(super) const NO_ROOM: u16 = FIRST_DYNAMIC - 2;
/// Next hop of routes that wait for their group.
pub(super) const NO_GROUP: u16 = FIRST_DYNAMIC - 1;

/// Most places of one group; weights that need more are rounded.
pub(super) const GROUP_PLACES_MOST: u32 = BUCKETS_MOST as u32;

/// Reason why there is no number for a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// All numbers are in use.
    Numbers,
    /// No range of this many places is free.
    Places(u32),
}

/// State of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Not computed yet.
    Unknown,
    Live,
    Dead(Inactive),
    /// A named group that was removed: its routes are to be removed.
    Gone,
}

/// A number with its weight.
type Weighted = (u16, u32);

/// Meaning of a number.
#[derive(Debug)]
enum Meaning {
    Glean(InterfaceId),
    Gateway { interface: InterfaceId, address: IpAddr, mac: Option<MacAddr> },
    Via { vrf: VrfId, address: IpAddr, tried: Vec<u16>, length: u8 },
    Group { members: Box<[Weighted]> },
    Object { key: GroupKey, members: Vec<Weighted>, buckets: Option<Vec<u16>> },
}

impl Meaning {
    fn is_leaf(&self) -> bool {
        matches!(self, Self::Glean(_) | Self::Gateway { .. })
    }

    fn members(&self) -> &[Weighted] {
        match self {
            Self::Group { members } => members,
            Self::Object { members, .. } => members,
            _ => &[],
        }
    }
}

#[derive(Debug)]
struct Hop {
    meaning: Meaning,
    /// References to the number, of any kind.
    references: u32,
    /// References by routes, directly or by a composite. The slow path learns the gateways of
    /// routes, not every neighbour with a host route.
    routes: u32,
    /// Composites that depend on this, once for each dependency.
    parents: Vec<u16>,
    /// A composite's live leaves.
    leaves: Vec<Weighted>,
    /// Places among the members of all groups: the first, and the count.
    places: (u32, u32),
    /// True if one of a group's members leads in a circle.
    circular: bool,
}

#[derive(Debug)]
enum Retired {
    Number(u16),
    Places { first: u32, count: u32 },
}

/// Kind of reference to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referrer {
    /// A route, or a composite.
    Route,
    /// A FIB entry, a neighbour's host route, an interface, a name.
    Other,
}

impl Referrer {
    /// Returns the kind of reference of a source's candidate.
    pub(super) fn of(source: RouteSource) -> Self {
        if source.is_settable() { Self::Route } else { Self::Other }
    }
}

/// The owner of the numbers; the only writer of the next-hop table.
pub(super) struct NextHops {
    table: Arc<NextHopTable>,
    grace: Box<dyn GracePeriod>,
    hops: Vec<Option<Box<Hop>>>,
    status: Vec<Status>,
    free: Vec<u16>,
    /// True if packets can leave, by the interface's number; `None` or beyond: there is no such
    /// interface.
    links: Vec<Option<bool>>,
    gleans: HashMap<InterfaceId, u16>,
    gateways: BTreeMap<(InterfaceId, IpAddr), u16>,
    vias: BTreeMap<(VrfId, IpAddr), u16>,
    groups: HashMap<Box<[Weighted]>, u16>,
    places: Places,
    retired: VecDeque<(u64, Retired)>,
    commands: Vec<Command>,
    /// Composites to be computed.
    dirty: Vec<u16>,
    /// True if numbers have died or come alive since [`Self::take_flipped`].
    flipped: bool,
    /// True if numbers or places have become free since [`Self::take_freed`].
    freed: bool,
    /// True if a `Via` found no number for its gateway.
    starved: bool,
    /// True if gateways are not resolved by default routes.
    not_by_default: bool,
    /// Buckets of all groups that have none of their own; `None`: a place for each unit of weight.
    buckets: Option<u16>,
}

impl NextHops {
    pub(super) fn new(table: Arc<NextHopTable>, grace: Box<dyn GracePeriod>) -> Self {
        let mut status = vec![Status::Unknown; NEXT_HOPS];
        status[..usize::from(FIRST_DYNAMIC)].fill(Status::Live);
        status[usize::from(NO_ROOM)] = Status::Dead(Inactive::NoRoom);
        status[usize::from(NO_GROUP)] = Status::Dead(Inactive::NoGroup);
        Self {
            table,
            grace,
            hops: (0..NEXT_HOPS).map(|_| None).collect(),
            status,
            // Taken from the end: small numbers first, as these share cache lines.
            free: (FIRST_DYNAMIC..NEXT_HOPS as u16).rev().collect(),
            links: Vec::new(),
            gleans: HashMap::new(),
            gateways: BTreeMap::new(),
            vias: BTreeMap::new(),
            groups: HashMap::new(),
            places: Places::new(GROUP_MEMBERS as u32),
            retired: VecDeque::new(),
            commands: Vec::new(),
            dirty: Vec::new(),
            flipped: false,
            freed: false,
            starved: false,
            not_by_default: false,
            buckets: None,
        }
    }

    /// Gives all groups that have no buckets of their own so many from now on.
    pub(super) fn spread_in_buckets(&mut self, buckets: Option<u16>) {
        self.buckets = buckets.map(|buckets| buckets.clamp(1, BUCKETS_MOST));
    }

    /// Enables or disables the resolution of gateways by default routes.
    pub(super) fn resolve_via_default(&mut self, on: bool) {
        self.not_by_default = !on;
        self.dirty.extend(self.vias.values());
    }

    /// Returns true if only a default route leads to a gateway that is on no interface's network.
    pub(super) fn is_by_default(&self, vrf: VrfId, address: IpAddr) -> bool {
        let Some(&id) = self.vias.get(&(vrf, address)) else { return false };
        let meaning = self.hop(id).map(|hop| &hop.meaning);
        self.is_live(id) && matches!(meaning, Some(Meaning::Via { length: 0, .. }))
    }

    /// Returns the changes for the slow path since the last call.
    pub(super) fn drain_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    pub(super) fn command(&mut self, command: Command) {
        self.commands.push(command);
    }

    /// Returns the numbers in use, the numbers that wait for a grace period, and the places in use
    /// or waiting.
    pub(super) fn usage(&self) -> (usize, usize, usize) {
        let waiting = self.retired.iter().filter(|r| matches!(r.1, Retired::Number(_))).count();
        let all = NEXT_HOPS - usize::from(FIRST_DYNAMIC);
        let places = GROUP_MEMBERS - self.places.free() as usize;
        (all - self.free.len() - waiting, waiting, places)
    }

    fn hop(&self, id: u16) -> Option<&Hop> {
        self.hops[usize::from(id)].as_deref()
    }

    fn hop_mut(&mut self, id: u16) -> Option<&mut Hop> {
        self.hops[usize::from(id)].as_deref_mut()
    }

    fn status(&self, id: u16) -> Status {
        self.status[usize::from(id)]
    }

    /// Returns true if the next hop is live.
    pub(super) fn is_live(&self, id: u16) -> bool {
        self.status(id) == Status::Live
    }

    /// Returns true if the number is that of a removed named group.
    pub(super) fn is_gone(&self, id: u16) -> bool {
        self.status(id) == Status::Gone
    }

    /// Returns the reason why the next hop is not live.
    pub(super) fn reason(&self, id: u16) -> Option<Inactive> {
        match self.status(id) {
            Status::Dead(reason) => Some(reason),
            Status::Unknown => Some(Inactive::Pending),
            Status::Live | Status::Gone => None,
        }
    }

    // ---- interfaces ------------------------------------------------------------------------------

    /// Returns true if there is an interface of this number.
    pub(super) fn has_interface(&self, interface: InterfaceId) -> bool {
        self.link(interface).is_some()
    }

    /// Returns true if packets can leave by an interface; `None`: there is no such interface.
    fn link(&self, interface: InterfaceId) -> Option<bool> {
        self.links.get(interface.index()).copied().flatten()
    }

    /// Sets the state of an interface: true if packets can leave by it; `None`: there is no such
    /// interface. The time it takes depends on the next hops over the interface, not on the routes.
    pub(super) fn set_link(&mut self, interface: InterfaceId, link: Option<bool>) {
        if self.link(interface) == link {
            return;
        }
        if self.links.len() <= interface.index() {
            self.links.resize(interface.index() + 1, None);
        }
        self.links[interface.index()] = link;
        let first = IpAddr::from([0, 0, 0, 0]);
        let gateways =
            self.gateways.range((interface, first)..).take_while(|(key, _)| key.0 == interface);
        let mut leaves: Vec<u16> = gateways.map(|(_, &id)| id).collect();
        leaves.extend(self.gleans.get(&interface));
        for id in leaves {
            self.judge_leaf(id, interface);
            self.publish(id);
            self.mark_parents(id);
        }
    }

    /// Updates a leaf, which is live while its interface's link is up.
    fn judge_leaf(&mut self, id: u16, interface: InterfaceId) {
        let status = match self.link(interface) {
            Some(true) => Status::Live,
            _ => Status::Dead(Inactive::LinkDown),
        };
        self.set_status(id, status);
    }

    fn set_status(&mut self, id: u16, status: Status) {
        let before = std::mem::replace(&mut self.status[usize::from(id)], status);
        if before != Status::Unknown && (before == Status::Live) != (status == Status::Live) {
            self.flipped = true;
        }
    }

    /// Returns true if there are gateways without interface.
    pub(super) fn has_vias(&self) -> bool {
        !self.vias.is_empty()
    }

    /// Marks all gateways without interface.
    pub(super) fn mark_all_vias(&mut self) {
        self.dirty.extend(self.vias.values());
    }

    /// Returns true if any next hop is marked for computation.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns true if numbers have died or come alive since the last call.
    pub(super) fn take_flipped(&mut self) -> bool {
        std::mem::take(&mut self.flipped)
    }

    fn mark_parents(&mut self, id: u16) {
        let Some(hop) = &self.hops[usize::from(id)] else { return };
        self.dirty.extend_from_slice(&hop.parents);
    }

    // ---- numbers ----------------------------------------------------------------------------

    /// Returns the number for destinations on an interface's networks, with one more reference.
    pub(super) fn glean(
        &mut self,
        interface: InterfaceId,
        referrer: Referrer,
    ) -> Result<u16, Refused> {
        let id = match self.gleans.get(&interface) {
            Some(&id) => id,
            None => {
                let id = self.allocate(Meaning::Glean(interface))?;
                self.gleans.insert(interface, id);
                self.judge_leaf(id, interface);
                self.publish(id);
                id
            }
        };
        self.retain(id, referrer);
        Ok(id)
    }

    /// Returns the number of a gateway, with one more reference. `mac` returns its MAC if resolved.
    pub(super) fn gateway(
        &mut self,
        interface: InterfaceId,
        address: IpAddr,
        mac: impl FnOnce() -> Option<MacAddr>,
        referrer: Referrer,
    ) -> Result<u16, Refused> {
        let id = match self.gateways.get(&(interface, address)) {
            Some(&id) => id,
            None => {
                let id = self.allocate(Meaning::Gateway { interface, address, mac: mac() })?;
                self.gateways.insert((interface, address), id);
                self.judge_leaf(id, interface);
                self.publish(id);
                id
            }
        };
        self.retain(id, referrer);
        Ok(id)
    }

    /// Returns the number of a gateway whose interface follows from the routes, with one more
    /// reference.
    fn via(&mut self, vrf: VrfId, address: IpAddr) -> Result<u16, Refused> {
        let id = match self.vias.get(&(vrf, address)) {
            Some(&id) => id,
            None => {
                // One place, so that there is always one to name a gateway that is not resolved.
                let first = self.take_places(1)?;
                let meaning = Meaning::Via { vrf, address, tried: Vec::new(), length: 0 };
                let id = self.allocate_with(meaning, (first, 1))?;
                self.vias.insert((vrf, address), id);
                self.dirty.push(id);
                id
            }
        };
        self.retain(id, Referrer::Route);
        Ok(id)
    }

    /// Returns the number of one path, with one more reference of a route.
    fn member(
        &mut self,
        path: &Path,
        mac: impl Fn(InterfaceId, IpAddr) -> Option<MacAddr>,
    ) -> Result<u16, Refused> {
        match (path.interface, path.via) {
            (Some(interface), Some(via)) => {
                self.gateway(interface, via, || mac(interface, via), Referrer::Route)
            }
            (Some(interface), None) => self.glean(interface, Referrer::Route),
            (None, Some(via)) => self.via(path.vrf, via),
            // Refused earlier.
            (None, None) => Err(Refused::Numbers),
        }
    }

    /// Returns the numbers of paths in ascending order, each with one more reference of a route.
    /// Paths to the same place are merged, and weights are reduced.
    fn members(
        &mut self,
        paths: &[Path],
        mac: impl Fn(InterfaceId, IpAddr) -> Option<MacAddr>,
    ) -> Result<Vec<Weighted>, Refused> {
        let mut members: Vec<Weighted> = Vec::with_capacity(paths.len());
        for path in paths {
            let weight = u32::from(path.weight);
            match self.member(path, &mac) {
                Err(refused) => {
                    self.release_members(&members);
                    return Err(refused);
                }
                Ok(id) => match members.binary_search_by_key(&id, |member| member.0) {
                    Ok(at) => {
                        members[at].1 += weight;
                        self.release(id, Referrer::Route);
                    }
                    Err(at) => members.insert(at, (id, weight)),
                },
            }
        }
        reduce(&mut members);
        Ok(members)
    }

    fn release_members(&mut self, members: &[Weighted]) {
        for &(id, _) in members {
            self.release(id, Referrer::Route);
        }
    }

    /// Returns the number that leads over these paths, with one more reference of a route.
    pub(super) fn over(
        &mut self,
        paths: &[Path],
        mac: impl Fn(InterfaceId, IpAddr) -> Option<MacAddr>,
    ) -> Result<u16, Refused> {
        if let [path] = paths {
            return self.member(path, mac);
        }
        let members = self.members(paths, mac)?;
        if let [(id, _)] = members[..] {
            return Ok(id);
        }
        let group = self.group(&members);
        if let Ok(id) = group {
            self.retain(id, Referrer::Route);
        }
        self.release_members(&members);
        group
    }

    /// Returns the group with these members. A new one refers to its members.
    fn group(&mut self, members: &[Weighted]) -> Result<u16, Refused> {
        if let Some(&id) = self.groups.get(members) {
            return Ok(id);
        }
        let places = self.take_places_for(members)?;
        let members: Box<[Weighted]> = members.into();
        let id = self.allocate_with(Meaning::Group { members: members.clone() }, places)?;
        self.adopt(id, &members);
        self.groups.insert(members, id);
        self.dirty.push(id);
        Ok(id)
    }

    /// Makes a composite depend on its members and refer to them.
    fn adopt(&mut self, parent: u16, members: &[Weighted]) {
        for &(member, _) in members {
            self.retain(member, Referrer::Route);
            self.add_parent(member, parent);
        }
    }

    fn add_parent(&mut self, child: u16, parent: u16) {
        if let Some(hop) = self.hop_mut(child) {
            hop.parents.push(parent);
        }
    }

    fn remove_parent(&mut self, child: u16, parent: u16) {
        if let Some(hop) = self.hop_mut(child)
            && let Some(at) = hop.parents.iter().rposition(|&known| known == parent)
        {
            hop.parents.swap_remove(at);
        }
    }

    fn take_places_for(&mut self, members: &[Weighted]) -> Result<(u32, u32), Refused> {
        let total: u64 = members.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let count = total.min(GROUP_PLACES_MOST.into()) as u32;
        Ok((self.take_places(count)?, count))
    }

    fn take_places(&mut self, count: u32) -> Result<u32, Refused> {
        if let Some(first) = self.places.take(count) {
            return Ok(first);
        }
        self.recycle();
        self.places.take(count).ok_or(Refused::Places(count))
    }

    /// Frees places that no number ever used, without a grace period.
    fn give_places(&mut self, (first, count): (u32, u32)) {
        if count > 0 {
            self.places.give(first, count);
        }
    }

    fn retire_places(&mut self, (first, count): (u32, u32)) {
        if count > 0 {
            self.retired.push_back((self.grace.start(), Retired::Places { first, count }));
        }
    }

    fn allocate(&mut self, meaning: Meaning) -> Result<u16, Refused> {
        self.allocate_with(meaning, (0, 0))
    }

    /// Allocates a number with this meaning and no reference yet; it means "no route" until it is
    /// published.
    fn allocate_with(&mut self, meaning: Meaning, places: (u32, u32)) -> Result<u16, Refused> {
        if self.free.is_empty() {
            self.recycle();
        }
        let Some(id) = self.free.pop() else {
            self.give_places(places);
            return Err(Refused::Numbers);
        };
        self.status[usize::from(id)] = Status::Unknown;
        self.hops[usize::from(id)] = Some(Box::new(Hop {
            meaning,
            references: 0,
            routes: 0,
            parents: Vec::new(),
            leaves: Vec::new(),
            places,
            circular: false,
        }));
        Ok(id)
    }

    /// Adds a reference to a number; references to the reserved ones are not counted.
    pub(super) fn retain(&mut self, id: u16, referrer: Referrer) {
        let Some(hop) = &mut self.hops[usize::from(id)] else { return };
        hop.references += 1;
        if referrer == Referrer::Route {
            hop.routes += 1;
            if let (1, &Meaning::Gateway { interface, address, .. }) = (hop.routes, &hop.meaning) {
                self.commands.push(Command::NextHop { id, interface, address });
            }
        }
    }

    /// Removes a reference; the last one retires the number.
    pub(super) fn release(&mut self, id: u16, referrer: Referrer) {
        let Some(hop) = &mut self.hops[usize::from(id)] else { return };
        hop.references -= 1;
        if referrer == Referrer::Route {
            hop.routes -= 1;
            if hop.routes == 0 && matches!(hop.meaning, Meaning::Gateway { .. }) {
                self.commands.push(Command::RemoveNextHop { id });
            }
        }
        if hop.references == 0 {
            self.retire(id);
        }
    }

    fn retire(&mut self, id: u16) {
        let Some(hop) = self.hops[usize::from(id)].take() else { return };
        self.retired.push_back((self.grace.start(), Retired::Number(id)));
        // A forwarder that still holds the number reads its places and the entries of its leaves:
        // these retire later, so they outlive it.
        self.retire_places(hop.places);
        match hop.meaning {
            Meaning::Glean(interface) => {
                self.gleans.remove(&interface);
            }
            Meaning::Gateway { interface, address, .. } => {
                self.gateways.remove(&(interface, address));
            }
            Meaning::Via { vrf, address, tried, .. } => {
                self.vias.remove(&(vrf, address));
                self.let_go(id, tried, hop.leaves);
            }
            Meaning::Group { members } => {
                self.groups.remove(&members);
                self.disown(id, &members);
            }
            Meaning::Object { members, .. } => self.disown(id, &members),
        }
    }

    /// Undoes [`Self::adopt`].
    fn disown(&mut self, parent: u16, members: &[Weighted]) {
        for &(member, _) in members {
            self.remove_parent(member, parent);
            self.release(member, Referrer::Route);
        }
    }

    /// Frees numbers and places that no forwarder can hold any more; returns how many still wait.
    pub(super) fn recycle(&mut self) -> usize {
        while let Some((token, _)) = self.retired.front() {
            if !self.grace.passed(*token) {
                break;
            }
            self.freed = true;
            match self.retired.pop_front() {
                Some((_, Retired::Number(id))) => {
                    self.table.take_back(id);
                    self.free.push(id);
                }
                Some((_, Retired::Places { first, count })) => self.places.give(first, count),
                None => break,
            }
        }
        self.retired.len()
    }

    /// Returns true if numbers or places have become free since the last call.
    pub(super) fn take_freed(&mut self) -> bool {
        let freed = std::mem::take(&mut self.freed);
        if freed && std::mem::take(&mut self.starved) {
            self.mark_all_vias();
        }
        freed
    }

    // ---- named groups -----------------------------------------------------------------------

    /// Adds a named group, with one reference by its name.
    pub(super) fn add_object(
        &mut self,
        key: GroupKey,
        spec: &GroupSpec,
        mac: impl Fn(InterfaceId, IpAddr) -> Option<MacAddr>,
    ) -> Result<u16, Refused> {
        let members = self.object_members(spec, mac)?;
        let buckets = buckets(spec);
        let made = self.object_places(&members, &buckets).and_then(|places| {
            let meaning = Meaning::Object { key, members: members.clone(), buckets };
            self.allocate_with(meaning, places)
        });
        if let Ok(id) = made {
            self.adopt(id, &members);
            self.retain(id, Referrer::Other);
            self.dirty.push(id);
        }
        self.release_members(&members);
        made
    }

    /// Replaces the members of a named group. Buckets are kept if their number stays the same.
    /// Without room the group is dead, so that its former members are not used any more.
    pub(super) fn change_object(
        &mut self,
        id: u16,
        spec: &GroupSpec,
        mac: impl Fn(InterfaceId, IpAddr) -> Option<MacAddr>,
    ) -> Result<(), Refused> {
        let found = self.object_members(spec, mac);
        let new = found.clone().unwrap_or_else(|_| vec![(NO_ROOM, 1)]);
        self.adopt(id, &new);
        self.release_members(&new);
        let wanted = buckets(spec);
        let Some(hop) = self.hop_mut(id) else { return Ok(()) };
        let Meaning::Object { members, buckets, .. } = &mut hop.meaning else { return Ok(()) };
        let old = std::mem::replace(members, new);
        if buckets.as_ref().map(Vec::len) != wanted.as_ref().map(Vec::len) {
            *buckets = wanted;
        }
        self.disown(id, &old);
        self.dirty.push(id);
        found.map(drop)
    }

    fn object_members(
        &mut self,
        spec: &GroupSpec,
        mac: impl Fn(InterfaceId, IpAddr) -> Option<MacAddr>,
    ) -> Result<Vec<Weighted>, Refused> {
        if spec.blackhole { Ok(vec![(BLACKHOLE, 1)]) } else { self.members(&spec.paths, mac) }
    }

    fn object_places(
        &mut self,
        members: &[Weighted],
        buckets: &Option<Vec<u16>>,
    ) -> Result<(u32, u32), Refused> {
        match buckets {
            Some(buckets) => {
                let count = buckets.len() as u32;
                Ok((self.take_places(count)?, count))
            }
            None => self.take_places_for(members),
        }
    }

    /// Removes the name of a named group: packets over it have no route from now on, and its routes
    /// are to be removed.
    pub(super) fn remove_object(&mut self, id: u16) {
        self.set_status(id, Status::Gone);
        self.flipped = true;
        if let Some(hop) = self.hop_mut(id) {
            hop.leaves.clear();
        }
        self.publish(id);
        self.mark_parents(id);
        self.release(id, Referrer::Other);
    }

    // ---- queries ----------------------------------------------------------------------------

    /// Sets the MAC of a gateway, `None` if unresolved. The time it takes depends on the composites
    /// that lead only to it, not on the routes.
    pub(super) fn resolve(
        &mut self,
        interface: InterfaceId,
        address: IpAddr,
        known: Option<MacAddr>,
    ) {
        let Some(&id) = self.gateways.get(&(interface, address)) else { return };
        if let Some(Hop { meaning: Meaning::Gateway { mac, .. }, .. }) = self.hop_mut(id) {
            *mac = known;
        }
        self.publish(id);
        self.publish_copies(id);
    }

    /// Returns the paths of a number as they were configured, with weights reduced; empty for a
    /// number without paths.
    pub(super) fn paths(&self, id: u16) -> Vec<Path> {
        let Some(hop) = self.hop(id) else { return Vec::new() };
        match &hop.meaning {
            &Meaning::Glean(interface) => vec![Path::on_interface(interface)],
            &Meaning::Gateway { interface, address, .. } => vec![Path::over(interface, address)],
            &Meaning::Via { vrf, address, .. } => vec![Path::recursive(vrf, address)],
            Meaning::Group { .. } | Meaning::Object { .. } => {
                let members = hop.meaning.members().iter();
                let weigh = |weight: u32| move |path: Path| path.weighing(weight as u16);
                members
                    .flat_map(|&(id, weight)| self.paths(id).into_iter().map(weigh(weight)))
                    .collect()
            }
        }
    }

    /// Returns the paths in use now.
    pub(super) fn live_paths(&self, id: u16) -> Vec<LivePath> {
        if !self.is_live(id) {
            return Vec::new();
        }
        let leaves = self.leaves(id);
        leaves.iter().filter_map(|&(leaf, weight)| self.live_path(leaf, weight)).collect()
    }

    /// Converts a leaf to a path.
    fn live_path(&self, leaf: u16, weight: u32) -> Option<LivePath> {
        match self.hop(leaf)?.meaning {
            Meaning::Glean(interface) => {
                Some(LivePath { interface, gateway: None, mac: None, weight })
            }
            Meaning::Gateway { interface, address, mac } => {
                Some(LivePath { interface, gateway: Some(address), mac, weight })
            }
            _ => None,
        }
    }

    /// Returns the path of a flow, as a forwarder selects it.
    pub(super) fn flow_path(&self, id: u16, hash: u32) -> Option<LivePath> {
        let word = self.table.get(id);
        let id = if word.is_group() { self.table.select(word, hash) } else { id };
        match self.leaves(id)[..] {
            [(leaf, _)] if self.is_live(id) => self.live_path(leaf, 1),
            _ => None,
        }
    }

    /// Returns the number for destinations on an interface's networks.
    pub(super) fn glean_of(&self, interface: InterfaceId) -> Option<u16> {
        self.gleans.get(&interface).copied()
    }

    /// Returns the interface whose networks the number stands for.
    pub(super) fn glean_port(&self, id: u16) -> Option<InterfaceId> {
        match self.hop(id)?.meaning {
            Meaning::Glean(interface) => Some(interface),
            _ => None,
        }
    }

    /// Returns the name of the group that the number stands for.
    pub(super) fn object_key(&self, id: u16) -> Option<GroupKey> {
        match self.hop(id)?.meaning {
            Meaning::Object { key, .. } => Some(key),
            _ => None,
        }
    }
}

/// Returns the empty buckets of a resilient group.
fn buckets(spec: &GroupSpec) -> Option<Vec<u16>> {
    let resilient = spec.resilient?;
    Some(vec![dataplane::next_hop::NO_ROUTE; resilient.buckets.clamp(1, BUCKETS_MOST).into()])
}
