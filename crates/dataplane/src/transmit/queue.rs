//! The packets of one queue, and those that it drops.

use dpdk::{Mbuf, PacketList};

use super::codel::Codel;
use super::drr::Drr;
use super::lane::{Cause, Lane, Packet, Waiting};
use super::red::Red;
use super::shape::Shape;
use super::{AVERAGED, Discipline, QueueConfig};
use crate::counters::{ForwarderCounters, QueueCounters};
use crate::drop_watch::Dropped;
use crate::frame::Class;
use crate::port::PortId;
use crate::reason::{DropOrigin, DropReason};

/// The packets other than network control.
pub(super) enum Queue {
    Fifo(Lane<Mbuf>),
    Red(Red<Mbuf>),
    Codel(Codel<Mbuf>),
    Drr(Drr<Mbuf>),
}

impl Queue {
    pub(super) fn new(config: QueueConfig, shape: Option<Shape>, hz: u64) -> Self {
        let length = config.length as usize;
        match config.discipline {
            Discipline::Fifo => Self::Fifo(Lane::new(length)),
            Discipline::Red(red) => {
                Self::Red(Red::new(length, red, packet_time(shape, hz), dpdk::tsc()))
            }
            Discipline::Codel(codel) => Self::Codel(Codel::new(length, codel, hz)),
            Discipline::Drr(weights) => Self::Drr(Drr::new(length, weights)),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Fifo(lane) => lane.len(),
            Self::Red(red) => red.lane().len(),
            Self::Codel(codel) => codel.lane().len(),
            Self::Drr(drr) => drr.len(),
        }
    }

    /// Returns the packets that are counted in a class. If all are in one queue, they are counted
    /// as default.
    pub(super) fn lane(&self, class: Class) -> Option<&Lane<Mbuf>> {
        match (self, class) {
            (Self::Drr(drr), class) => class.index().checked_sub(1).map(|class| drr.lane(class)),
            (Self::Fifo(lane), Class::Default) => Some(lane),
            (Self::Red(red), Class::Default) => Some(red.lane()),
            (Self::Codel(codel), Class::Default) => Some(codel.lane()),
            _ => None,
        }
    }

    /// Adds a packet of a class that is not control, or drops it.
    #[inline]
    pub(super) fn offer(
        &mut self,
        class: Class,
        waiting: Waiting<Mbuf>,
        now: u64,
        bin: &mut Bin<'_>,
    ) {
        match self {
            Self::Fifo(lane) => {
                if let Err(packet) = lane.push(waiting) {
                    bin.drop(Class::Default, packet, Cause::Full);
                }
            }
            Self::Red(red) => {
                red.offer(waiting, now, &mut |packet, why| bin.drop(Class::Default, packet, why));
            }
            Self::Codel(codel) => {
                codel.offer(waiting, &mut |packet, why| bin.drop(Class::Default, packet, why));
            }
            Self::Drr(drr) => {
                let place = class.index().saturating_sub(1);
                drr.offer(place, waiting, &mut |packet, why| bin.drop(class, packet, why));
            }
        }
    }

    /// Takes the next packet to leave, and the class in which it is counted.
    #[inline]
    pub(super) fn take(&mut self, now: u64, bin: &mut Bin<'_>) -> Option<(Class, Waiting<Mbuf>)> {
        let taken = match self {
            Self::Fifo(lane) => lane.pop(),
            Self::Red(red) => red.take(now),
            Self::Codel(codel) => {
                codel.take(now, &mut |packet, why| bin.drop(Class::Default, packet, why))
            }
            Self::Drr(drr) => {
                return drr.take().map(|(class, waiting)| (Class::ALL[class + 1], waiting));
            }
        };
        taken.map(|waiting| (Class::Default, waiting))
    }
}

/// Returns the TSC cycles for sending a small packet: at the shape's rate, else at a gigabit per
/// second.
fn packet_time(shape: Option<Shape>, hz: u64) -> u64 {
    const SMALL: u64 = 500;
    let rate = shape.map_or(125_000_000, |shape| shape.rate.max(1));
    (u128::from(SMALL) * u128::from(hz) / u128::from(rate)) as u64
}

/// The place of a scheduler's packets, for counters: its port, and the counters of its forwarder.
pub(super) type Site<'a> = (PortId, &'a ForwarderCounters);

/// Packets that were dropped and not freed yet, and the counters of their queue.
pub(super) struct Bin<'a> {
    pub(super) freed: &'a mut PacketList,
    pub(super) site: Site<'a>,
    pub(super) counters: &'a QueueCounters,
}

impl Bin<'_> {
    pub(super) fn drop(&mut self, class: Class, packet: Mbuf, why: Cause) {
        let of = self.counters.class(class);
        let (counter, reason) = match why {
            Cause::Full => (&of.full, DropReason::QueueFull),
            Cause::Red => (&of.red, DropReason::QueueRed),
            Cause::Codel => (&of.codel, DropReason::QueueCodel),
        };
        counter.add(1);
        let (port, of_forwarder) = self.site;
        let drop = Dropped::sent(DropOrigin::Transmit, reason, port);
        let drops = &of_forwarder.drops;
        drops.see(&drop.with_tag(packet.requested_tag()), || packet.chunks());
        drops.count((drop.origin, drop.reason), 1);
        if let Err(packet) = self.freed.push(packet) {
            self.freed.free_tail(0);
            // There is room now.
            let _ = self.freed.push(packet);
        }
    }

    /// Counts a waiting packet that leaves.
    #[inline]
    pub(super) fn leaves(&self, class: Class, waiting: &Waiting<Mbuf>, now: u64) {
        let of = self.counters.class(class);
        of.sent.add(1);
        of.sent_bytes.add(waiting.packet.bytes().into());
        of.marked.add(waiting.marked.into());
        let (delay, before) = (now.saturating_sub(waiting.since), of.delay.get());
        of.delay.set(before - before / AVERAGED + delay / AVERAGED);
        of.delay_most.set(of.delay_most.get().max(delay));
    }
}
