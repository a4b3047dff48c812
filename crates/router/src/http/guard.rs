//! Requests that are refused whoever sends them.
//!
//! | request | status | attack |
//! |---|---|---|
//! | for another host than this machine, and with TLS than those of the certificate | 421 | a page whose name leads here for a moment (DNS rebinding) |
//! | with `Origin`, unless it is the dashboard's, or with `Sec-Fetch-Site` of another site | 403 | a page of another site (CSRF) |
//! | in chunks | 411 | smuggling behind a proxy that prefers the length |
//! | with several hosts | 400 | the same |
//!
//! There are no cookies, and no other page may read an answer: the server sends no header of CORS. A browser comes to a Unix
//! socket by a tunnel (`ssh -L`), so hosts are checked there too.

use std::net::{IpAddr, SocketAddr};

use web::Session;
use web::axum::http::request::Parts;
use web::axum::http::uri::Authority;
use web::axum::http::{HeaderMap, StatusCode, header};

use super::response::Problem;

/// Values of `Sec-Fetch-Site` that no other site's page causes.
const OWN_SITES: [&str; 2] = ["none", "same-origin"];

/// A service, as far as requests are checked by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    /// Its address.
    pub(super) listen: Option<SocketAddr>,
    /// It has pages of its own, which use it.
    pub(super) dashboard: bool,
}

/// Checks a request to the API, which may have come by TLS.
pub(super) fn check(parts: &Parts, service: Service, tls: Option<&Session>) -> Result<(), Problem> {
    let headers = &parts.headers;
    length(headers)?;
    let host = host(headers, service.listen, |host| tls.is_some_and(|tls| tls.is_for(host)))?;
    let own = format!("{}://{host}", if tls.is_some() { "https" } else { "http" });
    if headers.contains_key(header::ORIGIN) && !(service.dashboard && is_own(headers, &own)) {
        return Err(foreign("the request has an Origin"));
    }
    site(headers)
}

/// Checks a request for a file of the dashboard, to which a page of another site may lead.
pub(super) fn check_page(
    parts: &Parts,
    service: Service,
    tls: Option<&Session>,
) -> Result<(), Problem> {
    length(&parts.headers)?;
    host(&parts.headers, service.listen, |host| tls.is_some_and(|tls| tls.is_for(host)))?;
    let mode = parts.headers.get("sec-fetch-mode");
    match mode.is_some_and(|mode| mode == "navigate") {
        true => Ok(()),
        false => site(&parts.headers),
    }
}

fn length(headers: &HeaderMap) -> Result<(), Problem> {
    // A length beside it is not seen here: hyper removes it.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        let text = "Transfer-Encoding: bodies have a Content-Length here";
        return Err(Problem::new(StatusCode::LENGTH_REQUIRED, text).closing());
    }
    Ok(())
}

/// Returns true if all origins are this one.
fn is_own(headers: &HeaderMap, own: &str) -> bool {
    let mut origins = headers.get_all(header::ORIGIN).iter();
    origins.all(|origin| origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()))
}

fn site(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| !OWN_SITES.iter().any(|own| site == own)) {
        return Err(foreign("Sec-Fetch-Site is another site"));
    }
    Ok(())
}

fn foreign(why: &str) -> Problem {
    let text = format!("{why}: pages of a browser may not use this API");
    Problem::new(StatusCode::FORBIDDEN, text)
}

/// Returns the host that a request is for, which is this machine.
fn host(
    headers: &HeaderMap,
    listen: Option<SocketAddr>,
    is_certified: impl Fn(&str) -> bool,
) -> Result<&str, Problem> {
    let hosts: Vec<_> = headers.get_all(header::HOST).iter().collect();
    if hosts.len() > 1 {
        let text = format!("{} Host headers: one is enough", hosts.len());
        return Err(Problem::new(StatusCode::BAD_REQUEST, text).closing());
    }
    let host = hosts.first().and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_here(host, listen, is_certified) {
        return Ok(host);
    }
    let known = listen.map_or_else(|| "localhost".to_owned(), |listen| listen.to_string());
    let text = format!("Host \"{host}\": not this service's; write {known}");
    Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, text))
}

/// Returns true for a name of this machine that no name server can give away: its addresses, and those for which its
/// authority has made the certificate of the connection.
fn is_here(host: &str, listen: Option<SocketAddr>, is_certified: impl Fn(&str) -> bool) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    if host.contains('@') {
        return false;
    }
    let address = name.parse::<IpAddr>();
    let is_own = |address: IpAddr| {
        address.is_loopback() || listen.is_some_and(|listen| listen.ip() == address)
    };
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_own) || is_certified(name)
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
            assert!(is_here(host, listen, |_| false), "{host}");
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
            assert!(!is_here(host, listen, |_| false), "{host}");
        }
        let certified = |name: &str| name == "router.example";
        assert!(is_here("router.example:8479", listen, certified));
        for host in ["attacker.example", "attacker.example@router.example", "router.example/"] {
            assert!(!is_here(host, listen, certified), "{host}");
        }
    }

    fn parts(headers: &[(&'static str, &'static str)]) -> Parts {
        let mut request = web::axum::http::Request::new(());
        for (name, value) in headers {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        request.into_parts().0
    }

    #[test]
    fn only_the_dashboards_own_pages_have_an_origin() {
        let host = ("host", "localhost:8080");
        let passes = |dashboard, headers: &[(&'static str, &'static str)]| {
            check(&parts(headers), Service { listen: None, dashboard }, None).is_ok()
        };
        let own = ("origin", "http://localhost:8080");
        assert!(passes(true, &[host]) && passes(false, &[host]) && passes(true, &[host, own]));
        assert!(!passes(false, &[host, own]), "there is no dashboard");
        for origin in [
            "null",
            "",
            "http://localhost",
            "http://localhost:80800",
            "https://localhost:8080",
            "http://127.0.0.1:8080",
            "http://attacker.example:8080",
        ] {
            assert!(!passes(true, &[host, ("origin", origin)]), "{origin}");
        }
        assert!(!passes(true, &[host, own, ("origin", "http://attacker.example")]));
        // A name that leads here is the same origin for a browser.
        let [host, own] = [("host", "attacker.example"), ("origin", "http://attacker.example")];
        assert!(!passes(true, &[host, own]) && !passes(true, &[host]) && !passes(true, &[]));
    }

    #[test]
    fn pages_of_other_sites_may_lead_to_the_dashboard() {
        let passes = |headers: &[(&'static str, &'static str)]| {
            check_page(&parts(headers), Service { listen: None, dashboard: true }, None).is_ok()
        };
        let (host, other) = (("host", "localhost"), ("sec-fetch-site", "cross-site"));
        assert!(passes(&[host, other, ("sec-fetch-mode", "navigate")]));
        assert!(!passes(&[host, other, ("sec-fetch-mode", "no-cors")]) && !passes(&[host, other]));
        assert!(!passes(&[("host", "attacker.example"), ("sec-fetch-mode", "navigate")]));
        assert!(passes(&[host]) && !passes(&[host, ("transfer-encoding", "chunked")]));
    }
}
