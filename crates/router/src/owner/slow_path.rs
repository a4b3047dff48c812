//! Another number of slow path workers, or other lengths of the rings to them.

use std::sync::Arc;

use anyhow::Result;
use control::config::Config;

use super::super::wiring::{Replaced, Wiring};
use super::Owner;

impl Owner {
    /// Replaces the slow path's workers if a configuration asks for others; returns true if it did.
    ///
    /// # Errors
    /// No memory for rings, no threads, or a forwarder that takes nothing; everything is as before then.
    pub(super) async fn replace_workers(&mut self, config: &Config) -> Result<bool> {
        let wanted = config.slowpath;
        let Some(wiring) = &self.forwarding.wiring else { return Ok(false) };
        if !wiring.needs_other_workers(&wanted) {
            return Ok(false);
        }
        wiring.factory().buffers.check_rings(config, wiring.forwarders())?;
        let idle = self.slow_path.threads.idle(wanted.workers)?;
        let slow = &mut self.forwarding.ledger.slow;
        // Workers of the same number count on; what those beyond have counted stays in the sums.
        let known = slow.counters.len().max(wanted.workers);
        slow.counters.resize_with(known, Arc::default);
        let (counters, rates) =
            (slow.counters[..wanted.workers].to_vec(), slow.class_rates.clone());
        let readers = self.routing.readers.clone();
        let replace = async |wiring: &mut Wiring| {
            wiring.replace_workers(&wanted, (&counters, &rates), &readers).await
        };
        let Replaced { workers, former } = self.with_wiring(replace).await?;
        self.slow_path.threads.start(idle, workers);
        let forget = async |wiring: &mut Wiring| {
            wiring.forget_workers(former).await;
            Ok(())
        };
        self.with_wiring(forget).await?;
        tracing::info!("slow path: {} workers", wanted.workers);
        Ok(true)
    }
}
