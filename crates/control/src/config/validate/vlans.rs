//! `turnpike.vlan "NAME" { … }`

use std::collections::HashMap;

use dataplane::features::Feature;
use dataplane::interface::{InterfaceId, MAX_INTERFACES};
use dataplane::port::MAX_PORTS;
use dataplane::vlan::{Tag, TagProtocol};
use dataplane::words::suggestion;

use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{Bond, HostInterface, Port, Vlan};
use super::ports::{Common, INTERFACE_KEYS, check_name, enter, interface};
use super::{Context, host};

const KNOWN: [&str; 4] = ["parent", "id", "protocol", "priority"];

/// The identifier of a VLAN whose own is wrong, which has been reported.
const NO_ID: u64 = 0;

/// The most bonds and VLANs of a router.
const VLANS_MAX: usize = MAX_INTERFACES - MAX_PORTS;

/// A VLAN's parent, before all VLANs are known.
struct Parent {
    name: String,
    line: usize,
}

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    (ports, bonds): (&mut [Port], &mut [Bond]),
    features: &[Feature],
    filters: &[&str],
) -> Vec<Vlan> {
    let features: Vec<_> = features.iter().copied().filter(|of| of.is_setting()).collect();
    let known = KNOWN.into_iter().chain(INTERFACE_KEYS);
    let known: Vec<&str> = known.chain(features.iter().map(|feature| feature.name())).collect();
    let statements: Vec<_> = statements.collect();
    let first = context.port_names.len();
    for statement in &statements {
        check_name(context, what(&statement.name), statement);
        context.port_names.push((statement.name.clone(), statement.line));
    }
    let hosts = hosts(ports, bonds, &statements);
    let (mut vlans, mut parents) = (Vec::new(), Vec::new());
    for (place, statement) in statements.iter().enumerate() {
        let common = Common::of(context, filters);
        let mut fields = context.fields(what(&statement.name), statement, &known);
        let parent = parent(&mut fields);
        let inherited = parent.as_ref().and_then(|parent| hosts.get(parent.name.as_str()));
        let host = host::read_vlan(&mut fields, inherited.cloned().flatten());
        let tag = tag(&mut fields);
        let (interface, mtu) = interface(&mut fields, &common, &features, host);
        let address_line = fields.line_of("address");
        enter(context, first + place, &interface, address_line);
        vlans.push(Vlan {
            // Too many are refused below.
            id: context.interface_id(first + place).unwrap_or(InterfaceId::FIRST),
            line: statement.line,
            name: statement.name.clone(),
            parent: InterfaceId::FIRST,
            tag,
            is_found: false,
            mtu,
            interface,
        });
        parents.push(parent);
    }
    let most = VLANS_MAX - bonds.len();
    if let Some(vlan) = vlans.get(most) {
        let message = format!("{} VLANs, {most} is the most; remove some", vlans.len());
        context.errors.add(Some(vlan.line), message);
    }
    settle_parents(context, &mut vlans, &parents, (ports, bonds));
    check_tags(context, &vlans, (ports, bonds));
    check_mtus(context, &vlans, (ports, bonds));
    host::check_kernel(context, ports, bonds, &vlans);
    expect_found(ports, bonds);
    for vlan in &vlans {
        if let Some(bond) = bonds.iter_mut().find(|bond| bond.id == vlan.parent) {
            bond.interface.has_vlans = true;
        }
        let carries = |port: &&mut Port| {
            InterfaceId::from(port.id) == vlan.parent || port.bond == Some(vlan.parent)
        };
        ports.iter_mut().filter(carries).for_each(|port| port.interface.has_vlans = true);
    }
    context.any_host |= vlans.iter().any(|vlan| vlan.interface.host.is_some());
    vlans
}

/// Prepares ports and bonds for the VLANs that are found on their host interfaces while the router runs.
fn expect_found(ports: &mut [Port], bonds: &mut [Bond]) {
    let finds = |host: &Option<HostInterface>| host.as_ref().is_some_and(|host| host.finds_vlans);
    let mut with_vlans = Vec::new();
    for bond in bonds.iter_mut().filter(|bond| finds(&bond.interface.host)) {
        bond.interface.has_vlans = true;
        with_vlans.push(bond.id);
    }
    for port in ports {
        let of_bond = port.bond.is_some_and(|bond| with_vlans.contains(&bond));
        port.interface.has_vlans |= of_bond || (finds(&port.interface.host) && !port.accelerate);
    }
}

fn what(name: &str) -> String {
    format!("vlan \"{name}\"")
}

/// Returns the host interfaces that VLANs inherit from these ports and bonds, and from VLANs on them, by the parent's
/// name.
fn hosts<'a>(
    ports: &'a [Port],
    bonds: &'a [Bond],
    statements: &[&'a Statement],
) -> HashMap<&'a str, Option<HostInterface>> {
    let of = |port: &'a Port| (port.name.as_str(), port.interface.host.clone());
    let of_bond = |bond: &'a Bond| (bond.name.as_str(), bond.interface.host.clone());
    let mut hosts: HashMap<_, _> = ports.iter().map(of).chain(bonds.iter().map(of_bond)).collect();
    for statement in statements {
        if let Some(super::super::value::Value::Text(parent)) =
            statement.settings.named.get("parent")
            && let Some(host) = hosts.get(parent.as_str()).cloned()
        {
            hosts.insert(&statement.name, host);
        }
    }
    hosts
}

fn parent(fields: &mut Fields<'_, '_>) -> Option<Parent> {
    let line = fields.line_of("parent");
    if fields.get("parent").is_none() {
        fields.error("", "parent missing; write parent = \"PORT\", where its frames come by");
    }
    let name = fields.text("parent", "the name of a port, a bond or a VLAN")?.to_owned();
    Some(Parent { name, line })
}

fn tag(fields: &mut Fields<'_, '_>) -> Tag {
    if fields.get("id").is_none() {
        fields.error("", "id missing; write id = 1 to 4094");
    }
    let id = fields.number("id", 1..=4094).unwrap_or(NO_ID) as u16;
    let priority = fields.number("priority", 0..=7).unwrap_or(0) as u8;
    let protocol = fields.text("protocol", "\"802.1q\" or \"802.1ad\"").map_or_else(
        TagProtocol::default,
        |name| {
            let found = TagProtocol::ALL.into_iter().find(|protocol| protocol.name() == name);
            found.unwrap_or_else(|| {
                let message = format!("protocol \"{name}\" unknown; known: 802.1q, 802.1ad");
                fields.error("protocol", message);
                TagProtocol::default()
            })
        },
    );
    Tag { protocol, id, priority }
}

/// The interfaces that carry the frames of VLANs.
type Lowers<'a> = (&'a [Port], &'a [Bond]);

/// Finds the parents by their names.
fn settle_parents(
    context: &mut Context<'_>,
    vlans: &mut [Vlan],
    parents: &[Option<Parent>],
    (ports, bonds): Lowers<'_>,
) {
    let of_ports = ports.iter().map(|port| (port.name.clone(), InterfaceId::from(port.id)));
    let of_vlans = vlans.iter().map(|vlan| (vlan.name.clone(), vlan.id));
    let of_bonds = bonds.iter().map(|bond| (bond.name.clone(), bond.id));
    let known: HashMap<String, InterfaceId> = of_vlans.chain(of_bonds).chain(of_ports).collect();
    for (vlan, parent) in vlans.iter_mut().zip(parents) {
        let Some(Parent { name, line }) = parent else { continue };
        if let Some(bond) = context.bonded.get(name) {
            let message = format!(
                "{}: parent \"{name}\" belongs to bond \"{bond}\"; write parent = \"{bond}\"",
                what(&vlan.name)
            );
            context.errors.add(Some(*line), message);
            continue;
        }
        match known.get(name) {
            Some(&parent) => vlan.parent = parent,
            None => {
                let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
                let known = suggestion(name, "ports", &names);
                let message = format!("{}: parent \"{name}\" unknown{known}", what(&vlan.name));
                context.errors.add(Some(*line), message);
            }
        }
    }
    let is_vlan = |id: InterfaceId| vlans.iter().any(|vlan| vlan.id == id);
    let on_vlan = |id: InterfaceId| {
        vlans.iter().find(|vlan| vlan.id == id).filter(|vlan| is_vlan(vlan.parent))
    };
    let deep: Vec<_> =
        vlans.iter().zip(parents).filter(|(vlan, _)| on_vlan(vlan.parent).is_some()).collect();
    for (vlan, parent) in deep {
        let message = format!(
            "{}: its frames would have more than two tags; its parent must be a port or a bond, or a VLAN on one",
            what(&vlan.name)
        );
        context.errors.add(parent.as_ref().map(|parent| parent.line), message);
    }
}

/// Checks that no two VLANs of one parent have the same tag.
fn check_tags(context: &mut Context<'_>, vlans: &[Vlan], lowers: Lowers<'_>) {
    let mut seen: HashMap<_, &Vlan> = HashMap::new();
    for vlan in vlans.iter().filter(|vlan| u64::from(vlan.tag.id) != NO_ID) {
        let Tag { protocol, id, .. } = vlan.tag;
        let Some(first) = seen.insert((vlan.parent, protocol, id), vlan) else { continue };
        let message = format!(
            "{}: id {id} ({protocol}) on \"{}\" is taken by vlan \"{}\" on line {}; give each its own",
            what(&vlan.name),
            name_of(vlan.parent, vlans, lowers),
            first.name,
            first.line
        );
        context.errors.add(Some(vlan.line), message);
    }
}

/// Checks that no VLAN's MTU exceeds its parent's. A parent without one has its device's, which is checked when the
/// device is open.
fn check_mtus(context: &mut Context<'_>, vlans: &[Vlan], lowers: Lowers<'_>) {
    let (ports, bonds) = lowers;
    let mtu_of = |id: InterfaceId| {
        let port = ports.iter().find(|port| InterfaceId::from(port.id) == id);
        let vlan = vlans.iter().find(|vlan| vlan.id == id);
        let bond = bonds.iter().find(|bond| bond.id == id);
        let of_bond = |bond: &Bond| {
            let first = bond.ports.first().and_then(|port| ports.get(port.index()));
            bond.mtu.or(first?.mtu)
        };
        let of_upper = || bond.and_then(of_bond).or_else(|| vlan.and_then(|vlan| vlan.mtu));
        port.and_then(|port| port.mtu).or_else(of_upper)
    };
    for vlan in vlans {
        let (Some(mtu), Some(most)) = (vlan.mtu, mtu_of(vlan.parent)) else { continue };
        if mtu > most {
            let message = format!(
                "{}: mtu {mtu} is larger than that of \"{}\", {most}; lower it, or raise the other",
                what(&vlan.name),
                name_of(vlan.parent, vlans, lowers)
            );
            context.errors.add(Some(vlan.line), message);
        }
    }
}

fn name_of<'a>(id: InterfaceId, vlans: &'a [Vlan], (ports, bonds): Lowers<'a>) -> &'a str {
    let port = ports.iter().find(|port| InterfaceId::from(port.id) == id);
    let bond = bonds.iter().find(|bond| bond.id == id).map(|bond| &bond.name);
    let vlan = vlans.iter().find(|vlan| vlan.id == id).map(|vlan| &vlan.name);
    port.map(|port| &port.name).or(bond).or(vlan).map_or("?", String::as_str)
}

#[cfg(test)]
mod tests {
    use dataplane::catalogue::Catalogue;
    use dataplane::vlan::TagProtocol;

    use super::super::super::{Config, ConfigErrors, Limits, parse};

    const PORTS: &str = "local turnpike = require 'turnpike'
        turnpike.port 'wan' { device = 'eth0', mtu = 1500 }
        turnpike.port 'lan' { device = 'eth1', host = true }\n";

    fn read(more: &str) -> Result<Config, ConfigErrors> {
        parse("t.lua".as_ref(), &format!("{PORTS}{more}"), Limits::default(), &Catalogue::default())
    }

    fn error(more: &str) -> String {
        read(more).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn vlans_stand_on_ports_and_on_vlans() {
        let config = read(
            "turnpike.vlan 'wan.s.7' { parent = 'wan.s', id = 7, address = '10.0.7.1/24' }
             turnpike.vlan 'wan.s' { parent = 'wan', id = 6, protocol = '802.1ad', priority = 5 }
             turnpike.vlan 'lan.9' { parent = 'lan', id = 9, mtu = 1400 }
             turnpike.route '192.0.2.0/24' { via = '10.0.7.2' }",
        )
        .unwrap();
        let wire = config.vlans_on_wire();
        assert_eq!(wire.len(), 3);
        let [inner, service, other] = &wire[..] else { unreachable!() };
        assert_eq!((inner.interface.index(), inner.lower.index()), (64, 0));
        assert_eq!((inner.tags.outer.id, inner.tags.inner.map(|tag| tag.id)), (6, Some(7)));
        assert_eq!(service.tags.outer.protocol, TagProtocol::Dot1ad);
        assert_eq!((service.tags.outer.priority, service.tags.inner), (5, None));
        assert_eq!((other.lower.index(), other.tags.outer.id), (1, 9));
        let hosts: Vec<_> = config.vlans.iter().map(|vlan| vlan.interface.host.is_some()).collect();
        assert_eq!(hosts, [false, false, true], "as the parent");
        assert!(config.ports.iter().all(|port| port.interface.has_vlans));
    }

    #[test]
    fn host_interfaces_of_vlans_may_be_the_kernel_s() {
        let config = read(
            "turnpike.vlan 'lan.9' { parent = 'lan', id = 9, protocol = '802.1ad', host = 'kernel' }
             turnpike.vlan 'lan.9.1' { parent = 'lan.9', id = 1, host = 'kernel' }
             turnpike.vlan 'lan.8' { parent = 'lan', id = 8 }
             turnpike.vlan 'lan.8.1' { parent = 'lan.8', id = 1, host = 'kernel' }
             turnpike.vlan 'lan.9.2' { parent = 'lan.9', id = 2 }",
        )
        .unwrap();
        let device = |at: usize| {
            let device = config.kernel_device(config.vlans[at].id)?;
            Some((device.below, device.tags.iter().map(|tag| tag.id).collect::<Vec<_>>()))
        };
        let on = |below: &str, tags: &[u16]| Some((below.to_owned(), tags.to_vec()));
        assert_eq!(device(0), on("lan", &[9]));
        assert_eq!(device(1), on("lan", &[9, 1]), "by the device of its parent");
        assert_eq!((device(2), device(4)), (None, None), "not inherited");
        assert_eq!(device(3), on("lan.8", &[1]));
        let vlans = config.host_vlans().vlans;
        assert_eq!(
            vlans.iter().map(|vlan| vlan.in_kernel).collect::<Vec<_>>(),
            [true, true, false, true, false]
        );
        assert_eq!(
            (vlans[0].protocol, vlans[0].id, vlans[1].parent),
            (0x88a8, 9, vlans[0].interface)
        );
    }

    #[test]
    fn wrong_vlans_are_refused_by_name() {
        for (text, expected) in [
            ("turnpike.vlan 'a' { id = 5 }", "vlan \"a\": parent missing"),
            ("turnpike.vlan 'a' { parent = 'wan' }", "vlan \"a\": id missing; write id = 1 to 4094"),
            ("turnpike.vlan 'a' { parent = 'wan', id = 4095 }", "4095"),
            ("turnpike.vlan 'a' { parent = 'wna', id = 5 }", "parent \"wna\" unknown"),
            ("turnpike.vlan 'wan' { parent = 'lan', id = 5 }", "the name is taken by the port"),
            (
                "turnpike.vlan 'a' { parent = 'wan', id = 5, protocol = 'qinq' }",
                "protocol \"qinq\" unknown; known: 802.1q, 802.1ad",
            ),
            (
                "turnpike.vlan 'a' { parent = 'wan', id = 5 } turnpike.vlan 'b' { parent = 'wan', id = 5 }",
                "vlan \"b\": id 5 (802.1q) on \"wan\" is taken by vlan \"a\" on line 4",
            ),
            (
                "turnpike.vlan 'a' { parent = 'wan', id = 5, mtu = 9000 }",
                "vlan \"a\": mtu 9000 is larger than that of \"wan\", 1500",
            ),
            (
                "turnpike.vlan 'a' { parent = 'wan', id = 5 } turnpike.vlan 'b' { parent = 'a', id = 5 }
                 turnpike.vlan 'c' { parent = 'b', id = 5 }",
                "vlan \"c\": its frames would have more than two tags",
            ),
            ("turnpike.vlan 'a' { parent = 'a', id = 5 }", "more than two tags"),
            ("turnpike.vlan 'a-name-of-16-let' { parent = 'wan', id = 5 }", "vlan \"a-name-of-16-let\": the name has 16"),
            (
                "turnpike.filter 'f' { default = 'accept' } turnpike.bond 'lag' { ports = { 'wan' } }
                 turnpike.vlan 'a' { parent = 'lag', id = 5, filter = { inward = 'f', hardware = true } }",
                "vlan \"a\": filter: hardware = true works on ports and VLANs of ports only: name it there",
            ),
            (
                "turnpike.filter 'f' { default = 'accept' } turnpike.bond 'lag' { ports = { 'wan' } }
                 turnpike.vlan 'b' { parent = 'lag', id = 5 }
                 turnpike.vlan 'a' { parent = 'b', id = 5, filter = { inward = 'f', hardware = true } }",
                "vlan \"a\": filter: hardware = true works on ports and VLANs of ports only: name it there",
            ),
            ("turnpike.vlan 'a' { parent = 'wan', id = 5, rx_queues = 2 }", "rx_queues"),
            (
                "turnpike.vlan 'a' { parent = 'wan', id = 5, host = 'kernel' }",
                "vlan \"a\": host = \"kernel\": the kernel's VLAN device is on the host interface of \"wan\", which \
                 has none; write host = true there",
            ),
            (
                "turnpike.vlan 'a' { parent = 'lan', id = 5, host = 'kernel', address = '10.0.0.1/24' }",
                "vlan \"a\": host = \"kernel\": the addresses are those of the kernel's VLAN device: leave address out",
            ),
            (
                "turnpike.vrf 'v' { namespace = 'n' }
                 turnpike.vlan 'a' { parent = 'lan', id = 5, host = 'kernel', vrf = 'v' }",
                "on the host interface of \"lan\", in the router's own namespace, and that of this VRF would be in \
                 namespace \"n\"",
            ),
            (
                "turnpike.vlan 'a' { parent = 'lan', id = 5, host = 'kernal' }",
                "host: expected true, false, \"kernel\" or { netns = \"NAME\", vlans = \"kernel\" }, got string \"kernal\"",
            ),
            ("turnpike.port 'a' { device = 'eth3', host = 'kernel' }", "host: expected true, false or"),
            (
                "turnpike.vlan 'a' { parent = 'wan', id = 5, address = '10.0.0.1/24' }
                 turnpike.vlan 'b' { parent = 'wan', id = 6, address = '10.0.0.2/24' }",
                "overlaps",
            ),
        ] {
            let error = error(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
