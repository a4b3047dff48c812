//! Any sequence of changes gives every table the reference's routes and answers.
//!
//! The input is a list of changes of both families. Addresses are made of few distinct bits, so
//! that prefixes nest and meet; after every change the tables are compared at the ends of all
//! prefixes that have occurred.
#![no_main]

use std::{
    cell::RefCell,
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use arbitrary::Arbitrary;
use fib::{Address, Algorithm, Bits, Change, Lookup, NextHopId, NoReaders, Prefix, Table};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Op {
    Insert {
        bits: u128,
        len: u8,
        next_hop: u16,
    },
    Remove {
        bits: u128,
        len: u8,
    },
    /// The last so many changes again, reversed and published together.
    Again {
        count: u8,
    },
    Collect,
}

#[derive(Arbitrary, Debug)]
struct Input {
    ipv4: Vec<Op>,
    ipv6: Vec<Op>,
}

/// The tables of one family, kept from input to input: making them costs more than using them.
struct Tables<A: Address> {
    all: Vec<TableAndReader<A>>,
}

type TableAndReader<A> = (Box<dyn Table<A>>, Arc<dyn Lookup<A>>);

/// Shorter prefixes make a change cost a thousand times as much and an input a second; the property
/// tests of the crate have them.
const SHORTEST: u8 = 12;

type Make<A> = fn(Algorithm, Box<dyn fib::GracePeriod>) -> Result<Box<dyn Table<A>>, fib::Error>;

impl<A: Address> Tables<A> {
    fn new(make: Make<A>) -> Self {
        let tables = [Algorithm::Reference, Algorithm::Runmap, Algorithm::Poptrie]
            .map(|algorithm| make(algorithm, Box::new(NoReaders)).expect("both families"));
        let all = tables.map(|table| {
            let reader = table.reader();
            (table, reader)
        });
        Self { all: all.into() }
    }

    /// Makes one change everywhere; all tables report the same next hop before.
    fn change(&mut self, change: Change<A>) {
        let mut before: Option<Option<NextHopId>> = None;
        for (table, _) in &mut self.all {
            let now = match change {
                Change::Insert { prefix, next_hop } => table.insert(prefix, next_hop).unwrap(),
                Change::Remove { prefix } => table.remove(prefix),
            };
            assert_eq!(*before.get_or_insert(now), now, "{}: {change:?}", table.name());
        }
    }

    fn compare(&self, prefixes: &BTreeSet<Prefix<A>>) {
        let ends = prefixes
            .iter()
            .flat_map(|p| [p.bits(), p.last_bits(), p.last_bits().next(), !(!p.bits()).next()]);
        let addresses: Vec<A::Bits> = ends.collect();
        let mut expected = vec![0; addresses.len()];
        self.all[0].1.lookup_batch(&addresses, &mut expected);
        for (table, reader) in &self.all[1..] {
            let mut answers = vec![0x7777; addresses.len()];
            reader.lookup_batch(&addresses, &mut answers);
            assert_eq!(answers, expected, "{}", table.name());
            for (&bits, &expected) in addresses.iter().zip(&expected) {
                assert_eq!(reader.lookup(A::from(bits)), expected, "{}", table.name());
            }
        }
    }

    fn run(&mut self, ops: &[Op], crowd: fn(u128) -> A) {
        let mut changes: Vec<Change<A>> = Vec::new();
        let mut prefixes = BTreeSet::new();
        for op in ops.iter().take(64) {
            let prefix = |bits: u128, len: u8| {
                let len = SHORTEST + len % (A::Bits::WIDTH + 1 - SHORTEST);
                Prefix::covering(crowd(bits), len)
            };
            let change = match *op {
                Op::Insert { bits, len, next_hop } => {
                    let next_hop = next_hop % fib::MAX_NEXT_HOP + 1;
                    Change::Insert { prefix: prefix(bits, len), next_hop }
                }
                Op::Remove { bits, len } => Change::Remove { prefix: prefix(bits, len) },
                Op::Again { count } => {
                    let from = changes.len().saturating_sub(usize::from(count));
                    let again: Vec<_> = changes[from..].iter().rev().copied().collect();
                    for (table, _) in &mut self.all {
                        table.apply(&again).unwrap();
                    }
                    continue;
                }
                Op::Collect => {
                    for (table, _) in &mut self.all {
                        assert_eq!(table.collect(), 0);
                    }
                    continue;
                }
            };
            prefixes.insert(change.prefix());
            changes.push(change);
            self.change(change);
            self.compare(&prefixes);
        }
        for &prefix in &prefixes {
            self.change(Change::Remove { prefix });
        }
        self.compare(&prefixes);
        assert!(self.all.iter().all(|(table, _)| table.is_empty()));
    }
}

thread_local! {
    static IPV4: RefCell<Tables<Ipv4Addr>> = RefCell::new(Tables::new(fib::new_ipv4));
    static IPV6: RefCell<Tables<Ipv6Addr>> = RefCell::new(Tables::new(fib::new_ipv6));
}

fuzz_target!(|input: Input| {
    let crowd4 = |bits: u128| Ipv4Addr::from(bits as u32 & 0xc003_07c3);
    let crowd6 = |bits: u128| Ipv6Addr::from(bits & 0xe001_8811_8003_c003_8001_8001_0001_8003);
    IPV4.with_borrow_mut(|tables| tables.run(&input.ipv4, crowd4));
    IPV6.with_borrow_mut(|tables| tables.run(&input.ipv6, crowd6));
});
