//! `to-queue`: selects a queue of the next `schedule`.
//!
//! Takes any frame. A `schedule` has several queues but one input; a step of this kind in front of it tells them apart.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all, for queue `number` |

use crate::batch::{BATCH_MAX, Batch};
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

use super::schedule::QUEUES_MOST;

const OUTPUTS: &[Output] = &[Output::next("next")];

pub(super) fn spec() -> StepSpec {
    let most = QUEUES_MOST as i64 - 1;
    let number =
        Param::new("number", Kind::Integer(0..=most), "the queue, by its place in `order`");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        Box::new(ToQueue(context.args.integer("number") as u8))
    };
    StepSpec::new("to-queue", OUTPUTS, make).param(number.or(Arg::Integer(0)))
}

struct ToQueue(u8);

impl Step for ToQueue {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.slots().for_each(|slot| batch.queue[slot & (BATCH_MAX - 1)] = self.0);
    }
}
