//! A scheduler between real packets and a real device: that of the ring driver, whose transmit
//! queue feeds its receive queue.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use dpdk::{Burst, Device, Port, PortConfig, RxQueue};
use proptest::prelude::*;

use super::*;
use crate::counters::QueueCounters;
use crate::testing::{FrameBuilder, dpdk as shared};
use crate::vlan::{Tag, TagProtocol, Tags};

/// Capacity of the device's ring in packets.
const RING: usize = 1023;

const PORT: PortId = PortId::FIRST;

struct Lab {
    scheduler: Scheduler,
    counters: ForwarderCounters,
    queue: Arc<QueueCounters>,
    device: TxQueue,
    wire: RxQueue,
    hz: u64,
}

impl Lab {
    fn new(config: QueueConfig, shape: Option<Shape>) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("net_ring_queue{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (eal, pool) = shared();
        let device = Device::Vdev { name: name.clone(), args: String::new() };
        let (_, mut rx, mut tx) = Port::open(eal, &PortConfig::new(&name, device), pool).unwrap();
        let hz = dpdk::tsc_hz();
        let queue = Arc::<QueueCounters>::default();
        Self {
            scheduler: Scheduler::new(config, shape.map(rate), queue.clone()),
            counters: ForwarderCounters::default(),
            queue,
            device: tx.remove(0),
            wire: rx.remove(0),
            hz,
        }
    }

    /// Another queue before the same device, with all counters at 0.
    fn replace(&mut self, config: QueueConfig, shape: Option<Shape>) {
        self.queue = Arc::default();
        self.scheduler = Scheduler::new(config, shape.map(rate), self.queue.clone());
        self.counters = ForwarderCounters::default();
    }

    fn offer(&mut self, frames: impl IntoIterator<Item = Vec<u8>>, now: u64) {
        let mut list = PacketList::new();
        for frame in frames {
            list.push(shared().1.copy_of(&frame).unwrap()).unwrap();
            if list.room() == 0 {
                self.scheduler.offer(&mut list, now, (PORT, &self.counters));
            }
        }
        self.scheduler.offer(&mut list, now, (PORT, &self.counters));
        assert!(list.is_empty());
    }

    fn serve(&mut self, now: u64) -> usize {
        self.scheduler.serve(&mut self.device, now, (PORT, &self.counters))
    }

    /// Returns the numbers and codepoints of transmitted packets.
    fn sent(&mut self) -> Vec<(u16, u8)> {
        let (mut burst, mut all) = (Burst::new(), Vec::new());
        while self.wire.receive(&mut burst, 64) > 0 {
            for slot in 0..burst.len() {
                let frame = burst.frame(slot);
                all.push((u16::from_be_bytes([frame[34], frame[35]]), frame[15] >> 2));
            }
            burst.free(u64::MAX);
        }
        all
    }

    fn dropped(&self) -> u64 {
        let drops = &self.counters.drops;
        let reasons = [DropReason::QueueFull, DropReason::QueueRed, DropReason::QueueCodel];
        reasons.map(|reason| drops.get(reason)).iter().sum()
    }
}

fn rate(shape: Shape) -> Rate {
    (shape, Arc::new(Bucket::new(shape, dpdk::tsc_hz())))
}

/// A UDP packet of 1,000 bytes whose source port is its number.
fn frame(number: u16, dscp: u8) -> Vec<u8> {
    let mut frame = FrameBuilder::ip4().udp(number, 2, &[0; 958]).build();
    frame[15] = dscp << 2;
    frame[24..26].fill(0);
    let sum = wire::checksum::checksum(&frame[14..34]).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame
}

fn fifo(length: u32) -> QueueConfig {
    QueueConfig { length, ..QueueConfig::default() }
}

const CS6: u8 = 48;

#[test]
fn without_a_rate_everything_leaves_at_once_and_in_order() {
    let mut lab = Lab::new(fifo(1000), None);
    lab.offer((0..300).map(|n| frame(n, 0)), 0);
    assert_eq!((lab.serve(0), lab.scheduler.len()), (300, 0));
    assert_eq!(lab.sent(), (0..300).map(|n| (n, 0)).collect::<Vec<_>>());
    let of = lab.queue.class(Class::Default);
    assert_eq!((of.sent.get(), of.sent_bytes.get(), of.waiting.get()), (300, 300_000, 0));
    assert!(!lab.scheduler.is_stuck() && lab.scheduler.due().is_none());
}

#[test]
fn what_the_device_does_not_take_waits_up_to_the_length_and_keeps_its_order() {
    let mut lab = Lab::new(fifo(500), None);
    let mut sent = 0;
    for n in 0..8 {
        lab.offer((0..200).map(|m| frame(n * 200 + m, 0)), 0);
        sent += lab.serve(0);
    }
    assert_eq!(sent, RING);
    assert!(lab.scheduler.is_stuck());
    // Packets refused by the device wait outside the queue.
    let refused = lab.scheduler.out.len();
    assert!(refused > 0);
    assert!((500..=500 + refused).contains(&lab.scheduler.len()));
    assert_eq!(lab.dropped() as usize, 1600 - RING - lab.scheduler.len());
    let mut first = lab.sent();
    while lab.serve(0) > 0 {}
    first.extend(lab.sent());
    assert!(first.is_sorted() && first.len() as u64 == 1600 - lab.dropped());
}

#[test]
fn control_leaves_first_but_gets_no_more_than_half_beside_others() {
    let mut lab = Lab::new(fifo(200), None);
    lab.offer((0..100).map(|n| frame(n, 0)), 0);
    lab.offer((0..100).map(|n| frame(n, CS6)), 0);
    lab.serve(0);
    let order: Vec<_> = lab.sent().iter().map(|&(_, dscp)| dscp).collect();
    let ahead = (AHEAD_MOST as usize).div_ceil(1000);
    assert_eq!(order[..ahead], vec![CS6; ahead]);
    let rest = &order[ahead..ahead + 100];
    let control = rest.iter().filter(|&&dscp| dscp == CS6).count();
    assert!((49..=51).contains(&control), "{control} of 100");
    assert_eq!(order.len(), 200);
}

#[test]
fn a_rate_holds_packets_back_and_says_for_how_long() {
    // 1,000 packets a second, two at once.
    let shape = Shape { rate: 1_000_000, burst: 2_000, overhead: 0 };
    let mut lab = Lab::new(fifo(1000), Some(shape));
    let begin = lab.hz;
    lab.offer((0..100).map(|n| frame(n, 0)), begin);
    let burst = lab.serve(begin);
    assert!((2..=3).contains(&burst), "{burst}");
    let due = lab.scheduler.due().unwrap();
    assert!(due > begin && !lab.scheduler.is_stuck());
    assert_eq!(lab.serve(due - 1), 0);
    assert!(lab.serve(due) > 0);
    let mut sent = lab.sent().len();
    // 50 ms later at most 50 more packets have left, and a quantum and a frame.
    for step in 1..=50 {
        lab.serve(begin + lab.hz / 1000 * step);
        sent += lab.sent().len();
    }
    assert!((49..=54).contains(&sent), "{sent}");
    let of = lab.queue.class(Class::Default);
    assert_eq!(of.waiting.get() as usize, 100 - sent);
    let delay = of.delay_most.get() as f64 / lab.hz as f64;
    assert!((0.045..=0.05).contains(&delay), "{delay} s");
}

#[test]
fn drr_divides_a_rate_among_classes() {
    let config = QueueConfig { length: 1000, discipline: Discipline::Drr([4, 3, 2, 2, 1]) };
    let shape = Shape { rate: 1_000_000, burst: 4_000, overhead: 0 };
    let mut lab = Lab::new(config, Some(shape));
    let (ef, le) = (46, 1);
    lab.offer((0..400).flat_map(|n| [frame(n, ef), frame(n, 0), frame(n, le)]), 0);
    let mut sent = Vec::new();
    for step in 0..280 {
        lab.serve(lab.hz + lab.hz / 1000 * step);
        sent.extend(lab.sent());
    }
    let count = |of: u8| sent.iter().filter(|&&(_, dscp)| dscp == of).count() as f64;
    let all = sent.len() as f64;
    for (dscp, share) in [(ef, 4.0 / 7.0), (0, 2.0 / 7.0), (le, 1.0 / 7.0)] {
        assert!((count(dscp) / all - share).abs() < 0.03, "{dscp}: {} of {all}", count(dscp));
    }
    let numbers = |of: u8| sent.iter().filter(move |&&(_, dscp)| dscp == of).map(|&(n, _)| n);
    assert!([ef, 0, le].into_iter().all(|dscp| numbers(dscp).is_sorted()));
}

#[test]
fn a_queue_that_takes_over_keeps_order_and_time_and_drops_what_exceeds_it() {
    let mut old = Lab::new(fifo(1000), Some(Shape { rate: 1000, burst: 2000, overhead: 0 }));
    old.offer((0..300).map(|n| frame(n, if n % 10 == 0 { CS6 } else { 0 })), 5);
    let sent = old.serve(5);
    let mut new = Lab::new(fifo(100), None);
    new.scheduler.take_over(&mut old.scheduler, 50, (PORT, &new.counters));
    assert!(old.scheduler.is_empty());
    assert_eq!(new.dropped() as usize, 300 - sent - new.scheduler.len());
    let waiting = 30 - old.sent().len() + 100;
    assert_eq!(new.serve(105), waiting);
    let all = new.sent();
    for dscp in [CS6, 0] {
        let numbers = all.iter().filter(|&&(_, of)| of == dscp).map(|&(n, _)| n);
        assert!(numbers.is_sorted());
    }
    let delay = new.queue.class(Class::Default).delay_most.get();
    assert_eq!(delay, 100, "since it came to the old one");
}

#[test]
fn what_waits_at_the_end_is_dropped_by_name() {
    let mut lab = Lab::new(fifo(1000), Some(Shape { rate: 1000, burst: 2000, overhead: 0 }));
    lab.offer((0..20).map(|n| frame(n, if n < 5 { CS6 } else { 0 })), 0);
    assert_eq!(lab.scheduler.len(), 20);
    lab.scheduler.drop_all(DropReason::Shutdown, (PORT, &lab.counters));
    assert_eq!(lab.counters.drops.get(DropReason::Shutdown), 20);
    assert!(lab.scheduler.is_empty());
}

fn disciplines() -> impl Strategy<Value = Discipline> {
    let red = RedConfig { least: 5, most: 20, percent: 20, ecn: true };
    let codel = CodelConfig { target_us: 100, interval_us: 2_000, ecn: true };
    prop_oneof![
        Just(Discipline::Fifo),
        Just(Discipline::Red(red)),
        Just(Discipline::Codel(codel)),
        Just(Discipline::Drr(WEIGHTS)),
    ]
}

/// Every packet is sent, dropped with a reason, or waits, and packets of a class keep their order,
/// for any sequence of arrivals.
#[test]
fn every_packet_is_somewhere() {
    let lab = RefCell::new(Lab::new(fifo(1), None));
    let steps = proptest::collection::vec((0usize..40, 0usize..6, 0u64..5000), 1..30);
    let default = ProptestConfig::default();
    let config = ProptestConfig { cases: default.cases.div_ceil(4), ..default };
    proptest!(config, |(
        discipline in disciplines(),
        shaped in any::<bool>(),
        length in 1u32..60,
        steps in steps,
    )| {
        let shape = Shape { rate: 5_000_000, burst: 5_000, overhead: 24 };
        let config = QueueConfig { length, discipline };
        let lab = &mut *lab.borrow_mut();
        lab.replace(config, shaped.then_some(shape));
        let (mut now, mut offered, mut sent) = (lab.hz, 0u16, Vec::new());
        for (count, class, micros) in steps {
            now += lab.hz / 1_000_000 * micros;
            let dscp = [48, 46, 34, 18, 0, 1][class];
            let first = offered;
            offered += count as u16;
            lab.offer((first..offered).map(|number| frame(number, dscp)), now);
            lab.serve(now);
            sent.extend(lab.sent());
            prop_assert!(lab.scheduler.len() <= config.buffers());
        }
        let all = sent.len() as u64 + lab.dropped() + lab.scheduler.len() as u64;
        prop_assert_eq!(all, u64::from(offered));
        for dscp in [48, 46, 34, 18, 0, 1] {
            let numbers = sent.iter().filter(|&&(_, of)| of == dscp).map(|&(number, _)| number);
            prop_assert!(numbers.is_sorted());
        }
        lab.scheduler.drop_all(DropReason::Shutdown, (PORT, &lab.counters));
        prop_assert_eq!(lab.scheduler.len(), 0);
    });
}

fn tag(protocol: TagProtocol, id: u16) -> Tag {
    Tag { protocol, id, priority: 0 }
}

/// The tags of a VLAN, and of one inside it.
fn vlan(outer: u16, inner: Option<u16>) -> Tags {
    let inner = inner.map(|id| tag(TagProtocol::Dot1q, id));
    Tags { outer: tag(TagProtocol::Dot1ad, outer), inner }
}

fn tagged(frame: &[u8], tags: Tags) -> Vec<u8> {
    let tags = [Some(tags.outer), tags.inner].into_iter().flatten();
    let tags = tags.flat_map(|tag| tag.bytes());
    frame[..12].iter().copied().chain(tags).chain(frame[12..].iter().copied()).collect()
}

fn speed(kilobytes: u64) -> Shape {
    Shape { rate: kilobytes * 1000, burst: 4_000, overhead: 0 }
}

impl Lab {
    fn add(&mut self, tags: Tags, config: QueueConfig, shape: Option<Shape>) -> Arc<QueueCounters> {
        let counters = Arc::<QueueCounters>::default();
        self.scheduler.add(tags, config, shape.map(rate), counters.clone());
        counters
    }

    /// Returns the number of transmitted packets by the identifiers of their tags; 0: no tag.
    fn sent_by_vlan(&mut self) -> BTreeMap<(u16, u16), usize> {
        let (mut burst, mut all) = (Burst::new(), BTreeMap::new());
        while self.wire.receive(&mut burst, 64) > 0 {
            for slot in 0..burst.len() {
                let frame = burst.frame(slot);
                let id = |at: usize| match frame[at..at + 4] {
                    [0x88, 0xa8, a, b] | [0x81, 0x00, a, b] => u16::from_be_bytes([a, b]),
                    _ => 0,
                };
                *all.entry((id(12), id(16))).or_default() += 1;
            }
            burst.free(u64::MAX);
        }
        all
    }
}

#[test]
fn a_vlan_has_its_rate_and_those_inside_it_share_it() {
    let mut lab = Lab::new(fifo(2000), Some(Shape { burst: 40_000, ..speed(10_000) }));
    let alone = lab.add(vlan(7, None), fifo(1000), Some(speed(500)));
    lab.add(vlan(300, None), fifo(1000), Some(speed(1_000)));
    let inside = [5, 6].map(|id| lab.add(vlan(300, Some(id)), fifo(1000), None));
    lab.add(vlan(300, Some(9)), fifo(1000), Some(speed(100)));
    // 300.8 has no queue of its own.
    let of = |n: u16| {
        let frame = frame(n, 0);
        let inside = [5, 6, 8, 9].map(|id| tagged(&frame, vlan(300, Some(id))));
        let alone = tagged(&frame, vlan(7, None));
        let other = tagged(&frame, vlan(8, None));
        [frame, alone, other].into_iter().chain(inside)
    };
    lab.offer((0..200).flat_map(of), lab.hz);
    let mut sent = BTreeMap::<_, usize>::new();
    let mut due = 0;
    for step in 0..=200 {
        let now = lab.hz + lab.hz / 1000 * step;
        lab.serve(now);
        due += u64::from(lab.scheduler.due().is_some_and(|due| due > now));
        assert!(!lab.scheduler.is_stuck());
        lab.sent_by_vlan()
            .into_iter()
            .for_each(|(of, count)| *sent.entry(of).or_default() += count);
    }
    // What has no rate but the port's left long ago; the others wait for their own.
    assert_eq!((sent[&(0, 0)], sent[&(8, 0)], due), (200, 200, 201));
    let expected = [((7, 0), 100), ((300, 9), 20), ((300, 5), 60), ((300, 6), 60), ((300, 8), 60)];
    for (of, packets) in expected {
        assert!(sent[&of].abs_diff(packets) <= 8, "{of:?}: {} for {packets}", sent[&of]);
    }
    let default = |of: &QueueCounters| {
        let of = of.class(Class::Default);
        (of.sent.get() + of.waiting.get(), of.most.get() > 190)
    };
    assert_eq!((default(&alone), default(&inside[0])), ((200, true), (200, true)));
    lab.scheduler.set_unlimited(true);
    while lab.serve(lab.hz + lab.hz / 1000 * 200) > 0 {
        lab.sent();
    }
    assert!(lab.scheduler.is_empty() && lab.scheduler.due().is_none());
}

/// Every packet is sent, dropped or waits, packets of a VLAN keep their order, and no VLAN exceeds its rate or that
/// around it, for any VLANs and any arrivals; and as many leave as the rates allow, in the end all.
#[test]
fn vlans_lose_and_reorder_nothing_and_keep_their_rates() {
    const KILOBYTES: [u64; 4] = [300, 2_000, 500, 900];
    let arrival = (0usize..30, 0usize..6, 0u64..3000);
    let default = ProptestConfig::default();
    let config = ProptestConfig { cases: default.cases.div_ceil(4), ..default };
    let lab = RefCell::new(Lab::new(fifo(1), None));
    proptest!(config, |(
        disciplines in proptest::collection::vec(disciplines(), 5),
        of_port in any::<bool>(),
        has_rate in any::<[bool; 4]>(),
        arrivals in proptest::collection::vec(arrival, 1..40),
        take_over in any::<bool>(),
    )| {
        let lab = &mut *lab.borrow_mut();
        let queue = |at: usize| QueueConfig { length: 40, discipline: disciplines[at] };
        let tags = [vlan(1, None), vlan(2, None), vlan(1, Some(5)), vlan(3, Some(6))];
        let shape = |at: usize| has_rate[at].then(|| speed(KILOBYTES[at]));
        let build = |lab: &mut Lab| {
            lab.replace(queue(4), of_port.then(|| speed(1_500)));
            for (at, of) in tags.into_iter().enumerate() {
                lab.add(of, queue(at), shape(at));
            }
        };
        build(lab);
        let (mut now, mut offered) = (lab.hz, 0u16);
        let mut sent: Vec<(usize, u16)> = Vec::new();
        // The kinds of frames: the queues' own, 3 without an inner tag, and untagged ones.
        let kinds = [Some(tags[0]), Some(tags[1]), Some(tags[2]), Some(tags[3]), Some(vlan(3, None)), None];
        let arrived = |lab: &mut Lab, sent: &mut Vec<(usize, u16)>| {
            let mut burst = Burst::new();
            while lab.wire.receive(&mut burst, 64) > 0 {
                for slot in 0..burst.len() {
                    let frame = burst.frame(slot);
                    let (_, start) = wire::ethernet::payload(frame).unwrap();
                    let kind = kinds.iter().position(|kind| match kind {
                        Some(tags) => frame[12..start - 2] == tagged(&[0; 12], *tags)[12..],
                        None => start == 14,
                    });
                    let number = u16::from_be_bytes([frame[start + 20], frame[start + 21]]);
                    sent.push((kind.unwrap(), number));
                }
                burst.free(u64::MAX);
            }
        };
        let mut dropped = 0;
        for (count, kind, micros) in arrivals {
            now += lab.hz / 1_000_000 * micros;
            let frames = (offered..offered + count as u16).map(|number| {
                let frame = frame(number, if number % 9 == 0 { 48 } else { 0 });
                kinds[kind].map_or(frame.clone(), |tags| tagged(&frame, tags))
            });
            lab.offer(frames.collect::<Vec<_>>(), now);
            offered += count as u16;
            lab.serve(now);
            arrived(lab, &mut sent);
            let bytes = |kinds: &[usize]| {
                1000 * sent.iter().filter(|(kind, _)| kinds.contains(kind)).count() as u128
            };
            let within = |kinds: &[usize], kilobytes: u64| {
                let granted = u128::from(kilobytes * 1000) * u128::from(now - lab.hz) / u128::from(lab.hz);
                // A quantum and a frame are sent in advance.
                bytes(kinds) <= granted + 4_000 + 1_000 + 2 * 1022
            };
            prop_assert!(!has_rate[0] || within(&[0, 2], KILOBYTES[0]));
            prop_assert!(!has_rate[1] || within(&[1], KILOBYTES[1]));
            prop_assert!(!has_rate[2] || within(&[2], KILOBYTES[2]));
            prop_assert!(!has_rate[3] || within(&[3], KILOBYTES[3]));
            prop_assert!(!of_port || take_over || within(&[0, 1, 2, 3, 4, 5], 1_500));
        }
        if take_over {
            let mut old = std::mem::replace(&mut lab.scheduler, Scheduler::new(fifo(1), None, Arc::default()));
            dropped += lab.dropped();
            build(lab);
            lab.scheduler.take_over(&mut old, now, (PORT, &lab.counters));
            prop_assert!(old.is_empty() && old.due().is_none() && !old.is_stuck());
        }
        let mut rounds = 0;
        while !lab.scheduler.is_empty() {
            now = lab.scheduler.due().unwrap_or(now).max(now);
            lab.serve(now);
            arrived(lab, &mut sent);
            rounds += 1;
            prop_assert!(rounds < 10_000, "packets wait for nothing");
        }
        prop_assert!(now - lab.hz < lab.hz * 5);
        prop_assert_eq!(sent.len() as u64 + dropped + lab.dropped(), u64::from(offered));
        for kind in 0..kinds.len() {
            for is_control in [true, false] {
                let own = sent.iter().filter(|(of, number)| *of == kind && (number % 9 == 0) == is_control);
                prop_assert!(own.is_sorted());
            }
        }
    });
}
