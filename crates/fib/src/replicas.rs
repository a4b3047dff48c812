//! Copies of one table, each in the memory of a NUMA node.
//!
//! A lookup in a large table is a chain of cache misses, and a miss in another node's memory takes half as
//! long again. Each node therefore has its own copy, and the writer makes each change in all of them.
//!
//! ```text
//!                +--> copy of node 0 <--- lookups of forwarders on node 0
//!   writer ------+
//!                +--> copy of node 1 <--- lookups of forwarders on node 1
//! ```
//!
//! A change takes effect at slightly different times in two copies, as it does for two lookups in one
//! table. Copies have the same structure and limits but reclaim memory separately, so one may refuse a
//! change that another has accepted: then all are reset to the state of the refusing one.

use std::sync::Arc;

use crate::{Address, Change, Error, Lookup, NextHopId, Prefix, Table};

/// Copies of a table, written as one. There is at least one.
pub struct Replicas<A: Address> {
    first: Box<dyn Table<A>>,
    others: Vec<Box<dyn Table<A>>>,
}

impl<A: Address> Replicas<A> {
    /// Creates the replicas with this table, which is empty, as their first copy.
    pub fn new(first: Box<dyn Table<A>>) -> Self {
        Self { first, others: Vec::new() }
    }

    /// Adds a copy. All copies are empty.
    pub fn push(&mut self, copy: Box<dyn Table<A>>) {
        debug_assert!(self.first.is_empty() && copy.is_empty());
        self.others.push(copy);
    }

    /// Makes a change in all copies, or in none if there is room to undo it: see [`Self::agree`].
    fn in_all(
        &mut self,
        prefixes: &mut dyn Iterator<Item = Prefix<A>>,
        mut change: impl FnMut(&mut dyn Table<A>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let made = self
            .all()
            .enumerate()
            .try_for_each(|(number, copy)| change(copy).map_err(|error| (number, error)));
        made.map_err(|(refused, error)| {
            prefixes.for_each(|prefix| self.agree(prefix, refused));
            error
        })
    }

    /// Gives a route in all copies the next hop that it has in one of them. A copy without room for that
    /// loses the route, and then all do: no copy may lead to a next hop that the caller has released.
    fn agree(&mut self, prefix: Prefix<A>, with: usize) {
        let wanted = self.copy(with).get(prefix);
        let put = |copy: &mut (dyn Table<A> + 'static)| match wanted {
            next_hop if copy.get(prefix) == next_hop => true,
            Some(next_hop) => copy.insert(prefix, next_hop).is_ok(),
            None => {
                copy.remove(prefix);
                true
            }
        };
        if !self.all().all(put) {
            self.remove(prefix);
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut (dyn Table<A> + 'static)> {
        std::iter::once(&mut self.first).chain(&mut self.others).map(|copy| &mut **copy)
    }

    fn copy(&self, number: usize) -> &dyn Table<A> {
        match number.checked_sub(1) {
            None => &*self.first,
            Some(other) => &*self.others[other],
        }
    }
}

impl<A: Address> Table<A> for Replicas<A> {
    /// Returns a reader of the first copy.
    fn reader(&self) -> Arc<dyn Lookup<A>> {
        self.first.reader()
    }

    fn readers(&self) -> Vec<Arc<dyn Lookup<A>>> {
        std::iter::once(&self.first).chain(&self.others).flat_map(|copy| copy.readers()).collect()
    }

    fn place(&mut self, node: u32) {
        self.first.place(node);
    }

    fn insert(
        &mut self,
        prefix: Prefix<A>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error> {
        let before = self.first.get(prefix);
        self.in_all(&mut std::iter::once(prefix), |copy| copy.insert(prefix, next_hop).map(drop))?;
        Ok(before)
    }

    fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        let before = self.first.remove(prefix);
        for copy in &mut self.others {
            copy.remove(prefix);
        }
        before
    }

    fn get(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.first.get(prefix)
    }

    fn len(&self) -> usize {
        self.first.len()
    }

    /// Returns the sum over all copies.
    fn memory_bytes(&self) -> usize {
        self.first.memory_bytes()
            + self.others.iter().map(|copy| copy.memory_bytes()).sum::<usize>()
    }

    /// Returns the sum over all copies.
    fn writer_bytes(&self) -> usize {
        self.first.writer_bytes()
            + self.others.iter().map(|copy| copy.writer_bytes()).sum::<usize>()
    }

    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), Error> {
        let mut prefixes = changes.iter().map(Change::prefix);
        self.in_all(&mut prefixes, |copy| copy.apply(changes))
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<A>, NextHopId)>,
    ) -> Result<(), Error> {
        if self.others.is_empty() {
            return self.first.load(routes);
        }
        let routes: Vec<_> = routes.collect();
        let mut prefixes = routes.iter().map(|&(prefix, _)| prefix);
        self.in_all(&mut prefixes, |copy| copy.load(&mut routes.iter().copied()))
    }

    fn collect(&mut self) -> usize {
        self.all().map(|copy| copy.collect()).sum()
    }

    fn name(&self) -> &'static str {
        self.first.name()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Algorithm, NO_ROUTE, NoReaders, new_ipv4};

    /// A table with room for this many routes and this many changes.
    struct Small {
        table: Box<dyn Table<Ipv4Addr>>,
        routes: usize,
        changes: usize,
    }

    impl Small {
        fn full(&self) -> Error {
            Error::Full { structure: "small", what: "routes", limit: self.routes }
        }
    }

    impl Table<Ipv4Addr> for Small {
        fn reader(&self) -> Arc<dyn Lookup<Ipv4Addr>> {
            self.table.reader()
        }

        fn insert(
            &mut self,
            prefix: Prefix<Ipv4Addr>,
            next_hop: NextHopId,
        ) -> Result<Option<NextHopId>, Error> {
            let new = self.table.get(prefix).is_none();
            if self.changes == 0 || new && self.len() == self.routes {
                return Err(self.full());
            }
            self.changes -= 1;
            self.table.insert(prefix, next_hop)
        }

        fn remove(&mut self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
            self.table.remove(prefix)
        }

        fn get(&self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
            self.table.get(prefix)
        }

        fn len(&self) -> usize {
            self.table.len()
        }

        fn memory_bytes(&self) -> usize {
            1
        }

        fn writer_bytes(&self) -> usize {
            10
        }

        fn apply(&mut self, changes: &[Change<Ipv4Addr>]) -> Result<(), Error> {
            changes.iter().try_for_each(|change| match *change {
                Change::Insert { prefix, next_hop } => self.insert(prefix, next_hop).map(drop),
                Change::Remove { prefix } => {
                    self.remove(prefix);
                    Ok(())
                }
            })
        }

        fn load(
            &mut self,
            routes: &mut dyn Iterator<Item = (Prefix<Ipv4Addr>, NextHopId)>,
        ) -> Result<(), Error> {
            for (prefix, next_hop) in routes {
                self.insert(prefix, next_hop)?;
            }
            Ok(())
        }

        fn collect(&mut self) -> usize {
            3
        }

        fn name(&self) -> &'static str {
            "small"
        }
    }

    /// Copies with room for these numbers of routes and changes each.
    fn replicas(rooms: &[(usize, usize)]) -> Replicas<Ipv4Addr> {
        let mut copies = rooms.iter().map(|&(routes, changes)| {
            let table = new_ipv4(Algorithm::Reference, Box::new(NoReaders)).unwrap();
            Box::new(Small { table, routes, changes })
        });
        let mut replicas = Replicas::new(copies.next().unwrap());
        copies.for_each(|copy| replicas.push(copy));
        replicas
    }

    fn prefix(number: u8) -> Prefix<Ipv4Addr> {
        format!("10.{number}.0.0/16").parse().unwrap()
    }

    /// Answers of each copy for the first address of the numbered prefixes.
    fn answers(replicas: &Replicas<Ipv4Addr>, numbers: &[u8]) -> Vec<Vec<NextHopId>> {
        let of = |reader: Arc<dyn Lookup<Ipv4Addr>>| {
            numbers.iter().map(|&number| reader.lookup(prefix(number).address())).collect()
        };
        replicas.readers().into_iter().map(of).collect()
    }

    #[test]
    fn all_copies_answer_alike() {
        let mut replicas = replicas(&[(9, 99), (9, 99), (9, 99)]);
        assert_eq!(replicas.insert(prefix(1), 7), Ok(None));
        assert_eq!(replicas.insert(prefix(1), 8), Ok(Some(7)));
        replicas.load(&mut [(prefix(2), 2), (prefix(3), 3)].into_iter()).unwrap();
        let changes = [
            Change::Insert { prefix: prefix(4), next_hop: 4 },
            Change::Remove { prefix: prefix(2) },
        ];
        replicas.apply(&changes).unwrap();
        assert_eq!(answers(&replicas, &[1, 2, 3, 4]), [[8, NO_ROUTE, 3, 4]; 3]);
        assert_eq!(replicas.remove(prefix(3)), Some(3));
        assert_eq!(answers(&replicas, &[1, 3]), [[8, NO_ROUTE]; 3]);
        assert_eq!((replicas.len(), replicas.get(prefix(4))), (2, Some(4)));
        assert_eq!((replicas.memory_bytes(), replicas.writer_bytes()), (3, 30));
        assert_eq!(replicas.collect(), 9);
    }

    #[test]
    fn what_one_copy_refuses_is_in_none() {
        let mut replicas = replicas(&[(9, 99), (2, 99), (9, 99)]);
        replicas.insert(prefix(1), 1).unwrap();
        let changes = [1, 2, 3].map(|n| Change::Insert { prefix: prefix(n), next_hop: 10 });
        assert!(replicas.apply(&changes).is_err());
        // The changes before the one that failed are in force.
        assert_eq!(answers(&replicas, &[1, 2, 3]), [[10, 10, NO_ROUTE]; 3]);
        assert!(replicas.insert(prefix(4), 4).is_err());
        assert_eq!(answers(&replicas, &[1, 2, 4]), [[10, 10, NO_ROUTE]; 3]);
        replicas.remove(prefix(2));
        let more = [5, 6].map(|n| (prefix(n), 5));
        assert!(replicas.load(&mut more.into_iter()).is_err());
        assert_eq!(answers(&replicas, &[5, 6]), [[5, NO_ROUTE]; 3]);
        assert_eq!(replicas.len(), 2);
    }

    #[test]
    fn a_route_for_which_there_is_no_way_back_is_in_no_copy() {
        // The first copy takes the new next hop and then has no room for the old one; the second refuses.
        let mut replicas = replicas(&[(9, 2), (9, 1)]);
        replicas.insert(prefix(1), 1).unwrap();
        assert!(replicas.insert(prefix(1), 2).is_err());
        assert_eq!(answers(&replicas, &[1]), [[NO_ROUTE]; 2]);
    }
}
