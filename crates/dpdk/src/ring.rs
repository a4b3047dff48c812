//! Rings between threads: one sends, one receives, and neither waits for the other.
//!
//! An idle receiver may block: while it listens ([`Consumer::listen`]), sending rings its doorbell. The
//! sender pays one fence for each call that sends packets, however many, and a system call only when the
//! receiver blocks.

use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;

use crate::burst::{BURST_MAX, Burst, PacketList};
use crate::eal::{Eal, EalRef};
use crate::error::dpdk_errno;
use crate::mbuf::{Mbuf, RawMbuf, free_bulk};
use crate::names::serial_name;
use crate::{Cause, Doorbell, Error};

/// Most packets of a ring.
const SIZE_MAX: usize = 1 << 24;

/// A ring of packets, accessed by its two ends. When both are dropped, so is the ring, and the packets in it
/// return to their pools.
pub struct Ring {
    ring: NonNull<sys::rte_ring>,
    /// True if the receiver blocks, or is about to, and must be woken.
    listening: AtomicBool,
    /// The doorbell to ring. The receiver changes it when the ring moves to another thread; the sender reads
    /// it only when the receiver listens.
    doorbell: Mutex<Option<Arc<Doorbell>>>,
    _eal: EalRef,
}

// SAFETY: a ring is designed for two threads at once; the ends ensure that each is used by one thread only.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// The sending end of a ring. It can move between threads, but not be shared.
pub struct Producer {
    ring: Arc<Ring>,
    not_sync: PhantomData<std::cell::Cell<()>>,
}

/// The receiving end of a ring. It can move between threads, but not be shared.
pub struct Consumer {
    ring: Arc<Ring>,
    /// Number of packets that no burst could hold, see [`Consumer::receive`].
    unusable: u64,
    /// The ring's doorbell, as last set by this end.
    doorbell: Option<Arc<Doorbell>>,
    not_sync: PhantomData<std::cell::Cell<()>>,
}

impl Ring {
    /// Creates a ring for one sending and one receiving thread that holds up to `size` packets. The name is
    /// for messages and need not be unique.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a size of 0 or above 16,777,216, [`Error::Memory`] when the EAL
    /// has not enough memory.
    pub fn spsc(eal: &Eal, name: &str, size: usize) -> Result<(Producer, Consumer), Error> {
        Self::spsc_on(eal, name, size, None)
    }

    /// Like [`Ring::spsc`], with the ring in the memory of a NUMA node if that has room.
    ///
    /// # Errors
    /// As [`Ring::spsc`].
    pub fn spsc_on(
        eal: &Eal,
        name: &str,
        size: usize,
        node: Option<u32>,
    ) -> Result<(Producer, Consumer), Error> {
        if !(1..=SIZE_MAX).contains(&size) {
            let what = format!("the size of ring {name:?}");
            return Err(Error::OutOfRange { what, value: size, range: format!("1 to {SIZE_MAX}") });
        }
        let dpdk_name = serial_name("ring");
        let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ | sys::RING_F_EXACT_SZ;
        // SAFETY: the EAL is up (there is an `Eal`); the name is a C string for the call.
        let create = |node: i32| unsafe {
            sys::rte_ring_create(dpdk_name.as_ptr(), size as u32, node, flags)
        };
        // A ring on another node is slower, but no ring is worse.
        let near = node.and_then(|node| NonNull::new(create(node as i32)));
        let Some(ring) = near.or_else(|| NonNull::new(create(sys::SOCKET_ID_ANY))) else {
            return Err(Error::Memory {
                what: format!("ring {name:?} of {size} packets"),
                errno: dpdk_errno(),
                memory: eal.memory().to_string(),
            });
        };
        let (listening, doorbell) = (AtomicBool::new(false), Mutex::new(None));
        let ring = Arc::new(Self { ring, listening, doorbell, _eal: eal.share() });
        let producer = Producer { ring: ring.clone(), not_sync: PhantomData };
        Ok((producer, Consumer { ring, unusable: 0, doorbell: None, not_sync: PhantomData }))
    }

    fn len(&self) -> usize {
        // SAFETY: the ring is alive; the count is a snapshot.
        unsafe { sys::rte_ring_count(self.ring.as_ptr()) as usize }
    }

    /// Wakes the receiver if it blocks. To be called after sending.
    #[inline]
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.listening.load(Ordering::Relaxed) {
            self.ring_doorbell();
        }
    }

    #[cold]
    fn ring_doorbell(&self) {
        if !self.listening.swap(false, Ordering::AcqRel) {
            return;
        }
        let doorbell = self.doorbell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(doorbell) = &*doorbell {
            doorbell.ring(Cause::Ring);
        }
    }

    /// Removes up to `space.len()` packets.
    ///
    /// # Safety
    /// No other thread removes packets from this ring meanwhile. The caller owns the packets removed.
    #[inline]
    unsafe fn dequeue(&self, space: &mut [RawMbuf]) -> usize {
        // SAFETY: by the caller we are the one consumer; `RawMbuf` is a transparent pointer, and
        // at most `space.len()` of them are written.
        unsafe {
            let (table, count) = (space.as_mut_ptr().cast(), space.len() as u32);
            sys::rte_ring_dequeue_burst(self.ring.as_ptr(), table, count, null_mut()) as usize
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut packets = [RawMbuf::NULL; BURST_MAX];
        // SAFETY: both ends are dropped, so the ring has no other user, and its packets are ours.
        unsafe {
            loop {
                let count = self.dequeue(&mut packets);
                if count == 0 {
                    break;
                }
                free_bulk(&mut packets[..count]);
            }
            sys::rte_ring_free(self.ring.as_ptr());
        }
    }
}

impl Producer {
    /// Sends packets from the front of the list, as many as there is room for, and returns their number; the
    /// others stay in the list, in order.
    #[inline]
    pub fn send(&mut self, list: &mut PacketList) -> usize {
        let packets = list.as_slice();
        // SAFETY: `&mut self` of the only producer; the packets are the list's, which drops those that the
        // ring has taken.
        let sent = unsafe {
            let (table, count) = (packets.as_ptr().cast(), packets.len() as u32);
            sys::rte_ring_enqueue_burst(self.ring.ring.as_ptr(), table, count, null_mut())
        };
        list.forget_front(sent as usize);
        if sent > 0 {
            self.ring.wake();
        }
        sent as usize
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// Returns the packet when the ring is full.
    pub fn push(&mut self, packet: Mbuf) -> Result<(), Mbuf> {
        let raw = packet.raw();
        // SAFETY: `&mut self` of the only producer; once the ring has taken the packet, it is given up
        // below.
        let sent = unsafe {
            let table = std::ptr::from_ref(&raw).cast();
            sys::rte_ring_enqueue_burst(self.ring.ring.as_ptr(), table, 1, null_mut())
        };
        if sent == 0 {
            return Err(packet);
        }
        packet.into_raw();
        self.ring.wake();
        Ok(())
    }

    /// Returns the number of packets in the ring.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of further packets for which there is room.
    pub fn room(&self) -> usize {
        // SAFETY: the ring is alive; the count is a snapshot.
        unsafe { sys::rte_ring_free_count(self.ring.ring.as_ptr()) as usize }
    }
}

impl Consumer {
    /// Moves up to `max` packets to the end of the list, as many as it has room for; returns their number.
    #[inline]
    pub fn take(&mut self, list: &mut PacketList, max: usize) -> usize {
        let space = list.space();
        let max = max.min(space.len());
        // SAFETY: `&mut self` of the only consumer.
        let count = unsafe { self.ring.dequeue(&mut space[..max]) };
        // SAFETY: the ring wrote its packets into the first `count` places and gave them up.
        unsafe { list.filled(count) };
        count
    }

    /// Receives up to `max` packets into an empty burst and returns their number; 0 if the burst is not
    /// empty. A packet with less than 64 bytes of buffer behind its beginning is in [`Burst::unusable`] and counted
    /// by [`Consumer::unusable`].
    #[inline]
    pub fn receive(&mut self, burst: &mut Burst, max: usize) -> usize {
        let Some(space) = burst.space() else { return 0 };
        // SAFETY: `&mut self` of the only consumer.
        let count = unsafe { self.ring.dequeue(&mut space[..max.min(BURST_MAX)]) };
        // SAFETY: the burst is empty, and the ring gave its first `count` entries to us.
        self.unusable += unsafe { burst.received::<false>(count) } as u64;
        burst.len()
    }

    /// Receives one packet.
    pub fn pop(&mut self) -> Option<Mbuf> {
        let mut packet = [RawMbuf::NULL];
        // SAFETY: `&mut self` of the only consumer; the removed packet is ours.
        unsafe { (self.ring.dequeue(&mut packet) == 1).then(|| Mbuf::from_raw(packet[0])) }
    }

    /// Returns the number of packets in the ring.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Returns true if the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the next send ring this doorbell, once. The caller first listens at the doorbell itself
    /// ([`Doorbell::listen`]), and blocks only if this returns true: the ring is still empty.
    pub fn listen(&mut self, doorbell: &Arc<Doorbell>) -> bool {
        if !self.doorbell.as_ref().is_some_and(|known| Arc::ptr_eq(known, doorbell)) {
            let mut place = self.ring.doorbell.lock().unwrap_or_else(PoisonError::into_inner);
            *place = Some(doorbell.clone());
            self.doorbell = Some(doorbell.clone());
        }
        self.ring.listening.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.is_empty()
    }

    /// Ends [`Consumer::listen`].
    pub fn ignore(&mut self) {
        self.ring.listening.store(false, Ordering::Relaxed);
    }

    /// Returns the number of packets that no burst could hold, see [`Consumer::receive`].
    pub fn unusable(&self) -> u64 {
        self.unusable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mempool, testing};

    fn list(pool: &Mempool, tags: std::ops::Range<u64>) -> PacketList {
        let mut list = PacketList::new();
        for tag in tags {
            let mut packet = pool.copy_of(&[0; 60]).unwrap();
            packet.set_tag(tag);
            list.push(packet).unwrap();
        }
        list
    }

    #[test]
    fn a_full_ring_leaves_the_rest_with_the_sender_in_order() {
        let pool = testing::pool(31);
        let (mut producer, mut consumer) = Ring::spsc(testing::eal(), "r", 5).unwrap();
        let mut packets = list(&pool, 0..8);
        assert_eq!(producer.send(&mut packets), 5);
        assert_eq!((packets.len(), producer.len(), consumer.len()), (3, 5, 5));
        let mut extra = pool.alloc().unwrap();
        extra.set_tag(99);
        assert_eq!(producer.push(extra).unwrap_err().tag(), 99);
        assert_eq!(consumer.pop().unwrap().tag(), 0);
        assert_eq!(producer.send(&mut packets), 1);
        let mut burst = Burst::new();
        assert_eq!(consumer.receive(&mut burst, 2), 2);
        assert_eq!((burst.tag(0), burst.tag(1)), (1, 2));
        assert_eq!(consumer.receive(&mut burst, 2), 0, "the burst is not empty");
        burst.free(u64::MAX);
        assert_eq!(consumer.receive(&mut burst, usize::MAX), 3);
        assert_eq!((burst.tag(0), burst.tag(1), burst.tag(2)), (3, 4, 5));
        assert_eq!(packets.pop().unwrap().tag(), 6);
        assert!(consumer.is_empty() && consumer.pop().is_none());
        assert_eq!(consumer.receive(&mut burst, 64), 0);
    }

    #[test]
    fn a_ring_without_ends_frees_its_packets() {
        let pool = testing::pool(255);
        let (mut producer, consumer) = Ring::spsc(testing::eal(), "r", 200).unwrap();
        assert_eq!(producer.send(&mut list(&pool, 0..150)), 150);
        drop(producer);
        assert_eq!(pool.in_use(), 150, "the consumer may still want them");
        drop(consumer);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn packets_cross_between_threads_in_order() {
        let pool = testing::pool(255);
        let (mut producer, mut consumer) = Ring::spsc(testing::eal(), "r", 32).unwrap();
        let sender = pool.clone();
        let thread = std::thread::spawn(move || {
            for base in (0..10_000).step_by(100) {
                let mut packets = PacketList::new();
                for tag in base..base + 100 {
                    let mut packet = loop {
                        if let Some(packet) = sender.copy_of(&[0; 60]) {
                            break packet;
                        }
                        std::thread::yield_now();
                    };
                    packet.set_tag(tag);
                    packets.push(packet).unwrap();
                }
                while !packets.is_empty() {
                    producer.send(&mut packets);
                    std::thread::yield_now();
                }
            }
        });
        let (mut burst, mut expected) = (Burst::new(), 0);
        while expected < 10_000 {
            for slot in 0..consumer.receive(&mut burst, 64) {
                assert_eq!(burst.tag(slot), expected);
                expected += 1;
            }
            burst.free(u64::MAX);
            std::thread::yield_now();
        }
        thread.join().unwrap();
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_packet_too_near_its_buffer_s_end_is_set_aside_and_counted() {
        let pool = testing::pool(3);
        let (mut producer, mut consumer) = Ring::spsc(testing::eal(), "r", 4).unwrap();
        for cut in [2048 - 64, 2048 - 63] {
            let mut packet = pool.copy_of(&[0; 2048]).unwrap();
            assert!(packet.adj(cut));
            producer.push(packet).unwrap();
        }
        let mut burst = Burst::new();
        assert_eq!(consumer.receive(&mut burst, 64), 1);
        assert_eq!((burst.owned(), burst.lens()[0], consumer.unusable()), (1, 64, 1));
        let unusable = burst.unusable().unwrap();
        assert_eq!((unusable.len(), unusable.chunks(0).map(<[u8]>::len).sum()), (1, 63));
        assert_eq!(unusable.free_tail(0), 1);
        assert_eq!(pool.in_use(), 1);
    }

    #[test]
    fn a_ring_rings_the_doorbell_of_whoever_listens_once() {
        let pool = testing::pool(15);
        let (mut producer, mut consumer) = Ring::spsc(testing::eal(), "r", 8).unwrap();
        let bells = [(); 2].map(|()| Arc::new(Doorbell::new().unwrap()));
        producer.push(pool.alloc().unwrap()).unwrap();
        assert!(!consumer.listen(&bells[0]), "there is a packet already");
        consumer.pop().unwrap();
        for bell in &bells {
            // The ring moves to another thread.
            assert!(consumer.listen(bell));
            assert_eq!(producer.send(&mut list(&pool, 0..2)), 2);
            assert!(bell.ignore().ring);
            producer.push(pool.alloc().unwrap()).unwrap();
            assert!(!bell.ignore().ring, "it was rung already");
            while consumer.pop().is_some() {}
        }
        assert!(consumer.listen(&bells[1]));
        consumer.ignore();
        producer.push(pool.alloc().unwrap()).unwrap();
        assert!(!bells[1].ignore().ring, "nobody listens any more");
    }

    /// The receiver blocks whenever the ring is empty; a lost wake-up would leave it blocked.
    #[test]
    fn a_receiver_that_blocks_misses_no_packet() {
        use crate::WaitSet;
        use std::time::{Duration, Instant};
        const PACKETS: u64 = 50_000;
        const LONG: Duration = Duration::from_secs(20);
        let pool = testing::pool(255);
        let (mut producer, mut consumer) = Ring::spsc(testing::eal(), "r", 32).unwrap();
        let sender = pool.clone();
        let thread = std::thread::spawn(move || {
            for number in 0..PACKETS {
                let mut packet = loop {
                    if let Some(packet) = sender.copy_of(&[0; 60]) {
                        break packet;
                    }
                    std::thread::yield_now();
                };
                while let Err(back) = producer.push(packet) {
                    packet = back;
                    std::thread::yield_now();
                }
                if number % 7 == 0 {
                    // The receiver may catch up, and block.
                    std::thread::yield_now();
                }
            }
        });
        let set = WaitSet::new().unwrap();
        let bell = set.doorbell().clone();
        let (mut received, mut blocked) = (0, 0);
        while received < PACKETS {
            if consumer.pop().is_some() {
                received += 1;
                continue;
            }
            bell.listen();
            if consumer.listen(&bell) {
                let begin = Instant::now();
                set.wait(Some(LONG));
                assert!(begin.elapsed() < LONG, "a wake-up behind packet {received} was lost");
                blocked += 1;
            }
            consumer.ignore();
            bell.ignore();
        }
        thread.join().unwrap();
        assert!(blocked > 0, "it never blocked");
    }

    #[test]
    fn a_node_without_memory_is_done_without() {
        let (mut producer, mut consumer) =
            Ring::spsc_on(testing::eal(), "r", 4, Some(7)).expect("memory of another node");
        let pool = testing::pool(3);
        producer.push(pool.alloc().unwrap()).unwrap();
        assert!(consumer.pop().is_some());
    }

    #[test]
    fn sizes_out_of_range_are_named() {
        for size in [0, SIZE_MAX + 1] {
            let error = Ring::spsc(testing::eal(), "punt", size).map(drop).unwrap_err();
            let words = format!("the size of ring \"punt\" is {size}, which must be 1 to 16777216");
            assert_eq!(error.to_string(), words);
        }
    }
}
