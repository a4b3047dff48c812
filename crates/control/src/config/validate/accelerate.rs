//! `turnpike.accelerate { "eth0", "eth1" }`, and `accelerate = true` of a port: kernel interfaces that stay the kernel's.
//!
//! Addresses, routes, neighbours, MTU and MAC of such an interface are the kernel's, and settings that change them, or
//! that make Turnpike answer for the interface, are refused.

use std::borrow::Cow;
use std::collections::BTreeSet;

use kernel_rules::Kind;

use super::super::script::{Keyword, Statement};
use super::super::value::{Fields, Table, Value};
use super::super::{
    Acceleration, Bond, Device, HostInterface, KernelRoutes, PathHash, Port, RoutesFrom, Slowpath,
    Vlan,
};
use super::Context;
use super::rest::single;

/// The key of a port.
pub(super) const ACCELERATE: &str = "accelerate";

/// The key of all interfaces by which their XDP programs forward.
const IN_KERNEL: &str = "in_kernel";

/// The keys beside the interfaces.
const KEYS: [&str; 5] = ["bypass", "filters", "flows", IN_KERNEL, "vlans"];

/// The way out of settings that contradict `in_kernel`.
const NO_FORWARDERS: &str = "do not see packets with in_kernel = true; leave out one of the two";

const EXAMPLE: &str = "write turnpike.accelerate { \"eth0\", \"eth1\" }";

/// Settings that an accelerated port does not have.
const REFUSED: [&str; 21] = [
    "address",
    "advertise",
    "all_multicast",
    "control_queue",
    "dad",
    "dhcp_relay",
    "driver",
    "host",
    "link",
    "mac",
    "mtu",
    "offloads",
    "promiscuous",
    "proxy",
    "router_discovery",
    "rss",
    "take_over",
    "ttl_security",
    "unnumbered",
    "unreachables",
    "vrf",
];

/// Returns the statements of the ports, those of accelerated interfaces included, and the kernel's rules that their
/// packets may bypass.
pub(super) fn ports<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    ports: impl Iterator<Item = &'s Statement>,
) -> (Vec<Cow<'s, Statement>>, Acceleration) {
    let mut all: Vec<_> = ports.map(Cow::Borrowed).collect();
    let Some(statement) = single(context, statements) else {
        return (all, Acceleration::default());
    };
    let mut fields = context.listed(ACCELERATE.to_owned(), statement, &KEYS);
    let acceleration = acceleration(&mut fields);
    all.extend(interfaces(fields).into_iter().map(|name| {
        let named = [("device", Value::Text(name.clone())), (ACCELERATE, Value::Bool(true))];
        let named = named.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let settings = Table { named, ..Table::default() };
        Cow::Owned(Statement { keyword: Keyword::Port, line: statement.line, name, settings })
    }));
    (all, acceleration)
}

fn acceleration(fields: &mut Fields<'_, '_>) -> Acceleration {
    let bypass = bypass(fields);
    let has_kernel_filters = match fields.text("filters", "\"kernel\" or \"configuration\"") {
        None | Some("configuration") => false,
        Some("kernel") => true,
        Some(other) => {
            let message = format!("{other} is neither \"kernel\" nor \"configuration\"");
            fields.error("filters", message);
            false
        }
    };
    let in_kernel = fields.flag(IN_KERNEL);
    if in_kernel && has_kernel_filters {
        fields.error(
            "filters",
            format!("\"kernel\": filters need forwarders, which {NO_FORWARDERS}"),
        );
    }
    let flows = fields.flag("flows");
    if flows && in_kernel {
        fields
            .error("flows", format!("flows are translated for forwarders, which {NO_FORWARDERS}"));
    }
    let leaves_vlans = !fields.flag_or("vlans", true);
    Acceleration { bypass, has_kernel_filters, in_kernel, leaves_vlans, flows }
}

fn bypass(fields: &mut Fields<'_, '_>) -> BTreeSet<Kind> {
    let names = fields.texts("bypass", "a list of kinds of the kernel's rules");
    let mut kinds = BTreeSet::new();
    for name in names {
        match name.parse::<Kind>() {
            Ok(kind) => _ = kinds.insert(kind),
            Err(error) => fields.error("bypass", error),
        }
    }
    kinds
}

fn interfaces(mut fields: Fields<'_, '_>) -> Vec<String> {
    let items = fields.items();
    if items.is_empty() && KEYS.iter().all(|key| fields.get(key).is_none()) {
        fields.error("", format!("names no interface; {EXAMPLE}"));
    }
    let mut names: Vec<String> = Vec::new();
    for item in items {
        match item {
            Value::Text(name) if names.contains(name) => {
                fields.error("", format!("interface \"{name}\" is given twice; once is enough"));
            }
            Value::Text(name) => names.push(name.clone()),
            other => {
                fields.error("", format!("expected an interface's name, got {other}; {EXAMPLE}"));
            }
        }
    }
    names
}

/// Returns true if one of the ports is accelerated.
pub(super) fn is_any(ports: &[Cow<'_, Statement>]) -> bool {
    ports.iter().any(|port| port.settings.named.get(ACCELERATE) == Some(&Value::Bool(true)))
}

/// VLAN devices on accelerated interfaces are accelerated as well, unless they stay with the kernel.
pub(super) fn find_vlans(ports: &mut [Port], acceleration: &Acceleration) {
    for port in ports.iter_mut().filter(|port| port.accelerate) {
        if let Some(host) = &mut port.interface.host {
            host.finds_vlans = !acceleration.leaves_vlans;
        }
    }
}

/// Has accelerated ports receive packets of flows only, if that is wanted.
pub(super) fn follow_flows(acceleration: &Acceleration, ports: &mut [Port]) {
    for port in ports.iter_mut().filter(|port| port.accelerate) {
        port.interface.is_translated = acceleration.flows;
    }
}

/// The kernel is a source of routes where an interface is accelerated.
pub(super) fn follow_kernel(routes_from: &mut RoutesFrom) {
    routes_from.kernel.get_or_insert_with(KernelRoutes::default);
}

/// Returns the host interface of an accelerated port: its device.
pub(super) fn host(fields: &mut Fields<'_, '_>) -> Option<HostInterface> {
    if !fields.flag(ACCELERATE) {
        return None;
    }
    fields.refuse(&REFUSED, |key| {
        format!(
            "{key}: an accelerated interface is the kernel's, and so is this setting; leave it out"
        )
    });
    Some(HostInterface { is_device: true, segmentation: false, ..HostInterface::default() })
}

/// Checks that an accelerated port has the name of its device.
pub(super) fn check_name(fields: &mut Fields<'_, '_>, name: &str, device: &Device) {
    match device {
        Device::Kernel(device) if device == name || device.is_empty() => {}
        Device::Kernel(device) => fields.error(
            ACCELERATE,
            format!(
                "accelerate: the kernel's routes name the interface {device}, so the port has this name; write \
                 turnpike.port \"{device}\""
            ),
        ),
        other => fields.error(
            ACCELERATE,
            format!("accelerate: device {other} is no kernel interface; leave accelerate out"),
        ),
    }
}

/// Sets the ports whose packets XDP programs forward, and checks that nothing else of the configuration asks for them:
/// neither its other statements nor its graphs and steps.
pub(super) fn in_kernel<'s>(
    context: &mut Context<'_>,
    ports: &mut [Port],
    (of_ports, others): (&[&Statement], impl Iterator<Item = &'s Statement>),
    (hash, has_steps): (&PathHash, bool),
) {
    if has_steps {
        let message = format!("turnpike.graph and turnpike.step: forwarders {NO_FORWARDERS}");
        context.errors.add(None, message);
    }
    if hash.fields != PathHash::default().fields {
        let message = "turnpike.forwarding: hash: with in_kernel = true paths are selected by addresses, protocol and \
                       ports; leave out all but the seed";
        context.errors.add(None, message);
    }
    for (port, statement) in ports.iter_mut().zip(of_ports) {
        port.in_kernel = port.accelerate;
        let name = &port.name;
        if !port.accelerate {
            let message = format!(
                "port \"{name}\": forwarders send its packets, and {NO_FORWARDERS}: accelerate this port as well, or leave \
                 in_kernel out"
            );
            context.errors.add(Some(port.line), message);
        }
        let keys = statement.settings.named.keys();
        for key in keys.filter(|key| !["device", ACCELERATE].contains(&key.as_str())) {
            let message = format!("port \"{name}\": {key}: forwarders {NO_FORWARDERS}");
            context.errors.add(Some(port.line), message);
        }
    }
    for statement in others.filter(|statement| !IN_KERNEL_STATEMENTS.contains(&statement.keyword)) {
        let keyword = statement.keyword.name();
        let message = format!("turnpike.{keyword}: forwarders {NO_FORWARDERS}");
        context.errors.add(Some(statement.line), message);
    }
}

/// Statements that do not concern forwarders' work on packets.
const IN_KERNEL_STATEMENTS: [Keyword; 20] = [
    Keyword::Accelerate,
    Keyword::Access,
    Keyword::Api,
    Keyword::Cores,
    Keyword::Forwarders,
    Keyword::Forwarding,
    Keyword::Fpm,
    Keyword::Icmp,
    Keyword::Import,
    Keyword::Log,
    Keyword::Loopback,
    Keyword::Memory,
    Keyword::Metrics,
    Keyword::Neighbour,
    Keyword::NextHop,
    Keyword::Port,
    Keyword::Quarantine,
    Keyword::Route,
    Keyword::RoutesFrom,
    Keyword::Telnet,
];

/// Checks accelerated ports together with all other settings.
pub(super) fn check(
    context: &mut Context<'_>,
    (ports, bonds, vlans): (&[Port], &[Bond], &[Vlan]),
    slowpath: &Slowpath,
) {
    let accelerated: Vec<&Port> = ports.iter().filter(|port| port.accelerate).collect();
    for port in &accelerated {
        let name = &port.name;
        if let Some(bond) = bonds.iter().find(|bond| bond.ports.contains(&port.id)) {
            let message = format!(
                "bond \"{}\": port \"{name}\" is accelerated, and its frames stay with the kernel; leave it out",
                bond.name
            );
            context.errors.add(Some(bond.line), message);
        }
        if let Some(vlan) = vlans.iter().find(|vlan| vlan.parent == port.id.into()) {
            let message = format!(
                "vlan \"{}\": port \"{name}\" is accelerated, and its VLANs are the VLAN devices that the kernel has \
                 on it; leave it out, or use another parent",
                vlan.name
            );
            context.errors.add(Some(vlan.line), message);
        }
    }
    if let (Some(port), true) = (accelerated.first(), slowpath.workers > 1) {
        let message = format!(
            "slowpath: workers {}: accelerated interfaces have one, which returns packets to the kernel; leave \
             workers out, or port \"{}\" unaccelerated",
            slowpath.workers, port.name
        );
        context.errors.add(None, message);
    }
}
