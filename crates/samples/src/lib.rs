//! Sampled packets for collectors: sFlow version 5 and IPFIX (RFC 7011). No sockets and no clock: packets, routes and
//! the time come in, datagrams go out.
//!
//! ```text
//!   sampled frame --> headers.rs --> sflow.rs: a sample each -----------------> datagrams
//!                         |
//!                         +--------> flows.rs: flows, aged --> ipfix.rs ------> messages
//! ```
#![forbid(unsafe_code)]

pub mod flows;
pub mod headers;
pub mod ipfix;
pub mod sflow;

use std::net::IpAddr;

/// The most bytes of a datagram: it fits the MTU of any path, behind IPv6 and UDP headers and a tunnel's.
pub const DATAGRAM_MOST: usize = 1400;

/// The way of a packet out of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Output {
    /// It is not known.
    #[default]
    Unknown,
    /// By the interface with this number.
    Interface(u32),
    /// It is for the router itself.
    Router,
    /// No route leads to its destination, or one that drops it.
    Discarded,
}

/// The route of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The way out.
    pub output: Output,
    /// The gateway; `None`: the destination itself, or none.
    pub next_hop: Option<IpAddr>,
    /// Bits of the prefix of the route to the source; 0: none, or a default route.
    pub source_len: u8,
    /// Bits of the prefix of the route to the destination.
    pub destination_len: u8,
}
