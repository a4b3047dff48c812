//! Forwarders: one thread per core, receive, run the graph, send, never wait.
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
//! A forwarder owns its queues, its copy of the graph, its bursts and its counters; it shares only
//! tables that it reads (`tables.rs`), and reports a quiescent state once a round. It takes no
//! lock, makes no system call of its own and allocates nothing while packets flow. When it finds
//! nothing to do for a while it sleeps, for some tens of microseconds at most, so that a router and
//! its hosts can share few cores; under load it polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dpdk::{Burst, Consumer, RxQueue};

use crate::batch::{BATCH_MAX, Batch};
use crate::counters::ForwarderCounters;
use crate::distribution::{Distribution, TxConfig};
use crate::exchange::Exchange;
use crate::graph::{Ends, Graph, Shape};
use crate::interface::{InterfaceInfo, MAX_INTERFACES};
use crate::mask::Mask;
use crate::mirror::Copies;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::punts::Punts;
use crate::quarantine::{Quarantine, guard};
use crate::reason::DropReason;
use crate::replicate::{Replicator, Way};
use crate::spread::{Input, Spreader};
use crate::wires::{Inlet, Rewiring};

/// A receive queue, or a ring in its place, and the port it belongs to.
pub struct RxSource {
    /// The port.
    pub port: PortId,
    /// What the steps need to know of it.
    pub info: InterfaceInfo,
    /// The queue or ring, this forwarder's own.
    pub input: Input,
    /// Packets taken from it at once, 1 to [`BATCH_MAX`].
    pub burst: usize,
    /// Gives received packets to other forwarders.
    pub spread: Option<Spreader>,
}

impl RxSource {
    /// A receive queue whose packets this forwarder keeps.
    pub fn of_queue(port: PortId, info: InterfaceInfo, queue: RxQueue) -> Self {
        Self { port, info, input: Input::Queue(queue), burst: BATCH_MAX, spread: None }
    }

    /// What another forwarder has received and spread.
    pub fn of_ring(port: PortId, info: InterfaceInfo, ring: Consumer) -> Self {
        Self { port, info, input: Input::Ring(ring), burst: BATCH_MAX, spread: None }
    }
}

/// Rounds timed after an exchange: at full load, 65,536 packets.
const WATCHED: usize = 1024;

/// Gives each source what is known of its port's own interface now, and the batch what is known of all, and
/// leaves what was known.
fn exchange_infos(
    sources: &mut [RxSource],
    known: &mut Vec<InterfaceInfo>,
    infos: &mut [InterfaceInfo],
) {
    // There is room for all: see `Forwarder::new`.
    known.resize(infos.len().max(known.len()), InterfaceInfo::NONE);
    let mut before = [None; MAX_PORTS];
    for source in sources {
        let index = source.port.index();
        if let Some(new) = infos.get(index) {
            // A port may have several queues here, which know the same.
            before[index].get_or_insert(source.info);
            source.info = *new;
        }
    }
    std::iter::zip(infos.iter_mut(), known).for_each(|(info, known)| std::mem::swap(info, known));
    for (info, before) in infos.iter_mut().zip(before) {
        *info = before.unwrap_or(*info);
    }
}

/// When an idle forwarder sleeps, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Rounds without a packet before the first sleep.
    pub spin_rounds: u32,
    /// The first sleep; each next one is twice as long.
    pub first_sleep: Duration,
    /// The longest sleep; zero means never to sleep.
    pub longest_sleep: Duration,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self {
            spin_rounds: 200,
            first_sleep: Duration::from_micros(2),
            longest_sleep: Duration::from_micros(50),
        }
    }
}

/// Everything a forwarder owns.
pub struct ForwarderParts {
    /// The steps.
    pub graph: Graph,
    /// When packets leave.
    pub tx: TxConfig,
    /// Makes packets to groups as many as they have ports to leave by.
    pub replicator: Replicator,
    /// The way to the slow path.
    pub punts: Punts,
    /// Reports that this forwarder holds no reference into the tables.
    pub quiescent: dpdk::qsbr::Reader,
    /// What it counts.
    pub counters: Arc<ForwarderCounters>,
    /// Where packets go over which a step panics.
    pub quarantine: Quarantine,
    /// When it sleeps.
    pub idle: IdlePolicy,
}

/// A forwarder: make it from its parts, then [`Forwarder::run`] it on its thread.
pub struct Forwarder {
    parts: ForwarderParts,
    /// Where packets come from.
    rx: Vec<RxSource>,
    /// Rings with packets that only need sending.
    inlets: Vec<Inlet>,
    /// Where packets leave.
    distribution: Distribution,
    batch: Batch,
    arrivals: Burst,
    idle_rounds: u32,
    sleep: Duration,
    /// When the last round began and whether it found packets: the time until the next one is busy or idle.
    round_began: u64,
    was_busy: bool,
    exchange: Arc<Exchange>,
}

impl Forwarder {
    /// The form of its graph.
    pub fn shape(&self) -> &Arc<Shape> {
        self.parts.graph.shape()
    }

    /// Its receive queues, to be given to another forwarder or taken from one between two rounds.
    pub fn sources_mut(&mut self) -> &mut Vec<RxSource> {
        &mut self.rx
    }

    /// A forwarder that has not run yet and has no connections: see [`Forwarder::rewire`].
    pub fn new(parts: ForwarderParts) -> Self {
        let sleep = parts.idle.first_sleep;
        let mut batch = Batch::new(PortId::FIRST, InterfaceInfo::NONE);
        batch.interfaces.reserve_exact(MAX_INTERFACES);
        batch.copies = Some(Copies::new(parts.replicator.pool().clone()));
        Self {
            rx: Vec::with_capacity(MAX_PORTS),
            inlets: Vec::with_capacity(MAX_PORTS),
            distribution: Distribution::new(parts.tx),
            parts,
            batch,
            arrivals: Burst::new(),
            idle_rounds: 0,
            sleep,
            round_began: dpdk::tsc(),
            was_busy: false,
            exchange: Arc::default(),
        }
    }

    /// Where it can be given other steps while it runs.
    pub fn exchange(&self) -> Arc<Exchange> {
        self.exchange.clone()
    }

    /// Runs until `stop` is set, then sends or drops what it holds.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.parts.quiescent.online();
        while !stop.load(Ordering::Relaxed) {
            if self.exchange.is_waiting() {
                self.take_replacement();
            }
            if self.round() > 0 {
                self.idle_rounds = 0;
                self.sleep = self.parts.idle.first_sleep;
            } else {
                self.rest();
            }
        }
        self.parts.quiescent.offline();
        self.shut_down();
    }

    /// Takes over what the owner has laid ready, and leaves what was there before.
    #[cold]
    fn take_replacement(&mut self) {
        let mut begin = dpdk::tsc();
        let exchange = self.exchange.clone();
        let taken = exchange.serve(|new| {
            if let Some(graph) = &mut new.graph {
                std::mem::swap(graph, &mut self.parts.graph);
                // A step that panics over another's state begins without it.
                let _ = guard(|| self.parts.graph.take_state(graph));
            }
            if let Some(infos) = &mut new.ports {
                exchange_infos(&mut self.rx, &mut self.batch.interfaces, infos);
            }
            if let Some(tx) = new.tx {
                self.distribution.set_config(tx);
            }
            if let Some(rewiring) = &mut new.wires {
                self.rewire(rewiring);
            }
        });
        if !taken {
            return;
        }
        let mut longest = 0;
        for _ in 0..WATCHED {
            if exchange.is_waiting() {
                // The next part of a change is more urgent than what this one has cost.
                return;
            }
            self.round();
            let end = dpdk::tsc();
            longest = longest.max(end - begin);
            begin = end;
        }
        exchange.set_pause(longest);
    }

    /// Changes its connections: before it runs, or between two rounds. What it holds for ports whose exits
    /// change is sent before, and so is what has come for them by rings, so that nothing is overtaken.
    pub fn rewire(&mut self, rewiring: &mut Rewiring) {
        let Rewiring { stop, drain, detach, wires } = rewiring;
        let (rx, inlets) = (std::mem::take(&mut wires.rx), std::mem::take(&mut wires.inlets));
        let ports_of = |rings: bool| {
            let sources = rx.iter().filter(|source| source.input.is_ring() == rings);
            sources.map(|source| source.port).collect()
        };
        let back = (
            ports_of(false),
            ports_of(true),
            inlets.iter().filter_map(|inlet| inlet.port).collect(),
        );
        let stopped = |source: &mut RxSource| !source.input.is_ring() && stop.contains(source.port);
        wires.rx.extend(self.rx.extract_if(.., stopped));
        self.receive_all(*drain);
        let drained = |source: &mut RxSource| source.input.is_ring() && drain.contains(source.port);
        wires.rx.extend(self.rx.extract_if(.., drained));
        if !detach.is_empty() || !wires.exits.is_empty() {
            self.take_in_all();
        }
        let detached = |inlet: &mut Inlet| inlet.port.is_some_and(|port| detach.contains(port));
        wires.inlets.extend(self.inlets.extract_if(.., detached));
        for exit in &mut wires.exits {
            self.distribution.exchange(exit, &self.parts.counters);
            self.parts.replicator.exchange(exit.port, &mut exit.replicas);
        }
        self.rx.extend(rx);
        self.inlets.extend(inlets);
        (*stop, *drain, *detach) = back;
    }

    /// Forwards what others have received by these ports.
    fn receive_all(&mut self, ports: PortSet) {
        let now = dpdk::tsc();
        for source in 0..self.rx.len() {
            if self.rx[source].input.is_ring() && ports.contains(self.rx[source].port) {
                while self.receive(source, now) > 0 {}
            }
        }
    }

    /// Takes what lies in the rings now.
    fn take_in_all(&mut self) {
        let now = dpdk::tsc();
        for inlet in 0..self.inlets.len() {
            let mut waiting = self.inlets[inlet].ring.len();
            while waiting > 0 {
                waiting = waiting.saturating_sub(self.take_in(inlet, now).max(1));
            }
        }
    }

    /// One round: every receive queue and every inlet once. Returns the packets it found.
    pub fn round(&mut self) -> usize {
        self.parts.quiescent.quiescent();
        let now = dpdk::tsc();
        self.count_cycles(now);
        let mut found = self.distribution.priority(&self.parts.counters);
        for source in 0..self.rx.len() {
            found += self.receive(source, now);
        }
        for inlet in 0..self.inlets.len() {
            found += self.take_in(inlet, now);
        }
        self.distribution.flush_due(now, &self.parts.counters);
        self.parts.counters.rounds.add(1);
        self.parts.counters.held.set(self.distribution.held() as u64);
        self.was_busy = found > 0;
        found
    }

    /// What the last round has cost, and the rest behind it.
    #[inline(always)]
    fn count_cycles(&mut self, now: u64) {
        let cycles = now.wrapping_sub(self.round_began);
        self.round_began = now;
        let counters = &self.parts.counters;
        let counter = if self.was_busy { &counters.busy } else { &counters.idle };
        counter.add(cycles);
    }

    /// Receives one batch from a port and takes it all the way.
    fn receive(&mut self, source: usize, now: u64) -> usize {
        let source = &mut self.rx[source];
        let batch = &mut self.batch;
        let counters = &self.parts.counters;
        let unusable = source.input.unusable();
        let count = source.input.receive(&mut batch.burst, source.burst);
        let unusable = source.input.unusable() - unusable;
        if unusable > 0 {
            counters.rx(source.port).packets.add(unusable);
            counters.drops.add(DropReason::UnusableBuffer, unusable);
        }
        if count == 0 {
            return 0;
        }
        batch.come_by(source.port, source.info);
        batch.link_multicast = Mask::EMPTY;
        batch.link_scope = Mask::EMPTY;
        batch.now = now;
        batch.marks.marked = Mask::EMPTY;
        if source.input.is_ring() {
            counters.spread_in.add(count as u64);
        } else {
            let bytes: u64 = batch.lens().iter().map(|&len| u64::from(len)).sum();
            counters.rx(source.port).packets.add(count as u64);
            counters.rx(source.port).bytes.add(bytes);
        }
        if let Some(spread) = &mut source.spread {
            spread.spread(&mut batch.burst, counters);
            if batch.burst.is_empty() {
                return count;
            }
        }
        counters.batches.add(1);
        let graph = &mut self.parts.graph;
        let ends = match guard(|| graph.run(batch)) {
            Ok(ends) => ends,
            Err(_) => self.recover(),
        };
        self.finish(ends, now);
        count
    }

    /// A step panicked: finds the packets over which it does, puts them aside, and takes all others
    /// to their ends.
    #[cold]
    fn recover(&mut self) -> Ends {
        let ForwarderParts { graph, counters, quarantine, .. } = &mut self.parts;
        graph.resume(&mut self.batch, |batch, slot, message| {
            let interface = batch.interface(slot);
            let (frame, rest) = batch.frame_and_rest(slot);
            let whole = rest.fold(frame.to_vec(), |whole, part| [&whole, part].concat());
            quarantine.put(Some(interface), &message, &whole);
            let freed = batch.burst.free(Mask::when(true, slot).0);
            counters.drops.add(DropReason::Quarantined, freed as u64);
        })
    }

    /// Gives every packet of the batch to the end that the graph chose for it.
    fn finish(&mut self, ends: Ends, now: u64) {
        if !ends.transmit.is_empty() {
            let (burst, ports) = (&mut self.batch.burst, &self.batch.out_interface);
            let counters = &self.parts.counters;
            self.distribution.accept(burst, ends.transmit, ports, now, counters);
        }
        if !ends.replicate.is_empty() {
            let ForwarderParts { replicator, counters, .. } = &mut self.parts;
            let distribution = &mut self.distribution;
            replicator.accept(
                &mut self.batch,
                ends.replicate,
                &mut Way { distribution, now, counters },
            );
        }
        if let Some(copies) = &mut self.batch.copies {
            let (distribution, counters) = (&mut self.distribution, &self.parts.counters);
            copies.send(&mut Way { distribution, now, counters });
        }
        if !ends.slow_path.is_empty() {
            let (batch, graph) = (&mut self.batch, &mut self.parts.graph);
            let mut filter = graph.router_filter.take();
            let reason = |slot| graph.punt_reason(slot);
            let (by, counters) = (filter.as_deref_mut(), &self.parts.counters);
            self.parts.punts.accept(batch, ends.slow_path, reason, by, counters);
            graph.router_filter = filter;
        }
        let burst = &mut self.batch.burst;
        if !ends.drop.is_empty() {
            burst.free(ends.drop.0);
        }
        let lost = burst.owned();
        if lost != 0 {
            self.parts.counters.drops.add(DropReason::StepLost, burst.free(lost) as u64);
        }
    }

    /// Takes packets that only need sending from a ring.
    fn take_in(&mut self, inlet: usize, now: u64) -> usize {
        let arrivals = &mut self.arrivals;
        let count = self.inlets[inlet].ring.receive(arrivals, BATCH_MAX);
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
        self.distribution.accept(arrivals, mask, &out_port, now, counters);
        count
    }

    /// Nothing to do: sends what waits, and after some rounds sleeps.
    fn rest(&mut self) {
        self.distribution.flush(&self.parts.counters);
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        let idle = self.parts.idle;
        if self.idle_rounds < idle.spin_rounds || idle.longest_sleep.is_zero() {
            std::hint::spin_loop();
            return;
        }
        self.parts.counters.held.set(self.distribution.held() as u64);
        self.parts.counters.sleeps.add(1);
        std::thread::sleep(self.sleep);
        self.sleep = (self.sleep * 2).min(idle.longest_sleep);
    }

    /// Empties every ring into the distribution, sends what can be sent, drops the rest by name.
    /// [`Forwarder::run`] ends with it; to be called again when the units that fill its rings have
    /// ended too, for what they put there meanwhile.
    pub fn shut_down(&mut self) {
        let now = dpdk::tsc();
        for inlet in 0..self.inlets.len() {
            while self.take_in(inlet, now) > 0 {}
        }
        let (burst, counters) = (&mut self.batch.burst, &self.parts.counters);
        for source in self.rx.iter_mut().filter(|source| source.input.is_ring()) {
            while source.input.receive(burst, BATCH_MAX) > 0 {
                let dropped = burst.free(u64::MAX) as u64;
                counters.spread_in.add(dropped);
                counters.drops.add(DropReason::Shutdown, dropped);
            }
        }
        self.distribution.shut_down(counters);
        self.parts.counters.held.set(0);
    }
}

#[cfg(test)]
mod tests;
