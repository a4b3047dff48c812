//! Mirror sessions: copies of packets go to an analyser, by a port of its own (SPAN, RSPAN) or by the routes (ERSPAN).
//!
//! ```text
//!   port "wan" --> mirror-in --> graph, filters --------> distribution --> port "lan"
//!                      |             |                         |
//!                   copies of     of packets that           copies of
//!                   received      match a rule              sent frames
//!                      +-------------+-------------------------+--> port "span"
//!                                                              +--> erspan.rs: by the route to the analyser
//! ```
//!
//! Inward copies are made by the step `mirror-in`, before any other; outward ones by the distribution
//! ([`MirrorOutput`]), where packets of the graph, of the slow path and of the host meet; those of rules by the steps of
//! filters. Copies are not copied again. [`Sessions`] is made when the configuration changes and never changes itself:
//! graphs made afterwards use the new one. Each thread that copies counts in blocks of its own ([`MirrorTable`]); readers
//! get the sum.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dpdk::{Burst, Mbuf};

use crate::batch::Batch;
use crate::counters::Counter;
use crate::erspan::{Erspan, Exits, Origin, Tunnel};
use crate::features::Feature;
use crate::interface::InterfaceId;
use crate::lock::lock;
use crate::mask::Mask;
use crate::next_hop::{NamedHops, NextHopTable};
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::tap::{CopyTo, Taps};
use crate::vlan::{ID, Identity, Tag, TagProtocol, VlanTable, Vlans, identity};

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

/// The destination of a session's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The analyser's port, of this session only.
    Port(PortId),
    /// An analyser behind routers.
    Erspan(Erspan),
}

impl Destination {
    /// Returns the analyser's port.
    pub fn port(self) -> Option<PortId> {
        match self {
            Self::Port(port) => Some(port),
            Self::Erspan(_) => None,
        }
    }
}

/// The destination of copies of a rule's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorTo {
    /// This port, which may have other traffic.
    Port(PortId),
    /// The session with this number, up to [`SESSIONS_MAX`].
    Session(u8),
}

/// A mirror session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// The mirrored interfaces: ports, with the frames of their VLANs, and VLANs. None is in two sessions of a
    /// direction; a session for rules of filters may have none.
    pub from: Vec<InterfaceId>,
    /// The mirrored direction.
    pub direction: Direction,
    /// The destination of the copies.
    pub to: Destination,
    /// One of so many packets is copied, from 1 on.
    pub sample: u32,
    /// The VLAN identifier of an 802.1Q tag in front of each copy.
    pub vlan: Option<u16>,
}

impl Session {
    /// Returns the name of the next hop by which copies to an analyser behind routers leave; no other next hop can have
    /// it.
    pub fn hop_name(&self) -> String {
        format!("mirror {}", self.name)
    }
}

/// The way of a session's copies.
enum CopyPath {
    /// By the analyser's port, with the bytes of a tag in front of all others.
    Port(PortId, Option<[u8; 4]>),
    /// By the route; `None`: see [`Sessions::with_tunnels`].
    Tunnel(Option<Tunnel>),
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
    all: Vec<(Session, CopyPath)>,
    inward: PerPort,
    outward: PerPort,
    /// The ports of analysers.
    destinations: PortSet,
    /// True if the graph has steps that may write anywhere in a packet.
    is_whole: bool,
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
        let mut sessions = Self { is_whole, ..Self::default() };
        for (number, session) in all.into_iter().enumerate() {
            let tag = |id| Tag { protocol: TagProtocol::Dot1q, id, priority: 0 }.bytes();
            let way = match session.to {
                Destination::Port(port) => CopyPath::Port(port, session.vlan.map(tag)),
                Destination::Erspan(_) => CopyPath::Tunnel(None),
            };
            sessions.destinations.extend(session.to.port());
            for &from in &session.from {
                for direction in [Direction::Inward, Direction::Outward] {
                    if session.direction.has(direction) {
                        sessions.enter(direction, from, number, vlans);
                    }
                }
            }
            sessions.all.push((session, way));
        }
        sessions
    }

    /// Connects sessions with analysers behind routers to their next hops, without which their copies are lost. Those of
    /// the same name in `before` continue its sequence numbers.
    #[must_use]
    pub fn with_tunnels(mut self, hops: &NamedHops, before: &Self) -> Self {
        for (session, way) in &mut self.all {
            if let Destination::Erspan(to) = &session.to {
                let known = before.tunnel(&session.name).map(Tunnel::sequence);
                let hop = hops.number(&session.hop_name());
                *way = CopyPath::Tunnel(Some(Tunnel::new(to, hop, known.unwrap_or_default())));
            }
        }
        self
    }

    fn tunnel(&self, name: &str) -> Option<&Tunnel> {
        let found = self.all.iter().find(|(session, _)| session.name == name);
        found.and_then(|(_, way)| match way {
            CopyPath::Tunnel(tunnel) => tunnel.as_ref(),
            CopyPath::Port(..) => None,
        })
    }

    /// Returns true if the session of this name has an analyser behind routers that can be reached now.
    pub fn is_reachable(&self, name: &str, hops: &NextHopTable) -> bool {
        self.tunnel(name).is_some_and(|tunnel| tunnel.is_reachable(hops))
    }

    /// Returns true if there are sessions with an analyser behind routers.
    pub(crate) fn has_tunnels(&self) -> bool {
        self.all.iter().any(|(_, way)| matches!(way, CopyPath::Tunnel(_)))
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
    /// Copies lost: without a buffer, or because the analyser's port was full or not there, or the analyser not to be
    /// reached.
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

/// Copies packets; for one thread.
pub(crate) struct Mirror {
    block: Arc<Block>,
    vlans: Arc<Vlans>,
    direction: Direction,
    /// The number of packets of each session before the next copy.
    skip: Box<[u32]>,
    /// For sessions with an analyser behind routers.
    exits: Option<Exits>,
}

/// A packet to be copied: its slot, the tag that its device removed or is to insert, its origin.
type Copied = (usize, Option<u16>, Origin);

impl Mirror {
    /// Creates it for the present sessions and VLANs, and packets of this direction. `exits` is called if a session has
    /// an analyser behind routers.
    pub(crate) fn of(
        table: &MirrorTable,
        vlans: &VlanTable,
        direction: Direction,
        exits: impl FnOnce() -> Exits,
    ) -> Self {
        let block = table.block();
        let skip = block.sessions.all.iter().map(|_| 0).collect();
        let exits = block.sessions.has_tunnels().then(exits);
        Self { block, vlans: vlans.get(), direction, skip, exits }
    }

    /// Returns true for the port of an analyser.
    pub(crate) fn is_destination(&self, port: PortId) -> bool {
        self.block.sessions.destinations.contains(port)
    }

    /// Counts a copy of a session that was lost after it had been made.
    pub(crate) fn lose(&self, session: usize) {
        if let Some(counters) = self.block.counters.get(session) {
            counters.dropped.add(1);
        }
    }

    /// Copies those of a port's packets that belong to a session.
    pub(crate) fn copy(&mut self, burst: &mut Burst, taps: &mut Taps, packets: Mask, port: PortId) {
        let block = self.block.clone();
        let on = block.sessions.on(self.direction, port);
        if on.is_empty() {
            return;
        }
        taps.look_for_room();
        let is_sent = self.direction == Direction::Outward;
        for slot in packets.slots() {
            let beside = if is_sent { burst.requested_tag(slot) } else { burst.removed_tag(slot) };
            let copied = (slot, beside, Origin { port, is_sent });
            if let Some(session) = on.whole {
                self.copy_one(burst, taps, copied, session);
            }
            if let Some(vlan) =
                (!on.vlans.is_empty()).then(|| self.vlan_of(burst, slot, beside, port)).flatten()
                && let Some(&(_, session)) = on.vlans.iter().find(|(id, _)| *id == vlan)
            {
                self.copy_one(burst, taps, copied, session);
            }
        }
    }

    /// Copies a packet as it is now for the sessions of rules that match it, one bit each.
    #[cold]
    pub(crate) fn copy_by_rules(&mut self, batch: &mut Batch, slot: usize, sessions: u64) {
        let origin = Origin { port: batch.in_port, is_sent: self.direction == Direction::Outward };
        if let Some((burst, taps)) = batch.burst_and_taps() {
            taps.look_for_room();
            for session in Mask(sessions).slots() {
                self.copy_one(burst, taps, (slot, None, origin), session);
            }
        }
    }

    fn copy_one(
        &mut self,
        burst: &mut Burst,
        taps: &mut Taps,
        (slot, beside, origin): Copied,
        number: usize,
    ) {
        let Self { block, skip, exits, .. } = self;
        let (Some((session, way)), Some(skip)) =
            (block.sessions.all.get(number), skip.get_mut(number))
        else {
            return;
        };
        if *skip > 0 {
            *skip -= 1;
            return;
        }
        *skip = session.sample - 1;
        let is_whole = block.sessions.is_whole;
        let by = |port| CopyTo { port, session: number as u8, is_whole };
        let made = match (way, exits) {
            (&CopyPath::Port(port, tag), _) => {
                let wrap = |copy: &mut Mbuf| tag.is_none_or(|tag| copy.insert_tag(tag));
                taps.copy(burst, (slot, beside), by(port), wrap)
            }
            (CopyPath::Tunnel(tunnel), exits) => {
                let way = tunnel.as_ref().zip(exits.as_ref());
                let exit = way.and_then(|(tunnel, exits)| exits.find(tunnel));
                match way.zip(exit) {
                    Some(((tunnel, exits), exit)) => {
                        let wrap = |copy: &mut Mbuf| exits.wrap(tunnel, &exit, copy, origin);
                        taps.copy(burst, (slot, beside), by(exit.port), wrap)
                    }
                    None => {
                        taps.lose();
                        None
                    }
                }
            }
        };
        let counters = &block.counters[number];
        match made {
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
        beside: Option<u16>,
        port: PortId,
    ) -> Option<InterfaceId> {
        let on = self.vlans.on(port)?;
        let tag = |at: usize| -> Option<Identity> {
            let tag = identity(*burst.head(slot).get(at..)?.first_chunk()?)?;
            (usize::from(burst.lens()[slot]) >= at + 6).then_some(tag)
        };
        let found = match beside {
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
    pub(crate) fn of(
        table: &MirrorTable,
        vlans: &VlanTable,
        exits: impl FnOnce() -> Exits,
    ) -> Option<Box<Self>> {
        let sessions = table.get();
        let ports = sessions.ports(Direction::Outward);
        let outward = || Mirror::of(table, vlans, Direction::Outward, exits);
        let (destinations, host) = (sessions.destinations, Some(Burst::new()));
        let output = || Self { outward: outward(), ports, destinations, host };
        (!sessions.is_empty()).then(|| Box::new(output()))
    }

    /// Returns the counter of copies that a port did not take; `None` if it is not an analyser's.
    pub(crate) fn losses(&self, port: PortId) -> Option<Losses> {
        let block = &self.outward.block;
        let session =
            block.sessions.all.iter().position(|(session, _)| session.to.port() == Some(port))?;
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
    use crate::tap::Made;
    use crate::testing::{FrameBuilder, batch_of, dpdk, tagged};
    use crate::vlan::{TagDevices, Tags, Vlan};

    fn port(n: u16) -> PortId {
        PortId::new(n).unwrap()
    }

    fn session(name: &str, from: &[u16], direction: Direction, to: u16) -> Session {
        let from = from.iter().map(|n| InterfaceId::new(*n).unwrap()).collect();
        Session {
            name: name.into(),
            from,
            direction,
            to: Destination::Port(port(to)),
            sample: 1,
            vlan: None,
        }
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
            TagDevices::default(),
            &crate::bond::Bonds::default(),
        )));
        table
    }

    fn table(sessions: Vec<Session>, vlans: &VlanTable) -> MirrorTable {
        let table = MirrorTable::default();
        table.set(Arc::new(Sessions::new(sessions, &vlans.get(), false)));
        table
    }

    fn no_exits() -> Exits {
        unreachable!("no session has an analyser behind routers")
    }

    fn mirror_of(table: &MirrorTable, vlans: &VlanTable, direction: Direction) -> Mirror {
        Mirror::of(table, vlans, direction, no_exits)
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
        for Made { packets: outgoing, .. } in taps.made() {
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
        let mut inward = mirror_of(&table, &vlans, Direction::Inward);
        let all = [(0, 3), (1, 3), (1, 4), (2, 3), (3, 3), (4, 3)];
        assert_eq!(copied(&mut inward, &frames, 0), all);
        assert_eq!(copied(&mut inward, &frames[..1], 1), [(0, 3)]);
        assert!(copied(&mut inward, &frames, 2).is_empty());
        let mut outward = mirror_of(&table, &vlans, Direction::Outward);
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
        let mut next = mirror_of(&table, &vlans, Direction::Inward);
        assert_eq!(copied(&mut next, &frames[..1], 1), [(0, 3)]);
        assert_eq!(table.counts()["all"].packets, 7);
        let output = MirrorOutput::of(&table, &vlans, no_exits).unwrap();
        assert_eq!(output.ports, [port(0)].into_iter().collect());
        assert!(output.losses(port(0)).is_none());
        output.losses(port(4)).unwrap().add(3);
        assert_eq!(table.counts()["five"].dropped, 3);
        assert!(MirrorOutput::of(&MirrorTable::default(), &vlans, no_exits).is_none());
    }

    /// The last one is untagged when it is received, and gets its tag from the device that sends it.
    #[test]
    fn a_tag_that_the_device_removed_or_is_to_insert_is_the_vlan_s() {
        let vlans = vlans();
        let table = table(vec![session("s", &[64, 65], Direction::Both, 4)], &vlans);
        let ip4 = FrameBuilder::ip4().build();
        let mut batch = batch_of(&[ip4.clone(), tagged(&ip4, 0x8100, 7), ip4.clone(), ip4]);
        for (slot, control) in [(0, 0x2005), (1, 6), (2, 9)] {
            batch.burst.say_removed(slot, control);
        }
        batch.burst.request_tags_of(0b1000, 0x2005, |_, _| ());
        for (direction, expected) in
            [(Direction::Inward, vec![0, 1]), (Direction::Outward, vec![3])]
        {
            let mut taps = Taps::new(dpdk().1.clone());
            let mut mirror = mirror_of(&table, &vlans, direction);
            let packets = batch.packets();
            mirror.copy(&mut batch.burst, &mut taps, packets, PortId::FIRST);
            let made = taps.made().flat_map(|made| {
                let burst = &made.packets.burst;
                burst.lens()[..burst.len()].to_vec()
            });
            let lens: Vec<_> = made.map(usize::from).collect();
            let expected: Vec<_> = expected.iter().map(|&slot| batch.len(slot) + 4).collect();
            assert_eq!(lens, expected, "{direction:?}");
        }
    }

    #[test]
    fn one_of_so_many_packets_is_copied_across_batches() {
        let vlans = VlanTable::default();
        let sampled = Session { sample: 10, ..session("s", &[0], Direction::Inward, 3) };
        let table = table(vec![sampled], &vlans);
        let mut mirror = mirror_of(&table, &vlans, Direction::Inward);
        let frames = vec![FrameBuilder::ip4().build(); 15];
        let copies = (0..4).map(|_| copied(&mut mirror, &frames, 0));
        let slots: Vec<Vec<u8>> =
            copies.map(|copies| copies.iter().map(|(slot, _)| *slot).collect()).collect();
        assert_eq!(slots, [vec![0, 10], vec![5], vec![0, 10], vec![5]]);
        assert_eq!(table.counts()["s"].packets, 6);
    }

    fn far(name: &str, from: &[u16]) -> Session {
        let to = Erspan {
            source: "192.0.2.1".parse().unwrap(),
            destination: "198.51.100.9".parse().unwrap(),
            vrf: crate::interface::VrfId::DEFAULT,
            id: 1,
            dscp: 0,
            ttl: 64,
            length: None,
        };
        Session { to: Destination::Erspan(to), ..session(name, from, Direction::Both, 0) }
    }

    /// The copies of a session with an analyser behind routers: port, sequence number, index and frame.
    fn far_copies(mirror: &mut Mirror, frame: &[u8], on: u16) -> Vec<(u16, u8, u8, Vec<u8>)> {
        let mut batch = batch_of(&[frame.to_vec()]);
        let mut taps = Taps::new(dpdk().1.clone());
        mirror.copy(&mut batch.burst, &mut taps, Mask(1), port(on));
        let mut all = Vec::new();
        for Made { packets, sessions, .. } in taps.made() {
            for slot in Mask(packets.burst.owned()).slots() {
                let bytes = packets.burst.frame(slot);
                assert_eq!(sessions[slot], 1);
                let is = (packets.out_interface[slot], bytes[41], bytes[49]);
                all.push((is.0, is.1, is.2, bytes[50..].to_vec()));
            }
        }
        all
    }

    #[test]
    fn copies_to_an_analyser_behind_routers_leave_by_its_next_hop() {
        let tables = crate::testing::TestTables::every_kind();
        let all = || vec![session("near", &[1], Direction::Inward, 4), far("far", &[0])];
        let vlans = tables.vlans.get();
        let connect = |before: &Sessions| {
            let sessions = Sessions::new(all(), &vlans, false);
            sessions.with_tunnels(&tables.named_hops, before)
        };
        tables.mirrors.set(Arc::new(connect(&Sessions::default())));
        let frame = FrameBuilder::ip4().build();
        let mut inward = tables.mirror(Direction::Inward);
        assert_eq!(far_copies(&mut inward, &frame, 0), [], "without a route");
        assert_eq!(tables.mirrors.counts()["far"].dropped, 1);
        let hop = all()[1].hop_name();
        let sessions = tables.mirrors.get();
        assert!(!sessions.is_reachable("far", &tables.next_hops));
        tables.named_hops.set([(&*hop, 16)].into_iter());
        assert!(sessions.is_reachable("far", &tables.next_hops));
        assert!(!sessions.is_reachable("near", &tables.next_hops));
        assert_eq!(far_copies(&mut inward, &frame, 0), [(3, 0, 0, frame.clone())]);
        let mut outward = tables.mirror(Direction::Outward);
        assert_eq!(far_copies(&mut outward, &frame, 0), [(3, 1, 1, frame.clone())]);
        // The next configuration goes on with the sequence.
        tables.mirrors.set(Arc::new(connect(&sessions)));
        let mut next = tables.mirror(Direction::Inward);
        assert_eq!(far_copies(&mut next, &frame, 0), [(3, 2, 0, frame.clone())]);
        assert_eq!(tables.mirrors.counts()["far"].packets, 3);
        // No port is an analyser's because of it.
        let output = tables.mirror_output().unwrap();
        assert_eq!(output.destinations, [port(4)].into_iter().collect());
    }

    #[test]
    fn rules_copy_for_several_sessions_as_often_as_their_samples_say() {
        let tables = crate::testing::TestTables::every_kind();
        let sampled = Session { sample: 2, ..session("b", &[], Direction::Both, 4) };
        let all = vec![session("a", &[], Direction::Both, 3), sampled];
        tables.mirrors.set(Arc::new(Sessions::new(all, &tables.vlans.get(), false)));
        let mut mirror = tables.mirror(Direction::Inward);
        let mut batch = batch_of(&vec![FrameBuilder::ip4().build(); 3]);
        batch.copies = Some(crate::mirror::Copies::new(dpdk().1.clone()));
        for (slot, sessions) in [(0, 0b11), (1, 0b10), (2, 0b111)] {
            mirror.copy_by_rules(&mut batch, slot, sessions);
        }
        let counts = tables.mirrors.counts();
        assert_eq!((counts["a"].packets, counts["b"].packets), (2, 2));
    }
}
