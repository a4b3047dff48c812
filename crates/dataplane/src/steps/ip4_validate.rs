//! `ip4-validate`: checks IPv4 headers.
//!
//! Takes frames with Ethertype IPv4 and at least 20 bytes after the Ethernet header.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | valid |
//! | drop `ip4-version` | version is not 4 |
//! | drop `ip4-header-length` | IHL below 5, or the header is longer than the frame |
//! | drop `ip4-total-length` | total length below the header's, or beyond the frame in a header that is wrong otherwise too |
//! | punt `truncated` | total length beyond the frame, the rest of the header correct |
//! | drop `ip4-checksum` | header checksum wrong, according to the device or the step's own sum |
//! | punt `local` | 0.0.0.0 to 255.255.255.255, on a port with a host interface or a DHCP relay agent |
//! | drop `ip4-martian-source` | source 0/8 (0.0.0.0 included), 127/8, 224/4, 240/4 (of these only 255.255.255.255 if the configuration accepts the range) |
//! | drop `own-source` | source is an address of the router; not on interfaces that are [`TRANSLATED`] |
//! | drop `broadcast-source` | source is the broadcast address of a network of the ingress port |
//!
//! Sets [`Batch::options`].
//!
//! The checks are those of RFC 1812 5.2.2 in its order; a packet failing several is counted once,
//! under the first. Martian sources, the router's own addresses (`own.rs`) and broadcast addresses:
//! RFC 1812 5.3.7. A host that has no address yet may send from 0.0.0.0 (RFC 1122 3.2.1.3 a), as
//! DHCP clients do (RFC 2131 4.1): such packets are for a server or relay on the machine. 240/4 is
//! "reserved for future use" (RFC 1112 4), and RFC 1812 4.2.2.11 has a router discard it unless
//! configured otherwise (`turnpike.forwarding { class_e = true }`). Hints decide which sources are
//! examined, so the setting costs a packet nothing.
//!
//! If the device checks header checksums (`offloads.rx_checksum`), its result is used for packets
//! without options that are not fragments; all others, and those without a result, are added up
//! here. Bytes after the total length (link padding) are cut off.

use std::net::IpAddr;
use std::sync::Arc;

use wire::ip::{IPV4_MIN_LEN, Ipv4Header};
use zerocopy::FromBytes;

use crate::batch::{Batch, ETHERNET, HEAD};
use crate::features::Feature;
use crate::graph::{Output, Outputs, Step};
use crate::head::{bytes, ip4};
use crate::mask::Mask;
use crate::own::{Hints, OwnAddresses, Owner};
use crate::reason::{DropReason, PuntReason};

/// Interfaces with a DHCP relay agent for IPv4, which hears hosts without an address.
pub const DHCP_RELAY: Feature = Feature::number("dhcp_relay4", 9);

/// Interfaces whose packets the kernel's flows have translated already: their sources may be the router's own.
pub const TRANSLATED: Feature = Feature::number("translated", 14);

const OK: usize = 0;
const VERSION: usize = 1;
const HEADER_LENGTH: usize = 2;
const TOTAL_LENGTH: usize = 3;
const CHECKSUM: usize = 4;
const MARTIAN_SOURCE: usize = 5;
const NO_ADDRESS_YET: usize = 6;
const TRUNCATED: usize = 7;
const OWN_SOURCE: usize = 8;
const BROADCAST_SOURCE: usize = 9;

pub(super) const OUTPUTS: &[Output] = &[
    Output::next("ok"),
    Output::Drop(DropReason::Ip4Version),
    Output::Drop(DropReason::Ip4HeaderLength),
    Output::Drop(DropReason::Ip4TotalLength),
    Output::Drop(DropReason::Ip4Checksum),
    Output::Drop(DropReason::Ip4MartianSource),
    Output::Punt(PuntReason::Local),
    Output::Punt(PuntReason::Truncated),
    Output::Drop(DropReason::OwnSource),
    Output::Drop(DropReason::BroadcastSource),
];

/// See the module's documentation.
#[derive(Debug)]
pub struct Ip4Validate {
    own: Arc<OwnAddresses>,
}

impl Ip4Validate {
    /// Uses these as the router's own addresses.
    pub fn new(own: &Arc<OwnAddresses>) -> Self {
        Self { own: own.clone() }
    }
}

impl Step for Ip4Validate {
    fn outputs(&self) -> &'static [Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        // Nearly all packets pass the checks of a plain header; only the others are examined for the reason.
        let said = batch.checksum_good() | batch.checksum_bad();
        let hints = &self.own.ip4;
        let [plain, padded] = if (said & input).is_empty() {
            input.sort(|i| plain_header::<false>(hints, batch.head(i), batch.len(i)))
        } else {
            sort_checked(hints, batch, input)
        };
        out[OK] = plain;
        batch.options = batch.options.without(input);
        let (bad, class_e) = (batch.checksum_bad(), self.own.class_e());
        for i in input.without(plain).slots() {
            let verdict = verdict(batch.frame(i), batch.len(i), bad.has(i), class_e);
            let leaves = match verdict {
                OK => self.owned(batch, i).unwrap_or(OK),
                _ => verdict,
            };
            out[leaves] |= Mask::when(true, i);
            batch.options |= Mask::when(leaves == OK && batch.ip4(i).version_ihl != PLAIN, i);
        }
        if !out[MARTIAN_SOURCE].is_empty() {
            out[NO_ADDRESS_YET] = without_address(batch, out[MARTIAN_SOURCE]);
            out[MARTIAN_SOURCE] = out[MARTIAN_SOURCE].without(out[NO_ADDRESS_YET]);
        }
        for i in (padded & (out[OK] | out[NO_ADDRESS_YET])).slots() {
            let end = ETHERNET + total_length(batch.head(i));
            batch.trim(i, end);
        }
    }
}

impl Ip4Validate {
    /// Returns the output for a packet whose source no host on the link may use.
    fn owned(&self, batch: &Batch, slot: usize) -> Option<usize> {
        if batch.info(slot).features.has(TRANSLATED) {
            return None;
        }
        let source = batch.ip4(slot).source();
        let owner = self.own.owner(IpAddr::V4(source), batch.interface(slot))?;
        Some(if owner == Owner::Router { OWN_SOURCE } else { BROADCAST_SOURCE })
    }
}

/// Version 4 and a header of 20 bytes, without options.
const PLAIN: u8 = 0x45;

/// Sorts packets some of which have a checksum result of the device. A header that the device found
/// wrong is not plain.
#[inline(never)]
fn sort_checked(hints: &Hints, batch: &Batch, input: Mask) -> [Mask; 2] {
    let good = input & batch.checksum_good();
    let [known, known_padded] =
        good.sort(|i| plain_header::<true>(hints, batch.head(i), batch.len(i)));
    // Besides packets without a result there are fragments, whose result is not used.
    let rest = input.without(known);
    let [plain, padded] = rest.sort(|i| plain_header::<false>(hints, batch.head(i), batch.len(i)));
    let believed = rest.filter(|i| is_believed(batch.head(i))) & batch.checksum_bad();
    [known | plain.without(believed), known_padded | padded]
}

/// Returns true if the device's checksum result is used: no options and no fragment.
#[inline(always)]
fn is_believed(head: &[u8; HEAD]) -> bool {
    (ip4(head).version_ihl == PLAIN) & !ip4(head).is_fragment()
}

fn total_length(head: &[u8; HEAD]) -> usize {
    usize::from(ip4(head).total_length.get())
}

/// Returns two flags: true if the header is a valid one without options and from an ordinary source
/// that is not the router's; true if the frame has bytes after the packet. Errors are collected in
/// numbers that are 0 if there are none. `CHECKED`: the device found the checksum correct, which is
/// used if the packet is not a fragment.
#[inline(always)]
fn plain_header<const CHECKED: bool>(hints: &Hints, head: &[u8; HEAD], len: usize) -> [bool; 2] {
    let total = total_length(head) as i32;
    let beyond_header = total - 20;
    let behind = len as i32 - ETHERNET as i32 - total;
    let lengths = (beyond_header | behind) < 0;
    let version = ip4(head).version_ihl ^ PLAIN;
    let [first, .., last] = ip4(head).source_address;
    let source = hints.of(first, last);
    let right = if CHECKED { is_believed(head) } else { plain_checksum_ok(head) };
    [(version | source == 0) & !lengths & right, behind > 0]
}

/// RFC 1071 over the 20 bytes of a header without options: the sum of a valid header, its checksum included, is
/// all ones. The order of bytes does not matter (RFC 1071 2.B), nor the size of the words added, as long as
/// each addition's carry is added by the next: 2^16, 2^32 and 2^64 are all 1 more than a multiple of 65535.
/// Only zeros have the sum 0.
#[inline(always)]
fn plain_checksum_ok(head: &[u8; HEAD]) -> bool {
    let (first, second) = (bytes::<14, 8>(head), bytes::<22, 8>(head));
    let last = u32::from_ne_bytes(bytes::<30, 4>(head));
    let (sum, carry) = u64::from_ne_bytes(first).overflowing_add(u64::from_ne_bytes(second));
    let (sum, carry) = (sum + u64::from(carry)).overflowing_add(last.into());
    (sum + u64::from(carry)).is_multiple_of(65535)
}

/// The hints of `own.rs` cover the first bytes of these. `class_e`: hosts may have addresses in 240/4.
const fn martian_source(source: &[u8; 4], class_e: bool) -> bool {
    let first = source[0];
    let reserved = if class_e {
        (first & 0xf0 == 224) | (u32::from_ne_bytes(*source) == u32::MAX)
    } else {
        first >= 224
    };
    (first == 0) | (first == 127) | reserved
}

/// Returns the broadcasts on their link of hosts that have no address yet.
fn without_address(batch: &Batch, packets: Mask) -> Mask {
    let mut found = Mask::EMPTY;
    for i in packets.slots() {
        let ip = batch.ip4(i);
        let asks = ip.source().is_unspecified() && ip.destination().is_broadcast();
        let info = batch.info(i);
        found |= Mask::when(asks & (info.host | info.features.has(DHCP_RELAY)), i);
    }
    found
}

/// Returns the output for a packet of `len` bytes with its Ethernet header, check by check; `frame`
/// has its headers. `bad`: the device found the header's checksum wrong. `class_e`: hosts may have addresses in 240/4.
fn verdict(frame: &[u8], len: usize, bad: bool, class_e: bool) -> usize {
    let packet = frame.get(ETHERNET..).unwrap_or_default();
    let Ok((ip, _)) = Ipv4Header::ref_from_prefix(packet) else { return TOTAL_LENGTH };
    let (header_length, total) = (ip.header_len(), usize::from(ip.total_length.get()));
    if ip.version() != 4 {
        return VERSION;
    }
    let Some(header) = packet.get(..header_length).filter(|_| header_length >= IPV4_MIN_LEN) else {
        return HEADER_LENGTH;
    };
    let believed = header_length == IPV4_MIN_LEN && !ip.is_fragment();
    let right = !(bad && believed) && wire::checksum::checksum(header) == 0;
    let martian = martian_source(&ip.source_address, class_e);
    if total < header_length {
        TOTAL_LENGTH
    } else if total > len - ETHERNET {
        // No error is sent for a header whose contents are unreliable.
        if right && !martian { TRUNCATED } else { TOTAL_LENGTH }
    } else if !right {
        CHECKSUM
    } else if martian {
        MARTIAN_SOURCE
    } else {
        OK
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::Features;
    use crate::interface::{InterfaceId, VrfId};
    use crate::port::PortId;
    use crate::testing::{
        FrameBuilder, batch_in_segments, run_on, run_step, run_step_on, whole_frame,
    };

    /// The router has 10.9.9.1/24 on the ingress port, and 192.0.2.200.
    fn step() -> Ip4Validate {
        let own = OwnAddresses::new(false);
        let nets = ["10.9.9.1/24".parse().unwrap()];
        own.publish(
            [(InterfaceId::FIRST, VrfId::DEFAULT, &nets[..])],
            [(VrfId::DEFAULT, "192.0.2.200".parse().unwrap())],
        );
        Ip4Validate::new(&Arc::new(own))
    }

    fn from(source: &str) -> Vec<u8> {
        FrameBuilder::ip4().source4(source).udp(1, 2, b"payload").build()
    }

    #[test]
    fn sources_that_nobody_may_use_are_dropped_by_name() {
        let options = FrameBuilder::ip4().source4("10.9.9.1").options(&[1; 4]).build();
        let mut wrong = from("10.9.9.1");
        wrong[24] ^= 1;
        let frames = [
            from("10.9.9.1"),
            from("10.9.9.255"),
            from("192.0.2.200"),
            from("10.7.7.1"),
            from("10.9.8.255"),
            options,
            wrong,
        ];
        let (result, _) = run_step(&mut step(), &frames);
        assert_eq!(result["own-source"], [0, 2, 5]);
        assert_eq!(result["broadcast-source"], [1]);
        assert_eq!(result["ok"], [3, 4], "their first and last bytes are alike");
        assert_eq!(result["ip4-checksum"], [6]);
        let (result, _) = run_step_on(&mut step(), &frames, |batch| {
            batch.in_port = PortId::new(1).unwrap();
        });
        assert_eq!(result["ok"], [1, 3, 4], "a host's on another network");
        let (result, _) = run_step_on(&mut step(), &frames, |batch| {
            batch.own.features = Features::NONE.with(TRANSLATED, 1);
        });
        assert_eq!(
            (&result["ok"][..], &result["ip4-checksum"][..]),
            (&[0, 1, 2, 3, 4, 5][..], &[6][..])
        );
        // The same with the device's checks.
        let say = |batch: &mut Batch| batch.burst.say(u64::MAX, 0, 0);
        let (result, _) = run_step_on(&mut step(), &frames, say);
        assert_eq!(
            (&result["own-source"][..], &result["broadcast-source"][..]),
            (&[0, 2, 5][..], &[1][..])
        );
    }

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
        let mut long_and_wrong = with(|f| f[16..18].copy_from_slice(&36u16.to_be_bytes()));
        long_and_wrong[25] ^= 4;
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
            with(|f| {
                f[16..18].copy_from_slice(&36u16.to_be_bytes());
                f[26] = 127;
            }),
            long_and_wrong,
        ];
        let (result, batch) = run_step(&mut step(), &frames);
        assert_eq!(result["ok"], [0, 11, 12]);
        assert_eq!(result["ip4-version"], [1]);
        assert_eq!(result["ip4-header-length"], [2, 3]);
        assert_eq!(result["ip4-total-length"], [4, 13, 14]);
        assert_eq!(result["truncated"], [5]);
        assert_eq!(result["ip4-checksum"], [6]);
        assert_eq!(result["ip4-martian-source"], [7, 8, 9, 10]);
        assert_eq!(batch.options, Mask(1 << 11));
    }

    #[test]
    fn class_e_sources_pass_if_the_router_is_told_so() {
        let frames = [
            with(|f| f[26] = 239),
            with(|f| f[26] = 240),
            with(|f| f[26] = 255),
            with(|f| f[26..30].fill(255)),
            with(|f| f[26] = 127),
            with(|f| f[26] = 0),
            with(|f| {
                f[14] = 0x46;
                f[26] = 250;
            }),
        ];
        let mut step = step();
        for _ in 0..2 {
            let (result, _) = run_step(&mut step, &frames);
            assert_eq!(result["ip4-martian-source"], [0, 1, 2, 3, 4, 5, 6]);
            step.own.accept_class_e(true);
            let (result, _) = run_step(&mut step, &frames);
            assert_eq!(result["ok"], [1, 2, 6]);
            assert_eq!(result["ip4-martian-source"], [0, 3, 4, 5]);
            step.own.accept_class_e(false);
        }
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
        let (result, _) = run_step(&mut step(), &frames);
        assert_eq!(result["ip4-martian-source"], [0, 1, 2, 3], "nobody to hear it");
        let (result, batch) = run_step_on(&mut step(), &frames, |batch| batch.own.host = true);
        assert_eq!(result["local"], [0, 3]);
        assert_eq!(result["ip4-martian-source"], [1, 2]);
        assert_eq!(batch.frame(3).len() + 1, frames[3].len(), "padding is cut off");
        let relays = |batch: &mut Batch| batch.own.features = Features::NONE.with(DHCP_RELAY, 1);
        let (result, _) = run_step_on(&mut step(), &frames, relays);
        assert_eq!(result["local"], [0, 3], "by the relay agent");
    }

    /// Good, bad, and both with a result of the device that is not used: options, fragments.
    #[test]
    fn a_device_s_word_is_taken_for_plain_headers_only() {
        let good = FrameBuilder::ip4().udp(1, 2, b"payload").build();
        let broken = |frame: &[u8]| {
            let mut frame = frame.to_vec();
            frame[24] ^= 1;
            frame
        };
        let options = FrameBuilder::ip4().options(&[1, 1, 1, 0]).udp(1, 2, b"x").build();
        let first = with(|f| f[20] = 0x20);
        let last = with(|f| f[21] = 1);
        let dont = with(|f| f[20] = 0x40);
        let whole = [&good, &options, &first, &last, &dont];
        let mut frames: Vec<Vec<u8>> = whole.iter().map(|frame| frame.to_vec()).collect();
        frames.extend(whole.iter().map(|frame| broken(frame)));
        let run = |good, bad| {
            let say = |batch: &mut Batch| batch.burst.say(good, bad, 0);
            run_step_on(&mut step(), &frames, say).0
        };
        let none: [usize; 0] = [];
        let silent = run(0, 0);
        assert_eq!(silent["ok"], [0, 1, 2, 3, 4]);
        assert_eq!(silent["ip4-checksum"], [5, 6, 7, 8, 9]);
        let all_good = run(u64::MAX, 0);
        assert_eq!(all_good["ok"], [0, 1, 2, 3, 4, 5, 9], "its word, where it is taken");
        assert_eq!(all_good["ip4-checksum"], [6, 7, 8]);
        let all_bad = run(0, u64::MAX);
        assert_eq!(all_bad["ok"], [1, 2, 3]);
        assert_eq!(all_bad["ip4-checksum"], [0, 4, 5, 6, 7, 8, 9]);
        // Each packet by its own result.
        let mixed = run(0b00_0010_0000, 0b00_0000_0001);
        assert_eq!(mixed["ok"], [1, 2, 3, 4, 5]);
        assert_eq!(mixed["ip4-checksum"], [0, 6, 7, 8, 9]);
        assert_eq!(mixed["ip4-total-length"], none);
    }

    #[test]
    fn other_faults_come_before_the_device_s_word() {
        let frames = [with(|f| f[14] = 0x65), with(|f| f[14] = 0x44), with(|f| f[17] = 19)];
        for (good, bad) in [(0, 0), (u64::MAX, 0), (0, u64::MAX)] {
            let say = |batch: &mut Batch| batch.burst.say(good, bad, 0);
            let (result, _) = run_step_on(&mut step(), &frames, say);
            assert_eq!(result["ip4-version"], [0]);
            assert_eq!(result["ip4-header-length"], [1]);
            assert_eq!(result["ip4-total-length"], [2]);
        }
    }

    #[test]
    fn a_packet_in_several_buffers_has_its_whole_length() {
        let frame = FrameBuilder::ip4().payload(&[7; 3000]).build();
        let options = FrameBuilder::ip4().options(&[1, 1, 1, 0]).payload(&[7; 3000]).build();
        let mut padded = frame.clone();
        padded.extend([0xee; 5]);
        let frames = [frame.clone(), options, padded, frame[..3000].to_vec()];
        let mut batch = batch_in_segments(&frames, 128);
        let result = run_on(&mut step(), &mut batch);
        assert_eq!(result["ok"], [0, 1, 2]);
        assert_eq!(batch.options, Mask(1 << 1));
        assert_eq!(result["truncated"], [3]);
        assert_eq!(batch.len(2), frame.len(), "padding is cut off");
        assert_eq!(whole_frame(&mut batch, 2), frame);
    }

    #[test]
    fn options_are_part_of_the_checksum() {
        let mut frame = FrameBuilder::ip4().options(&[1, 1, 1, 0]).build();
        frame[34] ^= 0xff;
        let (result, _) = run_step(&mut step(), &[frame]);
        assert_eq!(result["ip4-checksum"], [0]);
    }

    #[test]
    fn padding_is_cut_off() {
        let good = FrameBuilder::ip4().udp(1, 2, b"x").build();
        let mut padded = good.clone();
        padded.resize(60, 0xee);
        let (result, batch) = run_step(&mut step(), &[padded]);
        assert_eq!(result["ok"], [0]);
        assert_eq!(batch.frame(0), good);
    }

    proptest::proptest! {
        /// The fast check and the individual checks agree on any bytes.
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
            let (result, _) = run_step(&mut step(), std::slice::from_ref(&frame));
            // The router's own addresses have a separate test.
            proptest::prop_assume!(frame[26..29] != [10, 9, 9] && frame[26..30] != [192, 0, 2, 200]);
            let expected = OUTPUTS[verdict(&frame, frame.len(), false, false)].name();
            proptest::prop_assert_eq!(&result[expected], &[0usize]);
        }
    }
}
