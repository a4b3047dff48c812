//! Ports: a device, configured and started, with its queues.
//!
//! A port exists only started: [`Port::open`] attaches the device, configures it, sets up its
//! queues and starts it, or fails without a trace. It closes when the [`Port`] and all of its
//! queues are dropped.
//!
//! A kernel interface is driven by AF_XDP if that works through the whole sequence, else by AF_PACKET;
//! [`Port::driver`] and [`Port::notes`] report the driver and the reason.

pub(crate) mod accelerate;
mod bond_ports;
pub(crate) mod book;
mod bpf;
mod control;
mod events;
mod filter;
mod flow_rules;
pub(crate) mod flows;
pub(crate) mod in_kernel;
mod interrupts;
mod kernel;
mod libbpf;
mod link;
mod multicast;
mod offloads;
pub(crate) mod packet_ring;
mod packet_sockets;
pub(crate) mod queues;
mod record;
mod rings;
pub(crate) mod rss;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dpdk_sys as sys;

use self::accelerate::Acceleration;
pub use self::bond_ports::BondPort;
use self::bond_ports::BondPorts;
use self::control::ControlProgram;
pub use self::events::{DeviceEvent, DeviceEvents, Happening};
use self::filter::Filter;
pub use self::flow_rules::{FlowCount, FlowRefusal, FlowRule};
use self::interrupts::RxInterrupts;
use self::kernel::KernelInterface;
pub use self::kernel::interface_user;
pub use self::link::{Fec, LinkDetails, LinkWish, Pause};
pub use self::multicast::{MulticastFilter, Multicasts};
use self::offloads::{Need, Negotiated, negotiate};
use self::packet_ring::PacketRing;
use self::queues::{ControlQueues, Queues, Thresholds, Wish};
use self::record::Record;
use self::rings::Rings;
use self::rss::{Hash, RssConfig, RssTable};
use self::sockets::Sockets;
use crate::carrier::Carrier;
use crate::eal::{Eal, EalRef};
use crate::interface::Interface;
use crate::wait::eventfd;
use crate::{Device, Driver, Errno, Error, IovaMode, Mempool, RxQueue, TxQueue};

pub use self::offloads::{Offload, OffloadReason, OffloadState, OffloadWishes, Offloads};

/// Bytes of an Ethernet header and two VLAN tags, which the MTU does not include.
const FRAME_OVERHEAD: usize = 22;

/// Bytes of an Ethernet header.
const ETHERNET_LEN: u32 = 14;

/// The MTU of devices without a configured one.
const DEFAULT_MTU: u16 = 1500;

/// Descriptors in each ring of an AF_XDP socket, and packets that its driver keeps for receiving.
const AF_XDP_DESCRIPTORS: u16 = 2048;

/// Frames in each ring of an AF_PACKET socket.
const AF_PACKET_DESCRIPTORS: u16 = 1024;

/// Most sockets of the AF_PACKET driver (`RTE_PMD_AF_PACKET_MAX_RINGS`).
const AF_PACKET_QUEUES: u16 = 16;

/// Bytes that AF_XDP leaves free in front of each packet, in addition to DPDK's own headroom.
const AF_XDP_HEADROOM: usize = 256;

/// Settings of a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The name in the configuration, for messages.
    pub name: String,
    /// Device of the port.
    pub device: Device,
    /// For a kernel interface: the required driver; when not given, AF_XDP, else AF_PACKET.
    pub driver: Option<Driver>,
    /// True if the kernel interface stays the kernel's, and the port receives only what is to be forwarded; see
    /// [`accelerate`].
    pub accelerate: bool,
    /// The number of its interface in [`KernelTables`](crate::KernelTables) if the kernel interface stays the kernel's and its
    /// XDP program forwards by these, without the port; see [`in_kernel`].
    pub in_kernel: Option<u8>,
    /// Accelerated, it takes packets of the kernel's flows only; see [`flows`].
    pub flows: bool,
    /// Requested receive queues; the device may have fewer, unless the number is exact.
    pub rx_queues: u16,
    /// Requested transmit queues; the device may have fewer, unless the number is exact.
    pub tx_queues: u16,
    /// One more queue each way, for control traffic: see [`Port::control_queues`].
    pub control_queue: bool,
    /// True if fewer receive queues are an error.
    pub exact_rx_queues: bool,
    /// True if fewer transmit queues are an error.
    pub exact_tx_queues: bool,
    /// Descriptors of each receive queue; the driver's recommendation when not given.
    pub rx_desc: Option<u16>,
    /// Descriptors of each transmit queue; the driver's recommendation when not given.
    pub tx_desc: Option<u16>,
    /// Thresholds of each receive queue.
    pub rx_thresholds: Thresholds,
    /// Thresholds of each transmit queue.
    pub tx_thresholds: Thresholds,
    /// Distribution of packets to receive queues; the device's own when not given.
    pub rss: Option<RssConfig>,
    /// The largest IP packet in bytes; the kernel interface's own, or 1,500, when not given.
    pub mtu: Option<u16>,
    /// True to receive frames for other MAC addresses.
    pub promiscuous: bool,
    /// True if packets that request [`Offload::TxChecksum`] or [`Offload::Segmentation`] are sent.
    pub requests: bool,
    /// Offloads that must or must not be used; the others are chosen as described at [`Port::offloads`].
    pub offloads: OffloadWishes,
    /// The MAC address to receive frames for, instead of the device's own.
    pub mac: Option<[u8; 6]>,
    /// Settings of the link.
    pub link: LinkWish,
}

impl PortConfig {
    /// Creates settings with one queue each way of the driver's recommended size, and the device's MTU.
    pub fn new(name: &str, device: Device) -> Self {
        Self {
            name: name.into(),
            device,
            driver: None,
            accelerate: false,
            in_kernel: None,
            flows: false,
            rx_queues: 1,
            tx_queues: 1,
            control_queue: false,
            exact_rx_queues: false,
            exact_tx_queues: false,
            rx_desc: None,
            tx_desc: None,
            rx_thresholds: Thresholds::default(),
            tx_thresholds: Thresholds::default(),
            rss: None,
            mtu: None,
            promiscuous: false,
            requests: false,
            offloads: OffloadWishes::new(),
            mac: None,
            link: LinkWish::default(),
        }
    }

    fn error(&self, step: impl Into<String>, errno: Errno) -> Error {
        Error::Port { port: self.name.clone(), step: step.into(), errno }
    }

    fn refuse(&self, problem: String) -> Error {
        Error::PortConfig { port: self.name.clone(), problem }
    }

    fn c_string(&self, text: &str) -> Result<CString, Error> {
        CString::new(text).map_err(|_| self.refuse(format!("{text:?} holds a NUL byte")))
    }
}

/// The state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// True if frames can pass.
    pub up: bool,
    /// Megabits per second; 0 or [`u32::MAX`] when the device does not report it.
    pub speed_mbps: u32,
}

/// Source of notifications about a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkWatch {
    /// The device, by an interrupt: [`DeviceEvents`].
    Interrupt,
    /// The kernel, in which the interface has this index, by rtnetlink in the network namespace that the
    /// port was opened in.
    Kernel(u32),
    /// None: [`Port::link`] has to be polled.
    Nobody,
}

impl LinkWatch {
    /// Returns one word: `interrupt`, `netlink` or `polled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Kernel(_) => "netlink",
            Self::Nobody => "polled",
        }
    }
}

/// A port's own counters, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets received.
    pub ipackets: u64,
    /// Bytes received.
    pub ibytes: u64,
    /// Packets that the device dropped because the queue was full.
    pub imissed: u64,
    /// Packets received with errors.
    pub ierrors: u64,
    /// Packets dropped because the pool was empty.
    pub rx_nombuf: u64,
    /// Packets sent.
    pub opackets: u64,
    /// Bytes sent.
    pub obytes: u64,
    /// Packets that could not be sent.
    pub oerrors: u64,
}

/// A started port. Clones are handles to the same port; each of its queues holds one too.
#[derive(Clone)]
pub struct Port {
    open: Arc<OpenPort>,
}

/// A queue by its numbers in DPDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace {
    /// DPDK's number of the device.
    pub(crate) device: u16,
    /// Its number in the device.
    pub(crate) queue: u16,
}

/// The control queues of an AF_XDP port: a device of their own on the same interface, with one queue each way, and the
/// program that sends control traffic there; see [`control`]. The program goes first.
struct ControlSide {
    program: ControlProgram,
    started: Started,
}

/// The part of a port that its queues and handles share. Fields are dropped in this order: a program that takes packets
/// from the kernel, the devices, then the kernel interface is given back.
pub(crate) struct OpenPort {
    acceleration: Option<Acceleration>,
    control: Option<ControlSide>,
    started: Started,
    name: String,
    notes: Vec<String>,
    mtu: u16,
    /// Length of the longest frame that is sent, without VLAN tags.
    longest: AtomicU32,
    rx_queues: u16,
    tx_queues: u16,
    multicast: Mutex<multicast::State>,
    /// Of an accelerated bond.
    bond_ports: Option<Mutex<BondPorts>>,
    kernel: Option<KernelInterface>,
}

impl OpenPort {
    #[inline]
    pub(crate) fn id(&self) -> u16 {
        self.started.device.id
    }

    #[inline]
    pub(crate) fn supports_multi_segment(&self) -> bool {
        self.started.negotiated.tx & sys::SHIM_TX_OFFLOAD_MULTI_SEGS != 0
    }

    /// Returns true if its device inserts the VLAN tags that packets request.
    #[inline]
    pub(crate) fn inserts_tags(&self) -> bool {
        self.started.negotiated.inserts_tags
    }

    /// Returns the transmit offloads of its device, in DPDK's bits.
    #[inline]
    pub(crate) fn tx_offloads(&self) -> u64 {
        self.started.negotiated.tx
    }

    /// Returns true if its device reports results about received packets that the packet path uses.
    #[inline]
    pub(crate) fn says_more(&self) -> bool {
        let said = sys::SHIM_RX_OFFLOAD_IPV4_CKSUM | sys::SHIM_RX_OFFLOAD_VLAN_STRIP;
        self.started.negotiated.rx & said != 0
    }

    /// Returns the length of the longest frame, without VLAN tags, that is given to the device. A kernel
    /// drops frames longer than an interface's MTU without counting them.
    #[inline]
    pub(crate) fn longest(&self) -> u32 {
        self.longest.load(Ordering::Relaxed)
    }

    /// Its own device, and that of its control queues if they have one.
    fn devices(&self) -> impl Iterator<Item = &Started> {
        std::iter::once(&self.started).chain(self.control.as_ref().map(|control| &control.started))
    }

    /// Returns the number of packets that the kernel took and did not send, which DPDK's drivers do not
    /// count.
    fn unsent(&self) -> u64 {
        let dropped = self.kernel.as_ref().map_or(0, KernelInterface::unsent);
        let given_up = |ring: &PacketRing| ring.given_up.load(Ordering::Relaxed);
        dropped
            + self.devices().flat_map(|started| &started.packet_rings).map(given_up).sum::<u64>()
    }

    /// Returns the device that has a queue, the last of so many being that for control traffic, and the queue's
    /// number in it.
    fn device_of(&self, queue: u16, queues: u16) -> (&Started, u16) {
        match &self.control {
            Some(control) if queue + 1 == queues => (&control.started, 0),
            _ => (&self.started, queue),
        }
    }

    /// Returns the place of a receive queue.
    pub(crate) fn rx_place(&self, queue: u16) -> QueuePlace {
        let (started, queue) = self.device_of(queue, self.rx_queues);
        QueuePlace { device: started.device.id, queue }
    }

    /// Returns the place of a transmit queue.
    pub(crate) fn tx_place(&self, queue: u16) -> QueuePlace {
        let (started, queue) = self.device_of(queue, self.tx_queues);
        QueuePlace { device: started.device.id, queue }
    }

    /// Returns the ways in which the receive queues of this one's device wake a thread that blocks.
    pub(crate) fn rx_interrupts(&self, queue: u16) -> &RxInterrupts {
        &self.device_of(queue, self.rx_queues).0.rx_interrupts
    }

    /// Returns the ring of the AF_PACKET socket by which a queue sends.
    pub(crate) fn packet_ring(&self, queue: u16) -> Option<&PacketRing> {
        let (started, queue) = self.device_of(queue, self.tx_queues);
        started.packet_rings.get(usize::from(queue))
    }

    /// Returns the program that brings control traffic to its queue, if that is of a kernel interface.
    fn control_program(&self) -> Option<&ControlProgram> {
        self.control.as_ref().map(|control| &control.program)
    }

    /// Returns the pool of its receive queues.
    pub(crate) fn driver(&self) -> &str {
        &self.started.driver
    }

    pub(crate) fn pool(&self) -> &Mempool {
        &self.started.pool
    }
}

impl Port {
    /// Opens and starts a port whose receive queues take their packets from `pool`. It has as many queues as
    /// requested, if the device has them; a kernel interface has them in pairs, so there may be more receive
    /// queues than requested, when more transmit queues were. Every receive queue gets its share of the
    /// packets, so each must be served.
    ///
    /// # Errors
    /// [`Error::PortConfig`] with the conflict and the way out; [`Error::Port`] with the step that failed.
    pub fn open(
        eal: &Eal,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<(Self, Vec<RxQueue>, Vec<TxQueue>), Error> {
        if config.rx_queues == 0 || config.tx_queues == 0 {
            return Err(config.refuse("needs at least one queue each way".into()));
        }
        let open = Arc::new(match &config.device {
            Device::Kernel(name) => open_kernel(eal, config, pool, name)?,
            Device::Vdev { name, args } => {
                check_memory(eal, config, name)?;
                open_dpdk(eal, config, pool, "vdev", name, args)?
            }
            Device::Pci(address) => {
                check_iova_mode(config, address)?;
                check_memory(eal, config, address)?;
                open_dpdk(eal, config, pool, "pci", address, "")?
            }
        });
        let rx = (0..open.rx_queues).map(|queue| RxQueue::new(open.clone(), queue)).collect();
        let tx = (0..open.tx_queues).map(|queue| TxQueue::new(open.clone(), queue)).collect();
        Ok((Self { open }, rx, tx))
    }

    /// Closes ports without other users, and first waits, a second at most, until their devices have sent
    /// the packets they took. The packets of an AF_XDP port come back only when their receiver's kernel has
    /// processed them, which may take long on a busy machine.
    pub fn close_all(ports: Vec<Self>) {
        // A port with a queue left belongs to the queue's owner.
        let ports: Vec<_> =
            ports.into_iter().filter_map(|port| Arc::into_inner(port.open)).collect();
        let patience = Instant::now() + Duration::from_secs(1);
        while Instant::now() < patience {
            let busy = |port: &&OpenPort| port.started.has_unsent();
            let busy: Vec<_> = ports.iter().filter(busy).collect();
            if busy.is_empty() {
                break;
            }
            busy.iter().for_each(|port| port.started.poll_sent());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns DPDK's number for the port.
    pub fn id(&self) -> u16 {
        self.open.id()
    }

    /// Returns the name in the configuration.
    pub fn name(&self) -> &str {
        &self.open.name
    }

    /// Returns the DPDK driver: `net_af_xdp`, `net_af_packet`, `net_null`, `net_ixgbe` …
    pub fn driver(&self) -> &str {
        &self.open.started.driver
    }

    /// Returns notes for the operator about the port's set-up, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.open.notes
    }

    /// Returns the device's own MAC address, regardless of the address that it is configured to
    /// receive.
    pub fn mac(&self) -> [u8; 6] {
        self.open.started.filter.own
    }

    /// Returns the largest IP packet that the port was opened to send and receive, in bytes.
    pub fn mtu(&self) -> u16 {
        self.open.mtu
    }

    /// Returns the MTU that its kernel interface has now; `None` for other devices. From this call on,
    /// frames that are too long for it are [`Sent::too_long`](crate::Sent::too_long); an MTU above
    /// [`Port::mtu`] changes nothing.
    pub fn follow_mtu(&self) -> Option<u16> {
        let kernel = self.open.kernel.as_ref().filter(|kernel| kernel.is_there())?;
        let now = kernel.mtu().ok()?;
        let longest = u32::from(now.min(self.mtu())) + ETHERNET_LEN;
        self.open.longest.store(longest, Ordering::Relaxed);
        Some(now)
    }

    /// Returns the MAC address that its kernel interface has now, if it differs from [`Port::mac`].
    pub fn changed_mac(&self) -> Option<[u8; 6]> {
        let now = self.open.kernel.as_ref()?.mac()?;
        (now != self.mac()).then_some(now)
    }

    /// Returns the program by which it takes packets of an interface that stays the kernel's; `None`: it has all.
    pub fn acceleration(&self) -> Option<&Acceleration> {
        self.open.acceleration.as_ref()
    }

    /// Returns true if it is an accelerated bond of the kernel.
    pub fn is_bond(&self) -> bool {
        self.open.bond_ports.is_some()
    }

    /// Looks at frames of these ports of a bond from now on, by which the bond receives, and at none of others. Returns
    /// the ports whose frames stay with the kernel nevertheless, by the kernel's number, with the reasons.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn follow_bond(&self, ports: &[BondPort]) -> Result<BTreeMap<u32, String>, Errno> {
        let (Some(acceleration), Some(bond)) = (&self.open.acceleration, &self.open.bond_ports)
        else {
            return Ok(BTreeMap::new());
        };
        let mut prepared = bond.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, mut refused) = (BTreeSet::new(), BTreeMap::new());
        for port in ports.iter().filter(|port| port.receives) {
            match prepared.prepare(port) {
                Ok(()) => _ = taken.insert(port.index),
                Err(why) => _ = refused.insert(port.index, why),
            }
        }
        acceleration.take_bond_ports(&taken)?;
        // Not before: frames of a port without tags must not be taken.
        prepared.keep(ports);
        Ok(refused)
    }

    /// Returns the queues for control traffic, the last of each kind.
    pub fn control_queues(&self) -> &ControlQueues {
        &self.open.started.queues.control
    }

    /// Receive queues over which the device spreads what it receives: all but that for control traffic.
    fn spread_queues(&self) -> u16 {
        self.rx_queues() - u16::from(self.control_queues().rx)
    }

    /// Returns the number of receive queues, that for control traffic included.
    pub fn rx_queues(&self) -> u16 {
        self.open.rx_queues
    }

    /// Returns the number of transmit queues, that for control traffic included.
    pub fn tx_queues(&self) -> u16 {
        self.open.tx_queues
    }

    /// Returns the descriptors of each queue, receive and transmit.
    pub fn descriptors(&self) -> (u16, u16) {
        let Queues { rx_desc, tx_desc, .. } = self.open.started.queues;
        (rx_desc, tx_desc)
    }

    /// Returns the driver's recommended number of packets to take from a receive queue at once, 1 to
    /// [`BURST_MAX`](crate::BURST_MAX).
    pub fn rx_burst(&self) -> u16 {
        self.open.started.queues.rx_burst
    }

    /// Returns the current state of the link.
    pub fn link(&self) -> Link {
        let mut link = MaybeUninit::<sys::rte_eth_link>::zeroed();
        // SAFETY: the port is open; the function writes a link state, or nothing and fails, and zeros are a
        // state too (down).
        let (up, speed_mbps) = unsafe {
            sys::rte_eth_link_get_nowait(self.id(), link.as_mut_ptr());
            (sys::shim_link_up(link.as_ptr()), sys::shim_link_speed(link.as_ptr()))
        };
        // The drivers for kernel interfaces do not track the link.
        let up = self.open.kernel.as_ref().map_or(up, KernelInterface::is_running);
        Link { up, speed_mbps }
    }

    /// Returns a reader of the carrier of its kernel interface; `None` for other devices.
    pub fn carrier(&self) -> Option<Carrier> {
        self.open.kernel.as_ref()?.carrier().ok()
    }

    /// Returns the source of notifications about the link.
    pub fn link_watch(&self) -> LinkWatch {
        match &self.open.kernel {
            Some(kernel) => LinkWatch::Kernel(kernel.index()),
            None if self.open.started.link_interrupts => LinkWatch::Interrupt,
            None => LinkWatch::Nobody,
        }
    }

    /// Returns true if the thread that owns its receive queues can block until packets arrive; see
    /// [`RxQueue::descriptor`].
    pub fn has_rx_interrupts(&self) -> bool {
        let own = self.rx_queues() - u16::from(self.open.control.is_some());
        let control = self.open.control.as_ref();
        self.open.started.rx_interrupts.has_all(usize::from(own))
            && control.is_none_or(|control| control.started.rx_interrupts.has_all(1))
    }

    /// Returns the port's counters. Packets that the kernel could not send by an interface are among the
    /// errors: DPDK's drivers count these as sent.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats { oerrors: self.open.unsent(), ..Stats::default() };
        for started in self.open.devices() {
            let stats = started.device.stats();
            sum.ipackets += stats.ipackets;
            sum.ibytes += stats.ibytes;
            let in_sockets = started.packet_rings.iter().map(PacketRing::missed).sum::<u64>();
            sum.imissed += stats.imissed + in_sockets;
            sum.ierrors += stats.ierrors;
            sum.rx_nombuf += stats.rx_nombuf;
            sum.opackets += stats.opackets;
            sum.obytes += stats.obytes;
            sum.oerrors += stats.oerrors;
        }
        sum
    }

    /// Returns true if packets may arrive with a TCP or UDP checksum that their sender left to its device.
    /// Such a device is a piece of memory shared with the sender, not a wire.
    pub fn partial_checksums(&self) -> bool {
        const DRIVERS: [&str; 5] =
            ["net_af_xdp", "net_af_packet", "net_tap", "net_virtio_user", "net_vhost"];
        DRIVERS.contains(&self.driver())
    }

    /// Returns true if the device sends packets of several segments. If not, [`TxQueue::send`] copies them
    /// into one, and refuses those that are longer than a buffer.
    pub fn supports_multi_segment(&self) -> bool {
        self.open.supports_multi_segment()
    }

    /// Returns the most buffers that a packet may have so that the device sends it and does not block its
    /// queue for long.
    pub fn tx_buffers_most(&self) -> usize {
        self.open.started.tx_buffers_most
    }

    /// Returns true if the device inserts the VLAN tags that packets request.
    pub fn inserts_tags(&self) -> bool {
        self.open.inserts_tags()
    }

    /// Returns the offloads that the device does, and the reasons for not using the others.
    pub fn offloads(&self) -> &Offloads {
        &self.open.started.negotiated.offloads
    }
}

/// Opens a device that DPDK drives directly.
fn open_dpdk(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    bus: &'static str,
    device: &str,
    args: &str,
) -> Result<OpenPort, Error> {
    if config.driver.is_some() {
        let problem = format!("a driver can be chosen for kernel interfaces, not for {device}");
        return Err(config.refuse(problem));
    }
    let mtu = config.mtu.unwrap_or(DEFAULT_MTU);
    let device = config.c_string(device)?;
    let device = Attached::new(eal, config, bus, device, args)?;
    let started = device.start(config, pool, Wish::of(config), config.mtu)?;
    Ok(OpenPort::new(started, config, Vec::new(), mtu, None))
}

/// Rejects a device that reaches memory by physical addresses if the EAL has given out virtual ones: it
/// would write to arbitrary memory.
fn check_iova_mode(config: &PortConfig, address: &str) -> Result<(), Error> {
    let needed = config.device.iova_mode();
    if (needed, IovaMode::current()) != (IovaMode::Physical, IovaMode::Virtual) {
        return Ok(());
    }
    Err(config.refuse(format!(
        "device {address} has no IOMMU and needs physical addresses, and the router was started without \
         such a device: restart it, or bind the device to vfio-pci behind an IOMMU"
    )))
}

/// Rejects a device for which others map packet memory if that is memory of this process alone: they would map other
/// pages.
fn check_memory(eal: &Eal, config: &PortConfig, device: &str) -> Result<(), Error> {
    let is_shared = config.device.lends_memory() || matches!(config.device, Device::Pci(_));
    if !(is_shared && eal.memory().is_private()) {
        return Ok(());
    }
    Err(config.refuse(format!(
        "device {device} shares the packet memory, and the router was started without hugepages and without such a device: \
         restart it, or reserve hugepages"
    )))
}

/// Opens a kernel interface with AF_XDP, else with AF_PACKET.
fn open_kernel(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    name: &str,
) -> Result<OpenPort, Error> {
    check_kernel_queues(config, name)?;
    config.link.refuse_kernel(config, name)?;
    let failed = |step: &str| {
        let step = format!("{name}: {step}");
        move |errno| config.error(step, errno)
    };
    // Before the interface is touched: a later failure gives it back to the host.
    let taken = |driver| port_of(&kernel_device(driver, name)).is_some();
    if taken(Driver::AfXdp) || taken(Driver::AfPacket) {
        return Err(config.refuse(format!("device {name} is in use by another port")));
    }
    let mut kernel = KernelInterface::open(name).map_err(failed("opening the interface"))?;
    let mut notes = kernel.claim(Path::new(Record::DIRECTORY)).map_err(|by| {
        config.refuse(format!("device {name} is in use by another router, {by}; stop it first"))
    })?;
    if config.accelerate {
        return open_accelerated(eal, config, pool, kernel, notes);
    }
    if let Some(mtu) = config.mtu {
        kernel.set_mtu(mtu).map_err(failed(&format!("setting the MTU to {mtu}")))?;
    }
    let mtu = kernel.mtu().map_err(failed("reading the MTU"))?;
    kernel.take_over().map_err(failed("bringing the interface up"))?;

    if config.driver != Some(Driver::AfPacket) {
        notes.extend(kernel.prepare_xdp());
        match start_af_xdp_in_time(eal, config, pool, &mut kernel, mtu, &mut notes) {
            Ok(started) => {
                let start = || start_control(eal, config, pool, &mut kernel, &started, mtu);
                let control = config.control_queue.then(start);
                let open = OpenPort::new(started, config, notes, mtu, Some(kernel));
                return Ok(open.with_control(control));
            }
            Err(error) if config.driver == Some(Driver::AfXdp) => return Err(error),
            Err(error) => notes.push(format!("AF_PACKET, because AF_XDP failed: {error}")),
        }
    }
    notes.extend(kernel.prepare_packet_socket());
    let device = kernel_device(Driver::AfPacket, &kernel.name);
    let mut started = start_af_packet(eal, config, pool, &kernel, device, mtu)?;
    if config.control_queue {
        let why = "the port is driven by AF_PACKET, whose sockets receive all packets of their interface; \
                   AF_XDP has a control queue";
        started.queues.control.why = Some(why.to_owned());
    }
    Ok(OpenPort::new(started, config, notes, mtu, Some(kernel)))
}

/// Opens a kernel interface that stays the kernel's. Until [`Acceleration::take`] the kernel has all of its packets.
fn open_accelerated(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    mut kernel: KernelInterface,
    mut notes: Vec<String>,
) -> Result<OpenPort, Error> {
    let name = kernel.name.clone();
    let refuse = |problem: String| config.refuse(problem);
    kernel.check_accelerated(config.in_kernel.is_some()).map_err(refuse)?;
    let failed = |errno| config.error(format!("{name}: reading the MTU"), errno);
    let mtu = kernel.mtu().map_err(failed)?;
    let ways = (config.in_kernel, config.flows);
    let bond = kernel.is_bond().then(Mutex::default);
    let acceleration =
        Acceleration::attach(&name, kernel.index(), ways, bond.is_some()).map_err(refuse)?;
    if bond.is_none() {
        notes.extend(kernel.prepare_xdp());
    }
    let started = match config.in_kernel {
        None => start_af_xdp_in_time(eal, config, pool, &mut kernel, mtu, &mut notes)?,
        Some(_) => start_silent(eal, config, pool, &kernel)?,
    };
    let how = match acceleration.generic() {
        None => format!("{name}: its driver runs the XDP program"),
        Some(why) => {
            format!("{name}: the kernel's stack runs the XDP program, which is slower: {why}")
        }
    };
    notes.push(how);
    let mut open = OpenPort::new(started, config, notes, mtu, Some(kernel));
    (open.acceleration, open.bond_ports) = (Some(acceleration), bond);
    Ok(open)
}

/// Starts a device that never receives, for an interface whose XDP program forwards itself. A thread that waits for its
/// packets is never woken by it.
fn start_silent(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    kernel: &KernelInterface,
) -> Result<Started, Error> {
    let device = CString::new(format!("net_null_{}", kernel.name)).unwrap_or_default();
    let attached = Attached::new(eal, config, "vdev", device, "no-rx=1")?;
    let own = PortConfig { rx_queues: 1, tx_queues: 1, ..config.clone() };
    let mut started = attached.start(&own, pool, Wish::of(&own), None)?;
    let never = eventfd().map_err(|errno| config.error("making an event", errno))?;
    started.rx_interrupts = RxInterrupts::of_sockets(vec![never.as_raw_fd()]);
    started.silence = Some(never);
    started.driver = IN_KERNEL.to_owned();
    let gone = || config.refuse(format!("device {} is gone", kernel.name));
    started.filter.own = kernel.mac().ok_or_else(gone)?;
    Ok(started)
}

/// The driver of ports whose interfaces forward by XDP programs.
const IN_KERNEL: &str = "xdp";

/// Starts the device for control traffic of an AF_XDP port, and then the program that sends packets there.
fn start_control(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    kernel: &mut KernelInterface,
    started: &Started,
    mtu: u16,
) -> Result<ControlSide, String> {
    let (name, have) = (kernel.name.clone(), kernel.receive_queues());
    if started.queues.rx < have {
        let used = started.queues.rx;
        return Err(format!(
            "{name} has {have} receive queues, and what comes by those that the port does not use is the \
             host's: ethtool -L {name} combined {used}"
        ));
    }
    let sockets = started.sockets.map().ok_or("the driver's map of sockets is not to be found")?;
    kernel.prepare_control_socket().map_err(|errno| {
        format!("the host's network stack cannot be kept from control traffic (Linux 6.6 has tcx): {errno}")
    })?;
    let device = CString::new(format!("net_af_packet.control_{name}")).unwrap_or_default();
    let own = PortConfig {
        driver: Some(Driver::AfPacket),
        exact_rx_queues: true,
        exact_tx_queues: true,
        ..PortConfig::new(&config.name, config.device.clone())
    };
    let socket =
        start_af_packet(eal, &own, pool, kernel, device, mtu).map_err(|e| e.to_string())?;
    let program = ControlProgram::attach(kernel.index(), sockets)?;
    kernel.remember_xdp_program(program.number());
    Ok(ControlSide { program, started: socket })
}

/// Times by which the kernel has freed the queues of an interface after AF_XDP: it does so in the
/// background, behind an RCU grace period, in some 20 ms, and on a busy machine later. Until then they are
/// unavailable, and their state cannot be queried.
const FREED_AFTER: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1200),
    Duration::from_millis(4000),
];

/// Times at which AF_XDP released interfaces.
static LET_GO: Mutex<BTreeMap<CString, Instant>> = Mutex::new(BTreeMap::new());

/// Calls [`start_af_xdp`], with retries for an interface that was a port just now, maybe of another process.
fn start_af_xdp_in_time(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    kernel: &mut KernelInterface,
    mtu: u16,
    notes: &mut Vec<String>,
) -> Result<Started, Error> {
    let all = LET_GO.lock().unwrap_or_else(PoisonError::into_inner);
    let name = kernel.name.as_bytes();
    let since = all.iter().find(|(known, _)| known.to_bytes() == name).map(|(_, since)| *since);
    drop(all);
    let before = notes.len();
    let (since, times) = match since {
        Some(since) => (since, &FREED_AFTER[..]),
        // Another process may have had it: the router that this one replaces.
        None => match start_af_xdp(eal, config, pool, kernel, mtu, notes) {
            Err(Error::Port { .. }) => (Instant::now(), &FREED_AFTER[..3]),
            result => return result,
        },
    };
    let mut time = times[0];
    loop {
        std::thread::sleep(time.saturating_sub(since.elapsed()));
        notes.truncate(before);
        let result = start_af_xdp(eal, config, pool, kernel, mtu, notes);
        // Retry only if the kernel may have been too slow.
        let next = times.iter().find(|after| **after > since.elapsed());
        match (result, next) {
            (Err(_), Some(next)) => time = *next,
            (result, _) => return result,
        }
    }
}

/// Runs the whole sequence for AF_XDP, whose driver finds out only late whether it can work.
fn start_af_xdp(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    kernel: &mut KernelInterface,
    mtu: u16,
    notes: &mut Vec<String>,
) -> Result<Started, Error> {
    check_room(config, pool, mtu, AF_XDP_HEADROOM)?;
    if pool.chunks() != 1 {
        let chunks = pool.chunks();
        return Err(config.refuse(format!("its pool lies in {chunks} pieces of memory, not one")));
    }
    if !config.accelerate {
        kernel.try_xdp().map_err(|problem| config.refuse(problem))?;
    }
    let have = kernel.receive_queues();
    let queues = queue_pairs(config, have).map_err(|problem| {
        config.refuse(format!(
            "device {}: {problem}; ethtool -L {0} combined may add some",
            kernel.name
        ))
    })?;
    if queues < have {
        notes.push(format!(
            "{} has {have} receive queues and the port uses {queues}; packets in the others go to \
             the host: ethtool -L {} combined {queues}",
            kernel.name, kernel.name
        ));
    }
    let mut args = format!("iface={},start_queue=0,queue_count={queues}", kernel.name);
    if kernel.driver_name() == "veth" {
        // By default the driver makes a system call whenever it finds nothing, to run the NIC's interrupt
        // work. A veth has none: its peer's sender does the work. (An empty poll takes 5 ns without, 270 ns
        // with.)
        args += ",busy_budget=0";
    }
    let device = kernel_device(Driver::AfXdp, &kernel.name);
    let (rx_desc, tx_desc) = (config.rx_desc, config.tx_desc);
    let want = Wish {
        rx: queues,
        tx: queues,
        rx_desc: rx_desc.or(Some(AF_XDP_DESCRIPTORS)),
        tx_desc: tx_desc.or(Some(AF_XDP_DESCRIPTORS)),
    };
    let start = |kernel: &KernelInterface| {
        let mut attached = Attached::new(eal, config, "vdev", device, &args)?;
        attached.af_xdp = config.c_string(&kernel.name).ok();
        attached.start(config, pool, want, Some(mtu))
    };
    let (started, sockets) = Sockets::of(|| match config.accelerate {
        // The driver finds the program that is there, and attaches none.
        true => start(kernel),
        false => kernel.with_xdp_program(start),
    });
    let mut started = match started {
        Ok(started) => started,
        Err(error) => {
            // Most often no queue was free yet. The packets that the driver took for it are unused, and must
            // not be missing when the next attempt succeeds.
            if !sockets.receive() {
                // SAFETY: a packet is written off if the driver of a port of this pool has ended: this one,
                // by none of whose sockets the kernel receives, or an earlier one, which has closed its own.
                unsafe { pool.recover() };
            }
            return Err(error);
        }
    };
    started.rings = sockets.rings();
    started.is_estimate = started.rings.is_none();
    if started.is_estimate {
        notes.push(format!(
            "the rings of {} cannot be read: should it vanish, the packets that it was to send count \
             as lost, and a packet pool of its own is not freed",
            kernel.name
        ));
    }
    started.sockets = sockets;
    Ok(started)
}

fn start_af_packet(
    eal: &Eal,
    config: &PortConfig,
    pool: &Mempool,
    kernel: &KernelInterface,
    device: CString,
    mtu: u16,
) -> Result<Started, Error> {
    check_room(config, pool, mtu, 0)?;
    let queues = queue_pairs(config, AF_PACKET_QUEUES)
        .map_err(|problem| config.refuse(format!("device {}: {problem}", kernel.name)))?;
    let descriptors = config.rx_desc.max(config.tx_desc).unwrap_or(AF_PACKET_DESCRIPTORS);
    let ring = Geometry::for_mtu(mtu, pool.data_room(), descriptors).ok_or_else(|| {
        let (room, needed) = (pool.data_room(), Geometry::room_for(mtu));
        config.refuse(format!(
            "MTU {mtu} needs packet buffers of {needed} bytes with AF_PACKET; they have {room}"
        ))
    })?;
    let args = format!(
        "iface={},qpairs={queues},framesz={},blocksz={},framecnt={}",
        kernel.name, ring.frame, ring.block, ring.frames
    );
    // The driver has a queue pair for every socket and ignores the MTU, which the kernel has; ethdev would
    // refuse one above 1,500.
    let want = Wish { rx: queues, tx: queues, ..Wish::of(config) };
    let attached = Attached::new(eal, config, "vdev", device, &args)?;
    let rings = packet_sockets::stop_reassembly(kernel.index(), &ring).map_err(|errno| {
        let step = "packet sockets that do not reassemble IPv4 fragments";
        config.error(format!("{}: {step}", kernel.name), errno)
    })?;
    let mut started = attached.start(config, pool, want, None)?;
    started.rx_interrupts =
        RxInterrupts::of_sockets(rings.iter().map(|ring| ring.socket).collect());
    started.packet_rings = rings;
    Ok(started)
}

/// Returns the bytes of packet data that a pool's buffers need for a port with this MTU, whichever driver it
/// uses; see [`MempoolConfig::data_room`](crate::MempoolConfig::data_room).
pub fn data_room(mtu: u16) -> u16 {
    let with_af_xdp = usize::from(mtu) + FRAME_OVERHEAD + AF_XDP_HEADROOM;
    let needed = with_af_xdp.max(Geometry::room_for(mtu));
    u16::try_from(needed.next_multiple_of(64)).unwrap_or(u16::MAX)
}

/// Returns true if DPDK has made a port of the PCI device with this address. [`Eal::init`] does so for those
/// in its configuration.
pub fn is_port(_eal: &Eal, address: &str) -> bool {
    CString::new(address).is_ok_and(|address| port_of(&address).is_some())
}

/// Returns the MTU that a kernel interface of the caller's network namespace has now; `None` if there is
/// none of this name.
pub fn kernel_mtu(name: &str) -> Option<u16> {
    u16::try_from(Interface::new(name).ok()?.mtu().ok()?).ok()
}

/// Checks that packets of this MTU fit the pool's buffers.
fn check_room(config: &PortConfig, pool: &Mempool, mtu: u16, extra: usize) -> Result<(), Error> {
    let room = usize::from(pool.data_room());
    let needed = usize::from(mtu) + FRAME_OVERHEAD + extra;
    if needed <= room {
        return Ok(());
    }
    Err(config
        .refuse(format!("MTU {mtu} needs packet buffers of {needed} bytes; they have {room}")))
}

/// The geometry of an AF_PACKET ring: frames of equal size in blocks of whole pages.
#[derive(Debug, PartialEq, Eq)]
struct Geometry {
    frame: usize,
    block: usize,
    frames: usize,
}

impl Geometry {
    const PAGE: usize = 4096;
    /// Bytes that TPACKET_V2 puts in front of a received packet: its header (48 bytes with alignment, a
    /// socket address of 20) and 16 more, before the Ethernet header.
    const HEADER: usize = 84;
    /// Bytes that the driver counts as header when it checks that a frame fits a packet buffer.
    const HEADER_COUNTED: usize = 32;

    /// Returns the frames for this MTU; `None` when one might not fit a packet buffer.
    fn for_mtu(mtu: u16, data_room: u16, wished: u16) -> Option<Self> {
        let frame = Self::frame(mtu);
        if frame - Self::HEADER_COUNTED > usize::from(data_room) {
            return None;
        }
        // The driver finds frame n at n times the frame size, so blocks must be full.
        let mut block = Self::PAGE;
        while !block.is_multiple_of(frame) {
            block += Self::PAGE;
        }
        let per_block = block / frame;
        let frames = usize::from(wished).max(1).next_multiple_of(per_block);
        Some(Self { frame, block, frames })
    }

    /// Returns the frame size, a multiple of 512, which keeps blocks below 8 frames.
    fn frame(mtu: u16) -> usize {
        (usize::from(mtu) + FRAME_OVERHEAD + Self::HEADER).next_multiple_of(512)
    }

    fn room_for(mtu: u16) -> usize {
        Self::frame(mtu) - Self::HEADER_COUNTED
    }
}

/// Rejects settings that no kernel interface supports, before one is touched.
fn check_kernel_queues(config: &PortConfig, name: &str) -> Result<(), Error> {
    if config.rss.is_some() && config.rx_queues > 1 {
        return Err(config.refuse(format!(
            "device {name}: its hash is the kernel's: set it by ethtool -N and ethtool -X and leave rss out, \
             or write spread = \"software\""
        )));
    }
    if config.driver == Some(Driver::AfPacket) {
        return Ok(());
    }
    for (key, wish) in [("rx_descriptors", config.rx_desc), ("tx_descriptors", config.tx_desc)] {
        let fits = |size: u16| size.is_power_of_two() && (64..=AF_XDP_DESCRIPTORS).contains(&size);
        if let Some(wish) = wish.filter(|&wish| !fits(wish)) {
            return Err(config.refuse(format!(
                "device {name}: {key} {wish}: AF_XDP takes a power of two from 64 to {AF_XDP_DESCRIPTORS}; write \
                 one, or driver = \"af_packet\""
            )));
        }
    }
    Ok(())
}

/// Returns the queues of a driver that has them in pairs, at most `most`.
fn queue_pairs(config: &PortConfig, most: u16) -> Result<u16, String> {
    let PortConfig { rx_queues: rx, tx_queues: tx, exact_rx_queues, exact_tx_queues, .. } = *config;
    let pairs = match (exact_rx_queues, exact_tx_queues) {
        (true, true) if rx != tx => {
            return Err(format!(
                "rx_queues {rx}, tx_queues {tx}: its driver has them in pairs; leave one out"
            ));
        }
        (true, _) => return queues::number("rx_queues", rx, true, most),
        (_, true) => return queues::number("tx_queues", tx, true, most),
        _ => rx.max(tx),
    };
    Ok(pairs.min(most))
}

/// Devices are added and removed one at a time: DPDK's lists of them do not support more.
pub(crate) static HOTPLUG: Mutex<()> = Mutex::new(());

/// A device that DPDK has probed. Dropping it closes and removes it.
struct Attached {
    id: u16,
    bus: &'static str,
    device: CString,
    /// The interface, if the driver is AF_XDP's, which does not return the packets in its rings when it is
    /// closed.
    af_xdp: Option<CString>,
    eal: EalRef,
}

/// A device whose queues receive and send. Dropping it stops it first.
struct Started {
    device: Attached,
    /// Sockets that its driver leaves open; closed after it.
    sockets: Sockets,
    /// Rings of an AF_XDP driver, with the packets that it does not return; mapped until it is closed.
    rings: Option<Vec<Rings>>,
    /// Rings of an AF_PACKET driver, by queue; mapped until it is closed.
    packet_rings: Vec<PacketRing>,
    rx_interrupts: RxInterrupts,
    /// Waited for in place of a device that never receives; open until it is closed.
    silence: Option<OwnedFd>,
    driver: String,
    negotiated: Negotiated,
    /// True if it reports changes of its link.
    link_interrupts: bool,
    /// Its receive filter.
    filter: Filter,
    /// Frames that the device drops itself.
    flow_rules: flow_rules::Rules,
    queues: Queues,
    /// Most buffers of a packet that it sends.
    tx_buffers_most: usize,
    pool: Mempool,
    /// Packets of the pool that an AF_XDP driver took at set-up, and keeps.
    kept: usize,
    /// True if it has received and sent, and its rings cannot be read: `kept` is an estimate.
    is_estimate: bool,
}

impl OpenPort {
    fn new(
        started: Started,
        config: &PortConfig,
        mut notes: Vec<String>,
        mtu: u16,
        kernel: Option<KernelInterface>,
    ) -> Self {
        notes.extend(started.filter.note.clone());
        let Queues { rx, tx, .. } = &started.queues;
        let (rx, tx) = (*rx, *tx);
        // More queues may have been made than asked for (AF_XDP has pairs); they stay unused.
        let control = u16::from(started.queues.control.tx);
        let (rx_queues, tx_queues) = (rx, tx.min(config.tx_queues + control));
        let multicast = Mutex::new(multicast::State::new(started.filter.has_multicasts));
        let name = config.name.clone();
        // Other devices' drivers refuse frames that they cannot send.
        let longest = kernel.as_ref().map_or(u32::MAX, |_| u32::from(mtu) + ETHERNET_LEN);
        let longest = longest.into();
        let (control, acceleration, bond_ports) = (None, None, None);
        Self {
            control,
            started,
            acceleration,
            name,
            notes,
            mtu,
            longest,
            rx_queues,
            tx_queues,
            multicast,
            bond_ports,
            kernel,
        }
    }
}

impl OpenPort {
    /// Adds the control queues of a kernel interface, or the reason for which it has none.
    fn with_control(mut self, control: Option<Result<ControlSide, String>>) -> Self {
        let queues = &mut self.started.queues.control;
        match control {
            Some(Ok(control)) => {
                (queues.rx, queues.tx) = (true, true);
                self.rx_queues += 1;
                self.tx_queues += 1;
                self.control = Some(control);
            }
            Some(Err(why)) => queues.why = Some(why),
            None => {}
        }
        self
    }
}

impl Attached {
    /// Makes DPDK probe a device.
    fn new(
        eal: &Eal,
        config: &PortConfig,
        bus: &'static str,
        device: CString,
        args: &str,
    ) -> Result<Self, Error> {
        if let Some(id) = port_of(&device) {
            // PCI devices are probed when the EAL starts. A device can be one port only.
            if is_configured(id) {
                let name = device.to_string_lossy();
                return Err(config.refuse(format!("device {name} is in use by another port")));
            }
            return Ok(Self { id, bus, device, af_xdp: None, eal: eal.share() });
        }
        let (bus_name, args) = (config.c_string(bus)?, config.c_string(args)?);
        let _one_at_a_time = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the EAL is up; three C strings for the call.
        let result =
            unsafe { sys::rte_eal_hotplug_add(bus_name.as_ptr(), device.as_ptr(), args.as_ptr()) };
        let name = device.to_string_lossy().into_owned();
        if result < 0 {
            let step = format!("DPDK does not take device {name}");
            return Err(config.error(step, Errno::from_raw(-result)));
        }
        let Some(id) = port_of(&device) else {
            remove(bus, &device);
            return Err(config.refuse(format!("device {name} is no network device")));
        };
        Ok(Self { id, bus, device, af_xdp: None, eal: eal.share() })
    }

    /// Returns the device's counters.
    fn stats(&self) -> sys::rte_eth_stats {
        let mut stats = MaybeUninit::<sys::rte_eth_stats>::zeroed();
        // SAFETY: the port exists; the function writes numbers, or fails, and zeros are numbers too.
        unsafe {
            sys::rte_eth_stats_get(self.id, stats.as_mut_ptr());
            stats.assume_init()
        }
    }

    fn info(&self, config: &PortConfig) -> Result<sys::rte_eth_dev_info, Error> {
        device_info(self.id)
            .map_err(|errno| config.error("DPDK says nothing about the device", errno))
    }

    /// Configures the device, sets up its queues and starts it.
    fn start(
        self,
        config: &PortConfig,
        pool: &Mempool,
        want: Wish,
        mtu: Option<u16>,
    ) -> Result<Started, Error> {
        let info = self.info(config)?;
        let mut queues = want.settle(config, &info)?;
        queues.add_control(config, &info);
        let spread = queues.rx - u16::from(queues.control.rx);
        // SAFETY: the driver's name is a static C string.
        let driver = unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned();
        let negotiated = self.negotiate(config, &info, &driver, pool, mtu)?;
        let tx_buffers_most = offloads::tx_buffers_most(&driver, &info, queues.tx_desc);
        let rx_interrupts = interrupts::are_wanted(&config.device, &driver);
        self.configure(config, &info, &queues, mtu, (&negotiated, rx_interrupts))?;
        let before = pool.in_use();
        let mut sockets = Vec::new();
        let result = self.set_up_queues(config, &info, &queues, pool, (&negotiated, &mut sockets));
        let kept = if self.af_xdp.is_some() { pool.in_use().saturating_sub(before) } else { 0 };
        if let Err(error) = result {
            drop(self);
            pool.write_off(kept);
            return Err(error);
        }
        let pool = pool.clone();
        let mut started = Started {
            device: self,
            sockets: Sockets::default(),
            rings: None,
            packet_rings: Vec::new(),
            rx_interrupts: RxInterrupts::of_sockets(sockets),
            silence: None,
            driver,
            negotiated,
            link_interrupts: events::has_link_interrupts(&config.device, &info),
            filter: Filter::default(),
            flow_rules: flow_rules::Rules::default(),
            queues,
            tx_buffers_most,
            pool,
            kept,
            is_estimate: false,
        };
        started.go(config)?;
        if rx_interrupts {
            started.rx_interrupts =
                RxInterrupts::of_device(started.device.id, started.queues.rx, &started.driver);
        }
        if let Some(rss) = &config.rss {
            if let Some(mut hash) = Hash::plan(config, &info, spread)? {
                started.device.ensure_key(config, &mut hash)?;
            }
            started.device.write_table(config, &rss.table, spread)?;
        } else if started.queues.control.rx
            && let Err(error) = started.device.write_table(config, &RssTable::Even, spread)
        {
            // The device spreads over all queues, so that each receives packets to forward.
            started.queues.control.rx = false;
            started.queues.control.why = Some(format!("the device keeps its RSS table: {error}"));
        }
        Ok(started)
    }

    /// Negotiates the offloads of the device. Frames that do not fit a packet buffer need one of them.
    fn negotiate(
        &self,
        config: &PortConfig,
        info: &sys::rte_eth_dev_info,
        driver: &str,
        pool: &Mempool,
        mtu: Option<u16>,
    ) -> Result<Negotiated, Error> {
        let room = check_room(config, pool, mtu.unwrap_or(DEFAULT_MTU), 0);
        let need = Need { requests: config.requests, long_frames: room.is_err() };
        let capabilities = (info.rx_offload_capa, info.tx_offload_capa);
        let negotiated = negotiate(config, driver, capabilities, need)?;
        if !negotiated.offloads.on(Offload::Scatter) {
            room?;
        }
        Ok(negotiated)
    }

    fn configure(
        &self,
        config: &PortConfig,
        info: &sys::rte_eth_dev_info,
        queues: &Queues,
        mtu: Option<u16>,
        (negotiated, rx_interrupts): (&Negotiated, bool),
    ) -> Result<(), Error> {
        let mut settings = sys::rte_eth_conf::default();
        if let Some(mtu) = mtu {
            if !(info.min_mtu..=info.max_mtu).contains(&mtu) {
                let (min, max) = (info.min_mtu, info.max_mtu);
                return Err(
                    config.refuse(format!("MTU {mtu} is not one of the device: {min} to {max}"))
                );
            }
            settings.rxmode.mtu = mtu.into();
        }
        let mut hash = Hash::plan(config, info, queues.rx)?;
        if let Some(hash) = &mut hash {
            settings.rxmode.mq_mode = sys::RTE_ETH_MQ_RX_RSS;
            settings.rx_adv_conf.rss_conf = hash.conf();
        }
        settings.rxmode.offloads = negotiated.rx;
        settings.txmode.offloads = negotiated.tx;
        settings.link_speeds = config.link.speeds(config, &self.device.to_string_lossy(), info)?;
        settings.intr_conf.set_lsc(events::has_link_interrupts(&config.device, info).into());
        settings.intr_conf.set_rxq(rx_interrupts.into());
        // SAFETY: the port exists and is not started; the settings, and the key that they point to, live
        // for the call.
        let result =
            unsafe { sys::rte_eth_dev_configure(self.id, queues.rx, queues.tx, &settings) };
        self.check(config, "configuring the device", result)
    }

    fn set_up_queues(
        &self,
        config: &PortConfig,
        info: &sys::rte_eth_dev_info,
        queues: &Queues,
        pool: &Mempool,
        (negotiated, sockets): (&Negotiated, &mut Vec<RawFd>),
    ) -> Result<(), Error> {
        // SAFETY: the port exists.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) } as u32;
        let rx = config.rx_thresholds.of_rx(info.default_rxconf);
        for queue in 0..queues.rx {
            let before = self.af_xdp.as_ref().map(|_| Sockets::now());
            // SAFETY: the port is configured with this queue; the pool stays with `Started`.
            let result = unsafe {
                let pool = pool.as_ptr();
                sys::rte_eth_rx_queue_setup(self.id, queue, queues.rx_desc, socket, &rx, pool)
            };
            self.check(config, &format!("setting up receive queue {queue}"), result)?;
            let made = before.map(|before| Sockets::now().difference(&before).copied().collect());
            sockets.extend(made.into_iter().flat_map(|made: Vec<_>| made));
        }
        let mut tx = config.tx_thresholds.of_tx(info.default_txconf);
        for queue in 0..queues.tx {
            tx.offloads = info.tx_queue_offload_capa & negotiated.tx;
            // SAFETY: the port is configured with this queue; the settings live for the call.
            let result =
                unsafe { sys::rte_eth_tx_queue_setup(self.id, queue, queues.tx_desc, socket, &tx) };
            self.check(config, &format!("setting up transmit queue {queue}"), result)?;
        }
        Ok(())
    }

    fn check(&self, config: &PortConfig, step: &str, result: i32) -> Result<(), Error> {
        if result < 0 {
            let device = self.device.to_string_lossy();
            return Err(config.error(format!("{device}: {step}"), Errno::from_raw(-result)));
        }
        Ok(())
    }
}

impl Started {
    fn go(&mut self, config: &PortConfig) -> Result<(), Error> {
        let id = self.device.id;
        // SAFETY: the port is configured and its queues are set up.
        let result = unsafe { sys::rte_eth_dev_start(id) };
        self.device.check(config, "starting the device", result)?;
        self.filter = self.device.set_filter(config)?;
        self.device.set_link(config)?;
        Ok(())
    }

    /// Returns true if the driver may have packets that it is still sending, or that are sent and not taken
    /// back.
    fn has_unsent(&self) -> bool {
        self.rings.iter().flatten().any(|rings| {
            // SAFETY: the driver closes its port when `self.device` is dropped, after this.
            unsafe { rings.unsent() > 0 }
        })
    }

    /// Returns the number of packets of the pool that its driver will not give back when it is closed. To be
    /// called when it is stopped and none of its queues has an owner.
    fn lost(&self) -> usize {
        let Some(rings) = &self.rings else { return self.kept };
        let of_one = |rings: &Rings| {
            // SAFETY: the driver closes its port when `self.device` is dropped, after this.
            unsafe { rings.filled() + rings.unsent() }
        };
        rings.iter().map(of_one).sum()
    }

    /// Sends nothing: the AF_XDP driver takes back the packets it has sent only when it is called to send
    /// more.
    fn poll_sent(&self) {
        for queue in 0..self.queues.tx {
            let mut none = [std::ptr::null_mut()];
            // SAFETY: the port is started, and none of its queues has another owner left: the
            // callers have the `OpenPort` that queues share for themselves.
            unsafe { sys::rte_eth_tx_burst(self.device.id, queue, none.as_mut_ptr(), 0) };
        }
    }

    /// Takes back sent packets. A removed interface sends no more, so the wait is short.
    fn reclaim_sent(&self) {
        for _ in 0..20 {
            self.poll_sent();
            if !self.has_unsent() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.device.af_xdp.is_some() {
            self.reclaim_sent();
        }
        self.flow_rules.clear(self.device.id);
        self.filter.undo(self.device.id);
        // SAFETY: the port exists; its queues are dropped.
        unsafe { sys::rte_eth_dev_stop(self.device.id) };
        self.pool.write_off(self.lost());
        if self.is_estimate {
            self.pool.keep();
        }
        if let Some(interface) = &self.device.af_xdp {
            let mut all = LET_GO.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(interface.clone(), Instant::now());
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _one_at_a_time = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the port exists, is stopped or was never started, and has no user.
        unsafe { sys::rte_eth_dev_close(self.id) };
        remove(self.bus, &self.device);
        // The EAL may be shut down only after this.
        let _ = &self.eal;
    }
}

/// Returns the name of the virtual device that drives a kernel interface, whose name holds no NUL: it comes
/// from the kernel.
fn kernel_device(driver: Driver, interface: &str) -> CString {
    let name = match driver {
        Driver::AfXdp => format!("net_af_xdp_{interface}"),
        Driver::AfPacket => format!("net_af_packet_{interface}"),
    };
    CString::new(name).unwrap_or_default()
}

/// Returns true if a device has queues, and so is a port in use.
fn is_configured(id: u16) -> bool {
    device_info(id).is_ok_and(|info| info.nb_rx_queues + info.nb_tx_queues > 0)
}

/// Returns DPDK's information about a device.
fn device_info(id: u16) -> Result<sys::rte_eth_dev_info, Errno> {
    let mut info = MaybeUninit::<sys::rte_eth_dev_info>::zeroed();
    // SAFETY: the port exists; the function writes the information, or fails.
    let result = unsafe { sys::rte_eth_dev_info_get(id, info.as_mut_ptr()) };
    if result != 0 {
        return Err(Errno::from_raw(-result));
    }
    // SAFETY: zeroed, which is a value of every field, and written.
    Ok(unsafe { info.assume_init() })
}

/// Returns DPDK's number of the port that a device has become.
fn port_of(device: &CStr) -> Option<u16> {
    let mut id = 0;
    // SAFETY: a C string and a number for the call.
    let result = unsafe { sys::rte_eth_dev_get_port_by_name(device.as_ptr(), &mut id) };
    (result == 0).then_some(id)
}

/// Removes a device from DPDK, so that its name can be used again. It may be removed already.
fn remove(bus: &str, device: &CStr) {
    let bus = CString::new(bus).expect("a literal without NUL");
    // SAFETY: the EAL is up; two C strings for the call.
    unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), device.as_ptr()) };
}
