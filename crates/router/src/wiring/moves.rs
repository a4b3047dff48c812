//! Single receive queues go from one forwarder to another, while everything else goes on.
//!
//! ```text
//!   1. no forwarder receives from the queues' ports; what waits for a burst is sent   (one exchange)
//!   2. each sends what others had handed over to it by then                           (another)
//!   3. each gets the queues that it is to have                                        (another)
//! ```
//!
//! Meanwhile packets of these ports wait in their receive queues, and other ports are served. What came before 1
//! has been given to a transmit queue before anything that comes after 3 is looked at, so no packet of a flow
//! is overtaken by a later one in the router.

use std::time::{Duration, Instant};

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

impl Wiring {
    /// The queues of a port may go to other forwarders: the configuration does not say which core serves them, and
    /// no software spreads what they receive.
    pub fn is_movable(&self, port: PortId) -> bool {
        let free = |wired: &Wired| wired.plan.map.rx.is_empty() && wired.plan.spread.is_none();
        self.ports.get(&port).is_some_and(free)
    }

    /// A forwarder is on the NUMA node of a port's device, as far as nodes are known.
    pub fn is_near(&self, port: PortId, forwarder: usize) -> bool {
        let device = self.ports.get(&port).and_then(|wired| wired.demand.node);
        let seat = self.seats.get(forwarder).and_then(|seat| seat.node);
        device.zip(seat).is_none_or(|(device, seat)| device == seat)
    }

    /// Moves receive queues; they stay there until all are dealt out anew. Returns how long nobody received from
    /// their ports.
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
