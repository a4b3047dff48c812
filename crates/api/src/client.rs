//! Client of a running router's API.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;

use super::capture::CaptureRequest;
use super::query::Query;
use super::report::Route;
use super::{Answer, Request, RouteFilter, Show};

/// Sends one request to the router at this socket and returns its report.
pub fn ask(socket: &Path, request: &Request) -> Result<Value> {
    receive(&mut send(socket, request)?)
}

/// Sends a query to the router at this socket and returns the answer.
///
/// # Errors
/// The router cannot be reached, or its answer is not one of this version.
pub fn query<A: DeserializeOwned>(socket: &Path, query: &Query<A>, question: Show) -> Result<A> {
    read(ask(socket, &query.request(question))?)
}

/// A connection for several requests, one after the other.
pub struct Connection(BufReader<UnixStream>);

impl Connection {
    /// Connects to the router at this socket, which has so much time for each answer.
    ///
    /// # Errors
    /// No router can be reached there.
    pub fn open(socket: &Path, patience: Duration) -> Result<Self> {
        let stream = connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self(BufReader::with_capacity(1 << 16, stream)))
    }

    /// Sends a request and returns its report. After an error the connection is of no use any more.
    ///
    /// # Errors
    /// The router refuses it, does not answer in time, or has closed the connection.
    pub fn ask(&mut self, request: &Request) -> Result<Value> {
        write(self.0.get_mut(), request)?;
        receive(&mut self.0)
    }

    /// [`query`] over this connection.
    ///
    /// # Errors
    /// As of [`Self::ask`]; or the answer is not one of this version.
    pub fn query<A: DeserializeOwned>(&mut self, query: &Query<A>, question: Show) -> Result<A> {
        read(self.ask(&query.request(question))?)
    }
}

fn read<A: DeserializeOwned>(answer: Value) -> Result<A> {
    serde_json::from_value(answer).context("the answer is not one of this version")
}

/// Reads the answer to a request.
fn receive(answers: &mut impl BufRead) -> Result<Value> {
    let mut answer = String::new();
    answers.read_line(&mut answer).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => anyhow!("the router does not answer"),
        _ => Error::from(error).context("the router closed the connection"),
    })?;
    if answer.is_empty() {
        bail!("the router closed the connection without an answer; is it shutting down?");
    }
    match serde_json::from_str(&answer).context("the answer is not one of this version")? {
        Answer::Ok(report) => Ok(report),
        Answer::Error(message) => bail!("{message}"),
    }
}

/// Requests routes and passes each to `each` as it arrives; `Ok(false)` from it ends the reading.
pub fn ask_routes(
    socket: &Path,
    filter: RouteFilter,
    mut each: impl FnMut(Route) -> Result<bool>,
) -> Result<()> {
    let answer = send(socket, &Request::Show(Show::Routes(filter)))?;
    let mut failed = None;
    let mut reader = serde_json::Deserializer::from_reader(answer);
    let seed = Whole(Each(|route| match each(route) {
        Ok(true) => true,
        Ok(false) => {
            failed = Some(Ok(()));
            false
        }
        Err(error) => {
            failed = Some(Err(error));
            false
        }
    }));
    let read = seed.deserialize(&mut reader);
    match (failed, read) {
        (Some(outcome), _) => outcome,
        (None, Ok(None)) => Ok(()),
        (None, Ok(Some(message))) => bail!("{message}"),
        (None, Err(error)) => Err(error).context("the answer is incomplete; is the router ending?"),
    }
}

/// Begins a capture on a connection of [`connect`]; returns the reader of its [`Line`](super::capture::Line)s. Closing
/// the connection's other direction ends the capture.
pub fn capture(mut stream: UnixStream, request: CaptureRequest) -> Result<BufReader<UnixStream>> {
    write(&mut stream, &Request::Capture(request))?;
    Ok(reader(stream))
}

/// Connects and sends a request; returns the reader of the answer.
fn send(socket: &Path, request: &Request) -> Result<BufReader<UnixStream>> {
    let mut stream = connect(socket)?;
    write(&mut stream, request)?;
    Ok(reader(stream))
}

fn reader(stream: UnixStream) -> BufReader<UnixStream> {
    BufReader::with_capacity(1 << 16, stream)
}

fn write(stream: &mut UnixStream, request: &Request) -> Result<()> {
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).context("the router closed the connection")
}

/// Connects to the router of this socket.
pub fn connect(socket: &Path) -> Result<UnixStream> {
    UnixStream::connect(socket).map_err(|error| {
        let shown = socket.display();
        let what = match error.kind() {
            ErrorKind::PermissionDenied => format!(
                "socket {shown}: permission denied: run as root (sudo)"
            ),
            _ => format!(
                "socket {shown}: cannot reach a router; is `turnpike run` up, and with the same --socket?"
            ),
        };
        Error::from(error).context(what)
    })
}

/// Parser of `{"ok":[ROUTE,…]}` or `{"error":"…"}`, which returns the error's message.
struct Whole<F>(Each<F>);

/// Parser of `[ROUTE,…]` that passes each route to the function until it returns false.
struct Each<F>(F);

impl<'de, F: FnMut(Route) -> bool> DeserializeSeed<'de> for Whole<F> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Route) -> bool> Visitor<'de> for Whole<F> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer with routes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        match map.next_key::<String>()?.as_deref() {
            Some("ok") => map.next_value_seed(self.0).map(|()| None),
            Some("error") => map.next_value().map(Some),
            other => Err(A::Error::custom(format!("{other:?} instead of an answer"))),
        }
    }
}

impl<'de, F: FnMut(Route) -> bool> DeserializeSeed<'de> for Each<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Route) -> bool> Visitor<'de> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("routes")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut routes: A) -> Result<(), A::Error> {
        while let Some(route) = routes.next_element()? {
            if !(self.0)(route) {
                return Err(A::Error::custom("the reader has seen enough"));
            }
        }
        Ok(())
    }
}
