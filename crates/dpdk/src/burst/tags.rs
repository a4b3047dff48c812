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
            mbuf.shift_front(N as u16);
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
            unsafe { self.mbufs[slot].shift_front(self.behind_by) };
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mbuf::Mbuf;
    use crate::mbuf::tests::chain;
    use crate::{Mempool, PacketList, testing};

    #[test]
    fn a_tag_goes_behind_the_addresses_and_out_again() {
        let pool = testing::pool(5);
        let frame: Vec<u8> = (0..80).collect();
        let mut burst = Burst::new();
        let mut long = pool.copy_of(&frame[..70]).unwrap();
        long.chain(pool.copy_of(&frame[70..]).unwrap()).unwrap();
        for packet in [pool.copy_of(&frame).unwrap(), pool.copy_of(&frame[..13]).unwrap(), long] {
            burst.put(packet).unwrap();
        }
        let done = [0, 1, 2, 3].map(|slot| burst.insert_tags(slot, [0x81, 0, 0x20, 5]));
        assert_eq!(done, [true, false, true, false]);
        assert_eq!(burst.lens()[..4], [84, 13, 84, 0]);
        let tagged = [&frame[..12], &[0x81, 0, 0x20, 5], &frame[12..]].concat();
        assert_eq!((burst.frame(0), burst.frame(2)), (&tagged[..], &tagged[..74]));
        assert_eq!(burst.head(2)[..], tagged[..64]);
        assert!(burst.remove_tags(0, 1) && burst.remove_tags(2, 1));
        assert_eq!((burst.frame(0), burst.lens()[2]), (&frame[..], 80));
        let mut full = pool.copy_of(&frame).unwrap();
        assert!(full.prepend(126).is_some(), "the headroom is 128 bytes");
        assert!(!full.insert_tag([0; 4]));
    }

    #[test]
    fn a_tag_is_taken_out_where_there_is_one() {
        let pool = testing::pool(15);
        let tagged: Vec<u8> = (0..100).collect();
        let plain = [&tagged[..12], &tagged[16..]].concat();
        let mut burst = Burst::new();
        burst.put(pool.copy_of(&tagged).unwrap()).unwrap();
        burst.put(chain(&pool, &[&tagged[..40], &tagged[40..]])).unwrap();
        burst.put(pool.copy_of(&tagged[..17]).unwrap()).unwrap();
        burst.put(pool.copy_of(&tagged[..18]).unwrap()).unwrap();
        let mut late = pool.copy_of(&[0; 2048]).unwrap();
        assert!(late.adj(2048 - 67));
        burst.put(late).unwrap();
        let done = [0, 1, 2, 3, 4, 5].map(|slot| burst.remove_tags(slot, 1));
        assert_eq!(done, [true, true, false, true, false, false]);
        assert_eq!(burst.lens()[..6], [96, 96, 17, 14, 67, 0]);
        assert_eq!((burst.frame(0), &burst.head(0)[..]), (&plain[..], &plain[..64]));
        let (first, rest) = burst.frame_and_rest(1);
        let whole = [first.to_vec(), rest.collect::<Vec<_>>().concat()].concat();
        assert_eq!((whole, burst.multi_segment()), (plain, 0b10));
        assert_eq!(burst.frame(3), [&tagged[..12], &tagged[16..18]].concat());
        assert_eq!(burst.take(1).unwrap().len(), 96);
        burst.free(u64::MAX);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn tags_are_taken_out_of_many_packets_as_of_each() {
        let pool = testing::pool(31);
        let tagged: Vec<u8> = (0..100).collect();
        let full = || {
            let mut burst = Burst::new();
            let mut late = pool.copy_of(&[7; 2048]).unwrap();
            assert!(late.adj(2048 - 67));
            let chained = chain(&pool, &[&tagged[..40], &tagged[40..]]);
            let whole = |len: usize| pool.copy_of(&tagged[..len]).unwrap();
            let packets = [whole(100), whole(80), chained, whole(17), whole(18), late, whole(22)];
            packets.into_iter().for_each(|packet| drop(burst.put(packet)));
            burst
        };
        for (mask, tags) in [(u64::MAX, 1), (0b11, 1), (0b110_0110, 1), (u64::MAX, 2), (0b1, 3)] {
            let (mut each, mut all) = (full(), full());
            let is_done = |slot: &usize| mask & bit(*slot) != 0 && each.remove_tags(*slot, tags);
            let done = (0..64).filter(is_done).fold(0, |done, slot| done | bit(slot));
            assert_eq!(all.remove_tags_of(mask, tags), done, "{mask:b} {tags}");
            assert_eq!((all.lens(), all.owned()), (each.lens(), each.owned()));
            for slot in 0..7 {
                assert_eq!(all.frame(slot), each.frame(slot), "{mask:b} {tags}, slot {slot}");
                assert_eq!(all.take(slot).unwrap().len(), each.take(slot).unwrap().len());
            }
        }
        assert_eq!(pool.leaked(), 0);
    }

    /// An operation on a burst.
    #[derive(Clone, Debug)]
    enum Operation {
        Remove(u64, usize),
        Insert(u64, usize),
        Trim(usize, u16),
        Strip(usize, u16),
        Unstrip(usize, u16),
        Copy(usize),
        Take(usize),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        let slot = || 0..SLOTS;
        let masks = || prop_oneof![Just(u64::MAX), any::<u64>()];
        let few = || prop_oneof![0u16..30, 0u16..120];
        prop_oneof![
            4 => (masks(), 1usize..=2).prop_map(|(mask, tags)| Operation::Remove(mask, tags)),
            4 => (masks(), 1usize..=2).prop_map(|(mask, tags)| Operation::Insert(mask, tags)),
            1 => (slot(), few()).prop_map(|(slot, len)| Operation::Trim(slot, len)),
            1 => (slot(), few()).prop_map(|(slot, count)| Operation::Strip(slot, count)),
            1 => (slot(), few()).prop_map(|(slot, count)| Operation::Unstrip(slot, count)),
            1 => slot().prop_map(Operation::Copy),
            1 => slot().prop_map(Operation::Take),
        ]
    }

    /// Packets of [`full`].
    const SLOTS: usize = 8;

    /// A burst with packets of several lengths, one in two segments and two near their buffers' ends.
    fn full(pool: &Mempool) -> Burst {
        let bytes: Vec<u8> = (0..100).collect();
        let near_end = |left: usize| {
            let mut packet = pool.copy_of(&[7; 2048]).unwrap();
            assert!(packet.adj(2048 - left));
            packet
        };
        let chained = chain(pool, &[&bytes[..40], &bytes[40..]]);
        let whole = |len: usize| pool.copy_of(&bytes[..len]).unwrap();
        let short = [17, 18, 22].map(whole);
        let long = [whole(100), whole(80), chained, near_end(67), near_end(80)];
        let mut burst = Burst::new();
        short.into_iter().chain(long).for_each(|packet| drop(burst.put(packet)));
        burst
    }

    const TAG_BYTES: [u8; TAGS] = [0x88, 0xa8, 0x20, 5, 0x81, 0, 0, 7];

    fn bytes_of(packet: &Mbuf) -> Vec<u8> {
        packet.chunks().flatten().copied().collect()
    }

    /// Does the operation as steps do for many packets; returns the slots for which it was possible, and bytes.
    fn together(burst: &mut Burst, pool: &Mempool, operation: &Operation) -> (u64, Vec<u8>) {
        let [a, b, c, d, ..] = TAG_BYTES;
        let owned = burst.owned();
        let done = match *operation {
            Operation::Remove(mask, tags) => burst.remove_tags_of(mask, tags),
            Operation::Insert(mask, 1) => {
                let mut done = 0;
                let refused =
                    burst.insert_tags_of(mask & owned, [a, b, c, d], |slot, _| done |= bit(slot));
                assert_eq!(done, mask & owned & !refused);
                done
            }
            Operation::Insert(mask, _) => {
                mask & owned & !burst.insert_tags_of(mask & owned, TAG_BYTES, |_, _| ())
            }
            _ => return one(burst, pool, operation),
        };
        (done, Vec::new())
    }

    /// The same packet by packet.
    fn each(burst: &mut Burst, pool: &Mempool, operation: &Operation) -> (u64, Vec<u8>) {
        let [a, b, c, d, ..] = TAG_BYTES;
        let mut all = |mask: u64, treat: &dyn Fn(&mut Burst, usize) -> bool| {
            let treated = slots(mask).filter(|&slot| treat(burst, slot));
            treated.fold(0, |done, slot| done | bit(slot))
        };
        let done = match *operation {
            Operation::Remove(mask, tags) => {
                all(mask, &|burst, slot| burst.remove_tags(slot, tags))
            }
            Operation::Insert(mask, 1) => {
                all(mask, &|burst, slot| burst.insert_tags(slot, [a, b, c, d]))
            }
            Operation::Insert(mask, _) => {
                all(mask, &|burst, slot| burst.insert_tags(slot, TAG_BYTES))
            }
            _ => return one(burst, pool, operation),
        };
        // As if no packet had a mbuf that is behind.
        burst.settle(u64::MAX);
        (done, Vec::new())
    }

    fn one(burst: &mut Burst, pool: &Mempool, operation: &Operation) -> (u64, Vec<u8>) {
        let whole =
            |packet: Option<Mbuf>| packet.map(|packet| bytes_of(&packet)).unwrap_or_default();
        let mut bytes = Vec::new();
        let done = match *operation {
            Operation::Trim(slot, len) => {
                burst.trim(slot, len);
                true
            }
            Operation::Strip(slot, count) => burst.strip(slot, count),
            Operation::Unstrip(slot, count) => {
                let done = burst.unstrip(slot, count);
                if done {
                    burst.frame_mut(slot)[..count.into()].fill(0xee);
                }
                done
            }
            Operation::Copy(slot) => {
                bytes = whole(burst.copy(slot, pool));
                bytes.extend(burst.chunks(slot).flatten());
                true
            }
            Operation::Take(slot) => {
                bytes = whole(burst.take(slot));
                true
            }
            _ => false,
        };
        (u64::from(done), bytes)
    }

    #[test]
    fn operations_on_many_packets_are_those_on_each() {
        let pool = testing::pool(63);
        proptest!(|(operations in proptest::collection::vec(operation(), 1..12))| {
            let (mut all, mut single) = (full(&pool), full(&pool));
            for operation in &operations {
                let done = together(&mut all, &pool, operation);
                prop_assert_eq!(done, each(&mut single, &pool, operation), "{:?}", operation);
                prop_assert_eq!((all.lens(), all.owned()), (single.lens(), single.owned()));
                for slot in 0..SLOTS {
                    prop_assert_eq!(all.frame(slot), single.frame(slot), "{:?}, slot {}", operation, slot);
                }
            }
            let mut lists = [PacketList::new(), PacketList::new()];
            assert_eq!((all.move_to(u64::MAX, &mut lists[0]), single.move_to(u64::MAX, &mut lists[1])), (0, 0));
            let [mut all, mut single] = lists;
            while let (Some(one), Some(other)) = (all.pop(), single.pop()) {
                prop_assert_eq!((one.len(), bytes_of(&one)), (other.len(), bytes_of(&other)));
                // SAFETY: the packets are ours.
                let offsets = unsafe { [one.raw().data_off(), other.raw().data_off()] };
                prop_assert_eq!(offsets[0], offsets[1]);
            }
            drop((all, single));
            prop_assert_eq!(pool.leaked(), 0);
        });
    }
}
