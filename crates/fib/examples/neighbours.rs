//! The cost of adding or removing a neighbour on a network with many.
//!
//! ```text
//! cargo run --release -p fib --example neighbours [HOSTS]
//! ```
//!
//! HOSTS (by default a million) random hosts of one IPv6 /64 have a host route each. Each line is one kind of
//! change, made to 20,000 of them one by one: microseconds, and the table's nodes and memory afterwards.

use std::{net::Ipv6Addr, time::Instant};

use fib::{Algorithm, NoReaders, Prefix, Table, synthetic::Random};

/// Changes of each kind.
const CHANGES: usize = 20_000;

/// Makes a change to some hosts, and prints the time of each.
fn measure(
    what: &str,
    table: &mut dyn Table<Ipv6Addr>,
    hosts: &[Prefix<Ipv6Addr>],
    mut change: impl FnMut(&mut dyn Table<Ipv6Addr>, Prefix<Ipv6Addr>),
) {
    let mut times: Vec<f64> = hosts
        .iter()
        .map(|&host| {
            let begin = Instant::now();
            change(table, host);
            begin.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let at = |part: usize| times[(times.len() - 1) * part / 1000];
    println!(
        "{what:<12} mean {mean:6.2}  p50 {:6.2}  p99 {:6.2}  p99.9 {:7.2} us; {} routes, {} MiB",
        at(500),
        at(990),
        at(999),
        table.len(),
        table.memory_bytes() >> 20
    );
}

fn main() {
    let count = std::env::args().nth(1).map_or(1_000_000, |text| text.parse().expect("a number"));
    let mut random = Random::new(1);
    let mut host = || {
        let tail = random.wide() & u128::from(u64::MAX);
        Prefix::host(Ipv6Addr::from(0x2001_0db8_0000_0001 << 64 | tail))
    };
    let mut table = fib::new_ipv6(Algorithm::Runmap, Box::new(NoReaders)).expect("memory");
    let table = &mut *table;
    let net = "2001:db8:0:1::/64".parse().expect("a prefix");
    table.insert(net, 1).expect("room");
    let routes: Vec<_> = (0..count).map(|n| (host(), 2 + (n % 30_000) as u16)).collect();
    table.load(&mut routes.iter().copied()).expect("room");
    let some: Vec<_> =
        routes.iter().step_by((count / CHANGES).max(1)).map(|route| route.0).collect();
    measure("another MAC", table, &some, |table, host| drop(table.insert(host, 7)));
    measure("gone", table, &some, |table, host| assert!(table.remove(host).is_some()));
    measure("back", table, &some, |table, host| drop(table.insert(host, 9)));
    let new: Vec<_> = (0..CHANGES).map(|_| host()).collect();
    measure("new", table, &new, |table, host| drop(table.insert(host, 9)));
}
