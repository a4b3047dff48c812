//! How a running forwarder gets other steps and settings: between two batches, without waiting.
//!
//! ```text
//!   owner  -- put(new) -->  [ one place ]  <-- looks once a round --  forwarder
//!   owner  <- take(old) --  [           ]  --- exchanges new for old --->
//! ```
//!
//! A forwarder looks at one flag a round. When it is set, what lies in the place and what the forwarder
//! has change sides, a move of some pointers; the old is left there for the owner, who frees it. If the
//! owner is just at the place, the forwarder does not wait but looks again a round later. Giving the old
//! back in the same way undoes an exchange.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::graph::Graph;

/// What a forwarder is to have in place of what it has; after the exchange, what it had.
#[derive(Default)]
pub struct Replacement {
    /// The steps.
    pub graph: Option<Graph>,
}

/// The place between the owner and one forwarder.
#[derive(Default)]
pub struct Exchange {
    /// Something lies there that the forwarder has not taken.
    waiting: AtomicBool,
    place: Mutex<Option<Replacement>>,
}

impl Exchange {
    /// Lays something there for the forwarder; what lay there before and was not taken is given back.
    pub fn put(&self, new: Replacement) -> Option<Replacement> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let before = place.replace(new);
        self.waiting.store(true, Ordering::Release);
        before
    }

    /// The forwarder has not yet taken what was laid there.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes what lies there: `Ok` with what the forwarder had, or `Err` with what it did not take and
    /// will not take any more.
    pub fn take(&self) -> Option<Result<Replacement, Replacement>> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let content = place.take()?;
        let untouched = self.waiting.swap(false, Ordering::AcqRel);
        Some(if untouched { Err(content) } else { Ok(content) })
    }

    /// The forwarder's side: exchanges, unless the owner is at the place.
    #[cold]
    pub(crate) fn serve(&self, exchange: impl FnOnce(&mut Replacement)) {
        let Ok(mut place) = self.place.try_lock() else { return };
        // The owner may have taken it back.
        if !self.waiting.load(Ordering::Acquire) {
            return;
        }
        if let Some(content) = &mut *place {
            exchange(content);
        }
        self.waiting.store(false, Ordering::Release);
    }
}
