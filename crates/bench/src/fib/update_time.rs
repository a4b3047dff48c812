//! Duration of a change, without and with a running reader.
//!
//! A pass makes all changes of the plan, each timed separately, and undoes them untimed, so that
//! every pass begins with the same table. The passes of all structures take turns; each figure is
//! the median over a structure's passes. With a reader, another thread on another core continuously
//! looks up batches and passes a quiescent state after each, so that the grace periods that the
//! writer needs are real. After the first pass, before and after the changes are undone, the
//! answers are compared with the reference's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use fib::NextHopId;
use machine::cores;

use super::check::check;
use super::contender::{BATCH, Contender, Reader};
use super::updates::ChangeList;
use crate::meter::median;
use crate::workload::pattern::Addresses;
use crate::workload::routes::{Family, Routes};

/// Number of passes of a structure whose passes are fast.
pub const PASSES: usize = 5;
/// Seconds of a pass above which a structure makes only one.
const SLOW: f64 = 3.0;

/// Microseconds per change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Micros {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Measurements of one structure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Without a reader.
    pub alone: Option<Micros>,
    /// With a reader.
    pub with_reader: Option<Micros>,
}

/// Input of a measurement besides the structures.
pub struct Scene<'a, A: Family> {
    /// The table before the changes.
    pub routes: &'a Routes<A>,
    /// The changes.
    pub plan: &'a ChangeList<A>,
    /// Addresses whose answers are compared.
    pub probes: &'a Addresses<A>,
    /// Their right answers with all changes made.
    pub changed: &'a [NextHopId],
    /// Their right answers before the changes and after undoing them.
    pub before: &'a [NextHopId],
    /// Addresses that the reader looks up.
    pub traffic: &'a Addresses<A>,
    /// The reader's core; none if there is no second core.
    pub reader_core: Option<usize>,
}

/// Measures all structures; adds a note for each that cannot be measured.
///
/// # Errors
/// One of ours answers wrongly, or fails, after changes.
pub fn measure<A: Family>(
    contenders: &mut [Box<dyn Contender<A>>],
    scene: &Scene<A>,
    notes: &mut Vec<String>,
) -> Result<Vec<Outcome>> {
    let mut runs: Vec<Run> = contenders.iter().map(|_| Run::default()).collect();
    for pass in 0..PASSES {
        for (contender, run) in contenders.iter_mut().zip(&mut runs) {
            if run.ended || (pass > 0 && run.is_slow()) {
                continue;
            }
            let Err(error) = run.pass(&mut **contender, scene, pass == 0) else { continue };
            let error = error.context(format!("{}: updates", contender.name()));
            if contender.is_ours() {
                return Err(error);
            }
            notes.push(format!("{error:#}; its update times are left out"));
            *run = Run { ended: true, ..Run::default() };
        }
    }
    Ok(runs.iter().map(Run::outcome).collect())
}

/// The passes of one structure.
#[derive(Default)]
struct Run {
    alone: Vec<Micros>,
    with_reader: Vec<Micros>,
    /// Seconds of the first pass.
    seconds: f64,
    /// True if updates fail.
    ended: bool,
}

impl Run {
    fn is_slow(&self) -> bool {
        self.seconds > SLOW
    }

    fn pass<A: Family>(
        &mut self,
        contender: &mut dyn Contender<A>,
        scene: &Scene<A>,
        first: bool,
    ) -> Result<()> {
        if first {
            contender.make_room(scene.routes, scene.plan)?;
        }
        let start = dpdk::tsc();
        self.alone.push(replay(contender, scene, first)?);
        self.seconds = (dpdk::tsc() - start) as f64 / dpdk::tsc_hz() as f64;
        let Some(core) = scene.reader_core else { return Ok(()) };
        let Some(reader) = contender.reader()? else { return Ok(()) };
        let replay = || replay(contender, scene, first);
        self.with_reader.push(beside(reader, scene.traffic, core, replay)?);
        Ok(())
    }

    fn outcome(&self) -> Outcome {
        Outcome { alone: typical(&self.alone), with_reader: typical(&self.with_reader) }
    }
}

/// Makes the changes and undoes them; compares the answers if requested.
fn replay<A: Family>(
    contender: &mut dyn Contender<A>,
    scene: &Scene<A>,
    compare: bool,
) -> Result<Micros> {
    let mut cycles = Vec::with_capacity(scene.plan.changes.len());
    for change in &scene.plan.changes {
        let start = dpdk::tsc();
        contender.update(change)?;
        cycles.push(dpdk::tsc() - start);
    }
    if compare {
        check(contender, scene.probes, scene.changed).context("all changes made")?;
    }
    for change in &scene.plan.undo {
        contender.update(change)?;
    }
    if compare {
        check(contender, scene.probes, scene.before).context("all changes taken back")?;
    }
    statistics(cycles, dpdk::tsc_hz())
}

/// Runs an action while a reader runs on another core.
fn beside<A: Family, R>(
    mut reader: Box<dyn Reader<A>>,
    traffic: &Addresses<A>,
    core: usize,
    action: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let (running, stop) = (&running, &stop);
        let thread = scope.spawn(move || -> Result<()> {
            // Even if it fails, as the other thread waits for this.
            let pinned = cores::pin(core);
            running.store(true, Ordering::Release);
            pinned?;
            let batches = traffic.len() / BATCH;
            let batch = |number: usize| number * BATCH..(number + 1) * BATCH;
            for number in (0..batches).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                reader.lookup(traffic, batch(number));
            }
            Ok(())
        });
        while !running.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let result = action();
        stop.store(true, Ordering::Relaxed);
        let reader = thread.join().map_err(|_| anyhow::anyhow!("the reader's thread failed"))?;
        reader.context("reader")?;
        result
    })
}

/// Returns the mean and percentiles in microseconds.
fn statistics(mut cycles: Vec<u64>, hz: u64) -> Result<Micros> {
    ensure!(!cycles.is_empty() && hz > 0, "no changes to time");
    cycles.sort_unstable();
    let micros = |cycles: f64| cycles * 1e6 / hz as f64;
    let at = |share: usize| micros(cycles[(cycles.len() - 1) * share / 100] as f64);
    let mean = micros(cycles.iter().sum::<u64>() as f64 / cycles.len() as f64);
    Ok(Micros { mean, p50: at(50), p99: at(99) })
}

/// Returns the median of each figure over the passes.
fn typical(passes: &[Micros]) -> Option<Micros> {
    let of = |figure: fn(&Micros) -> f64| {
        let mut all: Vec<f64> = passes.iter().map(figure).collect();
        all.sort_by(f64::total_cmp);
        median(&all)
    };
    Some(Micros { mean: of(|m| m.mean)?, p50: of(|m| m.p50)?, p99: of(|m| m.p99)? })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn statistics_of_known_times() {
        let cycles: Vec<u64> = (1..=1000).rev().map(|n| n * 1000).collect();
        let micros = statistics(cycles, 1_000_000_000).unwrap();
        assert_eq!(micros, Micros { mean: 500.5, p50: 500.0, p99: 990.0 });
        let one = statistics(vec![3000], 1_000_000_000).unwrap();
        assert_eq!(one, Micros { mean: 3.0, p50: 3.0, p99: 3.0 });
        assert!(statistics(Vec::new(), 1).is_err());
    }

    #[test]
    fn figures_are_medians_over_the_passes() {
        let pass = |mean, p50, p99| Micros { mean, p50, p99 };
        let passes = [pass(9.0, 1.0, 5.0), pass(2.0, 3.0, 4.0), pass(3.0, 2.0, 90.0)];
        assert_eq!(typical(&passes), Some(pass(3.0, 2.0, 5.0)));
        assert_eq!(typical(&[]), None);
    }

    struct Counting<'a>(&'a AtomicUsize);

    impl Reader<Ipv4Addr> for Counting<'_> {
        fn lookup(&mut self, addresses: &Addresses<Ipv4Addr>, range: std::ops::Range<usize>) {
            assert_eq!(addresses.bits[range].len(), BATCH);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_reader_runs_while_the_action_does_and_ends_with_it() {
        static BATCHES: AtomicUsize = AtomicUsize::new(0);
        let traffic = Addresses::<Ipv4Addr>::new(vec![0; 3 * BATCH + 1]);
        let core = *cores::allowed().unwrap().last().unwrap();
        let result = beside(Box::new(Counting(&BATCHES)), &traffic, core, || {
            let start = BATCHES.load(Ordering::Relaxed);
            while BATCHES.load(Ordering::Relaxed) < start + 10 {
                thread::yield_now();
            }
            Ok(5)
        });
        assert_eq!(result.unwrap(), 5);
        let ended = BATCHES.load(Ordering::Relaxed);
        thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(BATCHES.load(Ordering::Relaxed), ended);
        let error = beside(Box::new(Counting(&BATCHES)), &traffic, 1023, || Ok(())).unwrap_err();
        assert!(format!("{error:#}").starts_with("reader: core 1023"), "{error:#}");
    }
}
