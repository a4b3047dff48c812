//! The router: opens the ports, wires the units, runs them, and takes everything down again.
//!
//! ```text
//!  main thread: Owner (tokio)          one thread a core: Forwarder
//!    RIB, FIB writer, API, signals       receive, graph, send
//!        | orders     ^ events             | punts        ^ injected
//!        v            |                    v              |
//!   one thread or some: SlowWorker, the slow path's engine  <-> host interfaces (kernel)
//! ```
//!
//! Everything that can fail fails before the first packet moves, and what was made so far is
//! undone by dropping it.
#![forbid(unsafe_code)]

pub mod acceleration;
pub mod archive;
mod boundaries;
mod buffers;
mod carriers;
mod control_rules;
mod control_socket;
mod events;
mod export;
mod fd_store;
mod flow_rules;
mod forwarders;
mod graphs;
mod handlers;
pub mod hold;
mod host;
mod http;
mod in_kernel;
mod last_resort;
mod lease;
pub mod log;
mod manager;
mod metrics;
mod node_tables;
mod owner;
mod ports;
mod prepare;
mod private;
mod program;
pub mod progress;
mod pulse;
pub mod quarantine;
mod queues;
mod removals;
mod reports;
mod resident;
pub mod room;
mod runtime;
mod schedulers;
mod scripts;
mod server;
mod sets;
mod settings;
mod signals;
mod slow_worker;
mod start;
mod telnet;
#[cfg(test)]
mod testing;
pub mod tls;
mod virtuals;
mod web_listeners;
mod wiring;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use control::config::{Config, ControlSocket, Device, Strictness};
use dataplane::forwarder::Forwarder;
use dpdk::{Eal, EalConfig, Port};
use machine::bind::Binder;
use machine::bind::ports::Bindings;
use machine::{Machine, cores};
use nix::sys::signal::Signal;

use crate::progress::Progress;
use archive::{Archive, Attempt, Claim};
use buffers::Buffers;
use control_socket::ControlSockets;
use fd_store::SharedStore;
use last_resort::{NIC_PATIENCE, PATIENCE};
use owner::Owner;
use ports::Opener;
pub use program::{ConfigSource, Language, OpenTelnet, Program, TelnetSessions};
use server::Socket;
use server::access::{Access, Roles};
use signals::{Ended, Signals};
use slow_worker::SlowWorker;
use start::{Described, Start};

/// Settings of the command line, beside the configuration.
#[derive(Debug)]
pub struct RunSettings {
    /// No hugepages.
    pub no_huge: bool,
    /// Seconds for which host interfaces are held after the router is killed.
    pub hold: u64,
    /// The directory of configurations that survive a restart.
    pub state: Option<Claim>,
    /// The configuration is the last good one; the reason for which the file was refused.
    pub refused: Option<String>,
}

/// The listeners of the start.
struct Listeners {
    /// The API's.
    socket: Socket,
    /// Serves telnet.
    acceptor: telnet::Acceptor,
    telnet: Option<telnet::Opened>,
    control: (Vec<ControlSocket>, control_socket::Opened),
    metrics: Option<metrics::Opened>,
    api: Option<http::Opened>,
    /// The roles of users.
    roles: Arc<Roles>,
}

/// Runs a router, which `source` described, until a signal ends it. An error means that it did not start, or did not
/// end cleanly.
pub fn run(
    config: Config,
    source: &ConfigSource,
    program: &Program,
    socket: &Path,
    RunSettings { no_huge, hold, state, refused }: RunSettings,
) -> Result<()> {
    // Before there are other threads, which keep to it, and go where this one is.
    if let Err(error) = privileges::never_more() {
        tracing::error!("{error}");
    }
    let placement = cores::place(&config)?;
    cores::confine(&placement.control, &[])?;
    cores::log_placement(&placement);
    // Before there is any other thread.
    let signals = Signals::block()?;
    resident::stay();
    // The last good one has nothing behind it.
    let attempt = state.as_ref().filter(|_| refused.is_none()).map(Claim::attempt);
    let archive = state.map(Archive::start).transpose()?;
    let (text, course) = (config.text.clone(), signals.course().clone());
    let described = Described { config, source: source.clone(), refused, archive };
    run_with(described, program, socket, signals, (no_huge, hold)).inspect_err(|error| {
        let repeats = |attempt: &Attempt| attempt.failed(&text, &format!("{error:#}"));
        // A start that is ended fails for that.
        if !course.is_ending() && attempt.as_ref().is_some_and(repeats) {
            tracing::warn!(
                "the next start takes the last good configuration, unless the file changes"
            );
        }
    })
}

/// [`run`], with signals blocked.
fn run_with(
    described: Described,
    program: &Program,
    path: &Path,
    signals: Signals,
    (no_huge, hold): (bool, u64),
) -> Result<()> {
    let config = &described.config;
    let acceptor = telnet::Acceptor::new(program.telnet);
    let opened = config.telnet.as_ref().map(|telnet| acceptor.open(telnet, path)).transpose()?;
    let control = ControlSockets::default().open(&config.control_sockets)?;
    let control = (config.control_sockets.clone(), control);
    let metrics = config
        .metrics
        .as_ref()
        .map(|settings| metrics::Opened::open(settings, Strictness::Known, None))
        .transpose()?;
    let open_api = |settings| http::Opened::open(settings, Strictness::Known, None);
    let api = config.api.as_ref().map(open_api).transpose()?;
    let roles = Arc::new(Roles::default());
    roles.set(Access::resolve(config.access.as_ref()));
    let group = Access::group(config.access.as_ref())?;
    let (course, socket) = (signals.course().clone(), Socket::bind(path, "--socket", group)?);
    course.owns_socket(path);
    // There is no other router with this socket, and so none with this holder.
    let store = SharedStore::at_start(path, hold);
    course.enter_for("binding NICs", NIC_PATIENCE);
    let bindings = Bindings::at_start(Binder::here(), config)?;
    course.owns_bindings(&bindings);
    let outcome = run_on(
        described,
        program,
        Listeners { socket, acceptor, telnet: opened, control, metrics, api, roles },
        signals,
        no_huge,
        (&bindings, &store),
    );
    course.enter_for("giving NICs back", NIC_PATIENCE);
    bindings.give_back_all();
    course.enter("the process");
    let ended = match outcome {
        Ok(signal) => signal,
        Err(error) => {
            let ended = error.downcast::<Ended>().inspect_err(|_| store.lock().failed())?;
            tracing::info!("{ended}");
            Some(ended.0)
        }
    };
    // A router that ends by itself is to be started again.
    if ended.is_some_and(|signal| !signals::is_restart(signal)) {
        store.lock().let_go();
    }
    Ok(())
}

/// [`run`], with the ports' devices bound, to the signal that ended it. DPDK has closed them all when this returns.
fn run_on(
    described: Described,
    program: &Program,
    listeners: Listeners,
    mut signals: Signals,
    no_huge: bool,
    (bindings, store): (&Arc<Bindings>, &SharedStore),
) -> Result<Option<Signal>> {
    let config = &described.config;
    let placement = cores::place(config)?;
    let cores = &placement.forward;
    let machine = Machine::here();
    let cpus = Arc::new(machine.cpus());
    let plan =
        buffers::MemoryPlan::of(config, cores.len(), buffers::Nodes::new(machine, &cpus, cores));
    let memory = memory_for(config, &plan, cores.len());
    room::check_now(&Machine::here(), memory.0, no_huge, config.memory.mbufs)?;
    let course = signals.course().clone();
    signals.enter("the start of DPDK")?;
    let eal = start_dpdk(config, memory, no_huge)?;
    signals.enter("packet memory")?;
    let progress = Progress::working(format!("packet memory: {} MB", memory.0));
    let buffers = Buffers::new(&eal, &plan)?;
    drop(progress);
    signals.enter("the opening of the ports")?;
    let place = (placement, cpus);
    let opener = Opener::new(eal.clone(), buffers.clone(), bindings.clone(), store.clone());
    let router = Start::new(described, program, place, opener, &buffers)?.run(&mut signals)?;
    let outcome = router.serve(listeners, signals);
    course.enter("DPDK");
    count_buffers(&buffers)?;
    outcome
}

/// Forwarders for control traffic that there may be, now or later.
const CONTROL_FORWARDERS: usize = 1;

/// Forwarders that only receive and send, with an event device.
const RECEIVERS: usize = 1;

/// Megabytes that DPDK has beside packet buffers, for rings and drivers.
const BESIDE_BUFFERS: usize = 128;

/// Megabytes for an event device in software, and for another that replaces it.
const EVENT_DEVICES: usize = 128;

/// Megabytes of DPDK's memory for a router with forwarders on these cores: at its start, and, without
/// hugepages, beyond that for ports that come later.
pub fn packet_memory(config: &Config, cores: &[usize]) -> (usize, usize) {
    let machine = Machine::here();
    let nodes = buffers::Nodes::new(machine.clone(), &machine.cpus(), cores);
    memory_for(config, &buffers::MemoryPlan::of(config, cores.len(), nodes), cores.len())
}

/// Returns DPDK's drivers of virtual devices, if a port of the configuration uses one.
pub fn virtual_drivers(config: &Config) -> BTreeSet<String> {
    let wanted = config.ports.iter().any(|port| matches!(port.device, Device::Vdev(_)));
    if wanted { dpdk::virtual_drivers() } else { BTreeSet::new() }
}

fn memory_for(config: &Config, plan: &buffers::MemoryPlan, forwarders: usize) -> (usize, usize) {
    let events = if config.forwarders.events.is_some() { EVENT_DEVICES } else { 0 };
    (plan.megabytes() + BESIDE_BUFFERS + events, buffers::megabytes_later(forwarders))
}

fn start_dpdk(
    config: &Config,
    (memory_mb, spare_mb): (usize, usize),
    no_huge: bool,
) -> Result<Arc<Eal>> {
    let pci: Vec<_> = (config.ports.iter())
        .filter_map(|port| match &port.device {
            Device::Pci(address) => Some(address.clone()),
            _ => None,
        })
        .collect();
    let physical = |address: &String| {
        dpdk::Device::Pci(address.clone()).iova_mode() == dpdk::IovaMode::Physical
    };
    let iova = match pci.iter().any(physical) {
        true => dpdk::IovaMode::Physical,
        false => dpdk::IovaMode::Virtual,
    };
    let lends = |port: &control::config::Port| {
        let device = dpdk::Device::parse(&port.device.to_string());
        device.is_ok_and(|device| device.lends_memory())
    };
    let progress = Progress::working(format!("DPDK starts: {memory_mb} MB"));
    let eal = Eal::init(&EalConfig {
        memory_mb,
        spare_mb,
        huge: if no_huge { dpdk::HugeMode::Never } else { dpdk::HugeMode::Auto },
        pci,
        iova,
        lends_memory: config.ports.iter().any(lends),
        ..EalConfig::default()
    })?;
    drop(progress);
    tracing::info!("{}; packet memory: {}", dpdk::version(), eal.memory());
    Ok(Arc::new(eal))
}

/// The leak check: after the end of all units, every buffer must be back in the pool.
fn count_buffers(buffers: &Buffers) -> Result<()> {
    match buffers.count() {
        (all, 0) => tracing::info!("mbufs: all {all} returned"),
        (all, leaked) => bail!("mbufs: {leaked} of {all} not returned: a defect, please report"),
    }
    Ok(())
}

/// All units running.
struct Router {
    owner: Owner,
    quarantine: JoinHandle<()>,
}

impl Router {
    /// Answers questions until a signal arrives, which it returns, then stops everything in order.
    fn serve(mut self, listeners: Listeners, signals: Signals) -> Result<Option<Signal>> {
        let course = signals.course().clone();
        course.enter("the owner's thread");
        let served = self.owner.serve(listeners, signals);
        let wiring = self.owner.wiring().context(NO_WIRING)?;
        let (mut units, complete) = wiring.end(&course);
        let mut failed = !complete;
        let (mut workers, complete) = self.owner.end_slow_path(&course);
        failed |= !complete;
        course.enter("what rings hold");
        // Handoffs that one worker sent to another after the other's end.
        workers.iter_mut().for_each(SlowWorker::shut_down);
        // Packets that the slow path and other forwarders put into a forwarder's rings after its end: the first pass
        // takes them out, the second takes out those that the first handed over.
        for _ in 0..2 {
            units.iter_mut().for_each(Forwarder::shut_down);
        }
        self.owner.farewell();
        drop((units, workers));
        let ports = self.owner.into_ports();
        let has_nics = ports.iter().any(|port| port.driver.is_some());
        let devices = ports.into_devices();
        course.enter("the writer of the quarantine");
        // It ends with the last copy of the handle.
        failed |= self.quarantine.join().is_err();
        let names: Vec<_> = devices.iter().map(|port| port.name().to_owned()).collect();
        // The kernel waits for grace periods of its own for each socket.
        let each = PATIENCE * u32::try_from(devices.len()).unwrap_or(1).max(1);
        let patience = if has_nics { NIC_PATIENCE } else { each.min(NIC_PATIENCE) };
        course.enter_for(format!("the closing of {}", names.join(", ")), patience);
        Port::close_all(devices);
        if failed {
            bail!("a thread ended by a panic: a defect, please report the log lines above");
        }
        served
    }
}

/// The owner lends its wiring only while it serves.
const NO_WIRING: &str = "the forwarders are being changed: a defect, please report";

/// Registers the calling thread with DPDK, so that it has its own cache of free buffers.
fn register(eal: &Eal) -> Option<dpdk::ThreadRegistration> {
    match eal.register_thread() {
        Ok(registration) => Some(registration),
        Err(error) => {
            tracing::warn!("{error}: the thread works without a buffer cache");
            None
        }
    }
}
