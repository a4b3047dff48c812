//! Reports of interfaces.

use std::collections::HashMap;

use api::report::{Interface, Port, VlanTag};
use control::config::Vlan;
use control::rib::RibInterface;
use dataplane::interface::InterfaceId;
use ipnet::IpNet;

use super::super::vlans::OpenVlan;
use super::Owner;

/// Data that the reports of all interfaces share, so that their cost grows with the number of interfaces only.
struct Known<'a> {
    vlans: HashMap<InterfaceId, Vec<&'a Vlan>>,
    in_rib: HashMap<InterfaceId, &'a RibInterface>,
}

impl Owner {
    /// Returns the interfaces of all ports, each followed by the VLANs on it, and each VLAN by those on it.
    pub(super) fn interface_reports(&self) -> Vec<Interface> {
        let config = &self.configurations.current;
        let in_rib = self.routing.rib.interfaces().iter().map(|known| (known.id, known)).collect();
        let mut known = Known { vlans: HashMap::new(), in_rib };
        for vlan in &config.vlans {
            known.vlans.entry(vlan.parent).or_default().push(vlan);
        }
        let mut reports = Vec::new();
        for port in self.all_ports() {
            let name = port.name.clone();
            let configured = config.ports.iter().find(|configured| configured.name == name);
            let macs = configured.map(|port| self.virtual_macs_of(port.id.into()));
            reports.push(of_port(port, macs.unwrap_or_default()));
            if let Some(port) = configured {
                self.report_vlans_on((port.id.into(), &name), &known, &mut reports);
            }
        }
        reports
    }

    fn report_vlans_on(
        &self,
        (parent, name): (InterfaceId, &str),
        known: &Known<'_>,
        reports: &mut Vec<Interface>,
    ) {
        for vlan in known.vlans.get(&parent).into_iter().flatten() {
            let Some(open) = self.devices.vlans.get(&vlan.id) else { continue };
            reports.push(self.of_vlan(vlan, name, open, known.in_rib.get(&vlan.id).copied()));
            self.report_vlans_on((vlan.id, &vlan.name), known, reports);
        }
    }

    fn of_vlan(
        &self,
        vlan: &Vlan,
        parent: &str,
        open: &OpenVlan,
        known: Option<&RibInterface>,
    ) -> Interface {
        let addresses = known.map_or(&open.addresses, |known| &known.addresses);
        let traffic = self.routing.tables.vlans.traffic(vlan.id);
        let link = match self.devices.links[vlan.id.index()].up() {
            true => "up",
            false if self.devices.absentees.contain(open.port) => "gone",
            false => "down",
        };
        Interface {
            name: vlan.name.clone(),
            kind: "vlan".to_owned(),
            parent: Some(parent.to_owned()),
            tag: Some(VlanTag {
                protocol: vlan.tag.protocol.name().to_owned(),
                id: vlan.tag.id,
                priority: vlan.tag.priority,
            }),
            mac: open.info.mac.to_string(),
            vrf: self.vrf_name(self.routing.rib.vrf_of(vlan.id)),
            addresses: addresses.iter().map(IpNet::to_string).collect(),
            link: link.to_owned(),
            mtu: known.map_or(open.info.mtu, |known| known.mtu),
            rx_packets: traffic.rx_packets,
            rx_bytes: traffic.rx_bytes,
            tx_packets: traffic.tx_packets,
            tx_bytes: traffic.tx_bytes,
            virtual_macs: self.virtual_macs_of(vlan.id),
            host: open.host.as_ref().map(|host| host.report(self.host_state(vlan.id))),
        }
    }
}

fn of_port(port: Port, virtual_macs: Vec<String>) -> Interface {
    Interface {
        name: port.name,
        kind: "port".to_owned(),
        parent: None,
        tag: None,
        mac: port.mac,
        vrf: port.vrf,
        addresses: port.addresses,
        link: port.link,
        mtu: port.mtu,
        rx_packets: port.rx_packets,
        rx_bytes: port.rx_bytes,
        tx_packets: port.tx_packets,
        tx_bytes: port.tx_bytes,
        virtual_macs,
        host: port.host,
    }
}
