//! Answers that are long or have no end: routes, captures.
//!
//! A task makes the pieces and waits for the client between them. It ends when the client is gone.

use std::collections::VecDeque;
use std::io;

use api::capture::CaptureRequest;
use api::http::{JSON, LINES, PCAP, RoutePage};
use api::pcapng::Writer;
use api::report::Route;
use api::{Request, RouteFilter};
use ipnet::IpNet;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use web::axum::http::request::Parts;
use web::axum::http::{StatusCode, header};
use web::axum::response::Response;
use web::{Bytes, Visit, stream};

use super::super::server::capture::{CHUNK, Clock, TICK, answer, begin, packet};
use super::super::server::{Begun, Question, Refusal, ask_page};
use super::body::{ROUTES, Window};
use super::places::Place;
use super::response::{Problem, of, whole};
use super::{Admitted, Api, Record, in_time};

/// Pieces that wait for the client.
const WAITING: usize = 2;

/// Pieces of a body on their way to the client.
type Pieces = mpsc::Sender<io::Result<Bytes>>;

impl Api {
    /// A page of routes, or all of them, one a line.
    pub(super) async fn routes(
        &self,
        (filter, window): (RouteFilter, Window),
        admitted: &Admitted<'_>,
        parts: &Parts,
        visit: &Visit,
    ) -> Result<Response, Problem> {
        let accepted = parts.headers.get_all(header::ACCEPT).iter();
        let mut accepted = accepted.filter_map(|accept| accept.to_str().ok());
        if accepted.any(|accept| accept.contains(LINES)) {
            return self.all_routes((filter, window), admitted, visit).await;
        }
        let _place = in_time(self.running.wait(admitted.role)).await?;
        let page = in_time(self.page(&filter, window)).await?.map_err(Problem::refused)?;
        let text = serde_json::to_vec(&page).map_err(Problem::defect)?;
        Ok(whole(JSON, text.into()))
    }

    /// Adds pages of the owner up until there are as many routes as are wanted.
    async fn page(&self, filter: &RouteFilter, window: Window) -> Result<RoutePage, Refusal> {
        let (limit, mut after) = (window.limit.unwrap_or(ROUTES), window.after);
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
        (filter, Window { limit, after }): (RouteFilter, Window),
        admitted: &Admitted<'_>,
        visit: &Visit,
    ) -> Result<Response, Problem> {
        let place = self.place(admitted)?;
        // The first page is asked for here, so that a wrong filter is an error.
        let first = ask_page(&filter, after, &self.questions).await.map_err(Problem::refused)?;
        let (pieces, body) = mpsc::channel(WAITING);
        let (questions, visit) = (self.questions.clone(), visit.clone());
        tokio::spawn(async move {
            let (mut page, mut left) = (first, limit.unwrap_or(usize::MAX));
            loop {
                page.routes.truncate(left);
                left -= page.routes.len();
                let piece = lines(&page.routes);
                // An error means that the client is gone.
                if pieces.send(piece).await.is_err() {
                    break;
                }
                let Some(after) = page.next.filter(|_| left > 0) else { break };
                page = match ask_page(&filter, Some(after), &questions).await {
                    Ok(page) => page,
                    Err(refusal) => {
                        let _ = pieces.send(Err(io::Error::other(refusal))).await;
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
        let place = self.place(admitted)?;
        let (told, begun) = oneshot::channel();
        let (pieces, body) = mpsc::channel(WAITING);
        let capture = RunningCapture {
            questions: self.questions.clone(),
            record: Record::of(&Request::Capture(request.clone()), admitted),
            pieces,
        };
        let visit = visit.clone();
        tokio::spawn(async move {
            capture.run(request, told, visit.gone()).await;
            drop((place, visit));
        });
        begun.await.unwrap_or(Err(Refusal::Ending)).map_err(Problem::refused)?;
        Ok(of(PCAP, stream(body)))
    }

    fn place(&self, admitted: &Admitted<'_>) -> Result<Place, Problem> {
        self.streams.take(admitted.role).ok_or_else(|| {
            let (most, role) = (self.streams.most(admitted.role), admitted.role);
            let text = format!(
                "the {most} places of role {role} for lists and captures are taken; try again later"
            );
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, text)
        })
    }
}

/// A capture from its beginning to its end, which comes whenever the client leaves.
struct RunningCapture {
    questions: mpsc::Sender<Question>,
    record: Record,
    pieces: Pieces,
}

impl RunningCapture {
    async fn run(
        mut self,
        request: CaptureRequest,
        told: oneshot::Sender<Result<(), Refusal>>,
        gone: impl Future<Output = ()>,
    ) {
        let made = begin(request, &self.questions).await;
        self.record.answered(&answer(&made));
        let (outcome, begun) = match made {
            Ok(begun) => (Ok(()), Some(begun)),
            Err(refusal) => (Err(refusal), None),
        };
        // The client may have left.
        let _ = told.send(outcome);
        let Some(begun) = begun else { return };
        tokio::select! {
            // Its end is the client's affair.
            _ = pass_on(&begun, &self.pieces) => {}
            () = gone => {}
        }
        // The owner may have ended.
        let _ = self.questions.send(Question::EndCapture(begun.capture)).await;
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
    let mut clock = Clock::now();
    let mut file = Writer::new(Vec::new())?;
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let piece = std::mem::take(file.get_mut());
        let is_full = piece.len() >= CHUNK;
        if !piece.is_empty() && pieces.send(Ok(piece.into())).await.is_err() {
            return Ok(());
        }
        if let Some(reason) = begun.course.ended() {
            let error = io::Error::other(reason.to_owned());
            // The client may have left.
            let _ = pieces.send(Err(error)).await;
            return Ok(());
        }
        clock.renew();
        tokio::select! {
            biased;
            () = pieces.closed() => return Ok(()),
            () = std::future::ready(()), if is_full => {}
            _ = ticks.tick() => {}
        }
        while file.get_mut().len() < CHUNK
            && let Some(record) = begun.capture.take()
        {
            let written = file.write(&packet(&record, &begun.course, &clock));
            begun.capture.give_back(record);
            written?;
        }
        file.lost(begun.capture.lost(), clock.now_ns())?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dataplane::capture::{Capture, What};

    use super::super::super::server::audit;
    use super::super::super::testing::route;
    use super::*;

    /// The prefixes of a page, and the next one.
    fn page(prefixes: &[&str], limit: usize, next: Option<&str>) -> (usize, Option<String>) {
        let routes = prefixes.iter().map(|prefix| route(prefix)).collect();
        let page = cut(routes, limit, next.map(|next| next.parse().unwrap()));
        (page.routes.len(), page.next)
    }

    /// The owner's answer and the client's departure cross.
    #[test]
    fn a_capture_without_its_client_is_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (questions, mut asked) = mpsc::channel(1);
            let (told, begun) = oneshot::channel();
            let (pieces, body) = mpsc::channel(WAITING);
            let record = Record { client: audit::Client::of_http("x"), change: None };
            let running = RunningCapture { questions, record, pieces };
            let request = CaptureRequest::default();
            tokio::spawn(running.run(request, told, std::future::pending()));
            let Some(Question::Capture(_, to)) = asked.recv().await else { panic!("a capture") };
            drop((begun, body));
            let capture = Arc::new(Capture::new(What::Wire, None, 64));
            assert!(to.send(Ok(Begun { capture, course: Arc::default() })).is_ok());
            assert!(matches!(asked.recv().await, Some(Question::EndCapture(_))));
        });
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
