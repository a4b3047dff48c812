//! `ip6-decrement-hop-limit`: the packet has one hop less to live.
//!
//! Takes IPv6 packets, which have no header checksum to correct. The default graph does not use it: there
//! `ip6-hop-limit` tests the hop limit and `ip6-rewrite` decrements it. This step is for graphs in which a packet
//! makes a hop without leaving; one that also passes `ip6-rewrite` makes two.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | hop limit was 2 or more; decremented |
//! | punt `ttl` | hop limit 0 or 1: unchanged, the slow path answers "time exceeded" (RFC 4443 3.3) |
//!
//! If a step behind this one punts the packet, an ICMP error quotes the decremented hop limit.
//!
//! ```lua
//! turnpike.graph:insert_after("ip6-lookup.forward", "ip6-decrement-hop-limit")
//! ```

use super::ip6_hop_limit::{self, Ip6HopLimit};
use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::head::ip6_mut;
use crate::mask::Mask;

pub(super) const OUTPUTS: &[Output] = ip6_hop_limit::OUTPUTS;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Ip6DecrementHopLimit;

impl Step for Ip6DecrementHopLimit {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        Ip6HopLimit.process(batch, input, out);
        // Those are 2 or more.
        out[ip6_hop_limit::OK].for_each(|i| ip6_mut(batch.head_mut(i)).hop_limit -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn one_and_zero_expire_and_others_are_decremented() {
        let frame = |ttl| FrameBuilder::ip6().ttl(ttl).udp(1, 2, b"payload").build();
        let (result, batch) = run_step(&mut Ip6DecrementHopLimit, &[0, 1, 2, 255].map(frame));
        assert_eq!((&result["ttl"], &result["ok"]), (&vec![0, 1], &vec![2, 3]));
        for (slot, ttl) in [0, 1, 1, 254].into_iter().enumerate() {
            assert_eq!(batch.frame(slot), frame(ttl), "{slot}");
        }
    }
}
