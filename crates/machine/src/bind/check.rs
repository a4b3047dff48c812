//! Reasons why a NIC cannot be bound, found without touching it: `turnpike check` reports the
//! errors that `run` and `bind` would.

use super::users::{self, User};
use super::{Binder, record};
use crate::pci::{Member, PciNic, SHARING, UIO, gives_away};

/// A device to be bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The device's address.
    pub address: String,
    /// The driver.
    pub driver: String,
    /// True to bind even if the machine itself needs the device.
    pub force: bool,
    /// True for a router, which gives the device back at its end.
    pub router: bool,
}

impl Binder {
    /// Returns the reasons why devices cannot be bound, with their places in the list. They are
    /// checked together: the members of an IOMMU group may be bound at the same time.
    pub fn obstacles(&self, wishes: &[Wish]) -> Vec<(usize, String)> {
        let obstacle = |(place, wish)| Some((place, self.obstacle(wish, wishes)?));
        wishes.iter().enumerate().filter_map(obstacle).collect()
    }

    fn obstacle(&self, wish: &Wish, all: &[Wish]) -> Option<String> {
        let Some(nic) = self.machine.pci_nic(&wish.address) else {
            return Some(self.not_found(&wish.address));
        };
        let address = &nic.address;
        if let Some(driver) = nic.driver.as_deref().filter(|driver| SHARING.contains(driver)) {
            return Some(format!(
                "{address} is bound to {driver}, beside which DPDK drives it; leave the driver as it is"
            ));
        }
        let users = self.users(&nic);
        in_use(&nic, &users)
            .or_else(|| {
                (nic.driver.as_deref() != Some(&wish.driver)).then(|| {
                    self.of_the_machine(&nic, wish, &users).or_else(|| self.of_driver(&nic, wish))
                })?
            })
            .or_else(|| self.of_group(&nic, &wish.driver, all))
    }

    /// Returns the users of a NIC.
    pub(super) fn users(&self, nic: &PciNic) -> Vec<User> {
        let record = record::seen(&self.machine, &nic.address);
        users::of_nic(&self.machine, &(self.network)(), nic, record.as_ref())
    }

    /// Returns the needs of the machine itself that prevent a binding.
    pub(super) fn of_the_machine(
        &self,
        nic: &PciNic,
        wish: &Wish,
        users: &[User],
    ) -> Option<String> {
        let address = &nic.address;
        let left = record::seen(&self.machine, address).filter(|seen| !seen.found.by_router);
        let driver = nic.driver.as_deref().unwrap_or("no driver");
        if wish.router && left.is_some() && gives_away(driver) {
            return Some(format!(
                "{address} is bound to {driver} by turnpike bind; write driver = \"{driver}\", or: turnpike \
                 unbind {address}"
            ));
        }
        if wish.force || users.is_empty() {
            return None;
        }
        let carried: Vec<_> = users.iter().map(ToString::to_string).collect();
        let mut interfaces: Vec<_> = users.iter().filter_map(User::interface).collect();
        interfaces.dedup();
        let flush: Vec<_> =
            interfaces.iter().map(|name| format!("ip address flush dev {name}; ")).collect();
        Some(format!(
            "{address} carries {}; take that away ({}ip route), or cut it off: turnpike bind {address} --force",
            carried.join(", "),
            flush.concat()
        ))
    }

    fn of_driver(&self, nic: &PciNic, wish: &Wish) -> Option<String> {
        let (address, driver) = (&nic.address, wish.driver.as_str());
        if !self.has_driver(driver) {
            let release = self.machine.release().unwrap_or_default();
            let known = self.machine.drivers_for(address);
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Some(format!(
                "{address}: driver {driver} not found: the kernel {release} has no such module; known: {known}"
            ));
        }
        const UNSAFE: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        let does_without = || self.machine.read(UNSAFE).as_deref() == Some("Y");
        match &nic.group {
            None if driver == "vfio-pci" && !does_without() => Some(format!(
                "{address}: vfio-pci needs an IOMMU, and none is on: start the kernel with intel_iommu=on (AMD: \
                 switch it on in the firmware), or do without its protection: --driver uio_pci_generic, or \
                 modprobe vfio; echo Y > {UNSAFE}"
            )),
            Some(group)
                if UIO.contains(&driver) && group.translates() && !group.others.is_empty() =>
            {
                Some(format!(
                    "{address}: {driver} knows no IOMMU, and this one translates for group {}, in which are {}; \
                     use vfio-pci, or start the kernel with iommu=pt",
                    group.number,
                    names(group.others.iter().map(|other| other.address.as_str()))
                ))
            }
            _ => None,
        }
    }

    /// Checks the IOMMU group, which vfio binds as a whole.
    fn of_group(&self, nic: &PciNic, driver: &str, all: &[Wish]) -> Option<String> {
        let group = nic.group.as_ref().filter(|_| driver == "vfio-pci")?;
        let stays = |address: &str| {
            let wish = all.iter().find(|wish| wish.address == address);
            wish.is_none_or(|wish| wish.driver != "vfio-pci")
        };
        let others = group.others.iter().filter(|other| other.in_the_way && stays(&other.address));
        let others: Vec<_> = others.collect();
        if others.is_empty() {
            return None;
        }
        let described = others.iter().map(|other| {
            format!("{} ({})", other.address, other.driver.as_deref().unwrap_or("no driver"))
        });
        let way = self.way_out_of_group(nic, &others);
        Some(format!(
            "{} is in IOMMU group {} with {}, which the kernel uses, and vfio-pci takes a group as a whole; {way}",
            nic.address,
            group.number,
            names(described)
        ))
    }

    /// Returns the remedy for a NIC whose group has other members in the way.
    fn way_out_of_group(&self, nic: &PciNic, others: &[&Member]) -> String {
        let (bridges, others): (Vec<&Member>, Vec<&Member>) =
            others.iter().partition(|other| other.is_bridge);
        if !others.iter().all(|other| self.machine.pci_nic(&other.address).is_some()) {
            return "put the NIC into another slot".to_owned();
        }
        // The bridge's driver only serves hot plugging behind it.
        let unbind = |bridge: &Member| {
            let driver = bridge.driver.as_deref().unwrap_or_default();
            format!(
                "take the driver from the bridge: echo {} > /sys/bus/pci/drivers/{driver}/unbind",
                bridge.address
            )
        };
        let mut ways: Vec<_> = bridges.into_iter().map(unbind).collect();
        if !others.is_empty() {
            let addresses = others.iter().map(|other| other.address.as_str());
            let all: Vec<_> = std::iter::once(nic.address.as_str()).chain(addresses).collect();
            ways.push(format!("bind them together: turnpike bind {}", all.join(" ")));
        }
        ways.join("; ")
    }

    /// Returns the reason why DPDK cannot use a NIC with its present driver.
    pub fn unusable(&self, address: &str) -> Option<String> {
        let Some(nic) = self.machine.pci_nic(address) else { return Some(self.not_found(address)) };
        let way = format!("bind it: turnpike bind {address}, or write driver = \"vfio-pci\"");
        match nic.driver.as_deref() {
            None => Some(format!("{address} has no driver; {way}")),
            Some(driver) if SHARING.contains(&driver) => None,
            Some(driver) if gives_away(driver) => {
                in_use(&nic, &self.users(&nic)).or_else(|| self.of_group(&nic, driver, &[]))
            }
            Some(driver) => Some(format!(
                "{address} is bound to {driver}, which leaves it to the kernel; {way}"
            )),
        }
    }
}

/// Returns the error if a program uses the NIC.
pub(super) fn in_use(nic: &PciNic, users: &[User]) -> Option<String> {
    let user = users.iter().find(|user| user.is_program())?;
    Some(format!("{} is in use by {user}; stop that first", nic.address))
}

fn names(items: impl Iterator<Item = impl ToString>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
