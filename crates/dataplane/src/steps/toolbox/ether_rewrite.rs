//! `ether-rewrite`: writes both addresses of the Ethernet header.
//!
//! Takes any frame, with the header at `offset`; the Ethertype stays.
//!
//! | output | packets |
//! |---|---|
//! | `next` | all; shorter frames unchanged |

use super::{MAC, mac, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("next")];

pub(super) fn spec() -> StepSpec {
    let mac = |name, what| Param::new(name, Kind::Parsed(&MAC), what);
    let zero = || Arg::Text("00:00:00:00:00:00".to_owned());
    StepSpec::new("ether-rewrite", OUTPUTS, make)
        .param(mac("source", "the sender's MAC").or(zero()))
        .param(mac("destination", "the receiver's MAC").or(zero()))
        .param(offset(0, "the header's place"))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let mut addresses = [0; 12];
    addresses[..6].copy_from_slice(&mac(context.args, "destination"));
    addresses[6..].copy_from_slice(&mac(context.args, "source"));
    Box::new(EtherRewrite { addresses, at: place(context.args) })
}

struct EtherRewrite {
    addresses: [u8; 12],
    at: usize,
}

impl Step for EtherRewrite {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input;
        input.for_each(|slot| {
            if let Some(room) = batch.frame_mut(slot).get_mut(self.at..self.at + 12) {
                room.copy_from_slice(&self.addresses);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use crate::testing::run_step;

    #[test]
    fn addresses_are_written() {
        let args = [("source", text("2:0:0:0:0:1")), ("destination", text("2:0:0:0:0:2"))];
        let (_, batch) = run_step(&mut *make("ether-rewrite", &args), &[vec![9; 14], vec![9; 11]]);
        assert_eq!(batch.frame(0), [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 9, 9]);
        assert_eq!(batch.frame(1), [9; 11]);
    }
}
