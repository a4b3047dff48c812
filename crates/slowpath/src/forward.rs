//! Forwarding of packets that the graph could not forward: RFC 1812, 5.2 and 5.3; RFC 8200; fragmentation as in
//! RFC 791, 3.2.
//!
//! In this order: route, scope, TTL, MTU, then the neighbour. A packet that waits for a neighbour is kept as it
//! was received, so that an error about it quotes the packet that its sender sent (RFC 1812, 4.3.2.3); TTL,
//! checksum and MACs change when it leaves.
//!
//! A packet that is too big for its link leaves in fragments if its DF bit is clear: the received buffer
//! becomes the first, the others are originated, so that the counters' sum closes. The router's own IPv6
//! packets are fragmented too, if they exceed the link's MTU or, beyond that link, the minimum MTU, since no
//! path MTU is known (RFC 8200, 4.5 and 5).
//!
//! Record route and timestamp get their entries when the packet leaves, since only then the outgoing interface,
//! whose address they record, is known.
//!
//! Drops: `no-route`, `prohibited`, `unreachable`, `blackhole`, `martian-destination`,
//! `l2-broadcast`, `beyond-scope`, `ip6-martian-source`, `ttl-expired`, `too-big`,
//! `neighbour-failed`, `neighbour-queue-full`, `neighbour-table-full`.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::filters::Judgement;
use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::checksum::{self, checksum};
use wire::ethernet::ETHERNET_LEN;
use wire::ip::{
    IPV4_MIN_LEN, IPV4_MORE_FRAGMENTS, IPV4_OFFSET_BITS, IPV6_LEN, Ipv4Header, Ipv6FragmentHeader,
    Ipv6Header, PROTOCOL_FRAGMENT,
};
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use crate::frame::{self, IpPacket};
use crate::icmp::Error;
use crate::interfaces::IPV6_LEAST_MTU;
use crate::neighbour::{Key, Waiting};
use crate::options::{self, Stamp, options_v4};
use crate::{Output, Packet, SlowPath, Time};

/// Next destination of a packet on its way.
enum Target {
    /// To this MAC.
    Mac(InterfaceId, MacAddr),
    /// To this neighbour, whose MAC must be resolved.
    Neighbour(Key),
}

impl Target {
    fn interface(&self) -> InterfaceId {
        match self {
            Self::Mac(interface, _) | Self::Neighbour((interface, _)) => *interface,
        }
    }
}

/// The error for the packet's sender, if any, and the drop reason.
type Refused = (Option<Error>, DropReason);

impl<P: Packet> SlowPath<P> {
    /// Forwards a packet to its next hop; `judged`: it has passed the graph's filters.
    pub(crate) fn forward(
        &mut self,
        packet: P,
        (from, judged): (InterfaceId, bool),
        (id, hop): (u16, NextHop),
        now: Time,
        out: &mut impl Output<P>,
    ) {
        if matches!(hop, NextHop::Local | NextHop::Multicast) {
            return self.local(packet, from, now, out);
        }
        match self.check_forward(packet.bytes(), from, (id, hop)) {
            Ok(target) => {
                let Some(packet) =
                    self.filter(packet, (from, target.interface()), judged, now, out)
                else {
                    return;
                };
                if target.interface() == from {
                    self.redirect(packet.bytes(), from, id, now, out);
                }
                let waiting = Waiting::Received { packet, from };
                match target {
                    Target::Mac(interface, mac) => self.transmit(waiting, interface, mac, out),
                    Target::Neighbour(key) => self.send_to(key, waiting, now, out),
                }
            }
            Err((Some(error), reason)) => self.refuse(packet, from, error, reason, now, out),
            Err((None, reason)) => out.drop(packet, reason),
        }
    }

    /// Returns the packet, if the filter of the outgoing interface lets it pass.
    fn filter(
        &mut self,
        mut packet: P,
        (from, to): (InterfaceId, InterfaceId),
        judged: bool,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Option<P> {
        if judged {
            return Some(packet);
        }
        match out.judge(&mut packet, from, to) {
            Judgement::Pass => return Some(packet),
            Judgement::Drop => out.drop(packet, DropReason::Filtered),
            Judgement::Police => out.drop(packet, DropReason::Policed),
            Judgement::Reject => self.refuse_by_reset(packet, from, now, out),
            Judgement::ToHost if self.interfaces.is_host(from) => {
                self.for_kernel(packet, from, out);
            }
            Judgement::ToHost => self.local(packet, from, now, out),
        }
        None
    }

    /// Checks that the packet may be forwarded, and returns its next destination.
    fn check_forward(
        &self,
        frame: &[u8],
        from: InterfaceId,
        (id, hop): (u16, NextHop),
    ) -> Result<Target, Refused> {
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
            // On its own link such a packet may be forwarded (RFC 4007, 9).
            if header.source().is_unicast_link_local() && target.interface() != from {
                return Err((Some(Error::BeyondScope), DropReason::BeyondScope));
            }
        }
        if ip.ttl() <= 1 {
            return Err((Some(Error::TtlExpired), DropReason::TtlExpired));
        }
        let interface =
            self.interfaces.get(target.interface()).ok_or((None, DropReason::PortDown))?;
        if matches!(ip, IpPacket::V6 { .. }) && !interface.speaks_v6() {
            // No "packet too big" with less than the minimum MTU of IPv6 (RFC 8201, 4).
            return Err((Some(Error::HostUnreachable), DropReason::Unreachable));
        }
        let may_fragment = matches!(ip, IpPacket::V4 { header, .. } if !header.dont_fragment());
        if ip.bytes().len() > usize::from(interface.mtu) && !may_fragment {
            return Err((Some(Error::TooBig { mtu: interface.mtu }), DropReason::TooBig));
        }
        Ok(target)
    }

    fn target(&self, ip: &IpPacket<'_>, id: u16, hop: NextHop) -> Result<Target, Refused> {
        match hop {
            NextHop::Forward { interface, mac } => Ok(Target::Mac(interface, mac)),
            // The old form of a broadcast (RFC 1812, 4.2.3.1): no host's address, and not to be answered.
            NextHop::Glean { interface }
                if self.interfaces.is_all_zeros(interface, ip.destination()) =>
            {
                Err((None, DropReason::MartianDestination))
            }
            NextHop::Glean { interface } => Ok(Target::Neighbour((interface, ip.destination()))),
            NextHop::Unresolved { .. } => {
                // A number without a gateway was withdrawn while the packet was on its way here.
                let gateway = self.gateway(id).map(Target::Neighbour);
                gateway.ok_or((Some(Error::HostUnreachable), DropReason::NeighbourFailed))
            }
            NextHop::Prohibited => Err((Some(Error::Prohibited), DropReason::Prohibited)),
            NextHop::Unreachable => Err((Some(Error::HostUnreachable), DropReason::Unreachable)),
            NextHop::Blackhole => Err((None, DropReason::Blackhole)),
            NextHop::Martian => Err((None, DropReason::MartianDestination)),
            NextHop::Local | NextHop::Multicast => Err((None, DropReason::NotLocal)),
            // The member of a group is chosen before a packet arrives here.
            NextHop::NoRoute | NextHop::Group { .. } => {
                Err((Some(Error::NoRoute), DropReason::NoRoute))
            }
        }
    }

    /// Sends a packet or frame to a known MAC.
    pub(crate) fn transmit(
        &mut self,
        waiting: Waiting<P>,
        interface: InterfaceId,
        mac: MacAddr,
        out: &mut impl Output<P>,
    ) {
        let known = self.interfaces.get(interface).map(|p| (p.id, p.mac, usize::from(p.mtu)));
        let Some((id, source, mtu)) = known else {
            if let Waiting::Received { packet, .. } = waiting {
                out.drop(packet, DropReason::PortDown);
            }
            return;
        };
        match waiting {
            Waiting::Received { mut packet, .. } => {
                frame::set_macs(packet.bytes_mut(), mac, source);
                decrement_ttl(packet.bytes_mut());
                self.fill_options(packet.bytes_mut(), id, out);
                send_received(packet, id, mtu, out);
            }
            Waiting::Own(mut frame) => {
                frame::set_macs(&mut frame, mac, source);
                self.send_own_frame(&frame, id, mtu, out);
            }
        }
    }

    /// Sends a copy of a received packet, in fragments if it is too big.
    pub(crate) fn transmit_copy(
        &self,
        frame: &[u8],
        interface: InterfaceId,
        mac: MacAddr,
        out: &mut impl Output<P>,
    ) {
        let Some(interface) = self.interfaces.get(interface) else { return };
        let Ok(ip) = IpPacket::parse(frame) else { return };
        let (length, mtu) = (ip.frame_len(), usize::from(interface.mtu));
        let mut copy = frame[..length].to_vec();
        frame::set_macs(&mut copy, mac, interface.mac);
        decrement_ttl(&mut copy);
        self.fill_options(&mut copy, interface.id, out);
        if length <= ETHERNET_LEN + mtu {
            return out.originate(interface.id, &copy);
        }
        for frame in fragment(&copy, mtu).unwrap_or_default() {
            out.originate(interface.id, &frame);
        }
    }

    /// Records the router in the record route and the timestamp options of a packet that leaves by an interface
    /// (RFC 1812, 4.2.2.2 and 5.3.13.5, 5.3.13.6). An interface without an address uses an address of another
    /// one, as a router's identifier.
    fn fill_options(&self, frame: &mut [u8], interface: InterfaceId, out: &impl Output<P>) {
        let Ok(IpPacket::V4 { header, .. }) = IpPacket::parse(frame) else { return };
        let (length, towards) = (header.header_len(), header.destination());
        if length == IPV4_MIN_LEN {
            return;
        }
        let Some(address) = self.interfaces.source_v4(interface, towards) else { return };
        let own = |address: Ipv4Addr| self.interfaces.is_own(address.into(), interface);
        let stamp = Stamp { address, time: out.time_of_day().as_millis() as u32, own };
        options::fill(&mut frame[ETHERNET_LEN..ETHERNET_LEN + length], &stamp);
    }

    /// Sends a frame of the router's own, in fragments if it is too big.
    fn send_own_frame(
        &mut self,
        frame: &[u8],
        interface: InterfaceId,
        mtu: usize,
        out: &mut impl Output<P>,
    ) {
        let mtu = match IpPacket::parse(frame) {
            Ok(IpPacket::V6 { header, .. }) => {
                let destination = IpAddr::V6(header.destination());
                let near = self
                    .interfaces
                    .get(interface)
                    .is_some_and(|interface| interface.is_on_link(destination));
                if near { mtu } else { mtu.min(usize::from(IPV6_LEAST_MTU)) }
            }
            _ => mtu,
        };
        if frame.len() <= ETHERNET_LEN + mtu {
            return out.originate(interface, frame);
        }
        self.fragment_identification = self.fragment_identification.wrapping_add(1);
        let fragments = match frame.get(ETHERNET_LEN).map(|byte| byte >> 4) {
            Some(4) => fragment(frame, mtu),
            _ => fragment_v6(frame, mtu, self.fragment_identification),
        };
        for frame in fragments.unwrap_or_default() {
            out.originate(interface, &frame);
        }
    }
}

/// Sends a received packet, in fragments if it is too big.
fn send_received<P: Packet>(
    mut packet: P,
    interface: InterfaceId,
    mtu: usize,
    out: &mut impl Output<P>,
) {
    let Ok(ip) = IpPacket::parse(packet.bytes()) else {
        return out.drop(packet, DropReason::Runt);
    };
    let length = ip.frame_len();
    if ip.bytes().len() <= mtu {
        packet.trim_to(length);
        return out.forward(interface, packet);
    }
    let Some(mut fragments) = fragment(packet.bytes(), mtu) else {
        return out.drop(packet, DropReason::TooBig);
    };
    let rest = fragments.split_off(1);
    if let Some(first) = fragments.first() {
        packet.trim_to(first.len());
        packet.bytes_mut().copy_from_slice(first);
    }
    out.forward(interface, packet);
    for frame in rest {
        out.originate(interface, &frame);
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

/// Fragments an IPv4 frame into frames whose packets have at most `mtu` bytes (RFC 791, 3.2). `None` if that is
/// not possible: not IPv4, DF set, an MTU without room for 8 bytes of data, or data beyond the largest offset.
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

/// Fragments a frame of the router's own, an IPv6 packet without extension headers, into frames whose packets
/// have at most `mtu` bytes (RFC 8200, 4.5).
fn fragment_v6(frame: &[u8], mtu: usize, identification: u32) -> Option<Vec<Vec<u8>>> {
    let IpPacket::V6 { header, bytes } = IpPacket::parse(frame).ok()? else { return None };
    let ethernet = frame.get(..ETHERNET_LEN)?;
    let room = mtu.checked_sub(IPV6_LEN + size_of::<Ipv6FragmentHeader>())? & !7;
    if room == 0 {
        return None;
    }
    let chunks = bytes[IPV6_LEN..].chunks(room);
    let last = chunks.len().checked_sub(1)?;
    let cut = |(number, data): (usize, &[u8])| {
        let part = Ipv6FragmentHeader {
            next_header: header.next_header,
            reserved: 0,
            offset_more: U16::new((number * room) as u16 | u16::from(number < last)),
            identification: U32::new(identification),
        };
        let length = size_of::<Ipv6FragmentHeader>() + data.len();
        let header = Ipv6Header {
            next_header: PROTOCOL_FRAGMENT,
            payload_length: U16::new(length as u16),
            ..*header
        };
        [ethernet, header.as_bytes(), part.as_bytes(), data].concat()
    };
    Some(chunks.enumerate().map(cut).collect())
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

/// Returns the header of the later fragments: only options with the copy bit (RFC 791, 3.1), padded with "end
/// of list" to whole words.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Command;
    use crate::testing::{
        A, B, Bench, GATEWAY, GLEAN_LEFT, GLEAN_RIGHT, LEFT, Out, R, TO_B, config, drops,
        fix_v4_checksum, icmp_type, ip, originated, right, udp, v4, v4_with_options, v6,
    };
    use dataplane::next_hop::{BLACKHOLE, LOCAL, MARTIAN, NO_ROUTE};
    use dataplane::reason::PuntReason;

    fn bench() -> Bench {
        Bench::with_hosts(config())
    }

    fn glean(bench: &mut Bench, frame: Vec<u8>) -> Vec<Out> {
        bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, frame)
    }

    #[test]
    fn a_forwarded_packet_has_new_macs_and_one_less_ttl() {
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(40));
        let mut want = frame.clone();
        want[..6].copy_from_slice(&B.0);
        want[6..12].copy_from_slice(&R.0);
        want[22] = 63;
        fix_v4_checksum(&mut want);
        assert_eq!(glean(&mut bench(), frame), [Out::Forward(right(), want)]);

        let frame = v6("fd00:1::2", "fd00:2::2", 17, &udp(40));
        let mut want = frame.clone();
        want[..6].copy_from_slice(&B.0);
        want[6..12].copy_from_slice(&R.0);
        want[21] = 63;
        assert_eq!(glean(&mut bench(), frame), [Out::Forward(right(), want)]);
    }

    #[test]
    fn the_checksum_follows_every_ttl() {
        for ttl in 2..=255 {
            let mut frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
            frame[22] = ttl;
            fix_v4_checksum(&mut frame);
            decrement_ttl(&mut frame);
            assert_eq!(frame[22], ttl - 1);
            assert_eq!(checksum(&frame[14..34]), 0);
        }
    }

    #[test]
    fn bytes_behind_the_packet_do_not_travel() {
        let mut frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        let length = frame.len();
        frame.resize(60, 0xee);
        let outs = glean(&mut bench(), frame);
        assert!(matches!(&outs[..], [Out::Forward(_, sent)] if sent.len() == length), "{outs:?}");
    }

    #[test]
    fn a_next_hop_that_was_taken_back_while_the_packet_waited_is_sought_again() {
        // The gateway's next-hop number now belongs to a neighbour on the other interface.
        for reason in [PuntReason::Unresolved, PuntReason::TooBig, PuntReason::Redirect] {
            let mut bench = bench();
            bench.net.hops.insert(GATEWAY, NextHop::Forward { interface: LEFT, mac: A });
            let frame = || v4("10.0.1.3", "192.0.2.1", 17, &udp(4));
            let by = |outs: &[Out]| match outs {
                [Out::Forward(interface, frame), ..] => (*interface, frame[..6].to_vec()),
                _ => panic!("{outs:?}"),
            };
            let outs = bench.punt(reason, LEFT, GATEWAY, frame());
            assert_eq!(by(&outs), (LEFT, A.0.to_vec()), "the number means what it did");
            bench.net.generation = 1;
            let outs = bench.punt(reason, LEFT, GATEWAY, frame());
            assert_eq!(by(&outs), (right(), B.0.to_vec()), "routes say who has the packet now");
        }
    }

    #[test]
    fn what_must_not_be_forwarded_is_not() {
        let cases = [
            (BLACKHOLE, DropReason::Blackhole, None),
            (MARTIAN, DropReason::MartianDestination, None),
            (NO_ROUTE, DropReason::NoRoute, Some((3, 0))),
            (999, DropReason::NoRoute, Some((3, 0))),
        ];
        for (next_hop, reason, error) in cases {
            let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
            let outs = bench().punt(PuntReason::Unresolved, LEFT, next_hop, frame);
            assert_eq!(drops(&outs), [reason]);
            assert_eq!(originated(&outs).first().map(|f| icmp_type(f)), error);
        }
        let mut ttl = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        ttl[22] = 1;
        assert_eq!(drops(&glean(&mut bench(), ttl)), [DropReason::TtlExpired]);
        let mut broadcast = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        broadcast[..6].fill(0xff);
        assert_eq!(glean(&mut bench(), broadcast), [Out::Drop(DropReason::L2Broadcast)]);
        let unspecified = v6("::", "fd00:2::2", 17, &udp(4));
        assert_eq!(glean(&mut bench(), unspecified), [Out::Drop(DropReason::Ip6MartianSource)]);
        let scope = v6("fe80::a", "fd00:2::2", 17, &udp(4));
        assert_eq!(drops(&glean(&mut bench(), scope)), [DropReason::BeyondScope]);
    }

    #[test]
    fn link_local_addresses_stay_on_their_link_and_are_served_there() {
        let mut bench = bench();
        for (address, mac) in [("fe80::b", B), ("fd00:1::3", B)] {
            let command =
                Command::AddStaticNeighbour { interface: LEFT, address: ip(address), mac };
            bench.command(command);
        }
        bench.take();
        let mut sent = |reason, next_hop, frame| {
            let outs = bench.punt(reason, LEFT, next_hop, frame);
            match &outs[..] {
                [Out::Forward(interface, frame)] => {
                    (Some((*interface, frame[..6].to_vec())), vec![])
                }
                _ => (None, drops(&outs)),
            }
        };
        let on_link = (Some((LEFT, B.0.to_vec())), vec![]);
        let from_link = |to| v6("fe80::a", to, 17, &udp(4));
        // A link-local source, to a host of the link and off the link.
        assert_eq!(sent(PuntReason::Scope, GLEAN_LEFT, from_link("fd00:1::3")), on_link);
        let beyond = (None, vec![DropReason::BeyondScope]);
        assert_eq!(sent(PuntReason::Scope, GLEAN_RIGHT, from_link("fd00:2::2")), beyond);
        // A link-local destination.
        assert_eq!(sent(PuntReason::Local, LOCAL, from_link("fe80::b")), on_link);
        let hop_by_hop =
            v6("fe80::a", "fe80::b", 0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(4)].concat());
        assert_eq!(sent(PuntReason::HopByHop, NO_ROUTE, hop_by_hop), on_link);
        let mut last = from_link("fe80::b");
        last[21] = 1;
        assert_eq!(sent(PuntReason::Local, LOCAL, last), (None, vec![DropReason::TtlExpired]));
    }

    #[test]
    fn no_ipv6_goes_to_a_link_that_is_too_small_for_it() {
        let mut config = config();
        config.interfaces[1].mtu = 1279;
        let mut bench = Bench::with_hosts(config);
        let outs = bench.punt(
            PuntReason::TooBig,
            LEFT,
            TO_B,
            v6("fd00:1::2", "2001:db8::2", 17, &udp(1300)),
        );
        assert_eq!(drops(&outs), [DropReason::Unreachable]);
        assert_eq!(icmp_type(originated(&outs)[0]), (1, 3));
    }

    #[test]
    fn the_all_zeros_address_of_a_network_is_no_hosts() {
        let outs = glean(&mut bench(), v4("10.0.1.2", "10.0.2.0", 17, &udp(4)));
        assert_eq!(outs, [Out::Drop(DropReason::MartianDestination)]);
    }

    #[test]
    fn who_forwards_puts_itself_into_route_and_stamps() {
        let options = [7, 7, 4, 0, 0, 0, 0, 68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let outs = glean(&mut bench(), v4_with_options("10.0.2.2", &options));
        let [Out::Forward(interface, frame)] = &outs[..] else { panic!("{outs:?}") };
        assert_eq!(*interface, right());
        let filled = [7, 7, 8, 10, 0, 2, 1, 68, 12, 13, 1, 10, 0, 2, 1, 1, 2, 3, 4, 0];
        assert_eq!(frame[34..54], filled);
        assert_eq!((frame[22], checksum(&frame[14..54])), (63, 0));
    }

    #[test]
    fn an_error_quotes_options_as_they_came() {
        let mut frame = v4_with_options("10.0.2.2", &[7, 7, 4, 0, 0, 0, 0, 0]);
        frame[22] = 1;
        fix_v4_checksum(&mut frame);
        let outs = glean(&mut bench(), frame.clone());
        assert_eq!(originated(&outs)[0][42..], frame[14..]);
    }

    #[test]
    fn a_next_hop_without_a_gateway_or_port_is_refused() {
        let mut bench = bench();
        bench.command(crate::Command::RemoveNextHop { id: GATEWAY });
        let frame = || v4("10.0.1.2", "198.51.100.1", 17, &udp(4));
        let outs = bench.punt(PuntReason::Unresolved, LEFT, GATEWAY, frame());
        assert_eq!(drops(&outs), [DropReason::NeighbourFailed]);
        assert_eq!(icmp_type(originated(&outs)[0]), (3, 1));
        let nowhere = InterfaceId::new(9).unwrap();
        bench.net.hops.insert(40, NextHop::Forward { interface: nowhere, mac: A });
        let outs = bench.punt(PuntReason::Unresolved, LEFT, 40, frame());
        assert_eq!(outs, [Out::Drop(DropReason::PortDown)]);
        let outs = bench.punt(PuntReason::Glean, nowhere, GLEAN_RIGHT, frame());
        assert_eq!(outs, [Out::Drop(DropReason::PortDown)]);
    }

    #[test]
    fn malformed_packets_are_dropped_by_name() {
        let good4 = v4("10.0.1.2", "10.0.2.2", 17, &udp(4));
        let good6 = v6("fd00:1::2", "fd00:2::2", 17, &udp(4));
        let change = |frame: &[u8], offset: usize, value: u8| {
            let mut frame = frame.to_vec();
            frame[offset] = value;
            frame
        };
        for (frame, reason) in [
            (good4[..13].to_vec(), DropReason::Runt),
            (good4[..33].to_vec(), DropReason::Runt),
            (good6[..53].to_vec(), DropReason::Runt),
            (change(&good4, 12, 9), DropReason::UnknownEthertype),
            (change(&good4, 14, 0x55), DropReason::Ip4Version),
            (change(&good4, 14, 0x44), DropReason::Ip4HeaderLength),
            (change(&good4, 14, 0x4f), DropReason::Ip4HeaderLength),
            (change(&good4, 17, 19), DropReason::Ip4TotalLength),
            (change(&good4, 17, 200), DropReason::Ip4TotalLength),
            (change(&good6, 14, 0x50), DropReason::Ip6Version),
            (change(&good6, 19, 200), DropReason::Ip6PayloadLength),
        ] {
            assert_eq!(glean(&mut bench(), frame), [Out::Drop(reason)]);
        }
    }

    #[test]
    fn a_packet_with_good_options_is_looked_up_and_forwarded() {
        let frame = v4_with_options("192.0.2.9", &[7, 7, 4, 0, 0, 0, 0, 0]);
        let outs = bench().punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
        assert!(matches!(&outs[..], [Out::Forward(_, sent)] if sent[14] == 0x47), "{outs:?}");
        let hop_by_hop = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(9)].concat();
        let frame = v6("fd00:1::2", "2001:db8::9", 0, &hop_by_hop);
        let outs = bench().punt(PuntReason::HopByHop, LEFT, NO_ROUTE, frame);
        assert!(matches!(outs[..], [Out::Forward(..)]), "{outs:?}");
        // For the router itself.
        let frame = v4_with_options("10.0.1.1", &[1, 1, 1, 1]);
        let outs = bench().punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
        assert_eq!(drops(&outs), [DropReason::NoListener]);
    }

    #[test]
    fn bad_options_are_refused() {
        for (options, error) in [([131, 3, 4, 0], (3, 5)), ([7, 9, 4, 0], (12, 0))] {
            let frame = v4_with_options("192.0.2.9", &options);
            let outs = bench().punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame);
            assert_eq!(drops(&outs), [DropReason::Ip4Options]);
            assert_eq!(icmp_type(originated(&outs)[0]), error);
        }
        let silent = [&[17, 0, 0x7e, 4, 0, 0, 0, 0][..], &udp(9)].concat();
        let frame = v6("fd00:1::2", "2001:db8::9", 0, &silent);
        let outs = bench().punt(PuntReason::HopByHop, LEFT, NO_ROUTE, frame);
        assert_eq!(outs, [Out::Drop(DropReason::Ip6Extension)]);
    }

    /// Reassembles the payload of fragments, and returns it with their headers.
    fn reassemble(frames: &[&[u8]]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let (mut data, mut headers) = (Vec::new(), Vec::new());
        for (index, frame) in frames.iter().enumerate() {
            let header = usize::from(frame[14] & 0xf) * 4;
            let flags = u16::from_be_bytes([frame[20], frame[21]]);
            assert_eq!(usize::from(flags & 0x1fff) * 8, data.len(), "offset");
            assert_eq!(flags & 0x2000 != 0, index + 1 < frames.len(), "more fragments");
            assert_eq!(checksum(&frame[14..14 + header]), 0);
            data.extend_from_slice(&frame[14 + header..]);
            headers.push(frame[14..14 + header].to_vec());
        }
        (data, headers)
    }

    #[test]
    fn a_large_packet_leaves_in_fragments() {
        let mut config = config();
        config.interfaces[1].mtu = 600;
        let mut bench = Bench::with_hosts(config);
        let payload = udp(1400);
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &payload);
        let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, frame);
        let [Out::Forward(_, first), rest @ ..] = &outs[..] else { panic!("{outs:?}") };
        let mut frames = vec![first.as_slice()];
        frames.extend(originated(rest));
        assert_eq!(frames.iter().map(|f| f.len() - 14).collect::<Vec<_>>(), [596, 596, 276]);
        let (data, headers) = reassemble(&frames);
        assert_eq!(data, payload);
        assert!(headers.iter().all(|h| h[8] == 63 && h[4..6] == [0, 7]));
        bench.assert_nothing_lost();
    }

    #[test]
    fn only_options_with_the_copy_bit_are_in_later_fragments() {
        // Record route (not copied), stream identifier (copied), no operation.
        let options = [7, 3, 4, 136, 4, 0xab, 0xcd, 1];
        let frame = v4_with_options("192.0.2.9", &options);
        let fragments = fragment(&frame, 60).unwrap();
        let frames: Vec<&[u8]> = fragments.iter().map(Vec::as_slice).collect();
        let (data, headers) = reassemble(&frames);
        assert_eq!(data, udp(92));
        assert_eq!(headers[0][20..], options);
        assert!(headers[1..].iter().all(|h| h[20..] == [136, 4, 0xab, 0xcd] && h[0] == 0x46));
        assert!(frames.iter().all(|f| f.len() <= 74));
    }

    #[test]
    fn a_fragment_is_cut_into_fragments_of_the_same_datagram() {
        let mut frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(72));
        frame[20..22].copy_from_slice(&(0x2000u16 | 10).to_be_bytes());
        let fragments = fragment(&frame, 60).unwrap();
        let flags: Vec<_> = fragments.iter().map(|f| u16::from_be_bytes([f[20], f[21]])).collect();
        assert_eq!(flags, [0x2000 | 10, 0x2000 | 15]);
    }

    #[test]
    fn nothing_of_the_router_s_own_goes_to_a_link_that_is_too_small_for_ipv6() {
        for (mtu, errors) in [(1279, 0), (1280, 1)] {
            let mut config = config();
            config.interfaces[1].mtu = mtu;
            let mut bench = Bench::with_hosts(config);
            // The error to its sender would leave by the right interface, where 2001:db8::/32 is.
            let frame = v6("2001:db8::7", "2003::9", 17, &udp(9));
            let outs = bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, frame);
            assert_eq!(originated(&outs).len(), errors, "{mtu}");
        }
    }

    #[test]
    fn what_cannot_be_cut_is_not() {
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(72));
        assert_eq!(fragment(&frame, 27), None);
        assert_eq!(fragment(&frame, 10), None);
        let mut beyond = frame.clone();
        beyond[20..22].copy_from_slice(&0x1fffu16.to_be_bytes());
        assert_eq!(fragment(&beyond, 60), None);
        let mut whole = frame;
        whole[20] = 0x40;
        assert_eq!(fragment(&whole, 60), None);
        assert_eq!(fragment(&v6("fd00:1::2", "fd00:2::2", 17, &udp(72)), 60), None);
        // With an MTU without room for data the packet is dropped.
        let mut config = config();
        config.interfaces[1].mtu = 24;
        let mut bench = Bench::with_hosts(config);
        let frame = v4("10.0.1.2", "10.0.2.2", 17, &udp(72));
        let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, frame);
        assert_eq!(outs, [Out::Drop(DropReason::TooBig)]);
    }
}
