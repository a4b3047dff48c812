//! The routes of one address family, and its FIB.
//!
//! For each prefix all candidates are kept, best first; the FIB holds the best of those that lead
//! somewhere. What the FIB holds is remembered apart from the candidates, so that a FIB that
//! refuses a change for lack of room leaves a prefix marked, not a next hop freed that lookups
//! still answer with.
//!
//! ```text
//!   put, take ----> touched ----> sync ----> fib::Table::apply, one batch
//!   a next hop dies or comes alive ----> sweep, a piece at a time ----^
//!   what the FIB refused: pending, tried again by retry --------------^
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use dataplane::next_hop::NO_ROUTE;
use fib::{Address, Change, Prefix, Table};
use ipnet::IpNet;

use super::Source;
use super::entry::{Candidate, Distances, Entry};
use super::next_hops::{NextHops, Referrer};

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

/// A prefix that the FIB had no room to change, and why.
pub(super) type Refusal<A> = (Prefix<A>, fib::Error);

/// What an audit finds wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The source has a route to this prefix, with this metric, that it has not told again.
    Stale(IpNet, u64),
    /// The FIB is not as the entry of this prefix says; how, in words.
    Fib(IpNet, &'static str),
}

/// Changes from which on a FIB takes them by its bulk load.
const BULK: usize = 1024;

/// A walk over all entries that goes on where it stopped.
#[derive(Debug)]
struct Sweep<A: Family> {
    /// The last prefix that was looked at; `None` at the beginning.
    last: Option<Prefix<A>>,
    running: bool,
    /// Something has happened since it began: once more from the beginning.
    again: bool,
}

/// The routes of one family.
pub(super) struct Routes<A: Family> {
    fib: Box<dyn Table<A>>,
    entries: BTreeMap<Prefix<A>, Entry>,
    /// Prefixes of each length, so that a search skips lengths that do not occur.
    lengths: Vec<u32>,
    /// Prefixes whose candidates have changed and that the FIB has not followed.
    touched: Vec<Prefix<A>>,
    /// Prefixes whose change the FIB refused; tried again by [`Self::retry`].
    pending: BTreeSet<Prefix<A>>,
    /// The last of them that was tried again.
    retried: Option<Prefix<A>>,
    sweep: Sweep<A>,
    /// Candidates of each source, by [`Source::index`].
    pub(super) counts: [usize; Source::ALL.len()],
}

impl<A: Family> Routes<A> {
    pub(super) fn new(fib: Box<dyn Table<A>>) -> Self {
        Self {
            fib,
            entries: BTreeMap::new(),
            lengths: vec![0; 129],
            touched: Vec::new(),
            pending: BTreeSet::new(),
            retried: None,
            sweep: Sweep { last: None, running: false, again: false },
            counts: [0; Source::ALL.len()],
        }
    }

    pub(super) fn fib(&self) -> &dyn Table<A> {
        &*self.fib
    }

    #[cfg(test)]
    pub(super) fn fib_for_test(&mut self) -> &mut dyn Table<A> {
        &mut *self.fib
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn entry(&self, prefix: Prefix<A>) -> Option<&Entry> {
        self.entries.get(&prefix)
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
    /// The FIB follows with [`Self::sync`].
    pub(super) fn put(
        &mut self,
        prefix: Prefix<A>,
        new: Candidate,
        distances: &Distances,
    ) -> Option<Candidate> {
        let lengths = &mut self.lengths;
        let entry = self.entries.entry(prefix).or_insert_with(|| {
            lengths[usize::from(prefix.len())] += 1;
            Entry::default()
        });
        let old = entry.put(new, distances);
        if old.is_none() {
            self.counts[new.source.index()] += 1;
        }
        // What is heard of again and leads where it led changes nothing.
        if old.is_none_or(|old| old.hop != new.hop) {
            self.touched.push(prefix);
        }
        old
    }

    /// Takes out the first candidate that fits. The FIB follows with [`Self::sync`].
    pub(super) fn take(
        &mut self,
        prefix: Prefix<A>,
        fits: impl Fn(&Candidate) -> bool,
    ) -> Option<Candidate> {
        let candidate = self.entries.get_mut(&prefix)?.take(fits)?;
        self.counts[candidate.source.index()] -= 1;
        self.touched.push(prefix);
        Some(candidate)
    }

    /// Takes out all candidates that fit, of all prefixes, and hands each to `gone`.
    pub(super) fn take_all(
        &mut self,
        fits: impl Fn(&Candidate) -> bool,
        mut gone: impl FnMut(Prefix<A>, Candidate),
    ) {
        for (&prefix, entry) in &mut self.entries {
            while let Some(candidate) = entry.take(&fits) {
                self.counts[candidate.source.index()] -= 1;
                self.touched.push(prefix);
                gone(prefix, candidate);
            }
        }
    }

    /// Ranks all candidates by other distances. The FIB follows with the sweep.
    pub(super) fn rank(&mut self, distances: &Distances) {
        self.entries.values_mut().for_each(|entry| entry.sort(distances));
        self.start_sweep();
    }

    /// Prefixes whose candidates have changed since the last [`Self::sync`], in no order.
    pub(super) fn touched(&self) -> &[Prefix<A>] {
        &self.touched
    }

    /// Makes the FIB answer for the touched prefixes as their best candidates say, all at once.
    /// Returns the prefixes for which it had no room, and the prefixes that were touched.
    pub(super) fn sync(&mut self, hops: &mut NextHops) -> (Vec<Refusal<A>>, Vec<Prefix<A>>) {
        let mut touched = std::mem::take(&mut self.touched);
        if touched.len() > 1 {
            touched.sort_unstable();
            touched.dedup();
        }
        let refused = self.install(&touched, hops);
        (refused, touched)
    }

    /// Brings the FIB's routes to these prefixes up to date, each prefix once.
    fn install(&mut self, prefixes: &[Prefix<A>], hops: &mut NextHops) -> Vec<Refusal<A>> {
        let mut changes = Vec::new();
        let mut before = Vec::new();
        for &prefix in prefixes {
            let Some(entry) = self.entries.get_mut(&prefix) else { continue };
            let best = best(entry, hops).map_or(NO_ROUTE, |candidate| candidate.hop);
            if best == entry.installed {
                let empty = entry.is_empty();
                self.settled(prefix, empty);
                continue;
            }
            changes.push(match best {
                NO_ROUTE => Change::Remove { prefix },
                next_hop => Change::Insert { prefix, next_hop },
            });
            // The FIB's own references: to the new one already, to the old one still.
            hops.retain(best, Referrer::Other);
            before.push(std::mem::replace(&mut entry.installed, best));
        }
        if changes.is_empty() {
            return Vec::new();
        }
        let whole = self.apply(&changes);
        let mut refused = Vec::new();
        for (change, before) in changes.iter().zip(before) {
            let prefix = change.prefix();
            match if whole.is_ok() { Ok(()) } else { self.make(change) } {
                Ok(()) => {
                    hops.release(before, Referrer::Other);
                    self.settled(prefix, matches!(change, Change::Remove { .. }));
                }
                Err(error) => refused.extend(self.refuse(prefix, before, error, hops)),
            }
        }
        refused
    }

    /// Makes all changes. Many are faster when the FIB may load the insertions first; a lookup in
    /// between finds the longest of the old and the new routes, which is the right one before or
    /// the right one after.
    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), fib::Error> {
        if changes.len() < BULK {
            return self.fib.apply(changes);
        }
        self.fib.load(&mut changes.iter().filter_map(|change| match *change {
            Change::Insert { prefix, next_hop } => Some((prefix, next_hop)),
            Change::Remove { .. } => None,
        }))?;
        let removals = changes.iter().filter(|change| matches!(change, Change::Remove { .. }));
        let removals: Vec<Change<A>> = removals.copied().collect();
        self.fib.apply(&removals)
    }

    /// Makes a change of a batch that failed, unless it was made before the failure.
    fn make(&mut self, change: &Change<A>) -> Result<(), fib::Error> {
        let prefix = change.prefix();
        match *change {
            Change::Remove { .. } => {
                self.fib.remove(prefix);
                Ok(())
            }
            Change::Insert { next_hop, .. } if self.fib.get(prefix) == Some(next_hop) => Ok(()),
            Change::Insert { next_hop, .. } => self.fib.insert(prefix, next_hop).map(drop),
        }
    }

    /// The FIB is as a prefix wants it; the entry goes if it `may_be_empty`, and is.
    fn settled(&mut self, prefix: Prefix<A>, may_be_empty: bool) {
        if !self.pending.is_empty() {
            self.pending.remove(&prefix);
        }
        // A search in a table of a million costs as much as the change itself.
        let empty = |entry: &Entry| entry.is_empty() && entry.installed == NO_ROUTE;
        if may_be_empty && self.entries.get(&prefix).is_some_and(empty) {
            self.entries.remove(&prefix);
            self.lengths[usize::from(prefix.len())] -= 1;
        }
    }

    /// Notes that the FIB still has what it had. Says so once.
    fn refuse(
        &mut self,
        prefix: Prefix<A>,
        before: u16,
        error: fib::Error,
        hops: &mut NextHops,
    ) -> Option<Refusal<A>> {
        let entry = self.entries.get_mut(&prefix)?;
        let wanted = std::mem::replace(&mut entry.installed, before);
        hops.release(wanted, Referrer::Other);
        self.pending.insert(prefix).then_some((prefix, error))
    }

    /// Tries again some of what the FIB refused.
    pub(super) fn retry(&mut self, hops: &mut NextHops, most: usize) {
        self.fib.collect();
        if self.pending.is_empty() {
            return;
        }
        let from = self.retried.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<_> =
            self.pending.range((from, Bound::Unbounded)).take(most).copied().collect();
        self.retried = some.last().copied();
        self.install(&some, hops);
    }

    /// Lets the sweep look at every prefix from now on.
    pub(super) fn start_sweep(&mut self) {
        if self.sweep.running {
            self.sweep.again = true;
        } else {
            self.sweep = Sweep { last: None, running: true, again: false };
        }
    }

    /// Whether the sweep has not come to the end.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep.running
    }

    /// Looks at the next prefixes of the sweep: takes out candidates whose group is gone, and makes
    /// the FIB follow where a next hop has died or come alive.
    pub(super) fn sweep(&mut self, most: usize, hops: &mut NextHops) -> Vec<Refusal<A>> {
        if !self.sweep.running {
            return Vec::new();
        }
        let from = self.sweep.last.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut changed, mut looked_at, mut ended) = (Vec::new(), 0, true);
        for (&prefix, entry) in self.entries.range_mut((from, Bound::Unbounded)) {
            // A change costs some ten times a look.
            if looked_at >= most || changed.len() >= most.div_ceil(8) {
                ended = false;
                break;
            }
            looked_at += 1;
            self.sweep.last = Some(prefix);
            while let Some(gone) = entry.take(|candidate| hops.is_gone(candidate.hop)) {
                self.counts[gone.source.index()] -= 1;
                hops.release(gone.hop, Referrer::of(gone.source));
            }
            let best = best(entry, hops).map_or(NO_ROUTE, |candidate| candidate.hop);
            if best != entry.installed || entry.is_empty() {
                changed.push(prefix);
            }
        }
        if ended {
            let again = self.sweep.again;
            self.sweep = Sweep { last: None, running: again, again: false };
        }
        self.install(&changed, hops)
    }

    /// Compares the next entries with the FIB's copy of its routes, and that with what lookups
    /// find; and finds candidates of the source that are not of this generation. Returns where to
    /// go on, `None` at the end. Nothing is being swept.
    pub(super) fn audit(
        &self,
        after: Option<Prefix<A>>,
        most: usize,
        (source, generation): (Source, u16),
        hops: &NextHops,
        faults: &mut Vec<Fault>,
    ) -> Option<Prefix<A>> {
        let reader = self.fib.reader();
        // Of the prefixes that begin with the same address the longest is what it is looked up as.
        let mut longest: Option<(Prefix<A>, u16)> = None;
        let mut begun: Option<Prefix<A>> = None;
        let look_up = |longest: &mut Option<(Prefix<A>, u16)>, faults: &mut Vec<Fault>| {
            let Some((prefix, hop)) = longest.take() else { return };
            if reader.lookup(prefix.address()) != hop {
                faults.push(Fault::Fib(A::net(prefix), "was looked up as another route"));
            }
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (looked_at, (&prefix, entry)) in
            self.entries.range((from, Bound::Unbounded)).enumerate()
        {
            if begun.is_none_or(|begun| begun.address() != prefix.address()) {
                look_up(&mut longest, faults);
                if looked_at >= most {
                    return begun;
                }
            }
            begun = Some(prefix);
            let told = |c: &Candidate| c.source != source || c.generation == generation;
            for left in entry.candidates().filter(|c| !told(c) && !hops.is_gone(c.hop)) {
                faults.push(Fault::Stale(A::net(prefix), left.metric));
            }
            let has = self.fib.get(prefix).unwrap_or(NO_ROUTE);
            let best = best(entry, hops).map_or(NO_ROUTE, |candidate| candidate.hop);
            if has != entry.installed {
                faults.push(Fault::Fib(A::net(prefix), "had another next hop than was set"));
            } else if best != entry.installed && !self.pending.contains(&prefix) {
                faults.push(Fault::Fib(A::net(prefix), "did not have the best route's next hop"));
            }
            if has != NO_ROUTE {
                longest = Some((prefix, has));
            }
        }
        look_up(&mut longest, faults);
        None
    }

    /// Makes the FIB's route to a prefix anew. The rest follows with [`Self::sync`].
    pub(super) fn repair(&mut self, prefix: &IpNet) {
        let Some(prefix) = A::prefix(prefix) else { return };
        let Some(entry) = self.entries.get(&prefix) else { return };
        self.fib.remove(prefix);
        // Without room the next audit finds it again.
        if entry.installed != NO_ROUTE {
            let _ = self.fib.insert(prefix, entry.installed);
        }
        self.touched.push(prefix);
    }

    /// The entries of the prefixes that hold an address, longest first.
    pub(super) fn covering(&self, address: A) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        let longest = Prefix::host(address).len();
        let used = (0..=longest).rev().filter(|&len| self.lengths[usize::from(len)] > 0);
        used.filter_map(move |len| {
            let prefix = Prefix::covering(address, len);
            Some((prefix, self.entries.get(&prefix)?))
        })
    }

    /// The longest prefix that holds the address and has a live candidate.
    pub(super) fn longest(&self, address: A, hops: &NextHops) -> Option<(Prefix<A>, &Entry)> {
        self.covering(address).find(|(_, entry)| best(entry, hops).is_some())
    }
}

/// The candidate that forwarders are to use: the first that leads somewhere. A route to the hosts
/// on an interface's network gives way to the host route of a neighbour, which is the same and faster.
pub(super) fn best(entry: &Entry, hops: &NextHops) -> Option<Candidate> {
    let best = entry.find(|candidate| hops.is_live(candidate.hop))?;
    if entry.has_one() || hops.glean_port(best.hop).is_none() {
        return Some(best);
    }
    let is_neighbour =
        |other: &Candidate| other.source == Source::Neighbour && hops.is_live(other.hop);
    entry.find(is_neighbour).or(Some(best))
}
