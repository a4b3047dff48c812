//! The connections of forwarders, slow path workers and ports' queues, at a start and while they run.
//!
//! A port is disconnected in an order in which what is on the way to it is sent first:
//!
//! ```text
//!   1. no forwarder receives from it, none hands packets over to its home    (one exchange)
//!   2. no slow path worker has packets for it; its host interface is returned (an order to each)
//!   3. home and sender empty the rings, send, and give their queues back     (another exchange)
//! ```
//!
//! Packets of the slow path and the kernel leave by the port's *sender*: the forwarder for control traffic if it has
//! a transmit queue of the port, else the home.
//!
//! Connecting is one exchange, and then the order to the workers. Packets put into a ring before its other
//! end has been plugged in wait there.
//!
//! For another number of forwarders, or another map of queues to cores, all ports are dealt out anew, see
//! `spread.rs`.
//!
//! For another number of slow path workers, see `workers.rs`.
//!
//! Packets that a port receives may be spread by software: a ring from each forwarder with one of its receive queues
//! to each other, which that one receives from as if it were a receive queue. Before anything else of such a
//! port is taken away, no forwarder receives from its device any more (one exchange more), so that the rings run dry.

mod exchanges;
mod layout;
mod moves;
mod slow_path;
mod spread;
#[cfg(test)]
mod tests;
mod workers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control::config::Events;
use control::cores::CorePlacement;
use dataplane::events::EventUnit;
use dataplane::exchange::Replacement;
use dataplane::forwarder::Forwarder;
use dataplane::interface::InterfaceInfo;
use dataplane::polling::RxSource;
use dataplane::port::PortId;
use dataplane::port::PortSet;
use dataplane::spread::{DEFAULT_KEY, Input, Spread as Onward, Spreader, Toeplitz};
use dataplane::wires::{Exit, Inlet, Replicas, Rewiring, TxPath, Wires};
use dpdk::{Consumer, Eal, Producer, Ring, RxQueue, TxQueue};
use nix::unistd::Pid;

pub use exchanges::{Exchanges, Hurry};
pub use layout::{CoreMap, Seat};
use layout::{Demand, Layout};
pub use moves::Move;
pub use slow_path::{SlowPathWays, WorkerEnds};
pub use spread::Spread;
pub use workers::Replaced;

use super::events::{EventMode, Opened};
use super::forwarders::{ForwarderFactory, Made, Running};
use super::host::HostInterface;
use super::last_resort::Course;
use super::pulse::PATIENCE;
use super::queues::PortPlan;
use super::slow_worker::Orders;

/// Packets that a ring between two units holds.
pub const RING_SIZE: usize = 2048;

/// Packets of the kernel that wait in the router for one port; more wait in the kernel.
pub const PRIORITY_SIZE: usize = 256;

/// The cores of forwarders, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// One forwarder is on each.
    pub forward: Vec<usize>,
    /// The forwarder for control traffic, the last, is on any of them; empty: there is none.
    pub control: Vec<usize>,
    /// The event device, whose receiver is the first.
    pub events: Option<Events>,
}

impl Places {
    /// The number of forwarders, that for control traffic included.
    pub fn len(&self) -> usize {
        self.forward.len() + usize::from(!self.control.is_empty())
    }

    /// The cores of the forwarder with this number.
    pub fn of(&self, number: usize) -> &[usize] {
        self.forward.get(number).map_or(&self.control, std::slice::from_ref)
    }
}

impl Places {
    /// Of a configuration, with these cores.
    pub fn new(placement: &CorePlacement, events: Option<&Events>) -> Self {
        let control = if placement.control_forwarder { &placement.control[..] } else { &[] };
        let forward = placement.forward.clone();
        // The same on another line is no change.
        let events = events.map(|events| Events { line: 0, ..events.clone() });
        Self { forward, control: control.to_vec(), events }
    }

    /// Forwarders that an event device gives packets to.
    fn workers(&self) -> usize {
        self.forward.len().saturating_sub(1)
    }
}

/// An open port with the queues it got.
pub struct Queues {
    /// The port.
    pub port: PortId,
    /// Its properties for steps.
    pub info: InterfaceInfo,
    /// Its receive queues.
    pub rx: Vec<RxQueue>,
    /// Its transmit queues.
    pub tx: Vec<TxQueue>,
    /// Its host interface, if it has one.
    pub host: Option<HostInterface>,
    /// The NUMA node of its device, if it is known.
    pub node: Option<usize>,
    /// Packets that the driver recommends to take at once.
    pub burst: usize,
    /// The last receive queue, and the last transmit queue, are for control traffic.
    pub control: (bool, bool),
    /// Their configuration.
    pub plan: PortPlan,
}

impl Queues {
    fn demand(&self) -> Demand {
        let (rx, tx, node) = (self.rx.len(), self.tx.len(), self.node);
        let (control_rx, control_tx) = self.control;
        Demand { rx, tx, control_rx, control_tx, node, map: self.plan.map.clone() }
    }
}

/// A host interface with the way from it to its port.
pub struct HostLink {
    /// The interface.
    pub interface: HostInterface,
    /// The ring to the port's sender; `None`: it is a VLAN's, whose frames leave as those of the slow path.
    pub priority: Option<Producer>,
}

/// A port's part of what forwarders have.
struct Parts {
    port: PortId,
    info: InterfaceInfo,
    rx: Vec<RxQueue>,
    tx: Vec<TxQueue>,
    priority: Option<Consumer>,
}

/// A connected port.
struct Wired {
    demand: Demand,
    plan: PortPlan,
    /// Packets that the driver recommends to take at once.
    burst: usize,
    layout: Layout,
    /// Transmit queues beyond one for each forwarder.
    spare: Vec<TxQueue>,
}

impl Wired {
    /// Packets are in rings between its receive queues and forwarders.
    fn is_spread(&self) -> bool {
        self.plan.has_rings() && self.layout.forwarders() > 1
    }

    /// Forwarders that send for others.
    fn senders(&self) -> [usize; 2] {
        [self.layout.home, self.layout.sender]
    }
}

/// The terms on which a port is connected.
#[derive(Clone)]
struct Terms {
    demand: Demand,
    plan: PortPlan,
    burst: usize,
    layout: Layout,
}

/// A port's connections, ready to be plugged in.
struct Laid {
    /// By forwarder.
    wires: Vec<Wires>,
    wired: Wired,
}

/// Rings from or to forwarders, where there is one.
type ByForwarder = Vec<Option<(Producer, Consumer)>>;

/// The rings of a port between forwarders.
struct Rings {
    /// To its home, from the forwarders that need one.
    handovers: ByForwarder,
    /// From each receive queue that is spread by software.
    spreads: Vec<ByForwarder>,
}

/// Has the forwarders, and connects them.
pub struct Wiring {
    /// The ways to the forwarders.
    pub exchanges: Exchanges,
    /// Those that have not begun.
    units: Vec<Forwarder>,
    /// Those that have.
    running: Vec<Running>,
    factory: ForwarderFactory,
    workers: Orders,
    ports: BTreeMap<PortId, Wired>,
    /// The forwarders' places.
    seats: Vec<Seat>,
    places: Places,
    /// The event device, if there is one.
    events: Option<EventMode>,
    /// Queues have been moved for the load, so that their numbers need not be even.
    is_by_load: bool,
}

impl Wiring {
    /// Of these forwarders, one at each place, which know no port yet, and these workers; more can be made.
    pub fn new(
        factory: ForwarderFactory,
        mut units: Vec<Forwarder>,
        workers: Orders,
        places: Places,
    ) -> Result<Self> {
        let exchanges = Exchanges::new(units.iter().map(Forwarder::exchange).collect());
        let (running, ports) = (Vec::new(), BTreeMap::new());
        let seats = factory.seats(&places);
        let (events, mut shares) = open_events(&factory, &places)?;
        for (unit, seat) in units.iter_mut().zip(&seats) {
            let (control, events) = (Some(seat.is_control), Some(shares.next()));
            unit.rewire(&mut Rewiring { control, events, ..Rewiring::default() });
        }
        let is_by_load = false;
        Ok(Self {
            exchanges,
            units,
            running,
            factory,
            workers,
            ports,
            seats,
            places,
            events,
            is_by_load,
        })
    }

    /// The event device, if there is one.
    pub fn events(&self) -> Option<&EventMode> {
        self.events.as_ref()
    }

    /// Connects ports with forwarders that do not run yet.
    pub fn connect_at_start(&mut self, ports: Vec<Queues>) -> Result<()> {
        let demands = ports.iter().map(|queues| (queues.port, queues.demand())).collect();
        let mut layouts = layout::deal(&demands, &self.seats);
        for queues in ports {
            let port = queues.port;
            let layout = layouts.remove(&port).context("a port without a layout")?;
            let (laid, link) = self.lay_new(queues, layout)?;
            for (unit, wires) in self.units.iter_mut().zip(laid.wires) {
                unit.rewire(&mut Rewiring { wires, ..Rewiring::default() });
            }
            self.enter(port, laid.wired, link);
        }
        Ok(())
    }

    /// Starts the forwarders, each on its core.
    pub fn start(&mut self) -> Result<()> {
        for (number, unit) in self.units.drain(..).enumerate() {
            let (cores, eal) = (self.places.of(number), self.factory.eal.clone());
            self.running.push(Running::start(number, unit, cores, eal)?);
        }
        // Once the router is reported ready, every forwarder is on its core.
        for running in &mut self.running {
            if let Err(error) = running.wait() {
                tracing::warn!("{error:#}; it runs on the control cores");
            }
        }
        Ok(())
    }

    /// The number of a forwarder that has ended by itself.
    pub fn dead(&self) -> Option<usize> {
        self.running.iter().position(Running::is_dead)
    }

    /// The kernel's number for the thread of each forwarder.
    pub fn threads(&self) -> impl Iterator<Item = Option<Pid>> + '_ {
        self.running.iter().map(Running::thread)
    }

    /// Core and NUMA node of each forwarder.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// Forwarders of packets to be forwarded; that for control traffic has the next number, if there is one.
    pub fn forwarders(&self) -> usize {
        layout::forwarders(&self.seats)
    }

    /// The forwarder that sends what the slow path and the kernel have for a port.
    pub fn sender(&self, port: PortId) -> Option<usize> {
        self.ports.get(&port).map(|wired| wired.layout.sender)
    }

    /// The forwarder of each receive queue of a port.
    pub fn receivers(&self, port: PortId) -> &[usize] {
        self.ports.get(&port).map_or(&[], |wired| &wired.layout.rx)
    }

    /// The transmit queue of each forwarder of a port.
    pub fn senders(&self, port: PortId) -> &[Option<usize>] {
        self.ports.get(&port).map_or(&[], |wired| &wired.layout.tx)
    }

    /// Returns the configuration of a port's queues.
    pub fn plan_of(&self, port: PortId) -> Option<&PortPlan> {
        self.ports.get(&port).map(|wired| &wired.plan)
    }

    /// Receive queues of a port that are served from another NUMA node than that of its device, with the
    /// core.
    pub fn remote(&self, port: PortId) -> Vec<(usize, usize)> {
        let Some(wired) = self.ports.get(&port) else { return Vec::new() };
        let Some(node) = wired.demand.node else { return Vec::new() };
        let far = |&(_, &seat): &(usize, &usize)| {
            let Seat { node: other, is_control, .. } = self.seats[seat];
            !is_control && other.is_some_and(|other| other != node)
        };
        let queues = wired.layout.rx.iter().enumerate().filter(far);
        queues.map(|(queue, &seat)| (queue, self.seats[seat].core)).collect()
    }

    /// The factory of further forwarders.
    pub fn factory(&self) -> &ForwarderFactory {
        &self.factory
    }

    /// Ends the forwarders and returns them; false if one panicked.
    pub fn end(&mut self, course: &Course) -> (Vec<Forwarder>, bool) {
        let all = self.running.len();
        // All at once: a blocked forwarder does not keep others from ending.
        self.running.iter().for_each(Running::stop);
        let end = |(number, running): (usize, Running)| {
            course.enter(format!("forwarder {number}"));
            running.end()
        };
        let units: Vec<_> = self.running.drain(..).enumerate().filter_map(end).collect();
        // Its scheduler has to be there until forwarders have ended.
        self.events = None;
        let complete = units.len() == all;
        (units, complete)
    }

    /// Connects a port while everything runs: it receives from now on, and packets to it are sent.
    ///
    /// # Errors
    /// No memory for rings, or a forwarder that takes nothing; the queues are dropped then, so that their
    /// device can be closed.
    pub async fn connect(&mut self, queues: Queues) -> Result<()> {
        let port = queues.port;
        let settled =
            self.ports.iter().map(|(&port, wired)| (port, wired.layout.clone())).collect();
        let demand = [(port, queues.demand())].into();
        let mut layouts = layout::deal_beside(&settled, &demand, &self.seats);
        let layout = layouts.remove(&port).context("a port without a layout")?;
        let (laid, link) = self.lay_new(queues, layout)?;
        self.rewire(laid.wires.into_iter().map(plug)).await?;
        self.enter(port, laid.wired, link);
        Ok(())
    }

    /// Disconnects a port while everything runs; packets on the way to it are sent, or dropped by name.
    /// Later packets to it are dropped as `port-down`.
    ///
    /// # Errors
    /// No such port, or a forwarder that gives nothing back; the port is connected as before then.
    pub async fn disconnect(&mut self, port: PortId) -> Result<Queues> {
        let wired = self.ports.remove(&port).with_context(|| format!("{port} is not connected"))?;
        match self.let_go(port, &wired).await {
            Ok((wires, host)) => {
                let Wired { demand, plan, burst, spare, .. } = wired;
                let Parts { info, rx, tx, .. } = parts_of(port, wires, spare)?;
                let control = (demand.control_rx, demand.control_tx);
                Ok(Queues { port, info, rx, tx, host, node: demand.node, burst, control, plan })
            }
            Err(error) => {
                self.ports.insert(port, wired);
                Err(error)
            }
        }
    }

    /// Notes a port whose wires are plugged in, and plugs in the workers.
    fn enter(&mut self, port: PortId, wired: Wired, host: Option<HostLink>) {
        self.workers.connect(port.into(), wired.layout.sender, host);
        self.ports.insert(port, wired);
    }

    /// All wires and the host interface of a port, or everything stays.
    async fn let_go(
        &self,
        port: PortId,
        wired: &Wired,
    ) -> Result<(Vec<Wires>, Option<HostInterface>)> {
        let mut paused = self.pause([port]).await?;
        let let_go = self.let_go_idle(port, wired, &mut paused).await;
        self.resume(paused).await;
        let_go
    }

    /// As [`Self::let_go`], while no packet is in an event device; `paused` has the receive queues of all ports then.
    async fn let_go_idle(
        &self,
        port: PortId,
        wired: &Wired,
        paused: &mut [Rewiring],
    ) -> Result<(Vec<Wires>, Option<HostInterface>)> {
        let ports: PortSet = [port].into_iter().collect();
        let spread = if wired.is_spread() { ports } else { PortSet::EMPTY };
        let stopped = self.stop(ports, spread, &[(port, wired.senders())]).await?;
        let link = self.workers.disconnect(port.into()).await;
        match self.rewire(self.free(ports)).await {
            Ok(freed) => {
                let wires = stopped.into_iter().flatten().chain(freed).map(|back| back.wires);
                let of_port = |source: &mut RxSource| source.port == port;
                let rx = paused.iter_mut().flat_map(|back| back.wires.rx.extract_if(.., of_port));
                let own = Wires { rx: rx.collect(), ..Wires::default() };
                Ok((wires.chain([own]).collect(), link.map(|link| link.interface)))
            }
            Err(error) => {
                self.workers.connect(port.into(), wired.layout.sender, link);
                self.take_back(stopped).await;
                Err(error)
            }
        }
    }

    /// With an event device, stops the receiver and waits until all packets have left the device. Returns the steps that
    /// undo it. `more`: ports besides those that are connected.
    async fn pause(&self, more: impl IntoIterator<Item = PortId>) -> Result<Vec<Rewiring>> {
        let Some(events) = &self.events else { return Ok(Vec::new()) };
        let ports = self.ports.keys().copied().chain(more).collect();
        let halt = |_| Rewiring { stop: ports, ..Rewiring::default() };
        let paused = self.rewire((0..self.exchanges.len()).map(halt)).await?;
        let (mut moved, mut activity) = (Instant::now(), events.device.activity());
        while events.device.in_flight() > 0 {
            let now = events.device.activity();
            if now != activity {
                (moved, activity) = (Instant::now(), now);
            }
            if moved.elapsed() > PATIENCE {
                let left = events.device.in_flight();
                self.resume(paused).await;
                bail!("event device {}: {left} packets do not leave it", events.device.name());
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        Ok(paused)
    }

    /// Gives the receiver its queues back, whatever the others do: one of them may be what the device waits for.
    async fn resume(&self, paused: Vec<Rewiring>) {
        let own = |back: Rewiring| (!back.wires.rx.is_empty()).then(|| replacement(back));
        self.exchanges.give(paused.into_iter().map(own)).await;
    }

    /// Stops all forwarders from receiving from these ports and from handing packets over to their `senders`; of those
    /// that are `spread` by software, the rings are emptied first. Returns the steps that undo it, or an error with
    /// nothing changed.
    async fn stop(
        &self,
        ports: PortSet,
        spread: PortSet,
        senders: &[(PortId, [usize; 2])],
    ) -> Result<Vec<Vec<Rewiring>>> {
        let mut done = Vec::new();
        if !spread.is_empty() {
            let halt = |_| Rewiring { stop: spread, ..Rewiring::default() };
            done.push(self.rewire((0..self.exchanges.len()).map(halt)).await?);
        }
        match self.rewire(self.stopping(ports, senders)).await {
            Ok(stopped) => {
                done.push(stopped);
                Ok(done)
            }
            Err(error) => {
                self.take_back(done).await;
                Err(error)
            }
        }
    }

    /// Undoes steps, the last one first.
    async fn take_back(&self, done: Vec<Vec<Rewiring>>) {
        for step in done.into_iter().rev() {
            if let Err(error) = self.rewire(step).await {
                tracing::error!("ports cannot be connected again: {error:#}");
            }
        }
    }

    /// For each forwarder: that it receives from these ports no more, and hands nothing over to their
    /// `senders`, which have what it has handed over by then.
    fn stopping<'a>(
        &self,
        ports: PortSet,
        senders: &'a [(PortId, [usize; 2])],
    ) -> impl Iterator<Item = Rewiring> + use<'a> {
        (0..self.exchanges.len()).map(move |forwarder| {
            let others = senders.iter().filter(move |(_, senders)| !senders.contains(&forwarder));
            let exits = others.map(|&(port, _)| Exit::none(port)).collect();
            let wires = Wires { exits, ..Wires::default() };
            Rewiring { stop: ports, drain: ports, wires, ..Rewiring::default() }
        })
    }

    /// For each forwarder: that it sends what has come for these ports, and gives back what it has of them.
    fn free(&self, ports: PortSet) -> impl Iterator<Item = Rewiring> + use<> {
        (0..self.exchanges.len()).map(move |_| {
            let exits = ports.ports().map(Exit::none).collect();
            let wires = Wires { exits, ..Wires::default() };
            Rewiring { detach: ports, wires, ..Rewiring::default() }
        })
    }

    /// Rewires each forwarder, or none. The replaced parts undo it.
    async fn rewire(&self, all: impl IntoIterator<Item = Rewiring>) -> Result<Vec<Rewiring>> {
        let new = all.into_iter().map(replacement).collect();
        Ok(rewirings(self.exchanges.exchange(new).await?))
    }

    /// Makes the connections of a new port, which wait to be plugged in.
    fn lay_new(&self, queues: Queues, layout: Layout) -> Result<(Laid, Option<HostLink>)> {
        let demand = queues.demand();
        let Queues { port, info, rx, tx, host, burst, plan, .. } = queues;
        let rings = self.rings(port, &layout, &plan, &self.seats)?;
        let (mut priority, mut link) = (None, None);
        if let Some(interface) = host {
            let (name, node) =
                (format!("priority-{}", port.index()), self.seats[layout.sender].node);
            let (producer, consumer) = ring(&self.factory.eal, &name, PRIORITY_SIZE, node)?;
            priority = Some(consumer);
            link = Some(HostLink { interface, priority: Some(producer) });
        }
        let terms = Terms { demand, plan, burst, layout };
        Ok((lay(Parts { port, info, rx, tx, priority }, terms, rings)?, link))
    }

    /// The rings of a layout, each in the memory of the forwarder that empties it.
    fn rings(
        &self,
        port: PortId,
        layout: &Layout,
        plan: &PortPlan,
        seats: &[Seat],
    ) -> Result<Rings> {
        let (eal, port) = (&self.factory.eal, port.index());
        let handover = |(forwarder, own): (usize, &Option<usize>)| {
            let (name, node) = (format!("handover-{forwarder}-{port}"), seats[layout.home].node);
            own.is_none().then(|| ring(eal, &name, RING_SIZE, node)).transpose()
        };
        let handovers = layout.tx.iter().enumerate().map(handover).collect::<Result<_>>()?;
        let mut spreads = Vec::new();
        if plan.has_rings() && layout.forwarders() > 1 {
            // To all that forward, for rules of filters may choose those that no hash leads to.
            let receivers = layout.rx.iter().filter(|receiver| Some(**receiver) != layout.control);
            for (queue, &receiver) in receivers.enumerate() {
                let to = |(forwarder, seat): (usize, &Seat)| {
                    let wanted = forwarder != receiver;
                    let name = format!("spread-{port}-{queue}-{forwarder}");
                    wanted.then(|| ring(eal, &name, RING_SIZE, seat.node)).transpose()
                };
                let forwarding = seats.iter().take(layout.forwarders()).enumerate();
                spreads.push(forwarding.map(to).collect::<Result<_>>()?);
            }
        }
        Ok(Rings { handovers, spreads })
    }
}

/// Gives every forwarder its part of a port. The rings are those that the layout asks for.
fn lay(parts: Parts, terms: Terms, rings: Rings) -> Result<Laid> {
    let Parts { port, info, rx, tx, mut priority } = parts;
    let Terms { demand, plan, burst, layout } = terms;
    let (home, sender) = (layout.home, layout.sender);
    let by_reference = tx.first().is_some_and(TxQueue::supports_multi_segment);
    let replicas = Replicas { mac: info.mac.0, by_reference };
    let mut wires: Vec<Wires> = layout.tx.iter().map(|_| Wires::default()).collect();
    let mut spreads = rings.spreads.into_iter();
    if layout.by_events {
        wires.iter_mut().for_each(|wires| wires.infos.push((port, info)));
    }
    for (queue, &forwarder) in rx.into_iter().zip(&layout.rx) {
        let mut source = RxSource::of_queue(port, info, queue);
        source.burst = plan.burst.unwrap_or(burst);
        let is_control = Some(forwarder) == layout.control;
        if layout.by_events && !is_control {
            source.spread = Some(Onward::Events);
        }
        let to = if is_control { None } else { spreads.next() };
        if let (true, Some(to)) = (plan.has_rings(), to) {
            let (mut ways, mut others) = (Vec::new(), wires.iter_mut());
            for ring in to {
                let other = others.next();
                let (way, end) = ring.unzip();
                ways.push(way);
                if let (Some(other), Some(end)) = (other, end) {
                    other.rx.push(RxSource::of_ring(port, info, end));
                }
            }
            source.spread = Some(Onward::Rings(match &plan.spread {
                Some(spread) => {
                    Spreader::new(spread.hash(), spread.table(layout.forwarders())?, ways)
                }
                None => Spreader::by_rules(Toeplitz::new(&DEFAULT_KEY, true), ways),
            }));
        }
        wires[forwarder].rx.push(source);
    }
    let mut tx: Vec<Option<TxQueue>> = tx.into_iter().map(Some).collect();
    for (forwarder, (own, ring)) in layout.tx.iter().zip(rings.handovers).enumerate() {
        let mut exit = Exit { replicas, ..Exit::none(port) };
        if let Some(queue) = own.and_then(|queue| tx.get_mut(queue)?.take()) {
            exit.path = TxPath::Queue(queue);
        } else if let Some((producer, ring)) = ring {
            exit.path = TxPath::Handover(producer);
            wires[home].inlets.push(Inlet { port: Some(port), generation: 0, ring });
        }
        if forwarder == sender {
            exit.priority = priority.take();
        }
        wires[forwarder].exits.push(exit);
    }
    let spare = tx.into_iter().flatten().collect();
    Ok(Laid { wires, wired: Wired { demand, plan, burst, layout, spare } })
}

/// A port's part of the wires that forwarders have given back.
fn parts_of(port: PortId, wires: Vec<Wires>, spare: Vec<TxQueue>) -> Result<Parts> {
    let (mut sources, mut tx, mut priority) = (Vec::new(), spare, None);
    for Wires { rx, exits, .. } in wires {
        sources.extend(rx);
        for exit in exits {
            priority = priority.or(exit.priority);
            if let TxPath::Queue(queue) = exit.path {
                tx.push(queue);
            }
        }
    }
    let info = sources.first().map(|source| source.info);
    let info = info.with_context(|| format!("{port} had no receive queue"))?;
    let queue = |source: RxSource| match source.input {
        Input::Queue(queue) => Some(queue),
        Input::Ring(_) => None,
    };
    let mut rx: Vec<RxQueue> = sources.into_iter().filter_map(queue).collect();
    rx.sort_by_key(RxQueue::index);
    tx.sort_by_key(TxQueue::index);
    Ok(Parts { port, info, rx, tx, priority })
}

/// The event device of these places, if they have one, and the forwarders' shares of it.
fn open_events(
    factory: &ForwarderFactory,
    places: &Places,
) -> Result<(Option<EventMode>, impl Iterator<Item = Box<EventUnit>> + use<>)> {
    let opened = match &places.events {
        Some(events) => Some(EventMode::open(&factory.eal, events, places.workers())?),
        None => None,
    };
    let (mode, shares) = opened.map(|Opened { mode, units }| (mode, units)).unzip();
    Ok((mode, shares.unwrap_or_default().into_iter().map(Box::new)))
}

fn plug(wires: Wires) -> Rewiring {
    Rewiring { wires, ..Rewiring::default() }
}

fn replacement(wires: Rewiring) -> Replacement {
    Replacement { wires: Some(wires), ..Replacement::default() }
}

fn rewirings(all: Vec<Replacement>) -> Vec<Rewiring> {
    all.into_iter().filter_map(|old| old.wires).collect()
}

/// A ring in the memory of its consumer's NUMA node.
fn ring(eal: &Eal, name: &str, size: usize, node: Option<usize>) -> Result<(Producer, Consumer)> {
    let node = node.and_then(|node| u32::try_from(node).ok());
    Ring::spsc_on(eal, name, size, node).with_context(|| no_memory(name))
}

fn no_memory(name: &str) -> String {
    format!("ring {name}: no memory; reserve hugepages or raise turnpike.memory {{ mbufs }}")
}
