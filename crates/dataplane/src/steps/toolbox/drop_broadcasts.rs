//! `drop-broadcasts`: drops packets that came as a link-layer broadcast or multicast.
//!
//! Takes packets of which `on-wire` or `classify` has recorded it (RFC 1812 5.3.4: they are not to be forwarded).
//!
//! | output | packets |
//! |---|---|
//! | `ok` | to one host's MAC |
//! | drop `l2-broadcast` | to a group's |

use crate::batch::Batch;
use crate::catalogue::StepSpec;
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::DropReason;

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::Drop(DropReason::L2Broadcast)];

pub(super) fn spec() -> StepSpec {
    StepSpec::new("drop-broadcasts", OUTPUTS, |_| Box::new(DropBroadcasts))
}

struct DropBroadcasts;

impl Step for DropBroadcasts {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[1] = input & batch.link_multicast;
        out[0] = input.without(out[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::make;
    use crate::mask::Mask;
    use crate::testing::{FrameBuilder, run_step_on};

    #[test]
    fn groups_are_dropped() {
        let frames = vec![FrameBuilder::ip4().build(); 2];
        let mut step = make("drop-broadcasts", &[]);
        let (result, _) = run_step_on(&mut *step, &frames, |b| b.link_multicast = Mask(0b10));
        assert_eq!((&result["ok"], &result["l2-broadcast"]), (&vec![0], &vec![1]));
    }
}
