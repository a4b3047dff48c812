//! `turnpike.filter "NAME" { {…}, {…}, default = "accept" }`: rules for packets, in their order.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::Path;

use acl::{Action, Classifier, Family, Matches, Rule, SETS_MAX, text};
use dataplane::category::CATEGORIES_MAX;
use dataplane::filters::{
    Colours, FILTERS_MAX, FORWARDERS_MAX, FilterSpec, Forwarders, Mark, Meter, Police, Precolours,
    SourceLengths, Target, Treatment,
};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::mirror_sessions::MirrorTo;
use dataplane::reason::PuntClass;
use dataplane::router_filter::ROUTER;
use dataplane::transmit::frame::Class as QueueClass;
use ipnet::IpNet;
use wire::MacAddr;

use super::super::error::{Collector, ConfigErrors, suggestion};
use super::super::script::Statement;
use super::super::source::ScriptLines;
use super::super::value::{Fields, Table, Value, whole_number};
use super::super::{
    Bond, Cores, Filter, Mirror, NamedNextHop, Port, PortFilter, PrefixSet, SetRoutes, Spread, Vlan,
};
use super::vrfs::{self, Vrfs};
use super::{Context, NAME_RULE, is_name};
use crate::rib::RouteSource;

const KNOWN: &[&str] = &["default"];

const RULE: &[&str] = &[
    "name",
    "family",
    "ethertype",
    "from",
    "to",
    "from_set",
    "to_set",
    "from_mac",
    "to_mac",
    "priority",
    "proto",
    "from_port",
    "to_port",
    "flags",
    "icmp",
    "icmp6",
    "fragment",
    "routing",
    "extension",
    "dscp",
    "ttl",
    "length",
    "interface",
    "state",
    "police",
    "mark",
    "mirror",
    "log",
    "class",
    "category",
    "next_hop",
    "vrf",
    "forwarder",
    "action",
];

/// Actions by their names.
pub(in super::super) const ACTIONS: [(&str, Action); 5] = [
    ("accept", Action::Accept),
    ("continue", Action::Continue),
    ("drop", Action::Drop),
    ("reject", Action::Reject),
    ("to-host", Action::ToHost),
];

/// Burst of a rate without one: the amount of this fraction of a second.
const BURST_PART: u64 = 10;

/// Bytes that every burst holds, so that a jumbo frame can pass.
const BURST_BYTES_LEAST: u64 = 9216;

/// Reads the filter that a port names by this key of its `filter`.
pub(super) fn of_port(
    fields: &mut Fields<'_, '_>,
    key: &'static str,
    names: &[&str],
) -> Option<PortFilter> {
    let name = fields.text(key, "a filter's name")?;
    if name == ROUTER {
        fields.error(
            key,
            format!("{key}: \"{ROUTER}\" is for packets for the router itself, whatever their port; name another"),
        );
        return None;
    }
    let Some(place) = names.iter().position(|known| *known == name) else {
        let known = suggestion(name, "filters", names);
        fields.error(key, format!("{key}: filter \"{name}\" unknown{known}"));
        return None;
    };
    let number = u8::try_from(place + 1).unwrap_or(u8::MAX);
    // The features that the filter requires are known after it has been read.
    let name = name.to_owned();
    Some(PortFilter {
        name,
        number,
        hardware: false,
        asks_for_state: false,
        routes: false,
        forwarders: false,
    })
}

/// Enables features that their filters require on ports, bonds and VLANs, and refuses inward-only features for outward
/// filters.
pub(super) fn tell_ports(
    context: &mut Context<'_>,
    (ports, bonds, vlans): (&mut [Port], &mut [Bond], &mut [Vlan]),
    filters: &[Filter],
) {
    // A missing filter is already reported.
    let tell = |filter: Option<&mut PortFilter>| {
        let filter = filter?;
        let Filter { spec, .. } = filters.iter().find(|found| found.name() == filter.name)?;
        filter.asks_for_state = spec.asks_for_state();
        filter.routes = !spec.targets.is_empty();
        filter.forwarders = spec.chooses_forwarders();
        Some(spec)
    };
    let of_bonds = on_bonds(bonds, vlans);
    let ports = ports.iter_mut().map(|port| ("port", &port.name, port.line, &mut port.interface));
    let vlans = vlans.iter_mut().map(|vlan| ("vlan", &vlan.name, vlan.line, &mut vlan.interface));
    let bonds = bonds.iter_mut().map(|bond| ("bond", &bond.name, bond.line, &mut bond.interface));
    for (kind, owner, line, interface) in ports.chain(bonds).chain(vlans) {
        let inward = tell(interface.filter_in.as_mut());
        let hardware = interface.filter_in.as_ref().is_some_and(|filter| filter.hardware);
        if hardware && (kind == "bond" || of_bonds.contains(owner)) {
            let message = format!(
                "{kind} \"{owner}\": filter: hardware = true works on ports and VLANs of ports only: name it there"
            );
            context.errors.add(Some(line), message);
        }
        if kind != "port" && inward.is_some_and(FilterSpec::chooses_forwarders) {
            let message = format!(
                "{kind} \"{owner}\": filter: a rule with forwarder works on ports only: frames are spread before their \
                 interface is known"
            );
            context.errors.add(Some(line), message);
        }
        let Some(spec) = tell(interface.filter_out.as_mut()) else { continue };
        let name = &spec.filter.name;
        let too_late = [
            (!spec.targets.is_empty(), "next_hop or vrf"),
            (spec.chooses_forwarders(), "forwarder"),
            (spec.filter.asks_for_macs(), "from_mac or to_mac"),
            (spec.filter.asks_for_priorities(), "priority"),
            (spec.filter.asks_for_ethertypes(), "ethertype"),
        ];
        for (_, what) in too_late.into_iter().filter(|(has, _)| *has) {
            let message = format!(
                "{kind} \"{owner}\": filter outward = \"{name}\": its rules with {what} come too late for packets that \
                 leave; name it inward, or another one here",
            );
            context.errors.add(Some(line), message);
        }
    }
}

/// Returns the names of VLANs on bonds.
fn on_bonds(bonds: &[Bond], vlans: &[Vlan]) -> Vec<String> {
    let is_bond = |id: InterfaceId| bonds.iter().any(|bond| bond.id == id);
    let below = |id: InterfaceId| vlans.iter().find(|vlan| vlan.id == id).map(|vlan| vlan.parent);
    let is_on_one = |vlan: &&Vlan| is_bond(vlan.parent) || below(vlan.parent).is_some_and(is_bond);
    vlans.iter().filter(is_on_one).map(|vlan| vlan.name.clone()).collect()
}

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    (next_hops, sets, mirrors): (&[NamedNextHop], &[PrefixSet], &[Mirror]),
) -> (Vec<Filter>, Vec<String>) {
    let mut categories = Vec::new();
    let mut filters: Vec<Filter> = Vec::new();
    for (place, statement) in statements.enumerate() {
        let what = format!("filter \"{}\"", statement.name);
        if let Some(first) = filters.iter().find(|filter| filter.name() == statement.name) {
            let message =
                format!("{what}: given on line {} already; choose another name", first.line);
            context.errors.add(Some(statement.line), message);
        }
        let Some(number) = u8::try_from(place + 1).ok().filter(|_| place < FILTERS_MAX) else {
            let message = format!("{what}: there may be {FILTERS_MAX} filters; take one away");
            context.errors.add(Some(statement.line), message);
            break;
        };
        let mut named = Named {
            interfaces: context.interfaces(),
            next_hops,
            mirrors,
            sets,
            categories: &mut categories,
        };
        let spec = filter(context, what, statement, &mut named);
        for error in spec.filter.check() {
            context.errors.add(Some(statement.line), error.to_string());
        }
        let sizes = Classifier::<Ipv4Addr>::check(&spec.filter)
            .and_then(|()| Classifier::<Ipv6Addr>::check(&spec.filter));
        if let Err(error) = sizes {
            context.errors.add(Some(statement.line), error.to_string());
        }
        filters.push(Filter { line: statement.line, number, spec });
    }
    bound_tables(context, &filters);
    (filters, categories)
}

/// Keys of a rule that select packets by themselves, without their connection: those between `name` and `state`.
const SELECTING: &[&str] = {
    let (before, behind) = RULE.split_at(23);
    assert!(matches!(behind[0].as_bytes(), b"state"), "a key has been added to RULE");
    before.split_at(1).1
};

/// Reads a rule from words as `proto=udp`, `to_port=53,5353`, `from=10.0.0.0/8`, and makes a filter of it.
pub(in super::super) fn of_words(
    words: &[String],
    interfaces: Vec<(String, InterfaceId)>,
    sets: &[PrefixSet],
) -> Result<FilterSpec, String> {
    let mut table = Table::default();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            let known = SELECTING.join(", ");
            return Err(format!("\"{word}\": expected KEY=VALUE, as proto=udp; keys: {known}"));
        };
        if !SELECTING.contains(&key) {
            let known = suggestion(key, "known", SELECTING);
            return Err(format!("key \"{key}\" unknown{known}"));
        }
        if table.named.insert(key.to_owned(), of_word(key, value)).is_some() {
            return Err(format!("\"{key}\": given twice; write {key}=ONE,OTHER"));
        }
    }
    let (source, mut errors) = (ScriptLines::new(""), Collector::new(Path::new("")));
    let mut fields = Fields::new("rule".to_owned(), 1, &table, RULE, &source, &mut errors);
    let named =
        Named { interfaces, next_hops: &[], sets, mirrors: &[], categories: &mut Vec::new() };
    let rules = vec![rule(&mut fields, 1, &named)];
    let filter = acl::Filter { name: "trace".to_owned(), rules, default: Action::Drop };
    filter.check().iter().for_each(|error| errors.add(None, format!("rule: {}", error.fault)));
    let told = |errors: ConfigErrors| {
        let all: Vec<_> = errors.0.into_iter().map(|error| error.message).collect();
        all.join("; ")
    };
    errors.finish().map_err(told)?;
    Ok(FilterSpec { filter, treatments: vec![Treatment::default()], targets: Vec::new() })
}

/// The value of a word; with commas a list, except of flags.
fn of_word(key: &str, value: &str) -> Value {
    let text = |text: &str| Value::Text(text.to_owned());
    match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ if key != "flags" && value.contains(',') => {
            let list = value.split(',').map(text).collect();
            Value::Table(Table { list, ..Table::default() })
        }
        _ => text(value),
    }
}

/// Names known to rules.
struct Named<'a> {
    /// Ports and VLANs.
    interfaces: Vec<(String, InterfaceId)>,
    next_hops: &'a [NamedNextHop],
    sets: &'a [PrefixSet],
    mirrors: &'a [Mirror],
    /// Those named by earlier rules.
    categories: &'a mut Vec<String>,
}

/// Most rules of a filter that pass packets on to the next rule: each costs those packets another search.
const CONTINUE_MAX: usize = 64;

/// Most rules of a filter with Ethertypes, with which frames are compared one by one.
const FRAME_RULES_MAX: usize = 64;

/// Most memory of the tables of sources of all filters.
const PER_SOURCE_MAX: u64 = 256 << 20;

/// Sources of a rule.
const SOURCES: RangeInclusive<u64> = 1024..=1 << 24;

fn bound_tables(context: &mut Context<'_>, filters: &[Filter]) {
    let treatments = filters.iter().flat_map(|filter| &filter.spec.treatments);
    let polices = treatments.filter_map(|treatment| treatment.police);
    let tables: Vec<u64> = polices.filter_map(|police| Some(police.per_source?.bytes())).collect();
    let bytes: u64 = tables.iter().sum();
    if let (true, Some(last)) = (bytes > PER_SOURCE_MAX, filters.last()) {
        let message = format!(
            "filters: {} rules with a rate per source take {} MiB, of at most {}; write fewer sources in police",
            tables.len(),
            bytes >> 20,
            PER_SOURCE_MAX >> 20
        );
        context.errors.add(Some(last.line), message);
    }
}

fn filter(
    context: &mut Context<'_>,
    what: String,
    statement: &Statement,
    named: &mut Named<'_>,
) -> FilterSpec {
    let vrfs = context.vrfs.clone();
    let is_router = statement.name == ROUTER;
    let mut fields = context.listed(what, statement, KNOWN);
    let default = action(&mut fields, "default").unwrap_or(Action::Accept);
    if default == Action::Continue {
        fields
            .error("default", "default \"continue\": there is nothing behind it; write \"accept\"");
    }
    let (mut rules, mut treatments, mut targets) = (Vec::new(), Vec::new(), Vec::new());
    for (place, item) in fields.items().iter().enumerate() {
        let Value::Table(table) = item else {
            fields.error("", format!("rule {}: expected a table, got {item}", place + 1));
            continue;
        };
        let mut of = fields.nested(&format!("rule {}", place + 1), table, RULE);
        of.refuse_items();
        let mut rule = rule(&mut of, statement.line, named);
        treatments.push(Treatment {
            police: policed(&mut of),
            mark: mark(&mut of, "mark").unwrap_or_default(),
            mirror: mirror(&mut of, named),
            log: of.flag("log"),
            class: class(&mut of, is_router),
            category: category(&mut of, named.categories),
            target: target(&mut of, (named.next_hops, &vrfs), &mut rule, &mut targets),
            forwarders: forwarders(&mut of, &rule),
        });
        if is_router {
            refuse_for_router(&mut of);
        }
        if !rule.matches.is_ip() {
            refuse_for_frames(&mut of, &rule, treatments.last());
        }
        rules.push(rule);
    }
    let going_on = rules.iter().filter(|rule| rule.action == Action::Continue).count();
    if going_on > CONTINUE_MAX {
        fields.error(
            "",
            format!("{going_on} rules with action \"continue\"; at most {CONTINUE_MAX}"),
        );
    }
    let of_frames = rules.iter().filter(|rule| !rule.matches.is_ip()).count();
    if of_frames > FRAME_RULES_MAX {
        fields.error("", format!("{of_frames} rules with ethertype; at most {FRAME_RULES_MAX}"));
    }
    let name = statement.name.clone();
    FilterSpec { filter: acl::Filter { name, rules, default }, treatments, targets }
}

/// Reads `fragment = true`, `false`, `"first"` or `"later"`: as [`Matches::fragment`] and [`Matches::later`].
fn fragment(fields: &mut Fields<'_, '_>) -> (Option<bool>, Option<bool>) {
    match fields.get("fragment") {
        None => (None, None),
        Some(Value::Bool(is_fragment)) => (Some(*is_fragment), None),
        Some(Value::Text(text)) if text == "first" => (Some(true), Some(false)),
        Some(Value::Text(text)) if text == "later" => (Some(true), Some(true)),
        Some(other) => {
            let message =
                format!("fragment: expected true, false, \"first\" or \"later\", got {other}");
            fields.error("fragment", message);
            (None, None)
        }
    }
}

fn rule(fields: &mut Fields<'_, '_>, line: usize, named: &Named<'_>) -> Rule {
    refuse_empty(fields);
    let name = fields.text("name", "a name").map(str::to_owned);
    let family = match fields.text("family", "\"ip4\" or \"ip6\"") {
        None => None,
        Some("ip4") => Some(Family::Ip4),
        Some("ip6") => Some(Family::Ip6),
        Some(other) => {
            fields.error("family", format!("family \"{other}\" unknown; known: ip4, ip6"));
            None
        }
    };
    let mut matches = Matches {
        family,
        ethertype: each(fields, "ethertype", text::ethertype),
        from: prefixes(fields, "from"),
        to: prefixes(fields, "to"),
        from_set: set_names(fields, "from_set", named.sets),
        to_set: set_names(fields, "to_set", named.sets),
        from_mac: macs(fields, "from_mac"),
        to_mac: macs(fields, "to_mac"),
        priority: each(fields, "priority", text::priority),
        protocol: each(fields, "proto", text::protocol),
        from_port: each(fields, "from_port", text::ports),
        to_port: each(fields, "to_port", text::ports),
        routing: each(fields, "routing", text::routing_type),
        extension: each(fields, "extension", text::extension),
        dscp: each(fields, "dscp", text::dscp),
        ttl: one(fields, "ttl", text::ttl),
        length: one(fields, "length", text::length),
        interface: interfaces(fields, &named.interfaces),
        state: each(fields, "state", text::state),
        ..Matches::default()
    };
    matches.flags = fields.text("flags", "flags as \"syn,!ack\"").and_then(|flags| {
        text::flags(flags).map_err(|error| fields.error("flags", format!("flags: {error}"))).ok()
    });
    icmp(fields, "icmp", Family::Ip4, &mut matches);
    icmp(fields, "icmp6", Family::Ip6, &mut matches);
    (matches.fragment, matches.later) = fragment(fields);
    let action = action(fields, "action").unwrap_or(Action::Accept);
    Rule { name, line: u32::try_from(line).unwrap_or(0), matches, action }
}

/// Refuses lists without an element: one that Lua has made, or that names something which is not there, would select every
/// packet.
fn refuse_empty(fields: &mut Fields<'_, '_>) {
    for &key in SELECTING.iter().chain(&["state"]) {
        if matches!(fields.get(key), Some(Value::Table(_))) && fields.values(key).is_empty() {
            let what = "the list is empty and would match every packet; name an element, or leave the rule out";
            fields.error(key, format!("{key}: {what}"));
        }
    }
}

fn action(fields: &mut Fields<'_, '_>, key: &str) -> Option<Action> {
    let word = fields.text(key, "an action")?;
    let found = ACTIONS.iter().find(|(name, _)| *name == word);
    if found.is_none() {
        let known = ACTIONS.map(|(name, _)| name);
        fields.error(key, format!("{key} \"{word}\" unknown{}", suggestion(word, "known", &known)));
    }
    found.map(|&(_, action)| action)
}

/// Reads ICMP types, which imply protocol and family.
fn icmp(fields: &mut Fields<'_, '_>, key: &'static str, family: Family, matches: &mut Matches) {
    let types = each(fields, key, |word| text::icmp_type(family, word));
    if types.is_empty() {
        return;
    }
    if matches.family.is_some_and(|given| given != family) || !matches.icmp.is_empty() {
        fields
            .error(key, format!("{key}: says another family than the rule; make two rules of it"));
    }
    matches.family = Some(family);
    matches.icmp = types;
    if matches.protocol.is_empty() {
        matches.protocol = vec![if family == Family::Ip4 { 1 } else { 58 }];
    }
}

const SET: &[&str] = &["routes", "origin_as", "vrf"];

/// Reads `turnpike.prefix_set "NAME" { "192.0.2.0/24", …, routes = "fpm" }`.
pub(super) fn sets<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<PrefixSet> {
    let mut sets: Vec<PrefixSet> = Vec::new();
    for statement in statements {
        let (line, name) = (statement.line, statement.name.clone());
        let vrfs = context.vrfs.clone();
        let mut fields = context.listed(format!("prefix_set \"{name}\""), statement, SET);
        if !is_name(&name) {
            fields.error("", format!("not a name; {NAME_RULE}"));
        }
        if let Some(first) = sets.iter().find(|set| set.name == name) {
            fields.error("", format!("given on line {} already; choose another name", first.line));
        }
        let elements = set_elements(&mut fields);
        let routes = set_routes(&mut fields, &vrfs);
        if sets.len() == SETS_MAX {
            fields.error("", format!("there may be {SETS_MAX} sets; take one away"));
            break;
        }
        sets.push(PrefixSet { line, name, elements, routes });
    }
    sets
}

/// Reads `routes = "fpm"`, `origin_as = 64500`, `vrf = "blue"`.
fn set_routes(fields: &mut Fields<'_, '_>, vrfs: &Vrfs) -> Option<SetRoutes> {
    let mut sources = Vec::new();
    for word in fields.texts("routes", "a source of routes or a list of sources") {
        match RouteSource::from_name(word) {
            Some(source) => sources.push(source),
            None => {
                let known = suggestion(word, "sources", &RouteSource::ALL.map(RouteSource::name));
                fields.error("routes", format!("routes: \"{word}\" unknown{known}"));
            }
        }
    }
    let mut origin_as = Vec::new();
    for value in fields.values("origin_as") {
        match whole_number(value, &(0..=u64::from(u32::MAX))) {
            Some(number) => origin_as.push(number as u32),
            None => fields.error(
                "origin_as",
                format!("origin_as: expected the number of an AS, got {value}"),
            ),
        }
    }
    let vrf = vrfs::named(fields, "vrf", vrfs);
    if !origin_as.is_empty() {
        if fields.get("routes").is_some() || vrf.is_some() {
            fields.error(
                "origin_as",
                "origin_as: only routes of turnpike.import have one, in the default VRF; take routes and vrf away",
            );
        }
        sources = vec![RouteSource::Import];
    } else if sources.is_empty() {
        if vrf.is_some() {
            fields.error("vrf", "vrf: the set follows no routes; add routes, or take vrf away");
        }
        return None;
    }
    Some(SetRoutes { vrf: vrf.unwrap_or(VrfId::DEFAULT), sources, origin_as })
}

fn set_elements(fields: &mut Fields<'_, '_>) -> BTreeSet<IpNet> {
    let read = |(place, item): (usize, &Value)| match item {
        Value::Text(word) => prefix(word).map_err(|why| format!("element {place}: {why}")),
        other => {
            Err(format!("element {place}: expected a prefix as \"192.0.2.0/24\", got {other}"))
        }
    };
    let (mut elements, mut faults) = (BTreeSet::new(), Vec::new());
    for item in (1..).zip(fields.items()) {
        match read(item) {
            Ok(net) => drop(elements.insert(net)),
            Err(why) => faults.push(why),
        }
    }
    faults.into_iter().for_each(|why| fields.error("", why));
    elements
}

fn macs(fields: &mut Fields<'_, '_>, key: &'static str) -> Vec<MacAddr> {
    let mut macs = Vec::new();
    for word in fields.texts(key, "a MAC or a list of MACs") {
        match word.parse() {
            Ok(mac) => macs.push(mac),
            Err(_) => {
                fields.error(
                    key,
                    format!("{key}: \"{word}\" is no MAC; write \"02:00:00:00:00:01\""),
                );
            }
        }
    }
    macs
}

/// Reads names of existing sets.
fn set_names(fields: &mut Fields<'_, '_>, key: &'static str, sets: &[PrefixSet]) -> Vec<String> {
    let names = fields.texts(key, "a set's name or a list of names");
    let mut found: Vec<String> = Vec::new();
    for name in names {
        if !sets.iter().any(|set| set.name == name) {
            let known: Vec<&str> = sets.iter().map(|set| set.name.as_str()).collect();
            let known = suggestion(name, "sets", &known);
            fields.error(key, format!("{key}: prefix_set \"{name}\" unknown{known}"));
        }
        found.push(name.to_owned());
    }
    // Two lists of the same sets are equal.
    found.sort_unstable();
    found.dedup();
    found
}

fn prefixes(fields: &mut Fields<'_, '_>, key: &'static str) -> Vec<IpNet> {
    let mut nets = Vec::new();
    for word in fields.texts(key, "a prefix or a list of prefixes") {
        match prefix(word) {
            Ok(net) => nets.push(net),
            Err(why) => fields.error(key, format!("{key}: {why}")),
        }
    }
    nets
}

/// Parses a prefix, or the address of one host.
fn prefix(word: &str) -> Result<IpNet, String> {
    if let Ok(address) = word.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let net: IpNet = word
        .parse()
        .map_err(|_| format!("\"{word}\" is neither a prefix as 192.0.2.0/24 nor an address"))?;
    if net.trunc() != net {
        return Err(format!("\"{word}\" has host bits; write \"{}\"", net.trunc()));
    }
    Ok(net)
}

/// Reads a value or a list of them, each text or number.
pub(super) fn each<T>(
    fields: &mut Fields<'_, '_>,
    key: &'static str,
    read: impl Fn(&str) -> Result<T, text::TextError>,
) -> Vec<T> {
    let mut values = Vec::new();
    for item in fields.values(key) {
        let word = match item {
            Value::Text(text) => text.clone(),
            number => match whole_number(number, &(0..=u64::from(u32::MAX))) {
                Some(number) => number.to_string(),
                None => {
                    fields.error(
                        key,
                        format!("{key}: expected a text or a whole number, got {item}"),
                    );
                    continue;
                }
            },
        };
        match read(&word) {
            Ok(value) => values.push(value),
            Err(error) => fields.error(key, format!("{key}: {error}")),
        }
    }
    values
}

fn one<T: Clone>(
    fields: &mut Fields<'_, '_>,
    key: &'static str,
    read: impl Fn(&str) -> Result<RangeInclusive<T>, text::TextError>,
) -> Option<RangeInclusive<T>> {
    let values = each(fields, key, read);
    if values.len() > 1 {
        fields.error(key, format!("{key}: expected one range, got {}", values.len()));
    }
    values.into_iter().next()
}

fn interfaces(fields: &mut Fields<'_, '_>, known: &[(String, InterfaceId)]) -> Vec<u16> {
    let names = fields.texts("interface", "a port's name or a list of names");
    let found = names.into_iter().filter_map(|name| interface(fields, "interface", name, known));
    found.map(|interface| interface.index() as u16).collect()
}

/// Returns the port or VLAN with this name.
fn interface(
    fields: &mut Fields<'_, '_>,
    key: &'static str,
    name: &str,
    known: &[(String, InterfaceId)],
) -> Option<InterfaceId> {
    let found = known.iter().find(|(other, _)| other == name);
    if found.is_none() {
        let known: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
        let known = suggestion(name, "ports", &known);
        fields.error(key, format!("{key}: port \"{name}\" unknown{known}"));
    }
    found.map(|(_, interface)| *interface)
}

/// Reads `class = "routing"`.
fn class(fields: &mut Fields<'_, '_>, is_router: bool) -> Option<PuntClass> {
    let name = fields.text("class", "a class as \"routing\"")?;
    if !is_router {
        let message = format!("class: only rules of the filter \"{ROUTER}\" say one");
        fields.error("class", message);
    }
    let found = PuntClass::ALL.iter().find(|class| class.name() == name);
    if found.is_none() {
        let known = suggestion(name, "classes", PuntClass::NAMES);
        fields.error("class", format!("class \"{name}\" unknown{known}"));
    }
    found.copied()
}

/// Refuses settings without use for packets to the router.
fn refuse_for_router(fields: &mut Fields<'_, '_>) {
    fields.refuse(
        &["mark", "mirror", "category", "next_hop", "vrf", "forwarder", "ethertype"],
        |key| format!("{key}: packets for the router go no further; take it away"),
    );
    if let Some(Value::Text(action)) = fields.get("action")
        && action == "to-host"
    {
        fields.error("action", "action \"to-host\": they go there anyway; write \"accept\"");
    }
    let ends = matches!(fields.get("action"), Some(Value::Text(action)) if !matches!(&**action, "accept" | "continue"));
    if ends && fields.get("class").is_some() {
        fields.error("class", "class: the rule lets nothing pass; take it away");
    }
}

/// Refuses settings without use for frames other than IP packets.
fn refuse_for_frames(of: &mut Fields<'_, '_>, rule: &Rule, treatment: Option<&Treatment>) {
    of.refuse(
        &["mark", "mirror", "log", "class", "category", "next_hop", "vrf"],
        |key| format!("{key}: a rule with ethertype only decides, polices and chooses a forwarder; take it away"),
    );
    if matches!(rule.action, Action::Reject | Action::Continue) {
        of.error("action", "action: a rule with ethertype has accept, drop or to-host");
    }
    let police = treatment.and_then(|treatment| treatment.police);
    if police.is_some_and(|police| police.per_source.is_some() || police.colours.is_some()) {
        of.error(
            "police",
            "police: a rule with ethertype has one rate, without sources and colours",
        );
    }
}

/// Reads `forwarder = N` or `forwarder = { N, M }`.
fn forwarders(fields: &mut Fields<'_, '_>, rule: &Rule) -> Option<Forwarders> {
    fields.get("forwarder")?;
    let mut numbers = Vec::new();
    for value in fields.values("forwarder") {
        match whole_number(value, &(0..=u64::from(u16::MAX))) {
            Some(number) => numbers.push(number as u16),
            None => fields.error(
                "forwarder",
                format!(
                    "forwarder: expected the number of a forwarder, or a list of them, got {value}"
                ),
            ),
        }
    }
    if numbers.len() > FORWARDERS_MAX {
        let message =
            format!("forwarder: {} forwarders, of at most {FORWARDERS_MAX}", numbers.len());
        fields.error("forwarder", message);
    }
    if !matches!(rule.action, Action::Accept | Action::Continue) {
        let message = "forwarder: the rule lets nothing pass; take it away";
        fields.error("forwarder", message);
    }
    if fields.values("forwarder").is_empty() {
        fields.error("forwarder", "forwarder: the list is empty; name one, or leave it out");
    }
    if numbers.len() > 1 && !rule.matches.is_ip() {
        let message = "forwarder: frames other than IP packets have no flow by which they could be spread; name one";
        fields.error("forwarder", message);
    }
    Forwarders::new(&numbers)
}

/// Refuses rules that select forwarders that do not exist, or where the selection has no effect.
pub(super) fn check_forwarders(
    context: &mut Context<'_>,
    ports: &[Port],
    filters: &[Filter],
    cores: &Cores,
) {
    for Filter { line, spec, .. } in filters.iter().filter(|of| of.spec.chooses_forwarders()) {
        let name = &spec.filter.name;
        if spec.asks_for_state() {
            let message = format!(
                "filter \"{name}\": rules with state know connections only behind the choice of a forwarder; take \
                 forwarder away, or state"
            );
            context.errors.add(Some(*line), message);
        }
        for (place, treatment) in spec.treatments.iter().enumerate() {
            for &number in treatment.forwarders.iter().flat_map(Forwarders::numbers) {
                let Some(why) = no_forwarder(number, cores.forward.len()) else { continue };
                let rule = spec.filter.label(place);
                let message = format!("filter \"{name}\": {rule}: forwarder {number}: {why}");
                context.errors.add(Some(*line), message);
            }
        }
        let has_it =
            |port: &&Port| port.interface.filter_in.as_ref().is_some_and(|of| of.name == *name);
        let lacks =
            |port: &&Port| port.queues.spread != Spread::Software && !port.steers_by_device();
        for port in ports.iter().filter(has_it).filter(lacks) {
            let message = format!(
                "port \"{}\": filter inward = \"{name}\": its rules with forwarder need spread = \"software\", or \
                 hardware = true beside inward if the device has several queues",
                port.name
            );
            context.errors.add(Some(port.line), message);
        }
    }
}

/// Returns the error for a forwarder number that does not exist.
fn no_forwarder(number: u16, count: usize) -> Option<String> {
    match count {
        0 => Some(
            "the router chooses how many there are; write turnpike.cores { forward = \"…\" }"
                .into(),
        ),
        1 => (number > 0).then(|| "there is one, number 0".into()),
        _ => (usize::from(number) >= count)
            .then(|| format!("there are {count}, numbers 0 to {}", count - 1)),
    }
}

/// Reads `category = "NAME"` and returns its number.
fn category(fields: &mut Fields<'_, '_>, known: &mut Vec<String>) -> Option<u8> {
    let name = fields.text("category", "a category's name")?;
    if name.is_empty() {
        fields.error("category", "category: expected a name, got an empty text");
        return None;
    }
    let number = known.iter().position(|known| known == name).unwrap_or(known.len());
    if number >= CATEGORIES_MAX {
        let message = format!(
            "category \"{name}\": there may be {CATEGORIES_MAX}; use one of {}",
            known.join(", ")
        );
        fields.error("category", message);
        return None;
    }
    if number == known.len() {
        known.push(name.to_owned());
    }
    u8::try_from(number).ok()
}

/// Reads `next_hop = "NAME"` or `vrf = "NAME"` and returns its index among the targets. A rule without a
/// family gets the family of the next hop's gateways.
fn target(
    fields: &mut Fields<'_, '_>,
    (next_hops, vrfs): (&[NamedNextHop], &Vrfs),
    rule: &mut Rule,
    targets: &mut Vec<Target>,
) -> Option<u8> {
    let target = match (fields.get("next_hop").is_some(), fields.get("vrf").is_some()) {
        (false, false) => return None,
        (true, true) => {
            fields.error("vrf", "vrf: the rule has a next_hop already; take one away");
            return None;
        }
        (true, false) => next_hop(fields, next_hops, &mut rule.matches)?,
        (false, true) => Target::Vrf(vrfs::named(fields, "vrf", vrfs)?),
    };
    if !matches!(rule.action, Action::Accept | Action::Continue) {
        let message = "next_hop and vrf are for packets that go on; take them away, or write action = \"accept\"";
        fields.error("action", message);
    }
    let place = targets.iter().position(|known| *known == target).unwrap_or(targets.len());
    let Ok(number) = u8::try_from(place) else {
        fields.error("", "its filter has 256 next hops and VRFs already; split the filter");
        return None;
    };
    if place == targets.len() {
        targets.push(target);
    }
    Some(number)
}

fn next_hop(
    fields: &mut Fields<'_, '_>,
    next_hops: &[NamedNextHop],
    matches: &mut Matches,
) -> Option<Target> {
    let name = fields.text("next_hop", "the name of a turnpike.next_hop")?;
    let Some(found) = next_hops.iter().find(|hop| hop.name == name) else {
        let known: Vec<&str> = next_hops.iter().map(|hop| hop.name.as_str()).collect();
        let known = suggestion(name, "next hops", &known);
        fields.error("next_hop", format!("next_hop \"{name}\" unknown{known}"));
        return None;
    };
    let gateway = found.paths.iter().find_map(|path| path.via);
    match (gateway, matches.family) {
        (Some(IpAddr::V4(gateway)), Some(Family::Ip6)) => {
            let message =
                format!("next_hop \"{name}\": IPv6 packets cannot go to the gateway {gateway}");
            fields.error("next_hop", message);
        }
        (Some(gateway), None) => {
            matches.family = Some(if gateway.is_ipv4() { Family::Ip4 } else { Family::Ip6 });
        }
        _ => {}
    }
    Some(Target::NextHop(name.to_owned()))
}

/// Reads `mirror = "PORT"` or `mirror = "SESSION"`; the names of both differ.
fn mirror(fields: &mut Fields<'_, '_>, named: &Named<'_>) -> Option<MirrorTo> {
    let name = fields.text("mirror", "a port's or a mirror's name")?;
    let session = named.mirrors.iter().position(|mirror| mirror.session.name == name);
    if let Some(number) = session.and_then(|place| u8::try_from(place).ok()) {
        return Some(MirrorTo::Session(number));
    }
    let Some((_, interface)) = named.interfaces.iter().find(|(known, _)| known == name) else {
        let mirrors = named.mirrors.iter().map(|mirror| mirror.session.name.as_str());
        let ports = named.interfaces.iter().filter(|(_, id)| id.port().is_some());
        let known: Vec<&str> = mirrors.chain(ports.map(|(name, _)| name.as_str())).collect();
        let known = suggestion(name, "mirrors and ports", &known);
        fields.error("mirror", format!("mirror: \"{name}\" unknown{known}"));
        return None;
    };
    if interface.port().is_none() {
        fields.error(
            "mirror",
            format!("mirror: \"{name}\" is a bond or a VLAN; copies leave by ports"),
        );
    }
    interface.port().map(MirrorTo::Port)
}

/// Reads `mark = { dscp = "cs1", class = "voice" }`, or one of both.
fn mark(fields: &mut Fields<'_, '_>, key: &'static str) -> Option<Mark> {
    let mut of = fields.table(key, &["dscp", "class"])?;
    if of.get("dscp").is_none() && of.get("class").is_none() {
        let message = format!(
            "dscp or class missing; write {key} = {{ dscp = \"cs1\" }} or {{ class = \"background\" }}"
        );
        of.error("dscp", message);
    }
    let values = each(&mut of, "dscp", text::dscp);
    if values.len() > 1 {
        of.error("dscp", "dscp: a packet has one; give one");
    }
    Some(Mark { dscp: values.first().copied(), class: queue_class(&mut of) })
}

/// Reads `class = "voice"`, a class of transmit queues.
fn queue_class(of: &mut Fields<'_, '_>) -> Option<QueueClass> {
    let name = of.text("class", "a queue's class as \"voice\"")?;
    let found = QueueClass::named(name);
    if found.is_none() {
        let known = suggestion(name, "known", &QueueClass::ALL.map(QueueClass::name));
        of.error("class", format!("class \"{name}\" unknown{known}"));
    }
    found
}

/// Reads `police = "100kpps"` or `{ rate = "50mbit", burst = "1mbit" }`, with `excess` (RFC 2697) or `peak`
/// and `peak_burst` (RFC 2698) of three colours.
fn policed(fields: &mut Fields<'_, '_>) -> Option<Police> {
    match fields.get("police")? {
        Value::Text(rate) => {
            let rate = rate.clone();
            or_error(fields, "police", police(&rate, None))
        }
        Value::Table(_) => {
            let mut of = fields.table("police", POLICE)?;
            let rate = of.text("rate", "a rate as \"100kpps\" or \"50mbit\"").map(str::to_owned);
            let burst = of.text("burst", AMOUNT).map(str::to_owned);
            if rate.is_none() && of.get("rate").is_none() {
                of.error("rate", "rate missing; write rate = \"50mbit\" or \"100kpps\"");
            }
            let police = police(&rate?, burst.as_deref());
            let mut police = or_error(&mut of, "rate", police)?;
            if let Some(most) = of.number("sources", SOURCES) {
                match &mut police.per_source {
                    // At most 2^24.
                    Some(sources) => sources.most = (most as u32).next_power_of_two(),
                    None => of.error("sources", "sources: the rate is no \"… per source\""),
                }
            }
            Some(Police { colours: colours(&mut of, police), ..police })
        }
        other => {
            fields.error("police", format!("police: expected a rate as \"100kpps\", got {other}"));
            None
        }
    }
}

const POLICE: &[&str] =
    &["rate", "burst", "sources", "excess", "peak", "peak_burst", "yellow", "red", "aware"];

const AMOUNT: &str = "an amount as \"1000\" packets or \"1mbit\"";

fn or_error<T>(
    fields: &mut Fields<'_, '_>,
    key: &'static str,
    read: Result<T, String>,
) -> Option<T> {
    read.map_err(|why| fields.error(key, format!("police: {why}"))).ok()
}

/// Reads the second bucket of a police, and the treatment of yellow and red packets.
fn colours(of: &mut Fields<'_, '_>, police: Police) -> Option<Colours> {
    let excess = of.text("excess", AMOUNT).map(str::to_owned);
    let peak = of.text("peak", "a rate as \"100mbit\"").map(str::to_owned);
    let burst = of.text("peak_burst", AMOUNT).map(str::to_owned);
    let yellow = colour(of, "yellow", "pass").unwrap_or_default();
    let red = colour(of, "red", "drop");
    let aware = precolours(of);
    let meter = match (excess, peak) {
        (Some(_), Some(_)) => {
            of.error("peak", "police: has excess already (RFC 2697); take one of both away");
            return None;
        }
        (Some(excess), None) => {
            let excess = or_error(of, "excess", in_unit(&excess, "excess", police))?;
            Meter::SingleRate { excess }
        }
        (None, Some(peak)) => {
            let peak = or_error(of, "peak", peak_rate(&peak, police))?;
            let burst = match &burst {
                Some(burst) => or_error(of, "peak_burst", in_unit(burst, "peak_burst", police))?,
                None => burst_of(peak, police.bytes),
            };
            Meter::TwoRates { peak, burst }
        }
        (None, None) => {
            of.refuse(&["peak_burst", "yellow", "red", "aware"], |key| {
                format!("police: {key} needs a second bucket; add excess or peak")
            });
            return None;
        }
    };
    if burst.is_some() && matches!(meter, Meter::SingleRate { .. }) {
        of.error(
            "peak_burst",
            "police: peak_burst needs peak; take it away, or write peak for excess",
        );
    }
    Some(Colours { meter, yellow, red, aware })
}

/// Reads `yellow = "pass"` or a mark, as `{ dscp = "af12" }`.
fn colour(of: &mut Fields<'_, '_>, key: &'static str, without: &str) -> Option<Mark> {
    match of.get(key)? {
        Value::Text(word) if **word == *without => None,
        Value::Table(_) => mark(of, key),
        other => {
            let message = format!(
                "police: {key}: expected \"{without}\" or {{ dscp = \"af12\" }}, got {other}"
            );
            of.error(key, message);
            None
        }
    }
}

/// Reads `aware = true` or `aware = { yellow = { "af12" }, red = "af13" }`, the colours of arriving packets.
fn precolours(of: &mut Fields<'_, '_>) -> Option<Precolours> {
    if !matches!(of.get("aware"), Some(Value::Table(_))) {
        return of.flag("aware").then_some(Precolours::ASSURED);
    }
    let mut table = of.table("aware", &["yellow", "red"])?;
    let [yellow, red] = ["yellow", "red"].map(|key| each(&mut table, key, text::dscp));
    let precolours = Precolours::new(&yellow, &red);
    if precolours.is_none() {
        table.error("red", "aware: a DSCP is both yellow and red; take it away from one");
    } else if yellow.is_empty() && red.is_empty() {
        table.error("yellow", "aware: no DSCP is yellow or red; name one, or write aware = true");
    }
    precolours
}

/// Parses an amount in the unit of a rate, in packets or bytes.
fn in_unit(text: &str, key: &str, police: Police) -> Result<u64, String> {
    let (value, in_bytes) = amount(text, "p")?;
    if in_bytes != police.bytes {
        return Err(format!("{key} \"{text}\" is not in the unit of the rate"));
    }
    Ok(value.max(1))
}

/// Parses a peak rate in the unit of the rate, in packets or bytes per second.
fn peak_rate(text: &str, police: Police) -> Result<u64, String> {
    let (peak, in_bytes) = amount(text, "pps")?;
    if in_bytes != police.bytes {
        return Err(format!("peak \"{text}\" is not in the unit of the rate"));
    }
    if peak < police.rate {
        return Err(format!("peak \"{text}\" is below the rate (RFC 2698 1); raise it"));
    }
    Ok(peak)
}

/// Returns the burst of a rate without one.
fn burst_of(rate: u64, bytes: bool) -> u64 {
    (rate / BURST_PART).max(if bytes { BURST_BYTES_LEAST } else { 1 })
}

fn police(rate: &str, burst: Option<&str>) -> Result<Police, String> {
    let (rate, per_source) = match rate.split_once(" per ") {
        Some((rate, sources)) => (rate, Some(source_lengths(sources)?)),
        None => (rate, None),
    };
    let (rate, bytes) = amount(rate, "pps")?;
    let police = Police { rate, burst: burst_of(rate, bytes), bytes, per_source, colours: None };
    let burst = burst.map(|text| in_unit(text, "burst", police)).transpose()?;
    Ok(Police { burst: burst.unwrap_or(police.burst), ..police })
}

/// Parses `source`, `source/24`, `source/64` or `source/24/64`: a length of IPv6 is above 32.
fn source_lengths(text: &str) -> Result<SourceLengths, String> {
    let wrong = || {
        format!(
            "\"per {text}\" unknown; write \"per source\", \"per source/24\" (IPv4), \"per \
             source/56\" (IPv6) or \"per source/24/56\""
        )
    };
    let (name, lengths) =
        text.split_once('/').map_or((text, None), |(name, rest)| (name, Some(rest)));
    if name != "source" {
        return Err(wrong());
    }
    let mut of = SourceLengths::default();
    let Some(lengths) = lengths else { return Ok(of) };
    let length = |text: &str, most: u8| {
        text.parse::<u8>().ok().filter(|length| (1..=most).contains(length)).ok_or_else(wrong)
    };
    match lengths.split_once('/') {
        Some((ip4, ip6)) => (of.ip4, of.ip6) = (length(ip4, 32)?, length(ip6, 128)?),
        None => match length(lengths, 128)? {
            ip4 @ ..=32 => of.ip4 = ip4,
            ip6 => of.ip6 = ip6,
        },
    }
    Ok(of)
}

/// Parses an amount of packets (unit `packets`), or of bits, converted to bytes; returns true if it is of bits.
pub(super) fn amount(text: &str, packets: &str) -> Result<(u64, bool), String> {
    let wrong = || {
        format!(
            "\"{text}\" is no rate or amount; write it as 100k{packets}, 2m{packets}, 50mbit, 1gbit"
        )
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = &text[digits..];
    let (factor, unit) = match unit.as_bytes().first() {
        Some(b'k') => (1_000, &unit[1..]),
        Some(b'm') => (1_000_000, &unit[1..]),
        Some(b'g') => (1_000_000_000, &unit[1..]),
        _ => (1, unit),
    };
    let all = number.checked_mul(factor).filter(|all| (1..=1_000_000_000_000).contains(all));
    let all = all.ok_or_else(wrong)?;
    match unit {
        "bit" => Ok(((all / 8).max(1), true)),
        unit if unit == packets || (packets == "p" && unit.is_empty()) => Ok((all, false)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        let rate = |text: &str| police(text, None);
        assert_eq!(
            rate("100kpps"),
            Ok(Police {
                rate: 100_000,
                burst: 10_000,
                bytes: false,
                per_source: None,
                colours: None
            })
        );
        assert_eq!(
            rate("1pps"),
            Ok(Police { rate: 1, burst: 1, bytes: false, per_source: None, colours: None })
        );
        assert_eq!(
            rate("80mbit"),
            Ok(Police {
                rate: 10_000_000,
                burst: 1_000_000,
                bytes: true,
                per_source: None,
                colours: None
            })
        );
        assert_eq!(rate("8kbit").unwrap().burst, 9216, "a jumbo frame passes");
        let with = police("80mbit", Some("1mbit"));
        assert_eq!(
            with,
            Ok(Police {
                rate: 10_000_000,
                burst: 125_000,
                bytes: true,
                per_source: None,
                colours: None
            })
        );
        for (rate, burst) in
            [("10", None), ("pps", None), ("0pps", None), ("10kB", None), ("80mbit", Some("5"))]
        {
            assert!(police(rate, burst).is_err(), "{rate} {burst:?}");
        }
        let lengths = |ip4, ip6| Some(SourceLengths { ip4, ip6, ..SourceLengths::default() });
        for (text, wanted) in [
            ("1kpps per source", lengths(32, 64)),
            ("1kpps per source/24", lengths(24, 64)),
            ("1kpps per source/56", lengths(32, 56)),
            ("1mbit per source/24/48", lengths(24, 48)),
        ] {
            assert_eq!(police(text, None).unwrap().per_source, wanted, "{text}");
        }
        for text in [
            "per host",
            "per source/0",
            "per source/129",
            "per source/33/64",
            "per source/x",
            "per",
        ] {
            let error = police(&format!("1kpps {text}"), None).unwrap_err();
            assert!(error.contains("per source/24") || text == "per", "{text}: {error}");
        }
        assert!(police("10pps", Some("5")).is_ok_and(|police| police.burst == 5));
        assert!(police("9999999999999gbit", None).unwrap_err().contains("write it as"));
    }
}
