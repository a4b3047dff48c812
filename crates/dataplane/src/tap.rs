//! Copies by reference, for mirror sessions ([`crate::mirror_sessions`]).
//!
//! A copy shows a frame as it was when it was made, and leaves unchanged by another port. Its first 128 bytes are its
//! own, the others are the original's ([`dpdk::Copied`]), which therefore is not written there any more. It is copied
//! whole if it is short, if the port's device takes packets of one buffer only, and if the graph has steps that may
//! write anywhere.
//!
//! The original never depends on its copy: without a buffer, while the pool runs low, or beyond [`COPIES_MAX`] in a
//! batch, there is no copy. If
//! the original goes to a ring, whose receiver must own it alone, the copy gets bytes of its own first
//! ([`Taps::separate`]).

use dpdk::{Burst, Copied, Mbuf, Mempool};
use wire::ethernet::customer_tag;

use crate::mask::{BATCH_MAX, Mask};
use crate::outgoing::Outgoing;
use crate::port::{PortId, PortSet};

/// Copies that leave together.
const BURSTS: usize = 4;

/// The most copies of one batch.
#[cfg(test)]
pub(crate) const COPIES_MAX: usize = BURSTS * BATCH_MAX;

/// The destination of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyTo {
    /// The port by which they leave.
    pub(crate) port: PortId,
    /// The number of the session.
    pub(crate) session: u8,
    /// True if originals may be written anywhere.
    pub(crate) is_whole: bool,
}

/// Some copies, the slots of their originals and the numbers of their sessions.
pub(crate) struct Made {
    pub(crate) packets: Outgoing,
    pub(crate) sessions: [u8; BATCH_MAX],
    originals: [u8; BATCH_MAX],
    /// Copies that share their original's bytes.
    shared: Mask,
}

/// Makes the copies of one batch.
pub(crate) struct Taps {
    pool: Mempool,
    /// Ports whose device accepts packets of several buffers.
    pub(crate) by_reference: PortSet,
    made: Vec<Made>,
    /// Copies that could not be made.
    lost: u64,
    /// True if a copy has been requested since the last ones were sent.
    is_used: bool,
    /// True if the pool has buffers for copies besides those for reception.
    has_room: bool,
}

/// Copies are made while more than one of so many buffers is free: those that an analyser does not take in time must not
/// use up the memory into which ports receive.
const RESERVE: usize = 4;

impl Taps {
    /// Takes buffers from this pool.
    pub(crate) fn new(pool: Mempool) -> Self {
        let made = || Made {
            packets: Outgoing::new(),
            sessions: [0; BATCH_MAX],
            originals: [0; BATCH_MAX],
            shared: Mask::EMPTY,
        };
        let made = (0..BURSTS).map(|_| made()).collect();
        Self { pool, by_reference: PortSet::EMPTY, made, lost: 0, is_used: false, has_room: true }
    }

    /// Finds out whether there are enough free buffers for copies of a batch.
    pub(crate) fn look_for_room(&mut self) {
        let size = self.pool.size();
        self.has_room = size.saturating_sub(self.pool.in_use()) > size / RESERVE;
    }

    /// Copies the packet in a slot, with the tag `beside` its bytes, which a device removed or is to insert; `wrap` puts the session's headers in front, and
    /// returns false without room for them. Returns the copy's length; `None`: it could not be made.
    pub(crate) fn copy(
        &mut self,
        burst: &mut Burst,
        (slot, beside): (usize, Option<u16>),
        to: CopyTo,
        wrap: impl FnOnce(&mut Mbuf) -> bool,
    ) -> Option<usize> {
        let len = self.try_copy(burst, (slot, beside), to, wrap);
        match len {
            Some(_) => self.is_used = true,
            None => self.lose(),
        }
        len
    }

    /// Counts a copy that was not made.
    pub(crate) fn lose(&mut self) {
        self.is_used = true;
        self.lost += 1;
    }

    fn try_copy(
        &mut self,
        burst: &mut Burst,
        (slot, beside): (usize, Option<u16>),
        to: CopyTo,
        wrap: impl FnOnce(&mut Mbuf) -> bool,
    ) -> Option<usize> {
        if !self.has_room {
            return None;
        }
        let made = self.made.iter_mut().find(|made| !made.packets.is_full())?;
        let by_reference = self.by_reference.contains(to.port) && !to.is_whole;
        let Copied { mut packet, is_shared } = match by_reference {
            true => burst.copy_by_reference(slot, &self.pool)?,
            false => Copied { packet: burst.copy(slot, &self.pool)?, is_shared: false },
        };
        if let Some(control) = beside {
            packet.insert_tag(customer_tag(control)).then_some(())?;
        }
        wrap(&mut packet).then_some(())?;
        let len = packet.len();
        made.put(packet, to.port.index() as u16, (slot, to.session), is_shared).then_some(len)
    }

    /// Gives copies of these slots' packets bytes of their own, so that the originals have theirs for themselves. Copies
    /// for which there is no buffer are lost.
    pub(crate) fn separate(&mut self, originals: Mask) {
        if self.is_used {
            for made in &mut self.made {
                self.lost += made.separate(originals, &self.pool);
            }
        }
    }

    /// Returns true if copies have been requested since the last call.
    #[inline(always)]
    pub(crate) fn take_used(&mut self) -> bool {
        std::mem::take(&mut self.is_used)
    }

    /// Copies that could not be made since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// The copies, to be taken.
    pub(crate) fn made(&mut self) -> impl Iterator<Item = &mut Made> {
        self.made.iter_mut().for_each(|made| made.shared = Mask::EMPTY);
        self.made.iter_mut().filter(|made| !made.packets.burst.is_empty())
    }
}

impl Made {
    /// Adds a copy; false if that failed and the copy is freed.
    fn put(
        &mut self,
        packet: Mbuf,
        port: u16,
        (original, session): (usize, u8),
        is_shared: bool,
    ) -> bool {
        let Ok(slot) = self.packets.burst.put(packet) else { return false };
        self.packets.out_interface[slot] = port;
        self.sessions[slot] = session;
        self.originals[slot] = original as u8;
        self.shared = self.shared.without(Mask::when(true, slot)) | Mask::when(is_shared, slot);
        true
    }

    /// Returns the number of copies that were lost.
    fn separate(&mut self, originals: Mask, pool: &Mempool) -> u64 {
        let wanted = self.shared.filter(|slot| originals.has(self.originals[slot].into()));
        let mut lost = 0;
        for slot in wanted.slots() {
            let Some(packet) = self.packets.burst.take(slot) else { continue };
            self.shared = self.shared.without(Mask::when(true, slot));
            let (port, session) = (self.packets.out_interface[slot], self.sessions[slot]);
            let of = (self.originals[slot].into(), session);
            let own = Copied { packet, is_shared: true }.separate(pool);
            lost += u64::from(!own.is_some_and(|own| self.put(own, port, of, false)));
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FrameBuilder, batch_of, dpdk, tagged};
    use dpdk::MempoolConfig;

    fn to() -> CopyTo {
        CopyTo { port: PortId::new(3).unwrap(), session: 0, is_whole: false }
    }

    fn copy(taps: &mut Taps, batch: &mut crate::Batch, slot: usize, to: CopyTo) -> Option<usize> {
        taps.copy(&mut batch.burst, (slot, None), to, |_| true)
    }

    fn long() -> Vec<u8> {
        FrameBuilder::ip4().udp(1, 2, &[7; 1000]).build()
    }

    /// Frames of the copies, and their numbers of buffers.
    fn copies(taps: &mut Taps) -> Vec<(Vec<u8>, usize)> {
        let mut all = Vec::new();
        for Made { packets: outgoing, .. } in taps.made() {
            for slot in Mask(outgoing.burst.owned()).slots() {
                let packet = outgoing.burst.take(slot).unwrap();
                all.push((packet.chunks().flatten().copied().collect(), packet.segments()));
            }
        }
        all
    }

    fn taps() -> Taps {
        let mut taps = Taps::new(dpdk().1.clone());
        taps.by_reference.set(PortId::new(3).unwrap(), true);
        taps
    }

    #[test]
    fn copies_have_the_removed_tag_and_that_of_the_session_in_front() {
        let (frame, mut taps) = (long(), taps());
        let mut batch = batch_of(std::slice::from_ref(&frame));
        let tag = [0x81, 0, 3, 0xe7];
        assert_eq!(copy(&mut taps, &mut batch, 0, to()), Some(frame.len()));
        let wrap = |packet: &mut Mbuf| packet.insert_tag(tag);
        let with_tags = taps.copy(&mut batch.burst, (0, Some(0xa005)), to(), wrap);
        assert_eq!(with_tags, Some(frame.len() + 8));
        let one = CopyTo { port: PortId::FIRST, ..to() };
        assert!(copy(&mut taps, &mut batch, 0, one).is_some());
        let whole = CopyTo { is_whole: true, ..to() };
        assert!(copy(&mut taps, &mut batch, 0, whole).is_some());
        batch.head_mut(0).fill(0);
        let both = tagged(&tagged(&frame, 0x8100, 0xa005), 0x8100, 999);
        assert_eq!(
            copies(&mut taps),
            [(frame.clone(), 2), (both, 2), (frame.clone(), 1), (frame, 1)]
        );
    }

    #[test]
    fn a_separated_copy_leaves_the_original_to_itself() {
        let (frame, mut taps) = (long(), taps());
        let mut batch = batch_of(&vec![frame.clone(); 3]);
        for slot in 0..3 {
            copy(&mut taps, &mut batch, slot, to()).unwrap();
        }
        taps.separate(Mask(0b101));
        let owned = |batch: &mut crate::Batch, slot| {
            let packet = batch.burst.take(slot).unwrap();
            batch.burst.put(packet).is_ok()
        };
        assert_eq!([0, 1, 2].map(|slot| owned(&mut batch, slot)), [true, false, true]);
        let found = copies(&mut taps);
        assert_eq!(found.iter().map(|(_, buffers)| *buffers).collect::<Vec<_>>(), [1, 2, 1]);
        assert!(found.iter().all(|(bytes, _)| *bytes == frame));
        assert_eq!(taps.take_lost(), 0);
    }

    #[test]
    fn what_cannot_be_copied_is_counted_and_the_original_stays() {
        let config =
            MempoolConfig { name: "taps".into(), count: 3, cache: 0, data_room: 2048, node: None };
        let pool = Mempool::new(&dpdk().0, &config).unwrap();
        let (frame, mut taps) = (long(), Taps::new(pool));
        taps.by_reference.set(PortId::new(3).unwrap(), true);
        let mut batch = batch_of(&vec![frame.clone(); 2]);
        assert!(copy(&mut taps, &mut batch, 0, to()).is_some());
        assert!(copy(&mut taps, &mut batch, 1, to()).is_none());
        assert_eq!(taps.take_lost(), 1);
        let whole = CopyTo { is_whole: true, ..to() };
        assert!(copy(&mut taps, &mut batch, 1, whole).is_some(), "the last buffer");
        taps.separate(Mask(0b11));
        assert_eq!((taps.take_lost(), copies(&mut taps).len()), (1, 1));
        assert_eq!([batch.frame(0), batch.frame(1)], [&frame[..], &frame]);
        let packet = batch.burst.take(0).unwrap();
        assert!(batch.burst.put(packet).is_ok(), "it is its own again");
    }

    #[test]
    fn copies_leave_a_quarter_of_the_buffers_to_reception() {
        let config =
            MempoolConfig { name: "taps".into(), count: 40, cache: 0, data_room: 2048, node: None };
        let pool = Mempool::new(&dpdk().0, &config).unwrap();
        let mut taps = Taps::new(pool.clone());
        let mut batch = batch_of(&[vec![0; 60]]);
        let mut made = 0;
        while {
            taps.look_for_room();
            copy(&mut taps, &mut batch, 0, to()).is_some()
        } {
            made += 1;
        }
        assert_eq!((made, pool.in_use(), taps.take_lost()), (30, 30, 1));
    }

    #[test]
    fn the_copies_of_a_batch_are_limited() {
        let mut taps = taps();
        let mut batch = batch_of(&[vec![0; 60]]);
        for _ in 0..COPIES_MAX {
            assert!(copy(&mut taps, &mut batch, 0, to()).is_some());
        }
        assert!(copy(&mut taps, &mut batch, 0, to()).is_none());
        assert_eq!((copies(&mut taps).len(), taps.take_lost()), (COPIES_MAX, 1));
        assert!(copy(&mut taps, &mut batch, 0, to()).is_some(), "the next batch");
    }
}
