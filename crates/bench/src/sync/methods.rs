//! Methods of publishing a route to forwarders that look up at the same time.
//!
//! Each has a side that every forwarder calls around its rounds ([`ReadSide`]), and one that the
//! writer calls around a change ([`WriteSide`]). A change is *synchronised* when no forwarder can
//! see the earlier state of the table.
//!
//! | method | a forwarder, each round | the writer |
//! |---|---|---|
//! | `global-mutex` | locks the one mutex | the same |
//! | `thread-mutex` | locks its own mutex | locks all of them |
//! | `rwlock` | locks for reading | locks for writing |
//! | `rcu-mb` | reports that it reads, after a memory barrier; reports that it does not | waits until each has been out |
//! | `rcu-membarrier` | the same, with a barrier for the compiler only | makes the kernel put the barrier into all threads (`membarrier`), then waits |
//! | `rcu-qsbr` | reports that it holds nothing | waits until each has reported it |
//! | `double-buffer` | reports which of two tables it uses | changes the other, switches, waits, changes the first |
//!
//! `rcu-membarrier` stands for the flavour of user-space RCU that interrupts its readers by signals: since
//! Linux 4.14 the library itself uses `membarrier` for that. `double-buffer` is MoonRoute's method. Routers
//! run `rcu-qsbr`.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use anyhow::Result;
use dataplane::grace::Grace;
use dpdk::ProcessBarrier;
use dpdk::qsbr::{Qsbr, Reader};
use fib::{Algorithm, GracePeriod, Lookup, NextHopId, NoReaders, Prefix, Table};

use crate::workload::routes::Routes;

/// A route to publish.
pub type Route = (Prefix<Ipv4Addr>, NextHopId);

/// A forwarder's side of a method, around a round.
pub trait ReadSide: Send {
    /// Runs a round, in which the table is looked up.
    fn read(&mut self, round: &mut dyn FnMut());

    /// Declares that the thread will not look up anything until the next round.
    fn pause(&mut self) {}
}

/// The writer's side of a method.
pub trait WriteSide: Send {
    /// Changes a route. Returns when no forwarder can see the old route.
    fn publish(&mut self, route: Route) -> Result<()>;
}

/// A method with its table.
pub struct Method {
    /// Its name in the results.
    pub name: &'static str,
    /// The table's reader for forwarders.
    pub lookup: Arc<dyn Lookup<Ipv4Addr>>,
    /// The side of each forwarder.
    pub readers: Vec<Box<dyn ReadSide>>,
    /// The side of the writer.
    pub writer: Box<dyn WriteSide>,
}

/// The names, in the order of the results.
pub const NAMES: [&str; 7] = [
    "global-mutex",
    "thread-mutex",
    "rwlock",
    "rcu-mb",
    "rcu-membarrier",
    "rcu-qsbr",
    "double-buffer",
];

/// Creates a method for this many forwarders, with these routes in its table.
pub fn make(name: &'static str, forwarders: usize, routes: &Routes<Ipv4Addr>) -> Result<Method> {
    match name {
        "global-mutex" => global_mutex(forwarders, routes),
        "thread-mutex" => thread_mutex(forwarders, routes),
        "rwlock" => rwlock(forwarders, routes),
        "rcu-mb" => rcu(name, forwarders, routes, None),
        "rcu-membarrier" => rcu(name, forwarders, routes, Some(ProcessBarrier::register()?)),
        "rcu-qsbr" => qsbr(forwarders, routes),
        "double-buffer" => double_buffer(forwarders, routes),
        _ => anyhow::bail!("--method {name}: not found; known: {}", NAMES.join(", ")),
    }
}

fn table(
    routes: &Routes<Ipv4Addr>,
    grace: Box<dyn GracePeriod>,
) -> Result<Box<dyn Table<Ipv4Addr>>> {
    let mut table = fib::new_ipv4(Algorithm::default(), grace)?;
    table.load(&mut routes.iter().copied())?;
    Ok(table)
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A forwarder behind a mutex.
struct BehindMutex(Arc<Mutex<()>>);

impl ReadSide for BehindMutex {
    fn read(&mut self, round: &mut dyn FnMut()) {
        let _guard = lock(&self.0);
        round();
    }
}

/// A writer that holds all forwarders' mutexes, locked in order.
struct BehindMutexes {
    table: Box<dyn Table<Ipv4Addr>>,
    mutexes: Vec<Arc<Mutex<()>>>,
}

impl WriteSide for BehindMutexes {
    fn publish(&mut self, (prefix, next_hop): Route) -> Result<()> {
        let _guards: Vec<_> = self.mutexes.iter().map(|mutex| lock(mutex)).collect();
        self.table.insert(prefix, next_hop)?;
        Ok(())
    }
}

fn by_mutexes(
    name: &'static str,
    of_readers: Vec<Arc<Mutex<()>>>,
    mutexes: Vec<Arc<Mutex<()>>>,
    routes: &Routes<Ipv4Addr>,
) -> Result<Method> {
    let table = table(routes, Box::new(NoReaders))?;
    let lookup = table.reader();
    let reader = |mutex| -> Box<dyn ReadSide> { Box::new(BehindMutex(mutex)) };
    let readers = of_readers.into_iter().map(reader).collect();
    Ok(Method { name, lookup, readers, writer: Box::new(BehindMutexes { table, mutexes }) })
}

fn global_mutex(forwarders: usize, routes: &Routes<Ipv4Addr>) -> Result<Method> {
    let mutex = Arc::<Mutex<()>>::default();
    by_mutexes("global-mutex", vec![mutex.clone(); forwarders], vec![mutex], routes)
}

fn thread_mutex(forwarders: usize, routes: &Routes<Ipv4Addr>) -> Result<Method> {
    let mutexes: Vec<_> = (0..forwarders).map(|_| Arc::default()).collect();
    by_mutexes("thread-mutex", mutexes.clone(), mutexes, routes)
}

/// Both sides of a reader-writer lock.
struct BehindRwLock<T>(Arc<RwLock<()>>, T);

impl ReadSide for BehindRwLock<()> {
    fn read(&mut self, round: &mut dyn FnMut()) {
        let _guard = self.0.read().unwrap_or_else(PoisonError::into_inner);
        round();
    }
}

impl WriteSide for BehindRwLock<Box<dyn Table<Ipv4Addr>>> {
    fn publish(&mut self, (prefix, next_hop): Route) -> Result<()> {
        let _guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        self.1.insert(prefix, next_hop)?;
        Ok(())
    }
}

fn rwlock(forwarders: usize, routes: &Routes<Ipv4Addr>) -> Result<Method> {
    let table = table(routes, Box::new(NoReaders))?;
    let (lookup, lock) = (table.reader(), Arc::new(RwLock::new(())));
    let reader = |_| -> Box<dyn ReadSide> { Box::new(BehindRwLock(lock.clone(), ())) };
    let readers = (0..forwarders).map(reader).collect();
    Ok(Method { name: "rwlock", lookup, readers, writer: Box::new(BehindRwLock(lock, table)) })
}

/// A number with a cache line of its own, and the adjacent line, which processors fetch together
/// with it.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

/// State shared by readers and the writer of `rcu-mb` and `rcu-membarrier`.
struct RcuState {
    /// Number of grace periods begun, plus 1.
    period: Padded,
    /// For each reader: the period in which it began to read, or 0 while it does not read.
    reading: Vec<Padded>,
    /// Orders readers' accesses for the writer; `None` if readers have barriers themselves.
    barrier: Option<ProcessBarrier>,
}

/// A reader that reports when it reads.
struct RcuReader {
    state: Arc<RcuState>,
    number: usize,
}

impl ReadSide for RcuReader {
    fn read(&mut self, round: &mut dyn FnMut()) {
        let state = &*self.state;
        let reading = &state.reading[self.number].0;
        reading.store(state.period.0.load(Ordering::Relaxed), Ordering::Relaxed);
        match state.barrier {
            Some(_) => compiler_fence(Ordering::SeqCst),
            None => fence(Ordering::SeqCst),
        }
        round();
        reading.store(0, Ordering::Release);
    }
}

/// The writer's view of the readers.
#[derive(Clone)]
struct RcuGrace(Arc<RcuState>);

impl GracePeriod for RcuGrace {
    fn start(&mut self) -> u64 {
        let period = self.0.period.0.fetch_add(1, Ordering::SeqCst) + 1;
        // After this, a reader that is not seen reading will see everything published before.
        match &self.0.barrier {
            Some(barrier) => barrier.issue(),
            None => fence(Ordering::SeqCst),
        }
        period
    }

    fn passed(&mut self, token: u64) -> bool {
        self.0.reading.iter().all(|reading| {
            let began = reading.0.load(Ordering::Acquire);
            began == 0 || began >= token
        })
    }
}

/// A writer that waits for a grace period.
struct RcuWriter<G> {
    table: Box<dyn Table<Ipv4Addr>>,
    grace: G,
}

impl<G: GracePeriod> WriteSide for RcuWriter<G> {
    fn publish(&mut self, (prefix, next_hop): Route) -> Result<()> {
        self.table.insert(prefix, next_hop)?;
        let token = self.grace.start();
        while !self.grace.passed(token) {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn rcu(
    name: &'static str,
    forwarders: usize,
    routes: &Routes<Ipv4Addr>,
    barrier: Option<ProcessBarrier>,
) -> Result<Method> {
    let state = Arc::new(RcuState {
        period: Padded(AtomicU64::new(1)),
        reading: (0..forwarders).map(|_| Padded::default()).collect(),
        barrier,
    });
    let grace = RcuGrace(state.clone());
    let table = table(routes, Box::new(grace.clone()))?;
    let lookup = table.reader();
    let reader =
        |number| -> Box<dyn ReadSide> { Box::new(RcuReader { state: state.clone(), number }) };
    let readers = (0..forwarders).map(reader).collect();
    Ok(Method { name, lookup, readers, writer: Box::new(RcuWriter { table, grace }) })
}

/// A reader that reports between rounds that it holds nothing.
struct QsbrReader {
    reader: Reader,
    online: bool,
}

impl ReadSide for QsbrReader {
    fn read(&mut self, round: &mut dyn FnMut()) {
        if !self.online {
            self.reader.online();
            self.online = true;
        }
        self.reader.quiescent();
        round();
    }

    fn pause(&mut self) {
        self.reader.offline();
        self.online = false;
    }
}

fn qsbr(forwarders: usize, routes: &Routes<Ipv4Addr>) -> Result<Method> {
    let group = Qsbr::new(forwarders);
    let table = table(routes, Box::new(Grace(group.clone())))?;
    let lookup = table.reader();
    let mut readers: Vec<Box<dyn ReadSide>> = Vec::new();
    for _ in 0..forwarders {
        readers.push(Box::new(QsbrReader { reader: group.register()?, online: false }));
    }
    let writer = Box::new(RcuWriter { table, grace: Grace(group) });
    Ok(Method { name: "rcu-qsbr", lookup, readers, writer })
}

/// Two tables, one of them in use.
struct Switch {
    tables: [Arc<dyn Lookup<Ipv4Addr>>; 2],
    active: AtomicUsize,
    /// Number of switches so far, and the number seen by each reader; `u64::MAX` for a paused one.
    switches: Padded,
    seen: Vec<Padded>,
}

impl Switch {
    fn active(&self) -> &dyn Lookup<Ipv4Addr> {
        &*self.tables[self.active.load(Ordering::Acquire) & 1]
    }
}

impl Lookup<Ipv4Addr> for Switch {
    fn lookup(&self, address: Ipv4Addr) -> NextHopId {
        self.active().lookup(address)
    }

    fn lookup_batch(&self, addresses: &[u32], out: &mut [NextHopId]) {
        self.active().lookup_batch(addresses, out);
    }
}

struct SwitchReader {
    switch: Arc<Switch>,
    number: usize,
}

impl ReadSide for SwitchReader {
    fn read(&mut self, round: &mut dyn FnMut()) {
        let seen = &self.switch.seen[self.number].0;
        let paused = seen.load(Ordering::Relaxed) == u64::MAX;
        seen.store(self.switch.switches.0.load(Ordering::Acquire), Ordering::Release);
        if paused {
            // The writer did not wait for this reader: it has to see the reader's return before the
            // lookup.
            fence(Ordering::SeqCst);
        }
        round();
    }

    fn pause(&mut self) {
        self.switch.seen[self.number].0.store(u64::MAX, Ordering::Release);
    }
}

struct SwitchWriter {
    switch: Arc<Switch>,
    tables: [Box<dyn Table<Ipv4Addr>>; 2],
}

impl WriteSide for SwitchWriter {
    fn publish(&mut self, (prefix, next_hop): Route) -> Result<()> {
        let switch = &*self.switch;
        let old = switch.active.load(Ordering::Relaxed) & 1;
        self.tables[1 - old].insert(prefix, next_hop)?;
        switch.active.store(1 - old, Ordering::Release);
        let now = switch.switches.0.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        while switch.seen.iter().any(|seen| seen.0.load(Ordering::Acquire) < now) {
            std::hint::spin_loop();
        }
        // The other table is not in use now; it is updated before its next turn.
        self.tables[old].insert(prefix, next_hop)?;
        Ok(())
    }
}

fn double_buffer(forwarders: usize, routes: &Routes<Ipv4Addr>) -> Result<Method> {
    let tables = [table(routes, Box::new(NoReaders))?, table(routes, Box::new(NoReaders))?];
    let switch = Arc::new(Switch {
        tables: [tables[0].reader(), tables[1].reader()],
        active: AtomicUsize::new(0),
        switches: Padded::default(),
        seen: (0..forwarders).map(|_| Padded(AtomicU64::new(u64::MAX))).collect(),
    });
    let reader =
        |number| -> Box<dyn ReadSide> { Box::new(SwitchReader { switch: switch.clone(), number }) };
    let readers = (0..forwarders).map(reader).collect();
    let writer = Box::new(SwitchWriter { switch: switch.clone(), tables });
    Ok(Method { name: "double-buffer", lookup: switch, readers, writer })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// The guarantee of "synchronised": a round that begins after `publish` has returned, and one
    /// that was running then and continues, see the new route. Readers report the next hop that
    /// they saw last in a round; the writer checks after each publication that none is still in a
    /// round with an older one.
    #[test]
    fn no_reader_sees_the_old_route_after_publication() {
        let prefix: Prefix<Ipv4Addr> = "11.0.0.0/8".parse().unwrap();
        for name in NAMES {
            let mut method = make(name, 2, &vec![(prefix, 1)]).unwrap();
            let (stop, newest) = (AtomicBool::new(false), AtomicU64::new(1));
            let rounds = [AtomicUsize::new(0), AtomicUsize::new(0)];
            std::thread::scope(|scope| {
                for (reader, rounds) in method.readers.iter_mut().zip(&rounds) {
                    let (lookup, stop, newest) = (&method.lookup, &stop, &newest);
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            reader.read(&mut || {
                                let published = newest.load(Ordering::SeqCst);
                                std::thread::yield_now();
                                let hop = lookup.lookup("11.1.1.1".parse().unwrap());
                                assert!(
                                    u64::from(hop) >= published,
                                    "{name}: {hop} after {published}"
                                );
                            });
                            rounds.fetch_add(1, Ordering::Relaxed);
                        }
                        reader.pause();
                    });
                }
                for hop in 2..200 {
                    method.writer.publish((prefix, hop)).unwrap();
                    newest.store(hop.into(), Ordering::SeqCst);
                    let before = rounds[0].load(Ordering::Relaxed);
                    if hop % 50 == 0 {
                        while rounds[0].load(Ordering::Relaxed) == before {
                            std::thread::yield_now();
                        }
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            assert!(rounds.iter().all(|rounds| rounds.load(Ordering::Relaxed) > 0), "{name}");
        }
    }

    /// Methods that wait for readers wait for one in a round, and for no other.
    #[test]
    fn publication_waits_for_a_round_that_has_begun() {
        let prefix: Prefix<Ipv4Addr> = "11.0.0.0/8".parse().unwrap();
        for name in NAMES {
            let mut method = make(name, 1, &vec![(prefix, 1)]).unwrap();
            // Without a reader in a round, it returns.
            method.writer.publish((prefix, 2)).unwrap();
            let (inside, published) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let (reader, writer) = (&mut method.readers[0], &mut method.writer);
                let (inside, published) = (&inside, &published);
                scope.spawn(move || {
                    reader.read(&mut || {
                        inside.store(true, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(30));
                        assert!(!published.load(Ordering::SeqCst), "{name} did not wait");
                    });
                    reader.pause();
                });
                while !inside.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                writer.publish((prefix, 3)).unwrap();
                published.store(true, Ordering::SeqCst);
            });
        }
    }

    #[test]
    fn unknown_methods_are_named() {
        let error = make("spinlock", 1, &Vec::new()).map(drop).unwrap_err().to_string();
        assert!(
            error.starts_with("--method spinlock: not found; known: global-mutex, "),
            "{error}"
        );
    }
}
