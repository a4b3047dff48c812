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
