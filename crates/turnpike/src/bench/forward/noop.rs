//! The step of case `noop`: takes packets and hands them on, to find out what a step costs.

use dataplane::graph::{Output, Outputs, Step};
use dataplane::{Batch, Mask};

/// Does nothing.
pub struct Noop;

impl Step for Noop {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
    }
}
