//! Counters and status of steps in Lua; written by a forwarder, read by any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most counters of one router's script; each element of an array counts as one.
pub const COUNTERS_MAX: usize = 65_536;

/// The counters of one forwarder, in the order in which the script made them.
pub struct ScriptCounters(Box<[AtomicU64]>);

impl Default for ScriptCounters {
    fn default() -> Self {
        Self((0..COUNTERS_MAX).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ScriptCounters {
    /// Returns the value of the counter with this index; 0 if there is none.
    pub fn get(&self, index: usize) -> u64 {
        self.0.get(index).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn add_for_tests(&self, index: usize, number: u64) {
        self.0[index].fetch_add(number, Ordering::Relaxed);
    }

    pub(crate) fn as_ptr(&self) -> *const AtomicU64 {
        self.0.as_ptr()
    }
}

/// The names of a script's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterNames {
    /// Name, index of the first counter, and their number: more than one for an array.
    names: Vec<(String, usize, usize)>,
}

impl CounterNames {
    /// Returns the index of the first of `size` counters of this name, which may have been
    /// registered before.
    ///
    /// # Errors
    /// There are too many, or the name was used for another number of counters.
    pub fn register(&mut self, name: &str, size: usize) -> Result<usize, String> {
        if let Some((_, first, known)) = self.names.iter().find(|(known, ..)| known == name) {
            if *known != size {
                return Err(format!(
                    "counter \"{name}\": made with {known} elements already, now {size}"
                ));
            }
            return Ok(*first);
        }
        let first = self.names.last().map_or(0, |(_, first, size)| first + size);
        if size == 0 || first + size > COUNTERS_MAX {
            return Err(format!(
                "counter \"{name}\": {size} elements; 1 to {COUNTERS_MAX} of all counters together"
            ));
        }
        self.names.push((name.to_owned(), first, size));
        Ok(first)
    }

    /// Iterates over all counters: name, with the array index if there is one, and index.
    pub fn all(&self) -> impl Iterator<Item = (String, usize)> {
        self.names.iter().flat_map(|(name, first, size)| {
            (0..*size).map(move |k| match size {
                1 => (name.clone(), *first),
                _ => (format!("{name}[{k}]"), first + k),
            })
        })
    }
}

/// The last failure of a step on one forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error, with a traceback.
    pub message: String,
    /// Number of failures so far.
    pub count: u64,
}

/// Status of a step in Lua on one forwarder.
#[derive(Debug, Default)]
pub struct StepStatus {
    /// Calls that ended with an error or exceeded their budget.
    pub(crate) failures: AtomicU64,
    /// The calls among these that exceeded their budget.
    pub(crate) overruns: AtomicU64,
    /// Packets dropped because of failures.
    pub(crate) dropped: AtomicU64,
    pub(crate) disabled: AtomicBool,
    last: Mutex<Option<Failure>>,
}

impl StepStatus {
    /// Returns the numbers of failures, and of overruns among them.
    pub fn failures(&self) -> (u64, u64) {
        (self.failures.load(Ordering::Relaxed), self.overruns.load(Ordering::Relaxed))
    }

    /// Returns the number of packets dropped because the step failed.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns true if the step has failed too often and is not called any more.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    /// Takes the last failure that has not been taken yet.
    pub fn take_failure(&self) -> Option<Failure> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    #[cfg(test)]
    pub(crate) fn last_for_tests(&self) -> std::sync::MutexGuard<'_, Option<Failure>> {
        self.last.lock().unwrap()
    }

    /// Counts a failure, and records it unless a reader holds the lock.
    pub(crate) fn failed(&self, message: &str, overrun: bool) -> u64 {
        let count = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        self.overruns.fetch_add(u64::from(overrun), Ordering::Relaxed);
        if let Ok(mut last) = self.last.try_lock() {
            *last = Some(Failure { message: message.to_owned(), count });
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_and_places() {
        let mut names = CounterNames::default();
        assert_eq!(names.register("voip", 1), Ok(0));
        assert_eq!(names.register("dscp", 3), Ok(1));
        assert_eq!(names.register("voip", 1), Ok(0), "the same");
        let all: Vec<_> = names.all().collect();
        let expected = [("voip", 0), ("dscp[0]", 1), ("dscp[1]", 2), ("dscp[2]", 3)];
        assert_eq!(all, expected.map(|(name, index)| (name.to_owned(), index)));
        assert!(names.register("dscp", 4).unwrap_err().contains("3 elements already"));
        assert!(names.register("much", COUNTERS_MAX).is_err());
    }
}
