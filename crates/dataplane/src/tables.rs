//! The tables that steps look up: shared by all forwarders, read without lock.
//!
//! One owner, the RIB, writes the FIBs and the next hops; forwarders read them between two reports of a
//! quiescent state (QSBR), so that memory that the writer retires is freed only when no forwarder can still see
//! it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};

use crate::erspan::Exits;
use crate::filters::FilterTables;
use crate::flow::FlowHash;
use crate::head::HEAD;
use crate::interface::{InterfaceInfo, InterfaceInfos, MAX_INTERFACES, Mtus, VRFS_MOST, VrfId};
use crate::mirror_sessions::{Direction, Mirror, MirrorOutput, MirrorTable};
use crate::multicast::MulticastTable;
use crate::next_hop::{NamedHops, NextHopTable, Packed};
use crate::own::OwnAddresses;
use crate::shared::Shared;
use crate::vlan::{Tagger, VlanTable};

/// The tables of a router as some of its forwarders read them: those of one NUMA node may have copies of the
/// FIBs of their own, and share everything else.
#[derive(Clone)]
pub struct Tables {
    /// The routes of each VRF.
    pub vrfs: Arc<VrfTables>,
    /// The meanings of next-hop numbers.
    pub next_hops: Arc<NextHopTable>,
    /// Named next hops of the configuration, for steps that send packets there.
    pub named_hops: Arc<NamedHops>,
    /// Egress interfaces of packets to groups.
    pub multicast: Arc<MulticastTable>,
    /// Facts about the interfaces, for steps that are being made.
    pub interfaces: Arc<InterfaceInfos>,
    /// Their MTUs now.
    pub mtus: Arc<Mtus>,
    /// The packet filters for steps that are being made.
    pub filters: Arc<FilterTables>,
    /// The VLANs for steps that are being made.
    pub vlans: Arc<VlanTable>,
    /// The mirror sessions for graphs that are being made, and their counts.
    pub mirrors: Arc<MirrorTable>,
    /// State that steps share.
    pub shared: Arc<Shared>,
    /// Selects among equal-cost paths.
    pub flows: FlowHash,
    /// Sources that no host may use, and the treatment of those in 240/4. Destinations there are
    /// looked up in the FIB.
    pub own: Arc<OwnAddresses>,
}

/// The routes of one VRF.
#[derive(Clone)]
pub struct Fibs {
    /// IPv4 destinations to next-hop numbers.
    pub fib4: Arc<dyn fib::Lookup<Ipv4Addr>>,
    /// IPv6 destinations to next-hop numbers.
    pub fib6: Arc<dyn fib::Lookup<Ipv6Addr>>,
}

impl Tables {
    /// Returns a tagger for the present VLANs and bonds.
    pub fn tagger(&self) -> Tagger {
        Tagger::of(&self.vlans, &self.shared, self.flows)
    }

    /// Returns a maker of copies of packets of this direction for the present mirror sessions.
    pub(crate) fn mirror(&self, direction: Direction) -> Mirror {
        Mirror::of(&self.mirrors, &self.vlans, direction, || self.exits())
    }

    /// Returns the mirroring of packets where they leave, for the present mirror sessions; `None` without any.
    pub fn mirror_output(&self) -> Option<Box<MirrorOutput>> {
        MirrorOutput::of(&self.mirrors, &self.vlans, || self.exits())
    }

    /// Returns the present exits of copies to analysers behind routers.
    pub(crate) fn exits(&self) -> Exits {
        Exits {
            next_hops: self.next_hops.clone(),
            mtus: self.mtus.clone(),
            flows: self.flows,
            interfaces: self.interfaces.get(),
            tagger: self.tagger(),
        }
    }

    /// Returns the routes of a VRF; those of the default one for an unused number.
    #[inline(always)]
    pub fn vrf(&self, vrf: VrfId) -> &Fibs {
        self.vrfs.get(vrf)
    }
}

/// The routes of all VRFs. VRFs other than the default may be added while forwarders read, and their tables
/// stay: a removed VRF has no routes, and the next one of its number reuses its tables.
pub struct VrfTables {
    default: Fibs,
    others: Box<[OnceLock<Fibs>]>,
}

impl VrfTables {
    /// Creates those of the default VRF only.
    pub fn new(default: Fibs) -> Self {
        Self { default, others: (1..VRFS_MOST).map(|_| OnceLock::new()).collect() }
    }

    /// Sets the tables of another VRF. Has no effect for a number that has tables already, or is
    /// out of range.
    pub fn add(&self, vrf: VrfId, fibs: Fibs) {
        if let Some(place) = vrf.index().checked_sub(1).and_then(|index| self.others.get(index)) {
            let _ = place.set(fibs);
        }
    }

    /// Returns the number of VRFs with tables, the default one included.
    pub fn count(&self) -> usize {
        1 + self.others.iter().filter(|place| place.get().is_some()).count()
    }

    /// Returns the tables of a VRF; the default one's for an unused number.
    #[inline(always)]
    pub fn get(&self, vrf: VrfId) -> &Fibs {
        if vrf == VrfId::DEFAULT { &self.default } else { self.other(vrf) }
    }

    fn other(&self, vrf: VrfId) -> &Fibs {
        let place = self.others.get(vrf.index() - 1);
        place.and_then(OnceLock::get).unwrap_or(&self.default)
    }
}

/// The source MAC of every interface, in the form to be written.
#[derive(Clone, Debug)]
pub(crate) struct EgressMacs {
    /// Its first two bytes at the top, followed by room for a destination, and the other four.
    parts: Box<[(u64, u32); MAX_INTERFACES]>,
}

impl EgressMacs {
    pub(crate) fn new(interfaces: &[InterfaceInfo]) -> Self {
        let mut parts = Box::new([(0, 0); MAX_INTERFACES]);
        for (part, interface) in parts.iter_mut().zip(interfaces) {
            let [a, b, c, d, e, f] = interface.mac.0;
            *part =
                (u64::from_le_bytes([0, 0, 0, 0, 0, 0, a, b]), u32::from_le_bytes([c, d, e, f]));
        }
        Self { parts }
    }

    /// Writes both MACs of an Ethernet header as one 8-byte and one 4-byte store.
    #[inline(always)]
    pub(crate) fn write(&self, head: &mut [u8; HEAD], hop: Packed, interface: u16) {
        let (first, rest) = self.parts[usize::from(interface) & (MAX_INTERFACES - 1)];
        head[0..8].copy_from_slice(&(hop.mac_bits() | first).to_le_bytes());
        head[8..12].copy_from_slice(&rest.to_le_bytes());
    }
}
