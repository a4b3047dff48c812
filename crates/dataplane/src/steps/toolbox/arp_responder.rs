//! `arp-responder`: answers ARP requests for addresses of its own (RFC 826).
//!
//! Takes ARP requests with their Ethernet header at `offset`. An entry is a prefix and a MAC, as in
//! `"10.0.0.0/8 02:00:00:00:00:01"`; of several that match, the longest prefix counts. The frame becomes the answer to its
//! sender.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | answers |
//! | `others` | requests for other addresses, and all that is no ARP request; unchanged |
//!
//! ```lua
//! graph:path("classify.0", { "arp-responder", entries = { "10.0.1.1/32 02:00:00:00:00:01" } }, "to-port")
//! graph:path("arp-responder.others", "drop")
//! ```

use std::net::Ipv4Addr;

use wire::MacAddr;
use wire::arp::{ArpMessage, REPLY, REQUEST};
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_ARP, EthernetHeader};
use zerocopy::{FromBytes, IntoBytes};

use super::macs::{Macs, read};
use super::{offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::Grammar;

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("others")];

static ENTRY: Grammar = Grammar {
    expected: "a prefix and a MAC such as \"10.0.0.0/8 02:00:00:00:00:01\"",
    check: |text| read::<Ipv4Addr>(text).map(drop),
};

pub(super) fn spec() -> StepSpec {
    StepSpec::new("arp-responder", OUTPUTS, make)
        .param(Macs::<Ipv4Addr>::param(&ENTRY))
        .param(offset(0, "the Ethernet header's place"))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    Box::new(ArpResponder { macs: Macs::of(context.args), at: place(context.args) })
}

struct ArpResponder {
    macs: Macs<Ipv4Addr>,
    at: usize,
}

impl ArpResponder {
    /// Makes a request its own answer; returns false if there is none.
    #[inline(always)]
    fn answer(&self, frame: &mut [u8]) -> bool {
        let Some((ethernet, rest)) =
            frame.get_mut(self.at..).and_then(|frame| frame.split_at_mut_checked(ETHERNET_LEN))
        else {
            return false;
        };
        let Ok((request, _)) = ArpMessage::read_from_prefix(rest) else { return false };
        let is_request = ethernet[12..14] == ETHERTYPE_ARP.to_be_bytes()
            && request.is_ethernet_ipv4()
            && request.operation == REQUEST;
        let target = request.target();
        let (true, Some(mac)) = (is_request, self.macs.find(target)) else { return false };
        let asker: (MacAddr, Ipv4Addr) = (request.sender_mac, request.sender());
        let header =
            EthernetHeader { destination: asker.0, source: mac, ethertype: ETHERTYPE_ARP.into() };
        ethernet.copy_from_slice(header.as_bytes());
        let reply = ArpMessage::new(REPLY, (mac, target), asker);
        rest[..size_of::<ArpMessage>()].copy_from_slice(reply.as_bytes());
        true
    }
}

impl Step for ArpResponder {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        out[0] = input.filter(|slot| self.answer(batch.frame_mut(slot)));
        out[1] = input.without(out[0]);
    }
}

#[cfg(test)]
mod tests {
    use wire::build::{Link, arp};

    use super::super::{list, make, number};
    use super::*;
    use crate::testing::run_step;

    const ASKER: (MacAddr, Ipv4Addr) = (MacAddr([2, 0, 0, 0, 0, 7]), Ipv4Addr::new(10, 0, 0, 7));

    fn request(target: [u8; 4], operation: u16) -> Vec<u8> {
        let link = Link { destination: MacAddr::BROADCAST, source: ASKER.0 };
        arp(link, &ArpMessage::new(operation, ASKER, (MacAddr::default(), target.into())))
    }

    fn answer(target: [u8; 4], mac: [u8; 6]) -> Vec<u8> {
        let link = Link { destination: ASKER.0, source: MacAddr(mac) };
        arp(link, &ArpMessage::new(REPLY, (MacAddr(mac), target.into()), ASKER))
    }

    #[test]
    fn requests_become_answers_by_the_longest_prefix() {
        let entries = || list(&["10.0.0.0/8 02:00:00:00:00:01", "10.0.1.1/32 02:00:00:00:00:02"]);
        let mut step = make("arp-responder", &[("entries", entries())]);
        let frames = [
            request([10, 0, 1, 1], REQUEST),
            request([10, 9, 9, 9], REQUEST),
            request([11, 0, 0, 1], REQUEST),
            request([10, 0, 1, 1], REPLY),
            request([10, 0, 1, 1], REQUEST)[..41].to_vec(),
            [&[0; 12][..], &[8, 0], &request([10, 0, 1, 1], REQUEST)[14..]].concat(),
        ];
        let (result, batch) = run_step(&mut *step, &frames);
        assert_eq!((&result["ok"], &result["others"]), (&vec![0, 1], &vec![2, 3, 4, 5]));
        assert_eq!(batch.frame(0), answer([10, 0, 1, 1], [2, 0, 0, 0, 0, 2]));
        assert_eq!(batch.frame(1), answer([10, 9, 9, 9], [2, 0, 0, 0, 0, 1]));
        assert_eq!(batch.frame(2), frames[2]);
        let shifted = |frame: &[u8]| [&[9; 4], frame].concat();
        let mut step = make("arp-responder", &[("entries", entries()), ("offset", number(4))]);
        let (result, batch) = run_step(&mut *step, &[shifted(&frames[0])]);
        assert_eq!(result["ok"], [0]);
        assert_eq!(batch.frame(0), shifted(&answer([10, 0, 1, 1], [2, 0, 0, 0, 0, 2])));
    }

    #[test]
    fn entries_are_checked() {
        assert!(read::<Ipv4Addr>("10.0.0.0/8 02:00:00:00:00:01").is_ok());
        for wrong in ["10.0.0.0/8", "10.0.0.1 02:00:00:00:00:01", "10.0.0.0/8 x", ""] {
            assert!(
                read::<Ipv4Addr>(wrong).unwrap_err().contains("expected PREFIX MAC"),
                "{wrong}"
            );
        }
    }
}
