//! `ip4-checksum-offload`, `ip6-checksum-offload`: completes TCP and UDP checksums that the sender
//! left to its device.
//!
//! A Linux host behind a veth pair, a TAP or AF_PACKET sends segments whose checksum field holds
//! only the sum over the pseudo-header, because it expects a NIC to do the rest. Forwarded
//! unchanged, they are discarded by the receiver: ping works, TCP stalls. On ports whose device can
//! deliver such packets ([`crate::port::InterfaceInfo::partial_checksums`]) this step recognises
//! such a field and completes it; see [`wire::checksum::complete_l4_checksum`] for the reason that
//! a correct segment never changes. On other ports the step costs one branch a batch.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all |
//!
//! Sources: RFC 9293 3.1, RFC 768, RFC 8200 8.1; Linux's `CHECKSUM_PARTIAL`.

use wire::checksum::complete_l4_checksum_in_parts;

use crate::batch::{Batch, ETHERNET};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

pub(super) const OUTPUTS: &[Output] = &[Output::next("next")];

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct CompleteChecksum;

impl Step for CompleteChecksum {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        if batch.own.partial_checksums {
            for i in input.slots() {
                let len = batch.len(i).saturating_sub(ETHERNET);
                let (frame, rest) = batch.frame_and_rest(i);
                if let Some(packet) = frame.get_mut(ETHERNET..) {
                    complete_l4_checksum_in_parts(packet, len, rest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        FrameBuilder, batch_in_segments, ones_sum, run_on, run_step, run_step_on, whole_frame,
    };

    /// A UDP packet whose checksum field holds the folded pseudo-header sum, as from veth.
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
    fn a_packet_in_several_buffers_is_added_up_whole() {
        let data: Vec<u8> = (0..3001).map(|n| n as u8).collect();
        let right = FrameBuilder::ip4().udp(4000, 53, &data).build();
        let mut partial = right.clone();
        let length = (data.len() as u16 + 8).to_be_bytes();
        let pseudo = ones_sum(&[&right[26..34], &[0, 17], &length].concat());
        partial[40..42].copy_from_slice(&pseudo.to_be_bytes());
        for segment in [128, 129, 1000, 2048] {
            let mut batch = batch_in_segments(std::slice::from_ref(&partial), segment);
            run_on(&mut CompleteChecksum, &mut batch);
            assert_eq!(whole_frame(&mut batch, 0), right, "{segment}");
        }
    }

    #[test]
    fn a_port_with_real_checksums_is_left_alone() {
        let (_, batch) = run_step_on(&mut CompleteChecksum, &[partial()], |batch| {
            batch.own.partial_checksums = false;
        });
        assert_eq!(batch.frame(0), partial());
    }
}
