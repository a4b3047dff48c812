//! Rules of packet filters in the devices of ports that are configured so: see [`super::super::flow_rules`].
//!
//! The wanted rules are compared with those in devices after each change of the configuration, before the client gets
//! its answer, and from time to time, so that a reopened device gets its rules. No forwarder takes part.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use acl::offload::{Offload, Treated, offload};
use acl::{Family, Matches, Rule};
use api::report::{FilterInHardware, RuleInHardware};
use control::config::{self, Config};
use dataplane::catalogue::Catalogue;
use dataplane::default_plan;
use dataplane::filters::{FilterTable, RuleHits, Treatment};
use dataplane::interface::InterfaceId;
use dataplane::plan::Plan;
use dataplane::port::PortId;
use dataplane::vlan::Vlan;
use wire::pattern::{Masked, Tag, Tags};

use super::super::flow_rules::{PlacementReport, Queues, Wanted};
use super::super::ports::OpenPort;
use super::super::wiring::Wiring;
use super::Owner;
use super::turn::Turn;

/// Steps in front of a filter that neither change packets nor take any away that a rule could fit.
const BEFORE: [&str; 14] = [
    "mirror-in",
    "sample-in",
    "bond-input",
    "vlan-input",
    "classify",
    "ip4-prefetch",
    "ip4-checksum-offload",
    "ip4-validate",
    "ip4-reverse-path",
    "ip6-checksum-offload",
    "ip6-validate",
    "ip6-reverse-path",
    "ip4-filter-in",
    "ip6-filter-in",
];

/// Time limit of a change for adding rules to devices; the rest follows after it.
const PATIENCE: Duration = Duration::from_millis(20);

/// Packets that devices have dropped or brought to a queue, by rule, over all ports and devices.
#[derive(Default)]
pub(super) struct DeviceHits(HashMap<Key, OfRule>);

/// The packets of a rule.
#[derive(Clone, Copy, Default)]
pub(super) struct OfRule {
    pub(super) dropped: RuleHits,
    /// Software counts these as well.
    pub(super) brought: RuleHits,
}

/// A filter, and a rule of it: its name, or its conditions.
type Key = (String, String);

fn key(filter: &FilterTable, rule: &Rule) -> Key {
    let rule = match &rule.name {
        Some(name) => format!("\"{name}\""),
        None => rule.matches.to_string(),
    };
    (filter.spec().filter.name.clone(), rule)
}

impl DeviceHits {
    /// True if no device has counted anything.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of a rule of a filter.
    pub(super) fn of(&self, filter: &FilterTable, rule: &Rule) -> OfRule {
        self.0.get(&key(filter, rule)).copied().unwrap_or_default()
    }

    /// Adds what a port's device has counted since it was read last.
    fn read(&mut self, open: &mut OpenPort, has_time: impl Fn() -> bool) {
        let now = dpdk::tsc();
        open.rules.read(&open.port, has_time, |filter, rule, (count, is_dropped)| {
            let Some(rule) = filter.spec().filter.rules.get(rule) else { return };
            let of = self.0.entry(key(filter, rule)).or_default();
            let hits = if is_dropped { &mut of.dropped } else { &mut of.brought };
            hits.packets += count.packets;
            hits.bytes += count.bytes.unwrap_or(0);
            hits.last = now;
        });
    }

    /// Forgets rules that none of these filters has.
    fn keep(&mut self, filters: &[Option<Arc<FilterTable>>]) {
        if self.0.is_empty() {
            return;
        }
        let of = |filter: &Arc<FilterTable>| -> Vec<Key> {
            filter.spec().filter.rules.iter().map(|rule| key(filter, rule)).collect()
        };
        let known: BTreeSet<_> = filters.iter().flatten().flat_map(of).collect();
        self.0.retain(|key, _| known.contains(key));
    }
}

impl Owner {
    /// Gives devices the rules that a configuration, which is in force, assigns to them.
    pub(super) fn place_rules(&mut self, config: &Config) {
        self.filtering.device_hits.keep(&self.filtering.filters.tables);
        let begin = Instant::now();
        for open in self.devices.ports.iter_mut() {
            let filtered = filtered(config, &self.filtering.filters.tables, open.id);
            if filtered.is_empty() && open.rules.filters().next().is_none() {
                continue;
            }
            // The counts so far belong to the former rules.
            self.filtering.device_hits.read(open, || true);
            let queues = queues(self.forwarding.wiring.as_ref(), open.id);
            open.rules.follow(wanted(config, filtered), queues);
            go_on(open, config, || begin.elapsed() < PATIENCE);
        }
    }

    /// Gives devices what they had no time for. To be called often.
    pub(super) fn give_rules(&mut self) {
        let config = self.configurations.current.clone();
        let turn = Turn::begin();
        for open in self.devices.ports.iter_mut().filter(|open| open.rules.is_waiting()) {
            go_on(open, &config, || turn.has_time());
        }
    }

    /// Has devices that have been opened hold their rules, those whose queues have moved other ones, and those that did
    /// not release some do so. To be called from time to time.
    pub(super) fn place_more(&mut self) {
        let config = self.configurations.current.clone();
        let turn = Turn::begin();
        for open in self.devices.ports.iter_mut() {
            let queues = queues(self.forwarding.wiring.as_ref(), open.id);
            let filtered = filtered(&config, &self.filtering.filters.tables, open.id);
            let is_new = open.rules.filters().count() != filtered.len();
            if !filtered.is_empty() && (is_new || *open.rules.queues() != queues) {
                self.filtering.device_hits.read(open, || true);
                open.rules.follow(wanted(&config, filtered), queues);
            }
            if open.rules.is_busy() || open.rules.has_news() {
                go_on(open, &config, || turn.has_time());
            }
        }
    }

    /// Reads what devices have counted, as far as there is time. To be called from time to time.
    pub(super) fn read_rules(&mut self) {
        let turn = Turn::begin();
        for open in self.devices.ports.iter_mut() {
            self.filtering.device_hits.read(open, || turn.has_time());
        }
    }

    /// Reads the counts of a port's device, before the port is released.
    pub(super) fn read_rules_of(&mut self, id: PortId) {
        if let Some(open) = self.devices.ports.iter_mut().find(|open| open.id == id) {
            self.filtering.device_hits.read(open, || true);
        }
    }

    /// The interfaces of whose ports the devices are to hold rules of a filter, and what keeps them from it.
    pub(super) fn in_hardware(&self, filter: &FilterTable) -> Vec<FilterInHardware> {
        let config = &self.configurations.current;
        let wanted = config.interfaces().filter(|(_, _, interface)| {
            let inward = interface.filter_in.as_ref();
            inward.is_some_and(|of| of.hardware && of.name == filter.spec().filter.name)
        });
        let told = |(id, name, _): (InterfaceId, &str, _)| {
            let carrier = config.vlan(id).and_then(|vlan| config.carrier(vlan));
            let port = carrier.unwrap_or(id).port();
            let why = match port.and_then(|port| self.devices.ports.get(port)) {
                None => Some("its device is not there".to_owned()),
                Some(open) => open.rules.refused(id).map(str::to_owned),
            };
            FilterInHardware { port: name.to_owned(), why }
        };
        wanted.map(told).collect()
    }

    /// Returns a rule's state in the devices of the ports that are to hold the filter's rules, by interface.
    pub(super) fn rule_in_hardware(
        &self,
        filter: &Arc<FilterTable>,
        rule: usize,
    ) -> Vec<RuleInHardware> {
        let config = &self.configurations.current;
        let told = |(open, interface): (&OpenPort, InterfaceId)| {
            let place = open.rules.whereabouts(interface, rule)?;
            Some(RuleInHardware {
                port: named(config, interface).1,
                held: place.held,
                wanted: place.wanted,
                counted: place.is_counted,
                drops: place.drops,
                steers: place.steers,
                why: place.why,
            })
        };
        let of = |open: &OpenPort| {
            let own = open.rules.filters().filter(|(_, of)| Arc::ptr_eq(of, filter));
            own.map(|(interface, _)| interface).collect::<Vec<_>>()
        };
        let all = self.devices.ports.iter();
        all.flat_map(|open| of(open).into_iter().map(move |of| (open, of)))
            .filter_map(told)
            .collect()
    }
}

/// A filter of which a port's device is to hold rules.
struct FilterOn<'c> {
    port: &'c config::Port,
    /// The interface that has the filter: the port's own, or a VLAN on it.
    interface: InterfaceId,
    settings: &'c config::Interface,
    tags: Tags,
    filter: Arc<FilterTable>,
}

/// Returns the filters of which a port's device is to hold rules.
fn filtered<'c>(
    config: &'c Config,
    filters: &[Option<Arc<FilterTable>>],
    id: PortId,
) -> Vec<FilterOn<'c>> {
    let Some(port) = config.port(id) else { return Vec::new() };
    let of = |(interface, settings, tags): (InterfaceId, &'c config::Interface, Tags)| {
        let inward = settings.filter_in.as_ref().filter(|filter| filter.hardware)?;
        let filter = filters.get(usize::from(inward.number).checked_sub(1)?)?.clone()?;
        Some(FilterOn { port, interface, settings, tags, filter })
    };
    let own_tags = if port.interface.has_vlans { Tags::None } else { Tags::Any };
    let own = (InterfaceId::from(id), &port.interface, own_tags);
    let vlans = config.vlans_on_wire().into_iter().filter(|vlan| vlan.lower == own.0);
    let vlans = vlans.filter_map(|vlan| {
        Some((vlan.interface, config.interface(vlan.interface)?, tags_of(&vlan)))
    });
    std::iter::once(own).chain(vlans).filter_map(of).collect()
}

/// Returns the tags of a VLAN's frames, of any priority.
fn tags_of(vlan: &Vlan) -> Tags {
    let tag = |tag: dataplane::vlan::Tag| Tag {
        protocol: tag.protocol.ethertype(),
        control: Masked { value: tag.id, mask: dataplane::vlan::ID },
    };
    match vlan.tags.inner {
        None => Tags::One(tag(vlan.tags.outer)),
        Some(inner) => Tags::Two(tag(vlan.tags.outer), tag(inner)),
    }
}

fn wanted(config: &Config, filtered: Vec<FilterOn<'_>>) -> Vec<Wanted> {
    let of = |on: FilterOn<'_>| {
        let offloads = offloads(config, &on);
        Wanted { interface: on.interface, filter: on.filter, offloads }
    };
    filtered.into_iter().map(of).collect()
}

/// Returns the receive queue of a port by which each forwarder gets its packets.
fn queues(wiring: Option<&Wiring>, port: PortId) -> Queues {
    wiring.map(|wiring| wiring.queues_of(port)).unwrap_or_default()
}

/// Returns the offload of each rule of an interface's filter, or the reason for which there is none.
fn offloads(config: &Config, on: &FilterOn<'_>) -> Result<Vec<Offload>, String> {
    let FilterOn { port, interface, settings, tags, filter } = on;
    if port.interface.is_mirrored {
        return Err("a mirror session copies the port's packets, also those that the filter drops"
            .to_owned());
    }
    let graphs = &config.graphs;
    let own = graphs.by_port.iter().find(|(ports, _)| ports.contains(&port.id));
    if !is_first(own.map_or(&graphs.main, |(_, plan)| plan)) {
        return Err(
            "the graph has steps in front of the filter that may want its packets".to_owned()
        );
    }
    let spec = filter.spec();
    let treated = |&treatment: &Treatment| {
        // Every treatment is listed, to decide whether a device may drop its packets.
        let Treatment {
            police,
            mirror,
            log,
            mark: _,
            class: _,
            category: _,
            target: _,
            forwarders,
        } = treatment;
        let police = police.map(|_| "police").or(mirror.map(|_| "mirror"));
        let by_software = police.or(log.then_some("log"));
        Treated { by_software, steers: forwarders.is_some() }
    };
    let treated = |rule: usize| spec.treatments.get(rule).map_or_else(Treated::default, treated);
    let interface = interface.index() as u16;
    let mut on = acl::offload::Port { interface, tags: *tags, unfiltered: Vec::new() };
    if settings.host.is_some() {
        on.unfiltered.push((dhcp(), "DHCP of hosts without an address"));
    }
    Ok(offload(&spec.filter, treated, &on))
}

/// Requests of hosts for an address (RFC 2131 4.1), which go to the host interface before the filter.
fn dhcp() -> Matches {
    let host = |address: &str| address.parse().into_iter().collect();
    Matches {
        family: Some(Family::Ip4),
        from: host("0.0.0.0/32"),
        to: host("255.255.255.255/32"),
        protocol: vec![17],
        to_port: vec![67..=67],
        ..Matches::default()
    }
}

/// Returns true if packets reach the filter as they were received, and those that it drops are dropped: a device that
/// drops them hides them from steps in front of it.
fn is_first(plan: &Plan) -> bool {
    let way = |plan: &Plan| -> BTreeSet<(String, String)> {
        let of = |(what, _): &(String, String)| {
            let step = what.strip_prefix("step \"").and_then(|what| what.strip_suffix('"'));
            let step = step.or_else(|| what.split_once('.').map(|(step, _)| step));
            step.is_some_and(|step| BEFORE.contains(&step)) && !what.ends_with("filter-in.ok")
        };
        plan.described().filter(of).collect()
    };
    // The first step gets every batch.
    plan.names().next() == BEFORE.first().copied()
        && default_plan(&Catalogue::default()).is_ok_and(|usual| way(&usual) == way(plan))
}

/// Returns the kind and the name of an interface.
fn named(config: &Config, id: InterfaceId) -> (&'static str, String) {
    let kind = if id.port().is_some() { "port" } else { "vlan" };
    let name = config.interfaces().find(|(of, ..)| *of == id).map_or("", |(_, name, _)| name);
    (kind, name.to_owned())
}

/// Gives a device its waiting rules, and logs the result.
fn go_on(open: &mut OpenPort, config: &Config, has_time: impl Fn() -> bool) {
    if let Some(why) = open.rules.go_on(&open.port, has_time) {
        tracing::error!(
            "port \"{}\": {} does not let go of rules that its filter has not any more: {why}; tried again",
            open.name,
            open.device
        );
    }
    for (interface, filter, report) in open.rules.take_reports() {
        let ((kind, name), filter) = (named(config, interface), &filter.spec().filter.name);
        match report {
            PlacementReport::Refused(why) => {
                tracing::warn!("{kind} \"{name}\": filter \"{filter}\" runs in software: {why}");
            }
            PlacementReport::Held { rules, held, device } => tracing::info!(
                "{kind} \"{name}\": filter \"{filter}\": {held} of {rules} rules that drop or select forwarders are \
                 in hardware, as {device} rules of {}",
                open.device
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(text: &str) -> bool {
        let ports = "local turnpike = require \"turnpike\"\nturnpike.port \"p\" { device = \"net_null0\" }\n";
        let text = format!("{ports}{text}");
        let limits = config::Limits::default();
        let config = config::parse("f.lua".as_ref(), &text, limits, &Catalogue::default()).unwrap();
        is_first(&config.graphs.main)
    }

    #[test]
    fn steps_in_front_of_the_filter_are_noticed() {
        assert!(plan_of(""));
        let step = "local s = turnpike.step \"mine\" { outputs = { \"next\" }, process = function() end }\n";
        let with = |graph: &str| plan_of(&format!("{step}{graph}"));
        assert!(with("turnpike.graph:insert_after(\"ip4-lookup\", s)"));
        assert!(with("turnpike.graph:insert_after(\"ip4-filter-in\", s)"));
        for place in ["insert_before(\"classify\", s)", "insert_after(\"ip4-validate\", s)"] {
            assert!(!with(&format!("turnpike.graph:{place}")), "{place}");
        }
        assert!(!with("turnpike.graph:insert_before(\"ip6-filter-in\", s)"));
    }
}
