//! Bonds, VLANs and loopbacks that run: interfaces without a device of their own.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use control::config::{self, Bond, Config, KernelDevice, Virtual};
use control::rib::RibInterface;
use dataplane::bond::BondSpec;
use dataplane::bond::Bonds;
use dataplane::interface::{InterfaceId, InterfaceInfo};
use dataplane::port::PortId;
use dataplane::vlan::{TagDevices, Vlans};
use ipnet::IpNet;
use wire::MacAddr;

use super::host::{HostInterface, HostView};
use super::ports::Opener;

/// A bond, a VLAN that receives and sends by its port or bond, or a loopback, which does neither.
pub struct OpenVirtual {
    /// Its number.
    pub id: InterfaceId,
    /// The statement: `bond`, `vlan` or `loopback`.
    pub kind: &'static str,
    /// Its name in the configuration.
    pub name: String,
    /// The interface that carries a VLAN's frames: a port's own, or a bond. `None`: it is no VLAN.
    pub lower: Option<InterfaceId>,
    /// The data plane's view of it.
    pub info: InterfaceInfo,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Its host interface, if it has one.
    pub host: Option<HostView>,
}

impl OpenVirtual {
    /// Creates it from the configuration, with these properties and this host interface; `None` if its parent is
    /// missing.
    pub fn new(
        config: &Config,
        wanted: Virtual<'_>,
        info: InterfaceInfo,
        host: Option<&HostInterface>,
    ) -> Option<Self> {
        let lower = match wanted.parent {
            Some(_) => Some(lower_of(config, wanted)?),
            None => None,
        };
        Some(Self {
            id: wanted.id,
            kind: wanted.kind,
            name: wanted.name.to_owned(),
            lower,
            info,
            addresses: wanted.interface.addresses.clone(),
            host: host.map(HostInterface::view),
        })
    }

    /// Returns the kernel's VLAN device that is its host interface, if it has no other.
    pub fn kernel_device(&self) -> Option<&KernelDevice> {
        self.host.as_ref()?.kernel_device.as_ref()
    }

    /// Returns true if it has no link.
    pub fn is_loopback(&self) -> bool {
        self.kind == config::LOOPBACK
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
            is_loopback: self.is_loopback(),
        }
    }

    /// Returns the slow path's view of it, for the engine that owns it.
    pub fn in_slow_path(&self, wanted: Virtual<'_>) -> slowpath::InterfaceConfig {
        slowpath::InterfaceConfig {
            id: self.id,
            name: self.name.clone(),
            mac: self.info.mac,
            mtu: self.info.mtu,
            addresses: self.addresses.clone(),
            host: self.host.is_some(),
            is_loopback: self.is_loopback(),
            settings: wanted.interface.settings.clone(),
            owned: true,
        }
    }
}

/// The bonds, VLANs and loopbacks that run, by their numbers.
pub type OpenVirtuals = BTreeMap<InterfaceId, OpenVirtual>;

/// Host interfaces of bonds, VLANs and loopbacks that are to be attached to the slow path.
pub type Hosts = BTreeMap<InterfaceId, HostInterface>;

/// Returns the interface that carries a VLAN's frames: a port's own, or a bond. `None` for a bond.
fn lower_of(config: &Config, of: Virtual<'_>) -> Option<InterfaceId> {
    config.carrier(config.vlan(of.id)?)
}

/// Returns the bonds and VLANs whose frames come and go by this port.
pub fn on_port<'a>(config: &'a Config, port: &config::Port) -> impl Iterator<Item = Virtual<'a>> {
    let (own, bond) = (InterfaceId::from(port.id), port.bond);
    config.virtuals().filter(move |&of| {
        let carrier = lower_of(config, of).unwrap_or(of.id);
        carrier == own || Some(carrier) == bond
    })
}

fn info_of(infos: &[InterfaceInfo], id: InterfaceId) -> InterfaceInfo {
    infos.get(id.index()).copied().unwrap_or(InterfaceInfo::NONE)
}

/// Adds the properties of a configuration's bonds, VLANs and loopbacks to those of its ports, by interface number.
///
/// # Errors
/// A VLAN's MTU is larger than its port's or bond's, or a bond's ports have different MTUs.
pub fn add_infos(config: &Config, infos: &mut Vec<InterfaceInfo>) -> Result<()> {
    for bond in &config.bonds {
        let info = of_bond(config, bond, infos)?;
        put(infos, bond.id, info);
    }
    for vlan in &config.vlans {
        let Some(lower) = config.carrier(vlan) else { continue };
        let of_lower = info_of(infos, lower);
        let parent = config.vlan(vlan.parent).and_then(|parent| parent.mtu);
        let mtu = vlan.mtu.or(parent).unwrap_or(of_lower.mtu);
        let name_of = |id| config.interfaces().find(|(of, ..)| *of == id).map_or("?", |it| it.1);
        let kind = if lower.port().is_some() { "port" } else { "bond" };
        ensure!(
            mtu <= of_lower.mtu,
            "{}:{}: vlan \"{}\": mtu {mtu} is larger than that of {kind} \"{}\", {}; lower it, or raise the {kind}'s",
            config.file.display(),
            vlan.line,
            vlan.name,
            name_of(lower),
            of_lower.mtu,
        );
        let info = with_settings(InterfaceInfo { mtu, ..of_lower }, &vlan.interface);
        put(infos, vlan.id, info);
    }
    for loopback in &config.loopbacks {
        let info = InterfaceInfo {
            mac: loopback_mac(loopback.id),
            mtu: LOOPBACK_MTU,
            ..InterfaceInfo::NONE
        };
        put(infos, loopback.id, with_settings(info, &loopback.interface));
    }
    Ok(())
}

/// The MTU of loopbacks: as large as that of any other interface, so that none is the smallest.
const LOOPBACK_MTU: u16 = 9216;

/// Returns the MAC of a loopback's host interface, which no frame has: locally administered, another for each.
fn loopback_mac(id: InterfaceId) -> MacAddr {
    let [high, low] = (id.index() as u16).to_be_bytes();
    MacAddr([0x02, 0, 0x5e, 0, high, low])
}

fn put(infos: &mut Vec<InterfaceInfo>, id: InterfaceId, info: InterfaceInfo) {
    let index = id.index();
    if infos.len() <= index {
        infos.resize(index + 1, InterfaceInfo::NONE);
    }
    infos[index] = info;
}

fn with_settings(info: InterfaceInfo, interface: &config::Interface) -> InterfaceInfo {
    InterfaceInfo {
        vrf: interface.settings.vrf,
        host: interface.host.is_some(),
        features: interface.features(),
        ..info
    }
}

/// Returns the properties of a bond. Its MAC is that of its first port unless configured.
fn of_bond(config: &Config, bond: &Bond, infos: &[InterfaceInfo]) -> Result<InterfaceInfo> {
    let place = || format!("{}:{}: bond \"{}\"", config.file.display(), bond.line, bond.name);
    let name = |port: PortId| config.port(port).map_or("?", |port| &port.name);
    // A port that waits for its device has no MTU yet.
    let of_ports = bond.ports.iter().map(|&port| (port, info_of(infos, port.into())));
    let of_ports: Vec<_> = of_ports.filter(|(_, info)| info.mtu != u16::MAX).collect();
    let (least, mtu) = of_ports
        .iter()
        .map(|(port, info)| (*port, info.mtu))
        .min_by_key(|(_, mtu)| *mtu)
        .unwrap_or((PortId::FIRST, u16::MAX));
    if let Some(own) = bond.mtu {
        ensure!(
            own <= mtu,
            "{}: mtu {own} is larger than that of port \"{}\", {mtu}; lower it, or raise the port's",
            place(),
            name(least)
        );
    } else if let Some((other, info)) = of_ports.iter().find(|(_, info)| info.mtu != mtu) {
        anyhow::bail!(
            "{}: port \"{}\" has an MTU of {mtu}, and port \"{}\" one of {}; give all the same, or write mtu = {mtu} \
             in the bond",
            place(),
            name(least),
            name(*other),
            info.mtu
        );
    }
    let first = of_ports.first().map_or(InterfaceInfo::NONE, |(_, info)| *info);
    let any = |has: fn(&InterfaceInfo) -> bool| of_ports.iter().any(|(_, info)| has(info));
    let info = InterfaceInfo {
        mac: bond.mac.unwrap_or(first.mac),
        mtu: bond.mtu.unwrap_or(mtu),
        partial_checksums: any(|info| info.partial_checksums),
        loses_tag_protocol: any(|info| info.loses_tag_protocol),
        inserts_tags: false,
        ..first
    };
    Ok(with_settings(info, &bond.interface))
}

/// Returns the data plane's bonds of a configuration, with these properties.
pub fn bonds(config: &Config, infos: &[InterfaceInfo]) -> Vec<BondSpec> {
    let spec = |bond: &Bond| BondSpec {
        interface: bond.id,
        mac: info_of(infos, bond.id).mac,
        ports: bond.ports.clone(),
        fields: bond.hash,
    };
    config.bonds.iter().map(spec).collect()
}

/// Returns the data plane's table of a configuration's VLANs, on ports with these properties and these bonds.
pub fn vlans(config: &Config, infos: &[InterfaceInfo], bonds: &Bonds) -> Vlans {
    let ports = |has: fn(InterfaceInfo) -> bool| {
        let ids = config.ports.iter().map(|port| port.id);
        ids.filter(|port| has(info_of(infos, (*port).into()))).collect()
    };
    let devices = TagDevices {
        lose_protocol: ports(|info| info.loses_tag_protocol),
        insert: ports(|info| info.inserts_tags),
    };
    Vlans::new(&config.vlans_on_wire(), devices, bonds)
}

/// Opens the host interfaces of all bonds, VLANs and loopbacks of a configuration, with these properties.
pub fn open_hosts(opener: &Opener, config: &Config, infos: &[InterfaceInfo]) -> Result<Hosts> {
    let mut hosts = Hosts::new();
    for wanted in config.virtuals() {
        let Virtual { kind, id, name, interface, .. } = wanted;
        if let Some(host) = opener.host_of(
            kind,
            name,
            interface.host.as_ref(),
            config.kernel_device(id),
            info_of(infos, id),
        )? {
            opener.keep_host(&host);
            hosts.insert(id, host);
        }
    }
    Ok(hosts)
}

/// Creates all bonds, VLANs and loopbacks of a configuration, with these properties and host interfaces.
pub fn open_all(config: &Config, infos: &[InterfaceInfo], hosts: &Hosts) -> OpenVirtuals {
    let open = |wanted: Virtual<'_>| {
        let info = infos.get(wanted.id.index()).copied()?;
        OpenVirtual::new(config, wanted, info, hosts.get(&wanted.id))
    };
    config.virtuals().filter_map(open).map(|open| (open.id, open)).collect()
}
