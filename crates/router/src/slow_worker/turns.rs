//! The order of punted packets: by class, each with its rate and its share.
//!
//! ```text
//!   forwarder 0 --+- neighbour --+- port 0 --+   at most a share of a round,
//!   forwarder 1 --+              +- port 1 --+-> and as many as there are tokens --> engine
//!                 |              +- …        |
//!                 +- link -------+- port 0 --+
//!                 +- …
//! ```
//!
//! Within a class the ports that packets were received by have equal turns, one packet each, so that a
//! flood by one port delays those of another by one packet and not by a queue of its own.
//!
//! In a round each class has a number of turns, its part of [`ROUND`] by weights; unused turns are left
//! to the others, because the next round follows at once (weighted round robin). Packets beyond a
//! class's rate wait, and the forwarders see it by the backlog, and drop early: no more packets
//! wait here than a ring holds. The rates are those of all workers together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use dataplane::class::{ByClass, ClassLimits};
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::punts::ClassQueue;
use dataplane::reason::{Punt, PuntClass};
use dpdk::{Doorbell, Mbuf};
use slowpath::TokenBucket;

/// Packets of a round in which every class has all that it may have.
const ROUND: usize = 256;

/// The classes' rates, for all workers together.
pub struct ClassRates(ByClass<TokenBucket>);

impl ClassRates {
    /// A bucket for each class that holds what may come in ten milliseconds, and a few.
    pub fn new(limits: &ByClass<ClassLimits>) -> Self {
        Self(limits.map(|limits| TokenBucket::new(limits.rate, burst(limits))))
    }

    /// Other rates from now on.
    pub fn set(&self, limits: &ByClass<ClassLimits>) {
        for (bucket, limits) in self.0.iter().zip(limits) {
            bucket.set(limits.rate, burst(*limits));
        }
    }
}

fn burst(limits: ClassLimits) -> u32 {
    (limits.rate / 100).max(32)
}

/// The turns of each class in a round, by their weights.
fn quanta(limits: &ByClass<ClassLimits>) -> ByClass<usize> {
    let all: u32 = limits.iter().map(|limits| limits.weight).sum();
    let quantum = |weight: u32| (ROUND * weight as usize / all.max(1) as usize).max(1);
    limits.map(|limits| quantum(limits.weight))
}

/// The packets of a class that were taken out of the rings, by the port they were received by.
#[derive(Default)]
struct Waiting {
    /// With the forwarder that punted each.
    by_port: Vec<VecDeque<(usize, Mbuf)>>,
    /// Ports that have packets; a bit each.
    ports: u64,
    /// Packets of all ports.
    count: usize,
    /// The port that has its turn next.
    next: usize,
}

const _: () = assert!(MAX_PORTS == u64::BITS as usize, "a mask has a bit for each port");

impl Waiting {
    fn put(&mut self, port: PortId, forwarder: usize, packet: Mbuf) {
        let port = port.index();
        if self.by_port.len() <= port {
            self.by_port.resize_with(port + 1, VecDeque::new);
        }
        self.by_port[port].push_back((forwarder, packet));
        self.ports |= 1 << port;
        self.count += 1;
    }

    /// The oldest packet of the port whose turn it is.
    fn take(&mut self) -> Option<(PortId, usize, Mbuf)> {
        if self.ports == 0 {
            return None;
        }
        let behind = self.ports.rotate_right(self.next as u32).trailing_zeros() as usize;
        let port = (self.next + behind) % MAX_PORTS;
        let queue = &mut self.by_port[port];
        let (forwarder, packet) = queue.pop_front()?;
        self.ports &= !(u64::from(queue.is_empty()) << port);
        self.count -= 1;
        self.next = (port + 1) % MAX_PORTS;
        Some((PortId::new(port as u16)?, forwarder, packet))
    }
}

/// One worker's ends of the rings from all forwarders.
pub struct PuntScheduler {
    /// By forwarder.
    rings: Vec<ByClass<ClassQueue>>,
    waiting: ByClass<Waiting>,
    /// Turns in a round.
    quanta: ByClass<usize>,
    rates: Arc<ClassRates>,
}

impl PuntScheduler {
    /// `rings` has the rings from each forwarder.
    pub fn new(
        rings: Vec<ByClass<ClassQueue>>,
        limits: &ByClass<ClassLimits>,
        rates: Arc<ClassRates>,
    ) -> Self {
        Self { rings, waiting: ByClass::default(), quanta: quanta(limits), rates }
    }

    /// Packets that are put into the rings from now on ring this doorbell. False if there are packets, also
    /// such as have to wait for their class's rate.
    pub fn listen(&mut self, doorbell: &Arc<Doorbell>) -> bool {
        let none = self.waiting.iter().all(|waiting| waiting.count == 0);
        let queues = self.rings.iter_mut().flatten();
        queues.fold(none, |none, queue| queue.ring.listen(doorbell) && none)
    }

    /// Ends [`Self::listen`].
    pub fn ignore(&mut self) {
        self.rings.iter_mut().flatten().for_each(|queue| queue.ring.ignore());
    }

    /// Other weights from the next round on.
    pub fn set_weights(&mut self, limits: &ByClass<ClassLimits>) {
        self.quanta = quanta(limits);
    }

    /// One more forwarder.
    pub fn add(&mut self, rings: ByClass<ClassQueue>) {
        self.rings.push(rings);
    }

    /// A waiting packet, or one from the forwarders beyond so many, which fill their rings no more;
    /// when there is none, these forwarders are forgotten.
    pub fn pop_beyond(&mut self, forwarders: usize) -> Option<(PuntClass, Mbuf)> {
        for &class in PuntClass::ALL {
            self.collect(class, forwarders);
            if let Some(packet) = self.next(class) {
                return Some((class, packet));
            }
        }
        self.rings.truncate(forwarders);
        None
    }

    /// Returns the number of packets of the class that may be taken in this round.
    pub fn grant(&mut self, class: PuntClass, now: Duration) -> usize {
        self.collect(class, 0);
        let most = self.waiting[class.index()].count.min(self.quanta[class.index()]);
        self.rates.0[class.index()].take_up_to(most as u32, now) as usize
    }

    /// A packet of the class, of the ports in turn.
    pub fn pop(&mut self, class: PuntClass) -> Option<Mbuf> {
        if self.waiting[class.index()].count == 0 {
            self.collect(class, 0);
        }
        self.next(class)
    }

    fn next(&mut self, class: PuntClass) -> Option<Mbuf> {
        let (port, forwarder, packet) = self.waiting[class.index()].take()?;
        self.rings[forwarder][class.index()].backlog.took(port);
        Some(packet)
    }

    /// Empties the rings from the forwarders behind the first so many, which have turns alike. Their ends
    /// are bounded by the backlogs, which count what waits here too.
    fn collect(&mut self, class: PuntClass, first: usize) {
        let Self { rings, waiting, .. } = self;
        let waiting = &mut waiting[class.index()];
        let mut found = true;
        while std::mem::take(&mut found) {
            for (forwarder, rings) in rings.iter_mut().enumerate().skip(first) {
                let Some(packet) = rings[class.index()].ring.pop() else { continue };
                // Only forwarders fill these rings, and they tag what they put in.
                let port = Punt::from_tag(packet.tag()).map_or(PortId::FIRST, |punt| punt.port);
                waiting.put(port, forwarder, packet);
                found = true;
            }
        }
    }
}
