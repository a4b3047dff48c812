//! Sends streams of packets and receives them again; the devices are opened once.
//!
//! Any number of flows is sent at the same time, each from one device to another: a pair, both directions, a full mesh
//! (RFC 2889, 5.1). One thread has all transmit queues, another all receive queues.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use dpdk::{
    BURST_MAX, Burst, Device, Eal, EalConfig, HugeMode, Mempool, MempoolConfig, PacketList, Port,
    PortConfig, RxQueue, TxQueue,
};
use machine::cores;
use wire::MacAddr;

use super::destinations::{Destinations, Spec};
use super::frame::{self, FCS, Stamp, Template};
use super::pace::{Pace, Rate};
use super::sizes::Sizes;
use super::tracker::Tracker;
use super::{Full, Outcome, Received, answer};

/// Parameters of a tester.
pub struct Setup<'a> {
    /// The devices; flows name them by their place in this list.
    pub devices: &'a [&'a str],
    /// The largest frame, with FCS.
    pub largest: usize,
    /// The cores of the sender and the receiver; any core if not given.
    pub cores: &'a [usize],
    /// Seed of all random choices.
    pub seed: u64,
    /// True to use ordinary memory even if there are hugepages.
    pub no_huge: bool,
}

/// Most devices of a tester.
pub const DEVICES_MOST: usize = 64;

/// A stream from a device, and the device on which it is expected.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The sending device.
    pub from: usize,
    /// The receiving device, which may be the sending one; none to receive nothing.
    pub to: Option<usize>,
    /// The MAC to send to.
    pub to_mac: MacAddr,
    /// The source address; RFC 2544's or RFC 5180's if none.
    pub source: Option<IpAddr>,
    /// The packets.
    pub stream: Stream,
}

/// A stream to be sent.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its rate.
    pub rate: Rate,
    /// Its frame sizes.
    pub sizes: Sizes,
    /// Its DSCPs by turns, 0 to 63; not empty.
    pub dscp: Vec<u8>,
    /// Its destinations.
    pub to: Spec,
    /// Most packets.
    pub count: u64,
    /// Most seconds.
    pub seconds: f64,
    /// Packets passed to the device at once.
    pub burst: usize,
    /// Behaviour when the device accepts no more.
    pub full: Full,
    /// Time to wait for the last packets.
    pub wait_ms: u64,
}

impl Stream {
    /// Refuses frames that are too small for their contents.
    pub fn check(&self) -> Result<()> {
        let least = frame::smallest(self.to.is_six());
        let smallest = self.sizes.smallest();
        ensure!(
            smallest >= least,
            "size {smallest}: stamped frames of this family have at least {least} bytes"
        );
        Ok(())
    }
}

/// Open devices, and the parameters for sending.
pub struct Tester {
    eal: Eal,
    pool: Mempool,
    macs: Vec<MacAddr>,
    rx: Vec<RxQueue>,
    tx: Vec<TxQueue>,
    cores: Vec<usize>,
    seed: u64,
    /// Distinguishes the packets of trials and of their flows: the number of the next flow.
    run: u16,
}

impl Tester {
    /// Opens the devices.
    pub fn open(setup: &Setup) -> Result<Self> {
        let devices = setup.devices.len();
        ensure!((1..=DEVICES_MOST).contains(&devices), "{devices} devices: 1 to {DEVICES_MOST}");
        let huge = if setup.no_huge { HugeMode::Never } else { HugeMode::Auto };
        let data_room = (setup.largest + 512).max(2048) as u16;
        let count = POOL * devices.div_ceil(2);
        let memory_mb = count * (usize::from(data_room) + 512) / 500_000 + 128;
        let lends = |device: &&str| Device::parse(device).is_ok_and(|device| device.lends_memory());
        let lends_memory = setup.devices.iter().any(lends);
        let eal = Eal::init(&EalConfig { memory_mb, huge, lends_memory, ..EalConfig::default() })?;
        let pool =
            MempoolConfig { name: "generate".into(), count, cache: 256, data_room, node: None };
        let pool = Mempool::new(&eal, &pool)?;
        let mtu = setup.largest.saturating_sub(18).max(1500) as u16;
        let run = (setup.seed as u16) ^ (std::process::id() as u16);
        let (cores, seed) = (setup.cores.to_vec(), setup.seed);
        let (macs, rx, tx) = (Vec::new(), Vec::new(), Vec::new());
        let mut tester = Self { eal, pool, macs, rx, tx, cores, seed, run };
        for (number, device) in setup.devices.iter().enumerate() {
            let name = format!("tester{number}");
            let (mac, rx, tx) = open(&name, device, &tester.eal, &tester.pool, mtu)?;
            tester.macs.push(MacAddr(mac));
            tester.rx.push(rx);
            tester.tx.push(tx);
        }
        Ok(tester)
    }

    /// Returns the MAC of each device.
    pub fn macs(&self) -> &[MacAddr] {
        &self.macs
    }

    /// Sends the flows at the same time, until all is sent and received or `stop` is set; returns the outcome of each.
    /// Sender and receiver are a thread each, or take turns in one if they are on the same core.
    pub fn trial(&mut self, flows: &[Flow], stop: &AtomicBool) -> Result<Vec<Outcome>> {
        self.check(flows)?;
        let (answering, answers) = mpsc::channel();
        let first = self.run.wrapping_add(1);
        self.run = self.run.wrapping_add(flows.len() as u16);
        let mut senders = Vec::new();
        for (number, flow) in flows.iter().enumerate() {
            let destinations = Destinations::new(&flow.stream.to, self.seed + number as u64)?;
            let run = first.wrapping_add(number as u16);
            let template = template(flow, self.macs[flow.from], run)?;
            senders.push((template, destinations));
        }
        pin(self.cores.first().copied(), "sender");
        let mut senders = Senders {
            queues: &mut self.tx,
            pool: self.pool.clone(),
            answers,
            flows: flows
                .iter()
                .zip(senders)
                .map(|(flow, (template, to))| Sender::new(flow, template, to))
                .collect(),
        };
        let mut receiver = Receiver::new(flows, first, &mut self.rx, &self.macs, answering);
        let wait = flows.iter().map(|flow| flow.stream.wait_ms).max().unwrap_or(0);
        let wait = Duration::from_millis(wait);
        match self.cores[..] {
            _ if receiver.ports.is_empty() => while senders.poll(stop) {},
            [_] => by_turns(&mut senders, &mut receiver, wait, stop),
            [one, other] if one == other => by_turns(&mut senders, &mut receiver, wait, stop),
            _ => {
                let core = self.cores.get(1).copied();
                receiver = side_by_side(&mut senders, receiver, (wait, core, &self.eal), stop)?;
            }
        }
        Ok(senders.finish(receiver))
    }

    fn check(&self, flows: &[Flow]) -> Result<()> {
        let most = usize::from(u16::MAX) / 2;
        ensure!((1..=most).contains(&flows.len()), "{} flows: 1 to {most}", flows.len());
        for flow in flows {
            flow.stream.check()?;
            for number in [Some(flow.from), flow.to].into_iter().flatten() {
                let known = self.macs.len();
                ensure!(number < known, "device {number}: there are {known}, from 0");
            }
        }
        Ok(())
    }
}

/// Sends and receives in this thread.
fn by_turns(senders: &mut Senders, receiver: &mut Receiver, wait: Duration, stop: &AtomicBool) {
    while senders.poll(stop) {
        receiver.poll();
    }
    let (sent, deadline) = (senders.expected(), Instant::now() + wait);
    while receiver.packets() < sent && Instant::now() < deadline {
        receiver.poll();
        senders.answer();
    }
}

/// Sends in this thread and receives in another.
fn side_by_side<'a>(
    senders: &mut Senders,
    mut receiver: Receiver<'a>,
    (wait, core, eal): (Duration, Option<usize>, &Eal),
    stop: &AtomicBool,
) -> Result<Receiver<'a>> {
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let body = || {
            pin(core, "receiver");
            let _registration = eal.register_thread();
            while !over.load(Ordering::Relaxed) {
                receiver.poll();
                received.store(receiver.packets(), Ordering::Relaxed);
            }
            receiver
        };
        let receiving = thread::Builder::new().name("receiver".into()).spawn_scoped(scope, body)?;
        while senders.poll(stop) {}
        let (sent, deadline) = (senders.expected(), Instant::now() + wait);
        while received.load(Ordering::Relaxed) < sent && Instant::now() < deadline {
            senders.answer();
            thread::sleep(Duration::from_millis(1));
        }
        over.store(true, Ordering::Relaxed);
        receiving.join().map_err(|_| anyhow!("the receiver ended by a panic"))
    })
}

fn template(flow: &Flow, from: MacAddr, run: u16) -> Result<Template> {
    let six = flow.stream.to.is_six();
    let default = if six {
        IpAddr::from(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2))
    } else {
        IpAddr::from(Ipv4Addr::new(198, 18, 0, 2))
    };
    match (flow.source.unwrap_or(default), six) {
        (IpAddr::V4(source), false) => Ok(Template::ipv4(from, flow.to_mac, source, run)),
        (IpAddr::V6(source), true) => Ok(Template::ipv6(from, flow.to_mac, source, run)),
        (source, _) => bail!("source {source}: the destinations are of the other family"),
    }
}

/// Packets in the pool for two devices.
const POOL: usize = 32_768;

fn open(
    name: &str,
    device: &str,
    eal: &Eal,
    pool: &Mempool,
    mtu: u16,
) -> Result<([u8; 6], RxQueue, TxQueue)> {
    let mut config = PortConfig::new(name, Device::parse(device)?);
    config.mtu = (mtu > 1500).then_some(mtu);
    config.promiscuous = true;
    let (port, mut rx, mut tx) = Port::open(eal, &config, pool)?;
    let queues = rx.pop().zip(tx.pop());
    let (rx, tx) = queues.with_context(|| format!("device {device}: has no queues"))?;
    Ok((port.mac(), rx, tx))
}

fn pin(core: Option<usize>, who: &str) {
    if let Some(core) = core
        && let Err(error) = cores::pin(core)
    {
        eprintln!("{who}: {error:#}; it runs on any core");
    }
}

/// The sending side: all transmit queues and flows. Address resolution that the receiver has found is answered here.
struct Senders<'a> {
    queues: &'a mut [TxQueue],
    pool: Mempool,
    answers: mpsc::Receiver<(usize, Vec<u8>)>,
    flows: Vec<Sender<'a>>,
}

impl Senders<'_> {
    /// Sends the packets of all flows that are due; returns false when all have been sent, or `stop` is set.
    #[inline]
    fn poll(&mut self, stop: &AtomicBool) -> bool {
        let mut goes_on = false;
        for flow in &mut self.flows {
            if !flow.is_over {
                let queue = &mut self.queues[flow.flow.from];
                flow.is_over = !flow.poll(queue, &self.pool, stop);
                goes_on |= !flow.is_over;
            }
        }
        self.answer();
        goes_on
    }

    /// Sends the answers that the receiver has asked for.
    fn answer(&mut self) {
        for (port, frame) in self.answers.try_iter() {
            let mut list = PacketList::new();
            // Without a buffer the request is repeated.
            if let Some(packet) = self.pool.copy_of(&frame)
                && list.push(packet).is_ok()
            {
                self.queues[port].send(&mut list, 1);
            }
        }
    }

    /// Returns the number of sent packets that are received somewhere.
    fn expected(&self) -> u64 {
        let received = self.flows.iter().filter(|flow| flow.flow.to.is_some());
        received.map(|flow| flow.sent.packets).sum()
    }

    fn finish(self, receiver: Receiver) -> Vec<Outcome> {
        let flows = self.flows.into_iter().zip(receiver.flows);
        flows.map(|(sender, arrived)| outcome(&sender.finish(), arrived.as_ref())).collect()
    }
}

/// A flow being sent.
struct Sender<'a> {
    flow: &'a Flow,
    template: Template,
    destinations: Destinations,
    sizes: Sizes,
    start: u64,
    end: u64,
    pace: Pace,
    /// Packets created and not yet sent.
    list: PacketList,
    made: u64,
    sent: Sent,
    is_over: bool,
}

/// Counts of the sender.
#[derive(Default)]
struct Sent {
    packets: u64,
    refused: u64,
    bytes: u64,
    seconds: f64,
    behind: f64,
}

impl<'a> Sender<'a> {
    /// Creates the sender and starts its clock.
    fn new(flow: &'a Flow, template: Template, destinations: Destinations) -> Self {
        let start = dpdk::tsc();
        let ticks = (flow.stream.seconds * dpdk::tsc_hz() as f64) as u64;
        Self {
            flow,
            template,
            destinations,
            sizes: flow.stream.sizes.clone(),
            start,
            end: start.saturating_add(ticks),
            pace: Pace::new(flow.stream.rate, dpdk::tsc_hz(), start),
            list: PacketList::new(),
            made: 0,
            sent: Sent::default(),
            is_over: false,
        }
    }

    /// Sends the packets that are due; returns false when all have been sent, or `stop` is set.
    #[inline]
    fn poll(&mut self, queue: &mut TxQueue, pool: &Mempool, stop: &AtomicBool) -> bool {
        let Stream { burst, count, full, .. } = self.flow.stream;
        let now = dpdk::tsc();
        let over = self.made >= count || now >= self.end;
        while !over && self.list.len() < burst && self.made < count && self.pace.is_due(now) {
            let size = self.sizes.next();
            let Some(packet) = self.make(pool, size) else { break };
            if self.list.push(packet).is_err() {
                break;
            }
            self.pace.pay(now, size);
            self.made += 1;
        }
        if self.list.is_empty() {
            std::hint::spin_loop();
            return self.goes_on(!over && !stop.load(Ordering::Relaxed));
        }
        match full {
            Full::Wait => {
                // Packets that the device does not accept now stay in the list.
                let done = queue.send(&mut self.list, burst);
                self.sent.packets += done.packets as u64;
                self.sent.bytes += done.bytes + (done.packets * FCS) as u64;
                // After the end, a device that accepts no more packets is not waited for.
                if done.packets == 0 && now >= self.end {
                    return self.goes_on(false);
                }
            }
            Full::Lose => {
                let all = self.list.len();
                self.sent.packets += all as u64;
                self.sent.bytes += self.list.bytes() + (all * FCS) as u64;
                queue.send(&mut self.list, burst);
                self.sent.refused += self.list.free_tail(0) as u64;
            }
        }
        self.goes_on(!stop.load(Ordering::Relaxed))
    }

    /// Stops the clock at the end.
    fn goes_on(&mut self, goes_on: bool) -> bool {
        if !goes_on {
            let ticks = dpdk::tsc() - self.start;
            self.sent.seconds = ticks as f64 / dpdk::tsc_hz() as f64;
        }
        goes_on
    }

    fn make(&mut self, pool: &Mempool, size: usize) -> Option<dpdk::Mbuf> {
        let mut packet = pool.alloc()?;
        let frame = packet.append(size - FCS)?;
        let dscps = &self.flow.stream.dscp;
        let dscp = dscps[(self.made % dscps.len() as u64) as usize];
        self.template.fill(frame, dscp, self.destinations.next(), self.made, dpdk::tsc());
        Some(packet)
    }

    fn finish(self) -> Sent {
        Sent { behind: self.pace.behind(), ..self.sent }
    }
}

/// What has arrived of a flow.
struct Arrived {
    port: usize,
    tracker: Tracker,
    /// Packets that arrived on another device than expected.
    astray: u64,
}

/// The receiving side: the receive queues of all devices on which flows are expected.
struct Receiver<'a> {
    ports: Vec<(usize, &'a mut RxQueue, MacAddr)>,
    /// The number of the first flow's packets.
    first: u16,
    /// By flow; `None` for one that is not received.
    flows: Vec<Option<Arrived>>,
    answering: mpsc::Sender<(usize, Vec<u8>)>,
    burst: Burst,
}

impl<'a> Receiver<'a> {
    fn new(
        flows: &[Flow],
        first: u16,
        queues: &'a mut [RxQueue],
        macs: &[MacAddr],
        answering: mpsc::Sender<(usize, Vec<u8>)>,
    ) -> Self {
        let is_expected = |port: usize| flows.iter().any(|flow| flow.to == Some(port));
        let ports = queues.iter_mut().zip(macs).enumerate();
        let ports = ports.filter(|(port, _)| is_expected(*port));
        let arrived = |port| Arrived { port, tracker: Tracker::new(), astray: 0 };
        Self {
            ports: ports.map(|(port, (queue, mac))| (port, queue, *mac)).collect(),
            first,
            flows: flows.iter().map(|flow| flow.to.map(arrived)).collect(),
            answering,
            burst: Burst::new(),
        }
    }

    /// Returns the number of different packets that have arrived.
    fn packets(&self) -> u64 {
        self.flows.iter().flatten().map(|arrived| arrived.tracker.packets).sum()
    }

    /// Processes the packets that have arrived.
    #[inline]
    fn poll(&mut self) {
        let mut all = 0;
        for (port, queue, mac) in &mut self.ports {
            let count = queue.receive(&mut self.burst, BURST_MAX);
            let now = dpdk::tsc();
            for slot in 0..count {
                let frame = self.burst.frame(slot);
                let stamp = frame::read_stamp(frame);
                let flow = stamp.and_then(|stamp| {
                    let number = usize::from(stamp.run.wrapping_sub(self.first));
                    Some((self.flows.get_mut(number)?.as_mut()?, stamp))
                });
                match flow {
                    Some((arrived, stamp)) => arrived.record(*port, &stamp, (frame.len(), now)),
                    None => {
                        if let Some(answer) = answer::answer(frame, *mac) {
                            // Only a sender that has ended does not listen.
                            let _ = self.answering.send((*port, answer));
                        }
                    }
                }
            }
            let owned = self.burst.owned();
            self.burst.free(owned);
            all += count;
        }
        if all == 0 {
            std::hint::spin_loop();
        }
    }
}

impl Arrived {
    /// Records a packet of this length without FCS that arrived on a device at a clock reading.
    #[inline]
    fn record(&mut self, port: usize, stamp: &Stamp, (len, now): (usize, u64)) {
        if port != self.port {
            self.astray += 1;
            return;
        }
        let ticks = now.saturating_sub(stamp.time) as f64;
        let delay = ticks * 1e9 / dpdk::tsc_hz() as f64;
        self.tracker.arrived(stamp.sequence, len + FCS, now, delay as u64);
    }
}

fn outcome(sent: &Sent, arrived: Option<&Arrived>) -> Outcome {
    let received = arrived.map(|Arrived { tracker, astray, .. }| {
        let ticks = tracker.span.map_or(0, |(first, last)| last - first);
        // Between the first and the last arrival there is one interval less than packets.
        let share = 1.0 - 1.0 / tracker.packets.max(1) as f64;
        let seconds = (ticks as f64 / dpdk::tsc_hz() as f64).max(1e-9);
        let lost = sent.packets.saturating_sub(tracker.packets);
        Received {
            packets: tracker.packets,
            pps: tracker.packets as f64 * share / seconds,
            bps: tracker.bytes as f64 * share * 8.0 / seconds,
            lost,
            loss: lost as f64 / sent.packets.max(1) as f64,
            duplicates: tracker.duplicates,
            reordered: tracker.reordered,
            astray: *astray,
            delay_ns: tracker.delay(),
            jitter_ns: tracker.jitter(),
            histogram: tracker.histogram(),
        }
    });
    Outcome {
        sent: sent.packets,
        refused: sent.refused,
        sent_pps: sent.packets as f64 / sent.seconds.max(1e-9),
        sent_bps: sent.bytes as f64 * 8.0 / sent.seconds.max(1e-9),
        behind_s: sent.behind,
        received,
    }
}
