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
use dataplane::forwarder::{ForwarderParts, IdlePolicy};
use dataplane::graph::{Graph, GraphBuilder, Output, Outputs, Step};
use dataplane::mask::Mask;
use dataplane::port::{MAX_PORTS, ReversePath};
use dataplane::quarantine::Quarantine;
use dataplane::replicate::Replicator;
use dpdk::qsbr::Qsbr;
use dpdk::{Burst, Device, Mempool, MempoolConfig, PacketList, Port, PortConfig};
use wire::MacAddr;

use super::*;

fn shared() -> &'static (Arc<Eal>, Mempool) {
    static DPDK: OnceLock<(Arc<Eal>, Mempool)> = OnceLock::new();
    DPDK.get_or_init(|| {
        let eal = crate::testing::eal();
        let config =
            MempoolConfig { name: "wiring".into(), count: 16_383, cache: 0, data_room: 2048 };
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

/// Sends each packet by the port that its first byte names.
struct ByFirstByte;

impl Step for ByFirstByte {
    fn outputs(&self) -> &'static [Output] {
        &[Output::Next("next")]
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            batch.out_port[slot] = batch.head(slot)[0].into();
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
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Forwarder>>,
}

impl Lab {
    fn new(forwarders: usize, ports: Vec<Queues>) -> Self {
        let (eal, pool) = shared();
        let (mut units, mut counters) = (Vec::new(), Vec::new());
        for number in 0..forwarders {
            let ways = SlowPathWays::new(eal, number, 1, &default_limits(), 1).unwrap();
            let count = Arc::new(ForwarderCounters::default());
            counters.push(count.clone());
            units.push(Forwarder::new(ForwarderParts {
                graph: graph(),
                tx: TxConfig::default(),
                punts: ways.forwarder.punts,
                replicator: Replicator::new(pool.clone()),
                quiescent: Qsbr::new(1).register().unwrap(),
                counters: count,
                quarantine: Quarantine::new().0,
                idle: IdlePolicy::default(),
            }));
        }
        let exchanges = Exchanges::new(units.iter().map(Forwarder::exchange).collect());
        let mut wiring = Wiring::new(eal.clone(), exchanges, Orders::new(Vec::new()));
        for queues in ports {
            wiring.connect_at_start(queues, &mut units).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let run = |mut unit: Forwarder| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                unit.run(&stop);
                unit
            })
        };
        let threads = units.into_iter().map(run).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { wiring, runtime, counters, stop, threads }
    }

    fn connect(&mut self, queues: Queues) {
        self.runtime.block_on(self.wiring.connect(queues)).unwrap();
    }

    fn disconnect(&mut self, n: u16) -> Queues {
        self.runtime.block_on(self.wiring.disconnect(id(n))).unwrap()
    }

    /// Ends it all; received and sent.
    fn end(self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let mut units: Vec<_> =
            self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
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
