//! State of the kernel: links, addresses, neighbours, rules and, by [`Routes`], routes.
//!
//! A pure state machine without input or output, so that any sequence of messages can be replayed
//! in a test.
//!
//! ```text
//!   messages --> Model --> links, addresses, neighbours, rules --> events
//!                  +-----> Routes ------------------------------^
//! ```
//!
//! # Dumps
//!
//! Everything is read in parts, in the order of [`Part::ALL`]: the objects that routes depend on
//! come before the routes. Objects that a part did not contain are removed when the part ends.

mod found;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;
use wire::MacAddr;
use wire::ethernet::ETHERTYPE_VLAN;

use super::event::{Departure, HostVlan, HostVlans, KernelVrf, NeighbourState, SourceEvent};
use super::message::{
    AddressMessage, IFF_LOWER_UP, IFF_RUNNING, IFF_UP, LinkMessage, Malformed, Message,
    NLMSG_ERROR, NeighbourMessage, Nexthop, RTM_GETADDR, RTM_GETLINK, RTM_GETNEIGH, RTM_GETNEXTHOP,
    RTM_GETROUTE, RTM_GETRULE, Raw, RuleMessage, VlanDevice,
};
use super::routes::{DEFAULT_ORDER, Interface, ReplacePolicy, Routes, Skipped};
use super::{Interfaces, KernelConfig};
use crate::rib;
use found::{Finder, TAGS_MOST};

/// Most VLAN devices without frames that are reported.
const IDLE_VLANS_REPORTED: usize = 16;

/// Most VLAN devices on an interface that are looked at for that when it becomes a port.
const IDLE_VLANS_LOOKED_AT: usize = 4096;

/// A part of a dump of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Part {
    Links,
    Addresses,
    Neighbours,
    Rules,
    Nexthops,
    Routes4,
    Routes6,
}

impl Part {
    /// All parts in the order of a dump. Without routes only the first three are read.
    pub(super) const ALL: [Self; 7] = [
        Self::Links,
        Self::Addresses,
        Self::Neighbours,
        Self::Rules,
        Self::Nexthops,
        Self::Routes4,
        Self::Routes6,
    ];

    /// Returns the request for it: type, family, bytes of the fixed part.
    pub(super) fn request(self) -> (u16, u8, usize) {
        use super::message::{AF_INET, AF_INET6, AF_UNSPEC};
        match self {
            Self::Links => (RTM_GETLINK, AF_UNSPEC, 16),
            Self::Addresses => (RTM_GETADDR, AF_UNSPEC, 8),
            Self::Neighbours => (RTM_GETNEIGH, AF_UNSPEC, 12),
            Self::Rules => (RTM_GETRULE, AF_UNSPEC, 12),
            Self::Nexthops => (RTM_GETNEXTHOP, AF_UNSPEC, 8),
            Self::Routes4 => (RTM_GETROUTE, AF_INET, 12),
            Self::Routes6 => (RTM_GETROUTE, AF_INET6, 12),
        }
    }

    /// Returns its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::Addresses => "addresses",
            Self::Neighbours => "neighbours",
            Self::Rules => "rules",
            Self::Nexthops => "nexthop objects",
            Self::Routes4 => "IPv4 routes",
            Self::Routes6 => "IPv6 routes",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Link {
    name: String,
    flags: u32,
    mtu: u32,
    port: Option<InterfaceId>,
    all_multicast: bool,
    /// The routing table of a VRF device.
    table: Option<u32>,
    /// The index of the device that it is in.
    master: Option<u32>,
    /// Of a MACVLAN device: the interface that it is on, and its MAC.
    macvlan: Option<(u32, MacAddr)>,
    /// Properties of a VLAN device.
    vlan: Option<VlanDevice>,
    mac: Option<MacAddr>,
    seen: bool,
}

impl Link {
    fn up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Returns true if nexthop objects over it are alive: the condition of `nh_netdev_event`.
    fn running(&self) -> bool {
        self.up() && self.flags & (IFF_RUNNING | IFF_LOWER_UP) != 0
    }

    /// Returns the message that describes its present state.
    fn message(&self, index: u32) -> LinkMessage {
        LinkMessage {
            index,
            name: Some(self.name.clone()),
            flags: self.flags,
            mtu: Some(self.mtu),
            all_multicast: self.all_multicast,
            table: self.table,
            master: self.master,
            macvlan: self.macvlan,
            vlan: self.vlan,
            mac: self.mac,
            moved: false,
        }
    }

    fn event(&self, port: InterfaceId) -> SourceEvent {
        SourceEvent::Link {
            port,
            admin_up: self.up(),
            carrier: self.flags & IFF_LOWER_UP != 0,
            mtu: u16::try_from(self.mtu).unwrap_or(u16::MAX),
            gone: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    address: IpNet,
    length: u8,
    seen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbour {
    mac: Option<MacAddr>,
    state: NeighbourState,
    seen: bool,
}

/// Counts of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) messages: u64,
    pub(super) errors: u64,
    pub(super) ignored: u64,
}

/// Places of host interfaces in VRF devices: what was ordered, by their indexes. An interface that the operator has put
/// elsewhere since then stays there, and one in a bridge or bond is not touched.
#[derive(Debug, Default)]
pub(super) struct Places {
    ordered: BTreeMap<u32, Option<u32>>,
    /// True if something has changed since the last look.
    due: bool,
}

impl Places {
    /// Returns true if an interface is to be moved from one device to another; `known`: the devices of configured VRFs.
    fn change(
        &mut self,
        index: u32,
        master: Option<u32>,
        wanted: Option<u32>,
        known: &BTreeSet<u32>,
    ) -> bool {
        let ordered = self.ordered.get(&index).copied();
        if master == wanted {
            self.ordered.insert(index, wanted);
            return false;
        }
        let is_ours = |master: u32| known.contains(&master) || ordered == Some(Some(master));
        // Each place is ordered once.
        let due = ordered != Some(wanted) && master.is_none_or(is_ours);
        if due {
            self.ordered.insert(index, wanted);
        }
        due
    }

    /// Forgets an interface or device.
    fn gone(&mut self, index: u32) {
        self.ordered.retain(|place, device| *place != index && *device != Some(index));
        self.due = true;
    }
}

/// State of the kernel as far as its messages report it.
#[derive(Debug)]
pub(super) struct Model {
    ports: HashMap<String, InterfaceId>,
    vlans: BTreeMap<InterfaceId, HostVlan>,
    /// The advice reported about VLAN devices on host interfaces that get no frames, by their indexes.
    idle_vlans: BTreeMap<u32, String>,
    finder: Finder,
    /// The VRFs besides the default one.
    vrfs: Vec<KernelVrf>,
    /// The tables of these VRFs.
    tables: BTreeMap<u32, VrfId>,
    /// Places of host interfaces in VRF devices.
    pub(super) places: Places,
    /// True to follow routes.
    pub(super) with_routes: bool,
    /// True if routes that cannot be followed exactly lead to the kernel.
    exact: bool,
    links: BTreeMap<u32, Link>,
    addresses: BTreeMap<u32, Vec<Address>>,
    neighbours: HashMap<(u32, IpAddr), Neighbour>,
    rules: Vec<RuleMessage>,
    /// Addresses of interfaces that are not ports, reported when routes are not followed.
    locals: HashSet<IpNet>,
    /// The virtual MACs that were reported.
    virtual_macs: BTreeSet<(InterfaceId, MacAddr)>,
    pub(super) routes: Routes,
    pub(super) counts: Counts,
    /// Messages already logged.
    said: HashSet<&'static str>,
    /// True if an interface has become a port, whose neighbours were not reported before.
    pub(super) stale_ports: bool,
    interfaces_changed: bool,
    /// True until the addresses of another namespace have been read: parts of them are not reported.
    reading_addresses: bool,
    /// Neighbours of the namespace before that are still being resolved in this one.
    pub(super) resolving: HashSet<(InterfaceId, IpAddr)>,
}

/// Objects of a namespace that is left.
#[derive(Debug, Default)]
pub(super) struct Former {
    /// Ports with an interface, and if it takes all multicasts.
    ports: Vec<(InterfaceId, bool)>,
    /// The neighbours with a MAC.
    pub(super) neighbours: Vec<(InterfaceId, IpAddr)>,
    locals: HashSet<IpNet>,
    has_virtual_macs: bool,
}

impl Model {
    pub(super) fn new(config: &KernelConfig) -> Self {
        let mut model = Self {
            vrfs: config.vrfs.clone(),
            tables: BTreeMap::new(),
            places: Places::default(),
            ports: config.ports.iter().map(|(port, name)| (name.clone(), *port)).collect(),
            vlans: by_interface(config.vlans.vlans.clone()),
            idle_vlans: BTreeMap::new(),
            finder: Finder::new(&config.vlans),
            with_routes: config.following.routes,
            exact: config.following.exact,
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            neighbours: HashMap::new(),
            rules: Vec::new(),
            locals: HashSet::new(),
            virtual_macs: BTreeSet::new(),
            routes: Routes::new(ReplacePolicy::Kernel),
            counts: Counts::default(),
            said: HashSet::new(),
            stale_ports: false,
            interfaces_changed: true,
            reading_addresses: false,
            resolving: HashSet::new(),
        };
        model.follow_vrfs();
        model
    }

    /// Forgets the kernel's state, since it is that of another namespace from now on; what is configured stays. Routes
    /// and groups are withdrawn by a first reading, and the rest by [`Self::withdraw`] after it.
    pub(super) fn leave(&mut self) -> Former {
        let of_port = |(index, link): (&u32, &Link)| Some((*index, link.port?, link.all_multicast));
        let ports: Vec<_> = self.links.iter().filter_map(of_port).collect();
        let port_of: HashMap<u32, InterfaceId> =
            ports.iter().map(|(index, port, _)| (*index, *port)).collect();
        let resolved = self.neighbours.iter().filter(|(_, neighbour)| neighbour.mac.is_some());
        let neighbours =
            resolved.filter_map(|((index, address), _)| Some((*port_of.get(index)?, *address)));
        let former = Former {
            neighbours: neighbours.chain(self.resolving.iter().copied()).collect(),
            ports: ports.into_iter().map(|(_, port, all)| (port, all)).collect(),
            locals: std::mem::take(&mut self.locals),
            has_virtual_macs: !self.virtual_macs.is_empty(),
        };
        self.links.clear();
        self.idle_vlans.clear();
        self.finder.reading = true;
        self.addresses.clear();
        self.neighbours.clear();
        self.rules.clear();
        self.virtual_macs.clear();
        self.resolving.clear();
        self.places = Places::default();
        self.routes = Routes::new(ReplacePolicy::Kernel);
        self.tables.clear();
        self.follow_vrfs();
        (self.stale_ports, self.interfaces_changed) = (false, true);
        self.reading_addresses = true;
        former
    }

    /// Reports what a namespace that was left had and this one, which has been read, does not have.
    pub(super) fn withdraw(&mut self, former: Former) {
        for (port, all_multicast) in former.ports {
            let Some(index) = self.index_of(port) else {
                let (admin_up, carrier, gone) = (false, false, Some(Departure::Removed));
                self.routes.push(SourceEvent::Link { port, admin_up, carrier, mtu: 0, gone });
                self.routes.push(SourceEvent::Addresses { port, addresses: Vec::new() });
                continue;
            };
            let now = self.links.get(&index).is_some_and(|link| link.all_multicast);
            if all_multicast && !now {
                self.routes.push(SourceEvent::AllMulticast { port, on: false });
            }
        }
        for &prefix in former.locals.difference(&self.locals.clone()) {
            self.send_local(prefix, false);
        }
        if former.has_virtual_macs && self.virtual_macs.is_empty() {
            self.routes.push(SourceEvent::VirtualMacs(Vec::new()));
        }
    }

    /// Withdraws the neighbours of the namespace before that this one has not resolved.
    pub(super) fn give_up_resolving(&mut self) {
        for (port, address) in std::mem::take(&mut self.resolving) {
            let state = NeighbourState::Deleted;
            self.routes.push(SourceEvent::Neighbour { port, address, mac: None, state });
        }
    }

    /// Sets the VRFs besides the default one.
    pub(super) fn set_vrfs(&mut self, vrfs: Vec<KernelVrf>) {
        self.vrfs = vrfs;
        self.places.due = true;
        self.follow_vrfs();
    }

    /// Determines the tables of the VRFs: configured tables first, otherwise the table of the VRF
    /// device of the same name.
    fn follow_vrfs(&mut self) {
        let device = |name: &str| {
            self.links.values().find(|link| link.name == name).and_then(|link| link.table)
        };
        let table = |vrf: &KernelVrf| Some((vrf.table.or_else(|| device(&vrf.name))?, vrf.id));
        // A table configured for one VRF belongs to it, regardless of devices.
        let (named, others): (Vec<_>, Vec<_>) =
            self.vrfs.iter().partition(|vrf| vrf.table.is_some());
        let tables: BTreeMap<u32, VrfId> =
            others.into_iter().chain(named).filter_map(table).collect();
        if tables != self.tables {
            self.routes.set_vrfs(&tables);
            self.tables = tables;
            self.interfaces_changed = true;
        }
        self.find_in_vrfs();
    }

    /// Returns the host interfaces to be put into another VRF device, or into none, each once: their names, indexes and
    /// the device. Those of found VLANs are where they are wanted: such a VLAN is in the VRF whose device its own is in.
    pub(super) fn misplaced(&mut self) -> Vec<(String, u32, Option<u32>)> {
        if !std::mem::take(&mut self.places.due) {
            return Vec::new();
        }
        let devices: BTreeMap<VrfId, u32> =
            self.vrfs.iter().filter_map(|vrf| Some((vrf.id, self.device_of(vrf)?))).collect();
        let vrf_of: HashMap<InterfaceId, VrfId> =
            self.vrfs.iter().flat_map(|vrf| vrf.ports.iter().map(|port| (*port, vrf.id))).collect();
        let is_known: BTreeSet<u32> = devices.values().copied().collect();
        let is_found = |port: &InterfaceId| self.vlans.get(port).is_some_and(|vlan| vlan.is_found);
        let mut misplaced = Vec::new();
        for (&index, link) in &self.links {
            let Some(port) = link.port.filter(|port| !is_found(port)) else { continue };
            let wanted = vrf_of.get(&port).and_then(|vrf| devices.get(vrf)).copied();
            if self.places.change(index, link.master, wanted, &is_known) {
                misplaced.push((link.name.clone(), index, wanted));
            }
        }
        misplaced
    }

    /// Returns the VRF device of a VRF: that of its name, else one with its table.
    fn device_of(&self, vrf: &KernelVrf) -> Option<u32> {
        let tables =
            || self.tables.iter().filter(|(_, id)| **id == vrf.id).map(|(table, _)| *table);
        let devices = || self.links.iter().filter(|(_, link)| link.table.is_some());
        let named = devices().find(|(_, link)| link.name == vrf.name);
        let found = named.or_else(|| {
            devices().find(|(_, link)| tables().any(|table| link.table == Some(table)))
        });
        found.map(|(index, _)| *index)
    }

    /// Sets the ports, by the names of their interfaces: some interfaces become ports, others are
    /// no longer ports.
    pub(super) fn set_ports(&mut self, ports: &[(InterfaceId, String)]) {
        self.ports = ports.iter().map(|(port, name)| (name.clone(), *port)).collect();
        self.places.due = true;
        self.settle_ports(|_| true);
        self.settle_ports(|link| link.vlan.is_some());
        let reported = std::mem::take(&mut self.idle_vlans);
        let still = reported.into_iter().filter(|(index, _)| self.advice(*index).is_some());
        self.idle_vlans = still.collect();
        self.report_vlans(None);
        self.send_locals();
        self.send_virtual_macs();
    }

    /// Sets the VLANs: some of the kernel's VLAN devices become their host interfaces, others are none any more.
    pub(super) fn set_vlans(&mut self, vlans: HostVlans) {
        self.finder.follow(&vlans);
        self.vlans = by_interface(vlans.vlans);
    }

    /// Has those of the chosen interfaces become ports that are, and others cease to be.
    fn settle_ports(&mut self, is_chosen: impl Fn(&Link) -> bool) {
        let is_other = |link: &Link| self.port_of(&link.name, link.vlan) != link.port;
        let others = self.links.iter().filter(|(_, link)| is_chosen(link) && is_other(link));
        let messages: Vec<_> = others.map(|(index, link)| link.message(*index)).collect();
        messages.into_iter().for_each(|message| self.link(message));
    }

    /// Returns the port of an interface with this name; a VLAN whose host interface is the kernel's has only a device
    /// with its tag on its parent's.
    fn port_of(&self, name: &str, device: Option<VlanDevice>) -> Option<InterfaceId> {
        let port = self.ports.get(name).copied()?;
        let wanted = self.vlans.get(&port).filter(|vlan| vlan.in_kernel);
        let is_it = |wanted: &HostVlan| device.is_some_and(|device| self.has_tag(device, wanted));
        wanted.is_none_or(is_it).then_some(port)
    }

    /// Returns true if a VLAN device has a VLAN's frames.
    fn has_tag(&self, device: VlanDevice, vlan: &HostVlan) -> bool {
        let parent = device.parent.and_then(|parent| self.links.get(&parent)?.port);
        parent == Some(vlan.parent) && (device.protocol, device.id) == (vlan.protocol, vlan.id)
    }

    /// Reports the VLAN devices on this interface, or on any, that get no frames, as [`Self::report_vlan`].
    fn report_vlans(&mut self, on: Option<u32>) {
        let is_on = |device: VlanDevice| on.is_none() || device.parent == on;
        let on_it = self.links.iter().filter(|(_, link)| link.vlan.is_some_and(is_on));
        let on_it: Vec<u32> = on_it.map(|(index, _)| *index).take(IDLE_VLANS_LOOKED_AT).collect();
        on_it.into_iter().for_each(|index| self.report_vlan(index));
    }

    /// Reports a VLAN device on a host interface that gets no frames; the same advice once, and so many devices at most.
    fn report_vlan(&mut self, index: u32) {
        if let Some(advice) = self.new_advice(index) {
            tracing::warn!("kernel: {advice}");
            self.idle_vlans.insert(index, advice);
        }
    }

    /// Returns the advice about a VLAN device, unless it has been reported or too many others have.
    fn new_advice(&self, index: u32) -> Option<String> {
        let reported = self.idle_vlans.get(&index);
        if reported.is_none() && self.idle_vlans.len() >= IDLE_VLANS_REPORTED {
            return None;
        }
        self.advice(index).filter(|advice| reported != Some(advice))
    }

    /// Returns the way to have frames for a VLAN device that is on a host interface and is none.
    fn advice(&self, index: u32) -> Option<String> {
        if self.is_found(index) {
            return None;
        }
        let Link { name, vlan, .. } = self.links.get(&index).filter(|link| link.port.is_none())?;
        let device = (*vlan)?;
        let VlanDevice { parent, protocol, id, .. } = device;
        let Link { name: parent, port, .. } = self.links.get(&parent?)?;
        // The kernel has its frames.
        if self.finder.is_device((*port)?) {
            return None;
        }
        let kind = if protocol == ETHERTYPE_VLAN { "" } else { ", protocol = \"802.1ad\"" };
        let device_is = format!("VLAN device {name} on host interface {parent} gets no frames");
        if self.tags_of(device.parent?) >= TAGS_MOST {
            return Some(format!("{device_is}: they would have three tags"));
        }
        Some(match self.vlans.values().find(|vlan| self.has_tag(device, vlan)) {
            Some(vlan) => format!(
                "{device_is}: VLAN {id} there is vlan \"{}\" of the configuration; name it \"{name}\" and \
                 write host = \"kernel\" in it",
                vlan.name
            ),
            None => format!(
                "{device_is}; write turnpike.vlan \"{name}\" {{ parent = \"{parent}\", id = {id}{kind}, host = \
                 \"kernel\" }}"
            ),
        })
    }

    /// Returns the number of tags that a VLAN device puts on its frames, two at most.
    fn tags_of(&self, index: u32) -> usize {
        let parent = |index: u32| self.links.get(&index)?.vlan?.parent;
        std::iter::successors(parent(index), |index| parent(*index)).take(TAGS_MOST).count()
    }

    /// Returns true if an interface is a VLAN device, whose carrier is that of the interface that it is on.
    pub(super) fn is_vlan(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|link| link.vlan.is_some())
    }

    /// Handles a notification.
    pub(super) fn on_notification(&mut self, raw: &Raw<'_>) {
        if let Some(message) = self.understand(raw) {
            self.change(message, raw.flags, Message::is_delete(raw.kind));
        }
    }

    /// Handles a message of a dump of everything.
    pub(super) fn dumped(&mut self, raw: &Raw<'_>) {
        match self.understand(raw) {
            Some(Message::Route(route)) => {
                let result = self.routes.dumped(route);
                self.note(result);
            }
            Some(Message::Rule(rule)) => self.rules.push(rule),
            Some(message) => self.change(message, raw.flags, false),
            None => {}
        }
    }

    /// Compares a message of a dump with the state held.
    pub(super) fn compare(&mut self, raw: &Raw<'_>) {
        match self.understand(raw) {
            Some(Message::Route(route)) => self.routes.compare(&route),
            Some(Message::Nexthop(nexthop)) => self.routes.compare_nexthop(&nexthop),
            _ => {}
        }
    }

    fn understand(&mut self, raw: &Raw<'_>) -> Option<Message> {
        self.counts.messages += 1;
        let mut message = Message::parse(raw).inspect_err(|error| self.malformed(error)).ok()?;
        if let (true, Message::Route(route)) = (self.exact, &mut message) {
            route.leave_to_kernel();
        }
        Some(message)
    }

    /// Counts a malformed message.
    pub(super) fn malformed(&mut self, error: &Malformed) {
        self.counts.errors += 1;
        // The first ones are logged, further ones only counted.
        if self.counts.errors <= 10 {
            tracing::warn!("kernel: {error}; skipped");
        }
    }

    fn note(&mut self, result: Result<(), Skipped>) {
        match result {
            Ok(()) | Err(Skipped::Silently) => {}
            Err(Skipped::Ignored(what)) => {
                self.counts.ignored += 1;
                if self.said.insert(what) {
                    tracing::warn!("kernel: {what} are not followed; said once");
                }
            }
            Err(Skipped::Wrong(what)) => {
                let kind = NLMSG_ERROR;
                self.malformed(&Malformed::Value { kind, what });
            }
        }
    }

    fn change(&mut self, message: Message, flags: u16, gone: bool) {
        match message {
            Message::Link(link) if gone && link.moved => {
                self.link_gone(link.index, Departure::Moved)
            }
            Message::Link(link) if gone => self.link_gone(link.index, Departure::Removed),
            Message::Link(link) => self.link(link),
            Message::Address(address) => self.address(address, gone),
            Message::Neighbour(neighbour) => self.neighbour(neighbour, gone),
            Message::Rule(rule) => self.rule(rule, gone),
            Message::Route(_) | Message::Nexthop(_) if !self.with_routes => {}
            Message::Route(route) => {
                let result = self.routes.on_notification(flags, gone, route);
                self.note(result);
            }
            Message::Nexthop(nexthop) if gone => self.routes.remove_nexthop(nexthop.id),
            Message::Nexthop(nexthop) => {
                if nexthop.nexthop != Nexthop::Bridge {
                    let result = self.routes.set_nexthop(nexthop);
                    self.note(result);
                }
            }
            Message::Other => {}
        }
    }

    fn link(&mut self, message: LinkMessage) {
        let index = message.index;
        let old = self.links.get(&index).cloned();
        let known = old.clone().unwrap_or_default();
        let name = message.name.unwrap_or_else(|| known.name.clone());
        let link = Link {
            port: self.port_of(&name, message.vlan),
            name,
            flags: message.flags,
            mtu: message.mtu.unwrap_or(known.mtu),
            all_multicast: message.all_multicast,
            table: message.table,
            master: message.master,
            macvlan: message.macvlan,
            vlan: message.vlan,
            mac: message.mac,
            seen: true,
        };
        let is_vrf = known.table.is_some() || link.table.is_some();
        self.finder.due |= known.vlan.is_some() || link.vlan.is_some() || known.mac != link.mac;
        if known.port != link.port && old.is_some() {
            self.port_gone(index, Departure::Renamed);
            self.stale_ports = true;
        }
        if let Some(port) = link.port
            && old
                .as_ref()
                .is_none_or(|old| old.event(port) != link.event(port) || old.port != link.port)
        {
            self.routes.push(link.event(port));
        }
        let multicast = (link.port, link.all_multicast);
        self.send_multicast((known.port, known.all_multicast), multicast);
        self.interfaces_changed |= old.is_none() || known.port != link.port;
        let (was_up, is_up) = (known.up(), link.up());
        let carrier_lost = known.running() && !link.running();
        let new_port = link.port.filter(|_| known.port != link.port);
        self.routes.set_interface(index, Some(Interface { port: link.port, up: is_up }));
        let (is_other_port, is_vlan) = (known.port != link.port, link.vlan.is_some());
        self.finder.due |= is_other_port;
        let is_macvlan = known.macvlan.is_some() || link.macvlan.is_some();
        self.places.due |= is_vrf || new_port.is_some() || known.master != link.master;
        self.links.insert(index, link);
        if is_vrf {
            self.follow_vrfs();
        }
        if is_macvlan || new_port.is_some() {
            self.send_virtual_macs();
        }
        if was_up && !is_up {
            self.routes.interface_down(index);
        }
        if carrier_lost {
            self.routes.carrier_lost(index);
        }
        if !was_up && is_up {
            self.routes.interface_alive(index);
        }
        if new_port.is_some() {
            self.send_addresses(index);
        }
        if is_vlan {
            self.report_vlan(index);
        }
        if is_other_port {
            self.settle_ports(|link| link.vlan.is_some_and(|device| device.parent == Some(index)));
            self.report_vlans(Some(index));
        }
    }

    fn send_multicast(
        &mut self,
        old: (Option<InterfaceId>, bool),
        new: (Option<InterfaceId>, bool),
    ) {
        let was = old.1 && old.0 == new.0;
        if let (Some(port), on) = new
            && on != was
        {
            self.routes.push(SourceEvent::AllMulticast { port, on });
        }
    }

    /// Handles the answer to a request for an interface's state. Only the state of which the kernel
    /// sends no notifications is used, as the rest may be older than a notification.
    pub(super) fn asked(&mut self, raw: &Raw<'_>) {
        let Ok(Message::Link(message)) = Message::parse(raw) else { return };
        let Some(link) = self.links.get_mut(&message.index) else { return };
        let (port, new) = (link.port, message.all_multicast);
        let old = std::mem::replace(&mut link.all_multicast, new);
        self.send_multicast((port, old), (port, new));
    }

    /// Returns the indexes of the ports' interfaces.
    pub(super) fn port_indexes(&self) -> Vec<u32> {
        let ports = self.links.iter().filter(|(_, link)| link.port.is_some());
        ports.map(|(index, _)| *index).collect()
    }

    fn link_gone(&mut self, index: u32, how: Departure) {
        self.port_gone(index, how);
        if self.links.remove(&index).is_none() {
            return;
        }
        self.interfaces_changed = true;
        self.finder.due = true;
        self.places.gone(index);
        self.follow_vrfs();
        self.addresses.remove(&index);
        self.neighbours.retain(|(on, _), _| *on != index);
        self.routes.interface_gone(index);
        self.routes.carrier_lost(index);
        self.routes.set_interface(index, None);
        self.send_locals();
        self.send_virtual_macs();
    }

    /// Reports the MACs of MACVLAN devices on ports, which have addresses of their own: the protocol that made them
    /// for a virtual router (VRRP) takes these away where it is not master. A backup sends from the port's address.
    fn send_virtual_macs(&mut self) {
        let of =
            |index: u32| self.addresses.get(&index).into_iter().flatten().map(|a| a.address.addr());
        let virtual_mac = |(index, link): (&u32, &Link)| {
            let (parent, mac) = link.macvlan.filter(|_| link.up())?;
            let port = self.links.get(&parent)?.port?;
            of(*index).any(|own| of(parent).all(|other| other != own)).then_some((port, mac))
        };
        let now: BTreeSet<_> = self.links.iter().filter_map(virtual_mac).collect();
        if now != self.virtual_macs {
            self.virtual_macs.clone_from(&now);
            self.routes.push(SourceEvent::VirtualMacs(now.into_iter().collect()));
        }
    }

    /// Reports that a port has no host interface any more.
    fn port_gone(&mut self, index: u32, how: Departure) {
        let Some(link) = self.links.get_mut(&index) else { return };
        let Some(port) = link.port.take() else { return };
        let (admin_up, carrier, gone) = (false, false, Some(how));
        self.routes.push(SourceEvent::Link { port, admin_up, carrier, mtu: 0, gone });
        self.routes.push(SourceEvent::Addresses { port, addresses: Vec::new() });
        let on_port = self.neighbours.iter().filter(|((on, _), _)| *on == index);
        for ((_, address), _) in on_port {
            let (address, state) = (*address, NeighbourState::Deleted);
            self.routes.push(SourceEvent::Neighbour { port, address, mac: None, state });
        }
        self.neighbours.retain(|(on, _), _| *on != index);
    }

    fn address(&mut self, message: AddressMessage, gone: bool) {
        let AddressMessage { index, address, length, refused } = message;
        let list = self.addresses.entry(index).or_default();
        let same = |a: &Address| a.address.addr() == address.addr() && a.length == length;
        let known = list.iter().position(same);
        let new = Address { address, length, seen: true };
        match known {
            Some(at) if gone || refused => {
                list.remove(at);
                self.address_removed(index, address.addr());
            }
            Some(at) if list[at].address == address => list[at].seen = true,
            Some(at) => list[at] = new,
            None if gone || refused => return,
            None => list.push(new),
        }
        if !gone && address.addr().is_ipv4() {
            self.routes.interface_alive(index);
        }
        if known.is_none() || gone || refused {
            self.send_addresses(index);
            let concerns = |(link, of): (&u32, &Link)| {
                of.macvlan.is_some_and(|(parent, _)| *link == index || parent == index)
            };
            if self.links.iter().any(concerns) {
                self.send_virtual_macs();
            }
        }
    }

    /// Applies the kernel's changes of routes after an address was removed.
    fn address_removed(&mut self, index: u32, address: IpAddr) {
        let IpAddr::V4(address) = address else { return };
        let mut all = self.addresses.values().flatten();
        if !all.any(|other| other.address.addr() == address) {
            self.routes.address_gone(address);
        }
        let on = self.addresses.get(&index);
        if on.is_none_or(|list| list.iter().all(|other| other.address.addr().is_ipv6())) {
            self.routes.last_address_gone(index);
        }
    }

    fn send_addresses(&mut self, index: u32) {
        let Some(port) = self.links.get(&index).and_then(|link| link.port) else {
            self.send_locals();
            return;
        };
        if self.reading_addresses {
            return;
        }
        let all = self.addresses.get(&index).into_iter().flatten().map(|a| a.address);
        // The RIB treats all link-local addresses as local.
        let addresses = all.filter(|a| rib::reserved_range(&a.trunc()).is_none()).collect();
        self.routes.push(SourceEvent::Addresses { port, addresses });
    }

    /// Reports the addresses of interfaces that are not ports, if routes are not followed.
    fn send_locals(&mut self) {
        if self.with_routes {
            return;
        }
        let now = self.other_addresses();
        let before = std::mem::replace(&mut self.locals, now.clone());
        for &prefix in now.difference(&before) {
            self.send_local(prefix, true);
        }
        for &prefix in before.difference(&now) {
            self.send_local(prefix, false);
        }
    }

    /// Returns the addresses of interfaces that are not ports. Without ports nothing is delivered to the kernel.
    fn other_addresses(&self) -> HashSet<IpNet> {
        let is_port = |index: &u32| self.links.get(index).is_none_or(|link| link.port.is_some());
        let others = self.addresses.iter().filter(|(index, _)| !is_port(index));
        let full = others.flat_map(|(_, list)| list.iter().map(|a| IpNet::from(a.address.addr())));
        let routable = full.filter(|prefix| rib::reserved_range(prefix).is_none());
        if self.ports.is_empty() { HashSet::new() } else { routable.collect() }
    }

    /// Follows routes from now on, or no longer: then those that were reported are withdrawn.
    pub(super) fn follow_routes(&mut self, on: bool) {
        self.with_routes = on;
        if !on {
            self.routes.clear();
            self.send_locals();
        }
    }

    /// Leaves the addresses of interfaces that are not ports to the kernel's local routes, which have been read.
    pub(super) fn forget_locals(&mut self) {
        let now = self.other_addresses();
        let before = std::mem::take(&mut self.locals);
        before.difference(&now).for_each(|&prefix| self.send_local(prefix, false));
    }

    fn send_local(&mut self, prefix: IpNet, present: bool) {
        let vrf = VrfId::DEFAULT;
        self.routes.push(SourceEvent::LocalAddress { vrf, prefix, present });
    }

    fn neighbour(&mut self, message: NeighbourMessage, gone: bool) {
        let NeighbourMessage { index, address, mac, state, proxy } = message;
        let Some(port) = self.links.get(&index).and_then(|link| link.port) else { return };
        if proxy || address.is_multicast() || address.is_unspecified() {
            return;
        }
        let state = if gone { None } else { neighbour_state(state) };
        let Some(state) = state else {
            self.neighbour_gone(port, index, address);
            return;
        };
        let usable = !matches!(state, NeighbourState::Incomplete | NeighbourState::Failed);
        let mac = mac.filter(|_| usable);
        let new = Neighbour { mac, state, seen: true };
        let old = self.neighbours.insert((index, address), new);
        if state == NeighbourState::Incomplete && self.resolving.contains(&(port, address)) {
            return;
        }
        self.resolving.remove(&(port, address));
        if old.is_none_or(|old| (old.mac, old.state) != (mac, state)) {
            self.routes.push(SourceEvent::Neighbour { port, address, mac, state });
        }
    }

    fn neighbour_gone(&mut self, port: InterfaceId, index: u32, address: IpAddr) {
        self.resolving.remove(&(port, address));
        if self.neighbours.remove(&(index, address)).is_some() {
            let state = NeighbourState::Deleted;
            self.routes.push(SourceEvent::Neighbour { port, address, mac: None, state });
        }
    }

    fn rule(&mut self, rule: RuleMessage, gone: bool) {
        match self.rules.iter().position(|other| *other == rule) {
            Some(at) if gone => drop(self.rules.remove(at)),
            None if !gone => self.rules.push(rule),
            _ => return,
        }
        self.follow_rules();
    }

    /// Sets the tables to look up in the order of the rules.
    fn follow_rules(&mut self) {
        self.rules.sort_by_key(|rule| rule.priority);
        for rule in &self.rules {
            if let Some(selector) = rule.unsupported
                && self.said.insert(selector)
            {
                let priority = rule.priority;
                tracing::warn!(
                    "kernel: rule {priority} is not followed because of \"{selector}\": only rules \
                     that hold for all packets are; said once"
                );
            }
        }
        for ipv6 in [false, true] {
            let mut order = Vec::new();
            let counting = self.rules.iter().filter(|r| r.ipv6 == ipv6 && r.unsupported.is_none());
            for table in counting.filter_map(|rule| rule.table) {
                if !order.contains(&table) {
                    order.push(table);
                }
            }
            self.routes.set_order(ipv6, order);
        }
    }

    /// Begins a dump of everything.
    pub(super) fn begin_sync(&mut self) {
        self.routes.begin_sync();
    }

    /// Begins a part of the dump.
    pub(super) fn begin_part(&mut self, part: Part) {
        match part {
            Part::Links => {
                self.finder.reading = true;
                self.links.values_mut().for_each(|link| link.seen = false);
            }
            Part::Addresses => {
                self.addresses.values_mut().flatten().for_each(|address| address.seen = false);
            }
            Part::Neighbours => {
                self.neighbours.values_mut().for_each(|neighbour| neighbour.seen = false);
            }
            Part::Rules => self.rules.clear(),
            Part::Nexthops | Part::Routes4 | Part::Routes6 => {}
        }
    }

    /// Ends a part of the dump.
    pub(super) fn end_part(&mut self, part: Part) {
        match part {
            Part::Links => {
                let gone = self.links.iter().filter(|(_, link)| !link.seen);
                let gone: Vec<u32> = gone.map(|(index, _)| *index).collect();
                gone.into_iter().for_each(|index| self.link_gone(index, Departure::Removed));
                (self.finder.reading, self.finder.due) = (false, true);
            }
            Part::Addresses => {
                self.end_addresses();
                if std::mem::take(&mut self.reading_addresses) {
                    self.port_indexes().into_iter().for_each(|index| self.send_addresses(index));
                }
            }
            Part::Neighbours => {
                let gone = self.neighbours.iter().filter(|(_, neighbour)| !neighbour.seen);
                let gone: Vec<(u32, IpAddr)> = gone.map(|(key, _)| *key).collect();
                for (index, address) in gone {
                    if let Some(port) = self.links.get(&index).and_then(|link| link.port) {
                        self.neighbour_gone(port, index, address);
                    }
                }
                self.stale_ports = false;
            }
            Part::Rules => self.follow_rules(),
            Part::Nexthops | Part::Routes4 | Part::Routes6 => {}
        }
    }

    fn end_addresses(&mut self) {
        let mut changed = Vec::new();
        for (index, list) in &mut self.addresses {
            let before = list.len();
            list.retain(|address| address.seen);
            if list.len() != before {
                changed.push(*index);
            }
        }
        // The dump of the routes reports the resulting changes.
        changed.into_iter().for_each(|index| self.send_addresses(index));
    }

    /// Handles a part that the kernel does not support.
    pub(super) fn without(&mut self, part: Part) {
        if part == Part::Rules {
            self.routes.set_order(false, DEFAULT_ORDER.to_vec());
            self.routes.set_order(true, DEFAULT_ORDER.to_vec());
        }
    }

    /// Returns the mapping of interfaces to ports, if it has changed since the last call.
    pub(super) fn interfaces(&mut self) -> Option<Interfaces> {
        let changed = std::mem::take(&mut self.interfaces_changed);
        let by_index = || self.links.iter().map(|(index, link)| (*index, link.port)).collect();
        changed.then(|| Interfaces { by_index: by_index(), vrfs: self.tables.clone() })
    }

    /// Returns the index of a port's interface.
    pub(super) fn index_of(&self, port: InterfaceId) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.port == Some(port)).map(|(index, _)| *index)
    }
}

fn by_interface(vlans: Vec<HostVlan>) -> BTreeMap<InterfaceId, HostVlan> {
    vlans.into_iter().map(|vlan| (vlan.interface, vlan)).collect()
}

/// Converts `NUD_*`; `None` for an entry that has not been used yet.
fn neighbour_state(state: u16) -> Option<NeighbourState> {
    Some(match state {
        0x01 => NeighbourState::Incomplete,
        0x02 => NeighbourState::Reachable,
        0x04 => NeighbourState::Stale,
        0x08 => NeighbourState::Delay,
        0x10 => NeighbourState::Probe,
        0x20 => NeighbourState::Failed,
        0x40 => NeighbourState::NoArp,
        0x80 => NeighbourState::Permanent,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::Messages;
    use super::super::message::tests::{device, vlan_device, zebra_route};
    use super::*;
    use crate::netlink::Following;
    use crate::netlink::message::{RTM_DELLINK, RTM_NEWLINK, RTM_NEWROUTE};

    pub(super) fn model(table: Option<u32>) -> Model {
        let ports = [InterfaceId::FIRST].into();
        let vrf = KernelVrf { id: VrfId::new(1), name: "blue".to_owned(), table, ports };
        Model::new(&KernelConfig {
            netns: None,
            ports: Vec::new(),
            vlans: HostVlans::default(),
            vrfs: vec![vrf],
            following: Following { routes: true, exact: false, audit: None, receive_buffer: 0 },
            multicast: false,
            apart: None,
        })
    }

    pub(super) fn receive(model: &mut Model, bytes: &[u8]) -> Vec<SourceEvent> {
        Messages(bytes).for_each(|raw| model.on_notification(&raw.unwrap()));
        model.routes.take_events()
    }

    /// Returns the present tables of VRFs.
    fn tables(model: &mut Model) -> Vec<(u32, usize)> {
        let known = model.interfaces().expect("a change").vrfs;
        known.into_iter().map(|(table, vrf)| (table, vrf.index())).collect()
    }

    #[test]
    fn a_vrf_has_the_table_of_the_device_of_its_name() {
        let mut model = model(None);
        assert_eq!(tables(&mut model), []);
        // The test messages name table 254.
        receive(&mut model, &zebra_route(RTM_NEWROUTE, "192.0.2.0/24", Some((7, [10, 0, 0, 1]))));
        receive(&mut model, &device(RTM_NEWLINK, 8, "red", "vrf", 300));
        assert_eq!(tables(&mut model), []);
        let sent = receive(&mut model, &device(RTM_NEWLINK, 7, "blue", "vrf", 254));
        assert_eq!(tables(&mut model), [(254, 1)]);
        let of_blue = |event: &SourceEvent| matches!(event, SourceEvent::Route { vrf, .. } if *vrf == VrfId::new(1));
        assert_eq!(sent.iter().filter(|event| of_blue(event)).count(), 1, "{sent:?}");
        let sent = receive(&mut model, &device(RTM_DELLINK, 7, "blue", "vrf", 254));
        assert_eq!(tables(&mut model), []);
        assert_eq!(sent.iter().filter(|event| of_blue(event)).count(), 1, "{sent:?}");
    }

    #[test]
    fn what_another_namespace_does_not_have_is_withdrawn() {
        let interface = |index| InterfaceId::new(index).unwrap();
        let (left, right) = (interface(0), interface(1));
        let mut model = model(None);
        model.set_ports(&[(left, "left".to_owned()), (right, "right".to_owned())]);
        for (index, name) in [(7, "left"), (8, "right")] {
            receive(&mut model, &device(RTM_NEWLINK, index, name, "tun", 0));
        }
        let (one, two, three) = ("10.0.1.2", "10.0.1.3", "10.0.1.4");
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let neighbour = |index, of: &str, state, mac| NeighbourMessage {
            index,
            address: address(of),
            mac,
            state,
            proxy: false,
        };
        let mac = Some(MacAddr([2; 6]));
        for of in [one, two, three] {
            model.neighbour(neighbour(7, of, 0x02, mac), false);
        }
        model.address(
            AddressMessage {
                index: 8,
                address: "10.0.2.1/24".parse().unwrap(),
                length: 24,
                refused: false,
            },
            false,
        );
        model.routes.take_events();
        let former = model.leave();
        assert_eq!((former.ports.len(), former.neighbours.len()), (2, 3));
        assert_eq!((model.index_of(left), model.routes.take_events()), (None, Vec::new()));
        model.resolving.extend(former.neighbours.iter().copied());
        // There, the numbers of interfaces are others, and one port has no interface.
        receive(&mut model, &device(RTM_NEWLINK, 8, "left", "tun", 0));
        assert_eq!(model.index_of(left), Some(8));
        model.neighbour(neighbour(8, one, 0x01, None), false);
        model.neighbour(neighbour(8, two, 0x01, None), false);
        assert_eq!(model.routes.take_events(), [], "they are still being resolved");
        model.neighbour(neighbour(8, one, 0x02, mac), false);
        model.neighbour(neighbour(8, two, 0x20, None), false);
        let states: Vec<_> = model
            .routes
            .take_events()
            .into_iter()
            .map(|event| match event {
                SourceEvent::Neighbour { address, mac, state, .. } => (address, mac, state),
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            (address(one), mac, NeighbourState::Reachable),
            (address(two), None, NeighbourState::Failed),
        ];
        assert_eq!(states, expected);
        model.end_part(Part::Addresses);
        model.withdraw(former);
        let events = model.routes.take_events();
        let none = |port| SourceEvent::Addresses { port, addresses: Vec::new() };
        let gone = |event: &SourceEvent| matches!(event, SourceEvent::Link { port, gone: Some(_), .. } if *port == right);
        assert!(events.contains(&none(left)) && events.contains(&none(right)), "{events:?}");
        assert_eq!((events.len(), events.iter().filter(|event| gone(event)).count()), (3, 1));
        model.give_up_resolving();
        let state = NeighbourState::Deleted;
        let lost = SourceEvent::Neighbour { port: left, address: address(three), mac: None, state };
        assert_eq!(model.routes.take_events(), [lost]);
    }

    #[test]
    fn host_interfaces_are_put_into_the_device_of_their_vrf_once() {
        let mut model = model(Some(100));
        let (first, second) = (InterfaceId::FIRST, InterfaceId::new(1).unwrap());
        model.set_ports(&[(first, "shop".to_owned()), (second, "wan".to_owned())]);
        for (index, name) in [(3, "shop"), (4, "wan")] {
            receive(&mut model, &device(RTM_NEWLINK, index, name, "tun", 0));
        }
        assert_eq!(model.misplaced(), [], "there is no device");
        receive(&mut model, &device(RTM_NEWLINK, 8, "of-table", "vrf", 100));
        let shop = |device| vec![("shop".to_owned(), 3, device)];
        assert_eq!(model.misplaced(), shop(Some(8)));
        assert_eq!(model.misplaced(), [], "only once");
        let in_device = |model: &mut Model, index: u32, master: Option<u32>| {
            let link = LinkMessage { master, ..model.links[&index].message(index) };
            model.link(link);
            model.misplaced()
        };
        assert_eq!(in_device(&mut model, 3, Some(8)), []);
        // The operator's change is left as it is, until another device is the VRF's.
        assert_eq!(in_device(&mut model, 3, None), []);
        receive(&mut model, &device(RTM_NEWLINK, 9, "blue", "vrf", 100));
        assert_eq!(model.misplaced(), shop(Some(9)));
        assert_eq!(in_device(&mut model, 3, Some(9)), []);
        receive(&mut model, &device(RTM_DELLINK, 9, "blue", "vrf", 100));
        assert_eq!(in_device(&mut model, 3, None), shop(Some(8)));
        assert_eq!(in_device(&mut model, 3, Some(8)), []);
        // One in a bridge is not touched, nor is one that the operator puts elsewhere.
        assert_eq!(in_device(&mut model, 4, Some(77)), []);
        assert_eq!(in_device(&mut model, 4, Some(8)), []);
        // The VRF leaves the configuration.
        model.set_vrfs(Vec::new());
        assert_eq!(model.misplaced(), shop(None));
        assert_eq!(in_device(&mut model, 3, None), []);
        assert_eq!(model.misplaced(), []);
    }

    #[test]
    fn the_device_of_a_found_vlan_stays_in_its_vrf_device() {
        let interface = |index| InterfaceId::new(index).unwrap();
        let mut model = model(None);
        let blue = KernelVrf { ports: BTreeSet::new(), ..model.vrfs[0].clone() };
        model.set_vrfs(vec![blue.clone()]);
        model.set_ports(&[(interface(0), "lan".to_owned())]);
        receive(&mut model, &device(RTM_NEWLINK, 3, "lan", "tun", 0));
        receive(&mut model, &device(RTM_NEWLINK, 8, "blue", "vrf", 100));
        receive(&mut model, &vlan_device(RTM_NEWLINK, 4, "lan.1", 3, (0x8100, 1)));
        let in_blue = LinkMessage { master: Some(8), ..model.links[&4].message(4) };
        model.link(in_blue);
        assert_eq!(model.misplaced(), []);
        // The owner's orders of a change, in which the VRF comes last.
        let vlan = HostVlan {
            interface: interface(64),
            name: "lan.1".to_owned(),
            parent: interface(0),
            protocol: 0x8100,
            id: 1,
            in_kernel: true,
            is_found: true,
        };
        let followed = [(interface(0), 2)].into();
        model.set_vlans(HostVlans { vlans: vec![vlan.clone()], followed, ..HostVlans::default() });
        let names = [(interface(0), "lan".to_owned()), (interface(64), "lan.1".to_owned())];
        model.set_ports(&names);
        assert_eq!(model.index_of(interface(64)), Some(4));
        assert_eq!(model.misplaced(), []);
        model.set_vrfs(vec![KernelVrf { ports: [interface(64)].into(), ..blue.clone() }]);
        assert_eq!(model.misplaced(), []);
        // Out of it and into it by the operator, each before the owner knows.
        for master in [None, Some(8)] {
            model.link(LinkMessage { master, ..model.links[&4].message(4) });
            assert_eq!(model.misplaced(), []);
        }
        // That of a statement is where the statement says.
        let vlans = vec![HostVlan { is_found: false, ..vlan }];
        model.set_vlans(HostVlans { vlans, ..HostVlans::default() });
        model.set_ports(&names);
        model.set_vrfs(vec![blue]);
        assert_eq!(model.misplaced(), [("lan.1".to_owned(), 4, None)]);
    }

    /// Links of ports in events: the port's number, and false for one that is gone.
    fn links(events: &[SourceEvent]) -> Vec<(usize, bool)> {
        let link = |event: &SourceEvent| match event {
            SourceEvent::Link { port, gone, .. } => Some((port.index(), gone.is_none())),
            _ => None,
        };
        events.iter().filter_map(link).collect()
    }

    /// A model of a port `lan` with VLANs 100 and, on that, 7, whose host interfaces are the kernel's.
    fn with_vlans() -> Model {
        let interface = |index| InterfaceId::new(index).unwrap();
        let vlan = |number, name: &str, parent, protocol, id| HostVlan {
            is_found: false,
            interface: interface(number),
            name: name.to_owned(),
            parent: interface(parent),
            protocol,
            id,
            in_kernel: true,
        };
        let mut model = model(None);
        let vlans = vec![
            vlan(64, "lan.100", 0, 0x8100, 100),
            vlan(65, "lan.100.7", 64, 0x8100, 7),
            HostVlan { in_kernel: false, ..vlan(66, "tap", 0, 0x8100, 200) },
        ];
        model.set_vlans(HostVlans { vlans, ..HostVlans::default() });
        let names = [(0, "lan"), (64, "lan.100"), (65, "lan.100.7"), (66, "tap")];
        model.set_ports(&names.map(|(index, name)| (interface(index), name.to_owned())));
        model
    }

    #[test]
    fn a_vlan_device_is_the_host_interface_of_the_vlan_with_its_name_tag_and_parent() {
        let mut model = with_vlans();
        let lan = device(RTM_NEWLINK, 3, "lan", "tun", 0);
        assert_eq!(links(&receive(&mut model, &lan)), [(0, true)]);
        let vlan =
            |kind, index, name: &str, parent, tag| vlan_device(kind, index, name, parent, tag);
        // Others of the name: no VLAN device, another tag, another parent.
        for other in [
            device(RTM_NEWLINK, 4, "lan.100", "dummy", 0),
            vlan(RTM_NEWLINK, 4, "lan.100", 3, (0x8100, 101)),
            vlan(RTM_NEWLINK, 4, "lan.100", 3, (0x88a8, 100)),
            vlan(RTM_NEWLINK, 4, "lan.100", 77, (0x8100, 100)),
        ] {
            assert_eq!(links(&receive(&mut model, &other)), []);
        }
        let inner = vlan(RTM_NEWLINK, 5, "lan.100.7", 4, (0x8100, 7));
        assert_eq!(links(&receive(&mut model, &inner)), [], "its parent is none");
        let right = vlan(RTM_NEWLINK, 4, "lan.100", 3, (0x8100, 100));
        assert_eq!(links(&receive(&mut model, &right)), [(64, true), (65, true)]);
        assert!(model.is_vlan(4) && !model.is_vlan(3));
        assert_eq!(model.index_of(InterfaceId::new(65).unwrap()), Some(5));
        let gone = vlan(RTM_DELLINK, 4, "lan.100", 3, (0x8100, 100));
        assert_eq!(links(&receive(&mut model, &gone)), [(64, false)]);
        // The kernel removes it with its parent.
        let gone = vlan(RTM_DELLINK, 5, "lan.100.7", 4, (0x8100, 7));
        assert_eq!(links(&receive(&mut model, &gone)), [(65, false)]);
    }

    #[test]
    fn a_vlan_device_that_is_there_before_its_parent_is_a_port_becomes_one_with_it() {
        let mut model = with_vlans();
        model.set_ports(&[]);
        for message in [
            vlan_device(RTM_NEWLINK, 4, "lan.100", 8, (0x8100, 100)),
            vlan_device(RTM_NEWLINK, 5, "lan.100.7", 4, (0x8100, 7)),
            device(RTM_NEWLINK, 8, "lan", "tun", 0),
        ] {
            assert_eq!(links(&receive(&mut model, &message)), []);
        }
        let interface = |index| InterfaceId::new(index).unwrap();
        let names = [(0, "lan"), (64, "lan.100"), (65, "lan.100.7")];
        model.set_ports(&names.map(|(index, name)| (interface(index), name.to_owned())));
        let events = links(&model.routes.take_events());
        assert_eq!(events, [(0, true), (64, true), (65, true)]);
        // Without the VLANs their devices are none of theirs, whatever their names.
        model.set_vlans(HostVlans::default());
        model.set_ports(&[(interface(0), "lan".to_owned())]);
        assert_eq!(links(&model.routes.take_events()), [(64, false), (65, false)]);
    }

    #[test]
    fn vlan_devices_without_frames_are_reported_with_the_way_out() {
        let mut model = with_vlans();
        receive(&mut model, &device(RTM_NEWLINK, 3, "lan", "tun", 0));
        let advice = |model: &mut Model, tag| {
            receive(model, &vlan_device(RTM_NEWLINK, 9, "lan.9", 3, tag));
            model.advice(9).unwrap()
        };
        let service = advice(&mut model, (0x88a8, 9));
        let expected = "write turnpike.vlan \"lan.9\" { parent = \"lan\", id = 9, protocol = \"802.1ad\", \
                        host = \"kernel\" }";
        assert!(service.ends_with(expected), "{service}");
        let taken = advice(&mut model, (0x8100, 200));
        assert!(taken.contains("is vlan \"tap\" of the configuration"), "{taken}");
        receive(&mut model, &vlan_device(RTM_DELLINK, 9, "lan.9", 3, (0x8100, 200)));
        // Thousands of them make few lines, and neither their repetition nor those of a VLAN make one.
        for index in 10..200 {
            let name = format!("lan.{index}");
            receive(&mut model, &vlan_device(RTM_NEWLINK, index, &name, 3, (0x8100, index.into())));
        }
        let reported = |model: &Model| model.idle_vlans.keys().copied().collect::<Vec<_>>();
        assert_eq!(reported(&model), (9..25).collect::<Vec<_>>());
        receive(&mut model, &vlan_device(RTM_DELLINK, 11, "lan.11", 3, (0x8100, 11)));
        receive(&mut model, &vlan_device(RTM_NEWLINK, 250, "lan.11", 3, (0x8100, 11)));
        assert_eq!(reported(&model), (9..25).collect::<Vec<_>>(), "nor do those that come and go");
        // Another configuration: only other advice is new.
        let lan = [(InterfaceId::FIRST, "lan".to_owned())];
        let settled = |model: &mut Model| {
            model.set_ports(&lan);
            [12, 13].map(|index| model.idle_vlans[&index].contains("of the configuration"))
        };
        assert_eq!(settled(&mut model), [false, false]);
        assert_eq!(model.new_advice(12), None);
        let vlan = HostVlan {
            name: "v12".to_owned(),
            id: 12,
            ..model.vlans.values().next().unwrap().clone()
        };
        model.set_vlans(HostVlans { vlans: vec![vlan], ..HostVlans::default() });
        assert!(model.new_advice(12).is_some() && model.new_advice(13).is_none());
        assert_eq!(settled(&mut model), [true, false]);
    }

    #[test]
    fn a_host_interface_left_in_another_vrf_s_device_is_taken_out() {
        let mut model = model(None);
        model.set_ports(&[(InterfaceId::new(1).unwrap(), "wan".to_owned())]);
        receive(&mut model, &device(RTM_NEWLINK, 8, "blue", "vrf", 100));
        receive(&mut model, &device(RTM_NEWLINK, 9, "strange", "vrf", 200));
        for (index, master) in [(4, 8), (5, 9)] {
            let link = Link { name: "wan".to_owned(), master: Some(master), ..Link::default() };
            model.link(link.message(index));
        }
        assert_eq!(model.misplaced(), [("wan".to_owned(), 4, None)], "of an earlier router");
    }

    #[test]
    fn the_configuration_s_table_counts_more_than_a_device_s() {
        let mut model = model(Some(100));
        receive(&mut model, &device(RTM_NEWLINK, 7, "blue", "vrf", 254));
        assert_eq!(tables(&mut model), [(100, 1)]);
        model.set_vrfs(Vec::new());
        assert_eq!(tables(&mut model), []);
    }
}
