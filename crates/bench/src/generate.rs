//! `turnpike generate`: sends packets at a rate, and reports loss and delay.
//!
//! ```text
//!   sender thread                                       receiver thread
//!   Destinations, Sizes -> Template -> [device] ... [device] -> read_stamp -> Tracker
//!            Pace: when the next may leave                       loss, order, delay
//! ```
//!
//! Works with any device that the router accepts: a kernel interface, a PCI address, a DPDK virtual
//! device. The receiving device may be the sending one, or there may be none. Every address
//! resolution on the receiving side (ARP, neighbour solicitation) is answered: the receiver stands
//! for every host there.

mod answer;
mod destinations;
pub mod frame;
mod pace;
mod script;
pub mod sizes;
mod tester;
mod tracker;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use dpdk::BURST_MAX;
use serde::Serialize;
use wire::MacAddr;

pub use self::destinations::Spec;
pub use self::frame::smallest;
pub use self::pace::Rate;
pub use self::sizes::Sizes;
pub use self::tester::{Flow, Setup, Stream, Tester};
pub use self::tracker::Distribution;

/// Options of the generator.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// The sending device: a kernel interface, a PCI address, or net_memif0,… and its like
    #[arg(long, required_unless_present = "script")]
    device: Option<String>,
    /// The receiving device; the sending one with `--receive same`
    #[arg(long)]
    receive: Option<String>,
    /// The MAC to send to: the router's
    #[arg(long, required_unless_present = "script")]
    to_mac: Option<String>,
    /// Destination: ADDRESS, random:BITS@ADDRESS, table:FILE, zipf:FILE, flows:N@PREFIX
    #[arg(long, required_unless_present = "script")]
    to: Option<String>,
    /// The source address; 198.18.0.2 or 2001:2::2 if not given (RFC 2544, RFC 5180; the router under test has .1)
    #[arg(long)]
    from: Option<IpAddr>,
    /// Frame sizes with FCS: one, a list, or imix
    #[arg(long, default_value = "64")]
    size: String,
    /// DSCP of the packets, 0 to 63: one, or a list by turns
    #[arg(long, default_value = "0", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(..64))]
    dscp: Vec<u8>,
    /// Rate: max, 250kpps, 1.5Mpps, 800Mbit, …
    #[arg(long, default_value = "max")]
    rate: String,
    /// Packets to send; without this, until --seconds have passed
    #[arg(long)]
    count: Option<u64>,
    /// Seconds to send; 10 if there is no --count either
    #[arg(long)]
    seconds: Option<f64>,
    /// Milliseconds to wait for the last packets
    #[arg(long, default_value_t = 500)]
    wait_ms: u64,
    /// Treatment of packets that the device does not accept at once
    #[arg(long, value_enum, default_value_t = Full::Wait)]
    full: Full,
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
    /// Run a test written in Lua, with several devices and flows
    #[arg(long, conflicts_with_all = ["device", "receive", "to_mac", "to"])]
    script: Option<PathBuf>,
    /// The script's arguments
    #[arg(last = true, requires = "script")]
    arguments: Vec<String>,
}

/// Treatment of packets when the device accepts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Full {
    /// Wait until it does: no packet is lost before the device
    Wait,
    /// Drop them, as a wire does: the rate stays the same
    Lose,
}

/// Results of a run.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Packets sent.
    pub sent: u64,
    /// Sent packets that the device did not accept, and that were lost therefore (`--full lose`).
    pub refused: u64,
    /// Packets sent per second.
    pub sent_pps: f64,
    /// Bits sent per second, of frames with FCS.
    pub sent_bps: f64,
    /// Seconds by which the sender fell behind its rate.
    pub behind_s: f64,
    /// Results of the receiver; none without a receiver.
    pub received: Option<Received>,
}

/// A bar of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// The longest delay in it, in nanoseconds.
    pub to_ns: u64,
    /// Packets.
    pub packets: u64,
}

/// Results of a receiver.
#[derive(Debug, Serialize)]
pub struct Received {
    /// Different packets.
    pub packets: u64,
    /// Packets per second.
    pub pps: f64,
    /// Bits per second, of frames with FCS.
    pub bps: f64,
    /// Packets that were sent and not received.
    pub lost: u64,
    /// The share of lost packets.
    pub loss: f64,
    /// Packets that arrived again.
    pub duplicates: u64,
    /// Packets that arrived after a later one (RFC 4737).
    pub reordered: u64,
    /// Packets that arrived on another device than the one on which they were expected; they are lost as well.
    pub astray: u64,
    /// Delay from the sender's stamp to the receiver's, in nanoseconds.
    pub delay_ns: Distribution,
    /// Delay variation between consecutive packets (RFC 3393), in nanoseconds.
    pub jitter_ns: Distribution,
    /// The delays' histogram.
    pub histogram: Vec<Bin>,
}

/// Sends, receives and prints the results.
pub fn run(args: &GenerateArgs) -> Result<()> {
    if let Some(file) = &args.script {
        let options = script::Options {
            file,
            arguments: &args.arguments,
            cores: &args.cores,
            seed: args.seed,
            no_huge: args.no_huge,
        };
        return script::run(&options, &interrupt()?);
    }
    let outcome = generate(args)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        println!("{}", report(&outcome));
    }
    Ok(())
}

/// Returns what Ctrl-C sets.
fn interrupt() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let interrupt = interrupted.clone();
    ctrlc::set_handler(move || interrupt.store(true, Ordering::Relaxed))?;
    Ok(interrupted)
}

fn generate(args: &GenerateArgs) -> Result<Outcome> {
    let (Some(device), Some(to_mac), Some(to)) = (&args.device, &args.to_mac, &args.to) else {
        bail!("--device, --to-mac and --to are needed");
    };
    ensure!((1..=BURST_MAX).contains(&args.burst), "--burst {}: 1 to {BURST_MAX}", args.burst);
    let seconds = args.seconds.unwrap_or(if args.count.is_some() { f64::INFINITY } else { 10.0 });
    ensure!(seconds > 0.0, "--seconds {seconds}: must be above 0");
    let sizes: Sizes = args.size.parse()?;
    let stream = Stream {
        rate: args.rate.parse()?,
        sizes,
        dscp: args.dscp.clone(),
        to: to.parse()?,
        count: args.count.unwrap_or(u64::MAX),
        seconds,
        burst: args.burst,
        full: args.full,
        wait_ms: args.wait_ms,
    };
    stream.check()?;
    let to_mac = parse_mac(to_mac)?;
    let (devices, to) = devices(device, args.receive.as_deref());
    let mut tester = Tester::open(&Setup {
        devices: &devices,
        largest: stream.sizes.largest(),
        cores: &args.cores,
        seed: args.seed,
        no_huge: args.no_huge,
    })?;
    let interrupted = interrupt()?;
    let flow = Flow { from: 0, to, to_mac, source: args.from, stream };
    let outcome = tester.trial(&[flow], &interrupted)?;
    outcome.into_iter().next().context("no outcome")
}

/// Returns a tester's devices, and the number of the receiving one; `same` is the sending one.
pub fn devices<'a>(device: &'a str, receive: Option<&'a str>) -> (Vec<&'a str>, Option<usize>) {
    match receive {
        None => (vec![device], None),
        Some("same") => (vec![device], Some(0)),
        Some(receive) => (vec![device, receive], Some(1)),
    }
}

/// Parses the MAC to send to.
pub fn parse_mac(text: &str) -> Result<MacAddr> {
    text.parse().map_err(|error| anyhow!("MAC {text}: {error}"))
}

fn report(outcome: &Outcome) -> String {
    let rate = |pps: f64, bps: f64| format!("{:.4} Mpps, {:.1} Mbit/s", pps / 1e6, bps / 1e6);
    let mut lines = vec![format!(
        "sent      {:>12}  {}",
        outcome.sent,
        rate(outcome.sent_pps, outcome.sent_bps)
    )];
    if outcome.refused > 0 {
        lines.push(format!("refused   {:>12}  by the device", outcome.refused));
    }
    if outcome.behind_s > 0.001 {
        lines.push(format!("          fell behind its rate by {:.3} s", outcome.behind_s));
    }
    let Some(received) = &outcome.received else { return lines.join("\n") };
    lines.push(format!("received  {:>12}  {}", received.packets, rate(received.pps, received.bps)));
    lines.push(format!("lost      {:>12}  {:.6} %", received.lost, received.loss * 100.0));
    lines.push(format!("double    {:>12}", received.duplicates));
    lines.push(format!("reordered {:>12}", received.reordered));
    if received.astray > 0 {
        lines.push(format!("astray    {:>12}  on another device", received.astray));
    }
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
