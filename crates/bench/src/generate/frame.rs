//! The generated frames, and their recognition.
//!
//! ```text
//!  Ethernet | IPv4 or IPv6 | UDP, to port 9 | mark 2 | run 2 | sequence 6 | time 8 | zeros
//! ```
//!
//! The 18 bytes after the UDP header are those for which the smallest Ethernet frame has room. Time
//! is the time-stamp counter's, so sender and receiver are one process. UDP over IPv4 has no
//! checksum (RFC 768: zero); over IPv6 it has one (RFC 8200, 8.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::MacAddr;

const ETHERNET: usize = 14;
const UDP: usize = 8;
/// Bytes after the UDP header.
const STAMP: usize = 18;
const MARK: u16 = 0x54b1;
/// The frame check sequence, which the device adds.
pub const FCS: usize = 4;

/// Returns the length of the smallest frame, with FCS.
pub fn smallest(six: bool) -> usize {
    (ETHERNET + ip_len(six) + UDP + STAMP + FCS).max(64)
}

fn ip_len(six: bool) -> usize {
    if six { 40 } else { 20 }
}

/// The common parts of all frames of a run.
pub struct Template {
    head: Vec<u8>,
    six: bool,
    run: u16,
}

impl Template {
    /// Creates IPv4 frames from one station to another.
    pub fn ipv4(from: MacAddr, to: MacAddr, source: Ipv4Addr, run: u16) -> Self {
        let mut head = ethernet(from, to, 0x0800);
        head.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0]);
        head.extend(source.octets());
        head.extend([0; 4]);
        Self { head, six: false, run }
    }

    /// Creates IPv6 frames from one station to another.
    pub fn ipv6(from: MacAddr, to: MacAddr, source: Ipv6Addr, run: u16) -> Self {
        let mut head = ethernet(from, to, 0x86dd);
        head.extend([0x60, 0, 0, 0, 0, 0, 17, 64]);
        head.extend(source.octets());
        head.extend([0; 16]);
        Self { head, six: true, run }
    }

    /// Fills a frame of `frame.len()` bytes (without FCS, at least [`smallest`]): the packet with
    /// this number, of this DSCP, to this destination.
    pub fn fill(&self, frame: &mut [u8], dscp: u8, destination: u128, sequence: u64, time: u64) {
        let ip = ip_len(self.six);
        let udp = ETHERNET + ip;
        frame[..udp].copy_from_slice(&self.head);
        mark(&mut frame[ETHERNET..], dscp, self.six);
        let udp_len = (frame.len() - udp) as u16;
        // The source port depends on the sequence number: many flows to one destination.
        frame[udp..udp + 2].copy_from_slice(&(1024 + (sequence % 32_768) as u16).to_be_bytes());
        frame[udp + 2..udp + 4].copy_from_slice(&9u16.to_be_bytes());
        frame[udp + 4..udp + 6].copy_from_slice(&udp_len.to_be_bytes());
        frame[udp + 6..udp + 8].fill(0);
        let stamp = &mut frame[udp + UDP..];
        stamp[0..2].copy_from_slice(&MARK.to_be_bytes());
        stamp[2..4].copy_from_slice(&self.run.to_be_bytes());
        stamp[4..10].copy_from_slice(&sequence.to_be_bytes()[2..]);
        stamp[10..18].copy_from_slice(&time.to_be_bytes());
        stamp[18..].fill(0);
        if self.six {
            finish_ipv6(frame, destination, udp_len);
        } else {
            finish_ipv4(frame, destination as u32, udp_len);
        }
    }
}

fn ethernet(from: MacAddr, to: MacAddr, ethertype: u16) -> Vec<u8> {
    [&to.0[..], &from.0[..], &ethertype.to_be_bytes()[..]].concat()
}

/// Writes a DSCP into a header whose DSCP is 0 (RFC 2474, 3).
fn mark(ip: &mut [u8], dscp: u8, six: bool) {
    if six {
        ip[0] |= dscp >> 2;
        ip[1] |= dscp << 6;
    } else {
        ip[1] = dscp << 2;
    }
}

fn finish_ipv4(frame: &mut [u8], destination: u32, udp_len: u16) {
    frame[16..18].copy_from_slice(&(udp_len + 20).to_be_bytes());
    frame[30..34].copy_from_slice(&destination.to_be_bytes());
    let checksum = wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

fn finish_ipv6(frame: &mut [u8], destination: u128, udp_len: u16) {
    frame[18..20].copy_from_slice(&udp_len.to_be_bytes());
    frame[38..54].copy_from_slice(&destination.to_be_bytes());
    fill_udp6_checksum(frame, udp_len);
}

/// Computes and stores the checksum of UDP over IPv6, in a frame whose checksum field is 0.
pub fn fill_udp6_checksum(frame: &mut [u8], udp_len: u16) {
    // The pseudo-header (RFC 8200 8.1): addresses, length, protocol.
    let mut sum = wire::checksum::Checksum::new();
    sum.add(&frame[22..54]);
    sum.add_u16(udp_len);
    sum.add_u16(17);
    sum.add(&frame[54..]);
    // RFC 8200, 8.1: a checksum of zero is sent as all ones.
    let checksum = match sum.finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    frame[60..62].copy_from_slice(&checksum.to_be_bytes());
}

/// The numbers in a generated frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The run to which it belongs.
    pub run: u16,
    /// Its number in the run, from 0; 48 bits.
    pub sequence: u64,
    /// The time-stamp counter when it was created.
    pub time: u64,
}

/// Returns the numbers of a generated frame; none for another frame.
pub fn read_stamp(frame: &[u8]) -> Option<Stamp> {
    let ip = match frame.get(12..14)? {
        [0x08, 0x00] => usize::from(frame.get(ETHERNET)? & 0xf) * 4,
        [0x86, 0xdd] => 40,
        _ => return None,
    };
    let stamp = frame.get(ETHERNET + ip + UDP..)?.first_chunk::<STAMP>()?;
    let [m0, m1, r0, r1, s @ .., _, _, _, _, _, _, _, _] = stamp;
    if u16::from_be_bytes([*m0, *m1]) != MARK {
        return None;
    }
    let sequence = s.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let time = stamp[10..].iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    Some(Stamp { run: u16::from_be_bytes([*r0, *r1]), sequence, time })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const TO: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn an_ipv4_frame_is_valid_and_reads_back() {
        let template = Template::ipv4(FROM, TO, Ipv4Addr::new(198, 18, 0, 1), 77);
        let mut frame = vec![0xee; smallest(false) - FCS];
        template.fill(&mut frame, 0, 0x0a00_0001, 0x1234_5678_9abc, 42);
        assert_eq!(frame.len(), 60);
        assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
        assert_eq!(frame[16..18], 46u16.to_be_bytes());
        assert_eq!(frame[30..34], [10, 0, 0, 1]);
        let stamp = Stamp { run: 77, sequence: 0x1234_5678_9abc, time: 42 };
        assert_eq!(read_stamp(&frame), Some(stamp));
        assert_eq!(read_stamp(&frame[..59]), None, "cut off");
    }

    #[test]
    fn an_ipv6_frame_is_valid_and_reads_back() {
        let source = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        let template = Template::ipv6(FROM, TO, source, 5);
        let mut frame = vec![0; 301];
        template.fill(&mut frame, 0, 0x2001_0db8_u128 << 96 | 2, 9, 11);
        assert_eq!(
            wire::checksum::complete_l4_checksum(&mut frame.clone()[14..]),
            wire::checksum::complete_l4_checksum(&mut frame[14..])
        );
        let mut sum = wire::checksum::Checksum::new();
        sum.add(&frame[22..54]);
        sum.add_u16((frame.len() - 54) as u16);
        sum.add_u16(17);
        sum.add(&frame[54..]);
        assert_eq!(sum.finish(), 0);
        assert_eq!(read_stamp(&frame), Some(Stamp { run: 5, sequence: 9, time: 11 }));
    }

    #[test]
    fn the_dscp_is_in_the_header() {
        for (template, least) in [
            (Template::ipv4(FROM, TO, Ipv4Addr::new(198, 18, 0, 1), 7), smallest(false)),
            (Template::ipv6(FROM, TO, "2001:2::1".parse().unwrap(), 7), smallest(true)),
        ] {
            for dscp in [0, 46, 48, 63] {
                let mut frame = vec![0; least - FCS];
                template.fill(&mut frame, dscp, 1, 2, 3);
                let ip = &frame[14..];
                let (version, class) = match ip[0] >> 4 {
                    4 => (4, ip[1]),
                    version => (version, ip[0] << 4 | ip[1] >> 4),
                };
                assert_eq!((class >> 2, class & 3), (dscp, 0));
                assert!(version == 6 || wire::checksum::checksum(&ip[..20]) == 0);
                assert_eq!(read_stamp(&frame), Some(Stamp { run: 7, sequence: 2, time: 3 }));
            }
        }
    }

    #[test]
    fn other_frames_are_not_ours() {
        for frame in [&b""[..], &[0; 13], &[0; 60], &[0xff; 200]] {
            assert_eq!(read_stamp(frame), None);
        }
    }
}
