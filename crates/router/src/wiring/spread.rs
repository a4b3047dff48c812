//! Other cores, another number of forwarders, another map of queues to cores: all ports are dealt out anew,
//! as at a start. The same happens when added and removed ports have left one forwarder with two queues more than
//! another.
//!
//! ```text
//!   1. threads move to their cores, new ones begin, rings are made   what can fail fails here
//!   2. slow path workers halt
//!   3. no forwarder receives; their packets lie in rings             (an exchange, that may fail too)
//!   4. each sends the packets in its rings, and returns its queues   (an exchange)
//!   5. each gets what the new layout says                            (an exchange)
//!   6. workers continue, with the new rings; threads that are left over end
//! ```
//!
//! With an event device, packets leave it before 3. Where another is wanted, or another number of forwarders, it is opened
//! at 1 beside the present one.
//!
//! Between 3 and 5 packets wait in the devices' receive queues. So no flow is overtaken: each packet received before
//! 3 has been given to a transmit queue before any packet received after 5 is processed. (Of ports that are
//! spread by software, 3 is two exchanges: see `wiring.rs`.)

use std::time::{Duration, Instant};

use super::super::queues::QueuePlans;
use super::super::reports::ForwarderView;
use super::*;

/// The result of a change to another set of cores.
pub struct Spread {
    /// Views of the new forwarders.
    pub joined: Vec<ForwarderView>,
    /// The time during which no forwarder received, if queues were dealt out anew.
    pub pause: Option<Duration>,
}

/// A port's connections for other forwarders.
type Planned = (PortId, Terms, Rings);

impl Wiring {
    /// One forwarder at each of these places, which serve queues by these plans; `more` are those that there
    /// are too few of.
    ///
    /// # Errors
    /// A core that the kernel refuses, no memory for rings, a forwarder that gives nothing back; everything
    /// is as before then.
    pub async fn spread(
        &mut self,
        places: &Places,
        plans: &QueuePlans,
        more: Vec<Made>,
    ) -> Result<Spread> {
        let seats = self.factory.seats(places);
        let terms = self.terms(plans, &seats);
        let is_other = self.is_other(&terms, (&seats, places));
        let before = self.pin(places)?;
        let outcome = match is_other {
            true => self.resize((&seats, places), terms, more).await,
            false => Ok(Spread { joined: Vec::new(), pause: None }),
        };
        match &outcome {
            Ok(_) => (self.seats, self.places) = (seats, places.clone()),
            Err(_) => self.pin_back(before),
        }
        outcome
    }

    /// Returns the terms on which ports are to be connected.
    fn terms(&self, plans: &QueuePlans, seats: &[Seat]) -> Vec<(PortId, Terms)> {
        let plan_of = |port: &PortId, wired: &Wired| plans.get(port).unwrap_or(&wired.plan).clone();
        let mut demands = BTreeMap::new();
        for (&port, wired) in &self.ports {
            let map = plan_of(&port, wired).map;
            demands.insert(port, Demand { map, ..wired.demand.clone() });
        }
        let mut layouts = layout::deal(&demands, seats);
        let terms = |(port, demand): (PortId, Demand)| {
            let (wired, layout) = (self.ports.get(&port)?, layouts.remove(&port)?);
            let (plan, burst) = (plan_of(&port, wired), wired.burst);
            Some((port, Terms { demand, plan, burst, layout }))
        };
        demands.into_iter().filter_map(terms).collect()
    }

    /// Queues have to move: other forwarders or plans ask for it, or the load is uneven and need not be.
    fn is_other(&self, terms: &[(PortId, Terms)], (seats, places): (&[Seat], &Places)) -> bool {
        let planned = |port: &PortId, terms: &Terms| {
            self.ports.get(port).is_some_and(|wired| wired.plan != terms.plan)
        };
        let laid_out = |port: &PortId, terms: &Terms| {
            self.ports.get(port).is_some_and(|wired| wired.layout != terms.layout)
        };
        let now = self.ports.values().map(|wired| &wired.layout);
        let uneven = !self.is_by_load
            && layout::is_uneven(now, self.forwarders())
            && !layout::is_uneven(
                terms.iter().map(|(_, terms)| &terms.layout),
                layout::forwarders(seats),
            );
        seats.len() != self.seats.len()
            || places.events != self.places.events
            || layout::control(seats) != layout::control(&self.seats)
            || terms.iter().any(|(port, terms)| planned(port, terms))
            || (uneven || seats != self.seats)
                && terms.iter().any(|(port, terms)| laid_out(port, terms))
    }

    /// Moves the forwarders that stay, or none; which cores they had.
    fn pin(&mut self, places: &Places) -> Result<Vec<Vec<usize>>> {
        let mut before = Vec::new();
        for number in 0..self.running.len().min(places.len()) {
            match self.running[number].pin(places.of(number)) {
                Ok(cores) => before.push(cores),
                Err(error) => {
                    self.pin_back(before);
                    return Err(error);
                }
            }
        }
        Ok(before)
    }

    /// Moves forwarders to the cores that they had.
    fn pin_back(&mut self, before: Vec<Vec<usize>>) {
        for (running, cores) in self.running.iter_mut().zip(before) {
            if let Err(error) = running.pin(&cores) {
                tracing::error!("a forwarder cannot go back to its core: {error:#}");
            }
        }
    }

    async fn resize(
        &mut self,
        (seats, places): (&[Seat], &Places),
        terms: Vec<(PortId, Terms)>,
        more: Vec<Made>,
    ) -> Result<Spread> {
        let planned = self.with_rings(terms, seats)?;
        let stays =
            places.events == self.places.events && places.workers() == self.places.workers();
        // Beside the present one, which packets leave before.
        let opened = if stays { None } else { Some(open_events(&self.factory, places)?) };
        let (events, shares) = opened.unzip();
        let (mut joining, mut joined, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let first = self.running.len();
        for (number, made) in (first..).zip(more) {
            let (cores, eal) = (places.of(number), self.factory.eal.clone());
            joining.push(Running::start(number, made.unit, cores, eal)?);
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
        self.deal_out(seats, planned, parts, shares).await;
        if let Some(events) = events {
            // The former one has no packet and no forwarder any more.
            self.events = events;
        }
        self.is_by_load = false;
        let pause = begin.elapsed();
        let senders =
            self.ports.iter().map(|(&port, wired)| (port.into(), wired.layout.sender)).collect();
        halted.go(senders, seats.len(), ends);
        self.end_beyond(seats.len());
        Ok(Spread { joined, pause: Some(pause) })
    }

    /// The rings that ports need.
    fn with_rings(&self, terms: Vec<(PortId, Terms)>, seats: &[Seat]) -> Result<Vec<Planned>> {
        let one = |(port, terms): (PortId, Terms)| {
            let rings = self.rings(port, &terms.layout, &terms.plan, seats)?;
            Ok((port, terms, rings))
        };
        terms.into_iter().map(one).collect()
    }

    /// Takes everything from all forwarders, or nothing. Packets on the way are sent.
    async fn gather(&mut self) -> Result<BTreeMap<PortId, Wires>> {
        let senders: Vec<_> =
            self.ports.iter().map(|(&port, wired)| (port, wired.senders())).collect();
        let ports = self.ports.keys().copied().collect();
        let spread = self.ports.iter().filter(|(_, wired)| wired.is_spread());
        let spread = spread.map(|(&port, _)| port).collect();
        let paused = self.pause([]).await?;
        let stopped = match self.stop(ports, spread, &senders).await {
            Ok(stopped) => stopped,
            Err(error) => {
                self.resume(paused).await;
                return Err(error);
            }
        };
        let freed = self.exchanges.exchange_idle(self.free(ports).map(replacement).collect()).await;
        let mut by_port = BTreeMap::<PortId, Wires>::new();
        let all = paused.into_iter().chain(stopped.into_iter().flatten());
        for Rewiring { wires, .. } in all.chain(rewirings(freed)) {
            for source in wires.rx {
                by_port.entry(source.port).or_default().rx.push(source);
            }
            for exit in wires.exits {
                by_port.entry(exit.port).or_default().exits.push(exit);
            }
        }
        Ok(by_port)
    }

    /// Gives the forwarders at these seats everything; further ones get nothing.
    async fn deal_out(
        &mut self,
        seats: &[Seat],
        planned: Vec<Planned>,
        mut parts: BTreeMap<PortId, Wires>,
        mut shares: Option<impl Iterator<Item = Box<EventUnit>>>,
    ) {
        let mut all: Vec<Wires> = self.running.iter().map(|_| Wires::default()).collect();
        for (port, terms, rings) in planned {
            let Some(wired) = self.ports.get_mut(&port) else { continue };
            let (wires, spare) =
                (parts.remove(&port).into_iter(), std::mem::take(&mut wired.spare));
            let parts = parts_of(port, wires.collect(), spare);
            match parts.and_then(|parts| lay(parts, terms, rings)) {
                Ok(laid) => {
                    for (all, wires) in all.iter_mut().take(seats.len()).zip(laid.wires) {
                        all.rx.extend(wires.rx);
                        all.inlets.extend(wires.inlets);
                        all.exits.extend(wires.exits);
                        all.infos.extend(wires.infos);
                    }
                    *wired = laid.wired;
                }
                Err(error) => tracing::error!("{error:#}: a defect, please report"),
            }
        }
        let rewirings = all.into_iter().enumerate().map(|(number, wires)| Rewiring {
            control: seats.get(number).map(|seat| seat.is_control),
            events: shares.as_mut().map(Iterator::next),
            ..plug(wires)
        });
        self.exchanges.exchange_idle(rewirings.map(replacement).collect()).await;
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
