//! The queues of a port on one forwarder, and the order in which they have their turns.
//!
//! A queue with packets is *ready*, or *held* until one of its rates allows the next packet. Ready queues take turns of
//! a full frame (deficit round robin as in `drr.rs`, where a turn may be overdrawn and the next one is the shorter), so
//! that VLANs that wait for the same rate have equal parts of it. Held ones are ordered by time, so that a round costs as
//! much as the queues that may send, whatever the number of others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use dpdk::{Mbuf, PacketList, TxQueue};

use super::branch::{Branch, TURN};
use super::lane::{Packet, Waiting};
use super::queue::Site;
use super::shape::Shaper;
use super::tags::ByTags;
use super::{BURSTS, CONTROL_LENGTH, QueueConfig, Rate, TX_BURST_MAX, send_by};
use crate::counters::QueueCounters;
use crate::drop_watch::Dropped;
use crate::frame::Class;
use crate::reason::{DropOrigin, DropReason};
use crate::vlan::Tags;

/// The queue of all packets that belong to no VLAN's: the first.
const REST: u16 = 0;

/// A held queue: when it may send again, its turn among those of the same time, its place.
type Held = Reverse<(u64, u64, u16)>;

/// The queues and the rates of a port on one forwarder.
pub struct Scheduler {
    /// That of the rest, and those of VLANs.
    branches: Vec<Branch>,
    by_tags: ByTags,
    /// The rate of all packets.
    common: Option<Shaper>,
    /// Those of VLANs.
    limits: Vec<Shaper>,
    /// Queues with packets by their turns.
    ready: VecDeque<u16>,
    /// Queues with packets by the time until which a VLAN's rate holds them.
    held: BinaryHeap<Held>,
    /// Number of times that a queue was held.
    holds: u64,
    /// Packets that wait in queues.
    queued: usize,
    /// Queues whose lengths have changed since they were published.
    touched: Vec<u16>,
    /// True if packets leave without regard to rates.
    is_unlimited: bool,
    /// Packets taken from the queues, and not accepted by the device yet.
    pub(super) out: PacketList,
    freed: PacketList,
}

impl Scheduler {
    /// Creates one with an empty queue. All forwarders of a port share the bucket of its rate.
    pub fn new(config: QueueConfig, rate: Option<Rate>, counters: Arc<QueueCounters>) -> Self {
        let rest = Branch::new((config, CONTROL_LENGTH), rate.as_ref(), counters);
        Self {
            branches: vec![rest],
            by_tags: ByTags::default(),
            common: rate.map(|(shape, bucket)| Shaper::new(bucket, shape.overhead)),
            limits: Vec::new(),
            ready: VecDeque::with_capacity(1),
            held: BinaryHeap::with_capacity(1),
            holds: 0,
            queued: 0,
            touched: Vec::with_capacity(1),
            is_unlimited: false,
            out: PacketList::new(),
            freed: PacketList::new(),
        }
    }

    /// Adds a queue for frames with these tags. The rate of the outer tag's VLAN, if it was added before, applies to it
    /// as well.
    pub fn add(
        &mut self,
        tags: Tags,
        config: QueueConfig,
        rate: Option<Rate>,
        counters: Arc<QueueCounters>,
    ) {
        let mut branch = Branch::new((config, config.control_of_vlan()), rate.as_ref(), counters);
        if let Some((shape, bucket)) = rate {
            branch.limits.push(self.limits.len() as u16);
            self.limits.push(Shaper::new(bucket, shape.overhead));
        }
        if let Some(around) = self.by_tags.around(tags) {
            branch.limits.extend(&self.branches[usize::from(around)].limits);
        }
        self.by_tags.insert(tags, self.branches.len() as u16);
        self.branches.push(branch);
        let count = self.branches.len();
        self.ready.reserve(count);
        self.held.reserve(count);
        self.touched.reserve(count);
    }

    /// Returns the number of waiting packets.
    pub fn len(&self) -> usize {
        self.queued + self.out.len()
    }

    /// Returns true if no packet waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes over packets that arrive now, in TSC cycles.
    pub(crate) fn offer(&mut self, packets: &mut PacketList, now: u64, site: Site<'_>) {
        packets.drain(|packet| {
            let class = Class::of(&packet);
            self.enter((class, Waiting::new(packet, now)), now, site);
        });
        self.freed.free_tail(0);
    }

    /// Adds a packet to the queue of its tags and its class, or drops it.
    #[inline]
    fn enter(&mut self, (class, waiting): (Class, Waiting<Mbuf>), now: u64, site: Site<'_>) {
        let place = self.by_tags.of(&waiting.packet).unwrap_or(REST);
        let branch = &mut self.branches[usize::from(place)];
        let before = branch.len();
        branch.enter((class, waiting), now, &mut self.freed, site);
        self.queued = self.queued + branch.len() - before;
        // One with packets is ready or held already.
        if before == 0 && branch.len() > 0 {
            branch.turn = TURN;
            self.ready.push_back(place);
        }
        self.touch(place);
    }

    #[inline]
    fn touch(&mut self, place: u16) {
        let branch = &mut self.branches[usize::from(place)];
        if !branch.is_touched {
            branch.is_touched = true;
            self.touched.push(place);
        }
    }

    /// Takes over the packets of another, which is empty afterwards. The excess is dropped.
    pub(crate) fn take_over(&mut self, other: &mut Self, now: u64, site: Site<'_>) {
        // Packets refused by the device come first; their time in the queue is counted already.
        other.out.drain(|packet| {
            if let Err(packet) = self.out.push(packet) {
                let drop = Dropped::sent(DropOrigin::Transmit, DropReason::QueueFull, site.0);
                site.1.drops.free(&drop, packet);
            }
        });
        for branch in &mut other.branches {
            while let Some(waiting) = branch.take(now, &mut self.freed, site) {
                self.enter(waiting, now, site);
            }
        }
        self.freed.free_tail(0);
        other.become_idle();
    }

    /// All queues are empty.
    fn become_idle(&mut self) {
        self.ready.clear();
        self.held.clear();
        self.queued = 0;
        self.branches.iter_mut().for_each(Branch::report);
        self.touched.clear();
        self.rest();
    }

    /// Passes packets that may leave now to the device as far as it accepts them. Returns the
    /// number accepted.
    pub(crate) fn serve(&mut self, device: &mut TxQueue, now: u64, site: Site<'_>) -> usize {
        let (mut sent, (port, counters)) = (0, site);
        for _ in 0..BURSTS {
            self.choose(now, site);
            if self.out.is_empty() {
                break;
            }
            sent += send_by(device, &mut self.out, port, counters);
            if !self.out.is_empty() {
                break;
            }
        }
        self.freed.free_tail(0);
        while let Some(place) = self.touched.pop() {
            self.branches[usize::from(place)].report();
        }
        if self.queued == 0 {
            self.rest();
        }
        sent
    }

    /// Moves packets that may leave to the list for the device.
    fn choose(&mut self, now: u64, site: Site<'_>) {
        self.wake(now);
        while self.out.len() < TX_BURST_MAX
            && let Some(&place) = self.ready.front()
            && self.may_send(now)
        {
            if let Some(due) = self.held_until(place, now) {
                self.hold(place, due);
                continue;
            }
            self.touch(place);
            let branch = &mut self.branches[usize::from(place)];
            let before = branch.len();
            let packet = branch.leave(now, &mut self.freed, site);
            self.queued = self.queued + branch.len() - before;
            if let Some(packet) = packet {
                let bytes = packet.bytes();
                branch.turn -= i64::from(bytes);
                if let Some(shaper) = &mut self.common {
                    shaper.spend(bytes);
                }
                for &limit in &branch.limits {
                    self.limits[usize::from(limit)].spend(bytes);
                }
                // There is room: fewer than a burst are there.
                let _ = self.out.push(packet);
            }
            self.next_turn(place);
        }
    }

    /// Lets the next queue have its turn, if that of the first has ended.
    #[inline]
    fn next_turn(&mut self, place: u16) {
        let branch = &mut self.branches[usize::from(place)];
        if branch.len() == 0 {
            self.ready.pop_front();
            if let Some(&nearest) = branch.limits.first() {
                self.limits[usize::from(nearest)].rest();
            }
        } else if branch.turn <= 0 {
            branch.turn += TURN;
            self.ready.rotate_left(1);
        }
    }

    /// Returns true if the rate of all packets allows one more.
    #[inline]
    fn may_send(&mut self, now: u64) -> bool {
        self.is_unlimited || self.common.as_mut().is_none_or(|shaper| shaper.may_send(now))
    }

    /// Returns the time at which a queue's next packet may leave, if that is later.
    #[inline]
    fn held_until(&mut self, place: u16, now: u64) -> Option<u64> {
        if self.is_unlimited {
            return None;
        }
        let limits = &self.branches[usize::from(place)].limits;
        limits.iter().find_map(|&limit| {
            let shaper = &mut self.limits[usize::from(limit)];
            (!shaper.may_send(now)).then(|| shaper.due())
        })
    }

    /// Holds the first of the ready queues.
    fn hold(&mut self, place: u16, due: u64) {
        self.ready.pop_front();
        self.held.push(Reverse((due, self.holds, place)));
        self.holds += 1;
    }

    /// Makes the queues ready whose time has come.
    #[inline]
    fn wake(&mut self, now: u64) {
        while let Some(&Reverse((due, _, place))) = self.held.peek()
            && (due <= now || self.is_unlimited)
        {
            self.held.pop();
            self.ready.push_back(place);
        }
    }

    /// Returns the remaining credit for other forwarders.
    fn rest(&mut self) {
        self.common.iter_mut().chain(&mut self.limits).for_each(Shaper::rest);
    }

    /// Drops everything.
    pub(crate) fn drop_all(&mut self, why: DropReason, site: Site<'_>) {
        let (port, counters) = site;
        let drop = Dropped::sent(DropOrigin::Transmit, why, port);
        counters.drops.free_tail(&drop, &mut self.out, 0);
        for branch in &mut self.branches {
            while let Some((_, waiting)) = branch.take(0, &mut self.freed, site) {
                counters.drops.free(&drop, waiting.packet);
            }
        }
        self.freed.free_tail(0);
        self.become_idle();
    }

    /// Sends without regard to rates from now on, or with regard to them again.
    pub(crate) fn set_unlimited(&mut self, is_unlimited: bool) {
        self.rest();
        self.is_unlimited = is_unlimited;
    }

    /// Returns the time at which a packet that waits for a rate may leave, in TSC cycles; `None`
    /// if none waits.
    pub(crate) fn due(&self) -> Option<u64> {
        if !self.out.is_empty() {
            return None;
        }
        let common = self.common.as_ref().map(Shaper::due);
        match self.held.peek() {
            _ if !self.ready.is_empty() => common,
            Some(&Reverse((due, ..))) => Some(due.max(common.unwrap_or_default())),
            None => None,
        }
    }

    /// Returns true if packets wait for the device.
    pub(crate) fn is_stuck(&self) -> bool {
        let is_limited = !self.is_unlimited && self.common.is_some();
        !self.out.is_empty() || !is_limited && !self.ready.is_empty()
    }
}
