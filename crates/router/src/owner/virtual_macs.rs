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

    /// The virtual MACs of each port, of its bond and of the VLANs on it, and the bond's own.
    fn by_port(&self, macs: &[(InterfaceId, MacAddr)]) -> BTreeMap<PortId, BTreeSet<[u8; 6]>> {
        let mut by_port: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for open in self.devices.ports.iter() {
            let uppers: Vec<_> = self.uppers_of(open.id).collect();
            let on_it =
                |id: InterfaceId| id == open.id.into() || uppers.iter().any(|upper| upper.id == id);
            let of_macs = macs.iter().filter(|(id, _)| on_it(*id)).map(|(_, mac)| *mac);
            let own = uppers.iter().map(|upper| upper.info.mac).filter(|mac| *mac != open.info.mac);
            let all: BTreeSet<_> = of_macs.chain(own).map(|mac| mac.0).collect();
            by_port.insert(open.id, all);
        }
        by_port
    }
}
