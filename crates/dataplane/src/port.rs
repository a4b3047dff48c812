//! What the data plane knows of a port: its number, its MAC, its MTU.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use wire::MacAddr;

/// The most ports a router can have. Sizes the per-port arrays of every forwarder.
pub const MAX_PORTS: usize = 64;

/// A port's index in the router's port table, in the order of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(u16);

impl PortId {
    /// The first port of the configuration.
    pub const FIRST: Self = Self(0);

    /// The port with this index; `None` from [`MAX_PORTS`] on.
    pub fn new(index: u16) -> Option<Self> {
        (usize::from(index) < MAX_PORTS).then_some(Self(index))
    }

    /// The index, always below [`MAX_PORTS`].
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

/// What a step needs to know of a port to receive from it and to send by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInfo {
    /// The source address of every frame sent by this port.
    pub mac: MacAddr,
    /// The largest IP packet (not frame) that the port sends, in bytes, when the router starts; see
    /// [`Mtus`] for later.
    pub mtu: u16,
    /// Frames may arrive with a TCP or UDP checksum that the sender left to its
    /// (virtual) device, as veth, TAP and AF_PACKET hand them over.
    pub partial_checksums: bool,
    /// The port has a host interface, which gets the frames of link protocols that are not IP.
    pub host: bool,
    /// What the source of a packet received here must be, besides an address that hosts can have.
    pub reverse_path: ReversePath,
    /// Its hosts are told of better first hops.
    pub redirects: bool,
}

/// Whether a packet's source must be reachable, and by which port (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// Any source will do.
    #[default]
    Any,
    /// A route must lead to the source, by whatever port (RFC 3704 2.4).
    Loose,
    /// The best route to the source, or one of equal cost, must leave by the port that the packet
    /// came from (RFC 3704 2.2).
    Strict,
}

/// For which ports a packet may be shown to the slow path now because it leaves by the port it came
/// by. The slow path opens them from time to time, and the first such packet closes its port again:
/// hosts that do not heed redirects cost no more than those few packets.
#[derive(Debug)]
pub struct RedirectGates([AtomicBool; MAX_PORTS]);

impl Default for RedirectGates {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicBool::new(true)))
    }
}

impl RedirectGates {
    /// Opens all.
    pub fn open(&self) {
        self.0.iter().for_each(|gate| gate.store(true, Ordering::Relaxed));
    }

    /// True once after each opening.
    #[inline(always)]
    pub(crate) fn pass(&self, port: PortId) -> bool {
        let gate = &self.0[port.index()];
        gate.load(Ordering::Relaxed) && gate.swap(false, Ordering::Relaxed)
    }
}

/// The MTU of every port as it is now. Its owner changes it while forwarders read it, one plain
/// load a packet.
#[derive(Debug)]
pub struct Mtus {
    all: [AtomicU16; MAX_PORTS],
    /// For IPv6: 0 where the link is too small for it.
    ip6: [AtomicU16; MAX_PORTS],
}

/// What every link takes that IPv6 packets go over (RFC 8200 5).
const IP6_LEAST: u16 = 1280;

impl Mtus {
    /// The MTUs that these ports start with, by index; 0 where there is no port.
    pub fn new(ports: &[PortInfo]) -> Self {
        let mtu = |index: usize| ports.get(index).map_or(0, |port| port.mtu);
        Self {
            all: std::array::from_fn(|index| AtomicU16::new(mtu(index))),
            ip6: std::array::from_fn(|index| AtomicU16::new(for_ip6(mtu(index)))),
        }
    }

    /// Changes a port's MTU. Each packet sees the old one or the new one.
    pub fn set(&self, port: PortId, mtu: u16) {
        self.all[port.index()].store(mtu, Ordering::Relaxed);
        self.ip6[port.index()].store(for_ip6(mtu), Ordering::Relaxed);
    }

    /// A port's MTU; 0 if there is no such port.
    pub fn get(&self, port: PortId) -> u16 {
        self.get_index(port.0)
    }

    /// [`Self::get`] by an index as steps have it.
    #[inline(always)]
    pub(crate) fn get_index(&self, port: u16) -> u16 {
        self.all[usize::from(port) & (MAX_PORTS - 1)].load(Ordering::Relaxed)
    }

    /// The largest IPv6 packet that a port sends; 0 if it sends none.
    #[inline(always)]
    pub(crate) fn get_index_ip6(&self, port: u16) -> u16 {
        self.ip6[usize::from(port) & (MAX_PORTS - 1)].load(Ordering::Relaxed)
    }
}

fn for_ip6(mtu: u16) -> u16 {
    if mtu < IP6_LEAST { 0 } else { mtu }
}
