//! `turnpike route add|del` and `turnpike neighbour add|del`.

use std::net::IpAddr;

use anyhow::{Result, bail};
use api::Request;
use api::change::{NeighbourAdd, NeighbourChange, NeighbourDel, RouteAdd, RouteChange, RouteDel};
use api::report::Change;
use clap::{Args, Subcommand};

use super::{Console, RouterArgs, words};

/// A change of the routes.
#[derive(Debug, Args)]
pub struct RouteArgs {
    #[command(subcommand)]
    change: Route,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum Route {
    /// Add a route, until the router ends; one of the same prefix and metric is replaced
    Add {
        /// PREFIX via ADDRESS [dev PORT] [weight N] [via …] [metric N], or
        /// PREFIX blackhole|unreachable|prohibit [metric N]
        #[arg(required = true)]
        route: Vec<String>,
        /// The VRF whose packets it is for
        #[arg(long)]
        vrf: Option<String>,
        /// The VRF in which gateways without a port are looked up
        #[arg(long, value_name = "VRF")]
        next_hop_vrf: Option<String>,
    },
    /// Remove a route that `route add` added
    Del {
        /// PREFIX [metric N]; without a metric all routes to the prefix
        #[arg(required = true)]
        route: Vec<String>,
        /// The route's VRF
        #[arg(long)]
        vrf: Option<String>,
    },
}

/// A change of the neighbours.
#[derive(Debug, Args)]
pub struct NeighbourArgs {
    #[command(subcommand)]
    change: Neighbour,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum Neighbour {
    /// Set a neighbour's MAC, until the router ends: ADDRESS lladdr MAC dev PORT
    Add {
        /// Its address
        address: IpAddr,
        /// lladdr MAC dev PORT
        #[arg(required = true, num_args = 4)]
        settings: Vec<String>,
    },
    /// Remove a neighbour, so that it is resolved when it is needed: ADDRESS dev PORT
    Del {
        /// Its address
        address: IpAddr,
        /// dev PORT
        #[arg(required = true, num_args = 2)]
        settings: Vec<String>,
    },
}

/// Changes the routes and prints the result.
pub fn route(args: &RouteArgs, console: &mut Console<'_>) -> Result<()> {
    let (wanted, prefix) = match &args.change {
        Route::Add { route, vrf, next_hop_vrf } => {
            let (vrf, next_hop_vrf) = (vrf.clone(), next_hop_vrf.clone());
            let add = RouteAdd { vrf, next_hop_vrf, ..words::route_add(route)? };
            (RouteChange::Add(add.clone()), add.prefix)
        }
        Route::Del { route, vrf } => {
            let del = RouteDel { vrf: vrf.clone(), ..words::route_del(route)? };
            (RouteChange::Del(del.clone()), del.prefix)
        }
    };
    change(console, &Request::Route(wanted), &format!("route {prefix}"))
}

/// Changes the neighbours and prints the result.
pub fn neighbour(args: &NeighbourArgs, console: &mut Console<'_>) -> Result<()> {
    let (wanted, address) = match &args.change {
        Neighbour::Add { address, settings } => {
            let [lladdr, port] = named(settings, ["lladdr", "dev"])?;
            let add = NeighbourAdd { address: *address, lladdr, port };
            (NeighbourChange::Add(add), address)
        }
        Neighbour::Del { address, settings } => {
            let [port] = named(settings, ["dev"])?;
            (NeighbourChange::Del(NeighbourDel { address: *address, port }), address)
        }
    };
    change(console, &Request::Neighbour(wanted), &format!("neighbour {address}"))
}

/// Returns the values after these keywords, which may be in any order.
fn named<const N: usize>(words: &[String], keywords: [&str; N]) -> Result<[String; N]> {
    let mut values = keywords.map(|_| None);
    for pair in words.chunks(2) {
        let place = keywords.iter().position(|keyword| *keyword == pair[0]);
        match (place, pair) {
            (Some(place), [_, value]) if values[place].is_none() => {
                values[place] = Some(value.clone());
            }
            _ => bail!("{}", words::unexpected(&pair[0], &keywords, &keywords.join(", "))),
        }
    }
    // There are as many pairs as keywords, none twice: so all are present.
    Ok(values.map(Option::unwrap_or_default))
}

/// Requests a change and prints the result.
pub fn change(console: &mut Console<'_>, request: &Request, what: &str) -> Result<()> {
    console.report(request, |report| {
        let Change { change, note } = serde_json::from_value(report)?;
        let note = note.map_or_else(String::new, |note| format!("; {note}"));
        Ok(format!("{what}: {change}{note}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_stand_in_any_order_and_once() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let keywords = ["lladdr", "dev"];
        let expected = ["02::1".to_owned(), "left".to_owned()];
        assert_eq!(named(&words("lladdr 02::1 dev left"), keywords).unwrap(), expected);
        assert_eq!(named(&words("dev left lladdr 02::1"), keywords).unwrap(), expected);
        let error = named(&words("dev left dev right"), keywords).unwrap_err().to_string();
        assert_eq!(error, "\"dev\": not expected here; known: lladdr, dev");
        assert!(named(&words("dev left port right"), keywords).is_err());
    }
}
