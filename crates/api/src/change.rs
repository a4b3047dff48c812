//! Changes made by commands. They last until the router ends; only the configuration is permanent.

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A change of a set of prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SetChange {
    /// Adds elements.
    Add {
        /// The set's name.
        set: String,
        /// No host bits are set.
        #[schemars(with = "Vec<String>")]
        elements: Vec<IpNet>,
        /// Seconds after which they expire; without it they stay until the router ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seconds: Option<u64>,
    },
    /// Removes elements added by [`SetChange::Add`].
    Del {
        /// The set's name.
        set: String,
        /// No host bits are set.
        #[schemars(with = "Vec<String>")]
        elements: Vec<IpNet>,
    },
}

/// A change of the logging of a filter's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum FilterChange {
    /// Logs samples of the packets that a rule matches, for a time.
    Log {
        /// The filter's name.
        filter: String,
        /// The rule's name or number, or `default`.
        rule: String,
        /// Seconds.
        seconds: u64,
    },
    /// Ends what [`FilterChange::Log`] began.
    Unlog {
        /// The filter's name.
        filter: String,
        /// The rule's name or number, or `default`.
        rule: String,
    },
}

/// A change of the routes of source `command`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RouteChange {
    /// Adds a route; one of the same VRF, prefix and metric is replaced.
    Add(RouteAdd),
    /// Removes routes added by [`RouteChange::Add`].
    Del(RouteDel),
}

/// A route to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteAdd {
    /// The destinations; no host bits are set.
    #[schemars(with = "String")]
    pub prefix: IpNet,
    /// Treatment of packets to them.
    #[serde(rename = "type", default)]
    pub kind: RouteType,
    /// Paths, 1 to 128 for [`RouteType::Unicast`], none otherwise.
    #[serde(default)]
    pub paths: Vec<PathSpec>,
    /// Among the routes of commands to one prefix the smallest metric wins.
    #[serde(default)]
    pub metric: u32,
    /// The VRF; without it the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// The VRF of gateways without a port: the gateways are on its networks, or are resolved by its
    /// routes; without it the route's VRF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_hop_vrf: Option<String>,
}

impl RouteAdd {
    /// Returns a route to these destinations, without paths yet.
    pub fn to(prefix: IpNet) -> Self {
        let (kind, paths, metric) = (RouteType::Unicast, Vec::new(), 0);
        Self { prefix, kind, paths, metric, vrf: None, next_hop_vrf: None }
    }
}

/// Treatment of a route's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RouteType {
    /// They are forwarded over the paths.
    #[default]
    Unicast,
    /// They are dropped silently.
    Blackhole,
    /// They are refused: "host unreachable".
    Unreachable,
    /// They are refused: "administratively prohibited".
    Prohibit,
}

/// One path of a route to be added: a gateway, a port, or both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PathSpec {
    /// The gateway. Without `port` it is on a connected network, or reached by another route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<IpAddr>,
    /// The port of the gateway; without `via` that of the destinations themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Its share of the flows, 1 to 256.
    #[serde(default = "one")]
    pub weight: u16,
}

impl PathSpec {
    /// Returns a path over this gateway.
    pub fn via(via: IpAddr) -> Self {
        Self { via: Some(via), port: None, weight: one() }
    }

    /// Returns a path to the hosts on this port.
    pub fn port(port: &str) -> Self {
        Self { via: None, port: Some(port.to_owned()), weight: one() }
    }
}

fn one() -> u16 {
    1
}

/// A route to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteDel {
    /// The destinations.
    #[schemars(with = "String")]
    pub prefix: IpNet,
    /// Only the route with this metric; without it all of the commands' routes to the prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// The VRF; without it the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
}

/// A change of the static neighbours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NeighbourChange {
    /// Sets a neighbour's MAC; an earlier one is replaced.
    Add(NeighbourAdd),
    /// Removes a neighbour; it is resolved again when it is needed.
    Del(NeighbourDel),
}

/// A neighbour to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeighbourAdd {
    /// Its address.
    pub address: IpAddr,
    /// Its MAC, a unicast one.
    pub lladdr: String,
    /// The port it is on.
    pub port: String,
}

/// A neighbour to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeighbourDel {
    /// Its address.
    pub address: IpAddr,
    /// The port it is on.
    pub port: String,
}
