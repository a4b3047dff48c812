//! `turnpike show`: queries the running router and prints the answer, as a table or as JSON.
//!
//! [`SHOWS`] adds options and a table to [`query`]'s name, help and type of the answer. Help and completion of all
//! shells are derived from it.

use std::fmt::Debug;
use std::net::IpAddr;

use anyhow::Result;
use api::query::{self, Query};
use api::report::Graph;
use api::{Flow, Show};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, ValueEnum};
use control::config::default_graph_in_lua;
use dataplane::catalogue::Catalogue;
use serde::de::DeserializeOwned;

use super::flows::{FlowWords, protocol};
use super::routes;
use super::{Console, RouterArgs};
use crate::{picture, table};

/// Every `show`, in the order of the help.
static SHOWS: &[&dyn ShowCommand] = &[
    &Declaration {
        query: &query::PORTS,
        alias: None,
        show: |options: &PortsOptions, to| {
            to.ask(&query::PORTS, Show::Ports, |ports| match options {
                PortsOptions { offloads: true, .. } => Ok(table::offloads(&ports)),
                PortsOptions { link: true, .. } => Ok(table::links(&ports)),
                PortsOptions { .. } => Ok(table::ports(&ports)),
            })
        },
    },
    &Plain {
        query: &query::INTERFACES,
        question: Show::Interfaces,
        table: |all| table::interfaces(all),
    },
    &Plain { query: &query::BONDS, question: Show::Bonds, table: |all| table::bonds(all) },
    &Declaration { query: &query::ROUTES, alias: None, show: routes::show },
    &Declaration {
        query: &query::ROUTE,
        alias: None,
        show: |options: &RouteOptions, to| {
            to.ask(&query::ROUTE, options.question(), |route| Ok(table::route(&route)))
        },
    },
    &Plain { query: &query::VRFS, question: Show::Vrfs, table: |all| table::vrfs(all) },
    &Plain { query: &query::SOURCES, question: Show::Sources, table: |all| table::sources(all) },
    &Plain {
        query: &query::NEIGHBOURS,
        question: Show::Neighbours,
        table: |all| table::neighbours(all),
    },
    &Plain { query: &query::FORWARDERS, question: Show::Forwarders, table: table::forwarders },
    &Plain { query: &query::RSS, question: Show::Rss, table: |all| table::rss(all) },
    &Plain {
        query: &query::CONTROL_QUEUES,
        question: Show::ControlQueues,
        table: |all| table::control_queues(all),
    },
    &Plain { query: &query::QUEUES, question: Show::Queues, table: |all| table::queues(all) },
    &Plain {
        query: &query::MULTICAST,
        question: Show::Multicast,
        table: |all| table::multicast(all),
    },
    &Plain { query: &query::MIRRORS, question: Show::Mirrors, table: |all| table::mirrors(all) },
    &Plain { query: &query::EXPORTERS, question: Show::Exporters, table: table::exporters },
    &Declaration {
        query: &query::FILTERS,
        alias: None,
        show: |options: &FiltersOptions, to| match options.verdict() {
            Some(verdict) => {
                to.ask(&query::FILTER_VERDICT, verdict, |verdict| Ok(table::verdict(&verdict)))
            }
            None => to.ask(&query::FILTERS, Show::Filters, |all| {
                table::filters(&all, options.name.as_deref())
            }),
        },
    },
    &Declaration {
        query: &query::SETS,
        alias: None,
        show: |options: &SetsOptions, to| {
            to.ask(&query::SETS, Show::Sets, |sets| table::sets(&sets, options.name.as_deref()))
        },
    },
    &Declaration {
        query: &query::FLOWS,
        alias: None,
        show: |options: &FlowsOptions, to| {
            to.ask(&query::FLOWS, options.question(), |flows| Ok(table::flows(&flows)))
        },
    },
    &Plain { query: &query::STATUS, question: Show::Status, table: table::status },
    &Declaration {
        query: &query::COUNTERS,
        alias: None,
        show: |options: &CountersOptions, to| {
            to.ask(&query::COUNTERS, Show::Counters, |all| Ok(table::counters(&all, options.all)))
        },
    },
    &Plain {
        query: &query::ACCELERATION,
        question: Show::Acceleration,
        table: table::acceleration,
    },
    &Declaration {
        query: &query::POLICING,
        alias: Some("protection"),
        show: |_: &NoOptions, to| {
            to.ask(&query::POLICING, Show::Policing, |all| Ok(table::policing(&all)))
        },
    },
    &Plain { query: &query::STEPS, question: Show::Steps, table: table::steps },
    &Declaration {
        query: &query::CLICK,
        alias: None,
        show: |options: &ClickOptions, to| {
            to.ask(&query::CLICK, Show::Click, |elements| {
                table::click(&elements, options.name.as_deref())
            })
        },
    },
    &Plain { query: &query::TOPOLOGY, question: Show::Topology, table: picture::topology::text },
    &Declaration {
        query: &query::GRAPH,
        alias: None,
        show: |options: &GraphOptions, to| {
            if options.lua {
                return to.print(&default_graph_in_lua(&Catalogue::default())?);
            }
            to.ask(&query::GRAPH, Show::Graph, |graph| Ok(options.format.draw(&graph)))
        },
    },
];

/// A `show` without options, whose table has the whole answer.
struct Plain<A: 'static> {
    query: &'static Query<A>,
    question: Show,
    table: fn(&A) -> String,
}

/// A `show` with options of this type.
struct Declaration<O, A: 'static> {
    query: &'static Query<A>,
    /// Another name, which help does not list.
    alias: Option<&'static str>,
    /// Sends the query and prints the answer, usually by [`Console::ask`].
    show: fn(&O, &mut Console<'_>) -> Result<()>,
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

/// A declaration of any type.
trait ShowCommand: Sync {
    fn name(&self) -> &'static str;
    /// Returns the command of clap that parses its options.
    fn command(&self) -> Command;
    fn read(&'static self, options: &ArgMatches) -> Result<Box<dyn Wanted>, Error>;
}

impl<A: DeserializeOwned> ShowCommand for Plain<A> {
    fn name(&self) -> &'static str {
        self.query.name()
    }

    fn command(&self) -> Command {
        NoOptions::augment_args(Command::new(self.name())).about(self.query.help()).long_about(None)
    }

    fn read(&'static self, _: &ArgMatches) -> Result<Box<dyn Wanted>, Error> {
        Ok(Box::new(self))
    }
}

impl<O: Args + Debug + 'static, A> ShowCommand for Declaration<O, A> {
    fn name(&self) -> &'static str {
        self.query.name()
    }

    fn command(&self) -> Command {
        let command = O::augment_args(Command::new(self.name())).about(self.query.help());
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

impl<A: DeserializeOwned> Wanted for &'static Plain<A> {
    fn show(&self, console: &mut Console<'_>) -> Result<()> {
        console.ask(self.query, self.question.clone(), |answer| Ok((self.table)(&answer)))
    }

    fn describe(&self) -> (&'static str, &dyn Debug) {
        (self.query.name(), &())
    }
}

impl<O: Debug, A> Wanted for (&'static Declaration<O, A>, O) {
    fn show(&self, console: &mut Console<'_>) -> Result<()> {
        let (declaration, options) = self;
        (declaration.show)(options, console)
    }

    fn describe(&self) -> (&'static str, &dyn Debug) {
        (self.0.query.name(), &self.1)
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
