//! DHCP relay agent: RFC 1542, 4.1 and RFC 3046 for IPv4, RFC 8415, 19 for IPv6.
//!
//! An interface with servers passes its clients' messages on to each of them, from its own address, by the routes of its
//! VRF. It adds its name, by which the answer finds the way back (circuit identifier, Interface-Id), and its MAC (remote
//! identifier). Answers of these servers, and of no others, go to the client: broadcast if the client asks for it, else
//! to the MAC and the address in the message, without ARP; over IPv6 by its address on the interface's link.
//!
//! An answer is a server's if it has the server's address and comes by an interface by which the route to the server
//! leaves: a client cannot answer in a server's name. One that arrives by an interface with a host interface is the
//! agent's all the same: the kernel does not have its addresses.
//!
//! Requests that have passed another agent are not relayed over IPv4: clients forge them, and no agent is nearer to them
//! on their own link (RFC 3046, 2.1). Over IPv6 agents may be chained (RFC 8415, 19.1.2).
//!
//! Drops: `dhcp-malformed`, `dhcp-untrusted`, `dhcp-hops`, `dhcp-rate`, `udp-malformed`, `too-big`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::build::{self, Ipv4Fields, Ipv6Fields, Link};
use wire::checksum::{pseudo_header_v4, pseudo_header_v6};
use wire::dhcp::{Refusal, v4, v6};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use wire::ip::{IPV4_MIN_LEN, PROTOCOL_UDP};
use wire::l4::{UDP_LEN, UdpHeader};
use zerocopy::{FromBytes, IntoBytes};

use crate::bucket::TokenBucket;
use crate::context::Context;
use crate::frame::IpPacket;
use crate::interfaces::{Interface, Interfaces};
use crate::neighbour::Waiting;
use crate::originate::{self, NO_LINK};
use crate::reset::is_valid_udp;
use crate::{Output, Packet, resolution};

/// Messages in each second, and at once, that an interface's clients may send, and as many that servers may send to
/// them: a flood of clients does not keep answers from the others.
pub(crate) const RATE: u32 = 200;

/// Flow hashes for which a route is looked up: each selects one of several equal paths.
const PATHS: u32 = 64;
/// Spreads them over all values, in their high bits as in their low ones (2^32 by the golden ratio).
const SPREAD: u32 = 0x9e37_79b9;

const BROADCAST_MAC: MacAddr = MacAddr([0xff; 6]);

/// Result for a packet: taken, or dropped.
type Taken = Result<(), DropReason>;

fn reason(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::Malformed => DropReason::DhcpMalformed,
        Refusal::Untrusted => DropReason::DhcpUntrusted,
        Refusal::Hops => DropReason::DhcpHops,
    }
}

/// Returns true for a packet to the agent that arrived by an interface with a host interface: to an address that the
/// kernel does not have. Of fragments, which are reassembled first, the ports are not known.
pub(crate) fn is_for_agent(ip: &IpPacket<'_>, from: InterfaceId, interfaces: &Interfaces) -> bool {
    let is_v4 = matches!(ip, IpPacket::V4 { .. });
    let to = ip.destination();
    let relays = |interface: &Interface| servers(interface, is_v4).next().is_some();
    let has = |interface: &Interface| match to {
        IpAddr::V4(to) => interface.has_v4(to),
        IpAddr::V6(to) => !to.is_unicast_link_local() && interface.has_v6(to),
    };
    is_udp_to_agent(ip)
        && interfaces.beside(from).any(relays)
        && interfaces.beside(from).any(|interface| !interface.host && has(interface))
}

fn is_udp_to_agent(ip: &IpPacket<'_>) -> bool {
    let Some(upper) = ip.upper().filter(|upper| upper.protocol == PROTOCOL_UDP) else {
        return false;
    };
    let header =
        ip.bytes().get(upper.offset..).and_then(|rest| UdpHeader::ref_from_prefix(rest).ok());
    upper.fragment.is_some()
        || header.is_some_and(|(header, _)| header.destination_port == agent_port(ip))
}

/// The port of servers and relay agents.
fn agent_port(ip: &IpPacket<'_>) -> u16 {
    if matches!(ip, IpPacket::V4 { .. }) { v4::SERVER_PORT } else { v6::SERVER_PORT }
}

/// Takes a UDP packet for the router; `None` if it is none of the relay agent's.
pub(crate) fn take<P: Packet>(
    ip: &IpPacket<'_>,
    offset: usize,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Option<Taken> {
    let (header, _) = UdpHeader::ref_from_prefix(ip.bytes().get(offset..)?).ok()?;
    let is_v4 = matches!(ip, IpPacket::V4 { .. });
    let relays = |interface: &Interface| servers(interface, is_v4).next().is_some();
    if header.destination_port != agent_port(ip) || !context.interfaces.beside(from).any(relays) {
        return None;
    }
    if !is_valid_udp(ip, offset) {
        return Some(Err(DropReason::UdpMalformed));
    }
    let message = &ip.bytes()[offset..][UDP_LEN..usize::from(header.length.get())];
    let request = if is_v4 { v4::is_request(message) } else { v6::is_request(message) };
    match request {
        Some(true) => {
            let interface = context.interfaces.get(from).filter(|of| relays(of))?;
            Some(request_of(interface, ip.source(), message, context))
        }
        Some(false) if is_v4 => Some(reply_v4(message, (ip.source(), from), context)),
        Some(false) => Some(reply_v6(message, (ip.source(), from), context)),
        None => Some(Err(DropReason::DhcpMalformed)),
    }
}

/// Returns the servers of an interface in a family.
fn servers(interface: &Interface, v4: bool) -> impl Iterator<Item = IpAddr> {
    interface.settings.relay.iter().copied().filter(move |server| server.is_ipv4() == v4)
}

fn take_token<P, O>(rate: &TokenBucket, context: &Context<'_, P, O>) -> Taken {
    rate.take(context.now).then_some(()).ok_or(DropReason::DhcpRate)
}

/// Returns true if the route to an address leaves by this interface; of several equal paths, one of them.
fn leads_by<P: Packet>(
    address: IpAddr,
    interface: InterfaceId,
    context: &Context<'_, P, impl Output<P>>,
) -> bool {
    let vrf = context.interfaces.vrf_of(interface);
    let leaves_by = |hash| match context.out.route(vrf, address, hash).hop {
        NextHop::Forward { interface, .. }
        | NextHop::Glean { interface }
        | NextHop::Unresolved { interface } => Some(interface),
        _ => None,
    };
    (0..PATHS).any(|path| leaves_by(path.wrapping_mul(SPREAD)) == Some(interface))
}

/// Returns the interface that an answer is for, if it is one of the interface's servers' and came from there.
fn asker<'a, P: Packet>(
    (server, from): (IpAddr, InterfaceId),
    is_named: impl Fn(&Interface) -> bool,
    context: &Context<'a, P, impl Output<P>>,
) -> Result<&'a Interface, DropReason> {
    let has_asked =
        |interface: &&Interface| is_named(interface) && interface.settings.relay.contains(&server);
    let interface = context.interfaces.beside(from).find(has_asked);
    interface.filter(|_| leads_by(server, from, context)).ok_or(DropReason::DhcpUntrusted)
}

/// Relays a message of a client on this interface.
fn request_of<P: Packet>(
    interface: &Interface,
    client: IpAddr,
    message: &[u8],
    context: &mut Context<'_, P, impl Output<P>>,
) -> Taken {
    let circuit = interface.name.as_bytes();
    match client {
        IpAddr::V4(_) => {
            let agent = interface.v4.first().ok_or(DropReason::NotLocal)?.addr();
            let relayed = v4::relay_request(message, agent, circuit, interface.mac);
            let relayed = relayed.map_err(reason)?;
            take_token(&interface.request_rate, context)?;
            for server in servers(interface, true) {
                send_v4(&relayed, agent, server, interface.id, context)?;
            }
        }
        IpAddr::V6(client) if client.is_unspecified() => return Err(DropReason::DhcpMalformed),
        IpAddr::V6(client) => {
            let link = interface.v6.first().map_or(Ipv6Addr::UNSPECIFIED, |net| net.addr());
            let relayed = v6::relay_forward(message, link, client, circuit).map_err(reason)?;
            take_token(&interface.request_rate, context)?;
            for server in servers(interface, false) {
                let IpAddr::V6(to) = server else { continue };
                let source = context.interfaces.source_v6_without_host(interface.id, to);
                let source = source.ok_or(DropReason::NotLocal)?;
                let ports = (v6::SERVER_PORT, v6::SERVER_PORT);
                let frame = udp_v6(context.icmp.ttl, (source, to), ports, &relayed);
                originate::send(frame, server, interface.id, context);
            }
        }
    }
    Ok(())
}

/// Sends a client's message to a server.
fn send_v4<P: Packet>(
    relayed: &[u8],
    agent: Ipv4Addr,
    server: IpAddr,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Taken {
    let IpAddr::V4(to) = server else { return Ok(()) };
    let length = IPV4_MIN_LEN + UDP_LEN + relayed.len();
    let identification = context.identify(length, false).ok_or(DropReason::DhcpRate)?;
    let fields = Ipv4Fields {
        tos: 0,
        identification: identification.unwrap_or(0),
        dont_fragment: identification.is_none(),
        ttl: context.icmp.ttl,
        protocol: PROTOCOL_UDP,
        source: agent,
        destination: to,
    };
    let ports = (v4::SERVER_PORT, v4::SERVER_PORT);
    originate::send(udp_v4(NO_LINK, fields, ports, relayed), server, from, context);
    Ok(())
}

/// Passes a server's message on to its client.
fn reply_v4<P: Packet>(
    message: &[u8],
    (server, from): (IpAddr, InterfaceId),
    context: &mut Context<'_, P, impl Output<P>>,
) -> Taken {
    let v4::Reply { agent, circuit, client, message } = v4::relay_reply(message).map_err(reason)?;
    let is_named = |interface: &Interface| {
        let by_name = circuit.as_ref().is_none_or(|name| name == interface.name.as_bytes());
        by_name && interface.has_v4(agent)
    };
    let interface = asker((server, from), is_named, context)?;
    take_token(&interface.reply_rate, context)?;
    if IPV4_MIN_LEN + UDP_LEN + message.len() > usize::from(interface.mtu) {
        return Err(DropReason::TooBig);
    }
    let (mac, address) = client.unwrap_or((BROADCAST_MAC, Ipv4Addr::BROADCAST));
    let fields = Ipv4Fields {
        tos: 0,
        identification: 0,
        dont_fragment: true,
        ttl: context.icmp.ttl,
        protocol: PROTOCOL_UDP,
        source: agent,
        destination: address,
    };
    let link = Link { destination: mac, source: interface.mac };
    let frame = udp_v4(link, fields, (v4::SERVER_PORT, v4::CLIENT_PORT), &message);
    context.out.originate(interface.id, &frame);
    Ok(())
}

/// Passes a server's Relay-reply on to its client, or to the next agent.
fn reply_v6<P: Packet>(
    message: &[u8],
    (server, from): (IpAddr, InterfaceId),
    context: &mut Context<'_, P, impl Output<P>>,
) -> Taken {
    let reply = v6::relay_reply(message).map_err(reason)?;
    let is_named = |interface: &Interface| match reply.interface {
        Some(name) => name == interface.name.as_bytes(),
        None => interface.has_v6(reply.link),
    };
    let interface = asker((server, from), is_named, context)?;
    let peer = IpAddr::V6(reply.peer);
    // An agent may be farther away than its clients are.
    let on_link = interface.is_on_link(peer);
    if !(on_link || reply.for_agent && leads_by(peer, interface.id, context)) {
        return Err(DropReason::DhcpUntrusted);
    }
    take_token(&interface.reply_rate, context)?;
    let source = match reply.peer.is_unicast_link_local() {
        true => interface.usable_link_local(),
        false => context.interfaces.source_v6(interface.id, reply.peer),
    };
    let source = source.ok_or(DropReason::NotLocal)?;
    let port = if reply.for_agent { v6::SERVER_PORT } else { v6::CLIENT_PORT };
    let ports = (v6::SERVER_PORT, port);
    let frame = udp_v6(context.icmp.ttl, (source, reply.peer), ports, reply.message);
    if on_link {
        resolution::send_to((interface.id, peer), Waiting::Own(frame), context);
    } else {
        originate::send(frame, peer, interface.id, context);
    }
    Ok(())
}

fn udp_header((source, destination): (u16, u16), data: &[u8]) -> UdpHeader {
    UdpHeader {
        source_port: source.into(),
        destination_port: destination.into(),
        // Fits: the data of a datagram, and at most a few bytes more.
        length: ((UDP_LEN + data.len()) as u16).into(),
        checksum: 0.into(),
    }
}

/// Returns the checksum as it is sent: 0 would mean that there is none.
fn sent(sum: u16) -> u16 {
    if sum == 0 { u16::MAX } else { sum }
}

fn udp_v4(link: Link, fields: Ipv4Fields, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    let mut udp = udp_header(ports, data);
    let (source, destination) = (fields.source, fields.destination);
    let mut sum = pseudo_header_v4(source, destination, PROTOCOL_UDP, udp.length.get());
    sum.add(udp.as_bytes());
    sum.add(data);
    udp.checksum = sent(sum.finish()).into();
    let header = build::ipv4_header(fields, UDP_LEN + data.len());
    let packet = [header.as_bytes(), udp.as_bytes(), data].concat();
    build::ethernet(link, ETHERTYPE_IPV4, &packet)
}

fn udp_v6(
    hop_limit: u8,
    (source, destination): (Ipv6Addr, Ipv6Addr),
    ports: (u16, u16),
    data: &[u8],
) -> Vec<u8> {
    let mut udp = udp_header(ports, data);
    let mut sum = pseudo_header_v6(source, destination, PROTOCOL_UDP, udp.length.get().into());
    sum.add(udp.as_bytes());
    sum.add(data);
    udp.checksum = sent(sum.finish()).into();
    let fields = Ipv6Fields { class: 0, hop_limit, next_header: PROTOCOL_UDP, source, destination };
    let header = build::ipv6_header(fields, UDP_LEN + data.len());
    let packet = [header.as_bytes(), udp.as_bytes(), data].concat();
    build::ethernet(NO_LINK, ETHERTYPE_IPV6, &packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        A, B, Bench, L, LEFT, Out, config, drops, hex, ip, originated, right, secs,
        v4 as packet_v4, v6 as packet_v6, with_l4_checksum,
    };
    use dataplane::next_hop::LOCAL;
    use dataplane::reason::PuntReason;

    const CLIENT: MacAddr = MacAddr([2, 0, 0, 0, 9, 9]);

    fn bench() -> Bench {
        let mut config = config();
        config.interfaces[0].settings.relay = vec![ip("10.0.2.2"), ip("fd00:2::2")];
        Bench::with_hosts(config)
    }

    fn datagram(ports: (u16, u16), data: &[u8]) -> Vec<u8> {
        [udp_header(ports, data).as_bytes(), data].concat()
    }

    /// A DHCP message for IPv4 with these options.
    fn message(operation: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 240];
        bytes[..4].copy_from_slice(&[operation, 1, 6, 0]);
        bytes[28..34].copy_from_slice(&CLIENT.0);
        bytes[236..].copy_from_slice(&[99, 130, 83, 99]);
        bytes.extend(options);
        bytes
    }

    fn request(bench: &mut Bench, message: &[u8]) -> Vec<Out> {
        let datagram = datagram((68, 67), message);
        let mut frame = packet_v4("0.0.0.0", "255.255.255.255", PROTOCOL_UDP, &datagram);
        frame[..6].fill(0xff);
        bench.local(frame)
    }

    /// A server's message, which arrives by the right interface.
    fn reply(bench: &mut Bench, from: &str, message: &[u8]) -> Vec<Out> {
        let frame = packet_v4(from, "10.0.1.1", PROTOCOL_UDP, &datagram((67, 67), message));
        bench.punt_from(right(), frame)
    }

    impl Bench {
        fn punt_from(&mut self, from: InterfaceId, frame: Vec<u8>) -> Vec<Out> {
            self.punt(PuntReason::Local, from, LOCAL, frame)
        }
    }

    fn offer(agent: &str) -> Vec<u8> {
        let mut offer = message(2, &[53, 1, 2, 82, 6, 1, 4, b'l', b'e', b'f', b't', 255]);
        offer[16..20].copy_from_slice(&[10, 0, 1, 50]);
        let agent: Ipv4Addr = agent.parse().unwrap();
        offer[24..28].copy_from_slice(&agent.octets());
        offer
    }

    #[test]
    fn a_client_s_broadcast_goes_to_the_server_from_the_interface_s_address() {
        let mut bench = bench();
        let outs = request(&mut bench, &message(1, &[53, 1, 1, 255]));
        let frame = originated(&outs)[0];
        assert!(matches!(outs.last(), Some(Out::ToHost(_))), "{outs:?}");
        assert_eq!(frame[..12], [B.0, crate::testing::R.0].concat());
        assert_eq!(frame[26..38], [10, 0, 1, 1, 10, 0, 2, 2, 0, 67, 0, 67]);
        let sent = &frame[42..];
        assert_eq!((sent[3], &sent[24..28]), (1, &[10, 0, 1, 1][..]));
        let option = [&[82, 14, 1, 4][..], b"left", &[2, 6], &L.0, &[255]].concat();
        assert_eq!(sent[243..][..option.len()], option);
        // An interface without servers answers as before.
        let frame =
            packet_v4("0.0.0.0", "255.255.255.255", PROTOCOL_UDP, &datagram((68, 67), &[1]));
        assert_eq!(drops(&bench.punt_from(right(), frame)), [DropReason::NoListener]);
    }

    #[test]
    fn the_server_s_answer_goes_to_the_client_s_mac_or_to_all() {
        let mut bench = bench();
        let offer = offer("10.0.1.1");
        let outs = reply(&mut bench, "10.0.2.2", &offer);
        let [Out::Originate(LEFT, frame), Out::ToHost(_)] = &outs[..] else { panic!("{outs:?}") };
        assert_eq!(frame[..12], [CLIENT.0, L.0].concat());
        assert_eq!(frame[26..38], [10, 0, 1, 1, 10, 0, 1, 50, 0, 67, 0, 68]);
        assert_eq!(frame[42 + 240..][..5], [53, 1, 2, 255, 0]);
        let mut to_all = offer.clone();
        to_all[10] = 0x80;
        let outs = reply(&mut bench, "10.0.2.2", &to_all);
        let frame = originated(&outs)[0];
        assert_eq!((&frame[..6], &frame[30..34]), (&[0xff; 6][..], &[255; 4][..]));
    }

    #[test]
    fn answers_of_others_and_to_other_interfaces_are_untrusted() {
        let mut bench = bench();
        let untrusted = [DropReason::DhcpUntrusted];
        assert_eq!(drops(&reply(&mut bench, "10.0.2.3", &offer("10.0.1.1"))), untrusted);
        assert_eq!(drops(&reply(&mut bench, "10.0.2.2", &offer("10.0.2.1"))), untrusted);
        let mut other = offer("10.0.1.1");
        other[247] = b'x';
        assert_eq!(drops(&reply(&mut bench, "10.0.2.2", &other)), untrusted, "the circuit");
        let mut forged = message(1, &[53, 1, 1, 255]);
        forged[27] = 9;
        assert_eq!(drops(&request(&mut bench, &forged)), untrusted);
        forged[27] = 0;
        forged[3] = 16;
        assert_eq!(drops(&request(&mut bench, &forged)), [DropReason::DhcpHops]);
        for malformed in [&[1][..], &[9; 300]] {
            assert_eq!(drops(&request(&mut bench, malformed)), [DropReason::DhcpMalformed]);
        }
        let mut cut =
            packet_v4("0.0.0.0", "255.255.255.255", PROTOCOL_UDP, &datagram((68, 67), &forged));
        cut[38] = 0x7f;
        assert_eq!(drops(&bench.local(cut)), [DropReason::UdpMalformed]);
    }

    #[test]
    fn an_answer_comes_by_the_interface_of_the_route_to_the_server() {
        let untrusted = [DropReason::DhcpUntrusted];
        let mut bench = bench();
        let frame = packet_v4(
            "10.0.2.2",
            "10.0.1.1",
            PROTOCOL_UDP,
            &datagram((67, 67), &offer("10.0.1.1")),
        );
        assert_eq!(drops(&bench.punt_from(LEFT, frame.clone())), untrusted);
        assert_eq!(drops(&bench.punt_from(right(), frame)), []);
        let answer = |peer: &str, inner: u8| {
            let peer: Ipv6Addr = peer.parse().unwrap();
            let message = [13, 0].into_iter().chain([0; 16]).chain(peer.octets());
            let options = [0, 18, 0, 4, b'l', b'e', b'f', b't', 0, 9, 0, 38, inner];
            let message: Vec<_> = message.chain(options).chain([0; 37]).collect();
            let data = datagram((547, 547), &message);
            with_l4_checksum(packet_v6("fd00:2::2", "fd00:1::1", PROTOCOL_UDP, &data))
        };
        let (to_client, to_agent) = (2, 13);
        assert_eq!(drops(&bench.punt_from(LEFT, answer("fd00:1::2", to_client))), untrusted);
        // A client is on the link; an agent may be behind it, and not elsewhere.
        for (peer, inner) in [
            ("2001:db8::9", to_client),
            ("fd00:2::9", to_client),
            ("fd00:1::1", to_client),
            ("2001:db8::9", to_agent),
            ("fd00:2::9", to_agent),
            ("fd00:1::1", to_agent),
        ] {
            let outs = bench.punt_from(right(), answer(peer, inner));
            assert_eq!((drops(&outs), originated(&outs).len()), (untrusted.into(), 0), "{peer}");
        }
        let behind = ("fd00:8::/32".parse().unwrap(), crate::testing::GLEAN_LEFT);
        bench.net.routes.push(behind);
        assert_eq!(drops(&bench.punt_from(right(), answer("fd00:8::9", to_client))), untrusted);
        for (peer, inner) in
            [("fd00:1::2", to_client), ("fd00:1::2", to_agent), ("fd00:8::9", to_agent)]
        {
            let outs = bench.punt_from(right(), answer(peer, inner));
            let to = outs.iter().find_map(|out| match out {
                Out::Originate(to, _) => Some(*to),
                _ => None,
            });
            assert_eq!((drops(&outs), to), (vec![], Some(LEFT)), "{peer}");
        }
    }

    #[test]
    fn a_server_behind_a_host_interface_is_heard() {
        let mut config = config();
        config.interfaces[0].settings.relay = vec![ip("10.0.2.2"), ip("fd00:2::2")];
        config.interfaces[1].host = true;
        let mut bench = Bench::with_hosts(config);
        let offer = offer("10.0.1.1");
        let outs = reply(&mut bench, "10.0.2.2", &offer);
        assert!(matches!(outs[..], [Out::Originate(LEFT, _), Out::ToHost(_)]), "{outs:?}");
        // In fragments.
        let data = datagram((67, 67), &offer);
        let fragment = |at: usize, data: &[u8], more: u8| {
            let mut frame = packet_v4("10.0.2.2", "10.0.1.1", PROTOCOL_UDP, data);
            frame[20..22].copy_from_slice(&[more << 5, (at / 8) as u8]);
            crate::testing::fix_v4_checksum(&mut frame);
            frame
        };
        let outs = bench.punt_from(right(), fragment(0, &data[..160], 1));
        assert_eq!(outs, []);
        let outs = bench.punt_from(right(), fragment(160, &data[160..], 0));
        assert!(matches!(outs[0], Out::Originate(LEFT, _)), "{outs:?}");
        // Packets to the kernel's addresses are the kernel's, and so are other ports.
        let to = |address: &str, port, config: &mut Bench| {
            let data = datagram((67, port), &offer);
            config.punt_from(right(), packet_v4("10.0.2.2", address, PROTOCOL_UDP, &data))
        };
        for (address, port) in [("10.0.2.1", 67), ("10.0.1.1", 68)] {
            let outs = to(address, port, &mut bench);
            assert!(matches!(outs[..], [Out::Deliver(..)]), "{address} {port}: {outs:?}");
        }
    }

    #[test]
    fn a_message_over_ipv6_has_a_source_that_no_kernel_has() {
        let sources = |addresses: &[&str]| {
            let mut config = config();
            config.interfaces[0].settings.relay = vec![ip("fd00:2::2")];
            config.interfaces[0].addresses =
                addresses.iter().map(|address| address.parse().unwrap()).collect();
            config.interfaces[1].host = true;
            let mut bench = Bench::with_hosts(config);
            let solicit = datagram((546, 547), &[1, 1, 2, 3]);
            let frame = packet_v6("fe80::a01", "ff02::1:2", PROTOCOL_UDP, &solicit);
            let outs = bench.local(with_l4_checksum(frame));
            (drops(&outs), originated(&outs).iter().map(|f| f[22..38].to_vec()).collect::<Vec<_>>())
        };
        let own = hex("fd000001000000000000000000000001");
        assert_eq!(sources(&["fd00:1::1/64"]), (vec![], vec![own]));
        assert_eq!(sources(&[]), (vec![DropReason::NotLocal], vec![]));
    }

    #[test]
    fn a_flood_of_clients_keeps_no_answer_from_the_others() {
        let mut bench = bench();
        let discover = message(1, &[53, 1, 1, 255]);
        (0..2 * RATE).for_each(|_| drop(request(&mut bench, &discover)));
        assert_eq!(drops(&request(&mut bench, &discover)), [DropReason::DhcpRate]);
        let offer = offer("10.0.1.1");
        let passed = |bench: &mut Bench| drops(&reply(bench, "10.0.2.2", &offer)).is_empty();
        assert_eq!((0..2 * RATE).filter(|_| passed(&mut bench)).count(), RATE as usize);
    }

    #[test]
    fn clients_have_a_rate() {
        let mut bench = bench();
        let relayed = |bench: &mut Bench| {
            let discover = message(1, &[53, 1, 1, 255]);
            (0..2 * RATE).filter(|_| drops(&request(bench, &discover)).is_empty()).count()
        };
        assert_eq!(relayed(&mut bench), RATE as usize);
        bench.pass(secs(1));
        assert_eq!(relayed(&mut bench), RATE as usize);
    }

    #[test]
    fn a_solicitation_is_wrapped_for_the_server_and_its_answer_unwrapped() {
        let mut bench = bench();
        let solicit = [1, 1, 2, 3, 0, 1, 0, 2, 7, 7];
        let frame =
            packet_v6("fe80::a01", "ff02::1:2", PROTOCOL_UDP, &datagram((546, 547), &solicit));
        let outs = bench.local(with_l4_checksum(frame));
        let frame = originated(&outs)[0];
        assert!(matches!(outs.last(), Some(Out::ToHost(_))), "{outs:?}");
        let addresses = hex("fd000002000000000000000000000001 fd000002000000000000000000000002");
        assert_eq!(frame[38..54], addresses[16..]);
        assert_eq!(frame[54..58], [2, 35, 2, 35]);
        let forward = &frame[62..];
        let link = hex("fd000001000000000000000000000001 fe800000000000000000000000000a01");
        assert_eq!((&forward[..2], &forward[2..34]), (&[12, 0][..], &link[..]));
        assert_eq!(forward[34..46], [&[0, 18, 0, 4][..], b"left", &[0, 9, 0, 10]].concat());
        let mut answer = forward.to_vec();
        (answer[0], answer[46]) = (13, 2);
        let reply = |bench: &mut Bench, from: &str, answer: &[u8]| {
            let packet = packet_v6(from, "fd00:1::1", PROTOCOL_UDP, &datagram((547, 547), answer));
            bench.punt_from(right(), with_l4_checksum(packet))
        };
        // The client is known, so no solicitation comes in between.
        bench.command(crate::Command::AddStaticNeighbour {
            interface: LEFT,
            address: ip("fe80::a01"),
            mac: A,
        });
        bench.take();
        let outs = reply(&mut bench, "fd00:2::2", &answer);
        let [Out::Originate(LEFT, frame), Out::ToHost(_)] = &outs[..] else { panic!("{outs:?}") };
        assert_eq!((&frame[..6], &frame[38..54]), (&A.0[..], &link[16..]));
        assert_eq!((&frame[54..58], &frame[62..66]), (&[2, 35, 2, 34][..], &[2, 1, 2, 3][..]));
        assert_eq!(drops(&reply(&mut bench, "fd00:2::3", &answer)), [DropReason::DhcpUntrusted]);
        answer[38] = b'x';
        assert_eq!(drops(&reply(&mut bench, "fd00:2::2", &answer)), [DropReason::DhcpUntrusted]);
        answer.truncate(50);
        assert_eq!(drops(&reply(&mut bench, "fd00:2::2", &answer)), [DropReason::DhcpMalformed]);
    }

    #[test]
    fn the_relay_listens_to_the_group_of_its_clients() {
        let mut bench = bench();
        let frame =
            packet_v6("fe80::a01", "ff02::1:2", PROTOCOL_UDP, &datagram((546, 547), &[1, 1, 2, 3]));
        let frame = with_l4_checksum(frame);
        assert_eq!(drops(&bench.punt_from(right(), frame)), [DropReason::MulticastNotRouted]);
        let groups = bench.router.shared.interfaces.get(LEFT).unwrap().reported_groups();
        assert!(groups.contains(&wire::dhcp::ALL_RELAYS));
    }
}
