//! What route sources tell the owner of the RIB, and what they are asked to do.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;
use tokio::sync::oneshot;
use wire::MacAddr;

pub use crate::rib::{Findings, GroupKey, GroupSpec, Path, Resilient, RouteKind, Source};

/// A new value, or none any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// It is this now, whether or not it was there before.
    Set(T),
    /// It is gone.
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

/// How a port's host interface went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Somebody has removed it.
    Removed,
    /// Somebody has moved it to another network namespace.
    Moved,
    /// Somebody has given it another name.
    Renamed,
}

/// One change at a source. They come in batches and in an order that can be applied one by one: a
/// group before the routes over it, a link's end before the withdrawals that follow from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// A route. Its identity is source, VRF, prefix and metric.
    Route {
        /// Who has it.
        source: Source,
        /// The VRF whose packets it is for.
        vrf: VrfId,
        /// The destination; no host bits are set.
        prefix: IpNet,
        /// Among a source's routes to one prefix the smallest wins.
        metric: u64,
        /// What it is now.
        change: Change<RouteKind>,
    },
    /// A group of paths that routes refer to by [`RouteKind::NextHopGroup`].
    Group {
        /// Whose it is and its number.
        key: GroupKey,
        /// What it is now.
        change: Change<GroupSpec>,
    },
    /// The state of a port's host interface.
    Link {
        /// The port.
        port: InterfaceId,
        /// Somebody has set it up.
        admin_up: bool,
        /// It has carrier.
        carrier: bool,
        /// The largest IP packet, in bytes; 0 if the interface does not exist.
        mtu: u16,
        /// Why it does not exist.
        gone: Option<Departure>,
    },
    /// Whether a port's host interface takes all multicasts, joined or not.
    AllMulticast {
        /// The port.
        port: InterfaceId,
        /// It does.
        on: bool,
    },
    /// All addresses of a port's host interface, with the length of their network; host bits set.
    Addresses {
        /// The port.
        port: InterfaceId,
        /// All of them.
        addresses: Vec<IpNet>,
    },
    /// A range of addresses that the machine answers for itself, besides those of ports.
    LocalAddress {
        /// The VRF in which it does.
        vrf: VrfId,
        /// The range.
        prefix: IpNet,
        /// It does, or no longer.
        present: bool,
    },
    /// An entry of the kernel's neighbour table on a port.
    Neighbour {
        /// The port.
        port: InterfaceId,
        /// The neighbour.
        address: IpAddr,
        /// Its MAC; `None` while there is none that may be used.
        mac: Option<MacAddr>,
        /// Its state.
        state: NeighbourState,
    },
    /// All of the source's routes and groups follow, up to [`Self::ResyncEnd`].
    ResyncBegin(Source),
    /// What the source has not told since [`Self::ResyncBegin`] it has no longer. The first one
    /// says that the source's routes are complete.
    ResyncEnd(Source),
    /// A comparison has begun: all that the source has told and not withdrawn follows once more,
    /// to be compared with what was made of it, up to [`Self::Audit`].
    AuditBegin(Source),
    /// A route that the source has told.
    AuditRoute {
        /// Who has it.
        source: Source,
        /// The VRF whose packets it is for.
        vrf: VrfId,
        /// The destination; no host bits are set.
        prefix: IpNet,
        /// Among a source's routes to one prefix the smallest wins.
        metric: u64,
        /// What it was told to be.
        kind: RouteKind,
    },
    /// A group that the source has told.
    AuditGroup {
        /// Whose it is and its number.
        key: GroupKey,
        /// What it was told to be.
        spec: GroupSpec,
    },
    /// What the comparison of the source with what it has told has come to.
    Audit(AuditReport),
}

/// The result of comparing what a source has with what it has told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditReport {
    /// When it ended.
    pub at: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Routes compared.
    pub compared: usize,
    /// Routes the kernel has and we had not.
    pub missing: usize,
    /// Routes we had and the kernel has not.
    pub stale: usize,
    /// Routes that were other than the kernel's.
    pub different: usize,
    /// Prefixes that were forwarded otherwise than their best route says.
    pub fib: usize,
    /// The first differences, in words.
    pub examples: Vec<String>,
}

impl AuditReport {
    /// There was no difference.
    pub fn clean(&self) -> bool {
        self.missing + self.stale + self.different + self.fib == 0
    }

    /// Adds what the comparison with the RIB and the FIB has found.
    pub fn add(&mut self, found: Findings) {
        self.missing += found.missing;
        self.stale += found.stale;
        self.different += found.different;
        self.fib += found.fib;
        self.examples.extend(found.examples);
    }
}

/// A VRF that has routes of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVrf {
    /// Its number.
    pub id: VrfId,
    /// Its name; a VRF device of this name says by which table the kernel has it.
    pub name: String,
    /// The routing table that is its, whatever devices there are.
    pub table: Option<u32>,
}

/// What the kernel is asked to do.
#[derive(Debug)]
pub enum KernelOrder {
    /// Find a neighbour's MAC, or confirm it. The answer is [`SourceEvent::Neighbour`].
    Resolve {
        /// The port it is on.
        port: InterfaceId,
        /// The neighbour.
        address: IpAddr,
    },
    /// Take an address away from the host interface.
    RemoveAddress {
        /// The port.
        port: InterfaceId,
        /// With the length of its network; host bits set.
        address: IpNet,
    },
    /// Say whether the port's device has carrier.
    SetCarrier {
        /// The port.
        port: InterfaceId,
        /// It has.
        up: bool,
    },
    /// Give the host interface another MTU.
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
    /// These ports have a host interface from now on, by these names; no others.
    Ports(Vec<(InterfaceId, String)>),
    /// These are the VRFs besides the default one; no others.
    Vrfs(Vec<KernelVrf>),
    /// Compare now. Without an answer if the thread ends before.
    Audit(oneshot::Sender<AuditReport>),
}

/// How a source is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceState {
    /// Not told anything yet.
    #[default]
    Starting,
    /// Reading everything.
    Synchronising,
    /// What it has, we have.
    Synchronised,
    /// FPM: nobody is connected; its routes are kept for a while.
    Disconnected,
    /// It has ended by an error.
    Failed,
}

impl SourceState {
    /// The name in commands and JSON.
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

/// What `show sources` tells of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// How it is.
    pub state: SourceState,
    /// Messages read.
    pub messages: u64,
    /// Messages or attributes that made no sense, and requests that were refused.
    pub errors: u64,
    /// Messages that were understood and have no meaning here: routes with a TOS, for example.
    pub ignored: u64,
    /// Times that the kernel dropped messages because the receive buffer was full.
    pub overruns: u64,
    /// Complete readings, the first one included.
    pub resyncs: u64,
    /// When the last one ended.
    pub last_resync: Option<SystemTime>,
    /// Routes of the tables that count.
    pub routes: usize,
    /// Nexthop objects.
    pub groups: usize,
    /// FPM: connections accepted.
    pub connections: u64,
    /// FPM: who is connected.
    pub peer: Option<std::net::SocketAddr>,
}
