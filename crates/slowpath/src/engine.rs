//! The engine: takes packets, commands and the time, and dispatches each to the module that handles it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::flow::FlowHash;
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::{self, NextHop};
use dataplane::reason::{DropReason, Punt, PuntReason};
use wire::MacAddr;
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_ARP};

use crate::advertise;
use crate::bucket::{Rates, TokenBucket};
use crate::discovery;
use crate::duplicate::Probes;
use crate::frame::{self, IpPacket};
use crate::icmp::Error;
use crate::interfaces::Interfaces;
use crate::later::Later;
use crate::mld::Groups;
use crate::neighbour::{Due, Evidence, Key, Learnt, Removed, Resolution, Table, Waiting};
use crate::random::Random;
use crate::reassembly::Reassembly;
use crate::{Command, Config, Event, Icmp, NeighbourInfo, Output, Packet, Time};
use crate::{extension, multicast, options};

/// The slow path of a router. The [crate] lists its inputs and outputs.
pub struct SlowPath<P> {
    pub(crate) interfaces: Interfaces,
    pub(crate) table: Table<P>,
    pub(crate) groups: Groups,
    pub(crate) announcements: Announcements,
    pub(crate) rates: Arc<Rates>,
    pub(crate) random: Random,
    pub(crate) flow: FlowHash,
    /// Gateways by the number of their next hop.
    gateways: HashMap<u16, Key>,
    /// Number of next hops that each gateway serves.
    gateway_uses: HashMap<Key, usize>,
    /// The identification field of the last IPv4 packet that the router made.
    pub(crate) identification: u16,
    /// Bounds the packets that need an identification.
    identifications: TokenBucket,
    /// The identification of the last IPv6 packet that the router sent in fragments.
    pub(crate) fragment_identification: u32,
    pub(crate) icmp: Icmp,
    pub(crate) reassembly: Reassembly<P>,
    /// Own frames to be sent later.
    pub(crate) later: Later,
    pub(crate) probes: Probes,
    pub(crate) advertising: advertise::Schedules,
    pub(crate) discovery: discovery::Schedules,
    pub(crate) redirects: TokenBucket,
}

/// The router's own packets that may be fragmented on their way, per second and in one burst. An identification
/// is not used again for as long as a packet may live, two minutes (RFC 6864, 4.3): 5000 + 120 * 500 is less
/// than the number of identifications.
const IDENTIFICATION_RATE: u32 = 500;
const IDENTIFICATION_BURST: u32 = 5000;

/// Redirects per second, and in one burst (RFC 4861, 8.2: the rate must be limited).
const REDIRECT_RATE: u32 = 100;
const REDIRECT_BURST: u32 = 20;

/// Largest own IPv4 packet that is never fragmented (RFC 791, 3.1: the size that every host accepts).
const SMALL: usize = 576;

/// Offset of the total length in an IPv4 header: the pointer in errors about truncated packets (RFC 1812,
/// 5.2.2).
const TOTAL_LENGTH_AT: u32 = 2;

/// Schedule of the announcements of each interface's addresses.
#[derive(Default)]
pub(crate) struct Announcements {
    /// Interface, next time, announcements left.
    pending: Vec<(InterfaceId, Time, u8)>,
    /// Time at which an interface last defended an address.
    defended: Vec<(InterfaceId, Time)>,
}

/// Number of announcements of an interface's addresses, and the time between them (RFC 5227, 2.3 and 1.1:
/// ANNOUNCE_NUM, ANNOUNCE_INTERVAL). RFC 4861, 7.2.6 allows three.
const ANNOUNCE_COUNT: u8 = 2;
const ANNOUNCE_INTERVAL: Time = Time::from_secs(2);
/// Minimum time between two defences of an address (RFC 5227, 1.1: DEFEND_INTERVAL).
const DEFEND_INTERVAL: Time = Time::from_secs(10);

impl Announcements {
    fn schedule(&mut self, interface: InterfaceId, now: Time) {
        self.cancel(interface);
        self.pending.push((interface, now, ANNOUNCE_COUNT));
    }

    pub(crate) fn cancel(&mut self, interface: InterfaceId) {
        self.pending.retain(|&(other, ..)| other != interface);
    }

    /// Returns true if the interface may report a conflict and defend its address now (RFC 5227, 2.4 (c)).
    pub(crate) fn may_defend(&mut self, interface: InterfaceId, now: Time) -> bool {
        let last = self.defended.iter().position(|&(other, _)| other == interface);
        if let Some(index) = last {
            if now.saturating_sub(self.defended[index].1) < DEFEND_INTERVAL {
                return false;
            }
            self.defended.swap_remove(index);
        }
        self.defended.push((interface, now));
        true
    }

    fn next_deadline(&self) -> Option<Time> {
        self.pending.iter().map(|&(_, time, _)| time).min()
    }

    /// Returns an interface whose announcement is due.
    fn due(&mut self, now: Time) -> Option<InterfaceId> {
        let position = self.pending.iter().position(|&(_, time, _)| time <= now)?;
        let (interface, time, left) = &mut self.pending[position];
        let interface = *interface;
        *time = now.saturating_add(ANNOUNCE_INTERVAL);
        *left -= 1;
        if *left == 0 {
            self.pending.remove(position);
        }
        Some(interface)
    }
}

impl<P: Packet> SlowPath<P> {
    /// Creates an engine with its interfaces. The first [`Self::tick`] announces their addresses.
    pub fn new(config: Config) -> Self {
        let rates = Arc::new(Rates::new(&config.limits, config.seed));
        Self::sharing(config, rates)
    }

    /// Like [`Self::new`], with rates shared by several engines.
    pub fn sharing(config: Config, rates: Arc<Rates>) -> Self {
        let mut random = Random::new(config.seed);
        let mut announcements = Announcements::default();
        let mut advertising = advertise::Schedules::default();
        let mut discovery = discovery::Schedules::default();
        for interface in
            config.interfaces.iter().filter(|interface| interface.owned && !interface.host)
        {
            announcements.schedule(interface.id, Time::ZERO);
            if interface.settings.advertise.is_some() {
                advertising.begin(interface.id, Time::ZERO);
            }
            if interface.settings.discovery.is_some() {
                discovery.begin(interface.id, Time::ZERO);
            }
        }
        let mut engine = Self {
            interfaces: Interfaces::new(&config.interfaces),
            rates,
            identifications: TokenBucket::new(IDENTIFICATION_RATE, IDENTIFICATION_BURST),
            reassembly: Reassembly::new(config.limits.fragments, config.limits.reassembly),
            later: Later::default(),
            probes: Probes::default(),
            advertising,
            discovery,
            redirects: TokenBucket::new(REDIRECT_RATE, REDIRECT_BURST),
            icmp: config.icmp,
            table: Table::new(config.limits, Random::new(random.next())),
            groups: Groups::default(),
            announcements,
            identification: random.next() as u16,
            fragment_identification: random.next() as u32,
            random,
            flow: config.flow,
            gateways: HashMap::new(),
            gateway_uses: HashMap::new(),
        };
        for interface in config.interfaces.iter().filter(|interface| interface.owned) {
            engine.start_probing(interface.id, Time::ZERO);
        }
        engine
    }

    /// Processes a punted packet. It is returned through `out` now or, if it has to wait for a
    /// neighbour, in a later call.
    pub fn packet(&mut self, packet: P, punt: Punt, now: Time, out: &mut impl Output<P>) {
        let Some((ethernet, _)) = frame::ethernet(packet.bytes()) else {
            return out.drop(packet, DropReason::Runt);
        };
        if self.interfaces.get(punt.interface).is_none() {
            return out.drop(packet, DropReason::PortDown);
        }
        #[cfg(feature = "faulty-step")]
        assert!(!packet.bytes().ends_with(crate::POISON), "the faulty engine met its packet");
        let host = self.interfaces.is_host(punt.interface);
        if ethernet.ethertype == ETHERTYPE_ARP && punt.reason != PuntReason::FrameToHost {
            if host {
                return out.deliver(punt.interface, packet);
            }
            return self.arp(packet, punt.interface, now, out);
        }
        if punt.reason == PuntReason::NonIp {
            return self.non_ip(packet, punt.interface, out);
        }
        if punt.reason == PuntReason::FrameToHost {
            return self.frame_to_host(packet, punt.interface, out);
        }
        let ip = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(reason @ DropReason::Ip4TotalLength) if punt.reason == PuntReason::Truncated => {
                let error = Error::BadField { pointer: TOTAL_LENGTH_AT };
                return self.refuse(packet, punt.interface, error, reason, now, out);
            }
            Err(reason) => return out.drop(packet, reason),
        };
        // A packet addressed to the router is the router's, regardless of the reason of the punt,
        // unless a step of the configuration refuses it before the lookup.
        let refused = matches!(punt.reason, PuntReason::Prohibited | PuntReason::Reset);
        let own = !refused && self.interfaces.is_own(ip.destination(), punt.interface);
        // Packets for another host on the receiving link stay on that link (RFC 4007, 9).
        let link =
            !host && self.interfaces.is_neighbours_link_local(ip.destination(), punt.interface);
        let local = (punt.reason == PuntReason::Local && !link) || own;
        let replication = multicast::replication(&ip, punt, out);
        if host
            && replication.is_none()
            && (local
                || leads_to_host(&ip, (punt.reason, self.interfaces.vrf_of(punt.interface)), out))
        {
            return self.for_kernel(packet, punt.interface, out);
        }
        if let Err((error, reason)) = check_options(&ip) {
            let Some(error) = error else { return out.drop(packet, reason) };
            return self.refuse(packet, punt.interface, error, reason, now, out);
        }
        if let Some(replication) = replication {
            return self.replicate(packet, punt.interface, replication, now, out);
        }
        if local {
            return self.local(packet, punt.interface, now, out);
        }
        let hop = match punt.reason {
            _ if link => (next_hop::NO_ROUTE, NextHop::Glean { interface: punt.interface }),
            PuntReason::Ttl => {
                let (error, reason) = (Error::TtlExpired, DropReason::TtlExpired);
                return self.refuse(packet, punt.interface, error, reason, now, out);
            }
            // A packet that is complete after all was not punted for this.
            PuntReason::Truncated => return out.drop(packet, DropReason::Ip4TotalLength),
            PuntReason::Reset => return self.refuse_by_reset(packet, punt.interface, now, out),
            PuntReason::NoRoute => (punt.next_hop, NextHop::NoRoute),
            PuntReason::Prohibited => (punt.next_hop, NextHop::Prohibited),
            PuntReason::Unreachable => (punt.next_hop, NextHop::Unreachable),
            PuntReason::Glean
            | PuntReason::Unresolved
            | PuntReason::TooBig
            | PuntReason::Scope
            | PuntReason::Redirect => match out.punted_to(punt) {
                Some(hop) => (punt.next_hop, hop),
                // The packet has waited for long, and routes may have changed.
                None => self.look_up(&ip, punt.interface, out),
            },
            // Punted before the lookup.
            PuntReason::Ip4Options
            | PuntReason::HopByHop
            | PuntReason::Local
            | PuntReason::Arp
            | PuntReason::NonIp
            | PuntReason::FrameToHost => self.look_up(&ip, punt.interface, out),
        };
        // Packets punted for these reasons have passed the filters.
        let judged = matches!(punt.reason, PuntReason::TooBig | PuntReason::Redirect);
        self.forward(packet, (punt.interface, judged), hop, now, out);
    }

    /// Looks up the next hop of a packet received on this interface in the current routes.
    fn look_up(
        &self,
        ip: &IpPacket<'_>,
        from: InterfaceId,
        out: &impl Output<P>,
    ) -> (u16, NextHop) {
        let hash = self.flow.of_packet(ip.bytes());
        let answer = out.route(self.interfaces.vrf_of(from), ip.destination(), hash);
        (answer.next_hop_id, answer.hop)
    }

    /// Executes a command of the control plane.
    pub fn command(&mut self, command: Command, now: Time, out: &mut impl Output<P>) {
        match command {
            Command::NextHop { id, interface, address } => {
                self.set_gateway(id, Some((interface, address)));
                self.start_gateway((interface, address), now, out);
            }
            Command::RemoveNextHop { id } => self.set_gateway(id, None),
            // The command goes to the interface's owner as well.
            Command::AddStaticNeighbour { interface, .. }
            | Command::RemoveNeighbour { interface, .. }
            | Command::PortLink { interface, .. }
            | Command::KernelNeighbour { interface, .. }
                if !self.interfaces.is_owned(interface) => {}
            Command::AddStaticNeighbour { interface, address, mac } => {
                let key = (interface, address);
                let ready = self.table.add_static(key, mac, now);
                self.learnt(key, mac, Learnt { changed: true, ready }, out);
            }
            Command::RemoveNeighbour { interface, address } => {
                if let Some(removed) = self.table.remove((interface, address)) {
                    self.removed(removed, out);
                }
            }
            Command::Interface(interface) => self.put_port(&interface, out),
            Command::RemoveInterface { interface } => self.remove_port(interface, out),
            Command::PortLink { interface, up: true } => self.start_announcing(interface, now),
            Command::PortLink { interface, up: false } => self.link_down(interface, out),
            Command::KernelNeighbour { interface, address, mac } => {
                if self.interfaces.is_host(interface) {
                    self.kernel_neighbour((interface, address), mac, now, out);
                }
            }
            Command::Addresses { interface: id, addresses } => {
                if let Some(interface) = self.interfaces.get_mut(id) {
                    interface.set_addresses(&addresses);
                    self.start_announcing(id, now);
                }
            }
            Command::Settings { interface, settings } => {
                self.change_settings(interface, settings, now, out)
            }
            Command::Limits(limits) => {
                self.table.set_limits(limits);
                self.reassembly.set_timeout(limits.reassembly);
            }
            Command::Icmp(icmp) => self.icmp = icmp,
            Command::Mtu { interface, mtu } => {
                if let Some(interface) = self.interfaces.get_mut(interface) {
                    interface.mtu = mtu;
                }
            }
        }
    }

    /// Starts announcing, except on interfaces with a host interface, where the kernel announces.
    fn start_announcing(&mut self, interface: InterfaceId, now: Time) {
        if self.interfaces.is_owned(interface) && !self.interfaces.is_host(interface) {
            self.start_probing(interface, now);
            self.announcements.schedule(interface, now);
            self.start_advertising(interface, now);
            self.start_discovery(interface, now);
        }
    }

    fn set_gateway(&mut self, id: u16, key: Option<Key>) {
        let old = match key {
            Some(key) => {
                *self.gateway_uses.entry(key).or_default() += 1;
                self.gateways.insert(id, key)
            }
            None => self.gateways.remove(&id),
        };
        let Some(old) = old else { return };
        if let Some(uses) = self.gateway_uses.get_mut(&old) {
            *uses -= 1;
            if *uses == 0 {
                self.gateway_uses.remove(&old);
            }
        }
    }

    fn kernel_neighbour(
        &mut self,
        key: Key,
        mac: Option<MacAddr>,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        if let Some(mac) = mac {
            let learnt = self.table.learn_from_kernel(key, mac, now);
            self.drop_displaced(out);
            if let Some(learnt) = learnt {
                self.learnt(key, mac, learnt, out);
            }
        } else if let Some(due) = self.table.kernel_lost(key, now) {
            self.attend(due, now, out);
        }
    }

    /// Runs what is due: announcements, repeated requests, probes, timeouts.
    pub fn tick(&mut self, now: Time, out: &mut impl Output<P>) {
        while let Some(interface) = self.announcements.due(now) {
            self.announce(interface, out);
        }
        while let Some(interface) = self.groups.due(now) {
            self.answer_query(interface, out);
        }
        self.probe_addresses(now, out);
        while let Some(interface) = self.advertising.due(now, &self.interfaces, &mut self.random) {
            self.advertise(interface, out);
        }
        self.discover(now, out);
        while let Some((interface, frame)) = self.later.due(now) {
            out.originate(interface, &frame);
        }
        self.expire_fragments(now, out);
        while let Some(due) = self.table.due(now) {
            self.attend(due, now, out);
        }
    }

    fn attend(&mut self, due: Due<P>, now: Time, out: &mut impl Output<P>) {
        match due {
            Due::Ask(key) => self.ask(key, None, now, out),
            Due::Probe(key, mac) => self.ask(key, Some(mac), now, out),
            Due::Lost((interface, address)) => {
                out.event(Event::NeighbourDown { interface, address })
            }
            Due::Unreachable(queue) => {
                for waiting in queue {
                    self.give_up(waiting, now, out);
                }
            }
        }
    }

    /// Returns the time at which [`Self::tick`] has work next; `None`: only after another input.
    pub fn next_deadline(&self) -> Option<Time> {
        let table = self.table.next_deadline();
        let groups = self.groups.next_deadline();
        let fragments = self.reassembly.next_deadline();
        let later = self.later.next_deadline();
        let announcements = self.announcements.next_deadline();
        let advertising = self.advertising.next_deadline();
        let probes = self.probes.next_deadline();
        let discovery = self.discovery.next_deadline();
        let all = [discovery, probes, table, groups, fragments, later, announcements, advertising];
        all.into_iter().flatten().min()
    }

    /// Returns the neighbour table, sorted by interface and address.
    pub fn neighbours(&self, now: Time) -> Vec<NeighbourInfo> {
        self.table.list(now)
    }

    /// Returns the number of received packets that wait for neighbours or for other fragments: neither forwarded nor
    /// dropped yet.
    pub fn held(&self) -> usize {
        self.table.held() + self.reassembly.held()
    }

    /// Returns the rates that bound the packets it generates, with the counters of suppressed ones.
    pub fn rates(&self) -> &Arc<Rates> {
        &self.rates
    }

    /// Returns the waiting packets as drops; advertising interfaces announce that this router ceases to be one.
    pub fn shutdown(&mut self, out: &mut impl Output<P>) {
        self.cease_advertising(out);
        self.cease_discovery(out);
        for waiting in self.table.drain() {
            if let Waiting::Received { packet, .. } = waiting {
                out.drop(packet, DropReason::Shutdown);
            }
        }
        for packet in self.reassembly.drain() {
            out.drop(packet, DropReason::Shutdown);
        }
    }

    /// Returns the gateway with this next-hop number.
    pub(crate) fn gateway(&self, id: u16) -> Option<Key> {
        self.gateways.get(&id).copied()
    }

    /// Returns the identification of an own IPv4 packet of this length. The inner `None`: it needs none and gets
    /// DF, because it is small or because its receiver discovers the path MTU itself. The outer `None`: it must
    /// not be sent, since all identifications are in use.
    pub(crate) fn identify(
        &mut self,
        length: usize,
        asked_with_df: bool,
        now: Time,
    ) -> Option<Option<u16>> {
        let fits = length <= usize::from(self.interfaces.smallest_mtu());
        if fits && (length <= SMALL || asked_with_df) {
            return Some(None);
        }
        if !self.identifications.take(now) {
            return None;
        }
        self.identification = self.identification.wrapping_add(1);
        Some(Some(self.identification))
    }

    fn start_gateway(&mut self, key: Key, now: Time, out: &mut impl Output<P>) {
        if !self.interfaces.is_owned(key.0) {
            return;
        }
        if let Some(mac) = self.table.mac(key) {
            out.event(Event::NeighbourUp { interface: key.0, address: key.1, mac });
        } else if self.table.start(key, now) {
            self.ask(key, None, now, out);
        }
        self.drop_displaced(out);
    }

    /// Takes a packet or frame that another engine handed over, for an interface that this one owns.
    pub fn take_over(
        &mut self,
        (interface, address): (InterfaceId, IpAddr),
        waiting: Waiting<P>,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        if self.interfaces.is_owned(interface) {
            self.send_to((interface, address), waiting, now, out);
        } else {
            discard(waiting, DropReason::PortDown, out);
        }
    }

    /// Sends a packet or frame to a neighbour, or keeps it until the neighbour's MAC is known.
    pub(crate) fn send_to(
        &mut self,
        key: Key,
        waiting: Waiting<P>,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        if self.interfaces.get(key.0).is_some_and(|interface| !interface.owned) {
            return out.hand_over(key.0, key.1, waiting);
        }
        match self.table.resolve(key, waiting, now) {
            Resolution::Ready(mac, waiting) => self.transmit(waiting, key.0, mac, out),
            Resolution::Waits { ask: true } => self.ask(key, None, now, out),
            Resolution::Waits { ask: false } => {}
            Resolution::Refused(waiting, DropReason::NeighbourFailed) => {
                self.give_up(waiting, now, out);
            }
            Resolution::Refused(waiting, reason) => discard(waiting, reason, out),
        }
        self.drop_displaced(out);
    }

    /// Announces an interface's addresses to its neighbours, and joins its groups.
    fn announce(&mut self, id: InterfaceId, out: &mut impl Output<P>) {
        let Some(interface) = self.interfaces.get(id) else { return };
        for net in &interface.v4 {
            self.arp_announce(id, net.addr(), out);
        }
        self.join_groups(id, out);
        for address in interface.v6_addresses() {
            self.nd_announce(id, address, out);
        }
    }

    /// Asks for a neighbour's MAC: by broadcast, or from the MAC that had it last; on an interface with a host
    /// interface, from the kernel.
    fn ask(&mut self, key: Key, probe: Option<MacAddr>, now: Time, out: &mut impl Output<P>) {
        let (interface, address) = key;
        if self.interfaces.is_host(interface) {
            // A request refused here is repeated, like one that is not answered.
            if self.gateway_uses.contains_key(&key) || self.rates.resolve(now) {
                out.event(Event::Resolve { interface, address });
            }
            return;
        }
        match address {
            IpAddr::V4(address) => self.arp_request(interface, address, probe, out),
            IpAddr::V6(address) => self.solicit(interface, address, probe, out),
        }
    }

    /// Learns a MAC that was received; returns false if the table has no use for it.
    pub(crate) fn learn(
        &mut self,
        key: Key,
        mac: MacAddr,
        (evidence, create): (Evidence, bool),
        now: Time,
        out: &mut impl Output<P>,
    ) -> bool {
        let learnt = self.table.learn(key, mac, evidence, create, now);
        self.drop_displaced(out);
        let known = learnt.is_some();
        if let Some(learnt) = learnt {
            self.learnt(key, mac, learnt, out);
        }
        known
    }

    fn learnt(
        &mut self,
        (interface, address): Key,
        mac: MacAddr,
        learnt: Learnt<P>,
        out: &mut impl Output<P>,
    ) {
        if learnt.changed {
            out.event(Event::NeighbourUp { interface, address, mac });
        }
        for waiting in learnt.ready {
            self.transmit(waiting, interface, mac, out);
        }
    }

    pub(crate) fn removed(&mut self, removed: Removed<P>, out: &mut impl Output<P>) {
        let (interface, address) = removed.key;
        if removed.was_up {
            out.event(Event::NeighbourDown { interface, address });
        }
        for waiting in removed.queue {
            discard(waiting, DropReason::NeighbourFailed, out);
        }
    }

    /// The neighbour does not answer: the packet's sender gets an ICMP error (RFC 1812, 4.3.3.1 and 3.3.2; RFC
    /// 4861, 7.2.2).
    fn give_up(&mut self, waiting: Waiting<P>, now: Time, out: &mut impl Output<P>) {
        if let Waiting::Received { packet, from } = waiting {
            let reason = DropReason::NeighbourFailed;
            self.refuse(packet, from, Error::HostUnreachable, reason, now, out);
        }
    }

    fn drop_displaced(&mut self, out: &mut impl Output<P>) {
        for (waiting, reason) in self.table.take_displaced() {
            discard(waiting, reason, out);
        }
        for (interface, address) in self.table.take_evicted() {
            out.event(Event::NeighbourDown { interface, address });
        }
    }

    /// Sends a frame that the router made to an IP address, by the FIB of the VRF of `from`; to a link-local
    /// address, by this interface. Its MACs are filled in on the way. Not sent if the FIB has no route.
    pub(crate) fn send_own(
        &mut self,
        frame: Vec<u8>,
        destination: IpAddr,
        from: InterfaceId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        let speaks_v6 = |interface| {
            self.interfaces.get(interface).is_some_and(|interface| interface.speaks_v6())
        };
        if let IpAddr::V6(address) = destination
            && address.is_unicast_link_local()
        {
            if speaks_v6(from) {
                self.send_to((from, destination), Waiting::Own(frame), now, out);
            }
            return;
        }
        let hash = self.flow.of_packet(frame.get(ETHERNET_LEN..).unwrap_or_default());
        let answer = out.route(self.interfaces.vrf_of(from), destination, hash);
        if let NextHop::Forward { interface, .. }
        | NextHop::Glean { interface }
        | NextHop::Unresolved { interface } = answer.hop
            && ((interface != from && has_link_local_source(&frame))
                || (destination.is_ipv6() && !speaks_v6(interface)))
        {
            return;
        }
        match answer.hop {
            NextHop::Forward { interface, mac } => {
                self.transmit(Waiting::Own(frame), interface, mac, out)
            }
            NextHop::Glean { interface } => {
                self.send_to((interface, destination), Waiting::Own(frame), now, out);
            }
            NextHop::Unresolved { .. } => {
                if let Some(key) = self.gateway(answer.next_hop_id) {
                    self.send_to(key, Waiting::Own(frame), now, out);
                }
            }
            _ => {}
        }
    }
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

/// Returns true for a packet with a link-local source, which is meaningless on another link (RFC 4007, 9).
fn has_link_local_source(frame: &[u8]) -> bool {
    match IpPacket::parse(frame) {
        Ok(IpPacket::V6 { header, .. }) => header.source().is_unicast_link_local(),
        _ => false,
    }
}

/// Drops a received packet; a frame of the router's own is discarded uncounted.
fn discard<P>(waiting: Waiting<P>, reason: DropReason, out: &mut impl Output<P>) {
    if let Waiting::Received { packet, .. } = waiting {
        out.drop(packet, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        Command(Command),
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
            1 => commands.prop_map(Input::Command),
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
                    Input::Command(command) => bench.command(command),
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
}
