//! A batch: up to 64 packets received together on one port, and the results of steps for them.
//!
//! A batch is never split or copied. Steps assign its packets to outputs by masks. The results of a
//! step for a packet (its next hop, its egress port) are in arrays beside the packets, indexed by
//! the packet's slot, so that a step touches only the arrays that it needs.
//!
//! Slots without a packet can be read and written like the others (they refer to a scratch buffer),
//! so a step may run over all slots of a mask without a check in its loop.

use std::sync::Arc;

use dpdk::{Burst, Mbuf};
use wire::ethernet::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EthernetHeader};
use wire::ip::{Ipv4Header, Ipv6Header};

use crate::category::Categories;
use crate::counters::DropsByOrigin;
use crate::drop_watch::Dropped;
use crate::head;
pub use crate::head::{ETHERNET, HEAD};
use crate::interface::{InterfaceId, InterfaceInfo, VrfId};
pub use crate::mask::BATCH_MAX;
use crate::mask::Mask;
use crate::mirror::Copies;
use crate::multicast::{MulticastRoutes, MulticastTable, Receivers};
use crate::next_hop::{NO_ROUTE, NextHop, Packed};
use crate::port::{MAX_PORTS, PortId, PortSet};
use crate::reason::{DropOrigin, DropReason};
use crate::steering::Steering;
use crate::tap::Taps;

/// The egress interfaces of a batch whose packets are treated together.
const TOGETHER: usize = 8;

/// Up to 64 packets of one port on their path through the graph.
pub struct Batch {
    /// The packets. Only the forwarder fills and empties it; steps use the methods below.
    pub(crate) burst: Burst,
    /// The port on which all packets of the batch were received.
    pub in_port: PortId,
    /// The interface that received all packets except those in [`Self::elsewhere`]: the port's own, unless
    /// [`Self::upper`] is set.
    pub own: InterfaceInfo,
    /// The interface that receives the port's packets in place of the port's own.
    upper: Option<InterfaceId>,
    /// Packets received on another interface than that.
    elsewhere: Mask,
    /// The numbers of their interfaces, by slot; undefined for other packets.
    in_interface: [InterfaceId; BATCH_MAX],
    /// Frames with a VLAN tag that a step has removed.
    pub(crate) untagged: Mask,
    /// The outer ones of these tags as they stood in the frames, by slot; undefined for other frames.
    tags: [[u8; 4]; BATCH_MAX],
    /// Facts about all interfaces, by number.
    pub(crate) interfaces: Vec<InterfaceInfo>,
    /// Packets whose frame has a multicast or broadcast destination MAC; set by `classify`.
    pub link_multicast: Mask,
    /// IPv4 packets with options, and IPv6 packets with a hop-by-hop header; set by the validating
    /// steps. Lookups punt them to the slow path; earlier steps treat them like other packets.
    pub options: Mask,
    /// IPv6 packets whose source must not leave its link; set by `ip6-validate`.
    pub link_scope: Mask,
    /// The number of each packet's next hop; set by the lookups.
    pub next_hop: [u16; BATCH_MAX],
    /// The meaning of that number; set by the lookups.
    pub hop: [Packed; BATCH_MAX],
    /// The number of each packet's egress interface; set by the lookups.
    pub out_interface: [u16; BATCH_MAX],
    /// The egress interfaces of each multicast packet; set by the multicast steps.
    pub receivers: [Receivers; BATCH_MAX],
    /// The entries to which [`Self::receivers`] refers, once a step has read them.
    pub(crate) groups: Option<Arc<MulticastRoutes>>,
    /// The time of reception, in TSC cycles.
    pub now: u64,
    /// Marks set by steps of the configuration for later steps.
    pub marks: Marks,
    /// The packets that filters assigned to categories.
    pub categories: Categories,
    /// The packets whose route is overridden by filters.
    pub steering: Steering,
    /// Copies for other ports; none outside a forwarder.
    pub(crate) copies: Option<Copies>,
    /// Packets that a step has emitted, and how often each has been held.
    emitted: Mask,
    passes: [u8; BATCH_MAX],
    /// The queue that `to-queue` has selected for each packet; 0 again once `schedule` has it.
    pub(crate) queue: [u8; BATCH_MAX],
    /// The ports that have enough packets to send; of batches that a step emits.
    pub(crate) full: PortSet,
}

/// A packet out of its batch, with what later steps know of it.
pub struct Held {
    pub(crate) packet: Mbuf,
    /// The number of times that it has been held, at least 1.
    pub(crate) passes: u8,
    /// The time at which it left its batch, in TSC cycles.
    pub(crate) since: u64,
    /// The port that received it.
    port: Option<PortId>,
    interface: InterfaceId,
    mark: Option<u32>,
    link_multicast: bool,
}

impl Held {
    /// The interface that received it.
    pub(crate) fn interface(&self) -> InterfaceId {
        self.interface
    }

    /// A packet that nothing is known of.
    pub fn new(packet: Mbuf) -> Self {
        let interface = InterfaceId::FIRST;
        Self {
            packet,
            passes: 1,
            since: 0,
            port: None,
            interface,
            mark: None,
            link_multicast: false,
        }
    }
}

/// Packets of a batch received on the same interface.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The interface.
    pub interface: InterfaceId,
    /// Facts about it.
    pub info: InterfaceInfo,
    /// The packets.
    pub packets: Mask,
}

/// A number for each marked packet of a batch. Steps in Lua read this layout.
#[repr(C)]
pub struct Marks {
    /// The marked packets.
    pub marked: Mask,
    /// The numbers, by slot; undefined for other packets.
    pub values: [u32; BATCH_MAX],
}

impl Batch {
    /// Creates an empty batch.
    pub fn new(in_port: PortId, own: InterfaceInfo) -> Self {
        Self {
            burst: Burst::new(),
            in_port,
            own,
            upper: None,
            elsewhere: Mask::EMPTY,
            in_interface: [InterfaceId::FIRST; BATCH_MAX],
            untagged: Mask::EMPTY,
            tags: [[0; 4]; BATCH_MAX],
            interfaces: Vec::new(),
            link_multicast: Mask::EMPTY,
            options: Mask::EMPTY,
            link_scope: Mask::EMPTY,
            next_hop: [NO_ROUTE; BATCH_MAX],
            hop: [Packed::from(NextHop::NoRoute); BATCH_MAX],
            out_interface: [0; BATCH_MAX],
            receivers: [Receivers::NONE; BATCH_MAX],
            groups: None,
            now: 0,
            marks: Marks { marked: Mask::EMPTY, values: [0; BATCH_MAX] },
            categories: Categories::NONE,
            steering: Steering::NONE,
            copies: None,
            emitted: Mask::EMPTY,
            passes: [0; BATCH_MAX],
            queue: [0; BATCH_MAX],
            full: PortSet::EMPTY,
        }
    }

    /// Begins a batch of packets that come by a port, at `now` in TSC cycles.
    #[inline(always)]
    pub(crate) fn begin(&mut self, (port, own): (PortId, InterfaceInfo), now: u64) {
        self.come_by(port, own);
        self.link_multicast = Mask::EMPTY;
        self.link_scope = Mask::EMPTY;
        self.marks.marked = Mask::EMPTY;
        self.now = now;
    }

    /// Begins a batch of packets that a step emits, at `now` in TSC cycles.
    pub(crate) fn begin_emitted(&mut self, now: u64) {
        self.begin((PortId::FIRST, InterfaceInfo::NONE), now);
    }

    /// Ends a batch of packets that a step emits.
    pub(crate) fn end(&mut self) {
        self.emitted = Mask::EMPTY;
    }

    /// Returns the number of times that the packet in a slot has been held.
    pub(crate) fn passes(&self, slot: usize) -> u8 {
        if self.emitted.has(slot) { self.passes[slot & (BATCH_MAX - 1)] } else { 0 }
    }

    /// Takes a packet out of the batch, to be put into a later one; `None` for a slot without one.
    pub fn take(&mut self, slot: usize) -> Option<Held> {
        self.facts(slot, None)
    }

    /// Copies a packet, to be put into a later batch; `None` without a buffer, and for a slot without one.
    pub fn copy(&mut self, slot: usize) -> Option<Held> {
        let copy = self.burst.copy(slot, self.copies.as_ref()?.pool())?;
        self.facts(slot, Some(copy))
    }

    /// Copies what is known of a packet to another one, or to itself.
    fn facts(&mut self, slot: usize, packet: Option<Mbuf>) -> Option<Held> {
        let slot = slot & (BATCH_MAX - 1);
        let (interface, mark) = (self.interface(slot), self.marks.values[slot]);
        let mark = self.marks.marked.has(slot).then_some(mark);
        let passes = self.passes(slot).saturating_add(1);
        let packet = match packet {
            Some(packet) => packet,
            None => {
                if let Some(copies) = &mut self.copies {
                    // The packet has no other owner from here on.
                    copies.taps.separate(Mask::when(true, slot));
                }
                self.burst.take(slot)?
            }
        };
        Some(Held {
            packet,
            passes,
            since: self.now,
            port: Some(self.in_port),
            interface,
            mark,
            link_multicast: self.link_multicast.has(slot),
        })
    }

    /// Returns true unless the batch has packets of another port than this one's.
    pub fn admits(&self, held: &Held) -> bool {
        self.burst.is_empty() || held.port.is_none_or(|port| port == self.in_port)
    }

    /// Puts a packet into a free slot; returns the slot, or the packet if there is none, or if the batch does not admit
    /// it.
    pub fn put(&mut self, held: Held) -> Result<usize, Held> {
        if !self.admits(&held) {
            return Err(held);
        }
        if let Some(port) = held.port.filter(|_| self.burst.is_empty()) {
            let own = self.interfaces.get(port.index()).copied();
            self.come_by(port, own.unwrap_or(InterfaceInfo::NONE));
        }
        let Held { packet, passes, since, port, interface, mark, link_multicast } = held;
        let back = |packet| Held { packet, passes, since, port, interface, mark, link_multicast };
        let slot = self.burst.put(packet).map_err(back)?;
        self.set_interface(slot, interface);
        self.emitted |= Mask::when(true, slot);
        self.passes[slot] = passes;
        self.link_multicast |= Mask::when(link_multicast, slot);
        if let Some(mark) = mark {
            self.marks.marked |= Mask::when(true, slot);
            self.marks.values[slot] = mark;
        }
        Ok(slot)
    }

    /// Begins a batch of packets of another port, none of which is elsewhere.
    #[inline(always)]
    pub(crate) fn come_by(&mut self, port: PortId, own: InterfaceInfo) {
        self.in_port = port;
        self.own = own;
        self.upper = None;
        self.elsewhere = Mask::EMPTY;
        self.untagged = Mask::EMPTY;
        // Entries looked up for another batch may be outdated.
        self.groups = None;
        self.categories.clear();
        self.steering.clear();
    }

    /// Assigns all packets to another interface than the port's own, as seen by later steps.
    #[inline(always)]
    pub(crate) fn receive_on(&mut self, interface: InterfaceId) {
        self.own = self.info_of(interface);
        self.upper = Some(interface);
    }

    /// The interface of packets that no step has assigned to another one.
    #[inline(always)]
    fn usual(&self) -> InterfaceId {
        self.upper.unwrap_or(InterfaceId::of_port(self.in_port))
    }

    /// Assigns these packets to another interface than their port's own, as seen by later steps. All packets of the
    /// batch, the usual case, remain one group that costs later steps nothing.
    #[inline(always)]
    pub(crate) fn set_interface_of(&mut self, packets: Mask, interface: InterfaceId) {
        if packets == self.packets() {
            self.elsewhere = Mask::EMPTY;
            let InterfaceInfo { mac, partial_checksums, .. } = self.own;
            self.receive_on(interface);
            // Facts about what carries the frames, which counts for single packets too.
            self.own = InterfaceInfo { mac, partial_checksums, ..self.own };
            return;
        }
        for slot in packets.slots() {
            self.in_interface[slot] = interface;
        }
        self.elsewhere |= packets;
    }

    /// Assigns a packet to another interface than its port's own, as seen by later steps.
    #[inline(always)]
    pub fn set_interface(&mut self, slot: usize, interface: InterfaceId) {
        let slot = slot & (BATCH_MAX - 1);
        self.in_interface[slot] = interface;
        self.elsewhere |= Mask::when(true, slot);
    }

    /// Returns the bytes of a frame where its outer VLAN tag is, if it has one, and an inner one.
    #[inline(always)]
    pub(crate) fn tag_bytes(&self, slot: usize) -> [u8; 8] {
        head::bytes::<12, 8>(self.head(slot))
    }

    /// Keeps the outer VLAN tag of a frame, which may be removed, for [`Self::priority`]; it counts once the frame is in
    /// [`Self::untagged`].
    #[inline(always)]
    pub(crate) fn keep_tag(&mut self, slot: usize) {
        self.tags[slot & (BATCH_MAX - 1)] = head::bytes::<12, 4>(self.head(slot));
    }

    /// [`Self::keep_tag`] for each of these frames. `same`: their outer tags are the same, priority included.
    #[inline(always)]
    pub(crate) fn keep_tags(&mut self, frames: Mask, same: bool) {
        if same && frames == self.packets() {
            let first = frames.slots().next().unwrap_or(0);
            self.tags = [head::bytes::<12, 4>(self.head(first)); BATCH_MAX];
            return;
        }
        frames.for_each(|slot| self.keep_tag(slot));
    }

    /// Returns the priority code point of a frame's outer VLAN tag, removed by a step or by the device; 0 without
    /// one.
    pub(crate) fn priority(&self, slot: usize) -> u8 {
        if self.untagged.has(slot) {
            return self.tags[slot & (BATCH_MAX - 1)][2] >> 5;
        }
        self.burst.stripped_priority(slot)
    }

    /// Returns the ingress interface of a packet.
    #[inline(always)]
    pub fn interface(&self, slot: usize) -> InterfaceId {
        if self.elsewhere.has(slot) {
            return self.in_interface[slot & (BATCH_MAX - 1)];
        }
        self.usual()
    }

    /// Returns the facts about a packet's ingress interface.
    #[inline(always)]
    pub fn info(&self, slot: usize) -> InterfaceInfo {
        if self.elsewhere.has(slot) {
            return self.info_of(self.in_interface[slot & (BATCH_MAX - 1)]);
        }
        self.own
    }

    fn info_of(&self, interface: InterfaceId) -> InterfaceInfo {
        self.interfaces.get(interface.index()).copied().unwrap_or(InterfaceInfo::NONE)
    }

    /// Groups these packets by ingress interface: one group in the usual case.
    #[inline(always)]
    pub fn by_interface(&self, packets: Mask) -> impl Iterator<Item = Group> {
        let mut rest = packets;
        std::iter::from_fn(move || {
            let group = self.first_group(rest)?;
            rest = rest.without(group.packets);
            Some(group)
        })
    }

    /// Returns the packets of `packets` with the first one's ingress interface, for steps that
    /// change the batch between two groups; `None` if there is no packet.
    #[inline(always)]
    pub fn first_group(&self, packets: Mask) -> Option<Group> {
        let usual = packets.without(self.elsewhere);
        if usual.is_empty() {
            return self.group_elsewhere(packets);
        }
        Some(Group { interface: self.usual(), info: self.own, packets: usual })
    }

    fn group_elsewhere(&self, packets: Mask) -> Option<Group> {
        let interface = self.in_interface[packets.slots().next()?];
        let info = self.info_of(interface);
        let packets = packets.filter(|slot| self.in_interface[slot] == interface);
        Some(Group { interface, info, packets })
    }

    /// Like [`Self::first_group`], for packets whose destinations are looked up in the same VRF.
    #[inline(always)]
    pub fn first_of_vrf(&self, packets: Mask) -> Option<(VrfId, Mask)> {
        if (packets & self.elsewhere).is_empty() {
            return (!packets.is_empty()).then_some((self.own.vrf, packets));
        }
        self.first_of_several_vrfs(packets)
    }

    #[cold]
    fn first_of_several_vrfs(&self, packets: Mask) -> Option<(VrfId, Mask)> {
        let Group { info: InterfaceInfo { vrf, .. }, packets: mut found, .. } =
            self.first_group(packets)?;
        for group in self.by_interface(packets.without(found)) {
            if group.info.vrf == vrf {
                found |= group.packets;
            }
        }
        Some((vrf, found))
    }

    /// Returns the multicast routes of this batch: the same for all its steps, even if others are
    /// published meanwhile.
    pub(crate) fn multicast_routes(&mut self, table: &MulticastTable) -> Arc<MulticastRoutes> {
        self.groups.get_or_insert_with(|| table.read()).clone()
    }

    /// Returns the slots with a packet.
    #[inline(always)]
    pub fn packets(&self) -> Mask {
        Mask(self.burst.owned())
    }

    /// Returns the first [`HEAD`] bytes of the packet's buffer. Bytes past [`Batch::len`] are not
    /// part of the packet: compare lengths before using them.
    #[inline(always)]
    pub fn head(&self, slot: usize) -> &[u8; HEAD] {
        self.burst.head(slot)
    }

    /// Returns those of these packets whose frame is untagged IPv4, IPv6, and neither.
    #[inline(always)]
    pub(crate) fn by_family(&self, packets: Mask) -> [Mask; 3] {
        let [ip4, ip6] = packets.sort(|slot| {
            let ethertype = self.ethernet(slot).ethertype.get();
            [ethertype == ETHERTYPE_IPV4, ethertype == ETHERTYPE_IPV6]
        });
        [ip4, ip6, packets.without(ip4 | ip6)]
    }

    /// Drops packets outside the graph's steps; returns their number.
    pub(crate) fn discard(
        &mut self,
        packets: Mask,
        (origin, reason): (DropOrigin, DropReason),
        drops: &DropsByOrigin,
    ) -> usize {
        if drops.watch.is_on() {
            for slot in (packets & self.packets()).slots() {
                let drop = Dropped::received(origin, reason, self.interface(slot));
                drops.watch.see(&drop, || self.burst.chunks(slot));
            }
        }
        let freed = self.burst.free(packets.0);
        drops.count((origin, reason), freed);
        freed
    }

    /// Returns the Ethernet header. As for [`Batch::head`], bytes past the packet's end are not
    /// part of the packet.
    #[inline(always)]
    pub fn ethernet(&self, slot: usize) -> &EthernetHeader {
        head::ethernet(self.head(slot))
    }

    /// Returns the bytes after the Ethernet header of an untagged frame as an IPv4 header;
    /// likewise.
    #[inline(always)]
    pub fn ip4(&self, slot: usize) -> &Ipv4Header {
        head::ip4(self.head(slot))
    }

    /// Returns the bytes after the Ethernet header of an untagged frame as an IPv6 header;
    /// likewise.
    #[inline(always)]
    pub fn ip6(&self, slot: usize) -> &Ipv6Header {
        head::ip6(self.head(slot))
    }

    /// Like [`Batch::head`], for writing.
    #[inline(always)]
    pub fn head_mut(&mut self, slot: usize) -> &mut [u8; HEAD] {
        self.burst.head_mut(slot)
    }

    /// Returns the frame, Ethernet header first. For a frame in several buffers (see
    /// [`Batch::multi_segment`]), returns its part in the first buffer, which contains all headers.
    #[inline(always)]
    pub fn frame(&self, slot: usize) -> &[u8] {
        self.burst.frame(slot)
    }

    /// Like [`Batch::frame`], for writing.
    #[inline(always)]
    pub fn frame_mut(&mut self, slot: usize) -> &mut [u8] {
        self.burst.frame_mut(slot)
    }

    /// Like [`Batch::frame_mut`], with the contents of the other buffers, for reading.
    #[inline(always)]
    pub fn frame_and_rest(&mut self, slot: usize) -> (&mut [u8], impl Iterator<Item = &[u8]>) {
        self.burst.frame_and_rest(slot)
    }

    /// The whole frame's length in bytes, without FCS; 0 for a slot without packet.
    #[inline(always)]
    pub fn len(&self, slot: usize) -> usize {
        usize::from(self.burst.lens()[slot & (BATCH_MAX - 1)])
    }

    /// True if no slot holds a packet.
    pub fn is_empty(&self) -> bool {
        self.packets().is_empty()
    }

    /// The frames' lengths by slot.
    #[inline(always)]
    pub fn lens(&self) -> &[u16; BATCH_MAX] {
        self.burst.lens()
    }

    /// Packets that the device delivered in several buffers.
    #[inline(always)]
    pub fn multi_segment(&self) -> Mask {
        Mask(self.burst.multi_segment())
    }

    /// Packets whose IPv4 header checksum the device verified; none on a port whose device does not
    /// verify.
    #[inline(always)]
    pub fn checksum_good(&self) -> Mask {
        Mask(self.burst.checksum_good())
    }

    /// Packets whose IPv4 header checksum is wrong according to the device.
    #[inline(always)]
    pub fn checksum_bad(&self) -> Mask {
        Mask(self.burst.checksum_bad())
    }

    /// Packets from which the device removed a VLAN tag.
    #[inline(always)]
    pub fn vlan_stripped(&self) -> Mask {
        Mask(self.burst.vlan_stripped())
    }

    /// The control information of the tag that the device stripped, see [`Burst::stripped_tag`].
    #[inline(always)]
    pub(crate) fn stripped_tag(&self, slot: usize) -> Option<u16> {
        self.burst.stripped_tag(slot)
    }

    /// The bits in which the control information of tags that the device stripped differs from this one, see
    /// [`Burst::stripped_difference`].
    #[inline(always)]
    pub(crate) fn stripped_difference(&self, frames: Mask, control: u16) -> u16 {
        self.burst.stripped_difference(frames.0, control)
    }

    /// Regards frames from which the device stripped a tag as untagged.
    #[inline(always)]
    pub(crate) fn forget_stripped(&mut self, frames: Mask) {
        self.burst.forget_stripped(frames.0);
    }

    /// Removes one or two VLAN tags from a frame; returns true on success, see [`Burst::remove_tags`].
    #[inline(always)]
    pub(crate) fn remove_tags(&mut self, slot: usize, tags: usize) -> bool {
        self.burst.remove_tags(slot, tags)
    }

    /// Removes one or two VLAN tags from each of these frames; returns those for which it succeeded.
    #[inline(always)]
    pub(crate) fn remove_tags_of(&mut self, frames: Mask, tags: usize) -> Mask {
        let removed = Mask(self.burst.remove_tags_of(frames.0, tags));
        self.untagged |= removed;
        removed
    }

    /// Returns those of these packets that have so many bytes or more.
    #[inline(always)]
    pub(crate) fn at_least(&self, packets: Mask, len: usize) -> Mask {
        Mask(self.burst.at_least(packets.0, len as u16))
    }

    /// The bytes of these frames together.
    #[inline(always)]
    pub(crate) fn bytes_of(&self, frames: Mask) -> u64 {
        let lens = self.lens();
        match frames.as_first() {
            Some(count) => lens[..count].iter().map(|&len| u64::from(len)).sum(),
            None => frames.slots().map(|slot| u64::from(lens[slot])).sum(),
        }
    }

    /// Inserts one or two VLAN tags into a frame; returns true on success, see [`Burst::insert_tags`].
    #[inline(always)]
    pub(crate) fn insert_tags<const N: usize>(&mut self, slot: usize, tags: [u8; N]) -> bool {
        self.burst.insert_tags(slot, tags)
    }

    /// Inserts one or two VLAN tags into each of these frames, which leave by another interface then. Returns those for
    /// which it failed, and the former bytes of the others together.
    #[inline(always)]
    pub(crate) fn send_tagged<const N: usize>(
        &mut self,
        frames: Mask,
        tags: [u8; N],
        by: InterfaceId,
    ) -> (Mask, u64) {
        let Self { burst, out_interface, .. } = self;
        let mut bytes = 0;
        let refused = burst.insert_tags_of(frames.0, tags, |slot, len| {
            out_interface[slot] = by.index() as u16;
            bytes += u64::from(len);
        });
        (Mask(refused), bytes)
    }

    /// Leaves it to the device to insert a customer tag into each of these frames, which leave by another interface then.
    /// Results as of [`Self::send_tagged`].
    #[inline(always)]
    pub(crate) fn request_tagged(
        &mut self,
        frames: Mask,
        control: u16,
        by: InterfaceId,
    ) -> (Mask, u64) {
        let Self { burst, out_interface, .. } = self;
        let mut bytes = 0;
        burst.request_tags_of(frames.0, control, |slot, len| {
            out_interface[slot] = by.index() as u16;
            bytes += u64::from(len);
        });
        (Mask::EMPTY, bytes)
    }

    /// Returns the egress interface of the first of these packets, and all of them that leave by it. Vectors of
    /// interfaces are compared, so that a few groups cost less than a look at each packet.
    #[inline(always)]
    pub(crate) fn first_egress(&self, packets: Mask) -> Option<(u16, Mask)> {
        let interface = self.out_interface[packets.slots().next()?];
        Some((interface, packets & self.leaving_by(interface)))
    }

    /// Returns the slots whose packets, if any, leave by an interface.
    #[inline(always)]
    fn leaving_by(&self, interface: u16) -> Mask {
        Mask::of_bytes(&self.out_interface.map(|of| u8::from(of == interface)))
    }

    /// Calls `treat` for packets that leave by interfaces other than ports' own: with those of one interface together,
    /// as long as there are few interfaces, else with each packet. Returns the sum of its results.
    #[inline(always)]
    pub(crate) fn by_virtual_egress(
        &mut self,
        packets: Mask,
        treat: impl Fn(&mut Self, Mask, u16) -> Mask,
    ) -> Mask {
        let (mut found, mut rest) = (Mask::EMPTY, packets);
        for _ in 0..TOGETHER {
            let Some((interface, of_it)) = self.first_egress(rest) else { return found };
            rest = rest.without(of_it);
            if usize::from(interface) >= MAX_PORTS {
                found |= treat(self, of_it, interface);
            }
        }
        if rest.is_empty() { found } else { found | self.by_virtual_egress_each(rest, treat) }
    }

    /// [`Self::by_virtual_egress`], packet by packet.
    #[inline(never)]
    fn by_virtual_egress_each(
        &mut self,
        packets: Mask,
        treat: impl Fn(&mut Self, Mask, u16) -> Mask,
    ) -> Mask {
        let mut found = Mask::EMPTY;
        for slot in packets.slots() {
            let interface = self.out_interface[slot];
            if usize::from(interface) >= MAX_PORTS {
                found |= treat(self, Mask::when(true, slot), interface);
            }
        }
        found
    }

    /// Removes bytes at a frame's beginning; returns true on success, see [`Burst::strip`].
    #[inline(always)]
    pub fn strip(&mut self, slot: usize, count: u16) -> bool {
        self.burst.strip(slot, count)
    }

    /// Puts bytes of undefined content in front of a frame; returns true on success, see [`Burst::unstrip`].
    #[inline(always)]
    pub fn unstrip(&mut self, slot: usize, count: u16) -> bool {
        self.burst.unstrip(slot, count)
    }

    /// Returns the addresses of the slots' bytes and lengths, see [`Burst::addresses`].
    #[inline]
    pub fn addresses(&mut self) -> (*const *mut u8, *const u16, *const u16) {
        self.burst.addresses()
    }

    /// Sends a copy of each of these packets by the port, in their present state, regardless of
    /// their further treatment.
    pub fn mirror(&mut self, slots: Mask, port: PortId) {
        if let Some(copies) = &mut self.copies {
            for slot in (slots & Mask(self.burst.owned())).slots() {
                let (frame, rest) = self.burst.frame_and_rest(slot);
                copies.add(frame, rest, port);
            }
        }
    }

    /// Returns the packets, and the maker of copies for mirror sessions; `None` outside a forwarder.
    #[inline(always)]
    pub(crate) fn burst_and_taps(&mut self) -> Option<(&mut Burst, &mut Taps)> {
        Some((&mut self.burst, &mut self.copies.as_mut()?.taps))
    }

    /// Cuts the frame to `len` bytes; a longer `len` than the frame's changes nothing.
    #[inline]
    pub fn trim(&mut self, slot: usize, len: usize) {
        if len < self.len(slot) {
            self.burst.trim(slot, len as u16);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, batch_of};

    /// Eight packets of port 0; 1 and 4 were received on interface 70, 6 on 71, which is in VRF 1,
    /// and 7 on an unknown one.
    fn mixed() -> Batch {
        let mut batch = batch_of(&vec![FrameBuilder::ip4().build(); 8]);
        let info = InterfaceInfo { vrf: VrfId::DEFAULT, mtu: 70, ..InterfaceInfo::NONE };
        batch.interfaces = vec![InterfaceInfo::NONE; 72];
        batch.interfaces[70] = info;
        batch.interfaces[71] = InterfaceInfo { vrf: VrfId::new(1), mtu: 71, ..info };
        for (slot, interface) in [(1, 70), (4, 70), (6, 71), (7, 99)] {
            batch.set_interface(slot, InterfaceId::new(interface).unwrap());
        }
        batch
    }

    #[test]
    fn packets_of_the_port_s_own_interface_are_one_group() {
        let batch = batch_of(&vec![FrameBuilder::ip4().build(); 3]);
        let groups: Vec<_> = batch.by_interface(Mask(0b101)).collect();
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].interface, groups[0].packets), (InterfaceId::FIRST, Mask(0b101)));
        assert!(batch.by_interface(Mask::EMPTY).next().is_none());
    }

    #[test]
    fn packets_are_grouped_by_the_interfaces_they_came_by() {
        let batch = mixed();
        let groups = |packets| -> Vec<_> {
            let group = |group: Group| (group.interface.index(), group.info.mtu, group.packets.0);
            batch.by_interface(Mask(packets)).map(group).collect()
        };
        assert_eq!(
            groups(0xff),
            [
                (0, 1500, 0b0010_1101),
                (70, 70, 0b0001_0010),
                (71, 71, 0b0100_0000),
                (99, u16::MAX, 0b1000_0000)
            ]
        );
        assert_eq!(groups(0b0101_0000), [(70, 70, 0b0001_0000), (71, 71, 0b0100_0000)]);
        assert_eq!([0, 4, 6].map(|slot| batch.interface(slot).index()), [0, 70, 71]);
        assert_eq!([0, 4, 6].map(|slot| batch.info(slot).mtu), [1500, 70, 71]);
    }

    #[test]
    fn packets_that_are_all_on_one_interface_need_no_look_at_each() {
        let mut batch = mixed();
        let mac = wire::MacAddr([2, 0, 0, 0, 0, 1]);
        batch.own = InterfaceInfo { mac, partial_checksums: true, ..InterfaceInfo::NONE };
        let interface = |number| InterfaceId::new(number).unwrap();
        batch.set_interface_of(Mask(0b1001), interface(71));
        assert_eq!([0, 1, 2, 3].map(|slot| batch.interface(slot).index()), [71, 70, 0, 71]);
        batch.set_interface_of(Mask(0xff), interface(70));
        let groups: Vec<_> = batch.by_interface(Mask(0b110)).collect();
        assert_eq!((groups.len(), groups[0].interface.index(), groups[0].info.mtu), (1, 70, 70));
        let InterfaceInfo { mac: own, partial_checksums, .. } = batch.own;
        assert_eq!((own, partial_checksums), (mac, true), "of the port that carries the frames");
        assert!(batch.elsewhere.is_empty());
    }

    #[test]
    fn packets_are_grouped_by_vrf_over_interfaces() {
        let batch = mixed();
        assert_eq!(batch.first_of_vrf(Mask(0xff)), Some((VrfId::DEFAULT, Mask(0b1011_1111))));
        assert_eq!(batch.first_of_vrf(Mask(0b0100_0000)), Some((VrfId::new(1), Mask(0b0100_0000))));
        assert_eq!(batch.first_of_vrf(Mask(0b0000_0001)), Some((VrfId::DEFAULT, Mask(1))));
        assert_eq!(batch.first_of_vrf(Mask::EMPTY), None);
    }

    #[test]
    fn another_port_s_packets_begin_anew() {
        let mut batch = mixed();
        batch.come_by(PortId::new(3).unwrap(), InterfaceInfo::NONE);
        let groups: Vec<_> =
            batch.by_interface(Mask(0xff)).map(|group| group.interface.index()).collect();
        assert_eq!(groups, [3]);
        assert!(batch.groups.is_none());
    }
}
