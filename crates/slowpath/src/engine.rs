//! The engine: takes packets, commands and the time, and sends each to the file that knows.

use std::collections::HashMap;
use std::net::IpAddr;

use dataplane::flow::FlowHash;
use dataplane::next_hop::NextHop;
use dataplane::port::PortId;
use dataplane::reason::{DropReason, Punt, PuntReason};
use wire::MacAddr;
use wire::ethernet::{ETHERNET_LEN, ETHERTYPE_ARP};

use crate::frame::{self, IpPacket};
use crate::icmp::{Error, TokenBucket};
use crate::mld::Groups;
use crate::neighbour::{Due, Evidence, Key, Learnt, Removed, Resolution, Table, Waiting};
use crate::options;
use crate::ports::Ports;
use crate::random::Random;
use crate::{Command, Config, Event, NeighbourInfo, Output, Packet, Time};

/// The slow path of a router. See the [crate] for what goes in and out.
pub struct SlowPath<P> {
    pub(crate) ports: Ports,
    pub(crate) table: Table<P>,
    pub(crate) groups: Groups,
    pub(crate) announcements: Announcements,
    pub(crate) errors: TokenBucket,
    pub(crate) random: Random,
    pub(crate) flow: FlowHash,
    /// Gateways by the number of their next hop.
    gateways: HashMap<u16, Key>,
    /// The identification field of the next IPv4 packet that the router makes.
    identification: u16,
}

/// When which port tells its addresses to its neighbours.
#[derive(Default)]
pub(crate) struct Announcements {
    /// Port, next time, how often still.
    pending: Vec<(PortId, Time, u8)>,
    /// When a port last defended an address.
    defended: Vec<(PortId, Time)>,
}

/// How often a port announces its addresses, and the time between (RFC 5227, 2.3 and 1.1:
/// ANNOUNCE_NUM, ANNOUNCE_INTERVAL). RFC 4861, 7.2.6 allows three.
const ANNOUNCE_COUNT: u8 = 2;
const ANNOUNCE_INTERVAL: Time = Time::from_secs(2);
/// The least time between two defences of an address (RFC 5227, 1.1: DEFEND_INTERVAL).
const DEFEND_INTERVAL: Time = Time::from_secs(10);

impl Announcements {
    fn schedule(&mut self, port: PortId, now: Time) {
        self.cancel(port);
        self.pending.push((port, now, ANNOUNCE_COUNT));
    }

    fn cancel(&mut self, port: PortId) {
        self.pending.retain(|&(other, ..)| other != port);
    }

    /// True if the port may answer a conflict with an announcement now (RFC 5227, 2.4 (c)).
    pub(crate) fn may_defend(&mut self, port: PortId, now: Time) -> bool {
        let last = self.defended.iter().position(|&(other, _)| other == port);
        if let Some(index) = last {
            if now.saturating_sub(self.defended[index].1) < DEFEND_INTERVAL {
                return false;
            }
            self.defended.swap_remove(index);
        }
        self.defended.push((port, now));
        true
    }

    fn next_deadline(&self) -> Option<Time> {
        self.pending.iter().map(|&(_, time, _)| time).min()
    }

    /// A port that is to announce now.
    fn due(&mut self, now: Time) -> Option<PortId> {
        let position = self.pending.iter().position(|&(_, time, _)| time <= now)?;
        let (port, time, left) = &mut self.pending[position];
        let port = *port;
        *time = now.saturating_add(ANNOUNCE_INTERVAL);
        *left -= 1;
        if *left == 0 {
            self.pending.remove(position);
        }
        Some(port)
    }
}

impl<P: Packet> SlowPath<P> {
    /// An engine that knows its ports. The first [`Self::tick`] announces their addresses.
    pub fn new(config: Config) -> Self {
        let mut random = Random::new(config.seed);
        let mut announcements = Announcements::default();
        for port in &config.ports {
            announcements.schedule(port.id, Time::ZERO);
        }
        Self {
            ports: Ports::new(&config.ports),
            errors: TokenBucket::new(config.limits.icmp_rate, config.limits.icmp_burst),
            table: Table::new(config.limits, Random::new(random.next())),
            groups: Groups::default(),
            announcements,
            identification: random.next() as u16,
            random,
            flow: config.flow,
            gateways: HashMap::new(),
        }
    }

    /// Deals with a punted packet. It comes back through `out` now or, if it has to wait for a
    /// neighbour, in a later call.
    pub fn packet(&mut self, packet: P, punt: Punt, now: Time, out: &mut impl Output<P>) {
        let Some((ethernet, _)) = frame::ethernet(packet.bytes()) else {
            return out.drop(packet, DropReason::Runt);
        };
        if self.ports.get(punt.port).is_none() {
            return out.drop(packet, DropReason::PortDown);
        }
        if ethernet.ethertype == ETHERTYPE_ARP {
            return self.arp(packet, punt.port, now, out);
        }
        let ip = match IpPacket::parse(packet.bytes()) {
            Ok(ip) => ip,
            Err(reason) => return out.drop(packet, reason),
        };
        // Whatever the reason, what is addressed to the router is for the router.
        let local =
            punt.reason == PuntReason::Local || self.ports.is_own(ip.destination(), punt.port);
        if let Err(refusal) = options::check(&ip) {
            let Some(error) = refusal.error else { return out.drop(packet, refusal.reason) };
            return self.refuse(packet, punt.port, error, refusal.reason, now, out);
        }
        if local {
            return self.local(packet, punt.port, now, out);
        }
        let hop = match punt.reason {
            PuntReason::Ttl => {
                let (error, reason) = (Error::TtlExpired, DropReason::TtlExpired);
                return self.refuse(packet, punt.port, error, reason, now, out);
            }
            PuntReason::Scope => {
                let (error, reason) = (Error::BeyondScope, DropReason::BeyondScope);
                return self.refuse(packet, punt.port, error, reason, now, out);
            }
            PuntReason::NoRoute => (punt.next_hop, NextHop::NoRoute),
            PuntReason::Prohibited => (punt.next_hop, NextHop::Prohibited),
            PuntReason::Unreachable => (punt.next_hop, NextHop::Unreachable),
            PuntReason::Glean | PuntReason::Unresolved | PuntReason::TooBig => {
                (punt.next_hop, out.next_hop(punt.next_hop))
            }
            // Punted before the lookup.
            PuntReason::Ip4Options | PuntReason::HopByHop | PuntReason::Local | PuntReason::Arp => {
                let answer = out.route(ip.destination(), self.flow.of_packet(ip.bytes()));
                (answer.next_hop_id, answer.hop)
            }
        };
        self.forward(packet, punt.port, hop, now, out);
    }

    /// Takes a command of control.
    pub fn command(&mut self, command: Command, now: Time, out: &mut impl Output<P>) {
        match command {
            Command::NextHop { id, port, address } => {
                self.gateways.insert(id, (port, address));
                self.start_gateway((port, address), now, out);
            }
            Command::RemoveNextHop { id } => {
                self.gateways.remove(&id);
            }
            Command::AddStaticNeighbour { port, address, mac } => {
                let key = (port, address);
                let ready = self.table.add_static(key, mac, now);
                self.learnt(key, mac, Learnt { changed: true, ready }, out);
            }
            Command::RemoveNeighbour { port, address } => {
                if let Some(removed) = self.table.remove((port, address)) {
                    self.removed(removed, out);
                }
            }
            Command::PortLink { port, up: true } => self.announcements.schedule(port, now),
            Command::PortLink { port, up: false } => {
                self.announcements.cancel(port);
                for removed in self.table.flush(port) {
                    self.removed(removed, out);
                }
            }
        }
    }

    /// Does what is due: announcements, requests again, probes, giving up.
    pub fn tick(&mut self, now: Time, out: &mut impl Output<P>) {
        while let Some(port) = self.announcements.due(now) {
            self.announce(port, out);
        }
        while let Some(port) = self.groups.due(now) {
            self.answer_query(port, out);
        }
        while let Some(due) = self.table.due(now) {
            match due {
                Due::Ask(key) => self.ask(key, None, out),
                Due::Probe(key, mac) => self.ask(key, Some(mac), out),
                Due::Lost((port, address)) => out.event(Event::NeighbourDown { port, address }),
                Due::Unreachable(queue) => {
                    for waiting in queue {
                        self.give_up(waiting, now, out);
                    }
                }
            }
        }
    }

    /// When [`Self::tick`] has something to do next; `None`: only after another input.
    pub fn next_deadline(&self) -> Option<Time> {
        let table = self.table.next_deadline();
        let groups = self.groups.next_deadline();
        [table, groups, self.announcements.next_deadline()].into_iter().flatten().min()
    }

    /// The neighbour table, sorted by port and address.
    pub fn neighbours(&self, now: Time) -> Vec<NeighbourInfo> {
        self.table.list(now)
    }

    /// Received packets that wait for neighbours: neither forwarded nor dropped yet.
    pub fn held(&self) -> usize {
        self.table.held()
    }

    /// ICMP errors that the rate limit suppressed.
    pub fn suppressed_errors(&self) -> u64 {
        self.errors.suppressed()
    }

    /// Gives back the packets that wait, as drops.
    pub fn shutdown(&mut self, out: &mut impl Output<P>) {
        for waiting in self.table.drain() {
            if let Waiting::Received { packet, .. } = waiting {
                out.drop(packet, DropReason::Shutdown);
            }
        }
    }

    /// The gateway that a next hop's number stands for.
    pub(crate) fn gateway(&self, id: u16) -> Option<Key> {
        self.gateways.get(&id).copied()
    }

    /// The next identification: the router's own packets are few, so a counter does not repeat
    /// within the lifetime of a packet (RFC 6864, 4.2).
    pub(crate) fn next_identification(&mut self) -> u16 {
        self.identification = self.identification.wrapping_add(1);
        self.identification
    }

    fn start_gateway(&mut self, key: Key, now: Time, out: &mut impl Output<P>) {
        if let Some(mac) = self.table.mac(key) {
            out.event(Event::NeighbourUp { port: key.0, address: key.1, mac });
        } else if self.table.start(key, now) {
            self.ask(key, None, out);
        }
        self.drop_displaced(out);
    }

    /// Sends something to a neighbour, or keeps it until the neighbour's MAC is known.
    pub(crate) fn send_to(
        &mut self,
        key: Key,
        waiting: Waiting<P>,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        match self.table.resolve(key, waiting, now) {
            Resolution::Ready(mac, waiting) => self.transmit(waiting, key.0, mac, out),
            Resolution::Waits { ask: true } => self.ask(key, None, out),
            Resolution::Waits { ask: false } => {}
            Resolution::Refused(waiting, DropReason::NeighbourFailed) => {
                self.give_up(waiting, now, out);
            }
            Resolution::Refused(waiting, reason) => discard(waiting, reason, out),
        }
        self.drop_displaced(out);
    }

    /// Tells a port's neighbours its addresses, and joins its groups.
    fn announce(&mut self, id: PortId, out: &mut impl Output<P>) {
        let Some(port) = self.ports.get(id) else { return };
        for net in &port.v4 {
            self.arp_announce(id, net.addr(), out);
        }
        self.join_groups(id, out);
        for address in port.v6_addresses() {
            self.nd_announce(id, address, out);
        }
    }

    /// Asks for a neighbour's MAC: all hosts, or the one that had it last.
    fn ask(&mut self, (port, address): Key, probe: Option<MacAddr>, out: &mut impl Output<P>) {
        match address {
            IpAddr::V4(address) => self.arp_request(port, address, probe, out),
            IpAddr::V6(address) => self.solicit(port, address, probe, out),
        }
    }

    /// Takes in a MAC that was heard; false if the table has no use for it.
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
        (port, address): Key,
        mac: MacAddr,
        learnt: Learnt<P>,
        out: &mut impl Output<P>,
    ) {
        if learnt.changed {
            out.event(Event::NeighbourUp { port, address, mac });
        }
        for waiting in learnt.ready {
            self.transmit(waiting, port, mac, out);
        }
    }

    fn removed(&mut self, removed: Removed<P>, out: &mut impl Output<P>) {
        let (port, address) = removed.key;
        if removed.was_up {
            out.event(Event::NeighbourDown { port, address });
        }
        for waiting in removed.queue {
            discard(waiting, DropReason::NeighbourFailed, out);
        }
    }

    /// The neighbour does not answer: the packet's sender is told (RFC 1812, 4.3.3.1 and 3.3.2;
    /// RFC 4861, 7.2.2).
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
    }

    /// Sends a frame that the router made to an IP address, by the FIB, and link-local ones by the
    /// port `from`. Its MACs are filled in on the way. Not sent if the FIB has no way there.
    pub(crate) fn send_own(
        &mut self,
        frame: Vec<u8>,
        destination: IpAddr,
        from: PortId,
        now: Time,
        out: &mut impl Output<P>,
    ) {
        if let IpAddr::V6(address) = destination
            && address.is_unicast_link_local()
        {
            return self.send_to((from, destination), Waiting::Own(frame), now, out);
        }
        let hash = self.flow.of_packet(frame.get(ETHERNET_LEN..).unwrap_or_default());
        let answer = out.route(destination, hash);
        if let NextHop::Forward { port, .. }
        | NextHop::Glean { port }
        | NextHop::Unresolved { port } = answer.hop
            && port != from
            && has_link_local_source(&frame)
        {
            return;
        }
        match answer.hop {
            NextHop::Forward { port, mac } => self.transmit(Waiting::Own(frame), port, mac, out),
            NextHop::Glean { port } => {
                self.send_to((port, destination), Waiting::Own(frame), now, out);
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

/// A link-local source means nothing on another link (RFC 4007, 9).
fn has_link_local_source(frame: &[u8]) -> bool {
    match IpPacket::parse(frame) {
        Ok(IpPacket::V6 { header, .. }) => header.source().is_unicast_link_local(),
        _ => false,
    }
}

/// Drops a received packet; a frame of the router's own is forgotten, it was not counted yet.
fn discard<P>(waiting: Waiting<P>, reason: DropReason, out: &mut impl Output<P>) {
    if let Waiting::Received { packet, .. } = waiting {
        out.drop(packet, reason);
    }
}
