//! A worker between rings, with a kernel as the tests have it.

use std::collections::BTreeMap;
use std::io;
use std::mem::take;
use std::sync::{Arc, Mutex, OnceLock};

use dataplane::class::{ByClass, default_limits};
use dataplane::features::Features;
use dataplane::filters::Gate;
use dataplane::flow::FlowHash;
use dataplane::interface::{InterfaceId, InterfaceInfo, InterfaceInfos, Mtus, VrfId};
use dataplane::next_hop::NextHopTable;
use dataplane::port::{MAX_PORTS, PortId};
use dataplane::punts::ClassRing;
use dataplane::quarantine::Suspect;
use dataplane::reason::PuntReason;
use dataplane::tables::{Fibs, Tables, VrfTables};
use dpdk::{Consumer, Eal, Mempool, MempoolConfig, Producer, Ring};
use fib::{Algorithm, NoReaders};
use slowpath::{Output, Waiting};
use wire::MacAddr;
use wire::checksum::{complete_l4_checksum, pseudo_header_v4};
use wire::offload::segment::Segments;
use wire::offload::{NEEDS_CHECKSUM, NetHeader, SEGMENT_NONE, SEGMENT_TCP4};

use super::super::host::testing::{Device, Kernel};
use super::super::host::{DeviceWork, HostInterface};
use super::super::wiring::{HostLink, PRIORITY_SIZE, SlowPathWays};
use super::*;

/// Packet buffers for all tests.
fn shared() -> &'static (Arc<Eal>, Mempool) {
    static DPDK: OnceLock<(Arc<Eal>, Mempool)> = OnceLock::new();
    DPDK.get_or_init(|| {
        let eal = crate::testing::eal();
        let name = "slow-worker".to_owned();
        let config = MempoolConfig { name, count: 4095, cache: 0, data_room: 2048, node: None };
        let pool = Mempool::new(&eal, &config).expect("the memory holds 4095 packets");
        (eal, pool)
    })
}

/// A slow path with one port that has a host interface, and everything around it.
struct Lab {
    worker: SlowWorker,
    kernel: Arc<Mutex<Kernel>>,
    punts: ByClass<Producer>,
    priority: Consumer,
    orders: orders::OrderSender,
    suspects: mpsc::Receiver<Suspect>,
    _writer: io::PipeWriter,
}

impl Lab {
    fn new() -> Self {
        let (eal, pool) = shared();
        let ring = |name| Ring::spsc(eal, name, 2048).unwrap();
        let rings = PuntClass::NAMES.iter().map(|name| ClassRing::new(ring(name), 2048));
        let (punts, punted): (Vec<_>, Vec<_>) = rings.unzip();
        let punts: Vec<_> = punts.into_iter().map(|ring| ring.ring).collect();
        let limits = default_limits();
        let rates = Arc::new(ClassRates::new(&limits));
        let (priority, priority_out) = Ring::spsc(eal, "priority", PRIORITY_SIZE).unwrap();
        let kernel = Arc::new(Mutex::new(Kernel::default()));
        let (reader, writer) = io::pipe().unwrap();
        let mut interface = HostInterface::for_test(Box::new(Device(kernel.clone(), reader)));
        interface.set_segmentation(true).unwrap();
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let info = InterfaceInfo {
            mac,
            mtu: 1500,
            vrf: VrfId::DEFAULT,
            partial_checksums: false,
            loses_tag_protocol: false,
            inserts_tags: false,
            features: Features::NONE,
            host: true,
        };
        let fib4 = fib::new_ipv4(Algorithm::Reference, Box::new(NoReaders)).unwrap();
        let fib6 = fib::new_ipv6(Algorithm::Reference, Box::new(NoReaders)).unwrap();
        let tables = Tables {
            named_hops: Default::default(),
            mirrors: Default::default(),
            vrfs: Arc::new(VrfTables::new(Fibs { fib4: fib4.reader(), fib6: fib6.reader() })),
            next_hops: Arc::new(NextHopTable::new()),
            filters: Arc::default(),
            multicast: Arc::default(),
            mtus: Arc::new(Mtus::new(&[info])),
            shared: Arc::default(),
            vlans: Arc::default(),
            interfaces: Arc::new(InterfaceInfos::new(vec![info])),
            flows: FlowHash::new(1),
            own: Arc::new(dataplane::own::OwnAddresses::new(false)),
        };
        let engine = SlowPath::new(slowpath::Config {
            interfaces: vec![slowpath::InterfaceConfig {
                id: InterfaceId::FIRST,
                name: "test".into(),
                mac,
                mtu: 1500,
                addresses: vec!["10.0.1.1/24".parse().unwrap()],
                host: true,
                is_loopback: false,
                owned: true,
                settings: slowpath::InterfaceSettings::default(),
            }],
            limits: slowpath::Limits::default(),
            icmp: slowpath::Icmp::default(),
            flow: FlowHash::new(1),
            seed: 1,
        });
        let handoff_queue = handoff_queues(1).unwrap().remove(0);
        let (orders, orders_in) = order_queue(handoff_queue.doorbell().clone());
        let (quarantine, suspects) = Quarantine::new();
        let mut worker = SlowWorker {
            engine,
            turns: PuntScheduler::new(vec![punted.try_into().ok().unwrap()], &limits, rates),
            outbox: Outbox {
                injectors: vec![ring("inject").0],
                senders: [None; MAX_PORTS],
                buffers: pool.clone().into(),
                counters: Arc::default(),
                events: event_channel().0,
                tagger: tables.tagger(),
                tables: Arc::new(tables),
                hosts: BTreeMap::new(),
                untagged: Vec::new(),
                handoff_queue,
                gate: Gate::default(),
                learner: Learner::new(learned_flows().0),
            },
            orders: orders_in,
            quiescent: dpdk::qsbr::Qsbr::new(1).register().unwrap(),
            quarantine,
            start: Instant::now(),
            leaving: None,
        };
        worker.outbox.connect(
            InterfaceId::FIRST,
            0,
            Some(HostLink { interface, priority: Some(priority) }),
        );
        let priority = priority_out;
        let punts = punts.try_into().ok().unwrap();
        Self { worker, kernel, punts, priority, orders, suspects, _writer: writer }
    }

    /// A packet from 10.0.1.2, numbered by its length.
    fn packet(reason: PuntReason, to: [u8; 4], number: usize) -> Mbuf {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0];
        frame.extend((20 + number as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 1, 17, 0, 0, 10, 0, 1, 2]);
        frame.extend(to);
        frame.resize(frame.len() + number, 0);
        let mut packet = shared().1.copy_of(&frame).unwrap();
        let punt = Punt {
            reason,
            port: PortId::FIRST,
            interface: InterfaceId::FIRST,
            next_hop: 0,
            generation: 0,
        };
        packet.set_tag(punt.to_tag());
        packet
    }

    fn push(&mut self, class: PuntClass, packet: Mbuf) {
        assert!(self.punts[class.index()].push(packet).is_ok());
    }

    fn push_local(&mut self, class: PuntClass, number: usize) {
        self.push(class, Self::packet(PuntReason::Local, [10, 0, 1, 1], number));
    }

    fn push_expired(&mut self) {
        self.push(PuntClass::Errors, Self::packet(PuntReason::Ttl, [192, 0, 2, 1], 10));
    }

    fn round(&mut self, now: Duration) -> usize {
        self.worker.round(now)
    }

    fn taken(&self, class: PuntClass) -> u64 {
        self.worker.outbox.counters.taken[class.index()].get()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.worker.outbox.counters.drops.get(reason)
    }
}

#[test]
fn every_class_has_its_share_of_a_round() {
    let mut lab = Lab::new();
    for number in 0..500 {
        lab.push_expired();
        lab.push_local(PuntClass::Host, number);
        lab.push_local(PuntClass::Routing, 500 + number);
    }
    lab.round(Duration::ZERO);
    let taken = [PuntClass::Routing, PuntClass::Host, PuntClass::Errors].map(|c| lab.taken(c));
    assert_eq!(taken, [51, 51, 20], "of 256, by the weights 25, 25 and 10 of 125");
    assert_eq!(lab.drops(DropReason::TtlExpired), 20);
    let lengths: Vec<_> = lab.kernel.lock().unwrap().got.iter().map(Vec::len).collect();
    let expected: Vec<_> = (534..585).chain(34..85).collect();
    assert_eq!(lengths, expected, "routing first, each class in order");
    assert_eq!(lab.worker.outbox.counters.to_host.get(), 102);
}

#[test]
fn what_one_class_leaves_the_others_have() {
    let mut lab = Lab::new();
    for number in 0..500 {
        lab.push_local(PuntClass::Host, number);
    }
    let rounds =
        std::iter::repeat_with(|| lab.round(Duration::ZERO)).take_while(|&n| n > 0).count();
    assert_eq!((rounds, lab.taken(PuntClass::Host)), (10, 500));
}

#[test]
fn a_class_has_no_more_than_its_rate() {
    let mut lab = Lab::new();
    for _ in 0..2000 {
        lab.push_expired();
    }
    let start = Duration::from_secs(1);
    while lab.round(start) > 0 {}
    assert_eq!(lab.taken(PuntClass::Errors), 500, "what comes in ten milliseconds, at once");
    let later = start + Duration::from_millis(4);
    while lab.round(later) > 0 {}
    assert_eq!(lab.taken(PuntClass::Errors), 700, "50,000 a second");
    lab.push_local(PuntClass::Routing, 1);
    assert_eq!(lab.round(later), 1, "which costs the others nothing");
}

#[test]
fn forwarders_have_their_turns_alike() {
    let (eal, _) = shared();
    let limits = default_limits();
    let (mut ins, mut outs) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let ring = |name| ClassRing::new(Ring::spsc(eal, name, 64).unwrap(), 64);
        let (into, out): (Vec<_>, Vec<_>) = PuntClass::NAMES.iter().map(|name| ring(name)).unzip();
        ins.push(into);
        outs.push(out.try_into().ok().unwrap());
    }
    let mut turns = PuntScheduler::new(outs, &limits, Arc::new(ClassRates::new(&limits)));
    let class = PuntClass::Host;
    for (forwarder, count) in [(0, 4), (1, 2)] {
        for _ in 0..count {
            let mut packet = Lab::packet(PuntReason::Local, [10, 0, 1, 1], 1);
            packet.set_tag(forwarder as u64);
            assert!(ins[forwarder][class.index()].ring.push(packet).is_ok());
        }
    }
    assert_eq!(turns.grant(class, Duration::ZERO), 6);
    let from: Vec<_> = std::iter::from_fn(|| turns.pop(class)).map(|packet| packet.tag()).collect();
    assert_eq!(from, [0, 1, 0, 1, 0, 0]);
}

#[test]
fn ports_have_their_turns_alike_however_much_each_has() {
    let (eal, _) = shared();
    let limits = default_limits();
    let ring = |name| ClassRing::new(Ring::spsc(eal, name, 64).unwrap(), 64);
    let (mut into, out): (Vec<_>, Vec<_>) = PuntClass::NAMES.iter().map(|name| ring(name)).unzip();
    let mut turns = PuntScheduler::new(
        vec![out.try_into().ok().unwrap()],
        &limits,
        Arc::new(ClassRates::new(&limits)),
    );
    let class = PuntClass::Neighbour;
    let port = |number| InterfaceId::new(number).unwrap();
    for (number, count) in [(5, 40), (63, 1), (0, 2)] {
        for _ in 0..count {
            let mut packet = Lab::packet(PuntReason::Arp, [10, 0, 1, 1], 1);
            let punt = Punt {
                reason: PuntReason::Arp,
                port: PortId::new(number).unwrap(),
                interface: port(number),
                next_hop: 0,
                generation: 0,
            };
            packet.set_tag(punt.to_tag());
            assert!(into[class.index()].ring.push(packet).is_ok());
        }
    }
    let _ = turns.grant(class, Duration::ZERO);
    let from = |packet: Mbuf| Punt::from_tag(packet.tag()).unwrap().port.index();
    let order: Vec<_> = std::iter::from_fn(|| turns.pop(class)).map(from).collect();
    assert_eq!(order[..6], [0, 5, 63, 0, 5, 5]);
    assert_eq!(order.len(), 43);
}

#[test]
fn what_another_worker_sends_is_taken_over_and_counted() {
    let mut lab = Lab::new();
    let packet = Frame::new(Lab::packet(PuntReason::Glean, [10, 0, 1, 7], 10));
    let waiting = Waiting::Received { packet, from: InterfaceId::FIRST };
    lab.worker.outbox.hand_over(InterfaceId::FIRST, [10, 0, 1, 7].into(), waiting);
    let own = Waiting::Own(vec![0; 60]);
    lab.worker.outbox.hand_over(InterfaceId::FIRST, [10, 0, 1, 7].into(), own);
    let counters = lab.worker.outbox.counters.clone();
    assert_eq!((counters.handoffs_sent.get(), counters.handoffs_taken.get()), (1, 0));
    lab.round(Duration::ZERO);
    assert_eq!((counters.handoffs_sent.get(), counters.handoffs_taken.get()), (1, 1));
    assert_eq!(lab.worker.engine.held(), 1, "it waits for the neighbour");
    lab.worker.shut_down();
    assert_eq!(lab.drops(DropReason::Shutdown), 1);
}

#[test]
fn a_full_handoff_queue_drops_by_name() {
    let mut lab = Lab::new();
    for _ in 0..1100 {
        let packet = Frame::new(Lab::packet(PuntReason::Glean, [10, 0, 1, 7], 10));
        let waiting = Waiting::Received { packet, from: InterfaceId::FIRST };
        lab.worker.outbox.hand_over(InterfaceId::FIRST, [10, 0, 1, 7].into(), waiting);
    }
    assert_eq!(lab.drops(DropReason::HandoverFull), 76);
    assert_eq!(lab.worker.outbox.counters.handoffs_sent.get(), 1024);
    lab.worker.shut_down();
}

/// A packet over which the engine panics.
fn poisoned(number: usize) -> Mbuf {
    let poison = slowpath::POISON;
    let mut packet = Lab::packet(PuntReason::Local, [10, 0, 1, 1], number + poison.len());
    let len = packet.len();
    packet.data_mut()[len - poison.len()..].copy_from_slice(poison);
    packet
}

#[test]
fn a_panic_costs_the_packet_that_provokes_it_and_nothing_else() {
    let mut lab = Lab::new();
    for number in 0..10 {
        lab.push_local(PuntClass::Host, number);
        if number % 4 == 1 {
            lab.push(PuntClass::Host, poisoned(number));
        }
    }
    assert_eq!(lab.round(Duration::ZERO), 13);
    let lengths: Vec<_> = lab.kernel.lock().unwrap().got.iter().map(Vec::len).collect();
    assert_eq!(lengths, (34..44).collect::<Vec<_>>(), "the others, in order");
    assert_eq!(lab.drops(DropReason::Quarantined), 3);
    for number in [1, 5, 9] {
        let suspect = lab.suspects.try_recv().unwrap();
        assert_eq!(suspect.frame, poisoned(number).data(), "as it was received");
        assert_eq!(suspect.interface, Some(InterfaceId::FIRST));
        assert!(
            suspect.message.contains("the faulty engine met its packet"),
            "{}",
            suspect.message
        );
    }
    // Taken = to the host + dropped: nothing is lost, and nothing is left in the crash frames.
    let counters = &lab.worker.outbox.counters;
    assert_eq!((lab.taken(PuntClass::Host), counters.to_host.get()), (13, 10));
    assert!(take_crash_frames().is_empty());
}

#[test]
fn a_panic_while_packets_wait_loses_none_of_them() {
    let mut lab = Lab::new();
    let packet = Frame::new(Lab::packet(PuntReason::Glean, [10, 0, 1, 7], 10));
    let waiting = Waiting::Received { packet, from: InterfaceId::FIRST };
    lab.worker.outbox.hand_over(InterfaceId::FIRST, [10, 0, 1, 7].into(), waiting);
    lab.push(PuntClass::Host, poisoned(1));
    lab.round(Duration::ZERO);
    assert_eq!((lab.worker.engine.held(), lab.drops(DropReason::Quarantined)), (1, 1));
    lab.worker.shut_down();
    assert_eq!(lab.drops(DropReason::Shutdown), 1);
}

#[test]
fn what_the_kernel_refuses_is_dropped_by_name() {
    let mut lab = Lab::new();
    lab.kernel.lock().unwrap().refuses = Some(nix::libc::EAGAIN);
    lab.push_local(PuntClass::Host, 1);
    lab.round(Duration::ZERO);
    assert_eq!(lab.drops(DropReason::HostFull), 1);
    lab.kernel.lock().unwrap().refuses = Some(nix::libc::EIO);
    lab.push_local(PuntClass::Host, 1);
    lab.round(Duration::ZERO);
    assert_eq!(lab.drops(DropReason::HostDown), 1);
    assert_eq!(lab.worker.outbox.counters.to_host.get(), 0);
}

#[test]
fn what_the_kernel_sends_waits_in_the_kernel_while_the_way_is_full() {
    let mut lab = Lab::new();
    let count = PRIORITY_SIZE + 50;
    for number in 0..count {
        lab.kernel.lock().unwrap().sends.push_back(vec![number as u8; 60 + number]);
    }
    for _ in 0..10 {
        lab.round(Duration::ZERO);
    }
    assert_eq!(lab.kernel.lock().unwrap().sends.len(), 50);
    let mut arrived = 0;
    while let Some(packet) = lab.priority.pop() {
        assert_eq!(packet.data(), vec![arrived as u8; 60 + arrived]);
        arrived += 1;
        lab.round(Duration::ZERO);
    }
    assert_eq!(arrived, count);
    let counters = &lab.worker.outbox.counters;
    assert_eq!((counters.from_host.get(), counters.injected.get()), (count as u64, count as u64));
}

#[test]
fn a_frame_that_no_buffer_holds_is_dropped_by_name() {
    let mut lab = Lab::new();
    lab.kernel.lock().unwrap().sends.push_back(vec![1; 9000]);
    lab.round(Duration::ZERO);
    assert_eq!(lab.drops(DropReason::TooBig), 1);
    assert_eq!(lab.worker.outbox.counters.from_host.get(), 1);
}

const PSH: u8 = 8;

/// A TCP frame of 10.0.1.2, as it is on the wire.
fn tcp(port: u16, sequence: u32, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0];
    frame.extend((40 + data.len() as u16).to_be_bytes());
    // The identification counts segments of this length, as Linux does.
    frame.extend(((sequence as usize / data.len().max(1)) as u16).to_be_bytes());
    frame.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 1, 2, 10, 0, 1, 1]);
    let checksum = wire::checksum::checksum(&frame[14..]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 80]);
    frame.extend(sequence.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0x50, 0x10 | flags, 1, 0]);
    let [source, destination] = [[10, 0, 1, 2], [10, 0, 1, 1]].map(Into::into);
    let partial = pseudo_header_v4(source, destination, 6, 20 + data.len() as u16).folded();
    frame.extend(partial.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(data);
    complete_l4_checksum(&mut frame[14..]);
    frame
}

impl Lab {
    fn push_frame(&mut self, frame: &[u8]) {
        let mut packet = shared().1.copy_of(frame).unwrap();
        let punt = Punt {
            reason: PuntReason::Local,
            port: PortId::FIRST,
            interface: InterfaceId::FIRST,
            next_hop: 0,
            generation: 0,
        };
        packet.set_tag(punt.to_tag());
        self.push(PuntClass::Host, packet);
    }

    /// Asserts that the kernel got these since the last call, each as the frames that it stands for.
    #[track_caller]
    fn assert_got(&self, expected: &[Vec<Vec<u8>>]) {
        let got = self.got();
        let lengths = |all: &[Vec<Vec<u8>>]| -> Vec<Vec<usize>> {
            all.iter().map(|frames| frames.iter().map(Vec::len).collect()).collect()
        };
        assert_eq!(lengths(&got), lengths(expected));
        assert!(got == expected, "the same lengths, but other bytes or another order");
    }

    fn got(&self) -> Vec<Vec<Vec<u8>>> {
        let mut kernel = self.kernel.lock().unwrap();
        let (headers, frames) = (take(&mut kernel.got_headers), take(&mut kernel.got));
        let cut = |(header, frame): (&NetHeader, &Vec<u8>)| {
            let finished = |piece: wire::offload::segment::Piece| {
                let mut packet = piece.parts(frame).concat();
                piece.finish(&mut packet);
                packet
            };
            Segments::new(header, frame).unwrap().map(finished).collect()
        };
        headers.iter().zip(&frames).map(cut).collect()
    }
}

#[test]
fn segments_of_a_round_go_up_together() {
    let mut lab = Lab::new();
    let segment = |port, number: u32| tcp(port, number * 1000, 0, &[number as u8; 1000]);
    let [a, b] = [40_000, 50_000].map(|port| (0..5).map(|n| segment(port, n)).collect::<Vec<_>>());
    for (a, b) in a.iter().zip(&b) {
        lab.push_frame(a);
        lab.push_frame(b);
    }
    lab.round(Duration::ZERO);
    // The frames of the wire, those of the first connection first.
    lab.assert_got(&[a, b]);
    assert_eq!(lab.worker.outbox.counters.to_host.get(), 10);
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    let up = &link.interface.view().counters.clone().up;
    assert_eq!((up.packets.get(), up.bytes.get()), (10, 10 * 1054));
}

#[test]
fn a_connection_keeps_its_order_and_what_is_no_tcp_overtakes_nothing() {
    let mut lab = Lab::new();
    let data = [7; 100];
    let first = [tcp(9, 0, 0, &data), tcp(9, 100, PSH, &data)];
    let next = [tcp(9, 200, 0, &data), tcp(9, 300, 0, &data)];
    let acknowledgment = tcp(9, 400, 0, &[]);
    let gap = tcp(9, 1000, 0, &data);
    let late = tcp(9, 1100, 0, &data);
    let mut datagram = tcp(9, 0, 0, &data);
    datagram[23] = 17;
    let frames = first.iter().chain(&next).chain([&acknowledgment, &gap, &datagram, &late]);
    frames.for_each(|frame| lab.push_frame(frame));
    lab.round(Duration::ZERO);
    let single = |frame: Vec<u8>| vec![frame];
    let expected = vec![
        first.to_vec(),
        next.to_vec(),
        single(acknowledgment),
        single(gap),
        single(datagram),
        single(late.clone()),
    ];
    lab.assert_got(&expected);
    // Nothing waits for the next round.
    let later = tcp(9, 1200, 0, &data);
    lab.push_frame(&later);
    lab.round(Duration::ZERO);
    lab.assert_got(&[single(later)]);
}

#[test]
fn more_connections_than_are_collected_go_up_all_the_same() {
    let mut lab = Lab::new();
    let frames: Vec<_> = (1..20).map(|port| tcp(port, 0, 0, &[1; 50])).collect();
    frames.iter().for_each(|frame| lab.push_frame(frame));
    lab.round(Duration::ZERO);
    lab.assert_got(&frames.into_iter().map(|frame| vec![frame]).collect::<Vec<_>>());
    // The oldest gave way, and one that has ended keeps no place.
    let frames: Vec<_> = (0..50u32).map(|n| tcp(5, n * 10, 0, &[1; 10])).collect();
    frames.iter().for_each(|frame| lab.push_frame(frame));
    lab.round(Duration::ZERO);
    lab.assert_got(&[frames]);
}

#[test]
fn frames_that_the_kernel_refuses_together_are_dropped_one_by_one() {
    let mut lab = Lab::new();
    lab.kernel.lock().unwrap().refuses = Some(nix::libc::EIO);
    (0..4).for_each(|n| lab.push_frame(&tcp(9, n * 10, 0, &[1; 10])));
    lab.round(Duration::ZERO);
    assert_eq!(lab.drops(DropReason::HostDown), 4);
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    assert_eq!(link.interface.view().counters.refused.get(), 4);
    assert_eq!(lab.worker.outbox.counters.to_host.get(), 0);
}

#[test]
fn without_segmentation_every_frame_goes_up_for_itself() {
    let mut lab = Lab::new();
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    link.interface.set_segmentation(false).unwrap();
    let frames: Vec<_> = (0..4).map(|n| tcp(9, n * 10, 0, &[1; 10])).collect();
    frames.iter().for_each(|frame| lab.push_frame(frame));
    lab.round(Duration::ZERO);
    assert_eq!(lab.kernel.lock().unwrap().got, frames);
}

/// A TCP frame of the kernel's with so much data, and its header.
fn sent_whole(data: usize, size: u16) -> (NetHeader, Vec<u8>) {
    let header = NetHeader {
        flags: NEEDS_CHECKSUM,
        segmentation: SEGMENT_TCP4,
        header_len: 54.into(),
        segment_size: size.into(),
        checksum_start: 34.into(),
        checksum_offset: 16.into(),
    };
    (header, tcp(9, 0, 0, &vec![3; data]))
}

#[test]
fn a_large_frame_leaves_in_segments_as_there_is_room() {
    let mut lab = Lab::new();
    let (header, frame) = sent_whole(60_000, 100);
    lab.kernel.lock().unwrap().header = header;
    lab.kernel.lock().unwrap().sends.extend([frame.clone(), frame]);
    while lab.round(Duration::ZERO) > 0 {}
    assert_eq!(lab.priority.len(), PRIORITY_SIZE);
    assert_eq!(lab.kernel.lock().unwrap().sends.len(), 1, "the second waits in the kernel");
    for number in 0..1200u32 {
        let packet = lab.priority.pop().unwrap();
        assert_eq!((packet.len(), packet.segments()), (154, 1));
        let sequence = u32::from_be_bytes(packet.data()[38..42].try_into().unwrap());
        assert_eq!(sequence, number % 600 * 100);
        lab.round(Duration::ZERO);
    }
    assert!(lab.priority.pop().is_none());
    let counters = &lab.worker.outbox.counters;
    assert_eq!((counters.from_host.get(), counters.injected.get()), (1200, 1200));
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    let down = &link.interface.view().counters.clone().down;
    assert_eq!((down.packets.get(), down.bytes.get()), (1200, 1200 * 154));
}

/// The bytes of a packet in several buffers.
fn bytes(packet: &Mbuf) -> Vec<u8> {
    packet.chunks().flatten().copied().collect()
}

#[test]
fn a_device_that_segments_gets_large_packets() {
    let mut lab = Lab::new();
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    link.interface.set_device(DeviceWork { checksum: true, segmentation: 16, frame: 1514 });
    let (header, frame) = sent_whole(60_000, 1000);
    lab.kernel.lock().unwrap().header = header;
    lab.kernel.lock().unwrap().sends.push_back(frame.clone());
    while lab.round(Duration::ZERO) > 0 {}
    // 16 buffers of 2,048 bytes hold 32 segments and their headers.
    for (sequence, length) in [(0, 32_000), (32_000, 28_000)] {
        let packet = lab.priority.pop().unwrap();
        assert!(packet.has_request());
        assert_eq!(packet.segments(), (54 + length as usize).div_ceil(2048));
        let got = bytes(&packet);
        assert!(got[54..] == frame[54..][..length as usize], "the data");
        assert_eq!(got[16..18], (length as u16 + 40).to_be_bytes(), "the length");
        assert_eq!(got[38..42], u32::to_be_bytes(sequence));
    }
    assert!(lab.priority.pop().is_none());
    let counters = &lab.worker.outbox.counters;
    assert_eq!((counters.from_host.get(), counters.injected.get()), (2, 2));
}

#[test]
fn large_packets_do_not_take_all_buffers() {
    let mut lab = Lab::new();
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    link.interface.set_device(DeviceWork { checksum: true, segmentation: 64, frame: 1514 });
    let (header, frame) = sent_whole(60_000, 1000);
    lab.kernel.lock().unwrap().header = header;
    lab.kernel.lock().unwrap().sends.extend(vec![frame; 40]);
    while lab.round(Duration::ZERO) > 0 {}
    assert_eq!(lab.priority.len(), PRIORITY_SIZE / 8);
    assert_eq!(lab.kernel.lock().unwrap().sends.len(), 8, "they wait in the kernel");
    while lab.priority.pop().is_some() {
        lab.round(Duration::ZERO);
    }
    assert!(lab.kernel.lock().unwrap().sends.is_empty());
}

#[test]
fn a_device_gets_segments_that_it_cannot_make_without_checksums() {
    let mut lab = Lab::new();
    let link = lab.worker.outbox.host(InterfaceId::FIRST).unwrap();
    link.interface.set_device(DeviceWork { checksum: true, segmentation: 64, frame: 153 });
    let (header, frame) = sent_whole(250, 100);
    lab.kernel.lock().unwrap().header = header;
    lab.kernel.lock().unwrap().sends.push_back(frame);
    while lab.round(Duration::ZERO) > 0 {}
    for length in [154, 154, 104] {
        let packet = lab.priority.pop().unwrap();
        assert_eq!((packet.len(), packet.segments()), (length, 1));
        assert!(packet.has_request());
    }
    // A checksum in a header that devices do not know is the router's.
    let other = NetHeader { segmentation: SEGMENT_NONE, checksum_offset: 18.into(), ..header };
    lab.kernel.lock().unwrap().header = other;
    lab.kernel.lock().unwrap().sends.push_back(tcp(9, 0, 0, &[1; 10]));
    lab.round(Duration::ZERO);
    assert!(!lab.priority.pop().unwrap().has_request());
}

#[test]
fn a_header_that_does_not_fit_is_dropped_by_name() {
    let mut lab = Lab::new();
    let (header, frame) = sent_whole(1000, 0);
    lab.kernel.lock().unwrap().header = header;
    lab.kernel.lock().unwrap().sends.push_back(frame.clone());
    lab.round(Duration::ZERO);
    assert_eq!(lab.drops(DropReason::HostMalformed), 1);
    assert_eq!(lab.worker.outbox.counters.from_host.get(), 1);
    // The next one passes.
    lab.kernel.lock().unwrap().header = NetHeader { segmentation: SEGMENT_NONE, ..header };
    lab.kernel.lock().unwrap().sends.push_back(frame);
    lab.round(Duration::ZERO);
    assert_eq!(lab.priority.pop().unwrap().len(), 1054);
}

#[test]
fn a_new_mtu_reaches_the_forwarders_and_is_no_more_than_the_device_takes() {
    let mut lab = Lab::new();
    for (mtu, result) in [(1300, 1300), (9000, 1500)] {
        let command = Command::Mtu { interface: InterfaceId::FIRST, mtu };
        lab.orders.send(Order::Engine(command)).unwrap();
        lab.round(Duration::ZERO);
        assert_eq!(lab.worker.outbox.tables.mtus.get(InterfaceId::FIRST), result);
    }
}

#[test]
fn a_halted_worker_goes_on_with_other_forwarders() {
    let mut lab = Lab::new();
    let (eal, _) = shared();
    let limits = default_limits();
    let ways = SlowPathWays::new(eal, (1, None), (1, 0), &limits, &Arc::default(), 1).unwrap();
    let mut inlets = ways.forwarder.inlets;
    let halt = |lab: &mut Lab, connections: Option<Connections>| {
        let ((halted, answer), (sender, go)) = (tokio::sync::oneshot::channel(), mpsc::channel());
        connections.into_iter().for_each(|connections| sender.send(connections).unwrap());
        drop(sender);
        lab.orders.send(Order::Halt { halted, go }).unwrap();
        lab.round(Duration::ZERO);
        answer.blocking_recv().unwrap();
    };
    let senders = vec![(InterfaceId::FIRST, 1)];
    let more = ways.workers;
    halt(&mut lab, Some(Connections { senders, more, forwarders: 2 }));
    lab.worker.outbox.originate(InterfaceId::FIRST, &[0; 60]);
    assert!(inlets[0].ring.pop().is_some(), "by the new forwarder");
    // The halting end is dropped: nothing has changed.
    halt(&mut lab, None);
    lab.worker.outbox.originate(InterfaceId::FIRST, &[0; 60]);
    assert!(inlets[0].ring.pop().is_some());
    // More than a round takes, of a removed forwarder.
    for number in 0..300 {
        lab.push_local(PuntClass::Host, number);
    }
    halt(&mut lab, Some(Connections { senders: Vec::new(), more: Vec::new(), forwarders: 0 }));
    assert_eq!((lab.taken(PuntClass::Host), lab.kernel.lock().unwrap().got.len()), (300, 300));
    assert!(lab.worker.outbox.injectors.is_empty());
    let (answer, link) = tokio::sync::oneshot::channel();
    lab.orders.send(Order::Disconnect { port: InterfaceId::FIRST, answer }).unwrap();
    lab.round(Duration::ZERO);
    assert!(link.blocking_recv().unwrap().is_some(), "the host interface comes back");
    lab.worker.outbox.originate(InterfaceId::FIRST, &[0; 60]);
    assert_eq!(lab.drops(DropReason::PortDown), 1);
}
