//! Deficit round robin over classes (Shreedhar and Varghese 1995).
//!
//! Each class with packets has a turn, in which it may send as many bytes as its deficit; each turn
//! raises the deficit by the class's quantum, a full frame for each unit of its weight. So a turn
//! costs O(1) and classes share the link in the ratio of their weights. A class that becomes empty
//! loses its deficit.

use super::FULL_FRAME;
use super::lane::{Cause, Lane, Packet, Waiting};

/// Classes of a round.
pub const CLASSES: usize = 5;

/// A queue for each class.
#[derive(Debug)]
pub struct Drr<P> {
    classes: [Class<P>; CLASSES],
    /// The class of the present turn.
    turn: usize,
    /// True if it has received its quantum.
    granted: bool,
    len: usize,
}

#[derive(Debug)]
struct Class<P> {
    lane: Lane<P>,
    quantum: u32,
    deficit: u32,
}

impl<P: Packet> Drr<P> {
    /// Classes of these weights, at least 1, each of at most so many packets.
    pub fn new(length: usize, weights: [u8; CLASSES]) -> Self {
        let class = |weight: u8| {
            let quantum = u32::from(weight.max(1)) * FULL_FRAME;
            Class { lane: Lane::new(length), quantum, deficit: 0 }
        };
        Self { classes: weights.map(class), turn: 0, granted: false, len: 0 }
    }

    /// Adds a packet to a class below [`CLASSES`], or drops it.
    pub fn offer(&mut self, class: usize, waiting: Waiting<P>, drop: &mut impl FnMut(P, Cause)) {
        let class = &mut self.classes[class % CLASSES];
        match class.lane.push(waiting) {
            Ok(()) => self.len += 1,
            Err(packet) => drop(packet, Cause::Full),
        }
    }

    /// Takes the packet of the present turn, and its class.
    pub fn take(&mut self) -> Option<(usize, Waiting<P>)> {
        if self.is_empty() {
            return None;
        }
        loop {
            let class = &mut self.classes[self.turn];
            if let Some(bytes) = class.lane.next_bytes() {
                if !self.granted {
                    self.granted = true;
                    class.deficit = class.deficit.saturating_add(class.quantum);
                }
                if bytes <= class.deficit {
                    class.deficit -= bytes;
                    self.len -= 1;
                    let taken = class.lane.pop().map(|waiting| (self.turn, waiting));
                    if class.lane.is_empty() {
                        class.deficit = 0;
                        self.next();
                    }
                    return taken;
                }
            }
            self.next();
        }
    }

    fn next(&mut self) {
        self.turn = if self.turn + 1 < CLASSES { self.turn + 1 } else { 0 };
        self.granted = false;
    }

    /// Returns the number of packets of all classes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no packets.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the packets of a class below [`CLASSES`].
    pub fn lane(&self, class: usize) -> &Lane<P> {
        &self.classes[class % CLASSES].lane
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::{Numbered, numbered};
    use super::*;
    use proptest::prelude::*;

    const WEIGHTS: [u8; CLASSES] = [4, 3, 2, 2, 1];

    fn fill(drr: &mut Drr<Numbered>, class: usize, count: u64, bytes: u32) {
        for number in 0..count {
            let waiting = Waiting::new(numbered(number, bytes), 0);
            drr.offer(class, waiting, &mut |_, _| panic!("it has room"));
        }
    }

    #[test]
    fn classes_that_have_enough_share_by_weight_whatever_their_packets_lengths() {
        let mut drr = Drr::new(100_000, WEIGHTS);
        for (class, bytes) in [60, 1514, 400, 9000, 1000].into_iter().enumerate() {
            fill(&mut drr, class, 60_000_000 / u64::from(bytes) / 10, bytes);
        }
        let mut sent = [0u64; CLASSES];
        while sent.iter().sum::<u64>() < 12_000_000 {
            let (class, waiting) = drr.take().unwrap();
            sent[class] += u64::from(waiting.packet.bytes);
        }
        for (sent, weight) in sent.into_iter().zip(WEIGHTS) {
            let share = sent as f64 / 1e6;
            assert!((share - f64::from(weight)).abs() < 0.02, "{share} MB of {weight}");
        }
    }

    #[test]
    fn a_class_alone_has_all_and_leaves_no_credit_behind() {
        let mut drr = Drr::new(100, WEIGHTS);
        fill(&mut drr, 4, 50, 100);
        assert_eq!((0..50).filter_map(|_| drr.take()).count(), 50);
        assert!(drr.take().is_none() && drr.classes[4].deficit == 0);
    }

    proptest! {
        /// Every packet leaves once or is refused, in the order of its class, and no class waits
        /// longer than one turn of each other: a class that always has packets is never behind its
        /// share by more than a turn and a frame.
        #[test]
        fn no_packet_is_lost_or_overtaken_in_its_class(
            steps in proptest::collection::vec((0..CLASSES, 60u32..1515, any::<bool>()), 1..400),
        ) {
            let mut drr = Drr::new(20, WEIGHTS);
            let (mut queued, mut left, mut number) = (0, 0, 0);
            let mut last = [None; CLASSES];
            let mut refused = 0;
            for (class, bytes, takes) in steps {
                number += 1;
                drr.offer(class, Waiting::new(numbered(number, bytes), 0), &mut |_, _| refused += 1);
                queued += 1;
                prop_assert!(drr.lane(class).len() <= 20);
                if takes {
                    let (class, waiting) = drr.take().unwrap();
                    prop_assert!(last[class] < Some(waiting.packet.number));
                    last[class] = Some(waiting.packet.number);
                    left += 1;
                }
            }
            while let Some((class, waiting)) = drr.take() {
                prop_assert!(last[class] < Some(waiting.packet.number));
                last[class] = Some(waiting.packet.number);
                left += 1;
            }
            prop_assert_eq!((queued, drr.len()), (left + refused, 0));
        }
    }
}
