//! Delivery of the engine's results: packets are put into rings and host interfaces, and handed over if
//! another worker owns their port.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dataplane::class::ByClass;
use dataplane::counters::{Counter, DropsByOrigin};
use dataplane::drop_watch::Dropped;
use dataplane::filters::{Gate, Judgement};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::multicast::Replication;
use dataplane::next_hop::NextHop;
use dataplane::port::MAX_PORTS;
use dataplane::punts::owner;
use dataplane::reason::{DropOrigin, DropReason, Punt};
use dataplane::tables::Tables;
use dataplane::vlan::Tagger;
use dpdk::{Cause, Doorbell, Mbuf, Producer};
use nix::poll::{PollFd, PollFlags, ppoll};
use slowpath::{Event, Output, Packet, RouteAnswer, Waiting};
use wire::MacAddr;
use wire::ethernet::{ADDRESSES_LEN, TAG_LEN};

use super::super::buffers::Buffers;
use super::super::host::HostInterface;
use super::super::wiring::{HostLink, PRIORITY_SIZE};
use super::{EventSender, Learner};

/// Frames taken from one host interface before the next has its turn.
const HOST_TURN: usize = 64;

/// Packets on the way to a port whose device segments them: of up to 64 KiB in many buffers each.
const LARGE_MOST: usize = PRIORITY_SIZE / 8;

/// Milliseconds from midnight to midnight.
const MILLIS_OF_DAY: u128 = 86_400_000;

/// The slow path's counters.
#[derive(Debug, Default)]
pub struct SlowCounters {
    /// Packets taken from the forwarders, by class.
    pub taken: ByClass<Counter>,
    /// Packets given to other workers.
    pub handoffs_sent: Counter,
    /// Packets taken from other workers.
    pub handoffs_taken: Counter,
    /// Packets for the router itself that were understood, or that the kernel took.
    pub to_host: Counter,
    /// Packets that the router made.
    pub originated: Counter,
    /// Packets that the kernel sent by host interfaces.
    pub from_host: Counter,
    /// Packets given to forwarders to be sent: made here, forwarded from here, or the kernel's.
    pub injected: Counter,
    /// Drops, all of the slow path.
    pub drops: DropsByOrigin,
    /// Packets that wait for a neighbour now.
    pub held: Counter,
}

impl SlowCounters {
    /// Counts packets that were given to the kernel by an interface, or are dropped.
    fn delivered(&self, packets: &[Mbuf], to: InterfaceId, result: Result<(), DropReason>) {
        let Err(reason) = result else { return self.to_host.add(packets.len() as u64) };
        let drop = Dropped::received(DropOrigin::SlowPath, reason, to);
        packets.iter().for_each(|packet| self.drops.lose(&drop, || packet.chunks()));
    }

    /// Drops a packet that a forwarder has punted.
    pub fn discard(&self, packet: Mbuf, reason: DropReason) {
        let punt = Punt::from_tag(packet.tag());
        let from = punt.map_or(InterfaceId::FIRST, |punt| punt.interface);
        self.drops.free(&Dropped::received(DropOrigin::SlowPath, reason, from), packet);
    }

    /// Drops a packet that was to leave by an interface.
    fn drop_sent(&self, packet: Mbuf, to: InterfaceId, reason: DropReason) {
        self.drops.free(&Dropped::sent(DropOrigin::SlowPath, reason, to), packet);
    }

    /// Drops a message to another worker. A frame of the router's own is discarded uncounted.
    pub fn drop_handoff(&self, handoff: Handoff, reason: DropReason) {
        if let Waiting::Received { packet, from } = handoff.waiting
            && let Some(packet) = packet.into_packet()
        {
            self.drops.free(&Dropped::received(DropOrigin::SlowPath, reason, from), packet);
        }
    }
}

/// Destinations of the engine's packets and events.
pub struct Outbox {
    /// One ring to each forwarder.
    pub injectors: Vec<Producer>,
    /// For each port that is connected, the forwarder that sends for the slow path.
    pub senders: [Option<usize>; MAX_PORTS],
    /// Buffers for packets made here.
    pub buffers: Buffers,
    /// The worker's counters.
    pub counters: Arc<SlowCounters>,
    /// The way to the owner.
    pub events: EventSender,
    /// The tables in which routes for ICMP errors are looked up.
    pub tables: Arc<Tables>,
    /// The host interfaces of the worker's ports and VLANs.
    pub hosts: BTreeMap<InterfaceId, HostLink>,
    /// Room for a frame without its tags.
    pub untagged: Vec<u8>,
    /// Tags frames that leave by VLANs, and selects the ports of those that leave by bonds.
    pub tagger: Tagger,
    /// The way to and from the other workers.
    pub handoff_queue: HandoffQueue,
    /// The filters of packets that leave from here.
    pub gate: Gate,
    /// Reports the flows that the host begins.
    pub learner: Learner,
}

/// Handoffs that wait for a worker; more are dropped.
const MAILBOX: usize = 1024;

/// A message from one worker to another: a packet that waits for a neighbour on a port of the latter.
pub struct Handoff {
    /// The neighbour.
    pub to: (InterfaceId, IpAddr),
    /// The waiting packet.
    pub waiting: Waiting<Frame>,
}

impl Handoff {
    /// Received packets in it; a frame of the router's own is none yet.
    pub fn packets(&self) -> u64 {
        u64::from(matches!(self.waiting, Waiting::Received { .. }))
    }
}

/// A worker's way to and from the others.
pub struct HandoffQueue {
    /// To each worker, itself included, with its doorbell.
    to: Vec<(SyncSender<Handoff>, Arc<Doorbell>)>,
    from: Receiver<Handoff>,
    doorbell: Arc<Doorbell>,
}

impl HandoffQueue {
    /// The oldest handoff.
    pub fn take(&self) -> Option<Handoff> {
        self.from.try_recv().ok()
    }

    /// The worker's own doorbell.
    pub fn doorbell(&self) -> &Arc<Doorbell> {
        &self.doorbell
    }

    /// Sends to the worker that owns the handoff's port.
    pub(super) fn send(&self, handoff: Handoff) -> Result<(), Handoff> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        let (way, doorbell) = &self.to[owner(handoff.to.0.index(), self.to.len())];
        match way.try_send(handoff) {
            Ok(()) => {
                doorbell.ring(Cause::Ring);
                Ok(())
            }
            Err(Full(handoff) | Disconnected(handoff)) => Err(handoff),
        }
    }
}

/// The queues of so many workers, at least one, and their doorbells.
///
/// # Errors
/// The kernel makes no descriptor for a doorbell.
pub fn handoff_queues(workers: usize) -> Result<Vec<HandoffQueue>, dpdk::Error> {
    let (mut to, mut from) = (Vec::new(), Vec::new());
    for _ in 0..workers.max(1) {
        let (sender, receiver) = std::sync::mpsc::sync_channel(MAILBOX);
        let doorbell = Arc::new(Doorbell::new()?);
        to.push((sender, doorbell.clone()));
        from.push((receiver, doorbell));
    }
    let queue = |(from, doorbell)| HandoffQueue { to: to.clone(), from, doorbell };
    Ok(from.into_iter().map(queue).collect())
}

/// A packet as the engine sees it. One that is dropped by a panic leaves its bytes in
/// [`take_crash_frames`]; the packet itself is freed as any other.
pub struct Frame(Option<Mbuf>);

thread_local! {
    /// The frames that panics of this thread dropped, since they were last asked for.
    static CRASH_FRAMES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The frames that panics of this thread dropped, and forgets them.
pub fn take_crash_frames() -> Vec<Vec<u8>> {
    CRASH_FRAMES.take()
}

impl Frame {
    /// Takes a packet over.
    pub fn new(packet: Mbuf) -> Self {
        Self(Some(packet))
    }

    /// Returns the packet; every frame in use has one.
    fn into_packet(mut self) -> Option<Mbuf> {
        self.0.take()
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        if let Some(packet) = &self.0
            && std::thread::panicking()
        {
            CRASH_FRAMES.with_borrow_mut(|frames| frames.push(packet.data().to_vec()));
        }
    }
}

impl Packet for Frame {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Mbuf::data)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], Mbuf::data_mut)
    }

    fn trim_to(&mut self, len: usize) {
        // A longer length leaves the packet as it is, as the trait asks.
        let _ = self.0.as_mut().is_some_and(|packet| packet.trim_to(len));
    }
}

/// A packet that is not sent, and the reason.
type Refused = (Mbuf, DropReason);

/// The ways to the forwarders that send.
struct Exits<'a> {
    tagger: &'a Tagger,
    senders: &'a [Option<usize>; MAX_PORTS],
    injectors: &'a mut [Producer],
}

impl Exits<'_> {
    /// Hands a packet, with the tags of its interface, to the sender of the interface's port.
    fn send(&mut self, to: InterfaceId, mut packet: Mbuf) -> Result<(), Refused> {
        let Some(port) = self.tagger.tag(to, &mut packet) else {
            return Err((packet, DropReason::PortDown));
        };
        let sender = self.senders[port.index()];
        let ring = sender.and_then(|sender| self.injectors.get_mut(sender));
        packet.set_tag(port.index() as u64);
        let Some(ring) = ring else { return Err((packet, DropReason::PortDown)) };
        ring.push(packet).map_err(|packet| (packet, DropReason::InjectFull))
    }
}

impl Outbox {
    /// Hands a packet to the sender of its interface's port.
    fn inject(&mut self, to: InterfaceId, packet: Mbuf) {
        let Self { tagger, senders, injectors, .. } = self;
        match (Exits { tagger, senders, injectors }).send(to, packet) {
            Ok(()) => self.counters.injected.add(1),
            Err((packet, reason)) => self.counters.drop_sent(packet, to, reason),
        }
    }
}

impl Outbox {
    /// Gives packets to the port to this forwarder, and takes the kernel's packets from this host interface.
    pub fn connect(&mut self, port: InterfaceId, sender: usize, host: Option<HostLink>) {
        if let Some(place) = self.senders.get_mut(port.index()) {
            *place = Some(sender);
        }
        if let Some(host) = host {
            self.hosts.insert(port, host);
        }
    }

    /// A bond or VLAN of this worker has this host interface.
    pub fn attach_host(&mut self, interface: InterfaceId, host: HostLink) {
        self.hosts.insert(interface, host);
    }

    /// A port or VLAN of this worker has this host interface instead of the one that it had, which is returned.
    pub fn replace_host(
        &mut self,
        interface: InterfaceId,
        mut host: HostInterface,
    ) -> HostInterface {
        self.flush_hosts();
        let Some(link) = self.hosts.get_mut(&interface) else { return host };
        host.follow(&link.interface);
        std::mem::replace(&mut link.interface, host)
    }

    /// Sends by the bonds and VLANs that graphs were made for last.
    pub fn follow_vlans(&mut self) {
        self.tagger = self.tables.tagger();
    }

    /// Drops packets to the port from now on; returns its host interface if it is here.
    pub fn disconnect(&mut self, port: InterfaceId) -> Option<HostLink> {
        self.flush_hosts();
        if let Some(place) = self.senders.get_mut(port.index()) {
            *place = None;
        }
        self.hosts.remove(&port)
    }

    /// Returns true if the kernel is to get all packets of an interface that forwarders do not send.
    pub fn returns(&self, interface: InterfaceId) -> bool {
        self.hosts.get(&interface).is_some_and(|link| link.interface.takes_all())
    }

    /// Gives the kernel a packet by the host interface of its ingress interface.
    pub fn give(&mut self, interface: InterfaceId, packet: Mbuf) {
        let Self { hosts, counters, .. } = self;
        let Some(link) = hosts.get_mut(&interface) else {
            return counters.discard(packet, DropReason::NotLocal);
        };
        let mut done = |packets: &[Mbuf], result| counters.delivered(packets, interface, result);
        link.interface.give(packet, &mut done);
    }

    /// The host interface of a port or VLAN of this worker.
    pub fn host(&mut self, port: InterfaceId) -> Option<&mut HostLink> {
        self.hosts.get_mut(&port)
    }

    /// Takes what the kernel sends, as much as the ports' rings have room for; the rest waits in
    /// the kernel's queue.
    pub fn take_from_hosts(&mut self) -> usize {
        let mut found = 0;
        self.gate.follow(&self.tables.filters);
        let now = dpdk::tsc();
        let learns = self.learner.is_on().then(Instant::now);
        let pool = self.buffers.largest();
        let Self { tagger, senders, injectors, untagged, .. } = self;
        let mut exits = Exits { tagger, senders, injectors };
        for (&port, link) in &mut self.hosts {
            for _ in 0..room(link).min(HOST_TURN) {
                // First the buffer: a frame that has been read must not be lost.
                let Some(mut packet) = pool.alloc() else { return found };
                let Some(made) = link.interface.take(&mut packet, pool) else { break };
                found += 1;
                self.counters.from_host.add(1);
                if let Err(reason) = made {
                    self.counters.drop_sent(packet, port, reason);
                    continue;
                }
                let (from, frame) = as_of_vlan(exits.tagger, port, packet.data(), untagged);
                self.gate.own(frame, from, now);
                if let Some(now) = learns {
                    let carrier = exits.tagger.carrier(port);
                    self.learner.look(frame, (from, carrier), &self.tables.own, now);
                }
                let is_isolated = link.interface.is_isolated();
                let sent = match &mut link.priority {
                    _ if is_isolated => Err((packet, DropReason::LoopbackSent)),
                    Some(ring) => {
                        ring.push(packet).map_err(|packet| (packet, DropReason::InjectFull))
                    }
                    None => exits.send(port, packet),
                };
                match sent {
                    Ok(()) => self.counters.injected.add(1),
                    Err((packet, reason)) => self.counters.drop_sent(packet, port, reason),
                }
            }
        }
        found
    }

    /// Gives the kernel what the host interfaces have collected for it.
    pub fn flush_hosts(&mut self) {
        let Self { hosts, counters, .. } = self;
        for (&to, link) in hosts {
            link.interface.flush(&mut |packets, result| counters.delivered(packets, to, result));
        }
    }

    /// Waits until the kernel sends something or the doorbell rings, at most so long.
    pub fn wait(&self, longest: Duration) {
        let links = self.hosts.values().filter(|link| room(link) > 0);
        let fds = links.filter_map(|link| link.interface.poll_fd());
        let fds = fds.chain([self.handoff_queue.doorbell.as_fd()]);
        let mut polled: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // An error (a signal) ends the wait early, which harms nothing.
        let _ = ppoll(&mut polled, Some(longest.into()), None);
    }

    /// Returns true if every packet that the kernel may send can be taken.
    pub fn has_room(&self) -> bool {
        self.hosts.values().all(|link| room(link) > 0)
    }
}

/// Returns the interface of a frame that the kernel sends by a host interface, and the frame without the tags of that: one
/// of the kernel's VLAN devices may have tagged it.
fn as_of_vlan<'a>(
    tagger: &Tagger,
    port: InterfaceId,
    frame: &'a [u8],
    room: &'a mut Vec<u8>,
) -> (InterfaceId, &'a [u8]) {
    let Some((vlan, tags)) = tagger.vlan_of(port, frame) else { return (port, frame) };
    let (addresses, rest) = frame.split_at(ADDRESSES_LEN);
    room.clear();
    room.extend_from_slice(addresses);
    room.extend_from_slice(rest.get(tags * TAG_LEN..).unwrap_or_default());
    (vlan, room)
}

/// Packets of the kernel's that are taken now.
fn room(link: &HostLink) -> usize {
    let most = if link.interface.has_large_packets() { LARGE_MOST } else { PRIORITY_SIZE };
    most.saturating_sub(link.priority.as_ref().map_or(0, Producer::len))
}

impl Output<Frame> for Outbox {
    fn forward(&mut self, port: InterfaceId, packet: Frame) {
        if let Some(packet) = packet.into_packet() {
            self.inject(port, packet);
        }
    }

    fn originate(&mut self, port: InterfaceId, frame: &[u8]) {
        // Without a free buffer the packet was never made, so it is not counted as one.
        if let Some(packet) = self.buffers.copy_of(frame) {
            self.counters.originated.add(1);
            self.inject(port, packet);
        }
    }

    fn to_host(&mut self, _: Frame) {
        self.counters.to_host.add(1);
    }

    fn deliver(&mut self, port: InterfaceId, packet: Frame) {
        if let Some(packet) = packet.into_packet() {
            self.give(port, packet);
        }
    }

    fn drop(&mut self, packet: Frame, reason: DropReason) {
        if let Some(packet) = packet.into_packet() {
            self.counters.discard(packet, reason);
        }
    }

    fn hand_over(&mut self, port: InterfaceId, address: IpAddr, waiting: Waiting<Frame>) {
        let handoff = Handoff { to: (port, address), waiting };
        let packets = handoff.packets();
        match self.handoff_queue.send(handoff) {
            Ok(()) => self.counters.handoffs_sent.add(packets),
            Err(handoff) => self.counters.drop_handoff(handoff, DropReason::HandoverFull),
        }
    }

    fn event(&mut self, event: Event) {
        self.events.send(event);
    }

    fn route(&self, vrf: VrfId, destination: IpAddr, flow_hash: u32) -> RouteAnswer {
        let tables = &self.tables;
        let mut next_hop_id = match destination {
            IpAddr::V4(address) => tables.vrf(vrf).fib4.lookup(address),
            IpAddr::V6(address) => tables.vrf(vrf).fib6.lookup(address),
        };
        let mut hop = tables.next_hops.get(next_hop_id);
        if hop.is_group() {
            next_hop_id = tables.next_hops.select(hop, flow_hash);
            hop = tables.next_hops.get(next_hop_id);
        }
        RouteAnswer { next_hop_id, hop: NextHop::from(hop) }
    }

    fn next_hop(&self, id: u16) -> NextHop {
        NextHop::from(self.tables.next_hops.get(id))
    }

    fn punted_to(&self, punt: Punt) -> Option<NextHop> {
        self.tables.next_hops.get_of(punt.next_hop, punt.generation).map(NextHop::from)
    }

    fn replication(
        &mut self,
        pair: (IpAddr, IpAddr),
        arrival: (InterfaceId, u8),
        bytes: usize,
    ) -> Option<Replication> {
        self.tables.multicast.replicate(pair, arrival, bytes)
    }

    fn judge(&mut self, packet: &mut Frame, from: InterfaceId, to: InterfaceId) -> Judgement {
        self.gate.follow(&self.tables.filters);
        let (judgement, mark) = self.gate.outward(packet.bytes(), from, to, dpdk::tsc());
        if let Some(packet) = &mut packet.0 {
            mark.apply_to(packet);
        }
        judgement
    }

    fn judge_copy(&mut self, frame: &mut [u8], from: InterfaceId, to: InterfaceId) -> Judgement {
        self.gate.follow(&self.tables.filters);
        let (judgement, mark) = self.gate.outward(frame, from, to, dpdk::tsc());
        mark.write(frame);
        judgement
    }

    fn time_of_day(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Duration::from_millis((now.as_millis() % MILLIS_OF_DAY) as u64)
    }

    fn has_joined(&mut self, port: InterfaceId, group: MacAddr) -> bool {
        self.host(port).is_some_and(|link| link.interface.has_joined(group))
    }
}
