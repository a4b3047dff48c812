//! Whole frames through a forwarder with the default graph, and what it punts through the slow
//! path's engine: everything received is sent, punted or dropped by name, every buffer comes back,
//! nothing panics, and whatever leaves is a frame that a router may send.
//!
//! The forwarder is the router's own, between DPDK's ring devices; packets are real buffers.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use arbitrary::Arbitrary;
use dataplane::class::{ByClass, default_limits};
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::TxConfig;
use dataplane::forwarder::{Forwarder, ForwarderParts, Settings};
use dataplane::graph::{GraphCounters, Shape, Target};
use dataplane::polling::RxSource;
use dataplane::punts::{ClassQueue, Punts, class_rings};
use dataplane::quarantine::{Quarantine, Suspect};
use dataplane::reason::{DropReason, Punt};
use dataplane::replicate::Replicator;
use dataplane::steps::RedirectGates;
use dataplane::tables::Tables;
use dataplane::wires::{Exit, Replicas, Rewiring, TxPath, Wires};
use dpdk::qsbr::Qsbr;
use dpdk::{
    BURST_MAX, Burst, Device, Eal, EalConfig, HugeMode, Mbuf, Mempool, MempoolConfig, PacketList,
    Port, PortConfig, RxQueue, TxQueue, WaitSet,
};
use libfuzzer_sys::fuzz_target;
use slowpath::Packet;
use turnpike_fuzz::check;
use turnpike_fuzz::frame::Frame;
use turnpike_fuzz::world::{self, PORTS, World};

#[derive(Arbitrary, Debug)]
struct Input {
    small: bool,
    frames: Vec<Frame>,
}

/// A packet as the engine sees it.
struct Held(Mbuf);

impl Packet for Held {
    fn bytes(&self) -> &[u8] {
        self.0.data()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    fn trim_to(&mut self, len: usize) {
        let _ = self.0.trim_to(len);
    }
}

/// The forwarder and everything around it, kept from input to input.
struct Lab {
    eal: Eal,
    pool: Mempool,
    forwarder: Forwarder,
    counters: Arc<ForwarderCounters>,
    edges: Arc<GraphCounters>,
    shape: Arc<Shape>,
    tables: Arc<Tables>,
    /// Into the forwarder, as if from the wire.
    wires: Vec<TxQueue>,
    sent: Vec<RxQueue>,
    punted: ByClass<ClassQueue>,
    suspects: Receiver<Suspect>,
}

/// A device whose packets come back.
fn loop_device(eal: &Eal, pool: &Mempool, number: u16) -> (TxQueue, RxQueue) {
    let name = format!("net_ring{number}");
    let device = Device::Vdev { name: name.clone(), args: String::new() };
    let (_, mut rx, mut tx) =
        Port::open(eal, &PortConfig::new(&name, device), pool).expect("a ring device");
    (tx.remove(0), rx.remove(0))
}

impl Lab {
    fn new() -> Self {
        let config = EalConfig { huge: HugeMode::Never, memory_mb: 64, ..EalConfig::default() };
        let eal = Eal::init(&config).expect("DPDK starts without hugepages");
        let config = MempoolConfig {
            name: "fuzz".into(),
            count: 2047,
            cache: 0,
            data_room: 2048,
            node: None,
        };
        let pool = Mempool::new(&eal, &config).expect("64 MB hold 2047 packets");
        let tables = world::tables();
        let (mut connections, mut wires, mut sent) = (Wires::default(), vec![], vec![]);
        for number in 0..PORTS {
            let port = world::port(number);
            let (wire, queue) = loop_device(&eal, &pool, number);
            connections.rx.push(RxSource::of_queue(port, world::info(number), queue));
            wires.push(wire);
            let (queue, out) = loop_device(&eal, &pool, PORTS + number);
            // One port takes packets of several buffers, the others do not.
            let replicas = Replicas { mac: world::port_mac(number), by_reference: number == 3 };
            connections.exits.push(Exit {
                path: TxPath::Queue(queue),
                replicas,
                ..Exit::none(port)
            });
            sent.push(out);
        }
        let (ways, punted) = class_rings(&eal, "fuzz", &default_limits()).expect("rings");
        let (quarantine, suspects) = Quarantine::new();
        let graph = dataplane::default_graph(&tables).expect("the default graph");
        let counters = Arc::new(ForwarderCounters::default());
        let (edges, shape) = (graph.counters().clone(), graph.shape().clone());
        let mut forwarder = Forwarder::new(ForwarderParts {
            graph,
            interfaces: tables.interfaces.get(),
            settings: Settings {
                tx: TxConfig { burst: 1, flush: Duration::ZERO },
                ..Settings::default()
            },
            punts: Punts::new(vec![ways], tables.next_hops.clone(), 1),
            replicator: Replicator::new(pool.clone()),
            quiescent: Qsbr::new(1).register().expect("one reader"),
            counters: counters.clone(),
            quarantine,
            waiting: WaitSet::new().unwrap(),
        });
        forwarder.rewire(&mut Rewiring { wires: connections, ..Rewiring::default() });
        Self { eal, pool, forwarder, counters, edges, shape, tables, wires, sent, punted, suspects }
    }

    fn run(&mut self, input: &Input) {
        let before = self.count();
        let frames = &input.frames[..input.frames.len().min(BURST_MAX)];
        let received: Vec<_> = frames.iter().map(|frame| (frame.port(), frame.on_wire())).collect();
        for (port, bytes) in &received {
            let mut list = PacketList::new();
            let packet = self.pool.copy_of(bytes).expect("the pool has room");
            assert!(list.push(packet).is_ok());
            assert_eq!(self.wires[usize::from(*port)].send(&mut list, 1).packets, 1);
        }
        self.tables.shared.get::<RedirectGates>().open();
        self.forwarder.round();
        if let Ok(suspect) = self.suspects.try_recv() {
            panic!("{}: {:02x?}", suspect.message, suspect.frame);
        }
        let after = self.count();
        let moved: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(moved[0], received.len() as u64, "received");
        let gone = moved[1] + moved[2] + moved[3];
        assert_eq!(moved[0] + moved[4], gone, "received + replicated = sent + punted + dropped");
        let received = received.iter().map(|(port, bytes)| (*port, world::untagged(*port, bytes)));
        assert_eq!(self.take_sent(received.collect()), moved[1]);
        self.slow_path(input.small, moved[2]);
        assert_eq!(self.pool.in_use(), 0, "buffers that did not come back");
        let _ = &self.eal;
    }

    /// Packets received, sent, punted, dropped and replicated so far.
    fn count(&self) -> [u64; 5] {
        let ports = || (0..PORTS).map(world::port);
        let counters = &self.counters;
        let in_graph = self.shape.steps.iter().flat_map(|step| {
            let edges = step.outputs.iter().enumerate();
            let drops = edges.filter(|(_, (_, target))| matches!(target, Target::Drop(_)));
            drops.map(|(index, _)| self.edges.get(step.first_edge + index))
        });
        let outside = DropReason::ALL.iter().map(|&reason| counters.drops.get(reason));
        [
            ports().map(|port| counters.rx(port).packets.get()).sum(),
            ports().map(|port| counters.tx(port).packets.get()).sum(),
            counters.punted.get(),
            in_graph.chain(outside).sum(),
            counters.replicated.get(),
        ]
    }

    /// Each frame that left is one that was received.
    fn take_sent(&mut self, mut received: Vec<(u16, Vec<u8>)>) -> u64 {
        let mut count = 0;
        let mut burst = Burst::new();
        for (port, queue) in self.sent.iter_mut().enumerate() {
            count += queue.receive(&mut burst, BURST_MAX) as u64;
            for slot in 0..BURST_MAX {
                let Some(packet) = burst.take(slot) else { continue };
                let frame: Vec<u8> = packet.chunks().flatten().copied().collect();
                check::passes(port, &frame);
                let same = received.iter().position(|(from, bytes)| {
                    check::is_forwarded(&frame, bytes, world::info(*from).partial_checksums)
                });
                let Some(same) = same else { panic!("nobody sent {frame:02x?}") };
                // One that came once may leave by several ports.
                if frame[0] & 1 == 0 {
                    received.swap_remove(same);
                }
            }
        }
        count
    }

    fn slow_path(&mut self, small: bool, punted: u64) {
        let mut world = World::new(self.tables.clone(), true);
        let mut engine = world::engine::<Held>(small, &mut world);
        let mut now = Duration::ZERO;
        engine.tick(now, &mut world);
        let mut given = 0;
        for ClassQueue { ring, backlog } in &mut self.punted {
            while let Some(packet) = ring.pop() {
                let punt = Punt::from_tag(packet.tag()).expect("punted packets have a tag");
                backlog.took(punt.port);
                engine.packet(Held(packet), punt, now, &mut world);
                given += 1;
                assert_eq!(given, world.returned + engine.held(), "a packet was lost");
            }
        }
        assert_eq!(given as u64, punted);
        for _ in 0..8 {
            let Some(deadline) = engine.next_deadline() else { break };
            now = now.max(deadline);
            engine.tick(now, &mut world);
        }
        engine.shutdown(&mut world);
        assert_eq!((given, engine.held()), (world.returned, 0), "a packet was lost");
    }
}

thread_local! {
    static LAB: RefCell<Lab> = RefCell::new(Lab::new());
}

fuzz_target!(|input: Input| LAB.with_borrow_mut(|lab| lab.run(&input)));
