//! A router with a step of its own: `ttl-floor` sorts out packets that will not get far.
//!
//! Requires IPv4 packets. Its parameter `floor` is the lowest TTL that is let through, 5 unless a graph says
//! otherwise; a graph may have several such steps with floors of their own.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | TTL of the floor or more |
//! | `low` | TTL below the floor |
//!
//! Counter `records`: packets with a lower TTL than any before. The lowest TTL is known over `turnpike apply`.
//!
//! ```lua
//! turnpike.graph:insert_after("ip4-validate", { "ttl-floor", as = "strict", floor = 10 })
//! turnpike.graph:path("strict.low", "drop")
//! ```
#![forbid(unsafe_code)]

use std::any::Any;
use std::process::ExitCode;

use turnpike::dataplane::batch::Batch;
use turnpike::dataplane::catalogue::{Facts, StepSpec};
use turnpike::dataplane::graph::{Output, Outputs, Step, StepCounters};
use turnpike::dataplane::mask::Mask;
use turnpike::dataplane::params::{Arg, Kind, Param};

const OK: usize = 0;
const LOW: usize = 1;

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("low")];

struct TtlFloor {
    floor: u8,
    lowest: u8,
    counters: StepCounters,
}

impl TtlFloor {
    fn new(floor: u8) -> Self {
        Self { floor, lowest: 255, counters: StepCounters::new(&["records"]) }
    }
}

impl Step for TtlFloor {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mut low = Mask::EMPTY;
        for i in input.slots() {
            let ttl = batch.ip4(i).ttl;
            if ttl < self.lowest {
                self.lowest = ttl;
                self.counters.at(0).add(1);
            }
            low |= Mask::when(ttl < self.floor, i);
        }
        out[OK] = input.without(low);
        out[LOW] = low;
    }

    fn counters(&self) -> Option<&StepCounters> {
        Some(&self.counters)
    }

    fn state(&mut self) -> Option<&mut dyn Any> {
        Some(&mut self.lowest)
    }

    fn take_state(&mut self, old: &mut dyn Any) {
        if let Some(lowest) = old.downcast_mut() {
            std::mem::swap(&mut self.lowest, lowest);
        }
    }
}

fn spec() -> StepSpec {
    let floor = Param::new("floor", Kind::Integer(1..=255), "the lowest TTL that is let through");
    StepSpec::new("ttl-floor", OUTPUTS, |make| {
        Box::new(TtlFloor::new(make.args.integer("floor") as u8))
    })
    .requires(Facts::IP4)
    .param(floor.or(Arg::Integer(5)))
}

fn main() -> ExitCode {
    turnpike::main_with([spec()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnpike::dataplane::testing::{FrameBuilder, run_step};

    #[test]
    fn four_is_low_and_five_is_not() {
        let frames = [1, 4, 5, 64].map(|ttl| FrameBuilder::ip4().ttl(ttl).build());
        let mut step = TtlFloor::new(5);
        let (result, _) = run_step(&mut step, &frames);
        assert_eq!(result["low"], [0, 1]);
        assert_eq!(result["ok"], [2, 3]);
        let mut next = TtlFloor::new(9);
        next.take_state(step.state().unwrap());
        run_step(&mut next, &frames);
        let records = |step: &TtlFloor| step.counters.all().collect::<Vec<_>>();
        assert_eq!((records(&step), records(&next)), (vec![("records", 1)], vec![("records", 0)]));
    }
}
