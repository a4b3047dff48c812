//! The memory of a pool: contiguous packets in one piece, each with its bus address.
//!
//! `rte_pktmbuf_pool_create` keeps every packet from crossing the end of a page, for devices that use physical
//! addresses. With 4 KiB pages each packet then takes a page, and the gaps break the AF_XDP driver: it registers
//! with the kernel as many bytes as the packets would take without gaps, and the kernel never uses a buffer that
//! lies behind them (DPDK 22.11, `xdp_umem_configure`). So packets are contiguous here, and each has its own bus
//! address:
//!
//! - with virtual bus addresses (vfio-pci behind an IOMMU) the address is the virtual one, and pages do not
//!   matter;
//! - with physical bus addresses (uio_pci_generic, or vfio-pci without an IOMMU) a packet that crosses from one
//!   page into another that is not physically adjacent has no single bus address. It is withheld: taken out of
//!   the pool for good, one in about 800 with pages of 2 MiB.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};

use dpdk_sys as sys;

use super::{MempoolConfig, accesses};
use crate::error::dpdk_errno;
use crate::names::serial_name;
use crate::{Errno, IovaMode, huge};

/// The invalid bus address.
const NO_ADDRESS: sys::rte_iova_t = sys::rte_iova_t::MAX;

/// A pool and the number of its packets that are withheld.
pub(super) struct Made {
    pub(super) pool: NonNull<sys::rte_mempool>,
    pub(super) withheld: usize,
}

/// Creates a pool in the memory of this NUMA node, or of any.
///
/// # Safety
/// The EAL is up. `config.count` and `config.cache` are numbers that a pool can have. `private`: as [`Memory::NoHuge`] says.
///
/// [`Memory::NoHuge`]: crate::Memory::NoHuge
pub(super) unsafe fn create(
    config: &MempoolConfig,
    node: Option<u32>,
    private: bool,
) -> Result<Made, Errno> {
    // SAFETY: by the caller.
    let pool = unsafe { create_empty(config, node)? };
    // SAFETY: by the caller.
    let result = unsafe { populate(pool, node, private) }.and_then(|()| {
        // SAFETY: every object of the pool is one mbuf with its buffer behind it.
        unsafe {
            let init = Some(sys::rte_pktmbuf_init as _);
            sys::rte_mempool_obj_iter(pool.as_ptr(), init, ptr::null_mut());
        }
        match IovaMode::current() {
            IovaMode::Virtual => Ok(0),
            IovaMode::Physical => withhold_unreachable(pool),
        }
    });
    match result {
        Ok(withheld) => Ok(Made { pool, withheld }),
        Err(errno) => {
            // SAFETY: no packet of it is in use.
            unsafe { sys::rte_mempool_free(pool.as_ptr()) };
            Err(errno)
        }
    }
}

/// Creates a pool without memory.
///
/// # Safety
/// As for [`create`].
unsafe fn create_empty(
    config: &MempoolConfig,
    node: Option<u32>,
) -> Result<NonNull<sys::rte_mempool>, Errno> {
    let name = serial_name("pool");
    let room = config.data_room + sys::RTE_PKTMBUF_HEADROOM as u16;
    let element = size_of::<sys::rte_mbuf>() as u32 + u32::from(room);
    let mut private =
        sys::rte_pktmbuf_pool_private { mbuf_data_room_size: room, ..Default::default() };
    let own = size_of::<sys::rte_pktmbuf_pool_private>() as u32;
    // Allows packets to cross page boundaries. Their bus addresses are set by `populate`.
    let flags = sys::RTE_MEMPOOL_F_NO_IOVA_CONTIG;
    let (count, cache, socket) = (config.count as u32, config.cache as u32, socket(node));
    // SAFETY: by the caller; the name is a C string for the call. The pool has room for the private part,
    // which is copied.
    unsafe {
        let name = name.as_ptr();
        let made = sys::rte_mempool_create_empty(name, count, element, cache, own, socket, flags);
        let pool = NonNull::new(made).ok_or_else(dpdk_errno)?;
        let ops = accesses::handler().as_ptr();
        let code = sys::rte_mempool_set_ops_byname(made, ops, ptr::null_mut());
        if code < 0 {
            sys::rte_mempool_free(made);
            return Err(Errno::from_raw(-code));
        }
        sys::rte_pktmbuf_pool_init(made, (&raw mut private).cast());
        // DPDK takes the first flag as a promise that no device accesses the packets, and drivers that map each
        // pool for their device would leave this one out.
        (*made).flags &= !sys::RTE_MEMPOOL_F_NON_IO;
        Ok(pool)
    }
}

/// Adds memory for all packets of the pool: one piece if the EAL has one large enough, else several.
///
/// # Safety
/// As for [`create`].
unsafe fn populate(
    pool: NonNull<sys::rte_mempool>,
    node: Option<u32>,
    private: bool,
) -> Result<(), Errno> {
    // SAFETY: the pool is alive; its numbers do not change while it is populated but for the count.
    let (wanted, object) = unsafe {
        let pool = pool.as_ref();
        (pool.size as usize, (pool.header_size + pool.elt_size + pool.trailer_size) as usize)
    };
    let mut missing = wanted;
    let mut at_once = wanted;
    while missing > 0 {
        at_once = at_once.min(missing);
        // One cache line more, to which DPDK aligns the first object.
        let bytes = at_once * object + sys::RTE_CACHE_LINE_SIZE as usize;
        match reserve(bytes, node) {
            Ok(zone) => {
                if private {
                    // SAFETY: the zone has just been reserved; by the caller no device knows its pages.
                    unsafe {
                        let zone = zone.as_ref();
                        huge::replace(zone.__bindgen_anon_1.addr.cast(), zone.len)?;
                    }
                }
                missing -= add(pool, zone)?;
            }
            Err(Errno::ENOMEM) if at_once > 1 => at_once = at_once.div_ceil(2),
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Reserves memory of the EAL.
fn reserve(bytes: usize, node: Option<u32>) -> Result<NonNull<sys::rte_memzone>, Errno> {
    let name = serial_name("packets");
    let align = sys::RTE_CACHE_LINE_SIZE;
    // SAFETY: the EAL is up, as there is a pool; the name is a C string for the call.
    let zone = unsafe {
        sys::rte_memzone_reserve_aligned(name.as_ptr(), bytes, socket(node), 0, align).cast_mut()
    };
    NonNull::new(zone).ok_or_else(dpdk_errno)
}

/// Adds a piece of memory to the pool, which frees it when it is freed; returns the number of packets in it.
fn add(pool: NonNull<sys::rte_mempool>, zone: NonNull<sys::rte_memzone>) -> Result<usize, Errno> {
    // SAFETY: the zone has just been reserved; its address is in a union with a number of 64 bits.
    let (start, iova, bytes) = unsafe {
        let zone = zone.as_ref();
        (zone.__bindgen_anon_1.addr.cast::<c_char>(), zone.iova, zone.len)
    };
    // SAFETY: the pool is alive, and not populated by anyone else.
    let chunks = || unsafe { (*pool.as_ptr()).nb_mem_chunks };
    let before = chunks();
    // SAFETY: the memory is that of the zone, which has no other user, and stays until the pool is freed.
    let code = unsafe {
        let opaque = zone.as_ptr().cast();
        sys::rte_mempool_populate_iova(
            pool.as_ptr(),
            start,
            iova,
            bytes,
            Some(free_zone as _),
            opaque,
        )
    };
    if code <= 0 {
        // DPDK takes some errors (a node of which it has no memory) for a number of packets: the pool then has
        // the zone, and frees it when it is freed. If it were freed twice, it might be another pool's by then.
        if chunks() == before {
            // SAFETY: the pool has not taken the zone.
            unsafe { sys::rte_memzone_free(zone.as_ptr()) };
        }
        return Err(if code == 0 { Errno::ENOMEM } else { Errno::from_raw(-code) });
    }
    Ok(code as usize)
}

/// Called by DPDK when the pool is freed.
///
/// # Safety
/// `zone` is the memory zone that [`add`] gave to the pool.
unsafe extern "C" fn free_zone(_: *mut sys::rte_mempool_memhdr, zone: *mut c_void) {
    // SAFETY: by the caller.
    unsafe { sys::rte_memzone_free(zone.cast::<sys::rte_memzone>().cast_const()) };
}

/// Sets the physical address of each packet, and takes those without one out of the pool. Returns their number.
fn withhold_unreachable(pool: NonNull<sys::rte_mempool>) -> Result<usize, Errno> {
    // SAFETY: the pool is alive; its size does not change.
    let size = unsafe { pool.as_ref().size };
    let mut packets = vec![ptr::null_mut(); size as usize];
    // SAFETY: room for all packets of the pool, none of which has been used yet; no cache.
    let code = unsafe {
        let table = packets.as_mut_ptr();
        sys::rte_mempool_generic_get(pool.as_ptr(), table, size, ptr::null_mut())
    };
    if code < 0 {
        return Err(Errno::from_raw(-code));
    }
    packets.retain(|&packet| set_physical_address(pool, packet.cast()));
    if packets.is_empty() {
        // The kernel hides physical addresses without CAP_SYS_ADMIN.
        return Err(Errno::EPERM);
    }
    // SAFETY: packets of the pool, which are ours and go back once.
    unsafe {
        let count = packets.len() as u32;
        sys::rte_mempool_generic_put(pool.as_ptr(), packets.as_ptr(), count, ptr::null_mut());
    }
    Ok(size as usize - packets.len())
}

/// Sets a packet's bus address; returns false if its bytes are not physically contiguous.
fn set_physical_address(pool: NonNull<sys::rte_mempool>, packet: *mut sys::rte_mbuf) -> bool {
    // SAFETY: the packet is an object of the pool, `elt_size` bytes long behind its header, and ours; the
    // function that looks up addresses reads nothing behind the pointer.
    unsafe {
        let last = pool.as_ref().elt_size as usize - 1;
        let bytes = packet.cast::<u8>().cast_const();
        let first = sys::rte_mem_virt2iova(bytes.cast());
        let end = sys::rte_mem_virt2iova(bytes.add(last).cast());
        if first == NO_ADDRESS || end != first + last as u64 {
            return false;
        }
        (*sys::rte_mempool_get_header(packet.cast())).iova = first;
        let buffer = (*packet).buf_addr.cast::<u8>().offset_from_unsigned(bytes);
        sys::rte_mbuf_iova_set(packet, first + buffer as u64);
        true
    }
}

/// Returns all packets of a pool, in use or not.
pub(super) fn packets(pool: NonNull<sys::rte_mempool>) -> Vec<*mut sys::rte_mbuf> {
    let mut all: Vec<*mut sys::rte_mbuf> = Vec::new();
    // SAFETY: the pool is alive; the vector is the callback's for the call.
    unsafe {
        let all = (&raw mut all).cast();
        sys::rte_mempool_obj_iter(pool.as_ptr(), Some(collect as _), all);
    }
    all
}

/// Called by DPDK for each packet of a pool.
///
/// # Safety
/// `all` is the vector of [`packets`].
unsafe extern "C" fn collect(
    _: *mut sys::rte_mempool,
    all: *mut c_void,
    packet: *mut c_void,
    _: u32,
) {
    // SAFETY: by the caller.
    unsafe { (*all.cast::<Vec<*mut sys::rte_mbuf>>()).push(packet.cast()) };
}

/// Returns DPDK's number for a NUMA node.
fn socket(node: Option<u32>) -> i32 {
    node.map_or(sys::SOCKET_ID_ANY, |node| node as i32)
}
