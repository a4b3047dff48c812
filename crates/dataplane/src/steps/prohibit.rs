//! `prohibit`: refuses packets with an error to their senders.
//!
//! Takes valid IPv4 and IPv6 packets. It is not in the default graph; a configuration can send it
//! the packets that its own filters refuse.
//!
//! | output | packets |
//! |---|---|
//! | punt `prohibited` | all: dropped by the slow path, with an ICMP error within its rate |
//!
//! Sources: RFC 1812 5.2.7.1 (code 13, communication administratively prohibited), RFC 4443 3.1 (code 1).

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::PuntReason;

pub(super) const OUTPUTS: &[Output] = &[Output::Punt(PuntReason::Prohibited)];

/// See the module's documentation.
#[derive(Debug)]
pub struct Prohibit;

impl Step for Prohibit {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn every_packet_is_punted() {
        let frames = [FrameBuilder::ip4().build(), FrameBuilder::ip6().build()];
        let (result, _) = run_step_on(&mut Prohibit, &frames, |_| {});
        assert_eq!(result["prohibited"], [0, 1]);
    }
}
