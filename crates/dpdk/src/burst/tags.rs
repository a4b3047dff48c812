//! VLAN tags of a burst's packets: their removal and insertion.
//!
//! A router of VLANs removes as many tags as it inserts later, usually. Packets whose tags are removed together therefore
//! keep their mbuf as it is: their slots are in `behind`, and their mbufs begin [`Burst::behind_by`] bytes before their
//! heads. The insertion of as many bytes makes both agree again, without a look at the mbuf; other uses of the mbuf's
//! beginning and lengths are preceded by [`Burst::settle`].

use std::ptr::NonNull;

use wire::ethernet::{ADDRESSES_LEN, TAG_LEN};

use super::{BURST_MAX, Burst, HEAD, bit, first_slots, slots};

/// Bytes of the most tags that are removed and inserted together.
pub(super) const TAGS: usize = 2 * TAG_LEN;

/// The least length of a frame: addresses and Ethertype.
const LEAST: usize = ADDRESSES_LEN + 2;

impl Burst {
    /// Removes so many tags, of four bytes each, after a frame's two addresses: one or two. Returns
    /// false, and does nothing, for another number, for a slot without a packet, for a frame too
    /// short for the tags, and if less than [`HEAD`] bytes of buffer would be left.
    #[inline]
    pub fn remove_tags(&mut self, slot: usize, tags: usize) -> bool {
        match tags {
            1 => self.remove::<TAG_LEN>(slot % BURST_MAX),
            2 => self.remove::<TAGS>(slot % BURST_MAX),
            _ => false,
        }
    }

    /// As [`Burst::remove_tags`] for all slots of a mask. Returns those for which it was possible.
    #[inline]
    pub fn remove_tags_of(&mut self, mask: u64, tags: usize) -> u64 {
        match tags {
            1 => self.remove_of::<TAG_LEN>(mask),
            2 => self.remove_of::<TAGS>(mask),
            _ => 0,
        }
    }

    #[inline(always)]
    fn remove_of<const N: usize>(&mut self, mask: u64) -> u64 {
        let quick = self.may_be_behind::<N>(mask);
        let mut remove = |slot: usize| {
            // SAFETY: the slot has a packet of ours, which begins at `heads`, with `N` and `HEAD` bytes of buffer from
            // there on.
            self.heads[slot] = unsafe { swap_tags_out::<N>(self.heads[slot].cast()) }.cast();
        };
        match first_slots(quick) {
            Some(count) => {
                (0..count).for_each(&mut remove);
                self.lens[..count].iter_mut().for_each(|len| *len -= N as u16);
            }
            None => slots(quick).for_each(|slot| {
                remove(slot);
                self.lens[slot] -= N as u16;
            }),
        }
        if quick != 0 {
            self.behind |= quick;
            self.behind_by = N as u16;
            self.tight |= quick;
        }
        let rest = mask & !quick;
        if rest == 0 { quick } else { quick | self.remove_of_each::<N>(rest) }
    }

    /// Returns the slots of a mask from whose frames `N` bytes of tags can be removed without a look at their mbufs.
    #[inline(always)]
    fn may_be_behind<const N: usize>(&self, mask: u64) -> u64 {
        if self.behind != 0 && usize::from(self.behind_by) != N {
            return 0;
        }
        let mask = mask & self.owned & !(self.multi | self.tight | self.behind);
        self.at_least(mask, (LEAST + N) as u16)
    }

    #[inline(never)]
    fn remove_of_each<const N: usize>(&mut self, mask: u64) -> u64 {
        slots(mask).fold(0, |done, slot| done | u64::from(self.remove::<N>(slot)) << slot)
    }

    /// Removes `N` bytes after the addresses of a frame.
    fn remove<const N: usize>(&mut self, slot: usize) -> bool {
        self.settle(bit(slot));
        if self.first_len(slot) < LEAST + N {
            return false;
        }
        let mbuf = self.mbufs[slot];
        // SAFETY: the slot has a length, hence a packet of ours, which begins at `heads`. The bytes read and written
        // lie in its first segment, by its length, and so does the new beginning.
        unsafe {
            if u32::from(mbuf.data_off()) + (N + HEAD) as u32 > u32::from(mbuf.buf_len()) {
                return false;
            }
            self.heads[slot] = swap_tags_out::<N>(self.heads[slot].cast()).cast();
            mbuf.cut_front(N as u16);
        }
        self.lens[slot] -= N as u16;
        self.tight |= bit(slot);
        true
    }

    /// Inserts the bytes of one or two tags after a frame's two addresses. Returns false, and does
    /// nothing, for a slot without a packet, for one shorter than an Ethernet header, and without
    /// room in front of it.
    #[inline(always)]
    pub fn insert_tags<const N: usize>(&mut self, slot: usize, tags: [u8; N]) -> bool {
        const { assert!(N == TAG_LEN || N == TAGS) };
        let slot = slot % BURST_MAX;
        self.settle(bit(slot));
        if self.multi & bit(slot) != 0 {
            return self.insert_tags_into_odd(slot, tags);
        }
        self.insert_tags_into_single(slot, tags)
    }

    /// [`Burst::insert_tags`] for many slots. Calls `done` with the slot and the former length of each packet that got
    /// the tags; returns the other slots.
    #[inline(always)]
    pub fn insert_tags_of<const N: usize>(
        &mut self,
        mask: u64,
        tags: [u8; N],
        mut done: impl FnMut(usize, u16),
    ) -> u64 {
        let behind = if usize::from(self.behind_by) == N { mask & self.behind } else { 0 };
        for slot in slots(behind) {
            let len = self.lens[slot];
            // SAFETY: the slot has a packet of ours, with both addresses, whose mbuf begins `N` bytes in front of `heads`.
            let head = unsafe { put_tags_in(self.heads[slot].cast(), tags) };
            self.heads[slot] = head.cast();
            self.lens[slot] = len + N as u16;
            done(slot, len);
        }
        self.behind &= !behind;
        let rest = mask & !behind;
        if rest == 0 { 0 } else { self.insert_tags_of_each(rest, tags, done) }
    }

    /// [`Burst::insert_tags_of`] for packets whose mbufs change.
    #[inline(always)]
    fn insert_tags_of_each<const N: usize>(
        &mut self,
        mask: u64,
        tags: [u8; N],
        mut done: impl FnMut(usize, u16),
    ) -> u64 {
        self.settle(mask);
        let mut refused = 0;
        for slot in slots(mask & !self.multi) {
            let len = self.lens[slot];
            if self.insert_tags_into_single(slot, tags) {
                done(slot, len);
            } else {
                refused |= bit(slot);
            }
        }
        for slot in slots(mask & self.multi) {
            let len = self.lens[slot];
            if self.insert_tags_into_odd(slot, tags) {
                done(slot, len);
            } else {
                refused |= bit(slot);
            }
        }
        refused
    }

    /// [`Burst::insert_tags`] for a slot that is neither in `multi` nor in `behind`.
    #[inline(always)]
    fn insert_tags_into_single<const N: usize>(&mut self, slot: usize, tags: [u8; N]) -> bool {
        const MOST: u16 = u16::MAX - TAGS as u16;
        let whole = self.lens[slot];
        if !(LEAST as u16..=MOST).contains(&whole) {
            return self.insert_tags_into_odd(slot, tags);
        }
        // SAFETY: the slot has a length, hence a packet of ours, which begins at `heads` and has both addresses in its
        // one segment.
        let head = unsafe { self.mbufs[slot].insert_tags(self.heads[slot].cast(), tags) };
        let Some(head) = head else { return false };
        self.heads[slot] = head.cast();
        self.lens[slot] = whole + N as u16;
        true
    }

    /// [`Burst::insert_tags`] for packets of any length, in one segment or several.
    #[cold]
    fn insert_tags_into_odd<const N: usize>(&mut self, slot: usize, tags: [u8; N]) -> bool {
        if self.first_len(slot) < LEAST {
            return false;
        }
        // SAFETY: the slot has a length, hence a packet of ours, which begins at `heads` and has both addresses in its
        // first segment.
        let head = unsafe { self.mbufs[slot].insert_tags(self.heads[slot].cast(), tags) };
        let Some(head) = head else { return false };
        self.heads[slot] = head.cast();
        self.lens[slot] = self.lens[slot].saturating_add(N as u16);
        true
    }

    /// Lets the mbufs of these slots begin where their packets begin.
    #[inline(always)]
    pub(super) fn settle(&mut self, mask: u64) {
        if self.behind & mask != 0 {
            self.settle_some(mask);
        }
    }

    #[inline(never)]
    fn settle_some(&mut self, mask: u64) {
        for slot in slots(self.behind & mask) {
            // SAFETY: a slot in `behind` holds a packet of ours, whose mbuf begins so many bytes before its head.
            unsafe { self.mbufs[slot].cut_front(self.behind_by) };
        }
        self.behind &= !mask;
    }

    /// Lets a slot's mbuf begin where its packet begins if that is about to be shorter than any frame.
    #[inline(always)]
    pub(super) fn settle_short(&mut self, slot: usize, len: u16) {
        if usize::from(len) < LEAST {
            self.settle(bit(slot));
        }
    }

    /// Returns the number of bytes that a slot's mbuf begins before its head.
    #[inline(always)]
    pub(super) fn lag(&self, slot: usize) -> u16 {
        if self.behind & bit(slot) == 0 { 0 } else { self.behind_by }
    }
}

/// Exchanges a frame's addresses and the `N` bytes of tags behind them, so that the compiler may use one load, one shuffle
/// and one store. Returns the frame's beginning without the tags.
///
/// # Safety
/// There are 12 and `N` bytes, which nobody else uses meanwhile.
#[inline(always)]
unsafe fn swap_tags_out<const N: usize>(head: NonNull<u8>) -> NonNull<u8> {
    const { assert!(N == TAG_LEN || N == TAGS) };
    // SAFETY: by the caller.
    unsafe {
        if N == TAG_LEN {
            let words = head.cast::<[[u8; 4]; 4]>();
            let [a, b, c, tag] = words.read();
            words.write([tag, a, b, c]);
        } else {
            let words = head.cast::<[[u8; 4]; 5]>();
            let [a, b, c, outer, inner] = words.read();
            words.write([outer, inner, a, b, c]);
        }
        head.add(N)
    }
}

/// Moves a frame's addresses `N` bytes towards its buffer's beginning, and writes tags behind them. Returns the frame's new
/// beginning.
///
/// # Safety
/// There are `N` bytes in front of the frame, and 12 of its own, which nobody else uses meanwhile.
#[inline(always)]
pub(crate) unsafe fn put_tags_in<const N: usize>(head: NonNull<u8>, tags: [u8; N]) -> NonNull<u8> {
    // SAFETY: by the caller.
    unsafe {
        let addresses = head.cast::<[u8; ADDRESSES_LEN]>().read();
        let head = head.sub(N);
        head.cast::<[u8; ADDRESSES_LEN]>().write(addresses);
        head.add(ADDRESSES_LEN).cast::<[u8; N]>().write(tags);
        head
    }
}
