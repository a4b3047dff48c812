//! DPDK's tables, to compare with.
//!
//! Each is measured as its users would have it: addresses in the form it takes, answers left in
//! the form it gives. Of the implementations of a lookup in plain instructions, the fastest here
//! is taken; one in vector instructions is measured beside it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use dpdk::lookup::{
    EntrySize, Fib, Fib6, Fib6Lookup, FibLookup, Lpm, Lpm6, LpmReader, RouteTable, TableSize,
    groups_needed, groups_needed6, heap_bytes,
};
use dpdk::qsbr::Qsbr;
use dpdk::{Eal, Error};
use fib::{Change, NextHopId, Prefix};

use super::contender::{BATCH, Contender, Reader, Way};
use super::pattern::Addresses;
use super::table::{Family, Routes};

/// The names of all peers.
pub const NAMES: [&str; 6] =
    ["rte_fib-2B", "rte_fib-4B", "rte_lpm", "rte_fib6-2B", "rte_fib6-4B", "rte_lpm6"];

/// How long an implementation is tried when the fastest is chosen, in lookups, and how often.
const TRIAL: usize = 1 << 16;
const TRIALS: usize = 5;

/// What DPDK's tables are made from.
pub struct Setup<'a> {
    /// DPDK.
    pub eal: &'a Arc<Eal>,
    /// Whom a writer waits for.
    pub readers: &'a Arc<Qsbr>,
    /// Prefixes that updates bring beside the table's.
    pub spare: usize,
}

/// The families' peers.
pub trait Peers: Family {
    /// DPDK's tables for this family, empty.
    fn peers(setup: &Setup, prefixes: &[Prefix<Self>]) -> Vec<Box<dyn Contender<Self>>>;

    /// The sizes that tables for these prefixes need.
    fn size(prefixes: &[Prefix<Self>], spare: usize) -> TableSize;

    /// Megabytes that all peers together take for such a table.
    fn megabytes(size: TableSize) -> usize;
}

impl Peers for Ipv4Addr {
    fn peers(setup: &Setup, prefixes: &[Prefix<Self>]) -> Vec<Box<dyn Contender<Self>>> {
        let size = Self::size(prefixes, setup.spare);
        let readers = Arc::clone(setup.readers);
        vec![
            Box::new(fib("rte_fib-2B", setup, EntrySize::Two, size)),
            Box::new(fib("rte_fib-4B", setup, EntrySize::Four, size)),
            Box::new(Peer {
                reader: |table: &Lpm| Ok(Some(Box::new(BesideLpm(table.reader()?, [0; BATCH])))),
                ..Peer::new(
                    "rte_lpm",
                    setup,
                    move |eal| Lpm::new(eal, size, Some(&readers)),
                    vec![PeerWay::only("rte_lpm", "batches of 32")],
                )
            }),
        ]
    }

    fn size(prefixes: &[Prefix<Self>], spare: usize) -> TableSize {
        let groups = groups_needed(prefixes.iter().map(|prefix| (prefix.bits(), prefix.len())));
        TableSize { routes: prefixes.len() + spare, groups: groups + groups / 8 + 256 }
    }

    fn megabytes(TableSize { routes, groups }: TableSize) -> usize {
        // Three tables of 2^24 entries of 2, 4 and 4 bytes with their groups; two RIBs of two
        // nodes a route; a list of routes.
        let tables = 10 * ((1 << 24) + groups * 256);
        (tables + 2 * routes * 2 * RIB_NODE + routes * 8) / 1_000_000 + 16
    }
}

impl Peers for Ipv6Addr {
    fn peers(setup: &Setup, prefixes: &[Prefix<Self>]) -> Vec<Box<dyn Contender<Self>>> {
        let size = Self::size(prefixes, setup.spare);
        vec![
            Box::new(fib6("rte_fib6-2B", setup, EntrySize::Two, size)),
            Box::new(fib6("rte_fib6-4B", setup, EntrySize::Four, size)),
            Box::new(Peer::new(
                "rte_lpm6",
                setup,
                move |eal| Lpm6::new(eal, size),
                vec![PeerWay::only("rte_lpm6", "batches of 32")],
            )),
        ]
    }

    fn size(prefixes: &[Prefix<Self>], spare: usize) -> TableSize {
        let groups = groups_needed6(prefixes.iter().map(|prefix| (prefix.bits(), prefix.len())));
        TableSize { routes: prefixes.len() + spare, groups: groups + groups / 8 + 256 }
    }

    fn megabytes(TableSize { routes, groups }: TableSize) -> usize {
        let tables = 10 * ((1 << 24) + groups * 256);
        (tables + 2 * routes * 2 * RIB_NODE + routes * 128) / 1_000_000 + 16
    }
}

/// Bytes of a node of DPDK's RIB in its pool.
const RIB_NODE: usize = 192;

/// As many groups as such entries can name: the routes may do without the spare ones.
fn within(size: TableSize, entry: EntrySize) -> TableSize {
    TableSize { groups: size.groups.min(entry.max()), ..size }
}

/// `rte_fib`: plain instructions in three forms, and vector instructions.
fn fib(
    name: &'static str,
    setup: &Setup,
    entry: EntrySize,
    size: TableSize,
) -> Peer<Ipv4Addr, Fib> {
    let choice = |lookup: FibLookup| Choice {
        how: lookup.name(),
        select: Box::new(move |table: &mut Fib| table.select(lookup)),
    };
    let ways = vec![
        PeerWay::new(name.to_owned(), FibLookup::SCALAR.map(choice).into()),
        PeerWay::new(format!("{name}-avx512"), vec![choice(FibLookup::Avx512)]),
    ];
    let size = within(size, entry);
    Peer::new(name, setup, move |eal| Fib::new(eal, entry, size), ways)
}

/// `rte_fib6`: plain and vector instructions.
fn fib6(
    name: &'static str,
    setup: &Setup,
    entry: EntrySize,
    size: TableSize,
) -> Peer<Ipv6Addr, Fib6> {
    let choice = |lookup: Fib6Lookup| Choice {
        how: lookup.name(),
        select: Box::new(move |table: &mut Fib6| table.select(lookup)),
    };
    let ways = vec![
        PeerWay::new(name.to_owned(), vec![choice(Fib6Lookup::Scalar)]),
        PeerWay::new(format!("{name}-avx512"), vec![choice(Fib6Lookup::Avx512)]),
    ];
    let size = within(size, entry);
    Peer::new(name, setup, move |eal| Fib6::new(eal, entry, size), ways)
}

type Select<T> = Box<dyn Fn(&mut T) -> Result<(), Error>>;
type Make<T> = Box<dyn Fn(&Eal) -> Result<T, Error>>;
type MakeReader<A, T> = fn(&T) -> Result<Option<Box<dyn Reader<A>>>>;

/// One of DPDK's tables.
struct Peer<A: Family, T: RouteTable<Address = A::Wire>> {
    name: &'static str,
    eal: Arc<Eal>,
    make: Make<T>,
    reader: MakeReader<A, T>,
    ways: Vec<PeerWay<T>>,
    table: Option<T>,
    /// Bytes of DPDK's heaps that the table took.
    heap: usize,
    answers: [T::Answer; BATCH],
}

/// A way to look up, and the implementations to choose from.
struct PeerWay<T> {
    name: String,
    choices: Vec<Choice<T>>,
    chosen: usize,
}

/// An implementation of the lookup.
struct Choice<T> {
    how: &'static str,
    select: Select<T>,
}

impl<T> PeerWay<T> {
    fn new(name: String, choices: Vec<Choice<T>>) -> Self {
        Self { name, choices, chosen: 0 }
    }

    /// The only way, with nothing to choose.
    fn only(name: &str, how: &'static str) -> Self {
        Self::new(name.to_owned(), vec![Choice { how, select: Box::new(|_| Ok(())) }])
    }
}

impl<A: Family, T: RouteTable<Address = A::Wire>> Peer<A, T> {
    /// Without a table yet, and without a reader beside its writer.
    fn new(
        name: &'static str,
        setup: &Setup,
        make: impl Fn(&Eal) -> Result<T, Error> + 'static,
        ways: Vec<PeerWay<T>>,
    ) -> Self {
        Self {
            name,
            eal: Arc::clone(setup.eal),
            make: Box::new(make),
            reader: |_| Ok(None),
            ways,
            table: None,
            heap: 0,
            answers: [T::Answer::default(); BATCH],
        }
    }

    fn table(&mut self) -> &mut T {
        self.table.as_mut().expect("built before it is used")
    }

    /// The fewest cycles that a choice took for a trial; none if this machine does not have it.
    fn trial(&mut self, way: usize, choice: usize, sample: &Addresses<A>) -> Result<u64, Error> {
        let table = self.table.as_mut().expect("built before it is tuned");
        (self.ways[way].choices[choice].select)(table)?;
        let range = 0..sample.len().min(TRIAL);
        let time = |_| {
            let start = dpdk::tsc();
            self.lookup(sample, range.clone());
            dpdk::tsc() - start
        };
        Ok((0..TRIALS).map(time).min().unwrap_or(u64::MAX))
    }

    /// Chooses the fastest implementation of a way.
    fn choose(&mut self, way: usize, sample: &Addresses<A>) -> Result<(), Error> {
        let mut best = u64::MAX;
        for choice in 0..self.ways[way].choices.len() {
            let cycles = self.trial(way, choice, sample)?;
            if cycles < best {
                best = cycles;
                self.ways[way].chosen = choice;
            }
        }
        Ok(())
    }
}

fn wire<A: Family>(prefix: Prefix<A>) -> (A::Wire, u8) {
    (A::wire(prefix.bits()), prefix.len())
}

impl<A: Family, T: RouteTable<Address = A::Wire>> Contender<A> for Peer<A, T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_ours(&self) -> bool {
        false
    }

    fn build(&mut self, routes: &Routes<A>) -> Result<()> {
        self.table = None;
        let before = heap_bytes(&self.eal);
        let table = self.table.insert((self.make)(&self.eal)?);
        for &(prefix, next_hop) in routes {
            let (address, len) = wire(prefix);
            table.insert(address, len, next_hop.into())?;
        }
        self.heap = heap_bytes(&self.eal).saturating_sub(before);
        Ok(())
    }

    fn tune(&mut self, sample: &Addresses<A>) -> Vec<String> {
        let mut notes = Vec::new();
        let mut way = 0;
        while way < self.ways.len() {
            match self.choose(way, sample) {
                Ok(()) => way += 1,
                Err(error) => {
                    let left_out = self.ways.remove(way);
                    notes.push(format!("{}: left out: {error}", left_out.name));
                }
            }
        }
        notes
    }

    fn ways(&self) -> Vec<Way> {
        let way = |way: &PeerWay<T>| Way {
            name: way.name.clone(),
            how: way.choices[way.chosen].how.to_owned(),
        };
        self.ways.iter().map(way).collect()
    }

    fn select(&mut self, way: usize) -> Result<()> {
        let table = self.table.as_mut().expect("built before it is used");
        let way = &self.ways[way];
        Ok((way.choices[way.chosen].select)(table)?)
    }

    fn lookup(&mut self, addresses: &Addresses<A>, range: Range<usize>) {
        let table = self.table.as_ref().expect("built before it is used");
        for batch in addresses.wire[range].chunks(BATCH) {
            table.lookup_bulk(batch, &mut self.answers);
        }
    }

    fn answers(&mut self, addresses: &Addresses<A>) -> Vec<NextHopId> {
        let mut all = Vec::with_capacity(addresses.len());
        for batch in addresses.wire.chunks(BATCH) {
            let mut answers = [T::Answer::default(); BATCH];
            self.table().lookup_bulk(batch, &mut answers);
            // A next hop that is none of ours is wrong, which the comparison then finds.
            let next_hop = |&answer| T::next_hop(answer).try_into().unwrap_or(NextHopId::MAX);
            all.extend(answers[..batch.len()].iter().map(next_hop));
        }
        all
    }

    fn update(&mut self, change: &Change<A>) -> Result<()> {
        let (address, len) = wire(change.prefix());
        match *change {
            Change::Insert { next_hop, .. } => {
                self.table().insert(address, len, next_hop.into())?
            }
            Change::Remove { .. } => self.table().remove(address, len)?,
        }
        Ok(())
    }

    fn reader(&self) -> Result<Option<Box<dyn Reader<A>>>> {
        let table = self.table.as_ref().ok_or_else(|| anyhow!("{}: not built", self.name))?;
        (self.reader)(table)
    }

    fn lookup_bytes(&self) -> usize {
        self.table.as_ref().map_or(0, RouteTable::lookup_bytes)
    }

    fn writer_bytes(&self) -> usize {
        self.heap.saturating_sub(self.lookup_bytes())
    }
}

/// `rte_lpm` while its writer works.
struct BesideLpm(LpmReader, [u32; BATCH]);

impl Reader<Ipv4Addr> for BesideLpm {
    fn lookup(&mut self, addresses: &Addresses<Ipv4Addr>, range: Range<usize>) {
        self.0.lookup_bulk(&addresses.wire[range], &mut self.1);
        self.0.quiescent();
    }
}
