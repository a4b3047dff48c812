//! `faulty`: a step with defects, for tests that a defect costs one packet, and no more than the
//! forwarder's time. It exists only in binaries built with the feature `faulty-step`, such as that
//! of the scenarios.
//!
//! Takes IPv4 packets. Those with one of these identifications meet a defect:
//!
//! | identification | defect |
//! |---|---|
//! | [`FAULTY_ID`] | a panic |
//! | [`STUCK_ID`] | does not return while a file `stuck` exists in the working directory |
//! | [`FATAL_ID`] | a panic that is not caught: the forwarder's thread ends |
//!
//! | output | packets |
//! |---|---|
//! | `next` | all others, and those of [`STUCK_ID`] |

use std::path::Path;

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::head::ip4;
use crate::mask::Mask;

/// The identification that causes a panic.
pub const FAULTY_ID: u16 = 0xdead;

/// The identification for which the step does not return.
pub const STUCK_ID: u16 = 0xdea1;

/// The identification that ends the forwarder's thread.
pub const FATAL_ID: u16 = 0xdea2;

pub(super) const OUTPUTS: &[Output] = &[Output::next("next")];

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
            let id = ip4(head).identification.get();
            assert!(id != FAULTY_ID, "the faulty step met identification {id:#06x}");
            match id {
                STUCK_ID => stay(),
                FATAL_ID => std::panic::panic_any(Fatal),
                _ => {}
            }
        }
        out[0] = input;
    }
}

fn stay() {
    while Path::new("stuck").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Panics once more when it is dropped by the catcher.
struct Fatal;

impl Drop for Fatal {
    fn drop(&mut self) {
        panic!("the faulty step ends the thread");
    }
}
