//! The sets of an address.
//!
//! They change while packets are looked up; the condition of a rule does not: one of the sets of its list. So the number
//! by which packets are classified has a bit for each different list of sets that rules name.

use super::End;
use crate::sets::Members;
use crate::{
    Matches, SetReaders,
    classes::FilterAddress,
    conditions::{Ranges, merge},
    fields::BATCH,
};

/// Most different lists of sets for each of source and destination.
pub(in super::super) const LISTS_MAX: usize = 8;

/// Number of values.
pub(in super::super) const SETS_VALUES: usize = 1 << LISTS_MAX;

/// The lists that rules name for one end.
pub(in super::super) struct SetLists<'r, A: FilterAddress> {
    pub lists: Vec<&'r [String]>,
    pub made: SetField<A>,
}

impl<'r, A: FilterAddress> SetLists<'r, A> {
    pub fn new(end: End, rules: &[Option<&'r Matches>], sets: &SetReaders) -> Self {
        let mut lists: Vec<&[String]> = rules.iter().flatten().map(|of| end.list(of)).collect();
        lists.sort_unstable();
        lists.dedup();
        lists.retain(|list| !list.is_empty());
        let masks = lists.iter().map(|list| sets.mask(list)).collect();
        Self { lists, made: SetField { end, members: A::members(sets).clone(), masks } }
    }

    /// Returns the numbers with the bit of the rule's list.
    pub fn allowed(&self, matches: &Matches) -> Option<Ranges> {
        let own = self.made.end.list(matches);
        let bit = self.lists.iter().position(|list| *list == own)?;
        let values = (0..SETS_VALUES as u16).filter(|value| value >> bit & 1 != 0);
        Some(merge(values.map(|value| value..=value).collect()))
    }
}

/// Lookup of the number of a packet's sets.
pub(in super::super) struct SetField<A: FilterAddress> {
    pub(super) end: End,
    members: Members<A>,
    /// The sets of each list, one bit each.
    masks: Vec<u64>,
}

impl<A: FilterAddress> SetField<A> {
    /// Has the processor fetch the memory that the lookup of these addresses reads first.
    #[inline]
    pub(super) fn prefetch(&self, addresses: &[A::Bits]) {
        self.members.prefetch(addresses);
    }

    /// Finds the numbers of these addresses.
    #[inline]
    pub(super) fn find(&self, addresses: &[A::Bits], out: &mut [u16]) {
        let mut sets = [0; BATCH];
        self.members.find(addresses, &mut sets);
        out.fill(0);
        for (bit, mask) in self.masks.iter().enumerate() {
            for (out, sets) in out.iter_mut().zip(&sets) {
                *out |= u16::from(sets & mask != 0) << bit;
            }
        }
    }
}
