//! The RIB with everything that the configuration says: routes, neighbours, imported tables.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use control::config::{self, Config};
use control::rib::{self, GroupKey, GroupSpec, Rib, RibPort, RouteKind, Source};
use dataplane::next_hop::NextHopTable;
use dpdk::qsbr::Qsbr;

use super::super::ports::OpenPort;
use crate::grace::Grace;

/// Both families' lookup sides.
pub type Readers = (Arc<dyn fib::Lookup<Ipv4Addr>>, Arc<dyn fib::Lookup<Ipv6Addr>>);

/// Makes the RIB.
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
    if config.forwarding.class_e {
        rib.accept_class_e();
    }
    for neighbour in &config.neighbours {
        rib.add_static_neighbour(neighbour.port, neighbour.address, neighbour.mac)?;
    }
    for (id, route) in (0..).zip(&config.routes) {
        add_route(&mut rib, id, route)
            .with_context(|| format!("{}:{}", config.file.display(), route.line))?;
    }
    for (rank, import) in (0..).zip(&config.imports) {
        let report = control::import::import(&mut rib, import, rank)
            .with_context(|| format!("{}:{}: import", config.file.display(), import.line))?;
        tracing::info!("{report}");
    }
    Ok((rib, readers))
}

/// Adds a route; the paths of a resilient one are a group of their own, with this number.
fn add_route(rib: &mut Rib, id: u32, route: &config::Route) -> Result<(), rib::Error> {
    let mut kind = route.kind.clone();
    if let (RouteKind::Unicast(paths), Some(resilient)) = (&kind, route.resilient) {
        let key = GroupKey { source: Source::Static, id };
        let spec =
            GroupSpec { paths: paths.clone(), resilient: Some(resilient), ..GroupSpec::default() };
        rib.set_group(key, spec)?;
        kind = RouteKind::NextHopGroup(key);
    }
    let metric = route.metric.into();
    rib.add(rib::Route { prefix: route.prefix, source: Source::Static, kind, metric })
}
