//! `ip4-ttl`: checks that the TTL permits another hop.
//!
//! Takes packets to be forwarded; packets for the router itself do not pass this step (RFC 1812
//! 4.2.2.9 and 5.3.1: a router does not discard packets addressed to it because of their TTL).
//!
//! | output | packets |
//! |---|---|
//! | `ok` | TTL 2 or more; `ip4-rewrite` decrements it |
//! | punt `ttl` | TTL 0 or 1: the slow path sends "time exceeded" |
//!
//! The TTL is decremented by `ip4-rewrite`, the last step, since those between can still punt the
//! packet (outward filter, redirect, MTU, a neighbour that is not resolved): an ICMP error quotes
//! it as it was received (RFC 1812 4.3.2.3), and the slow path decrements that of packets that it
//! forwards itself. It also costs fewer instructions there, where the header is written anyway: 176.6
//! per packet of the case `full4` of `bench/instructions.py`, and 180.9 if this step decrements. A
//! graph that needs both in one step has `ip4-decrement-ttl`.

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::PuntReason;

pub(super) const OK: usize = 0;
const EXPIRED: usize = 1;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Punt(PuntReason::Ttl)];

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Ip4Ttl;

impl Step for Ip4Ttl {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let lives = input.filter(|i| batch.ip4(i).ttl > 1);
        out[OK] = lives;
        out[EXPIRED] = input.without(lives);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn one_and_zero_expire() {
        let frames: Vec<_> = [0, 1, 2, 255].map(|ttl| FrameBuilder::ip4().ttl(ttl).build()).into();
        let (result, _) = run_step(&mut Ip4Ttl, &frames);
        assert_eq!(result["ttl"], [0, 1]);
        assert_eq!(result["ok"], [2, 3]);
    }
}
