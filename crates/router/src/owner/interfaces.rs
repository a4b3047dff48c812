//! Reports of interfaces.

use api::report::{Interface, Port, VlanTag};
use control::config::Config;
use dataplane::interface::InterfaceId;
use ipnet::IpNet;

use super::super::vlans::OpenVlan;
use super::Owner;

impl Owner {
    /// Returns the interfaces of all ports, each followed by the VLANs on it, and each VLAN by those on it.
    pub(super) fn interface_reports(&self) -> Vec<Interface> {
        let config = &*self.configurations.current;
        let mut reports = Vec::new();
        for port in self.all_ports() {
            let configured = config.ports.iter().find(|configured| configured.name == port.name);
            let id = configured.map(|configured| configured.id.into());
            reports.push(of_port(port));
            id.into_iter().for_each(|id| self.report_vlans_on(config, id, &mut reports));
        }
        reports
    }

    fn report_vlans_on(&self, config: &Config, parent: InterfaceId, reports: &mut Vec<Interface>) {
        for vlan in config.vlans.iter().filter(|vlan| vlan.parent == parent) {
            let Some(open) = self.vlans.get(&vlan.id) else { continue };
            reports.push(self.of_vlan(config, vlan, open));
            if parent.port().is_some() {
                self.report_vlans_on(config, vlan.id, reports);
            }
        }
    }

    fn of_vlan(&self, config: &Config, vlan: &control::config::Vlan, open: &OpenVlan) -> Interface {
        let known = self.rib.interfaces().iter().find(|known| known.id == vlan.id);
        let addresses = known.map_or(&open.addresses, |known| &known.addresses);
        let traffic = self.tables.vlans.traffic(vlan.id);
        let parent = config.interfaces().find(|(id, ..)| *id == vlan.parent);
        let link = match self.links[vlan.id.index()].up() {
            true => "up",
            false if self.absentees.contain(open.port) => "gone",
            false => "down",
        };
        Interface {
            name: vlan.name.clone(),
            kind: "vlan".to_owned(),
            parent: parent.map(|(_, name, _)| name.to_owned()),
            tag: Some(VlanTag {
                protocol: vlan.tag.protocol.name().to_owned(),
                id: vlan.tag.id,
                priority: vlan.tag.priority,
            }),
            mac: open.info.mac.to_string(),
            vrf: self.vrf_name(self.rib.vrf_of(vlan.id)),
            addresses: addresses.iter().map(IpNet::to_string).collect(),
            link: link.to_owned(),
            mtu: known.map_or(open.info.mtu, |known| known.mtu),
            rx_packets: traffic.rx_packets,
            rx_bytes: traffic.rx_bytes,
            tx_packets: traffic.tx_packets,
            tx_bytes: traffic.tx_bytes,
            host: open.host.as_ref().map(|host| host.report(self.host_state(vlan.id))),
        }
    }
}

fn of_port(port: Port) -> Interface {
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
        host: port.host,
    }
}
