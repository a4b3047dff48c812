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

mod process;
mod view;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use arc_swap::ArcSwapOption;
use control::config::{HttpListeners, Strictness};
use web::metrics::{Families, Metrics};
use web::{Limits, Server};

use super::web_listeners::{Renewal, WebListeners};
pub use view::{InterfaceView, Traffic, View, VrfView};

/// Listeners that are not yet served, or other files for those that are.
pub enum Opened {
    /// Listeners.
    Listeners(Box<WebListeners>),
    /// Files.
    Renewal(Renewal),
}

impl Opened {
    /// Opens listeners with these settings, beside those of the service that there is.
    ///
    /// # Errors
    /// Those of [`WebListeners::open`].
    pub fn open(
        settings: &HttpListeners,
        strictness: Strictness,
        now: Option<&Service>,
    ) -> Result<Self> {
        let now = now.map(|now| &now.listeners);
        let renewal = now.map(|now| now.renew(settings, strictness)).transpose()?.flatten();
        if let Some(renewal) = renewal {
            return Ok(Self::Renewal(renewal));
        }
        let opened = WebListeners::open("metrics", settings, strictness, now)?;
        let is_open =
            |listen: &SocketAddr| !listen.ip().is_loopback() && !opened.has_certificates();
        if let Some(listen) = settings.listen.filter(is_open) {
            tracing::warn!(
                "metrics {listen}: anybody who reaches this address can read names and counters of the router; keep it \
                 within a management network"
            );
        }
        Ok(Self::Listeners(Box::new(opened)))
    }
}

/// The service that runs; dropping it ends it, and removes the socket's file unless another service has it.
pub struct Service {
    /// The metrics that clients read.
    pub board: Arc<Board>,
    listeners: WebListeners,
    _server: Server,
}

impl Service {
    /// Serves the board to clients of the listeners.
    ///
    /// # Errors
    /// There are too many threads or descriptors, or the socket's file is not the router's any more.
    pub fn serve(listeners: WebListeners, board: Arc<Board>) -> Result<Self> {
        let pages = web::metrics::pages(board.clone());
        let server = Server::start(listeners.listeners()?, pages, Limits::SHORT)?;
        Ok(Self { board, listeners, _server: server })
    }

    /// Uses other files for the next connections.
    pub fn renew(&self, renewal: &Renewal) {
        self.listeners.use_renewed(renewal);
    }
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
