//! `ip6-hop-limit`: checks that the hop limit permits another hop.
//!
//! Takes packets to be forwarded; packets for the router itself do not pass this step (RFC 8200 3:
//! a destination does not discard by hop limit).
//!
//! | output | packets |
//! |---|---|
//! | `ok` | hop limit 2 or more; `ip6-rewrite` decrements it |
//! | punt `ttl` | hop limit 0 or 1: the slow path sends "time exceeded" (RFC 4443 3.3) |
//!
//! The hop limit is decremented by the last step for the reasons in `ip4_ttl.rs`: 224.0 instructions
//! per packet of the case `full6`, and 229.0 if this step decrements. A graph that needs both in one
//! step has `ip6-decrement-hop-limit`.

use crate::batch::Batch;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::PuntReason;

pub(super) const OK: usize = 0;
const EXPIRED: usize = 1;

pub(super) const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Punt(PuntReason::Ttl)];

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Ip6HopLimit;

impl Step for Ip6HopLimit {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let lives = input.filter(|i| batch.ip6(i).hop_limit > 1);
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
        let frames: Vec<_> = [0, 1, 2, 255].map(|ttl| FrameBuilder::ip6().ttl(ttl).build()).into();
        let (result, _) = run_step(&mut Ip6HopLimit, &frames);
        assert_eq!(result["ttl"], [0, 1]);
        assert_eq!(result["ok"], [2, 3]);
    }
}
