//! `dec-ip6-hlim`: the packet has one hop less to live (RFC 8200 3).
//!
//! Takes frames with an IPv6 header at `offset`. Unlike `ip6-decrement-hop-limit`, it leads expired packets to an output.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | hop limit was 2 or more; decremented |
//! | `expired` | hop limit 0 or 1: unchanged |
//! | drop `no-header` | no IPv6 header there |

use super::{IP, ip6_header_mut, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

const OUTPUTS: &[Output] = &[
    Output::next("ok"),
    Output::next("expired"),
    Output::DropAs(std::borrow::Cow::Borrowed("no-header")),
];

pub(super) fn spec() -> StepSpec {
    let make =
        |context: &MakeContext<'_>| -> Box<dyn Step> { Box::new(DecIp6Hlim(place(context.args))) };
    StepSpec::new("dec-ip6-hlim", OUTPUTS, make).param(offset(IP, "the IPv6 header's place"))
}

struct DecIp6Hlim(usize);

impl Step for DecIp6Hlim {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let way = match ip6_header_mut(batch.frame_mut(slot), self.0) {
                None => 2,
                Some(header) if header.hop_limit < 2 => 1,
                Some(header) => {
                    header.hop_limit -= 1;
                    0
                }
            };
            out[way] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn expired_packets_have_an_output() {
        let frame = |limit| FrameBuilder::ip6().ttl(limit).udp(1, 2, b"payload").build();
        let frames = [frame(0), frame(1), frame(2), frame(255), vec![0; 60]];
        let (result, batch) = run_step(&mut *make("dec-ip6-hlim", &[]), &frames);
        assert_eq!((&result["expired"], &result["ok"]), (&vec![0, 1], &vec![2, 3]));
        assert_eq!(result["no-header"], [4]);
        for (slot, limit) in [0, 1, 1, 254].into_iter().enumerate() {
            assert_eq!(batch.frame(slot), frame(limit), "{slot}");
        }
    }
}
