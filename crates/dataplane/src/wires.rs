//! What a forwarder is connected to, and how a running one is connected otherwise: see
//! [`Forwarder::rewire`](crate::forwarder::Forwarder::rewire).
//!
//! ```text
//!   rx queues --------+             +--> exit of each port: transmit queue, or
//!   inlets: rings  ---+--> unit ----+      ring to the forwarder that has one, or nothing
//!   priority rings ----+             +--> (rings to the slow path: `punts.rs`)
//! ```

use dpdk::Consumer;

use crate::distribution::TxPath;
use crate::polling::RxSource;
use crate::port::{PortId, PortSet};
use crate::replicate::Replicas;

/// Connections of a forwarder: all of them, or some that come or go.
#[derive(Default)]
pub struct Wires {
    /// Receive queues.
    pub rx: Vec<RxSource>,
    /// Rings that it empties.
    pub inlets: Vec<Inlet>,
    /// What packets leave by.
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

/// How packets leave by a port.
pub struct Exit {
    /// The port.
    pub port: PortId,
    /// The way to it.
    pub path: TxPath,
    /// What leaves before everything else; only beside a transmit queue.
    pub priority: Option<Consumer>,
    /// How packets to groups leave by it.
    pub replicas: Replicas,
}

impl Exit {
    /// No way to a port: packets for it are dropped.
    pub fn none(port: PortId) -> Self {
        Self { port, path: TxPath::None, priority: None, replicas: Replicas::default() }
    }
}

/// What changes of a forwarder's connections; afterwards, what undoes it.
#[derive(Default)]
pub struct Rewiring {
    /// The receive queues of these ports are given back, and what waits for a transmit burst is sent.
    pub stop: PortSet,
    /// The rings with packets that others received by these ports are emptied and given back. Nobody fills
    /// them any more. What others have handed over, for any port, is sent.
    pub drain: PortSet,
    /// The rings with packets for these ports are given back, empty. Nobody fills them any more.
    pub detach: PortSet,
    /// So many packets are taken at once from the receive queues of `wires`, one after the other, and forwarded; then
    /// these queues are given back, and what waits for a transmit burst is sent. Afterwards, how many were missing: more
    /// than none if the queues are empty.
    pub take: usize,
    /// The forwarder is from now on the one for control traffic, or is not; `None`: as it was. Afterwards, what it was.
    pub control: Option<bool>,
    /// What is new: receive queues and rings beside those that are there, exits in place of those
    /// that are. Afterwards, what has been given back.
    pub wires: Wires,
}
