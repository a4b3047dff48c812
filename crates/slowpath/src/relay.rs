//! DHCP relay agent: RFC 1542, 4.1 and RFC 3046 for IPv4, RFC 8415, 19 for IPv6.
//!
//! An interface with servers passes its clients' messages on to each of them, from its own address, by the routes of its
//! VRF. It adds its name, by which the answer finds the way back (circuit identifier, Interface-Id), and its MAC (remote
//! identifier). Answers of these servers, and of no others, go to the client: broadcast if the client asks for it, else
//! to the MAC and the address in the message, without ARP; over IPv6 by its address.
//!
//! Requests that have passed another agent are not relayed over IPv4: clients forge them, and no agent is nearer to them
//! on their own link (RFC 3046, 2.1). Over IPv6 agents may be chained (RFC 8415, 19.1.2).
//!
//! Drops: `dhcp-malformed`, `dhcp-untrusted`, `dhcp-hops`, `dhcp-rate`, `udp-malformed`, `too-big`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::build::{self, Ipv4Fields, Ipv6Fields, Link};
use wire::checksum::{pseudo_header_v4, pseudo_header_v6};
use wire::dhcp::{Refusal, v4, v6};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use wire::ip::{IPV4_MIN_LEN, PROTOCOL_UDP};
use wire::l4::{UDP_LEN, UdpHeader};
use zerocopy::{FromBytes, IntoBytes};

use crate::context::Context;
use crate::frame::IpPacket;
use crate::interfaces::Interface;
use crate::originate::{self, NO_LINK};
use crate::reset::is_valid_udp;
use crate::{Output, Packet};

/// Messages in each second that an interface's clients and their servers may exchange, and at once.
pub(crate) const RATE: u32 = 200;

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

/// Takes a UDP packet for the router; `None` if it is none of the relay agent's.
pub(crate) fn take<P: Packet>(
    ip: &IpPacket<'_>,
    offset: usize,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) -> Option<Taken> {
    let (header, _) = UdpHeader::ref_from_prefix(ip.bytes().get(offset..)?).ok()?;
    let is_v4 = matches!(ip, IpPacket::V4 { .. });
    let port = if is_v4 { v4::SERVER_PORT } else { v6::SERVER_PORT };
    let relays = |interface: &Interface| servers(interface, is_v4).next().is_some();
    if header.destination_port != port || !context.interfaces.beside(from).any(relays) {
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

fn take_token<P, O>(interface: &Interface, context: &Context<'_, P, O>) -> Taken {
    interface.relay_rate.take(context.now).then_some(()).ok_or(DropReason::DhcpRate)
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
            take_token(interface, context)?;
            for server in servers(interface, true) {
                send_v4(&relayed, agent, server, interface.id, context)?;
            }
        }
        IpAddr::V6(client) if client.is_unspecified() => return Err(DropReason::DhcpMalformed),
        IpAddr::V6(client) => {
            let link = interface.v6.first().map_or(Ipv6Addr::UNSPECIFIED, |net| net.addr());
            let relayed = v6::relay_forward(message, link, client, circuit).map_err(reason)?;
            take_token(interface, context)?;
            for server in servers(interface, false) {
                let IpAddr::V6(to) = server else { continue };
                let source = context.interfaces.source_v6(interface.id, to);
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
    let is_it = |interface: &&Interface| {
        let named = circuit.as_ref().is_none_or(|name| name == interface.name.as_bytes());
        named && interface.has_v4(agent) && interface.settings.relay.contains(&server)
    };
    let interface = context.interfaces.beside(from).find(is_it).ok_or(DropReason::DhcpUntrusted)?;
    take_token(interface, context)?;
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
    let is_it = |interface: &&Interface| {
        let named = match reply.interface {
            Some(name) => name == interface.name.as_bytes(),
            None => interface.has_v6(reply.link),
        };
        named && interface.settings.relay.contains(&server)
    };
    let interface = context.interfaces.beside(from).find(is_it).ok_or(DropReason::DhcpUntrusted)?;
    take_token(interface, context)?;
    let source = match reply.peer.is_unicast_link_local() {
        true => interface.usable_link_local(),
        false => context.interfaces.source_v6(interface.id, reply.peer),
    };
    let source = source.ok_or(DropReason::NotLocal)?;
    let port = if reply.for_agent { v6::SERVER_PORT } else { v6::CLIENT_PORT };
    let ports = (v6::SERVER_PORT, port);
    let frame = udp_v6(context.icmp.ttl, (source, reply.peer), ports, reply.message);
    originate::send(frame, reply.peer.into(), interface.id, context);
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
