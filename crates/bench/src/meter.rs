//! Shared parts of the benchmarks: pinning to a core, counting cycles and events, medians.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use dpdk::{Eal, EalConfig, HugeMode, LogLevel};
use machine::cores;
use nix::time::{ClockId, clock_gettime};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// Core and memory of a measurement of tables, and the output format.
#[derive(Debug, Args)]
pub struct Place {
    /// The core to run on; the last one if not given
    #[arg(long)]
    pub core: Option<usize>,
    /// Use ordinary memory even where there are hugepages
    #[arg(long)]
    pub no_huge: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Place {
    /// Starts DPDK with this much memory, and its widest vectors.
    ///
    /// # Errors
    /// DPDK does not start.
    pub fn eal(&self, memory_mb: usize) -> Result<Eal, dpdk::Error> {
        Eal::init(&EalConfig {
            memory_mb,
            huge: if self.no_huge { HugeMode::Never } else { HugeMode::Auto },
            log_level: LogLevel::Error,
            // By default, DPDK allows vectors of at most 256 bits.
            extra_args: vec!["--force-max-simd-bitwidth=512".into()],
            ..EalConfig::default()
        })
    }
}

/// Pins the measurement to one core, the given or else the last allowed one, and returns it.
pub fn pin(core: Option<usize>) -> Result<usize> {
    let core = match core {
        Some(core) => core,
        None => *cores::allowed()?.last().context("no core is allowed")?,
    };
    cores::pin(core)?;
    Ok(core)
}

/// Cost of one turn, per item.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Cycles of the time-stamp counter.
    pub cycles: f64,
    /// Those during which the thread had a processor: without others' turns on it.
    pub busy: f64,
    /// Instructions; none if the machine does not count them.
    pub instructions: Option<f64>,
    /// Mispredicted branches.
    pub branch_misses: Option<f64>,
}

/// The time-stamp counter, and the processor's event counters if available.
pub struct Meter {
    events: Option<(Counter, Counter)>,
}

impl Meter {
    /// Starts counting events, if the machine can.
    pub fn new() -> Self {
        let open = || -> std::io::Result<(Counter, Counter)> {
            let mut instructions = Builder::new(Hardware::INSTRUCTIONS).build()?;
            let mut misses = Builder::new(Hardware::BRANCH_MISSES).build()?;
            instructions.enable()?;
            misses.enable()?;
            Ok((instructions, misses))
        };
        Self { events: open().ok() }
    }

    fn events(&mut self) -> Option<(u64, u64)> {
        let (instructions, misses) = self.events.as_mut()?;
        Some((instructions.read().ok()?, misses.read().ok()?))
    }

    /// Returns the cost of `turn` per item; `turn` returns its number of items.
    pub fn measure(&mut self, turn: impl FnOnce() -> u64) -> Cost {
        let before = self.events();
        let (start, ran) = (dpdk::tsc(), processor_time());
        let items = turn() as f64;
        let (cycles, ran) = (dpdk::tsc() - start, processor_time().saturating_sub(ran));
        let spent = before.zip(self.events());
        let per_item = |before: u64, after: u64| (after - before) as f64 / items;
        Cost {
            cycles: cycles as f64 / items,
            busy: cycles_of(ran) / items,
            instructions: spent.map(|(before, after)| per_item(before.0, after.0)),
            branch_misses: spent.map(|(before, after)| per_item(before.1, after.1)),
        }
    }
}

/// Returns the time that this thread has had on a processor.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Returns the cycles of the time-stamp counter in this time.
pub fn cycles_of(time: Duration) -> f64 {
    time.as_secs_f64() * dpdk::tsc_hz() as f64
}

/// Returns the difference of the middle half of sorted values as a part of their median.
pub fn spread(sorted: &[f64]) -> Option<f64> {
    let quarter = sorted.len() / 4;
    let (first, last) = (sorted.get(quarter)?, sorted.get(sorted.len() - 1 - quarter)?);
    Some((last - first) / median(sorted)?)
}

/// Returns the middle of sorted values.
pub fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_per_item() {
        let wait = |items: u64| {
            let end = dpdk::tsc() + 1_000_000;
            while dpdk::tsc() < end {}
            items
        };
        let cost = Meter::new().measure(|| wait(1000));
        assert!(cost.cycles >= 1000.0, "{cost:?}");
        assert!(cost.busy <= 1.1 * cost.cycles, "{cost:?}");
        assert!(cost.instructions.is_none_or(|count| count > 0.0), "{cost:?}");
    }

    #[test]
    fn the_spread_is_of_the_middle_half() {
        assert_eq!(spread(&[1.0, 9.0, 10.0, 12.0, 50.0]), Some(0.3));
        assert_eq!(spread(&[4.0]), Some(0.0));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn the_median_is_a_value_there_was() {
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 9.0]), Some(9.0));
        assert_eq!(median(&[]), None);
    }
}
