//! Packets that the router itself makes, sent by the routes.

use std::net::IpAddr;

use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use wire::MacAddr;
use wire::build::Link;
use wire::ethernet::ETHERNET_LEN;

use crate::context::Context;
use crate::frame::IpPacket;
use crate::neighbour::Waiting;
use crate::{Output, Packet, resolution, transmit};

/// MACs that are filled in when the frame leaves.
pub(crate) const NO_LINK: Link = Link { destination: MacAddr([0; 6]), source: MacAddr([0; 6]) };

/// Sends a frame that the router made to an IP address, by the FIB of the VRF of `from`; to a link-local
/// address, by this interface. Its MACs are filled in on the way. Not sent if the FIB has no route.
pub(crate) fn send<P: Packet>(
    frame: Vec<u8>,
    destination: IpAddr,
    from: InterfaceId,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let interfaces = context.interfaces;
    let speaks_v6 = |id| interfaces.get(id).is_some_and(|interface| interface.speaks_v6());
    if let IpAddr::V6(address) = destination
        && address.is_unicast_link_local()
    {
        if speaks_v6(from) {
            resolution::send_to((from, destination), Waiting::Own(frame), context);
        }
        return;
    }
    let hash = context.flow.of_path(frame.get(ETHERNET_LEN..).unwrap_or_default());
    let answer = context.out.route(interfaces.vrf_of(from), destination, hash);
    if let NextHop::Forward { interface, .. }
    | NextHop::Glean { interface }
    | NextHop::Unresolved { interface } = answer.hop
        && ((interface != from && has_link_local_source(&frame))
            || (destination.is_ipv6() && !speaks_v6(interface)))
    {
        return;
    }
    let waiting = Waiting::Own(frame);
    match answer.hop {
        NextHop::Forward { interface, mac } => transmit::send(waiting, interface, mac, context),
        NextHop::Glean { interface } => {
            resolution::send_to((interface, destination), waiting, context);
        }
        NextHop::Unresolved { .. } => {
            if let Some(gateway) = context.gateways.get(answer.next_hop_id) {
                resolution::send_to(gateway, waiting, context);
            }
        }
        _ => {}
    }
}

/// Returns true for a packet with a link-local source, which is meaningless on another link (RFC 4007, 9).
fn has_link_local_source(frame: &[u8]) -> bool {
    match IpPacket::parse(frame) {
        Ok(IpPacket::V6 { header, .. }) => header.source().is_unicast_link_local(),
        _ => false,
    }
}
