//! sFlow version 5 (sflow.org, "sFlow Version 5", July 2004): flow samples with the packet's first bytes, and counter
//! samples.
//!
//! ```text
//!   datagram: version, agent, sub-agent, sequence, uptime, number of samples
//!     flow sample:    sequence, source, rate, pool, drops, input, output
//!       sampled header, extended switch, extended router
//!     counter sample: sequence, source
//!       generic interface counters
//! ```
//!
//! Everything is XDR (RFC 4506): big-endian words, opaque data padded to words.

use std::net::IpAddr;

use crate::{DATAGRAM_MOST, Output, Route};

/// The format's version.
const VERSION: u32 = 5;

/// Samples: `enterprise = 0`.
const FLOW_SAMPLE: u32 = 1;
const COUNTERS_SAMPLE: u32 = 2;

/// Records of flow samples.
const SAMPLED_HEADER: u32 = 1;
const EXTENDED_SWITCH: u32 = 1001;
const EXTENDED_ROUTER: u32 = 1002;

/// The record of generic interface counters.
const IF_COUNTERS: u32 = 1;

/// The protocol of sampled headers: Ethernet.
const ETHERNET: u32 = 1;

/// Bytes of the frame check sequence, which the router never sees.
const FCS: u32 = 4;

/// The output of packets for the router itself, and the format of dropped ones ("unknown" reason).
const OUTPUT_INTERNAL: u32 = 0x3fff_ffff;
const OUTPUT_DISCARDED: u32 = 1 << 30 | 256;

/// A counter that the router does not have.
const UNKNOWN: u32 = u32::MAX;

/// The type of an Ethernet interface (IANAifType-MIB).
pub const ETHERNET_CSMACD: u32 = 6;

/// A sampled packet.
#[derive(Clone, Copy, Debug)]
pub struct FlowSample<'a> {
    /// Number of the samples of this source before it, and one.
    pub sequence: u32,
    /// The sampled interface: its number.
    pub source: u32,
    /// One of so many packets is sampled.
    pub rate: u32,
    /// Packets of the source that could have been sampled.
    pub pool: u32,
    /// Samples lost for lack of room.
    pub drops: u32,
    /// The number of the interface by which it came.
    pub input: u32,
    /// Bytes of the frame, without FCS.
    pub length: u32,
    /// The frame's first bytes.
    pub header: &'a [u8],
    /// The control field of its VLAN tag.
    pub tag: Option<u16>,
    /// Its route; `None`: it is no IP packet, or was not looked up.
    pub route: Option<Route>,
}

/// The counters of an interface (RFC 2863's ifTable and ifXTable).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Its number.
    pub index: u32,
    /// Its type (IANAifType-MIB).
    pub kind: u32,
    /// Bits a second; 0: not known.
    pub speed: u64,
    /// Duplex of the link; `None`: not known.
    pub full_duplex: Option<bool>,
    /// True if the configuration wants it up.
    pub admin_up: bool,
    /// True if packets can leave by it.
    pub oper_up: bool,
    /// Bytes received.
    pub in_octets: u64,
    /// Frames received; the router does not count multicasts apart.
    pub in_packets: u32,
    /// Frames for which there was no room.
    pub in_discards: Option<u32>,
    /// Frames received broken.
    pub in_errors: Option<u32>,
    /// Bytes sent.
    pub out_octets: u64,
    /// Frames sent.
    pub out_packets: u32,
    /// Frames that could not be sent.
    pub out_errors: Option<u32>,
    /// True if it accepts frames for other MAC addresses.
    pub promiscuous: bool,
}

/// A sample as a datagram has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded(Vec<u8>);

struct Xdr(Vec<u8>);

impl Xdr {
    fn word(&mut self, word: u32) -> &mut Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn hyper(&mut self, word: u64) -> &mut Self {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn opaque(&mut self, bytes: &[u8]) -> &mut Self {
        self.word(bytes.len() as u32);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// An address with its type; `None`: of unknown type.
    fn address(&mut self, address: Option<IpAddr>) -> &mut Self {
        match address {
            None => {
                self.word(0);
            }
            Some(IpAddr::V4(address)) => self.word(1).0.extend(address.octets()),
            Some(IpAddr::V6(address)) => self.word(2).0.extend(address.octets()),
        }
        self
    }

    /// A part with its format and length in front.
    fn part(&mut self, format: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        self.word(format).word(0);
        let begin = self.0.len();
        write(self);
        let len = (self.0.len() - begin) as u32;
        self.0[begin - 4..begin].copy_from_slice(&len.to_be_bytes());
        self
    }
}

/// Encodes a sampled packet.
pub fn flow(sample: &FlowSample<'_>) -> Encoded {
    let FlowSample { sequence, source, rate, pool, drops, input, length, header, tag, route } =
        sample;
    let output = match route.map(|route| route.output).unwrap_or_default() {
        Output::Unknown => 0,
        Output::Interface(number) => number,
        Output::Router => OUTPUT_INTERNAL,
        Output::Discarded => OUTPUT_DISCARDED,
    };
    let records = 2 + u32::from(route.is_some());
    let mut xdr = Xdr(Vec::new());
    xdr.part(FLOW_SAMPLE, |xdr| {
        for word in [*sequence, *source, *rate, *pool, *drops, *input, output, records] {
            xdr.word(word);
        }
        xdr.part(SAMPLED_HEADER, |xdr| {
            xdr.word(ETHERNET).word(length + FCS).word(FCS).opaque(header);
        });
        let tag = tag.unwrap_or(0);
        let (vlan, priority) = (u32::from(tag & 0xfff), u32::from(tag >> 13));
        // The router's side of the link is the same on the way out only if the tag is; it is not known.
        xdr.part(EXTENDED_SWITCH, |xdr| {
            xdr.word(vlan).word(priority).word(UNKNOWN).word(UNKNOWN);
        });
        if let Some(Route { next_hop, source_len, destination_len, .. }) = *route {
            xdr.part(EXTENDED_ROUTER, |xdr| {
                xdr.address(next_hop).word(source_len.into()).word(destination_len.into());
            });
        }
    });
    Encoded(xdr.0)
}

/// Encodes the counters of an interface; `sequence`: number of its counter samples before this one, and one.
pub fn counters(sequence: u32, of: &InterfaceCounters) -> Encoded {
    let direction = match of.full_duplex {
        None => 0,
        Some(true) => 1,
        Some(false) => 2,
    };
    let or_unknown = |count: Option<u32>| count.unwrap_or(UNKNOWN);
    let mut xdr = Xdr(Vec::new());
    xdr.part(COUNTERS_SAMPLE, |xdr| {
        xdr.word(sequence).word(of.index).word(1);
        xdr.part(IF_COUNTERS, |xdr| {
            xdr.word(of.index).word(of.kind).hyper(of.speed).word(direction);
            xdr.word(u32::from(of.admin_up) | u32::from(of.oper_up) << 1);
            xdr.hyper(of.in_octets).word(of.in_packets).word(UNKNOWN).word(UNKNOWN);
            xdr.word(or_unknown(of.in_discards)).word(or_unknown(of.in_errors)).word(UNKNOWN);
            xdr.hyper(of.out_octets).word(of.out_packets).word(UNKNOWN).word(UNKNOWN);
            xdr.word(UNKNOWN).word(or_unknown(of.out_errors)).word(of.promiscuous.into());
        });
    });
    Encoded(xdr.0)
}

/// Packs samples into datagrams.
#[derive(Debug)]
pub struct Packer {
    agent: IpAddr,
    sequence: u32,
    /// The samples of the next datagram.
    samples: Vec<Encoded>,
    bytes: usize,
}

impl Packer {
    /// Creates it for the router with this address.
    pub fn new(agent: IpAddr) -> Self {
        Self { agent, sequence: 0, samples: Vec::new(), bytes: 0 }
    }

    /// Sets the router's address.
    pub fn set_agent(&mut self, agent: IpAddr) {
        self.agent = agent;
    }

    /// Adds a sample. Returns the datagram before it, if it is full; `uptime_ms`: since the router's start.
    pub fn put(&mut self, sample: Encoded, uptime_ms: u32) -> Option<Vec<u8>> {
        let head = 28 + usize::from(self.agent.is_ipv6()) * 12;
        let is_full = head + self.bytes + sample.0.len() > DATAGRAM_MOST;
        let full = if is_full { self.finish(uptime_ms) } else { None };
        self.bytes += sample.0.len();
        self.samples.push(sample);
        full
    }

    /// Returns a datagram of the samples that wait, if any do.
    pub fn finish(&mut self, uptime_ms: u32) -> Option<Vec<u8>> {
        if self.samples.is_empty() {
            return None;
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut xdr = Xdr(Vec::with_capacity(DATAGRAM_MOST));
        xdr.word(VERSION).address(Some(self.agent)).word(0).word(self.sequence).word(uptime_ms);
        xdr.word(self.samples.len() as u32);
        self.samples.drain(..).for_each(|Encoded(bytes)| xdr.0.extend(bytes));
        self.bytes = 0;
        Some(xdr.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::headers::tests::{tcp6, udp4};

    fn sample(header: &[u8]) -> FlowSample<'_> {
        FlowSample {
            sequence: 7,
            source: 2,
            rate: 1000,
            pool: 123_456,
            drops: 3,
            input: 2,
            length: 142,
            header,
            tag: Some(0x6005),
            route: None,
        }
    }

    /// The words of bytes.
    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn a_flow_sample_has_its_packet_and_its_route() {
        let frame = udp4();
        let route = Route {
            output: Output::Interface(3),
            next_hop: Some([10, 0, 2, 9].into()),
            source_len: 24,
            destination_len: 16,
        };
        let Encoded(bytes) = flow(&FlowSample { route: Some(route), ..sample(&frame) });
        let found = words(&bytes);
        assert_eq!(found[..2], [1, bytes.len() as u32 - 8]);
        assert_eq!(found[2..10], [7, 2, 1000, 123_456, 3, 2, 3, 3]);
        // 142 bytes are padded to 144; the length on the wire has the FCS.
        assert_eq!(found[10..16], [1, 16 + 144, 1, 146, 4, 142]);
        assert_eq!(bytes[64..64 + 142], frame);
        assert_eq!(found[52..58], [1001, 16, 5, 3, u32::MAX, u32::MAX]);
        assert_eq!(found[58..], [1002, 16, 1, 0x0a00_0209, 24, 16]);
    }

    #[test]
    fn the_output_is_told_where_it_is_known() {
        let frame = tcp6();
        let output = |output| {
            let route = Route { output, ..Route::default() };
            words(&flow(&FlowSample { route: Some(route), ..sample(&frame) }).0)[8]
        };
        assert_eq!(output(Output::Unknown), 0);
        assert_eq!(output(Output::Router), 0x3fff_ffff);
        assert_eq!(output(Output::Discarded), 0x4000_0100);
        assert_eq!(words(&flow(&sample(&frame)).0)[8..10], [0, 2]);
    }

    #[test]
    fn counters_are_those_of_the_interface() {
        let of = InterfaceCounters {
            index: 2,
            kind: ETHERNET_CSMACD,
            speed: 10_000_000_000,
            full_duplex: Some(true),
            admin_up: true,
            oper_up: true,
            in_octets: 1 << 40,
            in_packets: 17,
            in_discards: Some(1),
            in_errors: None,
            out_octets: 99,
            out_packets: 18,
            out_errors: Some(0),
            promiscuous: false,
        };
        let found = words(&counters(4, &of).0);
        let unknown = u32::MAX;
        assert_eq!(found[..7], [2, 108, 4, 2, 1, 1, 88]);
        assert_eq!(found[7..13], [2, 6, 2, 1_410_065_408, 1, 3]);
        assert_eq!(found[13..21], [256, 0, 17, unknown, unknown, 1, unknown, unknown]);
        assert_eq!(found[21..], [0, 99, 18, unknown, unknown, unknown, 0, 0]);
    }

    #[test]
    fn a_datagram_names_its_agent() {
        let mut packer = Packer::new("fd00::1".parse().unwrap());
        assert_eq!(packer.finish(1), None);
        assert_eq!(packer.put(counters(1, &InterfaceCounters::default()), 5), None);
        let found = words(&packer.finish(5).unwrap());
        assert_eq!(found[..10], [5, 2, 0xfd00_0000, 0, 0, 1, 0, 1, 5, 1]);
        packer.set_agent([10, 0, 0, 1].into());
        packer.put(counters(2, &InterfaceCounters::default()), 6);
        assert_eq!(words(&packer.finish(9).unwrap())[..7], [5, 1, 0x0a00_0001, 0, 2, 9, 1]);
    }

    proptest! {
        /// Each datagram is within its bound and consists of whole samples, none of which is lost.
        #[test]
        fn datagrams_are_whole(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..256), 1..60), v6: bool) {
            let agent: IpAddr = if v6 { "fd00::1".parse().unwrap() } else { [10, 0, 0, 1].into() };
            let (head, mut packer) = (if v6 { 40 } else { 28 }, Packer::new(agent));
            let mut datagrams = Vec::new();
            for frame in &frames {
                datagrams.extend(packer.put(flow(&sample(frame)), 1));
            }
            datagrams.extend(packer.finish(1));
            let mut lens = Vec::new();
            for (number, datagram) in datagrams.iter().enumerate() {
                prop_assert!(datagram.len() <= DATAGRAM_MOST);
                let found = words(datagram);
                prop_assert_eq!(found[head / 4 - 3], number as u32 + 1);
                let (mut at, mut samples) = (head / 4, 0);
                while at < found.len() {
                    prop_assert_eq!(found[at], FLOW_SAMPLE);
                    // Behind the sample's words and the record's: the length of the header.
                    lens.push(found[at + 15] as usize);
                    at += 2 + found[at + 1] as usize / 4;
                    samples += 1;
                }
                prop_assert_eq!((at, samples), (found.len(), found[head / 4 - 1]));
            }
            prop_assert_eq!(lens, frames.iter().map(Vec::len).collect::<Vec<_>>());
        }
    }
}
