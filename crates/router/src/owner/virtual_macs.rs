//! Virtual MACs of redundancy protocols, for forwarders and devices.
//!
//! keepalived (`use_vmac`) and FRR's vrrpd make a MACVLAN device with the virtual router's MAC on a host interface, and
//! give it the virtual router's addresses while they are master. The kernel answers ARP and ND for these addresses
//! there. Hosts send their packets to that MAC, so the forwarders accept it on the interface as long as the device has
//! an address that the host interface itself has not, and so does the port's device.

use std::collections::{BTreeMap, BTreeSet};

use dataplane::interface::InterfaceId;
use dataplane::port::PortId;
use dataplane::virtual_macs::{VIRTUAL_MACS_MOST, VirtualMacs};
use wire::MacAddr;

use super::Owner;

impl Owner {
    /// Passes virtual MACs to forwarders if they have changed, and to devices, which may have been opened anew.
    pub(super) fn follow_virtual_macs(&mut self) {
        let macs = std::mem::take(&mut self.routing.sources.virtual_macs);
        if std::mem::take(&mut self.routing.sources.has_new_virtual_macs) {
            self.tell_forwarders(&macs);
        }
        let mut by_port = self.by_port(&macs);
        self.routing.sources.virtual_macs = macs;
        for open in self.devices.ports.iter() {
            let wanted = by_port.remove(&open.id).unwrap_or_default();
            if let Err(errno) = open.port.set_addresses(&wanted) {
                tracing::warn!(
                    "port \"{}\": {} does not receive frames to a virtual MAC: {errno}; set promiscuous = true",
                    open.name,
                    open.device
                );
            }
        }
    }

    fn tell_forwarders(&self, macs: &[(InterfaceId, MacAddr)]) {
        for (interface, mac) in macs {
            tracing::info!("port \"{}\": virtual MAC {mac}", self.interface_name(*interface));
        }
        let too_many = self.routing.tables.shared.get::<VirtualMacs>().set(macs);
        if too_many > 0 {
            tracing::error!(
                "{too_many} virtual MACs are not accepted: {VIRTUAL_MACS_MOST} are the most"
            );
        }
    }

    /// The virtual MACs of an interface, for reports.
    pub(super) fn virtual_macs_of(&self, interface: InterfaceId) -> Vec<String> {
        let all = self.routing.sources.virtual_macs.iter();
        all.filter(|(on, _)| *on == interface).map(|(_, mac)| mac.to_string()).collect()
    }

    /// The virtual MACs of each port and of the VLANs on it.
    fn by_port(&self, macs: &[(InterfaceId, MacAddr)]) -> BTreeMap<PortId, BTreeSet<[u8; 6]>> {
        let mut by_port: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for &(interface, mac) in macs {
            let of_vlan = || self.devices.vlans.get(&interface).map(|vlan| vlan.port);
            if let Some(port) = interface.port().or_else(of_vlan) {
                by_port.entry(port).or_default().insert(mac.0);
            }
        }
        by_port
    }
}
