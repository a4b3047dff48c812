//! Packet buffers: a pool of them, allocated once.

mod accesses;
mod memory;

use std::collections::HashSet;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dpdk_sys as sys;

pub use self::accesses::{PoolAccesses, pool_accesses};
use self::memory::Made;
use crate::Error;
use crate::burst::HEAD;
use crate::eal::{Eal, EalRef};
use crate::mbuf::{Mbuf, RawMbuf};
use crate::qsbr::{Qsbr, Token};

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct MempoolConfig {
    /// A name for messages; need not be unique.
    pub name: String,
    /// Number of packets. A port takes `rx_desc` of them per receive queue (an AF_XDP port 2,048, which its
    /// driver does not give back when the port is closed), and as many may wait in each transmit queue.
    pub count: usize,
    /// Free packets that each registered thread may keep in its cache, at most 512; 0 for none.
    pub cache: usize,
    /// Bytes of packet data per buffer, after the headroom of 128 bytes; at least 64.
    pub data_room: u16,
    /// The preferred NUMA node of the memory; any when not given, or when that node has too little.
    pub node: Option<u32>,
}

impl Default for MempoolConfig {
    fn default() -> Self {
        Self { name: "packets".into(), count: 16_383, cache: 256, data_room: 2048, node: None }
    }
}

/// A pool of packet buffers. Clones are handles to the same pool.
///
/// The pool's memory stays until the [`Eal`] ends, so a packet may outlive every handle; [`Mempool::give_up`]
/// frees it earlier.
#[derive(Clone)]
pub struct Mempool {
    inner: Arc<Inner>,
}

struct Inner {
    pool: NonNull<sys::rte_mempool>,
    data_room: u16,
    /// Packets without a bus address, which are never handed out.
    withheld: usize,
    /// Packets that a driver kept when its port was closed, and those withheld.
    written_off: AtomicUsize,
    /// True if the number written off is an estimate, so that it is never certain that no packet is out.
    kept: AtomicBool,
    /// True if no one has a packet of it, or is giving one back.
    unused: bool,
    eal: EalRef,
}

// SAFETY: DPDK's mempools are safe to use from any number of threads at once, registered or not.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.unused {
            // SAFETY: by `Unused::free`.
            unsafe { sys::rte_mempool_free(self.pool.as_ptr()) };
            return;
        }
        // Not freed here: a packet may still be in use, or on its way back.
        self.eal.retire_pool(self.pool, self.written_off.load(Ordering::Relaxed));
    }
}

impl Mempool {
    /// Allocates a pool.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a number that no pool can have, [`Error::Memory`] when the EAL
    /// has not enough memory.
    pub fn new(eal: &Eal, config: &MempoolConfig) -> Result<Self, Error> {
        check(config)?;
        let private = eal.memory().is_private();
        // SAFETY: the EAL is up (there is an `Eal`) and says so; the numbers were checked.
        let mut made = unsafe { memory::create(config, config.node, private) };
        if made.is_err() && config.node.is_some() {
            // Packets of another node are slower, but no packets are worse.
            // SAFETY: as above.
            made = unsafe { memory::create(config, None, private) };
        }
        let Made { pool, withheld } = made.map_err(|errno| Error::Memory {
            what: format!(
                "pool {:?} of {} packets of {} bytes",
                config.name, config.count, config.data_room
            ),
            errno,
            memory: eal.memory().to_string(),
        })?;
        let eal = eal.share();
        let (data_room, written_off) = (config.data_room, AtomicUsize::new(withheld));
        let kept = AtomicBool::new(false);
        let inner = Inner { pool, data_room, withheld, written_off, kept, unused: false, eal };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Releases the pool, to be freed, if this is its only handle (no open port takes packets from it) and no
    /// packet is out. `readers` are the threads that handle packets: every thread that is registered with the
    /// EAL while packets of the pool are out is one of them, and handles none while it is offline.
    ///
    /// # Errors
    /// The pool, if it is in use or may be.
    pub fn give_up(mut self, readers: &Arc<Qsbr>) -> Result<Unused, Self> {
        let kept = self.inner.kept.load(Ordering::Relaxed);
        if kept || Arc::get_mut(&mut self.inner).is_none() || self.in_use() > 0 {
            return Err(self);
        }
        Ok(Unused { pool: self, since: readers.start(), readers: readers.clone() })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.inner.pool.as_ptr()
    }

    /// Allocates an empty packet; `None` when the pool has none left.
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is alive; a packet from it is ours alone and empty.
        unsafe {
            let raw = sys::rte_pktmbuf_alloc(self.as_ptr());
            (!raw.is_null()).then(|| Mbuf::from_raw(RawMbuf(raw)))
        }
    }

    /// Allocates a packet with these bytes; `None` when the pool has none left or a buffer is too small.
    pub fn copy_of(&self, bytes: &[u8]) -> Option<Mbuf> {
        let mut packet = self.alloc()?;
        packet.extend(bytes).then_some(packet)
    }

    /// Copies a packet of several buffers to one buffer, with its tag, class and requests; `None` when the pool has
    /// no buffer left, or none so large.
    pub fn linear_copy_of(&self, packet: &Mbuf) -> Option<Mbuf> {
        let mut copy = self.alloc()?;
        for chunk in packet.chunks() {
            copy.append(chunk.len())?.copy_from_slice(chunk);
        }
        copy.set_tag(packet.tag());
        copy.set_traffic_class(packet.traffic_class());
        copy.request_as(packet);
        Some(copy)
    }

    /// Returns the number of packets in the pool, free or not.
    pub fn size(&self) -> usize {
        // SAFETY: the pool is alive; its size never changes.
        let size = unsafe { (*self.as_ptr()).size as usize };
        size - self.inner.withheld
    }

    /// Returns the number of packets that are out: held by the program or by a device. Free packets in the
    /// caches of threads count as free. While packets move, the number is a snapshot.
    pub fn in_use(&self) -> usize {
        // SAFETY: the pool is alive.
        let out = unsafe { sys::rte_mempool_in_use_count(self.as_ptr()) as usize };
        out.saturating_sub(self.inner.written_off.load(Ordering::Relaxed))
    }

    /// Counts packets that a driver will never give back as not in use: they are lost to the pool.
    pub(crate) fn write_off(&self, count: usize) {
        self.inner.written_off.fetch_add(count, Ordering::Relaxed);
    }

    /// Recovers the packets that were written off, if no other packet is out: they are then exactly those that
    /// are not free.
    ///
    /// # Safety
    /// No one uses a packet that was written off, or will.
    pub(crate) unsafe fn recover(&self) {
        let lost = self.inner.written_off.load(Ordering::Relaxed);
        if self.inner.withheld > 0 || lost == 0 || self.in_use() > 0 {
            return;
        }
        let free: Vec<Mbuf> = std::iter::from_fn(|| self.alloc()).collect();
        // There are others in the cache of another thread.
        if free.len() + lost != self.size() {
            return;
        }
        let free: HashSet<_> = free.iter().map(|packet| packet.raw().0).collect();
        self.inner.written_off.store(0, Ordering::Relaxed);
        for packet in memory::packets(self.inner.pool) {
            if !free.contains(&packet) {
                // SAFETY: it is the pool's and not free, so it was handed out, and by the caller it is unused
                // now.
                drop(unsafe { Mbuf::from_raw(RawMbuf(packet)) });
            }
        }
    }

    /// Never frees the pool: the number of packets written off is an estimate, and may include one that is in
    /// use.
    pub(crate) fn keep(&self) {
        self.inner.kept.store(true, Ordering::Relaxed);
    }

    /// Returns the number of memory chunks that hold the pool's packets.
    pub(crate) fn chunks(&self) -> u32 {
        // SAFETY: the pool is alive; the number never changes.
        unsafe { (*self.as_ptr()).nb_mem_chunks }
    }

    /// Returns the number of packets that did not come back: the leak check, to be called when every port,
    /// queue, ring, burst and list that used the pool is dropped; not 0 then means a leak.
    pub fn leaked(&self) -> usize {
        self.in_use()
    }

    /// Returns the NUMA node of the pool's memory, if one was requested and available; `None`: any node's.
    pub fn node(&self) -> Option<u32> {
        // SAFETY: the pool is alive; the number never changes.
        u32::try_from(unsafe { (*self.as_ptr()).socket_id }).ok()
    }

    /// Returns the number of packets that are never handed out, since devices cannot reach them: see
    /// [`memory`].
    pub fn withheld(&self) -> usize {
        self.inner.withheld
    }

    /// Returns the bytes of packet data that fit one buffer.
    pub fn data_room(&self) -> u16 {
        self.inner.data_room
    }
}

/// A released pool, which may be freed when no thread uses it any more.
pub struct Unused {
    pool: Mempool,
    readers: Arc<Qsbr>,
    since: Token,
}

impl Unused {
    /// Frees the pool's memory.
    ///
    /// # Errors
    /// It is too early: a reader has not been quiescent since the pool was released.
    pub fn free(mut self) -> Result<(), Self> {
        if !self.readers.passed(self.since) {
            return Err(self);
        }
        // No handle is left but this one, so no packet has been taken since none was out. A thread that is not
        // registered last touches the pool with the store that makes its packet count as free; one that is has
        // a cache in the pool, which it touches for a moment longer, and has been quiescent since: no thread
        // touches the pool any more, and it may be freed.
        if let Some(inner) = Arc::get_mut(&mut self.pool.inner) {
            inner.unused = true;
        }
        Ok(())
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mempool({} of {} in use)", self.in_use(), self.size())
    }
}

/// Rejects numbers that no pool can have, by name.
fn check(config: &MempoolConfig) -> Result<(), Error> {
    let refuse = |what: &str, value: usize, range: String| {
        let what = format!("pool {:?}: {what}", config.name);
        Err(Error::OutOfRange { what, value, range })
    };
    let room_max = usize::from(u16::MAX) - sys::RTE_PKTMBUF_HEADROOM as usize;
    if !(HEAD..=room_max).contains(&usize::from(config.data_room)) {
        return refuse("data_room", config.data_room.into(), format!("{HEAD} to {room_max}"));
    }
    if !(1..=u32::MAX as usize / 2).contains(&config.count) {
        return refuse("count", config.count, "1 to 2147483647".into());
    }
    // DPDK flushes a cache at 1.5 times its size, and requires that the pool can fill one.
    let cache_max = (sys::RTE_MEMPOOL_CACHE_MAX_SIZE as usize).min(config.count * 2 / 3);
    if config.cache > cache_max {
        return refuse("cache", config.cache, format!("0 to {cache_max}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn refused(config: &MempoolConfig) -> String {
        Mempool::new(testing::eal(), config).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let good =
            MempoolConfig { name: "p".into(), count: 300, cache: 0, data_room: 2048, node: None };
        let config = MempoolConfig { data_room: 63, ..good.clone() };
        assert_eq!(refused(&config), "pool \"p\": data_room is 63, which must be 64 to 65407");
        let config = MempoolConfig { cache: 201, ..good.clone() };
        assert_eq!(refused(&config), "pool \"p\": cache is 201, which must be 0 to 200");
        let config = MempoolConfig { count: 0, ..good.clone() };
        assert!(refused(&config).contains("count is 0"));
        let largest = MempoolConfig { cache: 200, data_room: 65_407, ..good };
        assert_eq!(Mempool::new(testing::eal(), &largest).unwrap().size(), 300);
    }

    /// See [`memory`].
    #[test]
    fn packets_lie_one_behind_the_other() {
        let pool = testing::pool(1000);
        let packets: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        let mut places: Vec<usize> = packets.iter().map(|packet| packet.raw().0 as usize).collect();
        places.sort_unstable();
        let steps: Vec<usize> = places.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!((places.len(), pool.chunks()), (1000, 1));
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        assert!(steps[0] < 2048 + 512, "{}", steps[0]);
    }

    /// A device that does DMA writes to that address; without it, nothing is received.
    #[test]
    fn every_packet_has_its_bus_address() {
        let pool = testing::pool(1000);
        let packets: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        for packet in &packets {
            let raw = packet.raw().0;
            // SAFETY: the packet is alive.
            let (bus, virt) = unsafe { (sys::rte_mbuf_iova_get(raw), (*raw).buf_addr) };
            assert_eq!(bus, virt as u64, "the EAL of the tests works with virtual addresses");
        }
        assert_eq!((packets.len(), pool.withheld(), pool.node()), (1000, 0, None));
        // Drivers that map each pool for their device skip those marked so.
        // SAFETY: the pool is alive.
        let flags = unsafe { (*pool.as_ptr()).flags };
        assert_eq!(flags & sys::RTE_MEMPOOL_F_NON_IO, 0);
    }

    #[test]
    fn memory_of_a_node_that_has_none_is_taken_elsewhere() {
        let config = MempoolConfig { count: 10, cache: 0, node: Some(7), ..Default::default() };
        let pool = Mempool::new(testing::eal(), &config).unwrap();
        assert_eq!((pool.size(), pool.node()), (10, None));
    }

    #[test]
    fn memory_that_a_pool_cannot_use_is_given_back_once() {
        // Memory freed twice may belong to another pool the second time.
        let make = |node: Option<u32>| {
            let readers = Qsbr::new(1);
            let config = MempoolConfig { count: 10, cache: 0, node, ..Default::default() };
            for _ in 0..1000 {
                let pool = Mempool::new(testing::eal(), &config).unwrap();
                let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
                assert_eq!((all.len(), pool.in_use()), (10, 10));
                drop(all);
                assert!(pool.give_up(&readers).ok().unwrap().free().is_ok());
            }
        };
        std::thread::scope(|scope| {
            for node in [Some(7), None, None] {
                scope.spawn(move || make(node));
            }
        });
    }

    #[test]
    fn packets_in_the_cache_of_a_thread_are_free() {
        let config =
            MempoolConfig { name: "c".into(), count: 255, cache: 32, data_room: 64, node: None };
        let pool = Mempool::new(testing::eal(), &config).unwrap();
        let other = pool.clone();
        std::thread::spawn(move || {
            let _registered = testing::eal().register_thread().unwrap();
            let packets: Vec<Mbuf> = std::iter::from_fn(|| other.alloc()).take(40).collect();
            assert_eq!((packets.len(), other.in_use()), (40, 40));
            drop(packets);
            assert_eq!(other.in_use(), 0);
        })
        .join()
        .unwrap();
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_pool_is_freed_when_nobody_can_touch_it_any_more() {
        let readers = Qsbr::new(1);
        let mut reader = readers.register().unwrap();
        reader.online();
        let pool = testing::pool(100);
        let (packet, other) = (pool.alloc().unwrap(), pool.clone());
        let pool = pool.give_up(&readers).err().unwrap();
        drop(packet);
        let pool = pool.give_up(&readers).err().unwrap();
        drop(other);
        let unused = pool.give_up(&readers).ok().unwrap();
        let unused = unused.free().err().unwrap();
        reader.quiescent();
        assert!(unused.free().is_ok());
        // The memory is reused: much more than there is, one pool after the other.
        let config =
            MempoolConfig { name: "m".into(), count: 8000, cache: 0, data_room: 2048, node: None };
        for _ in 0..100 {
            let pool = Mempool::new(testing::eal(), &config).unwrap();
            let unused = pool.give_up(&readers).ok().unwrap();
            reader.quiescent();
            assert!(unused.free().is_ok());
        }
    }

    #[test]
    fn packets_that_were_written_off_come_back_when_nobody_has_another() {
        let pool = testing::pool(100);
        let forget = |count| {
            for _ in 0..count {
                let _ = pool.alloc().unwrap().into_raw();
            }
            pool.write_off(count);
        };
        forget(30);
        let other = pool.alloc().unwrap();
        // SAFETY: the packets written off are unused, here and below.
        unsafe { pool.recover() };
        let rest: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(rest.len(), 69, "one might be somebody's");
        drop(rest);
        drop(other);
        // SAFETY: as above.
        unsafe { pool.recover() };
        forget(5);
        // SAFETY: as above.
        unsafe { pool.recover() };
        let all: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        let places: HashSet<_> = all.iter().map(|packet| packet.raw().0).collect();
        assert_eq!((all.len(), places.len(), pool.in_use()), (100, 100, 100));
        drop(all);
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn a_pool_whose_losses_were_estimated_is_never_freed() {
        let readers = Qsbr::new(1);
        let pool = testing::pool(100);
        let packet = pool.alloc().unwrap();
        // One too many: the packet that is out is counted as lost.
        pool.write_off(1);
        pool.keep();
        assert_eq!(pool.in_use(), 0);
        assert!(pool.give_up(&readers).is_err());
        drop(packet);
    }

    #[test]
    fn a_packet_may_outlive_its_pool_s_handles() {
        let pool = testing::pool(3);
        let packet = pool.copy_of(b"still here").unwrap();
        drop(pool);
        assert_eq!(packet.data(), b"still here");
    }
}
