//! The configuration: a Lua script whose statements say what the router is.
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
//! turnpike.vrf "blue"             { table = 100 }
//! turnpike.port "shop"  { device = "eth3", address = "10.0.1.1/24", vrf = "blue" }
//! turnpike.route "198.51.100.0/24" { via = "10.0.2.2", vrf = "blue", next_hop_vrf = "default" }
//! turnpike.routes_from { "kernel", "fpm" }
//! turnpike.fpm { listen = "127.0.0.1:2620", keep_s = 120, users = { "zebra" } }
//! turnpike.port "fast"  { device = "0000:03:00.0", rx_queues = 4, rx_descriptors = 2048, rx_burst = 32,
//!                          rx_cores = { 1, 3, 4, 5 }, rss = { symmetric = true, skip = { 0 } } }
//! turnpike.port "wan"   { device = "eth4", shape = { rate = "95mbit", burst = "64kb", overhead = 24 },
//!                          queue = { discipline = "codel", length = 1000 } }
//! turnpike.cores { control = "0", forward = "1,3-5" }
//! turnpike.forwarders { wait = "adaptive", budget = 512, control_queue = true, learned_flows = 256 }
//! turnpike.forwarding { class_e = false, resolve_via_default = true }
//! turnpike.tx { burst = 32, flush_us = 50 }
//! turnpike.slowpath { neighbours = 16384, queue = 16, retries = 3, timeout_s = 30, workers = 1,
//!                     icmp_rate = 1000, classes = { errors = { rate = 5000, weight = 10 } } }
//! turnpike.icmp { ttl = 64, echo = true }
//! turnpike.memory { mbufs = 16384, no_huge = true }
//! turnpike.fib { ipv4 = "runmap", ipv6 = "runmap" }
//! turnpike.log { level = "info" }
//! turnpike.quarantine { directory = "/var/lib/turnpike/quarantine", packets = 1000, mib = 16 }
//! turnpike.telnet { listen = "127.0.0.1:2323", public = false, sessions = 8, idle_s = 600, users = { "ops" } }
//! turnpike.command "total" { help = "All packets", run = function(args) … return text end }
//! local mark = turnpike.step "mark" { process = function(batch, mask) … return mask end }
//! turnpike.graph:insert_after("ip4-validate", mark)         -- see docs/steps.md
//! ```
//!
//! A file is read in three stages, each in a module of its own: `script` runs it in a restricted
//! interpreter and writes its statements down; `validate` turns them into a [`Config`] and collects
//! everything that is wrong with them; [`check_machine`] compares a sound configuration with the
//! machine it is to run on. A script may compute: loops, functions and tables are Lua's.

mod diff;
mod error;
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
use dataplane::catalogue::Catalogue;
use dataplane::class::{ByClass, ClassLimits, default_limits};
use dataplane::distribution::TxConfig;
use dataplane::features::{Feature, Features};
use dataplane::filters::{FilterSpec, TRACKED};
use dataplane::flows::FlowSettings;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::plan::Plans;
use dataplane::polling::{BUDGET, Wait};
use dataplane::port::{LinkWish, OffloadWishes, PortId};
use dataplane::shed::Shedding;
use dataplane::steps::{FILTER_IN, FILTER_OUT, POLICY_ROUTE};
use dataplane::transmit::QueueConfig;
use dataplane::transmit::shape::Shape;
use dataplane::words::suggestion;
use fib::Algorithm;
use ipnet::IpNet;
use slowpath::{Advertise, Discovery, Icmp};
use wire::MacAddr;

use crate::rib::{self, Resilient, RouteKind};

pub use diff::{Changes, Diff, Effect, Setting};
pub use error::{ConfigError, ConfigErrors};
pub use machine::{Machine, check_change, check_machine, check_machine_with, interfaces_by_mac};
pub use network::{NoGateway, Place, not_a_host, place_of_gateway};
pub use queues::{Queues, Rss, RssFields, Spread, key_text};
pub use script::commands::{Call, run_command};
pub use script::{Limits, default_graph_in_lua};

/// A sound configuration: every reference in it leads somewhere, nothing contradicts itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file it was read from, as it was named.
    pub file: PathBuf,
    /// The script.
    pub text: Arc<str>,
    /// The ports, in the order of their numbers.
    pub ports: Vec<Port>,
    /// The VRFs besides the default one, in the order of their numbers.
    pub vrfs: Vec<Vrf>,
    /// The static routes.
    pub routes: Vec<Route>,
    /// Next hops with names, to which steps send packets.
    pub next_hops: Vec<NamedNextHop>,
    /// Sets of prefixes that rules of filters name.
    pub sets: Vec<PrefixSet>,
    /// Packet filters.
    pub filters: Vec<Filter>,
    /// The categories that their rules name, by their numbers.
    pub categories: Vec<String>,
    /// The static neighbours.
    pub neighbours: Vec<Neighbour>,
    /// The tables to load.
    pub imports: Vec<Import>,
    /// The multicast routes.
    pub multicast: Vec<MulticastRoute>,
    /// Who else has routes for the router.
    pub routes_from: RoutesFrom,
    /// Where FRR's zebra is listened for; `None` unless [`Self::routes_from`] names it.
    pub fpm: Option<Fpm>,
    /// Where the forwarders run, and everything else.
    pub cores: Cores,
    /// How forwarders share the processor with others.
    pub forwarders: Forwarders,
    /// What is forwarded.
    pub forwarding: Forwarding,
    /// Transmit bursts.
    pub tx: TxConfig,
    /// Bounds of the slow path.
    pub slowpath: Slowpath,
    /// How filters keep flows.
    pub flows: FlowSettings,
    /// The router's own ICMP.
    pub icmp: Icmp,
    /// Packet memory.
    pub memory: Memory,
    /// The choice of route tables.
    pub fib: Fib,
    /// What is logged.
    pub log: Log,
    /// Where packets go over which the router's code panics.
    pub quarantine: Quarantine,
    /// Where telnet clients are served; `None`: nowhere.
    pub telnet: Option<Telnet>,
    /// Commands in Lua.
    pub commands: Vec<Command>,
    /// Where packets go.
    pub graphs: Plans,
    /// What forwarders run of the script, if it has steps.
    pub script: Option<Script>,
}

/// The part of a configuration that runs on forwarders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The steps that it makes.
    pub steps: Vec<StepSettings>,
    /// Its counters.
    pub counters: CounterNames,
}

/// The name of the VRF that is always there.
pub const DEFAULT_VRF: &str = "default";

/// `turnpike.vrf`: routes of their own for some ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vrf {
    /// Its number: its place among the statements, from 1 on, unless it is that of a VRF of the same name in a
    /// running router, see [`Config::align`].
    pub id: VrfId,
    /// The line of the statement.
    pub line: usize,
    /// 1 to 15 characters, unique, not [`DEFAULT_VRF`].
    pub name: String,
    /// The routing table of the kernel and of FRR whose routes are its.
    pub table: Option<u32>,
}

impl Vrf {
    /// The number of the VRF with this name, the default one included.
    ///
    /// # Errors
    /// Says, after the setting's or option's name, that there is none, and which there are.
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

    /// The name of the VRF with this number; the default one's for a number that there is not.
    pub fn name_of(vrfs: &[Self], id: VrfId) -> &str {
        vrfs.iter().find(|vrf| vrf.id == id).map_or(DEFAULT_VRF, |vrf| &vrf.name)
    }
}

/// `turnpike.next_hop`: where a step sends packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedNextHop {
    /// The line of the statement.
    pub line: usize,
    /// Its name, which is that of its step, too.
    pub name: String,
    /// Its paths, all of one family.
    pub paths: Vec<rib::Path>,
}

/// `turnpike.prefix_set`: prefixes that rules of filters refer to by a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixSet {
    /// The line of the statement.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The prefixes.
    pub elements: BTreeSet<IpNet>,
}

/// `turnpike.filter`: rules for packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The line of the statement.
    pub line: usize,
    /// By which ports refer to it, 1 to 255: that of a filter of the same name in a running router, see
    /// [`Config::align`].
    pub number: u8,
    /// Its rules.
    pub spec: FilterSpec,
}

/// What an action is called.
pub fn action_name(action: Action) -> &'static str {
    let named = validate::ACTIONS.iter().find(|(_, known)| *known == action);
    named.map_or("continue", |(name, _)| name)
}

impl Filter {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.filter.name
    }
}

/// The filter that a port has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortFilter {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: u8,
    /// The port's device holds those of its rules that it can.
    pub hardware: bool,
    /// It asks for the state of connections.
    pub asks_for_state: bool,
    /// Its rules send packets elsewhere than their destination's route leads.
    pub routes: bool,
}

/// `turnpike.multicast`: packets to a group, from a source or from any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastRoute {
    /// The line of the statement.
    pub line: usize,
    /// The group; none of those that stay on their link.
    pub group: IpAddr,
    /// Who sends; `None`: anybody.
    pub source: Option<IpAddr>,
    /// The port that the packets come from.
    pub from: InterfaceId,
    /// The ports they leave by, and the TTL that a packet must exceed, at least 1.
    pub to: Vec<(InterfaceId, u8)>,
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
    /// What it is made of.
    pub device: Device,
    /// How a kernel interface is taken over; `None`: AF_XDP where it works, else AF_PACKET. For a PCI NIC,
    /// the kernel driver that it is bound to while the router has it; `None`: the one that it has.
    pub driver: Option<Driver>,
    /// The kernel interface is taken although it carries addresses, a default route or remote sessions.
    pub take_over: bool,
    /// A MAC to use in place of the device's.
    pub mac: Option<MacAddr>,
    /// The largest IP packet in bytes, in place of the device's.
    pub mtu: Option<u16>,
    /// Its queues.
    pub queues: Queues,
    /// What waits for it in software; `None`: its device's ring only, unless it has a shape.
    pub queue: Option<QueueConfig>,
    /// The rate at which it sends at most.
    pub shape: Option<Shape>,
    /// Work that its device must do, or must not; the rest as it helps.
    pub offloads: OffloadWishes,
    /// What its link is to be.
    pub link: LinkWish,
    /// It receives frames for other MAC addresses as well.
    pub promiscuous: bool,
    /// It receives all multicasts, whether anything needs them or not.
    pub all_multicast: bool,
    /// Its own interface: that of its untagged frames.
    pub interface: Interface,
}

impl Port {
    /// Its queue in software and its rate, if it has either: what has a rate has a queue.
    pub fn queue_in_software(&self) -> Option<(QueueConfig, Option<Shape>)> {
        let Self { queue, shape, .. } = self;
        (queue.is_some() || shape.is_some()).then(|| (queue.unwrap_or_default(), *shape))
    }

    /// A port of this one's name and number of which nothing else is said.
    fn bare(&self) -> Self {
        Self {
            id: self.id,
            line: self.line,
            name: self.name.clone(),
            device: Device::Kernel(String::new()),
            driver: None,
            take_over: false,
            mac: None,
            mtu: None,
            queues: Queues::default(),
            queue: None,
            shape: None,
            offloads: OffloadWishes::new(),
            link: LinkWish::default(),
            promiscuous: false,
            all_multicast: false,
            interface: self.interface.bare(),
        }
    }

    /// Its device and host interface need not be opened anew to become the other's.
    fn is_open_as(&self, other: &Self) -> bool {
        let opened = |port: &Self| {
            let Self { device, driver, mac, mtu, link, promiscuous, offloads, interface, .. } =
                port;
            let filter = (*mac, *promiscuous);
            (device.clone(), *driver, filter, *mtu, *link, offloads.clone(), interface.host.clone())
        };
        opened(self) == opened(other) && self.queues.is_open_as(&other.queues)
    }
}

/// The settings of an interface: that of a port's untagged frames, or a VLAN's.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// The VRF that it is in.
    pub vrf: VrfId,
    /// Own addresses with the length of their network; host bits are set.
    pub addresses: Vec<IpNet>,
    /// The features that steps of the catalogue declare, and the port's values.
    pub features: Vec<(Feature, u8)>,
    /// The filter of what comes by it.
    pub filter_in: Option<PortFilter>,
    /// The filter of what leaves by it.
    pub filter_out: Option<PortFilter>,
    /// Its host interface, if it has one: as the port says, else if anybody else has routes for
    /// the router.
    pub host: Option<HostInterface>,
    /// Senders on this port are told by ICMP that a destination is unreachable.
    pub unreachables: bool,
    /// From how many hops away BGP, LDP, MSDP and BFD may speak to the router by this port (RFC 5082).
    pub ttl_security: Option<u8>,
    /// Questions by which it finds out whether somebody else has one of its IPv6 addresses, before it
    /// uses it (RFC 4862 5.4); 0: none.
    pub dad: u8,
    /// What it advertises as a router; `None`: nothing.
    pub advertise: Option<Advertise>,
    /// What it says by ICMP router discovery for IPv4; `None`: nothing.
    pub discovery: Option<Discovery>,
}

impl Interface {
    /// The least TTL with which packets of near peers' protocols may come by it; 0: any.
    pub fn least_ttl(&self) -> u8 {
        self.ttl_security.map_or(0, |hops| u8::MAX - (hops - 1))
    }

    /// The work of steps that it asks for.
    pub fn features(&self) -> Features {
        let with = |all: Features, &(feature, value): &(Feature, u8)| all.with(feature, value);
        let all = self.features.iter().fold(Features::NONE, with);
        // What passes one way is an answer the other way, whatever filter there is.
        let filter = |of: &Option<PortFilter>, other: &Option<PortFilter>| match (of, other) {
            (Some(filter), _) => filter.number,
            (None, Some(PortFilter { asks_for_state: true, .. })) => TRACKED,
            (None, _) => 0,
        };
        all.with(FILTER_IN, filter(&self.filter_in, &self.filter_out))
            .with(FILTER_OUT, filter(&self.filter_out, &self.filter_in))
            .with(POLICY_ROUTE, self.filter_in.as_ref().is_some_and(|filter| filter.routes).into())
    }

    /// An interface with the same features, all off, and no other settings.
    fn bare(&self) -> Self {
        Self {
            vrf: VrfId::DEFAULT,
            addresses: Vec::new(),
            features: self.features.iter().map(|(feature, _)| (*feature, 0)).collect(),
            filter_in: None,
            filter_out: None,
            host: None,
            unreachables: true,
            ttl_security: None,
            dad: 0,
            advertise: None,
            discovery: None,
        }
    }
}

/// A kernel interface with a port's name, MAC and MTU, over which the programs of the machine
/// speak on the port's network. All host interfaces of a router are in one network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// The network namespace it is in, a name under `/run/netns` or an absolute path; `None`: the
    /// router's own.
    pub netns: Option<String>,
    /// Frames of up to 64 KiB go through it, which the router segments and coalesces.
    pub segmentation: bool,
}

impl Default for HostInterface {
    fn default() -> Self {
        Self { netns: None, segmentation: true }
    }
}

impl HostInterface {
    /// The file of the namespace; `None`: the router's own.
    pub fn netns_path(&self) -> Option<PathBuf> {
        // An absolute name replaces the directory.
        self.netns.as_ref().map(|name| Path::new("/run/netns").join(name))
    }
}

/// What a port is made of, told apart by how it is written.
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
    /// Both cannot be open at a time, whatever arguments they have.
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

/// How a kernel interface or a PCI NIC is taken over.
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

    /// Its name in configurations; of a kernel driver the kernel's.
    pub fn name(self) -> &'static str {
        match self {
            Self::AfXdp => "af_xdp",
            Self::AfPacket => "af_packet",
            Self::VfioPci => "vfio-pci",
            Self::UioPciGeneric => "uio_pci_generic",
        }
    }

    /// It is a kernel driver for PCI devices.
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
    /// What becomes of packets to it.
    pub kind: RouteKind,
    /// Among static routes to one prefix the smallest metric wins; 0 unless given.
    pub metric: u32,
    /// Losing one of its paths moves that path's flows only.
    pub resilient: Option<Resilient>,
}

/// A neighbour whose MAC is given, not resolved.
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

/// Who has routes for the router, besides its configuration and commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutesFrom {
    /// The kernel of the host interfaces' network namespace, by netlink.
    pub kernel: Option<KernelRoutes>,
    /// FRR's zebra, by its FPM protocol.
    pub fpm: bool,
}

impl RoutesFrom {
    /// Anybody has.
    pub fn any(&self) -> bool {
        self.kernel.is_some() || self.fpm
    }
}

/// How the kernel is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoutes {
    /// Time between two comparisons of the kernel's routes with the router's; `None`: never.
    pub audit: Option<Duration>,
    /// Bytes of messages that the kernel keeps for the router before it drops them, which costs a
    /// full resynchronisation.
    pub receive_buffer: usize,
}

impl Default for KernelRoutes {
    fn default() -> Self {
        Self { audit: Some(Duration::from_secs(60)), receive_buffer: 64 << 20 }
    }
}

/// Where FRR's zebra is listened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpm {
    /// Address and port; zebra's `fpm address` must say the same.
    pub listen: SocketAddr,
    /// How long zebra's routes are used after its connection is lost, if it does not come back.
    pub keep: Duration,
    /// Users of this machine that may connect, besides root, the router's and FRR's: names or numbers.
    pub users: Vec<String>,
}

impl Default for Fpm {
    fn default() -> Self {
        // The port is the one that FRR's dplane_fpm_nl module uses unless told otherwise.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 2620));
        Self { listen, keep: Duration::from_secs(120), users: Vec::new() }
    }
}

/// Flows of the host that a port's device is given at most by default.
const LEARNED_FLOWS: u16 = 256;

/// How forwarders share the processor with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarders {
    /// The waiting of forwarders, where a port does not say otherwise.
    pub wait: Wait,
    /// Packets of a round over all sources.
    pub budget: u16,
    /// Receive queues go from busy forwarders to idle ones while they run.
    pub rebalance: bool,
    /// One more forwarder serves control traffic, on the cores for control.
    pub control_queue: bool,
    /// Flows of the host whose replies each port's device brings to its control queue at most; 0: none.
    pub learned_flows: u16,
    /// What is dropped when more comes than can be forwarded.
    pub shed: Shedding,
}

impl Default for Forwarders {
    fn default() -> Self {
        Self {
            wait: Wait::default(),
            budget: BUDGET,
            rebalance: true,
            control_queue: false,
            learned_flows: LEARNED_FLOWS,
            shed: Shedding::default(),
        }
    }
}

/// Where the forwarders run, and everything else: see [`CorePlacement`](crate::cores::CorePlacement) for what the
/// configuration leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cores {
    /// The line of `control`, if it is given.
    pub control_line: Option<usize>,
    /// Cores of all threads but forwarders, ascending; empty: the router chooses.
    pub control: Vec<usize>,
    /// The line of the forwarders' cores, if they are given.
    pub forward_line: Option<usize>,
    /// One forwarder for each of these cores, ascending; empty: the router chooses.
    pub forward: Vec<usize>,
}

/// What is forwarded beyond what every router forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// 240.0.0.0/4 is unicast like any other: sources, destinations, routes and own addresses (RFC
    /// 1812 4.2.2.11 leaves the range to configuration). 255.255.255.255 stays the broadcast.
    pub class_e: bool,
    /// The default route counts as a route to a gateway that is on no port's network.
    pub resolve_via_default: bool,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self { class_e: false, resolve_via_default: true }
    }
}

/// Settings of the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowpath {
    /// Threads, 1 to 8; each owns a part of the ports.
    pub workers: usize,
    /// Bounds of each.
    pub limits: slowpath::Limits,
    /// Bounds of each class of punted packets.
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
    /// Use ordinary pages even where there are hugepages.
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

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`; `None`: the binary's default.
    pub level: Option<&'static str>,
}

/// Where packets go over which the router's code panics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The directory of the files, made when it is needed; an absolute path.
    pub directory: PathBuf,
    /// The most packets that one run of the router keeps.
    pub packets: usize,
    /// The most bytes that all its files in the directory have together.
    pub bytes: u64,
}

impl Default for Quarantine {
    fn default() -> Self {
        // What is there survives a restart of the machine, and only root can make something there.
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
    /// What it does, in a line.
    pub help: String,
}

/// Where telnet clients are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telnet {
    /// Address and port.
    pub listen: SocketAddr,
    /// The most clients at a time.
    pub sessions: usize,
    /// How long a client may say nothing, or not read what it is told.
    pub idle: Duration,
    /// Users of this machine that may connect, besides root and the router's: names or numbers.
    pub users: Vec<String>,
}

impl Default for Telnet {
    fn default() -> Self {
        // A port that needs no privilege.
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 2323));
        Self { listen, sessions: 8, idle: Duration::from_secs(600), users: Vec::new() }
    }
}

impl Config {
    /// What is allowed and probably a mistake, with the lines: gateways that only the default
    /// route leads to, rules of filters that can never match.
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

/// Reads and validates a configuration, whose graphs are made of the catalogue's steps; does not look
/// at the machine beyond the file itself.
///
/// # Errors
/// Everything that is wrong with the file, or that it cannot be read.
pub fn load(path: &Path, catalogue: &Catalogue) -> Result<Config, ConfigErrors> {
    parse(path, &text_of(path)?, Limits::default(), catalogue)
}

/// The text of a configuration.
fn text_of(path: &Path) -> Result<String, ConfigErrors> {
    let text = std::fs::read(path).map_err(|error| unreadable(path, &error.to_string()))?;
    String::from_utf8(text)
        .map_err(|_| unreadable(path, "not a text file in UTF-8; a configuration is a Lua script"))
}

/// [`load`] for a text at hand; `path` names it in errors and is where relative files are sought.
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
