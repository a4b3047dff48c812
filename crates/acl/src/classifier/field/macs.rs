//! MACs: the number of each is its index among those that rules name, from 1 on; 0 is any other.

use wire::MacAddr;

use super::End;
use crate::{
    Matches,
    conditions::{Ranges, merge},
    key::mac_number,
};

/// The MACs that rules name for one end.
pub(in super::super) struct MacField {
    pub(super) end: End,
    /// In order.
    known: Vec<u64>,
    /// By hash: the MAC, and its index from 1 on; 0 for none. At least half of the slots are free.
    slots: Box<[(u64, u16)]>,
}

/// Most different MACs of a filter's rules for each of source and destination.
pub(in super::super) const MACS_MAX: usize = (1 << 15) - 1;

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
    pub(super) fn find(&self, macs: &[u64], out: &mut [u16]) {
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
