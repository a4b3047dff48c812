//! Creation of workers: at the start, and while the router runs, with other rings.
//!
//! ```text
//!   former workers, each          engines --- by interface ---+
//!   has finished what             host interfaces ------------+--> workers, which have not begun
//!   forwarders have punted        messages to each other -----+
//! ```

use std::collections::BTreeMap;
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use dataplane::class::{ByClass, ClassLimits};
use dataplane::filters::Gate;
use dataplane::interface::InterfaceId;
use dataplane::port::MAX_PORTS;
use dataplane::punts::{owner, owner_of_datagram};
use dataplane::quarantine::Quarantine;
use dataplane::reason::DropReason;
use dataplane::tables::Tables;
use dpdk::qsbr::{self, Qsbr};
use slowpath::SlowPath;

use super::super::buffers::Buffers;
use super::super::wiring::WorkerEnds;
use super::orders::OrderSender;
use super::{
    ClassRates, EventSender, Frame, HandoffQueue, Learner, LearnerShared, OrderQueue, Outbox,
    PuntScheduler, SlowCounters, SlowWorker, handoff_queues, order_queue,
};

/// A worker's place among the threads: its ways from the owner and the other workers.
pub struct Place {
    /// The way to and from the other workers.
    pub handoff_queue: HandoffQueue,
    /// The owner's orders.
    pub orders: OrderQueue,
    /// Reports that no reference into the tables is held.
    pub quiescent: qsbr::Reader,
    /// Its counters.
    pub counters: Arc<SlowCounters>,
}

/// Places for workers that have these counters, and the ways of orders to them.
///
/// # Errors
/// The kernel makes no descriptor, or there is no room for a reader.
pub fn places(
    counters: &[Arc<SlowCounters>],
    qsbr: &Arc<Qsbr>,
) -> Result<(Vec<Place>, Vec<OrderSender>)> {
    let (mut all, mut senders) = (Vec::new(), Vec::new());
    for (handoff_queue, counters) in handoff_queues(counters.len())?.into_iter().zip(counters) {
        let (sender, orders) = order_queue(handoff_queue.doorbell().clone());
        let (quiescent, counters) = (qsbr.register()?, counters.clone());
        all.push(Place { handoff_queue, orders, quiescent, counters });
        senders.push(sender);
    }
    Ok((all, senders))
}

/// The ends of so many workers, each with one of every forwarder, from those of all forwarders.
pub fn by_worker(ends: Vec<Vec<WorkerEnds>>, workers: usize) -> Vec<Vec<WorkerEnds>> {
    let mut ends: Vec<_> = ends.into_iter().map(Vec::into_iter).collect();
    iter::repeat_with(|| ends.iter_mut().filter_map(Iterator::next).collect())
        .take(workers)
        .collect()
}

/// The owners of things among so many engines, by the same rule as forwarders have.
struct Owners(usize);

impl slowpath::Owners for Owners {
    fn of_interface(&self, interface: InterfaceId) -> usize {
        owner(interface.index(), self.0)
    }

    fn of_datagram(&self, from: InterfaceId, addresses: (IpAddr, IpAddr)) -> usize {
        owner_of_datagram(from.index(), addresses, self.0)
    }
}

/// The parts that all workers of a router have in common.
pub struct Common {
    /// For each port that is connected, the forwarder that sends for the slow path.
    pub senders: [Option<usize>; MAX_PORTS],
    /// Buffers for packets made here.
    pub buffers: Buffers,
    /// The way of events to the owner.
    pub events: EventSender,
    /// The tables in which routes are looked up.
    pub tables: Arc<Tables>,
    /// The way of flows that the host begins.
    pub shared: LearnerShared,
    /// The quarantine for packets over which an engine panics.
    pub quarantine: Quarantine,
    /// Time 0 of all engines.
    pub start: Instant,
    /// The classes' turns.
    pub limits: ByClass<ClassLimits>,
    /// The classes' rates.
    pub rates: Arc<ClassRates>,
}

impl Common {
    /// Makes a worker without host interfaces at this place, with this engine and its ends of rings.
    pub fn worker(
        &self,
        place: Place,
        engine: SlowPath<Frame>,
        ends: Vec<WorkerEnds>,
    ) -> SlowWorker {
        let Place { handoff_queue, orders, quiescent, counters } = place;
        let (punted, injectors) = ends.into_iter().map(|ends| (ends.punted, ends.injector)).unzip();
        SlowWorker {
            engine,
            turns: PuntScheduler::new(punted, &self.limits, self.rates.clone()),
            outbox: Outbox {
                injectors,
                senders: self.senders,
                buffers: self.buffers.clone(),
                counters,
                events: self.events.clone(),
                tables: self.tables.clone(),
                hosts: BTreeMap::new(),
                untagged: Vec::new(),
                tagger: self.tables.tagger(),
                handoff_queue,
                gate: Gate::default(),
                learner: Learner::new(self.shared.clone()),
            },
            orders,
            quiescent,
            quarantine: self.quarantine.clone(),
            start: self.start,
            leaving: None,
        }
    }
}

/// Makes workers at these places of those that have left their threads, of which there is at least one, with these
/// ends of rings each.
pub fn regroup(
    former: Vec<SlowWorker>,
    places: Vec<Place>,
    ends: Vec<Vec<WorkerEnds>>,
    (limits, rates): (&ByClass<ClassLimits>, &Arc<ClassRates>),
) -> Vec<SlowWorker> {
    let Some(first) = former.first() else { return Vec::new() };
    let common = Common {
        senders: first.outbox.senders,
        buffers: first.outbox.buffers.clone(),
        events: first.outbox.events.clone(),
        tables: first.outbox.tables.clone(),
        shared: first.outbox.learner.shared(),
        quarantine: first.quarantine.clone(),
        start: first.start,
        limits: *limits,
        rates: rates.clone(),
    };
    let count = places.len();
    let (engines, outboxes): (Vec<_>, Vec<_>) =
        former.into_iter().map(|worker| (worker.engine, worker.outbox)).unzip();
    outboxes.iter().for_each(|outbox| outbox.counters.held.set(0));
    let engines = SlowPath::regroup(engines, count, &Owners(count));
    let mut workers = Vec::new();
    for ((place, engine), ends) in places.into_iter().zip(engines).zip(ends) {
        place.counters.held.set(engine.held() as u64);
        workers.push(common.worker(place, engine, ends));
    }
    for mut outbox in outboxes {
        for (interface, link) in std::mem::take(&mut outbox.hosts) {
            workers[owner(interface.index(), count)].outbox.hosts.insert(interface, link);
        }
        pass_on(&outbox, &workers[0].outbox);
    }
    workers
}

/// Passes on what other former workers had sent to one.
fn pass_on(former: &Outbox, to: &Outbox) {
    while let Some(handoff) = former.handoff_queue.take() {
        let packets = handoff.packets();
        if let Err(handoff) = to.handoff_queue.send(handoff) {
            to.counters.handoffs_taken.add(packets);
            to.counters.drop_handoff(handoff, DropReason::HandoverFull);
        }
    }
}
