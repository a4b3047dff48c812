//! Ports are added and removed beside running forwarders, with DPDK's ring driver as devices: packets sent by a
//! transmit queue return by the receive queue of the same device.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::batch::{BATCH_MAX, Batch};
use dataplane::builder::GraphBuilder;
use dataplane::class::default_limits;
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::TxConfig;
use dataplane::features::Features;
use dataplane::forwarder::Settings;
use dataplane::graph::{Graph, Output, Outputs, Step};
use dataplane::interface::{InterfaceInfos, VrfId};
use dataplane::mask::Mask;
use dataplane::port::MAX_PORTS;
use dataplane::quarantine::Quarantine;
use dataplane::reason::DropReason;
use dpdk::qsbr::Qsbr;
use dpdk::{Burst, Device, Mempool, MempoolConfig, PacketList, Port, PortConfig};
use machine::cores;
use wire::MacAddr;

use super::super::buffers::Buffers;
use super::super::queues::{self, QueuePlans};
use super::super::schedulers::Buckets;
use super::*;

fn shared() -> &'static (Arc<Eal>, Mempool) {
    static DPDK: OnceLock<(Arc<Eal>, Mempool)> = OnceLock::new();
    DPDK.get_or_init(|| {
        let eal = crate::testing::eal();
        let config = MempoolConfig {
            name: "wiring".into(),
            count: 16_383,
            cache: 0,
            data_room: 2048,
            node: None,
        };
        let pool = Mempool::new(&eal, &config).expect("the memory holds 16383 packets");
        (eal, pool)
    })
}

fn id(n: u16) -> PortId {
    PortId::new(n).unwrap()
}

/// A device whose packets come back.
fn loop_device() -> (TxQueue, RxQueue) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("net_ring{}", 500 + COUNT.fetch_add(1, Ordering::Relaxed));
    let (eal, pool) = shared();
    let device = Device::Vdev { name: name.clone(), args: String::new() };
    let (_, mut rx, mut tx) = Port::open(eal, &PortConfig::new(&name, device), pool).unwrap();
    (tx.remove(0), rx.remove(0))
}

/// A step that meets a packet to 255 does not come to its end.
static HELD: AtomicBool = AtomicBool::new(false);

/// Sends each packet by the port that its first byte names. One to 255 keeps it for as long as [`HELD`] is set.
struct ByFirstByte;

impl Step for ByFirstByte {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let to = batch.head(slot)[0];
            while to == 255 && HELD.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            batch.out_interface[slot] = to.into();
        }
        out[0] = input;
    }
}

fn graph() -> Graph {
    let mut graph = GraphBuilder::new();
    graph.add("by-first-byte", ByFirstByte).unwrap();
    graph.transmit("by-first-byte", "next").unwrap();
    graph.build().unwrap()
}

fn make(factory: &ForwarderFactory, number: usize) -> Made {
    // Packets wait for a burst for longer than an exchange takes.
    let tx = TxConfig { flush: Duration::from_millis(2), ..TxConfig::default() };
    let settings = (Settings { tx, ..Settings::default() }, &[][..]);
    factory.make((number, core()), (graph(), None), settings, Arc::default()).unwrap()
}

/// One that this process may use.
fn core() -> usize {
    cores::allowed().unwrap()[0]
}

/// A port's other ends, in the wire's place.
struct Wire {
    into: Vec<TxQueue>,
    out: Vec<RxQueue>,
}

/// So many queues, and their other ends.
fn port(n: u16, rx: usize, tx: usize) -> (Queues, Wire) {
    let info = InterfaceInfo {
        mac: MacAddr([2, 0, 0, 0, 0, n as u8]),
        mtu: 1500,
        vrf: VrfId::DEFAULT,
        partial_checksums: false,
        loses_tag_protocol: false,
        inserts_tags: false,
        host: false,
        features: Features::NONE,
    };
    let (into, rx) = (0..rx).map(|_| loop_device()).unzip();
    let (tx, out) = (0..tx).map(|_| loop_device()).unzip();
    let (host, node, burst, control) = (None, None, BATCH_MAX, (false, false));
    let plan = PortPlan::default();
    (Queues { port: id(n), info, rx, tx, host, node, burst, control, plan }, Wire { into, out })
}

/// One forwarder on each of these cores, and one for control traffic.
fn places(cores: &[usize], control: bool) -> Places {
    let control = if control { vec![core()] } else { Vec::new() };
    Places { forward: cores.to_vec(), control, events: None }
}

/// So many queues, and one more each way for control traffic.
fn port_with_control(n: u16, rx: usize, tx: usize) -> (Queues, Wire) {
    let (queues, wire) = port(n, rx + 1, tx + 1);
    (Queues { control: (true, true), ..queues }, wire)
}

/// Forwarders that run, and their wiring.
struct Lab {
    wiring: Wiring,
    runtime: tokio::runtime::Runtime,
    counters: Vec<Arc<ForwarderCounters>>,
    /// The slow path's ends of rings, which stay empty.
    _ends: Vec<Vec<WorkerEnds>>,
}

impl Lab {
    /// With this many forwarders, all on the same core.
    fn new(forwarders: usize, ports: Vec<Queues>) -> Self {
        Self::on(&vec![core(); forwarders], ports)
    }

    /// With forwarders on these cores.
    fn on(cores: &[usize], ports: Vec<Queues>) -> Self {
        Self::at(&places(cores, false), ports)
    }

    /// With forwarders at these places.
    fn at(places: &Places, ports: Vec<Queues>) -> Self {
        let (eal, pool) = shared();
        let factory = ForwarderFactory {
            eal: eal.clone(),
            buffers: Buffers::from(pool.clone()),
            qsbr: Qsbr::new(8),
            quarantine: Quarantine::new().0,
            workers: 1,
            generation: 0,
            classes: default_limits(),
            next_hops: Arc::default(),
            seed: 1,
            cpus: Arc::default(),
            buckets: Buckets::default(),
            interfaces: Arc::new(InterfaceInfos::new(Vec::new())),
        };
        let (mut units, mut counters, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..places.len() {
            let made = make(&factory, number);
            counters.push(made.view.counters);
            units.push(made.unit);
            ends.push(made.ends);
        }
        let mut wiring =
            Wiring::new(factory, units, Orders::new(Vec::new()), places.clone()).unwrap();
        wiring.connect_at_start(ports).unwrap();
        wiring.start().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { wiring, runtime, counters, _ends: ends }
    }

    /// Has so many forwarders from now on.
    fn spread(&mut self, forwarders: usize) -> Result<Spread> {
        self.spread_to(&places(&vec![core(); forwarders], false))
    }

    /// Has forwarders at these places from now on.
    fn spread_to(&mut self, places: &Places) -> Result<Spread> {
        let made = self.wiring.exchanges.len()..places.len();
        let more: Vec<_> = made.map(|number| make(&self.wiring.factory, number)).collect();
        self.counters.extend(more.iter().map(|made| made.view.counters.clone()));
        self.runtime.block_on(self.wiring.spread(places, &QueuePlans::new(), more))
    }

    fn connect(&mut self, queues: Queues) {
        self.runtime.block_on(self.wiring.connect(queues)).unwrap();
    }

    fn disconnect(&mut self, n: u16) -> Queues {
        self.runtime.block_on(self.wiring.disconnect(id(n))).unwrap()
    }

    /// Disconnects the ports from 0 on; they still have so many receive and transmit queues.
    fn disconnect_all(&mut self, expected: &[(usize, usize)]) {
        for (n, &expected) in (0..).zip(expected) {
            let queues = self.disconnect(n);
            assert_eq!((queues.rx.len(), queues.tx.len()), expected, "no queue is lost");
        }
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.counters.iter().map(|counters| counters.drops.get(reason)).sum()
    }

    /// Ends it all; received and sent.
    fn end(mut self) -> (u64, u64) {
        let (mut units, complete) = self.wiring.end(&Course::default());
        assert!(complete);
        for _ in 0..2 {
            units.iter_mut().for_each(Forwarder::shut_down);
        }
        let sum = |of: &dyn Fn(&ForwarderCounters, PortId) -> u64| -> u64 {
            let ports = || (0..MAX_PORTS as u16).map(id);
            self.counters.iter().map(|all| ports().map(|port| of(all, port)).sum::<u64>()).sum()
        };
        (
            sum(&|counters, port| counters.rx(port).packets.get()),
            sum(&|counters, port| counters.tx(port).packets.get()),
        )
    }
}

/// Returns a port's plan by a configuration with these settings.
fn plan(settings: &str) -> PortPlan {
    let text = format!(
        "local turnpike = require 'turnpike'\n\
         turnpike.port 'p' {{ device = 'net_ring0', {settings} }}\n\
         turnpike.forwarders {{ cores = '0-31' }}"
    );
    let (file, limits) = (std::path::Path::new("r.lua"), control::config::Limits::default());
    let catalogue = dataplane::catalogue::Catalogue::default();
    queues::plan(&control::config::parse(file, &text, limits, &catalogue).unwrap().ports[0])
}

/// Sends numbered packets to a port, as fast as the device takes them and the packets returned allow.
struct Stream {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU32>,
    thread: JoinHandle<(u32, Vec<u32>)>,
}

impl Stream {
    /// Packets on the way at most: no ring on it is full.
    const WINDOW: u32 = 512;

    /// Packets of a flow have numbers that are equal modulo this.
    const FLOWS: u32 = 16;

    /// The packets of each flow are in order.
    fn in_order_by_flow(arrived: &[u32]) -> bool {
        (0..Self::FLOWS).all(|flow| {
            let of_flow: Vec<_> = arrived.iter().filter(|n| *n % Self::FLOWS == flow).collect();
            of_flow.is_sorted()
        })
    }

    fn start(to: u8, mut into: TxQueue, mut out: RxQueue) -> Self {
        let (stop, all_sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (end, so_far) = (stop.clone(), all_sent.clone());
        let thread = std::thread::spawn(move || {
            let (mut sent, mut arrived, mut burst) = (0u32, Vec::new(), Burst::new());
            let mut quiet = Instant::now();
            let all = |sent: u32, arrived: &[u32]| {
                end.load(Ordering::Relaxed) && arrived.len() == sent as usize
            };
            // A dropped packet never arrives: the wait has a limit.
            while !all(sent, &arrived) && quiet.elapsed() < Duration::from_secs(3) {
                while !end.load(Ordering::Relaxed) && sent - (arrived.len() as u32) < Self::WINDOW {
                    let mut list = PacketList::new();
                    let mut frame = [0; 60];
                    frame[0] = to;
                    // IPv4, of one flow of several.
                    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                    frame[29] = (sent % Self::FLOWS) as u8;
                    frame[56..].copy_from_slice(&sent.to_be_bytes());
                    list.push(shared().1.copy_of(&frame).unwrap()).unwrap();
                    assert_eq!(into.send(&mut list, 1).packets, 1);
                    sent += 1;
                    so_far.store(sent, Ordering::Relaxed);
                }
                out.receive(&mut burst, BATCH_MAX);
                for slot in Mask(burst.owned()).slots() {
                    let number = &burst.frame(slot)[56..60];
                    arrived.push(u32::from_be_bytes(number.try_into().unwrap()));
                }
                if burst.free(u64::MAX) > 0 || !end.load(Ordering::Relaxed) {
                    quiet = Instant::now();
                }
                std::thread::yield_now();
            }
            (sent, arrived)
        });
        Self { stop, sent: all_sent, thread }
    }

    /// Returns when as many packets more were sent as can be on the way: some have arrived meanwhile.
    fn goes_on(&self) {
        let (before, begin) = (self.sent.load(Ordering::Relaxed), Instant::now());
        while self.sent.load(Ordering::Relaxed) - before < Self::WINDOW {
            assert!(begin.elapsed() < Duration::from_secs(60), "the stream has stopped");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends the stream. Returns the number of packets sent, and the packets that arrived.
    fn end(self) -> (u32, Vec<u32>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Streams from the first receive queue of a port to the first transmit queue of another.
fn streams(wires: &mut [Wire], ways: &[(usize, usize)]) -> Vec<Stream> {
    let stream = |&(from, to): &(usize, usize)| {
        let (into, out) = (wires[from].into.remove(0), wires[to].out.remove(0));
        Stream::start(to as u8, into, out)
    };
    ways.iter().map(stream).collect()
}

/// Ends streams of which everything arrived in order; how much that was.
fn all_in_order(streams: Vec<Stream>) -> u64 {
    let one = |stream: Stream| {
        let (sent, arrived) = stream.end();
        assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
        u64::from(sent)
    };
    streams.into_iter().map(one).sum()
}

#[test]
fn ports_come_and_go_and_others_lose_nothing() {
    let ((left, mut at_left), (right, mut at_right)) = (port(0, 1, 1), port(1, 1, 1));
    // Forwarder 0 receives and hands over to forwarder 1, which sends.
    let mut lab = Lab::new(2, vec![left, right]);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    let (mut queues, mut wire) = port(5, 3, 3);
    for _ in 0..20 {
        lab.connect(queues);
        for (n, into) in wire.into.iter_mut().enumerate() {
            let mut list = PacketList::new();
            list.push(shared().1.copy_of(&[5; 60 + 1][n..]).unwrap()).unwrap();
            assert_eq!(into.send(&mut list, 1).packets, 1);
        }
        let (deadline, mut got) = (Instant::now() + Duration::from_secs(10), 0);
        while got < 3 && Instant::now() < deadline {
            let mut burst = Burst::new();
            got += wire
                .out
                .iter_mut()
                .map(|out| {
                    out.receive(&mut burst, BATCH_MAX);
                    burst.free(u64::MAX)
                })
                .sum::<usize>();
        }
        assert_eq!(got, 3, "every receive queue is served");
        queues = lab.disconnect(5);
        assert_eq!((queues.rx.len(), queues.tx.len(), queues.port), (3, 3, id(5)));
    }
    stream.goes_on();
    let (sent, arrived) = stream.end();
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
    let all = u64::from(sent) + 60;
    assert_eq!(lab.end(), (all, all));
}

#[test]
fn what_is_on_the_way_to_a_port_that_goes_is_sent_or_counted() {
    let ((left, mut at_left), (right, mut at_right)) = (port(0, 1, 1), port(1, 1, 1));
    let mut lab = Lab::new(2, vec![left, right]);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(5));
        let queues = lab.disconnect(1);
        lab.connect(queues);
    }
    let (sent, arrived) = stream.end();
    assert!(arrived.windows(2).all(|pair| pair[0] < pair[1]), "each once, and in order");
    let dropped = lab.drops(DropReason::PortDown);
    assert_eq!(arrived.len() as u64 + dropped, u64::from(sent));
    assert_eq!(lab.end(), (sent.into(), arrived.len() as u64));
}

#[test]
fn other_numbers_of_forwarders_lose_nothing_and_keep_the_order() {
    let ports = vec![port(0, 1, 1), port(1, 2, 2), port(2, 1, 3), port(3, 3, 1)];
    let (queues, mut wires): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
    let mut lab = Lab::new(1, queues);
    // From each receive queue to a port of one queue, so that the device does not choose the sender.
    let streams = streams(&mut wires, &[(1, 0), (3, 3)]);
    for forwarders in [2, 1, 3, 4, 2, 2, 1].repeat(3) {
        let spread = lab.spread(forwarders).unwrap();
        assert_eq!(lab.wiring.exchanges.len(), forwarders);
        assert!(spread.joined.len() < 4);
    }
    streams.iter().for_each(Stream::goes_on);
    let all = all_in_order(streams);
    lab.disconnect_all(&[(1, 1), (2, 2), (1, 3), (3, 1)]);
    assert_eq!(lab.end(), (all, all));
}

#[test]
fn a_forwarder_for_control_comes_and_goes_and_nothing_is_lost() {
    let ports = vec![port_with_control(0, 1, 1), port_with_control(1, 2, 2), port(2, 1, 1)];
    let (queues, mut wires): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
    let mut lab = Lab::new(1, queues);
    // Control traffic arrives in the last receive queue, other packets by the first.
    let control = Stream::start(2, wires[0].into.remove(1), wires[2].out.remove(0));
    let (other, mut back) = port(3, 1, 1);
    lab.connect(other);
    let forwarded = Stream::start(3, wires[1].into.remove(0), back.out.remove(0));
    for (forwarders, has) in
        [(1, true), (2, true), (3, false), (2, true), (3, true), (1, false)].repeat(3)
    {
        lab.spread_to(&places(&vec![core(); forwarders], has)).unwrap();
        assert_eq!(
            (lab.wiring.forwarders(), lab.wiring.exchanges.len()),
            (forwarders, forwarders + usize::from(has))
        );
        let last = |port| *lab.wiring.receivers(port).last().unwrap();
        assert_eq!((last(id(0)) == forwarders, last(id(1)) == forwarders), (has, has));
        let is_sender = |port| lab.wiring.sender(port) == Some(forwarders);
        assert_eq!([id(0), id(1), id(2)].map(is_sender), [has, has, false]);
        control.goes_on();
        forwarded.goes_on();
        let queues = lab.disconnect(1);
        assert_eq!((queues.rx.len(), queues.tx.len(), queues.control), (3, 3, (true, true)));
        lab.connect(queues);
    }
    let all = all_in_order(vec![control, forwarded]);
    lab.disconnect_all(&[(2, 2), (3, 3), (1, 1), (1, 1)]);
    assert_eq!(lab.end(), (all, all));
}

#[test]
fn a_forwarder_is_told_that_it_is_for_control_no_more_though_no_port_is_there() {
    let mut lab = Lab::at(&places(&[core(); 2], true), Vec::new());
    assert!(lab.spread_to(&places(&[core(); 2], true)).unwrap().pause.is_none());
    assert!(lab.spread_to(&places(&[core(); 3], false)).unwrap().pause.is_some());
    lab.end();
}

#[test]
fn a_core_that_cannot_be_used_changes_nothing() {
    let ((left, mut at_left), (right, mut at_right)) = (port(0, 1, 1), port(1, 1, 1));
    let mut lab = Lab::new(1, vec![left, right]);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    let nowhere = 1023;
    for cores in [vec![nowhere], vec![core(), nowhere], vec![nowhere, core()]] {
        let more = (1..cores.len()).map(|number| make(&lab.wiring.factory, number)).collect();
        let places = places(&cores, false);
        let error = lab
            .runtime
            .block_on(lab.wiring.spread(&places, &QueuePlans::new(), more))
            .err()
            .unwrap();
        assert!(format!("{error:#}").contains("core 1023: cannot be used"), "{error:#}");
        assert_eq!(lab.wiring.exchanges.len(), 1);
    }
    let (sent, arrived) = stream.end();
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
    assert_eq!(lab.end(), (sent.into(), sent.into()));
}

#[test]
fn a_forwarder_that_does_not_come_to_the_end_of_a_batch_keeps_everything() {
    let ((left, mut at_left), (right, mut at_right)) = (port(0, 1, 1), port(1, 1, 1));
    let mut lab = Lab::new(2, vec![left, right]);
    HELD.store(true, Ordering::Relaxed);
    let mut list = PacketList::new();
    list.push(shared().1.copy_of(&[255; 60]).unwrap()).unwrap();
    assert_eq!(at_left.into[0].send(&mut list, 1).packets, 1);
    while lab.counters[0].batches() == 0 {
        std::thread::yield_now();
    }
    let error = lab.spread(1).err().unwrap().to_string();
    assert!(error.contains("forwarder 0 has not come to the end of a batch"), "{error}");
    assert_eq!(lab.wiring.exchanges.len(), 2);
    let moves = [Move { port: id(0), queue: 0, from: 0, to: 1 }];
    let error = lab.runtime.block_on(lab.wiring.move_queues(&moves)).unwrap_err().to_string();
    assert!(error.contains("forwarder 0 has not come to the end of a batch"), "{error}");
    assert_eq!(lab.wiring.receivers(id(0)), [0]);
    HELD.store(false, Ordering::Relaxed);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    std::thread::sleep(Duration::from_millis(5));
    lab.runtime.block_on(lab.wiring.move_queues(&moves)).unwrap();
    stream.goes_on();
    lab.spread(1).unwrap();
    let (sent, arrived) = stream.end();
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
    assert_eq!(lab.drops(DropReason::PortDown), 1, "what it was held over");
    assert_eq!(lab.end(), (u64::from(sent) + 1, u64::from(sent)));
}

#[test]
fn another_map_moves_queues_and_loses_nothing() {
    let allowed = cores::allowed().unwrap();
    let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
    let cores = [first, last];
    let places = places(&cores, false);
    let (mut port_1, mut at_1) = port(1, 2, 2);
    port_1.plan = plan(&format!("rx_cores = {{ {first} }}"));
    let (port_0, mut at_0) = port(0, 1, 1);
    let mut lab = Lab::on(&cores, vec![port_0, port_1]);
    assert_eq!(lab.wiring.receivers(id(1)), [0, 0]);
    let stream = Stream::start(0, at_1.into.remove(0), at_0.out.remove(0));
    for (to, expected) in [(last, 1), (first, 0), (last, 1)] {
        let expected = if first == last { 0 } else { expected };
        let plans = [(id(1), plan(&format!("rx_cores = {{ {to} }}")))].into();
        let moved = lab.runtime.block_on(lab.wiring.spread(&places, &plans, Vec::new())).unwrap();
        assert!(moved.pause.is_some(), "another map");
        assert_eq!(lab.wiring.receivers(id(1)), [expected; 2]);
        let same = lab.runtime.block_on(lab.wiring.spread(&places, &plans, Vec::new())).unwrap();
        assert!(same.pause.is_none(), "nothing is other");
        stream.goes_on();
    }
    let (sent, arrived) = stream.end();
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
    assert_eq!(lab.end(), (sent.into(), sent.into()));
}

#[test]
fn single_queues_move_and_lose_nothing() {
    let ports = vec![port(0, 1, 1), port(1, 2, 2), port(2, 1, 1)];
    let (queues, mut wires): (Vec<_>, Vec<_>) = ports.into_iter().unzip();
    let mut lab = Lab::new(3, queues);
    // One crosses to a port whose only transmit queue is another forwarder's, one arrives by a port that stays.
    let streams = streams(&mut wires, &[(1, 0), (2, 2)]);
    let stays = lab.wiring.receivers(id(2)).to_vec();
    for to in [2, 0, 1].repeat(10) {
        let from = lab.wiring.receivers(id(1))[0];
        let moves = [Move { port: id(1), queue: 0, from, to }];
        lab.runtime.block_on(lab.wiring.move_queues(&moves)).unwrap();
        assert_eq!(lab.wiring.receivers(id(1))[0], to);
        assert_eq!(lab.wiring.receivers(id(2)), stays);
        streams.iter().for_each(Stream::goes_on);
    }
    // An apply that asks for nothing else leaves them where they are, also if their numbers are uneven.
    let home = lab.wiring.receivers(id(0))[0];
    let moves = [0, 1].map(|queue| Move {
        port: id(1),
        queue,
        from: lab.wiring.receivers(id(1))[queue],
        to: home,
    });
    lab.runtime.block_on(lab.wiring.move_queues(&moves)).unwrap();
    assert_eq!(lab.wiring.receivers(id(1)), [home; 2]);
    assert!(lab.spread(3).unwrap().pause.is_none());
    streams.iter().for_each(Stream::goes_on);
    let all = all_in_order(streams);
    lab.disconnect_all(&[(1, 1), (2, 2), (1, 1)]);
    assert_eq!(lab.end(), (all, all));
}

#[test]
fn ports_that_go_leave_an_even_load() {
    let ports = (0..4).map(|n| port(n, 1, 1));
    let (queues, wires): (Vec<_>, Vec<_>) = ports.unzip();
    let mut lab = Lab::new(2, queues);
    assert_eq!((lab.wiring.receivers(id(1)), lab.wiring.receivers(id(3))), (&[1][..], &[1][..]));
    drop((lab.disconnect(1), lab.disconnect(3)));
    assert!(lab.spread(2).unwrap().pause.is_some(), "a forwarder had two queues, the other none");
    let served = [lab.wiring.receivers(id(0))[0], lab.wiring.receivers(id(2))[0]];
    assert_eq!(served, [0, 1]);
    assert!(lab.spread(2).unwrap().pause.is_none());
    lab.end();
    drop(wires);
}

#[test]
fn software_spreads_flows_in_order_while_forwarders_come_and_go() {
    let ((mut left, mut at_left), (right, mut at_right)) = (port(0, 1, 1), port(1, 1, 1));
    left.plan = plan("spread = 'software'");
    let mut lab = Lab::new(3, vec![left, right]);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    std::thread::sleep(Duration::from_millis(20));
    for forwarders in [1, 2, 4, 3, 3, 2] {
        lab.spread(forwarders).unwrap();
        let queues = lab.disconnect(0);
        assert_eq!((queues.rx.len(), &queues.plan), (1, &plan("spread = 'software'")));
        lab.connect(queues);
        std::thread::sleep(Duration::from_millis(5));
    }
    let plans = [(id(0), PortPlan::default())].into();
    let places = places(&[core(); 2], false);
    let moved = lab.runtime.block_on(lab.wiring.spread(&places, &plans, Vec::new())).unwrap();
    assert!(moved.pause.is_some(), "spread no more");
    let spread: u64 = lab.counters.iter().map(|counters| counters.spread_out.get()).sum();
    let (sent, arrived) = stream.end();
    assert!(Stream::in_order_by_flow(&arrived));
    let mut all = arrived;
    all.sort_unstable();
    assert_eq!(all, (0..sent).collect::<Vec<_>>(), "each once");
    assert!(spread > 0 && spread < sent.into(), "{spread} of {sent}");
    let taken: u64 = lab.counters.iter().map(|counters| counters.spread_in.get()).sum();
    assert_eq!(taken, spread, "the rings ran dry");
    assert_eq!(lab.end(), (sent.into(), sent.into()));
}

#[test]
fn what_software_has_spread_when_all_ends_is_counted() {
    let ((mut left, mut at_left), (right, _at_right)) = (port(0, 1, 1), port(1, 1, 1));
    // All to forwarder 1.
    left.plan = plan("spread = 'software', rss = { skip = 0 }");
    let lab = Lab::new(2, vec![left, right]);
    let mut list = PacketList::new();
    let mut frame = [0; 60];
    frame[0] = 1;
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    for _ in 0..100 {
        list.push(shared().1.copy_of(&frame).unwrap()).unwrap();
    }
    assert_eq!(at_left.into[0].send(&mut list, 100).packets, 100);
    let deadline = Instant::now() + Duration::from_secs(10);
    while lab.counters[0].spread_out.get() < 100 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let counters = lab.counters.clone();
    let (received, sent) = lab.end();
    let shut_down: u64 = counters.iter().map(|c| c.drops.get(DropReason::Shutdown)).sum();
    assert_eq!((received, counters[0].spread_out.get()), (100, 100));
    assert_eq!(sent + shut_down, 100);
    assert_eq!(counters[1].spread_in.get(), 100);
}

#[test]
fn a_table_of_forwarders_that_are_not_there_is_refused() {
    let (mut left, _wire) = port(0, 1, 1);
    left.plan = plan("spread = 'software', rss = { table = { 0, 5 } }");
    let mut lab = Lab::new(2, Vec::new());
    let error = lab.runtime.block_on(lab.wiring.connect(left)).unwrap_err().to_string();
    assert!(error.contains("queue 5 is not there; the last one is 1"), "{error}");
    lab.end();
}
