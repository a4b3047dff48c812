//! Metrics over HTTP: listeners, and the board from which the server reads.
//!
//! ```text
//!   forwarders, slow path, filters: counters --------------------------+
//!                                                                      v
//!   owner -- once a second, and after a change --> [ Board: a View ] --> thread "web": /metrics
//! ```
//!
//! A scrape reads counters that units share and never waits for the owner. The owner publishes the [`View`]: which units
//! there are, and the few numbers that only it has. Without `turnpike.metrics` nothing is published.
//!
//! A change opens the new listeners before anything else is touched, and may fail. Listeners that stay are taken over,
//! so that a client that is just connecting is served by the former server or the new one.

mod process;
mod view;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, Error, Result};
use arc_swap::ArcSwapOption;
use control::config;
use control::gate::gid_of;
use web::metrics::{Families, Metrics};
use web::{Listener, Server};

use super::server::Socket;
pub use view::{InterfaceView, Traffic, View, VrfView};

/// The setting of the socket's path, for messages.
const SOCKET: &str = "turnpike.metrics { socket }";

/// Listeners that are not yet served.
#[derive(Clone, Default)]
pub struct Opened {
    unix: Option<Unix>,
    tcp: Option<(SocketAddr, Arc<TcpListener>)>,
}

/// A Unix socket.
#[derive(Clone)]
struct Unix {
    socket: Arc<Socket>,
    /// The group that its file is to have.
    group: Option<u32>,
}

impl Opened {
    /// Opens listeners with these settings, beside those of the service that there is.
    ///
    /// # Errors
    /// A path or an address cannot be listened on, or there is no such group.
    pub fn open(settings: &config::Metrics, now: Option<&Service>) -> Result<Self> {
        let now = now.map(|now| &now.opened);
        let group = settings.group.as_deref().map(gid_of).transpose().map_err(Error::msg)?;
        let unix = settings.socket.as_ref().map(|path| {
            let same = now.and_then(|now| now.unix.as_ref());
            let same = same.filter(|unix| unix.socket.path() == path);
            let socket = match same {
                Some(unix) => unix.socket.clone(),
                None => Arc::new(Socket::bind_for(path, SOCKET, group).context("metrics")?),
            };
            anyhow::Ok(Unix { socket, group })
        });
        let tcp = settings.listen.map(|wanted| {
            let same = now.and_then(|now| now.tcp.as_ref()).filter(|(open, _)| *open == wanted);
            let listener = match same {
                Some((_, listener)) => listener.clone(),
                None => Arc::new(bind_tcp(wanted)?),
            };
            anyhow::Ok((wanted, listener))
        });
        Ok(Self { unix: unix.transpose()?, tcp: tcp.transpose()? })
    }

    /// Serves the board to clients of the listeners.
    ///
    /// # Errors
    /// There are too many threads or descriptors, or the socket's file is not the router's any more.
    pub fn serve(self, board: Arc<Board>) -> Result<Service> {
        let mut listeners = Vec::new();
        if let Some(Unix { socket, group }) = &self.unix {
            // One that was open before may have had another group.
            socket.share(*group).with_context(|| format!("socket {}", socket.path().display()))?;
            listeners.push(Listener::Unix(socket.listener()?));
        }
        if let Some((_, listener)) = &self.tcp {
            listeners.push(Listener::Tcp(listener.try_clone()?));
        }
        let server = Server::start(listeners, web::metrics::pages(board.clone()))?;
        Ok(Service { board, opened: self, _server: server })
    }
}

fn bind_tcp(listen: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(listen).with_context(|| {
        format!("metrics {listen}: cannot listen; choose another turnpike.metrics {{ listen }}")
    })?;
    listener.set_nonblocking(true)?;
    if !listen.ip().is_loopback() {
        tracing::warn!(
            "metrics {listen}: anybody who reaches this address can read names and counters of the router; keep it \
             within a management network"
        );
    }
    tracing::info!("metrics: listening on {listen}");
    Ok(listener)
}

/// The service that runs; dropping it ends it, and removes the socket's file unless another service has it.
pub struct Service {
    /// What clients see.
    pub board: Arc<Board>,
    opened: Opened,
    _server: Server,
}

/// The latest view that the owner has published, if it has.
#[derive(Default)]
pub struct Board(ArcSwapOption<View>);

impl Board {
    /// Replaces the view.
    pub fn publish(&self, view: View) {
        self.0.store(Some(Arc::new(view)));
    }
}

impl Metrics for Board {
    fn write(&self, families: &mut Families<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION")), ("dpdk", &*dpdk::version())];
        families.gauges("turnpike_build_info", "Version of the router", [(version, 1_u32)])?;
        process::write(families)?;
        match &*self.0.load() {
            Some(view) => view.write(families),
            None => Ok(()),
        }
    }
}
