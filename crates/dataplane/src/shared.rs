//! State of steps that outlives them and is shared: by the steps of one kind on all forwarders, and by them and other
//! threads.
//!
//! The data plane knows such state by its type alone, so a step declares it in its own file:
//!
//! ```
//! # use dataplane::shared::Shared; use std::sync::atomic::{AtomicU64, Ordering};
//! #[derive(Default)]
//! struct Seen(AtomicU64);
//! let shared = Shared::default();
//! shared.get::<Seen>().0.store(7, Ordering::Relaxed);
//! assert_eq!(shared.get::<Seen>().0.load(Ordering::Relaxed), 7);
//! ```

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// One state of each type, made when it is first asked for.
#[derive(Default)]
pub struct Shared(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Shared {
    /// The state of this type. Takes a lock: a step asks when it is made.
    pub fn get<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut all = lock(&self.0);
        let state = all.entry(TypeId::of::<T>()).or_insert_with(|| Arc::<T>::default()).clone();
        // Cannot fail: the key is the type.
        state.downcast().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct One(AtomicU64);

    #[derive(Default)]
    struct Other(AtomicU64);

    #[test]
    fn each_type_has_one_state() {
        let shared = Shared::default();
        shared.get::<One>().0.store(1, Ordering::Relaxed);
        assert_eq!(shared.get::<One>().0.load(Ordering::Relaxed), 1);
        assert_eq!(shared.get::<Other>().0.load(Ordering::Relaxed), 0);
    }
}
