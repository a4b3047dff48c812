//! Interfaces: where packets come from and leave, as addresses, routes and features see it.
//!
//! A port is a device and its queues; an interface has a MAC, an MTU, a VRF and features. Each port has one
//! of its own, with the same number, for what comes without a VLAN tag; others, from [`MAX_PORTS`](crate::port::MAX_PORTS) on, stand
//! on a port or on several. So the number of a port's own interface is the port's index, which costs the
//! usual packet nothing.

use std::fmt;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

use wire::MacAddr;

use crate::features::Features;
use crate::port::PortId;

/// The most interfaces a router can have.
pub const MAX_INTERFACES: usize = 4096;

/// An interface's number in the router's table. An interface has the same as long as it is there; a later one
/// may have that of one that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceId(u16);

impl InterfaceId {
    /// The first number.
    pub const FIRST: Self = Self(0);

    /// The interface with this number; `None` from [`MAX_INTERFACES`] on.
    pub fn new(index: u16) -> Option<Self> {
        (usize::from(index) < MAX_INTERFACES).then_some(Self(index))
    }

    /// A port's own interface.
    #[inline(always)]
    pub fn of_port(port: PortId) -> Self {
        Self(port.index() as u16)
    }

    /// The number, always below [`MAX_INTERFACES`].
    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The port whose own interface this is; `None` for one that stands on others.
    #[inline(always)]
    pub fn port(self) -> Option<PortId> {
        PortId::new(self.0)
    }
}

impl From<PortId> for InterfaceId {
    fn from(port: PortId) -> Self {
        Self::of_port(port)
    }
}

impl fmt::Display for InterfaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interface {}", self.0)
    }
}

/// A set of interfaces, few of the many that there can be; for all but the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InterfaceSet(Vec<InterfaceId>);

impl InterfaceSet {
    /// No interface.
    pub const EMPTY: Self = Self(Vec::new());

    /// Whether the interface is in it.
    pub fn contains(&self, interface: InterfaceId) -> bool {
        self.0.binary_search(&interface).is_ok()
    }

    /// Takes an interface out, or puts it in.
    pub fn set(&mut self, interface: InterfaceId, member: bool) {
        match (self.0.binary_search(&interface), member) {
            (Err(place), true) => self.0.insert(place, interface),
            (Ok(place), false) => drop(self.0.remove(place)),
            _ => {}
        }
    }

    /// How many interfaces there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The interfaces by their numbers.
    pub fn interfaces(&self) -> impl Iterator<Item = InterfaceId> {
        self.0.iter().copied()
    }
}

impl Extend<InterfaceId> for InterfaceSet {
    fn extend<I: IntoIterator<Item = InterfaceId>>(&mut self, interfaces: I) {
        interfaces.into_iter().for_each(|interface| self.set(interface, true));
    }
}

impl FromIterator<InterfaceId> for InterfaceSet {
    fn from_iter<I: IntoIterator<Item = InterfaceId>>(interfaces: I) -> Self {
        let mut set = Self::EMPTY;
        set.extend(interfaces);
        set
    }
}

/// The most VRFs.
pub const VRFS_MOST: usize = 64;

/// A virtual routing and forwarding instance: tables of its own (RFC 4364 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VrfId(u16);

impl VrfId {
    /// The one that is always there, `default`.
    pub const DEFAULT: Self = Self(0);

    /// The VRF with this number.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// Its place among the tables.
    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What a step needs to know of an interface to receive from it and to send by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// The source address of every frame sent by this interface.
    pub mac: MacAddr,
    /// The largest IP packet (not frame) that the interface sends, in bytes, when the router starts; see
    /// [`Mtus`] for later.
    pub mtu: u16,
    /// The tables in which its packets' destinations are looked up.
    pub vrf: VrfId,
    /// Frames may arrive with a TCP or UDP checksum that the sender left to its
    /// (virtual) device, as veth, TAP and AF_PACKET hand them over.
    pub partial_checksums: bool,
    /// The interface has a host interface, which gets the frames of link protocols that are not IP.
    pub host: bool,
    /// What it asks of steps and of the way to the slow path.
    pub features: Features,
}

impl InterfaceInfo {
    /// What stands for a number without an interface.
    pub const NONE: Self = Self {
        mac: MacAddr([0; 6]),
        mtu: u16::MAX,
        vrf: VrfId::DEFAULT,
        partial_checksums: false,
        host: false,
        features: Features::NONE,
    };
}

/// What is known of each interface, by the indexes; [`InterfaceInfo::NONE`] where there is none. Steps that need
/// it for interfaces by which packets leave read it when they are made: whoever makes graphs says before how
/// the interfaces are going to be.
#[derive(Debug)]
pub struct InterfaceInfos(Mutex<Vec<InterfaceInfo>>);

impl InterfaceInfos {
    /// Of these interfaces.
    pub fn new(interfaces: Vec<InterfaceInfo>) -> Self {
        Self(Mutex::new(interfaces))
    }

    /// A copy.
    pub fn get(&self) -> Vec<InterfaceInfo> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// These are the interfaces for steps that are made from now on.
    pub fn set(&self, interfaces: Vec<InterfaceInfo>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = interfaces;
    }
}

/// The MTU of every interface as it is now. Its owner changes it while forwarders read it, by plain loads.
#[derive(Debug)]
pub struct Mtus {
    all: FamilyMtus,
    /// For IPv6: 0 where the link is too small for it.
    ip6: FamilyMtus,
    /// What the devices were opened for: they send nothing longer.
    most: [AtomicU16; MAX_INTERFACES],
    /// Held by who changes something.
    change: Mutex<()>,
}

/// MTUs as they are for packets of a family.
#[derive(Debug)]
pub(crate) struct FamilyMtus {
    /// The largest that there is where no interface is: that the interface is missing is not found here.
    interfaces: [AtomicU16; MAX_INTERFACES],
    /// The smallest of all.
    least: AtomicU16,
}

/// What every link takes that IPv6 packets go over (RFC 8200 5).
const IP6_LEAST: u16 = 1280;

impl Mtus {
    /// The MTUs that these interfaces start with, by index.
    pub fn new(interfaces: &[InterfaceInfo]) -> Self {
        let mtu = |index: usize| interfaces.get(index).map_or(u16::MAX, |interface| interface.mtu);
        Self {
            all: FamilyMtus::new(mtu),
            ip6: FamilyMtus::new(|index| for_ip6(mtu(index))),
            most: std::array::from_fn(|index| AtomicU16::new(mtu(index))),
            change: Mutex::new(()),
        }
    }

    /// Changes an interface's MTU, to no more than its device was opened for, and says what it is now. Each
    /// packet sees the old one or the new one.
    pub fn set(&self, interface: InterfaceId, mtu: u16) -> u16 {
        let mtu = mtu.min(self.most[interface.index()].load(Ordering::Relaxed));
        // Two who change two interfaces would each find a smallest without the other's.
        let _change = self.change.lock();
        self.all.set(interface, mtu);
        self.ip6.set(interface, for_ip6(mtu));
        mtu
    }

    /// A interface's device was opened for this MTU; with `u16::MAX` there is no interface any more.
    pub fn open(&self, interface: InterfaceId, mtu: u16) {
        self.most[interface.index()].store(mtu, Ordering::Relaxed);
        self.set(interface, mtu);
    }

    /// A interface's MTU; if there is no such interface, the largest there is.
    pub fn get(&self, interface: InterfaceId) -> u16 {
        self.all.get(interface)
    }

    /// As packets of one family find them.
    #[inline(always)]
    pub(crate) fn family(&self, ip6: bool) -> &FamilyMtus {
        if ip6 { &self.ip6 } else { &self.all }
    }
}

impl FamilyMtus {
    fn new(mtu: impl Fn(usize) -> u16) -> Self {
        let least = (0..MAX_INTERFACES).map(&mtu).min().unwrap_or(0);
        Self {
            interfaces: std::array::from_fn(|index| AtomicU16::new(mtu(index))),
            least: AtomicU16::new(least),
        }
    }

    fn set(&self, interface: InterfaceId, mtu: u16) {
        self.interfaces[interface.index()].store(mtu, Ordering::Relaxed);
        let all = self.interfaces.iter().map(|interface| interface.load(Ordering::Relaxed));
        self.least.store(all.min().unwrap_or(0), Ordering::Relaxed);
    }

    /// A interface's MTU; if there is no such interface, the largest there is.
    pub(crate) fn get(&self, interface: InterfaceId) -> u16 {
        self.of(interface.0)
    }

    /// [`Self::get`] by an index as steps have it.
    #[inline(always)]
    pub(crate) fn of(&self, interface: u16) -> u16 {
        self.interfaces[usize::from(interface) & (MAX_INTERFACES - 1)].load(Ordering::Relaxed)
    }

    /// What all interfaces take.
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
    fn a_port_s_own_interface_has_its_number_and_others_have_no_port() {
        let port = PortId::new(63).unwrap();
        assert_eq!(
            (InterfaceId::from(port).index(), InterfaceId::of_port(port).port()),
            (63, Some(port))
        );
        assert_eq!(InterfaceId::new(64).unwrap().port(), None);
        assert!(InterfaceId::new(4095).is_some() && InterfaceId::new(4096).is_none());
    }

    #[test]
    fn sets_are_ordered_and_hold_each_once() {
        let interface = |index| InterfaceId::new(index).unwrap();
        let mut set: InterfaceSet = [4095, 0, 70, 0].map(interface).into_iter().collect();
        assert!(set.contains(interface(4095)) && !set.contains(interface(1)));
        set.set(interface(0), false);
        set.set(interface(5), false);
        let all: Vec<_> = set.interfaces().map(InterfaceId::index).collect();
        assert_eq!((set.len(), all, set.is_empty()), (2, vec![70, 4095], false));
    }

    #[test]
    fn a_port_s_mtu_is_no_larger_than_its_device_s_and_the_least_is_found() {
        let mtus = Mtus::new(&[InterfaceInfo { mtu: 1500, ..InterfaceInfo::NONE }]);
        let (first, later) = (InterfaceId::FIRST, InterfaceId(5));
        let seen = || (mtus.get(first), mtus.get(later), mtus.family(false).least());
        assert_eq!((mtus.set(first, 9000), seen()), (1500, (1500, u16::MAX, 1500)));
        mtus.open(later, 900);
        assert_eq!((mtus.set(later, 901), seen()), (900, (1500, 900, 900)));
        assert_eq!(mtus.family(true).get(later), 0, "IPv6 needs more");
        mtus.open(later, u16::MAX);
        assert_eq!(seen(), (1500, u16::MAX, 1500));
    }
}
