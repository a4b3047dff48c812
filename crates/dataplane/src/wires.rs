//! A forwarder's connections, and the rewiring of a running one: see
//! [`Forwarder::rewire`](crate::forwarder::Forwarder::rewire).
//!
//! ```text
//!   rx queues --------+             +--> exit of each port: transmit queue, or
//!   inlets: rings  ---+--> unit ----+      ring to the forwarder that has one, or nothing
//!   priority rings ----+             +--> (rings to the slow path: `punts.rs`)
//! ```

use dpdk::{Consumer, Producer, TxQueue};

use crate::polling::RxSource;
use crate::port::{PortId, PortSet};

/// Connections of a forwarder: all of them, or some that come or go.
#[derive(Default)]
pub struct Wires {
    /// Receive queues.
    pub rx: Vec<RxSource>,
    /// Rings that it empties.
    pub inlets: Vec<Inlet>,
    /// The exits of packets.
    pub exits: Vec<Exit>,
}

/// A ring with packets that only need sending; a packet's tag is its egress port's index.
pub struct Inlet {
    /// The port that all its packets are for, if another forwarder hands them over; the slow path's
    /// are for any.
    pub port: Option<PortId>,
    /// The ring.
    pub ring: Consumer,
}

/// The exit of a port.
pub struct Exit {
    /// The port.
    pub port: PortId,
    /// The way to it.
    pub path: TxPath,
    /// The priority ring, whose packets leave first; only beside a transmit queue.
    pub priority: Option<Consumer>,
    /// Settings for packets to groups.
    pub replicas: Replicas,
}

/// A forwarder's path to a port's transmit queue.
pub enum TxPath {
    /// By a transmit queue of its own.
    Queue(TxQueue),
    /// By the forwarder at the other end of this ring.
    Handover(Producer),
    /// Not at all: there is no such port, or not yet, or not any more.
    None,
}

/// Settings of a port for packets to groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// The port's own address.
    pub mac: [u8; 6],
    /// Its device takes packets of several buffers.
    pub by_reference: bool,
}

impl Exit {
    /// No way to a port: packets for it are dropped.
    pub fn none(port: PortId) -> Self {
        Self { port, path: TxPath::None, priority: None, replicas: Replicas::default() }
    }
}

/// A change of a forwarder's connections; afterwards, the change that undoes it.
#[derive(Default)]
pub struct Rewiring {
    /// The receive queues of these ports are given back, and the packets of transmit bursts are sent.
    pub stop: PortSet,
    /// The rings with packets that others received by these ports are emptied and given back. They have no
    /// writer any more. Packets handed over by others, for any port, are sent.
    pub drain: PortSet,
    /// The rings with packets for these ports are given back, empty. They have no writer any more.
    pub detach: PortSet,
    /// So many packets are taken at once from the receive queues of `wires`, one after the other, and
    /// forwarded; then these queues are given back, and the packets of transmit bursts are sent. Afterwards,
    /// the number of packets missing: more than none if the queues are empty.
    pub take: usize,
    /// Makes the forwarder the one for control traffic, or not; `None`: no change. Afterwards, the previous value.
    pub control: Option<bool>,
    /// New connections: receive queues and rings in addition to the existing ones, exits in place of existing
    /// ones. Afterwards, the connections given back.
    pub wires: Wires,
}
