//! The queries of `show` and their answers: the JSON of `--json`, from which the text tables are
//! made.

pub mod topology;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{FlowSelection, RouteFilter};

/// A query of the router's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// `Vec<`[`Port`]`>`.
    Ports,
    /// `Vec<`[`Interface`]`>`: each port's is followed by the VLANs on it, and each bond by its ports and VLANs.
    Interfaces,
    /// `Vec<`[`Bond`]`>`.
    Bonds,
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
    /// `Vec<`[`Mirror`]`>`: the mirror sessions, in the order of the configuration.
    Mirrors,
    /// [`Exporters`]: sFlow, IPFIX, their collectors, the SNMP agent.
    Exporters,
    /// [`Forwarders`]: the work, core and load of each.
    Forwarders,
    /// `Vec<`[`Rss`]`>`: the distribution of received packets, by port.
    Rss,
    /// `Vec<`[`ControlQueue`]`>`: the queues for control traffic, by port.
    ControlQueues,
    /// `Vec<`[`InterfaceQueue`]`>`: the queues in software, by interface.
    Queues,
    /// [`Status`]: the router's version, age and configuration.
    Status,
    /// [`Overview`]: what a live view shows, of one moment.
    Overview {
        /// With interfaces that are not ports.
        #[serde(default)]
        interfaces: bool,
        /// With VRFs and the numbers of their routes.
        #[serde(default)]
        vrfs: bool,
    },
    /// [`Counters`].
    Counters,
    /// [`Acceleration`]: interfaces that stay the kernel's, and their packets.
    Acceleration,
    /// [`Policing`]: classes of punted packets and their limits.
    Policing,
    /// [`Graph`].
    Graph,
    /// `Vec<`[`Command`]`>`: the configuration's commands in Lua.
    Commands,
    /// [`Steps`]: the steps, and the status of those in Lua.
    Steps,
    /// `Vec<`[`ClickElement`]`>`: the elements of a Click configuration.
    Click,
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

/// The router as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// That of DPDK.
    pub dpdk: String,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// The number of its configuration, as in `turnpike history`.
    pub configuration: u64,
    /// True if the configuration waits for `turnpike confirm`.
    pub unconfirmed: bool,
    /// Cycles of the time-stamp counter in a second: the unit of forwarders' cycles.
    pub tsc_hz: u64,
}

/// Several reports of one moment, so that their counts can be compared with those of another.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// Microseconds since the router's start.
    pub at_us: u64,
    /// The router.
    pub status: Status,
    /// Its packets.
    pub counters: Counters,
    /// Its forwarders.
    pub forwarders: Forwarders,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Its interfaces, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interfaces: Option<Vec<Interface>>,
    /// Its VRFs, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrfs: Option<Vec<Vrf>>,
}

/// A mirror session: copies of the packets of interfaces, for an analyser.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Mirror {
    /// Its name.
    pub name: String,
    /// The mirrored interfaces.
    pub from: Vec<String>,
    /// The mirrored packets: `inward`, `outward` or `both`.
    pub direction: String,
    /// The analyser's port, or its address.
    pub to: String,
    /// The analyser behind routers, at the address `to`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erspan: Option<Erspan>,
    /// One of so many packets is copied.
    pub sample: u32,
    /// The identifier of the VLAN tag in front of each copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Copies made.
    pub packets: u64,
    /// Their bytes, tags and the headers of ERSPAN included.
    pub bytes: u64,
    /// Copies lost: without a buffer, or because the analyser's port was full or down, or the analyser not to be reached.
    pub dropped: u64,
}

/// Exporters of samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exporters {
    /// In the order of sFlow, IPFIX.
    pub exporters: Vec<Exporter>,
    /// The SNMP agent to which the router gives objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snmp: Option<Snmp>,
}

/// An SNMP agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Snmp {
    /// The path of its AgentX socket.
    pub agentx: String,
    /// `ready`, or `connecting`.
    pub state: String,
    /// Sessions so far.
    pub sessions: u64,
    /// Requests answered.
    pub requests: u64,
    /// Reason for which the last session ended, or could not be opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// An exporter of samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exporter {
    /// `sflow` or `ipfix`.
    pub name: String,
    /// One of so many packets is sampled.
    pub sample: u32,
    /// Packets sampled.
    pub sampled: u64,
    /// Samples lost, as the exporter had no time for them.
    pub lost: u64,
    /// Samples of IP packets without a route, as the router had no time to look it up.
    pub unrouted: u64,
    /// Samples that are no IP packets, which have no flow.
    pub ignored: u64,
    /// Samples of packets sent, or flows.
    pub exported: u64,
    /// Samples of interfaces' counters sent; absent with IPFIX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counters: Option<u64>,
    /// Flows in the cache; absent with sFlow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u64>,
    /// Its collectors.
    pub collectors: Vec<Collector>,
}

/// A collector of samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Collector {
    /// Its address and UDP port.
    pub address: String,
    /// Datagrams sent to it.
    pub datagrams: u64,
    /// Bytes of them, from the UDP header's end on.
    pub bytes: u64,
    /// Datagrams lost for lack of room in the socket or its device.
    pub dropped: u64,
    /// Datagrams that could not be sent, and reports that nothing listens there.
    pub errors: u64,
    /// The last of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// Copies for an analyser behind routers: ERSPAN type II.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Erspan {
    /// The source address of the copies.
    pub source: String,
    /// The session's number in their headers.
    pub id: u16,
    /// The VRF whose routes lead to the analyser.
    pub vrf: String,
    /// True if there is a route to the analyser, and the MAC of the next hop is known.
    pub reachable: bool,
}

/// A port. Packets and bytes are those that forwarders received and sent, Ethernet frames without
/// FCS; `rx_missed`, `rx_errors` and `tx_errors` are the device's own counts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// Its name in the configuration.
    pub name: String,
    /// The device as written in the configuration.
    pub device: String,
    /// The driver of the device.
    pub driver: String,
    /// Its MAC.
    pub mac: String,
    /// Its VRF; none for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Its addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// `up`, `down`, or `gone` while its device is absent.
    pub link: String,
    /// Source of notifications of link changes: `interrupt`, `netlink`, or none: `polled`.
    pub link_by: String,
    /// Further properties of its link, and the addresses that its device receives.
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
    /// Packets for which the device had no room, those of `rx_nombuf` included.
    pub rx_missed: u64,
    /// Packets lost because no buffer was free.
    pub rx_nombuf: u64,
    /// Packets received with errors by the device.
    pub rx_errors: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets that the device failed to send.
    pub tx_errors: u64,
    /// Accesses to memory that the IOMMU refused the device, as far as the kernel's log reports
    /// them.
    pub dma_faults: u64,
    /// The counters among these that indicate trouble now, or did within the last seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
    /// Its host interface, which has the port's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostInterface>,
    /// Work that the device could do, and its use.
    #[serde(default)]
    pub offloads: Vec<Offload>,
}

/// An interface: a port's own, a bond, a VLAN, or a loopback, which has no packets. Packets and bytes are Ethernet frames without VLAN tags and FCS; those of a
/// port's own interface are all that the port receives and sends, with the tags (RFC 2863 3.1.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interface {
    /// Its name in the configuration.
    pub name: String,
    /// `port`, `bond`, `vlan` or `loopback`.
    pub kind: String,
    /// The port, bond or VLAN whose frames carry it, or the bond that has the port's frames; none: neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The tag that its frames have in the parent's; none: it is no VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<VlanTag>,
    /// True for a VLAN that was found as a VLAN device of the kernel, without a statement.
    #[serde(default)]
    pub found: bool,
    /// Its MAC.
    pub mac: String,
    /// Its VRF; none for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Its addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// `up`, `down`, or `gone` while the port's device is missing.
    pub link: String,
    /// The largest IP packet it sends, in bytes.
    pub mtu: u16,
    /// Frames received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Virtual MACs at which it receives frames now, those of redundancy protocols.
    #[serde(default)]
    pub virtual_macs: Vec<String>,
    /// Its host interface, which has its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostInterface>,
}

/// A bond: an interface whose frames are spread over several ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Bond {
    /// Its name.
    pub name: String,
    /// `lacp`, `static` or `active-backup`.
    pub mode: String,
    /// The fields by which a frame's port is selected: `l2`, `l2+l3` or `l3+l4`.
    pub hash: String,
    /// `up` or `down`.
    pub link: String,
    /// It is down while fewer ports than this are active.
    pub minimum_links: u8,
    /// Most ports that LACP uses at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_links: Option<u8>,
    /// The partner system with which LACP has agreed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<String>,
    /// Its ports, in the configuration's order.
    pub ports: Vec<BondPort>,
}

/// A port of a bond. States and counts of LACP are none and 0 in other modes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BondPort {
    /// Its name.
    pub name: String,
    /// `up` or `down`.
    pub link: String,
    /// True if packets that it receives count.
    pub collecting: bool,
    /// True if it sends.
    pub distributing: bool,
    /// State of LACP's Receive machine: `disabled`, `expired`, `defaulted`, `current`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive: Option<String>,
    /// State of LACP's Mux machine: `detached`, `waiting`, `attached`, `collecting`, `distributing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mux: Option<String>,
    /// True if LACP has selected it for the bond.
    pub selected: bool,
    /// True if it is beyond `maximum_links`, and takes the place of a port that is lost.
    #[serde(default)]
    pub standby: bool,
    /// True if the router's side has not been in sync for a minute (IEEE 802.1AX, 6.4.17).
    #[serde(default)]
    pub actor_churn: bool,
    /// True if the partner's side has not been in sync for a minute.
    #[serde(default)]
    pub partner_churn: bool,
    /// True if its partner is this router.
    pub looped: bool,
    /// Its partner, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partner: Option<LacpPartner>,
    /// Valid LACPDUs received.
    pub lacpdus_in: u64,
    /// LACPDUs sent.
    pub lacpdus_out: u64,
    /// Malformed frames of the slow protocols received.
    pub malformed: u64,
    /// Markers received.
    pub markers: u64,
}

/// The other end of a link, as its LACPDUs describe it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LacpPartner {
    /// Identifier of its system.
    pub system: String,
    /// Priority of its system.
    pub system_priority: u16,
    /// Its key.
    pub key: u16,
    /// Its number.
    pub port: u16,
    /// Its priority.
    pub port_priority: u16,
    /// Its flags: `activity`, `short-timeout`, `aggregation`, `synchronization`, `collecting`, `distributing`,
    /// `defaulted`, `expired`.
    pub state: Vec<String>,
}

/// An IEEE 802.1Q tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VlanTag {
    /// `802.1q` or `802.1ad`.
    pub protocol: String,
    /// The VLAN identifier, 1 to 4094.
    pub id: u16,
    /// The priority code point of sent frames, 0 to 7.
    pub priority: u8,
}

/// Work on packets that a device can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Offload {
    /// Its name in a configuration.
    pub offload: String,
    /// True if the device supports it.
    pub device: bool,
    /// True if it is used.
    pub on: bool,
    /// The reason for its use or for the lack of it.
    pub reason: String,
}

/// The running forwarders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forwarders {
    /// By number.
    pub forwarders: Vec<Forwarder>,
    /// Cores of everything else: slow path workers, the owner, the API, DPDK's own threads.
    #[serde(default)]
    pub control: Vec<usize>,
    /// Receive queues moved from a busy forwarder to an idle one.
    #[serde(default)]
    pub moved: u64,
    /// Entries of RSS tables moved to a queue of a less busy forwarder.
    #[serde(default)]
    pub moved_entries: u64,
    /// The event device that gives packets to forwarders; none: each forwards what it receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<EventsReport>,
    /// Advice for the operator, in sentences.
    pub advice: Vec<String>,
}

/// An event device between the first forwarder, which receives and sends, and the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventsReport {
    /// Its name.
    pub device: String,
    /// Its driver.
    pub driver: String,
    /// `ordered`, `atomic` or `parallel`.
    pub order: String,
    /// Queues by class of traffic; 1: the device has no priorities.
    pub queues: usize,
    /// True if a thread of the router schedules for the device.
    pub scheduler: bool,
    /// Packets in the device and with workers.
    pub in_flight: u64,
    /// Packets that have left it.
    pub returned: u64,
    /// Packets that have left it behind later ones of their flow (RFC 4737).
    pub reordered: u64,
    /// Packets dropped because it took no more.
    pub full: u64,
}

/// Interference with a forwarder, as counted by the kernel. Counts and times of the thread are
/// since its start, those of the core since the forwarder moved to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interference {
    /// Cores on which the kernel lets the thread run: the forwarder's, unless that was refused or
    /// removed from the process's cores.
    pub allowed: Vec<usize>,
    /// Times that the thread released the core, which it does to sleep.
    pub voluntary_switches: u64,
    /// Times that the scheduler gave the core to another thread.
    pub involuntary_switches: u64,
    /// Page faults resolved from memory.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Microseconds on a core.
    pub ran_us: u64,
    /// Microseconds for which it was ready to run while other threads had the core.
    pub waited_us: u64,
    /// Microseconds of interrupts and softirqs on the core, in steps of 10,000.
    pub interrupts_us: u64,
    /// Microseconds for which the hypervisor did not run the core, in steps of 10,000.
    pub stolen_us: u64,
    /// Interrupts on the core by which other cores made it forget address translations: memory that the process returned
    /// to the kernel, or that the kernel moved.
    pub tlb_shootdowns: u64,
}

/// A forwarder. Packets, bursts and cycles are since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forwarder {
    /// Its number.
    pub number: usize,
    /// Its core; for the control forwarder, the first of those for control.
    pub core: usize,
    /// True if it is for control traffic.
    #[serde(default)]
    pub control: bool,
    /// The NUMA node of that core; none: the machine has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// Share of the last second in which it had packets, in percent.
    pub busy_percent: f64,
    /// Packets processed by its graph.
    pub packets: u64,
    /// Bursts of these packets.
    pub bursts: u64,
    /// Times that it took packet buffers from the ring that all threads share, many at once: those that it frees
    /// itself it uses again without that.
    #[serde(default)]
    pub pool_takes: u64,
    /// Times that it gave packet buffers back to that ring.
    #[serde(default)]
    pub pool_gives: u64,
    /// TSC cycles of rounds with packets.
    pub busy_cycles: u64,
    /// TSC cycles of rounds without packets, and of sleep.
    pub idle_cycles: u64,
    /// Its behaviour without packets.
    pub waiting: Waiting,
    /// Packets that it received and passed to others because of software spreading.
    pub spread_out: u64,
    /// Packets that others received and passed to it because of software spreading.
    pub spread_in: u64,
    /// Receive queues that it serves: `wan:0`.
    pub rx: Vec<String>,
    /// Its transmit queues.
    pub tx: Vec<String>,
    /// Interference with its thread; none: its thread has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interference: Option<Interference>,
}

/// The waiting of a forwarder. Counts are since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// The least patient setting of the ports that it receives from: `poll`, `adaptive` or `interrupt`.
    pub wait: String,
    /// Ports that cannot wake it, because of which it sleeps for some microseconds at a time.
    pub without_interrupts: Vec<String>,
    /// True if it blocks now.
    pub blocking: bool,
    /// Times it slept for some microseconds.
    pub sleeps: u64,
    /// Times it blocked.
    pub blocks: u64,
    /// Milliseconds for which it blocked, up to its last wake-up.
    pub blocked_ms: u64,
    /// Times that a receive queue woke it.
    pub woken_by_receive: u64,
    /// Times that packets of the slow path, the kernel or other forwarders woke it.
    pub woken_by_ring: u64,
    /// Times that the owner woke it: for a change, or to end.
    pub woken_by_control: u64,
}

/// The spreading of a port's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rss {
    /// The port.
    pub port: String,
    /// `hardware`: the device selects a queue; `software`: a forwarder is selected; `none`: all
    /// packets are received by one queue, or the device spreads them in a way of its own.
    pub spread: String,
    /// The hash function; none: there is no hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The hashed fields.
    pub fields: Vec<String>,
    /// The key; none: the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Receive queues.
    pub queues: usize,
    /// The queue for control traffic, to which no packets are spread; none: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_queue: Option<usize>,
    /// The queue (in software: the forwarder) of each hash; empty: the device has no table, or does
    /// not report it.
    pub table: Vec<u16>,
}

/// Queues of a port for control traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlQueue {
    /// The port.
    pub port: String,
    /// Its receive queue for control traffic; none: see `why`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx: Option<usize>,
    /// Its transmit queue for control traffic; none: packets of the slow path and the kernel are
    /// sent by that of a forwarder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx: Option<usize>,
    /// The forwarder that sends packets of the slow path and the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<usize>,
    /// The reason for which it has no queue for control traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The rules of protocols that lead, or should lead, to the receive queue.
    #[serde(default)]
    pub rules: Vec<ControlRule>,
    /// Flows of the host whose replies arrive on the receive queue, most recently used first.
    #[serde(default)]
    pub flows: Vec<LearnedFlow>,
    /// Flows accepted by the device since the port was opened.
    #[serde(default)]
    pub learned: u64,
    /// Flows whose unused rule was removed.
    #[serde(default)]
    pub aged: u64,
    /// Flows whose rule was replaced by that of another.
    #[serde(default)]
    pub displaced: u64,
    /// Flows refused by the device.
    #[serde(default)]
    pub refused: u64,
    /// Flows that began too fast to be learned, since the start.
    #[serde(default)]
    pub unlearned: u64,
}

/// A rule that leads to a queue for control traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlRule {
    /// The traffic: `BGP to 10.0.1.1`.
    pub what: String,
    /// Packets that matched it; none: the device does not count them, or does not hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The reason for which the device does not hold it; none: it holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A flow of the host whose replies arrive on a queue for control traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LearnedFlow {
    /// The flow in the host's direction: `tcp 10.0.1.1:40000 > 192.0.2.9:443`.
    pub flow: String,
    /// Seconds since its last observed use.
    pub idle_s: u64,
}

/// The queue of an interface in software.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceQueue {
    /// The port, the bond or the VLAN.
    pub interface: String,
    /// Discipline, length and settings, as in configurations.
    pub queue: String,
    /// The rate; none: that of the link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// Packets that wait and have waited, all forwarders together.
    pub classes: Vec<QueueClass>,
}

/// Packets of a class in a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueClass {
    /// `control` (CS6, CS7, ARP, neighbour discovery), a class by DSCP, or `others` if all others
    /// share one queue.
    pub name: String,
    /// Packets that wait now.
    pub waiting: u64,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// Largest number of waiting packets on one forwarder.
    pub most: u64,
    /// Packets that have left.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped because the queue was full.
    pub full: u64,
    /// Packets dropped by RED.
    pub red: u64,
    /// Packets dropped by CoDel.
    pub codel: u64,
    /// Packets marked by RED or CoDel (ECN).
    pub marked: u64,
    /// Microseconds that packets spent in the queue, a moving average.
    pub delay_us: u64,
    /// The longest such time, in microseconds.
    pub delay_most_us: u64,
}

/// A link. Properties that the device does not report are left out; those of a kernel interface are
/// the kernel's (`ethtool`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LinkDetails {
    /// Speed in Mb/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbps: Option<u32>,
    /// `full` or `half`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplex: Option<String>,
    /// True if the speed is negotiated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoneg: Option<bool>,
    /// Flow control: `none`, `rx`, `tx` or `full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<String>,
    /// Error correction: `none`, `auto`, `base-r` or `rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fec: Option<String>,
    /// True if frames for all addresses are received.
    pub promiscuous: bool,
    /// True if all multicasts are received.
    pub all_multicast: bool,
    /// The reason for which all multicasts are received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_multicast_because: Option<String>,
    /// The groups whose multicasts are received, by their MAC addresses; none if all are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// A port's host interface. Packets and bytes are since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HostInterface {
    /// `up`, `down`, `no carrier` or `gone`.
    #[serde(default)]
    pub state: String,
    /// The reason for which it is not up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its index in its network namespace.
    pub index: u32,
    /// The file of its network namespace; none: the router's own.
    pub netns: Option<String>,
    /// Packets passed to the kernel.
    pub up_packets: u64,
    /// Bytes passed to the kernel.
    pub up_bytes: u64,
    /// Packets refused by the kernel.
    pub up_refused: u64,
    /// Packets sent by the kernel.
    pub down_packets: u64,
    /// Bytes sent by the kernel.
    pub down_bytes: u64,
}

/// One path of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Path {
    /// The outgoing port; none for a gateway that is reached by another route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The gateway; none for a connected network.
    pub via: Option<IpAddr>,
    /// The VRF whose routes resolve the gateway, if it is not the route's own.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// Its VRF; none for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// The destinations.
    pub prefix: String,
    /// The source of the route.
    pub source: String,
    /// `unicast`, `connected`, `local`, `blackhole`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// Among a source's routes to one prefix the smallest metric wins.
    pub metric: u64,
    /// The origin AS, if the route is an import's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_as: Option<u32>,
    /// True if forwarders use it.
    pub active: bool,
    /// The reason for which it is not used: `shadowed` by a better route to the prefix,
    /// `link-down`, `loop`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactive: Option<String>,
    /// The paths of its packets; none for a route that drops or refuses them, or delivers them
    /// locally.
    pub paths: Vec<Path>,
}

/// A VRF.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Vrf {
    /// Its name.
    pub name: String,
    /// The routing table of the kernel and of FRR that the configuration assigns to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The network namespace of its host interfaces, whose routes of the kernel are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The ports in it.
    pub ports: Vec<String>,
    /// Its routes, those not in use included.
    pub routes: Families,
    /// Its routes by source, those not in use included.
    #[serde(default)]
    pub sources: BTreeMap<String, Families>,
    /// Prefixes in the tables of forwarders.
    pub fib: Families,
    /// Changes of these tables since the VRF was made: prefixes added, removed, or with another next hop.
    #[serde(default)]
    pub changes: Changes,
}

/// A count for each family of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// Of IPv4.
    pub ipv4: u64,
    /// Of IPv6.
    pub ipv6: u64,
}

/// Names of the structures of route tables, as in `turnpike.fib`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Structures {
    /// For IPv4.
    pub ipv4: String,
    /// For IPv6.
    pub ipv6: String,
}

/// Numbers of routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteSummary {
    /// Routes by source, those not in use included.
    pub sources: BTreeMap<String, Families>,
    /// Prefixes in the tables of forwarders.
    pub fib: Families,
    /// The structures of these tables.
    pub fib_structure: Structures,
    /// Bytes that forwarders read for lookups.
    pub fib_bytes: Families,
    /// Next hops.
    pub next_hops: Room,
    /// Routes refused since the start.
    pub refused: u64,
    /// Routes that wait for room among the next hops, or for their group.
    pub waiting: usize,
    /// Prefixes whose change waits for room in the route table.
    pub pending: usize,
}

/// A number for each family of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Families {
    /// Of IPv4.
    pub ipv4: usize,
    /// Of IPv6.
    pub ipv6: usize,
}

/// Places in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Room {
    /// Those in use.
    pub used: usize,
    /// All.
    pub most: usize,
}

/// A path and its present state.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ResolvedPath {
    /// The outgoing port.
    pub port: String,
    /// The neighbour; none if the destination itself must be resolved on a connected network.
    pub via: Option<IpAddr>,
    /// Its share of the flows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub weight: u16,
    /// The neighbour's MAC, if known.
    pub mac: Option<String>,
    /// `reachable`, `unresolved`, or `down` if the port is down.
    pub state: String,
    /// True if the queried flow takes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
}

/// Treatment of packets to an address.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RouteAnswer {
    /// The queried address.
    pub address: IpAddr,
    /// The longest matching prefix; none without a route.
    pub prefix: Option<String>,
    /// The source of the route.
    pub source: Option<String>,
    /// As in [`Route`]; `no-route` without one.
    #[serde(rename = "type")]
    pub kind: String,
    /// The paths, with recursive gateways resolved to their ports.
    pub paths: Vec<ResolvedPath>,
    /// All routes to the prefix, the one in use first.
    #[serde(default)]
    pub candidates: Vec<Route>,
}

/// A source of routes: the configuration, the kernel, zebra, …
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceReport {
    /// Its name in `show routes --source`.
    pub name: String,
    /// Its distance: of several routes to one prefix the one with the smallest distance is used.
    pub distance: u8,
    /// `ready`; sources outside the router may also be `connecting`, `synchronising`, …
    pub state: String,
    /// IPv4 routes, those not in use included.
    pub ipv4: usize,
    /// IPv6 routes.
    pub ipv6: usize,
    /// Further status of a source outside the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
}

/// Status of a source outside the router. Counts are since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Remote {
    /// Messages read.
    pub messages: u64,
    /// Malformed messages or attributes.
    pub errors: u64,
    /// Well-formed messages without effect here, such as a route for one TOS.
    pub ignored: u64,
    /// Changes refused by the router; the log has the reasons.
    pub refused: u64,
    /// Times that messages were lost because they came faster than they were read. Each is repaired
    /// by a resynchronisation.
    pub overruns: u64,
    /// Complete readings, the first one included.
    pub resyncs: u64,
    /// Seconds since the last one ended.
    pub last_resync_s: Option<u64>,
    /// Nexthop objects.
    pub groups: usize,
    /// Comparisons of the source's routes with the router's.
    pub audits: u64,
    /// Comparisons that found a difference, which is a defect.
    pub audits_failed: u64,
    /// The last one.
    pub last_audit: Option<Audit>,
    /// The connected peer, for a source that connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// A comparison of a source's routes with the router's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// Seconds since it ended.
    pub age_s: u64,
    /// Routes compared.
    pub compared: usize,
    /// Routes that the source had and the router had not.
    pub missing: usize,
    /// Routes that the router had and the source had not.
    pub stale: usize,
    /// Routes that differed from the source's.
    pub different: usize,
    /// Prefixes that were forwarded otherwise than their best route requires.
    pub fib: usize,
    /// The first differences, in words.
    pub examples: Vec<String>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// `added`, `replaced` or `removed`.
    pub change: String,
    /// A remark: the reason for which a route is not used, or the way its gateway is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Changes that a configuration would make, or has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangePlan {
    /// Its file.
    pub file: String,
    /// The changes; of routes only the first of each kind, unless all were requested.
    pub changes: Vec<PlannedChange>,
    /// Numbers of changed routes.
    pub routes: RouteChanges,
    /// True if a change requires a restart; `apply` would refuse the configuration.
    pub restart: bool,
}

/// Numbers of added, removed and changed routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteChanges {
    /// Routes added.
    pub added: usize,
    /// Routes removed.
    pub removed: usize,
    /// Routes changed.
    pub changed: usize,
}

/// A change of one setting or route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedChange {
    /// The setting or route.
    pub what: String,
    /// The old value; none if it did not exist.
    pub from: Option<String>,
    /// The new value; none if it is removed.
    pub to: Option<String>,
    /// True if it can be changed while the router runs.
    pub live: bool,
    /// True if its port is closed and reopened for the change.
    #[serde(default)]
    pub reopens: bool,
    /// The reason for which it requires a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// Result of a change to another configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Applied {
    /// Its number in the history.
    pub number: u64,
    /// Summary of the changes.
    pub summary: String,
    /// Seconds within which it must be confirmed.
    pub confirm_s: Option<u64>,
    /// The longest round of a forwarder during or directly after the exchange of its graph, in
    /// microseconds: the longest delay of a packet by the change. None if forwarders had nothing to
    /// exchange.
    pub pause_us: Option<f64>,
}

/// A configuration that was written to the file of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Saved {
    /// Its number.
    pub number: u64,
    /// The file.
    pub file: String,
    /// False if the file had this text already.
    pub written: bool,
}

/// A configuration that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// Its number.
    pub number: u64,
    /// Time of the change, in seconds since 1970.
    pub time_s: u64,
    /// Its file.
    pub file: String,
    /// `start`, `apply`, `rollback to N`, `N was not confirmed`.
    pub origin: String,
    /// Summary of its changes.
    pub summary: String,
    /// `current`, `waiting` for confirmation, or none.
    pub state: Option<String>,
    /// Seconds left for its confirmation.
    pub confirm_s: Option<u64>,
}

/// A configuration of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Configuration {
    /// Its number.
    pub number: u64,
    /// Its file.
    pub file: String,
    /// Its text.
    pub text: String,
}

/// A neighbour: a host on a port's network.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// The port it is on.
    pub port: String,
    /// Its MAC, if known.
    pub mac: Option<String>,
    /// `incomplete`, `reachable`, …
    pub state: String,
    /// True if it is configured.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// Packets that wait for its MAC.
    pub queued: usize,
}

/// A multicast route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Multicast {
    /// The group.
    pub group: IpAddr,
    /// The sender; none: any.
    pub source: Option<IpAddr>,
    /// `configuration` or `kernel`.
    pub origin: String,
    /// The incoming port.
    pub from: String,
    /// The outgoing ports.
    pub to: Vec<MulticastPort>,
    /// Packets forwarded, each counted once regardless of the number of outgoing ports.
    pub packets: u64,
    /// Their bytes, without Ethernet headers.
    pub bytes: u64,
    /// Packets dropped because they arrived on another port.
    pub wrong_port: u64,
}

/// A port with receivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MulticastPort {
    /// Its name.
    pub port: String,
    /// The TTL that packets must exceed to be sent by it.
    pub ttl: u8,
}

/// Account of all packets:
/// `received + originated + replicated = sent + to_host + dropped_total + in_flight + unaccounted`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Packets received by forwarders.
    pub received: u64,
    /// Packets created by the router: ARP, ND, ICMP.
    pub originated: u64,
    /// Copies made of multicast packets: for each packet one less than its outgoing ports.
    pub replicated: u64,
    /// Packets accepted by devices for transmission.
    pub sent: u64,
    /// Packets for the router itself that it processed.
    pub to_host: u64,
    /// Drops by reason.
    pub dropped: BTreeMap<String, u64>,
    /// The same drops by step, or another part of the router such as `slow-path` or `transmit`, and reason.
    /// Reasons that a step of the graph declares are present at 0.
    #[serde(default)]
    pub dropped_by_step: BTreeMap<String, BTreeMap<String, u64>>,
    /// The sum of `dropped`.
    pub dropped_total: u64,
    /// Packets in progress: in rings, in transmit bursts, waiting for a neighbour.
    pub in_flight: u64,
    /// Counters of the configuration's steps, by name.
    #[serde(default)]
    pub steps: BTreeMap<String, u64>,
    /// Packets missing or surplus in the account; 0 while no packets move. While packets move, the
    /// counters are read at slightly different moments.
    pub unaccounted: i64,
}

/// The graph and the packets that took its edges, all forwarders together.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Graph {
    /// The steps in the order in which they run.
    pub steps: Vec<Step>,
}

/// A step of the graph.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Packets it handled.
    pub packets: u64,
    /// Its outputs.
    pub outputs: Vec<Edge>,
}

/// An output of a step.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Edge {
    /// Its name.
    pub name: String,
    /// The step that it leads to, or `transmit`, `slow-path`, `drop`.
    pub to: String,
    /// Packets that took it.
    pub packets: u64,
}

/// An element of a Click configuration.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClickElement {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Its configuration string.
    pub config: String,
    /// The step that does its work.
    pub step: Option<String>,
    /// The port of its device.
    pub port: Option<String>,
    /// True for a routing table that is the router's own.
    pub is_route_table: bool,
    /// Packets that came to it; `None` if that is not counted.
    pub count: Option<u64>,
    /// Its handlers, each with `r`, `w` or both.
    pub handlers: Vec<(String, String)>,
}

/// The result of a handler's call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HandlerAnswer {
    /// The status of Click's protocol: 200, or from 500 on for a failure.
    pub code: u16,
    /// The text that Click's protocol sends with it.
    pub messages: Vec<String>,
    /// The value, if it was read.
    pub data: Option<String>,
}

/// The steps of the graph, and the status of those in Lua.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Steps {
    /// The steps in the order in which they run.
    pub steps: Vec<StepState>,
    /// The compilers of forwarders with Lua steps.
    pub compilers: Vec<Compiler>,
}

/// A step.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StepState {
    /// Its name in the graph.
    pub name: String,
    /// Its kind: its name in the catalogue or in the script.
    pub kind: String,
    /// Packets it handled.
    pub packets: u64,
    /// Its own counters, all forwarders together.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Its status if it is in Lua; the same for all steps of its kind.
    pub lua: Option<LuaStep>,
}

/// Status of the steps of one kind, on all forwarders together.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LuaStep {
    /// Calls that ended with an error or did not end in time.
    pub failures: u64,
    /// Calls that did not end in time.
    pub overruns: u64,
    /// Packets dropped because of failures.
    pub dropped: u64,
    /// Number of forwarders on which it failed too often and is disabled.
    pub disabled: usize,
}

/// Status of LuaJIT on one forwarder.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Compiler {
    /// The forwarder's number.
    pub forwarder: usize,
    /// Traces compiled so far.
    pub compiled: u64,
    /// Traces aborted; their code is interpreted until another attempt.
    pub aborted: u64,
    /// Times that all traces were discarded.
    pub flushed: u64,
    /// The reason and place of the last abort.
    pub last_abort: Option<String>,
}

/// A command of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// Its name.
    pub name: String,
    /// Its summary.
    pub help: String,
}

/// Kernel interfaces whose forwarding is accelerated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Acceleration {
    /// The interfaces.
    pub interfaces: Vec<AcceleratedInterface>,
    /// Prefixes at which the treatment of packets changes, in the XDP programs; 0 if these forward themselves.
    pub boundaries: usize,
    /// True if the XDP programs forward themselves.
    pub in_kernel: bool,
    /// Flows of the kernel's connection tracking, where packets of other flows are not accelerated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<AcceleratedFlows>,
}

/// Flows of the kernel's connection tracking that may be accelerated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratedFlows {
    /// Established flows in the table of the XDP programs. Packets of a direction are accelerated when the kernel has let one
    /// pass.
    pub known: u64,
    /// Flows that the table has room for.
    pub most: u64,
    /// Flows left to the kernel because the table was full.
    pub refused: u64,
    /// Flows that have ended, among them those that the kernel took back.
    pub ended: u64,
    /// Timeouts of the kernel that were renewed for flows in use.
    pub renewed: u64,
    /// Times at which announcements of the kernel were lost, and all flows were read anew.
    pub lost: u64,
}

/// A kernel interface whose forwarding is accelerated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratedInterface {
    /// Its name.
    pub name: String,
    /// Place where its XDP program runs: `native` in its driver, `generic` in the kernel's stack.
    pub mode: String,
    /// The reason for `generic`.
    pub reason: Option<String>,
    /// IPv4.
    pub ip4: AcceleratedFamily,
    /// IPv6.
    pub ip6: AcceleratedFamily,
    /// Its VLANs, of which frames with one 802.1Q tag are accelerated.
    #[serde(default)]
    pub vlans: Vec<AcceleratedVlan>,
    /// Of a bond: its ports.
    #[serde(default)]
    pub bond_ports: Vec<AcceleratedBondPort>,
    /// The longest IP packet that is accelerated, in bytes: the least MTU of the interfaces. Programs that forward themselves
    /// take longer ones as well, up to the MTU of the outgoing interface.
    pub longest: u16,
    /// The reason why packets that leave by it stay with the kernel, where programs forward themselves.
    pub closed: Option<String>,
    /// Received packets: `accelerated`, `returned` to the kernel after that, and those that the program left to the
    /// kernel, by reason.
    pub packets: BTreeMap<String, u64>,
}

/// A VLAN device on an accelerated interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratedVlan {
    /// Its name.
    pub name: String,
    /// Its VLAN identifier.
    pub id: u16,
    /// IPv4.
    pub ip4: AcceleratedFamily,
    /// IPv6.
    pub ip6: AcceleratedFamily,
}

/// A port of an accelerated bond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratedBondPort {
    /// Its name.
    pub name: String,
    /// True if the bond's program looks at its frames.
    pub accelerated: bool,
    /// The reason why its frames stay with the kernel.
    pub reason: Option<String>,
}

/// An address family on an accelerated interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcceleratedFamily {
    /// True if it is accelerated.
    pub accelerated: bool,
    /// The reason why it is not.
    pub reason: Option<String>,
}

/// Limits that protect the slow path, and packets refused by them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policing {
    /// Threads of the slow path.
    pub workers: usize,
    /// Classes of punted packets.
    pub classes: Vec<Class>,
    /// Limits of the ICMP errors that the router sends.
    pub icmp_errors: IcmpErrors,
    /// Events from the slow path to the control plane.
    pub events: Events,
}

/// Events of the slow path on their way to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Events {
    /// Events in the queue.
    pub waiting: u64,
    /// Events of neighbours replaced by a later one of the same neighbour while queued.
    pub merged: u64,
    /// Requests to the kernel, and warnings, lost because the queue was full.
    pub lost: u64,
}

/// A class of punted packets: offered = passed + refused + waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Class {
    /// Its name; its refused packets are dropped as `refused-NAME`.
    pub name: String,
    /// Limit in packets per second.
    pub rate: u32,
    /// Its part of the slow path's capacity, relative to the other classes'.
    pub weight: u32,
    /// Capacity of its queue in packets, for each forwarder and worker.
    pub queue: usize,
    /// Packets that forwarders offered to the slow path.
    pub offered: u64,
    /// Packets that the slow path accepted.
    pub passed: u64,
    /// Packets dropped at random, before the queue was full.
    pub refused_early: u64,
    /// Packets dropped because the queue was full.
    pub refused_full: u64,
    /// Packets in the queue.
    pub waiting: u64,
}

/// Limits of the ICMP errors that the router sends, and counts of suppressed ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IcmpErrors {
    /// Errors per second over all ports.
    pub rate: u32,
    /// Burst over all ports.
    pub burst: u32,
    /// Errors per second to one IPv4 /24 or IPv6 /64.
    pub prefix_rate: u32,
    /// Burst to one prefix.
    pub prefix_burst: u32,
    /// Errors suppressed by the limit over all ports.
    pub suppressed: u64,
    /// Errors suppressed by the limit of their prefix.
    pub suppressed_by_prefix: u64,
}

/// A packet filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Filter {
    /// Its name.
    pub name: String,
    /// The ports that have it for received packets.
    pub inward: Vec<String>,
    /// The ports that have it for transmitted packets.
    pub outward: Vec<String>,
    /// The ports whose devices are to hold its rules.
    #[serde(default)]
    pub hardware: Vec<FilterInHardware>,
    /// Its rules in their order.
    pub rules: Vec<FilterRule>,
    /// Action for packets that no rule matches: `accept`, `drop`, …
    pub default: String,
    /// Packets that no rule matched.
    pub default_packets: u64,
    /// Bytes of their IP packets.
    pub default_bytes: u64,
    /// For the filter of packets to the router itself: the classes that limit accepted packets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<Class>,
}

/// The flows of filters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flows {
    /// Capacity for flows of each family; 0: no filter uses them.
    pub room: usize,
    /// Flows entered since the table was created.
    pub entered: u64,
    /// Of these, flows displaced by newer ones before they expired.
    pub pushed_out: u64,
    /// Flows not entered for lack of room: filters treat their replies as new.
    pub refused: u64,
    /// Flows that match the query, those not shown included.
    pub total: usize,
    /// The flows, up to the requested number.
    pub flows: Vec<Flow>,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// The VRF.
    pub vrf: String,
    /// The protocol.
    pub protocol: String,
    /// The initiator: address and, if there is one, port; for ICMP the identifier.
    pub from: String,
    /// The responder.
    pub to: String,
    /// `unanswered`, `opening`, `assured` or `closing`.
    pub state: String,
    /// Packets of the initiator.
    pub packets_there: u64,
    /// Bytes of their IP packets.
    pub bytes_there: u64,
    /// Packets of the responder.
    pub packets_back: u64,
    /// Bytes of their IP packets.
    pub bytes_back: u64,
    /// Seconds since its first packet.
    pub age_s: u64,
    /// Seconds since its last packet.
    pub idle_s: u64,
}

/// A port whose device is to hold rules of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilterInHardware {
    /// Its name.
    pub port: String,
    /// The reason for which its device holds none.
    pub why: Option<String>,
}

/// A rule of a filter in the device of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleInHardware {
    /// The port.
    pub port: String,
    /// Rules in the device for it.
    pub held: usize,
    /// Rules required in the device for it.
    pub wanted: usize,
    /// True if the device counts the packets of its rules.
    pub counted: bool,
    /// True if the rule drops packets.
    pub drops: bool,
    /// True if the rule brings packets to a forwarder.
    #[serde(default)]
    pub steers: bool,
    /// The reasons for which its packets reach software.
    pub why: Vec<String>,
}

/// A set of prefixes to which filters refer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrefixSet {
    /// Its name.
    pub name: String,
    /// Its elements in order.
    pub elements: Vec<SetElement>,
}

/// An element of a [`PrefixSet`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SetElement {
    /// The addresses.
    #[schemars(with = "String")]
    pub prefix: IpNet,
    /// Its origin: `configuration`, `command` or `routes`.
    pub by: String,
    /// Seconds until it expires; `None`: never.
    pub remaining_s: Option<u64>,
}

/// Verdict of a filter on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilterVerdict {
    /// The deciding rule; `None`: the default decides.
    pub rule: Option<FilterRule>,
    /// Earlier rules that match and let it continue.
    #[serde(default)]
    pub before: Vec<FilterRule>,
    /// The action for the packet: `accept`, `drop`, …
    pub action: String,
    /// Explanation, if no rule decides.
    pub why: String,
}

/// The way of packets through the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// In the order in which they entered it.
    pub packets: Vec<TracedPacket>,
    /// Steps of packets that are missing in the report.
    pub lost: u64,
}

/// The way of one packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracedPacket {
    /// The number of its forwarder.
    pub forwarder: usize,
    /// The interface that received it.
    pub interface: String,
    /// The packet, in the notation of [`acl::packet`]; of others than IP packets Ethertype and MACs.
    pub packet: String,
    /// Bytes of the frame.
    pub length: usize,
    /// The steps.
    pub steps: Vec<TracedStep>,
    /// Its end: `sent on wan`, `dropped: filtered`, `to the slow path: ttl`, …
    pub end: String,
}

/// A step of a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TracedStep {
    /// The step's name.
    pub step: String,
    /// The output that it gave the packet to.
    pub output: String,
    /// Decisions, and changes of the packet.
    pub notes: Vec<String>,
}

/// Packets of a rule by the colours of RFC 2697 and RFC 2698.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ColourCounts {
    /// Packets within the rate and its burst.
    pub green: u64,
    /// Packets within the second bucket.
    pub yellow: u64,
    /// Packets above both.
    pub red: u64,
}

/// A rule of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilterRule {
    /// Its position, from 1 on.
    pub number: usize,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its conditions.
    pub matches: String,
    /// Its action: `accept`, `drop`, …
    pub action: String,
    /// Its rate limit, if any.
    pub police: Option<String>,
    /// Packets by colour, if the limit distinguishes colours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colours: Option<ColourCounts>,
    /// Packets that it matched, those above its rate and those counted by devices included.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
    /// Those of these packets that devices dropped and counted.
    #[serde(default)]
    pub device_packets: u64,
    /// Bytes of their IP packets, if the device counts bytes.
    #[serde(default)]
    pub device_bytes: u64,
    /// Its state in the devices of the ports that are to hold the filter's rules.
    #[serde(default)]
    pub hardware: Vec<RuleInHardware>,
    /// Seconds since its last packet; `None`: there was none.
    pub last_s: Option<u64>,
    /// Seconds for which a command has its packets logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logged_s: Option<u64>,
}
