//! The owner's state, by concern.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use control::cores::CorePlacement;
use control::rib::Rib;
use dataplane::filters::Filters;
use dataplane::flow::FlowHash;
use dataplane::interface::MAX_INTERFACES;
use dataplane::port::PortId;
use dataplane::tables::Tables;
use dpdk::DeviceEvents;
use dpdk::qsbr::{Qsbr, Token};
use tokio::sync::mpsc;

use super::super::carriers::Carriers;
use super::super::export;
use super::super::graphs::FailureLog;
use super::super::http;
use super::super::manager::Manager;
use super::super::metrics;
use super::super::node_tables::NodeTables;
use super::super::ports::{Opener, Ports};
use super::super::quarantine::KeeperSettings;
use super::super::reports::Ledger;
use super::super::server::Service;
use super::super::server::access::Roles;
use super::super::sets::NamedSets;
use super::super::slow_worker::{EventReceiver, LearnedFlows, Orders, SlowThreads};
use super::super::virtuals::OpenVirtuals;
use super::super::wiring::{Hurry, Wiring};
use super::bonds::BondControls;
use super::commands::Places;
use super::filter_log::Watches;
use super::hardware_filters::DeviceHits;
use super::health::Health;
use super::hotplug::Absentees;
use super::imports::Imports;
use super::interference::Watched;
use super::links::Link;
use super::load::Loads;
use super::meanwhile::{Inputs, Later};
use super::multicast::Groups;
use super::questions::LongQueries;
use super::rebalance::Balance;
use super::sources::Sources;
use super::watch::PortNotification;
use super::watches::Observers;

/// Routes, where they come from, and the tables into which they go.
pub struct Routing {
    /// The RIB.
    pub(super) rib: Rib,
    /// The kernel and zebra.
    pub(super) sources: Sources,
    /// Imports that go on.
    pub(super) imports: Imports,
    /// Multicast routes.
    pub(super) groups: Groups,
    /// The tables that forwarders read.
    pub(super) tables: Arc<Tables>,
    /// The same by NUMA node.
    pub(super) near: NodeTables,
    /// Tracks the threads that have packets.
    pub(super) readers: Arc<Qsbr>,
    /// Set while the slow path may read FIBs that were replaced.
    pub(super) former_fibs: Option<Token>,
}

impl Routing {
    /// Creates it with the RIB of the configured routes.
    pub fn new(
        rib: Rib,
        (sources, groups): (Sources, Groups),
        (tables, near): (Arc<Tables>, NodeTables),
        readers: Arc<Qsbr>,
    ) -> Self {
        Self {
            rib,
            sources,
            imports: Imports::default(),
            groups,
            tables,
            near,
            readers,
            former_fibs: None,
        }
    }
}

/// Ports, bonds and VLANs, their devices, links and health.
pub struct Devices {
    /// The ports by their numbers.
    pub(super) ports: Ports,
    /// The bonds and VLANs that run.
    pub(super) virtuals: OpenVirtuals,
    /// The ports of the bonds among them.
    pub(super) bonds: BondControls,
    /// The carriers of the bonds' ports.
    pub(super) carriers: Carriers,
    /// By the interfaces' numbers.
    pub(super) links: Box<[Link]>,
    /// Opens ports that come later.
    pub(super) opener: Opener,
    /// Events of devices.
    pub(super) events: DeviceEvents,
    pub(super) health: Health,
    pub(super) absentees: Absentees,
    /// Reports of the threads that close and open devices, until the watch takes them over.
    pub(super) helpers: Option<mpsc::UnboundedReceiver<PortNotification>>,
    /// Ports whose distance from their forwarders' nodes was logged, with the message.
    pub(super) distances: BTreeMap<PortId, String>,
    /// Ports whose lack of receive interrupts was logged.
    pub(super) silent: BTreeSet<PortId>,
}

impl Devices {
    /// Creates those of the open ports, bonds and VLANs.
    pub fn new(
        (ports, virtuals): (Ports, OpenVirtuals),
        opener: Opener,
        events: DeviceEvents,
    ) -> Self {
        let (absentees, helpers) = Absentees::new();
        Self {
            ports,
            virtuals,
            bonds: BondControls::new(),
            carriers: Carriers::default(),
            links: vec![Link::default(); MAX_INTERFACES].into(),
            opener,
            events,
            health: Health::default(),
            absentees,
            helpers: Some(helpers),
            distances: BTreeMap::new(),
            silent: BTreeSet::new(),
        }
    }
}

/// Forwarders: their connections, cores, load and counters.
pub struct Forwarding {
    /// `None` while a change works with it.
    pub(super) wiring: Option<Wiring>,
    /// Set when forwarders are not to be waited for any longer.
    pub(super) hurry: Hurry,
    /// Cores of forwarders, and of all other threads.
    pub(super) cores: CorePlacement,
    /// The forwarders' threads.
    pub(super) watched: Watched,
    pub(super) loads: Loads,
    pub(super) balance: Balance,
    /// The hash by which forwarders choose among paths.
    pub(super) flows: FlowHash,
    /// Failures of steps in Lua.
    pub(super) failures: FailureLog,
    /// The trace and the captures under way.
    pub(super) observers: Observers,
    /// Counters of all units.
    pub(super) ledger: Ledger,
}

impl Forwarding {
    /// Creates it for forwarders with these connections on these cores.
    pub fn new(wiring: Wiring, cores: CorePlacement, flows: FlowHash, ledger: Ledger) -> Self {
        Self {
            hurry: wiring.exchanges.hurry(),
            wiring: Some(wiring),
            cores,
            watched: Watched::default(),
            loads: Loads::default(),
            balance: Balance::default(),
            flows,
            failures: FailureLog::default(),
            observers: Observers::default(),
            ledger,
        }
    }
}

/// The connection to the slow path's workers.
pub struct SlowPathLink {
    /// Orders to them.
    pub orders: Orders,
    /// Their events.
    pub events: EventReceiver,
    /// The flows that the host begins.
    pub(super) learned: LearnedFlows,
    /// The workers' threads.
    pub(super) threads: SlowThreads,
    /// The settings of the thread that keeps packets.
    pub(super) quarantine: KeeperSettings,
}

impl SlowPathLink {
    /// Creates it, with threads that have no workers yet.
    pub fn new(
        (orders, threads): (Orders, SlowThreads),
        events: EventReceiver,
        learned: LearnedFlows,
        quarantine: KeeperSettings,
    ) -> Self {
        Self { orders, events, learned, threads, quarantine }
    }
}

/// Packet filters.
pub struct Filtering {
    /// The filters that forwarders have.
    pub(super) filters: Filters,
    pub(super) device_hits: DeviceHits,
    /// Rules whose packets commands have logged.
    pub(super) logged: Watches,
    /// The sets that filters name.
    pub(super) sets: NamedSets,
}

impl Filtering {
    /// Creates it with the filters that forwarders have in these tables.
    pub fn new(tables: &Tables, sets: NamedSets) -> Self {
        let filters = tables.filters.use_next(&tables.interfaces.get());
        let (device_hits, logged) = (DeviceHits::default(), Watches::default());
        Self { filters, device_hits, logged, sets }
    }
}

/// The owner's loop, and those who ask it.
#[derive(Default)]
pub(super) struct Serving {
    /// The API's.
    pub(super) socket: PathBuf,
    /// The thread of the API and telnet, while the router serves.
    pub(super) service: Option<Service>,
    /// The listeners for metrics, and their thread.
    pub(super) metrics: Option<metrics::Service>,
    /// The API over HTTP.
    pub(super) api: Option<http::Service>,
    /// The thread of exporters.
    pub(super) exports: Option<export::Service>,
    /// The roles of users.
    pub(super) roles: Arc<Roles>,
    /// Commands in Lua that run.
    pub(super) places: Places,
    pub(super) long_queries: LongQueries,
    /// True if everything that a start waits for is done.
    pub(super) ready: bool,
    pub(super) manager: Manager,
    /// Inputs of the loop, while the router serves.
    pub(super) inputs: Option<Inputs>,
    pub(super) later: Later,
}
