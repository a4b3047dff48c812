//! NICs on the PCI bus: names, drivers, IOMMU groups, kernel interfaces, and the processes that use
//! them.

use std::collections::BTreeMap;

use super::{Machine, numbered};
use crate::kernel::Module;

/// The kernel's directory of PCI functions.
pub const DEVICES: &str = "/sys/bus/pci/devices";

/// The kernel's directory of PCI drivers.
pub const DRIVERS: &str = "/sys/bus/pci/drivers";

/// The kernel's directory of IOMMU groups.
pub const GROUPS: &str = "/sys/kernel/iommu_groups";

/// Kernel drivers that leave a device to DPDK and do not program the IOMMU.
pub const UIO: [&str; 2] = ["uio_pci_generic", "igb_uio"];

/// Kernel drivers that stay bound while DPDK uses the device.
pub const SHARING: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];

/// Kernel drivers that vfio tolerates in a group (`vfio_dev_driver_allowed` of the kernel),
/// including its own.
const TOLERATED: [&str; 3] = ["vfio-pci", "pci-stub", "pcieport"];

/// Name of the group of a device that vfio binds without an IOMMU.
pub const NO_IOMMU: &str = "vfio-noiommu";

/// Lists of the names of vendors and devices.
const NAMES: [&str; 2] = ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"];

/// Returns true for a driver that leaves a device to a program: vfio-pci or one of UIO's.
pub fn gives_away(driver: &str) -> bool {
    driver == "vfio-pci" || UIO.contains(&driver)
}

/// A NIC on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciNic {
    /// Its address: `0000:03:00.0`.
    pub address: String,
    /// Vendor and device, in hexadecimal: `8086:10d3`.
    pub ids: String,
    /// Their names; the numbers if the names are unknown.
    pub model: String,
    /// The kernel driver bound to it.
    pub driver: Option<String>,
    /// The only driver allowed to bind it, if one is set.
    pub driver_override: Option<String>,
    /// Its NUMA node.
    pub node: Option<usize>,
    /// Its IOMMU group.
    pub group: Option<Group>,
    /// Its kernel interfaces in the network namespace of `/sys`.
    pub interfaces: Vec<String>,
    /// True if it has interfaces in another network namespace.
    pub elsewhere: bool,
}

/// Devices that an IOMMU cannot distinguish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub number: usize,
    /// The kind of its default domain: `DMA`, `DMA-FQ`, `identity`.
    pub kind: Option<String>,
    /// True if there is no IOMMU behind it, and vfio works without one.
    pub without_iommu: bool,
    /// The other devices.
    pub others: Vec<Member>,
}

impl Group {
    /// Returns true if the IOMMU translates for devices whose driver does not program it, so that
    /// these cannot access memory.
    pub fn translates(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind != "identity")
    }
}

/// Another device of a NIC's group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its address.
    pub address: String,
    /// Its driver.
    pub driver: Option<String>,
    /// True for a bridge, which carries the group's traffic.
    pub is_bridge: bool,
    /// True if vfio does not release the group while the device has this driver.
    pub in_the_way: bool,
}

/// A process that has a device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub process: u32,
    /// Its name.
    pub name: String,
}

/// A pattern of PCI devices, and the kernel module that drives them.
#[derive(Clone, Debug)]
pub(crate) struct Alias {
    pattern: String,
    module: String,
}

impl Machine {
    /// Returns the network functions on the PCI bus, by their addresses.
    pub fn nics(&self) -> Vec<PciNic> {
        let names = NAMES.iter().find_map(|path| self.read(path)).unwrap_or_default();
        let mut nics: Vec<_> =
            self.names(DEVICES).iter().filter_map(|address| self.pci_nic(address)).collect();
        let found = models(&names, nics.iter().map(|nic| nic.ids.as_str()));
        for nic in &mut nics {
            nic.model = found.get(&nic.ids).unwrap_or(&nic.ids).clone();
        }
        nics
    }

    /// Returns a network function, without looking up its names; `None` if there is none at this
    /// address.
    pub fn pci_nic(&self, address: &str) -> Option<PciNic> {
        let base = format!("{DEVICES}/{address}");
        if !self.read(&format!("{base}/class"))?.starts_with("0x02") {
            return None;
        }
        let id = |file: &str| {
            let text = self.read(&format!("{base}/{file}")).unwrap_or_default();
            text.trim_start_matches("0x").to_owned()
        };
        let ids = format!("{}:{}", id("vendor"), id("device"));
        let (interfaces, elsewhere) = self.interfaces_of(&base);
        let driver_override = self.read(&format!("{base}/driver_override"));
        Some(PciNic {
            address: address.to_owned(),
            model: ids.clone(),
            ids,
            driver: self.pci_driver(address),
            driver_override: driver_override.filter(|name| !matches!(name.as_str(), "" | "(null)")),
            node: self.number(&format!("{base}/numa_node")),
            group: self.group_of(address),
            interfaces,
            elsewhere,
        })
    }

    /// Returns the driver bound to a PCI device.
    pub fn pci_driver(&self, address: &str) -> Option<String> {
        self.link(&format!("{DEVICES}/{address}/driver"))
    }

    /// Returns true if a kernel driver for PCI devices is loaded.
    pub fn has_pci_driver(&self, driver: &str) -> bool {
        self.has(&format!("{DRIVERS}/{driver}"))
    }

    /// Returns the interfaces of a PCI function, including those of a virtio device, and true if it
    /// has interfaces not visible here.
    fn interfaces_of(&self, base: &str) -> (Vec<String>, bool) {
        let below = self.names(base);
        let virtio = below.iter().filter(|name| numbered(name, "virtio").is_some());
        let mut places = vec![format!("{base}/net")];
        places.extend(virtio.map(|name| format!("{base}/{name}/net")));
        let places: Vec<_> = places.iter().filter(|place| self.has(place)).collect();
        let names: Vec<_> = places.iter().flat_map(|place| self.names(place)).collect();
        let elsewhere = names.is_empty() && !places.is_empty();
        (names, elsewhere)
    }

    /// Returns the PCI function of a kernel interface.
    pub fn pci_of_interface(&self, name: &str) -> Option<String> {
        let has = |address: &String| {
            let base = format!("{DEVICES}/{address}");
            self.interfaces_of(&base).0.iter().any(|interface| interface == name)
        };
        self.names(DEVICES).into_iter().find(has)
    }

    fn group_of(&self, address: &str) -> Option<Group> {
        let number = self.link(&format!("{DEVICES}/{address}/iommu_group"))?.parse().ok()?;
        let base = format!("{GROUPS}/{number}");
        let members = self.names(&format!("{base}/devices")).into_iter();
        Some(Group {
            number,
            kind: self.read(&format!("{base}/type")),
            without_iommu: self.read(&format!("{base}/name")).as_deref() == Some(NO_IOMMU),
            others: members
                .filter(|other| other != address)
                .map(|other| self.member(other))
                .collect(),
        })
    }

    fn member(&self, address: String) -> Member {
        let driver = self.pci_driver(&address);
        let class = self.read(&format!("{DEVICES}/{address}/class")).unwrap_or_default();
        // Since Linux 5.19, the driver of a bridge has to declare that it leaves the group's DMA to
        // others; shpchp, the driver for hot plugging behind conventional bridges, does not.
        let in_the_way = driver.as_deref().is_some_and(|driver| !TOLERATED.contains(&driver));
        Member { address, driver, is_bridge: class.starts_with("0x06"), in_the_way }
    }

    /// Returns the drivers available for a PCI device: the kernel's own by its list of modules, and
    /// those that leave the device to DPDK.
    pub fn drivers_for(&self, address: &str) -> Vec<String> {
        let mut drivers: Vec<String> = self.kernel_drivers(address);
        drivers.extend(self.pci_driver(address));
        let dpdk = ["vfio-pci", "uio_pci_generic"];
        let has = |driver: &&&str| {
            self.has_pci_driver(driver)
                || matches!(self.module(driver), Module::Loaded | Module::Available)
        };
        drivers.extend(dpdk.iter().filter(has).map(|driver| (*driver).to_owned()));
        let mut seen = Vec::new();
        drivers.retain(|driver| {
            let new = !seen.contains(driver);
            seen.push(driver.clone());
            new
        });
        drivers
    }

    /// Returns the drivers for a device among the kernel's modules.
    fn kernel_drivers(&self, address: &str) -> Vec<String> {
        let Some(alias) = self.read(&format!("{DEVICES}/{address}/modalias")) else {
            return Vec::new();
        };
        let modules = self.pci_modules.get_or_init(|| self.read_pci_modules().unwrap_or_default());
        let fitting = modules.iter().filter(|one| fits(&one.pattern, &alias));
        fitting.map(|one| self.driver_of_module(&one.module)).collect()
    }

    /// Reads the kernel's list of modules by the PCI devices that they drive.
    fn read_pci_modules(&self) -> Option<Vec<Alias>> {
        let list = self.read(&format!("/lib/modules/{}/modules.alias", self.release()?))?;
        let pci = list.lines().filter_map(|line| line.strip_prefix("alias ")?.split_once(' '));
        let pci = pci.filter(|(pattern, _)| pattern.starts_with("pci:"));
        Some(
            pci.map(|(pattern, module)| Alias { pattern: pattern.into(), module: module.into() })
                .collect(),
        )
    }

    /// Returns the PCI driver of a module: `virtio-pci` of `virtio_pci`.
    fn driver_of_module(&self, module: &str) -> String {
        let drivers = self.names(&format!("/sys/module/{module}/drivers"));
        let driver = drivers.iter().find_map(|name| name.strip_prefix("pci:"));
        driver.unwrap_or(module).to_owned()
    }

    /// Returns another process that has a device open by vfio or UIO. Only root sees all of them.
    pub fn holder(&self, nic: &PciNic) -> Option<Holder> {
        let files = self.device_files(nic);
        if files.is_empty() {
            return None;
        }
        let own = std::process::id();
        let processes = self.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
        let has_it = |process: &u32| {
            let base = format!("/proc/{process}/fd");
            let descriptors = self.names(&base);
            descriptors.iter().any(|number| {
                let target = self.target(&format!("{base}/{number}"));
                target.is_some_and(|target| files.contains(&target))
            })
        };
        let process = processes.filter(|&process| process != own).find(has_it)?;
        let name = self.read(&format!("/proc/{process}/comm")).unwrap_or_default();
        Some(Holder { process, name })
    }

    /// Returns the files by which a program uses a device.
    fn device_files(&self, nic: &PciNic) -> Vec<String> {
        let base = format!("{DEVICES}/{}", nic.address);
        match nic.driver.as_deref() {
            Some("vfio-pci") => {
                let group = nic.group.iter().map(|group| match group.without_iommu {
                    true => format!("/dev/vfio/noiommu-{}", group.number),
                    false => format!("/dev/vfio/{}", group.number),
                });
                let single = self.names(&format!("{base}/vfio-dev"));
                let single = single.into_iter().map(|name| format!("/dev/vfio/devices/{name}"));
                group.chain(single).collect()
            }
            Some(driver) if UIO.contains(&driver) => {
                let names = self.names(&format!("{base}/uio"));
                names.into_iter().map(|name| format!("/dev/{name}")).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns true if a text matches a pattern in which `*` stands for any characters.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns the names of vendors and devices by their numbers (`8086:10d3`), from a list such as
/// `pci.ids`.
fn models<'a>(list: &str, wanted: impl Iterator<Item = &'a str>) -> BTreeMap<String, String> {
    let wanted: Vec<&str> = wanted.collect();
    let (mut found, mut vendor) = (BTreeMap::new(), None);
    for line in list.lines() {
        let named = |line: &str| {
            let (id, name) = line.split_at_checked(4)?;
            Some((id.to_owned(), name.trim().to_owned()))
        };
        if line.starts_with("\t\t") || line.starts_with('#') || line.is_empty() {
            continue;
        }
        if let Some(device) = line.strip_prefix('\t') {
            let (Some((id, name)), Some((of, by))) = (named(device), &vendor) else { continue };
            let ids = format!("{of}:{id}");
            if wanted.contains(&ids.as_str()) {
                found.insert(ids, format!("{by} {name}"));
            }
        } else if line.starts_with("C ") {
            // Classes follow the vendors.
            break;
        } else {
            vendor = named(line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::Tree;
    use super::*;

    const ADDRESS: &str = "0000:03:00.0";

    fn file(tree: &Tree, name: &str, text: &str) {
        tree.write(&format!("sys/bus/pci/devices/{ADDRESS}/{name}"), text);
    }

    fn nic() -> Tree {
        let tree = Tree::two_nodes();
        tree.pci(ADDRESS, Some("e1000e"), "1");
        file(&tree, "vendor", "0x8086\n");
        file(&tree, "device", "0x10d3\n");
        tree
    }

    #[test]
    fn a_nic_has_names_a_driver_and_an_interface() {
        let tree = nic();
        file(&tree, "driver_override", "(null)\n");
        file(&tree, "net/eth1/flags", "0x1002");
        tree.write(
            "usr/share/misc/pci.ids",
            "# list\n8085  Other\n\t10d3  Wrong\n8086  Intel Corporation\n\t10d3  82574L NIC\n\t\t1 2  Sub\nC 02  Net\n\t10d3  x\n",
        );
        // A device of another class.
        tree.pci("0000:04:00.0", None, "0");
        tree.write("sys/bus/pci/devices/0000:04:00.0/class", "0x010000");
        let expected = PciNic {
            address: ADDRESS.into(),
            ids: "8086:10d3".into(),
            model: "Intel Corporation 82574L NIC".into(),
            driver: Some("e1000e".into()),
            node: Some(1),
            interfaces: vec!["eth1".into()],
            ..PciNic::default()
        };
        assert_eq!(tree.machine().nics(), [expected]);
        let of = |name| tree.machine().pci_of_interface(name);
        assert_eq!((of("eth1").as_deref(), of("eth2")), (Some(ADDRESS), None));
        file(&tree, "driver_override", "vfio-pci\n");
        tree.remove("usr");
        let found = &tree.machine().nics()[0];
        assert_eq!(found.model, "8086:10d3");
        assert_eq!(found.driver_override.as_deref(), Some("vfio-pci"));
    }

    #[test]
    fn interfaces_of_virtio_and_of_other_namespaces_are_known() {
        let tree = nic();
        let found = || tree.machine().pci_nic(ADDRESS).unwrap();
        assert!(found().interfaces.is_empty() && !found().elsewhere);
        file(&tree, "virtio3/net/eth7/flags", "");
        assert_eq!(found().interfaces, ["eth7"]);
        tree.remove(&format!("sys/bus/pci/devices/{ADDRESS}/virtio3/net/eth7"));
        assert!(found().interfaces.is_empty() && found().elsewhere);
    }

    #[test]
    fn groups_name_the_others_and_those_in_the_way() {
        let tree = nic();
        assert_eq!(tree.machine().pci_nic(ADDRESS).unwrap().group, None);
        tree.group(7, "DMA-FQ", &[ADDRESS, "0000:03:00.1", "0000:00:1c.0", "0000:03:00.2"]);
        tree.pci("0000:03:00.1", Some("e1000e"), "0");
        tree.pci("0000:00:1c.0", Some("shpchp"), "0");
        tree.write("sys/bus/pci/devices/0000:00:1c.0/class", "0x060400");
        tree.pci("0000:03:00.2", None, "0");
        let group = tree.machine().pci_nic(ADDRESS).unwrap().group.unwrap();
        let in_the_way: Vec<_> = group.others.iter().filter(|other| other.in_the_way).collect();
        assert_eq!((group.number, group.others.len(), in_the_way.len()), (7, 3, 2));
        let named: Vec<_> = in_the_way.iter().map(|one| (&*one.address, one.is_bridge)).collect();
        assert!(
            named.contains(&("0000:03:00.1", false)) && named.contains(&("0000:00:1c.0", true))
        );
        tree.pci("0000:00:1c.0", Some("pcieport"), "0");
        let group = tree.machine().pci_nic(ADDRESS).unwrap().group.unwrap();
        assert_eq!(group.others.iter().filter(|other| other.in_the_way).count(), 1);
        assert!(group.translates() && !group.without_iommu);
        tree.write("sys/kernel/iommu_groups/7/type", "identity\n");
        tree.write("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
        let group = tree.machine().pci_nic(ADDRESS).unwrap().group.unwrap();
        assert!(!group.translates() && group.without_iommu);
    }

    #[test]
    fn drivers_are_those_of_modules_and_dpdk() {
        let tree = nic();
        file(&tree, "modalias", "pci:v00008086d000010D3sv00008086sd0000A01Fbc02sc00i00\n");
        tree.write(
            "lib/modules/6.1.0-41-amd64/modules.alias",
            "alias pci:v00008086d000010D3sv*sd*bc*sc*i* other_driver\n\
             alias pci:v00008086d000010D4sv*sd*bc*sc*i* wrong\nalias usb:v* usb\n",
        );
        tree.write("lib/modules/6.1.0-41-amd64/modules.dep", "kernel/vfio-pci.ko: x\n");
        let drivers = || tree.machine().drivers_for(ADDRESS);
        assert_eq!(drivers(), ["other_driver", "e1000e", "vfio-pci"]);
        tree.link("sys/module/other_driver/drivers/pci:e1000e", "x");
        assert_eq!(drivers(), ["e1000e", "vfio-pci"]);
    }

    #[test]
    fn the_process_that_has_a_device_is_found() {
        let tree = nic();
        tree.group(7, "DMA", &[ADDRESS]);
        tree.link("proc/77/fd/3", "/dev/null");
        tree.link("proc/77/fd/4", "/dev/vfio/7");
        tree.write("proc/77/comm", "turnpike\n");
        tree.link(&format!("proc/{}/fd/4", std::process::id()), "/dev/uio2");
        let holder = |driver: &str| {
            tree.pci(ADDRESS, Some(driver), "0");
            let machine = tree.machine();
            machine.holder(&machine.pci_nic(ADDRESS).unwrap()).map(|holder| holder.process)
        };
        assert_eq!((holder("e1000e"), holder("vfio-pci")), (None, Some(77)));
        tree.write("sys/kernel/iommu_groups/7/name", "vfio-noiommu");
        assert_eq!(holder("vfio-pci"), None);
        tree.link("proc/78/fd/9", "/dev/vfio/noiommu-7");
        assert_eq!(holder("vfio-pci"), Some(78));
        file(&tree, "uio/uio2/name", "");
        assert_eq!(holder("uio_pci_generic"), None, "this process does not count");
        tree.link("proc/79/fd/1", "/dev/uio2");
        assert_eq!(holder("uio_pci_generic"), Some(79));
    }

    #[test]
    fn stars_stand_for_any_characters() {
        for (pattern, text, expected) in [
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "abcd", false),
            ("a*b*", "xab", false),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("*b*b", "ab", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn no_list_of_names_makes_it_panic(list in "[\t\nC #0-9a-fé]{0,60}") {
            let _ = models(&list, ["8086:10d3"].into_iter());
        }
    }
}
