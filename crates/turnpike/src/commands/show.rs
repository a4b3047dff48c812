//! `turnpike show`: queries the running router and prints the answer, as a table or as JSON.

use std::net::IpAddr;

use anyhow::Result;
use api::report::{
    ControlQueue, Counters, Filter, FilterVerdict, Flows, Forwarders, Graph, Multicast, Neighbour,
    Policing, Port, PortQueue, PrefixSet, RouteAnswer, Rss, Source, Steps, Vrf,
};
use api::{Flow, Request, Show};
use clap::{Args, Subcommand, ValueEnum};
use control::config::default_graph_in_lua;
use dataplane::catalogue::Catalogue;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::flows::{FlowWords, protocol};
use super::routes::{self, RoutesArgs};
use super::{Console, RouterArgs};
use crate::{picture, table};

/// What to show, of which router, and how.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Ports: device, addresses, link, packets
    Ports {
        /// Offloads: those in use, and the reason for each that is not
        #[arg(long)]
        offloads: bool,
        /// Links: speed, duplex, flow control, error correction, receive filters
        #[arg(long, conflicts_with = "offloads")]
        link: bool,
    },
    /// Routes
    Routes(RoutesArgs),
    /// Forwarding decision for an address
    Route {
        /// The destination
        address: IpAddr,
        /// Packets of this VRF: see `show vrfs`
        #[arg(long)]
        vrf: Option<String>,
        #[command(flatten)]
        flow: FlowArgs,
    },
    /// VRFs: ports, number of routes, kernel tables
    Vrfs,
    /// Sources of routes and their state
    Sources,
    /// Neighbours: address, MAC, state, waiting packets
    Neighbours,
    /// Forwarders: cores, NUMA nodes, queues, load
    Forwarders,
    /// RSS: hash, key, redirection table
    Rss,
    /// Control queues: rules that select their packets, learned flows
    ControlQueues,
    /// Software transmit queues: discipline, rate; length, delay, drops and marks of each class
    Queues,
    /// Multicast routes: groups, egress ports, packets
    Multicast,
    /// Packet filters: rules, actions, hits
    Filters {
        /// One filter
        name: Option<String>,
        /// Which of its rules a packet fits: PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT] [in PORT]
        /// [flags F] [icmp TYPE] [ttl N] [length N] [dscp D] [state S] [fragment] [routing T] [extension E]
        #[arg(long, requires = "name")]
        packet: Option<String>,
    },
    /// Prefix sets of filters and their sizes
    Sets {
        /// The elements of one set
        name: Option<String>,
    },
    /// Flows tracked by filters with `state`, largest first
    Flows {
        #[command(flatten)]
        of: FlowWords,
        /// Number of flows; 0 for all
        #[arg(long, default_value_t = 20)]
        top: usize,
    },
    /// Packet counters, drops by reason
    Counters {
        /// Include counters that are 0
        #[arg(long)]
        all: bool,
    },
    /// Control-plane policing: rates, accepted and refused packets of each class
    #[command(alias = "protection")]
    Policing,
    /// Steps of the graph; calls, time and errors of Lua steps
    Steps,
    /// Topology: NUMA nodes, cores and caches with their ports, queues and forwarders
    Topology,
    /// The graph of steps with the packets on its edges
    Graph {
        /// Text, DOT for Graphviz, or mermaid for Markdown
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
        /// Print the default graph as Lua statements
        #[arg(long)]
        lua: bool,
    },
}

/// The flow whose path is sought.
#[derive(Debug, Args)]
struct FlowArgs {
    /// Show the path of packets from this address
    #[arg(long)]
    from: Option<IpAddr>,
    /// The flow's protocol: tcp, udp, icmp, icmp6, sctp, … or its number
    #[arg(long, requires = "from", value_parser = protocol, default_value = "udp")]
    protocol: u8,
    /// The flow's source port
    #[arg(long, requires = "from", default_value_t = 0)]
    sport: u16,
    /// The flow's destination port
    #[arg(long, requires = "from", default_value_t = 0)]
    dport: u16,
}

impl FlowArgs {
    fn flow(&self) -> Option<Flow> {
        let Self { from, protocol, sport, dport } = *self;
        from.map(|from| Flow { from, protocol, sport, dport })
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Dot,
    Mermaid,
}

/// Sends the query and prints the answer.
pub fn show(args: &ShowArgs, console: &mut Console<'_>) -> Result<()> {
    let show = match &args.what {
        What::Routes(routes) => return routes::show(routes, console),
        What::Graph { lua: true, .. } => {
            return console.print(&default_graph_in_lua(&Catalogue::default())?);
        }
        What::Ports { .. } => Show::Ports,
        What::Route { address, vrf, flow } => {
            Show::Route { address: *address, flow: flow.flow(), vrf: vrf.clone() }
        }
        What::Vrfs => Show::Vrfs,
        What::Neighbours => Show::Neighbours,
        What::Sources => Show::Sources,
        What::Forwarders => Show::Forwarders,
        What::Rss => Show::Rss,
        What::ControlQueues => Show::ControlQueues,
        What::Queues => Show::Queues,
        What::Multicast => Show::Multicast,
        What::Filters { name: Some(name), packet: Some(packet) } => {
            Show::FilterVerdict { name: name.clone(), packet: packet.clone() }
        }
        What::Filters { .. } => Show::Filters,
        What::Sets { .. } => Show::Sets,
        What::Flows { of, top } => Show::Flows { of: of.selection(), most: *top },
        What::Counters { .. } => Show::Counters,
        What::Policing => Show::Policing,
        What::Graph { .. } => Show::Graph,
        What::Steps => Show::Steps,
        What::Topology => Show::Topology,
    };
    console.report(&Request::Show(show), |report| text(&args.what, report))
}

fn text(what: &What, report: Value) -> Result<String> {
    Ok(match what {
        // Printed on arrival.
        What::Routes(_) => String::new(),
        What::Ports { offloads: true, .. } => table::offloads(&read::<Vec<Port>>(report)?),
        What::Ports { link: true, .. } => table::links(&read::<Vec<Port>>(report)?),
        What::Ports { .. } => table::ports(&read::<Vec<Port>>(report)?),
        What::Route { .. } => table::route(&read::<RouteAnswer>(report)?),
        What::Vrfs => table::vrfs(&read::<Vec<Vrf>>(report)?),
        What::Neighbours => table::neighbours(&read::<Vec<Neighbour>>(report)?),
        What::Sources => table::sources(&read::<Vec<Source>>(report)?),
        What::Forwarders => table::forwarders(&read::<Forwarders>(report)?),
        What::ControlQueues => table::control_queues(&read::<Vec<ControlQueue>>(report)?),
        What::Queues => table::queues(&read::<Vec<PortQueue>>(report)?),
        What::Rss => table::rss(&read::<Vec<Rss>>(report)?),
        What::Multicast => table::multicast(&read::<Vec<Multicast>>(report)?),
        What::Filters { packet: Some(_), .. } => table::verdict(&read::<FilterVerdict>(report)?),
        What::Filters { name, .. } => {
            table::filters(&read::<Vec<Filter>>(report)?, name.as_deref())?
        }
        What::Sets { name } => table::sets(&read::<Vec<PrefixSet>>(report)?, name.as_deref())?,
        What::Flows { .. } => table::flows(&read::<Flows>(report)?),
        What::Counters { all } => table::counters(&read::<Counters>(report)?, *all),
        What::Policing => table::policing(&read::<Policing>(report)?),
        What::Steps => table::steps(&read::<Steps>(report)?),
        What::Topology => picture::topology::text(&read(report)?),
        What::Graph { format, .. } => draw(&read(report)?, *format),
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
