//! What the data plane knows of a port: its number, its MAC, its MTU.

use std::fmt;

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
    /// The largest IP packet (not frame) that the port sends, in bytes.
    pub mtu: u16,
    /// Frames may arrive with a TCP or UDP checksum that the sender left to its
    /// (virtual) device, as veth, TAP and AF_PACKET hand them over.
    pub partial_checksums: bool,
}
