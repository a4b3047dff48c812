//! Numbers that steps publish and others read: how many packets a queue holds.
//!
//! Each forwarder's step writes a gauge of its own. The gauges of a name are read together. In return all steps of a name
//! can be asked to begin anew.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;

/// The number of one forwarder's step.
#[derive(Debug, Default)]
pub struct Gauge {
    value: AtomicUsize,
    /// The highest of all gauges of the name.
    most: Arc<AtomicUsize>,
    /// The number of times that steps of the name were asked to begin anew, and that this one has done so.
    asked: Arc<AtomicUsize>,
    done: AtomicUsize,
}

impl Gauge {
    /// Returns true once after [`Gauges::begin_anew`].
    #[inline]
    pub fn begins_anew(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked == self.done.load(Ordering::Relaxed) {
            return false;
        }
        self.done.store(asked, Ordering::Relaxed);
        true
    }

    /// Publishes a value: a store, and only a load while there was a higher one.
    #[inline]
    pub fn set(&self, value: usize) {
        self.value.store(value, Ordering::Relaxed);
        if value > self.most.load(Ordering::Relaxed) {
            self.most.fetch_max(value, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Named {
    gauges: Vec<Weak<Gauge>>,
    most: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
}

impl Named {
    fn all(&self) -> impl Iterator<Item = Arc<Gauge>> {
        self.gauges.iter().filter_map(Weak::upgrade)
    }
}

/// All gauges, by the names of their steps.
#[derive(Default)]
pub struct Gauges(Mutex<HashMap<String, Named>>);

impl Gauges {
    /// A gauge for a step of this name. Takes a lock: a step asks when it is made.
    pub fn make(&self, name: &str) -> Arc<Gauge> {
        let mut all = lock(&self.0);
        all.retain(|_, named| {
            named.gauges.retain(|gauge| gauge.strong_count() > 0);
            !named.gauges.is_empty()
        });
        let named = all.entry(name.to_owned()).or_default();
        let done = AtomicUsize::new(named.asked.load(Ordering::Relaxed));
        let (most, asked) = (named.most.clone(), named.asked.clone());
        let gauge = Arc::new(Gauge { value: AtomicUsize::new(0), most, asked, done });
        named.gauges.push(Arc::downgrade(&gauge));
        gauge
    }

    /// The sum of the gauges of a name, and the highest value that one of them had.
    pub fn read(&self, name: &str) -> (usize, usize) {
        let all = lock(&self.0);
        let Some(named) = all.get(name) else { return (0, 0) };
        let sum = named.all().map(|gauge| gauge.value.load(Ordering::Relaxed)).sum();
        (sum, named.most.load(Ordering::Relaxed))
    }

    /// Asks the steps of a name to begin anew.
    pub fn begin_anew(&self, name: &str) {
        if let Some(named) = lock(&self.0).get(name) {
            named.asked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets the highest value of a name.
    pub fn reset(&self, name: &str) {
        if let Some(named) = lock(&self.0).get(name) {
            let now = named.all().map(|gauge| gauge.value.load(Ordering::Relaxed)).max();
            named.most.store(now.unwrap_or_default(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_of_a_name_are_read_together_while_they_live() {
        let gauges = Gauges::default();
        let (one, two, other) = (gauges.make("q"), gauges.make("q"), gauges.make("r"));
        one.set(5);
        two.set(7);
        other.set(100);
        one.set(2);
        assert_eq!((gauges.read("q"), gauges.read("none")), ((9, 7), (0, 0)));
        gauges.reset("q");
        two.set(1);
        assert_eq!(gauges.read("q"), (3, 7));
        drop(two);
        assert_eq!(gauges.read("q"), (2, 7));
        // A step that replaces another continues its highest value.
        let next = gauges.make("q");
        drop(one);
        next.set(3);
        assert_eq!(gauges.read("q"), (3, 7));
        drop(next);
        drop(gauges.make("r"));
        assert_eq!(gauges.read("q"), (0, 0));
    }

    #[test]
    fn all_steps_of_a_name_begin_anew_once() {
        let gauges = Gauges::default();
        let (one, two, other) = (gauges.make("q"), gauges.make("q"), gauges.make("r"));
        assert!(!one.begins_anew());
        gauges.begin_anew("q");
        gauges.begin_anew("none");
        // One that is made now is new.
        let next = gauges.make("q");
        assert_eq!(
            [&one, &two, &other, &next].map(|gauge| gauge.begins_anew()),
            [true, true, false, false]
        );
        assert_eq!([&one, &two].map(|gauge| gauge.begins_anew()), [false, false]);
    }
}
