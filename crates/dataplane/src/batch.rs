//! A batch: up to 64 packets received together on one port, and what the steps learned of them.
//!
//! A batch is never split or copied. Steps say with masks which of its packets go where; what they
//! learn of a packet (its next hop, its egress port) stands in arrays beside the packets, indexed
//! by the packet's slot, so that a step touches only the arrays that it needs.
//!
//! Slots that hold no packet can be read and written like the others (they show a scratch
//! buffer), so a step may run over all slots of a mask without a check in its loop.

use dpdk::Burst;

use crate::mask::Mask;
use crate::mirror::Copies;
use crate::multicast::PortSet;
use crate::next_hop::{NO_ROUTE, NextHop, Packed};
use crate::port::{PortId, PortInfo};

/// The most packets in a batch.
pub const BATCH_MAX: usize = dpdk::BURST_MAX;

/// Bytes of a packet that [`Batch::head`] shows: Ethernet and IPv6 headers, and ten more.
pub const HEAD: usize = dpdk::HEAD;

/// Length of an Ethernet header without VLAN tag: where the IP header starts.
pub const ETHERNET: usize = 14;

/// `N` bytes of a head from `AT` on, which become one load.
#[inline(always)]
pub(crate) fn bytes<const AT: usize, const N: usize>(head: &[u8; HEAD]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&head[AT..AT + N]);
    bytes
}

/// Up to 64 packets of one port on their way through the graph.
pub struct Batch {
    /// The packets. Only the forwarder fills and empties it; steps use the methods below.
    pub(crate) burst: Burst,
    /// The port that all packets of the batch came from.
    pub in_port: PortId,
    /// What is known of that port.
    pub in_port_info: PortInfo,
    /// Packets whose frame was sent to a multicast or broadcast MAC; set by `classify`.
    pub link_multicast: Mask,
    /// IPv6 packets whose source must not leave its link; set by `ip6-validate`.
    pub link_scope: Mask,
    /// The number of each packet's next hop; set by the lookups.
    pub next_hop: [u16; BATCH_MAX],
    /// The meaning of that number; set by the lookups.
    pub hop: [Packed; BATCH_MAX],
    /// The port each packet leaves by; set by the lookups.
    pub out_port: [u16; BATCH_MAX],
    /// The ports that each packet to a group leaves by; set by the multicast steps.
    pub replicas: [PortSet; BATCH_MAX],
    /// When the packets were received, in TSC cycles.
    pub now: u64,
    /// What steps of the configuration noted for steps behind them.
    pub marks: Marks,
    /// Copies for other ports; none outside a forwarder.
    pub(crate) copies: Option<Copies>,
}

/// A number for each packet of a batch that has one; the layout is what steps in Lua read.
#[repr(C)]
pub struct Marks {
    /// The packets that have one.
    pub marked: Mask,
    /// The numbers, by slot; of other packets they mean nothing.
    pub values: [u32; BATCH_MAX],
}

impl Batch {
    /// An empty batch.
    pub fn new(in_port: PortId, in_port_info: PortInfo) -> Self {
        Self {
            burst: Burst::new(),
            in_port,
            in_port_info,
            link_multicast: Mask::EMPTY,
            link_scope: Mask::EMPTY,
            next_hop: [NO_ROUTE; BATCH_MAX],
            hop: [Packed::from(NextHop::NoRoute); BATCH_MAX],
            out_port: [0; BATCH_MAX],
            replicas: [PortSet::EMPTY; BATCH_MAX],
            now: 0,
            marks: Marks { marked: Mask::EMPTY, values: [0; BATCH_MAX] },
            copies: None,
        }
    }

    /// The slots that hold a packet.
    #[inline(always)]
    pub fn packets(&self) -> Mask {
        Mask(self.burst.owned())
    }

    /// The first [`HEAD`] bytes of the packet's buffer. Bytes past [`Batch::len`] are
    /// not the packet's: compare lengths before trusting them.
    #[inline(always)]
    pub fn head(&self, slot: usize) -> &[u8; HEAD] {
        self.burst.head(slot)
    }

    /// Like [`Batch::head`], to write.
    #[inline(always)]
    pub fn head_mut(&mut self, slot: usize) -> &mut [u8; HEAD] {
        self.burst.head_mut(slot)
    }

    /// The frame, Ethernet header first: all of it, or of one in several buffers (see
    /// [`Batch::multi_segment`]) what is in the first, which holds all headers.
    #[inline(always)]
    pub fn frame(&self, slot: usize) -> &[u8] {
        self.burst.frame(slot)
    }

    /// Like [`Batch::frame`], to write.
    #[inline(always)]
    pub fn frame_mut(&mut self, slot: usize) -> &mut [u8] {
        self.burst.frame_mut(slot)
    }

    /// Like [`Batch::frame_mut`], with what is in the other buffers, to read.
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

    /// Packets whose IPv4 header checksum the device found right; none on a port whose device does not
    /// look.
    #[inline(always)]
    pub fn checksum_good(&self) -> Mask {
        Mask(self.burst.checksum_good())
    }

    /// Packets whose IPv4 header checksum the device found wrong.
    #[inline(always)]
    pub fn checksum_bad(&self) -> Mask {
        Mask(self.burst.checksum_bad())
    }

    /// Packets out of which the device took a VLAN tag.
    #[inline(always)]
    pub fn vlan_stripped(&self) -> Mask {
        Mask(self.burst.vlan_stripped())
    }

    /// Takes a VLAN tag out of a frame; says whether it did, see [`Burst::remove_tag`].
    pub(crate) fn remove_tag(&mut self, slot: usize) -> bool {
        self.burst.remove_tag(slot)
    }

    /// Where the slots' bytes and lengths are, see [`Burst::addresses`].
    #[inline]
    pub fn addresses(&mut self) -> (*const *mut u8, *const u16, *const u16) {
        self.burst.addresses()
    }

    /// Sends a copy of each of these packets by the port, as they are now, whatever becomes of them.
    pub fn mirror(&mut self, slots: Mask, port: PortId) {
        if let Some(copies) = &mut self.copies {
            for slot in (slots & Mask(self.burst.owned())).slots() {
                let (frame, rest) = self.burst.frame_and_rest(slot);
                copies.add(frame, rest, port);
            }
        }
    }

    /// Cuts the frame to `len` bytes; a longer `len` than the frame's changes nothing.
    #[inline]
    pub fn trim(&mut self, slot: usize, len: usize) {
        if len < self.len(slot) {
            self.burst.trim(slot, len as u16);
        }
    }
}
