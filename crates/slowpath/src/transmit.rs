//! Transmission: packets whose link and MAC are known, from the filling in of MACs to fragments.
//!
//! A packet that is too big for its link leaves in fragments if its DF bit is clear: the received buffer
//! becomes the first, the others are originated, so that the counters' sum closes. The router's own IPv6
//! packets are fragmented too, if they exceed the link's MTU or, beyond that link, the minimum MTU, since no
//! path MTU is known (RFC 8200, 4.5 and 5).
//!
//! Record route and timestamp get their entries when the packet leaves, since only then the outgoing interface,
//! whose address they record, is known.
//!
//! Drops: `port-down`, `runt`, `too-big`.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::checksum;
use wire::ethernet::ETHERNET_LEN;
use wire::ip::{IPV4_MIN_LEN, Ipv4Header, Ipv6Header};
use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::context::Context;
use crate::fragment;
use crate::frame::{self, IpPacket};
use crate::identification::Identifications;
use crate::interfaces::{IPV6_LEAST_MTU, Interface, Interfaces};
use crate::neighbour::Waiting;
use crate::options::{self, Stamp};
use crate::{Output, Packet, resolution};

/// Sends a packet or frame to a known MAC.
pub(crate) fn send<P: Packet>(
    waiting: Waiting<P>,
    interface: InterfaceId,
    mac: MacAddr,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let interfaces = context.interfaces;
    let Some(interface) = interfaces.get(interface) else {
        return resolution::discard(waiting, DropReason::PortDown, context.out);
    };
    match waiting {
        Waiting::Received { mut packet, .. } => {
            frame::set_macs(packet.bytes_mut(), mac, interface.mac);
            decrement_ttl(packet.bytes_mut());
            fill_options(packet.bytes_mut(), interface, interfaces, context.out);
            send_received(packet, interface, context.out);
        }
        Waiting::Own(mut frame) => {
            frame::set_macs(&mut frame, mac, interface.mac);
            send_own(&frame, interface, context.identifications, context.out);
        }
    }
}

/// Sends a copy of a received packet, in fragments if it is too big.
pub(crate) fn send_copy<P>(
    frame: &[u8],
    interface: InterfaceId,
    mac: MacAddr,
    interfaces: &Interfaces,
    out: &mut impl Output<P>,
) {
    let Some(interface) = interfaces.get(interface) else { return };
    let Ok(ip) = IpPacket::parse(frame) else { return };
    let (length, mtu) = (ip.frame_len(), usize::from(interface.mtu));
    let mut copy = frame[..length].to_vec();
    frame::set_macs(&mut copy, mac, interface.mac);
    decrement_ttl(&mut copy);
    fill_options(&mut copy, interface, interfaces, out);
    if length <= ETHERNET_LEN + mtu {
        return out.originate(interface.id, &copy);
    }
    for frame in fragment::v4(&copy, mtu).unwrap_or_default() {
        out.originate(interface.id, &frame);
    }
}

/// Records the router in the record route and the timestamp options of a packet that leaves by an interface
/// (RFC 1812, 4.2.2.2 and 5.3.13.5, 5.3.13.6). An interface without an address uses an address of another
/// one, as a router's identifier.
fn fill_options<P>(
    frame: &mut [u8],
    interface: &Interface,
    interfaces: &Interfaces,
    out: &impl Output<P>,
) {
    let Ok(IpPacket::V4 { header, .. }) = IpPacket::parse(frame) else { return };
    let (length, towards) = (header.header_len(), header.destination());
    if length == IPV4_MIN_LEN {
        return;
    }
    let Some(address) = interfaces.source_v4(interface.id, towards) else { return };
    let own = |address: Ipv4Addr| interfaces.is_own(address.into(), interface.id);
    let stamp = Stamp { address, time: out.time_of_day().as_millis() as u32, own };
    options::fill(&mut frame[ETHERNET_LEN..ETHERNET_LEN + length], &stamp);
}

/// Sends a frame of the router's own, in fragments if it is too big.
fn send_own<P>(
    frame: &[u8],
    interface: &Interface,
    identifications: &mut Identifications,
    out: &mut impl Output<P>,
) {
    let mtu = usize::from(interface.mtu);
    let mtu = match IpPacket::parse(frame) {
        Ok(IpPacket::V6 { header, .. }) => {
            let near = interface.is_on_link(IpAddr::V6(header.destination()));
            if near { mtu } else { mtu.min(usize::from(IPV6_LEAST_MTU)) }
        }
        _ => mtu,
    };
    if frame.len() <= ETHERNET_LEN + mtu {
        return out.originate(interface.id, frame);
    }
    let identification = identifications.of_fragments();
    let fragments = match frame.get(ETHERNET_LEN).map(|byte| byte >> 4) {
        Some(4) => fragment::v4(frame, mtu),
        _ => fragment::v6(frame, mtu, identification),
    };
    for frame in fragments.unwrap_or_default() {
        out.originate(interface.id, &frame);
    }
}

/// Sends a received packet, in fragments if it is too big.
fn send_received<P: Packet>(mut packet: P, interface: &Interface, out: &mut impl Output<P>) {
    let (id, mtu) = (interface.id, usize::from(interface.mtu));
    let Ok(ip) = IpPacket::parse(packet.bytes()) else {
        return out.drop(packet, DropReason::Runt);
    };
    let length = ip.frame_len();
    if ip.bytes().len() <= mtu {
        packet.trim_to(length);
        return out.forward(id, packet);
    }
    let Some(mut fragments) = fragment::v4(packet.bytes(), mtu) else {
        return out.drop(packet, DropReason::TooBig);
    };
    let rest = fragments.split_off(1);
    if let Some(first) = fragments.first() {
        packet.trim_to(first.len());
        packet.bytes_mut().copy_from_slice(first);
    }
    out.forward(id, packet);
    for frame in rest {
        out.originate(id, &frame);
    }
}

/// Decrements TTL or hop limit. The IPv4 checksum is updated by RFC 1624: the word that changes holds TTL and
/// protocol.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fix_v4_checksum, udp, v4};

    #[test]
    fn the_checksum_follows_every_ttl() {
        for ttl in 2..=255 {
            let mut frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
            frame[22] = ttl;
            fix_v4_checksum(&mut frame);
            decrement_ttl(&mut frame);
            assert_eq!(frame[22], ttl - 1);
            assert_eq!(checksum::checksum(&frame[14..34]), 0);
        }
    }
}
