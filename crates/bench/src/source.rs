//! The packets of the forwarding benchmark: a pcap file that DPDK's pcap driver replays for ever.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};
use dataplane::vlan::{Tag, TagProtocol, Tags};
use fib::synthetic::Random;

use crate::generate::frame::fill_udp6_checksum;
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
}

impl Mix {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::V4, Self::V6, Self::Both, Self::Vlan, Self::QinQ, Self::Stripped, Self::Sources];

    /// Returns the tags of its frames on the wire.
    pub fn tags(self) -> Option<Tags> {
        let customer = Tag { protocol: TagProtocol::Dot1q, id: 100, priority: 0 };
        let service = Tag { protocol: TagProtocol::Dot1ad, id: 200, priority: 0 };
        match self {
            Self::V4 | Self::V6 | Self::Both | Self::Sources => None,
            Self::Vlan | Self::Stripped => Some(Tags { outer: customer, inner: None }),
            Self::QinQ => Some(Tags { outer: service, inner: Some(customer) }),
        }
    }

    /// Returns the control information of the tag that the device has stripped from its frames.
    pub fn stripped(self) -> Option<u16> {
        self.tags().filter(|_| self == Self::Stripped).map(|tags| tags.outer.control())
    }

    /// Returns a word for file and device names.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "ip4",
            Self::V6 => "ip6",
            Self::Both => "mixed",
            Self::Vlan => "vlan",
            Self::QinQ => "qinq",
            Self::Stripped => "stripped",
            Self::Sources => "sources",
        }
    }
}

/// Writes `count` UDP frames as a pcap file. Without `routes4`, IPv4 destinations are any unicast
/// addresses.
pub fn write_pcap(
    path: &Path,
    mix: Mix,
    count: usize,
    (routes4, routes6): (Option<&Routes<Ipv4Addr>>, &Routes<Ipv6Addr>),
    seed: u64,
) -> Result<()> {
    let context = || format!("file {}: cannot be written", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(context)?);
    let mut random = Random::new(seed);
    let write = |file: &mut BufWriter<File>, random: &mut Random| -> std::io::Result<()> {
        // Magic, version 2.4, time zone, accuracy, longest packet, Ethernet.
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.write_all(&word.to_ne_bytes())?;
        }
        for index in 0..count {
            let six = mix == Mix::V6 || mix == Mix::Both && index % 2 == 1;
            if six {
                let frame = frame6(in_table(routes6, random).into(), random.word() as u16);
                record(file, &frame)?;
            } else {
                let to = routes4.map(|routes| in_table(routes, random).into());
                let to = to.unwrap_or_else(|| unicast(random));
                let from = match mix {
                    Mix::Sources => unicast(random),
                    _ => Ipv4Addr::new(198, 18, 0, 1),
                };
                let frame = frame((from, to), random.word() as u16);
                match mix.tags().filter(|_| mix.stripped().is_none()) {
                    None => record(file, &frame)?,
                    Some(tags) => record(file, &tagged(&frame, tags))?,
                }
            }
        }
        file.flush()
    };
    write(&mut file, &mut random).with_context(context)
}

/// Returns the frames of a file from [`write_pcap`].
pub fn read_pcap(path: &Path) -> Result<Vec<Vec<u8>>> {
    let bytes = std::fs::read(path).with_context(|| format!("file {}", path.display()))?;
    let mut rest = bytes.get(24..).unwrap_or_default();
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let length = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let frame =
            behind.get(..length).with_context(|| format!("file {}: cut", path.display()))?;
        frames.push(frame.to_vec());
        rest = &behind[length..];
    }
    Ok(frames)
}

fn record(file: &mut impl Write, frame: &[u8]) -> std::io::Result<()> {
    let length = frame.len() as u32;
    for word in [0, 0, length, length] {
        file.write_all(&word.to_ne_bytes())?;
    }
    file.write_all(frame)
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

/// Returns a frame of 60 bytes: Ethernet, IPv4, UDP, zeros.
fn frame((source, destination): (Ipv4Addr, Ipv4Addr), source_port: u16) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    ethernet(&mut frame, [0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((FRAME - 14) as u16).to_be_bytes());
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

/// Returns a frame of 62 bytes: Ethernet, IPv6, UDP without content.
fn frame6(destination: Ipv6Addr, source_port: u16) -> [u8; FRAME6] {
    let mut frame = [0; FRAME6];
    ethernet(&mut frame, [0x86, 0xdd]);
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&8u16.to_be_bytes());
    frame[20] = 17;
    frame[21] = 64;
    frame[22..38].copy_from_slice(&Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 1).octets());
    frame[38..54].copy_from_slice(&destination.octets());
    udp(&mut frame[54..], source_port);
    fill_udp6_checksum(&mut frame, 8);
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

    /// Returns the frames of a file.
    fn frames(mix: Mix, count: usize) -> Vec<Vec<u8>> {
        frames_to(None, mix, count)
    }

    fn frames_to(routes4: Option<&Routes<Ipv4Addr>>, mix: Mix, count: usize) -> Vec<Vec<u8>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("source.pcap");
        let routes = vec![("2001:db8::/32".parse().unwrap(), 1)];
        write_pcap(&path, mix, count, (routes4, &routes), 1).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let (mut frames, mut rest) = (Vec::new(), &bytes[24..]);
        while let Some((head, behind)) = rest.split_first_chunk::<16>() {
            let length = u32::from_ne_bytes(*head.last_chunk().unwrap()) as usize;
            frames.push(behind[..length].to_vec());
            rest = &behind[length..];
        }
        frames
    }

    #[test]
    fn ipv4_frames_are_valid_and_differ() {
        let frames = frames(Mix::V4, 100);
        let mut destinations = BTreeSet::new();
        for frame in &frames {
            assert_eq!(frame.len(), FRAME);
            assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
            assert_eq!(frame[38..40], 26u16.to_be_bytes());
            destinations.insert(frame[30..34].to_vec());
        }
        assert_eq!(destinations.len(), 100);
    }

    #[test]
    fn ipv6_frames_are_valid_and_lie_in_the_table() {
        let frames = frames(Mix::V6, 100);
        let mut destinations = BTreeSet::new();
        for frame in &frames {
            assert_eq!((frame.len(), &frame[12..14]), (FRAME6, &[0x86, 0xdd][..]));
            assert_eq!(frame[38..42], [0x20, 0x01, 0x0d, 0xb8]);
            let mut sum = wire::checksum::Checksum::new();
            sum.add(&frame[22..54]);
            sum.add_u16(8);
            sum.add_u16(17);
            sum.add(&frame[54..]);
            assert_eq!(sum.finish(), 0);
            destinations.insert(frame[38..54].to_vec());
        }
        assert_eq!(destinations.len(), 100);
    }

    #[test]
    fn ipv4_frames_can_lie_in_a_table() {
        let routes = vec![("11.0.0.0/16".parse().unwrap(), 1)];
        let frames = frames_to(Some(&routes), Mix::V4, 50);
        assert!(frames.iter().all(|frame| frame[30..32] == [11, 0]));
    }

    #[test]
    fn a_mixed_source_takes_turns() {
        let types: Vec<u8> = frames(Mix::Both, 4).iter().map(|frame| frame[12]).collect();
        assert_eq!(types, [0x08, 0x86, 0x08, 0x86]);
    }
}
