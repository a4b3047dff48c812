//! `check-l4-header`: validates TCP, UDP and ICMP headers and checksums.
//!
//! Takes frames with a valid IPv4 header at `offset`. Fragments after the first have no such header and fail; of other
//! fragments only the header's lengths are checked.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | of `protocol`; its lengths, also those of its ICMP type, and its checksum are right |
//! | `bad` | all others |

use wire::checksum::{Checksum, pseudo_header_v4};
use wire::ip::{PROTOCOL_ICMP, PROTOCOL_TCP, PROTOCOL_UDP};
use wire::l4::{TcpHeader, UdpHeader};
use zerocopy::FromBytes;

use super::{IP, ip4_header, offset, place};
use crate::batch::Batch;
use crate::catalogue::{MakeContext, StepSpec};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::params::{Arg, Kind, Param};

const OUTPUTS: &[Output] = &[Output::next("ok"), Output::next("bad")];

/// The protocols, their numbers, and the lengths of their least headers.
const PROTOCOLS: [(&str, u8, usize); 3] = [
    ("tcp", PROTOCOL_TCP, size_of::<TcpHeader>()),
    ("udp", PROTOCOL_UDP, size_of::<UdpHeader>()),
    ("icmp", PROTOCOL_ICMP, 8),
];

pub(super) fn spec() -> StepSpec {
    let protocol = Param::new("protocol", Kind::Word(&["tcp", "udp", "icmp"]), "the protocol");
    StepSpec::new("check-l4-header", OUTPUTS, make)
        .param(protocol.or(Arg::Word("tcp")))
        .param(offset(IP, "the IPv4 header's place"))
}

fn make(context: &MakeContext<'_>) -> Box<dyn Step> {
    let wanted = match context.args.get("protocol") {
        Arg::Word(word) => *word,
        _ => "tcp",
    };
    let known = PROTOCOLS.iter().find(|(name, ..)| *name == wanted).copied();
    let (_, protocol, least) = known.unwrap_or(PROTOCOLS[0]);
    Box::new(CheckL4Header { at: place(context.args), protocol, least })
}

struct CheckL4Header {
    at: usize,
    protocol: u8,
    least: usize,
}

/// Length and checksum of a packet, by its header.
struct Said {
    /// The bytes that its checksum covers.
    length: usize,
    has_checksum: bool,
}

impl CheckL4Header {
    /// Reads the header of a packet of `len` bytes; `None` if no such packet can have this header.
    fn said(&self, header: &[u8], len: usize) -> Option<Said> {
        match self.protocol {
            PROTOCOL_TCP => {
                let (tcp, _) = TcpHeader::ref_from_prefix(header).ok()?;
                let is_whole = (self.least..=len).contains(&tcp.header_len());
                is_whole.then_some(Said { length: len, has_checksum: true })
            }
            PROTOCOL_UDP => {
                let (udp, _) = UdpHeader::ref_from_prefix(header).ok()?;
                // A checksum of 0 is none (RFC 768).
                let has_checksum = udp.checksum.get() != 0;
                Some(Said { length: udp.length.get().into(), has_checksum })
            }
            _ => {
                let is_possible = is_icmp_length(*header.first()?, len);
                is_possible.then_some(Said { length: len, has_checksum: true })
            }
        }
    }

    fn is_valid<'a>(&self, frame: &'a [u8], rest: impl Iterator<Item = &'a [u8]>) -> bool {
        let Some((ip, _)) = ip4_header(frame, self.at) else { return false };
        let begin = self.at + ip.header_len();
        let total = usize::from(ip.total_length.get());
        let Some(len) = total.checked_sub(ip.header_len()) else { return false };
        if ip.protocol != self.protocol || ip.fragment_offset() != 0 || len < self.least {
            return false;
        }
        let Some(header) = frame.get(begin..begin + self.least) else { return false };
        let Some(Said { length, has_checksum }) = self.said(header, len) else { return false };
        if length < self.least || length > len {
            return false;
        }
        // The checksum of a fragment covers all fragments.
        if ip.is_fragment() || !has_checksum {
            return true;
        }
        let mut sum = match self.protocol {
            PROTOCOL_ICMP => Checksum::new(),
            protocol => pseudo_header_v4(ip.source(), ip.destination(), protocol, length as u16),
        };
        let mut left = length;
        for part in std::iter::once(&frame[begin..]).chain(rest) {
            let part = &part[..part.len().min(left)];
            left -= part.len();
            sum.add(part);
        }
        left == 0 && sum.finish() == 0
    }
}

/// Returns true if an ICMP message of this type may have so many bytes (RFC 792): errors have the header and the first
/// eight bytes of a packet behind their own header, timestamps and information messages one length.
fn is_icmp_length(kind: u8, len: usize) -> bool {
    match kind {
        3 | 4 | 5 | 11 | 12 => len >= 8 + 28,
        13 | 14 => len == 20,
        15 | 16 => len == 8,
        _ => true,
    }
}

impl Step for CheckL4Header {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for slot in input.slots() {
            let (frame, rest) = batch.frame_and_rest(slot);
            let way = usize::from(!self.is_valid(frame, rest));
            out[way] |= Mask::when(true, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{make, text};
    use crate::testing::{FrameBuilder, batch_in_segments, run_on, run_step};

    fn udp() -> Vec<u8> {
        FrameBuilder::ip4().udp(1, 2, b"payload").build()
    }

    fn with(at: usize, byte: u8) -> Vec<u8> {
        let mut frame = udp();
        frame[at] = byte;
        frame
    }

    #[test]
    fn lengths_and_checksums_are_verified() {
        let mut without = udp();
        without[40..42].fill(0);
        let bad = [with(39, 99), with(39, 7), with(48, 0), with(23, 6), with(17, 27), with(21, 1)];
        let frames: Vec<_> = [udp(), without, with(20, 0x20)].into_iter().chain(bad).collect();
        let mut step = make("check-l4-header", &[("protocol", text("udp"))]);
        let (result, _) = run_step(&mut *step, &frames);
        assert_eq!((&result["ok"], &result["bad"]), (&vec![0, 1, 2], &vec![3, 4, 5, 6, 7, 8]));
    }

    #[test]
    fn tcp_and_icmp_have_their_own_headers() {
        let mut tcp = [0; 20];
        tcp[12] = 0x50;
        let mut tcp = FrameBuilder::ip4().protocol(6).payload(&tcp).build();
        let sum = super::pseudo_header_v4(
            std::net::Ipv4Addr::new(tcp[26], tcp[27], tcp[28], tcp[29]),
            std::net::Ipv4Addr::new(tcp[30], tcp[31], tcp[32], tcp[33]),
            6,
            20,
        );
        let mut sum = sum;
        sum.add(&tcp[34..]);
        let sum = sum.finish().to_be_bytes();
        tcp[50..52].copy_from_slice(&sum);
        let icmp = FrameBuilder::ip4().protocol(1).payload(&[8, 0, 0xf7, 0xff, 0, 0, 0, 0]).build();
        for (protocol, ok) in [("tcp", 0), ("icmp", 1)] {
            let mut step = make("check-l4-header", &[("protocol", text(protocol))]);
            let (result, _) = run_step(&mut *step, &[tcp.clone(), icmp.clone()]);
            assert_eq!(result["ok"], [ok], "{protocol}");
        }
        let mut short = tcp.clone();
        short[46] = 0x60;
        let mut step = make("check-l4-header", &[("protocol", text("tcp"))]);
        assert_eq!(run_step(&mut *step, &[short]).0["bad"], [0], "its options do not fit");
    }

    #[test]
    fn icmp_messages_have_the_lengths_of_their_types() {
        for (kind, len, ok) in [
            (11, 8, false),
            (3, 35, false),
            (3, 36, true),
            (13, 20, true),
            (14, 24, false),
            (15, 8, true),
            (16, 12, false),
            (8, 12, true),
        ] {
            let mut message = vec![0; len];
            message[0] = kind;
            let sum = wire::checksum::checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let frame = FrameBuilder::ip4().protocol(1).payload(&message).build();
            let mut step = make("check-l4-header", &[("protocol", text("icmp"))]);
            let (result, _) = run_step(&mut *step, &[frame]);
            assert_eq!(result["ok"].len(), usize::from(ok), "{kind} {len}");
        }
    }

    #[test]
    fn packets_in_several_buffers_are_summed_whole() {
        let data: Vec<u8> = (0..3001).map(|n| n as u8).collect();
        let frame = FrameBuilder::ip4().udp(4000, 53, &data).build();
        let mut step = make("check-l4-header", &[("protocol", text("udp"))]);
        for segment in [128, 129, 1000] {
            let mut batch = batch_in_segments(std::slice::from_ref(&frame), segment);
            assert_eq!(run_on(&mut *step, &mut batch)["ok"], [0], "{segment}");
        }
    }
}
