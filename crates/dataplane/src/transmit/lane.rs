//! One first-in first-out lane of packets with a bound, the part that all disciplines are made of.

use std::collections::VecDeque;

use dpdk::Mbuf;

use crate::frame;

/// A packet as disciplines see it.
pub trait Packet {
    /// Bytes of the frame, without FCS.
    fn bytes(&self) -> u32;

    /// Sets Congestion Experienced; false, and nothing done, if the packet is not of an ECN-capable transport
    /// (RFC 3168 5).
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

/// Why a queue drops a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There was no room.
    Full,
    /// RED chose it.
    Red,
    /// CoDel chose it.
    Codel,
}

/// A packet in a queue.
#[derive(Debug)]
pub struct Waiting<P> {
    /// It.
    pub packet: P,
    /// When it came, in TSC cycles.
    pub since: u64,
    /// CoDel or RED has marked it.
    pub marked: bool,
}

impl<P: Packet> Waiting<P> {
    /// One that comes now.
    pub fn new(packet: P, now: u64) -> Self {
        Self { packet, since: now, marked: false }
    }
}

/// Packets in the order in which they came. Its memory is taken when it is made.
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
    /// Gives it back when the lane is full.
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

    /// Packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// True if there is none.
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

    /// A packet that knows its number.
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
