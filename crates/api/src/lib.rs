//! The API: JSON over a Unix socket, one request a line, one answer a line.
//!
//! ```text
//! -> {"show":"counters"}
//! <- {"ok":{"received":…}}
//! -> {"show":{"route":{"address":"192.0.2.1"}}}
//! <- {"error":"…"}
//! -> {"show":{"routes":{"source":"kernel","prefix":"10.0.0.0/8","longer":true}}}
//! <- {"ok":[{"prefix":"10.1.0.0/16",…},…]}
//! -> {"route":{"add":{"prefix":"198.51.100.0/24","paths":[{"via":"10.0.2.2","weight":2}]}}}
//! <- {"ok":{"change":"added"}}
//! -> {"handler":{"read":{"handler":"c.count"}}}
//! <- {"ok":{"code":200,"messages":["Read handler 'c.count' OK"],"data":"12"}}
//! -> {"apply":{"file":"/etc/turnpike/router.lua","text":"…","confirm_s":60}}
//! <- {"ok":{"number":2,…}}
//! ```
//!
//! The answer to `routes` is written piece by piece while the router continues to work, so it is
//! one line of any length; routes may change between two pieces. All other answers are of one
//! moment.
//!
//! The socket's mode is 0600, or 0660 for a group's members, who have roles ([`http::Role`]). [`http`] has the same requests
//! as methods and paths.
//! Changes are logged with the client's user and process.
#![forbid(unsafe_code)]

pub mod capture;
pub mod change;
pub mod client;
pub mod configuration;
pub mod http;
pub mod pcapng;
pub mod query;
pub mod report;

use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use capture::CaptureRequest;
use change::{FilterChange, NeighbourChange, RouteChange, SetChange};
use configuration::{ApplyRequest, PlanRequest, RollbackRequest, SaveRequest};
pub use report::Show;

/// Default path of the socket.
pub const DEFAULT_SOCKET: &str = "/run/turnpike.sock";

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// A query of the router's state.
    Show(Show),
    /// A change of the routes; the answer is [`report::Change`].
    Route(RouteChange),
    /// A change of the neighbours; the answer is [`report::Change`].
    Neighbour(NeighbourChange),
    /// The changes that a configuration would make: [`report::ChangePlan`].
    Plan(PlanRequest),
    /// A change to another configuration; the answer is [`report::Applied`].
    Apply(ApplyRequest),
    /// Confirms a configuration applied on condition; the answer is [`report::Change`].
    Confirm {},
    /// A change back to a configuration of the history; the answer is [`report::Applied`].
    Rollback(RollbackRequest),
    /// Writes the router's configuration to the file of its start; the answer is [`report::Saved`].
    Save(SaveRequest),
    /// Removes flows; the answer is [`report::Change`].
    ForgetFlows(FlowSelection),
    /// Adds elements to a set of prefixes, or removes them; the answer is [`report::Change`].
    Set(SetChange),
    /// Logs packets of a filter's rule for a time, or no longer; the answer is [`report::Change`].
    Filter(FilterChange),
    /// Traces packets; the answer, once they are through or the time is over, is [`report::Trace`].
    Trace(TraceRequest),
    /// Copies packets; the answer is followed by [`capture::Line`]s, until the client closes its direction.
    Capture(CaptureRequest),
    /// Runs a command of the configuration, in Lua. The answer is its text or table.
    Do(DoRequest),
    /// Calls a handler of an element of a Click configuration; the answer is [`report::HandlerAnswer`].
    Handler(HandlerCall),
}

/// A call of a handler, as those of Click: `ELEMENT.HANDLER`, or `HANDLER` of the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HandlerCall {
    /// Reads it.
    Read {
        /// Its name.
        handler: String,
        /// Its argument, for those that have one.
        #[serde(default)]
        argument: String,
    },
    /// Writes it.
    Write {
        /// Its name.
        handler: String,
        /// The value.
        #[serde(default)]
        value: String,
    },
    /// Asks if it can be read.
    CheckRead {
        /// Its name.
        handler: String,
    },
    /// Asks if it can be written.
    CheckWrite {
        /// Its name.
        handler: String,
    },
}

impl HandlerCall {
    /// Returns true if it may change something.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. })
    }
}

impl Request {
    /// Parses a request as received from the socket.
    ///
    /// # Errors
    /// It is not JSON, or not a request.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line).or_else(|error| {
            // `routes` without a filter means all routes in use.
            match serde_json::from_slice::<AllRoutes>(line) {
                Ok(_) => Ok(Self::Show(Show::Routes(RouteFilter::default()))),
                Err(_) => Err(error),
            }
        })
    }
}

/// `{"show":"routes"}`
#[derive(Deserialize)]
struct AllRoutes {
    #[serde(rename = "show")]
    _show: Routes,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Routes {
    Routes,
}

/// A selection of flows: all conditions must hold, those on an end for either end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowSelection {
    /// A prefix that contains an end's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prefix: Option<IpNet>,
    /// An end's port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
}

/// The packets to be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequest {
    /// A filter's rule that selects them, as `proto=udp`, `to_port=53`; empty: all.
    #[serde(default)]
    pub rule: Vec<String>,
    /// In place of received ones: a packet made by hand, see [`acl::packet`], which is not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<String>,
    /// Their number.
    pub packets: u32,
    /// The longest time to wait for them.
    pub seconds: u64,
}

/// A command of the configuration to be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DoRequest {
    /// Its name.
    pub name: String,
    /// The arguments typed after it.
    #[serde(default)]
    pub args: Vec<String>,
}

/// A selection of routes; an empty filter selects those that forwarders use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RouteFilter {
    /// Only routes of this source, including those not used because another source's are preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Only routes to this prefix, including unused ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prefix: Option<IpNet>,
    /// With `prefix`: also routes to prefixes within it.
    #[serde(default)]
    pub longer: bool,
    /// Also routes that are not used.
    #[serde(default)]
    pub all: bool,
    /// The VRF; without it the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
}

/// A flow, all of whose packets take the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "FlowOfPackets")]
pub struct Flow {
    /// The source address, of the destination's family.
    pub from: IpAddr,
    /// The number of the protocol: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// The source port; 0 if the protocol has none.
    #[serde(default)]
    pub sport: u16,
    /// The destination port; 0 if the protocol has none.
    #[serde(default)]
    pub dport: u16,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The requested report.
    Ok(serde_json::Value),
    /// Reason for the failure.
    Error(String),
}

impl From<anyhow::Result<serde_json::Value>> for Answer {
    fn from(report: anyhow::Result<serde_json::Value>) -> Self {
        match report {
            Ok(report) => Self::Ok(report),
            Err(error) => Self::Error(format!("{error:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::change::{NeighbourAdd, PathSpec, RouteAdd, RouteType};
    use super::*;

    fn read(text: &str) -> Request {
        Request::read(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn requests_read_as_documented() {
        assert_eq!(read(r#"{"show":"counters"}"#), Request::Show(Show::Counters));
        let address = "192.0.2.1".parse().unwrap();
        let route = read(r#"{"show":{"route":{"address":"192.0.2.1"}}}"#);
        assert_eq!(route, Request::Show(Show::Route { address, flow: None, vrf: None }));
        let flow = read(
            r#"{"show":{"route":{"address":"192.0.2.1","flow":{"from":"10.0.0.1","protocol":6,"sport":7}}}}"#,
        );
        let from = "10.0.0.1".parse().unwrap();
        let expected = Flow { from, protocol: 6, sport: 7, dport: 0 };
        assert_eq!(flow, Request::Show(Show::Route { address, flow: Some(expected), vrf: None }));
    }

    #[test]
    fn routes_are_asked_for_with_and_without_a_filter() {
        let all = Request::Show(Show::Routes(RouteFilter::default()));
        assert_eq!(read(r#"{"show":"routes"}"#), all);
        assert_eq!(read(r#"{"show":{"routes":{}}}"#), all);
        let filter = RouteFilter {
            source: Some("kernel".to_owned()),
            prefix: Some("10.0.0.0/8".parse().unwrap()),
            longer: true,
            all: false,
            vrf: None,
        };
        let some =
            read(r#"{"show":{"routes":{"source":"kernel","prefix":"10.0.0.0/8","longer":true}}}"#);
        assert_eq!(some, Request::Show(Show::Routes(filter)));
        let misspelt = Request::read(br#"{"show":{"routes":{"sauce":"kernel"}}}"#).unwrap_err();
        assert!(misspelt.to_string().contains("sauce"), "{misspelt}");
    }

    #[test]
    fn vrfs_are_named_or_left_out() {
        let blue = Some("blue".to_owned());
        let filter = RouteFilter { vrf: blue.clone(), ..RouteFilter::default() };
        let routes = read(r#"{"show":{"routes":{"vrf":"blue"}}}"#);
        assert_eq!(routes, Request::Show(Show::Routes(filter)));
        let address = "192.0.2.1".parse().unwrap();
        let route = read(r#"{"show":{"route":{"address":"192.0.2.1","vrf":"blue"}}}"#);
        assert_eq!(route, Request::Show(Show::Route { address, flow: None, vrf: blue.clone() }));
        assert_eq!(read(r#"{"show":"vrfs"}"#), Request::Show(Show::Vrfs));
        let text = r#"{"route":{"del":{"prefix":"192.0.2.0/24","vrf":"blue"}}}"#;
        assert_eq!(serde_json::to_string(&read(text)).unwrap(), text);
    }

    #[test]
    fn changes_read_as_documented() {
        let add = read(
            r#"{"route":{"add":{"prefix":"198.51.100.0/24","paths":[{"via":"10.0.2.2","weight":2}]}}}"#,
        );
        let path = PathSpec { weight: 2, ..PathSpec::via("10.0.2.2".parse().unwrap()) };
        let prefix = "198.51.100.0/24".parse().unwrap();
        let expected = RouteAdd { paths: vec![path], ..RouteAdd::to(prefix) };
        assert_eq!(add, Request::Route(RouteChange::Add(expected)));
        let hole = read(r#"{"route":{"add":{"prefix":"::/0","type":"blackhole","metric":7}}}"#);
        let prefix = "::/0".parse().unwrap();
        let expected = RouteAdd { kind: RouteType::Blackhole, metric: 7, ..RouteAdd::to(prefix) };
        assert_eq!(hole, Request::Route(RouteChange::Add(expected)));
        let neighbour = read(
            r#"{"neighbour":{"add":{"address":"10.0.2.9","lladdr":"02:00:00:00:00:09","port":"right"}}}"#,
        );
        let expected = NeighbourAdd {
            address: "10.0.2.9".parse().unwrap(),
            lladdr: "02:00:00:00:00:09".to_owned(),
            port: "right".to_owned(),
        };
        assert_eq!(neighbour, Request::Neighbour(NeighbourChange::Add(expected)));
        let apply = read(r#"{"apply":{"file":"/r.lua","text":"-- none","confirm_s":60}}"#);
        let (file, text) = ("/r.lua".into(), "-- none".to_owned());
        let expected = ApplyRequest { file, text, confirm_s: Some(60) };
        assert_eq!(apply, Request::Apply(expected));
        assert_eq!(read(r#"{"confirm":{}}"#), Request::Confirm {});
        let expected = RollbackRequest { to: Some(3), confirm_s: None };
        assert_eq!(read(r#"{"rollback":{"to":3}}"#), Request::Rollback(expected));
        let expected = SaveRequest { number: Some(3), force: false };
        assert_eq!(read(r#"{"save":{"number":3}}"#), Request::Save(expected));
    }
}
