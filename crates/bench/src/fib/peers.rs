//! DPDK's tables, for comparison.
//!
//! Each is measured as its users would run it: addresses in its input format, answers in its output
//! format. Of the implementations of a lookup in scalar instructions, the fastest here is used; one
//! in vector instructions is measured separately.
//!
//! DPDK 22.11 miscounts the groups of long prefixes when routes are removed: `rte_fib6` never
//! releases its count ([`spare_groups`]); `rte_fib` releases a count that it did not add, for a
//! route with the same next hop as the route around it, and may then refuse any long prefix. Its
//! update times are left out when that happens, which is rare in a table with many long prefixes.

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

use super::contender::{BATCH, Contender, Method, Reader};
use super::update_time::PASSES;
use super::updates::ChangeList;
use crate::workload::pattern::Addresses;
use crate::workload::routes::{Family, Routes};

/// The names of all peers.
pub const NAMES: [&str; 6] =
    ["rte_fib-2B", "rte_fib-4B", "rte_lpm", "rte_fib6-2B", "rte_fib6-4B", "rte_lpm6"];

/// Lookups of a trial of an implementation when the fastest is selected, and the number of trials.
const TRIAL: usize = 1 << 16;
const TRIALS: usize = 5;

/// Parameters of DPDK's tables.
pub struct Setup<'a> {
    /// DPDK.
    pub eal: &'a Arc<Eal>,
    /// The readers for which a writer waits.
    pub readers: &'a Arc<Qsbr>,
    /// Prefixes that updates add to the table's.
    pub spare: usize,
}

/// The peers of a family.
pub trait Peers: Family {
    /// Returns DPDK's tables for this family, empty.
    fn peers(setup: &Setup, prefixes: &[Prefix<Self>]) -> Vec<Box<dyn Contender<Self>>>;

    /// Returns the sizes that tables for these prefixes need.
    fn size(prefixes: &[Prefix<Self>], spare: usize) -> TableSize;

    /// Returns the megabytes that all peers together take for such a table.
    fn megabytes(size: TableSize) -> usize;

    /// Returns the megabytes of the table from [`Contender::make_room`], in one piece.
    fn roomy_megabytes(size: TableSize, plan: &ChangeList<Self>) -> usize;
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
                    move |eal, _| Lpm::new(eal, size, Some(&readers)),
                    vec![PeerMethod::only("rte_lpm", "batches of 32")],
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

    fn roomy_megabytes(_: TableSize, _: &ChangeList<Self>) -> usize {
        0
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
                move |eal, _| Lpm6::new(eal, size),
                vec![PeerMethod::only("rte_lpm6", "batches of 32")],
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

    fn roomy_megabytes(size: TableSize, plan: &ChangeList<Self>) -> usize {
        ((1 << 24) + (size.groups + spare_groups(plan)) * 256) * 4 / 1_000_000
    }
}

/// Bytes of a node of DPDK's RIB in its pool.
const RIB_NODE: usize = 192;

/// Adds spare groups, up to the limit of such entries: the routes may not need them.
fn within(size: TableSize, spare: usize, entry: EntrySize) -> TableSize {
    TableSize { groups: (size.groups + spare).min(entry.max()), ..size }
}

/// Returns `rte_fib`: scalar instructions in three forms, and vector instructions.
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
    let methods = vec![
        PeerMethod::new(name.to_owned(), FibLookup::SCALAR.map(choice).into()),
        PeerMethod::new(format!("{name}-avx512"), vec![choice(FibLookup::Avx512)]),
    ];
    let make = move |eal: &Eal, spare| Fib::new(eal, entry, within(size, spare, entry));
    Peer::new(name, setup, make, methods)
}

/// Returns `rte_fib6`: scalar and vector instructions.
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
    let methods = vec![
        PeerMethod::new(name.to_owned(), vec![choice(Fib6Lookup::Scalar)]),
        PeerMethod::new(format!("{name}-avx512"), vec![choice(Fib6Lookup::Avx512)]),
    ];
    let make = move |eal: &Eal, spare| Fib6::new(eal, entry, within(size, spare, entry));
    Peer { recounts: true, ..Peer::new(name, setup, make, methods) }
}

type Select<T> = Box<dyn Fn(&mut T) -> Result<(), Error>>;
/// Creates a table with this many groups more than the routes need.
type Make<T> = Box<dyn Fn(&Eal, usize) -> Result<T, Error>>;
type MakeReader<A, T> = fn(&T) -> Result<Option<Box<dyn Reader<A>>>>;

/// One of DPDK's tables.
struct Peer<A: Family, T: RouteTable<Address = A::Wire>> {
    name: &'static str,
    eal: Arc<Eal>,
    make: Make<T>,
    reader: MakeReader<A, T>,
    methods: Vec<PeerMethod<T>>,
    /// True if a returning route is counted again, see [`spare_groups`].
    recounts: bool,
    table: Option<T>,
    /// Bytes of DPDK's heaps taken by the table.
    heap: usize,
    answers: [T::Answer; BATCH],
}

/// A lookup method, and the implementations to select from.
struct PeerMethod<T> {
    name: String,
    choices: Vec<Choice<T>>,
    chosen: usize,
}

/// An implementation of the lookup.
struct Choice<T> {
    how: &'static str,
    select: Select<T>,
}

impl<T> PeerMethod<T> {
    fn new(name: String, choices: Vec<Choice<T>>) -> Self {
        Self { name, choices, chosen: 0 }
    }

    /// Returns the only method, with nothing to select.
    fn only(name: &str, how: &'static str) -> Self {
        Self::new(name.to_owned(), vec![Choice { how, select: Box::new(|_| Ok(())) }])
    }
}

impl<A: Family, T: RouteTable<Address = A::Wire>> Peer<A, T> {
    /// Creates a peer without a table yet, and without a reader.
    fn new(
        name: &'static str,
        setup: &Setup,
        make: impl Fn(&Eal, usize) -> Result<T, Error> + 'static,
        methods: Vec<PeerMethod<T>>,
    ) -> Self {
        Self {
            name,
            eal: Arc::clone(setup.eal),
            make: Box::new(make),
            reader: |_| Ok(None),
            methods,
            recounts: false,
            table: None,
            heap: 0,
            answers: [T::Answer::default(); BATCH],
        }
    }

    fn build_with(&mut self, routes: &Routes<A>, spare_groups: usize) -> Result<()> {
        self.table = None;
        let before = heap_bytes(&self.eal);
        let table = self.table.insert((self.make)(&self.eal, spare_groups)?);
        for &(prefix, next_hop) in routes {
            let (address, len) = wire(prefix);
            table.insert(address, len, next_hop.into())?;
        }
        self.heap = heap_bytes(&self.eal).saturating_sub(before);
        Ok(())
    }

    fn table(&mut self) -> &mut T {
        self.table.as_mut().expect("built before it is used")
    }

    /// Returns the fewest cycles of an implementation's trials; an error if this machine does not
    /// support it.
    fn trial(&mut self, method: usize, choice: usize, sample: &Addresses<A>) -> Result<u64, Error> {
        let table = self.table.as_mut().expect("built before it is tuned");
        (self.methods[method].choices[choice].select)(table)?;
        let range = 0..sample.len().min(TRIAL);
        let time = |_| {
            let start = dpdk::tsc();
            self.lookup(sample, range.clone());
            dpdk::tsc() - start
        };
        Ok((0..TRIALS).map(time).min().unwrap_or(u64::MAX))
    }

    /// Selects the fastest implementation of a method.
    fn choose(&mut self, method: usize, sample: &Addresses<A>) -> Result<(), Error> {
        let mut best = u64::MAX;
        for choice in 0..self.methods[method].choices.len() {
            let cycles = self.trial(method, choice, sample)?;
            if cycles < best {
                best = cycles;
                self.methods[method].chosen = choice;
            }
        }
        Ok(())
    }
}

/// Returns the groups that `rte_fib6` may count for the routes that a plan's passes add. DPDK 22.11
/// does not release its count when a route is removed, so that a table with removed and added
/// routes runs out of groups that are not in use.
pub fn spare_groups<A: Family>(plan: &ChangeList<A>) -> usize {
    let groups = |prefix: Prefix<A>| usize::from(prefix.len().div_ceil(8).saturating_sub(3));
    let undone = plan.undo.iter().rev();
    let adds = plan.changes.iter().zip(undone).filter(|(change, undo)| {
        // Added by a change, or when it is undone.
        matches!(change, Change::Remove { .. }) || matches!(undo, Change::Remove { .. })
    });
    PASSES * adds.map(|(change, _)| groups(change.prefix())).sum::<usize>()
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
        self.build_with(routes, 0)
    }

    fn make_room(&mut self, routes: &Routes<A>, plan: &ChangeList<A>) -> Result<()> {
        match self.recounts {
            true => self.build_with(routes, spare_groups(plan)),
            false => Ok(()),
        }
    }

    fn tune(&mut self, sample: &Addresses<A>) -> Vec<String> {
        let mut notes = Vec::new();
        let mut method = 0;
        while method < self.methods.len() {
            match self.choose(method, sample) {
                Ok(()) => method += 1,
                Err(error) => {
                    let left_out = self.methods.remove(method);
                    notes.push(format!("{}: left out: {error}", left_out.name));
                }
            }
        }
        notes
    }

    fn methods(&self) -> Vec<Method> {
        let method = |method: &PeerMethod<T>| Method {
            name: method.name.clone(),
            how: method.choices[method.chosen].how.to_owned(),
        };
        self.methods.iter().map(method).collect()
    }

    fn select(&mut self, method: usize) -> Result<()> {
        let table = self.table.as_mut().expect("built before it is used");
        let method = &self.methods[method];
        Ok((method.choices[method.chosen].select)(table)?)
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
            // An unknown next hop is wrong, which the comparison then finds.
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

/// A reader of `rte_lpm` beside its writer.
struct BesideLpm(LpmReader, [u32; BATCH]);

impl Reader<Ipv4Addr> for BesideLpm {
    fn lookup(&mut self, addresses: &Addresses<Ipv4Addr>, range: Range<usize>) {
        self.0.lookup_bulk(&addresses.wire[range], &mut self.1);
        self.0.quiescent();
    }
}

#[cfg(test)]
mod tests {
    use dpdk::{EalConfig, HugeMode, LogLevel};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::fib::check::{Oracle, check, probes, probes_of_changes};
    use crate::fib::updates;

    /// Builds all peers of a family with these routes, replays changes, and compares throughout.
    fn exercise<A: Peers>(setup: &Setup, routes: &Routes<A>) {
        let prefixes: Vec<_> = routes.iter().map(|&(prefix, _)| prefix).collect();
        let mut plan = updates::plan(routes, &[], 50);
        plan.changes.truncate(200);
        plan.undo.drain(..plan.undo.len() - plan.changes.len());
        let mut all = probes(routes, 5000).bits;
        all.extend(probes_of_changes(&plan.changes).bits);
        let all = Addresses::new(all);
        let mut oracle = Oracle::new(routes).unwrap();
        let before = oracle.answers(&all);
        oracle.apply(&plan.changes).unwrap();
        let changed = oracle.answers(&all);
        for mut peer in A::peers(setup, &prefixes) {
            peer.build(routes).unwrap();
            peer.tune(&all);
            // Not the writer's bytes: memory freed by concurrent tests would be missing there.
            assert!(peer.lookup_bytes() > 1 << 24);
            check(&mut *peer, &all, &before).unwrap();
            peer.make_room(routes, &plan).unwrap();
            plan.changes.iter().for_each(|change| peer.update(change).unwrap());
            check(&mut *peer, &all, &changed).unwrap();
            plan.undo.iter().for_each(|change| peer.update(change).unwrap());
            check(&mut *peer, &all, &before).unwrap();
        }
    }

    /// Routes from few different bits, so that they nest; each with a next hop of its own, also
    /// after a change, which takes the next number: `rte_fib` miscounts routes with the same next
    /// hop as the one around them, and would occasionally refuse long prefixes.
    fn routes<A: Family>(shortest: u8, mask: A::Bits) -> impl Strategy<Value = Routes<A>> {
        let longest = <A::Bits as fib::Bits>::WIDTH;
        let one = (any::<u64>(), shortest..=longest);
        proptest::collection::vec(one, 1..60).prop_map(move |seeds| {
            let mut routes: Routes<A> = Vec::new();
            for ((seed, len), next_hop) in seeds.into_iter().zip((1..).step_by(2)) {
                let bits = A::any(&mut fib::synthetic::Random::new(seed)) & mask;
                let prefix = Prefix::covering(A::from(bits), len);
                if routes.iter().all(|&(other, _)| other != prefix) {
                    routes.push((prefix, next_hop));
                }
            }
            routes
        })
    }

    /// A single test, so that the peers' tables have the memory to themselves.
    #[test]
    fn peers_answer_as_the_reference_does() {
        let config = EalConfig {
            memory_mb: 512,
            huge: HugeMode::Never,
            log_level: LogLevel::Error,
            extra_args: vec!["--force-max-simd-bitwidth=512".into()],
            ..EalConfig::default()
        };
        let eal = Arc::new(Eal::init(&config).expect("DPDK starts without hugepages"));
        let readers = Qsbr::new(1);
        let setup = Setup { eal: &eal, readers: &readers, spare: 1000 };
        exercise::<Ipv4Addr>(&setup, &fib::synthetic::ipv4(3000, 50));
        exercise::<Ipv6Addr>(&setup, &fib::synthetic::ipv6(3000, 50));
        let default = Config::default();
        let config = Config { cases: default.cases.div_ceil(32), ..default };
        let mut runner = TestRunner::new(config);
        let v4 = routes::<Ipv4Addr>(1, 0x8101_8383);
        let run = |routes: Routes<Ipv4Addr>| {
            exercise(&setup, &routes);
            Ok(())
        };
        runner.run(&v4, run).unwrap();
        let v6 = routes::<Ipv6Addr>(1, 0x8101_8383 << 96 | 0x0303 << 56 | 0x8101);
        let run = |routes: Routes<Ipv6Addr>| {
            exercise(&setup, &routes);
            Ok(())
        };
        runner.run(&v6, run).unwrap();

        let net = "11.0.0.0/8".parse::<Prefix<Ipv4Addr>>().unwrap();
        let mut allowed = Ipv4Addr::peers(&setup, &[net]);
        allowed.iter_mut().for_each(|peer| peer.build(&vec![(net, 1)]).unwrap());
        let beside: Vec<_> =
            allowed.iter().map(|peer| (peer.name(), peer.reader().unwrap().is_some())).collect();
        assert_eq!(beside, [("rte_fib-2B", false), ("rte_fib-4B", false), ("rte_lpm", true)]);
        let mut names: Vec<_> = allowed.iter().map(|peer| peer.name()).collect();
        names.extend(Ipv6Addr::peers(&setup, &[]).iter().map(|peer| peer.name()));
        assert_eq!(names, NAMES);
    }
}
