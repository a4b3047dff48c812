//! Forwarding what the graph could not: RFC 1812, 5.2 and 5.3; RFC 8200; fragmentation as in
//! RFC 791, 3.2.
//!
//! In this order: what the route says, scope, TTL, MTU, then the neighbour. A packet that waits
//! for a neighbour is kept as it was received, so that an error about it quotes what its sender
//! sent (RFC 1812, 4.3.2.3); TTL, checksum and MACs change when it leaves.
//!
//! A packet that is too big for its link leaves in fragments if its DF bit is clear: the received
//! buffer becomes the first, the others are originated, so the counters' sum closes.
//!
//! Drops: `no-route`, `prohibited`, `unreachable`, `blackhole`, `martian-destination`,
//! `l2-broadcast`, `beyond-scope`, `ip6-martian-source`, `ttl-expired`, `too-big`,
//! `neighbour-failed`, `neighbour-queue-full`, `neighbour-table-full`.

use dataplane::next_hop::NextHop;
use dataplane::port::PortId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::checksum::{self, checksum};
use wire::ethernet::ETHERNET_LEN;
use wire::ip::{IPV4_MIN_LEN, IPV4_MORE_FRAGMENTS, IPV4_OFFSET_BITS, Ipv4Header, Ipv6Header};
use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::frame::{self, IpPacket};
use crate::icmp::Error;
use crate::neighbour::{Key, Waiting};
use crate::options::options_v4;
use crate::{Output, Packet, SlowPath, Time};

/// Where a packet is to go next.
enum Target {
    /// To this MAC.
    Mac(PortId, MacAddr),
    /// To this neighbour, whose MAC has to be found.
    Neighbour(Key),
}

impl Target {
    fn port(&self) -> PortId {
        match self {
            Self::Mac(port, _) | Self::Neighbour((port, _)) => *port,
        }
    }
}

/// Why a packet is not forwarded, and what its sender is told.
type Refused = (Option<Error>, DropReason);

impl<P: Packet> SlowPath<P> {
    /// Forwards a packet to the next hop that was found for it.
    pub(crate) fn forward(
        &mut self,
        packet: P,
        from: PortId,
        (id, hop): (u16, NextHop),
        now: Time,
        out: &mut impl Output<P>,
    ) {
        if hop == NextHop::Local {
            return self.local(packet, from, now, out);
        }
        match self.check_forward(packet.bytes(), id, hop) {
            Ok(target) => {
                let waiting = Waiting::Received { packet, from };
                match target {
                    Target::Mac(port, mac) => self.transmit(waiting, port, mac, out),
                    Target::Neighbour(key) => self.send_to(key, waiting, now, out),
                }
            }
            Err((Some(error), reason)) => self.refuse(packet, from, error, reason, now, out),
            Err((None, reason)) => out.drop(packet, reason),
        }
    }

    /// Where the packet goes, if nothing speaks against it.
    fn check_forward(&self, frame: &[u8], id: u16, hop: NextHop) -> Result<Target, Refused> {
        let (ethernet, _) = frame::ethernet(frame).ok_or((None, DropReason::Runt))?;
        let ip = IpPacket::parse(frame).map_err(|reason| (None, reason))?;
        if ethernet.destination.is_multicast() {
            return Err((None, DropReason::L2Broadcast));
        }
        let target = self.target(&ip, id, hop)?;
        if let IpPacket::V6 { header, .. } = ip {
            if header.source().is_unspecified() {
                return Err((None, DropReason::Ip6MartianSource));
            }
            if header.source().is_unicast_link_local() {
                return Err((Some(Error::BeyondScope), DropReason::BeyondScope));
            }
        }
        if ip.ttl() <= 1 {
            return Err((Some(Error::TtlExpired), DropReason::TtlExpired));
        }
        let port = self.ports.get(target.port()).ok_or((None, DropReason::PortDown))?;
        let may_fragment = matches!(ip, IpPacket::V4 { header, .. } if !header.dont_fragment());
        if ip.bytes().len() > usize::from(port.mtu) && !may_fragment {
            return Err((Some(Error::TooBig { mtu: port.mtu }), DropReason::TooBig));
        }
        Ok(target)
    }

    fn target(&self, ip: &IpPacket<'_>, id: u16, hop: NextHop) -> Result<Target, Refused> {
        match hop {
            NextHop::Forward { port, mac } => Ok(Target::Mac(port, mac)),
            NextHop::Glean { port } => Ok(Target::Neighbour((port, ip.destination()))),
            NextHop::Unresolved { .. } => {
                // A number without a gateway was taken back while the packet was on its way here.
                let gateway = self.gateway(id).map(Target::Neighbour);
                gateway.ok_or((Some(Error::HostUnreachable), DropReason::NeighbourFailed))
            }
            NextHop::Prohibited => Err((Some(Error::Prohibited), DropReason::Prohibited)),
            NextHop::Unreachable => Err((Some(Error::HostUnreachable), DropReason::Unreachable)),
            NextHop::Blackhole => Err((None, DropReason::Blackhole)),
            NextHop::Martian => Err((None, DropReason::MartianDestination)),
            NextHop::Local => Err((None, DropReason::NotLocal)),
            // The choice within a group is made before a packet comes here.
            NextHop::NoRoute | NextHop::Group { .. } => {
                Err((Some(Error::NoRoute), DropReason::NoRoute))
            }
        }
    }

    /// Sends something to a MAC that is known.
    pub(crate) fn transmit(
        &mut self,
        waiting: Waiting<P>,
        port: PortId,
        mac: MacAddr,
        out: &mut impl Output<P>,
    ) {
        let Some((id, source, mtu)) = self.ports.get(port).map(|p| (p.id, p.mac, p.mtu)) else {
            if let Waiting::Received { packet, .. } = waiting {
                out.drop(packet, DropReason::PortDown);
            }
            return;
        };
        match waiting {
            Waiting::Received { mut packet, .. } => {
                frame::set_macs(packet.bytes_mut(), mac, source);
                decrement_ttl(packet.bytes_mut());
                send_received(packet, id, usize::from(mtu), out);
            }
            Waiting::Own(mut frame) => {
                frame::set_macs(&mut frame, mac, source);
                send_own_frame(&frame, id, usize::from(mtu), out);
            }
        }
    }
}

/// Sends a received packet, in fragments if it is too big.
fn send_received<P: Packet>(mut packet: P, port: PortId, mtu: usize, out: &mut impl Output<P>) {
    let Ok(ip) = IpPacket::parse(packet.bytes()) else {
        return out.drop(packet, DropReason::Runt);
    };
    let length = ip.frame_len();
    if ip.bytes().len() <= mtu {
        packet.trim_to(length);
        return out.forward(port, packet);
    }
    let Some(mut fragments) = fragment(packet.bytes(), mtu) else {
        return out.drop(packet, DropReason::TooBig);
    };
    let rest = fragments.split_off(1);
    if let Some(first) = fragments.first() {
        packet.trim_to(first.len());
        packet.bytes_mut().copy_from_slice(first);
    }
    out.forward(port, packet);
    for frame in rest {
        out.originate(port, &frame);
    }
}

/// Sends a frame of the router's own, in fragments if it is too big. IPv6 has no fragments on the
/// way; what does not fit is not sent (only an echo reply can be that large).
fn send_own_frame<P>(frame: &[u8], port: PortId, mtu: usize, out: &mut impl Output<P>) {
    if frame.len() <= ETHERNET_LEN + mtu {
        return out.originate(port, frame);
    }
    for frame in fragment(frame, mtu).unwrap_or_default() {
        out.originate(port, &frame);
    }
}

/// Takes one from TTL or hop limit. The IPv4 checksum follows by RFC 1624: the word that changes is
/// TTL and protocol.
fn decrement_ttl(frame: &mut [u8]) {
    let Some(packet) = frame.get_mut(ETHERNET_LEN..) else { return };
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            if let Ok((header, _)) = Ipv4Header::mut_from_prefix(packet) {
                let old = u16::from_be_bytes([header.ttl, header.protocol]);
                header.ttl = header.ttl.saturating_sub(1);
                let new = u16::from_be_bytes([header.ttl, header.protocol]);
                header.checksum = U16::new(checksum::update(header.checksum.get(), old, new));
            }
        }
        Some(6) => {
            if let Ok((header, _)) = Ipv6Header::mut_from_prefix(packet) {
                header.hop_limit = header.hop_limit.saturating_sub(1);
            }
        }
        _ => {}
    }
}

/// Cuts an IPv4 frame into frames whose packets have at most `mtu` bytes (RFC 791, 3.2). `None` if
/// that is not possible: not IPv4, DF set, an MTU without room for 8 bytes of data, or data beyond
/// the largest offset.
fn fragment(frame: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let IpPacket::V4 { header, bytes } = IpPacket::parse(frame).ok()? else { return None };
    if header.dont_fragment() {
        return None;
    }
    let ethernet = frame.get(..ETHERNET_LEN)?;
    let first_header = &bytes[..header.header_len()];
    let later_header = copied_header(first_header);
    let data = &bytes[header.header_len()..];
    let mut fragments = Vec::new();
    let mut done = 0;
    while done < data.len() {
        let template = if done == 0 { first_header } else { &later_header };
        let room = mtu.checked_sub(template.len())?;
        let rest = data.len() - done;
        // All but the last carry a multiple of 8 bytes.
        let take = if rest <= room { rest } else { room & !7 };
        if take == 0 {
            return None;
        }
        let mut fragment = [ethernet, template, &data[done..done + take]].concat();
        let more = done + take < data.len();
        finish_fragment(&mut fragment[ETHERNET_LEN..], header, done, more)?;
        fragments.push(fragment);
        done += take;
    }
    (!fragments.is_empty()).then_some(fragments)
}

/// Fills in length, offset, flags and checksum of a fragment that begins `done` bytes into the
/// data of the packet with the header `original`, which may be a fragment itself.
fn finish_fragment(
    packet: &mut [u8],
    original: &Ipv4Header,
    done: usize,
    more: bool,
) -> Option<()> {
    let length = u16::try_from(packet.len()).ok()?;
    let offset = u16::try_from((original.fragment_offset() + done) / 8).ok()?;
    if offset > IPV4_OFFSET_BITS {
        return None;
    }
    let mut flags = original.flags_fragment.get() & !IPV4_OFFSET_BITS;
    if more {
        flags |= IPV4_MORE_FRAGMENTS;
    }
    let (header, _) = Ipv4Header::mut_from_prefix(packet).ok()?;
    header.total_length = U16::new(length);
    header.flags_fragment = U16::new(flags | offset);
    header.checksum = U16::new(0);
    let header_len = header.header_len();
    let sum = checksum(packet.get(..header_len)?);
    let (header, _) = Ipv4Header::mut_from_prefix(packet).ok()?;
    header.checksum = U16::new(sum);
    Some(())
}

/// The header of the later fragments: only options with the copy bit (RFC 791, 3.1), padded with
/// "end of list" to whole words.
fn copied_header(header: &[u8]) -> Vec<u8> {
    let mut copy = header[..IPV4_MIN_LEN].to_vec();
    for option in options_v4(header).flatten() {
        if option[0] & 0x80 != 0 {
            copy.extend_from_slice(option);
        }
    }
    copy.resize(copy.len().next_multiple_of(4), 0);
    copy[0] = 0x40 | (copy.len() / 4) as u8;
    copy
}
