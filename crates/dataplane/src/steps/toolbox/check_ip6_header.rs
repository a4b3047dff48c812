//! `check-ip6-header`: validates IPv6 headers (RFC 8200 3), anywhere in a frame.
//!
//! Takes frames with an IPv6 header at `offset`, and cuts off what follows the packet. For packets to be routed by this
//! router `ip6-validate` is the faster one, and knows the router's addresses.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | version, length and source are right |
//! | `bad` | all others |
//!
//! `bad_sources` are addresses that no sender may have.

use std::net::IpAddr;

use ipnet::IpNet;
use wire::ip::IPV6_LEN;

use super::{IP, ip6_header, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("bad")];

pub(super) fn spec() -> StepSpec {
    let sources = Param::new("bad_sources", Kind::Prefixes, "addresses that no sender may have");
    StepSpec::new("check-ip6-header", OUTPUTS, make)
        .param(offset(IP, "the IPv6 header's place"))
        .param(sources.or(Arg::Prefixes(Vec::new())))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let bad_sources = match context.args.get("bad_sources") {
        Arg::Prefixes(nets) => nets.clone(),
        _ => Vec::new(),
    };
    Box::new(CheckIp6Header { at: place(context.args), bad_sources })
}

struct CheckIp6Header {
    at: usize,
    bad_sources: Vec<IpNet>,
}

impl CheckIp6Header {
    /// The length of a valid packet, its header included.
    #[inline(always)]
    fn packet_length(&self, frame: &[u8], len: usize) -> Option<usize> {
        let header = ip6_header(frame, self.at)?;
        let total = IPV6_LEN + usize::from(header.payload_length.get());
        let source = IpAddr::V6(header.source());
        let is_bad = self.bad_sources.iter().any(|net| net.contains(&source));
        (total <= len - self.at && !is_bad).then_some(total)
    }
}

impl Step for CheckIp6Header {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let total = self.packet_length(batch.frame(slot), batch.len(slot));
            out[usize::from(total.is_none())] |= Mask::when(true, slot);
            if let Some(total) = total {
                batch.trim(slot, self.at + total);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{list, make, number};
    use crate::testing::{FrameBuilder, run_step};

    fn frame() -> Vec<u8> {
        FrameBuilder::ip6().source6("2001:db8::7").udp(1, 2, b"payload").build()
    }

    /// A frame with one byte changed.
    fn with(at: usize, byte: u8) -> Vec<u8> {
        let mut frame = frame();
        frame[at] = byte;
        frame
    }

    #[test]
    fn only_valid_headers_pass() {
        let mut padded = frame();
        padded.resize(100, 0);
        let frames =
            [frame(), padded, with(14, 0x45), with(19, 200), with(18, 1), frame()[..53].to_vec()];
        let (result, batch) = run_step(&mut *make("check-ip6-header", &[]), &frames);
        assert_eq!((&result["ok"], &result["bad"]), (&vec![0, 1], &vec![2, 3, 4, 5]));
        assert_eq!(batch.frame(1), frame());
    }

    #[test]
    fn sources_and_places_are_settings() {
        let run =
            |args: &[_]| run_step(&mut *make("check-ip6-header", args), &[frame()]).0["ok"].clone();
        assert_eq!(run(&[("bad_sources", list(&["2001:db8::/32"]))]), Vec::<usize>::new());
        assert_eq!(run(&[("bad_sources", list(&["2001:db9::/32", "::/128"]))]), [0]);
        let shifted: Vec<u8> = [vec![9; 6], frame()].concat();
        let mut step = make("check-ip6-header", &[("offset", number(20))]);
        assert_eq!(run_step(&mut *step, &[shifted]).0["ok"], [0]);
    }
}
