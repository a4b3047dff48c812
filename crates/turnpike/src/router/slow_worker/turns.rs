//! Whose turn it is: punted packets by class, each with its rate and its share.
//!
//! ```text
//!   forwarder 0 --+- neighbour -+   at most a share of a round,
//!   forwarder 1 --+             +-> and as many as there are tokens --> engine
//!                 +- routing ---+
//!                 +- …
//! ```
//!
//! In a round each class has a number of turns, its part of [`ROUND`] by shares; what it leaves, the
//! others have, because the next round follows at once (weighted round robin). What a class's rate
//! does not allow stays in its ring, where the forwarders see it and drop early. The rates are those
//! of all workers together.

use std::sync::Arc;
use std::time::Duration;

use dataplane::class::{ByClass, ClassLimits};
use dataplane::reason::PuntClass;
use dpdk::{Consumer, Mbuf};
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

/// The turns of each class in a round, by their shares.
fn quanta(limits: &ByClass<ClassLimits>) -> ByClass<usize> {
    let all: u32 = limits.iter().map(|limits| limits.share).sum();
    let quantum = |share: u32| (ROUND * share as usize / all.max(1) as usize).max(1);
    limits.map(|limits| quantum(limits.share))
}

/// One worker's ends of the rings from all forwarders.
pub struct Turns {
    /// By forwarder.
    rings: Vec<ByClass<Consumer>>,
    /// Turns in a round.
    quanta: ByClass<usize>,
    rates: Arc<ClassRates>,
    /// The forwarder that is looked at next.
    next: usize,
}

impl Turns {
    /// `rings` has the rings from each forwarder.
    pub fn new(
        rings: Vec<ByClass<Consumer>>,
        limits: &ByClass<ClassLimits>,
        rates: Arc<ClassRates>,
    ) -> Self {
        Self { rings, quanta: quanta(limits), rates, next: 0 }
    }

    /// Other shares from the next round on.
    pub fn set_shares(&mut self, limits: &ByClass<ClassLimits>) {
        self.quanta = quanta(limits);
    }

    /// One more forwarder.
    pub fn add(&mut self, rings: ByClass<Consumer>) {
        self.rings.push(rings);
    }

    /// A packet of a forwarder beyond so many, which fill their rings no more; when there is none, these
    /// forwarders are forgotten.
    pub fn pop_beyond(&mut self, forwarders: usize) -> Option<(PuntClass, Mbuf)> {
        for rings in self.rings.iter_mut().skip(forwarders) {
            for &class in PuntClass::ALL {
                if let Some(packet) = rings[class.index()].pop() {
                    return Some((class, packet));
                }
            }
        }
        self.rings.truncate(forwarders);
        self.next = 0;
        None
    }

    /// How many packets of the class may be taken in this round.
    pub fn grant(&self, class: PuntClass, now: Duration) -> usize {
        let waiting: usize = self.rings.iter().map(|rings| rings[class.index()].len()).sum();
        let most = waiting.min(self.quanta[class.index()]);
        self.rates.0[class.index()].take_up_to(most as u32, now) as usize
    }

    /// A packet of the class, from the forwarders in turn.
    pub fn pop(&mut self, class: PuntClass) -> Option<Mbuf> {
        let forwarders = self.rings.len();
        for _ in 0..forwarders {
            let packet = self.rings[self.next][class.index()].pop();
            self.next = (self.next + 1) % forwarders;
            if packet.is_some() {
                return packet;
            }
        }
        None
    }
}
