//! The slow path: packets that the graph cannot finish.
//!
//! ```text
//!                forwarders                             control
//!       punted packets (P, Punt)                    Command    ^ Event
//!                   |                                  |       |
//!                   v                                  v       |
//!  +-----------------------------------------------------------------------+
//!  | SlowPath (engine.rs): packet()                 command()              | <--- tick(now)
//!  |                                                                       |      at next_deadline()
//!  |   frames not IP    --> links.rs, host.rs: to the kernel; lacp.rs      |
//!  |   options          --> options.rs, extension.rs                       |
//!  |   group's entry    --> multicast.rs --+ Some(packet):                 |
//!  |   route elsewhere  --> forward.rs ----+ for the router                |
//!  |                          |            v                               |
//!  |   for the router   ------|------> local.rs --> reassembly.rs          |
//!  |                          |            |                               |
//!  |     redirect.rs <--------+            +--> links.rs: protocols of a   |
//!  |     better first hops    |            |    link                       |
//!  |                          |            |      arp.rs, nd.rs            |
//!  |                          |            |      announce.rs, mld.rs      |
//!  |                          |            |      duplicate.rs             |
//!  |                          |            |      advertise.rs             |
//!  |                          |            |      discovery.rs             |
//!  |                          |            +--> echo.rs, reset.rs (TCP)    |
//!  |                          |            +--> relay.rs (DHCP)            |
//!  |                          |            +--> icmp.rs: errors            |
//!  |                          |                  |                         |
//!  |                          |                  v originate.rs: the FIB   |
//!  |                          v                  v                         |
//!  |                        resolution.rs: neighbours <--> neighbour.rs,   |
//!  |                          |                            the table       |
//!  |                          v                                            |
//!  |                        transmit.rs: MACs, TTL, options --> fragment.rs|
//!  +-----------------------------------------------------------------------+
//!        |              |               |              |         |
//!        v              v               v              v         v
//!   forward(interface, P)  originate(interface,  to_host(P)   drop(P,    route(), next_hop(),
//!   finished, to a    frame) replies,  consumed     reason)    replication(), has_joined(),
//!   transmit queue    errors, probes   here;                   time_of_day(): questions to
//!                                      deliver(interface, P)        the FIB, the next-hop table
//!                                      to the kernel           and the kernel
//! ```
//!
//! Each protocol is a file, and the state of one that has any is a struct with private fields: `Announcements`, `Groups`,
//! `Probes`, `Advertising`, `RouterDiscovery` and `Later` (together `Links`), `Lacp`, `Reassembly`, `Redirects`. Protocols call
//! each other by named functions. What several of them need (interfaces, the neighbour table, gateways, identifications,
//! rates) is shared, and each protocol gets one of two views of it: that of its link, or that of neighbours and routes as
//! well (`context.rs`).
//!
//! An interface may have a *host interface*, on which the kernel of the machine is the router's host: it
//! answers ARP, ND and ping, and resolves neighbours on request ([`Event::Resolve`]). Packets still
//! wait here meanwhile, and errors about packets that cannot be forwarded still come from here.
//!
//! No threads, no sockets, no clock: the caller passes in packets, commands and the time, and
//! implements [`Output`]. So the same inputs give the same outputs, and a failure in the field can
//! be replayed at a desk. `P` is the packet buffer, an mbuf in the router and a `Vec<u8>` in tests;
//! every packet given to [`SlowPath::packet`] is returned through `Output` exactly once.
//!
//! The caller's loop:
//!
//! 1. `tick(now)` once at the start, which announces the router's addresses;
//! 2. `packet(..)` for each punted packet, `command(..)` for each command;
//! 3. `tick(now)` whenever `now >= next_deadline()`;
//! 4. `shutdown(..)` at the end: packets that still wait come back as drops, and advertising interfaces announce
//!    that this router ceases to be one.
//!
//! Duplicate address detection (RFC 4862, 5.4) runs on interfaces configured with it ([`InterfaceSettings::dad`]),
//! since it keeps the router off its link for seconds. On every interface, conflicts are detected and reported
//! when the other host sends ([`Event::AddressConflict`]).
#![forbid(unsafe_code)]

mod advertise;
mod announce;
mod arp;
mod bucket;
mod context;
mod discovery;
mod duplicate;
mod echo;
mod engine;
mod extension;
mod forward;
mod fragment;
mod frame;
mod gateways;
mod host;
mod icmp;
mod identification;
mod interfaces;
mod lacp;
mod later;
mod links;
mod local;
mod mld;
mod multicast;
mod nd;
mod neighbour;
mod options;
mod originate;
mod proxy;
mod random;
mod reassembly;
mod redirect;
mod regroup;
mod relay;
mod reset;
mod resolution;
mod source;
#[cfg(test)]
mod testing;
mod transmit;

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use dataplane::filters::Judgement;
use dataplane::flow::FlowHash;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::multicast::Replication;
use dataplane::next_hop::NextHop;
use dataplane::reason::{DropReason, Punt};
use ipnet::{IpNet, Ipv6Net};
use wire::MacAddr;

/// End of a packet that makes the engine panic if it is built with the feature `faulty-step`.
#[cfg(feature = "faulty-step")]
pub const POISON: &[u8] = b"panic over this";

pub use bucket::{Rates, TokenBucket};
pub use engine::SlowPath;
pub use regroup::Owners;

/// Time since a start chosen by the caller; it must not run backwards.
pub type Time = Duration;

/// Configuration of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Number of the interface in the data plane.
    pub id: InterfaceId,
    /// Name of the interface in the configuration.
    pub name: String,
    /// Source address of every frame the interface sends. Its IPv6 link-local address is derived from it (RFC
    /// 4291, 2.5.6) and is always present.
    pub mac: MacAddr,
    /// Largest IP packet the interface sends, in bytes.
    pub mtu: u16,
    /// Addresses of the interface, each with the prefix of its directly reachable network.
    pub addresses: Vec<IpNet>,
    /// True if the interface has a host interface: the kernel handles ARP, ND and all other traffic to the
    /// interface's own addresses; packets for it go there by [`Output::deliver`].
    pub host: bool,
    /// True if the interface has no link: nothing is sent or received by it, but its addresses are the router's.
    pub is_loopback: bool,
    /// Settings: the messages that the interface sends.
    pub settings: InterfaceSettings,
    /// True if this engine keeps the interface's neighbours and announces its addresses. Where several engines
    /// share a router's interfaces, each interface is owned by one engine, which gets the packets received on it
    /// and those that wait for a neighbour on it; the others pass theirs on by [`Output::hand_over`].
    pub owned: bool,
}

/// Settings of an interface: its VRF and the messages that it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSettings {
    /// VRF of the interface: it determines the router's addresses that are valid destinations of
    /// packets received there, and the routes of the router's answers.
    pub vrf: VrfId,
    /// True: senders on this interface get ICMP "unreachable" errors (RFC 4443, 3.1). "Fragmentation needed" is
    /// not affected; it is always sent.
    pub unreachables: bool,
    /// True: redirects to better first hops on the same link are sent (RFC 1812, 5.2.7.2; RFC 4861, 8.2).
    pub redirects: bool,
    /// Number of solicitations of duplicate address detection, sent before the interface uses one of its IPv6
    /// addresses (RFC 4862, 5.1: DupAddrDetectTransmits); 0: no detection.
    pub dad: u8,
    /// Prefixes of other hosts for whose addresses the interface answers ARP requests and neighbour solicitations
    /// (RFC 1027; RFC 4861, 7.2.8), while routes lead to them by other interfaces.
    pub proxy: Vec<IpNet>,
    /// DHCP servers to which messages of clients on the interface are relayed (RFC 3046; RFC 8415, 19).
    pub relay: Vec<IpAddr>,
    /// Router advertisements; `None`: the interface sends none.
    pub advertise: Option<Advertise>,
    /// ICMP router discovery for IPv4 (RFC 1256); `None`: the interface does not take part.
    pub discovery: Option<Discovery>,
}

impl Default for InterfaceSettings {
    fn default() -> Self {
        Self {
            vrf: VrfId::DEFAULT,
            unreachables: true,
            redirects: false,
            dad: 0,
            proxy: Vec::new(),
            relay: Vec::new(),
            advertise: None,
            discovery: None,
        }
    }
}

/// ICMP router discovery on an interface (RFC 1256, 4.1, whose names are given).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Maximum time between two advertisements (MaxAdvertisementInterval).
    pub interval: Duration,
    /// Minimum time (MinAdvertisementInterval); not above [`Self::interval`].
    pub least_interval: Duration,
    /// Lifetime of the advertised addresses (AdvertisementLifetime), in whole seconds, at most 9000.
    pub lifetime: Duration,
    /// Preference among several routers (PreferenceLevel): hosts use the highest; the least number means that
    /// hosts do not use this router by default.
    pub preference: i32,
    /// True: advertisements go to 255.255.255.255 instead of the all-systems group (AdvertisementAddress).
    pub broadcast: bool,
}

impl Default for Discovery {
    fn default() -> Self {
        let interval = Duration::from_secs(600);
        let (least_interval, lifetime) = (interval * 3 / 4, interval * 3);
        Self { interval, least_interval, lifetime, preference: 0, broadcast: false }
    }
}

/// Contents of router advertisements (RFC 4861, 6.2.1, whose names are given).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// Maximum time between two advertisements (MaxRtrAdvInterval).
    pub interval: Duration,
    /// Minimum time (MinRtrAdvInterval); not above [`Self::interval`].
    pub least_interval: Duration,
    /// Lifetime as a default router (AdvDefaultLifetime), in whole seconds, at most 9000; zero: not a default
    /// router.
    pub lifetime: Duration,
    /// True if hosts get addresses by DHCPv6 (AdvManagedFlag).
    pub managed: bool,
    /// True if hosts get other configuration by DHCPv6 (AdvOtherConfigFlag).
    pub other: bool,
    /// Preference among default routers (RFC 4191, 2.1).
    pub preference: Preference,
    /// Hop limit that hosts use (AdvCurHopLimit); 0: not specified.
    pub hop_limit: u8,
    /// AdvReachableTime, in whole milliseconds; zero: not specified.
    pub reachable: Duration,
    /// AdvRetransTimer, in whole milliseconds; zero: not specified.
    pub retransmit: Duration,
    /// MTU of the link (AdvLinkMTU); `None`: not specified.
    pub mtu: Option<u16>,
    /// Prefixes (AdvPrefixList); `None`: the networks of the interface's addresses.
    pub prefixes: Option<Vec<Prefix>>,
    /// Recursive DNS servers (RFC 8106).
    pub dns: Vec<Ipv6Addr>,
}

impl Default for Advertise {
    fn default() -> Self {
        let interval = Duration::from_secs(600);
        Self {
            interval,
            least_interval: Duration::from_secs(198),
            lifetime: interval * 3,
            managed: false,
            other: false,
            preference: Preference::Medium,
            hop_limit: 64,
            reachable: Duration::ZERO,
            retransmit: Duration::ZERO,
            mtu: None,
            prefixes: None,
            dns: Vec::new(),
        }
    }
}

/// Preference among default routers (RFC 4191, 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// Preferred over others.
    High,
    /// Equal to others.
    #[default]
    Medium,
    /// Used if there is no other.
    Low,
}

/// An advertised prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix.
    pub net: Ipv6Net,
    /// Time for which the prefix is on the link (AdvValidLifetime), in whole seconds; 2^32 - 1 or more: for ever.
    pub valid: Duration,
    /// Time for which addresses made from it are preferred (AdvPreferredLifetime).
    pub preferred: Duration,
    /// True if its addresses are on the link (AdvOnLinkFlag).
    pub on_link: bool,
    /// True if hosts make addresses from it (AdvAutonomousFlag, RFC 4862).
    pub autonomous: bool,
}

impl Prefix {
    /// Creates a prefix with the lifetimes and flags of RFC 4861, 6.2.1.
    pub fn new(net: Ipv6Net) -> Self {
        let (valid, preferred) = (Duration::from_secs(2_592_000), Duration::from_secs(604_800));
        Self { net, valid, preferred, on_link: true, autonomous: true }
    }
}

/// LACP on a bond (IEEE 802.1AX-2014, 6.4, whose names are given).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LacpConfig {
    /// Identifier of this system (Actor_System).
    pub system: MacAddr,
    /// Its priority (Actor_System_Priority).
    pub priority: u16,
    /// Key of the ports (Actor_Admin_Port_Key), by which the partner knows which of them belong together.
    pub key: u16,
    /// True: the partner is to send a LACPDU each second (LACP_Timeout).
    pub fast: bool,
    /// True: LACPDUs are sent only to an active partner (LACP_Activity).
    pub passive: bool,
    /// Most ports that are used at the same time; others stand by.
    pub maximum: usize,
    /// The ports' own interfaces and addresses.
    pub ports: Vec<(InterfaceId, MacAddr)>,
}

/// LACP on a bond, for `show bonds`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LacpInfo {
    /// The bond.
    pub bond: InterfaceId,
    /// Its ports.
    pub ports: Vec<LacpPortInfo>,
}

/// LACP on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LacpPortInfo {
    /// The port's own interface.
    pub port: InterfaceId,
    /// State of the Receive machine: `disabled`, `expired`, `defaulted`, `current`.
    pub receive: &'static str,
    /// State of the Mux machine: `detached`, `waiting`, `attached`, `collecting`, `distributing`.
    pub mux: &'static str,
    /// True if the bond is to use it.
    pub selected: bool,
    /// True if it would be used if another port were lost.
    pub standby: bool,
    /// True if its own side churns, and if its partner's does.
    pub churns: [bool; 2],
    /// True if its partner is this router: a loop.
    pub looped: bool,
    /// The port as LACPDUs describe it.
    pub actor: wire::lacp::Port,
    /// Its partner, if there is one.
    pub partner: Option<wire::lacp::Port>,
    /// Valid LACPDUs received.
    pub rx: u64,
    /// LACPDUs sent.
    pub tx: u64,
    /// Malformed frames of the slow protocols received.
    pub malformed: u64,
    /// Markers received.
    pub markers: u64,
}

/// The router's own ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// TTL and hop limit of packets that the router sends, except where a protocol has its own (RFC 1812,
    /// 4.2.2.9); not 0.
    pub ttl: u8,
    /// True: echo requests are answered (RFC 1812, 4.3.3.6; RFC 4443, 4.2).
    pub echo: bool,
    /// True: addresses in 240.0.0.0/4 are hosts, to which errors may be sent.
    pub class_e: bool,
}

impl Default for Icmp {
    fn default() -> Self {
        // RFC 1700, and the usual value of hosts.
        Self { ttl: 64, echo: true, class_e: false }
    }
}

/// Limits and timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most neighbours in the table, over all interfaces. When it is full, an unconfirmed neighbour makes room:
    /// one on the interface that has most of these, failed ones first, then those that were only heard, then
    /// unresolved ones, the oldest of each. If all are confirmed, the interface with the most of them gives one to
    /// an interface that has fewer; else a new neighbour is refused.
    pub neighbours: usize,
    /// Most packets that wait for one neighbour; the oldest is dropped for a new one.
    pub queue: usize,
    /// Most packets that wait for all neighbours together: the forwarders lack these buffers meanwhile.
    pub held: usize,
    /// Most fragments for the router itself that wait for the rest of their packets.
    pub fragments: usize,
    /// Longest time that fragments wait (RFC 1122, 3.3.2; RFC 8200, 4.5).
    pub reassembly: Duration,
    /// Time between two requests for the same address (RFC 4861, 10: RETRANS_TIMER).
    pub retry: Duration,
    /// Requests without an answer after which a neighbour counts as failed.
    pub tries: u8,
    /// Time for which a confirmed neighbour is considered reachable, before a random factor between 0.5 and 1.5
    /// (RFC 4861, 6.3.2: BASE_REACHABLE_TIME).
    pub reachable: Duration,
    /// Delay of the first probe to a neighbour that was heard, but has not answered (RFC 4861, 10:
    /// DELAY_FIRST_PROBE_TIME).
    pub probe_delay: Duration,
    /// Time for which no request is sent to an address that failed; packets to it are refused at once.
    pub failed: Duration,
    /// ICMP errors per second, over all interfaces and both families (RFC 1812, 4.3.2.8; RFC 4443,
    /// 2.4 (f)): the refill rate of a token bucket. Echo replies are not counted.
    pub icmp_rate: u32,
    /// ICMP errors in one burst: the size of the token bucket.
    pub icmp_burst: u32,
    /// ICMP errors per second to one prefix, an IPv4 /24 or an IPv6 /64, so that one sender does not use up the
    /// errors of all others.
    pub icmp_prefix_rate: u32,
    /// ICMP errors to one prefix in one burst.
    pub icmp_prefix_burst: u32,
    /// [`Event::Resolve`]s per second, over all interfaces, and in one burst. Each makes an entry in the kernel's
    /// own table, which holds 1,024 unresolved ones unless configured otherwise and keeps them for some seconds.
    /// Gateways are not limited.
    pub resolve_rate: u32,
    /// See [`Self::resolve_rate`].
    pub resolve_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            neighbours: 16_384,
            queue: 16,
            held: 1024,
            fragments: 512,
            reassembly: Duration::from_secs(60),
            retry: Duration::from_secs(1),
            tries: 3,
            reachable: Duration::from_secs(30),
            probe_delay: Duration::from_secs(5),
            failed: Duration::from_secs(3),
            icmp_rate: 1000,
            icmp_burst: 100,
            icmp_prefix_rate: 100,
            icmp_prefix_burst: 50,
            resolve_rate: 200,
            resolve_burst: 200,
        }
    }
}

/// Initial configuration of a [`SlowPath`].
#[derive(Clone, Debug)]
pub struct Config {
    /// All interfaces of the router.
    pub interfaces: Vec<InterfaceConfig>,
    /// Limits and timers.
    pub limits: Limits,
    /// The router's own ICMP.
    pub icmp: Icmp,
    /// The hash by which the forwarders choose among equal-cost paths; the slow path must make the same choice.
    pub flow: FlowHash,
    /// Seed of the random numbers (timers, identification fields); routers should differ in it.
    pub seed: u64,
}

/// A packet buffer: an Ethernet frame that can be rewritten and shortened in place.
pub trait Packet {
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// Returns the frame, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Cuts the frame to its first `len` bytes; shorter frames stay as they are.
    fn trim_to(&mut self, len: usize);
}

impl Packet for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn trim_to(&mut self, len: usize) {
        self.truncate(len);
    }
}

/// The FIB's answer to [`Output::route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteAnswer {
    /// The next hop's number, after the choice among equal-cost paths.
    pub next_hop_id: u16,
    /// The next hop with this number.
    pub hop: NextHop,
}

/// Something that waits for a neighbour's MAC.
#[derive(Debug)]
pub enum Waiting<P> {
    /// A packet as it was received.
    Received {
        /// The packet.
        packet: P,
        /// The interface it was received on.
        from: InterfaceId,
    },
    /// A frame of the router itself, whose MACs are still to be filled in.
    Own(Vec<u8>),
}

/// Destination of the slow path's results, and source of its look-ups. The first seven methods are the only ways
/// out; each packet takes exactly one of `forward`, `to_host`, `deliver`, `drop` and `hand_over`.
pub trait Output<P> {
    /// Sends a received packet: Ethernet header filled in, TTL decremented.
    fn forward(&mut self, interface: InterfaceId, packet: P);
    /// Sends a frame that the router itself made.
    fn originate(&mut self, interface: InterfaceId, frame: &[u8]);
    /// Takes back a packet for the router itself, which has been processed.
    fn to_host(&mut self, packet: P);
    /// Delivers a packet to the interface's host interface, as it was received.
    fn deliver(&mut self, interface: InterfaceId, packet: P);
    /// Drops a packet.
    fn drop(&mut self, packet: P, reason: DropReason);
    /// Passes a packet or frame to the engine that owns this interface, for [`SlowPath::take_over`]. Never called
    /// where one engine owns all interfaces.
    fn hand_over(&mut self, interface: InterfaceId, address: IpAddr, waiting: Waiting<P>);
    /// Reports an event to the control plane.
    fn event(&mut self, event: Event);
    /// Looks up a destination in a VRF; groups of equal-cost paths are resolved to a member by the hash.
    fn route(&self, vrf: VrfId, destination: IpAddr, flow_hash: u32) -> RouteAnswer;
    /// Returns the next hop that has this number now.
    fn next_hop(&self, id: u16) -> NextHop;
    /// Returns the next hop that a packet was punted with; `None` if its number was withdrawn meanwhile, and may
    /// belong to another next hop by now.
    fn punted_to(&self, punt: Punt) -> Option<NextHop>;
    /// Looks up the multicast entry for a packet from this source to this group, received on this interface with
    /// this TTL and length; `None` without an entry. Counts the packet for the entry.
    fn replication(
        &mut self,
        pair: (IpAddr, IpAddr),
        arrival: (InterfaceId, u8),
        bytes: usize,
    ) -> Option<Replication>;
    /// Applies the filter of the outgoing interface `to` to a packet received on `from`, and marks the packet if it
    /// passes.
    fn judge(&mut self, packet: &mut P, from: InterfaceId, to: InterfaceId) -> Judgement;
    /// Applies the filter as [`Self::judge`] to the frame of a copy that is not made yet; a class for queues is lost.
    fn judge_copy(&mut self, frame: &mut [u8], from: InterfaceId, to: InterfaceId) -> Judgement;
    /// Returns the time since midnight, UTC, for timestamp options.
    fn time_of_day(&self) -> Duration;
    /// Returns true if the kernel has joined this group on the interface's host interface.
    fn has_joined(&mut self, interface: InterfaceId, group: MacAddr) -> bool;
}

/// An event that the slow path reports to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour's MAC became known, or changed: install its host route and next hops. Link-local addresses are
    /// reported too; they identify a neighbour only together with the interface, so they serve as next hops and
    /// get no host route.
    NeighbourUp {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
    /// A neighbour that was up has ceased to answer, or was removed.
    NeighbourDown {
        /// The interface it was on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
    },
    /// Another host uses an address of this router.
    AddressConflict {
        /// The interface it was seen on.
        interface: InterfaceId,
        /// The router's address.
        address: IpAddr,
        /// MAC of the other host.
        mac: MacAddr,
    },
    /// Another host has an address of this router, which therefore is not used (RFC 4862, 5.4.5).
    AddressDuplicate {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: Ipv6Addr,
        /// MAC of the other host.
        mac: MacAddr,
    },
    /// Another router's advertisements on the interface's link are inconsistent with the interface's own (RFC
    /// 4861, 6.2.7).
    AdvertisementDiffers {
        /// The interface.
        interface: InterfaceId,
        /// The other router's link-local address.
        router: Ipv6Addr,
        /// The first inconsistent field.
        what: &'static str,
    },
    /// LACP has agreed with the partner on other uses of a bond's port.
    BondPort {
        /// The bond.
        bond: InterfaceId,
        /// The port's own interface.
        port: InterfaceId,
        /// True if received packets count.
        collecting: bool,
        /// True if the bond may send by it.
        distributing: bool,
    },
    /// The kernel is to resolve a neighbour on an interface with a host interface. The answer is a
    /// [`Command::KernelNeighbour`]. Repeated until there is one, and no more often than an ARP request would be.
    Resolve {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
    },
}

/// A command from the control plane to the slow path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes this next hop a gateway with this address. Its resolution starts at once; if it is
    /// resolved already, [`Event::NeighbourUp`] is repeated.
    NextHop {
        /// The next hop's number.
        id: u16,
        /// The interface the gateway is on.
        interface: InterfaceId,
        /// The gateway's address.
        address: IpAddr,
    },
    /// Withdraws a gateway's next-hop number.
    RemoveNextHop {
        /// The next hop's number.
        id: u16,
    },
    /// Adds a static neighbour: never solicited, never forgotten, not changed by anything that is received.
    AddStaticNeighbour {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
    /// Removes a neighbour, static or learned.
    RemoveNeighbour {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
    },
    /// Adds an interface, or replaces the one with this number by another device, MAC or host. It sends nothing
    /// until its link is reported up. The neighbours that the replaced interface learned are forgotten.
    Interface(Box<InterfaceConfig>),
    /// Removes an interface: its neighbours are forgotten.
    RemoveInterface {
        /// The interface.
        interface: InterfaceId,
    },
    /// A link went up or down. Down: all learned neighbours of the interface are forgotten. Up: the
    /// interface's addresses are announced again.
    PortLink {
        /// The interface.
        interface: InterfaceId,
        /// True for up.
        up: bool,
    },
    /// The kernel's state of a neighbour on an interface with a host interface. A resolved
    /// neighbour is reported by [`Event::NeighbourUp`], and the packets that waited for it leave;
    /// one that is no longer resolved, as [`Event::NeighbourDown`]. Ignored for interfaces without
    /// a host interface, and for static neighbours.
    KernelNeighbour {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
        /// Its MAC; `None`: it did not answer, or was removed.
        mac: Option<MacAddr>,
    },
    /// Replaces the interface's addresses, link-local ones included. A list without a link-local address leaves
    /// the one that follows from the MAC.
    Addresses {
        /// The interface.
        interface: InterfaceId,
        /// All its addresses.
        addresses: Vec<IpNet>,
    },
    /// Starts LACP on a bond with this configuration, changes it, or ends it (`None`). Links of its ports are reported by
    /// [`Self::PortLink`], before or after; ports of which nothing was reported have one.
    Lacp {
        /// The bond.
        bond: InterfaceId,
        /// Its configuration.
        config: Option<Box<LacpConfig>>,
    },
    /// Announces the interface's addresses again, also those of a host interface: its frames leave by another port.
    Announce {
        /// The interface.
        interface: InterfaceId,
    },
    /// Replaces the interface's settings.
    Settings {
        /// The interface.
        interface: InterfaceId,
        /// All its settings.
        settings: InterfaceSettings,
    },
    /// Replaces the limits of the neighbour table; the other limits stay, and the rates are those of [`Rates`].
    Limits(Limits),
    /// Replaces the configuration of the router's own ICMP.
    Icmp(Icmp),
    /// Sets the interface's MTU.
    Mtu {
        /// The interface.
        interface: InterfaceId,
        /// The largest IP packet it sends, in bytes.
        mtu: u16,
    },
}

/// State of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Asked, not answered yet.
    Incomplete,
    /// Confirmed recently.
    Reachable,
    /// Its MAC was learned from a packet it sent; not confirmed yet.
    Stale,
    /// Being solicited again, by unicast; still used meanwhile.
    Probing,
    /// Did not answer; not solicited again for a while.
    Failed,
    /// Static, by configuration.
    Static,
    /// Resolved by the kernel, on an interface with a host interface.
    Kernel,
}

impl NeighbourState {
    /// Returns the name used in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Reachable => "reachable",
            Self::Stale => "stale",
            Self::Probing => "probing",
            Self::Failed => "failed",
            Self::Static => "static",
            Self::Kernel => "kernel",
        }
    }
}

/// An entry of the neighbour table, for `show neighbours`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourInfo {
    /// Its address.
    pub address: IpAddr,
    /// The interface it is on.
    pub interface: InterfaceId,
    /// Its MAC, when known.
    pub mac: Option<MacAddr>,
    /// Its state.
    pub state: NeighbourState,
    /// Time since the entry got into this state.
    pub age: Duration,
    /// Packets that wait for it.
    pub queued: usize,
    /// True for a static neighbour.
    pub is_static: bool,
}
