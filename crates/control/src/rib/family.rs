//! The routes of one address family, and its FIB.
//!
//! For each prefix all candidates are stored, best first; the FIB holds the best live one. The
//! FIB's present next hop is stored apart from the candidates: if the FIB refuses a change for lack
//! of room, the prefix is marked, and the next hop that lookups still return is not freed.
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

use super::RouteSource;
use super::entry::{Candidate, Distances, Entry};
use super::next_hops::{NextHops, Referrer};

/// Address families of the RIB.
pub(super) trait Family: Address {
    /// Returns the prefix in this family, or `None` if it is of the other. Host bits are cleared.
    fn prefix(net: &IpNet) -> Option<Prefix<Self>>;
    /// Returns the prefix as one of either family.
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

/// Converts the start of a walk through both families, IPv4 first, to the start in this family.
pub(super) fn start<A: Family>(start: Bound<IpNet>) -> Bound<Prefix<A>> {
    // Past every prefix of the family: an IPv4 walk that starts among IPv6 prefixes is over.
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

/// A prefix for whose change the FIB had no room, and the error.
pub(super) type Refusal<A> = (Prefix<A>, fib::Error);

/// A fault found by an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The source has a route to this prefix, with this metric, that it has not reported again.
    Stale(IpNet, u64),
    /// The FIB differs from the entry of this prefix; the difference in words.
    Fib(IpNet, &'static str),
}

/// Number of changes from which on a FIB uses its bulk load.
const BULK: usize = 1024;

/// A walk over all entries that resumes where it stopped.
#[derive(Debug)]
struct Sweep<A: Family> {
    /// The last prefix processed; `None` at the beginning.
    last: Option<Prefix<A>>,
    running: bool,
    /// True if there was a change since its beginning: the walk is repeated.
    again: bool,
}

/// The routes of one family.
pub(super) struct Routes<A: Family> {
    fib: Box<dyn Table<A>>,
    /// Another table that gets every change of the FIB: see [`Self::add_twin`].
    twin: Option<Box<dyn Table<A>>>,
    entries: BTreeMap<Prefix<A>, Entry>,
    /// Number of prefixes of each length, so that a search skips lengths that do not occur.
    lengths: Vec<u32>,
    /// Prefixes with changed candidates that the FIB does not reflect yet.
    touched: Vec<Prefix<A>>,
    /// Prefixes whose change the FIB refused; [`Self::retry`] tries them again.
    pending: BTreeSet<Prefix<A>>,
    /// The last pending prefix that was tried again.
    retried: Option<Prefix<A>>,
    sweep: Sweep<A>,
    /// The range whose routes are withheld: see [`Self::withhold`].
    withheld: Option<Prefix<A>>,
    /// Changes of the FIB: prefixes added, removed, or with another next hop.
    pub(super) changes: u64,
    /// The prefixes of these changes, since they were last asked for; `None`: they are not followed.
    installed: Option<Vec<Prefix<A>>>,
    /// Number of candidates of each source, by [`RouteSource::index`].
    pub(super) counts: [usize; RouteSource::ALL.len()],
}

impl<A: Family> Routes<A> {
    pub(super) fn new(fib: Box<dyn Table<A>>) -> Self {
        Self {
            fib,
            twin: None,
            entries: BTreeMap::new(),
            lengths: vec![0; 129],
            touched: Vec::new(),
            pending: BTreeSet::new(),
            retried: None,
            sweep: Sweep { last: None, running: false, again: false },
            withheld: None,
            changes: 0,
            installed: None,
            counts: [0; RouteSource::ALL.len()],
        }
    }

    pub(super) fn fib(&self) -> &dyn Table<A> {
        &*self.fib
    }

    /// Fills another, empty table with the routes of the FIB, and gives it every change from now on, so that
    /// readers can move from one to the other.
    pub(super) fn add_twin(&mut self, mut twin: Box<dyn Table<A>>) -> Result<(), fib::Error> {
        let installed = self.entries.iter().filter(|(_, entry)| entry.installed != NO_ROUTE);
        twin.load(&mut installed.map(|(&prefix, entry)| (prefix, entry.installed)))?;
        self.twin = Some(twin);
        Ok(())
    }

    /// Returns true if there is another table with the same routes: it is lost if it has no room for a change.
    pub(super) fn has_twin(&self) -> bool {
        self.twin.is_some()
    }

    /// Exchanges the roles of the FIB and its twin.
    pub(super) fn swap_twins(&mut self) {
        if let Some(twin) = &mut self.twin {
            std::mem::swap(&mut self.fib, twin);
        }
    }

    pub(super) fn drop_twin(&mut self) {
        self.twin = None;
    }

    #[cfg(test)]
    pub(super) fn fib_for_test(&mut self) -> &mut dyn Table<A> {
        &mut *self.fib
    }

    /// Starts the recording of changes of the FIB.
    pub(super) fn follow_installed(&mut self) {
        self.installed.get_or_insert_default();
    }

    /// Returns the prefixes of the FIB that have been added, removed, or got another next hop since the last call.
    pub(super) fn drain_installed(&mut self) -> Vec<Prefix<A>> {
        self.installed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Returns true if changes of the FIB have been recorded.
    pub(super) fn has_installed(&self) -> bool {
        self.installed.as_ref().is_some_and(|installed| !installed.is_empty())
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    pub(super) fn entry(&self, prefix: Prefix<A>) -> Option<&Entry> {
        self.entries.get(&prefix)
    }

    /// Returns the entries from this prefix on.
    pub(super) fn from(
        &self,
        start: Bound<Prefix<A>>,
    ) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        self.entries.range((start, Bound::Unbounded)).map(|(&prefix, entry)| (prefix, entry))
    }

    /// Returns the entries of the prefixes within `outer`, including itself.
    pub(super) fn within(&self, outer: Prefix<A>) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        let last = Prefix::host(A::from(outer.last_bits()));
        let range = (Bound::Included(outer), Bound::Included(last));
        self.entries.range(range).map(|(&prefix, entry)| (prefix, entry))
    }

    /// Withholds the routes to prefixes within a range, of which only reserved routes are used then, and uses
    /// those that were withheld before. [`Self::sync`] updates the FIB.
    pub(super) fn withhold(&mut self, range: Option<Prefix<A>>) {
        for concerned in [self.withheld, range].into_iter().flatten() {
            let last = Prefix::host(A::from(concerned.last_bits()));
            for (&prefix, entry) in self.entries.range_mut(concerned..=last) {
                entry.withheld = range.is_some_and(|range| is_within(prefix, range));
                self.touched.push(prefix);
            }
        }
        self.withheld = range;
    }

    /// Returns true if routes to this prefix are withheld.
    pub(super) fn is_withheld(&self, prefix: Prefix<A>) -> bool {
        self.withheld.is_some_and(|range| is_within(prefix, range))
    }

    /// Inserts a candidate in order; one of the same source and metric is removed and returned.
    /// [`Self::sync`] updates the FIB.
    pub(super) fn put(
        &mut self,
        prefix: Prefix<A>,
        new: Candidate,
        distances: &Distances,
    ) -> Option<Candidate> {
        let Self { lengths, withheld, .. } = self;
        let entry = self.entries.entry(prefix).or_insert_with(|| {
            lengths[usize::from(prefix.len())] += 1;
            Entry::new(withheld.is_some_and(|range| is_within(prefix, range)))
        });
        let old = entry.put(new, distances);
        if old.is_none() {
            self.counts[new.source.index()] += 1;
        }
        // A repeated route with an unchanged next hop changes nothing.
        if old.is_none_or(|old| old.hop != new.hop) {
            self.touched.push(prefix);
        }
        old
    }

    /// Removes the first matching candidate. [`Self::sync`] updates the FIB.
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

    /// Removes all matching candidates of all prefixes, and passes each to `gone`.
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

    /// Ranks all candidates by other distances. The sweep updates the FIB.
    pub(super) fn rank(&mut self, distances: &Distances) {
        self.entries.values_mut().for_each(|entry| entry.sort(distances));
        self.start_sweep();
    }

    /// Returns the prefixes whose candidates have changed since the last [`Self::sync`], in no
    /// order.
    pub(super) fn touched(&self) -> &[Prefix<A>] {
        &self.touched
    }

    /// Installs the best candidates of the touched prefixes in the FIB, all at once. Returns the
    /// prefixes for which it had no room, and the touched prefixes.
    pub(super) fn sync(&mut self, hops: &mut NextHops) -> (Vec<Refusal<A>>, Vec<Prefix<A>>) {
        let mut touched = std::mem::take(&mut self.touched);
        if touched.len() > 1 {
            touched.sort_unstable();
            touched.dedup();
        }
        let refused = self.install(&touched, hops);
        (refused, touched)
    }

    /// Updates the FIB's routes to these prefixes, each prefix once.
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
            // References of the FIB: the new next hop is retained, the old one is not released yet.
            hops.retain(best, Referrer::Other);
            before.push(std::mem::replace(&mut entry.installed, best));
        }
        if changes.is_empty() {
            return Vec::new();
        }
        let whole = self.apply(&changes);
        self.changes += changes.len() as u64;
        if let Some(installed) = &mut self.installed {
            installed.extend(changes.iter().map(Change::prefix));
        }
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

    /// Makes all changes, in the twin as well.
    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), fib::Error> {
        apply(&mut *self.fib, changes)?;
        self.twin.take_if(|twin| apply(&mut **twin, changes).is_err());
        Ok(())
    }

    /// Makes a change of a failed batch, unless it was made before the failure; in the twin as well.
    fn make(&mut self, change: &Change<A>) -> Result<(), fib::Error> {
        make(&mut *self.fib, change)?;
        self.twin.take_if(|twin| make(&mut **twin, change).is_err());
        Ok(())
    }

    /// Handles a prefix that the FIB reflects; the entry is removed if it is empty and
    /// `may_be_empty`.
    fn settled(&mut self, prefix: Prefix<A>, may_be_empty: bool) {
        if !self.pending.is_empty() {
            self.pending.remove(&prefix);
        }
        // A search in a table of a million takes as long as the change itself.
        let empty = |entry: &Entry| entry.is_empty() && entry.installed == NO_ROUTE;
        if may_be_empty && self.entries.get(&prefix).is_some_and(empty) {
            self.entries.remove(&prefix);
            self.lengths[usize::from(prefix.len())] -= 1;
        }
    }

    /// Records that the FIB kept its route. Returns the refusal only once per prefix.
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

    /// Retries some of the changes that the FIB refused.
    pub(super) fn retry(&mut self, hops: &mut NextHops, most: usize) {
        self.fib.collect();
        if let Some(twin) = &mut self.twin {
            twin.collect();
        }
        if self.pending.is_empty() {
            return;
        }
        let from = self.retried.map_or(Bound::Unbounded, Bound::Excluded);
        let some: Vec<_> =
            self.pending.range((from, Bound::Unbounded)).take(most).copied().collect();
        self.retried = some.last().copied();
        self.install(&some, hops);
    }

    /// Starts the sweep of all prefixes, or repeats a running one.
    pub(super) fn start_sweep(&mut self) {
        if self.sweep.running {
            self.sweep.again = true;
        } else {
            self.sweep = Sweep { last: None, running: true, again: false };
        }
    }

    /// Returns true if the sweep has not finished.
    pub(super) fn is_sweeping(&self) -> bool {
        self.sweep.running
    }

    /// Processes the next prefixes of the sweep: removes candidates whose group was removed, and
    /// updates the FIB where a next hop has died or come alive. Each prefix takes one from `left`, and a
    /// changed one eight, since a change takes some ten times as long as a look.
    pub(super) fn sweep(&mut self, left: &mut usize, hops: &mut NextHops) -> Vec<Refusal<A>> {
        if !self.sweep.running {
            return Vec::new();
        }
        let from = self.sweep.last.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut changed, mut ended) = (Vec::new(), true);
        for (&prefix, entry) in self.entries.range_mut((from, Bound::Unbounded)) {
            if *left == 0 {
                ended = false;
                break;
            }
            *left -= 1;
            self.sweep.last = Some(prefix);
            while let Some(gone) = entry.take(|candidate| hops.is_gone(candidate.hop)) {
                self.counts[gone.source.index()] -= 1;
                hops.release(gone.hop, Referrer::of(gone.source));
                self.touched.push(prefix);
            }
            let best = best(entry, hops).map_or(NO_ROUTE, |candidate| candidate.hop);
            if best != entry.installed || entry.is_empty() {
                changed.push(prefix);
                *left = left.saturating_sub(7);
            }
        }
        if ended {
            let again = self.sweep.again;
            self.sweep = Sweep { last: None, running: again, again: false };
        }
        self.install(&changed, hops)
    }

    /// Compares the next entries with the FIB's copy of its routes, and that with the results of
    /// lookups; also finds candidates of the source that are not of this generation. Returns the
    /// position to continue from, `None` at the end. No sweep may be running.
    pub(super) fn audit(
        &self,
        after: Option<Prefix<A>>,
        most: usize,
        (source, generation): (RouteSource, u16),
        hops: &NextHops,
        faults: &mut Vec<Fault>,
    ) -> Option<Prefix<A>> {
        let reader = self.fib.reader();
        // Of the prefixes that begin with the same address, a lookup of the address finds the
        // longest.
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

    /// Restores the FIB's route to a prefix. [`Self::sync`] does the rest.
    pub(super) fn repair(&mut self, prefix: &IpNet) {
        let Some(prefix) = A::prefix(prefix) else { return };
        let Some(entry) = self.entries.get(&prefix) else { return };
        self.fib.remove(prefix);
        // If there is no room, the next audit finds it again.
        if entry.installed != NO_ROUTE {
            let _ = self.fib.insert(prefix, entry.installed);
        }
        self.touched.push(prefix);
    }

    /// Returns the entries of the prefixes that contain an address, longest first.
    pub(super) fn covering(&self, address: A) -> impl Iterator<Item = (Prefix<A>, &Entry)> {
        let longest = Prefix::host(address).len();
        let used = (0..=longest).rev().filter(|&len| self.lengths[usize::from(len)] > 0);
        used.filter_map(move |len| {
            let prefix = Prefix::covering(address, len);
            Some((prefix, self.entries.get(&prefix)?))
        })
    }

    /// Returns the longest prefix that contains the address and has a live candidate.
    pub(super) fn longest(&self, address: A, hops: &NextHops) -> Option<(Prefix<A>, &Entry)> {
        self.covering(address).find(|(_, entry)| best(entry, hops).is_some())
    }
}

/// Returns true if a prefix is the range, or one of its parts.
fn is_within<A: Family>(prefix: Prefix<A>, range: Prefix<A>) -> bool {
    prefix.len() >= range.len() && range.contains(prefix.address())
}

/// Makes all changes. Many changes are faster if the table may bulk-load the insertions first; a
/// lookup in between finds the longest of the old and the new routes, which is the right one
/// before or after the changes.
fn apply<A: Family>(table: &mut dyn Table<A>, changes: &[Change<A>]) -> Result<(), fib::Error> {
    if changes.len() < BULK {
        return table.apply(changes);
    }
    table.load(&mut changes.iter().filter_map(|change| match *change {
        Change::Insert { prefix, next_hop } => Some((prefix, next_hop)),
        Change::Remove { .. } => None,
    }))?;
    let removals = changes.iter().filter(|change| matches!(change, Change::Remove { .. }));
    let removals: Vec<Change<A>> = removals.copied().collect();
    table.apply(&removals)
}

/// Makes a change, unless it was made before.
fn make<A: Family>(table: &mut dyn Table<A>, change: &Change<A>) -> Result<(), fib::Error> {
    let prefix = change.prefix();
    match *change {
        Change::Remove { .. } => {
            table.remove(prefix);
            Ok(())
        }
        Change::Insert { next_hop, .. } if table.get(prefix) == Some(next_hop) => Ok(()),
        Change::Insert { next_hop, .. } => table.insert(prefix, next_hop).map(drop),
    }
}

/// Returns the candidate for the forwarders: the first live one. A route to the hosts on an
/// interface's network is passed over in favour of a neighbour's host route, which is equivalent
/// and faster.
pub(super) fn best(entry: &Entry, hops: &NextHops) -> Option<Candidate> {
    let is_usable =
        |candidate: &Candidate| hops.is_live(candidate.hop) && !entry.withholds(candidate);
    let best = entry.find(is_usable)?;
    if entry.has_one() || hops.glean_port(best.hop).is_none() {
        return Some(best);
    }
    let is_neighbour =
        |other: &Candidate| other.source == RouteSource::Neighbour && hops.is_live(other.hop);
    entry.find(is_neighbour).or(Some(best))
}
