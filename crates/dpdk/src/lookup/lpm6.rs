//! `rte_lpm6`: the trie of `rte_fib6` with entries of 4 bytes, walked one address at a time.

use std::net::Ipv6Addr;
use std::ptr::NonNull;

use dpdk_sys as sys;

use super::{RouteTable, TableSize, changed, check_route, check_size, common_len, not_made};
use crate::Error;
use crate::eal::{Eal, EalRef};
use crate::names::serial_name;

const NAME: &str = "rte_lpm6";
/// Most groups, and one more than the largest next hop.
const LIMIT: usize = 1 << 21;

/// An IPv6 table of `rte_lpm6`. Answers are next hops, negative if there is no route.
pub struct Lpm6 {
    raw: NonNull<sys::rte_lpm6>,
    size: TableSize,
    _eal: EalRef,
}

// SAFETY: the table is plain memory that no thread-local state refers to.
unsafe impl Send for Lpm6 {}
// SAFETY: functions with `&self` only read; writers take `&mut self`.
unsafe impl Sync for Lpm6 {}

impl Lpm6 {
    /// Creates an empty table.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a size the table cannot have, [`Error::Memory`] when the EAL has
    /// not enough memory.
    pub fn new(eal: &Eal, size: TableSize) -> Result<Self, Error> {
        check_size(NAME, size, LIMIT)?;
        let config = sys::rte_lpm6_config {
            max_rules: size.routes as u32,
            number_tbl8s: size.groups as u32,
            flags: 0,
        };
        let name = serial_name("table");
        // SAFETY: the EAL is up; name and configuration live for the call; sizes were checked.
        let raw = unsafe { sys::rte_lpm6_create(name.as_ptr(), sys::SOCKET_ID_ANY, &config) };
        let raw = NonNull::new(raw).ok_or_else(|| not_made(NAME, size, eal))?;
        Ok(Self { raw, size, _eal: eal.share() })
    }
}

impl Drop for Lpm6 {
    fn drop(&mut self) {
        // SAFETY: the table is alive and ours alone.
        unsafe { sys::rte_lpm6_free(self.raw.as_ptr()) };
    }
}

impl RouteTable for Lpm6 {
    type Address = [u8; 16];
    type Answer = i32;

    fn insert(&mut self, address: [u8; 16], len: u8, next_hop: u32) -> Result<(), Error> {
        check_route(NAME, (len, 1, 128), (next_hop, LIMIT - 1))?;
        // SAFETY: the table is alive; DPDK reads 16 bytes of address; arguments were checked.
        let result =
            unsafe { sys::rte_lpm6_add(self.raw.as_ptr(), address.as_ptr().cast(), len, next_hop) };
        changed(result, NAME, self.size, || format!("add {}/{len}", Ipv6Addr::from(address)))
    }

    fn remove(&mut self, address: [u8; 16], len: u8) -> Result<(), Error> {
        check_route(NAME, (len, 1, 128), (1, 1))?;
        // SAFETY: the table is alive; DPDK reads 16 bytes of address; the length was checked.
        let result =
            unsafe { sys::rte_lpm6_delete(self.raw.as_ptr(), address.as_ptr().cast(), len) };
        changed(result, NAME, self.size, || format!("remove {}/{len}", Ipv6Addr::from(address)))
    }

    #[inline]
    fn lookup_bulk(&self, addresses: &[[u8; 16]], answers: &mut [i32]) {
        let count = common_len(addresses, answers) as u32;
        // SAFETY: both arrays hold `count` elements; DPDK takes the addresses as mutable and only
        // reads them; there is no writer meanwhile (`&self`).
        unsafe {
            sys::rte_lpm6_lookup_bulk_func(
                self.raw.as_ptr(),
                addresses.as_ptr().cast_mut().cast(),
                answers.as_mut_ptr(),
                count,
            )
        };
    }

    #[inline]
    fn next_hop(answer: i32) -> u32 {
        answer.max(0) as u32
    }

    fn lookup_bytes(&self) -> usize {
        ((1 << 24) + self.size.groups * 256) * 4
    }
}
