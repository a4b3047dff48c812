//! `meter`: sorts packets by the rate at which they arrive.
//!
//! Takes any frame. `rates` has up to 15 rates, in increasing order. The rate is that of all forwarders together, averaged
//! exponentially over about a third of a second.
//!
//! | output | packets |
//! |---|---|
//! | `0` | while the rate is below the first one |
//! | `1`, `2`, … | while it has reached the first, the second, … |
//!
//! ```lua
//! graph:path("counter.next", { "meter", rates = "1kpps 20mbit" }, …)
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{MAX_OUTPUTS, Output, Outputs, Step};
use crate::lock::lock;
use crate::mask::Mask;
use crate::params::{Arg, Args, Grammar, Kind, Param, Rate};

static RATES: Grammar =
    Grammar { expected: "rates such as \"1kpps 20mbit\"", check: |text| read(text).map(drop) };

fn read(text: &str) -> Result<Vec<Rate>, String> {
    let wrong = |word: &str| format!("\"{word}\": expected a rate such as 1kpps or 20mbit");
    let words = text.split_ascii_whitespace();
    let rates: Result<Vec<_>, _> =
        words.map(|word| Rate::read(word).ok_or_else(|| wrong(word))).collect();
    let rates = rates?;
    if rates.is_empty() || rates.len() >= MAX_OUTPUTS {
        return Err(format!("{} rates; expected 1 to {}", rates.len(), MAX_OUTPUTS - 1));
    }
    Ok(rates)
}

pub(super) fn spec() -> StepSpec {
    let rates = Param::new("rates", Kind::Parsed(&RATES), "the rates");
    StepSpec::new("meter", &[], make)
        .outputs_by(outputs)
        .param(rates.or(Arg::Text("1kpps".to_owned())))
}

fn outputs(args: &Args) -> Vec<Output> {
    let rates = read(args.text("rates")).unwrap_or_default();
    (0..=rates.len()).map(|number| Output::Next(number.to_string().into())).collect()
}

/// The measurements of steps, by name: shared by all forwarders.
#[derive(Default)]
pub struct Meters(Mutex<HashMap<String, Arc<Measured>>>);

impl Meters {
    /// The averages of a step's packets and bits a second, at a time in TSC cycles; 0 of one that has seen none.
    pub fn read(&self, name: &str, now: u64) -> (f64, f64) {
        let Some(measured) = lock(&self.0).get(name).cloned() else { return (0.0, 0.0) };
        measured.add(0, 0, now, dpdk::tsc_hz());
        (measured.packets.rate(), measured.bits.rate())
    }
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let all = context.tables.shared.get::<Meters>();
    let measured = lock(&all.0).entry(context.name.to_owned()).or_default().clone();
    let rates = read(context.args.text("rates")).unwrap_or_default();
    Box::new(Meter { outputs: outputs(context.args), rates, measured, hz: dpdk::tsc_hz() })
}

/// Times a second that the averages are updated.
const UPDATES: u64 = 100;

/// The part of an average that stays at an update.
const KEPT: f64 = 31.0 / 32.0;

/// Packets and bits since the last update, and their averages a second.
#[derive(Default)]
pub struct Measured {
    /// The time of the last update, in TSC cycles.
    updated: AtomicU64,
    packets: Average,
    bits: Average,
}

#[derive(Default)]
struct Average {
    amount: AtomicU64,
    /// The bits of an `f64`.
    rate: AtomicU64,
}

impl Average {
    /// Ends so many updates' time. One thread at a time does so, as it has set the time.
    fn update(&self, updates: u64) {
        let amount = self.amount.swap(0, Ordering::Relaxed);
        let now = amount as f64 * UPDATES as f64 / updates as f64;
        let kept = KEPT.powi(i32::try_from(updates).unwrap_or(i32::MAX));
        let rate = now + (self.rate() - now) * kept;
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    fn rate(&self) -> f64 {
        f64::from_bits(self.rate.load(Ordering::Relaxed))
    }
}

impl Measured {
    fn add(&self, packets: u64, bits: u64, now: u64, hz: u64) {
        self.packets.amount.fetch_add(packets, Ordering::Relaxed);
        self.bits.amount.fetch_add(bits, Ordering::Relaxed);
        let (last, time) = (self.updated.load(Ordering::Relaxed), (hz / UPDATES).max(1));
        let updates = now.saturating_sub(last) / time;
        let next = last + updates * time;
        let exchange =
            |next| self.updated.compare_exchange(last, next, Ordering::Relaxed, Ordering::Relaxed);
        if updates > 0 && exchange(next).is_ok() {
            self.packets.update(updates);
            self.bits.update(updates);
        }
    }

    fn reaches(&self, rate: Rate) -> bool {
        match rate {
            Rate::Packets(rate) => self.packets.rate() >= rate as f64,
            Rate::Bits(rate) => self.bits.rate() >= rate as f64,
        }
    }
}

struct Meter {
    outputs: Vec<Output>,
    rates: Vec<Rate>,
    measured: Arc<Measured>,
    hz: u64,
}

impl Step for Meter {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let bytes: usize = input.slots().map(|slot| batch.len(slot)).sum();
        self.measured.add(input.count().into(), 8 * bytes as u64, batch.now, self.hz);
        let below = self.rates.iter().position(|&rate| !self.measured.reaches(rate));
        out[below.unwrap_or(self.rates.len())] = input;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use super::*;
    use crate::testing::run_step_on;

    /// The output that batches of so many frames take that arrive a hundred times a second for two seconds.
    fn after(step: &mut dyn Step, frames: usize, from: u64) -> String {
        let hz = dpdk::tsc_hz();
        let mut last = String::new();
        for round in 0..200 {
            let prepare = |batch: &mut Batch| batch.now = from + round * (hz / 100);
            let taken = run_step_on(step, &vec![vec![0; 125]; frames], prepare).0.taken();
            assert_eq!(taken.len(), 1);
            last = taken.into_keys().next().unwrap();
        }
        last
    }

    #[test]
    fn rates_select_outputs() {
        let hz = dpdk::tsc_hz();
        let mut step = make("meter", &[("rates", text("1500pps 2500pps"))]);
        assert_eq!(after(&mut *step, 10, hz), "0");
        assert_eq!(after(&mut *step, 20, 10 * hz), "1");
        assert_eq!(after(&mut *step, 30, 20 * hz), "2");
        assert_eq!(after(&mut *step, 10, 30 * hz), "0");
        // 1000 bits a packet.
        let mut step = make("meter", &[("rates", text("1500kbit"))]);
        assert_eq!(after(&mut *step, 10, hz), "0");
        assert_eq!(after(&mut *step, 20, 10 * hz), "1");
    }

    #[test]
    fn averages_are_read_by_name_and_fall_without_packets() {
        let hz = dpdk::tsc_hz();
        let tables = crate::testing::TestTables::every_kind();
        let meters = tables.shared.get::<Meters>();
        let mut step = super::super::make_with(&tables, "meter", &[("rates", text("1500pps"))]);
        after(&mut *step, 10, hz);
        let (packets, bits) = meters.read("s", 3 * hz);
        assert!((900.0..=1000.0).contains(&packets), "{packets}");
        assert!((bits - 1000.0 * packets).abs() < 1.0, "{bits}");
        assert!(meters.read("s", 5 * hz).0 < 10.0);
        assert_eq!(meters.read("none", hz), (0.0, 0.0));
    }

    #[test]
    fn averages_follow_the_slow_formula() {
        let measured = Measured::default();
        let mut expected = 0.0;
        for (time, amount) in [(1, 5), (2, 100), (5, 7), (6, 0), (7, 1)] {
            measured.add(amount, 0, time, UPDATES);
            let before = [0, 1, 2, 5, 6, 7].iter().rev().find(|&&at| at < time).unwrap();
            let each = amount as f64 * UPDATES as f64 / (time - before) as f64;
            for _ in *before..time {
                expected = KEPT * expected + (1.0 - KEPT) * each;
            }
            assert!((measured.packets.rate() - expected).abs() < 1e-6, "{time}");
        }
    }

    #[test]
    fn rates_are_checked() {
        assert!(read("1kpps 2mbit").is_ok());
        assert!(read("").unwrap_err().contains("0 rates"));
        assert!(read(&"1pps ".repeat(16)).unwrap_err().contains("16 rates; expected 1 to 15"));
        assert!(read("1kpps 5").unwrap_err().contains("\"5\": expected a rate"));
    }
}
