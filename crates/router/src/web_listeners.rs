//! The listeners of an HTTP service: a Unix socket, an address, or both.
//!
//! A change opens the new listeners before anything else is touched, and may fail. Listeners that stay are taken over, so
//! that a client that is just connecting is served by the former service or the new one.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Error, Result};
use control::config::{HttpListeners, Strictness};
use control::gate::{LogLimit, gid_of};
use dataplane::lock::lock;
use tokio::sync::watch;
use web::{Door, Listener, Tls};

use super::server::Socket;
use super::tls;

/// Listeners that are not yet served, or that are.
#[derive(Clone)]
pub struct WebListeners {
    statement: &'static str,
    settings: HttpListeners,
    unix: Option<Unix>,
    tcp: Option<(SocketAddr, Arc<TcpListener>)>,
    /// For the next connections.
    tls: Option<Arc<watch::Sender<Arc<Tls>>>>,
}

/// Other files for listeners that there are.
pub struct Renewal(Arc<Tls>);

/// A Unix socket.
#[derive(Clone)]
struct Unix {
    socket: Arc<Socket>,
    /// The group that its file is to have.
    group: Option<u32>,
}

impl WebListeners {
    /// Opens listeners of a statement with these settings, beside those that there are.
    ///
    /// # Errors
    /// A path or an address cannot be listened on, there is no such group, or a file of TLS is not right.
    pub fn open(
        statement: &'static str,
        settings: &HttpListeners,
        strictness: Strictness,
        now: Option<&Self>,
    ) -> Result<Self> {
        let HttpListeners { socket, group, listen, tls } = settings;
        let tls = tls.as_ref().map(|tls| open_tls(statement, tls, strictness)).transpose()?;
        let tls = tls.map(|tls| Arc::new(watch::Sender::new(tls)));
        let group = group.as_deref().map(gid_of).transpose().map_err(Error::msg)?;
        let unix = socket.as_ref().map(|path| {
            let same = now.and_then(|now| now.unix.as_ref());
            let same = same.filter(|unix| unix.socket.path() == path);
            let option = format!("turnpike.{statement} {{ socket }}");
            let socket = match same {
                Some(unix) => unix.socket.clone(),
                None => Arc::new(Socket::bind(path, &option, group).context(statement)?),
            };
            anyhow::Ok(Unix { socket, group })
        });
        let tcp = listen.map(|wanted| {
            let same = now.and_then(|now| now.tcp.as_ref()).filter(|(open, _)| *open == wanted);
            let listener = match same {
                Some((_, listener)) => listener.clone(),
                None => Arc::new(bind_tcp(statement, wanted)?),
            };
            anyhow::Ok((wanted, listener))
        });
        let (unix, tcp) = (unix.transpose()?, tcp.transpose()?);
        Ok(Self { statement, settings: settings.clone(), unix, tcp, tls })
    }

    /// Reads the files of TLS again, if these settings differ in nothing else.
    ///
    /// # Errors
    /// A file of TLS is not right.
    pub fn renew(
        &self,
        settings: &HttpListeners,
        strictness: Strictness,
    ) -> Result<Option<Renewal>> {
        let Some(tls) = settings.tls.as_ref().filter(|_| self.settings.is_served_like(settings))
        else {
            return Ok(None);
        };
        Ok(Some(Renewal(open_tls(self.statement, tls, strictness)?)))
    }

    /// Uses other files for the next connections. Those that there are stay.
    pub fn use_renewed(&self, Renewal(tls): &Renewal) {
        self.tls.iter().for_each(|now| _ = now.send_replace(tls.clone()));
    }

    /// Returns true if clients by TCP have certificates.
    pub fn has_certificates(&self) -> bool {
        self.settings.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// Returns the address.
    pub fn address(&self) -> Option<SocketAddr> {
        self.settings.listen
    }

    /// Returns copies of the listeners, to be served.
    ///
    /// # Errors
    /// There are too many descriptors, or the socket's file is not the router's any more.
    pub fn listeners(&self) -> Result<Vec<Listener>> {
        let mut listeners = Vec::new();
        if let Some(Unix { socket, group }) = &self.unix {
            // One that was open before may have had another group.
            socket.share(*group).with_context(|| format!("socket {}", socket.path().display()))?;
            listeners.push(Listener::Unix(socket.listener()?));
        }
        if let Some((_, listener)) = &self.tcp {
            let listener = listener.try_clone()?;
            listeners.push(match &self.tls {
                Some(tls) => Listener::Tls(listener, door(self.statement, tls)),
                None => Listener::Tcp(listener),
            });
        }
        Ok(listeners)
    }
}

fn bind_tcp(statement: &str, listen: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(listen).with_context(|| {
        format!(
            "{statement} {listen}: cannot listen; choose another turnpike.{statement} {{ listen }}"
        )
    })?;
    listener.set_nonblocking(true)?;
    tracing::info!("{statement}: listening on {listen}");
    Ok(listener)
}

fn open_tls(
    statement: &str,
    settings: &control::config::Tls,
    strictness: Strictness,
) -> Result<Arc<Tls>> {
    let tls = tls::open(statement, settings, strictness)?;
    if let Some(end) = tls.expired() {
        let path = settings.certificate.path.display();
        tracing::warn!("{statement}: certificate {path}: expired on {end}; clients refuse it");
    }
    Ok(Arc::new(tls))
}

fn door(statement: &'static str, tls: &watch::Sender<Arc<Tls>>) -> Door {
    let limit = Mutex::new(LogLimit::default());
    let refused = move |peer: SocketAddr, reason: &std::io::Error| {
        let Some(others) = lock(&limit).admit() else { return };
        tracing::warn!("{statement}: {peer}: no TLS with it: {reason}{others}");
    };
    Door { tls: tls.subscribe(), refused: Arc::new(refused) }
}
