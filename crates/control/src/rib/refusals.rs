//! Refusals: changes for which the FIB or the next-hop table had no room.

use dataplane::interface::VrfId;
use ipnet::IpNet;

use super::Error;

/// Most refusals of the FIB that are stored until [`super::Rib::drain_refusals`].
const KEPT: usize = 1024;

/// The number of all refusals, and those of the FIB that no call has returned as its error yet.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: u64,
    by_fib: Vec<(VrfId, Error)>,
}

impl Refusals {
    /// Returns the number of all refusals so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Counts refusals that their callers know of.
    pub(super) fn add(&mut self, count: u64) {
        self.count += count;
    }

    /// Counts refusals of the FIB, and stores as many as there is room for.
    pub(super) fn extend(&mut self, refusals: impl ExactSizeIterator<Item = (VrfId, Error)>) {
        self.count += refusals.len() as u64;
        let room = KEPT.saturating_sub(self.by_fib.len());
        self.by_fib.extend(refusals.take(room));
    }

    /// Returns the number of stored refusals, from which on [`Self::take_since`] and [`Self::take_first`] look.
    pub(super) fn kept(&self) -> usize {
        self.by_fib.len()
    }

    /// Takes the refusals stored since there were so many.
    pub(super) fn take_since(&mut self, kept: usize) -> impl Iterator<Item = Error> {
        self.by_fib.drain(kept.min(self.by_fib.len())..).map(|(_, error)| error)
    }

    /// Takes the first of the refusals since then that concerns a prefix, or any for `None`.
    pub(super) fn take_first(
        &mut self,
        kept: usize,
        prefix: Option<(VrfId, IpNet)>,
    ) -> Option<Error> {
        let concerns = |(vrf, error): &(VrfId, Error)| match (error, prefix) {
            (Error::Fib { prefix, .. }, Some(wanted)) => (*vrf, *prefix) == wanted,
            _ => true,
        };
        let new = self.by_fib.iter().skip(kept).position(concerns)?;
        Some(self.by_fib.remove(kept + new).1)
    }
}
