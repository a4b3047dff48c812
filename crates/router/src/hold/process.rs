//! The holding process: it waits for a router, for the router's end, and for the end of the holding
//! time.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, accept_with};

use super::channel::{Channel, Message};

/// Longest time that it waits for a router that does not read.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a holder with nothing to hold waits for the router that started it.
const FIRST: Duration = Duration::from_secs(10);

/// Most descriptors held: more than a router has ports.
const MOST: usize = 1024;

/// Holds the descriptors of the routers that connect to this listener, one after the other. With
/// `lasting` it never returns, else it returns when there is no router and nothing left to hold.
///
/// # Errors
/// The listener fails.
pub fn serve(listener: &OwnedFd, seconds: u64, lasting: bool) -> io::Result<()> {
    let mut holder = Holding::new(seconds);
    loop {
        if !lasting && holder.is_over(Instant::now()) {
            return Ok(());
        }
        let (calls, speaks) = holder.wait(listener)?;
        // All messages of a router are handled first, including its end: the new connection may be
        // the next router's.
        if speaks && let Err(error) = holder.handle_message() {
            holder.router_gone(&error);
        }
        if calls
            && !speaks
            && let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC)
        {
            // A connection of another user is ignored.
            let _ = Channel::over(socket, PATIENCE).map(|router| holder.welcome(router));
        }
        holder.let_go_in_time(Instant::now());
    }
}

/// The held descriptors, their router, and the holding time.
struct Holding {
    held: BTreeMap<String, OwnedFd>,
    router: Option<Channel>,
    /// Holding time without a router.
    time: Duration,
    /// End of the holding time, set from the end of a router until another is ready.
    end: Option<Instant>,
    /// Time until which the first router is awaited; none after it has connected.
    first: Option<Instant>,
}

impl Holding {
    fn new(seconds: u64) -> Self {
        let (time, first) = (Duration::from_secs(seconds), Some(Instant::now() + FIRST));
        Self { held: BTreeMap::new(), router: None, time, end: None, first }
    }

    /// Returns true if there is no router and nothing is held.
    fn is_over(&self, now: Instant) -> bool {
        let idle = self.router.is_none() && self.held.is_empty();
        idle && self.first.is_none_or(|first| first <= now)
    }

    /// Waits for a connection, a message of the router, or the end of the holding time.
    fn wait(&self, listener: &OwnedFd) -> io::Result<(bool, bool)> {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        let router = self.router.as_ref();
        fds.extend(router.map(|router| PollFd::from_borrowed_fd(router.as_fd(), PollFlags::IN)));
        // While a router is starting, only its end is awaited.
        let next = self.end.or(self.first).filter(|_| router.is_none());
        let left = next.map(|next| next.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_set = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| !fd.revents().is_empty());
        Ok((is_set(fds.first()), is_set(fds.get(1))))
    }

    /// Serves a new router. While there is one, no other is served.
    fn welcome(&mut self, router: Channel) {
        if self.router.is_some() {
            return;
        }
        let held =
            self.held.iter().map(|(name, fd)| (Message::Held(name.clone()), Some(fd.as_fd())));
        let all = (Message::All(std::process::id()), None);
        // Messages of a router that was killed before it could read these wait to be handled all the same.
        let _ = held.chain([all]).try_for_each(|(message, fd)| router.send(&message, fd));
        (self.router, self.first) = (Some(router), None);
    }

    /// Handles a message of the router.
    fn handle_message(&mut self) -> io::Result<()> {
        let Some(router) = &self.router else { return Ok(()) };
        let (message, descriptor) = router.receive()?;
        match message {
            Some(Message::Keep(name)) => {
                if let Some(descriptor) = descriptor
                    && (self.held.len() < MOST || self.held.contains_key(&name))
                {
                    self.held.insert(name, descriptor);
                }
            }
            Some(Message::Forget(name)) => {
                self.held.remove(&name);
                router.send(&Message::Done(name), None)?;
            }
            Some(Message::Hold(seconds)) => self.time = Duration::from_secs(seconds),
            Some(Message::Ready) => self.end = None,
            Some(Message::Stopping) => {
                self.held.clear();
                router.send(&Message::Done(String::new()), None)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the end of a router. After one that had not become ready, the clock continues.
    ///
    /// The kernel reports that a router was killed with messages unread (`ECONNRESET`) before it hands over the
    /// router's last messages.
    fn router_gone(&mut self, error: &io::Error) {
        use ErrorKind::{ConnectionReset, Interrupted, WouldBlock};
        if matches!(error.kind(), WouldBlock | Interrupted | ConnectionReset) {
            return;
        }
        self.router = None;
        self.end = self.end.or(Some(Instant::now() + self.time));
    }

    fn let_go_in_time(&mut self, now: Instant) {
        if self.router.is_none() && self.end.is_some_and(|end| end <= now) {
            self.held.clear();
            self.end = None;
        }
    }
}
