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

mod buffers;
mod control_rules;
mod fd_store;
mod flow_rules;
mod forwarders;
mod graphs;
pub mod hold;
mod host;
mod last_resort;
pub mod log;
mod node_tables;
mod owner;
mod ports;
mod prepare;
mod program;
pub mod progress;
mod pulse;
pub mod quarantine;
mod queues;
mod reports;
mod resident;
pub mod room;
mod schedulers;
mod server;
mod sets;
mod settings;
mod signals;
mod slow_worker;
mod telnet;
#[cfg(test)]
mod testing;
mod vlans;
mod wiring;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use control::config::{Config, Device};
use control::cores::CorePlacement;
use dataplane::filters::Gate;
use dataplane::flow::FlowHash;
use dataplane::forwarder::Forwarder;
use dataplane::interface::{InterfaceInfos, Mtus};
use dataplane::next_hop::NextHopTable;
use dataplane::own::OwnAddresses;
use dataplane::port::MAX_PORTS;
use dataplane::quarantine::Quarantine;
use dataplane::tables::{Fibs, Tables, VrfTables};
use dataplane::vlan::Tagger;
use dpdk::qsbr::Qsbr;
use dpdk::{DeviceEvents, Eal, EalConfig, Port};
use machine::bind::Binder;
use machine::bind::ports::Bindings;
use machine::cpu::Cpus;
use machine::{Machine, cores};
use nix::sys::signal::Signal;
use slowpath::SlowPath;

use crate::progress::Progress;
use buffers::Buffers;
use fd_store::SharedStore;
use forwarders::ForwarderFactory;
use graphs::GraphMaker;
use last_resort::{NIC_PATIENCE, PATIENCE};
use node_tables::{NodeTables, nodes_of};
use owner::{Configurations, Owner, OwnerParts};
use ports::{OpenPort, Opener, Ports};
use prepare::Workshop;
pub use program::{ConfigSource, OpenTelnet, Program, TelnetSessions};
use quarantine::KeeperSettings;
use reports::{Ledger, Retired, SlowViews};
use schedulers::Buckets;
use server::Socket;
use sets::NamedSets;
use signals::{Ended, Signals};
use slow_worker::{
    ClassRates, EventSender, Learner, Orders, Outbox, PuntScheduler, SlowCounters, SlowWorker,
    Teacher, event_channel, handoff_queues, lessons, order_queue,
};
use vlans::{OpenVlan, OpenVlans};
use wiring::{Places, Wiring, WorkerEnds};

/// Settings of the command line, beside the configuration.
#[derive(Clone, Copy, Debug)]
pub struct RunSettings {
    /// No hugepages.
    pub no_huge: bool,
    /// Seconds for which host interfaces are held after the router is killed.
    pub hold: u64,
}

/// The telnet service of the start, and what serves it.
type Telnet = (telnet::Acceptor, Option<telnet::Opened>);

/// Runs a router, which `source` described, until a signal ends it. An error means that it did not start, or did not
/// end cleanly.
pub fn run(
    config: Config,
    source: &ConfigSource,
    program: &Program,
    socket: &Path,
    RunSettings { no_huge, hold }: RunSettings,
) -> Result<()> {
    // Before there are other threads, which go where this one is.
    let placement = cores::place(&config)?;
    cores::confine(&placement.control, &[])?;
    cores::log_placement(&placement);
    // Before there is any other thread.
    let signals = Signals::block()?;
    resident::stay();
    let acceptor = telnet::Acceptor::new(program.telnet);
    let opened = config.telnet.as_ref().map(|telnet| acceptor.open(telnet, socket)).transpose()?;
    let path = socket;
    let (course, socket) = (signals.course().clone(), Socket::bind(path)?);
    course.owns_socket(path);
    // There is no other router with this socket, and so none with this holder.
    let store = SharedStore::at_start(path, hold);
    course.enter_for("binding NICs", NIC_PATIENCE);
    let bindings = Bindings::at_start(Binder::here(), &config)?;
    course.owns_bindings(&bindings);
    let outcome = run_on(
        (config, source),
        program,
        (socket, (acceptor, opened)),
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
    (config, source): (Config, &ConfigSource),
    program: &Program,
    (socket, telnet): (Socket, Telnet),
    mut signals: Signals,
    no_huge: bool,
    (bindings, store): (&Arc<Bindings>, &SharedStore),
) -> Result<Option<Signal>> {
    let placement = cores::place(&config)?;
    let cores = &placement.forward;
    let machine = Machine::here();
    let cpus = Arc::new(machine.cpus());
    let plan =
        buffers::MemoryPlan::of(&config, cores.len(), buffers::Nodes::new(machine, &cpus, cores));
    let memory = memory_for(&plan, cores.len());
    room::check_now(&Machine::here(), memory.0, no_huge, config.memory.mbufs)?;
    let course = signals.course().clone();
    signals.enter("the start of DPDK")?;
    let eal = start_dpdk(&config, memory, no_huge)?;
    signals.enter("packet memory")?;
    let progress = Progress::working(format!("packet memory: {} MB", memory.0));
    let buffers = Buffers::new(&eal, &plan)?;
    drop(progress);
    signals.enter("the opening of the ports")?;
    let place = (placement, cpus);
    let opener = Opener::new(eal.clone(), buffers.clone(), bindings.clone(), store.clone());
    let described = (config, source.clone());
    let router = Router::start(described, program, place, opener, &buffers, &mut signals)?;
    let outcome = router.serve(socket, telnet, signals);
    course.enter("DPDK");
    count_buffers(&buffers)?;
    outcome
}

/// Forwarders for control traffic that there may be, now or later.
const CONTROL_FORWARDERS: usize = 1;

/// Megabytes that DPDK has beside packet buffers, for rings and drivers.
const BESIDE_BUFFERS: usize = 128;

/// Megabytes of DPDK's memory for a router with forwarders on these cores: at its start, and, without
/// hugepages, beyond that for ports that come later.
pub fn packet_memory(config: &Config, cores: &[usize]) -> (usize, usize) {
    let machine = Machine::here();
    let nodes = buffers::Nodes::new(machine.clone(), &machine.cpus(), cores);
    memory_for(&buffers::MemoryPlan::of(config, cores.len(), nodes), cores.len())
}

/// Returns DPDK's drivers of virtual devices, if a port of the configuration uses one.
pub fn virtual_drivers(config: &Config) -> BTreeSet<String> {
    let wanted = config.ports.iter().any(|port| matches!(port.device, Device::Vdev(_)));
    if wanted { dpdk::virtual_drivers() } else { BTreeSet::new() }
}

fn memory_for(plan: &buffers::MemoryPlan, forwarders: usize) -> (usize, usize) {
    (plan.megabytes() + BESIDE_BUFFERS, buffers::megabytes_later(forwarders))
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
    let progress = Progress::working(format!("DPDK starts: {memory_mb} MB"));
    let eal = Eal::init(&EalConfig {
        memory_mb,
        spare_mb,
        huge: if no_huge { dpdk::HugeMode::Never } else { dpdk::HugeMode::Auto },
        pci,
        iova,
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
    stop_slow_path: Arc<AtomicBool>,
    slow_path: Vec<JoinHandle<SlowWorker>>,
    quarantine: JoinHandle<()>,
}

impl Router {
    fn start(
        (config, source): (Config, ConfigSource),
        program: &Program,
        (placement, cpus): (CorePlacement, Arc<Cpus>),
        opener: Opener,
        buffers: &Buffers,
        signals: &mut Signals,
    ) -> Result<Self> {
        let cores = &placement.forward;
        let eal = opener.eal().clone();
        let devices = DeviceEvents::listen(&eal)?;
        let (ports, queues) = opener.open_all(&config, cores.len())?;
        let mut infos = ports.infos();
        vlans::add_infos(&config, &mut infos)?;
        let hosts = vlans::open_hosts(&opener, &config, &infos)?;
        opener.forget_other_hosts();
        let vlans = vlans::open_all(&config, &infos, &hosts);
        signals.enter("the loading of routes")?;
        let seed = seed();
        let count = config.slowpath.workers;
        // There may be as many forwarders later as there are cores for them.
        let qsbr = Qsbr::new(cores.len().max(cores::allowed()?.len()) + CONTROL_FORWARDERS + count);
        let next_hops = Arc::new(NextHopTable::new());
        let (mut rib, routes, readers) = owner::build_rib(
            &config,
            (&ports, &vlans, &nodes_of(&cpus)),
            next_hops.clone(),
            &qsbr,
            signals,
        )?;
        let mut readers = readers.into_iter();
        let first = readers.next().context("no tables")?;
        let own = Arc::new(OwnAddresses::new(config.forwarding.class_e));
        rib.share_addresses(own.clone());
        let tables = Arc::new(Tables {
            named_hops: Arc::default(),
            vrfs: Arc::new(VrfTables::new(Fibs {
                fib4: first.0[0].clone(),
                fib6: first.1[0].clone(),
            })),
            next_hops,
            filters: Arc::default(),
            multicast: Arc::default(),
            mtus: Arc::new(Mtus::new(&infos)),
            interfaces: Arc::new(InterfaceInfos::new(infos.clone())),
            shared: Arc::default(),
            vlans: Arc::default(),
            flows: FlowHash::new(seed),
            own,
        });

        routes.publish_next_hops(&rib, &tables.named_hops);
        let near = NodeTables::new(&tables, first, &cpus);
        for (vrf, readers) in rib.vrfs().skip(1).zip(readers) {
            near.add_vrf(vrf, &readers);
        }
        let stop_slow_path = Arc::new(AtomicBool::new(false));
        let (events_out, events) = event_channel();
        let (teacher, lessons) = lessons();
        let keeper_settings = KeeperSettings::of(&config);
        let (quarantine, keeper) = quarantine::start(keeper_settings.clone())?;
        let common = Common {
            config: &config,
            ports: &ports,
            vlans: &vlans,
            buffers,
            tables: &tables,
            events: events_out,
            teacher,
            quarantine: quarantine.clone(),
            seed,
        };
        let factory = ForwarderFactory {
            eal: eal.clone(),
            buffers: buffers.clone(),
            qsbr: qsbr.clone(),
            // Each thread that may put packets into it has a copy.
            quarantine,
            workers: count,
            classes: config.slowpath.classes,
            next_hops: tables.next_hops.clone(),
            seed,
            cpus,
            buckets: Buckets::default(),
            interfaces: tables.interfaces.clone(),
        };
        buffers.check_queues(&config, count)?;
        signals.enter("the making of forwarders")?;
        let sets = NamedSets::new(&qsbr);
        let mut maker = GraphMaker::new(&program.catalogue, near.clone(), sets.clone());
        graphs::say_policies(&config);
        let (mut views, mut units, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        signals.check()?;
        let seats = placement.seats();
        let graphs = signals.unless_ended(maker.make_all(&seats, &config, &infos))?;
        for (place, graph) in seats.into_iter().enumerate().zip(graphs) {
            signals.check()?;
            let made = factory.make(
                place,
                graph,
                (settings::of_forwarders(&config), &schedulers::all(&config)),
                Arc::default(),
            )?;
            views.push(made.view);
            units.push(made.unit);
            ends.push(made.ends);
        }
        let (workers, slow, orders) = slow_workers(common, ends, &qsbr)?;
        let shape = units[0].shape().clone();
        let mut wiring = Wiring::new(factory, units, orders.clone(), Places::from(&placement));
        wiring.connect_at_start(queues)?;
        hosts.into_iter().for_each(|(vlan, host)| orders.attach_host(vlan, host));
        let script_counters = config.script.as_ref().map(|script| script.counters.clone());
        let ledger = Ledger {
            forwarders: views,
            slow,
            events: events.view(),
            shape,
            slowpath: config.slowpath,
            script_counters: script_counters.unwrap_or_default(),
            retired: Retired::default(),
        };
        let sources = owner::Sources::start(&config)?;
        let groups = owner::Groups::new(config.multicast.clone(), sources.groups(), tables.clone());
        let flows = FlowHash::new(seed);
        let workshop = Workshop::new(maker, opener.clone(), (program.clone(), source));
        let known = ports.known();
        let configurations = Configurations::new(config, routes, known, workshop);
        let parts = OwnerParts {
            rib,
            orders,
            events,
            lessons,
            sources,
            groups,
            ledger,
            wiring,
            cores: placement,
            configurations,
            ports,
            vlans,
            quarantine: keeper_settings,
            flows,
            tables,
            near,
            opener,
            readers: qsbr,
            sets,
            devices,
        };
        // From here on there are threads that only an orderly end stops.
        signals.check()?;
        let mut owner = Owner::new(parts);
        let (mut slow_path, mut alive) = (Vec::new(), Vec::new());
        for (index, worker) in workers.into_iter().enumerate() {
            let (stop, life) = (stop_slow_path.clone(), Arc::new(()));
            alive.push(Arc::downgrade(&life));
            slow_path.push(spawn_slow_path(worker, index, eal.clone(), stop, life)?);
        }
        owner.look_after(alive);
        owner.wiring().context(NO_WIRING)?.start()?;
        owner.steer_control();
        owner.warn_of_distance();
        owner.warn_of_silence();
        Ok(Self { owner, stop_slow_path, slow_path, quarantine: keeper })
    }

    /// Answers questions until a signal arrives, which it returns, then stops everything in order.
    fn serve(mut self, socket: Socket, telnet: Telnet, signals: Signals) -> Result<Option<Signal>> {
        let course = signals.course().clone();
        course.enter("the owner's thread");
        let served = self.owner.serve(socket, telnet, signals);
        let wiring = self.owner.wiring().context(NO_WIRING)?;
        let (mut units, complete) = wiring.end(&course);
        let mut failed = !complete;
        self.stop_slow_path.store(true, Ordering::Relaxed);
        self.owner.wake_slow_path();
        let mut workers = Vec::new();
        for (number, thread) in self.slow_path.into_iter().enumerate() {
            course.enter(format!("slow path worker {number}"));
            match thread.join() {
                Ok(worker) => workers.push(worker),
                Err(_) => failed = true,
            }
        }
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
        let patience = if has_nics { NIC_PATIENCE } else { PATIENCE };
        course.enter_for(format!("the closing of {}", names.join(", ")), patience);
        Port::close_all(devices);
        if failed {
            bail!("a thread ended by a panic: a defect, please report what stands above");
        }
        served
    }
}

/// The owner lends its wiring only while it serves.
const NO_WIRING: &str = "the forwarders are being changed: a defect, please report";

fn spawn_slow_path(
    mut worker: SlowWorker,
    index: usize,
    eal: Arc<Eal>,
    stop: Arc<AtomicBool>,
    life: Arc<()>,
) -> Result<JoinHandle<SlowWorker>> {
    let body = move || {
        let _life = life;
        let _registration = register(&eal);
        cores::sharpen_timer();
        worker.run(&stop);
        worker
    };
    Ok(thread::Builder::new().name(format!("slow-path-{index}")).spawn(body)?)
}

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

/// The parts common to all slow path workers.
struct Common<'a> {
    config: &'a Config,
    ports: &'a Ports,
    vlans: &'a OpenVlans,
    buffers: &'a Buffers,
    tables: &'a Arc<Tables>,
    events: EventSender,
    teacher: Teacher,
    quarantine: Quarantine,
    seed: u64,
}

fn slow_workers(
    common: Common<'_>,
    ends: Vec<Vec<WorkerEnds>>,
    qsbr: &Arc<Qsbr>,
) -> Result<(Vec<SlowWorker>, SlowViews, Orders)> {
    let (count, classes) = (common.config.slowpath.workers, &common.config.slowpath.classes);
    let class_rates = Arc::new(ClassRates::new(classes));
    let limits = common.config.slowpath.limits;
    let rates = Arc::new(slowpath::Rates::new(&limits, common.seed));
    let (mut workers, mut counters, mut orders) = (Vec::new(), Vec::new(), Vec::new());
    // By forwarder, from each of which every worker takes its own.
    let mut ends: Vec<_> = ends.into_iter().map(Vec::into_iter).collect();
    for (index, handoff_queue) in handoff_queues(count)?.into_iter().enumerate() {
        let ends = ends.iter_mut().filter_map(Iterator::next);
        let (punted, injectors) = ends.map(|ends| (ends.punted, ends.injector)).unzip();
        let (orders_out, orders_in) = order_queue(handoff_queue.doorbell().clone());
        let config = slow_path_config(&common, (index, count), limits);
        let count = Arc::new(SlowCounters::default());
        orders.push(orders_out);
        counters.push(count.clone());
        workers.push(SlowWorker {
            engine: SlowPath::sharing(config, rates.clone()),
            turns: PuntScheduler::new(punted, classes, class_rates.clone()),
            outbox: Outbox {
                injectors,
                senders: [None; MAX_PORTS],
                buffers: common.buffers.clone(),
                counters: count,
                events: common.events.clone(),
                tables: common.tables.clone(),
                hosts: BTreeMap::new(),
                tagger: Tagger::of(&common.tables.vlans),
                handoff_queue,
                gate: Gate::default(),
                learner: Learner::new(common.teacher.clone()),
            },
            orders: orders_in,
            quiescent: qsbr.register()?,
            quarantine: common.quarantine.clone(),
        });
    }
    Ok((workers, SlowViews { counters, rates, class_rates }, Orders::new(orders)))
}

/// For the engine of the worker with this index, of so many.
fn slow_path_config(
    common: &Common<'_>,
    (worker, workers): (usize, usize),
    limits: slowpath::Limits,
) -> slowpath::Config {
    let port = |port: &OpenPort| {
        let wanted = common.config.port(port.id)?;
        let owned = dataplane::punts::owner(port.id.index(), workers) == worker;
        Some(slowpath::InterfaceConfig { owned, ..settings::slow_path_port(port, wanted) })
    };
    let vlan = |vlan: &OpenVlan| {
        let wanted = common.config.vlan(vlan.id)?;
        let owned = dataplane::punts::owner(vlan.id.index(), workers) == worker;
        Some(slowpath::InterfaceConfig { owned, ..vlan.in_slow_path(wanted) })
    };
    let vlans = common.vlans.values().filter_map(vlan);
    slowpath::Config {
        interfaces: common.ports.iter().filter_map(port).chain(vlans).collect(),
        limits,
        icmp: common.config.icmp,
        flow: FlowHash::new(common.seed),
        seed: common.seed.wrapping_add(worker as u64),
    }
}

/// A number that differs between routers and between starts.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one("turnpike")
}
