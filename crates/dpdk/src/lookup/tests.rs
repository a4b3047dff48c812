use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use proptest::prelude::*;

use super::*;
use crate::qsbr::Qsbr;
use crate::testing;

/// A table takes up to 68 MB of the tests' EAL: only one exists at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

const SIZE: TableSize = TableSize { routes: 100, groups: 1000 };

/// Addresses with few different bits, so that routes nest and lookups match them.
trait Narrow: Copy + PartialEq {
    const WIDTH: u8;
    fn spread(seed: u32) -> Self;
    fn masked(self, len: u8) -> Self;
}

impl Narrow for u32 {
    const WIDTH: u8 = 32;

    fn spread(seed: u32) -> Self {
        seed & 0x8101_8383
    }

    fn masked(self, len: u8) -> Self {
        self & u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
    }
}

impl Narrow for [u8; 16] {
    const WIDTH: u8 = 128;

    fn spread(seed: u32) -> Self {
        let [a, b, c, d] = (seed & 0x8101_8383).to_be_bytes();
        [0x20 | a, 1, 0, b, 0, 0, c, 0, 0, 0, 0, 0, b, 0, c, d]
    }

    fn masked(self, len: u8) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        (u128::from_be_bytes(self) & mask).to_be_bytes()
    }
}

type Routes<A> = Vec<(A, u8, u32)>;

/// The definition of longest-prefix match.
fn expected<A: Narrow>(routes: &Routes<A>, address: A) -> u32 {
    let matching = routes.iter().filter(|&&(net, len, _)| address.masked(len) == net);
    matching.max_by_key(|route| route.1).map_or(0, |route| route.2)
}

fn check<T: RouteTable>(table: &T, routes: &Routes<T::Address>, addresses: &[T::Address])
where
    T::Address: Narrow + std::fmt::Debug,
{
    let mut answers = vec![T::Answer::default(); addresses.len()];
    table.lookup_bulk(addresses, &mut answers);
    for (&address, &answer) in addresses.iter().zip(&answers) {
        assert_eq!(T::next_hop(answer), expected(routes, address), "{address:?} in {routes:?}");
    }
}

/// Fills a table, changes a next hop, empties it, and compares after each step.
fn exercise<T: RouteTable>(table: &mut T, shortest: u8, seeds: &[(u32, u8)], addresses: &[u32])
where
    T::Address: Narrow + Ord + std::fmt::Debug,
{
    let addresses: Vec<T::Address> = addresses.iter().map(|&seed| Narrow::spread(seed)).collect();
    let mut unique = BTreeMap::new();
    for (&(seed, len), number) in seeds.iter().zip(1..) {
        let len = shortest + len % (T::Address::WIDTH - shortest + 1);
        unique.insert((T::Address::spread(seed).masked(len), len), number);
    }
    let mut routes: Routes<T::Address> = Vec::new();
    for ((net, len), next_hop) in unique {
        table.insert(net, len, next_hop).unwrap();
        routes.push((net, len, next_hop));
    }
    let targets: Vec<T::Address> = routes.iter().map(|route| route.0).collect();
    check(table, &routes, &addresses);
    check(table, &routes, &targets);

    let last = routes.last_mut().unwrap();
    last.2 = 30_000;
    table.insert(last.0, last.1, 30_000).unwrap();
    check(table, &routes, &targets);

    while let Some((net, len, _)) = routes.pop() {
        table.remove(net, len).unwrap();
        check(table, &routes, &targets);
    }
    check(table, &routes, &addresses);
}

fn seeds() -> impl Strategy<Value = (Vec<(u32, u8)>, Vec<u32>)> {
    let routes = proptest::collection::vec(any::<(u32, u8)>(), 1..40);
    (routes, proptest::collection::vec(any::<u32>(), 70))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(22),
        ..ProptestConfig::default()
    })]

    #[test]
    fn fib_finds_the_longest_prefix((routes, addresses) in seeds()) {
        let _turn = one_at_a_time();
        for entry in [EntrySize::Two, EntrySize::Four] {
            let mut table = Fib::new(testing::eal(), entry, SIZE).unwrap();
            for lookup in FibLookup::SCALAR {
                table.select(lookup).unwrap();
                exercise(&mut table, 0, &routes, &addresses);
            }
        }
    }

    #[test]
    fn lpm_finds_the_longest_prefix((routes, addresses) in seeds()) {
        let _turn = one_at_a_time();
        let mut table = Lpm::new(testing::eal(), SIZE, None).unwrap();
        exercise(&mut table, 1, &routes, &addresses);
    }

    #[test]
    fn fib6_finds_the_longest_prefix((routes, addresses) in seeds()) {
        let _turn = one_at_a_time();
        for entry in [EntrySize::Two, EntrySize::Four] {
            let mut table = Fib6::new(testing::eal(), entry, SIZE).unwrap();
            table.select(Fib6Lookup::Scalar).unwrap();
            exercise(&mut table, 0, &routes, &addresses);
        }
    }

    #[test]
    fn lpm6_finds_the_longest_prefix((routes, addresses) in seeds()) {
        let _turn = one_at_a_time();
        let mut table = Lpm6::new(testing::eal(), SIZE).unwrap();
        exercise(&mut table, 1, &routes, &addresses);
    }
}

#[test]
fn limits_are_named() {
    let _turn = one_at_a_time();
    let eal = testing::eal();
    let text = |result: Result<(), Error>| result.unwrap_err().to_string();
    let size = TableSize { routes: 10, groups: 32_768 };
    assert_eq!(
        text(Fib::new(eal, EntrySize::Two, size).map(drop)),
        "rte_fib with 2-byte entries: the number of groups is 32768, which must be 1 to 32767"
    );
    let size = TableSize { routes: 0, groups: 1 };
    assert_eq!(
        text(Lpm6::new(eal, size).map(drop)),
        "rte_lpm6: the number of routes is 0, which must be 1 to 536870911"
    );
    let mut table = Lpm::new(eal, TableSize { routes: 100, groups: 1 }, None).unwrap();
    assert_eq!(
        text(table.insert(0, 0, 1)),
        "rte_lpm: the prefix length is 0, which must be 1 to 32"
    );
    assert_eq!(
        text(table.insert(0, 8, 1 << 24)),
        "rte_lpm: the next hop is 16777216, which must be 1 to 16777215"
    );
    table.insert(0x0a00_0000, 32, 1).unwrap();
    let full = text(table.insert(0x0a00_0100, 32, 1));
    let end = "it was made for 100 routes and 1 groups";
    assert!(full.starts_with("rte_lpm: add 10.0.1.0/32: ") && full.ends_with(end), "{full}");
    assert!(text(table.remove(0x0a00_0100, 32)).contains("remove 10.0.1.0/32"));
    assert!(table.reader().map(drop).unwrap_err().to_string().contains("without a set of readers"));
}

#[test]
fn tables_give_their_memory_back() {
    let _turn = one_at_a_time();
    let eal = testing::eal();
    for _ in 0..20 {
        let table = Fib::new(eal, EntrySize::Four, SIZE).unwrap();
        assert!(heap_bytes(eal) > table.lookup_bytes());
    }
}

#[test]
fn groups_are_counted_once() {
    let v4 = [(0x0a00_0000, 24), (0x0a00_0000, 25), (0x0a00_0080, 32), (0x0a00_0100, 26)];
    assert_eq!(groups_needed(v4.into_iter()), 2);
    let net = 0x2001_0db8_u128 << 96;
    let of = |routes: &[(u128, u8)]| groups_needed6(routes.iter().copied());
    assert_eq!(of(&[(net, 24), (net, 20)]), 0);
    // One group for 25 to 32 bits; two more below the /32; the third /48 is like the second.
    assert_eq!(of(&[(net, 32), (net, 48), (net | 1 << 80, 48)]), 5);
    assert_eq!(of(&[(net, 48), (net, 50), (net, 49)]), 4);
    assert_eq!(of(&[(net, 128)]), 13);
    assert_eq!(of(&[(net, 33), (net | 1 << 90, 34)]), 2);
}

/// The count is the number that `rte_fib6` of 22.11 requires: with one group less it refuses a route.
/// Later releases (25.11.4) may require fewer, but never fewer than lookups pass through.
#[test]
fn fib6_takes_the_groups_counted_and_no_fewer() {
    let _turn = one_at_a_time();
    let eal = testing::eal();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as u32
    };
    let mut routes = BTreeMap::new();
    for next_hop in 1..=80 {
        let len = 20 + (random() % 60) as u8;
        let net = <[u8; 16]>::spread(random()).masked(len);
        routes.insert((u128::from_be_bytes(net), len), next_hop);
    }
    let groups = groups_needed6(routes.keys().copied());
    let fill = |groups| {
        let size = TableSize { routes: 100, groups };
        let mut table = Fib6::new(eal, EntrySize::Two, size).unwrap();
        routes.iter().try_for_each(|(&(net, len), &next_hop)| {
            table.insert(u128::to_be_bytes(net), len, next_hop)
        })
    };
    fill(groups).unwrap();
    if crate::version().starts_with("DPDK 22.11") {
        fill(groups - 1).unwrap_err();
    }
    // One group for each whole number of bytes from three on, and each value of them, that leads to longer
    // routes.
    let gone_through: HashSet<_> = routes
        .keys()
        .flat_map(|&(net, len)| (24..len).step_by(8).map(move |bits| (net >> (128 - bits), bits)))
        .collect();
    assert!(gone_through.len() < groups, "the counts cannot be told apart");
    fill(gone_through.len() - 1).unwrap_err();
}

/// The reader may still read a group that the writer has released until the reader has been quiescent.
#[test]
fn lpm_reuses_a_group_only_after_a_grace_period() {
    let _turn = one_at_a_time();
    let qsbr = Qsbr::new(1);
    let size = TableSize { routes: 10, groups: 3 };
    let mut table = Lpm::new(testing::eal(), size, Some(&qsbr)).unwrap();
    let mut reader = table.reader().unwrap();
    let come_and_go = |table: &mut Lpm| {
        table.insert(0x0a00_0000, 32, 1).and_then(|()| table.remove(0x0a00_0000, 32))
    };
    for _ in 0..size.groups {
        come_and_go(&mut table).unwrap();
    }
    come_and_go(&mut table).unwrap_err();
    reader.quiescent();
    come_and_go(&mut table).unwrap();

    table.insert(0x0b00_0000, 16, 7).unwrap();
    let other_thread = std::thread::spawn(move || {
        let mut answers = [0; 2];
        reader.lookup_bulk(&[0x0b00_0001, 0x0c00_0000], &mut answers);
        answers.map(Lpm::next_hop)
    });
    assert_eq!(other_thread.join().unwrap(), [7, 0]);
}
