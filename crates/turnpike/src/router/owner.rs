//! The owner: holds the RIB, hears from the slow path, answers the API, waits for signals.
//!
//! ```text
//!   API clients --- Question ----+
//!   slow path ----- Event -------+--> Owner (one task) --- Order --> slow path
//!   SIGTERM, SIGINT -------------+        |
//!   every 100 ms --- tick -------+        +--> FIB, next-hop table (read by forwarders)
//! ```
//!
//! Everything runs on the main thread's tokio runtime, so nothing here is shared or locked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use control::config::Config;
use control::rib::{
    self, LivePath, LookupInfo, ResolverCommand, Rib, RibPort, RouteInfo, Source, Target,
};
use dataplane::next_hop::NextHopTable;
use dataplane::port::PortId;
use dpdk::qsbr::Qsbr;
use ipnet::IpNet;
use serde::Serialize;
use slowpath::{Command, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::ports::OpenPort;
use super::reports::Ledger;
use super::slow_worker::Order;
use crate::api::report::{Neighbour, Path, Port, ResolvedPath, Route, RouteAnswer};
use crate::api::server::{Question, Socket};
use crate::api::{Answer, Request, Show};
use crate::grace::Grace;

/// Both families' lookup sides.
pub type Readers = (Arc<dyn fib::Lookup<Ipv4Addr>>, Arc<dyn fib::Lookup<Ipv6Addr>>);

/// Makes the RIB with everything the configuration says: routes, neighbours, imported tables.
pub fn build_rib(
    config: &Config,
    ports: &[OpenPort],
    next_hops: Arc<NextHopTable>,
    qsbr: &Arc<Qsbr>,
) -> Result<(Rib, Readers)> {
    let grace = || Box::new(Grace(qsbr.clone()));
    let fib4 = fib::new_ipv4(config.fib.ipv4, grace())?;
    let fib6 = fib::new_ipv6(config.fib.ipv6, grace())?;
    let readers = (fib4.reader(), fib6.reader());
    let rib_port = |port: &OpenPort| RibPort {
        id: port.id,
        name: port.name.clone(),
        mac: port.info.mac,
        mtu: port.info.mtu,
        addresses: port.addresses.clone(),
    };
    let ports = ports.iter().map(rib_port).collect();
    let mut rib = Rib::new(ports, fib4, fib6, next_hops, grace())?;
    for neighbour in &config.neighbours {
        rib.add_static_neighbour(neighbour.port, neighbour.address, neighbour.mac)?;
    }
    for route in &config.routes {
        rib.add(rib::Route {
            prefix: route.prefix,
            source: Source::Static,
            kind: route.kind.clone(),
            metric: route.metric.into(),
        })?;
    }
    for (rank, import) in (0..).zip(&config.imports) {
        let report = control::import::import(&mut rib, import, rank)
            .with_context(|| format!("{}:{}: import", config.file.display(), import.line))?;
        tracing::info!("{report}");
    }
    Ok((rib, readers))
}

/// The main thread's part of the router.
pub struct Owner {
    rib: Rib,
    orders: Sender<Order>,
    events: mpsc::UnboundedReceiver<Event>,
    ledger: Ledger,
    ports: Vec<OpenPort>,
}

impl Owner {
    /// Tells the slow path what the RIB knows already.
    pub fn new(
        rib: Rib,
        orders: Sender<Order>,
        events: mpsc::UnboundedReceiver<Event>,
        ledger: Ledger,
        ports: Vec<OpenPort>,
    ) -> Self {
        let mut owner = Self { rib, orders, events, ledger, ports };
        owner.pass_commands();
        owner
    }

    /// Serves the API until SIGTERM or SIGINT.
    pub fn serve(&mut self, socket: Socket) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.attend(socket))
    }

    async fn attend(&mut self, socket: Socket) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (ask, mut questions) = mpsc::channel(16);
        let api = tokio::spawn(socket.serve(ask));
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.say_ready();
        let ended_by = loop {
            tokio::select! {
                _ = terminate.recv() => break "SIGTERM",
                _ = interrupt.recv() => break "SIGINT",
                Some(question) = questions.recv() => self.answer(question).await,
                Some(event) = self.events.recv() => self.hear(event),
                _ = ticks.tick() => {
                    self.rib.tick();
                }
            }
            self.pass_commands();
        };
        tracing::info!("{ended_by}: stopping");
        api.abort();
        // Wait until the task is gone, and with it the socket's file.
        let _ = api.await;
        Ok(())
    }

    fn say_ready(&self) {
        let summary = self.rib.summary();
        tracing::info!(
            "ready: {} ports, {} IPv4 and {} IPv6 routes",
            self.ports.len(),
            summary.fib4,
            summary.fib6
        );
    }

    /// Passes what the RIB wants the slow path to know.
    fn pass_commands(&mut self) {
        for command in self.rib.drain_commands() {
            // The slow path outlives this thread's loop; it is gone only if it panicked.
            if self.orders.send(Order::Engine(order(command))).is_err() {
                tracing::error!("the slow path has ended; neighbours are not resolved any more");
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::NeighbourUp { port, address, mac } => {
                tracing::debug!("neighbour {address} on {port} is at {mac}");
                if let Err(error) = self.rib.neighbour_up(port, address, mac) {
                    tracing::warn!(
                        "neighbour {address} on {port}: {error}; the slow path serves it"
                    );
                }
            }
            Event::NeighbourDown { port, address } => {
                tracing::debug!("neighbour {address} on {port} is gone");
                self.rib.neighbour_down(port, address);
            }
            Event::Resolve { port, address } => {
                tracing::debug!("neighbour {address} on {port} is for the kernel to find");
            }
            Event::AddressConflict { port, address, mac } => {
                let name = self.port_name(port);
                tracing::warn!("port \"{name}\": {mac} uses our address {address} as well");
            }
        }
    }

    async fn answer(&mut self, question: Question) {
        let Request::Show(show) = question.request;
        let answer = match self.report(show).await {
            Ok(report) => Answer::Ok(report),
            Err(error) => Answer::Error(format!("{error:#}")),
        };
        // Whoever asked may be gone.
        let _ = question.answer.send(answer);
    }

    async fn report(&mut self, show: Show) -> Result<serde_json::Value> {
        match show {
            Show::Ports => json(&self.ports.iter().map(|port| self.port(port)).collect::<Vec<_>>()),
            Show::Routes => {
                let active = self.rib.routes().filter(|route| route.active);
                json(&active.map(|route| self.route(&route)).collect::<Vec<_>>())
            }
            Show::Route { address } => json(&self.lookup(address)),
            Show::Neighbours => json(&self.neighbours().await?),
            Show::Counters => json(&self.ledger.counters()),
            Show::Graph => json(&self.ledger.graph()),
        }
    }

    fn port_name(&self, id: PortId) -> String {
        self.ports.get(id.index()).map_or_else(|| id.to_string(), |port| port.name.clone())
    }

    fn port(&self, port: &OpenPort) -> Port {
        let [rx_packets, rx_bytes, tx_packets, tx_bytes] = self.ledger.traffic(port.id);
        let stats = port.port.stats();
        Port {
            name: port.name.clone(),
            device: port.device.clone(),
            driver: port.port.driver().to_owned(),
            mac: port.info.mac.to_string(),
            addresses: port.addresses.iter().map(IpNet::to_string).collect(),
            link: if port.port.link().up { "up" } else { "down" }.to_owned(),
            mtu: port.info.mtu,
            rx_queues: port.queues.0,
            tx_queues: port.queues.1,
            rx_packets,
            rx_bytes,
            rx_missed: stats.imissed + stats.rx_nombuf,
            rx_errors: stats.ierrors,
            tx_packets,
            tx_bytes,
            tx_errors: stats.oerrors,
            host: port.host.as_ref().map(|host| host.report()),
        }
    }

    fn route(&self, route: &RouteInfo) -> Route {
        let path = |port: Option<PortId>, via| Path {
            port: port.map_or_else(|| "-".to_owned(), |port| self.port_name(port)),
            via,
        };
        let paths = match &route.target {
            Target::Unicast(paths) | Target::Group(_, paths) => {
                paths.iter().map(|p| path(p.port, p.via)).collect()
            }
            Target::Connected(port) => vec![path(Some(*port), None)],
            _ => Vec::new(),
        };
        Route {
            prefix: route.prefix.to_string(),
            source: route.source.name().to_owned(),
            kind: kind(&route.target).to_owned(),
            paths,
        }
    }

    fn lookup(&self, address: IpAddr) -> RouteAnswer {
        let Some(LookupInfo { route, paths, .. }) = self.rib.lookup(address) else {
            let kind = "no-route".to_owned();
            return RouteAnswer { address, prefix: None, source: None, kind, paths: Vec::new() };
        };
        let shown = self.route(&route);
        let resolved = |path: LivePath| ResolvedPath {
            port: self.port_name(path.port),
            via: path.gateway,
            mac: path.mac.map(|mac| mac.to_string()),
            state: if path.mac.is_some() { "reachable" } else { "unresolved" }.to_owned(),
        };
        RouteAnswer {
            address,
            prefix: Some(shown.prefix),
            source: Some(shown.source),
            kind: shown.kind,
            paths: paths.into_iter().map(resolved).collect(),
        }
    }

    async fn neighbours(&self) -> Result<Vec<Neighbour>> {
        let gone = || anyhow!("the slow path has ended");
        let (ask, answer) = oneshot::channel();
        self.orders.send(Order::Neighbours(ask)).map_err(|_| gone())?;
        let table = answer.await.map_err(|_| gone())?;
        let neighbour = |info: slowpath::NeighbourInfo| Neighbour {
            address: info.address,
            port: self.port_name(info.port),
            mac: info.mac.map(|mac| mac.to_string()),
            state: info.state.name().to_owned(),
            is_static: info.is_static,
            queued: info.queued,
        };
        Ok(table.into_iter().map(neighbour).collect())
    }

    /// The last word: what happened with all packets.
    pub fn farewell(&self) {
        let counters = self.ledger.counters();
        tracing::info!(
            "received {} + originated {} = sent {} + to host {} + dropped {}",
            counters.received,
            counters.originated,
            counters.sent,
            counters.to_host,
            counters.dropped_total
        );
        let balance = counters.unaccounted + counters.in_flight as i64;
        if balance != 0 {
            tracing::error!("{balance} packets unaccounted for: a defect, please report");
        }
    }
}

fn kind(target: &Target) -> &'static str {
    match target {
        Target::Unicast(_) | Target::Group(..) => "unicast",
        Target::Connected(_) => "connected",
        Target::Local => "local",
        Target::Host => "host",
        Target::Martian => "martian",
        Target::Blackhole => "blackhole",
        Target::Prohibited => "prohibited",
        Target::Unreachable => "unreachable",
    }
}

fn json(report: &impl Serialize) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(report)?)
}

fn order(command: ResolverCommand) -> Command {
    match command {
        ResolverCommand::NextHop { id, port, address } => Command::NextHop { id, port, address },
        ResolverCommand::RemoveNextHop { id } => Command::RemoveNextHop { id },
        ResolverCommand::AddStaticNeighbour { port, address, mac } => {
            Command::AddStaticNeighbour { port, address, mac }
        }
        ResolverCommand::RemoveNeighbour { port, address } => {
            Command::RemoveNeighbour { port, address }
        }
    }
}
