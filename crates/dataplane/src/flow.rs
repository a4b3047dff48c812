//! The flow hash of a packet, which selects among equal-cost paths.
//!
//! All packets of a flow must have the same hash, or they overtake each other on paths of different
//! length (RFC 2992). The hash covers addresses and protocol, and the ports of TCP, UDP, SCTP and
//! DCCP if the packet is not a fragment: later fragments have no ports. IPv6 extension headers are
//! not parsed; packets with them are hashed by addresses and protocol.
//!
//! A seed per router prevents routers in sequence from selecting alike (RFC 6438 calls the result
//! polarisation).
//!
//! Paths may be selected by other fields ([`FlowFields`]); bonds always use those above.

mod fields;

pub use fields::FlowFields;

use wire::ip::{PROTOCOL_TCP as TCP, PROTOCOL_UDP as UDP};

use crate::head::{ETHERNET, HEAD, bytes};

/// Bytes of a frame that [`FlowHash::of_plain_ip4`] reads.
pub(crate) const PLAIN_IP4: usize = ETHERNET + 24;

/// Computes flow hashes with the router's seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash {
    seed: u64,
    fields: FlowFields,
}

impl FlowHash {
    /// Hashes with this seed; routers should differ in it.
    pub fn new(seed: u64) -> Self {
        Self { seed, fields: FlowFields::default() }
    }

    /// The same with other fields for the selection of a path.
    #[must_use]
    pub fn with_fields(self, fields: FlowFields) -> Self {
        Self { fields, ..self }
    }

    /// Returns true if paths are selected by [`Self::of_packet`], which costs less.
    pub(crate) fn is_usual(&self) -> bool {
        self.fields == FlowFields::default()
    }

    /// The hash of an IP packet by which its path is selected; 0 unless it is IPv4 or IPv6.
    pub fn of_path(&self, packet: &[u8]) -> u32 {
        if self.is_usual() { self.of_packet(packet) } else { self.of_fields(packet) }
    }

    /// The flow hash of an Ethernet frame; 0 unless it is IPv4 or IPv6.
    pub fn of_frame(&self, frame: &[u8]) -> u32 {
        frame.get(ETHERNET..).map_or(0, |packet| self.of_packet(packet))
    }

    /// The flow hash of an untagged frame of IPv4 with TCP or UDP, without options and no fragment; `None` for others.
    /// The frame has [`PLAIN_IP4`] bytes or more.
    #[inline(always)]
    pub(crate) fn of_plain_ip4(&self, head: &[u8; HEAD]) -> Option<u32> {
        // Ethertype, version and header length; the bits of fragments, and those that neither protocol has.
        const KIND: (u32, u32) =
            (u32::from_le_bytes([8, 0, 0x45, 0]), u32::from_le_bytes([0xff, 0xff, 0xff, 0]));
        const OTHER: u64 = u64::from_le_bytes([0, 0, 0, 0, 0x3f, 0xff, 0, 0xc0]);
        const PROTOCOLS: u64 = 1 << TCP | 1 << UDP;
        let kind = u32::from_le_bytes(bytes::<12, 4>(head)) & KIND.1 ^ KIND.0;
        let word = u64::from_le_bytes(bytes::<{ ETHERNET + 2 }, 8>(head));
        let protocol = word >> 56;
        if u64::from(kind) | word & OTHER != 0 || PROTOCOLS >> (protocol & 63) & 1 == 0 {
            return None;
        }
        let addresses = u64::from_be_bytes(bytes::<{ ETHERNET + 12 }, 8>(head));
        let ports = u32::from_be_bytes(bytes::<{ ETHERNET + 20 }, 4>(head));
        Some(self.mix(&[addresses, protocol << 32 | u64::from(ports)]))
    }

    /// The flow hash of an IP packet; 0 unless it is IPv4 or IPv6.
    pub fn of_packet(&self, packet: &[u8]) -> u32 {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => self.of_ip4(packet),
            Some(6) => self.of_ip6(packet),
            _ => 0,
        }
    }

    /// The hash of the addresses of an IP packet; 0 unless it is IPv4 or IPv6.
    pub(crate) fn of_addresses(&self, packet: &[u8]) -> u32 {
        let addresses = match packet.first().map(|byte| byte >> 4) {
            Some(4) => packet.get(12..20),
            Some(6) => packet.get(8..40),
            _ => None,
        };
        addresses.map_or(0, |addresses| self.of_bytes(addresses))
    }

    /// The hash of these bytes.
    pub(crate) fn of_bytes(&self, bytes: &[u8]) -> u32 {
        let state = self.seed ^ 0x9e37_79b9_7f4a_7c15;
        let word = |chunk: &[u8]| chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        (bytes.chunks(8).fold(state, |state, chunk| fold(state, word(chunk))) >> 32) as u32
    }

    fn of_ip4(&self, packet: &[u8]) -> u32 {
        let Some(header) = packet.first_chunk::<20>() else { return 0 };
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
        let ports =
            if fragment { 0 } else { ports(packet, header[9], usize::from(header[0] & 0xf) * 4) };
        let addresses = read_u64(&header[12..20]);
        self.mix(&[addresses, u64::from(header[9]) << 32 | u64::from(ports)])
    }

    fn of_ip6(&self, packet: &[u8]) -> u32 {
        let Some(header) = packet.first_chunk::<40>() else { return 0 };
        let ports = ports(packet, header[6], 40);
        let words = [
            read_u64(&header[8..16]),
            read_u64(&header[16..24]),
            read_u64(&header[24..32]),
            read_u64(&header[32..40]),
            u64::from(header[6]) << 32 | u64::from(ports),
        ];
        self.mix(&words)
    }

    #[inline(always)]
    fn mix(&self, words: &[u64]) -> u32 {
        let state = self.seed ^ 0x9e37_79b9_7f4a_7c15;
        (words.iter().fold(state, |state, &word| fold(state, word)) >> 32) as u32
    }
}

/// Multiplies and folds a word into a hash, as wyhash does; the upper half of a product depends on all bits.
#[inline]
pub(crate) fn fold(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * 0xa076_1d64_78bd_642f;
    (product as u64) ^ (product >> 64) as u64 ^ 0xe703_7ed1_a0b4_28db
}

fn read_u64(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |chunk| u64::from_be_bytes(*chunk))
}

/// Source and destination port; 0 if the protocol has none or the packet is too short.
fn ports(packet: &[u8], protocol: u8, at: usize) -> u32 {
    const DCCP: u8 = 33;
    const SCTP: u8 = 132;
    if !matches!(protocol, TCP | UDP | DCCP | SCTP) {
        return 0;
    }
    let bytes = packet.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FrameBuilder;

    const HASH: FlowHash = FlowHash {
        seed: 1,
        fields: FlowFields { ports: true, flow_label: false, inner: false, symmetric: false },
    };

    fn udp(port: u16) -> Vec<u8> {
        FrameBuilder::ip4().udp(port, 53, b"x").build()
    }

    #[test]
    fn ports_count_and_the_rest_of_the_packet_does_not() {
        let mut other = udp(1000);
        let end = other.len() - 1;
        other[end] ^= 0xff;
        other[18] ^= 0xff;
        assert_eq!(HASH.of_frame(&udp(1000)), HASH.of_frame(&other));
        assert_ne!(HASH.of_frame(&udp(1000)), HASH.of_frame(&udp(1001)));
        assert_ne!(HASH.of_frame(&udp(1000)), FlowHash::new(2).of_frame(&udp(1000)));
    }

    #[test]
    fn all_fragments_of_a_flow_stay_together() {
        let mut first = udp(1000);
        first[20] = 0x20;
        let mut second = udp(4242);
        second[20..22].copy_from_slice(&[0, 185]);
        assert_eq!(HASH.of_frame(&first), HASH.of_frame(&second));
    }

    #[test]
    fn ip6_ports_count() {
        let udp = |port| FrameBuilder::ip6().udp(port, 53, b"x").build();
        assert_eq!(HASH.of_frame(&udp(7)), HASH.of_frame(&udp(7)));
        assert_ne!(HASH.of_frame(&udp(7)), HASH.of_frame(&udp(8)));
    }

    #[test]
    fn plain_packets_are_known_by_their_first_bytes() {
        let mut frames = vec![udp(1000), FrameBuilder::ip4().protocol(6).payload(&[7; 20]).build()];
        for (at, value) in [(12, 0x81), (14, 0x46), (14, 0x65), (20, 0x20), (21, 1), (23, 1)] {
            let mut frame = udp(1000);
            frame[at] = value;
            frames.push(frame);
        }
        let plain_hash = |frame: &Vec<u8>| {
            let mut head = [7; HEAD];
            head[..frame.len()].copy_from_slice(frame);
            HASH.of_plain_ip4(&head)
        };
        let plain: Vec<_> = frames.iter().map(plain_hash).collect();
        let of_any = |at: usize| Some(HASH.of_frame(&frames[at]));
        assert_eq!(plain[..2], [of_any(0), of_any(1)]);
        assert_eq!(plain[2..], [None; 6]);
        let mut unfragmented = udp(1000);
        unfragmented[20] = 0x40;
        assert_eq!(plain_hash(&unfragmented), plain[0], "that no router may fragment");
    }

    #[test]
    fn any_bytes_have_a_hash() {
        for len in 0..64 {
            for first in [0x45, 0x4f, 0x60, 0xff] {
                let mut packet = vec![6; len];
                packet.iter_mut().take(1).for_each(|byte| *byte = first);
                HASH.of_packet(&packet);
            }
        }
    }
}
