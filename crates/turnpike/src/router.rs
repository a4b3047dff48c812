//! The router: opens the ports, wires the units, runs them, and takes everything down again.
//!
//! ```text
//!  main thread: Owner (tokio)          one thread a core: Forwarder
//!    RIB, FIB writer, API, signals       receive, graph, send
//!        | orders     ^ events             | punts        ^ injected
//!        v            |                    v              |
//!       one thread: SlowWorker, the slow path's engine  <-> host interfaces (kernel)
//! ```
//!
//! Everything that can fail fails before the first packet moves, and what was made so far is
//! undone by dropping it.

pub mod cores;
mod fd_store;
pub mod host;
mod owner;
mod ports;
mod reports;
mod settings;
mod slow_worker;
mod wiring;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use control::config::{self, Config};
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::{Distribution, TxConfig};
use dataplane::flow::FlowHash;
use dataplane::forwarder::{Forwarder, ForwarderParts, IdlePolicy, Punts};
use dataplane::next_hop::NextHopTable;
use dataplane::port::{Mtus, RedirectGates};
use dataplane::tables::Tables;
use dpdk::qsbr::{Qsbr, Reader};
use dpdk::{Eal, EalConfig, Mempool, MempoolConfig, Port};
use slowpath::SlowPath;
use tokio::sync::mpsc as events;

use crate::api::server::Socket;
use owner::{Owner, OwnerParts};
use ports::OpenPort;
use reports::{ForwarderView, Ledger};
use slow_worker::{Outbox, SlowCounters, SlowWorker};
use wiring::Wires;

/// Bytes of a packet buffer behind its headroom.
const DATA_ROOM: u16 = 2048;

/// Packet buffers for each queue of a port: its descriptors both ways, and what an AF_XDP socket
/// keeps for the kernel.
const MBUFS_PER_QUEUE: usize = 8192;

/// Packet buffers for what is between the queues: bursts, rings, packets waiting for neighbours.
const MBUFS_INSIDE: usize = 16_384;

/// Runs a router until SIGTERM or SIGINT. An error says why it did not start, or that it did not
/// end cleanly.
pub fn run(config: &Config, socket: &Path, no_huge: bool) -> Result<()> {
    let socket = Socket::bind(socket)?;
    let cores = forwarder_cores(config)?;
    let mbufs = config.memory.mbufs.map_or_else(
        || MBUFS_INSIDE + config.ports.len() * cores.len() * MBUFS_PER_QUEUE,
        |mbufs| mbufs as usize,
    );
    let eal = start_dpdk(config, mbufs, no_huge)?;
    let pool = Mempool::new(
        &eal,
        &MempoolConfig { name: "packets".into(), count: mbufs, cache: 256, data_room: DATA_ROOM },
    )?;
    let router = Router::start(config, &cores, eal.clone(), &pool)?;
    let outcome = router.serve(socket);
    count_buffers(&pool)?;
    outcome
}

/// The cores of the configuration, else the last one allowed: the first is the busiest with
/// everything else.
fn forwarder_cores(config: &Config) -> Result<Vec<usize>> {
    if !config.forwarders.cores.is_empty() {
        return Ok(config.forwarders.cores.clone());
    }
    let allowed = cores::allowed()?;
    Ok(vec![*allowed.last().context("no core is allowed for this process")?])
}

fn start_dpdk(config: &Config, mbufs: usize, no_huge: bool) -> Result<Arc<Eal>> {
    let pci = config.ports.iter().filter_map(|port| match &port.device {
        control::config::Device::Pci(address) => Some(address.clone()),
        _ => None,
    });
    let eal = Eal::init(&EalConfig {
        memory_mb: mbufs * (usize::from(DATA_ROOM) + 512) / 1_000_000 + 128,
        huge: if no_huge { dpdk::HugeMode::Never } else { dpdk::HugeMode::Auto },
        pci: pci.collect(),
        ..EalConfig::default()
    })?;
    tracing::info!("{}; packet memory: {}", dpdk::version(), eal.memory());
    Ok(Arc::new(eal))
}

/// The leak check: with all units gone, every buffer must be back in the pool.
fn count_buffers(pool: &Mempool) -> Result<()> {
    match pool.in_use() {
        0 => tracing::info!("mbufs: all {} returned", pool.size()),
        leaked => bail!("mbufs: {leaked} of {} not returned: a defect, please report", pool.size()),
    }
    Ok(())
}

/// All units running.
struct Router {
    ports: Vec<Port>,
    owner: Owner,
    stop_forwarders: Arc<AtomicBool>,
    stop_slow_path: Arc<AtomicBool>,
    forwarders: Vec<JoinHandle<Forwarder>>,
    slow_path: JoinHandle<SlowWorker>,
}

impl Router {
    fn start(config: &Config, cores: &[usize], eal: Arc<Eal>, pool: &Mempool) -> Result<Self> {
        let (ports, queues) = ports::open_all(config, cores.len(), &eal, pool)?;
        let plan = wiring::plan(&eal, cores.len(), queues)?;
        let qsbr = Qsbr::new(cores.len() + 1);
        let seed = seed();
        let next_hops = Arc::new(NextHopTable::new());
        let (rib, readers) = owner::build_rib(config, &ports, next_hops.clone(), &qsbr)?;
        let infos: Vec<_> = ports.iter().map(|port| port.info).collect();
        let tables = Arc::new(Tables {
            fib4: readers.0,
            fib6: readers.1,
            next_hops,
            ports: infos.clone(),
            mtus: Mtus::new(&infos),
            redirects: RedirectGates::default(),
            flows: FlowHash::new(seed),
        });

        let stop_forwarders = Arc::new(AtomicBool::new(false));
        let stop_slow_path = Arc::new(AtomicBool::new(false));
        let slow_counters = Arc::new(SlowCounters::default());
        let (orders, orders_in) = channel();
        let (events_out, events) = events::unbounded_channel();

        let worker = SlowWorker {
            engine: SlowPath::new(slow_path_config(config, &ports, seed)),
            control: plan.control,
            exceptions: plan.exceptions,
            outbox: Outbox {
                injectors: plan.injectors,
                homes: plan.homes,
                pool: pool.clone(),
                counters: slow_counters.clone(),
                events: events_out,
                tables: tables.clone(),
                hosts: plan.hosts,
            },
            orders: orders_in,
            quiescent: qsbr.register()?,
        };
        let mut views = Vec::new();
        let mut units = Vec::new();
        for (wires, punts) in plan.forwarders.into_iter().zip(plan.punts) {
            let unit = forwarder(config, &tables, wires, punts, qsbr.register()?)?;
            views.push(unit.1);
            units.push(unit.0);
        }
        let shape = units[0].shape().clone();
        let handles = ports.iter().map(|open| open.port.clone()).collect();
        let ledger = Ledger { forwarders: views, slow: slow_counters, shape };
        let sources = owner::Sources::start(config)?;
        let flows = FlowHash::new(seed);
        let parts = OwnerParts { rib, orders, events, sources, ledger, ports, flows };
        let owner = Owner::new(parts);
        let slow_path = spawn_slow_path(worker, eal.clone(), stop_slow_path.clone())?;
        let (starting, started) = channel::<Infallible>();
        let mut forwarders = Vec::new();
        for (index, (unit, &core)) in units.into_iter().zip(cores).enumerate() {
            let (stop, starting) = (stop_forwarders.clone(), starting.clone());
            forwarders.push(spawn_forwarder(unit, index, core, eal.clone(), stop, starting)?);
        }
        drop(starting);
        // Ends when no forwarder is starting any more: whoever hears that the router is ready finds
        // every one on its core.
        let _ = started.recv();
        Ok(Self { ports: handles, owner, stop_forwarders, stop_slow_path, forwarders, slow_path })
    }

    /// Answers questions until a signal comes, then stops everything in order.
    fn serve(mut self, socket: Socket) -> Result<()> {
        let served = self.owner.serve(socket);
        self.stop_forwarders.store(true, Ordering::Relaxed);
        let mut units = Vec::new();
        let mut failed = false;
        for thread in self.forwarders {
            match thread.join() {
                Ok(unit) => units.push(unit),
                Err(_) => failed = true,
            }
        }
        self.stop_slow_path.store(true, Ordering::Relaxed);
        let worker = self.slow_path.join();
        failed |= worker.is_err();
        // What the slow path and other forwarders put into a forwarder's rings after its end: one
        // pass takes it out, another what the first one handed over.
        for _ in 0..2 {
            units.iter_mut().for_each(Forwarder::shut_down);
        }
        self.owner.farewell();
        drop((units, worker));
        drop(self.owner);
        Port::close_all(self.ports);
        if failed {
            bail!("a thread ended by a panic: a defect, please report what stands above");
        }
        served
    }
}

fn forwarder(
    config: &Config,
    tables: &Arc<Tables>,
    wires: Wires,
    punts: Punts,
    quiescent: Reader,
) -> Result<(Forwarder, ForwarderView)> {
    let graph = dataplane::default_graph(tables)?;
    let tx = TxConfig { burst: usize::from(config.tx.burst), flush: config.tx.flush };
    let mut distribution = Distribution::new(wires.paths, tx);
    for (port, ring) in wires.express {
        if !distribution.add_express(port, ring) {
            bail!("{port}: the forwarder of its host interface has no transmit queue");
        }
    }
    let counters = Arc::new(ForwarderCounters::default());
    let view = ForwarderView { counters: counters.clone(), edges: graph.counters().clone() };
    let unit = Forwarder::new(ForwarderParts {
        rx: wires.rx,
        inlets: wires.inlets,
        graph,
        distribution,
        punts,
        quiescent,
        counters,
        idle: IdlePolicy::default(),
    });
    Ok((unit, view))
}

fn spawn_forwarder(
    mut unit: Forwarder,
    index: usize,
    core: usize,
    eal: Arc<Eal>,
    stop: Arc<AtomicBool>,
    starting: Sender<Infallible>,
) -> Result<JoinHandle<Forwarder>> {
    let body = move || {
        if let Err(error) = cores::pin(core) {
            tracing::warn!("forwarder {index}: {error:#}; it runs on any core");
        }
        let _registration = register(&eal);
        cores::sharpen_timer();
        drop(starting);
        unit.run(&stop);
        unit
    };
    Ok(thread::Builder::new().name(format!("forwarder-{index}")).spawn(body)?)
}

fn spawn_slow_path(
    mut worker: SlowWorker,
    eal: Arc<Eal>,
    stop: Arc<AtomicBool>,
) -> Result<JoinHandle<SlowWorker>> {
    let body = move || {
        let _registration = register(&eal);
        cores::sharpen_timer();
        worker.run(&stop);
        worker
    };
    Ok(thread::Builder::new().name("slow-path".to_owned()).spawn(body)?)
}

/// Makes the calling thread one that DPDK knows, so that it has its own cache of free buffers.
fn register(eal: &Eal) -> Option<dpdk::ThreadRegistration> {
    match eal.register_thread() {
        Ok(registration) => Some(registration),
        Err(error) => {
            tracing::warn!("{error}: the thread works without a buffer cache");
            None
        }
    }
}

fn slow_path_config(config: &Config, ports: &[OpenPort], seed: u64) -> slowpath::Config {
    let port = |(port, wanted): (&OpenPort, &config::Port)| slowpath::PortConfig {
        id: port.id,
        name: port.name.clone(),
        mac: port.info.mac,
        mtu: port.info.mtu,
        addresses: port.addresses.clone(),
        host: port.host.is_some(),
        settings: settings::of(wanted),
    };
    slowpath::Config {
        ports: ports.iter().zip(&config.ports).map(port).collect(),
        limits: slowpath::Limits {
            neighbours: config.slowpath.neighbours,
            queue: config.slowpath.queue,
            tries: config.slowpath.retries.min(u32::from(u8::MAX)) as u8,
            reachable: config.slowpath.timeout,
            reassembly: config.slowpath.reassembly,
            ..slowpath::Limits::default()
        },
        icmp: slowpath::Icmp { ttl: config.icmp.ttl, echo: config.icmp.echo },
        flow: FlowHash::new(seed),
        seed,
    }
}

/// A number that differs between routers and between starts.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one("turnpike")
}
