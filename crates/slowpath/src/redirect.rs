//! Redirects: RFC 792; RFC 1812, 4.3.3.2 and 5.2.7.2; RFC 4861, 4.5 and 8.2.
//!
//! A packet that leaves by its receiving interface could have gone straight to its next hop. Its sender
//! gets a redirect, if the interface is configured to send them, and
//!
//! * the sender is a neighbour: on the interface's network, over IPv4 in the same one as the next hop;
//! * over IPv4, an ICMP error about the packet would be allowed (RFC 1812, 4.3.2.7);
//! * over IPv6, the next hop is the destination itself, or a router known by its link-local address, the
//!   only address by which hosts identify routers (RFC 4861, 8);
//! * the rate limit is not reached.
//!
//! The packet is forwarded all the same. Received redirects change nothing: the router relies on its
//! routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::interface::InterfaceId;
use wire::MacAddr;
use wire::build::{self, Ipv6Fields};
use wire::icmp::{v4, v6};
use wire::ip::{IPV6_LEN, Ipv4Header, Ipv6Header, PROTOCOL_ICMPV6};
use wire::nd::{
    LinkLayerOption, ND_HOP_LIMIT, OPTION_REDIRECTED, OPTION_TARGET_LINK_LAYER, Redirect,
};
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32};

use crate::bucket::TokenBucket;
use crate::context::Context;
use crate::frame::IpPacket;
use crate::interfaces::Interface;
use crate::neighbour::Waiting;
use crate::originate::NO_LINK;
use crate::{Output, Packet, Time, icmp, resolution};

/// Redirects per second, and in one burst (RFC 4861, 8.2: the rate must be limited).
const RATE: u32 = 100;
const BURST: u32 = 20;

/// The redirects of all interfaces, with their rate.
pub(crate) struct Redirects {
    rate: TokenBucket,
}

impl Redirects {
    pub(crate) fn new() -> Self {
        Self { rate: TokenBucket::new(RATE, BURST) }
    }

    /// Redirects the sender of a packet that leaves by its receiving interface to the better first hop.
    pub(crate) fn redirect<P: Packet>(
        &self,
        frame: &[u8],
        from: InterfaceId,
        next_hop: u16,
        context: &mut Context<'_, P, impl Output<P>>,
    ) {
        let interfaces = context.interfaces;
        let sends = |interface: &&Interface| interface.settings.redirects;
        let Some(interface) = interfaces.get(from).filter(sends) else { return };
        let Ok(ip) = IpPacket::parse(frame) else { return };
        let gateway = context.gateways.get(next_hop);
        let hop = gateway.map_or(ip.destination(), |(_, address)| address);
        let made = match (ip, hop) {
            (IpPacket::V4 { header, bytes }, IpAddr::V4(hop)) => {
                let allowed = icmp::may_report_v4(&ip, header, bytes, from, context);
                allowed.then(|| self.make_v4(header, bytes, interface, hop, context)).flatten()
            }
            (IpPacket::V6 { header, bytes }, IpAddr::V6(hop)) => {
                let mac = context.table.mac((from, hop.into()));
                self.make_v6(header, bytes, interface, (hop, mac), context.now)
            }
            // The sender cannot use a gateway of the other family.
            _ => None,
        };
        if let Some(made) = made {
            resolution::send_to((from, ip.source()), Waiting::Own(made), context);
        }
    }

    fn make_v4<P, O>(
        &self,
        header: &Ipv4Header,
        bytes: &[u8],
        interface: &Interface,
        hop: Ipv4Addr,
        context: &mut Context<'_, P, O>,
    ) -> Option<Vec<u8>> {
        let sender = header.source();
        let net = interface.v4.iter().find(|net| net.contains(&sender) && net.contains(&hop))?;
        let source = net.addr();
        if sender == hop || !interface.is_on_link(sender.into()) || !self.rate.take(context.now) {
            return None;
        }
        let message = (v4::REDIRECT, v4::REDIRECT_HOST, u32::from(hop));
        icmp::message_v4(bytes, (source, sender), message, context)
    }

    fn make_v6(
        &self,
        header: &Ipv6Header,
        bytes: &[u8],
        interface: &Interface,
        (hop, mac): (Ipv6Addr, Option<MacAddr>),
        now: Time,
    ) -> Option<Vec<u8>> {
        let (sender, destination) = (header.source(), header.destination());
        let known_so = if hop == destination {
            interface.is_on_link(hop.into())
        } else {
            hop.is_unicast_link_local()
        };
        if !known_so || sender == hop || !interface.is_on_link(sender.into()) {
            return None;
        }
        let source = interface.usable_link_local()?;
        if !self.rate.take(now) {
            return None;
        }
        let fixed = Redirect {
            kind: v6::REDIRECT,
            code: 0,
            checksum: U16::new(0),
            reserved: U32::new(0),
            target_address: hop.octets(),
            destination_address: destination.octets(),
        };
        let mut message = fixed.as_bytes().to_vec();
        if let Some(mac) = mac {
            let option = LinkLayerOption { kind: OPTION_TARGET_LINK_LAYER, length: 1, mac };
            message.extend_from_slice(option.as_bytes());
        }
        quote(&mut message, bytes);
        let fields = Ipv6Fields {
            class: 0,
            hop_limit: ND_HOP_LIMIT,
            next_header: PROTOCOL_ICMPV6,
            source,
            destination: sender,
        };
        Some(build::icmpv6(NO_LINK, fields, message))
    }
}

/// Adds the redirected header option (RFC 4861, 4.6.3): as much of the packet as fits the minimum MTU,
/// in whole units of 8 bytes.
fn quote(message: &mut Vec<u8>, packet: &[u8]) {
    const HEAD: usize = 8;
    let room = build::ICMPV6_ERROR_MAX - IPV6_LEN - message.len() - HEAD;
    let quoted = &packet[..packet.len().min(room) & !7];
    message.extend_from_slice(&[OPTION_REDIRECTED, ((HEAD + quoted.len()) / 8) as u8]);
    message.extend_from_slice(&[0; HEAD - 2]);
    message.extend_from_slice(quoted);
}

#[cfg(test)]
mod tests {
    use dataplane::next_hop::NextHop;
    use dataplane::reason::PuntReason;
    use wire::MacAddr;

    use super::*;
    use crate::Command;
    use crate::testing::{
        A, Bench, GLEAN_LEFT, LEFT, Out, config, fix_v4_checksum, icmp_type, ip, originated, udp,
        v4, v6,
    };

    /// A router behind the left interface, at 10.0.1.9 and fe80::9.
    const C: MacAddr = MacAddr([2, 0, 0, 0, 0x0c, 1]);
    const TO_C4: u16 = 30;
    const TO_C6: u16 = 31;

    fn bench(redirects: bool) -> Bench {
        let mut config = config();
        config.interfaces[0].settings.redirects = redirects;
        let mut bench = Bench::with_hosts(config);
        for (id, address) in [(TO_C4, "10.0.1.9"), (TO_C6, "fe80::9")] {
            let address = ip(address);
            bench.net.hops.insert(id, NextHop::Forward { interface: LEFT, mac: C });
            bench.command(Command::AddStaticNeighbour { interface: LEFT, address, mac: C });
            bench.command(Command::NextHop { id, interface: LEFT, address });
        }
        bench.take();
        bench
    }

    fn through(bench: &mut Bench, next_hop: u16, frame: Vec<u8>) -> Vec<Out> {
        let outs = bench.punt(PuntReason::Redirect, LEFT, next_hop, frame);
        let forwarded = |out: &Out| matches!(out, Out::Forward(LEFT, frame) if frame[..6] == C.0);
        assert!(outs.iter().any(forwarded), "forwarded all the same: {outs:?}");
        outs
    }

    #[test]
    fn the_sender_is_told_of_the_better_gateway() {
        let mut bench = bench(true);
        let packet = v4("10.0.1.2", "192.0.2.7", 17, &udp(30));
        let outs = through(&mut bench, TO_C4, packet.clone());
        let told = originated(&outs)[0];
        assert_eq!((icmp_type(told), &told[..6]), ((5, 1), &A.0[..]));
        assert_eq!((&told[26..30], &told[30..34]), (&[10, 0, 1, 1][..], &[10, 0, 1, 2][..]));
        assert_eq!(told[38..42], [10, 0, 1, 9]);
        assert_eq!(told[42..], packet[14..], "as it came");
    }

    #[test]
    fn the_sender_is_told_of_the_better_gateway_over_ipv6() {
        let mut bench = bench(true);
        let packet = v6("fd00:1::2", "2001:db8::7", 17, &udp(1400));
        let outs = through(&mut bench, TO_C6, packet.clone());
        let told = originated(&outs)[0];
        assert_eq!((icmp_type(told), told[21], &told[..6]), ((137, 0), 255, &A.0[..]));
        assert_eq!(told[22..38], "fe80::ff:fe00:1".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(told[62..78], "fe80::9".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(told[78..94], packet[38..54], "for this destination");
        assert_eq!(told[94..102], [&[2, 1][..], &C.0].concat());
        assert_eq!(told[102..104], [4, ((told.len() - 102) / 8) as u8]);
        assert_eq!(told[110..], packet[14..14 + told.len() - 110]);
        assert!(told.len() - 14 > 1272 && told.len() - 14 <= 1280);
    }

    #[test]
    fn a_destination_on_the_link_is_its_own_first_hop() {
        let mut bench = bench(true);
        for (source, destination, mac) in
            [("10.0.1.2", "10.0.1.9", 38), ("fd00:1::2", "fd00:1::9", 62)]
        {
            let address = ip(destination);
            bench.command(Command::AddStaticNeighbour { interface: LEFT, address, mac: C });
            bench.take();
            let packet = match address {
                IpAddr::V4(_) => v4(source, destination, 17, &udp(30)),
                IpAddr::V6(_) => v6(source, destination, 17, &udp(30)),
            };
            let outs = through(&mut bench, GLEAN_LEFT, packet);
            let told = originated(&outs)[0];
            match address {
                IpAddr::V4(address) => assert_eq!(told[mac..mac + 4], address.octets()),
                IpAddr::V6(address) => assert_eq!(told[mac..mac + 16], address.octets()),
            }
        }
    }

    #[test]
    fn nobody_else_is_told() {
        let silent = |bench: &mut Bench, next_hop, frame| {
            assert_eq!(originated(&through(bench, next_hop, frame)), [] as [&[u8]; 0]);
        };
        let good4 = || v4("10.0.1.2", "192.0.2.7", 17, &udp(30));
        silent(&mut bench(false), TO_C4, good4());
        let mut bench = bench(true);
        // A sender on another network; the gateway itself; an ICMP error; a later fragment.
        silent(&mut bench, TO_C4, v4("192.0.2.9", "192.0.2.7", 17, &udp(30)));
        silent(&mut bench, TO_C4, v4("10.0.1.9", "192.0.2.7", 17, &udp(30)));
        silent(&mut bench, TO_C4, v4("10.0.1.2", "192.0.2.7", 1, &[3, 0, 0, 0, 0, 0, 0, 0]));
        let mut later = good4();
        later[21] = 1;
        fix_v4_checksum(&mut later);
        silent(&mut bench, TO_C4, later);
        silent(&mut bench, TO_C6, v6("2001:db8::9", "2001:db8::7", 17, &udp(30)));
        // A router with an address other than the one hosts use; one of the other family.
        let address = ip("fd00:1::9");
        bench.command(Command::NextHop { id: TO_C6, interface: LEFT, address });
        bench.take();
        silent(&mut bench, TO_C6, v6("fd00:1::2", "2001:db8::7", 17, &udp(30)));
        silent(&mut bench, TO_C6, good4());
    }

    #[test]
    fn their_rate_is_limited() {
        let mut bench = bench(true);
        let packet = || v4("10.0.1.2", "192.0.2.7", 17, &udp(30));
        let told = (0..100).map(|_| originated(&through(&mut bench, TO_C4, packet())).len());
        assert_eq!(told.sum::<usize>(), 20);
    }
}
