//! `ether-encap`: writes an Ethernet header in front of packets.
//!
//! Takes frames in which the packet begins at `offset`, 14 or more; the header is written into the 14 bytes before it.
//! The frame begins where it did: `strip` removes what is in front of the header, `unstrip` makes room for one.
//!
//! | output | packets |
//! |---|---|
//! | `next` | with the new header |
//! | drop `runt` | shorter than `offset` |
//!
//! ```lua
//! graph:path("ip-lookup.1", { "ether-encap", ethertype = 0x0800, source = "02:00:00:00:00:01",
//!                             destination = "02:00:00:00:00:02" }, { "to-port", port = "right" }, "transmit")
//! ```

use wire::MacAddr;
use wire::ethernet::{ETHERNET_LEN, EthernetHeader};
use zerocopy::IntoBytes;

use super::{IP, MAC, OFFSET_MOST, mac, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};
use crate::reason::DropReason;

const OUTPUTS: &[Output] = &[Output::next("next"), Output::Drop(DropReason::Runt)];

pub(super) fn spec() -> StepSpec {
    let ethertype = Param::new("ethertype", Kind::Integer(0..=0xffff), "the Ethertype");
    let mac = |name, what| Param::new(name, Kind::Parsed(&MAC), what);
    let zero = || Arg::Text("00:00:00:00:00:00".to_owned());
    let offset = Param::new("offset", Kind::Integer(IP..=OFFSET_MOST), "the packet's place");
    StepSpec::new("ether-encap", OUTPUTS, make)
        .param(ethertype.or(Arg::Integer(0x0800)))
        .param(mac("source", "the sender's MAC").or(zero()))
        .param(mac("destination", "the receiver's MAC").or(zero()))
        .param(offset.or(Arg::Integer(IP)))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let args = context.args;
    let header = EthernetHeader {
        destination: MacAddr(mac(args, "destination")),
        source: MacAddr(mac(args, "source")),
        ethertype: (args.integer("ethertype") as u16).into(),
    };
    Box::new(EtherEncap { header, at: place(args) - ETHERNET_LEN })
}

struct EtherEncap {
    header: EthernetHeader,
    at: usize,
}

impl Step for EtherEncap {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let room = batch.frame_mut(slot).get_mut(self.at..self.at + ETHERNET_LEN);
            out[usize::from(room.is_none())] |= Mask::when(true, slot);
            if let Some(room) = room {
                room.copy_from_slice(self.header.as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, number, text};
    use crate::testing::run_step;

    #[test]
    fn the_header_is_in_front_of_the_packet() {
        let args = [
            ("ethertype", number(0x86dd)),
            ("source", text("02:00:00:00:00:01")),
            ("destination", text("02:00:00:00:00:02")),
            ("offset", number(20)),
        ];
        let (result, batch) =
            run_step(&mut *make("ether-encap", &args), &[vec![9; 24], vec![9; 19]]);
        assert_eq!((&result["next"], &result["runt"]), (&vec![0], &vec![1]));
        let expected =
            [9, 9, 9, 9, 9, 9, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 9, 9, 9, 9];
        assert_eq!(batch.frame(0), expected);
    }
}
