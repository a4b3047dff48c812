//! Data for collectors and managers: sFlow, IPFIX, and objects for an SNMP agent.
//!
//! ```text
//!   forwarders: samples --> stocks --+
//!                                    v          +--> UDP: sFlow and IPFIX collectors
//!   owner <-- Ask -- answers --> thread "export"
//!                                               +--> Unix socket: SNMP agent (AgentX)
//! ```
//!
//! The thread runs while the configuration has one of the statements. It takes what forwarders have sampled, asks the
//! owner for the routes of these packets, and never waits for a collector: a datagram for which a socket has no room is
//! counted. If it cannot keep up, stocks run empty, and samples are lost and counted; forwarding does not notice.
//!
//! | file | concern |
//! |---|---|
//! | `collectors.rs` | sockets of collectors |
//! | `sampling.rs` | sampled packets and their routes |
//! | `sflow.rs`, `ipfix.rs` | the two exporters |
//! | `snmp.rs`, `mib.rs` | the session with an SNMP agent, and its objects |

mod collectors;
mod ipfix;
mod mib;
mod sampling;
mod sflow;
mod snmp;

use std::io;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use api::report::Exporters;
use control::config::{self, Config};
use dataplane::interface::InterfaceId;
use dataplane::lock::lock;
use dataplane::port::PortId;
use dataplane::samples::SampleTable;
use dataplane::tables::Tables;
use ipnet::IpNet;
use samples::Route;
use samples::headers::Headers;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use wire::MacAddr;

use super::server::Question;

/// Time between two looks at the stocks.
const TICK: Duration = Duration::from_millis(50);

/// Time limit for an answer of the owner.
const PATIENCE: Duration = Duration::from_secs(1);

/// A question of the thread to the owner, with the channel for its answer.
pub enum Ask {
    /// The ways of these packets.
    Paths(Vec<PathQuery>, oneshot::Sender<Vec<PathFound>>),
    /// All interfaces.
    Interfaces(oneshot::Sender<Vec<InterfaceRow>>),
    /// Routes in use of the default VRF from a prefix on.
    Routes(Bound<IpNet>, oneshot::Sender<RoutePage>),
    /// The number of prefixes in its route tables.
    RouteCount(oneshot::Sender<u32>),
}

/// Some routes.
pub struct RoutePage {
    /// A row for each path.
    pub rows: Vec<RouteRow>,
    /// The last prefix that was looked at; `None` at the end.
    pub next: Option<IpNet>,
}

/// A path of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRow {
    /// The destination.
    pub prefix: IpNet,
    /// The gateway; `None`: the destination itself, or none.
    pub next_hop: Option<IpAddr>,
    /// The number of its interface; 0: none.
    pub interface: u32,
    /// Its type (RFC 4292: inetCidrRouteType).
    pub kind: i32,
    /// Its source (IANA-RTPROTO-MIB).
    pub protocol: i32,
    /// Its metric.
    pub metric: i32,
}

/// A packet whose way is asked for.
pub struct PathQuery {
    /// The port that received it.
    pub port: PortId,
    /// The frame's first bytes.
    pub frame: Vec<u8>,
    /// Its headers.
    pub headers: Headers,
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathFound {
    /// The number of the interface that received it: a VLAN, a bond or a port.
    pub input: u32,
    /// Its route.
    pub route: Route,
}

/// An interface as collectors and managers see it.
#[derive(Clone, Debug)]
pub struct InterfaceRow {
    /// Its number: [`number_of`].
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The statement: `port`, `bond`, `vlan` or `loopback`.
    pub kind: String,
    /// The number of the interface that carries its frames.
    pub parent: Option<u32>,
    /// Its MAC; `None`: a loopback, or a port whose device is not there.
    pub mac: Option<MacAddr>,
    /// Its MTU.
    pub mtu: u16,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its link: `up`, `down` or `gone`.
    pub link: String,
    /// Frames and bytes received and sent.
    pub rx_packets: u64,
    /// See [`Self::rx_packets`].
    pub rx_bytes: u64,
    /// See [`Self::rx_packets`].
    pub tx_packets: u64,
    /// See [`Self::rx_packets`].
    pub tx_bytes: u64,
    /// Counts and properties of a port's device.
    pub device: Option<DeviceRow>,
}

/// Counts and properties of a port's device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRow {
    /// Its rate in Mbit/s, if it is known.
    pub speed_mbps: Option<u32>,
    /// Duplex of its link, if it is known.
    pub full_duplex: Option<bool>,
    /// True if it accepts frames for other MAC addresses.
    pub promiscuous: bool,
    /// Frames for which there was no room.
    pub rx_missed: u64,
    /// Frames received broken.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
}

/// Returns the number of an interface for collectors and managers: an ifIndex, from 1 on. It stays while the router runs and
/// the interface exists.
pub fn number_of(interface: InterfaceId) -> u32 {
    interface.index() as u32 + 1
}

/// The statements that the thread serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    sflow: Option<config::Sflow>,
    ipfix: Option<config::Ipfix>,
    snmp: Option<config::Snmp>,
}

impl Wanted {
    fn of(config: &Config) -> Self {
        Self { sflow: config.sflow.clone(), ipfix: config.ipfix.clone(), snmp: config.snmp.clone() }
    }
}

/// The thread; dropping this ends it, without waiting for it.
pub struct Service {
    wanted: watch::Sender<Wanted>,
    report: Arc<Mutex<Exporters>>,
    thread: JoinHandle<()>,
}

impl Service {
    /// Returns true if a configuration needs the thread.
    pub fn is_needed(config: &Config) -> bool {
        Wanted::of(config) != Wanted::default()
    }

    /// Starts it for a configuration. `since`: the start of the router.
    ///
    /// # Errors
    /// There are too many threads or descriptors.
    pub fn start(
        config: &Config,
        questions: mpsc::Sender<Question>,
        tables: &Tables,
        since: Instant,
    ) -> io::Result<Self> {
        let (wanted, to_follow) = watch::channel(Wanted::of(config));
        let report = Arc::<Mutex<Exporters>>::default();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let exporters = Running {
            owner: Arc::new(OwnerLink(questions)),
            samples: tables.shared.get(),
            since,
            sflow: None,
            ipfix: None,
            snmp: None,
            report: report.clone(),
        };
        let body = move || runtime.block_on(exporters.run(to_follow));
        let thread = thread::Builder::new().name("export".to_owned()).spawn(body)?;
        Ok(Self { wanted, report, thread })
    }

    /// Serves another configuration.
    pub fn follow(&self, config: &Config) {
        self.wanted.send_if_modified(|wanted| {
            let new = Wanted::of(config);
            let is_other = *wanted != new;
            *wanted = new;
            is_other
        });
    }

    /// Returns the place of its reports.
    pub fn board(&self) -> Arc<Mutex<Exporters>> {
        self.report.clone()
    }

    /// Ends it. The owner must not owe it an answer.
    pub fn end(self) {
        drop(self.wanted);
        // A panic has been logged.
        let _ = self.thread.join();
    }
}

/// The way to the owner.
struct OwnerLink(mpsc::Sender<Question>);

impl OwnerLink {
    /// Asks it; `None` if it does not answer in time.
    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Option<T> {
        let (to, answer) = oneshot::channel();
        let asked = async {
            self.0.send(Question::Export(make(to))).await.ok()?;
            answer.await.ok()
        };
        timeout(PATIENCE, asked).await.ok().flatten()
    }

    async fn interfaces(&self) -> Option<Vec<InterfaceRow>> {
        self.ask(Ask::Interfaces).await
    }
}

/// The exporters.
struct Running {
    owner: Arc<OwnerLink>,
    samples: Arc<SampleTable>,
    since: Instant,
    sflow: Option<sflow::Exporter>,
    ipfix: Option<ipfix::Exporter>,
    snmp: Option<snmp::Snmp>,
    report: Arc<Mutex<Exporters>>,
}

impl Running {
    async fn run(mut self, mut wanted: watch::Receiver<Wanted>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        wanted.mark_changed();
        loop {
            tokio::select! {
                changed = wanted.changed() => match changed {
                    Ok(()) => {
                        let new = wanted.borrow_and_update().clone();
                        self.follow(&new);
                    }
                    Err(_) => break,
                },
                _ = ticks.tick() => self.work().await,
            }
            self.publish();
        }
        self.follow(&Wanted::default());
    }

    fn follow(&mut self, wanted: &Wanted) {
        self.follow_agent(wanted.snmp.as_ref());
        match (&mut self.sflow, &wanted.sflow) {
            (Some(exporter), Some(settings)) => exporter.follow(settings),
            (sflow, settings) => {
                let stock = || self.samples.stock(config::exports::SFLOW);
                *sflow = settings
                    .as_ref()
                    .map(|settings| sflow::Exporter::new(settings, stock(), self.since));
            }
        }
        match (&mut self.ipfix, &wanted.ipfix) {
            (Some(exporter), Some(settings)) => exporter.follow(settings),
            (ipfix, settings) => {
                ipfix.iter_mut().for_each(ipfix::Exporter::end);
                let stock = || self.samples.stock(config::exports::IPFIX);
                *ipfix = settings.as_ref().map(|settings| ipfix::Exporter::new(settings, stock()));
            }
        }
    }

    /// Begins or ends the session with the agent.
    fn follow_agent(&mut self, wanted: Option<&config::Snmp>) {
        let stays = |snmp: &snmp::Snmp| wanted.is_some_and(|of| snmp.is_at(&of.agentx));
        if self.snmp.as_ref().is_none_or(|snmp| !stays(snmp)) {
            self.snmp = wanted.map(|of| snmp::Snmp::start(&of.agentx, self.owner.clone()));
        }
    }

    async fn work(&mut self) {
        if let Some(sflow) = &mut self.sflow {
            sflow.work(&self.owner).await;
        }
        if let Some(ipfix) = &mut self.ipfix {
            ipfix.work(&self.owner).await;
        }
    }

    fn publish(&self) {
        let sflow = self.sflow.as_ref().map(sflow::Exporter::report);
        let ipfix = self.ipfix.as_ref().map(ipfix::Exporter::report);
        let exporters = sflow.into_iter().chain(ipfix).collect();
        let snmp = self.snmp.as_ref().map(snmp::Snmp::report);
        *lock(&self.report) = Exporters { exporters, snmp };
    }
}
