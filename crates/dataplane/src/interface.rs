//! Interfaces: ingress and egress of packets, as used by addresses, routes and features.
//!
//! A port is a device and its queues; an interface has a MAC, an MTU, a VRF and features. Each port
//! has its own interface, with the same number, for untagged frames; others, from
//! [`MAX_PORTS`](crate::port::MAX_PORTS) on, are on one port or several. So the number of a port's
//! own interface is the port's index, which costs the usual packet nothing.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use wire::MacAddr;

use crate::features::Features;
use crate::lock::lock;
use crate::port::PortId;

/// The most interfaces a router can have.
pub const MAX_INTERFACES: usize = 8192;

/// An interface's number in the router's table. An interface keeps its number while it exists; a
/// later interface may reuse the number of a removed one.
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

    /// Returns the port whose own interface this is; `None` for an interface on other ports.
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

/// A set of interfaces, few of all possible ones; not for the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InterfaceSet(Vec<InterfaceId>);

impl InterfaceSet {
    /// No interface.
    pub const EMPTY: Self = Self(Vec::new());

    /// Returns true if the interface is in the set.
    pub fn contains(&self, interface: InterfaceId) -> bool {
        self.0.binary_search(&interface).is_ok()
    }

    /// Adds or removes an interface.
    pub fn set(&mut self, interface: InterfaceId, member: bool) {
        match (self.0.binary_search(&interface), member) {
            (Err(place), true) => self.0.insert(place, interface),
            (Ok(place), false) => drop(self.0.remove(place)),
            _ => {}
        }
    }

    /// Returns the number of interfaces.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the interfaces by number.
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

/// The most VRFs, the default one included: one for each VLAN of a port.
pub const VRFS_MOST: usize = 4096;

/// A virtual routing and forwarding instance: tables of its own (RFC 4364 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VrfId(u16);

impl VrfId {
    /// The one that always exists, `default`.
    pub const DEFAULT: Self = Self(0);

    /// Returns the VRF with this number.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// Returns its index in the tables.
    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Facts about an interface that steps need to receive and send packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// The source address of every frame sent by this interface.
    pub mac: MacAddr,
    /// The largest IP packet (not frame) that the interface sends, in bytes, when the router starts; see
    /// [`Mtus`] for later.
    pub mtu: u16,
    /// The tables in which its packets' destinations are looked up.
    pub vrf: VrfId,
    /// True if frames may arrive with a TCP or UDP checksum that the sender left to its (virtual)
    /// device, as with veth, TAP and AF_PACKET.
    pub partial_checksums: bool,
    /// True if the driver presents service tags (802.1ad) as customer tags.
    pub loses_tag_protocol: bool,
    /// True if the device inserts the customer tags of sent frames.
    pub inserts_tags: bool,
    /// True if the interface has a host interface, which receives the frames of link protocols
    /// other than IP.
    pub host: bool,
    /// The features that it enables, of steps and of the path to the slow path.
    pub features: Features,
}

impl InterfaceInfo {
    /// Stands for a number without an interface.
    pub const NONE: Self = Self {
        mac: MacAddr([0; 6]),
        mtu: u16::MAX,
        vrf: VrfId::DEFAULT,
        partial_checksums: false,
        loses_tag_protocol: false,
        inserts_tags: false,
        host: false,
        features: Features::NONE,
    };
}

/// Facts about each interface, by index; [`InterfaceInfo::NONE`] if there is none. Steps that need
/// them for egress interfaces read them when they are made; the maker of graphs sets the future
/// interfaces first.
#[derive(Debug)]
pub struct InterfaceInfos(Mutex<Vec<InterfaceInfo>>);

impl InterfaceInfos {
    /// Creates them for these interfaces.
    pub fn new(interfaces: Vec<InterfaceInfo>) -> Self {
        Self(Mutex::new(interfaces))
    }

    /// Returns a copy.
    pub fn get(&self) -> Vec<InterfaceInfo> {
        lock(&self.0).clone()
    }

    /// Sets the interfaces for steps that are made from now on.
    pub fn set(&self, interfaces: Vec<InterfaceInfo>) {
        *lock(&self.0) = interfaces;
    }
}

/// The present MTU of every interface. Its owner changes it while forwarders read it, by plain
/// loads.
#[derive(Debug)]
pub struct Mtus {
    all: FamilyMtus,
    /// For IPv6: 0 if the link's MTU is too small for it.
    ip6: FamilyMtus,
    /// The MTUs for which the devices were opened: they send no longer packets.
    most: [AtomicU16; MAX_INTERFACES],
    /// Held by the thread that makes a change.
    change: Mutex<()>,
}

/// MTUs for packets of one family.
#[derive(Debug)]
pub(crate) struct FamilyMtus {
    /// The largest MTU for numbers without an interface: a missing interface is detected elsewhere.
    interfaces: [AtomicU16; MAX_INTERFACES],
    /// The smallest of all.
    least: AtomicU16,
}

/// The minimum MTU of links for IPv6 (RFC 8200 5).
const IP6_LEAST: u16 = 1280;

impl Mtus {
    /// Creates the initial MTUs of these interfaces, by index.
    pub fn new(interfaces: &[InterfaceInfo]) -> Self {
        let mtu = |index: usize| interfaces.get(index).map_or(u16::MAX, |interface| interface.mtu);
        Self {
            all: FamilyMtus::new(mtu),
            ip6: FamilyMtus::new(|index| for_ip6(mtu(index))),
            most: std::array::from_fn(|index| AtomicU16::new(mtu(index))),
            change: Mutex::new(()),
        }
    }

    /// Changes an interface's MTU, up to that for which its device was opened, and returns the
    /// result. Each packet sees the old one or the new one.
    pub fn set(&self, interface: InterfaceId, mtu: u16) -> u16 {
        let mtu = mtu.min(self.most[interface.index()].load(Ordering::Relaxed));
        // Two threads that change two interfaces would each compute a minimum without the other's
        // change.
        let _change = self.change.lock();
        self.all.set(interface, mtu);
        self.ip6.set(interface, for_ip6(mtu));
        mtu
    }

    /// Records that an interface's device was opened for this MTU; `u16::MAX`: the interface was
    /// removed.
    pub fn open(&self, interface: InterfaceId, mtu: u16) {
        self.most[interface.index()].store(mtu, Ordering::Relaxed);
        self.set(interface, mtu);
    }

    /// Returns an interface's MTU; if there is no such interface, the largest value.
    pub fn get(&self, interface: InterfaceId) -> u16 {
        self.all.get(interface)
    }

    /// Returns the MTUs for packets of one family.
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

    /// Returns an interface's MTU; if there is no such interface, the largest value.
    pub(crate) fn get(&self, interface: InterfaceId) -> u16 {
        self.of(interface.0)
    }

    /// Like [`Self::get`], by the index that steps use.
    #[inline(always)]
    pub(crate) fn of(&self, interface: u16) -> u16 {
        self.interfaces[usize::from(interface) & (MAX_INTERFACES - 1)].load(Ordering::Relaxed)
    }

    /// Returns the smallest MTU of all interfaces.
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
        assert!(InterfaceId::new(8191).is_some() && InterfaceId::new(8192).is_none());
    }

    #[test]
    fn sets_are_ordered_and_hold_each_once() {
        let interface = |index| InterfaceId::new(index).unwrap();
        let mut set: InterfaceSet = [8191, 0, 70, 0].map(interface).into_iter().collect();
        assert!(set.contains(interface(8191)) && !set.contains(interface(1)));
        set.set(interface(0), false);
        set.set(interface(5), false);
        let all: Vec<_> = set.interfaces().map(InterfaceId::index).collect();
        assert_eq!((set.len(), all, set.is_empty()), (2, vec![70, 8191], false));
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
