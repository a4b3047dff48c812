//! `turnpike generate`: sends packets at a rate, and says what came back of them.
//!
//! ```text
//!   sender thread                                       receiver thread
//!   Destinations, Sizes -> Template -> [device] ... [device] -> read_stamp -> Tracker
//!            Pace: when the next may leave                       loss, order, delay
//! ```
//!
//! Works over any device that the router takes: a kernel interface, a PCI address, a DPDK virtual
//! device. The receiving device may be the sending one, or there may be none. Whatever asks for an
//! address on the receiving side (ARP, neighbour solicitation) is answered: the receiver stands for
//! every host there.

mod answer;
mod destinations;
mod frame;
mod pace;
mod sizes;
mod tracker;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use dpdk::{
    BURST_MAX, Burst, Device, Eal, EalConfig, HugeMode, Mempool, MempoolConfig, PacketList, Port,
    PortConfig, RxQueue, TxQueue,
};
use serde::Serialize;
use wire::MacAddr;

use crate::router::cores;
use destinations::{Destinations, Spec};
use frame::{FCS, Template};
use pace::{Pace, Rate};
use sizes::Sizes;
use tracker::{Distribution, Tracker};

/// What to send, and where.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// The sending device: a kernel interface, a PCI address, or net_memif0,… and its like
    #[arg(long)]
    device: String,
    /// The receiving device; the sending one with `--receive same`
    #[arg(long)]
    receive: Option<String>,
    /// The MAC to send to: the router's
    #[arg(long)]
    to_mac: String,
    /// Destination: ADDRESS, random:BITS@ADDRESS, table:FILE, zipf:FILE, flows:N@PREFIX
    #[arg(long)]
    to: String,
    /// The source address; 198.18.0.1 or 2001:2::1 (RFC 2544, RFC 5180) if not given
    #[arg(long)]
    from: Option<IpAddr>,
    /// Frame sizes with FCS: one, a list, or imix
    #[arg(long, default_value = "64")]
    size: String,
    /// max, 250kpps, 1.5Mpps, 800Mbit, …
    #[arg(long, default_value = "max")]
    rate: String,
    /// Packets to send; without this, until --seconds are over
    #[arg(long)]
    count: Option<u64>,
    /// How long to send; 10 if there is no --count either
    #[arg(long)]
    seconds: Option<f64>,
    /// How long to wait for the last packets, in milliseconds
    #[arg(long, default_value_t = 500)]
    wait_ms: u64,
    /// Packets handed to the device at once, 1 to 64
    #[arg(long, default_value_t = 32)]
    burst: usize,
    /// Sender's and receiver's core
    #[arg(long, value_delimiter = ',', num_args = 1..=2)]
    cores: Vec<usize>,
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What happened.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Packets that the device took.
    pub sent: u64,
    /// Packets per second that were sent.
    pub sent_pps: f64,
    /// Bits per second that were sent, of frames with FCS.
    pub sent_bps: f64,
    /// Seconds by which the sender fell behind its rate.
    pub behind_s: f64,
    /// What came back; none without a receiver.
    pub received: Option<Received>,
}

/// What came back.
#[derive(Debug, Serialize)]
pub struct Received {
    /// Different packets.
    pub packets: u64,
    /// Packets per second.
    pub pps: f64,
    /// Bits per second, of frames with FCS.
    pub bps: f64,
    /// Packets that were sent and did not come back.
    pub lost: u64,
    /// The same as a share of those sent.
    pub loss: f64,
    /// Packets that came again.
    pub duplicates: u64,
    /// Packets that came after a later one (RFC 4737).
    pub reordered: u64,
    /// From the sender's stamp to the receiver's, in nanoseconds.
    pub delay_ns: Distribution,
    /// Between consecutive packets (RFC 3393), in nanoseconds.
    pub jitter_ns: Distribution,
    /// Upper bounds in nanoseconds and packets.
    pub histogram: Vec<(u64, u64)>,
}

/// Sends, receives, prints.
pub fn run(args: &GenerateArgs) -> Result<()> {
    let outcome = generate(args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        println!("{}", report(&outcome));
    }
    Ok(())
}

fn generate(args: &GenerateArgs) -> Result<Outcome> {
    ensure!((1..=BURST_MAX).contains(&args.burst), "--burst {}: 1 to {BURST_MAX}", args.burst);
    let seconds = args.seconds.unwrap_or(if args.count.is_some() { f64::INFINITY } else { 10.0 });
    ensure!(seconds > 0.0, "--seconds {seconds}: must be above 0");
    let rate: Rate = args.rate.parse()?;
    let sizes: Sizes = args.size.parse()?;
    let spec: Spec = args.to.parse()?;
    let destinations = Destinations::new(&spec, args.seed)?;
    let least = frame::smallest(destinations.is_six());
    ensure!(
        sizes.smallest() >= least,
        "size {}: stamped frames of this family have at least {least} bytes",
        sizes.smallest()
    );
    let huge = if args.no_huge { HugeMode::Never } else { HugeMode::Auto };
    let data_room = (sizes.largest() + 512).max(2048) as u16;
    let memory_mb = POOL * (usize::from(data_room) + 512) / 500_000 + 128;
    let eal = Arc::new(Eal::init(&EalConfig { memory_mb, huge, ..EalConfig::default() })?);
    let pool = Mempool::new(
        &eal,
        &MempoolConfig { name: "generate".into(), count: POOL, cache: 256, data_room },
    )?;
    let mtu = sizes.largest().saturating_sub(18).max(1500) as u16;
    let ends = Ends::open(args, &eal, &pool, mtu)?;
    let run = (args.seed as u16) ^ (std::process::id() as u16);
    let template = template(args, destinations.is_six(), ends.mac, run)?;
    let sender = Sender {
        queue: ends.tx,
        pool: pool.clone(),
        template,
        destinations,
        sizes,
        burst: args.burst,
        limit: args.count.unwrap_or(u64::MAX),
        ticks: (seconds * dpdk::tsc_hz() as f64) as u64,
    };
    let receiver = ends.rx.map(|(rx, tx)| Receiver { rx, tx, pool, run, mac: ends.receive_mac });
    launch(sender, receiver, rate, args, &eal)
}

/// Packets in the pool.
const POOL: usize = 32_768;

/// Opened devices.
struct Ends {
    mac: MacAddr,
    receive_mac: MacAddr,
    tx: TxQueue,
    /// The receiving queue, and one to answer by where the device is not the sending one.
    rx: Option<(RxQueue, Option<TxQueue>)>,
}

impl Ends {
    fn open(args: &GenerateArgs, eal: &Eal, pool: &Mempool, mtu: u16) -> Result<Self> {
        let (mac, rx, tx) = open("generate", &args.device, eal, pool, mtu)?;
        let mac = MacAddr(mac);
        let (receive_mac, rx) = match args.receive.as_deref() {
            None => (mac, None),
            Some("same") => (mac, Some((rx, None))),
            Some(device) => {
                let (other, rx, tx) = open("receive", device, eal, pool, mtu)?;
                (MacAddr(other), Some((rx, Some(tx))))
            }
        };
        Ok(Self { mac, receive_mac, tx, rx })
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

fn template(args: &GenerateArgs, six: bool, from: MacAddr, run: u16) -> Result<Template> {
    let to: MacAddr = args
        .to_mac
        .parse()
        .map_err(|error| anyhow::anyhow!("--to-mac {}: {error}", args.to_mac))?;
    let default = if six {
        IpAddr::from(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1))
    } else {
        IpAddr::from(Ipv4Addr::new(198, 18, 0, 1))
    };
    match (args.from.unwrap_or(default), six) {
        (IpAddr::V4(source), false) => Ok(Template::ipv4(from, to, source, run)),
        (IpAddr::V6(source), true) => Ok(Template::ipv6(from, to, source, run)),
        (source, _) => bail!("--from {source}: the destinations are of the other family"),
    }
}

/// Runs the threads until all is sent and received, or Ctrl-C.
fn launch(
    mut sender: Sender,
    receiver: Option<Receiver>,
    rate: Rate,
    args: &GenerateArgs,
    eal: &Arc<Eal>,
) -> Result<Outcome> {
    let stop_sender = Arc::new(AtomicBool::new(false));
    let stop_receiver = Arc::new(AtomicBool::new(false));
    let received = Arc::new(AtomicU64::new(0));
    let interrupt = stop_sender.clone();
    ctrlc::set_handler(move || interrupt.store(true, Ordering::Relaxed))?;
    let receiving = match receiver {
        None => None,
        Some(mut receiver) => {
            let (stop, received) = (stop_receiver.clone(), received.clone());
            let (core, eal) = (args.cores.get(1).copied(), eal.clone());
            let body = move || {
                pin(core, "receiver");
                let _registration = eal.register_thread();
                receiver.run(&stop, &received)
            };
            Some(thread::Builder::new().name("receiver".into()).spawn(body)?)
        }
    };
    pin(args.cores.first().copied(), "sender");
    let sent = sender.run(rate, &stop_sender);
    let deadline = std::time::Instant::now() + Duration::from_millis(args.wait_ms);
    while received.load(Ordering::Relaxed) < sent.packets && std::time::Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    stop_receiver.store(true, Ordering::Relaxed);
    let tracker = match receiving {
        None => None,
        Some(thread) => {
            Some(thread.join().map_err(|_| anyhow::anyhow!("the receiver ended by a panic"))?)
        }
    };
    Ok(outcome(&sent, tracker.as_ref()))
}

fn pin(core: Option<usize>, who: &str) {
    if let Some(core) = core
        && let Err(error) = cores::pin(core)
    {
        eprintln!("{who}: {error:#}; it runs on any core");
    }
}

/// The sending thread.
struct Sender {
    queue: TxQueue,
    pool: Mempool,
    template: Template,
    destinations: Destinations,
    sizes: Sizes,
    burst: usize,
    limit: u64,
    ticks: u64,
}

/// What was sent.
struct Sent {
    packets: u64,
    bytes: u64,
    seconds: f64,
    behind: f64,
}

impl Sender {
    fn run(&mut self, rate: Rate, stop: &AtomicBool) -> Sent {
        let start = dpdk::tsc();
        let mut pace = Pace::new(rate, dpdk::tsc_hz(), start);
        let mut list = PacketList::new();
        let (mut made, mut sent, mut bytes) = (0u64, 0u64, 0u64);
        while !stop.load(Ordering::Relaxed) {
            let now = dpdk::tsc();
            let over = made >= self.limit || now - start >= self.ticks;
            while !over && list.len() < self.burst && made < self.limit && pace.is_due(now) {
                let size = self.sizes.next();
                let Some(packet) = self.make(size, made) else { break };
                if list.push(packet).is_err() {
                    break;
                }
                pace.pay(now, size);
                made += 1;
            }
            if list.is_empty() {
                if over {
                    break;
                }
                std::hint::spin_loop();
                continue;
            }
            // What the device does not take now stays in the list.
            let done = self.queue.send(&mut list, self.burst);
            sent += done.packets as u64;
            bytes += done.bytes + (done.packets * FCS) as u64;
        }
        let seconds = (dpdk::tsc() - start) as f64 / dpdk::tsc_hz() as f64;
        Sent { packets: sent, bytes, seconds, behind: pace.behind() }
    }

    fn make(&mut self, size: usize, sequence: u64) -> Option<dpdk::Mbuf> {
        let mut packet = self.pool.alloc()?;
        let frame = packet.append(size - FCS)?;
        self.template.fill(frame, self.destinations.next(), sequence, dpdk::tsc());
        Some(packet)
    }
}

/// The receiving thread.
struct Receiver {
    rx: RxQueue,
    tx: Option<TxQueue>,
    pool: Mempool,
    run: u16,
    mac: MacAddr,
}

impl Receiver {
    fn run(&mut self, stop: &AtomicBool, received: &AtomicU64) -> Tracker {
        let mut tracker = Tracker::new();
        let mut burst = Burst::new();
        let nanoseconds = 1e9 / dpdk::tsc_hz() as f64;
        while !stop.load(Ordering::Relaxed) {
            let count = self.rx.receive(&mut burst, BURST_MAX);
            let now = dpdk::tsc();
            for slot in 0..count {
                let frame = burst.frame(slot);
                match frame::read_stamp(frame, self.run) {
                    Some((sequence, time)) => {
                        let delay = now.saturating_sub(time) as f64 * nanoseconds;
                        tracker.arrived(sequence, frame.len() + FCS, now, delay as u64);
                    }
                    None => self.answer(answer::answer(frame, self.mac)),
                }
            }
            let all = burst.owned();
            burst.free(all);
            received.store(tracker.packets, Ordering::Relaxed);
            if count == 0 {
                std::hint::spin_loop();
            }
        }
        tracker
    }

    /// Sends an answer, if there is one and a queue to send it by.
    fn answer(&mut self, frame: Option<Vec<u8>>) {
        let Some((frame, tx)) = frame.zip(self.tx.as_mut()) else { return };
        let mut list = PacketList::new();
        // Without a buffer whoever asked asks again.
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
        // From the first to the last there is one packet less than arrived.
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
        sent_pps: sent.packets as f64 / sent.seconds.max(1e-9),
        sent_bps: sent.bytes as f64 * 8.0 / sent.seconds.max(1e-9),
        behind_s: sent.behind,
        received,
    }
}

fn report(outcome: &Outcome) -> String {
    let rate = |pps: f64, bps: f64| format!("{:.4} Mpps, {:.1} Mbit/s", pps / 1e6, bps / 1e6);
    let mut lines = vec![format!(
        "sent      {:>12}  {}",
        outcome.sent,
        rate(outcome.sent_pps, outcome.sent_bps)
    )];
    if outcome.behind_s > 0.001 {
        lines.push(format!("          fell behind its rate by {:.3} s", outcome.behind_s));
    }
    let Some(received) = &outcome.received else { return lines.join("\n") };
    lines.push(format!("received  {:>12}  {}", received.packets, rate(received.pps, received.bps)));
    lines.push(format!("lost      {:>12}  {:.6} %", received.lost, received.loss * 100.0));
    lines.push(format!("double    {:>12}", received.duplicates));
    lines.push(format!("reordered {:>12}", received.reordered));
    let us = |ns: f64| ns / 1000.0;
    for (what, d) in [("delay", received.delay_ns), ("jitter", received.jitter_ns)] {
        lines.push(format!(
            "{what:<7} us: min {:.1}, mean {:.1}, 50 % {:.1}, 99 % {:.1}, 99.9 % {:.1}, max {:.1}",
            us(d.min as f64),
            us(d.mean),
            us(d.p50 as f64),
            us(d.p99 as f64),
            us(d.p999 as f64),
            us(d.max as f64)
        ));
    }
    lines.join("\n")
}
