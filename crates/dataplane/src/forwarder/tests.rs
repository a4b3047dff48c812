//! A forwarder between real DPDK devices: ports of the ring driver, whose transmit queue feeds
//! their receive queue.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Receiver;

use super::*;
use crate::builder::GraphBuilder;
use crate::class::ByClass;
use crate::counters::QueueCounters;
use crate::distribution::TxConfig;
use crate::erspan::Erspan;
use crate::exchange::Replacement;
use crate::filters::{FilterSpec, FilterTable, Filters, Police, Treatment};
use crate::frame::Class;
use crate::graph::{Output, Outputs, Step};
use crate::interface::InterfaceId;
use crate::mirror_sessions::{Destination, Direction, MIRROR, Session, Sessions};
use crate::multicast::{MulticastRoute, MulticastRoutes};
use crate::next_hop::NextHopTable;
use crate::punts::{ClassQueue, ClassRing};
use crate::quarantine::Suspect;
use crate::reason::{DropOrigin, Punt, PuntClass, PuntReason};
use crate::router_filter::{ROUTER, RouterFilter};
use crate::shed::{BEHIND, Backlog, Classes, Shedding};
use crate::spread::{DEFAULT_KEY, Spread, Spreader, TABLE, Toeplitz};
use crate::steps::{FAULTY_ID, Faulty, Ip4Lookup, Ip4Rewrite};
use crate::testing::{FrameBuilder, TestTables, dpdk as shared, port_mac};
use crate::transmit::shape::{Bucket, Shape};
use crate::transmit::{QueueConfig, Scheduler, TX_BURST_MAX};
use crate::wires::{Exit, Replicas, TxPath, Wires};
use dpdk::qsbr::Qsbr;
use dpdk::{
    Consumer, Device, Mbuf, Mempool, MempoolConfig, PacketList, Port, PortConfig, Producer, Ring,
    RxQueue, TxQueue,
};

/// A device whose packets return to it, like a looped wire.
fn loop_device() -> (TxQueue, RxQueue) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("net_ring{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let (eal, pool) = shared();
    let device = Device::Vdev { name: name.clone(), args: String::new() };
    let (_, mut rx, mut tx) = Port::open(eal, &PortConfig::new(&name, device), pool).unwrap();
    (tx.remove(0), rx.remove(0))
}

fn settings(tx: TxConfig) -> Settings {
    Settings { tx, ..Settings::default() }
}

fn ring(size: usize) -> (Producer, Consumer) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("fwd-test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    Ring::spsc(&shared().0, &name, size).unwrap()
}

fn mbuf(frame: &[u8]) -> Mbuf {
    shared().1.copy_of(frame).unwrap()
}

/// Capacity of a ring to the slow path in packets.
const PUNT_RING: usize = 64;

fn port(n: u16) -> PortId {
    PortId::new(n).unwrap()
}

fn source(n: u16, queue: RxQueue) -> RxSource {
    RxSource::of_queue(port(n), TestTables::every_kind().interfaces.get()[0], queue)
}

/// The device of port 3 accepts packets of several buffers, the others do not.
fn exit(n: u16, path: TxPath) -> Exit {
    let replicas = Replicas { mac: port_mac(n as u8), by_reference: n == 3 };
    Exit { port: port(n), path, priority: None, replicas }
}

/// The table for punts: number 18 had two earlier uses.
fn used_before() -> Arc<NextHopTable> {
    let table = NextHopTable::new();
    (0..2).for_each(|_| table.take_back(18));
    Arc::new(table)
}

/// A forwarder with one receiving port and five sending ones, like the test tables.
struct Lab {
    forwarder: Forwarder,
    counters: Arc<ForwarderCounters>,
    /// Into the forwarder, as if from the wire.
    wire: TxQueue,
    /// Into the forwarder, for transmission only.
    inject: Producer,
    /// Packets that it punts, by worker.
    punted: [ByClass<ClassQueue>; 2],
    /// Into the forwarder, to be sent by port 3 before all others.
    priority: Producer,
    /// Packets that it sends by port 3: a device.
    sent: RxQueue,
    /// Packets that it sends by port 4: handed over to another forwarder.
    handed_over: Consumer,
    /// Packets that cause its steps to panic.
    suspects: Receiver<Suspect>,
}

impl Lab {
    fn new(graph: Graph, tx: TxConfig) -> Self {
        let (wire, queue) = loop_device();
        let (device, sent) = loop_device();
        let (inject, inlet) = ring(64);
        let worker = || {
            let rings = PuntClass::ALL.iter().map(|_| ClassRing::new(ring(PUNT_RING), PUNT_RING));
            let (into, out): (Vec<_>, Vec<_>) = rings.unzip();
            (into.try_into().ok().unwrap(), out.try_into().ok().unwrap())
        };
        let ((into_0, out_0), (into_1, out_1)) = (worker(), worker());
        let (quarantine, suspects) = Quarantine::new();
        let (priority, priority_out) = ring(1000);
        let (handover, handed_over) = ring(64);
        let mut paths: Vec<_> = (0..3).map(|_| TxPath::Handover(ring(64).0)).collect();
        paths.extend([TxPath::Queue(device), TxPath::Handover(handover)]);
        let mut exits: Vec<_> = (0..).zip(paths).map(|(n, path)| exit(n, path)).collect();
        exits[3].priority = Some(priority_out);
        let counters = Arc::new(ForwarderCounters::default());
        let mut forwarder = Forwarder::new(ForwarderParts {
            interfaces: Vec::new(),
            graph,
            settings: settings(tx),
            replicator: Replicator::new(shared().1.clone()),
            punts: Punts::new(vec![into_0, into_1], used_before(), 1),
            quiescent: Qsbr::new(1).register().unwrap(),
            counters: counters.clone(),
            quarantine,
            waiting: WaitSet::new().unwrap(),
        });
        let wires = Wires {
            rx: vec![source(0, queue)],
            inlets: vec![Inlet { port: None, generation: 0, ring: inlet }],
            exits,
            ..Wires::default()
        };
        forwarder.rewire(&mut Rewiring { wires, ..Rewiring::default() });
        let punted = [out_0, out_1];
        Self { forwarder, counters, wire, inject, punted, priority, sent, handed_over, suspects }
    }

    fn default_graph(tx: TxConfig) -> Self {
        Self::new(crate::default_graph(&TestTables::every_kind()).unwrap(), tx)
    }

    fn receive(&mut self, frames: &[Vec<u8>]) -> usize {
        let mut list = PacketList::new();
        for frame in frames {
            list.push(mbuf(frame)).unwrap();
        }
        assert_eq!(self.wire.send(&mut list, frames.len()).packets, frames.len());
        self.forwarder.round()
    }

    /// Returns the reasons of a ring's punted packets; empties it.
    fn reasons(&mut self, worker: usize, class: PuntClass) -> Vec<PuntReason> {
        let ClassQueue { ring, backlog } = &mut self.punted[worker][class.index()];
        let packets = std::iter::from_fn(|| ring.pop());
        packets
            .inspect(|_| backlog.took(PortId::FIRST))
            .map(|packet| Punt::from_tag(packet.tag()).unwrap().reason)
            .collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.counters.drops.get(reason)
    }

    fn frames_sent(&mut self) -> Vec<Vec<u8>> {
        let mut burst = Burst::new();
        self.sent.receive(&mut burst, BATCH_MAX);
        Mask(burst.owned()).slots().map(|slot| burst.frame(slot).to_vec()).collect()
    }
}

/// Sends every packet at once.
fn at_once() -> TxConfig {
    TxConfig { burst: 1, flush: Duration::ZERO }
}

fn to(address: &str) -> Vec<u8> {
    FrameBuilder::ip4().destination4(address).udp(1, 2, b"x").build()
}

#[test]
fn a_packet_is_forwarded_and_counted() {
    let mut lab = Lab::default_graph(at_once());
    assert_eq!(lab.receive(&[to("10.0.6.1")]), 1);
    let sent = lab.frames_sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0][22], 63);
    let len = to("10.0.6.1").len() as u64;
    let port = port(3);
    assert_eq!(lab.counters.rx(PortId::FIRST).packets.get(), 1);
    assert_eq!(lab.counters.rx(PortId::FIRST).bytes.get(), len);
    assert_eq!(lab.counters.tx(port).packets.get(), 1);
    assert_eq!(lab.counters.tx(port).bytes.get(), len);
}

#[test]
fn a_packet_in_an_unusable_buffer_is_received_and_dropped_by_name() {
    let mut lab = Lab::default_graph(at_once());
    // Its data begin so near the buffer's end that 64 bytes cannot be read from there.
    let mut odd = mbuf(&[0; 2000]);
    assert!(odd.adj(1990));
    let mut list = PacketList::new();
    list.push(odd).unwrap();
    list.push(mbuf(&to("10.0.6.1"))).unwrap();
    assert_eq!(lab.wire.send(&mut list, 2).packets, 2);
    lab.forwarder.round();
    assert_eq!(lab.drops(DropReason::UnusableBuffer), 1);
    let at_receive = lab.counters.drops.of(DropOrigin::Receive);
    assert_eq!(at_receive.get(DropReason::UnusableBuffer), 1);
    assert_eq!(lab.counters.rx(PortId::FIRST).packets.get(), 2);
    assert_eq!(lab.frames_sent().len(), 1);
}

#[test]
fn order_is_kept() {
    let mut lab = Lab::default_graph(at_once());
    let flow = |port| FrameBuilder::ip4().destination4("10.0.6.1").udp(port, 2, b"x").build();
    lab.receive(&(0..40).map(flow).collect::<Vec<_>>());
    let ports: Vec<_> = lab.frames_sent().iter().map(|frame| frame[35]).collect();
    assert_eq!(ports, (0..40).collect::<Vec<u8>>());
}

#[test]
fn punts_carry_their_reason_and_go_to_the_worker_of_their_port() {
    let mut lab = Lab::default_graph(at_once());
    // Received on port 0; the gateway that it waits for is on port 3.
    lab.receive(&[to("10.0.1.1"), to("10.0.8.1"), to("10.0.7.1")]);
    assert_eq!(lab.reasons(0, PuntClass::Host), [PuntReason::Local]);
    let first = lab.punted[1][PuntClass::Resolve.index()].ring.pop().unwrap();
    let punt = Punt::from_tag(first.tag()).unwrap();
    let expected = Punt {
        reason: PuntReason::Unresolved,
        port: PortId::FIRST,
        interface: InterfaceId::FIRST,
        next_hop: 18,
        generation: 2,
    };
    assert_eq!(punt, expected);
    assert_eq!(lab.reasons(1, PuntClass::Resolve), [PuntReason::Glean]);
    assert_eq!(lab.counters.punted.get(), 3);
}

#[test]
fn peers_from_farther_away_than_the_port_accepts_are_dropped() {
    let bgp = |ttl| {
        let segment = [0xc3, 0x50, 0, 179, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0];
        let frame = FrameBuilder::ip4().destination4("10.0.1.1").protocol(6).ttl(ttl);
        frame.payload(&segment).build()
    };
    let mut lab = Lab::default_graph(at_once());
    lab.receive(&[bgp(249), bgp(250), bgp(255), bgp(1)]);
    assert_eq!(lab.reasons(0, PuntClass::Routing), [PuntReason::Local]);
    assert_eq!(lab.reasons(0, PuntClass::Link), [PuntReason::Local]);
    assert_eq!((lab.drops(DropReason::TtlSecurity), lab.counters.punted.get()), (2, 2));
}

/// Of the filter for the router: UDP to 53 is dropped, to 54 refused, to 55 passes once, to 56 is of class `link`.
fn router_filter() -> Arc<crate::tables::Tables> {
    use acl::{Action, Filter, Matches, Rule};
    let rule = |port: u16, action| {
        let to_port = vec![port..=port];
        let matches = Matches { protocol: vec![17], to_port, ..Matches::default() };
        Rule { name: None, line: 0, matches, action }
    };
    let actions = [Action::Drop, Action::Reject, Action::Accept, Action::Accept];
    let rules = (53..).zip(actions).map(|(port, action)| rule(port, action)).collect();
    let mut treatments = vec![Treatment::default(); 4];
    treatments[2].police =
        Some(Police { rate: 1, burst: 1, bytes: false, per_source: None, colours: None });
    treatments[3].class = Some(PuntClass::Link);
    let filter = Filter { name: ROUTER.into(), rules, default: Action::Accept };
    let table = Arc::new(
        FilterTable::new(
            &FilterSpec { filter, treatments, targets: vec![] },
            None,
            &acl::SetReaders::none(),
        )
        .unwrap(),
    );
    let tables = TestTables::every_kind();
    tables.filters.set(Filters {
        tables: vec![None, Some(table)],
        flows: None,
        ..Filters::default()
    });
    tables
}

#[test]
fn the_router_s_filter_decides_before_the_classes() {
    for ip6 in [false, true] {
        let tables = router_filter();
        let mut graph = crate::default_graph(&tables).unwrap();
        graph.companions.router_filter = RouterFilter::of(&tables);
        let mut lab = Lab::new(graph, at_once());
        let to = |net: u8, port| match ip6 {
            false => FrameBuilder::ip4().destination4(&format!("10.0.{net}.1")).udp(1, port, b"x"),
            true => {
                FrameBuilder::ip6().destination6(&format!("2001:db8:{net}::1")).udp(1, port, b"x")
            }
        };
        let own = |port| to(1, port).build();
        lab.receive(&[own(53), own(54), own(55), own(55), own(56), own(57), to(6, 53).build()]);
        assert_eq!((lab.drops(DropReason::Filtered), lab.drops(DropReason::Policed)), (1, 1));
        assert_eq!(lab.reasons(0, PuntClass::Errors), [PuntReason::Reset]);
        assert_eq!(lab.reasons(0, PuntClass::Link), [PuntReason::Local]);
        assert_eq!(lab.reasons(0, PuntClass::Host), [PuntReason::Local; 2]);
        assert_eq!(lab.frames_sent().len(), 1, "on its way elsewhere");
        let table = tables.filters.get().tables[1].clone().unwrap();
        let packets: Vec<_> = table.hits().iter().map(|hits| hits.packets).collect();
        assert_eq!(packets, [1, 1, 2, 1, 1]);
    }
}

#[test]
fn options_do_not_get_around_the_router_s_filter_nor_are_those_of_others_its() {
    let tables = router_filter();
    let mut graph = crate::default_graph(&tables).unwrap();
    graph.companions.router_filter = RouterFilter::of(&tables);
    let mut lab = Lab::new(graph, at_once());
    let to = |address| {
        FrameBuilder::ip4().destination4(address).options(&[1; 4]).udp(1, 53, b"x").build()
    };
    lab.receive(&[to("10.0.1.1"), to("10.0.6.1")]);
    assert_eq!(lab.drops(DropReason::Filtered), 1);
    assert_eq!(lab.reasons(0, PuntClass::Options), [PuntReason::Ip4Options]);
}

#[test]
fn neighbours_are_found_whatever_the_router_s_filter_says() {
    let tables = router_filter();
    let closed = acl::Filter { name: ROUTER.into(), rules: Vec::new(), default: acl::Action::Drop };
    let spec = FilterSpec { filter: closed, treatments: Vec::new(), targets: vec![] };
    let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
    tables.filters.set(Filters { tables: vec![Some(table)], flows: None, ..Filters::default() });
    let mut graph = crate::default_graph(&tables).unwrap();
    graph.companions.router_filter = RouterFilter::of(&tables);
    let mut lab = Lab::new(graph, at_once());
    let message = |ttl| {
        let frame = FrameBuilder::ip6().destination6("2001:db8:1::1").protocol(58).ttl(ttl);
        frame.payload(&[135, 0, 0, 0]).build()
    };
    let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]).build();
    lab.receive(&[message(255), message(254), arp, to("10.0.1.1")]);
    let mut known = lab.reasons(0, PuntClass::Neighbour);
    known.sort();
    assert_eq!(known, [PuntReason::Arp, PuntReason::Local]);
    assert_eq!(lab.drops(DropReason::Filtered), 2);
}

#[test]
fn a_flood_fills_the_ring_of_its_own_class() {
    let mut lab = Lab::default_graph(at_once());
    let expired = FrameBuilder::ip4().destination4("10.0.6.1").ttl(1).build();
    for _ in 0..20 {
        lab.receive(&vec![expired.clone(); 60]);
    }
    let errors = &lab.counters.classes[PuntClass::Errors.index()];
    let (early, full) = (errors.early.get(), errors.full.get());
    assert!(early > 0 && full > 0, "{early} {full}");
    assert_eq!(lab.drops(DropReason::RefusedErrors), early + full);
    assert_eq!(errors.offered.get(), 1200);
    assert_eq!(lab.counters.punted.get() + early + full, 1200);
    // Three times the free part of seven eighths.
    assert_eq!(lab.counters.punted.get(), 42, "the rest is for other ports");
    let group = FrameBuilder::ip4().destination_mac([1, 0, 0x5e, 0, 0, 0x16]).protocol(2);
    let with_options = group.destination4("224.0.0.22").options(&[0x94, 4, 0, 0]).build();
    let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]).build();
    lab.receive(&[expired, to("10.0.1.1"), arp, with_options]);
    assert_eq!(lab.reasons(0, PuntClass::Host), [PuntReason::Local]);
    assert_eq!(lab.reasons(0, PuntClass::Neighbour), [PuntReason::Arp]);
    assert_eq!(lab.reasons(0, PuntClass::Routing), [PuntReason::Ip4Options]);
    assert_eq!(lab.reasons(0, PuntClass::Errors).len(), 42);
    lab.receive(&[to("10.0.4.1")]);
    assert_eq!(
        lab.reasons(0, PuntClass::Errors),
        [PuntReason::Prohibited],
        "what was taken is free"
    );
}

#[test]
fn priority_packets_leave_before_all_others() {
    let mut lab = Lab::default_graph(TxConfig { burst: 64, flush: Duration::from_secs(3600) });
    lab.receive(&vec![to("10.0.6.1"); 3]);
    lab.priority.push(mbuf(&to("10.0.1.1"))).unwrap();
    lab.forwarder.round();
    assert_eq!(lab.frames_sent(), [to("10.0.1.1")]);
    assert_eq!(lab.counters.taken_in.get(), 1);
    lab.forwarder.rest(&AtomicBool::new(false));
    assert_eq!(lab.frames_sent().len(), 3);
}

#[test]
fn priority_packets_wait_for_a_full_queue_and_none_is_lost() {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.parts.settings.polling.ports[3].quota = 4096;
    // Data until the queue is full, then more data and the kernel's packets.
    for _ in 0..50 {
        lab.receive(&vec![to("10.0.6.1"); 60]);
    }
    assert!(lab.drops(DropReason::TxFull) > 0);
    let priority = 900;
    for _ in 0..priority {
        lab.priority.push(mbuf(&to("10.0.1.1"))).unwrap();
    }
    let mut sent = Vec::new();
    while sent.iter().filter(|&&is_priority| is_priority).count() < priority {
        lab.receive(&vec![to("10.0.6.1"); 60]);
        sent.extend(lab.frames_sent().iter().map(|frame| *frame == to("10.0.1.1")));
    }
    let first = sent.iter().position(|&is_priority| is_priority).unwrap();
    let behind = sent.iter().rposition(|&is_priority| is_priority).unwrap();
    assert_eq!(behind - first + 1, priority, "data between them");
    assert!(first > 900, "data that the queue had already");
    assert_eq!(lab.counters.taken_in.get(), priority as u64);
}

#[test]
fn priority_packets_have_a_quota_of_each_round() {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.parts.settings.polling.ports[3].quota = 70;
    for _ in 0..100 {
        lab.priority.push(mbuf(&to("10.0.1.1"))).unwrap();
    }
    assert_eq!(lab.receive(&[to("10.0.6.1")]), 71);
    assert_eq!(lab.forwarder.round(), 30);
    let sent = [lab.frames_sent(), lab.frames_sent()].concat();
    let sent: Vec<_> = sent.iter().map(|frame| *frame == to("10.0.1.1")).collect();
    assert_eq!((sent.len(), sent.iter().position(|is_priority| !is_priority)), (101, Some(70)));
}

#[test]
fn the_end_drops_priority_packets_that_cannot_be_sent_by_name() {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.parts.settings.polling.ports[3].quota = 4096;
    for _ in 0..50 {
        lab.receive(&vec![to("10.0.6.1"); 60]);
    }
    for _ in 0..300 {
        lab.priority.push(mbuf(&to("10.0.1.1"))).unwrap();
    }
    lab.forwarder.round();
    assert_eq!(lab.counters.held.get(), 2 * TX_BURST_MAX as u64);
    lab.forwarder.run(&AtomicBool::new(true));
    assert_eq!(lab.drops(DropReason::Shutdown), 300 + TX_BURST_MAX as u64);
    assert_eq!(lab.counters.taken_in.get(), 300);
}

#[test]
fn a_port_without_own_queue_is_reached_by_handover() {
    let mut lab = Lab::default_graph(at_once());
    // Flows to 10.0.9.0/24 spread over ports 3 and 4.
    let flow = |port| FrameBuilder::ip4().destination4("10.0.9.1").udp(port, 2, b"x").build();
    lab.receive(&(0..40).map(flow).collect::<Vec<_>>());
    let packet = lab.handed_over.pop().unwrap();
    assert_eq!(packet.tag(), 4, "the tag is the egress port");
    let over = lab.handed_over.len() + 1;
    assert_eq!(lab.counters.handed_over.get(), over as u64);
    assert_eq!(lab.frames_sent().len() + over, 40);
}

#[test]
fn a_full_handover_ring_drops_by_name() {
    let mut lab = Lab::default_graph(at_once());
    let packets = 100;
    for _ in 0..packets {
        let mut packet = mbuf(&to("10.0.6.1"));
        packet.set_tag(4);
        lab.inject.push(packet).unwrap();
        lab.forwarder.round();
    }
    assert_eq!(lab.counters.taken_in.get(), packets);
    assert_eq!(lab.counters.handed_over.get(), lab.handed_over.len() as u64);
    assert_eq!(lab.drops(DropReason::HandoverFull), packets - lab.handed_over.len() as u64);
    assert!(lab.drops(DropReason::HandoverFull) > 0);
}

/// A forwarder that sheds, or not, whose queue receives a burst more in each round than it takes.
fn overloaded(shed: Shedding, frames: &[Vec<u8>], rounds: u32) -> Lab {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.parts.settings.polling.shed = shed;
    let send = |lab: &mut Lab| {
        let mut list = PacketList::new();
        frames.iter().for_each(|frame| list.push(mbuf(frame)).unwrap());
        assert_eq!(lab.wire.send(&mut list, frames.len()).packets, frames.len());
    };
    send(&mut lab);
    for _ in 0..rounds {
        send(&mut lab);
        lab.forwarder.round();
        let mut burst = Burst::new();
        while lab.sent.receive(&mut burst, BATCH_MAX) > 0 {
            burst.free(u64::MAX);
        }
    }
    lab
}

/// Shedding without a limit of time, so that the result does not depend on the machine's speed.
fn without_bound() -> Shedding {
    Shedding { percent: u8::MAX, ..Shedding::default() }
}

#[test]
fn what_is_not_to_be_kept_is_shed_before_any_step_when_the_queue_is_never_empty() {
    let control = FrameBuilder::ip4().destination4("10.0.6.1").tos(0xc0).udp(1, 2, b"x").build();
    let frames = [vec![to("10.0.6.1"); 60], vec![control; 4]].concat();
    let lab = overloaded(without_bound(), &frames, BEHIND / 64);
    let received = lab.counters.rx(port(0)).packets.get();
    assert_eq!(received, u64::from(BEHIND) + 64, "all that came");
    assert_eq!(lab.drops(DropReason::Shed), 60);
    assert_eq!(lab.counters.tx(port(3)).packets.get(), received - 60);
    let mut lab = overloaded(without_bound(), &frames, BEHIND / 64 + 1);
    assert_eq!(
        lab.drops(DropReason::Shed),
        60,
        "the queue was emptied, so there is less to take than before"
    );
    lab.receive(&[to("10.0.6.1")]);
    let mut list = PacketList::new();
    frames.iter().for_each(|frame| list.push(mbuf(frame)).unwrap());
    assert_eq!(lab.wire.send(&mut list, frames.len()).packets, frames.len());
    lab.receive(&frames);
    assert_eq!(lab.drops(DropReason::Shed), 120, "a turn that is not full ends nothing");

    let lab = overloaded(without_bound(), &frames, BEHIND / 64 - 1);
    assert_eq!(lab.drops(DropReason::Shed), 0, "not yet");
    let lab = overloaded(Shedding::OFF, &frames, BEHIND / 64 + 10);
    assert_eq!(lab.drops(DropReason::Shed), 0, "switched off");
}

#[test]
fn who_marks_everything_as_control_gains_a_burst_now_and_then() {
    let control = FrameBuilder::ip4().destination4("10.0.6.1").tos(0xc0).udp(1, 2, b"x").build();
    let keep_all = Class::ALL.into_iter().fold(Classes::NONE, Classes::with);
    let shed = Shedding { keep: keep_all, ..without_bound() };
    let lab = overloaded(shed, &vec![control; 64], BEHIND / 64);
    assert_eq!(lab.drops(DropReason::Shed), 0);
    let turns = u64::from(BEHIND / 64);
    // One burst beyond the quota is examined.
    assert_eq!(lab.counters.rx(port(0)).packets.get(), (turns + 1) * 64);
    assert_eq!(
        lab.forwarder.rx[0].backlog,
        Backlog::default(),
        "it is left alone for as long again"
    );
}

#[test]
fn a_full_ring_of_spread_packets_drops_by_name_and_keeps_what_is_not_ip() {
    let mut lab = Lab::default_graph(at_once());
    let (producer, mut others) = ring(256);
    let hash = Toeplitz::new(&DEFAULT_KEY, true);
    let all_to_1 = Spreader::new(hash, [1; TABLE], vec![None, Some(producer)]);
    lab.forwarder.sources_mut()[0].spread = Some(Spread::Rings(all_to_1));
    let arp = FrameBuilder::ethernet([0xff; 6], 0x0806).payload(&[0; 46]).build();
    let control = FrameBuilder::ip4().destination4("10.0.6.1").tos(48 << 2).udp(1, 2, b"x").build();
    // Room for 76 is left behind the first three batches: for network control only.
    let waves = [(to("10.0.6.1"), 60), (to("10.0.6.1"), 60), (to("10.0.6.1"), 60)];
    let later = [(to("10.0.6.1"), 40), (control.clone(), 60), (control.clone(), 40), (arp, 2)];
    for (frame, count) in waves.into_iter().chain(later) {
        lab.receive(&vec![frame; count]);
    }
    assert_eq!(lab.counters.rx(port(0)).packets.get(), 322, "whoever received it has counted it");
    assert_eq!((lab.counters.spread_out.get(), others.len()), (256, 256));
    assert_eq!(lab.drops(DropReason::SpreadFull), 40 + 24);
    assert_eq!(lab.reasons(0, PuntClass::Neighbour).len(), 2);
    let frames: Vec<_> =
        std::iter::from_fn(|| others.pop()).map(|one| one.data().to_vec()).collect();
    assert!(frames[..180].iter().all(|frame| *frame == to("10.0.6.1")));
    assert!(frames[180..].iter().all(|frame| *frame == control), "the rest is for control");
    lab.receive(&[to("10.0.6.1")]);
    assert_eq!(others.len(), 1, "with room again every packet enters");
}

#[test]
fn what_others_have_received_is_forwarded_and_not_counted_twice() {
    let mut lab = Lab::default_graph(at_once());
    let (mut producer, end) = ring(64);
    let info = TestTables::every_kind().interfaces.get()[0];
    let wires = Wires { rx: vec![RxSource::of_ring(port(0), info, end)], ..Wires::default() };
    let mut rewiring = Rewiring { wires, ..Rewiring::default() };
    lab.forwarder.rewire(&mut rewiring);
    assert!(rewiring.drain.contains(port(0)) && !rewiring.stop.contains(port(0)), "undoes it");
    producer.push(mbuf(&to("10.0.6.1"))).unwrap();
    assert_eq!(lab.forwarder.round(), 1);
    assert_eq!(lab.frames_sent().len(), 1);
    assert_eq!((lab.counters.spread_in.get(), lab.counters.rx(port(0)).packets.get()), (1, 0));
    // A stopped queue leaves the ring's packets there; a drained one forwards them first.
    let ports: PortSet = [port(0)].into_iter().collect();
    let mut stop = Rewiring { stop: ports, ..Rewiring::default() };
    lab.forwarder.rewire(&mut stop);
    assert_eq!(stop.wires.rx.len(), 1);
    producer.push(mbuf(&to("10.0.6.1"))).unwrap();
    let mut drain = Rewiring { drain: ports, ..Rewiring::default() };
    lab.forwarder.rewire(&mut drain);
    assert!(drain.wires.rx.len() == 1 && drain.wires.rx[0].input.is_ring());
    assert_eq!((lab.counters.spread_in.get(), lab.frames_sent().len()), (2, 1));
}

#[test]
fn spread_packets_that_nobody_forwards_any_more_are_counted() {
    let mut lab = Lab::default_graph(at_once());
    let (mut producer, end) = ring(64);
    let info = TestTables::every_kind().interfaces.get()[0];
    let wires = Wires { rx: vec![RxSource::of_ring(port(0), info, end)], ..Wires::default() };
    lab.forwarder.rewire(&mut Rewiring { wires, ..Rewiring::default() });
    for _ in 0..3 {
        producer.push(mbuf(&to("10.0.6.1"))).unwrap();
    }
    lab.forwarder.shut_down();
    assert_eq!((lab.drops(DropReason::Shutdown), lab.counters.spread_in.get()), (3, 3));
}

#[test]
fn rounds_with_packets_are_busy_and_others_idle() {
    let mut lab = Lab::default_graph(at_once());
    let cycles = |lab: &Lab| (lab.counters.busy.get(), lab.counters.idle.get());
    lab.forwarder.round();
    lab.forwarder.round();
    let (busy, idle) = cycles(&lab);
    assert!(busy == 0 && idle > 0);
    lab.receive(&[to("10.0.6.1")]);
    let (_, idle) = cycles(&lab);
    lab.forwarder.round();
    assert!(lab.counters.busy.get() > 0, "the round before had a packet");
    assert_eq!(lab.counters.idle.get(), idle);
}

#[test]
fn injected_packets_leave_unchanged_and_unknown_ports_are_drops() {
    let mut lab = Lab::default_graph(at_once());
    for tag in [3, 63, 70_000] {
        let mut packet = mbuf(&to("10.0.1.1"));
        packet.set_tag(tag);
        lab.inject.push(packet).unwrap();
    }
    assert_eq!(lab.forwarder.round(), 3);
    assert_eq!(lab.frames_sent(), [to("10.0.1.1")]);
    assert_eq!(lab.drops(DropReason::PortDown), 2);
}

#[test]
fn a_burst_waits_until_it_is_full() {
    let tx = TxConfig { burst: 4, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(tx);
    lab.receive(&vec![to("10.0.6.1"); 3]);
    lab.forwarder.round();
    assert_eq!(lab.counters.held.get(), 3);
    assert_eq!(lab.frames_sent().len(), 0);
    lab.receive(&[to("10.0.6.1")]);
    assert_eq!(lab.frames_sent().len(), 4);
    assert_eq!(lab.counters.held.get(), 0);
}

#[test]
fn a_burst_that_is_due_leaves_though_not_full() {
    let tx = TxConfig { burst: 64, flush: Duration::ZERO };
    let mut lab = Lab::default_graph(tx);
    lab.receive(&[to("10.0.6.1")]);
    assert_eq!(lab.frames_sent().len(), 1);
}

#[test]
fn an_idle_forwarder_sends_what_waits() {
    let tx = TxConfig { burst: 64, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(tx);
    lab.receive(&[to("10.0.6.1")]);
    assert_eq!(lab.forwarder.round(), 0);
    lab.forwarder.rest(&AtomicBool::new(false));
    assert_eq!(lab.frames_sent().len(), 1);
}

#[test]
fn a_full_transmit_queue_keeps_a_burst_and_drops_the_rest() {
    let mut lab = Lab::default_graph(at_once());
    let packets = 3000u64;
    for _ in 0..packets / 60 {
        lab.receive(&vec![to("10.0.6.1"); 60]);
    }
    let port = port(3);
    let sent = lab.counters.tx(port).packets.get();
    let held = lab.counters.held.get();
    assert_eq!(held, TX_BURST_MAX as u64);
    assert_eq!(lab.drops(DropReason::TxFull), packets - sent - held);
    // Steps that emit packets see that.
    let full = |lab: &Lab| lab.forwarder.distribution.full().ports().collect::<Vec<_>>();
    assert_eq!(full(&lab), [port]);
    // The order survives: kept packets leave first once there is room.
    while !lab.frames_sent().is_empty() {}
    lab.forwarder.round();
    assert_eq!(full(&lab), []);
    assert_eq!(lab.frames_sent().len(), 64);
}

#[test]
fn the_end_sends_what_it_can_and_drops_the_rest_by_name() {
    let tx = TxConfig { burst: 64, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(tx);
    lab.receive(&vec![to("10.0.6.1"); 5]);
    let mut packet = mbuf(&to("10.0.6.1"));
    packet.set_tag(3);
    lab.inject.push(packet).unwrap();
    lab.forwarder.run(&AtomicBool::new(true));
    assert_eq!(lab.frames_sent().len(), 6);
    assert_eq!(lab.drops(DropReason::Shutdown), 0);
    assert_eq!(lab.counters.held.get(), 0);
}

/// Assigns the first packet to both outputs and the second to none.
struct Careless;

impl Step for Careless {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("one"), Output::next("two"), Output::Drop(DropReason::Blackhole)] }
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        batch.out_interface = [3; BATCH_MAX];
        out[0] = input.without(Mask(0b10));
        out[2] = input & Mask(0b1);
    }
}

#[test]
fn a_faulty_step_loses_no_memory() {
    let mut graph = GraphBuilder::new();
    graph.add("careless", Careless).unwrap();
    graph.transmit("careless", "one").unwrap();
    graph.transmit("careless", "two").unwrap();
    let mut lab = Lab::new(graph.build().unwrap(), at_once());
    lab.receive(&vec![to("10.0.6.1"); 3]);
    // The packet in two outputs is sent once and freed once; the one in none is freed.
    assert_eq!(lab.frames_sent().len(), 2);
    assert_eq!(lab.drops(DropReason::StepLost), 1);
}

/// Lookup, the step that panics, rewrite.
fn graph_with_a_faulty_step() -> Graph {
    let tables = TestTables::every_kind();
    let mut graph = GraphBuilder::new();
    graph.add("lookup", Ip4Lookup::new(tables.clone())).unwrap();
    graph.add("faulty", Faulty).unwrap();
    graph.add("rewrite", Ip4Rewrite::new(&tables)).unwrap();
    graph.connect("lookup", "forward", "faulty").unwrap();
    graph.replicate("lookup", "multicast").unwrap();
    graph.connect("faulty", "next", "rewrite").unwrap();
    graph.transmit("rewrite", "transmit").unwrap();
    graph.build().unwrap()
}

/// A packet that causes the step to panic; `n` makes it distinct.
fn poisoned(n: u16) -> Vec<u8> {
    let mut frame = FrameBuilder::ip4().destination4("10.0.6.1").udp(n, 2, b"x").build();
    frame[18..20].copy_from_slice(&FAULTY_ID.to_be_bytes());
    FrameBuilder::fix_ip4_checksum(&mut frame);
    frame
}

#[test]
fn a_panic_costs_the_packet_that_provokes_it_and_nothing_else() {
    let mut lab = Lab::new(graph_with_a_faulty_step(), at_once());
    let good = |port| FrameBuilder::ip4().destination4("10.0.6.1").udp(port, 2, b"x").build();
    for round in 0..3 {
        let mut frames: Vec<_> = (0..40).map(good).collect();
        frames[7] = poisoned(7);
        frames[23] = poisoned(23);
        // Not in the faulty step when it panics: to the slow path, dropped.
        frames[30] = to("10.0.1.1");
        frames[31] = to("10.0.2.1");
        lab.receive(&frames);
        let sent = lab.frames_sent();
        let ports: Vec<_> = sent.iter().map(|frame| u16::from(frame[35])).collect();
        let survivors = (0..40).filter(|n| ![7, 23, 30, 31].contains(n));
        assert_eq!(ports, survivors.collect::<Vec<u16>>(), "round {round}: in order");
        assert!(sent.iter().all(|frame| frame[22] == 63), "each went through the steps once");
        assert_eq!(lab.reasons(0, PuntClass::Host), [PuntReason::Local]);
        for n in [7, 23] {
            let suspect = lab.suspects.try_recv().unwrap();
            assert_eq!((suspect.frame, suspect.interface), (poisoned(n), Some(InterfaceId::FIRST)));
            let words = "the faulty step met identification 0xdead (";
            assert!(suspect.message.contains(words), "{}", suspect.message);
        }
    }
    assert_eq!(lab.drops(DropReason::Quarantined), 6);
    assert_eq!(lab.drops(DropReason::StepLost), 0);
}

#[test]
fn a_batch_of_nothing_but_poison_is_survived() {
    let mut lab = Lab::new(graph_with_a_faulty_step(), at_once());
    lab.receive(&vec![poisoned(1); 64]);
    assert_eq!(lab.drops(DropReason::Quarantined), 64);
    assert_eq!(lab.frames_sent().len(), 0);
    lab.receive(&[to("10.0.6.1")]);
    assert_eq!(lab.frames_sent().len(), 1);
}

/// Panics in a batch of more than one packet only.
struct Moody;

impl Step for Moody {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        assert!(input.count() < 2, "too many at once");
        batch.out_interface = [3; BATCH_MAX];
        out[0] = input;
    }
}

#[test]
fn several_steps_may_panic_over_one_batch() {
    let mut graph = GraphBuilder::new();
    graph.add("moody", Moody).unwrap();
    graph.add("faulty", Faulty).unwrap();
    graph.add("again", Moody).unwrap();
    graph.connect("moody", "next", "faulty").unwrap();
    graph.connect("faulty", "next", "again").unwrap();
    graph.transmit("again", "next").unwrap();
    let mut lab = Lab::new(graph.build().unwrap(), at_once());
    lab.receive(&[to("10.0.6.1"), poisoned(1), to("10.0.6.2"), to("10.0.6.3")]);
    assert_eq!(lab.frames_sent(), [to("10.0.6.1"), to("10.0.6.2"), to("10.0.6.3")]);
    assert_eq!(lab.drops(DropReason::Quarantined), 1);
}

/// Packets from port 0 to 239.1.1.1 leave by these ports.
fn group_to(ports: &[u16]) -> Graph {
    let tables = TestTables::every_kind();
    let to = ports.iter().map(|&n| (InterfaceId::new(n).unwrap(), 0));
    let route = MulticastRoute::new(InterfaceId::FIRST, to, Arc::default());
    let mut routes = MulticastRoutes::default();
    let [group, every_kind] = ["239.1.1.1", "10.0.10.1"].map(|text| text.parse().unwrap());
    routes.ip4.insert(None, group, route.clone());
    routes.ip4.insert(None, every_kind, route);
    tables.multicast.publish(routes);
    crate::default_graph(&tables).unwrap()
}

#[test]
fn a_packet_to_a_group_leaves_by_each_port_with_its_address() {
    let mut lab = Lab::new(group_to(&[3, 4]), at_once());
    // Long enough that not all of it is moved to the headers where it is received.
    let frame = FrameBuilder::ip4().destination4("10.0.10.1").payload(&[7; 300]).build();
    assert_eq!(lab.receive(std::slice::from_ref(&frame)), 1);
    let mut burst = Burst::new();
    assert_eq!(lab.sent.receive(&mut burst, BATCH_MAX), 1);
    assert_eq!(burst.multi_segment(), 1, "by reference");
    let replica = burst.take(0).unwrap();
    let copy = lab.handed_over.pop().unwrap();
    assert_eq!((replica.segments(), copy.segments()), (2, 1));
    for (packet, port) in [(&replica, 3), (&copy, 4)] {
        let bytes: Vec<u8> = packet.chunks().flatten().copied().collect();
        let mut expected = frame.clone();
        expected[..6].copy_from_slice(&[1, 0, 0x5e, 0, 10, 1]);
        expected[6..12].copy_from_slice(&port_mac(port));
        expected[22] -= 1;
        FrameBuilder::fix_ip4_checksum(&mut expected);
        assert_eq!(bytes, expected, "by port {port}");
    }
    assert_eq!(copy.tag(), 4, "the other forwarder learns the port");
    assert_eq!((lab.counters.replicated.get(), lab.drops(DropReason::NoBuffer)), (1, 0));
}

#[test]
fn a_packet_with_one_receiver_leaves_as_it_is() {
    let mut lab = Lab::new(group_to(&[3]), at_once());
    assert_eq!(lab.receive(&[to("10.0.10.1")]), 1);
    let mut burst = Burst::new();
    assert_eq!(lab.sent.receive(&mut burst, BATCH_MAX), 1);
    assert_eq!((burst.multi_segment(), burst.frame(0)[6..12].to_vec()), (0, port_mac(3).to_vec()));
    assert_eq!(lab.counters.replicated.get(), 0);
}

#[test]
fn a_full_batch_with_many_receivers_is_complete() {
    let mut lab = Lab::new(group_to(&[3, 4]), TxConfig { burst: 128, ..at_once() });
    assert_eq!(lab.receive(&vec![to("10.0.10.1"); 60]), 60);
    assert_eq!(lab.counters.replicated.get(), 60);
    let by_device = lab.counters.tx(PortId::new(3).unwrap()).packets.get();
    let handed_over = std::iter::from_fn(|| lab.handed_over.pop()).count() as u64;
    let lost = lab.drops(DropReason::HandoverFull) + lab.drops(DropReason::NoBuffer);
    assert_eq!((by_device, handed_over + lost), (60, 60));
    assert_eq!(by_device + lab.counters.handed_over.get() + lost, 120);
}

/// Requests a copy of every second packet by port 4, and one of the first by port 3.
struct Spy;

impl Step for Spy {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        batch.mirror(input & Mask(0x5555_5555_5555_5555), PortId::new(4).unwrap());
        batch.mirror(input & Mask(1), PortId::new(3).unwrap());
    }
}

fn spied_upon() -> Lab {
    let mut steps = crate::default_steps(&TestTables::every_kind()).unwrap();
    steps.insert("spy", Spy, "ip4-validate").unwrap();
    Lab::new(steps.build().unwrap(), TxConfig { burst: 128, ..at_once() })
}

#[test]
fn copies_leave_as_the_packets_were_whatever_becomes_of_those() {
    let mut lab = spied_upon();
    // The first is forwarded, the third has no route.
    let frames = [to("10.0.6.1"), to("10.0.6.1"), to("10.0.0.1")];
    lab.receive(&frames);
    let copies: Vec<_> = std::iter::from_fn(|| lab.handed_over.pop()).collect();
    let bytes: Vec<_> = copies.iter().map(Mbuf::data).collect();
    assert_eq!(bytes, [&frames[0], &frames[2]]);
    assert_eq!(copies[0].tag(), 4);
    let sent = lab.frames_sent();
    assert_eq!((sent.len(), sent.contains(&frames[0])), (3, true));
    assert_eq!((lab.counters.replicated.get(), lab.drops(DropReason::NoBuffer)), (3, 0));
    // The next batch has no traces of them.
    lab.receive(&[vec![0; 60]]);
    assert!(lab.handed_over.pop().is_none());
}

#[test]
fn copies_for_which_there_is_no_room_are_counted() {
    let mut lab = spied_upon();
    let config =
        MempoolConfig { name: "few".into(), count: 7, cache: 0, data_room: 2048, node: None };
    let pool = Mempool::new(&shared().0, &config).unwrap();
    lab.forwarder.batch.copies = Some(Copies::new(pool.clone()));
    lab.receive(&vec![to("10.0.6.1"); 32]);
    // Of 17 copies 7 were made.
    assert_eq!((lab.counters.replicated.get(), lab.drops(DropReason::NoBuffer)), (17, 10));
    assert_eq!(
        lab.frames_sent().len() + std::iter::from_fn(|| lab.handed_over.pop()).count(),
        32 + 7
    );
    drop(lab);
    assert_eq!(pool.leaked(), 0);
}

/// Tables with a mirror session of this port and direction, whose copies leave by the other port.
fn mirrored(from: u16, direction: Direction, to: u16) -> Arc<crate::tables::Tables> {
    let tables = TestTables::every_kind();
    let from = vec![InterfaceId::of_port(port(from))];
    let to = Destination::Port(port(to));
    let session = Session { name: "tap".into(), from, direction, to, sample: 1, vlan: None };
    tables.mirrors.set(Arc::new(Sessions::new(vec![session], &tables.vlans.get(), false)));
    let mut interfaces = tables.interfaces.get();
    for interface in &mut interfaces {
        interface.features = interface.features.with(MIRROR, 1);
    }
    tables.interfaces.set(interfaces);
    tables
}

fn mirroring(tables: &Arc<crate::tables::Tables>) -> Graph {
    let mut graph = crate::default_graph(tables).unwrap();
    graph.companions.mirror_output = tables.mirror_output();
    graph
}

/// A frame whose copy shares bytes.
fn long(address: &str, ttl: u8) -> Vec<u8> {
    FrameBuilder::ip4().destination4(address).ttl(ttl).udp(1, 2, &[7; 900]).build()
}

fn whole(packet: &Mbuf) -> Vec<u8> {
    packet.chunks().flatten().copied().collect()
}

#[test]
fn received_packets_are_mirrored_as_they_came_and_the_others_own_theirs_alone() {
    let tables = mirrored(0, Direction::Inward, 3);
    let mut lab = Lab::new(mirroring(&tables), TxConfig { burst: 128, ..at_once() });
    // Forwarded by ports 3 and 4, punted, dropped.
    let frames = [
        long("10.0.6.1", 64),
        long("10.0.9.1", 64),
        long("10.0.6.1", 1),
        long("10.0.2.1", 64),
        to("10.0.6.1"),
    ];
    lab.receive(&frames);
    let sent = lab.frames_sent();
    // The ring device would not deliver packets that others share.
    let copies: Vec<_> = sent.iter().filter(|frame| frame[22] != 63).collect();
    assert_eq!(copies, frames.iter().collect::<Vec<_>>());
    let ring = &mut lab.punted[0][PuntClass::Errors.index()].ring;
    let mut burst = Burst::new();
    assert_eq!((ring.receive(&mut burst, 8), ring.unusable()), (1, 0));
    assert_eq!(burst.frame(0), frames[2]);
    let forwarded = sent.len() - copies.len() + usize::from(lab.handed_over.pop().is_some());
    assert_eq!(forwarded, 3);
    assert_eq!(lab.counters.replicated.get(), 5);
    let counts = tables.mirrors.counts()["tap"];
    assert_eq!((counts.packets, counts.dropped), (5, 0));
}

#[test]
fn copies_that_an_analyser_s_port_does_not_take_cost_nothing_else() {
    let tables = mirrored(0, Direction::Inward, 4);
    let mut lab = Lab::new(mirroring(&tables), at_once());
    for _ in 0..3 {
        assert_eq!(lab.receive(&vec![long("10.0.6.1", 64); 40]), 40);
        assert_eq!(lab.frames_sent().len(), 40);
    }
    // The ring to the port holds fewer.
    let taken: Vec<_> = std::iter::from_fn(|| lab.handed_over.pop()).collect();
    assert!(taken.iter().all(|copy| whole(copy) == long("10.0.6.1", 64)));
    assert_eq!(lab.drops(DropReason::MirrorLost), 120 - taken.len() as u64);
    assert_eq!(lab.drops(DropReason::HandoverFull), 0);
    assert_eq!(lab.counters.replicated.get(), 120);
    let counts = tables.mirrors.counts()["tap"];
    assert_eq!((counts.packets, counts.dropped), (120, 120 - taken.len() as u64));
    // Nor does one without a path.
    lab.forwarder.rewire(&mut exchange_exit(4, TxPath::None));
    lab.receive(&[to("10.0.6.1")]);
    assert_eq!((lab.frames_sent().len(), lab.drops(DropReason::PortDown)), (1, 0));
    assert_eq!(tables.mirrors.counts()["tap"].dropped, counts.dropped + 1);
}

#[test]
fn sent_packets_are_mirrored_wherever_they_come_from() {
    let tables = mirrored(3, Direction::Outward, 4);
    let mut lab = Lab::new(mirroring(&tables), at_once());
    lab.receive(&[to("10.0.6.1"), to("10.0.2.1")]);
    let mut injected = mbuf(&long("10.0.6.9", 9));
    injected.set_tag(3);
    lab.inject.push(injected).unwrap();
    lab.forwarder.round();
    lab.priority.push(mbuf(&to("10.0.6.7"))).unwrap();
    lab.forwarder.round();
    let copies: Vec<_> = std::iter::from_fn(|| lab.handed_over.pop()).collect();
    let copies: Vec<_> = copies.iter().map(whole).collect();
    assert_eq!(copies, lab.frames_sent());
    assert_eq!(copies[1], long("10.0.6.9", 9));
    // Nothing else leaves by the analyser's port.
    let mut own = mbuf(&to("10.0.6.9"));
    own.set_tag(4);
    lab.inject.push(own).unwrap();
    lab.forwarder.round();
    assert!(lab.handed_over.pop().is_none());
    assert_eq!(lab.drops(DropReason::MirrorDestination), 1);
    assert_eq!(lab.counters.replicated.get(), 3);
    assert_eq!(lab.counters.taken_in.get(), 3);
    assert_eq!(lab.counters.tx(port(3)).packets.get(), 3);
}

/// Tables with a mirror session of a port, whose copies leave by the routes, over this next hop.
fn mirrored_far(from: u16, direction: Direction, hop: u16) -> Arc<crate::tables::Tables> {
    let tables = mirrored(from, direction, 4);
    let mut session = Session {
        name: "far".into(),
        from: vec![InterfaceId::of_port(port(from))],
        direction,
        to: Destination::Port(port(4)),
        sample: 1,
        vlan: None,
    };
    session.to = Destination::Erspan(Erspan {
        source: "192.0.2.1".parse().unwrap(),
        destination: "198.51.100.9".parse().unwrap(),
        vrf: crate::interface::VrfId::DEFAULT,
        id: 1,
        dscp: 0,
        ttl: 64,
        length: None,
    });
    tables.named_hops.set([(&*session.hop_name(), hop)].into_iter());
    let sessions = Sessions::new(vec![session], &tables.vlans.get(), false);
    let sessions = sessions.with_tunnels(&tables.named_hops, &Sessions::default());
    tables.mirrors.set(Arc::new(sessions));
    tables
}

#[test]
fn copies_that_leave_by_a_mirrored_port_are_not_copied_again() {
    // Next hop 20 is on port 4, whose packets another forwarder sends.
    let tables = mirrored_far(0, Direction::Inward, 20);
    let mut lab = Lab::new(mirroring(&tables), at_once());
    lab.receive(&[to("10.0.6.1")]);
    let copy = lab.handed_over.pop().unwrap();
    assert_eq!(whole(&copy)[50..], to("10.0.6.1"));
    assert_eq!(lab.frames_sent().len(), 1);
    // That forwarder mirrors the port: only what is not a copy already.
    let tables = mirrored_far(3, Direction::Outward, 20);
    let mut other = Lab::new(mirroring(&tables), at_once());
    let mut packet = mbuf(&whole(&copy));
    packet.set_tag(copy.tag() & !0xffff | 3);
    other.inject.push(packet).unwrap();
    other.forwarder.round();
    assert_eq!((other.frames_sent().len(), other.handed_over.pop().is_some()), (1, false));
    let mut packet = mbuf(&to("10.0.6.1"));
    packet.set_tag(3);
    other.inject.push(packet).unwrap();
    other.forwarder.round();
    assert_eq!((other.frames_sent().len(), other.handed_over.pop().is_some()), (1, true));
}

#[test]
fn copies_yield_to_the_traffic_of_a_port_that_is_full() {
    let tables = mirrored_far(0, Direction::Inward, 16);
    let mut lab = Lab::new(mirroring(&tables), at_once());
    let frames = vec![to("10.0.6.1"); 20];
    let (mut rounds, mut before) = (0, 0);
    while lab.drops(DropReason::TxFull) == 0 {
        before = lab.drops(DropReason::MirrorLost);
        lab.receive(&frames);
        rounds += 1;
    }
    assert!(before > 0, "copies were lost before a packet was");
    let counts = tables.mirrors.counts()["far"];
    assert_eq!(counts.packets, rounds * 20);
    assert_eq!(counts.dropped, lab.drops(DropReason::MirrorLost));
    assert_eq!(lab.counters.replicated.get(), rounds * 20);
}

#[test]
fn a_graph_takes_its_mirror_sessions_with_it() {
    let tables = mirrored(3, Direction::Outward, 4);
    let mut lab = Lab::new(mirroring(&tables), at_once());
    let exchange = lab.forwarder.exchange();
    let copies = |lab: &mut Lab| {
        lab.receive(&[to("10.0.6.1")]);
        std::iter::from_fn(|| lab.handed_over.pop()).count()
    };
    assert_eq!(copies(&mut lab), 1);
    let none = crate::default_graph(&TestTables::every_kind()).unwrap();
    exchange.put(Replacement { graph: Some(none), ..Replacement::default() });
    lab.forwarder.take_replacement();
    assert_eq!(copies(&mut lab), 0);
    let given_back = exchange.take().unwrap().ok().unwrap();
    exchange.put(given_back);
    lab.forwarder.take_replacement();
    assert_eq!(copies(&mut lab), 1, "undone");
}

#[test]
fn what_there_is_no_buffer_for_is_counted() {
    let mut lab = Lab::new(group_to(&[3, 4]), at_once());
    let config =
        MempoolConfig { name: "none".into(), count: 1, cache: 0, data_room: 2048, node: None };
    let pool = Mempool::new(&shared().0, &config).unwrap();
    let held = pool.alloc().unwrap();
    lab.forwarder.parts.replicator = Replicator::new(pool.clone());
    for n in 0..5 {
        let mut replicas = Replicas { mac: port_mac(n), by_reference: true };
        lab.forwarder.parts.replicator.exchange(port(n.into()), &mut replicas);
    }
    lab.receive(&[to("10.0.10.1")]);
    assert_eq!(lab.counters.replicated.get(), 1);
    assert_eq!(lab.drops(DropReason::NoBuffer), 2);
    drop(held);
    assert_eq!(pool.leaked(), 0);
}

#[test]
fn a_running_forwarder_takes_another_graph_between_two_rounds() {
    let mut lab = Lab::default_graph(at_once());
    let (exchange, old) = (lab.forwarder.exchange(), lab.forwarder.shape().clone());
    let mut other = GraphBuilder::new();
    other.add("everything", Discard).unwrap();
    other.discard("everything", "next").unwrap();
    let other = other.build().unwrap();
    let counters = other.counters().clone();
    assert_eq!(lab.receive(&[to("10.0.0.1")]), 1);
    let mut info = TestTables::every_kind().interfaces.get()[0];
    info.features = info.features.with(crate::steps::REDIRECTS, 1);
    let (ports, settings) = (Some(vec![info]), Some(settings(at_once())));
    exchange.put(Replacement { graph: Some(other), ports, settings, ..Replacement::default() });
    let stop = Arc::new(AtomicBool::new(false));
    let end = stop.clone();
    let owner = std::thread::spawn(move || {
        while exchange.is_waiting() {
            std::thread::yield_now();
        }
        end.store(true, Ordering::Relaxed);
        exchange.wake();
        exchange.take()
    });
    lab.forwarder.run(&stop);
    assert!(lab.forwarder.exchange().pause().unwrap() > 0);
    let given_back = owner.join().unwrap().unwrap().ok().unwrap();
    assert_eq!(*given_back.graph.unwrap().shape(), old);
    assert_eq!(given_back.ports.unwrap(), [TestTables::every_kind().interfaces.get()[0]]);
    assert_eq!(lab.forwarder.sources_mut()[0].info, info);
    assert_eq!((lab.receive(&[to("10.0.0.1")]), counters.get(0)), (1, 1));
}

#[test]
fn other_bursts_hold_from_the_next_packet_on() {
    let patient = TxConfig { burst: 64, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(patient);
    assert_eq!(lab.receive(&[to("10.0.6.1")]), 1);
    assert_eq!(lab.frames_sent().len(), 0, "it waits for others");
    let settings = Some(settings(at_once()));
    lab.forwarder.exchange().put(Replacement { settings, ..Replacement::default() });
    lab.forwarder.take_replacement();
    assert_eq!(lab.receive(&[to("10.0.6.1")]), 1);
    assert_eq!(lab.frames_sent().len(), 2);
}

/// Leads all packets to one end.
struct Discard;

impl Step for Discard {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
    }
}

fn exchange_exit(n: u16, path: TxPath) -> Rewiring {
    let wires = Wires { exits: vec![exit(n, path)], ..Wires::default() };
    Rewiring { wires, ..Rewiring::default() }
}

#[test]
fn other_slow_path_workers_take_over_and_nothing_is_lost_on_the_way() {
    let mut lab = Lab::default_graph(at_once());
    let rings = PuntClass::ALL.iter().map(|_| ClassRing::new(ring(PUNT_RING), PUNT_RING));
    let (into, mut punted): (Vec<_>, Vec<_>) = rings.unzip();
    let punts = Punts::new(vec![into.try_into().ok().unwrap()], used_before(), 1);
    let (mut inject, inlet) = ring(64);
    let inlets = vec![Inlet { port: None, generation: 1, ring: inlet }];
    let wires = Wires { inlets, ..Wires::default() };
    let mut rewiring = Rewiring { punts: Some(punts), wires, ..Rewiring::default() };
    let packet = || {
        let mut packet = mbuf(&to("10.0.1.1"));
        packet.set_tag(4);
        packet
    };
    // To and fro, as a change that is undone, and again.
    for _ in 0..2 {
        lab.forwarder.rewire(&mut rewiring);
        assert_eq!(rewiring.release, Some(1));
        lab.forwarder.rewire(&mut rewiring);
        assert_eq!((rewiring.release, rewiring.wires.inlets.len()), (None, 1));
    }
    lab.forwarder.rewire(&mut rewiring);
    lab.receive(&[to("198.51.100.1")]);
    let found: usize = punted.iter_mut().map(|queue| usize::from(queue.ring.pop().is_some())).sum();
    assert_eq!((found, lab.counters.punted.get()), (1, 1));
    // The former workers still send what they have until they end.
    lab.inject.push(packet()).unwrap();
    inject.push(packet()).unwrap();
    lab.forwarder.round();
    assert_eq!(lab.handed_over.len(), 2);
    lab.inject.push(packet()).unwrap();
    let mut rewiring = Rewiring { release: Some(0), ..Rewiring::default() };
    lab.forwarder.rewire(&mut rewiring);
    assert_eq!(lab.handed_over.len(), 3);
    let returned = &rewiring.wires.inlets[..];
    assert!(returned.len() == 1 && returned[0].generation == 0 && returned[0].ring.is_empty());
    assert_eq!(lab.forwarder.inlets.len(), 1);
}

#[test]
fn a_port_comes_receives_sends_and_goes() {
    let mut lab = Lab::default_graph(at_once());
    // Port 7, the sixth, which has no neighbours: 5 and 6 are not there.
    let (mut wire, queue) = loop_device();
    let (device, mut sent) = loop_device();
    let mut rewiring = exchange_exit(7, TxPath::Queue(device));
    rewiring.wires.rx.push(source(7, queue));
    lab.forwarder.rewire(&mut rewiring);
    assert!(rewiring.wires.rx.is_empty() && matches!(rewiring.wires.exits[0].path, TxPath::None));
    let mut list = PacketList::new();
    list.push(mbuf(&to("10.0.6.1"))).unwrap();
    assert_eq!(wire.send(&mut list, 1).packets, 1);
    for tag in [6, 7, 8] {
        let mut packet = mbuf(&to("10.0.1.1"));
        packet.set_tag(tag);
        lab.inject.push(packet).unwrap();
    }
    assert_eq!(lab.forwarder.round(), 4);
    let mut burst = Burst::new();
    assert_eq!((lab.frames_sent().len(), sent.receive(&mut burst, BATCH_MAX)), (1, 1));
    assert_eq!((lab.counters.rx(port(7)).packets.get(), lab.drops(DropReason::PortDown)), (1, 2));
    // Undoing the change makes it leave.
    lab.forwarder.rewire(&mut rewiring);
    let Wires { rx, exits, .. } = &rewiring.wires;
    assert_eq!((rx.len(), rx[0].port), (1, port(7)));
    assert!(matches!(exits[0].path, TxPath::Queue(_)));
    assert_eq!(lab.receive(&[to("10.0.6.1")]), 1, "the others are what they were");
    assert_eq!(lab.frames_sent().len(), 1);
}

#[test]
fn what_is_on_the_way_to_a_port_is_sent_before_its_queue_is_given_away() {
    let patient = TxConfig { burst: 64, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(patient);
    let (mut handed, inlet) = ring(64);
    lab.forwarder.inlets.push(Inlet { port: Some(port(3)), generation: 0, ring: inlet });
    let flow = |n| FrameBuilder::ip4().destination4("10.0.6.1").udp(n, 2, b"x").build();
    lab.receive(&(0..5).map(flow).collect::<Vec<_>>());
    for n in 5..10 {
        let mut packet = mbuf(&flow(n));
        packet.set_tag(3);
        handed.push(packet).unwrap();
    }
    lab.priority.push(mbuf(&flow(99))).unwrap();
    let mut rewiring = exchange_exit(3, TxPath::None);
    rewiring.detach.set(port(3), true);
    lab.forwarder.rewire(&mut rewiring);
    let ports: Vec<_> = lab.frames_sent().iter().map(|frame| frame[35]).collect();
    assert_eq!(ports, [99, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!((lab.counters.taken_in.get(), lab.forwarder.distribution.held()), (6, 0));
    let Wires { inlets, exits, .. } = &mut rewiring.wires;
    assert_eq!((inlets.len(), inlets[0].port), (1, Some(port(3))));
    assert!(inlets[0].ring.is_empty() && exits[0].priority.is_some());
    assert_eq!(exits[0].replicas, Replicas { mac: port_mac(3), by_reference: true });
    lab.receive(&[flow(10)]);
    lab.forwarder.rest(&AtomicBool::new(false));
    assert_eq!(lab.drops(DropReason::PortDown), 1);
    lab.forwarder.rewire(&mut rewiring);
    lab.receive(&[flow(11)]);
    lab.forwarder.rest(&AtomicBool::new(false));
    assert_eq!(lab.frames_sent().len(), 1, "it is back");
    assert_eq!(lab.forwarder.inlets.len(), 2);
}

#[test]
fn what_was_received_is_sent_before_another_forwarder_receives() {
    let patient = TxConfig { burst: 64, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(patient);
    let ports: PortSet = [port(0)].into_iter().collect();
    lab.receive(&vec![to("10.0.6.1"); 5]);
    let mut stop = Rewiring { stop: ports, ..Rewiring::default() };
    lab.forwarder.rewire(&mut stop);
    assert_eq!((stop.wires.rx.len(), lab.frames_sent().len()), (1, 5));
    // Packets handed over by the receiving forwarder.
    for _ in 0..3 {
        let mut packet = mbuf(&to("10.0.6.1"));
        packet.set_tag(3);
        lab.inject.push(packet).unwrap();
    }
    lab.forwarder.rewire(&mut Rewiring { drain: ports, ..Rewiring::default() });
    assert_eq!((lab.counters.taken_in.get(), lab.frames_sent().len()), (3, 3));
}

#[test]
fn what_a_full_queue_refuses_when_it_is_given_away_is_dropped_by_name() {
    let mut lab = Lab::default_graph(at_once());
    for _ in 0..50 {
        lab.receive(&vec![to("10.0.6.1"); 60]);
    }
    for _ in 0..300 {
        lab.priority.push(mbuf(&to("10.0.1.1"))).unwrap();
    }
    let before = lab.drops(DropReason::TxFull);
    assert_eq!(lab.forwarder.distribution.held(), TX_BURST_MAX);
    lab.forwarder.rewire(&mut exchange_exit(3, TxPath::None));
    assert_eq!(lab.drops(DropReason::TxFull), before + TX_BURST_MAX as u64 + 300);
    assert_eq!((lab.forwarder.distribution.held(), lab.counters.taken_in.get()), (0, 300));
}

#[test]
fn what_is_handed_over_goes_before_its_ring() {
    let patient = TxConfig { burst: 64, flush: Duration::from_secs(3600) };
    let mut lab = Lab::default_graph(patient);
    let mut packet = mbuf(&to("10.0.6.1"));
    packet.set_tag(4);
    lab.inject.push(packet).unwrap();
    // It is still in the inlet.
    let (device, mut sent) = loop_device();
    let mut rewiring = exchange_exit(4, TxPath::Queue(device));
    lab.forwarder.rewire(&mut rewiring);
    assert_eq!(lab.handed_over.pop().map(|packet| packet.tag()), Some(4));
    assert_eq!(lab.counters.handed_over.get(), 1);
    let mut packet = mbuf(&to("10.0.6.1"));
    packet.set_tag(4);
    lab.inject.push(packet).unwrap();
    lab.forwarder.round();
    lab.forwarder.rest(&AtomicBool::new(false));
    assert_eq!(sent.receive(&mut Burst::new(), BATCH_MAX), 1);
}

/// Waits for an action of another thread.
fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what} does not happen");
        give_way();
    }
}

/// Yields the core to the other threads for a moment. Threads that only yield share it with them in
/// slices of milliseconds, which takes minutes for thousands of packets on few cores.
fn give_way() {
    std::thread::sleep(Duration::from_micros(10));
}

/// A forwarder on a thread that receives from a ring, so that it can block.
struct Blocking {
    received: Producer,
    inject: Producer,
    priority: Producer,
    sent: RxQueue,
    exchange: Arc<Exchange>,
    counters: Arc<ForwarderCounters>,
    group: Arc<Qsbr>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Forwarder>,
}

impl Blocking {
    fn new(wait: Wait) -> Self {
        let mut lab = Lab::default_graph(at_once());
        let group = Qsbr::new(1);
        lab.forwarder.parts.quiescent = group.register().unwrap();
        let (received, end) = ring(64);
        let info = TestTables::every_kind().interfaces.get()[0];
        // The lab's device cannot wake a forwarder.
        let stop = [port(0)].into_iter().collect();
        let wires = Wires { rx: vec![RxSource::of_ring(port(0), info, end)], ..Wires::default() };
        lab.forwarder.rewire(&mut Rewiring { stop, wires, ..Rewiring::default() });
        let exchange = lab.forwarder.exchange();
        let mut other = settings(at_once());
        other.polling.ports[0].wait = wait;
        exchange.put(Replacement { settings: Some(other), ..Replacement::default() });
        lab.forwarder.take_replacement();
        exchange.take().unwrap().ok().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let end = stop.clone();
        let Lab { mut forwarder, counters, inject, priority, sent, .. } = lab;
        let body = move || {
            forwarder.run(&end);
            forwarder
        };
        let thread = std::thread::spawn(body);
        Self { received, inject, priority, sent, exchange, counters, group, stop, thread }
    }

    fn wait_until_it_blocks(&self) {
        wait_for("blocking", || self.counters.blocking.get() == 1);
    }

    /// Counts of its wake-ups by receive queues, rings and control.
    fn woken(&self) -> [u64; 3] {
        let ForwarderCounters { woken_by_receive, woken_by_ring, woken_by_control, .. } =
            &*self.counters;
        [woken_by_receive.get(), woken_by_ring.get(), woken_by_control.get()]
    }

    fn end(self) -> Forwarder {
        self.stop.store(true, Ordering::Relaxed);
        self.exchange.wake();
        self.thread.join().unwrap()
    }
}

#[test]
fn a_forwarder_that_blocks_is_woken_by_each_ring_by_an_exchange_and_to_end() {
    for wait in [Wait::Interrupt, Wait::Adaptive, Wait::Moderated] {
        let mut one = Blocking::new(wait);
        let mut frame = Burst::new();
        for (woken, producer) in (1..).zip([&mut one.received, &mut one.inject, &mut one.priority])
        {
            wait_for("blocking", || one.counters.blocking.get() == 1);
            let mut packet = mbuf(&to("10.0.6.1"));
            packet.set_tag(3);
            producer.push(packet).unwrap();
            wait_for("the packet", || one.counters.tx(port(3)).packets.get() == woken);
            assert_eq!(one.sent.receive(&mut frame, 64), 1);
            frame.free(u64::MAX);
        }
        one.wait_until_it_blocks();
        assert_eq!(one.woken(), [0, 3, 0]);
        // A blocked reader delays no writer.
        one.group.synchronize();
        let mut poll = settings(at_once());
        poll.polling.ports[0].wait = Wait::Poll;
        one.exchange.put(Replacement { settings: Some(poll), ..Replacement::default() });
        wait_for("the exchange", || !one.exchange.is_waiting());
        let old = one.exchange.take().unwrap().ok().unwrap().settings.unwrap();
        assert_eq!(old.polling.ports[0].wait, wait, "what undoes it");
        // Now it polls, and does not block.
        let (blocks, rounds) = (one.counters.blocks.get(), one.counters.rounds.get());
        wait_for("polling", || one.counters.rounds.get() > rounds + 5000);
        assert_eq!((one.counters.blocks.get(), one.counters.blocking.get()), (blocks, 0));
        one.exchange.put(Replacement { settings: Some(old), ..Replacement::default() });
        wait_for("the exchange", || !one.exchange.is_waiting());
        one.wait_until_it_blocks();
        let (woken, counters) = (one.woken(), one.counters.clone());
        one.end();
        assert_eq!(counters.woken_by_control.get(), woken[2] + 1);
        assert!(counters.blocked.get() > 0);
        assert_eq!(counters.sleeps.get() > 0, wait == Wait::Moderated);
    }
}

/// A queue of port 3 that sends 1,000 packets of 1,000 bytes in a second.
fn slow_queue() -> Schedulers {
    let shape = Shape { rate: 1_000_000, burst: 2_000, overhead: 0 };
    let bucket = Arc::new(Bucket::new(shape, dpdk::tsc_hz()));
    let scheduler = Scheduler::new(QueueConfig::default(), Some((shape, bucket)), Arc::default());
    vec![(port(3), Some(Box::new(scheduler)))]
}

/// For 10.0.6.1, with this number.
fn numbered(number: u16) -> Vec<u8> {
    FrameBuilder::ip4().destination4("10.0.6.1").udp(number, 2, &[0; 958]).build()
}

#[test]
fn a_forwarder_that_blocks_wakes_for_packets_whose_time_has_come() {
    let mut one = Blocking::new(Wait::Interrupt);
    one.exchange.put(Replacement { schedulers: slow_queue(), ..Replacement::default() });
    wait_for("the exchange", || !one.exchange.is_waiting());
    for number in 0..20 {
        let mut packet = mbuf(&numbered(number));
        packet.set_tag(3);
        one.inject.push(packet).unwrap();
    }
    wait_for("the packets", || one.counters.tx(port(3)).packets.get() == 20);
    let (mut burst, mut numbers) = (Burst::new(), Vec::new());
    one.sent.receive(&mut burst, 64);
    (0..burst.len()).for_each(|slot| numbers.push(u16::from(burst.frame(slot)[35])));
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
    one.wait_until_it_blocks();
    let counters = one.counters.clone();
    // It blocked rather than slept for some microseconds, and held the waiting packets.
    assert!(counters.blocks.get() > 5 && counters.sleeps.get() == 0);
    assert_eq!(counters.held.get(), 0);
    one.end();
}

#[test]
fn what_waits_for_a_rate_is_held_and_leaves_with_the_next_queue_or_without_one() {
    let mut lab = Lab::default_graph(at_once());
    let mut schedulers = slow_queue();
    lab.forwarder.exchange_schedulers(&mut schedulers);
    assert!(schedulers[0].1.is_none(), "there was none before");
    lab.receive(&(0..40).map(numbered).collect::<Vec<_>>());
    let (sent, held) = (lab.frames_sent().len(), lab.counters.held.get());
    assert!(sent < 10 && sent as u64 + held == 40, "{sent} sent, {held} held");
    // Into a shorter one.
    let config = QueueConfig { length: 20, ..QueueConfig::default() };
    let never = Shape { rate: 1, burst: 1518, overhead: 0 };
    let bucket = Arc::new(Bucket::new(never, 1));
    let of = Arc::<QueueCounters>::default();
    let scheduler = Scheduler::new(config, Some((never, bucket)), of.clone());
    let mut shorter = vec![(port(3), Some(Box::new(scheduler)))];
    lab.forwarder.exchange_schedulers(&mut shorter);
    assert!(shorter[0].1.as_ref().is_some_and(|old| old.is_empty()));
    let dropped = lab.drops(DropReason::QueueFull);
    let full = of.class(Class::Default).full.get();
    assert_eq!((dropped, full), (held - 20, held - 20));
    // And without any: everything leaves at once.
    let mut none = vec![(port(3), None)];
    lab.forwarder.exchange_schedulers(&mut none);
    assert!(none[0].1.as_ref().is_some_and(|old| old.is_empty()));
    lab.forwarder.round();
    assert_eq!(lab.counters.held.get(), 0);
    assert_eq!(lab.counters.tx(port(3)).packets.get(), 40 - dropped);
}

#[test]
fn what_the_kernel_sends_waits_in_the_queue_by_its_class() {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.exchange_schedulers(&mut slow_queue());
    lab.receive(&(0..40).map(numbered).collect::<Vec<_>>());
    lab.frames_sent();
    let mut keepalive = numbered(99);
    keepalive[15] = 48 << 2;
    lab.priority.push(mbuf(&keepalive)).unwrap();
    lab.priority.push(mbuf(&numbered(98))).unwrap();
    let mut after = Vec::new();
    wait_for("the keepalive", || {
        lab.forwarder.round();
        after.extend(lab.frames_sent().iter().map(|frame| frame[35]));
        after.contains(&99)
    });
    assert!(after.len() <= 4 && !after.contains(&98), "{after:?}");
    wait_for("the rest", || {
        lab.forwarder.round();
        after.extend(lab.frames_sent().iter().map(|frame| frame[35]));
        after.contains(&98)
    });
    assert_eq!(after.last(), Some(&98), "it came last");
}

#[test]
fn a_port_that_goes_takes_what_waits_for_it_along() {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.exchange_schedulers(&mut slow_queue());
    lab.receive(&(0..40).map(numbered).collect::<Vec<_>>());
    let wires = Wires { exits: vec![Exit::none(port(3))], ..Wires::default() };
    lab.forwarder.rewire(&mut Rewiring { wires, ..Rewiring::default() });
    let sent = lab.counters.tx(port(3)).packets.get();
    assert_eq!(lab.drops(DropReason::TxFull), 40 - sent);
    lab.forwarder.round();
    assert_eq!(lab.counters.held.get(), 0);
}

/// Three producers whose packets arrive when the forwarder is about to block, or blocks: a lost
/// wake-up would leave packets in a ring.
#[test]
fn producers_that_come_while_it_goes_to_sleep_are_heard() {
    const PACKETS: u64 = 6000;
    let one = Blocking::new(Wait::Interrupt);
    let Blocking { received, inject, priority, mut sent, exchange, counters, stop, thread, .. } =
        one;
    let producers = [received, inject, priority].map(|mut producer| {
        let counters = counters.clone();
        std::thread::spawn(move || {
            for number in 0..PACKETS {
                // Packets are few: all wait until the forwarder has sent the earlier ones.
                let mut packet = loop {
                    match shared().1.copy_of(&to("10.0.6.1")) {
                        Some(packet) => break packet,
                        None => give_way(),
                    }
                };
                packet.set_tag(3);
                while let Err(back) = producer.push(packet) {
                    packet = back;
                    give_way();
                }
                if number % 5 == 0 {
                    wait_for("an empty ring", || producer.is_empty());
                }
                if number % 50 == 0 {
                    wait_for("blocking", || counters.blocking.get() == 1 || !producer.is_empty());
                }
            }
            wait_for("an empty ring", || producer.is_empty());
        })
    });
    let mut burst = Burst::new();
    while !producers.iter().all(std::thread::JoinHandle::is_finished) {
        sent.receive(&mut burst, 64);
        burst.free(u64::MAX);
        give_way();
    }
    producers.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(counters.blocks.get() > PACKETS / 50, "{} blocks", counters.blocks.get());
    stop.store(true, Ordering::Relaxed);
    exchange.wake();
    thread.join().unwrap();
}

#[test]
fn a_quota_of_several_bursts_is_taken_in_one_turn() {
    let mut lab = Lab::default_graph(at_once());
    lab.forwarder.parts.settings.polling.ports[0].quota = 20;
    lab.forwarder.rx[0].burst = 8;
    let mut list = PacketList::new();
    for _ in 0..50 {
        list.push(mbuf(&to("10.0.6.1"))).unwrap();
    }
    assert_eq!(lab.wire.send(&mut list, 50).packets, 50);
    assert_eq!(lab.forwarder.round(), 20);
    assert_eq!(lab.counters.batches(), 3, "bursts of 8, 8 and 4");
    let fill: Vec<_> = lab.counters.batch_fill.iter().map(|of| of.get()).collect();
    assert_eq!((fill, lab.counters.batched.get()), (vec![0, 0, 1, 2, 0, 0, 0], 20));
    lab.forwarder.parts.settings.polling.budget = 5;
    assert_eq!(lab.forwarder.round(), 5);
    // The injected packet's turn begins when the port has used its quota.
    let mut packet = mbuf(&to("10.0.6.1"));
    packet.set_tag(3);
    lab.inject.push(packet).unwrap();
    let found: Vec<_> =
        (0..4).map(|_| (lab.forwarder.round(), lab.counters.taken_in.get())).collect();
    assert_eq!(found, [(5, 0), (5, 0), (5, 0), (5, 1)]);
}
