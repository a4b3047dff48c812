//! Sums of counters over all forwarders that run the same script.
//!
//! Each forwarder writes its own counters. Forwarders whose graphs are built together share a list of
//! their counters, complete once all graphs are built, and add up the values they read: a sum may lag
//! behind the most recent stores of the other cores.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::status::ScriptCounters;

/// The counters of the forwarders whose graphs are built together.
#[derive(Default)]
pub struct Peers {
    joining: Mutex<Vec<Arc<ScriptCounters>>>,
    all: OnceLock<Box<[Arc<ScriptCounters>]>>,
}

impl Peers {
    pub(crate) fn join(&self, counters: &Arc<ScriptCounters>) {
        self.joining.lock().unwrap_or_else(PoisonError::into_inner).push(counters.clone());
    }

    /// Completes the list, once all have joined: from now on there are sums.
    pub fn seal(&self) {
        let joined =
            std::mem::take(&mut *self.joining.lock().unwrap_or_else(PoisonError::into_inner));
        self.all.get_or_init(|| joined.into_boxed_slice());
    }

    /// Returns the sum of a counter over all forwarders; 0 before the list is complete.
    pub(crate) fn sum(&self, index: usize) -> u64 {
        let all = self.all.get().into_iter().flatten();
        all.map(|counters| counters.get(index)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_that_of_all_who_have_joined() {
        let (peers, each) =
            (Peers::default(), [(); 3].map(|()| Arc::new(ScriptCounters::default())));
        each.iter().for_each(|counters| peers.join(counters));
        each.iter().zip([1, 10, 100]).for_each(|(counters, n)| counters.add_for_tests(7, n));
        assert_eq!(peers.sum(7), 0, "not all may be there");
        peers.seal();
        assert_eq!((peers.sum(7), peers.sum(8)), (111, 0));
        each[0].add_for_tests(7, u64::MAX);
        assert_eq!(peers.sum(7), 110, "counters wrap");
    }
}
