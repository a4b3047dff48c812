//! Changes that commands ask for: routes of source `command`, neighbours whose MAC is given.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use api::change::{
    NeighbourAdd, NeighbourChange, NeighbourDel, PathSpec, RouteAdd, RouteChange, RouteDel,
    RouteType,
};
use api::report::Change;
use control::config::{NoGateway, Place, place_of_gateway};
use control::rib::{Inactive, Path, Route, RouteKind, RouteSource};
use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;
use wire::MacAddr;

use super::Owner;

impl Owner {
    pub(super) fn change_route(&mut self, change: RouteChange) -> Result<Change> {
        let (change, note) = match change {
            RouteChange::Add(add) => {
                let vrf = self.vrf_named(add.vrf.as_deref())?;
                let (prefix, metric) = (add.prefix, u64::from(add.metric));
                let gateways: Vec<IpAddr> = add.paths.iter().filter_map(|path| path.via).collect();
                let next_hops = self.vrf_of_gateways(&add, vrf)?;
                (self.add_route(add)?, self.note_on((vrf, next_hops), prefix, metric, gateways))
            }
            RouteChange::Del(del) => (self.delete_route(&del)?, None),
        };
        Ok(Change { change: change.to_owned(), note })
    }

    /// Returns a note on an added route: the route is not used, or its gateway is reached only by the default route.
    fn note_on(
        &self,
        (vrf, next_hops): (VrfId, VrfId),
        prefix: IpNet,
        metric: u64,
        mut gateways: Vec<IpAddr>,
    ) -> Option<String> {
        let mut routes =
            self.routing.rib.routes_filtered(vrf, Some(RouteSource::Command), Some(prefix), false);
        let route = routes.find(|route| route.metric == metric)?;
        match route.inactive {
            Some(Inactive::Pending) => return None,
            Some(why) => return Some(format!("not used: {} ({})", why.sentence(), why.name())),
            None => gateways.retain(|&via| self.routing.rib.is_by_default(next_hops, via)),
        }
        let gateways: Vec<_> = gateways.iter().map(ToString::to_string).collect();
        (!gateways.is_empty())
            .then(|| format!("reached by the default route only: gateway {}", gateways.join(", ")))
    }

    fn add_route(&mut self, add: RouteAdd) -> Result<&'static str> {
        let vrf = self.vrf_named(add.vrf.as_deref())?;
        let next_hops = self.vrf_of_gateways(&add, vrf)?;
        let RouteAdd { prefix, kind, paths, metric, .. } = add;
        if kind != RouteType::Unicast && !paths.is_empty() {
            bail!("route {prefix}: a route that refuses packets has no paths; leave them out");
        }
        let kind = match kind {
            RouteType::Blackhole => RouteKind::Blackhole,
            RouteType::Unreachable => RouteKind::Unreachable,
            RouteType::Prohibit => RouteKind::Prohibited,
            RouteType::Unicast => {
                let paths: Result<_> =
                    paths.iter().map(|path| self.path(next_hops, path)).collect();
                RouteKind::Unicast(paths.with_context(|| format!("route {prefix}"))?)
            }
        };
        let metric = u64::from(metric);
        let known = self
            .routing
            .rib
            .routes_filtered(vrf, Some(RouteSource::Command), Some(prefix), false)
            .any(|route| route.metric == metric);
        self.routing.rib.add(Route { vrf, prefix, source: RouteSource::Command, kind, metric })?;
        Ok(if known { "replaced" } else { "added" })
    }

    /// The VRF in which a route's gateways are sought.
    fn vrf_of_gateways(&self, add: &RouteAdd, own: VrfId) -> Result<VrfId> {
        let other = add.next_hop_vrf.as_deref().map(|name| self.vrf_named(Some(name)));
        Ok(other.transpose()?.unwrap_or(own))
    }

    /// Returns the path of a request. Its gateway is on a network of the VRF of its port, or of this one.
    pub(super) fn path(&self, vrf: VrfId, spec: &PathSpec) -> Result<Path> {
        let named = spec.port.as_deref().map(|name| self.port_named(name)).transpose()?;
        let Some(via) = spec.via else {
            let port = named.context("a path without gateway and port; write via or dev")?;
            return Ok(Path::on_interface(port.into()).weighing(spec.weight));
        };
        let vrf = named.map_or(vrf, |port| self.routing.rib.vrf_of(port.into()));
        let ports = self.routing.rib.interfaces().iter().filter(|port| port.vrf == vrf);
        let networks = ports.flat_map(|port| port.addresses.iter().map(|&net| (port.id, net)));
        let class_e = self.routing.rib.accepts_class_e();
        let path = match place_of_gateway(networks, via, named.map(InterfaceId::from), class_e) {
            Ok(Place::Elsewhere) => Path::recursive(vrf, via),
            Ok(Place::Network(port)) => Path::over(port, via),
            Ok(Place::Link(port)) => Path { on_link: true, ..Path::over(port, via) },
            Err(why) => bail!("via {via}: {}", self.no_gateway(why)),
        };
        Ok(path.weighing(spec.weight))
    }

    /// Describes the reason for which an address is no gateway, and the remedy.
    fn no_gateway(&self, why: NoGateway<InterfaceId>) -> String {
        match why {
            NoGateway::NotAHost(reason) => {
                format!("{reason}, not a next hop's; use the neighbour's unicast address")
            }
            NoGateway::Own(port) => {
                format!("is the router's own address (port \"{}\")", self.interface_name(port))
            }
            NoGateway::LinkLocal => {
                "is link-local, every port has that network; add dev PORT".to_owned()
            }
            NoGateway::NamesTheNetwork(reason, net) => {
                format!("is {reason} of {net}, not a host's")
            }
            NoGateway::OtherPort(port, net) => {
                let name = self.interface_name(port);
                format!("is on port \"{name}\" ({net}); correct dev, or leave it out")
            }
        }
    }

    fn delete_route(&mut self, del: &RouteDel) -> Result<&'static str> {
        let RouteDel { prefix, metric, .. } = *del;
        let vrf = self.vrf_named(del.vrf.as_deref())?;
        let removed = match metric {
            Some(metric) => {
                self.routing.rib.remove_one(vrf, prefix, RouteSource::Command, metric.into())
            }
            None => self.routing.rib.remove(vrf, prefix, RouteSource::Command) > 0,
        };
        if removed {
            return Ok("removed");
        }
        let mut others: Vec<_> = self
            .routing
            .rib
            .routes_filtered(vrf, None, Some(prefix), false)
            .map(describe)
            .collect();
        others.dedup();
        match &others[..] {
            [] => bail!("route {prefix}: there is none; see turnpike show routes --source command"),
            _ => bail!(
                "route {prefix}: no command added it; there is one from {}, to be removed there",
                others.join(", ")
            ),
        }
    }

    pub(super) fn change_neighbour(&mut self, change: NeighbourChange) -> Result<Change> {
        let change = match change {
            NeighbourChange::Add(add) => self.add_neighbour(&add)?,
            NeighbourChange::Del(del) => self.delete_neighbour(&del)?,
        };
        Ok(Change { change: change.to_owned(), note: None })
    }

    fn add_neighbour(&mut self, add: &NeighbourAdd) -> Result<&'static str> {
        let NeighbourAdd { address, lladdr, port } = add;
        let what = || format!("neighbour {address}");
        let port = self.port_named(port).with_context(what)?;
        if let Some(reason) =
            control::config::not_a_host(*address, self.routing.rib.accepts_class_e())
        {
            bail!("neighbour {address}: {reason}, not a neighbour's; use its unicast address");
        }
        let mac: MacAddr = lladdr
            .parse()
            .map_err(|error| anyhow::anyhow!("{}: lladdr \"{lladdr}\": {error}", what()))?;
        if mac.is_multicast() || mac == MacAddr::default() {
            bail!("{}: lladdr \"{lladdr}\" is not a host's; use a unicast address", what());
        }
        let known =
            self.routing.rib.neighbours().any(|(p, a, _)| (p, a) == (port.into(), *address));
        self.routing.rib.add_static_neighbour(port.into(), *address, mac).with_context(what)?;
        Ok(if known { "replaced" } else { "added" })
    }

    fn delete_neighbour(&mut self, del: &NeighbourDel) -> Result<&'static str> {
        let NeighbourDel { address, port } = del;
        let id = self.port_named(port).with_context(|| format!("neighbour {address}"))?;
        if !self.routing.rib.neighbours().any(|(p, a, _)| (p, a) == (id.into(), *address)) {
            bail!(
                "neighbour {address}: not known on port \"{port}\"; see turnpike show neighbours"
            );
        }
        self.routing.rib.remove_neighbour(id.into(), *address);
        Ok("removed")
    }
}

fn describe(route: control::rib::RouteInfo) -> String {
    route.source.name().to_owned()
}
