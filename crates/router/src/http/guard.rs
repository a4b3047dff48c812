//! Requests that are refused whoever sends them.
//!
//! | request | status | attack |
//! |---|---|---|
//! | by TCP for another host than this machine | 421 | a page whose name leads here for a moment (DNS rebinding) |
//! | with `Origin`, or with `Sec-Fetch-Site` of another site | 403 | a page of another site (CSRF) |
//! | in chunks | 411 | smuggling behind a proxy that prefers the length |
//! | with several hosts | 400 | the same |
//!
//! There are no cookies, and no page may read an answer: the server sends no header of CORS.

use std::net::{IpAddr, SocketAddr};

use web::End;
use web::axum::http::request::Parts;
use web::axum::http::uri::Authority;
use web::axum::http::{HeaderMap, StatusCode, header};

use super::response::Problem;

/// Values of `Sec-Fetch-Site` that no other site's page causes.
const OWN_SITES: [&str; 2] = ["none", "same-origin"];

/// Checks a request received by a service that listens on an address.
pub(super) fn check(parts: &Parts, end: &End, listen: Option<SocketAddr>) -> Result<(), Problem> {
    let headers = &parts.headers;
    // A length beside it is not seen here: hyper removes it.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        let text = "Transfer-Encoding: bodies have a Content-Length here";
        return Err(Problem::new(StatusCode::LENGTH_REQUIRED, text).closing());
    }
    if headers.contains_key(header::ORIGIN) {
        return Err(foreign("the request has an Origin"));
    }
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| !OWN_SITES.iter().any(|own| site == own)) {
        return Err(foreign("Sec-Fetch-Site is another site"));
    }
    host(headers, matches!(end, End::Tcp { .. }), listen)
}

fn foreign(why: &str) -> Problem {
    let text = format!("{why}: pages of a browser may not use this API");
    Problem::new(StatusCode::FORBIDDEN, text)
}

fn host(headers: &HeaderMap, by_tcp: bool, listen: Option<SocketAddr>) -> Result<(), Problem> {
    let hosts: Vec<_> = headers.get_all(header::HOST).iter().collect();
    if hosts.len() > 1 {
        let text = format!("{} Host headers: one is enough", hosts.len());
        return Err(Problem::new(StatusCode::BAD_REQUEST, text).closing());
    }
    // A browser does not speak to Unix sockets.
    if !by_tcp {
        return Ok(());
    }
    let host = hosts.first().and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_here(host, listen) {
        return Ok(());
    }
    let known = listen.map_or_else(|| "localhost".to_owned(), |listen| listen.to_string());
    let text = format!("Host \"{host}\": not this service's; write {known}");
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, text))
}

/// Returns true for a name of this machine that no name server can give away.
fn is_here(host: &str, listen: Option<SocketAddr>) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.contains('@') {
        return false;
    }
    let address = name.parse::<IpAddr>();
    let is_own = |address: IpAddr| {
        address.is_loopback() || listen.is_some_and(|listen| listen.ip() == address)
    };
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_here() {
        let listen = "127.0.0.1:8479".parse().ok();
        for host in
            ["localhost", "LOCALHOST:8479", "127.0.0.1:8479", "127.0.0.1", "[::1]:8479", "[::1]"]
        {
            assert!(is_here(host, listen), "{host}");
        }
        for host in [
            "",
            "attacker.example",
            "attacker.example:8479",
            "localhost.attacker.example",
            "127.0.0.1.attacker.example",
            "127.0.0.1@attacker.example",
            "attacker.example@127.0.0.1",
            "10.0.0.1",
            "0.0.0.0",
            "localhost/",
            "a b",
        ] {
            assert!(!is_here(host, listen), "{host}");
        }
    }
}
