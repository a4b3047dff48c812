//! `rte_lpm`: DIR-24-8 with entries of 4 bytes, whose writer supports grace periods.

use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys as sys;

use super::{RouteTable, TableSize, changed, check_route, check_size, common_len, not_made};
use crate::Error;
use crate::eal::{Eal, EalRef};
use crate::error::dpdk_errno;
use crate::names::serial_name;
use crate::qsbr::{self, Qsbr};

const NAME: &str = "rte_lpm";
/// DPDK computes the size of the groups, 1,024 bytes each, in 32 bits.
const MAX_GROUPS: usize = (1 << 22) - 1;
/// Bits of an entry that hold the next hop.
const NEXT_HOP: u32 = 0x00ff_ffff;

/// An IPv4 table of `rte_lpm`. Answers are entries: the next hop in the low 24 bits, and a bit that
/// is set if there is a route.
///
/// Its list of routes is an array per prefix length that each change searches from the start:
/// loading a full table takes many seconds.
pub struct Lpm {
    inner: Arc<Inner>,
}

struct Inner {
    raw: NonNull<sys::rte_lpm>,
    size: TableSize,
    /// Kept because the table uses it for grace periods.
    readers: Option<Arc<Qsbr>>,
    _eal: EalRef,
}

// SAFETY: the table is plain memory that no thread-local state refers to.
unsafe impl Send for Inner {}
// SAFETY: only `Lpm`, of which there is one per table, writes, and by `&mut self`. Others look up
// through `LpmReader`, which exists only for tables with grace periods: DPDK's documentation of
// `rte_lpm_rcu_qsbr_add` then allows lookups during updates. Each entry is loaded and stored as one
// word, and the arrays it leads into stay as long as the table.
unsafe impl Sync for Inner {}

/// Looks up during updates, on one thread.
pub struct LpmReader {
    inner: Arc<Inner>,
    reader: qsbr::Reader,
}

impl Lpm {
    /// Creates an empty table. With `readers`, [`Lpm::reader`] makes readers for other threads, and
    /// groups are reused when all readers of that set have been quiescent.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a size the table cannot have, [`Error::Memory`] when the EAL has
    /// not enough memory.
    pub fn new(eal: &Eal, size: TableSize, readers: Option<&Arc<Qsbr>>) -> Result<Self, Error> {
        check_size(NAME, size, MAX_GROUPS)?;
        let config = sys::rte_lpm_config {
            max_rules: size.routes as u32,
            number_tbl8s: size.groups as u32,
            flags: 0,
        };
        let name = serial_name("table");
        // SAFETY: the EAL is up; name and configuration live for the call; sizes were checked.
        let raw = unsafe { sys::rte_lpm_create(name.as_ptr(), sys::SOCKET_ID_ANY, &config) };
        let raw = NonNull::new(raw).ok_or_else(|| not_made(NAME, size, eal))?;
        let inner = Inner { raw, size, readers: readers.cloned(), _eal: eal.share() };
        inner.attach_readers()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Creates a reader for another thread. It delays grace periods until [`LpmReader::quiescent`]
    /// is called or it is dropped.
    ///
    /// # Errors
    /// [`Error::RouteTable`] for a table created without readers; [`Error::OutOfRange`] when the
    /// [`Qsbr`] has no more.
    pub fn reader(&self) -> Result<LpmReader, Error> {
        let Some(readers) = &self.inner.readers else {
            let problem = "no reader: it was made without a set of readers".to_owned();
            return Err(Error::RouteTable { table: NAME.to_owned(), problem });
        };
        let mut reader = readers.register()?;
        reader.online();
        Ok(LpmReader { inner: Arc::clone(&self.inner), reader })
    }
}

impl Inner {
    fn attach_readers(&self) -> Result<(), Error> {
        let Some(readers) = &self.readers else { return Ok(()) };
        let mut config = sys::rte_lpm_rcu_config {
            v: readers.as_ptr(),
            mode: sys::RTE_LPM_QSBR_MODE_DQ,
            dq_size: 0,
            reclaim_thd: 0,
            reclaim_max: 0,
        };
        // SAFETY: table and readers are alive, the readers as long as the table (`self.readers`).
        if unsafe { sys::rte_lpm_rcu_qsbr_add(self.raw.as_ptr(), &mut config) } != 0 {
            let problem = format!("its readers cannot be attached: {}", dpdk_errno());
            return Err(Error::RouteTable { table: NAME.to_owned(), problem });
        }
        Ok(())
    }

    #[inline]
    fn lookup_bulk(&self, addresses: &[u32], answers: &mut [u32]) {
        let count = common_len(addresses, answers) as u32;
        // SAFETY: the table is alive; both arrays hold `count` elements.
        unsafe {
            sys::rte_lpm_lookup_bulk_func(
                self.raw.as_ptr(),
                addresses.as_ptr(),
                answers.as_mut_ptr(),
                count,
            )
        };
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the table is alive, and neither writer nor reader is left.
        unsafe { sys::rte_lpm_free(self.raw.as_ptr()) };
    }
}

impl RouteTable for Lpm {
    type Address = u32;
    type Answer = u32;

    fn insert(&mut self, address: u32, len: u8, next_hop: u32) -> Result<(), Error> {
        check_route(NAME, (len, 1, 32), (next_hop, NEXT_HOP as usize))?;
        // SAFETY: the table is alive, this is its only writer; arguments were checked.
        let result = unsafe { sys::rte_lpm_add(self.inner.raw.as_ptr(), address, len, next_hop) };
        changed(result, NAME, self.inner.size, || format!("add {}/{len}", Ipv4Addr::from(address)))
    }

    fn remove(&mut self, address: u32, len: u8) -> Result<(), Error> {
        check_route(NAME, (len, 1, 32), (1, 1))?;
        // SAFETY: the table is alive, this is its only writer; the length was checked.
        let result = unsafe { sys::rte_lpm_delete(self.inner.raw.as_ptr(), address, len) };
        changed(result, NAME, self.inner.size, || {
            format!("remove {}/{len}", Ipv4Addr::from(address))
        })
    }

    #[inline]
    fn lookup_bulk(&self, addresses: &[u32], answers: &mut [u32]) {
        self.inner.lookup_bulk(addresses, answers);
    }

    #[inline]
    fn next_hop(answer: u32) -> u32 {
        if answer & sys::RTE_LPM_LOOKUP_SUCCESS != 0 { answer & NEXT_HOP } else { 0 }
    }

    fn lookup_bytes(&self) -> usize {
        ((1 << 24) + self.inner.size.groups * 256) * 4
    }
}

impl LpmReader {
    /// Like [`RouteTable::lookup_bulk`], while another thread may write.
    #[inline]
    pub fn lookup_bulk(&mut self, addresses: &[u32], answers: &mut [u32]) {
        self.inner.lookup_bulk(addresses, answers);
    }

    /// Reports that this thread is between lookups.
    #[inline]
    pub fn quiescent(&mut self) {
        self.reader.quiescent();
    }
}
