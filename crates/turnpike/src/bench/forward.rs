//! `turnpike bench forward`: what a packet costs.
//!
//! DPDK's pcap driver with `infinite_rx=1` is the source: it replays frames to many random
//! destinations for ever, copying each into a fresh buffer as a NIC would. DPDK's null driver is
//! the sink: it frees what it is given. Between them runs the real forwarder with the default graph
//! (checksums verified, counters and drop reasons on); the same queues with nothing between them
//! are the bare loop, `io`. The difference is the router's cost. All cases and the bare loop take
//! turns in one process on one core, so that a slow moment of the machine hits all of them; the
//! median and the minimum over the rounds are reported.
//!
//! | case | routes | egress ports |
//! |---|---|---|
//! | `4r1e` | 4 of /2 | 1 |
//! | `4r4e` | 4 of /2 | 4 |
//! | `full4` | a full table and a default route | 4 |

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use dataplane::class;
use dataplane::counters::ForwarderCounters;
use dataplane::distribution::{Distribution, TxConfig, TxPath};
use dataplane::flow::FlowHash;
use dataplane::forwarder::{Forwarder, ForwarderParts, IdlePolicy, RxSource};
use dataplane::next_hop::{FIRST_DYNAMIC, NextHop, NextHopTable};
use dataplane::port::{Mtus, PortId, PortInfo, RedirectGates, ReversePath};
use dataplane::punts::{Punts, class_rings};
use dataplane::quarantine::Quarantine;
use dataplane::tables::Tables;
use dpdk::qsbr::Qsbr;
use dpdk::{
    Burst, Device, Eal, EalConfig, HugeMode, Mempool, MempoolConfig, PacketList, Port, PortConfig,
    RxQueue, TxQueue,
};
use serde::Serialize;
use wire::MacAddr;

use super::meter::{self, Cost, Meter, median};
use super::source;

/// How to measure.
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// The full table: PREFIX<TAB>AS or an MRT dump, or synthetic:N for N made-up prefixes
    #[arg(long, default_value = "synthetic:500000")]
    table: String,
    /// Rounds in which every case takes its turn
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Packets of one turn
    #[arg(long, default_value_t = 2_000_000)]
    packets: u64,
    /// Different random destinations in the source
    #[arg(long, default_value_t = 65_536)]
    destinations: usize,
    /// The core to run on
    #[arg(long)]
    core: Option<usize>,
    /// Only this case, and the bare loop
    #[arg(long)]
    case: Option<String>,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the result. Cycles are those of the time-stamp counter, per packet.
#[derive(Debug, Serialize)]
struct Outcome {
    case: &'static str,
    cycles_io_median: f64,
    cycles_above_io_median: f64,
    cycles_above_io_min: f64,
    /// Instructions per packet above the bare loop; none where the machine does not count them.
    instructions: Option<f64>,
    /// Branch misses per packet above the bare loop.
    branch_misses: Option<f64>,
    /// Million packets per second of the whole loop, median.
    mpps: f64,
}

/// Measures and prints.
pub fn run(args: &ForwardArgs) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(args.packets >= 10_000, "--packets {}: at least 10000", args.packets);
    ensure!(args.destinations >= 64, "--destinations {}: at least 64", args.destinations);
    let cases = choose(args.case.as_deref())?;
    meter::pin(args.core)?;

    let bench = Bench::start(args, cases.len() + 1)?;
    let mut bare = BareLoop::new(&bench)?;
    let mut routers = Vec::new();
    for case in cases {
        routers.push(Router::new(&bench, case, &args.table)?);
    }
    let samples = measure(&mut bare, &mut routers, args)?;
    let outcomes: Vec<_> =
        routers.iter().zip(&samples).map(|(router, s)| outcome(router.name, s)).collect();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcomes)?);
    } else {
        println!("{}", report(&outcomes, &bench, args));
    }
    Ok(())
}

/// A case: its name, its routes, its egress ports.
struct Case {
    name: &'static str,
    full_table: bool,
    egress: usize,
}

const CASES: [Case; 3] = [
    Case { name: "4r1e", full_table: false, egress: 1 },
    Case { name: "4r4e", full_table: false, egress: 4 },
    Case { name: "full4", full_table: true, egress: 4 },
];

fn choose(only: Option<&str>) -> Result<Vec<&'static Case>> {
    let chosen: Vec<_> = CASES.iter().filter(|case| only.is_none_or(|o| o == case.name)).collect();
    if chosen.is_empty() {
        let known: Vec<_> = CASES.iter().map(|case| case.name).collect();
        bail!("--case {}: not found; known: {}", only.unwrap_or_default(), known.join(", "));
    }
    Ok(chosen)
}

/// What all cases share.
struct Bench {
    eal: Eal,
    pool: Mempool,
    pcap: PathBuf,
    /// Devices opened so far: each needs a number of its own.
    opened: std::cell::Cell<usize>,
}

impl Bench {
    fn start(args: &ForwardArgs, sources: usize) -> Result<Self> {
        let name = format!("turnpike-bench-{}.pcap", std::process::id());
        let pcap = std::env::temp_dir().join(name);
        source::write_pcap(&pcap, args.destinations, 1)?;
        // Each source keeps every frame in a buffer of its own and copies it into another.
        let count = sources * (args.destinations + 8192);
        let data_room = 2048;
        let memory_mb = count * (usize::from(data_room) + 512) / 500_000 + 256;
        let huge = if args.no_huge { HugeMode::Never } else { HugeMode::Auto };
        let eal = Eal::init(&EalConfig { memory_mb, huge, ..EalConfig::default() })?;
        let config = MempoolConfig { name: "bench".into(), count, cache: 512, data_room };
        let pool = Mempool::new(&eal, &config)?;
        Ok(Self { eal, pool, pcap, opened: std::cell::Cell::new(0) })
    }

    /// The queue of a port that replays the frames for ever.
    fn source(&self) -> Result<RxQueue> {
        let args = format!("rx_pcap={},infinite_rx=1", self.pcap.display());
        let (mut rx, _) = self.open("net_pcap", &args)?;
        rx.pop().context("the pcap driver has a receive queue")
    }

    /// The queue of a port that frees what it is given.
    fn sink(&self) -> Result<TxQueue> {
        let (_, mut tx) = self.open("net_null", "")?;
        tx.pop().context("the null driver has a transmit queue")
    }

    /// The queues keep their port open.
    fn open(&self, driver: &str, args: &str) -> Result<(Vec<RxQueue>, Vec<TxQueue>)> {
        let name = format!("{driver}{}", self.opened.get());
        self.opened.set(self.opened.get() + 1);
        let device = Device::Vdev { name: name.clone(), args: args.to_owned() };
        let (_, rx, tx) = Port::open(&self.eal, &PortConfig::new(&name, device), &self.pool)?;
        Ok((rx, tx))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.pcap);
    }
}

/// Receive, send, nothing else: what every router pays for its packets to come and go.
struct BareLoop {
    rx: RxQueue,
    tx: TxQueue,
    burst: Burst,
    list: PacketList,
}

impl BareLoop {
    fn new(bench: &Bench) -> Result<Self> {
        let (rx, tx) = (bench.source()?, bench.sink()?);
        Ok(Self { rx, tx, burst: Burst::new(), list: PacketList::new() })
    }

    /// Forwards `packets`, or a burst more.
    #[inline(never)]
    fn turn(&mut self, packets: u64) -> u64 {
        let mut done = 0;
        while done < packets {
            done += self.rx.receive(&mut self.burst, dpdk::BURST_MAX) as u64;
            let all = self.burst.owned();
            self.burst.move_to(all, &mut self.list);
            while !self.list.is_empty() && self.tx.send(&mut self.list, 32).packets > 0 {}
        }
        done
    }
}

/// A router with one receiving port.
struct Router {
    name: &'static str,
    forwarder: Forwarder,
    counters: Arc<ForwarderCounters>,
    egress: usize,
    /// Keeps the table's writer, and with it the table, alive.
    _table: Box<dyn fib::Table<Ipv4Addr>>,
}

impl Router {
    fn new(bench: &Bench, case: &Case, table: &str) -> Result<Self> {
        let queue = bench.source()?;
        let info = PortInfo {
            mac: MacAddr(source::PORT_MAC),
            mtu: 1500,
            partial_checksums: false,
            host: false,
            reverse_path: ReversePath::Any,
            redirects: false,
        };
        let mut paths = Vec::new();
        for index in 0..case.egress {
            paths.push((port_id(index)?, TxPath::Queue(bench.sink()?)));
        }
        let (tables, table) = tables(case, table, vec![info; case.egress])?;
        let counters = Arc::new(ForwarderCounters::default());
        let rings = class_rings(&bench.eal, case.name, &class::default_limits())?.0;
        let punts = Punts::new(vec![rings], 1);
        let forwarder = Forwarder::new(ForwarderParts {
            rx: vec![RxSource { port: PortId::FIRST, info, queue }],
            inlets: Vec::new(),
            graph: dataplane::default_graph(&tables)?,
            distribution: Distribution::new(paths, TxConfig::default()),
            punts,
            quiescent: Qsbr::new(1).register()?,
            counters: counters.clone(),
            quarantine: Quarantine::new().0,
            idle: IdlePolicy::default(),
        });
        Ok(Self { name: case.name, forwarder, counters, egress: case.egress, _table: table })
    }

    /// Forwards `packets`, or a batch more.
    #[inline(never)]
    fn turn(&mut self, packets: u64) -> u64 {
        let mut done = 0;
        while done < packets {
            done += self.forwarder.round() as u64;
        }
        done
    }

    /// Refuses to report a router that did not forward: all packets left, but for those in bursts.
    fn check(&self) -> Result<()> {
        let received = self.counters.rx(PortId::FIRST).packets.get();
        let mut sent = 0;
        for index in 0..self.egress {
            let port = self.counters.tx(port_id(index)?).packets.get();
            ensure!(port > 0, "case {}: nothing left by port {index}", self.name);
            sent += port;
        }
        let held = self.counters.held.get();
        ensure!(
            sent + held == received,
            "case {}: {received} packets received, {sent} sent, {held} held: the rest was lost",
            self.name
        );
        Ok(())
    }
}

fn port_id(index: usize) -> Result<PortId> {
    PortId::new(index as u16).with_context(|| format!("port {index}: beyond the last"))
}

/// The tables of a case: routes to as many next hops as there are egress ports.
fn tables(
    case: &Case,
    table: &str,
    ports: Vec<PortInfo>,
) -> Result<(Arc<Tables>, Box<dyn fib::Table<Ipv4Addr>>)> {
    let mut fib4 = fib::new_ipv4(fib::Algorithm::default(), Box::new(fib::NoReaders))?;
    let fib6 = fib::new_ipv6(fib::Algorithm::default(), Box::new(fib::NoReaders))?;
    let next_hops = NextHopTable::new();
    for index in 0..4 {
        let port = port_id(index % case.egress)?;
        let mac = MacAddr([2, 0, 0, 0, 1, index as u8]);
        next_hops.set(FIRST_DYNAMIC + index as u16, NextHop::Forward { port, mac });
    }
    if case.full_table {
        let default = ("0.0.0.0/0".parse()?, FIRST_DYNAMIC);
        fib4.load(&mut full_table(table)?.into_iter().chain([default]))?;
    } else {
        for (prefix, id) in
            ["0.0.0.0/2", "64.0.0.0/2", "128.0.0.0/2", "192.0.0.0/2"].iter().zip(FIRST_DYNAMIC..)
        {
            fib4.insert(prefix.parse()?, id)?;
        }
    }
    let tables = Tables {
        fib4: fib4.reader(),
        fib6: fib6.reader(),
        next_hops: Arc::new(next_hops),
        mtus: Mtus::new(&ports),
        redirects: RedirectGates::default(),
        ports,
        flows: FlowHash::new(1),
    };
    Ok((Arc::new(tables), fib4))
}

/// The routes of the full table, spread over the four next hops by origin AS.
fn full_table(table: &str) -> Result<Vec<(fib::Prefix<Ipv4Addr>, u16)>> {
    let next_hop = |origin: u32| FIRST_DYNAMIC + (origin % 4) as u16;
    if let Some(count) = table.strip_prefix("synthetic:") {
        let count = count
            .parse()
            .with_context(|| format!("--table {table}: write synthetic:N, a number of prefixes"))?;
        let routes = fib::synthetic::ipv4(count, 30_000).into_iter();
        return Ok(routes.map(|(prefix, origin)| (prefix, next_hop(origin.into()))).collect());
    }
    let entries = control::import::read_table(table.as_ref())?.entries.into_iter();
    let routes: Vec<_> = entries
        .filter_map(|(prefix, origin)| match prefix {
            ipnet::IpNet::V4(prefix) => Some((prefix.try_into().ok()?, next_hop(origin))),
            ipnet::IpNet::V6(_) => None,
        })
        .collect();
    ensure!(!routes.is_empty(), "--table {table}: no IPv4 prefixes in it");
    Ok(routes)
}

/// Lets the bare loop and every router take turns; for each router, the cost of the bare loop and
/// its own in each round.
fn measure(
    bare: &mut BareLoop,
    routers: &mut [Router],
    args: &ForwardArgs,
) -> Result<Vec<Vec<(Cost, Cost)>>> {
    let mut meter = Meter::new();
    bare.turn(args.packets / 4);
    for router in routers.iter_mut() {
        router.turn(args.packets / 4);
        router.check()?;
    }
    let mut samples = vec![Vec::new(); routers.len()];
    for _ in 0..args.rounds {
        let base = meter.measure(|| bare.turn(args.packets));
        for (router, samples) in routers.iter_mut().zip(&mut samples) {
            samples.push((base, meter.measure(|| router.turn(args.packets))));
            router.check()?;
        }
    }
    Ok(samples)
}

fn outcome(case: &'static str, samples: &[(Cost, Cost)]) -> Outcome {
    let all = |of: &dyn Fn(&(Cost, Cost)) -> Option<f64>| -> Vec<f64> {
        let mut values: Vec<_> = samples.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let above = all(&|(io, own)| Some(own.cycles - io.cycles));
    let cycles = median(&all(&|(_, own)| Some(own.cycles))).unwrap_or(f64::NAN);
    Outcome {
        case,
        cycles_io_median: median(&all(&|(io, _)| Some(io.cycles))).unwrap_or(f64::NAN),
        cycles_above_io_median: median(&above).unwrap_or(f64::NAN),
        cycles_above_io_min: above.first().copied().unwrap_or(f64::NAN),
        instructions: median(&all(&|(io, own)| Some(own.instructions? - io.instructions?))),
        branch_misses: median(&all(&|(io, own)| Some(own.branch_misses? - io.branch_misses?))),
        mpps: dpdk::tsc_hz() as f64 / cycles / 1e6,
    }
}

fn report(outcomes: &[Outcome], bench: &Bench, args: &ForwardArgs) -> String {
    let mut lines = vec![
        format!("memory: {}", bench.eal.memory()),
        format!(
            "{} rounds of {} packets of {} bytes to {} random destinations, TSC {:.2} GHz",
            args.rounds,
            args.packets,
            source::FRAME,
            args.destinations,
            dpdk::tsc_hz() as f64 / 1e9
        ),
        "cycles per packet; above io = above the bare receive-transmit loop of the same round"
            .to_owned(),
        format!(
            "{:<8}{:>10}{:>14}{:>12}{:>16}{:>16}{:>10}",
            "case", "io", "above median", "above min", "instructions", "branch misses", "Mpps"
        ),
    ];
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    lines.extend(outcomes.iter().map(|o| {
        format!(
            "{:<8}{:>10.1}{:>14.1}{:>12.1}{:>16}{:>16}{:>10.2}",
            o.case,
            o.cycles_io_median,
            o.cycles_above_io_median,
            o.cycles_above_io_min,
            optional(o.instructions, 1),
            optional(o.branch_misses, 3),
            o.mpps
        )
    }));
    if outcomes.iter().any(|o| o.instructions.is_none()) {
        lines.push("-: this machine does not count events (try bench/instructions.py)".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_compares_within_a_round() {
        let cost = |cycles| Cost { cycles, instructions: None, branch_misses: None };
        // A slow machine in the second round hits both, and the difference stays.
        let samples =
            [(cost(10.0), cost(60.0)), (cost(30.0), cost(81.0)), (cost(11.0), cost(63.0))];
        let outcome = outcome("4r1e", &samples);
        assert_eq!(outcome.cycles_above_io_median, 51.0);
        assert_eq!(outcome.cycles_above_io_min, 50.0);
        assert_eq!(outcome.cycles_io_median, 11.0);
        assert_eq!(outcome.instructions, None);
    }

    #[test]
    fn unknown_cases_are_named() {
        let error = choose(Some("4r2e")).err().unwrap().to_string();
        assert_eq!(error, "--case 4r2e: not found; known: 4r1e, 4r4e, full4");
        assert_eq!(choose(None).unwrap().len(), 3);
    }
}
