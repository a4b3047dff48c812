//! One bounded first-in first-out queue of packets, the building block of all disciplines.

use std::collections::VecDeque;

use dpdk::Mbuf;

use crate::frame;

/// A packet as used by disciplines.
pub trait Packet {
    /// Bytes of the frame, without FCS.
    fn bytes(&self) -> u32;

    /// Sets Congestion Experienced; returns false, without a change, if the packet is not of an
    /// ECN-capable transport (RFC 3168 5).
    fn mark(&mut self) -> bool;
}

impl Packet for Mbuf {
    #[inline]
    fn bytes(&self) -> u32 {
        self.len() as u32
    }

    fn mark(&mut self) -> bool {
        frame::mark(self.data_mut())
    }
}

/// Reason for which a queue drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There was no room.
    Full,
    /// RED selected it.
    Red,
    /// CoDel selected it.
    Codel,
}

/// A packet in a queue.
#[derive(Debug)]
pub struct Waiting<P> {
    /// The packet.
    pub packet: P,
    /// Arrival time, in TSC cycles.
    pub since: u64,
    /// True if CoDel or RED has marked it.
    pub marked: bool,
}

impl<P: Packet> Waiting<P> {
    /// Creates one that arrives now.
    pub fn new(packet: P, now: u64) -> Self {
        Self { packet, since: now, marked: false }
    }
}

/// Packets in order of arrival. Its memory is allocated on creation.
#[derive(Debug)]
pub struct Lane<P> {
    packets: VecDeque<Waiting<P>>,
    length: usize,
    bytes: u64,
}

impl<P: Packet> Lane<P> {
    /// An empty lane that holds so many packets.
    pub fn new(length: usize) -> Self {
        Self { packets: VecDeque::with_capacity(length), length, bytes: 0 }
    }

    /// Adds a packet at the end.
    ///
    /// # Errors
    /// The lane is full; returns the packet.
    #[inline]
    pub fn push(&mut self, waiting: Waiting<P>) -> Result<(), P> {
        if self.packets.len() >= self.length {
            return Err(waiting.packet);
        }
        self.bytes += u64::from(waiting.packet.bytes());
        self.packets.push_back(waiting);
        Ok(())
    }

    /// Takes the packet at the front.
    #[inline]
    pub fn pop(&mut self) -> Option<Waiting<P>> {
        let waiting = self.packets.pop_front()?;
        self.bytes -= u64::from(waiting.packet.bytes());
        Some(waiting)
    }

    /// Bytes of the packet at the front.
    #[inline]
    pub fn next_bytes(&self) -> Option<u32> {
        self.packets.front().map(|waiting| waiting.packet.bytes())
    }

    /// Returns the number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if there are no packets.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes of all packets together.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A packet with a number.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Numbered {
        pub number: u64,
        pub bytes: u32,
        pub ect: bool,
    }

    impl Packet for Numbered {
        fn bytes(&self) -> u32 {
            self.bytes
        }

        fn mark(&mut self) -> bool {
            self.ect
        }
    }

    pub fn numbered(number: u64, bytes: u32) -> Numbered {
        Numbered { number, bytes, ect: false }
    }

    #[test]
    fn a_lane_keeps_the_order_its_bound_and_its_bytes() {
        let mut lane = Lane::new(3);
        for number in 0..3 {
            lane.push(Waiting::new(numbered(number, 100 + number as u32), 7)).unwrap();
        }
        assert_eq!(lane.push(Waiting::new(numbered(3, 60), 7)), Err(numbered(3, 60)));
        assert_eq!((lane.len(), lane.bytes(), lane.next_bytes()), (3, 303, Some(100)));
        let taken: Vec<_> = std::iter::from_fn(|| lane.pop()).map(|w| w.packet.number).collect();
        assert_eq!((taken, lane.bytes(), lane.is_empty()), (vec![0, 1, 2], 0, true));
    }
}
