//! The service for telnet clients: the listener is the router's, the commands are the program's.
//!
//! A change opens the new service before anything else is touched, and may fail. The old one stops accepting when
//! the change is made; its sessions stay until they end. A service on the same address takes over the listener, so
//! that a client that is just connecting is served by one or the other.

use std::net::TcpListener;
use std::path::Path;

use anyhow::{Context, Result};
use control::config::Telnet;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::program::{OpenTelnet, TelnetSessions};

/// A telnet service that is not yet served.
pub struct Opened {
    listener: TcpListener,
    sessions: TelnetSessions,
}

/// The telnet service of a router, which may have none.
pub struct Acceptor {
    open: OpenTelnet,
    /// Kept for a later service on the same address.
    listener: Option<TcpListener>,
    /// Ends the accepting of clients.
    serving: Option<AbortHandle>,
}

impl Acceptor {
    /// Creates the acceptor of the program's service, which serves none yet.
    pub fn new(open: OpenTelnet) -> Self {
        Self { open, listener: None, serving: None }
    }

    /// Opens a service with these settings, for commands to the router at this socket, beside the one that is
    /// served.
    ///
    /// # Errors
    /// The address cannot be listened on, or a user is unknown.
    pub fn open(&self, settings: &Telnet, socket: &Path) -> Result<Opened> {
        let listen = settings.listen;
        let same = self
            .listener
            .as_ref()
            .filter(|open| open.local_addr().is_ok_and(|address| address == listen));
        let listener = match same {
            Some(listener) => listener.try_clone()?,
            None => bind(settings)?,
        };
        let sessions = (self.open)(listener.try_clone()?, settings, socket)?;
        Ok(Opened { listener, sessions })
    }

    /// Serves the opened service on this runtime from now on, or none.
    pub fn serve(&mut self, opened: Option<Opened>, runtime: &Handle) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
        let (listener, sessions) =
            opened.map(|Opened { listener, sessions }| (listener, sessions)).unzip();
        self.listener = listener;
        self.serving = sessions.map(|sessions| runtime.spawn(sessions).abort_handle());
    }
}

fn bind(settings: &Telnet) -> Result<TcpListener> {
    let listen = settings.listen;
    let listener = TcpListener::bind(listen).with_context(|| {
        format!("telnet {listen}: cannot listen; choose another turnpike.telnet {{ listen }}")
    })?;
    listener.set_nonblocking(true)?;
    if !listen.ip().is_loopback() {
        tracing::warn!(
            "telnet {listen}: anybody who reaches this address can change the router, without a password and \
             unencrypted; keep it within a management network"
        );
    }
    tracing::info!("telnet: listening on {listen}");
    Ok(listener)
}
