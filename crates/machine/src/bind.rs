//! Moves NICs between the kernel's drivers and DPDK's.
//!
//! ```text
//!   kernel.rs    settings of /sys that are written, programs that are run     Kernel
//!   record.rs    the state in which devices were found                        Records
//!   users.rs     needs that the machine itself has of a NIC                   User
//!   check.rs     reasons why a NIC cannot be bound                            Wish
//!   give.rs      return of devices: unbind, and the end of a router
//!   remember.rs  rules of udev, which outlive a restart of the machine
//!   ports.rs     the devices of a router's ports                              Bindings
//!   list.rs      the report of `turnpike devices`
//! ```
//!
//! A device gets its driver by three settings of `/sys`: `driver_override` names the only driver
//! that may bind it, `unbind` removes its present driver, `drivers_probe` makes the kernel look for
//! one. The device's state is recorded before the first of them, so that it can always be restored.

mod check;
pub mod give;
pub mod kernel;
pub mod list;
pub mod ports;
mod record;
mod remember;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod users;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};

pub use check::Wish;
use kernel::{Here, Kernel};
use record::{Found, FoundInterface, Record, Records};

use crate::Machine;
use crate::kernel::Module;
use crate::network::Network;
use crate::pci::{DEVICES, GROUPS, PciNic, UIO, gives_away};

/// The default driver of bound devices.
pub const DEFAULT_DRIVER: &str = "vfio-pci";

/// Polls of a device that the kernel is to bind, each after [`kernel::MOMENT`]: one second.
const BOUND_WITHIN: usize = 200;

/// Binds and unbinds devices of a machine.
#[derive(Clone)]
pub struct Binder {
    machine: Machine,
    kernel: Arc<dyn Kernel>,
    network: Arc<dyn Fn() -> Network + Send + Sync>,
}

/// A device bound by `turnpike bind`.
#[derive(Debug, PartialEq, Eq)]
pub struct Bound {
    /// The driver that it had before; `None` if it had none.
    pub before: Option<String>,
    /// Needs of the machine that are no longer met.
    pub carried: Vec<String>,
    /// The udev rule that was written.
    pub rule: Option<PathBuf>,
}

impl Binder {
    /// Creates a binder for the machine that the program runs on.
    pub fn here() -> Self {
        Self { machine: Machine::here(), kernel: Arc::new(Here), network: Arc::new(Network::here) }
    }

    /// Binds devices, all or none; with `remember`, also at each start of the machine.
    ///
    /// # Errors
    /// A reason why one cannot be bound, or the failed step; all are given back then.
    pub fn bind(&self, wishes: &[Wish], remember: bool) -> Result<Vec<Bound>> {
        let records = Records::open(&self.machine)?;
        if let Some((_, problem)) = self.obstacles(wishes).into_iter().next() {
            bail!(problem);
        }
        let mut done: Vec<(Bound, Option<Record>)> = Vec::new();
        for wish in wishes {
            let mut bind = || {
                let nic = self.nic(&wish.address)?;
                let carried = self.users(&nic).iter().map(ToString::to_string).collect();
                let record = self.take(&records, &nic, wish)?;
                done.push((Bound { before: nic.driver.clone(), carried, rule: None }, record));
                let rule = remember.then(|| remember::write(&self.machine, &nic, &wish.driver));
                done.last_mut().context("nothing was bound")?.0.rule = rule.transpose()?;
                Ok(())
            };
            if let Err(error) = bind() {
                for (bound, record) in done {
                    bound.rule.map(std::fs::remove_file);
                    record.map(|record| self.give_back(&records, record));
                }
                return Err(error);
            }
        }
        Ok(done.into_iter().map(|(bound, _)| bound).collect())
    }

    /// Binds a device that can be bound, and returns its earlier state. `None` if it had the driver
    /// already and is not to be given back.
    fn take(&self, records: &Records, nic: &PciNic, wish: &Wish) -> Result<Option<Record>> {
        let (address, driver) = (&nic.address, wish.driver.as_str());
        let left = record::seen(&self.machine, address).map(|seen| seen.found);
        let left = left.filter(|found| found.ids == nic.ids);
        if nic.driver.as_deref() == Some(driver) {
            // It was bound by a router that was killed; this router takes over its duty to give the
            // device back.
            return Ok(match left {
                Some(left) if wish.router && left.by_router => records.adopt(address),
                Some(left) if !wish.router && left.by_router => {
                    Some(records.create(address, Found { by_router: false, ..left })?)
                }
                _ => None,
            });
        }
        self.load(driver)?;
        // The driver may have been changed since the record was written.
        let left = left.filter(|_| nic.driver.as_deref().is_none_or(gives_away));
        let found = match left {
            Some(left) => Found { by_router: wish.router, ..left },
            None => self.found(nic, wish.router),
        };
        let domain = self.domain_for(nic, driver, found.domain.as_deref());
        let before = nic.group.as_ref().and_then(|group| group.kind.clone());
        let found = match &domain {
            Some(_) if found.domain.is_none() => Found { domain: before, ..found },
            _ => found,
        };
        let record = records.create(address, found)?;
        if let Err(error) = self.switch(nic, Some(driver), domain.as_deref()) {
            let back = self.give_back(records, record);
            let error = error.context(format!("{address} cannot be bound to {driver}"));
            return Err(match back {
                Ok(_) => error,
                Err(back) => anyhow!("{error:#}; and it cannot be given back: {back:#}"),
            });
        }
        Ok(Some(record))
    }

    /// Returns the present state of a device.
    fn found(&self, nic: &PciNic, by_router: bool) -> Found {
        let network = (self.network)();
        let interface = nic.interfaces.first().and_then(|name| self.machine.interface(name));
        let interface = interface.map(|interface| FoundInterface {
            up: interface.up,
            mtu: interface.mtu,
            addresses: network.addresses.get(&interface.name).cloned().unwrap_or_default(),
            name: interface.name,
        });
        Found {
            ids: nic.ids.clone(),
            by_router,
            driver: nic.driver.clone(),
            driver_override: nic.driver_override.clone(),
            domain: None,
            interface,
        }
    }

    /// Returns the kind of domain that a device's group needs for a driver; `None` if it stays.
    /// `found` is the kind before anything was bound.
    fn domain_for(&self, nic: &PciNic, driver: &str, found: Option<&str>) -> Option<String> {
        let group = nic.group.as_ref()?;
        let wanted = match UIO.contains(&driver) {
            // A driver that does not program the IOMMU needs a domain that does not translate.
            true => group.translates().then_some("identity"),
            false => found,
        };
        wanted.filter(|wanted| group.kind.as_deref() != Some(wanted)).map(str::to_owned)
    }

    /// Loads a missing driver.
    fn load(&self, driver: &str) -> Result<()> {
        if self.machine.has_pci_driver(driver) {
            return Ok(());
        }
        if let Err(said) = self.kernel.run("modprobe", &[driver]) {
            bail!("driver {driver} is not loaded, and modprobe {driver} fails: {said}");
        }
        if !self.machine.has_pci_driver(driver) {
            bail!("{driver} is loaded and is no driver for PCI devices; name one that is");
        }
        Ok(())
    }

    /// Sets a device's driver, or removes the present one.
    fn switch(&self, nic: &PciNic, driver: Option<&str>, domain: Option<&str>) -> Result<()> {
        let address = nic.address.as_str();
        let base = format!("{DEVICES}/{address}");
        self.set(&format!("{base}/driver_override"), driver.unwrap_or("\n"))?;
        let now = self.machine.pci_driver(address);
        if now.is_some() && now.as_deref() == driver {
            return Ok(());
        }
        if now.is_some() {
            self.set(&format!("{base}/driver/unbind"), address)?;
        }
        if let (Some(kind), Some(group)) = (domain, &nic.group) {
            let path = format!("{GROUPS}/{}/type", group.number);
            let same = self.machine.read(&path).as_deref() == Some(kind);
            let set = if same { Ok(()) } else { self.set(&path, kind) };
            set.with_context(|| {
                format!(
                    "the IOMMU cannot be told to leave group {} alone; start the kernel with iommu=pt, or \
                     use vfio-pci",
                    group.number
                )
            })?;
        }
        if driver.is_none() {
            return Ok(());
        }
        self.probe(address)?;
        if self.machine.pci_driver(address).as_deref() == driver {
            return Ok(());
        }
        bail!("the driver does not take it; dmesg may say why")
    }

    /// Makes the kernel look for a driver, and waits until it has found one.
    fn probe(&self, address: &str) -> Result<()> {
        self.set("/sys/bus/pci/drivers_probe", address)?;
        // The kernel creates the driver's files a moment after it has bound the device.
        for _ in 0..BOUND_WITHIN {
            if self.machine.pci_driver(address).is_some() {
                break;
            }
            self.kernel.wait();
        }
        Ok(())
    }

    fn set(&self, path: &str, text: &str) -> Result<()> {
        let written = self.kernel.write(&self.machine.path(path), text);
        written.with_context(|| format!("writing \"{}\" to {path}", text.trim()))
    }

    /// Returns a NIC by its address.
    fn nic(&self, address: &str) -> Result<PciNic> {
        self.machine.pci_nic(address).ok_or_else(|| anyhow!(self.not_found(address)))
    }

    fn not_found(&self, address: &str) -> String {
        let known = self.machine.nics().into_iter().map(|nic| nic.address).collect::<Vec<_>>();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        match self.machine.read(&format!("{DEVICES}/{address}/class")) {
            Some(class) => format!("PCI device {address} is no NIC (class {class}); NICs: {known}"),
            None => format!("PCI device {address} not found; NICs: {known}"),
        }
    }

    /// Returns true if a driver is available: loaded, or as a module.
    fn has_driver(&self, driver: &str) -> bool {
        self.machine.has_pci_driver(driver) || self.machine.module(driver) != Module::Absent
    }
}
