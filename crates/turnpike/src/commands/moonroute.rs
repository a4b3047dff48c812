//! MoonRoute's own commands: `addRoute`, `updateRoutes`, `showRoutes`.
//!
//! As in MoonRoute, an added route is only recorded, in one list for all clients, and forwards
//! packets after `updateRoutes`. It is then a route like those of `route add`.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use api::change::{NeighbourAdd, NeighbourChange, PathSpec, RouteAdd, RouteChange};
use api::report::Route;
use api::{Request, RouteFilter, Show, client, query};
use clap::Subcommand;
use ipnet::IpNet;
use serde_json::json;
use wire::MacAddr;
use wire::address::link_local;

use super::Console;
use crate::table;

/// MoonRoute's commands.
#[derive(Debug, Subcommand)]
#[command(rename_all = "camelCase")]
pub enum MoonRouteCommand {
    /// Record a route; updateRoutes adds it
    #[command(visible_alias = "ar")]
    AddRoute {
        /// The network's address
        #[arg(value_name = "networkIP")]
        network: IpAddr,
        /// The network's length
        #[arg(value_name = "networkPrefix")]
        length: u8,
        /// The port to send by
        #[arg(value_name = "PORT")]
        port: String,
        /// The next hop: its address or its MAC
        #[arg(value_name = "nextHopIP|nextHopMAC")]
        next_hop: String,
    },
    /// Add the routes recorded by addRoute
    #[command(visible_alias = "ur")]
    UpdateRoutes,
    /// Show static routes, added routes and recorded ones
    #[command(visible_alias = "sr")]
    ShowRoutes,
}

/// A recorded route.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    prefix: IpNet,
    port: String,
    next_hop: NextHop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextHop {
    Address(IpAddr),
    Mac(MacAddr),
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, port, next_hop } = self;
        match next_hop {
            NextHop::Address(address) => write!(f, "{prefix} via {address} ({port})"),
            NextHop::Mac(mac) => write!(f, "{prefix} via {mac} ({port})"),
        }
    }
}

/// The recorded routes that wait for `updateRoutes`.
#[derive(Debug, Default)]
pub struct Staged(Mutex<Vec<Written>>);

/// Most recorded routes.
const STAGED_MAX: usize = 100_000;

impl MoonRouteCommand {
    /// Executes the command.
    ///
    /// # Errors
    /// An argument is wrong, or the router refuses.
    pub fn execute(&self, staged: &Staged, console: &mut Console<'_>) -> Result<()> {
        match self {
            Self::AddRoute { network, length, port, next_hop } => {
                let written = write_down(console, (*network, *length), port, next_hop)?;
                let text = written.to_string();
                let mut staged = staged.0.lock().unwrap_or_else(PoisonError::into_inner);
                if staged.len() >= STAGED_MAX {
                    bail!("{STAGED_MAX} routes wait; say updateRoutes first");
                }
                staged.push(written);
                drop(staged);
                console.print(&format!("{text}: written down; updateRoutes adds it"))
            }
            Self::UpdateRoutes => update(staged, console),
            Self::ShowRoutes => show(staged, console),
        }
    }
}

fn write_down(
    console: &Console<'_>,
    (network, length): (IpAddr, u8),
    port: &str,
    next_hop: &str,
) -> Result<Written> {
    let prefix = IpNet::new(network, length)
        .with_context(|| format!("networkPrefix {length}: longer than the address {network}"))?;
    if prefix.trunc() != prefix {
        bail!("networkIP {network}: has host bits; the network is {}", prefix.trunc());
    }
    let ports = client::query(console.socket, &query::PORTS, Show::Ports)?;
    if !ports.iter().any(|known| known.name == port) {
        let known: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        bail!("nextHopPort \"{port}\": unknown; ports: {}", known.join(", "));
    }
    let next_hop = match (next_hop.parse(), next_hop.parse()) {
        (Ok(address), _) => NextHop::Address(address),
        (_, Ok(mac)) => NextHop::Mac(mac),
        (Err(_), Err(error)) => {
            bail!("next hop \"{next_hop}\": not an IP address, and no MAC: {error}")
        }
    };
    Ok(Written { prefix, port: port.to_owned(), next_hop })
}

/// Adds the recorded routes. Refused ones are reported and discarded.
fn update(staged: &Staged, console: &mut Console<'_>) -> Result<()> {
    let all = std::mem::take(&mut *staged.0.lock().unwrap_or_else(PoisonError::into_inner));
    let mut refused = Vec::new();
    for written in &all {
        if let Err(error) = add(console, written) {
            refused.push(format!("{written}: {error:#}"));
        }
    }
    console.print(&format!("routes added: {}", all.len() - refused.len()))?;
    if !refused.is_empty() {
        bail!("refused: {}\n{}", refused.len(), refused.join("\n"));
    }
    Ok(())
}

fn add(console: &Console<'_>, written: &Written) -> Result<()> {
    let port = Some(written.port.clone());
    let via = match written.next_hop {
        NextHop::Address(address) => address,
        NextHop::Mac(mac) => {
            // A stand-in for the MAC: packets of both families can have such a gateway (RFC 8950).
            let via = link_local(mac);
            let neighbour = NeighbourAdd {
                address: via.into(),
                lladdr: mac.to_string(),
                port: written.port.clone(),
            };
            let change = NeighbourChange::Add(neighbour);
            client::ask(console.socket, &Request::Neighbour(change))?;
            via.into()
        }
    };
    let paths = vec![PathSpec { port, ..PathSpec::via(via) }];
    let add = RouteAdd { paths, ..RouteAdd::to(written.prefix) };
    client::ask(console.socket, &Request::Route(RouteChange::Add(add)))?;
    Ok(())
}

fn show(staged: &Staged, console: &mut Console<'_>) -> Result<()> {
    let written = staged.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let written: Vec<_> = written.iter().map(ToString::to_string).collect();
    let (fixed, dynamic) = (routes(console, "static")?, routes(console, "command")?);
    if console.json {
        let all = json!({ "static": fixed, "dynamic": dynamic, "written_down": written });
        return console.print(&serde_json::to_string_pretty(&all)?);
    }
    for (title, routes) in [("Static routes:", fixed), ("Dynamic routes:", dynamic)] {
        console.print(title)?;
        for route in &routes {
            console.print(&format!(" {}", table::route_line(route)))?;
        }
    }
    if !written.is_empty() {
        console.print("Written down, for updateRoutes:")?;
    }
    written.iter().try_for_each(|written| console.print(&format!(" {written}")))
}

fn routes(console: &Console<'_>, source: &str) -> Result<Vec<Route>> {
    let filter = RouteFilter { source: Some(source.to_owned()), ..RouteFilter::default() };
    let mut routes = Vec::new();
    client::ask_routes(console.socket, filter, |route| {
        routes.push(route);
        Ok(true)
    })?;
    Ok(routes)
}
