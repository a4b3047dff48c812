//! Counters of the router's units. Each counter has one writer, its unit; any thread may read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dpdk::{Burst, Mbuf, PacketList};

use crate::drop_watch::{DropWatch, Dropped};
use crate::frame::Class;
use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId};
use crate::reason::{DropOrigin, DropReason, PuntClass};

/// A number that one thread raises and others read: a load and a store, no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`; to be called by the counter's owner only, or counts are lost.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Sets the value, for gauges; to be called by the owner only.
    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Packets and bytes (Ethernet frames without FCS).
#[derive(Debug, Default)]
pub struct Traffic {
    /// Packets.
    pub packets: Counter,
    /// Bytes.
    pub bytes: Counter,
}

/// Drops by reason.
#[derive(Debug)]
pub struct Drops([Counter; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl Drops {
    /// Counts `n` packets under this reason.
    #[inline(always)]
    fn add(&self, reason: DropReason, n: u64) {
        self.0[reason.index()].add(n);
    }

    /// Packets dropped for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason.index()].get()
    }
}

/// Drops of a unit outside the graph's steps, by origin and reason. A packet is counted and freed by the same call, which
/// shows it to observers.
#[derive(Debug)]
pub struct DropsByOrigin {
    counts: [Drops; DropOrigin::COUNT],
    /// The observers of its drops.
    pub watch: DropWatch,
}

impl Default for DropsByOrigin {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| Drops::default()), watch: DropWatch::default() }
    }
}

impl DropsByOrigin {
    /// Counts packets that were shown.
    #[inline(always)]
    pub(crate) fn count(&self, (origin, reason): (DropOrigin, DropReason), packets: usize) {
        self.counts[origin.index()].add(reason, packets as u64);
    }

    /// Drops a packet.
    pub fn free(&self, drop: &Dropped, packet: Mbuf) {
        self.see(&drop.with_tag(packet.requested_tag()), || packet.chunks());
        self.count((drop.origin, drop.reason), 1);
    }

    /// Drops packets of a burst; returns their number.
    #[inline]
    pub fn free_slots(&self, drop: &Dropped, burst: &mut Burst, packets: Mask) -> usize {
        if packets.is_empty() {
            return 0;
        }
        if self.watch.is_on() {
            let packets = packets & Mask(burst.owned());
            for slot in packets.slots() {
                let drop = drop.with_tag(burst.requested_tag(slot));
                self.watch.see(&drop, || burst.chunks(slot));
            }
        }
        let freed = burst.free(packets.0);
        self.count((drop.origin, drop.reason), freed);
        freed
    }

    /// Drops the newest packets of a list so that at most `keep` stay; returns the number of dropped ones.
    #[inline]
    pub fn free_tail(&self, drop: &Dropped, list: &mut PacketList, keep: usize) -> usize {
        if list.len() <= keep {
            return 0;
        }
        if self.watch.is_on() {
            for place in keep..list.len() {
                let drop = drop.with_tag(list.requested_tag(place));
                self.watch.see(&drop, || list.chunks(place));
            }
        }
        let freed = list.free_tail(keep);
        self.count((drop.origin, drop.reason), freed);
        freed
    }

    /// Counts a packet that is lost with its bytes, or freed elsewhere, and shows what is left of them.
    pub fn lose<'a, I: Iterator<Item = &'a [u8]>>(&self, drop: &Dropped, chunks: impl Fn() -> I) {
        self.see(drop, chunks);
        self.count((drop.origin, drop.reason), 1);
    }

    /// Shows a packet that is about to be dropped, and counted otherwise.
    #[inline]
    pub(crate) fn see<'a, I: Iterator<Item = &'a [u8]>>(
        &self,
        drop: &Dropped,
        chunks: impl Fn() -> I,
    ) {
        if self.watch.is_on() {
            self.watch.see(drop, chunks);
        }
    }

    /// Counts copies that could not be made, which therefore have no bytes to be shown.
    #[inline]
    pub(crate) fn add_unmade(&self, reason: DropReason, copies: u64) {
        self.counts[DropOrigin::Replicate.index()].add(reason, copies);
    }

    /// Drops of this origin.
    pub fn of(&self, origin: DropOrigin) -> &Drops {
        &self.counts[origin.index()]
    }

    /// Packets dropped for this reason, all origins together.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.counts.iter().map(|drops| drops.get(reason)).sum()
    }
}

/// A forwarder's counters of punted packets of one class.
#[derive(Debug, Default)]
pub struct ClassCounters {
    /// Packets of the class.
    pub offered: Counter,
    /// Dropped before the ring was full.
    pub early: Counter,
    /// Dropped because the ring was full.
    pub full: Counter,
}

/// One class of a port's queue in software on a forwarder, see [`crate::transmit`].
#[derive(Debug, Default)]
pub struct ClassQueueCounters {
    /// Packets that wait now.
    pub waiting: Counter,
    /// Their bytes.
    pub waiting_bytes: Counter,
    /// Largest number of waiting packets.
    pub most: Counter,
    /// Packets that have left the queue.
    pub sent: Counter,
    /// Their bytes.
    pub sent_bytes: Counter,
    /// Dropped because the queue was full.
    pub full: Counter,
    /// Dropped by RED.
    pub red: Counter,
    /// Dropped by CoDel.
    pub codel: Counter,
    /// Marked by RED or CoDel (ECN).
    pub marked: Counter,
    /// The time in the queue of packets that left, a moving average in TSC cycles.
    pub delay: Counter,
    /// The longest such time, in TSC cycles.
    pub delay_most: Counter,
}

/// The counters of a queue in software on one forwarder, by class.
#[derive(Debug, Default)]
pub struct QueueCounters([ClassQueueCounters; Class::COUNT]);

impl QueueCounters {
    /// Those of a class.
    #[inline(always)]
    pub fn class(&self, class: Class) -> &ClassQueueCounters {
        &self.0[class.index()]
    }
}

/// The counters of queues in software, by interface and by the port that sends.
#[derive(Debug, Default)]
struct Queues(Mutex<BTreeMap<(InterfaceId, PortId), Arc<QueueCounters>>>);

/// The counters of one forwarder.
#[derive(Debug)]
pub struct ForwarderCounters {
    rx: [Traffic; MAX_PORTS],
    tx: [Traffic; MAX_PORTS],
    queues: Queues,
    /// Drops outside the graph's steps: rings, transmit queues, defects. Those of steps are counted
    /// by the graph's edges.
    pub drops: DropsByOrigin,
    /// Packets passed to the slow path.
    pub punted: Counter,
    /// Packets for the slow path by class, including refused ones.
    pub classes: [ClassCounters; PuntClass::COUNT],
    /// Packets passed to the forwarder that owns their port's transmit queue.
    pub handed_over: Counter,
    /// Packets received from the slow path and from other forwarders.
    pub taken_in: Counter,
    /// Copies made of multicast packets: for each packet one less than its egress ports.
    pub replicated: Counter,
    /// Received packets passed to other forwarders, see `spread.rs`.
    pub spread_out: Counter,
    /// Packets that other forwarders received and passed to this one.
    pub spread_in: Counter,
    /// Packets that an event device returned behind later ones of their flow, see `events.rs`.
    pub reordered: Counter,
    /// Batches run through the graph, by [`BATCH_FILLS`].
    pub batch_fill: [Counter; BATCH_FILLS.len()],
    /// Packets of these batches.
    pub batched: Counter,
    /// Times the forwarder slept for some microseconds because it had no work.
    pub sleeps: Counter,
    /// Times it blocked because it had no work.
    pub blocks: Counter,
    /// TSC cycles for which it blocked, up to its last wake-up.
    pub blocked: Counter,
    /// 1 while it blocks.
    pub blocking: Counter,
    /// Times that a receive queue woke it.
    pub woken_by_receive: Counter,
    /// Times that packets in a ring woke it.
    pub woken_by_ring: Counter,
    /// Times that another thread woke it: for an exchange, or to end.
    pub woken_by_control: Counter,
    /// Rounds of the loop.
    pub rounds: Counter,
    /// TSC cycles of rounds that found packets.
    pub busy: Counter,
    /// TSC cycles of rounds that found none, and of sleep.
    pub idle: Counter,
    /// Times that it took packets from the ring of a pool, as its own cache was empty.
    pub pool_takes: Counter,
    /// Times that it gave packets back to it, as its cache was full.
    pub pool_gives: Counter,
    /// Packets that it holds now in incomplete transmit bursts, and in ports' queues.
    pub held: Counter,
}

impl Default for ForwarderCounters {
    fn default() -> Self {
        Self {
            rx: std::array::from_fn(|_| Traffic::default()),
            tx: std::array::from_fn(|_| Traffic::default()),
            queues: Queues::default(),
            drops: DropsByOrigin::default(),
            punted: Counter::default(),
            classes: std::array::from_fn(|_| ClassCounters::default()),
            handed_over: Counter::default(),
            taken_in: Counter::default(),
            replicated: Counter::default(),
            spread_out: Counter::default(),
            spread_in: Counter::default(),
            reordered: Counter::default(),
            batch_fill: std::array::from_fn(|_| Counter::default()),
            batched: Counter::default(),
            sleeps: Counter::default(),
            blocks: Counter::default(),
            blocked: Counter::default(),
            blocking: Counter::default(),
            woken_by_receive: Counter::default(),
            woken_by_ring: Counter::default(),
            woken_by_control: Counter::default(),
            rounds: Counter::default(),
            busy: Counter::default(),
            idle: Counter::default(),
            pool_takes: Counter::default(),
            pool_gives: Counter::default(),
            held: Counter::default(),
        }
    }
}

/// Most packets of the batches that are counted together: each the double of the one before.
pub const BATCH_FILLS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

impl ForwarderCounters {
    /// Counts a batch of so many packets that runs through the graph.
    #[inline(always)]
    pub(crate) fn count_batch(&self, packets: usize) {
        let place = (usize::BITS - packets.saturating_sub(1).leading_zeros()) as usize;
        self.batch_fill[place.min(BATCH_FILLS.len() - 1)].add(1);
        self.batched.add(packets as u64);
    }

    /// Returns the number of batches run through the graph.
    pub fn batches(&self) -> u64 {
        self.batch_fill.iter().map(Counter::get).sum()
    }

    /// Received on this port.
    #[inline(always)]
    pub fn rx(&self, port: PortId) -> &Traffic {
        &self.rx[port.index()]
    }

    /// Returns those of an interface's queue in software before a port's device, at 0 if it had none.
    pub fn queue(&self, interface: InterfaceId, port: PortId) -> Arc<QueueCounters> {
        let mut queues = lock(&self.queues.0);
        // An interface added later may have the number of one that is gone.
        queues.retain(|_, counters| Arc::strong_count(counters) > 1);
        queues.entry((interface, port)).or_default().clone()
    }

    /// Returns those of an interface's queues, one for each port that sends for it.
    pub fn queues(&self, interface: InterfaceId) -> Vec<Arc<QueueCounters>> {
        let queues = lock(&self.queues.0);
        let from = queues.range((interface, PortId::FIRST)..);
        let own = from.take_while(|((of, _), _)| *of == interface);
        own.map(|(_, counters)| counters.clone()).collect()
    }

    /// Sent by this port.
    #[inline(always)]
    pub fn tx(&self, port: PortId) -> &Traffic {
        &self.tx[port.index()]
    }
}
