//! Fields converted to numbers: the sets of an address, and MACs.
//!
//! The number of a MAC is its index among those that rules name, from 1 on; 0 is any other. The sets of an address
//! change while packets are looked up; the condition of a rule does not: one of the sets of its list. So the number by
//! which packets are classified has a bit for each different list of sets that rules name.

use wire::MacAddr;

use super::super::sets::Members;
use crate::{
    Matches, SetReaders,
    classes::FilterAddress,
    conditions::{Number, Ranges, merge},
    fields::{BATCH, Fields},
    key::mac_number,
};

/// Most different lists of sets for each of source and destination.
pub(super) const LISTS_MAX: usize = 8;

/// Number of values.
pub(super) const SETS_VALUES: usize = 1 << LISTS_MAX;

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Destination = 0,
    Source = 1,
}

impl End {
    fn list(self, matches: &Matches) -> &[String] {
        match self {
            Self::Source => &matches.from_set,
            Self::Destination => &matches.to_set,
        }
    }

    fn macs(self, matches: &Matches) -> &[MacAddr] {
        match self {
            Self::Source => &matches.from_mac,
            Self::Destination => &matches.to_mac,
        }
    }

    /// Returns the description for messages.
    pub fn what(self) -> &'static str {
        match self {
            Self::Source => "different lists in from_set",
            Self::Destination => "different lists in to_set",
        }
    }
}

/// The lists that rules name for one end.
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

    /// Returns the numbers with the bit of the rule's list.
    pub fn allowed(&self, matches: &Matches) -> Option<Ranges> {
        let own = self.made.end.list(matches);
        let bit = self.lists.iter().position(|list| *list == own)?;
        let values = (0..SETS_VALUES as u16).filter(|value| value >> bit & 1 != 0);
        Some(merge(values.map(|value| value..=value).collect()))
    }
}

/// Lookup of the number of a packet's sets.
pub(super) struct SetField<A: FilterAddress> {
    end: End,
    members: Members<A>,
    /// The sets of each list, one bit each.
    masks: Vec<u64>,
}

impl<A: FilterAddress> SetField<A> {
    /// Finds the numbers of these addresses.
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

/// The MACs that rules name for one end.
pub(super) struct MacField {
    end: End,
    /// In order.
    known: Vec<u64>,
    /// By hash: the MAC, and its index from 1 on; 0 for none. At least half of the slots are free.
    slots: Box<[(u64, u16)]>,
}

/// Most different MACs of a filter's rules for each of source and destination.
pub(super) const MACS_MAX: usize = (1 << 15) - 1;

impl MacField {
    /// Collects the MACs of these rules; `None`: no rule has a condition on them.
    pub fn new(end: End, rules: &[Option<&Matches>]) -> Option<Self> {
        let macs = rules.iter().flatten().flat_map(|of| end.macs(of));
        let mut known: Vec<u64> = macs.map(|mac| mac_number(*mac)).collect();
        known.sort_unstable();
        known.dedup();
        let mut slots = vec![(0, 0); (known.len() * 2).next_power_of_two()].into_boxed_slice();
        for (place, mac) in (1..).zip(known.iter().take(MACS_MAX)) {
            let at = slot_of(&slots, *mac);
            slots[at] = (*mac, place);
        }
        (!known.is_empty()).then_some(Self { end, known, slots })
    }

    /// Returns the number of different MACs.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the indices of a rule's MACs.
    pub fn allowed(&self, matches: &Matches) -> Option<Ranges> {
        let own = self.end.macs(matches);
        let place = |mac: &MacAddr| self.slots[slot_of(&self.slots, mac_number(*mac))].1;
        let places = own.iter().map(place).map(|place| place..=place);
        (!own.is_empty()).then(|| merge(places.collect()))
    }

    #[inline]
    fn find(&self, macs: &[u64], out: &mut [u16]) {
        out.fill(0);
        for (out, mac) in out.iter_mut().zip(macs) {
            *out = self.slots[slot_of(&self.slots, *mac)].1;
        }
    }
}

/// Returns the slot of a MAC, or the free one for it.
#[inline(always)]
fn slot_of(slots: &[(u64, u16)], mac: u64) -> usize {
    // Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4). Only the operator adds MACs.
    let mut at = (mac.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (slots.len() - 1);
    while slots[at].1 != 0 && slots[at].0 != mac {
        at = (at + 1) & (slots.len() - 1);
    }
    at
}

/// Source of a number.
pub(super) enum Field<A: FilterAddress> {
    Number(Number),
    Sets(SetField<A>),
    Macs(MacField),
}

impl<A: FilterAddress> Field<A> {
    /// Returns the number of its values.
    pub fn values(&self) -> usize {
        match self {
            Self::Number(number) => number.values(),
            Self::Sets(_) => SETS_VALUES,
            Self::Macs(of) => of.len() + 1,
        }
    }

    /// Finds the numbers of all packets; results at unused positions are meaningless.
    #[inline(always)]
    pub fn all(&self, fields: &Fields<A>, out: &mut [u16]) {
        match self {
            Self::Number(number) => fields.numbers(*number, out),
            Self::Sets(of) if of.end == End::Source => of.find(fields.sources(), out),
            Self::Sets(of) => of.find(fields.destinations(), out),
            Self::Macs(of) => of.find(fields.macs(of.end as usize), out),
        }
    }

    /// Finds the number of the packet at this position.
    pub fn one(&self, fields: &Fields<A>, place: usize) -> u16 {
        let mut number = [0];
        match self {
            Self::Number(number) => return fields.number(*number, place),
            Self::Sets(of) if of.end == End::Source => {
                of.find(&[fields.source(place)], &mut number)
            }
            Self::Sets(of) => of.find(&[fields.destination(place)], &mut number),
            Self::Macs(of) => {
                let macs = fields.macs(of.end as usize);
                of.find(macs.get(place..).unwrap_or_default(), &mut number);
            }
        }
        number[0]
    }
}
