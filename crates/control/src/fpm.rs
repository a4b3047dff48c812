//! FRR's zebra as a source of routes, by the FPM protocol of its module `dplane_fpm_nl`.
//!
//! ```text
//!   zebra -M dplane_fpm_nl --tcp--> frame.rs -> netlink messages -> session.rs -> events
//! ```
//!
//! # Behaviour of zebra 8.4 (`zebra/dplane_fpm_nl.c`)
//!
//! Zebra connects, retrying every 3 seconds until it succeeds. Once connected it replays
//! everything: nexthop groups, then all selected routes of all tables, with changes in between. It
//! sends no end marker, and pauses for a second whenever its buffer is full. A changed route is a
//! deletion and an addition in one frame. Every route has metric 20, and each prefix has one route.
//! With `fpm use-next-hop-groups`, the default, routes refer to nexthop objects; without it, they
//! list their next hops themselves.
//!
//! # Loss of the connection to zebra
//!
//! Zebra's routes stay in use for a configured time. After zebra has reconnected, routes that it
//! did not send again are removed when the replay is over: after 3 seconds of silence, provided
//! that nearly all routes have been replayed. If far fewer have been, zebra itself was restarted,
//! not only its connection, and its protocols are still learning; the remaining routes then stay in
//! use for `keep` from the time of the connection.
//!
//! # Peers accepted as zebra
//!
//! Processes of root, the router's own user, FRR's user and the configured users ([`crate::gate`]),
//! because a connected peer can give the router any route. A second connection is refused as long
//! as the first is open; a zebra whose machine ended without closing its connection is detected
//! within half a minute, and zebra reconnects every 3 seconds.

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

use crate::gate::{FRR, Gate};
use crate::netlink::{Error, Interfaces, SourceEvent, SourceState, SourceStatus, batches, thread};
use frame::{Broken, Frames};
use session::{Phase, Session};

/// TCP keepalive of zebra's connection: idle time before the first probe, interval and number of
/// probes.
const KEEPALIVE_IDLE_S: u32 = 15;
const KEEPALIVE_INTERVAL_S: u32 = 5;
const KEEPALIVE_PROBES: u32 = 3;

/// The way in for zebra, in the network namespace that it runs in.
#[derive(Debug)]
pub struct Entrance {
    gate: Gate,
    /// None: the address at which a source listens already.
    listener: Option<(std::net::TcpListener, SocketAddr)>,
}

impl Entrance {
    /// Opens an entrance in the network namespace of this file, or in the caller's own: at an address, or where a
    /// source listens already. `users` may connect, besides root, the router's and FRR's.
    ///
    /// # Errors
    /// A user is unknown, or the address cannot be listened on.
    pub fn open(
        netns: Option<PathBuf>,
        listen: Option<SocketAddr>,
        users: Vec<String>,
    ) -> Result<Self, Error> {
        thread::start("fpm-entrance", (netns, None), move || async move {
            let listener = match listen {
                Some(address) => Some(listen_on(address).await.map_err(|error| {
                    let what = format!("fpm: cannot listen on {address}");
                    Error::Socket { what, error }
                })?),
                None => None,
            };
            let gate = Gate::open("fpm", &users, Some(FRR))?;
            Ok((std::future::ready(()), Self { gate, listener }))
        })
    }
}

/// Orders to the thread that listens for zebra.
#[derive(Debug)]
enum Order {
    /// Settings that hold from now on; a connected zebra stays.
    Set { entrance: Entrance, keep: Duration },
    /// Withdraw all routes and end.
    End,
}

/// Orders that wait for the thread.
const ORDERS: usize = 64;

/// Thread that listens for zebra. Ends when this is dropped.
#[derive(Debug)]
pub struct FpmSource {
    orders: mpsc::Sender<Order>,
    status: watch::Receiver<SourceStatus>,
    local: SocketAddr,
}

impl FpmSource {
    /// Listens at another entrance from now on, and keeps routes for another time. A connected zebra stays.
    pub fn set(&mut self, entrance: Entrance, keep: Duration) {
        if let Some((_, local)) = &entrance.listener {
            self.local = *local;
        }
        self.order(Order::Set { entrance, keep });
    }

    /// Withdraws all routes of zebra and ends.
    pub fn end(&self) {
        self.order(Order::End);
    }

    fn order(&self, order: Order) {
        if self.orders.try_send(order).is_err() {
            tracing::error!("fpm: its thread takes no orders; it stays as it is");
        }
    }

    /// Returns the current status.
    pub fn status(&self) -> SourceStatus {
        self.status.borrow().clone()
    }

    /// Returns the address on which it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Starts to listen for zebra; its routes stay in use for `keep` after its connection is lost, if it does not come
/// back. `interfaces` maps interfaces to ports: that of the
/// [`crate::netlink::KernelSource`] of the same namespace.
pub fn spawn(
    entrance: Entrance,
    keep: Duration,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    events: mpsc::Sender<Vec<SourceEvent>>,
) -> Result<FpmSource, Error> {
    let (status_out, status) = watch::channel(SourceStatus::default());
    let (orders, orders_in) = mpsc::channel(ORDERS);
    // Its sockets are in their namespace already.
    let local = thread::start("fpm", (None, Some(privileges::Role::Server)), move || async move {
        let failed = |error| Error::Socket { what: "fpm: cannot listen".to_owned(), error };
        let Entrance { gate, listener } = entrance;
        let nowhere = || failed(io::ErrorKind::AddrNotAvailable.into());
        let (listener, local) = listener.ok_or_else(nowhere)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let session = Session::new(keep);
        let status = SourceStatus::default();
        let worker = Worker {
            session,
            gate,
            orders: orders_in,
            interfaces,
            events,
            status_out,
            status,
            peer: None,
            announced: 0,
        };
        Ok((worker.run(listener), local))
    })?;
    Ok(FpmSource { orders, status, local })
}

/// Returns the events that result from a zebra sending these bytes: for tests, and for reading
/// captures.
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

async fn listen_on(address: SocketAddr) -> io::Result<(std::net::TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let local = listener.local_addr()?;
    Ok((listener.into_std()?, local))
}

/// The thread's task.
struct Worker {
    session: Session,
    gate: Gate,
    orders: mpsc::Receiver<Order>,
    interfaces: watch::Receiver<Arc<Interfaces>>,
    events: mpsc::Sender<Vec<SourceEvent>>,
    status_out: watch::Sender<SourceStatus>,
    status: SourceStatus,
    peer: Option<Peer>,
    /// Replays that the status has counted.
    announced: u64,
}

/// The connected zebra.
struct Peer {
    stream: TcpStream,
    /// Our address and zebra's.
    local: SocketAddr,
    address: SocketAddr,
    frames: Frames,
}

/// The receiver of the events is closed.
struct Unwanted;

impl Worker {
    async fn run(mut self, mut listener: TcpListener) {
        // Without interfaces no route can be resolved. The sender is closed if the router ends.
        if self.interfaces.wait_for(|known| !known.by_index.is_empty()).await.is_err() {
            return;
        }
        let known = self.interfaces.borrow_and_update().clone();
        self.session.set_interfaces(&known);
        while self.turn(&mut listener).await.is_ok() {}
    }

    /// Waits for one event and handles it.
    async fn turn(&mut self, listener: &mut TcpListener) -> Result<(), Unwanted> {
        let deadline = self.session.deadline();
        let mut buffer = [0; 1 << 16];
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => self.accept(stream, peer),
                Err(error) => {
                    self.session.errors += 1;
                    tracing::warn!("fpm: a connection could not be accepted: {error}");
                    // Out of descriptors, perhaps; others may be closed meanwhile.
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
            order = self.orders.recv() => match order.ok_or(Unwanted)? {
                Order::Set { entrance, keep } => self.set(entrance, keep, listener),
                Order::End => {
                    self.session.withdraw();
                    self.send().await?;
                    return Err(Unwanted);
                }
            },
            () = self.events.closed() => return Err(Unwanted),
            () = at(deadline) => self.session.tick(Instant::now()),
        }
        self.publish();
        self.send().await
    }

    /// Sends the owner what has changed.
    async fn send(&mut self) -> Result<(), Unwanted> {
        for batch in batches(self.session.routes.take_events()) {
            self.events.send(batch).await.map_err(|_| Unwanted)?;
        }
        Ok(())
    }

    fn set(&mut self, entrance: Entrance, keep: Duration, listener: &mut TcpListener) {
        self.session.set_keep(keep);
        self.gate = entrance.gate;
        let Some((other, local)) = entrance.listener else { return };
        match TcpListener::from_std(other) {
            Ok(other) => {
                *listener = other;
                tracing::info!("fpm: listening for zebra on {local}");
            }
            Err(error) => tracing::error!("fpm: cannot listen on {local}: {error}"),
        }
    }

    fn accept(&mut self, stream: TcpStream, peer: SocketAddr) {
        let local = match self.examine(&stream, peer) {
            Ok(local) => local,
            Err(reason) => {
                self.session.errors += 1;
                return self.gate.log(peer, &reason);
            }
        };
        // The first connection is closed already; its end has not been read yet.
        self.lost("zebra has closed the connection");
        tracing::info!("fpm: zebra connected from {peer}");
        if let Err(error) = notice_death(&stream) {
            tracing::warn!("fpm: {peer}: a zebra that dies silently is not noticed: {error}");
        }
        self.status.connections += 1;
        self.peer = Some(Peer { stream, local, address: peer, frames: Frames::default() });
        self.session.connected(Instant::now());
    }

    /// Returns our address of a connection that may be zebra's, or the reason for refusing it.
    fn examine(&mut self, stream: &TcpStream, peer: SocketAddr) -> Result<SocketAddr, String> {
        let local = stream.local_addr().map_err(|error| error.to_string())?;
        self.gate.admit(local, peer).map_err(|refusal| refusal.to_string())?;
        match &self.peer {
            Some(first) if self.gate.is_open(first.local, first.address) => {
                Err(format!("{} is connected; zebra has one connection", first.address))
            }
            _ => Ok(local),
        }
    }

    /// Handles the end of the connection at the far side.
    fn closed(&mut self) {
        if self.peer.as_ref().is_some_and(|peer| peer.frames.in_the_middle()) {
            self.session.errors += 1;
            self.lost("zebra has closed the connection in the middle of a frame");
        } else {
            self.lost("zebra has closed the connection");
        }
    }

    fn lost(&mut self, why: &str) {
        let Some(Peer { address: peer, .. }) = self.peer.take() else { return };
        self.session.disconnected(Instant::now());
        let Phase::Away { until } = self.session.phase else { return };
        let left = until.saturating_duration_since(Instant::now()).as_secs();
        let count = self.session.routes.count();
        tracing::warn!("fpm: {peer}: {why}; its {count} routes are kept for {left} s");
    }

    fn take(&mut self, bytes: &[u8]) {
        let Some(Peer { frames, .. }) = &mut self.peer else { return };
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
        self.status.peer = self.peer.as_ref().map(|peer| peer.address);
        self.status_out.send_replace(self.status.clone());
    }
}

/// Enables TCP keepalive, so that the end of zebra's machine is detected within half a minute: a
/// zebra without changes sends nothing for days.
fn notice_death(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEPALIVE_IDLE_S)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &KEEPALIVE_INTERVAL_S)?;
    setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    Ok(setsockopt(stream, sockopt::KeepAlive, &true)?)
}

/// Reads from the connected peer; waits for ever if there is none.
async fn read(peer: &mut Option<Peer>, buffer: &mut [u8]) -> io::Result<usize> {
    match peer {
        Some(peer) => peer.stream.read(buffer).await,
        None => std::future::pending().await,
    }
}

/// Waits until a moment, or for ever if there is none.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
