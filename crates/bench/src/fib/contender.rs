//! The interface of measured structures, and our structures behind it.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use dataplane::grace::Grace;
use dpdk::qsbr::{self, Qsbr};
use fib::{Algorithm, Change, Lookup, NO_ROUTE, NextHopId, Table};

use super::updates::ChangeList;
use crate::workload::pattern::Addresses;
use crate::workload::routes::{Family, Routes};

/// Number of addresses of a batch.
pub const BATCH: usize = 32;

/// Number of addresses per call for a structure without batches: so many that the call itself costs
/// nothing.
const ALONE: usize = 4096;

/// A lookup method of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// The structure's name, with a suffix that distinguishes the method: `rte_fib-2B-avx512`.
    pub name: String,
    /// The method in words.
    pub how: String,
}

/// A structure to be measured, with the routes in it.
pub trait Contender<A: Family> {
    /// Returns the structure's name.
    fn name(&self) -> &'static str;

    /// Returns true if a wrong answer ends the measurement: ours must be right.
    fn is_ours(&self) -> bool;

    /// Discards the present table and builds one of these routes.
    fn build(&mut self, routes: &Routes<A>) -> Result<()>;

    /// Selects the fastest implementations for these addresses, if there is a choice. Leaves out
    /// those that this machine does not support, and returns notes about them.
    fn tune(&mut self, sample: &Addresses<A>) -> Vec<String> {
        let _ = sample;
        Vec::new()
    }

    /// Returns the lookup methods, at least one.
    fn methods(&self) -> Vec<Method>;

    /// Selects the method of the following lookups.
    fn select(&mut self, method: usize) -> Result<()>;

    /// Looks up a part of the addresses in batches and discards the answers.
    fn lookup(&mut self, addresses: &Addresses<A>, range: Range<usize>);

    /// Looks up all addresses.
    fn answers(&mut self, addresses: &Addresses<A>) -> Vec<NextHopId>;

    /// Rebuilds the table if changes need more room than it was built with.
    fn make_room(&mut self, routes: &Routes<A>, plan: &ChangeList<A>) -> Result<()> {
        let _ = (routes, plan);
        Ok(())
    }

    /// Applies the change of one route.
    fn update(&mut self, change: &Change<A>) -> Result<()>;

    /// Returns a reader for another thread while this one updates; none if the structure does not
    /// allow that.
    fn reader(&self) -> Result<Option<Box<dyn Reader<A>>>>;

    /// Returns the bytes that lookups read.
    fn lookup_bytes(&self) -> usize;

    /// Returns the bytes that only the writer uses.
    fn writer_bytes(&self) -> usize;
}

/// A reader of a table that another thread changes.
pub trait Reader<A: Family>: Send {
    /// Looks up one batch, and passes a quiescent state.
    fn lookup(&mut self, addresses: &Addresses<A>, range: Range<usize>);
}

/// One of the structures of the `fib` crate.
pub struct House<A: Family> {
    algorithm: Algorithm,
    readers: Arc<Qsbr>,
    built: Option<Built<A>>,
    /// Number of addresses per call.
    batch: usize,
    answers: Vec<NextHopId>,
}

struct Built<A: Family> {
    table: Box<dyn Table<A>>,
    lookup: Arc<dyn Lookup<A>>,
}

impl<A: Family> House<A> {
    /// Creates the structure without routes; none if it does not support this family.
    pub fn new(algorithm: Algorithm, readers: &Arc<Qsbr>) -> Option<Self> {
        A::table(algorithm, Box::new(fib::NoReaders)).ok()?;
        let answers = vec![NO_ROUTE; ALONE];
        Some(Self { algorithm, readers: readers.clone(), built: None, batch: BATCH, answers })
    }

    fn built(&self) -> &Built<A> {
        self.built.as_ref().expect("built before it is used")
    }
}

impl<A: Family> Contender<A> for House<A> {
    fn name(&self) -> &'static str {
        self.algorithm.name()
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn build(&mut self, routes: &Routes<A>) -> Result<()> {
        self.built = None;
        let mut table = A::table(self.algorithm, Box::new(Grace(self.readers.clone())))?;
        table.load(&mut routes.iter().copied())?;
        let lookup = table.reader();
        self.built = Some(Built { table, lookup });
        Ok(())
    }

    fn methods(&self) -> Vec<Method> {
        let method = |name: String, how: &str| Method { name, how: how.to_owned() };
        let batches = "batches of 32";
        match self.algorithm {
            // As measured by its authors, and as forwarders use it.
            Algorithm::Poptrie => vec![
                method(self.name().into(), "one at a time, inlined"),
                method(format!("{}-batch", self.name()), batches),
            ],
            _ => vec![method(self.name().into(), batches)],
        }
    }

    fn select(&mut self, method: usize) -> Result<()> {
        let alone = self.algorithm == Algorithm::Poptrie && method == 0;
        self.batch = if alone { ALONE } else { BATCH };
        Ok(())
    }

    fn lookup(&mut self, addresses: &Addresses<A>, range: Range<usize>) {
        let lookup = Arc::clone(&self.built().lookup);
        for batch in addresses.bits[range].chunks(self.batch) {
            lookup.lookup_batch(batch, &mut self.answers);
        }
    }

    fn answers(&mut self, addresses: &Addresses<A>) -> Vec<NextHopId> {
        let mut all = vec![NO_ROUTE; addresses.len()];
        let lookup = &self.built().lookup;
        for (batch, out) in addresses.bits.chunks(self.batch).zip(all.chunks_mut(self.batch)) {
            lookup.lookup_batch(batch, out);
        }
        all
    }

    fn update(&mut self, change: &Change<A>) -> Result<()> {
        let table = &mut self.built.as_mut().expect("built before it is updated").table;
        match *change {
            Change::Insert { prefix, next_hop } => {
                table.insert(prefix, next_hop)?;
            }
            Change::Remove { prefix } => {
                table.remove(prefix);
            }
        }
        Ok(())
    }

    fn reader(&self) -> Result<Option<Box<dyn Reader<A>>>> {
        let mut quiescent = self.readers.register()?;
        quiescent.online();
        let lookup = Arc::clone(&self.built().lookup);
        Ok(Some(Box::new(HouseReader { lookup, quiescent, answers: [NO_ROUTE; BATCH] })))
    }

    fn lookup_bytes(&self) -> usize {
        self.built().table.memory_bytes()
    }

    fn writer_bytes(&self) -> usize {
        self.built().table.writer_bytes()
    }
}

struct HouseReader<A: Family> {
    lookup: Arc<dyn Lookup<A>>,
    quiescent: qsbr::Reader,
    answers: [NextHopId; BATCH],
}

impl<A: Family> Reader<A> for HouseReader<A> {
    fn lookup(&mut self, addresses: &Addresses<A>, range: Range<usize>) {
        self.lookup.lookup_batch(&addresses.bits[range], &mut self.answers);
        self.quiescent.quiescent();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::workload::pattern::{Pattern, addresses};

    #[test]
    fn every_way_of_our_structures_gives_every_answer() {
        let readers = Qsbr::new(1);
        let routes = fib::synthetic::ipv4(3000, 70);
        let all = addresses(Pattern::InTable, &routes, 10_001);
        let mut expected = None;
        for algorithm in Algorithm::ALL {
            let mut house = House::<Ipv4Addr>::new(algorithm, &readers).unwrap();
            house.build(&routes).unwrap();
            for method in 0..house.methods().len() {
                house.select(method).unwrap();
                let answers = house.answers(&all);
                assert!(answers.iter().all(|&next_hop| next_hop != NO_ROUTE));
                assert_eq!(&answers, expected.get_or_insert(answers.clone()), "{algorithm}");
            }
        }
    }

    #[test]
    fn structures_for_one_family_are_left_out_of_the_other() {
        let readers = Qsbr::new(1);
        let known = |algorithm| House::<Ipv6Addr>::new(algorithm, &readers).is_some();
        assert_eq!(Algorithm::ALL.map(known), [true, true, false, true]);
    }

    #[test]
    fn a_reader_sees_changes_and_lets_grace_periods_pass() {
        let readers = Qsbr::new(1);
        let routes = vec![("11.0.0.0/8".parse().unwrap(), 5)];
        let mut house = House::<Ipv4Addr>::new(Algorithm::Runmap, &readers).unwrap();
        house.build(&routes).unwrap();
        let all = Addresses::new(vec![0x0b00_0001; BATCH]);
        let mut reader = house.reader().unwrap().unwrap();
        let token = readers.start();
        assert!(!readers.passed(token), "it is online");
        house.update(&Change::Insert { prefix: routes[0].0, next_hop: 6 }).unwrap();
        reader.lookup(&all, 0..BATCH);
        assert!(readers.passed(token));
        assert_eq!(house.answers(&all), [6; BATCH]);
        house.update(&Change::Remove { prefix: routes[0].0 }).unwrap();
        assert_eq!(house.answers(&all), [NO_ROUTE; BATCH]);
    }
}
