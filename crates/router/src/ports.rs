//! Opens ports: those of the configuration at the start, and others later.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};

use anyhow::{Context, Result, anyhow};
use control::config::{self, Config, KernelDevice};
use dataplane::interface::InterfaceInfo;
use dataplane::port::PortId;
use dataplane::words::count;
use dpdk::qsbr::Qsbr;
use dpdk::{
    ControlQueues, Device, Driver, Eal, FlowRule, LinkWatch, Mempool, Offloads, Port, PortConfig,
    RxQueue, TxQueue,
};
use ipnet::IpNet;
use machine::bind::Binder;
use machine::bind::ports::{Bindings, Hold};
use machine::place::Place;

use super::buffers::Buffers;
use super::control_rules::Steered;
use super::fd_store::{FdStore, SharedStore};
use super::flow_rules::Placed;
use super::host::{DeviceWork, HostInterface, HostView, Taps};
use super::owner::WantedMulticasts;
use super::queues;
use super::removals::{Removal, Removals};
use super::wiring::Queues;

/// DPDK's driver of AF_PACKET sockets. It reinserts the tag that the kernel stripped, always as a customer tag.
const AF_PACKET: &str = "net_af_packet";

/// DPDK's driver of AF_XDP sockets. A port's control queue is an AF_PACKET socket then.
const AF_XDP: &str = "net_af_xdp";

/// Returns true if the outer tag of received frames may be another than on the wire.
fn loses_tag_protocol(port: &Port, control: &ControlQueues) -> bool {
    port.driver() == AF_PACKET || control.rx && port.driver() == AF_XDP
}

/// A port that receives and sends.
pub struct OpenPort {
    /// Its number.
    pub id: PortId,
    /// Its name in the configuration.
    pub name: String,
    /// Its device as the configuration says it.
    pub device: String,
    /// Its properties for the data plane.
    pub info: InterfaceInfo,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
    /// Queues in use, receive and transmit.
    pub queues: (usize, usize),
    /// The NUMA node of the device, if it is known and there are several.
    pub node: Option<usize>,
    /// The kernel's driver by which DPDK has a PCI device.
    pub driver: Option<String>,
    /// The device.
    pub port: Port,
    /// Its host interface, if it has one.
    pub host: Option<HostView>,
    /// The rules of its filter that its device holds.
    pub rules: Placed<FlowRule>,
    /// The rules by which its device brings control traffic to a receive queue of its own.
    pub steered: Steered<FlowRule>,
    /// The multicasts that its device was asked to pass on, and why all of them.
    pub multicasts: Option<WantedMulticasts>,
    /// The counts of earlier ports with its number: see `Ledger::traffic`.
    pub counted: [u64; 4],
    /// Keeps its device bound, if the router has bound it.
    pub hold: Option<Hold>,
}

impl OpenPort {
    /// The kernel's number of the interface that it is made of, if it is one.
    pub fn interface(&self) -> Option<u32> {
        match self.port.link_watch() {
            LinkWatch::Kernel(index) => Some(index),
            LinkWatch::Interrupt | LinkWatch::Nobody => None,
        }
    }

    /// Returns true if it is made of the kernel's interface with this number.
    pub fn is_interface(&self, index: u32) -> bool {
        self.interface() == Some(index)
    }

    /// Returns true if it is made of the PCI device with this address.
    pub fn is_pci(&self, address: &str) -> bool {
        self.device == address
    }
}

/// The properties of a running port.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// As steps know it.
    pub info: InterfaceInfo,
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

    /// Returns the properties of each for steps, by number; [`InterfaceInfo::NONE`] if there is no such port.
    pub fn infos(&self) -> Vec<InterfaceInfo> {
        let mut infos = Vec::new();
        for port in self.iter() {
            infos.resize(port.id.index(), InterfaceInfo::NONE);
            infos.push(port.info);
        }
        infos
    }

    /// Returns the properties of each that the preparation of a change needs.
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

/// A device with its queues, receive and transmit.
type OpenQueues = (Port, Vec<RxQueue>, Vec<TxQueue>);

/// Opens ports, at the start and later.
#[derive(Clone)]
pub struct Opener {
    eal: Arc<Eal>,
    buffers: Buffers,
    bindings: Arc<Bindings>,
    store: SharedStore,
    taps: Taps,
    removals: Removals,
}

impl Opener {
    /// With memory from these buffers, for devices that are bound so and host interfaces that are kept there.
    pub fn new(
        eal: Arc<Eal>,
        buffers: Buffers,
        bindings: Arc<Bindings>,
        store: SharedStore,
    ) -> Self {
        let (taps, removals) = Default::default();
        Self { eal, buffers, bindings, store, taps, removals }
    }

    /// The DPDK that ports are opened with.
    pub fn eal(&self) -> &Arc<Eal> {
        &self.eal
    }

    /// Gives devices back that the router has bound and that are not wanted any more.
    pub fn give_back_unused(&self, wanted: &BTreeSet<String>) {
        self.bindings.give_back_unused(wanted, |address| dpdk::is_port(&self.eal, address));
    }

    /// Opens all ports of a configuration, each with a queue for each of `forwarders` where the device
    /// has them. To be called once, at the start.
    pub fn open_all(&self, config: &Config, forwarders: usize) -> Result<(Ports, Vec<Queues>)> {
        let (mut ports, mut queues) = (Vec::new(), Vec::new());
        for wanted in &config.ports {
            let open = || {
                let pool = self.buffers.of(wanted);
                let mut opened = self.open_device(wanted, forwarders, pool)?;
                let host = self.host(wanted, opened.port.info, Some(&opened.port))?;
                host.iter().for_each(|host| self.keep_host(host));
                opened.attach(host);
                Ok(opened)
            };
            let opened: Result<Opened> = open();
            let opened = opened.of_port(&wanted.name)?;
            ports.push(opened.port);
            queues.push(opened.queues);
        }
        Ok((ports.into_iter().collect(), queues))
    }

    /// Packet memory of its own for a port that is opened while the router runs.
    pub fn memory(&self, wanted: &config::Port, forwarders: usize) -> Result<Mempool> {
        let pool = self.buffers.later(&self.eal, wanted, forwarders);
        pool.of_port(&wanted.name)
    }

    /// Opens the device of a port while the router runs.
    pub fn device(
        &self,
        wanted: &config::Port,
        forwarders: usize,
        memory: &Mempool,
    ) -> Result<Opened> {
        self.open_device(wanted, forwarders, memory).of_port(&wanted.name)
    }

    /// Opens the host interface of a port if it is to have one; that of an accelerated port is its open device.
    pub fn host(
        &self,
        wanted: &config::Port,
        info: InterfaceInfo,
        open: Option<&OpenPort>,
    ) -> Result<Option<HostInterface>> {
        if wanted.accelerate {
            let acceleration = open.and_then(|open| open.port.acceleration());
            let acceleration = acceleration.context("the device is not accelerated")?;
            let returner = acceleration.returner().map_err(|problem| anyhow!(problem))?;
            return HostInterface::of_device(&wanted.name, returner).map(Some);
        }
        self.host_of("port", &wanted.name, wanted.interface.host.as_ref(), None, info)
    }

    /// Opens the host interface of an interface, as `kind` says, if it is to have one; it is the kernel's device if
    /// there is one for it.
    pub fn host_of(
        &self,
        kind: &str,
        name: &str,
        host: Option<&config::HostInterface>,
        device: Option<KernelDevice>,
        info: InterfaceInfo,
    ) -> Result<Option<HostInterface>> {
        let Some(host) = host else { return Ok(None) };
        let netns = host.netns_path();
        let (mac, mtu) = (info.mac, info.mtu);
        if let Some(device) = device {
            let kinds = (host.is_device, host.segmentation);
            let on = HostInterface::on(device, &self.taps, name, netns.as_deref(), kinds);
            return on.with_context(|| format!("{kind} \"{name}\"")).map(Some);
        }
        self.removals.wait();
        let store = &mut self.store();
        let mut interface =
            HostInterface::open(name, mac, mtu, netns.as_deref(), host.segmentation, store)
                .with_context(|| format!("{kind} \"{name}\""))?;
        if kind == config::LOOPBACK {
            interface.isolate().with_context(|| format!("{kind} \"{name}\""))?;
        }
        let place = netns.map_or(String::new(), |path| format!(" in {}", path.display()));
        tracing::info!("{kind} \"{name}\": host interface {name}{place}");
        Ok(Some(interface))
    }

    /// Takes the host interface of a port that has none any more out of the kernel.
    pub fn remove_host(&self, interface: HostInterface) {
        interface.remove(&mut self.store());
    }

    /// Host interfaces are going to be removed; until the result is dropped, none is opened.
    pub fn begin_removal(&self) -> Removal {
        self.removals.begin()
    }

    /// A port has this host interface from now on.
    pub fn keep_host(&self, interface: &HostInterface) {
        interface.keep(&mut self.store(), &self.taps);
    }

    /// No port has this host interface after all.
    pub fn give_up_host(&self, interface: &HostInterface) {
        interface.give_up(&mut self.store());
    }

    /// All host interfaces are open: others that were kept are given up.
    pub fn forget_other_hosts(&self) {
        self.store().forget_the_rest();
    }

    /// The router does its work.
    pub fn ready(&self) {
        self.store().ready();
    }

    /// Frees the packet memory of removed ports whose packets have all been freed.
    pub fn tidy(&self, readers: &Arc<Qsbr>) {
        self.buffers.tidy(readers);
    }

    fn open_device(
        &self,
        wanted: &config::Port,
        forwarders: usize,
        pool: &Mempool,
    ) -> Result<Opened> {
        let hold = self.bindings.take(wanted)?;
        let request = request(wanted, forwarders)?;
        let node = self.buffers.node_of(&wanted.device);
        let mut opened = opened(wanted, node, Port::open(&self.eal, &request, pool)?);
        opened.port.hold = hold;
        Ok(opened)
    }

    fn store(&self) -> MutexGuard<'_, FdStore> {
        self.store.lock()
    }
}

impl Opened {
    /// Gives the port its host interface, which leaves to the device what it does for it.
    pub fn attach(&mut self, mut host: Option<HostInterface>) {
        if let Some(host) = &mut host {
            host.set_device(DeviceWork::of(&self.port.port));
        }
        self.port.host = host.as_ref().map(HostInterface::view);
        self.queues.host = host;
    }
}

/// Returns the port's configuration for DPDK.
pub fn request(wanted: &config::Port, forwarders: usize) -> Result<PortConfig> {
    let mut request = PortConfig::new(&wanted.name, Device::parse(&wanted.device.to_string())?);
    let each = forwarders as u16;
    request.rx_queues = wanted.queues.rx_wish().unwrap_or(each);
    request.tx_queues = wanted.queues.tx_wish().unwrap_or(each);
    request.control_queue = wanted.queues.control;
    request.exact_rx_queues = wanted.queues.rx_wish().is_some();
    request.exact_tx_queues = wanted.queues.tx_wish().is_some();
    request.rx_desc = wanted.queues.rx_descriptors;
    request.tx_desc = wanted.queues.tx_descriptors;
    request.rx_thresholds = wanted.queues.rx_thresholds;
    request.tx_thresholds = wanted.queues.tx_thresholds;
    request.rss = queues::device_rss(wanted);
    request.mtu = wanted.mtu;
    // The kernel leaves checksums and segmentation to the host interface only where it may.
    request.requests = wanted.interface.host.as_ref().is_some_and(|host| host.segmentation);
    request.offloads = wanted.offloads.clone();
    request.mac = wanted.mac.map(|mac| mac.0);
    request.promiscuous = wanted.promiscuous;
    request.link = wanted.link;
    request.accelerate = wanted.accelerate;
    request.in_kernel = wanted.in_kernel.then(|| wanted.id.index() as u8);
    request.flows = wanted.interface.is_translated;
    request.driver = wanted.driver.and_then(|driver| match driver {
        config::Driver::AfXdp => Some(Driver::AfXdp),
        config::Driver::AfPacket => Some(Driver::AfPacket),
        // The kernel's, to which the device is bound already.
        config::Driver::VfioPci | config::Driver::UioPciGeneric => None,
    });
    Ok(request)
}

/// The names of the offloads that are used.
fn used(offloads: &Offloads) -> String {
    let on = offloads.iter().filter(|state| state.on).map(|state| state.offload.name());
    let on: Vec<_> = on.collect();
    if on.is_empty() { "none".to_owned() } else { on.join(", ") }
}

fn opened(wanted: &config::Port, node: Option<usize>, open: OpenQueues) -> Opened {
    let (port, rx, tx) = open;
    let device = wanted.device.to_string();
    for note in port.notes() {
        tracing::info!("port \"{}\": {note}", wanted.name);
    }
    let control = port.control_queues().clone();
    if let Some(why) = &control.why {
        tracing::warn!(
            "port \"{}\": no receive queue for control traffic: {why}; forwarders receive it",
            wanted.name
        );
    }
    let info = InterfaceInfo {
        mac: wanted.mac.unwrap_or(wire::MacAddr(port.mac())),
        mtu: port.mtu(),
        vrf: wanted.interface.settings.vrf,
        partial_checksums: port.partial_checksums(),
        loses_tag_protocol: loses_tag_protocol(&port, &control),
        inserts_tags: port.inserts_tags(),
        host: wanted.interface.host.is_some(),
        features: wanted.interface.features(),
    };
    tracing::info!(
        "port \"{}\": {device} by {}, {}, MTU {}, {} of {} and {} of {} descriptors",
        wanted.name,
        port.driver(),
        info.mac,
        info.mtu,
        count(rx.len(), "receive queue"),
        port.descriptors().0,
        count(tx.len(), "transmit queue"),
        port.descriptors().1
    );
    tracing::info!("port \"{}\": offloads: {}", wanted.name, used(port.offloads()));
    let (id, burst) = (wanted.id, usize::from(port.rx_burst()));
    let open = OpenPort {
        id,
        name: wanted.name.clone(),
        device,
        info,
        addresses: wanted.interface.addresses.clone(),
        queues: (rx.len(), tx.len()),
        node,
        driver: match &wanted.device {
            config::Device::Pci(address) => Binder::here().driver(address),
            _ => None,
        },
        port,
        host: None,
        rules: Placed::default(),
        steered: Steered::default(),
        multicasts: None,
        counted: [0; 4],
        hold: None,
    };
    let (plan, host, control) = (queues::plan(wanted), None, (control.rx, control.tx));
    Opened {
        port: open,
        queues: Queues { port: id, info, rx, tx, host, node, burst, control, plan },
    }
}
