//! `hash-switch`: spreads packets over its outputs by some of their bytes.
//!
//! Takes any frame. Packets with the same `length` bytes at `offset` take the same output, so a flow keeps its order; of
//! a shorter frame the bytes that it has count.
//!
//! | output | packets |
//! |---|---|
//! | `0`, `1`, … | by the hash of their bytes |
//!
//! ```lua
//! graph:path("classify.ip4", { "hash-switch", offset = 26, length = 8, outputs = 4 })
//! ```

use super::{numbered, offset, outputs, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

pub(super) fn spec() -> StepSpec {
    let length = Param::new("length", Kind::Integer(1..=64), "the number of bytes");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let (offset, length) = (place(context.args), context.args.integer("length") as usize);
        Box::new(HashSwitch { outputs: numbered(context.args), offset, length })
    };
    let spec = StepSpec::new("hash-switch", &[], make).outputs_by(numbered);
    spec.param(offset(26, "the place of the bytes"))
        .param(length.or(Arg::Integer(8)))
        .param(outputs())
}

struct HashSwitch {
    outputs: Vec<Output>,
    offset: usize,
    length: usize,
}

impl Step for HashSwitch {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let count = self.outputs.len() as u64;
        for slot in input.slots() {
            let frame = batch.frame(slot);
            let end = frame.len().min(self.offset + self.length);
            let hash = hash(frame.get(self.offset..end).unwrap_or(&[]));
            // The upper half as a fraction of the number of outputs: no division.
            out[(((hash >> 32) * count) >> 32) as usize] |= Mask::when(true, slot);
        }
    }
}

/// FNV-1a, with a last round that mixes into the upper bits.
#[inline(always)]
fn hash(bytes: &[u8]) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv);
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::super::{make, number};
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn equal_bytes_take_one_output_and_others_spread() {
        let args = [("offset", number(34)), ("length", number(4)), ("outputs", number(3))];
        let mut step = make("hash-switch", &args);
        let same = vec![FrameBuilder::ip4().udp(5, 6, b"x").build(); 10];
        let (result, _) = run_step(&mut *step, &same);
        assert_eq!(result.taken().len(), 1);
        let frame = |port| FrameBuilder::ip4().udp(port, 6, b"x").build();
        let others: Vec<_> = (0..64).map(frame).chain([]).collect();
        let (result, _) = run_step(&mut *step, &others);
        for output in ["0", "1", "2"] {
            assert!(result[output].len() > 8, "{output}: {result:?}");
        }
        let short = run_step(&mut *step, &[vec![0; 20], vec![1; 30]]).0;
        assert_eq!(short.taken().len(), 1, "no bytes there");
    }
}
