//! `turnpike show`: asks the running router and prints what it says, as a table or as JSON.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::report::{Counters, Graph, Neighbour, Port, Route, RouteAnswer};
use crate::api::{DEFAULT_SOCKET, Request, Show, client};
use crate::{picture, table};

/// What to show, of which router, and how.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(subcommand)]
    what: What,
    /// The router's socket
    #[arg(long, global = true, default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Ports: device, addresses, link, packets
    Ports,
    /// All routes
    Routes,
    /// What happens with packets to an address
    Route {
        /// The destination
        address: IpAddr,
    },
    /// Neighbours: addresses, MACs, packets that wait
    Neighbours,
    /// Where every packet went, and every drop reason
    Counters,
    /// The graph of steps with the packets on its edges
    Graph {
        /// Text for people, DOT for Graphviz, mermaid for Markdown
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Dot,
    Mermaid,
}

/// Asks, and returns what to print.
pub fn show(args: &ShowArgs) -> Result<String> {
    let show = match args.what {
        What::Ports => Show::Ports,
        What::Routes => Show::Routes,
        What::Route { address } => Show::Route { address },
        What::Neighbours => Show::Neighbours,
        What::Counters => Show::Counters,
        What::Graph { .. } => Show::Graph,
    };
    let report = client::ask(&args.socket, &Request::Show(show))?;
    if args.json {
        return Ok(serde_json::to_string_pretty(&report)?);
    }
    Ok(match args.what {
        What::Ports => table::ports(&read::<Vec<Port>>(report)?),
        What::Routes => table::routes(&read::<Vec<Route>>(report)?),
        What::Route { .. } => table::route(&read::<RouteAnswer>(report)?),
        What::Neighbours => table::neighbours(&read::<Vec<Neighbour>>(report)?),
        What::Counters => table::counters(&read::<Counters>(report)?),
        What::Graph { format } => draw(&read(report)?, format),
    })
}

fn draw(graph: &Graph, format: Format) -> String {
    match format {
        Format::Text => picture::text(graph),
        Format::Dot => picture::dot(graph),
        Format::Mermaid => picture::mermaid(graph),
    }
}

fn read<T: DeserializeOwned>(report: Value) -> Result<T> {
    Ok(serde_json::from_value(report)?)
}
