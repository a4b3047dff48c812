//! Differences between two configurations, for `turnpike plan` and `turnpike apply`.
//!
//! Line numbers and the order of statements make no difference: ports are identified by their
//! names, routes by prefix and metric, everything else by the name in its statement.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use dataplane::filters::{FILTERS_MAX, Target};
use dataplane::interface::{InterfaceId, MAX_INTERFACES, VRFS_MOST, VrfId};
use dataplane::mirror_sessions::{Destination, MirrorTo};
use dataplane::port::{MAX_PORTS, PortId};
use ipnet::IpNet;

use super::settings::{self, Entry, Names};
pub use super::settings::{Effect, Unit};
use super::{
    Bond, Config, DEFAULT_VRF, HostInterface, Interface, Loopback, Port, Route, Virtual, Vlan, Vrf,
};
use crate::rib::{self, RouteKind};

/// Most elements of a set that are listed one by one when added or removed; of more only the number
/// is given.
const ELEMENTS_NAMED: usize = 20;

/// Returns the host interfaces of a configuration, by the names of their interfaces.
fn host_interfaces(config: &Config) -> HashMap<&str, &HostInterface> {
    config.interfaces().filter_map(|(_, name, of)| Some((name, of.host.as_ref()?))).collect()
}

/// Replaces the settings of each set with many added or removed elements by one that gives their
/// number.
fn sum_up_elements(settings: &mut Vec<Setting>, new: &Config) {
    for set in &new.sets {
        let name = format!("prefix_set \"{}\"", set.name);
        let is_element = |setting: &Setting| {
            setting.what.strip_prefix(&name).is_some_and(|rest| rest.starts_with(": "))
        };
        let changed = settings.iter().filter(|setting| is_element(setting)).count();
        if changed <= ELEMENTS_NAMED {
            continue;
        }
        let is_new = |setting: &Setting| is_element(setting) && setting.from.is_none();
        let come = settings.iter().filter(|setting| is_new(setting)).count();
        settings.retain(|setting| !is_element(setting));
        settings.push(Setting {
            what: format!("{name}: elements"),
            from: Some(format!("{} removed", changed - come)),
            to: Some(format!("{come} added")),
            port: None,
            effect: Effect::Live(Unit::PrefixSets),
        });
    }
}

/// Added, removed and changed items of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes<T> {
    /// The new items.
    pub added: Vec<T>,
    /// The removed items.
    pub removed: Vec<T>,
    /// The changed items, before and after.
    pub changed: Vec<(T, T)>,
}

impl<T> Default for Changes<T> {
    fn default() -> Self {
        Self { added: Vec::new(), removed: Vec::new(), changed: Vec::new() }
    }
}

impl<T> Changes<T> {
    /// Returns true if there is no difference.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name: `port "left": mtu`.
    pub what: String,
    /// The old value; `None`: it did not exist.
    pub from: Option<String>,
    /// The new value; `None`: it is removed.
    pub to: Option<String>,
    /// The name of the port that it belongs to.
    pub port: Option<String>,
    /// The action needed to change it.
    pub effect: Effect,
}

impl Setting {
    /// Returns true if it can be changed while the router runs.
    pub fn is_live(&self) -> bool {
        self.restart_because().is_none()
    }

    /// Returns the reason for which only a restart can change it.
    pub fn restart_because(&self) -> Option<&'static str> {
        match self.effect {
            Effect::Restart(why) => Some(why),
            Effect::Live(_) | Effect::Reopen | Effect::ReopenHost | Effect::Graph => None,
        }
    }
}

/// All differences between two configurations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// Static routes.
    pub routes: Changes<Route>,
    /// Ports; those with another device or host interface are listed as changed.
    pub ports: Changes<Port>,
    /// Bonds; those with other ports, another MAC, MTU or host interface are listed as changed.
    pub bonds: Changes<Bond>,
    /// VLANs; those with another parent, MTU or host interface are listed as changed.
    pub vlans: Changes<Vlan>,
    /// Loopbacks; those with another host interface are listed as changed.
    pub loopbacks: Changes<Loopback>,
    /// Everything else.
    pub settings: Vec<Setting>,
    /// True if forwarders need new graphs.
    pub graph: bool,
    /// The names of the ports of both configurations, by their numbers.
    pub names: Vec<String>,
    /// The names of the VRFs of both configurations, by their numbers.
    pub vrfs: Vec<String>,
    /// The names of VLANs that no statement of either configuration is about: of VLAN devices of the kernel.
    pub unstated: HashSet<String>,
}

impl Diff {
    /// Compares two configurations whose ports are numbered alike: see [`Config::align`].
    pub fn between(old: &Config, new: &Config) -> Self {
        let names = names([old, new]);
        let vrfs = vrf_names(old.vrfs.iter().chain(&new.vrfs));
        let both = Names { ports: &names, vrfs: &vrfs };
        let mut settings = compare(&settings::list(old, both), &settings::list(new, both));
        let unsaid = unsaid(old, new);
        settings.retain(|setting| !unsaid.contains(setting));
        sum_up_elements(&mut settings, new);
        let (before, after) = (host_interfaces(old), host_interfaces(new));
        for host in settings.iter_mut().filter(|setting| setting.effect == Effect::ReopenHost) {
            let port = host.port.as_deref().unwrap_or_default();
            if let (Some(before), Some(after)) = (before.get(port), after.get(port))
                && before.in_kernel == after.in_kernel
            {
                host.effect = Effect::Live(Unit::Namespace);
            }
        }
        let another = |what: &str, to: &str, effect: Effect| Setting {
            what: format!("{what}: the script's text"),
            from: Some("as it is".to_owned()),
            to: Some(to.to_owned()),
            port: None,
            effect,
        };
        // Each forwarder runs the whole script, and objects that its steps use may be anywhere in
        // it.
        if old.text != new.text && old.script.is_some() && new.script.is_some() {
            let to = "changed; their variables are reset";
            settings.push(another("steps in Lua", to, Effect::Graph));
        }
        if old.text != new.text && !old.commands.is_empty() && !new.commands.is_empty() {
            settings.push(another("commands in Lua", "another", Effect::Live(Unit::Commands)));
        }
        // Some steps exist only if a port enables them.
        let asks = |config: &Config| -> HashSet<&str> {
            let on = config.interfaces().flat_map(|(.., interface)| &interface.features);
            on.filter(|(_, value)| *value != 0).map(|(feature, _)| feature.name()).collect()
        };
        let (ports, bonds) = (ports(old, new), bonds(old, new));
        let (vlans, loopbacks) = (vlans(old, new), loopbacks(old, new));
        // Graphs contain the ports' MACs and names.
        let graph = settings.iter().any(|setting| setting.effect == Effect::Graph)
            || asks(old) != asks(new)
            || !ports.is_empty()
            || !bonds.is_empty()
            || !vlans.is_empty()
            || !loopbacks.is_empty();
        let routes = routes(&old.routes, &new.routes);
        let unstated = unstated(old, new);
        Self { routes, ports, bonds, vlans, loopbacks, settings, graph, names, vrfs, unstated }
    }

    /// Returns the names of the ports and VRFs.
    pub(super) fn all_names(&self) -> Names<'_> {
        Names { ports: &self.names, vrfs: &self.vrfs }
    }

    /// Returns true if there is no difference.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
            && self.ports.is_empty()
            && self.bonds.is_empty()
            && self.vlans.is_empty()
            && self.loopbacks.is_empty()
            && self.settings.is_empty()
    }

    /// Returns the settings that are of statements: without those that found VLANs have from the interfaces that they
    /// are on.
    pub fn stated(&self) -> impl Iterator<Item = &Setting> {
        let is_unstated = |name: &String| self.unstated.contains(name);
        self.settings.iter().filter(move |setting| !setting.port.as_ref().is_some_and(is_unstated))
    }

    /// Returns the settings that only a restart changes.
    pub fn fixed(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(|setting| !setting.is_live())
    }

    /// Returns the units that take up settings while the router runs, each once. Ports that are opened, and new
    /// graphs, are no such settings.
    pub fn units(&self) -> BTreeSet<Unit> {
        let unit = |setting: &Setting| match setting.effect {
            Effect::Live(unit) => Some(unit),
            // The device does not have it, or takes it as it is.
            Effect::Reopen if !self.reopens(setting) => Some(Unit::ReceiveQueues),
            Effect::Reopen | Effect::ReopenHost | Effect::Graph | Effect::Restart(_) => None,
        };
        self.settings.iter().filter_map(unit).collect()
    }

    /// Returns true if the setting belongs to an interface that is new or removed.
    pub fn is_of_port(&self, setting: &Setting) -> bool {
        let ports = self.ports.added.iter().chain(&self.ports.removed).map(|port| &port.name);
        let vlans = self.vlans.added.iter().chain(&self.vlans.removed).map(|vlan| &vlan.name);
        let bonds = self.bonds.added.iter().chain(&self.bonds.removed).map(|bond| &bond.name);
        let loopbacks = self.loopbacks.added.iter().chain(&self.loopbacks.removed);
        let loopbacks = loopbacks.map(|loopback| &loopback.name);
        ports
            .chain(bonds)
            .chain(vlans)
            .chain(loopbacks)
            .any(|name| setting.port.as_ref() == Some(name))
    }

    /// Returns true if the port is closed and opened again for this setting.
    pub fn reopens(&self, setting: &Setting) -> bool {
        matches!(setting.effect, Effect::Reopen | Effect::ReopenHost)
            && self.ports.changed.iter().any(|(_, port)| setting.port.as_ref() == Some(&port.name))
    }

    /// Describes a route as messages show it: `via 10.0.2.2 (right)`.
    pub fn describe(&self, route: &Route) -> String {
        let mut text = match &route.kind {
            RouteKind::Unicast(paths) => {
                format!("via {}", settings::paths(paths, self.all_names()))
            }
            RouteKind::Blackhole => "blackhole".to_owned(),
            RouteKind::Prohibited => "prohibit".to_owned(),
            RouteKind::Unreachable => "unreachable".to_owned(),
            RouteKind::NextHopGroup(_) | RouteKind::Host => "host".to_owned(),
        };
        if let Some(resilient) = route.resilient {
            text += &format!(", resilient in {} buckets", resilient.buckets);
        }
        if route.vrf != VrfId::DEFAULT {
            text += &format!(", vrf {}", settings::vrf_name(self.all_names(), route.vrf));
        }
        text
    }
}

/// Returns the names of all interfaces by their numbers; an unused number has an empty name.
fn names<'a>(configs: impl IntoIterator<Item = &'a Config>) -> Vec<String> {
    let interfaces = configs.into_iter().flat_map(Config::interfaces);
    by_number(Vec::new(), interfaces.map(|(id, name, _)| (id.index(), name)))
}

/// Returns the names of all VRFs by their numbers, the default one's first; an unused number has an
/// empty name.
fn vrf_names<'a>(vrfs: impl Iterator<Item = &'a Vrf>) -> Vec<String> {
    by_number(vec![DEFAULT_VRF.to_owned()], vrfs.map(|vrf| (vrf.id.index(), vrf.name.as_str())))
}

/// Sorts names into the places of their numbers.
fn by_number<'a>(
    mut names: Vec<String>,
    named: impl Iterator<Item = (usize, &'a str)>,
) -> Vec<String> {
    for (number, name) in named {
        if names.len() <= number {
            names.resize(number + 1, String::new());
        }
        name.clone_into(&mut names[number]);
    }
    names
}

/// Returns the names of found VLANs that no statement of either configuration is about.
fn unstated(old: &Config, new: &Config) -> HashSet<String> {
    let is_stated = |config: &Config, id| config.vlan(id).is_some_and(|vlan| !vlan.is_found);
    let found = old.found_vlans().chain(new.found_vlans());
    let unstated = found.filter(|vlan| !is_stated(old, vlan.id) && !is_stated(new, vlan.id));
    unstated.map(|vlan| vlan.name.clone()).collect()
}

fn compare(old: &[Entry], new: &[Entry]) -> Vec<Setting> {
    let before: HashMap<&str, &Entry> = old.iter().map(|entry| (&*entry.what, entry)).collect();
    let after: HashSet<&str> = new.iter().map(|entry| &*entry.what).collect();
    let gone = old.iter().filter(|entry| !after.contains(&*entry.what)).map(|entry| Setting {
        what: entry.what.clone(),
        from: Some(entry.value.clone()),
        to: None,
        port: entry.port.clone(),
        effect: entry.effect,
    });
    let other = new.iter().filter_map(|entry| {
        let from = before.get(&*entry.what).map(|before| before.value.clone());
        (from.as_ref() != Some(&entry.value)).then(|| Setting {
            what: entry.what.clone(),
            from,
            to: Some(entry.value.clone()),
            port: entry.port.clone(),
            effect: entry.effect,
        })
    });
    gone.chain(other).collect()
}

fn ports(old: &Config, new: &Config) -> Changes<Port> {
    let (before, after) = (|port: &Port| old.port(port.id), |port: &Port| new.port(port.id));
    changes((&old.ports, before), (&new.ports, after), Port::is_open_as)
}

fn bonds(old: &Config, new: &Config) -> Changes<Bond> {
    let (before, after) = (|bond: &Bond| old.bond(bond.id), |bond: &Bond| new.bond(bond.id));
    changes((&old.bonds, before), (&new.bonds, after), Bond::is_open_as)
}

fn vlans(old: &Config, new: &Config) -> Changes<Vlan> {
    let (before, after) = (|vlan: &Vlan| old.vlan(vlan.id), |vlan: &Vlan| new.vlan(vlan.id));
    changes((&old.vlans, before), (&new.vlans, after), Vlan::is_open_as)
}

fn loopbacks(old: &Config, new: &Config) -> Changes<Loopback> {
    let (before, after) =
        (|of: &Loopback| old.loopback(of.id), |of: &Loopback| new.loopback(of.id));
    changes((&old.loopbacks, before), (&new.loopbacks, after), Loopback::is_open_as)
}

/// Compares objects, each side given by its list and a function that finds the counterpart of one.
fn changes<'a, T: Clone + 'a>(
    (old, before): (&[T], impl Fn(&T) -> Option<&'a T>),
    (new, after): (&[T], impl Fn(&T) -> Option<&'a T>),
    is_open_as: impl Fn(&T, &T) -> bool,
) -> Changes<T> {
    let mut changes = Changes::default();
    for wanted in new {
        match before(wanted) {
            None => changes.added.push(wanted.clone()),
            Some(former) if !is_open_as(former, wanted) => {
                changes.changed.push((former.clone(), wanted.clone()));
            }
            Some(_) => {}
        }
    }
    changes.removed.extend(old.iter().filter(|former| after(former).is_none()).cloned());
    changes
}

/// Returns the default settings of interfaces that only one of the configurations has.
fn unsaid(old: &Config, new: &Config) -> Vec<Setting> {
    let missing = |of: &Config, from: &Config| -> Vec<Entry> {
        let ports = of.ports.iter().filter(|port| from.port(port.id).is_none());
        let vlans = of.vlans.iter().filter(|vlan| from.vlan(vlan.id).is_none());
        let of_ports = ports.flat_map(|port| settings::of_port(&port.bare()));
        let bonds = of.bonds.iter().filter(|bond| from.bond(bond.id).is_none());
        let of_bonds = bonds.flat_map(|bond| settings::of_bond(&bond.bare()));
        let loopbacks = of.loopbacks.iter().filter(|of| from.loopback(of.id).is_none());
        of_ports
            .chain(of_bonds)
            .chain(loopbacks.flat_map(|of| settings::of_loopback(&of.bare())))
            .chain(vlans.flat_map(|vlan| settings::of_vlan(&vlan.bare())))
            .collect()
    };
    let mut unsaid = compare(&missing(old, new), &[]);
    unsaid.extend(compare(&[], &missing(new, old)));
    unsaid
}

fn routes(old: &[Route], new: &[Route]) -> Changes<Route> {
    let key = |route: &Route| -> (VrfId, IpNet, u32) { (route.vrf, route.prefix, route.metric) };
    let before: HashMap<_, _> = old.iter().map(|route| (key(route), route)).collect();
    let after: HashSet<_> = new.iter().map(key).collect();
    let mut changes = Changes::default();
    for route in new {
        match before.get(&key(route)) {
            None => changes.added.push(route.clone()),
            Some(was) if was.kind != route.kind || was.resilient != route.resilient => {
                changes.changed.push(((*was).clone(), route.clone()));
            }
            Some(_) => {}
        }
    }
    let gone = old.iter().filter(|route| !after.contains(&key(route)));
    changes.removed.extend(gone.cloned());
    changes
}

impl Config {
    /// Returns the names of the ports by their numbers; an unused number has an empty name.
    pub fn port_names(&self) -> Vec<String> {
        let ports = self.ports.iter().map(|port| (port.id.index(), port.name.as_str()));
        by_number(Vec::new(), ports)
    }

    /// Returns the names of all interfaces by their numbers; an unused number has an empty name.
    pub fn interface_names(&self) -> Vec<String> {
        names([self])
    }

    /// Returns the names of the VRFs by their numbers, the default one's first; an unused number
    /// has an empty name.
    pub fn vrf_names(&self) -> Vec<String> {
        vrf_names(self.vrfs.iter())
    }

    /// Returns the port with this number.
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.iter().find(|port| port.id == id)
    }

    /// Numbers the ports, VRFs and filters like another configuration does, so that both can be
    /// compared and one can replace the other: a port of the same name gets the same number, and a
    /// new one a number that the other does not use.
    ///
    /// # Errors
    /// Both together have more of them than there are numbers.
    pub fn align(&mut self, like: &Self) -> Result<(), String> {
        let wanted = self.ports.iter().map(|port| (&*port.name, port.id));
        let there = like.ports.iter().map(|port| (&*port.name, port.id));
        let all = (0..).map_while(PortId::new);
        let numbers = aligned(wanted, there, all)
            .map_err(|name| too_many(&format!("port \"{name}\""), "ports", MAX_PORTS))?;
        let mut interfaces: HashMap<InterfaceId, InterfaceId> =
            numbers.iter().map(|(&from, &to)| (from.into(), to.into())).collect();
        interfaces.extend(self.virtual_numbers(like)?);
        self.renumber(&numbers, &interfaces);
        self.align_vrfs(like)?;
        self.align_filters(like)
    }

    /// Maps the numbers of bonds, VLANs and loopbacks to those that they have in the other configuration. A name that is
    /// a bond in one and a VLAN in the other has two numbers.
    fn virtual_numbers(&self, like: &Self) -> Result<HashMap<InterfaceId, InterfaceId>, String> {
        let key = |of: Virtual<'_>| format!("{} \"{}\"", of.kind, of.name);
        let keys = |config: &Self| config.virtuals().map(|of| (key(of), of.id)).collect::<Vec<_>>();
        let (wanted, there) = (keys(self), keys(like));
        let all = (MAX_PORTS as u16..).map_while(InterfaceId::new);
        aligned(
            wanted.iter().map(|(key, id)| (key.as_str(), *id)),
            there.iter().map(|(key, id)| (key.as_str(), *id)),
            all,
        )
        .map_err(|what| too_many(what, "bonds, VLANs and loopbacks", MAX_INTERFACES - MAX_PORTS))
    }

    fn settings_mut(&mut self) -> impl Iterator<Item = &mut Interface> {
        let ports = self.ports.iter_mut().map(|port| &mut port.interface);
        let bonds = self.bonds.iter_mut().map(|bond| &mut bond.interface);
        let loopbacks = self.loopbacks.iter_mut().map(|loopback| &mut loopback.interface);
        let vlans = self.vlans.iter_mut().map(|vlan| &mut vlan.interface);
        ports.chain(bonds).chain(vlans).chain(loopbacks)
    }

    fn align_vrfs(&mut self, like: &Self) -> Result<(), String> {
        let wanted = self.vrfs.iter().map(|vrf| (&*vrf.name, vrf.id));
        let there = like.vrfs.iter().map(|vrf| (&*vrf.name, vrf.id));
        let all = (1..VRFS_MOST as u16).map(VrfId::new);
        let numbers = aligned(wanted, there, all)
            .map_err(|name| too_many(&format!("vrf \"{name}\""), "VRFs", VRFS_MOST - 1))?;
        self.renumber_vrfs(&numbers);
        Ok(())
    }

    fn renumber_vrfs(&mut self, numbers: &HashMap<VrfId, VrfId>) {
        let moved = |vrf: &mut VrfId| *vrf = numbers.get(vrf).copied().unwrap_or(*vrf);
        for route in &mut self.routes {
            moved(&mut route.vrf);
            if let RouteKind::Unicast(paths) = &mut route.kind {
                paths.iter_mut().for_each(|path| moved(&mut path.vrf));
            }
        }
        let hops = self.next_hops.iter_mut().flat_map(|hop| &mut hop.paths);
        hops.for_each(|path| moved(&mut path.vrf));
        for target in self.filters.iter_mut().flat_map(|filter| &mut filter.spec.targets) {
            if let Target::Vrf(vrf) = target {
                moved(vrf);
            }
        }
        for mirror in &mut self.mirrors {
            if let Destination::Erspan(to) = &mut mirror.session.to {
                moved(&mut to.vrf);
            }
        }
        self.settings_mut().for_each(|interface| moved(&mut interface.settings.vrf));
        self.vrfs.iter_mut().for_each(|vrf| moved(&mut vrf.id));
        self.vrfs.sort_by_key(|vrf| vrf.id);
    }

    /// Gives filters the numbers that they have in the other configuration, and unused numbers to
    /// new ones: a number must not mean another filter before all forwarders have new graphs.
    fn align_filters(&mut self, like: &Self) -> Result<(), String> {
        let wanted = self.filters.iter().map(|filter| (filter.name(), filter.number));
        let there = like.filters.iter().map(|filter| (filter.name(), filter.number));
        let numbers = aligned(wanted, there, 1..=FILTERS_MAX as u8)
            .map_err(|name| too_many(&format!("filter \"{name}\""), "filters", FILTERS_MAX))?;
        let moved = |number: &mut u8| *number = numbers.get(number).copied().unwrap_or(*number);
        self.filters.iter_mut().for_each(|filter| moved(&mut filter.number));
        let of_interfaces = self
            .settings_mut()
            .flat_map(|interface| [&mut interface.filter_in, &mut interface.filter_out]);
        for filter in of_interfaces.flatten() {
            moved(&mut filter.number);
        }
        Ok(())
    }

    fn renumber(
        &mut self,
        ports: &HashMap<PortId, PortId>,
        interfaces: &HashMap<InterfaceId, InterfaceId>,
    ) {
        let number = |port: PortId| ports.get(&port).copied().unwrap_or(port);
        let moved = |interface: &mut InterfaceId| {
            *interface = interfaces.get(interface).copied().unwrap_or(*interface);
        };
        let path = |path: &mut rib::Path| path.interface.iter_mut().for_each(moved);
        for route in &mut self.routes {
            if let RouteKind::Unicast(paths) = &mut route.kind {
                paths.iter_mut().for_each(path);
            }
        }
        for hop in &mut self.next_hops {
            hop.paths.iter_mut().for_each(path);
        }
        for import in &mut self.imports {
            import.via4.iter_mut().chain(&mut import.via6).for_each(path);
        }
        let rules = self.filters.iter_mut().flat_map(|filter| &mut filter.spec.filter.rules);
        for interface in rules.flat_map(|rule| &mut rule.matches.interface) {
            if let Some(mut id) = InterfaceId::new(*interface) {
                moved(&mut id);
                *interface = id.index() as u16;
            }
        }
        let treatments = self.filters.iter_mut().flat_map(|filter| &mut filter.spec.treatments);
        for to in treatments.filter_map(|treatment| treatment.mirror.as_mut()) {
            if let MirrorTo::Port(port) = to {
                *port = number(*port);
            }
        }
        self.neighbours.iter_mut().for_each(|neighbour| moved(&mut neighbour.port));
        for route in &mut self.multicast {
            moved(&mut route.from);
            route.to.iter_mut().for_each(|(port, _)| moved(port));
        }
        for mirror in &mut self.mirrors {
            mirror.session.from.iter_mut().for_each(moved);
            if let Destination::Port(port) = &mut mirror.session.to {
                *port = number(*port);
            }
        }
        for ports in self.sampled_mut().filter_map(|sampled| sampled.ports.as_mut()) {
            ports.iter_mut().for_each(|port| *port = number(*port));
        }
        for (ports, _) in &mut self.graphs.by_port {
            ports.iter_mut().for_each(|port| *port = number(*port));
        }
        self.ports.iter_mut().for_each(|port| port.id = number(port.id));
        self.ports.sort_by_key(|port| port.id);
        self.ports.iter_mut().flat_map(|port| &mut port.bond).for_each(moved);
        for bond in &mut self.bonds {
            moved(&mut bond.id);
            bond.ports.iter_mut().for_each(|port| *port = number(*port));
        }
        self.bonds.sort_by_key(|bond| bond.id);
        for vlan in &mut self.vlans {
            moved(&mut vlan.id);
            moved(&mut vlan.parent);
        }
        self.vlans.sort_by_key(|vlan| vlan.id);
        self.loopbacks.iter_mut().for_each(|loopback| moved(&mut loopback.id));
        self.loopbacks.sort_by_key(|loopback| loopback.id);
    }
}

/// Maps the numbers of the items in `wanted`: those with a name in `there` get the number there,
/// the others free ones of `all`. The error is a name for which no number is left.
fn aligned<'a, N: Copy + Eq + Hash>(
    wanted: impl Iterator<Item = (&'a str, N)>,
    there: impl Iterator<Item = (&'a str, N)>,
    all: impl Iterator<Item = N>,
) -> Result<HashMap<N, N>, &'a str> {
    let there: HashMap<&str, N> = there.collect();
    let used: HashSet<N> = there.values().copied().collect();
    let mut free = all.filter(|number| !used.contains(number));
    wanted
        .map(|(name, number)| {
            let aligned = there.get(name).copied().or_else(|| free.next()).ok_or(name)?;
            Ok((number, aligned))
        })
        .collect()
}

fn too_many(what: &str, several: &str, most: usize) -> String {
    format!(
        "{what}: exceeds {most} {several} together with the running configuration; remove some first"
    )
}

#[cfg(test)]
mod tests;
