//! Route tables of another structure, in place of those that forwarders and the slow path read.
//!
//! ```text
//!                     fill_fibs     graphs are      use_other_     leave_former_  a grace period later:
//!                                   exchanged       fibs           fibs           drop_former_fibs
//!   the RIB writes    old           old, new        old, new       new, old       new, old         new
//!   forwarders read   old           old             new            new            new              new
//!   slow path reads   old           old             old            old            either           new
//! ```
//!
//! Both get every change as long as anybody reads either of them, so no packet is looked up in routes that are out of
//! date. Filling takes about 0.3 s for a million routes; the owner does nothing else meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::node_tables::NodeTables;
use super::Owner;
use super::initial::NewFibs;

/// Longest wait for the end of a grace period, which takes as long as the slow path has work.
const PATIENCE_MS: usize = 1000;

impl Owner {
    /// Fills empty tables, by VRF, and gives them every change of routes from now on.
    ///
    /// # Errors
    /// They have no room for the routes, or those of the last change are still being read.
    pub(super) async fn fill_fibs(&mut self, fibs: Vec<NewFibs>) -> Result<()> {
        for _ in 0..PATIENCE_MS {
            self.drop_former_fibs();
            if self.routing.former_fibs.is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        ensure!(
            self.routing.former_fibs.is_none(),
            "turnpike.fib: the route tables of the last change are still being read; try again"
        );
        let rib = &mut self.routing.rib;
        let filled = rib.vrfs().zip(fibs).try_for_each(|(vrf, (fib4, fib6))| {
            rib.add_twins(vrf, fib4, fib6).context("turnpike.fib: the routes do not fit")
        });
        if filled.is_err() {
            rib.drop_twins();
        }
        filled
    }

    /// Makes the filled tables the RIB's FIBs, since forwarders read them now.
    ///
    /// # Errors
    /// They had no room for a change of routes meanwhile.
    pub(super) fn use_other_fibs(&mut self) -> Result<()> {
        ensure!(self.routing.rib.swap_twins(), "turnpike.fib: the routes do not fit any more");
        Ok(())
    }

    /// Returns to the tables before, which forwarders read again, if others were used, and drops those.
    pub(super) fn use_former_fibs(&mut self, others: bool) {
        if others && !self.routing.rib.swap_twins() {
            tracing::error!("the former route tables had no room for a change: restart the router");
        }
        // Their last readers ended with the graphs; a change before this one may have readers left.
        if self.routing.former_fibs.is_none() {
            self.routing.rib.drop_twins();
        }
    }

    /// Has the slow path, and graphs to come, read the new tables, of which `near` has the readers.
    pub(super) fn leave_former_fibs(&mut self, near: NodeTables) {
        self.slow_path.orders.tables(near.common());
        self.routing.former_fibs = Some(self.routing.readers.start());
        self.routing.tables = near.common().clone();
        self.configurations.preparation().use_tables(near.clone());
        self.routing.near = near;
    }

    /// Drops former tables when nobody reads them any more.
    pub(super) fn drop_former_fibs(&mut self) {
        let Some(token) = self.routing.former_fibs else { return };
        if self.routing.readers.passed(token) {
            self.routing.former_fibs = None;
            self.routing.rib.drop_twins();
        }
    }
}
