//! Connection tracking by netlink (ctnetlink): the kernel's messages about connections, and requests that change one.
//!
//! | connection | taken as a flow |
//! |---|---|
//! | TCP, established, assured | yes |
//! | UDP, assured: packets of both directions for some seconds | yes |
//! | others, and those that are about to end | no |
//! | expected by a helper, or with one (FTP, SIP), with changed sequence numbers, of SYN proxies | no: the kernel reads or changes their payload |
//! | of a zone other than 0; of flow tables of nftables | no |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::netlink::{Attribute, Attributes, Raw, Request};
use crate::nft::FIXED;

/// `NFNL_SUBSYS_CTNETLINK`.
const SUBSYSTEM: u16 = 1 << 8;
const IPCTNL_MSG_CT_NEW: u16 = SUBSYSTEM;
const IPCTNL_MSG_CT_GET: u16 = SUBSYSTEM | 1;
const IPCTNL_MSG_CT_DELETE: u16 = SUBSYSTEM | 2;

/// `NFNLGRP_CONNTRACK_UPDATE` and `NFNLGRP_CONNTRACK_DESTROY`: no connection is taken when it is new.
pub const GROUPS: u32 = 1 << 1 | 1 << 2;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_HELP: u16 = 5;
const CTA_TIMEOUT: u16 = 7;
const CTA_ID: u16 = 12;
const CTA_TUPLE_MASTER: u16 = 14;
const CTA_ZONE: u16 = 18;
const CTA_SYNPROXY: u16 = 24;

const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;

const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;

/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

const TCP_CONNTRACK_ESTABLISHED: u8 = 3;

/// `IP_CT_TCP_FLAG_BE_LIBERAL`: packets outside of the window are accepted.
const BE_LIBERAL: u8 = 0x08;
/// `IP_CT_TCP_FLAG_MAXACK_SET`: the highest acknowledgement is known, below which a RST is invalid.
const MAXACK_SET: u8 = 0x20;

// `IPS_*`.
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const SEQUENCE_ADJUSTED: u32 = 1 << 6;
const DYING: u32 = 1 << 9;
const TEMPLATE: u32 = 1 << 11;
const HELPER: u32 = 1 << 13;
const OFFLOADED: u32 = 1 << 14 | 1 << 15;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Addresses, ports and protocol of the packets of one direction, as they are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
    /// TCP or UDP, by its number.
    pub protocol: u8,
}

impl Tuple {
    /// Reads that of TCP or UDP.
    fn read(attributes: Attributes<'_>) -> Option<Self> {
        let (addresses, ports) =
            (attributes.nested(CTA_TUPLE_IP), attributes.nested(CTA_TUPLE_PROTO));
        let four = |kind| {
            let bytes: &[u8; 4] = addresses.get(kind)?.value.first_chunk()?;
            Some(IpAddr::from(Ipv4Addr::from(*bytes)))
        };
        let six = |kind| {
            let bytes: &[u8; 16] = addresses.get(kind)?.value.first_chunk()?;
            Some(IpAddr::from(Ipv6Addr::from(*bytes)))
        };
        let protocol = ports.get(CTA_PROTO_NUM)?.u8()?;
        let port = |kind| ports.get(kind).and_then(be16);
        Some(Self {
            source: four(CTA_IP_V4_SRC).or_else(|| six(CTA_IP_V6_SRC))?,
            destination: four(CTA_IP_V4_DST).or_else(|| six(CTA_IP_V6_DST))?,
            source_port: port(CTA_PROTO_SRC_PORT)?,
            destination_port: port(CTA_PROTO_DST_PORT)?,
            protocol: [TCP, UDP].contains(&protocol).then_some(protocol)?,
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let (mut addresses, mut ports) = (Vec::new(), Vec::new());
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(&mut addresses, CTA_IP_V4_SRC, &source.octets());
                put(&mut addresses, CTA_IP_V4_DST, &destination.octets());
            }
            (source, destination) => {
                put(&mut addresses, CTA_IP_V6_SRC, &six(source).octets());
                put(&mut addresses, CTA_IP_V6_DST, &six(destination).octets());
            }
        }
        put(&mut ports, CTA_PROTO_NUM, &[self.protocol]);
        put(&mut ports, CTA_PROTO_SRC_PORT, &self.source_port.to_be_bytes());
        put(&mut ports, CTA_PROTO_DST_PORT, &self.destination_port.to_be_bytes());
        let mut bytes = Vec::new();
        put(&mut bytes, CTA_TUPLE_IP | NESTED, &addresses);
        put(&mut bytes, CTA_TUPLE_PROTO | NESTED, &ports);
        bytes
    }
}

fn six(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    }
}

/// Adds an attribute.
fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn be16(attribute: Attribute<'_>) -> Option<u16> {
    attribute.value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// A connection whose packets may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Packets of its initiator, as they are received.
    pub original: Tuple,
    /// Packets of the other end, as they are received: to the address and port that the initiator's packets are sent from.
    pub reply: Tuple,
    /// The kernel's number of the connection, which another of the same addresses and ports does not have.
    pub number: u32,
}

impl Flow {
    /// Returns true for TCP.
    pub fn is_tcp(&self) -> bool {
        self.original.protocol == TCP
    }
}

/// What a message says about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its packets may be taken.
    Flow,
    /// They are the kernel's.
    Kernel,
    /// The message does not tell.
    Untold,
    /// It has ended.
    Ended,
}

/// Reads a message about a connection of TCP or UDP.
pub fn read(raw: &Raw<'_>) -> Option<(Flow, State)> {
    let (_, attributes) = raw.split::<FIXED>()?;
    let direction = |kind| Tuple::read(attributes.nested(kind));
    let flow = Flow {
        original: direction(CTA_TUPLE_ORIG)?,
        reply: direction(CTA_TUPLE_REPLY)?,
        number: attributes.get(CTA_ID).and_then(Attribute::be32)?,
    };
    match raw.kind {
        IPCTNL_MSG_CT_NEW => Some((flow, state(&flow, attributes))),
        IPCTNL_MSG_CT_DELETE => Some((flow, State::Ended)),
        _ => None,
    }
}

fn state(flow: &Flow, attributes: Attributes<'_>) -> State {
    let has = |kind| attributes.get(kind).is_some();
    let zones = [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY].map(|of| attributes.nested(of));
    let zone = attributes.get(CTA_ZONE).and_then(be16).unwrap_or(0);
    let is_special = [CTA_HELP, CTA_TUPLE_MASTER, CTA_SYNPROXY].into_iter().any(has)
        || zone != 0
        || zones.iter().any(|of| of.get(CTA_TUPLE_ZONE).is_some());
    let Some(status) = attributes.get(CTA_STATUS).and_then(Attribute::be32) else {
        return State::Untold;
    };
    const WANTED: u32 = SEEN_REPLY | ASSURED;
    const REFUSED: u32 = EXPECTED | SEQUENCE_ADJUSTED | DYING | TEMPLATE | HELPER | OFFLOADED;
    if is_special || status & WANTED != WANTED || status & REFUSED != 0 {
        return State::Kernel;
    }
    let tcp = attributes.nested(CTA_PROTOINFO).nested(CTA_PROTOINFO_TCP);
    match tcp.get(CTA_PROTOINFO_TCP_STATE).and_then(Attribute::u8) {
        _ if !flow.is_tcp() => State::Flow,
        Some(TCP_CONNTRACK_ESTABLISHED) => State::Flow,
        Some(_) => State::Kernel,
        None => State::Untold,
    }
}

/// Returns the request for all connections.
pub fn all() -> Request {
    Request::new(IPCTNL_MSG_CT_GET, &[0; FIXED])
}

/// Returns the request that prepares a connection for packets that the kernel does not see: of TCP it no longer minds
/// sequence numbers, of which it has old ones. With a time, the connection expires after that.
pub fn change(flow: &Flow, expires: Option<Duration>) -> Request {
    let family = if flow.original.source.is_ipv4() { 2 } else { 10 };
    let mut request = Request::new(IPCTNL_MSG_CT_NEW, &[family, 0, 0, 0])
        .attribute(CTA_TUPLE_ORIG | NESTED, &flow.original.bytes())
        .attribute(CTA_ID, &flow.number.to_be_bytes());
    if let Some(expires) = expires {
        let seconds = u32::try_from(expires.as_secs()).unwrap_or(u32::MAX).max(1);
        request = request.attribute(CTA_TIMEOUT, &seconds.to_be_bytes());
    }
    if flow.is_tcp() {
        // Flags, and the mask of those that are set.
        let flags = [BE_LIBERAL, BE_LIBERAL | MAXACK_SET];
        let (mut tcp, mut bytes) = (Vec::new(), Vec::new());
        put(&mut tcp, CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &flags);
        put(&mut tcp, CTA_PROTOINFO_TCP_FLAGS_REPLY, &flags);
        put(&mut bytes, CTA_PROTOINFO_TCP | NESTED, &tcp);
        request = request.attribute(CTA_PROTOINFO | NESTED, &bytes);
    }
    request
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::messages;

    /// Recorded by `recorded/record_connections.py` (Linux 6.1).
    const ALL: &[u8] = include_bytes!("../recorded/connections.bin");
    const EVENTS: &[u8] = include_bytes!("../recorded/connection_events.bin");

    fn read_all(bytes: &[u8]) -> Vec<(Flow, State)> {
        messages(bytes).filter_map(|raw| read(&raw)).collect()
    }

    fn end(address: &str, port: u16) -> (IpAddr, u16) {
        (address.parse().unwrap(), port)
    }

    fn ends(tuple: Tuple) -> [(IpAddr, u16); 2] {
        [(tuple.source, tuple.source_port), (tuple.destination, tuple.destination_port)]
    }

    #[test]
    fn established_connections_of_the_kernel_are_flows_with_their_translation() {
        let all = read_all(ALL);
        let state = |port: u16| {
            let is_it = |(flow, _): &&(Flow, State)| flow.original.destination_port == port;
            all.iter().find(is_it).map(|(flow, state)| (*flow, *state)).unwrap()
        };
        let (masqueraded, is_flow) = state(80);
        assert_eq!((is_flow, masqueraded.is_tcp()), (State::Flow, true));
        assert_eq!(ends(masqueraded.original), [end("10.0.1.2", 51044), end("10.0.2.2", 80)]);
        assert_eq!(ends(masqueraded.reply), [end("10.0.2.2", 80), end("10.0.2.1", 58326)]);
        let (forwarded, is_flow) = state(81);
        assert_eq!(is_flow, State::Flow);
        assert_eq!(ends(forwarded.original)[1], end("10.0.1.1", 81));
        assert_eq!(ends(forwarded.reply), [end("10.0.2.2", 80), end("10.0.2.1", 61181)]);
        assert_eq!(state(53).1, State::Flow, "UDP in both directions for seconds");
        assert_eq!(state(54).1, State::Kernel, "UDP without an answer");
        assert_eq!(state(99).1, State::Kernel, "of a zone");
        let six = all.iter().find(|(flow, _)| flow.original.source.is_ipv6()).unwrap();
        assert_eq!(
            (six.1, six.0.original.source_port),
            (State::Flow, six.0.reply.destination_port)
        );
    }

    #[test]
    fn a_connection_is_a_flow_from_its_establishment_to_its_end() {
        let events = read_all(EVENTS);
        let of = |port: u16| {
            let is_it = move |(flow, _): &&(Flow, State)| {
                flow.original.destination_port == port && flow.original.source.is_ipv4()
            };
            events.iter().filter(is_it).map(|(_, state)| *state).collect::<Vec<_>>()
        };
        let (established, kernels, ended) = (State::Flow, State::Kernel, State::Ended);
        // SYN_RECV, ESTABLISHED, FIN_WAIT, LAST_ACK, TIME_WAIT.
        assert_eq!(of(80), [kernels, established, kernels, kernels, kernels, ended]);
        assert_eq!(of(53), [kernels, established, ended]);
        let numbers = |port| {
            let of = events.iter().filter(|(flow, _)| flow.original.source_port == port);
            of.map(|(flow, _)| flow.number).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(numbers(51044).len(), 1);
    }

    /// The place of an attribute's value in the first connection of TCP.
    fn changed(kind: u16, change: impl Fn(&mut [u8])) -> State {
        let mut bytes = ALL.to_vec();
        let tcp = read_all(ALL).iter().position(|(flow, _)| flow.is_tcp()).unwrap();
        let mut at = 0;
        for _ in 0..tcp {
            at += u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
        }
        let end = at + u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
        let mut of = at + 20;
        while of < end {
            let half = |at: usize| u16::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
            let (length, found) = (usize::from(half(of)), half(of + 2) & 0x3fff);
            if found == kind {
                change(&mut bytes[of..of + length]);
                break;
            }
            of += length.next_multiple_of(4);
        }
        assert!(of < end, "the attribute is there");
        read_all(&bytes)[tcp].1
    }

    #[test]
    fn connections_whose_payload_is_the_kernels_are_no_flows() {
        assert_eq!(changed(CTA_STATUS, |_| {}), State::Flow);
        let flags = [EXPECTED, SEQUENCE_ADJUSTED, DYING, TEMPLATE, HELPER, 1 << 14, 1 << 15];
        for flag in flags {
            let set = |attribute: &mut [u8]| {
                let status = u32::from_be_bytes(*attribute[4..].first_chunk().unwrap()) | flag;
                attribute[4..8].copy_from_slice(&status.to_be_bytes());
            };
            assert_eq!(changed(CTA_STATUS, set), State::Kernel, "{flag:#x}");
        }
        for (lost, state) in [(ASSURED, State::Kernel), (SEEN_REPLY, State::Kernel)] {
            let clear = |attribute: &mut [u8]| {
                let status = u32::from_be_bytes(*attribute[4..].first_chunk().unwrap()) & !lost;
                attribute[4..8].copy_from_slice(&status.to_be_bytes());
            };
            assert_eq!(changed(CTA_STATUS, clear), state, "{lost:#x}");
        }
        // A mark becomes a helper, an expectation's master, a SYN proxy.
        for kind in [CTA_HELP, CTA_TUPLE_MASTER, CTA_SYNPROXY] {
            let set = |attribute: &mut [u8]| attribute[2..4].copy_from_slice(&kind.to_ne_bytes());
            const CTA_MARK: u16 = 8;
            assert_eq!(changed(CTA_MARK, set), State::Kernel, "{kind}");
        }
        const CTA_UNKNOWN: u16 = 200;
        let hide =
            |attribute: &mut [u8]| attribute[2..4].copy_from_slice(&CTA_UNKNOWN.to_ne_bytes());
        assert_eq!(changed(CTA_STATUS, hide), State::Untold);
        assert_eq!(changed(CTA_PROTOINFO, hide), State::Untold);
    }

    #[test]
    fn requests_name_connections_as_the_kernel_does() {
        for (flow, _) in read_all(ALL) {
            let bytes = change(&flow, Some(Duration::from_millis(90_500))).bytes(0, 1);
            let raw = messages(&bytes).next().unwrap();
            let (fixed, attributes) = raw.split::<FIXED>().unwrap();
            assert_eq!(fixed[0], if flow.original.source.is_ipv4() { 2 } else { 10 });
            assert_eq!(Tuple::read(attributes.nested(CTA_TUPLE_ORIG)), Some(flow.original));
            assert_eq!(attributes.get(CTA_TIMEOUT).and_then(Attribute::be32), Some(90));
            let tcp = attributes.nested(CTA_PROTOINFO).nested(CTA_PROTOINFO_TCP);
            let flags = tcp.get(CTA_PROTOINFO_TCP_FLAGS_REPLY).map(|of| of.value);
            assert_eq!(flags, flow.is_tcp().then_some(&[0x08, 0x28][..]));
        }
    }

    proptest! {
        #[test]
        fn no_message_is_a_crash(changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..20), cut in any::<u16>()) {
            let mut bytes = [ALL, EVENTS].concat();
            for (at, byte) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - usize::from(cut) % bytes.len());
            for (flow, _) in read_all(&bytes) {
                change(&flow, None).bytes(0, 1);
            }
        }
    }
}
