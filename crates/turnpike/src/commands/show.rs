//! `turnpike show`: queries the running router and prints the answer, as a table or as JSON.
//!
//! [`SHOWS`] declares every `show` with its name, help, options, query, answer and table. Help and
//! completion of all shells are derived from it.

use std::fmt::Debug;
use std::net::IpAddr;

use anyhow::Result;
use api::report::{
    Bond, ClickElement, ControlQueue, Counters, Exporters, Filter, FilterVerdict, Flows,
    Forwarders, Graph, Interface, Mirror, Multicast, Neighbour, Policing, Port, PortQueue,
    PrefixSet, RouteAnswer, Rss, SourceReport, Status, Steps, Vrf,
};
use api::{Flow, Request, Show};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, ValueEnum};
use control::config::default_graph_in_lua;
use dataplane::catalogue::Catalogue;
use serde::de::DeserializeOwned;

use super::flows::{FlowWords, protocol};
use super::routes::{self, RoutesArgs};
use super::{Console, RouterArgs};
use crate::{picture, table};

/// Every `show`, in the order of the help.
static SHOWS: &[&dyn ShowCommand] = &[
    &Declaration {
        name: "ports",
        alias: None,
        help: "Ports: device, addresses, link, packets",
        show: |options: &PortsOptions, to| {
            ask(to, Show::Ports, |ports: Vec<Port>| match options {
                PortsOptions { offloads: true, .. } => Ok(table::offloads(&ports)),
                PortsOptions { link: true, .. } => Ok(table::links(&ports)),
                PortsOptions { .. } => Ok(table::ports(&ports)),
            })
        },
    },
    &Declaration {
        name: "interfaces",
        alias: None,
        help: "Interfaces: ports, bonds and the VLANs on them, addresses, link, packets",
        show: |_: &NoOptions, to| {
            ask(to, Show::Interfaces, |all: Vec<Interface>| Ok(table::interfaces(&all)))
        },
    },
    &Declaration {
        name: "bonds",
        alias: None,
        help: "Bonds: mode, ports, their state, LACP partners and counters",
        show: |_: &NoOptions, to| ask(to, Show::Bonds, |all: Vec<Bond>| Ok(table::bonds(&all))),
    },
    &Declaration {
        name: "routes",
        alias: None,
        help: "Routes",
        show: |options: &RoutesArgs, to| routes::show(options, to),
    },
    &Declaration {
        name: "route",
        alias: None,
        help: "Forwarding decision for an address",
        show: |options: &RouteOptions, to| {
            ask(to, options.question(), |route: RouteAnswer| Ok(table::route(&route)))
        },
    },
    &Declaration {
        name: "vrfs",
        alias: None,
        help: "VRFs: ports, number of routes, kernel tables",
        show: |_: &NoOptions, to| ask(to, Show::Vrfs, |vrfs: Vec<Vrf>| Ok(table::vrfs(&vrfs))),
    },
    &Declaration {
        name: "sources",
        alias: None,
        help: "Sources of routes and their state",
        show: |_: &NoOptions, to| {
            ask(to, Show::Sources, |sources: Vec<SourceReport>| Ok(table::sources(&sources)))
        },
    },
    &Declaration {
        name: "neighbours",
        alias: None,
        help: "Neighbours: address, MAC, state, waiting packets",
        show: |_: &NoOptions, to| {
            ask(to, Show::Neighbours, |all: Vec<Neighbour>| Ok(table::neighbours(&all)))
        },
    },
    &Declaration {
        name: "forwarders",
        alias: None,
        help: "Forwarders: cores, NUMA nodes, queues, load",
        show: |_: &NoOptions, to| {
            ask(to, Show::Forwarders, |all: Forwarders| Ok(table::forwarders(&all)))
        },
    },
    &Declaration {
        name: "rss",
        alias: None,
        help: "RSS: hash, key, redirection table",
        show: |_: &NoOptions, to| ask(to, Show::Rss, |ports: Vec<Rss>| Ok(table::rss(&ports))),
    },
    &Declaration {
        name: "control-queues",
        alias: None,
        help: "Control queues: rules that select their packets, learned flows",
        show: |_: &NoOptions, to| {
            ask(to, Show::ControlQueues, |queues: Vec<ControlQueue>| {
                Ok(table::control_queues(&queues))
            })
        },
    },
    &Declaration {
        name: "queues",
        alias: None,
        help: "Software transmit queues: discipline, rate; length, delay, drops and marks of each class",
        show: |_: &NoOptions, to| {
            ask(to, Show::Queues, |queues: Vec<PortQueue>| Ok(table::queues(&queues)))
        },
    },
    &Declaration {
        name: "multicast",
        alias: None,
        help: "Multicast routes: groups, egress ports, packets",
        show: |_: &NoOptions, to| {
            ask(to, Show::Multicast, |routes: Vec<Multicast>| Ok(table::multicast(&routes)))
        },
    },
    &Declaration {
        name: "mirrors",
        alias: None,
        help: "Mirror sessions (SPAN): sources, destination, copies",
        show: |_: &NoOptions, to| {
            ask(to, Show::Mirrors, |mirrors: Vec<Mirror>| Ok(table::mirrors(&mirrors)))
        },
    },
    &Declaration {
        name: "exporters",
        alias: None,
        help: "Exporters (sFlow, IPFIX), their collectors, the SNMP agent",
        show: |_: &NoOptions, to| {
            ask(to, Show::Exporters, |of: Exporters| Ok(table::exporters(&of)))
        },
    },
    &Declaration {
        name: "filters",
        alias: None,
        help: "Packet filters: rules, actions, hits",
        show: |options: &FiltersOptions, to| match options.verdict() {
            Some(verdict) => {
                ask(to, verdict, |verdict: FilterVerdict| Ok(table::verdict(&verdict)))
            }
            None => ask(to, Show::Filters, |filters: Vec<Filter>| {
                table::filters(&filters, options.name.as_deref())
            }),
        },
    },
    &Declaration {
        name: "sets",
        alias: None,
        help: "Prefix sets of filters and their sizes",
        show: |options: &SetsOptions, to| {
            ask(to, Show::Sets, |sets: Vec<PrefixSet>| table::sets(&sets, options.name.as_deref()))
        },
    },
    &Declaration {
        name: "flows",
        alias: None,
        help: "Flows tracked by filters with `state`, largest first",
        show: |options: &FlowsOptions, to| {
            ask(to, options.question(), |flows: Flows| Ok(table::flows(&flows)))
        },
    },
    &Declaration {
        name: "status",
        alias: None,
        help: "Version, uptime and configuration of the router",
        show: |_: &NoOptions, to| {
            ask(to, Show::Status, |status: Status| Ok(table::status(&status)))
        },
    },
    &Declaration {
        name: "counters",
        alias: None,
        help: "Packet counters; drops by step and reason, largest first",
        show: |options: &CountersOptions, to| {
            ask(to, Show::Counters, |all: Counters| Ok(table::counters(&all, options.all)))
        },
    },
    &Declaration {
        name: "policing",
        alias: Some("protection"),
        help: "Control-plane policing: rates, accepted and refused packets of each class",
        show: |_: &NoOptions, to| {
            ask(to, Show::Policing, |policing: Policing| Ok(table::policing(&policing)))
        },
    },
    &Declaration {
        name: "steps",
        alias: None,
        help: "Steps of the graph; calls, time and errors of Lua steps",
        show: |_: &NoOptions, to| ask(to, Show::Steps, |steps: Steps| Ok(table::steps(&steps))),
    },
    &Declaration {
        name: "click",
        alias: None,
        help: "Elements of a Click configuration: class, step or port, packets",
        show: |options: &ClickOptions, to| {
            ask(to, Show::Click, |elements: Vec<ClickElement>| {
                table::click(&elements, options.name.as_deref())
            })
        },
    },
    &Declaration {
        name: "topology",
        alias: None,
        help: "Topology: NUMA nodes, cores and caches with their ports, queues and forwarders",
        show: |_: &NoOptions, to| ask(to, Show::Topology, |all| Ok(picture::topology::text(&all))),
    },
    &Declaration {
        name: "graph",
        alias: None,
        help: "The graph of steps with the packets on its edges",
        show: |options: &GraphOptions, to| {
            if options.lua {
                return to.print(&default_graph_in_lua(&Catalogue::default())?);
            }
            ask(to, Show::Graph, |graph: Graph| Ok(options.format.draw(&graph)))
        },
    },
];

/// A `show` with options of this type.
struct Declaration<O> {
    name: &'static str,
    /// Another name, which help does not list.
    alias: Option<&'static str>,
    /// Its line in the list of shows.
    help: &'static str,
    /// Sends the query and prints the answer, usually by [`ask`].
    show: fn(&O, &mut Console<'_>) -> Result<()>,
}

/// Sends a query to the router, and prints its answer: as JSON, or as the table of it.
fn ask<A: DeserializeOwned>(
    to: &mut Console<'_>,
    question: Show,
    table: impl FnOnce(A) -> Result<String>,
) -> Result<()> {
    to.report(&Request::Show(question), |answer| table(serde_json::from_value(answer)?))
}

#[derive(Debug, Args)]
struct NoOptions {}

#[derive(Debug, Args)]
struct PortsOptions {
    /// Offloads: those in use, and the reason for each unused one
    #[arg(long)]
    offloads: bool,
    /// Links: speed, duplex, flow control, error correction, receive filters
    #[arg(long, conflicts_with = "offloads")]
    link: bool,
}

#[derive(Debug, Args)]
struct RouteOptions {
    /// The destination
    address: IpAddr,
    /// Packets of this VRF: see `show vrfs`
    #[arg(long)]
    vrf: Option<String>,
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

impl RouteOptions {
    fn question(&self) -> Show {
        let Self { address, ref vrf, from, protocol, sport, dport } = *self;
        let flow = from.map(|from| Flow { from, protocol, sport, dport });
        Show::Route { address, flow, vrf: vrf.clone() }
    }
}

#[derive(Debug, Args)]
struct FiltersOptions {
    /// One filter
    name: Option<String>,
    /// The rules that a packet matches: PROTOCOL SOURCE[:PORT] > DESTINATION[:PORT] [in PORT]
    /// [flags F] [icmp TYPE] [ttl N] [length N] [dscp D] [state S] [fragment] [routing T]
    /// [extension E]
    #[arg(long, requires = "name")]
    packet: Option<String>,
}

impl FiltersOptions {
    /// The query for a packet's verdict, if there is a packet.
    fn verdict(&self) -> Option<Show> {
        let (name, packet) = self.name.clone().zip(self.packet.clone())?;
        Some(Show::FilterVerdict { name, packet })
    }
}

#[derive(Debug, Args)]
struct SetsOptions {
    /// The elements of one set
    name: Option<String>,
}

#[derive(Debug, Args)]
struct ClickOptions {
    /// One element and its handlers
    name: Option<String>,
}

#[derive(Debug, Args)]
struct FlowsOptions {
    #[command(flatten)]
    of: FlowWords,
    /// Number of flows; 0 for all
    #[arg(long, default_value_t = 20)]
    top: usize,
}

impl FlowsOptions {
    fn question(&self) -> Show {
        Show::Flows { of: self.of.selection(), most: self.top }
    }
}

#[derive(Debug, Args)]
struct CountersOptions {
    /// Include counters and drop reasons that are 0
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
struct GraphOptions {
    /// Text, DOT for Graphviz, or mermaid for Markdown
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Print the default graph as Lua statements
    #[arg(long)]
    lua: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Text,
    Dot,
    Mermaid,
}

impl Format {
    fn draw(self, graph: &Graph) -> String {
        match self {
            Self::Text => picture::text(graph),
            Self::Dot => picture::dot(graph),
            Self::Mermaid => picture::mermaid(graph),
        }
    }
}

/// A declaration with options of any type.
trait ShowCommand: Sync {
    fn name(&self) -> &'static str;
    /// Returns the command of clap that parses its options.
    fn command(&self) -> Command;
    fn read(&'static self, options: &ArgMatches) -> Result<Box<dyn Wanted>, Error>;
}

impl<O: Args + Debug + 'static> ShowCommand for Declaration<O> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self) -> Command {
        let command = O::augment_args(Command::new(self.name)).about(self.help);
        command.long_about(None).aliases(self.alias)
    }

    fn read(&'static self, options: &ArgMatches) -> Result<Box<dyn Wanted>, Error> {
        Ok(Box::new((self, O::from_arg_matches(options)?)))
    }
}

/// A declaration and the options given.
trait Wanted {
    fn show(&self, console: &mut Console<'_>) -> Result<()>;
    fn describe(&self) -> (&'static str, &dyn Debug);
}

impl<O: Debug> Wanted for (&'static Declaration<O>, O) {
    fn show(&self, console: &mut Console<'_>) -> Result<()> {
        let (declaration, options) = self;
        (declaration.show)(options, console)
    }

    fn describe(&self) -> (&'static str, &dyn Debug) {
        (self.0.name, &self.1)
    }
}

/// One of [`SHOWS`], as clap's subcommand.
struct OneOf(Box<dyn Wanted>);

impl Debug for OneOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.describe().fmt(f)
    }
}

impl FromArgMatches for OneOf {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let missing = || Error::new(ErrorKind::MissingSubcommand);
        let (name, options) = matches.subcommand().ok_or_else(missing)?;
        let show = SHOWS.iter().find(|show| show.name() == name).ok_or_else(missing)?;
        show.read(options).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for OneOf {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(SHOWS.iter().map(|show| show.command()))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        SHOWS.iter().any(|show| show.name() == name)
    }
}

/// The report to show, the router, and the output format.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(subcommand)]
    what: OneOf,
    #[command(flatten)]
    pub(super) router: RouterArgs,
}

/// Sends the query and prints the answer.
pub fn show(args: &ShowArgs, console: &mut Console<'_>) -> Result<()> {
    args.what.0.show(console)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The text of the guide and all other documents for users.
    fn documents() -> String {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let files = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
        let pages = files.filter(|file| file.extension().is_some_and(|ending| ending == "md"));
        pages.map(|file| fs::read_to_string(file).unwrap()).collect()
    }

    #[test]
    fn every_show_has_a_name_of_its_own_help_and_a_place_in_the_documents() {
        let documents = documents();
        let mut names = BTreeSet::new();
        for show in SHOWS {
            let command = show.command();
            command.clone().debug_assert();
            for name in [show.name()].into_iter().chain(command.get_all_aliases()) {
                assert!(names.insert(name.to_owned()), "show {name} is declared twice");
            }
            let help = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                help.len() >= "Routes".len() && !help.ends_with('.'),
                "{}: {help}",
                show.name()
            );
            let mentioned = format!("turnpike show {}", show.name());
            assert!(documents.contains(&mentioned), "docs/ does not mention: {mentioned}");
        }
    }

    #[test]
    fn every_show_reads_its_options_and_asks() {
        for show in SHOWS {
            let address = (show.name() == "route").then_some("192.0.2.1");
            let matches = show.command().no_binary_name(true).try_get_matches_from(address);
            let wanted = show.read(&matches.unwrap()).unwrap();
            let (mut out, socket) = (Vec::new(), Path::new("/nonexistent/router.sock"));
            let mut console = Console { socket, json: false, out: &mut out };
            let error = wanted.show(&mut console).unwrap_err().to_string();
            assert!(error.contains("cannot reach a router"), "{}: {error}", show.name());
        }
    }
}
