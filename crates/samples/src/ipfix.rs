//! IPFIX messages (RFC 7011): templates, flows, and the sampling rate as an options record (RFC 5477).
//!
//! ```text
//!   message: version 10, length, export time, sequence, domain
//!     template set:          256 IPv4 flows, 257 IPv6 flows
//!     options template set:  258, of the rate
//!     data sets:             258 | 256 | 257
//! ```
//!
//! The sequence is the number of data records before the message (RFC 7011, 3.1). Over UDP templates are repeated (8.1).

use std::net::IpAddr;

use crate::flows::{End, Flow};
use crate::{DATAGRAM_MOST, Output};

const VERSION: u16 = 10;
const HEADER: usize = 16;
const SET_HEADER: usize = 4;

/// Identifiers of sets.
const TEMPLATES: u16 = 2;
const OPTIONS_TEMPLATES: u16 = 3;

/// Identifiers of templates.
const FLOWS4: u16 = 256;
const FLOWS6: u16 = 257;
const SAMPLING: u16 = 258;

/// An information element and its length in records. Some are shorter than they may be (RFC 7011, 6.2).
type Element = (u16, u16);

/// Those of both families, behind the addresses.
const COMMON: [Element; 14] = [
    (10, 4),  // ingressInterface
    (14, 4),  // egressInterface
    (2, 8),   // packetDeltaCount
    (1, 8),   // octetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (5, 1),   // ipClassOfService
    (6, 1),   // tcpControlBits
    (136, 1), // flowEndReason
    (58, 2),  // vlanId
    (61, 1),  // flowDirection
];

/// Source, destination, next hop, prefix lengths, ICMP type and code.
const FIRST4: [Element; 6] = [(8, 4), (12, 4), (15, 4), (9, 1), (13, 1), (32, 2)];
const FIRST6: [Element; 6] = [(27, 16), (28, 16), (62, 16), (29, 1), (30, 1), (139, 2)];

/// The scope is the observation domain: all of its flows are sampled alike. One packet is sampled, a number is not; then
/// the same as a probability, by which collectors know that the selection is random. (nfcapd 1.7 takes no notice of a rate
/// with a selectorAlgorithm.)
const OPTIONS: [Element; 4] = [(149, 4), (305, 4), (306, 4), (311, 8)];

/// Sends the flows of an observation domain.
#[derive(Debug)]
pub struct Exporter {
    domain: u32,
    sequence: u32,
}

/// A message under construction.
struct Message {
    bytes: Vec<u8>,
    /// The set that is open: its identifier and where it begins.
    set: Option<(u16, usize)>,
    records: u32,
}

impl Message {
    fn new() -> Self {
        let mut bytes = Vec::with_capacity(DATAGRAM_MOST);
        bytes.resize(HEADER, 0);
        Self { bytes, set: None, records: 0 }
    }

    /// Adds a data record to a set of this identifier; false if there is no room.
    fn record(&mut self, set: u16, record: &[u8]) -> bool {
        let is_open = self.set.is_some_and(|(open, _)| open == set);
        let more = record.len() + if is_open { 0 } else { SET_HEADER };
        if self.bytes.len() + more > DATAGRAM_MOST {
            return false;
        }
        self.part(set, record);
        self.records += 1;
        true
    }

    /// Adds bytes to a set of this identifier, which is opened if it is not.
    fn part(&mut self, set: u16, bytes: &[u8]) {
        if self.set.is_none_or(|(open, _)| open != set) {
            self.close();
            self.set = Some((set, self.bytes.len()));
            self.bytes.extend(set.to_be_bytes());
            self.bytes.extend([0; 2]);
        }
        self.bytes.extend(bytes);
    }

    fn close(&mut self) {
        if let Some((_, begin)) = self.set.take() {
            let len = (self.bytes.len() - begin) as u16;
            self.bytes[begin + 2..begin + SET_HEADER].copy_from_slice(&len.to_be_bytes());
        }
    }
}

impl Exporter {
    /// Creates it for an observation domain.
    pub fn new(domain: u32) -> Self {
        Self { domain, sequence: 0 }
    }

    /// Returns messages at this time, in seconds since 1970: with the templates and the record of the sampling rate if that
    /// is given, and with flows.
    pub fn messages(
        &mut self,
        now_s: u32,
        rate: Option<u32>,
        flows: &[(Flow, End)],
    ) -> Vec<Vec<u8>> {
        let (mut done, mut message) = (Vec::new(), Message::new());
        if rate.is_some() {
            message.part(TEMPLATES, &template(FLOWS4, &FIRST4));
            message.part(TEMPLATES, &template(FLOWS6, &FIRST6));
            message.part(OPTIONS_TEMPLATES, &options_template());
        }
        let domain = self.domain;
        let options = rate.into_iter().map(|rate| (SAMPLING, sampling(domain, rate)));
        let flows = flows.iter().map(|(flow, end)| match flow.key.source {
            IpAddr::V4(_) => (FLOWS4, record(flow, *end)),
            IpAddr::V6(_) => (FLOWS6, record(flow, *end)),
        });
        for (set, record) in options.chain(flows) {
            if !message.record(set, &record) {
                done.push(self.finish(std::mem::replace(&mut message, Message::new()), now_s));
                message.record(set, &record);
            }
        }
        if message.bytes.len() > HEADER {
            done.push(self.finish(message, now_s));
        }
        done
    }

    fn finish(&mut self, mut message: Message, now_s: u32) -> Vec<u8> {
        message.close();
        let Message { mut bytes, records, .. } = message;
        let len = bytes.len() as u16;
        bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        for (place, word) in [now_s, self.sequence, self.domain].into_iter().enumerate() {
            bytes[4 + 4 * place..8 + 4 * place].copy_from_slice(&word.to_be_bytes());
        }
        self.sequence = self.sequence.wrapping_add(records);
        bytes
    }
}

fn elements(of: &[Element]) -> impl Iterator<Item = u8> {
    of.iter().flat_map(|(id, len)| [id.to_be_bytes(), len.to_be_bytes()].concat())
}

fn template(id: u16, first: &[Element]) -> Vec<u8> {
    let count = (first.len() + COMMON.len()) as u16;
    let head = [id.to_be_bytes(), count.to_be_bytes()].concat();
    head.into_iter().chain(elements(first)).chain(elements(&COMMON)).collect()
}

fn options_template() -> Vec<u8> {
    let (count, scopes) = (OPTIONS.len() as u16, 1_u16);
    let head = [SAMPLING.to_be_bytes(), count.to_be_bytes(), scopes.to_be_bytes()].concat();
    head.into_iter().chain(elements(&OPTIONS)).collect()
}

/// The record of a rate.
fn sampling(domain: u32, rate: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(domain.to_be_bytes());
    bytes.extend(1_u32.to_be_bytes());
    bytes.extend((rate - 1).to_be_bytes());
    bytes.extend((1.0 / f64::from(rate)).to_be_bytes());
    bytes
}

fn record(flow: &Flow, end: End) -> Vec<u8> {
    let Flow { key, route, packets, octets, tcp_flags, first_ms, last_ms } = flow;
    let mut bytes = Vec::new();
    match (key.source, key.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            // A gateway may be of the other family (RFC 8950): then it has no place here.
            let next_hop = route.next_hop.and_then(|hop| match hop {
                IpAddr::V4(hop) => Some(hop.octets()),
                IpAddr::V6(_) => None,
            });
            bytes.extend(next_hop.unwrap_or_default());
        }
        (source, destination) => {
            for address in [Some(source), Some(destination), route.next_hop] {
                bytes.extend(match address {
                    Some(IpAddr::V6(address)) => address.octets(),
                    _ => [0; 16],
                });
            }
        }
    }
    bytes.extend([route.source_len, route.destination_len]);
    bytes.extend(key.icmp.to_be_bytes());
    bytes.extend(key.input.to_be_bytes());
    let output = match route.output {
        Output::Interface(number) => number,
        Output::Unknown | Output::Router | Output::Discarded => 0,
    };
    bytes.extend(output.to_be_bytes());
    for count in [packets, octets, first_ms, last_ms] {
        bytes.extend(count.to_be_bytes());
    }
    bytes.extend(key.source_port.to_be_bytes());
    bytes.extend(key.destination_port.to_be_bytes());
    bytes.extend([key.protocol, key.tos, *tcp_flags, end.number()]);
    bytes.extend(key.vlan.to_be_bytes());
    // Ingress.
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Route;
    use crate::flows::{Cache, Limits, Sampled};
    use crate::headers::{
        self, Headers,
        tests::{tcp6, udp4},
    };

    fn flow(headers: &Headers) -> (Flow, End) {
        let mut cache = Cache::new(Limits { most: 9, active_ms: 9, inactive_ms: 9 });
        let route = Route {
            output: Output::Interface(3),
            next_hop: Some([10, 0, 2, 9].into()),
            source_len: 24,
            destination_len: 16,
        };
        cache.count(&Sampled { headers, input: 2, vlan: 5, route }, 1_700_000_000_123);
        cache.drain().remove(0)
    }

    fn both() -> [(Flow, End); 2] {
        [udp4(), tcp6()].map(|frame| flow(&headers::read(&frame).unwrap()))
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn half(bytes: &[u8], at: usize) -> usize {
        u16::from_be_bytes([bytes[at], bytes[at + 1]]).into()
    }

    /// Sets of a message: identifiers and bytes.
    fn sets(message: &[u8]) -> Vec<(usize, &[u8])> {
        assert_eq!((half(message, 0), half(message, 2)), (10, message.len()));
        let (mut at, mut found) = (16, Vec::new());
        while at < message.len() {
            let len = half(message, at + 2);
            assert!(len > 4);
            found.push((half(message, at), &message[at + 4..at + len]));
            at += len;
        }
        assert_eq!(at, message.len());
        found
    }

    /// The lengths of a record by a template's elements, behind `head` bytes of the template.
    fn len_of(template: &[u8], head: usize) -> usize {
        (0..half(template, 2)).map(|n| half(template, head + 4 * n + 2)).sum()
    }

    #[test]
    fn templates_describe_the_records() {
        let mut exporter = Exporter::new(7);
        let messages = exporter.messages(99, Some(1000), &both());
        let [message] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!([4, 8, 12].map(|at| word(message, at)), [99, 0, 7]);
        let found = sets(message);
        assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3, 258, 256, 257]);
        let (four, six) = found[0].1.split_at(4 + 4 * half(found[0].1, 2));
        assert_eq!((half(four, 0), half(six, 0), six.len()), (256, 257, four.len()));
        assert_eq!(len_of(four, 4), found[3].1.len());
        assert_eq!(len_of(six, 4), found[4].1.len());
        assert_eq!((half(found[1].1, 0), half(found[1].1, 4)), (258, 1));
        assert_eq!(len_of(found[1].1, 6), found[2].1.len());
        let options = found[2].1;
        assert_eq!([0, 4, 8].map(|at| word(options, at)), [7, 1, 999]);
        assert_eq!(f64::from_be_bytes(options[12..20].try_into().unwrap()), 0.001);
        // Three records came before the next message.
        assert_eq!(word(&exporter.messages(100, None, &both())[0], 8), 3);
        assert!(exporter.messages(101, None, &[]).is_empty());
    }

    #[test]
    fn a_record_has_the_flow() {
        let [four, six] = both();
        let bytes = record(&four.0, four.1);
        assert_eq!(bytes[..16], [10, 0, 1, 2, 10, 0, 2, 2, 10, 0, 2, 9, 24, 16, 0, 0]);
        assert_eq!([16, 20, 28, 36].map(|at| word(&bytes, at)), [2, 3, 1, 128]);
        assert_eq!(u64::from_be_bytes(bytes[40..48].try_into().unwrap()), 1_700_000_000_123);
        assert_eq!(bytes[56..], [3, 0xe8, 7, 0xd0, 17, 0xb8, 0, 4, 0, 5, 0]);
        let bytes = record(&six.0, six.1);
        assert_eq!((bytes[15], bytes[31], bytes[47]), (1, 2, 0));
        assert_eq!(bytes[92..100], [0, 80, 0x9c, 0x40, 6, 0xb8, 0x12, 4]);
    }

    proptest! {
        /// Messages are within their bound, have whole records, and number them without a gap.
        #[test]
        fn messages_are_whole(kinds in prop::collection::vec(any::<bool>(), 0..80), rate in prop::option::of(1..9u32)) {
            let [four, six] = both();
            let flows: Vec<_> = kinds.iter().map(|&is_six| if is_six { six } else { four }).collect();
            let mut exporter = Exporter::new(1);
            let (mut sequence, lens) = (0, [record(&four.0, four.1).len(), record(&six.0, six.1).len()]);
            let mut counts = [0; 2];
            for message in exporter.messages(1, rate, &flows) {
                prop_assert!(message.len() <= DATAGRAM_MOST);
                prop_assert_eq!(word(&message, 8), sequence);
                for (id, bytes) in sets(&message) {
                    match id {
                        256 | 257 => {
                            let len = lens[id - 256];
                            prop_assert_eq!(bytes.len() % len, 0);
                            counts[id - 256] += bytes.len() / len;
                            sequence += (bytes.len() / len) as u32;
                        }
                        258 => sequence += (bytes.len() / sampling(1, 1).len()) as u32,
                        _ => {}
                    }
                }
            }
            let sixes = kinds.iter().filter(|is_six| **is_six).count();
            prop_assert_eq!(counts, [kinds.len() - sixes, sixes]);
        }
    }
}
