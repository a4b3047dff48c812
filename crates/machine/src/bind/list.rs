//! `turnpike devices`: NICs and other kernel interfaces, their drivers and users.

use serde::Serialize;

use super::users::{self, User};
use super::{Binder, record, remember};
use crate::network::{Interface, Network};
use crate::pci::{PciNic, gives_away};

/// All devices that can be ports.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Devices {
    /// NICs on the PCI bus.
    pub nics: Vec<Nic>,
    /// Kernel interfaces that are not PCI NICs.
    pub interfaces: Vec<NetInterface>,
}

/// A NIC on the PCI bus.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Nic {
    /// Its address.
    pub pci: String,
    /// Vendor and device.
    pub model: String,
    /// The same as numbers: `8086:10d3`.
    pub ids: String,
    /// Its present driver.
    pub driver: Option<String>,
    /// Drivers that it can be bound to.
    pub drivers: Vec<String>,
    /// The kernel's driver that it had before it was bound.
    pub driver_before: Option<String>,
    /// True if it is bound at each start of the machine.
    pub remembered: bool,
    /// Its NUMA node.
    pub numa_node: Option<usize>,
    /// Its IOMMU group.
    pub iommu_group: Option<usize>,
    /// Other devices of the group.
    pub group_others: Vec<Other>,
    /// Its kernel interfaces.
    pub interfaces: Vec<NetInterface>,
    /// Programs that use it, and needs of the machine itself.
    pub used_by: Vec<String>,
    /// One word: `program`, `kernel` with addresses or routes, `idle` with the kernel, `free`.
    pub state: &'static str,
}

/// Another device of a NIC's IOMMU group.
#[derive(Clone, Debug, Serialize)]
pub struct Other {
    /// Its address.
    pub pci: String,
    /// Its driver.
    pub driver: Option<String>,
    /// True if the group cannot be bound to vfio-pci while the device has this driver.
    pub in_the_way: bool,
}

/// A kernel interface.
#[derive(Clone, Debug, Serialize)]
pub struct NetInterface {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: Option<String>,
    /// `up`, `down`, or `no carrier` for one that is up without a link.
    pub link: &'static str,
    /// Megabits per second.
    pub speed_mbps: Option<u32>,
    /// Users, like those of a NIC; empty for an interface of a NIC.
    pub used_by: Vec<String>,
}

impl Binder {
    /// Returns all devices that can be ports.
    pub fn devices(&self) -> Devices {
        let network = (self.network)();
        let nics = self.machine.nics();
        let own = |name: &String| nics.iter().any(|nic| nic.interfaces.contains(name));
        let others = self.machine.interfaces().into_iter().filter(|name| !own(name));
        let interfaces = others.filter_map(|name| {
            let users = users::of_interface(&self.machine, &network, &name);
            let interface = NetInterface::of(self.machine.interface(&name)?);
            Some(NetInterface { used_by: texts(&users), ..interface })
        });
        let interfaces = interfaces.collect();
        Devices {
            nics: nics.into_iter().map(|nic| self.device(&network, nic)).collect(),
            interfaces,
        }
    }

    fn device(&self, network: &Network, nic: PciNic) -> Nic {
        let machine = &self.machine;
        let seen = record::seen(machine, &nic.address).filter(|seen| seen.found.ids == nic.ids);
        let users = users::of_nic(machine, network, &nic, seen.as_ref());
        let bound = nic.driver.as_deref().is_some_and(gives_away);
        let interfaces = nic.interfaces.iter().filter_map(|name| machine.interface(name));
        Nic {
            drivers: machine.drivers_for(&nic.address),
            driver_before: seen.filter(|_| bound).and_then(|seen| seen.found.driver),
            remembered: remember::has(machine, &nic.address),
            numa_node: nic.node,
            iommu_group: nic.group.as_ref().map(|group| group.number),
            interfaces: interfaces.map(NetInterface::of).collect(),
            used_by: texts(&users),
            state: match &nic.driver {
                _ if users.iter().any(User::is_program) => "program",
                Some(_) if !bound && !users.is_empty() => "kernel",
                Some(_) if !bound => "idle",
                _ => "free",
            },
            group_others: nic
                .group
                .into_iter()
                .flat_map(|group| group.others)
                .map(Other::of)
                .collect(),
            pci: nic.address,
            model: nic.model,
            ids: nic.ids,
            driver: nic.driver,
        }
    }
}

impl Other {
    fn of(member: crate::pci::Member) -> Self {
        let crate::pci::Member { address, driver, in_the_way, is_bridge: _ } = member;
        Self { pci: address, driver, in_the_way }
    }
}

impl NetInterface {
    fn of(interface: Interface) -> Self {
        let link = match (interface.up, interface.carrier) {
            (false, _) => "down",
            (true, Some(false)) => "no carrier",
            (true, _) => "up",
        };
        let Interface { name, mac, speed_mbps, .. } = interface;
        Self { name, mac, link, speed_mbps, used_by: Vec::new() }
    }
}

fn texts(users: &[User]) -> Vec<String> {
    users.iter().map(ToString::to_string).collect()
}
