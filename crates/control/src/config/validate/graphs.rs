//! Checks that graphs can run on this router.

use std::collections::HashMap;

use dataplane::catalogue::Catalogue;
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::plan::Plans;
use dataplane::steps::check_filter_step;
use wire::MacAddr;

use super::super::error::suggestion;
use super::super::script::Graphs;
use super::super::{Bond, Filter, Interface, Port, Vlan};
use super::Context;
use super::routes::any_port;

/// Returns the first of these ports that needs a step of this kind, and whose graph has none.
pub(super) fn lacking<'a>(
    plans: &Plans,
    ports: &'a [Port],
    step: &str,
    needs: impl Fn(&Port) -> bool,
) -> Option<&'a Port> {
    let by_port = |port: &Port| plans.by_port.iter().find(|(ids, _)| ids.contains(&port.id));
    ports.iter().find(|port| {
        let plan = by_port(port).map_or(&plans.main, |(_, plan)| plan);
        needs(port) && !plan.kinds().any(|kind| kind == step)
    })
}

pub(super) fn read(
    context: &mut Context<'_>,
    graphs: Graphs,
    (ports, bonds, vlans): (&[Port], &[Bond], &[Vlan]),
    filters: (&[Filter], &[String]),
) -> Plans {
    let mut plans = Plans { main: graphs.main, by_port: Vec::new() };
    let mut taken = HashMap::new();
    for (names, line, plan) in graphs.by_port {
        let mut ids = Vec::new();
        for name in names {
            match any_port(context, &name) {
                Ok(position) => match context.interface_id(position).and_then(InterfaceId::port) {
                    Some(port) => ids.push(port),
                    None => {
                        let message = format!(
                            "graph: on_port: \"{name}\" is no port; a port's graph is that of its bond and its VLANs as well"
                        );
                        context.errors.add(Some(line), message);
                    }
                },
                Err(reason) => context.errors.add(Some(line), format!("graph: on_port: {reason}")),
            }
            if let Some(first) = taken.insert(name.clone(), line) {
                let message =
                    format!("graph: on_port: port \"{name}\" has a graph of line {first}");
                context.errors.add(Some(line), message);
            }
        }
        plans.by_port.push((ids, plan));
    }
    check_filter_steps(context, &plans, filters);
    check_ports(context, &plans, &graphs.catalogue, ports);
    // Errors found by the script would be reported twice.
    if context.errors.is_empty() {
        let of_vlans = vlans.iter().map(|vlan| &vlan.interface);
        let of_bonds = bonds.iter().map(|bond| &bond.interface);
        let interfaces = ports.iter().map(|port| &port.interface).chain(of_bonds).chain(of_vlans);
        let infos: Vec<_> = interfaces.map(info).collect();
        for error in plans.check(&graphs.catalogue, &infos).err().into_iter().flatten() {
            context.errors.add(error.line, format!("graph: {}", error.message));
        }
    }
    plans
}

/// Refuses steps with filters or categories that do not exist.
fn check_filter_steps(
    context: &mut Context<'_>,
    plans: &Plans,
    (filters, categories): (&[Filter], &[String]),
) {
    let categories_of = |filter: &Filter| {
        let numbers = filter.spec.treatments.iter().filter_map(|of| of.category);
        numbers
            .filter_map(|number| categories.get(usize::from(number)))
            .map(String::as_str)
            .collect()
    };
    let known: Vec<(_, Vec<&str>)> =
        filters.iter().map(|filter| (&filter.spec, categories_of(filter))).collect();
    let all = std::iter::once(&plans.main).chain(plans.by_port.iter().map(|(_, plan)| plan));
    for plan in all {
        let steps = ["ip4-filter", "ip6-filter"].into_iter().flat_map(|kind| plan.steps_of(kind));
        for (name, args, line) in steps {
            if let Err(why) = check_filter_step(args, &known) {
                context.errors.add(line, format!("graph: step \"{name}\": {why}"));
            }
        }
    }
}

/// Refuses arguments that name no port.
fn check_ports(context: &mut Context<'_>, plans: &Plans, catalogue: &Catalogue, ports: &[Port]) {
    let known: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let all = std::iter::once(&plans.main).chain(plans.by_port.iter().map(|(_, plan)| plan));
    for (step, param, port, line) in all.flat_map(|plan| plan.ports_named(catalogue)) {
        if !known.contains(&port) {
            let known = suggestion(port, "ports", &known);
            let message =
                format!("graph: step \"{step}\": {param}: port \"{port}\" unknown{known}");
            context.errors.add(line, message);
        }
    }
}

/// Returns the properties of an interface on which a graph's form depends.
fn info(interface: &Interface) -> InterfaceInfo {
    InterfaceInfo {
        mac: MacAddr::default(),
        mtu: 0,
        vrf: interface.settings.vrf,
        partial_checksums: false,
        loses_tag_protocol: false,
        inserts_tags: false,
        host: interface.host.is_some(),
        features: interface.features(),
    }
}
