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
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

/// Milliseconds from midnight to midnight.
const MILLIS_OF_DAY: u128 = 86_400_000;

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
    /// The kernel takes all multicasts on a port's host interface, or only those joined.
    AllMulticast {
        /// The port.
        port: PortId,
        /// All.
        on: bool,
    },
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

    fn time_of_day(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Duration::from_millis((now.as_millis() % MILLIS_OF_DAY) as u64)
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
            let found = self.round(now, &mut buffer);
            let tick = now >= next_tick;
            if tick {
                self.engine.tick(now, &mut self.outbox);
                self.outbox.tables.redirects.open();
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

    /// One turn of everybody; returns how much there was to do. `buffer` has room for a frame.
    fn round(&mut self, now: Duration, buffer: &mut [u8]) -> usize {
        self.obey(now)
            + self.take_control(now)
            + self.outbox.take_from_hosts(buffer)
            + self.take_exceptions(now)
    }

    fn obey(&mut self, now: Duration) -> usize {
        let mut found = 0;
        while found < ORDER_TURN
            && let Ok(order) = self.orders.try_recv()
        {
            found += 1;
            match order {
                Order::Engine(command) => self.command(command, now),
                Order::AllMulticast { port, on } => {
                    if let Some(link) = self.outbox.host(port) {
                        link.interface.take_all_multicasts(on);
                    }
                }
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::{Mutex, OnceLock};

    use dataplane::flow::FlowHash;
    use dataplane::next_hop::NextHopTable;
    use dataplane::port::{Mtus, PortInfo, RedirectGates, ReversePath};
    use dataplane::reason::PuntReason;
    use dpdk::{Eal, MempoolConfig, Ring};
    use fib::{Algorithm, NoReaders};

    use super::super::host::{FrameDevice, HostInterface};
    use super::*;

    /// Packet buffers for all tests.
    fn shared() -> &'static (Arc<Eal>, Mempool) {
        static DPDK: OnceLock<(Arc<Eal>, Mempool)> = OnceLock::new();
        DPDK.get_or_init(|| {
            let eal = crate::testing::eal();
            let name = "slow-worker".to_owned();
            let config = MempoolConfig { name, count: 4095, cache: 0, data_room: 2048 };
            let pool = Mempool::new(&eal, &config).expect("the memory holds 4095 packets");
            (eal, pool)
        })
    }

    /// The kernel, as the tests have it.
    #[derive(Default)]
    struct Kernel {
        /// What it sends.
        sends: VecDeque<Vec<u8>>,
        /// What it got.
        got: Vec<Vec<u8>>,
        /// What it says instead of taking a frame.
        refuses: Option<i32>,
    }

    struct Device(Arc<Mutex<Kernel>>, io::PipeReader);

    impl FrameDevice for Device {
        fn read(&self, frame: &mut [u8]) -> io::Result<usize> {
            let sent = self.0.lock().unwrap().sends.pop_front();
            let sent = sent.ok_or(io::Error::from(io::ErrorKind::WouldBlock))?;
            frame[..sent.len()].copy_from_slice(&sent);
            Ok(sent.len())
        }

        fn write(&self, frame: &[u8]) -> io::Result<()> {
            let mut kernel = self.0.lock().unwrap();
            if let Some(errno) = kernel.refuses {
                return Err(io::Error::from_raw_os_error(errno));
            }
            kernel.got.push(frame.to_vec());
            Ok(())
        }

        fn fd(&self) -> BorrowedFd<'_> {
            std::os::fd::AsFd::as_fd(&self.1)
        }
    }

    /// A slow path with one port that has a host interface, and everything around it.
    struct Lab {
        worker: SlowWorker,
        kernel: Arc<Mutex<Kernel>>,
        control: Producer,
        exceptions: Producer,
        express: Consumer,
        orders: mpsc::Sender<Order>,
        _writer: io::PipeWriter,
    }

    impl Lab {
        fn new() -> Self {
            let (eal, pool) = shared();
            let ring = |name| Ring::spsc(eal, name, 2048).unwrap();
            let (control, control_out) = ring("control");
            let (exceptions, exceptions_out) = ring("exceptions");
            let (express, express_out) = Ring::spsc(eal, "express", EXPRESS_SIZE).unwrap();
            let kernel = Arc::new(Mutex::new(Kernel::default()));
            let (reader, writer) = io::pipe().unwrap();
            let interface = HostInterface::for_test(Box::new(Device(kernel.clone(), reader)));
            let mac = MacAddr([2, 0, 0, 0, 0, 1]);
            let info = PortInfo {
                mac,
                mtu: 1500,
                partial_checksums: false,
                redirects: false,
                host: true,
                reverse_path: ReversePath::Any,
            };
            let fib4 = fib::new_ipv4(Algorithm::Reference, Box::new(NoReaders)).unwrap();
            let fib6 = fib::new_ipv6(Algorithm::Reference, Box::new(NoReaders)).unwrap();
            let tables = Tables {
                fib4: fib4.reader(),
                fib6: fib6.reader(),
                next_hops: Arc::new(NextHopTable::new()),
                mtus: Mtus::new(&[info]),
                redirects: RedirectGates::default(),
                ports: vec![info],
                flows: FlowHash::new(1),
            };
            let engine = SlowPath::new(slowpath::Config {
                ports: vec![slowpath::PortConfig {
                    id: PortId::FIRST,
                    name: "test".into(),
                    mac,
                    mtu: 1500,
                    addresses: vec!["10.0.1.1/24".parse().unwrap()],
                    host: true,
                    settings: slowpath::PortSettings::default(),
                }],
                limits: slowpath::Limits::default(),
                icmp: slowpath::Icmp::default(),
                flow: FlowHash::new(1),
                seed: 1,
            });
            let (orders, orders_in) = mpsc::channel();
            let worker = SlowWorker {
                engine,
                control: vec![control_out],
                exceptions: vec![exceptions_out],
                outbox: Outbox {
                    injectors: vec![ring("inject").0],
                    homes: vec![0],
                    pool: pool.clone(),
                    counters: Arc::default(),
                    events: events::unbounded_channel().0,
                    tables: Arc::new(tables),
                    hosts: vec![Some(HostLink { interface, express })],
                },
                orders: orders_in,
                quiescent: dpdk::qsbr::Qsbr::new(1).register().unwrap(),
            };
            let express = express_out;
            Self { worker, kernel, control, exceptions, express, orders, _writer: writer }
        }

        /// A packet from 10.0.1.2, numbered by its length.
        fn packet(reason: PuntReason, to: [u8; 4], number: usize) -> Mbuf {
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0];
            frame.extend((20 + number as u16).to_be_bytes());
            frame.extend([0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 1, 2]);
            frame.extend(to);
            frame.resize(frame.len() + number, 0);
            let mut packet = shared().1.copy_of(&frame).unwrap();
            let punt = Punt { reason, port: PortId::FIRST, next_hop: 0 };
            packet.set_tag(punt.to_tag());
            packet
        }

        fn push_control(&mut self, number: usize) {
            let packet = Self::packet(PuntReason::Local, [10, 0, 1, 1], number);
            assert!(self.control.push(packet).is_ok());
        }

        fn push_exception(&mut self) {
            let packet = Self::packet(PuntReason::Ttl, [192, 0, 2, 1], 10);
            assert!(self.exceptions.push(packet).is_ok());
        }

        fn drops(&self, reason: DropReason) -> u64 {
            self.worker.outbox.counters.drops.get(reason)
        }
    }

    #[test]
    fn control_packets_go_before_any_number_of_exceptions() {
        let mut lab = Lab::new();
        for _ in 0..500 {
            lab.push_exception();
        }
        for number in 0..100 {
            lab.push_control(number);
        }
        lab.worker.round(Duration::ZERO, &mut vec![0; FRAME_MOST]);
        let lengths: Vec<_> = lab.kernel.lock().unwrap().got.iter().map(Vec::len).collect();
        assert_eq!(lengths, (34..134).collect::<Vec<_>>(), "all of them, in order");
        assert_eq!(lab.drops(DropReason::TtlExpired), TURN as u64, "and only a few of the others");
        assert_eq!(lab.worker.outbox.counters.to_host.get(), 100);
    }

    #[test]
    fn what_the_kernel_refuses_is_dropped_by_name() {
        let mut lab = Lab::new();
        lab.kernel.lock().unwrap().refuses = Some(nix::libc::EAGAIN);
        lab.push_control(1);
        lab.worker.round(Duration::ZERO, &mut vec![0; FRAME_MOST]);
        assert_eq!(lab.drops(DropReason::HostFull), 1);
        lab.kernel.lock().unwrap().refuses = Some(nix::libc::EIO);
        lab.push_control(1);
        lab.worker.round(Duration::ZERO, &mut vec![0; FRAME_MOST]);
        assert_eq!(lab.drops(DropReason::HostDown), 1);
        assert_eq!(lab.worker.outbox.counters.to_host.get(), 0);
    }

    #[test]
    fn what_the_kernel_sends_waits_in_the_kernel_while_the_way_is_full() {
        let mut lab = Lab::new();
        let count = EXPRESS_SIZE + 50;
        for number in 0..count {
            lab.kernel.lock().unwrap().sends.push_back(vec![number as u8; 60 + number]);
        }
        let mut buffer = vec![0; FRAME_MOST];
        for _ in 0..10 {
            lab.worker.round(Duration::ZERO, &mut buffer);
        }
        assert_eq!(lab.kernel.lock().unwrap().sends.len(), 50);
        let mut arrived = 0;
        while let Some(packet) = lab.express.pop() {
            assert_eq!(packet.data(), vec![arrived as u8; 60 + arrived]);
            arrived += 1;
            lab.worker.round(Duration::ZERO, &mut buffer);
        }
        assert_eq!(arrived, count);
        let counters = &lab.worker.outbox.counters;
        assert_eq!(
            (counters.from_host.get(), counters.injected.get()),
            (count as u64, count as u64)
        );
    }

    #[test]
    fn a_frame_that_no_buffer_holds_is_dropped_by_name() {
        let mut lab = Lab::new();
        lab.kernel.lock().unwrap().sends.push_back(vec![1; 9000]);
        lab.worker.round(Duration::ZERO, &mut vec![0; FRAME_MOST]);
        assert_eq!(lab.drops(DropReason::TooBig), 1);
        assert_eq!(lab.worker.outbox.counters.from_host.get(), 1);
    }

    #[test]
    fn a_new_mtu_reaches_the_forwarders_and_is_no_more_than_the_device_takes() {
        let mut lab = Lab::new();
        for (mtu, result) in [(1300, 1300), (9000, 1500)] {
            let command = Command::Mtu { port: PortId::FIRST, mtu };
            lab.orders.send(Order::Engine(command)).unwrap();
            lab.worker.round(Duration::ZERO, &mut vec![0; FRAME_MOST]);
            assert_eq!(lab.worker.outbox.tables.mtus.get(PortId::FIRST), result);
        }
    }
}
