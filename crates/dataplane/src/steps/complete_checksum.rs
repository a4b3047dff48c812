//! `ip4-checksum-offload`, `ip6-checksum-offload`: finishes TCP and UDP checksums that the sender
//! left to its device.
//!
//! A Linux host behind a veth pair, a TAP or AF_PACKET hands over segments whose checksum field
//! holds only the sum over the pseudo-header, because it believes that a NIC will do the rest.
//! Sent on as they are, the receiver discards them: ping works, TCP stalls. On ports whose device
//! can do that ([`crate::port::PortInfo::partial_checksums`]) this step recognises such a field and
//! completes it; see [`wire::checksum::complete_l4_checksum`] for why a segment that is already
//! right never changes. On other ports the step costs one branch a batch.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |
//!
//! Sources: RFC 9293 3.1, RFC 768, RFC 8200 8.1; Linux's `CHECKSUM_PARTIAL`.

use wire::checksum::complete_l4_checksum;

use crate::batch::{Batch, ETHERNET};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

pub(super) const OUTPUTS: &[Output] = &[Output::Next("next")];

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct CompleteChecksum;

impl Step for CompleteChecksum {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        if batch.in_port_info.partial_checksums {
            for i in input.slots() {
                if let Some(packet) = batch.frame_mut(i).get_mut(ETHERNET..) {
                    complete_l4_checksum(packet);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step, run_step_on};

    /// A UDP packet whose checksum field holds the folded pseudo-header sum, as veth gives it.
    fn partial() -> Vec<u8> {
        let mut frame = FrameBuilder::ip4().udp(4000, 53, b"query").build();
        let (source, destination) = ([192, 0, 2, 1], [198, 51, 100, 1]);
        let words = [&source[..], &destination, &[0, 17], &[0, 13]].concat();
        let sum: u32 = words.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let folded = ((sum & 0xffff) + (sum >> 16)) as u16;
        frame[40..42].copy_from_slice(&folded.to_be_bytes());
        frame
    }

    #[test]
    fn a_partial_checksum_is_completed() {
        let right = FrameBuilder::ip4().udp(4000, 53, b"query").build();
        assert_ne!(partial(), right);
        let (result, batch) = run_step(&mut CompleteChecksum, &[partial(), right.clone()]);
        assert_eq!(result["next"], [0, 1]);
        assert_eq!(batch.frame(0), right);
        assert_eq!(batch.frame(1), right);
    }

    #[test]
    fn a_port_with_real_checksums_is_left_alone() {
        let (_, batch) = run_step_on(&mut CompleteChecksum, &[partial()], |batch| {
            batch.in_port_info.partial_checksums = false;
        });
        assert_eq!(batch.frame(0), partial());
    }
}
