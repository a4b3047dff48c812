//! Reports of interfaces.

use std::collections::HashMap;

use api::report::{HostInterface, Interface, Port, VlanTag};
use control::config::{self, Virtual, Vlan};
use control::rib::RibInterface;
use dataplane::bond::BondTable;
use dataplane::interface::InterfaceId;
use dataplane::traffic::InterfaceTraffic;
use ipnet::IpNet;

use super::super::host::HostView;
use super::super::virtuals::OpenVirtual;
use super::Owner;

/// Data that the reports of all interfaces share, so that their cost grows with the number of interfaces only.
struct Known<'a> {
    vlans: HashMap<InterfaceId, Vec<&'a Vlan>>,
    in_rib: HashMap<InterfaceId, &'a RibInterface>,
    /// Ports that belong to bonds, by bond.
    bonded: HashMap<InterfaceId, Vec<Interface>>,
}

impl Owner {
    /// Returns the interfaces of all ports, each followed by the VLANs on it, and each VLAN by those on it; then the
    /// bonds, each followed by its ports and by the VLANs on it; then the loopbacks.
    pub(super) fn interface_reports(&self) -> Vec<Interface> {
        let config = &self.configurations.current;
        let in_rib = self.routing.rib.interfaces().iter().map(|known| (known.id, known)).collect();
        let mut known = Known { vlans: HashMap::new(), in_rib, bonded: HashMap::new() };
        for vlan in &config.vlans {
            known.vlans.entry(vlan.parent).or_default().push(vlan);
        }
        let mut reports = Vec::new();
        for port in self.all_ports() {
            let name = port.name.clone();
            let configured = config.ports.iter().find(|configured| configured.name == name);
            let macs = configured.map(|port| self.virtual_macs_of(port.id.into()));
            let mut report = of_port(port, macs.unwrap_or_default());
            if let Some(bond) = configured.and_then(|port| port.bond) {
                report.parent = Some(self.interface_name(bond));
                known.bonded.entry(bond).or_default().push(report);
                continue;
            }
            reports.push(report);
            if let Some(port) = configured {
                self.report_vlans_on((port.id.into(), &name), &known, &mut reports);
            }
        }
        for bond in &config.bonds {
            let ports = known.bonded.remove(&bond.id).unwrap_or_default();
            self.report_bond(bond, ports, &known, &mut reports);
        }
        for loopback in &config.loopbacks {
            let Some(open) = self.devices.virtuals.get(&loopback.id) else { continue };
            let in_rib = known.in_rib.get(&loopback.id).copied();
            reports.push(self.of_virtual(
                loopback.into(),
                open,
                in_rib,
                InterfaceTraffic::default(),
            ));
        }
        reports
    }

    fn report_bond(
        &self,
        bond: &config::Bond,
        ports: Vec<Interface>,
        known: &Known<'_>,
        reports: &mut Vec<Interface>,
    ) {
        if let Some(open) = self.devices.virtuals.get(&bond.id) {
            let in_rib = known.in_rib.get(&bond.id).copied();
            let traffic = self.routing.tables.shared.get::<BondTable>().traffic(bond.id);
            reports.push(self.of_virtual(bond.into(), open, in_rib, traffic));
        }
        reports.extend(ports);
        self.report_vlans_on((bond.id, &bond.name), known, reports);
    }

    fn report_vlans_on(
        &self,
        (parent, name): (InterfaceId, &str),
        known: &Known<'_>,
        reports: &mut Vec<Interface>,
    ) {
        for vlan in known.vlans.get(&parent).into_iter().flatten() {
            let Some(open) = self.devices.virtuals.get(&vlan.id) else { continue };
            let in_rib = known.in_rib.get(&vlan.id).copied();
            let traffic = self.routing.tables.vlans.traffic(vlan.id);
            reports.push(Interface {
                parent: Some(name.to_owned()),
                tag: Some(VlanTag {
                    protocol: vlan.tag.protocol.name().to_owned(),
                    id: vlan.tag.id,
                    priority: vlan.tag.priority,
                }),
                found: vlan.is_found,
                ..self.of_virtual((*vlan).into(), open, in_rib, traffic)
            });
            self.report_vlans_on((vlan.id, &vlan.name), known, reports);
        }
    }

    /// Returns the report of a bond, VLAN or loopback, without its parent and tag.
    fn of_virtual(
        &self,
        of: Virtual<'_>,
        open: &OpenVirtual,
        known: Option<&RibInterface>,
        traffic: InterfaceTraffic,
    ) -> Interface {
        let addresses = known.map_or(&open.addresses, |known| &known.addresses);
        let port = open.lower.and_then(InterfaceId::port);
        let link = match self.devices.links[of.id.index()].up() {
            true => "up",
            false if port.is_some_and(|port| self.devices.absentees.contain(port)) => "gone",
            false => "down",
        };
        Interface {
            name: of.name.to_owned(),
            kind: of.kind.to_owned(),
            parent: None,
            tag: None,
            found: false,
            mac: open.info.mac.to_string(),
            vrf: self.vrf_name(self.routing.rib.vrf_of(of.id)),
            addresses: addresses.iter().map(IpNet::to_string).collect(),
            link: link.to_owned(),
            mtu: known.map_or(open.info.mtu, |known| known.mtu),
            rx_packets: traffic.rx_packets,
            rx_bytes: traffic.rx_bytes,
            tx_packets: traffic.tx_packets,
            tx_bytes: traffic.tx_bytes,
            virtual_macs: self.virtual_macs_of(of.id),
            host: open.host.as_ref().map(|host| self.host_report(of.id, host)),
        }
    }
}

impl Owner {
    /// Returns the report of a host interface; the kernel gives the number of a VLAN device that it makes itself.
    fn host_report(&self, id: InterfaceId, host: &HostView) -> HostInterface {
        let mut report = host.report(self.host_state(id));
        if host.kernel_device.is_some() {
            report.index = self.routing.sources.index_of(id).unwrap_or(0);
        }
        report
    }
}

fn of_port(port: Port, virtual_macs: Vec<String>) -> Interface {
    Interface {
        name: port.name,
        kind: "port".to_owned(),
        parent: None,
        tag: None,
        found: false,
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
