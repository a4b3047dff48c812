//! `set-ip-dscp`: sets the differentiated services code point (RFC 2474).
//!
//! Takes frames with an IPv4 header at `offset`, and corrects the header checksum (RFC 1624). ECN bits stay.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all; without an IPv4 header unchanged |

use wire::checksum::update;

use super::{IP, ip4_header_mut, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("next")];

pub(super) fn spec() -> StepSpec {
    let dscp = Param::new("dscp", Kind::Integer(0..=63), "the code point");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let dscp = context.args.integer("dscp") as u8;
        Box::new(SetIpDscp { bits: dscp << 2, at: place(context.args) })
    };
    let spec = StepSpec::new("set-ip-dscp", OUTPUTS, make);
    spec.param(dscp.or(Arg::Integer(0))).param(offset(IP, "the IPv4 header's place"))
}

struct SetIpDscp {
    bits: u8,
    at: usize,
}

impl Step for SetIpDscp {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.for_each(|slot| {
            let header = ip4_header_mut(batch.frame_mut(slot), self.at);
            let Some((header, _)) = header else { return };
            // The checksum covers the field in one word with the version.
            let old = u16::from_be_bytes([header.version_ihl, header.tos]);
            header.tos = header.tos & 3 | self.bits;
            let new = u16::from_be_bytes([header.version_ihl, header.tos]);
            header.checksum = update(header.checksum.get(), old, new).into();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn the_code_point_and_the_checksum_change() {
        let frame = |tos| {
            let mut frame = FrameBuilder::ip4().tos(tos).udp(1, 2, b"payload").build();
            FrameBuilder::fix_ip4_checksum(&mut frame);
            frame
        };
        let mut step = make("set-ip-dscp", &[("dscp", number(46))]);
        let (_, batch) = run_step(&mut *step, &[frame(0), frame(0x2b), vec![1; 60]]);
        assert_eq!(batch.frame(0), frame(46 << 2));
        assert_eq!(batch.frame(1), frame(46 << 2 | 3));
        assert_eq!(batch.frame(2), [1; 60]);
    }
}
