//! ARP: RFC 826, with RFC 1122, 2.3.2 (cache), RFC 5227 (announcements, conflicts) and RFC 1812,
//! 3.3.2 (no replies with broadcast addresses believed).
//!
//! * Requests for an address of the port are answered, and the asker is learned from them, since
//!   it is about to be spoken to.
//! * Any other valid message only updates a neighbour that is in the table already.
//! * Senders outside the port's networks are rejected: they could not be reached through it.
//! * Only addresses of the receiving port are answered for, not those of other ports: with two
//!   ports on one link only the right one speaks.
//!
//! Drops: `arp-malformed`, `arp-rejected`. Events: a conflict, when another host uses an address of
//! the port (RFC 5227, 2.4); the port then announces its address again, at most every 10 seconds.

use std::net::{IpAddr, Ipv4Addr};

use dataplane::port::PortId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::arp::{ArpMessage, REPLY, REQUEST};
use wire::build::{self, Link};
use zerocopy::FromBytes;

use crate::frame;
use crate::neighbour::Evidence;
use crate::{Event, Output, Packet, SlowPath, Time};

impl<P: Packet> SlowPath<P> {
    /// Deals with an ARP message.
    pub(crate) fn arp(&mut self, packet: P, from: PortId, now: Time, out: &mut impl Output<P>) {
        let Some(message) = parse(packet.bytes()) else {
            return out.drop(packet, DropReason::ArpMalformed);
        };
        if self.take_arp(&message, from, now, out) {
            out.to_host(packet);
        } else {
            out.drop(packet, DropReason::ArpRejected);
        }
    }

    /// Answers and learns; false if the message concerns nothing here.
    fn take_arp(
        &mut self,
        message: &ArpMessage,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> bool {
        let Some(port) = self.ports.get(from) else { return false };
        let (sender, target) = (message.sender(), message.target());
        let for_us = port.has_v4(target);
        let request = message.operation == REQUEST;
        if port.has_v4(sender) {
            self.arp_conflict(message, from, now, out);
            return false;
        }
        // A probe: somebody asks whether the address is free, without having one (RFC 5227, 2.1.1).
        if sender.is_unspecified() {
            if request && for_us {
                self.arp_reply(message, from, out);
            }
            return request && for_us;
        }
        if !port.is_on_link(IpAddr::V4(sender)) {
            return false;
        }
        let evidence = if !request && for_us { Evidence::Answered } else { Evidence::Heard };
        let lesson = (evidence, request && for_us);
        let known = self.learn((from, sender.into()), message.sender_mac, lesson, now, out);
        if request && for_us {
            self.arp_reply(message, from, out);
        }
        for_us || known
    }

    fn arp_reply(&self, request: &ArpMessage, from: PortId, out: &mut impl Output<P>) {
        let Some(port) = self.ports.get(from) else { return };
        let asker = (request.sender_mac, request.sender());
        let reply = ArpMessage::new(REPLY, (port.mac, request.target()), asker);
        let link = Link { destination: request.sender_mac, source: port.mac };
        out.originate(from, &build::arp(link, &reply));
    }

    /// Asks who has `address`: everybody, or the one that had it.
    pub(crate) fn arp_request(
        &self,
        port: PortId,
        address: Ipv4Addr,
        probe: Option<MacAddr>,
        out: &mut impl Output<P>,
    ) {
        let Some(port) = self.ports.get(port) else { return };
        let Some(source) = port.source_v4(address) else { return };
        let target = (MacAddr::default(), address);
        let request = ArpMessage::new(REQUEST, (port.mac, source), target);
        let destination = probe.unwrap_or(MacAddr::BROADCAST);
        out.originate(port.id, &build::arp(Link { destination, source: port.mac }, &request));
    }

    /// Says which MAC has `address`, unasked: a request for it from itself (RFC 5227, 3).
    pub(crate) fn arp_announce(&self, port: PortId, address: Ipv4Addr, out: &mut impl Output<P>) {
        let Some(port) = self.ports.get(port) else { return };
        let target = (MacAddr::default(), address);
        let message = ArpMessage::new(REQUEST, (port.mac, address), target);
        let link = Link { destination: MacAddr::BROADCAST, source: port.mac };
        out.originate(port.id, &build::arp(link, &message));
    }

    /// Another host uses our address. Our own frames coming back are no conflict.
    fn arp_conflict(
        &mut self,
        message: &ArpMessage,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let mac = message.sender_mac;
        let address = message.sender();
        if self.ports.get(from).is_none_or(|port| port.mac == mac) {
            return;
        }
        out.event(Event::AddressConflict { port: from, address: address.into(), mac });
        if self.announcements.may_defend(from, now) {
            self.arp_announce(from, address, out);
        }
    }
}

/// A valid ARP message in a frame: the right layout, a known operation, a sender that is one host.
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
