//! Copies of frames for an analyser behind routers: ERSPAN type II (draft-foschiano-erspan-03, 4.2) in GRE (RFC 2784)
//! with sequence numbers (RFC 2890), over IPv4 or IPv6 (RFC 7676).
//!
//! ```text
//!   the frame --> cut to the MTU --> headers in front --> the tags of the egress VLAN --> port
//! ```
//!
//! The analyser is a next hop that the RIB resolves by the routes of a VRF, so a copy costs no lookup, follows changes of
//! the routes, and never waits for a neighbour: without a usable path it is lost. All copies of a session take one path.
//! A copy longer than the egress interface's MTU is cut, and says so (T), since a router must not make the network carry
//! fragments of what nobody asked for; IPv4 packets have "don't fragment" and identification 0 (RFC 6864, 4.1).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use dpdk::Mbuf;
use wire::MacAddr;
use wire::build::{self, Ipv4Fields, Ipv6Fields, Link};
use wire::checksum::checksum;
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader, VlanTag};
use wire::gre::{self, ErspanHeader, GRE_ERSPAN, GRE_SEQUENCE, GreHeader, PROTOCOL_GRE};
use wire::ip::{Ipv4Header, Ipv6Header};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::flow::FlowHash;
use crate::interface::{InterfaceId, InterfaceInfo, Mtus, VrfId};
use crate::next_hop::{NextHop, NextHopTable};
use crate::port::PortId;
use crate::vlan::{TagProtocol, Tagger};

/// An analyser behind routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erspan {
    /// The source address of the copies; of the family of `destination`.
    pub source: IpAddr,
    /// The analyser.
    pub destination: IpAddr,
    /// The VRF whose routes lead there.
    pub vrf: VrfId,
    /// The session's number, up to [`gre::ERSPAN_ID_MAX`].
    pub id: u16,
    /// The DSCP of the copies.
    pub dscp: u8,
    /// Their TTL or hop limit.
    pub ttl: u8,
    /// The most bytes of a frame; `None`: as many as the MTU allows.
    pub length: Option<u16>,
}

/// The mirrored port, and the direction of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) port: PortId,
    pub(crate) is_sent: bool,
}

impl Origin {
    /// The index in the header of ERSPAN.
    fn index(self) -> u32 {
        (self.port.index() as u32) << 1 | u32::from(self.is_sent)
    }
}

/// The way to an analyser.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// The headers of a copy, from Ethernet to ERSPAN, without the fields that differ between copies.
    headers: Box<[u8]>,
    id: u16,
    length: usize,
    is_ip6: bool,
    /// The number of its next hop.
    hop: Arc<AtomicU16>,
    /// The sequence number of the next copy, of all threads.
    sequence: Arc<AtomicU32>,
}

impl Tunnel {
    /// Creates it with the number of its next hop.
    pub(crate) fn new(to: &Erspan, hop: Arc<AtomicU16>, sequence: Arc<AtomicU32>) -> Self {
        let length = to.length.map_or(usize::MAX, usize::from);
        let (headers, is_ip6) = (headers(to).into(), to.destination.is_ipv6());
        Self { headers, id: to.id, length, is_ip6, hop, sequence }
    }

    /// Its counter of copies.
    pub(crate) fn sequence(&self) -> Arc<AtomicU32> {
        self.sequence.clone()
    }

    /// Returns true if packets can be sent there now.
    pub(crate) fn is_reachable(&self, hops: &NextHopTable) -> bool {
        self.forward(hops, FlowHash::new(0)).is_some()
    }

    /// Returns the egress interface and the next hop's address.
    fn forward(&self, hops: &NextHopTable, flows: FlowHash) -> Option<(InterfaceId, MacAddr)> {
        let mut hop = hops.get(self.hop.load(Ordering::Acquire));
        if hop.is_group() {
            hop = hops.get(hops.select(hop, flows.of_frame(&self.headers)));
        }
        match NextHop::from(hop) {
            NextHop::Forward { interface, mac } => Some((interface, mac)),
            _ => None,
        }
    }

    /// Returns the most bytes of a frame that a packet of this length holds; `None`: not even its header.
    fn room(&self, mtu: u16) -> Option<usize> {
        let room = (usize::from(mtu) + ETHERNET_LEN).checked_sub(self.headers.len())?;
        Some(room.min(self.length)).filter(|&room| room >= ETHERNET_LEN)
    }

    /// Cuts the frame to what the exit takes, and puts the headers in front; false if there is no room.
    #[must_use]
    fn encapsulate(&self, frame: &mut Mbuf, exit: &Exit, origin: Origin) -> bool {
        let Some(room) = self.room(exit.mtu) else { return false };
        let is_truncated = frame.len() > room;
        if is_truncated && !frame.trim_to(room) {
            return false;
        }
        let tag = tag_of(frame.data());
        let payload = frame.len() + size_of::<GreHeader>() + size_of::<ErspanHeader>();
        let Some(front) = frame.prepend(self.headers.len()) else { return false };
        front.copy_from_slice(&self.headers);
        let erspan = gre::Erspan { id: self.id, tag, is_truncated, index: origin.index() };
        let link = Link { destination: exit.destination, source: exit.source };
        self.fill(front, link, payload, erspan.header()).is_some()
    }

    /// Fills in the fields that differ between copies. `payload`: bytes after the IP header.
    fn fill(&self, front: &mut [u8], link: Link, payload: usize, last: ErspanHeader) -> Option<()> {
        let (ethernet, packet) = EthernetHeader::mut_from_prefix(front).ok()?;
        (ethernet.destination, ethernet.source) = (link.destination, link.source);
        let payload = u16::try_from(payload).ok()?;
        let rest = if self.is_ip6 {
            let (ip, rest) = Ipv6Header::mut_from_prefix(packet).ok()?;
            ip.payload_length = U16::new(payload);
            rest
        } else {
            let (ip, rest) = Ipv4Header::mut_from_prefix(packet).ok()?;
            ip.total_length = U16::new(payload.checked_add(size_of::<Ipv4Header>() as u16)?);
            ip.checksum = U16::new(0);
            ip.checksum = U16::new(checksum(ip.as_bytes()));
            rest
        };
        let (gre, rest) = GreHeader::mut_from_prefix(rest).ok()?;
        gre.sequence = U32::new(self.sequence.fetch_add(1, Ordering::Relaxed));
        let (erspan, _) = ErspanHeader::mut_from_prefix(rest).ok()?;
        *erspan = last;
        Some(())
    }
}

/// Returns the headers of an empty copy without addresses of the link.
fn headers(to: &Erspan) -> Vec<u8> {
    let gre = GreHeader {
        flags: U16::new(GRE_SEQUENCE),
        protocol: U16::new(GRE_ERSPAN),
        sequence: U32::new(0),
    };
    let last = gre::Erspan { id: to.id, ..gre::Erspan::default() }.header();
    let payload = [gre.as_bytes(), last.as_bytes()].concat();
    let link = Link { destination: MacAddr([0; 6]), source: MacAddr([0; 6]) };
    let class = to.dscp << 2;
    match (to.source, to.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (hop_limit, next_header) = (to.ttl, PROTOCOL_GRE);
            let fields = Ipv6Fields { class, hop_limit, next_header, source, destination };
            let header = build::ipv6_header(fields, payload.len());
            build::ethernet(link, ETHERTYPE_IPV6, &[header.as_bytes(), &payload].concat())
        }
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let fields = Ipv4Fields {
                tos: class,
                identification: 0,
                dont_fragment: true,
                ttl: to.ttl,
                protocol: PROTOCOL_GRE,
                source,
                destination,
            };
            let header = build::ipv4_header(fields, payload.len());
            build::ethernet(link, ETHERTYPE_IPV4, &[header.as_bytes(), &payload].concat())
        }
        // Refused where configurations are read; no frame fits behind these.
        _ => Vec::new(),
    }
}

/// Returns the control information of a frame's first VLAN tag.
fn tag_of(frame: &[u8]) -> Option<u16> {
    let (ethernet, rest) = EthernetHeader::ref_from_prefix(frame).ok()?;
    TagProtocol::of(ethernet.ethertype.get())?;
    let (tag, _) = VlanTag::ref_from_prefix(rest).ok()?;
    Some(tag.control.get())
}

/// The exit of copies to an analyser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    interface: InterfaceId,
    /// The port by which they leave.
    pub(crate) port: PortId,
    destination: MacAddr,
    source: MacAddr,
    mtu: u16,
}

/// The tables by which copies leave; for one thread.
pub(crate) struct Exits {
    pub(crate) next_hops: Arc<NextHopTable>,
    pub(crate) mtus: Arc<Mtus>,
    pub(crate) flows: FlowHash,
    pub(crate) interfaces: Vec<InterfaceInfo>,
    pub(crate) tagger: Tagger,
}

impl Exits {
    /// Returns the exit of a tunnel; `None`: there is no route, the neighbour is unknown, or a bond has no active port.
    pub(crate) fn find(&self, tunnel: &Tunnel) -> Option<Exit> {
        let (interface, destination) = tunnel.forward(&self.next_hops, self.flows)?;
        let info = self.interfaces.get(interface.index())?;
        let mtu = self.mtus.family(tunnel.is_ip6).get(interface);
        let (port, mac) = match interface.port() {
            Some(port) => (port, None),
            None => {
                let exit = self.tagger.exit(interface, self.tagger.hashes(&tunnel.headers))?;
                (exit.port, exit.mac)
            }
        };
        Some(Exit { interface, port, destination, source: mac.unwrap_or(info.mac), mtu })
    }

    /// Makes a packet for this exit of a copy; false if there is no room.
    #[must_use]
    pub(crate) fn wrap(
        &self,
        tunnel: &Tunnel,
        exit: &Exit,
        frame: &mut Mbuf,
        origin: Origin,
    ) -> bool {
        tunnel.encapsulate(frame, exit, origin)
            && (exit.interface.port().is_some() || self.tagger.insert(exit.interface, frame))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::testing::{FrameBuilder, TestTables, dpdk, tagged};

    const SENT: Origin = Origin { port: PortId::FIRST, is_sent: true };

    fn erspan(source: &str, destination: &str) -> Erspan {
        Erspan {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            vrf: VrfId::DEFAULT,
            id: 0x2a5,
            dscp: 46,
            ttl: 9,
            length: None,
        }
    }

    fn ip4() -> Erspan {
        erspan("192.0.2.1", "198.51.100.9")
    }

    /// To next hop 16, which is on interface 3.
    fn tunnel(to: &Erspan, hop: u16) -> Tunnel {
        Tunnel::new(to, Arc::new(AtomicU16::new(hop)), Arc::default())
    }

    /// The packet that carries a frame; `None`: it has no exit.
    fn carried(tables: &crate::tables::Tables, tunnel: &Tunnel, frame: &[u8]) -> Option<Vec<u8>> {
        let exits = tables.exits();
        let exit = exits.find(tunnel)?;
        let mut copy = dpdk().1.copy_of(frame).unwrap();
        exits.wrap(tunnel, &exit, &mut copy, SENT).then(|| copy.data().to_vec())
    }

    #[test]
    fn a_frame_is_carried_in_ipv4_gre_and_erspan() {
        let tables = TestTables::every_kind();
        let tunnel = tunnel(&ip4(), 16);
        let frame = tagged(&FrameBuilder::ip4().udp(1, 2, b"data").build(), 0x8100, 0xa064);
        let packets = [0, 1].map(|_| carried(&tables, &tunnel, &frame).unwrap());
        for (sequence, packet) in (0..).zip(packets) {
            let (link, ip) = EthernetHeader::ref_from_prefix(&packet).unwrap();
            let exit = tables.exits().find(&tunnel).unwrap();
            assert_eq!((link.destination, link.source), (exit.destination, exit.source));
            assert_eq!(exit.source, tables.interfaces.get()[3].mac);
            assert_eq!(link.ethertype, ETHERTYPE_IPV4);
            let (header, rest) = Ipv4Header::ref_from_prefix(ip).unwrap();
            assert_eq!(usize::from(header.total_length.get()), ip.len());
            assert_eq!(checksum(header.as_bytes()), 0);
            assert_eq!((header.tos, header.ttl, header.protocol), (46 << 2, 9, 47));
            assert_eq!(header.source(), Ipv4Addr::new(192, 0, 2, 1));
            assert_eq!(header.destination(), Ipv4Addr::new(198, 51, 100, 9));
            assert!(header.dont_fragment());
            let gre = [0x10, 0, 0x88, 0xbe, 0, 0, 0, sequence];
            let last = [0x10, 0x64, 5 << 5 | 3 << 3 | 2, 0xa5, 0, 0, 0, 1];
            assert_eq!(rest, [&gre[..], &last, &frame].concat());
        }
    }

    #[test]
    fn a_frame_is_carried_in_ipv6() {
        let tunnel = tunnel(&erspan("2001:db8::1", "2001:db8:9::9"), 16);
        let frame = FrameBuilder::ip6().build();
        let packet = carried(&TestTables::every_kind(), &tunnel, &frame).unwrap();
        let (link, ip) = EthernetHeader::ref_from_prefix(&packet).unwrap();
        assert_eq!(link.ethertype, ETHERTYPE_IPV6);
        let (header, rest) = Ipv6Header::ref_from_prefix(ip).unwrap();
        assert_eq!(usize::from(header.payload_length.get()), rest.len());
        assert_eq!(header.version_class_flow.get(), 6 << 28 | 46 << 22);
        assert_eq!((header.hop_limit, header.next_header), (9, 47));
        assert_eq!(header.source(), "2001:db8::1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(header.destination(), "2001:db8:9::9".parse::<Ipv6Addr>().unwrap());
        assert_eq!(rest[8..16], [0x10, 0, 2, 0xa5, 0, 0, 0, 1]);
        assert_eq!(rest[16..], frame);
    }

    #[test]
    fn a_frame_is_cut_to_the_mtu_or_the_length_of_the_session_and_says_so() {
        let tables = TestTables::every_kind();
        let frame = |len| FrameBuilder::ip4().udp(1, 2, &vec![7; len - 42]).build();
        let is_truncated = |packet: &[u8]| packet[44] & 4 != 0;
        // MTU 1500, less 36 bytes of headers.
        for (len, kept) in [(1463, 1463), (1464, 1464), (1465, 1464), (1900, 1464)] {
            let packet = carried(&tables, &tunnel(&ip4(), 16), &frame(len)).unwrap();
            assert_eq!(packet[50..], frame(len)[..kept]);
            assert_eq!(is_truncated(&packet), kept < len, "{len}");
        }
        let short = Erspan { length: Some(100), ..ip4() };
        for (len, kept) in [(100, 100), (101, 100)] {
            let packet = carried(&tables, &tunnel(&short, 16), &frame(len)).unwrap();
            assert_eq!((packet.len() - 50, is_truncated(&packet)), (kept, kept < len));
        }
        // An MTU that holds no frame, and for IPv6 one below its minimum.
        tables.mtus.set(InterfaceId::new(3).unwrap(), 49);
        assert_eq!(carried(&tables, &tunnel(&ip4(), 16), &frame(60)), None);
        tables.mtus.set(InterfaceId::new(3).unwrap(), 1279);
        let ip6 = erspan("2001:db8::1", "2001:db8:9::9");
        assert_eq!(carried(&tables, &tunnel(&ip6, 16), &frame(60)), None);
        assert!(carried(&tables, &tunnel(&ip4(), 16), &frame(60)).is_some());
    }

    #[test]
    fn only_a_next_hop_with_a_mac_is_an_exit() {
        let tables = TestTables::every_kind();
        let frame = FrameBuilder::ip4().build();
        // No route, a network, a gateway without MAC; a neighbour, and a group of two.
        for (hop, is_exit) in [(0, false), (17, false), (18, false), (16, true), (19, true)] {
            let tunnel = tunnel(&ip4(), hop);
            assert_eq!(carried(&tables, &tunnel, &frame).is_some(), is_exit, "{hop}");
            assert_eq!(tunnel.is_reachable(&tables.next_hops), is_exit, "{hop}");
        }
    }
}
