//! The API over HTTP: which method and path stand for which request, and the role that it needs.
//!
//! ```text
//!   GET /v1/routes?vrf=blue  -- find --> Operation -- request --> {"show":{"routes":{"vrf":"blue"}}} --> Request
//!   control socket: {"show":…} --> Request -- Operation::of --> role
//! ```
//!
//! [`OPERATIONS`] is the only list: the router's HTTP server, the roles of the control socket, `turnpike api` and the
//! OpenAPI document ([`openapi`]) are made from it. Parameters are the fields of the request's type, from its JSON
//! schema ([`parameters`]): a new field needs no line here, a new request one line of the table, a query one of
//! [`query`](crate::query) too, and a test names what is missing.

pub mod openapi;
pub mod parameters;
pub(crate) mod table;

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::change::{FilterChange, NeighbourChange, RouteChange, SetChange};
use crate::{HandlerCall, Request, Show};
pub use table::OPERATIONS;

/// The media type of a configuration in the body.
pub const LUA: &str = "application/x-lua";

/// The media type of other bodies, and of answers.
pub const JSON: &str = "application/json";

/// The media type of answers with a line for each element.
pub const LINES: &str = "application/x-ndjson";

/// The media type of captures: pcapng.
pub const PCAP: &str = "application/vnd.tcpdump.pcap";

/// The media type of errors (RFC 9457).
pub const PROBLEM: &str = "application/problem+json";

/// Path of the OpenAPI document.
pub const DOCUMENT: &str = "/v1/openapi.json";

/// Path of the client's own [`Session`].
pub const SESSION: &str = "/v1/session";

/// Rights of a client; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Queries the state.
    Read,
    /// Looks into packets, runs commands, removes flows.
    Operate,
    /// Changes routes, neighbours, sets and the configuration.
    Configure,
}

impl Role {
    /// All, from the one with the fewest rights.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Configure];

    /// Returns its name in configurations and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Configure => "configure",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Queries.
    Get,
    /// Adds, or begins.
    Post,
    /// Sets.
    Put,
    /// Removes.
    Delete,
}

impl Method {
    /// Returns its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    /// Returns true if requests have a body.
    pub fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put)
    }
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One document.
    Whole,
    /// Routes: a page, or one line each.
    Pages,
    /// A file of packets without an end.
    Capture,
}

/// A request over HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The method.
    pub method: Method,
    /// The path, with parameters such as `{name}`.
    pub path: &'static str,
    /// The names around the request's fields in JSON: `["show", "ports"]`.
    pub words: &'static [&'static str],
    /// The role that it needs, by HTTP and on the control socket.
    pub role: Role,
    /// Its purpose in a sentence.
    pub summary: &'static str,
    /// Values of parameters that are left out, as a JSON object.
    pub defaults: &'static str,
    /// The form of the answer.
    pub form: Form,
    /// The schema of the answer.
    pub answer: fn(&mut SchemaGenerator) -> Schema,
    /// The parameters of an example, as a JSON object.
    pub example: &'static str,
}

/// The values of a path's parameters.
pub type Values = Vec<(&'static str, String)>;

/// An operation, and the values of its path's parameters.
pub type Found = (&'static Operation, Values);

/// A path or method that there is not.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// No resource has the path.
    Path,
    /// The resource has other methods.
    Method(Vec<&'static str>),
}

impl Operation {
    /// Finds the operation for a method and a path; with the values of the path's parameters.
    ///
    /// # Errors
    /// There is none.
    pub fn find(method: &str, path: &str) -> Result<Found, Missing> {
        let fitting: Vec<_> = OPERATIONS
            .iter()
            .filter_map(|operation| Some((operation, captured(operation.path, path)?)))
            .collect();
        // `/v1/routes/summary` is nearer than one with a parameter there.
        let fewest = fitting.iter().map(|(_, values)| values.len()).min().ok_or(Missing::Path)?;
        let near = || fitting.iter().filter(|(_, values)| values.len() == fewest);
        let found = near().find(|(operation, _)| operation.method.name() == method);
        let known = || near().map(|(operation, _)| operation.method.name()).collect();
        found.cloned().ok_or_else(|| Missing::Method(known()))
    }

    /// Returns the operation of a request.
    pub fn of(request: &Request) -> &'static Self {
        let words = words(request);
        let found = OPERATIONS.iter().find(|operation| {
            operation.words == [words.0] || operation.words == [words.0, &words.1]
        });
        // A test compares the table with the requests; one that is missing would need the highest role.
        let highest = || OPERATIONS.iter().max_by_key(|operation| operation.role);
        found.or_else(highest).unwrap_or(&OPERATIONS[0])
    }

    /// Returns its name in messages: `show ports`, `apply`.
    pub fn name(&self) -> String {
        self.words.join(" ")
    }

    /// Returns true if a configuration may be the body.
    pub fn has_text(&self) -> bool {
        parameters::of(self).iter().any(|known| known.name == "text")
    }

    /// Makes the request of the parameters' values.
    ///
    /// # Errors
    /// A parameter is missing or unknown, or has a value of another type.
    pub fn request(&self, given: Map<String, Value>) -> Result<Request, String> {
        let parameters = parameters::of(self);
        let mut fields = parameters::with_defaults(self, given);
        let mut inner = Map::new();
        for parameter in &parameters {
            if let Some(value) = fields.remove(&parameter.name) {
                parameter.put(&mut inner, value);
            }
        }
        if let Some((name, _)) = fields.into_iter().next() {
            return Err(parameters::unknown(&name, &parameters));
        }
        let whole = self.words.iter().rev().fold(Value::Object(inner), |inner, word| {
            Value::Object(Map::from_iter([((*word).to_owned(), inner)]))
        });
        let whole = if parameters.is_empty() && self.words[0] == "show" {
            serde_json::json!({ "show": self.words[1] })
        } else {
            whole
        };
        serde_json::from_value(whole).map_err(|error| error.to_string())
    }
}

/// The values of a path's parameters; `None` if it is another path.
fn captured(pattern: &'static str, path: &str) -> Option<Values> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut values = Vec::new();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(values),
            (Some(wanted), Some(given)) => {
                match wanted.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
                    Some(_) if given.is_empty() => return None,
                    Some(name) => values.push((name, parameters::decoded(given, false)?)),
                    None if wanted == given => {}
                    None => return None,
                }
            }
            _ => return None,
        }
    }
}

/// The names around a request's fields in JSON, of which the second may be missing.
fn words(request: &Request) -> (&'static str, Cow<'static, str>) {
    let (first, second) = match request {
        Request::Show(show) => return ("show", show_word(show).into()),
        Request::Route(RouteChange::Add(_)) => ("route", "add"),
        Request::Route(RouteChange::Del(_)) => ("route", "del"),
        Request::Neighbour(NeighbourChange::Add(_)) => ("neighbour", "add"),
        Request::Neighbour(NeighbourChange::Del(_)) => ("neighbour", "del"),
        Request::Set(SetChange::Add { .. }) => ("set", "add"),
        Request::Set(SetChange::Del { .. }) => ("set", "del"),
        Request::Filter(FilterChange::Log { .. }) => ("filter", "log"),
        Request::Filter(FilterChange::Unlog { .. }) => ("filter", "unlog"),
        Request::Handler(HandlerCall::Read { .. }) => ("handler", "read"),
        Request::Handler(HandlerCall::Write { .. }) => ("handler", "write"),
        Request::Handler(HandlerCall::CheckRead { .. }) => ("handler", "check-read"),
        Request::Handler(HandlerCall::CheckWrite { .. }) => ("handler", "check-write"),
        Request::Plan(_) => ("plan", ""),
        Request::Apply(_) => ("apply", ""),
        Request::Confirm {} => ("confirm", ""),
        Request::Rollback(_) => ("rollback", ""),
        Request::Save(_) => ("save", ""),
        Request::ForgetFlows(_) => ("forget-flows", ""),
        Request::Trace(_) => ("trace", ""),
        Request::Capture(_) => ("capture", ""),
        Request::Do(_) => ("do", ""),
    };
    (first, second.into())
}

/// The name of a query, which JSON has as a string or around its fields.
fn show_word(show: &Show) -> String {
    match serde_json::to_value(show) {
        Ok(Value::String(name)) => name,
        Ok(Value::Object(around)) => {
            around.into_iter().next().map(|(name, _)| name).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A page of routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoutePage {
    /// The routes; all routes of a prefix are on one page.
    pub routes: Vec<crate::report::Route>,
    /// The value of `after` for the next page; none: this is the last one.
    pub next: Option<String>,
}

/// A client, as the router knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// Its user, or its token.
    pub client: String,
    /// `read`, `operate` or `configure`.
    pub role: String,
}

/// An error (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `about:blank`: the status says it all.
    #[serde(rename = "type")]
    pub kind: String,
    /// The status in words.
    pub title: String,
    /// The status.
    pub status: u16,
    /// The text that commands show.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_request_is_in_the_table_once() {
        let listed: Vec<String> = OPERATIONS.iter().map(Operation::name).collect();
        let set: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(set.len(), listed.len(), "a request is listed twice");
        assert_eq!(set, parameters::all_requests(), "requests of the types, and of the table");
    }

    #[test]
    fn a_method_and_a_path_are_one_operation() {
        let all = OPERATIONS.iter().map(|operation| (operation.method, operation.path));
        assert_eq!(all.collect::<BTreeSet<_>>().len(), OPERATIONS.len());
    }

    /// The request of each example is found again, so it needs the role of its line.
    #[test]
    fn requests_of_examples_are_those_of_their_lines() {
        for operation in OPERATIONS {
            let example = serde_json::from_str(operation.example).unwrap();
            let request = operation.request(example);
            let request = request.unwrap_or_else(|error| panic!("{}: {error}", operation.path));
            assert!(std::ptr::eq(Operation::of(&request), operation), "{}", operation.path);
            let line = serde_json::to_vec(&request).unwrap();
            assert_eq!(Request::read(&line).unwrap(), request);
        }
    }

    #[test]
    fn parameters_of_a_path_are_fields() {
        for operation in OPERATIONS {
            let known = parameters::of(operation);
            for name in operation.path.split(['{', '}']).skip(1).step_by(2) {
                assert!(known.iter().any(|known| known.name == name), "{}", operation.path);
            }
            let names: BTreeSet<_> = known.iter().map(|known| &known.name).collect();
            assert_eq!(names.len(), known.len(), "{}: two fields of one name", operation.path);
        }
    }

    fn found(method: &str, path: &str) -> Result<String, Missing> {
        Operation::find(method, path).map(|(operation, values)| {
            let values = values.iter().map(|(name, value)| format!(" {name}={value}"));
            operation.name() + &values.collect::<String>()
        })
    }

    #[test]
    fn paths_are_found() {
        assert_eq!(found("GET", "/v1/ports").unwrap(), "show ports");
        assert_eq!(found("GET", "/v1/routes/summary").unwrap(), "show summary");
        assert_eq!(found("GET", "/v1/history/3").unwrap(), "show configuration number=3");
        let handler = "handler read handler=a/b.count";
        assert_eq!(found("GET", "/v1/handlers/a%2Fb.count").unwrap(), handler);
        for path in
            ["/v1/ports/", "/v1", "/v2/ports", "//v1/ports", "/v1/history/", "/v1/history/%ff", ""]
        {
            assert_eq!(found("GET", path), Err(Missing::Path), "{path}");
        }
        assert_eq!(found("PUT", "/v1/routes"), Err(Missing::Method(vec!["GET", "POST", "DELETE"])));
    }

    /// Reading changes nothing, and what changes a configuration is not for operators.
    #[test]
    fn roles_follow_the_kind_of_request() {
        for operation in OPERATIONS {
            let expected = match operation.words {
                ["show", _] | ["handler", "read" | "check-read" | "check-write"] => Role::Read,
                ["trace" | "capture" | "do" | "forget-flows"] | ["filter", _] => Role::Operate,
                _ => Role::Configure,
            };
            assert_eq!(operation.role, expected, "{}", operation.name());
            assert_eq!(operation.method == Method::Get, operation.role == Role::Read);
        }
    }
}
