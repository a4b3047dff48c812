//! `rated-splitter`: splits packets by rate.
//!
//! Takes any frame. The rate is that of all forwarders together; as many packets as arrive in 10 ms at this rate, but at
//! least 16, pass at once.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | within `rate` |
//! | `others` | beyond it |

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::batch::Batch;
use crate::bucket;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::lock::lock;
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param, Rate};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("others")];

/// Least packets, of this many bits, that pass at once.
const BURST: u64 = 16;
const FULL: u64 = 12_000;

pub(super) fn spec() -> StepSpec {
    let rate = Param::new("rate", Kind::Rate, "the rate that passes");
    let spec = StepSpec::new("rated-splitter", OUTPUTS, make);
    spec.param(rate.or(Arg::Rate(Rate::Packets(1000))))
}

/// The buckets of steps, by name: each is an atomic number of its own.
#[derive(Default)]
struct Buckets(Mutex<HashMap<String, Arc<AtomicU64>>>);

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let buckets = context.tables.shared.get::<Buckets>();
    let full_at = lock(&buckets.0).entry(context.name.to_owned()).or_default().clone();
    let (rate, bits) = match context.args.get("rate") {
        Arg::Rate(Rate::Bits(rate)) => (*rate, true),
        Arg::Rate(Rate::Packets(rate)) => (*rate, false),
        _ => (1, false),
    };
    let hz = dpdk::tsc_hz();
    let mut splitter = RatedSplitter { rate: rate.max(1), bits, hz, depth: 0, full_at };
    let least = splitter.cycles(if bits { BURST * FULL } else { BURST });
    splitter.depth = least.max(hz / 100);
    Box::new(splitter)
}

struct RatedSplitter {
    rate: u64,
    /// Bits count, not packets.
    bits: bool,
    hz: u64,
    /// The size of the bucket in TSC cycles.
    depth: u64,
    full_at: Arc<AtomicU64>,
}

impl RatedSplitter {
    /// The time in which so much passes, in TSC cycles.
    #[inline(always)]
    fn cycles(&self, amount: u64) -> u64 {
        (u128::from(amount) * u128::from(self.hz) / u128::from(self.rate)) as u64
    }
}

impl Step for RatedSplitter {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let cost = self.cycles(if self.bits { 8 * batch.len(slot) as u64 } else { 1 });
            let passes = bucket::take(&self.full_at, cost, self.depth, batch.now).is_ok();
            out[usize::from(!passes)] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use crate::testing::run_step_on;

    #[test]
    fn what_exceeds_the_rate_takes_the_other_output() {
        let hz = dpdk::tsc_hz();
        let frames = vec![vec![0; 100]; 40];
        // 16 packets at once; then 100 a second. 800 bits a packet, and 192,000 bits at once.
        for (rate, at_once, later) in [("100pps", 16, 10), ("2400kbit", 40, 40), ("24kbit", 40, 3)]
        {
            let mut step = make("rated-splitter", &[("rate", text(rate))]);
            let (result, _) = run_step_on(&mut *step, &frames, |batch| batch.now = hz);
            assert_eq!(result["ok"].len(), at_once, "{rate}");
            for _ in 0..6 {
                run_step_on(&mut *step, &frames, |batch| batch.now = hz);
            }
            let (result, _) =
                run_step_on(&mut *step, &frames, |batch| batch.now = hz + hz / 10 + hz / 1000);
            assert_eq!(result["ok"].len(), later, "{rate}");
        }
    }
}
