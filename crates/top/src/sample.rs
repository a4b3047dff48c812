//! The router's answers at one moment.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::client::Connection;
use api::report::{Counters, Flows, Forwarders, Interface, Port, Status, Vrf};
use api::{FlowSelection, Request, Show};
use serde::de::DeserializeOwned;

/// Time in which the router has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flows that are asked for: those with the most bytes.
pub const MOST_FLOWS: usize = 200;

/// An answer and its time since the first question.
#[derive(Clone, Debug, Default)]
pub struct Timed<T> {
    /// The time.
    pub at: Duration,
    /// The answer.
    pub of: T,
}

/// Questions that are not asked every time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Interfaces that are not ports.
    pub interfaces: bool,
    /// Flows.
    pub flows: bool,
    /// VRFs and their routes.
    pub vrfs: bool,
}

/// Answers, all of nearly the same moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The router.
    pub status: Status,
    /// Its packets.
    pub counters: Timed<Counters>,
    /// Its forwarders.
    pub forwarders: Timed<Forwarders>,
    /// Its ports.
    pub ports: Timed<Vec<Port>>,
    /// Its interfaces.
    pub interfaces: Option<Timed<Vec<Interface>>>,
    /// The largest flows.
    pub flows: Option<Timed<Flows>>,
    /// Its VRFs.
    pub vrfs: Option<Timed<Vec<Vrf>>>,
}

/// The connection to a router; a lost one is made anew.
pub struct Source {
    socket: PathBuf,
    began: Instant,
    connection: Option<Connection>,
}

impl Source {
    /// A source of samples of the router at this socket.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), began: Instant::now(), connection: None }
    }

    /// Asks for a sample. `true` with it: the connection is new, so the router may be another.
    ///
    /// # Errors
    /// The router cannot be reached, or does not answer.
    pub fn sample(&mut self, wanted: Wanted) -> Result<(Sample, bool)> {
        let is_new = self.connection.is_none();
        let sample = self.ask_all(wanted);
        if sample.is_err() {
            self.connection = None;
        }
        Ok((sample?, is_new))
    }

    fn ask_all(&mut self, wanted: Wanted) -> Result<Sample> {
        let flows = Show::Flows { of: FlowSelection::default(), most: MOST_FLOWS };
        Ok(Sample {
            status: self.ask::<Status>(Show::Status)?.of,
            counters: self.ask(Show::Counters)?,
            forwarders: self.ask(Show::Forwarders)?,
            ports: self.ask(Show::Ports)?,
            interfaces: wanted.interfaces.then(|| self.ask(Show::Interfaces)).transpose()?,
            flows: wanted.flows.then(|| self.ask(flows)).transpose()?,
            vrfs: wanted.vrfs.then(|| self.ask(Show::Vrfs)).transpose()?,
        })
    }

    fn ask<T: DeserializeOwned>(&mut self, show: Show) -> Result<Timed<T>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.socket, PATIENCE)?),
        };
        let report = connection.ask(&Request::Show(show))?;
        let of = serde_json::from_value(report).context("the answer is not one of this version")?;
        Ok(Timed { at: self.began.elapsed(), of })
    }
}
