//! Reports as text tables: columns without frames, so that `grep` and `awk` work on them.

mod bonds;
mod click;
mod configurations;
mod control_queues;
mod devices;
mod exporters;
mod forwarders;
mod hardware;
mod mirrors;
mod queues;

use std::collections::{BTreeSet, HashMap};

use anyhow::{Result, bail};
use api::report::{
    AcceleratedBondPort, AcceleratedFamily, AcceleratedFlows, AcceleratedInterface,
    AcceleratedVlan, Acceleration, Class, ColourCounts, Compiler, Counters, Families, Filter,
    FilterRule, FilterVerdict, Flows, HostInterface, Interface, Multicast, MulticastPort,
    Neighbour, Offload, Path, Policing, Port, PrefixSet, Remote, ResolvedPath, Route, RouteAnswer,
    RouteSummary, SetElement, SourceReport, Status, Steps, Vrf,
};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use control::config::DEFAULT_VRF;
use dataplane::reason::{DropReason, PuntClass};
use dataplane::words::{count, suggestion};
use serde_json::Value;

pub use bonds::bonds;
pub use click::click;
pub use configurations::{history, plan};
pub use control_queues::control_queues;
pub use devices::devices;
pub use exporters::exporters;
pub use forwarders::{forwarders, rss};
pub use mirrors::mirrors;
pub use queues::queues;

fn columns(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.iter().map(|title| title.to_uppercase()));
    table
}

fn finish(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// Formats one line a port, its addresses separated by commas.
pub fn ports(ports: &[Port]) -> String {
    // Only if there are any.
    let trouble = ports.iter().any(|port| !port.troubles.is_empty());
    let mut names = vec![
        "port",
        "device",
        "driver",
        "link",
        "host",
        "mtu",
        "mac",
        "rx packets",
        "tx packets",
        "missed",
        "to host",
        "from host",
        "addresses",
    ];
    let control = ports.iter().any(|port| port.control_queue.is_some());
    names.extend(control.then_some("control queue"));
    names.extend(trouble.then_some("trouble"));
    let mut table = columns(&names);
    for port in ports {
        let host = |of: fn(&HostInterface) -> u64| {
            port.host.as_ref().map_or_else(|| "-".to_owned(), |host| of(host).to_string())
        };
        let mut row = vec![
            port.name.clone(),
            port.device.clone(),
            port.driver.clone(),
            port.link.clone(),
            host_state(port.host.as_ref()),
            port.mtu.to_string(),
            port.mac.clone(),
            port.rx_packets.to_string(),
            port.tx_packets.to_string(),
            port.rx_missed.to_string(),
            host(|host| host.up_packets),
            host(|host| host.down_packets),
            port.addresses.join(", "),
        ];
        let queue = || port.control_queue.map_or_else(|| "-".to_owned(), |queue| queue.to_string());
        row.extend(control.then(queue));
        row.extend(trouble.then(|| troubles(port)));
        table.add_row(row);
    }
    finish(&table)
}

/// Formats one line an interface; VLANs are indented below the interface that carries them, and ports below the bond
/// that has their frames.
pub fn interfaces(interfaces: &[Interface]) -> String {
    let mut table = columns(&[
        "interface",
        "tag",
        "link",
        "host",
        "mtu",
        "mac",
        "vrf",
        "rx packets",
        "tx packets",
        "addresses",
    ]);
    let mut depths: HashMap<&str, usize> = HashMap::new();
    for interface in interfaces {
        // The interface that carries another comes first.
        let below = interface.parent.as_ref().and_then(|parent| depths.get(parent.as_str()));
        let depth = below.map_or(0, |depth| depth + 1);
        depths.insert(interface.name.as_str(), depth);
        let tag = interface.tag.as_ref();
        let tag = tag.map_or_else(|| "-".to_owned(), |tag| format!("{} {}", tag.protocol, tag.id));
        table.add_row([
            format!("{}{}", "  ".repeat(depth), interface.name),
            tag,
            interface.link.clone(),
            host_state(interface.host.as_ref()),
            interface.mtu.to_string(),
            macs(interface),
            interface.vrf.clone().unwrap_or_else(|| DEFAULT_VRF.to_owned()),
            interface.rx_packets.to_string(),
            interface.tx_packets.to_string(),
            interface.addresses.join(", "),
        ]);
    }
    finish(&table)
}

/// Formats an interface's own MAC, and its virtual ones.
fn macs(interface: &Interface) -> String {
    let all: Vec<&str> = std::iter::once(&interface.mac)
        .chain(&interface.virtual_macs)
        .map(String::as_str)
        .collect();
    all.join(", ")
}

/// Formats one line a VRF.
pub fn vrfs(vrfs: &[Vrf]) -> String {
    let mut table =
        columns(&["vrf", "table", "namespace", "routes 4", "routes 6", "fib 4", "fib 6", "ports"]);
    for Vrf { name, table: number, namespace, ports, routes, fib, .. } in vrfs {
        table.add_row([
            name.clone(),
            number.map_or_else(|| "-".to_owned(), |number| number.to_string()),
            namespace.clone().unwrap_or_else(|| "-".to_owned()),
            routes.ipv4.to_string(),
            routes.ipv6.to_string(),
            fib.ipv4.to_string(),
            fib.ipv6.to_string(),
            if ports.is_empty() { "-".to_owned() } else { ports.join(", ") },
        ]);
    }
    finish(&table)
}

/// Formats the router's version, age and configuration.
pub fn status(status: &Status) -> String {
    let Status { version, dpdk, uptime_s, configuration, unconfirmed, tsc_hz: _ } = status;
    let unconfirmed = if *unconfirmed { ", waits for turnpike confirm" } else { "" };
    let (minutes, hours) = (uptime_s / 60 % 60, uptime_s / 3600 % 24);
    let uptime = format!("{} d {hours:02}:{minutes:02}:{:02}", uptime_s / 86_400, uptime_s % 60);
    format!(
        "version        {version}, {dpdk}\nuptime         {uptime}\n\
         configuration  {configuration}{unconfirmed}"
    )
}

/// Returns the state of the host interface, with the reason.
fn host_state(host: Option<&HostInterface>) -> String {
    let Some(HostInterface { state, reason, .. }) = host else { return "-".to_owned() };
    reason.as_ref().map_or_else(|| state.clone(), |reason| format!("{state}: {reason}"))
}

/// Formats one line a port: its link, and the packets that its device receives.
pub fn links(ports: &[Port]) -> String {
    let mut table = columns(&[
        "port", "device", "link", "host", "told by", "speed", "duplex", "autoneg", "pause", "fec",
        "receives",
    ]);
    for port in ports {
        let details = &port.link_details;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let yes_or_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let receives = match (details.promiscuous, &details.all_multicast_because) {
            (true, _) => "all frames".to_owned(),
            (false, Some(why)) => format!("its address, all multicasts: {why}"),
            (false, None) => format!("its address, {}", count(details.groups.len(), "group")),
        };
        table.add_row([
            port.name.clone(),
            port.device.clone(),
            port.link.clone(),
            host_state(port.host.as_ref()),
            port.link_by.clone(),
            or_dash(details.speed_mbps.map(|mbps| format!("{mbps} Mb/s"))),
            or_dash(details.duplex.clone()),
            or_dash(details.autoneg.map(yes_or_no)),
            or_dash(details.pause.clone()),
            or_dash(details.fec.clone()),
            receives,
        ]);
    }
    finish(&table)
}

/// Formats one line for each offload of each port.
pub fn offloads(ports: &[Port]) -> String {
    let mut table = columns(&["port", "offload", "device", "used", "why"]);
    for port in ports {
        for Offload { offload, device, on, reason } in &port.offloads {
            let yes_or_no = |yes: bool| if yes { "yes" } else { "no" };
            table.add_row([&port.name, offload, yes_or_no(*device), yes_or_no(*on), reason]);
        }
    }
    finish(&table)
}

/// Returns the counters that indicate trouble.
fn troubles(port: &Port) -> String {
    let of = |name: &str| match name {
        "dma_faults" => port.dma_faults,
        "rx_nombuf" => port.rx_nombuf,
        "rx_missed" => port.rx_missed - port.rx_nombuf,
        "rx_errors" => port.rx_errors,
        _ => port.tx_errors,
    };
    let words = port.troubles.iter().map(|name| format!("{name} {}", of(name)));
    words.collect::<Vec<_>>().join(", ")
}

/// The header of [`route_line`]s. Their columns have usual widths, because the widest of a million
/// routes is not known in advance.
pub const ROUTES_HEADER: &str = "PREFIX                   TYPE         SOURCE     METRIC  PATHS\n";

/// Formats one line for a route; one that is not in use ends with the reason in brackets.
pub fn route_line(route: &Route) -> String {
    let paths: Vec<_> = route.paths.iter().map(path).collect();
    let reason = match (&route.inactive, route.active) {
        (Some(reason), _) => format!(" [{reason}]"),
        (None, true) => String::new(),
        (None, false) => " [not in use]".to_owned(),
    };
    let Route { prefix, kind, source, metric, .. } = route;
    let line =
        format!("{prefix:<24} {kind:<12} {source:<10} {metric:<7} {}{reason}", paths.join(", "));
    line.trim_end().to_owned()
}

fn path(path: &Path) -> String {
    let place = match (path.via, &path.port) {
        (Some(via), Some(port)) => format!("{via} ({port})"),
        (Some(via), None) => match &path.vrf {
            Some(vrf) => format!("{via} (recursive in {vrf})"),
            None => format!("{via} (recursive)"),
        },
        (None, port) => port.clone().unwrap_or_default(),
    };
    if path.weight == 1 { place } else { format!("{place} weight {}", path.weight) }
}

/// Formats the route, one line a path, then the other routes to the prefix.
pub fn route(answer: &RouteAnswer) -> String {
    let Some(prefix) = &answer.prefix else {
        return format!("{}: no route", answer.address);
    };
    let source = answer.source.as_deref().unwrap_or("?");
    let mut lines = vec![format!("{}: {prefix}, {}, from {source}", answer.address, answer.kind)];
    lines.extend(answer.paths.iter().map(resolved_path));
    let others = answer.candidates.iter().filter(|route| !route.active);
    lines.extend(others.map(|route| format!("  not used: {}", route_line(route))));
    lines.join("\n")
}

fn resolved_path(path: &ResolvedPath) -> String {
    let via = path.via.map_or_else(|| "directly connected".to_owned(), |via| format!("via {via}"));
    let mac = path.mac.as_deref().map_or_else(String::new, |mac| format!(" at {mac}"));
    let weight = if path.weight == 1 { String::new() } else { format!(", weight {}", path.weight) };
    let taken = if path.taken { "  <- this flow" } else { "" };
    format!("  {via}{mac} by port {}, {}{weight}{taken}", path.port, path.state)
}

/// Formats the routes by source, then the state of the forwarding tables.
pub fn summary(summary: &RouteSummary) -> String {
    let mut table = columns(&["source", "ipv4", "ipv6"]);
    for (name, Families { ipv4, ipv6 }) in &summary.sources {
        table.add_row([name.clone(), ipv4.to_string(), ipv6.to_string()]);
    }
    let RouteSummary { fib, fib_structure, fib_bytes, next_hops, .. } = summary;
    table.add_row(["in use".to_owned(), fib.ipv4.to_string(), fib.ipv6.to_string()]);
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    table.add_row(["structure", &fib_structure.ipv4, &fib_structure.ipv6]);
    table.add_row(["memory".to_owned(), mib(fib_bytes.ipv4), mib(fib_bytes.ipv6)]);
    right_align(&mut table, 1..3);
    format!(
        "{}\n\nnext hops {} of {}; routes refused {}, waiting for room {}, pending {}",
        finish(&table),
        next_hops.used,
        next_hops.most,
        summary.refused,
        summary.waiting,
        summary.pending
    )
}

fn right_align(table: &mut Table, columns: std::ops::Range<usize>) {
    for index in columns {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Formats one line a source.
pub fn sources(sources: &[SourceReport]) -> String {
    let mut table = columns(&[
        "source",
        "distance",
        "state",
        "ipv4",
        "ipv6",
        "messages",
        "errors",
        "refused",
        "overruns",
        "resyncs",
        "last resync",
        "last audit",
    ]);
    for source in sources {
        let mut row = vec![
            source.name.clone(),
            source.distance.to_string(),
            source.state.clone(),
            source.ipv4.to_string(),
            source.ipv6.to_string(),
        ];
        row.extend(source.remote.as_ref().map_or_else(no_remote, remote));
        table.add_row(row);
    }
    right_align(&mut table, 3..10);
    finish(&table)
}

fn no_remote() -> [String; 7] {
    [const { String::new() }; 7].map(|_| "-".to_owned())
}

fn remote(remote: &Remote) -> [String; 7] {
    let ago = |seconds: Option<u64>| {
        seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds} s ago"))
    };
    let audit = remote.last_audit.as_ref().map(|audit| {
        let differences = audit.missing + audit.stale + audit.different + audit.fib;
        let verdict = match differences {
            0 => "equal".to_owned(),
            1 => "1 DIFFERENCE".to_owned(),
            number => format!("{number} DIFFERENCES"),
        };
        format!("{} s ago, {}, {verdict}", audit.age_s, count(audit.compared, "route"))
    });
    [
        remote.messages.to_string(),
        remote.errors.to_string(),
        remote.refused.to_string(),
        remote.overruns.to_string(),
        remote.resyncs.to_string(),
        ago(remote.last_resync_s),
        audit.unwrap_or_else(|| "never".to_owned()),
    ]
}

/// Formats one line a neighbour.
pub fn neighbours(neighbours: &[Neighbour]) -> String {
    let mut table = columns(&["address", "port", "mac", "state", "queued"]);
    for neighbour in neighbours {
        let state = if neighbour.is_static { "static".to_owned() } else { neighbour.state.clone() };
        table.add_row([
            neighbour.address.to_string(),
            neighbour.port.clone(),
            neighbour.mac.clone().unwrap_or_else(|| "-".to_owned()),
            state,
            neighbour.queued.to_string(),
        ]);
    }
    finish(&table)
}

/// Formats the sets of prefixes with their sizes, or the elements of the one with this name.
///
/// # Errors
/// There is no set of this name.
pub fn sets(sets: &[PrefixSet], name: Option<&str>) -> Result<String> {
    let Some(name) = name else { return Ok(sizes(sets)) };
    let Some(set) = sets.iter().find(|set| set.name == name) else {
        let known: Vec<_> = sets.iter().map(|set| set.name.as_str()).collect();
        bail!("prefix_set \"{name}\": unknown{}", suggestion(name, "sets", &known));
    };
    let mut table = columns(&["prefix", "by", "remaining"]);
    for SetElement { prefix, by, remaining_s } in &set.elements {
        let remaining =
            remaining_s.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"));
        table.add_row([prefix.to_string(), by.clone(), remaining]);
    }
    right_align(&mut table, 2..3);
    Ok(finish(&table))
}

fn sizes(sets: &[PrefixSet]) -> String {
    if sets.is_empty() {
        return "no sets; turnpike.prefix_set makes them".to_owned();
    }
    let mut table =
        columns(&["set", "ipv4", "ipv6", "of configuration", "of commands", "of routes"]);
    for PrefixSet { name, elements } in sets {
        let counted = |is: &dyn Fn(&SetElement) -> bool| {
            elements.iter().filter(|element| is(element)).count().to_string()
        };
        table.add_row([
            name.clone(),
            counted(&|element| element.prefix.addr().is_ipv4()),
            counted(&|element| element.prefix.addr().is_ipv6()),
            counted(&|element| element.by == "configuration"),
            counted(&|element| element.by == "command"),
            counted(&|element| element.by == "routes"),
        ]);
    }
    right_align(&mut table, 1..6);
    finish(&table)
}

/// Formats the flows, and the usage of their table.
pub fn flows(flows: &Flows) -> String {
    if flows.room == 0 {
        return "no filter asks for the state of connections".to_owned();
    }
    let mut table = columns(&[
        "protocol", "from", "to", "vrf", "state", "packets", "back", "bytes", "back", "age", "idle",
    ]);
    for flow in &flows.flows {
        table.add_row([
            flow.protocol.clone(),
            flow.from.clone(),
            flow.to.clone(),
            flow.vrf.clone(),
            flow.state.clone(),
            flow.packets_there.to_string(),
            flow.packets_back.to_string(),
            flow.bytes_there.to_string(),
            flow.bytes_back.to_string(),
            format!("{} s", flow.age_s),
            format!("{} s", flow.idle_s),
        ]);
    }
    right_align(&mut table, 5..11);
    let Flows { room, entered, pushed_out, refused, total, .. } = flows;
    let shown = flows.flows.len();
    format!(
        "{shown} of {total} flows; room for {room} of each family; entered {entered}, pushed out \
         {pushed_out}, without a place {refused}\n{}",
        finish(&table)
    )
}

/// Formats a report of unknown structure: objects are rows, or lines of key and value.
pub fn any(report: &Value) -> String {
    let cell = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        other => other.to_string(),
    };
    match report {
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_object) => {
            let objects: Vec<_> = list.iter().filter_map(Value::as_object).collect();
            let keys: BTreeSet<&str> =
                objects.iter().flat_map(|object| object.keys().map(String::as_str)).collect();
            let mut table = columns(&Vec::from_iter(keys.iter().copied()));
            for object in objects {
                table
                    .add_row(keys.iter().map(|&key| cell(object.get(key).unwrap_or(&Value::Null))));
            }
            finish(&table)
        }
        Value::Array(list) => list.iter().map(cell).collect::<Vec<_>>().join("\n"),
        Value::Object(object) => {
            let width = object.keys().map(|key| key.chars().count()).max().unwrap_or(0);
            let line = |(key, value)| format!("{key:<width$}  {}", cell(value));
            object.iter().map(line).collect::<Vec<_>>().join("\n")
        }
        other => cell(other),
    }
}

/// Formats one line a multicast route.
pub fn multicast(routes: &[Multicast]) -> String {
    let mut table =
        columns(&["group", "source", "origin", "from", "to", "packets", "bytes", "wrong port"]);
    for route in routes {
        let port = |to: &MulticastPort| match to.ttl {
            0 | 1 => to.port.clone(),
            ttl => format!("{} (TTL above {ttl})", to.port),
        };
        let to: Vec<_> = route.to.iter().map(port).collect();
        table.add_row([
            route.group.to_string(),
            route.source.map_or_else(|| "any".to_owned(), |source| source.to_string()),
            route.origin.clone(),
            route.from.clone(),
            if to.is_empty() { "-".to_owned() } else { to.join(", ") },
            route.packets.to_string(),
            route.bytes.to_string(),
            route.wrong_port.to_string(),
        ]);
    }
    right_align(&mut table, 5..8);
    finish(&table)
}

/// Formats the rules of each filter, or of the one with this name, in their order.
///
/// # Errors
/// There is no filter of this name.
pub fn filters(filters: &[Filter], name: Option<&str>) -> Result<String> {
    let chosen: Vec<_> =
        filters.iter().filter(|filter| name.is_none_or(|name| filter.name == name)).collect();
    if let (Some(name), true) = (name, chosen.is_empty()) {
        let known: Vec<_> = filters.iter().map(|filter| filter.name.as_str()).collect();
        bail!("filter \"{name}\": unknown{}", suggestion(name, "filters", &known));
    }
    Ok(chosen.into_iter().map(filter).collect::<Vec<_>>().join("\n\n"))
}

/// Formats the rules that match a packet, a line each; the last one decides.
pub fn verdict(verdict: &FilterVerdict) -> String {
    let line = |rule: &FilterRule| {
        let name = rule.name.as_ref().map_or_else(String::new, |name| format!(" \"{name}\""));
        let police =
            rule.police.as_ref().map_or_else(String::new, |police| format!(", up to {police}"));
        format!("{}{police}: rule {}{name}: {}", rule.action, rule.number, rule.matches)
    };
    let end = match &verdict.rule {
        Some(rule) => line(rule),
        None => format!("{}: {}", verdict.action, verdict.why),
    };
    verdict.before.iter().map(line).chain([end]).collect::<Vec<_>>().join("\n")
}

fn filter(filter: &Filter) -> String {
    let ports =
        |ports: &[String]| if ports.is_empty() { "no port".to_owned() } else { ports.join(", ") };
    let mut names = vec!["", "name", "matches", "action", "police", "packets", "bytes", "last"];
    let has_hardware = !filter.hardware.is_empty();
    if has_hardware {
        names.extend(["where", "by device"]);
    }
    let mut table = columns(&names);
    for rule in &filter.rules {
        let mut row = vec![
            rule.number.to_string(),
            rule.name.clone().unwrap_or_else(|| "-".to_owned()),
            rule.matches.clone(),
            rule.action.clone(),
            police(rule),
            rule.packets.to_string(),
            rule.bytes.to_string(),
            rule.last_s.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s ago")),
        ];
        if has_hardware {
            row.extend(hardware::of_rule(rule));
        }
        table.add_row(row);
    }
    table.add_row([
        "-",
        "-",
        "anything else",
        &filter.default,
        "-",
        &filter.default_packets.to_string(),
        &filter.default_bytes.to_string(),
        "",
    ]);
    right_align(&mut table, 5..8);
    if has_hardware {
        right_align(&mut table, 9..10);
    }
    let (name, rules) = (&filter.name, finish(&table));
    if !filter.classes.is_empty() {
        let classes = classes(&filter.classes);
        return format!(
            "filter {name}: for the router itself
{rules}

what is accepted, by class:
{classes}"
        );
    }
    let (inward, outward) = (ports(&filter.inward), ports(&filter.outward));
    let reasons = hardware::reasons(filter);
    format!(
        "filter {name}: inward on {inward}, outward on {outward}
{rules}{reasons}"
    )
}

/// Formats the rate limit of a rule's packets, and the number of packets of each colour.
fn police(rule: &FilterRule) -> String {
    let Some(police) = &rule.police else { return "-".to_owned() };
    let Some(ColourCounts { green, yellow, red }) = rule.colours else { return police.clone() };
    format!("{police}\ngreen {green}, yellow {yellow}, red {red}")
}

/// Formats dropped packets by step and reason, the largest count first, then the counters of the configuration's
/// steps, then the sum that must close. `all`: including zeros.
pub fn counters(counters: &Counters, all: bool) -> String {
    let mut text = drops(counters, all);
    let counted = counters.steps.iter().map(|(name, &count)| (name.as_str(), count));
    let counted = most_first(counted, all);
    if !counted.is_empty() {
        let mut table = columns(&["counted by steps", ""]);
        for (name, count) in counted {
            table.add_row([name, &count.to_string()]);
        }
        right_align(&mut table, 1..2);
        text += &format!("\n\n{}", finish(&table));
    }
    let verdict = match counters.unaccounted {
        0 => "the sum closes".to_owned(),
        n => format!("{n} unaccounted: packets are moving, ask again"),
    };
    format!(
        "{text}\n\nreceived {} + originated {} + replicated {}\n  = sent {} + to host {} + dropped {} + in flight {}\n{verdict}",
        counters.received,
        counters.originated,
        counters.replicated,
        counters.sent,
        counters.to_host,
        counters.dropped_total,
        counters.in_flight,
    )
}

/// Formats one line for each step and drop reason, the largest first.
fn drops(counters: &Counters, all: bool) -> String {
    let by_step = &counters.dropped_by_step;
    // Reasons that no step declares have a line of their own with `all`.
    let is_nowhere = |reason: &str| !by_step.values().any(|reasons| reasons.contains_key(reason));
    let others = counters.dropped.iter().filter(|(reason, _)| is_nowhere(reason));
    let rows = by_step.iter().flat_map(|(step, reasons)| {
        reasons.iter().map(move |(reason, &packets)| ((step.as_str(), reason.as_str()), packets))
    });
    let rows = rows.chain(others.map(|(reason, &packets)| (("-", reason.as_str()), packets)));
    let rows = most_first(rows, all);
    if rows.is_empty() {
        return "nothing dropped (--all: every drop reason)".to_owned();
    }
    let mut table = columns(&["step", "dropped because", "packets", "meaning"]);
    for ((step, reason), packets) in rows {
        let known = DropReason::ALL.iter().find(|known| known.name() == reason);
        let help = known.map_or("", |reason| reason.help());
        table.add_row([step, reason, &packets.to_string(), help]);
    }
    right_align(&mut table, 2..3);
    finish(&table)
}

/// Returns counters with name and value, the largest first; those that are 0 only with `all`.
fn most_first<N>(counters: impl Iterator<Item = (N, u64)>, all: bool) -> Vec<(N, u64)> {
    let mut rows: Vec<_> = counters.filter(|&(_, count)| all || count > 0).collect();
    rows.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    rows
}

/// Formats one line a step, then one a step with counters of its own, then one a compiler.
pub fn steps(report: &Steps) -> String {
    let mut table =
        columns(&["step", "kind", "packets", "failures", "overruns", "dropped", "state"]);
    for step in &report.steps {
        let [failures, overruns, dropped, state] = match &step.lua {
            None => ["-", "-", "-", "native"].map(str::to_owned),
            Some(lua) => {
                let state = match lua.disabled {
                    0 => "lua".to_owned(),
                    n => format!("lua, disabled on {}", count(n, "forwarder")),
                };
                [lua.failures.to_string(), lua.overruns.to_string(), lua.dropped.to_string(), state]
            }
        };
        let packets = step.packets.to_string();
        table.add_row([&step.name, &step.kind, &packets, &failures, &overruns, &dropped, &state]);
    }
    right_align(&mut table, 2..6);
    let mut text = finish(&table);
    let counting = report.steps.iter().filter(|step| !step.counters.is_empty());
    for (index, step) in counting.enumerate() {
        let counters = step.counters.iter().map(|(name, count)| format!("{name} {count}"));
        let counters = counters.collect::<Vec<_>>().join(", ");
        text += &format!("{}{}: {counters}", if index == 0 { "\n\n" } else { "\n" }, step.name);
    }
    for compiler in &report.compilers {
        let Compiler { forwarder, compiled, aborted, flushed, .. } = compiler;
        text += &format!("\n\nLuaJIT on forwarder {forwarder}: ");
        text +=
            &format!("traces compiled {compiled}, aborted {aborted}, all flushed {flushed} times");
        if let Some(reason) = &compiler.last_abort {
            text += &format!("\n  last given up: {reason}");
        }
    }
    text
}

/// Formats one line a class.
fn classes(all: &[Class]) -> String {
    let mut table = columns(&[
        "class",
        "rate/s",
        "weight",
        "queue",
        "offered",
        "passed",
        "refused early",
        "refused full",
        "waiting",
        "packets",
    ]);
    for class in all {
        let named = PuntClass::ALL.iter().find(|known| known.name() == class.name);
        table.add_row([
            class.name.clone(),
            class.rate.to_string(),
            class.weight.to_string(),
            class.queue.to_string(),
            class.offered.to_string(),
            class.passed.to_string(),
            class.refused_early.to_string(),
            class.refused_full.to_string(),
            class.waiting.to_string(),
            named.map_or("", |known| known.help()).to_owned(),
        ]);
    }
    right_align(&mut table, 1..9);
    finish(&table)
}

/// Formats one line a reason with a column for each interface, and what is not accelerated.
pub fn acceleration(report: &Acceleration) -> String {
    if report.interfaces.is_empty() {
        return "no interface is accelerated; start: turnpike accelerate INTERFACE …".to_owned();
    }
    let names = report.interfaces.iter().map(|interface| interface.name.as_str());
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["PACKETS"].into_iter().chain(names));
    let reasons: BTreeSet<&String> =
        report.interfaces.iter().flat_map(|interface| interface.packets.keys()).collect();
    for reason in reasons {
        let counts: Vec<u64> = report
            .interfaces
            .iter()
            .map(|interface| interface.packets.get(reason).copied().unwrap_or_default())
            .collect();
        if counts.iter().any(|count| *count > 0) || reason == "accelerated" {
            let counts = counts.iter().map(u64::to_string);
            table.add_row([reason.clone()].into_iter().chain(counts));
        }
    }
    right_align(&mut table, 1..report.interfaces.len() + 1);
    let lines = report.interfaces.iter().map(accelerated);
    let lines = report
        .in_kernel
        .then(|| "forwarding by the XDP programs themselves".to_owned())
        .into_iter()
        .chain(lines);
    let lines = lines.chain(report.flows.as_ref().map(accelerated_flows));
    format!("{}\n\n{}", lines.collect::<Vec<_>>().join("\n"), finish(&table))
}

/// Formats the numbers of flows.
fn accelerated_flows(flows: &AcceleratedFlows) -> String {
    let AcceleratedFlows { known, most, refused, ended, renewed, lost } = flows;
    let mut line = format!(
        "flows only: {known} established, room for {most}; {ended} ended, timeouts renewed {renewed} times"
    );
    if *refused > 0 {
        line += &format!("; {refused} left to the kernel for want of room");
    }
    if *lost > 0 {
        line += &format!("; read anew {lost} times after lost announcements");
    }
    line
}

/// Formats the state of an accelerated interface.
fn accelerated(interface: &AcceleratedInterface) -> String {
    let AcceleratedInterface {
        name,
        mode,
        reason,
        ip4,
        ip6,
        vlans,
        bond_ports,
        longest,
        closed,
        packets: _,
    } = interface;
    let family = |name: &str, family: &AcceleratedFamily| match &family.reason {
        None => format!("{name} accelerated"),
        Some(reason) => format!("{name} by the kernel ({reason})"),
    };
    let mode = match reason {
        None => mode.clone(),
        Some(reason) => format!("{mode} ({reason})"),
    };
    let families = |ip4: &AcceleratedFamily, ip6: &AcceleratedFamily| {
        format!("{}, {}", family("IPv4", ip4), family("IPv6", ip6))
    };
    let own = format!("{name}: {mode}, up to {longest} bytes, {}", families(ip4, ip6));
    let closed =
        closed.as_ref().map_or(String::new(), |why| format!("; no packet leaves by it ({why})"));
    let vlan = |of: &AcceleratedVlan| format!("\n  {}: {}", of.name, families(&of.ip4, &of.ip6));
    let port = |of: &AcceleratedBondPort| match &of.reason {
        None => format!("\n  port {}", of.name),
        Some(reason) => format!("\n  port {}: by the kernel ({reason})", of.name),
    };
    let below = bond_ports.iter().map(port).chain(vlans.iter().map(vlan));
    own + &closed + &below.collect::<String>()
}

/// Formats one line a class, then the limits of ICMP errors.
pub fn policing(policing: &Policing) -> String {
    let errors = &policing.icmp_errors;
    format!(
        "{}\n\nworkers: {}\nICMP errors: {}/s, {} at once; to one prefix {}/s, {} at once\n  \
         not sent for the rate {}, for the prefix's {}\n\
         events for the control plane: {} waiting, {} merged, {} lost",
        classes(&policing.classes),
        policing.workers,
        errors.rate,
        errors.burst,
        errors.prefix_rate,
        errors.prefix_burst,
        errors.suppressed,
        errors.suppressed_by_prefix,
        policing.events.waiting,
        policing.events.merged,
        policing.events.lost,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(source: &str, paths: Vec<Path>) -> Route {
        Route {
            vrf: None,
            prefix: "192.0.2.0/24".into(),
            source: source.into(),
            kind: "unicast".into(),
            metric: 20,
            origin_as: None,
            active: source == "static",
            inactive: (source != "static").then(|| "shadowed".to_owned()),
            paths,
        }
    }

    #[test]
    fn a_route_reads_as_a_sentence() {
        let path = ResolvedPath {
            port: "right".into(),
            via: Some("10.0.2.2".parse().unwrap()),
            weight: 3,
            mac: Some("02:00:00:00:00:01".into()),
            state: "reachable".into(),
            taken: true,
        };
        let answer = RouteAnswer {
            address: "192.0.2.1".parse().unwrap(),
            prefix: Some("192.0.2.0/24".into()),
            source: Some("static".into()),
            kind: "unicast".into(),
            paths: vec![path],
            candidates: vec![plain("static", vec![]), plain("kernel", vec![])],
        };
        assert_eq!(
            route(&answer),
            "192.0.2.1: 192.0.2.0/24, unicast, from static\n  \
             via 10.0.2.2 at 02:00:00:00:00:01 by port right, reachable, weight 3  <- this flow\n  \
             not used: 192.0.2.0/24             unicast      kernel     20       [shadowed]"
        );
    }

    #[test]
    fn a_route_is_one_line_with_all_its_paths() {
        let via = |text: &str| Some(text.parse().unwrap());
        let paths = vec![
            Path { port: Some("left".into()), via: via("10.0.1.2"), vrf: None, weight: 1 },
            Path { port: None, via: via("10.9.9.9"), vrf: None, weight: 2 },
            Path { port: Some("right".into()), via: None, vrf: None, weight: 1 },
        ];
        assert_eq!(
            route_line(&plain("static", paths)),
            "192.0.2.0/24             unicast      static     20      \
             10.0.1.2 (left), 10.9.9.9 (recursive) weight 2, right"
        );
        assert_eq!((ROUTES_HEADER.find("TYPE"), ROUTES_HEADER.find("PATHS")), (Some(25), Some(57)));
    }

    #[test]
    fn sources_tell_differences_of_an_audit_apart() {
        let audit = |different| api::report::Audit {
            age_s: 5,
            compared: 1000,
            missing: 1,
            stale: 0,
            different,
            fib: 1,
            examples: Vec::new(),
        };
        let source = |last_audit| SourceReport {
            name: "kernel".into(),
            distance: 10,
            state: "synchronised".into(),
            ipv4: 1000,
            ipv6: 0,
            remote: Some(Remote { last_audit, messages: 77, ..Remote::default() }),
        };
        let text = sources(&[source(Some(audit(2)))]);
        assert!(text.contains("5 s ago, 1000 routes, 4 DIFFERENCES"), "{text}");
        assert!(text.contains("77") && text.contains("synchronised"), "{text}");
        assert!(sources(&[source(None)]).ends_with("never"));
    }

    #[test]
    fn what_is_not_known_is_rows_or_lines() {
        let rows = serde_json::json!([{ "a": 1, "b": "x" }, { "b": null }]);
        assert_eq!(any(&rows), " A  B\n 1  x\n -  -");
        let object = serde_json::json!({ "long key": 1.5, "z": [1, "x"] });
        assert_eq!(any(&object), "long key  1.5\nz         [1,\"x\"]");
        assert_eq!(any(&serde_json::json!(["a", 2, true])), "a\n2\ntrue");
        assert_eq!((any(&"a\nb".into()), any(&Value::Null)), ("a\nb".to_owned(), "-".to_owned()));
    }

    #[test]
    fn counters_list_what_was_dropped_and_the_verdict() {
        let report = |unaccounted| Counters {
            steps: [("voip".to_owned(), 7), ("never".to_owned(), 0)].into(),
            received: 7,
            originated: 1,
            replicated: 0,
            sent: 5,
            to_host: 1,
            dropped: [("runt", 2), ("no-route", 5), ("filtered", 4), ("by-step", 0), ("shed", 0)]
                .map(|(reason, packets)| (reason.to_owned(), packets))
                .into(),
            dropped_by_step: [
                ("classify", [("runt", 2), ("vlan-unknown", 0)]),
                ("slow-path", [("no-route", 5), ("filtered", 1)]),
                ("inward", [("filtered", 3), ("by-step", 0)]),
            ]
            .map(|(step, drops)| {
                let drops = drops.map(|(reason, packets)| (reason.to_owned(), packets));
                (step.to_owned(), drops.into())
            })
            .into(),
            dropped_total: 11,
            in_flight: 0,
            unaccounted,
        };
        let rows = |text: &str| -> Vec<String> {
            let lines = text.lines().skip(1).take_while(|line| !line.is_empty());
            lines
                .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
                .collect()
        };
        let dropped = [
            "slow-path no-route 5",
            "inward filtered 3",
            "classify runt 2",
            "slow-path filtered 1",
        ];
        let all = counters(&report(0), true);
        let nothing = ["classify vlan-unknown 0", "inward by-step 0", "- shed 0"];
        assert_eq!(rows(&all), [&dropped[..], &nothing].concat());
        assert!(all.contains("never") && all.ends_with("the sum closes"), "{all}");
        let some = counters(&report(-3), false);
        assert_eq!(rows(&some), dropped);
        assert!(some.contains(DropReason::NoRoute.help()), "{some}");
        assert!(some.contains("voip") && !some.contains("never"), "{some}");
        assert!(some.ends_with("-3 unaccounted: packets are moving, ask again"));
        let nothing = Counters {
            dropped: [("runt".to_owned(), 0)].into(),
            dropped_by_step: [].into(),
            steps: [].into(),
            ..report(0)
        };
        assert!(counters(&nothing, false).starts_with("nothing dropped (--all"));
    }
}
