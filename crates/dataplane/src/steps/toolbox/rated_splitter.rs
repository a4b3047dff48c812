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

use super::{Pace, rate};
use crate::batch::Batch;
use crate::bucket;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::lock::lock;
use crate::mask::Mask;
use crate::params::{Arg, Rate};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("others")];

/// Least packets, of this many bytes, that pass at once.
const BURST: u64 = 16;
const FULL: usize = 1500;

pub(super) fn spec() -> StepSpec {
    let spec = StepSpec::new("rated-splitter", OUTPUTS, make);
    spec.param(rate("the rate that passes").or(Arg::Rate(Rate::Packets(1000))))
}

/// The buckets of steps, by name: each is an atomic number of its own.
#[derive(Default)]
struct Buckets(Mutex<HashMap<String, Arc<AtomicU64>>>);

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let buckets = context.tables.shared.get::<Buckets>();
    let full_at = lock(&buckets.0).entry(context.name.to_owned()).or_default().clone();
    let pace =
        Pace::read(context.args).unwrap_or(Pace { rate: Rate::Packets(1), hz: dpdk::tsc_hz() });
    let depth = BURST.saturating_mul(pace.cost(FULL)).max(pace.hz / 100);
    Box::new(RatedSplitter { pace, depth, full_at })
}

struct RatedSplitter {
    pace: Pace,
    /// The size of the bucket in TSC cycles.
    depth: u64,
    full_at: Arc<AtomicU64>,
}

impl Step for RatedSplitter {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let cost = self.pace.cost(batch.len(slot));
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
