//! Opens the ports of a configuration.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use control::config::{self, Config};
use dataplane::port::{PortId, PortInfo};
use dpdk::{Device, Driver, Eal, Port, PortConfig};
use ipnet::IpNet;

use super::buffers::Buffers;
use super::fd_store::FdStore;
use super::host::{HostInterface, HostView};
use super::wiring::Queues;

/// A port that receives and sends.
pub struct OpenPort {
    /// Its number.
    pub id: PortId,
    /// Its name in the configuration.
    pub name: String,
    /// Its device as the configuration says it.
    pub device: String,
    /// What the data plane knows of it.
    pub info: PortInfo,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Queues in use, receive and transmit.
    pub queues: (usize, usize),
    /// The device.
    pub port: Port,
    /// Its host interface, if it has one.
    pub host: Option<HostView>,
}

/// The open ports by their numbers.
#[derive(Default)]
pub struct Ports(BTreeMap<PortId, OpenPort>);

impl Ports {
    /// The port with this number.
    pub fn get(&self, id: PortId) -> Option<&OpenPort> {
        self.0.get(&id)
    }

    /// All, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &OpenPort> {
        self.0.values()
    }

    /// All, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut OpenPort> {
        self.0.values_mut()
    }

    /// What is known of each, by the numbers; [`PortInfo::NONE`] where there is none.
    pub fn infos(&self) -> Vec<PortInfo> {
        let mut infos = Vec::new();
        for port in self.iter() {
            infos.resize(port.id.index(), PortInfo::NONE);
            infos.push(port.info);
        }
        infos
    }

    /// Their devices.
    pub fn into_devices(self) -> Vec<Port> {
        self.0.into_values().map(|port| port.port).collect()
    }
}

impl FromIterator<OpenPort> for Ports {
    fn from_iter<I: IntoIterator<Item = OpenPort>>(ports: I) -> Self {
        Self(ports.into_iter().map(|port| (port.id, port)).collect())
    }
}

/// Opens all ports, each with a queue for each of `forwarders` where the device has them.
pub fn open_all(
    config: &Config,
    forwarders: usize,
    eal: &Eal,
    buffers: &Buffers,
) -> Result<(Ports, Vec<Queues>)> {
    let mut ports = Vec::new();
    let mut queues = Vec::new();
    let mut store = FdStore::of_environment();
    for wanted in &config.ports {
        let (port, its_queues) = open(wanted, forwarders, eal, buffers, &mut store)
            .with_context(|| format!("port \"{}\"", wanted.name))?;
        ports.push(port);
        queues.push(its_queues);
    }
    store.forget_the_rest();
    Ok((ports.into_iter().collect(), queues))
}

fn open(
    wanted: &config::Port,
    forwarders: usize,
    eal: &Eal,
    buffers: &Buffers,
    store: &mut FdStore,
) -> Result<(OpenPort, Queues)> {
    let device = wanted.device.to_string();
    let mut request = PortConfig::new(&wanted.name, Device::parse(&device)?);
    request.rx_queues = wanted.rx_queues.unwrap_or(forwarders as u16);
    request.tx_queues = forwarders as u16;
    request.mtu = wanted.mtu;
    // A MAC that the device does not know passes its filter only if there is none.
    request.promiscuous = wanted.mac.is_some();
    request.driver = wanted.driver.map(|driver| match driver {
        config::Driver::AfXdp => Driver::AfXdp,
        config::Driver::AfPacket => Driver::AfPacket,
    });
    let (port, rx, tx) = Port::open(eal, &request, buffers.of(wanted))?;
    for note in port.notes() {
        tracing::info!("port \"{}\": {note}", wanted.name);
    }
    let info = PortInfo {
        mac: wanted.mac.unwrap_or(wire::MacAddr(port.mac())),
        mtu: port.mtu(),
        partial_checksums: port.partial_checksums(),
        host: wanted.host.is_some(),
        redirects: wanted.redirects,
        reverse_path: wanted.reverse_path,
    };
    tracing::info!(
        "port \"{}\": {device} by {}, {}, MTU {}, {} receive and {} transmit queues",
        wanted.name,
        port.driver(),
        info.mac,
        info.mtu,
        rx.len(),
        tx.len()
    );
    let host = open_host(wanted, info, store)?;
    let id = wanted.id;
    let open = OpenPort {
        id,
        name: wanted.name.clone(),
        device,
        info,
        addresses: wanted.addresses.clone(),
        queues: (rx.len(), tx.len()),
        port,
        host: host.as_ref().map(HostInterface::view),
    };
    Ok((open, Queues { port: id, info, rx, tx, host }))
}

fn open_host(
    wanted: &config::Port,
    info: PortInfo,
    store: &mut FdStore,
) -> Result<Option<HostInterface>> {
    let Some(host) = &wanted.host else { return Ok(None) };
    let netns = host.netns_path();
    let interface = HostInterface::open(&wanted.name, info.mac, info.mtu, netns.as_deref(), store)?;
    let place = netns.map_or(String::new(), |path| format!(" in {}", path.display()));
    tracing::info!("port \"{}\": host interface {}{place}", wanted.name, wanted.name);
    Ok(Some(interface))
}
