//! `turnpike.multicast "GROUP" { … }`: outgoing ports of packets to a group.

use std::collections::HashMap;
use std::net::IpAddr;

use dataplane::interface::InterfaceId;

use super::super::MulticastRoute;
use super::super::error::suggestion;
use super::super::network::not_a_host;
use super::super::script::Statement;
use super::super::value::{Fields, Value, whole_number};
use super::Context;
use super::routes::named_port;

const KNOWN: &[&str] = &["source", "from", "to"];
const TO: &str = "a port's name, or a list of names and { \"NAME\", ttl = 16 }";

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<MulticastRoute> {
    let mut routes = Vec::new();
    let mut seen = HashMap::new();
    for statement in statements {
        let Some(route) = route(context, statement) else { continue };
        if let Some(line) = seen.insert((route.group, route.source), route.line) {
            let message = format!(
                "{}: given for this source on line {line} already; put the ports in one list",
                what(statement)
            );
            context.errors.add(Some(route.line), message);
        }
        routes.push(route);
    }
    routes
}

fn what(statement: &Statement) -> String {
    format!("multicast \"{}\"", statement.name)
}

fn route(context: &mut Context<'_>, statement: &Statement) -> Option<MulticastRoute> {
    let what = what(statement);
    let group = match parse_group(&statement.name) {
        Ok(group) => Some(group),
        Err(reason) => {
            context.errors.add(Some(statement.line), format!("{what}: {reason}"));
            None
        }
    };
    let class_e = context.class_e;
    let mut fields = context.fields(what.clone(), statement, KNOWN);
    let source = source(&mut fields, group, class_e);
    let from = fields.text("from", "a port's name").map(str::to_owned);
    if from.is_none() && fields.get("from").is_none() {
        fields.error("from", "from missing; write from = \"PORT\", where the packets come in");
    }
    let to = ports_to(&mut fields);
    let (from_line, to_line) = (fields.line_of("from"), fields.line_of("to"));
    let from = place(context, &what, (from_line, "from"), &from?);
    let mut ports = Vec::with_capacity(to.len());
    for (name, ttl) in to {
        let Some(port) = place(context, &what, (to_line, "to"), &name) else { continue };
        let wrong = if Some(port) == from {
            Some("is where the packets come in; remove it")
        } else if ports.iter().any(|&(known, _)| known == port) {
            Some("is given twice; remove one")
        } else {
            None
        };
        match wrong {
            Some(why) => {
                let message = format!("{what}: to: port \"{name}\" {why}");
                context.errors.add(Some(to_line), message);
            }
            None => ports.push((port, ttl)),
        }
    }
    Some(MulticastRoute { line: statement.line, group: group?, source, from: from?, to: ports })
}

/// Returns the port with this name, which the key on this line gives.
fn place(
    context: &mut Context<'_>,
    what: &str,
    (line, key): (usize, &str),
    name: &str,
) -> Option<InterfaceId> {
    match named_port(context, name) {
        Ok(position) => context.interface_id(position),
        Err(why) => {
            context.errors.add(Some(line), format!("{what}: {key} {why}"));
            None
        }
    }
}

fn parse_group(text: &str) -> Result<IpAddr, String> {
    let group: IpAddr = text
        .parse()
        .map_err(|_| "not an IP address; write it as \"239.1.1.1\" or \"ff0e::101\"".to_owned())?;
    let stays = match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => group.octets()[1] & 0xf <= 2,
    };
    if !group.is_multicast() {
        return Err("not a group; groups are in 224.0.0.0/4 and ff00::/8".to_owned());
    }
    if stays {
        return Err("this group stays on its link; it is never forwarded".to_owned());
    }
    Ok(group)
}

fn source(fields: &mut Fields<'_, '_>, group: Option<IpAddr>, class_e: bool) -> Option<IpAddr> {
    let text = fields.text("source", "an address")?;
    let source = text.parse::<IpAddr>().map_err(|_| "not an IP address".to_owned());
    let checked = source.and_then(|source| match (not_a_host(source, class_e), group) {
        (Some(why), _) => Err(format!("is {why}, which sends nothing")),
        (None, Some(group)) if group.is_ipv4() != source.is_ipv4() => {
            Err("is not of the group's family".to_owned())
        }
        (None, _) => Ok(source),
    });
    match checked {
        Ok(source) => Some(source),
        Err(why) => {
            fields.error("source", format!("source \"{text}\" {why}"));
            None
        }
    }
}

/// Reads names and TTLs, leaving out invalid ones.
fn ports_to(fields: &mut Fields<'_, '_>) -> Vec<(String, u8)> {
    let items: &[Value] = match fields.get("to") {
        None => {
            fields.error("to", "to missing; write to = { \"PORT\", … }, where the packets leave");
            &[]
        }
        Some(Value::Table(table)) if table.named.is_empty() && table.odd.is_empty() => &table.list,
        Some(single) => std::slice::from_ref(single),
    };
    let mut ports = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Value::Text(name) => ports.push((name.clone(), 1)),
            Value::Table(table) if matches!(&table.list[..], [Value::Text(_)]) => {
                let Some(Value::Text(name)) = table.list.first() else { continue };
                for key in table.named.keys().filter(|key| *key != "ttl") {
                    let suggestion = suggestion(key, "known", &["ttl"]);
                    fields.error("to", format!("to \"{name}\": key \"{key}\" unknown{suggestion}"));
                }
                ports.push((name.clone(), ttl(fields, name, table.named.get("ttl"))));
            }
            other => fields.error("to", format!("to: expected {TO}, got {other}")),
        }
    }
    ports
}

/// Reads the TTL that a packet must exceed; at least 1.
fn ttl(fields: &mut Fields<'_, '_>, name: &str, value: Option<&Value>) -> u8 {
    let Some(value) = value else { return 1 };
    let number = whole_number(value, &(1..=255));
    if number.is_none() {
        let message =
            format!("to \"{name}\": ttl: expected a whole number from 1 to 255, got {value}");
        fields.error("to", message);
    }
    number.map_or(1, |number| number as u8)
}
