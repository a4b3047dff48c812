//! Every structure gives the reference's answers: after each of a long sequence of insertions,
//! replacements and removals of prefixes of every length, nested and side by side.

use std::{
    cell::Cell,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fib::{
    Address, Algorithm, Bits, Change, GracePeriod, Lent4, Lent6, Lookup, NextHopId, NoReaders,
    Prefix, SMALL_ROUTES, Table,
};
use proptest::prelude::*;

/// Miri takes about a microsecond per instruction: with it there are fewer steps, and no prefix so
/// short that a change of it touches hundreds of thousands of entries.
const STEPS: usize = if cfg!(miri) { 8 } else { 60 };
const SHORTEST: u8 = if cfg!(miri) { 12 } else { 0 };

/// A sixteenth of the usual cases, each of which builds every structure.
fn cases() -> u32 {
    if cfg!(miri) { 2 } else { ProptestConfig::default().cases.div_ceil(16) }
}

/// One step of a test: a change, or several published together.
#[derive(Clone, Debug)]
enum Step<A: Address> {
    Insert(Prefix<A>, NextHopId),
    Remove(Prefix<A>),
    Batch(Vec<Change<A>>),
    Collect,
}

/// A table to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Of(Algorithm),
    /// A table of few routes, which grows beyond this number.
    Small(usize),
    /// A table in lent memory that others have used before.
    Lent,
}

/// All structures, and small tables that grow soon, later and never.
fn kinds() -> impl Iterator<Item = Kind> {
    let small = [0, 5, 20, SMALL_ROUTES].map(Kind::Small);
    Algorithm::ALL.map(Kind::Of).into_iter().chain(small).chain([Kind::Lent])
}

/// Zeroed memory for the life of the process.
fn memory<T: Default>(len: usize) -> &'static [T] {
    Box::leak((0..len).map(|_| T::default()).collect())
}

/// Memory of which a test has two tables at a time.
struct Rooms<L>([L; 2], Cell<usize>);

impl<L: Copy> Rooms<L> {
    fn new(make: impl Fn() -> L) -> Self {
        Self([make(), make()], Cell::default())
    }

    /// The one that was used before the last one.
    fn next(&self) -> L {
        self.1.set(self.1.get() + 1);
        self.0[self.1.get() % 2]
    }
}

/// Nodes and leaves that the IPv6 tables may use.
const USED6: (usize, usize) = (1 << 16, 1 << 17);

thread_local! {
    static ROOMS4: Rooms<Lent4> =
        Rooms::new(|| Lent4 { first: memory(1 << 24), long: memory(1 << 23) });
    static ROOMS6: Rooms<Lent6> = Rooms::new(|| Lent6 {
        direct: memory(1 << 18),
        nodes: memory(1 << 22),
        leaves: memory(1 << 25),
        used: USED6,
    });
}

fn grace() -> Box<dyn GracePeriod> {
    Box::new(NoReaders)
}

/// Tables of one family, for both sides of a comparison.
trait Family: Address {
    fn table(kind: Kind) -> Option<Box<dyn Table<Self>>>;
    /// Makes an address from random bits, such that prefixes often overlap.
    fn crowded(random: u128) -> Self;
}

impl Family for std::net::Ipv4Addr {
    fn table(kind: Kind) -> Option<Box<dyn Table<Self>>> {
        match kind {
            Kind::Of(algorithm) => fib::new_ipv4(algorithm, grace()).ok(),
            Kind::Small(most) => fib::new_small_ipv4(Algorithm::Runmap, most, grace).ok(),
            Kind::Lent => ROOMS4.with(|rooms| fib::new_ipv4_in(rooms.next(), grace()).ok()),
        }
    }

    fn crowded(random: u128) -> Self {
        Self::from(random as u32 & 0xc003_07c3)
    }
}

impl Family for std::net::Ipv6Addr {
    fn table(kind: Kind) -> Option<Box<dyn Table<Self>>> {
        match kind {
            Kind::Of(algorithm) => fib::new_ipv6(algorithm, grace()).ok(),
            Kind::Small(most) => fib::new_small_ipv6(Algorithm::Runmap, most, grace).ok(),
            Kind::Lent => ROOMS6.with(|rooms| fib::new_ipv6_in(rooms.next(), grace()).ok()),
        }
    }

    fn crowded(random: u128) -> Self {
        Self::from(random & 0xe001_8811_8003_c003_8001_8001_0001_8003)
    }
}

fn prefix<A: Family>() -> impl Strategy<Value = Prefix<A>> {
    (any::<u128>(), SHORTEST..=A::Bits::WIDTH)
        .prop_map(|(random, len)| Prefix::covering(A::crowded(random), len))
}

/// Prefixes below one /48, like neighbours on connected networks: many with the same first digits.
fn deep() -> impl Strategy<Value = Prefix<std::net::Ipv6Addr>> {
    let len = prop_oneof![4 => Just(128u8), 1 => 44..=128u8];
    (any::<u128>(), len).prop_map(|(random, len)| {
        let tail = random & 0x0003_00ff_8001_0003_001f;
        Prefix::covering((0x2001_0db8_0001 << 80 | tail).into(), len)
    })
}

fn deep_steps() -> impl Strategy<Value = Vec<Step<std::net::Ipv6Addr>>> {
    let change = || {
        prop_oneof![
            2 => (deep(), next_hop()).prop_map(|(prefix, next_hop)| Change::Insert { prefix, next_hop }),
            1 => deep().prop_map(|prefix| Change::Remove { prefix }),
        ]
    };
    let step = prop_oneof![
        12 => (deep(), next_hop()).prop_map(|(prefix, next_hop)| Step::Insert(prefix, next_hop)),
        6 => deep().prop_map(Step::Remove),
        6 => prop::collection::vec(change(), 1..40).prop_map(Step::Batch),
        1 => Just(Step::Collect),
    ];
    prop::collection::vec(step, 1..STEPS)
}

/// Next hops: a few often, so that neighbours are equal, and both ends of the range.
fn next_hop() -> impl Strategy<Value = NextHopId> {
    prop_oneof![4 => 1..4u16, 1 => 1..=fib::MAX_NEXT_HOP, 1 => Just(fib::MAX_NEXT_HOP)]
}

fn change<A: Family>() -> impl Strategy<Value = Change<A>> {
    prop_oneof![
        2 => (prefix(), next_hop()).prop_map(|(prefix, next_hop)| Change::Insert { prefix, next_hop }),
        1 => prefix().prop_map(|prefix| Change::Remove { prefix }),
    ]
}

fn steps<A: Family>() -> impl Strategy<Value = Vec<Step<A>>> {
    let step = prop_oneof![
        12 => (prefix(), next_hop()).prop_map(|(prefix, next_hop)| Step::Insert(prefix, next_hop)),
        6 => prefix().prop_map(Step::Remove),
        2 => prop::collection::vec(change(), 1..20).prop_map(Step::Batch),
        1 => Just(Step::Collect),
    ];
    prop::collection::vec(step, 1..STEPS)
}

fn run<A: Family>(table: &mut dyn Table<A>, step: &Step<A>) -> Option<NextHopId> {
    match step {
        Step::Insert(prefix, next_hop) => table.insert(*prefix, *next_hop).unwrap(),
        Step::Remove(prefix) => table.remove(*prefix),
        Step::Batch(changes) => {
            table.apply(changes).unwrap();
            None
        }
        Step::Collect => {
            assert_eq!(table.collect(), 0, "nothing is held back without readers");
            None
        }
    }
}

/// Returns the addresses at which an answer can change: both ends of each prefix and their
/// neighbours.
fn edges<A: Family>(prefixes: &BTreeSet<Prefix<A>>) -> Vec<A::Bits> {
    let mut edges = BTreeSet::new();
    for prefix in prefixes {
        edges.extend([prefix.bits(), prefix.last_bits(), prefix.last_bits().next()]);
        // The address before the first one.
        edges.insert(!(!prefix.bits()).next());
    }
    edges.into_iter().collect()
}

fn compare<A: Family>(
    table: &dyn Table<A>,
    readers: &[Arc<dyn Lookup<A>>; 2],
    addresses: &[A::Bits],
) {
    let mut answers = vec![7; addresses.len()];
    let mut expected = vec![0; addresses.len()];
    readers[0].lookup_batch(addresses, &mut answers);
    readers[1].lookup_batch(addresses, &mut expected);
    let mut prefetched = vec![7; addresses.len()];
    readers[0].prefetch_batch(addresses);
    readers[0].lookup_prefetched(addresses, &mut prefetched);
    assert_eq!(prefetched, answers, "{}", table.name());
    for ((&address, &answer), &expected) in addresses.iter().zip(&answers).zip(&expected) {
        let address = A::from(address);
        assert_eq!(answer, expected, "{}: batch answer for {address}", table.name());
        assert_eq!(readers[0].lookup(address), expected, "{}: {address}", table.name());
    }
}

fn follow<A: Family>(kind: Kind, steps: &[Step<A>]) {
    // A load fills all its 2^24 entries, which takes miri hours; it has no unsafe code of its own.
    if cfg!(miri) && [Kind::Of(Algorithm::Dir24_8), Kind::Lent].contains(&kind) {
        return;
    }
    let Some(mut table) = A::table(kind) else { return };
    let mut reference = A::table(Kind::Of(Algorithm::Reference)).unwrap();
    let readers = [table.reader(), reference.reader()];
    let mut prefixes = BTreeSet::new();
    for step in steps {
        assert_eq!(run(&mut *table, step), run(&mut *reference, step), "{step:?}");
        match step {
            Step::Insert(prefix, _) | Step::Remove(prefix) => drop(prefixes.insert(*prefix)),
            Step::Batch(changes) => prefixes.extend(changes.iter().map(Change::prefix)),
            Step::Collect => {}
        }
        assert_eq!(table.len(), reference.len());
        for &prefix in &prefixes {
            assert_eq!(table.get(prefix), reference.get(prefix), "{prefix}");
        }
        compare(&*table, &readers, &edges(&prefixes));
    }
    // The same routes loaded at once give the same answers.
    let routes: Vec<_> =
        prefixes.iter().filter_map(|&p| reference.get(p).map(|next_hop| (p, next_hop))).collect();
    let mut loaded = A::table(kind).unwrap();
    loaded.load(&mut routes.iter().copied()).unwrap();
    assert_eq!(loaded.len(), reference.len());
    let readers = [loaded.reader(), reference.reader()];
    compare(&*loaded, &readers, &edges(&prefixes));
    // Removing the routes one by one leaves nothing.
    for &(prefix, next_hop) in &routes {
        assert_eq!(table.remove(prefix), Some(next_hop));
        assert_eq!(reference.remove(prefix), Some(next_hop));
    }
    assert!(table.is_empty());
    let readers = [table.reader(), reference.reader()];
    compare(&*table, &readers, &edges(&prefixes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn ipv4_tables_give_the_references_answers(steps in steps::<std::net::Ipv4Addr>()) {
        kinds().for_each(|kind| follow(kind, &steps));
    }

    #[test]
    fn ipv6_tables_give_the_references_answers(steps in steps::<std::net::Ipv6Addr>()) {
        kinds().for_each(|kind| follow(kind, &steps));
    }

    #[test]
    fn ipv6_tables_give_the_references_answers_for_neighbours(steps in deep_steps()) {
        [Kind::Of(Algorithm::Runmap), Kind::Small(SMALL_ROUTES)]
            .into_iter()
            .for_each(|kind| follow(kind, &steps));
    }
}

#[test]
fn lent_memory_that_is_too_small_is_refused_and_no_more_of_it_is_used_than_was_said() {
    let small = Lent4 { first: memory(1), long: memory(1) };
    assert!(matches!(fib::new_ipv4_in(small, grace()), Err(fib::Error::Room { len: 1, .. })));
    if cfg!(miri) {
        return;
    }
    let lent = ROOMS6.with(Rooms::next);
    let mut table = fib::new_ipv6_in(Lent6 { used: (64, 64), ..lent }, grace()).unwrap();
    let host = |number: u128| Prefix::host((0x2001_0db8 << 96 | number << 20).into());
    let refused = (0..200).find(|number| table.insert(host(*number), 7).is_err());
    assert!(refused.is_some_and(|number| number > 0), "{refused:?}");
    let is_unused = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
    assert!(lent.nodes[..64].iter().flatten().any(|word| !is_unused(word)));
    assert!(lent.nodes[64..].iter().take(4096).flatten().all(is_unused));
}
