//! Answers to the thread of exporters, and its settings.

use std::collections::HashMap;
use std::net::IpAddr;

use api::report::{Exporters, Port};
use control::config::Config;
use control::rib::Target;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::lock::lock;
use samples::headers::Headers;
use samples::{Output, Route};

use super::super::export::{
    Ask, DeviceRow, InterfaceRow, PathFound, PathQuery, Service, number_of,
};
use super::Owner;

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
        board.map(|board| lock(&board).clone()).unwrap_or_default()
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
        let hash = self.forwarding.flows.of_packet(packet);
        let rib = &self.routing.rib;
        // Those of a connected network are resolved first; they leave by it.
        let paths = || rib.lookup(vrf, to).and_then(|found| found.paths.into_iter().next());
        if let Some(path) = rib.lookup_flow(vrf, to, hash).or_else(paths) {
            route.output = Output::Interface(number_of(path.interface));
            route.next_hop = path.gateway;
        }
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
            let addresses =
                report.addresses.iter().filter_map(|net| net.parse::<ipnet::IpNet>().ok());
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
