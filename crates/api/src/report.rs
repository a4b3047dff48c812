//! The questions of `show` and their answers: the JSON of `--json`, and what the text tables are made of.

pub mod topology;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{FlowSelection, RouteFilter};

/// A query of the router's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// `Vec<`[`Port`]`>`.
    Ports,
    /// `Vec<`[`Route`]`>`, in the order of the prefixes, IPv4 first.
    Routes(RouteFilter),
    /// [`RouteSummary`].
    Summary,
    /// [`RouteAnswer`]: the treatment of packets to this address.
    Route {
        /// The destination.
        address: IpAddr,
        /// The flow whose path is queried; without it any path may be returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow: Option<crate::Flow>,
        /// The VRF of the packets; without it the default one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vrf: Option<String>,
    },
    /// `Vec<`[`Vrf`]`>`: the default one first.
    Vrfs,
    /// `Vec<`[`Neighbour`]`>`.
    Neighbours,
    /// `Vec<`[`SourceReport`]`>`: the sources of routes and their status.
    Sources,
    /// `Vec<`[`Filter`]`>`, by number.
    Filters,
    /// [`FilterVerdict`]: the verdict of a filter on a described packet.
    FilterVerdict {
        /// The filter.
        name: String,
        /// The packet, see [`acl::packet`].
        packet: String,
    },
    /// `Vec<`[`PrefixSet`]`>`: the sets of prefixes.
    Sets,
    /// [`Flows`]: those with the most bytes first.
    Flows {
        /// The flows to be shown.
        #[serde(default)]
        of: FlowSelection,
        /// Most flows to be shown; 0: all.
        #[serde(default)]
        most: usize,
    },
    /// `Vec<`[`Multicast`]`>`, by group and source.
    Multicast,
    /// [`Forwarders`]: the work, core and load of each.
    Forwarders,
    /// `Vec<`[`Rss`]`>`: the distribution of received packets, by port.
    Rss,
    /// `Vec<`[`ControlQueue`]`>`: the queues for control traffic, by port.
    ControlQueues,
    /// `Vec<`[`PortQueue`]`>`: the queues in software, by port.
    Queues,
    /// [`Counters`].
    Counters,
    /// [`Policing`]: classes of punted packets and their limits.
    Policing,
    /// [`Graph`].
    Graph,
    /// `Vec<`[`Command`]`>`: the configuration's commands in Lua.
    Commands,
    /// [`Steps`]: the steps, and the status of those in Lua.
    Steps,
    /// [`topology::Topology`]: the machine, and the place of ports and forwarders on it.
    Topology,
    /// `Vec<`[`HistoryEntry`]`>`: the applied configurations.
    History,
    /// [`Configuration`]: an applied configuration.
    Configuration {
        /// Its number in the history.
        number: u64,
    },
    /// [`ChangePlan`]: the changes of a rollback to an applied configuration.
    Difference {
        /// Its number in the history.
        number: u64,
        /// True to list every route, regardless of their number.
        #[serde(default)]
        all: bool,
    },
}

/// A port. Packets and bytes are those that forwarders received and sent, Ethernet frames without
/// FCS; `rx_missed`, `rx_errors` and `tx_errors` are the device's own counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Port {
    /// Its name in the configuration.
    pub name: String,
    /// The device as the configuration says it.
    pub device: String,
    /// The driver that drives it.
    pub driver: String,
    /// Its MAC.
    pub mac: String,
    /// The VRF that it is in; none for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Its addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// `up`, `down`, or `gone` while its device is not there.
    pub link: String,
    /// Who tells that its link has changed: `interrupt`, `netlink`, or nobody: `polled`.
    pub link_by: String,
    /// More of its link, and what its device receives.
    pub link_details: LinkDetails,
    /// The largest IP packet it sends, in bytes.
    pub mtu: u16,
    /// Receive queues in use.
    pub rx_queues: usize,
    /// Its receive queue for control traffic, by number, which `rx_queues` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_queue: Option<usize>,
    /// Transmit queues in use.
    pub tx_queues: usize,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Packets that the device had no room for, those of `rx_nombuf` included.
    pub rx_missed: u64,
    /// Packets that were lost because no buffer was free.
    pub rx_nombuf: u64,
    /// Packets that the device received broken.
    pub rx_errors: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the device failed to send.
    pub tx_errors: u64,
    /// How often the IOMMU refused the device access to memory, as far as the kernel's log says it.
    pub dma_faults: u64,
    /// The counters among these that show trouble now, or did within the last seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
    /// Its host interface, which has the port's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostInterface>,
    /// What of its work the device could do.
    #[serde(default)]
    pub offloads: Vec<Offload>,
}

/// Work on packets that a device can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offload {
    /// Its name in a configuration.
    pub offload: String,
    /// The device has it.
    pub device: bool,
    /// It is used.
    pub on: bool,
    /// Why it is used or not.
    pub reason: String,
}

/// The forwarders that run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forwarders {
    /// By number.
    pub forwarders: Vec<Forwarder>,
    /// Cores of everything else: slow path workers, the owner, the API, DPDK's own threads.
    #[serde(default)]
    pub control: Vec<usize>,
    /// Receive queues that went from a busy forwarder to an idle one.
    #[serde(default)]
    pub moved: u64,
    /// Entries of RSS tables that went to a queue of a less busy forwarder.
    #[serde(default)]
    pub moved_entries: u64,
    /// What an operator should know of them, one sentence each.
    pub advice: Vec<String>,
}

/// What takes a forwarder's core from it, as the kernel counts. Counts and times of the thread since it began, those
/// of the core since the forwarder came to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interference {
    /// Cores on which the kernel lets the thread run: the forwarder's, unless that was refused or taken from the
    /// process.
    pub allowed: Vec<usize>,
    /// Times that the thread gave the core up, which it does to sleep.
    pub voluntary_switches: u64,
    /// Times that the scheduler took the core from it for another thread.
    pub involuntary_switches: u64,
    /// Page faults that the kernel answered from memory.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Microseconds on a core.
    pub ran_us: u64,
    /// Microseconds in which it was ready to run and other threads had the core.
    pub waited_us: u64,
    /// Microseconds of interrupts and softirqs on the core, in steps of 10,000.
    pub interrupts_us: u64,
    /// Microseconds that the hypervisor took from the core, in steps of 10,000.
    pub stolen_us: u64,
}

/// A forwarder. Packets, bursts and cycles since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forwarder {
    /// Its number.
    pub number: usize,
    /// The core that it runs on; of that for control traffic, the first of those for control.
    pub core: usize,
    /// It is for control traffic.
    #[serde(default)]
    pub control: bool,
    /// The NUMA node of that core; none: the machine has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// Part of the last second in which it had packets, 0 to 100.
    pub busy_percent: f64,
    /// Packets that its graph had.
    pub packets: u64,
    /// Bursts of them.
    pub bursts: u64,
    /// TSC cycles of rounds with packets.
    pub busy_cycles: u64,
    /// TSC cycles of rounds without, and of sleep.
    pub idle_cycles: u64,
    /// What it does without packets.
    pub waiting: Waiting,
    /// Packets that it received and software spread to others.
    pub spread_out: u64,
    /// Packets that others received and software spread to it.
    pub spread_in: u64,
    /// Receive queues that it serves: `wan:0`.
    pub rx: Vec<String>,
    /// Transmit queues that it has.
    pub tx: Vec<String>,
    /// What takes the core from it; none: its thread has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<Interference>,
}

/// The waiting of a forwarder. Numbers since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The least patient setting of the ports that it receives from: `poll`, `adaptive` or `interrupt`.
    pub wait: String,
    /// Ports that cannot wake it, because of which it sleeps for some microseconds at a time.
    pub without_interrupts: Vec<String>,
    /// It blocks now.
    pub blocking: bool,
    /// Times it slept for some microseconds.
    pub sleeps: u64,
    /// Times it blocked.
    pub blocks: u64,
    /// Milliseconds for which it blocked, as far as it has woken up.
    pub blocked_ms: u64,
    /// Times that a receive queue woke it.
    pub woken_by_receive: u64,
    /// Times that packets of the slow path, the kernel or other forwarders woke it.
    pub woken_by_ring: u64,
    /// Times that the owner woke it: for a change, or to end.
    pub woken_by_control: u64,
}

/// The spreading of a port's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// The port.
    pub port: String,
    /// `hardware`: a queue is chosen; `software`: a forwarder; `none`: all packets take one queue, or the
    /// device spreads them in a way of its own.
    pub spread: String,
    /// The hash function; none: there is no hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// What is hashed.
    pub fields: Vec<String>,
    /// The key; none: the driver does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Receive queues.
    pub queues: usize,
    /// The one of them for control traffic, to which nothing is spread; none: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_queue: Option<usize>,
    /// The queue (by software: the forwarder) of each hash; empty: the device has no table, or does not tell.
    pub table: Vec<u16>,
}

/// Queues of a port for control traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlQueue {
    /// The port.
    pub port: String,
    /// Its receive queue for control traffic; none: see `why`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx: Option<usize>,
    /// Its transmit queue for control traffic; none: what the slow path and the kernel send leaves by that of a
    /// forwarder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx: Option<usize>,
    /// The forwarder that sends what the slow path and the kernel have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<usize>,
    /// The reason for which no control traffic comes by a queue of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The rules of protocols that lead to the receive queue, or should.
    #[serde(default)]
    pub rules: Vec<ControlRule>,
    /// Flows of the host whose replies come by the receive queue, those used last first.
    #[serde(default)]
    pub flows: Vec<LearnedFlow>,
    /// Flows that the device took, since the port was opened.
    #[serde(default)]
    pub learned: u64,
    /// Flows whose rule nobody used any more.
    #[serde(default)]
    pub aged: u64,
    /// Flows whose rule made room for another.
    #[serde(default)]
    pub displaced: u64,
    /// Flows that the device did not take.
    #[serde(default)]
    pub refused: u64,
    /// Flows that began too fast to be learned, since the start.
    #[serde(default)]
    pub unlearned: u64,
}

/// A rule that leads to a queue for control traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRule {
    /// The traffic: `BGP to 10.0.1.1`.
    pub what: String,
    /// Packets that came by it; none: the device does not count, or does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The reason for which the device does not hold it; none: it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A flow of the host whose replies come by a queue for control traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedFlow {
    /// As the host sends it: `tcp 10.0.1.1:40000 > 192.0.2.9:443`.
    pub flow: String,
    /// Seconds since it was seen in use.
    pub idle_s: u64,
}

/// The queue of a port in software.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortQueue {
    /// The port.
    pub port: String,
    /// Discipline, length and settings, as configurations write them.
    pub queue: String,
    /// The rate; none: that of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// What waits and has waited, all forwarders together.
    pub classes: Vec<QueueClass>,
}

/// Packets of a class in a port's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueClass {
    /// `control` (CS6, CS7, ARP, neighbour discovery), a class by DSCP, or `others` where all others are in one
    /// queue.
    pub name: String,
    /// Packets that wait now.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// The most packets that have waited, on one forwarder.
    pub most: u64,
    /// Packets that have left.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Dropped because there was no room.
    pub full: u64,
    /// Dropped by RED.
    pub red: u64,
    /// Dropped by CoDel.
    pub codel: u64,
    /// Marked by RED or CoDel (ECN).
    pub marked: u64,
    /// Microseconds that packets spent in the queue, a moving average.
    pub delay_us: u64,
    /// The longest such time, in microseconds.
    pub delay_most_us: u64,
}

/// A link; what the device does not say is left out. Of an interface of the kernel's the kernel says it
/// (`ethtool`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDetails {
    /// Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// `full` or `half`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplex: Option<String>,
    /// The speed is negotiated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoneg: Option<bool>,
    /// Flow control: `none`, `rx`, `tx` or `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<String>,
    /// Error correction: `none`, `auto`, `base-r` or `rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fec: Option<String>,
    /// Frames for all addresses are received.
    pub promiscuous: bool,
    /// All multicasts are received.
    pub all_multicast: bool,
    /// Why all multicasts are received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_multicast_because: Option<String>,
    /// The groups whose multicasts are received, by their MAC addresses; none if all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// A port's host interface. Packets and bytes since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInterface {
    /// `up`, `down`, `no carrier` or `gone`.
    #[serde(default)]
    pub state: String,
    /// Why it is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The kernel's number for it, in its network namespace.
    pub index: u32,
    /// The file of its network namespace; none: the router's own.
    pub netns: Option<String>,
    /// Packets given to the kernel.
    pub up_packets: u64,
    /// Bytes given to the kernel.
    pub up_bytes: u64,
    /// Packets that the kernel did not take.
    pub up_refused: u64,
    /// Packets that the kernel sent.
    pub down_packets: u64,
    /// Bytes that the kernel sent.
    pub down_bytes: u64,
}

/// One path of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The port it leaves by; none for a gateway that is reached by another route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The gateway; none for a connected network.
    pub via: Option<IpAddr>,
    /// The VRF by whose routes a gateway is found that is not found by the route's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Its share of the flows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u16,
}

fn one() -> u16 {
    1
}

fn is_one(weight: &u16) -> bool {
    *weight == 1
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The VRF that it is in; none for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// The destinations.
    pub prefix: String,
    /// Where the router has it from.
    pub source: String,
    /// `unicast`, `connected`, `local`, `blackhole`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Among a source's routes to one prefix the smallest metric wins.
    pub metric: u64,
    /// Forwarders use it.
    pub active: bool,
    /// Why they do not: `shadowed` by a better route to the prefix, `link-down`, `loop`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive: Option<String>,
    /// Where packets go; none for a route that keeps or refuses them.
    pub paths: Vec<Path>,
}

/// A VRF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vrf {
    /// Its name.
    pub name: String,
    /// The routing table of the kernel and of FRR that the configuration gives to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The ports in it.
    pub ports: Vec<String>,
    /// Its routes, those not in use included.
    pub routes: Families,
    /// Prefixes that forwarders know.
    pub fib: Families,
}

/// How many routes there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSummary {
    /// Routes by source, those not in use included.
    pub sources: BTreeMap<String, Families>,
    /// Prefixes that forwarders know.
    pub fib: Families,
    /// Bytes that forwarders read to look prefixes up.
    pub fib_bytes: Families,
    /// Next hops.
    pub next_hops: Room,
    /// Routes that were refused since the start.
    pub refused: u64,
    /// Routes that wait for room among the next hops, or for their group.
    pub waiting: usize,
    /// Prefixes whose change the route table has no room for yet.
    pub pending: usize,
}

/// A number for each family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Families {
    /// Of IPv4.
    pub ipv4: usize,
    /// Of IPv6.
    pub ipv6: usize,
}

/// Places in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Those in use.
    pub used: usize,
    /// All.
    pub most: usize,
}

/// A path, and whether packets can take it now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResolvedPath {
    /// The port it leaves by.
    pub port: String,
    /// The neighbour; none while the destination itself must be found on a connected network.
    pub via: Option<IpAddr>,
    /// Its share of the flows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u16,
    /// The neighbour's MAC, if known.
    pub mac: Option<String>,
    /// `reachable`, `unresolved`, or `down` where the port is.
    pub state: String,
    /// The flow that was asked for takes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
}

/// What happens with packets to an address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RouteAnswer {
    /// The address asked for.
    pub address: IpAddr,
    /// The longest prefix that matches; none without a route.
    pub prefix: Option<String>,
    /// Where the router has the route from.
    pub source: Option<String>,
    /// As in [`Route`]; `no-route` without one.
    #[serde(rename = "type")]
    pub kind: String,
    /// The paths, with gateways of gateways followed to their ports.
    pub paths: Vec<ResolvedPath>,
    /// All routes to the prefix, the one in use first.
    #[serde(default)]
    pub candidates: Vec<Route>,
}

/// Somebody who has routes for the router: its configuration, the kernel, zebra, …
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Its name in `show routes --source`.
    pub name: String,
    /// Of several routes to one prefix that of the smallest distance wins.
    pub distance: u8,
    /// `ready`; for those that live outside the router also `connecting`, `synchronising`, …
    pub state: String,
    /// IPv4 routes, those not in use included.
    pub ipv4: usize,
    /// IPv6 routes.
    pub ipv6: usize,
    /// What only those outside the router have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
}

/// How it goes with a source outside the router. Counts are since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Messages read.
    pub messages: u64,
    /// Messages or attributes that made no sense.
    pub errors: u64,
    /// Messages that were understood and have no meaning here, such as a route for one TOS.
    pub ignored: u64,
    /// Changes that the router refused: see the log.
    pub refused: u64,
    /// Times that messages were lost because they came faster than they were read. Each is made
    /// good by a resynchronisation.
    pub overruns: u64,
    /// Complete readings of everything, the first one included.
    pub resyncs: u64,
    /// Seconds since the last one ended.
    pub last_resync_s: Option<u64>,
    /// Nexthop objects.
    pub groups: usize,
    /// Comparisons of the source's routes with the router's.
    pub audits: u64,
    /// Those that found a difference, which is a defect.
    pub audits_failed: u64,
    /// The last one.
    pub last_audit: Option<Audit>,
    /// Who is connected, of a source that connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// A comparison of a source's routes with the router's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Seconds since it ended.
    pub age_s: u64,
    /// Routes compared.
    pub compared: usize,
    /// Routes that the source has and the router had not.
    pub missing: usize,
    /// Routes that the router had and the source has not.
    pub stale: usize,
    /// Routes that were other than the source's.
    pub different: usize,
    /// Prefixes that were forwarded otherwise than their best route says.
    pub fib: usize,
    /// The first differences, in words.
    pub examples: Vec<String>,
}

/// What a change did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// `added`, `replaced` or `removed`.
    pub change: String,
    /// What is to be known of it: why a route is not used, or how its gateway is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a configuration would change, or has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePlan {
    /// Its file.
    pub file: String,
    /// The changes; of routes the first of each kind, if not all were asked for.
    pub changes: Vec<PlannedChange>,
    /// Of how many routes there are changes.
    pub routes: RouteChanges,
    /// Some of it needs a restart, so `apply` would refuse all of it.
    pub restart: bool,
}

/// Routes that are new, gone and different.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteChanges {
    /// New.
    pub added: usize,
    /// Gone.
    pub removed: usize,
    /// Different.
    pub changed: usize,
}

/// A change of one setting or route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedChange {
    /// What is changed.
    pub what: String,
    /// What it was; nothing if it was not there.
    pub from: Option<String>,
    /// What it is to be; nothing if it is not to be there.
    pub to: Option<String>,
    /// It can be changed while the router runs.
    pub live: bool,
    /// Its port is closed for that and opened again.
    #[serde(default)]
    pub reopens: bool,
    /// The reason for which it takes a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// What became of a change to another configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// Its number in the history.
    pub number: u64,
    /// What was changed, in a few words.
    pub summary: String,
    /// Seconds in which it is to be confirmed.
    pub confirm_s: Option<u64>,
    /// The longest round of a forwarder when it exchanged what it had and just behind it, in microseconds:
    /// how long a packet was held up at most. Nothing if forwarders had nothing to exchange.
    pub pause_us: Option<f64>,
}

/// A configuration that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Its number.
    pub number: u64,
    /// When, in seconds since 1970.
    pub time_s: u64,
    /// Its file.
    pub file: String,
    /// `start`, `apply`, `rollback to N`, `N was not confirmed`.
    pub origin: String,
    /// What it changed, in a few words.
    pub summary: String,
    /// `current`, `waiting` for confirmation, or nothing.
    pub state: Option<String>,
    /// Seconds that are left to confirm it.
    pub confirm_s: Option<u64>,
}

/// A configuration of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Its number.
    pub number: u64,
    /// The file that it is from.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// A neighbour: a station on a port's network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// The port it is on.
    pub port: String,
    /// Its MAC, if known.
    pub mac: Option<String>,
    /// `incomplete`, `reachable`, …
    pub state: String,
    /// True if the configuration says it.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// Packets that wait for its MAC.
    pub queued: usize,
}

/// A multicast route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Multicast {
    /// The group.
    pub group: IpAddr,
    /// Who sends; without it: anybody.
    pub source: Option<IpAddr>,
    /// `configuration` or `kernel`.
    pub origin: String,
    /// The port that the packets must come from.
    pub from: String,
    /// The ports that they leave by.
    pub to: Vec<MulticastPort>,
    /// Packets forwarded, each counted once however many ports it left by.
    pub packets: u64,
    /// Their bytes, without Ethernet headers.
    pub bytes: u64,
    /// Packets that came from another port, and were dropped.
    pub wrong_port: u64,
}

/// A port that has receivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastPort {
    /// Its name.
    pub port: String,
    /// The TTL that packets must exceed to leave by it.
    pub ttl: u8,
}

/// Every packet there ever was, and where it went:
/// `received + originated + replicated = sent + to_host + dropped_total + in_flight + unaccounted`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Packets that forwarders received.
    pub received: u64,
    /// Packets that the router made: ARP, ND, ICMP.
    pub originated: u64,
    /// Packets made from others: one less than a packet to a group had ports to leave by.
    pub replicated: u64,
    /// Packets that devices took to send.
    pub sent: u64,
    /// Packets for the router itself that it understood.
    pub to_host: u64,
    /// Drops by reason, all reasons.
    pub dropped: BTreeMap<String, u64>,
    /// The sum of `dropped`.
    pub dropped_total: u64,
    /// Packets inside: in rings, in transmit bursts, waiting for a neighbour.
    pub in_flight: u64,
    /// What steps of the configuration counted, by the names that they gave.
    #[serde(default)]
    pub steps: BTreeMap<String, u64>,
    /// What is missing or too much; 0 when nothing moves. While packets move, the counters are read
    /// at slightly different moments.
    pub unaccounted: i64,
}

/// The graph and the packets that took its edges, all forwarders together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Graph {
    /// The steps in the order in which they run.
    pub steps: Vec<Step>,
}

/// A step of the graph.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Packets it handled.
    pub packets: u64,
    /// Its outputs.
    pub outputs: Vec<Edge>,
}

/// An output of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// The step it leads to, or `transmit`, `slow-path`, `drop`.
    pub to: String,
    /// Packets that took it.
    pub packets: u64,
}

/// The steps of the graph, and how those in Lua do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Steps {
    /// The steps in the order in which they run.
    pub steps: Vec<StepState>,
    /// The compilers of forwarders with Lua steps.
    pub compilers: Vec<Compiler>,
}

/// A step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StepState {
    /// Its name in the graph.
    pub name: String,
    /// What it is: its name in the catalogue or in the script.
    pub kind: String,
    /// Packets it handled.
    pub packets: u64,
    /// Its own counters, all forwarders together.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// How it does if it is in Lua; the same for all steps of its kind.
    pub lua: Option<LuaStep>,
}

/// How the steps of one kind do, on all forwarders together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LuaStep {
    /// Calls that ended with an error or did not end in time.
    pub failures: u64,
    /// Those that did not end in time.
    pub overruns: u64,
    /// Packets dropped for that.
    pub dropped: u64,
    /// On how many forwarders it has failed too often and is not called any more.
    pub disabled: usize,
}

/// What LuaJIT does on one forwarder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Compiler {
    /// The forwarder's number.
    pub forwarder: usize,
    /// Traces compiled so far.
    pub compiled: u64,
    /// Traces given up; what they would have covered is interpreted until it is tried again.
    pub aborted: u64,
    /// Times that all traces were thrown away.
    pub flushed: u64,
    /// Why the last trace was given up, and where.
    pub last_abort: Option<String>,
}

/// A command of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Its name.
    pub name: String,
    /// What it does.
    pub help: String,
}

/// How the slow path is protected from too much, and what that refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policing {
    /// Threads of the slow path.
    pub workers: usize,
    /// What punted packets are sorted into.
    pub classes: Vec<Class>,
    /// What bounds the ICMP errors that the router sends.
    pub icmp_errors: IcmpErrors,
    /// What the slow path tells the control plane.
    pub events: Events,
}

/// Events of the slow path on their way to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Wait to be taken.
    pub waiting: u64,
    /// Of neighbours: replaced by a later one of the same neighbour before they were taken.
    pub merged: u64,
    /// Requests to the kernel, and warnings, for which there was no room.
    pub lost: u64,
}

/// A class of punted packets: offered = passed + refused + waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its name; what it refuses is dropped as `refused-NAME`.
    pub name: String,
    /// Packets a second that pass at most.
    pub rate: u32,
    /// Its part of the slow path's turns, relative to the other classes'.
    pub weight: u32,
    /// Packets that wait at most, for each forwarder and worker.
    pub queue: usize,
    /// Packets that forwarders had for the slow path.
    pub offered: u64,
    /// Packets that it took.
    pub passed: u64,
    /// Packets dropped at random, before the queue was full.
    pub refused_early: u64,
    /// Packets dropped because it was.
    pub refused_full: u64,
    /// Packets that wait now.
    pub waiting: u64,
}

/// Bounds of the ICMP errors that the router sends, and how many it did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmpErrors {
    /// A second, over all ports.
    pub rate: u32,
    /// In one burst.
    pub burst: u32,
    /// A second to one IPv4 /24 or IPv6 /64.
    pub prefix_rate: u32,
    /// In one burst to it.
    pub prefix_burst: u32,
    /// Not sent for the first rate.
    pub suppressed: u64,
    /// Not sent for that of their prefix.
    pub suppressed_by_prefix: u64,
}

/// A packet filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Its name.
    pub name: String,
    /// The ports that have it for what comes by them.
    pub inward: Vec<String>,
    /// The ports that have it for what leaves by them.
    pub outward: Vec<String>,
    /// The ports whose devices are to hold its rules.
    #[serde(default)]
    pub hardware: Vec<FilterInHardware>,
    /// Its rules in their order.
    pub rules: Vec<FilterRule>,
    /// What becomes of packets that no rule fits: `accept`, `drop`, …
    pub default: String,
    /// Packets that no rule fitted.
    pub default_packets: u64,
    /// Bytes of their IP packets.
    pub default_bytes: u64,
    /// Of the filter for the router itself: the classes that bound what it lets pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<Class>,
}

/// The flows that filters know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Flows of each family for which there is room; 0: no filter asks for them.
    pub room: usize,
    /// Entered since the table was made.
    pub entered: u64,
    /// Of these, pushed out by newer ones before their time was over.
    pub pushed_out: u64,
    /// Not entered for want of a place: their answers are new packets to filters.
    pub refused: u64,
    /// Flows that were asked for, those not shown included.
    pub total: usize,
    /// As many as were asked for.
    pub flows: Vec<Flow>,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The VRF.
    pub vrf: String,
    /// The protocol.
    pub protocol: String,
    /// Who began it: address and, if there is one, port; of ICMP the identifier.
    pub from: String,
    /// With whom.
    pub to: String,
    /// `unanswered`, `opening`, `assured` or `closing`.
    pub state: String,
    /// Packets of who began it.
    pub packets_there: u64,
    /// Bytes of their IP packets.
    pub bytes_there: u64,
    /// Packets of the other end.
    pub packets_back: u64,
    /// Bytes of their IP packets.
    pub bytes_back: u64,
    /// Seconds since its first packet.
    pub age_s: u64,
    /// Seconds since its last packet.
    pub idle_s: u64,
}

/// A port whose device is to hold rules of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterInHardware {
    /// Its name.
    pub port: String,
    /// Why its device holds none.
    pub why: Option<String>,
}

/// A rule of a filter in the device of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleInHardware {
    /// The port.
    pub port: String,
    /// Rules of the device that hold it.
    pub held: usize,
    /// Rules of the device that it takes.
    pub wanted: usize,
    /// The device counts what it drops by them.
    pub counted: bool,
    /// It is a rule that drops.
    pub drops: bool,
    /// Why packets of it come to software.
    pub why: Vec<String>,
}

/// A set of prefixes that filters name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixSet {
    /// Its name.
    pub name: String,
    /// Its elements in order.
    pub elements: Vec<SetElement>,
}

/// An element of a [`PrefixSet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetElement {
    /// The addresses.
    pub prefix: IpNet,
    /// By whom it is there: `configuration` or `command`.
    pub by: String,
    /// Seconds until it goes by itself; `None`: it does not.
    pub remaining_s: Option<u64>,
}

/// What a filter says of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterVerdict {
    /// The rule that decides; `None`: the default does.
    pub rule: Option<FilterRule>,
    /// Rules that it fits before that, which let it go on.
    #[serde(default)]
    pub before: Vec<FilterRule>,
    /// What becomes of the packet: `accept`, `drop`, …
    pub action: String,
    /// Why, in words, if no rule decides.
    pub why: String,
}

/// Packets of a rule by the colours of RFC 2697 and RFC 2698.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColourCounts {
    /// Within the rate and its burst.
    pub green: u64,
    /// Within the second bucket.
    pub yellow: u64,
    /// Above both.
    pub red: u64,
}

/// A rule of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// Its place, from 1 on.
    pub number: usize,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// What packets must be.
    pub matches: String,
    /// What becomes of them: `accept`, `drop`, …
    pub action: String,
    /// How much of them passes, if it is limited.
    pub police: Option<String>,
    /// Packets by colour, if the limit tells colours apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colours: Option<ColourCounts>,
    /// Packets that it fitted, those above its rate and those that devices have counted included.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
    /// Of these packets those that devices have dropped and counted.
    #[serde(default)]
    pub device_packets: u64,
    /// Bytes of their IP packets, where the device counts bytes.
    #[serde(default)]
    pub device_bytes: u64,
    /// Where it is, by the ports whose devices are to hold rules of the filter.
    #[serde(default)]
    pub hardware: Vec<RuleInHardware>,
    /// Seconds since the last one; `None`: there was none yet.
    pub last_s: Option<u64>,
}
