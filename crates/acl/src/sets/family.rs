//! The sets of one family: the elements, the route table, and the classes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fib::{Bits, Change, GracePeriod, Lookup, Prefix, Table};

use super::SetError;
use crate::FilterAddress;
use crate::fields::BATCH;

/// Number of classes, including 0 for addresses in no set: the number of next hops in a route table.
const CLASSES: usize = fib::MAX_NEXT_HOP as usize + 1;

/// Number of tables: a fast one, and one with more room, to which the elements move when the first is
/// full.
const TABLES: usize = 2;

/// The sets of each address, for readers.
pub struct Members<A: FilterAddress> {
    tables: [Arc<dyn Lookup<A>>; TABLES],
    /// Index of the table that has the elements.
    current: Arc<AtomicUsize>,
    /// By class: the sets, one bit each.
    masks: Arc<[AtomicU64]>,
}

impl<A: FilterAddress> Clone for Members<A> {
    fn clone(&self) -> Self {
        let Self { tables, current, masks } = self;
        Self { tables: tables.clone(), current: current.clone(), masks: masks.clone() }
    }
}

/// A table in which every address is in no set.
struct Nothing;

impl<A: FilterAddress> Lookup<A> for Nothing {
    fn lookup(&self, _: A) -> u16 {
        0
    }

    fn lookup_batch(&self, _: &[A::Bits], out: &mut [u16]) {
        out.fill(0);
    }
}

impl<A: FilterAddress> Members<A> {
    /// Creates readers without sets.
    pub(super) fn none() -> Self {
        let nothing: Arc<dyn Lookup<A>> = Arc::new(Nothing);
        Self { tables: [nothing.clone(), nothing], current: Arc::default(), masks: Arc::default() }
    }

    /// Has the processor fetch the memory that the lookup of these addresses reads first.
    #[inline]
    pub(crate) fn prefetch(&self, addresses: &[A::Bits]) {
        self.tables[self.current.load(Ordering::Acquire) % TABLES].prefetch_batch(addresses);
    }

    /// Finds the sets of each address, for at most [`BATCH`] addresses.
    #[inline]
    pub(crate) fn find(&self, addresses: &[A::Bits], masks: &mut [u64]) {
        let mut classes = [0; BATCH];
        let classes = &mut classes[..addresses.len().min(BATCH)];
        let table = &self.tables[self.current.load(Ordering::Acquire) % TABLES];
        table.lookup_prefetched(&addresses[..classes.len()], classes);
        for (mask, class) in masks.iter_mut().zip(classes) {
            let known = self.masks.get(usize::from(*class));
            *mask = known.map_or(0, |mask| mask.load(Ordering::Acquire));
        }
    }
}

/// A prefix that is in some set.
#[derive(Clone, Copy, Debug)]
struct Element {
    /// The sets that it is an element of.
    own: u64,
    /// The sets of its addresses: its own, and those of the prefixes around it.
    all: u64,
}

impl Element {
    /// Returns the sets to be stored in the table; none if the prefix is no longer an element.
    fn shown(&self) -> u64 {
        if self.own == 0 { 0 } else { self.all }
    }
}

/// A class in use.
struct Class {
    number: u16,
    /// Number of prefixes with this class.
    prefixes: usize,
}

/// The sets of one family: the owner's side.
pub(super) struct FamilySets<A: FilterAddress> {
    /// A prefix follows those that hold it.
    elements: BTreeMap<Prefix<A>, Element>,
    tables: [Box<dyn Table<A>>; TABLES],
    current: Arc<AtomicUsize>,
    masks: Arc<[AtomicU64]>,
    /// By the sets they stand for.
    classes: HashMap<u64, Class>,
    /// Classes that no reader can hold.
    free: Vec<u16>,
    /// Classes without prefixes, and the time since when.
    retired: Vec<(u64, u16)>,
    grace: Box<dyn GracePeriod>,
}

impl<A: FilterAddress> FamilySets<A> {
    pub fn new(tables: [Box<dyn Table<A>>; TABLES], grace: Box<dyn GracePeriod>) -> Self {
        Self {
            elements: BTreeMap::new(),
            tables,
            current: Arc::default(),
            masks: (0..CLASSES).map(|_| AtomicU64::new(0)).collect(),
            classes: HashMap::new(),
            free: (1..CLASSES as u16).rev().collect(),
            retired: Vec::new(),
            grace,
        }
    }

    pub fn members(&self) -> Members<A> {
        let tables = self.tables.each_ref().map(|table| table.reader());
        Members { tables, current: self.current.clone(), masks: self.masks.clone() }
    }

    pub fn has(&self, set: u8, prefix: Prefix<A>) -> bool {
        self.elements.get(&prefix).is_some_and(|element| element.own >> set & 1 != 0)
    }

    pub fn elements(&self, set: u8) -> impl Iterator<Item = Prefix<A>> {
        let is_of = move |element: &Element| element.own >> set & 1 != 0;
        self.elements.iter().filter(move |(_, of)| is_of(of)).map(|(prefix, _)| *prefix)
    }

    /// Adds an element to a set; returns false if it was there.
    pub fn add(&mut self, set: u8, prefix: Prefix<A>) -> Result<bool, SetError> {
        if self.has(set, prefix) {
            return Ok(false);
        }
        let own = self.own(prefix);
        self.change(prefix, own | 1 << set).map(|()| true)
    }

    /// Removes an element from a set; returns false if it was absent.
    pub fn remove(&mut self, set: u8, prefix: Prefix<A>) -> Result<bool, SetError> {
        if !self.has(set, prefix) {
            return Ok(false);
        }
        let own = self.own(prefix);
        self.change(prefix, own & !(1 << set)).map(|()| true)
    }

    fn own(&self, prefix: Prefix<A>) -> u64 {
        self.elements.get(&prefix).map_or(0, |element| element.own)
    }

    /// Makes the prefix an element of exactly these sets.
    fn change(&mut self, prefix: Prefix<A>, own: u64) -> Result<(), SetError> {
        self.collect();
        let around = self.around(prefix);
        let mut news: Vec<(Prefix<A>, Element)> =
            vec![(prefix, Element { own, all: around | own })];
        // Elements within it, outermost first.
        let mut open: Vec<(Prefix<A>, u64)> = vec![(prefix, around | own)];
        let behind = (Bound::Excluded(prefix), Bound::Unbounded);
        for (inner, element) in self.elements.range(behind) {
            if inner.bits() > prefix.last_bits() {
                break;
            }
            while open.pop_if(|(outer, _)| outer.last_bits() < inner.bits()).is_some() {}
            let all = element.own | open.last().map_or(around, |(_, all)| *all);
            open.push((*inner, all));
            if all != element.all {
                news.push((*inner, Element { all, ..*element }));
            }
        }
        self.publish(&news)?;
        for (prefix, element) in news {
            match element.own {
                0 => self.elements.remove(&prefix),
                _ => self.elements.insert(prefix, element),
            };
        }
        Ok(())
    }

    /// Returns the sets of the longest prefix around this one.
    fn around(&self, prefix: Prefix<A>) -> u64 {
        let mut end = Bound::Excluded(prefix);
        while let Some((before, element)) = self.elements.range((Bound::Unbounded, end)).next_back()
        {
            if before.contains(prefix.address()) {
                return element.all;
            }
            // A prefix that holds `prefix` also holds this one, or precedes it.
            let common = (before.bits() ^ prefix.bits()).leading();
            end = Bound::Included(Prefix::covering(prefix.address(), common));
        }
        0
    }

    /// Writes the changes to the table; all of them or none.
    fn publish(&mut self, news: &[(Prefix<A>, Element)]) -> Result<(), SetError> {
        let mut changes = Vec::with_capacity(news.len());
        for (prefix, element) in news {
            let wanted = element.shown();
            match self.take(wanted) {
                Ok(class) => changes.push(change(*prefix, class)),
                Err(error) => {
                    let taken = &news[..changes.len()];
                    taken.iter().for_each(|(_, of)| self.give_back(of.shown()));
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.put(&changes) {
            // Changes made before the table was full are undone, for which there is room.
            let old =
                |prefix: &Prefix<A>| self.elements.get(prefix).map_or(0, |element| element.all);
            let class = |all| self.classes.get(&all).map_or(0, |class| class.number);
            let back: Vec<_> =
                news.iter().map(|(prefix, _)| change(*prefix, class(old(prefix)))).collect();
            let _ = self.table().apply(&back);
            news.iter().for_each(|(_, of)| self.give_back(of.shown()));
            return Err(error.into());
        }
        for (prefix, _) in news {
            if let Some(before) = self.elements.get(prefix) {
                self.give_back(before.all);
            }
        }
        Ok(())
    }

    fn table(&mut self) -> &mut dyn Table<A> {
        &mut *self.tables[self.current.load(Ordering::Relaxed) % TABLES]
    }

    /// Applies changes to the readers' table, or moves all elements to the other one if that is full.
    fn put(&mut self, changes: &[Change<A>]) -> Result<(), fib::Error> {
        let full = match self.table().apply(changes) {
            Err(error @ fib::Error::Full { .. }) if self.current.load(Ordering::Relaxed) == 0 => {
                error
            }
            done => return done,
        };
        let class = |element: &Element| self.classes.get(&element.all).map(|class| class.number);
        let elements = self.elements.iter().filter_map(|(prefix, of)| Some((*prefix, class(of)?)));
        let [_, roomy] = &mut self.tables;
        if roomy.load(&mut { elements }).and_then(|()| roomy.apply(changes)).is_err() {
            return Err(full);
        }
        self.current.store(1, Ordering::Release);
        Ok(())
    }

    /// Takes the class of these sets for one more prefix; 0 for no sets.
    fn take(&mut self, sets: u64) -> Result<u16, SetError> {
        if sets == 0 {
            return Ok(0);
        }
        if let Some(class) = self.classes.get_mut(&sets) {
            class.prefixes += 1;
            return Ok(class.number);
        }
        let number = self.free.pop().ok_or(SetError::Classes { most: CLASSES - 1 })?;
        self.masks[usize::from(number)].store(sets, Ordering::Release);
        self.classes.insert(sets, Class { number, prefixes: 1 });
        Ok(number)
    }

    /// Releases the class of these sets for one prefix.
    fn give_back(&mut self, sets: u64) {
        let Some(class) = self.classes.get_mut(&sets) else { return };
        class.prefixes -= 1;
        if class.prefixes == 0 {
            let number = class.number;
            self.classes.remove(&sets);
            self.retired.push((self.grace.start(), number));
        }
    }

    /// Frees the classes that no reader can hold any more.
    fn collect(&mut self) {
        let grace = &mut self.grace;
        self.free.extend(
            self.retired.extract_if(.., |(token, _)| grace.passed(*token)).map(|(_, class)| class),
        );
    }
}

fn change<A: FilterAddress>(prefix: Prefix<A>, class: u16) -> Change<A> {
    match class {
        0 => Change::Remove { prefix },
        next_hop => Change::Insert { prefix, next_hop },
    }
}
