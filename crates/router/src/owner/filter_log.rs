//! Logging of filtered packets: of rules with `log`, and of those that a command watches for a time.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::change::FilterChange;
use api::report::Change;
use control::config::action_name;
use dataplane::filters::{FilterTable, Sample};
use dataplane::interface::InterfaceId;
use dataplane::steps::Printed;
use dataplane::words::suggestion;

use super::Owner;

/// Rules watched by commands.
#[derive(Default)]
pub struct Watches(Vec<Watch>);

struct Watch {
    /// A filter of other rules replaces the watched one, and with it the watch ends.
    filter: Weak<FilterTable>,
    rule: usize,
    until: Instant,
}

impl Watches {
    /// Returns the time left for which a rule is watched.
    pub fn remaining(&self, filter: &Arc<FilterTable>, rule: usize) -> Option<Duration> {
        let watch = self.0.iter().find(|watch| watch.is_of(filter, rule))?;
        Some(watch.until.saturating_duration_since(Instant::now()))
    }

    fn begin(&mut self, filter: &Arc<FilterTable>, rule: usize, time: Duration) -> Result<()> {
        let until = Instant::now().checked_add(time).context("the time is too long")?;
        self.end(filter, rule);
        filter.watch(rule as u32, true);
        self.0.push(Watch { filter: Arc::downgrade(filter), rule, until });
        Ok(())
    }

    /// Returns false if the rule was not watched.
    fn end(&mut self, filter: &Arc<FilterTable>, rule: usize) -> bool {
        filter.watch(rule as u32, false);
        let before = self.0.len();
        self.0.retain(|watch| !watch.is_of(filter, rule));
        self.0.len() < before
    }

    /// Ends the watches whose time is over.
    fn expire(&mut self) {
        let now = Instant::now();
        for over in self.0.extract_if(.., |watch| watch.until <= now) {
            if let Some(filter) = over.filter.upgrade() {
                filter.watch(over.rule as u32, false);
            }
        }
        self.0.retain(|watch| watch.filter.strong_count() > 0);
    }
}

impl Watch {
    fn is_of(&self, filter: &Arc<FilterTable>, rule: usize) -> bool {
        self.filter.as_ptr() == Arc::as_ptr(filter) && self.rule == rule
    }
}

impl Owner {
    /// Begins or ends the logging of a rule's packets.
    pub(super) fn change_filter_log(&mut self, change: &FilterChange) -> Result<Change> {
        let (FilterChange::Log { filter: name, rule, .. }
        | FilterChange::Unlog { filter: name, rule }) = change;
        let filter = self.filter_named(name)?.clone();
        let place = rule_named(&filter, rule)?;
        let label = label(&filter, place);
        let FilterChange::Log { seconds, .. } = change else {
            let note = (!self.filtering.logged.end(&filter, place))
                .then(|| "it was not logged".to_owned());
            return Ok(Change { change: format!("filter \"{name}\": {label} not logged"), note });
        };
        self.filtering.logged.begin(&filter, place, Duration::from_secs(*seconds))?;
        let in_device = !self.rule_in_hardware(&filter, place).iter().all(|of| of.held == 0);
        let note = in_device.then(|| "packets that the device drops are not seen".to_owned());
        Ok(Change { change: format!("filter \"{name}\": {label} logged for {seconds} s"), note })
    }

    /// The filter of this name.
    pub(super) fn filter_named(&self, name: &str) -> Result<&Arc<FilterTable>> {
        let all = || self.filtering.filters.tables.iter().flatten();
        all().find(|table| table.spec().filter.name == name).with_context(|| {
            let known: Vec<_> = all().map(|table| table.spec().filter.name.as_str()).collect();
            format!("filter \"{name}\": unknown{}", suggestion(name, "filters", &known))
        })
    }

    /// Writes packets of steps that print them to the log.
    pub(super) fn log_printed(&self) {
        let printed = self.routing.tables.shared.get::<Printed>();
        while let Some(sight) = printed.take() {
            tracing::info!("{sight}");
        }
    }

    /// Writes sampled packets to the log.
    pub(super) fn log_filtered(&mut self) {
        self.filtering.logged.expire();
        for table in self.filtering.filters.tables.iter().flatten() {
            while let Some(sample) = table.take_sample() {
                self.log_sample(table, &sample);
            }
        }
    }

    fn log_sample(&self, table: &FilterTable, sample: &Sample) {
        let filter = &table.spec().filter;
        let place = sample.rule as usize;
        let action = match filter.rules.get(place) {
            _ if sample.is_policed => "above its rate",
            Some(rule) => action_name(rule.action),
            None => action_name(filter.default),
        };
        let number = sample.key.interface();
        let interface = InterfaceId::new(number)
            .map_or_else(|| number.to_string(), |id| self.interface_name(id));
        let packet = acl::packet::write(sample.family, &sample.key, &interface);
        let (name, rule) = (&filter.name, label(table, place));
        tracing::info!("filter \"{name}\": {rule}: {action}: {packet}");
    }
}

/// The rule at this index for messages: `rule "ssh"`, `rule 3`, `default`.
pub(super) fn label(filter: &FilterTable, place: usize) -> String {
    match filter.spec().filter.rules.get(place).map(|rule| &rule.name) {
        Some(Some(name)) => format!("rule \"{name}\""),
        Some(None) => format!("rule {}", place + 1),
        None => "default".to_owned(),
    }
}

/// Returns the index of a rule by name or number; the number of rules for `default`.
fn rule_named(filter: &FilterTable, rule: &str) -> Result<usize> {
    let acl::Filter { name, rules, .. } = &filter.spec().filter;
    let named = rules.iter().position(|known| known.name.as_deref() == Some(rule));
    let numbered = || {
        let number: usize = rule.parse().ok()?;
        (1..=rules.len()).contains(&number).then(|| number - 1)
    };
    let default = || (rule == "default").then_some(rules.len());
    let Some(place) = named.or_else(numbered).or_else(default) else {
        let mut known: Vec<_> = rules.iter().filter_map(|rule| rule.name.as_deref()).collect();
        known.push("default");
        let known = suggestion(rule, "rules", &known);
        bail!(
            "filter \"{name}\": rule \"{rule}\" unknown{known}, or a number from 1 to {}",
            rules.len()
        );
    };
    if rules.get(place).is_some_and(|rule| !rule.matches.is_ip()) {
        bail!("filter \"{name}\": rule \"{rule}\": frames of rules with ethertype are not logged");
    }
    Ok(place)
}
