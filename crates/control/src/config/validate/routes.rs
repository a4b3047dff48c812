//! `turnpike.route "PREFIX" { … }` and `turnpike.import { … }`: routes and next hops.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

use dataplane::interface::{InterfaceId, VrfId};
use ipnet::IpNet;

use super::super::error::suggestion;
use super::super::network::{Networks, NoGateway, Place, parse_prefix, place_of_gateway};
use super::super::script::Statement;
use super::super::value::{Fields, Value, whole_number};
use super::super::{Forwarding, Import, NamedNextHop, Route, Vrf};
use super::Context;
use super::vrfs::{self, Vrfs};
use crate::rib::{BUCKETS_MOST, PATHS_MOST, Path as NextHop, Resilient, RouteKind, WEIGHT_MOST};

const ROUTE: &[&str] = &[
    "via",
    "port",
    "blackhole",
    "prohibit",
    "unreachable",
    "metric",
    "resilient",
    "vrf",
    "next_hop_vrf",
];
const IMPORT: &[&str] = &["file", "via"];
const PATH: &str = "an address such as \"10.0.2.2\", or a list of { \"10.0.2.2\", weight = 2 }";

/// Buckets of a resilient route without a configured number: enough to spread 128 paths evenly,
/// within a few per cent.
const BUCKETS: u16 = 1024;

/// A path as written, before its port is resolved.
struct Written {
    /// `None`: the destinations themselves are on the port's network.
    via: Option<IpAddr>,
    weight: u16,
    port: Option<String>,
}

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<Route> {
    let mut routes = Vec::new();
    let mut seen: HashMap<(VrfId, IpNet, u32), usize> = HashMap::new();
    for statement in statements {
        let Some(route) = route(context, statement) else { continue };
        if let Some(line) = seen.insert((route.vrf, route.prefix, route.metric), route.line) {
            let message = format!(
                "{}: given on line {line} already; put the paths in one list, or give the routes \
                 different metrics",
                what(&statement.name)
            );
            context.errors.add(Some(route.line), message);
        }
        routes.push(route);
    }
    routes
}

/// Reads `turnpike.next_hop "NAME" { … }`, whose paths are like those of a route.
pub(super) fn next_hops<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<NamedNextHop> {
    let mut found = Vec::new();
    for statement in statements {
        let what = format!("next_hop \"{}\"", statement.name);
        let known_vrfs = context.vrfs.clone();
        let mut fields = context.fields(what.clone(), statement, &["via", "port", "vrf"]);
        let vrf = vrfs::named(&mut fields, "vrf", &known_vrfs).unwrap_or(VrfId::DEFAULT);
        let port = fields.text("port", "a port's name");
        let line = fields.line_of("via");
        let written = match port {
            Some(port) if fields.get("via").is_none() => {
                vec![Written { via: None, weight: 1, port: Some(port.to_owned()) }]
            }
            port => written_paths(&mut fields, port),
        };
        let families: HashSet<bool> =
            written.iter().filter_map(|path| path.via.map(|via| via.is_ipv4())).collect();
        if families.len() > 1 {
            fields.error("via", "via: gateways of both families; make a next hop for each");
        }
        let paths = resolve(context, &what, (line, vrf), written);
        found.push(NamedNextHop { line: statement.line, name: statement.name.clone(), paths });
    }
    found
}

fn what(name: &str) -> String {
    format!("route \"{name}\"")
}

fn route(context: &mut Context<'_>, statement: &Statement) -> Option<Route> {
    let prefix = match parse_destination(&statement.name, context.class_e) {
        Ok(prefix) => Some(prefix),
        Err(reason) => {
            let message = format!("{}: {reason}", what(&statement.name));
            context.errors.add(Some(statement.line), message);
            None
        }
    };
    let what = what(&statement.name);
    let known_vrfs = context.vrfs.clone();
    let mut fields = context.fields(what.clone(), statement, ROUTE);
    let vrf = vrfs::named(&mut fields, "vrf", &known_vrfs).unwrap_or(VrfId::DEFAULT);
    let next_hop_vrf = next_hop_vrf(&mut fields, &known_vrfs).unwrap_or(vrf);
    let metric = fields.number("metric", 0..=u64::from(u32::MAX)).unwrap_or(0) as u32;
    let port = fields.text("port", "a port's name");
    let kind = kind(&mut fields);
    let line = fields.line_of("via");
    let written = match (&kind, port) {
        (Some(_), _) => Vec::new(),
        (None, Some(port)) if fields.get("via").is_none() => {
            vec![Written { via: None, weight: 1, port: Some(port.to_owned()) }]
        }
        (None, port) => written_paths(&mut fields, port),
    };
    let resilient = resilient(&mut fields, kind.is_some());
    let kind = match kind {
        Some(kind) => kind,
        None => RouteKind::Unicast(resolve(context, &what, (line, next_hop_vrf), written)),
    };
    Some(Route { line: statement.line, vrf, prefix: prefix?, kind, metric, resilient })
}

/// Reads the VRF in which gateways without a port are resolved.
fn next_hop_vrf(fields: &mut Fields<'_, '_>, known: &Vrfs) -> Option<VrfId> {
    let vrf = vrfs::named(fields, "next_hop_vrf", known)?;
    if fields.get("via").is_none() {
        fields.error(
            "next_hop_vrf",
            "next_hop_vrf is about gateways, of which this route has none; leave it out",
        );
    }
    Some(vrf)
}

/// Reads `resilient = true` or `{ buckets = N }`.
pub(super) fn resilient(fields: &mut Fields<'_, '_>, refuses: bool) -> Option<Resilient> {
    let resilient = match fields.get("resilient")? {
        Value::Bool(wanted) => wanted.then_some(Resilient { buckets: BUCKETS })?,
        Value::Table(table) if table.list.is_empty() && table.odd.is_empty() => {
            for key in table.named.keys().filter(|key| *key != "buckets") {
                let message = format!("resilient: key \"{key}\" unknown; known: buckets");
                fields.error("resilient", message);
            }
            let range = 1..=u64::from(BUCKETS_MOST);
            let buckets = match table.named.get("buckets") {
                None => Some(BUCKETS.into()),
                Some(value) => whole_number(value, &range),
            };
            if buckets.is_none() {
                let message =
                    format!("resilient: buckets: expected a whole number from 1 to {BUCKETS_MOST}");
                fields.error("resilient", message);
            }
            Resilient { buckets: buckets? as u16 }
        }
        other => {
            let message =
                format!("resilient: expected true or {{ buckets = {BUCKETS} }}, got {other}");
            fields.error("resilient", message);
            return None;
        }
    };
    if refuses {
        fields.error("resilient", "resilient needs several paths: write via");
    }
    Some(resilient)
}

/// Parses a route's destination.
fn parse_destination(text: &str, class_e: bool) -> Result<IpNet, String> {
    let prefix = match text.parse::<IpAddr>() {
        Ok(host) => IpNet::from(host),
        Err(_) => parse_prefix(text, "\"198.51.100.0/24\" or \"2001:db8::/32\"")?,
    };
    if prefix.trunc() != prefix {
        return Err(format!("host bits are set; the prefix is {}", prefix.trunc()));
    }
    if let Some(range) = crate::rib::refused_range(&prefix, class_e) {
        return Err(format!("lies in {range}, which is never forwarded; remove the route"));
    }
    Ok(prefix)
}

/// Reads the kind of a route that refuses packets; `None` if it has next hops, or nothing at all,
/// which is reported.
fn kind(fields: &mut Fields<'_, '_>) -> Option<RouteKind> {
    let kinds = [
        ("blackhole", RouteKind::Blackhole),
        ("prohibit", RouteKind::Prohibited),
        ("unreachable", RouteKind::Unreachable),
    ];
    let given = fields.get("via").is_some();
    let port = fields.get("port").is_some();
    let chosen: Vec<_> = kinds.into_iter().filter(|(key, _)| fields.flag(key)).collect();
    let keys: Vec<&str> =
        given.then_some("via").into_iter().chain(chosen.iter().map(|c| c.0)).collect();
    if keys.len() > 1 {
        fields.error(keys[1], format!("{} exclude each other; keep one", keys.join(" and ")));
    } else if keys.is_empty() && !port {
        fields.error(
            "",
            "no next hop; write via = \"ADDRESS\", or one of blackhole, prohibit, unreachable = true",
        );
        return Some(RouteKind::Unreachable);
    } else if port && !given && !chosen.is_empty() {
        let kind = chosen[0].0;
        fields.error("port", format!("port and {kind} exclude each other; keep one"));
    }
    chosen.into_iter().next().map(|(_, kind)| kind)
}

/// Reads the paths of `via`, leaving out invalid ones.
fn written_paths(fields: &mut Fields<'_, '_>, port: Option<&str>) -> Vec<Written> {
    let items: &[Value] = match fields.get("via") {
        None => return Vec::new(),
        Some(Value::Table(table)) if table.list.is_empty() && table.named.is_empty() => {
            fields.error("via", "via is an empty list; name at least one next hop");
            return Vec::new();
        }
        Some(Value::Table(table)) if table.named.is_empty() => &table.list,
        Some(Value::Table(table)) => {
            let keys: Vec<&str> = table.named.keys().map(String::as_str).collect();
            fields.error(
                "via",
                format!(
                    "via: {} belongs to one path; write via = {{ {{ \"ADDRESS\", {} = … }}, … }}",
                    keys.join(", "),
                    keys[0]
                ),
            );
            return Vec::new();
        }
        Some(single) => std::slice::from_ref(single),
    };
    if items.len() > PATHS_MOST {
        let count = items.len();
        fields
            .error("via", format!("via has {count} paths, {PATHS_MOST} is the most; remove some"));
        return Vec::new();
    }
    let mut paths: Vec<Written> = Vec::new();
    for item in items {
        let Some(path) = written_path(fields, item, port) else { continue };
        if paths.iter().any(|other| other.via == path.via && other.port == path.port) {
            let via = path.via.map_or_else(String::new, |via| via.to_string());
            fields.error(
                "via",
                format!("via \"{via}\" given twice; for a larger share write {{ \"{via}\", weight = 2 }}"),
            );
        } else {
            paths.push(path);
        }
    }
    paths
}

fn written_path(fields: &mut Fields<'_, '_>, item: &Value, port: Option<&str>) -> Option<Written> {
    let (text, weight, own_port) = match item {
        Value::Text(text) => (text, 1, None),
        Value::Table(table) => {
            let [Value::Text(text)] = &table.list[..] else {
                fields.error("via", format!("via: expected {PATH}, got {item}"));
                return None;
            };
            let known = ["weight", "port"];
            for key in table.named.keys().filter(|key| !known.contains(&key.as_str())) {
                let suggestion = suggestion(key, "known", &known);
                fields.error("via", format!("via \"{text}\": key \"{key}\" unknown{suggestion}"));
            }
            let weight = match table.named.get("weight") {
                None => 1,
                Some(value) => whole_number(value, &(1..=WEIGHT_MOST.into())).unwrap_or_else(|| {
                    fields.error(
                        "via",
                        format!("via \"{text}\": weight: expected a whole number from 1 to {WEIGHT_MOST}, got {value}"),
                    );
                    1
                }),
            };
            let own_port = match table.named.get("port") {
                None => None,
                Some(Value::Text(name)) => Some(name.as_str()),
                Some(value) => {
                    fields.error(
                        "via",
                        format!("via \"{text}\": port: expected a port's name, got {value}"),
                    );
                    None
                }
            };
            (text, weight as u16, own_port)
        }
        other => {
            fields.error("via", format!("via: expected {PATH}, got {other}"));
            return None;
        }
    };
    let Ok(via) = text.parse::<IpAddr>() else {
        fields.error(
            "via",
            format!("via \"{text}\": not an IP address; write it as \"10.0.2.2\" or \"fd00:2::2\""),
        );
        return None;
    };
    Some(Written { via: Some(via), weight, port: own_port.or(port).map(str::to_owned) })
}

/// Locates each path's gateway and refuses paths that lead nowhere.
fn resolve(
    context: &mut Context<'_>,
    what: &str,
    (line, vrf): (usize, VrfId),
    written: Vec<Written>,
) -> Vec<NextHop> {
    let mut paths = Vec::with_capacity(written.len());
    for path in written {
        match next_hop(context, vrf, &path) {
            Ok(Some(next_hop)) => paths.push(next_hop.weighing(path.weight)),
            Ok(None) => {}
            Err(reason) => {
                let named =
                    path.via.map_or_else(|| "port".to_owned(), |via| format!("via \"{via}\""));
                context.errors.add(Some(line), format!("{what}: {named} {reason}"));
            }
        }
    }
    paths
}

/// Returns `Ok(None)` if the location cannot be determined because a port is wrong.
fn next_hop(context: &Context<'_>, vrf: VrfId, path: &Written) -> Result<Option<NextHop>, String> {
    let Some(via) = path.via else {
        let name = path.port.as_deref().unwrap_or_default();
        return Ok(context.interface_id(named_port(context, name)?).map(NextHop::on_interface));
    };
    let (place, vrf) = place_of(context, vrf, via, path.port.as_deref())?;
    Ok(place.map(|place| match place {
        Place::Network(port) => NextHop::over(port, via),
        Place::Link(port) => NextHop { on_link: true, ..NextHop::over(port, via) },
        Place::Elsewhere => NextHop::recursive(vrf, via),
    }))
}

/// Returns the port of a neighbour; `Ok(None)` if it cannot be determined because a port is wrong.
/// An address on no network can be a neighbour's only if a route leads to hosts on a port's link,
/// or if networks may come from the kernel.
pub(super) fn port_of(
    context: &Context<'_>,
    routes: &[Route],
    address: IpAddr,
    port: Option<&str>,
) -> Result<Option<InterfaceId>, String> {
    let vrf = match port {
        Some(_) => VrfId::DEFAULT,
        None => vrf_holding(context, address)?,
    };
    let (place, vrf) = place_of(context, vrf, address, port)?;
    match place {
        None => Ok(None),
        Some(Place::Network(port)) => Ok(Some(port)),
        Some(Place::Link(port)) if context.any_host => Ok(Some(port)),
        Some(place) => {
            let named = if let Place::Link(port) = place { Some(port) } else { None };
            let found = linked_port(routes, address, named).map(Some);
            found.ok_or_else(|| unreachable(&context.networks, &context.port_names, (vrf, address)))
        }
    }
}

/// Returns the VRF whose networks contain an address given without a port; the default one if none
/// does.
fn vrf_holding(context: &Context<'_>, address: IpAddr) -> Result<VrfId, String> {
    let holding = context.networks.all().filter(|connected| connected.net.contains(&address));
    let mut found: Vec<VrfId> = holding.map(|connected| connected.vrf).collect();
    found.sort_unstable();
    found.dedup();
    match found[..] {
        [] => Ok(VrfId::DEFAULT),
        [vrf] => Ok(vrf),
        [one, other, ..] => Err(format!(
            "is on networks of VRFs \"{}\" and \"{}\"; say which with port = \"NAME\"",
            Vrf::name_of(&context.vrfs, one),
            Vrf::name_of(&context.vrfs, other)
        )),
    }
}

/// Returns the port of the longest route to an address without a gateway; with `named`, only routes
/// over that port are considered.
fn linked_port(
    routes: &[Route],
    address: IpAddr,
    named: Option<InterfaceId>,
) -> Option<InterfaceId> {
    let link = |route: &Route| match &route.kind {
        RouteKind::Unicast(paths) => {
            let on_link = |path: &&NextHop| {
                path.via.is_none() && (named.is_none() || path.interface == named)
            };
            paths.iter().find(on_link).and_then(|path| path.interface)
        }
        _ => None,
    };
    let covering = routes.iter().filter(|route| route.prefix.contains(&address));
    let links = covering.filter_map(|route| Some((route.prefix.prefix_len(), link(route)?)));
    links.max_by_key(|&(length, _)| length).map(|(_, port)| port)
}

/// Returns the location of a next hop, and the VRF searched: that of its port, if one is given. The
/// location is `None` if it cannot be determined because a port is wrong.
fn place_of(
    context: &Context<'_>,
    vrf: VrfId,
    via: IpAddr,
    port: Option<&str>,
) -> Result<(Option<Place<InterfaceId>>, VrfId), String> {
    let named = port.map(|name| named_port(context, name)).transpose()?;
    let vrf = named.map_or(vrf, |port| context.port_vrfs[port]);
    if !context.ports_sound {
        return Ok((None, vrf));
    }
    let networks = context.networks.of(vrf).map(|connected| (connected.port, connected.net));
    let place = place_of_gateway(networks, via, named, context.class_e);
    let place = place.map_err(|why| no_gateway(context, (vrf, via), named, why))?;
    if let Place::Network(at) = place
        && context.is_loopback(at)
    {
        let name = &context.port_names[at].0;
        return Err(format!(
            "is on the network of loopback \"{name}\", where there are no hosts; use a neighbour's address"
        ));
    }
    let place = match place {
        Place::Network(port) => context.interface_id(port).map(Place::Network),
        Place::Link(port) => context.interface_id(port).map(Place::Link),
        Place::Elsewhere => Some(Place::Elsewhere),
    };
    Ok((place, vrf))
}

/// Returns the reason why an address cannot be a gateway, with a remedy.
fn no_gateway(
    context: &Context<'_>,
    (vrf, via): (VrfId, IpAddr),
    named: Option<usize>,
    why: NoGateway<usize>,
) -> String {
    let name = |port: usize| &context.port_names[port].0;
    match why {
        NoGateway::NotAHost(reason) => {
            format!("is {reason}, not a next hop's; use the neighbour's unicast address")
        }
        NoGateway::Own(port) => {
            let line = context.networks.own(vrf, via).map_or(0, |own| own.line);
            let name = name(port);
            format!(
                "is the router's own address (port \"{name}\", line {line}); use the neighbour's"
            )
        }
        NoGateway::LinkLocal => {
            "is link-local, every port has that network; say which with port = \"NAME\"".to_owned()
        }
        NoGateway::NamesTheNetwork(reason, net) => format!("is {reason} of {net}, not a host's"),
        NoGateway::OtherPort(port, net) => {
            let (other, name) = (named.map_or("", |named| name(named)), name(port));
            format!(
                "is not on port \"{other}\" but on port \"{name}\" ({net}); correct the port or \
                 leave it out"
            )
        }
    }
}

/// Reports routes and next hops whose gateways no route leads to, or routes lead to in a circle. If
/// other sources have routes too, such as the kernel or an imported table, this is found only when
/// their routes are there.
pub(super) fn check_recursion(
    context: &mut Context<'_>,
    (routes, next_hops): (&[Route], &[NamedNextHop]),
    imports: &[Import],
    others: bool,
    forwarding: &Forwarding,
) {
    if others || !context.ports_sound {
        return;
    }
    let mut report = |line: usize, what: String, via: IpAddr, reason: String| {
        let line = context.source.line_of(line, "via");
        context.errors.add(Some(line), format!("{what}: via \"{via}\" {reason}"));
    };
    let (networks, names) = (&context.networks, &context.port_names);
    let reach = |gateway: Gateway, seen: &mut Vec<usize>| {
        follow(routes, gateway, seen, forwarding)
            .map_err(|reason| reason.unwrap_or_else(|| unreachable(networks, names, gateway)))
    };
    // A table may contain the route to a route's gateway, but not to its own.
    for import in imports {
        for gateway in recursive_gateways(import.via4.iter().chain(&import.via6)) {
            if let Err(reason) = reach(gateway, &mut Vec::new()) {
                report(import.line, "import".to_owned(), gateway.1, reason);
            }
        }
    }
    for (index, route) in routes.iter().enumerate().filter(|_| imports.is_empty()) {
        for gateway in recursive_gateways(paths_of(route)) {
            if let Err(reason) = reach(gateway, &mut vec![index]) {
                report(route.line, what(&route.prefix.to_string()), gateway.1, reason);
            }
        }
    }
    for hop in next_hops.iter().filter(|_| imports.is_empty()) {
        for gateway in recursive_gateways(&hop.paths) {
            if let Err(reason) = reach(gateway, &mut Vec::new()) {
                report(hop.line, format!("next_hop \"{}\"", hop.name), gateway.1, reason);
            }
        }
    }
}

fn paths_of(route: &Route) -> &[NextHop] {
    match &route.kind {
        RouteKind::Unicast(paths) => paths,
        _ => &[],
    }
}

/// A gateway of routes, and the VRF whose routes resolve it.
type Gateway = (VrfId, IpAddr);

fn recursive_gateways<'a>(
    paths: impl IntoIterator<Item = &'a NextHop>,
) -> impl Iterator<Item = Gateway> {
    let recursive = paths.into_iter().filter(|path| path.interface.is_none());
    recursive.filter_map(|path| Some((path.vrf, path.via?)))
}

/// Follows a gateway from route to route until one leaves by a port. The error is the reason why
/// none does; `None`: the only route to it is the first one.
fn follow(
    routes: &[Route],
    gateway: Gateway,
    seen: &mut Vec<usize>,
    forwarding: &Forwarding,
) -> Result<(), Option<String>> {
    let via = gateway.1;
    let (index, route) = best_to(routes, gateway, forwarding).ok_or(None)?;
    if seen.first() == Some(&index) {
        if seen.len() == 1 {
            return Err(None);
        }
        let circle: Vec<String> =
            seen.iter().chain([&index]).map(|&index| routes[index].prefix.to_string()).collect();
        return Err(Some(format!(
            "leads in a circle: {}; add a route to {via} by a gateway on a port's network",
            circle.join(" -> ")
        )));
    }
    if seen.contains(&index) {
        // A circle of other routes, for which it is reported.
        return Ok(());
    }
    seen.push(index);
    let mut gateways = recursive_gateways(paths_of(route));
    let led = gateways.try_for_each(|gateway| follow(routes, gateway, seen, forwarding));
    seen.pop();
    led
}

/// Returns the route of packets to a gateway, with its index.
fn best_to<'r>(
    routes: &'r [Route],
    (vrf, via): Gateway,
    forwarding: &Forwarding,
) -> Option<(usize, &'r Route)> {
    let least = u8::from(!forwarding.resolve_via_default);
    let leads = |(_, route): &(usize, &Route)| {
        route.vrf == vrf && route.prefix.contains(&via) && route.prefix.prefix_len() >= least
    };
    routes
        .iter()
        .enumerate()
        .filter(leads)
        .min_by_key(|(_, route)| (std::cmp::Reverse(route.prefix.prefix_len()), route.metric))
}

/// Returns a line for each route whose gateway is on no port's network and is reached, among the
/// configured routes, only by the default route.
pub(in super::super) fn by_default_only(
    routes: &[Route],
    forwarding: &Forwarding,
) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for route in routes {
        for gateway in recursive_gateways(paths_of(route)) {
            let via = gateway.1;
            if best_to(routes, gateway, forwarding)
                .is_some_and(|(_, best)| best.prefix.prefix_len() == 0)
            {
                let message = format!(
                    "{}: via \"{via}\" is on no port's network, and only the default route leads there; correct \
                     it, or refuse such gateways: turnpike.forwarding {{ resolve_via_default = false }}",
                    what(&route.prefix.to_string())
                );
                found.push((route.line, message));
            }
        }
    }
    found
}

/// Returns the position of the port with this name.
pub(super) fn named_port(context: &Context<'_>, name: &str) -> Result<usize, String> {
    if let Some(bond) = context.bonded.get(name) {
        return Err(format!(
            "names port \"{name}\", which belongs to bond \"{bond}\"; name \"{bond}\""
        ));
    }
    let position = any_port(context, name)?;
    if context.is_loopback(position) {
        return Err(format!(
            "names loopback \"{name}\", which has no link; name a port, a bond or a VLAN"
        ));
    }
    Ok(position)
}

/// Like [`named_port`], for a use of ports that belong to bonds as well.
pub(super) fn any_port(context: &Context<'_>, name: &str) -> Result<usize, String> {
    context.port_names.iter().position(|(other, _)| other == name).ok_or_else(|| {
        let known: Vec<&str> = context.port_names.iter().map(|(name, _)| name.as_str()).collect();
        format!("names port \"{name}\", unknown{}", suggestion(name, "ports", &known))
    })
}

/// Returns the message for a next hop on no network.
fn unreachable(networks: &Networks, port_names: &[(String, usize)], (vrf, via): Gateway) -> String {
    /// Most networks listed as alternatives.
    const LISTED: usize = 4;
    let length = if via.is_ipv4() { 24 } else { 64 };
    let add =
        IpNet::new(via, length).map_or_else(|_| via.to_string(), |net| net.trunc().to_string());
    let mut known: Vec<String> = networks
        .of(vrf)
        .filter(|connected| connected.net.addr().is_ipv4() == via.is_ipv4())
        .map(|c| format!("{} (port \"{}\")", c.net.trunc(), port_names[c.port].0))
        .collect();
    let more = known.len().saturating_sub(LISTED);
    known.truncate(LISTED);
    if more > 0 {
        known.push(format!("{more} more"));
    }
    let instead = if known.is_empty() {
        String::new()
    } else {
        format!(", or use a next hop in {}", known.join(", "))
    };
    format!(
        "is unreachable: no port is on its network; add an address in {add}, say, to a port{instead}"
    )
}

pub(super) fn imports<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    config: &Path,
) -> Vec<Import> {
    let directory = config.parent().unwrap_or(Path::new(""));
    let mut imports = Vec::new();
    for statement in statements {
        let mut fields = context.fields("import".to_owned(), statement, IMPORT);
        let file = fields.text("file", "a file's name");
        let what = file.map_or_else(|| "import".to_owned(), |file| format!("import \"{file}\""));
        if fields.get("file").is_none() {
            fields.error("", "file missing; write file = \"table.dat.gz\"");
        }
        if fields.get("via").is_none() {
            fields
                .error("", "via missing; write via = { \"ADDRESS\", … } to spread the table over");
        }
        let line = fields.line_of("via");
        let written = written_paths(&mut fields, None);
        let paths = resolve(context, &what, (line, VrfId::DEFAULT), written);
        let (via4, via6) =
            paths.into_iter().partition(|path| path.via.is_some_and(|via| via.is_ipv4()));
        let file = directory.join(file.unwrap_or_default());
        let modified = file.metadata().and_then(|about| about.modified()).ok();
        imports.push(Import { line: statement.line, file, modified, via4, via6 });
    }
    imports
}
