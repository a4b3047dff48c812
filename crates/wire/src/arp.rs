//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MacAddr;
use crate::ethernet::ETHERTYPE_IPV4;

/// Hardware type Ethernet.
pub const HARDWARE_ETHERNET: u16 = 1;
/// Operation: request.
pub const REQUEST: u16 = 1;
/// Operation: reply.
pub const REPLY: u16 = 2;

/// An ARP message for IPv4 over Ethernet; other hardware and protocol lengths have another layout,
/// so check [`Self::is_ethernet_ipv4`] before using the addresses.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ArpMessage {
    /// Kind of link, `ar$hrd`.
    pub hardware: U16,
    /// Kind of network address, an ethertype, `ar$pro`.
    pub protocol: U16,
    /// Bytes in a link-layer address, `ar$hln`.
    pub hardware_len: u8,
    /// Bytes in a network address, `ar$pln`.
    pub protocol_len: u8,
    /// [`REQUEST`] or [`REPLY`], `ar$op`.
    pub operation: U16,
    /// MAC of the sender.
    pub sender_mac: MacAddr,
    /// Address of the sender; all zero in a probe (RFC 5227, 2.1.1).
    pub sender_address: [u8; 4],
    /// MAC of the target; ignored in requests.
    pub target_mac: MacAddr,
    /// Address to resolve; in replies, the requester's address.
    pub target_address: [u8; 4],
}

impl ArpMessage {
    /// Creates a message with the four constant fields filled in.
    pub fn new(
        operation: u16,
        (sender_mac, sender): (MacAddr, Ipv4Addr),
        (target_mac, target): (MacAddr, Ipv4Addr),
    ) -> Self {
        Self {
            hardware: U16::new(HARDWARE_ETHERNET),
            protocol: U16::new(ETHERTYPE_IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation),
            sender_mac,
            sender_address: sender.octets(),
            target_mac,
            target_address: target.octets(),
        }
    }

    /// Returns true if the layout is the one this struct describes.
    pub fn is_ethernet_ipv4(&self) -> bool {
        self.hardware == HARDWARE_ETHERNET
            && self.protocol == ETHERTYPE_IPV4
            && self.hardware_len == 6
            && self.protocol_len == 4
    }

    /// Returns the address of the sender.
    pub fn sender(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.sender_address)
    }

    /// Returns [`Self::target_address`].
    pub fn target(&self) -> Ipv4Addr {
        Ipv4Addr::from(self.target_address)
    }
}
