//! What the steps look up: shared by all forwarders, read without lock.
//!
//! One owner, the RIB, writes the FIBs and the next hops; forwarders read them between two reports
//! of a quiescent state (QSBR), so that what the writer retires is freed only when no forwarder can
//! still see it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::batch::HEAD;
use crate::flow::FlowHash;
use crate::multicast::MulticastTable;
use crate::next_hop::{NextHopTable, Packed};
use crate::own::OwnAddresses;
use crate::port::{MAX_PORTS, Mtus, PortInfo, PortInfos};
use crate::steps::{NamedHops, RedirectGates};

/// The tables of a router as some of its forwarders read them: those of one NUMA node may have copies of the
/// FIBs of their own, and share everything else.
#[derive(Clone)]
pub struct Tables {
    /// IPv4 destinations to next-hop numbers.
    pub fib4: Arc<dyn fib::Lookup<Ipv4Addr>>,
    /// IPv6 destinations to next-hop numbers.
    pub fib6: Arc<dyn fib::Lookup<Ipv6Addr>>,
    /// Next-hop numbers to their meaning.
    pub next_hops: Arc<NextHopTable>,
    /// Next hops that the configuration has given names, for steps that send packets there.
    pub named_hops: Arc<NamedHops>,
    /// Which ports packets to groups leave by.
    pub multicast: Arc<MulticastTable>,
    /// What steps that are being made are to know of the ports.
    pub ports: Arc<PortInfos>,
    /// Their MTUs now.
    pub mtus: Arc<Mtus>,
    /// Where a redirect may be sent now.
    pub redirects: Arc<RedirectGates>,
    /// Chooses among equal-cost paths.
    pub flows: FlowHash,
    /// Sources that nobody else may use, and whether those in 240/4 are hosts'. Destinations there are
    /// the FIB's business.
    pub own: Arc<OwnAddresses>,
}

/// The source MAC of every port, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct EgressMacs {
    /// Its first two bytes at the top, behind which a destination fits, and the other four.
    parts: [(u64, u32); MAX_PORTS],
}

impl EgressMacs {
    pub(crate) fn new(ports: &[PortInfo]) -> Self {
        let mut parts = [(0, 0); MAX_PORTS];
        for (part, port) in parts.iter_mut().zip(ports) {
            let [a, b, c, d, e, f] = port.mac.0;
            *part =
                (u64::from_le_bytes([0, 0, 0, 0, 0, 0, a, b]), u32::from_le_bytes([c, d, e, f]));
        }
        Self { parts }
    }

    /// Writes both MACs of an Ethernet header as one 8-byte and one 4-byte store.
    #[inline(always)]
    pub(crate) fn write(&self, head: &mut [u8; HEAD], hop: Packed, port: u16) {
        let (first, rest) = self.parts[usize::from(port) & (MAX_PORTS - 1)];
        head[0..8].copy_from_slice(&(hop.mac_bits() | first).to_le_bytes());
        head[8..12].copy_from_slice(&rest.to_le_bytes());
    }
}
