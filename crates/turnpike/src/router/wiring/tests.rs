//! Ports come and go beside forwarders that run, with DPDK's ring driver as devices: what is sent by a
//! transmit queue comes back by the receive queue of the same device.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dataplane::batch::{BATCH_MAX, Batch};
use dataplane::class::default_limits;
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::TxConfig;
use dataplane::graph::{Graph, GraphBuilder, Output, Outputs, Step};
use dataplane::mask::Mask;
use dataplane::port::{MAX_PORTS, ReversePath};
use dataplane::quarantine::Quarantine;
use dataplane::reason::DropReason;
use dpdk::qsbr::Qsbr;
use dpdk::{Burst, Device, Mempool, MempoolConfig, PacketList, Port, PortConfig};
use wire::MacAddr;

use super::super::cores;
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
        &[Output::Next("next")]
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let to = batch.head(slot)[0];
            while to == 255 && HELD.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            batch.out_port[slot] = to.into();
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

fn make(makings: &Makings, number: usize) -> Made {
    makings.make(number, (graph(), None), TxConfig::default(), Arc::default()).unwrap()
}

/// One that this process may use.
fn core() -> usize {
    cores::allowed().unwrap()[0]
}

/// A port's other ends: what the wire does.
struct Wire {
    into: Vec<TxQueue>,
    out: Vec<RxQueue>,
}

/// So many queues, and their other ends.
fn port(n: u16, rx: usize, tx: usize) -> (Queues, Wire) {
    let info = PortInfo {
        mac: MacAddr([2, 0, 0, 0, 0, n as u8]),
        mtu: 1500,
        partial_checksums: false,
        host: false,
        reverse_path: ReversePath::Any,
        redirects: false,
    };
    let (into, rx) = (0..rx).map(|_| loop_device()).unzip();
    let (tx, out) = (0..tx).map(|_| loop_device()).unzip();
    (Queues { port: id(n), info, rx, tx, host: None }, Wire { into, out })
}

/// Forwarders that run, and their wiring.
struct Lab {
    wiring: Wiring,
    runtime: tokio::runtime::Runtime,
    counters: Vec<Arc<ForwarderCounters>>,
    /// The slow path's ends of rings, which nobody fills.
    _ends: Vec<Vec<WorkerEnds>>,
}

impl Lab {
    /// With this many forwarders, all on the same core.
    fn new(forwarders: usize, ports: Vec<Queues>) -> Self {
        let (eal, pool) = shared();
        let makings = Makings {
            eal: eal.clone(),
            pool: pool.clone(),
            qsbr: Qsbr::new(8),
            quarantine: Quarantine::new().0,
            workers: 1,
            classes: default_limits(),
            seed: 1,
        };
        let (mut units, mut counters, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..forwarders {
            let made = make(&makings, number);
            counters.push(made.view.counters);
            units.push(made.unit);
            ends.push(made.ends);
        }
        let mut wiring = Wiring::new(makings, units, Orders::new(Vec::new()));
        for queues in ports {
            wiring.connect_at_start(queues).unwrap();
        }
        wiring.start(&vec![core(); forwarders]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { wiring, runtime, counters, _ends: ends }
    }

    /// Has so many forwarders from now on.
    fn spread(&mut self, forwarders: usize) -> Result<Spread> {
        let made = self.wiring.exchanges.len()..forwarders;
        let more: Vec<_> = made.map(|number| make(&self.wiring.makings, number)).collect();
        self.counters.extend(more.iter().map(|made| made.view.counters.clone()));
        self.runtime.block_on(self.wiring.spread(&vec![core(); forwarders], more))
    }

    fn connect(&mut self, queues: Queues) {
        self.runtime.block_on(self.wiring.connect(queues)).unwrap();
    }

    fn disconnect(&mut self, n: u16) -> Queues {
        self.runtime.block_on(self.wiring.disconnect(id(n))).unwrap()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.counters.iter().map(|counters| counters.drops.get(reason)).sum()
    }

    /// Ends it all; received and sent.
    fn end(mut self) -> (u64, u64) {
        let (mut units, complete) = self.wiring.end();
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

/// Sends numbered packets to a port, as fast as the device takes them and what came back allows.
struct Stream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<(u32, Vec<u32>)>,
}

impl Stream {
    /// Packets on the way at most: no ring on it is full.
    const WINDOW: u32 = 512;

    fn start(to: u8, mut into: TxQueue, mut out: RxQueue) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let end = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut sent, mut arrived, mut burst) = (0u32, Vec::new(), Burst::new());
            let mut quiet = Instant::now();
            while quiet.elapsed() < Duration::from_millis(300) {
                while !end.load(Ordering::Relaxed) && sent - (arrived.len() as u32) < Self::WINDOW {
                    let mut list = PacketList::new();
                    let mut frame = [0; 60];
                    frame[0] = to;
                    frame[56..].copy_from_slice(&sent.to_be_bytes());
                    list.push(shared().1.copy_of(&frame).unwrap()).unwrap();
                    assert_eq!(into.send(&mut list, 1).packets, 1);
                    sent += 1;
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
        Self { stop, thread }
    }

    /// How many were sent, and what arrived.
    fn end(self) -> (u32, Vec<u32>) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
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
    let (sent, arrived) = stream.end();
    assert!(sent > 1000, "{sent}");
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
    // From each receive queue to a port of one queue, so that who sends is not the device's choice.
    let mut streams = Vec::new();
    for (from, to) in [(1, 0), (3, 3)] {
        let (into, out) = (wires[from].into.remove(0), wires[to].out.remove(0));
        streams.push(Stream::start(to as u8, into, out));
    }
    for forwarders in [2, 1, 3, 4, 2, 2, 1].repeat(3) {
        let spread = lab.spread(forwarders).unwrap();
        assert_eq!(lab.wiring.exchanges.len(), forwarders);
        assert!(spread.joined.len() < 4);
    }
    let mut all = 0;
    for stream in streams {
        let (sent, arrived) = stream.end();
        assert!(sent > 1000, "{sent}");
        assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
        all += u64::from(sent);
    }
    for (n, (rx, tx)) in [(1, 1), (2, 2), (1, 3), (3, 1)].into_iter().enumerate() {
        let queues = lab.disconnect(n as u16);
        assert_eq!((queues.rx.len(), queues.tx.len()), (rx, tx), "no queue is lost");
    }
    assert_eq!(lab.end(), (all, all));
}

#[test]
fn a_core_that_cannot_be_used_changes_nothing() {
    let ((left, mut at_left), (right, mut at_right)) = (port(0, 1, 1), port(1, 1, 1));
    let mut lab = Lab::new(1, vec![left, right]);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    let nowhere = 1023;
    for cores in [vec![nowhere], vec![core(), nowhere], vec![nowhere, core()]] {
        let more = (1..cores.len()).map(|number| make(&lab.wiring.makings, number)).collect();
        let error = lab.runtime.block_on(lab.wiring.spread(&cores, more)).err().unwrap();
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
    while lab.counters[0].batches.get() == 0 {
        std::thread::yield_now();
    }
    let error = lab.spread(1).err().unwrap().to_string();
    assert!(error.contains("forwarder 0 has not come to the end of a batch"), "{error}");
    assert_eq!(lab.wiring.exchanges.len(), 2);
    HELD.store(false, Ordering::Relaxed);
    let stream = Stream::start(1, at_left.into.remove(0), at_right.out.remove(0));
    std::thread::sleep(Duration::from_millis(5));
    lab.spread(1).unwrap();
    let (sent, arrived) = stream.end();
    assert_eq!(arrived, (0..sent).collect::<Vec<_>>());
    assert_eq!(lab.drops(DropReason::PortDown), 1, "what it was held over");
    assert_eq!(lab.end(), (u64::from(sent) + 1, u64::from(sent)));
}
