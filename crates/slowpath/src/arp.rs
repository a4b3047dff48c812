//! ARP: RFC 826, with RFC 1122, 2.3.2 (cache), RFC 5227 (announcements, conflicts) and RFC 1812,
//! 3.3.2 (replies with broadcast addresses are not accepted).
//!
//! * Requests for an address of the interface are answered, and the sender is learned from them, since
//!   traffic to it is about to follow.
//! * Any other valid message only updates a neighbour that is in the table already.
//! * Senders outside the interface's networks are rejected, unless they are in the table because we
//!   asked for them (a gateway outside the networks), or a route without a gateway leads to them by the
//!   interface (unnumbered interfaces, RFC 5309).
//! * Only requests for addresses of the receiving interface are answered, not those for other interfaces:
//!   with two interfaces on one link only the right one replies. Other hosts' addresses: [`crate::proxy`].
//!
//! Drops: `arp-malformed`, `arp-rejected`. Events: a conflict, when another host uses an address of the
//! interface (RFC 5227, 2.4); the interface then announces its address again. Both at most every 10
//! seconds, so that two hosts with one address do not defend it against each other without end.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::interface::InterfaceId;
use dataplane::next_hop::NextHop;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::arp::{ArpMessage, REPLY, REQUEST};
use wire::build::{self, Link};
use zerocopy::FromBytes;

use crate::announce::Announcements;
use crate::context::Context;
use crate::frame;
use crate::interfaces::Interface;
use crate::neighbour::Evidence;
use crate::{Event, Output, Packet, proxy, resolution};

/// Processes an ARP message.
pub(crate) fn process<P: Packet>(
    packet: P,
    from: InterfaceId,
    announcements: &mut Announcements,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let Some(message) = parse(packet.bytes()) else {
        return context.out.drop(packet, DropReason::ArpMalformed);
    };
    if take(&message, from, announcements, context) {
        context.out.to_host(packet);
    } else {
        context.out.drop(packet, DropReason::ArpRejected);
    }
}

/// Replies and learns; returns false if the message concerns no address of the interface.
fn take<P: Packet>(
    message: &ArpMessage,
    from: InterfaceId,
    announcements: &mut Announcements,
    context: &mut Context<'_, P, impl Output<P>>,
) -> bool {
    let Some(interface) = context.interfaces.get(from) else { return false };
    let (sender, target) = (message.sender(), message.target());
    let for_us = interface.has_v4(target);
    let request = message.operation == REQUEST;
    // An announcement asks for nothing.
    let proxied = || sender != target && proxy::answers_for(target.into(), interface, context.out);
    let answered = request && (for_us || proxied());
    if interface.has_v4(sender) {
        conflict(message, interface, announcements, context);
        return false;
    }
    // A probe: a host without an address checks whether this one is free (RFC 5227, 2.1.1).
    if sender.is_unspecified() {
        if answered {
            reply(message, interface, context.out);
        }
        return answered;
    }
    let key = (from, IpAddr::V4(sender));
    if !interface.is_on_link(key.1)
        && context.table.state(key).is_none()
        && !is_linked(sender, interface, context.out)
    {
        return false;
    }
    let evidence = if !request && for_us { Evidence::Answered } else { Evidence::Heard };
    let lesson = (evidence, answered);
    let known = resolution::learn(key, message.sender_mac, lesson, context);
    if answered {
        reply(message, interface, context.out);
    }
    for_us || answered || known
}

/// Returns true if a route without a gateway leads to the address, outside the interface's networks, by the interface.
fn is_linked<P>(address: Ipv4Addr, interface: &Interface, out: &impl Output<P>) -> bool {
    let is_outside = interface.v4.iter().all(|net| !net.contains(&address));
    let hop = || out.route(interface.settings.vrf, address.into(), 0).hop;
    is_outside && hop() == NextHop::Glean { interface: interface.id }
}

fn reply<P>(request: &ArpMessage, interface: &Interface, out: &mut impl Output<P>) {
    let asker = (request.sender_mac, request.sender());
    let reply = ArpMessage::new(REPLY, (interface.mac, request.target()), asker);
    let link = Link { destination: request.sender_mac, source: interface.mac };
    out.originate(interface.id, &build::arp(link, &reply));
}

/// Handles another host's use of our address. Our own frames coming back are no conflict.
fn conflict<P>(
    message: &ArpMessage,
    interface: &Interface,
    announcements: &mut Announcements,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let (mac, address) = (message.sender_mac, message.sender());
    if interface.mac != mac && announcements.may_defend(interface.id, context.now) {
        let (id, own) = (interface.id, address.into());
        context.out.event(Event::AddressConflict { interface: id, address: own, mac });
        announce(interface, address, context.out);
    }
}

/// Sends a request for `address`, by broadcast or to the MAC that had it last.
pub(crate) fn request<P>(
    interface: &Interface,
    address: Ipv4Addr,
    probe: Option<MacAddr>,
    out: &mut impl Output<P>,
) {
    let Some(source) = interface.source_v4(address) else { return };
    let target = (MacAddr::default(), address);
    let request = ArpMessage::new(REQUEST, (interface.mac, source), target);
    let destination = probe.unwrap_or(MacAddr::BROADCAST);
    let link = Link { destination, source: interface.mac };
    out.originate(interface.id, &build::arp(link, &request));
}

/// Announces `address` with a gratuitous ARP request (RFC 5227, 3).
pub(crate) fn announce<P>(interface: &Interface, address: Ipv4Addr, out: &mut impl Output<P>) {
    let target = (MacAddr::default(), address);
    let message = ArpMessage::new(REQUEST, (interface.mac, address), target);
    let link = Link { destination: MacAddr::BROADCAST, source: interface.mac };
    out.originate(interface.id, &build::arp(link, &message));
}

/// Reads a valid ARP message: correct layout, known operation, unicast sender.
fn parse(frame: &[u8]) -> Option<ArpMessage> {
    let (_, payload) = frame::ethernet(frame)?;
    let (message, _) = ArpMessage::read_from_prefix(payload).ok()?;
    let sender = message.sender();
    let valid = message.is_ethernet_ipv4()
        && matches!(message.operation.get(), REQUEST | REPLY)
        && !message.sender_mac.is_multicast()
        && message.sender_mac != MacAddr::default()
        && !sender.is_multicast()
        && !sender.is_broadcast()
        && !sender.is_loopback();
    valid.then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{A, B, Bench, L, LEFT, Out, drops, hex, ip, secs};
    use crate::{Command, NeighbourState};

    /// "Who has 10.0.1.1? Tell 10.0.1.2", as A sends it.
    fn request() -> Vec<u8> {
        hex("ffffffffffff 020000000a01 0806 0001 0800 06 04 0001
             020000000a01 0a000102 000000000000 0a000101")
    }

    fn message(operation: u16, sender: (MacAddr, &str), target: (MacAddr, &str)) -> Vec<u8> {
        let sender = (sender.0, sender.1.parse().unwrap());
        let target = (target.0, target.1.parse().unwrap());
        let message = ArpMessage::new(operation, sender, target);
        build::arp(Link { destination: L, source: sender.0 }, &message)
    }

    #[test]
    fn a_request_for_our_address_is_answered_byte_by_byte() {
        let mut bench = Bench::new();
        let reply = hex("020000000a01 020000000001 0806 0001 0800 06 04 0002
                         020000000001 0a000101 020000000a01 0a000102");
        let up = Event::NeighbourUp { interface: LEFT, address: ip("10.0.1.2"), mac: A };
        let want = [Out::Event(up), Out::Originate(LEFT, reply), Out::ToHost(request())];
        assert_eq!(bench.arp(request()), want);
    }

    #[test]
    fn padding_behind_the_message_does_not_matter() {
        let mut bench = Bench::new();
        let mut padded = request();
        padded.resize(60, 0);
        assert!(
            matches!(bench.arp(padded)[1], Out::Originate(LEFT, ref reply) if reply.len() == 42)
        );
    }

    #[test]
    fn a_probe_is_answered_and_teaches_nothing() {
        let mut bench = Bench::new();
        let probe = message(REQUEST, (A, "0.0.0.0"), (MacAddr::default(), "10.0.1.1"));
        let outs = bench.arp(probe);
        assert!(matches!(outs[..], [Out::Originate(LEFT, _), Out::ToHost(_)]), "{outs:?}");
        assert!(bench.router.neighbours(secs(0)).is_empty());
        let other = message(REQUEST, (A, "0.0.0.0"), (MacAddr::default(), "10.0.1.9"));
        assert_eq!(bench.arp(other), [Out::Drop(DropReason::ArpRejected)]);
    }

    #[test]
    fn what_does_not_concern_us_is_rejected() {
        let mut bench = Bench::new();
        for frame in [
            // For another host.
            message(REQUEST, (A, "10.0.1.2"), (MacAddr::default(), "10.0.1.9")),
            // For another interface's address.
            message(REQUEST, (A, "10.0.1.2"), (MacAddr::default(), "10.0.2.1")),
            // From outside the network.
            message(REQUEST, (A, "10.9.9.9"), (MacAddr::default(), "10.0.1.1")),
            // From the network's broadcast address, and its own.
            message(REQUEST, (A, "10.0.1.255"), (MacAddr::default(), "10.0.1.1")),
            message(REQUEST, (A, "10.0.1.0"), (MacAddr::default(), "10.0.1.1")),
            // Gratuitous, from a stranger.
            message(REQUEST, (A, "10.0.1.2"), (MacAddr::default(), "10.0.1.2")),
        ] {
            assert_eq!(bench.arp(frame), [Out::Drop(DropReason::ArpRejected)]);
        }
        assert!(bench.router.neighbours(secs(0)).is_empty());
    }

    #[test]
    fn a_reply_that_nobody_asked_for_makes_no_entry() {
        let mut bench = Bench::new();
        let outs = bench.arp(message(REPLY, (A, "10.0.1.2"), (L, "10.0.1.1")));
        assert!(matches!(outs[..], [Out::ToHost(_)]));
        assert!(bench.router.neighbours(secs(0)).is_empty());
    }

    #[test]
    fn a_gateway_outside_the_networks_is_heard_when_it_was_asked() {
        let mut bench = Bench::new();
        let address = ip("10.9.9.9");
        bench.command(Command::NextHop { id: 30, interface: LEFT, address });
        bench.take();
        let outs = bench.arp(message(REPLY, (A, "10.9.9.9"), (L, "10.0.1.1")));
        assert_eq!(outs[0], Out::Event(Event::NeighbourUp { interface: LEFT, address, mac: A }));
    }

    #[test]
    fn a_host_is_heard_outside_the_networks_if_a_route_leads_to_it_there() {
        use crate::testing::{GATEWAY, GLEAN_LEFT, GLEAN_RIGHT};
        for (hop, is_heard) in [(GLEAN_LEFT, true), (GLEAN_RIGHT, false), (GATEWAY, false)] {
            let mut bench = Bench::new();
            bench.net.routes.push(("10.9.0.0/16".parse().unwrap(), hop));
            let outs =
                bench.arp(message(REQUEST, (A, "10.9.9.9"), (MacAddr::default(), "10.0.1.1")));
            assert_eq!(outs != [Out::Drop(DropReason::ArpRejected)], is_heard, "{hop}: {outs:?}");
        }
    }

    #[test]
    fn malformed_messages_are_dropped() {
        let mut bench = Bench::new();
        let mut frames: Vec<Vec<u8>> = vec![request()[..41].to_vec(), request()[..14].to_vec()];
        for (offset, value) in [(15, 2), (16, 9), (18, 5), (19, 6), (21, 3), (22, 1), (28, 224)] {
            let mut frame = request();
            frame[offset] = value;
            frames.push(frame);
        }
        for sender in ["255.255.255.255", "127.0.0.1"] {
            frames.push(message(REQUEST, (A, sender), (L, "10.0.1.1")));
        }
        frames.push(message(REQUEST, (MacAddr::default(), "10.0.1.2"), (L, "10.0.1.1")));
        for frame in frames {
            assert_eq!(bench.arp(frame), [Out::Drop(DropReason::ArpMalformed)]);
        }
    }

    #[test]
    fn a_gratuitous_message_moves_a_neighbour_that_is_known() {
        let mut bench = Bench::new();
        bench.arp(request());
        let outs = bench.arp(message(REQUEST, (B, "10.0.1.2"), (MacAddr::default(), "10.0.1.2")));
        let up = Event::NeighbourUp { interface: LEFT, address: ip("10.0.1.2"), mac: B };
        assert_eq!(outs[0], Out::Event(up));
        assert!(matches!(outs[1], Out::ToHost(_)));
        assert_eq!(bench.router.neighbours(secs(0))[0].state, NeighbourState::Stale);
    }

    #[test]
    fn a_static_neighbour_is_not_moved() {
        let mut bench = Bench::new();
        let address = ip("10.0.1.2");
        bench.command(Command::AddStaticNeighbour { interface: LEFT, address, mac: B });
        bench.take();
        let outs = bench.arp(request());
        assert!(matches!(outs[..], [Out::Originate(..), Out::ToHost(_)]), "{outs:?}");
        assert_eq!(bench.router.neighbours(secs(0))[0].mac, Some(B));
    }

    #[test]
    fn a_conflict_is_reported_and_the_address_defended_once_in_a_while() {
        let mut bench = Bench::new();
        let theft = || message(REQUEST, (A, "10.0.1.1"), (MacAddr::default(), "10.0.1.1"));
        let conflict = Event::AddressConflict { interface: LEFT, address: ip("10.0.1.1"), mac: A };
        let defence = hex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001
                           020000000001 0a000101 000000000000 0a000101");
        let want = [
            Out::Event(conflict),
            Out::Originate(LEFT, defence),
            Out::Drop(DropReason::ArpRejected),
        ];
        assert_eq!(bench.arp(theft()), want);
        let again = [Out::Drop(DropReason::ArpRejected)];
        assert_eq!(bench.arp(theft()), again, "not defended again at once");
        bench.pass(secs(11));
        assert_eq!(bench.arp(theft()), want);
        // Our own announcement, back from a loop.
        let own = message(REQUEST, (L, "10.0.1.1"), (MacAddr::default(), "10.0.1.1"));
        assert_eq!(drops(&bench.arp(own.clone())), [DropReason::ArpRejected]);
        assert_eq!(bench.arp(own).len(), 1);
    }
}
