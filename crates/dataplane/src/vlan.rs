//! VLANs: interfaces whose frames carry IEEE 802.1Q tags on the wire.
//!
//! A VLAN is an interface on a port or a bond with one tag, or with two: an outer one (usually an 802.1ad service tag)
//! and an inner one. [`Vlans`] maps the tags of a port's frames to interfaces, and interfaces to port and tags. The table is
//! made when VLANs change and never changes itself: graphs made afterwards use the new one. The steps `vlan-input` and
//! `vlan-output` count the frames of each interface in blocks of their own; readers get the sum.

use std::fmt;
use std::sync::{Arc, Mutex};

use dpdk::Mbuf;
use wire::ethernet::{ETHERTYPE_QINQ, ETHERTYPE_VLAN, tag_bytes};

use crate::batch::Batch;
use crate::bond::{Bonds, Exit, FrameHashes, Spreader};
use crate::features::Feature;
use crate::flow::FlowHash;
use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::shared::Shared;
use crate::traffic::{Block, InterfaceTraffic, Tally, TrafficTable, count};

/// The number of VLAN identifiers, those reserved included.
const IDS: usize = 4096;

/// The bits of a tag's control information with the VLAN identifier.
pub const ID: u16 = 0x0fff;

/// Ports that have VLANs ask for the steps by this.
pub const VLANS: Feature = Feature::number("vlans", 5);

/// The kind of a tag, by Ethertype.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TagProtocol {
    /// A customer tag, 0x8100 (IEEE 802.1Q).
    #[default]
    Dot1q,
    /// A service tag, 0x88a8 (IEEE 802.1ad).
    Dot1ad,
}

impl TagProtocol {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Dot1q, Self::Dot1ad];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dot1q => "802.1q",
            Self::Dot1ad => "802.1ad",
        }
    }

    /// The Ethertype.
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::Dot1q => ETHERTYPE_VLAN,
            Self::Dot1ad => ETHERTYPE_QINQ,
        }
    }

    /// Returns the kind of tag with this Ethertype; `None` if it is not that of a tag.
    #[inline(always)]
    pub fn of(ethertype: u16) -> Option<Self> {
        match ethertype {
            ETHERTYPE_VLAN => Some(Self::Dot1q),
            ETHERTYPE_QINQ => Some(Self::Dot1ad),
            _ => None,
        }
    }
}

impl fmt::Display for TagProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// Its kind.
    pub protocol: TagProtocol,
    /// The VLAN identifier, 1 to 4094.
    pub id: u16,
    /// The priority code point of sent frames, 0 to 7. Received frames may have any.
    pub priority: u8,
}

impl Tag {
    /// Returns the four bytes after a frame's addresses.
    pub fn bytes(self) -> [u8; 4] {
        tag_bytes(self.protocol.ethertype(), self.control())
    }

    /// Returns its control information: priority and VLAN identifier.
    pub fn control(self) -> u16 {
        u16::from(self.priority) << 13 | self.id & ID
    }

    /// Returns true if both tags identify the same VLAN.
    pub fn is_same_vlan(self, other: Self) -> bool {
        (self.protocol, self.id) == (other.protocol, other.id)
    }
}

/// The tags of a VLAN's frames, outer first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tags {
    /// The first tag on the wire.
    pub outer: Tag,
    /// The second; `None`: there is one tag.
    pub inner: Option<Tag>,
}

/// An interface of tagged frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Its number, [`MAX_PORTS`] or more.
    pub interface: InterfaceId,
    /// The interface that carries its frames: a port's own, or a bond.
    pub lower: InterfaceId,
    /// Their tags.
    pub tags: Tags,
}

/// The egress side of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The interface that carries its frames: a port's own, or a bond.
    pub lower: InterfaceId,
    /// The number of tags; 0: there is no such VLAN.
    count: u8,
    /// The bytes of the tags, as they stand on the wire; of one tag the first four.
    tags: [u8; 8],
    /// The control information of the only tag if the device inserts it.
    by_device: Option<u16>,
}

impl Egress {
    const NONE: Self = Self { lower: InterfaceId::FIRST, count: 0, tags: [0; 8], by_device: None };

    /// `inserts`: the devices of these ports insert a customer tag.
    fn of(vlan: &Vlan, inserts: PortSet) -> Self {
        let is_inserted = vlan.lower.port().is_some_and(|port| inserts.contains(port))
            && vlan.tags.inner.is_none()
            && vlan.tags.outer.protocol == TagProtocol::Dot1q;
        let Tags { outer, inner } = vlan.tags;
        let [a, b, c, d] = outer.bytes();
        let [e, f, g, h] = inner.map_or([0; 4], Tag::bytes);
        Self {
            lower: vlan.lower,
            count: 1 + u8::from(inner.is_some()),
            tags: [a, b, c, d, e, f, g, h],
            by_device: is_inserted.then(|| outer.control()),
        }
    }

    /// Returns the bytes of the outer tag.
    #[inline(always)]
    fn outer(&self) -> [u8; 4] {
        self.tags.first_chunk().copied().unwrap_or_default()
    }

    /// Returns the bytes of the outer tag, and those of the inner one.
    fn split(self) -> ([u8; 4], Option<[u8; 4]>) {
        let [.., e, f, g, h] = self.tags;
        (self.outer(), (self.count == 2).then_some([e, f, g, h]))
    }
}

/// The meaning of a tag on a port, or after an outer tag.
#[derive(Clone, Copy, Default)]
struct Meaning {
    /// The interface of frames without a further tag; 0, which is a port's own: there is none.
    interface: u16,
    /// The number of the table of inner tags, from 1 on; 0: there is none.
    inner: u16,
}

/// The meanings of all tags in one place of a frame, by kind and identifier.
struct Meanings(Box<[[Meaning; IDS]; 2]>);

impl Meanings {
    fn new() -> Self {
        Self(Box::new([[Meaning::default(); IDS]; 2]))
    }

    #[inline(always)]
    fn get(&self, protocol: TagProtocol, id: u16) -> Meaning {
        self.0[protocol as usize][usize::from(id & ID)]
    }

    fn of(&mut self, tag: Tag) -> &mut Meaning {
        &mut self.0[tag.protocol as usize][usize::from(tag.id & ID)]
    }

    /// Gives customer tags the meanings of service tags, unless they have their own.
    fn ignore_protocol(&mut self) {
        let [customer, service] = &mut *self.0;
        for (customer, service) in customer.iter_mut().zip(service) {
            if customer.interface == 0 && customer.inner == 0 {
                *customer = *service;
            }
        }
    }
}

/// The kind of a tag in a frame, and its identifier.
pub(crate) type Identity = (TagProtocol, u16);

/// Reads a tag as it stands in a frame; `None` if these bytes are none.
#[inline(always)]
pub(crate) fn identity([a, b, c, d]: [u8; 4]) -> Option<Identity> {
    Some((TagProtocol::of(u16::from_be_bytes([a, b]))?, u16::from_be_bytes([c, d]) & ID))
}

/// Ports whose devices treat tags specially.
#[derive(Clone, Copy, Debug, Default)]
pub struct TagDevices {
    /// Their drivers present service tags as customer tags, as AF_PACKET does.
    pub lose_protocol: PortSet,
    /// They insert the customer tag that a frame requests ([`dpdk::Burst::request_tags_of`]).
    pub insert: PortSet,
}

/// The VLANs of a router. See the module's documentation.
pub struct Vlans {
    all: Vec<Vlan>,
    /// The outer tags of ports that have VLANs.
    outer: [Option<Meanings>; MAX_PORTS],
    /// Tables of inner tags.
    inner: Vec<Meanings>,
    /// By the interfaces' numbers.
    egress: Box<[Egress]>,
}

impl Default for Vlans {
    fn default() -> Self {
        Self::new(&[], TagDevices::default(), &Bonds::default())
    }
}

impl Vlans {
    /// Creates a table of these VLANs, no two of which have the same tags on a port or bond.
    pub fn new(all: &[Vlan], devices: TagDevices, bonds: &Bonds) -> Self {
        let numbers = all.iter().map(|vlan| vlan.interface.index() + 1).max().unwrap_or(0);
        let mut vlans = Self {
            all: all.to_vec(),
            outer: [const { None }; MAX_PORTS],
            inner: Vec::new(),
            egress: vec![Egress::NONE; numbers].into(),
        };
        for vlan in all {
            let own = vlan.lower.port();
            let of_bond = bonds.get(vlan.lower).into_iter().flat_map(|bond| bond.ports());
            own.into_iter().chain(of_bond).for_each(|port| vlans.enter(vlan, port));
            vlans.egress[vlan.interface.index()] = Egress::of(vlan, devices.insert);
        }
        for port in devices.lose_protocol.ports() {
            vlans.outer[port.index()].iter_mut().for_each(Meanings::ignore_protocol);
        }
        vlans
    }

    /// Frames with these tags on this port belong to the VLAN.
    fn enter(&mut self, vlan: &Vlan, port: PortId) {
        let Tags { outer, inner } = vlan.tags;
        let number = vlan.interface.index() as u16;
        let meaning = self.outer[port.index()].get_or_insert_with(Meanings::new).of(outer);
        match inner {
            None => meaning.interface = number,
            Some(inner) => {
                if meaning.inner == 0 {
                    self.inner.push(Meanings::new());
                    meaning.inner = self.inner.len() as u16;
                }
                self.inner[usize::from(meaning.inner) - 1].of(inner).interface = number;
            }
        }
    }

    /// All VLANs.
    pub fn all(&self) -> &[Vlan] {
        &self.all
    }

    /// Returns the meanings of a port's tags; `None` if the port has no VLANs.
    #[inline(always)]
    pub(crate) fn on(&self, port: PortId) -> Option<OnPort<'_>> {
        let outer = self.outer[port.index()].as_ref()?;
        Some(OnPort { outer, inner: &self.inner })
    }

    /// The egress side of an interface; `None` for a port's own, and if there is none of this number.
    #[inline(always)]
    pub fn egress(&self, interface: u16) -> Option<Egress> {
        self.egress.get(usize::from(interface)).copied().filter(|egress| egress.count != 0)
    }
}

/// The meanings of a port's tags.
#[derive(Clone, Copy)]
pub(crate) struct OnPort<'a> {
    outer: &'a Meanings,
    inner: &'a [Meanings],
}

impl OnPort<'_> {
    /// Returns the interface of frames with this outer tag, and the number of tags that belong to it; `None` if the
    /// port has no such VLAN. `inner` returns the tag after it, and is called only if that has a meaning.
    #[inline(always)]
    pub(crate) fn ingress(
        self,
        (protocol, id): Identity,
        inner: impl FnOnce() -> Option<Identity>,
    ) -> Option<(InterfaceId, usize)> {
        let meaning = self.outer.get(protocol, id);
        if let Some(table) = self.inner.get(usize::from(meaning.inner).wrapping_sub(1))
            && let Some((protocol, id)) = inner()
            && let number @ 1.. = table.get(protocol, id).interface
        {
            return Some((InterfaceId::new(number)?, 2));
        }
        (meaning.interface != 0).then_some((InterfaceId::new(meaning.interface)?, 1))
    }

    /// Returns the interface of frames from which the device stripped a tag with this identifier; `None` if there is no
    /// such VLAN, or if the tags behind it may lead to another one.
    #[inline(always)]
    pub(crate) fn stripped(self, id: u16) -> Option<InterfaceId> {
        let mut interface = 0;
        for protocol in TagProtocol::ALL {
            let meaning = self.outer.get(protocol, id);
            if meaning.inner != 0 {
                return None;
            }
            if interface == 0 {
                interface = meaning.interface;
            }
        }
        InterfaceId::new(interface).filter(|_| interface != 0)
    }

    /// Returns the pattern that a frame with these bytes after its addresses fits; `None` if there is no such VLAN, or
    /// if other frames with the same outer tag may belong to another one.
    #[inline(always)]
    pub(crate) fn pattern(self, tags: [u8; 8]) -> Option<Pattern> {
        let [a, b, c, d, e, f, g, h] = tags;
        let (outer, inner) = (identity([a, b, c, d])?, identity([e, f, g, h]));
        let (interface, tags_of) = self.ingress(outer, || inner)?;
        let is_certain = tags_of == 2 || self.outer.get(outer.0, outer.1).inner == 0;
        let mask = Pattern::MASKS[tags_of - 1];
        let first = u64::from_ne_bytes(tags);
        is_certain.then_some(Pattern { interface, tags: tags_of, first, mask })
    }
}

/// The VLANs for steps that are being made, and the counts of all steps.
#[derive(Default)]
pub struct VlanTable {
    current: Mutex<Arc<Vlans>>,
    counts: TrafficTable,
}

impl VlanTable {
    /// The VLANs.
    pub fn get(&self) -> Arc<Vlans> {
        lock(&self.current).clone()
    }

    /// Sets the VLANs of steps that are made from now on.
    pub fn set(&self, vlans: Arc<Vlans>) {
        *lock(&self.current) = vlans;
    }

    /// Returns the counts of an interface.
    pub fn traffic(&self, interface: InterfaceId) -> InterfaceTraffic {
        self.counts.get(interface)
    }

    /// Resets the counters of an interface: its number is going to be another's.
    pub fn forget(&self, interface: InterfaceId) {
        self.counts.forget(interface);
    }
}

/// The tags of frames of one interface, as they stand in the frames: bits to be compared.
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    /// The interface.
    pub(crate) interface: InterfaceId,
    /// The number of tags that belong to it.
    pub(crate) tags: usize,
    /// Those of the frame that it was made from.
    first: u64,
    /// The bits that count.
    mask: u64,
}

impl Pattern {
    /// Kind and identifier of one tag, and of two.
    const MASKS: [u64; 2] = {
        let [a, b] = ID.to_be_bytes();
        [
            u64::from_ne_bytes([0xff, 0xff, a, b, 0, 0, 0, 0]),
            u64::from_ne_bytes([0xff, 0xff, a, b, 0xff, 0xff, a, b]),
        ]
    };

    /// Returns true if a frame with these bytes after its addresses belongs to the interface, if it is long enough.
    #[inline(always)]
    pub(crate) fn fits(self, tags: [u8; 8]) -> bool {
        self.permits(self.difference(tags))
    }

    /// Returns the bits in which these bytes differ from those of the first frame.
    #[inline(always)]
    pub(crate) fn difference(self, tags: [u8; 8]) -> u64 {
        u64::from_ne_bytes(tags) ^ self.first
    }

    /// Returns true if the outer tags of frames that differ in these bits are the same, priority included.
    #[inline(always)]
    pub(crate) fn is_outer_same(self, difference: u64) -> bool {
        const OUTER: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        difference & OUTER == 0
    }

    /// Returns true if frames that differ in these bits belong to the interface.
    #[inline(always)]
    pub(crate) fn permits(self, difference: u64) -> bool {
        difference & self.mask == 0
    }
}

/// Finds the interfaces of tagged frames, and counts the frames.
pub(crate) struct Untagger {
    pub(crate) vlans: Arc<Vlans>,
    block: Block,
}

impl Untagger {
    /// Creates it for the present VLANs.
    pub(crate) fn of(table: &VlanTable) -> Self {
        let vlans = table.get();
        let block = table.counts.rx(vlans.egress.len());
        Self { vlans, block }
    }

    /// Counts received frames.
    #[inline(always)]
    pub(crate) fn tally(&self) -> Tally<'_> {
        Tally::new(&self.block)
    }

    /// Counts these received frames of an interface.
    #[inline(always)]
    pub(crate) fn count(&self, interface: InterfaceId, batch: &Batch, frames: Mask) {
        count(&self.block, interface, (frames.count(), batch.bytes_of(frames)));
    }
}

/// Tags frames sent by VLANs, selects the ports of those sent by bonds, and counts them. For one thread.
pub struct Tagger {
    vlans: Arc<Vlans>,
    block: Block,
    bonds: Spreader,
}

impl Tagger {
    /// Creates it for the present VLANs, and for the bonds in `shared`; `flows` hashes frames for these.
    pub fn of(table: &VlanTable, shared: &Shared, flows: FlowHash) -> Self {
        let vlans = table.get();
        let block = table.counts.tx(vlans.egress.len());
        Self { vlans, block, bonds: Spreader::of(shared, flows) }
    }

    /// Returns the interface whose frames carry those of this one: of a VLAN its port's or its bond's, of others
    /// itself.
    fn lower(&self, interface: InterfaceId) -> InterfaceId {
        self.vlans.egress(interface.index() as u16).map_or(interface, |egress| egress.lower)
    }

    /// Returns the port that carries the interface's frames; `None` if there is no such interface, or if it is on a
    /// bond, whose frames are spread over several.
    pub fn carrier(&self, interface: InterfaceId) -> Option<PortId> {
        interface.port().or_else(|| self.lower(interface).port())
    }

    /// Returns the VLAN of a tagged frame that an interface sends, and the number of tags that are the VLAN's; `None` for
    /// a frame without tags, or of no VLAN on the interface.
    pub fn vlan_of(&self, from: InterfaceId, frame: &[u8]) -> Option<(InterfaceId, usize)> {
        let tag = |at: usize| identity(*frame.get(at..)?.first_chunk()?);
        let first = tag(12)?;
        let egress = self.vlans.egress(from.index() as u16);
        let lower = self.lower(from);
        let port = lower.port().or_else(|| self.bonds.first_port(lower))?;
        let on_port = self.vlans.on(port)?;
        let Some(egress) = egress else { return on_port.ingress(first, || tag(16)) };
        let (outer, inner) = egress.split();
        let found =
            on_port.ingress(identity(outer)?, || Some(first)).filter(|(_, tags)| *tags == 2);
        inner.is_none().then_some((found?.0, 1))
    }

    /// Returns the hashes by which bonds spread a frame without tags.
    pub(crate) fn hashes(&self, frame: &[u8]) -> FrameHashes {
        self.bonds.hashes(frame)
    }

    /// Returns the exit of a frame with these hashes that an interface sends; `None` if there is no such interface, or
    /// no active port of its bond.
    pub(crate) fn exit(&self, interface: InterfaceId, hashes: FrameHashes) -> Option<Exit> {
        let lower = self.lower(interface);
        match lower.port() {
            Some(port) => Some(Exit { port, mac: None }),
            None => self.bonds.exit(lower, hashes),
        }
    }

    /// Inserts the tags of an interface into a frame, and counts it; returns false if there is no room in the buffer.
    pub(crate) fn insert(&self, interface: InterfaceId, frame: &mut Mbuf) -> bool {
        let mut lower = interface;
        if let Some(egress) = self.vlans.egress(interface.index() as u16) {
            let ((outer, inner), bytes) = (egress.split(), frame.len());
            if !(inner.is_none_or(|inner| frame.insert_tag(inner)) && frame.insert_tag(outer)) {
                return false;
            }
            self.tally().add(interface.index(), bytes);
            lower = egress.lower;
        }
        self.bonds.tally().add(lower.index(), frame.len());
        true
    }

    /// Inserts the tags of an interface into a frame; returns the egress port, which is the interface itself if it is a
    /// port's own. `None`: there is no such interface, no active port of its bond, or no room in the buffer.
    pub fn tag(&self, interface: InterfaceId, frame: &mut Mbuf) -> Option<PortId> {
        if let Some(port) = interface.port() {
            return Some(port);
        }
        let exit = self.exit(interface, self.hashes(frame.data()))?;
        self.insert(interface, frame).then_some(exit.port)
    }

    /// Inserts the tags of an interface that is not a port's own into these frames of a batch, which leave by the
    /// interface that carries it then, and counts them. Returns those for which it failed: there is no such VLAN, or no
    /// room in the buffer.
    #[inline(always)]
    pub(crate) fn tag_in(&self, batch: &mut Batch, frames: Mask, interface: u16) -> Mask {
        let Some(egress) = self.vlans.egress(interface) else { return frames };
        let (failed, bytes) = match (egress.by_device, egress.count) {
            (Some(control), _) => batch.request_tagged(frames, control, egress.lower),
            (None, 1) => batch.send_tagged(frames, egress.outer(), egress.lower),
            (None, _) => batch.send_tagged(frames, egress.tags, egress.lower),
        };
        if let Some(traffic) = self.block.get(usize::from(interface)) {
            traffic.packets.add(frames.without(failed).count().into());
            traffic.bytes.add(bytes);
        }
        failed
    }

    /// Counts sent frames.
    fn tally(&self) -> Tally<'_> {
        Tally::new(&self.block)
    }

    /// Returns true if there is a VLAN of this number.
    pub(crate) fn has(&self, interface: u16) -> bool {
        self.vlans.egress(interface).is_some()
    }

    /// Returns true if there are bonds.
    pub(crate) fn has_bonds(&self) -> bool {
        !self.bonds.is_empty()
    }

    /// Returns true if there is a bond of this number.
    pub(crate) fn has_bond(&self, interface: u16) -> bool {
        self.bonds.has(interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bond::{BondSpec, BondTable, HashFields};
    use crate::testing::{FrameBuilder, TestTables, batch_of};

    const fn tag(protocol: TagProtocol, id: u16) -> Tag {
        Tag { protocol, id, priority: 0 }
    }

    fn vlan(interface: u16, port: u16, outer: Tag, inner: Option<Tag>) -> Vlan {
        let (interface, port) = (InterfaceId::new(interface).unwrap(), PortId::new(port).unwrap());
        Vlan { interface, lower: port.into(), tags: Tags { outer, inner } }
    }

    fn found(vlans: &Vlans, port: u16, tags: &[(TagProtocol, u16)]) -> Option<(usize, usize)> {
        let on = vlans.on(PortId::new(port).unwrap())?;
        let ingress = on.ingress(*tags.first()?, || tags.get(1).copied());
        ingress.map(|(interface, tags)| (interface.index(), tags))
    }

    use TagProtocol::{Dot1ad, Dot1q};

    #[test]
    fn tags_are_found_by_port_kind_and_identifier() {
        let vlans = [
            vlan(64, 0, tag(Dot1q, 100), None),
            vlan(65, 0, tag(Dot1ad, 100), None),
            vlan(66, 0, tag(Dot1ad, 100), Some(tag(Dot1q, 7))),
            vlan(67, 3, tag(Dot1ad, 200), Some(tag(Dot1q, 7))),
        ];
        let vlans = Vlans::new(&vlans, TagDevices::default(), &Bonds::default());
        assert_eq!(found(&vlans, 0, &[(Dot1q, 100)]), Some((64, 1)));
        assert_eq!(found(&vlans, 0, &[(Dot1q, 100), (Dot1q, 7)]), Some((64, 1)));
        assert_eq!(found(&vlans, 0, &[(Dot1ad, 100), (Dot1q, 7)]), Some((66, 2)));
        assert_eq!(found(&vlans, 0, &[(Dot1ad, 100), (Dot1q, 8)]), Some((65, 1)));
        assert_eq!(found(&vlans, 0, &[(Dot1ad, 100), (Dot1ad, 7)]), Some((65, 1)));
        assert_eq!(found(&vlans, 3, &[(Dot1ad, 200), (Dot1q, 7)]), Some((67, 2)));
        assert_eq!(found(&vlans, 3, &[(Dot1ad, 200)]), None);
        assert_eq!(found(&vlans, 3, &[(Dot1q, 200), (Dot1q, 7)]), None);
        assert_eq!(found(&vlans, 1, &[(Dot1q, 100)]), None);
        assert_eq!(found(&vlans, 0, &[]), None);
        assert_eq!(
            (vlans.on(PortId::FIRST).is_some(), vlans.egress(63), vlans.egress(68)),
            (true, None, None)
        );
    }

    #[test]
    fn a_driver_that_loses_the_kind_of_a_tag_finds_either_where_one_is_meant() {
        let vlans = [
            vlan(64, 0, tag(Dot1q, 100), None),
            vlan(65, 0, tag(Dot1ad, 100), None),
            vlan(66, 0, tag(Dot1ad, 200), Some(tag(Dot1q, 7))),
        ];
        let lose_protocol = [PortId::FIRST].into_iter().collect();
        let devices = TagDevices { lose_protocol, ..TagDevices::default() };
        let vlans = Vlans::new(&vlans, devices, &Bonds::default());
        assert_eq!(found(&vlans, 0, &[(Dot1q, 200), (Dot1q, 7)]), Some((66, 2)));
        assert_eq!(found(&vlans, 0, &[(Dot1q, 100)]), Some((64, 1)));
    }

    #[test]
    fn tagged_frames_of_an_interface_are_a_vlan_s_there() {
        let tables = TestTables::every_kind();
        let all = [
            vlan(64, 2, tag(Dot1q, 9), None),
            vlan(65, 2, tag(Dot1ad, 100), None),
            vlan(66, 2, tag(Dot1ad, 100), Some(tag(Dot1q, 7))),
        ];
        tables.vlans.set(Arc::new(Vlans::new(&all, TagDevices::default(), &Bonds::default())));
        let tagger = tables.tagger();
        let frame = FrameBuilder::ip4().build();
        let of = |from: u16, tags: &[u8]| {
            let frame = [&frame[..12], tags, &frame[12..]].concat();
            let found = tagger.vlan_of(InterfaceId::new(from).unwrap(), &frame);
            found.map(|(vlan, tags)| (vlan.index(), tags))
        };
        assert_eq!(of(2, &[0x81, 0, 0xe0, 9]), Some((64, 1)), "of any priority");
        assert_eq!(of(2, &[0x88, 0xa8, 0, 100, 0x81, 0, 0, 7]), Some((66, 2)));
        assert_eq!(of(2, &[0x88, 0xa8, 0, 100]), Some((65, 1)));
        assert_eq!(of(65, &[0x81, 0, 0, 7]), Some((66, 1)), "the outer one follows");
        for (from, tags) in
            [(2, &[][..]), (2, &[0x81, 0, 0, 8]), (3, &[0x81, 0, 0, 9]), (66, &[0x81, 0, 0, 7])]
        {
            assert_eq!(of(from, tags), None, "{from} {tags:?}");
        }
        assert_eq!(tagger.vlan_of(InterfaceId::new(2).unwrap(), &frame[..13]), None);
    }

    #[test]
    fn frames_leave_with_the_tags_of_their_interface() {
        let service = Tag { priority: 5, ..tag(Dot1ad, 100) };
        let tables = TestTables::every_kind();
        let table = &tables.vlans;
        let all = [vlan(64, 2, service, Some(tag(Dot1q, 7))), vlan(65, 2, tag(Dot1q, 9), None)];
        table.set(Arc::new(Vlans::new(&all, TagDevices::default(), &Bonds::default())));
        let tagger = tables.tagger();
        let frame = FrameBuilder::ip4().build();
        let sent = |interface: u16| {
            let mut packet = batch_of(std::slice::from_ref(&frame)).burst.take(0).unwrap();
            let port = tagger.tag(InterfaceId::new(interface).unwrap(), &mut packet);
            (port.map(PortId::index), packet.data()[12..].to_vec())
        };
        let behind = |tags: &[u8]| [tags, &frame[12..]].concat();
        assert_eq!(sent(64), (Some(2), behind(&[0x88, 0xa8, 0xa0, 100, 0x81, 0, 0, 7])));
        assert_eq!(sent(65), (Some(2), behind(&[0x81, 0, 0, 9])));
        assert_eq!(sent(3), (Some(3), behind(&[])));
        assert_eq!(sent(66).0, None);
        let bytes = frame.len() as u64;
        let traffic = |interface| {
            let InterfaceTraffic { tx_packets, tx_bytes, .. } = table.traffic(interface);
            (tx_packets, tx_bytes)
        };
        let first = InterfaceId::new(64).unwrap();
        assert_eq!(traffic(first), (1, bytes));
        drop(tagger);
        let _next = tables.tagger();
        assert_eq!(traffic(first), (1, bytes), "counts outlive their step");
        table.forget(first);
        assert_eq!((traffic(first), traffic(InterfaceId::new(65).unwrap())), ((0, 0), (1, bytes)));
    }

    #[test]
    fn a_vlan_on_a_bond_has_the_bond_s_ports() {
        let tables = TestTables::every_kind();
        let port = |number| PortId::new(number).unwrap();
        let (bond, vlan) = (InterfaceId::new(64).unwrap(), InterfaceId::new(65).unwrap());
        let mac = wire::MacAddr([2, 0, 0, 0, 0, 9]);
        let spec = BondSpec {
            interface: bond,
            mac,
            ports: vec![port(1), port(2)],
            fields: HashFields::L2,
        };
        let bonds = tables.shared.get::<BondTable>();
        bonds.set(vec![spec]);
        let tags = Tags { outer: tag(Dot1q, 9), inner: None };
        let all = [Vlan { interface: vlan, lower: bond, tags }];
        let vlans = Vlans::new(&all, TagDevices::default(), &bonds.get());
        assert_eq!(
            [0, 1, 2].map(|port| found(&vlans, port, &[(Dot1q, 9)])),
            [None, Some((65, 1)), Some((65, 1))]
        );
        tables.vlans.set(Arc::new(vlans));
        let tagger = tables.tagger();
        let frame = FrameBuilder::ip4().build();
        let sent = |interface| {
            let mut packet = batch_of(std::slice::from_ref(&frame)).burst.take(0).unwrap();
            let port = tagger.tag(interface, &mut packet);
            (port.map(PortId::index), packet.data()[12..14].to_vec())
        };
        assert_eq!(sent(vlan).0, None, "no port is active");
        let active = [port(2)].into_iter().collect();
        bonds.state(bond).set(active, active);
        assert_eq!(sent(vlan), (Some(2), vec![0x81, 0]));
        assert_eq!(sent(bond), (Some(2), vec![8, 0]));
        assert_eq!((tagger.carrier(vlan), tagger.carrier(bond)), (None, None));
        let exit = tagger.exit(vlan, tagger.hashes(&frame));
        assert_eq!(exit, Some(Exit { port: port(2), mac: Some(mac) }));
        let bytes = frame.len() as u64;
        assert_eq!(tables.vlans.traffic(vlan).tx_bytes, bytes);
        assert_eq!(bonds.traffic(bond).tx_bytes, 2 * bytes + 4);
    }
}
