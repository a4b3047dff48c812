//! The step of case `noop`: passes packets on, to measure the cost of a step.

use dataplane::graph::{Output, Outputs, Step};
use dataplane::{Batch, Mask};

/// A step that does nothing.
pub struct Noop;

impl Step for Noop {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
    }
}
