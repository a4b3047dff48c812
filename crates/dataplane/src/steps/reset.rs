//! `reset`: refuses packets; TCP connections by a reset, so that the client does not wait for a
//! time-out.
//!
//! Takes valid IPv4 and IPv6 packets. It is not in the default graph; a configuration can send it
//! the packets that its own filters refuse.
//!
//! | output | packets |
//! |---|---|
//! | punt `reset` | all: dropped by the slow path; a TCP segment is answered by a reset in the name of its destination, anything else as by `prohibit`, both within the rate of ICMP errors |
//!
//! Sources: RFC 9293 3.10.7.1 (the form of a reset, and the segments it answers), RFC 1812 5.2.7.1, RFC 4443 3.1.

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::PuntReason;

pub(super) const OUTPUTS: &[Output] = &[Output::Punt(PuntReason::Reset)];

/// See the module's documentation.
#[derive(Debug)]
pub struct Reset;

impl Step for Reset {
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
        let (result, _) = run_step_on(&mut Reset, &frames, |_| {});
        assert_eq!(result["reset"], [0, 1]);
    }
}
