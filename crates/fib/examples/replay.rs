//! Loads a real table, replays real updates on every structure, and compares all answers with the
//! reference's at the end.
//!
//! ```text
//! cargo run -p fib --release --example replay -- TABLE UPDATES [REPLAYS]
//! ```
//!
//! TABLE has lines `PREFIX NUMBER`, UPDATES lines `TIME a|w PREFIX NEXTHOP` (announce, withdraw);
//! other lines are skipped. Next hops are the numbers, or the last part of an address, modulo 200,
//! plus 1. Prints per structure the memory before and after and the time per update.

use std::{collections::BTreeSet, net::Ipv4Addr, time::Instant};

use fib::{Algorithm, Change, NextHopId, NoReaders, Prefix, Table};

type Net = Prefix<Ipv4Addr>;

fn next_hop(text: &str) -> Option<NextHopId> {
    let number: u64 = text.trim().rsplit('.').next()?.parse().ok()?;
    Some((number % 200 + 1) as NextHopId)
}

fn route(line: &str) -> Option<(Net, NextHopId)> {
    let (prefix, number) = line.split_once(char::is_whitespace)?;
    Some((prefix.parse().ok()?, next_hop(number)?))
}

fn change(line: &str) -> Option<Change<Ipv4Addr>> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let prefix = fields.get(2)?.parse().ok()?;
    match *fields.get(1)? {
        "a" => Some(Change::Insert { prefix, next_hop: next_hop(fields.get(3)?)? }),
        "w" => Some(Change::Remove { prefix }),
        _ => None,
    }
}

fn make(table: &mut dyn Table<Ipv4Addr>, changes: &[Change<Ipv4Addr>]) -> Result<(), fib::Error> {
    for change in changes {
        match *change {
            Change::Insert { prefix, next_hop } => drop(table.insert(prefix, next_hop)?),
            Change::Remove { prefix } => drop(table.remove(prefix)),
        }
    }
    Ok(())
}

/// Returns all addresses at which an answer can change.
fn edges(routes: &[(Net, NextHopId)], changes: &[Change<Ipv4Addr>]) -> Vec<u32> {
    let prefixes = routes.iter().map(|route| route.0).chain(changes.iter().map(Change::prefix));
    let mut edges = BTreeSet::new();
    for prefix in prefixes {
        let (first, last) = (prefix.bits(), prefix.last_bits());
        edges.extend([first.wrapping_sub(1), first, last, last.wrapping_add(1)]);
    }
    edges.into_iter().collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(table), Some(updates)) = (arguments.first(), arguments.get(1)) else {
        return Err("usage: replay TABLE UPDATES [REPLAYS]".into());
    };
    let replays: usize = arguments.get(2).map_or(Ok(1), |text| text.parse())?;
    let routes: Vec<_> = std::fs::read_to_string(table)?.lines().filter_map(route).collect();
    let changes: Vec<_> = std::fs::read_to_string(updates)?.lines().filter_map(change).collect();
    println!("{} routes, {} changes, {replays} times", routes.len(), changes.len());
    let edges = edges(&routes, &changes);
    let mut expected = Vec::new();
    for algorithm in Algorithm::ALL.into_iter().rev() {
        let mut table = fib::new_ipv4(algorithm, Box::new(NoReaders))?;
        table.load(&mut routes.iter().copied())?;
        let before = table.memory_bytes();
        let start = Instant::now();
        for _ in 0..replays {
            make(&mut *table, &changes)?;
        }
        let each = start.elapsed().as_secs_f64() * 1e6 / (replays * changes.len().max(1)) as f64;
        table.collect();
        let mut answers = vec![0; edges.len()];
        table.reader().lookup_batch(&edges, &mut answers);
        if algorithm == Algorithm::Reference {
            expected.clone_from(&answers);
        }
        let wrong = answers.iter().zip(&expected).filter(|(a, e)| a != e).count();
        let after = table.memory_bytes();
        let name = table.name();
        println!("{name:10} {each:.3} us per change, {before} bytes, {after} after, {wrong} wrong");
        if wrong > 0 {
            return Err(format!("{name} gives {wrong} of {} answers wrongly", edges.len()).into());
        }
    }
    Ok(())
}
