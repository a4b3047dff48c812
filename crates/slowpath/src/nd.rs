//! Neighbour discovery: RFC 4861 (solicitations and advertisements), RFC 5942 (what is on-link).
//!
//! * Every message must pass the checks of RFC 4861, 6.1 and 7.1: hop limit 255, which nobody off
//!   the link can produce, checksum, code 0, length, options; else it is dropped as `nd-malformed`.
//! * A solicitation for an address of the port is answered as a router answers (R flag). The asker
//!   is learned from its link-layer address option.
//! * An advertisement moves a neighbour that is in the table, after RFC 4861, 7.2.5.
//! * Router solicitations teach the sender's MAC; Turnpike does not advertise itself. Router
//!   advertisements and redirects are for hosts (RFC 4861, 6.2.7, 8.2) and change nothing.
//!
//! Drops: `nd-malformed`; `not-local` for a solicitation of an address that is not the port's.

use std::net::{IpAddr, Ipv6Addr};

use dataplane::port::PortId;
use dataplane::reason::DropReason;
use wire::MacAddr;
use wire::address::{ALL_NODES, multicast_mac_v6, solicited_node};
use wire::build::{self, Link};
use wire::icmp::v6;
use wire::nd::{
    self, FLAG_OVERRIDE, FLAG_ROUTER, FLAG_SOLICITED, ND_HOP_LIMIT, NeighbourAdvertisement,
    NeighbourSolicitation, OPTION_SOURCE_LINK_LAYER, OPTION_TARGET_LINK_LAYER,
};
use zerocopy::FromBytes;

use crate::neighbour::{Evidence, Waiting};
use crate::{Event, NeighbourState, Output, Packet, SlowPath, Time};

/// A neighbour discovery message and what its IP header says.
pub(crate) struct Message<'a> {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub hop_limit: u8,
    /// From the ICMPv6 header on; its checksum is right.
    pub bytes: &'a [u8],
}

/// A message that fails the validity checks.
struct Invalid;

impl<P: Packet> SlowPath<P> {
    /// Deals with types 133 to 137; the result is the reason to drop the message, if there is one.
    pub(crate) fn neighbour_discovery(
        &mut self,
        message: &Message<'_>,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Option<DropReason> {
        if message.hop_limit != ND_HOP_LIMIT || message.bytes.get(1) != Some(&0) {
            return Some(DropReason::NdMalformed);
        }
        let taken = match message.bytes.first() {
            Some(&v6::ROUTER_SOLICITATION) => self.router_solicitation(message, from, now, out),
            Some(&v6::ROUTER_ADVERTISEMENT) => check_for_hosts(message, 16),
            Some(&v6::NEIGHBOUR_SOLICITATION) => {
                self.neighbour_solicitation(message, from, now, out)
            }
            Some(&v6::NEIGHBOUR_ADVERTISEMENT) => {
                self.neighbour_advertisement(message, from, now, out)
            }
            Some(&v6::REDIRECT) => check_for_hosts(message, 40),
            _ => Err(Invalid),
        };
        match taken {
            Ok(true) => None,
            Ok(false) => Some(DropReason::NotLocal),
            Err(Invalid) => Some(DropReason::NdMalformed),
        }
    }

    /// RFC 4861, 7.1.1 and 7.2.3. False if the target is not ours.
    fn neighbour_solicitation(
        &mut self,
        message: &Message<'_>,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Result<bool, Invalid> {
        let (fixed, rest) =
            NeighbourSolicitation::ref_from_prefix(message.bytes).map_err(|_| Invalid)?;
        let target = fixed.target();
        let asker = link_layer_address(rest, OPTION_SOURCE_LINK_LAYER)?;
        let probe = message.source.is_unspecified();
        let probe_ok = message.destination == solicited_node(target) && asker.is_none();
        if target.is_multicast() || (probe && !probe_ok) {
            return Err(Invalid);
        }
        if !self.ports.get(from).is_some_and(|port| port.has_v6(target)) {
            return Ok(false);
        }
        if let Some(mac) = asker {
            self.hear(message.source, mac, from, now, out);
        }
        self.advertise_to(message.source, asker, target, from, now, out);
        Ok(true)
    }

    /// Learns a sender that will be spoken to, if it is on this link (RFC 5942, 4).
    fn hear(
        &mut self,
        source: Ipv6Addr,
        mac: MacAddr,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let address = IpAddr::V6(source);
        if self.ports.get(from).is_some_and(|port| port.is_on_link(address)) {
            self.learn((from, address), mac, (Evidence::Heard, true), now, out);
        }
    }

    /// RFC 4861, 7.2.4: to the asker, or to all nodes when it has no address yet.
    fn advertise_to(
        &mut self,
        asker: Ipv6Addr,
        mac: Option<MacAddr>,
        target: Ipv6Addr,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let Some(port) = self.ports.get(from) else { return };
        if asker.is_unspecified() {
            let link = Link { destination: multicast_mac_v6(ALL_NODES), source: port.mac };
            let flags = FLAG_ROUTER | FLAG_OVERRIDE;
            let frame = build::neighbour_advertisement(link, target, ALL_NODES, target, flags);
            return out.originate(from, &frame);
        }
        let link = Link { destination: mac.unwrap_or_default(), source: port.mac };
        let flags = FLAG_ROUTER | FLAG_SOLICITED | FLAG_OVERRIDE;
        let frame = build::neighbour_advertisement(link, target, asker, target, flags);
        if mac.is_some() {
            out.originate(from, &frame);
        } else if port.is_on_link(IpAddr::V6(asker)) {
            // A unicast solicitation may come without the option: the asker's MAC is in the table
            // or must be asked for.
            self.send_to((from, asker.into()), Waiting::Own(frame), now, out);
        }
    }

    /// RFC 4861, 7.1.2 and 7.2.5.
    fn neighbour_advertisement(
        &mut self,
        message: &Message<'_>,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Result<bool, Invalid> {
        let (fixed, rest) =
            NeighbourAdvertisement::ref_from_prefix(message.bytes).map_err(|_| Invalid)?;
        let (flags, target) = (fixed.flags, fixed.target());
        let solicited = flags & FLAG_SOLICITED != 0;
        let heard = link_layer_address(rest, OPTION_TARGET_LINK_LAYER)?;
        if target.is_multicast() || (message.destination.is_multicast() && solicited) {
            return Err(Invalid);
        }
        let Some(port) = self.ports.get(from) else { return Ok(false) };
        let key = (from, IpAddr::V6(target));
        if port.has_v6(target) {
            if let Some(mac) = heard.filter(|&mac| mac != port.mac) {
                out.event(Event::AddressConflict { port: from, address: key.1, mac });
            }
            return Ok(true);
        }
        let known = self.table.mac(key);
        // Without the option the sender means: as before. Nothing is known of an unresolved one.
        let Some(mac) = heard.or(known) else { return Ok(true) };
        let other = known.is_some_and(|known| known != mac);
        if other && flags & FLAG_OVERRIDE == 0 {
            if self.table.state(key) == Some(NeighbourState::Reachable) {
                self.table.doubt(key, now);
            }
            return Ok(true);
        }
        let evidence = if solicited { Evidence::Answered } else { Evidence::Heard };
        self.learn(key, mac, (evidence, false), now, out);
        Ok(true)
    }

    /// RFC 4861, 6.1.1 and 6.2.6: teaches the sender's MAC.
    fn router_solicitation(
        &mut self,
        message: &Message<'_>,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) -> Result<bool, Invalid> {
        let options = message.bytes.get(8..).ok_or(Invalid)?;
        let sender = link_layer_address(options, OPTION_SOURCE_LINK_LAYER)?;
        if message.source.is_unspecified() && sender.is_some() {
            return Err(Invalid);
        }
        if let Some(mac) = sender {
            self.hear(message.source, mac, from, now, out);
        }
        Ok(true)
    }

    /// Asks for the MAC of `address`: its solicited-node group, or the one that had it.
    pub(crate) fn solicit(
        &self,
        port: PortId,
        address: Ipv6Addr,
        probe: Option<MacAddr>,
        out: &mut impl Output<P>,
    ) {
        let Some(port) = self.ports.get(port) else { return };
        let source = port.source_v6(address);
        let frame = build::neighbour_solicitation(port.mac, source, address, probe);
        out.originate(port.id, &frame);
    }

    /// Says which MAC has `address`, unasked (RFC 4861, 7.2.6).
    pub(crate) fn nd_announce(&self, port: PortId, address: Ipv6Addr, out: &mut impl Output<P>) {
        let Some(port) = self.ports.get(port) else { return };
        let link = Link { destination: multicast_mac_v6(ALL_NODES), source: port.mac };
        let flags = FLAG_ROUTER | FLAG_OVERRIDE;
        let frame = build::neighbour_advertisement(link, address, ALL_NODES, address, flags);
        out.originate(port.id, &frame);
    }
}

/// Router advertisements and redirects: valid, and of no use to a router (RFC 4861, 6.1.2, 8.1).
fn check_for_hosts(message: &Message<'_>, fixed: usize) -> Result<bool, Invalid> {
    let options = message.bytes.get(fixed..).ok_or(Invalid)?;
    link_layer_address(options, OPTION_SOURCE_LINK_LAYER)?;
    if message.source.is_unicast_link_local() { Ok(true) } else { Err(Invalid) }
}

/// The link-layer address in an option of this kind. All options are checked; an address that
/// cannot be one station's is as good as a malformed option.
fn link_layer_address(options: &[u8], kind: u8) -> Result<Option<MacAddr>, Invalid> {
    let mut found = None;
    for option in nd::options(options) {
        let option = option.map_err(|_| Invalid)?;
        found = found.or(option.link_layer_address(kind));
    }
    match found {
        Some(mac) if mac.is_multicast() || mac == MacAddr::default() => Err(Invalid),
        found => Ok(found),
    }
}
