//! How a running forwarder gets other steps and settings: between two batches, without waiting.
//!
//! ```text
//!   owner  -- put(new) -->  [ one place ]  <-- looks once a round --  forwarder
//!   owner  <- take(old) --  [           ]  --- exchanges new for old --->
//! ```
//!
//! A forwarder looks at one flag a round, and is woken when it blocks. When it is set, what lies in the place and what the forwarder
//! has change sides, a move of some pointers; the old is left there for the owner, who frees it. If the
//! owner is just at the place, the forwarder does not wait but looks again a round later. Giving the old
//! back in the same way undoes an exchange.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk::{Cause, Doorbell};

use crate::distribution::Schedulers;
use crate::forwarder::Settings;
use crate::graph::Graph;
use crate::interface::InterfaceInfo;
use crate::wires::Rewiring;

/// What a forwarder is to have in place of what it has; after the exchange, what it had.
#[derive(Default)]
pub struct Replacement {
    /// The steps.
    pub graph: Option<Graph>,
    /// What steps need to know of the ports, by their indexes.
    pub ports: Option<Vec<InterfaceInfo>>,
    /// Its connections, or some.
    pub wires: Option<Rewiring>,
    /// When transmit bursts leave, and when it waits.
    pub settings: Option<Settings>,
    /// Queues of ports in software, or that there is none.
    pub schedulers: Schedulers,
}

/// The place between the owner and one forwarder.
pub struct Exchange {
    /// Of the forwarder, which may block.
    doorbell: Arc<Doorbell>,
    /// Something lies there that the forwarder has not taken.
    waiting: AtomicBool,
    place: Mutex<Option<Replacement>>,
    /// The longest round of the forwarder at the last exchange and behind it, in TSC cycles; 0 until it
    /// is known.
    pause: AtomicU64,
}

impl Exchange {
    /// The place of a forwarder with this doorbell.
    pub fn new(doorbell: Arc<Doorbell>) -> Self {
        let (waiting, pause) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { doorbell, waiting, place: Mutex::new(None), pause }
    }

    /// Has the forwarder make a round at once, if it blocks.
    pub fn wake(&self) {
        self.doorbell.ring(Cause::Control);
    }

    /// Lays something there for the forwarder; what lay there before and was not taken is given back.
    pub fn put(&self, new: Replacement) -> Option<Replacement> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let before = place.replace(new);
        self.pause.store(0, Ordering::Relaxed);
        self.waiting.store(true, Ordering::Release);
        drop(place);
        self.wake();
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

    /// The longest that a packet was held up by the last exchange, in TSC cycles: the longest round of
    /// the forwarder, that of the exchange and some behind it, in which what is new gets warm. `None` until
    /// they are over.
    pub fn pause(&self) -> Option<u64> {
        Some(self.pause.load(Ordering::Relaxed)).filter(|&cycles| cycles > 0)
    }

    /// The forwarder's side: exchanges, unless the owner is at the place; true if it has.
    #[cold]
    pub(crate) fn serve(&self, exchange: impl FnOnce(&mut Replacement)) -> bool {
        let Ok(mut place) = self.place.try_lock() else { return false };
        // The owner may have taken it back.
        if !self.waiting.load(Ordering::Acquire) {
            return false;
        }
        if let Some(content) = &mut *place {
            exchange(content);
        }
        self.waiting.store(false, Ordering::Release);
        true
    }

    /// The forwarder's side: how long the longest round was.
    pub(crate) fn set_pause(&self, cycles: u64) {
        self.pause.store(cycles.max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::{Output, Outputs, Step};
    use crate::{Batch, Mask};

    struct Pass;

    impl Step for Pass {
        fn outputs(&self) -> &'static [Output] {
            const { &[Output::next("next")] }
        }

        fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
            out[0] = input;
        }
    }

    fn exchange() -> Exchange {
        Exchange::new(Arc::new(Doorbell::new().unwrap()))
    }

    fn named(name: &str) -> Replacement {
        let mut graph = GraphBuilder::new();
        graph.add(name, Pass).unwrap();
        graph.transmit(name, "next").unwrap();
        Replacement { graph: Some(graph.build().unwrap()), ..Replacement::default() }
    }

    fn name(replacement: &Replacement) -> &str {
        replacement.graph.as_ref().map_or("", |graph| &graph.shape().steps[0].name)
    }

    #[test]
    fn what_is_taken_leaves_the_old_in_its_place() {
        let (exchange, mut has) = (exchange(), named("old"));
        assert!(exchange.take().is_none() && !exchange.is_waiting());
        assert!(exchange.put(named("new")).is_none());
        assert!(exchange.is_waiting());
        exchange.serve(|new| std::mem::swap(new, &mut has));
        assert!(!exchange.is_waiting());
        let old = exchange.take().unwrap().ok().unwrap();
        assert_eq!((name(&has), name(&old)), ("new", "old"));
        // A second look finds nothing.
        exchange.serve(|_| unreachable!());
        assert!(exchange.take().is_none());
    }

    #[test]
    fn a_forwarder_that_blocks_is_woken() {
        let exchange = exchange();
        exchange.doorbell.listen();
        exchange.put(named("new"));
        assert!(exchange.doorbell.ignore().control);
    }

    #[test]
    fn what_is_taken_back_is_not_exchanged_any_more() {
        let exchange = exchange();
        exchange.put(named("new"));
        let back = exchange.take().unwrap().err().unwrap();
        assert_eq!(name(&back), "new");
        assert!(!exchange.is_waiting());
        exchange.serve(|_| unreachable!());
    }

    #[test]
    fn a_forwarder_does_not_wait_for_the_owner() {
        let (exchange, mut has) = (exchange(), named("old"));
        exchange.put(named("new"));
        let place = exchange.place.lock().unwrap();
        exchange.serve(|_| unreachable!());
        drop(place);
        assert!(exchange.is_waiting(), "it looks again a round later");
        exchange.serve(|new| std::mem::swap(new, &mut has));
        assert_eq!(name(&has), "new");
    }

    #[test]
    fn a_panic_of_the_owner_at_the_place_is_not_the_forwarder_s() {
        let exchange = exchange();
        exchange.put(named("new"));
        let poison = || {
            let _place = exchange.place.lock().unwrap();
            panic!("the owner's");
        };
        assert!(crate::quarantine::guard(poison).is_err());
        exchange.serve(|_| unreachable!());
        assert!(exchange.take().unwrap().is_err());
    }
}
