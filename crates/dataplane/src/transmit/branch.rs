//! One of the queues of a port: that of a VLAN, or that of all other packets.

use std::sync::Arc;

use dpdk::{Mbuf, PacketList};

use super::lane::{Cause, Lane, Packet, Waiting};
use super::queue::{Bin, Queue, Site};
use super::{AHEAD_MOST, FULL_FRAME, QueueConfig, Rate};
use crate::counters::QueueCounters;
use crate::frame::Class;

/// Bytes of a turn.
pub(super) const TURN: i64 = FULL_FRAME as i64;

/// Network control and all other packets, in the order in which they leave.
pub(super) struct Branch {
    control: Lane<Mbuf>,
    queue: Queue,
    /// Bytes by which control is ahead of the other waiting packets.
    ahead: u32,
    counters: Arc<QueueCounters>,
    /// The rates that apply to it besides those of the port, by their places in the scheduler: its own, if it has
    /// one, and that of the VLAN around it.
    pub(super) limits: Vec<u16>,
    /// Bytes that it may send in its present turn; below 0: bytes sent in advance.
    pub(super) turn: i64,
    /// True if its lengths have changed since they were published.
    pub(super) is_touched: bool,
}

impl Branch {
    /// Creates an empty one with so much room for network control.
    pub(super) fn new(
        (config, control): (QueueConfig, u32),
        rate: Option<&Rate>,
        counters: Arc<QueueCounters>,
    ) -> Self {
        Self {
            control: Lane::new(control as usize),
            queue: Queue::new(config, rate.map(|(shape, _)| *shape), dpdk::tsc_hz()),
            ahead: 0,
            counters,
            limits: Vec::new(),
            turn: TURN,
            is_touched: false,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.control.len() + self.queue.len()
    }

    /// Adds a packet to the queue of its class, or drops it.
    #[inline]
    pub(super) fn enter(
        &mut self,
        (class, waiting): (Class, Waiting<Mbuf>),
        now: u64,
        freed: &mut PacketList,
        site: Site<'_>,
    ) {
        let mut bin = Bin { freed, site, counters: &self.counters };
        if class != Class::Control {
            return self.queue.offer(class, waiting, now, &mut bin);
        }
        if let Err(packet) = self.control.push(waiting) {
            bin.drop(Class::Control, packet, Cause::Full);
        }
    }

    /// Takes and counts the next packet to leave.
    #[inline]
    pub(super) fn leave(
        &mut self,
        now: u64,
        freed: &mut PacketList,
        site: Site<'_>,
    ) -> Option<Mbuf> {
        let (class, waiting) = self.take(now, freed, site)?;
        Bin { freed, site, counters: &self.counters }.leaves(class, &waiting, now);
        Some(waiting.packet)
    }

    /// Takes the next packet: control, unless it is too far ahead of other waiting packets.
    #[inline]
    pub(super) fn take(
        &mut self,
        now: u64,
        freed: &mut PacketList,
        site: Site<'_>,
    ) -> Option<(Class, Waiting<Mbuf>)> {
        let Self { control, queue, ahead, counters, .. } = self;
        let mut bin = Bin { freed, site, counters };
        let is_alone = queue.len() == 0;
        if is_alone {
            *ahead = 0;
        }
        if !is_alone
            && (control.is_empty() || *ahead >= AHEAD_MOST)
            && let Some((class, waiting)) = queue.take(now, &mut bin)
        {
            *ahead = ahead.saturating_sub(waiting.packet.bytes());
            return Some((class, waiting));
        }
        let waiting = control.pop()?;
        if !is_alone {
            *ahead += waiting.packet.bytes();
        }
        Some((Class::Control, waiting))
    }

    /// Publishes the present lengths.
    pub(super) fn report(&mut self) {
        self.is_touched = false;
        for class in Class::ALL {
            let lane =
                if class == Class::Control { Some(&self.control) } else { self.queue.lane(class) };
            let (packets, bytes) = lane.map_or((0, 0), |lane| (lane.len() as u64, lane.bytes()));
            let of = self.counters.class(class);
            of.waiting.set(packets);
            of.waiting_bytes.set(bytes);
            of.most.set(of.most.get().max(packets));
        }
    }
}
