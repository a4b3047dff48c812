//! `ip4-validate`: is this an IPv4 packet a router may look at?
//!
//! Takes frames with Ethertype IPv4 and at least 20 bytes behind the Ethernet header.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | valid, header of 20 bytes |
//! | punt `ip4-options` | valid, with options |
//! | drop `ip4-version` | version is not 4 |
//! | drop `ip4-header-length` | IHL below 5, or the header is longer than the frame |
//! | drop `ip4-total-length` | total length below the header's, or beyond the frame |
//! | drop `ip4-checksum` | header checksum wrong |
//! | punt `local` | 0.0.0.0 to 255.255.255.255, on a port with a host interface |
//! | drop `ip4-martian-source` | source 0/8 (0.0.0.0 included), 127/8, 224/4, 240/4 |
//!
//! The checks are those of RFC 1812 5.2.2 in its order; a packet failing several is counted once,
//! under the first. Martian sources: RFC 1812 5.3.7. A host that has no address yet may send from
//! 0.0.0.0 (RFC 1122 3.2.1.3 a), as DHCP clients do (RFC 2131 4.1): that is for a server or relay of
//! the machine. Bytes behind the total length (link padding)
//! are cut off.

use crate::batch::{Batch, ETHERNET, HEAD};
use crate::graph::{Output, Outputs, Step};
use crate::mask::Mask;
use crate::reason::{DropReason, PuntReason};

const OK: usize = 0;
const OPTIONS: usize = 1;
const VERSION: usize = 2;
const HEADER_LENGTH: usize = 3;
const TOTAL_LENGTH: usize = 4;
const CHECKSUM: usize = 5;
const MARTIAN_SOURCE: usize = 6;
const NO_ADDRESS_YET: usize = 7;

pub(super) const OUTPUTS: &[Output] = &[
    Output::Next("ok"),
    Output::Punt(PuntReason::Ip4Options),
    Output::Drop(DropReason::Ip4Version),
    Output::Drop(DropReason::Ip4HeaderLength),
    Output::Drop(DropReason::Ip4TotalLength),
    Output::Drop(DropReason::Ip4Checksum),
    Output::Drop(DropReason::Ip4MartianSource),
    Output::Punt(PuntReason::Local),
];

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Ip4Validate;

impl Step for Ip4Validate {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        // Nearly all packets pass the checks of a plain header; only the others are asked why not.
        let mut plain = Mask::EMPTY;
        let mut padded = Mask::EMPTY;
        input.for_each(|i| {
            let (head, len) = (batch.head(i), batch.len(i));
            let end = ETHERNET + total_length(head);
            let valid = (head[ETHERNET] == 0x45)
                & (end >= ETHERNET + 20)
                & (end <= len)
                & plain_checksum_ok(head)
                & !martian_source(head);
            plain |= Mask::when(valid, i);
            padded |= Mask::when(end < len, i);
        });
        out[OK] = plain;
        for i in input.without(plain).slots() {
            out[verdict(batch.frame(i))] |= Mask::when(true, i);
        }
        if batch.in_port_info.host {
            out[NO_ADDRESS_YET] = without_address(batch, out[MARTIAN_SOURCE]);
            out[MARTIAN_SOURCE] = out[MARTIAN_SOURCE].without(out[NO_ADDRESS_YET]);
        }
        for i in (padded & (out[OK] | out[OPTIONS] | out[NO_ADDRESS_YET])).slots() {
            let end = ETHERNET + total_length(batch.head(i));
            batch.trim(i, end);
        }
    }
}

fn total_length(head: &[u8; HEAD]) -> usize {
    usize::from(u16::from_be_bytes([head[16], head[17]]))
}

/// RFC 1071 over the 20 bytes of a header without options: the sum of a valid header, its checksum
/// included, is all ones. The order of bytes does not matter to it (RFC 1071 2.B).
fn plain_checksum_ok(head: &[u8; HEAD]) -> bool {
    let word = |at: usize| {
        u64::from(u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]))
    };
    let sum = word(14) + word(18) + word(22) + word(26) + word(30);
    fold(sum) == 0xffff
}

fn fold(sum: u64) -> u64 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

fn martian_source(head: &[u8; HEAD]) -> bool {
    let first = head[26];
    (first == 0) | (first == 127) | (first >= 224)
}

/// The packets from hosts that have no address yet to all on their link.
fn without_address(batch: &Batch, packets: Mask) -> Mask {
    let mut found = Mask::EMPTY;
    for i in packets.slots() {
        found |= Mask::when(batch.head(i)[26..34] == [0, 0, 0, 0, 255, 255, 255, 255], i);
    }
    found
}

/// The output for a packet that is not a valid one with a plain header, check by check.
fn verdict(frame: &[u8]) -> usize {
    let Some((head, packet)) = frame.first_chunk::<{ ETHERNET + 20 }>().zip(frame.get(ETHERNET..))
    else {
        return TOTAL_LENGTH;
    };
    let header_length = usize::from(head[ETHERNET] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
    if head[ETHERNET] >> 4 != 4 {
        return VERSION;
    }
    let Some(header) = packet.get(..header_length).filter(|_| header_length >= 20) else {
        return HEADER_LENGTH;
    };
    if total < header_length || total > packet.len() {
        return TOTAL_LENGTH;
    }
    if wire::checksum::checksum(header) != 0 {
        return CHECKSUM;
    }
    if head[26] == 0 || head[26] == 127 || head[26] >= 224 {
        return MARTIAN_SOURCE;
    }
    OPTIONS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, run_step, run_step_on};

    fn with(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut frame = FrameBuilder::ip4().udp(1, 2, b"payload").build();
        change(&mut frame);
        FrameBuilder::fix_ip4_checksum(&mut frame);
        frame
    }

    #[test]
    fn each_fault_has_its_own_output() {
        let good = FrameBuilder::ip4().udp(1, 2, b"payload").build();
        let mut checksum = good.clone();
        checksum[24] ^= 1;
        let frames = [
            good.clone(),
            with(|f| f[14] = 0x65),
            with(|f| f[14] = 0x44),
            with(|f| f[14] = 0x4f),
            with(|f| f[16..18].copy_from_slice(&19u16.to_be_bytes())),
            with(|f| f[16..18].copy_from_slice(&36u16.to_be_bytes())),
            checksum,
            with(|f| f[26] = 0),
            with(|f| f[26] = 127),
            with(|f| f[26] = 224),
            with(|f| f[26] = 255),
            FrameBuilder::ip4().options(&[1, 1, 1, 0]).udp(1, 2, b"x").build(),
            with(|f| f[26] = 223),
        ];
        let (result, _) = run_step(&mut Ip4Validate, &frames);
        assert_eq!(result["ok"], [0, 12]);
        assert_eq!(result["ip4-version"], [1]);
        assert_eq!(result["ip4-header-length"], [2, 3]);
        assert_eq!(result["ip4-total-length"], [4, 5]);
        assert_eq!(result["ip4-checksum"], [6]);
        assert_eq!(result["ip4-martian-source"], [7, 8, 9, 10]);
        assert_eq!(result["ip4-options"], [11]);
    }

    #[test]
    fn a_host_without_address_is_heard_by_the_host_interface() {
        let to_all = |f: &mut Vec<u8>| f[26..34].copy_from_slice(&[0, 0, 0, 0, 255, 255, 255, 255]);
        let frames = [
            with(to_all),
            with(|f| f[26..30].fill(0)),
            with(|f| {
                to_all(f);
                f[29] = 1;
            }),
            with(|f| {
                to_all(f);
                f.push(0xee);
            }),
        ];
        let (result, _) = run_step(&mut Ip4Validate, &frames);
        assert_eq!(result["ip4-martian-source"], [0, 1, 2, 3], "nobody to hear it");
        let (result, batch) =
            run_step_on(&mut Ip4Validate, &frames, |batch| batch.in_port_info.host = true);
        assert_eq!(result["local"], [0, 3]);
        assert_eq!(result["ip4-martian-source"], [1, 2]);
        assert_eq!(batch.frame(3).len() + 1, frames[3].len(), "padding is cut off");
    }

    #[test]
    fn options_are_part_of_the_checksum() {
        let mut frame = FrameBuilder::ip4().options(&[1, 1, 1, 0]).build();
        frame[34] ^= 0xff;
        let (result, _) = run_step(&mut Ip4Validate, &[frame]);
        assert_eq!(result["ip4-checksum"], [0]);
    }

    #[test]
    fn padding_is_cut_off() {
        let good = FrameBuilder::ip4().udp(1, 2, b"x").build();
        let mut padded = good.clone();
        padded.resize(60, 0xee);
        let (result, batch) = run_step(&mut Ip4Validate, &[padded]);
        assert_eq!(result["ok"], [0]);
        assert_eq!(batch.frame(0), good);
    }

    proptest::proptest! {
        /// The fast check and the check by check one agree on any bytes.
        #[test]
        fn fast_and_slow_checks_agree(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 34..80),
            plain in proptest::bool::ANY,
            fix in proptest::bool::ANY,
        ) {
            let mut frame = bytes;
            if plain {
                frame[14] = 0x45;
                let total = (frame.len() - 14) as u16;
                frame[16..18].copy_from_slice(&total.to_be_bytes());
            }
            if fix && usize::from(frame[14] & 0xf) * 4 + 14 <= frame.len() {
                FrameBuilder::fix_ip4_checksum(&mut frame);
            }
            let (result, _) = run_step(&mut Ip4Validate, std::slice::from_ref(&frame));
            let slow = OUTPUTS[verdict(&frame)].name();
            let expected = if slow == "ip4-options" && frame[14] == 0x45 { "ok" } else { slow };
            proptest::prop_assert_eq!(&result[expected], &[0usize]);
        }
    }
}
