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

use crate::http::table::{get, of};
use crate::http::{Form, Operation, RoutePage};
use crate::report::topology::Topology;
use crate::report::{
    Acceleration, Bond, ChangePlan, ClickElement, Command, Configuration, ControlQueue, Counters,
    Exporters, Filter, FilterVerdict, Flows, Forwarders, Graph, HistoryEntry, Interface,
    InterfaceQueue, Mirror, Multicast, Neighbour, Overview, Policing, Port, PrefixSet, RouteAnswer,
    RouteSummary, Rss, SourceReport, Status, Steps, Vrf,
};
use crate::{Request, Show};

/// A query whose answer is an `A`.
#[derive(Debug)]
pub struct Query<A> {
    operation: Operation,
    answer: PhantomData<fn() -> A>,
}

/// Makes a query of all that is said of it but for the type of its answer.
const fn query<A: JsonSchema>(operation: Operation) -> Query<A> {
    Query { operation: operation.answer(of::<A>), answer: PhantomData }
}

impl<A> Query<A> {
    /// Its row of the API over HTTP.
    pub(crate) const fn operation(&self) -> Operation {
        self.operation
    }

    /// Its name in commands and in JSON.
    pub const fn name(&self) -> &'static str {
        self.operation.words[1]
    }

    /// Its purpose, for lists of commands and the OpenAPI document.
    pub const fn help(&self) -> &'static str {
        self.operation.summary
    }

    /// Returns the request with this question, which must be the query's.
    pub fn request(&self, question: Show) -> Request {
        let request = Request::Show(question);
        let words = Operation::of(&request).words;
        debug_assert!(words == self.operation.words, "{request:?} is not show {}", self.name());
        request
    }
}

/// See [`Show::Ports`](crate::Show::Ports).
pub const PORTS: Query<Vec<Port>> =
    query(get("/v1/ports", &["show", "ports"], "Ports: device, addresses, link, packets"));
/// See [`Show::Interfaces`](crate::Show::Interfaces).
pub const INTERFACES: Query<Vec<Interface>> = query(get(
    "/v1/interfaces",
    &["show", "interfaces"],
    "Interfaces: ports, bonds and the VLANs on them, addresses, link, packets",
));
/// See [`Show::Bonds`](crate::Show::Bonds).
pub const BONDS: Query<Vec<Bond>> = query(get(
    "/v1/bonds",
    &["show", "bonds"],
    "Bonds: mode, ports, their state, LACP partners and counters",
));
/// See [`Show::Routes`](crate::Show::Routes).
pub const ROUTES: Query<RoutePage> = query(
    get("/v1/routes", &["show", "routes"], "Routes in the order of prefixes")
        .form(Form::Pages)
        .example(r#"{"prefix":"10.0.0.0/8","longer":true}"#),
);
/// See [`Show::Summary`](crate::Show::Summary).
pub const SUMMARY: Query<RouteSummary> =
    query(get("/v1/routes/summary", &["show", "summary"], "Counts of routes, size of the FIB"));
/// See [`Show::Route`](crate::Show::Route).
pub const ROUTE: Query<RouteAnswer> = query(
    get("/v1/lookup", &["show", "route"], "Forwarding decision for an address, or for a flow")
        .example(r#"{"address":"10.0.2.2"}"#),
);
/// See [`Show::Vrfs`](crate::Show::Vrfs).
pub const VRFS: Query<Vec<Vrf>> =
    query(get("/v1/vrfs", &["show", "vrfs"], "VRFs: ports, number of routes, kernel tables"));
/// See [`Show::Neighbours`](crate::Show::Neighbours).
pub const NEIGHBOURS: Query<Vec<Neighbour>> = query(get(
    "/v1/neighbours",
    &["show", "neighbours"],
    "Neighbours: address, MAC, state, waiting packets",
));
/// See [`Show::Sources`](crate::Show::Sources).
pub const SOURCES: Query<Vec<SourceReport>> =
    query(get("/v1/sources", &["show", "sources"], "Sources of routes and their state"));
/// See [`Show::Filters`](crate::Show::Filters).
pub const FILTERS: Query<Vec<Filter>> =
    query(get("/v1/filters", &["show", "filters"], "Packet filters: rules, actions, hits"));
/// See [`Show::FilterVerdict`](crate::Show::FilterVerdict).
pub const FILTER_VERDICT: Query<FilterVerdict> = query(
    get(
        "/v1/filters/{name}/verdict",
        &["show", "filter-verdict"],
        "Verdict of a filter on a packet",
    )
    .example(r#"{"name":"guard","packet":"udp 10.0.1.2 > 10.0.2.2 in left"}"#),
);
/// See [`Show::Sets`](crate::Show::Sets).
pub const SETS: Query<Vec<PrefixSet>> =
    query(get("/v1/sets", &["show", "sets"], "Prefix sets of filters and their sizes"));
/// See [`Show::Flows`](crate::Show::Flows).
pub const FLOWS: Query<Flows> = query(
    get("/v1/flows", &["show", "flows"], "Flows tracked by filters with `state`, largest first")
        .defaults(r#"{"most":100}"#)
        .example(r#"{"most":10}"#),
);
/// See [`Show::Multicast`](crate::Show::Multicast).
pub const MULTICAST: Query<Vec<Multicast>> = query(get(
    "/v1/multicast",
    &["show", "multicast"],
    "Multicast routes: groups, egress ports, packets",
));
/// See [`Show::Mirrors`](crate::Show::Mirrors).
pub const MIRRORS: Query<Vec<Mirror>> = query(get(
    "/v1/mirrors",
    &["show", "mirrors"],
    "Mirror sessions (SPAN): sources, destination, copies",
));
/// See [`Show::Exporters`](crate::Show::Exporters).
pub const EXPORTERS: Query<Exporters> = query(get(
    "/v1/exporters",
    &["show", "exporters"],
    "Exporters (sFlow, IPFIX), their collectors, the SNMP agent",
));
/// See [`Show::Forwarders`](crate::Show::Forwarders).
pub const FORWARDERS: Query<Forwarders> = query(get(
    "/v1/forwarders",
    &["show", "forwarders"],
    "Forwarders: cores, NUMA nodes, queues, load",
));
/// See [`Show::Rss`](crate::Show::Rss).
pub const RSS: Query<Vec<Rss>> =
    query(get("/v1/rss", &["show", "rss"], "RSS: hash, key, redirection table"));
/// See [`Show::ControlQueues`](crate::Show::ControlQueues).
pub const CONTROL_QUEUES: Query<Vec<ControlQueue>> = query(get(
    "/v1/control-queues",
    &["show", "control-queues"],
    "Control queues: rules that select their packets, learned flows",
));
/// See [`Show::Queues`](crate::Show::Queues).
pub const QUEUES: Query<Vec<InterfaceQueue>> = query(get(
    "/v1/queues",
    &["show", "queues"],
    "Software transmit queues: discipline, rate; length, delay, drops and marks of each class",
));
/// See [`Show::Status`](crate::Show::Status).
pub const STATUS: Query<Status> = query(get(
    "/v1/status",
    &["show", "status"],
    "Version, uptime and configuration of the router",
));
/// See [`Show::Overview`](crate::Show::Overview).
pub const OVERVIEW: Query<Overview> = query(
    get("/v1/overview", &["show", "overview"], "Counts of one moment, for live views")
        .example(r#"{"interfaces":true,"vrfs":true}"#),
);
/// See [`Show::Counters`](crate::Show::Counters).
pub const COUNTERS: Query<Counters> = query(get(
    "/v1/counters",
    &["show", "counters"],
    "Packet counters; drops by step and reason, largest first",
));
/// See [`Show::Acceleration`](crate::Show::Acceleration).
pub const ACCELERATION: Query<Acceleration> = query(get(
    "/v1/acceleration",
    &["show", "acceleration"],
    "Accelerated kernel interfaces: mode, families, packets taken and left to the kernel",
));
/// See [`Show::Policing`](crate::Show::Policing).
pub const POLICING: Query<Policing> = query(get(
    "/v1/policing",
    &["show", "policing"],
    "Control-plane policing: rates, accepted and refused packets of each class",
));
/// See [`Show::Graph`](crate::Show::Graph).
pub const GRAPH: Query<Graph> =
    query(get("/v1/graph", &["show", "graph"], "The graph of steps with the packets on its edges"));
/// See [`Show::Commands`](crate::Show::Commands).
pub const COMMANDS: Query<Vec<Command>> =
    query(get("/v1/commands", &["show", "commands"], "Commands of the configuration in Lua"));
/// See [`Show::Steps`](crate::Show::Steps).
pub const STEPS: Query<Steps> = query(get(
    "/v1/steps",
    &["show", "steps"],
    "Steps of the graph; calls, time and errors of Lua steps",
));
/// See [`Show::Click`](crate::Show::Click).
pub const CLICK: Query<Vec<ClickElement>> = query(get(
    "/v1/click",
    &["show", "click"],
    "Elements of a Click configuration: class, step or port, packets",
));
/// See [`Show::Topology`](crate::Show::Topology).
pub const TOPOLOGY: Query<Topology> = query(get(
    "/v1/topology",
    &["show", "topology"],
    "Topology: NUMA nodes, cores and caches with their ports, queues and forwarders",
));
/// See [`Show::History`](crate::Show::History).
pub const HISTORY: Query<Vec<HistoryEntry>> =
    query(get("/v1/history", &["show", "history"], "Applied configurations"));
/// See [`Show::Configuration`](crate::Show::Configuration).
pub const CONFIGURATION: Query<Configuration> = query(
    get("/v1/history/{number}", &["show", "configuration"], "An applied configuration")
        .example(r#"{"number":1}"#),
);
/// See [`Show::Difference`](crate::Show::Difference).
pub const DIFFERENCE: Query<ChangePlan> = query(
    get(
        "/v1/history/{number}/difference",
        &["show", "difference"],
        "Changes of a rollback to an applied configuration",
    )
    .example(r#"{"number":1}"#),
);
