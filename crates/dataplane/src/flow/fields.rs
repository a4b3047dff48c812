//! Other fields for the selection among equal-cost paths than addresses, protocol and ports.
//!
//! | field | packets |
//! |---|---|
//! | without `ports` | all packets between two hosts take one path, fragments and whole ones alike |
//! | `flow_label` | IPv6: the flow label counts besides the ports (RFC 6438), which fragments, tunnels and extension headers hide |
//! | `inner` | the headers in a tunnel count instead of the tunnel's: IP in IP, GRE, VXLAN, Geneve, GTP-U |
//! | `symmetric` | both directions of a flow have one hash, with a common seed also in two routers |
//!
//! A packet whose inner headers cannot be read (a fragment of the tunnel's packet, another protocol) counts as one of the
//! tunnel.

use wire::ip::PROTOCOL_UDP as UDP;

use super::{FlowHash, ports, read_u64};
use crate::head::ETHERNET;

const IPV4: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;

/// Tunnels in tunnels that are looked into, and extension headers of GTP-U.
const DEPTH: usize = 4;

/// Length of a header of UDP.
const UDP_LEN: usize = 8;

/// Ports of tunnels over UDP.
const VXLAN: u16 = 4789;
const GENEVE: u16 = 6081;
const GTP_U: u16 = 2152;

/// EtherTypes.
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const TYPE_VLAN: u16 = 0x8100;
const TYPE_BRIDGING: u16 = 0x6558;

/// The fields by which paths are selected, besides addresses and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFields {
    /// Ports of TCP, UDP, SCTP and DCCP.
    pub ports: bool,
    /// The flow label of IPv6.
    pub flow_label: bool,
    /// The headers in a tunnel instead of the tunnel's.
    pub inner: bool,
    /// Both directions of a flow alike.
    pub symmetric: bool,
}

impl Default for FlowFields {
    fn default() -> Self {
        Self { ports: true, flow_label: false, inner: false, symmetric: false }
    }
}

impl FlowHash {
    /// The hash of an IP packet's chosen fields; 0 unless it is IPv4 or IPv6.
    pub(super) fn of_fields(&self, packet: &[u8]) -> u32 {
        let packet = if self.fields.inner { innermost(packet) } else { packet };
        let Some(header) = Header::of(packet) else { return 0 };
        let ports = if self.fields.ports { header.ports() } else { 0 };
        let mut ends = [(header.address(0), ports >> 16), (header.address(1), ports & 0xffff)];
        if self.fields.symmetric {
            ends.sort_unstable();
        }
        let [(from, sport), (to, dport)] = ends;
        let label = if self.fields.flow_label { header.label() } else { 0 };
        let last = u64::from(header.protocol) << 32 | u64::from(sport << 16 | dport);
        self.mix(&[from[0], from[1], to[0], to[1], last, label.into()])
    }
}

/// The header of an IP packet.
struct Header<'a> {
    packet: &'a [u8],
    protocol: u8,
    len: usize,
    is_ip6: bool,
    is_fragment: bool,
}

impl<'a> Header<'a> {
    fn of(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<20>()?;
                let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
                let len = usize::from(header[0] & 0xf) * 4;
                Some(Self { packet, protocol: header[9], len, is_ip6: false, is_fragment })
            }
            6 => {
                let protocol = packet.first_chunk::<40>()?[6];
                Some(Self { packet, protocol, len: 40, is_ip6: true, is_fragment: false })
            }
            _ => None,
        }
    }

    /// The address of the source, 0, or destination, 1, as two words.
    fn address(&self, which: usize) -> [u64; 2] {
        let bytes = |from: usize| self.packet.get(from..).unwrap_or_default();
        if self.is_ip6 {
            return [0, 8].map(|half| read_u64(bytes(8 + 16 * which + half)));
        }
        let address = bytes(12 + 4 * which).first_chunk();
        [0, address.map_or(0, |address| u32::from_be_bytes(*address).into())]
    }

    fn ports(&self) -> u32 {
        if self.is_fragment { 0 } else { ports(self.packet, self.protocol, self.len) }
    }

    fn label(&self) -> u32 {
        let first = self.packet.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
        if self.is_ip6 { first & 0xf_ffff } else { 0 }
    }

    /// The packet in this one, if this is a tunnel's.
    fn inner(&self) -> Option<&'a [u8]> {
        let payload = self.packet.get(self.len..).filter(|_| !self.is_fragment)?;
        match self.protocol {
            IPV4 | IPV6 => Some(payload),
            GRE => of_gre(payload),
            UDP => of_udp(payload),
            _ => None,
        }
    }
}

/// The packet in the innermost tunnel that can be read.
fn innermost(mut packet: &[u8]) -> &[u8] {
    for _ in 0..DEPTH {
        let inner = Header::of(packet).and_then(|header| header.inner());
        match inner.filter(|inner| Header::of(inner).is_some()) {
            Some(inner) => packet = inner,
            None => break,
        }
    }
    packet
}

/// RFC 2784 2.1, RFC 2890 2: checksum, key and sequence number are optional.
fn of_gre(bytes: &[u8]) -> Option<&[u8]> {
    let &[flags, version, high, low] = bytes.first_chunk()?;
    if flags & 0x4f != 0 || version & 0x87 != 0 {
        return None;
    }
    let options = [0x80, 0x20, 0x10].iter().filter(|&&bit| flags & bit != 0).count();
    of_type(u16::from_be_bytes([high, low]), bytes.get(4 + 4 * options..)?)
}

/// VXLAN (RFC 7348 5), Geneve (RFC 8926 3.4), GTP-U (3GPP TS 29.281 5.1).
fn of_udp(bytes: &[u8]) -> Option<&[u8]> {
    let &[_, _, high, low] = bytes.first_chunk()?;
    let tunnel = bytes.get(UDP_LEN..)?;
    match u16::from_be_bytes([high, low]) {
        VXLAN => of_type(TYPE_BRIDGING, tunnel.get(8..)?),
        GENEVE => {
            let &[options, _, high, low] = tunnel.first_chunk()?;
            let len = 8 + 4 * usize::from(options & 0x3f);
            of_type(u16::from_be_bytes([high, low]), tunnel.get(len..)?)
        }
        GTP_U => of_gtp(tunnel),
        _ => None,
    }
}

/// User data, type 255, of version 1. Any of three flags means four more bytes; the last of them is the type of an
/// extension header, whose first byte is its length in words and whose last one is the type of the next.
fn of_gtp(bytes: &[u8]) -> Option<&[u8]> {
    let &[flags, kind] = bytes.first_chunk()?;
    if flags & 0xf0 != 0x30 || kind != 255 {
        return None;
    }
    if flags & 7 == 0 {
        return bytes.get(8..);
    }
    let (mut at, mut has_next) = (12, flags & 4 != 0);
    for _ in 0..DEPTH {
        if !has_next || *bytes.get(at - 1)? == 0 {
            break;
        }
        let words = *bytes.get(at)?;
        at += 4 * usize::from(words);
        has_next = words != 0;
    }
    bytes.get(at..)
}

/// The packet of this type; Ethernet frames may have a VLAN tag.
fn of_type(kind: u16, bytes: &[u8]) -> Option<&[u8]> {
    match kind {
        TYPE_IPV4 | TYPE_IPV6 => Some(bytes),
        TYPE_BRIDGING => {
            let word =
                |at: usize| bytes.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two));
            let tag = if word(12)? == TYPE_VLAN { 4 } else { 0 };
            let is_ip = matches!(word(12 + tag)?, TYPE_IPV4 | TYPE_IPV6);
            bytes.get(ETHERNET + tag..).filter(|_| is_ip)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
