//! `turnpike.element "NAME" { … }` and `turnpike.control_socket "NAME" { … }`

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dataplane::plan::Plans;

use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{ControlSocket, Element, Listen, Wire};
use super::Context;
use super::rest::{is_within, listen, users};

/// Most statements of each kind.
const MOST: usize = 4096;

/// Most control sockets.
const SOCKETS_MOST: usize = 16;

/// Longest path of a Unix socket, in bytes: 107 by `sun_path` of unix(7), of which the name under which it is made has
/// some more.
const PATH_MOST: usize = 92;

/// Port of the examples.
const USUAL: u16 = 7777;

/// Keys of an element.
const ELEMENT: [&str; 9] =
    ["class", "config", "inputs", "outputs", "to", "step", "counts", "port", "ways"];

/// Keys of a control socket.
const SOCKET: [&str; 8] =
    ["listen", "unix", "public", "read_only", "verbose", "clients", "idle_s", "users"];

/// Reads the elements; `plans` has their steps, `ports` the names of their ports.
pub(super) fn elements<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    plans: &Plans,
) -> Vec<Element> {
    let ports: Vec<String> = context.port_names.iter().map(|(name, _)| name.clone()).collect();
    let (mut elements, mut seen) = (Vec::new(), HashMap::new());
    for statement in statements {
        if !is_new(context, &mut seen, statement, MOST) {
            continue;
        }
        let mut fields = context.fields(what(statement), statement, &ELEMENT);
        elements.extend(element(&mut fields, statement, plans, &ports));
    }
    // Errors of single ports are reported already.
    let names: Vec<_> = elements.iter().map(|element| element.name.as_str()).collect();
    let unknown: Vec<(usize, String)> = elements
        .iter()
        .flat_map(|element| {
            let lost = element.to.iter().filter(|wire| !names.contains(&wire.to.as_str()));
            lost.map(|wire| {
                (
                    element.line,
                    format!("element \"{}\": to: no element \"{}\"", element.name, wire.to),
                )
            })
        })
        .collect();
    unknown.into_iter().for_each(|(line, message)| context.errors.add(Some(line), message));
    elements
}

fn what(statement: &Statement) -> String {
    format!("{} \"{}\"", statement.keyword.name(), statement.name)
}

/// Returns false for a name that cannot be, or is there already.
fn is_new(
    context: &mut Context<'_>,
    seen: &mut HashMap<String, usize>,
    statement: &Statement,
    most: usize,
) -> bool {
    let name = &statement.name;
    let wrong = |c: char| c.is_whitespace() || c.is_control();
    let message = if name.is_empty() || name.len() > 256 || name.contains(wrong) {
        "not a name: 1 to 256 characters without spaces".to_owned()
    } else if let Some(line) = seen.insert(name.clone(), statement.line) {
        format!("given on line {line} already; remove one")
    } else if seen.len() > most {
        format!("one too many; at most {most}")
    } else {
        return true;
    };
    context.errors.add(Some(statement.line), format!("{}: {message}", what(statement)));
    false
}

fn element(
    fields: &mut Fields<'_, '_>,
    statement: &Statement,
    plans: &Plans,
    ports: &[String],
) -> Option<Element> {
    if fields.get("class").is_none() {
        fields.error("", "class missing; write class = \"Counter\"");
    }
    let class = fields.text("class", "the name of a class").unwrap_or_default().to_owned();
    let config = fields.text("config", "the element's arguments").unwrap_or_default().to_owned();
    if let Err(why) = convert::click::check_script(&class, &config) {
        fields.error("config", format!("config: {why}"));
    }
    let has =
        |step: &str| plans.main.has(step) || plans.by_port.iter().any(|(_, plan)| plan.has(step));
    let step = fields.text("step", "a step of the graph").map(str::to_owned);
    if let Some(unknown) = step.as_ref().filter(|step| !has(step)) {
        fields.error("step", format!("step \"{unknown}\" is not in the graph; leave it out"));
    }
    let counts = owned(fields.texts("counts", "outputs of steps such as { \"s.0\" }"));
    for place in &counts {
        if !place.rsplit_once('.').is_some_and(|(step, _)| has(step)) {
            fields.error(
                "counts",
                format!("counts: \"{place}\" is no output of a step of the graph"),
            );
        }
    }
    let port = fields.text("port", "a port's name").map(str::to_owned);
    let ways = owned(fields.texts("ways", "ports, \"local\" or \"drop\""));
    let ends = ways.iter().filter(|way| !matches!(way.as_str(), "local" | "drop"));
    for unknown in port.iter().chain(ends).filter(|name| !ports.contains(name)) {
        fields.error("", format!("port \"{unknown}\" unknown; known: {}", ports.join(", ")));
    }
    let inputs = directions(fields, "inputs");
    let outputs = directions(fields, "outputs");
    let to = wires(fields, outputs.len());
    let (line, name) = (statement.line, statement.name.clone());
    Some(Element { line, name, class, config, inputs, outputs, to, step, counts, port, ways })
}

fn owned(texts: Vec<&str>) -> Vec<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Reads the directions of ports.
fn directions(fields: &mut Fields<'_, '_>, key: &'static str) -> Vec<String> {
    const KNOWN: [&str; 4] = ["push", "pull", "push~", "pull~"];
    let texts = owned(fields.texts(key, "a list of \"push\", \"pull\", \"push~\" or \"pull~\""));
    for text in texts.iter().filter(|text| !KNOWN.contains(&text.as_str())) {
        fields.error(key, format!("{key}: \"{text}\" unknown; known: {}", KNOWN.join(", ")));
    }
    texts
}

/// Reads connections to other elements.
fn wires(fields: &mut Fields<'_, '_>, outputs: usize) -> Vec<Wire> {
    let texts = owned(fields.texts("to", "connections such as { \"0 0 d\" }"));
    let mut wires = Vec::new();
    for text in texts {
        let mut words = text.split(' ');
        let (output, input) = (words.next(), words.next());
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<usize>().ok());
        match (number(output).filter(|&output| output < outputs), number(input), words.next()) {
            (Some(output), Some(input), Some(to)) => {
                wires.push(Wire { output, input, to: to.to_owned() });
            }
            _ => fields.error("to", format!("to: \"{text}\": expected OUTPUT INPUT NAME")),
        }
    }
    wires
}

/// Reads the control sockets.
pub(super) fn sockets<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
) -> Vec<ControlSocket> {
    let (mut sockets, mut seen, mut places) = (Vec::new(), HashMap::new(), HashMap::new());
    for statement in statements {
        if !is_new(context, &mut seen, statement, SOCKETS_MOST) {
            continue;
        }
        let mut fields = context.fields(what(statement), statement, &SOCKET);
        let Some(socket) = socket(&mut fields, statement) else { continue };
        if let Some(line) = places.insert(socket.listen.clone(), socket.line) {
            fields.error("", format!("{} is that of line {line} already", socket.listen));
        }
        sockets.push(socket);
    }
    sockets
}

fn socket(fields: &mut Fields<'_, '_>, statement: &Statement) -> Option<ControlSocket> {
    let read_only = fields.flag("read_only");
    let verbose = fields.flag("verbose");
    let clients = fields.number("clients", 1..=1000).unwrap_or(16) as usize;
    let idle = Duration::from_secs(fields.number("idle_s", 1..=86_400).unwrap_or(600));
    let users = users(fields);
    let public = fields.flag("public");
    let tcp = fields.text("listen", "an address and a port such as \"127.0.0.1:7777\"");
    let unix = fields.text("unix", "the path of a socket");
    let listen = match (tcp, unix) {
        (Some(text), None) => Listen::Tcp(address(fields, text, public)?),
        (None, Some(path)) => {
            fields.refuse(&["public", "users"], |key| {
                format!("{key}: only users who may open the file can connect; leave it out")
            });
            Listen::Unix(socket_path(fields, path)?)
        }
        _ => {
            fields.error(
                "",
                "write either listen = \"127.0.0.1:7777\" or unix = \"/run/click.sock\"",
            );
            return None;
        }
    };
    let (line, name) = (statement.line, statement.name.clone());
    Some(ControlSocket { line, name, listen, read_only, verbose, clients, idle, users })
}

fn address(fields: &mut Fields<'_, '_>, text: &str, public: bool) -> Option<SocketAddr> {
    let address = match listen(text, USUAL) {
        Ok(address) => address,
        Err(reason) => {
            fields.error("listen", format!("listen \"{text}\": {reason}"));
            return None;
        }
    };
    is_within(fields, address, public, ("the protocol has", address.port()));
    Some(address)
}

fn socket_path(fields: &mut Fields<'_, '_>, path: &str) -> Option<PathBuf> {
    let too_long = format!("too long; at most {PATH_MOST} bytes");
    let problem = match Path::new(path) {
        relative if !relative.is_absolute() => {
            "not an absolute path, and the router is in another directory"
        }
        _ if path.len() > PATH_MOST => &too_long,
        _ if path.contains('\0') => "has a zero byte",
        _ => return Some(PathBuf::from(path)),
    };
    fields.error("unix", format!("unix \"{path}\": {problem}"));
    None
}
