//! Events from route sources to the owner of the RIB, and orders to the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;
use tokio::sync::oneshot;
use wire::MacAddr;

pub use crate::rib::{Findings, GroupKey, GroupSpec, Path, Resilient, RouteKind, RouteSource};

/// A new value, or its withdrawal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// The new value, whether or not there was one before.
    Set(T),
    /// There is no value any more.
    Withdraw,
}

/// A neighbour's state in the kernel, RFC 4861 section 7.3.2 and `NUD_*` of `linux/neighbour.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NeighbourState {
    /// Being resolved, no MAC yet.
    Incomplete,
    /// Confirmed lately.
    Reachable,
    /// Not confirmed lately; usable.
    Stale,
    /// In use and soon to be probed; usable.
    Delay,
    /// Being probed; usable.
    Probe,
    /// Does not answer.
    Failed,
    /// Configured, never aged.
    Permanent,
    /// Needs no resolution.
    NoArp,
    /// Not in the kernel's table any more.
    Deleted,
}

impl NeighbourState {
    /// The name in commands and JSON: iproute2's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::Reachable => "reachable",
            Self::Stale => "stale",
            Self::Delay => "delay",
            Self::Probe => "probe",
            Self::Failed => "failed",
            Self::Permanent => "permanent",
            Self::NoArp => "noarp",
            Self::Deleted => "deleted",
        }
    }
}

/// Reason why a port's host interface disappeared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// It was removed.
    Removed,
    /// It was moved to another network namespace.
    Moved,
    /// It was renamed.
    Renamed,
    /// It is the operator's, and has not been made yet.
    Awaited,
}

/// One change at a source. Events come in batches and in an order in which they can be applied one
/// by one: a group before the routes over it, a link's loss before the withdrawals that follow from
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// A route. Its identity is source, VRF, prefix and metric.
    Route {
        /// Source of the route.
        source: RouteSource,
        /// The VRF whose packets it is for.
        vrf: VrfId,
        /// The destination; no host bits are set.
        prefix: IpNet,
        /// Among a source's routes to one prefix the smallest wins.
        metric: u64,
        /// The route's new value.
        change: Change<RouteKind>,
    },
    /// A group of paths that routes refer to by [`RouteKind::NextHopGroup`].
    Group {
        /// Source and number of the group.
        key: GroupKey,
        /// The group's new value.
        change: Change<GroupSpec>,
    },
    /// The state of a port's host interface.
    Link {
        /// The port.
        port: InterfaceId,
        /// True if it is administratively up.
        admin_up: bool,
        /// True if it has carrier.
        carrier: bool,
        /// The largest IP packet, in bytes; 0 if the interface does not exist.
        mtu: u16,
        /// Reason for its absence.
        gone: Option<Departure>,
    },
    /// The all-multicast state of a port's host interface: all groups, or only joined ones.
    AllMulticast {
        /// The port.
        port: InterfaceId,
        /// True if it receives all multicasts.
        on: bool,
    },
    /// All virtual MACs: of MACVLAN devices with addresses on ports' host interfaces.
    VirtualMacs(Vec<(InterfaceId, MacAddr)>),
    /// All VLAN devices that become VLANs.
    VlanDevices(Vec<FoundVlan>),
    /// All addresses of a port's host interface, with the length of their network; host bits set.
    Addresses {
        /// The port.
        port: InterfaceId,
        /// The addresses.
        addresses: Vec<IpNet>,
    },
    /// A range of addresses that the machine answers for, besides those of ports.
    LocalAddress {
        /// The VRF of the addresses.
        vrf: VrfId,
        /// The range.
        prefix: IpNet,
        /// False if the range was removed.
        present: bool,
    },
    /// An entry of the kernel's neighbour table on a port.
    Neighbour {
        /// The port.
        port: InterfaceId,
        /// The neighbour.
        address: IpAddr,
        /// Its MAC; `None` while it has no usable one.
        mac: Option<MacAddr>,
        /// Its state.
        state: NeighbourState,
    },
    /// An event of the network namespace of a VRF: see [`Apart`].
    Apart(Apart, Box<Self>),
    /// All of the source's routes and groups follow, up to [`Self::ResyncEnd`].
    ResyncBegin(RouteSource),
    /// Routes and groups not sent since [`Self::ResyncBegin`] no longer exist. After the first one
    /// the source's routes are complete.
    ResyncEnd(RouteSource),
    /// Begins a comparison: everything that the source has sent and not withdrawn follows once
    /// more, to be compared with the RIB and FIB, up to [`Self::Audit`].
    AuditBegin(RouteSource),
    /// A route that the source has sent.
    AuditRoute {
        /// Source of the route.
        source: RouteSource,
        /// The VRF whose packets it is for.
        vrf: VrfId,
        /// The destination; no host bits are set.
        prefix: IpNet,
        /// Among a source's routes to one prefix the smallest wins.
        metric: u64,
        /// The value last sent.
        kind: RouteKind,
    },
    /// A group that the source has sent.
    AuditGroup {
        /// Source and number of the group.
        key: GroupKey,
        /// The value last sent.
        spec: GroupSpec,
    },
    /// The result of comparing the source with the state it has sent.
    Audit(AuditReport),
}

/// Result of comparing a source with the state it has sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// When it ended.
    pub at: SystemTime,
    /// Duration of the comparison.
    pub took: Duration,
    /// Routes compared.
    pub compared: usize,
    /// Routes of the kernel that were not held.
    pub missing: usize,
    /// Routes held that the kernel does not have.
    pub stale: usize,
    /// Routes that differed from the kernel's.
    pub different: usize,
    /// Prefixes forwarded otherwise than their best route requires.
    pub fib: usize,
    /// The first differences, in words.
    pub examples: Vec<String>,
}

impl AuditReport {
    /// Returns true if no difference was found.
    pub fn clean(&self) -> bool {
        self.missing + self.stale + self.different + self.fib == 0
    }

    /// Adds the findings of the comparison with the RIB and the FIB.
    pub fn add(&mut self, found: Findings) {
        self.missing += found.missing;
        self.stale += found.stale;
        self.different += found.different;
        self.fib += found.fib;
        self.examples.extend(found.examples);
    }
}

impl SourceEvent {
    /// Returns the event itself, wherever it is from.
    pub fn inner(&self) -> &Self {
        match self {
            Self::Apart(_, event) => event.inner(),
            event => event,
        }
    }
}

/// A VRF with a network namespace of its own: events name the default VRF in place of it, and its thread numbers groups
/// by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// The VRF.
    pub vrf: VrfId,
    /// The number of the thread that follows the namespace, so that events of an ended one are recognised.
    pub thread: u64,
}

/// A VRF with routes from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVrf {
    /// Its number.
    pub id: VrfId,
    /// Its name; a VRF device of this name gives its routing table.
    pub name: String,
    /// Its routing table if configured, regardless of VRF devices.
    pub table: Option<u32>,
    /// Its ports, whose host interfaces belong into its VRF device.
    pub ports: BTreeSet<InterfaceId>,
}

/// A VLAN, as far as the kernel's VLAN devices are concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostVlan {
    /// Its number.
    pub interface: InterfaceId,
    /// Its name.
    pub name: String,
    /// The interface that has its tag on its frames.
    pub parent: InterfaceId,
    /// The Ethertype of its tag.
    pub protocol: u16,
    /// Its VLAN identifier.
    pub id: u16,
    /// True if its host interface is the kernel's VLAN device with this tag on that of `parent`.
    pub in_kernel: bool,
    /// True if it exists because of that device.
    pub is_found: bool,
}

/// The VLANs of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostVlans {
    /// All of them.
    pub vlans: Vec<HostVlan>,
    /// The interfaces on whose host interfaces VLAN devices are found, with the number of tags that these may have.
    pub followed: BTreeMap<InterfaceId, usize>,
    /// The interfaces whose host interfaces are their devices, which the kernel has not lost.
    pub devices: BTreeSet<InterfaceId>,
}

/// A VLAN device of the kernel that becomes a VLAN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundVlan {
    /// Its name.
    pub name: String,
    /// The name of the host interface, or of the VLAN device, that it is on.
    pub parent: String,
    /// The Ethertype of its tag.
    pub protocol: u16,
    /// Its VLAN identifier.
    pub id: u16,
    /// True if it has the MAC of its parent, and gives frames no priorities.
    pub is_plain: bool,
    /// The name of its VRF; `None`: the default one, or that of the namespace.
    pub vrf: Option<String>,
    /// The name of the VRF in whose network namespace it is; `None`: in that of all other VRFs. Names are unique in a
    /// namespace only. The kernel's thread leaves it to the owner, which knows whose namespace that thread follows.
    pub space: Option<String>,
}

/// Objects that are followed besides links, addresses and neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Following {
    /// True to follow routes, rules and nexthop objects.
    pub routes: bool,
    /// True if routes that cannot be followed exactly lead to the kernel: for some packets only, or with an MTU of their
    /// own. If not, they are not followed, or their MTU is not.
    pub exact: bool,
    /// Time between two comparisons with the kernel's routes; `None`: only when ordered.
    pub audit: Option<Duration>,
    /// Size in bytes of the socket's receive buffer, beyond which the kernel drops messages.
    pub receive_buffer: usize,
}

/// Orders to the kernel's thread.
#[derive(Debug)]
pub enum KernelOrder {
    /// Resolve or confirm a neighbour's MAC. The answer is [`SourceEvent::Neighbour`].
    Resolve {
        /// The neighbour's port.
        port: InterfaceId,
        /// The neighbour.
        address: IpAddr,
    },
    /// Remove an address from the host interface.
    RemoveAddress {
        /// The port.
        port: InterfaceId,
        /// With the length of its network; host bits set.
        address: IpNet,
    },
    /// Set the carrier of the port's device.
    SetCarrier {
        /// The port.
        port: InterfaceId,
        /// True if it has carrier.
        up: bool,
    },
    /// Set the MTU of the host interface.
    SetMtu {
        /// The port.
        port: InterfaceId,
        /// Bytes.
        mtu: u16,
    },
    /// Add an address to the host interface.
    AddAddress {
        /// The port.
        port: InterfaceId,
        /// With the length of its network; host bits set.
        address: IpNet,
    },
    /// Set the ports that have a host interface, with the interfaces' names. Replaces the earlier
    /// list.
    Ports(Vec<(InterfaceId, String)>),
    /// Set the VLANs. Replaces the earlier list.
    Vlans(HostVlans),
    /// Set the VRFs besides the default one. Replaces the earlier list.
    Vrfs(Vec<KernelVrf>),
    /// Follow these subjects from now on. If `routes` changes, everything is read again.
    Follow(Following),
    /// Follow another network namespace from now on.
    Move(Move),
    /// Compare now. There is no answer if the thread ends before.
    Audit(oneshot::Sender<AuditReport>),
}

impl KernelOrder {
    /// Returns the port whose host interface it is about.
    pub fn port(&self) -> Option<InterfaceId> {
        match self {
            Self::Audit(_)
            | Self::Ports(_)
            | Self::Vlans(_)
            | Self::Vrfs(_)
            | Self::Follow(_)
            | Self::Move(_) => None,
            Self::Resolve { port, .. }
            | Self::SetCarrier { port, .. }
            | Self::SetMtu { port, .. }
            | Self::AddAddress { port, .. }
            | Self::RemoveAddress { port, .. } => Some(*port),
        }
    }
}

/// A move to another network namespace. What the source has reported of the one before is withdrawn once the other has
/// been read, except what is the same there.
#[derive(Debug)]
pub struct Move {
    /// The namespace.
    pub namespace: File,
    /// The host interfaces there.
    pub seats: Vec<Seat>,
    /// Receives nothing and is closed once the namespace before is not followed any more: its host interfaces can be
    /// removed.
    pub moved: oneshot::Sender<()>,
}

/// A host interface that replaces one of another namespace.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Its port.
    pub port: InterfaceId,
    /// The kernel's number for it.
    pub index: u32,
    /// The addresses to be set on it.
    pub addresses: Vec<IpNet>,
}

/// State of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceState {
    /// No messages yet.
    #[default]
    Starting,
    /// Reading everything.
    Synchronising,
    /// All routes of the source are held.
    Synchronised,
    /// FPM: no connection; its routes are kept for a while.
    Disconnected,
    /// It has failed with an error.
    Failed,
}

impl SourceState {
    /// Returns the name in commands and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Synchronising => "synchronising",
            Self::Synchronised => "synchronised",
            Self::Disconnected => "disconnected",
            Self::Failed => "failed",
        }
    }
}

/// Status of a source, as shown by `show sources`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// Its state.
    pub state: SourceState,
    /// Messages read.
    pub messages: u64,
    /// Malformed messages or attributes, and refused requests.
    pub errors: u64,
    /// Messages that were understood and are not used: routes with a TOS, for example.
    pub ignored: u64,
    /// Times that the kernel dropped messages because the receive buffer was full.
    pub overruns: u64,
    /// Complete dumps, including the first.
    pub resyncs: u64,
    /// End of the last complete dump.
    pub last_resync: Option<SystemTime>,
    /// Routes of the tables in use.
    pub routes: usize,
    /// Nexthop objects.
    pub groups: usize,
    /// FPM: connections accepted.
    pub connections: u64,
    /// FPM: address of the connected peer.
    pub peer: Option<std::net::SocketAddr>,
}
