//! Up to 64 times `W` rules: `W` words for each class, one field after the other, without branches.

use super::{NO_RULE, TooLarge, WORD, field::Field, layout, rules_of};
use crate::{
    Filter,
    classes::{AddressClasses, BYTES, FilterAddress, NumberClasses, RANKS},
    fields::{BATCH, Fields},
};

pub(super) struct Few<A: FilterAddress, const W: usize> {
    source: Option<(AddressClasses<A>, Rows<W>)>,
    destination: Option<(AddressClasses<A>, Rows<W>)>,
    numbers: Vec<(Field<A>, NumberClasses, Rows<W>)>,
    /// The rule of each bit.
    rules: [[u32; WORD]; W],
}

/// A bit for each rule that allows a value.
enum Rows<const W: usize> {
    /// By rank among few ranges.
    Ranks(Box<[[u64; W]; RANKS]>),
    /// By the value itself.
    Values(Box<[[u64; W]; BYTES]>),
    /// By class.
    Classes(Vec<[u64; W]>),
}

impl<const W: usize> Rows<W> {
    /// Builds the rows from those by class; `by_rank`: the classes of ranks or values, if these are
    /// looked up.
    fn new(bits: &layout::Bitmaps, by_rank: Option<&[u16]>) -> Self {
        let row = |row: &[u64]| std::array::from_fn(|at| row.get(at).copied().unwrap_or(0));
        let rows: Vec<[u64; W]> = bits.rows().map(row).collect();
        let Some(classes) = by_rank else { return Self::Classes(rows) };
        let of = |rank: usize| classes.get(rank).and_then(|class| rows.get(usize::from(*class)));
        let of = |rank| of(rank).copied().unwrap_or([0; W]);
        match classes.len() {
            0..=RANKS => Self::Ranks(Box::new(std::array::from_fn(of))),
            len if len <= BYTES => Self::Values(Box::new(std::array::from_fn(of))),
            _ => Self::Classes(rows),
        }
    }

    /// Replaces numbers by the ranks, values or classes that index the rows.
    #[inline(always)]
    fn find(&self, of: &NumberClasses, numbers: &mut [u16]) {
        match self {
            Self::Classes(_) => of.find(numbers),
            Self::Ranks(_) | Self::Values(_) => of.rank(numbers),
        }
    }

    /// Keeps the bits that are set in the rows of these ranks, values or classes.
    #[inline(always)]
    fn restrict(&self, bits: &mut [[u64; W]], found: &[u16]) {
        match self {
            Self::Ranks(rows) => restrict(bits, found, |rank| &rows[rank % RANKS]),
            Self::Values(rows) => restrict(bits, found, |value| &rows[value % BYTES]),
            Self::Classes(rows) => {
                restrict(bits, found, |class| rows.get(class).unwrap_or(&[0; W]))
            }
        }
    }
}

#[inline(always)]
fn restrict<'r, const W: usize>(
    bits: &mut [[u64; W]],
    found: &[u16],
    row: impl Fn(usize) -> &'r [u64; W],
) {
    for (bits, found) in bits.iter_mut().zip(found) {
        bits.iter_mut().zip(row(usize::from(*found))).for_each(|(bits, row)| *bits &= row);
    }
}

impl<A: FilterAddress, const W: usize> Few<A, W> {
    /// Builds the classifier; `layout` has at most `W` words of rules.
    pub fn new(layout: layout::Layout<A>, filter: &Filter) -> Result<Self, TooLarge> {
        let address = |of: layout::AddressLayout<A>| {
            let classes = layout::classes(&of.prefixes, filter)?;
            let rows = Rows::new(&of.bits, classes.by_rank());
            Ok((classes, rows))
        };
        let number = |of: layout::NumberLayout<A>| {
            let classes = NumberClasses::ranked(of.field.values(), &of.ranges);
            let rows = Rows::new(&of.bits, Some(classes.by_rank()));
            (of.field, classes, rows)
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

    pub fn classify(&self, fields: &Fields<A>, rules: &mut [u32; BATCH]) {
        let mut bits = [[!0u64; W]; BATCH];
        let mut ranks = [0; BATCH];
        let found = &mut ranks[..fields.padded()];
        let addresses =
            [(&self.source, fields.sources()), (&self.destination, fields.destinations())];
        // Tables are fetched while numbers are compared.
        for (field, addresses) in addresses {
            if let Some((of, _)) = field {
                of.prefetch(addresses);
            }
        }
        self.numbers.iter().for_each(|(field, ..)| field.prefetch(fields));
        for (field, of, rows) in &self.numbers {
            field.all(fields, found);
            rows.find(of, found);
            rows.restrict(&mut bits, found);
        }
        for (field, addresses) in addresses {
            if let Some((of, rows)) = field {
                of.rank(addresses, found);
                rows.restrict(&mut bits, found);
            }
        }
        for (rule, bits) in rules.iter_mut().zip(&bits[..fields.len()]) {
            *rule = self.first_rule(bits);
        }
    }

    /// Returns the first rule after `after` that matches the packet at `place`.
    pub fn next(&self, fields: &Fields<A>, place: usize, after: u32) -> u32 {
        let mut bits = [[!0u64; W]];
        let mut rank = [0];
        let addresses =
            [(&self.source, fields.source(place)), (&self.destination, fields.destination(place))];
        for (field, address) in addresses {
            if let Some((of, rows)) = field {
                of.rank(&[address], &mut rank);
                rows.restrict(&mut bits, &rank);
            }
        }
        for (field, of, rows) in &self.numbers {
            rank = [field.one(fields, place)];
            rows.find(of, &mut rank);
            rows.restrict(&mut bits, &rank);
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
