//! Keeps the host interfaces' descriptors open in another process while the router is restarted.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use dataplane::lock::lock;
use sd_notify::{NotifyState, notify, notify_with_fds};

use crate::hold::{self, Holder, Message};
use crate::manager;

/// Pauses before a holder that was killed is started again: the first, doubled each time, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(60));

/// Descriptors kept for this router, and their keeper for the next one.
#[derive(Debug, Default)]
pub struct FdStore {
    kept: HashMap<String, OwnedFd>,
    keeper: Keeper,
    /// Something was kept for this router.
    had_some: bool,
}

/// The keeper of descriptors.
#[derive(Debug, Default)]
enum Keeper {
    #[default]
    Nobody,
    /// systemd.
    Manager,
    Holder(Held),
}

/// Descriptors with a holder.
#[derive(Debug)]
struct Held {
    path: PathBuf,
    seconds: u64,
    /// None before there is something to hold.
    holder: Option<Holder>,
    /// For another holder, if this one is killed.
    descriptors: HashMap<String, OwnedFd>,
    /// The router does its work.
    ready: bool,
    pause: Duration,
    store: Weak<Mutex<FdStore>>,
}

/// A store that several may use.
#[derive(Clone, Debug, Default)]
pub struct SharedStore(Arc<Mutex<FdStore>>);

impl SharedStore {
    /// Takes the descriptors kept for this router: by the service manager, or by the holder of the router with this
    /// socket. Without a manager, a holder keeps descriptors for the next router, for `seconds` after this one's end;
    /// 0: no holder.
    pub fn at_start(socket: &Path, seconds: u64) -> Self {
        let path = hold::holder_socket(socket);
        let mut kept: HashMap<_, _> = dpdk::inherited().into_iter().collect();
        let found = Holder::find(&path).unwrap_or_else(|error| {
            tracing::warn!("{error:#}; host interfaces that it holds cannot be taken over");
            None
        });
        let holder = found.map(|(holder, held)| {
            tracing::info!("host interfaces: process {} held {}", holder.process(), held.len());
            kept.extend(held);
            holder
        });
        let store = Arc::new_cyclic(|store| {
            let keeper = if !has_manager() && seconds > 0 {
                Keeper::Holder(Held::new(path, seconds, holder, store.clone()))
            } else {
                dismiss(holder);
                if has_manager() { Keeper::Manager } else { Keeper::Nobody }
            };
            let had_some = !kept.is_empty();
            Mutex::new(FdStore { kept, keeper, had_some })
        });
        let shared = Self(store);
        shared.lock().with_held(Held::adopt);
        shared
    }

    /// For one use.
    pub fn lock(&self) -> MutexGuard<'_, FdStore> {
        lock(&self.0)
    }
}

/// Returns true if a service manager can keep descriptors. A socket in the abstract namespace (`@…`) counts as none,
/// since `sd_notify` cannot reach it: a holder keeps the descriptors then.
fn has_manager() -> bool {
    manager::socket().is_some_and(|path| !path.as_bytes().starts_with(b"@"))
}

/// Dismisses a holder whose descriptors have been taken over.
fn dismiss(holder: Option<Holder>) {
    if let Some(holder) = holder {
        // If it does not listen, it releases them at its time limit.
        let _ = holder.ask(&Message::Stopping);
    }
}

impl FdStore {
    /// The descriptor of the interface of this name in the calling thread's namespace, if it was
    /// kept.
    pub fn take(&mut self, interface: &str) -> Option<OwnedFd> {
        self.kept.remove(&name(interface).ok()?)
    }

    /// Has the keeper, if there is one, keep a descriptor.
    ///
    /// # Errors
    /// The keeper does not listen, or cannot be started.
    pub fn keep(&mut self, interface: &str, descriptor: BorrowedFd<'_>) -> Result<()> {
        let name = name(interface)?;
        match &mut self.keeper {
            Keeper::Nobody => Ok(()),
            // No polling of the descriptor: that of an interface that is down is in error.
            Keeper::Manager => {
                let no_poll = NotifyState::Custom("FDPOLL=0");
                let store = [NotifyState::FdStore, no_poll, NotifyState::FdName(&name)];
                Ok(notify_with_fds(&store, &[descriptor])?)
            }
            Keeper::Holder(held) => held.keep(name, descriptor),
        }
    }

    /// Has the keeper close the descriptor of the interface of this name in the calling thread's namespace.
    ///
    /// # Errors
    /// The keeper does not listen.
    pub fn forget(&mut self, interface: &str) -> Result<()> {
        self.forget_named(&name(interface)?)
    }

    /// Has the keeper close descriptors that no port has taken.
    pub fn forget_the_rest(&mut self) {
        for name in std::mem::take(&mut self.kept).into_keys() {
            // At worst it is kept further.
            let _ = self.forget_named(&name);
        }
    }

    /// The router is ready: from here on descriptors are held until its end.
    pub fn ready(&mut self) {
        self.with_held(|held| {
            held.ready = true;
            held.send(&Message::Ready);
        });
    }

    /// The router ends with an error and may be started again. Interfaces that it only tried to open are released.
    pub fn failed(&mut self) {
        let ready = matches!(&self.keeper, Keeper::Holder(held) if held.ready);
        if !ready && !self.had_some {
            self.let_go();
        }
    }

    /// The router ends for good: descriptors are released.
    pub fn let_go(&mut self) {
        if let Keeper::Holder(held) = std::mem::take(&mut self.keeper) {
            dismiss(held.holder);
        }
    }

    fn forget_named(&mut self, name: &str) -> Result<()> {
        match &mut self.keeper {
            Keeper::Nobody => Ok(()),
            Keeper::Manager => {
                Ok(notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)])?)
            }
            Keeper::Holder(held) => held.forget(name),
        }
    }

    fn with_held(&mut self, work: impl FnOnce(&mut Held)) {
        if let Keeper::Holder(held) = &mut self.keeper {
            work(held);
        }
    }
}

impl Held {
    fn new(
        path: PathBuf,
        seconds: u64,
        holder: Option<Holder>,
        store: Weak<Mutex<FdStore>>,
    ) -> Self {
        let (descriptors, ready, pause) = (HashMap::new(), false, PAUSES.0);
        Self { path, seconds, holder, descriptors, ready, pause, store }
    }

    fn keep(&mut self, name: String, descriptor: BorrowedFd<'_>) -> Result<()> {
        self.descriptors.insert(name.clone(), descriptor.try_clone_to_owned()?);
        match &self.holder {
            Some(holder) => {
                holder.send(&Message::Keep(name), Some(descriptor)).context("its holder")
            }
            None => self.start(),
        }
    }

    fn forget(&mut self, name: &str) -> Result<()> {
        self.descriptors.remove(name);
        let Some(holder) = &self.holder else { return Ok(()) };
        holder.ask(&Message::Forget(name.to_owned())).context("its holder does not answer")
    }

    /// Starts a holder and gives it everything.
    fn start(&mut self) -> Result<()> {
        let holder = Holder::start(&self.path, self.seconds)?;
        for (name, descriptor) in &self.descriptors {
            holder.send(&Message::Keep(name.clone()), Some(descriptor.as_fd()))?;
        }
        if self.ready {
            holder.send(&Message::Ready, None)?;
        }
        tracing::info!(
            "host interfaces: held by process {} if this one is killed, for {} s",
            holder.process(),
            self.seconds
        );
        self.holder = Some(holder);
        self.adopt();
        Ok(())
    }

    /// Sets the time for which the holder holds, and watches for its end.
    fn adopt(&mut self) {
        self.send(&Message::Hold(self.seconds));
        let Some(life) = self.holder.as_ref().and_then(|holder| holder.life().ok()) else { return };
        let store = self.store.clone();
        let body = move || {
            hold::wait_for_end(&life);
            replace(&store);
        };
        if let Err(error) = thread::Builder::new().name("holder-watch".to_owned()).spawn(body) {
            tracing::warn!("host interfaces: their holder is not watched: {error}");
        }
    }

    /// Reaps a holder that has ended. Returns the delay before the next one is started.
    fn bury(&mut self) -> Option<Duration> {
        let mut holder = self.holder.take()?;
        tracing::warn!("host interfaces: their holder, process {}, is gone", holder.process());
        holder.bury();
        Some(self.longer_pause())
    }

    /// Starts another one, if there is something to hold. After a failure, how long to wait.
    fn start_again(&mut self) -> Option<Duration> {
        if self.holder.is_some() || self.descriptors.is_empty() {
            return None;
        }
        let error = self.start().err()?;
        tracing::warn!("host interfaces: not held if the router is killed: {error:#}");
        self.holder = None;
        Some(self.longer_pause())
    }

    fn longer_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(PAUSES.1);
        pause
    }

    fn send(&self, message: &Message) {
        // The watch notices the holder's end.
        let _ = self.holder.as_ref().map(|holder| holder.send(message, None));
    }
}

/// Replaces a holder that has ended, unless the router ends.
fn replace(store: &Weak<Mutex<FdStore>>) {
    let again = |work: fn(&mut Held) -> Option<Duration>| {
        let store = SharedStore(store.upgrade()?);
        let mut pause = None;
        store.lock().with_held(|held| pause = work(held));
        pause
    };
    let mut pause = again(Held::bury);
    while let Some(time) = pause {
        thread::sleep(time);
        pause = again(Held::start_again);
    }
}

/// Returns the name of the descriptor of an interface of the calling thread's namespace.
fn name(interface: &str) -> io::Result<String> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    // A colon would separate it from the next name.
    let interface = interface.replace(':', "_");
    Ok(format!("tap-{namespace}-{interface}"))
}
