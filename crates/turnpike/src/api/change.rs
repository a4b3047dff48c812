//! Changes that commands make. They hold until the router ends; the configuration is what survives.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A change of a set of prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SetChange {
    /// Adds elements.
    Add {
        /// The set's name.
        set: String,
        /// No host bits are set.
        elements: Vec<IpNet>,
        /// The time after which they go; without it they stay until the router ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<u64>,
    },
    /// Takes elements away that [`SetChange::Add`] has added.
    Del {
        /// The set's name.
        set: String,
        /// No host bits are set.
        elements: Vec<IpNet>,
    },
}

/// A change of the routes of source `command`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteChange {
    /// Adds a route; one of the same VRF, prefix and metric is replaced.
    Add(RouteAdd),
    /// Removes what [`RouteChange::Add`] added.
    Del(RouteDel),
}

/// A route to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteAdd {
    /// The destinations; no host bits are set.
    pub prefix: IpNet,
    /// What becomes of packets to them.
    #[serde(rename = "type", default)]
    pub kind: RouteType,
    /// Where packets go, 1 to 128 for [`RouteType::Unicast`], none otherwise.
    #[serde(default)]
    pub paths: Vec<PathSpec>,
    /// Among the routes of commands to one prefix the smallest metric wins.
    #[serde(default)]
    pub metric: u32,
    /// The VRF; without it the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// The VRF on whose networks gateways are that name no port, or whose routes lead to them; without it the
    /// route's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop_vrf: Option<String>,
}

impl RouteAdd {
    /// A route to these destinations, to which paths are to be added.
    pub fn to(prefix: IpNet) -> Self {
        let (kind, paths, metric) = (RouteType::Unicast, Vec::new(), 0);
        Self { prefix, kind, paths, metric, vrf: None, next_hop_vrf: None }
    }
}

/// What becomes of a route's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouteType {
    /// They are sent on, over the paths.
    #[default]
    Unicast,
    /// They are dropped in silence.
    Blackhole,
    /// They are refused: "host unreachable".
    Unreachable,
    /// They are refused: "administratively prohibited".
    Prohibit,
}

/// One path of a route to be added: a gateway, a port, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSpec {
    /// The gateway. Without `port` it is on a connected network, or reached by another route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// The port that the gateway is on; without `via` the destinations themselves are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Its share of the flows, 1 to 256.
    #[serde(default = "one")]
    pub weight: u16,
}

impl PathSpec {
    /// A path over this gateway, wherever it is.
    pub fn via(via: IpAddr) -> Self {
        Self { via: Some(via), port: None, weight: one() }
    }

    /// A path to the hosts on this port.
    pub fn port(port: &str) -> Self {
        Self { via: None, port: Some(port.to_owned()), weight: one() }
    }
}

fn one() -> u16 {
    1
}

/// A route to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteDel {
    /// The destinations.
    pub prefix: IpNet,
    /// The route with this metric only; without it all of the commands' routes to the prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// The VRF; without it the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
}

/// A change of the neighbours whose MAC is not resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NeighbourChange {
    /// Gives a neighbour's MAC; a former one is replaced.
    Add(NeighbourAdd),
    /// Forgets a neighbour; it is resolved again when it is needed.
    Del(NeighbourDel),
}

/// A neighbour to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourAdd {
    /// Its address.
    pub address: IpAddr,
    /// Its MAC, a unicast one.
    pub lladdr: String,
    /// The port it is on.
    pub port: String,
}

/// A neighbour to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourDel {
    /// Its address.
    pub address: IpAddr,
    /// The port it is on.
    pub port: String,
}
