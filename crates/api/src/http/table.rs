//! The table of operations.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use super::{Form, Method, Operation, Role, RoutePage};
use crate::report::topology::Topology;
use crate::report::{
    Applied, Bond, Change, ChangePlan, ClickElement, Command, Configuration, ControlQueue,
    Counters, Exporters, Filter, FilterVerdict, Flows, Forwarders, Graph, HandlerAnswer,
    HistoryEntry, Interface, Mirror, Multicast, Neighbour, Overview, Policing, Port, PortQueue,
    PrefixSet, RouteAnswer, RouteSummary, Rss, Saved, SourceReport, Status, Steps, Trace, Vrf,
};

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A query without parameters.
const fn show(
    path: &'static str,
    words: &'static [&'static str],
    answer: fn(&mut SchemaGenerator) -> Schema,
    summary: &'static str,
) -> Operation {
    let (method, role, form) = (Method::Get, Role::Read, Form::Whole);
    let (defaults, example) = ("{}", "{}");
    Operation { method, path, words, role, summary, defaults, form, answer, example }
}

/// A request that is more than a query.
const fn act(
    method: Method,
    path: &'static str,
    words: &'static [&'static str],
    role: Role,
    answer: fn(&mut SchemaGenerator) -> Schema,
    summary: &'static str,
) -> Operation {
    Operation { method, role, ..show(path, words, answer, summary) }
}

impl Operation {
    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    const fn defaults(self, defaults: &'static str) -> Self {
        Self { defaults, ..self }
    }

    const fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

use Method::{Delete, Post, Put};
use Role::{Configure, Operate};

/// Every request, by path.
#[rustfmt::skip]
pub static OPERATIONS: &[Operation] = &[
    // The state.
    show("/v1/ports", &["show", "ports"], of::<Vec<Port>>, "Ports: devices, links, counters"),
    show("/v1/interfaces", &["show", "interfaces"], of::<Vec<Interface>>, "Interfaces: ports, bonds, VLANs"),
    show("/v1/bonds", &["show", "bonds"], of::<Vec<Bond>>, "Bonds and the state of LACP"),
    show("/v1/routes", &["show", "routes"], of::<RoutePage>, "Routes in the order of prefixes, in pages")
        .form(Form::Pages).example(r#"{"prefix":"10.0.0.0/8","longer":true}"#),
    show("/v1/routes/summary", &["show", "summary"], of::<RouteSummary>, "Counts of routes, size of the FIB"),
    show("/v1/lookup", &["show", "route"], of::<RouteAnswer>, "Treatment of packets to an address, or of a flow")
        .example(r#"{"address":"10.0.2.2"}"#),
    show("/v1/vrfs", &["show", "vrfs"], of::<Vec<Vrf>>, "VRFs"),
    show("/v1/neighbours", &["show", "neighbours"], of::<Vec<Neighbour>>, "Neighbours"),
    show("/v1/sources", &["show", "sources"], of::<Vec<SourceReport>>, "Sources of routes and their status"),
    show("/v1/filters", &["show", "filters"], of::<Vec<Filter>>, "Filters, their rules and hits"),
    show("/v1/filters/{name}/verdict", &["show", "filter-verdict"], of::<FilterVerdict>, "Verdict of a filter on a packet")
        .example(r#"{"name":"guard","packet":"udp 10.0.1.2 > 10.0.2.2 in left"}"#),
    show("/v1/sets", &["show", "sets"], of::<Vec<PrefixSet>>, "Sets of prefixes"),
    show("/v1/flows", &["show", "flows"], of::<Flows>, "Flows that filters track, those with the most bytes first")
        .defaults(r#"{"most":100}"#).example(r#"{"most":10}"#),
    show("/v1/multicast", &["show", "multicast"], of::<Vec<Multicast>>, "Multicast routes"),
    show("/v1/mirrors", &["show", "mirrors"], of::<Vec<Mirror>>, "Mirror sessions"),
    show("/v1/exporters", &["show", "exporters"], of::<Exporters>, "Exporters of samples, collectors, the SNMP agent"),
    show("/v1/forwarders", &["show", "forwarders"], of::<Forwarders>, "Forwarders: cores, load, interference"),
    show("/v1/rss", &["show", "rss"], of::<Vec<Rss>>, "Distribution of received packets"),
    show("/v1/control-queues", &["show", "control-queues"], of::<Vec<ControlQueue>>, "Queues for control traffic"),
    show("/v1/queues", &["show", "queues"], of::<Vec<PortQueue>>, "Transmit queues in software"),
    show("/v1/status", &["show", "status"], of::<Status>, "Version, age and configuration"),
    show("/v1/overview", &["show", "overview"], of::<Overview>, "Counts of one moment, for live views")
        .example(r#"{"interfaces":true,"vrfs":true}"#),
    show("/v1/counters", &["show", "counters"], of::<Counters>, "Account of all packets, drops by reason and step"),
    show("/v1/policing", &["show", "policing"], of::<Policing>, "Limits that protect the slow path"),
    show("/v1/graph", &["show", "graph"], of::<Graph>, "The graph and the packets on its edges"),
    show("/v1/steps", &["show", "steps"], of::<Steps>, "Steps and their counters"),
    show("/v1/click", &["show", "click"], of::<Vec<ClickElement>>, "Elements of a Click configuration"),
    show("/v1/topology", &["show", "topology"], of::<Topology>, "The machine: nodes, cores, NICs, forwarders"),
    // The configuration.
    show("/v1/history", &["show", "history"], of::<Vec<HistoryEntry>>, "Applied configurations"),
    show("/v1/history/{number}", &["show", "configuration"], of::<Configuration>, "An applied configuration")
        .example(r#"{"number":1}"#),
    show("/v1/history/{number}/difference", &["show", "difference"], of::<ChangePlan>, "Changes of a rollback to it")
        .example(r#"{"number":1}"#),
    act(Post, "/v1/plan", &["plan"], Configure, of::<ChangePlan>, "Changes that a configuration would make")
        .defaults(r#"{"file":"/api.lua"}"#).example(r#"{"text":"-- no ports"}"#),
    act(Post, "/v1/apply", &["apply"], Configure, of::<Applied>, "Applies a configuration: all of it, or nothing")
        .defaults(r#"{"file":"/api.lua"}"#).example(r#"{"text":"-- no ports","confirm_s":60}"#),
    act(Post, "/v1/confirm", &["confirm"], Configure, of::<Change>, "Keeps a configuration applied on condition"),
    act(Post, "/v1/rollback", &["rollback"], Configure, of::<Applied>, "Returns to a configuration of the history")
        .example(r#"{"to":1}"#),
    act(Post, "/v1/save", &["save"], Configure, of::<Saved>, "Writes the configuration to the file of the start")
        .example(r#"{"number":1}"#),
    // Routes, neighbours, sets.
    act(Post, "/v1/routes", &["route", "add"], Configure, of::<Change>, "Adds a route, until the router ends")
        .example(r#"{"prefix":"198.51.100.0/24","paths":[{"via":"10.0.2.2"}]}"#),
    act(Delete, "/v1/routes", &["route", "del"], Configure, of::<Change>, "Removes routes that were added")
        .example(r#"{"prefix":"198.51.100.0/24"}"#),
    act(Post, "/v1/neighbours", &["neighbour", "add"], Configure, of::<Change>, "Sets a neighbour's MAC")
        .example(r#"{"address":"10.0.2.9","lladdr":"02:00:00:00:00:09","port":"right"}"#),
    act(Delete, "/v1/neighbours", &["neighbour", "del"], Configure, of::<Change>, "Removes a neighbour")
        .example(r#"{"address":"10.0.2.9","port":"right"}"#),
    act(Post, "/v1/sets/{set}/elements", &["set", "add"], Configure, of::<Change>, "Adds elements to a set")
        .example(r#"{"set":"bad","elements":["192.0.2.0/24"],"seconds":600}"#),
    act(Delete, "/v1/sets/{set}/elements", &["set", "del"], Configure, of::<Change>, "Removes elements that were added")
        .example(r#"{"set":"bad","elements":["192.0.2.0/24"]}"#),
    // Operation.
    act(Delete, "/v1/flows", &["forget-flows"], Operate, of::<Change>, "Removes flows: those selected, or all")
        .example(r#"{"prefix":"10.0.1.0/24"}"#),
    act(Post, "/v1/filters/{filter}/rules/{rule}/log", &["filter", "log"], Operate, of::<Change>, "Logs packets of a rule")
        .example(r#"{"filter":"guard","rule":"1","seconds":60}"#),
    act(Delete, "/v1/filters/{filter}/rules/{rule}/log", &["filter", "unlog"], Operate, of::<Change>, "Ends the logging")
        .example(r#"{"filter":"guard","rule":"1"}"#),
    act(Post, "/v1/trace", &["trace"], Operate, of::<Trace>, "The way of packets through the graph, step by step")
        .defaults(r#"{"packets":1,"seconds":10}"#)
        .example(r#"{"packet":"udp 10.0.1.2 > 10.0.2.2 in left"}"#),
    act(Post, "/v1/capture", &["capture"], Operate, of::<Vec<u8>>, "Copies of packets as pcapng, until the client leaves")
        .form(Form::Capture).example(r#"{"dropped":"ip4-checksum"}"#),
    show("/v1/commands", &["show", "commands"], of::<Vec<Command>>, "Commands of the configuration in Lua"),
    act(Post, "/v1/commands/{name}", &["do"], Operate, of::<Value>, "Runs a command of the configuration")
        .example(r#"{"name":"top","args":["5"]}"#),
    show("/v1/handlers/{handler}", &["handler", "read"], of::<HandlerAnswer>, "Reads a handler of a Click element")
        .example(r#"{"handler":"c.count"}"#),
    act(Put, "/v1/handlers/{handler}", &["handler", "write"], Configure, of::<HandlerAnswer>, "Writes a handler")
        .example(r#"{"handler":"s.switch","value":"1"}"#),
    show("/v1/handlers/{handler}/readable", &["handler", "check-read"], of::<HandlerAnswer>, "Says if a handler can be read")
        .example(r#"{"handler":"c.count"}"#),
    show("/v1/handlers/{handler}/writable", &["handler", "check-write"], of::<HandlerAnswer>, "Says if it can be written")
        .example(r#"{"handler":"c.count"}"#),
];
