//! Echo replies: RFC 792 and RFC 1122, 3.2.2.6; RFC 4443, 4.2.
//!
//! A request to an address of the router is answered from that address, with identifier, sequence
//! number and data as they came, TTL 64. A request to a group the port has joined (`ff02::1`,
//! `ff02::2`) is answered from an address of the port (RFC 4443, 4.2); IPv4 groups and broadcasts
//! are not answered, which RFC 1122 allows: they are a means of amplification.

use std::net::IpAddr;

use dataplane::port::PortId;
use wire::build::{self, Ipv4Fields, Ipv6Fields, Link};
use wire::icmp::{ICMP_LEN, IcmpHeader, v4, v6};
use wire::ip::{Ipv4Header, Ipv6Header, PROTOCOL_ICMP, PROTOCOL_ICMPV6};
use zerocopy::FromBytes;

use crate::{Output, Packet, SlowPath, Time};

/// TTL and hop limit of what the router sends (RFC 1700; the hop limit hosts use by default).
pub(crate) const DEFAULT_TTL: u8 = 64;

/// MACs that are filled in when the frame leaves.
pub(crate) const NO_LINK: Link =
    Link { destination: wire::MacAddr([0; 6]), source: wire::MacAddr([0; 6]) };

impl<P: Packet> SlowPath<P> {
    /// Answers an ICMP echo request; `message` is the ICMP message, valid and at least 8 bytes.
    pub(crate) fn echo_v4(
        &mut self,
        request: &Ipv4Header,
        message: &[u8],
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let Ok((icmp, data)) = IcmpHeader::ref_from_prefix(message) else { return };
        let source = request.source();
        if source.is_unspecified() || source.is_multicast() || source.is_broadcast() {
            return;
        }
        let fields = Ipv4Fields {
            tos: request.tos,
            identification: self.next_identification(),
            ttl: DEFAULT_TTL,
            protocol: PROTOCOL_ICMP,
            source: request.destination(),
            destination: source,
        };
        let reply = (v4::ECHO_REPLY, 0, icmp.rest.get());
        let frame = build::icmpv4(NO_LINK, fields, reply, data);
        self.send_own(frame, source.into(), from, now, out);
    }

    /// Answers an ICMPv6 echo request; `message` is the ICMPv6 message, valid and at least 8 bytes.
    pub(crate) fn echo_v6(
        &mut self,
        request: &Ipv6Header,
        message: &[u8],
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let asker = request.source();
        if message.len() < ICMP_LEN || asker.is_unspecified() || asker.is_multicast() {
            return;
        }
        let asked = request.destination();
        let source =
            if asked.is_multicast() { self.ports.source_v6(from, asker) } else { Some(asked) };
        let Some(source) = source else { return };
        let mut reply = message.to_vec();
        reply[0] = v6::ECHO_REPLY;
        reply[1] = 0;
        let fields = Ipv6Fields {
            class: (request.version_class_flow.get() >> 20) as u8,
            hop_limit: DEFAULT_TTL,
            next_header: PROTOCOL_ICMPV6,
            source,
            destination: asker,
        };
        let frame = build::icmpv6(NO_LINK, fields, reply);
        self.send_own(frame, IpAddr::V6(asker), from, now, out);
    }
}

#[cfg(test)]
mod tests {
    use dataplane::next_hop::LOCAL;
    use dataplane::reason::{DropReason, PuntReason};

    use crate::testing::{
        A, Bench, LEFT, Out, config, drops, fix_icmpv6_checksum, fix_v4_checksum, hex, originated,
        right, v4,
    };

    fn ping4() -> Vec<u8> {
        hex("020000000001 020000000a01 0800 4520002412340000400152830a0001020a000101
             080034d3007700037475726e70696b65")
    }

    fn ping6() -> Vec<u8> {
        hex("020000000001 020000000a01 86dd 6000000000103a40
             fd000001000000000000000000000002 fd000001000000000000000000000001
             8000c281007700037475726e70696b65")
    }

    #[test]
    fn a_ping_is_answered_byte_by_byte() {
        let mut bench = Bench::with_hosts(config());
        let reply = hex("020000000a01 020000000001 0800 4520002400010000400164b60a0001010a000102
                         00003cd3007700037475726e70696b65");
        let want = [Out::Originate(LEFT, reply), Out::ToHost(ping4())];
        assert_eq!(bench.local(ping4()), want);
    }

    #[test]
    fn a_ping_over_ipv6_is_answered_byte_by_byte() {
        let mut bench = Bench::with_hosts(config());
        let reply = hex("020000000a01 020000000001 86dd 6000000000103a40
                         fd000001000000000000000000000001 fd000001000000000000000000000002
                         8100c181007700037475726e70696b65");
        let want = [Out::Originate(LEFT, reply), Out::ToHost(ping6())];
        assert_eq!(bench.local(ping6()), want);
    }

    #[test]
    fn any_address_of_the_router_answers_on_any_port() {
        let mut bench = Bench::with_hosts(config());
        let mut ping = ping4();
        ping[32] = 2; // 10.0.2.1, by the left port
        fix_v4_checksum(&mut ping);
        let outs = bench.punt(PuntReason::Local, LEFT, LOCAL, ping);
        assert_eq!(originated(&outs)[0][26..30], [10, 0, 2, 1]);
        assert_eq!(originated(&outs)[0][..6], A.0);
    }

    #[test]
    fn a_reply_to_an_unknown_neighbour_waits_for_its_mac() {
        let mut bench = Bench::new();
        let outs = bench.local(ping4());
        let [request] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!(request[12..14], [8, 6]);
        assert!(matches!(outs[1], Out::ToHost(_)), "the request itself does not wait");
        assert_eq!(bench.router.held(), 0);
        let arp = hex("020000000001 020000000a01 0806 0001 0800 06 04 0002
                       020000000a01 0a000102 020000000001 0a000101");
        let outs = bench.arp(arp);
        assert_eq!(originated(&outs)[0][34], 0, "echo reply");
    }

    #[test]
    fn a_reply_larger_than_the_mtu_leaves_in_fragments_over_ipv4_only() {
        let mut small = config();
        small.ports[0].mtu = 1280;
        let mut bench = Bench::with_hosts(small);
        let mut message = vec![8, 0, 0, 0, 0, 1, 0, 1];
        message.resize(1400, 0);
        let sum = wire::checksum::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let outs = bench.local(v4("10.0.1.2", "10.0.1.1", 1, &message));
        assert_eq!(originated(&outs).len(), 2);
        let mut ping = ping6();
        ping.resize(54 + 1300, 0);
        ping[18..20].copy_from_slice(&1300u16.to_be_bytes());
        fix_icmpv6_checksum(&mut ping, 54);
        let outs = bench.local(ping);
        assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
    }

    #[test]
    fn all_nodes_and_all_routers_answer_from_an_address_of_the_port() {
        for group in [1, 2] {
            let mut bench = Bench::with_hosts(config());
            let mut ping = ping6();
            ping[38..54].copy_from_slice(&[0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, group]);
            ping[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, group]);
            fix_icmpv6_checksum(&mut ping, 54);
            let outs = bench.local(ping);
            assert_eq!(originated(&outs)[0][22..38], hex("fd000001000000000000000000000001"));
        }
    }

    #[test]
    fn a_link_local_ping_is_answered_on_its_link() {
        let mut bench = Bench::new();
        let mut ping = ping6();
        ping[22..38].copy_from_slice(&hex("fe80000000000000000000000000000b"));
        ping[38..54].copy_from_slice(&hex("fe80000000000000000000fffe000002"));
        fix_icmpv6_checksum(&mut ping, 54);
        let outs = bench.punt(PuntReason::Local, LEFT, LOCAL, ping.clone());
        assert_eq!(drops(&outs), [DropReason::NotLocal], "the other port's address");
        let outs = bench.punt(PuntReason::Local, right(), LOCAL, ping);
        let solicit = originated(&outs)[0];
        assert_eq!(solicit[62..78], hex("fe80000000000000000000000000000b"));
    }

    #[test]
    fn broadcasts_and_impossible_askers_are_not_answered() {
        let mut bench = Bench::with_hosts(config());
        let mut message = ping4()[34..].to_vec();
        message[7] = 3;
        for (source, destination) in [
            ("10.0.1.2", "10.0.1.255"),
            ("10.0.1.2", "255.255.255.255"),
            ("10.0.1.2", "224.0.0.1"),
            ("0.0.0.0", "10.0.1.1"),
            ("224.0.0.1", "10.0.1.1"),
            ("255.255.255.255", "10.0.1.1"),
            ("10.0.1.255", "10.0.1.1"),
            ("10.0.2.1", "10.0.1.1"),
            ("172.16.0.1", "10.0.1.1"),
        ] {
            let outs = bench.local(v4(source, destination, 1, &message));
            assert_eq!(originated(&outs).len(), 0, "{source} > {destination}");
        }
    }
}
