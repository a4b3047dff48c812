//! Which forwarder serves which queue, and the rings between them.
//!
//! A port has at best one receive and one transmit queue for each forwarder. Where it has fewer,
//! its queues go to the forwarders in turn, beginning with a different one for each port, and a
//! forwarder without a transmit queue hands its packets over to the one that owns the port's first.

use anyhow::{Context, Result};
use dataplane::class::{ByClass, ClassLimits};
use dataplane::distribution::TxPath;
use dataplane::forwarder::RxSource;
use dataplane::port::{PortId, PortInfo};
use dataplane::punts::{Punts, class_rings, owner};
use dpdk::{Consumer, Eal, Producer, Ring, RxQueue, TxQueue};

use super::host::HostInterface;

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

/// One forwarder's connections.
#[derive(Default)]
pub struct Wires {
    /// Receive queues.
    pub rx: Vec<RxSource>,
    /// Rings that it empties.
    pub inlets: Vec<Consumer>,
    /// The way to each port, by the ports' order.
    pub paths: Vec<(PortId, TxPath)>,
    /// The ends of the express rings of ports whose transmit queue it owns.
    pub express: Vec<(PortId, Consumer)>,
}

/// The connections of all units.
pub struct Plan {
    /// One for each forwarder.
    pub forwarders: Vec<Wires>,
    /// The forwarders' ends of the rings to the slow path, by forwarder.
    pub punts: Vec<Punts>,
    /// The slow path's connections.
    pub workers: Vec<WorkerWires>,
    /// For each port, the forwarder that sends what the slow path has for it.
    pub homes: Vec<usize>,
}

/// A slow path worker's connections.
#[derive(Default)]
pub struct WorkerWires {
    /// Its ends of the rings of each class, by forwarder.
    pub punted: Vec<ByClass<Consumer>>,
    /// Its ends of the rings to the forwarders, by forwarder.
    pub injectors: Vec<Producer>,
    /// The host interfaces of the ports that it owns, by the ports' order.
    pub hosts: Vec<Option<HostLink>>,
}

/// How many units there are, and what bounds the rings between them.
pub struct Units<'a> {
    /// Forwarders, at least one.
    pub forwarders: usize,
    /// Slow path workers, at least one.
    pub workers: usize,
    /// The classes of punted packets.
    pub classes: &'a ByClass<ClassLimits>,
    /// For the choice of what is dropped early.
    pub seed: u64,
}

/// Connects the units with the ports' queues and each other.
pub fn plan(eal: &Eal, units: &Units<'_>, ports: Vec<Queues>) -> Result<Plan> {
    let mut plan = Plan {
        forwarders: (0..units.forwarders).map(|_| Wires::default()).collect(),
        punts: Vec::new(),
        workers: (0..units.workers).map(|_| WorkerWires::default()).collect(),
        homes: Vec::new(),
    };
    for f in 0..units.forwarders {
        let mut ways = Vec::new();
        for (w, worker) in plan.workers.iter_mut().enumerate() {
            let name = format!("{f}-{w}");
            let rings = class_rings(eal, &name, units.classes);
            let (ends, punted) = rings.with_context(|| no_memory(&name))?;
            ways.push(ends);
            worker.punted.push(punted);
            let (producer, consumer) = ring(eal, &format!("inject-{w}-{f}"), RING_SIZE)?;
            worker.injectors.push(producer);
            plan.forwarders[f].inlets.push(consumer);
        }
        plan.punts.push(Punts::new(ways, units.seed.wrapping_add(f as u64)));
    }
    for port in ports {
        connect(eal, &mut plan, port)?;
    }
    Ok(plan)
}

fn connect(eal: &Eal, plan: &mut Plan, queues: Queues) -> Result<()> {
    let Queues { port, info, rx, tx, host } = queues;
    let count = plan.forwarders.len();
    let home = port.index() % count;
    plan.homes.push(home);
    for (k, queue) in rx.into_iter().enumerate() {
        plan.forwarders[(home + k) % count].rx.push(RxSource { port, info, queue });
    }
    let mut own: Vec<Option<TxQueue>> = (0..count).map(|_| None).collect();
    for (k, queue) in tx.into_iter().take(count).enumerate() {
        own[(home + k) % count] = Some(queue);
    }
    for (f, queue) in own.into_iter().enumerate() {
        let path = match queue {
            Some(queue) => TxPath::Queue(queue),
            None => {
                let name = format!("handover-{f}-{}", port.index());
                let (producer, consumer) = ring(eal, &name, RING_SIZE)?;
                plan.forwarders[home].inlets.push(consumer);
                TxPath::Handover(producer)
            }
        };
        plan.forwarders[f].paths.push((port, path));
    }
    let link = match host {
        Some(interface) => {
            let name = format!("express-{}", port.index());
            let (express, consumer) = ring(eal, &name, EXPRESS_SIZE)?;
            plan.forwarders[home].express.push((port, consumer));
            Some(HostLink { interface, express })
        }
        None => None,
    };
    let owner = owner(port.index(), plan.workers.len());
    let mut link = link;
    for (w, worker) in plan.workers.iter_mut().enumerate() {
        worker.hosts.push(if w == owner { link.take() } else { None });
    }
    Ok(())
}

fn ring(eal: &Eal, name: &str, size: usize) -> Result<(Producer, Consumer)> {
    Ring::spsc(eal, name, size).with_context(|| no_memory(name))
}

fn no_memory(name: &str) -> String {
    format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
}
