//! Counts what the caches of threads cannot serve: each access to a pool's ring of free packets.
//!
//! A registered thread takes packets from its own cache and gives them back there, so a packet that the same thread
//! frees and receives again touches no memory of others. Only an empty or a full cache goes to the ring, with many
//! packets at once. Packets that one thread receives and another one frees all pass it.
//!
//! ```text
//! alloc, free -- cache of the thread -- empty, full --> take, give (here) --> DPDK's ring
//! ```

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use dpdk_sys as sys;

/// Accesses of a thread to the rings of pools, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolAccesses {
    /// Those that took packets.
    pub takes: u64,
    /// Those that gave packets back.
    pub gives: u64,
}

thread_local! {
    static ACCESSES: Cell<PoolAccesses> = const { Cell::new(PoolAccesses { takes: 0, gives: 0 }) };
}

/// Returns the accesses of the calling thread.
#[inline]
pub fn pool_accesses() -> PoolAccesses {
    ACCESSES.get()
}

/// DPDK's functions for the ring, to which the counting ones pass on.
struct Ring {
    enqueue: unsafe extern "C" fn(*mut sys::rte_mempool, *const *mut c_void, c_uint) -> c_int,
    dequeue: unsafe extern "C" fn(*mut sys::rte_mempool, *mut *mut c_void, c_uint) -> c_int,
}

static RING: OnceLock<Ring> = OnceLock::new();
static NAME: OnceLock<CString> = OnceLock::new();

/// Returns the name of the counting functions, registered at the first call; that of DPDK's own if there is no room for
/// more. The EAL must be up.
pub(super) fn handler() -> &'static CStr {
    NAME.get_or_init(|| {
        // SAFETY: the EAL is up; it returns a C string that stays.
        let best = unsafe { CStr::from_ptr(sys::rte_mbuf_best_mempool_ops()) };
        if register(best) { OWN.to_owned() } else { best.to_owned() }
    })
}

/// The name of the counting functions in DPDK.
const OWN: &CStr = c"turnpike";

/// Registers the functions of this name once more, with those that count in front.
fn register(best: &CStr) -> bool {
    // SAFETY: DPDK's table; entries are added under its lock and never changed, and `handler` calls once.
    let all = unsafe {
        let table = &raw const sys::rte_mempool_ops_table;
        std::slice::from_raw_parts((&raw const (*table).ops).cast(), (*table).num_ops as usize)
    };
    let named = |ops: &&sys::rte_mempool_ops| name_of(&ops.name) == Some(best);
    let Some(found) = all.iter().find(named) else { return false };
    let (Some(enqueue), Some(dequeue)) = (found.enqueue, found.dequeue) else { return false };
    let mut own = *found;
    own.name.fill(0);
    for (to, from) in own.name.iter_mut().zip(OWN.to_bytes()) {
        *to = *from as c_char;
    }
    own.enqueue = Some(give);
    own.dequeue = Some(take);
    // SAFETY: the structure is complete and copied.
    let number = unsafe { sys::rte_mempool_register_ops(&raw const own) };
    number >= 0 && RING.set(Ring { enqueue, dequeue }).is_ok()
}

fn name_of(name: &[c_char]) -> Option<&CStr> {
    // SAFETY: `c_char` and `u8` have the same layout.
    let bytes = unsafe { std::slice::from_raw_parts(name.as_ptr().cast(), name.len()) };
    CStr::from_bytes_until_nul(bytes).ok()
}

/// Counts accesses of the calling thread; returns the functions to pass on to.
fn counted(takes: u64, gives: u64) -> Option<&'static Ring> {
    let before = ACCESSES.get();
    ACCESSES.set(PoolAccesses { takes: before.takes + takes, gives: before.gives + gives });
    RING.get()
}

/// Gives packets back.
unsafe extern "C" fn give(
    pool: *mut sys::rte_mempool,
    packets: *const *mut c_void,
    count: c_uint,
) -> c_int {
    let Some(ring) = counted(0, 1) else { return -libc::ENOTSUP };
    // SAFETY: DPDK's arguments, for DPDK's function.
    unsafe { (ring.enqueue)(pool, packets, count) }
}

/// Takes packets.
unsafe extern "C" fn take(
    pool: *mut sys::rte_mempool,
    packets: *mut *mut c_void,
    count: c_uint,
) -> c_int {
    let Some(ring) = counted(1, 0) else { return -libc::ENOTSUP };
    // SAFETY: as above.
    unsafe { (ring.dequeue)(pool, packets, count) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mempool, MempoolConfig, testing};

    fn during(work: impl FnOnce()) -> PoolAccesses {
        let before = pool_accesses();
        work();
        let after = pool_accesses();
        PoolAccesses { takes: after.takes - before.takes, gives: after.gives - before.gives }
    }

    #[test]
    fn only_what_a_cache_cannot_serve_is_an_access() {
        let eal = testing::eal();
        std::thread::spawn(move || {
            let _registered = eal.register_thread().unwrap();
            let config = MempoolConfig { count: 4095, cache: 256, ..MempoolConfig::default() };
            let pool = Mempool::new(eal, &config).unwrap();
            let few = |count| (0..count).map(|_| pool.alloc().unwrap()).collect::<Vec<_>>();
            assert_eq!(during(|| drop(few(1))), PoolAccesses { takes: 1, gives: 0 });
            let none = during(|| (0..1000).for_each(|_| drop(few(64))));
            assert_eq!(none, PoolAccesses::default(), "the cache has them");
            let many = during(|| drop(few(2000)));
            assert!((2..=8).contains(&many.takes) && (2..=8).contains(&many.gives), "{many:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_without_a_cache_goes_to_the_ring_each_time() {
        let pool = testing::pool(100);
        let own = std::thread::spawn(move || during(|| drop(pool.alloc().unwrap())));
        assert_eq!(own.join().unwrap(), PoolAccesses { takes: 1, gives: 1 });
    }
}
