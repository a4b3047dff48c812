//! `turnpike.bond "NAME" { … }`

use std::collections::HashMap;

use dataplane::bond::HashFields;
use dataplane::features::Feature;
use dataplane::interface::InterfaceId;
use dataplane::port::PortId;
use dataplane::words::suggestion;

use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{Bond, BondMode, LacpSettings, Port};
use super::ports::{Common, INTERFACE_KEYS, check_name, enter, interface, mac};
use super::{Context, host};

const KNOWN: [&str; 7] = ["ports", "mode", "hash", "minimum_links", "maximum_links", "lacp", "mac"];

const LACP_KEYS: &[&str] = &["rate", "passive", "priority"];

/// Reads the bonds, and takes their ports' own interfaces from them. `of_ports` are the statements of ports.
pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    (ports, of_ports): (&mut [Port], &[&Statement]),
    features: &[Feature],
    filters: &[&str],
) -> Vec<Bond> {
    let features: Vec<_> = features.iter().copied().filter(|of| of.is_setting()).collect();
    let own_keys: Vec<&str> =
        INTERFACE_KEYS.into_iter().chain(features.iter().map(|feature| feature.name())).collect();
    let known: Vec<&str> = KNOWN.into_iter().chain(own_keys.iter().copied()).collect();
    let mut bonds: Vec<Bond> = Vec::new();
    let mut taken: HashMap<PortId, (String, usize)> = HashMap::new();
    for statement in statements {
        check_name(context, what(&statement.name), statement);
        let position = context.port_names.len();
        context.port_names.push((statement.name.clone(), statement.line));
        let common = Common::of(context, filters);
        // There are fewer ports than numbers, and each port is in one bond.
        let id = context.interface_id(position).unwrap_or(InterfaceId::FIRST);
        let mut fields = context.fields(what(&statement.name), statement, &known);
        let members = members(&mut fields, ports, &mut taken, statement);
        let mut inherited = None;
        for port in &members {
            refuse_own_settings(&mut fields, of_ports, &ports[port.index()], &own_keys);
            let port = &mut ports[port.index()];
            port.bond = Some(id);
            port.interface.is_bonded = true;
            inherited = inherited.or(port.interface.host.take());
        }
        check_mtus(&mut fields, &members, ports);
        let host = host::read_upper(&mut fields, inherited);
        let (mode, hash) = (mode(&mut fields), hash(&mut fields));
        let minimum_links = minimum_links(&mut fields, members.len());
        let maximum_links = maximum_links(&mut fields, minimum_links, mode);
        let lacp = lacp(&mut fields, mode);
        let mac = mac(&mut fields);
        let (mut interface, mtu) = interface(&mut fields, &common, &features, host);
        interface.is_bonded = true;
        let address_line = fields.line_of("address");
        enter(context, position, &interface, address_line);
        for port in &members {
            let name = ports[port.index()].name.clone();
            context.bonded.insert(name, statement.name.clone());
        }
        let (line, name) = (statement.line, statement.name.clone());
        bonds.push(Bond {
            id,
            line,
            name,
            ports: members,
            mode,
            hash,
            minimum_links,
            maximum_links,
            lacp,
            mac,
            mtu,
            interface,
        });
    }
    let has_host = |port: &Port| port.interface.host.is_some();
    context.any_host =
        ports.iter().any(has_host) || bonds.iter().any(|bond| bond.interface.host.is_some());
    bonds
}

fn what(name: &str) -> String {
    format!("bond \"{name}\"")
}

/// Reads the ports of a bond, none of which belongs to another one.
fn members(
    fields: &mut Fields<'_, '_>,
    ports: &[Port],
    taken: &mut HashMap<PortId, (String, usize)>,
    statement: &Statement,
) -> Vec<PortId> {
    let names = fields.texts("ports", "the names of ports, such as { \"one\", \"two\" }");
    let mut found = Vec::new();
    for name in &names {
        // Ports beyond the most have been reported.
        let port = ports
            .iter()
            .enumerate()
            .find(|(at, port)| port.id.index() == *at && port.name == *name);
        let Some((_, port)) = port else {
            let known: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            let known = suggestion(name, "ports", &known);
            fields.error("ports", format!("ports: port \"{name}\" unknown{known}"));
            continue;
        };
        let line = fields.line_of("ports");
        match taken.insert(port.id, (statement.name.clone(), line)) {
            None => found.push(port.id),
            Some((other, _)) if other == statement.name => {
                fields.error("ports", format!("ports: \"{name}\" given twice; remove one"));
            }
            Some((other, line)) => {
                let message = format!(
                    "ports: port \"{name}\" belongs to bond \"{other}\" on line {line}; a port belongs to one bond"
                );
                fields.error("ports", message);
            }
        }
    }
    if names.is_empty() {
        fields.error(
            "ports",
            "ports missing; write ports = { \"one\", \"two\" }, the ports that it joins",
        );
    }
    found
}

/// Refuses settings of a port's own interface, whose frames are the bond's.
fn refuse_own_settings(
    fields: &mut Fields<'_, '_>,
    statements: &[&Statement],
    port: &Port,
    keys: &[&str],
) {
    let Some(statement) = statements.iter().find(|of| of.name == port.name) else { return };
    let is_own = |key: &&&str| **key != "mtu" && statement.settings.named.contains_key(**key);
    for key in keys.iter().filter(is_own) {
        let message = format!(
            "ports: port \"{}\" on line {} has {key} of its own, but its frames are the bond's; write {key} here, \
             and take it away there",
            port.name, port.line
        );
        fields.error("ports", message);
    }
}

/// Checks that the ports' MTUs are alike where they are configured; those of devices are checked when they are open.
fn check_mtus(fields: &mut Fields<'_, '_>, members: &[PortId], ports: &[Port]) {
    let with_mtu = members.iter().map(|port| &ports[port.index()]);
    let mut with_mtu = with_mtu.filter_map(|port| Some((&port.name, port.mtu?)));
    let Some((first, mtu)) = with_mtu.next() else { return };
    if let Some((other, another)) = with_mtu.find(|&(_, other)| other != mtu) {
        let message = format!(
            "ports: port \"{first}\" has mtu {mtu}, and port \"{other}\" {another}; give all the same"
        );
        fields.error("ports", message);
    }
    let own = match fields.get("mtu") {
        Some(super::super::value::Value::Number(own)) => *own,
        _ => return,
    };
    if own > f64::from(mtu) {
        let message = format!(
            "mtu {own} is larger than that of port \"{first}\", {mtu}; lower it, or raise the ports'"
        );
        fields.error("mtu", message);
    }
}

/// Reads a setting that is one of these words.
fn word<T: Copy + Default>(
    fields: &mut Fields<'_, '_>,
    key: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> T {
    let known: Vec<&str> = all.iter().map(|&of| name(of)).collect();
    let quoted: Vec<_> = known.iter().map(|word| format!("\"{word}\"")).collect();
    let Some(text) = fields.text(key, &quoted.join(" or ")) else { return T::default() };
    let found = all.iter().copied().find(|&of| name(of) == text);
    found.unwrap_or_else(|| {
        fields.error(key, format!("{key} \"{text}\" unknown; known: {}", known.join(", ")));
        T::default()
    })
}

fn mode(fields: &mut Fields<'_, '_>) -> BondMode {
    word(fields, "mode", &BondMode::ALL, BondMode::name)
}

fn hash(fields: &mut Fields<'_, '_>) -> HashFields {
    word(fields, "hash", &HashFields::ALL, HashFields::name)
}

fn minimum_links(fields: &mut Fields<'_, '_>, ports: usize) -> u8 {
    let least = fields.number("minimum_links", 1..=64).unwrap_or(1);
    if ports > 0 && least > ports as u64 {
        let message = format!(
            "minimum_links {least}: it has {ports} ports and would never be up; lower it, or add ports"
        );
        fields.error("minimum_links", message);
    }
    least as u8
}

/// Reads the most links of a bond with LACP: the other side of a static bond would not know which are used.
fn maximum_links(fields: &mut Fields<'_, '_>, minimum: u8, mode: BondMode) -> Option<u8> {
    fields.get("maximum_links")?;
    let most = fields.number("maximum_links", 1..=64)?;
    if mode != BondMode::Lacp {
        let message = format!(
            "maximum_links: the mode is \"{}\"; leave maximum_links out, or write mode = \"lacp\"",
            mode.name()
        );
        fields.error("maximum_links", message);
    } else if most < minimum.into() {
        let message = format!(
            "maximum_links {most}: fewer than minimum_links, {minimum}, so it would never be up; raise it, or lower the \
             other"
        );
        fields.error("maximum_links", message);
    }
    Some(most as u8)
}

fn lacp(fields: &mut Fields<'_, '_>, mode: BondMode) -> LacpSettings {
    let default = LacpSettings::default();
    if mode != BondMode::Lacp && fields.get("lacp").is_some() {
        let message = format!(
            "lacp: the mode is \"{}\"; leave lacp out, or write mode = \"lacp\"",
            mode.name()
        );
        fields.error("lacp", message);
    }
    let Some(mut of) = fields.table("lacp", LACP_KEYS) else { return default };
    let fast = match of.text("rate", "\"fast\" or \"slow\"") {
        None | Some("fast") => true,
        Some("slow") => false,
        Some(other) => {
            of.error("rate", format!("rate \"{other}\" unknown; known: fast, slow"));
            true
        }
    };
    let priority = of.number("priority", 0..=u64::from(u16::MAX));
    LacpSettings {
        fast,
        passive: of.flag("passive"),
        priority: priority.map_or(default.priority, |priority| priority as u16),
    }
}

#[cfg(test)]
mod tests {
    use dataplane::bond::{BONDS, HashFields};
    use dataplane::catalogue::Catalogue;

    use super::super::super::{BondMode, Config, ConfigErrors, Limits, parse};

    const PORTS: &str = "local turnpike = require 'turnpike'
        turnpike.port 'a' { device = 'eth0', mtu = 1500 }
        turnpike.port 'b' { device = 'eth1', mtu = 1500 }
        turnpike.port 'c' { device = 'eth2', mtu = 9000 }
        turnpike.port 'd' { device = 'eth3', address = '10.0.9.1/24' }\n";

    fn read(more: &str) -> Result<Config, ConfigErrors> {
        parse("t.lua".as_ref(), &format!("{PORTS}{more}"), Limits::default(), &Catalogue::default())
    }

    #[test]
    fn a_bond_joins_ports_and_carries_vlans() {
        let config = read(
            "turnpike.vlan 'lag.5.7' { parent = 'lag.5', id = 7 }
             turnpike.vlan 'lag.5' { parent = 'lag', id = 5, address = '10.0.5.1/24' }
             turnpike.bond 'lag' { ports = { 'b', 'a' }, mode = 'lacp', hash = 'l2+l3', minimum_links = 2,
                                   lacp = { rate = 'slow', passive = true, priority = 7 }, host = true,
                                   mac = '02:00:00:00:00:99', address = '10.0.1.1/24' }
             turnpike.bond 'one' { ports = 'c' }
             turnpike.route '192.0.2.0/24' { via = '10.0.5.2' }",
        )
        .unwrap();
        let [lag, one] = &config.bonds[..] else { unreachable!() };
        assert_eq!((lag.id.index(), one.id.index()), (64, 65));
        assert_eq!(lag.ports.iter().map(|port| port.index()).collect::<Vec<_>>(), [1, 0]);
        assert_eq!((lag.mode, lag.hash, lag.minimum_links), (BondMode::Lacp, HashFields::L2L3, 2));
        assert_eq!((lag.lacp.fast, lag.lacp.passive, lag.lacp.priority), (false, true, 7));
        assert_eq!((one.mode, one.hash, one.minimum_links), (BondMode::Lacp, HashFields::L3L4, 1));
        assert!(one.lacp.fast && !one.lacp.passive && one.mac.is_none());
        let of_port = |at: usize| {
            let port = &config.ports[at];
            let features = port.interface.features();
            (port.bond.map(|bond| bond.index()), features.has(BONDS), port.interface.has_vlans)
        };
        assert_eq!(of_port(0), (Some(64), true, true));
        assert_eq!(of_port(2), (Some(65), true, false));
        assert_eq!(of_port(3), (None, false, false));
        let wire = config.vlans_on_wire();
        let of_wire: Vec<_> = wire
            .iter()
            .map(|vlan| (vlan.interface.index(), vlan.lower.index(), vlan.tags.inner.is_some()))
            .collect();
        assert_eq!(of_wire, [(66, 64, true), (67, 64, false)]);
        assert!(config.vlans.iter().all(|vlan| vlan.interface.host.is_some()), "as the bond");
        assert_eq!(config.interface(lag.id).unwrap().addresses.len(), 1);
    }

    #[test]
    fn a_bond_keeps_its_number_beside_vlans() {
        let text = |bonds: &str| format!("{bonds} turnpike.vlan 'd.5' {{ parent = 'd', id = 5 }}");
        let before = read(&text("turnpike.bond 'lag' { ports = { 'a' } }")).unwrap();
        let mut after = read(&text(
            "turnpike.bond 'new' { ports = { 'b' } } turnpike.bond 'lag' { ports = { 'a' } }",
        ))
        .unwrap();
        after.align(&before).unwrap();
        let number = |config: &Config, name: &str| {
            config.virtuals().find(|of| of.name == name).map(|of| of.id.index())
        };
        assert_eq!(["lag", "d.5"].map(|name| number(&before, name)), [Some(64), Some(65)]);
        assert_eq!(
            ["lag", "d.5", "new"].map(|name| number(&after, name)),
            [Some(64), Some(65), Some(66)]
        );
        assert_eq!(after.ports[1].bond.map(|bond| bond.index()), Some(66));
    }

    #[test]
    fn wrong_bonds_are_refused_by_name() {
        for (text, expected) in [
            ("turnpike.bond 'lag' {}", "bond \"lag\": ports missing; write ports"),
            ("turnpike.bond 'lag' { ports = {} }", "bond \"lag\": ports missing"),
            ("turnpike.bond 'lag' { ports = { 'a', 'e' } }", "bond \"lag\": ports: port \"e\" unknown"),
            ("turnpike.bond 'lag' { ports = { 'a', 'a' } }", "ports: \"a\" given twice"),
            (
                "turnpike.bond 'lag' { ports = { 'a', 'b' } }\n turnpike.bond 'other' { ports = { 'b' } }",
                "bond \"other\": ports: port \"b\" belongs to bond \"lag\" on line 6",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a', 'd' } }",
                "bond \"lag\": ports: port \"d\" on line 5 has address of its own",
            ),
            (
                "turnpike.port 'e' { device = 'eth4', host = true } turnpike.bond 'lag' { ports = { 'e' } }",
                "port \"e\" on line 6 has host of its own",
            ),
            (
                "turnpike.filter 'f' { default = 'accept' } turnpike.port 'e' { device = 'eth4', filter = 'f' }
                 turnpike.bond 'lag' { ports = { 'e' } }",
                "has filter of its own",
            ),
            (
                "turnpike.vrf 'v' {} turnpike.port 'e' { device = 'eth4', vrf = 'v' }
                 turnpike.bond 'lag' { ports = { 'e' } }",
                "has vrf of its own",
            ),
            (
                "turnpike.port 'e' { device = 'eth4', reverse_path = 'strict' }
                 turnpike.bond 'lag' { ports = { 'e' } }",
                "has reverse_path of its own",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a', 'b' } } turnpike.vlan 'v' { parent = 'a', id = 5 }",
                "vlan \"v\": parent \"a\" belongs to bond \"lag\"; write parent = \"lag\"",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a', 'c' } }",
                "port \"a\" has mtu 1500, and port \"c\" 9000",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, mtu = 9000 }",
                "bond \"lag\": mtu 9000 is larger than that of port \"a\", 1500",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, mtu = 1400 }
                 turnpike.vlan 'v' { parent = 'lag', id = 5, mtu = 1500 }",
                "vlan \"v\": mtu 1500 is larger than that of \"lag\", 1400",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, mode = '802.3ad' }",
                "mode \"802.3ad\" unknown; known: lacp, static, active-backup",
            ),
            ("turnpike.bond 'lag' { ports = { 'a' }, hash = 'l4' }", "hash \"l4\" unknown; known: l2, l2+l3, l3+l4"),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, minimum_links = 2 }",
                "minimum_links 2: it has 1 ports and would never be up",
            ),
            ("turnpike.bond 'lag' { ports = { 'a' }, minimum_links = 0 }", "minimum_links"),
            (
                "turnpike.bond 'lag' { ports = { 'a', 'b' }, minimum_links = 2, maximum_links = 1 }",
                "maximum_links 1: fewer than minimum_links, 2, so it would never be up",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a', 'b' }, mode = 'static', maximum_links = 1 }",
                "maximum_links: the mode is \"static\"; leave maximum_links out, or write mode = \"lacp\"",
            ),
            ("turnpike.bond 'lag' { ports = { 'a' }, maximum_links = 0 }", "maximum_links"),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, lacp = { rate = 'normal' } }",
                "rate \"normal\" unknown; known: fast, slow",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, mode = 'static', lacp = { passive = true } }",
                "lacp: the mode is \"static\"",
            ),
            ("turnpike.bond 'a' { ports = { 'b' } }", "bond \"a\": the name is taken by the port on line 2"),
            ("turnpike.bond 'lag' { ports = { 'a' }, device = 'eth9' }", "device"),
            (
                "turnpike.bond 'lag' { ports = { 'a' } } turnpike.route '192.0.2.0/24' { via = 'fe80::1', port = 'a' }",
                "port \"a\", which belongs to bond \"lag\"; name \"lag\"",
            ),
            (
                "turnpike.bond 'lag' { ports = { 'a' }, address = '10.0.9.2/24' }",
                "overlaps",
            ),
            (
                "turnpike.filter 'f' { default = 'accept' }
                 turnpike.bond 'lag' { ports = { 'a' }, filter = { inward = 'f', hardware = true } }",
                "bond \"lag\": filter: hardware = true works on ports and VLANs of ports only: name it there",
            ),
        ] {
            let error = read(text).map(|_| ()).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
