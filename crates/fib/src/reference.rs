//! The reference: one ordered map per prefix length, behind a lock.
//!
//! ```text
//! lengths[32]: { 192.0.2.1 -> 5 }
//! lengths[24]: { 192.0.2.0 -> 17, 198.51.100.0 -> 3 }
//!   ...
//! lengths[0]:  { 0.0.0.0 -> 1 }
//! ```
//!
//! A lookup tries the lengths from the longest to the shortest and masks the address for each:
//! the definition of longest-prefix match, nothing more. Up to 33 or 129 map searches per lookup,
//! about 50 bytes per route. Every other table is tested against this one.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{
    Address, Bits, Change, Error, Lookup, NO_ROUTE, NextHopId, Prefix, Table, check_changes,
    check_next_hop,
};

struct Routes<A: Address> {
    /// Indexed by prefix length.
    lengths: Vec<BTreeMap<A::Bits, NextHopId>>,
}

impl<A: Address> Routes<A> {
    fn lookup(&self, address: A::Bits) -> NextHopId {
        for (len, routes) in self.lengths.iter().enumerate().rev() {
            if let Some(&next_hop) = routes.get(&(address & A::Bits::mask(len as u8))) {
                return next_hop;
            }
        }
        NO_ROUTE
    }

    fn insert(&mut self, prefix: Prefix<A>, next_hop: NextHopId) -> Option<NextHopId> {
        self.lengths[usize::from(prefix.len())].insert(prefix.bits(), next_hop)
    }

    fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.lengths[usize::from(prefix.len())].remove(&prefix.bits())
    }
}

struct Shared<A: Address>(RwLock<Routes<A>>);

impl<A: Address> Shared<A> {
    fn read(&self) -> RwLockReadGuard<'_, Routes<A>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Routes<A>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: Address> Lookup<A> for Shared<A> {
    fn lookup(&self, address: A) -> NextHopId {
        self.read().lookup(address.bits())
    }

    fn lookup_batch(&self, addresses: &[A::Bits], out: &mut [NextHopId]) {
        let routes = self.read();
        for (&address, out) in addresses.iter().zip(out) {
            *out = routes.lookup(address);
        }
    }
}

/// The slow table that is obviously correct.
pub(crate) struct Reference<A: Address> {
    shared: Arc<Shared<A>>,
}

impl<A: Address> Reference<A> {
    pub fn new() -> Self {
        let lengths = vec![BTreeMap::new(); usize::from(A::Bits::WIDTH) + 1];
        Self { shared: Arc::new(Shared(RwLock::new(Routes { lengths }))) }
    }
}

impl<A: Address> Table<A> for Reference<A> {
    fn reader(&self) -> Arc<dyn Lookup<A>> {
        Arc::clone(&self.shared) as _
    }

    fn insert(
        &mut self,
        prefix: Prefix<A>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error> {
        check_next_hop(next_hop)?;
        Ok(self.shared.write().insert(prefix, next_hop))
    }

    fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.shared.write().remove(prefix)
    }

    fn get(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.shared.read().lengths[usize::from(prefix.len())].get(&prefix.bits()).copied()
    }

    fn len(&self) -> usize {
        self.shared.read().lengths.iter().map(BTreeMap::len).sum()
    }

    /// An estimate: the map's own overhead is not available.
    fn memory_bytes(&self) -> usize {
        self.len() * (size_of::<A::Bits>() + size_of::<NextHopId>()) * 3 / 2
    }

    fn writer_bytes(&self) -> usize {
        0
    }

    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), Error> {
        check_changes(changes)?;
        let mut routes = self.shared.write();
        for change in changes {
            match *change {
                Change::Insert { prefix, next_hop } => routes.insert(prefix, next_hop),
                Change::Remove { prefix } => routes.remove(prefix),
            };
        }
        Ok(())
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<A>, NextHopId)>,
    ) -> Result<(), Error> {
        let mut table = self.shared.write();
        for (prefix, next_hop) in routes {
            check_next_hop(next_hop)?;
            table.insert(prefix, next_hop);
        }
        Ok(())
    }

    fn collect(&mut self) -> usize {
        0
    }

    fn name(&self) -> &'static str {
        "reference"
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_longest_prefix_wins_and_its_removal_uncovers_the_next() {
        let mut table = Reference::<Ipv4Addr>::new();
        let reader = table.reader();
        let address = Ipv4Addr::new(192, 0, 2, 1);
        assert_eq!(reader.lookup(address), NO_ROUTE);
        for (text, next_hop) in [("0.0.0.0/0", 1), ("192.0.2.0/24", 2), ("192.0.2.1/32", 3)] {
            table.insert(text.parse().unwrap(), next_hop).unwrap();
            assert_eq!(reader.lookup(address), next_hop);
        }
        assert_eq!(reader.lookup(Ipv4Addr::new(192, 0, 2, 2)), 2);
        assert_eq!(table.remove("192.0.2.0/24".parse().unwrap()), Some(2));
        assert_eq!(reader.lookup(Ipv4Addr::new(192, 0, 2, 2)), 1);
        assert_eq!(reader.lookup(address), 3);
    }

    #[test]
    fn next_hops_out_of_range_are_refused() {
        let mut table = Reference::<Ipv6Addr>::new();
        let prefix = "::/0".parse().unwrap();
        assert!(table.insert(prefix, NO_ROUTE).is_err());
        assert!(table.insert(prefix, 0x8000).is_err());
        assert_eq!(table.insert(prefix, 0x7fff), Ok(None));
        assert_eq!(table.insert(prefix, 1), Ok(Some(0x7fff)));
    }
}
