//! The service manager that has started the router, if one has (systemd): sd_notify(3).
//!
//! | message | sent |
//! |---|---|
//! | `READY=1` | when packets are forwarded and the kernel's routes are complete; after a change of the configuration |
//! | `RELOADING=1` | while a change of the configuration is prepared and made |
//! | `STATUS=` | with `READY=1` and with each sign of life: ports, routes, the configuration's number |
//! | `WATCHDOG=1` | by the owner's ticks, twice in the time that the manager asks for: a sign of the owner's life |
//! | `STOPPING=1` | at the end |
//!
//! No message waits for the manager: one that cannot be delivered is sent again at the next tick. Descriptors are given
//! to the manager by `fd_store.rs`.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// States of the router that the manager is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It does not forward all that it should.
    #[default]
    Starting,
    /// It forwards.
    Ready,
    /// It forwards, and its configuration is being changed.
    Reloading,
}

/// The manager, and what it has been told.
#[derive(Debug)]
pub struct Manager {
    socket: Option<OsString>,
    /// Time between two signs of life.
    interval: Option<Duration>,
    last_sign: Option<Instant>,
    told: State,
}

/// Returns the path of the manager's socket.
pub fn socket() -> Option<OsString> {
    env::var_os("NOTIFY_SOCKET")
}

impl Default for Manager {
    fn default() -> Self {
        Self::new(socket(), sd_notify::watchdog_enabled())
    }
}

impl Manager {
    /// With this socket, which has the process ended after so long without a sign of life.
    fn new(socket: Option<OsString>, limit: Option<Duration>) -> Self {
        let interval = limit.map(|limit| limit / 2);
        Self { socket, interval, last_sign: None, told: State::default() }
    }

    /// Tells a new state, and gives a sign of life when it is due; `status` is one line for operators.
    pub fn tick(&mut self, state: State, status: impl FnOnce() -> String) {
        if self.socket.is_none() {
            return;
        }
        let new = state != self.told;
        let due = self.is_due(Instant::now());
        if !new && !due {
            return;
        }
        let mut messages = Vec::new();
        match state {
            State::Ready if new => messages.push(NotifyState::Ready),
            // Both in one message, as systemd demands since version 253.
            State::Reloading if new => {
                messages.push(NotifyState::Reloading);
                messages.extend(NotifyState::monotonic_usec_now());
            }
            _ => {}
        }
        if due {
            messages.push(NotifyState::Watchdog);
        }
        let status = status();
        messages.push(NotifyState::Status(&status));
        if self.send(&messages).is_ok() {
            self.told = state;
            self.last_sign = if due { Some(Instant::now()) } else { self.last_sign };
        }
    }

    /// The router ends.
    pub fn stopping(&self) {
        // At worst the manager learns of the end by the end.
        let _ = self.send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    fn is_due(&self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return false };
        self.last_sign.is_none_or(|last| now.saturating_duration_since(last) >= interval)
    }

    fn send(&self, messages: &[NotifyState<'_>]) -> io::Result<()> {
        let Some(path) = &self.socket else { return Ok(()) };
        let text: String = messages.iter().map(|message| format!("{message}\n")).collect();
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // The manager may have stopped reading, and the owner waits for nobody.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(text.as_bytes(), &address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager that reads, and the router's side of it.
    fn pair(limit: Option<Duration>) -> (UnixDatagram, Manager, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket, Manager::new(Some(path.into()), limit), directory)
    }

    fn received(socket: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 4096];
        let next = || socket.recv(&mut buffer).ok().map(|n| (n, buffer));
        let texts = std::iter::from_fn(next).map(|(n, bytes)| bytes[..n].to_vec());
        texts.map(|text| String::from_utf8(text).unwrap()).collect()
    }

    fn status() -> String {
        "2 ports".to_owned()
    }

    #[test]
    fn each_state_is_told_once() {
        let (socket, mut manager, _directory) = pair(None);
        for state in [State::Starting, State::Ready, State::Ready, State::Reloading, State::Ready] {
            manager.tick(state, status);
        }
        manager.stopping();
        let told = received(&socket);
        assert_eq!(told[0], "READY=1\nSTATUS=2 ports\n");
        assert!(told[1].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{told:?}");
        assert_eq!(told[2..], ["READY=1\nSTATUS=2 ports\n", "STOPPING=1\nSTATUS=stopping\n"]);
    }

    #[test]
    fn signs_of_life_come_twice_in_the_limit() {
        let (socket, mut manager, _directory) = pair(Some(Duration::from_secs(60)));
        manager.tick(State::Ready, status);
        manager.tick(State::Ready, status);
        assert_eq!(received(&socket), ["READY=1\nWATCHDOG=1\nSTATUS=2 ports\n"]);
        let last = manager.last_sign.unwrap();
        assert!(!manager.is_due(last + Duration::from_millis(29_999)));
        assert!(manager.is_due(last + Duration::from_secs(30)));
    }

    #[test]
    fn a_manager_that_does_not_read_is_told_later() {
        let (socket, mut manager, _directory) = pair(None);
        while manager.send(&[NotifyState::Status("full")]).is_ok() {}
        manager.tick(State::Ready, status);
        assert_eq!(manager.told, State::Starting);
        assert!(received(&socket).iter().all(|text| text == "STATUS=full\n"));
        manager.tick(State::Ready, status);
        assert_eq!(received(&socket), ["READY=1\nSTATUS=2 ports\n"]);
    }

    #[test]
    fn without_a_manager_nothing_is_asked() {
        let mut manager = Manager::new(None, Some(Duration::ZERO));
        manager.tick(State::Ready, || unreachable!());
        manager.stopping();
    }
}
