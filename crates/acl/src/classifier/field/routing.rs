//! The types of a packet's routing headers: a bit for each type that rules name.

use crate::{
    Matches,
    conditions::{Ranges, merge},
    key::Headers,
};

/// Most different types that a filter's rules name.
pub(in super::super) const ROUTING_TYPES_MAX: usize = 8;

/// The types that rules name.
pub(in super::super) struct RoutingField {
    /// Number of types.
    count: usize,
    /// By type: its bit, 0 for a type that no rule names.
    bits: Box<[u16; 256]>,
}

impl RoutingField {
    /// Collects the types of these rules; `None`: no rule has a condition on them.
    pub fn new(rules: &[Option<&Matches>]) -> Option<Self> {
        let mut known: Vec<u8> =
            rules.iter().flatten().flat_map(|of| of.routing.iter().copied()).collect();
        known.sort_unstable();
        known.dedup();
        let mut bits = Box::new([0; 256]);
        for (bit, kind) in known.iter().take(ROUTING_TYPES_MAX).enumerate() {
            bits[usize::from(*kind)] = 1 << bit;
        }
        (!known.is_empty()).then_some(Self { count: known.len(), bits })
    }

    /// Returns the number of different types.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of its values.
    pub fn values(&self) -> usize {
        1 << self.count.min(ROUTING_TYPES_MAX)
    }

    /// Returns the numbers with a bit of the rule's types.
    pub fn allowed(&self, matches: &Matches) -> Option<Ranges> {
        let wanted = self.number(&matches.routing);
        let values = (0..self.values() as u16).filter(|value| value & wanted != 0);
        (wanted != 0).then(|| merge(values.map(|value| value..=value).collect()))
    }

    fn number(&self, types: &[u8]) -> u16 {
        types.iter().fold(0, |bits, kind| bits | self.bits[usize::from(*kind)])
    }

    #[inline]
    pub(super) fn find(&self, headers: &[Headers], out: &mut [u16]) {
        out.fill(0);
        for (out, headers) in out.iter_mut().zip(headers) {
            *out = self.number(headers.routing_types());
        }
    }
}
