//! Speed and size of the RIB: loads a table, takes a link down under it, removes it.
//!
//! ```text
//! cargo run --release -p control --example rib_scale -- [ROUTES]
//! ```
//!
//! The routes are a made-up IPv4 table (1,000,000 unless given). Measured are
//!
//! - `load`: all routes by [`Rib::load`], in the order of their prefixes and in a random one, over
//!   single gateways and over groups of four ports; FIB included;
//! - `add`: one by one, as updates come;
//! - `link down`, `link up`: the call after which no forwarder takes the dead port, for a group of
//!   four ports with all routes behind it, for 10,000 groups, and for a recursive gateway; and the
//!   sweep that follows;
//! - `resync`: all routes reported once more, unchanged;
//! - `remove`: all routes by [`Rib::end_resync`], and one by one;
//! - memory gained by the process, per route.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::rib::{
    GroupKey, GroupSpec, Path, Rib, RibInterface, Route, RouteKind, RouteSource, reserved_range,
};
use dataplane::interface::{InterfaceId, VrfId};
use dataplane::next_hop::{NextHop, NextHopTable};
use fib::{Lookup, NoReaders};
use ipnet::IpNet;
use wire::MacAddr;

const PORTS: u16 = 4;

fn port(index: u16) -> InterfaceId {
    InterfaceId::new(index).unwrap_or(InterfaceId::FIRST)
}

fn gateway(index: u16, host: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0002 + u32::from(index) * 0x1_0000 + host).into()
}

/// The RIB, and the tables of forwarders.
struct Bench {
    rib: Rib,
    reader: Arc<dyn Lookup<Ipv4Addr>>,
    table: Arc<NextHopTable>,
}

impl Bench {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let fib4 = fib::new_ipv4(fib::Algorithm::default(), Box::new(NoReaders))?;
        let fib6 = fib::new_ipv6(fib::Algorithm::default(), Box::new(NoReaders))?;
        let (reader, table) = (fib4.reader(), Arc::new(NextHopTable::new()));
        let ports = (0..PORTS).map(|index| RibInterface {
            vrf: VrfId::DEFAULT,
            id: port(index),
            name: format!("port{index}"),
            mac: MacAddr([2, 0, 0, 0, 0, index as u8]),
            mtu: 1500,
            addresses: vec![IpNet::new_assert(gateway(index, 0), 16)],
            is_loopback: false,
        });
        let rib = Rib::new(ports.collect(), fib4, fib6, table.clone(), Box::new(NoReaders))?;
        Ok(Self { rib, reader, table })
    }

    /// Returns true if a forwarder sends any flow to this address by the port.
    fn leaves_by(&self, address: Ipv4Addr, port: InterfaceId) -> bool {
        let word = self.table.get(self.reader.lookup(address));
        (0..64u32).any(|step| {
            let word = match word.is_group() {
                true => self.table.get(self.table.select(word, step << 26)),
                false => word,
            };
            matches!(NextHop::from(word),
                NextHop::Forward { interface: by, .. } | NextHop::Unresolved { interface: by } if by == port)
        })
    }

    fn sweep(&mut self) -> (Duration, Duration) {
        let (start, mut longest) = (Instant::now(), Duration::ZERO);
        while self.rib.is_busy() {
            let tick = Instant::now();
            self.rib.tick();
            longest = longest.max(tick.elapsed());
        }
        (start.elapsed(), longest)
    }
}

fn prefixes(count: usize) -> Vec<IpNet> {
    let routes = fib::synthetic::ipv4(count, 1).into_iter();
    let nets = routes.map(|(prefix, _)| IpNet::V4(prefix.into()));
    let mut nets: Vec<IpNet> = nets.filter(|net| reserved_range(net).is_none()).collect();
    nets.sort_unstable();
    nets
}

/// The same in a pseudo-random order.
fn shuffled(prefixes: &[IpNet]) -> Vec<IpNet> {
    let mut shuffled = prefixes.to_vec();
    let mut state = 1u64;
    for at in (1..shuffled.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        shuffled.swap(at, (state >> 33) as usize % (at + 1));
    }
    shuffled
}

fn over(paths: Vec<Path>) -> impl Fn(IpNet) -> Route {
    move |prefix| Route {
        vrf: VrfId::DEFAULT,
        prefix,
        source: RouteSource::Kernel,
        kind: RouteKind::Unicast(paths.clone()),
        metric: 20,
    }
}

fn ports_over(host: u32) -> Vec<Path> {
    (0..PORTS).map(|index| Path::over(port(index), gateway(index, host))).collect()
}

fn timed<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let (start, cpu) = (Instant::now(), cpu_time());
    let result = work();
    let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{name:<52} {:>10.3} ms {:>10.3} ms on the processor", ms(wall), ms(cpu));
    result
}

/// Processor time of this thread; the same on a busy machine. Accurate to about a tick of the
/// scheduler.
fn cpu_time() -> Duration {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = status.split_whitespace().next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// Resident memory of the process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    number.unwrap_or(0) * 1024
}

fn remove_all(bench: &mut Bench, name: &str) {
    timed(name, || {
        bench.rib.begin_resync(RouteSource::Kernel);
        bench.rib.end_resync(RouteSource::Kernel)
    });
    bench.rib.tick();
}

/// Takes the first port down and up again; all routes are correct in between.
fn flap(bench: &mut Bench, what: &str, probes: &[Ipv4Addr]) {
    let used = probes.iter().any(|&address| bench.leaves_by(address, port(0)));
    assert!(used, "the port is in use");
    timed(&format!("{what}: link down"), || bench.rib.set_link(port(0), false));
    assert!(probes.iter().all(|&address| !bench.leaves_by(address, port(0))));
    let (whole, longest) = bench.sweep();
    println!("{:<52} {whole:>10.3?}, longest tick {longest:.3?}", format!("{what}: sweep"));
    timed(&format!("{what}: link up"), || bench.rib.set_link(port(0), true));
    bench.sweep();
}

fn probes(prefixes: &[IpNet]) -> Vec<Ipv4Addr> {
    let every = prefixes.iter().step_by(97);
    let address = |prefix: &IpNet| match prefix.addr() {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    };
    every.filter_map(address).collect()
}

fn loads(bench: &mut Bench, sorted: &[IpNet], random: &[IpNet]) {
    let before = resident();
    let single = over(vec![Path::over(port(0), gateway(0, 1))]);
    timed("load, sorted, one gateway", || bench.rib.load(sorted.iter().map(|&p| single(p))));
    let gained = resident().saturating_sub(before);
    println!("{:<52} {:>10} bytes", "memory per route", gained / sorted.len());
    timed("resync, nothing changed", || {
        bench.rib.begin_resync(RouteSource::Kernel);
        bench.rib.batch(|rib| sorted.iter().filter(|&&p| rib.add(single(p)).is_err()).count());
        bench.rib.end_resync(RouteSource::Kernel)
    });
    remove_all(bench, "remove, by resync");
    timed("load, random order, one gateway", || bench.rib.load(random.iter().map(|&p| single(p))));
    remove_all(bench, "remove, by resync");
    timed("add, one by one, random order", || {
        random.iter().filter(|&&p| bench.rib.add(single(p)).is_err()).count()
    });
    timed("remove, one by one, random order", || {
        random
            .iter()
            .map(|&p| bench.rib.remove(VrfId::DEFAULT, p, RouteSource::Kernel))
            .sum::<usize>()
    });
    timed("add, batches of 256, random order", || {
        let add = |rib: &mut Rib, p| rib.add(single(p)).is_err();
        random.chunks(256).for_each(|some| {
            bench.rib.batch(|rib| some.iter().filter(|&&p| add(rib, p)).count());
        });
    });
    remove_all(bench, "remove, by resync");
}

fn flaps(bench: &mut Bench, sorted: &[IpNet]) {
    let probes = probes(sorted);
    let group = over(ports_over(1));
    timed("load, sorted, four paths", || bench.rib.load(sorted.iter().map(|&p| group(p))));
    flap(bench, "one group", &probes);
    remove_all(bench, "remove, by resync");

    let many: Vec<Vec<Path>> = (1..=8000).map(ports_over).collect();
    let route = |(at, &prefix): (usize, &IpNet)| Route {
        vrf: VrfId::DEFAULT,
        prefix,
        source: RouteSource::Kernel,
        kind: RouteKind::Unicast(many[at % many.len()][..2].to_vec()),
        metric: 20,
    };
    timed("load, sorted, 8,000 groups", || bench.rib.load(sorted.iter().enumerate().map(route)));
    flap(bench, "8,000 groups", &probes);
    remove_all(bench, "remove, by resync");

    let backbone: IpNet = IpNet::new_assert(Ipv4Addr::new(100, 64, 0, 0).into(), 24);
    let static_route = Route { source: RouteSource::Static, ..over(ports_over(1))(backbone) };
    let added = bench.rib.add(static_route);
    assert_eq!(added, Ok(()));
    let recursive =
        over(vec![Path::recursive(VrfId::DEFAULT, Ipv4Addr::new(100, 64, 0, 1).into())]);
    timed("load, sorted, recursive", || bench.rib.load(sorted.iter().map(|&p| recursive(p))));
    flap(bench, "recursive", &probes);
    remove_all(bench, "remove, by resync");

    let key = GroupKey::new(RouteSource::Kernel, 1);
    let spec = GroupSpec { paths: vec![Path::over(port(0), gateway(0, 1))], ..Default::default() };
    let set = bench.rib.set_group(key, spec);
    assert_eq!(set, Ok(()));
    let route =
        |&prefix: &IpNet| Route { kind: RouteKind::NextHopGroup(key), ..over(Vec::new())(prefix) };
    timed("load, sorted, one named group", || bench.rib.load(sorted.iter().map(route)));
    flap(bench, "named group without another path", &probes);
    timed("named group removed", || bench.rib.remove_group(key));
    assert!(probes.iter().all(|&address| !bench.leaves_by(address, port(0))));
    let (whole, longest) = bench.sweep();
    println!("{:<52} {whole:>10.3?}, longest tick {longest:.3?}", "named group removed: sweep");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let sorted = prefixes(count);
    println!("{} routes", sorted.len());
    let mut bench = Bench::new()?;
    loads(&mut bench, &sorted, &shuffled(&sorted));
    flaps(&mut bench, &sorted);
    Ok(())
}
