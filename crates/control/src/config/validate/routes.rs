//! `turnpike.route "PREFIX" { … }` and `turnpike.import { … }`: what leads to next hops.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use dataplane::port::PortId;
use ipnet::IpNet;

use super::super::error::suggestion;
use super::super::network::{family, is_link_local, names_the_network, not_a_host, parse_prefix};
use super::super::script::Statement;
use super::super::value::{Fields, Value, whole_number};
use super::super::{Import, Route};
use super::Context;
use crate::rib::{PATHS_MOST, Path as NextHop, RouteKind, WEIGHT_MOST};

const ROUTE: &[&str] = &["via", "port", "blackhole", "prohibit", "unreachable", "metric"];
const IMPORT: &[&str] = &["file", "via"];
const PATH: &str = "an address such as \"10.0.2.2\", or a list of { \"10.0.2.2\", weight = 2 }";

/// A path as it is written, before its port is known.
struct Written {
    via: IpAddr,
    weight: u16,
    port: Option<String>,
}

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<Route> {
    let mut routes = Vec::new();
    let mut seen: HashMap<(IpNet, u32), usize> = HashMap::new();
    for statement in statements {
        let Some(route) = route(context, statement) else { continue };
        if let Some(line) = seen.insert((route.prefix, route.metric), route.line) {
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

fn what(name: &str) -> String {
    format!("route \"{name}\"")
}

fn route(context: &mut Context<'_>, statement: &Statement) -> Option<Route> {
    let prefix = match parse_destination(&statement.name) {
        Ok(prefix) => Some(prefix),
        Err(reason) => {
            let message = format!("{}: {reason}", what(&statement.name));
            context.errors.add(Some(statement.line), message);
            None
        }
    };
    let what = what(&statement.name);
    let mut fields = context.fields(what.clone(), statement, ROUTE);
    let metric = fields.number("metric", 0..=u64::from(u32::MAX)).unwrap_or(0) as u32;
    let port = fields.text("port", "a port's name");
    let kind = kind(&mut fields);
    let line = fields.line_of("via");
    let written = if kind.is_none() { written_paths(&mut fields, port) } else { Vec::new() };
    let kind = match kind {
        Some(kind) => kind,
        None => RouteKind::Unicast(resolve(context, &what, line, prefix, written)),
    };
    Some(Route { line: statement.line, prefix: prefix?, kind, metric })
}

/// A route's destination.
fn parse_destination(text: &str) -> Result<IpNet, String> {
    let prefix = match text.parse::<IpAddr>() {
        Ok(host) => IpNet::from(host),
        Err(_) => parse_prefix(text, "\"198.51.100.0/24\" or \"2001:db8::/32\"")?,
    };
    if prefix.trunc() != prefix {
        return Err(format!("host bits are set; the prefix is {}", prefix.trunc()));
    }
    if let Some(range) = crate::rib::reserved_range(&prefix) {
        return Err(format!("lies in {range}, which is never forwarded; remove the route"));
    }
    Ok(prefix)
}

/// The kind of a route that refuses packets; `None` if it has next hops, or nothing at all, which
/// is reported.
fn kind(fields: &mut Fields<'_, '_>) -> Option<RouteKind> {
    let kinds = [
        ("blackhole", RouteKind::Blackhole),
        ("prohibit", RouteKind::Prohibited),
        ("unreachable", RouteKind::Unreachable),
    ];
    let given = fields.get("via").is_some();
    let chosen: Vec<_> = kinds.into_iter().filter(|(key, _)| fields.flag(key)).collect();
    let keys: Vec<&str> =
        given.then_some("via").into_iter().chain(chosen.iter().map(|c| c.0)).collect();
    if keys.len() > 1 {
        fields.error(keys[1], format!("{} exclude each other; keep one", keys.join(" and ")));
    } else if keys.is_empty() {
        fields.error(
            "",
            "no next hop; write via = \"ADDRESS\", or one of blackhole, prohibit, unreachable = true",
        );
        return Some(RouteKind::Unreachable);
    }
    chosen.into_iter().next().map(|(_, kind)| kind)
}

/// The paths of `via`, read as far as they can be.
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
            let via = path.via;
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
    Some(Written { via, weight, port: own_port.or(port).map(str::to_owned) })
}

/// Finds each path's port and refuses paths that lead nowhere.
fn resolve(
    context: &mut Context<'_>,
    what: &str,
    line: usize,
    prefix: Option<IpNet>,
    written: Vec<Written>,
) -> Vec<NextHop> {
    let mut paths = Vec::with_capacity(written.len());
    for path in written {
        let wrong_family = prefix.filter(|prefix| prefix.addr().is_ipv4() != path.via.is_ipv4());
        let port = match wrong_family {
            Some(prefix) => Err(format!(
                "is {}, the prefix {}; a route's next hops are of its family",
                family(path.via),
                family(prefix.addr())
            )),
            None => port_of(context, path.via, path.port.as_deref()),
        };
        match port {
            Ok(Some(port)) => paths.push(NextHop::over(port, path.via).weighing(path.weight)),
            Ok(None) => {}
            Err(reason) => {
                context.errors.add(Some(line), format!("{what}: via \"{}\" {reason}", path.via));
            }
        }
    }
    paths
}

/// The port that a next hop is on; `Ok(None)` when that cannot be said because a port is wrong.
pub(super) fn port_of(
    context: &Context<'_>,
    via: IpAddr,
    port: Option<&str>,
) -> Result<Option<PortId>, String> {
    let named = port.map(|name| named_port(context, name)).transpose()?;
    if !context.ports_sound {
        return Ok(None);
    }
    if let Some(reason) = not_a_host(via) {
        return Err(format!("is {reason}, not a next hop's; use the neighbour's unicast address"));
    }
    if let Some(own) = context.networks.own(via) {
        let (name, line) = (&context.port_names[own.port].0, own.line);
        return Err(format!(
            "is the router's own address (port \"{name}\", line {line}); use the neighbour's"
        ));
    }
    if is_link_local(via) {
        return named.map(port_id).ok_or_else(|| {
            "is link-local, every port has that network; say which with port = \"NAME\"".to_owned()
        });
    }
    let Some(holding) = context.networks.holding(via) else {
        return Err(unreachable(context, via));
    };
    if let Some(reason) = names_the_network(via, &holding.net) {
        return Err(format!("is {reason} of {}, not a host's", holding.net.trunc()));
    }
    match named {
        Some(index) if index != holding.port => Err(format!(
            "is not on port \"{}\" but on port \"{}\" ({}); correct the port or leave it out",
            context.port_names[index].0,
            context.port_names[holding.port].0,
            holding.net.trunc()
        )),
        _ => Ok(port_id(holding.port)),
    }
}

fn port_id(index: usize) -> Option<PortId> {
    PortId::new(u16::try_from(index).ok()?)
}

/// The position of the port with this name.
pub(super) fn named_port(context: &Context<'_>, name: &str) -> Result<usize, String> {
    context.port_names.iter().position(|(other, _)| other == name).ok_or_else(|| {
        let known: Vec<&str> = context.port_names.iter().map(|(name, _)| name.as_str()).collect();
        format!("names port \"{name}\", unknown{}", suggestion(name, "ports", &known))
    })
}

/// The message for a next hop on no network.
fn unreachable(context: &Context<'_>, via: IpAddr) -> String {
    /// Networks listed as alternatives.
    const LISTED: usize = 4;
    let length = if via.is_ipv4() { 24 } else { 64 };
    let add =
        IpNet::new(via, length).map_or_else(|_| via.to_string(), |net| net.trunc().to_string());
    let mut known: Vec<String> = context
        .networks
        .0
        .iter()
        .filter(|connected| connected.net.addr().is_ipv4() == via.is_ipv4())
        .map(|c| format!("{} (port \"{}\")", c.net.trunc(), context.port_names[c.port].0))
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
        let paths = resolve(context, &what, line, None, written);
        let (via4, via6) = paths.into_iter().partition(|path| path.via.is_some_and(|via| via.is_ipv4()));
        let file = directory.join(file.unwrap_or_default());
        imports.push(Import { line: statement.line, file, via4, via6 });
    }
    imports
}
