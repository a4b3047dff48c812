//! Other slow path workers, or rings of other lengths to them.
//!
//! ```text
//!   1. rings and places are made, threads begin      what can fail fails here
//!   2. forwarders punt into the new rings            (an exchange, that may fail too)
//!   3. orders go to the new workers, and wait
//!   4. the former workers finish their orders and their rings, and leave their threads
//!   5. engines and host interfaces are dealt out to the new ones, which begin
//!   6. forwarders empty and drop the former rings    (an exchange)
//! ```
//!
//! Between 2 and 5 packets for the slow path wait in the new rings. Of an interface each packet punted before 2 is
//! processed before any punted after it.

use std::sync::Arc;

use control::config::Slowpath;
use dpdk::qsbr::Qsbr;

use super::super::slow_worker::{ClassRates, SlowCounters, SlowWorker, by_worker, places, regroup};
use super::*;

/// Workers that have not begun, in place of others that have ended.
pub struct Replaced {
    /// The workers.
    pub workers: Vec<SlowWorker>,
    /// The generation of the ended ones, whose rings forwarders still have.
    pub former: u32,
}

impl Wiring {
    /// Returns true if these settings ask for other workers or rings.
    pub fn needs_other_workers(&self, wanted: &Slowpath) -> bool {
        let now = &self.factory;
        let lengths = now.classes.iter().map(|class| class.queue);
        now.workers != wanted.workers || !lengths.eq(wanted.classes.iter().map(|class| class.queue))
    }

    /// Replaces all workers by others, which have these counters.
    ///
    /// # Errors
    /// No memory for rings, or a forwarder that takes nothing; everything is as before then.
    pub async fn replace_workers(
        &mut self,
        wanted: &Slowpath,
        (counters, rates): (&[Arc<SlowCounters>], &Arc<ClassRates>),
        qsbr: &Arc<Qsbr>,
    ) -> Result<Replaced> {
        let before = (self.factory.workers, self.factory.generation, self.factory.classes);
        let (places, orders) = places(counters, qsbr)?;
        let factory = &mut self.factory;
        (factory.workers, factory.generation) = (wanted.workers, factory.generation + 1);
        factory.classes = wanted.classes;
        let ends = match self.plug_in_workers().await {
            Ok(ends) => ends,
            Err(error) => {
                let factory = &mut self.factory;
                (factory.workers, factory.generation, factory.classes) = before;
                return Err(error);
            }
        };
        let former = self.workers.replace(orders).await;
        let ends = by_worker(ends, wanted.workers);
        let workers = regroup(former, places, ends, (&wanted.classes, rates));
        Ok(Replaced { workers, former: before.1 })
    }

    /// Has forwarders punt into new rings; returns the workers' ends of these, by forwarder.
    async fn plug_in_workers(&self) -> Result<Vec<Vec<WorkerEnds>>> {
        let (mut rewirings, mut ends) = (Vec::new(), Vec::new());
        for (number, seat) in self.seats.iter().enumerate() {
            let ways = self.factory.slow_path_ways(number, seat.node)?;
            let wires = Wires { inlets: ways.forwarder.inlets, ..Wires::default() };
            let punts = Some(ways.forwarder.punts);
            rewirings.push(Rewiring { punts, wires, ..Rewiring::default() });
            ends.push(ways.workers);
        }
        match self.rewire(rewirings).await {
            Ok(_former) => Ok(ends),
            Err(error) => {
                self.take_out_of(ends).await;
                Err(error)
            }
        }
    }

    /// Has the workers take what forwarders have put into rings that were plugged in for a moment.
    async fn take_out_of(&self, ends: Vec<Vec<WorkerEnds>>) {
        let forwarders = self.exchanges.len();
        let halted = self.workers.halt().await;
        let more = ends.into_iter().flatten().map(|ends| vec![ends]).collect();
        halted.go(Vec::new(), forwarders, more);
    }

    /// Has forwarders drop the rings of workers that have ended.
    pub async fn forget_workers(&self, former: u32) {
        let release = |_| Rewiring { release: Some(former), ..Rewiring::default() };
        if let Err(error) = self.rewire((0..self.exchanges.len()).map(release)).await {
            tracing::warn!(
                "rings of former slow path workers stay until the router ends: {error:#}"
            );
        }
    }
}
