//! Exchange of a running forwarder's steps and settings: between two batches, without waiting.
//!
//! ```text
//!   owner  -- put(new) -->  [ one place ]  <-- looks once a round --  forwarder
//!   owner  <- take(old) --  [           ]  --- exchanges new for old --->
//! ```
//!
//! A forwarder checks one flag per round, and is woken if it blocks. When the flag is set, the forwarder swaps
//! its state with the replacement in the slot, a move of some pointers; the old state stays in the slot for the
//! owner to free. If the owner is accessing the slot, the forwarder does not wait but tries again a round
//! later. Putting the old state back in the same way undoes an exchange.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dpdk::{Cause, Doorbell};

use crate::distribution::{Schedulers, TxConfig};
use crate::graph::Graph;
use crate::interface::InterfaceInfo;
use crate::lock::lock;
use crate::polling::Polling;
use crate::watch::Watching;
use crate::wires::Rewiring;

/// Settings of a forwarder that can be changed while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// When transmit bursts leave.
    pub tx: TxConfig,
    /// Quotas of sources, and its waiting.
    pub polling: Polling,
}

/// The new state of a forwarder; after the exchange, its previous state.
#[derive(Default)]
pub struct Replacement {
    /// The steps.
    pub graph: Option<Graph>,
    /// Facts about the ports for steps, by index.
    pub ports: Option<Vec<InterfaceInfo>>,
    /// Its connections, or some.
    pub wires: Option<Rewiring>,
    /// Conditions for sending transmit bursts, and the waiting.
    pub settings: Option<Settings>,
    /// Queues of ports in software, or their absence.
    pub schedulers: Schedulers,
    /// Its observers.
    pub watching: Option<Watching>,
}

/// The slot between the owner and one forwarder.
pub struct Exchange {
    /// The doorbell of the forwarder, which may block.
    doorbell: Arc<Doorbell>,
    /// True if the slot has a replacement that the forwarder has not taken.
    waiting: AtomicBool,
    place: Mutex<Option<Replacement>>,
    /// The longest of the forwarder's rounds during and after the last exchange, in TSC cycles; 0 until known.
    pause: AtomicU64,
}

impl Exchange {
    /// Creates the slot of a forwarder with this doorbell.
    pub fn new(doorbell: Arc<Doorbell>) -> Self {
        let (waiting, pause) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { doorbell, waiting, place: Mutex::new(None), pause }
    }

    /// Makes a blocked forwarder start a round immediately.
    pub fn wake(&self) {
        self.doorbell.ring(Cause::Control);
    }

    /// Puts a replacement into the slot; returns the previous one if it was not taken.
    pub fn put(&self, new: Replacement) -> Option<Replacement> {
        let mut place = lock(&self.place);
        let before = place.replace(new);
        self.pause.store(0, Ordering::Relaxed);
        self.waiting.store(true, Ordering::Release);
        drop(place);
        self.wake();
        before
    }

    /// Returns true if the forwarder has not yet taken the replacement.
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes the content of the slot: `Ok` with the forwarder's previous state, or `Err` with a replacement
    /// that was not taken and will not be.
    pub fn take(&self) -> Option<Result<Replacement, Replacement>> {
        let mut place = lock(&self.place);
        let content = place.take()?;
        let untouched = self.waiting.swap(false, Ordering::AcqRel);
        Some(if untouched { Err(content) } else { Ok(content) })
    }

    /// The longest time that the last exchange held up a packet, in TSC cycles: the longest of the forwarder's
    /// rounds, from that of the exchange to some later ones, in which the new state warms the caches. `None`
    /// until they are over.
    pub fn pause(&self) -> Option<u64> {
        Some(self.pause.load(Ordering::Relaxed)).filter(|&cycles| cycles > 0)
    }

    /// The forwarder's side: exchanges, unless the owner is accessing the slot; returns true if it
    /// has.
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

    /// The forwarder's side: sets the duration of the longest round.
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
        // There is no second replacement.
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
