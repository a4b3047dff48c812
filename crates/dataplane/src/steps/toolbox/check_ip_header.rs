//! `check-ip-header`: validates IPv4 headers (RFC 1812 5.2.2), anywhere in a frame.
//!
//! Takes frames with an IPv4 header at `offset`, and cuts off what follows the packet. For packets to be routed by this
//! router `ip4-validate` is the faster one, and knows the router's addresses.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | version, lengths, checksum and source are right |
//! | `bad` | all others |
//!
//! `bad_sources` are addresses that no sender may have, but in packets to `good_destinations`; `checksum = false` leaves the
//! checksum to others.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::{IP, ip4_checksum, ip4_header, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("bad")];

pub(super) fn spec() -> StepSpec {
    let sources = Param::new("bad_sources", Kind::Prefixes, "addresses that no sender may have");
    let destinations = Param::new(
        "good_destinations",
        Kind::Prefixes,
        "addresses to which packets pass whatever their source",
    );
    let checksum = Param::new("checksum", Kind::Flag, "verify the checksum");
    StepSpec::new("check-ip-header", OUTPUTS, make)
        .param(offset(IP, "the IPv4 header's place"))
        .param(sources.or(Arg::Prefixes(Vec::new())))
        .param(destinations.or(Arg::Prefixes(Vec::new())))
        .param(checksum.or(Arg::Flag(true)))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let nets = |name| match context.args.get(name) {
        Arg::Prefixes(nets) => nets.clone(),
        _ => Vec::new(),
    };
    Box::new(CheckIpHeader {
        at: place(context.args),
        bad_sources: nets("bad_sources"),
        good_destinations: nets("good_destinations"),
        checksum: context.args.flag("checksum"),
    })
}

struct CheckIpHeader {
    at: usize,
    bad_sources: Vec<IpNet>,
    good_destinations: Vec<IpNet>,
    checksum: bool,
}

impl CheckIpHeader {
    /// Returns true if an address is in one of the networks.
    #[inline(always)]
    fn has(nets: &[IpNet], address: Ipv4Addr) -> bool {
        nets.iter().any(|net| net.contains(&IpAddr::V4(address)))
    }

    /// The total length of a valid packet.
    #[inline(always)]
    fn total_length(&self, frame: &[u8], len: usize) -> Option<usize> {
        let (header, options) = ip4_header(frame, self.at)?;
        let total = header.total_length.get().into();
        if total < header.header_len() || total > len - self.at {
            return None;
        }
        let is_bad = Self::has(&self.bad_sources, header.source())
            && !Self::has(&self.good_destinations, header.destination());
        let is_intact = !self.checksum || ip4_checksum(header, options) == 0;
        (is_intact && !is_bad).then_some(total)
    }
}

impl Step for CheckIpHeader {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let total = self.total_length(batch.frame(slot), batch.len(slot));
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
    use crate::params::Given;
    use crate::testing::{FrameBuilder, run_step};

    fn frame() -> Vec<u8> {
        let mut frame = FrameBuilder::ip4().source4("192.0.2.1").udp(1, 2, b"payload").build();
        FrameBuilder::fix_ip4_checksum(&mut frame);
        frame
    }

    /// A frame with one byte changed, and the checksum right unless it is the changed one.
    fn with(at: usize, byte: u8) -> Vec<u8> {
        let mut frame = frame();
        frame[at] = byte;
        if at != 24 {
            FrameBuilder::fix_ip4_checksum(&mut frame);
        }
        frame
    }

    #[test]
    fn only_valid_headers_pass() {
        let mut padded = frame();
        padded.resize(100, 0);
        let bad = [with(14, 0x65), with(14, 0x44), with(17, 19), with(17, 200), with(24, 0x11)];
        let frames: Vec<_> =
            [frame(), padded].into_iter().chain(bad).chain([frame()[..30].to_vec()]).collect();
        let (result, batch) = run_step(&mut *make("check-ip-header", &[]), &frames);
        assert_eq!((&result["ok"], &result["bad"]), (&vec![0, 1], &vec![2, 3, 4, 5, 6, 7]));
        assert_eq!(batch.frame(1), frame());
    }

    #[test]
    fn sources_and_checksums_are_settings() {
        let frames = [frame(), with(24, 0x11)];
        let run =
            |args: &[_]| run_step(&mut *make("check-ip-header", args), &frames).0["ok"].clone();
        assert_eq!(run(&[("checksum", Given::Flag(false))]), [0, 1]);
        assert_eq!(run(&[("bad_sources", list(&["192.0.2.0/30"]))]), Vec::<usize>::new());
        assert_eq!(run(&[("bad_sources", list(&["192.0.2.4/30"]))]), [0]);
        let source = ("bad_sources", list(&["192.0.2.1/32"]));
        let destination = frame()[30..34].iter().map(ToString::to_string).collect::<Vec<_>>();
        for (good, passed) in [(destination.join("."), vec![0]), ("192.0.2.9".to_owned(), vec![])] {
            let good = ("good_destinations", list(&[&format!("{good}/32")]));
            assert_eq!(run(&[source.clone(), good]), passed);
        }
        let shifted: Vec<u8> = [vec![9; 6], frame()].concat();
        let mut step = make("check-ip-header", &[("offset", number(20))]);
        assert_eq!(run_step(&mut *step, &[shifted]).0["ok"], [0]);
    }
}
