//! The configuration: a Lua script whose statements describe the router.
//!
//! ```lua
//! local turnpike = require "turnpike"
//! turnpike.port "left"  { device = "eth1", address = { "10.0.1.1/24", "fd00:1::1/64" } }
//! turnpike.port "right" { device = "eth2", address = "10.0.2.1/24", mtu = 9000 }
//! turnpike.route "198.51.100.0/24" { via = "10.0.2.2" }
//! turnpike.route "203.0.113.0/24"  { via = { { "10.0.1.2", weight = 3 }, "10.0.2.2" } }
//! turnpike.route "2001:db8::/32"   { via = "fe80::2", port = "right", metric = 10 }
//! turnpike.route "192.0.2.0/24"    { blackhole = true }     -- or prohibit, unreachable
//! turnpike.neighbour "10.0.2.9"    { port = "right", mac = "02:00:00:00:00:09" }
//! turnpike.import { file = "table.dat.gz", via = { "10.0.1.2", "10.0.2.2" } }
//! turnpike.multicast "239.1.1.1"   { source = "10.0.1.2", from = "left", to = { "right" } }
//! turnpike.bond "lag" { ports = { "one", "two" }, mode = "lacp", hash = "l3+l4", address = "10.0.7.1/24" }
//! turnpike.loopback "lo0" { address = "192.0.2.255/32" }
//! turnpike.mirror "tap" { from = "left", direction = "inward", to = "span", sample = 100, vlan = 999 }
//! turnpike.vrf "blue"             { table = 100 }
//! turnpike.port "shop"  { device = "eth3", address = "10.0.1.1/24", vrf = "blue" }
//! turnpike.route "198.51.100.0/24" { via = "10.0.2.2", vrf = "blue", next_hop_vrf = "default" }
//! turnpike.routes_from { "kernel", "fpm" }
//! turnpike.fpm { listen = "127.0.0.1:2620", keep_s = 120, users = { "zebra" } }
//! turnpike.accelerate { "eth0", "eth1" }
//! turnpike.port "fast"  { device = "0000:03:00.0", rx_queues = 4, rx_descriptors = 2048, rx_burst = 32,
//!                          rx_cores = { 1, 3, 4, 5 }, rss = { symmetric = true, skip = { 0 } } }
//! turnpike.port "wan"   { device = "eth4", shape = { rate = "95mbit", burst = "64kb", overhead = 24 },
//!                          queue = { discipline = "codel", length = 1000 } }
//! turnpike.cores { control = "0", forward = "1,3-5" }
//! turnpike.forwarders { wait = "adaptive", budget = 512, control_queue = true, learned_flows = 256 }
//! turnpike.forwarding { class_e = false, resolve_via_default = true, resilient = { buckets = 1024 },
//!                       hash = { fields = "l3+l4", flow_label = true, inner = true, symmetric = false, seed = 7 } }
//! turnpike.tx { burst = 32, flush_us = 50 }
//! turnpike.slowpath { neighbours = 16384, queue = 16, retries = 3, timeout_s = 30, workers = 1,
//!                     icmp_rate = 1000, classes = { errors = { rate = 5000, weight = 10 } } }
//! turnpike.icmp { ttl = 64, echo = true }
//! turnpike.memory { mbufs = 16384, no_huge = true }
//! turnpike.fib { ipv4 = "runmap", ipv6 = "runmap" }
//! turnpike.log { level = "info" }
//! turnpike.quarantine { directory = "/var/lib/turnpike/quarantine", packets = 1000, mib = 16 }
//! turnpike.telnet { listen = "127.0.0.1:2323", public = false, sessions = 8, idle_s = 600, users = { "ops" } }
//! turnpike.element "c" { class = "Counter", step = "c" }   -- see docs/click.md
//! turnpike.control_socket "cs" { listen = "127.0.0.1:7777", read_only = true, clients = 16, idle_s = 600 }
//! turnpike.metrics { socket = "/run/turnpike-metrics.sock", group = "prometheus", listen = "127.0.0.1:9477" }
//! turnpike.api     { socket = "/run/turnpike-api.sock", group = "netops", listen = "127.0.0.1:8479" }
//! turnpike.access  { read = { "group:netops" }, configure = { "alice" } }
//! turnpike.sflow { collector = "192.0.2.9:6343", sample = 1000, counters_s = 20 }
//! turnpike.ipfix { collector = "192.0.2.9:4739", sample = 1000, active_s = 60, inactive_s = 15 }
//! turnpike.snmp  { agentx = "/var/agentx/master" }
//! turnpike.command "total" { help = "All packets", run = function(args) … return text end }
//! local mark = turnpike.step "mark" { process = function(batch, mask) … return mask end }
//! turnpike.graph:insert_after("ip4-validate", mark)         -- see docs/steps.md
//! ```
//!
//! A file is read in three stages, each in a module of its own: `script` runs it in a restricted
//! interpreter and records its statements; `validate` converts them to a [`Config`] and collects
//! all of their errors; [`check_machine`] compares a valid configuration with the resources of the
//! machine. A script may compute: loops, functions and tables are Lua's.

mod annotations;
pub mod click;
mod diff;
mod egress;
mod error;
pub mod exports;
mod found;
#[cfg(any(test, feature = "testing"))]
pub mod hostile_rules;
mod machine;
pub mod moonroute;
mod network;
mod queues;
mod script;
mod settings;
mod source;
#[cfg(test)]
mod tests;
mod validate;
mod value;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::script::{CounterNames, StepSettings};
use acl::Action;
use dataplane::bond::{BONDS, HashFields};
use dataplane::catalogue::Catalogue;
use dataplane::class::{ByClass, ClassLimits, LEAST_TTL, default_limits};
use dataplane::distribution::TxConfig;
use dataplane::events::EventOrder;
use dataplane::features::{Feature, Features};
use dataplane::filters::{FilterSpec, TRACKED};
use dataplane::flow::FlowFields;
use dataplane::flows::FlowSettings;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::mirror_sessions::{self, Destination, MIRROR};
use dataplane::plan::Plans;
use dataplane::polling::{BUDGET, MODERATION, Wait};
use dataplane::port::{LinkWish, OffloadWishes, PortId};
use dataplane::samples::SAMPLES;
use dataplane::shed::Shedding;
use dataplane::steps::{DHCP_RELAY, FILTER_IN, FILTER_OUT, POLICY_ROUTE, TRANSLATED};
use dataplane::transmit::QueueConfig;
use dataplane::transmit::shape::Shape;
use dataplane::vlan::{self, Tag, Tags, VLANS};
use dataplane::words::suggestion;
use fib::Algorithm;
use ipnet::IpNet;
use kernel_rules::Kind;
use slowpath::{Icmp, InterfaceSettings};
use wire::MacAddr;

use crate::netlink::{HostVlan, HostVlans};
use crate::rib::{self, Resilient, RouteKind};

pub use annotations::ANNOTATIONS;
pub use diff::{Changes, Diff, Effect, Setting, Unit};
pub use egress::{EgressQueues, SoftwareQueue};
pub use error::{ConfigError, ConfigErrors};
pub use exports::{Ipfix, Sampled, Sflow, Snmp};
pub use found::Found;
pub use machine::{
    Machine, Strictness, check_change, check_machine, check_machine_with, interfaces_by_mac,
};
pub use network::{NoGateway, Place, not_a_host, place_of_gateway};
pub use queues::{Queues, Rss, RssFields, Spread, key_text};
pub use script::commands::{Call, run_command};
pub use script::{Limits, default_graph_in_lua};

/// A valid configuration: every reference in it can be resolved, and its settings are consistent.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file it was read from, under the name given.
    pub file: PathBuf,
    /// The script.
    pub text: Arc<str>,
    /// The ports, in the order of their numbers.
    pub ports: Vec<Port>,
    /// The bonds, in the order of their numbers.
    pub bonds: Vec<Bond>,
    /// The VLANs, in the order of their numbers.
    pub vlans: Vec<Vlan>,
    /// The loopbacks, in the order of their numbers.
    pub loopbacks: Vec<Loopback>,
    /// The VRFs besides the default one, in the order of their numbers.
    pub vrfs: Vec<Vrf>,
    /// The static routes.
    pub routes: Vec<Route>,
    /// Named next hops, to which steps send packets.
    pub next_hops: Vec<NamedNextHop>,
    /// Sets of prefixes to which rules of filters refer.
    pub sets: Vec<PrefixSet>,
    /// Packet filters.
    pub filters: Vec<Filter>,
    /// The categories of their rules, by their numbers.
    pub categories: Vec<String>,
    /// The static neighbours.
    pub neighbours: Vec<Neighbour>,
    /// The tables to load.
    pub imports: Vec<Import>,
    /// The multicast routes.
    pub multicast: Vec<MulticastRoute>,
    /// Copies of packets for analysers.
    pub mirrors: Vec<Mirror>,
    /// Other sources of routes.
    pub routes_from: RoutesFrom,
    /// The listener for FRR's zebra; `None` unless [`Self::routes_from`] names it.
    pub fpm: Option<Fpm>,
    /// Cores of forwarders, and of everything else.
    pub cores: Cores,
    /// Use of the processor by forwarders.
    pub forwarders: Forwarders,
    /// Optional forwarding.
    pub forwarding: Forwarding,
    /// Transmit bursts.
    pub tx: TxConfig,
    /// Limits of the slow path.
    pub slowpath: Slowpath,
    /// Limits and timeouts of filters' flows.
    pub flows: FlowSettings,
    /// The router's own ICMP.
    pub icmp: Icmp,
    /// Packet memory.
    pub memory: Memory,
    /// The choice of route tables.
    pub fib: Fib,
    /// The log level.
    pub log: Log,
    /// Storage of packets that caused a panic of the router's code.
    pub quarantine: Quarantine,
    /// The kernel's rules and accelerated interfaces.
    pub acceleration: Acceleration,
    /// The listener for telnet clients; `None`: telnet is off.
    pub telnet: Option<Telnet>,
    /// Elements of a Click configuration, whose handlers can be called.
    pub elements: Vec<Element>,
    /// Sockets by which they are called.
    pub control_sockets: Vec<ControlSocket>,
    /// The listeners for metrics; `None`: nobody may ask for them.
    pub metrics: Option<HttpListeners>,
    /// The listeners for the API over HTTP; `None`: there is none.
    pub api: Option<Api>,
    /// The roles of users; `None`: root and the router's user have all rights, and others none.
    pub access: Option<Access>,
    /// Samples and counters in sFlow; `None`: there are none.
    pub sflow: Option<Sflow>,
    /// Flows of samples in IPFIX; `None`: there are none.
    pub ipfix: Option<Ipfix>,
    /// The SNMP agent; `None`: there is none.
    pub snmp: Option<Snmp>,
    /// Commands in Lua.
    pub commands: Vec<Command>,
    /// The paths of packets through steps.
    pub graphs: Plans,
    /// The part of the script that forwarders run, if it has steps.
    pub script: Option<Script>,
}

/// The part of a configuration that runs on forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The steps that it defines.
    pub steps: Vec<StepSettings>,
    /// Its counters.
    pub counters: CounterNames,
}

/// The name of the VRF that always exists.
pub const DEFAULT_VRF: &str = "default";

/// `turnpike.vrf`: a separate routing table for some ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vrf {
    /// Its number: its place among the statements, from 1 on, unless it is that of a VRF of the same name in a
    /// running router, see [`Config::align`].
    pub id: VrfId,
    /// The line of the statement.
    pub line: usize,
    /// 1 to 15 characters, unique, not [`DEFAULT_VRF`].
    pub name: String,
    /// The routing table of the kernel and of FRR with its routes.
    pub table: Option<u32>,
    /// The network namespace of its host interfaces, whose kernel's routes are its own, as [`HostInterface::netns`].
    pub namespace: Option<String>,
}

impl Vrf {
    /// Returns the file of its network namespace.
    pub fn netns_path(&self) -> Option<PathBuf> {
        self.namespace.as_deref().map(netns_path)
    }

    /// Returns the number of the VRF with this name, the default one included.
    ///
    /// # Errors
    /// There is none; the text, to follow the setting's or option's name, lists the existing ones.
    pub fn named(vrfs: &[Self], name: &str) -> Result<VrfId, String> {
        if name == DEFAULT_VRF {
            return Ok(VrfId::DEFAULT);
        }
        let known = vrfs.iter().find(|vrf| vrf.name == name);
        known.map(|vrf| vrf.id).ok_or_else(|| {
            let names: Vec<&str> =
                [DEFAULT_VRF].into_iter().chain(vrfs.iter().map(|vrf| &*vrf.name)).collect();
            format!("\"{name}\" unknown{}", suggestion(name, "VRFs", &names))
        })
    }

    /// Returns the name of the VRF with this number; the default one's for an unused number.
    pub fn name_of(vrfs: &[Self], id: VrfId) -> &str {
        vrfs.iter().find(|vrf| vrf.id == id).map_or(DEFAULT_VRF, |vrf| &vrf.name)
    }
}

/// `turnpike.next_hop`: a destination for packets of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedNextHop {
    /// The line of the statement.
    pub line: usize,
    /// Its name, which is also that of its step.
    pub name: String,
    /// Its paths, all of one family.
    pub paths: Vec<rib::Path>,
}

/// `turnpike.prefix_set`: prefixes with a name, to which rules of filters refer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixSet {
    /// The line of the statement.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The prefixes.
    pub elements: BTreeSet<IpNet>,
    /// Routes whose prefixes are elements as well.
    pub routes: Option<SetRoutes>,
}

/// Routes that make the elements of a set, default routes excluded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRoutes {
    /// Their VRF.
    pub vrf: VrfId,
    /// Their sources.
    pub sources: Vec<rib::RouteSource>,
    /// Their origin ASes, of imports only; empty: any.
    pub origin_as: Vec<u32>,
}

impl SetRoutes {
    /// Returns true if a route of this source and origin AS is among them.
    pub fn contains(&self, source: rib::RouteSource, origin_as: Option<u32>) -> bool {
        let is_of = |origin: u32| self.origin_as.contains(&origin);
        self.sources.contains(&source)
            && (self.origin_as.is_empty() || origin_as.is_some_and(is_of))
    }
}

/// `turnpike.filter`: rules for packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The line of the statement.
    pub line: usize,
    /// Ports refer to it by this number, 1 to 255: that of a filter of the same name in a running router, see
    /// [`Config::align`].
    pub number: u8,
    /// Its rules.
    pub spec: FilterSpec,
}

/// Returns the name of an action.
pub fn action_name(action: Action) -> &'static str {
    let named = validate::ACTIONS.iter().find(|(_, known)| *known == action);
    named.map_or("continue", |(name, _)| name)
}

impl Filter {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.spec.filter.name
    }
}

/// `turnpike.accelerate`: the kernel's rules and the packets of accelerated interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acceleration {
    /// The kinds of rules that packets may bypass.
    pub bypass: BTreeSet<Kind>,
    /// True if the ports' outward filters are the kernel's forward chains.
    pub has_kernel_filters: bool,
    /// True if VLAN devices on the interfaces stay with the kernel.
    pub leaves_vlans: bool,
    /// True if the interfaces' XDP programs forward themselves.
    pub in_kernel: bool,
    /// True if only packets of flows are accelerated that the kernel's connection tracking knows and its rules let pass.
    pub flows: bool,
}

/// A port's filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFilter {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: u8,
    /// True if the port's device holds those of its rules that it supports.
    pub hardware: bool,
    /// True if it uses the state of connections.
    pub asks_for_state: bool,
    /// True if its rules override packets' routes.
    pub routes: bool,
    /// True if its rules select forwarders.
    pub forwarders: bool,
}

/// `turnpike.multicast`: packets to a group, from one source or any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastRoute {
    /// The line of the statement.
    pub line: usize,
    /// The group; not one of link-local scope.
    pub group: IpAddr,
    /// The sender; `None`: any.
    pub source: Option<IpAddr>,
    /// The incoming port.
    pub from: InterfaceId,
    /// The outgoing ports, and the TTL that a packet must exceed, at least 1.
    pub to: Vec<(InterfaceId, u8)>,
}

/// `turnpike.mirror`: copies of the packets of interfaces, for an analyser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The line of the statement.
    pub line: usize,
    /// Its settings.
    pub session: mirror_sessions::Session,
}

/// A port of the router.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its number: its place among the statements, unless it is that of a port of the same name in a
    /// running router, see [`Config::align`].
    pub id: PortId,
    /// The line of the statement.
    pub line: usize,
    /// 1 to 15 characters, unique.
    pub name: String,
    /// Its device.
    pub device: Device,
    /// Method of taking over a kernel interface; `None`: AF_XDP where it works, else AF_PACKET. For a PCI NIC,
    /// the kernel driver to which it is bound while the router uses it; `None`: its present one.
    pub driver: Option<Driver>,
    /// True if its device is a kernel interface that stays the kernel's: the port receives what is only to be forwarded.
    pub accelerate: bool,
    /// True if the XDP program of that interface forwards itself, without the port.
    pub in_kernel: bool,
    /// True if the kernel interface is taken over although it has addresses, a default route or remote sessions.
    pub take_over: bool,
    /// A MAC to use in place of the device's.
    pub mac: Option<MacAddr>,
    /// The largest IP packet in bytes, in place of the device's.
    pub mtu: Option<u16>,
    /// Its queues.
    pub queues: Queues,
    /// Offloads that its device must or must not do; the others are used if they help.
    pub offloads: OffloadWishes,
    /// Requested properties of its link.
    pub link: LinkWish,
    /// True if it receives frames for other MAC addresses as well.
    pub promiscuous: bool,
    /// True if it receives all multicasts, regardless of need.
    pub all_multicast: bool,
    /// The bond that it belongs to, which has its frames.
    pub bond: Option<InterfaceId>,
    /// Its own interface: that of its untagged frames.
    pub interface: Interface,
}

impl Port {
    /// Returns true if rules of its filter select forwarders for packets that its device spreads over its queues.
    pub fn steers_by_device(&self) -> bool {
        let inward = self.interface.filter_in.as_ref();
        self.queues.spread == Spread::Hardware
            && inward.is_some_and(|filter| filter.hardware && filter.forwarders)
    }

    /// Returns a port with this one's name and number and default settings.
    fn bare(&self) -> Self {
        Self {
            id: self.id,
            line: self.line,
            name: self.name.clone(),
            device: Device::Kernel(String::new()),
            driver: None,
            accelerate: false,
            in_kernel: false,
            take_over: false,
            mac: None,
            mtu: None,
            queues: Queues::default(),
            offloads: OffloadWishes::new(),
            link: LinkWish::default(),
            promiscuous: false,
            all_multicast: false,
            bond: self.bond,
            interface: self.interface.bare(),
        }
    }

    /// Returns true if its device and host interface need not be reopened for the other's settings.
    fn is_open_as(&self, other: &Self) -> bool {
        let opened = |port: &Self| {
            let Self { device, driver, mac, mtu, link, promiscuous, offloads, interface, .. } =
                port;
            let filter = (*mac, *promiscuous, port.accelerate);
            let upper = (port.bond, interface.host_opened());
            (device.clone(), *driver, filter, *mtu, *link, offloads.clone(), upper)
        };
        opened(self) == opened(other) && self.queues.is_open_as(&other.queues)
    }
}

/// The settings of an interface: that of a port's untagged frames, a bond's, a VLAN's, or a loopback.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// Its VRF and the messages that the slow path sends on it.
    pub settings: InterfaceSettings,
    /// Own addresses with the length of their network; host bits are set.
    pub addresses: Vec<IpNet>,
    /// The loopback whose IPv4 address it has as well, in [`Self::addresses`].
    pub unnumbered: Option<String>,
    /// The features declared by the catalogue's steps, with the port's values.
    pub features: Vec<(Feature, u8)>,
    /// The filter of received packets.
    pub filter_in: Option<PortFilter>,
    /// The filter of transmitted packets.
    pub filter_out: Option<PortFilter>,
    /// True for the interface of a port that has VLANs, or whose bond has.
    pub has_vlans: bool,
    /// True for the interface of a port whose received packets are mirrored, or of an analyser's port.
    pub is_mirrored: bool,
    /// True for the interface of a port whose received packets are sampled.
    pub is_sampled: bool,
    /// True if it is accelerated and receives packets of the kernel's flows only, translated; see [`Acceleration::flows`].
    pub is_translated: bool,
    /// True for a bond, and for the interface of a port that belongs to one.
    pub is_bonded: bool,
    /// Its host interface, if it has one: as configured, else if there is another source of routes for
    /// the router.
    pub host: Option<HostInterface>,
    /// Most hops from which BGP, LDP, MSDP and BFD packets to the router are accepted on this port (RFC 5082).
    pub ttl_security: Option<u8>,
    /// Its queue in software; `None`: its device's ring only, unless it has a shape.
    pub queue: Option<QueueConfig>,
    /// Its maximum transmit rate; that of a port includes its VLANs.
    pub shape: Option<Shape>,
}

impl Interface {
    /// Returns its VRF if its host interface is in the network namespace of that.
    pub fn space(&self) -> Option<VrfId> {
        self.host.as_ref().filter(|host| host.of_vrf).map(|_| self.settings.vrf)
    }
}

impl Interface {
    /// Returns what opening its host interface depends on, if it has one. Its namespace is none of that: all move
    /// together, without their ports.
    fn host_opened(&self) -> Option<(bool, bool, bool)> {
        self.host.as_ref().map(|host| (host.segmentation, host.in_kernel, host.is_device))
    }

    /// Returns the features that it enables.
    pub fn features(&self) -> Features {
        let with = |all: Features, &(feature, value): &(Feature, u8)| all.with(feature, value);
        let all = self.features.iter().fold(Features::NONE, with);
        // A filter in one direction that uses states must see the packets of the other direction.
        let filter = |of: &Option<PortFilter>, other: &Option<PortFilter>| match (of, other) {
            (Some(filter), _) => filter.number,
            (None, Some(PortFilter { asks_for_state: true, .. })) => TRACKED,
            (None, _) => 0,
        };
        all.with(VLANS, self.has_vlans.into())
            .with(MIRROR, self.is_mirrored.into())
            .with(SAMPLES, self.is_sampled.into())
            .with(TRANSLATED, self.is_translated.into())
            .with(BONDS, self.is_bonded.into())
            .with(FILTER_IN, filter(&self.filter_in, &self.filter_out))
            .with(FILTER_OUT, filter(&self.filter_out, &self.filter_in))
            .with(POLICY_ROUTE, self.filter_in.as_ref().is_some_and(|filter| filter.routes).into())
            .with(DHCP_RELAY, self.settings.relay.iter().any(IpAddr::is_ipv4).into())
            .with(LEAST_TTL, self.ttl_security.map_or(0, |hops| u8::MAX - (hops - 1)))
    }

    /// Returns an interface with the same features, all off, and no other settings.
    fn bare(&self) -> Self {
        Self {
            settings: InterfaceSettings::default(),
            addresses: Vec::new(),
            unnumbered: None,
            features: self.features.iter().map(|(feature, _)| (*feature, 0)).collect(),
            filter_in: None,
            filter_out: None,
            has_vlans: self.has_vlans,
            is_mirrored: self.is_mirrored,
            is_sampled: self.is_sampled,
            is_translated: self.is_translated,
            is_bonded: self.is_bonded,
            host: None,
            ttl_security: None,
            queue: None,
            shape: None,
        }
    }
}

/// `turnpike.bond`: an interface whose frames are spread over several ports.
#[derive(Clone, Debug, PartialEq)]
pub struct Bond {
    /// Its number: from [`MAX_PORTS`] on, see [`Vlan::id`].
    pub id: InterfaceId,
    /// The line of the statement.
    pub line: usize,
    /// 1 to 15 characters; no port has it.
    pub name: String,
    /// Its ports, at least one, in the order of the statement; none belongs to another bond.
    pub ports: Vec<PortId>,
    /// The selection of the ports that take part.
    pub mode: BondMode,
    /// The fields of frames by which a port is selected.
    pub hash: HashFields,
    /// The bond is down while fewer ports than this take part, at least 1.
    pub minimum_links: u8,
    /// Most ports that LACP uses at the same time; others stand by. `None`: all.
    pub maximum_links: Option<u8>,
    /// Settings of LACP; without effect in other modes.
    pub lacp: LacpSettings,
    /// Its MAC, in place of that of its first port's device.
    pub mac: Option<MacAddr>,
    /// The largest IP packet in bytes, in place of its ports'.
    pub mtu: Option<u16>,
    /// Its settings.
    pub interface: Interface,
}

/// The selection of the ports of a bond that take part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BondMode {
    /// Those on which LACP has agreed with the other side (IEEE 802.1AX).
    #[default]
    Lacp,
    /// All with a link.
    Static,
    /// The first with a link.
    ActiveBackup,
}

impl BondMode {
    /// All.
    pub const ALL: [Self; 3] = [Self::Lacp, Self::Static, Self::ActiveBackup];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lacp => "lacp",
            Self::Static => "static",
            Self::ActiveBackup => "active-backup",
        }
    }
}

/// Settings of LACP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacpSettings {
    /// True: the other side is to send a LACPDU each second, and has failed after three (LACP_Timeout).
    pub fast: bool,
    /// True: LACPDUs are sent only to an active partner (LACP_Activity).
    pub passive: bool,
    /// Priority of this system; the least number counts most.
    pub priority: u16,
}

impl Default for LacpSettings {
    fn default() -> Self {
        // The standard's recommended default.
        Self { fast: true, passive: false, priority: 0x8000 }
    }
}

impl Bond {
    /// A bond of this one's name, number and ports, and no other settings.
    fn bare(&self) -> Self {
        Self {
            mode: BondMode::default(),
            hash: HashFields::default(),
            minimum_links: 1,
            maximum_links: None,
            lacp: LacpSettings::default(),
            mac: None,
            mtu: None,
            interface: self.interface.bare(),
            ..self.clone()
        }
    }

    /// Its host interface need not be opened anew to become the other's.
    fn is_open_as(&self, other: &Self) -> bool {
        let opened =
            |bond: &Self| (bond.ports.clone(), bond.mac, bond.mtu, bond.interface.host_opened());
        opened(self) == opened(other)
    }
}

/// An interface without a device of its own: a bond, a VLAN or a loopback.
#[derive(Clone, Copy, Debug)]
pub struct Virtual<'a> {
    /// The statement: `bond`, `vlan` or `loopback`.
    pub kind: &'static str,
    /// Its number.
    pub id: InterfaceId,
    /// Its name.
    pub name: &'a str,
    /// The interface whose port or bond carries its frames; `None`: it is no VLAN.
    pub parent: Option<InterfaceId>,
    /// Its settings.
    pub interface: &'a Interface,
}

impl<'a> From<&'a Bond> for Virtual<'a> {
    fn from(bond: &'a Bond) -> Self {
        let (id, name, interface) = (bond.id, &*bond.name, &bond.interface);
        Self { kind: "bond", id, name, parent: None, interface }
    }
}

impl<'a> From<&'a Vlan> for Virtual<'a> {
    fn from(vlan: &'a Vlan) -> Self {
        let (id, name, interface) = (vlan.id, &*vlan.name, &vlan.interface);
        Self { kind: "vlan", id, name, parent: Some(vlan.parent), interface }
    }
}

impl<'a> From<&'a Loopback> for Virtual<'a> {
    fn from(loopback: &'a Loopback) -> Self {
        let (id, name, interface) = (loopback.id, &*loopback.name, &loopback.interface);
        Self { kind: LOOPBACK, id, name, parent: None, interface }
    }
}

/// The statement of a loopback, for messages and reports.
pub const LOOPBACK: &str = "loopback";

/// `turnpike.loopback`: an interface without a link, which is up as long as the router is.
#[derive(Clone, Debug, PartialEq)]
pub struct Loopback {
    /// Its number: from [`MAX_PORTS`] on, see [`Vlan::id`].
    pub id: InterfaceId,
    /// The line of the statement.
    pub line: usize,
    /// 1 to 15 characters; no other interface has it.
    pub name: String,
    /// Its settings; only VRF, addresses and host interface have a meaning.
    pub interface: Interface,
}

impl Loopback {
    /// A loopback of this one's name and number, and no other settings.
    fn bare(&self) -> Self {
        Self { interface: self.interface.bare(), ..self.clone() }
    }

    /// Its host interface need not be opened anew to become the other's.
    fn is_open_as(&self, other: &Self) -> bool {
        self.interface.host_opened() == other.interface.host_opened()
    }
}

/// An interface of frames with a VLAN tag, on a port, a bond or on another VLAN.
#[derive(Clone, Debug, PartialEq)]
pub struct Vlan {
    /// Its number: from [`MAX_PORTS`] on by its place among the statements, those of bonds first and those of loopbacks
    /// last, unless it is that of such an interface of the same name in a running router, see [`Config::align`].
    pub id: InterfaceId,
    /// The line of the statement; 0 if there is none.
    pub line: usize,
    /// 1 to 15 characters; no port has it.
    pub name: String,
    /// The interface whose frames have this one's tag: a port's, a bond, or a VLAN on one of these.
    pub parent: InterfaceId,
    /// The tag.
    pub tag: Tag,
    /// True if it was found as a VLAN device of the kernel, without a statement.
    pub is_found: bool,
    /// The largest IP packet in bytes, in place of the parent's.
    pub mtu: Option<u16>,
    /// Its settings.
    pub interface: Interface,
}

impl Vlan {
    /// A VLAN of this one's name, number, parent and tag, and no other settings.
    fn bare(&self) -> Self {
        Self { mtu: None, interface: self.interface.bare(), ..self.clone() }
    }

    /// Its host interface need not be opened anew to become the other's.
    fn is_open_as(&self, other: &Self) -> bool {
        let opened = |vlan: &Self| (vlan.parent, vlan.mtu, vlan.interface.host_opened());
        opened(self) == opened(other)
    }
}

impl Config {
    /// Returns the VLAN with this number.
    pub fn vlan(&self, id: InterfaceId) -> Option<&Vlan> {
        let at = self.vlans.binary_search_by_key(&id, |vlan| vlan.id).ok()?;
        self.vlans.get(at)
    }

    /// Returns the bond with this number.
    pub fn bond(&self, id: InterfaceId) -> Option<&Bond> {
        self.bonds.iter().find(|bond| bond.id == id)
    }

    /// Returns the loopback with this number.
    pub fn loopback(&self, id: InterfaceId) -> Option<&Loopback> {
        self.loopbacks.iter().find(|loopback| loopback.id == id)
    }

    /// Returns the next hops of steps and rules, and those of analysers behind routers.
    pub fn all_next_hops(&self) -> Vec<NamedNextHop> {
        let analysers = self.mirrors.iter().filter_map(|Mirror { line, session }| {
            let Destination::Erspan(to) = &session.to else { return None };
            let paths = vec![rib::Path::recursive(to.vrf, to.destination)];
            Some(NamedNextHop { line: *line, name: session.hop_name(), paths })
        });
        self.next_hops.iter().cloned().chain(analysers).collect()
    }

    /// Returns the bonds, the VLANs and the loopbacks, each after the interface that carries its frames or beside it.
    pub fn virtuals(&self) -> impl Iterator<Item = Virtual<'_>> {
        let bonds = self.bonds.iter().map(Virtual::from);
        let loopbacks = self.loopbacks.iter().map(Virtual::from);
        bonds.chain(self.vlans.iter().map(Virtual::from)).chain(loopbacks)
    }

    /// Returns the bond, VLAN or loopback with this number.
    pub fn virtual_interface(&self, id: InterfaceId) -> Option<Virtual<'_>> {
        let bond = || self.bond(id).map(Virtual::from);
        let loopback = || self.loopback(id).map(Virtual::from);
        self.vlan(id).map(Virtual::from).or_else(bond).or_else(loopback)
    }

    /// Returns number, name and settings of every interface, those of ports first.
    pub fn interfaces(&self) -> impl Iterator<Item = (InterfaceId, &str, &Interface)> {
        let ports = self.ports.iter().map(|port| (port.id.into(), &*port.name, &port.interface));
        ports.chain(self.virtuals().map(|of| (of.id, of.name, of.interface)))
    }

    /// Returns the settings of the interface with this number.
    pub fn interface(&self, id: InterfaceId) -> Option<&Interface> {
        match id.port() {
            Some(port) => self.port(port).map(|port| &port.interface),
            None => self.virtual_interface(id).map(|of| of.interface),
        }
    }

    /// Reads the selection of packets by a filter's rule from words as `proto=udp`, `to_port=53,5353`,
    /// `from=10.0.0.0/8`; the filter has this rule alone.
    ///
    /// # Errors
    /// The unreadable word, and the expected ones.
    pub fn rule_of_words(&self, words: &[String]) -> Result<FilterSpec, String> {
        let names = self.interfaces().map(|(id, name, _)| (name.to_owned(), id)).collect();
        validate::rule_of_words(words, names, &self.sets)
    }

    /// Returns the interface that carries a VLAN's frames with all their tags: a port's own, or a bond.
    pub fn carrier(&self, vlan: &Vlan) -> Option<InterfaceId> {
        let is_carrier = |id: &InterfaceId| id.port().is_some() || self.bond(*id).is_some();
        let below = || Some(self.vlan(vlan.parent)?.parent);
        Some(vlan.parent).filter(is_carrier).or_else(|| below().filter(is_carrier))
    }

    /// Returns the VLANs with the interfaces that carry them and all their tags.
    pub fn vlans_on_wire(&self) -> Vec<vlan::Vlan> {
        self.vlans.iter().filter_map(|vlan| self.on_wire(vlan)).collect()
    }

    /// Returns the kernel's device that is the host interface of a VLAN; `None` if the VLAN has one of its own, or none.
    pub fn kernel_device(&self, id: InterfaceId) -> Option<KernelDevice> {
        let in_kernel = |id| {
            let vlan = self.vlan(id)?;
            vlan.interface.host.as_ref()?.in_kernel.then_some(vlan)
        };
        let vlan = in_kernel(id)?;
        let (mut below, mut tags) = (vlan.parent, vec![vlan.tag]);
        if let Some(parent) = in_kernel(below) {
            below = parent.parent;
            tags.insert(0, parent.tag);
        }
        let (_, name, _) = self.interfaces().find(|(of, ..)| *of == below)?;
        Some(KernelDevice { below: name.to_owned(), tags })
    }

    /// Returns the VLANs for the kernel's listener.
    pub fn host_vlans(&self) -> HostVlans {
        let of = |vlan: &Vlan| HostVlan {
            interface: vlan.id,
            name: vlan.name.clone(),
            parent: vlan.parent,
            protocol: vlan.tag.protocol.ethertype(),
            id: vlan.tag.id,
            in_kernel: vlan.interface.host.as_ref().is_some_and(|host| host.in_kernel),
            is_found: vlan.is_found,
        };
        let is_device = |of: &Interface| of.host.as_ref().is_some_and(|host| host.is_device);
        let devices = self.interfaces().filter(|(.., of)| is_device(of)).map(|(id, ..)| id);
        HostVlans {
            vlans: self.vlans.iter().map(of).collect(),
            followed: self.followed(),
            devices: devices.collect(),
        }
    }

    fn on_wire(&self, vlan: &Vlan) -> Option<vlan::Vlan> {
        let (interface, lower) = (vlan.id, self.carrier(vlan)?);
        let tags = match self.vlan(vlan.parent) {
            Some(parent) => Tags { outer: parent.tag, inner: Some(vlan.tag) },
            None => Tags { outer: vlan.tag, inner: None },
        };
        Some(vlan::Vlan { interface, lower, tags })
    }
}

/// A kernel interface with a port's name, MAC and MTU, over which the programs of the machine
/// communicate on the port's network. All host interfaces of a router are in one network namespace, except those of VRFs
/// that have namespaces of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// The network namespace it is in, a name under `/run/netns` or an absolute path; `None`: the
    /// router's own.
    pub netns: Option<String>,
    /// True if that is the namespace of its VRF.
    pub of_vrf: bool,
    /// True if it carries frames of up to 64 KiB, which the router segments and coalesces.
    pub segmentation: bool,
    /// True for a VLAN whose host interface is the operator's: the kernel's VLAN device of its name and tag on the host
    /// interface of its parent.
    pub in_kernel: bool,
    /// True if VLAN devices that the kernel has on it become VLANs.
    pub finds_vlans: bool,
    /// True if it is the device of its port, which is accelerated.
    pub is_device: bool,
}

impl Default for HostInterface {
    fn default() -> Self {
        Self {
            netns: None,
            of_vrf: false,
            segmentation: true,
            in_kernel: false,
            finds_vlans: false,
            is_device: false,
        }
    }
}

impl HostInterface {
    /// Returns the file of the namespace; `None`: the router's own.
    pub fn netns_path(&self) -> Option<PathBuf> {
        self.netns.as_deref().map(netns_path)
    }
}

/// A VLAN device of the kernel on a host interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDevice {
    /// The name of the port, bond or VLAN with that host interface.
    pub below: String,
    /// The tags of its frames there, outer first.
    pub tags: Vec<Tag>,
}

/// Returns the file of a network namespace.
fn netns_path(name: &str) -> PathBuf {
    // An absolute name replaces the directory.
    Path::new("/run/netns").join(name)
}

/// Device of a port, distinguished by the notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// A kernel interface: `eth1`.
    Kernel(String),
    /// A PCI function, with its domain: `0000:03:00.1`.
    Pci(String),
    /// A DPDK virtual device with its arguments: `net_tap0,iface=tap1`.
    Vdev(String),
}

impl Device {
    /// Returns true if both are the same device, regardless of arguments.
    pub fn is_same(&self, other: &Self) -> bool {
        let name = |text: &str| text.split(',').next().unwrap_or_default().to_owned();
        match (self, other) {
            (Self::Vdev(one), Self::Vdev(other)) => name(one) == name(other),
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Kernel(text) | Self::Pci(text) | Self::Vdev(text)) = self;
        f.write_str(text)
    }
}

/// Method of taking over a kernel interface or a PCI NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// AF_XDP sockets.
    AfXdp,
    /// AF_PACKET sockets.
    AfPacket,
    /// The kernel driver vfio-pci, to which a PCI NIC is bound.
    VfioPci,
    /// The kernel driver uio_pci_generic, to which a PCI NIC is bound.
    UioPciGeneric,
}

impl Driver {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AfXdp, Self::AfPacket, Self::VfioPci, Self::UioPciGeneric];

    /// Returns the name in configurations; for a kernel driver that of the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::AfXdp => "af_xdp",
            Self::AfPacket => "af_packet",
            Self::VfioPci => "vfio-pci",
            Self::UioPciGeneric => "uio_pci_generic",
        }
    }

    /// Returns true for a kernel driver of PCI devices.
    pub fn is_pci(self) -> bool {
        matches!(self, Self::VfioPci | Self::UioPciGeneric)
    }
}

/// A static route.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The line of the statement.
    pub line: usize,
    /// The VRF whose packets it is for.
    pub vrf: VrfId,
    /// The destination; no host bits are set.
    pub prefix: IpNet,
    /// Treatment of its packets.
    pub kind: RouteKind,
    /// Among static routes to one prefix the smallest metric wins; 0 unless given.
    pub metric: u32,
    /// Fixed buckets: a lost path moves its own flows only.
    pub resilient: Option<Resilient>,
}

/// A neighbour with a configured MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The line of the statement.
    pub line: usize,
    /// The port it is on.
    pub port: InterfaceId,
    /// Its address, on one of the port's networks or link-local.
    pub address: IpAddr,
    /// Its MAC, not a multicast.
    pub mac: MacAddr,
}

/// A table to load, see [`crate::import`].
#[derive(Clone, Debug, PartialEq)]
pub struct Import {
    /// The line of the statement.
    pub line: usize,
    /// The file; a relative path has been resolved against the configuration's directory.
    pub file: PathBuf,
    /// Time of the file's last change when the configuration was read; `None` if there is no such file.
    pub modified: Option<SystemTime>,
    /// Gateways for the table's IPv4 prefixes, chosen by origin AS.
    pub via4: Vec<rib::Path>,
    /// Gateways for the table's IPv6 prefixes.
    pub via6: Vec<rib::Path>,
}

impl Import {
    /// Returns the gateways for the table's prefixes of a family.
    pub fn gateways(&self, ipv4: bool) -> &[rib::Path] {
        if ipv4 { &self.via4 } else { &self.via6 }
    }

    /// Returns true if another import is of the same file, unchanged, over the same gateways.
    pub fn is_same(&self, other: &Self) -> bool {
        let Self { line: _, file, modified, via4, via6 } = self;
        // The file's name may have been written in another way.
        let is_same_file = file == &other.file || absolute(file) == absolute(&other.file);
        is_same_file && (modified, via4, via6) == (&other.modified, &other.via4, &other.via6)
    }
}

fn absolute(file: &Path) -> Option<PathBuf> {
    std::path::absolute(file).ok()
}

/// Sources of routes besides the configuration and commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutesFrom {
    /// The kernel of the host interfaces' network namespace, by netlink.
    pub kernel: Option<KernelRoutes>,
    /// FRR's zebra, by its FPM protocol.
    pub fpm: bool,
}

impl RoutesFrom {
    /// Returns true if there is any.
    pub fn any(&self) -> bool {
        self.kernel.is_some() || self.fpm
    }
}

/// Settings for following the kernel's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoutes {
    /// Time between two comparisons of the kernel's routes with the router's; `None`: never.
    pub audit: Option<Duration>,
    /// Bytes of messages that the kernel stores for the router before it drops them, which costs a
    /// full resynchronisation.
    pub receive_buffer: usize,
}

impl Default for KernelRoutes {
    fn default() -> Self {
        Self { audit: Some(Duration::from_secs(60)), receive_buffer: 64 << 20 }
    }
}

/// The listener for FRR's zebra.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpm {
    /// Address and port, equal to zebra's `fpm address`.
    pub listen: SocketAddr,
    /// Time for which zebra's routes stay in use after its connection is lost.
    pub keep: Duration,
    /// Users of this machine that may connect, besides root, the router's and FRR's: names or numbers.
    pub users: Vec<String>,
}

impl Default for Fpm {
    fn default() -> Self {
        // The default port of FRR's dplane_fpm_nl module.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 2620));
        Self { listen, keep: Duration::from_secs(120), users: Vec::new() }
    }
}

/// Default limit of learned flows of a port's device.
const LEARNED_FLOWS: u16 = 256;

/// Use of the processor by forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarders {
    /// Wait mode of forwarders, unless configured by port.
    pub wait: Wait,
    /// Most packets of a round over all sources.
    pub budget: u16,
    /// Least time between two wake-ups of a forwarder with `wait = "moderated"`.
    pub moderation: Duration,
    /// True if receive queues move from busy forwarders to idle ones while they run.
    pub rebalance: bool,
    /// True if one more forwarder serves control traffic, on the cores for control.
    pub control_queue: bool,
    /// Most flows of the host whose replies each port's device directs to its control queue; 0: none.
    pub learned_flows: u16,
    /// Packets dropped under overload.
    pub shed: Shedding,
    /// The event device that schedules packets to forwarders; `None`: each forwards what it receives.
    pub events: Option<Events>,
}

/// Forwarders around an event device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Events {
    /// The line of `mode`.
    pub line: usize,
    /// The name of the event device, with arguments if it is a virtual one.
    pub device: String,
    /// The scheduling of packets.
    pub order: EventOrder,
    /// The core of the forwarder that receives and sends; `None`: the first of the forwarders' cores, which then has no
    /// other.
    pub receive_core: Option<usize>,
    /// The core of the scheduler, if the device needs one; `None`: the cores for control.
    pub scheduler_core: Option<usize>,
}

impl Default for Forwarders {
    fn default() -> Self {
        Self {
            wait: Wait::default(),
            budget: BUDGET,
            moderation: MODERATION,
            rebalance: true,
            control_queue: false,
            learned_flows: LEARNED_FLOWS,
            shed: Shedding::default(),
            events: None,
        }
    }
}

/// Cores of forwarders and of everything else; see [`CorePlacement`](crate::cores::CorePlacement) for the
/// defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// The line of `control`, if configured.
    pub control_line: Option<usize>,
    /// Cores of all threads but forwarders, ascending; empty: the router chooses.
    pub control: Vec<usize>,
    /// The line of the forwarders' cores, if configured.
    pub forward_line: Option<usize>,
    /// One forwarder for each of these cores, ascending; empty: the router chooses.
    pub forward: Vec<usize>,
}

/// Optional forwarding, beyond that of every router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// True if 240.0.0.0/4 is ordinary unicast: sources, destinations, routes and own addresses (RFC
    /// 1812 4.2.2.11 leaves the range to configuration). 255.255.255.255 stays the broadcast.
    pub class_e: bool,
    /// True if the default route counts as a route to a gateway that is on no port's network.
    pub resolve_via_default: bool,
    /// The selection among equal-cost paths.
    pub hash: PathHash,
    /// Buckets of all groups of equal-cost paths, by which a lost path moves its own flows only.
    pub resilient: Option<Resilient>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            class_e: false,
            resolve_via_default: true,
            hash: PathHash::default(),
            resilient: None,
        }
    }
}

/// The hash by which a flow's path is selected among those of equal cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathHash {
    /// The seed; `None`: another one of each router at each start.
    pub seed: Option<u32>,
    /// The fields of packets that count.
    pub fields: FlowFields,
}

/// Settings of the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowpath {
    /// Threads, 1 to 8; each owns a part of the ports.
    pub workers: usize,
    /// Limits of each.
    pub limits: slowpath::Limits,
    /// Limits of each class of punted packets.
    pub classes: ByClass<ClassLimits>,
}

impl Default for Slowpath {
    fn default() -> Self {
        Self { workers: 1, limits: slowpath::Limits::default(), classes: default_limits() }
    }
}

/// Packet memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Packet buffers; `None`: as many as queues and bursts need.
    pub mbufs: Option<u32>,
    /// True if ordinary pages are used even if there are hugepages.
    pub no_huge: bool,
}

/// The choice of route tables; the fastest unless given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fib {
    /// For IPv4.
    pub ipv4: Algorithm,
    /// For IPv6.
    pub ipv6: Algorithm,
}

/// The log level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`; `None`: the binary's default.
    pub level: Option<&'static str>,
}

/// Storage of packets that caused a panic of the router's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The directory of the files, created when needed; an absolute path.
    pub directory: PathBuf,
    /// Most packets that one run of the router stores.
    pub packets: usize,
    /// Most bytes of all its files in the directory.
    pub bytes: u64,
}

impl Default for Quarantine {
    fn default() -> Self {
        // This directory survives a restart of the machine, and only root can create files in it.
        Self { directory: "/var/lib/turnpike/quarantine".into(), packets: 1000, bytes: 16 << 20 }
    }
}

/// `turnpike.command`: a command in Lua, which [`run_command`] runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The line of the statement.
    pub line: usize,
    /// Its name, unique.
    pub name: String,
    /// Its summary, in one line.
    pub help: String,
}

/// The listener for telnet clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telnet {
    /// Address and port.
    pub listen: SocketAddr,
    /// Most clients at a time.
    pub sessions: usize,
    /// Time after which a client that sends nothing, or does not read its output, is disconnected.
    pub idle: Duration,
    /// Users of this machine that may connect, besides root and the router's: names or numbers.
    pub users: Vec<String>,
}

impl Default for Telnet {
    fn default() -> Self {
        // A port number that requires no privilege.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 2323));
        Self { listen, sessions: 8, idle: Duration::from_secs(600), users: Vec::new() }
    }
}

/// `turnpike.element`: an element of a Click configuration, for its handlers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The line of the statement.
    pub line: usize,
    /// Its name, unique.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its configuration string.
    pub config: String,
    /// `push` or `pull` of each input, with a tilde where it is agnostic.
    pub inputs: Vec<String>,
    /// The same of each output.
    pub outputs: Vec<String>,
    /// Connections from its outputs.
    pub to: Vec<Wire>,
    /// The step that does its work.
    pub step: Option<String>,
    /// Outputs of steps, `STEP.OUTPUT`, whose packets are the element's.
    pub counts: Vec<String>,
    /// The port of its device.
    pub port: Option<String>,
    /// Of a routing table that the RIB is: the port of each output, `local` or `drop`.
    pub ways: Vec<String>,
}

/// A connection from an element's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wire {
    /// The output.
    pub output: usize,
    /// The input of the other element.
    pub input: usize,
    /// The other element's name.
    pub to: String,
}

/// `turnpike.control_socket`: a socket by which handlers are called, as Click's `ControlSocket`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSocket {
    /// The line of the statement.
    pub line: usize,
    /// Its name, unique.
    pub name: String,
    /// Its address, unique.
    pub listen: Listen,
    /// True if no handler can be written.
    pub read_only: bool,
    /// True if connections are logged.
    pub verbose: bool,
    /// Most clients at a time.
    pub clients: usize,
    /// Time after which a client that sends no command, or does not read its answer, is disconnected.
    pub idle: Duration,
    /// Users of this machine that may connect by TCP, besides root and the router's: names or numbers.
    pub users: Vec<String>,
}

impl ControlSocket {
    /// Returns true if the other is the same but for its line.
    pub fn is_same(&self, other: &Self) -> bool {
        *self == Self { line: self.line, ..other.clone() }
    }
}

/// The address of a control socket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// By TCP.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The listeners of a service over HTTP, at least one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpListeners {
    /// The path of a Unix socket.
    pub socket: Option<PathBuf>,
    /// The group, by name or number, whose members may connect to that, besides the router's user and root.
    pub group: Option<String>,
    /// Address and port.
    pub listen: Option<SocketAddr>,
    /// TLS there; none on the Unix socket.
    pub tls: Option<Tls>,
}

impl HttpListeners {
    /// Returns true if these differ from others by files of TLS at most, so that a service goes on with the other files.
    pub fn is_served_like(&self, other: &Self) -> bool {
        let has_ca = |at: &Self| at.tls.as_ref().map(|tls| tls.client_ca.is_some());
        let bare = |at: &Self| Self { tls: None, ..at.clone() };
        has_ca(self) == has_ca(other) && bare(self) == bare(other)
    }
}

/// TLS of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PemFile,
    /// Its key.
    pub key: PemFile,
    /// The authorities of clients, which need a certificate of one of them then.
    pub client_ca: Option<PemFile>,
}

/// A file in PEM. Its text is never part of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemFile {
    /// Its absolute path.
    pub path: PathBuf,
    /// The time of its last change of any kind, in nanoseconds since 1970, when the configuration was read.
    pub changed: Option<i128>,
}

/// The API over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    /// Its listeners.
    pub at: HttpListeners,
    /// The file with the tokens of clients of `listen`; without it they are users of this machine, or those of their
    /// certificates.
    pub token_file: Option<PathBuf>,
    /// True to serve the dashboard to browsers.
    pub dashboard: bool,
}

/// The roles of users, of which the router's user and root have all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The group, by name or number, whose members may connect to the router's socket.
    pub group: Option<String>,
    /// Those who may query the state.
    pub read: Vec<Holder>,
    /// Those who may look into packets and run commands as well.
    pub operate: Vec<Holder>,
    /// Those who may change everything.
    pub configure: Vec<Holder>,
}

/// A holder of a role, by name or number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A user.
    User(String),
    /// The members of a group.
    Group(String),
    /// Clients whose certificate has this name.
    Certificate(String),
}

impl Holder {
    /// Returns its name or number.
    pub fn name(&self) -> &str {
        let (Self::User(name) | Self::Group(name) | Self::Certificate(name)) = self;
        name
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) => write!(f, "user {name}"),
            Self::Group(name) => write!(f, "group {name}"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
        }
    }
}

impl Config {
    /// Returns warnings about settings that are allowed but probably mistakes, with their lines: gateways that
    /// only the default route leads to, rules of filters that can never match.
    pub fn doubts(&self) -> Vec<String> {
        let doubts = validate::by_default_only(&self.routes, &self.forwarding).into_iter();
        let never = self.filters.iter().flat_map(|filter| {
            let warnings = acl::warnings(&filter.spec.filter).into_iter();
            warnings.map(|warning| (filter.line, warning.to_string()))
        });
        doubts
            .chain(never)
            .map(|(line, message)| format!("{}:{line}: {message}", self.file.display()))
            .collect()
    }
}

/// Reads and validates a configuration, whose graphs consist of the catalogue's steps. Does not examine
/// the machine beyond the file itself.
///
/// # Errors
/// All errors of the file, or the error of reading it.
pub fn load(path: &Path, catalogue: &Catalogue) -> Result<Config, ConfigErrors> {
    parse(path, &text_of(path)?, Limits::default(), catalogue)
}

/// Returns the text of a configuration.
fn text_of(path: &Path) -> Result<String, ConfigErrors> {
    let text = std::fs::read(path).map_err(|error| unreadable(path, &error.to_string()))?;
    String::from_utf8(text)
        .map_err(|_| unreadable(path, "not a text file in UTF-8; a configuration is a Lua script"))
}

/// Like [`load`], for a given text; `path` names it in errors and resolves relative file names.
///
/// # Errors
/// As [`load`].
pub fn parse(
    path: &Path,
    text: &str,
    limits: Limits,
    catalogue: &Catalogue,
) -> Result<Config, ConfigErrors> {
    validate::validate(path, text, script::run(path, text, limits, catalogue))
}

fn unreadable(path: &Path, reason: &str) -> ConfigErrors {
    ConfigErrors(vec![ConfigError {
        file: path.to_owned(),
        line: None,
        message: format!("cannot be read: {reason}"),
    }])
}
