//! Forwarders: one thread per core, receive, run the graph, send.
//!
//! ```text
//!            +--------------------- forwarder, one core ----------------------+
//!  rx queue  |  batch --> graph --+--> distribution --> tx queue / handover    |
//!            |                    +--> replicator --> distribution             |
//!  of each --+->                  +--> two rings --> slow path                 |
//!  port      |                    +--> free, counted                           |
//!            |  ring from slow path, rings from other forwarders --> distribution
//!            |  priority ring of each port (what the kernel sends) --> distribution
//!            +-----------------------------------------------------------------+
//! ```
//!
//! With an event device (`events.rs`), one forwarder has all queues, and the others get their packets from the device.
//!
//! A forwarder owns its queues, its copy of the graph, its bursts and its counters; it shares only
//! tables that it reads (`tables.rs`), and reports a quiescent state once a round. It takes no
//! lock, makes no system call of its own and allocates nothing while packets flow. Without work it
//! waits as described in `polling.rs`: under load it polls, and an idle one blocks until a device,
//! a ring or the owner wakes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dpdk::{Burst, Consumer, Doorbell, PoolAccesses, WaitSet};

use crate::batch::{BATCH_MAX, Batch, Held};
use crate::counters::{DropsByOrigin, ForwarderCounters};
use crate::distribution::{Distribution, Schedulers};
use crate::drop_watch::Dropped;
use crate::events::EventUnit;
use crate::exchange::Exchange;
pub use crate::exchange::Settings;
use crate::graph::{Ends, Graph, Origin, Shape};
use crate::interface::{InterfaceInfo, MAX_INTERFACES};
use crate::mask::Mask;
use crate::mirror::Copies;
use crate::polling::{self, Idle, Rest, RoundRobin, RxSource, Wait, exchange_infos};
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::punts::Punts;
use crate::quarantine::{Quarantine, guard};
use crate::reason::{DropOrigin, DropReason};
use crate::replicate::{Egress, Replicator};
use crate::shed::{self, Connections, Shedder};
use crate::spread::{Chosen, Input, Spread};

use crate::tap::Taps;
use crate::watch::{Made, Refusal, Watching};
use crate::wires::{Inlet, Rewiring};

/// Rounds timed after an exchange: at full load, 65,536 packets.
const WATCHED: usize = 1024;

/// The longest that a forwarder that ends waits for its event device to return a packet.
const DRAIN: Duration = Duration::from_secs(1);

/// Everything a forwarder owns.
pub struct ForwarderParts {
    /// The steps.
    pub graph: Graph,
    /// The interfaces for which the steps were made, by number; exchanged together with the graph.
    pub interfaces: Vec<InterfaceInfo>,
    /// Conditions for sending packets, and the waiting.
    pub settings: Settings,
    /// Replicates multicast packets.
    pub replicator: Replicator,
    /// The path to the slow path.
    pub punts: Punts,
    /// Reports that this forwarder holds no reference into the tables.
    pub quiescent: dpdk::qsbr::Reader,
    /// Its counters.
    pub counters: Arc<ForwarderCounters>,
    /// The quarantine for packets that cause a step to panic.
    pub quarantine: Quarantine,
    /// The wait set on which it blocks.
    pub waiting: WaitSet,
}

/// A forwarder: create it from its parts, then run it on its thread by [`Forwarder::run`].
pub struct Forwarder {
    parts: ForwarderParts,
    /// The sources of packets.
    rx: Vec<RxSource>,
    /// Rings with packets that only need sending.
    inlets: Vec<Inlet>,
    /// The event device that it takes part in, which has its turn after the inlets.
    events: Option<Box<EventUnit>>,
    /// The paths by which packets leave.
    distribution: Distribution,
    batch: Batch,
    arrivals: Burst,
    turns: RoundRobin,
    idle: Idle,
    shedder: Shedder,
    /// The start of the last round, and whether it found packets: the time until the next one is
    /// busy or idle.
    round_began: u64,
    /// Accesses of its thread to pools, those that are counted.
    pool_accesses: PoolAccesses,
    was_busy: bool,
    /// True for the forwarder of control traffic, which shares its cores.
    is_control: bool,
    exchange: Arc<Exchange>,
}

impl Forwarder {
    /// Returns the form of its graph.
    pub fn shape(&self) -> &Arc<Shape> {
        self.parts.graph.shape()
    }

    /// Returns its receive queues, to be moved to or from another forwarder between two rounds.
    pub fn sources_mut(&mut self) -> &mut Vec<RxSource> {
        &mut self.rx
    }

    /// Creates a forwarder without connections: see [`Forwarder::rewire`].
    pub fn new(mut parts: ForwarderParts) -> Self {
        let exchange = Arc::new(Exchange::new(parts.waiting.doorbell().clone()));
        let mut batch = Batch::new(PortId::FIRST, InterfaceInfo::NONE);
        batch.interfaces = std::mem::take(&mut parts.interfaces);
        batch.interfaces.reserve_exact(MAX_INTERFACES.saturating_sub(batch.interfaces.len()));
        let pool = parts.replicator.pool().clone();
        let mut distribution = Distribution::new(parts.settings.tx);
        distribution.set_taps(Taps::new(pool.clone()));
        distribution.exchange_mirror(&mut parts.graph.companions.mirror_output, &mut None);
        batch.copies = Some(Copies::new(pool));
        Self {
            rx: Vec::with_capacity(MAX_PORTS),
            inlets: Vec::with_capacity(MAX_PORTS),
            events: None,
            distribution,
            parts,
            batch,
            arrivals: Burst::new(),
            turns: RoundRobin::default(),
            idle: Idle::new(),
            shedder: Shedder::new(dpdk::tsc_hz()),
            round_began: dpdk::tsc(),
            pool_accesses: PoolAccesses::default(),
            was_busy: false,
            is_control: false,
            exchange,
        }
    }

    /// Returns the slot by which it gets other steps and settings while it runs.
    pub fn exchange(&self) -> Arc<Exchange> {
        self.exchange.clone()
    }

    /// Runs until `stop` is set, then sends or drops the packets that it holds. The setter of `stop` must wake
    /// it: [`Exchange::wake`].
    pub fn run(&mut self, stop: &AtomicBool) {
        self.parts.quiescent.online();
        self.pool_accesses = dpdk::pool_accesses();
        while !stop.load(Ordering::Relaxed) {
            if self.exchange.is_waiting() {
                self.take_replacement();
            }
            if self.round() > 0 {
                self.idle.found();
            } else {
                self.rest(stop);
            }
        }
        self.finish_events();
        self.parts.quiescent.offline();
        self.shut_down();
    }

    /// Swaps its state with the owner's replacement.
    #[cold]
    fn take_replacement(&mut self) {
        let mut begin = dpdk::tsc();
        let exchange = self.exchange.clone();
        let taken = exchange.serve(|new| {
            if let Some(graph) = &mut new.graph {
                std::mem::swap(graph, &mut self.parts.graph);
                let (next, last) = (&mut self.parts.graph, &mut *graph);
                let distribution = &mut self.distribution;
                distribution.exchange_mirror(
                    &mut next.companions.mirror_output,
                    &mut last.companions.mirror_output,
                );
                std::mem::swap(&mut next.watches, &mut last.watches);
                // A step that panics over another's state starts without it.
                let _ = guard(|| self.parts.graph.take_state(graph));
                let drops = &self.parts.counters.drops;
                let _ = guard(|| graph.release(&mut |held| drop_held(held, drops)));
            }
            if let Some(infos) = &mut new.ports {
                exchange_infos(&mut self.rx, &mut self.batch.interfaces, infos);
            }
            if let Some(settings) = &mut new.settings {
                std::mem::swap(settings, &mut self.parts.settings);
                self.settle();
            }
            if let Some(rewiring) = &mut new.wires {
                self.rewire(rewiring);
            }
            self.exchange_schedulers(&mut new.schedulers);
            if let Some(Watching { watches, made }) = &mut new.watching {
                std::mem::swap(watches, &mut self.parts.graph.watches);
                // Not again, if the exchange is undone because another forwarder is late.
                let made = made.iter_mut().filter(|made| made.outcome == Err(Refusal::NotYet));
                made.for_each(|made| made.outcome = self.try_out(made));
            }
        });
        if !taken {
            return;
        }
        let mut longest = 0;
        for _ in 0..WATCHED {
            if exchange.is_waiting() {
                // The next part of a change is more urgent than the measurement of this one.
                return;
            }
            self.round();
            let end = dpdk::tsc();
            longest = longest.max(end - begin);
            begin = end;
        }
        exchange.set_pause(longest);
    }

    /// Runs a packet made by hand through the graph, and frees it.
    #[cold]
    fn try_out(&mut self, made: &Made) -> Result<(), Refusal> {
        if self.parts.graph.sources() > 0 {
            return Err(Refusal::KeptBySteps);
        }
        let packet = self.parts.replicator.pool().copy_of(&made.frame).ok_or(Refusal::NoBuffer)?;
        let info = self.batch.interfaces.get(made.port.index()).copied();
        self.batch.begin((made.port, info.unwrap_or(InterfaceInfo::NONE)), dpdk::tsc());
        // The batch is empty between two batches.
        self.batch.burst.put(packet).map_err(|_| Refusal::NoBuffer)?;
        // Without it no step copies the packet.
        let copies = self.batch.copies.take();
        let ends = self.run_graph();
        self.batch.copies = copies;
        let counters = &self.parts.counters;
        counters.replicated.add(1);
        let dropped = self.batch.burst.free(ends.drop.0);
        let drop = Dropped::received(DropOrigin::Graph, DropReason::TriedOut, made.port);
        let all = Mask(self.batch.burst.owned());
        let left = counters.drops.free_slots(&drop, &mut self.batch.burst, all);
        // One that is not there any more is in quarantine.
        if dropped + left == 1 { Ok(()) } else { Err(Refusal::Panic) }
    }

    /// Changes the queues of ports: before it runs, or between two rounds. Afterwards `schedulers`
    /// has the previous ones, empty.
    pub fn exchange_schedulers(&mut self, schedulers: &mut Schedulers) {
        self.distribution.exchange_schedulers(schedulers, &self.parts.counters);
    }

    /// Changes its connections: before it runs, or between two rounds. Packets for ports whose
    /// exits change, whether held or in rings, are sent first, so that packets keep their order.
    pub fn rewire(&mut self, rewiring: &mut Rewiring) {
        let Rewiring { stop, drain, detach, release, punts, take, control, events, wires } =
            rewiring;
        if let Some(is_control) = control {
            std::mem::swap(is_control, &mut self.is_control);
        }
        if let Some(events) = events {
            std::mem::swap(events, &mut self.events);
        }
        for (port, info) in wires.infos.drain(..) {
            let known = &mut self.batch.interfaces;
            known.resize(known.len().max(port.index() + 1), InterfaceInfo::NONE);
            known[port.index()] = info;
        }
        if let Some(punts) = punts {
            std::mem::swap(punts, &mut self.parts.punts);
        }
        let (mut rx, inlets) = (std::mem::take(&mut wires.rx), std::mem::take(&mut wires.inlets));
        if *take > 0 {
            (wires.rx, *take) = self.take_from(std::mem::take(&mut rx), *take);
        }
        let ports_of = |rings: bool| {
            let sources = rx.iter().filter(|source| source.input.is_ring() == rings);
            sources.map(|source| source.port).collect()
        };
        let back = (
            ports_of(false),
            ports_of(true),
            inlets.iter().filter_map(|inlet| inlet.port).collect(),
            inlets.iter().find(|inlet| inlet.port.is_none()).map(|inlet| inlet.generation),
        );
        let stopped = |source: &mut RxSource| !source.input.is_ring() && stop.contains(source.port);
        wires.rx.extend(self.rx.extract_if(.., stopped));
        self.receive_all(*drain);
        let drained = |source: &mut RxSource| source.input.is_ring() && drain.contains(source.port);
        wires.rx.extend(self.rx.extract_if(.., drained));
        let is_emptied = !drain.is_empty() || !detach.is_empty() || release.is_some();
        if is_emptied || !wires.exits.is_empty() {
            self.take_in_all();
        }
        if !stop.is_empty() || !drain.is_empty() {
            // Packets that later take another forwarder must not overtake these.
            self.distribution.flush(&self.parts.counters);
        }
        let detached = |inlet: &mut Inlet| match inlet.port {
            Some(port) => detach.contains(port),
            None => *release == Some(inlet.generation),
        };
        wires.inlets.extend(self.inlets.extract_if(.., detached));
        for exit in &mut wires.exits {
            self.distribution.exchange(exit, &self.parts.counters);
            self.parts.replicator.exchange(exit.port, &mut exit.replicas);
        }
        let by_reference = self.parts.replicator.by_reference();
        self.distribution.set_by_reference(by_reference);
        if let Some(copies) = &mut self.batch.copies {
            copies.taps.by_reference = by_reference;
        }
        self.rx.extend(rx);
        self.inlets.extend(inlets);
        (*stop, *drain, *detach, *release) = back;
        self.settle();
    }

    /// Applies other settings, or other sources.
    fn settle(&mut self) {
        let ForwarderParts { settings: Settings { tx, polling }, waiting, .. } = &mut self.parts;
        self.distribution.set_config(*tx);
        let wait = match self.is_control {
            // A polling forwarder would take the core from the slow path.
            true => Wait::Interrupt,
            false => polling.wait_of(self.rx.iter().map(|source| source.port)),
        };
        let has_descriptor =
            |source: &RxSource| source.input.is_ring() || source.input.descriptor().is_some();
        let descriptors = self.rx.iter().filter_map(|source| source.input.descriptor());
        // A descriptor that the kernel does not watch does not count.
        let can_block = waiting.watch(descriptors).is_ok()
            && self.rx.iter().all(has_descriptor)
            && self.events.is_none();
        self.idle.set((wait, polling.moderation), can_block);
        self.turns = RoundRobin::default();
    }

    /// Forwards at most so many packets of sources that are not its own, and sends them. Returns
    /// the sources and the number of packets that they lacked.
    fn take_from(&mut self, sources: Vec<RxSource>, most: usize) -> (Vec<RxSource>, usize) {
        let (first, now, mut missing) = (self.rx.len(), dpdk::tsc(), most);
        self.rx.extend(sources);
        for source in first..self.rx.len() {
            while missing > 0 {
                match self.receive(source, missing.min(BATCH_MAX), now) {
                    0 => break,
                    count => missing = missing.saturating_sub(count),
                }
            }
        }
        self.distribution.flush(&self.parts.counters);
        (self.rx.split_off(first), missing)
    }

    /// Forwards the packets that other forwarders received on these ports, until their rings are
    /// empty.
    fn receive_all(&mut self, ports: PortSet) {
        let now = dpdk::tsc();
        for source in 0..self.rx.len() {
            if self.rx[source].input.is_ring() && ports.contains(self.rx[source].port) {
                while self.receive(source, BATCH_MAX, now) > 0 {}
            }
        }
    }

    /// Empties the rings of their present packets.
    fn take_in_all(&mut self) {
        let now = dpdk::tsc();
        for inlet in 0..self.inlets.len() {
            let mut waiting = self.inlets[inlet].ring.len();
            while waiting > 0 {
                waiting = waiting.saturating_sub(self.take_in(inlet, BATCH_MAX, now).max(1));
            }
        }
    }

    /// Runs one round: every receive queue and every inlet has its turn. Returns the number of
    /// packets found.
    pub fn round(&mut self) -> usize {
        self.parts.quiescent.quiescent();
        let now = dpdk::tsc();
        self.count_cycles(now);
        self.count_pool_accesses();
        let Settings { polling, .. } = &self.parts.settings;
        let mut found = self.distribution.priority(polling, &self.parts.counters);
        let sources = self.rx.len() + self.rings_and_events() + self.parts.graph.sources();
        let budget = polling.budget.max(1).into();
        let mut turns = self.turns;
        let serve = |unit: &mut Self, source, most| unit.serve(source, most, now);
        found += turns.round(self, (sources, budget), Self::quota, serve);
        self.turns = turns;
        self.distribution.flush_due(now, &self.parts.counters);
        found += self.distribution.serve(now, &self.parts.counters);
        self.parts.counters.rounds.add(1);
        self.parts.counters.held.set(self.held());
        self.was_busy = found > 0;
        self.make_way();
        found
    }

    /// The number of rings that it reads, the event device being one.
    #[inline(always)]
    fn rings_and_events(&self) -> usize {
        self.inlets.len() + usize::from(self.events.is_some())
    }

    /// The packets in transmit bursts, in ports' queues and in steps.
    #[inline(always)]
    fn held(&self) -> u64 {
        (self.distribution.held() + self.parts.graph.held()) as u64
    }

    /// Returns true if packets wait for a transmit queue, or in a step for a time.
    fn needs_poll(&self) -> bool {
        self.distribution.needs_poll() || self.parts.graph.is_waiting()
    }

    /// The quota of a source's turn in packets; inlets are numbered after the receive queues, the event device after
    /// them, and steps that emit packets after that.
    #[inline(always)]
    fn quota(&self, source: usize) -> usize {
        let port = match self.rx.get(source) {
            Some(source) => Some(source.port),
            None => self.inlets.get(source - self.rx.len()).and_then(|inlet| inlet.port),
        };
        let quota = self.parts.settings.polling.quota(port);
        // Packets of all queues return from an event device by one source.
        let returns = self.events.is_some() && source == self.rx.len() + self.inlets.len();
        if returns { quota * self.rx.len().max(1) } else { quota }
    }

    /// Runs a source's turn: takes at most so many packets from it, and forwards them.
    #[inline(always)]
    fn serve(&mut self, source: usize, most: usize, now: u64) -> usize {
        let mut taken = 0;
        loop {
            let left = most - taken;
            let (wanted, count) = match self.rx.get(source).map(|source| source.burst) {
                Some(burst) => (left.min(burst), self.receive(source, left.min(burst), now)),
                None => {
                    let (wanted, other) = (left.min(BATCH_MAX), source - self.rx.len());
                    match other.checked_sub(self.rings_and_events()) {
                        None => (wanted, self.take_in(other, wanted, now)),
                        // Once a turn: a step may send packets back to itself.
                        Some(step) => return self.emit(step, wanted, now),
                    }
                }
            };
            taken += count;
            if count < wanted || taken >= most {
                self.note_backlog(source, taken, count < wanted, now);
                return taken;
            }
        }
    }

    /// Records that a source's turn ended after so many packets, and whether the source is empty.
    #[inline(always)]
    fn note_backlog(&mut self, source: usize, taken: usize, is_empty: bool, now: u64) {
        let Some(state) = self.rx.get_mut(source) else { return };
        if is_empty {
            state.backlog.last_turn(taken, now, &self.shedder);
        } else if state.backlog.full_turn(taken) {
            self.shed(source, now);
        }
    }

    /// Takes the packets of a queue beyond its quota, forwards those to be kept and drops the
    /// others: see `shed.rs`.
    #[cold]
    fn shed(&mut self, source: usize, now: u64) {
        let shedding = self.parts.settings.polling.shed;
        let (most, quota) = (self.rx[source].burst, self.quota(source));
        if shedding.percent == 0 || self.rx[source].input.is_ring() {
            return;
        }
        let (mut kept, mut connections) = (0, 0);
        while !shed::is_full(kept, quota) {
            let began = dpdk::tsc();
            if !self.shedder.may(began) {
                return;
            }
            let count = self.take(source, most, now);
            let by_class = shedding.keep.of(&self.batch.burst);
            let more = self.more_to_keep(by_class, shedding.connections);
            let keep = shed::choose(by_class, more, connections, (count, quota));
            connections += keep.without(by_class).count() as usize;
            let others = Mask(self.batch.burst.owned()).without(keep);
            let drop =
                Dropped::received(DropOrigin::Receive, DropReason::Shed, self.rx[source].port);
            let drops = &self.parts.counters.drops;
            let dropped = drops.free_slots(&drop, &mut self.batch.burst, others);
            let end = dpdk::tsc();
            self.shedder.spent(end.wrapping_sub(began), end, shedding.percent);
            kept += count - dropped;
            if kept > 0 {
                self.forward(source, now);
            }
            if count - dropped > count / 2 {
                self.rx[source].backlog.clear();
                return;
            }
            if count < most {
                return;
            }
        }
    }

    /// The packets of the batch to be kept beside those of classes.
    fn more_to_keep(&mut self, by_class: Mask, wanted: Connections) -> Mask {
        match &mut self.parts.graph.companions.shed_filter {
            Some(filter) if wanted != Connections::NONE => {
                let others = Mask(self.batch.burst.owned()).without(by_class);
                filter.keep(&self.batch, others, wanted)
            }
            _ => Mask::EMPTY,
        }
    }

    /// Counts the cycles of the last round, and of the idle time after it.
    #[inline(always)]
    fn count_cycles(&mut self, now: u64) {
        let cycles = now.wrapping_sub(self.round_began);
        self.round_began = now;
        let counters = &self.parts.counters;
        let counter = if self.was_busy { &counters.busy } else { &counters.idle };
        counter.add(cycles);
    }

    /// Counts the accesses to pools since the last time.
    #[inline(always)]
    fn count_pool_accesses(&mut self) {
        let now = dpdk::pool_accesses();
        if now != self.pool_accesses {
            let before = std::mem::replace(&mut self.pool_accesses, now);
            let counters = &self.parts.counters;
            counters.pool_takes.add(now.takes.wrapping_sub(before.takes));
            counters.pool_gives.add(now.gives.wrapping_sub(before.gives));
        }
    }

    /// Receives one batch of at most so many packets from a port and forwards it.
    #[inline(always)]
    fn receive(&mut self, source: usize, most: usize, now: u64) -> usize {
        let count = self.take(source, most, now);
        if count > 0 {
            self.forward(source, now);
        }
        count
    }

    /// Receives one batch of at most so many packets from a port, and counts them.
    #[inline(always)]
    fn take(&mut self, source: usize, most: usize, now: u64) -> usize {
        let source = &mut self.rx[source];
        let batch = &mut self.batch;
        let counters = &self.parts.counters;
        let unusable = source.input.unusable();
        let count = source.input.receive(&mut batch.burst, most);
        let unusable = source.input.unusable() - unusable;
        if unusable > 0 {
            counters.rx(source.port).packets.add(unusable);
            drop_unusable(DropOrigin::Receive, source.port, &mut batch.burst, &counters.drops);
        }
        if count == 0 {
            return 0;
        }
        batch.begin((source.port, source.info), now);
        if source.input.is_ring() {
            counters.spread_in.add(count as u64);
        } else {
            // 64 lengths of 16 bits. Slots without a packet have none.
            let bytes: u32 = batch.lens().iter().map(|&len| u32::from(len)).sum();
            counters.rx(source.port).packets.add(count as u64);
            counters.rx(source.port).bytes.add(bytes.into());
        }
        count
    }

    /// Forwards the batch received from a port.
    #[inline(always)]
    fn forward(&mut self, source: usize, now: u64) {
        if self.rx[source].spread.is_some() {
            self.spread(source);
            if self.batch.burst.is_empty() {
                return;
            }
        }
        let ends = self.run_graph();
        self.finish(ends, now);
    }

    /// Gives packets of the batch received from a port to other forwarders.
    fn spread(&mut self, source: usize) {
        let RxSource { port, input, spread, .. } = &mut self.rx[source];
        let (batch, counters) = (&mut self.batch, &self.parts.counters);
        match spread {
            Some(Spread::Rings(spread)) => {
                let filter = &mut self.parts.graph.companions.spread_filter;
                let chosen =
                    filter.as_mut().map_or(Chosen::NONE, |filter| filter.choose(batch, spread));
                spread.spread(&mut batch.burst, chosen, (*port, counters));
            }
            Some(Spread::Events) => {
                if let Some(events) = &mut self.events {
                    events.enter(&mut batch.burst, (*port, input.says_more()), counters);
                }
            }
            None => {}
        }
    }

    /// Runs the graph on the batch.
    #[inline(always)]
    fn run_graph(&mut self) -> Ends {
        let (batch, graph) = (&mut self.batch, &mut self.parts.graph);
        self.parts.counters.count_batch(batch.burst.len());
        match guard(|| graph.run(batch)) {
            Ok(ends) => ends,
            Err(_) => self.recover(),
        }
    }

    /// Leaves the core to others for a moment if the event device is full: workers or its scheduler may share the core, and
    /// would otherwise make room only after this thread's time slice of milliseconds.
    fn make_way(&mut self) {
        if let Some(events) = &mut self.events
            && std::mem::take(&mut events.was_full)
        {
            std::thread::yield_now();
        }
    }

    /// Runs the event device's turn: takes at most so many packets from it. Returns their number.
    #[inline(never)]
    fn serve_events(&mut self, most: usize, now: u64) -> usize {
        let Some(mut events) = self.events.take() else { return 0 };
        let count = events.port.dequeue(most);
        if count > 0 {
            match events.receiver.is_some() {
                true => self.take_back(&mut events, count, now),
                false => self.work(&mut events, now),
            }
            if events.port.complete() > 0 {
                lose_events(&mut events, &self.parts.counters);
            }
        }
        self.events = Some(events);
        count
    }

    /// Forwards the packets that the event device has given to this worker, a batch for each port that received some.
    fn work(&mut self, events: &mut EventUnit, now: u64) {
        while let Some(loaded) = events.port.load(&mut self.batch.burst) {
            let counters = &self.parts.counters;
            counters.spread_in.add((self.batch.burst.len() + loaded.unusable) as u64);
            let port = PortId::new(loaded.source).unwrap_or(PortId::FIRST);
            if loaded.unusable > 0 {
                let burst = &mut self.batch.burst;
                drop_unusable(DropOrigin::Spread, port, burst, &counters.drops);
            }
            let info = self.batch.interfaces.get(port.index()).copied();
            self.batch.begin((port, info.unwrap_or(InterfaceInfo::NONE)), now);
            let ends = self.run_graph();
            if let Some(copies) = &mut self.batch.copies {
                // Another thread gets the packets.
                copies.taps.separate(Mask(u64::MAX));
            }
            let Batch { burst, out_interface, .. } = &mut self.batch;
            let forwarded = Mask(events.port.forward(burst, ends.transmit.0, out_interface));
            self.parts.counters.handed_over.add(forwarded.count().into());
            let transmit = ends.transmit.without(forwarded);
            self.finish(Ends { transmit, ..ends }, now);
        }
    }

    /// Sends the packets that workers have finished.
    fn take_back(&mut self, events: &mut EventUnit, count: usize, now: u64) {
        let (arrivals, counters) = (&mut self.arrivals, &self.parts.counters);
        counters.taken_in.add(count as u64);
        if events.port.take(arrivals) > 0 {
            drop_unusable(DropOrigin::Transmit, PortId::FIRST, arrivals, &counters.drops);
        }
        if let Some(numbering) = &mut events.receiver {
            counters.reordered.add(numbering.count_reordered(arrivals) as u64);
        }
        let mut out_port = [0; BATCH_MAX];
        for slot in Mask(arrivals.owned()).slots() {
            out_port[slot] = arrivals.tag(slot) as u16;
        }
        self.distribution.accept_arrivals(arrivals, &out_port, now, counters);
    }

    /// Has the event device return all packets, before the forwarder ends. Nothing enters any more: the receiver does not
    /// receive.
    fn finish_events(&mut self) {
        let Some(events) = &self.events else { return };
        let device = events.device();
        if events.receiver.is_some() {
            device.set_closed(true);
        }
        let patience = (dpdk::tsc_hz() as f64 * DRAIN.as_secs_f64()) as u64;
        let mut since = dpdk::tsc();
        while !device.is_finished() && dpdk::tsc() - since < patience {
            self.parts.quiescent.quiescent();
            let now = dpdk::tsc();
            if self.serve_events(BATCH_MAX, now) > 0 {
                since = now;
            } else {
                self.distribution.flush(&self.parts.counters);
                std::thread::yield_now();
            }
        }
    }

    /// Handles the panic of a step: quarantines the packets that cause it, and forwards all others.
    #[cold]
    fn recover(&mut self) -> Ends {
        let ForwarderParts { graph, counters, quarantine, .. } = &mut self.parts;
        graph.resume(&mut self.batch, |batch, slot, message| {
            let interface = batch.interface(slot);
            let (frame, rest) = batch.frame_and_rest(slot);
            let whole = rest.fold(frame.to_vec(), |whole, part| [&whole, part].concat());
            quarantine.put(Some(interface), &message, &whole);
            let drop = Dropped::received(DropOrigin::Graph, DropReason::Quarantined, interface);
            counters.drops.free_slots(&drop, &mut batch.burst, Mask::when(true, slot));
        })
    }

    /// Passes every packet of the batch to the end that the graph selected.
    fn finish(&mut self, ends: Ends, now: u64) {
        if let Some(copies) = &mut self.batch.copies {
            // The receiver of a packet from a ring is its only owner.
            let by_ring =
                if self.distribution.hands_over() { Mask(u64::MAX) } else { ends.slow_path };
            copies.taps.separate(by_ring);
        }
        if !ends.transmit.is_empty() {
            let (burst, ports) = (&mut self.batch.burst, &self.batch.out_interface);
            let counters = &self.parts.counters;
            self.distribution.accept(burst, ends.transmit, ports, now, counters);
        }
        if !ends.replicate.is_empty() {
            let ForwarderParts { replicator, counters, graph, .. } = &mut self.parts;
            let (distribution, companions) = (&mut self.distribution, &mut graph.companions);
            replicator.accept(
                &mut self.batch,
                ends.replicate,
                (companions.copy_filter.as_deref_mut(), companions.tagger.as_deref()),
                &mut Egress { distribution, now, counters },
            );
        }
        if let Some(copies) = &mut self.batch.copies {
            let (distribution, counters) = (&mut self.distribution, &self.parts.counters);
            Egress { distribution, now, counters }.send_copies(copies);
        }
        if !ends.slow_path.is_empty() {
            let (batch, graph) = (&mut self.batch, &mut self.parts.graph);
            let mut filter = graph.companions.router_filter.take();
            let reason = |slot| graph.punt_reason(slot);
            let (by, counters) = (filter.as_deref_mut(), &self.parts.counters);
            self.parts.punts.accept(batch, ends.slow_path, reason, by, counters);
            graph.companions.router_filter = filter;
        }
        let burst = &mut self.batch.burst;
        if !ends.drop.is_empty() {
            burst.free(ends.drop.0);
        }
        let lost = Mask(burst.owned());
        if !lost.is_empty() {
            self.lose(lost);
        }
    }

    /// Drops packets that a step gave to no output.
    #[cold]
    fn lose(&mut self, packets: Mask) {
        let drops = &self.parts.counters.drops;
        self.batch.discard(packets, (DropOrigin::Graph, DropReason::StepLost), drops);
    }

    /// Forwards at most so many packets that a step emits.
    fn emit(&mut self, step: usize, most: usize, now: u64) -> usize {
        self.batch.begin_emitted(now);
        self.batch.full = self.distribution.full();
        let (batch, graph) = (&mut self.batch, &mut self.parts.graph);
        let (origin, count, ends) = match guard(|| graph.emit(step, batch, most)) {
            Ok(emitted) => emitted,
            Err(_) => (Origin::Held, 1, self.recover()),
        };
        if origin == Origin::Made {
            self.parts.counters.replicated.add(count as u64);
        }
        if count > 0 {
            self.parts.counters.count_batch(count);
            self.finish(ends, now);
        }
        self.batch.end();
        count
    }

    /// Takes at most so many packets to be sent from a ring.
    fn take_in(&mut self, inlet: usize, most: usize, now: u64) -> usize {
        let Some(Inlet { port, ring, .. }) = self.inlets.get_mut(inlet) else {
            return self.serve_events(most, now);
        };
        let arrivals = &mut self.arrivals;
        let count = ring.receive(arrivals, most);
        if count == 0 {
            return 0;
        }
        let mut out_port = [0; BATCH_MAX];
        let mask = Mask(arrivals.owned());
        for slot in mask.slots() {
            out_port[slot] = arrivals.tag(slot) as u16;
        }
        let counters = &self.parts.counters;
        counters.taken_in.add(count as u64);
        if port.is_none() {
            self.distribution.refuse(arrivals, &out_port, counters);
        }
        self.distribution.accept_arrivals(arrivals, &out_port, now, counters);
        count
    }

    /// Idle: sends the packets of the transmit bursts, then waits.
    fn rest(&mut self, stop: &AtomicBool) {
        self.distribution.flush(&self.parts.counters);
        match self.idle.rest(dpdk::tsc()) {
            Rest::Poll => std::hint::spin_loop(),
            Rest::Sleep(sleep) => self.sleep(sleep),
            // A full transmit queue sends no notification when it has room again.
            Rest::Block if self.needs_poll() => {
                let sleep = self.idle.short_sleep();
                self.sleep(sleep);
            }
            Rest::Block => self.block(stop),
        }
    }

    fn sleep(&self, sleep: Duration) {
        self.parts.counters.held.set(self.held());
        self.parts.counters.sleeps.add(1);
        std::thread::sleep(sleep);
    }

    /// Blocks until a device, a ring or another thread wakes it.
    #[cold]
    fn block(&mut self, stop: &AtomicBool) {
        let doorbell = self.parts.waiting.doorbell().clone();
        doorbell.listen();
        self.listen(&doorbell);
        // A packet that arrived before it listened does not wake it.
        let is_idle = self.round() == 0
            && !self.exchange.is_waiting()
            && !stop.load(Ordering::Relaxed)
            && !self.needs_poll();
        if is_idle {
            self.wait();
        } else {
            doorbell.ignore();
            self.idle.found();
        }
        self.ignore();
    }

    /// Waits to be woken, without holding resources that another unit waits for.
    fn wait(&mut self) {
        let held = self.held();
        let ForwarderParts { counters, quiescent, waiting, .. } = &mut self.parts;
        counters.held.set(held);
        counters.blocks.add(1);
        counters.blocking.set(1);
        quiescent.offline();
        let begin = dpdk::tsc();
        let may_miss = self.rx.iter().any(|source| source.input.may_miss());
        let due = self.distribution.due().map(|due| time_of(due.saturating_sub(begin)));
        let longest = due.into_iter().chain(may_miss.then_some(polling::LOOK)).min();
        let receive = waiting.wait(longest);
        let blocked = dpdk::tsc().wrapping_sub(begin);
        quiescent.online();
        let woken = waiting.doorbell().ignore();
        counters.blocking.set(0);
        counters.blocked.add(blocked);
        counters.woken_by_receive.add(receive.into());
        counters.woken_by_ring.add(woken.ring.into());
        counters.woken_by_control.add(woken.control.into());
        self.idle.woke(blocked, receive || woken.ring, receive);
    }

    /// Enables wake-ups by every source.
    fn listen(&mut self, doorbell: &Arc<Doorbell>) {
        for source in &mut self.rx {
            match &mut source.input {
                Input::Queue(queue) => queue.arm(),
                // The next round finds the packets.
                Input::Ring(ring) => _ = ring.listen(doorbell),
            }
        }
        let inlets = self.inlets.iter_mut().map(|inlet| &mut inlet.ring);
        inlets.chain(self.distribution.priority_rings()).for_each(|ring| _ = ring.listen(doorbell));
    }

    /// Reverts [`Self::listen`].
    fn ignore(&mut self) {
        for source in &mut self.rx {
            match &mut source.input {
                Input::Queue(queue) => queue.disarm(),
                Input::Ring(ring) => ring.ignore(),
            }
        }
        let inlets = self.inlets.iter_mut().map(|inlet| &mut inlet.ring);
        inlets.chain(self.distribution.priority_rings()).for_each(Consumer::ignore);
    }

    /// Empties every ring into the distribution, sends as much as possible, drops the rest with
    /// reasons. [`Forwarder::run`] ends with it; call it again when the units that fill its rings
    /// have ended too, for packets that arrived meanwhile.
    pub fn shut_down(&mut self) {
        let now = dpdk::tsc();
        for inlet in 0..self.inlets.len() {
            while self.take_in(inlet, BATCH_MAX, now) > 0 {}
        }
        let (burst, counters) = (&mut self.batch.burst, &self.parts.counters);
        for source in self.rx.iter_mut().filter(|source| source.input.is_ring()) {
            let drop = Dropped::received(DropOrigin::Spread, DropReason::Shutdown, source.port);
            while source.input.receive(burst, BATCH_MAX) > 0 {
                let dropped = counters.drops.free_slots(&drop, burst, Mask(u64::MAX));
                counters.spread_in.add(dropped as u64);
            }
        }
        self.distribution.shut_down(counters);
        self.parts.graph.release(&mut |held| drop_held(held, &counters.drops));
        self.parts.counters.held.set(0);
    }
}

/// Drops a packet that a step has kept.
fn drop_held(held: Held, drops: &DropsByOrigin) {
    let drop = Dropped::received(DropOrigin::Graph, DropReason::Shutdown, held.interface());
    drops.free(&drop, held.packet);
}

/// Drops the packets of this port that a burst could not hold.
#[cold]
fn drop_unusable(origin: DropOrigin, port: PortId, burst: &mut Burst, drops: &DropsByOrigin) {
    if let Some(packets) = burst.unusable() {
        let drop = Dropped::received(origin, DropReason::UnusableBuffer, port);
        drops.free_tail(&drop, packets, 0);
    }
}

/// Drops the packets to be sent that an event device has not taken.
#[cold]
fn lose_events(events: &mut EventUnit, counters: &ForwarderCounters) {
    let (origin, reason) = (DropOrigin::Transmit, DropReason::EventDeviceFull);
    while let Some(packet) = events.port.lost().pop() {
        // They were handed over.
        counters.taken_in.add(1);
        let port = PortId::new(packet.tag() as u16).unwrap_or(PortId::FIRST);
        counters.drops.free(&Dropped::sent(origin, reason, port), packet);
    }
}

/// Converts TSC cycles to a time of at least a microsecond.
fn time_of(cycles: u64) -> Duration {
    Duration::from_secs_f64(cycles as f64 / dpdk::tsc_hz() as f64).max(Duration::from_micros(1))
}

#[cfg(test)]
mod tests;
