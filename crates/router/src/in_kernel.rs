//! The tables of XDP programs that forward themselves: the RIB writes them as it writes those of forwarders.
//!
//! ```text
//!   RIB --+-- FIBs of the default VRF, made in the programs' memory
//!         +-- next hops, with a copy there
//!         +-- numbers and pieces are reused when forwarders, slow path and programs have let go of them
//! ```
//!
//! Programs report nothing. The kernel can be asked to wait for those that run, which takes milliseconds; a thread does
//! that, once for all that was retired meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use control::config::Config;
use dataplane::grace::Grace;
use dataplane::next_hop::NextHopCopy;
use dpdk::KernelTables;
use dpdk::qsbr::Qsbr;
use fib::{GracePeriod, Lent4, Lent6};

use super::owner::NewFibs;

/// The tables, and the end of programs that read them.
#[derive(Clone)]
pub struct InKernel {
    tables: Arc<KernelTables>,
    ends: Ends,
}

/// Waits for the end of programs.
#[derive(Clone)]
struct Ends {
    /// The number of the last grace period that was begun, and of the last one that is over.
    begun: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
    wake: Sender<()>,
}

impl InKernel {
    /// Makes the tables if a configuration has the interfaces' programs forward.
    ///
    /// # Errors
    /// The kernel makes none, or there is no thread.
    pub fn of(config: &Config, seed: u64) -> io::Result<Option<Self>> {
        if !config.acceleration.in_kernel {
            return Ok(None);
        }
        let tables = KernelTables::shared().map_err(io::Error::from)?;
        tables.set_seed(seed);
        let ends = Ends::start(tables.clone())?;
        Ok(Some(Self { tables, ends }))
    }

    /// Returns the memory for a copy of the next hops.
    pub fn next_hops(&self) -> NextHopCopy {
        NextHopCopy { hops: self.tables.next_hops, members: self.tables.members }
    }

    /// Makes the FIBs of the default VRF.
    ///
    /// # Errors
    /// The memory is too small.
    pub fn fibs(&self, qsbr: &Arc<Qsbr>) -> Result<NewFibs, fib::Error> {
        let tables = &self.tables;
        let four = Lent4 { first: tables.first4, long: tables.long4 };
        let used = (tables.nodes_shared(), tables.leaves_shared());
        let KernelTables { direct6: direct, nodes6: nodes, leaves6: leaves, .. } = **tables;
        let six = Lent6 { direct, nodes, leaves, used };
        Ok((fib::new_ipv4_in(four, self.grace(qsbr))?, fib::new_ipv6_in(six, self.grace(qsbr))?))
    }

    /// Returns grace periods of forwarders, slow path and programs.
    pub fn grace(&self, qsbr: &Arc<Qsbr>) -> Box<dyn GracePeriod> {
        Box::new(All::new(Grace(qsbr.clone()), self.ends.clone()))
    }
}

impl Ends {
    fn start(tables: Arc<KernelTables>) -> io::Result<Self> {
        let (wake, woken) = mpsc::channel();
        let ends = Self { begun: Arc::default(), over: Arc::default(), wake };
        let (begun, over) = (ends.begun.clone(), ends.over.clone());
        let body = move || wait(&tables, &begun, &over, &woken);
        thread::Builder::new().name("bpf-grace".to_owned()).spawn(body)?;
        Ok(ends)
    }
}

impl GracePeriod for Ends {
    fn start(&mut self) -> u64 {
        let token = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        // The thread lives as long as this can be called.
        let _ = self.wake.send(());
        token
    }

    fn passed(&mut self, token: u64) -> bool {
        self.over.load(Ordering::Acquire) >= token
    }
}

/// Waits for programs as long as anybody may ask.
fn wait(tables: &KernelTables, begun: &AtomicU64, over: &AtomicU64, woken: &Receiver<()>) {
    while woken.recv().is_ok() {
        while woken.try_recv().is_ok() {}
        let latest = begun.load(Ordering::Acquire);
        match tables.wait_for_programs() {
            Ok(()) => over.store(latest, Ordering::Release),
            Err(errno) => tracing::error!(
                "accelerate: waiting for XDP programs: {errno}; memory of replaced routes is not reused"
            ),
        }
    }
}

/// Grace periods of two kinds of readers together.
struct All<A, B> {
    one: A,
    other: B,
    last: u64,
    /// The tokens of both by those given out, until they have passed.
    open: BTreeMap<u64, (u64, u64)>,
}

impl<A, B> All<A, B> {
    fn new(one: A, other: B) -> Self {
        Self { one, other, last: 0, open: BTreeMap::new() }
    }
}

impl<A: GracePeriod, B: GracePeriod> GracePeriod for All<A, B> {
    fn start(&mut self) -> u64 {
        self.last += 1;
        self.open.insert(self.last, (self.one.start(), self.other.start()));
        self.last
    }

    fn passed(&mut self, token: u64) -> bool {
        let Some(&(one, other)) = self.open.get(&token) else { return true };
        let passed = self.one.passed(one) && self.other.passed(other);
        if passed {
            self.open.remove(&token);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use fib::Epochs;

    use super::*;

    #[test]
    fn both_kinds_of_readers_are_waited_for() {
        let (one, other) = (Epochs::default(), Epochs::default());
        let (first, second) = (one.register(), other.register());
        let mut all = All::new(one, other);
        let token = all.start();
        assert!(!all.passed(token));
        first.quiescent();
        assert!(!all.passed(token), "the second one may still read");
        let later = all.start();
        second.quiescent();
        assert!(all.passed(token) && all.passed(token), "asked twice");
        assert!(!all.passed(later), "the first one has not been seen since");
        first.quiescent();
        assert!(all.passed(later) && all.open.is_empty());
    }
}
