//! `turnpike bench forward`: cost of forwarding a packet.
//!
//! The source is a queue that presents frames to many random destinations over and over, written into fresh buffers as
//! a NIC writes them ([`dpdk::RxQueue::present`]). DPDK's null driver is the sink: it frees its packets. Between them
//! runs the real forwarder with the default graph (checksums verified, counters and drop reasons on); the same source
//! and sink without anything between them are the bare loop, `io`. The difference is the router's cost. All cases and
//! the bare loop take turns in one process on one core, so that a slow moment of the machine affects all of them; the
//! median and the minimum over the rounds are reported, and cases whose rounds differ much are named.
//!
//! | case | routes | egress ports | source |
//! |---|---|---|---|
//! | `4r1e` | 4 of /2 | 1 | IPv4, random unicast |
//! | `noop` | as `4r1e`, with one more step, which does nothing | 1 | IPv4 |
//! | `lua-empty` | as `4r1e`, with a step in Lua that does nothing | 1 | IPv4 |
//! | `lua-voip` | as `4r1e`, with a step in Lua that looks at every packet's UDP port | 1 | IPv4 |
//! | `lua-flushed` | the same, with everything compiled again every half a million packets | 1 | IPv4 |
//! | `rust-voip` | the same step in Rust | 1 | IPv4 |
//! | `filter-10`, `filter-1000`, `filter-10000` | as `4r1e`, with a filter of that many generated rules | 1 | IPv4 |
//! | `filter-state` | as `filter-10`, the first rule accepts packets of known connections, as all are | 1 | IPv4, 65,536 connections at most |
//! | `filter-first`, `filter-police` | as `filter-10`, the first rule accepts all packets; the same with a rate | 1 | IPv4 |
//! | `filter-sources` | as `filter-police`, with a rate for each source | 1 | IPv4 from random addresses |
//! | `filter-set` | as `filter-10`, the first rule accepts packets to a set of 100,000 prefixes | 1 | IPv4 |
//! | `queue-fifo`, `queue-red`, `queue-codel`, `queue-drr` | as `4r1e`, with a queue in software before the port, which is empty after each burst | 1 | IPv4 |
//! | `queue-shape` | as `queue-fifo`, with a rate that is never reached | 1 | IPv4 |
//! | `4r4e` | 4 of /2 | 4 | IPv4 |
//! | `full4` | a full table and a default route | 4 | IPv4 |
//! | `vrf4` | as `full4`, in a VRF besides the default one | 4 | IPv4 |
//! | `bond4` | as `full4`, by a bond of all ports | 4 | IPv4 |
//! | `vlan4`, `qinq4` | as `full4`, by VLANs on all ports | 4 | IPv4 with one tag, with two |
//! | `vlan4-device` | as `vlan4`, behind devices that strip and insert tags | 4 | IPv4, the tag beside each packet |
//! | `vlan4-queues` | as `vlan4`, with queues with rates for 1,000 VLANs of each port, which are never reached | 4 | IPv4 with one tag |
//! | `full6` | the same of IPv6 | 4 | IPv6, random prefixes of the table, random host bits |
//! | `mixed` | both | 4 | the two by turns, so a batch is half of each |
//!
//! The cases of queues, VRFs, bonds, VLANs, rates and sets run only by name (`--case`).
//!
//! With `--l3fwd`, `--vpp` and `--grout`, DPDK's own example ([`l3fwd`]), VPP ([`vpp`]) and grout ([`grout`]) take turns
//! with the cases of IPv4, above the floor of DPDK's own testpmd; then one case is measured after the other, because each
//! has programs of its own, with their own memory.

pub mod cases;
mod grout;
mod l3fwd;
mod noop;
mod peer;
mod peer_case;
mod steps;
mod vpp;

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::Args;
use dataplane::polling::RxSource;
use dataplane::port::PortId;
use dpdk::{
    Device, Eal, EalConfig, HugeMode, Mempool, MempoolConfig, Port, PortConfig, RxQueue,
    SourcePackets, TxQueue,
};
use machine::cores;
use serde::Serialize;

use self::cases::{BareLoop, Bursts, Case, FullTables, PORT, Router};
use self::peer::{Peer, Setting};
use self::steps::More;
use super::generate::frame::FCS;
use super::generate::sizes::Sizes;
use super::meter::{self, Cost, Meter, median, spread};
use super::progress;
use super::source::{self, Mix, Wanted};
use crate::workload::routes;

/// Options of the measurement.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The full IPv4 table: PREFIX<TAB>AS or an MRT dump, or synthetic:N for N made-up prefixes
    #[arg(long, default_value = "synthetic:500000")]
    table: String,
    /// The full IPv6 table, likewise
    #[arg(long, default_value = "synthetic:100000")]
    table6: String,
    /// Rounds in which every case takes its turn
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Packets of one turn
    #[arg(long, default_value_t = 2_000_000)]
    packets: u64,
    /// Different random destinations in the source
    #[arg(long, default_value_t = 1_048_576)]
    destinations: usize,
    /// Frames of this length with FCS, of several by turns, or imix; the smallest if not given
    #[arg(long)]
    size: Option<Sizes>,
    /// Packets come as from a NIC that has verified checksums and knows the headers
    #[arg(long)]
    verified: bool,
    /// The core to run on
    #[arg(long)]
    core: Option<usize>,
    /// Only these cases, separated by commas, and the bare loop
    #[arg(long, value_delimiter = ',')]
    case: Vec<String>,
    /// Send IPv4 to random prefixes of the table instead of anywhere
    #[arg(long)]
    in_table: bool,
    /// Packets received at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(1..=64))]
    rx_burst: u8,
    /// Packets sent at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=128))]
    tx_burst: u8,
    /// DPDK's l3fwd to compare with: a program that scripts/build-l3fwd.sh builds, or several
    #[arg(long)]
    l3fwd: Vec<PathBuf>,
    /// VPP to compare with: the program that scripts/build-vpp.sh builds
    #[arg(long)]
    vpp: Option<PathBuf>,
    /// grout to compare with: the program that scripts/build-grout.sh builds
    #[arg(long)]
    grout: Option<PathBuf>,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ForwardArgs {
    /// Returns the other programs.
    fn peers(&self) -> Vec<(StartPeer, &Path)> {
        let l3fwd = self.l3fwd.iter().map(|binary| (l3fwd::start as StartPeer, &**binary));
        let vpp = self.vpp.iter().map(|binary| (vpp::start as StartPeer, &**binary));
        let grout = self.grout.iter().map(|binary| (grout::start as StartPeer, &**binary));
        l3fwd.chain(vpp).chain(grout).collect()
    }
}

/// Starts a program with the routes of an IPv4 case.
type StartPeer = fn(&Path, &Case, &routes::Routes<Ipv4Addr>, &Setting<'_>) -> Result<Peer>;

/// One line of the result. Cycles are those of the time-stamp counter, per packet.
#[derive(Debug, Serialize)]
struct Outcome {
    /// The case; for l3fwd in case X `l3fwd-X`, for VPP and grout likewise.
    case: String,
    cycles_io_median: f64,
    /// Of the whole loop.
    cycles_median: f64,
    cycles_above_io_median: f64,
    cycles_above_io_min: f64,
    /// Of the time that the thread had on the processor.
    busy_above_io_median: f64,
    /// Difference of the middle half of the rounds, as a part of the median above io.
    spread: f64,
    /// Instructions per packet above the bare loop; none if the machine does not count them.
    instructions: Option<f64>,
    /// Branch misses per packet above the bare loop.
    branch_misses: Option<f64>,
    /// Million packets per second of the whole loop, median.
    mpps: f64,
    /// Comparison with another case, in words; not in JSON, which contains both.
    #[serde(skip)]
    compared: Option<String>,
}

/// Runs the benchmark and prints its result.
pub fn run(args: &ForwardArgs) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(args.packets >= 10_000, "--packets {}: at least 10000", args.packets);
    ensure!(args.destinations >= 64, "--destinations {}: at least 64", args.destinations);
    if let Some(sizes) = &args.size {
        let most = usize::from(PORT.mtu) + 14 + FCS;
        let largest = sizes.largest();
        ensure!(largest <= most, "--size {largest}: at most {most}, by the ports' MTU");
    }
    let cases = cases::choose(&args.case)?;
    let full = load(args, &cases)?;
    ensure!(!args.in_table || !full.v4.is_empty(), "--in-table: no case has an IPv4 table");
    let allowed = cores::allowed()?;
    let core = meter::pin(args.core)?;
    let mut mixes: Vec<Mix> = cases.iter().map(|case| case.mix).collect();
    mixes.dedup();
    let wanted = Wanted {
        count: args.destinations,
        in_table: args.in_table,
        is_verified: args.verified,
        sizes: args.size.clone(),
    };
    let mut bench = Bench::start(&mixes, &wanted, &full, args.no_huge)?;
    let mut outcomes = Vec::new();
    let groups: Vec<Vec<&'static Case>> = if args.peers().is_empty() {
        vec![cases]
    } else {
        cases.into_iter().map(|case| vec![case]).collect()
    };
    for group in groups {
        let peers = Peers::start(args, &bench, group[0], &full.v4, (&allowed, core))?;
        outcomes.extend(measure(&mut bench, &group, &full, peers, args)?);
    }
    if args.json {
        return super::print(&serde_json::to_string_pretty(&outcomes)?);
    }
    super::print(&report(&outcomes, &bench, args))
}

/// Loads the tables that the cases need.
fn load(args: &ForwardArgs, cases: &[&Case]) -> Result<FullTables> {
    // This many, so that the next hops of a generated table are spread like origin ASes.
    const ORIGINS: u16 = 30_000;
    let mut full = FullTables::default();
    if cases.iter().any(|case| case.full && case.mix != Mix::V6) {
        full.v4 = routes::load("--table", &args.table, ORIGINS)?;
    }
    if cases.iter().any(|case| matches!(case.mix, Mix::V6 | Mix::Both)) {
        full.v6 = routes::load("--table6", &args.table6, ORIGINS)?;
    }
    Ok(full)
}

/// State shared by all cases.
pub struct Bench {
    eal: Eal,
    pool: Mempool,
    /// Number of devices opened so far: each needs a number of its own.
    opened: Cell<usize>,
    /// The sources.
    sources: Vec<Source>,
}

/// A source of packets.
struct Source {
    mix: Mix,
    packets: Arc<SourcePackets>,
    /// The queue, in a list that a router borrows for its turn.
    queue: Vec<RxSource>,
}

impl Bench {
    /// Opens these sources, with the wanted packets each.
    pub fn start(mixes: &[Mix], wanted: &Wanted, full: &FullTables, no_huge: bool) -> Result<Self> {
        let count = mixes.len() * 1024 + 8192;
        let data_room = 2048;
        // Without hugepages each packet has a page of its own.
        let memory_mb = count * 4300 / 1_000_000 + 64;
        let huge = if no_huge { HugeMode::Never } else { HugeMode::Auto };
        let eal = Eal::init(&EalConfig { memory_mb, huge, ..EalConfig::default() })?;
        let config =
            MempoolConfig { name: "bench".into(), count, cache: 512, data_room, node: None };
        let pool = Mempool::new(&eal, &config)?;
        let mut bench = Self { eal, pool, opened: Cell::new(0), sources: Vec::new() };
        for &mix in mixes {
            let packets = match bench.packets(mix) {
                Some(packets) => packets.clone(),
                None => wanted.packets(mix, (&full.v4, &full.v6), 1)?,
            };
            let queue = bench.present(&packets)?;
            let queue = vec![RxSource::of_queue(PortId::FIRST, PORT, queue)];
            bench.sources.push(Source { mix, packets, queue });
        }
        Ok(bench)
    }

    /// Returns the pool of all packets.
    fn pool(&self) -> Mempool {
        self.pool.clone()
    }

    /// Returns DPDK's environment.
    pub fn eal(&self) -> &Eal {
        &self.eal
    }

    /// Returns the queues of the sources, for cases that forward from them.
    pub fn queues(&mut self) -> impl Iterator<Item = &mut Vec<RxSource>> {
        self.sources.iter_mut().map(|source| &mut source.queue)
    }

    /// Returns the packets of a source; `None` if there is no such source.
    fn packets(&self, mix: Mix) -> Option<&Arc<SourcePackets>> {
        self.sources.iter().find(|source| source.mix == mix).map(|source| &source.packets)
    }

    /// Opens the queue of a port that presents these packets.
    fn present(&self, packets: &Arc<SourcePackets>) -> Result<RxQueue> {
        let (mut rx, _) = self.open("net_null", "")?;
        let mut queue = rx.pop().context("the null driver has a receive queue")?;
        ensure!(queue.present(packets), "the null driver presents no packets");
        Ok(queue)
    }

    /// Opens the queue of a port that frees its packets.
    fn sink(&self) -> Result<TxQueue> {
        let (_, mut tx) = self.open("net_null", "")?;
        tx.pop().context("the null driver has a transmit queue")
    }

    /// Opens a device and returns its queues, which keep the port open.
    fn open(&self, driver: &str, args: &str) -> Result<(Vec<RxQueue>, Vec<TxQueue>)> {
        let name = format!("{driver}{}", self.opened.get());
        self.opened.set(self.opened.get() + 1);
        let device = Device::Vdev { name: name.clone(), args: args.to_owned() };
        let (_, rx, tx) = Port::open(&self.eal, &PortConfig::new(&name, device), &self.pool)?;
        Ok((rx, tx))
    }
}

/// Other programs that take turns with a case.
#[derive(Default)]
struct Peers {
    /// The floor of their cost; `None`: there are none.
    floor: Option<Peer>,
    routers: Vec<Peer>,
}

impl Peers {
    /// Starts those of the command line, if they can do this case.
    fn start(
        args: &ForwardArgs,
        bench: &Bench,
        case: &Case,
        full: &routes::Routes<Ipv4Addr>,
        (allowed, core): (&[usize], usize),
    ) -> Result<Self> {
        let programs = args.peers();
        let Some((_, first)) = programs.first() else { return Ok(Self::default()) };
        if case.mix != Mix::V4 || case.more != More::Nothing {
            return Ok(Self::default());
        }
        ensure!(!args.verified, "--verified: DPDK's null driver cannot tell other programs of it");
        let packets = bench.packets(case.mix).context("the source is there")?;
        let setting = Setting { packets, memory: bench.eal.memory(), allowed, core };
        let routers = programs.iter().map(|(start, binary)| start(binary, case, full, &setting));
        let routers = routers.collect::<Result<_>>()?;
        Ok(Self { floor: Some(l3fwd::floor(peer::source_of(first), &setting)?), routers })
    }

    /// Makes one turn of each: returns those of the routers, each with that of the floor.
    fn turn(&mut self, packets: u64) -> Result<Vec<Sample>> {
        let Some(floor) = &mut self.floor else { return Ok(Vec::new()) };
        let floor = floor.turn(packets)?;
        self.routers.iter_mut().map(|peer| Ok((floor, peer.turn(packets)?))).collect()
    }

    /// Fails if one did not forward. Returns the outcomes of the samples of each, compared with those of the case.
    fn outcomes(
        mut self,
        (case, own): (&str, &[Sample]),
        theirs: &[Vec<Sample>],
    ) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for (index, peer) in self.routers.iter_mut().enumerate() {
            let parts = peer.finish()?;
            let samples: Vec<_> = theirs.iter().map(|round| round[index]).collect();
            let mut outcome = outcome(format!("{}-{case}", peer.name()), &samples);
            let ratio = ratio(own, &samples);
            let parts = parts.map_or_else(String::new, |parts| format!("; {parts}"));
            outcome.compared = Some(format!("{case} takes {ratio:.2} of it{parts}"));
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }
}

/// Rounds whose middle half differs by more than this part of the median are called noisy.
const NOISE: f64 = 0.25;

/// The cost of the bare loop, and a router's own, of the same round.
type Sample = (Cost, Cost);

/// Measures the bare loop, every router and l3fwd by turns.
fn measure(
    bench: &mut Bench,
    cases: &[&'static Case],
    full: &FullTables,
    mut peers: Peers,
    args: &ForwardArgs,
) -> Result<Vec<Outcome>> {
    let bursts = Bursts { rx: args.rx_burst.into(), tx: args.tx_burst.into() };
    let mut bare = BareLoop::new(bench, bursts)?;
    let mut routers = Vec::new();
    for case in cases {
        routers.push(Router::new(bench, case, full, bursts)?);
    }
    let progress = progress::bar(args.rounds as u64 + 1, &names(cases));
    let mut meter = Meter::new();
    turns(bench, &mut bare, &mut routers, args.packets / 4, &mut meter)?;
    progress.inc(1);
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); routers.len()];
    let mut of_peers = Vec::new();
    for _ in 0..args.rounds {
        let round = turns(bench, &mut bare, &mut routers, args.packets, &mut meter)?;
        of_peers.push(peers.turn(args.packets)?);
        samples.iter_mut().zip(round).for_each(|(samples, sample)| samples.push(sample));
        progress.inc(1);
    }
    progress.finish_and_clear();
    let named = routers.iter().map(|router| router.case.name).zip(&samples);
    let mut outcomes: Vec<_> = named.map(|(name, s)| outcome(name.to_owned(), s)).collect();
    outcomes.extend(peers.outcomes((cases[0].name, &samples[0]), &of_peers)?);
    compare_steps(&mut outcomes, &routers, &samples);
    Ok(outcomes)
}

fn names(cases: &[&Case]) -> String {
    cases.iter().map(|case| case.name).collect::<Vec<_>>().join(", ")
}

/// Makes one turn of each router: returns the cost of the bare loop over its source, and its own.
fn turns(
    bench: &mut Bench,
    bare: &mut BareLoop,
    routers: &mut [Router],
    packets: u64,
    meter: &mut Meter,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for Source { mix, queue, .. } in &mut bench.sources {
        if routers.iter().all(|router| router.case.mix != *mix) {
            continue;
        }
        let io = meter.measure(|| bare.turn(&mut queue[0], packets));
        for router in routers.iter_mut().filter(|router| router.case.mix == *mix) {
            router.exchange(std::mem::take(queue));
            samples.push((io, meter.measure(|| router.turn(packets))));
            *queue = router.exchange(Vec::new());
            router.check()?;
        }
    }
    Ok(samples)
}

/// Returns all values of the rounds, sorted.
fn sorted(samples: &[Sample], of: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
    let mut values: Vec<_> = samples.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn above((io, own): &Sample) -> f64 {
    own.cycles - io.cycles
}

fn outcome(case: String, samples: &[Sample]) -> Outcome {
    let all_above = sorted(samples, |sample| Some(above(sample)));
    let cycles = median(&sorted(samples, |(_, own)| Some(own.cycles))).unwrap_or(f64::NAN);
    let of = |count: fn(&Cost) -> Option<f64>| {
        median(&sorted(samples, |(io, own)| Some(count(own)? - count(io)?)))
    };
    Outcome {
        case,
        cycles_io_median: median(&sorted(samples, |(io, _)| Some(io.cycles))).unwrap_or(f64::NAN),
        cycles_median: cycles,
        cycles_above_io_median: median(&all_above).unwrap_or(f64::NAN),
        cycles_above_io_min: all_above.first().copied().unwrap_or(f64::NAN),
        busy_above_io_median: of(|cost| Some(cost.busy)).unwrap_or(f64::NAN),
        spread: spread(&all_above).unwrap_or(f64::NAN),
        instructions: of(|cost| cost.instructions),
        branch_misses: of(|cost| cost.branch_misses),
        mpps: dpdk::tsc_hz() as f64 / cycles / 1e6,
        compared: None,
    }
}

/// Returns the median over the rounds of one's cycles above io divided by the other's.
fn ratio(own: &[Sample], theirs: &[Sample]) -> f64 {
    let mut ratios: Vec<_> =
        own.iter().zip(theirs).map(|(own, theirs)| above(own) / above(theirs)).collect();
    ratios.sort_by(f64::total_cmp);
    median(&ratios).unwrap_or(f64::NAN)
}

/// Reports the costs of steps: a router with one more step compared with `4r1e` of the same round;
/// for a step in Lua also the stability of its cost, and the work of LuaJIT.
fn compare_steps(outcomes: &mut [Outcome], routers: &[Router], samples: &[Vec<Sample>]) {
    let base = routers.iter().position(|router| router.case.name == "4r1e");
    let Some(base) = base.map(|base| &samples[base]) else { return };
    let with_step = |router: &Router| router.case.more != More::Nothing;
    for (k, router) in routers.iter().enumerate().filter(|(_, router)| with_step(router)) {
        let mut text = format!("the step costs {} more than 4r1e", more(base, &samples[k]));
        if let Some([compiled, given_up, flushed]) = router.traces() {
            let tenth = base.len().div_ceil(10);
            let last = base.len() - tenth;
            text += &format!(
                "; in the first {tenth} rounds {}, in the last {}; {compiled} traces compiled, {given_up} \
                 aborted, all flushed {flushed} times",
                more(&base[..tenth], &samples[k][..tenth]),
                more(&base[last..], &samples[k][last..])
            );
        }
        outcomes[k].compared = Some(text);
    }
}

/// Returns the extra cycles of one over the other in the same round: median and minimum.
fn more(base: &[Sample], with: &[Sample]) -> String {
    let rounds = base.iter().zip(with);
    let mut more: Vec<_> = rounds.map(|(base, with)| above(with) - above(base)).collect();
    more.sort_by(f64::total_cmp);
    let least = more.first().copied().unwrap_or(f64::NAN);
    format!("{:.2} (at least {least:.2})", median(&more).unwrap_or(f64::NAN))
}

fn report(outcomes: &[Outcome], bench: &Bench, args: &ForwardArgs) -> String {
    let bytes = match &args.size {
        None => format!("{} (IPv6: {})", source::FRAME, source::FRAME6),
        Some(sizes) => format!("{} to {}", sizes.smallest() - FCS, sizes.largest() - FCS),
    };
    let mut lines = vec![
        format!("memory: {}", bench.eal.memory()),
        format!(
            "{} rounds of {} packets of {} bytes to {} random destinations, TSC {:.2} GHz",
            args.rounds,
            args.packets,
            bytes,
            args.destinations,
            dpdk::tsc_hz() as f64 / 1e9
        ),
        "cycles per packet; above io = above the bare receive-transmit loop of the same round, other programs above \
         testpmd; busy = of the thread's time on the processor"
            .to_owned(),
        format!(
            "{:<20}{:>8}{:>8}{:>14}{:>11}{:>12}{:>14}{:>15}{:>8}",
            "case",
            "io",
            "whole",
            "above median",
            "above min",
            "busy above",
            "instructions",
            "branch misses",
            "Mpps"
        ),
    ];
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    lines.extend(outcomes.iter().map(|o| {
        format!(
            "{:<20}{:>8.1}{:>8.1}{:>14.1}{:>11.1}{:>12.1}{:>14}{:>15}{:>8.2}",
            o.case,
            o.cycles_io_median,
            o.cycles_median,
            o.cycles_above_io_median,
            o.cycles_above_io_min,
            o.busy_above_io_median,
            optional(o.instructions, 1),
            optional(o.branch_misses, 3),
            o.mpps
        )
    }));
    let compared = |o: &Outcome| Some(format!("{}: {}", o.case, o.compared.as_ref()?));
    lines.extend(outcomes.iter().filter_map(compared));
    let noisy = |o: &&Outcome| o.spread > NOISE;
    lines.extend(outcomes.iter().filter(noisy).map(|o| {
        let percent = 100.0 * o.spread;
        format!("{}: noisy: the middle half of its rounds differs by {percent:.0} %", o.case)
    }));
    if outcomes.iter().any(|o| o.instructions.is_none()) {
        lines.push("-: this machine does not count events (try bench/instructions.py)".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(all: &[(f64, f64)]) -> Vec<Sample> {
        let cost = |cycles| Cost { cycles, busy: cycles, instructions: None, branch_misses: None };
        all.iter().map(|&(io, own)| (cost(io), cost(own))).collect()
    }

    #[test]
    fn the_outcome_compares_within_a_round() {
        // A slow machine in the second round affects both, and the difference stays.
        let outcome = outcome("4r1e".into(), &samples(&[(10.0, 60.0), (30.0, 81.0), (11.0, 63.0)]));
        assert_eq!(outcome.cycles_above_io_median, 51.0);
        assert_eq!(outcome.cycles_above_io_min, 50.0);
        assert_eq!(outcome.cycles_io_median, 11.0);
        assert_eq!(outcome.instructions, None);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let own = samples(&[(10.0, 60.0), (20.0, 120.0), (10.0, 70.0)]);
        let theirs = samples(&[(10.0, 110.0), (20.0, 220.0), (10.0, 110.0)]);
        assert_eq!(ratio(&own, &theirs), 0.5);
    }

    #[test]
    fn a_step_is_compared_with_the_router_without_it_in_the_same_round() {
        let base = samples(&[(10.0, 50.0), (30.0, 90.0), (11.0, 52.0)]);
        let with = samples(&[(10.0, 54.0), (30.0, 96.0), (11.0, 57.0)]);
        assert_eq!(more(&base, &with), "5.00 (at least 4.00)");
    }

    #[test]
    fn json_has_the_keys_that_are_documented() {
        let outcome = outcome("full6".into(), &samples(&[(10.0, 60.0)]));
        let json = serde_json::to_value(&outcome).unwrap();
        let mut keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let expected = [
            "branch_misses",
            "busy_above_io_median",
            "case",
            "cycles_above_io_median",
            "cycles_above_io_min",
            "cycles_io_median",
            "cycles_median",
            "instructions",
            "mpps",
            "spread",
        ];
        assert_eq!(keys, expected);
        assert!(json["instructions"].is_null());
    }
}
