//! Neighbour discovery: RFC 4861 (solicitations and advertisements), RFC 5942 (on-link determination).
//!
//! * Every message must pass the checks of RFC 4861, 6.1 and 7.1: hop limit 255, which no host off the
//!   link can produce, checksum, code 0, length, options; else it is dropped as `nd-malformed`.
//! * A solicitation for an address of the interface is answered with the R flag of a router. Its sender
//!   is learned from its link-layer address option.
//! * A solicitation for a subnet-router anycast address of the interface is answered with a delay and
//!   without "override" (7.2.7).
//! * A solicitation for another host's address is answered where the configuration says so ([`crate::proxy`]).
//! * An advertisement updates a neighbour that is in the table, by RFC 4861, 7.2.5.
//! * Router solicitations teach the sender's MAC and are answered where the interface advertises
//!   ([`crate::advertise`]). Router advertisements and redirects are for hosts (RFC 4861, 6.2.7, 8.2)
//!   and change nothing.
//!
//! Drops: `nd-malformed`; `not-local` for a solicitation of an address that is not the interface's.

use std::net::{IpAddr, Ipv6Addr};

use dataplane::interface::InterfaceId;
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

use crate::advertise::Advertising;
use crate::announce::Announcements;
use crate::context::Context;
use crate::duplicate::Probes;
use crate::interfaces::Interface;
use crate::later::Later;
use crate::neighbour::{Evidence, Waiting};
use crate::{Event, NeighbourState, Output, Packet, Time, proxy, resolution};

/// A neighbour discovery message with the fields of its IP header.
pub(crate) struct Message<'a> {
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
    pub hop_limit: u8,
    /// Of the frame.
    pub mac: MacAddr,
    /// From the ICMPv6 header on; its checksum is right.
    pub bytes: &'a [u8],
}

/// Maximum delay of the answer to a solicitation of an anycast address (RFC 4861, 10:
/// MAX_ANYCAST_DELAY_TIME).
const MAX_ANYCAST_DELAY: Time = Time::from_secs(1);

/// Flags of advertisements of the router's own addresses.
const OWN_FLAGS: u8 = FLAG_ROUTER | FLAG_OVERRIDE;

/// A message that fails the validity checks.
struct Invalid;

/// Neighbour discovery on a link, with the protocols whose state its messages change.
pub(crate) struct NeighbourDiscovery<'a> {
    pub announcements: &'a mut Announcements,
    pub probes: &'a mut Probes,
    pub advertising: &'a mut Advertising,
    pub later: &'a mut Later,
}

impl NeighbourDiscovery<'_> {
    /// Processes types 133 to 137; returns the reason to drop the message, if there is one.
    pub(crate) fn process<P: Packet>(
        &mut self,
        message: &Message<'_>,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
    ) -> Option<DropReason> {
        if message.hop_limit != ND_HOP_LIMIT || message.bytes.get(1) != Some(&0) {
            return Some(DropReason::NdMalformed);
        }
        let taken = match message.bytes.first() {
            Some(&v6::ROUTER_SOLICITATION) => self.router_solicitation(message, from, context),
            Some(&v6::ROUTER_ADVERTISEMENT) => self.router_advertisement(message, from, context),
            Some(&v6::NEIGHBOUR_SOLICITATION) => self.solicitation(message, from, context),
            Some(&v6::NEIGHBOUR_ADVERTISEMENT) => self.advertisement(message, from, context),
            Some(&v6::REDIRECT) => check_for_hosts(message, 40),
            _ => Err(Invalid),
        };
        match taken {
            Ok(true) => None,
            Ok(false) => Some(DropReason::NotLocal),
            Err(Invalid) => Some(DropReason::NdMalformed),
        }
    }

    /// Takes a neighbour solicitation (RFC 4861, 7.1.1 and 7.2.3); returns false if the target is not
    /// ours.
    fn solicitation<P: Packet>(
        &mut self,
        message: &Message<'_>,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
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
        let Some(interface) = context.interfaces.get(from) else { return Ok(false) };
        if interface.is_tentative(target) {
            // A host that resolves a tentative address is not answered (5.4.3); one that probes for it
            // has a duplicate.
            if probe {
                self.probes.duplicate(interface, target, message.mac, context.out);
            }
            return Ok(true);
        }
        let anycast = interface.has_anycast(target);
        let own = interface.has_v6(target);
        if !anycast && !own && !proxy::answers_for(target.into(), interface, context.out) {
            return Ok(false);
        }
        if let Some(mac) = asker {
            learn_asker(message.source, mac, interface, context);
        }
        if own {
            answer((message.source, asker), (target, target), OWN_FLAGS, interface, context);
        } else if !anycast {
            let source = interface.source_v6(message.source);
            answer((message.source, asker), (source, target), 0, interface, context);
        } else if let Some(mac) = asker {
            self.answer_anycast((message.source, mac), target, interface, context);
        }
        Ok(true)
    }

    /// Schedules an advertisement of an anycast address (RFC 4861, 7.2.4 and 7.2.7): delayed, since
    /// other routers answer too, and without "override", so that the first answer counts. A
    /// solicitation without a MAC or a source address gets none.
    fn answer_anycast<P, O>(
        &mut self,
        (asker, mac): (Ipv6Addr, MacAddr),
        target: Ipv6Addr,
        interface: &Interface,
        context: &mut Context<'_, P, O>,
    ) {
        let link = Link { destination: mac, source: interface.mac };
        let flags = FLAG_ROUTER | FLAG_SOLICITED;
        let source = interface.source_v6(asker);
        let frame = build::neighbour_advertisement(link, source, asker, target, flags);
        let time = context.now.saturating_add(context.random.up_to(MAX_ANYCAST_DELAY));
        self.later.push(time, interface.id, frame);
    }

    /// Takes a neighbour advertisement (RFC 4861, 7.1.2 and 7.2.5).
    fn advertisement<P: Packet>(
        &mut self,
        message: &Message<'_>,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
    ) -> Result<bool, Invalid> {
        let (fixed, rest) =
            NeighbourAdvertisement::ref_from_prefix(message.bytes).map_err(|_| Invalid)?;
        let (flags, target) = (fixed.flags, fixed.target());
        let solicited = flags & FLAG_SOLICITED != 0;
        let heard = link_layer_address(rest, OPTION_TARGET_LINK_LAYER)?;
        if target.is_multicast() || (message.destination.is_multicast() && solicited) {
            return Err(Invalid);
        }
        let Some(interface) = context.interfaces.get(from) else { return Ok(false) };
        if interface.is_tentative(target) {
            self.probes.duplicate(interface, target, message.mac, context.out);
            return Ok(true);
        }
        let key = (from, IpAddr::V6(target));
        if interface.has_v6(target) {
            if let Some(mac) = heard.filter(|&mac| mac != interface.mac)
                && self.announcements.may_defend(from, context.now)
            {
                let conflict = Event::AddressConflict { interface: from, address: key.1, mac };
                context.out.event(conflict);
            }
            return Ok(true);
        }
        let known = context.table.mac(key);
        // Without the option the MAC is unchanged. An unresolved neighbour has none.
        let Some(mac) = heard.or(known) else { return Ok(true) };
        let other = known.is_some_and(|known| known != mac);
        if other && flags & FLAG_OVERRIDE == 0 {
            if context.table.state(key) == Some(NeighbourState::Reachable) {
                context.table.doubt(key, context.now);
            }
            return Ok(true);
        }
        let evidence = if solicited { Evidence::Answered } else { Evidence::Heard };
        resolution::learn(key, mac, (evidence, false), context);
        Ok(true)
    }

    /// Takes a router solicitation (RFC 4861, 6.1.1 and 6.2.6), which teaches the sender's MAC.
    fn router_solicitation<P: Packet>(
        &mut self,
        message: &Message<'_>,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
    ) -> Result<bool, Invalid> {
        let options = message.bytes.get(8..).ok_or(Invalid)?;
        let sender = link_layer_address(options, OPTION_SOURCE_LINK_LAYER)?;
        if message.source.is_unspecified() && sender.is_some() {
            return Err(Invalid);
        }
        if let (Some(mac), Some(interface)) = (sender, context.interfaces.get(from)) {
            learn_asker(message.source, mac, interface, context);
        }
        self.advertising.solicited(from, context.now, context.random);
        Ok(true)
    }

    /// Takes another router's advertisement, which is compared with our own.
    fn router_advertisement<P>(
        &mut self,
        message: &Message<'_>,
        from: InterfaceId,
        context: &mut Context<'_, P, impl Output<P>>,
    ) -> Result<bool, Invalid> {
        let taken = check_for_hosts(message, 16)?;
        if let Some(interface) = context.interfaces.get(from) {
            let (router, bytes) = (message.source, message.bytes);
            self.advertising.compare(router, bytes, interface, context.now, context.out);
        }
        Ok(taken)
    }
}

/// Learns a sender that will be answered, if it is on this link (RFC 5942, 4).
fn learn_asker<P: Packet>(
    source: Ipv6Addr,
    mac: MacAddr,
    interface: &Interface,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    let address = IpAddr::V6(source);
    if interface.is_on_link(address) {
        resolution::learn((interface.id, address), mac, (Evidence::Heard, true), context);
    }
}

/// Sends an advertisement of `target` (RFC 4861, 7.2.4) with these flags: to the solicitation's sender, with
/// "solicited", or to all nodes if that has no address yet.
fn answer<P: Packet>(
    (asker, mac): (Ipv6Addr, Option<MacAddr>),
    (source, target): (Ipv6Addr, Ipv6Addr),
    flags: u8,
    interface: &Interface,
    context: &mut Context<'_, P, impl Output<P>>,
) {
    if asker.is_unspecified() {
        return to_all_nodes(interface, (source, target), flags, context.out);
    }
    let link = Link { destination: mac.unwrap_or_default(), source: interface.mac };
    let flags = flags | FLAG_SOLICITED;
    let frame = build::neighbour_advertisement(link, source, asker, target, flags);
    if mac.is_some() {
        context.out.originate(interface.id, &frame);
    } else if interface.is_on_link(IpAddr::V6(asker)) {
        // A unicast solicitation may lack the option: its sender's MAC is in the table or must be
        // resolved.
        resolution::send_to((interface.id, asker.into()), Waiting::Own(frame), context);
    }
}

/// Solicits the MAC of `address`: from its solicited-node group, or from the MAC that had it last.
pub(crate) fn solicit<P>(
    interface: &Interface,
    address: Ipv6Addr,
    probe: Option<MacAddr>,
    out: &mut impl Output<P>,
) {
    let source = interface.source_v6(address);
    if !interface.has_v6(source) {
        // The link is too small for IPv6, or no address may be used yet.
        return;
    }
    let frame = build::neighbour_solicitation(interface.mac, source, address, probe);
    out.originate(interface.id, &frame);
}

/// Announces `address` with an unsolicited advertisement to all nodes (RFC 4861, 7.2.6).
pub(crate) fn announce<P>(interface: &Interface, address: Ipv6Addr, out: &mut impl Output<P>) {
    to_all_nodes(interface, (address, address), OWN_FLAGS, out);
}

fn to_all_nodes<P>(
    interface: &Interface,
    (source, target): (Ipv6Addr, Ipv6Addr),
    flags: u8,
    out: &mut impl Output<P>,
) {
    let link = Link { destination: multicast_mac_v6(ALL_NODES), source: interface.mac };
    let frame = build::neighbour_advertisement(link, source, ALL_NODES, target, flags);
    out.originate(interface.id, &frame);
}

/// Checks router advertisements and redirects, which are of no use to a router (RFC 4861, 6.1.2, 8.1).
fn check_for_hosts(message: &Message<'_>, fixed: usize) -> Result<bool, Invalid> {
    let options = message.bytes.get(fixed..).ok_or(Invalid)?;
    link_layer_address(options, OPTION_SOURCE_LINK_LAYER)?;
    if message.source.is_unicast_link_local() { Ok(true) } else { Err(Invalid) }
}

/// Returns the link-layer address in an option of this kind. All options are checked; an address that
/// is not unicast counts as a malformed option.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        A, B, Bench, GLEAN_LEFT, L, LEFT, Out, fix_icmpv6_checksum, hex, icmp_type, ip, originated,
        right, secs, udp,
    };
    use dataplane::reason::PuntReason;

    /// A solicits fd00:1::1 by its solicited-node group.
    fn solicitation() -> Vec<u8> {
        hex("3333ff000001 020000000a01 86dd 6000000000203aff
             fd000001000000000000000000000002 ff0200000000000000000001ff000001
             87007396 00000000 fd000001000000000000000000000001 0101020000000a01")
    }

    /// The same with a change and a corrected checksum.
    fn changed(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut frame = solicitation();
        change(&mut frame);
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        fix_icmpv6_checksum(&mut frame, 54);
        frame
    }

    fn advertisement(target: &str, mac: MacAddr, flags: u8) -> Vec<u8> {
        let link = Link { destination: L, source: mac };
        let target = target.parse().unwrap();
        build::neighbour_advertisement(link, target, "fd00:1::1".parse().unwrap(), target, flags)
    }

    fn up(address: &str, mac: MacAddr) -> Out {
        Out::Event(Event::NeighbourUp { interface: LEFT, address: ip(address), mac })
    }

    #[test]
    fn a_solicitation_for_our_address_is_answered_byte_by_byte() {
        let mut bench = Bench::new();
        let reply = hex("020000000a01 020000000001 86dd 6000000000203aff
                         fd000001000000000000000000000001 fd000001000000000000000000000002
                         88009c98 e0000000 fd000001000000000000000000000001 0201020000000001");
        let want = [up("fd00:1::2", A), Out::Originate(LEFT, reply), Out::ToHost(solicitation())];
        assert_eq!(bench.local(solicitation()), want);
    }

    #[test]
    fn duplicate_address_detection_by_another_host_is_answered_to_all_nodes() {
        let mut bench = Bench::new();
        let probe = changed(|frame| {
            frame[22..38].fill(0);
            frame.truncate(54 + 24);
        });
        let outs = bench.local(probe);
        let reply = originated(&outs)[0];
        assert_eq!(reply[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(reply[38..54], ALL_NODES.octets());
        assert_eq!(reply[58], FLAG_ROUTER | FLAG_OVERRIDE);
        assert!(bench.router.neighbours(secs(0)).is_empty());
    }

    #[test]
    fn a_solicitation_without_its_mac_is_answered_after_asking_back() {
        let mut bench = Bench::new();
        let outs = bench.local(changed(|frame| frame.truncate(54 + 24)));
        let [question] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!(icmp_type(question), (v6::NEIGHBOUR_SOLICITATION, 0));
        let flags = FLAG_SOLICITED | FLAG_OVERRIDE;
        let outs = bench.local(advertisement("fd00:1::2", A, flags));
        let [answer] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!(icmp_type(answer), (v6::NEIGHBOUR_ADVERTISEMENT, 0));
        assert_eq!(answer[..6], A.0);
    }

    #[test]
    fn link_local_addresses_are_answered_for_on_their_port_only() {
        let mut bench = Bench::new();
        let own = link_local_target(1);
        let outs = bench.local(own);
        assert_eq!(originated(&outs).len(), 1);
        // The other interface's: not even its group is joined here.
        let outs = bench.local(link_local_target(2));
        assert_eq!(outs, [Out::Drop(DropReason::MulticastNotRouted)]);
    }

    fn link_local_target(last: u8) -> Vec<u8> {
        changed(|frame| {
            let address: Ipv6Addr = format!("fe80::ff:fe00:{last}").parse().unwrap();
            frame[62..78].copy_from_slice(&address.octets());
            let group = solicited_node(address);
            frame[38..54].copy_from_slice(&group.octets());
            frame[..6].copy_from_slice(&multicast_mac_v6(group).0);
        })
    }

    #[test]
    fn a_solicitation_for_an_address_that_is_not_ours_is_not_answered() {
        let mut bench = Bench::new();
        // In the same solicited-node group as fd00:1::1.
        let other = changed(|frame| frame[70] = 0x55);
        assert_eq!(bench.local(other), [Out::Drop(DropReason::NotLocal)]);
    }

    #[test]
    fn invalid_messages_are_dropped() {
        let mut bench = Bench::new();
        let mut wrong_checksum = solicitation();
        wrong_checksum[57] ^= 1;
        let frames = [
            wrong_checksum,
            changed(|frame| frame[21] = 254),         // hop limit
            changed(|frame| frame[55] = 1),           // code
            changed(|frame| frame.truncate(54 + 23)), // length
            changed(|frame| frame[79] = 0),           // option length 0
            changed(|frame| frame[79] = 2),           // option past the end
            changed(|frame| frame[80] = 3),           // a multicast MAC
            changed(|frame| frame[80..86].fill(0)),   // no MAC
            changed(|frame| frame[22..38].fill(0)),   // probe with a MAC
            changed(|frame| frame[62] = 0xff),        // multicast target
            changed(|frame| frame[54] = v6::ROUTER_ADVERTISEMENT), // not from a link-local address
            changed(|frame| frame[54] = v6::REDIRECT), // too short
        ];
        for (index, frame) in frames.into_iter().enumerate() {
            let outs = bench.local(frame);
            assert_eq!(outs, [Out::Drop(DropReason::NdMalformed)], "frame {index}");
        }
    }

    #[test]
    fn the_anycast_address_is_answered_for_later_and_without_override() {
        let mut bench = Bench::new();
        let question = changed(|frame| {
            frame[62..78].copy_from_slice(&hex("fd000001000000000000000000000000"));
            frame[53] = 0;
            frame[5] = 0;
        });
        let outs = bench.local(question.clone());
        assert_eq!(outs, [up("fd00:1::2", A), Out::ToHost(question.clone())]);
        let outs = bench.pass(secs(1));
        let [answer] = originated(&outs)[..] else { panic!("{outs:?}") };
        assert_eq!(icmp_type(answer), (v6::NEIGHBOUR_ADVERTISEMENT, 0));
        assert_eq!(answer[58], FLAG_ROUTER | FLAG_SOLICITED);
        assert_eq!(answer[22..38], hex("fd000001000000000000000000000001"));
        assert_eq!(answer[62..78], hex("fd000001000000000000000000000000"));
        // Not on an interface that has another network.
        assert_eq!(
            bench.punt(PuntReason::Local, right(), dataplane::next_hop::LOCAL, question),
            [Out::Drop(DropReason::NotLocal)]
        );
    }

    #[test]
    fn a_host_from_off_the_link_is_answered_but_not_learned() {
        let mut bench = Bench::new();
        let outs = bench.local(changed(|frame| frame[22..24].fill(0x20)));
        // The answer to a foreign address goes to the MAC in its option; no entry is made for it.
        assert_eq!(originated(&outs).len(), 1);
        assert!(bench.router.neighbours(secs(0)).is_empty());
    }

    #[test]
    fn router_solicitations_teach_and_router_advertisements_do_nothing() {
        let mut bench = Bench::new();
        let solicit = |kind: u8, fixed: usize| {
            changed(|frame| {
                frame[54] = kind;
                let address: Ipv6Addr = "fe80::a".parse().unwrap();
                frame[22..38].copy_from_slice(&address.octets());
                let all_routers: Ipv6Addr = "ff02::2".parse().unwrap();
                frame[38..54].copy_from_slice(&all_routers.octets());
                let option = frame.split_off(78);
                frame.truncate(58);
                frame.resize(54 + fixed, 0);
                frame.extend(option);
            })
        };
        let outs = bench.local(solicit(v6::ROUTER_SOLICITATION, 8));
        assert!(matches!(outs[..], [Out::Event(_), Out::ToHost(_)]), "{outs:?}");
        assert_eq!(bench.router.neighbours(secs(0))[0].address, ip("fe80::a"));
        for (kind, fixed) in [(v6::ROUTER_ADVERTISEMENT, 16), (v6::REDIRECT, 40)] {
            let outs = bench.local(solicit(kind, fixed));
            assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
        }
    }

    /// RFC 4861, 7.2.5, case by case.
    #[test]
    fn advertisements_move_a_neighbour_as_the_rfc_says() {
        let mut bench = Bench::new();
        let state = |bench: &Bench| {
            let all = bench.router.neighbours(bench.now);
            all.first().map(|info| (info.state, info.mac))
        };
        let (s, o) = (FLAG_SOLICITED, FLAG_OVERRIDE);
        // No entry: nothing.
        bench.local(advertisement("fd00:1::2", A, s | o));
        assert_eq!(state(&bench), None);
        // Incomplete: any MAC is taken; not solicited makes it stale.
        bench.punt(PuntReason::Glean, right(), GLEAN_LEFT, {
            crate::testing::v6("fd00:2::2", "fd00:1::2", 17, &udp(8))
        });
        assert_eq!(state(&bench).unwrap().0, NeighbourState::Incomplete);
        bench.local(advertisement("fd00:1::2", A, 0));
        assert_eq!(state(&bench), Some((NeighbourState::Stale, Some(A))));
        // Solicited: reachable.
        bench.local(advertisement("fd00:1::2", A, s));
        assert_eq!(state(&bench), Some((NeighbourState::Reachable, Some(A))));
        // Another MAC without override: only the state becomes stale.
        bench.local(advertisement("fd00:1::2", B, s));
        assert_eq!(state(&bench), Some((NeighbourState::Stale, Some(A))));
        bench.local(advertisement("fd00:1::2", B, s));
        assert_eq!(state(&bench), Some((NeighbourState::Stale, Some(A))));
        // With override: moved.
        let outs = bench.local(advertisement("fd00:1::2", B, s | o));
        assert_eq!(outs[0], up("fd00:1::2", B));
        assert_eq!(state(&bench), Some((NeighbourState::Reachable, Some(B))));
        bench.local(advertisement("fd00:1::2", A, o));
        assert_eq!(state(&bench), Some((NeighbourState::Stale, Some(A))));
    }

    #[test]
    fn a_solicited_advertisement_to_a_group_is_invalid() {
        let mut bench = Bench::new();
        let mut frame = advertisement("fd00:1::2", A, FLAG_SOLICITED);
        frame[38..54].copy_from_slice(&ALL_NODES.octets());
        fix_icmpv6_checksum(&mut frame, 54);
        assert_eq!(bench.local(frame), [Out::Drop(DropReason::NdMalformed)]);
    }

    #[test]
    fn a_conflict_is_reported() {
        let mut bench = Bench::new();
        let outs = bench.local(advertisement("fd00:1::1", A, FLAG_OVERRIDE));
        let address = ip("fd00:1::1");
        assert_eq!(
            outs[0],
            Out::Event(Event::AddressConflict { interface: LEFT, address, mac: A })
        );
        let again = bench.local(advertisement("fd00:1::1", A, FLAG_OVERRIDE));
        assert!(matches!(again[..], [Out::ToHost(_)]), "not again at once");
        bench.pass(secs(11));
        assert_eq!(bench.local(advertisement("fd00:1::1", L, 0)).len(), 1, "our own");
    }

    #[test]
    fn our_own_solicitation_is_that_of_the_rfc() {
        let mut bench = Bench::new();
        let packet = crate::testing::v6("fd00:2::2", "fd00:1::2", 17, &udp(8));
        let outs = bench.punt(PuntReason::Glean, right(), GLEAN_LEFT, packet);
        let want = hex("3333ff000002 020000000001 86dd 6000000000203aff
                        fd000001000000000000000000000001 ff0200000000000000000001ff000002
                        87007d95 00000000 fd000001000000000000000000000002 0101020000000001");
        assert_eq!(outs, [Out::Originate(LEFT, want)]);
    }
}
