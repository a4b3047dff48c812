//! Memory and speed of many VRFs.
//!
//! ```text
//! cargo run --release -p control --example vrf_scale -- [VRFS [ROUTES]]
//! ```
//!
//! Makes a RIB with so many VRFs (1,000) that have an interface and so many routes (1,000) each, three of four IPv4, and
//! another RIB, in a process of its own, with as many routes in the default VRF. The difference is the memory of a VRF
//! beside its routes: FIBs of both families, reserved ranges, the interface. It is measured for
//!
//! - `site`: /24s and /64s in a row, as in the network of an organisation;
//! - `internet`: made-up prefixes of all lengths, spread over the whole address space.
//!
//! Then follow lookups in a table of ROUTES routes that is small and in one that is large from the beginning, and in
//! one that has grown large and one that was made so: nanoseconds for one of a batch of 64 in-table destinations,
//! smallest of 15 interleaved runs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use control::rib::{Path, Rib, RibInterface, Route, RouteKind, RouteSource, reserved_range};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::NextHopTable;
use fib::{
    Address, Algorithm, GracePeriod, Lookup, NextHopId, NoReaders, Prefix, SMALL_ROUTES, Table,
    synthetic::Random,
};
use ipnet::IpNet;
use wire::MacAddr;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn grace() -> Box<dyn GracePeriod> {
    Box::new(NoReaders)
}

fn port(index: usize) -> InterfaceId {
    InterfaceId::new(64 + index as u16).unwrap_or(InterfaceId::FIRST)
}

fn interface(index: usize, vrf: VrfId) -> RibInterface {
    RibInterface {
        vrf,
        id: port(index),
        name: format!("port{index}"),
        mac: MacAddr([2, 0, 0, 0, (index >> 8) as u8, index as u8]),
        mtu: 1500,
        addresses: vec![IpNet::new_assert(Ipv4Addr::new(10, 0, 0, 1).into(), 24)],
        is_loopback: false,
    }
}

/// The destinations of a VRF, or of all of them if they are in one.
fn prefixes(shape: &str, count: usize) -> Vec<IpNet> {
    let (v4, v6) = (count - count / 4, count / 4);
    let all: Vec<IpNet> = match shape {
        "internet" => {
            let v4 =
                fib::synthetic::ipv4(v4 + v4 / 8, 1).into_iter().map(|(p, _)| IpNet::V4(p.into()));
            let v6 =
                fib::synthetic::ipv6(v6 + v6 / 8, 1).into_iter().map(|(p, _)| IpNet::V6(p.into()));
            let free = |net: &IpNet| reserved_range(net).is_none();
            let v4 = v4.filter(free).take(count - count / 4);
            v4.chain(v6.filter(free).take(count / 4)).collect()
        }
        _ => {
            let v4 = (0..v4 as u32).map(|n| (Ipv4Addr::from(0x1000_0000 + (n << 8)).into(), 24));
            let v6 = (0..v6 as u128)
                .map(|n| (Ipv6Addr::from((0x2001_0db8 << 96) + (n << 64)).into(), 64));
            v4.chain(v6)
                .map(|(address, len): (IpAddr, u8)| IpNet::new_assert(address, len))
                .collect()
        }
    };
    all
}

fn load(rib: &mut Rib, vrf: VrfId, index: usize, prefixes: &[IpNet]) -> Outcome<()> {
    let paths = vec![Path::over(port(index), Ipv4Addr::new(10, 0, 0, 2).into())];
    let route = |&prefix: &IpNet| Route {
        vrf,
        prefix,
        source: RouteSource::Kernel,
        kind: RouteKind::Unicast(paths.clone()),
        metric: 20,
    };
    rib.batch(|rib| prefixes.iter().try_for_each(|prefix| rib.add(route(prefix))))?;
    Ok(())
}

fn rib(interfaces: Vec<RibInterface>) -> Outcome<Rib> {
    let fib4 = fib::new_ipv4(Algorithm::default(), grace())?;
    let fib6 = fib::new_ipv6(Algorithm::default(), grace())?;
    Ok(Rib::new(interfaces, fib4, fib6, Arc::new(NextHopTable::new()), grace())?)
}

/// Prints the memory of a process before and with the VRFs, and with their routes.
fn many(shape: &str, vrfs: usize, routes: usize) -> Outcome<()> {
    let mut rib = rib(Vec::new())?;
    let prefixes = prefixes(shape, routes);
    let before = resident();
    for index in 0..vrfs {
        let fib4 = fib::new_small_ipv4(Algorithm::default(), SMALL_ROUTES, grace)?;
        let fib6 = fib::new_small_ipv6(Algorithm::default(), SMALL_ROUTES, grace)?;
        let vrf = rib.add_vrf(fib4, fib6)?;
        rib.add_interface(interface(index, vrf))?;
    }
    let empty = resident();
    for (index, vrf) in rib.vrfs().skip(1).enumerate() {
        load(&mut rib, vrf, index, &prefixes)?;
    }
    println!("{before} {empty} {}", resident());
    Ok(())
}

/// The same with all routes in the default VRF.
fn one(shape: &str, routes: usize) -> Outcome<()> {
    let prefixes = prefixes(shape, routes);
    let mut rib = rib(vec![interface(0, VrfId::DEFAULT)])?;
    let before = resident();
    for some in prefixes.chunks(1000) {
        load(&mut rib, VrfId::DEFAULT, 0, some)?;
    }
    println!("{before} {before} {}", resident());
    Ok(())
}

/// Resident memory of the process with its page tables, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<usize>().ok()
    };
    ["VmRSS:", "VmPTE:"].into_iter().filter_map(kib).sum::<usize>() * 1024
}

/// Runs a part in a process of its own; returns the three numbers that it prints.
fn part(words: &[&str]) -> Outcome<[f64; 3]> {
    let done = Command::new(std::env::current_exe()?).args(words).output()?;
    let said = String::from_utf8(done.stdout)?;
    let numbers: Vec<f64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    numbers.try_into().map_err(|_| said.into())
}

fn memory(shape: &str, vrfs: usize, routes: usize) -> Outcome<()> {
    let [before, empty, full] = part(&["many", shape, &vrfs.to_string(), &routes.to_string()])?;
    let [alone, _, with] = part(&["one", shape, &(vrfs * routes).to_string()])?;
    let each = |bytes: f64| bytes / vrfs as f64 / 1024.0;
    println!(
        "{shape:<9} a VRF: empty {:>6.1} KiB, with its routes {:>6.1} KiB; as many routes in the default VRF {:>6.1} KiB; \
         beside its routes {:>6.1} KiB",
        each(empty - before),
        each(full - before),
        each(with - alone),
        each(full - before - (with - alone)),
    );
    Ok(())
}

/// A table and the destinations looked up in it.
struct Contender<A: Address> {
    name: &'static str,
    reader: Arc<dyn Lookup<A>>,
    best: f64,
}

fn contender<A: Address>(
    name: &'static str,
    mut table: Box<dyn Table<A>>,
    routes: &[(Prefix<A>, NextHopId)],
) -> Outcome<Contender<A>> {
    table.load(&mut routes.iter().copied())?;
    Ok(Contender { name, reader: table.reader(), best: f64::MAX })
}

fn race<A: Address>(
    family: &str,
    routes: &[(Prefix<A>, NextHopId)],
    mut contenders: [Contender<A>; 2],
) {
    let mut random = Random::new(5);
    let mut batches = vec![[A::Bits::default(); 64]; 1 << 10];
    batches.as_flattened_mut().iter_mut().for_each(|to| *to = random.pick(routes).0.bits());
    let mut out = [0; 64];
    for _ in 0..15 {
        for contender in &mut contenders {
            let start = Instant::now();
            for addresses in &batches {
                contender.reader.prefetch_batch(addresses);
                contender.reader.lookup_prefetched(addresses, &mut out);
                std::hint::black_box(&mut out);
            }
            let each = start.elapsed().as_secs_f64() * 1e9 / (batches.len() * 64) as f64;
            contender.best = contender.best.min(each);
        }
    }
    for Contender { name, best, .. } in &contenders {
        println!("{family} {name:<24} {best:>6.2} ns a lookup");
    }
}

fn speed(routes: usize) -> Outcome<()> {
    let default = Algorithm::default();
    for (count, names) in
        [(routes, ["small", "large"]), (100_000, ["grown large", "large from the beginning"])]
    {
        println!("{count} routes:");
        let v4 = fib::synthetic::ipv4(count, 100);
        let small = contender(names[0], fib::new_small_ipv4(default, SMALL_ROUTES, grace)?, &v4)?;
        race("IPv4", &v4, [small, contender(names[1], fib::new_ipv4(default, grace())?, &v4)?]);
        let v6 = fib::synthetic::ipv6(count, 100);
        let small = contender(names[0], fib::new_small_ipv6(default, SMALL_ROUTES, grace)?, &v6)?;
        race("IPv6", &v6, [small, contender(names[1], fib::new_ipv6(default, grace())?, &v6)?]);
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["many", shape, vrfs, routes] => many(shape, vrfs.parse()?, routes.parse()?),
        ["one", shape, routes] => one(shape, routes.parse()?),
        [..] => {
            let number = |at: usize| words.get(at).map_or(Ok(1000), |word| word.parse());
            let (vrfs, routes) = (number(0)?, number(1)?);
            ["site", "internet"].into_iter().try_for_each(|shape| memory(shape, vrfs, routes))?;
            speed(routes)
        }
    }
}
