//! Return of devices: they get their earlier drivers, and their interfaces the earlier settings.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::check::in_use;
use super::record::{FoundInterface, Record, Records};
use super::{Binder, remember};
use crate::pci::{DEVICES, PciNic, gives_away};

/// Polls of a device whose interface is to appear: three seconds.
const APPEARS_WITHIN: usize = 600;

/// Polls of an interface that udev may rename: one second.
const RENAMED_WITHIN: usize = 200;

/// This file exists while udev runs.
const UDEV: &str = "/run/udev/control";

/// Link target of this process's open vfio devices.
const VFIO_DEVICE: &str = "anon_inode:[vfio-device]";

/// A device given back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// Its present driver.
    pub driver: Option<String>,
    /// True if nothing had to be done: the kernel had it already.
    pub unchanged: bool,
    /// The udev rule that was removed.
    pub rule: Option<PathBuf>,
    /// Parts of its former state that are lost.
    pub lost: Vec<String>,
}

impl Binder {
    /// Gives a device back to the kernel: to its earlier driver, or else to one that the kernel
    /// selects.
    ///
    /// # Errors
    /// A program uses the device, a step failed, or no driver of the kernel accepts it.
    pub fn unbind(&self, address: &str) -> Result<Returned> {
        let nic = self.nic(address)?;
        if let Some(problem) = in_use(&nic, &self.users(&nic)) {
            bail!(problem);
        }
        let records = Records::open(&self.machine)?;
        let rule = remember::remove(&self.machine, address)?;
        let record = records.adopt(address);
        if nic.driver.as_deref().is_some_and(|driver| !gives_away(driver)) {
            record.into_iter().for_each(|record| record.remove(&records));
            return Ok(Returned {
                driver: nic.driver,
                unchanged: true,
                rule,
                ..Returned::default()
            });
        }
        let (records, mut returned) = match record {
            Some(record) if of_kernel(&record, &nic) => {
                let lost = self.give_back(&records, record)?;
                (records, Returned { lost, ..Returned::default() })
            }
            other => {
                let domain = other.as_ref().and_then(|record| record.found.domain.clone());
                self.let_choose(&nic, domain.as_deref())?;
                other.into_iter().for_each(|record| record.remove(&records));
                (records, Returned::default())
            }
        };
        drop(records);
        returned.driver = self.machine.pci_driver(address);
        Ok(Returned { rule, ..returned })
    }

    /// Lets the kernel select the driver of a device.
    fn let_choose(&self, nic: &PciNic, domain: Option<&str>) -> Result<()> {
        let address = nic.address.as_str();
        self.switch(nic, None, domain)?;
        // The kernel's modules are loaded by udev, which may not be running.
        let drivers = self.machine.drivers_for(address);
        let drivers: Vec<_> = drivers.into_iter().filter(|driver| !gives_away(driver)).collect();
        let loaded: Vec<Result<()>> = drivers.iter().map(|driver| self.load(driver)).collect();
        self.probe(address)?;
        if self.machine.pci_driver(address).is_some() {
            return Ok(());
        }
        let failed = loaded.into_iter().filter_map(Result::err).map(|error| format!("; {error:#}"));
        bail!(
            "{address} has no driver now: none of the kernel takes it{}; name one: turnpike bind {address} \
             --driver NAME",
            failed.collect::<String>()
        )
    }

    /// Gives a device back in its recorded state; returns the parts of that state that are lost.
    /// The record stays if this fails.
    ///
    /// # Errors
    /// The failed step.
    pub(super) fn give_back(&self, records: &Records, record: Record) -> Result<Vec<String>> {
        let (address, found) = (&record.address, &record.found);
        let nic = self.machine.pci_nic(address).filter(|nic| nic.ids == found.ids);
        let Some(nic) = nic else {
            // Unplugged: nothing can be given back.
            record.remove(records);
            return Ok(Vec::new());
        };
        let back = || {
            let driver = found.driver.as_deref();
            driver.map(|driver| self.load(driver)).transpose()?;
            self.switch(&nic, driver, found.domain.as_deref())?;
            let override_was = found.driver_override.as_deref().unwrap_or("\n");
            self.set(&format!("{DEVICES}/{address}/driver_override"), override_was)
        };
        let to = found.driver.as_deref().unwrap_or("none");
        back().with_context(|| format!("{address}: giving it back to its driver ({to})"))?;
        let lost = found.interface.as_ref().map(|found| self.restore(address, found));
        record.remove(records);
        Ok(lost.unwrap_or_default())
    }

    /// Restores the name, the MTU, the state and the addresses of an interface.
    fn restore(&self, address: &str, found: &FoundInterface) -> Vec<String> {
        let Some(name) = self.appears(address, &found.name) else {
            return vec![format!("interface {} has not appeared again", found.name)];
        };
        let mut lost = Vec::new();
        let mut ip = |what: &str, arguments: &[&str]| match self.kernel.run("ip", arguments) {
            Ok(()) => true,
            Err(said) => {
                lost.push(format!("{what}: ip {}: {said}", arguments.join(" ")));
                false
            }
        };
        let mut name = name.as_str();
        if name != found.name {
            // An interface must be down to be renamed.
            let down = ip("its name", &["link", "set", "dev", name, "down"]);
            if down && ip("its name", &["link", "set", "dev", name, "name", &found.name]) {
                name = &found.name;
            }
        }
        let now = self.machine.interface(name).unwrap_or_default();
        if let Some(mtu) = found.mtu.filter(|_| now.mtu != found.mtu) {
            ip("its MTU", &["link", "set", "dev", name, "mtu", &mtu.to_string()]);
        }
        if found.up {
            ip("its state", &["link", "set", "dev", name, "up"]);
        }
        for address in &found.addresses {
            ip("an address", &["address", "replace", &address.to_string(), "dev", name]);
        }
        lost
    }

    /// Returns the name of a device's interface after it has appeared, and udev has had time to
    /// rename it.
    fn appears(&self, address: &str, wanted: &str) -> Option<String> {
        let names = || self.machine.pci_nic(address).map(|nic| nic.interfaces).unwrap_or_default();
        let mut left = APPEARS_WITHIN;
        let mut name = loop {
            match (names().into_iter().next(), left) {
                (Some(name), _) => break name,
                (None, 0) => return None,
                (None, _) => left -= 1,
            }
            self.kernel.wait();
        };
        let mut left = if self.machine.has(UDEV) { RENAMED_WITHIN } else { 0 };
        while name != wanted && left > 0 {
            left -= 1;
            self.kernel.wait();
            name = names().into_iter().next().unwrap_or(name);
        }
        Some(name)
    }

    /// Returns true if this process has a vfio device open, which it must not unbind: the kernel
    /// would wait for the device to be closed, and the process for the kernel.
    pub(super) fn has_vfio_device(&self) -> bool {
        let descriptors = self.machine.names("/proc/self/fd");
        descriptors.iter().any(|number| {
            self.machine.target(&format!("/proc/self/fd/{number}")).as_deref() == Some(VFIO_DEVICE)
        })
    }
}

/// Returns true if the record contains a driver of the kernel.
fn of_kernel(record: &Record, nic: &PciNic) -> bool {
    let driver = record.found.driver.as_deref();
    record.found.ids == nic.ids && driver.is_some_and(|driver| !gives_away(driver))
}
