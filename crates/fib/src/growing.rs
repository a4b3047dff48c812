//! Tables that begin small and become large ones when they grow.
//!
//! ```text
//!   up to SMALL_ROUTES routes          more                             a grace period later
//!   readers --> small                  readers --> large <-- filled     readers --> large
//!   writer  --> small                  writer  --> large    beside      small: its pages go back
//! ```
//!
//! The large table, of the chosen structure, is filled with all routes beside the small one, and then shown to readers
//! by one store. A lookup that began before that finishes in the small one; both give the same answers. A table also
//! grows if the small one has no room for a change, as when readers hold back too many retired pieces. It does not
//! become small again: a table that was large once is likely to be so again.
//!
//! The choice costs readers one load and one predictable branch a batch.

use std::sync::{Arc, OnceLock};

use crate::{
    Address, Change, Error, GracePeriod, Lookup, NO_ROUTE, NextHopId, Prefix, Table, check_changes,
    check_next_hop,
    small::{Layout, Small},
};

/// Makes the large table.
type Make<A> = Box<dyn Fn() -> Result<Box<dyn Table<A>>, Error> + Send>;

/// A reader of the small table, and later of the large one.
struct Reader<A: Address> {
    small: Arc<dyn Lookup<A>>,
    large: OnceLock<Arc<dyn Lookup<A>>>,
}

impl<A: Address> Reader<A> {
    #[inline(always)]
    fn now(&self) -> &dyn Lookup<A> {
        &**self.large.get().unwrap_or(&self.small)
    }
}

impl<A: Address> Lookup<A> for Reader<A> {
    fn lookup(&self, address: A) -> NextHopId {
        self.now().lookup(address)
    }

    fn lookup_batch(&self, addresses: &[A::Bits], out: &mut [NextHopId]) {
        self.now().lookup_batch(addresses, out);
    }

    fn prefetch_batch(&self, addresses: &[A::Bits]) {
        self.now().prefetch_batch(addresses);
    }

    fn lookup_prefetched(&self, addresses: &[A::Bits], out: &mut [NextHopId]) {
        self.now().lookup_prefetched(addresses, out);
    }
}

/// The writer.
pub(crate) struct Growing<A: Layout> {
    reader: Arc<Reader<A>>,
    /// Until all readers have left it.
    small: Option<Box<Small<A>>>,
    large: Option<Box<dyn Table<A>>>,
    make: Make<A>,
    /// Most routes of the small table.
    most: usize,
    /// The NUMA node for the large one.
    node: Option<u32>,
    name: &'static str,
}

impl<A: Layout> Growing<A> {
    /// Creates an empty table that is small up to `most` routes; then `make` is called for the large one, a structure
    /// of this name.
    pub fn new(
        grace: Box<dyn GracePeriod>,
        most: usize,
        name: &'static str,
        make: Make<A>,
    ) -> Self {
        let small = Box::new(Small::new(grace));
        let reader = Arc::new(Reader { small: small.reader(), large: OnceLock::new() });
        Self { reader, small: Some(small), large: None, make, most, node: None, name }
    }

    /// The small table, if it is the one in use.
    fn small(&mut self) -> Option<&mut Small<A>> {
        self.small.as_deref_mut().filter(|_| self.large.is_none())
    }

    /// Returns the large table, filled with the routes of the small one if there is none yet.
    fn large(&mut self) -> Result<&mut Box<dyn Table<A>>, Error> {
        let large = match self.large.take() {
            Some(large) => large,
            None => {
                let mut large = (self.make)()?;
                self.node.into_iter().for_each(|node| large.place(node));
                if let Some(small) = &mut self.small {
                    large.load(&mut small.routes().into_iter())?;
                    // The only call, since from now on there is a large table.
                    let _ = self.reader.large.set(large.reader());
                    small.retire_all();
                }
                large
            }
        };
        Ok(self.large.insert(large))
    }

    /// Publishes the changes made in the small table; grows if it has no room for them.
    fn publish(&mut self) -> Result<(), Error> {
        match self.small().map(Small::publish) {
            Some(Err(_)) => self.large().map(drop),
            _ => Ok(()),
        }
    }

    /// Returns true if the small table holds so many more routes.
    fn fits(&mut self, more: usize) -> bool {
        let most = self.most;
        self.small().is_some_and(|small| small.rib.len().saturating_add(more) <= most)
    }
}

impl<A: Layout> Table<A> for Growing<A> {
    fn reader(&self) -> Arc<dyn Lookup<A>> {
        self.reader.clone()
    }

    fn place(&mut self, node: u32) {
        // The small table lies in the caches of whoever uses it.
        self.node = Some(node);
        self.large.iter_mut().for_each(|large| large.place(node));
    }

    fn insert(
        &mut self,
        prefix: Prefix<A>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error> {
        check_next_hop(next_hop)?;
        if !self.fits(1) {
            return self.large()?.insert(prefix, next_hop);
        }
        let Some(small) = self.small() else { return Ok(None) };
        let before = small.set(prefix, next_hop);
        if let Err(error) = self.publish() {
            if let Some(small) = self.small() {
                small.set(prefix, before);
            }
            return Err(error);
        }
        Ok(Some(before).filter(|&before| before != NO_ROUTE))
    }

    fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        if let Some(large) = &mut self.large {
            return large.remove(prefix);
        }
        let before = self.small()?.set(prefix, NO_ROUTE);
        // Without any room it becomes visible later: see `Table::remove`.
        let _ = self.publish();
        Some(before).filter(|&before| before != NO_ROUTE)
    }

    fn get(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        match (&self.large, &self.small) {
            (Some(large), _) => large.get(prefix),
            (None, small) => small.as_ref()?.rib.get(prefix.bits(), prefix.len()),
        }
    }

    fn len(&self) -> usize {
        match (&self.large, &self.small) {
            (Some(large), _) => large.len(),
            (None, small) => small.as_ref().map_or(0, |small| small.rib.len()),
        }
    }

    fn memory_bytes(&self) -> usize {
        let small = self.small.as_ref().map_or(0, |small| small.memory_bytes());
        small + self.large.as_ref().map_or(0, |large| large.memory_bytes())
    }

    fn writer_bytes(&self) -> usize {
        let small = self.small.as_ref().map_or(0, |small| small.rib.bytes());
        small + self.large.as_ref().map_or(0, |large| large.writer_bytes())
    }

    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), Error> {
        check_changes(changes)?;
        let insertions =
            changes.iter().filter(|change| matches!(change, Change::Insert { .. })).count();
        if !self.fits(insertions) {
            return self.large()?.apply(changes);
        }
        if let Some(small) = self.small() {
            for change in changes {
                match *change {
                    Change::Insert { prefix, next_hop } => small.set(prefix, next_hop),
                    Change::Remove { prefix } => small.set(prefix, NO_ROUTE),
                };
            }
        }
        self.publish()
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<A>, NextHopId)>,
    ) -> Result<(), Error> {
        let some: Vec<_> = routes.take(self.most.saturating_add(1)).collect();
        if !self.fits(some.len()) {
            return self.large()?.load(&mut some.into_iter().chain(routes));
        }
        let made = match self.small() {
            Some(small) => some.into_iter().try_for_each(|(prefix, next_hop)| {
                check_next_hop(next_hop)?;
                small.set(prefix, next_hop);
                Ok(())
            }),
            None => Ok(()),
        };
        self.publish()?;
        made
    }

    fn collect(&mut self) -> usize {
        let is_large = self.large.is_some();
        let mut waiting = 0;
        if let Some(small) = &mut self.small {
            waiting += small.collect();
            if is_large && waiting == 0 {
                self.small = None;
            } else if !is_large && small.is_dirty() {
                let _ = self.publish();
            }
        }
        waiting + self.large.as_mut().map_or(0, |large| large.collect())
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::{Algorithm, Epochs, NoReaders, new_small_ipv4, new_small_ipv6};

    fn v4(number: u32) -> Prefix<Ipv4Addr> {
        Prefix::covering(Ipv4Addr::from(0x0a00_0000 | number << 8), 24)
    }

    fn v6(number: u32) -> Prefix<Ipv6Addr> {
        Prefix::covering(Ipv6Addr::from((0x2001_0db8 << 96) | u128::from(number) << 80), 48)
    }

    fn grows<A: Layout>(mut table: Box<dyn Table<A>>, prefix: impl Fn(u32) -> Prefix<A>) {
        let reader = table.reader();
        let small = table.memory_bytes();
        for number in 0..6 {
            assert_eq!(table.insert(prefix(number), 7 + number as u16), Ok(None));
            for earlier in 0..=number {
                assert_eq!(reader.lookup(prefix(earlier).address()), 7 + earlier as u16);
            }
            assert_eq!(table.memory_bytes() > 8 * small, number >= 4, "{number}");
        }
        assert_eq!(table.insert(prefix(2), 90), Ok(Some(9)));
        assert_eq!(reader.lookup(prefix(2).address()), 90);
        assert_eq!((table.len(), table.get(prefix(2)), table.collect()), (6, Some(90), 0));
        for number in 0..6 {
            assert!(table.remove(prefix(number)).is_some());
        }
        assert_eq!(reader.lookup(prefix(2).address()), NO_ROUTE);
        assert_eq!(table.name(), "runmap");
    }

    #[test]
    fn a_table_grows_beyond_its_number_of_routes_and_readers_follow() {
        let none = || Box::new(NoReaders) as Box<dyn GracePeriod>;
        grows(new_small_ipv4(Algorithm::Runmap, 4, none).unwrap(), v4);
        grows(new_small_ipv6(Algorithm::Runmap, 4, none).unwrap(), v6);
    }

    #[test]
    fn the_small_table_stays_as_it_is_until_its_readers_have_left() {
        let epochs = Epochs::default();
        let late = epochs.register();
        let grace = epochs.clone();
        let make = move || -> Box<dyn GracePeriod> { Box::new(grace.clone()) };
        let mut table = new_growing::<Ipv4Addr>(&make);
        let small = table.reader.small.clone();
        for number in 0..6 {
            table.insert(v4(number), 7).unwrap();
        }
        assert!(table.collect() > 0);
        assert_eq!(small.lookup(v4(1).address()), 7, "as before");
        assert!(table.small.is_some());
        late.quiescent();
        assert_eq!(table.collect(), 0);
        assert!(table.small.is_none(), "its memory is free");
        assert_eq!(table.reader().lookup(v4(1).address()), 7);
    }

    fn new_growing<A: Layout>(grace: &dyn Fn() -> Box<dyn GracePeriod>) -> Growing<A> {
        let make = || Ok(Box::new(crate::reference::Reference::<A>::new()) as Box<dyn Table<A>>);
        Growing::new(grace(), 4, "reference", Box::new(make))
    }

    #[test]
    fn a_table_without_room_for_a_change_grows() {
        // Readers that never leave: each change of a table's words retires leaves, until none are left.
        let epochs = Epochs::default();
        let _stuck = epochs.register();
        let make = move || -> Box<dyn GracePeriod> { Box::new(epochs.clone()) };
        let mut table = new_growing::<Ipv4Addr>(&make);
        let reader = table.reader();
        let mut rounds = 0;
        while table.large.is_none() {
            let number = rounds % 3;
            table.insert(v4(number), 1 + (rounds % 7) as u16).unwrap();
            assert_eq!(reader.lookup(v4(number).address()), 1 + (rounds % 7) as u16);
            table.remove(v4((number + 1) % 3));
            assert_eq!(reader.lookup(v4((number + 1) % 3).address()), NO_ROUTE);
            rounds += 1;
            assert!(rounds < 1_000_000, "it grows");
        }
        assert_eq!(reader.lookup(v4((rounds - 1) % 3).address()), 1 + ((rounds - 1) % 7) as u16);
    }

    #[test]
    fn many_routes_at_once_go_to_the_large_table() {
        let mut table =
            new_small_ipv4(Algorithm::Runmap, 4, || Box::new(NoReaders) as Box<dyn GracePeriod>)
                .unwrap();
        table.insert(v4(99), 3).unwrap();
        table.load(&mut (0..9).map(|number| (v4(number), 5))).unwrap();
        let reader = table.reader();
        assert_eq!((0..9).map(|n| reader.lookup(v4(n).address())).max(), Some(5));
        assert_eq!((reader.lookup(v4(8).address()), reader.lookup(v4(99).address())), (5, 3));
        assert_eq!(table.len(), 10);
    }
}
