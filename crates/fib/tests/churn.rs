//! Memory stays bounded and answers stay right under continuous updates: a day's worth of changes,
//! replayed a hundred times, ends within a tenth of the initial memory.

use std::net::{Ipv4Addr, Ipv6Addr};

use fib::{Address, Algorithm, Bits, Change, NextHopId, NoReaders, Prefix, Table, synthetic};
use synthetic::Random;

const ROUTES: usize = if cfg!(miri) { 100 } else { 20_000 };
const CHANGES: usize = if cfg!(miri) { 10 } else { 1_000 };
const REPLAYS: usize = if cfg!(miri) { 2 } else { 100 };

type Routes<A> = Vec<(Prefix<A>, NextHopId)>;

/// Changes that begin and end with the table's routes: withdrawals and their return, other next
/// hops, and more specific routes for a while.
fn day<A: Address>(routes: &Routes<A>) -> Vec<Change<A>> {
    let mut random = Random::new(5);
    let mut changes = Vec::new();
    let mut restore = Vec::new();
    for _ in 0..CHANGES {
        let (prefix, next_hop) = routes[random.below(routes.len() as u64) as usize];
        restore.push(Change::Insert { prefix, next_hop });
        changes.push(match random.below(4) {
            0 => Change::Remove { prefix },
            1 => Change::Insert { prefix, next_hop: 1 + random.below(200) as u16 },
            _ => {
                let deeper = (prefix.len() + 1 + random.below(8) as u8).min(A::Bits::WIDTH);
                let tail = A::Bits::place(random.word() as u32, prefix.len(), 8);
                let specific = Prefix::covering(A::from(prefix.bits() | tail), deeper);
                restore.push(match routes.binary_search_by_key(&specific, |route| route.0) {
                    Ok(at) => Change::Insert { prefix: specific, next_hop: routes[at].1 },
                    Err(_) => Change::Remove { prefix: specific },
                });
                Change::Insert { prefix: specific, next_hop: 1 + random.below(200) as u16 }
            }
        });
    }
    changes.extend(restore);
    changes
}

fn churn<A: Address>(mut table: Box<dyn Table<A>>, routes: &Routes<A>, reference: &dyn Table<A>) {
    table.load(&mut routes.iter().copied()).unwrap();
    let day = day(routes);
    let mut before = 0;
    for replay in 0..REPLAYS {
        for change in &day {
            match *change {
                Change::Insert { prefix, next_hop } => {
                    table.insert(prefix, next_hop).unwrap();
                }
                Change::Remove { prefix } => {
                    table.remove(prefix);
                }
            }
        }
        table.collect();
        if replay == 0 {
            before = table.memory_bytes();
        }
    }
    let after = table.memory_bytes();
    let name = table.name();
    assert!(after <= before + before / 10, "{name}: {before} bytes grew to {after}");
    let loaded = before.max(1);
    assert!(after * 10 >= loaded * 9, "{name}: {before} bytes shrank to {after}: counted wrongly");
    assert_eq!(table.len(), reference.len());
    let (reader, expected) = (table.reader(), reference.reader());
    for (prefix, _) in routes {
        for bits in [prefix.bits(), prefix.last_bits()] {
            let address = A::from(bits);
            assert_eq!(reader.lookup(address), expected.lookup(address), "{name}: {address}");
        }
    }
}

#[test]
fn a_hundred_days_of_ipv4_updates_leave_memory_and_answers_as_they_were() {
    let routes = synthetic::ipv4(ROUTES, 200);
    let mut reference = fib::new_ipv4(Algorithm::Reference, Box::new(NoReaders)).unwrap();
    reference.load(&mut routes.iter().copied()).unwrap();
    let algorithms = [Algorithm::Runmap, Algorithm::Poptrie, Algorithm::Dir24_8];
    // Loading the last one fills 2^24 entries: hours for miri, and it has no unsafe code of its
    // own.
    for algorithm in &algorithms[..if cfg!(miri) { 2 } else { 3 }] {
        let table = fib::new_ipv4(*algorithm, Box::new(NoReaders)).unwrap();
        churn::<Ipv4Addr>(table, &routes, &*reference);
    }
}

#[test]
fn a_hundred_days_of_ipv6_updates_leave_memory_and_answers_as_they_were() {
    let routes = synthetic::ipv6(ROUTES, 200);
    let mut reference = fib::new_ipv6(Algorithm::Reference, Box::new(NoReaders)).unwrap();
    reference.load(&mut routes.iter().copied()).unwrap();
    for algorithm in [Algorithm::Runmap, Algorithm::Poptrie] {
        let table = fib::new_ipv6(algorithm, Box::new(NoReaders)).unwrap();
        churn::<Ipv6Addr>(table, &routes, &*reference);
    }
}
