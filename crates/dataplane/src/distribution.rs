//! Distribution: one burst per port, sent when it is full or has waited long enough.
//!
//! A batch leaves the graph with its packets bound for any ports. Each is appended to its port's
//! burst, without a branch per packet; a burst is sent when it reaches its maximum size, or when
//! its oldest packet has waited for the flush timeout, or when the forwarder has nothing else to
//! do. A forwarder sends by its own transmit queues; if a device has too few, one forwarder owns
//! the queue and the others hand their packets over by a ring:
//!
//! ```text
//!  graph --+--> burst of port 0 --> transmit queue
//!          +--> burst of port 1 --> ring --> the forwarder that owns port 1's queue
//! ```
//!
//! A port with `queue` or `shape` has a [`Scheduler`] between burst and transmit queue: see
//! [`crate::transmit`]. Packets from the kernel pass through it too, by their class.
//!
//! Packets that the kernel sends by a port's host interface arrive on the port's priority ring and
//! leave before any burst: routing protocols do not wait for the traffic they route. When the
//! transmit queue is full, these packets stay first in line until it has room, and nothing more is
//! taken from their ring; when the ring is full too, packets wait in the kernel's own queue.

use std::time::Duration;

use dpdk::{Burst, Consumer, PacketList};

use crate::counters::ForwarderCounters;
use crate::drop_watch::Dropped;
use crate::interface::InterfaceId;
use crate::mask::{BATCH_MAX, Mask};
use crate::mirror_sessions::{Losses, MirrorOutput};
use crate::outgoing::Outgoing;
use crate::polling::Polling;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::reason::{DropOrigin, DropReason};
use crate::tap::{Made, Taps};
use crate::transmit::{Scheduler, TX_BURST_MAX, send_by};
use crate::wires::{Exit, TxPath};

/// Conditions for sending a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxConfig {
    /// Packets that make a burst full, 1 to [`TX_BURST_MAX`].
    pub burst: usize,
    /// Longest time for which a packet waits for others to join it.
    pub flush: Duration,
}

impl Default for TxConfig {
    fn default() -> Self {
        Self { burst: 32, flush: Duration::from_micros(50) }
    }
}

/// The bit of a packet's tag that marks a copy of a mirror session on its way to another forwarder.
const COPY: u64 = 1 << 63;

/// Longest wait for a transmit queue that is being passed to another forwarder.
const PATIENCE: Duration = Duration::from_millis(1);

struct PortTx {
    id: PortId,
    path: TxPath,
    priority: Option<Priority>,
    /// The software queue, if the configuration has one.
    scheduler: Option<Box<Scheduler>>,
    /// Arrival time of the burst's oldest packet, in TSC cycles; valid while the burst has packets.
    since: u64,
    /// Counts copies of a mirror session that the port does not take, if it is an analyser's.
    losses: Option<Losses>,
}

/// A path past the bursts.
struct Priority {
    ring: Consumer,
    /// Taken from the ring and not sent yet.
    waiting: PacketList,
}

/// The transmit side of one forwarder.
pub struct Distribution {
    ports: Vec<PortTx>,
    bursts: Vec<PacketList>,
    burst: usize,
    flush_cycles: u64,
    hands_over: bool,
    /// The ports that have a priority ring, by their place in `ports`.
    priority: Vec<usize>,
    /// The ports that have a scheduler, by their place in `ports`.
    scheduled: Vec<usize>,
    /// Mirroring of sent packets, if there are mirror sessions.
    mirror: Option<Box<MirrorOutput>>,
    /// Makes the copies; `None` until it has a pool.
    taps: Option<Taps>,
}

/// The schedulers of a forwarder's ports, one of them or none.
pub type Schedulers = Vec<(PortId, Option<Box<Scheduler>>)>;

impl Distribution {
    /// Makes a distribution without ports.
    pub fn new(config: TxConfig) -> Self {
        let mut distribution = Self {
            // Capacity for all ports, so that a port added while packets flow costs no memory.
            ports: Vec::with_capacity(MAX_PORTS),
            bursts: Vec::with_capacity(MAX_PORTS),
            priority: Vec::with_capacity(MAX_PORTS),
            scheduled: Vec::with_capacity(MAX_PORTS),
            hands_over: false,
            burst: 1,
            flush_cycles: 0,
            mirror: None,
            taps: None,
        };
        distribution.set_config(config);
        distribution
    }

    /// Sets the conditions for sending bursts. A burst that is full by the new ones already is sent
    /// with its next packet, or when it is due.
    pub fn set_config(&mut self, config: TxConfig) {
        let cycles = dpdk::tsc_hz() as f64 * config.flush.as_secs_f64();
        self.burst = config.burst.clamp(1, TX_BURST_MAX);
        self.flush_cycles = cycles as u64;
    }

    /// Sends packets by this path from now on. On return `exit` has the previous path, whose packets have been
    /// sent; those that a queue does not accept within [`PATIENCE`] are dropped.
    pub(crate) fn exchange(&mut self, exit: &mut Exit, counters: &ForwarderCounters) {
        let place = self.place_of(exit.port);
        let (port, burst) = (&mut self.ports[place], &mut self.bursts[place]);
        port.empty(burst, counters);
        std::mem::swap(&mut port.path, &mut exit.path);
        let priority = port.priority.take().map(|priority| priority.ring);
        port.priority = exit.priority.take().map(Priority::new);
        exit.priority = priority;
        let ports = || (0..).zip(&self.ports);
        self.hands_over = ports().any(|(_, port)| matches!(port.path, TxPath::Handover(_)));
        self.priority.clear();
        self.priority
            .extend(ports().filter_map(|(place, port)| port.priority.as_ref().map(|_| place)));
    }

    /// Returns the index of a port, which is added if necessary.
    fn place_of(&mut self, port: PortId) -> usize {
        let place = port.index();
        while self.ports.len() <= place
            && let Some(id) = PortId::new(self.ports.len() as u16)
        {
            let (path, priority, scheduler) = (TxPath::None, None, None);
            let losses = self.mirror.as_ref().and_then(|mirror| mirror.losses(id));
            self.ports.push(PortTx { id, path, priority, scheduler, since: 0, losses });
            self.bursts.push(PacketList::new());
        }
        place
    }

    /// Gives these ports these schedulers; on return `schedulers` has the previous ones, empty. Waiting packets
    /// move to the new scheduler. If a port has none any more, they are sent; those that the device does not
    /// accept within [`PATIENCE`] are dropped.
    pub(crate) fn exchange_schedulers(
        &mut self,
        schedulers: &mut Schedulers,
        counters: &ForwarderCounters,
    ) {
        for (port, scheduler) in schedulers {
            let place = self.place_of(*port);
            let (port, burst) = (&mut self.ports[place], &mut self.bursts[place]);
            match (&mut port.scheduler, &mut *scheduler) {
                (Some(old), Some(new)) => new.take_over(old, dpdk::tsc(), (port.id, counters)),
                (Some(old), None) => {
                    old.set_unlimited(true);
                    port.empty(burst, counters);
                    if let Some(old) = &mut port.scheduler {
                        old.set_unlimited(false);
                    }
                }
                (None, _) => (),
            }
            std::mem::swap(&mut port.scheduler, scheduler);
        }
        self.scheduled.clear();
        let scheduled = (0..).zip(&self.ports).filter(|(_, port)| port.scheduler.is_some());
        self.scheduled.extend(scheduled.map(|(place, _)| place));
    }

    /// Sends the packets of the ports' queues that may leave now. Returns how many packets left.
    #[inline]
    pub(crate) fn serve(&mut self, now: u64, counters: &ForwarderCounters) -> usize {
        let mut sent = 0;
        for &place in &self.scheduled {
            sent += self.ports[place].serve(now, counters);
        }
        sent
    }

    /// Returns the time at which the first packet that waits for its port's rate may leave, in TSC
    /// cycles; `None` if none waits.
    pub(crate) fn due(&self) -> Option<u64> {
        let due = |&place: &usize| self.ports[place].scheduler.as_ref()?.due();
        self.scheduled.iter().filter_map(due).min()
    }

    /// Sends packets of the priority rings, as far as the transmit queues accept them and at most each port's
    /// quota. Returns the number of packets taken from the rings.
    #[inline]
    pub(crate) fn priority(&mut self, polling: &Polling, counters: &ForwarderCounters) -> usize {
        let mut taken = 0;
        for at in 0..self.priority.len() {
            let place = self.priority[at];
            let port = &mut self.ports[place];
            let quota = polling.quota(Some(port.id));
            taken += match &self.mirror {
                Some(mirror) if mirror.ports.contains(port.id) => {
                    self.mirror_priority(place, quota, counters)
                }
                _ => port.send_priority(quota, counters),
            };
        }
        taken
    }

    /// Sends packets of a port's priority ring, and copies of them for its outward mirror session. Returns the number of
    /// packets taken from the ring.
    #[cold]
    fn mirror_priority(
        &mut self,
        place: usize,
        most: usize,
        counters: &ForwarderCounters,
    ) -> usize {
        let port = &mut self.ports[place];
        port.send_waiting(counters);
        let id = port.id;
        let priority = port.priority.as_mut().filter(|priority| priority.waiting.is_empty());
        let (Some(priority), Some(mirror)) = (priority, &mut self.mirror) else { return 0 };
        let Some(mut burst) = mirror.host.take() else { return 0 };
        let taken = priority.ring.receive(&mut burst, most.min(BATCH_MAX));
        counters.taken_in.add(taken as u64);
        let (all, by) = (Mask(burst.owned()), [id.index() as u16; BATCH_MAX]);
        self.mirror(&mut burst, all, &by, dpdk::tsc(), counters);
        let port = &mut self.ports[place];
        if let Some(priority) = &mut port.priority {
            burst.move_to(all.0, &mut priority.waiting);
        }
        port.send_waiting(counters);
        if let Some(mirror) = &mut self.mirror {
            mirror.host = Some(burst);
        }
        taken
    }

    /// The priority rings: packets from the kernel.
    pub(crate) fn priority_rings(&mut self) -> impl Iterator<Item = &mut Consumer> {
        self.ports.iter_mut().filter_map(|port| Some(&mut port.priority.as_mut()?.ring))
    }

    /// Returns true if packets wait for a transmit queue, or the device for another call.
    pub(crate) fn needs_poll(&self) -> bool {
        let stuck = |port: &PortTx| match &port.path {
            TxPath::Queue(queue) => {
                queue.needs_poll() || port.scheduler.as_ref().is_some_and(|queue| queue.is_stuck())
            }
            TxPath::Handover(_) | TxPath::None => false,
        };
        self.in_bursts() > 0 || self.ports.iter().any(stuck)
    }

    /// Sets the maker of copies for outward mirror sessions.
    pub(crate) fn set_taps(&mut self, taps: Taps) {
        self.taps = Some(taps);
    }

    /// Sets the ports whose device accepts packets of several buffers.
    pub(crate) fn set_by_reference(&mut self, ports: PortSet) {
        if let Some(taps) = &mut self.taps {
            taps.by_reference = ports;
        }
    }

    /// Gives the graph that ends its mirroring of sent packets back, and takes that of the next.
    pub(crate) fn exchange_mirror(
        &mut self,
        next: &mut Option<Box<MirrorOutput>>,
        last: &mut Option<Box<MirrorOutput>>,
    ) {
        std::mem::swap(&mut self.mirror, last);
        std::mem::swap(&mut self.mirror, next);
        for port in &mut self.ports {
            port.losses = self.mirror.as_ref().and_then(|mirror| mirror.losses(port.id));
        }
    }

    /// Returns true if packets of some ports leave by a ring to another forwarder.
    pub(crate) fn hands_over(&self) -> bool {
        self.hands_over
    }

    /// Sends and counts copies of mirror sessions.
    pub(crate) fn send_taps(&mut self, taps: &mut Taps, now: u64, counters: &ForwarderCounters) {
        if !taps.take_used() {
            return;
        }
        let lost = taps.take_lost();
        counters.replicated.add(lost);
        counters.drops.add_unmade(DropReason::MirrorLost, lost);
        for made in taps.made() {
            let all = Mask(made.packets.burst.owned());
            counters.replicated.add(u64::from(all.count()));
            self.refuse_copies(made, all, counters);
            let Outgoing { burst, out_interface } = &mut made.packets;
            let rest = Mask(burst.owned());
            if self.hands_over {
                rest.slots().for_each(|slot| {
                    burst.set_tag(slot, COPY | u64::from(out_interface[slot]));
                });
            }
            self.append(burst, rest, out_interface, now, counters);
        }
    }

    /// Drops copies for ports that have other traffic and are full: it comes first.
    fn refuse_copies(&self, made: &mut Made, all: Mask, counters: &ForwarderCounters) {
        let Some(mirror) = &self.mirror else { return };
        let Made { packets: Outgoing { burst, out_interface }, sessions, .. } = made;
        let is_late = |slot: usize| {
            let place = usize::from(out_interface[slot]);
            let is_shared = self.ports.get(place).is_some_and(|port| port.losses.is_none());
            is_shared && self.bursts.get(place).is_some_and(|waiting| waiting.len() >= self.burst)
        };
        let late = all.filter(is_late);
        if late.is_empty() {
            return;
        }
        late.slots().for_each(|slot| mirror.outward.lose(sessions[slot].into()));
        for port in self.ports.iter().filter(|port| port.losses.is_none()) {
            let own = late.filter(|slot| usize::from(out_interface[slot]) == port.id.index());
            let why = DropReason::MirrorLost;
            let drop = Dropped::sent(DropOrigin::Replicate, why, port.id);
            counters.drops.free_slots(&drop, burst, own);
        }
    }

    /// Copies packets that are about to leave by ports with outward mirror sessions. Packets that another forwarder
    /// sends are copied there.
    #[cold]
    fn mirror(
        &mut self,
        packets: &mut Burst,
        mask: Mask,
        out_interface: &[u16; BATCH_MAX],
        now: u64,
        counters: &ForwarderCounters,
    ) {
        let (Some(mut mirror), Some(mut taps)) = (self.mirror.take(), self.taps.take()) else {
            return;
        };
        for port in mirror.ports.ports() {
            let place = self.ports.get(port.index());
            if place.is_some_and(|port| matches!(port.path, TxPath::Queue(_))) {
                let own = mask.filter(|slot| usize::from(out_interface[slot]) == port.index());
                mirror.outward.copy(packets, &mut taps, own, port);
            }
        }
        self.mirror = Some(mirror);
        self.send_taps(&mut taps, now, counters);
        self.taps = Some(taps);
    }

    /// Drops packets of the slow path for the ports of analysers: reports of groups, for example.
    pub(crate) fn refuse(
        &self,
        packets: &mut Burst,
        out_interface: &[u16; BATCH_MAX],
        counters: &ForwarderCounters,
    ) {
        let Some(mirror) = &self.mirror else { return };
        for port in mirror.destinations.ports() {
            let own = |slot: usize| usize::from(out_interface[slot]) == port.index();
            let own = Mask(packets.owned()).filter(own);
            let why = DropReason::MirrorDestination;
            let drop = Dropped::sent(DropOrigin::Transmit, why, port);
            counters.drops.free_slots(&drop, packets, own);
        }
    }

    /// Moves the packets of `mask` out of `packets` into the bursts of their ports (by `out_interface`), and
    /// sends full bursts. `now` in TSC cycles.
    pub(crate) fn accept(
        &mut self,
        packets: &mut Burst,
        mask: Mask,
        out_interface: &[u16; BATCH_MAX],
        now: u64,
        counters: &ForwarderCounters,
    ) {
        if self.mirror.is_some() {
            self.mirror(packets, mask, out_interface, now, counters);
        }
        if self.hands_over {
            // The forwarder that receives a packet by a ring learns the port from its tag.
            for slot in mask.slots() {
                packets.set_tag(slot, u64::from(out_interface[slot]));
            }
        }
        self.append(packets, mask, out_interface, now, counters);
    }

    /// Takes packets from a ring, whose tags name their ports, like [`Self::accept`]; copies of mirror sessions, which
    /// another forwarder has made, are not copied again.
    pub(crate) fn accept_arrivals(
        &mut self,
        packets: &mut Burst,
        out_interface: &[u16; BATCH_MAX],
        now: u64,
        counters: &ForwarderCounters,
    ) {
        let all = Mask(packets.owned());
        let copies = match &self.mirror {
            Some(_) => all.filter(|slot| packets.tag(slot) & COPY != 0),
            None => Mask::EMPTY,
        };
        self.append(packets, copies, out_interface, now, counters);
        self.accept(packets, all.without(copies), out_interface, now, counters);
    }

    /// Appends packets with tags to the bursts of their ports, and sends full bursts.
    #[inline(always)]
    fn append(
        &mut self,
        packets: &mut Burst,
        mask: Mask,
        out_interface: &[u16; BATCH_MAX],
        now: u64,
        counters: &ForwarderCounters,
    ) {
        self.start_clocks(now);
        let homeless = packets.append_to(mask.0, out_interface, &mut self.bursts);
        if homeless != 0 {
            drop_homeless(packets, Mask(homeless), out_interface, counters);
        }
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            if burst.len() >= self.burst {
                port.send(burst, self.burst, counters);
                port.since = now;
            }
        }
    }

    /// Sets the time of the oldest packet of bursts that were empty.
    fn start_clocks(&mut self, now: u64) {
        for (port, burst) in self.ports.iter_mut().zip(&self.bursts) {
            if burst.is_empty() {
                port.since = now;
            }
        }
    }

    /// Sends the bursts whose oldest packet has waited long enough.
    pub(crate) fn flush_due(&mut self, now: u64, counters: &ForwarderCounters) {
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            if !burst.is_empty() && now.wrapping_sub(port.since) >= self.flush_cycles {
                port.send(burst, 1, counters);
                port.since = now;
            } else if let TxPath::Queue(queue) = &mut port.path {
                queue.poll();
            }
        }
    }

    /// Sends all waiting packets.
    pub(crate) fn flush(&mut self, counters: &ForwarderCounters) {
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            if !burst.is_empty() {
                port.send(burst, 1, counters);
            }
        }
    }

    /// Packets that wait in bursts and in queues.
    pub(crate) fn held(&self) -> usize {
        let queued = |&place: &usize| self.ports[place].scheduler.as_ref().map_or(0, |q| q.len());
        self.in_bursts() + self.scheduled.iter().map(queued).sum::<usize>()
    }

    /// The ports whose device refuses packets: a whole burst waits for it.
    pub(crate) fn full(&self) -> PortSet {
        let ports = self.ports.iter().zip(&self.bursts);
        let queued = |port: &PortTx| port.scheduler.as_ref().map_or(0, |queue| queue.len());
        let full = ports.filter(|(port, burst)| burst.len() + queued(port) >= self.burst);
        full.map(|(port, _)| port.id).collect()
    }

    /// Packets that wait in bursts.
    fn in_bursts(&self) -> usize {
        let waiting = |&place: &usize| self.ports[place].waiting();
        self.bursts.iter().map(PacketList::len).sum::<usize>()
            + self.priority.iter().map(waiting).sum::<usize>()
    }

    /// Drops the packets that could not be sent, at shutdown.
    pub(crate) fn shut_down(&mut self, counters: &ForwarderCounters) {
        while self.priority(&Polling::default(), counters) > 0 {}
        self.flush(counters);
        for (port, burst) in self.ports.iter_mut().zip(&mut self.bursts) {
            port.drop_all(burst, DropReason::Shutdown, counters);
        }
    }
}

/// Drops packets for ports that this router does not have.
#[cold]
fn drop_homeless(
    packets: &mut Burst,
    homeless: Mask,
    out_interface: &[u16; BATCH_MAX],
    counters: &ForwarderCounters,
) {
    let why = (DropOrigin::Transmit, DropReason::PortDown);
    for slot in homeless.slots() {
        // The number of a port of another kind of packet would be a defect of a step.
        let interface = InterfaceId::new(out_interface[slot]).unwrap_or(InterfaceId::FIRST);
        let drop = Dropped::sent(why.0, why.1, interface);
        counters.drops.free_slots(&drop, packets, Mask::when(true, slot));
    }
}

impl Priority {
    fn new(ring: Consumer) -> Self {
        Self { ring, waiting: PacketList::new() }
    }

    /// Takes more packets from the ring, up to this number.
    fn take(&mut self, most: usize, counters: &ForwarderCounters) -> usize {
        let taken = self.ring.take(&mut self.waiting, most.min(TX_BURST_MAX));
        counters.taken_in.add(taken as u64);
        taken
    }
}

impl PortTx {
    fn waiting(&self) -> usize {
        self.priority.as_ref().map_or(0, |priority| priority.waiting.len())
    }

    /// Sends at most `most` packets of the priority ring, as far as the queue accepts them.
    fn send_priority(&mut self, most: usize, counters: &ForwarderCounters) -> usize {
        let (Some(priority), TxPath::Queue(queue)) = (&mut self.priority, &mut self.path) else {
            return 0;
        };
        if let Some(scheduler) = &mut self.scheduler {
            let (now, of) = (dpdk::tsc(), (self.id, counters));
            let mut taken = 0;
            while taken < most {
                let count = priority.take(most - taken, counters);
                if priority.waiting.is_empty() {
                    break;
                }
                taken += count;
                scheduler.offer(&mut priority.waiting, now, of);
                scheduler.serve(queue, now, of);
            }
            return taken;
        }
        let mut taken = 0;
        while priority.waiting.is_empty() && taken < most {
            let count = priority.take(most - taken, counters);
            if count == 0 {
                return taken;
            }
            taken += count;
            send_by(queue, &mut priority.waiting, self.id, counters);
        }
        if taken == 0 {
            send_by(queue, &mut priority.waiting, self.id, counters);
        }
        taken
    }

    /// Sends packets taken from the priority ring, as far as the queue accepts them.
    fn send_waiting(&mut self, counters: &ForwarderCounters) {
        let (Some(priority), TxPath::Queue(queue)) = (&mut self.priority, &mut self.path) else {
            return;
        };
        match &mut self.scheduler {
            Some(scheduler) => {
                let (now, of) = (dpdk::tsc(), (self.id, counters));
                scheduler.offer(&mut priority.waiting, now, of);
                scheduler.serve(queue, now, of);
            }
            None => _ = send_by(queue, &mut priority.waiting, self.id, counters),
        }
    }

    /// Sends from the burst while it has at least `least` packets and the queue accepts them. Packets that a
    /// full queue refuses wait for the next round; those beyond one maximal burst are dropped, newest first.
    fn send(&mut self, burst: &mut PacketList, least: usize, counters: &ForwarderCounters) {
        // A queue that was full for the priority packets is full for the burst, too.
        let full = self.waiting() > 0;
        match &mut self.path {
            TxPath::Queue(queue) => {
                if let Some(scheduler) = &mut self.scheduler {
                    let (now, of) = (dpdk::tsc(), (self.id, counters));
                    scheduler.offer(burst, now, of);
                    scheduler.serve(queue, now, of);
                    return;
                }
                while !full && burst.len() >= least.max(1) {
                    if send_by(queue, burst, self.id, counters) == 0 {
                        break;
                    }
                }
                if burst.len() > TX_BURST_MAX {
                    self.lose(DropReason::TxFull, (burst, TX_BURST_MAX), counters);
                }
            }
            TxPath::Handover(ring) => {
                counters.handed_over.add(ring.send(burst) as u64);
                self.lose(DropReason::HandoverFull, (burst, 0), counters);
            }
            TxPath::None => self.lose(DropReason::PortDown, (burst, 0), counters),
        }
    }

    /// Drops the packets of a burst beyond so many; copies of a mirror session under a reason of their own.
    fn lose(
        &self,
        why: DropReason,
        (burst, keep): (&mut PacketList, usize),
        counters: &ForwarderCounters,
    ) {
        let losses = self.losses.as_ref().filter(|_| why != DropReason::Shutdown);
        let why = if losses.is_some() { DropReason::MirrorLost } else { why };
        let drop = Dropped::sent(DropOrigin::Transmit, why, self.id);
        let dropped = counters.drops.free_tail(&drop, burst, keep);
        if let Some(losses) = losses {
            losses.add(dropped as u64);
        }
    }

    /// Sends the packets of its queue that may leave. Returns how many packets left.
    fn serve(&mut self, now: u64, counters: &ForwarderCounters) -> usize {
        match (&mut self.scheduler, &mut self.path) {
            (Some(scheduler), TxPath::Queue(queue)) if !scheduler.is_empty() => {
                scheduler.serve(queue, now, (self.id, counters))
            }
            _ => 0,
        }
    }

    /// Sends all packets in progress as far as the queue accepts them; drops the rest.
    fn empty(&mut self, burst: &mut PacketList, counters: &ForwarderCounters) {
        let begin = dpdk::tsc();
        let patience = (dpdk::tsc_hz() as f64 * PATIENCE.as_secs_f64()) as u64;
        loop {
            self.send_priority(usize::MAX, counters);
            self.send(burst, 1, counters);
            self.serve(dpdk::tsc(), counters);
            let priority = self.priority.as_ref();
            let more = priority.is_some_and(|e| !e.waiting.is_empty() || !e.ring.is_empty())
                || self.scheduler.as_ref().is_some_and(|queue| !queue.is_empty());
            if !more && burst.is_empty() || dpdk::tsc() - begin > patience {
                break;
            }
        }
        self.drop_all(burst, DropReason::TxFull, counters);
    }

    /// Drops all packets that have not left yet.
    fn drop_all(&mut self, burst: &mut PacketList, why: DropReason, counters: &ForwarderCounters) {
        self.lose(why, (burst, 0), counters);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.drop_all(why, (self.id, counters));
        }
        if let Some(priority) = &mut self.priority {
            let drop = Dropped::sent(DropOrigin::Transmit, why, self.id);
            loop {
                counters.drops.free_tail(&drop, &mut priority.waiting, 0);
                if priority.take(TX_BURST_MAX, counters) == 0 {
                    break;
                }
            }
        }
    }
}
