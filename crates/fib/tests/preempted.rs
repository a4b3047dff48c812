//! The pieces that a reader interrupted in the middle of a lookup still uses are kept.
//!
//! `concurrent.rs` checks the answers of readers in normal operation; this tests the grace periods.
//! There are more readers than processors and none of them ever yields, so that the system preempts
//! them anywhere, often between two loads of one lookup. Meanwhile the writer replaces thousands of
//! pieces. If a piece were reused that an interrupted reader still holds, the reader would find
//! another target's next hop in it, and each target has numbers of its own. (If `Epochs::passed`
//! always returns true, each structure that retires anything fails here within some hundred
//! milliseconds; the test's duration is chosen accordingly.)

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use fib::{
    Address, Algorithm, Bits, EpochReader, Epochs, Error, GracePeriod, Lookup, NextHopId, Prefix,
    SMALL_ROUTES, Table, synthetic::Random,
};

const TARGETS: usize = 64;
/// Next hops of a target: the writer uses them one after the other, and starts again.
const NUMBERS: NextHopId = 256;
/// Next hops of other routes begin here, after all targets'.
const NOISE: NextHopId = TARGETS as NextHopId * NUMBERS + 1;
/// Duration of the test of each structure.
const TIME: Duration = Duration::from_millis(1500);

/// A permanent route of which only the next hop changes.
struct Target<A: Address> {
    prefix: Prefix<A>,
    /// The smallest of its next hops.
    first: NextHopId,
    /// Number of changes of the next hop begun, and number done.
    begun: AtomicUsize,
    done: AtomicUsize,
}

impl<A: Address> Target<A> {
    fn new(number: usize, base: A::Bits, lengths: &[u8]) -> Self {
        let place = A::Bits::place(number as u32, 10, 6);
        let len = lengths[number % lengths.len()];
        Self {
            prefix: Prefix::covering(A::from(base | place), len),
            first: 1 + number as NextHopId * NUMBERS,
            begun: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }

    /// Returns the next hop after this many changes.
    fn next_hop(&self, changes: usize) -> NextHopId {
        self.first + (changes % usize::from(NUMBERS)) as NextHopId
    }

    /// Returns true if the next hop was in force at some time between two counts of changes.
    fn had(&self, next_hop: NextHopId, least: usize, most: usize) -> bool {
        let own = (self.first..self.first + NUMBERS).contains(&next_hop);
        own && (least..=most).any(|changes| self.next_hop(changes) == next_hop)
    }
}

/// Looks up all targets without a pause until stopped.
fn read<A: Address>(
    lookup: &dyn Lookup<A>,
    epoch: &EpochReader,
    targets: &[Target<A>],
    stop: &AtomicBool,
) {
    let addresses: Vec<A::Bits> = targets.iter().map(|target| target.prefix.bits()).collect();
    let mut out = [0; TARGETS];
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let least: Vec<usize> = targets.iter().map(|t| t.done.load(Ordering::SeqCst)).collect();
        if turn % 2 == 0 {
            lookup.lookup_batch(&addresses, &mut out);
        } else {
            lookup.lookup_prefetched(&addresses, &mut out);
        }
        for ((target, least), seen) in targets.iter().zip(least).zip(out) {
            let most = target.begun.load(Ordering::SeqCst);
            assert!(target.had(seen, least, most), "{}: next hop {seen}", target.prefix);
        }
        epoch.quiescent();
    }
}

/// Retries while the readers hold back all free room.
fn retry<R>(mut change: impl FnMut() -> Result<R, Error>) -> R {
    loop {
        match change() {
            Ok(done) => return done,
            Err(Error::Stalled { .. }) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Gives a target its next number, and adds or removes a route that shares all but the last bit
/// with the target's address, so that the pieces leading to the target are rebuilt.
fn change<A: Address>(table: &mut dyn Table<A>, target: &Target<A>, random: &mut Random) {
    let changes = target.begun.load(Ordering::SeqCst) + 1;
    target.begun.store(changes, Ordering::SeqCst);
    retry(|| table.insert(target.prefix, target.next_hop(changes)));
    target.done.store(changes, Ordering::SeqCst);
    // Few lengths, so that often none of these routes exists and the pieces that led to them
    // retire.
    let longer = target.prefix.len() + [1, 9][random.below(2) as usize];
    let len = longer.min(A::Bits::WIDTH);
    let beside = target.prefix.bits() ^ A::Bits::place(1, len - 1, 1);
    let prefix = Prefix::covering(A::from(beside), len);
    match random.below(2) {
        0 => drop(table.remove(prefix)),
        _ => drop(retry(|| table.insert(prefix, NOISE + random.below(64) as NextHopId))),
    }
}

fn interrupt<A: Address>(
    mut table: Box<dyn Table<A>>,
    epochs: &Epochs,
    base: A::Bits,
    lengths: &[u8],
) {
    let targets: Vec<Target<A>> = (0..TARGETS).map(|n| Target::new(n, base, lengths)).collect();
    for target in &targets {
        table.insert(target.prefix, target.next_hop(0)).unwrap();
    }
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..processors + 2)
            .map(|_| {
                let (lookup, epoch) = (table.reader(), epochs.register());
                let (targets, stop) = (&targets, &stop);
                scope.spawn(move || read(&*lookup, &epoch, targets, stop))
            })
            .collect();
        let mut random = Random::new(23);
        let start = Instant::now();
        // A reader that has ended has seen a wrong next hop.
        while start.elapsed() < TIME && !readers.iter().any(|reader| reader.is_finished()) {
            for target in &targets {
                change(&mut *table, target, &mut random);
            }
            if cfg!(miri) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().is_ok(), "{}: a reader saw a wrong next hop", table.name());
        }
    });
    assert_eq!(table.collect(), 0, "nothing waits without readers");
}

/// Prefixes shorter than, as long as and longer than the strides of the structures.
fn ipv4(algorithm: Algorithm) {
    let epochs = Epochs::default();
    let table = fib::new_ipv4(algorithm, Box::new(epochs.clone())).unwrap();
    interrupt_ipv4(table, &epochs);
}

fn interrupt_ipv4(table: Box<dyn Table<Ipv4Addr>>, epochs: &Epochs) {
    interrupt::<Ipv4Addr>(table, epochs, 0x0a00_0000, &[16, 18, 19, 22, 24, 24, 24, 25]);
}

fn ipv6(algorithm: Algorithm) {
    let epochs = Epochs::default();
    let table = fib::new_ipv6(algorithm, Box::new(epochs.clone())).unwrap();
    interrupt_ipv6(table, &epochs);
}

fn interrupt_ipv6(mut table: Box<dyn Table<Ipv6Addr>>, epochs: &Epochs) {
    // Two of the targets, /48s, get so many neighbours that their /32 uses other pieces.
    for neighbour in 0..120u128 {
        let number = 5 + 8 * (neighbour & 1);
        let bits = 0x2a00 << 112 | number << 112 | (2 * neighbour + 0x100) << 80;
        table.insert(Prefix::covering(Ipv6Addr::from(bits), 48), NOISE).unwrap();
    }
    interrupt::<Ipv6Addr>(table, epochs, 0x2a00 << 112, &[16, 24, 29, 32, 40, 48, 56, 64]);
}

fn clones(epochs: &Epochs) -> impl Fn() -> Box<dyn GracePeriod> + Send + 'static {
    let epochs = epochs.clone();
    move || Box::new(epochs.clone())
}

#[test]
fn readers_of_small_tables_keep_what_they_hold() {
    let epochs = Epochs::default();
    let small = fib::new_small_ipv4(Algorithm::Runmap, SMALL_ROUTES, clones(&epochs)).unwrap();
    interrupt_ipv4(small, &epochs);
}

#[test]
fn readers_of_small_tables_for_ipv6_keep_what_they_hold() {
    let epochs = Epochs::default();
    let small = fib::new_small_ipv6(Algorithm::Runmap, SMALL_ROUTES, clones(&epochs)).unwrap();
    interrupt_ipv6(small, &epochs);
}

#[test]
fn readers_of_runmap_keep_what_they_hold() {
    ipv4(Algorithm::Runmap);
}

#[test]
fn readers_of_runmap_for_ipv6_keep_what_they_hold() {
    ipv6(Algorithm::Runmap);
}

#[test]
fn readers_of_poptrie_keep_what_they_hold() {
    ipv4(Algorithm::Poptrie);
}

#[test]
fn readers_of_poptrie_for_ipv6_keep_what_they_hold() {
    ipv6(Algorithm::Poptrie);
}

#[test]
fn readers_of_dir_24_8_keep_what_they_hold() {
    ipv4(Algorithm::Dir24_8);
}
