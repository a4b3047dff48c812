//! Rules and settings that the kernel applies to forwarded packets, and that a fast path in front of it would bypass:
//! packet filters, address translation, tc, routing rules, IPsec policies, sysctls.
//!
//! ```text
//!   netlink.rs   sockets, dumps, messages             programs.rs   nft, iptables-legacy-save
//!   links.rs     masters, devices above, XDP          nft.rs        chains, rules and their effects
//!   rules.rs     ip rule                              iptables.rs   legacy iptables and ip6tables
//!   routes.rs    tos, from, encap                     hooks.rs      functions at netfilter's hooks
//!   tc.rs        qdiscs, filters, tcx                 xfrm.rs       IPsec policies
//!   settings.rs  /proc/sys/net                        proc.rs       /proc/net
//!        \                                                 /
//!         -----> Finding { kind, place, packets, action } <
//!   translate.rs forward chains as filters            watch.rs      findings anew after each change
//! ```
//!
//! A fast path that takes packets of established flows only follows those by `flows.rs` (messages: `conntrack.rs`).
//!
//! Each finding says what is to be done: the fast path follows it, its packets stay with the kernel, or acceleration is
//! refused unless a request bypasses it. A part that cannot be read is listed as unseen, and never taken for absent.
//!
//! Everything is read in the calling thread's network namespace.
#![forbid(unsafe_code)]

mod conntrack;
mod established;
mod finding;
mod flows;
mod hooks;
mod iptables;
mod links;
mod netlink;
mod nft;
mod proc;
mod programs;
#[cfg(test)]
mod recorded;
mod routes;
mod rules;
mod settings;
mod tc;
mod translate;
mod watch;
mod worker;
mod xdp;
mod xfrm;

use std::collections::BTreeSet;
use std::io;

use serde::Serialize;

pub use conntrack::{Flow, Tuple};
pub use finding::{Action, Family, Finding, Kind, Packets, Place, Rule, UnknownKind};
pub use flows::{
    Counts as FlowCounts, Follower, Table as FlowTable, examine as examine_connections,
};
pub use translate::{Filters, Place as FilterPlace, WhyNot, translate};
pub use watch::Watch;

use links::{Link, Links};
use netlink::Connection;

/// The abilities of the fast path, and the requests of its operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Kinds to be bypassed: refusals of these become warnings.
    pub bypass: BTreeSet<Kind>,
    /// Packets that the fast path can leave to the kernel.
    pub exceptions: Exceptions,
    /// True if the fast path applies filters that forward chains are translated into.
    pub filters: bool,
    /// True if the fast path takes packets of established flows only that the kernel's rules let pass, and translates them
    /// as its connection tracking does.
    pub flows: bool,
    /// True if the fast path forwards by the ports of bonds.
    pub bonds: bool,
    /// XDP programs of the fast path itself, by number.
    pub own_programs: BTreeSet<u32>,
}

/// Packets that a fast path can leave to the kernel by their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exceptions {
    /// Those from certain prefixes.
    pub sources: bool,
    /// Those to certain prefixes.
    pub destinations: bool,
}

/// A part of the kernel that could not be examined.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Unseen {
    /// Its subject.
    pub kind: Kind,
    /// The reason.
    pub why: String,
}

impl Unseen {
    fn new(kind: Kind, error: &io::Error) -> Self {
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => "needs CAP_NET_ADMIN".to_owned(),
            _ => error.to_string(),
        };
        Self { kind, why }
    }
}

/// An interface to be accelerated that exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Kind of virtual device: `veth`, `vlan`; empty: a NIC, or a kind that the kernel does not tell.
    pub device: String,
}

/// The result of an inspection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// The interfaces to be accelerated, without absent ones.
    pub interfaces: Vec<Interface>,
    /// The findings, by kind.
    pub findings: Vec<Finding>,
    /// Parts that could not be examined.
    pub unseen: Vec<Unseen>,
    /// True if packets of established flows alone are taken.
    #[serde(skip)]
    pub flows: bool,
    /// The filters that the forward chains are translated into, or the reasons against it.
    #[serde(skip)]
    translation: Translation,
}

/// Filters, or the reasons against them.
type Translation = translate::Translation;

impl Inspection {
    /// Returns the findings that refuse acceleration.
    pub fn refusals(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.action == Action::Refuse)
    }

    /// Returns the reasons against acceleration as text: the refusals, and parts that could not be examined.
    pub fn obstacles(&self) -> Vec<String> {
        let unseen = self.unseen.iter().map(ToString::to_string);
        self.refusals().map(ToString::to_string).chain(unseen).collect()
    }
}

impl std::fmt::Display for Unseen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} cannot be examined: {}", self.kind, self.why)?;
        match self.kind.can_be_bypassed() {
            true => write!(f, "; or say --bypass {}", self.kind),
            false => Ok(()),
        }
    }
}

/// Error: the kernel's interfaces cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// By netlink.
    #[error("interfaces cannot be read by netlink: {0}")]
    Netlink(#[source] io::Error),
    /// Connections.
    #[error(
        "the kernel does not tell its connections (conntrack by netlink, CONFIG_NF_CT_NETLINK): {0}; flows cannot be followed"
    )]
    Connections(#[source] io::Error),
    /// The thread of a watch cannot be started.
    #[error("thread \"{name}\" cannot be started: {error}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Examines the kernel for all that it applies to packets forwarded between these interfaces.
///
/// # Errors
/// Its interfaces cannot be read. Of other parts that cannot, [`Inspection::unseen`] has the reason.
pub fn inspect(interfaces: &[String], options: &Options) -> Result<Inspection, Error> {
    Inspector::new(interfaces, options)?.inspect(Routes::Read)
}

/// Inspects the kernel as [`inspect`] does, but for its routes, which refuse no acceleration.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_rules(interfaces: &[String], options: &Options) -> Result<Inspection, Error> {
    Inspector::new(interfaces, options)?.inspect(Routes::Omit)
}

/// The routes of an inspection: a dump of a million takes a second, and none of them refuses acceleration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Routes {
    /// Read them.
    Read,
    /// Leave them out.
    Omit,
}

/// Connections to the kernel, and what it said before.
struct Inspector {
    interfaces: Vec<String>,
    options: Options,
    route: Connection,
    netfilter: io::Result<Connection>,
    xfrm: io::Result<Connection>,
    /// Those read before.
    nftables: Nftables,
}

/// Rules of nftables with what the program says of them.
#[derive(Clone, Debug, Default)]
struct Nftables {
    tables: nft::Tables,
    listings: nft::texts::Listings,
}

/// Number of attempts at reading rules that change meanwhile.
const ATTEMPTS: u32 = 4;

/// Reads rules and listings of the same state.
fn read_nftables(connection: &mut Connection, with_json: bool) -> io::Result<Nftables> {
    for _ in 0..ATTEMPTS {
        let tables = nft::read(connection)?;
        if tables.rules.is_empty() && tables.bases.is_empty() {
            return Ok(Nftables { tables, ..Nftables::default() });
        }
        let listings = nft::texts::read(with_json);
        if nft::generation(connection)? == tables.generation {
            return Ok(Nftables { tables, listings });
        }
    }
    Err(io::Error::other("the rules change all the time"))
}

/// The parts that a finding is made of, and those that could not be read.
#[derive(Default)]
struct Collection {
    findings: Vec<Finding>,
    unseen: Vec<Unseen>,
}

impl Collection {
    /// Returns what was read, or its default after a note of the reason.
    fn see<T: Default>(&mut self, kind: Kind, read: io::Result<T>) -> T {
        read.unwrap_or_else(|error| {
            self.unseen.push(Unseen::new(kind, &error));
            T::default()
        })
    }
}

impl Inspector {
    fn new(interfaces: &[String], options: &Options) -> Result<Self, Error> {
        Ok(Self {
            interfaces: interfaces.to_vec(),
            options: options.clone(),
            route: Connection::open(netlink::Family::Route).map_err(Error::Netlink)?,
            netfilter: Connection::open(netlink::Family::Netfilter),
            xfrm: Connection::open(netlink::Family::Xfrm),
            nftables: Nftables::default(),
        })
    }

    fn inspect(&mut self, routes: Routes) -> Result<Inspection, Error> {
        let links = self.route.dump(&links::request(), Link::read).map_err(Error::Netlink)?;
        let mut links = Links::new(links, &self.interfaces);
        if !self.options.bypass.contains(&Kind::Xdp) {
            links.name_programs();
        }
        let mut all =
            Collection { findings: links.findings(&self.options), ..Collection::default() };
        all.findings.extend(settings::findings(&settings::read(&links)));
        self.routing(&links, routes, &mut all);
        self.traffic_control(&links, &mut all);
        self.policies(&mut all);
        let translation = self.packet_filters(&links, &mut all);
        let interface =
            |link: &Link| Interface { name: link.name.clone(), device: link.kind.clone() };
        let interfaces = links.routed().map(interface).collect();
        Ok(Inspection { interfaces, ..self.finish(all, translation) })
    }

    fn routing(&mut self, links: &Links, routes: Routes, all: &mut Collection) {
        let mut rules = Vec::new();
        for family in Family::BOTH {
            let read = self.route.dump(&rules::request(family), rules::RoutingRule::read);
            // A kernel without rules for the family has one table.
            rules.extend(all.see(Kind::Rules, or_unsupported(read)));
        }
        all.findings.extend(rules::findings(&rules, links, &self.options));
        if routes == Routes::Read {
            let special = all.see(Kind::Routes, routes::read(&mut self.route));
            all.findings.extend(routes::findings(&special));
        }
    }

    fn traffic_control(&mut self, links: &Links, all: &mut Collection) {
        let tc = all.see(Kind::Tc, tc::read(&mut self.route, links));
        all.findings.extend(tc.findings(links));
        all.unseen.extend(
            tc.programs_unseen
                .map(|why| Unseen { kind: Kind::Tc, why: format!("tcx programs: {why}") }),
        );
    }

    fn policies(&mut self, all: &mut Collection) {
        // A kernel without IPsec has no such netlink.
        let Ok(connection) = &mut self.xfrm else { return };
        let policies = all.see(Kind::Xfrm, xfrm::read(connection));
        all.findings.extend(policies.findings(&self.options));
    }

    fn packet_filters(&mut self, links: &Links, all: &mut Collection) -> Translation {
        self.read_nftables(all);
        let legacy: Vec<iptables::Tables> = Family::BOTH
            .into_iter()
            .filter_map(|family| all.see(Kind::Iptables, iptables::read(family)))
            .collect();
        let hooks = match &mut self.netfilter {
            Ok(connection) => all.see(Kind::Hooks, hooks::read(connection, links)),
            Err(_) => Vec::new(),
        };
        let proc = proc::read();
        let Nftables { tables, listings } = &self.nftables;
        let effective = tables.effective(links, &listings.texts);
        let translation = match self.options.filters && !self.options.flows {
            true => translate::rules((tables, &listings.json), &effective, &legacy, &self.options),
            false => Translation::default(),
        };
        let is_translated = |kind| {
            translation.as_ref().is_some_and(Result::is_ok) && !self.options.bypass.contains(&kind)
        };
        if self.options.flows {
            all.findings.extend(effective.iter().map(|one| one.finding_of_flows(links, tables)));
            all.findings.extend(legacy.iter().flat_map(iptables::Tables::findings_of_flows));
        } else {
            let translated = is_translated(Kind::Nftables);
            all.findings.extend(effective.iter().map(|one| one.finding(links, translated)));
            let translated = is_translated(Kind::Iptables);
            all.findings.extend(legacy.iter().flat_map(|tables| tables.findings(translated)));
        }
        all.findings.extend(hooks::findings(&hooks));
        all.findings.extend(proc.findings(links));
        let tracks = [
            (tables.tracks(), "rules of nftables use it"),
            (legacy.iter().any(iptables::Tables::tracks), "rules of iptables use it"),
            (proc.has_connections || hooks::tracks(&hooks), "the kernel has its hooks"),
        ];
        let why = tracks.into_iter().find(|(tracks, _)| *tracks);
        all.findings.extend(match self.options.flows {
            true => Some(conntrack_of_flows(why.map(|(_, why)| why))),
            false => why.map(|(_, why)| conntrack(why)),
        });
        translation
    }

    /// Reads the rules of nftables, with what the program says of them, if there was a change.
    fn read_nftables(&mut self, all: &mut Collection) {
        let Ok(connection) = &mut self.netfilter else { return };
        let generation = all.see(Kind::Nftables, nft::generation(connection));
        if generation != self.nftables.tables.generation {
            let read = read_nftables(connection, self.options.filters);
            self.nftables = all.see(Kind::Nftables, read);
        }
    }

    fn finish(&self, all: Collection, translation: Translation) -> Inspection {
        let bypass = &self.options.bypass;
        let bypassed = |finding: Finding| match bypass.contains(&finding.kind) {
            true => finding.bypassed(),
            false => finding,
        };
        let mut findings: Vec<Finding> = all.findings.into_iter().map(bypassed).collect();
        // By kind; within one, as the parts list them.
        findings.sort_by_key(|finding| finding.kind);
        let mut unseen: Vec<Unseen> =
            all.unseen.into_iter().filter(|one| !bypass.contains(&one.kind)).collect();
        unseen.sort();
        unseen.dedup();
        let flows = self.options.flows;
        Inspection { interfaces: Vec::new(), findings, unseen, flows, translation }
    }
}

fn or_unsupported<T>(read: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(Vec::new()),
        read => read,
    }
}

/// Returns the finding about connections where their flows are followed.
fn conntrack_of_flows(why: Option<&str>) -> Finding {
    let place = Place::File { path: "/proc/net/nf_conntrack".into() };
    let (action, message) = match why {
        Some(why) => (
            Action::Follow,
            format!("the kernel tracks connections ({why}); established flows are accelerated"),
        ),
        None => (
            Action::Note,
            "nothing has the kernel track connections, so that there are no flows to be accelerated; accelerate without \
             --flows"
                .to_owned(),
        ),
    };
    Finding::new(Kind::Conntrack, place, Packets::All, action, message)
}

/// Returns the finding that connections are tracked. Rules that depend on them are findings of their own.
fn conntrack(why: &str) -> Finding {
    let place = Place::File { path: "/proc/net/nf_conntrack".into() };
    let message = format!(
        "the kernel tracks connections ({why}); those of accelerated packets are not in its table"
    );
    Finding::new(Kind::Conntrack, place, Packets::All, Action::Note, message)
}
