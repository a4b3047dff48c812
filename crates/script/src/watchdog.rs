//! Stops steps that do not end.
//!
//! Compiled loops do not count instructions, so a step is bounded by time: each call has a budget of processor time. A
//! forwarder marks its entry into a step by one store and its exit by another; the watchdog, a thread, checks once a
//! millisecond, and sends a signal to a forwarder that has worked in the same call for longer than its budget (time in
//! which the kernel ran something else does not count). The signal's handler, on the forwarder's own thread, sets
//! LuaJIT's hook (as the interpreter's own main program does for Ctrl-C), and the hook raises an error in the step.
//!
//! Compiled code checks the hook in every loop, because LuaJIT is built with `LUAJIT_ENABLE_CHECKHOOK`
//! (`.cargo/config.toml`); without it, creating the state fails. Limits: the budget is kept to a millisecond or two,
//! and a step inside one long library call (`string.rep` up to its memory limit) is stopped after that call; library
//! calls that could take longer than the memory allows are bounded themselves (`pattern.rs`).
#![allow(unsafe_code)] // A marked hot spot: a signal handler and LuaJIT's hook.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mlua::ffi;
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::time::{ClockId, clock_gettime};

/// Ignored unless it is handled, so that a stray one does no harm.
const SIGNAL: Signal = Signal::SIGURG;

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(1);

/// True once the process is to end, and no script may be loaded any more.
static NO_LOADING: AtomicBool = AtomicBool::new(false);

/// Stops scripts that are being loaded, now and later, because the process is about to end.
pub fn stop_loading() {
    NO_LOADING.store(true, Ordering::Relaxed);
}

/// Returns true if scripts may not be loaded any more.
pub fn is_loading_stopped() -> bool {
    NO_LOADING.load(Ordering::Relaxed)
}

/// State shared by a forwarder's Lua state and the watchdog.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Odd while a step runs; raised by one at each entry and exit.
    call: AtomicU64,
    /// The call to be stopped.
    late: AtomicU64,
    /// True once the handler has set the hook.
    fired: AtomicBool,
    budget_us: AtomicU64,
    /// True while the script is being loaded: no packet waits for it.
    loading: AtomicBool,
    state: AtomicPtr<ffi::lua_State>,
    /// The thread that runs the steps, and the clock of its processor time.
    thread: Mutex<Option<(Pthread, ClockId)>>,
}

thread_local! {
    /// The watch of the step that this thread runs; the handler reads it.
    static CURRENT: Cell<*const Watch> = const { Cell::new(ptr::null()) };
    /// Keeps that watch alive as long as the handler may read it: a graph that a forwarder has given back is freed by
    /// another thread.
    static HELD: RefCell<Held> = const { RefCell::new(Held(None)) };
}

/// A watch that the thread's handler may read, until this is dropped.
struct Held(Option<Arc<Watch>>);

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.is_some() {
            CURRENT.set(ptr::null());
        }
    }
}

impl Watch {
    pub(crate) fn new(state: *mut ffi::lua_State) -> Arc<Self> {
        Arc::new(Self {
            call: AtomicU64::new(0),
            late: AtomicU64::new(u64::MAX),
            fired: AtomicBool::new(false),
            budget_us: AtomicU64::new(0),
            loading: AtomicBool::new(false),
            state: AtomicPtr::new(state),
            thread: Mutex::new(None),
        })
    }

    /// Marks the calling thread's entry into a step that may run for `budget_us` microseconds.
    #[inline]
    pub(crate) fn enter(self: &Arc<Self>, budget_us: u64) {
        if CURRENT.get() != Arc::as_ptr(self) {
            self.adopt();
        }
        self.budget_us.store(budget_us, Ordering::Relaxed);
        let call = self.call.load(Ordering::Relaxed);
        self.call.store(call + 1, Ordering::Release);
    }

    /// Marks the exit from the step; returns true if it was late and the hook is set.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        let call = self.call.load(Ordering::Relaxed);
        self.call.store(call + 1, Ordering::Release);
        self.fired.load(Ordering::Relaxed) && self.fired.swap(false, Ordering::Relaxed)
    }

    /// Sets whether calls are part of the script's loading from now on.
    pub(crate) fn set_loading(&self, loading: bool) {
        self.loading.store(loading, Ordering::Relaxed);
    }

    /// Returns true for a call that must be stopped at once.
    fn is_unwanted(&self, stopped: bool) -> bool {
        stopped && self.loading.load(Ordering::Relaxed)
    }

    /// Registers the calling thread as the signal's target.
    #[cold]
    fn adopt(self: &Arc<Self>) {
        install();
        drop(HELD.replace(Held(Some(self.clone()))));
        CURRENT.set(Arc::as_ptr(self));
        let thread = pthread_self();
        let mut clock = 0;
        // SAFETY: the calling thread exists, and the clock's number is written to a variable.
        let found = unsafe { nix::libc::pthread_getcpuclockid(thread, &raw mut clock) };
        let clock = if found == 0 { ClockId::from_raw(clock) } else { ClockId::CLOCK_MONOTONIC };
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some((thread, clock));
    }

    /// Keeps this thread's handler from reading the watch any more.
    pub(crate) fn retire(&self) {
        if CURRENT.get() == ptr::from_ref(self) {
            CURRENT.set(ptr::null());
        }
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Installs the handler, once per process.
fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let action =
            SigAction::new(SigHandler::Handler(too_late), SaFlags::SA_RESTART, SigSet::empty());
        // SAFETY: the handler does only what may be done at any point of its thread, see there.
        if let Err(error) = unsafe { sigaction(SIGNAL, &action) } {
            tracing::warn!("steps in Lua are not stopped when they do not end: {error}");
        }
    });
}

/// Sets the hook if the call is still the one that is late.
extern "C" fn too_late(_: c_int) {
    let watch = CURRENT.get();
    if watch.is_null() {
        return;
    }
    // SAFETY: a thread's CURRENT is set by `adopt`, which keeps the watch in HELD until it sets another, or reset by
    // `retire`; the handler runs on that thread. The Lua state is touched only within a call, during which it exists:
    // after the call, `call` differs from `late`. Atomics and `lua_sethook` may be used in a handler; LuaJIT's manual
    // documents the latter for this purpose.
    unsafe {
        let watch = &*watch;
        if watch.call.load(Ordering::Acquire) == watch.late.load(Ordering::Acquire) {
            watch.fired.store(true, Ordering::Relaxed);
            let state = watch.state.load(Ordering::Relaxed);
            ffi::lua_sethook(state, Some(stop), ffi::LUA_MASKCOUNT, 1);
        }
    }
}

/// Text of the error; the step's status counts it separately.
pub(crate) const OVERRUN: &str = "ran longer than its budget and was stopped";

/// The hook. It stays set, so that every further instruction fails: `pcall` does not let a step continue. The step's
/// caller resets it.
pub(crate) unsafe extern "C-unwind" fn stop(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: called by LuaJIT as a hook, which may raise errors, with room for a few values on the stack.
    // The text ends with a zero. A hook has no frame of its own: level 0 is the function that it interrupts.
    unsafe {
        ffi::luaL_where(state, 0);
        ffi::lua_pushstring(state, c"ran longer than its budget and was stopped".as_ptr());
        ffi::lua_concat(state, 2);
        ffi::lua_error(state);
    }
}

/// A watched state, the call it was in at the last check, and its thread's clock when that call was first seen.
#[derive(Debug)]
struct Looked {
    watch: Arc<Watch>,
    call: u64,
    since: Duration,
}

/// The thread that watches all forwarders; it ends when this is dropped.
#[derive(Debug)]
pub struct Watchdog {
    all: Arc<Mutex<Vec<Looked>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub fn start() -> std::io::Result<Self> {
        let (all, ended) = (Arc::<Mutex<Vec<Looked>>>::default(), Arc::<AtomicBool>::default());
        let (looked_after, end) = (all.clone(), ended.clone());
        let body = move || {
            while !end.load(Ordering::Relaxed) {
                thread::sleep(PERIOD);
                let mut all = looked_after.lock().unwrap_or_else(PoisonError::into_inner);
                all.iter_mut().for_each(look);
            }
        };
        let thread = thread::Builder::new().name("lua-watchdog".into()).spawn(body)?;
        Ok(Self { all, ended, thread: Some(thread) })
    }

    /// Adds a watch.
    pub(crate) fn add(&self, watch: Arc<Watch>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // A watch that only the watchdog holds belongs to a state that was dropped.
        all.retain(|looked| Arc::strong_count(&looked.watch) > 1);
        all.push(Looked { watch, call: 0, since: Duration::ZERO });
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(looked: &mut Looked) {
    let call = looked.watch.call.load(Ordering::Acquire);
    if call.is_multiple_of(2) {
        looked.call = call;
        return;
    }
    // A thread that is in a call exists.
    let thread = looked.watch.thread.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((thread, clock)) = *thread else { return };
    let Ok(now) = clock_gettime(clock).map(Duration::from) else { return };
    if call != looked.call {
        (looked.call, looked.since) = (call, now);
        return;
    }
    let budget = Duration::from_micros(looked.watch.budget_us.load(Ordering::Relaxed));
    let unwanted = looked.watch.is_unwanted(is_loading_stopped());
    if unwanted || now.saturating_sub(looked.since) >= budget {
        looked.watch.late.store(call, Ordering::Release);
        let _ = pthread_kill(thread, SIGNAL);
    }
}
