//! Up to 64 times `W` rules: `W` words for each class, one field after the other, nothing to decide.

use super::{NO_RULE, TooLarge, WORD, layout, rules_of, set_field::Field};
use crate::{
    Filter,
    classes::{AddressClasses, FilterAddress, NumberClasses},
    fields::{BATCH, Fields},
};

pub(super) struct Few<A: FilterAddress, const W: usize> {
    source: Option<(AddressClasses<A>, Rows<W>)>,
    destination: Option<(AddressClasses<A>, Rows<W>)>,
    numbers: Vec<(Field<A>, NumberClasses, Rows<W>)>,
    /// The rule behind each bit.
    rules: [[u32; WORD]; W],
}

/// By class: a bit for each rule that allows it.
type Rows<const W: usize> = Vec<[u64; W]>;

impl<A: FilterAddress, const W: usize> Few<A, W> {
    /// `layout` has at most `W` words of rules.
    pub fn new(layout: layout::Layout<A>, filter: &Filter) -> Result<Self, TooLarge> {
        let address = |of: layout::AddressLayout<A>| {
            Ok((layout::classes(&of.prefixes, filter)?, rows(&of.bits)))
        };
        let number = |of: layout::NumberLayout<A>| {
            let classes = NumberClasses::new(of.field.values(), &of.ranges);
            (of.field, classes, rows(&of.bits))
        };
        let mut rules = [[NO_RULE; WORD]; W];
        rules.iter_mut().flatten().zip(layout.rules).for_each(|(bit, rule)| *bit = rule);
        Ok(Self {
            source: layout.source.map(address).transpose()?,
            destination: layout.destination.map(address).transpose()?,
            numbers: layout.numbers.into_iter().map(number).collect(),
            rules,
        })
    }

    pub fn classify(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        let mut bits = [[!0u64; W]; BATCH];
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
        for (field, of, rows) in &self.numbers {
            field.all(fields, classes);
            of.find(classes);
            restrict(&mut bits, rows, classes);
        }
        for (found, bits) in found.iter_mut().zip(&bits[..fields.len()]) {
            *found = self.first_rule(bits);
        }
    }

    /// The first rule behind `after` that matches the packet at `place`.
    pub fn next(&self, fields: &Fields<A>, place: usize, after: u32) -> u32 {
        let mut bits = [[!0u64; W]];
        let mut class = [0];
        let addresses =
            [(&self.source, fields.source(place)), (&self.destination, fields.destination(place))];
        for (field, address) in addresses {
            if let Some((of, rows)) = field {
                of.find(&[address], &mut class);
                restrict(&mut bits, rows, &class);
            }
        }
        for (field, of, rows) in &self.numbers {
            class = [field.one(fields, place)];
            of.find(&mut class);
            restrict(&mut bits, rows, &class);
        }
        let [bits] = bits;
        let mut all = self.rules.iter().zip(bits).flat_map(|(rules, bits)| rules_of(rules, bits));
        all.find(|rule| *rule > after).unwrap_or(NO_RULE)
    }

    #[inline(always)]
    fn first_rule(&self, bits: &[u64; W]) -> u32 {
        let (mut first, mut place) = (0, 0);
        for (at, &word) in bits.iter().enumerate().rev() {
            (first, place) = if word == 0 { (first, place) } else { (word, at) };
        }
        let rule = self.rules[place][first.trailing_zeros() as usize % WORD];
        if first == 0 { NO_RULE } else { rule }
    }
}

fn rows<const W: usize>(bits: &layout::Bitmaps) -> Rows<W> {
    let row = |row: &[u64]| std::array::from_fn(|at| row.get(at).copied().unwrap_or(0));
    bits.rows().map(row).collect()
}

#[inline(always)]
fn restrict<const W: usize>(bits: &mut [[u64; W]], rows: &[[u64; W]], classes: &[u16]) {
    for (bits, class) in bits.iter_mut().zip(classes) {
        let row = rows.get(usize::from(*class)).unwrap_or(&[0; W]);
        bits.iter_mut().zip(row).for_each(|(bits, row)| *bits &= row);
    }
}
