//! Handlers of routing tables and `ARPQuerier`s: the RIB, or the routes of a step; the neighbours of a port.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use api::Answer;
use api::change::{NeighbourAdd, NeighbourChange, NeighbourDel, PathSpec};
use control::config::{Element, Route};
use control::rib::{RouteInfo, RouteKind, RouteSource, Target};
use dataplane::interface::VrfId;
use dataplane::params::{Arg, Given};
use ipnet::IpNet;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::text::lines;
use super::{Edit, Value, is_to};
use crate::handlers;
use crate::handlers::routes::{self, Entry, Verb};
use crate::owner::Owner;
use crate::owner::questions::{WORKERS_PATIENCE, reply};

/// Most routes that a table's handler writes.
const ROUTES_MOST: usize = 100_000;

impl Owner {
    /// The routes of a table: of its step, or of the RIB.
    pub(super) fn table(&self, element: &Element) -> Result<Vec<Entry>, String> {
        if element.ways.is_empty() {
            let Arg::Texts(routes) = self.argument(element, "routes")? else {
                return Ok(Vec::new());
            };
            return routes.iter().map(|route| routes::entry(route, Verb::Add)).collect();
        }
        let all = self.routing.rib.routes_filtered(VrfId::DEFAULT, None, None, false);
        let is_meant = |route: &RouteInfo| {
            let is_own = matches!(route.source, RouteSource::Reserved | RouteSource::Neighbour);
            route.active && !is_own
        };
        let entry = |route: RouteInfo| self.entry(element, &route);
        Ok(all.filter(is_meant).filter_map(entry).take(ROUTES_MOST).collect())
    }

    /// A route of the RIB as one of the table.
    fn entry(&self, element: &Element, route: &RouteInfo) -> Option<Entry> {
        let IpNet::V4(prefix) = route.prefix else { return None };
        let way = |name: &str| element.ways.iter().position(|way| way == name);
        let by = |interface| way(&self.interface_name(interface));
        let (gateway, output) = match &route.target {
            Target::Unicast(paths) | Target::Group(_, paths) => {
                let path = paths.first()?;
                (path.via, path.interface.and_then(by))
            }
            Target::Connected(interface) => (None, by(*interface)),
            Target::Local | Target::Host => (None, way("local")),
            _ => (None, way("drop")),
        };
        let gateway =
            gateway.and_then(|via| if let IpAddr::V4(v4) = via { Some(v4) } else { None });
        Some(Entry { prefix, gateway, output })
    }

    pub(super) fn look_up(&self, element: &Element, argument: &str) -> Value {
        let address: Ipv4Addr = argument.trim().parse().map_err(|_| "expected IP address")?;
        let found = if element.ways.is_empty() {
            let table = self.table(element)?;
            let matches = table.into_iter().filter(|entry| entry.prefix.contains(&address));
            matches.max_by_key(|entry| entry.prefix.prefix_len())
        } else {
            let found = self.routing.rib.lookup(VrfId::DEFAULT, address.into());
            found.and_then(|found| {
                let entry = self.entry(element, &found.route)?;
                // A neighbour's own route leads to it, not over it.
                let gateway = entry.gateway.filter(|gateway| *gateway != address);
                Some(Entry { gateway, ..entry })
            })
        };
        let Some(Entry { gateway, output, .. }) = found else { return Ok("-1".to_owned()) };
        let output = output.map_or_else(|| "-1".to_owned(), |output| output.to_string());
        Ok(gateway.map_or_else(|| output.clone(), |gateway| format!("{output} {gateway}")))
    }

    pub(super) fn change_table(
        &self,
        element: &Element,
        verb: Option<Verb>,
        text: &str,
    ) -> Result<Option<Edit>, String> {
        let is_rib = !element.ways.is_empty();
        let before = if is_rib { self.static_entries(element) } else { self.table(element)? };
        let outputs = element.outputs.len();
        let after = routes::change(&before, outputs, verb, text)?;
        if before == after {
            return Ok(None);
        }
        if is_rib {
            return self.replace_routes(element, &before, &after).map(Some);
        }
        if let Some(entry) = after.iter().find(|entry| entry.gateway.is_some()) {
            return Err(format!("route '{entry}': a gateway has no effect without an ARPQuerier"));
        }
        let text = |entry: &Entry| {
            Given::Text(format!("{} {}", entry.prefix, entry.output.unwrap_or_default()))
        };
        self.set(element, "routes", Given::List(after.iter().map(text).collect())).map(Some)
    }

    /// The static routes of the configuration that the table's handlers can change.
    fn static_entries(&self, element: &Element) -> Vec<Entry> {
        let way = |name: &str| element.ways.iter().position(|way| way == name);
        let entry = |route: &Route| {
            let IpNet::V4(prefix) = route.prefix else { return None };
            if !is_to(route, &[prefix]) {
                return None;
            }
            let (gateway, output) = match &route.kind {
                RouteKind::Unicast(paths) => {
                    let path = paths.first()?;
                    let output = path.interface.and_then(|id| way(&self.interface_name(id)));
                    let gateway = path.via.and_then(|via| match via {
                        IpAddr::V4(v4) => Some(v4),
                        IpAddr::V6(_) => None,
                    });
                    (gateway, output)
                }
                _ => (None, way("drop")),
            };
            Some(Entry { prefix, gateway, output })
        };
        self.configurations.current.routes.iter().filter_map(entry).collect()
    }

    fn replace_routes(
        &self,
        element: &Element,
        before: &[Entry],
        after: &[Entry],
    ) -> Result<Edit, String> {
        let (old, new): (HashSet<_>, HashSet<_>) =
            (before.iter().collect(), after.iter().collect());
        let gone = before.iter().filter(|entry| !new.contains(entry));
        let come = after.iter().filter(|entry| !old.contains(entry));
        let added: Result<Vec<Route>, String> =
            come.map(|entry| self.route_of(element, entry)).collect();
        Ok(Edit::Routes { removed: gone.map(|entry| entry.prefix).collect(), added: added? })
    }

    fn route_of(&self, element: &Element, entry: &Entry) -> Result<Route, String> {
        let way = entry.output.and_then(|output| element.ways.get(output)).map(String::as_str);
        let kind = match way {
            None => return Err("bad OUTPUT".to_owned()),
            Some("local") => {
                return Err(format!(
                    "route '{entry}': its output leads to the router itself, whose addresses are its ports'"
                ));
            }
            Some("drop") => RouteKind::Blackhole,
            Some(port) => {
                let via = entry.gateway.map(IpAddr::V4);
                let spec = PathSpec { via, port: Some(port.to_owned()), weight: 1 };
                let path = self.path(VrfId::DEFAULT, &spec);
                RouteKind::Unicast(vec![path.map_err(|why| format!("route '{entry}': {why:#}"))?])
            }
        };
        let (vrf, prefix) = (VrfId::DEFAULT, IpNet::V4(entry.prefix));
        Ok(Route { line: element.line, vrf, prefix, kind, metric: 0, resilient: None })
    }

    /// Answers when the slow path's workers have.
    pub(super) fn read_arp_table(
        &self,
        port: Option<String>,
        name: String,
        to: oneshot::Sender<Answer>,
    ) {
        let orders = self.slow_path.orders.clone();
        let interface = port.and_then(|port| self.port_named(&port).ok());
        tokio::spawn(async move {
            let table = match timeout(WORKERS_PATIENCE, orders.neighbours()).await {
                Ok(Some(table)) => Ok(table),
                _ => Err("a slow path worker does not answer; see the log".to_owned()),
            };
            let is_meant = |info: &slowpath::NeighbourInfo| {
                info.address.is_ipv4()
                    && interface.is_some_and(|port| info.interface == port.into())
            };
            let line = |info: slowpath::NeighbourInfo| {
                let mac = info.mac.map_or_else(
                    || "00-00-00-00-00-00".to_owned(),
                    |mac| mac.to_string().replace(':', "-").to_uppercase(),
                );
                let known = u8::from(info.mac.is_some());
                format!("{} {known} {mac} {:.3}", info.address, info.age.as_secs_f64())
            };
            let table = table.map(|table| lines(table.into_iter().filter(is_meant).map(line)));
            reply(to, Ok(handlers::read(&name, table)));
        });
    }

    pub(super) fn insert_neighbour(
        &mut self,
        element: &Element,
        value: &str,
    ) -> Result<(), String> {
        let words: Vec<&str> = value.split_whitespace().collect();
        let [address, mac] = words[..] else { return Err("expected IP ETH".to_owned()) };
        let address = address.parse().map_err(|_| "IP: expected IP address")?;
        let (lladdr, port) = (mac.replace('-', ":"), port_of(element)?);
        let add = NeighbourAdd { address, lladdr, port };
        self.change_neighbour(NeighbourChange::Add(add)).map(drop).map_err(|why| format!("{why:#}"))
    }

    pub(super) fn forget_neighbour(
        &mut self,
        element: &Element,
        value: &str,
    ) -> Result<(), String> {
        let address = value.trim().parse().map_err(|_| "IP: expected IP address")?;
        let del = NeighbourDel { address, port: port_of(element)? };
        self.change_neighbour(NeighbourChange::Del(del)).map(drop).map_err(|why| format!("{why:#}"))
    }
}

fn port_of(element: &Element) -> Result<String, String> {
    element.port.clone().ok_or_else(|| format!("element \"{}\" has no port", element.name))
}
