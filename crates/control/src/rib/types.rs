//! Input and output types of the RIB.

use std::net::IpAddr;

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;
use wire::MacAddr;

use super::Error;

/// Most paths of one route or group.
pub const PATHS_MOST: usize = 128;

/// Largest weight of a path.
pub const WEIGHT_MOST: u16 = 256;

/// An interface of the RIB.
#[derive(Clone, Debug, PartialEq)]
pub struct RibInterface {
    /// Its number.
    pub id: InterfaceId,
    /// Its name.
    pub name: String,
    /// The VRF of its networks, addresses and packets.
    pub vrf: VrfId,
    /// Its MAC.
    pub mac: MacAddr,
    /// The largest IP packet it sends, in bytes.
    pub mtu: u16,
    /// Own addresses with the length of their network; host bits are set.
    pub addresses: Vec<IpNet>,
    /// True if it has no link: its addresses are the router's, and there are no hosts on its networks.
    pub is_loopback: bool,
}

/// Source of a route. The order is that of preference between equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RouteSource {
    /// Ranges that are never forwarded: martians, multicast, link-local.
    Reserved,
    /// The router's own addresses, and its networks' broadcast addresses.
    Local,
    /// Networks that an interface is on.
    Connected,
    /// `turnpike route add`.
    Command,
    /// The configuration.
    Static,
    /// The kernel's routing tables.
    Kernel,
    /// FRR, by its forwarding plane manager.
    Fpm,
    /// A table loaded from a file.
    Import,
    /// Resolved neighbours' host routes.
    Neighbour,
}

impl RouteSource {
    /// Every source, in the order of [`Self::index`].
    pub const ALL: [Self; 9] = [
        Self::Reserved,
        Self::Local,
        Self::Connected,
        Self::Command,
        Self::Static,
        Self::Kernel,
        Self::Fpm,
        Self::Import,
        Self::Neighbour,
    ];

    /// Returns the position in [`Self::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the name in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Local => "local",
            Self::Connected => "connected",
            Self::Command => "command",
            Self::Static => "static",
            Self::Kernel => "kernel",
            Self::Fpm => "fpm",
            Self::Import => "import",
            Self::Neighbour => "neighbour",
        }
    }

    /// Returns the source with this [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.name() == name)
    }

    /// Returns the default administrative distance, which
    /// [`Rib::set_distance`](super::Rib::set_distance) can change: of several routes to one prefix
    /// the one with the smallest distance wins.
    pub fn distance(self) -> u8 {
        match self {
            Self::Reserved | Self::Local | Self::Connected => 0,
            Self::Command | Self::Static => 1,
            Self::Kernel => 10,
            Self::Fpm => 12,
            Self::Import => 20,
            Self::Neighbour => 250,
        }
    }

    /// Returns true if routes of this source are set by callers; those of the others follow from
    /// interfaces and neighbours.
    pub fn is_settable(self) -> bool {
        matches!(self, Self::Command | Self::Static | Self::Kernel | Self::Fpm | Self::Import)
    }
}

/// Returns the metric of an import's route: by rank of the import, then by origin AS.
pub fn import_metric(rank: u32, origin_as: u32) -> u64 {
    u64::from(rank) << 32 | u64::from(origin_as)
}

/// Returns the metric of a candidate as shown, and its origin AS if it is an import's.
pub(super) fn shown_metric(source: RouteSource, metric: u64) -> (u64, Option<u32>) {
    match source {
        RouteSource::Import => (metric >> 32, Some(metric as u32)),
        _ if source.is_settable() => (metric, None),
        _ => (0, None),
    }
}

/// One of a route's paths. It has an interface, a gateway, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The interface to send by; `None`: the interface follows from the best route to the gateway, and
    /// changes with it.
    pub interface: Option<InterfaceId>,
    /// The gateway, of either family; `None`: the destination itself is on the interface's network.
    pub via: Option<IpAddr>,
    /// The VRF whose routes resolve the gateway; without meaning if there is an interface.
    pub vrf: VrfId,
    /// Its share of the flows, 1 to [`WEIGHT_MOST`].
    pub weight: u16,
    /// True if the gateway is on the interface's link, even if none of the interface's networks
    /// contains it. The RIB accepts any gateway with an interface, so this has no effect, and
    /// routes are shown without it.
    pub on_link: bool,
}

impl Path {
    const NONE: Self =
        Self { interface: None, via: None, vrf: VrfId::DEFAULT, weight: 1, on_link: false };

    /// Returns the path over a gateway on an interface.
    pub fn over(interface: InterfaceId, via: IpAddr) -> Self {
        Self { interface: Some(interface), via: Some(via), ..Self::NONE }
    }

    /// Returns the path to the hosts on an interface's network.
    pub fn on_interface(interface: InterfaceId) -> Self {
        Self { interface: Some(interface), ..Self::NONE }
    }

    /// Returns the path over a gateway that is resolved by the best route to it in a VRF.
    pub fn recursive(vrf: VrfId, via: IpAddr) -> Self {
        Self { via: Some(via), vrf, ..Self::NONE }
    }

    /// Returns the same path with this weight.
    pub fn weighing(self, weight: u16) -> Self {
        Self { weight, ..self }
    }
}

/// The name of a group of paths that several routes share and that changes for all of them at once:
/// a nexthop object of the kernel or of FRR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    /// The source that assigned the number.
    pub source: RouteSource,
    /// The VRF whose network namespace assigned it; the default one otherwise.
    pub space: VrfId,
    /// The number.
    pub id: u32,
}

impl GroupKey {
    /// Returns the name of a group of no VRF's namespace.
    pub const fn new(source: RouteSource, id: u32) -> Self {
        Self { source, space: VrfId::DEFAULT, id }
    }
}

/// Specification of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its paths, 1 to [`PATHS_MOST`]; none if it is a blackhole.
    pub paths: Vec<Path>,
    /// Fixed buckets: a lost path moves its own flows only.
    pub resilient: Option<Resilient>,
    /// True if packets are dropped silently; there are no paths then.
    pub blackhole: bool,
}

/// Parameters of a resilient group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resilient {
    /// Number of buckets that flows are hashed to, 1 to [`BUCKETS_MOST`](super::BUCKETS_MOST).
    /// Larger numbers are reduced to that.
    pub buckets: u16,
}

/// Treatment of a route's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// They are forwarded over one path or several.
    Unicast(Vec<Path>),
    /// They are forwarded as the group specifies, now and after each change of the group.
    NextHopGroup(GroupKey),
    /// They are dropped silently.
    Blackhole,
    /// They are refused: "administratively prohibited".
    Prohibited,
    /// They are refused: "host unreachable".
    Unreachable,
    /// They are passed to the host, whose kernel handles them.
    Host,
}

/// A route to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The VRF of its packets. Its paths may lead into others.
    pub vrf: VrfId,
    /// The destination; no host bits are set.
    pub prefix: IpNet,
    /// A source that is settable ([`RouteSource::is_settable`]).
    pub source: RouteSource,
    /// The treatment of its packets.
    pub kind: RouteKind,
    /// Among a source's routes to one prefix the smallest wins.
    pub metric: u64,
}

/// Destination of a route of the RIB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Over gateways or to hosts on an interface's network; weights are reduced by their greatest common
    /// divisor.
    Unicast(Vec<Path>),
    /// According to a group, which has these paths; a blackhole has none.
    Group(GroupKey, Vec<Path>),
    /// To the hosts on an interface's network.
    Connected(InterfaceId),
    /// To the router itself.
    Local,
    /// To the host, whose kernel forwards.
    Host,
    /// Nowhere: martians.
    Martian,
    /// To a multicast group, according to the multicast routes.
    Multicast,
    /// Dropped silently.
    Blackhole,
    /// Refused: "administratively prohibited".
    Prohibited,
    /// Refused: "host unreachable".
    Unreachable,
}

/// Reason why a route is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Inactive {
    /// Another route to the prefix is preferred.
    Shadowed,
    /// The interfaces of all its paths are down.
    LinkDown,
    /// No route leads to its gateway.
    GatewayUnreachable,
    /// Its gateway is reached over the route itself, or over routes that lead in a circle.
    Loop,
    /// It waits for room: all next-hop numbers are in use, or all places of groups.
    NoRoom,
    /// It names a group that does not exist.
    NoGroup,
    /// It is in 240.0.0.0/4, which the configuration does not accept.
    NotAccepted,
    /// The FIB is not up to date: it had no room, or the change is in progress.
    Pending,
}

impl Inactive {
    /// Returns the name in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shadowed => "shadowed",
            Self::LinkDown => "link-down",
            Self::GatewayUnreachable => "gateway-unreachable",
            Self::Loop => "loop",
            Self::NoRoom => "no-room",
            Self::NoGroup => "no-group",
            Self::NotAccepted => "not-accepted",
            Self::Pending => "pending",
        }
    }

    /// Returns the reason in words, for output after a route was added.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Shadowed => "another route to the prefix is preferred",
            Self::LinkDown => "the interfaces of all its paths are down",
            Self::GatewayUnreachable => "no route leads to its gateway",
            Self::Loop => "its gateway is reached over the route itself",
            Self::NoRoom => "there is no room for its next hop",
            Self::NoGroup => "its group does not exist",
            Self::NotAccepted => "the configuration does not accept 240.0.0.0/4",
            Self::Pending => "the table has not followed yet",
        }
    }
}

/// A route as shown by commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteInfo {
    /// Its VRF.
    pub vrf: VrfId,
    /// The destination.
    pub prefix: IpNet,
    /// Its source.
    pub source: RouteSource,
    /// Its metric; of an import its rank.
    pub metric: u64,
    /// The origin AS, if the route is an import's.
    pub origin_as: Option<u32>,
    /// Its administrative distance.
    pub distance: u8,
    /// Its destination.
    pub target: Target,
    /// True if forwarders use it: it is the best to its prefix, and in the FIB.
    pub active: bool,
    /// Reason why it is not active.
    pub inactive: Option<Inactive>,
}

/// A resulting path of packets: one of those that remain when groups are expanded, gateways
/// resolved and dead interfaces left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivePath {
    /// The outgoing interface.
    pub interface: InterfaceId,
    /// The neighbour that they are sent to; `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// The neighbour's MAC; `None`: not resolved.
    pub mac: Option<MacAddr>,
    /// Its weight; its share is the quotient by the sum of all paths' weights.
    pub weight: u32,
}

/// Result of a lookup of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupInfo {
    /// The route.
    pub route: RouteInfo,
    /// The number found in the FIB.
    pub next_hop: u16,
    /// The paths in use; none if packets do not leave by an interface.
    pub paths: Vec<LivePath>,
}

/// Counts and sizes of the RIB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// IPv4 routes by source, in the order of [`RouteSource::ALL`], including those not in the FIB.
    pub ipv4: [usize; RouteSource::ALL.len()],
    /// IPv6 routes by source.
    pub ipv6: [usize; RouteSource::ALL.len()],
    /// Prefixes in the IPv4 FIB.
    pub fib4: usize,
    /// Prefixes in the IPv6 FIB.
    pub fib6: usize,
    /// Structure of the IPv4 FIB.
    pub fib4_structure: &'static str,
    /// Structure of the IPv6 FIB.
    pub fib6_structure: &'static str,
    /// Bytes read by lookups in the IPv4 FIB.
    pub fib4_bytes: usize,
    /// Bytes read by lookups in the IPv6 FIB.
    pub fib6_bytes: usize,
    /// Changes of the IPv4 FIB since the start.
    pub changes4: u64,
    /// Changes of the IPv6 FIB since the start.
    pub changes6: u64,
    /// Resolved neighbours.
    pub neighbours: usize,
    /// Next-hop numbers in use.
    pub next_hops: usize,
    /// Next-hop numbers that wait for a grace period.
    pub next_hops_waiting: usize,
    /// Places of group members in use or waiting.
    pub group_places: usize,
    /// Groups that are set, see [`Rib::set_group`](super::Rib::set_group).
    pub groups: usize,
    /// Routes refused since the start.
    pub refused: u64,
    /// Routes that wait for room among the next hops, or for their group.
    pub waiting: usize,
    /// Prefixes for whose change the FIB had no room; [`Rib::tick`](super::Rib::tick) tries them
    /// again.
    pub pending: usize,
}

/// Result of [`Rib::load`](super::Rib::load).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Routes accepted.
    pub accepted: usize,
    /// Routes refused.
    pub refused: usize,
    /// The first refusals, at most [`LoadReport::ERRORS_KEPT`].
    pub errors: Vec<Error>,
}

impl LoadReport {
    /// Most refusals that are kept.
    pub const ERRORS_KEPT: usize = 20;

    pub(super) fn refuse(&mut self, error: Error) {
        self.refused += 1;
        if self.errors.len() < Self::ERRORS_KEPT {
            self.errors.push(error);
        }
    }
}
