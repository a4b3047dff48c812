//! The order of service: disciplines over queues, in a tree.
//!
//! A node selects a child by the children that have a packet to give, and asks it in turn. [`Node::next`] only looks;
//! [`Node::take`] counts what it selects. Neither sees packets but their lengths: `front` is the length of a queue's first
//! packet, if it has one.

use super::super::queue::Departures;
use super::super::stride::Stride;
use super::QUEUES_MOST;

/// A queue, or a discipline over some.
#[derive(Debug)]
pub(super) enum Node {
    /// A queue, by its number.
    Queue(usize),
    /// The first that has packets.
    Prio(Vec<Node>),
    /// One after the other; the next one.
    RoundRobin(Vec<Node>, usize),
    Drr(Vec<Node>, Drr),
    Stride(Vec<Node>, Stride),
    /// One of them, or none.
    Switch(Vec<Node>, Option<usize>),
    Rate(Departures, Box<Node>),
}

/// The lengths of the packets that children would give.
type Lengths = [Option<u64>; QUEUES_MOST];

/// The lengths of children's packets, and the queues that these are in.
fn lengths(
    nodes: &[Node],
    front: &impl Fn(usize) -> Option<usize>,
    now: u64,
) -> (Lengths, [Option<usize>; QUEUES_MOST]) {
    let (mut lengths, mut queues) = ([None; QUEUES_MOST], [None; QUEUES_MOST]);
    for ((length, queue), node) in lengths.iter_mut().zip(&mut queues).zip(nodes) {
        *queue = node.next(front, now);
        *length = queue.and_then(front).map(|length| length as u64);
    }
    (lengths, queues)
}

impl Node {
    /// The queue whose first packet leaves next; `None` if none may leave now.
    pub(super) fn next(&self, front: &impl Fn(usize) -> Option<usize>, now: u64) -> Option<usize> {
        match self {
            Self::Queue(queue) => front(*queue).map(|_| *queue),
            Self::Prio(nodes) => nodes.iter().find_map(|node| node.next(front, now)),
            Self::RoundRobin(nodes, next) => {
                let (before, from) = nodes.split_at(*next);
                from.iter().chain(before).find_map(|node| node.next(front, now))
            }
            Self::Drr(nodes, drr) => {
                let (lengths, queues) = lengths(nodes, front, now);
                queues[drr.choose(&lengths)?.0]
            }
            Self::Stride(nodes, stride) => {
                let (lengths, queues) = lengths(nodes, front, now);
                queues[stride.choose(&|child| lengths[child].is_some())?]
            }
            Self::Switch(nodes, to) => nodes.get((*to)?)?.next(front, now),
            Self::Rate(departures, node) => {
                if departures.is_due(now) {
                    node.next(front, now)
                } else {
                    None
                }
            }
        }
    }

    /// Like [`Self::next`], for a packet that does leave now.
    pub(super) fn take(
        &mut self,
        front: &impl Fn(usize) -> Option<usize>,
        now: u64,
    ) -> Option<usize> {
        match self {
            Self::Queue(queue) => front(*queue).map(|_| *queue),
            Self::Prio(nodes) => {
                nodes.iter_mut().find(|node| node.next(front, now).is_some())?.take(front, now)
            }
            Self::RoundRobin(nodes, next) => {
                let count = nodes.len();
                let mut turns = (0..count).map(|turn| (*next + turn) % count);
                let child = turns.find(|&child| nodes[child].next(front, now).is_some())?;
                *next = (child + 1) % count;
                nodes[child].take(front, now)
            }
            Self::Drr(nodes, drr) => {
                let child = drr.serve(&lengths(nodes, front, now).0)?;
                nodes.get_mut(child)?.take(front, now)
            }
            Self::Stride(nodes, stride) => {
                let lengths = lengths(nodes, front, now).0;
                let child = stride.serve(&|child| lengths[child].is_some())?;
                nodes.get_mut(child)?.take(front, now)
            }
            Self::Switch(nodes, to) => nodes.get_mut((*to)?)?.take(front, now),
            Self::Rate(departures, node) => {
                if !departures.is_due(now) {
                    return None;
                }
                let queue = node.take(front, now)?;
                departures.admit(front(queue)?, now);
                Some(queue)
            }
        }
    }
}

/// Deficit round robin (Shreedhar and Varghese 1995).
///
/// Each visit of a child that has packets adds the quantum to its deficit; it is served while its first packet is not
/// longer than that. A child without packets loses its deficit.
#[derive(Debug)]
pub(super) struct Drr {
    quantum: u64,
    deficits: Vec<u64>,
    /// The child whose turn it is.
    at: usize,
}

impl Drr {
    pub(super) fn new(quantum: u64, children: usize) -> Self {
        Self { quantum, deficits: vec![0; children], at: 0 }
    }

    /// The child to be served, and the number of children that are visited before it. A child that is visited again
    /// counts again.
    fn choose(&self, lengths: &Lengths) -> Option<(usize, u64)> {
        let count = self.deficits.len();
        let visits = |distance: usize| {
            let child = (self.at + distance) % count;
            let missing = lengths[child]?.saturating_sub(self.deficits[child]);
            let arrivals = missing.div_ceil(self.quantum);
            // The first child's turn has begun already: it is not arrived at.
            let rounds = if distance == 0 { arrivals } else { arrivals.max(1) - 1 };
            Some((rounds * count as u64 + distance as u64, child))
        };
        let (visits, child) = (0..count).filter_map(visits).min()?;
        Some((child, visits))
    }

    /// Serves the child of [`Self::choose`].
    fn serve(&mut self, lengths: &Lengths) -> Option<usize> {
        let (chosen, visits) = self.choose(lengths)?;
        let count = self.deficits.len();
        for distance in 0..count {
            let child = (self.at + distance) % count;
            // Arrivals at this child up to that of the chosen one.
            let rounds = (visits + count as u64 - distance as u64) / count as u64;
            let arrivals = if distance == 0 { rounds - 1 } else { rounds };
            match lengths[child] {
                Some(_) => self.deficits[child] += arrivals * self.quantum,
                None if visits >= distance as u64 => self.deficits[child] = 0,
                None => {}
            }
        }
        self.deficits[chosen] -= lengths[chosen]?;
        self.at = chosen;
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::order::read;
    use super::*;

    /// Click's `DRRSched::pull`, as often as it takes to get a packet.
    struct SlowDrr {
        quantum: u64,
        deficits: Vec<u64>,
        next: usize,
    }

    impl SlowDrr {
        fn pull(&mut self, lengths: &Lengths) -> Option<usize> {
            let count = self.deficits.len();
            if lengths[..count].iter().all(Option::is_none) {
                return None;
            }
            loop {
                match lengths[self.next] {
                    None => self.deficits[self.next] = 0,
                    Some(length) if length <= self.deficits[self.next] => {
                        self.deficits[self.next] -= length;
                        return Some(self.next);
                    }
                    Some(_) => {}
                }
                self.next = (self.next + 1) % count;
                self.deficits[self.next] += self.quantum;
            }
        }
    }

    /// Click's `StrideSched::pull`: a list in the order of passes.
    struct SlowStride(Vec<(u64, usize, u64)>);

    impl SlowStride {
        fn pull(&mut self, lengths: &Lengths) -> Option<usize> {
            self.0.sort();
            let found = self.0.iter().position(|(_, child, _)| lengths[*child].is_some())?;
            self.0[..=found].iter_mut().for_each(|(pass, _, stride)| *pass += *stride);
            Some(self.0[found].1)
        }
    }

    fn some_lengths() -> impl Strategy<Value = Vec<Vec<Option<u64>>>> {
        let length = prop_oneof![Just(None), (1u64..2000).prop_map(Some)];
        (1usize..6).prop_flat_map(move |children| {
            prop::collection::vec(prop::collection::vec(length.clone(), children), 1..100)
        })
    }

    fn padded(lengths: &[Option<u64>]) -> Lengths {
        let mut all = [None; QUEUES_MOST];
        all[..lengths.len()].copy_from_slice(lengths);
        all
    }

    proptest! {
        #[test]
        fn drr_serves_as_click_does(quantum in 1u64..3000, rounds in some_lengths()) {
            let children = rounds[0].len();
            let mut drr = Drr::new(quantum, children);
            let mut slow = SlowDrr { quantum, deficits: vec![0; children], next: 0 };
            for lengths in rounds {
                let lengths = padded(&lengths);
                prop_assert_eq!(drr.serve(&lengths), slow.pull(&lengths));
                // A child without packets has no deficit once it is visited, and none before it counts.
                for child in (0..children).filter(|&child| lengths[child].is_some()) {
                    prop_assert_eq!(drr.deficits[child], slow.deficits[child]);
                }
            }
        }

        #[test]
        fn stride_serves_as_click_does(rounds in some_lengths(), seed in any::<u64>()) {
            let mut random = fastrand::Rng::with_seed(seed);
            let tickets: Vec<u64> = rounds[0].iter().map(|_| random.u64(1..20)).collect();
            let mut stride = Stride::new(&tickets);
            let clients = stride.strides().iter().enumerate().map(|(child, &one)| (one, child, one));
            let mut slow = SlowStride(clients.collect());
            for lengths in rounds {
                let lengths = padded(&lengths);
                prop_assert_eq!(stride.serve(&|child| lengths[child].is_some()), slow.pull(&lengths));
            }
        }

        /// Whoever always has packets gets its share of the bytes, within a packet and a quantum.
        #[test]
        fn drr_shares_bytes(quantum in 100u64..2000, sizes in prop::collection::vec(60u64..1500, 2..5)) {
            let mut drr = Drr::new(quantum, sizes.len());
            let lengths = padded(&sizes.iter().map(|&size| Some(size)).collect::<Vec<_>>());
            let mut bytes = vec![0; sizes.len()];
            for _ in 0..5000 {
                let child = drr.serve(&lengths).unwrap();
                bytes[child] += sizes[child];
            }
            let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
            prop_assert!(most - least <= 2 * (quantum + 1500), "{:?}", bytes);
        }

        #[test]
        fn stride_shares_packets(tickets in prop::collection::vec(1u64..10, 2..5)) {
            let mut stride = Stride::new(&tickets);
            let lengths = padded(&vec![Some(60); tickets.len()]);
            let total: u64 = tickets.iter().sum();
            let mut served = vec![0u64; tickets.len()];
            for _ in 0..total * 100 {
                served[stride.serve(&|child| lengths[child].is_some()).unwrap()] += 1;
            }
            for (served, tickets) in served.iter().zip(&tickets) {
                prop_assert!(served.abs_diff(tickets * 100) <= 2, "{} of {}", served, tickets);
            }
        }

        /// A look is no different from what is then taken.
        #[test]
        fn next_is_what_take_takes(rounds in prop::collection::vec(any::<u8>(), 1..60)) {
            let text = "prio(rate(100pps, a[9]), round-robin(drr(70, b[9], c[9]), stride(3 d[9], 1 e[9]), f[9]), switch(1, g[9], h[9]))";
            let mut node = read(text, 1000).unwrap().0;
            for (now, round) in (0..).zip(rounds) {
                let front = |queue: usize| (round >> queue & 1 != 0).then_some(60 + queue);
                let next = node.next(&front, now);
                prop_assert_eq!(node.take(&front, now), next);
                prop_assert!(next.is_none_or(|queue| round >> queue & 1 != 0));
            }
        }
    }

    #[test]
    fn the_first_comes_first_and_turns_are_equal() {
        let all = |queue: usize| (queue < 3).then_some(60);
        let served = |text: &str, count: usize| -> Vec<usize> {
            let mut node = read(text, 1000).unwrap().0;
            (0..count).map_while(|_| node.take(&all, 1 << 20)).collect()
        };
        assert_eq!(served("prio(a[1], b[1], c[1])", 3), [0, 0, 0]);
        assert_eq!(served("round-robin(a[1], b[1], c[1])", 4), [0, 1, 2, 0]);
        assert_eq!(served("switch(2, a[1], b[1], c[1])", 2), [2, 2]);
        assert_eq!(served("switch(-1, a[1], b[1])", 2), []);
        assert_eq!(served("round-robin(a[1], prio(b[1], c[1]))", 4), [0, 1, 0, 1]);
        // A rate within a tree leaves the rest to others.
        let taken = served("prio(rate(1pps, a[1]), b[1])", 20);
        assert_eq!(taken.iter().filter(|&&queue| queue == 0).count(), 17);
    }
}
