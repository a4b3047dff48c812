//! Bonds of the kernel that are accelerated by programs that forward themselves.
//!
//! A bond's program runs in the drivers of its ports, and is told by which of them the bond receives (`dpdk::BondPort`).
//! They are asked of the kernel at each look, since no message tells all changes of their state.

use std::collections::BTreeMap;

use api::report::AcceleratedBondPort;
use control::netlink::inventory::{self, Described};
use dataplane::port::PortId;
use dpdk::{BondPort, Errno};

use super::super::ports::OpenPort;
use super::Owner;

/// The ports of the accelerated bonds, by bond.
pub(super) type Bonds = BTreeMap<PortId, Vec<PortNow>>;

/// A port of a bond.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortNow {
    name: String,
    /// The reason why its frames stay with the kernel.
    reason: Option<String>,
}

impl PortNow {
    /// Returns the report about it.
    pub(super) fn report(&self) -> AcceleratedBondPort {
        let reason = self.reason.clone();
        AcceleratedBondPort { name: self.name.clone(), accelerated: reason.is_none(), reason }
    }
}

fn as_bond_port(of: Described) -> BondPort {
    BondPort { receives: of.is_up && !of.is_spare, index: of.index, name: of.name }
}

/// Has a bond's program look at the frames of the ports by which the bond receives.
fn follow(bond: &OpenPort) -> Result<Vec<PortNow>, String> {
    let index = bond.interface().unwrap_or_default();
    let ports = inventory::belonging_to(index).map_err(|error| error.to_string())?;
    let ports: Vec<BondPort> = ports.into_iter().map(as_bond_port).collect();
    let refused = bond.port.follow_bond(&ports).map_err(|errno: Errno| errno.to_string())?;
    let now = |port: BondPort| {
        let spare = (!port.receives).then(|| "the bond does not receive by it".to_owned());
        PortNow { reason: spare.or_else(|| refused.get(&port.index).cloned()), name: port.name }
    };
    Ok(ports.into_iter().map(now).collect())
}

impl Owner {
    /// Follows the ports of accelerated bonds.
    pub(super) fn follow_bonds(&mut self) {
        let mut bonds = Bonds::new();
        for open in self.devices.ports.iter().filter(|open| open.port.is_bond()) {
            let before = self.accelerated.bonds.get(&open.id);
            match follow(open) {
                Ok(ports) => {
                    say_changes(&open.name, before, &ports);
                    bonds.insert(open.id, ports);
                }
                Err(why) => {
                    tracing::error!("port \"{}\": the ports of the bond: {why}", open.name);
                    bonds.extend(before.map(|ports| (open.id, ports.clone())));
                }
            }
        }
        self.accelerated.bonds = bonds;
    }

    /// Returns the names of the ports of accelerated bonds.
    pub(super) fn accelerated_bond_ports(&self) -> impl Iterator<Item = String> {
        self.accelerated.bonds.values().flatten().map(|port| port.name.clone())
    }
}

/// Logs the ports of a bond whose treatment has changed.
fn say_changes(bond: &str, before: Option<&Vec<PortNow>>, now: &[PortNow]) {
    for port in now.iter().filter(|port| !before.is_some_and(|before| before.contains(port))) {
        match &port.reason {
            None => tracing::info!("port \"{bond}\": frames of {} are accelerated", port.name),
            Some(why) => {
                tracing::info!(
                    "port \"{bond}\": frames of {} stay with the kernel: {why}",
                    port.name
                );
            }
        }
    }
}
