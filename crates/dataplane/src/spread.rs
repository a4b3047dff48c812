//! Receive-side scaling in software: if a device has one receive queue, the forwarder that serves
//! it hashes each packet as NICs do and hands it to the forwarder in the table.
//!
//! ```text
//!   receive queue --> hash --> table --+--> own graph
//!                                      +--> ring --> forwarder 1, as if from a receive queue
//!                                      +--> ring --> forwarder 2
//! ```
//!
//! A device with several queues may leave it to software to hand over packets for which a rule of a filter selects
//! another forwarder than the device has ([`Spreader::by_rules`]); all others stay.
//!
//! A flow has one hash, so one forwarder and one ring: its packets keep their order. Rules of filters take
//! precedence over the hash ([`crate::spread_filter`]). Frames that are not IP stay with the forwarder that
//! received them. A full ring drops as `spread-full`; one that is nearly full takes network control only
//! ([`Class::Control`]), so that an overloaded forwarder keeps its neighbours and sessions.

use std::os::fd::BorrowedFd;

use dpdk::{Burst, Consumer, PacketList, Producer, RxQueue};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, payload};

use crate::batch::BATCH_MAX;
use crate::counters::ForwarderCounters;
use crate::drop_watch::Dropped;
use crate::filters::Forwarders;
use crate::frame::Class;
use crate::mask::Mask;
use crate::port::PortId;
use crate::reason::{DropOrigin, DropReason};

/// Entries of the table; as many as in devices with 16 queues and more.
pub const TABLE: usize = 128;

/// Places of a ring that are kept for network control: more than the packets of a batch.
const FOR_CONTROL: usize = 128;

/// The key of the RSS specification, which is the default of NICs.
pub const DEFAULT_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Most bytes that are hashed: two IPv6 addresses and two ports.
const INPUT: usize = 36;

/// The Toeplitz hash of the RSS specification, by a table for each byte of the input.
#[derive(Clone)]
pub struct Toeplitz {
    bytes: Box<[[u32; 256]; INPUT]>,
    /// True if ports of TCP and UDP are hashed besides the addresses.
    ports: bool,
}

impl Toeplitz {
    /// Creates it with this key, of which the first 40 bytes are used; missing ones are 0.
    pub fn new(key: &[u8], ports: bool) -> Self {
        let mut bytes = Box::new([[0; 256]; INPUT]);
        for (place, table) in bytes.iter_mut().enumerate() {
            for (value, hash) in table.iter_mut().enumerate() {
                let bits = (0..8).filter(|bit| value >> (7 - bit) & 1 != 0);
                *hash = bits.map(|bit| window(key, place * 8 + bit)).fold(0, |all, one| all ^ one);
            }
        }
        Self { bytes, ports }
    }

    /// Returns the hash of these bytes, in the packet's order.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let each = self.bytes.iter().zip(input);
        each.fold(0, |hash, (table, &byte)| hash ^ table[usize::from(byte)])
    }

    /// Returns the hash of an Ethernet frame with up to two VLAN tags; `None` unless it is IPv4 or IPv6.
    #[inline]
    pub fn of_frame(&self, frame: &[u8]) -> Option<u32> {
        let (ethertype, start) = payload(frame)?;
        let packet = &frame[start..];
        match ethertype {
            ETHERTYPE_IPV4 => self.of_ip4(packet),
            ETHERTYPE_IPV6 => self.of_ip6(packet),
            _ => None,
        }
    }

    fn of_ip4(&self, packet: &[u8]) -> Option<u32> {
        let header = packet.first_chunk::<20>()?;
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let mut input = [0; 12];
        input[..8].copy_from_slice(&header[12..20]);
        let end = usize::from(header[0] & 0xf) * 4;
        match self.ports_of(packet, header[9], end).filter(|_| !fragment) {
            Some(ports) => {
                input[8..].copy_from_slice(ports);
                Some(self.hash(&input))
            }
            None => Some(self.hash(&input[..8])),
        }
    }

    fn of_ip6(&self, packet: &[u8]) -> Option<u32> {
        let header = packet.first_chunk::<40>()?;
        let mut input = [0; INPUT];
        input[..32].copy_from_slice(&header[8..40]);
        match self.ports_of(packet, header[6], 40) {
            Some(ports) => {
                input[32..].copy_from_slice(ports);
                Some(self.hash(&input))
            }
            None => Some(self.hash(&input[..32])),
        }
    }

    /// Returns source and destination port, if they are to be hashed and the packet contains them.
    fn ports_of<'a>(&self, packet: &'a [u8], protocol: u8, at: usize) -> Option<&'a [u8; 4]> {
        const TCP: u8 = 6;
        const UDP: u8 = 17;
        let hashed = self.ports && matches!(protocol, TCP | UDP);
        packet.get(at..).filter(|_| hashed)?.first_chunk()
    }
}

/// Returns the 32 bits of the key from this bit on.
fn window(key: &[u8], bit: usize) -> u32 {
    let byte = |place: usize| u64::from(key.get(bit / 8 + place).copied().unwrap_or(0));
    let wide = (0..5).fold(0, |wide, place| wide << 8 | byte(place));
    (wide >> (8 - bit % 8)) as u32
}

/// The input of a receive source.
pub enum Input {
    /// A receive queue of a device.
    Queue(RxQueue),
    /// Packets that another forwarder received and spread.
    Ring(Consumer),
}

impl Input {
    /// Like [`RxQueue::receive`].
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst, max: usize) -> usize {
        match self {
            Self::Queue(queue) => queue.receive(burst, max),
            Self::Ring(ring) => ring.receive(burst, max),
        }
    }

    /// Like [`RxQueue::unusable`].
    pub fn unusable(&self) -> u64 {
        match self {
            Self::Queue(queue) => queue.unusable(),
            Self::Ring(ring) => ring.unusable(),
        }
    }

    /// Like [`RxQueue::descriptor`]; a ring has none, and rings a doorbell.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Queue(queue) => queue.descriptor(),
            Self::Ring(_) => None,
        }
    }

    /// Like [`RxQueue::says_more`].
    pub fn says_more(&self) -> bool {
        matches!(self, Self::Queue(queue) if queue.says_more())
    }

    /// Like [`RxQueue::may_miss`].
    pub fn may_miss(&self) -> bool {
        matches!(self, Self::Queue(queue) if queue.may_miss())
    }

    /// Returns true if another forwarder has received and counted the packets.
    #[inline]
    pub fn is_ring(&self) -> bool {
        matches!(self, Self::Ring(_))
    }
}

/// The forwarders selected by rules for packets of a batch.
pub(crate) struct Chosen {
    /// The packets for which a rule selects a forwarder.
    pub packets: Mask,
    /// Its number, by slot; undefined for other packets.
    pub forwarders: [u16; BATCH_MAX],
}

impl Chosen {
    /// No selection.
    pub const NONE: Self = Self { packets: Mask::EMPTY, forwarders: [0; BATCH_MAX] };
}

/// The way of a receive queue's packets to other forwarders.
pub enum Spread {
    /// By rings.
    Rings(Spreader),
    /// By the event device of the forwarder.
    Events,
}

/// Spreads the packets of a receive queue.
pub struct Spreader {
    hash: Toeplitz,
    /// The forwarder of each hash; `None`: rules alone choose.
    table: Option<Box<[u16; TABLE]>>,
    /// The rings to the forwarders, by number; none for the own one.
    ways: Vec<Option<Producer>>,
    /// By forwarder: true while its ring takes network control only.
    crowded: Vec<bool>,
    lists: Vec<PacketList>,
}

impl Spreader {
    /// Creates it with this hash and table; `ways` has a ring to every forwarder of the table but
    /// the own one.
    pub fn new(hash: Toeplitz, table: [u16; TABLE], ways: Vec<Option<Producer>>) -> Self {
        Self { table: Some(Box::new(table)), ..Self::by_rules(hash, ways) }
    }

    /// Creates one that hands over packets for which rules select another forwarder; `ways` has a ring to each but the
    /// own one. Of several forwarders of a rule, `hash` selects one.
    pub fn by_rules(hash: Toeplitz, ways: Vec<Option<Producer>>) -> Self {
        let lists = ways.iter().map(|_| PacketList::new()).collect();
        Self { hash, table: None, crowded: vec![false; ways.len()], ways, lists }
    }

    /// Selects one of these forwarders for a frame: always the same one for a flow. A packet that the device has brought
    /// to one of them stays there, since the device has spread its flow.
    #[inline]
    pub(crate) fn one_of(&self, forwarders: &Forwarders, frame: &[u8]) -> u16 {
        let [one] = forwarders.numbers() else { return self.one_of_many(forwarders, frame) };
        *one
    }

    fn one_of_many(&self, forwarders: &Forwarders, frame: &[u8]) -> u16 {
        let is_own =
            |number: &&u16| self.ways.get(usize::from(**number)).is_some_and(Option::is_none);
        let own = forwarders.numbers().iter().find(is_own).filter(|_| self.table.is_none());
        own.copied()
            .unwrap_or_else(|| forwarders.of_hash(self.hash.of_frame(frame).unwrap_or_default()))
    }

    /// Drops packets that their forwarder's ring has no room for beside network control; returns the others.
    fn refuse(
        &mut self,
        burst: &mut Burst,
        (packets, to): (Mask, &[u16; BATCH_MAX]),
        (port, counters): (PortId, &ForwarderCounters),
    ) -> Mask {
        for (crowded, way) in self.crowded.iter_mut().zip(&self.ways) {
            *crowded = *crowded && is_crowded(way.as_ref());
        }
        if !self.crowded.contains(&true) {
            return packets;
        }
        let is_late = |slot: usize| {
            self.crowded[usize::from(to[slot])]
                && Class::of_frame(burst.frame(slot)) != Class::Control
        };
        let late = packets.filter(is_late);
        counters.drops.free_slots(&spread_full(port), burst, late);
        packets.without(late)
    }

    /// Hands packets of a port to the other forwarders; the forwarder's own stay in the burst. `chosen`: the
    /// forwarders selected by rules.
    pub(crate) fn spread(
        &mut self,
        burst: &mut Burst,
        chosen: Chosen,
        (port, counters): (PortId, &ForwarderCounters),
    ) {
        let Chosen { packets: chosen, forwarders: mut to } = chosen;
        let mut theirs = Mask::EMPTY;
        let candidates = if self.table.is_some() { Mask(burst.owned()) } else { chosen };
        for slot in candidates.slots() {
            if !chosen.has(slot)
                && let Some(table) = &self.table
            {
                let Some(hash) = self.hash.of_frame(burst.frame(slot)) else { continue };
                to[slot] = table[hash as usize % TABLE];
            }
            let has_way = self.ways.get(usize::from(to[slot])).is_some_and(Option::is_some);
            theirs |= Mask::when(has_way, slot);
        }
        if theirs.is_empty() {
            return;
        }
        theirs = self.refuse(burst, (theirs, &to), (port, counters));
        // The lists are empty and have capacity for all.
        burst.append_to(theirs.0, &to, &mut self.lists);
        let places = self.ways.iter_mut().zip(&mut self.crowded);
        for (list, (way, crowded)) in self.lists.iter_mut().zip(places) {
            if let Some(way) = way.as_mut().filter(|_| !list.is_empty()) {
                counters.spread_out.add(way.send(list) as u64);
                counters.drops.free_tail(&spread_full(port), list, 0);
                *crowded = is_crowded(Some(way));
            }
        }
    }
}

/// A drop of a packet of this port.
fn spread_full(port: PortId) -> Dropped {
    Dropped::received(DropOrigin::Spread, DropReason::SpreadFull, port)
}

fn is_crowded(way: Option<&Producer>) -> bool {
    way.is_some_and(|way| way.room() < FOR_CONTROL)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::testing::{FrameBuilder, tagged};

    fn toeplitz(ports: bool) -> Toeplitz {
        Toeplitz::new(&DEFAULT_KEY, ports)
    }

    /// Source, destination, each with its port; hash with ports and without.
    type Example<A> = (A, u16, A, u16, u32, u32);

    /// The RSS specification's examples.
    const IP4: [Example<[u8; 4]>; 5] = [
        ([66, 9, 149, 187], 2794, [161, 142, 100, 80], 1766, 0x51cc_c178, 0x323e_8fc2),
        ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xc626_b0ea, 0xd718_262a),
        ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0x5c2b_394a, 0xd2d0_a5de),
        ([38, 27, 205, 30], 48228, [209, 142, 163, 6], 2217, 0xafc7_327f, 0x8298_9176),
        ([153, 39, 163, 191], 44251, [202, 188, 127, 2], 1303, 0x10e8_28a2, 0x5d18_09c5),
    ];

    const IP6: [Example<&str>; 3] = [
        ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x4020_7d3d, 0x2cc1_8cd5),
        ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0xdde5_1bbf, 0x0f0c_461c),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x02d1_feef,
            0x4b61_e985,
        ),
    ];

    #[test]
    fn hashes_are_those_of_the_rss_specification() {
        for (source, sport, destination, dport, with_ports, without) in IP4 {
            let (source, destination) = (Ipv4Addr::from(source), Ipv4Addr::from(destination));
            let mut input = [&source.octets()[..], &destination.octets()].concat();
            assert_eq!(toeplitz(true).hash(&input), without);
            input.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
            assert_eq!(toeplitz(true).hash(&input), with_ports);
        }
        for (source, sport, destination, dport, with_ports, without) in IP6 {
            let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
            let mut input = [octets(source), octets(destination)].concat();
            assert_eq!(toeplitz(true).hash(&input), without);
            input.extend([sport.to_be_bytes(), dport.to_be_bytes()].concat());
            assert_eq!(toeplitz(true).hash(&input), with_ports);
        }
    }

    /// Bit by bit, as in the specification.
    fn slow(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 != 0;
        let key32 =
            |from: usize| (0..32).fold(0, |all, at| all << 1 | u32::from(bit(key, from + at)));
        let set = (0..input.len() * 8).filter(|&at| bit(input, at));
        set.fold(0, |hash, at| hash ^ key32(at))
    }

    proptest::proptest! {
        #[test]
        fn any_key_and_input_hash_as_the_specification_says(
            key in proptest::array::uniform32(0_u8..),
            more in proptest::array::uniform8(0_u8..),
            input in proptest::collection::vec(0_u8.., 0..=INPUT),
        ) {
            let key = [&key[..], &more].concat();
            proptest::prop_assert_eq!(Toeplitz::new(&key, true).hash(&input), slow(&key, &input));
        }
    }

    fn input_of(frame: &[u8], ports: bool) -> Vec<u8> {
        let mut input = frame[26..34].to_vec();
        if ports {
            input.extend(&frame[34..38]);
        }
        input
    }

    #[test]
    fn frames_are_hashed_by_what_they_show() {
        let frame = FrameBuilder::ip4().udp(1000, 53, b"x").build();
        let hash = |frame: &[u8], ports| toeplitz(ports).of_frame(frame).unwrap();
        assert_eq!(hash(&frame, true), toeplitz(true).hash(&input_of(&frame, true)));
        assert_eq!(hash(&frame, false), toeplitz(true).hash(&input_of(&frame, false)));
        let mut fragment = frame.clone();
        fragment[20] = 0x20;
        assert_eq!(hash(&fragment, true), hash(&frame, false), "no fragment shows ports to all");
        let mut icmp = frame.clone();
        icmp[23] = 1;
        assert_eq!(hash(&icmp, true), hash(&frame, false));
        let v6 = FrameBuilder::ip6().udp(1000, 53, b"x").build();
        assert_eq!(hash(&v6, true), toeplitz(true).hash(&v6[22..58]));
        for frame in [&frame, &v6] {
            let once = tagged(frame, 0x8100, 7);
            assert_eq!(hash(&once, true), hash(frame, true));
            assert_eq!(hash(&tagged(&once, 0x88a8, 5), true), hash(frame, true));
        }
        let mut arp = frame.clone();
        arp[13] = 6;
        assert_eq!(toeplitz(true).of_frame(&arp), None);
        for length in 0..40 {
            let _ = toeplitz(true).of_frame(&frame[..length.min(frame.len())]);
        }
    }

    #[test]
    fn a_key_of_two_bytes_gives_both_directions_one_hash() {
        let symmetric = Toeplitz::new(&dpdk::SYMMETRIC_RSS_KEY.repeat(20), true);
        let frame = FrameBuilder::ip4().udp(1000, 53, b"x").build();
        let mut back = frame.clone();
        back[26..30].copy_from_slice(&frame[30..34]);
        back[30..34].copy_from_slice(&frame[26..30]);
        back[34..36].copy_from_slice(&frame[36..38]);
        back[36..38].copy_from_slice(&frame[34..36]);
        assert_eq!(symmetric.of_frame(&frame), symmetric.of_frame(&back));
        assert_ne!(toeplitz(true).of_frame(&frame), toeplitz(true).of_frame(&back));
    }
}
