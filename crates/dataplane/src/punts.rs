//! The forwarder's side of the path to the slow path: a ring for each class and worker.
//!
//! ```text
//!              +- neighbour --> ring ---+
//!   punted  ---+- routing ----> ring ---+--> worker 0
//!   packets    |  …                     |
//!              +- errors -----> ring ---+
//!              +- …                     +--> worker 1 …
//! ```
//!
//! A packet goes to the worker that owns its interface: the egress interface if the packet waits for a MAC or
//! leaves in fragments, else the ingress interface. So every flow and every neighbour has one worker, and
//! events on one interface do not touch the workers of others.
//!
//! Fragments for the router itself are the exception: those of one datagram may arrive on several
//! ports, and the worker that reassembles them must receive all. It is selected by the two
//! addresses. (On a port with a host interface the kernel reassembles, after the port's own
//! worker.)
//!
//! The part of a ring that one port may have is three times its free part, an eighth left out
//! (dynamic thresholds: Choudhury and Hahne 1998). So a port that floods gets two thirds, several
//! that flood get equal parts of what one leaves, and the last eighth is for ports without a
//! waiting packet, so that a quiet port always finds room. Above half of its part a port's packets
//! are dropped early, at random (random early detection, RFC 2309): of several sources on a port
//! each loses in proportion to its rate, and none is locked out by another. The packets that count
//! are those that the worker has not processed yet ([`Backlog`]): it serves ports in turn, and
//! takes packets only as fast as the class's rate allows, so an exceeded rate shows here too.
//!
//! On a port with `ttl_security` the packets of BGP, LDP, MSDP and BFD from farther away than it permits are
//! dropped here, as `ttl-security` (RFC 5082).
//!
//! The packets of a batch, which arrived on one port, are sorted by masks; a ring costs one read of
//! its backlog and one call for all packets of a batch.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dpdk::{Consumer, Eal, Error, PacketList, Producer, Ring};

use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use wire::ip::{Ipv4Header, Ipv6Header};

use crate::batch::Batch;
use crate::class::{ByClass, ClassLimits, LEAST_TTL, is_from_afar};
use crate::counters::{Counter, ForwarderCounters};
use crate::drop_watch::Dropped;
use crate::head::{ethernet, ip4, ip6};
use crate::interface::MAX_INTERFACES;
use crate::mask::Mask;
use crate::next_hop::NextHopTable;
use crate::port::{MAX_PORTS, PortId};
use crate::reason::{DropOrigin, DropReason, Punt, PuntClass, PuntReason};
use crate::router_filter::{RouterFilter, Sorted};

/// The most slow path workers.
pub const WORKERS_MAX: usize = 8;

/// A ring to a worker.
pub struct ClassRing {
    /// The forwarder's end.
    pub ring: Producer,
    /// Its capacity in packets.
    pub size: usize,
    /// Its present packets.
    pub backlog: Arc<Backlog>,
}

/// The worker's end of a ring.
pub struct ClassQueue {
    /// Packets from the forwarder.
    pub ring: Consumer,
    /// Updated for each processed packet.
    pub backlog: Arc<Backlog>,
}

impl ClassRing {
    /// Creates both ends of a ring for so many packets.
    pub fn new((ring, consumer): (Producer, Consumer), size: usize) -> (Self, ClassQueue) {
        let backlog = Arc::new(Backlog::default());
        let queue = ClassQueue { ring: consumer, backlog: backlog.clone() };
        (Self { ring, size, backlog }, queue)
    }
}

/// Packets of one class that a forwarder has passed to a worker and that the worker has not
/// processed yet, by ingress port. Each side counts on its own cache lines.
#[derive(Debug, Default)]
pub struct Backlog {
    sent: Side,
    taken: Side,
}

#[derive(Debug)]
#[repr(align(64))]
struct Side {
    by_port: [Counter; MAX_PORTS],
    all: Counter,
}

impl Default for Side {
    fn default() -> Self {
        Self { by_port: std::array::from_fn(|_| Counter::default()), all: Counter::default() }
    }
}

impl Side {
    fn count(&self, port: usize, packets: u64) {
        self.by_port[port].add(packets);
        self.all.add(packets);
    }
}

impl Backlog {
    /// Records that the worker is about to process a packet of this port.
    pub fn took(&self, port: PortId) {
        self.taken.count(port.index(), 1);
    }

    /// The number of waiting packets of a port, and of all.
    fn waiting(&self, port: usize) -> (usize, usize) {
        let less =
            |sent: &Counter, taken: &Counter| sent.get().saturating_sub(taken.get()) as usize;
        let own = less(&self.sent.by_port[port], &self.taken.by_port[port]);
        (own, less(&self.sent.all, &self.taken.all))
    }
}

/// The rings of all classes from one forwarder to one worker, both ends; `name` is for messages.
///
/// # Errors
/// As [`Ring::spsc`].
pub fn class_rings(
    eal: &Eal,
    name: &str,
    limits: &ByClass<ClassLimits>,
) -> Result<(ByClass<ClassRing>, ByClass<ClassQueue>), Error> {
    let (mut ends, mut queues) = (Vec::new(), Vec::new());
    for (class, limits) in PuntClass::NAMES.iter().zip(limits) {
        let ring = Ring::spsc(eal, &format!("{class}-{name}"), limits.queue)?;
        let (ring, queue) = ClassRing::new(ring, limits.queue);
        ends.push(ring);
        queues.push(queue);
    }
    let (Ok(ends), Ok(queues)) = (ends.try_into(), queues.try_into()) else {
        unreachable!("there is a name for each class")
    };
    Ok((ends, queues))
}

/// A forwarder's rings to the slow path; a packet's tag is a [`Punt`].
pub struct Punts {
    workers: Vec<ByClass<ClassRing>>,
    next_hops: Arc<NextHopTable>,
    /// For each interface, the worker that owns it.
    owners: [u8; MAX_INTERFACES],
    list: PacketList,
    random: fastrand::Rng,
}

impl Punts {
    /// `workers` has the rings to each worker, at least one and at most [`WORKERS_MAX`]; `seed` is
    /// for the random early drops. `next_hops` is the table that steps use.
    pub fn new(workers: Vec<ByClass<ClassRing>>, next_hops: Arc<NextHopTable>, seed: u64) -> Self {
        let count = workers.len().clamp(1, WORKERS_MAX);
        Self {
            owners: std::array::from_fn(|interface| owner(interface, count) as u8),
            workers,
            next_hops,
            list: PacketList::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Sends the packets of `mask` to the slow path, each tagged with its reason; of those for the
    /// router, only those that `filter` accepts.
    pub(crate) fn accept(
        &mut self,
        batch: &mut Batch,
        mask: Mask,
        reason: impl Fn(usize) -> PuntReason,
        filter: Option<&mut RouterFilter>,
        counters: &ForwarderCounters,
    ) {
        let judged = filter.map_or(Sorted::NONE, |filter| filter.sort(batch, mask, &reason));
        for (dropped, why) in
            [(judged.filtered, DropReason::Filtered), (judged.policed, DropReason::Policed)]
        {
            if !dropped.is_empty() {
                batch.discard(dropped, (DropOrigin::ToRouter, why), &counters.drops);
            }
        }
        let mask = mask.without(judged.filtered | judged.policed);
        let mut sorted = [ByClass::<Mask>::default(); WORKERS_MAX];
        let mut afar = Mask::EMPTY;
        for slot in mask.slots() {
            let least_ttl = batch.info(slot).features.get(LEAST_TTL);
            let reason = if judged.rejected.has(slot) { PuntReason::Reset } else { reason(slot) };
            let (port, next_hop) = (batch.in_port, batch.next_hop[slot]);
            let interface = batch.interface(slot);
            // The number keeps its meaning for the rest of this round.
            let generation = self.next_hops.generation(next_hop);
            let punt = Punt { reason, port, interface, next_hop, generation };
            batch.burst.set_tag(slot, punt.to_tag());
            let class = PuntClass::of(reason, batch.link_multicast.has(slot), batch.head(slot));
            if class == PuntClass::Routing && is_from_afar(least_ttl, batch.head(slot)) {
                afar |= Mask::when(true, slot);
                continue;
            }
            let class = judged.classes[slot].unwrap_or(class);
            let worker = match joined_by(reason, batch, slot) {
                Some(pair) => owner(pair as usize, self.workers.len()),
                None => usize::from(self.owners[place(reason, batch, slot) & (MAX_INTERFACES - 1)]),
            };
            sorted[worker % WORKERS_MAX][class.index()] |= Mask::when(true, slot);
        }
        if !afar.is_empty() {
            let why = (DropOrigin::Policing, DropReason::TtlSecurity);
            batch.discard(afar, why, &counters.drops);
        }
        for (worker, classes) in sorted.iter().enumerate().take(self.workers.len()) {
            for (&class, &mask) in PuntClass::ALL.iter().zip(classes) {
                if !mask.is_empty() {
                    self.send(worker, class, batch, mask, counters);
                }
            }
        }
    }

    fn send(
        &mut self,
        worker: usize,
        class: PuntClass,
        batch: &mut Batch,
        mask: Mask,
        counters: &ForwarderCounters,
    ) {
        let ClassRing { ring, size, backlog } = &mut self.workers[worker][class.index()];
        let port = batch.in_port.index();
        let count = &counters.classes[class.index()];
        count.offered.add(u64::from(mask.count()));
        let (admitted, early) = admit(mask, backlog.waiting(port), *size, &mut self.random);
        for (refused, counter) in
            [(early, &count.early), (mask.without(admitted | early), &count.full)]
        {
            if !refused.is_empty() {
                let why = (DropOrigin::Policing, class.refusal());
                counter.add(batch.discard(refused, why, &counters.drops) as u64);
            }
        }
        let list = &mut self.list;
        batch.burst.move_to(admitted.0, list);
        let sent = ring.send(list) as u64;
        backlog.sent.count(port, sent);
        counters.punted.add(sent);
        let drop = Dropped::received(DropOrigin::Policing, class.refusal(), batch.in_port);
        count.full.add(counters.drops.free_tail(&drop, list, 0) as u64);
    }
}

/// Returns the worker, of so many, that owns an interface.
pub fn owner(interface: usize, workers: usize) -> usize {
    interface % workers.max(1)
}

/// Returns the number of the interface whose worker gets the packet.
fn place(reason: PuntReason, batch: &Batch, slot: usize) -> usize {
    match reason {
        // After the lookup, which has set the egress interface.
        PuntReason::Glean | PuntReason::Unresolved | PuntReason::TooBig => {
            usize::from(batch.out_interface[slot])
        }
        _ => batch.interface(slot).index(),
    }
}

/// A number common to all packets between the same two hosts, for packets that may have to be reassembled here:
/// IPv4 fragments, and IPv6 packets with a fragment header or a header that may precede one. `None` for packets
/// of a link: groups, neighbour discovery.
fn joined_by(reason: PuntReason, batch: &Batch, slot: usize) -> Option<u32> {
    use PuntReason::{HopByHop, Ip4Options, Local};
    if batch.info(slot).host || !matches!(reason, Local | Ip4Options | HopByHop) {
        return None;
    }
    let head = batch.head(slot);
    let addresses: [&[u8]; 2] = match ethernet(head).ethertype.get() {
        ETHERTYPE_IPV4 if in_fragments(ip4(head)) => {
            [&ip4(head).source_address, &ip4(head).destination_address]
        }
        ETHERTYPE_IPV6 if may_be_in_fragments(ip6(head)) => {
            [&ip6(head).source_address, &ip6(head).destination_address]
        }
        _ => return None,
    };
    Some(mix(addresses))
}

/// Returns a number common to all packets between two hosts.
fn mix(addresses: [&[u8]; 2]) -> u32 {
    let words = addresses.iter().flat_map(|address| address.chunks_exact(4));
    let words = words.map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    let mixed = words.fold(0u32, |mixed, word| (mixed.rotate_left(5) ^ word).wrapping_mul(MIX));
    mixed >> 16
}

/// Returns the worker, of so many, that gets the fragments of a datagram for the router between two addresses, the
/// destination last; `interface` is the one that they come by.
pub fn owner_of_datagram(
    interface: usize,
    (source, destination): (IpAddr, IpAddr),
    workers: usize,
) -> usize {
    let pair = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) if destination.octets()[0] < 224 => {
            mix([&source.octets(), &destination.octets()])
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) if !is_of_link(destination) => {
            mix([&source.octets(), &destination.octets()])
        }
        _ => return owner(interface, workers),
    };
    owner(pair as usize, workers)
}

fn is_of_link(destination: Ipv6Addr) -> bool {
    destination.is_multicast() || destination.is_unicast_link_local()
}

/// 2^32 divided by the golden ratio: its products have their best bits on top.
const MIX: u32 = 0x9e37_79b9;

fn in_fragments(ip: &Ipv4Header) -> bool {
    ip.is_fragment() && ip.destination_address[0] < 224
}

fn may_be_in_fragments(ip: &Ipv6Header) -> bool {
    let link = is_of_link(ip.destination());
    matches!(ip.next_header, 0 | 43 | 44 | 60) && ip.hop_limit != 255 && !link
}

/// A port's limit, as a multiple of the ring's free part.
const PART: usize = 3;

/// Fraction of a ring reserved for ports without a waiting packet.
const RESERVE: usize = 8;

/// Returns the packets of `mask`, all of one port, that may enter a ring of this size with so many
/// packets of the port and in total; and those to drop early at random. There is no room for the
/// others.
fn admit(
    mask: Mask,
    (mut own, mut all): (usize, usize),
    size: usize,
    random: &mut fastrand::Rng,
) -> (Mask, Mask) {
    let more = mask.count() as usize;
    let shared = size - size / RESERVE;
    let limit = |all: usize| PART * shared.saturating_sub(all);
    if own + more <= limit(all + more) / 2 {
        return (mask, Mask::EMPTY);
    }
    let (mut admitted, mut early) = (Mask::EMPTY, Mask::EMPTY);
    for slot in mask.slots() {
        let limit = match (own, all < size) {
            (0, true) => limit(all).max(1),
            _ => limit(all),
        };
        if own >= limit {
            continue;
        }
        let low = limit / 2;
        let above = own.saturating_sub(low) as u64;
        let lucky = above * (1 << 32) <= u64::from(random.u32(..)) * (limit - low) as u64;
        admitted |= Mask::when(lucky, slot);
        early |= Mask::when(!lucky, slot);
        own += usize::from(lucky);
        all += usize::from(lucky);
    }
    (admitted, early)
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    fn admitted(waiting: (usize, usize), size: usize, seed: u64) -> u32 {
        admit(Mask::first(64), waiting, size, &mut Rng::with_seed(seed)).0.count()
    }

    #[test]
    fn up_to_half_a_ring_everything_is_admitted() {
        for seed in 0..100 {
            assert_eq!(admitted((0, 0), 256, seed), 64);
            assert_eq!(admitted((64, 64), 256, seed), 64);
        }
    }

    #[test]
    fn the_more_a_port_has_the_fewer_are_admitted() {
        let mean = |waiting| {
            (0..200).map(|seed| admitted((waiting, waiting), 4096, seed * 77)).sum::<u32>() / 200
        };
        let (half, more, most) = (mean(2048), mean(2450), mean(2688));
        assert_eq!((half, most), (64, 0));
        assert!((20..50).contains(&more), "{more}");
    }

    /// Each port sends a batch whenever the worker has taken a few packets, from the ports in turn.
    #[test]
    fn floods_by_any_number_of_ports_leave_room_for_another_and_have_like_parts() {
        for ports in 1..=16 {
            let (mut waiting, mut all, mut random, mut turn) =
                (vec![0; ports], 0, Rng::with_seed(1), 0);
            for _ in 0..1000 {
                for own in &mut waiting {
                    let (more, _) = admit(Mask::first(64), (*own, all), 512, &mut random);
                    *own += more.count() as usize;
                    all += more.count() as usize;
                }
                assert!(all < 512, "{ports}: {all}");
                let (place, unlucky) = admit(Mask::first(1), (0, all), 512, &mut random);
                assert_eq!((place.count(), unlucky.count()), (1, 0), "{ports}");
                for _ in 0..8 {
                    turn = (turn + 1) % ports;
                    let taken = waiting[turn].min(1);
                    waiting[turn] -= taken;
                    all -= taken;
                }
            }
            let least = waiting.iter().min().unwrap();
            assert!(least * ports * 2 + 32 > all, "{ports}: one has {least} of {all}: {waiting:?}");
        }
    }

    #[test]
    fn a_full_ring_has_no_place() {
        let (admitted, early) = admit(Mask::first(64), (0, 256), 256, &mut Rng::with_seed(1));
        assert_eq!((admitted.count(), early.count()), (0, 0));
    }

    #[test]
    fn a_backlog_is_what_is_not_dealt_with_yet() {
        let backlog = Backlog::default();
        backlog.sent.count(0, 5);
        backlog.sent.count(7, 2);
        backlog.took(PortId::new(7).unwrap());
        assert_eq!((backlog.waiting(0), backlog.waiting(7)), ((5, 6), (1, 6)));
    }

    use crate::testing::{FrameBuilder, batch_of};

    /// Returns the common numbers of these frames of this port.
    fn joined(port: u16, host: bool, frames: &[Vec<u8>], reason: PuntReason) -> Vec<Option<u32>> {
        let mut batch = batch_of(frames);
        batch.in_port = PortId::new(port).unwrap();
        batch.own.host = host;
        (0..frames.len()).map(|slot| joined_by(reason, &batch, slot)).collect()
    }

    #[test]
    fn fragments_of_one_datagram_have_one_worker_whatever_port_they_come_by() {
        let fragment4 = |bits: u16, source| {
            let mut frame = FrameBuilder::ip4().source4(source).payload(&[7; 16]).build();
            frame[20..22].copy_from_slice(&bits.to_be_bytes());
            frame
        };
        let frames = [
            fragment4(0x2000, "192.0.2.1"),
            fragment4(0x0002, "192.0.2.1"),
            fragment4(0x4000, "192.0.2.1"),
            fragment4(0x2000, "192.0.2.2"),
        ];
        let by_0 = joined(0, false, &frames, PuntReason::Local);
        let by_1 = joined(1, false, &frames, PuntReason::Local);
        assert_eq!(by_0, by_1);
        assert!(by_0[0].is_some() && by_0[0] == by_0[1]);
        assert_eq!(by_0[2], None, "don't fragment, and no fragment");
        assert_ne!(by_0[0], by_0[3], "another source");
        assert_eq!(joined(0, true, &frames, PuntReason::Local), [None; 4], "the kernel's");
        assert_eq!(joined(0, false, &frames, PuntReason::Glean), [None; 4], "on their way");
        let destination: [u8; 4] = frames[0][30..34].try_into().unwrap();
        for workers in 1..=8 {
            let between = ("192.0.2.1".parse().unwrap(), IpAddr::from(destination));
            let expected = owner(by_0[0].unwrap() as usize, workers);
            assert_eq!(owner_of_datagram(3, between, workers), expected);
        }
        let fragment6 = |next: u8, more| {
            FrameBuilder::ip6().protocol(next).payload(&[17, 0, 0, more, 0, 0, 0, 9]).build()
        };
        let frames = [fragment6(44, 1), fragment6(44, 8), fragment6(60, 0), fragment6(17, 0)];
        let by = joined(0, false, &frames, PuntReason::Local);
        assert!(by[0].is_some() && by[0] == by[1] && by[0] == by[2], "{by:?}");
        assert_eq!(by[3], None);
    }

    #[test]
    fn what_belongs_to_a_link_stays_with_its_port() {
        let report = FrameBuilder::ip6().destination6("ff02::16").protocol(0).build();
        let neighbour = FrameBuilder::ip6().protocol(60).ttl(255).build();
        let to_link_local = FrameBuilder::ip6().destination6("fe80::1").protocol(44).build();
        let frames = [report, neighbour, to_link_local];
        assert_eq!(joined(0, false, &frames, PuntReason::HopByHop), [None; 3]);
    }

    #[test]
    fn pairs_of_hosts_are_spread_over_workers() {
        let frames: Vec<_> = (1..=60)
            .map(|n| {
                let mut frame = FrameBuilder::ip4().source4(&format!("192.0.2.{n}")).build();
                frame[20] = 0x20;
                frame
            })
            .collect();
        let by = joined(0, false, &frames, PuntReason::Local);
        let first = by.iter().filter(|pair| owner(pair.unwrap() as usize, 2) == 0).count();
        assert!((15..=45).contains(&first), "{first} of 60");
    }

    #[test]
    fn ports_are_dealt_out_to_workers_in_turn() {
        let owners = |workers| (0..5).map(|port| owner(port, workers)).collect::<Vec<_>>();
        assert_eq!(owners(1), [0; 5]);
        assert_eq!(owners(2), [0, 1, 0, 1, 0]);
    }
}
