//! `turnpike.loopback "NAME" { … }`, and `unnumbered = "NAME"` of other interfaces.

use std::net::IpAddr;

use dataplane::features::Feature;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::words::suggestion;
use ipnet::IpNet;
use slowpath::InterfaceSettings;

use super::super::network::Connected;
use super::super::script::Statement;
use super::super::value::Fields;
use super::super::{Bond, HostInterface, Interface, LOOPBACK, Loopback, Port, Vlan};
use super::ports::{addresses, check_name, enter};
use super::{Context, host, vrfs};

const KNOWN: [&str; 3] = ["address", "vrf", "host"];

/// The kernel's name for the loopback of each network namespace.
const KERNEL_LOOPBACK: &str = "lo";

/// The other interfaces, and whether there are other sources of routes.
type Others<'a> = (&'a [Port], &'a [Bond], &'a [Vlan], bool);

pub(super) fn read<'s>(
    context: &mut Context<'_>,
    statements: impl Iterator<Item = &'s Statement>,
    others: Others<'_>,
    features: &[Feature],
) -> Vec<Loopback> {
    let features: Vec<_> = features.iter().copied().filter(|of| of.is_setting()).collect();
    let inherited = host_of_others(others);
    context.first_loopback = context.port_names.len();
    let mut loopbacks = Vec::new();
    for statement in statements {
        check_name(context, what(&statement.name), statement);
        let position = context.port_names.len();
        context.port_names.push((statement.name.clone(), statement.line));
        let (class_e, vrfs) = (context.class_e, context.vrfs.clone());
        let id = context.interface_id(position);
        let mut fields = context.fields(what(&statement.name), statement, &KNOWN);
        if id.is_none() {
            fields.error("", "the router has no number left for it; remove VLANs or loopbacks");
        }
        let host = host_interface(&mut fields, inherited.clone());
        if statement.name == KERNEL_LOOPBACK && host.is_some() {
            fields.error(
                "",
                "the kernel's own loopback has this name in every network namespace; name it lo0, for example, or write \
                 host = false",
            );
        }
        let vrf = vrfs::named(&mut fields, "vrf", &vrfs).unwrap_or(VrfId::DEFAULT);
        let interface = Interface {
            settings: InterfaceSettings { vrf, ..InterfaceSettings::default() },
            addresses: addresses(&mut fields, class_e),
            unnumbered: None,
            features: features.iter().map(|&feature| (feature, 0)).collect(),
            filter_in: None,
            filter_out: None,
            has_vlans: false,
            is_mirrored: false,
            is_sampled: false,
            is_translated: false,
            is_bonded: false,
            host: host.map(|host| host::place_in_vrf(&mut fields, host, vrf, &vrfs)),
            ttl_security: None,
            queue: None,
            shape: None,
        };
        let address_line = fields.line_of("address");
        enter(context, position, &interface, address_line);
        context.any_host |= interface.host.is_some();
        loopbacks.push(Loopback {
            id: id.unwrap_or(InterfaceId::FIRST),
            line: statement.line,
            name: statement.name.clone(),
            interface,
        });
    }
    loopbacks
}

fn what(name: &str) -> String {
    format!("{LOOPBACK} \"{name}\"")
}

/// Returns the host interface that loopbacks have unless configured otherwise: beside those of other interfaces, which
/// are all in one namespace.
fn host_of_others((ports, bonds, vlans, routes_from): Others<'_>) -> Option<HostInterface> {
    let ports = ports.iter().map(|port| &port.interface);
    let bonds = bonds.iter().map(|bond| &bond.interface);
    let all = ports.chain(bonds).chain(vlans.iter().map(|vlan| &vlan.interface));
    let hosts: Vec<_> = all.filter_map(|interface| interface.host.as_ref()).collect();
    let first = hosts.iter().find(|host| !host.of_vrf);
    let netns = first.and_then(|host| host.netns.clone());
    (routes_from || !hosts.is_empty()).then(|| HostInterface { netns, ..HostInterface::default() })
}

fn host_interface(
    fields: &mut Fields<'_, '_>,
    inherited: Option<HostInterface>,
) -> Option<HostInterface> {
    let mut host = host::read_upper(fields, inherited);
    if let Some(host) = host.as_mut().filter(|host| host.finds_vlans) {
        fields
            .error("host", "host: vlans: a loopback has no frames, and so no VLANs; leave it out");
        host.finds_vlans = false;
    }
    host
}

/// An interface that may be unnumbered: its statement, name, line and settings.
type Borrower<'a> = (&'static str, &'a str, usize, &'a mut Interface);

/// Gives unnumbered interfaces the IPv4 address of their loopback.
pub(super) fn lend(
    context: &mut Context<'_>,
    loopbacks: &[Loopback],
    (ports, bonds, vlans): (&mut [Port], &mut [Bond], &mut [Vlan]),
) {
    let ports = ports.iter_mut().map(|of| ("port", &*of.name, of.line, &mut of.interface));
    let bonds = bonds.iter_mut().map(|of| ("bond", &*of.name, of.line, &mut of.interface));
    let vlans = vlans.iter_mut().map(|of| ("vlan", &*of.name, of.line, &mut of.interface));
    for borrower in ports.chain(bonds).chain(vlans) {
        let (kind, name, line, _) = borrower;
        if let Err(problem) = lend_to(context, loopbacks, borrower) {
            let message = format!("{kind} \"{name}\": unnumbered: {problem}");
            context.errors.add(Some(line), message);
        }
    }
}

fn lend_to(
    context: &mut Context<'_>,
    loopbacks: &[Loopback],
    (_, name, line, interface): Borrower<'_>,
) -> Result<(), String> {
    let Some(wanted) = &interface.unnumbered else { return Ok(()) };
    let Some(lender) = loopbacks.iter().find(|loopback| loopback.name == *wanted) else {
        let names: Vec<&str> = loopbacks.iter().map(|loopback| &*loopback.name).collect();
        let known = suggestion(wanted, "loopbacks", &names);
        return Err(format!("loopback \"{wanted}\" unknown{known}"));
    };
    if lender.interface.settings.vrf != interface.settings.vrf {
        return Err(format!(
            "loopback \"{wanted}\" is in another VRF, so its address is not the router's here; name one of this VRF"
        ));
    }
    if let Some(own) = interface.addresses.iter().find(|net| net.addr().is_ipv4()) {
        return Err(format!("it has the IPv4 address {own} of its own; remove one of the two"));
    }
    if interface.host.as_ref().is_some_and(|host| host.in_kernel) {
        return Err(format!(
            "the addresses are those of the kernel's VLAN device; leave it out, and use ip address add … dev {name}"
        ));
    }
    let lent = lender.interface.addresses.iter().map(IpNet::addr).find(IpAddr::is_ipv4);
    let net = lent
        .map(IpNet::from)
        .ok_or_else(|| format!("loopback \"{wanted}\" has no IPv4 address to lend; give it one"))?;
    interface.addresses.push(net);
    let place = context.port_names.iter().position(|(known, _)| known == name);
    if let Some(port) = place {
        let vrf = interface.settings.vrf;
        context.networks.add(Connected { port, vrf, line, net });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dataplane::catalogue::Catalogue;

    use super::super::super::{Config, ConfigErrors, Limits, parse};

    const PORTS: &str = "local turnpike = require 'turnpike'
        turnpike.vrf 'blue' {}
        turnpike.port 'wan' { device = 'eth0', address = '10.0.1.1/24' }
        turnpike.vlan 'wan.5' { parent = 'wan', id = 5, vrf = 'blue', address = '10.0.1.1/24' }\n";

    fn read(more: &str) -> Result<Config, ConfigErrors> {
        parse("t.lua".as_ref(), &format!("{PORTS}{more}"), Limits::default(), &Catalogue::default())
    }

    #[test]
    fn loopbacks_are_interfaces_of_any_vrf_numbered_after_the_others() {
        let config = read(
            "turnpike.loopback 'lo0' { address = { '192.0.2.255/32', '2001:db8::1/128' } }
             turnpike.loopback 'lo1' { address = '192.0.2.255/32', vrf = 'blue' }
             turnpike.loopback 'any' { address = '198.51.100.1/24', vrf = 'blue' }",
        )
        .unwrap();
        let all: Vec<_> = config
            .loopbacks
            .iter()
            .map(|of| (of.id.index(), &*of.name, of.interface.settings.vrf.index()))
            .collect();
        assert_eq!(all, [(65, "lo0", 0), (66, "lo1", 1), (67, "any", 1)]);
        assert!(config.loopbacks.iter().all(|of| of.interface.host.is_none()));
        assert_eq!(config.interface(config.loopbacks[0].id).unwrap().addresses.len(), 2);
        assert_eq!(config.virtual_interface(config.loopbacks[2].id).unwrap().kind, "loopback");
    }

    #[test]
    fn their_host_interfaces_are_beside_those_of_ports() {
        let hosts = |more: &str| -> Vec<_> {
            let config = read(more).unwrap();
            let hosts = config.loopbacks.iter().map(|of| of.interface.host.clone());
            hosts.map(|host| host.map(|host| (host.netns, host.of_vrf))).collect()
        };
        let port = "turnpike.port 'lan' { device = 'eth1', host = { netns = 'router', vlans = 'kernel' } }\n";
        let text = format!(
            "{port} turnpike.loopback 'lo0' {{}} turnpike.loopback 'lo1' {{ host = false }}"
        );
        assert_eq!(hosts(&text), [Some((Some("router".to_owned()), false)), None]);
        assert_eq!(hosts("turnpike.loopback 'lo0' { host = true }"), [Some((None, false))]);
        let vrf = "turnpike.vrf 'red' { namespace = 'red' } turnpike.loopback 'lo0' { host = true, vrf = 'red' }";
        assert_eq!(hosts(vrf), [Some((Some("red".to_owned()), true))]);
    }

    #[test]
    fn unnumbered_interfaces_have_the_first_ipv4_address_of_their_loopback() {
        let config = read(
            "turnpike.loopback 'lo0' { address = { '2001:db8::1/128', '192.0.2.254/31', '192.0.2.1/32' } }
             turnpike.port 'p' { device = 'eth5', unnumbered = 'lo0', address = 'fd00::1/64' }
             turnpike.route '192.0.2.9' { via = '192.0.2.9', port = 'p' }",
        )
        .unwrap();
        let of = &config.ports[1].interface;
        let addresses: Vec<_> = of.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["fd00::1/64", "192.0.2.254/32"]);
        assert_eq!(of.unnumbered.as_deref(), Some("lo0"));
    }

    #[test]
    fn wrong_loopbacks_are_refused_by_name() {
        let lo0 = "turnpike.loopback 'lo0' { address = '198.51.100.1/24' }";
        for (text, expected) in [
            (
                "turnpike.loopback 'wan' {}",
                "loopback \"wan\": the name is taken by the port on line 3",
            ),
            (
                "turnpike.loopback 'lo' { host = true }",
                "loopback \"lo\": the kernel's own loopback has this name in every network namespace; name it lo0",
            ),
            (
                "turnpike.loopback 'lo0' { mtu = 1500 }",
                "loopback \"lo0\": key \"mtu\" unknown; known: address, vrf, host",
            ),
            ("turnpike.loopback 'lo0' { device = 'eth9' }", "key \"device\" unknown"),
            (
                "turnpike.loopback 'lo0' { host = { vlans = 'kernel' } }",
                "host: vlans: a loopback has no frames",
            ),
            (
                "turnpike.loopback 'lo0' { address = '10.0.1.1/32' }",
                "loopback \"lo0\": address \"10.0.1.1/32\" overlaps \"10.0.1.1/24\" of port \"wan\" on line 3",
            ),
            ("turnpike.loopback 'lo0' { address = '10.0.0.0/8' }", "the network's own address"),
            (
                "turnpike.loopback 'lo0' { address = '10.0.0.1/8' }",
                "address \"10.0.0.1/8\" overlaps \"10.0.1.1/24\" of port \"wan\"",
            ),
            (
                "turnpike.loopback 'a' { address = '192.0.2.1/32' } turnpike.loopback 'b' { address = '192.0.2.1/32' }",
                "loopback \"b\": address \"192.0.2.1/32\" overlaps \"192.0.2.1/32\" of loopback \"a\" on line 5",
            ),
            ("turnpike.loopback 'lo0' { vrf = 'bleu' }", "vrf \"bleu\" unknown"),
            ("turnpike.vlan 'v' { parent = 'lo0', id = 5 }", "parent \"lo0\" unknown"),
            ("turnpike.bond 'b' { ports = { 'lo0' } }", "port \"lo0\" unknown"),
            (
                "turnpike.route '10.9.0.0/16' { port = 'lo0' }",
                "names loopback \"lo0\", which has no link",
            ),
            (
                "turnpike.route '10.9.0.0/16' { via = '198.51.100.7' }",
                "is on the network of loopback \"lo0\", where there are no hosts",
            ),
            (
                "turnpike.neighbour '198.51.100.7' { port = 'lo0', mac = '02:00:00:00:00:01' }",
                "names loopback \"lo0\"",
            ),
            (
                "turnpike.multicast '239.1.1.1' { from = 'wan', to = 'lo0' }",
                "names loopback \"lo0\"",
            ),
            ("turnpike.mirror 'm' { from = 'lo0', to = 'wan' }", "lo0"),
            (
                "turnpike.port 'p' { device = 'eth5', unnumbered = 'lo1' }",
                "port \"p\": unnumbered: loopback \"lo1\" unknown",
            ),
            (
                "turnpike.port 'p' { device = 'eth5', unnumbered = 'lo0', vrf = 'blue' }",
                "loopback \"lo0\" is in another VRF",
            ),
            (
                "turnpike.port 'p' { device = 'eth5', unnumbered = 'lo0', address = '10.7.0.1/24' }",
                "it has the IPv4 address 10.7.0.1/24 of its own",
            ),
            (
                "turnpike.loopback 'six' { address = '2001:db8::1/128' }
                 turnpike.port 'p' { device = 'eth5', unnumbered = 'six' }",
                "loopback \"six\" has no IPv4 address to lend",
            ),
            (
                "turnpike.port 'p' { device = 'eth5', host = true }
                 turnpike.vlan 'p.7' { parent = 'p', id = 7, host = 'kernel', unnumbered = 'lo0' }",
                "the addresses are those of the kernel's VLAN device",
            ),
        ] {
            let own = if text.contains("turnpike.loopback 'lo0'") { "" } else { lo0 };
            let error = read(&format!("{text} {own}")).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
