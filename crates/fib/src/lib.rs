//! Route tables: longest-prefix match with batch lookup and incremental update.
//!
//! A table maps an address to a [`NextHopId`], 15 bits, by the longest [`Prefix`] that contains it. One
//! owner writes it ([`Table`]); any number of readers look up at the same time ([`Lookup`]), without a lock
//! or barrier, and see for each address the route before or the route after a change, never anything else.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use fib::{Algorithm, NoReaders};
//!
//! let mut table = fib::new_ipv4(Algorithm::Runmap, Box::new(NoReaders))?;
//! let reader = table.reader();                       // give one to each forwarder
//! table.insert("192.0.2.0/24".parse()?, 17)?;
//! assert_eq!(reader.lookup(Ipv4Addr::new(192, 0, 2, 1)), 17);
//!
//! let batch = [0xc000_0201, 0x0a00_0001];            // 192.0.2.1, 10.0.0.1
//! let mut answers = [fib::NO_ROUTE; 2];
//! reader.lookup_batch(&batch, &mut answers);
//! assert_eq!(answers, [17, fib::NO_ROUTE]);
//! # Ok::<(), fib::Error>(())
//! ```
//!
//! # The structures
//!
//! | [`Algorithm`] | families | file | description |
//! |---|---|---|---|
//! | `Runmap` | IPv4, IPv6 | `ipv4.rs`, `ipv6.rs` | the default: run-compressed bitmaps in single words |
//! | `Poptrie` | IPv4, IPv6 | `poptrie.rs` | the SIGCOMM 2015 trie |
//! | `Dir24_8` | IPv4 | `dir24_8.rs` | one entry per /24, 32 MiB |
//! | `Reference` | IPv4, IPv6 | `reference.rs` | slow and obviously correct: the oracle of the tests |
//!
//! Each file explains its structure with a picture, its cost in loads and bytes, and its source.
//!
//! The first level of the fast ones takes megabytes, so there is a structure for tables of few routes beside them
//! (`small.rs`), with which the tables of VRFs begin: [`new_small_ipv4`], [`new_small_ipv6`]. It takes 16 KiB and what
//! its routes need, and is replaced by one of the others when it grows (`growing.rs`).
//!
//! # Limits
//!
//! | | routes | next hops | beyond |
//! |---|---|---|---|
//! | `Runmap`, IPv4 | any number; 32,768 /24s with prefixes longer than /24 | 32,767 | [`Error::Full`] |
//! | `Runmap`, IPv6 | any number whose nodes fit: 2^22, some millions of routes | 32,767 | [`Error::Full`] |
//! | `Poptrie` | any number whose nodes and leaves fit: 2^22 and 2^25 | 32,767 | [`Error::Full`] |
//! | `Dir24_8` | as `Runmap`, IPv4 | 32,767 | [`Error::Full`] |
//!
//! A next hop is a number, so that its meaning (a port and a MAC address, a group of equal paths) can change
//! without touching a route. Numbers beyond [`MAX_NEXT_HOP`] are refused with [`Error::NextHop`].
//!
//! Memory that lookups read, for synthetic tables with 200 next hops:
//!
//! | | 500,000 IPv4 routes | 1,000,000 IPv4 routes | 150,000 IPv6 routes |
//! |---|---|---|---|
//! | `Runmap` | 5.6 MiB | 6.8 MiB | 7.2 MiB |
//! | `Poptrie` | 4.8 MiB | 6.3 MiB | 7.9 MiB |
//! | `Dir24_8` | 33.8 MiB | 35.8 MiB | - |
//!
//! (The real 512,621 IPv4 routes of 2014 take 4.6 MiB.) Address space, about 0.5 GiB per table, is
//! reserved once; it becomes memory when it is first written.
//!
//! # Memory reclamation
//!
//! Readers hold no reference counts, so a writer that removes a piece from the table must wait until every
//! reader has finished the lookups in which it could have seen it. The writer asks the [`GracePeriod`] given
//! at construction; a router implements it by its quiescent-state counters ([`Epochs`] is a small
//! implementation). Reclaiming happens inside updates and in [`Table::collect`]. A grace period that ends
//! too early makes a late reader return a wrong next hop; it can never make it read memory outside the
//! table, because no memory is unmapped while a reader exists.
//!
//! # Lent memory
//!
//! Tables may be made in memory that others read, with the same layout and orders of writes: programs in the kernel
//! ([`new_ipv4_in`], [`new_ipv6_in`]). Their grace periods must include those readers.
//!
//! # NUMA nodes
//!
//! [`Replicas`] keeps a copy of a table in the memory of each node ([`Table::place`]); [`Table::readers`]
//! has a reader of each copy.
//!
//! # Verification
//!
//! - Property tests (`tests/against_reference.rs`) and a fuzz target (`fib_ops`) follow sequences
//!   of insertions, replacements, removals and batches of nested prefixes of every length, and
//!   compare every answer that can change with the reference's.
//! - `tests/concurrent.rs` lets readers check, for every lookup during updates, that the answer is one that
//!   was in force while the lookup ran; `tests/preempted.rs` interrupts readers within lookups, and fails
//!   for every structure if grace periods end too early.
//! - `tests/churn.rs` replays a day of changes a hundred times: same answers, same memory.
//! - `examples/replay.rs` does the same with real tables and updates.
//! - `unsafe` is confined to prefetches, mapped memory, calls of functions compiled for processors that were
//!   found to support them, and pieces of assembly. Miri runs the tests without the assembly, at sizes of
//!   its own: `MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-disable-stacked-borrows" cargo +nightly miri test
//!   -p fib` (checking borrows of the large arrays at every lookup would take days).
//! - Other processors: `cargo test -p fib --target aarch64-unknown-linux-musl` passes under
//!   `qemu-aarch64-static`.
//!
//! `cargo bench -p fib` compares the structures.

#![deny(unsafe_code)]

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
    sync::Arc,
};

mod address;
#[allow(unsafe_code, reason = "advice to the kernel about pages")]
mod arena;
mod buddy;
mod dir24_8;
mod grace;
mod growing;
mod ipv4;
mod ipv6;
#[allow(unsafe_code, reason = "memory that is mapped")]
#[cfg(all(target_os = "linux", not(miri)))]
mod pages;
#[cfg(not(all(target_os = "linux", not(miri))))]
use arena::Arena as Pages;
#[cfg(all(target_os = "linux", not(miri)))]
use pages::Pages;
mod poptrie;
#[allow(unsafe_code, reason = "prefetching has no safe form")]
mod prefetch;
mod reference;
mod replicas;
mod rib;
mod runs;
mod small;
pub mod synthetic;
mod words;

pub use address::{Address, Bits, Prefix};
pub use dir24_8::Lent4;
pub use grace::{EpochReader, Epochs, GracePeriod, NoReaders};
pub use poptrie::Lent6;
pub use replicas::Replicas;

/// Number of a next hop, 15 bits.
pub type NextHopId = u16;

/// The answer if no route matches; not a valid next hop of a route.
pub const NO_ROUTE: NextHopId = 0;

/// The largest number a route's next hop can have.
pub const MAX_NEXT_HOP: NextHopId = 0x7fff;

/// The most routes of a table that is still small: see [`new_small_ipv4`].
pub const SMALL_ROUTES: usize = 8192;

/// The readers' side of a table: shared, read-only, lock-free.
///
/// Every answer is right for the table before or after a simultaneous change, for each address separately:
/// two addresses of one batch may be answered from different moments.
pub trait Lookup<A: Address>: Send + Sync {
    /// Returns the next hop of the longest prefix that contains `address`, else [`NO_ROUTE`].
    fn lookup(&self, address: A) -> NextHopId;

    /// Looks up each of `addresses`, and writes the answer to the same place in `out`.
    ///
    /// Meant for batches of 1 to 64, whose table loads overlap; longer ones are split. If the two slices
    /// differ in length, the shorter counts. Addresses are integers in host order: `u32::from_be_bytes` or
    /// `u128::from_be_bytes` of the header's bytes.
    fn lookup_batch(&self, addresses: &[A::Bits], out: &mut [NextHopId]);

    /// Prefetches the memory that [`Self::lookup_prefetched`] of these addresses will read, for callers that
    /// have other work before they need the answers. A hint: no answer depends on it.
    fn prefetch_batch(&self, _addresses: &[A::Bits]) {}

    /// Like [`Self::lookup_batch`], by the way that [`Self::prefetch_batch`] has prepared, if the structure
    /// has one that pays only after it.
    fn lookup_prefetched(&self, addresses: &[A::Bits], out: &mut [NextHopId]) {
        self.lookup_batch(addresses, out);
    }
}

/// One change of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<A: Address> {
    /// Adds or replaces the route to `prefix`.
    Insert {
        /// The destination.
        prefix: Prefix<A>,
        /// Its next hop.
        next_hop: NextHopId,
    },
    /// Removes the route to `prefix`, if there is one.
    Remove {
        /// The destination.
        prefix: Prefix<A>,
    },
}

impl<A: Address> Change<A> {
    /// Returns the destination whose route changes.
    pub fn prefix(&self) -> Prefix<A> {
        match *self {
            Change::Insert { prefix, .. } | Change::Remove { prefix } => prefix,
        }
    }
}

/// The writer's side of a table: one owner, any number of [`Lookup`]s beside it.
///
/// Changes are visible to lookups that begin after a call has returned. A call that fails leaves
/// the routes as they were, unless documented otherwise.
pub trait Table<A: Address>: Send {
    /// Returns a reader of this table, to be shared between threads and kept as long as needed.
    fn reader(&self) -> Arc<dyn Lookup<A>>;

    /// Returns a reader of each copy, if there are several ([`Replicas`]).
    fn readers(&self) -> Vec<Arc<dyn Lookup<A>>> {
        vec![self.reader()]
    }

    /// Requests memory of a NUMA node, as long as it has some, for the data that lookups read.
    fn place(&mut self, _node: u32) {}

    /// Adds a route or replaces its next hop; returns the next hop before.
    ///
    /// # Errors
    /// [`Error::NextHop`] for [`NO_ROUTE`] and numbers beyond [`MAX_NEXT_HOP`]; [`Error::Full`]
    /// and [`Error::Stalled`] at the structure's limits.
    fn insert(
        &mut self,
        prefix: Prefix<A>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error>;

    /// Removes a route; returns the next hop it had, `None` if there was no such route.
    ///
    /// Even a removal needs room, since readers may still use the pieces it replaces. If a stuck reader
    /// holds all of it back, the removal becomes visible when a later call finds room.
    fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId>;

    /// Returns the next hop of the route to exactly this prefix.
    fn get(&self, prefix: Prefix<A>) -> Option<NextHopId>;

    /// Returns the number of routes.
    fn len(&self) -> usize;

    /// Returns true if there are no routes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of the structure that lookups read, including pieces kept for reuse.
    fn memory_bytes(&self) -> usize;

    /// Returns the bytes that only the writer uses: its own copy of the routes.
    fn writer_bytes(&self) -> usize;

    /// Makes all changes in order and publishes them together: no lookup returns a route that is
    /// neither the one before the batch nor the one after it.
    ///
    /// # Errors
    /// As [`Table::insert`]. A next hop out of range is found before anything changes; at a
    /// limit, the changes before the one that failed are in force.
    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), Error>;

    /// Adds many routes at once, fastest into an empty table. Of several routes to one prefix the
    /// last counts.
    ///
    /// # Errors
    /// As [`Table::insert`]; the routes before the one that failed are in force.
    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<A>, NextHopId)>,
    ) -> Result<(), Error>;

    /// Frees the pieces removed from the table that no reader can see any more; returns the number of pieces
    /// that still wait. Updates do this as well, so calling it is only needed to return memory while the
    /// table is not updated.
    fn collect(&mut self) -> usize;

    /// Returns the structure's name in the configuration.
    fn name(&self) -> &'static str;
}

/// The structures to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// Run-compressed bitmaps: the fastest, the default.
    #[default]
    Runmap,
    /// The SIGCOMM 2015 trie with 18 bits of direct pointing.
    Poptrie,
    /// One entry per /24: 32 MiB. IPv4 only.
    Dir24_8,
    /// One ordered map per prefix length: slow, obviously correct.
    Reference,
}

impl Algorithm {
    /// All structures.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Runmap, Algorithm::Poptrie, Algorithm::Dir24_8, Algorithm::Reference];

    /// Returns the name used in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Runmap => "runmap",
            Algorithm::Poptrie => "poptrie",
            Algorithm::Dir24_8 => "dir-24-8",
            Algorithm::Reference => "reference",
        }
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.iter().find(|algorithm| algorithm.name() == text);
        known.copied().ok_or_else(|| Error::UnknownAlgorithm {
            text: text.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

/// Creates an empty IPv4 table.
///
/// # Errors
/// None of today's structures refuses IPv4; callers handle [`Error::Family`] for future ones.
pub fn new_ipv4(
    algorithm: Algorithm,
    grace: Box<dyn GracePeriod>,
) -> Result<Box<dyn Table<Ipv4Addr>>, Error> {
    Ok(match algorithm {
        Algorithm::Runmap => Box::new(ipv4::Runmap4::new(grace)),
        Algorithm::Poptrie => Box::new(poptrie::Poptrie::new(grace)),
        Algorithm::Dir24_8 => Box::new(dir24_8::Dir24::new(grace)),
        Algorithm::Reference => Box::new(reference::Reference::new()),
    })
}

/// Creates an empty IPv6 table.
///
/// # Errors
/// [`Error::Family`] if the structure is for IPv4 alone.
pub fn new_ipv6(
    algorithm: Algorithm,
    grace: Box<dyn GracePeriod>,
) -> Result<Box<dyn Table<Ipv6Addr>>, Error> {
    Ok(match algorithm {
        Algorithm::Runmap => Box::new(ipv6::Runmap6::new(grace)),
        Algorithm::Poptrie => Box::new(poptrie::Poptrie::new(grace)),
        Algorithm::Dir24_8 => {
            return Err(Error::Family { structure: algorithm.name(), family: "IPv6" });
        }
        Algorithm::Reference => Box::new(reference::Reference::new()),
    })
}

/// Creates an empty IPv4 table of structure [`Algorithm::Dir24_8`] in memory that programs in the kernel read as well.
///
/// # Errors
/// [`Error::Room`]: it is too small.
pub fn new_ipv4_in(
    lent: Lent4,
    grace: Box<dyn GracePeriod>,
) -> Result<Box<dyn Table<Ipv4Addr>>, Error> {
    Ok(Box::new(dir24_8::Dir24::lent(lent, grace)?))
}

/// Creates an empty IPv6 table of structure [`Algorithm::Poptrie`] in memory that programs in the kernel read as well.
///
/// # Errors
/// [`Error::Room`]: it is too small.
pub fn new_ipv6_in(
    lent: Lent6,
    grace: Box<dyn GracePeriod>,
) -> Result<Box<dyn Table<Ipv6Addr>>, Error> {
    Ok(Box::new(poptrie::Poptrie::lent(lent, grace)?))
}

/// Creates an empty IPv4 table for a VRF: it takes some kilobytes up to `most` routes, usually [`SMALL_ROUTES`], and is
/// replaced by one of the given structure beyond (`growing.rs`). `grace` is called for each of them.
///
/// # Errors
/// None of today's structures refuses IPv4; callers handle [`Error::Family`] for future ones.
pub fn new_small_ipv4(
    algorithm: Algorithm,
    most: usize,
    grace: impl Fn() -> Box<dyn GracePeriod> + Send + 'static,
) -> Result<Box<dyn Table<Ipv4Addr>>, Error> {
    let (first, name) = (grace(), algorithm.name());
    let make = move || new_ipv4(algorithm, grace());
    Ok(Box::new(growing::Growing::new(first, most, name, Box::new(make))))
}

/// Creates an empty IPv6 table in the same way.
///
/// # Errors
/// [`Error::Family`] if the structure is for IPv4 alone.
pub fn new_small_ipv6(
    algorithm: Algorithm,
    most: usize,
    grace: impl Fn() -> Box<dyn GracePeriod> + Send + 'static,
) -> Result<Box<dyn Table<Ipv6Addr>>, Error> {
    let (first, name) = (grace(), algorithm.name());
    if algorithm == Algorithm::Dir24_8 {
        return Err(Error::Family { structure: name, family: "IPv6" });
    }
    let make = move || new_ipv6(algorithm, grace());
    Ok(Box::new(growing::Growing::new(first, most, name, Box::new(make))))
}

/// Errors of route tables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A prefix longer than the family's addresses.
    #[error("prefix length /{len} exceeds /{most}, the longest for {family}")]
    PrefixLength {
        /// The requested length.
        len: u8,
        /// The family.
        family: &'static str,
        /// The family's longest.
        most: u8,
    },
    /// An address with bits set beyond the prefix.
    #[error("prefix {prefix} has host bits set; the network is {network}")]
    HostBits {
        /// The given prefix.
        prefix: String,
        /// The same with the host bits cleared.
        network: String,
    },
    /// Text that is not a prefix.
    #[error("{text:?} is not an {family} prefix; write address/length")]
    NotAPrefix {
        /// The given text.
        text: String,
        /// The family.
        family: &'static str,
    },
    /// A next hop that no route can have.
    #[error("next hop {next_hop} is out of range; a route's next hop is 1 to {MAX_NEXT_HOP}")]
    NextHop {
        /// The given number.
        next_hop: NextHopId,
    },
    /// The structure has no room for the change.
    #[error("the {structure} table is full: {what} reached its limit of {limit}")]
    Full {
        /// The structure's name.
        structure: &'static str,
        /// The exhausted resource.
        what: &'static str,
        /// Its limit.
        limit: usize,
    },
    /// Memory that is too small for a table.
    #[error("the {structure} table needs room for {needed} elements; there is room for {len}")]
    Room {
        /// The structure's name.
        structure: &'static str,
        /// The elements given.
        len: usize,
        /// The elements needed.
        needed: usize,
    },
    /// There would be room if readers had finished with the pieces they may still see.
    #[error(
        "the {structure} table has no room: {waiting} retired pieces wait for a grace period that \
         does not end; is a reader stuck?"
    )]
    Stalled {
        /// The structure's name.
        structure: &'static str,
        /// Number of pieces that wait.
        waiting: usize,
    },
    /// A structure that does not exist.
    #[error("unknown table structure {text:?}; known: {known}")]
    UnknownAlgorithm {
        /// The given name.
        text: String,
        /// The known names.
        known: String,
    },
    /// A structure that cannot hold the family.
    #[error("the {structure} table does not hold {family}; choose another for it")]
    Family {
        /// The structure's name.
        structure: &'static str,
        /// The family.
        family: &'static str,
    },
}

/// Refuses numbers that a route's next hop cannot have.
pub(crate) fn check_next_hop(next_hop: NextHopId) -> Result<(), Error> {
    match next_hop {
        NO_ROUTE => Err(Error::NextHop { next_hop }),
        1..=MAX_NEXT_HOP => Ok(()),
        _ => Err(Error::NextHop { next_hop }),
    }
}

/// Refuses memory that is too small.
pub(crate) fn check_room(structure: &'static str, len: usize, needed: usize) -> Result<(), Error> {
    if len >= needed { Ok(()) } else { Err(Error::Room { structure, len, needed }) }
}

/// Refuses a batch in which a next hop is out of range, before anything changes.
pub(crate) fn check_changes<A: Address>(changes: &[Change<A>]) -> Result<(), Error> {
    changes.iter().try_for_each(|change| match *change {
        Change::Insert { next_hop, .. } => check_next_hop(next_hop),
        Change::Remove { .. } => Ok(()),
    })
}
