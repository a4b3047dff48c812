//! Signals to the router. All threads block them and one reads them from a descriptor, so that none ends the
//! process in the middle of its work, with programs on interfaces and settings changed. That thread tells the
//! owner, and ends the process if the owner does not (`last_resort.rs`).
//!
//! | signal | what it does |
//! |---|---|
//! | SIGTERM, SIGINT, SIGQUIT, SIGPWR, SIGXCPU | end the router in order, also while it starts; a second one at once |
//! | SIGUSR2 | ends it likewise, for a restart: its host interfaces keep their carrier, see `hold.rs` |
//! | SIGHUP | applies the configuration file of the start again; so does a closed terminal |
//! | SIGURG | the watchdog's of steps in Lua, see crate `script` |
//! | SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT, SIGSTOP | stop and continue the process, as any other |
//! | SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS | a defect: the process ends |
//! | any other but SIGKILL | ignored, with a line in the log; SIGCHLD, SIGPIPE, SIGWINCH and real-time signals without |

use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::last_resort::{Course, Deadline, LOOK};

/// Signals that are left as they are.
const LEFT: [Signal; 15] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGABRT,
    Signal::SIGTRAP,
    Signal::SIGSYS,
    Signal::SIGURG,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
    Signal::SIGCONT,
    Signal::SIGCHLD,
    Signal::SIGPIPE,
    Signal::SIGWINCH,
];

const ENDING: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGPWR,
    Signal::SIGXCPU,
    Signal::SIGUSR2,
];

/// Returns true if the router that a signal ends is to be started again soon.
pub fn is_restart(signal: Signal) -> bool {
    signal == Signal::SIGUSR2
}

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// The router's end.
    End(Signal),
    /// The configuration file again.
    Reload,
}

/// The router was asked to end before it was there.
#[derive(Debug)]
pub struct Ended(pub Signal);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ended while it started", self.0)
    }
}

impl std::error::Error for Ended {}

/// The signals that have come.
pub struct Signals {
    /// Their numbers.
    came: UnboundedReceiver<u32>,
    /// A reload was asked for during the start.
    reload: bool,
    course: Course,
}

impl Signals {
    /// Blocks signals in the calling thread and in those that it starts from now on, and has one of these read
    /// them.
    pub fn block() -> Result<Self> {
        let source = open().context("signals cannot be waited for")?;
        let (out, came) = unbounded_channel();
        let course = Course::default();
        let deadline = Deadline::new(course.clone());
        let body = move || attend(&source, &out, deadline);
        // It is there as long as the process is.
        thread::Builder::new().name("signals".to_owned()).spawn(body).context("signals")?;
        Ok(Self { came, reload: false, course })
    }

    /// The record of the router's current part of its start or end.
    pub fn course(&self) -> &Course {
        &self.course
    }

    /// Between two parts of the start.
    ///
    /// # Errors
    /// The router has been asked to end: [`Ended`].
    pub fn check(&mut self) -> Result<()> {
        while let Ok(number) = self.came.try_recv() {
            match request(number) {
                Some(SignalRequest::End(signal)) => return Err(Ended(signal).into()),
                Some(SignalRequest::Reload) => self.reload = true,
                None => {}
            }
        }
        Ok(())
    }

    /// Another part of the start begins.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn enter(&mut self, part: &str) -> Result<()> {
        self.course.enter(part);
        self.check()
    }

    /// Returns the result of a part of the start. If it failed and the router was asked to end, the error is [`Ended`].
    ///
    /// # Errors
    /// [`Ended`], or the part's own.
    pub fn unless_ended<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.or_else(|error| self.check().and(Err(error)))
    }

    /// For the owner, which waits for later signals.
    pub fn wait(self) -> Waiting {
        let Self { came, reload, .. } = self;
        Waiting { came, reload }
    }
}

/// Signals that are waited for.
pub struct Waiting {
    came: UnboundedReceiver<u32>,
    reload: bool,
}

impl Waiting {
    /// Waits for the next signal and returns its request. Cancelling the wait loses no signal.
    pub async fn next(&mut self) -> SignalRequest {
        if std::mem::take(&mut self.reload) {
            return SignalRequest::Reload;
        }
        loop {
            let Some(number) = self.came.recv().await else {
                // The thread that reads signals has ended, which it does not.
                return std::future::pending().await;
            };
            if let Some(request) = request(number) {
                return request;
            }
        }
    }
}

/// Blocks signals in the calling thread, and opens the descriptor that they are read from.
fn open() -> nix::Result<SignalFd> {
    let mut set = SigSet::all();
    LEFT.iter().for_each(|&signal| set.remove(signal));
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// The thread that reads signals. It waits for no other thread and writes nothing: the receiver of the log may
/// itself be blocked.
fn attend(source: &SignalFd, out: &UnboundedSender<u32>, mut deadline: Deadline) {
    loop {
        let begin = Instant::now();
        let most = deadline.left(begin).map(|left| left.min(LOOK));
        wait(source, most);
        if let Some(most) = most {
            let waited = begin.elapsed();
            deadline.excuse(waited, waited.saturating_sub(most));
        }
        while let Ok(Some(number)) = read(source) {
            // Without an owner, the deadline is what is left.
            let _ = out.send(number);
            if is_ending(number) {
                deadline.ask(Instant::now());
                // Whose error the owner asks about has its reason above by then.
                script::stop_loading();
            }
        }
        if deadline.left(Instant::now()).is_some_and(|left| left.is_zero()) {
            deadline.force();
        }
    }
}

/// Waits until something can be read, at most so long.
fn wait(source: &SignalFd, most: Option<Duration>) {
    let timeout = most.map_or(PollTimeout::NONE, |most| {
        // The next millisecond: behind it, the time is over.
        let millis = u16::try_from(most.as_millis() + 1).unwrap_or(u16::MAX);
        PollTimeout::from(millis)
    });
    // Whatever it says, the descriptor is read next.
    let _ = poll(&mut [PollFd::new(source.as_fd(), PollFlags::POLLIN)], timeout);
}

/// The number of the next signal, if there is one.
fn read(source: &SignalFd) -> io::Result<Option<u32>> {
    Ok(source.read_signal()?.map(|signal| signal.ssi_signo))
}

fn signal(number: u32) -> Option<Signal> {
    i32::try_from(number).ok().and_then(|number| Signal::try_from(number).ok())
}

fn is_ending(number: u32) -> bool {
    signal(number).is_some_and(|signal| ENDING.contains(&signal))
}

fn request(number: u32) -> Option<SignalRequest> {
    match signal(number) {
        Some(Signal::SIGHUP) => Some(SignalRequest::Reload),
        Some(signal) if ENDING.contains(&signal) => Some(SignalRequest::End(signal)),
        Some(signal) => {
            tracing::warn!(
                "{signal}: ignored; SIGHUP applies the configuration file, SIGTERM ends the router"
            );
            None
        }
        // DPDK's TAP driver has the kernel send one for each packet.
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    /// The numbers that have come to a descriptor.
    fn all(source: &SignalFd) -> Vec<u32> {
        std::iter::from_fn(|| read(source).unwrap()).collect()
    }

    fn number(signal: Signal) -> u32 {
        signal as u32
    }

    /// On a thread of its own, to which `raise` sends; it may be left with its signals blocked.
    #[test]
    fn signals_wait_until_they_are_read() {
        let body = || {
            let source = open().unwrap();
            assert!(all(&source).is_empty());
            for signal in [Signal::SIGUSR1, Signal::SIGHUP, Signal::SIGTERM] {
                raise(signal).unwrap();
            }
            let mut came = all(&source);
            came.sort_unstable();
            assert_eq!(came, [1, 10, 15]);
            // A pending signal is read at once; without one, the wait ends at its limit.
            raise(Signal::SIGQUIT).unwrap();
            wait(&source, None);
            assert_eq!(all(&source), [3]);
            wait(&source, Some(Duration::from_millis(1)));
            assert!(all(&source).is_empty());
        };
        thread::spawn(body).join().unwrap();
    }

    #[test]
    fn what_came_during_the_start_is_heard_later() {
        let (out, came) = unbounded_channel();
        let mut signals = Signals { came, reload: false, course: Course::default() };
        signals.check().unwrap();
        for signal in [Signal::SIGUSR1, Signal::SIGALRM, Signal::SIGHUP] {
            out.send(number(signal)).unwrap();
        }
        signals.check().unwrap();
        assert!(signals.reload);
        let failed = || Err::<(), _>(anyhow::anyhow!("a script"));
        assert_eq!(signals.unless_ended(failed()).unwrap_err().to_string(), "a script");
        out.send(number(Signal::SIGQUIT)).unwrap();
        let error = signals.unless_ended(failed()).unwrap_err();
        assert_eq!(error.downcast_ref::<Ended>().unwrap().0, Signal::SIGQUIT);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut waiting = signals.wait();
            assert_eq!(waiting.next().await, SignalRequest::Reload);
            out.send(number(Signal::SIGUSR1)).unwrap();
            out.send(number(Signal::SIGTERM)).unwrap();
            assert_eq!(waiting.next().await, SignalRequest::End(Signal::SIGTERM));
        });
    }

    #[test]
    fn only_some_signals_end_it() {
        assert!(ENDING.into_iter().all(|signal| is_ending(number(signal))));
        assert!(![1, 10, 34, u32::MAX].into_iter().any(is_ending));
    }
}
