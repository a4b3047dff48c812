//! Quarantine: a packet that causes a panic is set aside, and everything else continues.
//!
//! A panic is a defect. Only the packet that provokes it may be lost: the running unit catches it
//! with [`guard`], counts the packet as dropped ([`quarantined`]) and passes a copy on, with the
//! port, the time and the message, to the writer of the quarantine file. That is another thread,
//! behind a bounded channel: when it is full, the copy is lost.
//!
//! [`quarantined`]: crate::reason::DropReason::Quarantined

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Once};
use std::time::SystemTime;

use crate::interface::InterfaceId;

/// Copies that wait to be written.
const WAITING: usize = 64;

/// A quarantined packet.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// The ingress interface, if known.
    pub interface: Option<InterfaceId>,
    /// The time of its quarantine.
    pub time: SystemTime,
    /// The message and place of the panic.
    pub message: String,
    /// The frame, as far as it is in the packet's first buffer.
    pub frame: Vec<u8>,
}

/// The channel to the writer of the quarantine file; each unit has a copy.
#[derive(Clone, Debug)]
pub struct Quarantine {
    to: SyncSender<Suspect>,
    lost: Arc<AtomicU64>,
}

impl Quarantine {
    /// Creates the channel: its sender and receiver.
    pub fn new() -> (Self, Receiver<Suspect>) {
        let (to, from) = sync_channel(WAITING);
        (Self { to, lost: Arc::default() }, from)
    }

    /// Quarantines a copy of the frame.
    pub fn put(&self, interface: Option<InterfaceId>, message: &str, frame: &[u8]) {
        let suspect = Suspect {
            interface,
            time: SystemTime::now(),
            message: message.to_owned(),
            frame: frame.to_vec(),
        };
        if self.to.try_send(suspect).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of copies lost because too many waited.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// True if [`guard`] catches panics of this thread.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    /// The message of the last such panic.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work`, which must not panic. If it does, nothing is printed; the message is returned, with
/// the place in the source. The caller must complete the unfinished work.
///
/// # Errors
/// The panic's message.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(keep_quiet);
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    result.map_err(|payload| SAID.take().unwrap_or_else(|| text(&*payload).to_owned()))
}

/// Suppresses the output of caught panics: a flood would cause one for each packet.
fn keep_quiet() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if GUARDED.get() {
            SAID.set(Some(describe(info)));
        } else {
            print(info);
        }
    }));
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map_or(String::new(), |place| format!(" ({place})"));
    format!("{}{place}", text(info.payload()))
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("a panic without words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_comes_back_with_its_words_and_place() {
        assert_eq!(guard(|| 7), Ok(7));
        let said = guard(|| panic!("no {}", 5)).unwrap_err();
        assert!(said.starts_with("no 5 (") && said.contains("quarantine.rs:"), "{said}");
        let said = guard(|| std::panic::panic_any(7u8)).unwrap_err();
        assert!(said.starts_with("a panic without words ("), "{said}");
        assert_eq!(guard(|| "still here"), Ok("still here"));
    }

    #[test]
    fn a_guard_within_a_guard_catches_its_own() {
        let outer = guard(|| {
            assert!(guard(|| panic!("inner")).is_err());
            panic!("outer");
        });
        assert!(outer.unwrap_err().starts_with("outer ("));
    }

    #[test]
    fn what_nobody_takes_is_counted_and_not_waited_for() {
        let (quarantine, from) = Quarantine::new();
        for _ in 0..WAITING + 3 {
            quarantine.put(Some(InterfaceId::FIRST), "why", b"frame");
        }
        assert_eq!(quarantine.lost(), 3);
        drop(quarantine);
        let all: Vec<_> = from.iter().collect();
        assert_eq!((all.len(), &*all[0].frame, &*all[0].message), (WAITING, &b"frame"[..], "why"));
        assert_eq!(all[0].interface, Some(InterfaceId::FIRST));
    }
}
