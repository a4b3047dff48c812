//! Nexthop objects: single next hops and groups of them, which routes refer to by number.

use std::collections::{BTreeMap, HashMap};

use super::ReplacePolicy;
use super::info::{InterfaceMap, followed, paths};
use crate::netlink::message::{Hop, Hops, Nexthop};
use crate::rib::{GroupKey, GroupSpec, Resilient, RouteKind, RouteSource};

/// Result of resolving an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Derived {
    Group(GroupSpec),
    /// The kernel has to forward.
    Host,
    /// None of its members exists, or it is not for routes.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) nexthop: Nexthop,
    /// The group last reported to the RIB.
    pub(super) sent: Option<GroupSpec>,
    pub(super) host: bool,
    pub(super) mark: u8,
}

/// All nexthop objects of a source.
#[derive(Debug, Default)]
pub(super) struct Nexthops {
    pub(super) all: BTreeMap<u32, Object>,
    /// The groups that each object is a member of.
    parents: HashMap<u32, Vec<u32>>,
}

impl Nexthops {
    /// Returns the kind of a route over the object.
    pub(super) fn kind(&self, source: RouteSource, id: u32) -> RouteKind {
        if self.all.get(&id).is_some_and(|object| object.host) {
            return RouteKind::Host;
        }
        RouteKind::NextHopGroup(GroupKey::new(source, id))
    }

    /// Creates or replaces an object.
    pub(super) fn set(&mut self, id: u32, nexthop: Nexthop, mark: u8) {
        self.leave(id);
        for member in members(&nexthop) {
            let parents = self.parents.entry(member).or_default();
            if !parents.contains(&id) {
                parents.push(id);
            }
        }
        let object = Object { nexthop: Nexthop::Bridge, sent: None, host: false, mark };
        let object = self.all.entry(id).or_insert(object);
        object.nexthop = nexthop;
        object.mark = mark;
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Object> {
        self.leave(id);
        self.all.remove(&id)
    }

    /// Removes a group from its members' lists.
    fn leave(&mut self, id: u32) {
        let Some(object) = self.all.get(&id) else { return };
        for member in members(&object.nexthop) {
            if let Some(parents) = self.parents.get_mut(&member) {
                parents.retain(|parent| *parent != id);
                if parents.is_empty() {
                    self.parents.remove(&member);
                }
            }
        }
    }

    /// Returns the groups that the object is a member of.
    pub(super) fn parents(&self, id: u32) -> Vec<u32> {
        self.parents.get(&id).cloned().unwrap_or_default()
    }

    /// Returns the single objects over an interface.
    pub(super) fn over(&self, interface: u32) -> Vec<u32> {
        let over = |nexthop: &Nexthop| matches!(nexthop, Nexthop::Single(hop) if hop.interface == interface);
        self.all.iter().filter(|(_, o)| over(&o.nexthop)).map(|(id, _)| *id).collect()
    }

    /// Resolves an object, leaving out missing members.
    pub(super) fn derive(
        &self,
        id: u32,
        policy: ReplacePolicy,
        interfaces: &InterfaceMap,
    ) -> Derived {
        let Some(object) = self.all.get(&id) else { return Derived::Nothing };
        let (hops, resilient) = match &object.nexthop {
            Nexthop::Bridge => return Derived::Nothing,
            Nexthop::Blackhole => return blackhole(),
            Nexthop::Single(hop) => (Hops::from_slice(&[*hop]), None),
            Nexthop::Group { members, buckets } => {
                let member = |&(member, weight): &(u32, u32)| self.member(member, weight);
                // The kernel allows a blackhole in a group only as its sole member.
                if members.iter().any(|(id, _)| self.is_blackhole(*id)) {
                    return blackhole();
                }
                let resilient = buckets.map(|buckets| Resilient { buckets });
                (members.iter().filter_map(member).collect(), resilient)
            }
        };
        let hops = followed(policy, &hops, interfaces).unwrap_or(hops);
        if hops.is_empty() {
            return Derived::Nothing;
        }
        match paths(&hops, interfaces) {
            Some(paths) => Derived::Group(GroupSpec { paths, resilient, blackhole: false }),
            None => Derived::Host,
        }
    }

    fn is_blackhole(&self, id: u32) -> bool {
        self.all.get(&id).is_some_and(|object| object.nexthop == Nexthop::Blackhole)
    }

    fn member(&self, id: u32, weight: u32) -> Option<Hop> {
        match self.all.get(&id)?.nexthop {
            Nexthop::Single(hop) => Some(Hop { weight, ..hop }),
            _ => None,
        }
    }
}

fn blackhole() -> Derived {
    Derived::Group(GroupSpec { paths: Vec::new(), resilient: None, blackhole: true })
}

fn members(nexthop: &Nexthop) -> impl Iterator<Item = u32> + '_ {
    let members = match nexthop {
        Nexthop::Group { members, .. } => &members[..],
        _ => &[],
    };
    members.iter().map(|(id, _)| *id)
}
