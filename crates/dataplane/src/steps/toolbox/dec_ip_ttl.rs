//! `dec-ip-ttl`: the packet has one hop less to live.
//!
//! Takes frames with an IPv4 header at `offset`, and corrects the header checksum (RFC 1624). Unlike
//! `ip4-decrement-ttl`, it leads expired packets to an output.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | TTL was 2 or more; decremented |
//! | `expired` | TTL 0 or 1: unchanged |
//! | drop `ip4-header-length` | no IPv4 header there |

use wire::checksum::update;
use wire::ip::Ipv4Header;

use super::{IP, ip4_header_mut, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::DropReason;

const OUTPUTS: &[Output] =
    &[Output::next("ok"), Output::next("expired"), Output::Drop(DropReason::Ip4HeaderLength)];

pub(super) fn spec() -> StepSpec {
    let make =
        |context: &MakeContext<'_>| -> Box<dyn Step> { Box::new(DecIpTtl(place(context.args))) };
    StepSpec::new("dec-ip-ttl", OUTPUTS, make).param(offset(IP, "the IPv4 header's place"))
}

struct DecIpTtl(usize);

impl Step for DecIpTtl {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let header = ip4_header_mut(batch.frame_mut(slot), self.0);
            let way = header.map_or(2, |(header, _)| decrement(header));
            out[way] |= Mask::when(true, slot);
        }
    }
}

/// Decrements the TTL of a header; returns the output.
#[inline(always)]
fn decrement(header: &mut Ipv4Header) -> usize {
    if header.ttl < 2 {
        return 1;
    }
    // The checksum covers the TTL in one word with the protocol.
    let word = u16::from_be_bytes([header.ttl, header.protocol]);
    header.ttl -= 1;
    header.checksum = update(header.checksum.get(), word, word - 0x0100).into();
    0
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn expired_packets_have_an_output() {
        let frame = |ttl| {
            let mut frame = FrameBuilder::ip4().ttl(ttl).udp(1, 2, b"payload").build();
            FrameBuilder::fix_ip4_checksum(&mut frame);
            frame
        };
        let frames = [frame(0), frame(1), frame(2), frame(255), vec![0; 60]];
        let (result, batch) = run_step(&mut *make("dec-ip-ttl", &[]), &frames);
        assert_eq!((&result["expired"], &result["ok"]), (&vec![0, 1], &vec![2, 3]));
        assert_eq!(result["ip4-header-length"], [4]);
        for (slot, ttl) in [0, 1, 1, 254].into_iter().enumerate() {
            assert_eq!(batch.frame(slot), frame(ttl), "{slot}");
        }
    }
}
