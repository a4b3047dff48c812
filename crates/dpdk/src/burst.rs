//! Containers of packets during processing: numbered slots, and lists.
//!
//! A [`Burst`] is filled once by a queue or a ring. Queries of the packet path afterwards (which slots hold
//! a packet, its length, its first 64 bytes) are loads from arrays without a branch; a query about a slot
//! without a packet is harmless and returns zeros or scratch memory. A [`PacketList`] collects packets on
//! their way out.
//!
//! Invariants of a burst, which its `unsafe` blocks rely on: for a slot whose bit is set in
//! `owned`, `mbufs` is a packet that the burst owns alone, `heads` its first data byte with at
//! least [`HEAD`] bytes of buffer from there on (and as many as tags have, unless its bit is set in
//! `tight`), and `lens` the packet's length, which is that of its one segment unless its bit is set
//! in `multi`. The packet's mbuf says the same, except for slots in `behind`, see `tags`. For any
//! other slot, `heads` is `scratch` and `lens` is 0, and `multi` and `behind` do not have it. Slots
//! keep packets in the order received.

mod tags;

use std::ptr::NonNull;
use std::{fmt, slice};

use crate::mbuf::{Mbuf, RawMbuf, free_bulk, traffic_class};
use crate::mempool::Mempool;
use crate::shared::{Copied, LENT_OWN, copy_by_reference, copy_of_chunks};
use crate::time::prefetch;
use dpdk_sys as sys;
pub(crate) use tags::put_tags_in;

/// Slots in a burst.
pub const BURST_MAX: usize = 64;

/// Bytes of every packet that [`Burst::head`] reaches, regardless of the packet's length.
pub const HEAD: usize = 64;

/// Bytes of buffer from a packet's beginning on that suffice for [`HEAD`] bytes after the removal of tags.
const ROOM: usize = HEAD + tags::TAGS;

/// Bytes in the first segment of every packet that a queue delivers in several segments: Ethernet, an IPv4
/// header with all options, and a TCP header up to its checksum.
const HEADERS: u16 = 128;

/// The bits of a tag that hold the VLAN identifier.
const VLAN_ID: u16 = 0x0fff;

/// Most packets of a [`PacketList`].
pub const LIST_MAX: usize = 256;

/// Up to 64 packets in numbered slots, owned.
pub struct Burst {
    owned: u64,
    multi: u64,
    /// Results reported by devices: see [`Burst::checksum_good`].
    good: u64,
    bad: u64,
    stripped: u64,
    /// Packets whose bytes a copy shares, see [`Burst::copy_by_reference`].
    lent: u64,
    /// Packets with one segment whose mbufs begin `behind_by` bytes before their heads, and are as much longer.
    behind: u64,
    behind_by: u16,
    /// Packets behind whose heads fewer than [`ROOM`] bytes of buffer may be.
    tight: u64,
    lens: [u16; BURST_MAX],
    /// Lengths of first segments, computed when [`Burst::addresses`] needs them.
    firsts: [u16; BURST_MAX],
    heads: [NonNull<[u8; HEAD]>; BURST_MAX],
    mbufs: [RawMbuf; BURST_MAX],
    /// From `Box::into_raw`, freed on drop: the target of slots without a packet.
    scratch: NonNull<[u8; HEAD]>,
    /// Packets received last that it cannot hold; `None` until there are any.
    unusable: Option<Box<PacketList>>,
}

// SAFETY: packets belong to no thread, and the scratch is the burst's own.
unsafe impl Send for Burst {}

/// Returns the bit of a slot, which is taken modulo 64.
#[inline(always)]
fn bit(slot: usize) -> u64 {
    1 << (slot % BURST_MAX)
}

/// Iterates over the slots in a mask, from the lowest.
#[inline(always)]
pub(crate) fn slots(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let slot = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(slot)
    })
}

impl Burst {
    /// Creates an empty burst.
    pub fn new() -> Self {
        let scratch = NonNull::from(Box::leak(Box::new([0; HEAD])));
        Self {
            owned: 0,
            multi: 0,
            good: 0,
            bad: 0,
            stripped: 0,
            lent: 0,
            behind: 0,
            behind_by: 0,
            tight: 0,
            lens: [0; BURST_MAX],
            firsts: [0; BURST_MAX],
            heads: [scratch; BURST_MAX],
            mbufs: [RawMbuf::NULL; BURST_MAX],
            scratch,
            unusable: None,
        }
    }

    /// Returns the slots that hold a packet, one bit each.
    #[inline(always)]
    pub fn owned(&self) -> u64 {
        self.owned
    }

    /// Returns the number of packets in the burst.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.owned.count_ones() as usize
    }

    /// Returns true if the burst holds no packet.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.owned == 0
    }

    /// Returns the slots whose packet has more than one segment.
    #[inline(always)]
    pub fn multi_segment(&self) -> u64 {
        self.multi
    }

    /// Returns the slots whose IPv4 header checksum the device found correct. If a slot is neither here nor
    /// in [`Burst::checksum_bad`], the checksum was not checked, or there is none.
    #[inline(always)]
    pub fn checksum_good(&self) -> u64 {
        self.good
    }

    /// Returns the slots whose IPv4 header checksum the device found wrong.
    #[inline(always)]
    pub fn checksum_bad(&self) -> u64 {
        self.bad
    }

    /// Returns the slots of frames from which the device stripped a VLAN tag. A priority tag does not
    /// count: it names no VLAN (IEEE 802.1Q 6.9).
    #[inline(always)]
    pub fn vlan_stripped(&self) -> u64 {
        self.stripped
    }

    /// Sets the results that a device would report for these slots' IPv4 checksums and VLAN tags. For tests
    /// of code that reads them, on packets not delivered by a device.
    #[doc(hidden)]
    pub fn say(&mut self, good: u64, bad: u64, stripped: u64) {
        (self.good, self.bad, self.stripped) = (good, bad, stripped);
    }

    /// Sets the tag that a device would have stripped from a slot's packet. For tests of code that reads it.
    #[doc(hidden)]
    pub fn say_tag(&mut self, slot: usize, control: u16) {
        let slot = slot % BURST_MAX;
        self.stripped |= bit(slot) & self.owned;
        if self.owned & bit(slot) != 0 {
            // SAFETY: the slot holds a packet of ours.
            unsafe { self.mbufs[slot].set_vlan_tci(control) };
        }
    }

    /// Like [`Burst::say_tag`], in the packet alone: for [`Burst::removed_tag`].
    #[doc(hidden)]
    pub fn say_removed(&mut self, slot: usize, control: u16) {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) != 0 {
            // SAFETY: the slot holds a packet of ours.
            unsafe {
                let flags = self.mbufs[slot].flags() | sys::SHIM_MBUF_RX_VLAN_STRIPPED;
                self.mbufs[slot].set_flags(flags);
                self.mbufs[slot].set_vlan_tci(control);
            }
        }
    }

    /// Leaves a slot's packet no room in front of it. For tests of code that needs some.
    #[doc(hidden)]
    pub fn fill_headroom(&mut self, slot: usize) {
        let frame = self.frame(slot).to_vec();
        if let Some(mut packet) = self.take(slot) {
            // SAFETY: the packet is ours.
            let room = usize::from(unsafe { packet.raw().data_off() });
            if packet.prepend(room).is_some() && packet.trim_to(frame.len()) {
                packet.data_mut()[..frame.len()].copy_from_slice(&frame);
            }
            let _ = self.put(packet);
        }
    }

    /// Returns the length of each slot's packet, all segments together; 0 for a slot without a packet.
    #[inline(always)]
    pub fn lens(&self) -> &[u16; BURST_MAX] {
        &self.lens
    }

    /// Returns those slots of a mask whose packets have so many bytes or more. Costs little if all have.
    #[inline(always)]
    pub fn at_least(&self, mask: u64, len: u16) -> u64 {
        if let Some(count) = first_slots(mask) {
            let least = self.lens[..count].iter().fold(u16::MAX, |least, &len| least.min(len));
            if least >= len {
                return mask;
            }
        }
        slots(mask).fold(0, |long, slot| long | u64::from(self.lens[slot] >= len) << slot)
    }

    /// Returns the first 64 bytes of the buffer that the packet begins in, of which only the first
    /// [`Burst::lens`] belong to the packet (a queue delivers no packet in several segments of which the
    /// first has fewer). For a slot without a packet: arbitrary bytes. `slot` is taken modulo 64.
    #[inline(always)]
    pub fn head(&self, slot: usize) -> &[u8; HEAD] {
        // SAFETY: by the invariants, a packet of ours or the scratch, both borrowed with `self`.
        unsafe { self.heads[slot % BURST_MAX].as_ref() }
    }

    /// Like [`Burst::head`], mutable. Changes to a slot without a packet have no effect.
    #[inline(always)]
    pub fn head_mut(&mut self, slot: usize) -> &mut [u8; HEAD] {
        // SAFETY: as in `head`; one slot at a time can be borrowed, so slots that share the
        // scratch do not overlap.
        unsafe { self.heads[slot % BURST_MAX].as_mut() }
    }

    /// Returns the bytes of the packet's first segment, which is the whole packet unless
    /// [`Burst::multi_segment`] has the slot; none for a slot without a packet.
    #[inline]
    pub fn frame(&self, slot: usize) -> &[u8] {
        let slot = slot % BURST_MAX;
        // SAFETY: by the invariants, this many bytes of the packet lie behind its head; 0 behind the
        // scratch.
        unsafe { slice::from_raw_parts(self.heads[slot].as_ptr().cast(), self.first_len(slot)) }
    }

    /// Like [`Burst::frame`], mutable.
    #[inline]
    pub fn frame_mut(&mut self, slot: usize) -> &mut [u8] {
        self.frame_and_rest(slot).0
    }

    /// Like [`Burst::frame_mut`], with the bytes of each further segment. Of a packet that a copy shares (see
    /// [`Burst::copy_by_reference`]), the first part is that which is still its own.
    #[inline]
    pub fn frame_and_rest(&mut self, slot: usize) -> (&mut [u8], impl Iterator<Item = &[u8]>) {
        let slot = slot % BURST_MAX;
        let len = self.first_len(slot);
        let own = self.own_len(slot, len);
        let several = self.multi & bit(slot) != 0;
        // SAFETY: a slot in `multi` holds a packet of ours.
        let second = if several { unsafe { self.mbufs[slot].next() } } else { RawMbuf::NULL };
        // SAFETY: as in `frame`; the packet is ours alone up to `own`, and its other segments lie elsewhere.
        unsafe {
            let first = self.heads[slot].as_ptr().cast::<u8>();
            let frame = slice::from_raw_parts_mut(first, own);
            let lent = slice::from_raw_parts(first.add(own), len - own);
            let lent = (!lent.is_empty()).then_some(lent);
            (frame, lent.into_iter().chain(second.chunks()))
        }
    }

    /// Returns the bytes of a first segment of `len` bytes that belong to the slot's packet alone.
    #[inline(always)]
    fn own_len(&self, slot: usize, len: usize) -> usize {
        if self.lent & bit(slot) == 0 { len } else { len.min(LENT_OWN) }
    }

    /// Makes a copy of a slot's packet as it is now, without copying its data: the copy begins with bytes of its
    /// own and goes on with a reference to the packet's, which are read only from now on ([`Burst::frame_mut`]
    /// ends before them). Short packets, and those with a short first segment, are copied whole. `None` for a slot
    /// without a packet, and when the pool has not enough buffers.
    ///
    /// Until the copy has been dropped, no ring may pass the packet to a burst, which would refuse it.
    pub fn copy_by_reference(&mut self, slot: usize, pool: &Mempool) -> Option<Copied> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        self.settle(bit(slot));
        // SAFETY: the slot holds a packet of ours, whose bytes behind the first are not written while `lent` has
        // the slot.
        let copied = unsafe { copy_by_reference(self.mbufs[slot], pool) }?;
        if copied.is_shared {
            self.lent |= bit(slot);
        }
        Some(copied)
    }

    /// Makes a copy of a slot's packet as it is now, with bytes of its own. `None` for a slot without a packet, and when
    /// the pool has not enough buffers.
    pub fn copy(&self, slot: usize, pool: &Mempool) -> Option<Mbuf> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        copy_of_chunks(self.chunks(slot), pool)
    }

    /// Returns the tag that the device removed from a slot's frame: a priority tag as well, unlike
    /// [`Burst::stripped_tag`]. To be asked before a step has used it.
    pub fn removed_tag(&self, slot: usize) -> Option<u16> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        // SAFETY: the slot holds a packet of ours.
        let (flags, control) = unsafe { (self.mbufs[slot].flags(), self.mbufs[slot].vlan_tci()) };
        (flags & sys::SHIM_MBUF_RX_VLAN_STRIPPED != 0).then_some(control)
    }

    /// Returns the control information of the tag that the sending device is to insert into a slot's frame.
    pub fn requested_tag(&self, slot: usize) -> Option<u16> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        // SAFETY: the slot holds a packet of ours.
        unsafe { self.mbufs[slot].requested_tag() }
    }

    /// Leaves it to the sending device to insert a customer tag with this control information into each of these slots'
    /// frames, whose lengths do not count it. Calls `done` with the slot and the length of each.
    #[inline(always)]
    pub fn request_tags_of(&mut self, mask: u64, control: u16, mut done: impl FnMut(usize, u16)) {
        for slot in slots(mask & self.owned) {
            // SAFETY: the slot holds a packet of ours.
            unsafe { self.mbufs[slot].request_tag(control) };
            done(slot, self.lens[slot]);
        }
    }

    /// Returns the length of the slot's first segment.
    #[inline(always)]
    fn first_len(&self, slot: usize) -> usize {
        if self.multi & bit(slot) == 0 {
            return self.lens[slot].into();
        }
        // SAFETY: a slot in `multi` holds a packet of ours.
        unsafe { self.mbufs[slot].data_len() }.into()
    }

    /// Shortens a packet to `len` bytes. Does nothing to a packet that is not longer, or to a slot without
    /// a packet.
    #[inline]
    pub fn trim(&mut self, slot: usize, len: u16) {
        let slot = slot % BURST_MAX;
        if self.multi & bit(slot) != 0 {
            return self.trim_segments(slot, len);
        }
        // A slot without a packet has length 0, so the condition is false.
        if len < self.lens[slot] {
            self.settle_short(slot, len);
            self.lens[slot] = len;
            // SAFETY: the slot has a length, hence a packet of ours, which is longer.
            unsafe { self.mbufs[slot].set_single_len(len + self.lag(slot)) };
        }
    }

    #[cold]
    fn trim_segments(&mut self, slot: usize, len: u16) {
        let mbuf = self.mbufs[slot];
        // SAFETY: a slot in `multi` holds a packet of ours.
        unsafe {
            if u32::from(len) < mbuf.pkt_len() {
                mbuf.cut(len.into());
            }
            self.lens[slot] = whole_len(mbuf);
            if mbuf.segments() == 1 {
                self.multi &= !bit(slot);
            }
        }
    }

    /// Returns the addresses of three arrays for code that is not in Rust: pointers to the slots'
    /// first bytes, lengths of their first segments, and [`Burst::lens`]. Valid until the burst is
    /// changed; from each first byte on there are [`HEAD`] bytes, or as many as the first segment
    /// has if that is more.
    #[inline]
    pub fn addresses(&mut self) -> (*const *mut u8, *const u16, *const u16) {
        let firsts = if self.multi | self.lent == 0 { &self.lens } else { self.first_lens() };
        let firsts = firsts.as_ptr();
        (self.heads.as_ptr().cast(), firsts, self.lens.as_ptr())
    }

    #[cold]
    fn first_lens(&mut self) -> &[u16; BURST_MAX] {
        let own = |slot| self.own_len(slot, self.first_len(slot)) as u16;
        self.firsts = std::array::from_fn(own);
        &self.firsts
    }

    /// Returns the packet's tag, see [`Mbuf::tag`]; 0 for a slot without a packet.
    #[inline]
    pub fn tag(&self, slot: usize) -> u64 {
        if self.owned & bit(slot) == 0 {
            return 0;
        }
        // SAFETY: the slot holds a packet of ours.
        unsafe { self.mbufs[slot % BURST_MAX].tag() }
    }

    /// Sets the packet's tag. Does nothing to a slot without a packet.
    #[inline]
    pub fn set_tag(&mut self, slot: usize, tag: u64) {
        if self.owned & bit(slot) != 0 {
            // SAFETY: the slot holds a packet of ours.
            unsafe { self.mbufs[slot % BURST_MAX].set_tag(tag) }
        }
    }

    /// Gives the packet a class, see [`Mbuf::set_traffic_class`]. Nothing happens to a slot without a packet.
    #[inline]
    pub fn set_traffic_class(&mut self, slot: usize, class: u8) {
        if self.owned & bit(slot) != 0 {
            // SAFETY: the slot holds a packet of ours.
            unsafe { traffic_class::set(self.mbufs[slot % BURST_MAX], class) }
        }
    }

    /// Returns the hash that the device has computed over the packet's addresses, if it has. To be asked before the packet
    /// has a tag, which takes its place.
    #[inline]
    pub fn device_hash(&self, slot: usize) -> Option<u32> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        // SAFETY: the slot holds a packet of ours.
        let (flags, hash) = unsafe { (self.mbufs[slot].flags(), self.mbufs[slot].tag()) };
        (flags & sys::SHIM_MBUF_RX_RSS_HASH != 0).then_some(hash as u32)
    }

    /// Returns the packet of a slot that holds one.
    #[inline]
    pub(crate) fn raw(&mut self, slot: usize) -> RawMbuf {
        self.settle(bit(slot));
        self.mbufs[slot % BURST_MAX]
    }

    /// Clears slots whose packets have another owner now.
    ///
    /// # Safety
    /// The slots hold packets, and another owner has them.
    #[inline]
    pub(crate) unsafe fn give_up(&mut self, mask: u64) {
        self.forget(mask);
    }

    /// Takes the packet out of a slot.
    pub fn take(&mut self, slot: usize) -> Option<Mbuf> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        self.settle(bit(slot));
        let mbuf = self.mbufs[slot];
        self.forget(bit(slot));
        // SAFETY: the packet was ours, and the slot is cleared.
        Some(unsafe { Mbuf::from_raw(mbuf) })
    }

    /// Puts a packet into the lowest free slot; returns the slot.
    ///
    /// # Errors
    /// Returns the packet when the burst is full, or when less than 64 bytes of its buffer are left
    /// from the packet's beginning on.
    pub fn put(&mut self, packet: Mbuf) -> Result<usize, Mbuf> {
        let slot = (!self.owned).trailing_zeros() as usize;
        // SAFETY: the caller has given us its packet.
        if slot == BURST_MAX || !unsafe { usable(packet.raw(), HEAD) } {
            return Err(packet);
        }
        // SAFETY: as above.
        let is_tight = !unsafe { usable(packet.raw(), ROOM) };
        self.tight = self.tight & !bit(slot) | u64::from(is_tight) << slot;
        self.mbufs[slot] = packet.into_raw();
        for said in [&mut self.good, &mut self.bad, &mut self.stripped] {
            *said &= !bit(slot);
        }
        self.admit(slot);
        self.owned |= bit(slot);
        if self.multi & bit(slot) != 0 {
            self.measure(bit(slot));
        }
        Ok(slot)
    }

    /// Returns the bytes of the packet in a slot, segment by segment; nothing for a slot without a packet.
    pub fn chunks(&self, slot: usize) -> impl Iterator<Item = &[u8]> {
        let slot = slot % BURST_MAX;
        let several = self.multi & bit(slot) != 0;
        // SAFETY: a slot in `multi` holds a packet of ours.
        let second = if several { unsafe { self.mbufs[slot].next() } } else { RawMbuf::NULL };
        let first = (self.owned & bit(slot) != 0).then(|| self.frame(slot));
        // SAFETY: segments of a packet of ours, which is borrowed meanwhile, or none.
        first.into_iter().chain(unsafe { second.chunks() })
    }

    /// Takes the packets received last that the burst cannot hold: those that [`RxQueue::unusable`] and
    /// [`Consumer::unusable`] count. Packets that are not taken are freed later.
    ///
    /// [`RxQueue::unusable`]: crate::RxQueue::unusable
    /// [`Consumer::unusable`]: crate::Consumer::unusable
    pub fn unusable(&mut self) -> Option<&mut PacketList> {
        self.unusable.as_deref_mut()
    }

    /// Moves packets that it cannot hold out of its slots; returns their number.
    #[cold]
    fn set_aside(&mut self, mask: u64) -> usize {
        let list = self.unusable.get_or_insert_default();
        let mask = mask & self.owned;
        // The packets of one burst find room in an empty list.
        if list.room() < BURST_MAX {
            list.free_tail(0);
        }
        slots(mask).for_each(|slot| _ = list.push_raw(self.mbufs[slot]));
        self.forget(mask);
        mask.count_ones() as usize
    }

    /// Frees the packets in these slots; returns their number.
    pub fn free(&mut self, mask: u64) -> usize {
        let mask = mask & self.owned;
        if mask == 0 {
            return 0;
        }
        let mut packets = [RawMbuf::NULL; BURST_MAX];
        let mut count = 0;
        for slot in slots(mask) {
            packets[count] = self.mbufs[slot];
            count += 1;
        }
        self.forget(mask);
        // SAFETY: the packets were ours, and their slots are cleared.
        unsafe { free_bulk(&mut packets[..count]) };
        count
    }

    /// Moves the packet of each slot in `mask` to the end of `lists[index[slot]]`, from the lowest slot up.
    /// Returns the slots whose packet could not be moved, because that list does not exist or is full; the
    /// burst still has these packets.
    #[inline]
    pub fn append_to(
        &mut self,
        mask: u64,
        index: &[u16; BURST_MAX],
        lists: &mut [PacketList],
    ) -> u64 {
        let mask = mask & self.owned;
        self.settle(mask);
        if let Some((count, place)) = all_one_way(mask, index)
            && let Some(list) = lists.get_mut(place).filter(|list| list.room() >= count)
        {
            list.push_all(&self.mbufs[..count]);
            self.forget(mask);
            return 0;
        }
        let mut left = 0;
        let mut append = |slot: usize| {
            // Both tests fail so rarely that the processor predicts them; the choice of the list affects an
            // address, never a jump.
            let list = lists.get_mut(usize::from(index[slot]));
            if !list.is_some_and(|list| list.push_raw(self.mbufs[slot])) {
                left |= bit(slot);
            }
        };
        match first_slots(mask) {
            Some(count) => (0..count).for_each(&mut append),
            None => slots(mask).for_each(&mut append),
        }
        self.forget(mask & !left);
        left
    }

    /// Moves the packet of each slot in `mask` to the end of one list, from the lowest slot up. Returns the
    /// slots for which the list was full; the burst still has these packets.
    #[inline]
    pub fn move_to(&mut self, mask: u64, list: &mut PacketList) -> u64 {
        self.append_to(mask, &[0; BURST_MAX], slice::from_mut(list))
    }

    /// Returns the space into which a queue or a ring writes packets, if the burst is empty.
    /// [`Burst::received`] follows.
    #[inline]
    pub(crate) fn space(&mut self) -> Option<&mut [RawMbuf; BURST_MAX]> {
        self.is_empty().then_some(&mut self.mbufs)
    }

    /// Takes over the first `count` packets of [`Burst::space`] and returns how many of them are unusable,
    /// see [`Burst::unusable`]: shared, or with less than 64 bytes of buffer. `SAID`: their device has reported
    /// results for them.
    ///
    /// # Safety
    /// The burst is empty, and the first `count` entries are packets the caller owned.
    #[inline]
    pub(crate) unsafe fn received<const SAID: bool>(&mut self, count: usize) -> usize {
        let count = count.min(BURST_MAX);
        let mut bad = 0;
        self.multi = 0;
        self.lent = 0;
        self.tight = 0;
        (self.good, self.bad, self.stripped) = (0, 0, 0);
        for slot in 0..count {
            // SAFETY: by the caller, a packet of ours.
            bad |= u64::from(!unsafe { usable(self.mbufs[slot], ROOM) }) << slot;
            self.admit(slot);
            if SAID {
                self.record_results(slot);
            }
            prefetch(self.heads[slot].as_ptr());
        }
        self.owned = if count == 0 { 0 } else { u64::MAX >> (BURST_MAX - count) };
        let freed = if bad == 0 { 0 } else { self.set_unusable_aside(bad) };
        if SAID && self.stripped != 0 {
            self.forget_priority_tags();
        }
        if self.multi != 0 {
            self.measure(self.multi);
        }
        freed
    }

    /// Keeps those of these packets that are only near their buffers' ends; moves the others out of their slots, and
    /// returns their number.
    #[cold]
    fn set_unusable_aside(&mut self, mask: u64) -> usize {
        // SAFETY: the slots hold packets of ours.
        let is_usable = |slot: &usize| unsafe { usable(self.mbufs[*slot], HEAD) };
        self.tight = slots(mask).filter(is_usable).fold(0, |tight, slot| tight | bit(slot));
        match mask & !self.tight {
            0 => 0,
            unusable => self.set_aside(unusable),
        }
    }

    /// Records the device's results for a packet. Both checksum bits together mean that there is no
    /// checksum.
    #[inline(always)]
    fn record_results(&mut self, slot: usize) {
        // SAFETY: the callers own the packet.
        let flags = unsafe { self.mbufs[slot].flags() };
        let good = u64::from(flags & sys::SHIM_MBUF_RX_IP_CKSUM_GOOD != 0);
        let bad = u64::from(flags & sys::SHIM_MBUF_RX_IP_CKSUM_BAD != 0);
        self.good |= (good & !bad) << slot;
        self.bad |= (bad & !good) << slot;
        self.stripped |= u64::from(flags & sys::SHIM_MBUF_RX_VLAN_STRIPPED != 0) << slot;
    }

    /// Treats frames from which the device stripped a priority tag as untagged.
    #[cold]
    fn forget_priority_tags(&mut self) {
        for slot in slots(self.stripped & self.owned) {
            // SAFETY: the slot holds a packet of ours.
            let tci = unsafe { self.mbufs[slot].vlan_tci() };
            self.stripped &= !(u64::from(tci & VLAN_ID == 0) << slot);
        }
    }

    /// Removes so many bytes at a packet's beginning. Returns false, and does nothing, for a slot without a packet, a
    /// packet with no more bytes in its first segment, one that a copy shares, and if less than [`HEAD`] bytes of buffer
    /// would be left.
    pub fn strip(&mut self, slot: usize, count: u16) -> bool {
        let slot = slot % BURST_MAX;
        self.settle(bit(slot));
        let first = self.first_len(slot) as u16;
        let is_one = self.multi & bit(slot) == 0;
        if first <= count
            || self.lent & bit(slot) != 0
            || !is_one && usize::from(first - count) < HEAD
        {
            return false;
        }
        let (mbuf, whole) = (self.mbufs[slot], self.lens[slot] - count);
        // SAFETY: the slot has a length, hence a packet of ours, which begins at `heads`. By its length and the test of
        // the buffer's, the new beginning lies in its first segment, with `HEAD` bytes behind it.
        unsafe {
            let off = mbuf.data_off();
            if u32::from(off) + u32::from(count) + HEAD as u32 > u32::from(mbuf.buf_len()) {
                return false;
            }
            mbuf.set_front(off + count, first - count, whole.into());
            self.heads[slot] = self.heads[slot].cast::<u8>().add(count.into()).cast();
        }
        self.lens[slot] = whole;
        self.tight |= bit(slot);
        true
    }

    /// Puts so many bytes, of undefined content, in front of a packet. Returns false, and does nothing, for a slot
    /// without a packet, for one that a copy shares, and without room in front of it.
    pub fn unstrip(&mut self, slot: usize, count: u16) -> bool {
        let slot = slot % BURST_MAX;
        self.settle(bit(slot));
        let (first, whole) = (self.first_len(slot) as u16, self.lens[slot]);
        let (Some(first), Some(longer)) = (first.checked_add(count), whole.checked_add(count))
        else {
            return false;
        };
        if whole == 0 || self.lent & bit(slot) != 0 {
            return false;
        }
        let mbuf = self.mbufs[slot];
        // SAFETY: the slot has a length, hence a packet of ours, which begins at `heads`, `data_off` bytes behind the
        // beginning of its buffer.
        unsafe {
            let Some(off) = mbuf.data_off().checked_sub(count) else { return false };
            mbuf.set_front(off, first, longer.into());
            self.heads[slot] = self.heads[slot].cast::<u8>().sub(count.into()).cast();
        }
        self.lens[slot] = longer;
        true
    }

    /// Returns the control information of the tag that the device stripped from a frame of
    /// [`Burst::vlan_stripped`]; `None` for other slots.
    #[inline(always)]
    pub fn stripped_tag(&self, slot: usize) -> Option<u16> {
        let slot = slot % BURST_MAX;
        let stripped = self.stripped & self.owned & bit(slot) != 0;
        // SAFETY: the slot holds a packet of ours.
        stripped.then(|| unsafe { self.mbufs[slot].vlan_tci() })
    }

    /// Returns the bits in which the control information of tags that the device stripped from these slots' frames, all in
    /// [`Burst::vlan_stripped`], differs from this one.
    #[inline(always)]
    pub fn stripped_difference(&self, mask: u64, control: u16) -> u16 {
        let mut difference = 0;
        let mut compare = |slot: usize| {
            // SAFETY: the slot holds a packet of ours.
            difference |= unsafe { self.mbufs[slot].vlan_tci() } ^ control;
        };
        let mask = mask & self.owned;
        match first_slots(mask) {
            Some(count) => (0..count).for_each(&mut compare),
            None => slots(mask).for_each(&mut compare),
        }
        difference
    }

    /// Returns the priority code point of a tag that the device stripped from a frame, also after
    /// [`Self::forget_stripped`]; 0 without one.
    pub fn stripped_priority(&self, slot: usize) -> u8 {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return 0;
        }
        // SAFETY: the slot holds a packet of ours.
        let (flags, control) = unsafe { (self.mbufs[slot].flags(), self.mbufs[slot].vlan_tci()) };
        if flags & sys::SHIM_MBUF_RX_VLAN_STRIPPED != 0 { (control >> 13) as u8 } else { 0 }
    }

    /// Regards the frames of these slots, from which the device stripped a tag, as untagged from now on.
    #[inline(always)]
    pub fn forget_stripped(&mut self, mask: u64) {
        self.stripped &= !mask;
    }

    /// Stores the whole lengths of packets with several segments.
    #[cold]
    fn measure(&mut self, mask: u64) {
        for slot in slots(mask & self.multi) {
            // SAFETY: a slot in `multi` holds a packet of ours.
            self.lens[slot] = unsafe { whole_len(self.mbufs[slot]) };
        }
    }

    /// Ensures that the first segment of each packet has its headers: [`HEADERS`] bytes, or as many as fit
    /// its buffer. Packets with less than [`HEAD`] of their bytes there are unusable; returns their number.
    #[cold]
    pub(crate) fn gather_headers(&mut self) -> usize {
        let mut headless = 0;
        for slot in slots(self.multi) {
            let mbuf = self.mbufs[slot];
            // SAFETY: a slot in `multi` holds a packet of ours.
            unsafe {
                mbuf.pull_up(HEADERS);
                let seen = u32::from(mbuf.data_len());
                headless |= u64::from(seen < mbuf.pkt_len().min(HEAD as u32)) << slot;
                self.multi &= !(u64::from(mbuf.segments() == 1) << slot);
            }
        }
        if headless == 0 { 0 } else { self.set_aside(headless) }
    }

    /// Fills a slot's array entries from its packet.
    #[inline(always)]
    fn admit(&mut self, slot: usize) {
        let mbuf = self.mbufs[slot];
        // SAFETY: the callers own the packet; its data pointer is not null, as it lies in a
        // buffer. (An unusable packet's head is never read: `received` sets it aside.)
        unsafe {
            self.heads[slot] = NonNull::new_unchecked(mbuf.data().cast());
            self.lens[slot] = mbuf.data_len();
            self.multi |= u64::from(mbuf.segments() > 1) << slot;
        }
    }

    /// Clears slots whose packets were removed.
    #[inline]
    fn forget(&mut self, mask: u64) {
        if mask == self.owned && mask.count_ones() > 16 {
            // Most of the array: straight vector stores are cheaper than walking the mask.
            self.heads = [self.scratch; BURST_MAX];
            self.lens = [0; BURST_MAX];
        } else {
            for slot in slots(mask) {
                self.heads[slot] = self.scratch;
                self.lens[slot] = 0;
            }
        }
        self.owned &= !mask;
        self.multi &= !mask;
        self.lent &= !mask;
        self.behind &= !mask;
    }
}

/// Returns the packet's length, which no frame that can be received exceeds.
///
/// # Safety
/// The caller owns the packet.
unsafe fn whole_len(mbuf: RawMbuf) -> u16 {
    // SAFETY: by the caller.
    unsafe { mbuf.pkt_len() }.min(u16::MAX.into()) as u16
}

/// Returns true if a packet can be in a burst: it is not shared, and its buffer holds both its data
/// and `room` bytes from their beginning on, as the [`HEAD`] that are read regardless of its length.
///
/// # Safety
/// The caller owns the packet.
#[inline(always)]
unsafe fn usable(mbuf: RawMbuf, room: usize) -> bool {
    // SAFETY: by the caller.
    unsafe {
        let seen = u32::from(mbuf.data_len()).max(room as u32);
        let fits = u32::from(mbuf.data_off()) + seen <= u32::from(mbuf.buf_len());
        fits & (mbuf.refcnt() == 1)
    }
}

/// Returns the number of slots in a mask, if they are the lowest ones without a gap.
#[inline(always)]
fn first_slots(mask: u64) -> Option<usize> {
    (mask & mask.wrapping_add(1) == 0).then(|| mask.trailing_ones() as usize)
}

/// Returns the number of packets and their list, if they are in the lowest slots and all go to one list:
/// usual for a router with two ports, and worth a comparison of some vectors.
#[inline(always)]
fn all_one_way(mask: u64, index: &[u16; BURST_MAX]) -> Option<(usize, usize)> {
    let count = first_slots(mask).filter(|&count| count >= 8)?;
    let first = index[0];
    let differ = index[..count].iter().fold(0, |differ, &place| differ | (place ^ first));
    (differ == 0).then_some((count, first.into()))
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.free(u64::MAX);
        // SAFETY: from `Box::leak` in `new`; no slot is borrowed any more.
        drop(unsafe { Box::from_raw(self.scratch.as_ptr()) });
    }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Burst({:#018x})", self.owned)
    }
}

/// Up to 256 packets in order, owned.
pub struct PacketList {
    len: usize,
    packets: [RawMbuf; LIST_MAX],
}

// SAFETY: packets belong to no thread.
unsafe impl Send for PacketList {}

impl PacketList {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self { len: 0, packets: [RawMbuf::NULL; LIST_MAX] }
    }

    /// Returns the number of packets in the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the list holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of further packets that fit.
    #[inline]
    pub fn room(&self) -> usize {
        LIST_MAX - self.len
    }

    /// Returns the total bytes of all packets.
    pub fn bytes(&self) -> u64 {
        // SAFETY: the packets are ours.
        self.as_slice().iter().map(|mbuf| u64::from(unsafe { mbuf.pkt_len() })).sum()
    }

    /// Adds a packet at the end.
    ///
    /// # Errors
    /// Returns the packet when the list is full.
    #[inline]
    pub fn push(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        if self.push_raw(packet.raw()) {
            // The list owns it now.
            packet.into_raw();
            Ok(())
        } else {
            Err(packet)
        }
    }

    /// Takes the packet at the front.
    pub fn pop(&mut self) -> Option<Mbuf> {
        let &first = self.as_slice().first()?;
        self.forget_front(1);
        // SAFETY: the packet was ours, and the list has dropped it.
        Some(unsafe { Mbuf::from_raw(first) })
    }

    /// Returns the bytes of the packet at this place, segment by segment; nothing beyond the last packet.
    pub fn chunks(&self, place: usize) -> impl Iterator<Item = &[u8]> {
        let mbuf = self.as_slice().get(place).copied().unwrap_or(RawMbuf::NULL);
        // SAFETY: a packet of ours, which is borrowed meanwhile, or none.
        unsafe { mbuf.chunks() }
    }

    /// Returns the control information of the VLAN tag that the sending device is to insert into the packet at this place.
    pub fn requested_tag(&self, place: usize) -> Option<u16> {
        let mbuf = self.as_slice().get(place)?;
        // SAFETY: a packet of ours.
        unsafe { mbuf.requested_tag() }
    }

    /// Frees the newest packets so that at most `keep` stay; returns the number freed.
    pub fn free_tail(&mut self, keep: usize) -> usize {
        let keep = keep.min(self.len);
        let freed = self.len - keep;
        if freed > 0 {
            let tail = keep..self.len;
            self.len = keep;
            // SAFETY: the packets were ours, and the list has dropped them.
            unsafe { free_bulk(&mut self.packets[tail]) };
        }
        freed
    }

    /// Adds a packet; returns false if there is no room. Callers guarantee that the packet is ours, as for
    /// all `RawMbuf`s.
    #[inline(always)]
    fn push_raw(&mut self, packet: RawMbuf) -> bool {
        let place = self.packets.get_mut(self.len);
        let room = place.is_some();
        if let Some(place) = place {
            *place = packet;
            self.len += 1;
        }
        room
    }

    /// Adds packets, for which there must be room. Callers guarantee that they are ours, as for all
    /// `RawMbuf`s.
    #[inline(always)]
    fn push_all(&mut self, packets: &[RawMbuf]) {
        self.packets[self.len..self.len + packets.len()].copy_from_slice(packets);
        self.len += packets.len();
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[RawMbuf] {
        &self.packets[..self.len]
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [RawMbuf] {
        &mut self.packets[..self.len]
    }

    /// Returns the places after the last packet.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [RawMbuf] {
        &mut self.packets[self.len..]
    }

    /// Takes over the packets in the first `count` places of [`PacketList::space`].
    ///
    /// # Safety
    /// The caller has put packets there that it owns, and gives them up.
    #[inline]
    pub(crate) unsafe fn filled(&mut self, count: usize) {
        self.len += count;
    }

    /// Removes the first `count` packets, which have another owner now.
    #[inline]
    pub(crate) fn forget_front(&mut self, count: usize) {
        let count = count.min(self.len);
        self.packets.copy_within(count..self.len, 0);
        self.len -= count;
    }

    /// Takes all packets out, in order.
    pub fn drain(&mut self, mut take: impl FnMut(Mbuf)) {
        self.rework(|packet| {
            take(packet);
            None
        });
    }

    /// Replaces each packet by the result of `work`, in order; returns the number of packets without one.
    pub(crate) fn rework(&mut self, mut work: impl FnMut(Mbuf) -> Option<Mbuf>) -> usize {
        // Without an owner meanwhile: a panic loses packets, and frees none twice.
        let count = std::mem::take(&mut self.len);
        let mut kept = 0;
        for at in 0..count {
            // SAFETY: the packet was ours, and the list has dropped it.
            if let Some(packet) = work(unsafe { Mbuf::from_raw(self.packets[at]) }) {
                self.packets[kept] = packet.into_raw();
                kept += 1;
            }
        }
        self.len = kept;
        count - kept
    }
}

impl Default for PacketList {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PacketList {
    fn drop(&mut self) {
        self.free_tail(0);
    }
}

impl fmt::Debug for PacketList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PacketList({} packets)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mbuf::tests::chain;
    use crate::{Mempool, testing};

    /// A burst with a packet, tagged with its slot, in each slot of the mask.
    fn burst(pool: &Mempool, mask: u64) -> Burst {
        let mut burst = Burst::new();
        for slot in 0..BURST_MAX {
            let mut packet = pool.copy_of(&[slot as u8; 100]).unwrap();
            packet.set_tag(slot as u64);
            assert_eq!(burst.put(packet).unwrap(), slot);
        }
        burst.free(!mask);
        burst
    }

    fn tags(list: &mut PacketList) -> Vec<u64> {
        std::iter::from_fn(|| list.pop().map(|packet| packet.tag())).collect()
    }

    #[test]
    fn slots_show_their_packets() {
        let pool = testing::pool(127);
        let mut burst = burst(&pool, 0b1010);
        assert_eq!((burst.owned(), burst.len(), burst.multi_segment()), (0b1010, 2, 0));
        assert_eq!((burst.head(1), burst.frame(3)), (&[1; 64], &[3; 100][..]));
        assert_eq!(burst.head(65), &[1; 64], "slots are taken modulo 64");
        burst.head_mut(1)[0] = 77;
        burst.frame_mut(1)[99] = 78;
        burst.set_tag(1, u64::MAX);
        burst.trim(3, 60);
        burst.trim(1, 101);
        assert_eq!((burst.lens()[1], burst.lens()[3]), (100, 60));
        let packet = burst.take(1).unwrap();
        assert_eq!((packet.data()[0], packet.data()[99], packet.tag()), (77, 78, u64::MAX));
        assert_eq!(burst.take(3).unwrap().len(), 60);
        assert!(burst.is_empty() && burst.take(3).is_none());
    }

    #[test]
    fn a_copy_has_bytes_of_its_own_in_as_many_buffers_as_they_need() {
        let pool = testing::pool(15);
        let data: Vec<u8> = (0..5000).map(|n| (n % 251) as u8).collect();
        let mut burst = Burst::new();
        burst.put(chain(&pool, &[&data[..100], &data[100..2100], &data[2100..4100]])).unwrap();
        burst.put(pool.copy_of(&data[..60]).unwrap()).unwrap();
        for (slot, len, buffers) in [(0, 4100, 3), (1, 60, 1)] {
            let copy = burst.copy(slot, &pool).unwrap();
            burst.frame_mut(slot).fill(0xee);
            let bytes: Vec<u8> = copy.chunks().flatten().copied().collect();
            assert_eq!((bytes, copy.segments()), (data[..len].to_vec(), buffers));
        }
        assert!(burst.copy(2, &pool).is_none());
        burst.say_removed(1, 0xa000);
        let tags = [0, 1, 2].map(|slot| burst.removed_tag(slot));
        assert_eq!(tags, [None, Some(0xa000), None], "a priority tag as well");
        drop(burst);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_slot_without_a_packet_is_harmless() {
        let pool = testing::pool(127);
        let mut burst = burst(&pool, 1);
        burst.head_mut(5).fill(0xee);
        burst.frame_mut(5).fill(0xee);
        burst.set_tag(5, 5);
        burst.trim(5, 0);
        assert_eq!((burst.tag(5), burst.lens()[5], burst.frame(5)), (0, 0, &[][..]));
        assert_eq!((burst.head(0), burst.owned()), (&[0; 64], 1));
        // A packet that was taken cannot be reached by its slot.
        let packet = burst.take(0).unwrap();
        burst.head_mut(0).fill(0xee);
        assert_eq!(packet.data(), [0; 100]);
        assert_eq!(burst.lens(), &[0; 64]);
    }

    #[test]
    fn packets_that_moved_all_at_once_cannot_be_reached_by_their_slots() {
        let pool = testing::pool(127);
        let (mut burst, mut list) = (burst(&pool, u64::MAX), PacketList::new());
        assert_eq!(burst.move_to(u64::MAX, &mut list), 0);
        (0..BURST_MAX).for_each(|slot| burst.head_mut(slot).fill(0xee));
        for slot in 0..BURST_MAX {
            assert_eq!(list.pop().unwrap().data(), [slot as u8; 100]);
        }
    }

    #[test]
    fn a_full_burst_gives_a_packet_back() {
        let pool = testing::pool(127);
        let mut burst = burst(&pool, u64::MAX);
        assert!(burst.put(pool.alloc().unwrap()).is_err());
        assert_eq!(burst.free(1 << 40 | 1 << 9), 2);
        assert_eq!(burst.put(pool.alloc().unwrap()).unwrap(), 9, "the lowest free slot");
        drop(burst);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_packet_too_near_its_buffer_s_end_is_given_back() {
        let pool = testing::pool(3);
        let mut packet = pool.copy_of(&[0; 2048]).unwrap();
        assert!(packet.adj(2048 - 63));
        assert!(Burst::new().put(packet).is_err());
    }

    #[test]
    fn segments_are_marked_and_trimmed() {
        let pool = testing::pool(7);
        let mut burst = Burst::new();
        burst.put(chain(&pool, &[&[1; 10], &[2; 10]])).unwrap();
        burst.put(pool.copy_of(&[3; 10]).unwrap()).unwrap();
        assert_eq!((burst.multi_segment(), burst.lens()[..2].to_vec()), (1, vec![20, 10]));
        assert_eq!(burst.frame(0), [1; 10]);
        let (frame, rest) = burst.frame_and_rest(0);
        frame[9] = 4;
        assert_eq!(rest.collect::<Vec<_>>(), [&[2; 10]]);
        assert_eq!(burst.frame_and_rest(1).1.count(), 0);
        burst.trim(0, 15);
        assert_eq!((burst.multi_segment(), burst.lens()[0], pool.in_use()), (1, 15, 3));
        let (_, firsts, lens) = burst.addresses();
        // SAFETY: the first of 64 entries, which the burst has.
        let lengths = unsafe { [*firsts, *lens] };
        assert_eq!(lengths, [10, 15], "what may be looked at, and the whole");
        burst.trim(0, 9);
        assert_eq!((burst.multi_segment(), burst.lens()[0], pool.in_use()), (0, 9, 2));
        assert_eq!(burst.take(0).unwrap().len(), 9);
    }

    /// Fills a burst as a queue does.
    fn receive<const SAID: bool>(burst: &mut Burst, packets: Vec<Mbuf>) -> usize {
        let count = packets.len();
        let space = burst.space().unwrap();
        for (place, packet) in space.iter_mut().zip(packets) {
            *place = packet.into_raw();
        }
        // SAFETY: the first `count` are packets that were ours.
        unsafe { burst.received::<SAID>(count) }
    }

    #[test]
    fn a_queue_delivers_headers_in_the_first_segment() {
        let pool = testing::pool(31);
        let mut burst = Burst::new();
        let packets = vec![
            chain(&pool, &[&[1; 10], &[2; 100], &[3; 1000]]),
            chain(&pool, &[&[1; 200], &[2; 10]]),
            pool.copy_of(&[4; 30]).unwrap(),
            chain(&pool, &[&[1; 10], &[2; 20]]),
        ];
        assert_eq!((receive::<false>(&mut burst, packets), burst.multi_segment()), (0, 0b1011));
        assert_eq!((burst.gather_headers(), burst.multi_segment()), (0, 0b0011));
        assert_eq!(burst.lens()[..4], [1110, 210, 30, 30]);
        let firsts = [0, 1, 2, 3].map(|slot| burst.frame(slot).len());
        assert_eq!(firsts, [128, 200, 30, 30]);
        assert_eq!(burst.frame(0)[..], [&[1; 10][..], &[2; 100], &[3; 18]].concat());
        burst.free(u64::MAX);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn packets_near_their_buffers_ends_are_received_with_their_tags() {
        let pool = testing::pool(7);
        let near = |left: usize| {
            let mut packet = pool.copy_of(&[1; 2048]).unwrap();
            assert!(packet.adj(2048 - left));
            packet
        };
        let mut burst = Burst::new();
        let packets = vec![near(72), near(71), near(64), near(63), pool.copy_of(&[1; 30]).unwrap()];
        assert_eq!((receive::<false>(&mut burst, packets), burst.owned()), (1, 0b10111));
        assert_eq!(burst.remove_tags_of(u64::MAX, 1), 0b10011);
        assert_eq!(burst.remove_tags_of(u64::MAX, 1), 0b10001);
        assert_eq!(burst.remove_tags_of(u64::MAX, 1), 0b10000);
        let lens = [0, 1, 2, 3, 4].map(|slot| burst.take(slot).map_or(0, |packet| packet.len()));
        assert_eq!(lens, [64, 67, 64, 0, 18]);
    }

    #[test]
    fn what_a_device_says_is_heard_if_it_says_something() {
        let pool = testing::pool(31);
        let (good, bad) = (sys::SHIM_MBUF_RX_IP_CKSUM_GOOD, sys::SHIM_MBUF_RX_IP_CKSUM_BAD);
        let flags = [0, good, bad, good | bad, sys::SHIM_MBUF_RX_VLAN_STRIPPED | good];
        let packets = || {
            let packets = flags.iter().map(|&flags| {
                let packet = pool.copy_of(&[1; 64]).unwrap();
                // SAFETY: the packet is ours.
                unsafe {
                    packet.raw().set_flags(flags);
                    packet.raw().set_vlan_tci(5);
                }
                packet
            });
            packets.collect::<Vec<_>>()
        };
        let said =
            |burst: &Burst| (burst.checksum_good(), burst.checksum_bad(), burst.vlan_stripped());
        let mut burst = Burst::new();
        receive::<true>(&mut burst, packets());
        assert_eq!(said(&burst), (0b10010, 0b00100, 0b10000), "good and bad at once is neither");
        let kept = burst.take(1).unwrap();
        burst.free(u64::MAX);
        receive::<false>(&mut burst, packets());
        assert_eq!(said(&burst), (0, 0, 0), "what was said of others is forgotten");
        burst.free(u64::MAX);
        receive::<true>(&mut burst, packets());
        burst.take(1).unwrap();
        assert_eq!(burst.put(kept).unwrap(), 1);
        assert_eq!(said(&burst), (0b10000, 0b00100, 0b10000), "nobody has said it of this one");
    }

    #[test]
    fn a_packet_loses_its_front_and_gets_it_back() {
        let pool = testing::pool(15);
        let frame: Vec<u8> = (0..100).collect();
        let mut burst = Burst::new();
        burst.put(pool.copy_of(&frame).unwrap()).unwrap();
        assert!(burst.strip(0, 14));
        assert_eq!((burst.frame(0), burst.lens()[0], burst.head(0)[0]), (&frame[14..], 86, 14));
        assert!(!burst.strip(0, 86) && !burst.strip(1, 1));
        assert!(burst.unstrip(0, 14));
        assert_eq!((burst.frame(0), burst.lens()[0]), (&frame[..], 100));
        assert!(!burst.unstrip(0, u16::MAX) && !burst.unstrip(0, 4000) && !burst.unstrip(1, 1));
        burst.fill_headroom(0);
        assert!(!burst.unstrip(0, 1));
        assert_eq!(burst.take(0).unwrap().data(), frame);
    }

    #[test]
    fn a_stripped_tag_is_known_until_it_is_forgotten() {
        let pool = testing::pool(1);
        let packet = pool.copy_of(&[1; 64]).unwrap();
        // SAFETY: the packet is ours.
        unsafe {
            packet.raw().set_flags(sys::SHIM_MBUF_RX_VLAN_STRIPPED);
            packet.raw().set_vlan_tci(0x5005);
        }
        let mut burst = Burst::new();
        receive::<true>(&mut burst, vec![packet]);
        assert_eq!([0, 1].map(|slot| burst.stripped_tag(slot)), [Some(0x5005), None]);
        burst.forget_stripped(1);
        assert_eq!((burst.vlan_stripped(), burst.stripped_tag(0)), (0, None));
    }

    /// 0x5000 is a priority tag, 0x5005 VLAN 5 with a priority.
    #[test]
    fn a_priority_tag_that_a_device_took_out_is_none() {
        let pool = testing::pool(3);
        let packets = [0x5000, 0x5005, 0].map(|tci| {
            let packet = pool.copy_of(&[1; 64]).unwrap();
            // SAFETY: the packet is ours.
            unsafe {
                packet.raw().set_flags(sys::SHIM_MBUF_RX_VLAN_STRIPPED);
                packet.raw().set_vlan_tci(tci);
            }
            packet
        });
        let mut burst = Burst::new();
        receive::<true>(&mut burst, packets.into());
        assert_eq!(burst.vlan_stripped(), 0b010);
        assert_eq!([0, 1, 2, 3].map(|slot| burst.stripped_priority(slot)), [2, 2, 0, 0]);
    }

    #[test]
    fn a_list_drops_its_newest_packets_first() {
        let pool = testing::pool(511);
        let mut list = PacketList::new();
        for round in 0..4 {
            assert_eq!(burst(&pool, u64::MAX).move_to(u64::MAX, &mut list), 0, "{round}");
        }
        assert_eq!((list.len(), list.room(), list.bytes()), (256, 0, 25_600));
        assert!(list.push(pool.alloc().unwrap()).is_err());
        assert_eq!(burst(&pool, 6).move_to(u64::MAX, &mut list), 6, "no room");
        assert_eq!((list.free_tail(300), list.free_tail(2), list.free_tail(2)), (0, 254, 0));
        assert_eq!(tags(&mut list), [0, 1]);
        assert_eq!(pool.leaked(), 0);
        list.push(pool.alloc().unwrap()).unwrap();
        drop(list);
        assert_eq!(pool.leaked(), 0);
    }

    /// Compares `append_to` with moving one packet at a time into vectors, with lists that do not exist and
    /// lists that fill up; also with all or nearly all packets going one way.
    #[test]
    fn append_to_is_what_a_slow_loop_does() {
        let pool = testing::pool(1500);
        let each = proptest::collection::vec(0u16..5, BURST_MAX).boxed();
        let one = (0u16..5).prop_map(|to| vec![to; BURST_MAX]).boxed();
        let other = (0u16..5, 0u16..5, 0..BURST_MAX).prop_map(|(to, other, at)| {
            (0..BURST_MAX).map(|slot| if slot == at { other } else { to }).collect()
        });
        let index = prop_oneof![each, one, other.boxed()];
        let first = (0u32..64).prop_map(|count| u64::MAX >> count);
        let masks = prop_oneof![any::<u64>().boxed(), first.boxed()];
        let filled = proptest::collection::vec(200usize..=LIST_MAX, 4);
        proptest!(|(have in masks.clone(), mask in masks, index in index, filled in filled)| {
            let mut burst = burst(&pool, have);
            let mut lists: Vec<PacketList> = Vec::new();
            lists.resize_with(4, PacketList::new);
            for (list, &filled) in lists.iter_mut().zip(&filled) {
                (0..filled).for_each(|_| list.push(pool.alloc().unwrap()).unwrap());
            }
            let (mut expected, mut left) = (vec![Vec::new(); 4], 0);
            for slot in (0..BURST_MAX).filter(|&slot| have & mask & bit(slot) != 0) {
                let to = usize::from(index[slot]);
                if to < 4 && filled[to] + expected[to].len() < LIST_MAX {
                    expected[to].push(slot as u64);
                } else {
                    left |= bit(slot);
                }
            }
            let index: [u16; BURST_MAX] = index.try_into().unwrap();
            prop_assert_eq!(burst.append_to(mask, &index, &mut lists), left);
            prop_assert_eq!(burst.owned(), have & !mask | left);
            for slot in 0..BURST_MAX {
                let there = burst.owned() & bit(slot) != 0;
                prop_assert_eq!(burst.frame(slot), &[slot as u8; 100][..100 * usize::from(there)]);
            }
            for ((list, filled), expected) in lists.iter_mut().zip(filled).zip(expected) {
                prop_assert_eq!(&tags(list)[filled..], expected);
            }
            drop((burst, lists));
            prop_assert_eq!(pool.leaked(), 0);
        });
    }
}
