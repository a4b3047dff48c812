//! The slow path's thread: carries packets between the rings, the engine and the kernel. The engine
//! does the work and knows none of them, nor a clock.
//!
//! ```text
//!   forwarders --- control ring ------> 1. +---------+
//!              --- exceptions ring ---> 3. | engine  | ---> inject rings ---> forwarders
//!                                          +---------+
//!                                               |
//!   forwarders <-- express rings <-- 2. host interfaces (kernel)
//! ```
//!
//! In each round the control rings come first, until they are empty, then what the kernel sends,
//! then a few exceptions: a flood of packets that cannot be forwarded delays a routing protocol by
//! no more than those few.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dataplane::counters::{Counter, Drops};
use dataplane::next_hop::NextHop;
use dataplane::port::PortId;
use dataplane::reason::{DropReason, Punt};
use dataplane::tables::Tables;
use dpdk::{Consumer, Mbuf, Mempool, Producer};
use nix::poll::{PollFd, PollFlags, ppoll};
use slowpath::{Command, Event, NeighbourInfo, Output, Packet, RouteAnswer, SlowPath};
use tokio::sync::{mpsc as events, oneshot};
use wire::MacAddr;

use super::wiring::{EXPRESS_SIZE, HostLink};

/// Packets taken from one ring of exceptions before control packets are looked for again.
const TURN: usize = 32;

/// Packets taken from one control ring before anything else has its turn: all that fit into it.
const CONTROL_TURN: usize = 2048;

/// Frames taken from one host interface before the next has its turn.
const HOST_TURN: usize = 64;

/// Orders obeyed before packets have their turn.
const ORDER_TURN: usize = 1024;

/// Room for any frame that a host interface can send.
const FRAME_MOST: usize = 65_536;

/// The longest sleep of an idle worker: what a first ping waits at most.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// How often the engine looks at its timers.
const TICK: Duration = Duration::from_millis(10);

/// What the slow path counted.
#[derive(Debug, Default)]
pub struct SlowCounters {
    /// Packets taken from the forwarders.
    pub taken: Counter,
    /// Packets for the router itself that were understood, or that the kernel took.
    pub to_host: Counter,
    /// Packets that the router made.
    pub originated: Counter,
    /// Packets that the kernel sent by host interfaces.
    pub from_host: Counter,
    /// Packets given to forwarders to be sent: made here, forwarded from here, or the kernel's.
    pub injected: Counter,
    /// Drops by reason.
    pub drops: Drops,
    /// Packets that wait for a neighbour now.
    pub held: Counter,
}

/// What the owner tells the slow path.
pub enum Order {
    /// A change for the engine.
    Engine(Command),
    /// Send back the neighbour table.
    Neighbours(oneshot::Sender<Vec<NeighbourInfo>>),
}

/// Where the engine's packets and events go.
pub struct Outbox {
    /// One ring to each forwarder.
    pub injectors: Vec<Producer>,
    /// For each port, the forwarder that owns its transmit queue.
    pub homes: Vec<usize>,
    /// Buffers for packets made here.
    pub pool: Mempool,
    /// What is counted.
    pub counters: Arc<SlowCounters>,
    /// The way to the owner.
    pub events: events::UnboundedSender<Event>,
    /// Where to look up routes for ICMP errors.
    pub tables: Arc<Tables>,
    /// The ports' host interfaces, by the ports' order.
    pub hosts: Vec<Option<HostLink>>,
}

/// A packet as the engine sees it.
pub struct Frame(Mbuf);

impl Packet for Frame {
    fn bytes(&self) -> &[u8] {
        self.0.data()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    fn trim_to(&mut self, len: usize) {
        // A longer length leaves the packet as it is, as the trait asks.
        let _ = self.0.trim_to(len);
    }
}

impl Outbox {
    /// Hands a packet to the forwarder that can send it.
    fn inject(&mut self, port: PortId, mut packet: Mbuf) {
        let home = self.homes.get(port.index()).copied();
        let Some(ring) = home.and_then(|home| self.injectors.get_mut(home)) else {
            self.counters.drops.add(DropReason::PortDown, 1);
            return;
        };
        packet.set_tag(port.index() as u64);
        match ring.push(packet) {
            Ok(()) => self.counters.injected.add(1),
            Err(_) => self.counters.drops.add(DropReason::InjectFull, 1),
        }
    }
}

impl Outbox {
    fn host(&mut self, port: PortId) -> Option<&mut HostLink> {
        self.hosts.get_mut(port.index())?.as_mut()
    }

    /// Takes what the kernel sends, as much as the ports' rings have room for; the rest waits in
    /// the kernel's queue.
    fn take_from_hosts(&mut self, buffer: &mut [u8]) -> usize {
        let mut found = 0;
        for link in self.hosts.iter_mut().flatten() {
            let room = EXPRESS_SIZE.saturating_sub(link.express.len()).min(HOST_TURN);
            for _ in 0..room {
                // First the buffer: what has been read must not be lost.
                let Some(mut packet) = self.pool.alloc() else { return found };
                let Some(length) = link.interface.read(buffer) else { break };
                found += 1;
                self.counters.from_host.add(1);
                let Some(room) = packet.append(length) else {
                    // Somebody raised the interface's MTU above what the port can send.
                    self.counters.drops.add(DropReason::TooBig, 1);
                    continue;
                };
                room.copy_from_slice(&buffer[..length]);
                match link.express.push(packet) {
                    Ok(()) => self.counters.injected.add(1),
                    Err(_) => self.counters.drops.add(DropReason::InjectFull, 1),
                }
            }
        }
        found
    }

    /// Waits until the kernel sends something, at most so long.
    fn wait(&self, longest: Duration) {
        let links = self.hosts.iter().flatten().filter(|link| link.express.len() < EXPRESS_SIZE);
        let fds = links.filter_map(|link| link.interface.poll_fd());
        let mut polled: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        if polled.is_empty() {
            std::thread::sleep(longest);
        } else {
            // An error (a signal) ends the wait early, which harms nothing.
            let _ = ppoll(&mut polled, Some(longest.into()), None);
        }
    }
}

impl Output<Frame> for Outbox {
    fn forward(&mut self, port: PortId, packet: Frame) {
        self.inject(port, packet.0);
    }

    fn originate(&mut self, port: PortId, frame: &[u8]) {
        // Without a free buffer the packet was never made, so it is not counted as one.
        if let Some(packet) = self.pool.copy_of(frame) {
            self.counters.originated.add(1);
            self.inject(port, packet);
        }
    }

    fn to_host(&mut self, _: Frame) {
        self.counters.to_host.add(1);
    }

    fn deliver(&mut self, port: PortId, packet: Frame) {
        let Some(link) = self.host(port) else {
            return self.counters.drops.add(DropReason::NotLocal, 1);
        };
        match link.interface.write(packet.bytes()) {
            Ok(()) => self.counters.to_host.add(1),
            Err(reason) => self.counters.drops.add(reason, 1),
        }
    }

    fn drop(&mut self, _: Frame, reason: DropReason) {
        self.counters.drops.add(reason, 1);
    }

    fn event(&mut self, event: Event) {
        // The owner is gone only while the router stops.
        let _ = self.events.send(event);
    }

    fn route(&self, destination: IpAddr, flow_hash: u32) -> RouteAnswer {
        let tables = &self.tables;
        let mut next_hop_id = match destination {
            IpAddr::V4(address) => tables.fib4.lookup(address),
            IpAddr::V6(address) => tables.fib6.lookup(address),
        };
        let mut hop = tables.next_hops.get(next_hop_id);
        if hop.is_group() {
            next_hop_id = tables.next_hops.select(hop, flow_hash);
            hop = tables.next_hops.get(next_hop_id);
        }
        RouteAnswer { next_hop_id, hop: NextHop::from(hop) }
    }

    fn next_hop(&self, id: u16) -> NextHop {
        NextHop::from(self.tables.next_hops.get(id))
    }

    fn has_joined(&mut self, port: PortId, group: MacAddr) -> bool {
        self.host(port).is_some_and(|link| link.interface.has_joined(group))
    }
}

/// Everything the thread owns.
pub struct SlowWorker {
    /// The protocols.
    pub engine: SlowPath<Frame>,
    /// One ring from each forwarder, for packets that concern the router itself.
    pub control: Vec<Consumer>,
    /// One ring from each forwarder, for other packets.
    pub exceptions: Vec<Consumer>,
    /// Where results go.
    pub outbox: Outbox,
    /// What the owner says.
    pub orders: mpsc::Receiver<Order>,
    /// Reports that no reference into the tables is held.
    pub quiescent: dpdk::qsbr::Reader,
}

impl SlowWorker {
    /// Runs until `stop` is set, then drops what it holds.
    pub fn run(&mut self, stop: &AtomicBool) {
        self.quiescent.online();
        let start = Instant::now();
        let mut next_tick = Duration::ZERO;
        let mut sleep = Duration::ZERO;
        let mut buffer = vec![0; FRAME_MOST];
        while !stop.load(Ordering::Relaxed) {
            self.quiescent.quiescent();
            let now = start.elapsed();
            let mut found = self.obey(now) + self.take_control(now);
            found += self.outbox.take_from_hosts(&mut buffer) + self.take_exceptions(now);
            let tick = now >= next_tick;
            if tick {
                self.engine.tick(now, &mut self.outbox);
                next_tick = now + TICK;
            }
            if tick || found > 0 {
                self.outbox.counters.held.set(self.engine.held() as u64);
            }
            sleep = if found > 0 {
                Duration::ZERO
            } else {
                (sleep * 2).clamp(Duration::from_micros(5), LONGEST_SLEEP)
            };
            if !sleep.is_zero() {
                self.outbox.wait(sleep);
            }
        }
        self.quiescent.offline();
        self.shut_down();
    }

    fn obey(&mut self, now: Duration) -> usize {
        let mut found = 0;
        while found < ORDER_TURN
            && let Ok(order) = self.orders.try_recv()
        {
            found += 1;
            match order {
                Order::Engine(command) => self.command(command, now),
                Order::Neighbours(answer) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.engine.neighbours(now));
                }
            }
        }
        found
    }

    fn command(&mut self, command: Command, now: Duration) {
        let command = match command {
            // The forwarders' steps and the engine are to cut at the same length, and a device
            // sends nothing that is longer than what it was opened for.
            Command::Mtu { port, mtu } => {
                let tables = &self.outbox.tables;
                let most = tables.ports.get(port.index()).map_or(0, |info| info.mtu);
                let mtu = mtu.min(most);
                tables.mtus.set(port, mtu);
                Command::Mtu { port, mtu }
            }
            other => other,
        };
        self.engine.command(command, now, &mut self.outbox);
    }

    fn take_control(&mut self, now: Duration) -> usize {
        let Self { engine, control, outbox, .. } = self;
        control.iter_mut().map(|ring| take(engine, ring, CONTROL_TURN, now, outbox)).sum()
    }

    fn take_exceptions(&mut self, now: Duration) -> usize {
        let Self { engine, exceptions, outbox, .. } = self;
        exceptions.iter_mut().map(|ring| take(engine, ring, TURN, now, outbox)).sum()
    }

    fn shut_down(&mut self) {
        for ring in self.control.iter_mut().chain(&mut self.exceptions) {
            while ring.pop().is_some() {
                self.outbox.counters.taken.add(1);
                self.outbox.counters.drops.add(DropReason::Shutdown, 1);
            }
        }
        self.engine.shutdown(&mut self.outbox);
        self.outbox.counters.held.set(0);
    }
}

/// Gives the engine up to `most` packets from a ring; returns how many there were.
fn take(
    engine: &mut SlowPath<Frame>,
    ring: &mut Consumer,
    most: usize,
    now: Duration,
    outbox: &mut Outbox,
) -> usize {
    for found in 0..most {
        let Some(packet) = ring.pop() else { return found };
        outbox.counters.taken.add(1);
        match Punt::from_tag(packet.tag()) {
            Some(punt) => engine.packet(Frame(packet), punt, now, outbox),
            // Only forwarders fill these rings, and they tag what they put in.
            None => outbox.counters.drops.add(DropReason::StepLost, 1),
        }
    }
    most
}
