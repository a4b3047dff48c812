//! Test fixtures of this crate: a router with two interfaces, a network around it that records the
//! output, and a checker of every frame the router makes.
//!
//! ```text
//!   A  10.0.1.2, fd00:1::2  --- left  (0)  router  (1) right ---  B  10.0.2.2, fd00:2::2
//!      02:00:00:00:0a:01        10.0.1.1           10.0.2.1          02:00:00:00:0b:01
//!                               fd00:1::1          fd00:2::1
//! ```
//!
//! Routes: the two networks (glean), 192.0.2.0/24 and 2001:db8::/32 to B (known), 198.51.100.0/24
//! through the gateway 10.0.2.254 (next hop 20, unresolved), 203.0.113.0/24 blackhole.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use dataplane::filters::Judgement;
use dataplane::flow::FlowHash;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::multicast::Replication;
use dataplane::next_hop::{self, NextHop};
use dataplane::port::PortId;
use dataplane::reason::{DropReason, Punt, PuntReason};
use ipnet::IpNet;
use wire::MacAddr;
use wire::build::{self, Ipv4Fields, Ipv6Fields, Link};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use zerocopy::IntoBytes;

use crate::neighbour::Waiting;
use crate::{
    Command, Config, Event, Icmp, InterfaceConfig, InterfaceSettings, Limits, Output, RouteAnswer,
    SlowPath, Time,
};

pub(crate) const LEFT: InterfaceId = InterfaceId::FIRST;
pub(crate) const L: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(crate) const R: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub(crate) const A: MacAddr = MacAddr([2, 0, 0, 0, 0x0a, 1]);
pub(crate) const B: MacAddr = MacAddr([2, 0, 0, 0, 0x0b, 1]);
pub(crate) const GATEWAY: u16 = 20;
pub(crate) const TO_B: u16 = 21;
pub(crate) const GLEAN_LEFT: u16 = 22;
pub(crate) const GLEAN_RIGHT: u16 = 23;

pub(crate) fn right() -> InterfaceId {
    InterfaceId::new(1).unwrap()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn secs(n: u64) -> Time {
    Duration::from_secs(n)
}

/// Parses hexadecimal digits to bytes.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// An output of the router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Out {
    Forward(InterfaceId, Vec<u8>),
    Originate(InterfaceId, Vec<u8>),
    ToHost(Vec<u8>),
    Deliver(InterfaceId, Vec<u8>),
    Drop(DropReason),
    /// Interface and address, and true for a frame of the router's own.
    HandOver(InterfaceId, IpAddr, bool),
    Event(Event),
}

/// The network around the router.
#[derive(Default)]
pub(crate) struct Net {
    pub routes: Vec<(IpNet, u16)>,
    /// The VRF of these routes.
    pub vrf: VrfId,
    pub hops: HashMap<u16, NextHop>,
    /// Generation of all next hops: a punt with another one names withdrawn ones.
    pub generation: u16,
    pub outs: Vec<Out>,
    /// Groups joined by the kernel.
    pub joined: Vec<MacAddr>,
    /// Result of every multicast look-up.
    pub replication: Option<Replication>,
    /// Number of received packets that were returned.
    pub returned: usize,
    /// Judgement of every filter, and the incoming and outgoing interface of each packet judged.
    pub judgement: Judgement,
    pub asked: Vec<(InterfaceId, InterfaceId)>,
}

impl Output<Vec<u8>> for Net {
    fn forward(&mut self, interface: InterfaceId, packet: Vec<u8>) {
        self.returned += 1;
        self.outs.push(Out::Forward(interface, packet));
    }

    fn originate(&mut self, interface: InterfaceId, frame: &[u8]) {
        check_frame(frame, if interface == LEFT { L } else { R });
        self.outs.push(Out::Originate(interface, frame.to_vec()));
    }

    fn judge(&mut self, _: &mut Vec<u8>, from: InterfaceId, to: InterfaceId) -> Judgement {
        self.judge_copy(&mut [], from, to)
    }

    fn judge_copy(&mut self, _: &mut [u8], from: InterfaceId, to: InterfaceId) -> Judgement {
        self.asked.push((from, to));
        self.judgement
    }

    fn to_host(&mut self, packet: Vec<u8>) {
        self.returned += 1;
        self.outs.push(Out::ToHost(packet));
    }

    fn deliver(&mut self, interface: InterfaceId, packet: Vec<u8>) {
        self.returned += 1;
        self.outs.push(Out::Deliver(interface, packet));
    }

    fn drop(&mut self, _: Vec<u8>, reason: DropReason) {
        self.returned += 1;
        self.outs.push(Out::Drop(reason));
    }

    fn hand_over(&mut self, interface: InterfaceId, address: IpAddr, waiting: Waiting<Vec<u8>>) {
        let own = match waiting {
            Waiting::Received { .. } => {
                self.returned += 1;
                false
            }
            Waiting::Own(_) => true,
        };
        self.outs.push(Out::HandOver(interface, address, own));
    }

    fn event(&mut self, event: Event) {
        self.outs.push(Out::Event(event));
    }

    fn route(&self, vrf: VrfId, destination: IpAddr, _: u32) -> RouteAnswer {
        let routes = self.routes.iter().filter(|_| vrf == self.vrf);
        let matching = routes.filter(|(net, _)| net.contains(&destination));
        let best = matching.max_by_key(|(net, _)| net.prefix_len());
        let id = best.map_or(next_hop::NO_ROUTE, |&(_, id)| id);
        RouteAnswer { next_hop_id: id, hop: self.next_hop(id) }
    }

    fn next_hop(&self, id: u16) -> NextHop {
        self.hops.get(&id).copied().unwrap_or(NextHop::NoRoute)
    }

    fn punted_to(&self, punt: Punt) -> Option<NextHop> {
        (punt.generation == self.generation).then(|| self.next_hop(punt.next_hop))
    }

    fn replication(
        &mut self,
        _: (IpAddr, IpAddr),
        _: (InterfaceId, u8),
        _: usize,
    ) -> Option<Replication> {
        self.replication.clone()
    }

    fn time_of_day(&self) -> Duration {
        Duration::from_millis(0x0102_0304)
    }

    fn has_joined(&mut self, _: InterfaceId, group: MacAddr) -> bool {
        self.joined.contains(&group)
    }
}

/// The router and the network around it.
pub(crate) struct Bench {
    pub router: SlowPath<Vec<u8>>,
    pub net: Net,
    pub now: Time,
    pub given: usize,
}

pub(crate) fn config() -> Config {
    let interface = |id, name: &str, mac, addresses: [&str; 2]| InterfaceConfig {
        id,
        name: name.into(),
        mac,
        mtu: 1500,
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        host: false,
        is_loopback: false,
        settings: InterfaceSettings::default(),
        owned: true,
    };
    Config {
        interfaces: vec![
            interface(LEFT, "left", L, ["10.0.1.1/24", "fd00:1::1/64"]),
            interface(right(), "right", R, ["10.0.2.1/24", "fd00:2::1/64"]),
        ],
        limits: Limits::default(),
        icmp: Icmp::default(),
        flow: FlowHash::new(1),
        seed: 1,
    }
}

impl Bench {
    /// A router that has sent its announcements.
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: Config) -> Self {
        let mut net = Net::default();
        let hops = [
            (next_hop::LOCAL, NextHop::Local),
            (next_hop::MULTICAST, NextHop::Multicast),
            (next_hop::BLACKHOLE, NextHop::Blackhole),
            (next_hop::MARTIAN, NextHop::Martian),
            (next_hop::PROHIBITED, NextHop::Prohibited),
            (next_hop::UNREACHABLE, NextHop::Unreachable),
            (GATEWAY, NextHop::Unresolved { interface: right() }),
            (TO_B, NextHop::Forward { interface: right(), mac: B }),
            (GLEAN_LEFT, NextHop::Glean { interface: LEFT }),
            (GLEAN_RIGHT, NextHop::Glean { interface: right() }),
        ];
        net.hops.extend(hops);
        let routes = [
            ("10.0.1.0/24", GLEAN_LEFT),
            ("10.0.2.0/24", GLEAN_RIGHT),
            ("fd00:1::/64", GLEAN_LEFT),
            ("fd00:2::/64", GLEAN_RIGHT),
            ("192.0.2.0/24", TO_B),
            ("2001:db8::/32", TO_B),
            ("198.51.100.0/24", GATEWAY),
            ("203.0.113.0/24", next_hop::BLACKHOLE),
            ("127.0.0.0/8", next_hop::MARTIAN),
            ("10.0.1.1/32", next_hop::LOCAL),
            ("10.0.2.1/32", next_hop::LOCAL),
            ("fd00:1::1/128", next_hop::LOCAL),
            ("fd00:2::1/128", next_hop::LOCAL),
            ("10.0.1.255/32", next_hop::LOCAL),
            ("fe80::/10", next_hop::LOCAL),
            ("ff00::/8", next_hop::MULTICAST),
            ("224.0.0.0/4", next_hop::MULTICAST),
        ];
        net.routes.extend(routes.map(|(net, id)| (net.parse().unwrap(), id)));
        let router = SlowPath::new(config);
        let mut bench = Self { router, net, now: Time::ZERO, given: 0 };
        let command =
            Command::NextHop { id: GATEWAY, interface: right(), address: ip("10.0.2.254") };
        bench.router.silence();
        bench.command(command);
        let gateway = Command::RemoveNeighbour { interface: right(), address: ip("10.0.2.254") };
        bench.command(gateway);
        bench.take();
        bench
    }

    /// A router with A and B in its table.
    pub(crate) fn with_hosts(config: Config) -> Self {
        let mut bench = Self::with(config);
        for (interface, address, mac) in [
            (LEFT, "10.0.1.2", A),
            (LEFT, "fd00:1::2", A),
            (right(), "10.0.2.2", B),
            (right(), "fd00:2::2", B),
        ] {
            bench.command(Command::AddStaticNeighbour { interface, address: ip(address), mac });
        }
        bench.take();
        bench.router.restart_identifications();
        bench
    }

    pub(crate) fn command(&mut self, command: Command) {
        self.router.command(command, self.now, &mut self.net);
    }

    /// Punts a packet to the router and returns the output.
    pub(crate) fn punt(
        &mut self,
        reason: PuntReason,
        interface: InterfaceId,
        next_hop: u16,
        frame: Vec<u8>,
    ) -> Vec<Out> {
        self.given += 1;
        let port = interface.port().unwrap_or(PortId::FIRST);
        let punt = Punt { reason, port, interface, next_hop, generation: 0 };
        self.router.packet(frame, punt, self.now, &mut self.net);
        self.take()
    }

    pub(crate) fn local(&mut self, frame: Vec<u8>) -> Vec<Out> {
        self.punt(PuntReason::Local, LEFT, next_hop::LOCAL, frame)
    }

    pub(crate) fn arp(&mut self, frame: Vec<u8>) -> Vec<Out> {
        self.punt(PuntReason::Arp, LEFT, next_hop::NO_ROUTE, frame)
    }

    /// Advances the time, tick by tick, and returns the output.
    pub(crate) fn pass(&mut self, time: Duration) -> Vec<Out> {
        let end = self.now + time;
        while let Some(deadline) = self.router.next_deadline().filter(|&d| d <= end) {
            self.now = self.now.max(deadline);
            self.router.tick(self.now, &mut self.net);
        }
        self.now = end;
        self.take()
    }

    pub(crate) fn take(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.net.outs)
    }

    /// Asserts that every packet passed to the router was returned or waits.
    pub(crate) fn assert_nothing_lost(&self) {
        assert_eq!(self.given, self.net.returned + self.router.held());
    }
}

/// Frames in the output that the router made.
pub(crate) fn originated(outs: &[Out]) -> Vec<&[u8]> {
    outs.iter()
        .filter_map(|out| match out {
            Out::Originate(_, frame) => Some(frame.as_slice()),
            _ => None,
        })
        .collect()
}

/// Drop reasons in the output.
pub(crate) fn drops(outs: &[Out]) -> Vec<DropReason> {
    outs.iter()
        .filter_map(|out| match out {
            Out::Drop(reason) => Some(*reason),
            _ => None,
        })
        .collect()
}

/// Returns the ICMP or ICMPv6 type and code of a frame without options or extension headers.
pub(crate) fn icmp_type(frame: &[u8]) -> (u8, u8) {
    let at = if frame[12..14] == [8, 0] { 34 } else { 54 };
    (frame[at], frame[at + 1])
}

/// Builds an IPv4 frame from A with the fields a test needs.
pub(crate) fn v4(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let fields = Ipv4Fields {
        tos: 0,
        identification: 7,
        dont_fragment: false,
        ttl: 64,
        protocol,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    let header = build::ipv4_header(fields, payload.len());
    let link = Link { destination: L, source: A };
    build::ethernet(link, ETHERTYPE_IPV4, &[header.as_bytes(), payload].concat())
}

/// Builds an IPv6 frame from A with the fields a test needs.
pub(crate) fn v6(source: &str, destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let fields = Ipv6Fields {
        class: 0,
        hop_limit: 64,
        next_header,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    let header = build::ipv6_header(fields, payload.len());
    let link = Link { destination: L, source: A };
    build::ethernet(link, ETHERTYPE_IPV6, &[header.as_bytes(), payload].concat())
}

/// Sets the UDP or TCP checksum of a frame without options or extension headers, by the definition.
/// A field that does not fit stays as it is.
pub(crate) fn with_l4_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let (upper, addresses, protocol) =
        if frame[12] == 8 { (34, 26..34, frame[23]) } else { (54, 22..54, frame[20]) };
    let at = upper + if protocol == 6 { 16 } else { 6 };
    if at + 2 > frame.len() {
        return frame;
    }
    frame[at..at + 2].fill(0);
    let length = ((frame.len() - upper) as u32).to_be_bytes();
    let pieces = [&frame[addresses], &length, &[0, 0, 0, protocol], &frame[upper..]];
    // 0 would mean "no checksum".
    let sum = 0xffff - remainder(&pieces) % 0xffff;
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Builds a UDP header and data, without checksum.
pub(crate) fn udp(length: usize) -> Vec<u8> {
    let mut bytes = vec![0x80, 0xe8, 0x82, 0x9a, 0, 0, 0, 0];
    bytes.extend((0..length).map(|n| n as u8));
    let total = bytes.len() as u16;
    bytes[4..6].copy_from_slice(&total.to_be_bytes());
    bytes
}

/// Builds an IPv4 frame from A with these options (a multiple of 4 bytes) and 100 bytes of UDP.
pub(crate) fn v4_with_options(destination: &str, options: &[u8]) -> Vec<u8> {
    let mut frame = v4("10.0.1.2", destination, 17, &[options, &udp(92)].concat());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    fix_v4_checksum(&mut frame);
    frame
}

/// Sets the header checksum of an IPv4 frame, by the definition.
pub(crate) fn fix_v4_checksum(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 0xf) * 4;
    frame[24..26].fill(0);
    let sum = 0xffff - remainder(&[&frame[14..end]]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the ICMPv6 checksum of an IPv6 frame whose ICMPv6 message starts `at` this offset.
pub(crate) fn fix_icmpv6_checksum(frame: &mut [u8], at: usize) {
    frame[at + 2..at + 4].fill(0);
    let length = ((frame.len() - at) as u32).to_be_bytes();
    let sum = 0xffff - remainder(&[&frame[22..54], &length, &[0, 0, 0, 58], &frame[at..]]);
    frame[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
}

/// One's complement sum as arithmetic: the remainder modulo 65535 of all words. 0 stands for 0xffff
/// too. Shares no code with `wire`.
fn remainder(pieces: &[&[u8]]) -> u16 {
    let mut remainder: u64 = 0;
    for piece in pieces {
        for (index, &byte) in piece.iter().enumerate() {
            let value = if index % 2 == 0 { u64::from(byte) << 8 } else { u64::from(byte) };
            remainder = (remainder + value) % 65535;
        }
    }
    remainder as u16
}

/// Checks a frame that the router made: MACs, lengths, checksums.
pub(crate) fn check_frame(frame: &[u8], source: MacAddr) {
    assert_eq!(frame[6..12], source.0, "source MAC");
    assert_ne!(frame[..6], [0; 6], "destination MAC");
    let packet = &frame[14..];
    match frame[12..14] {
        [0x08, 0x06] => assert_eq!(packet.len(), 28),
        [0x08, 0x00] => {
            let header = usize::from(packet[0] & 0xf) * 4;
            assert_eq!(packet[0] >> 4, 4);
            assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
            assert_eq!(remainder(&[&packet[..header]]), 0, "IPv4 header checksum");
            let fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
            if packet[9] == 1 && !fragment {
                assert_eq!(remainder(&[&packet[header..]]), 0, "ICMP checksum");
            }
        }
        [0x86, 0xdd] => {
            assert_eq!(packet[0] >> 4, 6);
            let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            assert_eq!(length, packet.len() - 40);
            if packet[6] == 44 {
                return assert_eq!(packet[40], 58, "a fragment of an ICMPv6 message");
            }
            let start = if packet[6] == 0 { 48 } else { 40 };
            if packet[24] == 0xff && packet[25] & 0xf > 2 {
                return assert_eq!(frame[..2], [0x33, 0x33], "a copy of what was sent to a group");
            }
            if let 6 | 17 = packet[6] {
                let length = ((packet.len() - 40) as u32).to_be_bytes();
                let pieces = [&packet[8..40], &length, &[0, 0, 0, packet[6]], &packet[40..]];
                return assert_eq!(remainder(&pieces), 0, "checksum of TCP or UDP");
            }
            assert_eq!(packet[start - 40 + if start == 48 { 32 } else { 6 }], 58);
            let length = ((packet.len() - start) as u32).to_be_bytes();
            let pieces = [&packet[8..40], &length, &[0, 0, 0, 58], &packet[start..]];
            assert_eq!(remainder(&pieces), 0, "ICMPv6 checksum");
        }
        [0x88, 0x09] => assert_eq!(packet.len(), wire::lacp::PDU_LEN),
        _ => panic!("ethertype {:02x?}", &frame[12..14]),
    }
}
