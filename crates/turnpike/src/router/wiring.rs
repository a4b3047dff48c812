//! Which forwarder serves which queue, and the rings between them.
//!
//! A port has at best one receive and one transmit queue for each forwarder. Where it has fewer,
//! its queues go to the forwarders in turn, beginning with a different one for each port, and a
//! forwarder without a transmit queue hands its packets over to the one that owns the port's first.

use anyhow::{Context, Result};
use dataplane::distribution::TxPath;
use dataplane::forwarder::{Punts, RxSource};
use dataplane::port::{PortId, PortInfo};
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
    /// The slow path's ends of those for packets that concern the router itself.
    pub control: Vec<Consumer>,
    /// The slow path's ends of those for other packets.
    pub exceptions: Vec<Consumer>,
    /// The slow path's ends of the rings to the forwarders, by forwarder.
    pub injectors: Vec<Producer>,
    /// For each port, the forwarder that sends what the slow path has for it.
    pub homes: Vec<usize>,
    /// The ports' host interfaces, by the ports' order.
    pub hosts: Vec<Option<HostLink>>,
}

/// Connects `count` forwarders, at least one, with the ports' queues and the slow path.
pub fn plan(eal: &Eal, count: usize, ports: Vec<Queues>) -> Result<Plan> {
    let mut plan = Plan {
        forwarders: (0..count).map(|_| Wires::default()).collect(),
        punts: Vec::new(),
        control: Vec::new(),
        exceptions: Vec::new(),
        injectors: Vec::new(),
        homes: Vec::new(),
        hosts: Vec::new(),
    };
    for f in 0..count {
        let (control, consumer) = ring(eal, &format!("control-{f}"), RING_SIZE)?;
        plan.control.push(consumer);
        let (exceptions, consumer) = ring(eal, &format!("exceptions-{f}"), RING_SIZE)?;
        plan.exceptions.push(consumer);
        plan.punts.push(Punts { control, exceptions });
        let (producer, consumer) = ring(eal, &format!("inject-{f}"), RING_SIZE)?;
        plan.injectors.push(producer);
        plan.forwarders[f].inlets.push(consumer);
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
    plan.hosts.push(link);
    Ok(())
}

fn ring(eal: &Eal, name: &str, size: usize) -> Result<(Producer, Consumer)> {
    Ring::spsc(eal, name, size).with_context(|| {
        format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
    })
}
