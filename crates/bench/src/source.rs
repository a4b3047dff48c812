//! The packets of the forwarding benchmark, which a queue of DPDK's null driver presents over and over.
//!
//! Their headers are made beforehand, of as many packets as wanted, and written into fresh buffers as a NIC writes
//! them ([`dpdk::RxQueue::present`]).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context, Result};
use dataplane::vlan::{Tag, TagProtocol, Tags};
use dpdk::{SOURCE_HEAD, SourcePacket, SourcePackets};
use fib::synthetic::Random;

use crate::generate::frame::{FCS, fill_udp6_checksum};
use crate::generate::sizes::Sizes;
use crate::workload::pattern::in_table;
use crate::workload::routes::Routes;

/// Bytes of an IPv4 frame without FCS: the smallest that Ethernet sends.
pub const FRAME: usize = 60;

/// Bytes of an IPv6 frame without FCS: the size of its headers.
pub const FRAME6: usize = 62;

/// Destination MAC of the frames: that of the benchmark's ports.
pub const PORT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Address families of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// IPv4, to random unicast addresses, or to random addresses in random prefixes of a table.
    V4,
    /// IPv6, to random addresses in random prefixes of the table: hardly any other address has a
    /// route.
    V6,
    /// Both families by turns.
    Both,
    /// As [`Mix::V4`], with a tag (IEEE 802.1Q).
    Vlan,
    /// The same behind a service tag (802.1ad).
    QinQ,
    /// As [`Mix::Vlan`], from a device that has stripped the tag.
    Stripped,
    /// As [`Mix::V4`], from random addresses; the other sources' addresses are one.
    Sources,
    /// As [`Mix::V4`], of as many connections as a flow table has room for.
    Known,
}

/// Most packets of [`Mix::Known`].
const KNOWN: usize = 65_536;

impl Mix {
    /// All of them.
    #[cfg(test)]
    const ALL: [Self; 8] = [
        Self::V4,
        Self::V6,
        Self::Both,
        Self::Vlan,
        Self::QinQ,
        Self::Stripped,
        Self::Sources,
        Self::Known,
    ];

    /// Returns the tags of its frames on the wire.
    pub fn tags(self) -> Option<Tags> {
        let customer = Tag { protocol: TagProtocol::Dot1q, id: 100, priority: 0 };
        let service = Tag { protocol: TagProtocol::Dot1ad, id: 200, priority: 0 };
        match self {
            Self::V4 | Self::V6 | Self::Both | Self::Sources | Self::Known => None,
            Self::Vlan | Self::Stripped => Some(Tags { outer: customer, inner: None }),
            Self::QinQ => Some(Tags { outer: service, inner: Some(customer) }),
        }
    }

    /// Returns the control information of the tag that the device has stripped from its frames.
    pub fn stripped(self) -> Option<u16> {
        self.tags().filter(|_| self == Self::Stripped).map(|tags| tags.outer.control())
    }
}

/// The packets of a source.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Their number, each to a destination of its own drawing.
    pub count: usize,
    /// IPv4 destinations lie in the full table.
    pub in_table: bool,
    /// The device has verified them and knows their headers.
    pub is_verified: bool,
    /// The frames' lengths, with FCS; `None`: the smallest.
    pub sizes: Option<Sizes>,
}

impl Wanted {
    /// Makes the packets of this mix, UDP datagrams. Only headers are made: what long packets have behind them is
    /// undefined, and so are checksums of UDP over it.
    pub fn packets(
        &self,
        mix: Mix,
        (routes4, routes6): (&Routes<Ipv4Addr>, &Routes<Ipv6Addr>),
        seed: u64,
    ) -> Result<Arc<SourcePackets>> {
        let count = if mix == Mix::Known { self.count.min(KNOWN) } else { self.count };
        let (mut random, mut sizes) = (Random::new(seed), self.sizes.clone());
        let packets = (0..count).map(|index| {
            let size = sizes.as_mut().map_or(0, Sizes::next).saturating_sub(FCS);
            let six = mix == Mix::V6 || mix == Mix::Both && index % 2 == 1;
            let frame = if six {
                frame6(in_table(routes6, &mut random).into(), random.word() as u16, size)
            } else {
                let to = if self.in_table {
                    in_table(routes4, &mut random).into()
                } else {
                    unicast(&mut random)
                };
                let from = match mix {
                    Mix::Sources => unicast(&mut random),
                    _ => Ipv4Addr::new(198, 18, 0, 1),
                };
                let frame = frame((from, to), random.word() as u16, size);
                match mix.tags().filter(|_| mix.stripped().is_none()) {
                    None => frame,
                    Some(tags) => tagged(&frame, tags),
                }
            };
            let mut head = [0; SOURCE_HEAD];
            head.iter_mut().zip(&frame).for_each(|(to, from)| *to = *from);
            let len = frame.len() as u16;
            SourcePacket { head, len, is_verified: self.is_verified, stripped: mix.stripped() }
        });
        SourcePackets::new(packets).context("no packets")
    }
}

/// Returns a unicast address outside 0/8 and 127/8.
fn unicast(random: &mut Random) -> Ipv4Addr {
    loop {
        let address = Ipv4Addr::from(random.word() as u32);
        let first = address.octets()[0];
        if first != 0 && first != 127 && first < 224 {
            return address;
        }
    }
}

/// Returns a frame of this length, at least 60 bytes: Ethernet, IPv4, UDP, zeros.
fn frame((source, destination): (Ipv4Addr, Ipv4Addr), source_port: u16, size: usize) -> Vec<u8> {
    let mut frame = vec![0; size.max(FRAME)];
    let length = (frame.len() - 14) as u16;
    ethernet(&mut frame, [0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&source.octets());
    frame[30..34].copy_from_slice(&destination.octets());
    let checksum = wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    udp(&mut frame[34..], source_port);
    frame
}

/// Returns a frame with these tags.
fn tagged(frame: &[u8], Tags { outer, inner }: Tags) -> Vec<u8> {
    let inner = inner.map(Tag::bytes);
    let inner = inner.as_ref().map_or(&[][..], |tag| tag);
    [&frame[..12], &outer.bytes(), inner, &frame[12..]].concat()
}

/// Returns a frame of this length, at least 62 bytes: Ethernet, IPv6, UDP, zeros.
fn frame6(destination: Ipv6Addr, source_port: u16, size: usize) -> Vec<u8> {
    let mut frame = vec![0; size.max(FRAME6)];
    let length = (frame.len() - 54) as u16;
    ethernet(&mut frame, [0x86, 0xdd]);
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame[20] = 17;
    frame[21] = 64;
    frame[22..38].copy_from_slice(&Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1).octets());
    frame[38..54].copy_from_slice(&destination.octets());
    udp(&mut frame[54..], source_port);
    fill_udp6_checksum(&mut frame, length);
    frame
}

fn ethernet(frame: &mut [u8], ethertype: [u8; 2]) {
    frame[0..6].copy_from_slice(&PORT_MAC);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&ethertype);
}

/// Fills in a UDP header to the discard port; the datagram has no other content.
fn udp(datagram: &mut [u8], source_port: u16) {
    let length = datagram.len() as u16;
    datagram[0..2].copy_from_slice(&source_port.to_be_bytes());
    datagram[2..4].copy_from_slice(&9u16.to_be_bytes());
    datagram[4..6].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const WANTED: Wanted = Wanted { count: 100, in_table: false, is_verified: false, sizes: None };

    /// Returns the heads and lengths of all packets.
    fn frames(mix: Mix, wanted: &Wanted) -> Vec<([u8; SOURCE_HEAD], usize)> {
        let routes4 = vec![("11.0.0.0/16".parse().unwrap(), 1)];
        let routes6 = vec![("2001:db8::/32".parse().unwrap(), 1)];
        let packets = wanted.packets(mix, (&routes4, &routes6), 1).unwrap();
        (0..).map_while(|index| packets.get(index)).map(|(head, len)| (*head, len)).collect()
    }

    #[test]
    fn ipv4_frames_are_valid_and_differ() {
        let mut destinations = BTreeSet::new();
        for (frame, len) in frames(Mix::V4, &WANTED) {
            assert_eq!(len, FRAME);
            assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
            assert_eq!(frame[38..40], 26u16.to_be_bytes());
            destinations.insert(frame[30..34].to_vec());
        }
        assert_eq!(destinations.len(), 100);
    }

    #[test]
    fn ipv6_frames_are_valid_and_lie_in_the_table() {
        let mut destinations = BTreeSet::new();
        for (frame, len) in frames(Mix::V6, &WANTED) {
            assert_eq!((len, &frame[12..14]), (FRAME6, &[0x86, 0xdd][..]));
            assert_eq!(frame[38..42], [0x20, 0x01, 0x0d, 0xb8]);
            let mut sum = wire::checksum::Checksum::new();
            sum.add(&frame[22..54]);
            sum.add_u16(8);
            sum.add_u16(17);
            sum.add(&frame[54..len]);
            assert_eq!(sum.finish(), 0);
            destinations.insert(frame[38..54].to_vec());
        }
        assert_eq!(destinations.len(), 100);
    }

    #[test]
    fn ipv4_frames_can_lie_in_a_table() {
        let wanted = Wanted { in_table: true, ..WANTED };
        assert!(frames(Mix::V4, &wanted).iter().all(|(frame, _)| frame[30..32] == [11, 0]));
    }

    #[test]
    fn a_mixed_source_takes_turns() {
        let types: Vec<u8> =
            frames(Mix::Both, &WANTED).iter().map(|(frame, _)| frame[12]).collect();
        assert_eq!(types[..4], [0x08, 0x86, 0x08, 0x86]);
    }

    #[test]
    fn sizes_are_those_on_the_wire() {
        let wanted = Wanted { sizes: Some("64,1518".parse().unwrap()), ..WANTED };
        for (at, (frame, len)) in frames(Mix::V4, &wanted).into_iter().enumerate() {
            let expected = [60, 1514][at % 2];
            assert_eq!(len, expected);
            assert_eq!(frame[16..18], (expected as u16 - 14).to_be_bytes());
            assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
        }
    }

    #[test]
    fn tags_are_in_the_frame_unless_a_device_strips_them() {
        for mix in Mix::ALL {
            let (frame, len) = frames(mix, &WANTED)[0];
            let (ethertype, expected): ([u8; 2], usize) = match mix {
                Mix::Vlan => ([0x81, 0x00], FRAME + 4),
                Mix::QinQ => ([0x88, 0xa8], FRAME + 8),
                Mix::V6 => ([0x86, 0xdd], FRAME6),
                _ => ([0x08, 0x00], FRAME),
            };
            assert_eq!((&frame[12..14], len), (&ethertype[..], expected), "{mix:?}");
        }
    }
}
