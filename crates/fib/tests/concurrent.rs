//! Readers during updates see the route before or the route after a change, nothing else.
//!
//! The writer increments each target's next hop and records its progress before and after every
//! change; a reader that looks up in between must see a number from this range. Around the targets
//! routes are added and removed all the time, so that leaves, nodes and tables are replaced,
//! retired and reused as fast as the grace periods allow; their next hops are from another range,
//! so that a reader of a piece that was reused too early sees a wrong number.
//!
//! This takes the place of a model checker: loom and shuttle need their own atomics in place of the
//! standard library's, of which the tables hold millions, and cannot see into the assembly kernels;
//! and the reorderings of stores that they would explore are one release store per publication
//! here.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering},
    },
    thread,
};

use fib::{
    Address, Algorithm, Bits, Change, EpochReader, Epochs, GracePeriod, Lookup, NextHopId, Prefix,
    Table, synthetic::Random,
};

const TARGETS: usize = 48;
const ROUNDS: u16 = if cfg!(miri) { 3 } else { 150 };
/// Next hops of the routes around the targets begin here.
const NOISE: NextHopId = 0x4000;

struct Target<A: Address> {
    prefix: Prefix<A>,
    /// The next hop being stored, and the last one stored.
    begun: AtomicU16,
    done: AtomicU16,
}

/// Targets of many lengths, no two with the same address.
fn targets<A: Address>(base: A::Bits, lengths: &[u8]) -> Vec<Target<A>> {
    (0..TARGETS)
        .map(|number| {
            let len = lengths[number % lengths.len()];
            let place = A::Bits::place(number as u32, 10, 6);
            let prefix = Prefix::covering(A::from(base | place), len);
            Target { prefix, begun: AtomicU16::new(1), done: AtomicU16::new(1) }
        })
        .collect()
}

/// Looks up all targets until stopped, counting the passes.
fn read<A: Address>(
    lookup: &dyn Lookup<A>,
    epoch: &EpochReader,
    targets: &[Target<A>],
    stop: &AtomicBool,
    passes: &AtomicUsize,
) {
    let addresses: Vec<A::Bits> = targets.iter().map(|target| target.prefix.bits()).collect();
    let mut out = [0; TARGETS];
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let least: Vec<u16> = targets.iter().map(|t| t.done.load(Ordering::SeqCst)).collect();
        if turn % 2 == 0 {
            lookup.lookup_batch(&addresses, &mut out);
        } else {
            lookup.prefetch_batch(&addresses);
            lookup.lookup_prefetched(&addresses, &mut out);
        }
        for ((target, &least), &seen) in targets.iter().zip(&least).zip(&out) {
            let most = target.begun.load(Ordering::SeqCst);
            let prefix = target.prefix;
            assert!((least..=most).contains(&seen), "{prefix}: {seen}, not {least} to {most}");
        }
        epoch.quiescent();
        passes.fetch_add(1, Ordering::SeqCst);
        // So that one processor is enough to run this test.
        thread::yield_now();
    }
}

/// A change near a target that does not cover the target's own address.
fn noise<A: Address>(target: &Target<A>, random: &mut Random) -> Change<A> {
    let len = (target.prefix.len() + 1 + random.below(9) as u8).min(A::Bits::WIDTH);
    let from = target.prefix.len();
    let place = A::Bits::place(1 + random.below(255) as u32, from, 8);
    let prefix = Prefix::covering(A::from(target.prefix.bits() | place), len);
    if prefix.contains(target.prefix.address()) || random.below(3) == 0 {
        return Change::Remove { prefix };
    }
    Change::Insert { prefix, next_hop: NOISE + random.below(8) as u16 }
}

/// Adds and removes many routes elsewhere: afterwards so many leaves are free that those in use,
/// including the targets', are moved.
fn upheaval<A: Address>(table: &mut dyn Table<A>, random: &mut Random) {
    let len = if A::Bits::WIDTH == 32 { 24 } else { 32 };
    let far = |random: &mut Random| {
        let bits = A::Bits::place(0x60, 0, 8) | A::Bits::place(random.word() as u32, 8, 24);
        Prefix::covering(A::from(bits), len)
    };
    let count = if cfg!(miri) { 20 } else { 2_500 };
    let prefixes: Vec<Prefix<A>> = (0..count).map(|_| far(random)).collect();
    let come = |&prefix: &Prefix<A>| Change::Insert { prefix, next_hop: NOISE + 9 };
    table.apply(&prefixes.iter().map(come).collect::<Vec<_>>()).unwrap();
    let go = |&prefix: &Prefix<A>| Change::Remove { prefix };
    table.apply(&prefixes.iter().map(go).collect::<Vec<_>>()).unwrap();
    table.collect();
}

/// Changes the table round by round; `meet` returns when the readers have completed a pass.
fn write<A: Address>(table: &mut dyn Table<A>, targets: &[Target<A>], meet: impl Fn()) {
    let mut random = Random::new(11);
    for round in 2..ROUNDS {
        for target in targets {
            for _ in 0..3 {
                // Removals of the target itself are not noise.
                match noise(target, &mut random) {
                    Change::Remove { prefix } if prefix == target.prefix => {}
                    change => table.apply(&[change]).unwrap(),
                }
            }
            target.begun.store(round, Ordering::SeqCst);
            table.insert(target.prefix, round).unwrap();
            target.done.store(round, Ordering::SeqCst);
            table.collect();
        }
        if round % 16 == 0 {
            upheaval(table, &mut random);
        }
        // A shorter prefix changes the routes around the targets, not the targets.
        let around = Prefix::covering(targets[0].prefix.address(), 9);
        table.insert(around, NOISE + round).unwrap();
        meet();
    }
}

fn race<A: Address>(mut table: Box<dyn Table<A>>, epochs: &Epochs, base: A::Bits, lengths: &[u8]) {
    let targets = Arc::new(targets::<A>(base, lengths));
    for target in targets.iter() {
        table.insert(target.prefix, 1).unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let passes = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (lookup, epoch) = (table.reader(), epochs.register());
            let (targets, stop) = (Arc::clone(&targets), Arc::clone(&stop));
            let passes = Arc::clone(&passes);
            thread::spawn(move || read(&*lookup, &epoch, &targets, &stop, &passes))
        })
        .collect();
    // However the threads are scheduled, lookups happen in every round. A reader that has ended has
    // seen a wrong route, and is not waited for.
    write(&mut *table, &targets, || {
        let before = passes.load(Ordering::SeqCst);
        while passes.load(Ordering::SeqCst) == before && !threads.iter().any(|t| t.is_finished()) {
            thread::yield_now();
        }
    });
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("no reader saw a wrong route");
    }
    assert_eq!(table.collect(), 0, "nothing waits without readers");
}

#[test]
fn ipv4_readers_see_before_or_after() {
    for algorithm in Algorithm::ALL {
        let epochs = Epochs::default();
        let table = fib::new_ipv4(algorithm, Box::new(epochs.clone())).unwrap();
        race::<Ipv4Addr>(table, &epochs, 0x0a00_0000, &[16, 17, 18, 19, 20, 22, 23, 24, 25, 28]);
    }
}

/// Never large, large in the midst of the first upheaval, and large after some rounds.
const SMALL: [usize; 3] = [usize::MAX, 1000, 2 * TARGETS];

fn clones(epochs: &Epochs) -> impl Fn() -> Box<dyn GracePeriod> + Send + 'static {
    let epochs = epochs.clone();
    move || Box::new(epochs.clone())
}

#[test]
fn readers_of_small_tables_see_before_or_after() {
    for most in SMALL {
        let epochs = Epochs::default();
        let small = fib::new_small_ipv4(Algorithm::Runmap, most, clones(&epochs)).unwrap();
        race::<Ipv4Addr>(small, &epochs, 0x0a00_0000, &[16, 17, 18, 19, 20, 22, 23, 24, 25, 28]);
        let epochs = Epochs::default();
        let small = fib::new_small_ipv6(Algorithm::Runmap, most, clones(&epochs)).unwrap();
        race::<Ipv6Addr>(small, &epochs, 0x2a00 << 112, LENGTHS_6);
    }
}

/// Lengths around those at which pieces of IPv6 tables end.
const LENGTHS_6: &[u8] = &[16, 19, 24, 29, 31, 32, 33, 40, 47, 48, 49, 56, 64, 80, 96, 112, 120];

#[test]
fn ipv6_readers_see_before_or_after() {
    for algorithm in Algorithm::ALL {
        let epochs = Epochs::default();
        if let Ok(table) = fib::new_ipv6(algorithm, Box::new(epochs.clone())) {
            race::<Ipv6Addr>(table, &epochs, 0x2a00 << 112, LENGTHS_6);
        }
    }
}
