//! Bonds (link aggregation groups, IEEE 802.1AX): interfaces whose frames are spread over several ports.
//!
//! A bond is an interface in place of its ports' own: what they receive, the bond receives, and what the bond sends
//! leaves by one of them, selected by a hash of the frame so that a flow keeps its order. [`Bonds`] maps ports to bonds
//! and bonds to ports. The table is made when bonds change and never changes itself: graphs made afterwards use the new
//! one. The ports that receive and send at present are two words of [`BondState`], which the owner stores while
//! forwarders read them: a port that has lost its link is left out with the next batch, and no graph is made anew.
//!
//! A flow's port is selected among all ports of the bond first, and among the active ones only if that one is not
//! active. So the flows of the others stay where they are when a port is lost or returns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wire::MacAddr;
use wire::ethernet;

use crate::batch::Batch;
use crate::features::Feature;
use crate::flow::{FlowHash, PLAIN_IP4};
use crate::head::HEAD;
use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::shared::Shared;
use crate::traffic::{Block, InterfaceTraffic, Tally, TrafficTable, count};

/// Bonds, and ports that belong to one, ask for the steps by this.
pub const BONDS: Feature = Feature::number("bonds", 7);

/// The fields of frames by which a bond selects a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashFields {
    /// MAC addresses and Ethertype.
    L2,
    /// MAC addresses and, of IP packets, the IP addresses.
    L2L3,
    /// Of IP packets, addresses, protocol, and the ports of packets that are no fragments; of others, MAC addresses.
    #[default]
    L3L4,
}

impl HashFields {
    /// All.
    pub const ALL: [Self; 3] = [Self::L2, Self::L2L3, Self::L3L4];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::L2L3 => "l2+l3",
            Self::L3L4 => "l3+l4",
        }
    }

    /// Returns the hash of a frame, whose VLAN tags do not count.
    #[inline(never)]
    fn hash(self, flows: &FlowHash, frame: &[u8]) -> u32 {
        let packet = || {
            let (ethertype, at) = ethernet::payload(frame)?;
            let is_ip = matches!(ethertype, ethernet::ETHERTYPE_IPV4 | ethernet::ETHERTYPE_IPV6);
            frame.get(at..).filter(|_| is_ip)
        };
        let macs = || frame.get(..12).unwrap_or_default();
        let hash = match self {
            Self::L2 => flows.of_bytes(macs()),
            Self::L2L3 => {
                let addresses = packet().map_or(0, |packet| flows.of_addresses(packet));
                flows.of_bytes(macs()) ^ addresses
            }
            Self::L3L4 => packet().map_or_else(|| flows.of_bytes(macs()), |it| flows.of_packet(it)),
        };
        apart(hash)
    }
}

impl fmt::Display for HashFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Makes a bond's hash of a flow's. Equal-cost paths are selected by the upper bits of the same hash, so all flows of a
/// path would take few of a bond's ports otherwise; the upper bits of a product depend on the lower ones.
#[inline(always)]
fn apart(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1)
}

/// Makes another number of a bond's hash. (MurmurHash3's finalizer.)
fn mix(mut hash: u32) -> u32 {
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// The hashes of a frame by all [`HashFields`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameHashes([u32; HashFields::ALL.len()]);

/// The ports of a bond that take part at present. The owner stores, everyone reads.
#[derive(Debug, Default)]
pub struct BondState {
    /// Ports whose received packets count, by number.
    collecting: AtomicU64,
    /// Ports that send.
    distributing: AtomicU64,
}

impl BondState {
    /// Sets the ports whose received packets count, and those that send.
    pub fn set(&self, collecting: PortSet, distributing: PortSet) {
        self.collecting.store(collecting.bits(), Ordering::Relaxed);
        self.distributing.store(distributing.bits(), Ordering::Relaxed);
    }

    /// Returns true if packets received by this port count.
    #[inline(always)]
    pub fn collects(&self, port: PortId) -> bool {
        PortSet::from_bits(self.collecting.load(Ordering::Relaxed)).contains(port)
    }

    /// Returns true if the bond sends by this port.
    #[inline(always)]
    pub fn distributes(&self, port: PortId) -> bool {
        self.active().contains(port)
    }

    /// The ports that send.
    #[inline(always)]
    fn active(&self) -> PortSet {
        PortSet::from_bits(self.distributing.load(Ordering::Relaxed))
    }
}

/// A bond as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BondSpec {
    /// Its number, [`MAX_PORTS`] or more.
    pub interface: InterfaceId,
    /// Its address, the source of its frames.
    pub mac: MacAddr,
    /// Its ports, in the configuration's order.
    pub ports: Vec<PortId>,
    /// The fields by which it selects a port.
    pub fields: HashFields,
}

/// A bond, with the state of its ports.
#[derive(Debug)]
pub struct Bond {
    spec: BondSpec,
    state: Arc<BondState>,
    /// The ports by the upper bits of hashes, each equally often: a load costs less than a product with the number of
    /// ports, which is not certain to be below it for the compiler.
    by_hash: [PortId; 256],
}

impl Bond {
    fn new(spec: BondSpec, state: Arc<BondState>) -> Self {
        let port = |place: usize| spec.ports.get(place * spec.ports.len() / 256);
        let by_hash = std::array::from_fn(|place| port(place).copied().unwrap_or(PortId::FIRST));
        Self { spec, state, by_hash }
    }

    /// Its number.
    #[inline(always)]
    pub fn interface(&self) -> InterfaceId {
        self.spec.interface
    }

    /// Its ports, in the configuration's order.
    pub fn ports(&self) -> impl Iterator<Item = PortId> {
        self.spec.ports.iter().copied()
    }

    /// The state of its ports.
    #[inline(always)]
    pub fn state(&self) -> &BondState {
        &self.state
    }

    /// Returns the port of frames with this hash; `None` if no port is active.
    fn select(&self, hash: u32) -> Option<PortId> {
        self.select_of(self.state.active(), hash)
    }

    /// [`Self::select`] among these active ports.
    fn select_of(&self, active: PortSet, hash: u32) -> Option<PortId> {
        let first = self.own_port(hash);
        if active.contains(first) {
            return Some(first);
        }
        self.substitute(active, hash)
    }

    /// Returns the port of flows with this hash while all ports are active.
    #[inline(always)]
    fn own_port(&self, hash: u32) -> PortId {
        self.by_hash[(hash >> 24) as usize]
    }

    /// Returns the port of a flow whose own is not active: each active port gets an equal part of these flows.
    #[cold]
    fn substitute(&self, active: PortSet, hash: u32) -> Option<PortId> {
        let is_active = |port: &&PortId| active.contains(**port);
        let count = self.spec.ports.iter().filter(is_active).count();
        self.spec.ports.iter().filter(is_active).nth(part(mix(!hash), count)).copied()
    }
}

/// Maps a hash to a number below `parts`, evenly.
#[inline(always)]
fn part(hash: u32, parts: usize) -> usize {
    ((u64::from(hash) * parts as u64) >> 32) as usize
}

/// The number in [`Bonds`]'s tables for no bond.
const NONE: u8 = u8::MAX;

/// The bonds of a router. See the module's documentation.
#[derive(Debug)]
pub struct Bonds {
    all: Vec<Bond>,
    /// By the ports' numbers: places in [`Self::all`], or [`NONE`].
    by_port: [u8; MAX_PORTS],
    /// By the interfaces' numbers.
    by_interface: Box<[u8]>,
}

impl Default for Bonds {
    fn default() -> Self {
        Self { all: Vec::new(), by_port: [NONE; MAX_PORTS], by_interface: Box::default() }
    }
}

impl Bonds {
    /// Creates a table of these bonds; no port belongs to two.
    fn new(all: Vec<Bond>) -> Self {
        let numbers = all.iter().map(|bond| bond.interface().index() + 1).max().unwrap_or(0);
        let (mut by_port, mut by_interface) = ([NONE; MAX_PORTS], vec![NONE; numbers]);
        for (place, bond) in (0..NONE).zip(&all) {
            bond.ports().for_each(|port| by_port[port.index()] = place);
            by_interface[bond.interface().index()] = place;
        }
        Self { all, by_port, by_interface: by_interface.into() }
    }

    /// The bond with this number.
    pub fn get(&self, interface: InterfaceId) -> Option<&Bond> {
        self.of_interface(interface.index() as u16)
    }

    #[inline(always)]
    pub(crate) fn of_interface(&self, interface: u16) -> Option<&Bond> {
        self.all.get(usize::from(*self.by_interface.get(usize::from(interface))?))
    }

    /// The bond to which a port belongs.
    #[inline(always)]
    pub fn of_port(&self, port: PortId) -> Option<&Bond> {
        self.all.get(usize::from(self.by_port[port.index()]))
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// The bonds for steps that are being made, the state of their ports, and the counts of all steps.
#[derive(Default)]
pub struct BondTable {
    current: Mutex<Arc<Bonds>>,
    states: Mutex<BTreeMap<InterfaceId, Arc<BondState>>>,
    counts: TrafficTable,
}

impl BondTable {
    /// The bonds.
    pub fn get(&self) -> Arc<Bonds> {
        lock(&self.current).clone()
    }

    /// Sets the bonds of steps that are made from now on. A bond of the same number keeps the state of its ports.
    pub fn set(&self, specs: Vec<BondSpec>) {
        let bond = |spec: BondSpec| {
            let state = self.state(spec.interface);
            Bond::new(spec, state)
        };
        let bonds = Arc::new(Bonds::new(specs.into_iter().map(bond).collect()));
        *lock(&self.current) = bonds;
    }

    /// Returns the state of the ports of the bond with this number; at first none takes part.
    pub fn state(&self, interface: InterfaceId) -> Arc<BondState> {
        lock(&self.states).entry(interface).or_default().clone()
    }

    /// Returns the counts of a bond: the frames of its VLANs included, those of LACP not.
    pub fn traffic(&self, interface: InterfaceId) -> InterfaceTraffic {
        self.counts.get(interface)
    }

    /// Resets counters and state of a bond: its number is going to be another's.
    pub fn forget(&self, interface: InterfaceId) {
        lock(&self.states).remove(&interface);
        self.counts.forget(interface);
    }

    /// Returns a block for received frames of these bonds.
    pub(crate) fn rx_block(&self, bonds: &Bonds) -> Block {
        self.counts.rx(bonds.by_interface.len())
    }
}

/// The last part of a frame's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The port by which it leaves.
    pub(crate) port: PortId,
    /// Its source address; `None`: the port's.
    pub(crate) mac: Option<MacAddr>,
}

/// Selects the ports of frames that one bond sends.
pub(crate) struct Selection<'a> {
    bond: &'a Bond,
    active: PortSet,
    flows: FlowHash,
}

impl Selection<'_> {
    /// Returns those of a batch's frames that [`Self::quick`] may treat.
    #[inline(always)]
    pub(crate) fn may_be_quick(&self, batch: &Batch, frames: Mask) -> Mask {
        let is_by_flow = self.bond.spec.fields == HashFields::L3L4;
        if is_by_flow { batch.at_least(frames, PLAIN_IP4) } else { Mask::EMPTY }
    }

    /// Returns the port of a frame with these first bytes; `None` for frames of other kinds than plain IPv4, and of flows
    /// whose own port is not active.
    #[inline(always)]
    pub(crate) fn quick(&self, head: &[u8; HEAD]) -> Option<PortId> {
        let port = self.bond.own_port(apart(self.flows.of_plain_ip4(head)?));
        self.active.contains(port).then_some(port)
    }

    /// Returns the port of any frame; `None` if no port is active.
    pub(crate) fn port_of(&self, frame: &[u8]) -> Option<PortId> {
        self.bond.select_of(self.active, self.bond.spec.fields.hash(&self.flows, frame))
    }
}

/// Selects the ports of frames that bonds send, and counts the frames. For one thread.
pub(crate) struct Spreader {
    bonds: Arc<Bonds>,
    block: Block,
    flows: FlowHash,
}

impl Spreader {
    /// Creates it for the present bonds; `flows` hashes frames.
    pub(crate) fn of(shared: &Shared, flows: FlowHash) -> Self {
        let table = shared.get::<BondTable>();
        let bonds = table.get();
        let block = table.counts.tx(bonds.by_interface.len());
        Self { bonds, block, flows }
    }

    /// Returns a frame's hashes; any numbers if there are no bonds.
    pub(crate) fn hashes(&self, frame: &[u8]) -> FrameHashes {
        if self.bonds.is_empty() {
            return FrameHashes::default();
        }
        FrameHashes(HashFields::ALL.map(|fields| fields.hash(&self.flows, frame)))
    }

    /// Returns the exit of a frame with these hashes that a bond sends.
    pub(crate) fn exit(&self, interface: InterfaceId, hashes: FrameHashes) -> Option<Exit> {
        let bond = self.bonds.get(interface)?;
        let port = bond.select(hashes.0[bond.spec.fields as usize])?;
        Some(Exit { port, mac: Some(bond.spec.mac) })
    }

    /// Returns the selection of ports for frames that this bond sends; `None` if there is no such bond.
    #[inline(always)]
    pub(crate) fn selection(&self, interface: u16) -> Option<Selection<'_>> {
        let bond = self.bonds.of_interface(interface)?;
        Some(Selection { bond, active: bond.state.active(), flows: self.flows })
    }

    /// Counts so many frames, with so many bytes together, that this bond sends.
    #[inline(always)]
    pub(crate) fn count(&self, interface: u16, sum: (u32, u64)) {
        if let Some(interface) = InterfaceId::new(interface) {
            count(&self.block, interface, sum);
        }
    }

    /// Returns the first port of a bond.
    pub(crate) fn first_port(&self, interface: InterfaceId) -> Option<PortId> {
        self.bonds.get(interface)?.ports().next()
    }

    /// Returns true if there are no bonds.
    pub(crate) fn is_empty(&self) -> bool {
        self.bonds.is_empty()
    }

    /// Returns true if there is a bond of this number.
    #[inline(always)]
    pub(crate) fn has(&self, interface: u16) -> bool {
        self.bonds.of_interface(interface).is_some()
    }

    /// Counts sent frames.
    #[inline(always)]
    pub(crate) fn tally(&self) -> Tally<'_> {
        Tally::new(&self.block)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::{FrameBuilder, tagged};

    fn port(number: u16) -> PortId {
        PortId::new(number).unwrap()
    }

    fn set(ports: &[u16]) -> PortSet {
        ports.iter().map(|&number| port(number)).collect()
    }

    fn port_of(bond: &Bond, flows: &FlowHash, frame: &[u8]) -> Option<PortId> {
        bond.select(bond.spec.fields.hash(flows, frame))
    }

    /// A bond of ports 0 to `count` - 1, all of them active.
    fn bond(count: u16, fields: HashFields) -> Bond {
        let spec = BondSpec {
            interface: InterfaceId::new(64).unwrap(),
            mac: MacAddr::default(),
            ports: (0..count).map(port).collect(),
            fields,
        };
        let state = Arc::new(BondState::default());
        let all = (0..count).map(port).collect();
        state.set(all, all);
        Bond::new(spec, state)
    }

    const FLOWS: u16 = 2000;

    fn frames() -> impl Iterator<Item = Vec<u8>> {
        (0..FLOWS).map(|number| {
            let host = format!("10.0.{}.{}", number / 200, number % 200);
            FrameBuilder::ip4().destination4(&host).udp(number, 53, b"x").build()
        })
    }

    proptest! {
        #[test]
        fn flows_are_spread_evenly_and_keep_their_port(seed: u64, count in 1u16..=8) {
            let (flows, bond) = (FlowHash::new(seed), bond(count, HashFields::L3L4));
            let mut found = vec![0u32; usize::from(count)];
            for frame in frames() {
                let first = port_of(&bond, &flows, &frame).unwrap();
                let mut later = frame.clone();
                *later.last_mut().unwrap() ^= 0xff;
                prop_assert_eq!(port_of(&bond, &flows, &later), Some(first));
                prop_assert_eq!(port_of(&bond, &flows, &tagged(&frame, 0x8100, 7)), Some(first));
                found[first.index()] += 1;
            }
            let even = u32::from(FLOWS / count);
            for (port, &number) in found.iter().enumerate() {
                prop_assert!(number > even * 3 / 4 && number < even * 5 / 4 + 1, "{port}: {found:?}");
            }
        }

        #[test]
        fn flows_of_other_ports_stay_when_a_port_is_lost(seed: u64, count in 2u16..=8, lost: u16) {
            let (flows, bond) = (FlowHash::new(seed), bond(count, HashFields::L3L4));
            let lost = port(lost % count);
            let before: Vec<_> = frames().map(|frame| port_of(&bond, &flows, &frame)).collect();
            let left: PortSet = bond.ports().filter(|&port| port != lost).collect();
            bond.state().set(left, left);
            let mut substitutes = BTreeSet::new();
            for (frame, before) in frames().zip(before) {
                let now = port_of(&bond, &flows, &frame);
                if before == Some(lost) {
                    prop_assert!(now.is_some_and(|now| now != lost));
                    substitutes.insert(now);
                } else {
                    prop_assert_eq!(now, before);
                }
            }
            prop_assert_eq!(substitutes.len(), usize::from(count) - 1, "all share its flows");
        }
    }

    proptest! {
        #[test]
        fn flows_of_one_path_of_several_take_all_ports_evenly(seed: u64, paths in 2usize..=4) {
            let (flows, bond) = (FlowHash::new(seed), bond(4, HashFields::L3L4));
            for path in 0..paths {
                let is_there = |frame: &Vec<u8>| part(flows.of_frame(frame), paths) == path;
                let mut found = [0u32; 4];
                for frame in frames().filter(is_there) {
                    found[port_of(&bond, &flows, &frame).unwrap().index()] += 1;
                }
                let even = found.iter().sum::<u32>() / 4;
                for number in found {
                    prop_assert!(number > even / 2 && number < even * 3 / 2, "{found:?}");
                }
            }
        }
    }

    #[test]
    fn a_bond_without_active_ports_sends_nothing() {
        let bond = bond(2, HashFields::L2);
        assert!(bond.state().distributes(port(1)) && bond.state().collects(port(1)));
        bond.state().set(set(&[1]), PortSet::EMPTY);
        assert_eq!(bond.select(7), None);
        assert!(bond.state().collects(port(1)) && !bond.state().collects(port(0)));
    }

    #[test]
    fn each_hash_has_its_fields() {
        let flows = FlowHash::new(3);
        let udp = |to: &str, port| FrameBuilder::ip4().destination4(to).udp(port, 53, b"x").build();
        let base = udp("10.0.0.1", 1);
        let mut other_mac = base.clone();
        other_mac[11] ^= 1;
        let differs = |fields: HashFields| {
            [&other_mac, &udp("10.0.0.2", 1), &udp("10.0.0.1", 2)]
                .map(|frame| fields.hash(&flows, frame) != fields.hash(&flows, &base))
        };
        assert_eq!(differs(HashFields::L2), [true, false, false]);
        assert_eq!(differs(HashFields::L2L3), [true, true, false]);
        assert_eq!(differs(HashFields::L3L4), [false, true, true]);
        // No IP packet, and no whole frame.
        let mut arp = base;
        arp[12..14].copy_from_slice(&[8, 6]);
        let mut other = arp.clone();
        other[11] ^= 1;
        let hash = |frame: &[u8]| HashFields::L3L4.hash(&flows, frame);
        assert_ne!(hash(&arp), hash(&other));
        assert_eq!(hash(&arp[..5]), hash(&[]));
    }

    #[test]
    fn a_bond_keeps_the_state_of_its_ports_over_tables() {
        let (table, id) = (BondTable::default(), InterfaceId::new(70).unwrap());
        let spec = |ports: &[u16]| BondSpec {
            interface: id,
            mac: MacAddr::default(),
            ports: ports.iter().map(|&number| port(number)).collect(),
            fields: HashFields::L2,
        };
        table.set(vec![spec(&[1, 2])]);
        let first = table.get();
        table.state(id).set(set(&[2]), set(&[2]));
        table.set(vec![spec(&[2, 3])]);
        for bonds in [first, table.get()] {
            assert_eq!(bonds.get(id).unwrap().select(0), Some(port(2)));
        }
        let bonds = table.get();
        assert!(bonds.of_port(port(1)).is_none() && bonds.of_port(port(3)).is_some());
        assert!(bonds.of_interface(71).is_none() && bonds.of_interface(3).is_none());
        table.forget(id);
        assert!(!table.state(id).collects(port(2)));
    }
}
