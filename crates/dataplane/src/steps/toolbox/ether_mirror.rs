//! `ether-mirror`: swaps the addresses of the Ethernet header.
//!
//! Takes any frame, with the header at `offset`.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all; shorter frames unchanged |

use super::{offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

const OUTPUTS: &[Output] = &[Output::next("next")];

pub(super) fn spec() -> StepSpec {
    let make =
        |context: &MakeContext<'_>| -> Box<dyn Step> { Box::new(EtherMirror(place(context.args))) };
    StepSpec::new("ether-mirror", OUTPUTS, make).param(offset(0, "the header's place"))
}

struct EtherMirror(usize);

impl Step for EtherMirror {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.for_each(|slot| {
            if let Some(addresses) = batch.frame_mut(slot).get_mut(self.0..self.0 + 12) {
                addresses.rotate_left(6);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::run_step;

    #[test]
    fn addresses_are_swapped() {
        let frame: Vec<u8> = (0..20).collect();
        let mut step = make("ether-mirror", &[("offset", number(2))]);
        let (result, batch) = run_step(&mut *step, &[frame, vec![7; 13]]);
        assert_eq!(result["next"], [0, 1]);
        assert_eq!(batch.frame(0)[..15], [0, 1, 8, 9, 10, 11, 12, 13, 2, 3, 4, 5, 6, 7, 14]);
        assert_eq!(batch.frame(1), [7; 13]);
    }
}
