//! Where packets are while they are worked on: numbered slots, and lists.
//!
//! A [`Burst`] is filled once by a queue or a ring. What the packet path asks of it afterwards
//! (which slots hold a packet, how long it is, its first 64 bytes) are loads from arrays without
//! a branch; asking for a slot that holds no packet is harmless and answers zeros or scratch.
//! A [`PacketList`] collects packets on their way out.
//!
//! Invariants of a burst, which its `unsafe` blocks rely on: for a slot whose bit is set in
//! `owned`, `mbufs` is a packet that the burst owns alone, `heads` its first data byte with at
//! least [`HEAD`] bytes of buffer behind it, and `lens` the data length of its first segment. For
//! any other slot, `heads` is `scratch` and `lens` is 0. Slots keep packets in the order received.

use std::ptr::NonNull;
use std::{fmt, slice};

use crate::mbuf::{Mbuf, RawMbuf, free_bulk};
use crate::time::prefetch;

/// Slots in a burst.
pub const BURST_MAX: usize = 64;

/// Bytes of every packet that [`Burst::head`] reaches, whatever the packet's length.
pub const HEAD: usize = 64;

/// Packets that a [`PacketList`] holds at most.
pub const LIST_MAX: usize = 256;

/// Up to 64 packets in numbered slots, owned.
pub struct Burst {
    owned: u64,
    multi: u64,
    lens: [u16; BURST_MAX],
    heads: [NonNull<[u8; HEAD]>; BURST_MAX],
    mbufs: [RawMbuf; BURST_MAX],
    /// From `Box::into_raw`, freed on drop: what slots without a packet point at.
    scratch: NonNull<[u8; HEAD]>,
}

// SAFETY: packets belong to no thread, and the scratch is the burst's own.
unsafe impl Send for Burst {}

/// The bit of a slot, which is taken modulo 64.
#[inline(always)]
fn bit(slot: usize) -> u64 {
    1 << (slot % BURST_MAX)
}

/// The slots in a mask, from the lowest.
#[inline(always)]
fn slots(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = mask.trailing_zeros() as usize;
        (mask != 0).then(|| {
            mask &= mask - 1;
            slot
        })
    })
}

impl Burst {
    /// An empty burst.
    pub fn new() -> Self {
        let scratch = NonNull::from(Box::leak(Box::new([0; HEAD])));
        Self {
            owned: 0,
            multi: 0,
            lens: [0; BURST_MAX],
            heads: [scratch; BURST_MAX],
            mbufs: [RawMbuf::NULL; BURST_MAX],
            scratch,
        }
    }

    /// The slots that hold a packet, one bit each.
    #[inline(always)]
    pub fn owned(&self) -> u64 {
        self.owned
    }

    /// How many packets the burst holds.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.owned.count_ones() as usize
    }

    /// Whether the burst holds no packet.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.owned == 0
    }

    /// The slots whose packet has more than one segment.
    #[inline(always)]
    pub fn multi_segment(&self) -> u64 {
        self.multi
    }

    /// The length of each slot's first segment, which is the packet's unless
    /// [`Burst::multi_segment`] says otherwise; 0 for a slot without a packet.
    #[inline(always)]
    pub fn lens(&self) -> &[u16; BURST_MAX] {
        &self.lens
    }

    /// The first 64 bytes of the buffer that the packet begins in, of which only the first
    /// [`Burst::lens`] belong to the packet. Of a slot without a packet: some bytes. `slot` is
    /// taken modulo 64.
    #[inline(always)]
    pub fn head(&self, slot: usize) -> &[u8; HEAD] {
        // SAFETY: by the invariants, a packet of ours or the scratch, both borrowed with `self`.
        unsafe { self.heads[slot % BURST_MAX].as_ref() }
    }

    /// As [`Burst::head`], to be changed. Changes to a slot without a packet go nowhere.
    #[inline(always)]
    pub fn head_mut(&mut self, slot: usize) -> &mut [u8; HEAD] {
        // SAFETY: as in `head`; one slot at a time can be borrowed, so slots that share the
        // scratch do not overlap.
        unsafe { self.heads[slot % BURST_MAX].as_mut() }
    }

    /// The bytes of the packet's first segment; none for a slot without a packet.
    #[inline]
    pub fn frame(&self, slot: usize) -> &[u8] {
        let slot = slot % BURST_MAX;
        // SAFETY: by the invariants, `lens` bytes of the packet lie behind its head; they are 0
        // for the scratch.
        unsafe { slice::from_raw_parts(self.heads[slot].as_ptr().cast(), self.lens[slot].into()) }
    }

    /// As [`Burst::frame`], to be changed.
    #[inline]
    pub fn frame_mut(&mut self, slot: usize) -> &mut [u8] {
        let slot = slot % BURST_MAX;
        let len = usize::from(self.lens[slot]);
        // SAFETY: as in `frame`; the packet is ours alone.
        unsafe { slice::from_raw_parts_mut(self.heads[slot].as_ptr().cast(), len) }
    }

    /// Shortens a packet to `len` bytes. Nothing happens to one that is not longer, nor to a
    /// slot without a packet.
    #[inline]
    pub fn trim(&mut self, slot: usize, len: u16) {
        let slot = slot % BURST_MAX;
        if self.multi & bit(slot) != 0 {
            return self.trim_segments(slot, len);
        }
        // A slot without a packet has length 0, which nothing is below.
        if len < self.lens[slot] {
            self.lens[slot] = len;
            // SAFETY: the slot has a length, hence a packet of ours, which is longer.
            unsafe { self.mbufs[slot].set_single_len(len) };
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
            self.lens[slot] = mbuf.data_len();
            if mbuf.segments() == 1 {
                self.multi &= !bit(slot);
            }
        }
    }

    /// Where the array of the slots' first bytes and that of their lengths are: what [`Burst::head`] and
    /// [`Burst::lens`] read, for code that is not in Rust. Valid until the burst is changed; behind each
    /// first byte are [`HEAD`] bytes, or as many as the length says if that is more.
    #[inline]
    pub fn addresses(&mut self) -> (*const *mut u8, *const u16) {
        (self.heads.as_ptr().cast(), self.lens.as_ptr())
    }

    /// The packet's tag, see [`Mbuf::tag`]; 0 for a slot without a packet.
    #[inline]
    pub fn tag(&self, slot: usize) -> u64 {
        if self.owned & bit(slot) == 0 {
            return 0;
        }
        // SAFETY: the slot holds a packet of ours.
        unsafe { self.mbufs[slot % BURST_MAX].tag() }
    }

    /// Sets the packet's tag. Nothing happens to a slot without a packet.
    #[inline]
    pub fn set_tag(&mut self, slot: usize, tag: u64) {
        if self.owned & bit(slot) != 0 {
            // SAFETY: the slot holds a packet of ours.
            unsafe { self.mbufs[slot % BURST_MAX].set_tag(tag) }
        }
    }

    /// Takes the packet out of a slot.
    pub fn take(&mut self, slot: usize) -> Option<Mbuf> {
        let slot = slot % BURST_MAX;
        if self.owned & bit(slot) == 0 {
            return None;
        }
        let mbuf = self.mbufs[slot];
        self.forget(bit(slot));
        // SAFETY: the packet was ours, and the slot has forgotten it.
        Some(unsafe { Mbuf::from_raw(mbuf) })
    }

    /// Puts a packet into the lowest free slot and says which.
    ///
    /// # Errors
    /// Gives the packet back when the burst is full, or when less than 64 bytes of its buffer
    /// are left behind the packet's beginning.
    pub fn put(&mut self, packet: Mbuf) -> Result<usize, Mbuf> {
        let slot = (!self.owned).trailing_zeros() as usize;
        // SAFETY: the packet is the caller's, who has given it to us.
        if slot == BURST_MAX || !unsafe { usable(packet.raw()) } {
            return Err(packet);
        }
        self.mbufs[slot] = packet.into_raw();
        self.admit(slot);
        self.owned |= bit(slot);
        Ok(slot)
    }

    /// Frees the packets in these slots; returns how many there were.
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
        // SAFETY: the packets were ours, and their slots have forgotten them.
        unsafe { free_bulk(&mut packets[..count]) };
        count
    }

    /// Moves the packet of each slot in `mask` to the end of `lists[index[slot]]`, from the
    /// lowest slot up. Returns the slots whose packet could not be moved, because that list does
    /// not exist or has no room; the burst still has them.
    #[inline]
    pub fn append_to(
        &mut self,
        mask: u64,
        index: &[u16; BURST_MAX],
        lists: &mut [PacketList],
    ) -> u64 {
        let mask = mask & self.owned;
        if let Some((count, place)) = all_one_way(mask, index)
            && let Some(list) = lists.get_mut(place).filter(|list| list.room() >= count)
        {
            list.push_all(&self.mbufs[..count]);
            self.forget(mask);
            return 0;
        }
        let mut left = 0;
        let mut append = |slot: usize| {
            // Both tests fail so rarely that the processor predicts them; which list it is
            // decides an address, never a jump.
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

    /// Moves the packet of each slot in `mask` to the end of one list, from the lowest slot up.
    /// Returns the slots for which the list had no room; the burst still has them.
    #[inline]
    pub fn move_to(&mut self, mask: u64, list: &mut PacketList) -> u64 {
        self.append_to(mask, &[0; BURST_MAX], slice::from_mut(list))
    }

    /// Where a queue or a ring writes packets, if the burst is empty. [`Burst::received`] follows.
    #[inline]
    pub(crate) fn space(&mut self) -> Option<&mut [RawMbuf; BURST_MAX]> {
        self.is_empty().then_some(&mut self.mbufs)
    }

    /// Takes over the first `count` packets of [`Burst::space`] and returns how many of them were
    /// unusable and have been freed: shared with someone, or with less than 64 bytes of buffer.
    ///
    /// # Safety
    /// The burst is empty, and the first `count` entries are packets the caller owned.
    #[inline]
    pub(crate) unsafe fn received(&mut self, count: usize) -> usize {
        let count = count.min(BURST_MAX);
        let mut bad = 0;
        self.multi = 0;
        for slot in 0..count {
            // SAFETY: by the caller, a packet of ours.
            bad |= u64::from(!unsafe { usable(self.mbufs[slot]) }) << slot;
            self.admit(slot);
            prefetch(self.heads[slot].as_ptr());
        }
        self.owned = if count == 0 { 0 } else { u64::MAX >> (BURST_MAX - count) };
        if bad == 0 { 0 } else { self.free(bad) }
    }

    /// Fills the arrays of a slot from its packet.
    #[inline(always)]
    fn admit(&mut self, slot: usize) {
        let mbuf = self.mbufs[slot];
        // SAFETY: the callers own the packet; its data pointer is not null, as it lies in a
        // buffer. (An unusable packet's head is never read: `received` frees it.)
        unsafe {
            self.heads[slot] = NonNull::new_unchecked(mbuf.data().cast());
            self.lens[slot] = mbuf.data_len();
            self.multi |= u64::from(mbuf.segments() > 1) << slot;
        }
    }

    /// Clears slots whose packets have gone.
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
    }
}

/// Whether a packet can be in a burst: nobody shares it, and its buffer holds both its data and
/// the [`HEAD`] bytes that are looked at whatever its length.
///
/// # Safety
/// The caller owns the packet.
#[inline(always)]
unsafe fn usable(mbuf: RawMbuf) -> bool {
    // SAFETY: by the caller.
    unsafe {
        let seen = u32::from(mbuf.data_len()).max(HEAD as u32);
        let fits = u32::from(mbuf.data_off()) + seen <= u32::from(mbuf.buf_len());
        fits & (mbuf.refcnt() == 1)
    }
}

/// How many slots there are in a mask, if they are the first ones, all of them.
#[inline(always)]
fn first_slots(mask: u64) -> Option<usize> {
    (mask & mask.wrapping_add(1) == 0).then(|| mask.trailing_ones() as usize)
}

/// How many packets there are and where they go, if they are in the first slots and all go to one
/// place: usual for a router with two ports, and worth a comparison of some vectors.
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
    /// An empty list.
    pub fn new() -> Self {
        Self { len: 0, packets: [RawMbuf::NULL; LIST_MAX] }
    }

    /// How many packets the list holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many more packets fit.
    #[inline]
    pub fn room(&self) -> usize {
        LIST_MAX - self.len
    }

    /// Bytes of all packets together.
    pub fn bytes(&self) -> u64 {
        // SAFETY: the packets are ours.
        self.as_slice().iter().map(|mbuf| u64::from(unsafe { mbuf.pkt_len() })).sum()
    }

    /// Adds a packet at the end.
    ///
    /// # Errors
    /// Gives it back when the list is full.
    #[inline]
    pub fn push(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        if self.push_raw(packet.raw()) {
            // The list has it now.
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
        // SAFETY: the packet was ours, and the list has forgotten it.
        Some(unsafe { Mbuf::from_raw(first) })
    }

    /// Frees the newest packets so that at most `keep` stay; returns how many it freed.
    pub fn free_tail(&mut self, keep: usize) -> usize {
        let keep = keep.min(self.len);
        let freed = self.len - keep;
        if freed > 0 {
            let tail = keep..self.len;
            self.len = keep;
            // SAFETY: the packets were ours, and the list has forgotten them.
            unsafe { free_bulk(&mut self.packets[tail]) };
        }
        freed
    }

    /// Adds a packet; false if there is no room. That it is ours is `RawMbuf`'s users' promise.
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

    /// Adds packets. There must be room for all; that they are ours is `RawMbuf`'s users' promise.
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

    /// The places behind the last packet.
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

    /// Forgets the first `count` packets, which someone else now owns.
    #[inline]
    pub(crate) fn forget_front(&mut self, count: usize) {
        let count = count.min(self.len);
        self.packets.copy_within(count..self.len, 0);
        self.len -= count;
    }

    /// Keeps the packets that `keep` accepts, in order, and frees the others; returns how many.
    pub(crate) fn retain(&mut self, keep: impl Fn(RawMbuf) -> bool) -> usize {
        let mut refused = [RawMbuf::NULL; LIST_MAX];
        let (mut kept, mut dropped) = (0, 0);
        for at in 0..self.len {
            let packet = self.packets[at];
            if keep(packet) {
                self.packets[kept] = packet;
                kept += 1;
            } else {
                refused[dropped] = packet;
                dropped += 1;
            }
        }
        self.len = kept;
        // SAFETY: the packets were ours, and the list has forgotten them.
        unsafe { free_bulk(&mut refused[..dropped]) };
        dropped
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
    fn a_slot_without_a_packet_is_harmless() {
        let pool = testing::pool(127);
        let mut burst = burst(&pool, 1);
        burst.head_mut(5).fill(0xee);
        burst.frame_mut(5).fill(0xee);
        burst.set_tag(5, 5);
        burst.trim(5, 0);
        assert_eq!((burst.tag(5), burst.lens()[5], burst.frame(5)), (0, 0, &[][..]));
        assert_eq!((burst.head(0), burst.owned()), (&[0; 64], 1));
        // A packet that has left cannot be reached by its slot.
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
        assert_eq!((burst.multi_segment(), burst.lens()[0]), (1, 10));
        burst.trim(0, 15);
        assert_eq!((burst.multi_segment(), burst.lens()[0], pool.in_use()), (1, 10, 3));
        burst.trim(0, 9);
        assert_eq!((burst.multi_segment(), burst.lens()[0], pool.in_use()), (0, 9, 2));
        assert_eq!(burst.take(0).unwrap().len(), 9);
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

    /// `append_to` against one packet at a time into vectors, with lists that do not exist and
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
