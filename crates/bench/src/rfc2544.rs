//! `turnpike bench rfc2544`: the tests of RFC 2544 for IPv4 and of RFC 5180 for IPv6, on the whole router
//! or on any other device under test.
//!
//! | test | RFC 2544 | result |
//! |---|---|---|
//! | `throughput` | 26.1, RFC 9971 | the highest rate without loss (NDR), and that with at most `--pdr` loss (PDR) |
//! | `latency` | 26.2 | delay and jitter at the throughput rate |
//! | `loss` | 26.3 | the share lost from the highest rate downwards, in steps of a tenth |
//! | `back-to-back` | 26.4 | the longest burst at the highest rate without loss |
//!
//! Without `--device` the device under test is a separate `turnpike run` ([`router`]), connected to
//! the tester by memif links; it has a core of its own, the last one. Sender and receiver have two
//! cores if there are three in total, else they take turns on one.
//!
//! A link of this kind has no rate. The highest rate is what the tester can send, and the result is
//! marked `at most the tester's` if the router accepts all of it. Packets that the router's end of
//! the link does not accept in time are lost, as on a wire. A rate that the tester could not keep
//! counts as not reached.
//!
//! On a machine with other work the router's core is occasionally taken away for milliseconds, longer than any queue
//! lasts, so a single trial says little about a rate. Both rates are therefore sought together by MLRsearch
//! ([`mlr`], RFC 9971): a rate is judged by trials of `--sum` seconds together, of which `--exceed` percent may be bad.
//!
//! RFC 2544 requires trials of 60 s, none of them bad, and 20 to 50 repetitions: `--seconds 60 --sum 60 --exceed 0
//! --repeats 20`. The defaults are shorter.

mod router;
pub(crate) mod search;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use machine::cores;
use serde::Serialize;

use self::router::Router;
use super::meter::median;
use super::mlr::{self, Goal};
use super::plot::{Figure, Series};
use super::progress;
use crate::generate::{
    Flow, Full, Outcome, Rate, Setup, Sizes, Spec, Stream, Tester, devices, parse_mac, smallest,
};

/// Frame sizes of RFC 2544, 9.1, with FCS.
const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// A sender that lags by a larger share of the time has not kept its rate.
const BEHIND: f64 = 0.01;

/// Options of the tests.
#[derive(Debug, Args)]
pub struct Rfc2544Args {
    /// Tests, separated by commas
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Test::ALL)]
    test: Vec<Test>,
    /// Frame sizes with FCS, separated by commas; RFC 2544's if not given
    #[arg(long, value_delimiter = ',')]
    size: Vec<usize>,
    /// IPv6 (RFC 5180) instead of IPv4
    #[arg(long)]
    ipv6: bool,
    /// Seconds of a trial of full length
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds of trials of full length by which a rate is judged; three trials' if not given
    #[arg(long)]
    sum: Option<f64>,
    /// Share of these seconds in which more may be lost, in percent
    #[arg(long, default_value_t = 50.0)]
    exceed: f64,
    /// Repetitions of each search; the median counts
    #[arg(long, default_value_t = 1)]
    repeats: usize,
    /// Resolution of the search for rates, in percent
    #[arg(long, default_value_t = 1.0)]
    resolution: f64,
    /// Share of packets that may be lost for the PDR, in percent
    #[arg(long, default_value_t = 0.5)]
    pdr: f64,
    /// More routes for the router: PREFIX<TAB>AS, an MRT dump, or synthetic:N; destinations lie in them
    #[arg(long, conflicts_with_all = ["device", "ipv6"])]
    table: Option<String>,
    /// Another device under test: the tester's device to send by
    #[arg(long, requires_all = ["receive", "to_mac", "to"])]
    device: Option<String>,
    /// The tester's device to receive by
    #[arg(long)]
    receive: Option<String>,
    /// The MAC to send to
    #[arg(long)]
    to_mac: Option<String>,
    /// Destinations, as of `turnpike generate`
    #[arg(long)]
    to: Option<String>,
    /// The source address
    #[arg(long)]
    from: Option<IpAddr>,
    /// The tester's cores: one for both sides, or the sender's and the receiver's
    #[arg(long, value_delimiter = ',', num_args = 1..=2)]
    cores: Vec<usize>,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a plot of the throughput by frame size, or of the loss by rate, as SVG
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// A test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// The highest rate without loss, and with little
    Throughput,
    /// Delay at the throughput rate
    Latency,
    /// Loss by rate
    Loss,
    /// The longest burst
    BackToBack,
}

impl Test {
    const ALL: [Self; 4] = [Self::Throughput, Self::Latency, Self::Loss, Self::BackToBack];
}

impl std::fmt::Display for Test {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Loss => "loss",
            Self::BackToBack => "back-to-back",
        })
    }
}

/// Results for one frame size. Rates are packets per second.
#[derive(Debug, Default, Serialize)]
struct Found {
    /// Bytes with FCS.
    size: usize,
    /// The tester's highest rate.
    highest_pps: f64,
    /// The highest rate without loss: the median of the repetitions, and all of them.
    ndr_pps: Option<f64>,
    ndr_all: Vec<f64>,
    /// Packets forwarded at that rate in the worst trial that counts (conditional throughput of RFC 9971): the median.
    ndr_conditional_pps: Option<f64>,
    #[serde(skip)]
    ndr_conditional_all: Vec<f64>,
    /// The same with little loss.
    pdr_pps: Option<f64>,
    pdr_all: Vec<f64>,
    pdr_conditional_pps: Option<f64>,
    #[serde(skip)]
    pdr_conditional_all: Vec<f64>,
    /// True if the router accepted all that the tester can send.
    at_most_the_testers: bool,
    /// The delays of the trial at the throughput rate.
    latency: Option<Latency>,
    /// The loss at several rates.
    loss: Vec<Loss>,
    /// Packets of the longest burst without loss: the median, and all.
    back_to_back: Option<f64>,
    back_to_back_all: Vec<f64>,
}

/// The loss at a rate.
#[derive(Clone, Copy, Debug, Serialize)]
struct Loss {
    rate_pps: f64,
    /// Share of the packets lost, 0 to 1.
    share: f64,
}

/// Delays at a rate, in nanoseconds.
#[derive(Debug, Serialize)]
struct Latency {
    rate_pps: f64,
    delay_ns: crate::generate::Distribution,
    jitter_ns: crate::generate::Distribution,
    histogram: Vec<crate::generate::Bin>,
}

/// Runs the tests and prints the results.
pub fn run(args: &Rfc2544Args) -> Result<()> {
    ensure!(args.seconds > 0.0, "--seconds {}: above 0", args.seconds);
    ensure!(args.repeats >= 1, "--repeats {}: at least 1", args.repeats);
    let percent = |name, value: f64, from: f64| {
        ensure!(value >= from && value < 100.0, "--{name} {value}: {from} to below 100");
        Ok(())
    };
    percent("resolution", args.resolution, 0.01)?;
    percent("exceed", args.exceed, 0.0)?;
    // A router that loses all packets meets a goal of 100 %, so no search is needed for it.
    ensure!((0.0..=100.0).contains(&args.pdr), "--pdr {}: 0 to 100", args.pdr);
    if let Some(sum) = args.sum {
        ensure!(sum >= args.seconds, "--sum {sum}: at least the {} of a trial", args.seconds);
    }
    let sizes = sizes(args)?;
    let allowed = cores::allowed()?;
    let core = *allowed.last().context("no core is allowed")?;
    let own = match args.device {
        None => Some(Router::start(core, args.table.as_deref(), args.no_huge)?),
        Some(_) => None,
    };
    let mut bench = Bench::open(args, own.as_ref(), &allowed, &sizes)?;
    let steps = sizes.len() * args.repeats * args.test.len();
    let progress = progress::bar(steps as u64, "rfc2544");
    let mut found = Vec::new();
    for size in sizes {
        found.push(bench.size(size, &progress)?);
    }
    progress.finish_and_clear();
    // The tester's links are closed before the router ends.
    drop(bench);
    drop(own);
    if let Some(file) = &args.plot {
        figure(&found, args).write(file)?;
    }
    if args.json {
        return super::print(&serde_json::to_string_pretty(&found)?);
    }
    super::print(&report(&found, args))
}

/// Returns the sizes to test; the smallest is that of a stamped frame.
fn sizes(args: &Rfc2544Args) -> Result<Vec<usize>> {
    let least = smallest(args.ipv6);
    if args.size.is_empty() {
        return Ok(SIZES.into_iter().map(|size| size.max(least)).collect());
    }
    for &size in &args.size {
        let most = if args.device.is_none() { 1518 } else { 9218 };
        ensure!((least..=most).contains(&size), "--size {size}: {least} to {most} bytes");
    }
    Ok(args.size.clone())
}

/// The open tester.
struct Bench<'a> {
    args: &'a Rfc2544Args,
    tester: Tester,
    /// The flow, but for its rate, size and length.
    flow: Flow,
}

impl<'a> Bench<'a> {
    fn open(
        args: &'a Rfc2544Args,
        own: Option<&Router>,
        allowed: &[usize],
        sizes: &[usize],
    ) -> Result<Self> {
        let links = own.map(Router::devices);
        let (device, receive) = match (&links, &args.device, &args.receive) {
            (Some([left, right]), ..) => (left.as_str(), right.as_str()),
            (None, Some(device), Some(receive)) => (device.as_str(), receive.as_str()),
            _ => bail!("--device needs --receive"),
        };
        let to = match (&args.to, &args.table, args.ipv6) {
            (Some(to), ..) => to.clone(),
            (None, Some(table), _) => format!("table:{table}"),
            (None, None, false) => "random:15@198.19.128.0".to_owned(),
            (None, None, true) => "random:64@2001:2:0:8000::".to_owned(),
        };
        let cores = match (&args.cores[..], allowed) {
            ([], [first, second, _, ..]) => vec![*first, *second],
            ([], [first, ..]) => vec![*first],
            (given, _) => given.to_vec(),
        };
        let to_mac = parse_mac(args.to_mac.as_deref().unwrap_or(router::MAC))?;
        let (devices, receiving) = devices(device, Some(receive));
        let tester = Tester::open(&Setup {
            devices: &devices,
            largest: sizes.iter().copied().max().unwrap_or(1518),
            cores: &cores,
            seed: 1,
            no_huge: args.no_huge,
        })?;
        let to: Spec = to.parse()?;
        // A link may need time to come up, and a neighbour has to be resolved.
        let mut first = stream(smallest(to.is_six()), &to, Rate::Packets(100.0), 0.5);
        first.wait_ms = 200;
        let flow = Flow { from: 0, to: receiving, to_mac, source: args.from, stream: first };
        let mut bench = Self { args, tester, flow };
        for _ in 0..20 {
            if received(&bench.send(bench.flow.stream.clone())?) > 0 {
                return Ok(bench);
            }
        }
        bail!("nothing that the tester sends comes back; see --to, --to-mac and the routes")
    }

    /// Runs all tests of one size.
    fn size(&mut self, size: usize, progress: &ProgressBar) -> Result<Found> {
        let has = |test| self.args.test.contains(&test);
        let (throughput, latency, loss, bursts) =
            (has(Test::Throughput), has(Test::Latency), has(Test::Loss), has(Test::BackToBack));
        let most = self.trial(size, Rate::Most, self.args.seconds)?;
        let mut found = Found { size, highest_pps: most.sent_pps, ..Found::default() };
        for _ in 0..self.args.repeats {
            if throughput || latency {
                self.throughput(size, &mut found)?;
                progress.inc(1);
            }
            if bursts {
                let burst = self.burst(size, found.highest_pps)?;
                found.back_to_back_all.push(burst);
                progress.inc(1);
            }
        }
        (found.ndr_pps, found.pdr_pps) = (middle(&found.ndr_all), middle(&found.pdr_all));
        found.ndr_conditional_pps = middle(&found.ndr_conditional_all);
        found.pdr_conditional_pps = middle(&found.pdr_conditional_all);
        found.back_to_back = middle(&found.back_to_back_all);
        if latency {
            found.latency = self.latency(size, &found)?;
        }
        if loss {
            let points = search::loss_by_rate(found.highest_pps, |rate| {
                Ok(lost_share(&self.trial(size, Rate::Packets(rate), self.args.seconds)?))
            })?;
            let named = |(rate_pps, share)| Loss { rate_pps, share };
            found.loss = points.into_iter().map(named).collect();
        }
        Ok(found)
    }

    fn throughput(&mut self, size: usize, found: &mut Found) -> Result<()> {
        let none = self.goal(0.0);
        let few = self.goal(self.args.pdr / 100.0);
        let bounds = mlr::search(found.highest_pps, &[none, few], |rate, seconds| {
            let trial = self.trial(size, Rate::Packets(rate), seconds)?;
            // What the tester did not send in time was not forwarded either.
            let behind = trial.behind_s / seconds;
            Ok(lost_share(&trial).max(if behind > BEHIND { behind } else { 0.0 }))
        })?;
        let [none, few] = bounds[..] else { bail!("a search without a result") };
        found.at_most_the_testers |= few.upper.is_none();
        found.ndr_all.push(none.lower.unwrap_or(0.0));
        found.ndr_conditional_all.push(none.conditional_throughput);
        found.pdr_all.push(few.lower.unwrap_or(0.0));
        found.pdr_conditional_all.push(few.conditional_throughput);
        Ok(())
    }

    fn goal(&self, loss_ratio: f64) -> Goal {
        let seconds = self.args.seconds;
        Goal {
            loss_ratio,
            final_trial: seconds,
            initial_trial: seconds / 4.0,
            duration_sum: self.args.sum.unwrap_or(3.0 * seconds),
            exceed_ratio: self.args.exceed / 100.0,
            width: self.args.resolution / 100.0,
        }
    }

    fn latency(&mut self, size: usize, found: &Found) -> Result<Option<Latency>> {
        let Some(rate_pps) = found.ndr_pps.filter(|&rate| rate > 0.0).or(found.pdr_pps) else {
            return Ok(None);
        };
        let trial = self.trial(size, Rate::Packets(rate_pps), self.args.seconds)?;
        Ok(trial.received.map(|received| Latency {
            rate_pps,
            delay_ns: received.delay_ns,
            jitter_ns: received.jitter_ns,
            histogram: received.histogram,
        }))
    }

    /// Returns the longest burst without loss, of at most two seconds (RFC 2544, 26.4).
    fn burst(&mut self, size: usize, highest: f64) -> Result<f64> {
        let most = (2.0 * highest).floor();
        search::highest_passing((0.0, most), (most / 200.0).max(1.0), |count| {
            let mut stream = stream(size, &self.flow.stream.to, Rate::Most, f64::INFINITY);
            stream.count = count.ceil() as u64;
            Ok(lost_share(&self.send(stream)?) == 0.0)
        })
    }

    fn trial(&mut self, size: usize, rate: Rate, seconds: f64) -> Result<Outcome> {
        self.send(stream(size, &self.flow.stream.to, rate, seconds))
    }

    fn send(&mut self, stream: Stream) -> Result<Outcome> {
        let flow = Flow { stream, ..self.flow.clone() };
        let outcome = self.tester.trial(&[flow], &AtomicBool::new(false))?;
        outcome.into_iter().next().context("no outcome")
    }
}

fn stream(size: usize, to: &Spec, rate: Rate, seconds: f64) -> Stream {
    Stream {
        rate,
        sizes: Sizes::one(size),
        dscp: vec![0],
        to: to.clone(),
        count: u64::MAX,
        seconds,
        burst: 32,
        full: Full::Lose,
        wait_ms: 100,
    }
}

fn received(trial: &Outcome) -> u64 {
    trial.received.as_ref().map_or(0, |received| received.packets)
}

fn lost_share(trial: &Outcome) -> f64 {
    trial.received.as_ref().map_or(1.0, |received| received.loss)
}

fn middle(all: &[f64]) -> Option<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    median(&sorted)
}

/// Returns the bits per second of frames with FCS.
fn gigabits(pps: f64, size: usize) -> f64 {
    pps * size as f64 * 8.0 / 1e9
}

fn report(found: &[Found], args: &Rfc2544Args) -> String {
    let word = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let mpps = |pps: Option<f64>| word(pps.map(|pps| pps / 1e6), 3);
    let mut lines = vec![
        format!(
            "{}; trials of {} s, {} s a rate, {} % of them may be bad; medians of {}, rates to {} %; PDR: {} % lost",
            if args.ipv6 { "IPv6 (RFC 5180)" } else { "IPv4 (RFC 2544)" },
            args.seconds,
            args.sum.unwrap_or(3.0 * args.seconds),
            args.exceed,
            args.repeats,
            args.resolution,
            args.pdr
        ),
        "rates in million packets per second; * at most the tester's; delays in us, at the NDR"
            .to_owned(),
        format!(
            "{:>6}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>14}",
            "bytes",
            "highest",
            "NDR",
            "PDR",
            "Gbit/s",
            "min",
            "mean",
            "99 %",
            "max",
            "back-to-back"
        ),
    ];
    lines.extend(found.iter().map(|f| {
        let delay = |of: fn(&crate::generate::Distribution) -> f64| {
            word(f.latency.as_ref().map(|latency| of(&latency.delay_ns) / 1000.0), 1)
        };
        let star = if f.at_most_the_testers { "*" } else { "" };
        format!(
            "{:>6}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>14}",
            f.size,
            mpps(Some(f.highest_pps)),
            mpps(f.ndr_pps),
            mpps(f.pdr_pps) + star,
            word(f.pdr_pps.map(|pps| gigabits(pps, f.size)), 2),
            delay(|d| d.min as f64),
            delay(|d| d.mean),
            delay(|d| d.p99 as f64),
            delay(|d| d.max as f64),
            word(f.back_to_back, 0),
        )
    }));
    for f in found.iter().filter(|f| !f.loss.is_empty()) {
        let points: Vec<_> = f
            .loss
            .iter()
            .map(|at| format!("{:.3}: {:.3} %", at.rate_pps / 1e6, at.share * 100.0))
            .collect();
        lines.push(format!("{} bytes, lost at: {}", f.size, points.join(", ")));
    }
    lines.join("\n")
}

/// Plots throughput by frame size if it was measured, else loss by rate.
fn figure(found: &[Found], args: &Rfc2544Args) -> Figure {
    let family = if args.ipv6 { "IPv6" } else { "IPv4" };
    if found.iter().any(|f| f.pdr_pps.is_some()) {
        let of = |name: &str, rate: fn(&Found) -> Option<f64>| {
            let point = |f: &Found| Some((f.size as f64, rate(f)? / 1e6));
            Series { name: name.to_owned(), points: found.iter().filter_map(point).collect() }
        };
        return Figure {
            title: format!("Throughput by frame size, {family}"),
            x: "frame, bytes".into(),
            y: "million packets/s".into(),
            series: vec![
                of("tester's highest", |f| Some(f.highest_pps)),
                of("without loss", |f| f.ndr_pps),
                of("with little loss", |f| f.pdr_pps),
            ],
            ..Figure::default()
        };
    }
    let series = |f: &Found| Series {
        name: format!("{} bytes", f.size),
        points: f.loss.iter().map(|at| (at.rate_pps / 1e6, at.share * 100.0)).collect(),
    };
    Figure {
        title: format!("Loss by offered rate, {family}"),
        x: "million packets/s offered".into(),
        y: "lost, %".into(),
        series: found.iter().map(series).collect(),
        ..Figure::default()
    }
}
