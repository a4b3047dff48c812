//! Bodies and parameters of requests.
//!
//! Fields of the request come from the path, the query and, for POST and PUT, a JSON object; a configuration may be the
//! body itself. A body is read when its client has the role, in a time and up to a size.

use std::time::Duration;

use api::Request;
use api::http::{Form, JSON, LUA, parameters};
use ipnet::IpNet;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use web::axum::body::{Body, HttpBody, to_bytes};
use web::axum::http::request::Parts;
use web::axum::http::{HeaderMap, StatusCode, header};

use super::response::Problem;
use super::{Admitted, Api, LARGE_BODIES};

/// Most bytes of a body.
const MOST: usize = 1 << 20;

/// Most bytes of a configuration.
const TEXT_MOST: usize = 64 << 20;

/// Time limit for a body.
const PATIENCE: Duration = Duration::from_secs(60);

/// Routes of a page without a limit.
pub(super) const ROUTES: usize = 1000;

/// Highest limit.
const ROUTES_MOST: usize = 10_000;

/// A page of routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Most routes, but for those of the last prefix; `None`: those of a page, or in lines all.
    pub(super) limit: Option<usize>,
    /// The prefix before them.
    pub(super) after: Option<IpNet>,
}

fn bad(text: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, text)
}

impl Api {
    /// Reads a request, and the page that it is about.
    pub(super) async fn read(
        &self,
        admitted: &Admitted<'_>,
        parts: &Parts,
        body: Body,
    ) -> Result<(Request, Window), Problem> {
        let operation = admitted.operation;
        let mut pairs = parameters::pairs(parts.uri.query().unwrap_or_default()).map_err(bad)?;
        let mut window = Window::default();
        if operation.form == Form::Pages {
            window = take_window(&mut pairs)?;
        }
        let values =
            admitted.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        pairs.extend(values);
        let mut fields = parameters::from_query(operation, pairs).map_err(bad)?;
        if operation.method.has_body() {
            let given = self.fields(admitted, &parts.headers, body).await?;
            if let Some(twice) = given.keys().find(|name| fields.contains_key(*name)) {
                return Err(bad(format!(
                    "parameter \"{twice}\": given in the body and in the URL"
                )));
            }
            fields.extend(given);
        } else if !body.is_end_stream() {
            return Err(bad("this request has no body").closing());
        }
        let request = operation.request(fields).map_err(bad)?;
        Ok((request, window))
    }

    /// The fields in a body.
    async fn fields(
        &self,
        admitted: &Admitted<'_>,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Map<String, Value>, Problem> {
        let has_text = admitted.operation.has_text();
        let most = if has_text { TEXT_MOST } else { MOST };
        let deadline = Instant::now() + PATIENCE;
        let is_large = has_text && body.size_hint().upper().is_none_or(|most| most > MOST as u64);
        let place = is_large.then(|| timeout_at(deadline, self.large.acquire()));
        let _place = match place {
            Some(place) => Some(place.await.map_err(|_| {
                let text = format!("{LARGE_BODIES} large bodies are under way; try again later");
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, text).closing()
            })?),
            None => None,
        };
        let bytes = timeout_at(deadline, to_bytes(body, most)).await.map_err(|_| {
            let text = format!("the body takes longer than {} s", PATIENCE.as_secs());
            Problem::new(StatusCode::REQUEST_TIMEOUT, text).closing()
        })?;
        let bytes = bytes.map_err(|_| {
            let text = format!("the body is longer than {most} bytes, or incomplete");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text).closing()
        })?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
        let is_lua = match kind {
            Some(kind) if kind.eq_ignore_ascii_case(JSON) => false,
            Some(kind) if has_text && kind.eq_ignore_ascii_case(LUA) => true,
            _ => {
                let lua = if has_text { format!(" or {LUA}") } else { String::new() };
                let text = format!("Content-Type: expected {JSON}{lua}");
                return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
            }
        };
        if is_lua {
            let text = String::from_utf8(bytes.to_vec());
            let text = text.map_err(|_| bad("the configuration is not UTF-8"))?;
            return Ok(Map::from_iter([("text".to_owned(), Value::String(text))]));
        }
        if bytes.is_empty() {
            return Ok(Map::new());
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| bad(format!("the body is no JSON object: {error}")))
    }
}

/// Takes the parameters of a page out of a query.
fn take_window(pairs: &mut Vec<(String, String)>) -> Result<Window, Problem> {
    let mut window = Window::default();
    let (page, others): (Vec<_>, _) =
        pairs.drain(..).partition(|(name, _)| ["limit", "after"].contains(&name.as_str()));
    *pairs = others;
    let mut seen: Vec<&str> = Vec::new();
    for (name, text) in &page {
        if seen.contains(&name.as_str()) {
            return Err(bad(format!("parameter \"{name}\": given twice")));
        }
        seen.push(name);
        if name == "limit" {
            let limit = text.parse().ok().filter(|limit| (1..=ROUTES_MOST).contains(limit));
            let error =
                || bad(format!("parameter \"limit\": \"{text}\" is not 1 to {ROUTES_MOST}"));
            window.limit = Some(limit.ok_or_else(error)?);
        } else {
            let error = || bad(format!("parameter \"after\": \"{text}\" is no prefix"));
            window.after = Some(text.parse().map_err(|_| error())?);
        }
    }
    Ok(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_limits() {
        let window = |query: &str| {
            let mut pairs = parameters::pairs(query).unwrap();
            take_window(&mut pairs).map(|window| (window.limit, window.after, pairs.len()))
        };
        assert_eq!(window("vrf=blue").unwrap(), (None, None, 1));
        let after = "10.0.0.0/8".parse().ok();
        assert_eq!(window("limit=5&after=10.0.0.0/8").unwrap(), (Some(5), after, 0));
        for wrong in ["limit=0", "limit=10001", "limit=x", "after=x", "limit=1&limit=2"] {
            assert!(window(wrong).is_err(), "{wrong}");
        }
    }
}
