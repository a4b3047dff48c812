//! Makes a change to another configuration, so that no packet is lost that the change is not about.
//!
//! 1. New routes and other paths of routes: where both stay, packets go one way or the other.
//! 2. Every forwarder exchanges its graph between two batches.
//! 3. Routes that are gone.
//!
//! What fails is undone, and so is what was done before it: the router is as it was.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control::config::{Config, Diff, Route};
use dataplane::exchange::Replacement;

use super::super::graphs::{FailureLog, ForwarderGraph};
use super::Owner;

/// The longest that a forwarder is waited for: a step may run for as long as its budget says.
const PATIENCE: Duration = Duration::from_secs(5);

impl Owner {
    /// Makes a change, or none.
    pub(super) async fn carry_out(
        &mut self,
        new: &Config,
        diff: &Diff,
        graphs: Vec<ForwarderGraph>,
    ) -> Result<()> {
        let done = match self.put_routes(diff.routes.added.iter().chain(after(diff))) {
            Ok(()) => self.exchange_graphs(new, graphs).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            self.undo_routes(diff);
            return Err(error.context("nothing was changed"));
        }
        self.remove_routes(diff.routes.removed.iter());
        Ok(())
    }

    /// All of the routes, or an error after some of them.
    fn put_routes<'a>(&mut self, routes: impl Iterator<Item = &'a Route>) -> Result<()> {
        let (rib, known) = (&mut self.rib, &mut self.configurations.routes);
        // What the FIB refused before is not about these.
        self.sources.say_what_waits(rib);
        rib.batch(|rib| {
            let mut routes = routes;
            routes.try_for_each(|route| {
                known.put(rib, route).with_context(|| format!("line {}", route.line))
            })
        })?;
        match rib.drain_refusals().into_iter().next() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    fn remove_routes<'a>(&mut self, routes: impl Iterator<Item = &'a Route>) {
        let (rib, known) = (&mut self.rib, &mut self.configurations.routes);
        rib.batch(|rib| routes.for_each(|route| known.remove(rib, route)));
    }

    /// Puts the routes back that were there before, and takes out those that were not.
    fn undo_routes(&mut self, diff: &Diff) {
        let before = diff.routes.changed.iter().map(|(before, _)| before);
        if let Err(error) = self.put_routes(before) {
            tracing::error!("a route that was there before cannot be put back: {error:#}");
        }
        self.remove_routes(diff.routes.added.iter());
    }

    /// Gives each forwarder its graph, if there is one for each.
    async fn exchange_graphs(&mut self, new: &Config, graphs: Vec<ForwarderGraph>) -> Result<()> {
        if graphs.is_empty() {
            return Ok(());
        }
        let Some(shape) = graphs.first().map(|(graph, _)| graph.shape().clone()) else {
            return Ok(());
        };
        let views: Vec<_> =
            graphs.iter().map(|(graph, lua)| (graph.counters().clone(), lua.clone())).collect();
        let graphs = graphs.into_iter().map(|(graph, _)| Replacement { graph: Some(graph) });
        let old = self.exchange(graphs.collect()).await?;
        // What the old steps have to say, before they are forgotten.
        self.failures.look(self.ledger.lua());
        self.failures = FailureLog::default();
        let names = new.script.as_ref().map(|script| script.counters.clone()).unwrap_or_default();
        self.ledger.replace_graphs(shape, views, names);
        drop(old);
        Ok(())
    }

    /// Gives each forwarder something for something else, which comes back; or nothing is exchanged.
    async fn exchange(&self, new: Vec<Replacement>) -> Result<Vec<Replacement>> {
        let exchanges = &self.configurations.exchanges;
        for (exchange, new) in exchanges.iter().zip(new) {
            exchange.put(new);
        }
        self.wait_for_forwarders().await;
        let outcomes: Vec<_> = exchanges.iter().map(|exchange| exchange.take()).collect();
        let Some(late) = outcomes.iter().position(|outcome| !matches!(outcome, Some(Ok(_)))) else {
            return Ok(outcomes.into_iter().flatten().flatten().collect());
        };
        for (exchange, outcome) in exchanges.iter().zip(outcomes) {
            if let Some(Ok(old)) = outcome {
                exchange.put(old);
            }
        }
        self.wait_for_forwarders().await;
        bail!(
            "forwarder {late} has not come to the end of a batch for {} s; see turnpike show steps for a \
             step that does not end, and the log",
            PATIENCE.as_secs()
        )
    }

    async fn wait_for_forwarders(&self) {
        let deadline = Instant::now() + PATIENCE;
        let waiting = || self.configurations.exchanges.iter().any(|exchange| exchange.is_waiting());
        while waiting() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Routes as they are to be, of those that are different.
fn after(diff: &Diff) -> impl Iterator<Item = &Route> {
    diff.routes.changed.iter().map(|(_, after)| after)
}
