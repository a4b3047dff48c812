//! Forwarders: how one is made, and the threads that run them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use dataplane::class::{ByClass, ClassLimits};
use dataplane::counters::ForwarderCounters;
use dataplane::exchange::Exchange;
use dataplane::forwarder::{Forwarder, ForwarderParts, Settings};
use dataplane::interface::InterfaceInfos;
use dataplane::next_hop::NextHopTable;
use dataplane::quarantine::Quarantine;
use dataplane::replicate::Replicator;
use dataplane::wires::{Rewiring, Wires};
use dpdk::qsbr::Qsbr;
use dpdk::{Eal, WaitSet};
use machine::cores;
use machine::cpu::Cpus;
use nix::unistd::Pid;

use super::buffers::Buffers;
use super::graphs::ForwarderGraph;
use super::reports::ForwarderView;
use super::schedulers::{Buckets, Egress};
use super::wiring::{Places, Seat, SlowPathWays, WorkerEnds};

/// The parts that forwarders are made of, at the start and later.
pub struct ForwarderFactory {
    /// DPDK.
    pub eal: Arc<Eal>,
    /// Buffers for replicas.
    pub buffers: Buffers,
    /// Tracks readers of the tables, for which writers wait.
    pub qsbr: Arc<Qsbr>,
    /// Takes packets over which a step panics.
    pub quarantine: Quarantine,
    /// Slow path workers.
    pub workers: usize,
    /// Grows whenever all of them are replaced.
    pub generation: u32,
    /// Limits of the rings to them.
    pub classes: ByClass<ClassLimits>,
    /// The next hops whose numbers packets carry.
    pub next_hops: Arc<NextHopTable>,
    /// Seed of the choice of packets dropped early.
    pub seed: u64,
    /// The machine's cores and NUMA nodes.
    pub cpus: Arc<Cpus>,
    /// The rates of ports.
    pub buckets: Buckets,
    /// The interfaces for which graphs were made last.
    pub interfaces: Arc<InterfaceInfos>,
}

/// A forwarder that is not running yet and has no port.
pub struct Made {
    /// The forwarder.
    pub unit: Forwarder,
    /// Its counters.
    pub view: ForwarderView,
    /// Its ways to and from the slow path, by worker.
    pub ends: Vec<WorkerEnds>,
}

impl ForwarderFactory {
    /// Forwarders' places on these cores.
    pub fn seats(&self, places: &Places) -> Vec<Seat> {
        let seat = |core, is_control| Seat {
            core,
            node: self.node_of(core),
            is_control,
            is_receiver: false,
        };
        let receiver =
            |(place, seat)| Seat { is_receiver: place == 0 && places.events.is_some(), ..seat };
        let forward = places.forward.iter().map(|&core| seat(core, false));
        let forward = forward.enumerate().map(receiver);
        forward.chain(places.control.first().map(|&core| seat(core, true))).collect()
    }

    /// The NUMA node of a core. On a machine of one node none has a node: there is nothing to choose.
    fn node_of(&self, core: usize) -> Option<usize> {
        self.cpus.node_of(core).filter(|_| self.cpus.is_numa())
    }

    /// Makes the forwarder with this number for this core; `counters` continue those of an earlier one of the same
    /// number.
    ///
    /// On a machine with several NUMA nodes it is made on that core, so that the memory it writes for every packet is
    /// local: a page belongs to the node of the thread that first writes to it.
    pub fn make(
        &self,
        (number, core): (usize, usize),
        graph: ForwarderGraph,
        settings: (Settings, &[Egress]),
        counters: Arc<ForwarderCounters>,
    ) -> Result<Made> {
        if !self.cpus.is_numa() {
            return self.make_here((number, core), graph, settings, counters);
        }
        thread::scope(|scope| {
            let body = || {
                // A core that cannot be used is an error when the forwarder is to run on it.
                let _ = cores::pin(core);
                self.make_here((number, core), graph, settings, counters)
            };
            let made = scope.spawn(body).join();
            made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// The ways between the forwarder with this number, on this NUMA node, and the slow path.
    pub fn slow_path_ways(&self, number: usize, node: Option<usize>) -> Result<SlowPathWays> {
        let Self { eal, classes, next_hops, workers, generation, seed, .. } = self;
        let workers = (*workers, *generation);
        SlowPathWays::new(eal, (number, node), workers, classes, next_hops, *seed)
    }

    fn make_here(
        &self,
        (number, core): (usize, usize),
        (graph, lua): ForwarderGraph,
        settings: (Settings, &[Egress]),
        counters: Arc<ForwarderCounters>,
    ) -> Result<Made> {
        let (settings, egress) = settings;
        let node = self.node_of(core);
        let ways = self.slow_path_ways(number, node)?;
        let edges = graph.counters().clone();
        let mut unit = Forwarder::new(ForwarderParts {
            interfaces: self.interfaces.get(),
            graph,
            settings,
            punts: ways.forwarder.punts,
            replicator: Replicator::new(self.buffers.largest_near(node).clone()),
            quiescent: self.qsbr.register()?,
            counters: counters.clone(),
            quarantine: self.quarantine.clone(),
            waiting: WaitSet::new()?,
        });
        let exchange = unit.exchange();
        let view = ForwarderView { counters, exchange, edges, lua, running: true };
        let wires = Wires { inlets: ways.forwarder.inlets, ..Wires::default() };
        unit.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        unit.exchange_schedulers(&mut self.buckets.schedulers(egress, &view.counters));
        Ok(Made { unit, view, ends: ways.workers })
    }
}

/// Writes to as much of the calling thread's stack as a forwarder uses, so that none of it is missing from memory
/// when packets are there.
fn touch_stack() {
    const BYTES: usize = 256 << 10;
    std::hint::black_box(&mut [0_u8; BYTES]);
}

/// A forwarder on its thread, which ends with this.
pub struct Running {
    /// The way to it.
    pub exchange: Arc<Exchange>,
    number: usize,
    cores: Vec<usize>,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<Forwarder>>,
    /// The kernel's number for the thread, and whether it is on its cores, once it has begun.
    begun: Receiver<(Pid, Result<()>)>,
    thread: Option<Pid>,
}

impl Running {
    /// Starts a thread on these cores.
    pub fn start(
        number: usize,
        mut unit: Forwarder,
        cores: &[usize],
        eal: Arc<Eal>,
    ) -> Result<Self> {
        let (exchange, stop) = (unit.exchange(), Arc::new(AtomicBool::new(false)));
        let (cores, to) = (cores.to_vec(), cores.to_vec());
        let (beginning, begun) = channel();
        let end = stop.clone();
        let body = move || {
            let pinned = cores::pin_thread(cores::SELF, &to);
            touch_stack();
            let _registration = super::register(&eal);
            cores::sharpen_timer();
            privileges::keep_to(privileges::Role::Unit);
            // The starting thread may have given up.
            let _ = beginning.send((nix::unistd::gettid(), pinned));
            unit.run(&end);
            unit
        };
        let handle = thread::Builder::new().name(format!("forwarder-{number}")).spawn(body)?;
        Ok(Self { exchange, number, cores, stop, handle: Some(handle), begun, thread: None })
    }

    /// Waits until it runs; an error if it is not on its cores.
    pub fn wait(&mut self) -> Result<()> {
        let gone = || format!("forwarder {} ended at once; see the log", self.number);
        let (thread, pinned) = self.begun.recv().with_context(gone)?;
        self.thread = Some(thread);
        pinned.with_context(|| format!("forwarder {}", self.number))
    }

    /// Returns true if the thread has ended without being stopped.
    pub fn is_dead(&self) -> bool {
        self.handle.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Moves it to these cores and returns its former ones.
    pub fn pin(&mut self, cores: &[usize]) -> Result<Vec<usize>> {
        let what = || format!("forwarder {}", self.number);
        cores::pin_thread(self.thread.with_context(what)?, cores).with_context(what)?;
        Ok(std::mem::replace(&mut self.cores, cores.to_vec()))
    }

    /// The kernel's number for the thread, once it runs.
    pub fn thread(&self) -> Option<Pid> {
        self.thread
    }

    /// Has it end after its round, without waiting for that.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.exchange.wake();
    }

    /// Stops it and returns its forwarder; `None` if it panicked.
    pub fn end(mut self) -> Option<Forwarder> {
        self.join()
    }

    fn join(&mut self) -> Option<Forwarder> {
        self.stop();
        self.handle.take()?.join().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
    }
}
