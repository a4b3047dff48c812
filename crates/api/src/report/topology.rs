//! Format of `show topology`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine, and the router on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Topology {
    /// NUMA nodes.
    pub nodes: Vec<Node>,
    /// Forwarders, in the order of their numbers.
    pub forwarders: Vec<Forwarder>,
    /// Ports.
    pub ports: Vec<TopologyPort>,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Its number.
    pub node: usize,
    /// Kilobytes of memory, if the kernel reports it.
    pub memory_kb: Option<usize>,
    /// Kilobytes of free memory.
    pub free_kb: Option<usize>,
    /// Hugepages, by size.
    pub hugepages: Vec<Hugepages>,
    /// Distances to the nodes in the order of their numbers; its own is usually 10.
    pub distances: Vec<usize>,
    /// Physical cores that are online.
    pub cores: Vec<Core>,
}

/// Hugepages of one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hugepages {
    /// Kilobytes of each.
    pub size_kb: usize,
    /// Reserved.
    pub total: usize,
    /// Free ones.
    pub free: usize,
}

/// A physical core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Core {
    /// The numbers of its threads; configurations call each of these a core.
    pub threads: Vec<usize>,
    /// Its socket, if the kernel reports it.
    pub package: Option<usize>,
    /// Its caches except instruction caches, the nearest first.
    pub caches: Vec<Cache>,
}

/// A cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u8,
    /// Kilobytes.
    pub size_kb: usize,
    /// The threads that share it.
    pub cores: Vec<usize>,
}

/// A forwarder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Forwarder {
    /// Its number.
    pub forwarder: usize,
    /// Its core.
    pub core: usize,
    /// Its node.
    pub node: Option<usize>,
    /// The receive queues that it serves.
    pub queues: Vec<Queue>,
}

/// A receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queue {
    /// The port's name.
    pub port: String,
    /// Its number.
    pub queue: usize,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TopologyPort {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// The device's driver.
    pub driver: String,
    /// Its NUMA node; none for a virtual device, or if the firmware does not report it.
    pub node: Option<usize>,
    /// The forwarder of each receive queue.
    pub rx: Vec<usize>,
    /// Number of transmit queues.
    pub tx_queues: usize,
}
