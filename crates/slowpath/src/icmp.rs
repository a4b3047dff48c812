//! ICMP errors to the senders of packets: RFC 792, RFC 1812, 4.3 and 5.2.7; RFC 4443.
//!
//! No error is sent (RFC 1812, 4.3.2.7; RFC 4443, 2.4 (e))
//!
//! * about an ICMP error, or an ICMPv6 redirect, also behind extension or authentication headers;
//! * about a later fragment of an IPv4 datagram (the first one brings the error);
//! * about a packet to a multicast or broadcast address, or one that was received in such a frame, except
//!   for ICMPv6 "packet too big" and some "parameter problem"s;
//! * to a source that is not one host: unspecified, loopback, multicast, broadcast, 0/8, 240/4 (unless the
//!   router is configured with hosts in 240/4);
//! * to the router itself;
//! * beyond the rate limits: a token bucket for the whole router, and one for the sender's prefix, so that
//!   a flood from one place does not use up the errors of others (RFC 1812, 4.3.2.8; RFC 4443, 2.4 (f);
//!   `bucket.rs`).
//!
//! Nor is "unreachable" sent where the interface is configured not to (RFC 4443, 3.1), except
//! "fragmentation needed". IPv4 errors have DF set: 576 bytes are never fragmented, and so they need no
//! identification that must not repeat (RFC 6864, 4.1).
//!
//! The error's source is the address that the packet was sent to, if that was the router's own (RFC 4443,
//! 2.2 (a)), else an address of the receiving interface, so that traceroute shows the path that the
//! packets take. It quotes as much of the packet as fits (576 and 1280 bytes) and is routed to the sender
//! by the FIB.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::interface::InterfaceId;
use dataplane::reason::DropReason;
use wire::build::{self, Ipv4Fields, Ipv6Fields};
use wire::icmp::{ICMP_LEN, v4, v6};
use wire::ip::{IPV4_MIN_LEN, Ipv4Header, Ipv6Header, PROTOCOL_ICMP, PROTOCOL_ICMPV6};

use crate::context::Context;
use crate::frame::{self, IpPacket};
use crate::interfaces::Interfaces;
use crate::originate::{self, NO_LINK};
use crate::{Output, Packet};

/// Precedence "internetwork control" for ICMP errors (RFC 1812, 4.3.2.5).
const TOS_CONTROL: u8 = 0xc0;

/// Error of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// TTL or hop limit ran out.
    TtlExpired,
    /// Fragments of a packet for the router are missing when its timeout ends.
    ReassemblyExpired,
    /// No route.
    NoRoute,
    /// The host does not answer, or the route is unreachable.
    HostUnreachable,
    /// Refused by the administrator.
    Prohibited,
    /// Larger than the next link's MTU.
    TooBig {
        /// The MTU of that link.
        mtu: u16,
    },
    /// A link-local source with a destination off the link. IPv6 only.
    BeyondScope,
    /// Nothing listens on the router's interface.
    PortUnreachable,
    /// The router does not implement this protocol.
    ProtocolUnreachable {
        /// Offset of the byte that names the protocol.
        pointer: u32,
    },
    /// A source route. IPv4 only.
    SourceRouteFailed,
    /// A first fragment without all headers. IPv6 only.
    IncompleteChain,
    /// A header field or option is wrong.
    BadField {
        /// Its offset in the packet.
        pointer: u32,
    },
    /// An option that the router must recognise and does not. IPv6 only.
    UnknownOption {
        /// Its offset in the packet.
        pointer: u32,
        /// True if it is also reported about multicast packets.
        also_multicast: bool,
    },
}

impl Error {
    /// Returns type, code and the four bytes behind them, in ICMP; `None` for errors that exist only in IPv6.
    fn v4(self) -> Option<(u8, u8, u32)> {
        Some(match self {
            Self::TtlExpired => (v4::TIME_EXCEEDED, v4::TTL_EXCEEDED, 0),
            Self::ReassemblyExpired => (v4::TIME_EXCEEDED, v4::REASSEMBLY_EXCEEDED, 0),
            Self::NoRoute => (v4::UNREACHABLE, v4::NET_UNREACHABLE, 0),
            Self::HostUnreachable => (v4::UNREACHABLE, v4::HOST_UNREACHABLE, 0),
            Self::Prohibited => (v4::UNREACHABLE, v4::ADMIN_PROHIBITED, 0),
            Self::TooBig { mtu } => (v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED, u32::from(mtu)),
            Self::PortUnreachable => (v4::UNREACHABLE, v4::PORT_UNREACHABLE, 0),
            Self::ProtocolUnreachable { .. } => (v4::UNREACHABLE, v4::PROTOCOL_UNREACHABLE, 0),
            Self::SourceRouteFailed => (v4::UNREACHABLE, v4::SOURCE_ROUTE_FAILED, 0),
            Self::BadField { pointer } => (v4::PARAMETER_PROBLEM, 0, (pointer & 0xff) << 24),
            Self::BeyondScope | Self::IncompleteChain | Self::UnknownOption { .. } => return None,
        })
    }

    /// Returns type, code and the four bytes behind them, in ICMPv6; `None` for errors that exist only in IPv4.
    fn v6(self) -> Option<(u8, u8, u32)> {
        Some(match self {
            Self::TtlExpired => (v6::TIME_EXCEEDED, v6::HOP_LIMIT_EXCEEDED, 0),
            Self::ReassemblyExpired => (v6::TIME_EXCEEDED, v6::REASSEMBLY_EXCEEDED, 0),
            Self::IncompleteChain => (v6::PARAMETER_PROBLEM, v6::INCOMPLETE_CHAIN, 0),
            Self::NoRoute => (v6::UNREACHABLE, v6::NO_ROUTE, 0),
            Self::HostUnreachable => (v6::UNREACHABLE, v6::ADDRESS_UNREACHABLE, 0),
            Self::Prohibited => (v6::UNREACHABLE, v6::ADMIN_PROHIBITED, 0),
            Self::TooBig { mtu } => (v6::PACKET_TOO_BIG, 0, u32::from(mtu)),
            Self::BeyondScope => (v6::UNREACHABLE, v6::BEYOND_SCOPE, 0),
            Self::PortUnreachable => (v6::UNREACHABLE, v6::PORT_UNREACHABLE, 0),
            Self::ProtocolUnreachable { pointer } => {
                (v6::PARAMETER_PROBLEM, v6::UNKNOWN_NEXT_HEADER, pointer)
            }
            Self::BadField { pointer } => (v6::PARAMETER_PROBLEM, v6::ERRONEOUS_FIELD, pointer),
            Self::UnknownOption { pointer, .. } => {
                (v6::PARAMETER_PROBLEM, v6::UNKNOWN_OPTION, pointer)
            }
            Self::SourceRouteFailed => return None,
        })
    }

    /// Returns true for the errors that report an MTU.
    fn is_too_big(self) -> bool {
        matches!(self, Self::TooBig { .. })
    }

    /// Returns true for the messages that an interface can be configured not to send (RFC 4443, 3.1).
    /// "Fragmentation needed" is not among them: path MTU discovery needs it.
    fn is_unreachable(self, message: (u8, u8, u32), kind: u8) -> bool {
        message.0 == kind && !matches!(self, Self::TooBig { .. })
    }

    /// Returns true for errors that are also reported about multicast packets (RFC 4443, 2.4 (e.3)).
    fn also_multicast(self) -> bool {
        matches!(self, Self::TooBig { .. } | Self::UnknownOption { also_multicast: true, .. })
    }
}

/// Drops a packet and sends its sender an error, if that is allowed.
pub(crate) fn refuse<P: Packet>(
    packet: P,
    from: InterfaceId,
    error: Error,
    reason: DropReason,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    report(packet.bytes(), from, error, context);
    context.out.drop(packet, reason);
}

/// Drops a packet; with an error, like [`refuse`].
pub(crate) fn refuse_or_drop<P: Packet>(
    packet: P,
    from: InterfaceId,
    error: Option<Error>,
    reason: DropReason,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    match error {
        Some(error) => refuse(packet, from, error, reason, context),
        None => context.out.drop(packet, reason),
    }
}

/// Sends an error to the sender of a frame, if that is allowed.
pub(crate) fn report<P: Packet>(
    frame: &[u8],
    from: InterfaceId,
    error: Error,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let Some((ethernet, _)) = frame::ethernet(frame) else { return };
    let Ok(ip) = IpPacket::parse_beginning(frame) else { return };
    let group_frame = ethernet.destination.is_multicast();
    let made = match ip {
        IpPacket::V4 { header, bytes } => {
            if group_frame || !may_report_v4(&ip, header, bytes, from, context) {
                return;
            }
            error_v4(header, bytes, from, error, context)
        }
        IpPacket::V6 { header, bytes } => {
            let group = group_frame || header.destination().is_multicast();
            let about_group = !group || error.also_multicast();
            if !about_group || !may_report_v6(&ip, header, bytes, from, context.interfaces) {
                return;
            }
            error_v6(header, bytes, from, error, context)
        }
    };
    if let Some(made) = made {
        originate::send(made, ip.source(), from, context);
    }
}

/// Returns true if an error may be sent about an IPv4 packet.
pub(crate) fn may_report_v4<P, O>(
    ip: &IpPacket<'_>,
    header: &Ipv4Header,
    bytes: &[u8],
    from: InterfaceId,
    context: &Context<'_, P, O>,
) -> bool {
    let interfaces = context.interfaces;
    let (source, destination) = (header.source(), header.destination());
    let one_host = !source.is_loopback()
        && !source.is_multicast()
        && !source.is_broadcast()
        && source.octets()[0] != 0
        && (context.icmp.class_e || source.octets()[0] < 240)
        && !interfaces.is_directed_broadcast(source, from)
        && !interfaces.is_any_all_zeros(source, from)
        && !interfaces.beside(from).any(|interface| interface.has_v4(source));
    let to_one = !destination.is_multicast()
        && !destination.is_broadcast()
        && !interfaces.is_directed_broadcast(destination, from);
    one_host && to_one && !is_error_or_later_fragment(ip, bytes, PROTOCOL_ICMP, v4::is_error)
}

/// Returns true if an error may be sent about an IPv6 packet, as far as its source and contents decide.
pub(crate) fn may_report_v6(
    ip: &IpPacket<'_>,
    header: &Ipv6Header,
    bytes: &[u8],
    from: InterfaceId,
    interfaces: &Interfaces,
) -> bool {
    let source = header.source();
    let one_host = !source.is_unspecified()
        && !source.is_loopback()
        && !source.is_multicast()
        && source.to_ipv4_mapped().is_none()
        && !interfaces.beside(from).any(|interface| interface.has_v6(source));
    let is_error = |kind| v6::is_error(kind) || kind == v6::REDIRECT;
    one_host && !is_error_or_later_fragment(ip, bytes, PROTOCOL_ICMPV6, is_error)
}

fn error_v4<P, O>(
    header: &Ipv4Header,
    bytes: &[u8],
    from: InterfaceId,
    error: Error,
    context: &mut Context<'_, P, O>,
) -> Option<Vec<u8>> {
    let (interfaces, now) = (context.interfaces, context.now);
    let message = error.v4()?;
    if error.is_unreachable(message, v4::UNREACHABLE) && interfaces.keeps_unreachables(from) {
        return None;
    }
    let source = error_source_v4(header, from, interfaces)?;
    if !context.rates.error(header.source().into(), error.is_too_big(), now) {
        return None;
    }
    message_v4(bytes, (source, header.source()), message, context)
}

/// Builds a message about an IPv4 packet: type, code, and the 32 bits that follow. `None` if no identification is
/// left for it.
pub(crate) fn message_v4<P, O>(
    bytes: &[u8],
    (source, destination): (Ipv4Addr, Ipv4Addr),
    message: (u8, u8, u32),
    context: &mut Context<'_, P, O>,
) -> Option<Vec<u8>> {
    let length = (IPV4_MIN_LEN + ICMP_LEN + bytes.len()).min(build::ICMPV4_ERROR_MAX);
    let identification = context.identify(length, false)?;
    let fields = Ipv4Fields {
        tos: TOS_CONTROL,
        identification: identification.unwrap_or(0),
        dont_fragment: identification.is_none(),
        ttl: context.icmp.ttl,
        protocol: PROTOCOL_ICMP,
        source,
        destination,
    };
    Some(build::icmpv4_error(NO_LINK, fields, message, bytes))
}

fn error_v6<P, O>(
    header: &Ipv6Header,
    bytes: &[u8],
    from: InterfaceId,
    error: Error,
    context: &mut Context<'_, P, O>,
) -> Option<Vec<u8>> {
    let (interfaces, now) = (context.interfaces, context.now);
    let message = error.v6()?;
    if error.is_unreachable(message, v6::UNREACHABLE) && interfaces.keeps_unreachables(from) {
        return None;
    }
    let source = error_source_v6(header, from, interfaces)?;
    if !context.rates.error(header.source().into(), error.is_too_big(), now) {
        return None;
    }
    let fields = Ipv6Fields {
        class: 0,
        hop_limit: context.icmp.ttl,
        next_header: PROTOCOL_ICMPV6,
        source,
        destination: header.source(),
    };
    Some(build::icmpv6_error(NO_LINK, fields, message, bytes))
}

fn error_source_v4(
    header: &Ipv4Header,
    from: InterfaceId,
    interfaces: &Interfaces,
) -> Option<Ipv4Addr> {
    let asked = header.destination();
    if interfaces.is_own(IpAddr::V4(asked), from) {
        return Some(asked);
    }
    interfaces.source_v4(from, header.source())
}

fn error_source_v6(
    header: &Ipv6Header,
    from: InterfaceId,
    interfaces: &Interfaces,
) -> Option<Ipv6Addr> {
    let asked = header.destination();
    if interfaces.is_own(IpAddr::V6(asked), from) {
        return Some(asked);
    }
    interfaces.source_v6(from, header.source())
}

/// Returns true for a packet about which no error is ever sent. An ICMP message too short to show its type
/// counts as an error: the safe side. IPv6 has no rule about later fragments, of which each may be too big
/// for a link (RFC 4443, 3.2); later fragments of an error do not exist, since errors fit every link.
fn is_error_or_later_fragment(
    ip: &IpPacket<'_>,
    bytes: &[u8],
    icmp: u8,
    is_error: impl Fn(u8) -> bool,
) -> bool {
    // Anything may follow a truncated authentication header.
    let Some(upper) = ip.upper() else { return matches!(ip, IpPacket::V4 { .. }) };
    if upper.is_later_fragment() {
        return matches!(ip, IpPacket::V4 { .. });
    }
    upper.protocol == icmp && bytes.get(upper.offset).is_none_or(|&kind| is_error(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Bench, GATEWAY, LEFT, Out, TO_B, config, drops, fix_icmpv6_checksum, fix_v4_checksum, hex,
        icmp_type, originated, right, udp, v4, v6,
    };
    use dataplane::next_hop::{NO_ROUTE, PROHIBITED, UNREACHABLE};
    use dataplane::reason::PuntReason;

    fn bench() -> Bench {
        Bench::with_hosts(config())
    }

    #[test]
    fn a_truncated_packet_is_pointed_at_its_length() {
        let whole = v4("10.0.1.2", "192.0.2.9", 17, &udp(30));
        for missing in [1, 30, 38] {
            let mut frame = whole.clone();
            frame.truncate(whole.len() - missing);
            let outs = bench().punt(PuntReason::Truncated, LEFT, NO_ROUTE, frame.clone());
            assert_eq!(drops(&outs), [DropReason::Ip4TotalLength]);
            let [error] = originated(&outs)[..] else { panic!("{outs:?}") };
            assert_eq!(error[34..36], [12, 0]);
            assert_eq!(error[38..42], [2, 0, 0, 0], "the pointer");
            assert_eq!(error[42..], frame[14..], "what there is of it");
        }
        // No error about a later fragment, or about an ICMP error.
        let mut later = whole.clone();
        later[21] = 1;
        let error = v4("10.0.1.2", "192.0.2.9", 1, &[3, 1, 0, 0, 0, 0, 0, 0, 0x45, 0, 0, 20]);
        for mut frame in [later, error] {
            frame.truncate(frame.len() - 2);
            let outs = bench().punt(PuntReason::Truncated, LEFT, NO_ROUTE, frame);
            assert_eq!(outs, [Out::Drop(DropReason::Ip4TotalLength)]);
        }
    }

    #[test]
    fn time_exceeded_byte_by_byte() {
        let probe = hex("020000000001 020000000a01 0800 4500002142420000011160870a0001020a000202
                         80e8829a000da07870726f6265");
        let error = hex("020000000a01 020000000001 0800 45c0003d00004000400123fe0a0001010a000102
                         0b000c2200000000
                         4500002142420000011160870a0001020a000202 80e8829a000da07870726f6265");
        let outs = bench().punt(PuntReason::Ttl, LEFT, TO_B, probe);
        assert_eq!(outs, [Out::Originate(LEFT, error), Out::Drop(DropReason::TtlExpired)]);
    }

    #[test]
    fn time_exceeded_over_ipv6_byte_by_byte() {
        let probe = hex("020000000001 020000000a01 86dd 60000000000d1101
                         fd000001000000000000000000000002 fd000002000000000000000000000002
                         80e8829a000dbd7370726f6265");
        let error = hex("020000000a01 020000000001 86dd 60000000003d3a40
                         fd000001000000000000000000000001 fd000001000000000000000000000002
                         0300919100000000 60000000000d1101
                         fd000001000000000000000000000002 fd000002000000000000000000000002
                         80e8829a000dbd7370726f6265");
        let outs = bench().punt(PuntReason::Ttl, LEFT, TO_B, probe);
        assert_eq!(outs, [Out::Originate(LEFT, error), Out::Drop(DropReason::TtlExpired)]);
    }

    #[test]
    fn fragmentation_needed_byte_by_byte() {
        let mut config = config();
        config.interfaces[1].mtu = 30;
        let mut bench = Bench::with_hosts(config);
        let probe = hex("020000000001 020000000a01 0800 4500002742424000091118810a0001020a000202
                         80e8829a00134c736e6565647320666f727479");
        let error = hex("020000000a01 020000000001 0800 45c0004300010000400163f70a0001010a000102
                         030414060000001e
                         4500002742424000091118810a0001020a000202
                         80e8829a00134c736e6565647320666f727479");
        let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, probe);
        assert_eq!(outs, [Out::Originate(LEFT, error), Out::Drop(DropReason::TooBig)]);
    }

    #[test]
    fn packet_too_big_byte_by_byte() {
        let mut config = config();
        config.interfaces[1].mtu = 1280;
        let mut bench = Bench::with_hosts(config);
        let mut probe = hex("020000000001 020000000a01 86dd 60000000051c1109
                             fd000001000000000000000000000002 fd000002000000000000000000000002
                             80e8829a051c6194");
        probe.resize(14 + 1348, 0xa5);
        let mut error = hex("020000000a01 020000000001 86dd 6000000004d83a40
                             fd000001000000000000000000000001 fd000001000000000000000000000002
                             0200107600000500 60000000051c1109
                             fd000001000000000000000000000002 fd000002000000000000000000000002
                             80e8829a051c6194");
        error.resize(14 + 1280, 0xa5);
        let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, probe);
        assert_eq!(outs, [Out::Originate(LEFT, error), Out::Drop(DropReason::TooBig)]);
    }

    #[test]
    fn each_refusal_has_its_type_and_code() {
        for (reason, next_hop, drop, error4, error6) in [
            (PuntReason::NoRoute, NO_ROUTE, DropReason::NoRoute, (3, 0), (1, 0)),
            (PuntReason::Prohibited, PROHIBITED, DropReason::Prohibited, (3, 13), (1, 1)),
            (PuntReason::Unreachable, UNREACHABLE, DropReason::Unreachable, (3, 1), (1, 3)),
        ] {
            let mut bench = bench();
            let outs = bench.punt(reason, LEFT, next_hop, v4("10.0.1.2", "9.9.9.9", 17, &udp(9)));
            assert_eq!((icmp_type(originated(&outs)[0]), drops(&outs)), (error4, vec![drop]));
            let outs = bench.punt(reason, LEFT, next_hop, v6("fd00:1::2", "2003::9", 17, &udp(9)));
            assert_eq!((icmp_type(originated(&outs)[0]), drops(&outs)), (error6, vec![drop]));
        }
    }

    #[test]
    fn a_port_may_keep_unreachables_to_itself_but_nothing_else() {
        let mut config = config();
        config.interfaces[0].settings.unreachables = false;
        config.interfaces[1].mtu = 1280;
        let mut bench = Bench::with_hosts(config);
        for frame in
            [v4("10.0.1.2", "9.9.9.9", 17, &udp(9)), v6("fd00:1::2", "2003::9", 17, &udp(9))]
        {
            let outs = bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, frame);
            assert_eq!(outs, [Out::Drop(DropReason::NoRoute)]);
        }
        let mut large = v4("10.0.1.2", "10.0.2.2", 17, &udp(1400));
        large[20] = 0x40;
        fix_v4_checksum(&mut large);
        for (frame, error) in
            [(large, (3, 4)), (v6("fd00:1::2", "fd00:2::2", 17, &udp(1400)), (2, 0))]
        {
            let outs = bench.punt(PuntReason::TooBig, LEFT, TO_B, frame);
            assert_eq!(icmp_type(originated(&outs)[0]), error);
        }
        // Senders on the other interface get errors.
        let frame = v4("10.0.2.2", "9.9.9.9", 17, &udp(9));
        let outs = bench.punt(PuntReason::NoRoute, right(), NO_ROUTE, frame);
        assert_eq!(icmp_type(originated(&outs)[0]), (3, 0));
    }

    #[test]
    fn the_ttl_is_the_configurations() {
        let mut config = config();
        config.icmp.ttl = 200;
        let mut bench = Bench::with_hosts(config);
        let outs =
            bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, v4("10.0.1.2", "9.9.9.9", 17, &udp(9)));
        assert_eq!(originated(&outs)[0][22], 200);
        let outs = bench.punt(
            PuntReason::NoRoute,
            LEFT,
            NO_ROUTE,
            v6("fd00:1::2", "2003::9", 17, &udp(9)),
        );
        assert_eq!(originated(&outs)[0][21], 200);
    }

    #[test]
    fn a_link_local_source_is_told_on_its_link() {
        let mut bench = Bench::new();
        let frame = v6("fe80::a", "fd00:2::2", 17, &udp(9));
        let outs = bench.punt(PuntReason::Scope, LEFT, TO_B, frame);
        assert_eq!(drops(&outs), [DropReason::BeyondScope]);
        // First the neighbour is solicited; then the error is sent from the link-local address.
        assert_eq!(icmp_type(originated(&outs)[0]), (135, 0));
        let mac = wire::MacAddr([2, 0, 0, 0, 0, 0x0a]);
        let address = "fe80::a".parse().unwrap();
        bench.command(crate::Command::AddStaticNeighbour { interface: LEFT, address, mac });
        let outs = bench.take();
        assert_eq!(icmp_type(originated(&outs)[0]), (1, 2));
        assert_eq!(originated(&outs)[0][22..38], hex("fe80000000000000000000fffe000001"));
    }

    #[test]
    fn the_error_takes_the_way_that_the_fib_knows() {
        let mut bench = bench();
        // The sender is behind B, though the packet was received on the left interface.
        let outs = bench.punt(
            PuntReason::NoRoute,
            LEFT,
            NO_ROUTE,
            v4("192.0.2.7", "9.9.9.9", 17, &udp(9)),
        );
        assert!(matches!(outs[0], Out::Originate(interface, _) if interface == right()));
        // A sender behind a gateway that is not resolved: the gateway is solicited.
        let outs = bench.punt(
            PuntReason::NoRoute,
            LEFT,
            NO_ROUTE,
            v4("198.51.100.7", "9.9.9.9", 17, &udp(9)),
        );
        assert_eq!(bench.router.gateway(GATEWAY).unwrap().1.to_string(), "10.0.2.254");
        assert_eq!(originated(&outs)[0][38..42], [10, 0, 2, 254]);
        // No route back: nothing is sent.
        let outs =
            bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, v4("8.8.8.8", "9.9.9.9", 17, &udp(9)));
        assert_eq!(outs, [Out::Drop(DropReason::NoRoute)]);
    }

    #[test]
    fn quotes_end_where_the_rfcs_say() {
        let mut bench = bench();
        let outs = bench.punt(
            PuntReason::NoRoute,
            LEFT,
            NO_ROUTE,
            v4("10.0.1.2", "9.9.9.9", 17, &udp(1400)),
        );
        assert_eq!(originated(&outs)[0].len(), 14 + 576);
        let outs = bench.punt(
            PuntReason::NoRoute,
            LEFT,
            NO_ROUTE,
            v6("fd00:1::2", "2003::9", 17, &udp(1400)),
        );
        assert_eq!(originated(&outs)[0].len(), 14 + 1280);
    }

    fn refused(bench: &mut Bench, frame: Vec<u8>) -> usize {
        let outs = bench.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, frame);
        assert_eq!(drops(&outs), [DropReason::NoRoute]);
        originated(&outs).len()
    }

    /// Builds an authentication header with 12 bytes of integrity check value, and an ICMP message.
    fn behind_authentication(next: u8, kind: u8) -> Vec<u8> {
        [&[next, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0xa5; 12], &[kind, 0, 0, 0, 0, 0, 0, 0]]
            .concat()
    }

    #[test]
    fn no_error_is_sent_about_what_must_not_have_one() {
        let mut bench = bench();
        let good = || v4("10.0.1.2", "9.9.9.9", 17, &udp(9));
        assert_eq!(refused(&mut bench, good()), 1);
        for source in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "10.0.1.255",
            "10.0.2.255",
            "10.0.1.0",
            "10.0.1.1",
        ] {
            assert_eq!(refused(&mut bench, v4(source, "9.9.9.9", 17, &udp(9))), 0, "{source}");
        }
        let mut later_fragment = good();
        later_fragment[21] = 1;
        fix_v4_checksum(&mut later_fragment);
        assert_eq!(refused(&mut bench, later_fragment), 0);
        let mut first_fragment = good();
        first_fragment[20] = 0x20;
        fix_v4_checksum(&mut first_fragment);
        assert_eq!(refused(&mut bench, first_fragment), 1);
        for (kind, errors) in [(8, 1), (0, 1), (3, 0), (4, 0), (5, 0), (11, 0), (12, 0), (99, 0)] {
            let message = [kind, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(refused(&mut bench, v4("10.0.1.2", "9.9.9.9", 1, &message)), errors);
        }
        assert_eq!(refused(&mut bench, v4("10.0.1.2", "9.9.9.9", 1, &[])), 0);
        for (kind, errors) in [(8, 1), (3, 0), (11, 0)] {
            let hidden = behind_authentication(1, kind);
            assert_eq!(refused(&mut bench, v4("10.0.1.2", "9.9.9.9", 51, &hidden)), errors);
            let cut = &hidden[..20];
            assert_eq!(refused(&mut bench, v4("10.0.1.2", "9.9.9.9", 51, cut)), 0, "cut");
        }
        let mut broadcast = good();
        broadcast[..6].fill(0xff);
        assert_eq!(bench.punt(PuntReason::Ttl, LEFT, TO_B, broadcast).len(), 1);
        let multicast = v4("10.0.1.2", "239.1.1.1", 17, &udp(9));
        assert_eq!(bench.punt(PuntReason::Ttl, LEFT, TO_B, multicast).len(), 1);
    }

    #[test]
    fn no_error_is_sent_about_ipv6_that_must_not_have_one() {
        let mut bench = bench();
        assert_eq!(refused(&mut bench, v6("fd00:1::2", "2003::9", 17, &udp(9))), 1);
        for source in ["::1", "ff02::1", "::ffff:10.0.1.2", "fd00:2::1"] {
            assert_eq!(refused(&mut bench, v6(source, "2003::9", 17, &udp(9))), 0, "{source}");
        }
        for (kind, errors) in
            [(128, 1), (129, 1), (1, 0), (2, 0), (3, 0), (4, 0), (100, 0), (137, 0)]
        {
            let frame = v6("fd00:1::2", "2003::9", 58, &[kind, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(refused(&mut bench, frame), errors, "type {kind}");
            // Behind destination options, too.
            let hidden = [58, 0, 1, 4, 0, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(refused(&mut bench, v6("fd00:1::2", "2003::9", 60, &hidden)), errors);
            let hidden = behind_authentication(58, kind);
            assert_eq!(refused(&mut bench, v6("fd00:1::2", "2003::9", 51, &hidden)), errors);
        }
        let later = [17, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(refused(&mut bench, v6("fd00:1::2", "2003::9", 44, &later)), 1);
    }

    #[test]
    fn hosts_in_class_e_are_told_if_there_may_be_any() {
        for (class_e, errors) in [(false, 0), (true, 1)] {
            let mut config = config();
            config.icmp.class_e = class_e;
            let mut bench = Bench::with_hosts(config);
            bench.net.routes.push(("240.0.0.0/4".parse().unwrap(), TO_B));
            assert_eq!(refused(&mut bench, v4("240.0.0.1", "9.9.9.9", 17, &udp(9))), errors);
            let broadcast = v4("255.255.255.255", "9.9.9.9", 17, &udp(9));
            assert_eq!(refused(&mut bench, broadcast), 0);
        }
    }

    #[test]
    fn an_unknown_option_in_multicast_is_reported_when_its_bits_say_so() {
        for (option, errors) in [(0xbe, 1), (0xfe, 0)] {
            let mut bench = bench();
            let payload = [58, 0, option, 4, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0];
            let mut frame = v6("fd00:1::2", "ff02::1", 0, &payload);
            frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
            fix_icmpv6_checksum(&mut frame, 62);
            let outs = bench.punt(PuntReason::HopByHop, LEFT, NO_ROUTE, frame);
            assert_eq!(drops(&outs), [DropReason::Ip6Extension]);
            assert_eq!(originated(&outs).len(), errors);
        }
    }

    #[test]
    fn the_rate_limit_holds_for_all_together_and_is_counted() {
        let mut config = config();
        config.limits.icmp_rate = 10;
        config.limits.icmp_burst = 4;
        let mut bench = Bench::with_hosts(config);
        let mut sent = 0;
        for _ in 0..10 {
            sent += refused(&mut bench, v4("10.0.1.2", "9.9.9.9", 17, &udp(9)));
            sent += refused(&mut bench, v6("fd00:1::2", "2003::9", 17, &udp(9)));
        }
        assert_eq!((sent, bench.router.rates().suppressed_errors()), (4, (16, 0)));
    }
}
