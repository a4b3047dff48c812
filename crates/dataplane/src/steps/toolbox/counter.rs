//! `counter`: counts packets and bytes.
//!
//! Takes any frame. The counters `packets` and `bytes` (frames without FCS) are in `turnpike show steps`.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |

use crate::batch::Batch;
use crate::catalogue::StepSpec;
use crate::graph::{Output, Outputs, Step, StepCounters};
use crate::mask::Mask;

const OUTPUTS: &[Output] = &[Output::next("next")];

pub(super) fn spec() -> StepSpec {
    StepSpec::new("counter", OUTPUTS, |_| {
        Box::new(Counter { counters: StepCounters::new(&["packets", "bytes"]) })
    })
}

struct Counter {
    counters: StepCounters,
}

impl Step for Counter {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        let mut bytes = 0;
        input.for_each(|slot| bytes += batch.len(slot));
        self.counters.at(0).add(input.count().into());
        self.counters.at(1).add(bytes as u64);
    }

    fn counters(&self) -> Option<&StepCounters> {
        Some(&self.counters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use crate::testing::run_step;

    #[test]
    fn packets_and_bytes_add_up() {
        let mut step = make("counter", &[]);
        for _ in 0..2 {
            assert_eq!(run_step(&mut *step, &[vec![0; 60], vec![0; 100]]).0["next"], [0, 1]);
        }
        let counters: Vec<_> = step.counters().unwrap().all().collect();
        assert_eq!(counters, [("packets", 4), ("bytes", 320)]);
    }
}
