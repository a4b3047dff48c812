//! The rings between forwarders and slow path workers.

use std::sync::Arc;

use anyhow::{Context, Result};
use dataplane::class::{ByClass, ClassLimits};
use dataplane::next_hop::NextHopTable;
use dataplane::punts::{ClassQueue, Punts, class_rings};
use dataplane::wires::Inlet;
use dpdk::{Eal, Producer};

use super::{RING_SIZE, no_memory, ring};

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
    /// Packets that the forwarder punts.
    pub punted: ByClass<ClassQueue>,
    /// Packets that it is to send.
    pub injector: Producer,
}

impl SlowPathWays {
    /// Between the forwarder with this number, on this NUMA node, and so many workers of a generation; `seed` is for
    /// the choice of what is dropped early.
    pub fn new(
        eal: &Eal,
        (forwarder, node): (usize, Option<usize>),
        (workers, generation): (usize, u32),
        classes: &ByClass<ClassLimits>,
        next_hops: &Arc<NextHopTable>,
        seed: u64,
    ) -> Result<Self> {
        let (mut ways, mut inlets, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for worker in 0..workers {
            let name = format!("{forwarder}-{worker}");
            let (way, punted) =
                class_rings(eal, &name, classes).with_context(|| no_memory(&name))?;
            let name = format!("inject-{worker}-{forwarder}");
            let (injector, inlet) = ring(eal, &name, RING_SIZE, node)?;
            ways.push(way);
            inlets.push(Inlet { port: None, generation, ring: inlet });
            ends.push(WorkerEnds { punted, injector });
        }
        let punts = Punts::new(ways, next_hops.clone(), seed.wrapping_add(forwarder as u64));
        Ok(Self { forwarder: ForwarderEnds { punts, inlets }, workers: ends })
    }
}
