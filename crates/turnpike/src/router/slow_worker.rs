//! The slow path's thread: carries packets between the rings and the engine, which does the work
//! and knows neither rings nor clock.

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
use slowpath::{Command, Event, NeighbourInfo, Output, Packet, RouteAnswer, SlowPath};
use tokio::sync::{mpsc as events, oneshot};

/// Packets taken from one ring before the next has its turn.
const TURN: usize = 64;

/// The longest sleep of an idle worker: what a first ping waits at most.
const LONGEST_SLEEP: Duration = Duration::from_micros(200);

/// How often the engine looks at its timers.
const TICK: Duration = Duration::from_millis(10);

/// What the slow path counted.
#[derive(Debug, Default)]
pub struct SlowCounters {
    /// Packets taken from the forwarders.
    pub taken: Counter,
    /// Packets for the router itself that were understood.
    pub to_host: Counter,
    /// Packets that the router made.
    pub originated: Counter,
    /// Packets given to forwarders to be sent: made here, or forwarded from here.
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
}

/// Everything the thread owns.
pub struct SlowWorker {
    /// The protocols.
    pub engine: SlowPath<Frame>,
    /// One ring from each forwarder.
    pub punts: Vec<Consumer>,
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
        while !stop.load(Ordering::Relaxed) {
            self.quiescent.quiescent();
            let now = start.elapsed();
            let found = self.obey(now) + self.take_packets(now);
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
                std::thread::sleep(sleep);
            }
        }
        self.quiescent.offline();
        self.shut_down();
    }

    fn obey(&mut self, now: Duration) -> usize {
        let mut found = 0;
        while let Ok(order) = self.orders.try_recv() {
            found += 1;
            match order {
                Order::Engine(command) => self.engine.command(command, now, &mut self.outbox),
                Order::Neighbours(answer) => {
                    // Whoever asked may be gone.
                    let _ = answer.send(self.engine.neighbours(now));
                }
            }
        }
        found
    }

    fn take_packets(&mut self, now: Duration) -> usize {
        let mut found = 0;
        for ring in &mut self.punts {
            for _ in 0..TURN {
                let Some(packet) = ring.pop() else { break };
                found += 1;
                self.outbox.counters.taken.add(1);
                match Punt::from_tag(packet.tag()) {
                    Some(punt) => {
                        self.engine.packet(Frame(packet), punt, now, &mut self.outbox);
                    }
                    // Only forwarders fill this ring, and they tag what they put in.
                    None => self.outbox.counters.drops.add(DropReason::StepLost, 1),
                }
            }
        }
        found
    }

    fn shut_down(&mut self) {
        for ring in &mut self.punts {
            while ring.pop().is_some() {
                self.outbox.counters.taken.add(1);
                self.outbox.counters.drops.add(DropReason::Shutdown, 1);
            }
        }
        self.engine.shutdown(&mut self.outbox);
        self.outbox.counters.held.set(0);
    }
}
