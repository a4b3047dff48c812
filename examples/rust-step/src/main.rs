//! A router with a step of its own: `ttl-floor` sorts out packets that will not get far.
//!
//! Takes IPv4 packets.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | TTL 5 or more |
//! | `low` | TTL below 5 |
//!
//! ```lua
//! turnpike.graph:insert_after("ip4-validate", "ttl-floor")
//! turnpike.graph:path("ttl-floor.low", "drop")
//! ```
#![forbid(unsafe_code)]

use std::process::ExitCode;

use turnpike::dataplane::batch::{Batch, ETHERNET};
use turnpike::dataplane::catalogue::{Entry, Facts};
use turnpike::dataplane::graph::{Output, Outputs, Step};
use turnpike::dataplane::mask::Mask;

const OK: usize = 0;
const LOW: usize = 1;

const OUTPUTS: &[Output] = &[Output::Next("ok"), Output::Next("low")];

/// The lowest TTL that is let through.
const FLOOR: u8 = 5;

struct TtlFloor;

impl Step for TtlFloor {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mut low = Mask::EMPTY;
        for i in input.slots() {
            low |= Mask::when(batch.head(i)[ETHERNET + 8] < FLOOR, i);
        }
        out[OK] = input.without(low);
        out[LOW] = low;
    }
}

fn main() -> ExitCode {
    let step = Entry::new("ttl-floor", OUTPUTS, |_| Box::new(TtlFloor)).takes(Facts::IP4);
    turnpike::main_with([step])
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnpike::dataplane::testing::{FrameBuilder, run_step};

    #[test]
    fn four_is_low_and_five_is_not() {
        let frames = [1, 4, 5, 64].map(|ttl| FrameBuilder::ip4().ttl(ttl).build());
        let (result, _) = run_step(&mut TtlFloor, &frames);
        assert_eq!(result["low"], [0, 1]);
        assert_eq!(result["ok"], [2, 3]);
    }
}
