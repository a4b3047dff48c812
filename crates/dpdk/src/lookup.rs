//! DPDK's own route tables, to compare with: `rte_fib` and `rte_lpm` for IPv4, `rte_fib6` and
//! `rte_lpm6` for IPv6.
//!
//! | type | structure | next hops | prefix lengths | lookups beside the writer |
//! |---|---|---|---|---|
//! | [`Fib`] | DIR-24-8, entries of 2 or 4 bytes | 1 to 2^15 - 1 or 2^31 - 1 | 0 to 32 | no |
//! | [`Lpm`] | DIR-24-8, entries of 4 bytes | 1 to 2^24 - 1 | 1 to 32 | [`LpmReader`] |
//! | [`Fib6`] | trie of bytes below 24 bits, entries of 2 or 4 bytes | as `Fib` | 0 to 128 | no |
//! | [`Lpm6`] | the same, entries of 4 bytes | 1 to 2^21 - 1 | 1 to 128 | no |
//!
//! Next hop 0 is the result of all of them if there is no route, so no route leads to it.
//!
//! Each table has room for a number of routes and of *groups*: DPDK's "tbl8", tables of 256 entries for
//! the prefixes longer than /24 and, in IPv6, for each further byte. [`groups_needed`] counts the groups
//! of a set of routes.
//!
//! Changes during lookups: `rte_lpm` reuses a group only after a grace period if it is created with one
//! ([`Lpm::new`] with a [`Qsbr`]). The others reuse groups at once, so a lookup could return another
//! network's route; for them the borrow checker keeps writer and readers apart.

use std::collections::{BTreeSet, HashSet};

use dpdk_sys as sys;

use crate::eal::Eal;
use crate::error::dpdk_errno;
use crate::{Errno, Error};

mod fib;
mod fib6;
mod lpm;
mod lpm6;

pub use fib::{Fib, FibLookup};
pub use fib6::{Fib6, Fib6Lookup};
pub use lpm::{Lpm, LpmReader};
pub use lpm6::Lpm6;

#[cfg(doc)]
use crate::qsbr::Qsbr;

/// Capacity of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Number of routes.
    pub routes: usize,
    /// Number of groups of 256 entries.
    pub groups: usize,
}

/// Size of an entry of [`Fib`] and [`Fib6`], which limits next hops and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntrySize {
    /// Next hops and groups below 2^15.
    Two,
    /// Next hops and groups below 2^31.
    Four,
}

impl EntrySize {
    /// Returns the number of bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Returns the largest next hop, which is also the most groups: all bits but one.
    pub fn max(self) -> usize {
        (1 << (8 * self.bytes() - 1)) - 1
    }
}

/// One of DPDK's route tables, written and read by one owner.
pub trait RouteTable {
    /// An address in DPDK's form: `u32` in host order, or the 16 bytes of the header. (Pointers to the
    /// latter are cast: DPDK's type for it was `uint8_t[16]`, and is `struct rte_ipv6_addr` since 24.11.)
    type Address: Copy;
    /// Result of a bulk lookup for each address.
    type Answer: Copy + Default;

    /// Adds a route or changes the next hop of an existing one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a next hop or a length that the table cannot hold;
    /// [`Error::RouteTable`] when DPDK refuses, as when the table is full.
    fn insert(&mut self, address: Self::Address, len: u8, next_hop: u32) -> Result<(), Error>;

    /// Removes a route.
    ///
    /// # Errors
    /// [`Error::RouteTable`] when there is none, or when DPDK has no room for the remaining parts of the
    /// routes around it.
    fn remove(&mut self, address: Self::Address, len: u8) -> Result<(), Error>;

    /// Looks up each address; if the slices differ in length, the shorter counts.
    fn lookup_bulk(&self, addresses: &[Self::Address], answers: &mut [Self::Answer]);

    /// Returns the next hop in an answer; 0 if there is no route.
    fn next_hop(answer: Self::Answer) -> u32;

    /// Returns the bytes that lookups read, whether in use or kept for future groups.
    fn lookup_bytes(&self) -> usize;
}

/// Returns the bytes in use in DPDK's heaps, by all their users.
pub fn heap_bytes(_eal: &Eal) -> usize {
    let of_socket = |socket| {
        let mut stats = sys::rte_malloc_socket_stats::default();
        // SAFETY: the EAL is up; the struct is ours and written by the call.
        let result = unsafe { sys::rte_malloc_get_socket_stats(socket, &mut stats) };
        if result == 0 { stats.heap_allocsz_bytes } else { 0 }
    };
    // SAFETY: the EAL is up; indices are below the count.
    let sockets = unsafe {
        (0..sys::rte_socket_count())
            .map(|index| sys::rte_socket_id_by_idx(index))
            .collect::<Vec<_>>()
    };
    sockets.into_iter().map(of_socket).sum()
}

/// Counts the groups for these IPv4 routes (address in host order, length): one for each /24 that holds a
/// longer prefix.
pub fn groups_needed(routes: impl Iterator<Item = (u32, u8)>) -> usize {
    let nets: HashSet<u32> =
        routes.filter(|&(_, len)| len > 24).map(|(address, _)| address >> 8).collect();
    nets.len()
}

/// Counts the groups that DPDK reserves for these IPv6 routes, inserted in this order.
///
/// `rte_fib6` counts in advance: a route longer than /24 takes a group for each byte beyond the longest
/// route present that contains it, unless some route lies in its last group already. That is more than
/// the table then uses, since sibling networks share the groups above them. Later releases (25.11.4)
/// reserve fewer, so this number is enough for them.
pub fn groups_needed6(routes: impl Iterator<Item = (u128, u8)>) -> usize {
    let net =
        |address: u128, len: u8| address & u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
    let (mut present, mut lens) = (HashSet::new(), BTreeSet::new());
    let mut occupied: HashSet<(u128, u8)> = HashSet::new();
    let mut groups = 0;
    for (address, len) in routes {
        let floor = len / 8 * 8;
        if len > 24 && !occupied.contains(&(net(address, floor), floor)) {
            let contains = |&&parent: &&u8| present.contains(&(net(address, parent), parent));
            let parent = lens.range(..=floor).rev().find(contains).copied().unwrap_or(0);
            groups += usize::from(len.div_ceil(8) - parent.max(24).div_ceil(8));
        }
        occupied.extend((24..len).step_by(8).map(|bits| (net(address, bits), bits)));
        present.insert((net(address, len), len));
        lens.insert(len);
    }
    groups
}

/// Most routes: DPDK computes the size of `rte_lpm`'s, 8 bytes each, in 32 bits.
const MAX_ROUTES: usize = (1 << 29) - 1;

/// Rejects sizes that the table cannot have, by name.
fn check_size(table: &str, size: TableSize, max_groups: usize) -> Result<(), Error> {
    for (what, value, max) in
        [("routes", size.routes, MAX_ROUTES), ("groups", size.groups, max_groups)]
    {
        if !(1..=max).contains(&value) {
            let what = format!("{table}: the number of {what}");
            return Err(Error::OutOfRange { what, value, range: format!("1 to {max}") });
        }
    }
    Ok(())
}

/// Rejects routes that the table cannot hold, by name.
fn check_route(
    table: &str,
    (len, shortest, longest): (u8, u8, u8),
    (next_hop, max): (u32, usize),
) -> Result<(), Error> {
    if !(shortest..=longest).contains(&len) {
        let (what, value) = (format!("{table}: the prefix length"), len.into());
        return Err(Error::OutOfRange { what, value, range: format!("{shortest} to {longest}") });
    }
    if !(1..=max).contains(&(next_hop as usize)) {
        let (what, value) = (format!("{table}: the next hop"), next_hop as usize);
        return Err(Error::OutOfRange { what, value, range: format!("1 to {max}") });
    }
    Ok(())
}

/// Returns the error for a table that DPDK could not create.
fn not_made(table: &str, size: TableSize, eal: &Eal) -> Error {
    let TableSize { routes, groups } = size;
    Error::Memory {
        what: format!("{table} for {routes} routes and {groups} groups"),
        errno: dpdk_errno(),
        memory: eal.memory().to_string(),
    }
}

/// Converts the result of a change to an error that names the operation.
fn changed(
    result: i32,
    table: &str,
    size: TableSize,
    change: impl Fn() -> String,
) -> Result<(), Error> {
    if result >= 0 {
        return Ok(());
    }
    let errno = Errno::from_raw(-result);
    let TableSize { routes, groups } = size;
    let problem =
        format!("{}: {errno}; it was made for {routes} routes and {groups} groups", change());
    Err(Error::RouteTable { table: table.to_owned(), problem })
}

/// Returns the number of lookups, in DPDK's type.
fn common_len<A, B>(addresses: &[A], answers: &[B]) -> i32 {
    addresses.len().min(answers.len()).min(i32::MAX as usize) as i32
}

#[cfg(test)]
mod tests;
