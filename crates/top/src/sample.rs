//! The router's answers at one moment.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use api::client::Connection;
use api::query::{self, Query};
use api::report::{Counters, Flows, Forwarders, Interface, Overview, Port, Status, Vrf};
use api::{FlowSelection, Show};
use serde::de::DeserializeOwned;

/// Time in which the router has to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Flows that are asked for: those with the most bytes.
pub const MOST_FLOWS: usize = 200;

/// An answer and its time, which is comparable with that of others of its kind.
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

/// Answers, all of one moment; flows of another.
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

impl Sample {
    fn new(overview: Overview, flows: Option<Timed<Flows>>) -> Self {
        let Overview { at_us, status, counters, forwarders, ports, interfaces, vrfs } = overview;
        let at = Duration::from_micros(at_us);
        Self {
            status,
            counters: Timed { at, of: counters },
            forwarders: Timed { at, of: forwarders },
            ports: Timed { at, of: ports },
            interfaces: interfaces.map(|of| Timed { at, of }),
            flows,
            vrfs: vrfs.map(|of| Timed { at, of }),
        }
    }
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

    fn ask_all(&mut self, Wanted { interfaces, flows, vrfs }: Wanted) -> Result<Sample> {
        let overview = self.ask(&query::OVERVIEW, Show::Overview { interfaces, vrfs })?;
        let of = FlowSelection::default();
        let flows = flows.then(|| {
            let of = self.ask(&query::FLOWS, Show::Flows { of, most: MOST_FLOWS })?;
            Ok::<_, Error>(Timed { at: self.began.elapsed(), of })
        });
        Ok(Sample::new(overview, flows.transpose()?))
    }

    fn ask<A: DeserializeOwned>(&mut self, query: &Query<A>, question: Show) -> Result<A> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.socket, PATIENCE)?),
        };
        connection.query(query, question)
    }
}
