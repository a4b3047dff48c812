//! Classification of a batch's field values: values that all rules treat alike form one class.
//!
//! Few classes are found by comparison: a value's range is the number of range starts that it reaches, and the
//! processor compares many values with one start at a time. Many classes are found in a table: an array over all
//! values for numbers, a route table for addresses.

use std::{net::Ipv4Addr, net::Ipv6Addr, sync::Arc};

use fib::{Address, Algorithm, Bits, Error, Lookup, NoReaders, Prefix, Table};
use ipnet::IpNet;

use crate::{Family, Key, SetReaders, fields::BATCH, sets::Members};

/// Most range starts that are compared one by one; more make a table.
const FEW: usize = 48;

/// Bound of the ranks of few ranges.
pub(crate) const RANKS: usize = 64;

const _: () = assert!(FEW < RANKS);

/// An address family whose packets can be classified: [`Ipv4Addr`] or [`Ipv6Addr`].
pub trait FilterAddress: Address {
    /// The family, as rules name it.
    const OF: Family;

    /// Returns the key of a frame of this family: [`Key::of_ip4`] or [`Key::of_ip6`].
    fn key(frame: &[u8], length: usize, interface: u16) -> Key;

    /// Like [`Self::key`], only for a plain packet, without headers to walk.
    #[doc(hidden)]
    fn plain_key(frame: &[u8], length: usize, interface: u16) -> Option<Key>;

    /// Returns the address in the low bits of `key`.
    #[doc(hidden)]
    fn narrow(key: u128) -> Self::Bits;

    /// Returns a prefix of this family.
    #[doc(hidden)]
    fn prefix(net: &IpNet) -> Option<Prefix<Self>>;

    /// Returns the sets of this family.
    #[doc(hidden)]
    fn members(readers: &SetReaders) -> &Members<Self>;

    #[doc(hidden)]
    fn table(algorithm: Algorithm) -> Result<Box<dyn Table<Self>>, Error>;

    /// Returns addresses of 32 bits.
    #[doc(hidden)]
    fn lanes(addresses: &[Self::Bits; BATCH]) -> Option<&[u32; BATCH]>;

    /// As [`Self::lanes`], for writing.
    #[doc(hidden)]
    fn lanes_mut(addresses: &mut [Self::Bits; BATCH]) -> Option<&mut [u32; BATCH]>;

    /// Counts for each address the entries of `starts`, which are in order, that it reaches.
    #[doc(hidden)]
    fn ranks(starts: &[Self::Bits], addresses: &[Self::Bits], ranks: &mut [u16]);
}

impl FilterAddress for Ipv4Addr {
    const OF: Family = Family::Ip4;

    fn key(frame: &[u8], length: usize, interface: u16) -> Key {
        Key::of_ip4(frame, length, interface)
    }

    #[inline(always)]
    fn plain_key(frame: &[u8], length: usize, interface: u16) -> Option<Key> {
        Key::of_plain_ip4(frame, length, interface)
    }

    #[inline(always)]
    fn narrow(key: u128) -> u32 {
        key as u32
    }

    fn prefix(net: &IpNet) -> Option<Prefix<Self>> {
        match net {
            IpNet::V4(net) => Some(Prefix::covering(net.network(), net.prefix_len())),
            IpNet::V6(_) => None,
        }
    }

    fn members(readers: &SetReaders) -> &Members<Self> {
        &readers.ip4
    }

    fn table(algorithm: Algorithm) -> Result<Box<dyn Table<Self>>, Error> {
        fib::new_ipv4(algorithm, Box::new(NoReaders))
    }

    #[inline(always)]
    fn lanes(addresses: &[u32; BATCH]) -> Option<&[u32; BATCH]> {
        Some(addresses)
    }

    #[inline(always)]
    fn lanes_mut(addresses: &mut [u32; BATCH]) -> Option<&mut [u32; BATCH]> {
        Some(addresses)
    }

    #[inline]
    fn ranks(starts: &[u32], addresses: &[u32], ranks: &mut [u16]) {
        let mut counts = [0u32; BATCH];
        for start in starts {
            for (count, address) in counts.iter_mut().zip(addresses) {
                *count += u32::from(address >= start);
            }
        }
        ranks.iter_mut().zip(counts).for_each(|(rank, count)| *rank = count as u16);
    }
}

impl FilterAddress for Ipv6Addr {
    const OF: Family = Family::Ip6;

    fn key(frame: &[u8], length: usize, interface: u16) -> Key {
        Key::of_ip6(frame, length, interface)
    }

    #[inline(always)]
    fn plain_key(frame: &[u8], length: usize, interface: u16) -> Option<Key> {
        Key::of_plain_ip6(frame, length, interface)
    }

    #[inline(always)]
    fn narrow(key: u128) -> u128 {
        key
    }

    fn prefix(net: &IpNet) -> Option<Prefix<Self>> {
        match net {
            IpNet::V6(net) => Some(Prefix::covering(net.network(), net.prefix_len())),
            IpNet::V4(_) => None,
        }
    }

    fn members(readers: &SetReaders) -> &Members<Self> {
        &readers.ip6
    }

    fn table(algorithm: Algorithm) -> Result<Box<dyn Table<Self>>, Error> {
        fib::new_ipv6(algorithm, Box::new(NoReaders))
    }

    #[inline(always)]
    fn lanes(_: &[u128; BATCH]) -> Option<&[u32; BATCH]> {
        None
    }

    #[inline(always)]
    fn lanes_mut(_: &mut [u128; BATCH]) -> Option<&mut [u32; BATCH]> {
        None
    }

    #[inline]
    fn ranks(starts: &[u128], addresses: &[u128], ranks: &mut [u16]) {
        let mut counts = [0u64; BATCH];
        for start in starts {
            let (high, low) = ((start >> 64) as u64, *start as u64);
            for (count, address) in counts.iter_mut().zip(addresses) {
                let (over, rest) = ((address >> 64) as u64, *address as u64);
                *count += u64::from((over > high) | (over == high) & (rest >= low));
            }
        }
        ranks.iter_mut().zip(counts).for_each(|(rank, count)| *rank = count as u16);
    }
}

/// The classes of addresses; class 0 is that of addresses in no prefix.
pub(crate) enum AddressClasses<A: FilterAddress> {
    Few { starts: Vec<A::Bits>, classes: Vec<u16> },
    Table(Arc<dyn Lookup<A>>),
}

impl<A: FilterAddress> AddressClasses<A> {
    /// Builds the classes: an address has the class of the longest prefix that holds it; `prefixes` are in order,
    /// and their classes below 2^15.
    pub fn new(prefixes: &[(Prefix<A>, u16)]) -> Result<Self, Error> {
        let ranges = ranges(prefixes);
        if ranges.len() <= FEW {
            let (starts, classes) = split(&ranges);
            return Ok(Self::Few { starts, classes });
        }
        // The fastest table has room for fewer long prefixes than the other.
        let table = loaded(prefixes, Algorithm::Runmap)
            .or_else(|_| loaded(prefixes, Algorithm::Poptrie))?;
        Ok(Self::Table(table.reader()))
    }

    /// Has the processor fetch the memory that the lookup of these addresses reads first.
    #[inline]
    pub fn prefetch(&self, addresses: &[A::Bits]) {
        if let Self::Table(table) = self {
            table.prefetch_batch(addresses);
        }
    }

    /// Finds the class of each address.
    #[inline]
    pub fn find(&self, addresses: &[A::Bits], found: &mut [u16]) {
        self.rank(addresses, found);
        if let Self::Few { classes, .. } = self {
            translate(classes, found);
        }
    }

    /// Finds the rank of each address among few ranges, else its class.
    #[inline]
    pub fn rank(&self, addresses: &[A::Bits], found: &mut [u16]) {
        match self {
            Self::Table(table) => table.lookup_prefetched(addresses, found),
            Self::Few { starts, .. } => A::ranks(starts, addresses, found),
        }
    }

    /// Returns the classes by rank, if there are few ranges.
    pub fn by_rank(&self) -> Option<&[u16]> {
        match self {
            Self::Few { classes, .. } => Some(classes),
            Self::Table(_) => None,
        }
    }
}

fn loaded<A: FilterAddress>(
    prefixes: &[(Prefix<A>, u16)],
    algorithm: Algorithm,
) -> Result<Box<dyn Table<A>>, Error> {
    let mut table = A::table(algorithm)?;
    // Class 0 is a table's result where there is no route.
    table.load(&mut prefixes.iter().copied().filter(|(_, class)| *class != 0))?;
    Ok(table)
}

/// Returns the first address and the class of each range between the prefixes' bounds, in order. Prefixes are in
/// order: one follows those that hold it.
fn ranges<A: FilterAddress>(prefixes: &[(Prefix<A>, u16)]) -> Vec<(A::Bits, u16)> {
    let mut ranges = vec![(A::Bits::default(), 0)];
    let mut open: Vec<(A::Bits, u16)> = Vec::new();
    for (prefix, class) in prefixes {
        close(&mut open, &mut ranges, |last| last < prefix.bits());
        begin(&mut ranges, prefix.bits(), *class);
        open.push((prefix.last_bits(), *class));
    }
    close(&mut open, &mut ranges, |last| last != A::Bits::mask(u8::MAX));
    ranges
}

/// Ends the innermost prefixes for which `over` is true.
fn close<B: Bits>(open: &mut Vec<(B, u16)>, ranges: &mut Vec<(B, u16)>, over: impl Fn(B) -> bool) {
    while let Some((last, _)) = open.pop_if(|(last, _)| over(*last)) {
        begin(ranges, last.next(), open.last().map_or(0, |outer| outer.1));
    }
}

fn begin<B: Bits>(ranges: &mut Vec<(B, u16)>, start: B, class: u16) {
    match ranges.last_mut() {
        Some(last) if last.0 == start => last.1 = class,
        _ => ranges.push((start, class)),
    }
}

/// Number of values of a byte.
pub(crate) const BYTES: usize = 1 << 8;

/// The classes of numbers.
pub(crate) enum NumberClasses {
    Few { starts: Vec<u16>, classes: Box<[u16]> },
    Table(Box<[u16]>),
}

impl NumberClasses {
    /// Builds the classes; `ranges` are the first value and the class of each range, in order; the first begins at
    /// 0.
    pub fn new(values: usize, ranges: &[(u16, u16)]) -> Self {
        Self::made(values, ranges, 1 << 16)
    }

    /// Like [`Self::new`], for [`Self::rank`]: without a class lookup after it, comparing beats all but the
    /// smallest tables.
    pub fn ranked(values: usize, ranges: &[(u16, u16)]) -> Self {
        Self::made(values, ranges, BYTES + 1)
    }

    /// Builds the classes; few ranges are compared if there are at least `compared` values.
    fn made(values: usize, ranges: &[(u16, u16)], compared: usize) -> Self {
        if values >= compared && ranges.len() <= FEW {
            let (starts, classes) = split(ranges);
            return Self::Few { starts, classes: classes.into() };
        }
        let mut table = vec![0; values];
        let ends = ranges[1..].iter().map(|range| usize::from(range.0)).chain([values]);
        for (&(start, class), end) in ranges.iter().zip(ends) {
            table[usize::from(start)..end].fill(class);
        }
        Self::Table(table.into())
    }

    /// Replaces each number by its class.
    #[inline]
    pub fn find(&self, numbers: &mut [u16]) {
        self.rank(numbers);
        match self {
            Self::Table(classes) | Self::Few { classes, .. } => translate(classes, numbers),
        }
    }

    /// Replaces each number by its rank among few ranges; with a table it stays.
    #[inline]
    pub fn rank(&self, numbers: &mut [u16]) {
        if let Self::Few { starts, .. } = self {
            let mut counts = [0u16; BATCH];
            for start in starts {
                for (count, number) in counts.iter_mut().zip(&*numbers) {
                    *count += u16::from(number >= start);
                }
            }
            numbers.iter_mut().zip(counts).for_each(|(number, count)| *number = count);
        }
    }

    /// Returns the classes by rank, or by number if there is a table.
    pub fn by_rank(&self) -> &[u16] {
        match self {
            Self::Table(classes) => classes,
            Self::Few { classes, .. } => classes,
        }
    }
}

/// Returns the starts of all ranges but the first, and the classes of all.
fn split<T: Copy>(ranges: &[(T, u16)]) -> (Vec<T>, Vec<u16>) {
    let starts = ranges.iter().skip(1).map(|range| range.0);
    (starts.collect(), ranges.iter().map(|range| range.1).collect())
}

#[inline(always)]
fn translate(classes: &[u16], values: &mut [u16]) {
    for value in values {
        *value = classes.get(usize::from(*value)).copied().unwrap_or(0);
    }
}
