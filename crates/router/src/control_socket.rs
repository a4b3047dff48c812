//! Control sockets: Click's `ControlSocket`, by which programs read and write handlers.
//!
//! ```text
//!   client -- TCP, Unix --> task: command -- HandlerCall --> API's channel --> owner
//!          <-------------- answer, at most one under way for each client <--+
//! ```
//!
//! The tasks are in the API's thread. Each client has at most one question to the owner under way, a command and its data
//! have bounds, and one that sends no whole command in time, or does not read its answer, is disconnected. So none delays
//! the router or another client.
//!
//! The protocol has no passwords. A client on this machine has to be one of the allowed users by TCP, and may open the
//! file of a Unix socket. A client that speaks HTTP is disconnected: any web page can make a browser send its lines here.

mod protocol;

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcp};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::report::HandlerAnswer;
use api::{Answer, HandlerCall, Request};
use control::config::{ControlSocket, Listen};
use control::gate::Gate;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::handlers::{said, status};
use super::server::{Question, Socket, audit};
use protocol::{Command, Reader};

/// The way to the owner.
type Questions = mpsc::Sender<Question>;

/// Time between two attempts to accept clients after a failure.
const PAUSE: Duration = Duration::from_millis(100);

/// A bound socket; a Unix socket's file is removed with the last copy.
#[derive(Clone)]
enum Listener {
    Tcp(Arc<StdTcp>),
    Unix(Arc<Socket>),
}

/// A socket that is not served yet.
struct Door {
    settings: ControlSocket,
    listener: Listener,
    /// Of a TCP socket.
    gate: Option<Gate>,
}

/// Sockets that are not served yet: those that are new, or have changed.
pub struct Opened(Vec<Door>);

/// The sockets that are served.
#[derive(Default)]
pub struct ControlSockets(Vec<Served>);

struct Served {
    settings: ControlSocket,
    listener: Listener,
    /// Ends the accepting of clients, and the connections.
    task: AbortHandle,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ControlSockets {
    /// Opens what these settings need beside what is served. A socket that stays keeps its clients; one with other
    /// settings takes the listener over.
    ///
    /// # Errors
    /// An address cannot be listened on, or a user is unknown.
    pub fn open(&self, wanted: &[ControlSocket]) -> Result<Opened> {
        let is_new = |settings: &&ControlSocket| {
            !self.0.iter().any(|served| served.settings.is_same(settings))
        };
        let doors = wanted.iter().filter(is_new).map(|settings| self.door(settings));
        doors.collect::<Result<_>>().map(Opened)
    }

    fn door(&self, settings: &ControlSocket) -> Result<Door> {
        let same = self.0.iter().find(|served| served.settings.listen == settings.listen);
        let listener = match same {
            Some(served) => served.listener.clone(),
            None => bind(settings)?,
        };
        let gate = match &listener {
            Listener::Tcp(_) => Some(Gate::open("control_socket", &settings.users, None)?),
            Listener::Unix(_) => None,
        };
        Ok(Door { settings: settings.clone(), listener, gate })
    }

    /// Serves the sockets of these settings from now on, of which those are opened that were not served.
    pub fn serve(
        &mut self,
        wanted: &[ControlSocket],
        Opened(doors): Opened,
        (runtime, questions): (&Handle, &Questions),
    ) {
        self.0.retain(|served| wanted.iter().any(|settings| settings.is_same(&served.settings)));
        for Door { settings, listener, gate } in doors {
            let (copy, shared) = (listener.clone(), Arc::new(settings.clone()));
            let accept = accept(copy, shared, gate, questions.clone());
            let task = runtime.spawn(accept).abort_handle();
            self.0.push(Served { settings, listener, task });
        }
    }
}

fn bind(settings: &ControlSocket) -> Result<Listener> {
    let ControlSocket { name, listen, .. } = settings;
    let what = || format!("control_socket \"{name}\"");
    let listener = match listen {
        Listen::Unix(path) => {
            Listener::Unix(Arc::new(Socket::bind(path, "unix", None).with_context(what)?))
        }
        Listen::Tcp(address) => {
            let listener = StdTcp::bind(address).with_context(|| {
                format!("{}: {address}: cannot listen; choose another address", what())
            })?;
            listener.set_nonblocking(true)?;
            if !address.ip().is_loopback() {
                tracing::warn!(
                    "{} {address}: anybody who reaches this address can change the router, without a password \
                     and unencrypted; keep it within a management network",
                    what()
                );
            }
            Listener::Tcp(Arc::new(listener))
        }
    };
    tracing::info!("{}: listening on {listen}", what());
    Ok(listener)
}

/// Accepts clients for ever. Their tasks end with this one.
async fn accept(
    listener: Listener,
    settings: Arc<ControlSocket>,
    gate: Option<Gate>,
    questions: Questions,
) {
    let name = settings.name.clone();
    let places = Arc::new(Semaphore::new(settings.clients));
    let entrance = Entrance { settings, questions, places, clients: JoinSet::new() };
    let ended = match (listener, gate) {
        (Listener::Tcp(socket), Some(gate)) => entrance.by_tcp(&socket, gate).await,
        (Listener::Unix(socket), _) => entrance.by_unix(&socket).await,
        (Listener::Tcp(_), None) => Ok(()),
    };
    if let Err(error) = ended {
        tracing::error!("control_socket \"{name}\": {error}");
    }
}

/// The place where clients are accepted.
struct Entrance {
    settings: Arc<ControlSocket>,
    questions: Questions,
    places: Arc<Semaphore>,
    clients: JoinSet<()>,
}

impl Entrance {
    async fn by_tcp(mut self, socket: &StdTcp, mut gate: Gate) -> io::Result<()> {
        let listener = TcpListener::from_std(socket.try_clone()?)?;
        loop {
            let Some((stream, peer)) = self.next(listener.accept().await).await else { continue };
            let entered = admit(&mut gate, &stream, peer).and_then(|()| self.place());
            match entered {
                Ok(place) => self.enter(stream, peer.to_string(), place),
                // A new connection's buffer has room for this.
                Err(reason) => _ = stream.try_write(&refusal(&reason)),
            }
        }
    }

    async fn by_unix(mut self, socket: &Socket) -> io::Result<()> {
        let listener = UnixListener::from_std(socket.listener()?)?;
        loop {
            let Some((stream, _)) = self.next(listener.accept().await).await else { continue };
            match self.place() {
                Ok(place) => {
                    let peer = audit::process(&stream);
                    self.enter(stream, peer, place);
                }
                Err(reason) => _ = stream.try_write(&refusal(&reason)),
            }
        }
    }

    /// A client that was accepted; forgets those that have left.
    async fn next<T>(&mut self, accepted: io::Result<T>) -> Option<T> {
        while self.clients.try_join_next().is_some() {}
        match accepted {
            Ok(client) => Some(client),
            Err(error) => {
                tracing::warn!("control_socket \"{}\": {error}", self.settings.name);
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    fn place(&self) -> Result<OwnedSemaphorePermit, String> {
        let place = self.places.clone().try_acquire_owned();
        place.map_err(|_| format!("{} clients are connected; try later", self.settings.clients))
    }

    fn enter(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Send + 'static,
        peer: String,
        place: OwnedSemaphorePermit,
    ) {
        let (settings, questions) = (self.settings.clone(), self.questions.clone());
        let client = Client { peer, settings, questions };
        self.clients.spawn(async move {
            client.converse(stream).await;
            drop(place);
        });
    }
}

/// The reason of a refusal is for the client and the log.
fn admit(gate: &mut Gate, stream: &tokio::net::TcpStream, peer: SocketAddr) -> Result<(), String> {
    let local = stream.local_addr().map_err(|error| error.to_string());
    let admitted =
        local.and_then(|local| gate.admit(local, peer).map_err(|refusal| refusal.to_string()));
    admitted.inspect_err(|reason| gate.log(peer, reason))
}

/// The lines for a client that is not served.
fn refusal(reason: &str) -> Vec<u8> {
    let mut text = protocol::GREETING.to_vec();
    text.extend(protocol::written(&said(status::PERMISSION, reason)));
    text
}

/// A client.
struct Client {
    /// Where it is, or which process.
    peer: String,
    settings: Arc<ControlSocket>,
    questions: Questions,
}

impl Client {
    async fn converse(self, stream: impl AsyncRead + AsyncWrite) {
        let ControlSocket { name, verbose, .. } = &*self.settings;
        if *verbose {
            tracing::info!("control_socket \"{name}\": {} connected", self.peer);
        }
        let end = self.answer_all(stream).await;
        if *verbose {
            let why = end.map_or_else(|error| error.to_string(), str::to_owned);
            tracing::info!("control_socket \"{name}\": {} {why}", self.peer);
        }
    }

    /// Answers commands until the client leaves; returns the reason.
    async fn answer_all(&self, stream: impl AsyncRead + AsyncWrite) -> io::Result<&'static str> {
        let (read, mut write) = tokio::io::split(stream);
        let mut reader = Reader::new(read);
        let idle = self.settings.idle;
        send(&mut write, idle, protocol::GREETING).await?;
        loop {
            let Ok(command) = tokio::time::timeout(idle, reader.command()).await else {
                return Ok("was idle for too long");
            };
            let (answer, last) = match command? {
                Command::End => return Ok("has left"),
                Command::Http => return Ok("speaks HTTP"),
                Command::Nothing => continue,
                Command::Help => (protocol::HELP.to_vec(), None),
                Command::Quit(answer) => (protocol::written(&answer), Some("has left")),
                Command::Wrong(answer) => (protocol::written(&answer), None),
                Command::TooLong(answer) => (protocol::written(&answer), Some("sends too much")),
                Command::Call(call) => (protocol::written(&self.call(call).await), None),
            };
            send(&mut write, idle, &answer).await?;
            if let Some(why) = last {
                return Ok(why);
            }
        }
    }

    async fn call(&self, call: HandlerCall) -> HandlerAnswer {
        let ControlSocket { name, read_only, .. } = &*self.settings;
        let handler = match &call {
            HandlerCall::Write { handler, .. } | HandlerCall::CheckWrite { handler } => {
                Some(handler)
            }
            HandlerCall::Read { .. } | HandlerCall::CheckRead { .. } => None,
        };
        if let Some(handler) = handler.filter(|_| *read_only) {
            // A handler that there is not, or that nobody can write, is Click's first answer.
            let check = HandlerCall::CheckWrite { handler: handler.clone() };
            let checked = self.ask(Request::Handler(check)).await;
            if checked.code == status::OK {
                let message = format!("Permission denied for '{handler}'");
                return said(status::PERMISSION, message);
            }
            return checked;
        }
        let request = Request::Handler(call);
        let change = audit::change(&request);
        let answer = self.ask(request).await;
        if let Some(change) = change {
            let result = match answer.code {
                status::OK => Answer::Ok(serde_json::Value::Null),
                _ => Answer::Error(answer.messages.join(" ")),
            };
            audit::Client::of_socket(name, &self.peer).record(&change, &result);
        }
        answer
    }

    /// Asks the owner.
    async fn ask(&self, request: Request) -> HandlerAnswer {
        let gone = || said(status::UNSPECIFIED, "the router is shutting down");
        let (answer, wait) = oneshot::channel();
        if self.questions.send(Question::Request(request, answer)).await.is_err() {
            return gone();
        }
        match wait.await {
            Ok(Answer::Ok(value)) => serde_json::from_value(value).unwrap_or_else(|_| gone()),
            Ok(Answer::Error(reason)) => said(status::UNSPECIFIED, reason),
            Err(_) => gone(),
        }
    }
}

async fn send(
    write: &mut (impl AsyncWrite + Unpin),
    limit: Duration,
    bytes: &[u8],
) -> io::Result<()> {
    let late = |_| io::Error::other("does not read");
    tokio::time::timeout(limit, write.write_all(bytes)).await.map_err(late)?
}
