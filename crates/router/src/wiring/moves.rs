//! Single receive queues go from one forwarder to another, and entries of an RSS table from one queue to another, while
//! everything else continues.
//!
//! ```text
//!   1. no forwarder receives from the queues' ports; partial bursts are sent          (one exchange)
//!   2. each sends what others had handed over to it by then                           (another)
//!   3. each gets the queues that it is to have                                        (another)
//! ```
//!
//! Meanwhile packets of these ports wait in their receive queues, and other ports are served. Each packet received
//! before 1 has been given to a transmit queue before any packet received after 3 is processed, so no packet of a flow
//! is overtaken by a later one in the router.
//!
//! If entries of the table move, earlier packets of their flows lie in the old queue, and later ones arrive in the new
//! one. So the table is written between 2 and 3. Before 3 the old queue is emptied by the forwarder that has it, a
//! batch at a time, between which it serves its other ports:
//!
//! ```text
//!   3. the owner writes the table: packets of these entries wait in the new queue
//!   4. the forwarder of the old queue takes what lies there, and sends it            (some exchanges)
//!   5. each sends what others had handed over to it by then                          (another)
//!   6. each gets its queues back                                                     (another)
//! ```
//!
//! The old queue is empty when it was found so twice, or when as many packets have been taken as it has descriptors:
//! further packets arrived after the table's change.

use std::time::{Duration, Instant};

use dataplane::batch::BATCH_MAX;

use super::*;

/// A receive queue that is to go to another forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Its port.
    pub port: PortId,
    /// Its number.
    pub queue: usize,
    /// The forwarder that has it.
    pub from: usize,
    /// The one that gets it.
    pub to: usize,
}

/// Looks at a queue that find it empty before it is. The device may still be writing a packet that it had
/// assigned before.
const EMPTY: usize = 2;

impl Wiring {
    /// No software spreads what a port receives.
    pub fn spreads_by_device(&self, port: PortId) -> bool {
        self.ports.get(&port).is_some_and(|wired| wired.plan.spread.is_none())
    }

    /// The queues of a port may go to other forwarders: the configuration does not say which core serves them, and
    /// neither software nor an event device spreads what they receive.
    pub fn is_movable(&self, port: PortId) -> bool {
        let free = |wired: &Wired| {
            wired.plan.map.rx.is_empty() && !wired.plan.has_rings() && !wired.layout.by_events
        };
        self.ports.get(&port).is_some_and(free)
    }

    /// Returns the first receive queue of a port that each forwarder has.
    pub fn queues_of(&self, port: PortId) -> Vec<Option<u16>> {
        let Some(Wired { layout, .. }) = self.ports.get(&port) else { return Vec::new() };
        let first = |of: usize| layout.rx.iter().position(|&forwarder| forwarder == of);
        (0..layout.forwarders()).map(|of| first(of).map(|queue| queue as u16)).collect()
    }

    /// A forwarder is on the NUMA node of a port's device, as far as nodes are known.
    pub fn is_near(&self, port: PortId, forwarder: usize) -> bool {
        let device = self.ports.get(&port).and_then(|wired| wired.demand.node);
        let seat = self.seats.get(forwarder).and_then(|seat| seat.node);
        device.zip(seat).is_none_or(|(device, seat)| device == seat)
    }

    /// Moves receive queues; they stay there until all are dealt out anew. Returns the time during which no
    /// forwarder received from their ports.
    ///
    /// # Errors
    /// A forwarder that gives nothing back; everything is as before then.
    pub async fn move_queues(&mut self, moves: &[Move]) -> Result<Duration> {
        let ports: PortSet = moves.iter().map(|one| one.port).collect();
        let begin = Instant::now();
        let stopped =
            self.rewire(self.each(|| Rewiring { stop: ports, ..Rewiring::default() })).await?;
        let drain = self.each(|| Rewiring { drain: ports, ..Rewiring::default() });
        if let Err(error) = self.rewire(drain).await {
            self.take_back(vec![stopped]).await;
            return Err(error);
        }
        for &Move { port, queue, to, .. } in moves {
            if let Some(forwarder) =
                self.ports.get_mut(&port).and_then(|wired| wired.layout.rx.get_mut(queue))
            {
                *forwarder = to;
            }
        }
        let all = self.by_layout(stopped.into_iter().flat_map(|back| back.wires.rx));
        self.exchanges.exchange_idle(all.into_iter().map(plug).map(replacement).collect()).await;
        self.is_by_load = true;
        Ok(begin.elapsed())
    }

    /// Has a device bring packets of some flows to other queues than to this one, from which flows may go by now: of
    /// `size` descriptors. Returns the time during which no forwarder received from its port.
    ///
    /// # Errors
    /// A forwarder that gives nothing back, or the error of `write`; everything is as before then.
    pub async fn move_entries(
        &mut self,
        (port, queue, size): (PortId, usize, usize),
        write: impl FnOnce() -> Result<()>,
    ) -> Result<Duration> {
        let begin = Instant::now();
        let ports = PortSet::from_iter([port]);
        let stopped =
            self.rewire(self.each(|| Rewiring { stop: ports, ..Rewiring::default() })).await?;
        let drain = || self.each(|| Rewiring { drain: ports, ..Rewiring::default() });
        if let Err(error) = self.rewire(drain()).await {
            self.take_back(vec![stopped]).await;
            return Err(error);
        }
        let mut sources: Vec<_> = stopped.into_iter().flat_map(|back| back.wires.rx).collect();
        let written = write();
        if written.is_ok() {
            self.empty(&mut sources, queue, size).await;
            let drain = drain().map(replacement).collect();
            self.exchanges.exchange_idle(drain).await;
        }
        let all = self.by_layout(sources.into_iter());
        self.exchanges.exchange_idle(all.into_iter().map(plug).map(replacement).collect()).await;
        written.map(|()| begin.elapsed())
    }

    /// Has the forwarder of a receive queue forward what lies in it, of `size` descriptors.
    async fn empty(&self, sources: &mut Vec<RxSource>, queue: usize, size: usize) {
        let is_it = |source: &RxSource| match &source.input {
            Input::Queue(one) => usize::from(one.index()) == queue,
            Input::Ring(_) => false,
        };
        let (mut taken, mut empty) = (0, 0);
        while taken < size + BATCH_MAX && empty < EMPTY {
            let Some(at) = sources.iter().position(is_it) else { return };
            let mut all = self.by_layout(std::iter::once(sources.swap_remove(at)));
            let take = |wires: Wires| match wires.rx.is_empty() {
                true => plug(wires),
                false => Rewiring { take: BATCH_MAX, wires, ..Rewiring::default() },
            };
            let new = all.drain(..).map(take).map(replacement).collect();
            let back = rewirings(self.exchanges.exchange_idle(new).await);
            let missing: usize = back.iter().map(|back| back.take).sum();
            sources.extend(back.into_iter().flat_map(|back| back.wires.rx));
            taken += BATCH_MAX - missing.min(BATCH_MAX);
            empty = if missing == BATCH_MAX { empty + 1 } else { 0 };
        }
    }

    /// One of these for each forwarder.
    fn each(&self, one: impl Fn() -> Rewiring) -> impl Iterator<Item = Rewiring> {
        (0..self.exchanges.len()).map(move |_| one())
    }

    /// Receive queues, to the forwarders that the layouts say.
    fn by_layout(&self, sources: impl Iterator<Item = RxSource>) -> Vec<Wires> {
        let mut all: Vec<Wires> = self.running.iter().map(|_| Wires::default()).collect();
        for source in sources {
            let Input::Queue(queue) = &source.input else { continue };
            let served = self.ports.get(&source.port).map(|wired| &wired.layout.rx);
            let forwarder = served.and_then(|rx| rx.get(usize::from(queue.index()))).copied();
            all[forwarder.unwrap_or(0)].rx.push(source);
        }
        all
    }
}
