//! Echo replies: RFC 792 and RFC 1122, 3.2.2.6; RFC 4443, 4.2.
//!
//! A request to an address of the router is answered from that address, with the identifier, sequence number and data
//! of the request, and with its record route or timestamp, to which the router adds its own entry (RFC 1812, 4.3.3.6).
//! A request to a subnet-router anycast address or a group the interface has joined (`ff02::1`, `ff02::2`) is answered
//! from an address of the interface (RFC 4443, 4.2); IPv4 groups and broadcasts are not answered, which RFC 1122
//! allows: they are a means of amplification.
//!
//! A reply that may be fragmented on its way needs an identification that does not repeat for two minutes (RFC 6864,
//! 4.3), so the number of such replies is limited by the number of identifications; short replies, and replies to
//! requests with DF, have DF set and need none. A reply that is larger than the MTU leaves in fragments.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::interface::InterfaceId;
use wire::build::{self, Ipv4Fields, Ipv6Fields};
use wire::ethernet::ETHERNET_LEN;
use wire::icmp::{ICMP_LEN, IcmpHeader, v4, v6};
use wire::ip::{IPV4_MIN_LEN, Ipv4Header, Ipv6Header, PROTOCOL_ICMP, PROTOCOL_ICMPV6};
use zerocopy::FromBytes;

use crate::context::Context;
use crate::options::{self, Stamp};
use crate::originate::{self, NO_LINK};
use crate::{Output, Packet};

/// Answers an ICMP echo request; `bytes` is the packet, its ICMP message valid and at least 8
/// bytes.
pub(crate) fn answer_v4<P: Packet>(
    request: &Ipv4Header,
    bytes: &[u8],
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let Some((header, message)) = bytes.split_at_checked(request.header_len()) else { return };
    let Ok((icmp, data)) = IcmpHeader::ref_from_prefix(message) else { return };
    let source = request.source();
    if source.is_unspecified() || source.is_multicast() || source.is_broadcast() {
        return;
    }
    let options = options::for_reply(header);
    let length = IPV4_MIN_LEN + options.len() + message.len();
    let Some(identification) = context.identify(length, request.dont_fragment()) else { return };
    let fields = Ipv4Fields {
        tos: request.tos,
        identification: identification.unwrap_or(0),
        dont_fragment: identification.is_none(),
        ttl: context.icmp.ttl,
        protocol: PROTOCOL_ICMP,
        source: request.destination(),
        destination: source,
    };
    let reply = (v4::ECHO_REPLY, 0, icmp.rest.get());
    let mut frame = build::icmpv4_with_options(NO_LINK, fields, &options, reply, data);
    let stamp = Stamp {
        address: request.destination(),
        time: context.out.time_of_day().as_millis() as u32,
        own: |address: Ipv4Addr| context.interfaces.is_own(address.into(), from),
    };
    options::fill(&mut frame[ETHERNET_LEN..][..IPV4_MIN_LEN + options.len()], &stamp);
    originate::send(frame, source.into(), from, context);
}

/// Answers an ICMPv6 echo request; `message` is the ICMPv6 message, valid and at least 8 bytes.
pub(crate) fn answer_v6<P: Packet>(
    request: &Ipv6Header,
    message: &[u8],
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let asker = request.source();
    if message.len() < ICMP_LEN || asker.is_unspecified() || asker.is_multicast() {
        return;
    }
    let asked = request.destination();
    let own = context.interfaces.is_own(asked.into(), from);
    let source = if own { Some(asked) } else { context.interfaces.source_v6(from, asker) };
    let Some(source) = source else { return };
    let mut reply = message.to_vec();
    reply[0] = v6::ECHO_REPLY;
    reply[1] = 0;
    let fields = Ipv6Fields {
        class: (request.version_class_flow.get() >> 20) as u8,
        hop_limit: context.icmp.ttl,
        next_header: PROTOCOL_ICMPV6,
        source,
        destination: asker,
    };
    let frame = build::icmpv6(NO_LINK, fields, reply);
    originate::send(frame, IpAddr::V6(asker), from, context);
}

#[cfg(test)]
mod tests {
    use dataplane::next_hop::LOCAL;
    use dataplane::reason::PuntReason;

    use crate::testing::{
        A, Bench, LEFT, Out, config, fix_icmpv6_checksum, fix_v4_checksum, hex, originated, right,
        v4, v6,
    };
    use std::time::Duration;

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
        let reply = hex("020000000a01 020000000001 0800 4520002400004000400124b70a0001010a000102
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
        ping[32] = 2; // 10.0.2.1, by the left interface
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

    /// A ping over IPv4 with this many bytes of data, from 10.0.1.2.
    fn large4(data: usize) -> Vec<u8> {
        let mut message = vec![8, 0, 0, 0, 0, 1, 0, 1];
        message.resize(8 + data, 0);
        let sum = wire::checksum::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        v4("10.0.1.2", "10.0.1.1", 1, &message)
    }

    /// The same over IPv6.
    fn large6(source: &str, data: usize) -> Vec<u8> {
        let mut message = vec![128, 0, 0, 0, 0, 1, 0, 1];
        message.extend((0..data).map(|n| n as u8));
        let mut ping = v6(source, "fd00:1::1", 58, &message);
        fix_icmpv6_checksum(&mut ping, 54);
        ping
    }

    /// Joins the ICMPv6 message of these fragments; also returns the largest packet among them.
    fn joined6(fragments: &[&[u8]]) -> (Vec<u8>, usize) {
        let mut message = Vec::new();
        for (number, frame) in fragments.iter().enumerate() {
            let last = number + 1 == fragments.len();
            let offset_more = u16::from_be_bytes([frame[56], frame[57]]);
            assert_eq!((frame[20], frame[54]), (44, 58));
            assert_eq!(offset_more, message.len() as u16 | u16::from(!last));
            assert_eq!(frame[58..62], fragments[0][58..62], "one identification");
            message.extend_from_slice(&frame[62..]);
        }
        (message, fragments.iter().map(|frame| frame.len() - 14).max().unwrap())
    }

    #[test]
    fn a_reply_larger_than_the_mtu_leaves_in_fragments() {
        let mut small = config();
        small.interfaces[0].mtu = 1280;
        let mut bench = Bench::with_hosts(small);
        let outs = bench.local(large4(1400));
        assert_eq!(originated(&outs).len(), 2);
        let ping = large6("fd00:1::2", 1400);
        let outs = bench.local(ping.clone());
        let (mut message, largest) = joined6(&originated(&outs));
        assert_eq!(largest, 1280);
        let mut whole = ping.clone();
        whole[22..38].copy_from_slice(&ping[38..54]);
        whole[38..54].copy_from_slice(&ping[22..38]);
        whole[54] = 129;
        fix_icmpv6_checksum(&mut whole, 54);
        assert_eq!(message, whole[54..]);
        let outs = bench.local(large6("fd00:1::2", 1400));
        assert_ne!(originated(&outs)[0][58..62], [0; 4]);
        message.truncate(8);
        assert_eq!(message[..2], [129, 0]);
    }

    #[test]
    fn beyond_its_links_the_router_sends_no_more_than_any_path_takes() {
        let mut bench = Bench::with_hosts(config());
        // A neighbour's path is the link; the path to any other host is unknown.
        assert_eq!(originated(&bench.local(large6("fd00:1::2", 1400))).len(), 1);
        let outs = bench.local(large6("2001:db8::9", 1400));
        assert_eq!(joined6(&originated(&outs)).1, 1280);
    }

    /// DF and the identification.
    fn df_and_id(frame: &[u8]) -> (bool, u16) {
        (frame[20] & 0x40 != 0, u16::from_be_bytes([frame[18], frame[19]]))
    }

    #[test]
    fn only_what_may_be_fragmented_has_an_identification() {
        let mut bench = Bench::with_hosts(config());
        let reply = |bench: &mut Bench, frame| df_and_id(originated(&bench.local(frame))[0]);
        assert_eq!(reply(&mut bench, large4(548)), (true, 0));
        assert_eq!(reply(&mut bench, large4(549)), (false, 1));
        assert_eq!(reply(&mut bench, large4(549)), (false, 2));
        let mut with_df = large4(1400);
        with_df[20] = 0x40;
        fix_v4_checksum(&mut with_df);
        assert_eq!(reply(&mut bench, with_df), (true, 0));
    }

    #[test]
    fn no_identification_is_used_again_within_two_minutes() {
        let mut bench = Bench::with_hosts(config());
        let mut seen = std::collections::HashSet::new();
        let mut sent = 0;
        for _ in 0..1200 {
            bench.pass(Duration::from_millis(100));
            for _ in 0..60 {
                for frame in originated(&bench.local(large4(549))) {
                    assert!(seen.insert(df_and_id(frame).1));
                    sent += 1;
                }
            }
        }
        assert!((60_000..=65_536).contains(&sent), "{sent}");
    }

    #[test]
    fn a_reply_brings_back_the_route_and_the_stamps() {
        let mut bench = Bench::with_hosts(config());
        let options = [7, 11, 8, 1, 1, 1, 1, 0, 0, 0, 0, 148, 4, 0, 0, 68, 8, 5, 0, 0, 0, 0, 0, 0];
        let message = &ping4()[34..];
        let mut ping = v4("10.0.1.2", "10.0.2.1", 1, &[&options[..], message].concat());
        ping[14] = 0x4b;
        fix_v4_checksum(&mut ping);
        let outs = bench.punt(PuntReason::Ip4Options, LEFT, LOCAL, ping);
        let reply = originated(&outs)[0];
        assert_eq!(reply[14], 0x4a);
        let route = [7, 11, 12, 1, 1, 1, 1, 10, 0, 2, 1];
        assert_eq!(reply[34..54], [&route[..], &[68, 8, 9, 0, 1, 2, 3, 4, 0]].concat());
        assert_eq!((reply[54], &reply[58..]), (0, &message[4..]));
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
        // The other interface's address belongs to a neighbour here, which is resolved.
        let solicit = originated(&outs)[0];
        assert_eq!(solicit[62..78], hex("fe80000000000000000000fffe000002"));
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
