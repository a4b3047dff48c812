//! The API: JSON over a Unix socket, one request a line, one answer a line.
//!
//! ```text
//! -> {"show":"counters"}
//! <- {"ok":{"received":…}}
//! -> {"show":{"route":{"address":"192.0.2.1"}}}
//! <- {"error":"…"}
//! ```
//!
//! The socket's mode is 0600: who may open it may read and change everything.

pub mod client;
pub mod report;
pub mod server;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The socket used unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/turnpike.sock";

/// What a client can ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Something of the router's state.
    Show(Show),
}

/// What can be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Show {
    /// `Vec<`[`report::Port`]`>`.
    Ports,
    /// `Vec<`[`report::Route`]`>`.
    Routes,
    /// [`report::RouteAnswer`]: what happens with packets to this address.
    Route {
        /// The destination.
        address: IpAddr,
    },
    /// `Vec<`[`report::Neighbour`]`>`.
    Neighbours,
    /// [`report::Counters`].
    Counters,
    /// [`report::Graph`].
    Graph,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The report asked for.
    Ok(serde_json::Value),
    /// Why there is none.
    Error(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_documented() {
        let parse = |text| serde_json::from_str::<Request>(text).unwrap();
        assert_eq!(parse(r#"{"show":"counters"}"#), Request::Show(Show::Counters));
        let address = "192.0.2.1".parse().unwrap();
        let route = parse(r#"{"show":{"route":{"address":"192.0.2.1"}}}"#);
        assert_eq!(route, Request::Show(Show::Route { address }));
    }
}
