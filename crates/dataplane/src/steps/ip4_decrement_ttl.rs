//! `ip4-decrement-ttl`: the packet has one hop less to live.
//!
//! Takes IPv4 packets, and corrects the header checksum (RFC 1624, see `ip4_rewrite.rs`). The default graph does not
//! use it: there `ip4-ttl` tests the TTL and `ip4-rewrite` decrements it. This step is for graphs in which a packet
//! makes a hop without leaving, like Click's `DecIPTTL`; one that also passes `ip4-rewrite` makes two.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | TTL was 2 or more; decremented |
//! | punt `ttl` | TTL 0 or 1: unchanged, the slow path answers "time exceeded" |
//!
//! If a step behind this one punts the packet, an ICMP error quotes the decremented TTL.
//!
//! ```lua
//! turnpike.graph:insert_after("ip4-lookup.forward", "ip4-decrement-ttl")
//! ```

use super::ip4_rewrite::decrement_ttl;
use super::ip4_ttl::{self, Ip4Ttl};
use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;

pub(super) const OUTPUTS: &[Output] = ip4_ttl::OUTPUTS;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Ip4DecrementTtl;

impl Step for Ip4DecrementTtl {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        Ip4Ttl.process(batch, input, out);
        out[ip4_ttl::OK].for_each(|i| decrement_ttl(batch.head_mut(i)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn one_and_zero_expire_and_the_checksum_of_others_stays_right() {
        let frame = |ttl| {
            let mut frame = FrameBuilder::ip4().ttl(ttl).udp(1, 2, b"payload").build();
            FrameBuilder::fix_ip4_checksum(&mut frame);
            frame
        };
        let (result, batch) = run_step(&mut Ip4DecrementTtl, &[0, 1, 2, 255].map(frame));
        assert_eq!((&result["ttl"], &result["ok"]), (&vec![0, 1], &vec![2, 3]));
        for (slot, ttl) in [0, 1, 1, 254].into_iter().enumerate() {
            assert_eq!(batch.frame(slot), frame(ttl), "{slot}");
        }
    }
}
