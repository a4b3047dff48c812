//! A port's receive and transmit queues: one burst per call.

use std::cell::Cell;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dpdk_sys as sys;
use wire::ethernet::{ETHERNET_LEN, TAG_LEN, payload};

use crate::burst::{BURST_MAX, Burst, PacketList};
use crate::mbuf::{Mbuf, REQUESTS, RawMbuf, TAG};
use crate::port::packet_ring::Watch;
use crate::port::{OpenPort, QueuePlace};
use crate::source::{Source, SourcePackets};

/// A receive queue of a port, which stays started as long as this lives. It can move to another thread, but not
/// be shared.
pub struct RxQueue {
    /// The packets that it presents in place of the device's. Dropped before the port.
    source: Option<Source>,
    port: Arc<OpenPort>,
    queue: u16,
    /// The queue's numbers in DPDK.
    place: QueuePlace,
    unusable: u64,
    /// True if the device reports results about each packet that the packet path uses.
    says_more: bool,
    not_sync: PhantomData<Cell<()>>,
}

/// A transmit queue of a port, which stays started as long as this lives. It can move to another thread, but
/// not be shared.
pub struct TxQueue {
    port: Arc<OpenPort>,
    queue: u16,
    /// The queue's numbers in DPDK.
    place: QueuePlace,
    /// The requests for which a packet must be prepared.
    unusual: u64,
    /// Watch of the ring, if it is an AF_PACKET socket's.
    watch: Option<Watch>,
    unsent: Box<Unsent>,
    not_sync: PhantomData<Cell<()>>,
}

/// Packets that a device cannot send.
#[derive(Debug, Default)]
pub struct Unsent {
    /// Those of [`Sent::refused`].
    pub refused: PacketList,
    /// Those of [`Sent::too_long`].
    pub too_long: PacketList,
}

/// Result of sending a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets that the device took.
    pub packets: usize,
    /// Their bytes, at the time when it took them.
    pub bytes: u64,
    /// Packets that the device cannot send, in [`TxQueue::unsent`]: packets of several segments that it takes
    /// only in one, if no buffer of the port's pool is free or large enough, and packets with a request that it
    /// does not support.
    pub refused: usize,
    /// Packets there that exceed the kernel interface's current MTU.
    pub too_long: usize,
}

impl RxQueue {
    pub(crate) fn new(port: Arc<OpenPort>, queue: u16) -> Self {
        let (says_more, place) = (port.says_more(), port.rx_place(queue));
        Self { port, queue, place, unusable: 0, says_more, source: None, not_sync: PhantomData }
    }

    /// Receives up to `max` packets (at most 64) into an empty burst and returns their number; 0 if the burst
    /// is not empty. A packet that a burst cannot hold (shared, or with less than 64 bytes of buffer) is in
    /// [`Burst::unusable`] and counted by [`RxQueue::unusable`].
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst, max: usize) -> usize {
        let Some(space) = burst.space() else { return 0 };
        let max = max.min(BURST_MAX) as u16;
        // SAFETY: the port is started while we hold it, the queue was set up, and `&mut self` of
        // its only owner calls; at most `max` pointers are written, and the packets are ours.
        let count = unsafe {
            let QueuePlace { device, queue } = self.place;
            sys::rte_eth_rx_burst(device, queue, space.as_mut_ptr().cast(), max)
        };
        if count == 0 {
            return 0;
        }
        // SAFETY: the burst is empty, and the device gave its first `count` entries to us.
        let unusable = unsafe {
            if self.says_more {
                burst.received::<true>(count.into())
            } else {
                burst.received::<false>(count.into())
            }
        };
        self.unusable += unusable as u64;
        if burst.multi_segment() != 0 {
            self.unusable += burst.gather_headers() as u64;
        }
        burst.len()
    }

    /// Presents these packets as received ones from now on, one after the other, over and over. For benchmarks. Returns
    /// false for devices of other drivers than DPDK's null driver, for packets beyond the pool's room, for a queue that
    /// already presents packets, and if DPDK has no memory.
    pub fn present(&mut self, packets: &Arc<SourcePackets>) -> bool {
        if self.source.is_some()
            || self.port.driver() != "net_null"
            || packets.longest() > self.port.pool().data_room()
        {
            return false;
        }
        let QueuePlace { device, queue } = self.place;
        // SAFETY: the null driver's buffers are new ones of the pool, which has room for the packets, and only this
        // queue's owner receives by it.
        self.source = unsafe { Source::start(packets, device, queue) };
        if self.source.is_none() {
            return false;
        }
        self.says_more |= packets.says_more();
        true
    }

    /// Returns true if the device reports results about packets, which bursts have.
    pub fn says_more(&self) -> bool {
        self.says_more
    }

    /// Returns the number of packets that no burst could hold.
    pub fn unusable(&self) -> u64 {
        self.unusable
    }

    /// Returns a descriptor that is readable when packets may be there, or the device has failed; `None`: the
    /// queue must be polled. To be watched between [`RxQueue::arm`] and [`RxQueue::disarm`].
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.rx_interrupts(self.queue).descriptor(self.place.queue)
    }

    /// Makes the device report packets by the queue's descriptor. Earlier packets may not be reported: the
    /// caller receives once more before it blocks.
    pub fn arm(&mut self) {
        self.port.rx_interrupts(self.queue).arm(self.place.device, self.place.queue);
    }

    /// Returns true if the device may fail to report a packet, unlike a socket of the kernel: the caller must
    /// also poll from time to time.
    pub fn may_miss(&self) -> bool {
        self.port.rx_interrupts(self.queue).is_armed(self.place.queue)
    }

    /// Ends [`RxQueue::arm`].
    pub fn disarm(&mut self) {
        self.port.rx_interrupts(self.queue).disarm(self.place.device, self.place.queue);
    }

    /// Returns the number of the queue in its port.
    pub fn index(&self) -> u16 {
        self.queue
    }
}

impl TxQueue {
    /// Leaves requested tags to the device, which does not insert them. For benchmarks of code that requests them.
    #[doc(hidden)]
    pub fn say_inserts(&mut self) {
        self.unusual = REQUESTS;
    }

    pub(crate) fn new(port: Arc<OpenPort>, queue: u16) -> Self {
        let watch = port.packet_ring(queue).map(|_| Watch::new());
        let place = port.tx_place(queue);
        let unusual = if port.inserts_tags() { REQUESTS } else { REQUESTS | TAG };
        let unsent = Box::default();
        Self { port, queue, place, unusual, watch, unsent, not_sync: PhantomData }
    }

    /// Returns the packets of the last call of [`TxQueue::send`] that the device cannot send. Packets that are not
    /// taken are freed later.
    pub fn unsent(&mut self) -> &mut Unsent {
        &mut self.unsent
    }

    /// Makes the device continue with packets that it has taken and not sent. To be called from time to time,
    /// with packets or without: an AF_PACKET socket stops at a packet that its interface drops.
    #[inline]
    pub fn poll(&mut self) {
        if let Some(watch) = &mut self.watch
            && let Some(ring) = self.port.packet_ring(self.queue)
        {
            // SAFETY: the port is open while we hold it, and `&mut self` of the queue's only owner calls.
            unsafe { watch.poll(ring) };
        }
    }

    /// Returns true if [`TxQueue::poll`] has work, so that its caller must not block.
    pub fn needs_poll(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_stuck)
    }

    /// Sends up to `max` packets from the front of the list. Packets that the device does not take stay in the
    /// list, in order.
    #[inline]
    pub fn send(&mut self, list: &mut PacketList, max: usize) -> Sent {
        let count = list.len().min(max);
        if count == 0 {
            return Sent::default();
        }
        let (mut bytes, mut longest, mut segments, mut flags) = (0, 0, 0, 0);
        for packet in &list.as_slice()[..count] {
            // SAFETY: the packets are the list's.
            unsafe {
                let length = packet.pkt_len();
                bytes += u64::from(length);
                longest = length.max(longest);
                segments |= packet.segments();
                flags |= packet.flags();
            }
        }
        if flags & TAG != 0 {
            // SAFETY: as above.
            let has_tag = |packet: &&RawMbuf| unsafe { packet.requested_tag().is_some() };
            bytes += (list.as_slice()[..count].iter().filter(has_tag).count() * TAG_LEN) as u64;
        }
        if flags & self.unusual != 0
            || longest > self.port.longest()
            || segments > 1 && !self.port.supports_multi_segment()
        {
            return self.send_unusual(list, max);
        }
        self.transmit(list, count, bytes)
    }

    /// Passes the first `count` packets of a list, with this many bytes, to the device.
    #[inline(always)]
    fn transmit(&mut self, list: &mut PacketList, count: usize, mut bytes: u64) -> Sent {
        let packets = list.as_mut_slice();
        // SAFETY: the port is started while we hold it, the queue was set up, and `&mut self` of its only owner
        // calls; the list drops the packets that the device takes.
        let taken = usize::from(unsafe {
            let table = packets.as_mut_ptr().cast();
            let QueuePlace { device, queue } = self.place;
            sys::rte_eth_tx_burst(device, queue, table, count as u16)
        });
        for packet in &packets[taken..count] {
            // SAFETY: packets that the device has not taken are still the list's.
            bytes -= u64::from(unsafe { packet.wire_len() });
        }
        list.forget_front(taken);
        if let Some(watch) = &mut self.watch
            && let Some(ring) = self.port.packet_ring(self.queue)
        {
            // SAFETY: as in `poll`. The driver has written a frame for each packet that it took: none is
            // longer than one (`OpenPort::longest`).
            unsafe { watch.sent(ring, taken) };
        }
        Sent { packets: taken, bytes, ..Sent::default() }
    }

    /// Returns true if the device takes packets of several segments.
    pub fn supports_multi_segment(&self) -> bool {
        self.port.supports_multi_segment()
    }

    /// Sends a list with packets that must be prepared for the device.
    #[cold]
    fn send_unusual(&mut self, list: &mut PacketList, max: usize) -> Sent {
        let longest = self.port.longest();
        let Unsent { too_long, refused } = &mut *self.unsent;
        // A list has room for what another one has, once it is empty.
        too_long.free_tail(0);
        refused.free_tail(0);
        list.rework(|packet| match is_longer(&packet, longest) {
            true => too_long.push(packet).err(),
            false => Some(packet),
        });
        list.rework(|packet| match ready(&self.port, self.place, packet) {
            Ok(packet) => Some(packet),
            Err(packet) => refused.push(packet).err(),
        });
        let (too_long, refused) = (too_long.len(), refused.len());
        let count = list.len().min(max);
        // SAFETY: the packets are the list's.
        let bytes =
            list.as_slice()[..count].iter().map(|p| u64::from(unsafe { p.wire_len() })).sum();
        let sent = if count > 0 { self.transmit(list, count, bytes) } else { Sent::default() };
        Sent { refused, too_long, ..sent }
    }

    /// Returns the number of the queue in its port.
    pub fn index(&self) -> u16 {
        self.queue
    }
}

/// Prepares a packet for the device of a queue, whose only owner calls; returns the packet if that is impossible.
fn ready(port: &OpenPort, place: QueuePlace, packet: Mbuf) -> Result<Mbuf, Mbuf> {
    // Drivers that take one segment read the packet's whole length from it.
    let mut packet = if packet.segments() > 1 && !port.supports_multi_segment() {
        port.pool().linear_copy_of(&packet).ok_or(packet)?
    } else {
        packet
    };
    if !port.inserts_tags() && !packet.fulfil_tag() {
        return Err(packet);
    }
    if !packet.has_request() {
        return Ok(packet);
    }
    if !packet.fulfil(port.tx_offloads()) {
        return Err(packet);
    }
    let mut table = [packet.raw()];
    // SAFETY: the port is started, the queue was set up, and its only owner calls; the packet is ours
    // before and after the call.
    let prepared = unsafe {
        let QueuePlace { device, queue } = place;
        sys::rte_eth_tx_prepare(device, queue, table.as_mut_ptr().cast(), 1)
    };
    if prepared == 1 { Ok(packet) } else { Err(packet) }
}

/// Returns true if a frame has more bytes than `longest`, up to two VLAN tags not counted.
fn is_longer(frame: &Mbuf, longest: u32) -> bool {
    let excess = (frame.len() as u32).saturating_sub(longest) as usize;
    let tags = || payload(frame.data()).map_or(0, |(_, start)| start - ETHERNET_LEN);
    excess > 0 && excess > tags()
}
