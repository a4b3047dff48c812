//! The kernel's rules and a configuration that accelerates interfaces: whether they agree.

use control::config::{Acceleration, Config, Port};
use kernel_rules::{Action, Exceptions, Filters, Inspection, Kind, Options};

/// The kernel's kind of VLAN devices.
pub const VLAN: &str = "vlan";

/// The kernel's kind of bonds.
pub const BOND: &str = "bond";

/// The beginning of a configuration.
const MODULE: &str = "local turnpike = require \"turnpike\"\n";

/// Returns the abilities of accelerated interfaces, for an inspection of the kernel's rules. Those whose XDP programs
/// forward themselves have no filters, and may be bonds; others may take packets of established flows only.
pub fn rules_options(of: &Acceleration) -> Options {
    let exceptions = Exceptions { destinations: true, sources: false };
    let (bypass, filters, flows) = (of.bypass.clone(), !of.in_kernel, of.flows);
    Options { bypass, exceptions, filters, flows, bonds: of.in_kernel, ..Options::default() }
}

/// An interface to be accelerated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its receive queues: packets of a queue that the port does not use stay with the kernel.
    pub queues: usize,
}

/// Returns the configuration that accelerates these interfaces by their XDP programs alone.
pub fn in_kernel_configuration(interfaces: &[String], bypass: &[Kind]) -> String {
    let names: String = interfaces.iter().map(|name| quoted(name) + ", ").collect();
    let kinds = bypass.iter().map(|kind| quoted(kind.name())).collect::<Vec<_>>().join(", ");
    format!("{MODULE}turnpike.accelerate {{ {names}in_kernel = true, bypass = {{ {kinds} }} }}\n")
}

/// Returns the configuration that accelerates these interfaces, or established flows between them alone, and has the
/// filters that the kernel's forward chains are translated into. Chains may decide about the VLAN devices on an interface
/// otherwise than about itself, so these stay with the kernel then.
pub fn configuration(
    interfaces: &[Interface],
    bypass: &[Kind],
    flows: bool,
    filters: &Filters,
) -> String {
    let kinds = bypass.iter().map(|kind| quoted(kind.name())).collect::<Vec<_>>().join(", ");
    let leaves = if filters.places.is_empty() { "" } else { ", vlans = false" };
    let flows = if flows { ", flows = true" } else { "" };
    let settings = format!("filters = \"kernel\", bypass = {{ {kinds} }}{leaves}{flows}");
    if filters.places.is_empty() && interfaces.iter().all(|of| of.queues <= 1) {
        let names: String = interfaces.iter().map(|of| quoted(&of.name) + ", ").collect();
        return format!("{MODULE}turnpike.accelerate {{ {names}{settings} }}\n");
    }
    let port = |Interface { name, queues }: &Interface| {
        let filter = outward(filters, name).map(|filter| format!("outward = {}", quoted(filter)));
        let (name, filter) = (quoted(name), filter.unwrap_or_default());
        format!(
            "turnpike.port {name} {{ device = {name}, accelerate = true, rx_queues = {queues}, tx_queues = {queues}, \
             filter = {{ {filter} }} }}\n"
        )
    };
    let ports: String = interfaces.iter().map(port).collect();
    let module = if filters.lua.contains(MODULE.trim()) { "" } else { MODULE };
    format!("{module}{}\nturnpike.accelerate {{ {settings} }}\n{ports}", filters.lua)
}

/// Returns the filter for packets that leave by this interface.
fn outward<'f>(filters: &'f Filters, interface: &str) -> Option<&'f str> {
    let of = |name: Option<&str>| filters.places.iter().find(|of| of.outward.as_deref() == name);
    of(Some(interface)).or_else(|| of(None)).map(|place| place.filter.as_str())
}

/// Returns a text of Lua; bytes that a name does not have become numbers.
fn quoted(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b' '..=b'~' if byte != b'"' && byte != b'\\' => char::from(byte).to_string(),
        other => format!("\\{other:03}"),
    };
    format!("\"{}\"", name.bytes().map(byte).collect::<String>())
}

/// Returns the reasons against acceleration by this configuration.
pub fn obstacles(inspection: &Inspection, config: &Config) -> Vec<String> {
    let mut all = inspection.obstacles();
    if config.acceleration.in_kernel && inspection.findings.iter().any(is_refused_chain) {
        all.push(
            "with in_kernel the kernel's forward chains are not followed, as filters need forwarders: leave in_kernel out, \
             or say bypass = { \"nftables\", \"iptables\" }"
                .to_owned(),
        );
    }
    let Ok(filters) = kernel_rules::translate(inspection) else { return all };
    let has_vlans = inspection.interfaces.iter().any(|of| of.device == VLAN);
    if has_vlans && config.acceleration.has_kernel_filters && !filters.places.is_empty() {
        all.push(
            "the kernel has forward chains, and VLAN devices on accelerated interfaces, for which they may mean other \
             filters: run turnpike accelerate anew, or write vlans = false"
                .to_owned(),
        );
        return all;
    }
    match config.acceleration.has_kernel_filters {
        true if !has(config, &filters) => all.push(
            "the kernel's forward chains are not the filters of the configuration any more: run turnpike accelerate anew"
                .to_owned(),
        ),
        false if !filters.places.is_empty() => all.push(
            "the kernel has forward chains, which the configuration does not follow: have filters = \"kernel\" and the \
             filters that turnpike doctor accelerate shows, or say bypass = { \"nftables\", \"iptables\" }"
                .to_owned(),
        ),
        _ => {}
    }
    all
}

fn is_refused_chain(rule: &kernel_rules::Finding) -> bool {
    rule.action == Action::Refuse && matches!(rule.kind, Kind::Nftables | Kind::Iptables)
}

/// Returns true if the configuration's filters are these, at these places.
fn has(config: &Config, filters: &Filters) -> bool {
    let is_there = |port: &Port| {
        let own = port.interface.filter_out.as_ref().map(|filter| filter.name.as_str());
        own == outward(filters, &port.name)
    };
    let mut accelerated = config.ports.iter().filter(|port| port.accelerate);
    config.text.contains(filters.lua.trim()) && accelerated.all(is_there)
}

#[cfg(test)]
mod tests {
    use control::config::Limits;
    use kernel_rules::FilterPlace;

    use super::*;

    fn filters() -> Filters {
        let place = |filter: &str, outward: Option<&str>| FilterPlace {
            filter: filter.to_owned(),
            outward: outward.map(str::to_owned),
        };
        Filters {
            lua: "turnpike.filter \"forward\" { default = \"accept\" }\n\
                  turnpike.filter \"forward-eth1\" { default = \"drop\" }\n"
                .to_owned(),
            places: vec![place("forward-eth1", Some("eth1")), place("forward", None)],
            rules: 2,
        }
    }

    fn parse(text: &str) -> Config {
        control::config::parse("t.lua".as_ref(), text, Limits::default(), &Default::default())
            .unwrap()
    }

    #[test]
    fn the_configuration_of_filters_follows_them_and_no_other_does() {
        let of = |name: &str, queues| Interface { name: name.to_owned(), queues };
        let interfaces = [of("eth0", 1), of("eth1", 4)];
        let text = configuration(&interfaces, &[Kind::Tc], false, &filters());
        let config = parse(&text);
        assert!(has(&config, &filters()));
        let queues: Vec<_> = config.ports.iter().map(|port| port.queues.rx_wish()).collect();
        assert_eq!(queues, [Some(1), Some(4)]);
        assert!(config.acceleration.has_kernel_filters);
        assert!(config.acceleration.bypass.contains(&Kind::Tc));
        assert!(!has(&config, &Filters::default()), "the chains have been removed");
        assert!(config.acceleration.leaves_vlans, "for which chains may mean other filters");
        let without = parse(&configuration(&interfaces, &[], true, &Filters::default()));
        assert!(has(&without, &Filters::default()) && !has(&without, &filters()));
        assert!(without.acceleration.flows && !config.acceleration.flows);
        assert!(without.ports.iter().all(|port| port.interface.is_translated));
        let plain = parse(&configuration(&interfaces, &[], false, &Filters::default()));
        assert!(!plain.acceleration.leaves_vlans && !without.acceleration.leaves_vlans);
        let other = Filters { lua: filters().lua.replace("drop", "accept"), ..filters() };
        assert!(!has(&config, &other));
        let misplaced = text.replace("outward = \"forward-eth1\"", "outward = \"forward\"");
        assert!(!has(&parse(&misplaced), &filters()));
    }

    #[test]
    fn names_are_text_of_lua_whatever_they_are() {
        let names = ["a\"b\\", "é"].map(|name| Interface { name: name.to_owned(), queues: 1 });
        let text = configuration(&names, &[], false, &Filters::default());
        assert!(text.contains("{ \"a\\034b\\092\", \"\\195\\169\", filters"), "{text}");
    }
}
