//! Sends streams of packets and receives them again; the devices are opened once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
use super::frame::{self, FCS, Template};
use super::pace::{Pace, Rate};
use super::sizes::Sizes;
use super::tracker::Tracker;
use super::{Full, Outcome, Received, answer};

/// Parameters of a tester.
pub struct Setup<'a> {
    /// The sending device.
    pub device: &'a str,
    /// The receiving device; `same` for the sending one; none to receive nothing.
    pub receive: Option<&'a str>,
    /// The MAC to send to.
    pub to_mac: &'a str,
    /// The source address; RFC 2544's or RFC 5180's if none.
    pub from: Option<IpAddr>,
    /// The largest frame, with FCS.
    pub largest: usize,
    /// The cores of the sender and the receiver; any core if not given.
    pub cores: &'a [usize],
    /// Seed of all random choices.
    pub seed: u64,
    /// True to use ordinary memory even if there are hugepages.
    pub no_huge: bool,
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
    ends: Ends,
    to: MacAddr,
    from: Option<IpAddr>,
    cores: Vec<usize>,
    seed: u64,
    /// Distinguishes the trials' packets.
    run: u16,
}

impl Tester {
    /// Opens the devices.
    pub fn open(setup: &Setup) -> Result<Self> {
        let to = setup.to_mac.parse();
        let to = to.map_err(|error| anyhow!("--to-mac {}: {error}", setup.to_mac))?;
        let huge = if setup.no_huge { HugeMode::Never } else { HugeMode::Auto };
        let data_room = (setup.largest + 512).max(2048) as u16;
        let memory_mb = POOL * (usize::from(data_room) + 512) / 500_000 + 128;
        let eal = Eal::init(&EalConfig { memory_mb, huge, ..EalConfig::default() })?;
        let pool = MempoolConfig {
            name: "generate".into(),
            count: POOL,
            cache: 256,
            data_room,
            node: None,
        };
        let pool = Mempool::new(&eal, &pool)?;
        let mtu = setup.largest.saturating_sub(18).max(1500) as u16;
        let ends = Ends::open(setup, &eal, &pool, mtu)?;
        let run = (setup.seed as u16) ^ (std::process::id() as u16);
        let (from, cores) = (setup.from, setup.cores.to_vec());
        Ok(Self { eal, pool, ends, to, from, cores, seed: setup.seed, run })
    }

    /// Sends a stream, until all is sent and received or `stop` is set. Sender and receiver are a
    /// thread each, or take turns in one if they are on the same core.
    pub fn trial(&mut self, stream: &Stream, stop: &AtomicBool) -> Result<Outcome> {
        stream.check()?;
        let destinations = Destinations::new(&stream.to, self.seed)?;
        self.run = self.run.wrapping_add(1);
        let template = self.template(destinations.is_six())?;
        let queue = self.ends.tx.take().context("a trial before this one failed")?;
        let sender = Sender::new(queue, self.pool.clone(), template, destinations, stream);
        let receiver = self.ends.rx.take().map(|(rx, tx)| Receiver {
            rx,
            tx,
            pool: self.pool.clone(),
            run: self.run,
            mac: self.ends.receive_mac,
            burst: Burst::new(),
            tracker: Tracker::new(),
        });
        pin(self.cores.first().copied(), "sender");
        match (receiver, &self.cores[..]) {
            (None, _) => Ok(self.alone(sender, stop)),
            (Some(receiver), [_]) => Ok(self.by_turns(sender, receiver, stream, stop)),
            (Some(receiver), [one, other]) if one == other => {
                Ok(self.by_turns(sender, receiver, stream, stop))
            }
            (Some(receiver), _) => self.side_by_side(sender, receiver, stream, stop),
        }
    }

    fn alone(&mut self, mut sender: Sender, stop: &AtomicBool) -> Outcome {
        while sender.poll(stop) {}
        self.ended(sender, None)
    }

    fn by_turns(
        &mut self,
        mut sender: Sender,
        mut receiver: Receiver,
        stream: &Stream,
        stop: &AtomicBool,
    ) -> Outcome {
        while sender.poll(stop) {
            receiver.poll();
        }
        let deadline = Instant::now() + Duration::from_millis(stream.wait_ms);
        while receiver.tracker.packets < sender.sent.packets && Instant::now() < deadline {
            receiver.poll();
        }
        self.ended(sender, Some(receiver))
    }

    fn side_by_side(
        &mut self,
        mut sender: Sender,
        mut receiver: Receiver,
        stream: &Stream,
        stop: &AtomicBool,
    ) -> Result<Outcome> {
        let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (core, eal) = (self.cores.get(1).copied(), &self.eal);
        let receiver = thread::scope(|scope| {
            let body = || {
                pin(core, "receiver");
                let _registration = eal.register_thread();
                while !over.load(Ordering::Relaxed) {
                    receiver.poll();
                    received.store(receiver.tracker.packets, Ordering::Relaxed);
                }
                receiver
            };
            let receiving =
                thread::Builder::new().name("receiver".into()).spawn_scoped(scope, body)?;
            while sender.poll(stop) {}
            let deadline = Instant::now() + Duration::from_millis(stream.wait_ms);
            while received.load(Ordering::Relaxed) < sender.sent.packets
                && Instant::now() < deadline
            {
                thread::sleep(Duration::from_millis(1));
            }
            over.store(true, Ordering::Relaxed);
            receiving.join().map_err(|_| anyhow!("the receiver ended by a panic"))
        })?;
        Ok(self.ended(sender, Some(receiver)))
    }

    /// Takes back the queues for the next trial.
    fn ended(&mut self, sender: Sender, receiver: Option<Receiver>) -> Outcome {
        let sent = sender.finish(&mut self.ends.tx);
        let tracker = receiver.map(|receiver| {
            self.ends.rx = Some((receiver.rx, receiver.tx));
            receiver.tracker
        });
        outcome(&sent, tracker.as_ref())
    }

    fn template(&self, six: bool) -> Result<Template> {
        let default = if six {
            IpAddr::from(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 2))
        } else {
            IpAddr::from(Ipv4Addr::new(198, 18, 0, 2))
        };
        let (from, to) = (self.ends.mac, self.to);
        match (self.from.unwrap_or(default), six) {
            (IpAddr::V4(source), false) => Ok(Template::ipv4(from, to, source, self.run)),
            (IpAddr::V6(source), true) => Ok(Template::ipv6(from, to, source, self.run)),
            (source, _) => bail!("--from {source}: the destinations are of the other family"),
        }
    }
}

/// Packets in the pool.
const POOL: usize = 32_768;

/// Opened devices.
struct Ends {
    mac: MacAddr,
    receive_mac: MacAddr,
    /// Present between trials.
    tx: Option<TxQueue>,
    /// The receive queue, and a queue for answers if the device is not the sending one.
    rx: Option<(RxQueue, Option<TxQueue>)>,
}

impl Ends {
    fn open(setup: &Setup, eal: &Eal, pool: &Mempool, mtu: u16) -> Result<Self> {
        let (mac, rx, tx) = open("generate", setup.device, eal, pool, mtu)?;
        let mac = MacAddr(mac);
        let (receive_mac, rx) = match setup.receive {
            None => (mac, None),
            Some("same") => (mac, Some((rx, None))),
            Some(device) => {
                let (other, rx, tx) = open("receive", device, eal, pool, mtu)?;
                (MacAddr(other), Some((rx, Some(tx))))
            }
        };
        Ok(Self { mac, receive_mac, tx: Some(tx), rx })
    }
}

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

/// The sending side.
struct Sender<'a> {
    queue: TxQueue,
    pool: Mempool,
    template: Template,
    destinations: Destinations,
    sizes: Sizes,
    stream: &'a Stream,
    start: u64,
    end: u64,
    pace: Pace,
    /// Packets created and not yet sent.
    list: PacketList,
    made: u64,
    sent: Sent,
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
    fn new(
        queue: TxQueue,
        pool: Mempool,
        template: Template,
        destinations: Destinations,
        stream: &'a Stream,
    ) -> Self {
        let start = dpdk::tsc();
        let ticks = (stream.seconds * dpdk::tsc_hz() as f64) as u64;
        Self {
            queue,
            pool,
            template,
            destinations,
            sizes: stream.sizes.clone(),
            stream,
            start,
            end: start.saturating_add(ticks),
            pace: Pace::new(stream.rate, dpdk::tsc_hz(), start),
            list: PacketList::new(),
            made: 0,
            sent: Sent::default(),
        }
    }

    /// Sends the packets that are due; returns false when all have been sent, or `stop` is set.
    #[inline]
    fn poll(&mut self, stop: &AtomicBool) -> bool {
        let Stream { burst, count, full, .. } = *self.stream;
        let now = dpdk::tsc();
        let over = self.made >= count || now >= self.end;
        while !over && self.list.len() < burst && self.made < count && self.pace.is_due(now) {
            let size = self.sizes.next();
            let Some(packet) = self.make(size) else { break };
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
                let done = self.queue.send(&mut self.list, burst);
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
                self.queue.send(&mut self.list, burst);
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

    fn make(&mut self, size: usize) -> Option<dpdk::Mbuf> {
        let mut packet = self.pool.alloc()?;
        let frame = packet.append(size - FCS)?;
        let dscp = self.stream.dscp[(self.made % self.stream.dscp.len() as u64) as usize];
        self.template.fill(frame, dscp, self.destinations.next(), self.made, dpdk::tsc());
        Some(packet)
    }

    /// Returns the queue and the counts.
    fn finish(self, queue: &mut Option<TxQueue>) -> Sent {
        *queue = Some(self.queue);
        Sent { behind: self.pace.behind(), ..self.sent }
    }
}

/// The receiving side.
struct Receiver {
    rx: RxQueue,
    tx: Option<TxQueue>,
    pool: Mempool,
    run: u16,
    mac: MacAddr,
    burst: Burst,
    tracker: Tracker,
}

impl Receiver {
    /// Processes the packets that have arrived.
    #[inline]
    fn poll(&mut self) {
        let count = self.rx.receive(&mut self.burst, BURST_MAX);
        if count == 0 {
            std::hint::spin_loop();
            return;
        }
        let now = dpdk::tsc();
        let nanoseconds = 1e9 / dpdk::tsc_hz() as f64;
        for slot in 0..count {
            let frame = self.burst.frame(slot);
            match frame::read_stamp(frame, self.run) {
                Some((sequence, time)) => {
                    let delay = now.saturating_sub(time) as f64 * nanoseconds;
                    self.tracker.arrived(sequence, frame.len() + FCS, now, delay as u64);
                }
                None => {
                    let answer = answer::answer(frame, self.mac);
                    self.answer(answer);
                }
            }
        }
        let all = self.burst.owned();
        self.burst.free(all);
    }

    /// Sends an answer, if there is one and a queue for it.
    fn answer(&mut self, frame: Option<Vec<u8>>) {
        let Some((frame, tx)) = frame.zip(self.tx.as_mut()) else { return };
        let mut list = PacketList::new();
        // Without a buffer the request is repeated.
        if let Some(packet) = self.pool.copy_of(&frame)
            && list.push(packet).is_ok()
        {
            tx.send(&mut list, 1);
        }
    }
}

fn outcome(sent: &Sent, tracker: Option<&Tracker>) -> Outcome {
    let received = tracker.map(|tracker| {
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
