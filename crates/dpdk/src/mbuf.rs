//! A packet outside a burst, as the slow path processes it, one at a time.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::{fmt, slice};

use dpdk_sys as sys;

mod requests;
pub(crate) mod traffic_class;

pub use self::requests::{Layers, Transport};
pub(crate) use self::requests::{REQUESTS, TAG};
use crate::burst::put_tags_in;
use crate::shared::LENT_OWN;

/// The fields of DPDK's `rte_mbuf` that the packet path reads and writes without a call. DPDK
/// nests them in anonymous unions that differ between releases, so they are reached by the
/// offsets that the C compiler computed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct RawMbuf(pub(crate) *mut sys::rte_mbuf);

impl RawMbuf {
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());

    #[inline(always)]
    fn field<T>(self, offset: u32) -> *mut T {
        self.0.cast::<u8>().wrapping_add(offset as usize).cast()
    }

    /// Returns the address of the first segment's packet bytes.
    ///
    /// # Safety
    /// `self` points to an mbuf that no one else uses meanwhile. This applies to all functions below.
    #[inline(always)]
    pub(crate) unsafe fn data(self) -> *mut u8 {
        // SAFETY: by the caller, the field is there to read.
        let buffer = unsafe { self.field::<*mut u8>(sys::MBUF_BUF_ADDR).read() };
        // SAFETY: as above.
        buffer.wrapping_add(usize::from(unsafe { self.data_off() }))
    }

    #[inline(always)]
    pub(crate) unsafe fn data_off(self) -> u16 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u16>(sys::MBUF_DATA_OFF).read() }
    }

    #[inline(always)]
    pub(crate) unsafe fn data_len(self) -> u16 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u16>(sys::MBUF_DATA_LEN).read() }
    }

    #[inline(always)]
    pub(crate) unsafe fn pkt_len(self) -> u32 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u32>(sys::MBUF_PKT_LEN).read() }
    }

    #[inline(always)]
    pub(crate) unsafe fn buf_len(self) -> u16 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u16>(sys::MBUF_BUF_LEN).read() }
    }

    #[inline(always)]
    pub(crate) unsafe fn refcnt(self) -> u16 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u16>(sys::MBUF_REFCNT).read() }
    }

    #[inline(always)]
    pub(crate) unsafe fn segments(self) -> u16 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u16>(sys::MBUF_NB_SEGS).read() }
    }

    /// Returns DPDK's bits: a device's results for a packet, and requests to a device.
    #[inline(always)]
    pub(crate) unsafe fn flags(self) -> u64 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u64>(sys::MBUF_OL_FLAGS).read() }
    }

    pub(crate) unsafe fn set_flags(self, flags: u64) {
        // SAFETY: by the caller, the field is there to write.
        unsafe { self.field::<u64>(sys::MBUF_OL_FLAGS).write(flags) }
    }

    /// Returns the tag that a device stripped from the frame, if [`Self::flags`] report it: priority and
    /// VLAN.
    pub(crate) unsafe fn vlan_tci(self) -> u16 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u16>(sys::MBUF_VLAN_TCI).read() }
    }

    pub(crate) unsafe fn set_vlan_tci(self, tci: u16) {
        // SAFETY: by the caller, the field is there to write.
        unsafe { self.field::<u16>(sys::MBUF_VLAN_TCI).write(tci) }
    }

    /// Sets where the data begin in the buffer, and the lengths of the first segment and of the packet.
    #[inline(always)]
    pub(crate) unsafe fn set_front(self, off: u16, first: u16, whole: u32) {
        // SAFETY: by the caller, the fields are there, and the data lie inside the buffer.
        unsafe {
            self.set_data(off, first);
            self.set_pkt_len(whole);
        }
    }

    /// Moves the beginning of the data by so many bytes, towards the end of the buffer or, as the two's complement of
    /// a number, towards its beginning, and changes the lengths of segment and packet accordingly. Three additions to
    /// memory cost less than loads and stores with the lengths between them.
    #[inline(always)]
    pub(crate) unsafe fn shift_front(self, by: u16) {
        // SAFETY: by the caller, the fields are there, and the data stay inside the buffer.
        unsafe {
            let off = self.field::<u16>(sys::MBUF_DATA_OFF);
            off.write(off.read().wrapping_add(by));
            let len = self.field::<u16>(sys::MBUF_DATA_LEN);
            len.write(len.read().wrapping_sub(by));
            let whole = self.field::<u32>(sys::MBUF_PKT_LEN);
            whole.write(whole.read().wrapping_sub(by as i16 as u32));
        }
    }

    /// Inserts the bytes of VLAN tags after the two Ethernet addresses at the beginning `head` of the first segment.
    /// Returns the new beginning; `None`, and does nothing, without room in front.
    #[inline(always)]
    pub(crate) unsafe fn insert_tags<const N: usize>(
        self,
        head: NonNull<u8>,
        tags: [u8; N],
    ) -> Option<NonNull<u8>> {
        // SAFETY: by the caller, the packet exists, is the caller's alone and has both addresses in its first segment;
        // the data grow into the headroom, inside the buffer, by as much as the lengths grow.
        unsafe {
            if usize::from(self.data_off()) < N {
                return None;
            }
            let head = put_tags_in(head, tags);
            self.shift_front((N as u16).wrapping_neg());
            Some(head)
        }
    }

    pub(crate) unsafe fn next(self) -> Self {
        // SAFETY: by the caller, the field is there to read.
        Self(unsafe { self.field::<*mut sys::rte_mbuf>(sys::MBUF_NEXT).read() })
    }

    /// Returns the application's 8 bytes: the `hash` union, which is aligned to 4 bytes only.
    #[inline(always)]
    pub(crate) unsafe fn tag(self) -> u64 {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.field::<u64>(sys::MBUF_HASH).read_unaligned() }
    }

    #[inline(always)]
    pub(crate) unsafe fn set_tag(self, tag: u64) {
        // SAFETY: by the caller, the field is there to write.
        unsafe { self.field::<u64>(sys::MBUF_HASH).write_unaligned(tag) }
    }

    #[inline(always)]
    unsafe fn set_data(self, off: u16, len: u16) {
        // SAFETY: by the caller, the fields are there to write.
        unsafe {
            self.field::<u16>(sys::MBUF_DATA_OFF).write(off);
            self.field::<u16>(sys::MBUF_DATA_LEN).write(len);
        }
    }

    #[inline(always)]
    unsafe fn set_pkt_len(self, len: u32) {
        // SAFETY: by the caller, the field is there to write.
        unsafe { self.field::<u32>(sys::MBUF_PKT_LEN).write(len) }
    }

    /// Shortens a single-segment packet; `len` is at most its length.
    #[inline(always)]
    pub(crate) unsafe fn set_single_len(self, len: u16) {
        // SAFETY: by the caller, the fields are there to write.
        unsafe {
            self.field::<u16>(sys::MBUF_DATA_LEN).write(len);
            self.set_pkt_len(len.into());
        }
    }

    /// Returns true if this segment's bytes lie in another packet's buffer, see [`crate::Shared`].
    unsafe fn is_reference(self) -> bool {
        // SAFETY: by the caller, the field is there to read.
        unsafe { self.flags() & sys::SHIM_MBUF_INDIRECT != 0 }
    }

    /// Returns the number of free bytes after the data of this segment: none if the buffer is
    /// another packet's.
    unsafe fn tailroom(self) -> u16 {
        // SAFETY: by the caller, the fields are there to read.
        unsafe {
            if self.is_reference() {
                return 0;
            }
            self.buf_len().saturating_sub(self.data_off()).saturating_sub(self.data_len())
        }
    }

    /// Iterates over the bytes of this segment and the following ones; nothing for
    /// [`RawMbuf::NULL`]. The caller ensures that they are borrowed no longer than the packet.
    #[inline]
    pub(crate) unsafe fn chunks<'a>(self) -> impl Iterator<Item = &'a [u8]> {
        let mut segment = self;
        std::iter::from_fn(move || {
            if segment.0.is_null() {
                return None;
            }
            // SAFETY: by the caller, a segment of a packet, whose data lie inside its buffer; its link
            // leads to a segment or is null.
            unsafe {
                let bytes = slice::from_raw_parts(segment.data(), segment.data_len().into());
                segment = segment.next();
                Some(bytes)
            }
        })
    }

    /// Moves bytes from the later segments into the first one until it has `want`, as far as there
    /// are bytes and room. Emptied segments are freed.
    pub(crate) unsafe fn pull_up(self, want: u16) {
        // SAFETY: by the caller the chain is ours, so its links lead to segments or end in null; bytes
        // are copied into the tailroom of the first segment, whose buffer no other segment shares; an
        // emptied segment is unlinked before it is freed.
        unsafe {
            let mut missing = want.saturating_sub(self.data_len()).min(self.tailroom());
            while missing > 0 && !self.next().0.is_null() {
                let (next, have) = (self.next(), self.data_len());
                let moved = missing.min(next.data_len());
                let end = self.data().add(have.into());
                std::ptr::copy_nonoverlapping(next.data(), end, moved.into());
                self.set_data(self.data_off(), have + moved);
                next.set_data(next.data_off() + moved, next.data_len() - moved);
                missing -= moved;
                if next.data_len() == 0 {
                    self.unlink_second();
                }
            }
        }
    }

    /// Frees the second segment, which must exist.
    unsafe fn unlink_second(self) {
        // SAFETY: by the caller the chain is ours and has a second segment.
        unsafe {
            let second = self.next();
            let link = |of: Self| of.field::<*mut sys::rte_mbuf>(sys::MBUF_NEXT);
            link(self).write(second.next().0);
            link(second).write(std::ptr::null_mut());
            self.field::<u16>(sys::MBUF_NB_SEGS).write(self.segments() - 1);
            free_chain(second);
        }
    }

    /// Cuts the packet at `len` bytes and frees the segments after the cut; `len` is at most the
    /// packet's length.
    pub(crate) unsafe fn cut(self, len: u32) {
        let (mut segment, mut kept, mut before) = (self, 1u16, 0u32);
        // SAFETY: by the caller the chain is ours, so its links lead to segments or end in null, and the
        // freed tail is unlinked before it can be reached.
        unsafe {
            while before + u32::from(segment.data_len()) < len && !segment.next().0.is_null() {
                before += u32::from(segment.data_len());
                segment = segment.next();
                kept += 1;
            }
            // Not more than the segment has, regardless of the total reported by a device.
            let rest = (len - before).min(segment.data_len().into()) as u16;
            segment.field::<u16>(sys::MBUF_DATA_LEN).write(rest);
            let tail = segment.next();
            segment.field::<*mut sys::rte_mbuf>(sys::MBUF_NEXT).write(std::ptr::null_mut());
            self.field::<u16>(sys::MBUF_NB_SEGS).write(kept);
            self.set_pkt_len(len);
            if !tail.0.is_null() {
                free_chain(tail);
            }
        }
    }
}

/// Frees segments that were cut off a packet.
///
/// # Safety
/// `first` and what it links to belong to the caller, who passes them on.
unsafe fn free_chain(first: RawMbuf) {
    // SAFETY: by the caller; `rte_pktmbuf_free` follows `next`, not the count of segments.
    unsafe { sys::rte_pktmbuf_free(first.0) }
}

/// Gives packets back to their pools.
///
/// # Safety
/// The caller owns each of these packets and gives it up.
pub(crate) unsafe fn free_bulk(packets: &mut [RawMbuf]) {
    // SAFETY: by the caller; `RawMbuf` is a transparent pointer, and the length fits because no
    // burst or list has more than a few hundred packets.
    unsafe { sys::rte_pktmbuf_free_bulk(packets.as_mut_ptr().cast(), packets.len() as u32) }
}

/// A packet, owned: dropping it returns it to its pool. Its bytes may lie in several segments;
/// [`Mbuf::data`] is the first.
pub struct Mbuf {
    raw: NonNull<sys::rte_mbuf>,
    not_sync: PhantomData<*mut ()>,
}

// SAFETY: an mbuf belongs to no thread; pools take packets back from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes over a packet.
    ///
    /// # Safety
    /// `raw` is an mbuf, or the first of a chain, that the caller owns alone (reference count 1, or more
    /// if copies share it, see `shared.rs`; data inside the buffer) and gives up.
    #[inline]
    pub(crate) unsafe fn from_raw(raw: RawMbuf) -> Self {
        // SAFETY: by the caller, not null.
        Self { raw: unsafe { NonNull::new_unchecked(raw.0) }, not_sync: PhantomData }
    }

    #[inline]
    pub(crate) fn raw(&self) -> RawMbuf {
        RawMbuf(self.raw.as_ptr())
    }

    /// Gives the packet up without freeing it.
    #[inline]
    pub(crate) fn into_raw(self) -> RawMbuf {
        ManuallyDrop::new(self).raw()
    }

    /// Returns the bytes of the first segment; the whole packet if there is only one, see [`Mbuf::segments`].
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the packet is ours; its data lie inside its buffer (checked on receive, kept
        // by every method here) and its buffer is initialised memory of the pool.
        unsafe { slice::from_raw_parts(self.raw().data(), usize::from(self.raw().data_len())) }
    }

    /// Returns the bytes of the first segment, mutable; those of its beginning only while a copy shares the others, see
    /// [`crate::Burst::copy_by_reference`].
    #[inline]
    pub fn data_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `data`; a copy that shares the packet (reference count above 1) has the first bytes for itself.
        unsafe {
            let len = usize::from(self.raw().data_len());
            let own = if self.raw().refcnt() == 1 { len } else { len.min(LENT_OWN) };
            slice::from_raw_parts_mut(self.raw().data(), own)
        }
    }

    /// Iterates over the bytes of each segment.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        // SAFETY: the packet is ours, and borrowed as long as its bytes.
        unsafe { self.raw().chunks() }
    }

    /// Returns the length of the packet, all segments together.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: the packet is ours.
        unsafe { self.raw().pkt_len() as usize }
    }

    /// Returns true if the packet has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of segments, at least 1.
    pub fn segments(&self) -> usize {
        // SAFETY: the packet is ours.
        usize::from(unsafe { self.raw().segments() })
    }

    /// Shortens the packet to its first `len` bytes, freeing emptied segments. Returns false, and does
    /// nothing, if it is shorter already.
    #[must_use]
    pub fn trim_to(&mut self, len: usize) -> bool {
        if len > self.len() {
            return false;
        }
        // SAFETY: the packet is ours and has at least `len` bytes, which therefore fit an u32.
        unsafe { self.raw().cut(len as u32) };
        true
    }

    /// Adds `len` zero bytes in front and returns them; returns `None`, and does nothing, without room.
    pub fn prepend(&mut self, len: usize) -> Option<&mut [u8]> {
        let raw = self.raw();
        // SAFETY: the packet is ours.
        let (off, data_len, total) = unsafe { (raw.data_off(), raw.data_len(), raw.pkt_len()) };
        let grown = u16::try_from(len).ok()?;
        // SAFETY: the packet is ours; the data grow into the headroom, inside the buffer.
        let front = unsafe {
            raw.set_data(off.checked_sub(grown)?, data_len.checked_add(grown)?);
            raw.set_pkt_len(total + u32::from(grown));
            slice::from_raw_parts_mut(raw.data(), len)
        };
        front.fill(0);
        Some(front)
    }

    /// Adds `len` zero bytes at the end of the last segment and returns them; returns `None`, and does
    /// nothing, without room.
    pub fn append(&mut self, len: usize) -> Option<&mut [u8]> {
        let back = self.grow(len)?;
        back.fill(0);
        Some(back)
    }

    /// Adds these bytes at the end of the last segment. Returns false, and does nothing, without room.
    #[must_use]
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        self.grow(bytes.len()).map(|back| back.copy_from_slice(bytes)).is_some()
    }

    /// Makes the last segment longer; the new bytes are arbitrary.
    fn grow(&mut self, len: usize) -> Option<&mut [u8]> {
        let first = self.raw();
        let mut last = first;
        let grown = u16::try_from(len).ok()?;
        // SAFETY: the packet is ours, so its links lead to segments or end in null; the data
        // grow into the tailroom, inside the last segment's buffer, which is initialised memory.
        unsafe {
            while !last.next().0.is_null() {
                last = last.next();
            }
            if grown > last.tailroom() {
                return None;
            }
            let used = last.data_len();
            last.set_data(last.data_off(), used + grown);
            first.set_pkt_len(first.pkt_len() + u32::from(grown));
            Some(slice::from_raw_parts_mut(last.data().add(usize::from(used)), len))
        }
    }

    /// Appends the segments of another packet to those of this one.
    ///
    /// # Errors
    /// Returns `tail` if the segments would exceed the maximum of a packet.
    pub fn chain(&mut self, tail: Self) -> Result<(), Self> {
        // SAFETY: both packets are ours; on success the second is part of the first, else nothing is done.
        if unsafe { sys::rte_pktmbuf_chain(self.raw().0, tail.raw().0) } != 0 {
            return Err(tail);
        }
        tail.into_raw();
        Ok(())
    }

    /// Removes `len` bytes in front. Returns false, and does nothing, if the first segment has fewer.
    #[must_use]
    pub fn adj(&mut self, len: usize) -> bool {
        let raw = self.raw();
        // SAFETY: the packet is ours.
        let (off, data_len, total) = unsafe { (raw.data_off(), raw.data_len(), raw.pkt_len()) };
        let Some(cut) = u16::try_from(len).ok().filter(|&cut| cut <= data_len) else {
            return false;
        };
        // SAFETY: the packet is ours; the data shrink inside the buffer.
        unsafe {
            raw.set_data(off + cut, data_len - cut);
            raw.set_pkt_len(total - u32::from(cut));
        }
        true
    }

    /// Inserts the four bytes of a VLAN tag after the two Ethernet addresses. Returns false, and
    /// does nothing, for a packet shorter than an Ethernet header, and without room in front of it.
    #[must_use]
    pub fn insert_tag(&mut self, tag: [u8; 4]) -> bool {
        let raw = self.raw();
        if self.data().len() < 14 {
            return false;
        }
        // SAFETY: the packet is ours, has both addresses in its first segment, and its data lie in a buffer.
        let inserted = unsafe { raw.insert_tags(NonNull::new_unchecked(raw.data()), tag) };
        if inserted.is_none() {
            return false;
        }
        self.lengthen_link(tag.len() as u16);
        true
    }

    /// Returns the 8 bytes that travel with the packet through lists and rings. A device may have left
    /// anything in them (its receive hash, usually) until [`Mbuf::set_tag`] is called.
    #[inline]
    pub fn tag(&self) -> u64 {
        // SAFETY: the packet is ours.
        unsafe { self.raw().tag() }
    }

    /// The class that [`Mbuf::set_traffic_class`] has given the packet, 1 to 7; 0 without one.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        // SAFETY: the packet is ours.
        traffic_class::of(unsafe { self.raw().flags() })
    }

    /// Gives the packet a class, 1 to 7, which travels with it until it is freed; 0 takes it away.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        // SAFETY: the packet is ours.
        unsafe { traffic_class::set(self.raw(), class) }
    }

    /// Sets the 8 bytes that travel with the packet.
    #[inline]
    pub fn set_tag(&mut self, tag: u64) {
        // SAFETY: the packet is ours.
        unsafe { self.raw().set_tag(tag) }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the packet is ours, and this is the last use.
        unsafe { sys::rte_pktmbuf_free(self.raw.as_ptr()) }
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("len", &self.len())
            .field("segments", &self.segments())
            .field("tag", &self.tag())
            .finish()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing;

    /// A packet of several segments, one per slice.
    pub(crate) fn chain(pool: &crate::Mempool, parts: &[&[u8]]) -> Mbuf {
        let mut packets = parts.iter().map(|part| pool.copy_of(part).unwrap());
        let mut first = packets.next().unwrap();
        packets.for_each(|packet| first.chain(packet).unwrap());
        first
    }

    #[test]
    fn a_dropped_packet_returns_to_its_pool() {
        let pool = testing::pool(31);
        let packets: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!((packets.len(), pool.in_use()), (31, 31));
        assert!(pool.alloc().is_none() && pool.copy_of(&[1]).is_none());
        drop(packets);
        assert_eq!(pool.leaked(), 0);
        let chain = chain(&pool, &[&[1], &[2], &[3]]);
        assert_eq!(pool.in_use(), 3);
        std::thread::spawn(move || drop(chain)).join().unwrap();
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn bytes_are_added_and_removed_at_both_ends() {
        let pool = testing::pool(7);
        let mut packet = pool.copy_of(&[1, 2, 3, 4]).unwrap();
        packet.prepend(2).unwrap().copy_from_slice(&[8, 9]);
        packet.append(1).unwrap()[0] = 5;
        assert_eq!(packet.data(), [8, 9, 1, 2, 3, 4, 5]);
        assert!(packet.adj(3));
        assert!(packet.trim_to(3));
        packet.data_mut()[0] = 7;
        assert_eq!((packet.data(), packet.len()), (&[7, 3, 4][..], 3));
        assert!(!packet.adj(4) && !packet.trim_to(4), "there are 3 bytes");
        assert_eq!(packet.data(), [7, 3, 4]);
    }

    #[test]
    fn room_ends_where_the_buffer_does() {
        let pool = testing::pool(7);
        let mut packet = pool.alloc().unwrap();
        assert!(packet.prepend(129).is_none() && packet.append(2049).is_none());
        assert!(packet.prepend(usize::MAX).is_none() && packet.append(usize::MAX).is_none());
        assert!(packet.is_empty());
        assert_eq!(packet.prepend(128).unwrap().len(), 128);
        assert_eq!(packet.append(2048).unwrap().len(), 2048);
        assert!(packet.prepend(1).is_none() && packet.append(1).is_none());
        assert_eq!(packet.len(), 2176);
        assert!(pool.copy_of(&[0; 2049]).is_none());
        drop(packet);
        assert_eq!(pool.leaked(), 0, "a failed copy gives its buffer back");
    }

    #[test]
    fn added_bytes_hold_nothing_of_an_earlier_packet() {
        let pool = testing::pool(1);
        let mut earlier = pool.copy_of(&[0xaa; 2048]).unwrap();
        earlier.prepend(128).unwrap().fill(0xaa);
        drop(earlier);
        let mut packet = pool.alloc().unwrap();
        assert!(packet.prepend(128).unwrap().iter().all(|&byte| byte == 0));
        assert!(packet.append(2048).unwrap().iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_cut_frees_the_segments_behind_it() {
        let pool = testing::pool(15);
        for (len, segments) in [(6, 3), (5, 3), (4, 2), (3, 2), (2, 1), (1, 1), (0, 1)] {
            let mut packet = chain(&pool, &[&[1, 2], &[3, 4], &[5, 6]]);
            assert_eq!((packet.len(), packet.segments()), (6, 3));
            assert!(packet.trim_to(len) && !packet.trim_to(len + 1));
            let bytes: Vec<u8> = packet.chunks().flatten().copied().collect();
            assert_eq!(bytes, [1, 2, 3, 4, 5, 6][..len]);
            assert_eq!((packet.segments(), pool.in_use()), (segments, segments));
        }
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn the_first_segment_takes_bytes_of_those_behind() {
        let pool = testing::pool(15);
        let parts: [&[u8]; 4] = [&[1], &[2, 3], &[], &[4, 5, 6]];
        for (want, first, segments) in
            [(0, 1, 4), (1, 1, 4), (2, 2, 4), (3, 3, 3), (4, 4, 2), (6, 6, 1), (99, 6, 1)]
        {
            let packet = chain(&pool, &parts);
            // SAFETY: the packet is ours.
            unsafe { packet.raw().pull_up(want) };
            let bytes: Vec<u8> = packet.chunks().flatten().copied().collect();
            assert_eq!((bytes, packet.len()), (vec![1, 2, 3, 4, 5, 6], 6));
            let found = (packet.data().len(), packet.segments(), pool.in_use());
            assert_eq!(found, (first, segments, segments), "{want}");
        }
        let full = chain(&pool, &[&[7; 2048], &[8; 10]]);
        // SAFETY: as above.
        unsafe { full.raw().pull_up(2050) };
        assert_eq!((full.data().len(), full.segments()), (2048, 2), "no room");
        drop(full);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn bytes_are_added_as_far_as_there_is_room() {
        let pool = testing::pool(1);
        let mut packet = pool.copy_of(&[7; 2040]).unwrap();
        assert!(packet.extend(&[1, 2, 3]) && !packet.extend(&[4; 6]) && packet.extend(&[5; 5]));
        assert_eq!(packet.data()[2039..], [7, 1, 2, 3, 5, 5, 5, 5, 5]);
        assert!(packet.extend(&[]) && !packet.extend(&[0]) && packet.len() == 2048);
    }

    #[test]
    fn an_append_goes_to_the_last_segment() {
        let pool = testing::pool(3);
        let mut packet = chain(&pool, &[&[1, 2], &[3]]);
        packet.append(1).unwrap()[0] = 4;
        assert_eq!(packet.chunks().collect::<Vec<_>>(), [&[1, 2][..], &[3, 4]]);
        assert_eq!((packet.data(), packet.len()), (&[1, 2][..], 4));
    }

    #[test]
    fn a_tag_keeps_all_its_bits() {
        let pool = testing::pool(1);
        let mut packet = pool.copy_of(&[1, 2, 3]).unwrap();
        packet.set_tag(0x0123_4567_89ab_cdef);
        assert_eq!(packet.tag(), 0x0123_4567_89ab_cdef);
        assert_eq!((packet.data(), packet.len(), packet.segments()), (&[1, 2, 3][..], 3, 1));
    }
}
