//! Other cores, and another number of forwarders: all ports are dealt out anew, as at a start.
//!
//! ```text
//!   1. threads move to their cores, new ones begin, rings are made   what can fail fails here
//!   2. slow path workers halt
//!   3. no forwarder receives; what they had lies in rings            (an exchange, that may fail too)
//!   4. each sends what has come by rings, and gives its queues back  (an exchange)
//!   5. each gets what the new layout says                            (an exchange)
//!   6. workers go on, with the new rings; threads that are left over end
//! ```
//!
//! Between 3 and 5 packets wait in the devices' receive queues. So no flow is overtaken: what came before 3
//! has been given to a transmit queue before anything that comes after 5 is looked at.

use std::time::{Duration, Instant};

use super::super::reports::ForwarderView;
use super::*;

/// What another set of cores has brought.
pub struct Spread {
    /// What can be seen of the forwarders that are new.
    pub joined: Vec<ForwarderView>,
    /// How long nobody received, if queues were dealt out anew.
    pub pause: Option<Duration>,
}

/// A port's connections for another number of forwarders.
type Planned = (PortId, Layout, Handovers);

impl Wiring {
    /// One forwarder on each of these cores; `more` are those that there are too few of.
    ///
    /// # Errors
    /// A core that the kernel refuses, no memory for rings, a forwarder that gives nothing back; everything
    /// is as before then.
    pub async fn spread(&mut self, cores: &[usize], more: Vec<Made>) -> Result<Spread> {
        let before = self.pin(cores)?;
        let outcome = if cores.len() == self.running.len() {
            Ok(Spread { joined: Vec::new(), pause: None })
        } else {
            self.resize(cores, more).await
        };
        if outcome.is_err()
            && let Err(error) = self.pin(&before)
        {
            tracing::error!("a forwarder cannot go back to its core: {error:#}");
        }
        outcome
    }

    /// Moves the forwarders that stay, or none; which cores they had.
    fn pin(&mut self, cores: &[usize]) -> Result<Vec<usize>> {
        let mut before = Vec::new();
        for (running, &core) in self.running.iter_mut().zip(cores) {
            match running.pin(core) {
                Ok(core) => before.push(core),
                Err(error) => {
                    for (running, core) in self.running.iter_mut().zip(before) {
                        // It was there before.
                        let _ = running.pin(core);
                    }
                    return Err(error);
                }
            }
        }
        Ok(before)
    }

    async fn resize(&mut self, cores: &[usize], more: Vec<Made>) -> Result<Spread> {
        let planned = self.plan(cores.len())?;
        let (mut joining, mut joined, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let first = self.running.len();
        for (number, made) in (first..).zip(more) {
            let core = cores[number];
            joining.push(Running::start(number, made.unit, core, self.makings.eal.clone())?);
            joined.push(made.view);
            ends.push(made.ends);
        }
        for running in &mut joining {
            running.wait()?;
        }
        let halted = self.workers.halt().await;
        let begin = Instant::now();
        let parts = self.gather().await?;
        self.exchanges.set(self.running.iter().chain(&joining).map(|running| &running.exchange));
        self.running.extend(joining);
        self.deal_out(cores.len(), planned, parts).await;
        let pause = begin.elapsed();
        let homes = self.ports.iter().map(|(&port, wired)| (port, wired.home)).collect();
        halted.go(homes, cores.len(), ends);
        self.end_beyond(cores.len());
        Ok(Spread { joined, pause: Some(pause) })
    }

    /// The layouts for so many forwarders, with their rings.
    fn plan(&self, forwarders: usize) -> Result<Vec<Planned>> {
        let one = |(&port, wired): (&PortId, &Wired)| {
            let layout = Layout::new(port, wired.queues.0, wired.queues.1, forwarders);
            let handovers = self.handovers(port, &layout)?;
            Ok((port, layout, handovers))
        };
        self.ports.iter().map(one).collect()
    }

    /// Takes everything from all forwarders, or nothing. What they had on the way is sent.
    async fn gather(&mut self) -> Result<BTreeMap<PortId, Wires>> {
        let homes: Vec<_> = self.ports.iter().map(|(&port, wired)| (port, wired.home)).collect();
        let ports = self.ports.keys().copied().collect();
        let stopped = self.rewire(self.stop(ports, &homes)).await?;
        let freed = self.exchanges.exchange_idle(self.free(ports).map(replacement).collect()).await;
        let mut by_port = BTreeMap::<PortId, Wires>::new();
        for Rewiring { wires, .. } in stopped.into_iter().chain(rewirings(freed)) {
            for source in wires.rx {
                by_port.entry(source.port).or_default().rx.push(source);
            }
            for exit in wires.exits {
                by_port.entry(exit.port).or_default().exits.push(exit);
            }
        }
        Ok(by_port)
    }

    /// Gives so many forwarders everything; further ones get nothing.
    async fn deal_out(
        &mut self,
        forwarders: usize,
        planned: Vec<Planned>,
        mut parts: BTreeMap<PortId, Wires>,
    ) {
        let mut all: Vec<Wires> = self.running.iter().map(|_| Wires::default()).collect();
        for (port, layout, handovers) in planned {
            let Some(wired) = self.ports.get_mut(&port) else { continue };
            let (wires, spare) =
                (parts.remove(&port).into_iter(), std::mem::take(&mut wired.spare));
            match parts_of(port, wires.collect(), spare) {
                Ok(parts) => {
                    let laid = lay(parts, layout, handovers);
                    for (all, wires) in all.iter_mut().take(forwarders).zip(laid.wires) {
                        all.rx.extend(wires.rx);
                        all.inlets.extend(wires.inlets);
                        all.exits.extend(wires.exits);
                    }
                    *wired = laid.wired;
                }
                Err(error) => tracing::error!("{error:#}: a defect, please report"),
            }
        }
        self.exchanges.exchange_idle(all.into_iter().map(plug).map(replacement).collect()).await;
    }

    /// Ends the forwarders beyond so many, which have nothing any more.
    fn end_beyond(&mut self, forwarders: usize) {
        for running in self.running.drain(forwarders..) {
            if running.end().is_none() {
                tracing::error!("a forwarder ended by a panic: a defect, please report");
            }
        }
        self.exchanges.set(self.running.iter().map(|running| &running.exchange));
    }
}
