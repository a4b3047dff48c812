//! The Internet checksum: full, incremental, and completion of partial ones.
//!
//! The sum is the one's complement sum of 16-bit words, which is arithmetic modulo 65535 with two
//! names for zero, 0x0000 and 0xffff (RFC 1071). A sum of non-zero words never comes out as
//! 0x0000 but as 0xffff; this asymmetry decides several questions below.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use crate::ip::{
    IPV4_MIN_LEN, IPV6_LEN, Ipv4Header, Ipv6ExtensionHeader, Ipv6Header,
    PROTOCOL_DESTINATION_OPTIONS, PROTOCOL_HOP_BY_HOP, PROTOCOL_TCP, PROTOCOL_UDP,
};
use crate::l4::{TCP_MIN_LEN, UDP_LEN};

/// A sum under construction.
///
/// ```
/// # use wire::checksum::Checksum;
/// // The example of RFC 1071, 3.
/// let mut sum = Checksum::new();
/// sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
/// assert_eq!(sum.folded(), 0xddf2);
/// assert_eq!(sum.finish(), !0xddf2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    /// Sum of 32-bit words in the machine's byte order: byte order does not matter until the end
    /// (RFC 1071, 2 (B)), and neither does the word size (2 (C)). 2^32 words fit without overflow.
    sum: u64,
    /// True if an odd number of bytes was added: the next byte is the low half of a word.
    odd: bool,
}

impl Checksum {
    /// Creates an empty sum.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes; each call continues the previous one, also after an odd number of bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let sum = sum_native(bytes);
        // After an odd byte every byte is in the other half of its word; swapping the halves of the sum is the
        // same as swapping them in each word (RFC 1071, 2 (B)).
        self.sum += if self.odd { u64::from(fold(sum).swap_bytes()) } else { sum };
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Adds one 16-bit word; only meaningful while an even number of bytes has been added.
    pub fn add_u16(&mut self, word: u16) {
        self.sum += u64::from(word.to_be());
    }

    /// Returns the sum, not inverted.
    pub fn folded(self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// Returns the checksum: the inverted sum.
    pub fn finish(self) -> u16 {
        !self.folded()
    }
}

/// Sums the bytes as words in the machine's byte order; an odd last byte is padded with zero.
fn sum_native(bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(4);
    let mut sum: u64 = 0;
    for chunk in &mut chunks {
        sum += u64::from(u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
    }
    let mut last = [0; 4];
    let rest = chunks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

/// Folds the carries back in until 16 bits are left.
fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Computes the Internet checksum of `bytes` (RFC 1071): 0 if they contain their own, correct checksum.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = Checksum::new();
    sum.add(bytes);
    sum.finish()
}

/// Updates a checksum after one 16-bit word covered by it changed from `old` to `new`.
///
/// RFC 1624, equation 3. With C the sum of the words and HC = ~C the checksum field:
///
/// ```text
/// C' = C + (-m) + m' = C + ~m + m'        (one's complement: -m is ~m)
/// HC' = ~C' = ~(~HC + ~m + m')
/// ```
///
/// Equation 4 (HC - ~m - m') would give 0xffff where a full computation gives 0x0000; this one
/// agrees with the full computation, because the sum of non-zero words is never 0x0000.
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// Sums the IPv4 pseudo-header (RFC 768, RFC 9293, 3.1); `length` is that of the transport header and data.
pub fn pseudo_header_v4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    length: u16,
) -> Checksum {
    let mut sum = Checksum::new();
    sum.add(&source.octets());
    sum.add(&destination.octets());
    sum.add_u16(u16::from(protocol));
    sum.add_u16(length);
    sum
}

/// Sums the IPv6 pseudo-header (RFC 8200, 8.1); `length` is that of the upper-layer header and data.
pub fn pseudo_header_v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: u8,
    length: u32,
) -> Checksum {
    let mut sum = Checksum::new();
    sum.add(&source.octets());
    sum.add(&destination.octets());
    sum.add(&length.to_be_bytes());
    sum.add_u16(u16::from(protocol));
    sum
}

/// Result of [`complete_l4_checksum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The field held the partial sum; now it holds the checksum.
    Completed,
    /// The field did not hold the partial sum, or the checksum was right already.
    Untouched,
    /// Not a whole TCP or UDP packet: another protocol, a fragment, or inconsistent lengths.
    NotApplicable,
}

/// Completes the partial TCP or UDP checksum of an IP packet (without Ethernet header).
///
/// Virtual devices (veth, TAP, and AF_PACKET in front of them) hand over segments whose checksum the sender
/// left to its device: the field holds only the folded, *not inverted* sum of the pseudo-header. If and only
/// if the field has that value, the correct checksum is stored.
///
/// A correct packet may have that value by chance (1 in 65535). Let P be the pseudo-header's sum, S the sum
/// of header and data without the field. The packet is correct, so P + S + field = 0 (mod 65535), and the
/// completed value ~(P + S) is the field itself, modulo the two names of zero. A packet with a correct
/// checksum is therefore left as it is, and completion is idempotent. A corrupt packet is changed only when
/// its field equals P, which cannot be distinguished from a partial checksum.
///
/// A UDP field of 0, "no checksum", is never partial, since P is never 0 (it includes the protocol number). A
/// completed UDP checksum of 0 is stored as 0xffff (RFC 768, RFC 8200, 8.1). Bytes after the packet's own
/// length are neither read nor written.
pub fn complete_l4_checksum(ip_packet: &mut [u8]) -> Completion {
    let len = ip_packet.len();
    complete_l4_checksum_in_parts(ip_packet, len, std::iter::empty())
}

/// Like [`complete_l4_checksum`], for a packet of `len` bytes in several pieces of memory: the first one,
/// which has all headers up to the checksum, and the rest.
pub fn complete_l4_checksum_in_parts<'a>(
    ip_packet: &mut [u8],
    len: usize,
    rest: impl Iterator<Item = &'a [u8]>,
) -> Completion {
    let Some(segment) = find_segment(ip_packet, len) else { return Completion::NotApplicable };
    let field = segment.start + segment.checksum_offset;
    let stored = u16::from_be_bytes([ip_packet[field], ip_packet[field + 1]]);
    if stored != segment.pseudo_header.folded() {
        return Completion::Untouched;
    }
    let mut sum = segment.pseudo_header;
    let first = ip_packet.len().min(segment.end);
    sum.add(&ip_packet[segment.start..first]);
    let mut missing = segment.end - first;
    for part in rest {
        let part = &part[..part.len().min(missing)];
        sum.add(part);
        missing -= part.len();
    }
    if sum.folded() == 0xffff {
        return Completion::Untouched;
    }
    // The sum contains the field's own value: subtract it.
    let mut right = update(sum.finish(), stored, 0);
    if right == 0 && segment.udp {
        right = 0xffff;
    }
    ip_packet[field..field + 2].copy_from_slice(&right.to_be_bytes());
    Completion::Completed
}

/// A whole TCP or UDP segment inside an IP packet.
struct Segment {
    start: usize,
    end: usize,
    checksum_offset: usize,
    udp: bool,
    pseudo_header: Checksum,
}

/// Finds the segment of a packet of `len` bytes that begins with `packet`.
fn find_segment(packet: &[u8], len: usize) -> Option<Segment> {
    match packet.first()? >> 4 {
        4 => find_segment_v4(packet, len),
        6 => find_segment_v6(packet, len),
        _ => None,
    }
}

fn find_segment_v4(packet: &[u8], len: usize) -> Option<Segment> {
    let (header, _) = Ipv4Header::ref_from_prefix(packet).ok()?;
    let start = header.header_len();
    let end = usize::from(header.total_length.get());
    if start < IPV4_MIN_LEN || start > end || end > len || header.is_fragment() {
        return None;
    }
    let (end, checksum_offset) = bounds(packet, start, end, header.protocol)?;
    let length = u16::try_from(end - start).ok()?;
    let pseudo_header =
        pseudo_header_v4(header.source(), header.destination(), header.protocol, length);
    let udp = header.protocol == PROTOCOL_UDP;
    Some(Segment { start, end, checksum_offset, udp, pseudo_header })
}

fn find_segment_v6(packet: &[u8], len: usize) -> Option<Segment> {
    let (header, _) = Ipv6Header::ref_from_prefix(packet).ok()?;
    let end = IPV6_LEN + usize::from(header.payload_length.get());
    if end > len {
        return None;
    }
    let packet = &packet[..packet.len().min(end)];
    let mut protocol = header.next_header;
    let mut start = IPV6_LEN;
    // Options may precede it. A fragment has no whole segment; with a routing header the pseudo-header's
    // destination is not the one in this header: both end the walk.
    while protocol == PROTOCOL_HOP_BY_HOP || protocol == PROTOCOL_DESTINATION_OPTIONS {
        let (extension, _) = Ipv6ExtensionHeader::ref_from_prefix(packet.get(start..)?).ok()?;
        protocol = extension.next_header;
        start += extension.header_len();
    }
    let (end, checksum_offset) = bounds(packet, start, end, protocol)?;
    let length = u32::try_from(end - start).ok()?;
    let pseudo_header = pseudo_header_v6(header.source(), header.destination(), protocol, length);
    Some(Segment { start, end, checksum_offset, udp: protocol == PROTOCOL_UDP, pseudo_header })
}

/// Returns the end of the segment that starts at `start` and the offset of the checksum in it; the packet
/// ends at `end`. A UDP datagram ends at its own length, which may be before the packet's end.
fn bounds(packet: &[u8], start: usize, end: usize, protocol: u8) -> Option<(usize, usize)> {
    let header = &packet[..packet.len().min(end)].get(start..)?;
    match protocol {
        PROTOCOL_TCP if header.len() >= TCP_MIN_LEN => Some((end, 16)),
        PROTOCOL_UDP if header.len() >= UDP_LEN => {
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            (UDP_LEN..=end - start).contains(&length).then_some((start + length, 6))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word: the oracle for the fast sum.
    fn slow_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: a full computation gives 0x0000, equation 4 would give 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn a_header_from_a_capture() {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&header), 0);
    }

    proptest! {
        #[test]
        fn the_fast_sum_is_the_slow_one(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(checksum(&bytes), !slow_sum(&bytes));
        }

        #[test]
        fn pieces_sum_up_to_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cuts in prop::collection::vec(0..200usize, 0..4),
        ) {
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let mut sum = Checksum::new();
            for pair in cuts.windows(2) {
                sum.add(&bytes[pair[0]..pair[1]]);
            }
            prop_assert_eq!(sum.folded(), slow_sum(&bytes));
        }

        #[test]
        fn an_update_is_what_a_full_computation_gives(
            mut words in prop::collection::vec(any::<u16>(), 2..20),
            index in any::<prop::sample::Index>(),
            new in any::<u16>(),
        ) {
            words[0] |= 0x4000; // a header is never all zero
            let bytes = |words: &[u16]| -> Vec<u8> {
                words.iter().flat_map(|w| w.to_be_bytes()).collect()
            };
            let before = checksum(&bytes(&words));
            let index = 1 + index.index(words.len() - 1);
            let old = std::mem::replace(&mut words[index], new);
            prop_assert_eq!(update(before, old, new), checksum(&bytes(&words)));
        }
    }

    /// An IP packet with a TCP or UDP segment, checksum field zero, and the segment's offset.
    #[derive(Clone, Debug)]
    struct Sample {
        packet: Vec<u8>,
        start: usize,
        udp: bool,
        trailer: usize,
    }

    impl Sample {
        fn field(&self) -> usize {
            self.start + if self.udp { 6 } else { 16 }
        }

        fn set(&mut self, value: u16) {
            let field = self.field();
            self.packet[field..field + 2].copy_from_slice(&value.to_be_bytes());
        }

        /// Returns the pseudo-header as bytes, so that the oracle shares no code with the module.
        fn pseudo_header(&self) -> Vec<u8> {
            let length = self.packet.len() - self.trailer - self.start;
            let protocol = if self.udp { 17 } else { 6 };
            let mut bytes = Vec::new();
            if self.packet[0] >> 4 == 4 {
                bytes.extend_from_slice(&self.packet[12..20]);
                bytes.extend_from_slice(&[0, protocol]);
                bytes.extend_from_slice(&(length as u16).to_be_bytes());
            } else {
                bytes.extend_from_slice(&self.packet[8..40]);
                bytes.extend_from_slice(&(length as u32).to_be_bytes());
                bytes.extend_from_slice(&[0, 0, 0, protocol]);
            }
            bytes
        }

        /// Computes the correct checksum, from the definition; the field must be zero.
        fn right(&self) -> u16 {
            let mut bytes = self.pseudo_header();
            bytes.extend_from_slice(&self.packet[self.start..self.packet.len() - self.trailer]);
            match !slow_sum(&bytes) {
                0 if self.udp => 0xffff,
                sum => sum,
            }
        }
    }

    prop_compose! {
        fn samples_of(v6: bool)(
            udp in any::<bool>(),
            addresses in prop::collection::vec(any::<u8>(), 32),
            options in 0usize..3,
            data in prop::collection::vec(any::<u8>(), 20..120),
            trailer in prop::collection::vec(any::<u8>(), 0..5),
        ) -> Sample {
            let mut packet = Vec::new();
            let protocol = if udp { 17 } else { 6 };
            if v6 {
                let length = options * 8 + data.len();
                packet.extend_from_slice(&[0x60, 0, 0, 0, 0, length as u8]);
                packet.extend_from_slice(&[if options > 0 { 60 } else { protocol }, 64]);
                packet.extend_from_slice(&addresses);
                for n in 1..=options {
                    packet.extend_from_slice(&[if n < options { 60 } else { protocol }, 0]);
                    packet.extend_from_slice(&[1, 4, 0, 0, 0, 0]);
                }
            } else {
                let header = 20 + options * 4;
                packet.extend_from_slice(&[0x40 | (header / 4) as u8, 0, 0]);
                packet.extend_from_slice(&[(header + data.len()) as u8, 0, 0, 0x40, 0, 64]);
                packet.extend_from_slice(&[protocol, 0, 0]);
                packet.extend_from_slice(&addresses[..8]);
                packet.extend(std::iter::repeat_n(1, options * 4));
            }
            let start = packet.len();
            packet.extend_from_slice(&data);
            if udp {
                packet[start + 4..start + 6].copy_from_slice(&(data.len() as u16).to_be_bytes());
            }
            packet.extend_from_slice(&trailer);
            let mut sample = Sample { packet, start, udp, trailer: trailer.len() };
            sample.set(0);
            sample
        }
    }

    fn samples() -> impl Strategy<Value = Sample> {
        any::<bool>().prop_flat_map(samples_of)
    }

    proptest! {
        #[test]
        fn completing_a_partial_checksum_gives_the_full_one(mut sample in samples()) {
            let right = sample.right();
            let mut want = sample.clone();
            want.set(right);
            let partial = slow_sum(&sample.pseudo_header());
            sample.set(partial);
            let done = complete_l4_checksum(&mut sample.packet);
            prop_assert_eq!(&sample.packet, &want.packet);
            prop_assert!(done == Completion::Completed || partial == right);
            // Completion is idempotent.
            prop_assert_eq!(complete_l4_checksum(&mut sample.packet), Completion::Untouched);
            prop_assert_eq!(&sample.packet, &want.packet);
        }

        #[test]
        fn a_correct_packet_stays_as_it_is(mut sample in samples()) {
            sample.set(sample.right());
            let before = sample.packet.clone();
            prop_assert_eq!(complete_l4_checksum(&mut sample.packet), Completion::Untouched);
            prop_assert_eq!(sample.packet, before);
        }

        #[test]
        fn a_correct_packet_whose_field_is_the_partial_sum_stays(mut sample in samples()) {
            // Choose the last data word such that the correct checksum is the partial sum.
            let partial = slow_sum(&sample.pseudo_header());
            let word = sample.start + 18;
            sample.packet[word..word + 2].fill(0);
            if !sample.udp {
                sample.packet[word - 2..word].fill(0);
            }
            // right = ~sum, and with the word w it is ~(sum + w) = partial: w = ~partial - sum.
            let sum = !sample.right();
            let w = fold(u64::from(!partial) + u64::from(!sum));
            sample.packet[word..word + 2].copy_from_slice(&w.to_be_bytes());
            sample.set(partial);
            let before = sample.packet.clone();
            complete_l4_checksum(&mut sample.packet);
            prop_assert_eq!(sample.packet, before);
        }

        #[test]
        fn a_corrupt_packet_is_not_repaired(mut sample in samples(), field in any::<u16>()) {
            prop_assume!(field != slow_sum(&sample.pseudo_header()));
            sample.set(field);
            let before = sample.packet.clone();
            prop_assert_eq!(complete_l4_checksum(&mut sample.packet), Completion::Untouched);
            prop_assert_eq!(sample.packet, before);
        }

        #[test]
        fn any_bytes_do_no_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            complete_l4_checksum(&mut bytes);
        }

        #[test]
        fn a_cut_packet_is_left_alone(mut sample in samples(), cut in 1usize..60) {
            sample.set(slow_sum(&sample.pseudo_header()));
            let length = sample.packet.len() - sample.trailer;
            sample.packet.truncate(length.saturating_sub(cut));
            let before = sample.packet.clone();
            prop_assert_eq!(complete_l4_checksum(&mut sample.packet), Completion::NotApplicable);
            prop_assert_eq!(sample.packet, before);
        }

        #[test]
        fn a_fragment_is_left_alone(mut sample in samples_of(false), offset in 1u16..0x3fff) {
            sample.set(slow_sum(&sample.pseudo_header()));
            sample.packet[6..8].copy_from_slice(&offset.to_be_bytes());
            let before = sample.packet.clone();
            prop_assert_eq!(complete_l4_checksum(&mut sample.packet), Completion::NotApplicable);
            prop_assert_eq!(sample.packet, before);
        }
    }

    #[test]
    fn a_tcp_field_of_all_ones_that_verifies_stays() {
        // Pseudo-header and segment both sum up to zero (0xffff): the field 0xffff is the partial
        // sum and, as the other name of zero, also right.
        let mut packet = vec![0u8; 40];
        packet[0] = 0x45;
        packet[3] = 40;
        packet[9] = PROTOCOL_TCP;
        let rest = !(u16::from(PROTOCOL_TCP) + 20);
        packet[12..14].copy_from_slice(&rest.to_be_bytes());
        packet[36..38].copy_from_slice(&[0xff, 0xff]);
        let before = packet.clone();
        assert_eq!(complete_l4_checksum(&mut packet), Completion::Untouched);
        assert_eq!(packet, before);
    }

    #[test]
    fn a_completed_udp_checksum_is_never_zero() {
        let mut packet = vec![0u8; 30];
        packet[0] = 0x45;
        packet[3] = 30;
        packet[9] = PROTOCOL_UDP;
        packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
        packet[25] = 10;
        // Pseudo-header 0x0a00 + 1 + 17 + 10, UDP length 10: this word makes the sum 0xffff.
        let partial = 0x0a00 + 1 + 17 + 10u16;
        packet[28..30].copy_from_slice(&(!(partial + 10)).to_be_bytes());
        packet[26..28].copy_from_slice(&partial.to_be_bytes());
        assert_eq!(complete_l4_checksum(&mut packet), Completion::Completed);
        assert_eq!(packet[26..28], [0xff, 0xff]);
    }

    #[test]
    fn a_udp_packet_without_checksum_stays_without() {
        let mut packet = vec![0u8; 28];
        packet[0] = 0x45;
        packet[3] = 28;
        packet[9] = PROTOCOL_UDP;
        packet[25] = 8;
        assert_eq!(complete_l4_checksum(&mut packet), Completion::Untouched);
        assert_eq!(packet[26..28], [0, 0]);
    }
}
