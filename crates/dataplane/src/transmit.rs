//! Software queues of ports: waiting packets, the order in which they leave, and the rate.
//!
//! A port without `queue` and `shape` has none: packets go from its burst to the device's ring. Else each
//! forwarder with a transmit queue of the port has a [`Scheduler`] before it:
//!
//! ```text
//!                     +-- control (CS6, CS7, ARP, ND) ------------------+ first, within a bound
//!  burst, priority    |                                                 v
//!  ring ------- class +-- fifo | red | codel --------------------> token bucket --> device's ring
//!                     +-- drr: voice, video, data, default, background -+
//! ```
//!
//! A discipline is a file: [`red`], [`codel`], [`drr`]; a fifo is a [`lane`]. The token bucket is
//! one for all forwarders of a port ([`shape`]). A forwarder serves its queues once a round and
//! whenever packets arrive, and blocks no longer than until the next packet may leave.
//!
//! Control leaves first, but at most [`AHEAD_MOST`] bytes ahead of other waiting packets: beyond
//! that, it and all others have half the link each, so that no sender starves others by a
//! codepoint.
//!
//! DPDK's `rte_sched` provides none of this: it is for subscribers' hierarchies of a fixed form,
//! cannot change its length while it runs, has neither CoDel nor ECN, and requires one core for a
//! port because it does not lock.

pub mod codel;
pub mod drr;
pub mod lane;
pub mod red;
pub mod shape;

use std::fmt;
use std::sync::Arc;

use dpdk::{Mbuf, PacketList, TxQueue, Unsent};

use self::codel::{Codel, CodelConfig};
use self::drr::{CLASSES, Drr};
use self::lane::{Cause, Lane, Packet, Waiting};
use self::red::{Red, RedConfig};
use self::shape::{Bucket, Shape, Shaper};
use crate::counters::{ClassQueueCounters, ForwarderCounters};
use crate::drop_watch::Dropped;
pub use crate::frame;
use crate::frame::Class;
use crate::port::PortId;
use crate::reason::{DropOrigin, DropReason};

/// The largest transmit burst that can be configured.
pub const TX_BURST_MAX: usize = 128;

/// Packets of a queue by default.
pub const LENGTH: u32 = 1000;

/// The longest queue that can be configured, in packets.
pub const LENGTH_MOST: u32 = 65_536;

/// Most waiting packets of network control, in addition to the queue's length.
pub const CONTROL_LENGTH: u32 = 256;

/// Most bytes by which network control is ahead of other waiting packets: eight full frames.
const AHEAD_MOST: u32 = 8 * 1514;

/// Bursts that a queue passes to its device in a round.
const BURSTS: usize = 4;

/// Number of packets over which delays are averaged.
const AVERAGED: u64 = 16;

/// The order in which packets leave, and the selection of dropped ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// In order of arrival; packets that arrive at a full queue are dropped.
    #[default]
    Fifo,
    /// Random early detection.
    Red(RedConfig),
    /// Controlled delay.
    Codel(CodelConfig),
    /// Deficit round robin, with the weights of the classes after [`Class::Control`].
    Drr([u8; CLASSES]),
}

/// The weights of [`Discipline::Drr`] by default: voice, video, data, default, background.
pub const WEIGHTS: [u8; CLASSES] = [8, 6, 4, 4, 1];

impl Discipline {
    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Red(_) => "red",
            Self::Codel(_) => "codel",
            Self::Drr(_) => "drr",
        }
    }
}

/// The queue of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Most waiting packets; with [`Discipline::Drr`] in each class.
    pub length: u32,
    /// Their order.
    pub discipline: Discipline,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { length: LENGTH, discipline: Discipline::default() }
    }
}

impl QueueConfig {
    /// Returns the largest number of packet buffers in the queue, for each forwarder.
    pub fn buffers(&self) -> usize {
        let lanes = match self.discipline {
            Discipline::Drr(_) => CLASSES,
            _ => 1,
        };
        self.length as usize * lanes + CONTROL_LENGTH as usize + TX_BURST_MAX
    }
}

/// As in configurations: `codel, length 1000, target_us 5000, interval_us 100000, ecn true`.
impl fmt::Display for QueueConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, length {}", self.discipline.name(), self.length)?;
        match self.discipline {
            Discipline::Fifo => Ok(()),
            Discipline::Red(RedConfig { least, most, percent, ecn }) => {
                write!(f, ", min {least}, max {most}, percent {percent}, ecn {ecn}")
            }
            Discipline::Codel(CodelConfig { target_us, interval_us, ecn }) => {
                write!(f, ", target_us {target_us}, interval_us {interval_us}, ecn {ecn}")
            }
            Discipline::Drr(weights) => {
                let mut named = Class::ALL[1..].iter().zip(weights);
                named.try_for_each(|(class, weight)| write!(f, ", {} {weight}", class.name()))
            }
        }
    }
}

/// The packets other than network control.
enum Queue {
    Fifo(Lane<Mbuf>),
    Red(Red<Mbuf>),
    Codel(Codel<Mbuf>),
    Drr(Drr<Mbuf>),
}

impl Queue {
    fn new(config: QueueConfig, shape: Option<Shape>, hz: u64) -> Self {
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

    fn len(&self) -> usize {
        match self {
            Self::Fifo(lane) => lane.len(),
            Self::Red(red) => red.lane().len(),
            Self::Codel(codel) => codel.lane().len(),
            Self::Drr(drr) => drr.len(),
        }
    }

    /// Returns the packets that are counted in a class. If all are in one queue, they are counted
    /// as default.
    fn lane(&self, class: Class) -> Option<&Lane<Mbuf>> {
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
    fn offer(&mut self, class: Class, waiting: Waiting<Mbuf>, now: u64, bin: &mut Bin<'_>) {
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
    fn take(&mut self, now: u64, bin: &mut Bin<'_>) -> Option<(Class, Waiting<Mbuf>)> {
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

/// Packets that were dropped and not freed yet, and their counters.
struct Bin<'a> {
    freed: &'a mut PacketList,
    port: PortId,
    counters: &'a ForwarderCounters,
}

impl Bin<'_> {
    fn of(&self, class: Class) -> &ClassQueueCounters {
        self.counters.queue(self.port, class)
    }

    fn drop(&mut self, class: Class, packet: Mbuf, why: Cause) {
        let of = self.of(class);
        let (counter, reason) = match why {
            Cause::Full => (&of.full, DropReason::QueueFull),
            Cause::Red => (&of.red, DropReason::QueueRed),
            Cause::Codel => (&of.codel, DropReason::QueueCodel),
        };
        counter.add(1);
        let drop = Dropped::sent(DropOrigin::Transmit, reason, self.port);
        let drops = &self.counters.drops;
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
    fn leaves(&self, class: Class, waiting: &Waiting<Mbuf>, now: u64) {
        let of = self.of(class);
        of.sent.add(1);
        of.sent_bytes.add(waiting.packet.bytes().into());
        of.marked.add(waiting.marked.into());
        let (delay, before) = (now.saturating_sub(waiting.since), of.delay.get());
        of.delay.set(before - before / AVERAGED + delay / AVERAGED);
        of.delay_most.set(of.delay_most.get().max(delay));
    }
}

/// The queue and the shaper of a port on one forwarder.
pub struct Scheduler {
    control: Lane<Mbuf>,
    queue: Queue,
    /// Bytes by which control is ahead of the other waiting packets.
    ahead: u32,
    shaper: Option<Shaper>,
    /// Packets taken from the queue, and not accepted by the device yet.
    out: PacketList,
    freed: PacketList,
}

impl Scheduler {
    /// Creates an empty one. All forwarders of a port share the bucket.
    pub fn new(config: QueueConfig, shape: Option<(Shape, Arc<Bucket>)>) -> Self {
        let hz = dpdk::tsc_hz();
        let queue = Queue::new(config, shape.as_ref().map(|(shape, _)| *shape), hz);
        let shaper = shape.map(|(shape, bucket)| Shaper::new(bucket, shape.overhead));
        Self {
            control: Lane::new(CONTROL_LENGTH as usize),
            queue,
            ahead: 0,
            shaper,
            out: PacketList::new(),
            freed: PacketList::new(),
        }
    }

    /// Returns the number of waiting packets.
    pub fn len(&self) -> usize {
        self.queued() + self.out.len()
    }

    /// Returns true if no packet waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn queued(&self) -> usize {
        self.control.len() + self.queue.len()
    }

    /// Takes over packets that arrive now, in TSC cycles.
    pub(crate) fn offer(
        &mut self,
        packets: &mut PacketList,
        now: u64,
        (port, counters): (PortId, &ForwarderCounters),
    ) {
        let Self { control, queue, freed, .. } = self;
        let mut bin = Bin { freed, port, counters };
        packets.drain(|packet| {
            let class = Class::of(&packet);
            let waiting = Waiting::new(packet, now);
            enter(control, queue, (class, waiting), now, &mut bin);
        });
        self.freed.free_tail(0);
    }

    /// Takes over the packets of another, which is empty afterwards. The excess is dropped.
    pub(crate) fn take_over(
        &mut self,
        other: &mut Self,
        now: u64,
        (port, counters): (PortId, &ForwarderCounters),
    ) {
        let Self { control, queue, freed, .. } = self;
        let mut bin = Bin { freed, port, counters };
        // Packets refused by the device come first; their time in the queue is counted already.
        other.out.drain(|packet| {
            if let Err(packet) = self.out.push(packet) {
                bin.drop(Class::Default, packet, Cause::Full);
            }
        });
        while let Some(waiting) = other.control.pop() {
            enter(control, queue, (Class::Control, waiting), now, &mut bin);
        }
        while let Some((_, waiting)) = other.queue.take(now, &mut bin) {
            let class = Class::of(&waiting.packet);
            enter(control, queue, (class, waiting), now, &mut bin);
        }
        self.freed.free_tail(0);
        other.rest();
    }

    /// Passes packets that may leave now to the device as far as it accepts them. Returns the
    /// number accepted.
    pub(crate) fn serve(
        &mut self,
        device: &mut TxQueue,
        now: u64,
        (port, counters): (PortId, &ForwarderCounters),
    ) -> usize {
        let mut sent = 0;
        for _ in 0..BURSTS {
            self.choose(now, (port, counters));
            if self.out.is_empty() {
                break;
            }
            sent += send_by(device, &mut self.out, port, counters);
            if !self.out.is_empty() {
                break;
            }
        }
        self.freed.free_tail(0);
        self.report(port, counters);
        if self.queued() == 0 {
            self.rest();
        }
        sent
    }

    /// Moves packets that may leave to the list for the device.
    fn choose(&mut self, now: u64, (port, counters): (PortId, &ForwarderCounters)) {
        let Self { control, queue, ahead, shaper, out, freed } = self;
        let mut bin = Bin { freed, port, counters };
        while out.len() < TX_BURST_MAX && (!control.is_empty() || queue.len() > 0) {
            if !shaper.as_mut().is_none_or(|shaper| shaper.may_send(now)) {
                break;
            }
            let Some((class, waiting)) = next(control, queue, ahead, now, &mut bin) else { break };
            bin.leaves(class, &waiting, now);
            if let Some(shaper) = shaper {
                shaper.spend(waiting.packet.bytes());
            }
            // There is room: fewer than a burst are there.
            let _ = out.push(waiting.packet);
        }
    }

    /// Publishes the present lengths.
    fn report(&self, port: PortId, counters: &ForwarderCounters) {
        for class in Class::ALL {
            let lane =
                if class == Class::Control { Some(&self.control) } else { self.queue.lane(class) };
            let (packets, bytes) = lane.map_or((0, 0), |lane| (lane.len() as u64, lane.bytes()));
            let of = counters.queue(port, class);
            of.waiting.set(packets);
            of.waiting_bytes.set(bytes);
            of.most.set(of.most.get().max(packets));
        }
    }

    /// Returns the remaining credit for other forwarders.
    fn rest(&mut self) {
        if let Some(shaper) = &mut self.shaper {
            shaper.rest();
        }
    }

    /// Drops everything.
    pub(crate) fn drop_all(&mut self, why: DropReason, port: PortId, counters: &ForwarderCounters) {
        let drop = Dropped::sent(DropOrigin::Transmit, why, port);
        counters.drops.free_tail(&drop, &mut self.out, 0);
        let Self { control, queue, freed, .. } = self;
        let mut bin = Bin { freed, port, counters };
        while let Some((_, waiting)) = next(control, queue, &mut 0, 0, &mut bin) {
            counters.drops.free(&drop, waiting.packet);
        }
        self.freed.free_tail(0);
        self.report(port, counters);
        self.rest();
    }

    /// Sends without regard to the rate from now on until [`Self::shape_again`].
    pub(crate) fn unshape(&mut self) -> Option<Shaper> {
        self.rest();
        self.shaper.take()
    }

    /// Undoes [`Self::unshape`].
    pub(crate) fn shape_again(&mut self, shaper: Option<Shaper>) {
        self.shaper = shaper;
    }

    /// Returns the time at which a packet that waits for the rate may leave, in TSC cycles; `None`
    /// if none waits.
    pub(crate) fn due(&self) -> Option<u64> {
        let shaper = self.shaper.as_ref()?;
        (self.queued() > 0 && self.out.is_empty()).then(|| shaper.due())
    }

    /// Returns true if packets wait for the device.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.out.is_empty() || self.shaper.is_none() && self.queued() > 0
    }
}

/// Adds a packet to the queue of its class, or drops it.
#[inline]
fn enter(
    control: &mut Lane<Mbuf>,
    queue: &mut Queue,
    (class, waiting): (Class, Waiting<Mbuf>),
    now: u64,
    bin: &mut Bin<'_>,
) {
    if class != Class::Control {
        return queue.offer(class, waiting, now, bin);
    }
    if let Err(packet) = control.push(waiting) {
        bin.drop(Class::Control, packet, Cause::Full);
    }
}

/// Returns the next packet to leave: control, unless it is too far ahead of other waiting packets.
#[inline]
fn next(
    control: &mut Lane<Mbuf>,
    queue: &mut Queue,
    ahead: &mut u32,
    now: u64,
    bin: &mut Bin<'_>,
) -> Option<(Class, Waiting<Mbuf>)> {
    let is_alone = queue.len() == 0;
    if is_alone {
        *ahead = 0;
    }
    if !is_alone
        && (control.is_empty() || *ahead >= AHEAD_MOST)
        && let Some((class, waiting)) = queue.take(now, bin)
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

/// Sends and counts as much of a list as the queue takes, one maximal burst at most.
pub(crate) fn send_by(
    queue: &mut TxQueue,
    list: &mut PacketList,
    port: PortId,
    counters: &ForwarderCounters,
) -> usize {
    let sent = queue.send(list, TX_BURST_MAX);
    if sent.refused + sent.too_long > 0 {
        drop_unsent(queue, port, counters);
    }
    let tx = counters.tx(port);
    tx.packets.add(sent.packets as u64);
    tx.bytes.add(sent.bytes);
    sent.packets
}

/// Drops the packets that the device cannot send.
#[cold]
fn drop_unsent(queue: &mut TxQueue, port: PortId, counters: &ForwarderCounters) {
    let Unsent { refused, too_long } = queue.unsent();
    for (packets, why) in [(refused, DropReason::MultiSegment), (too_long, DropReason::TxTooLong)] {
        counters.drops.free_tail(&Dropped::sent(DropOrigin::Transmit, why, port), packets, 0);
    }
}

#[cfg(test)]
mod tests;
