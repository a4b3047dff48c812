//! The forwarder's side of the way to the slow path: a ring for each class and worker.
//!
//! ```text
//!              +- neighbour --> ring ---+
//!   punted  ---+- routing ----> ring ---+--> worker 0
//!   packets    |  …                     |
//!              +- errors -----> ring ---+
//!              +- …                     +--> worker 1 …
//! ```
//!
//! A packet goes to the worker that owns its port: the port whose neighbours are sought where the
//! packet waits for a MAC or leaves in fragments, else the port it came by. So every flow and every
//! neighbour has one worker, and what happens on one port leaves the workers of others alone.
//!
//! Fragments for the router itself are the exception: those of one datagram may come by several ports,
//! and the worker that puts them together must see all. Theirs is chosen by the two addresses. (On a
//! port with a host interface it is the kernel that does this, behind the port's own worker.)
//!
//! From half a ring on packets are dropped early, at random, with a probability that grows from
//! none there to all when the ring is full (random early detection, RFC 2309, on the ring's length
//! as it is): of several sources in one class each loses by what it sends, and none finds the door
//! closed for as long as another keeps the ring full. A worker takes packets only as fast as the
//! class's rate allows, so a rate that is exceeded shows here too.
//!
//! The packets of a batch are sorted by masks; a ring costs one look at its length and one call for
//! all packets of a batch.

use dpdk::{Consumer, Eal, Error, PacketList, Producer, Ring};

use crate::batch::{Batch, HEAD};
use crate::class::{ByClass, ClassLimits};
use crate::counters::ForwarderCounters;
use crate::mask::Mask;
use crate::port::MAX_PORTS;
use crate::reason::{Punt, PuntClass, PuntReason};

/// The most slow path workers.
pub const WORKERS_MAX: usize = 8;

/// A ring to a worker.
pub struct ClassRing {
    /// The forwarder's end.
    pub ring: Producer,
    /// Packets that it holds.
    pub size: usize,
}

/// The rings of all classes from one forwarder to one worker, both ends; `name` is for messages.
///
/// # Errors
/// As [`Ring::spsc`].
pub fn class_rings(
    eal: &Eal,
    name: &str,
    limits: &ByClass<ClassLimits>,
) -> Result<(ByClass<ClassRing>, ByClass<Consumer>), Error> {
    let (mut ends, mut consumers) = (Vec::new(), Vec::new());
    for (class, limits) in PuntClass::NAMES.iter().zip(limits) {
        let (ring, consumer) = Ring::spsc(eal, &format!("{class}-{name}"), limits.queue)?;
        ends.push(ClassRing { ring, size: limits.queue });
        consumers.push(consumer);
    }
    let (Ok(ends), Ok(consumers)) = (ends.try_into(), consumers.try_into()) else {
        unreachable!("there is a name for each class")
    };
    Ok((ends, consumers))
}

/// A forwarder's rings to the slow path; a packet's tag is a [`Punt`].
pub struct Punts {
    workers: Vec<ByClass<ClassRing>>,
    /// For each port, the worker that owns it.
    owners: [u8; MAX_PORTS],
    list: PacketList,
    random: u64,
}

impl Punts {
    /// `workers` has the rings to each worker, at least one and at most [`WORKERS_MAX`]; `seed` is
    /// for the choice of what is dropped early.
    pub fn new(workers: Vec<ByClass<ClassRing>>, seed: u64) -> Self {
        let count = workers.len().clamp(1, WORKERS_MAX);
        Self {
            owners: std::array::from_fn(|port| owner(port, count) as u8),
            workers,
            list: PacketList::new(),
            random: seed | 1,
        }
    }

    /// Sends the packets of `mask` to the slow path, each tagged with its reason.
    pub(crate) fn accept(
        &mut self,
        batch: &mut Batch,
        mask: Mask,
        reason: impl Fn(usize) -> PuntReason,
        counters: &ForwarderCounters,
    ) {
        let mut sorted = [ByClass::<Mask>::default(); WORKERS_MAX];
        for slot in mask.slots() {
            let reason = reason(slot);
            let punt = Punt { reason, port: batch.in_port, next_hop: batch.next_hop[slot] };
            batch.burst.set_tag(slot, punt.to_tag());
            let class = PuntClass::of(reason, batch.link_multicast.has(slot), batch.head(slot));
            let worker = match joined_by(reason, batch, slot) {
                Some(pair) => owner(pair as usize, self.workers.len()),
                None => usize::from(self.owners[place(reason, batch, slot)]),
            };
            sorted[worker % WORKERS_MAX][class.index()] |= Mask::when(true, slot);
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
        let ClassRing { ring, size } = &mut self.workers[worker][class.index()];
        let count = &counters.classes[class.index()];
        count.offered.add(u64::from(mask.count()));
        let admitted = admit(mask, ring.len(), *size, &mut self.random);
        let early = mask.without(admitted);
        if !early.is_empty() {
            let freed = batch.burst.free(early.0) as u64;
            count.early.add(freed);
            counters.drops.add(class.refusal(), freed);
        }
        let list = &mut self.list;
        batch.burst.move_to(admitted.0, list);
        counters.punted.add(ring.send(list) as u64);
        let refused = list.free_tail(0) as u64;
        count.full.add(refused);
        counters.drops.add(class.refusal(), refused);
    }
}

/// The worker, of so many, that owns a port.
pub fn owner(port: usize, workers: usize) -> usize {
    port % workers.max(1)
}

/// The index of the port whose worker the packet is for.
fn place(reason: PuntReason, batch: &Batch, slot: usize) -> usize {
    match reason {
        // Behind the lookup, which has said which port it is.
        PuntReason::Glean | PuntReason::Unresolved | PuntReason::TooBig => {
            usize::from(batch.out_port[slot]) % MAX_PORTS
        }
        _ => batch.in_port.index(),
    }
}

/// A number that all packets between the same two hosts have in common, for what may have to be put
/// together here: IPv4 fragments, and IPv6 packets with a fragment header or something in front of
/// where one may be. Not for what belongs to a link: groups, neighbour discovery.
fn joined_by(reason: PuntReason, batch: &Batch, slot: usize) -> Option<u32> {
    use PuntReason::{HopByHop, Ip4Options, Local};
    if batch.in_port_info.host || !matches!(reason, Local | Ip4Options | HopByHop) {
        return None;
    }
    let head = batch.head(slot);
    let addresses = match (head[12], head[13]) {
        (0x08, 0x00) if in_fragments(head) && head[30] < 224 => &head[26..34],
        (0x86, 0xdd) if may_be_in_fragments(head) => &head[22..54],
        _ => return None,
    };
    let words = addresses.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    let mixed = words.fold(0u32, |mixed, word| (mixed.rotate_left(5) ^ word).wrapping_mul(MIX));
    Some(mixed >> 16)
}

/// 2^32 divided by the golden ratio: its products have their best bits on top.
const MIX: u32 = 0x9e37_79b9;

fn in_fragments(head: &[u8; HEAD]) -> bool {
    u16::from_be_bytes([head[20], head[21]]) & 0x3fff != 0
}

fn may_be_in_fragments(head: &[u8; HEAD]) -> bool {
    let (next, hop_limit, destination) = (head[20], head[21], &head[38..40]);
    let link = destination[0] == 0xff || (destination[0] == 0xfe && destination[1] & 0xc0 == 0x80);
    matches!(next, 0 | 43 | 44 | 60) && hop_limit != 255 && !link
}

/// Which packets of `mask` may go into a ring of this size that holds `depth` already. The last
/// free place is no matter of luck: what finds none is refused by the ring.
fn admit(mask: Mask, depth: usize, size: usize, random: &mut u64) -> Mask {
    let low = size.div_ceil(2);
    if depth + mask.count() as usize <= low {
        return mask;
    }
    let mut admitted = Mask::EMPTY;
    let mut depth = depth;
    for slot in mask.slots() {
        let above = depth.saturating_sub(low) as u64;
        let lucky = depth >= size || above * (1 << 32) < draw(random) * (size - low).max(1) as u64;
        admitted |= Mask::when(lucky, slot);
        depth += usize::from(lucky);
    }
    admitted
}

/// A number below 2^32 (xorshift64*).
fn draw(state: &mut u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(depth: usize, size: usize, seed: u64) -> u32 {
        admit(Mask::first(64), depth, size, &mut (seed | 1)).count()
    }

    #[test]
    fn up_to_half_a_ring_everything_is_admitted() {
        for seed in 0..100 {
            assert_eq!(admitted(0, 256, seed), 64);
            assert_eq!(admitted(64, 256, seed), 64);
        }
    }

    #[test]
    fn the_fuller_the_ring_the_fewer_are_admitted() {
        let mean = |depth| (0..200).map(|seed| admitted(depth, 4096, seed * 77)).sum::<u32>() / 200;
        let (half, three_quarters, nearly) = (mean(2048), mean(3072), mean(4000));
        assert!(half > 62, "{half}");
        assert!((29..35).contains(&three_quarters), "{three_quarters}");
        assert!(nearly < 5, "{nearly}");
    }

    #[test]
    fn a_full_ring_is_left_to_refuse() {
        assert_eq!(admitted(256, 256, 1), 64);
    }

    use crate::port::PortId;
    use crate::testing::{FrameBuilder, batch_of};

    /// What joins these frames, which came by this port.
    fn joined(port: u16, host: bool, frames: &[Vec<u8>], reason: PuntReason) -> Vec<Option<u32>> {
        let mut batch = batch_of(frames);
        batch.in_port = PortId::new(port).unwrap();
        batch.in_port_info.host = host;
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
