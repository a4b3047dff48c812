//! Safe wrappers around DPDK: types enforce the requirements that DPDK's documentation states in
//! prose.
//!
//! **Ownership of packets.** A packet is in exactly one place, and the holder of that place owns
//! it: an [`Mbuf`], a slot of a [`Burst`], an entry of a [`PacketList`], or, inside DPDK, a
//! [`Ring`] or a queue. Receiving fills a burst; sending moves packets out of a list, and packets
//! that the device did not take stay in the list, in order. Dropping a container returns its
//! packets to their [`Mempool`]. No packet can be freed twice, and [`Mempool::in_use`] shows
//! packets that were not freed. Buffers shared by the ends of several packets are [`Shared`], and
//! read only.
//!
//! **Threads.** Queues and ring ends can move to another thread but cannot be shared between two
//! ([`RxQueue`], [`TxQueue`], [`Producer`] and [`Consumer`] are `Send`, not `Sync`, and take
//! `&mut self`), as DPDK requires of their callers.
//!
//! **Lifetimes.** Each object holds those it was made from: queues their port, a port its pool, all
//! of them the [`Eal`]. A port is stopped and closed when it and all its queues are dropped. The
//! EAL is shut down when nothing made from it is left; otherwise it stays up until the process
//! ends, because memory in which a packet may still be must not be freed.
//!
//! The calls per packet are plain loads and stores on arrays that [`Burst`] fills once per burst;
//! calls into DPDK are per burst.

pub mod acl;
mod barrier;
mod burst;
mod carrier;
mod device;
mod drivers;
mod eal;
mod error;
mod event;
mod huge;
mod inherited;
mod interface;
mod interrupts;
pub mod log;
pub mod lookup;
mod mbuf;
mod mempool;
mod names;
mod peer;
mod port;
pub mod qsbr;
mod queue;
mod ring;
mod shared;
mod source;
mod tap;
mod time;
mod wait;

pub use barrier::ProcessBarrier;
pub use burst::{BURST_MAX, Burst, HEAD, LIST_MAX, PacketList};
pub use carrier::Carrier;
pub use device::{Device, Driver, pci_address};
pub use drivers::virtual_drivers;
pub use eal::{
    Eal, EalConfig, HugeMode, IovaMode, LogLevel, Memory, ThreadRegistration, version,
    version_built,
};
pub use error::Error;
pub use event::{CLASSES_MOST as EVENT_CLASSES_MOST, EVENTS_MOST, FLOWS as EVENT_FLOWS};
pub use event::{EventConfig, EventDevice, EventOrder, EventPort, EventPorts, Loaded};
pub use huge::on_huge_pages;
pub use inherited::{close_on_exec, inherited};
pub use mbuf::{Layers, Mbuf, Transport};
pub use mempool::{Mempool, MempoolConfig, PoolAccesses, Unused, pool_accesses};
pub use nix::errno::Errno;
pub use peer::peer_groups;
pub use port::accelerate::{Acceleration, Lease, Outcome, Prefixes, Returner, Taken};
pub use port::book::{give_back_interfaces, leave};
pub use port::flows::{FlowTap, Flows, Tuple as FlowTuple};
pub use port::in_kernel::{KernelTables, WAYS, WayOut};
pub use port::queues::{ControlQueues, DESCRIPTORS_MOST, Thresholds};
pub use port::rss::{Rss, RssConfig, RssTable, SYMMETRIC as SYMMETRIC_RSS_KEY};
pub use port::{
    BondPort, DeviceEvent, DeviceEvents, Fec, FlowCount, FlowRefusal, FlowRule, Happening, Link,
    LinkDetails, LinkWatch, LinkWish, MulticastFilter, Multicasts, Offload, OffloadReason,
    OffloadState, OffloadWishes, Offloads, Pause, Port, PortConfig, Stats, data_room,
    interface_user, is_port, kernel_mtu,
};
pub use queue::{RxQueue, Sent, TxQueue, Unsent};
pub use ring::{Consumer, Producer, Ring};
pub use shared::{Copied, Shared};
pub use source::{SOURCE_HEAD, SourcePacket, SourcePackets};
pub use tap::{Tap, VirtioHeader, interface_exists, interface_index};
pub use time::{prefetch, tsc, tsc_hz, tsc_ordered};
pub use wait::{Cause, Doorbell, WaitSet, Woken};

#[cfg(test)]
mod testing;
