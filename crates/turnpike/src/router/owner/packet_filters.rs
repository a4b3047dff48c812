//! What `show filters` says.

use anyhow::{Error, Result, anyhow};
use control::config::{PortFilter, action_name};
use dataplane::filters::FilterTable;
use dataplane::words::suggestion;

use super::Owner;
use crate::api::report::{Filter, FilterRule, FilterVerdict};

impl Owner {
    /// The filters in the order of their numbers.
    pub(super) fn filters(&self) -> Vec<Filter> {
        self.filters.iter().flatten().map(|table| self.filter(table)).collect()
    }

    /// What a filter says of a packet in words.
    pub(super) fn verdict(&self, name: &str, packet: &str) -> Result<FilterVerdict> {
        let mut tables = self.filters.iter().flatten();
        let table = tables.find(|table| table.spec().filter.name == name).ok_or_else(|| {
            let known: Vec<_> = self
                .filters
                .iter()
                .flatten()
                .map(|table| table.spec().filter.name.as_str())
                .collect();
            anyhow!("filter \"{name}\": unknown{}", suggestion(name, "filters", &known))
        })?;
        let port = |name: &str| match self.port_named(name) {
            Ok(port) => Ok(port.index() as u16),
            Err(error) => Err(error.to_string()),
        };
        let (family, key) = acl::packet::read(packet, port).map_err(Error::msg)?;
        let filter = &table.spec().filter;
        let rule = acl::walk(filter, family, &key).and_then(|place| {
            self.filter(table).rules.into_iter().find(|rule| rule.number == place + 1)
        });
        let (action, why) = match &rule {
            Some(rule) => (rule.action.clone(), String::new()),
            None => (action_name(filter.default).to_owned(), "no rule fits".to_owned()),
        };
        Ok(FilterVerdict { rule, action, why })
    }

    fn filter(&self, table: &FilterTable) -> Filter {
        let spec = table.spec();
        let hits = table.hits();
        let ports = &self.configurations.current.ports;
        let with = |of: fn(&control::config::Port) -> &Option<PortFilter>| {
            let has = |filter: &PortFilter| filter.name == spec.filter.name;
            let ports = ports.iter().filter(|port| of(port).as_ref().is_some_and(has));
            ports.map(|port| port.name.clone()).collect()
        };
        let rule = |(place, (packets, bytes)): (usize, (u64, u64))| {
            let rule = spec.filter.rules.get(place)?;
            Some(FilterRule {
                number: place + 1,
                name: rule.name.clone(),
                matches: rule.matches.to_string(),
                action: action_name(rule.action).to_owned(),
                police: spec.treatments[place].police.map(|police| police.to_string()),
                packets,
                bytes,
            })
        };
        let (default_packets, default_bytes) = hits.last().copied().unwrap_or_default();
        Filter {
            name: spec.filter.name.clone(),
            inward: with(|port| &port.filter_in),
            outward: with(|port| &port.filter_out),
            rules: hits.iter().copied().enumerate().filter_map(rule).collect(),
            default: action_name(spec.filter.default).to_owned(),
            default_packets,
            default_bytes,
        }
    }
}
