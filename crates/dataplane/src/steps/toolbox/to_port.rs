//! `to-port`: selects the port by which frames leave, as they are.
//!
//! Takes any frame: no address, TTL or length is changed or checked. A frame longer than the port sends is dropped where
//! it leaves.
//!
//! | output | packets |
//! |---|---|
//! | `transmit` | all others |
//! | drop `runt` | shorter than an Ethernet header, which devices do not send |
//!
//! ```lua
//! graph:path("port-switch.left", { "to-port", port = "right" }, "transmit")
//! ```

use crate::batch::{BATCH_MAX, Batch, ETHERNET};
use crate::catalogue::{Facts, MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Kind, Param};
use crate::port::PortId;
use crate::reason::DropReason;

const OUTPUTS: &[Output] = &[Output::next("transmit"), Output::Drop(DropReason::Runt)];

pub(super) fn spec() -> StepSpec {
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let port = context.port(context.args.text("port")).map(PortId::index);
        // A port that does not exist: counted as `port-down`.
        Box::new(ToPort(port.map_or(u16::MAX, |port| port as u16)))
    };
    StepSpec::new("to-port", OUTPUTS, make)
        .provides(&[("transmit", Facts::SENDABLE)])
        .param(Param::new("port", Kind::Port, "the port to send by"))
}

struct ToPort(u16);

impl Step for ToPort {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let short = input.filter(|slot| batch.len(slot) < ETHERNET);
        (out[0], out[1]) = (input.without(short), short);
        if input == Mask(u64::MAX) {
            batch.out_interface = [self.0; BATCH_MAX];
            return;
        }
        input.for_each(|slot| batch.out_interface[slot] = self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn frames_leave_by_the_port_of_this_name() {
        for (count, name, number) in [(2, "right", 1), (64, "left", 0), (1, "gone", u16::MAX)] {
            let frames = vec![FrameBuilder::ip4().build(); count];
            let mut step = make("to-port", &[("port", text(name))]);
            let (result, batch) = run_step(&mut *step, &frames);
            assert_eq!(result["transmit"].len(), count);
            assert!(batch.out_interface[..count].iter().all(|&port| port == number), "{name}");
        }
    }

    #[test]
    fn what_is_no_frame_is_not_sent() {
        let mut step = make("to-port", &[("port", text("left"))]);
        let (result, _) = run_step(&mut *step, &[vec![7; 13], vec![7; 14]]);
        assert_eq!((&result["runt"], &result["transmit"]), (&vec![0], &vec![1]));
    }
}
