//! Reasons for refused changes of the RIB.

use std::fmt;
use std::net::IpAddr;

use dataplane::interface::{InterfaceId, VRFS_MOST, VrfId};
use ipnet::IpNet;

use super::{BUCKETS_MOST, GroupKey, PATHS_MOST, RouteSource, WEIGHT_MOST};

/// Subject of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The route to this prefix.
    Route(IpNet),
    /// This group.
    Group(GroupKey),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Route(prefix) => write!(f, "route {prefix}"),
            Self::Group(GroupKey { source, id, .. }) => {
                write!(f, "group {id} of {}", source.name())
            }
        }
    }
}

/// Reason why a change was refused. Nothing has changed then, except after errors for which
/// [`Error::is_waiting`] is true.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A prefix with host bits.
    #[error("route {prefix}: host bits are set; the prefix is {}", .prefix.trunc())]
    HostBits {
        /// The prefix given.
        prefix: IpNet,
    },
    /// A prefix that is never forwarded.
    #[error("route {prefix}: lies in {range}, which is never forwarded")]
    Reserved {
        /// The prefix given.
        prefix: IpNet,
        /// The range.
        range: &'static str,
    },
    /// A prefix that is forwarded only if the configuration accepts it. The RIB holds the route until then.
    #[error("route {prefix}: lies in {}; used once that is accepted", super::NOT_ACCEPTED)]
    NotAccepted {
        /// The prefix given.
        prefix: IpNet,
    },
    /// A unicast route or a group without a path, or with too many.
    #[error("{what}: {count} paths; it has 1 to {PATHS_MOST}")]
    Paths {
        /// The route or group.
        what: Subject,
        /// The paths given.
        count: usize,
    },
    /// A path with neither interface nor gateway.
    #[error("{what}: a path without interface and gateway; name one of them")]
    EmptyPath {
        /// The route or group.
        what: Subject,
    },
    /// A weight out of range.
    #[error("{what}: weight {weight} of path {}; a weight is 1 to {WEIGHT_MOST}", path_name(.via))]
    Weight {
        /// The route or group.
        what: Subject,
        /// The path's gateway.
        via: Option<IpAddr>,
        /// The weight given.
        weight: u16,
    },
    /// A path over an interface that the router does not have.
    #[error("{what}: next hop {} is on {interface}, which this router does not have", path_name(.via))]
    UnknownPort {
        /// The route or group.
        what: Subject,
        /// The path's gateway.
        via: Option<IpAddr>,
        /// The interface.
        interface: InterfaceId,
    },
    /// A resilient group without a bucket.
    #[error("{what}: no bucket; a resilient group has 1 to {BUCKETS_MOST}")]
    Buckets {
        /// The group.
        what: Subject,
    },
    /// The route is in a VRF that does not exist.
    #[error("route {prefix}: there is no VRF of number {}", .vrf.index())]
    UnknownVrf {
        /// The route.
        prefix: IpNet,
        /// The VRF given.
        vrf: VrfId,
    },
    /// No number is left for another VRF.
    #[error("there are {VRFS_MOST} VRFs, as many as there can be; remove one")]
    VrfsFull,
    /// Routes of this source are created by the RIB only.
    #[error("route {prefix}: {} routes follow from interfaces and neighbours; they cannot be set", .from.name())]
    NotSettable {
        /// The route.
        prefix: IpNet,
        /// The source given.
        from: RouteSource,
    },
    /// The route refers to a group that does not exist, and waits for it.
    #[error("route {prefix}: group {} of {} does not exist; the route waits for it", .key.id, .key.source.name())]
    NoGroup {
        /// The route.
        prefix: IpNet,
        /// The group.
        key: GroupKey,
    },
    /// No number is left for another next hop. The route or group waits for one.
    #[error(
        "{what}: all {} next hops are in use, it waits for one; let routes share gateways, or remove some",
        dataplane::next_hop::NEXT_HOPS
    )]
    NextHopsFull {
        /// The route or group.
        what: Subject,
    },
    /// No room for another group of paths. The route or group waits for it.
    #[error(
        "{what}: no room for a group of {places} among {} places, it waits for room; use fewer paths or smaller weights",
        dataplane::next_hop::GROUP_MEMBERS
    )]
    GroupsFull {
        /// The route or group.
        what: Subject,
        /// The places the group needs.
        places: u32,
    },
    /// The FIB refused the change. The RIB holds the route and tries again.
    #[error("route {prefix}: {error}; it is tried again")]
    Fib {
        /// The route.
        prefix: IpNet,
        /// The reason.
        error: fib::Error,
    },
}

impl Error {
    /// Returns true if the RIB holds the change and makes it as soon as it can. An existing
    /// route or group of the same identity is replaced nevertheless: a route that its source has
    /// replaced never stays in force because the new one lacks room.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::NextHopsFull { .. }
                | Self::GroupsFull { .. }
                | Self::NoGroup { .. }
                | Self::NotAccepted { .. }
                | Self::Fib { .. }
        )
    }
}

/// Returns the name of a path in messages.
fn path_name(via: &Option<IpAddr>) -> String {
    via.map_or_else(|| "without gateway".to_owned(), |via| via.to_string())
}
