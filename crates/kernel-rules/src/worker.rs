//! Threads that wait for announcements of the kernel until their owner drops them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, write};

use crate::Error;

/// A thread that ends when this is dropped.
#[derive(Debug)]
pub struct Worker {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread of this name, which ends when its waits say so.
    ///
    /// # Errors
    /// The kernel makes none.
    pub fn start(
        name: &'static str,
        body: impl FnOnce(Waits) + Send + 'static,
    ) -> Result<Self, Error> {
        let refused = |error: io::Error| Error::Thread { name, error };
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| refused(error.into()))?;
        let stop = Arc::new(stop);
        let waits = Waits(Arc::clone(&stop));
        let builder = thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || body(waits)).map_err(refused)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An event descriptor takes this write unless it is full, which ends the thread as well.
        write(&self.stop, &1_u64.to_ne_bytes()).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// The waits of such a thread.
pub struct Waits(Arc<OwnedFd>);

impl Waits {
    /// Waits until one of the sockets can be read, for this time at most.
    pub fn wait<'s>(
        &self,
        sockets: impl IntoIterator<Item = BorrowedFd<'s>>,
        left: Duration,
    ) -> Wake {
        let stop = PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN);
        let sockets = sockets.into_iter().map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN));
        let mut all: Vec<PollFd<'_>> = [stop].into_iter().chain(sockets).collect();
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut all, Some(&timeout)) {
            Ok(_) if !all[0].revents().is_empty() => Wake::Stop,
            // A stream of notifications must not delay what is due.
            Ok(_) if left.is_zero() => Wake::Due,
            Ok(0) => Wake::Due,
            Ok(_) | Err(Errno::INTR) => Wake::Notification,
            Err(_) => Wake::Stop,
        }
    }
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The thread is to end.
    Stop,
    /// The time is over.
    Due,
    /// There are notifications, or it is too early.
    Notification,
}
