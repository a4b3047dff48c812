//! Drivers of PCI ports, the IOMMU and its groups, and the kernel modules that they need.

use control::config::Device;
use machine::kernel::Module;
use machine::pci::{GROUPS, Group, Member, NO_IOMMU, SHARING, UIO};

use super::{Finding, Patient, mend};

/// Checks the drivers of PCI ports.
pub fn drivers(patient: &Patient<'_>) -> Vec<Finding> {
    patient.wanted.pci().filter_map(|(port, address)| driver(patient, port, address)).collect()
}

/// Returns the driver that the configuration binds a device to when the router starts.
fn bound_at_start(patient: &Patient<'_>, address: &str) -> Option<&'static str> {
    let is_it = |port: &&super::Port| matches!(&port.device, Device::Pci(own) if own == address);
    let port = patient.wanted.ports.iter().find(is_it)?;
    port.driver.filter(|driver| driver.is_pci()).map(|driver| driver.name())
}

fn driver(patient: &Patient<'_>, port: &str, address: &str) -> Option<Finding> {
    const CHECK: &str = "driver";
    let device = Device::Pci(address.to_owned());
    let nic = patient.machine.nic(&device)?;
    let bind = format!("turnpike bind {address}");
    let bound = nic.driver.as_deref().unwrap_or("no driver");
    if let Some(wanted) = bound_at_start(patient, address).filter(|&wanted| wanted != bound) {
        let found = format!(
            "port \"{port}\": {address} is bound to {bound}, to {wanted} when the router starts"
        );
        return Some(Finding::ok(CHECK, found));
    }
    let Some(driver) = nic.driver else {
        let found = format!("port \"{port}\": {address} has no driver");
        return Some(Finding::error(CHECK, found).cost("The port does not start.").mend([bind]));
    };
    let found = format!("port \"{port}\": {address} is bound to {driver}");
    Some(match driver.as_str() {
        "vfio-pci" => Finding::ok(CHECK, found),
        driver if SHARING.contains(&driver) => {
            Finding::ok(CHECK, format!("{found}, beside which DPDK drives it"))
        }
        driver
            if is_uio(driver)
                && group_of(patient, address).is_some_and(|group| group.translates()) =>
        {
            let cost =
                "The IOMMU refuses the device's accesses to memory: the port receives nothing.";
            Finding::error(CHECK, found).cost(cost).mend([bind])
        }
        driver if is_uio(driver) => {
            let cost = "Without an IOMMU, a faulty device or driver may write to any memory.";
            Finding::note(CHECK, found).cost(cost)
        }
        _ => Finding::error(CHECK, found)
            .cost("The kernel has the device: the port does not start.")
            .mend([bind]),
    })
}

fn is_uio(driver: &str) -> bool {
    UIO.contains(&driver)
}

fn group_of(patient: &Patient<'_>, address: &str) -> Option<Group> {
    patient.machine.pci_nic(address)?.group
}

/// Returns the number of an IOMMU's groups. Without an IOMMU, vfio creates a group for each device
/// bound without one.
fn iommu_groups(patient: &Patient<'_>) -> usize {
    let groups = patient.machine.names(GROUPS).into_iter();
    let name = |group: &String| patient.machine.read(&format!("{GROUPS}/{group}/name"));
    groups.filter(|group| name(group).as_deref() != Some(NO_IOMMU)).count()
}

fn has_iommu(patient: &Patient<'_>) -> bool {
    iommu_groups(patient) > 0
}

/// Returns the driver that a device will have when the router runs.
pub(super) fn driver_of(patient: &Patient<'_>, address: &str) -> Option<String> {
    let wanted = bound_at_start(patient, address).map(str::to_owned);
    wanted.or_else(|| patient.machine.pci_driver(address))
}

/// Returns true if devices of the router use physical addresses, which are constant only for
/// hugepages.
pub fn need_physical_addresses(patient: &Patient<'_>) -> bool {
    let by_uio = |address: &str| driver_of(patient, address).is_some_and(|driver| is_uio(&driver));
    patient.wanted.pci().any(|(_, address)| by_uio(address))
        || wants_pci(patient) && !has_iommu(patient)
}

/// Returns true if the router needs PCI devices that the kernel's drivers must release.
fn wants_pci(patient: &Patient<'_>) -> bool {
    let shared = |address: &str| {
        driver_of(patient, address).is_some_and(|driver| SHARING.contains(&driver.as_str()))
    };
    patient.wanted.pci().any(|(_, address)| !shared(address))
}

/// Checks for an IOMMU that is on, or the setting to work without.
pub fn iommu(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "iommu";
    let machine = patient.machine;
    if !machine.has(GROUPS) {
        return vec![Finding::unknown(CHECK, GROUPS)];
    }
    let groups = iommu_groups(patient);
    if groups > 0 {
        let units = machine.names("/sys/class/iommu").join(", ");
        return vec![Finding::ok(CHECK, format!("on ({units}), {groups} groups"))];
    }
    if !wants_pci(patient) {
        let found = "off, which matters to PCI ports only";
        return vec![Finding::note(CHECK, found).mend(switch_on(patient))];
    }
    let unsafe_mode = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
    if machine.read(unsafe_mode).as_deref() == Some("Y") {
        let found = "off, and vfio does without (enable_unsafe_noiommu_mode)";
        let cost = "A faulty device or driver may write to any memory.";
        return vec![Finding::warning(CHECK, found).cost(cost).mend(switch_on(patient))];
    }
    let by_uio = |address: &str| driver_of(patient, address).is_some_and(|driver| is_uio(&driver));
    let uio = patient.wanted.pci().all(|(_, address)| by_uio(address));
    if uio {
        let found = "off; uio_pci_generic does without";
        return vec![Finding::note(CHECK, found).mend(switch_on(patient))];
    }
    let without = mend::module_parameter("vfio", "enable_unsafe_noiommu_mode");
    let mut mends = switch_on(patient);
    mends.push("# or, where the machine has none:".to_owned());
    mends.extend(without);
    let cost = "vfio-pci does not give devices away: PCI ports do not start.";
    vec![Finding::error(CHECK, "off").cost(cost).mend(mends)]
}

/// Returns the commands to switch it on. Intel's is off by default; AMD's and Arm's are on if the
/// firmware enables them.
fn switch_on(patient: &Patient<'_>) -> Vec<String> {
    let info = patient.machine.read("/proc/cpuinfo").unwrap_or_default();
    if info.contains("GenuineIntel") {
        let mut commands = mend::boot_parameter(patient, "intel_iommu", "on");
        commands.push("# and switch VT-d on in the firmware, if it is off there".to_owned());
        return commands;
    }
    vec!["# switch the IOMMU (AMD-Vi, SMMU) on in the firmware, then reboot".to_owned()]
}

/// Checks interrupt remapping, without which vfio refuses devices unless configured otherwise.
pub fn interrupt_remapping(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "interrupt-remapping";
    const ALLOWED: &str = "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
    let machine = patient.machine;
    let remaps: Option<Vec<bool>> = machine
        .names("/sys/class/iommu")
        .iter()
        .filter(|name| name.starts_with("dmar"))
        .map(|name| remaps(&machine.read(&format!("/sys/class/iommu/{name}/intel-iommu/ecap"))?))
        .collect();
    let off = machine
        .boot_parameter("intremap")
        .is_some_and(|value| value.split(',').any(|word| word == "off"));
    let remapping = match remaps {
        // AMD's always supports it.
        Some(units) if units.is_empty() && !off => return Vec::new(),
        Some(units) => !off && units.iter().all(|&unit| unit),
        None => return vec![Finding::unknown(CHECK, "/sys/class/iommu/dmar*/intel-iommu/ecap")],
    };
    let allowed = machine.read(ALLOWED).as_deref() == Some("Y");
    let forge =
        "A device may forge interrupts, which matters where a virtual machine has the device.";
    match (remapping, allowed) {
        (true, false) => vec![Finding::ok(CHECK, "on")],
        (true, true) => {
            let found = "on, and vfio allows unsafe interrupts (allow_unsafe_interrupts)";
            let back = format!("echo N > {ALLOWED}");
            vec![Finding::note(CHECK, found).cost(forge).mend([back])]
        }
        (false, true) => {
            let found = "off, and vfio does without (allow_unsafe_interrupts)";
            vec![Finding::note(CHECK, found).cost(forge)]
        }
        (false, false) if !has_iommu(patient) => Vec::new(),
        (false, false) => {
            let finding = if wants_pci(patient) { Finding::error } else { Finding::note };
            let commands = mend::module_parameter("vfio_iommu_type1", "allow_unsafe_interrupts");
            let cost = "vfio-pci refuses devices: PCI ports do not start.";
            vec![finding(CHECK, "off").cost(cost).mend(commands)]
        }
    }
}

/// Returns the bit for interrupt remapping in Intel's extended capability register, in hexadecimal
/// (VT-d 11.4.3).
fn remaps(ecap: &str) -> Option<bool> {
    Some(u64::from_str_radix(ecap.trim_start_matches("0x"), 16).ok()? >> 3 & 1 == 1)
}

/// Checks for other devices in the IOMMU groups of PCI ports: the kernel assigns a group as a
/// whole.
pub fn groups(patient: &Patient<'_>) -> Vec<Finding> {
    patient.wanted.pci().filter_map(|(port, address)| group(patient, port, address)).collect()
}

fn group(patient: &Patient<'_>, port: &str, address: &str) -> Option<Finding> {
    const CHECK: &str = "iommu-group";
    let nic = patient.machine.pci_nic(address)?;
    if nic.driver.is_some_and(|driver| SHARING.contains(&driver.as_str())) {
        return None;
    }
    let group = nic.group?;
    let of_group = format!("port \"{port}\": {address} is in group {}", group.number);
    if group.others.is_empty() {
        return Some(Finding::ok(CHECK, format!("{of_group}, alone")));
    }
    let stays = |other: &&Member| {
        other.in_the_way && bound_at_start(patient, &other.address) != Some("vfio-pci")
    };
    let in_use: Vec<&Member> = group.others.iter().filter(stays).collect();
    if in_use.is_empty() {
        let others: Vec<&str> = group.others.iter().map(|other| other.address.as_str()).collect();
        return Some(Finding::ok(CHECK, format!("{of_group} with {}", others.join(", "))));
    }
    let addresses: Vec<&str> = in_use.iter().map(|other| other.address.as_str()).collect();
    let bind =
        format!("turnpike bind {address} {}    # or another slot for the NIC", addresses.join(" "));
    let in_use = in_use.iter().map(|other| {
        format!("{} ({})", other.address, other.driver.as_deref().unwrap_or("no driver"))
    });
    let in_use: Vec<String> = in_use.collect();
    let found = format!("{of_group} with {}, which the kernel uses", in_use.join(", "));
    let cost = "vfio-pci gives away a group as a whole: the port does not start.";
    Some(Finding::error(CHECK, found).cost(cost).mend([bind]))
}

/// Checks the kernel modules that PCI ports need.
pub fn modules(patient: &Patient<'_>) -> Vec<Finding> {
    const CHECK: &str = "module";
    let mut drivers = patient.wanted.pci().map(|(_, address)| driver_of(patient, address));
    let uses_uio = drivers.any(|driver| driver.as_deref() == Some("uio_pci_generic"));
    let needed =
        wants_pci(patient).then_some(if uses_uio { "uio_pci_generic" } else { "vfio-pci" });
    let module = |name: &'static str| match (patient.machine.module(name), needed == Some(name)) {
        (Module::Loaded, _) => Finding::ok(CHECK, format!("{name} is loaded")),
        (Module::Available, true) => {
            let finding = Finding::warning(CHECK, format!("{name} is installed, not loaded"));
            finding.cost("PCI ports do not start before it is.").mend(mend::load_module(name))
        }
        (Module::Available, false) => {
            Finding::ok(CHECK, format!("{name} is installed, not loaded"))
        }
        (Module::Absent, true) => Finding::error(CHECK, format!("{name} is not installed"))
            .cost("PCI ports do not start.")
            .mend(["apt-get install linux-image-$(dpkg --print-architecture)    # then reboot"
                .to_owned()]),
        (Module::Absent, false) => {
            let finding = Finding::note(CHECK, format!("{name} is not installed"));
            finding.cost("It matters to PCI ports only.")
        }
        (Module::Unknown, _) => Finding::note(
            CHECK,
            format!("{name}: cannot tell: /lib/modules has none of this kernel"),
        ),
    };
    ["vfio-pci", "uio_pci_generic"].map(module).into()
}
