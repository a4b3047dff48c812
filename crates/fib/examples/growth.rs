//! The cost of a small table's growth: its first route beyond the most.
//!
//! ```text
//! cargo run --release -p fib --example growth [TABLES]
//! ```
//!
//! TABLES (by default 32) tables of 8,192 routes as on the Internet get one route more each, and 999 after that. Each
//! line is a family: processor time of that route and the longest of the others in microseconds, and KiB of a table before and behind it, by
//! its own count and by the process' resident memory.

use std::net::{Ipv4Addr, Ipv6Addr};

use fib::{Address, Algorithm, NextHopId, NoReaders, Prefix, SMALL_ROUTES, Table, synthetic};

/// Routes that follow the one by which a table grows.
const LATER: usize = 999;

/// Resident memory of the process in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    let kilobytes = line.trim().trim_end_matches(" kB");
    kilobytes.parse::<usize>().expect("a number") << 10
}

/// Processor time of this thread in microseconds: other programs may run meanwhile.
fn processor_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("schedstat");
    let nanoseconds = text.split(' ').next().and_then(|time| time.parse::<f64>().ok());
    nanoseconds.expect("a number") / 1e3
}

/// Inserts routes; returns the longest time of one in microseconds.
fn insert<A: Address>(table: &mut dyn Table<A>, routes: &[(Prefix<A>, NextHopId)]) -> f64 {
    let time = |&(prefix, next_hop): &(Prefix<A>, NextHopId)| {
        let begin = processor_us();
        table.insert(prefix, next_hop).expect("room");
        processor_us() - begin
    };
    routes.iter().map(time).fold(0.0, f64::max)
}

fn measure<A: Address>(
    family: &str,
    routes: &[(Prefix<A>, NextHopId)],
    mut tables: Vec<Box<dyn Table<A>>>,
) {
    let (first, rest) = routes.split_at(SMALL_ROUTES);
    let (grown, later) = rest.split_at(1);
    let before_all = resident();
    tables.iter_mut().for_each(|table| table.load(&mut first.iter().copied()).expect("room"));
    let small = resident();
    let own = tables[0].memory_bytes() + tables[0].writer_bytes();
    let mut times: Vec<f64> = tables.iter_mut().map(|table| insert(&mut **table, grown)).collect();
    times.sort_by(f64::total_cmp);
    let waiting: usize = tables.iter_mut().map(|table| table.collect()).sum();
    assert_eq!(waiting, 0, "nobody reads");
    let large = resident();
    let own_large = tables[0].memory_bytes() + tables[0].writer_bytes();
    let others = tables.iter_mut().map(|table| insert(&mut **table, later)).fold(0.0, f64::max);
    let each = |from: usize, to: usize| (to.saturating_sub(from) / tables.len()) >> 10;
    println!(
        "{family}: growth p50 {:.0}, most {:.0} us; others most {others:.0} us; small {} KiB ({} resident), large {} \
         KiB ({} resident)",
        times[times.len() / 2],
        times[times.len() - 1],
        own >> 10,
        each(before_all, small),
        own_large >> 10,
        each(before_all, large),
    );
}

fn main() {
    let count = std::env::args().nth(1).map_or(32, |text| text.parse().expect("a number"));
    let grace = || Box::new(NoReaders) as Box<dyn fib::GracePeriod>;
    let wanted = SMALL_ROUTES + 1 + LATER;
    let make = |_| fib::new_small_ipv4(Algorithm::Runmap, SMALL_ROUTES, grace).expect("IPv4");
    let routes: Vec<(Prefix<Ipv4Addr>, NextHopId)> = synthetic::ipv4(wanted, 200);
    measure("IPv4", &routes, (0..count).map(make).collect());
    let make = |_| fib::new_small_ipv6(Algorithm::Runmap, SMALL_ROUTES, grace).expect("IPv6");
    let routes: Vec<(Prefix<Ipv6Addr>, NextHopId)> = synthetic::ipv6(wanted, 200);
    measure("IPv6", &routes, (0..count).map(make).collect());
}
