//! Bindings that survive a restart of the machine: a udev rule for each device.
//!
//! udev processes each device when the machine starts, with the rule files in order of their names,
//! before it loads drivers (`80-drivers.rules`). The rule identifies the device by its slot and its
//! numbers, so that another device in the slot keeps its driver. A driver that bound the device
//! earlier, in the initial RAM disk, is unbound.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::Machine;
use crate::pci::{DEVICES, PciNic, UIO};

fn file(machine: &Machine, address: &str) -> PathBuf {
    machine.path(&format!("/etc/udev/rules.d/05-turnpike-{address}.rules"))
}

/// Writes a device's rule; returns its file.
///
/// # Errors
/// It cannot be written.
pub fn write(machine: &Machine, nic: &PciNic, driver: &str) -> Result<PathBuf> {
    let path = file(machine, &nic.address);
    let shown = path.display();
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    }
    fs::write(&path, rule(nic, driver)).with_context(|| format!("writing {shown}"))?;
    Ok(path)
}

/// Removes a device's rule; returns its file if there was one.
///
/// # Errors
/// It cannot be removed.
pub fn remove(machine: &Machine, address: &str) -> Result<Option<PathBuf>> {
    let path = file(machine, address);
    match fs::remove_file(&path) {
        Ok(()) => Ok(Some(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

/// Returns true if a device has a rule.
pub fn has(machine: &Machine, address: &str) -> bool {
    file(machine, address).exists()
}

fn rule(nic: &PciNic, driver: &str) -> String {
    let PciNic { address, ids, .. } = nic;
    let (vendor, device) = ids.split_once(':').unwrap_or_default();
    let base = format!("{DEVICES}/{address}");
    let which = format!(
        "ACTION==\"add\", SUBSYSTEM==\"pci\", KERNEL==\"{address}\", ATTR{{vendor}}==\"0x{vendor}\", \
         ATTR{{device}}==\"0x{device}\""
    );
    // A driver that does not program the IOMMU needs a domain that does not translate.
    let domain = match UIO.contains(&driver) {
        true => format!("; echo identity > {base}/iommu_group/type"),
        false => String::new(),
    };
    let bind = format!(
        "/sbin/modprobe {driver}; [ -e {base}/driver ] && echo {address} > {base}/driver/unbind{domain}; \
         echo {address} > /sys/bus/pci/drivers_probe"
    );
    format!(
        "# Written by: turnpike bind {address} --driver {driver} --remember\n\
         # Removed by: turnpike unbind {address}\n\
         {which}, ATTR{{driver_override}}=\"{driver}\"\n\
         {which}, DRIVER!=\"{driver}\", RUN+=\"/bin/sh -c '{bind}'\"\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_rule_names_slot_card_and_driver_and_goes() {
        let tree = Tree::new(&[]);
        let machine = tree.machine();
        let nic =
            PciNic { address: "0000:03:00.0".into(), ids: "8086:10d3".into(), ..PciNic::default() };
        assert!(!has(&machine, "0000:03:00.0"));
        let path = write(&machine, &nic, "vfio-pci").unwrap();
        assert!(path.ends_with("etc/udev/rules.d/05-turnpike-0000:03:00.0.rules"));
        let which = "ACTION==\"add\", SUBSYSTEM==\"pci\", KERNEL==\"0000:03:00.0\", \
                     ATTR{vendor}==\"0x8086\", ATTR{device}==\"0x10d3\", ";
        let bind = "/sbin/modprobe vfio-pci; [ -e /sys/bus/pci/devices/0000:03:00.0/driver ] && echo \
                    0000:03:00.0 > /sys/bus/pci/devices/0000:03:00.0/driver/unbind; echo 0000:03:00.0 > \
                    /sys/bus/pci/drivers_probe";
        let expected = format!(
            "# Written by: turnpike bind 0000:03:00.0 --driver vfio-pci --remember\n\
             # Removed by: turnpike unbind 0000:03:00.0\n\
             {which}ATTR{{driver_override}}=\"vfio-pci\"\n\
             {which}DRIVER!=\"vfio-pci\", RUN+=\"/bin/sh -c '{bind}'\"\n"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        write(&machine, &nic, "uio_pci_generic").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("; echo identity > /sys/bus/pci/devices/0000:03:00.0/iommu_group/type; ")
        );
        assert!(has(&machine, "0000:03:00.0"));
        assert_eq!(remove(&machine, "0000:03:00.0").unwrap(), Some(path));
        assert_eq!(remove(&machine, "0000:03:00.0").unwrap(), None);
    }
}
