//! Header layouts, checksums and packet builders for Ethernet and IP.
//!
//! No I/O, no allocation outside [`build`] and [`dhcp`], no forwarding policy. Seven layers:
//!
//! * **Layouts** ([`ethernet`], [`arp`], [`ip`], [`l4`], [`icmp`], [`nd`], [`gre`]): one struct per header,
//!   byte for byte as the RFC draws it, big-endian integer types, alignment 1. They are read in
//!   place with `zerocopy`: `Ipv4Header::ref_from_prefix(bytes)` borrows, it does not copy.
//! * **Chains** ([`chain`]): the walk over IPv6 extension headers.
//! * **Checksums** ([`checksum`]): full sums, incremental updates, and completion of the partial
//!   sums that virtual devices hand over.
//! * **Builders** ([`build`]): whole frames, ready to send, for the neighbour protocols and ICMP.
//! * **Relaying** ([`dhcp`]): messages as a relay agent changes them.
//! * **Offloads** ([`offload`]): segmentation and coalescing for devices without these functions.
//! * **Patterns** ([`pattern`]): headers compared under masks, as devices do it.
//!
//! ```
//! use wire::ethernet::EthernetHeader;
//! use zerocopy::FromBytes;
//!
//! let frame = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06, 0xaa];
//! let (header, payload) = EthernetHeader::ref_from_prefix(&frame).unwrap();
//! assert_eq!(header.ethertype, wire::ethernet::ETHERTYPE_ARP);
//! assert_eq!(payload, [0xaa]);
//! ```
#![forbid(unsafe_code)]

pub mod address;
pub mod arp;
pub mod build;
pub mod chain;
pub mod checksum;
pub mod dhcp;
pub mod ethernet;
pub mod gre;
pub mod icmp;
pub mod ip;
pub mod l4;
pub mod lacp;
mod mac;
pub mod nd;
pub mod offload;
pub mod pattern;

pub use mac::MacAddr;
pub use mac::ParseMacError;
