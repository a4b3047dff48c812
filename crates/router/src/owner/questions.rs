//! Answers to what the API asks.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, anyhow, bail};
use api::query::{self, Query};
use api::report::{
    self, Families, Neighbour, Offload, Path, Port, Remote, ResolvedPath, Room, Route, RouteAnswer,
    RouteSummary, Structures,
};
use api::{Answer, Flow, Request, RouteFilter, Show};
use control::config;
use control::netlink::SourceStatus;
use control::rib::{LivePath, LookupInfo, RouteInfo, RouteSource, Target};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::NEXT_HOPS;
use dataplane::port::PortId;
use dataplane::words::suggestion;
use dpdk::{MulticastFilter, OffloadState};
use ipnet::IpNet;
use machine::Machine;
use serde::Serialize;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;
use wire::MacAddr;

use super::super::ports::OpenPort;
use super::super::server::{Page, Question};
use super::load::control_queue;
use super::sources::Audits;
use super::{Owner, WantedMulticasts, flow};

/// The most prefixes that are looked at for one page: less than a millisecond's work.
const PAGE: usize = 1000;

/// Time limit for answers of slow path workers.
pub(super) const WORKERS_PATIENCE: Duration = Duration::from_secs(5);

/// Most queries at a time that occupy a thread for long.
const LONG_QUERIES: usize = 2;

/// Bounds how many there are.
pub(super) struct LongQueries(Arc<Semaphore>);

impl Default for LongQueries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LONG_QUERIES)))
    }
}

impl Owner {
    pub(super) async fn answer(&mut self, question: Question) {
        match question {
            Question::Request(Request::Do(call), to) => self.run_command(call, to),
            Question::Request(Request::Trace(request), to) => {
                // Boxed, as questions are also answered while it waits.
                Box::pin(self.begin_trace(request, to)).await;
            }
            Question::Request(Request::Handler(call), to) => self.call_handler(call, to),
            Question::Request(request, to) => {
                let Some(to) = self.bounded(&request, to) else { return };
                // Configurations are prepared first, by another thread.
                if let Some((request, to)) = self.begin(request, to) {
                    self.respond(request, to);
                }
            }
            Question::Capture(request, to) => {
                Box::pin(self.begin_capture(&request, to)).await;
            }
            Question::EndCapture(capture) => {
                Box::pin(self.end_capture(&capture)).await;
            }
            Question::Export(ask) => self.answer_exports(ask),
            Question::Page(filter, after, to) => {
                let page = self.page(&filter, after).map_err(|error| format!("{error:#}"));
                // The client may have disconnected.
                let _ = to.send(page);
            }
        }
    }

    /// Bounds how many queries occupy a thread for long, whoever asks. Gives the way for the answer back, unless there
    /// is no place: then it is answered.
    fn bounded(
        &self,
        request: &Request,
        to: oneshot::Sender<Answer>,
    ) -> Option<oneshot::Sender<Answer>> {
        if !matches!(request, Request::Show(Show::Flows { .. } | Show::Difference { .. })) {
            return Some(to);
        }
        let Ok(place) = self.serving.long_queries.0.clone().try_acquire_owned() else {
            reply(to, Err::<(), _>(anyhow!("busy with {LONG_QUERIES} such requests; try again")));
            return None;
        };
        let (answered, answer) = oneshot::channel();
        tokio::spawn(async move {
            if let Ok(answer) = answer.await {
                // The client may have disconnected.
                let _ = to.send(answer);
            }
            drop(place);
        });
        Some(answered)
    }

    fn respond(&mut self, request: Request, to: oneshot::Sender<Answer>) {
        let changed = match request {
            Request::Show(show) => return self.show(show, to),
            Request::Save(request) => return self.save(request, to),
            Request::Route(change) => self.change_route(change),
            Request::Neighbour(change) => self.change_neighbour(change),
            Request::ForgetFlows(of) => self.forget_flows(&of),
            Request::Set(change) => self.change_set(&change),
            Request::Filter(change) => self.change_filter_log(&change),
            Request::Confirm {} => self.configurations.confirm(),
            Request::Plan(_)
            | Request::Apply(_)
            | Request::Rollback(_)
            | Request::Do(_)
            | Request::Handler(_)
            | Request::Capture(_)
            | Request::Trace(_) => Err(anyhow!("not answered at once: a defect, please report")),
        };
        reply(to, changed);
    }

    /// Answers every question of `show`: at once by [`answer`], or later from another thread or task that has `to`.
    fn show(&mut self, show: Show, to: oneshot::Sender<Answer>) {
        match show {
            Show::Ports => answer(to, &query::PORTS, Ok(self.all_ports())),
            Show::Interfaces => answer(to, &query::INTERFACES, Ok(self.interface_reports())),
            Show::Bonds => self.list_bonds(to),
            Show::Routes(_) => reply(to, Err::<(), _>(anyhow!("routes are asked for by pages"))),
            Show::Summary => answer(to, &query::SUMMARY, Ok(self.summary())),
            Show::Route { address, flow, vrf } => {
                answer(to, &query::ROUTE, self.lookup(vrf.as_deref(), address, flow));
            }
            Show::Vrfs => answer(to, &query::VRFS, Ok(self.vrf_reports())),
            Show::Neighbours => self.list_neighbours(to),
            Show::Sources => answer(to, &query::SOURCES, Ok(self.source_reports())),
            Show::Filters => answer(to, &query::FILTERS, Ok(self.counted_filters())),
            Show::FilterVerdict { name, packet } => {
                answer(to, &query::FILTER_VERDICT, self.verdict(&name, &packet))
            }
            Show::Sets => answer(to, &query::SETS, Ok(self.prefix_sets())),
            Show::Flows { of, most } => self.list_flows(&of, most, to),
            Show::Mirrors => answer(to, &query::MIRRORS, Ok(self.mirrors())),
            Show::Exporters => answer(to, &query::EXPORTERS, Ok(self.exporters())),
            Show::Multicast => answer(to, &query::MULTICAST, Ok(self.multicast())),
            Show::Forwarders => answer(to, &query::FORWARDERS, Ok(self.forwarder_reports())),
            Show::Rss => answer(to, &query::RSS, Ok(self.rss_reports())),
            Show::ControlQueues => {
                answer(to, &query::CONTROL_QUEUES, Ok(self.control_queue_reports()))
            }
            Show::Queues => answer(to, &query::QUEUES, Ok(self.queue_reports())),
            Show::Status => answer(to, &query::STATUS, Ok(self.status())),
            Show::Overview { interfaces, vrfs } => {
                answer(to, &query::OVERVIEW, Ok(self.overview(interfaces, vrfs)))
            }
            Show::Counters => answer(to, &query::COUNTERS, Ok(self.forwarding.ledger.counters())),
            Show::Acceleration => answer(to, &query::ACCELERATION, Ok(self.acceleration())),
            Show::Policing => answer(to, &query::POLICING, Ok(self.policing())),
            Show::Graph => answer(to, &query::GRAPH, Ok(self.forwarding.ledger.graph())),
            Show::Commands => answer(to, &query::COMMANDS, Ok(self.commands())),
            Show::Click => answer(to, &query::CLICK, Ok(self.click_elements())),
            Show::Steps => answer(to, &query::STEPS, Ok(self.forwarding.ledger.steps())),
            Show::Topology => self.draw_topology(to),
            Show::History => answer(to, &query::HISTORY, Ok(self.configurations.report())),
            Show::Configuration { number } => {
                answer(to, &query::CONFIGURATION, self.configurations.configuration(number));
            }
            // Its answer is a plan, which `begin` has prepared.
            Show::Difference { .. } => {
                reply(to, Err::<(), _>(anyhow!("not answered at once: a defect, please report")));
            }
        }
    }

    fn status(&self) -> report::Status {
        report::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dpdk: dpdk::version(),
            uptime_s: self.since.elapsed().as_secs(),
            configuration: self.configurations.number(),
            unconfirmed: self.configurations.is_unconfirmed(),
            tsc_hz: dpdk::tsc_hz(),
        }
    }

    fn overview(&self, interfaces: bool, vrfs: bool) -> report::Overview {
        report::Overview {
            at_us: self.since.elapsed().as_micros() as u64,
            status: self.status(),
            counters: self.forwarding.ledger.counters(),
            forwarders: self.forwarder_reports(),
            ports: self.all_ports(),
            interfaces: interfaces.then(|| self.interface_reports()),
            vrfs: vrfs.then(|| self.vrf_reports()),
        }
    }

    /// Answers from another thread, which reads the machine.
    fn draw_topology(&self, to: oneshot::Sender<Answer>) {
        let placement = self.placement();
        tokio::task::spawn_blocking(move || {
            answer(to, &query::TOPOLOGY, Ok(placement.on(&Machine::here())));
        });
    }

    /// The filters, with the hits of the rules that devices hold.
    fn counted_filters(&mut self) -> Vec<report::Filter> {
        self.read_rules();
        self.filters()
    }

    fn policing(&self) -> report::Policing {
        let mut policing = self.forwarding.ledger.policing();
        policing.events.lost += self.routing.sources.lost_orders();
        policing
    }

    pub(super) fn interface_name(&self, id: impl Into<InterfaceId>) -> String {
        let id = id.into();
        let port = id.port();
        let upper = self.devices.virtuals.get(&id).map(|upper| &upper.name);
        let open = upper.or_else(|| self.devices.ports.get(port?).map(|port| &port.name));
        // A port that waits for its device has none.
        let configured = || self.configurations.current.port(port?).map(|port| &port.name);
        open.or_else(configured).cloned().unwrap_or_else(|| id.to_string())
    }

    /// The port with this name, or which there are.
    pub(super) fn port_named(&self, name: &str) -> Result<PortId> {
        let configured = &self.configurations.current.ports;
        let port = configured.iter().find(|port| port.name == name);
        port.map(|port| port.id).with_context(|| {
            let known: Vec<_> = configured.iter().map(|port| port.name.as_str()).collect();
            format!("port \"{name}\": unknown; ports: {}", known.join(", "))
        })
    }

    /// The interface of this name; or which there are.
    pub(super) fn interface_named(&self, name: &str) -> Result<InterfaceId, String> {
        let all = || self.configurations.current.interfaces();
        let found = all().find(|(_, known, _)| *known == name).map(|(id, ..)| id);
        found.ok_or_else(|| {
            let known: Vec<_> = all().map(|(_, name, _)| name).collect();
            format!("interface \"{name}\": unknown{}", suggestion(name, "interfaces", &known))
        })
    }

    /// All ports by their numbers, those whose device is not there included.
    pub(super) fn all_ports(&self) -> Vec<Port> {
        let open = self.devices.ports.iter().map(|open| (open.id, self.port(open)));
        let absent = self.configurations.current.ports.iter();
        let absent = absent.filter(|port| self.devices.absentees.contain(port.id));
        let absent = absent.map(|port| (port.id, self.absent_port(port)));
        open.chain(absent).collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// A port that waits for its device.
    fn absent_port(&self, port: &config::Port) -> Port {
        let absent = self.devices.absentees.ports.get(&port.id);
        let last = absent.and_then(|absent| absent.last.as_ref());
        let host = absent.and_then(|absent| absent.host.as_ref());
        let counted = last.map_or([0; 4], |last| last.counted);
        let known = self.routing.rib.interface(port.id.into());
        let addresses = known.map_or(&port.interface.addresses, |known| &known.addresses);
        let traffic = self.forwarding.ledger.traffic(port.id);
        let [rx_packets, rx_bytes, tx_packets, tx_bytes] =
            std::array::from_fn(|n| traffic[n].saturating_sub(counted[n]));
        Port {
            name: port.name.clone(),
            device: port.device.to_string(),
            driver: "-".to_owned(),
            mac: last.map_or_else(String::new, |last| last.known.info.mac.to_string()),
            vrf: self.vrf_name(port.interface.settings.vrf),
            addresses: addresses.iter().map(IpNet::to_string).collect(),
            link: "gone".to_owned(),
            link_by: "-".to_owned(),
            link_details: report::LinkDetails::default(),
            mtu: known.map_or(0, |known| known.mtu),
            rx_queues: 0,
            control_queue: None,
            tx_queues: 0,
            rx_packets,
            rx_bytes,
            rx_missed: 0,
            rx_nombuf: 0,
            rx_errors: 0,
            tx_packets,
            tx_bytes,
            tx_errors: 0,
            dma_faults: self.devices.health.faults(port.id),
            troubles: Vec::new(),
            host: host.map(|host| host.view().report(self.host_state(port.id.into()))),
            offloads: Vec::new(),
        }
    }

    fn port(&self, port: &OpenPort) -> Port {
        let counted = self.forwarding.ledger.traffic(port.id);
        let own = |n: usize| counted[n].saturating_sub(port.counted[n]);
        let [rx_packets, rx_bytes, tx_packets, tx_bytes] = std::array::from_fn(own);
        let stats = port.port.stats();
        let known = self.routing.rib.interface(port.id.into());
        let addresses = known.map_or(&port.addresses, |known| &known.addresses);
        Port {
            name: port.name.clone(),
            device: port.device.clone(),
            driver: port.port.driver().to_owned(),
            mac: port.info.mac.to_string(),
            vrf: self.vrf_name(self.routing.rib.vrf_of(port.id.into())),
            addresses: addresses.iter().map(IpNet::to_string).collect(),
            link: if port.port.link().up { "up" } else { "down" }.to_owned(),
            link_by: port.port.link_watch().name().to_owned(),
            link_details: link_details(port),
            mtu: known.map_or(port.info.mtu, |known| known.mtu),
            rx_queues: port.queues.0,
            control_queue: control_queue(port),
            tx_queues: port.queues.1,
            rx_packets,
            rx_bytes,
            rx_missed: stats.imissed + stats.rx_nombuf,
            rx_nombuf: stats.rx_nombuf,
            rx_errors: stats.ierrors,
            tx_packets,
            tx_bytes,
            tx_errors: stats.oerrors,
            dma_faults: self.devices.health.faults(port.id),
            troubles: self.devices.health.troubles(port.id),
            host: port.host.as_ref().map(|host| host.report(self.host_state(port.id.into()))),
            offloads: port.port.offloads().iter().map(offload).collect(),
        }
    }

    /// The routes behind `after` that the filter passes, as many as are found among the next
    /// [`PAGE`] prefixes.
    fn page(&self, filter: &RouteFilter, after: Option<IpNet>) -> Result<Page> {
        let source = filter.source.as_deref().map(source_named).transpose()?;
        let vrf = self.vrf_named(filter.vrf.as_deref())?;
        let all = filter.all || source.is_some() || filter.prefix.is_some();
        let start = match (after, filter.prefix) {
            (Some(after), _) => Bound::Excluded(after),
            (None, Some(prefix)) => Bound::Included(prefix.trunc()),
            (None, None) => Bound::Unbounded,
        };
        // Prefixes within another follow it in the RIB's order.
        let fits =
            |prefix: &IpNet| match (filter.prefix.map(|wanted| wanted.trunc()), filter.longer) {
                (None, _) => true,
                (Some(wanted), true) => wanted.contains(prefix),
                (Some(wanted), false) => wanted == *prefix,
            };
        let mut page = Page::default();
        let routes = self.routing.rib.routes_from(vrf, start);
        page.next =
            of_first_prefixes(PAGE, routes.take_while(|route| fits(&route.prefix)), |route| {
                if (all || route.active) && source.is_none_or(|source| source == route.source) {
                    page.routes.push(self.route(&route));
                }
            });
        Ok(page)
    }

    pub(super) fn route(&self, route: &RouteInfo) -> Route {
        let path = |port: Option<InterfaceId>, via, weight| Path {
            port: port.map(|port| self.interface_name(port)),
            via,
            vrf: None,
            weight,
        };
        let elsewhere = |path: &control::rib::Path| {
            let other = path.interface.is_none() && path.vrf != route.vrf;
            other.then(|| self.name_of_vrf(path.vrf))
        };
        let paths = match &route.target {
            Target::Unicast(paths) | Target::Group(_, paths) => paths
                .iter()
                .map(|p| Path { vrf: elsewhere(p), ..path(p.interface, p.via, p.weight) })
                .collect(),
            Target::Connected(port) => vec![path(Some(*port), None, 1)],
            _ => Vec::new(),
        };
        Route {
            vrf: self.vrf_name(route.vrf),
            prefix: route.prefix.to_string(),
            source: route.source.name().to_owned(),
            kind: kind(&route.target).to_owned(),
            metric: route.metric,
            origin_as: route.origin_as,
            active: route.active,
            inactive: route.inactive.map(|reason| reason.name().to_owned()),
            paths,
        }
    }

    fn lookup(
        &self,
        vrf: Option<&str>,
        address: IpAddr,
        wanted: Option<Flow>,
    ) -> Result<RouteAnswer> {
        let vrf = self.vrf_named(vrf)?;
        let taken = wanted.map(|flow| self.path_of(vrf, address, flow)).transpose()?.flatten();
        let Some(LookupInfo { route, paths, .. }) = self.routing.rib.lookup(vrf, address) else {
            let kind = "no-route".to_owned();
            let (paths, candidates) = (Vec::new(), Vec::new());
            return Ok(RouteAnswer {
                address,
                prefix: None,
                source: None,
                kind,
                paths,
                candidates,
            });
        };
        let shown = self.route(&route);
        let same = |path: &LivePath, taken: &LivePath| {
            (path.interface, path.gateway) == (taken.interface, taken.gateway)
        };
        let resolved = |path: LivePath| ResolvedPath {
            port: self.interface_name(path.interface),
            via: path.gateway,
            weight: u16::try_from(path.weight).unwrap_or(u16::MAX),
            mac: path.mac.map(|mac| mac.to_string()),
            state: if path.mac.is_some() { "reachable" } else { "unresolved" }.to_owned(),
            taken: taken.as_ref().is_some_and(|taken| same(&path, taken)),
        };
        let candidates = self.routing.rib.routes_filtered(vrf, None, Some(route.prefix), false);
        Ok(RouteAnswer {
            address,
            prefix: Some(shown.prefix),
            source: Some(shown.source),
            kind: shown.kind,
            paths: paths.into_iter().map(resolved).collect(),
            candidates: candidates.map(|route| self.route(&route)).collect(),
        })
    }

    /// The path that forwarders choose for a flow; `None` if its packets do not leave by a port.
    fn path_of(&self, vrf: VrfId, to: IpAddr, wanted: Flow) -> Result<Option<LivePath>> {
        let from = wanted.from;
        if from.is_ipv4() != to.is_ipv4() {
            bail!("from {from}: not of the family of {to}; a flow's addresses are of one family");
        }
        Ok(self.routing.rib.lookup_flow(vrf, to, flow::hash(&self.forwarding.flows, to, &wanted)))
    }

    fn summary(&self) -> RouteSummary {
        let summary = self.routing.rib.summary();
        let counts = |source: RouteSource| Families {
            ipv4: summary.ipv4[source.index()],
            ipv6: summary.ipv6[source.index()],
        };
        RouteSummary {
            sources: RouteSource::ALL
                .map(|source| (source.name().to_owned(), counts(source)))
                .into(),
            fib: Families { ipv4: summary.fib4, ipv6: summary.fib6 },
            fib_structure: Structures {
                ipv4: summary.fib4_structure.to_owned(),
                ipv6: summary.fib6_structure.to_owned(),
            },
            fib_bytes: Families { ipv4: summary.fib4_bytes, ipv6: summary.fib6_bytes },
            next_hops: Room { used: summary.next_hops, most: NEXT_HOPS },
            refused: summary.refused,
            waiting: summary.waiting,
            pending: summary.pending,
        }
    }

    /// Every source that has routes, and those outside the router in any case.
    pub(super) fn source_reports(&self) -> Vec<report::SourceReport> {
        let summary = self.routing.rib.summary();
        let mut reports = Vec::new();
        for source in RouteSource::ALL {
            let (ipv4, ipv6) = (summary.ipv4[source.index()], summary.ipv6[source.index()]);
            let status = self.routing.sources.status(source);
            if ipv4 + ipv6 == 0 && status.is_none() {
                continue;
            }
            let refused = self.routing.sources.refused(source);
            let is_loading = source == RouteSource::Import && self.routing.imports.is_busy();
            let own = if is_loading { "loading" } else { "ready" };
            reports.push(report::SourceReport {
                name: source.name().to_owned(),
                distance: source.distance(),
                state: status.as_ref().map_or(own, |status| status.state.name()).to_owned(),
                ipv4,
                ipv6,
                remote: status
                    .map(|status| remote(&status, refused, self.routing.sources.audits(source))),
            });
        }
        reports
    }

    /// Answers when the slow path's workers have, one of which may be held: the owner does not wait for them.
    fn list_neighbours(&self, to: oneshot::Sender<Answer>) {
        let interfaces = self.configurations.current.interfaces();
        let names: BTreeMap<_, _> = interfaces.map(|(id, name, _)| (id, name.to_owned())).collect();
        let orders = self.slow_path.orders.clone();
        tokio::spawn(async move {
            let table = match timeout(WORKERS_PATIENCE, orders.neighbours()).await {
                Ok(Some(table)) => Ok(table),
                Ok(None) => Err(anyhow!("the slow path has ended")),
                Err(_) => Err(anyhow!(
                    "a slow path worker does not answer for {} s; see the log",
                    WORKERS_PATIENCE.as_secs()
                )),
            };
            let neighbour = |info: slowpath::NeighbourInfo| Neighbour {
                address: info.address,
                port: names
                    .get(&info.interface)
                    .cloned()
                    .unwrap_or_else(|| info.interface.to_string()),
                mac: info.mac.map(|mac| mac.to_string()),
                state: info.state.name().to_owned(),
                is_static: info.is_static,
                queued: info.queued,
            };
            let neighbours = table.map(|table| table.into_iter().map(neighbour).collect());
            answer(to, &query::NEIGHBOURS, neighbours);
        });
    }
}

/// Calls `each` with the routes of the first so many prefixes; returns the last of these if more follow.
pub(super) fn of_first_prefixes(
    count: usize,
    routes: impl Iterator<Item = RouteInfo>,
    mut each: impl FnMut(RouteInfo),
) -> Option<IpNet> {
    let (mut last, mut seen) = (None, 0);
    for route in routes {
        if last != Some(route.prefix) {
            if seen == count {
                return last;
            }
            seen += 1;
            last = Some(route.prefix);
        }
        each(route);
    }
    None
}

fn offload(state: &OffloadState) -> Offload {
    let OffloadState { offload, has, on, reason } = state;
    let (offload, reason) = (offload.name().to_owned(), reason.to_string());
    Offload { offload, device: *has, on: *on, reason }
}

/// The groups whose multicasts a port receives, or the reason for which it receives all.
fn multicasts(open: &OpenPort) -> Result<Vec<String>, String> {
    match (open.port.multicast_filter(), &open.multicasts) {
        (MulticastFilter::Groups(groups), _) => {
            Ok(groups.into_iter().map(|group| MacAddr(group).to_string()).collect())
        }
        (MulticastFilter::Refused(count, errno), _) => {
            Err(format!("its device takes no list of {count} groups ({errno})"))
        }
        (MulticastFilter::Unfiltered, _) => Err("its driver has no filter".to_owned()),
        (MulticastFilter::All, Some(WantedMulticasts::All(why))) => Err(why.to_string()),
        (MulticastFilter::All, _) => Err("the port was opened just now".to_owned()),
    }
}

fn link_details(open: &OpenPort) -> report::LinkDetails {
    let port = &open.port;
    let details = port.link_details();
    let multicasts = multicasts(open);
    report::LinkDetails {
        speed_mbps: details.speed,
        duplex: details.full_duplex.map(|full| if full { "full" } else { "half" }.to_owned()),
        autoneg: details.autoneg,
        pause: details.pause.map(|pause| pause.to_string()),
        fec: details.fec.map(|fec| fec.to_string()),
        promiscuous: port.is_promiscuous(),
        all_multicast: multicasts.is_err(),
        all_multicast_because: multicasts.as_ref().err().cloned(),
        groups: multicasts.unwrap_or_default(),
    }
}

fn source_named(name: &str) -> Result<RouteSource> {
    RouteSource::from_name(name).with_context(|| {
        format!(
            "source \"{name}\": unknown; known: {}",
            RouteSource::ALL.map(RouteSource::name).join(", ")
        )
    })
}

fn remote(status: &SourceStatus, refused: u64, audits: Option<&Audits>) -> Remote {
    let last_audit = audits.and_then(|audits| audits.last.as_ref());
    Remote {
        messages: status.messages,
        errors: status.errors,
        ignored: status.ignored,
        refused,
        overruns: status.overruns,
        resyncs: status.resyncs,
        last_resync_s: status.last_resync.map(age),
        groups: status.groups,
        audits: audits.map_or(0, |audits| audits.count),
        audits_failed: audits.map_or(0, |audits| audits.failed),
        last_audit: last_audit.map(|audit| report::Audit {
            age_s: age(audit.at),
            compared: audit.compared,
            missing: audit.missing,
            stale: audit.stale,
            different: audit.different,
            fib: audit.fib,
            examples: audit.examples.clone(),
        }),
        peer: status.peer.map(|peer| peer.to_string()),
    }
}

/// Seconds since then; 0 if the clock was set back meanwhile.
fn age(then: SystemTime) -> u64 {
    then.elapsed().unwrap_or_default().as_secs()
}

fn kind(target: &Target) -> &'static str {
    match target {
        Target::Unicast(_) | Target::Group(..) => "unicast",
        Target::Connected(_) => "connected",
        Target::Local => "local",
        Target::Host => "host",
        Target::Martian => "martian",
        Target::Multicast => "multicast",
        Target::Blackhole => "blackhole",
        Target::Prohibited => "prohibited",
        Target::Unreachable => "unreachable",
    }
}

/// Sends the answer to a query.
pub(super) fn answer<A: Serialize>(to: oneshot::Sender<Answer>, _: &Query<A>, report: Result<A>) {
    reply(to, report);
}

/// Sends an answer. The client may have disconnected.
pub(super) fn reply(to: oneshot::Sender<Answer>, report: Result<impl Serialize>) {
    let _ = to.send(Answer::from(report.and_then(|report| json(&report))));
}

pub(super) fn json(report: &impl Serialize) -> Result<serde_json::Value> {
    Ok(serde_json::to_value(report)?)
}
