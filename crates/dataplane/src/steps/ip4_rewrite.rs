//! `ip4-rewrite`: rewrites the received frame for transmission.
//!
//! Takes packets to be forwarded, with [`Batch::hop`] set and a TTL of at least 2. Writes the next
//! hop's MAC and the egress port's into the Ethernet header, decrements the TTL (RFC 1812 5.3.1)
//! and corrects the header checksum for it.
//!
//! | output | packets |
//! |---|---|
//! | `transmit` | all |
//!
//! The checksum by RFC 1624, equation 3: HC' = ~(~HC + ~m + m'), all in ones' complement. The word m
//! holds TTL and protocol, and m' = m - 0x0100, so ~m + m' = 0xffff - 0x0100 = 0xfeff and
//! HC' = ~(~HC + 0xfeff), which is HC + 0x0100 with the carry added at the low end, but for one
//! value: where that gives 0xffff, equation 3 gives 0 (this is the error in RFC 1141 that RFC 1624
//! mends). Carry and exception together: add one more whenever the sum reaches 0xffff.

use std::sync::Arc;

use crate::batch::{Batch, HEAD};
use crate::graph::{Output, Outputs, Step};
use crate::head::bytes;
use crate::mask::Mask;
use crate::tables::{EgressMacs, Tables};

pub(super) const OUTPUTS: &[Output] = &[Output::next("transmit")];

/// See the module's documentation.
#[derive(Debug)]
pub struct Ip4Rewrite {
    macs: EgressMacs,
}

impl Ip4Rewrite {
    /// Knows the MAC of every port.
    pub fn new(tables: &Arc<Tables>) -> Self {
        Self { macs: EgressMacs::new(&tables.interfaces.get()) }
    }
}

impl Step for Ip4Rewrite {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.for_each(|i| {
            let (hop, port) = (batch.hop[i], batch.out_interface[i]);
            let head = batch.head_mut(i);
            self.macs.write(head, hop, port);
            decrement_ttl(head);
        });
    }
}

/// TTL, protocol and checksum as one word, lowest byte first: the sum does not depend on the order
/// of bytes (RFC 1071 2.B), so 0x0100 added to the checksum is 1 added to its first byte here, and
/// a carry out of its second leaves the word.
pub(super) fn decrement_ttl(head: &mut [u8; HEAD]) {
    let word = u32::from_le_bytes(bytes::<22, 4>(head));
    let carry = u32::from(word >= 0xfffe_0000) << 16;
    let word = word.wrapping_add(0x1_0000 - 1).wrapping_add(carry);
    head[22..26].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, NEIGHBOUR_MAC, TestTables, port_mac, run_step_on};

    #[test]
    fn macs_ttl_and_checksum_change_and_nothing_else() {
        let tables = TestTables::every_kind();
        let sent = FrameBuilder::ip4().ttl(64).udp(1, 2, b"payload").build();
        let mut step = Ip4Rewrite::new(&tables);
        let (result, batch) = run_step_on(&mut step, std::slice::from_ref(&sent), |batch| {
            batch.hop[0] = tables.next_hops.get(16);
            batch.out_interface[0] = 3;
        });
        let mut expected = FrameBuilder::ip4()
            .destination_mac(NEIGHBOUR_MAC)
            .source_mac(port_mac(3))
            .ttl(63)
            .udp(1, 2, b"payload")
            .build();
        FrameBuilder::fix_ip4_checksum(&mut expected);
        assert_eq!(result["transmit"], [0]);
        assert_eq!(batch.frame(0), expected);
    }

    #[test]
    fn the_exception_of_rfc_1624_is_kept() {
        // A header as in RFC 1624 section 3: the new checksum must be 0, not 0xffff.
        let mut head = [0; HEAD];
        head[22] = 64;
        head[24..26].copy_from_slice(&0xfeffu16.to_be_bytes());
        decrement_ttl(&mut head);
        assert_eq!(head[24..26], [0, 0]);
    }

    proptest::proptest! {
        /// The incremental checksum equals that of a full computation.
        #[test]
        fn the_checksum_stays_right(id: u16, ttl in 2u8.., source: u32) {
            let mut frame = FrameBuilder::ip4().ttl(ttl).build();
            frame[18..20].copy_from_slice(&id.to_be_bytes());
            frame[26..30].copy_from_slice(&source.to_be_bytes());
            FrameBuilder::fix_ip4_checksum(&mut frame);
            let mut head = [0; HEAD];
            head[..34].copy_from_slice(&frame[..34]);
            decrement_ttl(&mut head);
            frame[22] -= 1;
            FrameBuilder::fix_ip4_checksum(&mut frame);
            proptest::prop_assert_eq!(&head[..34], &frame[..34]);
        }
    }
}
