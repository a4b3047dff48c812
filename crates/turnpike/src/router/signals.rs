//! Signals to the router. All threads block them and the owner reads them from a descriptor, so that none
//! ends the process in the middle of its work, with programs on interfaces and settings changed.
//!
//! | signal | what it does |
//! |---|---|
//! | SIGTERM, SIGINT, SIGQUIT, SIGPWR, SIGXCPU | end the router in order, also while it starts |
//! | SIGUSR2 | ends it likewise, for a restart: its host interfaces keep their carrier, see `hold.rs` |
//! | SIGHUP | applies the configuration file of the start again; so does a closed terminal |
//! | SIGURG | the watchdog's of steps in Lua, see crate `script` |
//! | SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT, SIGSTOP | stop the process and let it go on, as any other |
//! | SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS | a defect: the process ends |
//! | any other but SIGKILL | ignored, with a line in the log; SIGCHLD, SIGPIPE and SIGWINCH without |

use std::io;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tokio::io::unix::AsyncFd;

use super::owner::when_readable;

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

/// Whether the router that a signal ends is to be started again soon.
pub fn is_restart(signal: Signal) -> bool {
    signal == Signal::SIGUSR2
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
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
    source: SignalFd,
    /// A reload was asked for during the start.
    reload: bool,
}

impl Signals {
    /// Blocks signals in the calling thread and in those that it starts from now on.
    pub fn block() -> Result<Self> {
        let mut set = SigSet::all();
        LEFT.iter().for_each(|&signal| set.remove(signal));
        let open = || -> nix::Result<SignalFd> {
            set.thread_block()?;
            SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        };
        Ok(Self { source: open().context("signals cannot be waited for")?, reload: false })
    }

    /// Between two parts of the start.
    ///
    /// # Errors
    /// The router has been asked to end: [`Ended`].
    pub fn check(&mut self) -> Result<()> {
        while let Ok(Some(number)) = read(&self.source) {
            match wish(number) {
                Some(Wish::End(signal)) => return Err(Ended(signal).into()),
                Some(Wish::Reload) => self.reload = true,
                None => {}
            }
        }
        Ok(())
    }

    /// Waits for signals in the runtime that the caller runs in.
    pub fn wait(self) -> Result<Waiting> {
        let Self { source, reload } = self;
        Ok(Waiting { source: when_readable(source).context("signals")?, reload })
    }
}

/// Signals that are waited for.
pub struct Waiting {
    source: AsyncFd<SignalFd>,
    reload: bool,
}

impl Waiting {
    /// What the next signal asks for. Nothing is lost if this is not waited for to the end.
    pub async fn next(&mut self) -> Wish {
        if std::mem::take(&mut self.reload) {
            return Wish::Reload;
        }
        loop {
            let Ok(mut ready) = self.source.readable().await else {
                // The runtime is gone, and with it whoever waits.
                return std::future::pending().await;
            };
            match ready
                .try_io(|source| read(source.get_ref())?.ok_or(io::ErrorKind::WouldBlock.into()))
            {
                Ok(Ok(number)) => {
                    if let Some(wish) = wish(number) {
                        return wish;
                    }
                }
                Ok(Err(error)) => tracing::warn!("signals: {error}"),
                Err(_would_block) => {}
            }
        }
    }
}

/// The number of the next signal, if there is one.
fn read(source: &SignalFd) -> io::Result<Option<u32>> {
    Ok(source.read_signal()?.map(|signal| signal.ssi_signo))
}

fn wish(number: u32) -> Option<Wish> {
    let signal = i32::try_from(number).ok().and_then(|number| Signal::try_from(number).ok());
    match signal {
        Some(Signal::SIGHUP) => Some(Wish::Reload),
        Some(signal) if ENDING.contains(&signal) => Some(Wish::End(signal)),
        other => {
            let name =
                other.map_or_else(|| format!("signal {number}"), |signal| signal.to_string());
            tracing::warn!(
                "{name}: ignored; SIGHUP applies the configuration file, SIGTERM ends the router"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    /// On a thread of its own, to which `raise` sends; it may be left with its signals blocked.
    #[test]
    fn signals_wait_until_they_are_read() {
        let body = || {
            let mut signals = Signals::block().unwrap();
            signals.check().unwrap();
            for signal in [Signal::SIGUSR1, Signal::SIGALRM, Signal::SIGHUP] {
                raise(signal).unwrap();
            }
            signals.check().unwrap();
            assert!(signals.reload);
            raise(Signal::SIGQUIT).unwrap();
            let error = signals.check().unwrap_err();
            assert_eq!(error.downcast_ref::<Ended>().unwrap().0, Signal::SIGQUIT);
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut waiting = signals.wait().unwrap();
                assert_eq!(waiting.next().await, Wish::Reload);
                raise(Signal::SIGUSR1).unwrap();
                raise(Signal::SIGTERM).unwrap();
                assert_eq!(waiting.next().await, Wish::End(Signal::SIGTERM));
                raise(Signal::SIGUSR2).unwrap();
                assert_eq!(waiting.next().await, Wish::End(Signal::SIGUSR2));
            });
        };
        std::thread::spawn(body).join().unwrap();
    }
}
