//! The connections of forwarders, slow path workers and ports' queues, at a start and while they run.
//!
//! What comes by a ring before its other end has been plugged in waits there.

mod exchanges;
mod layout;

use std::sync::Arc;

use anyhow::{Context, Result};
use dataplane::class::{ByClass, ClassLimits};
use dataplane::distribution::TxPath;
use dataplane::forwarder::{Forwarder, RxSource};
use dataplane::port::{PortId, PortInfo};
use dataplane::punts::{Punts, class_rings};
use dataplane::replicate::Replicas;
use dataplane::wires::{Exit, Inlet, Rewiring, Wires};
use dpdk::{Consumer, Eal, Producer, Ring, RxQueue, TxQueue};

pub use exchanges::Exchanges;
use layout::Layout;

use super::host::HostInterface;
use super::slow_worker::Orders;

/// Packets that a ring between two units holds.
const RING_SIZE: usize = 2048;

/// Packets of the kernel that wait in the router for one port; more wait in the kernel.
pub const EXPRESS_SIZE: usize = 256;

/// An open port with the queues it got.
pub struct Queues {
    /// The port.
    pub port: PortId,
    /// What the steps need to know of it.
    pub info: PortInfo,
    /// Its receive queues.
    pub rx: Vec<RxQueue>,
    /// Its transmit queues.
    pub tx: Vec<TxQueue>,
    /// Its host interface, if it has one.
    pub host: Option<HostInterface>,
}

/// A host interface with the way from it to its port.
pub struct HostLink {
    /// The interface.
    pub interface: HostInterface,
    /// The ring to the forwarder that owns the port's transmit queue.
    pub express: Producer,
}

/// The ways between a forwarder and the slow path.
pub struct SlowPathWays {
    /// The forwarder's ends.
    pub forwarder: ForwarderEnds,
    /// The other ends, by worker.
    pub workers: Vec<WorkerEnds>,
}

/// A forwarder's ends of the rings to and from the slow path.
pub struct ForwarderEnds {
    /// The way there.
    pub punts: Punts,
    /// The ways back.
    pub inlets: Vec<Inlet>,
}

/// A slow path worker's ends of the rings from and to one forwarder.
pub struct WorkerEnds {
    /// What the forwarder punts.
    pub punted: ByClass<Consumer>,
    /// What it is to send.
    pub injector: Producer,
}

impl SlowPathWays {
    /// Between the forwarder with this number and so many workers; `seed` is for the choice of what is
    /// dropped early.
    pub fn new(
        eal: &Eal,
        forwarder: usize,
        workers: usize,
        classes: &ByClass<ClassLimits>,
        seed: u64,
    ) -> Result<Self> {
        let (mut ways, mut inlets, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for worker in 0..workers {
            let name = format!("{forwarder}-{worker}");
            let (way, punted) =
                class_rings(eal, &name, classes).with_context(|| no_memory(&name))?;
            let (injector, inlet) = ring(eal, &format!("inject-{worker}-{forwarder}"), RING_SIZE)?;
            ways.push(way);
            inlets.push(Inlet { port: None, ring: inlet });
            ends.push(WorkerEnds { punted, injector });
        }
        let punts = Punts::new(ways, seed.wrapping_add(forwarder as u64));
        Ok(Self { forwarder: ForwarderEnds { punts, inlets }, workers: ends })
    }
}

/// A port's connections, ready to be plugged in.
struct Laid {
    /// By forwarder.
    wires: Vec<Wires>,
    home: usize,
    host: Option<HostLink>,
}

/// Connects ports.
pub struct Wiring {
    /// The ways to the forwarders.
    pub exchanges: Exchanges,
    eal: Arc<Eal>,
    workers: Orders,
}

impl Wiring {
    /// Of forwarders that can be reached by these ways, and of these workers; no port is connected.
    pub fn new(eal: Arc<Eal>, exchanges: Exchanges, workers: Orders) -> Self {
        Self { exchanges, eal, workers }
    }

    /// Connects a port with forwarders that do not run yet.
    pub fn connect_at_start(&self, queues: Queues, units: &mut [Forwarder]) -> Result<()> {
        let port = queues.port;
        let laid = self.lay(queues)?;
        for (unit, wires) in units.iter_mut().zip(laid.wires) {
            unit.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        }
        self.workers.connect(port, laid.home, laid.host);
        Ok(())
    }

    /// Makes a port's connections, which wait to be plugged in.
    fn lay(&self, queues: Queues) -> Result<Laid> {
        let Queues { port, info, rx, tx, host } = queues;
        let layout = Layout::new(port, rx.len(), tx.len(), self.exchanges.len());
        let home = layout.home;
        let by_reference = tx.first().is_some_and(TxQueue::supports_multi_segment);
        let replicas = Replicas { mac: info.mac.0, by_reference };
        let mut wires: Vec<Wires> = layout.tx.iter().map(|_| Wires::default()).collect();
        for (queue, forwarder) in rx.into_iter().zip(layout.rx) {
            wires[forwarder].rx.push(RxSource { port, info, queue });
        }
        let mut tx: Vec<Option<TxQueue>> = tx.into_iter().map(Some).collect();
        for (forwarder, own) in layout.tx.into_iter().enumerate() {
            let path = match own.and_then(|queue| tx[queue].take()) {
                Some(queue) => TxPath::Queue(queue),
                None => {
                    let name = format!("handover-{forwarder}-{}", port.index());
                    let (producer, ring) = ring(&self.eal, &name, RING_SIZE)?;
                    wires[home].inlets.push(Inlet { port: Some(port), ring });
                    TxPath::Handover(producer)
                }
            };
            wires[forwarder].exits.push(Exit { port, path, express: None, replicas });
        }
        let mut link = None;
        if let Some(interface) = host {
            let name = format!("express-{}", port.index());
            let (express, consumer) = ring(&self.eal, &name, EXPRESS_SIZE)?;
            wires[home].exits[0].express = Some(consumer);
            link = Some(HostLink { interface, express });
        }
        Ok(Laid { wires, home, host: link })
    }
}

fn ring(eal: &Eal, name: &str, size: usize) -> Result<(Producer, Consumer)> {
    Ring::spsc(eal, name, size).with_context(|| no_memory(name))
}

fn no_memory(name: &str) -> String {
    format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
}
