//! What sources outside the router tell, brought into the RIB a batch at a time.
//!
//! ```text
//!   kernel (thread) --+                    links: at once
//!                     +-- batches --> backlog --> RIB, a batch a turn
//!   zebra (thread) ---+
//! ```
//!
//! Between two batches the owner answers whoever else asks, so a million routes keep nobody waiting
//! for longer than one batch. A link that goes down does not wait for the routes before it.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use control::config::Config;
use control::fpm::{self, FpmConfig, FpmSource};
use control::netlink::{
    self, AuditReport, Change, KernelConfig, KernelOrder, KernelSource, NeighbourState,
    SourceEvent, SourceState, SourceStatus,
};
use control::rib::{self, GroupKey, GroupSpec, Rib, Route, RouteKind, Source};
use dataplane::port::PortId;
use ipnet::IpNet;
use slowpath::Command;
use tokio::sync::mpsc;

use super::super::slow_worker::Order;
use super::limiter::Limiter;
use super::{Owner, tell};

/// Batches between the sources' threads and the owner.
const CHANNEL: usize = 16;

/// Batches that the owner holds; more stay in the channel, then with the sources.
const BACKLOG: usize = 32;

/// Routes of a first synchronisation that are put into the RIB together.
const LOAD: usize = 1 << 16;

/// How often an unfinished first synchronisation says how far it is.
const PROGRESS: Duration = Duration::from_secs(5);

/// The sources outside the router.
pub struct Sources {
    batches: mpsc::Receiver<Vec<SourceEvent>>,
    backlog: VecDeque<Vec<SourceEvent>>,
    kernel: Option<KernelSource>,
    fpm: Option<FpmSource>,
    /// The kernel's routes are wanted, not only its links, addresses and neighbours.
    kernel_routes: bool,
    /// Routes of a first synchronisation on their way into the RIB; `None` outside of one.
    loading: Option<Vec<Route>>,
    /// Sources whose first synchronisation has begun.
    begun: [bool; Source::ALL.len()],
    /// The kernel's first synchronisation is awaited.
    first: bool,
    next_progress: Instant,
    refused: [u64; Source::ALL.len()],
    limiter: Limiter,
}

impl Sources {
    /// Begins to listen to the sources that the configuration names. The host interfaces are there.
    pub fn start(config: &Config) -> Result<Self> {
        let (send, batches) = mpsc::channel(CHANNEL);
        let kernel = kernel_config(config).map(|kernel| netlink::spawn(kernel, send.clone()));
        let kernel = kernel.transpose().context("the kernel's routes and neighbours")?;
        let fpm = config.fpm.zip(kernel.as_ref()).map(|(settings, kernel)| {
            let netns = netns(config);
            let fpm = FpmConfig { netns, listen: settings.listen, keep: settings.keep };
            fpm::spawn(fpm, kernel.interfaces(), send)
        });
        let fpm = fpm.transpose().context("turnpike.fpm")?;
        if let Some(fpm) = &fpm {
            tracing::info!("listening for zebra on {}", fpm.local_addr());
        }
        Ok(Self {
            batches,
            backlog: VecDeque::new(),
            kernel_routes: config.routes_from.kernel.is_some(),
            first: config.routes_from.kernel.is_some(),
            kernel,
            fpm,
            loading: None,
            begun: [false; Source::ALL.len()],
            next_progress: Instant::now() + PROGRESS,
            refused: [0; Source::ALL.len()],
            limiter: Limiter::default(),
        })
    }

    /// How a source outside the router is; `None` for others.
    pub(super) fn status(&self, source: Source) -> Option<SourceStatus> {
        match source {
            Source::Kernel if self.kernel_routes => self.kernel.as_ref().map(KernelSource::status),
            Source::Fpm => self.fpm.as_ref().map(FpmSource::status),
            _ => None,
        }
    }

    /// Changes of a source that the RIB refused.
    pub(super) fn refused(&self, source: Source) -> u64 {
        self.refused[source.index()]
    }

    /// Asks the kernel of the host interfaces for something, if there is one.
    pub(super) fn order(&self, order: KernelOrder) {
        if let Some(kernel) = &self.kernel {
            kernel.order(order);
        }
    }

    /// The next batch, when there is one and room for it.
    pub(super) async fn receive(&mut self) -> Vec<SourceEvent> {
        if self.backlog.len() < BACKLOG
            && let Some(batch) = self.batches.recv().await
        {
            return batch;
        }
        // Full, or all sources have ended.
        std::future::pending().await
    }

    /// There is a batch to apply.
    pub(super) fn has_work(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Counts a refusal and says it, unless there were many lately.
    fn refuse(&mut self, source: Source, error: &rib::Error) {
        self.refused[source.index()] += 1;
        if self.limiter.allows(Instant::now()) {
            tracing::warn!("{}: {error}", source.name());
        }
    }
}

/// The file of the namespace that the host interfaces are in; `None`: the router's own.
fn netns(config: &Config) -> Option<std::path::PathBuf> {
    config.ports.iter().find_map(|port| port.host.as_ref())?.netns_path()
}

/// How the kernel is to be listened to; `None` if no port has a host interface.
fn kernel_config(config: &Config) -> Option<KernelConfig> {
    let hosts = config.ports.iter().enumerate().filter(|(_, port)| port.host.is_some());
    let ports: Vec<_> = hosts
        .filter_map(|(index, port)| {
            Some((PortId::new(u16::try_from(index).ok()?)?, port.name.clone()))
        })
        .collect();
    if ports.is_empty() && !config.routes_from.any() {
        return None;
    }
    let settings = config.routes_from.kernel.unwrap_or_default();
    Some(KernelConfig {
        netns: netns(config),
        ports,
        routes: config.routes_from.kernel.is_some(),
        audit: settings.audit.filter(|_| config.routes_from.kernel.is_some()),
        receive_buffer: settings.receive_buffer,
    })
}

impl Owner {
    /// Takes batches in as far as there is room; what they say of links is done at once.
    pub(super) fn take_in(&mut self, first: Vec<SourceEvent>) {
        let mut next = Some(first);
        while let Some(batch) = next {
            for event in &batch {
                if let &SourceEvent::Link { port, admin_up, mtu, .. } = event {
                    self.host_link(port, admin_up, mtu);
                }
            }
            self.sources.backlog.push_back(batch);
            let room = self.sources.backlog.len() < BACKLOG;
            next = room.then(|| self.sources.batches.try_recv().ok()).flatten();
        }
    }

    /// Brings the oldest batch into the RIB.
    pub(super) fn apply_batch(&mut self) {
        let Some(batch) = self.sources.backlog.pop_front() else { return };
        let Self { rib, sources, orders, .. } = self;
        if sources.loading.is_some() {
            batch.into_iter().for_each(|event| sources.apply(rib, orders, event));
            return;
        }
        rib.batch(|rib| batch.into_iter().for_each(|event| sources.apply(rib, orders, event)));
    }

    /// Says how far a first synchronisation is, now and then, and when it is complete.
    pub(super) fn watch_first_synchronisation(&mut self) {
        self.sources.report_suppressed();
        if self.ready {
            return;
        }
        if !self.sources.first_is_missing() {
            self.ready = true;
            self.say_ready();
        } else if Instant::now() >= self.sources.next_progress {
            self.sources.next_progress = Instant::now() + PROGRESS;
            let routes = self.sources.status(Source::Kernel).map_or(0, |status| status.routes);
            tracing::info!("not ready yet: {routes} routes of the kernel read so far");
        }
    }
}

impl Sources {
    /// The kernel's routes are wanted and not complete yet. A kernel that cannot be listened to
    /// is not waited for: its thread has said why.
    fn first_is_missing(&self) -> bool {
        let failed = self.status(Source::Kernel).is_some_and(|s| s.state == SourceState::Failed);
        self.first && !failed
    }

    fn apply(&mut self, rib: &mut Rib, orders: &Sender<Order>, event: SourceEvent) {
        match event {
            SourceEvent::Route { source, prefix, metric, change } => {
                self.route(rib, source, prefix, metric, change);
            }
            SourceEvent::Group { key, change } => self.group(rib, key, change),
            // Done when the batch came.
            SourceEvent::Link { .. } => {}
            SourceEvent::Addresses { port, addresses } => {
                if let Err(error) = rib.set_addresses(port, &addresses) {
                    self.refuse(Source::Local, &error);
                }
                tell(orders, Command::Addresses { port, addresses });
            }
            SourceEvent::LocalAddress { prefix, present: true } => {
                if let Err(error) = rib.add_local(prefix) {
                    self.refuse(Source::Local, &error);
                }
            }
            SourceEvent::LocalAddress { prefix, present: false } => {
                rib.remove_local(prefix);
            }
            SourceEvent::Neighbour { port, address, mac, state } => {
                tell(orders, Command::KernelNeighbour { port, address, mac });
                // What is in use is asked for before it ages away.
                if state == NeighbourState::Stale {
                    self.order(KernelOrder::Resolve { port, address });
                }
            }
            SourceEvent::ResyncBegin(source) => self.begin(rib, source),
            SourceEvent::ResyncEnd(source) => self.end(rib, source),
            SourceEvent::Audit(report) => say_audit(&report),
        }
    }

    fn route(
        &mut self,
        rib: &mut Rib,
        source: Source,
        prefix: IpNet,
        metric: u64,
        change: Change<RouteKind>,
    ) {
        let route = match change {
            Change::Set(kind) => Route { prefix, source, metric, kind },
            Change::Withdraw => {
                self.load(rib);
                rib.remove_one(prefix, source, metric);
                return;
            }
        };
        if let Some(loading) = &mut self.loading {
            loading.push(route);
            if loading.len() >= LOAD {
                self.load(rib);
            }
        } else if let Err(error) = rib.add(route) {
            self.refuse(source, &error);
        }
    }

    fn group(&mut self, rib: &mut Rib, key: GroupKey, change: Change<GroupSpec>) {
        self.load(rib);
        let source = key.source;
        match change {
            Change::Set(spec) => {
                if let Err(error) = rib.set_group(key, spec) {
                    self.refuse(source, &error);
                }
            }
            Change::Withdraw => {
                rib.remove_group(key);
            }
        }
    }

    /// Puts what is on its way into the RIB.
    fn load(&mut self, rib: &mut Rib) {
        let Some(loading) = self.loading.as_mut().filter(|loading| !loading.is_empty()) else {
            return;
        };
        let routes = std::mem::take(loading);
        let source = routes[0].source;
        let report = rib.load(routes);
        for error in &report.errors {
            self.refuse(source, error);
        }
        self.refused[source.index()] += (report.refused - report.errors.len()) as u64;
    }

    fn begin(&mut self, rib: &mut Rib, source: Source) {
        rib.begin_resync(source);
        // A first synchronisation is routes and nothing else, so they are loaded together.
        if !std::mem::replace(&mut self.begun[source.index()], true) {
            self.loading = Some(Vec::new());
        } else {
            tracing::info!("{}: synchronising again", source.name());
        }
    }

    fn end(&mut self, rib: &mut Rib, source: Source) {
        self.load(rib);
        self.loading = None;
        let gone = rib.end_resync(source);
        let summary = rib.summary();
        let routes = summary.ipv4[source.index()] + summary.ipv6[source.index()];
        let name = source.name();
        tracing::info!("{name}: synchronised, {routes} routes; {gone} were withdrawn meanwhile");
        if source == Source::Kernel {
            self.first = false;
        }
    }

    fn report_suppressed(&mut self) {
        if let Some(count) = self.limiter.suppressed(Instant::now()) {
            tracing::warn!("{count} more changes refused like those above; see show sources");
        }
    }
}

fn say_audit(report: &AuditReport) {
    let AuditReport { compared, missing, stale, different, took, .. } = report;
    if report.clean() {
        tracing::debug!("audit: {compared} routes are the kernel's, compared in {took:.1?}");
        return;
    }
    tracing::error!(
        "audit: of {compared} routes of the kernel {missing} were missing here, {stale} were left \
         over and {different} differed: a defect, please report; it has been put right: {}",
        report.examples.join("; ")
    );
}
