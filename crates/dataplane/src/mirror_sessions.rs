//! Mirror sessions: copies of the packets of interfaces go to an analyser's port (SPAN, RSPAN).
//!
//! ```text
//!   port "wan" --> mirror-in --> graph -----------------> distribution --> port "lan"
//!                      |                                       |
//!                   copies of frames as received       copies of frames as sent
//!                      +---------------------------------------+--> port "span"
//! ```
//!
//! Inward copies are made by the step `mirror-in`, before any other; outward ones by the distribution
//! ([`MirrorOutput`]), where packets of the graph, of the slow path and of the host meet. [`Sessions`] is made when the
//! configuration changes and never changes itself: graphs made afterwards use the new one. Each thread that copies
//! counts in blocks of its own ([`MirrorTable`]); readers get the sum.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dpdk::Burst;

use crate::counters::Counter;
use crate::features::Feature;
use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::mask::Mask;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::tap::{CopyTo, Taps};
use crate::vlan::{ID, Identity, Tag, TagProtocol, VlanTable, Vlans};

/// Ports with an inward session, and those of analysers, ask for the step `mirror-in` by this.
pub const MIRROR: Feature = Feature::number("mirror", 8);

/// The most sessions.
pub const SESSIONS_MAX: usize = MAX_PORTS;

/// The direction of mirrored packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received ones.
    Inward,
    /// Sent ones.
    Outward,
    /// Received and sent ones.
    Both,
}

impl Direction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Inward, Self::Outward, Self::Both];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inward => "inward",
            Self::Outward => "outward",
            Self::Both => "both",
        }
    }

    /// Returns true if it has the other direction.
    pub fn has(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}

/// A mirror session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// The mirrored interfaces: ports, with the frames of their VLANs, and VLANs. None is in two sessions of a
    /// direction.
    pub from: Vec<InterfaceId>,
    /// The mirrored direction.
    pub direction: Direction,
    /// The analyser's port, of this session only.
    pub to: PortId,
    /// One of so many packets is copied, from 1 on.
    pub sample: u32,
    /// The VLAN identifier of an 802.1Q tag in front of each copy.
    pub vlan: Option<u16>,
}

/// The sessions of a port in one direction.
#[derive(Clone, Debug, Default)]
struct OnPort {
    /// That of all its frames.
    whole: Option<usize>,
    /// Those of its VLANs.
    vlans: Vec<(InterfaceId, usize)>,
}

impl OnPort {
    fn is_empty(&self) -> bool {
        self.whole.is_none() && self.vlans.is_empty()
    }
}

/// The sessions of a router.
#[derive(Default)]
pub struct Sessions {
    all: Vec<(Session, CopyTo)>,
    inward: PerPort,
    outward: PerPort,
    /// The ports of analysers.
    destinations: PortSet,
}

/// By port.
struct PerPort(Vec<OnPort>);

impl Default for PerPort {
    fn default() -> Self {
        Self(vec![OnPort::default(); MAX_PORTS])
    }
}

impl Sessions {
    /// Creates them for these VLANs. `is_whole`: the graph has steps that may write anywhere in a packet, so copies must
    /// not share its bytes.
    pub fn new(all: Vec<Session>, vlans: &Vlans, is_whole: bool) -> Self {
        let mut sessions = Self::default();
        for (number, session) in all.into_iter().enumerate() {
            let tag = |id| Tag { protocol: TagProtocol::Dot1q, id, priority: 0 }.bytes();
            let to = CopyTo { port: session.to, tag: session.vlan.map(tag), is_whole };
            sessions.destinations.set(session.to, true);
            for &from in &session.from {
                for direction in [Direction::Inward, Direction::Outward] {
                    if session.direction.has(direction) {
                        sessions.enter(direction, from, number, vlans);
                    }
                }
            }
            sessions.all.push((session, to));
        }
        sessions
    }

    fn enter(&mut self, direction: Direction, from: InterfaceId, number: usize, vlans: &Vlans) {
        let PerPort(by_port) =
            if direction == Direction::Inward { &mut self.inward } else { &mut self.outward };
        match (from.port(), vlans.egress(from.index() as u16)) {
            (Some(port), _) => by_port[port.index()].whole = Some(number),
            (None, Some(egress)) => {
                if let Some(port) = egress.lower.port() {
                    by_port[port.index()].vlans.push((from, number));
                }
            }
            // A VLAN that the configuration does not have.
            (None, None) => {}
        }
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn on(&self, direction: Direction, port: PortId) -> &OnPort {
        let PerPort(by_port) =
            if direction == Direction::Inward { &self.inward } else { &self.outward };
        &by_port[port.index()]
    }

    /// Returns the ports with sessions of this direction.
    fn ports(&self, direction: Direction) -> PortSet {
        let all = (0..).map_while(PortId::new);
        all.filter(|port| !self.on(direction, *port).is_empty()).collect()
    }
}

/// Copies of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorCounts {
    /// Copies made.
    pub packets: u64,
    /// Their bytes, tags included.
    pub bytes: u64,
    /// Copies lost: without a buffer, or because the analyser's port was full or not there.
    pub dropped: u64,
}

/// The counters of a session, of one thread.
#[derive(Default)]
struct SessionCounters {
    packets: Counter,
    bytes: Counter,
    dropped: Counter,
}

/// The counters of all sessions, by number; one thread counts.
struct Block {
    sessions: Arc<Sessions>,
    counters: Box<[SessionCounters]>,
}

impl Block {
    fn add_to(&self, sums: &mut HashMap<String, MirrorCounts>) {
        for ((session, _), counters) in self.sessions.all.iter().zip(&self.counters) {
            let sum = sums.entry(session.name.clone()).or_default();
            sum.packets += counters.packets.get();
            sum.bytes += counters.bytes.get();
            sum.dropped += counters.dropped.get();
        }
    }
}

/// The blocks in use, and the sums of those that were.
#[derive(Default)]
struct Blocks {
    past: HashMap<String, MirrorCounts>,
    live: Vec<Arc<Block>>,
}

/// The sessions for steps that are being made, and the counts of all threads.
#[derive(Default)]
pub struct MirrorTable {
    current: Mutex<Arc<Sessions>>,
    blocks: Mutex<Blocks>,
}

impl MirrorTable {
    /// The sessions.
    pub fn get(&self) -> Arc<Sessions> {
        lock(&self.current).clone()
    }

    /// Sets the sessions of graphs that are made from now on.
    pub fn set(&self, sessions: Arc<Sessions>) {
        *lock(&self.current) = sessions;
    }

    /// Returns the counts of each session that has copied packets, by name.
    pub fn counts(&self) -> HashMap<String, MirrorCounts> {
        let blocks = lock(&self.blocks);
        let mut sums = blocks.past.clone();
        blocks.live.iter().for_each(|block| block.add_to(&mut sums));
        sums
    }

    /// Makes a block for a thread that copies packets of the present sessions.
    fn block(&self) -> Arc<Block> {
        let sessions = self.get();
        let counters = sessions.all.iter().map(|_| SessionCounters::default()).collect();
        let block = Arc::new(Block { sessions, counters });
        let Blocks { past, live } = &mut *lock(&self.blocks);
        for retired in live.extract_if(.., |block| Arc::strong_count(block) == 1) {
            retired.add_to(past);
        }
        live.push(block.clone());
        block
    }
}

/// Copies packets of one direction; for one thread.
pub(crate) struct Mirror {
    block: Arc<Block>,
    vlans: Arc<Vlans>,
    direction: Direction,
    /// The number of packets of each session before the next copy.
    skip: Box<[u32]>,
}

impl Mirror {
    /// Creates it for the present sessions and VLANs.
    pub(crate) fn of(table: &MirrorTable, vlans: &VlanTable, direction: Direction) -> Self {
        let block = table.block();
        let skip = block.sessions.all.iter().map(|_| 0).collect();
        Self { block, vlans: vlans.get(), direction, skip }
    }

    /// Returns true for the port of an analyser.
    pub(crate) fn is_destination(&self, port: PortId) -> bool {
        self.block.sessions.destinations.contains(port)
    }

    /// Copies those of a port's packets that belong to a session.
    pub(crate) fn copy(&mut self, burst: &mut Burst, taps: &mut Taps, packets: Mask, port: PortId) {
        let block = self.block.clone();
        let on = block.sessions.on(self.direction, port);
        if on.is_empty() {
            return;
        }
        taps.look_for_room();
        for slot in packets.slots() {
            let removed = match self.direction {
                Direction::Inward => burst.removed_tag(slot),
                _ => None,
            };
            if let Some(session) = on.whole {
                self.copy_one(burst, taps, (slot, removed), session);
            }
            if let Some(vlan) =
                (!on.vlans.is_empty()).then(|| self.vlan_of(burst, slot, removed, port)).flatten()
                && let Some(&(_, session)) = on.vlans.iter().find(|(id, _)| *id == vlan)
            {
                self.copy_one(burst, taps, (slot, removed), session);
            }
        }
    }

    fn copy_one(
        &mut self,
        burst: &mut Burst,
        taps: &mut Taps,
        (slot, removed): (usize, Option<u16>),
        number: usize,
    ) {
        let (Some((session, to)), Some(skip)) =
            (self.block.sessions.all.get(number), self.skip.get_mut(number))
        else {
            return;
        };
        if *skip > 0 {
            *skip -= 1;
            return;
        }
        *skip = session.sample - 1;
        let counters = &self.block.counters[number];
        match taps.copy(burst, slot, removed, *to) {
            Some(bytes) => {
                counters.packets.add(1);
                counters.bytes.add(bytes as u64);
            }
            None => counters.dropped.add(1),
        }
    }

    /// Returns the VLAN of a frame with tags.
    fn vlan_of(
        &self,
        burst: &Burst,
        slot: usize,
        removed: Option<u16>,
        port: PortId,
    ) -> Option<InterfaceId> {
        let on = self.vlans.on(port)?;
        let tag = |at: usize| -> Option<Identity> {
            let &[a, b, c, d] = burst.head(slot).get(at..)?.first_chunk()?;
            let protocol = TagProtocol::of(u16::from_be_bytes([a, b]))?;
            let is_there = usize::from(burst.lens()[slot]) >= at + 6;
            is_there.then_some((protocol, u16::from_be_bytes([c, d]) & ID))
        };
        let found = match removed {
            // The kind of a removed tag is unknown.
            Some(control) => TagProtocol::ALL
                .into_iter()
                .find_map(|protocol| on.ingress((protocol, control & ID), || tag(12))),
            None => on.ingress(tag(12)?, || tag(16)),
        };
        found.map(|(interface, _)| interface)
    }
}

/// Mirroring where packets leave a forwarder: outward sessions, and copies that the analyser's port does not take.
pub struct MirrorOutput {
    pub(crate) outward: Mirror,
    /// The ports with outward sessions.
    pub(crate) ports: PortSet,
    /// The ports of analysers.
    pub(crate) destinations: PortSet,
    /// Room for packets of the host while they are copied.
    pub(crate) host: Option<Burst>,
}

impl MirrorOutput {
    /// Creates it for the present sessions; `None` if there are none.
    pub fn of(table: &MirrorTable, vlans: &VlanTable) -> Option<Box<Self>> {
        let sessions = table.get();
        let ports = sessions.ports(Direction::Outward);
        let outward = || Mirror::of(table, vlans, Direction::Outward);
        let (destinations, host) = (sessions.destinations, Some(Burst::new()));
        let output = || Self { outward: outward(), ports, destinations, host };
        (!sessions.is_empty()).then(|| Box::new(output()))
    }

    /// Returns the counter of copies that a port did not take; `None` if it is not an analyser's.
    pub(crate) fn losses(&self, port: PortId) -> Option<Losses> {
        let block = &self.outward.block;
        let session = block.sessions.all.iter().position(|(session, _)| session.to == port)?;
        Some(Losses { block: block.clone(), session })
    }
}

/// Counts copies that the analyser's port did not take.
pub(crate) struct Losses {
    block: Arc<Block>,
    session: usize,
}

impl Losses {
    pub(crate) fn add(&self, copies: u64) {
        self.block.counters[self.session].dropped.add(copies);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, batch_of, dpdk, tagged};
    use crate::vlan::{Tags, Vlan};

    fn port(n: u16) -> PortId {
        PortId::new(n).unwrap()
    }

    fn session(name: &str, from: &[u16], direction: Direction, to: u16) -> Session {
        let from = from.iter().map(|n| InterfaceId::new(*n).unwrap()).collect();
        Session { name: name.into(), from, direction, to: port(to), sample: 1, vlan: None }
    }

    /// On port 0: 64 is VLAN 5, 65 VLAN 7 in service VLAN 6.
    fn vlans() -> VlanTable {
        let tag = |protocol, id| Tag { protocol, id, priority: 0 };
        let five = Tags { outer: tag(TagProtocol::Dot1q, 5), inner: None };
        let seven =
            Tags { outer: tag(TagProtocol::Dot1ad, 6), inner: Some(tag(TagProtocol::Dot1q, 7)) };
        let vlan = |interface, tags| Vlan {
            interface: InterfaceId::new(interface).unwrap(),
            lower: PortId::FIRST.into(),
            tags,
        };
        let table = VlanTable::default();
        table.set(Arc::new(Vlans::new(
            &[vlan(64, five), vlan(65, seven)],
            PortSet::EMPTY,
            &crate::bond::Bonds::default(),
        )));
        table
    }

    fn table(sessions: Vec<Session>, vlans: &VlanTable) -> MirrorTable {
        let table = MirrorTable::default();
        table.set(Arc::new(Sessions::new(sessions, &vlans.get(), false)));
        table
    }

    /// The slots whose packets are copied, by their first byte, with the ports to which they go.
    fn copied(mirror: &mut Mirror, frames: &[Vec<u8>], on: u16) -> Vec<(u8, u16)> {
        let mut batch = batch_of(frames);
        for slot in 0..frames.len() {
            batch.head_mut(slot)[0] = slot as u8;
        }
        let mut taps = Taps::new(dpdk().1.clone());
        let packets = batch.packets();
        mirror.copy(&mut batch.burst, &mut taps, packets, port(on));
        let mut all = Vec::new();
        for outgoing in taps.made() {
            for slot in Mask(outgoing.burst.owned()).slots() {
                all.push((outgoing.burst.head(slot)[0], outgoing.out_interface[slot]));
            }
        }
        all
    }

    #[test]
    fn a_port_is_mirrored_with_its_vlans_and_a_vlan_alone() {
        let ip4 = FrameBuilder::ip4().build();
        let frames = [
            ip4.clone(),
            tagged(&ip4, 0x8100, 0x6005),
            tagged(&tagged(&ip4, 0x8100, 7), 0x88a8, 6),
            tagged(&ip4, 0x8100, 9),
            tagged(&ip4, 0x8100, 5)[..17].to_vec(),
        ];
        let vlans = vlans();
        let sessions = || {
            vec![
                session("all", &[0, 1], Direction::Inward, 3),
                session("five", &[64], Direction::Both, 4),
                session("seven", &[65], Direction::Outward, 5),
            ]
        };
        let table = table(sessions(), &vlans);
        let mut inward = Mirror::of(&table, &vlans, Direction::Inward);
        let all = [(0, 3), (1, 3), (1, 4), (2, 3), (3, 3), (4, 3)];
        assert_eq!(copied(&mut inward, &frames, 0), all);
        assert_eq!(copied(&mut inward, &frames[..1], 1), [(0, 3)]);
        assert!(copied(&mut inward, &frames, 2).is_empty());
        let mut outward = Mirror::of(&table, &vlans, Direction::Outward);
        assert_eq!(copied(&mut outward, &frames, 0), [(1, 4), (2, 5)]);
        assert_eq!([2, 3, 4].map(|n| inward.is_destination(port(n))), [false, true, true]);
        let counts = table.counts();
        assert_eq!(
            (counts["all"].packets, counts["five"].packets, counts["seven"].packets),
            (6, 2, 1)
        );
        assert_eq!(counts["seven"].bytes, frames[2].len() as u64);
        // Counts outlive their threads, and those of a session of the same name go on.
        drop((inward, outward));
        let mut next = Mirror::of(&table, &vlans, Direction::Inward);
        assert_eq!(copied(&mut next, &frames[..1], 1), [(0, 3)]);
        assert_eq!(table.counts()["all"].packets, 7);
        let output = MirrorOutput::of(&table, &vlans).unwrap();
        assert_eq!(output.ports, [port(0)].into_iter().collect());
        assert!(output.losses(port(0)).is_none());
        output.losses(port(4)).unwrap().add(3);
        assert_eq!(table.counts()["five"].dropped, 3);
        assert!(MirrorOutput::of(&MirrorTable::default(), &vlans).is_none());
    }

    #[test]
    fn a_tag_that_the_device_removed_is_the_vlan_s() {
        let vlans = vlans();
        let table = table(vec![session("s", &[64, 65], Direction::Both, 4)], &vlans);
        let ip4 = FrameBuilder::ip4().build();
        let mut batch = batch_of(&[ip4.clone(), tagged(&ip4, 0x8100, 7), ip4.clone(), ip4]);
        for (slot, control) in [(0, 0x2005), (1, 6), (2, 9)] {
            batch.burst.say_removed(slot, control);
        }
        for (direction, expected) in [(Direction::Inward, 2), (Direction::Outward, 0)] {
            let mut taps = Taps::new(dpdk().1.clone());
            let mut mirror = Mirror::of(&table, &vlans, direction);
            let packets = batch.packets();
            mirror.copy(&mut batch.burst, &mut taps, packets, PortId::FIRST);
            let lens: Vec<_> =
                taps.made().flat_map(|made| made.burst.lens()[..2].to_vec()).collect();
            assert_eq!(lens.len(), expected, "{direction:?}");
            assert!(
                lens.iter()
                    .zip([0, 1])
                    .all(|(len, slot)| { usize::from(*len) == batch.len(slot) + 4 })
            );
        }
    }

    #[test]
    fn one_of_so_many_packets_is_copied_across_batches() {
        let vlans = VlanTable::default();
        let sampled = Session { sample: 10, ..session("s", &[0], Direction::Inward, 3) };
        let table = table(vec![sampled], &vlans);
        let mut mirror = Mirror::of(&table, &vlans, Direction::Inward);
        let frames = vec![FrameBuilder::ip4().build(); 15];
        let copies = (0..4).map(|_| copied(&mut mirror, &frames, 0));
        let slots: Vec<Vec<u8>> =
            copies.map(|copies| copies.iter().map(|(slot, _)| *slot).collect()).collect();
        assert_eq!(slots, [vec![0, 10], vec![5], vec![0, 10], vec![5]]);
        assert_eq!(table.counts()["s"].packets, 6);
    }
}
