//! Host interfaces that are being removed.
//!
//! A host interface of another network namespace is removed when the kernel's listener has left that namespace, after
//! the change that replaced it has been answered. A change that opens one of the same name and place, such as the
//! rollback, waits for it.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use dataplane::lock::lock;

/// Longest time that a change waits; what is still there then is in its way, and named by its error.
const PATIENCE: Duration = Duration::from_secs(20);

/// The number of removals that have not ended.
#[derive(Clone, Debug, Default)]
pub struct Removals(Arc<(Mutex<usize>, Condvar)>);

/// A removal, until it is dropped.
#[derive(Debug)]
pub struct Removal(Removals);

impl Removals {
    /// A removal begins.
    pub fn begin(&self) -> Removal {
        self.change(|count| *count += 1);
        Removal(self.clone())
    }

    /// Waits for the end of all removals, for 20 seconds at most.
    pub fn wait(&self) {
        let (count, ended) = &*self.0;
        let _ = ended.wait_timeout_while(lock(count), PATIENCE, |count| *count > 0);
    }

    fn change(&self, by: impl Fn(&mut usize)) {
        let (count, ended) = &*self.0;
        by(&mut lock(count));
        ended.notify_all();
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.0.change(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_is_opened_waits_for_all_removals() {
        let removals = Removals::default();
        removals.wait();
        let (one, two) = (removals.begin(), removals.begin());
        let waiting = thread::spawn({
            let removals = removals.clone();
            move || removals.wait()
        });
        drop(one);
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(two);
        waiting.join().unwrap();
    }
}
