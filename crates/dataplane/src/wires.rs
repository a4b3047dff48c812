//! A forwarder's connections, and the rewiring of a running one: see
//! [`Forwarder::rewire`](crate::forwarder::Forwarder::rewire).
//!
//! ```text
//!   rx queues --------+             +--> exit of each port: transmit queue, or
//!   inlets: rings  ---+--> unit ----+      ring to the forwarder that has one, or nothing
//!   priority rings ----+             +--> (rings to the slow path: `punts.rs`)
//! ```

use dpdk::{Consumer, Producer, TxQueue};

use crate::events::EventUnit;
use crate::interface::InterfaceInfo;
use crate::polling::RxSource;
use crate::port::{PortId, PortSet};
use crate::punts::Punts;

/// Connections of a forwarder: all of them, or some to be added or removed.
#[derive(Default)]
pub struct Wires {
    /// Receive queues.
    pub rx: Vec<RxSource>,
    /// Rings that it reads.
    pub inlets: Vec<Inlet>,
    /// The exits of packets.
    pub exits: Vec<Exit>,
    /// Ports whose packets come by an event device, with the facts about them for steps.
    pub infos: Vec<(PortId, InterfaceInfo)>,
}

/// A ring of packets to be sent; a packet's tag is its egress port's index.
pub struct Inlet {
    /// The port of all its packets, if another forwarder hands them over; packets of the slow path
    /// are for any port.
    pub port: Option<PortId>,
    /// The generation of slow path workers whose ring it is; 0 for those of forwarders.
    pub generation: u32,
    /// The ring.
    pub ring: Consumer,
}

/// The exit of a port.
pub struct Exit {
    /// The port.
    pub port: PortId,
    /// The path to it.
    pub path: TxPath,
    /// The priority ring, whose packets leave first; only beside a transmit queue.
    pub priority: Option<Consumer>,
    /// Settings for multicast packets.
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
    /// Creates an exit without a path to the port: packets for it are dropped.
    pub fn none(port: PortId) -> Self {
        Self { port, path: TxPath::None, priority: None, replicas: Replicas::default() }
    }
}

/// A change of a forwarder's connections; afterwards, the change that reverts it.
#[derive(Default)]
pub struct Rewiring {
    /// Returns the receive queues of these ports, and sends the packets of transmit bursts.
    pub stop: PortSet,
    /// Empties and returns the rings with packets that others received on these ports, which have
    /// no writer any more. Sends packets handed over by others, for any port.
    pub drain: PortSet,
    /// Returns the rings with packets for these ports, empty. They have no writer any more.
    pub detach: PortSet,
    /// Empties and returns the rings from slow path workers of this generation, which have ended.
    pub release: Option<u32>,
    /// The rings to slow path workers, instead of the present ones; afterwards, these.
    pub punts: Option<Punts>,
    /// Takes so many packets at once from the receive queues of `wires`, one after the other, and
    /// forwards them; then returns these queues and sends the packets of transmit bursts.
    /// Afterwards, the number of packets missing: more than none if the queues are empty.
    pub take: usize,
    /// Makes the forwarder the one for control traffic, or not; `None`: no change. Afterwards, the previous value.
    pub control: Option<bool>,
    /// The event device that it takes part in, or none; `None`: no change. Afterwards, the previous one.
    pub events: Option<Option<Box<EventUnit>>>,
    /// New connections: receive queues and rings in addition to the existing ones, exits in place
    /// of existing ones. Afterwards, the returned connections.
    pub wires: Wires,
}
