//! Answers to `show filters`.

use std::sync::Arc;

use acl::{Action, Family, Key};
use anyhow::{Error, Result};
use api::report::{ColourCounts, Filter, FilterRule, FilterVerdict};
use control::config::{Interface, PortFilter, Vrf, action_name};
use dataplane::filters::{FilterSpec, FilterTable, Mark, RuleHits, Target};
use dataplane::router_filter::ROUTER;

use super::Owner;
use super::hardware_filters::OfRule;

impl Owner {
    /// The filters in the order of their numbers.
    pub(super) fn filters(&self) -> Vec<Filter> {
        let tables = self.filtering.filters.tables.iter().flatten();
        let mut all: Vec<_> = tables.map(|table| self.filter(table)).collect();
        if !all.iter().any(|filter| filter.name == ROUTER) {
            all.push(self.router_filter());
        }
        all
    }

    /// The limits of packets for the router without a filter for them: the classes.
    fn router_filter(&self) -> Filter {
        Filter {
            name: ROUTER.to_owned(),
            inward: Vec::new(),
            outward: Vec::new(),
            hardware: Vec::new(),
            rules: Vec::new(),
            default: action_name(Action::Accept).to_owned(),
            default_packets: 0,
            default_bytes: 0,
            classes: self.forwarding.ledger.policing().classes,
        }
    }

    /// Returns a filter's verdict on a packet described in text.
    pub(super) fn verdict(&self, name: &str, packet: &str) -> Result<FilterVerdict> {
        let table = self.filter_named(name)?;
        let number = |name: &str| self.interface_named(name).map(|id| id.index() as u16);
        let (family, key) = acl::packet::read(packet, number).map_err(Error::msg)?;
        let filter = &table.spec().filter;
        let rules = self.filter(table).rules;
        let met = self.rules_met(filter, family, &key).into_iter();
        let mut before: Vec<_> = met.filter_map(|place| rules.get(place).cloned()).collect();
        let decides = |rule: &FilterRule| filter.rules[rule.number - 1].action.is_terminal();
        let rule = before.pop_if(|rule| decides(rule));
        let (action, why) = match &rule {
            Some(rule) => (rule.action.clone(), String::new()),
            None => {
                let why = if before.is_empty() { "no rule fits" } else { "no other rule fits" };
                (action_name(filter.default).to_owned(), why.to_owned())
            }
        };
        Ok(FilterVerdict { rule, before, action, why })
    }

    /// The places of the rules that a packet with these fields meets, from its first on to one that decides, or to the
    /// last one that lets it continue.
    pub(super) fn rules_met(&self, filter: &acl::Filter, family: Family, key: &Key) -> Vec<usize> {
        let sets = self.filtering.sets.readers();
        let fits = |first: usize| acl::walk_from(filter, &sets, (family, key), first);
        let met = std::iter::successors(fits(0), |place| {
            let goes_on = !filter.rules[*place].action.is_terminal();
            goes_on.then(|| fits(place + 1)).flatten()
        });
        met.collect()
    }

    /// Describes the treatment of a rule's packets.
    pub(super) fn action_of(&self, spec: &FilterSpec, place: usize) -> String {
        let config = &self.configurations.current;
        let mut said = action_name(spec.filter.rules[place].action).to_owned();
        let treatment = &spec.treatments[place];
        if let Some(class) = treatment.class {
            said += &format!(" as {}", class.name());
        }
        let category = treatment.category.map(usize::from);
        if let Some(name) = category.and_then(|number| config.categories.get(number)) {
            said += &format!(" in {name}");
        }
        if treatment.mark != Mark::NONE {
            said += &format!(" with {}", treatment.mark);
        }
        match treatment.target.and_then(|place| spec.targets.get(usize::from(place))) {
            Some(Target::NextHop(name)) => said += &format!(" to {name}"),
            Some(Target::Vrf(vrf)) => {
                said += &format!(" to VRF {}", Vrf::name_of(&config.vrfs, *vrf))
            }
            None => {}
        }
        if let Some(forwarders) = treatment.forwarders {
            said += &format!(" on {forwarders}");
        }
        said
    }

    fn filter(&self, table: &Arc<FilterTable>) -> Filter {
        let spec = table.spec();
        let hits = table.hits();
        let with = |of: fn(&Interface) -> &Option<PortFilter>| {
            let has = |filter: &PortFilter| filter.name == spec.filter.name;
            let all = self.configurations.current.interfaces();
            let with = all.filter(|(_, _, settings)| of(settings).as_ref().is_some_and(has));
            with.map(|(_, name, _)| name.to_owned()).collect()
        };
        let (now, hz) = (dpdk::tsc(), dpdk::tsc_hz().max(1));
        let rule = |(place, hits): (usize, RuleHits)| {
            let rule = spec.filter.rules.get(place)?;
            let OfRule { dropped, brought } = self.filtering.device_hits.of(table, rule);
            let (packets, last) = (hits.packets + dropped.packets, hits.last.max(dropped.last));
            Some(FilterRule {
                number: place + 1,
                name: rule.name.clone(),
                matches: rule.matches.to_string(),
                action: self.action_of(spec, place),
                police: spec.treatments[place].police.map(|police| police.to_string()),
                colours: colours(spec, place, &hits),
                packets,
                bytes: hits.bytes + dropped.bytes,
                last_s: (packets > 0).then(|| now.saturating_sub(last) / hz),
                device_packets: dropped.packets + brought.packets,
                device_bytes: dropped.bytes + brought.bytes,
                hardware: self.rule_in_hardware(table, place),
                logged_s: self.filtering.logged.remaining(table, place).map(|time| time.as_secs()),
            })
        };
        let default = hits.last().copied().unwrap_or_default();
        Filter {
            name: spec.filter.name.clone(),
            hardware: self.in_hardware(table),
            inward: with(|settings| &settings.filter_in),
            outward: with(|settings| &settings.filter_out),
            rules: hits.iter().copied().enumerate().filter_map(rule).collect(),
            default: action_name(spec.filter.default).to_owned(),
            default_packets: default.packets,
            default_bytes: default.bytes,
            classes: match spec.filter.name == ROUTER {
                true => self.forwarding.ledger.policing().classes,
                false => Vec::new(),
            },
        }
    }
}

/// Returns a rule's packets by colour, if its meter distinguishes colours.
fn colours(spec: &FilterSpec, place: usize, hits: &RuleHits) -> Option<ColourCounts> {
    let [green, yellow, red] = hits.colours;
    spec.treatments.get(place)?.police?.colours?;
    Some(ColourCounts { green, yellow, red })
}
