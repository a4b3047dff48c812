//! Observers of packets: the trace and the captures under way, as watches of forwarders.
//!
//! All watches of a forwarder are exchanged together, when one begins or ends, and after a change, which may have started
//! forwarders.

use std::sync::Arc;

use anyhow::Result;
use dataplane::capture::{Capture, CaptureWatch, DropCapture};
use dataplane::drop_watch::DropObserver;
use dataplane::exchange::Replacement;
use dataplane::filters::FilterTable;
use dataplane::watch::{Made, Watch, Watching};

use super::super::server::Course;
use super::super::wiring::Wiring;
use super::trace::Tracing;
use super::{Forwarding, Owner};

/// A filter whose first rule selects packets; `None`: all are.
pub(super) type Selecting = Option<Arc<FilterTable>>;

/// The observers.
#[derive(Default)]
pub struct Observers {
    pub(super) trace: Option<Tracing>,
    pub(super) captures: Vec<Capturing>,
}

/// A capture under way.
pub(super) struct Capturing {
    pub capture: Arc<Capture>,
    pub selecting: Selecting,
    /// The name of the interface whose packets are wanted.
    pub interface: Option<String>,
    pub course: Arc<Course>,
}

impl Observers {
    /// The watches of a forwarder.
    fn watches(&self, forwarder: usize) -> Vec<Box<dyn Watch>> {
        let trace = self.trace.as_ref().and_then(|trace| trace.watch(forwarder));
        let capture = |of: &Capturing| -> Box<dyn Watch> {
            Box::new(CaptureWatch::new(of.capture.clone(), of.selecting.clone()))
        };
        trace.into_iter().chain(self.captures.iter().map(capture)).collect()
    }

    /// The observers of a unit's drops outside the graph.
    fn of_drops(&self) -> Vec<Box<dyn DropObserver>> {
        let of_drops = |of: &Capturing| -> Option<Box<dyn DropObserver>> {
            Some(Box::new(DropCapture::new(of.capture.clone(), of.selecting.clone())?))
        };
        self.captures.iter().filter_map(of_drops).collect()
    }

    fn is_none(&self) -> bool {
        self.trace.is_none() && self.captures.is_empty()
    }
}

impl Owner {
    /// Makes a filter of a rule's words, see [`Config::rule_of_words`](control::config::Config::rule_of_words).
    pub(super) fn selecting(&self, rule: &[String]) -> Result<Selecting> {
        if rule.is_empty() {
            return Ok(None);
        }
        let spec = self.configurations.current.rule_of_words(rule).map_err(anyhow::Error::msg)?;
        let table = FilterTable::new(&spec, None, &self.filtering.sets.readers());
        Ok(Some(Arc::new(table.map_err(anyhow::Error::msg)?)))
    }

    /// Gives forwarders the watches of the observers, and the first one a packet made by hand, which comes back. Forwarders
    /// and slow path workers show their drops to the observers.
    ///
    /// # Errors
    /// A forwarder does not take them; all have the former ones.
    pub(super) async fn exchange_watches(&mut self, made: Option<Made>) -> Result<Option<Made>> {
        let mut made = made;
        self.watch_drops();
        let observers = &self.forwarding.observers;
        let replacement = |forwarder| {
            let watching = Watching { watches: observers.watches(forwarder), made: made.take() };
            Replacement { watching: Some(watching), ..Replacement::default() }
        };
        let replacements = (0..self.forwarders()).map(replacement).collect();
        let exchange = async |wiring: &mut Wiring| wiring.exchanges.exchange(replacements).await;
        let old = self.with_wiring(exchange).await?;
        Ok(old.into_iter().find_map(|old| old.watching?.made))
    }

    /// Has all units show their drops outside the graph to the observers.
    pub(super) fn watch_drops(&self) {
        let Forwarding { observers, ledger, .. } = &self.forwarding;
        let forwarders = ledger.forwarders.iter().map(|view| &view.counters.drops);
        let workers = ledger.slow.counters.iter().map(|counters| &counters.drops);
        forwarders.chain(workers).for_each(|drops| drops.watch.set(observers.of_drops()));
    }

    /// Gives forwarders their watches after an observer has ended, or after a change of forwarders.
    pub(super) async fn watch_on(&mut self) {
        if let Err(error) = self.exchange_watches(None).await {
            tracing::warn!("traces and captures: forwarders keep the former ones: {error:#}");
        }
    }

    /// As [`Self::watch_on`], if there are observers.
    pub(super) async fn watch_again(&mut self) {
        if !self.forwarding.observers.is_none() {
            self.watch_on().await;
        }
    }
}
