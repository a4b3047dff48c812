//! VLANs that run: interfaces that share a port's device.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use control::config::{self, Config};
use control::rib::RibInterface;
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::port::{PortId, PortSet};
use dataplane::vlan::Vlans;
use ipnet::IpNet;

use super::host::{HostInterface, HostView};
use super::ports::Opener;

/// A VLAN that receives and sends by its port.
pub struct OpenVlan {
    /// Its number.
    pub id: InterfaceId,
    /// Its name in the configuration.
    pub name: String,
    /// The port that carries its frames.
    pub port: PortId,
    /// The data plane's view of it.
    pub info: InterfaceInfo,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Its host interface, if it has one.
    pub host: Option<HostView>,
}

impl OpenVlan {
    /// Creates it from the configuration, with these properties and this host interface; `None` if its parent is
    /// missing.
    pub fn new(
        config: &Config,
        wanted: &config::Vlan,
        info: InterfaceInfo,
        host: Option<&HostInterface>,
    ) -> Option<Self> {
        Some(Self {
            id: wanted.id,
            name: wanted.name.clone(),
            port: port_of(config, wanted)?,
            info,
            addresses: wanted.interface.addresses.clone(),
            host: host.map(HostInterface::view),
        })
    }

    /// Returns the RIB's view of it.
    pub fn in_rib(&self) -> RibInterface {
        RibInterface {
            id: self.id,
            name: self.name.clone(),
            vrf: self.info.vrf,
            mac: self.info.mac,
            mtu: self.info.mtu,
            addresses: self.addresses.clone(),
        }
    }

    /// Returns the slow path's view of it, for the engine that owns it.
    pub fn in_slow_path(&self, wanted: &config::Vlan) -> slowpath::InterfaceConfig {
        slowpath::InterfaceConfig {
            id: self.id,
            name: self.name.clone(),
            mac: self.info.mac,
            mtu: self.info.mtu,
            addresses: self.addresses.clone(),
            host: self.host.is_some(),
            settings: wanted.interface.settings.clone(),
            owned: true,
        }
    }
}

/// The VLANs that run, by their numbers.
pub type OpenVlans = BTreeMap<InterfaceId, OpenVlan>;

/// Host interfaces of VLANs that are to be attached to the slow path.
pub type Hosts = BTreeMap<InterfaceId, HostInterface>;

/// Returns the port that carries a VLAN's frames.
pub fn port_of(config: &Config, vlan: &config::Vlan) -> Option<PortId> {
    vlan.parent.port().or_else(|| config.vlan(vlan.parent)?.parent.port())
}

/// Adds the properties of a configuration's VLANs to those of its ports, by interface number.
///
/// # Errors
/// A VLAN's MTU is larger than its port's.
pub fn add_infos(config: &Config, infos: &mut Vec<InterfaceInfo>) -> Result<()> {
    for vlan in &config.vlans {
        let Some(port) = port_of(config, vlan) else { continue };
        let of_port = infos.get(port.index()).copied().unwrap_or(InterfaceInfo::NONE);
        let parent = config.vlan(vlan.parent).and_then(|parent| parent.mtu);
        let mtu = vlan.mtu.or(parent).unwrap_or(of_port.mtu);
        ensure!(
            mtu <= of_port.mtu,
            "{}:{}: vlan \"{}\": mtu {mtu} is larger than that of port \"{}\", {}; lower it, or raise the port's",
            config.file.display(),
            vlan.line,
            vlan.name,
            config.port(port).map_or("?", |port| &port.name),
            of_port.mtu,
        );
        let index = vlan.id.index();
        if infos.len() <= index {
            infos.resize(index + 1, InterfaceInfo::NONE);
        }
        infos[index] = InterfaceInfo {
            mtu,
            vrf: vlan.interface.settings.vrf,
            host: vlan.interface.host.is_some(),
            features: vlan.interface.features(),
            ..of_port
        };
    }
    Ok(())
}

/// Returns the data plane's table of a configuration's VLANs, on ports with these properties.
pub fn table(config: &Config, infos: &[InterfaceInfo]) -> Vlans {
    let loses = |port: &PortId| infos.get(port.index()).is_some_and(|info| info.loses_tag_protocol);
    let ports: PortSet = config.ports.iter().map(|port| port.id).filter(loses).collect();
    Vlans::new(&config.vlans_on_wire(), ports)
}

/// Opens a VLAN's host interface if the configuration asks for one.
pub fn host(
    opener: &Opener,
    wanted: &config::Vlan,
    info: InterfaceInfo,
) -> Result<Option<HostInterface>> {
    opener.host_of("vlan", &wanted.name, wanted.interface.host.as_ref(), info)
}

/// Opens the host interfaces of all VLANs of a configuration, with these properties.
pub fn open_hosts(opener: &Opener, config: &Config, infos: &[InterfaceInfo]) -> Result<Hosts> {
    let mut hosts = Hosts::new();
    for vlan in &config.vlans {
        let info = infos.get(vlan.id.index()).copied().unwrap_or(InterfaceInfo::NONE);
        if let Some(host) = host(opener, vlan, info)? {
            opener.keep_host(&host);
            hosts.insert(vlan.id, host);
        }
    }
    Ok(hosts)
}

/// Creates all VLANs of a configuration, with these properties and host interfaces.
pub fn open_all(config: &Config, infos: &[InterfaceInfo], hosts: &Hosts) -> OpenVlans {
    let open = |vlan: &config::Vlan| {
        let info = infos.get(vlan.id.index()).copied()?;
        OpenVlan::new(config, vlan, info, hosts.get(&vlan.id))
    };
    config.vlans.iter().filter_map(open).map(|vlan| (vlan.id, vlan)).collect()
}
