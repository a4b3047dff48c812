//! Answers to `show sets`, and changes by `set add` and `set del`.

use std::time::{Duration, Instant};

use anyhow::Result;
use api::change::SetChange;
use api::report::{Change, PrefixSet, SetElement};
use dataplane::words::count;

use super::Owner;
use crate::sets::Named;

impl Owner {
    /// The sets by their names.
    pub(super) fn prefix_sets(&self) -> Vec<PrefixSet> {
        let now = Instant::now();
        self.filtering.sets.list().into_iter().map(|set| shown(set, now)).collect()
    }

    /// Adds elements to a set, or takes them away.
    pub(super) fn change_set(&mut self, change: &SetChange) -> Result<Change> {
        match change {
            SetChange::Add { set, elements, seconds } => {
                let until = seconds
                    .and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds)));
                let added = self.filtering.sets.add(set, elements, until)?;
                Ok(Change { change: format!("{} added", count(added, "element")), note: None })
            }
            SetChange::Del { set, elements } => {
                let removed = self.filtering.sets.remove(set, elements)?;
                Ok(Change { change: format!("{} removed", count(removed, "element")), note: None })
            }
        }
    }
}

fn shown(set: Named, now: Instant) -> PrefixSet {
    let Named { name, configured, added, routes } = set;
    let configured = configured.into_iter().map(|prefix| SetElement {
        prefix,
        by: "configuration".to_owned(),
        remaining_s: None,
    });
    let added = added.into_iter().map(|(prefix, until)| SetElement {
        prefix,
        by: "command".to_owned(),
        remaining_s: until.map(|until| until.saturating_duration_since(now).as_secs()),
    });
    let routes = routes.into_iter().map(|prefix| SetElement {
        prefix,
        by: "routes".to_owned(),
        remaining_s: None,
    });
    let mut elements: Vec<_> = configured.chain(added).chain(routes).collect();
    elements.sort_by_key(|element| element.prefix);
    PrefixSet { name, elements }
}
