//! What the data plane knows of a port: its number, its MAC, its MTU.

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use wire::MacAddr;

use crate::features::Features;

pub use dpdk::{Fec, LinkWish, Offload, OffloadWishes, Pause, RssTable, Thresholds};

/// The most ports a router can have. Sizes the per-port arrays of every forwarder.
pub const MAX_PORTS: usize = 64;

/// A port's index in the router's port table. A port has the same as long as it is there; one that comes
/// later may have that of one that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(u16);

impl PortId {
    /// The first number.
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
    /// The work of steps that it asks for.
    pub features: Features,
    /// The least TTL or hop limit with which packets of near peers' protocols may come (RFC 5082); 0: any.
    pub least_ttl: u8,
}

impl PortInfo {
    /// What stands for a number without a port.
    pub const NONE: Self = Self {
        mac: MacAddr([0; 6]),
        mtu: u16::MAX,
        partial_checksums: false,
        host: false,
        features: Features::NONE,
        least_ttl: 0,
    };
}

/// What is known of each port, by the indexes; [`PortInfo::NONE`] where there is none. Steps that need
/// it for ports by which packets leave read it when they are made: whoever makes graphs says before how
/// the ports are going to be.
#[derive(Debug)]
pub struct PortInfos(Mutex<Vec<PortInfo>>);

impl PortInfos {
    /// Of these ports.
    pub fn new(ports: Vec<PortInfo>) -> Self {
        Self(Mutex::new(ports))
    }

    /// A copy.
    pub fn get(&self) -> Vec<PortInfo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// These are the ports for steps that are made from now on.
    pub fn set(&self, ports: Vec<PortInfo>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ports;
    }
}

/// The MTU of every port as it is now. Its owner changes it while forwarders read it, by plain loads.
#[derive(Debug)]
pub struct Mtus {
    all: FamilyMtus,
    /// For IPv6: 0 where the link is too small for it.
    ip6: FamilyMtus,
    /// What the devices were opened for: they send nothing longer.
    most: [AtomicU16; MAX_PORTS],
    /// Held by who changes something.
    change: Mutex<()>,
}

/// MTUs as they are for packets of a family.
#[derive(Debug)]
pub(crate) struct FamilyMtus {
    /// The largest that there is where no port is: that the port is missing is not found here.
    ports: [AtomicU16; MAX_PORTS],
    /// The smallest of all.
    least: AtomicU16,
}

/// What every link takes that IPv6 packets go over (RFC 8200 5).
const IP6_LEAST: u16 = 1280;

impl Mtus {
    /// The MTUs that these ports start with, by index.
    pub fn new(ports: &[PortInfo]) -> Self {
        let mtu = |index: usize| ports.get(index).map_or(u16::MAX, |port| port.mtu);
        Self {
            all: FamilyMtus::new(mtu),
            ip6: FamilyMtus::new(|index| for_ip6(mtu(index))),
            most: std::array::from_fn(|index| AtomicU16::new(mtu(index))),
            change: Mutex::new(()),
        }
    }

    /// Changes a port's MTU, to no more than its device was opened for, and says what it is now. Each
    /// packet sees the old one or the new one.
    pub fn set(&self, port: PortId, mtu: u16) -> u16 {
        let mtu = mtu.min(self.most[port.index()].load(Ordering::Relaxed));
        // Two who change two ports would each find a smallest without the other's.
        let _change = self.change.lock();
        self.all.set(port, mtu);
        self.ip6.set(port, for_ip6(mtu));
        mtu
    }

    /// A port's device was opened for this MTU; with `u16::MAX` there is no port any more.
    pub fn open(&self, port: PortId, mtu: u16) {
        self.most[port.index()].store(mtu, Ordering::Relaxed);
        self.set(port, mtu);
    }

    /// A port's MTU; if there is no such port, the largest there is.
    pub fn get(&self, port: PortId) -> u16 {
        self.all.get(port)
    }

    /// As packets of one family find them.
    #[inline(always)]
    pub(crate) fn family(&self, ip6: bool) -> &FamilyMtus {
        if ip6 { &self.ip6 } else { &self.all }
    }
}

impl FamilyMtus {
    fn new(mtu: impl Fn(usize) -> u16) -> Self {
        let least = (0..MAX_PORTS).map(&mtu).min().unwrap_or(0);
        Self {
            ports: std::array::from_fn(|index| AtomicU16::new(mtu(index))),
            least: AtomicU16::new(least),
        }
    }

    fn set(&self, port: PortId, mtu: u16) {
        self.ports[port.index()].store(mtu, Ordering::Relaxed);
        let all = self.ports.iter().map(|port| port.load(Ordering::Relaxed));
        self.least.store(all.min().unwrap_or(0), Ordering::Relaxed);
    }

    /// A port's MTU; if there is no such port, the largest there is.
    pub(crate) fn get(&self, port: PortId) -> u16 {
        self.of(port.0)
    }

    /// [`Self::get`] by an index as steps have it.
    #[inline(always)]
    pub(crate) fn of(&self, port: u16) -> u16 {
        self.ports[usize::from(port) & (MAX_PORTS - 1)].load(Ordering::Relaxed)
    }

    /// What all ports take.
    #[inline(always)]
    pub(crate) fn least(&self) -> u16 {
        self.least.load(Ordering::Relaxed)
    }
}

fn for_ip6(mtu: u16) -> u16 {
    if mtu < IP6_LEAST { 0 } else { mtu }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_s_mtu_is_no_larger_than_its_device_s_and_the_least_is_found() {
        let mtus = Mtus::new(&[PortInfo { mtu: 1500, ..PortInfo::NONE }]);
        let (first, later) = (PortId::FIRST, PortId(5));
        let seen = || (mtus.get(first), mtus.get(later), mtus.family(false).least());
        assert_eq!((mtus.set(first, 9000), seen()), (1500, (1500, u16::MAX, 1500)));
        mtus.open(later, 900);
        assert_eq!((mtus.set(later, 901), seen()), (900, (1500, 900, 900)));
        assert_eq!(mtus.family(true).get(later), 0, "IPv6 needs more");
        mtus.open(later, u16::MAX);
        assert_eq!(seen(), (1500, u16::MAX, 1500));
    }
}
