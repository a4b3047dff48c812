//! The packets of the forwarding benchmark: a pcap file that DPDK's pcap driver replays for ever.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result};
use fib::synthetic::Random;

/// Bytes of a frame without FCS: the smallest that Ethernet sends.
pub const FRAME: usize = 60;

/// The MAC the frames are sent to: the benchmark's ports have it.
pub const PORT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A unicast address outside 0/8 and 127/8.
fn unicast(random: &mut Random) -> Ipv4Addr {
    loop {
        let address = Ipv4Addr::from(random.word() as u32);
        let first = address.octets()[0];
        if first != 0 && first != 127 && first < 224 {
            return address;
        }
    }
}

/// Writes `count` UDP frames to random unicast destinations as a pcap file.
pub fn write_pcap(path: &Path, count: usize, seed: u64) -> Result<()> {
    let context = || format!("file {}: cannot be written", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(context)?);
    let mut random = Random::new(seed);
    let write = |file: &mut BufWriter<File>, random: &mut Random| -> std::io::Result<()> {
        // Magic, version 2.4, time zone, accuracy, longest packet, Ethernet.
        for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.write_all(&word.to_ne_bytes())?;
        }
        for _ in 0..count {
            for word in [0, 0, FRAME as u32, FRAME as u32] {
                file.write_all(&word.to_ne_bytes())?;
            }
            file.write_all(&frame(unicast(random), random.word() as u16))?;
        }
        file.flush()
    };
    write(&mut file, &mut random).with_context(context)
}

/// A frame of 60 bytes: Ethernet, IPv4, UDP, zeros.
fn frame(destination: Ipv4Addr, source_port: u16) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[0..6].copy_from_slice(&PORT_MAC);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let total = (FRAME - 14) as u16;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame[22] = 64;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[198, 18, 0, 1]);
    frame[30..34].copy_from_slice(&destination.octets());
    let checksum = wire::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    frame[34..36].copy_from_slice(&source_port.to_be_bytes());
    frame[36..38].copy_from_slice(&9u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_valid_and_differ() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("source.pcap");
        write_pcap(&path, 100, 1).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 24 + 100 * (16 + FRAME));
        let mut destinations = std::collections::BTreeSet::new();
        for record in bytes[24..].chunks(16 + FRAME) {
            let frame = &record[16..];
            assert_eq!(wire::checksum::checksum(&frame[14..34]), 0);
            destinations.insert(frame[30..34].to_vec());
        }
        assert_eq!(destinations.len(), 100);
    }
}
