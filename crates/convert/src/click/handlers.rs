//! Elements and control sockets as statements, by which the running router knows the elements' handlers.
//!
//! ```lua
//! turnpike.element "c" { class = "Counter", inputs = { "push" }, outputs = { "push" }, to = { "0 0 d" }, step = "c" }
//! turnpike.control_socket "cs" { listen = "127.0.0.1:7777" }
//! ```
//!
//! Each element has a statement, also one that has become nothing: it has a name, a class and a configuration still.

use std::collections::HashMap;

use ::click::classes::{self, Class};
use ::click::script::{CLASSES, Kind, Script};
use ::click::{Element, Errors, Flow, Processing, kinds};

use super::arguments::label;
use super::elements::stop;
use super::graph::Devices;
use super::lua::{Statements, Value};
use super::net::Net;

/// What an element becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Become {
    /// Its step.
    pub(super) step: Option<String>,
    /// Outputs of steps, `STEP.OUTPUT`, whose packets are the element's.
    pub(super) counts: Vec<String>,
    /// The port of its device.
    pub(super) port: Option<String>,
    /// Of a routing table: the port of each output, `local` or `drop`.
    pub(super) ways: Vec<String>,
}

/// By the elements' numbers.
pub(super) type Becomes = HashMap<usize, Become>;

/// The elements of devices with their ports, and each `ARPQuerier` with the port behind it.
pub(super) fn by_devices(net: &Net<'_>, devices: &Devices) -> Becomes {
    let port_of = |element: usize| {
        let name = super::elements::device(net, element).ok()?;
        devices.get(&name).map(|device| device.port.clone())
    };
    let of_devices = net.receivers().into_iter().chain(net.senders());
    let of_devices = of_devices.map(|element| (element, port_of(element)));
    let queriers = net.of_class(&["ARPQuerier"]);
    let queriers =
        queriers.into_iter().map(|element| (element, sender(net, element).and_then(port_of)));
    let with_port = |(element, port)| (element, Become { port, ..Become::default() });
    of_devices.chain(queriers).map(with_port).collect()
}

/// The element of a device to which an element's first output leads.
fn sender(net: &Net<'_>, element: usize) -> Option<usize> {
    let mut at = element;
    for _ in 0..net.flat.elements.len() {
        (at, _) = net.target(at, 0)?;
        if net.is_to_device(at) {
            return Some(at);
        }
    }
    None
}

/// Adds a statement for each element.
pub(super) fn elements(
    net: &Net<'_>,
    processing: &Processing,
    becomes: &Becomes,
    statements: &mut Statements,
) {
    let nothing = Become::default();
    for number in 0..net.flat.elements.len() {
        let element = net.element(number);
        let mut settings = vec![("class", Value::text(&element.class))];
        if !element.config.is_empty() {
            settings.push(("config", Value::text(&element.config)));
        }
        let (inputs, outputs) = directions(processing, number, classes::find(&element.class));
        let Become { step, counts, port, ways } = becomes.get(&number).unwrap_or(&nothing);
        let lists = [("inputs", inputs), ("outputs", outputs), ("to", targets(net, number))];
        let lists = lists.into_iter().chain([("counts", counts.clone()), ("ways", ways.clone())]);
        settings.extend(
            lists.filter(|(_, list)| !list.is_empty()).map(|(key, list)| (key, Value::List(list))),
        );
        let texts = [("step", step), ("port", port)];
        settings.extend(
            texts.into_iter().filter_map(|(key, text)| Some((key, Value::text(text.as_ref()?)))),
        );
        statements.statement(("element", &element.name), &settings, net.line(number));
        if let Some(script) = stop(net, number) {
            let settings = [("class", Value::text("Script")), ("config", Value::Text(script))];
            let name = format!("{}@stop", element.name);
            statements.statement(("element", &name), &settings, net.line(number));
        }
    }
}

/// `OUTPUT INPUT NAME` of each connection from an element.
fn targets(net: &Net<'_>, number: usize) -> Vec<String> {
    let connections = net.flat.outputs(number);
    let written = connections.map(|connection| {
        let (output, (to, input)) = (connection.from.1, connection.to);
        format!("{output} {input} {}", net.element(to).name)
    });
    written.collect()
}

/// `push` or `pull` of each port, with a tilde where the port is agnostic.
fn directions(
    processing: &Processing,
    number: usize,
    class: Option<&Class>,
) -> (Vec<String>, Vec<String>) {
    let Some(ports) = processing.elements.get(number) else { return Default::default() };
    let written =
        |flow: &Flow, own: Option<Flow>| format!("{flow}{}", if own.is_none() { "~" } else { "" });
    let of = |flows: &[Flow], own: fn(&Class, usize) -> Option<Flow>| -> Vec<String> {
        let flows = flows.iter().enumerate();
        flows.map(|(port, flow)| written(flow, class.and_then(|class| own(class, port)))).collect()
    };
    (of(&ports.inputs, Class::input), of(&ports.outputs, Class::output))
}

/// Adds a statement for each control socket.
pub(super) fn sockets(net: &Net<'_>, statements: &mut Statements) -> Result<(), Errors> {
    let mut errors = Vec::new();
    for element in net.of_class(&["ControlSocket"]) {
        match socket(net, element) {
            Ok(settings) => {
                let name = &net.element(element).name;
                statements.statement(("control_socket", name), &settings, net.line(element));
            }
            Err(message) => errors.push(net.error(element, &message)),
        }
    }
    Errors::check(errors)
}

/// Checks the scripts.
pub(super) fn scripts(net: &Net<'_>) -> Result<(), Errors> {
    let mut errors = Vec::new();
    let elements = net.of_class(&CLASSES);
    for &element in &elements {
        let has_packets = net.targets(element).next().is_some() || !net.sources(element).is_empty();
        if has_packets {
            errors.push(
                net.error(element, "a script of packets is not supported; leave its ports out"),
            );
        }
        let Element { class, config, .. } = net.element(element);
        if let Err(why) = Script::parse(class, config) {
            errors.push(net.error(element, &why));
        }
    }
    let is_driver = |&&element: &&usize| {
        let Element { class, config, .. } = net.element(element);
        Script::parse(class, config).is_ok_and(|script| script.kind() == Kind::Driver)
    };
    if let Some(&second) = elements.iter().filter(is_driver).nth(1) {
        errors.push(net.error(
            second,
            "a second script that controls the end of the router; there can be one",
        ));
    }
    Errors::check(errors)
}

fn socket(net: &Net<'_>, element: usize) -> Result<Vec<(&'static str, Value)>, String> {
    let mut args = net.args(element);
    let kind = args.required("TYPE", label)?;
    let mut settings = match kind.to_ascii_uppercase().as_str() {
        "TCP" => {
            let port = args.required("PORT", kinds::integer(1..=u16::MAX))?;
            let is_local = args.keyword("LOCALHOST", kinds::boolean)?.unwrap_or(true);
            tcp(port, is_local)
        }
        "UNIX" => {
            args.ignore(&["LOCALHOST"]);
            vec![("unix", Value::Text(args.required("FILENAME", label)?))]
        }
        _ => return Err(format!("TYPE {kind}: expected TCP or UNIX")),
    };
    for (keyword, key) in [("READONLY", "read_only"), ("VERBOSE", "verbose")] {
        if args.keyword(keyword, kinds::boolean)? == Some(true) {
            settings.push((key, Value::Flag(true)));
        }
    }
    args.finish()?;
    Ok(settings)
}

/// This machine's clients only, unless `LOCALHOST false` is written.
fn tcp(port: u16, is_local: bool) -> Vec<(&'static str, Value)> {
    let address = if is_local { "127.0.0.1" } else { "0.0.0.0" };
    let mut settings = vec![("listen", Value::Text(format!("{address}:{port}")))];
    if !is_local {
        settings.push(("public", Value::Flag(true)));
    }
    settings
}
