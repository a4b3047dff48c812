//! Opens ports: those of the configuration at the start, and others later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use control::config::{self, Config};
use dataplane::port::{PortId, PortInfo};
use dpdk::qsbr::Qsbr;
use dpdk::{Device, Driver, Eal, Mempool, Port, PortConfig};
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
    /// What ports had counted that had its number before it: see `Ledger::traffic`.
    pub counted: [u64; 4],
}

/// What is known of a port that runs.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// As steps know it.
    pub info: PortInfo,
    /// The MAC that its device has.
    pub device_mac: wire::MacAddr,
}

/// The open ports by their numbers.
#[derive(Default)]
pub struct Ports(BTreeMap<PortId, OpenPort>);

impl Ports {
    /// The port with this number.
    pub fn get(&self, id: PortId) -> Option<&OpenPort> {
        self.0.get(&id)
    }

    /// Puts a port in.
    pub fn insert(&mut self, port: OpenPort) {
        self.0.insert(port.id, port);
    }

    /// Takes a port out.
    pub fn remove(&mut self, id: PortId) -> Option<OpenPort> {
        self.0.remove(&id)
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

    /// What whoever prepares a change must know of each.
    pub fn known(&self) -> BTreeMap<PortId, Known> {
        let known =
            |port: &OpenPort| Known { info: port.info, device_mac: wire::MacAddr(port.port.mac()) };
        self.iter().map(|port| (port.id, known(port))).collect()
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

/// A port that was opened, and the queues it got.
pub struct Opened {
    /// The port.
    pub port: OpenPort,
    /// Its queues.
    pub queues: Queues,
}

/// Opens ports, at the start and later.
#[derive(Clone)]
pub struct Opener {
    eal: Arc<Eal>,
    buffers: Buffers,
    store: Arc<Mutex<FdStore>>,
}

impl Opener {
    /// With memory from these buffers.
    pub fn new(eal: Arc<Eal>, buffers: Buffers) -> Self {
        Self { eal, buffers, store: Arc::new(Mutex::new(FdStore::of_environment())) }
    }

    /// Opens all ports of a configuration, each with a queue for each of `forwarders` where the device
    /// has them. To be called once, at the start.
    pub fn open_all(&self, config: &Config, forwarders: usize) -> Result<(Ports, Vec<Queues>)> {
        let (mut ports, mut queues) = (Vec::new(), Vec::new());
        for wanted in &config.ports {
            let open = || {
                let pool = self.buffers.of(wanted);
                let mut opened = open_device(&self.eal, wanted, forwarders, pool)?;
                opened.attach(self.host(wanted, opened.port.info)?);
                Ok(opened)
            };
            let opened: Result<Opened> = open();
            let opened = opened.with_context(|| format!("port \"{}\"", wanted.name))?;
            ports.push(opened.port);
            queues.push(opened.queues);
        }
        self.store().forget_the_rest();
        Ok((ports.into_iter().collect(), queues))
    }

    /// Packet memory of its own for a port that is opened while the router runs.
    pub fn memory(&self, wanted: &config::Port, forwarders: usize) -> Result<Mempool> {
        let pool = self.buffers.later(&self.eal, wanted, forwarders);
        pool.with_context(|| format!("port \"{}\"", wanted.name))
    }

    /// Opens the device of a port while the router runs.
    pub fn device(
        &self,
        wanted: &config::Port,
        forwarders: usize,
        memory: &Mempool,
    ) -> Result<Opened> {
        open_device(&self.eal, wanted, forwarders, memory)
            .with_context(|| format!("port \"{}\"", wanted.name))
    }

    /// Opens the host interface of a port if it is to have one.
    pub fn host(&self, wanted: &config::Port, info: PortInfo) -> Result<Option<HostInterface>> {
        let Some(host) = &wanted.host else { return Ok(None) };
        let (name, netns) = (&wanted.name, host.netns_path());
        let (mac, mtu) = (info.mac, info.mtu);
        let store = &mut self.store();
        let interface =
            HostInterface::open(name, mac, mtu, netns.as_deref(), host.segmentation, store)
                .with_context(|| format!("port \"{name}\""))?;
        let place = netns.map_or(String::new(), |path| format!(" in {}", path.display()));
        tracing::info!("port \"{name}\": host interface {name}{place}");
        Ok(Some(interface))
    }

    /// Takes the host interface of a port that has none any more out of the kernel.
    pub fn remove_host(&self, interface: HostInterface) {
        interface.remove(&self.store());
    }

    /// Frees the packet memory of ports that are gone, when nobody has packets of theirs any more.
    pub fn tidy(&self, readers: &Arc<Qsbr>) {
        self.buffers.tidy(readers);
    }

    fn store(&self) -> MutexGuard<'_, FdStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Opened {
    /// Gives the port its host interface.
    pub fn attach(&mut self, host: Option<HostInterface>) {
        self.port.host = host.as_ref().map(HostInterface::view);
        self.queues.host = host;
    }
}

fn open_device(
    eal: &Eal,
    wanted: &config::Port,
    forwarders: usize,
    pool: &Mempool,
) -> Result<Opened> {
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
    let (port, rx, tx) = Port::open(eal, &request, pool)?;
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
    let id = wanted.id;
    let open = OpenPort {
        id,
        name: wanted.name.clone(),
        device,
        info,
        addresses: wanted.addresses.clone(),
        queues: (rx.len(), tx.len()),
        port,
        host: None,
        counted: [0; 4],
    };
    Ok(Opened { port: open, queues: Queues { port: id, info, rx, tx, host: None } })
}
