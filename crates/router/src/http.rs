//! The API over HTTP: each request becomes a question to the owner, as on the control socket.
//!
//! ```text
//!   client -- Unix socket, TCP --> thread "web": guard -> identify -> Operation -> role -> body -> Request
//!          <-- JSON, lines, pcapng ------------------------------ answer <-- owner <-- API's channel --+
//! ```
//!
//! The table of operations is `api::http`. Routes are asked for page by page, so that the owner answers others in between;
//! a capture's packets come from a queue that forwarders fill. A client that leaves ends its trace, capture or list. Any
//! other request goes on without it, in a task of its own: a change is recorded, and the request keeps its place.
//!
//! | file | concern |
//! |---|---|
//! | `http/guard.rs` | requests that a browser sends for a foreign page, or that are ambiguous |
//! | `http/identity.rs` | the client's role: user of a socket or of this machine, certificate, or token |
//! | `http/body.rs` | bodies and parameters |
//! | `http/places.rs` | requests at the same time |
//! | `http/dashboard.rs` | files of the dashboard, a client of the API in a browser |
//! | `http/response.rs` | answers, errors (RFC 9457) |
//! | `http/streams.rs` | routes and captures |

mod body;
mod dashboard;
mod guard;
mod identity;
mod places;
mod response;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::http::{DOCUMENT, Form, JSON, Missing, Operation, Role, SESSION, Session, Values};
use api::{Answer, Request};
use control::config::{self, Strictness};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use web::axum::body::Body;
use web::axum::extract::State;
use web::axum::http::request::Parts;
use web::axum::http::{self, Method, StatusCode, header};
use web::axum::response::{IntoResponse, Response};
use web::axum::{Extension, Router};
use web::{Bytes, Limits, Server, Visit};

use super::server::access::Roles;
use super::server::{Question, Refusal, ask, audit, refusal};
use super::web_listeners::{Renewal, WebListeners};
use identity::{Door, Who};
use places::{Place, Places};
use response::{Problem, whole};

/// Requests that are with the owner, or whose answers are being made: of role `read`, up to `operate`, and all.
const RUNNING: [usize; 3] = [4, 6, 8];

/// Lists and captures at the same time, likewise.
const STREAMS: [usize; 3] = [4, 6, 8];

/// Large bodies at the same time.
const LARGE_BODIES: usize = 2;

/// Time for which the answer to a wrong token is held back, on a connection that has a place meanwhile.
const GUESS: Duration = Duration::from_millis(500);

/// Time limit for the answer to a query.
const PATIENCE: Duration = Duration::from_secs(60);

/// Listeners that are not yet served, or other files for those that are.
pub enum Opened {
    /// Listeners.
    Listeners(Box<Entrance>),
    /// Files.
    Renewal(Renewal),
}

/// Listeners, and their clients.
pub struct Entrance {
    listeners: WebListeners,
    settings: config::Api,
    door: Door,
}

impl Opened {
    /// Opens listeners with these settings, beside those of the service that there is.
    ///
    /// # Errors
    /// A path or an address cannot be listened on, there is no such group, or the file of tokens or one of TLS is not
    /// right.
    pub fn open(
        settings: &config::Api,
        strictness: Strictness,
        now: Option<&Service>,
    ) -> Result<Self> {
        let config::Api { at, token_file, dashboard } = settings;
        let like = |now: &&Service| {
            (&now.settings.token_file, &now.settings.dashboard) == (token_file, dashboard)
        };
        let renewal = now.filter(like).map(|now| now.listeners.renew(at, strictness));
        if let Some(renewal) = renewal.transpose()?.flatten() {
            return Ok(Self::Renewal(renewal));
        }
        let now = now.map(|now| &now.listeners);
        let listeners = WebListeners::open("api", at, strictness, now)?;
        let door = Door::open(&listeners, token_file.clone())?;
        Ok(Self::Listeners(Box::new(Entrance { listeners, settings: settings.clone(), door })))
    }
}

/// The service that runs; dropping it ends it, and removes the socket's file unless another service has it.
pub struct Service {
    listeners: WebListeners,
    settings: config::Api,
    server: Server,
}

impl Service {
    /// Serves clients of the listeners, whose requests go to the owner.
    ///
    /// # Errors
    /// There are too many threads or descriptors, or the socket's file is not the router's any more.
    pub fn serve(
        Entrance { listeners, settings, door }: Entrance,
        questions: mpsc::Sender<Question>,
        roles: Arc<Roles>,
    ) -> Result<Self> {
        let document = api::http::openapi::document(env!("CARGO_PKG_VERSION"));
        let api = Api {
            questions,
            roles,
            service: guard::Service { listen: listeners.address(), dashboard: settings.dashboard },
            door,
            document: serde_json::to_vec(&document)?.into(),
            running: Places::new(RUNNING),
            streams: Places::new(STREAMS),
            large: Semaphore::new(LARGE_BODIES),
        };
        let pages = Router::new().fallback(respond).with_state(Arc::new(api));
        let server = Server::start(listeners.listeners()?, pages, Limits::LONG)?;
        Ok(Self { listeners, settings, server })
    }

    /// Uses other files for the next connections.
    pub fn renew(&self, renewal: &Renewal) {
        self.listeners.use_renewed(renewal);
    }

    /// Ends the service behind the answers that are being made: one of them may be that of the change that ends it.
    pub fn retire(self) {
        self.server.retire();
    }
}

/// State that all requests need.
struct Api {
    questions: mpsc::Sender<Question>,
    roles: Arc<Roles>,
    service: guard::Service,
    door: Door,
    document: Bytes,
    running: Places,
    streams: Places,
    large: Semaphore,
}

async fn respond(
    State(api): State<Arc<Api>>,
    Extension(visit): Extension<Visit>,
    request: http::Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    api.respond(&visit, &parts, body).await.unwrap_or_else(IntoResponse::into_response)
}

/// A request whose client may make it.
struct Admitted<'a> {
    operation: &'static Operation,
    /// The values of the path's parameters.
    values: Values,
    who: &'a Who,
    role: Role,
}

/// A request on its way to the owner and back, whether its client waits for the answer or not.
struct Errand {
    questions: mpsc::Sender<Question>,
    record: Record,
    visit: Visit,
    _place: Place,
}

impl Errand {
    async fn run(
        mut self,
        request: Request,
        mut to: oneshot::Sender<Result<serde_json::Value, Refusal>>,
    ) {
        let may_end = matches!(request, Request::Trace(_));
        let outcome = tokio::select! {
            outcome = ask(request, &self.questions) => outcome,
            () = left(&mut to, &self.visit), if may_end => Err(Refusal::Because(LEFT.to_owned())),
        };
        if self.record.is_due() {
            self.record.answered(&refusal::answer(outcome.clone()));
        }
        // The client may have left.
        let _ = to.send(outcome);
    }
}

/// Returns once the client has left.
async fn left<T>(to: &mut oneshot::Sender<T>, visit: &Visit) {
    tokio::select! {
        () = to.closed() => {}
        () = visit.gone() => {}
    }
}

/// The outcome of a trace without its client.
const LEFT: &str = "ended by its client";

/// A line of the audit log that is due, for a change.
struct Record {
    client: audit::Client,
    change: Option<String>,
}

impl Record {
    fn of(request: &Request, admitted: &Admitted<'_>) -> Self {
        Self { client: admitted.who.client(), change: audit::change(request) }
    }

    /// Returns true if there is a line to write.
    fn is_due(&self) -> bool {
        self.change.is_some()
    }

    fn answered(&mut self, answer: &Answer) {
        self.change.take().iter().for_each(|change| self.client.record(change, answer));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // The service ends at once with the router.
        self.answered(&Answer::Error("not known: the service has ended".to_owned()));
    }
}

impl Api {
    async fn respond(&self, visit: &Visit, parts: &Parts, body: Body) -> Result<Response, Problem> {
        if let Some(file) = dashboard::file(parts).filter(|_| self.service.dashboard) {
            guard::check_page(parts, self.service, visit.end.tls())?;
            return Ok(file.answer(&parts.headers));
        }
        guard::check(parts, self.service, visit.end.tls())?;
        let who = self.identify(visit, parts).await?;
        if let Some(role) = who.role {
            visit.know(role as u8 + 1);
        }
        match parts.uri.path() {
            DOCUMENT => return self.describe(parts, &who, || Ok(self.document.clone())),
            SESSION => return self.describe(parts, &who, || session(&who)),
            _ => {}
        }
        let admitted = self.admit(parts, &who)?;
        let (request, page) = self.read(&admitted, parts, body).await?;
        match (admitted.operation.form, request) {
            (Form::Pages, Request::Show(api::Show::Routes(filter))) => {
                self.routes((filter, page), &admitted, parts, visit).await
            }
            (Form::Capture, Request::Capture(request)) => {
                self.capture(request, &admitted, visit).await
            }
            (_, request) => self.answer(request, &admitted, visit).await,
        }
    }

    async fn identify(&self, visit: &Visit, parts: &Parts) -> Result<Who, Problem> {
        let who = self.door.identify(&visit.end, &parts.headers, &self.roles);
        if who.is_err() && parts.headers.contains_key(header::AUTHORIZATION) {
            sleep(GUESS).await;
        }
        who
    }

    /// Answers of the service itself: the OpenAPI document, the client's role.
    fn describe(
        &self,
        parts: &Parts,
        who: &Who,
        text: impl Fn() -> Result<Bytes, Problem>,
    ) -> Result<Response, Problem> {
        if parts.method != Method::GET {
            return Err(Problem::method(&["GET"]));
        }
        if who.role < Some(Role::Read) {
            let text = format!("{} has no role; turnpike.access gives them", who.name);
            return Err(Problem::new(StatusCode::FORBIDDEN, text));
        }
        Ok(whole(JSON, text()?))
    }

    fn admit<'a>(&self, parts: &Parts, who: &'a Who) -> Result<Admitted<'a>, Problem> {
        let found = Operation::find(parts.method.as_str(), parts.uri.path());
        let (operation, values) = found.map_err(|missing| match missing {
            Missing::Path => {
                let text = format!("{}: no such resource; {DOCUMENT} lists them", parts.uri.path());
                Problem::new(StatusCode::NOT_FOUND, text)
            }
            Missing::Method(known) => Problem::method(&known),
        })?;
        let role =
            self.roles.admit(operation, who.role, || who.name.clone()).map_err(|reason| {
                self.roles.log(&who.client(), operation, None, &reason);
                Problem::new(StatusCode::FORBIDDEN, reason)
            })?;
        Ok(Admitted { operation, values, who, role })
    }

    /// Asks the owner, and records a change.
    async fn answer(
        &self,
        request: Request,
        admitted: &Admitted<'_>,
        visit: &Visit,
    ) -> Result<Response, Problem> {
        let errand = Errand {
            questions: self.questions.clone(),
            record: Record::of(&request, admitted),
            visit: visit.clone(),
            _place: in_time(self.running.wait(admitted.role)).await?,
        };
        let (to, answer) = oneshot::channel();
        tokio::spawn(errand.run(request, to));
        let answer = match admitted.operation.role {
            Role::Read => in_time(answer).await?,
            // It is made, or not, and takes as long as it takes.
            _ => answer.await,
        };
        let report = answer.unwrap_or(Err(Refusal::Ending)).map_err(Problem::refused)?;
        let text = serde_json::to_vec(&report);
        Ok(whole(JSON, text.map_err(Problem::defect)?.into()))
    }
}

/// The client's own name and role.
fn session(who: &Who) -> Result<Bytes, Problem> {
    let role = who.role.map(|role| role.name().to_owned()).unwrap_or_default();
    let session = Session { client: who.name.clone(), role };
    serde_json::to_vec(&session).map(Bytes::from).map_err(Problem::defect)
}

/// Waits for the answer to a query.
async fn in_time<T>(answer: impl Future<Output = T>) -> Result<T, Problem> {
    timeout(PATIENCE, answer).await.map_err(|_| {
        let text = format!("the router does not answer for {} s", PATIENCE.as_secs());
        Problem::new(StatusCode::GATEWAY_TIMEOUT, text)
    })
}

impl Problem {
    /// A request that the router refuses.
    fn refused(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::Ending => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Because(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, refusal.to_string())
    }

    /// A method that the resource does not have.
    fn method(known: &[&'static str]) -> Self {
        let known = known.join(", ");
        let text = format!("this resource has no such method; it has: {known}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, text).with(header::ALLOW, &known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_router_s_end_and_a_refused_request_have_other_statuses() {
        let status = |refusal| Problem::refused(refusal).into_response().status();
        assert_eq!(status(Refusal::Ending), StatusCode::SERVICE_UNAVAILABLE);
        // Whatever the owner says.
        let because = Refusal::Because(Refusal::Ending.to_string());
        assert_eq!(status(because), StatusCode::UNPROCESSABLE_ENTITY);
    }
}
