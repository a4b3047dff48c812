//! `set-ip-checksum`: computes the IPv4 header checksum anew (RFC 791 3.1).
//!
//! Takes frames with an IPv4 header at `offset`.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all; without an IPv4 header unchanged |

use super::{IP, ip4_checksum, ip4_header_mut, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

const OUTPUTS: &[Output] = &[Output::next("next")];

pub(super) fn spec() -> StepSpec {
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(SetIpChecksum(place(context.args)))
    };
    StepSpec::new("set-ip-checksum", OUTPUTS, make).param(offset(IP, "the IPv4 header's place"))
}

struct SetIpChecksum(usize);

impl Step for SetIpChecksum {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.for_each(|slot| {
            if let Some((header, options)) = ip4_header_mut(batch.frame_mut(slot), self.0) {
                header.checksum = 0.into();
                header.checksum = ip4_checksum(header, options).into();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn a_wrong_checksum_becomes_right() {
        let mut right = FrameBuilder::ip4().options(&[1, 1, 1, 1]).udp(1, 2, b"payload").build();
        FrameBuilder::fix_ip4_checksum(&mut right);
        let mut wrong = right.clone();
        wrong[24] ^= 0x55;
        let (_, batch) = run_step(&mut *make("set-ip-checksum", &[]), &[wrong, right.clone()]);
        assert_eq!((batch.frame(0), batch.frame(1)), (&right[..], &right[..]));
    }
}
