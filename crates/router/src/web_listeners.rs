//! The listeners of an HTTP service: a Unix socket, an address, or both.
//!
//! A change opens the new listeners before anything else is touched, and may fail. Listeners that stay are taken over, so
//! that a client that is just connecting is served by the former service or the new one.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Error, Result};
use control::gate::gid_of;
use web::Listener;

use super::server::Socket;

/// Settings of listeners, and the statement that has them.
pub struct Wanted<'a> {
    /// The statement, as named in messages.
    pub statement: &'static str,
    /// The path of a Unix socket.
    pub socket: Option<&'a PathBuf>,
    /// The group of its file.
    pub group: Option<&'a str>,
    /// Address and port.
    pub listen: Option<SocketAddr>,
}

/// Listeners that are not yet served, or that are.
#[derive(Clone, Default)]
pub struct WebListeners {
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

impl WebListeners {
    /// Opens listeners with these settings, beside those that there are.
    ///
    /// # Errors
    /// A path or an address cannot be listened on, or there is no such group.
    pub fn open(wanted: &Wanted<'_>, now: Option<&Self>) -> Result<Self> {
        let &Wanted { statement, socket, group, listen } = wanted;
        let group = group.map(gid_of).transpose().map_err(Error::msg)?;
        let unix = socket.map(|path| {
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
        Ok(Self { unix: unix.transpose()?, tcp: tcp.transpose()? })
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
            listeners.push(Listener::Tcp(listener.try_clone()?));
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
