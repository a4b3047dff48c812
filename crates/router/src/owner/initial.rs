//! The RIB of the configuration: routes, neighbours, imported tables.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use control::config::{self, Config, NamedNextHop};
use control::rib::{self, GroupKey, GroupSpec, Rib, RibInterface, RouteKind, RouteSource};
use dataplane::grace::Grace;
use dataplane::interface::VrfId;
use dataplane::next_hop::{NO_ROUTE, NextHopTable};
use dataplane::steps::NamedHops;
use dpdk::qsbr::Qsbr;
use fib::{Address, GracePeriod, Replicas, SMALL_ROUTES, Table};
use ipnet::IpNet;

use super::super::in_kernel::InKernel;
use super::super::ports::{OpenPort, Ports};
use super::super::signals::Signals;
use super::super::virtuals::{OpenVirtual, OpenVirtuals};
use crate::progress::Progress;

/// Both families' lookup sides, a copy for each NUMA node.
pub type Readers = (Vec<Arc<dyn fib::Lookup<Ipv4Addr>>>, Vec<Arc<dyn fib::Lookup<Ipv6Addr>>>);

/// The configuration's routes in the RIB. The paths of a resilient route are a group of their own, so
/// that other paths move no more flows than they must.
#[derive(Debug, Default)]
pub struct StaticRoutes {
    /// By VRF, prefix and metric.
    groups: HashMap<(VrfId, IpNet, u32), GroupKey>,
    /// The groups of next hops with names.
    named: HashMap<String, GroupKey>,
    next: u32,
}

impl StaticRoutes {
    /// Puts a route into the RIB; one of the same prefix and metric is replaced.
    pub fn put(&mut self, rib: &mut Rib, route: &config::Route) -> Result<(), rib::Error> {
        let id = (route.vrf, route.prefix, route.metric);
        let before = self.groups.get(&id).copied();
        let group = match (&route.kind, route.resilient) {
            (RouteKind::Unicast(paths), Some(resilient)) => {
                let key = before.unwrap_or_else(|| self.new_group());
                self.groups.insert(id, key);
                let (paths, resilient) = (paths.clone(), Some(resilient));
                rib.set_group(key, GroupSpec { paths, resilient, ..GroupSpec::default() })?;
                Some(key)
            }
            _ => None,
        };
        let kind = group.map_or_else(|| route.kind.clone(), RouteKind::NextHopGroup);
        let (vrf, prefix, metric) = (route.vrf, route.prefix, route.metric.into());
        rib.add(rib::Route { vrf, prefix, source: RouteSource::Static, kind, metric })?;
        if let (Some(unused), None) = (before, group) {
            self.groups.remove(&id);
            rib.remove_group(unused);
        }
        Ok(())
    }

    /// Takes a route out of the RIB.
    pub fn remove(&mut self, rib: &mut Rib, route: &config::Route) {
        rib.remove_one(route.vrf, route.prefix, RouteSource::Static, route.metric.into());
        if let Some(group) = self.groups.remove(&(route.vrf, route.prefix, route.metric)) {
            rib.remove_group(group);
        }
    }

    /// Sets the next hop of a name.
    pub fn put_next_hop(&mut self, rib: &mut Rib, hop: &NamedNextHop) -> Result<(), rib::Error> {
        let known = self.named.get(&hop.name).copied();
        let key = known.unwrap_or_else(|| self.new_group());
        self.named.insert(hop.name.clone(), key);
        rib.set_group(key, GroupSpec { paths: hop.paths.clone(), ..GroupSpec::default() })
    }

    /// Forgets all names but these.
    pub fn keep_next_hops(&mut self, rib: &mut Rib, kept: &[NamedNextHop]) {
        self.named.retain(|name, key| {
            let stays = kept.iter().any(|hop| hop.name == *name);
            stays || {
                rib.remove_group(*key);
                false
            }
        });
    }

    /// Publishes the numbers of named next hops to steps. A name without a number leads nowhere.
    pub fn publish_next_hops(&self, rib: &Rib, to: &NamedHops) {
        let number = |key: &GroupKey| rib.group_hop(*key).unwrap_or(NO_ROUTE);
        to.set(self.named.iter().map(|(name, key)| (name.as_str(), number(key))));
    }

    fn new_group(&mut self) -> GroupKey {
        let id = self.next;
        self.next += 1;
        GroupKey::new(RouteSource::Static, id)
    }
}

/// Returns the RIB's view of a port.
pub fn rib_port(port: &OpenPort) -> RibInterface {
    RibInterface {
        id: port.id.into(),
        name: port.name.clone(),
        vrf: port.info.vrf,
        mac: port.info.mac,
        mtu: port.info.mtu,
        addresses: port.addresses.clone(),
        is_loopback: false,
    }
}

/// A table with a copy on each of these NUMA nodes; one table, anywhere, if there is none to choose.
fn on_nodes<A: Address>(
    nodes: &[usize],
    mut make: impl FnMut() -> Result<Box<dyn Table<A>>, fib::Error>,
) -> Result<Box<dyn Table<A>>, fib::Error> {
    let mut on = |&node: &usize| {
        let mut table = make()?;
        table.place(u32::try_from(node).unwrap_or(u32::MAX));
        Ok(table)
    };
    let [first, others @ ..] = nodes else { return make() };
    let mut replicas = Replicas::new(on(first)?);
    for node in others {
        replicas.push(on(node)?);
    }
    Ok(Box::new(replicas))
}

/// Both families' tables.
pub type NewFibs = (Box<dyn Table<Ipv4Addr>>, Box<dyn Table<Ipv6Addr>>);

/// Empty tables of a VRF, with a copy on each of these NUMA nodes. Those of the default VRF are large from the
/// beginning; there may be a thousand others, which grow with their routes.
///
/// # Errors
/// There is no memory for them.
pub fn new_fibs(
    vrf: VrfId,
    wanted: config::Fib,
    nodes: &[usize],
    qsbr: &Arc<Qsbr>,
) -> Result<NewFibs, fib::Error> {
    let grace = || {
        let qsbr = qsbr.clone();
        move || -> Box<dyn GracePeriod> { Box::new(Grace(qsbr.clone())) }
    };
    let (four, six) = (wanted.ipv4, wanted.ipv6);
    if vrf == VrfId::DEFAULT {
        let fib4 = on_nodes(nodes, || fib::new_ipv4(four, grace()()))?;
        return Ok((fib4, on_nodes(nodes, || fib::new_ipv6(six, grace()()))?));
    }
    let fib4 = on_nodes(nodes, || fib::new_small_ipv4(four, SMALL_ROUTES, grace()))?;
    Ok((fib4, on_nodes(nodes, || fib::new_small_ipv6(six, SMALL_ROUTES, grace()))?))
}

/// Makes the RIB, with a copy of the FIBs on each of these NUMA nodes.
pub fn build_rib(
    config: &Config,
    (ports, virtuals, nodes): (&Ports, &OpenVirtuals, &[usize]),
    next_hops: Arc<NextHopTable>,
    (qsbr, in_kernel): (&Arc<Qsbr>, Option<&InKernel>),
    signals: &mut Signals,
) -> Result<(Rib, StaticRoutes, Vec<Readers>)> {
    let (fib4, fib6) = match in_kernel {
        None => new_fibs(VrfId::DEFAULT, config.fib, nodes, qsbr)?,
        Some(in_kernel) => in_kernel.fibs(qsbr)?,
    };
    let grace = in_kernel
        .map_or_else(|| Box::new(Grace(qsbr.clone())) as _, |in_kernel| in_kernel.grace(qsbr));
    let mut readers = vec![(fib4.readers(), fib6.readers())];
    if nodes.len() > 1 {
        tracing::info!("route tables: a copy on each of {} NUMA nodes", nodes.len());
    }
    let mut rib = Rib::new(Vec::new(), fib4, fib6, next_hops, grace)?;
    for vrf in &config.vrfs {
        let (fib4, fib6) = new_fibs(vrf.id, config.fib, nodes, qsbr)?;
        readers.push((fib4.readers(), fib6.readers()));
        rib.add_vrf(fib4, fib6)?;
    }
    let is_bonded =
        |port: dataplane::port::PortId| config.port(port).is_some_and(|port| port.bond.is_some());
    let own = ports.iter().filter(|port| !is_bonded(port.id)).map(rib_port);
    let interfaces = own.chain(virtuals.values().map(OpenVirtual::in_rib));
    interfaces.into_iter().try_for_each(|interface| rib.add_interface(interface))?;
    rib.spread_in_buckets(config.forwarding.resilient.map(|resilient| resilient.buckets));
    rib.accept_class_e(config.forwarding.class_e);
    rib.resolve_via_default(config.forwarding.resolve_via_default);
    for neighbour in &config.neighbours {
        rib.add_static_neighbour(neighbour.port, neighbour.address, neighbour.mac)?;
    }
    let mut routes = StaticRoutes::default();
    for route in &config.routes {
        routes
            .put(&mut rib, route)
            .with_context(|| format!("{}:{}", config.file.display(), route.line))?;
    }
    for hop in config.all_next_hops() {
        routes
            .put_next_hop(&mut rib, &hop)
            .with_context(|| format!("{}:{}", config.file.display(), hop.line))?;
    }
    for (rank, import) in (0..).zip(&config.imports) {
        let file = import.file.display();
        tracing::info!("import {file}: begins");
        let (progress, mut stopped) = (Progress::of(format!("import {file}")), Ok(()));
        let report = control::import::import(&mut rib, import, rank, &mut |stage, done, all| {
            progress.import(stage, done, all);
            stopped = signals.check();
            stopped.is_ok()
        });
        drop(progress);
        stopped?;
        let report =
            report.with_context(|| format!("{}:{}", config.file.display(), import.line))?;
        tracing::info!("{report}");
    }
    Ok((rib, routes, readers))
}

#[cfg(test)]
mod tests;
