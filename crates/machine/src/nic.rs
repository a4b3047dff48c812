//! Driver and NUMA node of a network device.

use control::config::Device;

use super::Machine;

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// The kernel driver bound to it.
    pub driver: Option<String>,
    /// Its NUMA node; `None` for a virtual device, or if the firmware does not report it.
    pub node: Option<usize>,
    /// Its IOMMU group.
    pub group: Option<usize>,
}

impl Machine {
    /// Returns a device of the configuration; `None` for one of DPDK's virtual devices, or a
    /// missing one.
    pub fn nic(&self, device: &Device) -> Option<Nic> {
        let base = match device {
            Device::Pci(address) => format!("/sys/bus/pci/devices/{address}"),
            Device::Kernel(name) => format!("/sys/class/net/{name}"),
            Device::Vdev(_) => return None,
        };
        if !self.has(&base) {
            return None;
        }
        let base = match device {
            Device::Kernel(_) => format!("{base}/device"),
            _ => base,
        };
        Some(Nic {
            driver: self.link(&format!("{base}/driver")),
            node: self.node_of_device(&base),
            group: self.link(&format!("{base}/iommu_group")).and_then(|name| name.parse().ok()),
        })
    }

    /// Returns the nearest NUMA node of a device, given by its name in the configuration.
    pub fn node_of(&self, device: &Device) -> Option<usize> {
        self.nic(device)?.node
    }

    /// Returns the node in a device's directory or its parent's: a virtio device itself has none,
    /// but its PCI function has one. The kernel writes -1 for "unknown".
    fn node_of_device(&self, base: &str) -> Option<usize> {
        [base.to_owned(), format!("{base}/..")]
            .iter()
            .find_map(|base| self.number(&format!("{base}/numa_node")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Tree;
    use super::*;

    #[test]
    fn devices_have_drivers_and_nodes() {
        let tree = Tree::two_nodes();
        tree.pci("0000:03:00.0", Some("vfio-pci"), "1");
        tree.pci("0000:04:00.0", None, "-1");
        tree.link("sys/bus/pci/devices/0000:03:00.0/iommu_group", "../../kernel/iommu_groups/17");
        let nic = |device| tree.machine().nic(&device);
        let first = Nic { driver: Some("vfio-pci".into()), node: Some(1), group: Some(17) };
        assert_eq!(nic(Device::Pci("0000:03:00.0".into())), Some(first));
        assert_eq!(nic(Device::Pci("0000:04:00.0".into())), Some(Nic::default()));
        assert_eq!(nic(Device::Pci("0000:05:00.0".into())), None);
        assert_eq!(nic(Device::Vdev("net_null0".into())), None);
    }

    #[test]
    fn a_virtio_interface_is_where_its_pci_function_is() {
        let tree = Tree::two_nodes();
        tree.write("sys/devices/pci0000:00/0000:00:03.0/numa_node", "1");
        tree.write("sys/devices/pci0000:00/0000:00:03.0/virtio2/features", "");
        tree.link(
            "sys/devices/pci0000:00/0000:00:03.0/virtio2/driver",
            "../../../../bus/virtio/drivers/virtio_net",
        );
        tree.write("sys/class/net/eth0/address", "");
        tree.link("sys/class/net/eth0/device", "../../../devices/pci0000:00/0000:00:03.0/virtio2");
        tree.write("sys/class/net/veth0/address", "");
        let machine = tree.machine();
        let nic = machine.nic(&Device::Kernel("eth0".into())).unwrap();
        assert_eq!((nic.driver.as_deref(), nic.node), (Some("virtio_net"), Some(1)));
        assert_eq!(machine.nic(&Device::Kernel("veth0".into())), Some(Nic::default()));
        assert_eq!(machine.node_of(&Device::Kernel("eth9".into())), None);
    }
}
