//! `turnpike bench fib`: cost of a route lookup, in our structures and in DPDK's.
//!
//! Every structure is first compared with the reference on a million addresses per family. A wrong
//! answer of one of ours ends the run; one of DPDK's is reported, and the structure left out. Then
//! all look up the same addresses by turns, in one process on one core, so that a slow moment of
//! the machine affects all of them ([`timing`]); the median and the minimum over the rounds are
//! reported. Last, the updates are replayed, with and without a reader on another core
//! ([`update_time`]).
//!
//! | name | structure | looked up |
//! |---|---|---|
//! | `runmap`, `dir-24-8`, `reference` | the `fib` crate's | in batches of 32 |
//! | `poptrie` | the `fib` crate's | one at a time, inlined in a loop, as its authors measure |
//! | `poptrie-batch` | the same | in batches of 32, level by level |
//! | `rte_fib-2B`, `rte_fib-4B` | DPDK's DIR-24-8 | in bulk of 32, the fastest scalar way |
//! | `rte_fib-…-avx512` | the same | in bulk of 32, in vector instructions |
//! | `rte_lpm` | DPDK's older DIR-24-8 | in bulk of 32 |
//! | `rte_fib6-2B`, `rte_fib6-4B`, `…-avx512` | DPDK's IPv6 trie | in bulk of 32 |
//! | `rte_lpm6` | DPDK's older IPv6 trie | in bulk of 32 |
//!
//! Memory: DPDK's tables are in hugepages if enough are free, and ours in transparent hugepages;
//! without free hugepages, and with `--no-huge`, all are in ordinary pages.
//!
//! DPDK up to 24.11 gives `rte_fib` no grace periods: a group released by one network may be reused
//! by another while a lookup still reads it. So it has no update times with a reader.

mod check;
mod contender;
mod peers;
mod report;
mod timing;
mod update_time;
mod updates;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use dpdk::qsbr::Qsbr;
use dpdk::{Eal, Memory};
use fib::{Algorithm, NextHopId};
use machine::cores;

use self::check::Oracle;
use self::contender::{Contender, House};
use self::peers::{Peers, Setup};
use self::report::Figures;
use self::timing::{PacketWork, Series};
use self::update_time::Scene;
use self::updates::{ChangeList, Update};
use super::meter::{self, Place};
use crate::workload::pattern::{self, Addresses, Pattern};
use crate::workload::routes::{self, Family, Routes};

/// Number of addresses with which every structure is checked.
const CHECKED: usize = 1 << 20;
/// Number of addresses of a pattern.
const ADDRESSES: usize = 1 << 20;
/// Build time in milliseconds above which a structure is built only once.
const SLOW_BUILD: f64 = 4000.0;
/// Builds of the other structures.
const BUILDS: usize = 5;

/// Options of the measurement.
#[derive(Debug, Args)]
pub struct FibArgs {
    /// IPv4 routes: PREFIX<TAB>AS or an MRT dump, or synthetic:N for N made-up prefixes
    #[arg(long, default_value = "synthetic:500000")]
    table: String,
    /// IPv6 routes, likewise; without this, no IPv6
    #[arg(long)]
    table6: Option<String>,
    /// Changes to replay, lines of UNIX-TIME a|w PREFIX NEXTHOP; made up if not given
    #[arg(long)]
    updates: Option<PathBuf>,
    /// Patterns of addresses, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = Pattern::ALL)]
    pattern: Vec<Pattern>,
    /// Only these structures, separated by commas
    #[arg(long, value_delimiter = ',')]
    structure: Vec<String>,
    /// Next hops that the routes lead to; a route's is its origin AS modulo this
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=30_000))]
    next_hops: NextHopId,
    /// Rounds in which every structure takes its turn
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(5..))]
    rounds: u16,
    #[command(flatten)]
    place: Place,
}

/// Runs the benchmark and prints its result.
pub fn run(args: &FibArgs) -> Result<()> {
    check_structures(&args.structure)?;
    let updates = args.updates.as_ref().map(|file| updates::read(file)).transpose()?;
    let updates = updates.unwrap_or_default();
    let v4 = Input::<Ipv4Addr>::load("--table", &args.table, &updates, args.next_hops)?;
    let load6 = |source: &String| Input::load("--table6", source, &updates, args.next_hops);
    let v6: Option<Input<Ipv6Addr>> = args.table6.as_ref().map(load6).transpose()?;

    // One family after the other: they use the same memory.
    let memory_mb = v4.megabytes().max(v6.as_ref().map_or(0, Input::megabytes));
    let mut bench = Bench::start(args, memory_mb + PacketWork::MEGABYTES)?;
    bench.family(&v4.routes, &v4.plan)?;
    if let Some(v6) = v6 {
        bench.family(&v6.routes, &v6.plan)?;
    }
    if args.place.json {
        return super::print(&serde_json::to_string_pretty(&bench.figures)?);
    }
    super::print(&format!("{}\n\n{}", bench.text.join("\n\n"), report::marks(&bench.figures)))
}

/// One family's routes, and the changes to replay on them.
struct Input<A: Family> {
    routes: Routes<A>,
    plan: ChangeList<A>,
}

impl<A: Peers> Input<A> {
    fn load(option: &str, source: &str, updates: &[Update], next_hops: NextHopId) -> Result<Self> {
        let routes = routes::load(option, source, next_hops)?;
        let plan = updates::plan(&routes, updates, next_hops);
        Ok(Self { routes, plan })
    }

    /// Returns the megabytes of DPDK's memory that all structures take.
    fn megabytes(&self) -> usize {
        let size = A::size(&prefixes(&self.routes), spare(&self.plan));
        A::megabytes(size) + A::roomy_megabytes(size, &self.plan)
    }
}

/// Refuses unknown names of structures.
fn check_structures(wanted: &[String]) -> Result<()> {
    let known: Vec<&str> =
        Algorithm::ALL.into_iter().map(Algorithm::name).chain(peers::NAMES).collect();
    match wanted.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => bail!("--structure {name}: not found; known: {}", known.join(", ")),
        None => Ok(()),
    }
}

fn prefixes<A: Family>(routes: &Routes<A>) -> Vec<fib::Prefix<A>> {
    routes.iter().map(|&(prefix, _)| prefix).collect()
}

/// Returns the number of prefixes that changes may add, and some for the pieces that DPDK's tables
/// make of them.
fn spare<A: Family>(plan: &ChangeList<A>) -> usize {
    plan.changes.len() + 1000
}

/// State shared by the families.
struct Bench<'a> {
    args: &'a FibArgs,
    eal: Arc<Eal>,
    readers: Arc<Qsbr>,
    work: PacketWork,
    core: usize,
    reader_core: Option<usize>,
    figures: Vec<Figures>,
    /// Lines of the text output.
    text: Vec<String>,
}

impl<'a> Bench<'a> {
    fn start(args: &'a FibArgs, memory_mb: usize) -> Result<Self> {
        let allowed = cores::allowed()?;
        let core = meter::pin(args.place.core)?;
        let reader_core = allowed.into_iter().rev().find(|&other| other != core);
        let eal = Arc::new(args.place.eal(memory_mb)?);
        if let Memory::NoHuge { .. } = eal.memory() {
            // The same for all: otherwise our tables would use transparent hugepages.
            nix::sys::prctl::set_thp_disable(true)
                .context("transparent hugepages cannot be switched off for this process")?;
        }
        let work = PacketWork::new(&eal)?;
        Ok(Self {
            args,
            eal,
            readers: Qsbr::new(4),
            work,
            core,
            reader_core,
            figures: Vec::new(),
            text: Vec::new(),
        })
    }

    /// Measures one family.
    fn family<A: Peers>(&mut self, routes: &Routes<A>, plan: &ChangeList<A>) -> Result<()> {
        let mut notes = Vec::new();
        let oracle = Oracle::new(routes)?;
        let probes = check::probes(routes, CHECKED);
        let expected = oracle.answers(&probes);
        let mut ready = Vec::new();
        for contender in self.contenders(routes, plan) {
            let prepared = prepare(contender, routes, (&probes, &expected), &mut notes)?;
            ready.extend(prepared);
        }
        let memory = self.memory();
        let (mut contenders, builds): (Vec<_>, Vec<_>) = ready.into_iter().unzip();
        let patterns = self.patterns(routes);
        let rounds = self.args.rounds.into();
        let series = timing::measure(&mut contenders, &patterns, rounds, &mut self.work)?;
        let mut figures: Vec<Figures> =
            series.iter().map(|series| figures(series, &contenders, &builds)).collect();

        let outcomes = self.updates(&mut contenders, routes, (plan, oracle), &mut notes)?;
        for (figures, series) in figures.iter_mut().zip(&series) {
            figures.set_updates(&outcomes[series.contender]);
        }
        self.figures.extend(figures);
        self.log::<A>(routes.len(), plan, &memory, &notes);
        Ok(())
    }

    /// Returns all requested structures of a family.
    fn contenders<A: Peers>(
        &self,
        routes: &Routes<A>,
        plan: &ChangeList<A>,
    ) -> Vec<Box<dyn Contender<A>>> {
        let mut all: Vec<Box<dyn Contender<A>>> = Vec::new();
        for algorithm in Algorithm::ALL {
            if let Some(house) = House::new(algorithm, &self.readers) {
                all.push(Box::new(house));
            }
        }
        let setup = Setup { eal: &self.eal, readers: &self.readers, spare: spare(plan) };
        all.extend(A::peers(&setup, &prefixes(routes)));
        let wanted = &self.args.structure;
        all.retain(|contender| {
            wanted.is_empty() || wanted.iter().any(|name| name == contender.name())
        });
        all
    }

    fn patterns<A: Family>(&self, routes: &Routes<A>) -> Vec<(Pattern, Addresses<A>)> {
        let mut patterns = self.args.pattern.clone();
        patterns.sort_by_key(|&pattern| pattern as usize);
        patterns.dedup();
        let addresses = |pattern| (pattern, pattern::addresses(pattern, routes, ADDRESSES));
        patterns.into_iter().map(addresses).collect()
    }

    fn updates<A: Peers>(
        &self,
        contenders: &mut [Box<dyn Contender<A>>],
        routes: &Routes<A>,
        (plan, mut oracle): (&ChangeList<A>, Oracle<A>),
        notes: &mut Vec<String>,
    ) -> Result<Vec<update_time::Outcome>> {
        let mut probes = check::probes(routes, CHECKED / 8).bits;
        probes.extend(check::probes_of_changes(&plan.changes).bits);
        let probes = Addresses::new(probes);
        let before = oracle.answers(&probes);
        oracle.apply(&plan.changes)?;
        let changed = oracle.answers(&probes);
        let scene = Scene {
            routes,
            plan,
            probes: &probes,
            changed: &changed,
            before: &before,
            traffic: &pattern::addresses(Pattern::InTable, routes, ADDRESSES / 8),
            reader_core: self.reader_core,
        };
        if self.reader_core.is_none() {
            notes.push("one core: no update times with a reader".to_owned());
        }
        let outcomes = update_time::measure(contenders, &scene, notes)?;
        if self.reader_core.is_some() {
            notes.extend(without_reader(contenders, &outcomes));
        }
        Ok(outcomes)
    }

    /// Describes the memory of the tables.
    fn memory(&self) -> String {
        match self.eal.memory() {
            Memory::Hugepages { .. } => format!(
                "DPDK's tables in {}; ours in transparent hugepages ({} MB of them in use)",
                self.eal.memory(),
                transparent_hugepages().map_or_else(|| "?".to_owned(), |mb| mb.to_string())
            ),
            memory => format!("all tables in ordinary pages ({memory})"),
        }
    }

    /// Adds a family to the text output; with JSON, notes go to standard error.
    fn log<A: Family>(
        &mut self,
        routes: usize,
        plan: &ChangeList<A>,
        memory: &str,
        notes: &[String],
    ) {
        if self.args.place.json {
            notes.iter().for_each(|note| eprintln!("{}: {note}", A::FAMILY));
            return;
        }
        let reader = self.reader_core.map_or_else(|| "none".to_owned(), |core| core.to_string());
        let mut lines = vec![
            format!(
                "{}: {routes} routes, {} next hops; {}",
                A::FAMILY,
                self.args.next_hops,
                plan.source
            ),
            format!("memory: {memory}"),
            format!(
                "core {}, reader's core {reader}, TSC {:.2} GHz, {} rounds, {}",
                self.core,
                dpdk::tsc_hz() as f64 / 1e9,
                self.args.rounds,
                dpdk::version(),
            ),
            format!("every structure answered {CHECKED} addresses as the reference does"),
        ];
        lines.extend(notes.iter().cloned());
        lines.push(String::new());
        lines.push(report::tables(&self.figures, A::FAMILY));
        self.text.push(lines.join("\n"));
    }
}

/// Explains why some structures have update times without a reader only: null in JSON.
fn without_reader<A: Family>(
    contenders: &[Box<dyn Contender<A>>],
    outcomes: &[update_time::Outcome],
) -> Option<String> {
    let alone = contenders.iter().zip(outcomes);
    let alone =
        alone.filter(|(_, outcome)| outcome.alone.is_some() && outcome.with_reader.is_none());
    let names: Vec<&str> = alone.map(|(contender, _)| contender.name()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: no update times with a reader (null in JSON): in this DPDK their writer reuses \
             memory without waiting for readers, who could then see wrong routes",
            names.join(", ")
        )
    })
}

/// A structure ready to be timed, and the milliseconds of its builds.
type Ready<A> = (Box<dyn Contender<A>>, Vec<f64>);

/// Builds a structure several times, selects its lookup methods, and checks its answers. One of
/// DPDK's that cannot be built or answers wrongly is noted and left out.
///
/// # Errors
/// The same fault of one of ours.
fn prepare<A: Family>(
    mut contender: Box<dyn Contender<A>>,
    routes: &Routes<A>,
    (probes, expected): (&Addresses<A>, &[NextHopId]),
    notes: &mut Vec<String>,
) -> Result<Option<Ready<A>>> {
    let mut attempt = || {
        let builds = build(&mut *contender, routes)?;
        let left_out = contender.tune(probes);
        check::check(&mut *contender, probes, expected)?;
        anyhow::Ok((builds, left_out))
    };
    match attempt() {
        Ok((builds, left_out)) => {
            notes.extend(left_out);
            Ok(Some((contender, builds)))
        }
        Err(error) if contender.is_ours() => Err(error.context(contender.name())),
        Err(error) => {
            notes.push(format!("{}: left out: {error:#}", contender.name()));
            Ok(None)
        }
    }
}

/// Builds the table several times; returns the milliseconds of each build.
fn build<A: Family>(contender: &mut dyn Contender<A>, routes: &Routes<A>) -> Result<Vec<f64>> {
    let mut builds = Vec::new();
    while builds.len() < BUILDS {
        let start = std::time::Instant::now();
        contender.build(routes)?;
        builds.push(start.elapsed().as_secs_f64() * 1e3);
        if builds.iter().sum::<f64>() > SLOW_BUILD {
            break;
        }
    }
    Ok(builds)
}

/// Returns the figures of a series, without update times yet.
fn figures<A: Family>(
    series: &Series,
    contenders: &[Box<dyn Contender<A>>],
    builds: &[Vec<f64>],
) -> Figures {
    let contender = &contenders[series.contender];
    let method = contender.methods().swap_remove(series.method);
    let (cycles_median, cycles_min) = report::median_and_min(series.cycles.clone());
    let counted =
        |values: &Vec<f64>| Some(report::median_and_min(values.clone()).0).filter(|v| !v.is_nan());
    Figures {
        structure: method.name,
        family: A::FAMILY,
        pattern: series.pattern,
        lookup: method.how,
        cycles_median,
        cycles_min,
        rounds: series.cycles.clone(),
        mlps: dpdk::tsc_hz() as f64 / cycles_median / 1e6,
        instructions: counted(&series.instructions),
        branch_misses: counted(&series.branch_misses),
        bytes: contender.lookup_bytes(),
        writer_bytes: contender.writer_bytes(),
        build_ms: report::median_and_min(builds[series.contender].clone()).0,
        update_us_mean: None,
        update_us_p50: None,
        update_us_p99: None,
        update_us_mean_reader: None,
        update_us_p50_reader: None,
        update_us_p99_reader: None,
    }
}

/// Returns the megabytes of this process in transparent hugepages.
fn transparent_hugepages() -> Option<u64> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use fib::Change;

    use super::contender::{Method, Reader};
    use super::*;

    /// Answers next hop 1 for every address, or cannot be built.
    struct Fake {
        ours: bool,
        builds: bool,
    }

    impl Contender<Ipv4Addr> for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }

        fn is_ours(&self) -> bool {
            self.ours
        }

        fn build(&mut self, _: &Routes<Ipv4Addr>) -> Result<()> {
            anyhow::ensure!(self.builds, "no room");
            Ok(())
        }

        fn methods(&self) -> Vec<Method> {
            vec![Method { name: "fake-fast".into(), how: String::new() }]
        }

        fn select(&mut self, _: usize) -> Result<()> {
            Ok(())
        }

        fn lookup(&mut self, _: &Addresses<Ipv4Addr>, _: Range<usize>) {}

        fn answers(&mut self, addresses: &Addresses<Ipv4Addr>) -> Vec<NextHopId> {
            vec![1; addresses.len()]
        }

        fn update(&mut self, _: &Change<Ipv4Addr>) -> Result<()> {
            Ok(())
        }

        fn reader(&self) -> Result<Option<Box<dyn Reader<Ipv4Addr>>>> {
            Ok(None)
        }

        fn lookup_bytes(&self) -> usize {
            0
        }

        fn writer_bytes(&self) -> usize {
            0
        }
    }

    fn prepare_fake(
        ours: bool,
        builds: bool,
        right: NextHopId,
    ) -> (Result<bool, String>, Vec<String>) {
        let probes = Addresses::new(vec![0x0b00_0001]);
        let mut notes = Vec::new();
        let fake = Box::new(Fake { ours, builds });
        let ready = prepare(fake, &Vec::new(), (&probes, &[right]), &mut notes);
        (ready.map(|ready| ready.is_some()).map_err(|error| format!("{error:#}")), notes)
    }

    #[test]
    fn wrong_structures_are_never_timed() {
        assert_eq!(prepare_fake(true, true, 1), (Ok(true), vec![]));
        let wrong = "fake-fast: 11.0.0.1: expected next hop 2, got next hop 1; \
                     1 of 1 answers are wrong";
        assert_eq!(prepare_fake(true, true, 2), (Err(format!("fake: {wrong}")), vec![]));
        let note = format!("fake: left out: {wrong}");
        assert_eq!(prepare_fake(false, true, 2), (Ok(false), vec![note]));
        assert_eq!(prepare_fake(true, false, 1), (Err("fake: no room".into()), vec![]));
        let note = "fake: left out: no room".to_owned();
        assert_eq!(prepare_fake(false, false, 1), (Ok(false), vec![note]));
    }

    #[test]
    fn structures_are_known_by_name() {
        check_structures(&["runmap".into(), "rte_lpm6".into()]).unwrap();
        let error = check_structures(&["poptrie".into(), "dir".into()]).unwrap_err().to_string();
        assert!(error.starts_with("--structure dir: not found; known: runmap, poptrie"), "{error}");
    }

    #[test]
    fn a_structure_that_allows_no_reader_is_told() {
        let fake: Box<dyn Contender<Ipv4Addr>> = Box::new(Fake { ours: false, builds: true });
        let micros = update_time::Micros { mean: 1.0, p50: 1.0, p99: 1.0 };
        let alone = update_time::Outcome { alone: Some(micros), with_reader: None };
        let both = update_time::Outcome { with_reader: Some(micros), ..alone };
        let contenders = [fake];
        let note = without_reader(&contenders, &[alone]).unwrap();
        assert!(note.starts_with("fake: no update times with a reader (null in JSON)"), "{note}");
        assert_eq!(without_reader(&contenders, &[both]), None);
        assert_eq!(without_reader(&contenders, &[update_time::Outcome::default()]), None);
    }
}
