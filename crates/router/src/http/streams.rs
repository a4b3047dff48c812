//! Answers that are long or have no end: routes, captures.
//!
//! A task makes the pieces and waits for the client between them. It ends when the client is gone.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use api::capture::CaptureRequest;
use api::http::{JSON, LINES, PCAP, RoutePage};
use api::pcapng::Writer;
use api::report::Route;
use api::{Answer, Request, RouteFilter};
use ipnet::IpNet;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use web::axum::http::request::Parts;
use web::axum::http::{StatusCode, header};
use web::axum::response::Response;
use web::{Bytes, Visit, stream};

use super::super::server::capture::{CHUNK, Clock, TICK, begin, packet};
use super::super::server::{Begun, Question, ask_page, audit};
use super::body::Window;
use super::response::{Problem, of, whole};
use super::{Admitted, Api, STREAMS};

/// Pieces that wait for the client.
const WAITING: usize = 2;

/// Pieces of a body on their way to the client.
type Pieces = mpsc::Sender<io::Result<Bytes>>;

impl Api {
    /// A page of routes, or all of them, one a line.
    pub(super) async fn routes(
        &self,
        filter: RouteFilter,
        window: Window,
        parts: &Parts,
        visit: &Visit,
    ) -> Result<Response, Problem> {
        let accepted = parts.headers.get_all(header::ACCEPT).iter();
        let mut accepted = accepted.filter_map(|accept| accept.to_str().ok());
        if accepted.any(|accept| accept.contains(LINES)) {
            return self.all_routes(filter, window, visit).await;
        }
        let _place = self.running.acquire().await;
        let page = self.page(&filter, window).await.map_err(Problem::refused)?;
        let text = serde_json::to_vec(&page).map_err(Problem::defect)?;
        Ok(whole(JSON, text.into()))
    }

    /// Adds pages of the owner up until there are as many routes as are wanted.
    async fn page(&self, filter: &RouteFilter, window: Window) -> Result<RoutePage, String> {
        let Window { limit, mut after } = window;
        let mut routes: VecDeque<Route> = VecDeque::new();
        loop {
            let page = ask_page(filter, after, &self.questions).await?;
            routes.extend(page.routes);
            after = page.next;
            if after.is_none() || routes.len() > limit {
                return Ok(cut(routes.into(), limit, after));
            }
        }
    }

    async fn all_routes(
        &self,
        filter: RouteFilter,
        Window { limit: _, after }: Window,
        visit: &Visit,
    ) -> Result<Response, Problem> {
        let place = self.place()?;
        // The first page is asked for here, so that a wrong filter is an error.
        let first = ask_page(&filter, after, &self.questions).await.map_err(Problem::refused)?;
        let (pieces, body) = mpsc::channel(WAITING);
        let (questions, visit) = (self.questions.clone(), visit.clone());
        tokio::spawn(async move {
            let mut page = first;
            loop {
                let piece = lines(&page.routes);
                // An error means that the client is gone.
                if pieces.send(piece).await.is_err() {
                    break;
                }
                let Some(after) = page.next else { break };
                page = match ask_page(&filter, Some(after), &questions).await {
                    Ok(page) => page,
                    Err(reason) => {
                        let _ = pieces.send(Err(io::Error::other(reason))).await;
                        break;
                    }
                };
            }
            drop((place, visit));
        });
        Ok(of(LINES, stream(body)))
    }

    /// Packets as pcapng, until the client leaves.
    pub(super) async fn capture(
        &self,
        request: CaptureRequest,
        admitted: &Admitted<'_>,
        visit: &Visit,
    ) -> Result<Response, Problem> {
        let place = self.place()?;
        let change = audit::change(&Request::Capture(request.clone()));
        let begun = begin(request, &self.questions).await;
        let answer = match &begun {
            Ok(_) => Answer::Ok(json!({ "capture": "begun" })),
            Err(reason) => Answer::Error(reason.clone()),
        };
        change.iter().for_each(|change| admitted.who.client().record(change, &answer));
        let begun = begun.map_err(Problem::refused)?;
        let (pieces, body) = mpsc::channel(WAITING);
        let (questions, visit) = (self.questions.clone(), visit.clone());
        tokio::spawn(async move {
            // Its end is the client's affair.
            let _ = pass_on(&begun, &pieces).await;
            // The owner may have ended.
            let _ = questions.send(Question::EndCapture(begun.capture.clone())).await;
            drop((place, visit));
        });
        Ok(of(PCAP, stream(body)))
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            let text = format!("{STREAMS} lists and captures are under way; try again later");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, text)
        })
    }
}

/// The first routes, with all of the last prefix.
fn cut(mut routes: Vec<Route>, limit: usize, next: Option<IpNet>) -> RoutePage {
    let next = next.map(|next| next.to_string());
    let Some(last) = routes.get(limit - 1).map(|route| route.prefix.clone()) else {
        return RoutePage { routes, next };
    };
    let end = routes.iter().skip(limit).position(|route| route.prefix != last);
    match end {
        None => RoutePage { routes, next },
        Some(end) => {
            routes.truncate(limit + end);
            RoutePage { routes, next: Some(last) }
        }
    }
}

fn lines(routes: &[Route]) -> io::Result<Bytes> {
    let mut text = Vec::new();
    for route in routes {
        serde_json::to_writer(&mut text, route)?;
        text.push(b'\n');
    }
    Ok(text.into())
}

/// Passes packets on until the client is gone.
async fn pass_on(begun: &Begun, pieces: &Pieces) -> io::Result<()> {
    let clock = Clock::now();
    let mut file = Writer::new(Vec::new())?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let piece = std::mem::take(file.get_mut());
        if !piece.is_empty() && pieces.send(Ok(piece.into())).await.is_err() {
            return Ok(());
        }
        tokio::select! {
            () = pieces.closed() => return Ok(()),
            _ = ticks.tick() => {}
        }
        while file.get_mut().len() < CHUNK
            && let Some(record) = begun.capture.take()
        {
            let written = file.write(&packet(&record, &begun.names, &clock));
            begun.capture.give_back(record);
            written?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str) -> Route {
        Route {
            vrf: None,
            prefix: prefix.to_owned(),
            source: "kernel".to_owned(),
            kind: "unicast".to_owned(),
            metric: 0,
            origin_as: None,
            active: true,
            inactive: None,
            paths: Vec::new(),
        }
    }

    /// The prefixes of a page, and the next one.
    fn page(prefixes: &[&str], limit: usize, next: Option<&str>) -> (usize, Option<String>) {
        let routes = prefixes.iter().map(|prefix| route(prefix)).collect();
        let page = cut(routes, limit, next.map(|next| next.parse().unwrap()));
        (page.routes.len(), page.next)
    }

    #[test]
    fn a_page_ends_behind_all_routes_of_a_prefix() {
        let all = ["10.0.0.0/24", "10.0.1.0/24", "10.0.1.0/24", "10.0.2.0/24"];
        let (middle, end) = (Some("10.0.1.0/24".to_owned()), Some("10.0.2.0/24".to_owned()));
        assert_eq!(page(&all, 1, None), (1, Some("10.0.0.0/24".to_owned())));
        assert_eq!(page(&all, 2, None), (3, middle.clone()));
        assert_eq!(page(&all, 3, None), (3, middle));
        assert_eq!(page(&all, 4, None), (4, None));
        assert_eq!(page(&all, 4, Some("10.0.2.0/24")), (4, end.clone()));
        assert_eq!(page(&all, 9, Some("10.0.2.0/24")), (4, end));
        assert_eq!(page(&[], 1, None), (0, None));
    }
}
