//! `turnpike bench sync`: cost of route changes for forwarders, by the method of publication, and
//! time until all forwarders use a change (Kamuee Zero, figure 8).
//!
//! The real forwarder of `bench forward`, case `full4`, replays packets on each core but the first;
//! the writer, on the first, changes the next hop of random routes. Every method ([`methods`]) has
//! a table and forwarders of its own and takes its turn in every round: once without changes, once
//! with a change as soon as the previous one is synchronised. A synchronisation is timed from the
//! beginning of the change until no forwarder can see the old route.
//!
//! A round of a forwarder is one batch of 64 packets, which share the cost of a method.

mod methods;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use dataplane::counters::Counter;
use dataplane::next_hop::FIRST_DYNAMIC;
use dataplane::polling::RxSource;
use fib::synthetic::Random;
use machine::cores;
use serde::Serialize;

use self::methods::{Method, NAMES, ReadSide, Route, WriteSide};
use super::forward::Bench;
use super::forward::cases::{Bursts, FullTables, NEXT_HOPS, Router, choose, with_default};
use super::meter::median;
use super::plot::{Figure, Series};
use super::progress;
use super::source::{Mix, Wanted};
use crate::workload::routes::{self, Routes};

/// Most synchronisation times that are stored per turn.
const KEPT: usize = 1 << 20;

/// Options of the measurement.
#[derive(Debug, Args)]
pub struct SyncArgs {
    /// The routes: PREFIX<TAB>AS or an MRT dump, or synthetic:N for N made-up prefixes
    #[arg(long, default_value = "synthetic:500000")]
    table: String,
    /// Only these methods, separated by commas
    #[arg(long, value_delimiter = ',')]
    method: Vec<String>,
    /// Forwarders; one for each core but the first if not given. The last shares the writer's core if
    /// there are as many as cores
    #[arg(long)]
    forwarders: Option<usize>,
    /// Rounds in which every method takes its turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of a turn, once without changes and once with
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    no_huge: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a plot of the forwarding rates as SVG, and one of the times beside it as …-time.svg
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// Result of a turn.
#[derive(Clone, Debug, Serialize)]
struct Turn {
    /// Million packets per second of all forwarders, without changes.
    mpps_quiet: f64,
    /// Million packets per second of all forwarders, while routes change.
    mpps_changing: f64,
    /// Changes per second.
    changes_per_s: f64,
    /// Microseconds until a change was synchronised.
    sync_us: Times,
}

/// A distribution of times.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Times {
    min: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

/// Result of a method.
#[derive(Debug, Serialize)]
struct Outcome {
    method: &'static str,
    /// Medians over the rounds.
    median: Turn,
    rounds: Vec<Turn>,
}

/// Runs the benchmark and prints its result.
pub fn run(args: &SyncArgs) -> Result<()> {
    ensure!(args.rounds >= 1, "--rounds {}: at least 1", args.rounds);
    ensure!(args.seconds > 0.0, "--seconds {}: above 0", args.seconds);
    let allowed = cores::allowed()?;
    let first = *allowed.first().context("no core is allowed")?;
    // The first core is the writer's, so forwarders use it last.
    let others: Vec<_> = allowed[1..].iter().copied().chain([first]).collect();
    let forwarders = args.forwarders.unwrap_or((others.len() - 1).max(1));
    let most = others.len();
    ensure!((1..=most).contains(&forwarders), "--forwarders {forwarders}: 1 to {most} here");
    let full = routes::load("--table", &args.table, NEXT_HOPS)?;
    let mut tests = tests(args, forwarders, &with_default(&full)?)?;
    cores::pin(first)?;
    let mut bench = Bench::start(
        &vec![Mix::V4; forwarders],
        &Wanted { count: 16_384, in_table: false, is_verified: false, sizes: None },
        &FullTables::default(),
        args.no_huge,
    )?;
    for test in &mut tests {
        test.make_routers(&bench)?;
    }
    let progress = progress::bar((args.rounds * tests.len()) as u64, "sync");
    let mut random = Random::new(1);
    for _ in 0..args.rounds {
        for test in &mut tests {
            let turn = test.turn(&mut bench, &others, &full, &mut random, args.seconds)?;
            test.turns.push(turn);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let outcomes: Vec<_> = tests.into_iter().map(outcome).collect();
    if let Some(file) = &args.plot {
        rates(&outcomes).write(file)?;
        let name = file.file_stem().context("--plot: no file name")?.to_string_lossy();
        times(&outcomes).write(&file.with_file_name(format!("{name}-time.svg")))?;
    }
    if args.json {
        return super::print(&serde_json::to_string_pretty(&outcomes)?);
    }
    super::print(&report(&outcomes, args, forwarders))
}

/// Returns the requested methods.
fn tests(
    args: &SyncArgs,
    forwarders: usize,
    routes: &Routes<std::net::Ipv4Addr>,
) -> Result<Vec<Test>> {
    let wrong = args.method.iter().find(|name| !NAMES.contains(&name.as_str()));
    ensure!(
        wrong.is_none(),
        "--method {}: not found; known: {}",
        wrong.map_or("", String::as_str),
        NAMES.join(", ")
    );
    let wanted = |name: &&str| args.method.is_empty() || args.method.iter().any(|one| one == name);
    let make = |name| {
        let method = methods::make(name, forwarders, routes)?;
        Ok(Test { method, routers: Vec::new(), turns: Vec::new() })
    };
    NAMES.into_iter().filter(wanted).map(make).collect()
}

/// A method, its routers and their results.
struct Test {
    method: Method,
    routers: Vec<Router>,
    turns: Vec<Turn>,
}

impl Test {
    fn make_routers(&mut self, bench: &Bench) -> Result<()> {
        let case = choose(&["full4".into()])?[0];
        let fib6 = fib::new_ipv6(fib::Algorithm::default(), Box::new(fib::NoReaders))?.reader();
        for _ in &self.method.readers {
            let lookups = (self.method.lookup.clone(), fib6.clone());
            self.routers.push(Router::with(bench, case, lookups, Bursts::default())?);
        }
        Ok(())
    }

    /// Forwards for a while without changes and for a while with them.
    fn turn(
        &mut self,
        bench: &mut Bench,
        cores: &[usize],
        routes: &Routes<std::net::Ipv4Addr>,
        random: &mut Random,
        seconds: f64,
    ) -> Result<Turn> {
        for (router, source) in self.routers.iter_mut().zip(bench.queues()) {
            router.exchange(std::mem::take(source));
        }
        let stop = AtomicBool::new(false);
        let counters: Vec<Counter> = self.routers.iter().map(|_| Counter::default()).collect();
        let Method { readers, writer, .. } = &mut self.method;
        let eal = bench.eal();
        let turn = thread::scope(|scope| {
            let units = self.routers.iter_mut().zip(readers).zip(&counters).zip(cores);
            for (((router, reader), counter), &core) in units {
                let stop = &stop;
                let body = move || forward(router, &mut **reader, counter, stop, core, eal);
                thread::Builder::new().name("forwarder".into()).spawn_scoped(scope, body)?;
            }
            let forwarded = || counters.iter().map(Counter::get).sum::<u64>();
            // Fills the caches.
            thread::sleep(Duration::from_secs_f64(seconds / 5.0));
            let quiet = measure(&forwarded, || {
                thread::sleep(Duration::from_secs_f64(seconds));
                Ok(Vec::new())
            });
            let changing = measure(&forwarded, || publish(&mut **writer, routes, random, seconds));
            stop.store(true, Ordering::Relaxed);
            let ((quiet, _), (changing, times, elapsed)) =
                (quiet.map(|(rate, times, _)| (rate, times))?, changing?);
            anyhow::Ok(Turn {
                mpps_quiet: quiet,
                mpps_changing: changing,
                changes_per_s: times.len() as f64 / elapsed,
                sync_us: distribution(times),
            })
        })?;
        for (router, source) in self.routers.iter_mut().zip(bench.queues()) {
            *source = router.exchange(Vec::<RxSource>::new());
            router.check()?;
        }
        Ok(turn)
    }
}

/// Runs a forwarder's thread.
fn forward(
    router: &mut Router,
    reader: &mut dyn ReadSide,
    counter: &Counter,
    stop: &AtomicBool,
    core: usize,
    eal: &dpdk::Eal,
) {
    if let Err(error) = cores::pin(core) {
        eprintln!("{error:#}; a forwarder runs on any core");
    }
    let _registration = eal.register_thread();
    while !stop.load(Ordering::Relaxed) {
        let mut packets = 0;
        reader.read(&mut || packets = router.round());
        counter.add(packets);
    }
    reader.pause();
}

/// Runs an action; returns the million packets per second meanwhile, its result, and its seconds.
fn measure(
    forwarded: &dyn Fn() -> u64,
    action: impl FnOnce() -> Result<Vec<u64>>,
) -> Result<(f64, Vec<u64>, f64)> {
    let (before, start) = (forwarded(), Instant::now());
    let times = action()?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(((forwarded() - before) as f64 / seconds / 1e6, times, seconds))
}

/// Changes routes for this time; returns the cycles of each change.
fn publish(
    writer: &mut dyn WriteSide,
    routes: &Routes<std::net::Ipv4Addr>,
    random: &mut Random,
    seconds: f64,
) -> Result<Vec<u64>> {
    let mut times = Vec::with_capacity(KEPT);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end && times.len() < KEPT {
        let (prefix, _) = routes[random.below(routes.len() as u64) as usize];
        let next_hop = FIRST_DYNAMIC + random.below(NEXT_HOPS.into()) as u16;
        let route: Route = (prefix, next_hop);
        let start = dpdk::tsc();
        writer.publish(route)?;
        times.push(dpdk::tsc() - start);
    }
    Ok(times)
}

/// Returns the distribution of times in cycles, in microseconds.
fn distribution(mut cycles: Vec<u64>) -> Times {
    cycles.sort_unstable();
    let us = |cycles: u64| cycles as f64 * 1e6 / dpdk::tsc_hz() as f64;
    // The value that this percentage does not exceed.
    let at = |percent: usize| {
        let index = (cycles.len() * percent).div_ceil(100).saturating_sub(1);
        cycles.get(index).map_or(0.0, |&cycles| us(cycles))
    };
    Times { min: cycles.first().map_or(0.0, |&c| us(c)), p50: at(50), p99: at(99), max: at(100) }
}

fn outcome(test: Test) -> Outcome {
    let turns = &test.turns;
    let middle = |of: fn(&Turn) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        median(&values).unwrap_or(f64::NAN)
    };
    let median = Turn {
        mpps_quiet: middle(|turn| turn.mpps_quiet),
        mpps_changing: middle(|turn| turn.mpps_changing),
        changes_per_s: middle(|turn| turn.changes_per_s),
        sync_us: Times {
            min: middle(|turn| turn.sync_us.min),
            p50: middle(|turn| turn.sync_us.p50),
            p99: middle(|turn| turn.sync_us.p99),
            max: middle(|turn| turn.sync_us.max),
        },
    };
    Outcome { method: test.method.name, median, rounds: test.turns }
}

fn report(outcomes: &[Outcome], args: &SyncArgs, forwarders: usize) -> String {
    let mut lines = vec![
        format!(
            "{}; {forwarders} forwarders, 1 writer; medians of {} rounds of {} s",
            args.table, args.rounds, args.seconds
        ),
        format!(
            "{:<16}{:>12}{:>12}{:>8}{:>12}{:>10}{:>10}{:>10}{:>10}",
            "method",
            "Mpps quiet",
            "changing",
            "ratio",
            "changes/s",
            "us: min",
            "50 %",
            "99 %",
            "max"
        ),
    ];
    lines.extend(outcomes.iter().map(|Outcome { method, median: m, .. }| {
        format!(
            "{method:<16}{:>12.2}{:>12.2}{:>8.2}{:>12.0}{:>10.2}{:>10.2}{:>10.1}{:>10.0}",
            m.mpps_quiet,
            m.mpps_changing,
            m.mpps_changing / m.mpps_quiet,
            m.changes_per_s,
            m.sync_us.min,
            m.sync_us.p50,
            m.sync_us.p99,
            m.sync_us.max,
        )
    }));
    lines.join("\n")
}

/// One value of a turn, and its name.
type Value = (&'static str, fn(&Turn) -> f64);

/// Returns bars of some values of all methods.
fn bars(outcomes: &[Outcome], values: &[Value]) -> (Vec<String>, Vec<Series>) {
    let points = |of: fn(&Turn) -> f64| {
        outcomes.iter().enumerate().map(|(at, outcome)| (at as f64, of(&outcome.median))).collect()
    };
    let series =
        values.iter().map(|&(name, of)| Series { name: name.into(), points: points(of) }).collect();
    (outcomes.iter().map(|outcome| outcome.method.to_owned()).collect(), series)
}

fn rates(outcomes: &[Outcome]) -> Figure {
    let values: [Value; 2] =
        [("nothing changes", |t| t.mpps_quiet), ("routes change", |t| t.mpps_changing)];
    let (words, series) = bars(outcomes, &values);
    let (title, y) =
        ("Forwarding rate by publication of routes".into(), "million packets/s".into());
    Figure { title, y, words, series, ..Figure::default() }
}

fn times(outcomes: &[Outcome]) -> Figure {
    let values: [Value; 2] = [("median", |t| t.sync_us.p50), ("99 of 100", |t| t.sync_us.p99)];
    let (words, series) = bars(outcomes, &values);
    let (title, y) = ("Time until all forwarders have a change".into(), "microseconds".into());
    Figure { title, y, words, series, log_y: true, ..Figure::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_so_many_do_not_exceed() {
        let hz = dpdk::tsc_hz() as f64;
        let times = distribution((1..=200).rev().collect());
        let us = |cycles: f64| cycles * 1e6 / hz;
        assert_eq!((times.min, times.max), (us(1.0), us(200.0)));
        assert_eq!((times.p50, times.p99), (us(100.0), us(198.0)));
        assert_eq!(distribution(Vec::new()).max, 0.0);
    }

    #[test]
    fn figures_have_a_bar_for_each_method() {
        let turn = Turn {
            mpps_quiet: 20.0,
            mpps_changing: 10.0,
            changes_per_s: 1e5,
            sync_us: Times { min: 1.0, p50: 2.0, p99: 3.0, max: 4.0 },
        };
        let of = |method| Outcome { method, median: turn.clone(), rounds: Vec::new() };
        let figure = rates(&[of("rwlock"), of("rcu-qsbr")]);
        assert_eq!(figure.words, ["rwlock", "rcu-qsbr"]);
        assert_eq!(figure.series[1].points, [(0.0, 10.0), (1.0, 10.0)]);
    }
}
