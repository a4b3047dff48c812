//! Up to 64 rules: one word for each class, one field after the other.

use super::{NO_RULE, TooLarge, WORD, layout};
use crate::{
    Filter,
    classes::{AddressClasses, FilterAddress, NumberClasses},
    conditions::Number,
    fields::{BATCH, Fields},
};

pub(super) struct Few<A: FilterAddress> {
    source: Option<(AddressClasses<A>, Vec<u64>)>,
    destination: Option<(AddressClasses<A>, Vec<u64>)>,
    numbers: Vec<(Number, NumberClasses, Vec<u64>)>,
    /// The rule behind each bit.
    rules: [u32; WORD],
}

impl<A: FilterAddress> Few<A> {
    pub fn new(layout: layout::Layout<A>, filter: &Filter) -> Result<Self, TooLarge> {
        let address = |of: layout::AddressLayout<A>| {
            Ok((layout::classes(&of.prefixes, filter)?, of.bits.bits))
        };
        let number = |of: layout::NumberLayout| {
            (of.number, NumberClasses::new(of.number, &of.ranges), of.bits.bits)
        };
        let mut rules = [NO_RULE; WORD];
        rules.iter_mut().zip(layout.rules).for_each(|(bit, rule)| *bit = rule);
        Ok(Self {
            source: layout.source.map(address).transpose()?,
            destination: layout.destination.map(address).transpose()?,
            numbers: layout.numbers.into_iter().map(number).collect(),
            rules,
        })
    }

    pub fn classify(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        let mut bits = [!0u64; BATCH];
        let mut classes = [0; BATCH];
        let classes = &mut classes[..fields.padded()];
        let addresses =
            [(&self.source, fields.sources()), (&self.destination, fields.destinations())];
        for (field, addresses) in addresses {
            if let Some((of, rows)) = field {
                of.find(addresses, classes);
                restrict(&mut bits, rows, classes);
            }
        }
        for (number, of, rows) in &self.numbers {
            fields.numbers(*number, classes);
            of.find(classes);
            restrict(&mut bits, rows, classes);
        }
        for (found, bits) in found.iter_mut().zip(&bits[..fields.len()]) {
            let rule = self.rules[bits.trailing_zeros() as usize % WORD];
            *found = if *bits == 0 { NO_RULE } else { rule };
        }
    }
}

#[inline(always)]
fn restrict(bits: &mut [u64; BATCH], rows: &[u64], classes: &[u16]) {
    for (bits, class) in bits.iter_mut().zip(classes) {
        *bits &= rows.get(usize::from(*class)).copied().unwrap_or(0);
    }
}
