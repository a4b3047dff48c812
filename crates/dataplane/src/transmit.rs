//! Software queues of ports: waiting packets, the order in which they leave, and the rate.
//!
//! A port without `queue` and `shape`, of its own or of its VLANs, has none: packets go from its burst to the device's
//! ring. Else each forwarder with a transmit queue of the port has a [`Scheduler`] before it:
//!
//! ```text
//!                       +-- control (CS6, CS7, ARP, ND) ------------------+ first, within a bound
//!  burst, priority      |                                                 v            by turns
//!  ring --- tags, class +-- fifo | red | codel --------------------> VLAN's rate --> port's rate --> device's ring
//!                       +-- drr: voice, video, data, default, background -+
//! ```
//!
//! A discipline is a file: [`red`], [`codel`], [`drr`]; a fifo is a [`lane`]. Each VLAN with `queue` or `shape` has
//! such a queue of its own, found by the frames' tags (`tags.rs`), and queues take turns (`scheduler.rs`). The token
//! bucket of a rate is one for all forwarders ([`shape`]). A forwarder serves its queues once a round and
//! whenever packets arrive, and blocks no longer than until the next packet may leave.
//!
//! Control leaves first, but at most [`AHEAD_MOST`] bytes ahead of other waiting packets: beyond
//! that, it and all others have half the link each, so that no sender starves others by a
//! codepoint.
//!
//! DPDK's `rte_sched` provides none of this: it is for subscribers' hierarchies of a fixed form,
//! cannot change its length while it runs, has neither CoDel nor ECN, and requires one core for a
//! port because it does not lock.

mod branch;
pub mod codel;
pub mod drr;
pub mod lane;
mod queue;
pub mod red;
mod scheduler;
pub mod shape;
mod tags;

use std::fmt;
use std::sync::Arc;

use dpdk::{PacketList, TxQueue, Unsent};

use self::codel::CodelConfig;
use self::drr::CLASSES;
use self::red::RedConfig;
pub use self::scheduler::Scheduler;
use self::shape::{Bucket, Shape};
use crate::counters::ForwarderCounters;
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

/// Bytes of a full frame: what may always wait, and the least of a turn, so that every turn sends something.
const FULL_FRAME: u32 = 1514;

/// Most bytes by which network control is ahead of other waiting packets.
const AHEAD_MOST: u32 = 8 * FULL_FRAME;

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
    /// Returns the largest number of packet buffers in the queue of a port, for each forwarder.
    pub fn buffers(&self) -> usize {
        self.in_lanes() + CONTROL_LENGTH as usize + TX_BURST_MAX
    }

    /// Returns the largest number of packet buffers in the queue of a VLAN, for each forwarder.
    pub fn buffers_of_vlan(&self) -> usize {
        self.in_lanes() + self.control_of_vlan() as usize
    }

    /// Returns the most waiting packets of a VLAN's network control: there may be thousands of VLANs.
    fn control_of_vlan(&self) -> u32 {
        self.length.min(CONTROL_LENGTH)
    }

    fn in_lanes(&self) -> usize {
        let lanes = match self.discipline {
            Discipline::Drr(_) => CLASSES,
            _ => 1,
        };
        self.length as usize * lanes
    }
}

/// A rate, and its bucket that all forwarders share.
pub type Rate = (Shape, Arc<Bucket>);

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
