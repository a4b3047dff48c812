//! Captured packets as pcapng, with interfaces, directions and comments.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::{DataLink, PcapError};

use crate::capture::Packet;

/// Directions of the option `epb_flags`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes a file, or a part of a stream.
pub struct Writer<W: Write> {
    file: PcapNgWriter<W>,
    /// The interfaces that the file has so far, by number.
    interfaces: Vec<String>,
    /// Lost packets, as last written.
    lost: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(to: W) -> io::Result<Self> {
        let file = PcapNgWriter::new(to).map_err(failure)?;
        Ok(Self { file, interfaces: Vec::new(), lost: 0 })
    }

    /// Writes a packet.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, packet: &Packet) -> io::Result<()> {
        let interface_id = self.interface(&packet.interface)?;
        let direction = if packet.is_outbound { OUTBOUND } else { INBOUND };
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(packet.time_ns),
            original_len: packet.length as u32,
            data: Cow::Borrowed(&packet.frame),
            options: vec![
                EnhancedPacketOption::Comment(Cow::Owned(comment(packet))),
                EnhancedPacketOption::Flags(direction),
            ],
        };
        self.file.write_pcapng_block(block).map_err(failure).map(drop)
    }

    /// Writes the number of packets that the capture has lost by this time, on all interfaces together, if it is another
    /// than before. It is part of the first interface's statistics, so it waits for a packet.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn lost(&mut self, count: u64, time_ns: u64) -> io::Result<()> {
        if count == self.lost || self.interfaces.is_empty() {
            return Ok(());
        }
        let block = InterfaceStatisticsBlock {
            interface_id: 0,
            timestamp: halves(time_ns),
            options: vec![InterfaceStatisticsOption::IsbIfDrop(count)],
        };
        self.file.write_pcapng_block(block).map_err(failure)?;
        self.lost = count;
        Ok(())
    }

    /// The place that the file is written to.
    pub fn get_mut(&mut self) -> &mut W {
        self.file.get_mut()
    }

    /// The number of the interface with this name in the file.
    fn interface(&mut self, name: &str) -> io::Result<u32> {
        if let Some(number) = self.interfaces.iter().position(|known| known == name) {
            return Ok(number as u32);
        }
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.file.write_pcapng_block(block).map_err(failure)?;
        self.interfaces.push(name.to_owned());
        Ok(self.interfaces.len() as u32 - 1)
    }
}

/// The upper half of a time comes first in a file, and the library writes statistics in the machine's order.
fn halves(time: u64) -> u64 {
    if cfg!(target_endian = "little") { time.rotate_left(32) } else { time }
}

/// The cause, so that a closed pipe is seen to be one.
fn failure(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

/// `dropped by ip4-lookup: no-route`
fn comment(packet: &Packet) -> String {
    let Packet { event, step, reason, .. } = packet;
    let place = match event.as_str() {
        "entered" => format!("enters {step}"),
        "sent" => format!("sent behind {step}"),
        "received" => "received".to_owned(),
        other => format!("{other} by {step}"),
    };
    match reason {
        Some(reason) => format!("{place}: {reason}"),
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    fn packet(event: &str, reason: Option<&str>) -> Packet {
        Packet {
            time_ns: 7,
            interface: "left".to_owned(),
            event: event.to_owned(),
            reason: reason.map(str::to_owned),
            step: "ip4-lookup".to_owned(),
            is_outbound: event == "sent",
            length: 60,
            frame: vec![0, 255, 16],
        }
    }

    #[test]
    fn comments_say_what_happened() {
        assert_eq!(comment(&packet("received", None)), "received");
        assert_eq!(comment(&packet("sent", None)), "sent behind ip4-lookup");
        assert_eq!(comment(&packet("entered", None)), "enters ip4-lookup");
        let dropped = comment(&packet("dropped", Some("no-route")));
        assert_eq!(dropped, "dropped by ip4-lookup: no-route");
    }

    #[test]
    fn lost_packets_are_statistics() {
        let mut file = Writer::new(Vec::new()).unwrap();
        // No interface has statistics yet.
        file.lost(3, 1).unwrap();
        file.write(&packet("received", None)).unwrap();
        let time = 0x0123_4567_89ab_cdef;
        for count in [3, 3, 5] {
            file.lost(count, time).unwrap();
        }
        let mut reader = PcapNgReader::new(&file.get_mut()[..]).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::InterfaceStatistics(block) = block.unwrap() {
                assert_eq!((block.interface_id, halves(block.timestamp)), (0, time));
                found.extend(block.options.into_iter().map(InterfaceStatisticsOption::into_owned));
            }
        }
        let expected = [3, 5].map(InterfaceStatisticsOption::IsbIfDrop);
        assert_eq!(found, expected);
        // draft-ietf-opsawg-pcapng, 4.6: Timestamp (Upper), Timestamp (Lower).
        let upper = 0x0123_4567u32.to_ne_bytes();
        assert!(file.get_mut().windows(8).any(|bytes| bytes[..4] == [0; 4] && bytes[4..] == upper));
    }
}
