//! FRR's zebra as a source of routes, by the FPM protocol of its module `dplane_fpm_nl`.
//!
//! ```text
//!   zebra -M dplane_fpm_nl --tcp--> frame.rs -> netlink messages -> session.rs -> events
//! ```
//!
//! # What zebra 8.4 sends, and when (`zebra/dplane_fpm_nl.c`)
//!
//! It connects, and tries again every 3 seconds while it cannot. Once connected it replays
//! everything: nexthop groups, then all selected routes of all tables; changes come in between. It
//! says nothing when it is done, and pauses for a second whenever its buffer is full. A changed
//! route is a deletion and an addition in one frame. Every route has metric 20, and one prefix has
//! one route. With `fpm use-next-hop-groups`, the default, routes name nexthop objects; without,
//! they tell their ways themselves.
//!
//! # When zebra goes away
//!
//! Its routes are used on for [`FpmConfig::keep`]. When it is back, what it has not told again goes
//! as soon as the replay is over: after 3 seconds of silence, if nearly all routes have been told.
//! If far fewer have, it was zebra that began anew and not only its connection, its protocols are
//! still learning, and the rest is used on for `keep` from the connection.
//!
//! A second connection from the same host takes the place of the first, which may be that of a zebra
//! that died without a word; one from another host is refused as long as there is a first.

mod frame;
mod session;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::netlink::{Error, Interfaces, SourceEvent, SourceState, SourceStatus, batches, thread};
use frame::{Broken, Frames};
use session::{Phase, Session};

/// Silence after which zebra is asked whether it is there, how often, and how many times.
const KEEPALIVE_IDLE_S: u32 = 15;
const KEEPALIVE_INTERVAL_S: u32 = 5;
const KEEPALIVE_PROBES: u32 = 3;

/// Where zebra is listened for.
#[derive(Clone, Debug)]
pub struct FpmConfig {
    /// The network namespace's file, the one that zebra runs in; `None`: the caller's own.
    pub netns: Option<PathBuf>,
    /// Address and port.
    pub listen: SocketAddr,
    /// How long zebra's routes are used after its connection is lost, if it does not come back.
    pub keep: Duration,
}

/// The thread that listens for zebra. It ends when this is dropped.
#[derive(Debug)]
pub struct FpmSource {
    status: watch::Receiver<SourceStatus>,
    local: SocketAddr,
}

impl FpmSource {
    /// How it goes.
    pub fn status(&self) -> SourceStatus {
        self.status.borrow().clone()
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Starts to listen for zebra. `interfaces` says which interface is which port: that of the
/// [`crate::netlink::KernelSource`] of the same namespace.
pub fn spawn(
    config: FpmConfig,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    events: mpsc::Sender<Vec<SourceEvent>>,
) -> Result<FpmSource, Error> {
    let (status_out, status) = watch::channel(SourceStatus::default());
    let FpmConfig { netns, listen, keep } = config;
    let local = thread::start("fpm", netns, move || async move {
        let bound = listen_on(listen).await;
        let (listener, local) = bound.map_err(|error| {
            let what = format!("fpm: cannot listen on {listen}");
            Error::Socket { what, error }
        })?;
        let session = Session::new(keep);
        let status = SourceStatus::default();
        let worker =
            Worker { session, interfaces, events, status_out, status, peer: None, announced: 0 };
        Ok((worker.run(listener), local))
    })?;
    Ok(FpmSource { status, local })
}

/// What a zebra that sends these bytes comes to: for tests, and to look into captures.
pub fn replay(bytes: &[u8], interfaces: &Interfaces) -> Vec<SourceEvent> {
    let mut session = Session::new(Duration::ZERO);
    let now = Instant::now();
    session.set_interfaces(interfaces);
    session.connected(now);
    let mut frames = Frames::default();
    frames.extend(bytes);
    while let Ok(Some(frame)) = frames.next() {
        session.take(frame, now);
    }
    session.routes.take_events()
}

async fn listen_on(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let local = listener.local_addr()?;
    Ok((listener, local))
}

/// The thread's task.
struct Worker {
    session: Session,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    events: mpsc::Sender<Vec<SourceEvent>>,
    status_out: watch::Sender<SourceStatus>,
    status: SourceStatus,
    peer: Option<(TcpStream, SocketAddr, Frames)>,
    /// Replays that the status has told of.
    announced: u64,
}

/// Nobody listens to the events any more.
struct Unwanted;

impl Worker {
    async fn run(mut self, listener: TcpListener) {
        // Without interfaces no route leads anywhere. The sender is gone if the router ends.
        if self.interfaces.wait_for(|known| !known.by_index.is_empty()).await.is_err() {
            return;
        }
        let known = self.interfaces.borrow_and_update().clone();
        self.session.set_interfaces(&known);
        while self.turn(&listener).await.is_ok() {}
    }

    /// Waits for one thing to happen, and does what follows.
    async fn turn(&mut self, listener: &TcpListener) -> Result<(), Unwanted> {
        let deadline = self.session.deadline();
        let mut buffer = [0; 1 << 16];
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => self.accept(stream, peer),
                Err(error) => {
                    self.session.errors += 1;
                    tracing::warn!("fpm: a connection could not be accepted: {error}");
                    // Out of descriptors, perhaps; others may free some.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            read = read(&mut self.peer, &mut buffer) => match read {
                Ok(0) => self.closed(),
                Ok(length) => self.take(&buffer[..length]),
                Err(error) => self.lost(&error.to_string()),
            },
            changed = self.interfaces.changed() => {
                changed.map_err(|_| Unwanted)?;
                let known = self.interfaces.borrow_and_update().clone();
                self.session.set_interfaces(&known);
            }
            () = self.events.closed() => return Err(Unwanted),
            () = at(deadline) => self.session.tick(Instant::now()),
        }
        self.publish();
        for batch in batches(self.session.routes.take_events()) {
            self.events.send(batch).await.map_err(|_| Unwanted)?;
        }
        Ok(())
    }

    fn accept(&mut self, stream: TcpStream, peer: SocketAddr) {
        if let Some((_, other, _)) = &self.peer {
            if other.ip() != peer.ip() {
                self.session.errors += 1;
                tracing::warn!("fpm: connection from {peer} refused: {other} is connected");
                return;
            }
            tracing::info!("fpm: {peer} takes the place of {other}");
            self.session.disconnected(Instant::now());
        }
        tracing::info!("fpm: zebra connected from {peer}");
        if let Err(error) = notice_death(&stream) {
            tracing::warn!("fpm: {peer}: a zebra that dies silently is not noticed: {error}");
        }
        self.status.connections += 1;
        self.peer = Some((stream, peer, Frames::default()));
        self.session.connected(Instant::now());
    }

    /// The other side has ended the connection.
    fn closed(&mut self) {
        if self.peer.as_ref().is_some_and(|(_, _, frames)| frames.in_the_middle()) {
            self.session.errors += 1;
            self.lost("zebra has closed the connection in the middle of a frame");
        } else {
            self.lost("zebra has closed the connection");
        }
    }

    fn lost(&mut self, why: &str) {
        let Some((_, peer, _)) = self.peer.take() else { return };
        self.session.disconnected(Instant::now());
        let Phase::Away { until } = self.session.phase else { return };
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        let count = self.session.routes.count();
        tracing::warn!("fpm: {peer}: {why}; its {count} routes are kept for {left} s");
    }

    fn take(&mut self, bytes: &[u8]) {
        let Some((_, _, frames)) = &mut self.peer else { return };
        let now = Instant::now();
        frames.extend(bytes);
        let broken: Broken = loop {
            match frames.next() {
                Ok(Some(frame)) => self.session.take(frame, now),
                Ok(None) => return,
                Err(broken) => break broken,
            }
        };
        self.session.errors += 1;
        self.lost(&format!("{broken}; connection closed"));
    }

    fn publish(&mut self) {
        let session = &self.session;
        self.status.state = match session.phase {
            Phase::Waiting => SourceState::Starting,
            Phase::Replay { .. } => SourceState::Synchronising,
            Phase::Synchronised if self.peer.is_some() => SourceState::Synchronised,
            Phase::Synchronised | Phase::Away { .. } => SourceState::Disconnected,
        };
        self.status.messages = session.messages;
        self.status.errors = session.errors;
        self.status.ignored = session.ignored;
        self.status.resyncs = session.replays;
        if session.replays != self.announced {
            self.announced = session.replays;
            self.status.last_resync = Some(SystemTime::now());
        }
        self.status.routes = session.routes.count();
        self.status.groups = session.routes.groups();
        self.status.peer = self.peer.as_ref().map(|(_, peer, _)| *peer);
        self.status_out.send_replace(self.status.clone());
    }
}

/// Has the kernel ask a silent zebra whether it is there, so that its machine's end is noticed
/// within half a minute: a zebra that has nothing to tell says nothing for days.
fn notice_death(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    Ok(setsockopt(stream, sockopt::KeepAlive, &true)?)
}

/// Reads from whoever is connected.
async fn read(
    peer: &mut Option<(TcpStream, SocketAddr, Frames)>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    match peer {
        Some((stream, _, _)) => stream.read(buffer).await,
        None => std::future::pending().await,
    }
}

/// Waits for a moment, or for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
