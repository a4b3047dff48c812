//! Packet buffers: a pool for what ordinary links carry, and one of larger buffers where a port's MTU
//! asks for it. A port that comes later has a pool of its own, which is freed when the port and all its
//! packets are gone.
//!
//! A frame lies in one buffer, whatever its size, so that a step reads it without looking for a next
//! segment. Ports up to an MTU of about 1,900 bytes share buffers of 2 kB, of which a cache holds
//! many; what came by a jumbo port is in a buffer of that port's size until it has left.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use control::config::{Config, Device};
use dpdk::qsbr::Qsbr;
use dpdk::{Eal, Mbuf, Mempool, MempoolConfig, Unused};

/// Bytes of a usual packet buffer behind its headroom.
const DATA_ROOM: u16 = 2048;

/// Bytes beside the data: headroom, the buffer's header, the pool's.
const BESIDE: usize = 512;

/// Packet buffers for each queue of a port: its descriptors both ways, and what an AF_XDP socket
/// keeps for the kernel.
const MBUFS_PER_QUEUE: usize = 8192;

/// Packet buffers for what is between the queues of one forwarder and one slow path worker: bursts,
/// rings, packets waiting for neighbours.
const MBUFS_INSIDE: usize = 16_384;

/// Ports that may come later for which there is ordinary memory; of hugepages there may be more.
const LATER_PORTS: usize = 8;

/// What the router needs of packet memory.
pub struct Plan {
    usual: usize,
    /// How many and how large; none if no port needs them.
    jumbo: Option<(usize, u16)>,
}

impl Plan {
    /// For the ports of this configuration, as they are to be or as their devices are now.
    pub fn of(config: &Config, forwarders: usize) -> Self {
        let rooms: Vec<u16> = config.ports.iter().map(|port| dpdk::data_room(mtu(port))).collect();
        let (large, small): (Vec<_>, Vec<_>) =
            rooms.into_iter().partition(|&room| room > DATA_ROOM);
        let count = |ports: usize| {
            let inside = mbufs_inside(config, forwarders);
            let wanted = config.memory.mbufs.map(|mbufs| mbufs as usize);
            wanted.unwrap_or(inside + ports * forwarders * MBUFS_PER_QUEUE)
        };
        let jumbo = large.iter().max().map(|&room| (count(large.len()), room));
        Self { usual: count(small.len()), jumbo }
    }

    /// Megabytes.
    pub fn megabytes(&self) -> usize {
        let (count, room) = self.jumbo.unwrap_or((0, 0));
        (bytes(self.usual, DATA_ROOM) + bytes(count, room)) / 1_000_000
    }
}

/// Megabytes for the pools of ports that may come later, to a router with so many forwarders.
pub fn megabytes_later(forwarders: usize) -> usize {
    bytes(LATER_PORTS * forwarders * MBUFS_PER_QUEUE, DATA_ROOM) / 1_000_000
}

fn bytes(count: usize, room: u16) -> usize {
    count * (usize::from(room) + BESIDE)
}

/// Packet buffers for what is between the queues: each further pair of a forwarder and a worker has
/// rings of its own.
fn mbufs_inside(config: &Config, forwarders: usize) -> usize {
    let rings: usize = config.slowpath.classes.iter().map(|class| class.queue).sum();
    MBUFS_INSIDE + (forwarders * config.slowpath.workers - 1) * rings
}

/// The MTU that a port is going to have.
fn mtu(port: &control::config::Port) -> u16 {
    let of_device = || match &port.device {
        Device::Kernel(name) => dpdk::kernel_mtu(name),
        _ => None,
    };
    port.mtu.or_else(of_device).unwrap_or(1500)
}

/// The pools.
#[derive(Clone)]
pub struct Buffers {
    usual: Mempool,
    jumbo: Option<Mempool>,
    /// Those of ports that came later, shared by all copies of this.
    later: Arc<Mutex<Vec<Later>>>,
}

/// A pool of a port that came later.
enum Later {
    /// The port is there, or packets of it are.
    Used(Mempool),
    /// Neither, and it is freed when all threads have let go of it.
    Unused(Unused),
}

impl From<Mempool> for Buffers {
    /// All buffers of one size.
    fn from(usual: Mempool) -> Self {
        Self { usual, jumbo: None, later: Arc::default() }
    }
}

impl Buffers {
    /// Allocates what is planned.
    pub fn new(eal: &Eal, plan: &Plan) -> Result<Self> {
        let usual = pool(eal, "packets", plan.usual, DATA_ROOM)?;
        let jumbo = plan.jumbo.map(|(count, room)| pool(eal, "jumbo", count, room)).transpose()?;
        Ok(Self { usual, jumbo, later: Arc::default() })
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
        let room = dpdk::data_room(mtu).max(DATA_ROOM);
        if room > most {
            bail!(
                "MTU {mtu} needs packet buffers of {room} bytes, and the router has none above {most}: it \
                 makes them at its start, for the largest MTU then; restart it with this file, or with a \
                 port of that MTU"
            );
        }
        let pool = pool(eal, &port.name, forwarders * MBUFS_PER_QUEUE, room).context(
            "no packet memory is left beside that of the other ports; free or reserve hugepages, or \
             restart the router with this file",
        )?;
        self.locked().push(Later::Used(pool.clone()));
        Ok(pool)
    }

    /// Frees the pools of ports that are gone, when no packet of theirs is left and all `readers`, the
    /// threads that have packets, have let go of them. To be called from time to time.
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
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool for a port.
    pub fn of(&self, port: &control::config::Port) -> &Mempool {
        let large = self.jumbo.as_ref().filter(|_| dpdk::data_room(mtu(port)) > DATA_ROOM);
        large.unwrap_or(&self.usual)
    }

    /// A packet with these bytes; `None` when there is no buffer left, or none so large.
    pub fn copy_of(&self, bytes: &[u8]) -> Option<Mbuf> {
        let large = self.jumbo.as_ref().filter(|_| bytes.len() > usize::from(DATA_ROOM));
        large.unwrap_or(&self.usual).copy_of(bytes)
    }

    /// The pool whose buffers hold any frame that a port takes.
    pub fn largest(&self) -> &Mempool {
        self.jumbo.as_ref().unwrap_or(&self.usual)
    }

    /// Buffers, and those of them that somebody holds.
    pub fn count(&self) -> (usize, usize) {
        let later = self.locked();
        let used = later.iter().filter_map(|later| match later {
            Later::Used(pool) => Some(pool),
            Later::Unused(_) => None,
        });
        let pools: Vec<_> = std::iter::once(&self.usual).chain(&self.jumbo).chain(used).collect();
        let sum = |of: fn(&Mempool) -> usize| pools.iter().map(|pool| of(pool)).sum();
        (sum(Mempool::size), sum(Mempool::in_use))
    }
}

fn pool(eal: &Eal, name: &str, count: usize, data_room: u16) -> Result<Mempool, dpdk::Error> {
    Mempool::new(
        eal,
        &MempoolConfig { name: name.into(), count, cache: 256, data_room, node: None },
    )
}
