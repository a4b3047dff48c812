//! The engine: takes packets, commands and the time, and passes each to the protocol that handles it.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::flow::FlowHash;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::{self, NextHop};
use dataplane::reason::{DropReason, Punt, PuntReason};
use wire::ethernet::ETHERTYPE_ARP;

use crate::bucket::Rates;
use crate::context::{Context, LinkContext};
use crate::frame::{self, IpPacket};
use crate::gateways::Gateways;
use crate::icmp::Error;
use crate::identification::Identifications;
use crate::interfaces::Interfaces;
use crate::lacp::Lacp;
use crate::links::Links;
use crate::neighbour::{Forgotten, Table, Waiting};
use crate::random::Random;
use crate::reassembly::Reassembly;
use crate::redirect::Redirects;
use crate::{
    Command, Config, Icmp, InterfaceConfig, LacpInfo, NeighbourInfo, Output, Packet, Time,
};
use crate::{extension, forward, host, icmp, local, multicast, options, relay, reset, resolution};

/// The slow path of a router. The [crate] lists its inputs and outputs.
pub struct SlowPath<P> {
    pub(crate) shared: Shared<P>,
    /// Protocols by which the router is known on its links.
    pub(crate) links: Links,
    /// Agreement on the links of bonds.
    pub(crate) lacp: Lacp,
    /// Fragments of packets for the router.
    pub(crate) reassembly: Reassembly<P>,
    pub(crate) redirects: Redirects,
}

/// The state that several protocols need; they get views of it.
pub(crate) struct Shared<P> {
    pub(crate) interfaces: Interfaces,
    pub(crate) table: Table<P>,
    pub(crate) gateways: Gateways,
    pub(crate) identifications: Identifications,
    pub(crate) rates: Arc<Rates>,
    pub(crate) icmp: Icmp,
    pub(crate) flow: FlowHash,
    pub(crate) random: Random,
}

impl<P> Shared<P> {
    fn link<'a, O>(&'a mut self, now: Time, out: &'a mut O) -> LinkContext<'a, O> {
        LinkContext { interfaces: &mut self.interfaces, random: &mut self.random, now, out }
    }

    fn context<'a, O>(&'a mut self, now: Time, out: &'a mut O) -> Context<'a, P, O> {
        Context {
            interfaces: &self.interfaces,
            table: &mut self.table,
            gateways: &self.gateways,
            identifications: &mut self.identifications,
            rates: &self.rates,
            icmp: &self.icmp,
            flow: &self.flow,
            random: &mut self.random,
            now,
            out,
        }
    }
}

/// Offset of the total length in an IPv4 header: the pointer in errors about truncated packets (RFC 1812,
/// 5.2.2).
const TOTAL_LENGTH_AT: u32 = 2;

impl<P: Packet> SlowPath<P> {
    /// Creates an engine with its interfaces. The first [`Self::tick`] announces their addresses.
    pub fn new(config: Config) -> Self {
        let rates = Arc::new(Rates::new(&config.limits, config.seed));
        Self::sharing(config, rates)
    }

    /// Like [`Self::new`], with rates shared by several engines.
    pub fn sharing(config: Config, rates: Arc<Rates>) -> Self {
        let Config { interfaces, limits, icmp, flow, seed } = config;
        let mut random = Random::new(seed);
        let mut shared = Shared {
            interfaces: Interfaces::new(&interfaces),
            table: Table::new(limits, Random::new(random.next())),
            gateways: Gateways::default(),
            identifications: Identifications::new(&mut random),
            rates,
            icmp,
            flow,
            random,
        };
        let mut links = Links::default();
        for interface in &interfaces {
            links.start(interface.id, &mut shared.link(Time::ZERO, &mut ()));
        }
        let reassembly = Reassembly::new(limits.fragments, limits.reassembly);
        Self { shared, links, lacp: Lacp::default(), reassembly, redirects: Redirects::new() }
    }

    /// Processes a punted packet. It is returned through `out` now or, if it has to wait for a
    /// neighbour, in a later call.
    pub fn packet(&mut self, packet: P, punt: Punt, now: Time, out: &mut impl Output<P>) {
        let Some((ethernet, _)) = frame::ethernet(packet.bytes()) else {
            return out.drop(packet, DropReason::Runt);
        };
        let interfaces = &self.shared.interfaces;
        let Some(interface) = interfaces.get(punt.interface) else {
            return out.drop(packet, DropReason::PortDown);
        };
        #[cfg(feature = "faulty-step")]
        assert!(!packet.bytes().ends_with(crate::POISON), "the faulty engine met its packet");
        let arp = ethernet.ethertype == ETHERTYPE_ARP;
        match punt.reason {
            PuntReason::FrameToHost => {
                host::frame_to_host(packet, punt.interface, interfaces, out);
            }
            _ if arp && interface.host => out.deliver(punt.interface, packet),
            _ if arp => {
                self.links.arp(packet, punt.interface, &mut self.shared.context(now, out));
            }
            PuntReason::SlowProtocol => {
                let to = (punt.interface, punt.port.into());
                self.lacp.packet(packet, to, now, out);
            }
            PuntReason::NonIp => host::non_ip(packet, punt.interface, interfaces, out),
            _ => self.ip_packet(packet, punt, now, out),
        }
    }

    /// Processes an IP packet: for the kernel, by a group's entry, for the router, or by its next hop.
    fn ip_packet(&mut self, packet: P, punt: Punt, now: Time, out: &mut impl Output<P>) {
        let Self { shared, links, lacp: _, reassembly, redirects } = self;
        let context = &mut shared.context(now, out);
        let (from, interfaces) = (punt.interface, context.interfaces);
        let ip = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(reason @ DropReason::Ip4TotalLength) if punt.reason == PuntReason::Truncated => {
                let error = Error::BadField { pointer: TOTAL_LENGTH_AT };
                return icmp::refuse(packet, from, error, reason, context);
            }
            Err(reason) => return context.out.drop(packet, reason),
        };
        // A packet addressed to the router is the router's, regardless of the reason of the punt,
        // unless a step of the configuration refuses it before the lookup.
        let refused = matches!(punt.reason, PuntReason::Prohibited | PuntReason::Reset);
        let own = !refused && interfaces.is_own(ip.destination(), from);
        // Packets for another host on the receiving link stay on that link (RFC 4007, 9).
        let host = interfaces.is_host(from);
        let on_link = !host && interfaces.is_neighbours_link_local(ip.destination(), from);
        let local = (punt.reason == PuntReason::Local && !on_link) || own;
        let replication = multicast::replication(&ip, punt, context.out);
        let route = (punt.reason, interfaces.vrf_of(from));
        let for_agent = host && relay::is_for_agent(&ip, from, interfaces);
        if host
            && !for_agent
            && replication.is_none()
            && (local || leads_to_host(&ip, route, context.out))
        {
            return host::for_kernel(packet, from, interfaces, context.out);
        }
        if let Err((error, reason)) = check_options(&ip) {
            return icmp::refuse_or_drop(packet, from, error, reason, context);
        }
        let for_us = if let Some(replication) = replication {
            multicast::replicate(packet, from, replication, context)
        } else if local {
            Some(packet)
        } else {
            let hop = match punt.reason {
                _ if on_link => (next_hop::NO_ROUTE, NextHop::Glean { interface: from }),
                PuntReason::Ttl => {
                    let (error, reason) = (Error::TtlExpired, DropReason::TtlExpired);
                    return icmp::refuse(packet, from, error, reason, context);
                }
                // A packet that is complete after all was not punted for this.
                PuntReason::Truncated => {
                    return context.out.drop(packet, DropReason::Ip4TotalLength);
                }
                PuntReason::Reset => return reset::refuse(packet, from, context),
                _ => next_hop(&ip, punt, context),
            };
            if host && host::is_dhcp_offer(&ip, from, hop.1) {
                return context.out.deliver(from, packet);
            }
            // Packets punted for these reasons have passed the filters.
            let judged = matches!(punt.reason, PuntReason::TooBig | PuntReason::Redirect);
            forward::forward(packet, (from, judged), hop, redirects, context)
        };
        if let Some(packet) = for_us {
            local::process(packet, from, links, reassembly, context);
        }
    }

    /// Takes a packet or frame that another engine handed over, for an interface that this one owns.
    pub fn take_over(
        &mut self,
        (interface, address): (InterfaceId, IpAddr),
        waiting: Waiting<P>,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let context = &mut self.shared.context(now, out);
        if context.interfaces.is_owned(interface) {
            resolution::send_to((interface, address), waiting, context);
        } else {
            resolution::discard(waiting, DropReason::PortDown, context.out);
        }
    }

    /// Executes a command of the control plane.
    pub fn command(&mut self, command: Command, now: Time, out: &mut impl Output<P>) {
        let shared = &mut self.shared;
        if let Command::PortLink { interface, up } = command {
            self.lacp.link(interface, up, now, out);
        }
        match command {
            Command::NextHop { id, interface, address } => {
                shared.gateways.set(id, (interface, address));
                resolution::start((interface, address), &mut shared.context(now, out));
            }
            Command::RemoveNextHop { id } => shared.gateways.remove(id),
            // The command goes to the interface's owner as well.
            Command::AddStaticNeighbour { interface, .. }
            | Command::RemoveNeighbour { interface, .. }
            | Command::PortLink { interface, .. }
            | Command::KernelNeighbour { interface, .. }
                if !shared.interfaces.is_owned(interface) => {}
            Command::AddStaticNeighbour { interface, address, mac } => {
                resolution::add_static((interface, address), mac, &mut shared.context(now, out));
            }
            Command::RemoveNeighbour { interface, address } => {
                resolution::remove((interface, address), &mut shared.context(now, out));
            }
            Command::KernelNeighbour { interface, address, mac } => {
                if shared.interfaces.is_host(interface) {
                    let context = &mut shared.context(now, out);
                    resolution::kernel_neighbour((interface, address), mac, context);
                }
            }
            Command::Interface(interface) => self.put_interface(&interface, now, out),
            Command::RemoveInterface { interface } => {
                self.stop(interface, Forgotten::Learned, now, out);
                resolution::forget(interface, Forgotten::All, &mut self.shared.context(now, out));
                self.shared.interfaces.remove(interface);
            }
            Command::PortLink { interface, up: true } => {
                self.links.start(interface, &mut shared.link(now, out));
            }
            Command::PortLink { interface, up: false } => {
                self.stop(interface, Forgotten::Learned, now, out);
            }
            Command::Addresses { interface: id, addresses } => {
                if let Some(interface) = shared.interfaces.get_mut(id) {
                    interface.set_addresses(&addresses);
                    self.links.start(id, &mut shared.link(now, out));
                }
            }
            // An engine without the bond has none of its ports either.
            Command::Lacp { bond, config } => {
                let config = config.filter(|_| shared.interfaces.is_owned(bond));
                self.lacp.configure(bond, config.map(|config| *config), now, out);
            }
            Command::Announce { interface } => {
                if shared.interfaces.is_owned(interface) {
                    self.links.announce(interface, now);
                }
            }
            Command::Settings { interface, settings } => {
                self.links.change(interface, settings, &mut shared.link(now, out));
            }
            Command::Limits(limits) => {
                shared.table.set_limits(limits);
                self.reassembly.set_timeout(limits.reassembly);
            }
            Command::Icmp(icmp) => shared.icmp = icmp,
            Command::Mtu { interface, mtu } => {
                if let Some(interface) = shared.interfaces.get_mut(interface) {
                    interface.mtu = mtu;
                }
            }
        }
    }

    /// Adds an interface, or replaces the one with its number.
    fn put_interface(&mut self, new: &InterfaceConfig, now: Time, out: &mut impl Output<P>) {
        // A kernel that loses its host interface will not withdraw the neighbours that it reported.
        let lost = self.shared.interfaces.is_host(new.id) && !new.host;
        let what = if lost { Forgotten::Told } else { Forgotten::Learned };
        self.stop(new.id, what, now, out);
        self.shared.interfaces.put(new);
    }

    /// Stops the protocols of an interface and forgets its neighbours.
    fn stop(&mut self, id: InterfaceId, what: Forgotten, now: Time, out: &mut impl Output<P>) {
        self.links.stop(id);
        resolution::forget(id, what, &mut self.shared.context(now, out));
    }

    /// Runs what is due: announcements, repeated requests, probes, timeouts.
    pub fn tick(&mut self, now: Time, out: &mut impl Output<P>) {
        self.links.run(&mut self.shared.link(now, out));
        self.lacp.run(now, out);
        let context = &mut self.shared.context(now, out);
        self.reassembly.run(context);
        resolution::run(context);
    }

    /// Returns the time at which [`Self::tick`] has work next; `None`: only after another input.
    pub fn next_deadline(&self) -> Option<Time> {
        let (links, table) = (self.links.next_deadline(), self.shared.table.next_deadline());
        [links, self.lacp.next_deadline(), self.reassembly.next_deadline(), table]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the waiting packets as drops; advertising interfaces announce that this router ceases to be one.
    pub fn shutdown(&mut self, out: &mut impl Output<P>) {
        self.links.cease(&self.shared.interfaces, out);
        for waiting in self.shared.table.drain() {
            resolution::discard(waiting, DropReason::Shutdown, out);
        }
        for packet in self.reassembly.drain() {
            out.drop(packet, DropReason::Shutdown);
        }
    }

    /// Returns the neighbour table, sorted by interface and address.
    pub fn neighbours(&self, now: Time) -> Vec<NeighbourInfo> {
        self.shared.table.list(now)
    }

    /// Returns the state of LACP on the bonds that this engine owns.
    pub fn bonds(&self) -> Vec<LacpInfo> {
        self.lacp.list()
    }

    /// Returns the number of received packets that wait for neighbours or for other fragments: neither forwarded nor
    /// dropped yet.
    pub fn held(&self) -> usize {
        self.shared.table.held() + self.reassembly.held()
    }

    /// Returns the rates that bound the packets it generates, with the counters of suppressed ones.
    pub fn rates(&self) -> &Arc<Rates> {
        &self.shared.rates
    }
}

/// Returns the next hop of a packet that is not for the router: the one of its punt, or by the current routes.
fn next_hop<P>(
    ip: &IpPacket<'_>,
    punt: Punt,
    context: &Context<'_, P, impl Output<P>>,
) -> (u16, NextHop) {
    let known = match punt.reason {
        PuntReason::NoRoute => Some(NextHop::NoRoute),
        PuntReason::Prohibited => Some(NextHop::Prohibited),
        PuntReason::Unreachable => Some(NextHop::Unreachable),
        // Routes may have changed while the packet waited for long.
        PuntReason::Glean
        | PuntReason::Unresolved
        | PuntReason::TooBig
        | PuntReason::Scope
        | PuntReason::Redirect => context.out.punted_to(punt),
        // Punted before the lookup, or not forwarded.
        PuntReason::Ip4Options
        | PuntReason::HopByHop
        | PuntReason::Local
        | PuntReason::Arp
        | PuntReason::NonIp
        | PuntReason::SlowProtocol
        | PuntReason::FrameToHost
        | PuntReason::Ttl
        | PuntReason::Truncated
        | PuntReason::Reset => None,
    };
    if let Some(hop) = known {
        return (punt.next_hop, hop);
    }
    let hash = context.flow.of_path(ip.bytes());
    let vrf = context.interfaces.vrf_of(punt.interface);
    let answer = context.out.route(vrf, ip.destination(), hash);
    (answer.next_hop_id, answer.hop)
}

/// Checks a packet's options; if they forbid handling it, returns the error for its sender and the drop reason.
fn check_options(ip: &IpPacket<'_>) -> Result<(), (Option<Error>, DropReason)> {
    match ip {
        IpPacket::V4 { header, bytes } => options::check(&bytes[..header.header_len()])
            .map_err(|error| (Some(error), DropReason::Ip4Options)),
        IpPacket::V6 { header, bytes } => extension::check_hop_by_hop(header.next_header, bytes)
            .map_err(|refusal| (refusal.error, refusal.reason)),
    }
}

/// Returns true for a packet that was punted before the lookup and whose route leads to the router itself.
fn leads_to_host<P>(
    ip: &IpPacket<'_>,
    (reason, vrf): (PuntReason, VrfId),
    out: &impl Output<P>,
) -> bool {
    matches!(reason, PuntReason::Ip4Options | PuntReason::HopByHop)
        && matches!(out.route(vrf, ip.destination(), 0).hop, NextHop::Local | NextHop::Multicast)
}

#[cfg(test)]
impl<P: Packet> SlowPath<P> {
    /// Cancels all announcements.
    pub(crate) fn silence(&mut self) {
        self.links.silence();
    }

    /// Starts over with identification 1.
    pub(crate) fn restart_identifications(&mut self) {
        self.shared.identifications.restart();
    }

    /// Returns the gateway with this next-hop number.
    pub(crate) fn gateway(&self, id: u16) -> Option<crate::neighbour::Key> {
        self.shared.gateways.get(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Icmp;
    use crate::testing::{
        A, B, Bench, GATEWAY, GLEAN_LEFT, GLEAN_RIGHT, LEFT, Net, Out, TO_B, config,
        fix_icmpv6_checksum, fix_v4_checksum, hex, ip, originated, secs, udp, v4, v4_with_options,
        v6,
    };
    use dataplane::next_hop::{LOCAL, NO_ROUTE};
    use proptest::prelude::*;

    #[test]
    fn the_first_tick_announces_every_address_twice() {
        let mut router: SlowPath<Vec<u8>> = SlowPath::new(config());
        let mut net = Net::default();
        assert_eq!(router.next_deadline(), Some(Time::ZERO));
        router.tick(Time::ZERO, &mut net);
        let first = std::mem::take(&mut net.outs);
        // Per interface: one ARP, one listener report, two advertisements (link-local and global).
        assert_eq!(originated(&first).len(), 8);
        let arp = hex("ffffffffffff 020000000001 0806 0001 0800 06 04 0001
                       020000000001 0a000101 000000000000 0a000101");
        assert_eq!(first[0], Out::Originate(LEFT, arp));
        let na = originated(&first)[3];
        assert_eq!(na[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(na[58], 0xa0, "router and override, not solicited");
        router.tick(secs(1), &mut net);
        assert_eq!(net.outs, []);
        assert_eq!(router.next_deadline(), Some(secs(2)));
        router.tick(secs(2), &mut net);
        assert_eq!(net.outs, first);
        assert_eq!(router.next_deadline(), None);
    }

    #[test]
    fn a_port_without_addresses_speaks_only_link_local() {
        let mut config = config();
        config.interfaces.truncate(1);
        config.interfaces[0].addresses.clear();
        let mut router: SlowPath<Vec<u8>> = SlowPath::new(config);
        let mut net = Net::default();
        router.tick(Time::ZERO, &mut net);
        assert_eq!(originated(&net.outs).len(), 2);
    }

    #[test]
    fn the_same_inputs_give_the_same_outputs() {
        let run = || {
            let mut bench = Bench::new();
            let mut outs = Vec::new();
            for host in 2..20 {
                let frame = v4("10.0.1.2", &format!("10.0.2.{host}"), 17, &udp(9));
                outs.extend(bench.punt(PuntReason::Glean, LEFT, GLEAN_RIGHT, frame));
                outs.extend(bench.pass(Time::from_millis(700)));
            }
            outs.extend(bench.pass(secs(100)));
            outs
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn a_link_local_source_does_not_leave_its_link() {
        let mut bench = Bench::with_hosts(config());
        // A ping from behind B to the left interface's link-local address.
        let mut ping = v6("2001:db8::9", "fe80::ff:fe00:1", 58, &[128, 0, 0, 0, 0, 1, 0, 1]);
        fix_icmpv6_checksum(&mut ping, 54);
        let outs = bench.local(ping);
        assert!(matches!(outs[..], [Out::ToHost(_)]), "{outs:?}");
    }

    /// Two engines, each owning one of the two interfaces.
    fn halves() -> [Bench; 2] {
        [0, 1].map(|own| {
            let mut config = config();
            for (index, interface) in config.interfaces.iter_mut().enumerate() {
                interface.owned = index == own;
            }
            Bench::with(config)
        })
    }

    #[test]
    fn what_waits_on_another_engine_s_port_is_handed_over() {
        let [mut left, mut right] = halves();
        // An error to a host on the right interface that is not known yet.
        let frame = v4("10.0.2.7", "9.9.9.9", 17, &udp(9));
        let outs = left.punt(PuntReason::NoRoute, LEFT, NO_ROUTE, frame);
        let handed = Out::HandOver(crate::testing::right(), ip("10.0.2.7"), true);
        assert_eq!(outs, [handed, Out::Drop(DropReason::NoRoute)]);
        // A packet with options whose route leads there.
        let mut frame = v4_with_options("10.0.2.7", &[7, 7, 4, 0, 0, 0, 0, 0]);
        frame[..6].copy_from_slice(&crate::testing::L.0);
        let outs = left.punt(PuntReason::Ip4Options, LEFT, NO_ROUTE, frame.clone());
        assert_eq!(outs, [Out::HandOver(crate::testing::right(), ip("10.0.2.7"), false)]);
        // The owner asks for the MAC, and sends when it is known.
        let waiting = Waiting::Received { packet: frame, from: LEFT };
        right.given += 1;
        let key = (crate::testing::right(), ip("10.0.2.7"));
        right.router.take_over(key, waiting, right.now, &mut right.net);
        assert_eq!(originated(&right.take())[0][38..42], [10, 0, 2, 7]);
        right.command(Command::AddStaticNeighbour { interface: key.0, address: key.1, mac: B });
        assert!(matches!(right.take()[..], [Out::Event(_), Out::Forward(..)]));
        right.assert_nothing_lost();
        left.assert_nothing_lost();
    }

    #[test]
    fn engines_that_share_ports_each_mind_their_own() {
        let [mut left, mut right] = halves();
        for bench in [&mut left, &mut right] {
            for interface in [LEFT, crate::testing::right()] {
                bench.command(Command::PortLink { interface, up: true });
            }
            bench.router.tick(Time::ZERO, &mut bench.net);
        }
        let interfaces = |outs: Vec<Out>| -> Vec<InterfaceId> {
            let interface = |out| match out {
                Out::Originate(interface, _) => Some(interface),
                _ => None,
            };
            outs.into_iter().filter_map(interface).collect()
        };
        assert_eq!(interfaces(left.take()), [LEFT; 4]);
        assert_eq!(interfaces(right.take()), [crate::testing::right(); 4]);
        // A gateway on the right interface: only its owner asks for it, both engines hold its next-hop number.
        let address = ip("10.0.2.77");
        let interface = crate::testing::right();
        for (bench, asks) in [(&mut left, 0), (&mut right, 1)] {
            bench.command(Command::NextHop { id: 99, interface, address });
            assert_eq!(originated(&bench.take()).len(), asks);
            assert_eq!(bench.router.gateway(99), Some((interface, address)));
            bench.command(Command::AddStaticNeighbour { interface, address, mac: B });
            assert_eq!(bench.router.neighbours(bench.now).len(), asks);
        }
    }

    /// Frames that reach every branch, to be mutated.
    fn seeds() -> Vec<Vec<u8>> {
        let mut all = vec![
            hex("ffffffffffff 020000000a01 0806 0001 0800 06 04 0001
                 020000000a01 0a000102 000000000000 0a000101"),
            hex("020000000001 020000000a01 0806 0001 0800 06 04 0002
                 020000000a01 0a000102 020000000001 0a000101"),
            hex("3333ff000001 020000000a01 86dd 6000000000203aff
                 fd000001000000000000000000000002 ff0200000000000000000001ff000001
                 87007396 00000000 fd000001000000000000000000000001 0101020000000a01"),
            v4("10.0.1.2", "10.0.1.1", 1, &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1]),
            v4("10.0.1.2", "10.0.1.1", 17, &udp(30)),
            v4("10.0.1.2", "10.0.2.7", 17, &udp(1500)),
            v4_with_options("192.0.2.9", &[7, 7, 4, 0, 0, 0, 0, 0]),
            v4_with_options("192.0.2.9", &[131, 7, 4, 10, 0, 2, 2, 0]),
            v6("fd00:1::2", "fd00:2::7", 17, &udp(1500)),
            v6("fd00:1::2", "2001:db8::7", 0, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(9)].concat()),
            v6(
                "fe80::a",
                "ff02::1",
                0,
                &[
                    58, 0, 5, 2, 0, 0, 1, 0, 130, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ],
            ),
            v6("fd00:1::2", "fd00:1::1", 44, &[&[17, 0, 0, 1, 0, 0, 0, 9][..], &udp(9)].concat()),
            v6("fd00:1::2", "fd00:1::1", 44, &[&[17, 0, 0, 112, 0, 0, 0, 9][..], &udp(9)].concat()),
            v4_with_options("192.0.2.9", &[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
            v4_with_options("10.0.1.9", &[7, 7, 4, 0, 0, 0, 0, 0]),
            v6("fd00:1::2", "fd00:1::9", 17, &udp(20)),
            v6("fd00:1::2", "fd00:1::1", 60, &[&[17, 0, 1, 4, 0, 0, 0, 0][..], &udp(9)].concat()),
            v6("fd00:1::2", "fd00:1::1", 43, &[&[17, 0, 0, 1, 0, 0, 0, 0][..], &udp(9)].concat()),
        ];
        for kind in [128, 133, 134, 135, 136, 137] {
            let message = [
                &[kind, 0, 0, 0, 0xe0, 0, 0, 0][..],
                &[0xfd, 0, 0, 1],
                &[0; 11],
                &[2],
                &[2, 1, 2, 0, 0, 0, 0x0a, 1],
            ];
            let mut frame = v6("fd00:1::2", "fd00:1::1", 58, &message.concat());
            frame[21] = 255;
            all.push(frame);
        }
        all
    }

    prop_compose! {
        fn frames()(
            random in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 0..120),
            seed in prop::sample::select(seeds()),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in prop::option::weighted(0.2, 0usize..120),
            repair in any::<bool>(),
        ) -> Vec<u8> {
            if random {
                return bytes;
            }
            let mut frame = seed;
            for (index, value) in changes {
                let near = frame.len().min(110);
                frame[index.index(near)] = value;
            }
            frame.truncate(cut.unwrap_or(usize::MAX));
            // Checksums corrected, so that the code behind the checks is reached too.
            if repair && frame.len() >= 74 {
                if frame[12..14] == [8, 0] {
                    fix_v4_checksum(&mut frame);
                } else if frame[12..14] == [0x86, 0xdd] {
                    let at = if frame[20] == 0 { 62 } else { 54 };
                    fix_icmpv6_checksum(&mut frame, at);
                }
            }
            frame
        }
    }

    #[derive(Clone, Debug)]
    enum Input {
        Packet(Vec<u8>, PuntReason, u16, u16),
        Pass(u64),
        Command(Box<Command>),
    }

    fn inputs() -> impl Strategy<Value = Input> {
        let reasons = prop::sample::select(PuntReason::ALL);
        let hops = prop::sample::select(vec![
            NO_ROUTE,
            LOCAL,
            2,
            3,
            4,
            5,
            GATEWAY,
            TO_B,
            GLEAN_LEFT,
            GLEAN_RIGHT,
            999,
        ]);
        let key = (0u16..3).prop_map(|index| InterfaceId::new(index).unwrap());
        let addresses = prop::sample::select(vec![ip("10.0.1.2"), ip("10.0.2.7"), ip("fd00:2::7")]);
        let commands = (key, addresses, 0..6).prop_map(|(interface, address, kind)| match kind {
            0 => Command::NextHop { id: GATEWAY, interface, address },
            1 => Command::RemoveNextHop { id: GATEWAY },
            2 => Command::AddStaticNeighbour {
                interface,
                address,
                mac: if interface == LEFT { A } else { B },
            },
            3 => Command::RemoveNeighbour { interface, address },
            4 => Command::PortLink { interface, up: false },
            _ => Command::PortLink { interface, up: true },
        });
        prop_oneof![
            8 => (frames(), reasons, 0u16..3, hops)
                .prop_map(|(frame, reason, interface, hop)| Input::Packet(frame, reason, interface, hop)),
            1 => (0u64..8000).prop_map(Input::Pass),
            1 => commands.prop_map(|command| Input::Command(Box::new(command))),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
        cases: 2 * ProptestConfig::default().cases,
        ..ProptestConfig::default()
    })]

        /// Any input is safe, every packet is returned, every originated frame is well-formed (the
        /// test bench checks each frame).
        #[test]
        fn any_input_is_survived_and_nothing_is_lost(
            inputs in prop::collection::vec(inputs(), 1..60),
            small in any::<bool>(),
        ) {
            let mut config = config();
            if small {
                config.limits.neighbours = 3;
                config.limits.queue = 2;
                config.limits.held = 4;
                config.interfaces[1].mtu = 300;
                config.limits.fragments = 3;
                config.interfaces[0].settings.redirects = true;
                config.interfaces[0].settings.dad = 1;
                config.interfaces[0].settings.advertise = Some(crate::Advertise::default());
            }
            let mut bench = Bench::with(config);
            for input in inputs {
                match input {
                    Input::Packet(frame, reason, interface, hop) => {
                        bench.punt(reason, InterfaceId::new(interface).unwrap(), hop, frame);
                    }
                    Input::Pass(millis) => drop(bench.pass(Time::from_millis(millis))),
                    Input::Command(command) => bench.command(*command),
                }
                bench.assert_nothing_lost();
            }
            bench.router.shutdown(&mut bench.net);
            prop_assert_eq!(bench.router.held(), 0);
            bench.assert_nothing_lost();
        }
    }

    #[test]
    fn a_defect_in_the_bench_would_show() {
        // The checker of originated frames rejects a wrong checksum.
        let mut frame = v4("10.0.1.1", "10.0.1.2", 17, &udp(4));
        frame[6..12].copy_from_slice(&crate::testing::L.0);
        crate::testing::check_frame(&frame, crate::testing::L);
        frame[24] ^= 1;
        let wrong = std::panic::catch_unwind(|| {
            crate::testing::check_frame(&frame, crate::testing::L);
        });
        assert!(wrong.is_err());
    }

    #[test]
    fn the_router_answers_ping_as_it_was_told_last() {
        let mut bench = Bench::with_hosts(config());
        let ping = v4("10.0.1.2", "10.0.1.1", 1, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
        for (echo, answers) in [(false, 0), (true, 1)] {
            bench.command(Command::Icmp(Icmp { echo, ..Icmp::default() }));
            let outs = bench.local(ping.clone());
            let answer = |frame: &&&[u8]| frame[12..14] == [8, 0] && frame[34] == 0;
            assert_eq!(originated(&outs).iter().filter(answer).count(), answers, "{outs:?}");
        }
    }
}
