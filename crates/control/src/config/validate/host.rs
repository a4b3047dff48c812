//! `host = …` of a port: its kernel interface, and the namespace of that.

use std::collections::HashMap;

use dataplane::interface::{InterfaceId, VrfId};

use super::super::network::netns_name;
use super::super::value::{Fields, Value};
use super::super::{Bond, Device, HostInterface, LOOPBACK, Loopback, Port, Vlan, Vrf};
use super::Context;

/// Values of a port's or bond's.
const EXPECTED: &str = "true, false or { netns = \"NAME\", vlans = \"kernel\" }";

/// Values of a VLAN's.
const EXPECTED_OF_VLAN: &str =
    "true, false, \"kernel\" or { netns = \"NAME\", vlans = \"kernel\" }";

/// In a VLAN: its host interface is the kernel's VLAN device. In `vlans`: all VLAN devices on it are VLANs.
const IN_KERNEL: &str = "kernel";

const KEYS: [&str; 3] = ["netns", "segmentation", "vlans"];

/// Reads a port's host interface; `by_default` is true if it has one unless configured otherwise.
pub(super) fn read(fields: &mut Fields<'_, '_>, by_default: bool) -> Option<HostInterface> {
    let absent = by_default.then(HostInterface::default);
    read_or(fields, absent, HostInterface::default(), EXPECTED)
}

/// Reads the host interface of a bond, which unless configured otherwise is like that of its ports.
pub(super) fn read_upper(
    fields: &mut Fields<'_, '_>,
    parent: Option<HostInterface>,
) -> Option<HostInterface> {
    read_as(fields, parent, EXPECTED)
}

fn read_as(
    fields: &mut Fields<'_, '_>,
    parent: Option<HostInterface>,
    expected: &str,
) -> Option<HostInterface> {
    let wanted = parent.clone().unwrap_or_default();
    read_or(fields, parent, wanted, expected)
}

/// Reads the host interface of a VLAN, which unless configured otherwise is like its parent's. It may be the kernel's
/// VLAN device on that.
pub(super) fn read_vlan(
    fields: &mut Fields<'_, '_>,
    parent: Option<HostInterface>,
) -> Option<HostInterface> {
    match fields.get("host") {
        Some(Value::Text(text)) if text == IN_KERNEL => {
            Some(HostInterface { in_kernel: true, ..parent.unwrap_or_default() })
        }
        _ => read_as(fields, parent, EXPECTED_OF_VLAN),
    }
}

/// Reads a host interface: `absent` without the setting, `wanted` for true; `expected` names the values.
fn read_or(
    fields: &mut Fields<'_, '_>,
    absent: Option<HostInterface>,
    wanted: HostInterface,
    expected: &str,
) -> Option<HostInterface> {
    match fields.get("host") {
        None => absent,
        Some(Value::Bool(on)) => on.then_some(wanted),
        Some(Value::Table(table)) if table.list.is_empty() && table.odd.is_empty() => {
            for key in table.named.keys().filter(|key| !KEYS.contains(&key.as_str())) {
                let known = KEYS.join(", ");
                fields.error("host", format!("host: key \"{key}\" unknown; known: {known}"));
            }
            let netns = match table.named.get("netns") {
                None => None,
                Some(Value::Text(name)) => namespace(fields, name),
                Some(other) => {
                    fields.error("host", format!("host: netns: expected a name, got {other}"));
                    None
                }
            };
            let segmentation = match table.named.get("segmentation") {
                None => true,
                Some(Value::Bool(on)) => *on,
                Some(other) => {
                    let message =
                        format!("host: segmentation: expected true or false, got {other}");
                    fields.error("host", message);
                    true
                }
            };
            let finds_vlans = match table.named.get("vlans") {
                None | Some(Value::Bool(false)) => false,
                Some(Value::Text(text)) if text == IN_KERNEL => true,
                Some(other) => {
                    let message =
                        format!("host: vlans: expected \"{IN_KERNEL}\" or false, got {other}");
                    fields.error("host", message);
                    false
                }
            };
            Some(HostInterface { netns, segmentation, finds_vlans, ..HostInterface::default() })
        }
        Some(other) => {
            fields.error("host", format!("host: expected {expected}, got {other}"));
            None
        }
    }
}

fn namespace(fields: &mut Fields<'_, '_>, name: &str) -> Option<String> {
    if let Err(reason) = netns_name(name) {
        fields.error("host", format!("host: netns \"{name}\": {reason}"));
        return None;
    }
    Some(name.to_owned())
}

/// Puts a host interface into the namespace of its VRF, if that has one.
pub(super) fn place_in_vrf(
    fields: &mut Fields<'_, '_>,
    host: HostInterface,
    vrf: VrfId,
    vrfs: &[Vrf],
) -> HostInterface {
    let vrf = vrfs.iter().find(|other| other.id == vrf);
    let Some((vrf, netns)) = vrf.and_then(|vrf| Some((vrf, vrf.namespace.clone()?))) else {
        // That of a VLAN is like its parent's, unless it is in another VRF.
        let netns = host.netns.filter(|_| !host.of_vrf);
        return HostInterface { netns, of_vrf: false, ..host };
    };
    let says =
        |value: &Value| matches!(value, Value::Table(table) if table.named.contains_key("netns"));
    if fields.get("host").is_some_and(says) && host.netns.as_ref() != Some(&netns) {
        let message = format!(
            "host: netns: the host interfaces of VRF \"{}\" are in its namespace \"{netns}\"; leave netns out",
            vrf.name
        );
        fields.error("host", message);
    }
    HostInterface { netns: Some(netns), of_vrf: true, ..host }
}

/// All interfaces.
type Interfaces<'a> = (&'a [Port], &'a [Bond], &'a [Vlan], &'a [Loopback]);

/// Checks the host interfaces of all interfaces: those that are in no namespace of a VRF must be in one
/// namespace, because routes and neighbours are those of the kernel in that namespace, and their names must be free
/// there.
pub(super) fn check(context: &mut Context<'_>, (ports, bonds, vlans, loopbacks): Interfaces<'_>) {
    let of_ports = ports.iter().map(|port| ("port", &port.name, port.line, &port.interface));
    let of_vlans = vlans.iter().map(|vlan| ("vlan", &vlan.name, vlan.line, &vlan.interface));
    let of_bonds = bonds.iter().map(|bond| ("bond", &bond.name, bond.line, &bond.interface));
    let of_loopbacks = loopbacks.iter().map(|of| (LOOPBACK, &of.name, of.line, &of.interface));
    let all = of_ports.chain(of_bonds).chain(of_vlans).chain(of_loopbacks);
    let mut with_host = all.filter_map(|(kind, name, line, interface)| {
        let host = interface.host.as_ref().filter(|host| !host.of_vrf)?;
        Some((kind, name, line, host))
    });
    let Some((first_kind, first, first_line, host)) = with_host.next() else { return };
    for (kind, name, line, other) in with_host.filter(|(.., other)| other.netns != host.netns) {
        let message = format!(
            "{kind} \"{name}\": host interface in {}, but that of {first_kind} \"{first}\" on line {first_line} \
             in {}; all are in one network namespace, write the same host = {{ netns = \"NAME\" }} in every port",
            place(other),
            place(host),
        );
        context.errors.add(Some(line), message);
    }
    let vrfs = context.vrfs.clone();
    for vrf in vrfs.iter().filter(|vrf| vrf.namespace.is_some() && vrf.namespace == host.netns) {
        let message = format!(
            "vrf \"{}\": namespace \"{}\" has the host interface of {first_kind} \"{first}\" on line {first_line}, \
             which is in no VRF with a namespace; use another namespace",
            vrf.name,
            vrf.namespace.as_deref().unwrap_or_default()
        );
        context.errors.add(Some(vrf.line), message);
    }
    let same_name =
        |port: &&Port| matches!(&port.device, Device::Kernel(name) if *name == port.name);
    let taken = |port: &&Port| {
        let host = port.interface.host.as_ref();
        host.is_some_and(|host| host.netns.is_none() && !host.is_device)
    };
    for port in ports.iter().filter(same_name).filter(taken) {
        let message = format!(
            "port \"{0}\": its host interface would have the name of its device, {0}; name the \
             port otherwise, or put it elsewhere by host = {{ netns = \"NAME\" }}, or write host = \
             false",
            port.name
        );
        context.errors.add(Some(port.line), message);
    }
}

/// Checks the VLANs whose host interfaces are the kernel's: their devices are on host interfaces, beside these, and have
/// the addresses that the operator sets there.
pub(super) fn check_kernel(
    context: &mut Context<'_>,
    ports: &[Port],
    bonds: &[Bond],
    vlans: &[Vlan],
) {
    let of_ports = ports.iter().map(|port| (port.id.into(), &port.name, &port.interface));
    let of_bonds = bonds.iter().map(|bond| (bond.id, &bond.name, &bond.interface));
    let of_vlans = vlans.iter().map(|vlan| (vlan.id, &vlan.name, &vlan.interface));
    let all: HashMap<InterfaceId, _> = of_ports
        .chain(of_bonds)
        .chain(of_vlans)
        .map(|(id, name, interface)| (id, (name, &interface.host)))
        .collect();
    for vlan in vlans {
        let Some(host) = vlan.interface.host.as_ref().filter(|host| host.in_kernel) else {
            continue;
        };
        let problem = match all.get(&vlan.parent) {
            Some((parent, None)) => format!(
                "the kernel's VLAN device is on the host interface of \"{parent}\", which has none; write host = \
                 true there"
            ),
            Some((parent, Some(below))) if below.netns != host.netns => format!(
                "the kernel's VLAN device is on the host interface of \"{parent}\", in {}, and that of this VRF would \
                 be in {}; write host = true here",
                place(below),
                place(host)
            ),
            _ if !vlan.interface.addresses.is_empty() => format!(
                "the addresses are those of the kernel's VLAN device: leave address out, and use ip address add … dev {}",
                vlan.name
            ),
            _ => continue,
        };
        let message = format!("vlan \"{}\": host = \"{IN_KERNEL}\": {problem}", vlan.name);
        context.errors.add(Some(vlan.line), message);
    }
}

fn place(host: &HostInterface) -> String {
    match &host.netns {
        Some(name) => format!("namespace \"{name}\""),
        None => "the router's own namespace".to_owned(),
    }
}
