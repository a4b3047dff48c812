//! `rte_fib6`: a trie of one table for the first 24 bits and groups for each further byte.

use std::net::Ipv6Addr;
use std::ptr::NonNull;

use dpdk_sys as sys;

use super::{
    EntrySize, RouteTable, TableSize, changed, check_route, check_size, common_len, not_made,
};
use crate::Error;
use crate::eal::{Eal, EalRef};
use crate::names::serial_name;

/// DPDK's implementations of the lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fib6Lookup {
    /// Plain instructions.
    Scalar,
    /// AVX-512 gathers of 16 addresses. Needs an EAL with `--force-max-simd-bitwidth=512`.
    Avx512,
}

impl Fib6Lookup {
    /// Returns a name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx512 => "AVX-512",
        }
    }

    fn of_dpdk(self) -> sys::rte_fib6_lookup_type {
        match self {
            Self::Scalar => sys::RTE_FIB6_LOOKUP_TRIE_SCALAR,
            Self::Avx512 => sys::RTE_FIB6_LOOKUP_TRIE_VECTOR_AVX512,
        }
    }
}

/// An IPv6 table of `rte_fib6`, type TRIE. Answers are next hops in 8 bytes.
pub struct Fib6 {
    raw: NonNull<sys::rte_fib6>,
    entry: EntrySize,
    size: TableSize,
    _eal: EalRef,
}

// SAFETY: the table is plain memory that no thread-local state refers to.
unsafe impl Send for Fib6 {}
// SAFETY: functions with `&self` only read; writers take `&mut self`.
unsafe impl Sync for Fib6 {}

impl Fib6 {
    /// Creates an empty table. It uses DPDK's choice of lookup until [`Fib6::select`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a size the table cannot have, [`Error::Memory`] when the EAL has
    /// not enough memory.
    pub fn new(eal: &Eal, entry: EntrySize, size: TableSize) -> Result<Self, Error> {
        check_size(Self::name_of(entry), size, entry.max())?;
        let mut config = sys::rte_fib6_conf {
            type_: sys::RTE_FIB6_TRIE,
            max_routes: size.routes as i32,
            __bindgen_anon_1: sys::rte_fib6_conf__bindgen_ty_1 {
                trie: sys::rte_fib6_conf__bindgen_ty_1__bindgen_ty_1 {
                    nh_sz: match entry {
                        EntrySize::Two => sys::RTE_FIB6_TRIE_2B,
                        EntrySize::Four => sys::RTE_FIB6_TRIE_4B,
                    },
                    num_tbl8: size.groups as u32,
                },
            },
            // Zeros: next hop 0 if there is no route. The fields differ between releases.
            ..sys::rte_fib6_conf::default()
        };
        let name = serial_name("table");
        // SAFETY: the EAL is up; name and configuration live for the call; sizes were checked.
        let raw = unsafe { sys::rte_fib6_create(name.as_ptr(), sys::SOCKET_ID_ANY, &mut config) };
        let raw = NonNull::new(raw).ok_or_else(|| not_made(Self::name_of(entry), size, eal))?;
        Ok(Self { raw, entry, size, _eal: eal.share() })
    }

    fn name_of(entry: EntrySize) -> &'static str {
        match entry {
            EntrySize::Two => "rte_fib6 with 2-byte entries",
            EntrySize::Four => "rte_fib6 with 4-byte entries",
        }
    }

    /// Selects the implementation of the lookup.
    ///
    /// # Errors
    /// [`Error::RouteTable`] when this processor, this build of DPDK or the EAL's vector width
    /// rules it out.
    pub fn select(&mut self, lookup: Fib6Lookup) -> Result<(), Error> {
        // SAFETY: the table is alive, and there are no lookups meanwhile (`&mut self`).
        let result = unsafe { sys::rte_fib6_select_lookup(self.raw.as_ptr(), lookup.of_dpdk()) };
        let name = Self::name_of(self.entry);
        changed(result, name, self.size, || format!("lookup by {}", lookup.name()))
    }
}

impl Drop for Fib6 {
    fn drop(&mut self) {
        // SAFETY: the table is alive and ours alone.
        unsafe { sys::rte_fib6_free(self.raw.as_ptr()) };
    }
}

impl RouteTable for Fib6 {
    type Address = [u8; 16];
    type Answer = u64;

    fn insert(&mut self, address: [u8; 16], len: u8, next_hop: u32) -> Result<(), Error> {
        let name = Self::name_of(self.entry);
        check_route(name, (len, 0, 128), (next_hop, self.entry.max()))?;
        // SAFETY: the table is alive; DPDK reads 16 bytes of address; arguments were checked.
        let result = unsafe {
            sys::rte_fib6_add(self.raw.as_ptr(), address.as_ptr().cast(), len, next_hop.into())
        };
        changed(result, name, self.size, || format!("add {}/{len}", Ipv6Addr::from(address)))
    }

    fn remove(&mut self, address: [u8; 16], len: u8) -> Result<(), Error> {
        let name = Self::name_of(self.entry);
        check_route(name, (len, 0, 128), (1, 1))?;
        // SAFETY: the table is alive; DPDK reads 16 bytes of address; the length was checked.
        let result =
            unsafe { sys::rte_fib6_delete(self.raw.as_ptr(), address.as_ptr().cast(), len) };
        changed(result, name, self.size, || format!("remove {}/{len}", Ipv6Addr::from(address)))
    }

    #[inline]
    fn lookup_bulk(&self, addresses: &[[u8; 16]], answers: &mut [u64]) {
        let count = common_len(addresses, answers);
        // SAFETY: both arrays hold `count` elements; DPDK takes the addresses as mutable and only
        // reads them; there is no writer meanwhile (`&self`).
        unsafe {
            sys::rte_fib6_lookup_bulk(
                self.raw.as_ptr(),
                addresses.as_ptr().cast_mut().cast(),
                answers.as_mut_ptr(),
                count,
            )
        };
    }

    #[inline]
    fn next_hop(answer: u64) -> u32 {
        answer as u32
    }

    fn lookup_bytes(&self) -> usize {
        ((1 << 24) + (self.size.groups + 1) * 256) * self.entry.bytes()
    }
}
