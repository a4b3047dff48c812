//! Compares the structures: lookups by traffic pattern, build, update, memory.
//!
//! ```text
//! cargo bench -p fib                                    synthetic tables
//! FIB_IPV4=FILE FIB_IPV6=FILE cargo bench -p fib        tables of lines "PREFIX NUMBER"
//! ```
//!
//! Every structure's answers are first compared with the reference's; a structure with a wrong
//! answer is not timed. All are timed in one process, taking turns, with batches of 32, so that a
//! change of the machine's speed affects all alike: compare ratios within a run, not numbers
//! between runs. Before a piece is timed, half a million lookups of other addresses bring the
//! caches into the state of a router that uses this structure alone. Cycles are those of the
//! time-stamp counter if there is one, else nanoseconds. Pin it to a quiet core (`taskset -c 1`).

use std::{
    hint::black_box,
    net::{Ipv4Addr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use fib::{
    Address, Algorithm, Bits, Error, GracePeriod, Lookup, NextHopId, NoReaders, Prefix, Table,
    synthetic::{self, Random},
};

const BATCH: usize = 32;
/// Addresses of a pattern, addresses timed at a time, and addresses of the warm-up.
const ADDRESSES: usize = 1 << 20;
const PIECE: usize = 1 << 16;
const WARM_UP: usize = 1 << 19;
const ROUNDS: usize = 15;

type Routes<A> = Vec<(Prefix<A>, NextHopId)>;
type Make<A> = fn(Algorithm, Box<dyn GracePeriod>) -> Result<Box<dyn Table<A>>, Error>;

#[cfg(target_arch = "x86_64")]
fn cycles() -> u64 {
    // SAFETY: reading the time-stamp counter has no preconditions on x86-64.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A structure under test, and its measurements.
struct Subject<A: Address> {
    table: Box<dyn Table<A>>,
    reader: Arc<dyn Lookup<A>>,
    build_ms: f64,
    /// Per pattern, the cycles per lookup of each piece.
    cycles: Vec<Vec<f64>>,
}

/// Generates addresses by pattern: within the table's prefixes, uniformly random, Zipf-distributed
/// over 100,000 destinations, and 64 flows.
fn patterns<A: Address>(
    routes: &Routes<A>,
    random_bits: fn(&mut Random) -> A::Bits,
) -> Vec<(&'static str, Vec<A::Bits>)> {
    let mut random = Random::new(42);
    let mut in_table = |count: usize| -> Vec<A::Bits> {
        let one = |random: &mut Random| {
            let prefix = routes[random.below(routes.len() as u64) as usize].0;
            prefix.bits() | (random_bits(random) & !A::Bits::mask(prefix.len()))
        };
        (0..count).map(|_| one(&mut random)).collect()
    };
    let (spread, destinations, flows) = (in_table(ADDRESSES), in_table(100_000), in_table(64));
    let mut sums: Vec<f64> = (1..=destinations.len()).map(|rank| 1.0 / rank as f64).collect();
    for rank in 1..sums.len() {
        sums[rank] += sums[rank - 1];
    }
    let total = sums[sums.len() - 1];
    let zipf = |random: &mut Random| {
        let at = (random.word() >> 11) as f64 / (1u64 << 53) as f64 * total;
        destinations[sums.partition_point(|&sum| sum < at).min(destinations.len() - 1)]
    };
    vec![
        ("in-table", spread),
        ("random", (0..ADDRESSES).map(|_| random_bits(&mut random)).collect()),
        ("zipf", (0..ADDRESSES).map(|_| zipf(&mut random)).collect()),
        ("flows", (0..ADDRESSES).map(|_| flows[random.below(64) as usize]).collect()),
    ]
}

/// Reads a table from a file of lines "PREFIX NUMBER"; next hops are the numbers modulo 200, plus
/// 1.
fn read<A: Address>(path: &str) -> Routes<A> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("table {path}: {e}"));
    let mut routes: Routes<A> = text
        .lines()
        .filter_map(|line| {
            let (prefix, number) = line.split_once(char::is_whitespace)?;
            Some((prefix.parse().ok()?, (number.trim().parse::<u64>().ok()? % 200 + 1) as u16))
        })
        .collect();
    assert!(!routes.is_empty(), "table {path}: no line \"PREFIX NUMBER\" of this family");
    routes.sort_unstable();
    routes.dedup_by_key(|route| route.0);
    routes
}

fn build<A: Address>(make: Make<A>, routes: &Routes<A>) -> Vec<Subject<A>> {
    let tables = Algorithm::ALL.into_iter().filter_map(|a| make(a, Box::new(NoReaders)).ok());
    tables
        .map(|mut table| {
            let start = Instant::now();
            table.load(&mut routes.iter().copied()).expect("the table fits");
            let build_ms = start.elapsed().as_secs_f64() * 1e3;
            Subject { reader: table.reader(), table, build_ms, cycles: Vec::new() }
        })
        .collect()
}

/// Compares all answers with the reference's, the last subject.
fn check<A: Address>(subjects: &[Subject<A>], addresses: &[A::Bits]) {
    let Some((reference, others)) = subjects.split_last() else { return };
    let mut expected = vec![0; addresses.len()];
    reference.reader.lookup_batch(addresses, &mut expected);
    for subject in others {
        let mut answers = vec![0; addresses.len()];
        subject.reader.lookup_batch(addresses, &mut answers);
        let wrong = answers.iter().zip(&expected).position(|(answer, expected)| answer != expected);
        if let Some(at) = wrong {
            let address = A::from(addresses[at]);
            panic!("{} answers wrongly for {address}", subject.table.name());
        }
    }
}

/// Measures the cycles per lookup of one piece.
fn time<A: Address>(lookup: &dyn Lookup<A>, addresses: &[A::Bits], piece: usize) -> f64 {
    let mut out = [0; BATCH];
    let mut run = |addresses: &[A::Bits]| {
        for batch in addresses.chunks(BATCH) {
            lookup.lookup_batch(batch, &mut out);
            black_box(&out);
        }
    };
    let first = piece * PIECE % ADDRESSES;
    let opposite = (first + ADDRESSES / 2) % ADDRESSES;
    run(&addresses[opposite..(opposite + WARM_UP).min(ADDRESSES)]);
    let start = cycles();
    run(&addresses[first..first + PIECE]);
    (cycles() - start) as f64 / PIECE as f64
}

/// Measures the microseconds of withdrawals and returns of random routes: mean and 99th percentile.
fn time_updates<A: Address>(subject: &mut Subject<A>, routes: &Routes<A>) -> (f64, f64) {
    let mut random = Random::new(9);
    let mut times: Vec<f64> = Vec::new();
    let count = if subject.table.name() == "reference" { 1_000 } else { 20_000 };
    for _ in 0..count {
        let (prefix, next_hop) = routes[random.below(routes.len() as u64) as usize];
        let start = Instant::now();
        subject.table.remove(prefix);
        let removed = start.elapsed();
        subject.table.insert(prefix, next_hop).expect("it fitted before");
        times.push(removed.as_secs_f64() * 1e6);
        times.push((start.elapsed() - removed).as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    (times.iter().sum::<f64>() / times.len() as f64, times[times.len() * 99 / 100])
}

/// Lengths of prefixes whose changes are timed separately: the shorter, the more addresses they
/// cover.
const SHORT: [u8; 5] = [0, 4, 8, 12, 16];

/// Measures the microseconds of a change of the next hop of one prefix, the median.
fn time_change<A: Address>(subject: &mut Subject<A>, prefix: Prefix<A>) -> f64 {
    let before = subject.table.get(prefix);
    let mut times: Vec<f64> = Vec::new();
    for round in 0..15 {
        let start = Instant::now();
        subject.table.insert(prefix, 1 + round % 2).expect("it fits");
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    match before {
        Some(next_hop) => drop(subject.table.insert(prefix, next_hop)),
        None => drop(subject.table.remove(prefix)),
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Prints the cost of changes of short prefixes around a route in the middle of the table.
fn print_short_changes<A: Address>(subjects: &mut [Subject<A>], routes: &Routes<A>) {
    print!("{:10}", "us for a");
    SHORT.iter().for_each(|len| print!("{:>12}", format!("/{len}")));
    println!("  (change of next hop, median)");
    let middle = routes[routes.len() / 2].0.address();
    for subject in subjects {
        print!("{:10}", subject.table.name());
        for len in SHORT {
            print!("{:>12.1}", time_change(subject, Prefix::covering(middle, len)));
        }
        println!();
    }
}

/// The same with a reader that looks up all the time.
fn time_updates_with_reader<A: Address>(
    subject: &mut Subject<A>,
    routes: &Routes<A>,
    addresses: &[A::Bits],
) -> (f64, f64) {
    let (reader, stop) = (Arc::clone(&subject.reader), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = [0; BATCH];
            for batch in addresses.chunks(BATCH).cycle() {
                reader.lookup_batch(batch, &mut out);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let times = time_updates(subject, routes);
        stop.store(true, Ordering::Relaxed);
        times
    })
}

fn bench<A: Address>(make: Make<A>, routes: &Routes<A>, random_bits: fn(&mut Random) -> A::Bits) {
    println!("{}: {} routes; cycles per lookup, median/minimum", A::FAMILY, routes.len());
    let patterns = patterns(routes, random_bits);
    let mut subjects = build(make, routes);
    patterns.iter().for_each(|(_, addresses)| check(&subjects, &addresses[..ADDRESSES / 16]));
    for subject in &mut subjects {
        subject.cycles = vec![Vec::new(); patterns.len()];
    }
    for round in 0..ROUNDS {
        for (at, (_, addresses)) in patterns.iter().enumerate() {
            for subject in &mut subjects {
                // The reference is some hundred times slower.
                if subject.table.name() != "reference" {
                    subject.cycles[at].push(time(&*subject.reader, addresses, round));
                }
            }
        }
    }
    print!("{:10}", "structure");
    patterns.iter().for_each(|(name, _)| print!("{name:>14}"));
    println!("{:>10}{:>10}{:>22}{:>22}", "build ms", "MiB", "update us mean/p99", "with a reader");
    for subject in &mut subjects {
        print!("{:10}", subject.table.name());
        for mut cycles in std::mem::take(&mut subject.cycles) {
            cycles.sort_by(f64::total_cmp);
            match cycles.first() {
                Some(least) => print!("{:>8.1}/{least:<5.1}", cycles[cycles.len() / 2]),
                None => print!("{:>14}", "-"),
            }
        }
        let mib = subject.table.memory_bytes() as f64 / f64::from(1 << 20);
        let (mean, p99) = time_updates(subject, routes);
        print!("{:>10.1}{mib:>10.2}{mean:>15.2}/{p99:<6.2}", subject.build_ms);
        let (mean, p99) = time_updates_with_reader(subject, routes, &patterns[0].1);
        println!("{mean:>15.2}/{p99:<6.2}");
    }
    print_short_changes(&mut subjects, routes);
}

fn main() {
    // `cargo test` runs benches to see that they start; there is nothing to check then.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let ipv4 = std::env::var("FIB_IPV4").map(|path| read::<Ipv4Addr>(&path));
    let ipv6 = std::env::var("FIB_IPV6").map(|path| read::<Ipv6Addr>(&path));
    let ipv4 = ipv4.unwrap_or_else(|_| synthetic::ipv4(500_000, 200));
    let ipv6 = ipv6.unwrap_or_else(|_| synthetic::ipv6(150_000, 200));
    bench::<Ipv4Addr>(fib::new_ipv4, &ipv4, |random| random.word() as u32);
    bench::<Ipv6Addr>(fib::new_ipv6, &ipv6, Random::wide);
}
