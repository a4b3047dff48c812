//! Packet buffers: one pool for ordinary links, and one of larger buffers if a port's MTU requires it. A port opened
//! later has a pool of its own, which is freed once the port is closed and all its packets are freed.
//!
//! On a machine with several NUMA nodes, each node with a NIC has such pools: its packets are written, and mostly read,
//! there.
//!
//! A frame of any size lies in one buffer, unless its device delivers it in several: some devices always do, and
//! `offloads = { scatter = true }` requests it. Ports up to an MTU of about 1,900 bytes and ports that scatter share
//! buffers of 2 kB, of which a cache holds many; a frame from another jumbo port stays in a buffer of that port's size
//! until it has left. A frame needed in one piece is copied into a buffer that is large enough.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, bail, ensure};
use control::config::{self, Config, Device};
use dataplane::events::EVENTS_MOST;
use dataplane::lock::lock;
use dataplane::port::Offload;
use dpdk::qsbr::Qsbr;
use dpdk::{Eal, Mbuf, Mempool, MempoolConfig, Unused};
use machine::Machine;
use machine::cpu::Cpus;

use super::wiring::RING_SIZE;

/// Bytes of a usual packet buffer behind its headroom.
const DATA_ROOM: u16 = 2048;

/// Bytes beside the data: headroom, the buffer's header, the pool's.
const BESIDE: usize = 512;

/// Packet buffers for each queue pair of a kernel interface: its descriptors both ways, and what an AF_XDP
/// socket keeps for the kernel.
const MBUFS_PER_QUEUE: usize = 8192;

/// Packet buffers of a port whose XDP program forwards, and which receives and sends nothing itself.
const MBUFS_SILENT: usize = 1024;

/// Packet buffers of a router all of whose ports are such.
const MBUFS_INSIDE_SILENT: usize = 4096;

/// Packet buffers between the queues of one forwarder and one slow path worker: bursts, rings, packets waiting for
/// neighbours.
const MBUFS_INSIDE: usize = 19_456;

/// Packet buffers for ports' queues in software that come while the router runs.
const MBUFS_QUEUED: usize = 4096;

/// Buffers of a jumbo frame's size for frames that ports scatter, when something needs them in one piece
/// and no port receives into such.
const GATHERED: usize = 2048;

/// Ports that may come later for which there is ordinary memory; of hugepages there may be more.
const LATER_PORTS: usize = 8;

/// Devices and the NUMA nodes that they are on.
#[derive(Clone)]
pub struct Nodes {
    machine: Machine,
    /// The node of devices that have none: that of the first forwarder. `None`: there is one node only.
    usual: Option<usize>,
}

impl Nodes {
    /// Of a machine whose forwarders are on these cores.
    pub fn new(machine: Machine, cpus: &Cpus, cores: &[usize]) -> Self {
        let first = cores.first().filter(|_| cpus.is_numa());
        let usual = first.and_then(|&core| cpus.node_of(core));
        Self { machine, usual }
    }

    /// The node of a device; `None` if it has none, or there is one only.
    fn of(&self, device: &Device) -> Option<usize> {
        self.usual.and_then(|_| self.machine.node_of(device))
    }

    /// The node whose memory a device's packets lie in.
    fn of_packets(&self, device: &Device) -> Option<usize> {
        self.of(device).or(self.usual)
    }
}

/// The router's packet memory requirements.
pub struct MemoryPlan {
    nodes: Nodes,
    pools: Vec<NodeMemory>,
    /// Packets that may wait in ports' queues.
    queued: usize,
    /// Packets that the rings to the slow path hold.
    punted: usize,
}

/// Packet memory requirements of one node.
#[derive(Debug, PartialEq, Eq)]
struct NodeMemory {
    node: Option<usize>,
    usual: usize,
    /// Number and size of large buffers; `None` if no port needs them.
    jumbo: Option<(usize, u16)>,
}

impl MemoryPlan {
    /// For the ports of this configuration, as they are to be or as their devices are now.
    pub fn of(config: &Config, forwarders: usize, nodes: Nodes) -> Self {
        let node_of = |port: &config::Port| nodes.of_packets(&port.device);
        let used: BTreeSet<_> = config.ports.iter().map(node_of).collect();
        let plan = |node: Option<usize>| {
            let ports = config.ports.iter().filter(|port| node_of(port) == node);
            let largest = ports.clone().map(|port| dpdk::data_room(mtu(port))).max();
            let (large, small): (Vec<_>, Vec<_>) =
                ports.partition(|port| receives_into(port) > DATA_ROOM);
            let count = |ports: &[&config::Port]| {
                let queues: usize = ports.iter().map(|port| mbufs_of(port, forwarders)).sum();
                let wanted = config.memory.mbufs.map(|mbufs| mbufs as usize);
                wanted.unwrap_or(mbufs_inside(config, forwarders) + queues)
            };
            let jumbo = largest.filter(|&room| room > DATA_ROOM).map(|room| match large.len() {
                0 => (GATHERED, room),
                _ => (count(&large), room),
            });
            NodeMemory { node, usual: count(&small), jumbo }
        };
        let pools = used.into_iter().map(plan).collect();
        let mbufs = config.memory.mbufs.map(|mbufs| mbufs as usize / 2);
        let queued = mbufs.unwrap_or(MBUFS_QUEUED + queued(config, forwarders));
        Self { nodes, pools, queued, punted: punted(config, forwarders) }
    }

    /// Megabytes.
    pub fn megabytes(&self) -> usize {
        let of = |plan: &NodeMemory| {
            let (count, room) = plan.jumbo.unwrap_or((0, 0));
            bytes(plan.usual, DATA_ROOM) + bytes(count, room)
        };
        self.pools.iter().map(of).sum::<usize>() / 1_000_000
    }
}

/// Maximum number of packet buffers in a port's queues: their descriptors, known before the device is opened if they
/// are configured, and the rings behind them.
fn mbufs_of(port: &config::Port, forwarders: usize) -> usize {
    if port.in_kernel {
        return MBUFS_SILENT;
    }
    let config::Queues { rx_descriptors, tx_descriptors, spread, .. } = port.queues;
    let has_rings = spread == config::Spread::Software || port.steers_by_device();
    let more = usize::from(port.queues.control);
    let number = |wish: Option<u16>| wish.map_or(forwarders, usize::from) + more;
    let (rx, tx) = (number(port.queues.rx_wish()), number(port.queues.tx_wish()));
    let size = |wish: Option<u16>| usize::from(wish.unwrap_or(dpdk::DESCRIPTORS_MOST));
    let queues = rx * size(rx_descriptors) + tx * size(tx_descriptors);
    let pairs = if has_rings { (rx - more) * forwarders.saturating_sub(1) } else { 0 };
    let rings = pairs * RING_SIZE;
    let least = match port.device {
        Device::Kernel(_) => rx.max(tx) * MBUFS_PER_QUEUE,
        _ => 0,
    };
    queues.max(least) + rings
}

/// Megabytes for the pools of ports that may come later, to a router with so many forwarders.
pub fn megabytes_later(forwarders: usize) -> usize {
    bytes(LATER_PORTS * forwarders * MBUFS_PER_QUEUE, DATA_ROOM) / 1_000_000
}

fn bytes(count: usize, room: u16) -> usize {
    count * (usize::from(room) + BESIDE)
}

/// Packet buffers between the queues: each further pair of a forwarder and a worker has rings of its own.
fn mbufs_inside(config: &Config, forwarders: usize) -> usize {
    if config.acceleration.in_kernel {
        return MBUFS_INSIDE_SILENT;
    }
    let events = if config.forwarders.events.is_some() { EVENTS_MOST } else { 0 };
    MBUFS_INSIDE + MBUFS_QUEUED + events + queued(config, forwarders) + punted(config, forwarders)
}

/// Packet buffers that the rings to the slow path hold at most, beyond those of one forwarder and one worker.
fn punted(config: &Config, forwarders: usize) -> usize {
    let rings: usize = config.slowpath.classes.iter().map(|class| class.queue).sum();
    (all(config, forwarders) * config.slowpath.workers - 1) * rings
}

/// Packet buffers that queues in software hold at most: each forwarder may have a transmit queue.
fn queued(config: &Config, forwarders: usize) -> usize {
    let queues = config.ports.iter().filter_map(|port| config.egress_queues(port));
    all(config, forwarders) * queues.map(|queues| queues.buffers()).sum::<usize>()
}

/// Forwarders, that for control traffic included.
fn all(config: &Config, forwarders: usize) -> usize {
    forwarders + usize::from(config.forwarders.control_queue)
}

/// The MTU that a port is going to have.
fn mtu(port: &control::config::Port) -> u16 {
    let of_device = || match &port.device {
        Device::Kernel(name) => dpdk::kernel_mtu(name),
        _ => None,
    };
    port.mtu.or_else(of_device).unwrap_or(1500)
}

/// Bytes of the buffers that a port receives into.
fn receives_into(port: &control::config::Port) -> u16 {
    if port.offloads.get(&Offload::Scatter) == Some(&true) {
        return DATA_ROOM;
    }
    dpdk::data_room(mtu(port)).max(DATA_ROOM)
}

/// The pools.
#[derive(Clone)]
pub struct Buffers {
    nodes: Nodes,
    /// At least one, that of the first node first.
    pools: Vec<NodePools>,
    /// Those of ports added later, shared by all copies of this.
    later: Arc<Mutex<Vec<Later>>>,
    /// Packets that may wait in ports' queues.
    queued: usize,
    /// Packets that the rings to the slow path held at the start.
    punted: usize,
}

/// The pools of a node.
#[derive(Clone)]
struct NodePools {
    node: Option<usize>,
    usual: Mempool,
    jumbo: Option<Mempool>,
}

impl NodePools {
    fn new(eal: &Eal, plan: &NodeMemory) -> Result<Self> {
        let node = plan.node;
        let usual = pool(eal, "packets", plan.usual, (DATA_ROOM, node))?;
        let jumbo = plan.jumbo.map(|(count, room)| pool(eal, "jumbo", count, (room, node)));
        Ok(Self { node, usual, jumbo: jumbo.transpose()? })
    }

    /// The pool whose buffers are the larger ones.
    fn largest(&self) -> &Mempool {
        self.jumbo.as_ref().unwrap_or(&self.usual)
    }
}

/// A pool of a port added later.
enum Later {
    /// The port is there, or packets of it are.
    Used(Mempool),
    /// Neither, and it is freed when all threads have released it.
    Unused(Unused),
}

impl From<Mempool> for Buffers {
    /// All buffers of one size.
    fn from(usual: Mempool) -> Self {
        let pools = vec![NodePools { node: None, usual, jumbo: None }];
        let nodes = Nodes { machine: Machine::here(), usual: None };
        Self { nodes, pools, later: Arc::default(), queued: MBUFS_QUEUED, punted: 0 }
    }
}

impl Buffers {
    /// Allocates the planned pools.
    pub fn new(eal: &Eal, plan: &MemoryPlan) -> Result<Self> {
        let pools = plan.pools.iter().map(|plan| NodePools::new(eal, plan));
        let pools = pools.collect::<Result<Vec<_>>>()?;
        ensure!(!pools.is_empty(), "no port, so no packet memory");
        let MemoryPlan { nodes, queued, punted, .. } = plan;
        let (nodes, queued, punted) = (nodes.clone(), *queued, *punted);
        Ok(Self { nodes, pools, later: Arc::default(), queued, punted })
    }

    /// Checks that rings to the slow path, of which there may be more than at the start, leave buffers to receive into.
    ///
    /// # Errors
    /// They could hold more packets than there is memory for beside everything else.
    pub fn check_rings(&self, config: &Config, forwarders: usize) -> Result<()> {
        let more = punted(config, forwarders).saturating_sub(self.punted);
        let most = MBUFS_INSIDE / 2 + self.queued - queued(config, forwarders).min(self.queued);
        ensure!(
            more <= most,
            "rings to slow path workers could hold {more} packets more than at the start, and the router has memory \
             for {most}; lower turnpike.slowpath {{ workers }} or the queues of its classes, restart it with this \
             file, or raise turnpike.memory {{ mbufs }}"
        );
        Ok(())
    }

    /// Checks that ports' queues in software leave buffers to receive into.
    ///
    /// # Errors
    /// They could hold more packets than there is memory for beside everything else.
    pub fn check_queues(&self, config: &Config, forwarders: usize) -> Result<()> {
        let (wanted, most) = (queued(config, forwarders), self.queued);
        ensure!(
            wanted <= most,
            "queues in software could hold {wanted} packets, and the router has memory for {most} in queues; lower \
             queue = {{ length = … }}, restart it with this file, or raise turnpike.memory {{ mbufs }}"
        );
        Ok(())
    }

    /// The NUMA node of a device; `None` if it has none, or there is one only.
    pub fn node_of(&self, device: &Device) -> Option<usize> {
        self.nodes.of(device)
    }

    /// The pools of a node, else any.
    fn on(&self, node: Option<usize>) -> &NodePools {
        let on_node = self.pools.iter().find(|pools| pools.node == node);
        on_node.unwrap_or(&self.pools[0])
    }

    /// A pool of its own for a port that is opened while the router runs.
    ///
    /// # Errors
    /// There is no memory, or no other pool has room for the port's frames.
    pub fn later(
        &self,
        eal: &Eal,
        port: &control::config::Port,
        forwarders: usize,
    ) -> Result<Mempool> {
        let (mtu, most) = (mtu(port), self.largest().data_room());
        let room = dpdk::data_room(mtu);
        if room > most.max(DATA_ROOM) {
            bail!(
                "MTU {mtu} needs packet buffers of {room} bytes, and the router has none above {most}: it \
                 makes them at its start, for the largest MTU then; restart it with this file, or with a \
                 port of that MTU"
            );
        }
        let room = receives_into(port);
        let count = mbufs_of(port, forwarders).max(MBUFS_PER_QUEUE);
        let node = self.nodes.of_packets(&port.device);
        let pool = pool(eal, &port.name, count, (room, node)).context(
            "no packet memory is left beside that of the other ports; free or reserve hugepages, or \
             restart the router with this file",
        )?;
        self.locked().push(Later::Used(pool.clone()));
        Ok(pool)
    }

    /// Frees the pools of closed ports once all their packets are freed and all `readers`, the threads that have
    /// packets, have released them. To be called from time to time.
    pub fn tidy(&self, readers: &Arc<Qsbr>) {
        let step = |later| match later {
            Later::Used(pool) => Some(match pool.give_up(readers) {
                Ok(unused) => Later::Unused(unused),
                Err(pool) => Later::Used(pool),
            }),
            Later::Unused(unused) => unused.free().err().map(Later::Unused),
        };
        let mut pools = self.locked();
        *pools = std::mem::take(&mut *pools).into_iter().filter_map(step).collect();
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<Later>> {
        lock(&self.later)
    }

    /// The pool for a port.
    pub fn of(&self, port: &control::config::Port) -> &Mempool {
        let pools = self.on(self.nodes.of_packets(&port.device));
        let large = pools.jumbo.as_ref().filter(|_| receives_into(port) > DATA_ROOM);
        large.unwrap_or(&pools.usual)
    }

    /// A packet with these bytes; `None` when there is no buffer left, or none so large.
    pub fn copy_of(&self, bytes: &[u8]) -> Option<Mbuf> {
        self.for_length(bytes.len()).copy_of(bytes)
    }

    /// The packet in one buffer.
    ///
    /// # Errors
    /// Returns the packet when there is no buffer left, or none so large.
    pub fn in_one(&self, packet: Mbuf) -> Result<Mbuf, Mbuf> {
        if packet.segments() == 1 {
            return Ok(packet);
        }
        self.for_length(packet.len()).linear_copy_of(&packet).ok_or(packet)
    }

    fn for_length(&self, length: usize) -> &Mempool {
        if length > usize::from(DATA_ROOM) { self.largest() } else { &self.pools[0].usual }
    }

    /// The pool whose buffers hold any frame that a port takes.
    pub fn largest(&self) -> &Mempool {
        let largest = self.pools.iter().map(NodePools::largest).max_by_key(|p| p.data_room());
        largest.unwrap_or(&self.pools[0].usual)
    }

    /// As [`Self::largest`], near to this node if one there is as large.
    pub fn largest_near(&self, node: Option<usize>) -> &Mempool {
        let (near, largest) = (self.on(node).largest(), self.largest());
        if near.data_room() == largest.data_room() { near } else { largest }
    }

    /// Returns the number of buffers, and of those in use.
    pub fn count(&self) -> (usize, usize) {
        let later = self.locked();
        let used = later.iter().filter_map(|later| match later {
            Later::Used(pool) => Some(pool),
            Later::Unused(_) => None,
        });
        let first = self.pools.iter().flat_map(|p| std::iter::once(&p.usual).chain(&p.jumbo));
        let pools: Vec<_> = first.chain(used).collect();
        let sum = |of: fn(&Mempool) -> usize| pools.iter().map(|pool| of(pool)).sum();
        (sum(Mempool::size), sum(Mempool::in_use))
    }
}

/// A pool on a node, or elsewhere if there is too little memory there.
fn pool(
    eal: &Eal,
    name: &str,
    count: usize,
    (data_room, node): (u16, Option<usize>),
) -> Result<Mempool, dpdk::Error> {
    let wanted = node.and_then(|node| u32::try_from(node).ok());
    let name = name.to_owned();
    let config = MempoolConfig { name, count, cache: 256, data_room, node: wanted };
    let pool = Mempool::new(eal, &config)?;
    if let Some(node) = wanted.filter(|_| pool.node() != wanted) {
        tracing::warn!(
            "packet buffers \"{}\" of NUMA node {node} lie on another, whose memory is slower for its NICs; \
             reserve hugepages there: /sys/devices/system/node/node{node}/hugepages",
            config.name
        );
    }
    Ok(pool)
}
