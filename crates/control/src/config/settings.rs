//! A configuration as a list of single settings, in the terms of configurations, for the comparison of two
//! of them. Routes, of which there may be many, are compared separately.

use std::fmt::Display;
use std::time::{Duration, UNIX_EPOCH};

use ::script::{Policy, StepSettings};
use dataplane::class::ClassLimits;
use dataplane::distribution::TxConfig;
use dataplane::erspan::Erspan;
use dataplane::filters::{FilterSpec, Mark, Target, Treatment};
use dataplane::flow::FlowFields;
use dataplane::flows::FlowSettings;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::mirror_sessions::{Destination, MirrorTo, Session};
use dataplane::plan::Plans;
use dataplane::polling::{QUOTA, Wait};
use dataplane::reason::PuntClass;
use dataplane::shed::Shedding;
use dataplane::transmit::frame::Class;
use dataplane::vlan::Tag;
use slowpath::{Advertise, Discovery, Icmp, InterfaceSettings, Preference, Prefix};

use super::{
    Acceleration, Access, Api, Bond, Command, Config, ControlSocket, Cores, DEFAULT_VRF, Driver,
    Element, Events, Fib, Filter, Forwarders, Forwarding, Fpm, HttpListeners, Import, Interface,
    Ipfix, KernelRoutes, LOOPBACK, LacpSettings, LinkWish, Log, Loopback, Memory, Mirror,
    MulticastRoute, NamedNextHop, Neighbour, PathHash, Port, PortFilter, PrefixSet, Quarantine,
    Queues, RoutesFrom, Sampled, SetRoutes, Sflow, Slowpath, Snmp, Telnet, Tls, Vlan, Vrf, Wire,
    action_name,
};
use crate::rib;

/// Effect of changing a setting on a running router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: this unit takes it up, and packets are not affected.
    Live(Unit),
    /// Its port is closed and opened again, if the change concerns the opening of the device.
    Reopen,
    /// Like [`Self::Reopen`], unless the host interface only moves to another network namespace.
    ReopenHost,
    /// Forwarders get new graphs.
    Graph,
    /// It requires a restart, for this reason.
    Restart(&'static str),
}

/// Unit of a running router that takes up changed settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// The opening of devices: a running one keeps what it has.
    Opening,
    /// VRFs and their tables.
    Vrfs,
    /// Interfaces, as forwarders and the slow path know them.
    Interfaces,
    /// Addresses of interfaces.
    Addresses,
    /// The network namespace of host interfaces.
    Namespace,
    /// VLANs on their ports.
    Vlans,
    /// Bonds: the selection of the ports that take part.
    Bonds,
    /// Filter rules in devices.
    DeviceFilters,
    /// Receive queues: bursts, and the hash of ports that stay open.
    ReceiveQueues,
    /// Transmit queues and shapes of interfaces.
    TransmitQueues,
    /// Multicasts that devices pass on.
    DeviceMulticasts,
    /// Forwarders' waiting, receiving, shedding and transmitting.
    Forwarders,
    /// Number and cores of forwarders.
    Cores,
    /// Moves of queues between forwarders.
    Rebalancing,
    /// Queues for control traffic.
    ControlQueues,
    /// Static neighbours.
    Neighbours,
    /// Next hops with names.
    NextHops,
    /// Sets of prefixes.
    PrefixSets,
    /// Multicast routes.
    Multicast,
    /// Imported tables.
    Imports,
    /// The kernel and zebra as sources of routes.
    Sources,
    /// The resolution of gateways.
    Resolution,
    /// 240.0.0.0/4: routes, addresses and sources there, and errors to hosts there.
    ClassE,
    /// Slow path workers, and the rings to them.
    Workers,
    /// Limits of the slow path.
    SlowPath,
    /// The router's own ICMP.
    Icmp,
    /// The log.
    Log,
    /// Storage of packets that caused a panic.
    Quarantine,
    /// The kernel's rules that accelerated packets may bypass.
    Acceleration,
    /// The telnet service.
    Telnet,
    /// The listeners for metrics.
    Metrics,
    /// The listeners for the API over HTTP.
    Api,
    /// The roles of users.
    Access,
    /// Exporters of samples, and the SNMP agent.
    Export,
    /// Commands in Lua.
    Commands,
    /// Elements of Click, for their handlers.
    Elements,
    /// Sockets by which handlers are called.
    ControlSockets,
}

/// Reasons for a restart.
const MEMORY: &str = "packet memory is reserved when the router starts";

const IN_KERNEL: &str = "route tables are those of XDP programs from the start, or not";
const FLOWS: &str = "accelerated interfaces have their table of flows from the start";
const GROUPS: &str = "groups of paths have their buckets from the start";
const HASH: &str = "all threads have the hash from the start, so that they agree on paths";

/// Nanoseconds of a second.
const NANOS: i128 = 1_000_000_000;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name, unique: `port "left": mtu`.
    pub(super) what: String,
    /// The name of the port that it belongs to.
    pub(super) port: Option<String>,
    /// Its value.
    pub(super) value: String,
    /// The effect of a change.
    pub(super) effect: Effect,
}

/// The names of ports and VRFs by their numbers; empty where there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    pub(super) ports: &'a [String],
    pub(super) vrfs: &'a [String],
}

/// All settings, in the order in which they are shown.
pub(super) fn list(config: &Config, names: Names<'_>) -> Vec<Entry> {
    // In full, so that a new setting cannot be forgotten here.
    let Config {
        file: _,
        text: _,
        ports,
        bonds,
        vlans,
        loopbacks,
        vrfs,
        routes: _,
        next_hops,
        sets,
        filters,
        categories,
        neighbours,
        imports,
        multicast,
        mirrors,
        routes_from,
        fpm,
        cores,
        forwarders,
        forwarding,
        tx,
        slowpath,
        flows,
        icmp,
        memory,
        fib,
        log,
        quarantine,
        acceleration,
        telnet,
        elements,
        control_sockets,
        metrics,
        api,
        access,
        sflow,
        ipfix,
        snmp,
        commands,
        graphs,
        script,
    } = config;
    let mut list = List { names, entries: Vec::new() };
    for Vrf { id: _, line: _, name, table, namespace } in vrfs {
        let table = table.map(|table| format!("table {table}"));
        let table = namespace.as_ref().map(|name| format!("namespace {name}")).or(table);
        list.live(Unit::Vrfs, format!("vrf \"{name}\""), or(table, "no table"));
    }
    ports.iter().for_each(|port| list.port(port));
    bonds.iter().for_each(|bond| list.bond(bond));
    vlans.iter().for_each(|vlan| list.vlan(vlan));
    loopbacks.iter().for_each(|loopback| list.loopback(loopback));
    neighbours.iter().for_each(|neighbour| list.neighbour(neighbour));
    for NamedNextHop { line: _, name, paths: over } in next_hops {
        list.live(Unit::NextHops, format!("next_hop \"{name}\""), paths(over, names));
    }
    sets.iter().for_each(|set| list.set(set));
    filters.iter().for_each(|filter| list.filter(filter, (categories, mirrors)));
    multicast.iter().for_each(|route| list.multicast(route));
    mirrors.iter().for_each(|mirror| list.mirror(mirror));
    (1..).zip(imports).for_each(|(rank, import)| list.import(rank, import));
    list.sources(routes_from, fpm.as_ref());
    let Cores { control_line: _, control, forward_line: _, forward } = cores;
    let chosen =
        |cores: &[usize]| some(cores.iter().map(ToString::to_string), "the router's choice");
    list.live(Unit::Cores, "cores: control", chosen(control));
    list.live(Unit::Cores, "cores: forward", chosen(forward));
    let Forwarders {
        wait,
        budget,
        moderation,
        rebalance,
        control_queue,
        learned_flows,
        shed,
        events,
    } = forwarders;
    list.live(Unit::Forwarders, "forwarders: wait", wait.name());
    list.live(Unit::Forwarders, "forwarders: moderation_us", moderation.as_micros());
    list.live(Unit::Forwarders, "forwarders: budget", budget);
    list.live(Unit::Rebalancing, "forwarders: rebalance", rebalance);
    list.live(Unit::ControlQueues, "forwarders: control_queue", control_queue);
    list.live(Unit::ControlQueues, "forwarders: learned_flows", learned_flows);
    list.live(Unit::Forwarders, "forwarders: shed: percent", shed.percent);
    list.live(Unit::Forwarders, "forwarders: shed: keep", some(kept(shed), "none"));
    let names =
        (0..).zip(categories).filter(|(number, _)| shed.connections.categories >> number & 1 != 0);
    list.live(
        Unit::Forwarders,
        "forwarders: shed: categories",
        some(names.map(|(_, name)| name.clone()), "none"),
    );
    list.live(
        Unit::Cores,
        "forwarders: mode",
        if events.is_some() { "events" } else { "run-to-completion" },
    );
    if let Some(events) = events {
        list.events(events);
    }
    let Forwarding { class_e, resolve_via_default, hash: PathHash { seed, fields }, resilient } =
        *forwarding;
    list.live(Unit::ClassE, "forwarding: class_e", class_e);
    list.live(Unit::Resolution, "forwarding: resolve_via_default", resolve_via_default);
    let buckets = resilient.map(|resilient| resilient.buckets);
    list.fixed("forwarding: resilient", or(buckets, "no"), GROUPS);
    let FlowFields { ports, flow_label, inner, symmetric } = fields;
    list.fixed("forwarding: hash: fields", if ports { "l3+l4" } else { "l3" }, HASH);
    list.fixed("forwarding: hash: flow_label", flow_label, HASH);
    list.fixed("forwarding: hash: inner", inner, HASH);
    list.fixed("forwarding: hash: symmetric", symmetric, HASH);
    list.fixed("forwarding: hash: seed", or(seed, "another at each start"), HASH);
    let TxConfig { burst, flush } = tx;
    list.live(Unit::Forwarders, "tx: burst", burst);
    list.live(Unit::Forwarders, "tx: flush_us", flush.as_micros());
    list.slowpath(slowpath);
    let FlowSettings { most, mut timeouts } = *flows;
    for (key, timeout) in timeouts.named() {
        list.graph(format!("flows: {key}"), timeout);
    }
    list.graph("flows: most", most);
    // Listed as forwarding: class_e.
    let Icmp { ttl, echo, class_e: _ } = icmp;
    list.live(Unit::Icmp, "icmp: ttl", ttl);
    list.live(Unit::Icmp, "icmp: echo", echo);
    let Memory { mbufs, no_huge } = memory;
    list.fixed("memory: mbufs", or(*mbufs, "as many as are needed"), MEMORY);
    list.fixed("memory: no_huge", no_huge, MEMORY);
    let Fib { ipv4, ipv6 } = fib;
    list.graph("fib: ipv4", ipv4.name());
    list.graph("fib: ipv6", ipv6.name());
    let Log { level } = log;
    list.live(Unit::Log, "log: level", level.unwrap_or("default"));
    let Quarantine { directory, packets, bytes } = quarantine;
    list.live(Unit::Quarantine, "quarantine: directory", directory.display());
    list.live(Unit::Quarantine, "quarantine: packets", packets);
    list.live(Unit::Quarantine, "quarantine: mib", bytes >> 20);
    let Acceleration { bypass, has_kernel_filters, in_kernel, leaves_vlans, flows } = acceleration;
    let kinds = some(bypass.iter().map(ToString::to_string), "nothing");
    list.live(Unit::Acceleration, "accelerate: bypass", kinds);
    let filters = if *has_kernel_filters { "kernel" } else { "configuration" };
    list.live(Unit::Acceleration, "accelerate: filters", filters);
    list.live(Unit::Acceleration, "accelerate: vlans", !leaves_vlans);
    list.fixed("accelerate: in_kernel", in_kernel, IN_KERNEL);
    list.fixed("accelerate: flows", flows, FLOWS);
    for Command { line: _, name, help } in commands {
        list.live(Unit::Commands, format!("command \"{name}\""), help);
    }
    if let Some(Telnet { listen, sessions, idle, users }) = telnet {
        list.live(Unit::Telnet, "telnet: listen", listen);
        list.live(Unit::Telnet, "telnet: sessions", sessions);
        list.live(Unit::Telnet, "telnet: idle_s", idle.as_secs());
        list.live(
            Unit::Telnet,
            "telnet: users",
            some(users.iter().cloned(), "none besides the router's and root"),
        );
    }
    elements.iter().for_each(|element| list.element(element));
    control_sockets.iter().for_each(|socket| list.control_socket(socket));
    if let Some(at) = metrics {
        list.listeners((Unit::Metrics, "metrics"), at);
    }
    if let Some(Api { at, token_file, dashboard }) = api {
        list.listeners((Unit::Api, "api"), at);
        let token_file = token_file.as_ref().map(|path| path.display());
        list.live(Unit::Api, "api: token_file", or(token_file, "none"));
        list.live(Unit::Api, "api: dashboard", dashboard);
    }
    if let Some(Access { group, read, operate, configure }) = access {
        list.live(Unit::Access, "access: group", or(group.as_ref(), "none"));
        for (role, holders) in [("read", read), ("operate", operate), ("configure", configure)] {
            let holders = some(holders.iter().map(ToString::to_string), "only root");
            list.live(Unit::Access, format!("access: {role}"), holders);
        }
    }
    sflow.iter().for_each(|sflow| list.sflow(sflow));
    ipfix.iter().for_each(|ipfix| list.ipfix(ipfix));
    if let Some(Snmp { agentx }) = snmp {
        list.live(Unit::Export, "snmp: agentx", agentx.display());
    }
    list.graphs(graphs);
    script.iter().flat_map(|script| &script.steps).for_each(|step| list.step(step));
    list.entries
}

/// Returns the settings of a port.
pub(super) fn of_port(port: &Port) -> Vec<Entry> {
    let mut list = List { names: Names { ports: &[], vrfs: &[] }, entries: Vec::new() };
    list.port(port);
    list.entries
}

/// Returns the settings of a VLAN.
pub(super) fn of_vlan(vlan: &Vlan) -> Vec<Entry> {
    let mut list = List { names: Names { ports: &[], vrfs: &[] }, entries: Vec::new() };
    list.vlan(vlan);
    list.entries
}

/// Returns the settings of a loopback.
pub(super) fn of_loopback(loopback: &Loopback) -> Vec<Entry> {
    let mut list = List { names: Names { ports: &[], vrfs: &[] }, entries: Vec::new() };
    list.loopback(loopback);
    list.entries
}

/// Returns the settings of a bond.
pub(super) fn of_bond(bond: &Bond) -> Vec<Entry> {
    let mut list = List { names: Names { ports: &[], vrfs: &[] }, entries: Vec::new() };
    list.bond(bond);
    list.entries
}

/// Returns the name of a VRF by its number.
pub(super) fn vrf_name<'a>(names: Names<'a>, vrf: VrfId) -> &'a str {
    names.vrfs.get(vrf.index()).map_or(DEFAULT_VRF, String::as_str)
}

/// Returns the name of a port by its number.
pub(super) fn port_name<'a>(names: Names<'a>, port: InterfaceId) -> &'a str {
    names.ports.get(port.index()).map_or("?", String::as_str)
}

/// Formats paths as in messages: `10.0.2.2 (right) weight 2`.
pub(super) fn paths(paths: &[rib::Path], names: Names<'_>) -> String {
    let path = |path: &rib::Path| {
        let place = match (path.via, path.interface) {
            (Some(via), Some(port)) => format!("{via} ({})", port_name(names, port)),
            (Some(via), None) if path.vrf == VrfId::DEFAULT => format!("{via} (recursive)"),
            (Some(via), None) => format!("{via} (recursive in {})", vrf_name(names, path.vrf)),
            (None, port) => port.map_or_else(String::new, |port| port_name(names, port).to_owned()),
        };
        if path.weight == 1 { place } else { format!("{place} weight {}", path.weight) }
    };
    paths.iter().map(path).collect::<Vec<_>>().join(", ")
}

fn some(items: impl Iterator<Item = String>, none: &str) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { none.to_owned() } else { items.join(", ") }
}

fn kept(shed: &Shedding) -> impl Iterator<Item = String> {
    let established = shed.connections.established.then_some("established");
    shed.keep.iter().map(Class::name).chain(established).map(str::to_owned)
}

fn or(value: Option<impl Display>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), |value| value.to_string())
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs()
}

/// The list of a port's settings.
struct OfPort<'a, 'b> {
    list: &'a mut List<'b>,
    /// The statement: `port`, `bond`, `vlan` or `loopback`.
    kind: &'a str,
    port: &'a str,
}

impl OfPort<'_, '_> {
    fn live(&mut self, unit: Unit, setting: &str, value: impl Display) {
        self.add(Effect::Live(unit), setting, value);
    }

    /// Adds a setting that takes effect when the device is opened.
    fn opened(&mut self, setting: &str, value: impl Display) {
        self.add(Effect::Reopen, setting, value);
    }

    fn queues(&mut self, queues: &Queues) {
        let Queues {
            rx,
            tx,
            rx_descriptors,
            tx_descriptors,
            rx_burst,
            quota,
            wait,
            rx_thresholds,
            tx_thresholds,
            rx_cores,
            tx_cores,
            rss,
            spread,
            control,
        } = queues;
        let cores = |cores: &[usize]| some(cores.iter().map(ToString::to_string), "near and even");
        self.opened("rx_queues", or(*rx, "one a forwarder"));
        self.opened("tx_queues", or(*tx, "one a forwarder"));
        self.opened("rx_descriptors", or(*rx_descriptors, "the driver's"));
        self.opened("tx_descriptors", or(*tx_descriptors, "the driver's"));
        self.live(Unit::ReceiveQueues, "rx_burst", or(*rx_burst, "the driver's"));
        self.live(Unit::Forwarders, "quota", quota.unwrap_or(QUOTA));
        self.live(Unit::Forwarders, "wait", wait.map_or("as forwarders", Wait::name));
        self.opened("rx_thresholds", rx_thresholds);
        self.opened("tx_thresholds", tx_thresholds);
        self.opened("rx_cores", cores(rx_cores));
        self.opened("tx_cores", cores(tx_cores));
        self.opened("rss", or(rss.as_ref(), "the device's"));
        self.opened("spread", spread.name());
        self.opened("control_queue", control);
    }

    /// The settings that ports, bonds and VLANs have in common.
    fn interface(&mut self, interface: &Interface, vrf: &str) {
        let Interface {
            settings,
            addresses,
            unnumbered,
            features,
            filter_in,
            filter_out,
            has_vlans: _,
            is_mirrored: _,
            is_sampled: _,
            is_translated: _,
            is_bonded: _,
            host,
            ttl_security,
            queue,
            shape,
        } = interface;
        // Redirects are listed with the features.
        let InterfaceSettings {
            vrf: _,
            unreachables,
            redirects: _,
            dad,
            proxy,
            relay,
            advertise,
            discovery,
        } = settings;
        let segmentation = host.as_ref().map(|host| host.segmentation);
        let finds_vlans = host.as_ref().is_some_and(|host| host.finds_vlans);
        let host = host.as_ref().map(|host| match &host.netns {
            _ if host.in_kernel => "the kernel's VLAN device".to_owned(),
            _ if host.is_device => "the port's device".to_owned(),
            Some(netns) if host.of_vrf => format!("in namespace {netns} of its VRF"),
            Some(netns) => format!("in namespace {netns}"),
            None => "in the router's namespace".to_owned(),
        });
        let of = self;
        of.live(Unit::Interfaces, "vrf", vrf);
        of.live(
            Unit::Addresses,
            "address",
            some(addresses.iter().map(ToString::to_string), "none"),
        );
        of.live(Unit::Addresses, "unnumbered", or(unnumbered.as_ref(), "none"));
        of.add(Effect::ReopenHost, "host", or(host, "false"));
        of.opened("host segmentation", or(segmentation, "true"));
        of.live(Unit::Vlans, "host vlans", if finds_vlans { "kernel" } else { "false" });
        for (feature, value) in features {
            of.live(Unit::Interfaces, feature.name(), feature.word(*value));
        }
        let filter = |of: &Option<PortFilter>| or(of.as_ref().map(|of| of.name.clone()), "none");
        of.add(Effect::Graph, "filter inward", filter(filter_in));
        of.add(Effect::Graph, "filter outward", filter(filter_out));
        let hardware = filter_in.as_ref().is_some_and(|filter| filter.hardware);
        of.live(Unit::DeviceFilters, "filter hardware", hardware);
        of.live(Unit::TransmitQueues, "queue", or(*queue, "the device's"));
        of.live(Unit::TransmitQueues, "shape", or(*shape, "none"));
        of.live(Unit::Interfaces, "unreachables", unreachables);
        of.live(Unit::Interfaces, "ttl_security", or(*ttl_security, "none"));
        of.live(Unit::Interfaces, "dad", dad);
        of.live(Unit::Interfaces, "proxy", some(proxy.iter().map(ToString::to_string), "none"));
        of.live(
            Unit::Interfaces,
            "dhcp_relay",
            some(relay.iter().map(ToString::to_string), "none"),
        );
        of.live(Unit::Interfaces, "advertise", or(advertise.as_ref().map(advertised), "false"));
        of.live(
            Unit::Interfaces,
            "router_discovery",
            or(discovery.as_ref().map(discovered), "false"),
        );
    }

    fn add(&mut self, effect: Effect, setting: &str, value: impl Display) {
        let what = format!("{} \"{}\": {setting}", self.kind, self.port);
        let port = Some(self.port.to_owned());
        self.list.entries.push(Entry { what, port, value: value.to_string(), effect });
    }
}

struct List<'a> {
    names: Names<'a>,
    entries: Vec<Entry>,
}

impl List<'_> {
    fn add(&mut self, effect: Effect, what: impl Into<String>, value: impl Display) {
        self.entries.push(Entry {
            what: what.into(),
            port: None,
            value: value.to_string(),
            effect,
        });
    }

    /// A bond's ports and hash are part of the forwarders' graphs.
    fn bond(&mut self, bond: &Bond) {
        let Bond {
            id: _,
            line: _,
            name,
            ports,
            mode,
            hash,
            minimum_links,
            maximum_links,
            lacp,
            mac,
            mtu,
            interface,
        } = bond;
        let LacpSettings { fast, passive, priority } = lacp;
        let ports = ports.iter().map(|&port| port_name(self.names, port.into()).to_owned());
        let ports = some(ports, "none");
        let vrf = vrf_name(self.names, interface.settings.vrf);
        let mut of = OfPort { list: self, kind: "bond", port: name };
        of.add(Effect::Graph, "ports", ports);
        of.live(Unit::Bonds, "mode", mode.name());
        of.add(Effect::Graph, "hash", hash);
        of.live(Unit::Bonds, "minimum_links", minimum_links);
        of.live(Unit::Bonds, "maximum_links", or(*maximum_links, "all"));
        of.live(Unit::Bonds, "lacp rate", if *fast { "fast" } else { "slow" });
        of.live(Unit::Bonds, "lacp passive", passive);
        of.live(Unit::Bonds, "lacp priority", priority);
        of.add(Effect::Graph, "mac", or(*mac, "the first port's"));
        of.live(Unit::Bonds, "mtu", or(*mtu, "its ports'"));
        of.interface(interface, vrf);
    }

    /// A VLAN's tag is part of the forwarders' graphs.
    fn vlan(&mut self, vlan: &Vlan) {
        let Vlan { id: _, line: _, name, parent, tag, is_found: _, mtu, interface } = vlan;
        let Tag { protocol, id, priority } = tag;
        let parent = port_name(self.names, *parent);
        let vrf = vrf_name(self.names, interface.settings.vrf);
        let mut of = OfPort { list: self, kind: "vlan", port: name };
        of.add(Effect::Graph, "parent", parent);
        of.add(Effect::Graph, "id", id);
        of.add(Effect::Graph, "protocol", protocol);
        of.add(Effect::Graph, "priority", priority);
        of.live(Unit::Vlans, "mtu", or(*mtu, "the parent's"));
        of.interface(interface, vrf);
    }

    fn loopback(&mut self, loopback: &Loopback) {
        let Loopback { id: _, line: _, name, interface } = loopback;
        let vrf = vrf_name(self.names, interface.settings.vrf);
        OfPort { list: self, kind: LOOPBACK, port: name }.interface(interface, vrf);
    }

    /// Adds a setting that only a restart changes.
    fn fixed(&mut self, what: impl Into<String>, value: impl Display, why: &'static str) {
        self.add(Effect::Restart(why), what, value);
    }

    fn live(&mut self, unit: Unit, what: impl Into<String>, value: impl Display) {
        self.add(Effect::Live(unit), what, value);
    }

    fn graph(&mut self, what: impl Into<String>, value: impl Display) {
        self.add(Effect::Graph, what, value);
    }

    fn port(&mut self, port: &Port) {
        let Port {
            id: _,
            line: _,
            name,
            device,
            driver,
            accelerate,
            // That of `turnpike.accelerate`.
            in_kernel: _,
            take_over,
            mac,
            mtu,
            queues,
            offloads,
            link,
            promiscuous,
            all_multicast,
            bond: _,
            interface,
        } = port;
        let vrf = vrf_name(self.names, interface.settings.vrf);
        let mut of = OfPort { list: self, kind: "port", port: name };
        let driver = driver.map(Driver::name);
        of.opened("device", device);
        of.opened("driver", or(driver, "what works"));
        of.opened("accelerate", accelerate);
        of.live(Unit::Opening, "take_over", take_over);
        of.opened("mac", or(*mac, "the device's"));
        of.opened("mtu", or(*mtu, "the device's"));
        of.queues(queues);
        let offloads = offloads.iter().map(|(offload, on)| format!("{offload} {on}"));
        of.opened("offloads", some(offloads, "those of the device that help"));
        let wished = (*link != LinkWish::default()).then_some(link);
        of.opened("link", or(wished, "the device's"));
        of.opened("promiscuous", promiscuous);
        of.live(Unit::DeviceMulticasts, "all_multicast", all_multicast);
        of.interface(interface, vrf);
    }

    fn neighbour(&mut self, neighbour: &Neighbour) {
        let Neighbour { line: _, port, address, mac } = neighbour;
        let port = port_name(self.names, *port);
        self.live(Unit::Neighbours, format!("neighbour {address} on port \"{port}\""), mac);
    }

    /// Lists each element separately, so that a plan shows the added and removed ones.
    fn set(&mut self, set: &PrefixSet) {
        let PrefixSet { line: _, name, elements, routes } = set;
        let what = format!("prefix_set \"{name}\"");
        self.live(Unit::PrefixSets, what.clone(), "there");
        if let Some(SetRoutes { vrf, sources, origin_as }) = routes {
            let vrf = vrf_name(self.names, *vrf);
            let sources: Vec<_> = sources.iter().map(|source| source.name()).collect();
            let mut routes = format!("{} in VRF {vrf}", sources.join(", "));
            if !origin_as.is_empty() {
                let all: Vec<_> = origin_as.iter().map(u32::to_string).collect();
                routes += &format!(" of AS {}", all.join(", "));
            }
            self.live(Unit::PrefixSets, format!("{what} routes"), routes);
        }
        for net in elements {
            self.live(Unit::PrefixSets, format!("prefix_set \"{name}\": {net}"), "in it");
        }
    }

    /// Lists each rule separately, so that a plan shows the changed ones.
    fn filter(&mut self, filter: &Filter, (categories, mirrors): (&[String], &[Mirror])) {
        let FilterSpec { filter: acl::Filter { name, rules, default }, treatments, targets } =
            &filter.spec;
        for (place, (rule, treatment)) in rules.iter().zip(treatments).enumerate() {
            let Treatment { police, mark, mirror, log, class, category, target, forwarders } =
                treatment;
            let forwarders = forwarders.map_or(String::new(), |of| format!(", {of}"));
            let log = if *log { ", logged" } else { "" };
            let police = police.map_or(String::new(), |police| format!(", police {police}"));
            let mark = if *mark == Mark::NONE { String::new() } else { format!(", {mark}") };
            let mirror = match mirror {
                Some(MirrorTo::Port(port)) => {
                    format!(", mirrored to {}", port_name(self.names, (*port).into()))
                }
                Some(MirrorTo::Session(number)) => {
                    let session = mirrors.get(usize::from(*number));
                    format!(", mirrored by {}", session.map_or("?", |of| of.session.name.as_str()))
                }
                None => String::new(),
            };
            let class = class.map_or(String::new(), |class| format!(" as {}", class.name()));
            let category = category.and_then(|number| categories.get(usize::from(number)));
            let category = category.map_or(String::new(), |name| format!(", category {name}"));
            let target = target.and_then(|place| targets.get(usize::from(place)));
            let target = target.map_or(String::new(), |target| match target {
                Target::NextHop(name) => format!(", next_hop {name}"),
                Target::Vrf(vrf) => format!(", vrf {}", vrf_name(self.names, *vrf)),
            });
            let action = action_name(rule.action);
            let text = format!(
                "{}: {action}{class}{category}{target}{forwarders}{police}{mark}{mirror}{log}",
                rule.matches
            );
            self.graph(format!("filter \"{name}\": {}", filter.spec.filter.label(place)), text);
        }
        self.graph(format!("filter \"{name}\": default"), action_name(*default));
    }

    fn multicast(&mut self, route: &MulticastRoute) {
        let MulticastRoute { line: _, group, source, from, to } = route;
        let source = or(*source, "any");
        let to = to.iter().map(|(port, ttl)| match ttl {
            1 => port_name(self.names, *port).to_owned(),
            ttl => format!("{} (ttl {ttl})", port_name(self.names, *port)),
        });
        let value = format!("{} -> {}", port_name(self.names, *from), some(to, "nowhere"));
        self.live(Unit::Multicast, format!("multicast {group} from {source}"), value);
    }

    fn sflow(&mut self, sflow: &Sflow) {
        let Sflow { sampled, agent, header, counters } = sflow;
        self.sampled("sflow", sampled);
        self.graph("sflow: header", header);
        self.live(Unit::Export, "sflow: agent", or(*agent, "an interface's address"));
        self.live(Unit::Export, "sflow: counters_s", or(counters.map(seconds), "off"));
    }

    fn ipfix(&mut self, ipfix: &Ipfix) {
        let Ipfix { sampled, active, inactive, domain, flows, templates } = ipfix;
        self.sampled("ipfix", sampled);
        self.live(Unit::Export, "ipfix: active_s", seconds(*active));
        self.live(Unit::Export, "ipfix: inactive_s", seconds(*inactive));
        self.live(Unit::Export, "ipfix: domain", domain);
        self.live(Unit::Export, "ipfix: flows", flows);
        self.live(Unit::Export, "ipfix: templates_s", seconds(*templates));
    }

    /// Samples are taken by the forwarders' graphs.
    fn sampled(&mut self, statement: &str, sampled: &Sampled) {
        let Sampled { collectors, source, ports, sample } = sampled;
        let collectors = some(collectors.iter().map(ToString::to_string), "none");
        self.live(Unit::Export, format!("{statement}: collector"), collectors);
        self.live(Unit::Export, format!("{statement}: source"), or(*source, "the kernel's choice"));
        let names = ports.iter().flatten().map(|port| port_name(self.names, (*port).into()));
        let names = some(names.map(str::to_owned), if ports.is_some() { "none" } else { "all" });
        self.graph(format!("{statement}: interfaces"), names);
        self.graph(format!("{statement}: sample"), sample);
    }

    /// Sessions are part of the forwarders' graphs.
    fn mirror(&mut self, mirror: &Mirror) {
        let Mirror { line: _, session } = mirror;
        let Session { name, from, direction, to, sample, vlan } = session;
        let from = from.iter().map(|from| port_name(self.names, *from).to_owned());
        let from = some(from, "rules");
        let to = match to {
            Destination::Port(port) => port_name(self.names, (*port).into()).to_owned(),
            Destination::Erspan(to) => self.erspan(to),
        };
        let sample = if *sample > 1 { format!(", one of {sample}") } else { String::new() };
        let vlan = vlan.map_or(String::new(), |vlan| format!(", vlan {vlan}"));
        let value = format!("{from} {} -> {to}{sample}{vlan}", direction.name());
        self.graph(format!("mirror \"{name}\""), value);
    }

    fn erspan(&self, to: &Erspan) -> String {
        let Erspan { source, destination, vrf, id, dscp, ttl, length } = to;
        let mut said = format!("{destination} from {source}, erspan {id}");
        if *vrf != VrfId::DEFAULT {
            said += &format!(", vrf {}", vrf_name(self.names, *vrf));
        }
        if *dscp != 0 {
            said += &format!(", dscp {dscp}");
        }
        said += &format!(", ttl {ttl}");
        said + &length.map_or(String::new(), |length| format!(", length {length}"))
    }

    fn import(&mut self, rank: usize, import: &Import) {
        let Import { line: _, file, modified, via4, via6 } = import;
        let via = format!("{}; {}", paths(via4, self.names), paths(via6, self.names));
        // A router started with a relative name has already resolved it.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        self.live(Unit::Imports, format!("import {rank}: file"), file.display());
        let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        let modified =
            since.map(|since| format!("{}.{:09}", since.as_secs(), since.subsec_nanos()));
        self.live(Unit::Imports, format!("import {rank}: modified"), or(modified, "no such file"));
        self.live(Unit::Imports, format!("import {rank}: via"), via.trim_matches([';', ' ']));
    }

    fn listeners(&mut self, (unit, what): (Unit, &str), at: &HttpListeners) {
        let HttpListeners { socket, group, listen, tls } = at;
        let socket = socket.as_ref().map(|path| path.display());
        self.live(unit, format!("{what}: socket"), or(socket, "none"));
        self.live(unit, format!("{what}: group"), or(group.as_ref(), "none"));
        self.live(unit, format!("{what}: listen"), or(*listen, "none"));
        let files = tls.as_ref().map(|Tls { certificate, key, client_ca }| {
            (Some(certificate), Some(key), client_ca.as_ref())
        });
        let (certificate, key, client_ca) = files.unwrap_or_default();
        for (name, file) in [("certificate", certificate), ("key", key), ("client_ca", client_ca)] {
            let path = file.map(|file| file.path.display());
            self.live(unit, format!("{what}: {name}"), or(path, "none"));
            // The texts of files are no settings; another file at the same path is.
            let changed = file.and_then(|file| file.changed);
            let changed = changed.map(|ns| format!("{}.{:09}", ns / NANOS, ns % NANOS));
            if let Some(changed) = changed {
                self.live(unit, format!("{what}: {name}: changed"), changed);
            }
        }
    }

    fn events(&mut self, events: &Events) {
        let Events { line: _, device, order, receive_core, scheduler_core } = events;
        self.live(Unit::Cores, "forwarders: device", device);
        self.live(Unit::Cores, "forwarders: order", order.name());
        self.live(Unit::Cores, "forwarders: receive_core", or(*receive_core, "the first"));
        self.live(Unit::Cores, "forwarders: scheduler_core", or(*scheduler_core, "control"));
    }

    fn sources(&mut self, routes_from: &RoutesFrom, fpm: Option<&Fpm>) {
        let RoutesFrom { kernel, fpm: by_fpm } = routes_from;
        self.live(Unit::Sources, "routes_from: fpm", by_fpm);
        self.live(Unit::Sources, "routes_from: kernel", kernel.is_some());
        if let Some(KernelRoutes { audit, receive_buffer }) = kernel {
            self.live(Unit::Sources, "routes_from: audit_s", or(audit.map(seconds), "never"));
            self.live(Unit::Sources, "routes_from: receive_buffer_mib", receive_buffer >> 20);
        }
        if let Some(Fpm { listen, keep, users }) = fpm {
            self.live(Unit::Sources, "fpm: listen", listen);
            self.live(Unit::Sources, "fpm: keep_s", seconds(*keep));
            self.live(
                Unit::Sources,
                "fpm: users",
                some(users.iter().cloned(), "none besides the router's, root and frr"),
            );
        }
    }

    fn slowpath(&mut self, slowpath: &Slowpath) {
        let Slowpath { workers, limits, classes } = slowpath;
        // The other limits are not configurable.
        let slowpath::Limits {
            neighbours,
            queue,
            held: _,
            fragments: _,
            reassembly,
            retry: _,
            tries,
            reachable,
            probe_delay: _,
            failed: _,
            icmp_rate,
            icmp_burst,
            icmp_prefix_rate,
            icmp_prefix_burst,
            resolve_rate: _,
            resolve_burst: _,
        } = limits;
        self.live(Unit::SlowPath, "slowpath: neighbours", neighbours);
        self.live(Unit::SlowPath, "slowpath: queue", queue);
        self.live(Unit::SlowPath, "slowpath: retries", tries);
        self.live(Unit::SlowPath, "slowpath: timeout_s", seconds(*reachable));
        self.live(Unit::SlowPath, "slowpath: reassembly_s", seconds(*reassembly));
        self.live(Unit::Workers, "slowpath: workers", workers);
        self.live(Unit::SlowPath, "slowpath: icmp_rate", icmp_rate);
        self.live(Unit::SlowPath, "slowpath: icmp_burst", icmp_burst);
        self.live(Unit::SlowPath, "slowpath: icmp_prefix_rate", icmp_prefix_rate);
        self.live(Unit::SlowPath, "slowpath: icmp_prefix_burst", icmp_prefix_burst);
        for (class, ClassLimits { rate, weight, queue }) in PuntClass::ALL.iter().zip(classes) {
            let key = |setting: &str| format!("slowpath: classes.{}.{setting}", class.name());
            self.live(Unit::SlowPath, key("rate"), rate);
            self.live(Unit::SlowPath, key("weight"), weight);
            self.live(Unit::Workers, key("queue"), queue);
        }
    }

    fn element(&mut self, element: &Element) {
        let Element { line: _, name, class, config, inputs, outputs, to, step, counts, port, ways } =
            element;
        let what = |setting: &str| format!("element \"{name}\": {setting}");
        self.live(Unit::Elements, format!("element \"{name}\""), format!("{class}({config})"));
        let wire = |wire: &Wire| format!("[{}] -> [{}] {}", wire.output, wire.input, wire.to);
        let lists = [
            ("inputs", inputs.clone()),
            ("outputs", outputs.clone()),
            ("to", to.iter().map(wire).collect()),
            ("counts", counts.clone()),
            ("ways", ways.clone()),
        ];
        for (setting, list) in lists {
            self.live(Unit::Elements, what(setting), some(list.into_iter(), "none"));
        }
        self.live(Unit::Elements, what("step"), or(step.as_ref(), "none"));
        self.live(Unit::Elements, what("port"), or(port.as_ref(), "none"));
    }

    fn control_socket(&mut self, socket: &ControlSocket) {
        let ControlSocket { line: _, name, listen, read_only, verbose, clients, idle, users } =
            socket;
        let mut live = |setting: &str, value: String| {
            self.live(Unit::ControlSockets, format!("control_socket \"{name}\": {setting}"), value);
        };
        live("listen", listen.to_string());
        live("read_only", read_only.to_string());
        live("verbose", verbose.to_string());
        live("clients", clients.to_string());
        live("idle_s", idle.as_secs().to_string());
        live("users", some(users.iter().cloned(), "none besides the router's and root"));
    }

    fn graphs(&mut self, plans: &Plans) {
        for (what, value) in plans.main.described() {
            self.graph(format!("graph: {what}"), value);
        }
        for (ports, plan) in &plans.by_port {
            let ports = some(
                ports.iter().map(|&port| port_name(self.names, port.into()).to_owned()),
                "none",
            );
            for (what, value) in plan.described() {
                self.graph(format!("graph of {ports}: {what}"), value);
            }
        }
    }

    fn step(&mut self, step: &StepSettings) {
        let StepSettings { name, outputs, drops, limit, policy, budget_us } = step;
        let on_failure = match policy {
            Policy::Bypass => "bypass",
            Policy::Drop => "drop",
        };
        let (outputs, drops) = (outputs.join(", "), some(drops.iter().cloned(), "none"));
        let value = format!(
            "outputs {outputs}; drops {drops}; limit {limit}, on_failure {on_failure}, budget_us {budget_us}"
        );
        self.graph(format!("step in Lua \"{name}\""), value);
    }
}

fn advertised(advertise: &Advertise) -> String {
    let Advertise {
        interval,
        least_interval,
        lifetime,
        managed,
        other,
        preference,
        hop_limit,
        reachable,
        retransmit,
        mtu,
        prefixes,
        dns,
    } = advertise;
    let preference = match preference {
        Preference::High => "high",
        Preference::Medium => "medium",
        Preference::Low => "low",
    };
    let prefixes = match prefixes {
        None => "those of its addresses".to_owned(),
        Some(prefixes) => some(prefixes.iter().map(prefix), "none"),
    };
    format!(
        "interval_s {}, least_interval_s {}, lifetime_s {}, managed {managed}, other {other}, \
         preference {preference}, hop_limit {hop_limit}, reachable_ms {}, retransmit_ms {}, mtu {}, \
         prefixes {prefixes}, dns {}",
        seconds(*interval),
        seconds(*least_interval),
        seconds(*lifetime),
        reachable.as_millis(),
        retransmit.as_millis(),
        or(*mtu, "not said"),
        some(dns.iter().map(ToString::to_string), "none"),
    )
}

fn prefix(prefix: &Prefix) -> String {
    let Prefix { net, valid, preferred, on_link, autonomous } = prefix;
    format!(
        "{net} (valid_s {}, preferred_s {}, on_link {on_link}, autonomous {autonomous})",
        seconds(*valid),
        seconds(*preferred)
    )
}

fn discovered(discovery: &Discovery) -> String {
    let Discovery { interval, least_interval, lifetime, preference, broadcast } = discovery;
    format!(
        "interval_s {}, least_interval_s {}, lifetime_s {}, preference {preference}, broadcast {broadcast}",
        seconds(*interval),
        seconds(*least_interval),
        seconds(*lifetime)
    )
}
