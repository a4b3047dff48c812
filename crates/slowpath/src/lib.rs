//! The slow path: what the graph cannot finish.
//!
//! ```text
//!            forwarders                        control
//!   punted packets (P, Punt)              Command     ^ Event
//!               |                            |        |
//!               v                            v        |
//!  +---------------------------------------------------------------+
//!  | SlowPath                                                      |
//!  |                                                               |
//!  |  packet() -> host.rs       the kernel's?     |                 |
//!  |              arp.rs        who has ...?    -+                 |
//!  |              local.rs      for ourselves?   |                 |
//!  |                -> nd.rs    neighbour disc.  +-> neighbour.rs  | <--- tick(now)
//!  |                -> mld.rs   group queries    |   the table and |      at next_deadline()
//!  |                -> advertise.rs router adv.  |                 |
//!  |                -> discovery.rs, for IPv4    |                 |
//!  |                -> echo.rs  ping             |   the packets   |
//!  |                -> reset.rs TCP, UDP         |                 |
//!  |              reassembly.rs fragments for us |                 |
//!  |              forward.rs    to be resolved  -+   that wait     |
//!  |                -> redirect.rs better hops   |                 |
//!  |              multicast.rs  to groups        |                 |
//!  |              options.rs    IPv4 options                       |
//!  |              extension.rs  IPv6 headers before the upper layer|
//!  |              icmp.rs       errors to senders                  |
//!  +---------------------------------------------------------------+
//!        |              |               |              |         |
//!        v              v               v              v         v
//!   forward(interface, P)  originate(interface,  to_host(P)   drop(P,    route(), next_hop(),
//!   finished, to a    frame) replies,  consumed     reason)    replication(), has_joined(),
//!   transmit queue    errors, probes   here;                   time_of_day(): questions to
//!                                      deliver(interface, P)        the FIB, the next-hop table
//!                                      to the kernel           and the kernel
//!
//! An interface may have a *host interface*, on which the kernel of the machine is the router's host: it
//! answers ARP, ND and ping, and finds neighbours when asked ([`Event::Resolve`]). Packets still
//! wait here meanwhile, and errors about packets that cannot be forwarded still come from here.
//! ```
//!
//! No threads, no sockets, no clock: the caller brings packets, commands and the time, and
//! implements [`Output`]. So the same inputs give the same outputs, and what went wrong in the
//! field can be replayed at a desk. `P` is the packet buffer, an mbuf in the router and a `Vec<u8>`
//! in tests; every packet given to [`SlowPath::packet`] comes back through `Output` exactly once.
//!
//! The caller's loop:
//!
//! 1. `tick(now)` once at the start, which announces the router's addresses;
//! 2. `packet(..)` for each punted packet, `command(..)` for each command;
//! 3. `tick(now)` whenever `now >= next_deadline()`;
//! 4. `shutdown(..)` at the end: packets that still wait come back as drops, and advertising interfaces
//!    say goodbye.
//!
//! Duplicate address detection (RFC 4862, 5.4) is done where an interface asks for it
//! ([`InterfaceSettings::dad`]): it keeps the router off its link for seconds. Everywhere conflicts are
//! noticed and reported when the other host speaks ([`Event::AddressConflict`]).
#![forbid(unsafe_code)]

mod advertise;
mod arp;
mod bucket;
mod change;
mod discovery;
mod duplicate;
mod echo;
mod engine;
mod extension;
mod forward;
mod frame;
mod host;
mod icmp;
mod interfaces;
mod later;
mod local;
mod mld;
mod multicast;
mod nd;
mod neighbour;
mod options;
mod random;
mod reassembly;
mod redirect;
mod reset;
mod source;
#[cfg(test)]
mod testing;

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

/// How packets end over which the engine panics if it is built with the feature `faulty-step`.
#[cfg(feature = "faulty-step")]
pub const POISON: &[u8] = b"panic over this";

pub use bucket::{Rates, TokenBucket};
pub use engine::SlowPath;

/// Time since a start that the caller chooses; it must not run backwards.
pub type Time = Duration;

/// An interface as the slow path knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// The interface's number in the data plane.
    pub id: InterfaceId,
    /// Its name in the configuration.
    pub name: String,
    /// Source address of every frame it sends. The interface's IPv6 link-local address follows from it
    /// (RFC 4291, 2.5.6) and is always present.
    pub mac: MacAddr,
    /// The largest IP packet it sends, in bytes.
    pub mtu: u16,
    /// Its addresses, each with the prefix of the network that is directly reachable.
    pub addresses: Vec<IpNet>,
    /// The interface has a host interface: the kernel speaks ARP, ND and everything else that concerns
    /// the interface's own addresses; packets for it go there by [`Output::deliver`].
    pub host: bool,
    /// What it says and does not say.
    pub settings: InterfaceSettings,
    /// This engine knows the interface's neighbours and announces its addresses. Where several engines
    /// share a router's interfaces, each interface is owned by one, which gets the packets that came by it and
    /// those that wait for a neighbour on it; the others pass theirs on by [`Output::hand_over`].
    pub owned: bool,
}

/// What an interface says of itself, and what it keeps to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSettings {
    /// The VRF that it is in: which addresses are the router's for those on its link, and by which routes what the
    /// router says there leaves.
    pub vrf: VrfId,
    /// Senders on this interface are told by ICMP that a destination is unreachable (RFC 4443, 3.1).
    /// "Fragmentation needed" is not meant; it is always sent.
    pub unreachables: bool,
    /// Hosts are told of better first hops on the same link (RFC 1812, 5.2.7.2; RFC 4861, 8.2).
    pub redirects: bool,
    /// Solicitations by which the interface finds out whether somebody else has one of its IPv6 addresses,
    /// before it uses it (RFC 4862, 5.1: DupAddrDetectTransmits); 0: it does not ask.
    pub dad: u8,
    /// Router advertisements; `None`: none are sent.
    pub advertise: Option<Advertise>,
    /// ICMP router discovery for IPv4 (RFC 1256); `None`: the interface takes no part.
    pub discovery: Option<Discovery>,
}

impl Default for InterfaceSettings {
    fn default() -> Self {
        Self {
            vrf: VrfId::DEFAULT,
            unreachables: true,
            redirects: false,
            dad: 0,
            advertise: None,
            discovery: None,
        }
    }
}

/// What an interface says by ICMP router discovery (RFC 1256, 4.1, whose names are given).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// The longest time between two advertisements (MaxAdvertisementInterval).
    pub interval: Duration,
    /// The shortest (MinAdvertisementInterval); not above [`Self::interval`].
    pub least_interval: Duration,
    /// How long hosts believe one (AdvertisementLifetime), in whole seconds, at most 9000.
    pub lifetime: Duration,
    /// Which of several routers hosts prefer (PreferenceLevel): the highest; the least number there
    /// is: not by default.
    pub preference: i32,
    /// They go to 255.255.255.255 in place of all hosts' group (AdvertisementAddress).
    pub broadcast: bool,
}

impl Default for Discovery {
    fn default() -> Self {
        let interval = Duration::from_secs(600);
        let (least_interval, lifetime) = (interval * 3 / 4, interval * 3);
        Self { interval, least_interval, lifetime, preference: 0, broadcast: false }
    }
}

/// What an interface advertises (RFC 4861, 6.2.1, whose names are given).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// The longest time between two (MaxRtrAdvInterval).
    pub interval: Duration,
    /// The shortest (MinRtrAdvInterval); not above [`Self::interval`].
    pub least_interval: Duration,
    /// How long hosts use this router by default (AdvDefaultLifetime); zero: not at all. Whole
    /// seconds, at most 9000.
    pub lifetime: Duration,
    /// Hosts get addresses by DHCPv6 (AdvManagedFlag).
    pub managed: bool,
    /// Hosts get other configuration by DHCPv6 (AdvOtherConfigFlag).
    pub other: bool,
    /// Which router hosts prefer (RFC 4191, 2.1).
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

/// Which of several routers hosts prefer (RFC 4191, 2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// Before others.
    High,
    /// As others.
    #[default]
    Medium,
    /// After others.
    Low,
}

/// An advertised prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The prefix.
    pub net: Ipv6Net,
    /// How long it is on the link (AdvValidLifetime), in whole seconds; 2^32 - 1 or more: for ever.
    pub valid: Duration,
    /// How long addresses made from it are preferred (AdvPreferredLifetime).
    pub preferred: Duration,
    /// Its addresses are on the link (AdvOnLinkFlag).
    pub on_link: bool,
    /// Hosts make addresses from it (AdvAutonomousFlag, RFC 4862).
    pub autonomous: bool,
}

impl Prefix {
    /// A prefix with the lifetimes and flags of RFC 4861, 6.2.1.
    pub fn new(net: Ipv6Net) -> Self {
        let (valid, preferred) = (Duration::from_secs(2_592_000), Duration::from_secs(604_800));
        Self { net, valid, preferred, on_link: true, autonomous: true }
    }
}

/// The router's own ICMP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// TTL and hop limit of what the router sends, but where a protocol has its own (RFC 1812,
    /// 4.2.2.9); not 0.
    pub ttl: u8,
    /// Echo requests are answered (RFC 1812, 4.3.3.6; RFC 4443, 4.2).
    pub echo: bool,
    /// Addresses in 240.0.0.0/4 are those of hosts, who may be told of errors.
    pub class_e: bool,
}

impl Default for Icmp {
    fn default() -> Self {
        // RFC 1700, and what hosts use.
        Self { ttl: 64, echo: true, class_e: false }
    }
}

/// Bounds and timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most neighbours in the table, over all interfaces. When it is full, one that has not answered makes room:
    /// of the interface that has most of these, failed ones first, then those that only spoke, then those that
    /// are asked for, the oldest of each. If all have answered, the interface with the most of them gives one to
    /// an interface that has fewer; else a new neighbour is refused.
    pub neighbours: usize,
    /// Most packets that wait for one neighbour; the oldest is dropped for a new one.
    pub queue: usize,
    /// Most packets that wait for all neighbours together: they are buffers that the forwarders
    /// lack meanwhile.
    pub held: usize,
    /// Most fragments for the router itself that wait for the rest of their packets.
    pub fragments: usize,
    /// How long they wait (RFC 1122, 3.3.2; RFC 8200, 4.5).
    pub reassembly: Duration,
    /// Time between two requests for the same address (RFC 4861, 10: RETRANS_TIMER).
    pub retry: Duration,
    /// Requests without an answer after which a neighbour counts as failed.
    pub tries: u8,
    /// How long a confirmed neighbour is taken for reachable, before a random factor between 0.5
    /// and 1.5 (RFC 4861, 6.3.2: BASE_REACHABLE_TIME).
    pub reachable: Duration,
    /// How long a neighbour that spoke, but did not answer, waits for its first probe (RFC 4861,
    /// 10: DELAY_FIRST_PROBE_TIME).
    pub probe_delay: Duration,
    /// How long no request is sent to an address that failed; packets to it are refused at once.
    pub failed: Duration,
    /// ICMP errors per second, over all interfaces and both families (RFC 1812, 4.3.2.8; RFC 4443,
    /// 2.4 (f)): the refill rate of a token bucket. Echo replies are not counted.
    pub icmp_rate: u32,
    /// ICMP errors in one burst: the size of the token bucket.
    pub icmp_burst: u32,
    /// ICMP errors per second to one prefix, an IPv4 /24 or an IPv6 /64, so that one sender does not
    /// take those of all others.
    pub icmp_prefix_rate: u32,
    /// ICMP errors to one prefix in one burst.
    pub icmp_prefix_burst: u32,
    /// [`Event::Resolve`]s per second, over all interfaces, and in one burst. Each makes an entry in the
    /// kernel's own table, which holds 1,024 unresolved ones unless told otherwise and keeps them
    /// for some seconds. Gateways are not limited.
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

/// What a [`SlowPath`] starts with.
#[derive(Clone, Debug)]
pub struct Config {
    /// All interfaces of the router.
    pub interfaces: Vec<InterfaceConfig>,
    /// Bounds and timers.
    pub limits: Limits,
    /// The router's own ICMP.
    pub icmp: Icmp,
    /// The hash by which the forwarders choose among equal-cost paths; the slow path must choose
    /// alike.
    pub flow: FlowHash,
    /// Seed of the random numbers (timers, identification fields); routers should differ in it.
    pub seed: u64,
}

/// A packet buffer: an Ethernet frame that can be rewritten and shortened in place.
pub trait Packet {
    /// The frame.
    fn bytes(&self) -> &[u8];
    /// The frame, to be rewritten.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Cuts the frame to its first `len` bytes; longer frames stay as they are.
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
    /// What the number means.
    pub hop: NextHop,
}

/// What waits for a neighbour's MAC.
#[derive(Debug)]
pub enum Waiting<P> {
    /// A packet as it was received.
    Received {
        /// The packet.
        packet: P,
        /// The interface it came by.
        from: InterfaceId,
    },
    /// A frame of the router itself, its MACs to be filled in.
    Own(Vec<u8>),
}

/// Where the slow path's results go, and whom it asks. The first seven methods are the only ways
/// out; each packet takes exactly one of `forward`, `to_host`, `deliver`, `drop` and `hand_over`.
pub trait Output<P> {
    /// Sends a packet that was received: Ethernet header filled in, TTL decremented.
    fn forward(&mut self, interface: InterfaceId, packet: P);
    /// Sends a frame that the router itself made.
    fn originate(&mut self, interface: InterfaceId, frame: &[u8]);
    /// A packet for the router itself, which has been dealt with.
    fn to_host(&mut self, packet: P);
    /// A packet for the interface's host interface, as it was received.
    fn deliver(&mut self, interface: InterfaceId, packet: P);
    /// A packet that goes no further.
    fn drop(&mut self, packet: P, reason: DropReason);
    /// Gives something to the engine that owns this interface, for [`SlowPath::take_over`]. Where one
    /// engine owns all interfaces it is never called.
    fn hand_over(&mut self, interface: InterfaceId, address: IpAddr, waiting: Waiting<P>);
    /// Something that control should know.
    fn event(&mut self, event: Event);
    /// Looks up a destination in a VRF; groups of equal-cost paths are resolved to a member by the hash.
    fn route(&self, vrf: VrfId, destination: IpAddr, flow_hash: u32) -> RouteAnswer;
    /// What a next hop's number means now.
    fn next_hop(&self, id: u16) -> NextHop;
    /// What the number that a packet was punted with means; `None` if it was taken back meanwhile, and may
    /// be another next hop's by now.
    fn punted_to(&self, punt: Punt) -> Option<NextHop>;
    /// What a multicast entry says of a packet from this source to this group, which came by this interface
    /// with this TTL and has so many bytes; `None` without an entry. Counts it for the entry.
    fn replication(
        &mut self,
        pair: (IpAddr, IpAddr),
        arrival: (InterfaceId, u8),
        bytes: usize,
    ) -> Option<Replication>;
    /// What the filter of the interface that a packet is to leave by says of it, and marks it; the packet came by
    /// `from`.
    fn judge(&mut self, packet: &mut P, from: InterfaceId, to: InterfaceId) -> Judgement;
    /// As [`Self::judge`], of a copy that is not made yet: what is said of queues is lost.
    fn judge_copy(&mut self, frame: &mut [u8], from: InterfaceId, to: InterfaceId) -> Judgement;
    /// Time since midnight, UTC, for timestamp options.
    fn time_of_day(&self) -> Duration;
    /// Whether the kernel listens to this group on the interface's host interface.
    fn has_joined(&mut self, interface: InterfaceId, group: MacAddr) -> bool;
}

/// What the slow path tells control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour's MAC became known, or changed: install its host route and next hops. Link-local
    /// addresses come too; they name a neighbour only together with the interface, so they are good for
    /// next hops and get no host route.
    NeighbourUp {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
    /// A neighbour that was up does not answer any more, or was removed.
    NeighbourDown {
        /// The interface it was on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
    },
    /// Somebody else uses an address of this router.
    AddressConflict {
        /// The interface it was seen on.
        interface: InterfaceId,
        /// The router's address.
        address: IpAddr,
        /// Who else uses it.
        mac: MacAddr,
    },
    /// Somebody else has an address of this router, which therefore is not used (RFC 4862, 5.4.5).
    AddressDuplicate {
        /// The interface.
        interface: InterfaceId,
        /// The address.
        address: Ipv6Addr,
        /// Who has it.
        mac: MacAddr,
    },
    /// Another router on the interface's link advertises something else than the interface does (RFC 4861,
    /// 6.2.7).
    AdvertisementDiffers {
        /// The interface.
        interface: InterfaceId,
        /// The other router's link-local address.
        router: Ipv6Addr,
        /// What differs.
        what: &'static str,
    },
    /// A neighbour on an interface with a host interface is wanted: ask the kernel for it. The answer is
    /// a [`Command::KernelNeighbour`]. Repeated while there is none, and no more often than an ARP
    /// request would be.
    Resolve {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
    },
}

/// What control tells the slow path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// This next hop is a gateway with this address. Its resolution starts at once; if it is
    /// resolved already, [`Event::NeighbourUp`] is repeated.
    NextHop {
        /// The next hop's number.
        id: u16,
        /// The interface the gateway is on.
        interface: InterfaceId,
        /// The gateway's address.
        address: IpAddr,
    },
    /// This next hop is no gateway any more.
    RemoveNextHop {
        /// The next hop's number.
        id: u16,
    },
    /// A neighbour by configuration: never asked, never forgotten, not to be changed by anything
    /// that is received.
    AddStaticNeighbour {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
        /// Its MAC.
        mac: MacAddr,
    },
    /// Forget a neighbour, static or learned.
    RemoveNeighbour {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
    },
    /// There is an interface of this number from now on, or it is another than before: another device, MAC or
    /// host. It is silent until its link is said to be up. The neighbours that the one before learned
    /// are forgotten.
    Interface(Box<InterfaceConfig>),
    /// There is no interface of this number any more: its neighbours are forgotten.
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
    /// What the kernel knows of a neighbour on an interface with a host interface. Whoever is known comes
    /// back as [`Event::NeighbourUp`], and what waited for it leaves; whoever is not any more, as
    /// [`Event::NeighbourDown`]. Interfaces without a host interface ignore it, and so do neighbours by
    /// configuration.
    KernelNeighbour {
        /// The interface it is on.
        interface: InterfaceId,
        /// Its address.
        address: IpAddr,
        /// Its MAC; `None`: it did not answer, or was removed.
        mac: Option<MacAddr>,
    },
    /// The interface's addresses are these now, link-local ones included. A list without a link-local
    /// address leaves the one that follows from the MAC.
    Addresses {
        /// The interface.
        interface: InterfaceId,
        /// All its addresses.
        addresses: Vec<IpNet>,
    },
    /// The interface says and keeps to itself what these say, from now on.
    Settings {
        /// The interface.
        interface: InterfaceId,
        /// All its settings.
        settings: InterfaceSettings,
    },
    /// The bounds of the neighbour table from now on; others stay, and the rates are those of
    /// [`Rates`].
    Limits(Limits),
    /// The router's own ICMP from now on.
    Icmp(Icmp),
    /// The interface's MTU is this now.
    Mtu {
        /// The interface.
        interface: InterfaceId,
        /// The largest IP packet it sends, in bytes.
        mtu: u16,
    },
}

/// How much is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighbourState {
    /// Asked, not answered yet.
    Incomplete,
    /// Confirmed lately.
    Reachable,
    /// Its MAC is known from what it sent; not confirmed yet.
    Stale,
    /// Being asked again, by unicast; still used meanwhile.
    Probing,
    /// Did not answer; not asked again for a while.
    Failed,
    /// By configuration.
    Static,
    /// The kernel knows it, on an interface with a host interface.
    Kernel,
}

impl NeighbourState {
    /// The name that commands and JSON use.
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
    /// How much is known.
    pub state: NeighbourState,
    /// Time since the entry got into this state.
    pub age: Duration,
    /// Packets that wait for it.
    pub queued: usize,
    /// By configuration, not learned.
    pub is_static: bool,
}
