//! The queries of the router's state: what each is called, and the type of its answer.
//!
//! ```text
//!                    +-- row of OPERATIONS: path, OpenAPI, role
//!   query::BONDS ----+-- `turnpike show bonds`: name, help; its table takes this type
//!                    +-- the router's answer to `Show::Bonds`: has this type
//! ```
//!
//! A new one is a variant of [`Show`](crate::Show) of the same name, a line here, the router's answer and its table.

use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Request;
use crate::http::{Form, Method, Operation, Role, RoutePage};
use crate::report::topology::Topology;
use crate::report::{
    Bond, ChangePlan, ClickElement, Command, Configuration, ControlQueue, Counters, Exporters,
    Filter, FilterVerdict, Flows, Forwarders, Graph, HistoryEntry, Interface, Mirror, Multicast,
    Neighbour, Overview, Policing, Port, PortQueue, PrefixSet, RouteAnswer, RouteSummary, Rss,
    SourceReport, Status, Steps, Vrf,
};

/// A query whose answer is an `A`.
#[derive(Debug)]
pub struct Query<A> {
    /// The names around its fields in JSON: `show`, and the one by which users call it.
    words: &'static [&'static str; 2],
    path: &'static str,
    /// Its purpose, for lists of commands and the OpenAPI document.
    pub help: &'static str,
    defaults: &'static str,
    example: &'static str,
    form: Form,
    answer: PhantomData<fn() -> A>,
}

const fn query<A>(
    words: &'static [&'static str; 2],
    path: &'static str,
    help: &'static str,
) -> Query<A> {
    let (defaults, example, form) = ("{}", "{}", Form::Whole);
    Query { words, path, help, defaults, example, form, answer: PhantomData }
}

impl<A> Query<A> {
    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    const fn defaults(self, defaults: &'static str) -> Self {
        Self { defaults, ..self }
    }

    const fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// Its name in commands and in JSON.
    pub const fn name(&self) -> &'static str {
        self.words[1]
    }

    /// Returns true if the request is this query.
    pub fn asks(&self, request: &Request) -> bool {
        Operation::of(request).words == self.words
    }
}

impl<A: JsonSchema + Serialize + DeserializeOwned> Query<A> {
    /// Its row of the API over HTTP.
    pub(crate) const fn operation(&self) -> Operation {
        Operation {
            method: Method::Get,
            path: self.path,
            words: self.words,
            role: Role::Read,
            summary: self.help,
            defaults: self.defaults,
            form: self.form,
            answer: |generator| generator.subschema_for::<A>(),
            example: self.example,
        }
    }
}

/// See [`Show::Ports`](crate::Show::Ports).
pub const PORTS: Query<Vec<Port>> =
    query(&["show", "ports"], "/v1/ports", "Ports: device, addresses, link, packets");
/// See [`Show::Interfaces`](crate::Show::Interfaces).
pub const INTERFACES: Query<Vec<Interface>> = query(
    &["show", "interfaces"],
    "/v1/interfaces",
    "Interfaces: ports, bonds and the VLANs on them, addresses, link, packets",
);
/// See [`Show::Bonds`](crate::Show::Bonds).
pub const BONDS: Query<Vec<Bond>> = query(
    &["show", "bonds"],
    "/v1/bonds",
    "Bonds: mode, ports, their state, LACP partners and counters",
);
/// See [`Show::Routes`](crate::Show::Routes).
pub const ROUTES: Query<RoutePage> =
    query(&["show", "routes"], "/v1/routes", "Routes in the order of prefixes")
        .form(Form::Pages)
        .example(r#"{"prefix":"10.0.0.0/8","longer":true}"#);
/// See [`Show::Summary`](crate::Show::Summary).
pub const SUMMARY: Query<RouteSummary> =
    query(&["show", "summary"], "/v1/routes/summary", "Counts of routes, size of the FIB");
/// See [`Show::Route`](crate::Show::Route).
pub const ROUTE: Query<RouteAnswer> =
    query(&["show", "route"], "/v1/lookup", "Forwarding decision for an address, or for a flow")
        .example(r#"{"address":"10.0.2.2"}"#);
/// See [`Show::Vrfs`](crate::Show::Vrfs).
pub const VRFS: Query<Vec<Vrf>> =
    query(&["show", "vrfs"], "/v1/vrfs", "VRFs: ports, number of routes, kernel tables");
/// See [`Show::Neighbours`](crate::Show::Neighbours).
pub const NEIGHBOURS: Query<Vec<Neighbour>> = query(
    &["show", "neighbours"],
    "/v1/neighbours",
    "Neighbours: address, MAC, state, waiting packets",
);
/// See [`Show::Sources`](crate::Show::Sources).
pub const SOURCES: Query<Vec<SourceReport>> =
    query(&["show", "sources"], "/v1/sources", "Sources of routes and their state");
/// See [`Show::Filters`](crate::Show::Filters).
pub const FILTERS: Query<Vec<Filter>> =
    query(&["show", "filters"], "/v1/filters", "Packet filters: rules, actions, hits");
/// See [`Show::FilterVerdict`](crate::Show::FilterVerdict).
pub const FILTER_VERDICT: Query<FilterVerdict> = query(
    &["show", "filter-verdict"],
    "/v1/filters/{name}/verdict",
    "Verdict of a filter on a packet",
)
.example(r#"{"name":"guard","packet":"udp 10.0.1.2 > 10.0.2.2 in left"}"#);
/// See [`Show::Sets`](crate::Show::Sets).
pub const SETS: Query<Vec<PrefixSet>> =
    query(&["show", "sets"], "/v1/sets", "Prefix sets of filters and their sizes");
/// See [`Show::Flows`](crate::Show::Flows).
pub const FLOWS: Query<Flows> =
    query(&["show", "flows"], "/v1/flows", "Flows tracked by filters with `state`, largest first")
        .defaults(r#"{"most":100}"#)
        .example(r#"{"most":10}"#);
/// See [`Show::Multicast`](crate::Show::Multicast).
pub const MULTICAST: Query<Vec<Multicast>> = query(
    &["show", "multicast"],
    "/v1/multicast",
    "Multicast routes: groups, egress ports, packets",
);
/// See [`Show::Mirrors`](crate::Show::Mirrors).
pub const MIRRORS: Query<Vec<Mirror>> = query(
    &["show", "mirrors"],
    "/v1/mirrors",
    "Mirror sessions (SPAN): sources, destination, copies",
);
/// See [`Show::Exporters`](crate::Show::Exporters).
pub const EXPORTERS: Query<Exporters> = query(
    &["show", "exporters"],
    "/v1/exporters",
    "Exporters (sFlow, IPFIX), their collectors, the SNMP agent",
);
/// See [`Show::Forwarders`](crate::Show::Forwarders).
pub const FORWARDERS: Query<Forwarders> =
    query(&["show", "forwarders"], "/v1/forwarders", "Forwarders: cores, NUMA nodes, queues, load");
/// See [`Show::Rss`](crate::Show::Rss).
pub const RSS: Query<Vec<Rss>> =
    query(&["show", "rss"], "/v1/rss", "RSS: hash, key, redirection table");
/// See [`Show::ControlQueues`](crate::Show::ControlQueues).
pub const CONTROL_QUEUES: Query<Vec<ControlQueue>> = query(
    &["show", "control-queues"],
    "/v1/control-queues",
    "Control queues: rules that select their packets, learned flows",
);
/// See [`Show::Queues`](crate::Show::Queues).
pub const QUEUES: Query<Vec<PortQueue>> = query(
    &["show", "queues"],
    "/v1/queues",
    "Software transmit queues: discipline, rate; length, delay, drops and marks of each class",
);
/// See [`Show::Status`](crate::Show::Status).
pub const STATUS: Query<Status> =
    query(&["show", "status"], "/v1/status", "Version, uptime and configuration of the router");
/// See [`Show::Overview`](crate::Show::Overview).
pub const OVERVIEW: Query<Overview> =
    query(&["show", "overview"], "/v1/overview", "Counts of one moment, for live views")
        .example(r#"{"interfaces":true,"vrfs":true}"#);
/// See [`Show::Counters`](crate::Show::Counters).
pub const COUNTERS: Query<Counters> = query(
    &["show", "counters"],
    "/v1/counters",
    "Packet counters; drops by step and reason, largest first",
);
/// See [`Show::Policing`](crate::Show::Policing).
pub const POLICING: Query<Policing> = query(
    &["show", "policing"],
    "/v1/policing",
    "Control-plane policing: rates, accepted and refused packets of each class",
);
/// See [`Show::Graph`](crate::Show::Graph).
pub const GRAPH: Query<Graph> =
    query(&["show", "graph"], "/v1/graph", "The graph of steps with the packets on its edges");
/// See [`Show::Commands`](crate::Show::Commands).
pub const COMMANDS: Query<Vec<Command>> =
    query(&["show", "commands"], "/v1/commands", "Commands of the configuration in Lua");
/// See [`Show::Steps`](crate::Show::Steps).
pub const STEPS: Query<Steps> = query(
    &["show", "steps"],
    "/v1/steps",
    "Steps of the graph; calls, time and errors of Lua steps",
);
/// See [`Show::Click`](crate::Show::Click).
pub const CLICK: Query<Vec<ClickElement>> = query(
    &["show", "click"],
    "/v1/click",
    "Elements of a Click configuration: class, step or port, packets",
);
/// See [`Show::Topology`](crate::Show::Topology).
pub const TOPOLOGY: Query<Topology> = query(
    &["show", "topology"],
    "/v1/topology",
    "Topology: NUMA nodes, cores and caches with their ports, queues and forwarders",
);
/// See [`Show::History`](crate::Show::History).
pub const HISTORY: Query<Vec<HistoryEntry>> =
    query(&["show", "history"], "/v1/history", "Applied configurations");
/// See [`Show::Configuration`](crate::Show::Configuration).
pub const CONFIGURATION: Query<Configuration> =
    query(&["show", "configuration"], "/v1/history/{number}", "An applied configuration")
        .example(r#"{"number":1}"#);
/// See [`Show::Difference`](crate::Show::Difference).
pub const DIFFERENCE: Query<ChangePlan> = query(
    &["show", "difference"],
    "/v1/history/{number}/difference",
    "Changes of a rollback to an applied configuration",
)
.example(r#"{"number":1}"#);
