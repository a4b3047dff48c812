//! The routes and nexthop objects of a source, and the resulting events for the RIB.
//!
//! A pure state machine: messages go in, [`SourceEvent`]s come out, and nothing is reported twice.
//! It serves the kernel and zebra, see [`ReplacePolicy`].
//!
//! ```text
//!   routes.rs     messages, flushes, mark and sweep          Routes
//!   list.rs       the routes of one prefix, in order
//!   table.rs      tables, and the one that decides           Tables<K>
//!   info.rs       destinations of routes, shared             Infos
//!   nexthops.rs   nexthop objects                            Nexthops
//!   audit.rs      comparison with a dump of all routes
//!   recall.rs     repetition of all reported routes
//! ```
//!
//! # Removals without a message
//!
//! The kernel drops IPv4 routes without a message when their interface goes down, when the last
//! IPv4 address of their interface is removed, when their preferred source address is removed, and
//! when their nexthop object is removed. The same is done here, by the kernel's rules:
//! `fib_sync_down_dev`, `fib_sync_down_addr` and `remove_nexthop`.
//!
//! # Reading everything again
//!
//! [`Routes::begin_sync`] starts a dump, each route read is marked, and [`Routes::end_sync`]
//! removes the unmarked ones. Only differences are reported, so traffic on all other routes is not
//! affected.

mod audit;
mod info;
mod list;
mod nexthops;
mod recall;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use dataplane::interface::VrfId;
use ipnet::IpNet;

use super::event::{Change, SourceEvent};
use super::message::{
    Nexthop, NexthopMessage, RT_SCOPE_HOST, RT_TABLE_DEFAULT, RT_TABLE_LOCAL, RT_TABLE_MAIN,
    RTN_MULTICAST, RTN_THROW, RTN_UNICAST, RTPROT_KERNEL, RouteMessage,
};
use crate::rib::{self, GroupKey, RouteKind, RouteSource};
use audit::Audit;
pub(crate) use audit::{Difference, Differences};
use info::{InfoKey, Infos, Resolved, resolve};
pub(crate) use info::{Interface, InterfaceMap};
use list::{Arrival, Removal};
use nexthops::{Derived, Nexthops};
pub(crate) use recall::Recall;
use table::{
    Affected, Effect, Effects, Key, Key4, Key6, List, Tables, Variant, effects, effects_alone,
};

/// The tables of a machine without rules, in order.
pub(super) const DEFAULT_ORDER: [u32; 3] = [RT_TABLE_LOCAL, RT_TABLE_MAIN, RT_TABLE_DEFAULT];

/// Rules by which a source's routes replace each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplacePolicy {
    /// Routes are identified by prefix, metric and more, and are removed with the objects they
    /// depend on.
    Kernel,
    /// Each prefix has one route, which only the source removes.
    Fpm,
}

impl ReplacePolicy {
    fn source(self) -> RouteSource {
        match self {
            Self::Kernel => RouteSource::Kernel,
            Self::Fpm => RouteSource::Fpm,
        }
    }
}

/// Reason why a message was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// It is expected and not relevant.
    Silently,
    /// It is worth a log line, with this text.
    Ignored(&'static str),
    /// It contradicts itself.
    Wrong(&'static str),
}

/// The routes of one source.
#[derive(Debug)]
pub(crate) struct Routes {
    policy: ReplacePolicy,
    v4: Tables<Key4>,
    v6: Tables<Key6>,
    infos: Infos,
    nexthops: Nexthops,
    interfaces: InterfaceMap,
    /// Number of the current dump of all routes.
    mark: u8,
    /// True if the routes of some dying infos have not been removed yet.
    dying: bool,
    audit: Option<Audit>,
    out: Vec<SourceEvent>,
}

/// Selects the tables of a family.
trait Of: Key {
    fn of(routes: &mut Routes) -> &mut Tables<Self>;
    fn split(routes: &mut Routes) -> (&mut Tables<Self>, &mut Infos);
}

impl Of for Key4 {
    fn of(routes: &mut Routes) -> &mut Tables<Self> {
        &mut routes.v4
    }
    fn split(routes: &mut Routes) -> (&mut Tables<Self>, &mut Infos) {
        (&mut routes.v4, &mut routes.infos)
    }
}

impl Of for Key6 {
    fn of(routes: &mut Routes) -> &mut Tables<Self> {
        &mut routes.v6
    }
    fn split(routes: &mut Routes) -> (&mut Tables<Self>, &mut Infos) {
        (&mut routes.v6, &mut routes.infos)
    }
}

impl Routes {
    pub(crate) fn new(policy: ReplacePolicy) -> Self {
        let order = match policy {
            ReplacePolicy::Kernel => DEFAULT_ORDER.to_vec(),
            ReplacePolicy::Fpm => vec![RT_TABLE_MAIN],
        };
        Self {
            policy,
            v4: Tables::new(order.clone()),
            v6: Tables::new(order),
            infos: Infos::default(),
            nexthops: Nexthops::default(),
            interfaces: InterfaceMap::new(),
            mark: 0,
            dying: false,
            audit: None,
            out: Vec::new(),
        }
    }

    /// Returns the changes since the last call, in an order in which they can be applied.
    pub(crate) fn take_events(&mut self) -> Vec<SourceEvent> {
        self.flush(None);
        std::mem::take(&mut self.out)
    }

    /// Appends an event of another kind to those already queued.
    pub(crate) fn push(&mut self, event: SourceEvent) {
        self.out.push(event);
    }

    /// Returns the number of routes in the tables that are looked up, without own addresses.
    pub(crate) fn count(&self) -> usize {
        self.v4.count(RT_TABLE_LOCAL) + self.v6.count(RT_TABLE_LOCAL)
    }

    /// Returns the number of nexthop objects.
    pub(crate) fn groups(&self) -> usize {
        self.nexthops.all.len()
    }

    /// Handles a route notification. `flags` are its `NLM_F_*`.
    pub(crate) fn on_notification(
        &mut self,
        flags: u16,
        gone: bool,
        m: RouteMessage,
    ) -> Result<(), Skipped> {
        let arrival = match self.policy {
            ReplacePolicy::Kernel => Arrival::Notification(flags),
            ReplacePolicy::Fpm => Arrival::Only,
        };
        self.flush(None);
        if let Some(audit) = &mut self.audit {
            audit.touch(m.table, m.prefix);
        }
        self.route(arrival, gone, m)
    }

    /// Handles a route of a dump of all routes.
    pub(crate) fn dumped(&mut self, message: RouteMessage) -> Result<(), Skipped> {
        self.route(Arrival::Dump, false, message)
    }

    fn route(&mut self, arrival: Arrival, gone: bool, m: RouteMessage) -> Result<(), Skipped> {
        let (key, dead) = self.info_key(&m, gone)?;
        match m.prefix {
            IpNet::V4(net) => self.change(Key4::new(net), &m, key, dead, arrival, gone),
            IpNet::V6(net) => self.change(Key6::new(net), &m, key, dead, arrival, gone),
        }
        Ok(())
    }

    /// Returns the info of a route message and its dead hops, or the reason for skipping the
    /// message.
    fn info_key(&self, m: &RouteMessage, gone: bool) -> Result<(InfoKey, u64), Skipped> {
        if m.cloned || m.kind == RTN_MULTICAST || is_reserved(m.prefix) {
            return Err(Skipped::Silently);
        }
        if m.tos != 0 {
            return Err(Skipped::Ignored("routes with a TOS"));
        }
        if m.from {
            return Err(Skipped::Ignored("routes for packets from certain sources"));
        }
        let fpm = self.policy == ReplacePolicy::Fpm;
        // For the kernel, rules may look up any table.
        if fpm && m.table != RT_TABLE_MAIN && self.v4.vrf_of(m.table).is_none() {
            return Err(Skipped::Ignored(
                "zebra's routes of tables other than main and those of VRFs",
            ));
        }
        if m.kind == RTN_UNICAST && m.hops.is_empty() && m.nexthop.is_none() && !gone {
            return Err(Skipped::Wrong("a route without a next hop"));
        }
        let ipv6 = matches!(m.prefix, IpNet::V6(_));
        let mut hops = m.hops.clone();
        let mut dead = m.dead;
        if ipv6 {
            // Messages begin with the changed path.
            hops.sort_unstable();
            dead = 0;
        }
        let own = match (m.prefix, m.source) {
            (IpNet::V4(_), Some(source)) => m.prefix.contains(&source),
            (IpNet::V4(_), None) => false,
            (IpNet::V6(net), _) => net.prefix_len() < 128,
        };
        let direct = hops.iter().all(|hop| hop.via.is_none()) && !hops.is_empty();
        let connected =
            !fpm && m.kind == RTN_UNICAST && m.protocol == RTPROT_KERNEL && direct && own;
        // IPv6 routes lose their preferred source without a message, and nothing here depends on
        // it.
        let source = m.source.filter(|_| !ipv6 && !fpm);
        let (kind, protocol, scope, nexthop) = (m.kind, m.protocol, m.scope, m.nexthop);
        let key = InfoKey { ipv6, kind, protocol, scope, connected, source, nexthop, hops };
        Ok((key, dead))
    }

    fn intern(&mut self, key: InfoKey) -> u32 {
        let Self { infos, nexthops, interfaces, policy, .. } = self;
        let kind = |id| nexthops.kind(policy.source(), id);
        infos.intern(key, |key| resolve(*policy, key, 0, interfaces, kind))
    }

    fn change<K: Of>(
        &mut self,
        key: K,
        m: &RouteMessage,
        info: InfoKey,
        dead: u64,
        arrival: Arrival,
        gone: bool,
    ) {
        let mut list = List::from_slice(K::of(self).table(m.table).get(key));
        let metric = m.metric;
        if gone {
            if arrival == Arrival::Only {
                list.clear();
            } else {
                match list::find(&list, metric, &info, &self.infos) {
                    Removal::Unknown => return,
                    Removal::Whole(at) => drop(list.remove(at)),
                    Removal::Paths(at, left) => {
                        let number = self.intern(left);
                        list[at] = Variant::new(metric, number, self.mark);
                    }
                }
            }
            self.put(m.table, key, &list);
            return;
        }
        let number = self.intern(info);
        let new = Variant::new(metric, number, self.mark);
        list::add(&mut list, new, arrival, self.mark, &self.infos);
        self.put(m.table, key, &list);
        self.set_dead(number, dead);
    }

    /// Sets the routes of a prefix in this table, and reports the effects.
    fn put<K: Of>(&mut self, table: u32, key: K, list: &[Variant]) {
        let affected = K::of(self).affected(table, key);
        let old = List::from_slice(K::of(self).table(table).get(key));
        list.iter().for_each(|variant| self.infos.refer(variant.info()));
        let throws = |infos: &Infos, list: &[Variant]| {
            list.iter().filter(|v| infos.get(v.info()).key.kind == RTN_THROW).count()
        };
        let (gained, lost) = (throws(&self.infos, list), throws(&self.infos, &old));
        // The first throw route affects the prefixes within it.
        let affected = if gained == 0 || K::of(self).throws > 0 {
            affected
        } else {
            K::of(self).throws += 1;
            let affected = K::of(self).affected(table, key);
            K::of(self).throws -= 1;
            affected
        };
        let before: Vec<(K, Effects)> = match &affected {
            Affected::None => Vec::new(),
            Affected::Itself => vec![(key, effects(&old))],
            Affected::Several(keys) => {
                let (tables, infos) = K::split(self);
                keys.iter().map(|&key| (key, tables.effects(key, infos))).collect()
            }
        };
        let tables = K::of(self);
        tables.throws = tables.throws + gained - lost;
        tables.table(table).set(key, list);
        for (at, before) in before {
            let after = match affected {
                Affected::Several(_) => {
                    let (tables, infos) = K::split(self);
                    tables.effects(at, infos)
                }
                _ => effects(list),
            };
            self.send(VrfId::DEFAULT, at, &before, &after);
        }
        if let Some(vrf) = K::of(self).vrf_of(table) {
            let before = effects_alone(&old, &self.infos);
            let after = effects_alone(list, &self.infos);
            self.send(vrf, key, &before, &after);
        }
        old.iter().for_each(|variant| self.infos.release(variant.info()));
        old.iter().for_each(|variant| self.infos.sweep(variant.info()));
    }

    /// Reports the change of a prefix's effects.
    fn send<K: Key>(&mut self, vrf: VrfId, key: K, before: &Effects, after: &Effects) {
        let place = (self.policy.source(), vrf, key.net());
        send(&self.infos, place, &mut self.out, before, after);
    }

    /// Sets the hops of an info that the kernel does not use although it has not dropped its
    /// routes.
    fn set_dead(&mut self, number: u32, dead: u64) {
        if self.infos.get(number).dead == dead {
            return;
        }
        self.infos.get_mut(number).dead = dead;
        if self.resolve_again(number) {
            self.send_again();
        }
    }

    /// Resolves an info again; returns true if the result has changed.
    fn resolve_again(&mut self, number: u32) -> bool {
        let Self { infos, nexthops, interfaces, policy, .. } = self;
        let source = policy.source();
        let info = infos.get_mut(number);
        let kind = |id| nexthops.kind(source, id);
        let new = resolve(*policy, &info.key, info.dead, interfaces, kind);
        if new == info.resolved {
            return false;
        }
        let old = std::mem::replace(&mut info.resolved, new);
        info.previous.get_or_insert(old);
        true
    }

    /// Reports again all routes whose infos have been resolved again.
    fn send_again(&mut self) {
        self.send_again_of::<Key4>();
        self.send_again_of::<Key6>();
        self.infos.iter_mut().for_each(|(_, info)| info.previous = None);
    }

    fn send_again_of<K: Of>(&mut self) {
        let (tables, infos) = K::split(self);
        let changed = |list: &[Variant]| {
            list.iter().any(|variant| infos.get(variant.info()).previous.is_some())
        };
        let mut keys = Vec::new();
        for table in tables.order.iter().filter_map(|id| tables.all.get(id)) {
            keys.extend(table.iter().filter(|(_, list)| changed(list)).map(|(key, _)| key));
        }
        if tables.order.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
        for key in keys {
            let (tables, infos) = K::split(self);
            let effects = tables.effects(key, infos);
            self.send(VrfId::DEFAULT, key, &effects, &effects);
        }
        let (tables, infos) = K::split(self);
        let changed = |list: &[Variant]| {
            list.iter().any(|variant| infos.get(variant.info()).previous.is_some())
        };
        let mut of_vrfs = Vec::new();
        for (table, vrf) in tables.of_vrfs() {
            let changed = table.iter().filter(|(_, list)| changed(list));
            of_vrfs.extend(changed.map(|(key, list)| (vrf, key, effects_alone(list, infos))));
        }
        for (vrf, key, effects) in of_vrfs {
            self.send(vrf, key, &effects, &effects);
        }
    }

    /// Handles a new or changed nexthop object.
    pub(crate) fn set_nexthop(&mut self, message: NexthopMessage) -> Result<(), Skipped> {
        let NexthopMessage { id, nexthop } = message;
        if let Nexthop::Group { members, .. } = &nexthop
            && members.iter().any(|(member, _)| *member == id)
        {
            return Err(Skipped::Wrong("a nexthop group that is its own member"));
        }
        self.flush(None);
        self.touch_nexthop(id);
        self.nexthops.set(id, nexthop, self.mark);
        let mut changed = self.nexthops.parents(id);
        changed.insert(0, id);
        self.refresh(&changed);
        Ok(())
    }

    /// Handles the removal of a nexthop object.
    pub(crate) fn remove_nexthop(&mut self, id: u32) {
        let groups = self.nexthops.parents(id);
        groups.iter().chain([&id]).for_each(|id| self.touch_nexthop(*id));
        let Some(object) = self.nexthops.remove(id) else { return };
        let mut changed = Vec::new();
        for group in groups {
            match self.nexthops.all.get_mut(&group).map(|object| &mut object.nexthop) {
                Some(Nexthop::Group { members, .. }) if self.policy == ReplacePolicy::Kernel => {
                    members.retain(|(member, _)| *member != id);
                    if members.is_empty() {
                        self.remove_nexthop(group);
                        continue;
                    }
                    changed.push(group);
                }
                _ => changed.push(group),
            }
        }
        self.refresh(&changed);
        if self.policy == ReplacePolicy::Kernel {
            for number in self.infos.over(id) {
                self.infos.get_mut(number).dying = true;
                self.dying = true;
            }
        }
        if object.sent.is_some() {
            let key = GroupKey::new(self.policy.source(), id);
            self.out.push(SourceEvent::Group { key, change: Change::Withdraw });
        }
    }

    fn touch_nexthop(&mut self, id: u32) {
        if let Some(audit) = &mut self.audit {
            audit.touch_nexthop(id);
        }
    }

    /// Reports changes of nexthop objects.
    fn refresh(&mut self, ids: &[u32]) {
        let source = self.policy.source();
        let mut moved = false;
        let mut withdrawn = Vec::new();
        for &id in ids {
            let derived = self.nexthops.derive(id, self.policy, &self.interfaces);
            let Some(object) = self.nexthops.all.get_mut(&id) else { continue };
            let key = GroupKey::new(source, id);
            let was_sent = object.sent.is_some();
            object.host = derived == Derived::Host;
            match derived {
                Derived::Group(spec) => {
                    if object.sent.as_ref() != Some(&spec) {
                        object.sent = Some(spec.clone());
                        self.out.push(SourceEvent::Group { key, change: Change::Set(spec) });
                    }
                }
                Derived::Host | Derived::Nothing => {
                    if object.sent.take().is_some() {
                        withdrawn.push(key);
                    }
                }
            }
            let sent = object.sent.is_some();
            for number in self.infos.over(id) {
                moved |= self.resolve_again(number);
                if sent && !was_sent {
                    // The RIB has dropped the routes of a group that it lost.
                    self.infos.get_mut(number).previous.get_or_insert(Resolved::Silent);
                    moved = true;
                }
            }
        }
        if moved {
            self.send_again();
        }
        let withdrawn = withdrawn.into_iter();
        self.out.extend(withdrawn.map(|key| SourceEvent::Group { key, change: Change::Withdraw }));
    }

    /// Sets the state of an interface; `None`: no interface has this index any more.
    pub(crate) fn set_interface(&mut self, index: u32, interface: Option<Interface>) {
        let old = match interface {
            Some(interface) => self.interfaces.insert(index, interface),
            None => self.interfaces.remove(&index),
        };
        if old == interface {
            return;
        }
        self.flush(None);
        if old.map(|old| old.port) != interface.map(|new| new.port) {
            let mut ids = self.nexthops.over(index);
            let groups: Vec<u32> = ids.iter().flat_map(|id| self.nexthops.parents(*id)).collect();
            ids.extend(groups);
            self.refresh(&ids);
        }
        self.resolve_over(index);
    }

    /// Resolves all routes over an interface again.
    fn resolve_over(&mut self, index: u32) {
        let over = |key: &InfoKey| key.hops.iter().any(|hop| hop.interface == index);
        let infos = self.infos.iter_mut().filter(|(_, info)| over(&info.key));
        let numbers: Vec<u32> = infos.map(|(number, _)| number).collect();
        let mut moved = false;
        for number in numbers {
            moved |= self.resolve_again(number);
        }
        if moved {
            self.send_again();
        }
    }

    /// Handles an interface that was set down: the kernel has dropped the routes that lead over it
    /// alone (`fib_sync_down_dev`, `fib6_ifdown`), except own IPv4 addresses.
    pub(crate) fn interface_down(&mut self, index: u32) {
        self.kill(index, false, |_| true);
    }

    /// Handles the removal of an interface: the kernel has dropped all IPv4 routes that led over
    /// it, with other hops or without, and the IPv6 hops over it.
    pub(crate) fn interface_gone(&mut self, index: u32) {
        self.kill(index, true, |_| true);
        for (_, info) in self.infos.iter_mut().filter(|(_, info)| !info.key.ipv6) {
            if info.key.hops.iter().any(|hop| hop.interface == index) {
                info.dying = true;
                self.dying = true;
            }
        }
        self.flush(None);
        let over = |key: &InfoKey| key.hops.iter().any(|hop| hop.interface == index);
        let mut left = Vec::new();
        for (&id, table) in &self.v6.all {
            for (key, list) in table.iter() {
                if list.iter().any(|variant| over(&self.infos.get(variant.info()).key)) {
                    left.push((id, key, List::from_slice(list)));
                }
            }
        }
        for (id, key, mut list) in left {
            for variant in &mut list {
                let mut info = self.infos.get(variant.info()).key.clone();
                if over(&info) {
                    info.hops.retain(|hop| hop.interface != index);
                    let number = self.intern(info);
                    *variant = Variant::new(variant.metric, number, variant.mark());
                }
            }
            self.put(id, key, &list);
        }
    }

    /// Handles the removal of an interface's last IPv4 address (`fib_disable_ip`).
    pub(crate) fn last_address_gone(&mut self, index: u32) {
        self.kill(index, true, |key| !key.ipv6);
        let mut moved = Vec::new();
        for (number, info) in self.infos.iter_mut().filter(|(_, i)| !i.key.ipv6 && !i.dying) {
            let hops = info.key.hops.iter().take(64).enumerate();
            let lost = hops.filter(|(_, hop)| hop.interface == index);
            let lost = lost.fold(0, |bits, (place, _)| bits | 1 << place);
            if lost != 0 {
                moved.push((number, info.dead | lost));
            }
        }
        moved.into_iter().for_each(|(number, dead)| self.set_dead(number, dead));
    }

    /// Handles an interface that was set up or received an IPv4 address: hops over it are used
    /// again (`fib_sync_up`).
    pub(crate) fn interface_alive(&mut self, index: u32) {
        let mut moved = Vec::new();
        for (number, info) in self.infos.iter_mut().filter(|(_, info)| info.dead != 0) {
            let hops = info.key.hops.iter().take(64).enumerate();
            let back = hops.filter(|(_, hop)| hop.interface == index);
            let back = back.fold(0, |bits, (place, _)| bits | 1 << place);
            moved.push((number, info.dead & !back));
        }
        moved.into_iter().for_each(|(number, dead)| self.set_dead(number, dead));
    }

    /// Removes the nexthop objects over an interface without carrier (`nexthop_flush_dev`).
    pub(crate) fn carrier_lost(&mut self, index: u32) {
        self.nexthops.over(index).into_iter().for_each(|id| self.remove_nexthop(id));
    }

    /// Handles an address that no interface has any more: the kernel has dropped the routes of the
    /// main table that prefer it as source (`fib_sync_down_addr`).
    pub(crate) fn address_gone(&mut self, address: Ipv4Addr) {
        self.flush(None);
        for (_, info) in self.infos.iter_mut() {
            if info.key.source == Some(IpAddr::V4(address)) {
                info.dying = true;
                self.dying = true;
            }
        }
        self.flush(Some(RT_TABLE_MAIN));
    }

    /// Marks the infos whose hops are all over this interface or over dead ones.
    fn kill(&mut self, index: u32, forced: bool, which: impl Fn(&InfoKey) -> bool) {
        let Self { infos, interfaces, dying, .. } = self;
        for (_, info) in infos.iter_mut().filter(|(_, info)| which(&info.key)) {
            let key = &info.key;
            let spared = !key.ipv6 && key.scope == RT_SCOPE_HOST && !forced;
            let dead = |(place, hop): (usize, &super::message::Hop)| {
                hop.interface == index
                    || place < 64 && info.dead >> place & 1 != 0
                    || interfaces.get(&hop.interface).is_some_and(|other| !other.up)
            };
            let touched = key.hops.iter().any(|hop| hop.interface == index);
            if touched && !spared && key.hops.iter().enumerate().all(dead) {
                info.dying = true;
                *dying = true;
            }
        }
    }

    /// Removes the routes whose infos are dying, in one table or in all.
    fn flush(&mut self, only: Option<u32>) {
        if !std::mem::take(&mut self.dying) {
            return;
        }
        self.flush_of::<Key4>(only);
        self.flush_of::<Key6>(only);
        self.infos.iter_mut().for_each(|(_, info)| info.dying = false);
    }

    fn flush_of<K: Of>(&mut self, only: Option<u32>) {
        self.retain::<K>(|id, _, variant, infos| {
            only.is_some_and(|only| only != id) || !infos.get(variant.info()).dying
        });
    }

    /// Removes the routes that are not to be kept, and reports the removals.
    fn retain<K: Of>(&mut self, keep: impl Fn(u32, K, Variant, &Infos) -> bool) {
        let (tables, infos) = K::split(self);
        let mut changed = Vec::new();
        for (&id, table) in &tables.all {
            let stays = |key, list: &[Variant]| list.iter().all(|v| keep(id, key, *v, infos));
            let keys = table.iter().filter(|(key, list)| !stays(*key, list));
            changed.extend(keys.map(|(key, _)| (id, key)));
        }
        for (id, key) in changed {
            if let Some(audit) = &mut self.audit {
                audit.touch(id, key.net());
            }
            let mut list = List::from_slice(K::of(self).table(id).get(key));
            let infos = &self.infos;
            list.retain(|variant| keep(id, key, *variant, infos));
            self.put(id, key, &list);
        }
    }

    /// Sets the tables in use, in the order in which they are looked up.
    pub(crate) fn set_order(&mut self, ipv6: bool, order: Vec<u32>) {
        if ipv6 { self.set_order_of::<Key6>(order) } else { self.set_order_of::<Key4>(order) }
    }

    fn set_order_of<K: Of>(&mut self, order: Vec<u32>) {
        if K::of(self).order == order {
            return;
        }
        self.flush(None);
        let (tables, infos) = K::split(self);
        let keys = tables.keys_of([&tables.order, &order]);
        let before: Vec<Effects> = keys.iter().map(|key| tables.effects(*key, infos)).collect();
        tables.order = order;
        let after: Vec<Effects> = keys.iter().map(|key| tables.effects(*key, infos)).collect();
        for (key, (before, after)) in keys.iter().zip(before.iter().zip(&after)) {
            self.send(VrfId::DEFAULT, *key, before, after);
        }
    }

    /// Sets the tables of VRFs other than the default one. Tables that the rules look up for all
    /// packets still belong to the default VRF too.
    pub(crate) fn set_vrfs(&mut self, vrfs: &BTreeMap<u32, VrfId>) {
        if self.v4.vrfs == *vrfs {
            return;
        }
        self.flush(None);
        self.set_vrfs_of::<Key4>(vrfs);
        self.set_vrfs_of::<Key6>(vrfs);
    }

    fn set_vrfs_of<K: Of>(&mut self, vrfs: &BTreeMap<u32, VrfId>) {
        let before = std::mem::replace(&mut K::of(self).vrfs, vrfs.clone());
        let others = |some: &BTreeMap<u32, VrfId>, others: &BTreeMap<u32, VrfId>| -> Vec<_> {
            let other = |(table, vrf): &(&u32, &VrfId)| others.get(*table) != Some(*vrf);
            some.iter().filter(other).map(|(table, vrf)| (*table, *vrf)).collect()
        };
        // A VRF may have changed its table: the routes of the old one are withdrawn first.
        for (table, vrf) in others(&before, vrfs) {
            self.send_table::<K>(table, vrf, false);
        }
        for (table, vrf) in others(vrfs, &before) {
            self.send_table::<K>(table, vrf, true);
        }
    }

    /// Announces or withdraws all routes of a table in a VRF.
    fn send_table<K: Of>(&mut self, table: u32, vrf: VrfId, present: bool) {
        let (tables, infos) = K::split(self);
        let Some(table) = tables.all.get(&table) else { return };
        let all: Vec<_> =
            table.iter().map(|(key, list)| (key, effects_alone(list, infos))).collect();
        let none = Effects::new();
        for (key, effects) in &all {
            let (before, after) = if present { (&none, effects) } else { (effects, &none) };
            self.send(vrf, *key, before, after);
        }
    }

    /// Begins a dump of all nexthop objects and routes.
    pub(crate) fn begin_sync(&mut self) {
        self.flush(None);
        self.next_mark();
        self.audit = None;
    }

    /// Advances the number of the dump, so that an abandoned one has no effect.
    fn next_mark(&mut self) {
        self.mark = (self.mark + 1) % table::MARKS;
    }

    /// Ends the dump and removes what it did not contain. Returns the number of prefixes that
    /// lost a route plus that of nexthop objects removed.
    pub(crate) fn end_sync(&mut self) -> usize {
        let mark = self.mark;
        let before = (self.routes_held(), self.nexthops.all.len());
        self.retain::<Key4>(|_, _, variant, _| variant.mark() == mark);
        self.retain::<Key6>(|_, _, variant, _| variant.mark() == mark);
        let stale = self.nexthops.all.iter().filter(|(_, object)| object.mark != mark);
        let stale: Vec<u32> = stale.map(|(id, _)| *id).collect();
        stale.into_iter().for_each(|id| self.remove_nexthop(id));
        self.flush(None);
        let routes = before.0.saturating_sub(self.routes_held());
        routes + before.1.saturating_sub(self.nexthops.all.len())
    }

    fn routes_held(&self) -> usize {
        let v4: usize = self.v4.all.values().map(table::Table::len).sum();
        v4 + self.v6.all.values().map(table::Table::len).sum::<usize>()
    }

    /// Removes everything and reports the removals.
    pub(crate) fn clear(&mut self) {
        self.begin_sync();
        self.end_sync();
    }
}

/// Returns true for ranges that are never forwarded, regardless of routes.
fn is_reserved(prefix: IpNet) -> bool {
    // The first byte excludes nearly all prefixes.
    let suspicious = match prefix {
        IpNet::V4(net) => matches!(net.network().octets()[0], 0 | 127 | 224..),
        IpNet::V6(net) => matches!(net.network().octets()[0], 0 | 0xfe..),
    };
    suspicious && rib::reserved_range(&prefix).is_some()
}

/// Reports the change of a prefix's effects.
fn send(
    infos: &Infos,
    (source, vrf, prefix): (RouteSource, VrfId, IpNet),
    out: &mut Vec<SourceEvent>,
    before: &Effects,
    after: &Effects,
) {
    let was = |effect: &Effect| match *effect {
        Effect::Info(number) => infos.sent(number),
        Effect::Unreachable => &UNREACHABLE,
    };
    let is = |effect: &Effect| match *effect {
        Effect::Info(number) => infos.resolved(number),
        Effect::Unreachable => &UNREACHABLE,
    };
    let was_local = before.iter().any(|(_, effect)| *was(effect) == Resolved::Local);
    let is_local = after.iter().any(|(_, effect)| *is(effect) == Resolved::Local);
    if was_local != is_local {
        out.push(SourceEvent::LocalAddress { vrf, prefix, present: is_local });
    }
    let route = |metric: u32, change| SourceEvent::Route {
        source,
        vrf,
        prefix,
        metric: u64::from(metric),
        change,
    };
    // The replacement of a route is reported before the route is withdrawn.
    for (metric, effect) in after {
        let Resolved::Route(kind) = is(effect) else { continue };
        let old = before.iter().find(|(other, _)| other == metric).map(|(_, effect)| was(effect));
        if old != Some(is(effect)) {
            out.push(route(*metric, Change::Set(in_vrf(kind, vrf))));
        }
    }
    for (metric, effect) in before {
        let stays = |(other, effect): &(u32, Effect)| {
            other == metric && matches!(is(effect), Resolved::Route(_))
        };
        if matches!(was(effect), Resolved::Route(_)) && !after.iter().any(stays) {
            out.push(route(*metric, Change::Withdraw));
        }
    }
}

/// Returns the route kind with its gateways resolved in the route's own VRF.
fn in_vrf(kind: &RouteKind, vrf: VrfId) -> RouteKind {
    let mut kind = kind.clone();
    if let RouteKind::Unicast(paths) = &mut kind {
        let recursive = paths.iter_mut().filter(|path| path.interface.is_none());
        recursive.for_each(|path| path.vrf = vrf);
    }
    kind
}

/// Result for a prefix that throw routes exclude from all tables.
static UNREACHABLE: Resolved = Resolved::Route(RouteKind::Unreachable);
