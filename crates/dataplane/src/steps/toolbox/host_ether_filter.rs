//! `host-ether-filter`: sorts frames by their destination MAC, as a NIC does.
//!
//! Takes any frame, with the Ethernet header at `offset`.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | to `address`, or to a group |
//! | `others` | to another host, sent by `address` itself with `drop_own`, or too short |

use super::{MAC, mac, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("others")];

pub(super) fn spec() -> StepSpec {
    let address = Param::new("address", Kind::Parsed(&MAC), "the MAC");
    let own = Param::new("drop_own", Kind::Flag, "refuse frames that the MAC itself sent");
    let make = |context: &MakeContext<'_>| -> Box<dyn Step> {
        let (address, at) = (mac(context.args, "address"), place(context.args));
        Box::new(HostEtherFilter { address, drop_own: context.args.flag("drop_own"), at })
    };
    StepSpec::new("host-ether-filter", OUTPUTS, make)
        .param(address.or(Arg::Text("00:00:00:00:00:00".to_owned())))
        .param(own.or(Arg::Flag(false)))
        .param(offset(0, "the header's place"))
}

struct HostEtherFilter {
    address: [u8; 6],
    drop_own: bool,
    at: usize,
}

impl HostEtherFilter {
    #[inline(always)]
    fn admits(&self, frame: &[u8]) -> bool {
        let Some(addresses) = frame.get(self.at..self.at + 12) else { return false };
        let (to, from) = addresses.split_at(6);
        (to == self.address || to[0] & 1 != 0) && !(self.drop_own && from == self.address)
    }
}

impl Step for HostEtherFilter {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input.filter(|slot| self.admits(batch.frame(slot)));
        out[1] = input.without(out[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use crate::params::Given;
    use crate::testing::{FrameBuilder, run_step};

    #[test]
    fn own_frames_and_groups_pass() {
        let own = [2, 0, 0, 0, 0, 7];
        let to = |to| FrameBuilder::ethernet(to, 0x88b5).build();
        let frames = [
            to(own),
            to([0xff; 6]),
            to([2, 0, 0, 0, 0, 8]),
            vec![2; 11],
            FrameBuilder::ethernet([1; 6], 0x88b5).source_mac(own).build(),
        ];
        for (drop_own, ok) in [(false, vec![0, 1, 4]), (true, vec![0, 1])] {
            let args =
                [("address", text("02:00:00:00:00:07")), ("drop_own", Given::Flag(drop_own))];
            let (result, _) = run_step(&mut *make("host-ether-filter", &args), &frames);
            assert_eq!(result["ok"], ok, "{drop_own}");
        }
    }
}
