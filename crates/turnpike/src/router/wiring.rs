//! The connections of forwarders, slow path workers and ports' queues, at a start and while they run.
//!
//! A port is disconnected in an order in which what is on the way to it is sent first:
//!
//! ```text
//!   1. no forwarder receives from it, none hands packets over to its home    (one exchange)
//!   2. no slow path worker has packets for it; its host interface comes back (an order to each)
//!   3. its home empties the rings, sends, and gives its queues back          (another exchange)
//! ```
//!
//! Connecting is one exchange, and then the order to the workers. What comes by a ring before its other
//! end has been plugged in waits there.

mod exchanges;
mod layout;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use dataplane::class::{ByClass, ClassLimits};
use dataplane::distribution::TxPath;
use dataplane::exchange::Replacement;
use dataplane::forwarder::{Forwarder, RxSource};
use dataplane::multicast::PortSet;
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

/// What is known of a port that is connected.
struct Wired {
    home: usize,
    /// Transmit queues beyond one for each forwarder.
    spare: Vec<TxQueue>,
}

/// A port's connections, ready to be plugged in.
struct Laid {
    /// By forwarder.
    wires: Vec<Wires>,
    wired: Wired,
    host: Option<HostLink>,
}

/// Connects and disconnects ports.
pub struct Wiring {
    /// The ways to the forwarders.
    pub exchanges: Exchanges,
    eal: Arc<Eal>,
    workers: Orders,
    ports: BTreeMap<PortId, Wired>,
}

impl Wiring {
    /// Of forwarders that can be reached by these ways, and of these workers; no port is connected.
    pub fn new(eal: Arc<Eal>, exchanges: Exchanges, workers: Orders) -> Self {
        Self { exchanges, eal, workers, ports: BTreeMap::new() }
    }

    /// Connects a port with forwarders that do not run yet.
    pub fn connect_at_start(&mut self, queues: Queues, units: &mut [Forwarder]) -> Result<()> {
        let port = queues.port;
        let laid = self.lay(queues)?;
        for (unit, wires) in units.iter_mut().zip(laid.wires) {
            unit.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        }
        self.enter(port, laid.wired, laid.host);
        Ok(())
    }

    /// Connects a port while everything runs: it receives from now on, and what is for it is sent.
    ///
    /// # Errors
    /// No memory for rings, or a forwarder that takes nothing; the queues are gone then, so that their
    /// device can be closed.
    pub async fn connect(&mut self, queues: Queues) -> Result<()> {
        let port = queues.port;
        let laid = self.lay(queues)?;
        let plug = |wires| Rewiring { wires, ..Rewiring::default() };
        self.rewire(laid.wires.into_iter().map(plug)).await?;
        self.enter(port, laid.wired, laid.host);
        Ok(())
    }

    /// Disconnects a port while everything runs; what is on the way to it is sent, or dropped by name.
    /// What is for it later is dropped as `port-down`.
    ///
    /// # Errors
    /// No such port, or a forwarder that gives nothing back; the port is connected as before then.
    pub async fn disconnect(&mut self, port: PortId) -> Result<Queues> {
        let wired = self.ports.remove(&port).with_context(|| format!("{port} is not connected"))?;
        match self.let_go(port, wired.home).await {
            Ok((wires, host)) => queues_of(port, wires, wired.spare, host),
            Err(error) => {
                self.ports.insert(port, wired);
                Err(error)
            }
        }
    }

    /// Notes a port whose wires are plugged in, and plugs in the workers.
    fn enter(&mut self, port: PortId, wired: Wired, host: Option<HostLink>) {
        self.workers.connect(port, wired.home, host);
        self.ports.insert(port, wired);
    }

    /// All wires and the host interface of a port, or everything stays.
    async fn let_go(
        &self,
        port: PortId,
        home: usize,
    ) -> Result<(Vec<Wires>, Option<HostInterface>)> {
        let ports: PortSet = [port].into_iter().collect();
        let stopped = self.rewire(self.stop(ports, &[(port, home)])).await?;
        let link = self.workers.disconnect(port).await;
        let freed = (0..self.exchanges.len()).map(|_| Rewiring {
            detach: ports,
            wires: Wires { exits: vec![Exit::none(port)], ..Wires::default() },
            ..Rewiring::default()
        });
        match self.rewire(freed).await {
            Ok(freed) => {
                let wires = stopped.into_iter().chain(freed).map(|back| back.wires);
                Ok((wires.collect(), link.map(|link| link.interface)))
            }
            Err(error) => {
                self.workers.connect(port, home, link);
                if let Err(error) = self.rewire(stopped).await {
                    tracing::error!("{port} cannot be connected again: {error:#}");
                }
                Err(error)
            }
        }
    }

    /// For each forwarder: that it receives from these ports no more, and hands nothing over to their
    /// homes, which have what it has handed over by then.
    fn stop<'a>(
        &self,
        ports: PortSet,
        homes: &'a [(PortId, usize)],
    ) -> impl Iterator<Item = Rewiring> + use<'a> {
        (0..self.exchanges.len()).map(move |forwarder| {
            let others = homes.iter().filter(move |(_, home)| *home != forwarder);
            let exits = others.map(|&(port, _)| Exit::none(port)).collect();
            let wires = Wires { exits, ..Wires::default() };
            Rewiring { stop: ports, wires, ..Rewiring::default() }
        })
    }

    /// Rewires each forwarder, or none. What comes back undoes it.
    async fn rewire(&self, all: impl IntoIterator<Item = Rewiring>) -> Result<Vec<Rewiring>> {
        let replacement = |wires| Replacement { wires: Some(wires), ..Replacement::default() };
        let new = all.into_iter().map(replacement).collect();
        let old = self.exchanges.exchange(new, None).await?;
        Ok(old.into_iter().filter_map(|old| old.wires).collect())
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
        let wired = Wired { home, spare: tx.into_iter().flatten().collect() };
        Ok(Laid { wires, wired, host: link })
    }
}

/// A port's queues out of the wires that forwarders have given back.
fn queues_of(
    port: PortId,
    wires: Vec<Wires>,
    spare: Vec<TxQueue>,
    host: Option<HostInterface>,
) -> Result<Queues> {
    let (mut sources, mut tx) = (Vec::new(), spare);
    for Wires { rx, exits, .. } in wires {
        sources.extend(rx);
        tx.extend(exits.into_iter().filter_map(|exit| match exit.path {
            TxPath::Queue(queue) => Some(queue),
            TxPath::Handover(_) | TxPath::None => None,
        }));
    }
    let info = sources.first().map(|source| source.info);
    let info = info.with_context(|| format!("{port} had no receive queue"))?;
    let mut rx: Vec<RxQueue> = sources.into_iter().map(|source| source.queue).collect();
    rx.sort_by_key(RxQueue::index);
    tx.sort_by_key(TxQueue::index);
    Ok(Queues { port, info, rx, tx, host })
}

fn ring(eal: &Eal, name: &str, size: usize) -> Result<(Producer, Consumer)> {
    Ring::spsc(eal, name, size).with_context(|| no_memory(name))
}

fn no_memory(name: &str) -> String {
    format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
}
