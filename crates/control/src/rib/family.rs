//! The routes of one address family, and its FIB.
//!
//! For each prefix all candidates are kept, best first; the FIB holds the best. What the FIB holds
//! is remembered apart from the candidates, so that a FIB that refuses a change for lack of room
//! leaves a prefix marked, not a next hop freed that lookups still answer with.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use dataplane::next_hop::NO_ROUTE;
use fib::{Address, Prefix, Table};
use ipnet::IpNet;
use smallvec::SmallVec;

use super::Source;
use super::next_hops::{NextHops, Referrer};

/// One source's route to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) source: Source,
    pub(super) metric: u64,
    pub(super) hop: u16,
}

impl Candidate {
    /// The order of preference: smallest first.
    fn rank(&self) -> (u8, u64, Source) {
        (self.source.distance(), self.metric, self.source)
    }

    /// How the candidate's next hop is counted.
    pub(super) fn referrer(&self) -> Referrer {
        match self.source {
            source if source.is_settable() => Referrer::Route,
            _ => Referrer::Other,
        }
    }
}

/// What is known of a prefix.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// Best first.
    pub(super) candidates: SmallVec<[Candidate; 2]>,
    /// The next hop that the FIB answers with; `NO_ROUTE` if it has no route to the prefix.
    pub(super) installed: u16,
}

/// Families the RIB has.
pub(super) trait Family: Address {
    /// The prefix in this family, if it is of it. Host bits are cleared.
    fn prefix(net: &IpNet) -> Option<Prefix<Self>>;
    /// The prefix as one of either family.
    fn net(prefix: Prefix<Self>) -> IpNet;
}

impl Family for Ipv4Addr {
    fn prefix(net: &IpNet) -> Option<Prefix<Self>> {
        match net {
            IpNet::V4(net) => Some(Prefix::covering(net.addr(), net.prefix_len())),
            IpNet::V6(_) => None,
        }
    }

    fn net(prefix: Prefix<Self>) -> IpNet {
        IpNet::V4(prefix.into())
    }
}

impl Family for Ipv6Addr {
    fn prefix(net: &IpNet) -> Option<Prefix<Self>> {
        match net {
            IpNet::V4(_) => None,
            IpNet::V6(net) => Some(Prefix::covering(net.addr(), net.prefix_len())),
        }
    }

    fn net(prefix: Prefix<Self>) -> IpNet {
        IpNet::V6(prefix.into())
    }
}

/// Where a walk through both families, IPv4 first, that starts here starts in this one.
pub(super) fn start<A: Family>(start: Bound<IpNet>) -> Bound<Prefix<A>> {
    // Behind every prefix of the family: an IPv4 walk that starts among IPv6 prefixes is over.
    let end = || {
        let all = Prefix::<A>::covering(A::from(A::Bits::default()), 0);
        Bound::Excluded(Prefix::host(A::from(all.last_bits())))
    };
    match start {
        Bound::Unbounded => Bound::Unbounded,
        Bound::Included(net) | Bound::Excluded(net) => match A::prefix(&net) {
            Some(prefix) if matches!(start, Bound::Included(_)) => Bound::Included(prefix),
            Some(prefix) => Bound::Excluded(prefix),
            None if net.addr().is_ipv6() => end(),
            None => Bound::Unbounded,
        },
    }
}

/// The routes of one family.
pub(super) struct Routes<A: Family> {
    fib: Box<dyn Table<A>>,
    entries: BTreeMap<Prefix<A>, Entry>,
    /// Prefixes of each length, so that a search skips lengths that do not occur.
    lengths: Vec<u32>,
    /// Prefixes whose change the FIB refused; tried again by [`Self::retry`].
    pending: BTreeSet<Prefix<A>>,
    /// Candidates of each source, by [`Source::index`].
    pub(super) counts: [usize; Source::ALL.len()],
}

impl<A: Family> Routes<A> {
    pub(super) fn new(fib: Box<dyn Table<A>>) -> Self {
        Self {
            fib,
            entries: BTreeMap::new(),
            lengths: vec![0; 129],
            pending: BTreeSet::new(),
            counts: [0; Source::ALL.len()],
        }
    }

    pub(super) fn fib(&self) -> &dyn Table<A> {
        &*self.fib
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn entry(&self, prefix: Prefix<A>) -> Option<&Entry> {
        self.entries.get(&prefix)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        self.entries.iter().map(|(&prefix, entry)| (prefix, entry))
    }

    /// Entries from this prefix on.
    pub(super) fn from(
        &self,
        start: Bound<Prefix<A>>,
    ) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        self.entries.range((start, Bound::Unbounded)).map(|(&prefix, entry)| (prefix, entry))
    }

    /// Entries of the prefixes within `outer`, itself included.
    pub(super) fn within(&self, outer: Prefix<A>) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        let last = Prefix::host(A::from(outer.last_bits()));
        let range = (Bound::Included(outer), Bound::Included(last));
        self.entries.range(range).map(|(&prefix, entry)| (prefix, entry))
    }

    /// Puts a candidate in its place; the one of the same source and metric goes, and is returned.
    /// The FIB is not told.
    pub(super) fn put(&mut self, prefix: Prefix<A>, candidate: Candidate) -> Option<Candidate> {
        let lengths = &mut self.lengths;
        let entry = self.entries.entry(prefix).or_insert_with(|| {
            lengths[usize::from(prefix.len())] += 1;
            Entry::default()
        });
        let same = |other: &Candidate| {
            other.source == candidate.source && other.metric == candidate.metric
        };
        if let Some(at) = entry.candidates.iter().position(same) {
            return Some(std::mem::replace(&mut entry.candidates[at], candidate));
        }
        let at = entry.candidates.partition_point(|other| other.rank() < candidate.rank());
        entry.candidates.insert(at, candidate);
        self.counts[candidate.source.index()] += 1;
        None
    }

    /// Takes out the first candidate that fits. The FIB is not told.
    pub(super) fn take(
        &mut self,
        prefix: Prefix<A>,
        fits: impl Fn(&Candidate) -> bool,
    ) -> Option<Candidate> {
        let entry = self.entries.get_mut(&prefix)?;
        let at = entry.candidates.iter().position(fits)?;
        let candidate = entry.candidates.remove(at);
        self.counts[candidate.source.index()] -= 1;
        Some(candidate)
    }

    /// Makes the FIB answer for the prefix as its best candidate says, and counts the FIB's own
    /// reference to the next hop. An entry without candidates goes when the FIB has let go of it.
    pub(super) fn sync(
        &mut self,
        prefix: Prefix<A>,
        hops: &mut NextHops,
    ) -> Result<(), fib::Error> {
        let Some(entry) = self.entries.get_mut(&prefix) else { return Ok(()) };
        let best = entry.candidates.first().map_or(NO_ROUTE, |candidate| candidate.hop);
        let before = entry.installed;
        if best != before {
            let done = match best {
                NO_ROUTE => Ok(self.fib.remove(prefix)),
                hop => self.fib.insert(prefix, hop),
            };
            if let Err(error) = done {
                self.pending.insert(prefix);
                return Err(error);
            }
            entry.installed = best;
            hops.retain(best, Referrer::Other);
            hops.release(before, Referrer::Other);
        }
        self.pending.remove(&prefix);
        self.forget_if_empty(prefix);
        Ok(())
    }

    fn forget_if_empty(&mut self, prefix: Prefix<A>) {
        let empty = |entry: &Entry| entry.candidates.is_empty() && entry.installed == NO_ROUTE;
        if self.entries.get(&prefix).is_some_and(empty) {
            self.entries.remove(&prefix);
            self.lengths[usize::from(prefix.len())] -= 1;
        }
    }

    /// [`Self::sync`] for many prefixes at once, by the FIB's bulk load where routes appear or
    /// change. On an error some are done and some are not: sync them one by one to learn which.
    pub(super) fn sync_all(
        &mut self,
        prefixes: &[Prefix<A>],
        hops: &mut NextHops,
    ) -> Result<(), fib::Error> {
        let entries = &self.entries;
        let mut wanted = prefixes.iter().filter_map(|&prefix| {
            let entry = entries.get(&prefix)?;
            let best = entry.candidates.first()?.hop;
            (best != entry.installed).then_some((prefix, best))
        });
        let result = self.fib.load(&mut wanted);
        for &prefix in prefixes {
            let Some(entry) = self.entries.get_mut(&prefix) else { continue };
            let now = match (&result, entry.candidates.first()) {
                (Ok(()), Some(best)) => best.hop,
                _ => self.fib.get(prefix).unwrap_or(NO_ROUTE),
            };
            let before = std::mem::replace(&mut entry.installed, now);
            if before != now {
                hops.retain(now, Referrer::Other);
                hops.release(before, Referrer::Other);
            }
        }
        result
    }

    /// Tries again what the FIB refused.
    pub(super) fn retry(&mut self, hops: &mut NextHops) {
        self.fib.collect();
        for prefix in std::mem::take(&mut self.pending) {
            // A refusal marks the prefix again.
            let _ = self.sync(prefix, hops);
        }
    }

    /// The longest prefix that holds the address and has a candidate that fits, with the best such
    /// candidate.
    pub(super) fn longest(
        &self,
        address: A,
        fits: impl Fn(&Candidate) -> bool,
    ) -> Option<(Prefix<A>, &Candidate)> {
        let longest = Prefix::host(address).len();
        (0..=longest).rev().filter(|&len| self.lengths[usize::from(len)] > 0).find_map(|len| {
            let prefix = Prefix::covering(address, len);
            let entry = self.entries.get(&prefix)?;
            Some((prefix, entry.candidates.iter().find(|candidate| fits(candidate))?))
        })
    }
}
