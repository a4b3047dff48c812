//! Forwarders around an event device: one receives and sends, and the others, the workers, run the graph on whichever
//! packets the device schedules to them.
//!
//! ```text
//!   receive queues --> receiver --> event device --> worker: graph --+--> event device --> receiver --> transmit queues
//!                         |                                          +--> slow path, drop, copies
//!                         +--> own graph: frames that are not unicast IP
//! ```
//!
//! | packets | go to | because |
//! |---|---|---|
//! | unicast frames with IPv4 or IPv6 | the event queue of their class (DSCP), by the hash of their flow | |
//! | other frames | the receiver's own graph | ARP and link protocols are few, and the copies of multicast packets leave by several ports, in no order that an event device knows |
//!
//! A batch has packets of one port, so a worker divides its events by the port that received them. Packets that are to be
//! sent return by the device's transmit queue, in the order that the device keeps; all others leave from the
//! worker. A device that takes no more makes the receiver drop, as `event-device-full`; one that is nearly full takes network
//! control only.
//!
//! The receiver numbers the packets of each flow, and compares the numbers when packets return. Those that are *reordered*
//! (RFC 4737, type-P-reordered: a number below the highest that has returned) are counted. Flows whose hash is equal count
//! as one.

use dpdk::{BURST_MAX, Burst, EVENT_CLASSES_MOST, EVENT_FLOWS, EventDevice, EventPort};
pub use dpdk::{EVENTS_MOST, EventOrder};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, payload};

use crate::counters::ForwarderCounters;
use crate::drop_watch::Dropped;
use crate::frame::Class;
use crate::mask::Mask;
use crate::port::PortId;
use crate::reason::{DropOrigin, DropReason};
use crate::spread::{DEFAULT_KEY, Toeplitz};

/// The place of a flow's number in a tag, behind that of the port.
const FLOW_AT: u32 = 16;

/// The place of a packet's number within its flow.
const NUMBER_AT: u32 = 32;

/// The bits of a packet's number; one less than there are, since the highest marks copies (`distribution.rs`).
const NUMBER: u32 = 0x7fff_ffff;

/// Flows of all classes.
const FLOWS: usize = EVENT_CLASSES_MOST * EVENT_FLOWS as usize;

/// A forwarder's access to an event device.
pub struct EventUnit {
    /// Its port.
    pub(crate) port: EventPort,
    /// Present in the receiver.
    pub(crate) receiver: Option<Box<Numbering>>,
    /// True if the device had no room for packets of this round.
    pub(crate) was_full: bool,
}

impl EventUnit {
    /// For the forwarder that receives and sends.
    pub fn receiver(port: EventPort) -> Self {
        Self { port, receiver: Some(Box::default()), was_full: false }
    }

    /// For a forwarder that runs the graph.
    pub fn worker(port: EventPort) -> Self {
        Self { port, receiver: None, was_full: false }
    }

    /// Returns the device.
    pub fn device(&self) -> EventDevice {
        self.port.device()
    }

    /// Passes the packets of a batch to the device that may take another order than that of the batch; the receiver's own
    /// stay in the burst.
    pub(crate) fn enter(
        &mut self,
        burst: &mut Burst,
        (port, says_more): (PortId, bool),
        counters: &ForwarderCounters,
    ) {
        let Self { port: events, receiver: Some(numbering), was_full } = self else { return };
        let mut found = numbering.flows(burst);
        if events.is_nearly_full() {
            let is_control = |slot| found.classes[slot] == Class::Control as u8;
            let late = found.packets.filter(|slot| !is_control(slot));
            found.packets = found.packets.without(late);
            refuse(burst, late, (port, counters));
            *was_full = true;
        }
        let describe = |_: &Burst, slot: usize| (found.flows[slot], found.classes[slot]);
        let source = port.index() as u64;
        let tag = |flow, class| source | numbering.next(flow, class);
        let full = events.enter(burst, found.packets.0, says_more, describe, tag);
        let entered = found.packets.count() - Mask(full).count();
        counters.spread_out.add(entered.into());
        *was_full |= full != 0;
        refuse(burst, Mask(full), (port, counters));
    }
}

/// Drops packets for which the device has no room.
fn refuse(burst: &mut Burst, packets: Mask, (port, counters): (PortId, &ForwarderCounters)) {
    let drop = Dropped::received(DropOrigin::Receive, DropReason::EventDeviceFull, port);
    counters.drops.free_slots(&drop, burst, packets);
}

/// Flows and classes of packets, by slot.
struct Flows {
    packets: Mask,
    flows: [u32; BURST_MAX],
    classes: [u8; BURST_MAX],
}

/// The numbers of packets within their flows.
pub(crate) struct Numbering {
    hash: Toeplitz,
    /// The next packet's number, by class and flow.
    next: Vec<u32>,
    /// One more than the highest number that has returned.
    expected: Vec<u32>,
}

impl Default for Numbering {
    fn default() -> Self {
        let hash = Toeplitz::new(&DEFAULT_KEY, true);
        Self { hash, next: vec![0; FLOWS], expected: vec![0; FLOWS] }
    }
}

/// Returns true for a unicast frame with an IP packet.
fn is_scheduled(frame: &[u8]) -> bool {
    let is_ip = |(ethertype, _)| matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6);
    frame.first().is_some_and(|first| first & 1 == 0) && payload(frame).is_some_and(is_ip)
}

impl Numbering {
    fn flows(&self, burst: &Burst) -> Flows {
        let (flows, classes) = ([0; BURST_MAX], [0; BURST_MAX]);
        let mut found = Flows { packets: Mask::EMPTY, flows, classes };
        for slot in Mask(burst.owned()).slots() {
            let frame = burst.frame(slot);
            if is_scheduled(frame) {
                let hash = burst.device_hash(slot).or_else(|| self.hash.of_frame(frame));
                found.flows[slot] = hash.unwrap_or(0);
                found.classes[slot] = Class::of_frame(frame) as u8;
                found.packets |= Mask::when(true, slot);
            }
        }
        found
    }

    /// Numbers the next packet of a flow; returns its part of a tag.
    fn next(&mut self, flow: u32, class: u8) -> u64 {
        let place = (u32::from(class) * EVENT_FLOWS + flow) as usize % FLOWS;
        let number = self.next[place];
        self.next[place] = number.wrapping_add(1) & NUMBER;
        (place as u64) << FLOW_AT | u64::from(number) << NUMBER_AT
    }

    /// Records a packet that has returned, by its tag. Returns true if one with a higher number has returned before.
    fn is_reordered(&mut self, tag: u64) -> bool {
        let place = (tag >> FLOW_AT) as usize & 0xffff;
        let number = (tag >> NUMBER_AT) as u32 & NUMBER;
        let Some(expected) = self.expected.get_mut(place) else { return false };
        let is_late = number.wrapping_sub(*expected) & NUMBER > NUMBER / 2;
        if !is_late {
            *expected = number.wrapping_add(1) & NUMBER;
        }
        is_late
    }

    /// Returns the number of reordered packets in a burst that has returned.
    pub(crate) fn count_reordered(&mut self, burst: &Burst) -> usize {
        let slots = Mask(burst.owned()).slots();
        slots.filter(|&slot| self.is_reordered(burst.tag(slot))).count()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{FrameBuilder, batch_of};

    #[test]
    fn unicast_ip_is_scheduled_by_flow_and_class() {
        let plain = FrameBuilder::ip4().udp(1, 2, b"x").build();
        let voice = FrameBuilder::ip4().tos(46 << 2).udp(1, 2, b"x").build();
        let v6 = FrameBuilder::ip6().udp(1, 2, b"x").build();
        let mut multicast = plain.clone();
        multicast[0] |= 1;
        let arp = FrameBuilder::ethernet([2; 6], 0x0806).payload(&[0; 46]).build();
        let batch = batch_of(&[plain.clone(), voice, v6, multicast, arp, plain]);
        let found = Numbering::default().flows(&batch.burst);
        assert_eq!(found.packets, Mask(0b10_0111));
        assert_eq!(found.flows[0], found.flows[5]);
        assert_eq!(found.flows[0], found.flows[1], "DSCP is no part of the flow");
        assert_ne!(found.flows[0], found.flows[2]);
        let class = |class: Class| class as u8;
        assert_eq!(found.classes[..2], [class(Class::Default), class(Class::Voice)]);
    }

    /// RFC 4737 3.3, by the definition: `NextExp` is raised by each packet that is not below it.
    fn slow(numbers: &[u32]) -> usize {
        let is_late =
            |(at, number): (usize, &u32)| numbers[..at].iter().any(|other| other > number);
        numbers.iter().enumerate().filter(|&one| is_late(one)).count()
    }

    proptest! {
        #[test]
        fn reordered_packets_are_those_of_rfc_4737(
            order in Just((0..40_u32).collect::<Vec<_>>()).prop_shuffle(),
            lost in 0..40_usize,
            first in prop::sample::select(vec![0, NUMBER - 20]),
        ) {
            let mut numbering = Numbering::default();
            let place = (3 * EVENT_FLOWS + 77) as usize;
            (numbering.next[place], numbering.expected[place]) = (first, first);
            let tags: Vec<u64> = (0..40).map(|_| numbering.next(77, 3) | 5).collect();
            let arrived = &order[lost..];
            let late = arrived.iter().filter(|&&of| numbering.is_reordered(tags[of as usize]));
            prop_assert_eq!(late.count(), slow(arrived));
        }
    }

    #[test]
    fn flows_are_numbered_apart() {
        let mut numbering = Numbering::default();
        let [first, other, second] =
            [(1, 0), (2, 0), (1, 0)].map(|(flow, class)| numbering.next(flow, class));
        let class = numbering.next(1, 1);
        assert!(!numbering.is_reordered(second));
        assert!(!numbering.is_reordered(other) && !numbering.is_reordered(class));
        assert!(numbering.is_reordered(first));
    }
}
