//! `unstrip`: puts bytes in front of frames.
//!
//! Takes any frame. The new bytes are undefined, unless `strip` has removed them before; a later step writes them.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | begin `bytes` earlier now |
//! | `full` | no room in front of them; unchanged |
//!
//! ```lua
//! graph:path("counter.next", { "unstrip", bytes = 14 }, { "ether-encap", … })
//! ```

use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("full")];

pub(super) fn spec() -> StepSpec {
    let bytes = Param::new("bytes", Kind::Integer(0..=super::OFFSET_MOST), "bytes to add");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(Unstrip(context.args.integer("bytes") as u16))
    };
    StepSpec::new("unstrip", OUTPUTS, make).param(bytes.or(Arg::Integer(14))).moves_data()
}

struct Unstrip(u16);

impl Step for Unstrip {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            out[usize::from(!batch.unstrip(slot, self.0))] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::run_step;

    #[test]
    fn frames_begin_earlier_if_there_is_room() {
        let frame = [vec![1, 2, 3, 4, 5]];
        let (result, batch) = run_step(&mut *make("unstrip", &[("bytes", number(4))]), &frame);
        assert_eq!(
            (&result["ok"], batch.len(0), &batch.frame(0)[4..]),
            (&vec![0], 9, &frame[0][..])
        );
        let (result, batch) = run_step(&mut *make("unstrip", &[("bytes", number(1000))]), &frame);
        assert_eq!((&result["full"], batch.frame(0)), (&vec![0], &frame[0][..]));
    }
}
