//! Which forwarder serves which queue, and the rings between them.
//!
//! A port has at best one receive and one transmit queue for each forwarder. Where it has fewer,
//! its queues go to the forwarders in turn, beginning with a different one for each port, and a
//! forwarder without a transmit queue hands its packets over to the one that owns the port's first.

use anyhow::{Context, Result};
use dataplane::distribution::TxPath;
use dataplane::forwarder::RxSource;
use dataplane::port::{PortId, PortInfo};
use dpdk::{Consumer, Eal, Producer, Ring, RxQueue, TxQueue};

/// Packets that a ring between two units holds.
const RING_SIZE: usize = 2048;

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
}

/// The connections of all units.
pub struct Plan {
    /// One for each forwarder.
    pub forwarders: Vec<Wires>,
    /// The forwarders' ends of the rings to the slow path, by forwarder.
    pub punts: Vec<Producer>,
    /// The slow path's ends of these rings.
    pub punted: Vec<Consumer>,
    /// The slow path's ends of the rings to the forwarders, by forwarder.
    pub injectors: Vec<Producer>,
    /// For each port, the forwarder that sends what the slow path has for it.
    pub homes: Vec<usize>,
}

/// Connects `count` forwarders, at least one, with the ports' queues and the slow path.
pub fn plan(eal: &Eal, count: usize, ports: Vec<Queues>) -> Result<Plan> {
    let mut plan = Plan {
        forwarders: (0..count).map(|_| Wires::default()).collect(),
        punts: Vec::new(),
        punted: Vec::new(),
        injectors: Vec::new(),
        homes: Vec::new(),
    };
    for f in 0..count {
        let (producer, consumer) = ring(eal, &format!("punt-{f}"))?;
        plan.punts.push(producer);
        plan.punted.push(consumer);
        let (producer, consumer) = ring(eal, &format!("inject-{f}"))?;
        plan.injectors.push(producer);
        plan.forwarders[f].inlets.push(consumer);
    }
    for port in ports {
        connect(eal, &mut plan, port)?;
    }
    Ok(plan)
}

fn connect(eal: &Eal, plan: &mut Plan, queues: Queues) -> Result<()> {
    let Queues { port, info, rx, tx } = queues;
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
                let (producer, consumer) = ring(eal, &format!("handover-{f}-{}", port.index()))?;
                plan.forwarders[home].inlets.push(consumer);
                TxPath::Handover(producer)
            }
        };
        plan.forwarders[f].paths.push((port, path));
    }
    Ok(())
}

fn ring(eal: &Eal, name: &str) -> Result<(Producer, Consumer)> {
    Ring::spsc(eal, name, RING_SIZE).with_context(|| {
        format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
    })
}
