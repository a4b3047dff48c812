//! The start of a router, from a configuration to running threads.
//!
//! ```text
//!   open            ports, bonds, VLANs, host interfaces  nothing is sent or received yet
//!   load_routes     RIB, FIBs, the forwarders' tables
//!   make_forwarders graphs, forwarders and their rings
//!   slow_workers    the slow path's engines
//!   owner           the owner, which holds what the steps above made
//!   run             the threads
//! ```
//!
//! Each step returns what it made; an error drops that, which undoes it. From the last step on there are threads that
//! only an orderly end stops.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use control::config::{Config, PathHash, Slowpath};
use control::cores::CorePlacement;
use control::rib::Rib;
use dataplane::flow::FlowHash;
use dataplane::forwarder::Forwarder;
use dataplane::interface::{InterfaceId, InterfaceInfo, InterfaceInfos, Mtus};
use dataplane::next_hop::NextHopTable;
use dataplane::own::OwnAddresses;
use dataplane::port::MAX_PORTS;
use dataplane::punts::{WORKERS_MAX, owner as owner_of};
use dataplane::quarantine::Quarantine;
use dataplane::tables::Tables;
use dpdk::DeviceEvents;
use dpdk::qsbr::Qsbr;
use machine::cores;
use machine::cpu::Cpus;
use slowpath::SlowPath;

use super::archive::{Archive, State};
use super::buffers::Buffers;
use super::forwarders::ForwarderFactory;
use super::graphs::{self, GraphMaker};
use super::in_kernel::InKernel;
use super::node_tables::{NodeTables, nodes_of};
use super::owner::{
    self, Configurations, Devices, Filtering, Forwarding, Owner, Routing, SlowPathLink,
    StaticRoutes,
};
use super::ports::{OpenPort, Opener, Ports};
use super::prepare::Preparation;
use super::program::{ConfigSource, Program};
use super::quarantine::{self, KeeperSettings};
use super::reports::{ForwarderView, Ledger, Retired, SlowViews};
use super::schedulers::{self, Buckets};
use super::sets::NamedSets;
use super::settings;
use super::signals::Signals;
use super::slow_worker::{
    ClassRates, Common, Orders, SlowCounters, SlowThreads, SlowWorker, by_worker, event_channel,
    learned_flows, places,
};
use super::virtuals::{self, Hosts, OpenVirtual, OpenVirtuals};
use super::wiring::{Places, Queues, Wiring, WorkerEnds};
use super::{CONTROL_FORWARDERS, NO_WIRING, RECEIVERS, Router};

/// The configuration of the start.
pub struct Described {
    /// The configuration.
    pub config: Config,
    /// The file of the start.
    pub source: ConfigSource,
    /// The reason for which that file was refused, if the configuration is the last good one.
    pub refused: Option<String>,
    /// Configurations of earlier runs, and where they are kept.
    pub archive: Option<(Archive, State)>,
}

/// The router that is to be started, and what each step needs.
pub struct Start<'a> {
    /// The configuration.
    described: Described,
    /// The program's steps.
    program: &'a Program,
    /// Cores of forwarders, and of all other threads.
    placement: CorePlacement,
    /// The machine's processors.
    cpus: Arc<Cpus>,
    /// Opens ports.
    opener: Opener,
    /// Packet memory.
    buffers: &'a Buffers,
    /// Tracks the threads that have packets.
    readers: Arc<Qsbr>,
    /// A number that differs between routers and between starts.
    seed: u64,
}

/// Open ports, bonds, VLANs and host interfaces.
struct Open {
    events: DeviceEvents,
    ports: Ports,
    queues: Vec<Queues>,
    infos: Vec<InterfaceInfo>,
    virtuals: OpenVirtuals,
    /// Host interfaces of bonds and VLANs.
    hosts: Hosts,
}

/// Routes, and the tables with them.
struct Loaded {
    rib: Rib,
    /// The configuration's.
    routes: StaticRoutes,
    tables: Arc<Tables>,
    near: NodeTables,
}

/// Forwarders that do not run yet.
struct Made {
    factory: ForwarderFactory,
    maker: GraphMaker,
    sets: NamedSets,
    views: Vec<ForwarderView>,
    units: Vec<Forwarder>,
    /// Their rings to workers, by forwarder.
    ends: Vec<Vec<WorkerEnds>>,
}

impl<'a> Start<'a> {
    /// Of a router with this configuration on these cores.
    pub fn new(
        described: Described,
        program: &'a Program,
        (placement, cpus): (CorePlacement, Arc<Cpus>),
        opener: Opener,
        buffers: &'a Buffers,
    ) -> Result<Self> {
        // There may be as many forwarders later as there are cores for them.
        let most = placement.forward.len().max(cores::allowed()?.len() + RECEIVERS);
        let forwarders = most + CONTROL_FORWARDERS;
        // Those that replace workers begin before these have ended.
        let readers = Qsbr::new(forwarders + 2 * WORKERS_MAX);
        let seed = seed();
        Ok(Self { described, program, placement, cpus, opener, buffers, readers, seed })
    }

    /// The hash by which paths are selected, with the configured seed, if there is one, and fields.
    fn flow_hash(&self) -> FlowHash {
        let PathHash { seed, fields } = self.described.config.forwarding.hash;
        FlowHash::new(seed.map_or(self.seed, u64::from)).with_fields(fields)
    }

    /// All steps, one after the other.
    pub fn run(self, signals: &mut Signals) -> Result<Router> {
        let open = self.open()?;
        signals.enter("the loading of routes")?;
        let loaded = self.load_routes(&open, signals)?;
        let (events_out, events) = event_channel();
        let (shared, learned) = learned_flows();
        let settings = KeeperSettings::of(&self.described.config);
        let (quarantine, keeper) = quarantine::start(settings.clone())?;
        self.buffers.check_queues(&self.described.config, self.placement.served())?;
        signals.enter("the making of forwarders")?;
        graphs::say_policies(&self.described.config);
        let mut made = self.make_forwarders(&open.infos, &loaded, &quarantine, signals)?;
        let classes = self.described.config.slowpath.classes;
        let common = Common {
            senders: [None; MAX_PORTS],
            buffers: self.buffers.clone(),
            events: events_out,
            tables: loaded.tables.clone(),
            shared,
            quarantine,
            start: Instant::now(),
            limits: classes,
            rates: Arc::new(ClassRates::new(&classes)),
        };
        let ends = std::mem::take(&mut made.ends);
        let (workers, slow, orders) = self.slow_workers(common, &open, ends)?;
        let threads = SlowThreads::new(self.opener.eal().clone());
        let link = SlowPathLink::new((orders, threads), events, learned, settings);
        let owner = self.owner((open, loaded, made), slow, link)?;
        signals.check()?;
        launch(owner, (workers, keeper))
    }

    fn open(&self) -> Result<Open> {
        let Self { described: Described { config, .. }, opener, .. } = self;
        let events = DeviceEvents::listen(opener.eal())?;
        let (ports, queues) = opener.open_all(config, self.placement.served())?;
        let mut infos = ports.infos();
        virtuals::add_infos(config, &mut infos)?;
        let hosts = virtuals::open_hosts(opener, config, &infos)?;
        opener.forget_other_hosts();
        let virtuals = virtuals::open_all(config, &infos, &hosts);
        Ok(Open { events, ports, queues, infos, virtuals, hosts })
    }

    fn load_routes(&self, open: &Open, signals: &mut Signals) -> Result<Loaded> {
        let Self { described: Described { config, .. }, cpus, .. } = self;
        let seed = config.forwarding.hash.seed.map_or(self.seed, u64::from);
        let in_kernel = InKernel::of(config, seed).context("the tables of XDP programs")?;
        let copy = in_kernel.as_ref().map(InKernel::next_hops);
        let next_hops = Arc::new(NextHopTable::with_copy(copy));
        let (mut rib, routes, readers) = owner::build_rib(
            config,
            (&open.ports, &open.virtuals, &nodes_of(cpus)),
            next_hops.clone(),
            (&self.readers, in_kernel.as_ref()),
            signals,
        )?;
        let own = Arc::new(OwnAddresses::new(config.forwarding.class_e));
        rib.share_addresses(own.clone());
        let near = NodeTables::new(&readers, cpus, |vrfs| Tables {
            named_hops: Arc::default(),
            mirrors: Arc::default(),
            vrfs,
            next_hops,
            filters: Arc::default(),
            multicast: Arc::default(),
            mtus: Arc::new(Mtus::new(&open.infos)),
            interfaces: Arc::new(InterfaceInfos::new(open.infos.clone())),
            shared: Arc::default(),
            vlans: Arc::default(),
            flows: self.flow_hash(),
            own,
        });
        let tables = near.common().clone();
        routes.publish_next_hops(&rib, &tables.named_hops);
        Ok(Loaded { rib, routes, tables, near })
    }

    fn make_forwarders(
        &self,
        infos: &[InterfaceInfo],
        loaded: &Loaded,
        quarantine: &Quarantine,
        signals: &mut Signals,
    ) -> Result<Made> {
        let config = &self.described.config;
        let factory = ForwarderFactory {
            eal: self.opener.eal().clone(),
            buffers: self.buffers.clone(),
            qsbr: self.readers.clone(),
            // Each thread that may put packets into it has a copy.
            quarantine: quarantine.clone(),
            workers: config.slowpath.workers,
            generation: 0,
            classes: config.slowpath.classes,
            next_hops: loaded.tables.next_hops.clone(),
            seed: self.seed,
            cpus: self.cpus.clone(),
            buckets: Buckets::default(),
            interfaces: loaded.tables.interfaces.clone(),
        };
        let sets = NamedSets::new(&self.readers);
        let catalogue = &self.program.catalogue;
        let mut maker = GraphMaker::new(catalogue, loaded.near.clone(), sets.clone());
        let (mut views, mut units, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        signals.check()?;
        let seats = self.placement.seats();
        let graphs = signals.unless_ended(maker.make_all(&seats, config, infos))?;
        for (place, graph) in seats.into_iter().enumerate().zip(graphs) {
            signals.check()?;
            let settings = (settings::of_forwarders(config), &schedulers::all(config)[..]);
            let made = factory.make(place, graph, settings, Arc::default())?;
            views.push(made.view);
            units.push(made.unit);
            ends.push(made.ends);
        }
        Ok(Made { factory, maker, sets, views, units, ends })
    }

    /// The slow path's workers, with these ends of the rings by forwarder.
    fn slow_workers(
        &self,
        common: Common,
        open: &Open,
        ends: Vec<Vec<WorkerEnds>>,
    ) -> Result<(Vec<SlowWorker>, SlowViews, Orders)> {
        let Slowpath { workers: count, limits, .. } = self.described.config.slowpath;
        let rates = Arc::new(slowpath::Rates::new(&limits, self.seed));
        let counters: Vec<Arc<SlowCounters>> = (0..count).map(|_| Arc::default()).collect();
        let (places, orders) = places(&counters, &self.readers)?;
        let make = |(number, (place, ends))| {
            let config = self.slow_path_config(open, (number, count));
            common.worker(place, SlowPath::sharing(config, rates.clone()), ends)
        };
        let workers =
            places.into_iter().zip(by_worker(ends, count)).enumerate().map(make).collect();
        let class_rates = common.rates.clone();
        Ok((workers, SlowViews { counters, rates, class_rates }, Orders::new(orders)))
    }

    /// For the engine of the worker with this number, of so many.
    fn slow_path_config(&self, open: &Open, (worker, workers): (usize, usize)) -> slowpath::Config {
        let config = &self.described.config;
        let owned = |id: InterfaceId| owner_of(id.index(), workers) == worker;
        let port = |port: &OpenPort| {
            let wanted = config.port(port.id).filter(|wanted| wanted.bond.is_none())?;
            let owned = owned(port.id.into());
            Some(slowpath::InterfaceConfig { owned, ..settings::slow_path_port(port, wanted) })
        };
        let upper = |of: &OpenVirtual| {
            let wanted = config.virtual_interface(of.id)?;
            let owned = owned(of.id);
            Some(slowpath::InterfaceConfig { owned, ..of.in_slow_path(wanted) })
        };
        let uppers = open.virtuals.values().filter_map(upper);
        slowpath::Config {
            interfaces: open.ports.iter().filter_map(port).chain(uppers).collect(),
            limits: config.slowpath.limits,
            icmp: config.icmp,
            flow: self.flow_hash(),
            seed: self.seed.wrapping_add(worker as u64),
        }
    }

    /// The owner of all that, with the forwarders connected to their ports.
    fn owner(
        self,
        (open, loaded, made): (Open, Loaded, Made),
        slow: SlowViews,
        link: SlowPathLink,
    ) -> Result<Owner> {
        let flows = self.flow_hash();
        let Self { described, program, placement, opener, readers, .. } = self;
        let Described { config, source, refused, archive } = described;
        let Open { events, ports, queues, virtuals, hosts, .. } = open;
        let Loaded { rib, routes, tables, near } = loaded;
        let Made { factory, maker, sets, views, units, .. } = made;
        let shape = units[0].shape().clone();
        let orders = link.orders.clone();
        let places = Places::new(&placement, config.forwarders.events.as_ref());
        let mut wiring = Wiring::new(factory, units, orders.clone(), places)?;
        wiring.connect_at_start(queues)?;
        hosts.into_iter().for_each(|(of, host)| orders.attach_host(of, host));
        let script_counters = config.script.as_ref().map(|script| script.counters.clone());
        let ledger = Ledger {
            forwarders: views,
            slow,
            events: link.events.view(),
            shape,
            slowpath: config.slowpath,
            script_counters: script_counters.unwrap_or_default(),
            retired: Retired::default(),
        };
        let sources = owner::Sources::start(&config)?;
        let groups = owner::Groups::new(config.multicast.clone(), sources.groups(), tables.clone());
        let preparation =
            Preparation::new(maker, opener.clone(), (program.clone(), source), readers.clone());
        let configurations =
            Configurations::new((config, refused), archive, routes, ports.known(), preparation);
        let filtering = Filtering::new(&tables, sets);
        Ok(Owner::new(
            Routing::new(rib, (sources, groups), (tables, near), readers),
            Devices::new((ports, virtuals), opener, events),
            Forwarding::new(wiring, placement, flows, ledger),
            link,
            filtering,
            configurations,
        ))
    }
}

/// Starts the threads: the slow path's first, which forwarders punt to.
fn launch(
    mut owner: Owner,
    (workers, keeper): (Vec<SlowWorker>, JoinHandle<()>),
) -> Result<Router> {
    owner.start_slow_path(workers)?;
    owner.wiring().context(NO_WIRING)?.start()?;
    owner.steer_control();
    owner.warn_of_distance();
    owner.warn_of_silence();
    Ok(Router { owner, quarantine: keeper })
}

/// A number that differs between routers and between starts.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one("turnpike")
}
