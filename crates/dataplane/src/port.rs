//! Ports: devices with their queues. Addresses, MTU and features are an [interface](crate::interface)'s.

use std::fmt;

pub use dpdk::{Fec, LinkWish, Offload, OffloadWishes, Pause, RssTable, Thresholds};

/// The most ports a router can have. Sizes the per-port arrays of every forwarder.
pub const MAX_PORTS: usize = 64;

/// A port's index in the router's port table. A port keeps its index while it exists; a later port
/// may reuse that of a removed one.
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

/// A set of ports; bit `i` stands for the port with index `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortSet(u64);

const _: () = assert!(MAX_PORTS == u64::BITS as usize, "a PortSet has a bit for each port");

impl PortSet {
    /// No port.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of the ports whose bits are set.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// A bit for each port, by its index.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Returns true if the port is in the set.
    #[inline(always)]
    pub fn contains(self, port: PortId) -> bool {
        self.0 >> port.index() & 1 != 0
    }

    /// Adds or removes a port.
    pub fn set(&mut self, port: PortId, member: bool) {
        self.0 = self.0 & !(1 << port.index()) | u64::from(member) << port.index();
    }

    /// The number of ports.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ports by their indexes.
    pub fn ports(self) -> impl Iterator<Item = PortId> {
        crate::mask::Mask(self.0).slots().filter_map(|index| PortId::new(index as u16))
    }
}

impl Extend<PortId> for PortSet {
    fn extend<I: IntoIterator<Item = PortId>>(&mut self, ports: I) {
        ports.into_iter().for_each(|port| self.set(port, true));
    }
}

impl FromIterator<PortId> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortId>>(ports: I) -> Self {
        let mut set = Self::EMPTY;
        set.extend(ports);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_every_port() {
        let port = |index| PortId::new(index).unwrap();
        let set: PortSet = [port(63), port(0), port(5), port(0)].into_iter().collect();
        let indexes: Vec<_> = set.ports().map(PortId::index).collect();
        assert_eq!((set.len(), indexes), (3, vec![0, 5, 63]));
        assert!(set.contains(port(63)) && !set.contains(port(1)));
        assert!(PortSet::EMPTY.is_empty() && !set.is_empty());
    }
}
