//! Replication: one multicast packet becomes one packet for each port with receivers.
//!
//! The packets share the bytes after the Ethernet header, which stay in the device's buffer
//! ([`dpdk::Shared`]); each has its own header with its port's address. Ports whose device accepts
//! only packets of one buffer get a copy. A packet with one receiver leaves as it is.
//!
//! Of n packets where one was received, n - 1 count as replicated, so that the sum closes: received +
//! originated + replicated = sent + to host + dropped.

use dpdk::{Mbuf, Mempool, Shared};

use crate::batch::{Batch, ETHERNET};
use crate::bond::Exit;
use crate::copy_filter::CopyFilter;
use crate::counters::ForwarderCounters;
use crate::distribution::Distribution;
use crate::drop_watch::Dropped;
use crate::filters::Mark;
use crate::interface::InterfaceId;
use crate::mask::Mask;
use crate::mirror::Copies;
use crate::outgoing::Outgoing;
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::reason::{DropOrigin, DropReason};
use crate::vlan::Tagger;
use crate::wires::Replicas;

/// The place of the sender's address in an Ethernet header.
const SOURCE: std::ops::Range<usize> = 6..12;

/// The replicator of a forwarder.
pub struct Replicator {
    pool: Mempool,
    /// Ports whose device accepts packets of several buffers.
    by_reference: PortSet,
    macs: [[u8; 6]; MAX_PORTS],
    ready: Outgoing,
}

/// The next stage of replicated packets.
pub(crate) struct Egress<'a> {
    pub(crate) distribution: &'a mut Distribution,
    /// In TSC cycles.
    pub(crate) now: u64,
    pub(crate) counters: &'a ForwarderCounters,
}

impl Replicator {
    /// Makes a replicator without ports that takes buffers from this pool.
    pub fn new(pool: Mempool) -> Self {
        let macs = [[0; 6]; MAX_PORTS];
        Self { pool, by_reference: PortSet::EMPTY, macs, ready: Outgoing::new() }
    }

    /// Sets the settings of a port; `replicas` gets the previous ones.
    pub(crate) fn exchange(&mut self, port: PortId, replicas: &mut Replicas) {
        let by_reference = self.by_reference.contains(port);
        self.by_reference.set(port, replicas.by_reference);
        std::mem::swap(&mut self.macs[port.index()], &mut replicas.mac);
        replicas.by_reference = by_reference;
    }

    /// Ports whose device accepts packets of several buffers.
    pub(crate) fn by_reference(&self) -> PortSet {
        self.by_reference
    }

    /// The pool from which it takes buffers.
    pub(crate) fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Takes the packets of `mask` and sends each by all its [`Batch::receivers`] that the filter
    /// accepts, with the tags of VLANs from the tagger.
    pub(crate) fn accept(
        &mut self,
        batch: &mut Batch,
        mask: Mask,
        (mut filter, tagger): (Option<&mut CopyFilter>, Option<&Tagger>),
        egress: &mut Egress<'_>,
    ) {
        // A step that set receivers refers to these entries.
        if let Some(routes) = batch.groups.take() {
            for slot in mask.slots() {
                let receivers = || routes.receivers(batch.receivers[slot]);
                if let Some(filter) = &mut filter {
                    filter.judge(batch, slot, receivers());
                }
                let Some(packet) = batch.burst.take(slot) else { continue };
                self.replicate(packet, receivers, (filter.as_deref(), tagger), egress);
            }
        }
        egress.send(&mut self.ready);
    }

    fn replicate<I: Iterator<Item = InterfaceId>>(
        &mut self,
        mut packet: Mbuf,
        receivers: impl Fn() -> I,
        (filter, tagger): (Option<&CopyFilter>, Option<&Tagger>),
        egress: &mut Egress<'_>,
    ) {
        let verdict = |to| filter.map_or(Ok(Mark::NONE), |filter| filter.verdict(to));
        let hashes = tagger.map(|tagger| tagger.hashes(packet.data())).unwrap_or_default();
        let exit_of = |to: InterfaceId| match to.port() {
            Some(port) => Some(Exit { port, mac: None }),
            None => tagger?.exit(to, hashes),
        };
        let mut header = [0; ETHERNET];
        header.copy_from_slice(&packet.data()[..ETHERNET]);
        let mut exits = receivers().filter_map(|to| Some((to, exit_of(to)?))).peekable();
        let Some(first) = exits.next() else {
            // A receiver without an exit is on a bond without active ports.
            let reason = match tagger.is_some_and(Tagger::has_bonds) {
                true => DropReason::BondDown,
                false => DropReason::StepLost,
            };
            let to = receivers().next().unwrap_or(InterfaceId::FIRST);
            return egress.drop(reason, to, packet);
        };
        if exits.peek().is_none() {
            match verdict(first.0) {
                Ok(mark) => mark.apply_to(&mut packet),
                Err(reason) => return egress.drop(reason, first.0, packet),
            }
            packet.data_mut()[SOURCE].copy_from_slice(&self.source(first.1));
            return self.send(packet, (first.0, first.1.port), tagger, egress);
        }
        // The bytes are present: steps examine frames with more than an Ethernet header.
        if !packet.adj(ETHERNET) {
            return egress.drop(DropReason::StepLost, first.0, packet);
        }
        let class = packet.traffic_class();
        let shared = Shared::new(packet);
        for (count, (to, exit)) in std::iter::once(first).chain(exits).enumerate() {
            egress.counters.replicated.add(u64::from(count > 0));
            let port = exit.port;
            header[SOURCE].copy_from_slice(&self.source(exit));
            let mark = match verdict(to) {
                Ok(mark) => mark,
                Err(reason) => {
                    egress.lose(reason, to, (&header, &shared));
                    continue;
                }
            };
            // A packet with another DSCP differs from the others after its Ethernet header, too.
            let mut replica = if self.by_reference.contains(port) && mark.dscp.is_none() {
                shared.refer(&header, &self.pool)
            } else {
                shared.copy(&header, &self.pool)
            };
            if let Some(replica) = &mut replica {
                replica.set_traffic_class(class);
                mark.apply_to(replica);
            }
            match replica {
                Some(replica) => self.send(replica, (to, port), tagger, egress),
                None => egress.lose(DropReason::NoBuffer, to, (&header, &shared)),
            }
        }
    }

    /// The source address of frames that leave so.
    fn source(&self, exit: Exit) -> [u8; 6] {
        exit.mac.map_or(self.macs[exit.port.index()], |mac| mac.0)
    }

    /// Sends a packet by an interface of this port.
    fn send(
        &mut self,
        mut packet: Mbuf,
        (to, port): (InterfaceId, PortId),
        tagger: Option<&Tagger>,
        egress: &mut Egress<'_>,
    ) {
        let mut is_tagged = || tagger.is_some_and(|tagger| tagger.insert(to, &mut packet));
        if to.port().is_some() || is_tagged() {
            egress.put(packet, port, &mut self.ready);
        } else {
            egress.drop(DropReason::NoBuffer, to, packet);
        }
    }
}

impl Egress<'_> {
    /// Drops a packet that was to leave by this interface.
    fn drop(&self, reason: DropReason, to: InterfaceId, packet: Mbuf) {
        self.counters.drops.free(&Dropped::sent(DropOrigin::Replicate, reason, to), packet);
    }

    /// Drops a packet to be made of a header and shared bytes.
    fn lose(
        &self,
        reason: DropReason,
        to: InterfaceId,
        (header, shared): (&[u8; ETHERNET], &Shared),
    ) {
        let drop = Dropped::sent(DropOrigin::Replicate, reason, to);
        let chunks = || std::iter::once(&header[..]).chain(shared.chunks());
        self.counters.drops.lose(&drop, chunks);
    }

    /// Sends all packets, and returns their number.
    fn send(&mut self, packets: &mut Outgoing) -> usize {
        let all = Mask(packets.burst.owned());
        if !all.is_empty() {
            let Outgoing { burst, out_interface } = packets;
            self.distribution.accept(burst, all, out_interface, self.now, self.counters);
        }
        all.count() as usize
    }

    /// Adds a packet for a port, and sends all when there is no room for another.
    fn put(&mut self, packet: Mbuf, port: PortId, packets: &mut Outgoing) {
        // Cannot fail: there is room, and a buffer of the pool holds more than 64 bytes.
        if let Err(packet) = packets.add(packet, port) {
            self.drop(DropReason::UnusableBuffer, port.into(), packet);
        }
        if packets.is_full() {
            self.send(packets);
        }
    }

    /// Sends and counts the copies of a batch.
    pub(crate) fn send_copies(&mut self, copies: &mut Copies) {
        let refused = std::mem::take(&mut copies.refused);
        if refused > 0 {
            self.counters.drops.add_unmade(DropReason::NoBuffer, refused);
        }
        let sent = self.send(&mut copies.packets) as u64;
        self.counters.replicated.add(refused + sent);
        self.distribution.send_taps(&mut copies.taps, self.now, self.counters);
    }
}
