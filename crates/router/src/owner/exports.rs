//! Answers to the thread of exporters, and its settings.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Bound;

use api::report::{Exporters, Port};
use control::config::Config;
use control::rib::{Path, RouteInfo, RouteSource, Target};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::lock::lock;
use dataplane::samples::SampleTable;
use ipnet::IpNet;
use samples::headers::Headers;
use samples::{Output, Route};

use super::super::export::{
    Ask, DeviceRow, InterfaceRow, PathFound, PathQuery, RoutePage, RouteRow, Service, number_of,
};
use super::Owner;
use super::questions::of_first_prefixes;

/// Prefixes that are looked at for a page.
const PAGE: usize = 256;

/// Types of routes (RFC 4292: inetCidrRouteType).
const OTHER: i32 = 1;
const REJECT: i32 = 2;
const LOCAL: i32 = 3;
const REMOTE: i32 = 4;
const BLACKHOLE: i32 = 5;

impl Owner {
    /// Serves the collectors of a configuration from now on.
    pub(super) fn serve_exports(&mut self, config: &Config) {
        let is_needed = Service::is_needed(config);
        match (&self.serving.exports, &self.serving.service) {
            (Some(exports), _) if is_needed => exports.follow(config),
            (None, Some(service)) if is_needed => {
                let (questions, tables) = (service.questions().clone(), &self.routing.tables);
                match Service::start(config, questions, tables, self.since) {
                    Ok(exports) => self.serving.exports = Some(exports),
                    Err(error) => {
                        tracing::error!("turnpike.sflow, ipfix, snmp: no thread for them: {error}");
                    }
                }
            }
            // It may wait for an answer, and so is not waited for.
            _ => self.serving.exports = None,
        }
    }

    /// Returns the state of the exporters.
    pub(super) fn exporters(&self) -> Exporters {
        let board = self.serving.exports.as_ref().map(Service::board);
        let mut of = board.map(|board| lock(&board).clone()).unwrap_or_default();
        let samples = self.routing.tables.shared.get::<SampleTable>();
        for exporter in &mut of.exporters {
            // Those of this moment: the thread looks from time to time.
            let stock = samples.stock(&exporter.name);
            (exporter.sampled, exporter.lost) = (stock.sampled(), stock.records.lost());
        }
        of
    }

    /// Answers the thread. It may have stopped waiting.
    pub(super) fn answer_exports(&self, ask: Ask) {
        match ask {
            Ask::Paths(queries, to) => {
                let tagger = self.routing.tables.tagger();
                let find = |query: &PathQuery| {
                    let port = query.port.into();
                    let base = self.bond_of(query.port).unwrap_or(port);
                    let vlan = tagger.vlan_of(base, &query.frame);
                    let interface = vlan.map_or(base, |(vlan, _)| vlan);
                    let packet = &query.frame[query.headers.offset..];
                    let route = self.sampled_route(interface, &query.headers, packet);
                    PathFound { input: number_of(interface), route }
                };
                let _ = to.send(queries.iter().map(find).collect());
            }
            Ask::Interfaces(to) => {
                let _ = to.send(self.interface_rows());
            }
            Ask::Routes(start, to) => {
                let _ = to.send(self.route_page(start));
            }
            Ask::RouteCount(to) => {
                let summary = self.routing.rib.vrf_summary(VrfId::DEFAULT);
                let _ = to.send((summary.fib4 + summary.fib6) as u32);
            }
        }
    }

    /// Returns the route of a packet that an interface received, by its destination.
    fn sampled_route(&self, interface: InterfaceId, headers: &Headers, packet: &[u8]) -> Route {
        let rib = &self.routing.rib;
        let vrf = rib.vrf_of(interface);
        let prefix_len = |address: IpAddr| {
            rib.lookup(vrf, address).map_or(0, |found| found.route.prefix.prefix_len())
        };
        let Some(found) = rib.lookup(vrf, headers.destination) else {
            let source_len = prefix_len(headers.source);
            return Route { output: Output::Discarded, source_len, ..Route::default() };
        };
        let mut route = Route {
            source_len: prefix_len(headers.source),
            destination_len: found.route.prefix.prefix_len(),
            ..Route::default()
        };
        match found.route.target {
            Target::Local | Target::Host => route.output = Output::Router,
            Target::Multicast => {}
            Target::Martian | Target::Blackhole | Target::Prohibited | Target::Unreachable => {
                route.output = Output::Discarded;
            }
            Target::Unicast(_) | Target::Group(..) | Target::Connected(_) => {
                self.choose_path(vrf, headers.destination, packet, &mut route);
            }
        }
        route
    }

    /// Adds the path that forwarders choose.
    fn choose_path(&self, vrf: VrfId, to: IpAddr, packet: &[u8], route: &mut Route) {
        let hash = self.forwarding.flows.of_path(packet);
        let rib = &self.routing.rib;
        // Those of a connected network are resolved first; they leave by it.
        let paths = || rib.lookup(vrf, to).and_then(|found| found.paths.into_iter().next());
        if let Some(path) = rib.lookup_flow(vrf, to, hash).or_else(paths) {
            route.output = Output::Interface(number_of(path.interface));
            route.next_hop = path.gateway;
        }
    }

    /// Returns routes in use, as many as are found among the next prefixes.
    fn route_page(&self, start: Bound<IpNet>) -> RoutePage {
        let mut rows = Vec::new();
        let routes = self.routing.rib.routes_from(VrfId::DEFAULT, start);
        let next = of_first_prefixes(PAGE, routes, |route| {
            if route.active {
                rows.extend(route_rows(&route));
            }
        });
        RoutePage { rows, next }
    }

    fn interface_rows(&self) -> Vec<InterfaceRow> {
        let ports: HashMap<String, Port> =
            self.all_ports().into_iter().map(|port| (port.name.clone(), port)).collect();
        let config = &self.configurations.current;
        let numbers: HashMap<&str, InterfaceId> =
            config.interfaces().map(|(id, name, _)| (name, id)).collect();
        let mut rows = Vec::new();
        for report in self.interface_reports() {
            let Some(&id) = numbers.get(&*report.name) else { continue };
            let parent = report.parent.as_deref().and_then(|name| numbers.get(name));
            let addresses = report.addresses.iter().filter_map(|net| net.parse::<IpNet>().ok());
            rows.push(InterfaceRow {
                number: number_of(id),
                parent: parent.copied().map(number_of),
                mac: report.mac.parse().ok(),
                mtu: report.mtu,
                addresses: addresses.map(|net| net.addr()).collect(),
                link: report.link,
                rx_packets: report.rx_packets,
                rx_bytes: report.rx_bytes,
                tx_packets: report.tx_packets,
                tx_bytes: report.tx_bytes,
                device: ports.get(&report.name).map(device),
                name: report.name,
                kind: report.kind,
            });
        }
        rows.sort_by_key(|row| row.number);
        rows
    }
}

/// Returns a row for each path of a route.
fn route_rows(route: &RouteInfo) -> Vec<RouteRow> {
    let row = |next_hop, interface: Option<InterfaceId>, kind| RouteRow {
        prefix: route.prefix,
        next_hop,
        interface: interface.map_or(0, number_of),
        kind,
        protocol: protocol(route.source),
        metric: route.metric.try_into().unwrap_or(i32::MAX),
    };
    match &route.target {
        Target::Unicast(paths) | Target::Group(_, paths) => {
            let kind = |path: &Path| if path.via.is_some() { REMOTE } else { LOCAL };
            paths.iter().map(|path| row(path.via, path.interface, kind(path))).collect()
        }
        Target::Connected(interface) => vec![row(None, Some(*interface), LOCAL)],
        Target::Local | Target::Host => vec![row(None, None, LOCAL)],
        Target::Blackhole => vec![row(None, None, BLACKHOLE)],
        Target::Prohibited | Target::Unreachable | Target::Martian => vec![row(None, None, REJECT)],
        Target::Multicast => vec![row(None, None, OTHER)],
    }
}

/// Returns the number of a source of routes (IANA-RTPROTO-MIB).
fn protocol(source: RouteSource) -> i32 {
    match source {
        RouteSource::Connected => 2,
        RouteSource::Static | RouteSource::Command => 3,
        _ => 1,
    }
}

fn device(port: &Port) -> DeviceRow {
    let details = &port.link_details;
    DeviceRow {
        speed_mbps: details.speed_mbps,
        full_duplex: details.duplex.as_ref().map(|duplex| duplex == "full"),
        promiscuous: details.promiscuous,
        rx_missed: port.rx_missed,
        rx_errors: port.rx_errors,
        tx_errors: port.tx_errors,
    }
}
