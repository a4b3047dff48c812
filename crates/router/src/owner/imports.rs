//! Imported tables of another configuration, which go into the RIB piece by piece beside the owner's other work.
//!
//! Tables come last in a change, when nothing can fail any more, so that no change has to be undone because of them;
//! `apply` has answered by then. The log reports complete tables, and `show sources` has `loading` until then.

use std::collections::VecDeque;

use control::import::{Exchange, Progress};
use control::rib::Rib;

use super::turn::Turn;

/// Exchanges that are under way: the first is being worked on.
#[derive(Default)]
pub(super) struct Imports(VecDeque<Exchange>);

impl Imports {
    /// Begins these exchanges. One that is under way for the same import is given up: its successor removes what it
    /// added.
    pub(super) fn begin(&mut self, exchanges: Vec<Exchange>) {
        for exchange in exchanges {
            self.0.retain(|other| other.rank() != exchange.rank());
            if let Some(file) = exchange.file() {
                tracing::info!("import {}: begins", file.display());
            }
            self.0.push_back(exchange);
        }
    }

    /// Returns true while there is work.
    pub(super) fn is_busy(&self) -> bool {
        !self.0.is_empty()
    }

    /// Does as many pieces as a turn has time for.
    pub(super) fn work(&mut self, rib: &mut Rib) {
        let turn = Turn::begin();
        while let Some(exchange) = self.0.front_mut().filter(|_| turn.has_time()) {
            match exchange.go_on(rib) {
                Progress::More => {}
                Progress::Loaded(report) => tracing::info!("{report}"),
                Progress::Done(removed) => {
                    self.0.pop_front();
                    if removed > 0 {
                        tracing::info!("import: {removed} routes of the former table removed");
                    }
                }
            }
        }
    }
}
