//! The candidates of a prefix, in 24 bytes if one source has a route to it.
//!
//! A full table has a million entries, nearly all with one candidate, which is stored in the entry
//! itself; only further ones are on the heap.

use super::RouteSource;

/// Administrative distances of the sources, by [`RouteSource::index`].
pub(super) type Distances = [u8; RouteSource::ALL.len()];

/// One source's route to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) source: RouteSource,
    pub(super) metric: u64,
    /// The number of its next hop.
    pub(super) hop: u16,
    /// The source's last resynchronisation that contained it.
    pub(super) generation: u16,
}

impl Candidate {
    /// Returns the sort key of the order of preference: smallest first.
    fn rank(&self, distances: &Distances) -> (u8, u64, RouteSource) {
        (distances[self.source.index()], self.metric, self.source)
    }

    /// Returns true if one replaces the other.
    fn is_same_route(&self, other: &Self) -> bool {
        self.source == other.source && self.metric == other.metric
    }
}

/// The candidates after the first.
#[derive(Debug)]
struct More(Vec<Candidate>);

/// The candidates of a prefix.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The metric of the best candidate; `source` is `None` if there is no candidate.
    metric: u64,
    more: Option<Box<More>>,
    hop: u16,
    /// The next hop in the FIB; `NO_ROUTE` if the FIB has no route to the prefix.
    pub(super) installed: u16,
    generation: u16,
    source: Option<RouteSource>,
    /// True if only the RIB's reserved route to the prefix is used, whatever else there is.
    pub(super) withheld: bool,
}

impl Entry {
    /// Without candidates, withheld or not.
    pub(super) fn new(withheld: bool) -> Self {
        Self { withheld, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.source.is_none()
    }

    fn first(&self) -> Option<Candidate> {
        let Self { metric, hop, generation, .. } = *self;
        self.source.map(|source| Candidate { source, metric, hop, generation })
    }

    fn set_first(&mut self, first: Option<Candidate>) {
        self.source = first.map(|first| first.source);
        if let Some(first) = first {
            (self.metric, self.hop, self.generation) = (first.metric, first.hop, first.generation);
        }
    }

    /// Returns the candidates, best first.
    pub(super) fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        let more = self.more.iter().flat_map(|more| more.0.iter().copied());
        self.first().into_iter().chain(more)
    }

    /// Returns the first matching candidate.
    pub(super) fn find(&self, fits: impl Fn(&Candidate) -> bool) -> Option<Candidate> {
        self.candidates().find(fits)
    }

    /// Returns true if a candidate is not used because its prefix is withheld.
    pub(super) fn withholds(&self, candidate: &Candidate) -> bool {
        self.withheld && candidate.source != RouteSource::Reserved
    }

    /// Returns true if there is exactly one candidate.
    pub(super) fn has_one(&self) -> bool {
        self.source.is_some() && self.more.is_none()
    }

    /// Inserts a candidate in order; one of the same source and metric is removed and returned.
    pub(super) fn put(&mut self, new: Candidate, distances: &Distances) -> Option<Candidate> {
        match self.first() {
            None => {
                self.set_first(Some(new));
                None
            }
            Some(old) if old.is_same_route(&new) => {
                self.set_first(Some(new));
                Some(old)
            }
            Some(_) => self.edit(|all| {
                if let Some(old) = all.iter_mut().find(|old| old.is_same_route(&new)) {
                    return Some(std::mem::replace(old, new));
                }
                let rank = new.rank(distances);
                let at = all.partition_point(|other| other.rank(distances) < rank);
                all.insert(at, new);
                None
            }),
        }
    }

    /// Removes the first matching candidate.
    pub(super) fn take(&mut self, fits: impl Fn(&Candidate) -> bool) -> Option<Candidate> {
        if self.has_one() {
            let only = self.first().filter(&fits)?;
            self.set_first(None);
            return Some(only);
        }
        self.find(&fits)?;
        self.edit(|all| {
            let at = all.iter().position(&fits)?;
            Some(all.remove(at))
        })
    }

    /// Sorts the candidates by other distances.
    pub(super) fn sort(&mut self, distances: &Distances) {
        if self.more.is_some() {
            self.edit(|all| all.sort_by_key(|candidate| candidate.rank(distances)));
        }
    }

    /// Edits the candidates as one list.
    fn edit<T>(&mut self, change: impl FnOnce(&mut Vec<Candidate>) -> T) -> T {
        let mut all = self.more.take().map_or_else(Vec::new, |more| more.0);
        if let Some(first) = self.first() {
            all.insert(0, first);
        }
        let result = change(&mut all);
        self.set_first(all.first().copied());
        if all.len() > 1 {
            all.remove(0);
            self.more = Some(Box::new(More(all)));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 24);
    }

    #[test]
    fn candidates_stay_in_order_and_are_found_again() {
        let distances = RouteSource::ALL.map(RouteSource::distance);
        let new = |source, metric, hop| Candidate { source, metric, hop, generation: 0 };
        let mut entry = Entry::default();
        assert_eq!(entry.put(new(RouteSource::Import, 5, 1), &distances), None);
        assert_eq!(entry.put(new(RouteSource::Kernel, 9, 2), &distances), None);
        assert_eq!(entry.put(new(RouteSource::Kernel, 3, 3), &distances), None);
        assert_eq!(
            entry.put(new(RouteSource::Kernel, 9, 4), &distances),
            Some(new(RouteSource::Kernel, 9, 2))
        );
        let hops = |entry: &Entry| entry.candidates().map(|c| c.hop).collect::<Vec<_>>();
        assert_eq!(hops(&entry), [3, 4, 1]);
        let mut others = distances;
        others[RouteSource::Import.index()] = 2;
        entry.sort(&others);
        assert_eq!(hops(&entry), [1, 3, 4]);
        assert_eq!(entry.take(|c| c.hop == 3).map(|c| c.metric), Some(3));
        assert_eq!(entry.take(|c| c.hop == 3), None);
        assert_eq!(entry.take(|_| true).map(|c| c.hop), Some(1));
        assert!(entry.has_one());
        assert_eq!(entry.take(|_| true).map(|c| c.hop), Some(4));
        assert!(entry.is_empty() && entry.take(|_| true).is_none());
    }
}
