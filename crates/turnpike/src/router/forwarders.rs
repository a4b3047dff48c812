//! Forwarders: how one is made, and the threads that run them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use dataplane::class::{ByClass, ClassLimits};
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::TxConfig;
use dataplane::exchange::Exchange;
use dataplane::forwarder::{Forwarder, ForwarderParts, IdlePolicy};
use dataplane::quarantine::Quarantine;
use dataplane::replicate::Replicator;
use dataplane::wires::{Rewiring, Wires};
use dpdk::qsbr::Qsbr;
use dpdk::{Eal, Mempool};
use nix::unistd::Pid;

use super::cores;
use super::graphs::ForwarderGraph;
use super::reports::ForwarderView;
use super::wiring::{SlowPathWays, WorkerEnds};

/// What forwarders are made of, now and later.
pub struct Makings {
    /// DPDK.
    pub eal: Arc<Eal>,
    /// Buffers for replicas.
    pub pool: Mempool,
    /// Whom writers of tables wait for.
    pub qsbr: Arc<Qsbr>,
    /// Where packets go over which a step panics.
    pub quarantine: Quarantine,
    /// Slow path workers.
    pub workers: usize,
    /// What bounds the rings to them.
    pub classes: ByClass<ClassLimits>,
    /// For the choice of what is dropped early.
    pub seed: u64,
}

/// A forwarder that does not run yet and knows no port.
pub struct Made {
    /// It.
    pub unit: Forwarder,
    /// What can be seen of it.
    pub view: ForwarderView,
    /// Its ways to and from the slow path, by worker.
    pub ends: Vec<WorkerEnds>,
}

impl Makings {
    /// The forwarder with this number; `counters` go on where one of the same number ended.
    pub fn make(
        &self,
        number: usize,
        (graph, lua): ForwarderGraph,
        tx: TxConfig,
        counters: Arc<ForwarderCounters>,
    ) -> Result<Made> {
        let ways = SlowPathWays::new(&self.eal, number, self.workers, &self.classes, self.seed)?;
        let edges = graph.counters().clone();
        let view = ForwarderView { counters: counters.clone(), edges, lua, running: true };
        let mut unit = Forwarder::new(ForwarderParts {
            graph,
            tx,
            punts: ways.forwarder.punts,
            replicator: Replicator::new(self.pool.clone()),
            quiescent: self.qsbr.register()?,
            counters,
            quarantine: self.quarantine.clone(),
            idle: IdlePolicy::default(),
        });
        let wires = Wires { inlets: ways.forwarder.inlets, ..Wires::default() };
        unit.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        Ok(Made { unit, view, ends: ways.workers })
    }
}

/// A forwarder on its thread, which ends with this.
pub struct Running {
    /// The way to it.
    pub exchange: Arc<Exchange>,
    number: usize,
    core: usize,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<Forwarder>>,
    /// The kernel's number for the thread, and whether it is on its core, once it has begun.
    begun: Receiver<(Pid, Result<()>)>,
    thread: Option<Pid>,
}

impl Running {
    /// Starts a thread on this core.
    pub fn start(number: usize, mut unit: Forwarder, core: usize, eal: Arc<Eal>) -> Result<Self> {
        let (exchange, stop) = (unit.exchange(), Arc::new(AtomicBool::new(false)));
        let (beginning, begun) = channel();
        let end = stop.clone();
        let body = move || {
            let pinned = cores::pin(core);
            let _registration = super::register(&eal);
            cores::sharpen_timer();
            // Whoever started it may have given it up.
            let _ = beginning.send((nix::unistd::gettid(), pinned));
            unit.run(&end);
            unit
        };
        let handle = thread::Builder::new().name(format!("forwarder-{number}")).spawn(body)?;
        Ok(Self { exchange, number, core, stop, handle: Some(handle), begun, thread: None })
    }

    /// Waits until it runs; an error if it is not on its core.
    pub fn wait(&mut self) -> Result<()> {
        let gone = || format!("forwarder {} ended at once; see the log", self.number);
        let (thread, pinned) = self.begun.recv().with_context(gone)?;
        self.thread = Some(thread);
        pinned.with_context(|| format!("forwarder {}", self.number))
    }

    /// Moves it to this core; which one it had.
    pub fn pin(&mut self, core: usize) -> Result<usize> {
        let what = || format!("forwarder {}", self.number);
        cores::pin_thread(self.thread.with_context(what)?, core).with_context(what)?;
        Ok(std::mem::replace(&mut self.core, core))
    }

    /// Its core.
    pub fn core(&self) -> usize {
        self.core
    }

    /// Ends it, and gives back what it holds; `None` if it panicked.
    pub fn end(mut self) -> Option<Forwarder> {
        self.join()
    }

    fn join(&mut self) -> Option<Forwarder> {
        self.stop.store(true, Ordering::Relaxed);
        self.handle.take()?.join().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.join();
    }
}
