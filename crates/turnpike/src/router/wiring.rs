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
//!
//! For another number of forwarders all ports are dealt out anew, see `spread.rs`.

mod exchanges;
mod layout;
mod slow_path;
mod spread;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use dataplane::distribution::TxPath;
use dataplane::exchange::Replacement;
use dataplane::forwarder::{Forwarder, RxSource};
use dataplane::multicast::PortSet;
use dataplane::port::{PortId, PortInfo};
use dataplane::replicate::Replicas;
use dataplane::wires::{Exit, Inlet, Rewiring, Wires};
use dpdk::{Consumer, Eal, Producer, Ring, RxQueue, TxQueue};

pub use exchanges::Exchanges;
use layout::Layout;
pub use slow_path::{SlowPathWays, WorkerEnds};
pub use spread::Spread;

use super::forwarders::{Made, Makings, Running};
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

/// A port's part of what forwarders have.
struct Parts {
    port: PortId,
    info: PortInfo,
    rx: Vec<RxQueue>,
    tx: Vec<TxQueue>,
    express: Option<Consumer>,
}

/// What is known of a port that is connected.
struct Wired {
    home: usize,
    /// Its queues, receive and transmit.
    queues: (usize, usize),
    /// Transmit queues beyond one for each forwarder.
    spare: Vec<TxQueue>,
}

/// A port's connections, ready to be plugged in.
struct Laid {
    /// By forwarder.
    wires: Vec<Wires>,
    wired: Wired,
}

/// Rings to a port's home, from the forwarders that need one.
type Handovers = Vec<Option<(Producer, Consumer)>>;

/// Has the forwarders, and connects them.
pub struct Wiring {
    /// The ways to the forwarders.
    pub exchanges: Exchanges,
    /// Those that have not begun.
    units: Vec<Forwarder>,
    /// Those that have.
    running: Vec<Running>,
    makings: Makings,
    workers: Orders,
    ports: BTreeMap<PortId, Wired>,
}

impl Wiring {
    /// Of these forwarders, which know no port yet, and these workers; more can be made.
    pub fn new(makings: Makings, units: Vec<Forwarder>, workers: Orders) -> Self {
        let exchanges = Exchanges::new(units.iter().map(Forwarder::exchange).collect());
        let (running, ports) = (Vec::new(), BTreeMap::new());
        Self { exchanges, units, running, makings, workers, ports }
    }

    /// Connects a port with forwarders that do not run yet.
    pub fn connect_at_start(&mut self, queues: Queues) -> Result<()> {
        let port = queues.port;
        let (laid, link) = self.lay_new(queues)?;
        for (unit, wires) in self.units.iter_mut().zip(laid.wires) {
            unit.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        }
        self.enter(port, laid.wired, link);
        Ok(())
    }

    /// Starts the forwarders, each on its core.
    pub fn start(&mut self, cores: &[usize]) -> Result<()> {
        for (number, (unit, &core)) in self.units.drain(..).zip(cores).enumerate() {
            self.running.push(Running::start(number, unit, core, self.makings.eal.clone())?);
        }
        // Whoever hears that the router is ready finds every one on its core.
        for running in &mut self.running {
            if let Err(error) = running.wait() {
                tracing::warn!("{error:#}; it runs on any core");
            }
        }
        Ok(())
    }

    /// The cores of the forwarders, in the order of their numbers.
    pub fn cores(&self) -> impl Iterator<Item = usize> + '_ {
        self.running.iter().map(Running::core)
    }

    /// The forwarder of each receive queue of a port; none for a port that is not connected.
    pub fn receivers(&self, port: PortId) -> Vec<usize> {
        let Some(wired) = self.ports.get(&port) else { return Vec::new() };
        let (rx, tx) = wired.queues;
        Layout::new(port, rx, tx, self.exchanges.len()).rx
    }

    /// What further forwarders are made of.
    pub fn makings(&self) -> &Makings {
        &self.makings
    }

    /// Ends the forwarders, which come back; false if one panicked.
    pub fn end(&mut self) -> (Vec<Forwarder>, bool) {
        let all = self.running.len();
        let units: Vec<_> = self.running.drain(..).filter_map(Running::end).collect();
        let complete = units.len() == all;
        (units, complete)
    }

    /// Connects a port while everything runs: it receives from now on, and what is for it is sent.
    ///
    /// # Errors
    /// No memory for rings, or a forwarder that takes nothing; the queues are gone then, so that their
    /// device can be closed.
    pub async fn connect(&mut self, queues: Queues) -> Result<()> {
        let port = queues.port;
        let (laid, link) = self.lay_new(queues)?;
        self.rewire(laid.wires.into_iter().map(plug)).await?;
        self.enter(port, laid.wired, link);
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
            Ok((wires, host)) => {
                let Parts { info, rx, tx, .. } = parts_of(port, wires, wired.spare)?;
                Ok(Queues { port, info, rx, tx, host })
            }
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
        match self.rewire(self.free(ports)).await {
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

    /// For each forwarder: that it sends what has come for these ports, and gives back what it has of them.
    fn free(&self, ports: PortSet) -> impl Iterator<Item = Rewiring> + use<> {
        (0..self.exchanges.len()).map(move |_| {
            let exits = ports.ports().map(Exit::none).collect();
            let wires = Wires { exits, ..Wires::default() };
            Rewiring { detach: ports, wires, ..Rewiring::default() }
        })
    }

    /// Rewires each forwarder, or none. What comes back undoes it.
    async fn rewire(&self, all: impl IntoIterator<Item = Rewiring>) -> Result<Vec<Rewiring>> {
        let new = all.into_iter().map(replacement).collect();
        Ok(rewirings(self.exchanges.exchange(new, None).await?))
    }

    /// Makes the connections of a new port, which wait to be plugged in.
    fn lay_new(&self, queues: Queues) -> Result<(Laid, Option<HostLink>)> {
        let Queues { port, info, rx, tx, host } = queues;
        let layout = Layout::new(port, rx.len(), tx.len(), self.exchanges.len());
        let handovers = self.handovers(port, &layout)?;
        let (mut express, mut link) = (None, None);
        if let Some(interface) = host {
            let (producer, consumer) =
                ring(&self.makings.eal, &format!("express-{}", port.index()), EXPRESS_SIZE)?;
            express = Some(consumer);
            link = Some(HostLink { interface, express: producer });
        }
        Ok((lay(Parts { port, info, rx, tx, express }, layout, handovers), link))
    }

    /// The rings of a layout.
    fn handovers(&self, port: PortId, layout: &Layout) -> Result<Handovers> {
        let one = |(forwarder, own): (usize, &Option<usize>)| {
            let name = || format!("handover-{forwarder}-{}", port.index());
            own.is_none().then(|| ring(&self.makings.eal, &name(), RING_SIZE)).transpose()
        };
        layout.tx.iter().enumerate().map(one).collect()
    }
}

/// Gives every forwarder its part of a port. The rings are those that the layout asks for.
fn lay(parts: Parts, layout: Layout, handovers: Handovers) -> Laid {
    let Parts { port, info, rx, tx, mut express } = parts;
    let (home, queues) = (layout.home, (rx.len(), tx.len()));
    let by_reference = tx.first().is_some_and(TxQueue::supports_multi_segment);
    let replicas = Replicas { mac: info.mac.0, by_reference };
    let mut wires: Vec<Wires> = layout.tx.iter().map(|_| Wires::default()).collect();
    for (queue, forwarder) in rx.into_iter().zip(layout.rx) {
        wires[forwarder].rx.push(RxSource { port, info, queue });
    }
    let mut tx: Vec<Option<TxQueue>> = tx.into_iter().map(Some).collect();
    for (forwarder, (own, ring)) in layout.tx.into_iter().zip(handovers).enumerate() {
        let mut exit = Exit { replicas, ..Exit::none(port) };
        if let Some(queue) = own.and_then(|queue| tx.get_mut(queue)?.take()) {
            exit.path = TxPath::Queue(queue);
        } else if let Some((producer, ring)) = ring {
            exit.path = TxPath::Handover(producer);
            wires[home].inlets.push(Inlet { port: Some(port), ring });
        }
        if forwarder == home {
            exit.express = express.take();
        }
        wires[forwarder].exits.push(exit);
    }
    let wired = Wired { home, queues, spare: tx.into_iter().flatten().collect() };
    Laid { wires, wired }
}

/// A port's part of the wires that forwarders have given back.
fn parts_of(port: PortId, wires: Vec<Wires>, spare: Vec<TxQueue>) -> Result<Parts> {
    let (mut sources, mut tx, mut express) = (Vec::new(), spare, None);
    for Wires { rx, exits, .. } in wires {
        sources.extend(rx);
        for exit in exits {
            express = express.or(exit.express);
            if let TxPath::Queue(queue) = exit.path {
                tx.push(queue);
            }
        }
    }
    let info = sources.first().map(|source| source.info);
    let info = info.with_context(|| format!("{port} had no receive queue"))?;
    let mut rx: Vec<RxQueue> = sources.into_iter().map(|source| source.queue).collect();
    rx.sort_by_key(RxQueue::index);
    tx.sort_by_key(TxQueue::index);
    Ok(Parts { port, info, rx, tx, express })
}

fn plug(wires: Wires) -> Rewiring {
    Rewiring { wires, ..Rewiring::default() }
}

fn replacement(wires: Rewiring) -> Replacement {
    Replacement { wires: Some(wires), ..Replacement::default() }
}

fn rewirings(all: Vec<Replacement>) -> Vec<Rewiring> {
    all.into_iter().filter_map(|old| old.wires).collect()
}

fn ring(eal: &Eal, name: &str, size: usize) -> Result<(Producer, Consumer)> {
    Ring::spsc(eal, name, size).with_context(|| no_memory(name))
}

fn no_memory(name: &str) -> String {
    format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
}
