//! VLAN devices of the kernel on accelerated interfaces, which are accelerated as well.
//!
//! The kernel's VLAN devices are found as VLANs (`found_vlans.rs`), whose host interfaces they are. So forwarders know
//! their routes, neighbours and MTUs, and send by them with any tags. The programs take frames with one 802.1Q tag of a VLAN
//! right on the interface; frames with other tags stay with the kernel. Programs that forward themselves send by these VLANs
//! only, and so do flows: a packet that the kernel sends with other tags confirms none (`kernel_flows.rs`).

use std::collections::BTreeMap;

use control::config::Vlan;
use dataplane::interface::VrfId;
use dataplane::port::PortId;
use dataplane::vlan::TagProtocol;
use dpdk::Taken;

use super::Owner;
use super::accelerate::{Families, Look, families};
use super::in_kernel::VlanWay;

/// A VLAN whose frames a program may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VlanNow {
    /// The name of the device.
    pub(super) name: String,
    /// The packets that are taken.
    pub(super) families: Families,
}

/// The VLANs of an interface, by identifier.
pub(super) type VlansNow = BTreeMap<u16, VlanNow>;

/// Returns the packets of VLANs that are taken.
pub(super) fn taken(vlans: &VlansNow) -> BTreeMap<u16, Taken> {
    vlans.iter().map(|(id, vlan)| (*id, vlan.families.taken)).collect()
}

impl Owner {
    /// Returns the VLANs that run on accelerated interfaces.
    fn accelerated_vlans(&self) -> impl Iterator<Item = &Vlan> {
        let is_accelerated = |vlan: &&Vlan| {
            vlan.interface.host.as_ref().is_some_and(|host| host.is_device)
                && self.devices.virtuals.contains_key(&vlan.id)
        };
        self.configurations.current.vlans.iter().filter(is_accelerated)
    }

    /// Returns the names of the VLAN devices that are accelerated.
    pub(super) fn accelerated_vlan_names(&self) -> impl Iterator<Item = String> {
        self.accelerated_vlans().map(|vlan| vlan.name.clone())
    }

    /// Returns the least MTU of VLANs on accelerated interfaces.
    pub(super) fn least_vlan_mtu(&self) -> Option<u16> {
        self.accelerated_vlans().filter_map(|vlan| self.vlan_mtu(vlan)).min()
    }

    fn vlan_mtu(&self, vlan: &Vlan) -> Option<u16> {
        let open = self.devices.virtuals.get(&vlan.id)?;
        Some(self.devices.links[vlan.id.index()].mtu(open.info.mtu))
    }

    /// Returns the VLANs right on a port by which packets are received and sent.
    fn vlans_on(&self, port: PortId) -> impl Iterator<Item = &Vlan> {
        self.accelerated_vlans().filter(move |vlan| {
            vlan.parent == port.into()
                && vlan.tag.protocol == TagProtocol::Dot1q
                && vlan.interface.settings.vrf == VrfId::DEFAULT
                && self.devices.links[vlan.id.index()].up()
        })
    }

    /// Returns the VLANs on a port as ways out.
    pub(super) fn vlan_ways(&self, port: PortId) -> Vec<VlanWay> {
        let way = |vlan: &Vlan| {
            Some(VlanWay { interface: vlan.id, id: vlan.tag.id, mtu: self.vlan_mtu(vlan)? })
        };
        self.vlans_on(port).filter_map(way).collect()
    }

    /// Returns the packets of an interface's VLANs that are to be taken.
    pub(super) fn wanted_vlans(&self, port: PortId, mac: [u8; 6], look: &Look) -> VlansNow {
        let now = |vlan: &Vlan| {
            let families = families(&vlan.name, vlan.id, mac, look);
            (vlan.tag.id, VlanNow { name: vlan.name.clone(), families })
        };
        self.vlans_on(port).map(now).collect()
    }
}
