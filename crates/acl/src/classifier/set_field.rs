//! The sets of an address as a number: a bit for each list of sets that rules name.
//!
//! The sets of an address change while packets are looked up. What a rule asks for does not: one of the sets of its
//! list. So the number that packets are classified by has a bit for each different list.

use super::super::sets::Members;
use crate::{
    Matches, SetReaders,
    classes::FilterAddress,
    conditions::{Number, Ranges, merge},
    fields::{BATCH, Fields},
};

/// Most different lists of sets for each end of a packet.
pub(super) const LISTS_MAX: usize = 8;

/// Values of the number.
pub(super) const SETS_VALUES: usize = 1 << LISTS_MAX;

/// Whose sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

impl End {
    fn list(self, matches: &Matches) -> &[String] {
        match self {
            Self::Source => &matches.from_set,
            Self::Destination => &matches.to_set,
        }
    }

    /// For messages.
    pub fn what(self) -> &'static str {
        match self {
            Self::Source => "different lists in from_set",
            Self::Destination => "different lists in to_set",
        }
    }
}

/// The lists that rules name for an end.
pub(super) struct SetLists<'r, A: FilterAddress> {
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

    /// The numbers with the bit of the rule's list.
    pub fn allowed(&self, matches: &Matches) -> Option<Ranges> {
        let own = self.made.end.list(matches);
        let bit = self.lists.iter().position(|list| *list == own)?;
        let values = (0..SETS_VALUES as u16).filter(|value| value >> bit & 1 != 0);
        Some(merge(values.map(|value| value..=value).collect()))
    }
}

/// How the number of a packet is found.
pub(super) struct SetField<A: FilterAddress> {
    end: End,
    members: Members<A>,
    /// The sets of each list, one bit each.
    masks: Vec<u64>,
}

impl<A: FilterAddress> SetField<A> {
    /// The numbers of these addresses.
    #[inline]
    fn find(&self, addresses: &[A::Bits], out: &mut [u16]) {
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

/// What a number is made of.
pub(super) enum Field<A: FilterAddress> {
    Number(Number),
    Sets(SetField<A>),
}

impl<A: FilterAddress> Field<A> {
    /// How many values it has.
    pub fn values(&self) -> usize {
        match self {
            Self::Number(number) => number.values(),
            Self::Sets(_) => SETS_VALUES,
        }
    }

    /// Of all packets; those of places without one mean nothing.
    #[inline(always)]
    pub fn all(&self, fields: &Fields<A>, out: &mut [u16]) {
        match self {
            Self::Number(number) => fields.numbers(*number, out),
            Self::Sets(of) if of.end == End::Source => of.find(fields.sources(), out),
            Self::Sets(of) => of.find(fields.destinations(), out),
        }
    }

    /// Of the packet at this place.
    pub fn one(&self, fields: &Fields<A>, place: usize) -> u16 {
        let mut number = [0];
        match self {
            Self::Number(number) => return fields.number(*number, place),
            Self::Sets(of) if of.end == End::Source => {
                of.find(&[fields.source(place)], &mut number)
            }
            Self::Sets(of) => of.find(&[fields.destination(place)], &mut number),
        }
        number[0]
    }
}
