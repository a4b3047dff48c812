//! Liveness and leaves of composites: computed bottom-up, in time that depends on the affected
//! composites, not on the routes.
//!
//! A change marks the composites above it. [`NextHops::settle`] takes these and all above them,
//! resets them, and computes each as soon as possible: a group when all its members are computed, a
//! `Via` when the routes to its address are.
//!
//! # Resolution of a gateway without interface
//!
//! A gateway is resolved by the longest prefix that contains it, and there by the best candidate;
//! dead candidates are passed over, also in favour of shorter prefixes. The `Via` gets the
//! candidate's leaves; if the candidate leads to an interface's network, the gateway is a neighbour
//! on that interface. A route to a blackhole makes the `Via` a blackhole: announcing a gateway to
//! be blackholed is how operators stop an attack (RFC 3882). A default route leads to gateways
//! unless the configuration disables that.
//!
//! # Circles
//!
//! Next hops that remain when nothing more can be computed depend on themselves: a `Via` that would
//! be resolved over a route that leads over it. All these are dead, with the reason
//! [`Inactive::Loop`]. A group with such a member is live by its other members, but a `Via` that
//! would be resolved over such a group counts as part of the circle, so that the result does not
//! depend on the order of the routes' arrival.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::{FIRST_DYNAMIC, LOCAL, MARTIAN};
use ipnet::IpNet;
use wire::MacAddr;

use super::{Inactive, Meaning, NextHops, Referrer, Refused, Status, Weighted, merge};

/// Routes and neighbours as needed by the computation.
pub(in super::super) trait Covering {
    /// Visits the next hops of a VRF's routes to an address with the prefixes' lengths, longest
    /// prefix first, best first, without those of neighbours, until `visit` breaks.
    fn visit(&self, vrf: VrfId, address: IpAddr, visit: &mut dyn FnMut(u8, u16) -> ControlFlow<()>);

    /// Returns the MAC of a neighbour.
    fn mac(&self, interface: InterfaceId, address: IpAddr) -> Option<MacAddr>;
}

/// Result of a `Via`.
enum Outcome {
    /// It depends on a next hop that is not computed yet.
    Waits,
    Dead(Inactive),
    /// The routes to it lead over this number.
    Through(u16),
}

impl NextHops {
    /// Marks the gateways within a prefix whose routes have changed in a VRF.
    pub(in super::super) fn mark_vias(&mut self, vrf: VrfId, prefix: &IpNet) {
        if self.vias.is_empty() {
            return;
        }
        let within = self.vias.range((vrf, prefix.network())..=(vrf, prefix.broadcast()));
        for (_, &id) in within {
            // A route shorter than the deciding one has no effect.
            let decided = match self.hops[usize::from(id)].as_deref().map(|hop| &hop.meaning) {
                Some(Meaning::Via { length, .. }) => *length,
                _ => 0,
            };
            if prefix.prefix_len() >= decided {
                self.dirty.push(id);
            }
        }
    }

    /// Computes the marked next hops and all that depend on them, and writes the table's entries.
    pub(in super::super) fn settle(&mut self, routes: &impl Covering) {
        if self.dirty.is_empty() {
            return;
        }
        let concerned = self.concerned();
        let before: Vec<Status> = concerned.iter().map(|&id| self.status(id)).collect();
        for &id in &concerned {
            self.status[usize::from(id)] = Status::Unknown;
        }
        let mut unused = Vec::new();
        self.compute(concerned.clone(), routes, &mut unused);
        self.break_circles(&concerned);
        for (&id, before) in concerned.iter().zip(before) {
            let now = std::mem::replace(&mut self.status[usize::from(id)], before);
            self.set_status(id, now);
            self.publish(id);
        }
        for (id, referrer) in unused {
            self.release(id, referrer);
        }
    }

    /// Returns the marked composites and all above them.
    fn concerned(&mut self) -> Vec<u16> {
        let mut found: BTreeSet<u16> = BTreeSet::new();
        let mut open = std::mem::take(&mut self.dirty);
        while let Some(id) = open.pop() {
            let Some(hop) = self.hop(id) else { continue };
            if hop.meaning.is_leaf() || self.is_gone(id) || !found.insert(id) {
                continue;
            }
            open.extend_from_slice(&hop.parents);
        }
        found.into_iter().collect()
    }

    /// Computes as many as possible; `unused` receives the references to release at the end.
    fn compute(
        &mut self,
        mut open: Vec<u16>,
        routes: &impl Covering,
        unused: &mut Vec<(u16, Referrer)>,
    ) {
        while let Some(id) = open.pop() {
            if self.status(id) != Status::Unknown {
                continue;
            }
            let gateway = match self.hop(id).map(|hop| &hop.meaning) {
                Some(&Meaning::Via { vrf, address, .. }) => Some((vrf, address)),
                Some(_) => None,
                None => continue,
            };
            match gateway {
                Some(gateway) => self.resolve_via(id, gateway, routes, unused),
                None => self.gather(id),
            }
            if self.status(id) != Status::Unknown
                && let Some(hop) = self.hop(id)
            {
                open.extend_from_slice(&hop.parents);
            }
        }
    }

    /// Handles composites that remain uncomputed: they lead in a circle.
    fn break_circles(&mut self, concerned: &[u16]) {
        let unknown = |hops: &Self, id: u16| hops.status(id) == Status::Unknown;
        for &id in concerned {
            let is_via = matches!(self.hop(id).map(|hop| &hop.meaning), Some(Meaning::Via { .. }));
            if is_via && unknown(self, id) {
                self.status[usize::from(id)] = Status::Dead(Inactive::Loop);
            }
        }
        // Groups do not have groups as members, so all of them can be computed now.
        for &id in concerned {
            if unknown(self, id) {
                self.gather(id);
            }
        }
    }

    /// Returns the live leaves of a leaf or a composite.
    pub(in super::super) fn leaves(&self, id: u16) -> Vec<Weighted> {
        match self.hop(id) {
            Some(hop) if !hop.meaning.is_leaf() => hop.leaves.clone(),
            _ => vec![(id, 1)],
        }
    }

    /// Computes a group from its members, if they are all computed.
    fn gather(&mut self, id: u16) {
        let Some(hop) = self.hop(id) else { return };
        let members = hop.meaning.members();
        if members.iter().any(|&(member, _)| self.status(member) == Status::Unknown) {
            return;
        }
        let live = members.iter().filter(|&&(member, _)| self.is_live(member));
        let parts: Vec<(u32, Vec<Weighted>)> =
            live.map(|&(member, weight)| (weight, self.leaves(member))).collect();
        let parts: Vec<(u32, &[Weighted])> =
            parts.iter().map(|(weight, leaves)| (*weight, &leaves[..])).collect();
        let mut reasons = members.iter().filter_map(|&(member, _)| self.reason(member));
        let circular = reasons.clone().any(|reason| reason == Inactive::Loop);
        let leaves = merge(&parts);
        let status = match leaves.is_empty() {
            false => Status::Live,
            true if circular => Status::Dead(Inactive::Loop),
            true => Status::Dead(reasons.next().unwrap_or(Inactive::GatewayUnreachable)),
        };
        self.status[usize::from(id)] = status;
        if let Some(hop) = self.hop_mut(id) {
            (hop.leaves, hop.circular) = (leaves, circular);
        }
    }

    /// Computes a `Via` from the routes to it, if the deciding ones are computed.
    fn resolve_via(
        &mut self,
        id: u16,
        (vrf, address): (VrfId, IpAddr),
        routes: &impl Covering,
        unused: &mut Vec<(u16, Referrer)>,
    ) {
        let mut tried = Vec::new();
        let mut length = 0;
        let mut outcome = Outcome::Dead(Inactive::GatewayUnreachable);
        routes.visit(vrf, address, &mut |len, hop| {
            if len == 0 && self.not_by_default {
                return ControlFlow::Continue(());
            }
            length = len;
            // A removed group never returns, and the sweep that removes its routes changes nothing
            // here.
            if !self.is_gone(hop) {
                tried.push(hop);
            }
            match self.judge(hop) {
                None => ControlFlow::Continue(()),
                Some(found) => {
                    outcome = found;
                    ControlFlow::Break(())
                }
            }
        });
        let mut leaves = Vec::new();
        let status = match outcome {
            Outcome::Waits => Status::Unknown,
            Outcome::Dead(reason) => Status::Dead(reason),
            Outcome::Through(hop) => match self.leaves_towards(hop, address, routes) {
                Ok(found) => {
                    leaves = found;
                    Status::Live
                }
                Err(_) => {
                    self.starved = true;
                    Status::Dead(Inactive::NoRoom)
                }
            },
        };
        if matches!(status, Status::Dead(Inactive::GatewayUnreachable)) {
            // Any route to it would change this.
            length = 0;
        }
        self.attach(id, tried, length, leaves, unused);
        self.status[usize::from(id)] = status;
    }

    /// Judges a candidate for a `Via`; `None`: it is passed over.
    fn judge(&self, hop: u16) -> Option<Outcome> {
        if matches!(hop, LOCAL | MARTIAN) {
            return Some(Outcome::Dead(Inactive::GatewayUnreachable));
        }
        match self.status(hop) {
            Status::Unknown => Some(Outcome::Waits),
            Status::Dead(Inactive::Loop) => Some(Outcome::Dead(Inactive::Loop)),
            Status::Dead(_) | Status::Gone => None,
            Status::Live if self.hop(hop).is_some_and(|hop| hop.circular) => {
                Some(Outcome::Dead(Inactive::Loop))
            }
            Status::Live => Some(Outcome::Through(hop)),
        }
    }

    /// Returns the leaves of a number, with one more reference each; an interface's network becomes
    /// the neighbour `address` on it.
    fn leaves_towards(
        &mut self,
        hop: u16,
        address: IpAddr,
        routes: &impl Covering,
    ) -> Result<Vec<Weighted>, Refused> {
        let mut found: Vec<(u32, [Weighted; 1])> = Vec::new();
        for (leaf, weight) in self.leaves(hop) {
            let made = match self.glean_port(leaf) {
                Some(interface) => {
                    let mac = || routes.mac(interface, address);
                    self.gateway(interface, address, mac, Referrer::Route)
                }
                None => {
                    self.retain(leaf, Referrer::Route);
                    Ok(leaf)
                }
            };
            match made {
                Ok(leaf) => found.push((weight, [(leaf, 1)])),
                Err(refused) => {
                    found.iter().for_each(|&(_, [(leaf, _)])| self.release(leaf, Referrer::Route));
                    return Err(refused);
                }
            }
        }
        let parts: Vec<_> = found.iter().map(|(weight, leaf)| (*weight, &leaf[..])).collect();
        let merged = merge(&parts);
        // A leaf found twice is one leaf, with one reference.
        for (at, &(_, [(leaf, _)])) in found.iter().enumerate() {
            if found[..at].iter().any(|(_, [(earlier, _)])| *earlier == leaf) {
                self.release(leaf, Referrer::Route);
            }
        }
        Ok(merged)
    }

    /// Makes a `Via` depend on the next hops it was computed from, instead of the earlier ones.
    fn attach(
        &mut self,
        id: u16,
        mut new_tried: Vec<u16>,
        new_length: u8,
        new_leaves: Vec<Weighted>,
        unused: &mut Vec<(u16, Referrer)>,
    ) {
        new_tried.retain(|&hop| hop >= FIRST_DYNAMIC);
        for &hop in &new_tried {
            self.retain(hop, Referrer::Other);
            self.add_parent(hop, id);
        }
        for &(leaf, _) in &new_leaves {
            self.add_parent(leaf, id);
        }
        let Some(hop) = self.hop_mut(id) else { return };
        let old_leaves = std::mem::replace(&mut hop.leaves, new_leaves);
        let Meaning::Via { tried, length, .. } = &mut hop.meaning else { return };
        *length = new_length;
        let old_tried = std::mem::replace(tried, new_tried);
        for hop in old_tried {
            self.remove_parent(hop, id);
            unused.push((hop, Referrer::Other));
        }
        for (leaf, _) in old_leaves {
            self.remove_parent(leaf, id);
            unused.push((leaf, Referrer::Route));
        }
    }

    /// Releases the next hops that a removed `Via` was computed from.
    pub(super) fn let_go(&mut self, id: u16, tried: Vec<u16>, leaves: Vec<Weighted>) {
        for hop in tried {
            self.remove_parent(hop, id);
            self.release(hop, Referrer::Other);
        }
        for (leaf, _) in leaves {
            self.remove_parent(leaf, id);
            self.release(leaf, Referrer::Route);
        }
    }
}
