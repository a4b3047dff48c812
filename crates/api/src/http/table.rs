//! The table of operations.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use super::{Form, Method, Operation, Role};
use crate::query;
use crate::report::{Applied, Change, ChangePlan, HandlerAnswer, Saved, Trace};

/// The schema of an answer of this type.
pub(crate) fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A query without parameters, whose answer has any form.
pub(crate) const fn get(
    path: &'static str,
    words: &'static [&'static str],
    summary: &'static str,
) -> Operation {
    let (method, role, form) = (Method::Get, Role::Read, Form::Whole);
    let (defaults, example) = ("{}", "{}");
    Operation { method, path, words, role, summary, defaults, form, answer: of::<Value>, example }
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
    Operation { method, role, ..get(path, words, summary).answer(answer) }
}

impl Operation {
    pub(crate) const fn answer(self, answer: fn(&mut SchemaGenerator) -> Schema) -> Self {
        Self { answer, ..self }
    }

    pub(crate) const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    pub(crate) const fn defaults(self, defaults: &'static str) -> Self {
        Self { defaults, ..self }
    }

    pub(crate) const fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

use Method::{Delete, Post, Put};
use Role::{Configure, Operate};

/// Every request, by path.
#[rustfmt::skip]
pub static OPERATIONS: &[Operation] = &[
    // The state.
    query::PORTS.operation(),
    query::INTERFACES.operation(),
    query::BONDS.operation(),
    query::ROUTES.operation(),
    query::SUMMARY.operation(),
    query::ROUTE.operation(),
    query::VRFS.operation(),
    query::NEIGHBOURS.operation(),
    query::SOURCES.operation(),
    query::FILTERS.operation(),
    query::FILTER_VERDICT.operation(),
    query::SETS.operation(),
    query::FLOWS.operation(),
    query::MULTICAST.operation(),
    query::MIRRORS.operation(),
    query::EXPORTERS.operation(),
    query::FORWARDERS.operation(),
    query::RSS.operation(),
    query::CONTROL_QUEUES.operation(),
    query::QUEUES.operation(),
    query::STATUS.operation(),
    query::OVERVIEW.operation(),
    query::COUNTERS.operation(),
    query::ACCELERATION.operation(),
    query::POLICING.operation(),
    query::GRAPH.operation(),
    query::STEPS.operation(),
    query::CLICK.operation(),
    query::TOPOLOGY.operation(),
    // The configuration.
    query::HISTORY.operation(),
    query::CONFIGURATION.operation(),
    query::DIFFERENCE.operation(),
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
    query::COMMANDS.operation(),
    act(Post, "/v1/commands/{name}", &["do"], Operate, of::<Value>, "Runs a command of the configuration")
        .example(r#"{"name":"top","args":["5"]}"#),
    get("/v1/handlers/{handler}", &["handler", "read"], "Reads a handler of a Click element").answer(of::<HandlerAnswer>)
        .example(r#"{"handler":"c.count"}"#),
    act(Put, "/v1/handlers/{handler}", &["handler", "write"], Configure, of::<HandlerAnswer>, "Writes a handler")
        .example(r#"{"handler":"s.switch","value":"1"}"#),
    get("/v1/handlers/{handler}/readable", &["handler", "check-read"], "Says if a handler can be read").answer(of::<HandlerAnswer>)
        .example(r#"{"handler":"c.count"}"#),
    get("/v1/handlers/{handler}/writable", &["handler", "check-write"], "Says if it can be written").answer(of::<HandlerAnswer>)
        .example(r#"{"handler":"c.count"}"#),
];
