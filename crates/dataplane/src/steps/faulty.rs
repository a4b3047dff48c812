//! `faulty`: a step with a defect, to prove that a defect costs one packet. Only a binary built with the
//! feature `faulty-step` has it, as the scenarios' binary is.
//!
//! Takes IPv4 packets. Panics over those whose identification is [`FAULTY_ID`].
//!
//! | output | packets |
//! |---|---|
//! | `next` | all others |

use crate::batch::{Batch, ETHERNET};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

/// The identification that the step panics over.
pub const FAULTY_ID: u16 = 0xdead;

pub(super) const OUTPUTS: &[Output] = &[Output::Next("next")];

/// See the module's documentation.
#[derive(Debug)]
pub struct Faulty;

impl Step for Faulty {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let head = batch.head(slot);
            let id = u16::from_be_bytes([head[ETHERNET + 4], head[ETHERNET + 5]]);
            assert!(id != FAULTY_ID, "the faulty step met identification {id:#06x}");
        }
        out[0] = input;
    }
}
