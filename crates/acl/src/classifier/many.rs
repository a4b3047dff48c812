//! More than 256 rules: words of rules, and summaries of the words to examine.

use super::{NO_RULE, TooLarge, WORD, field::Field, layout, rules_of};
use crate::{
    Filter,
    classes::{AddressClasses, FilterAddress, NumberClasses},
    conditions::Number,
    fields::{BATCH, Fields},
};

pub(super) struct Many<A: FilterAddress> {
    source: (AddressClasses<A>, AddressRows),
    destination: (AddressClasses<A>, AddressRows),
    numbers: Vec<(Field<A>, NumberClasses, NumberRows)>,
    /// The rule of each bit, [`NO_RULE`] for the bits that fill up a word.
    rules: Vec<u32>,
    /// Words of a summary.
    summary: usize,
}

/// Number of fields of the lookup: two addresses, their sets, two MACs, routing headers, and numbers.
const FIELDS: usize = 7 + Number::ALL.len();

/// Number of fields of most filters; clearing room for all takes as long as a lookup of some packets.
const MOST_FIELDS: usize = 8;

impl<A: FilterAddress> Many<A> {
    pub fn new(layout: layout::Layout<A>, filter: &Filter) -> Result<Self, TooLarge> {
        let words = layout.rules.len() / WORD;
        let address = |of: Option<layout::AddressLayout<A>>| match of {
            Some(of) => Ok((
                layout::classes(&of.prefixes, filter)?,
                AddressRows::new(words, of.bits.rows()),
            )),
            None => {
                let all = vec![!0; words];
                let classes = layout::classes(&[], filter)?;
                Ok((classes, AddressRows::new(words, [&all[..]].into_iter())))
            }
        };
        let number = |of: layout::NumberLayout<A>| {
            let classes = NumberClasses::new(of.field.values(), &of.ranges);
            (of.field, classes, NumberRows::new(words, of.bits.rows()))
        };
        Ok(Self {
            source: address(layout.source)?,
            destination: address(layout.destination)?,
            numbers: layout.numbers.into_iter().map(number).collect(),
            rules: layout.rules,
            summary: words.div_ceil(WORD),
        })
    }

    #[inline]
    pub fn classify(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        match self.numbers.len() + 2 {
            ..=MOST_FIELDS => self.classify_by::<MOST_FIELDS>(fields, found),
            _ => self.classify_by::<FIELDS>(fields, found),
        }
    }

    /// `F`: most fields.
    fn classify_by<const F: usize>(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        let mut classes = [[0; BATCH]; F];
        self.find_classes(fields, &mut classes);
        let found = &mut found[..fields.len()];
        match self.summary {
            1 => self.find_rules::<1>(&classes, found),
            2 => self.find_rules::<2>(&classes, found),
            3 => self.find_rules::<3>(&classes, found),
            _ => self.find_rules::<0>(&classes, found),
        }
    }

    /// Finds the classes of each field: source, destination, numbers.
    fn find_classes(&self, fields: &Fields<A>, classes: &mut [[u16; BATCH]]) {
        let count = fields.padded();
        let [sources, destinations, numbers @ ..] = classes else { return };
        // Tables are fetched while numbers are compared.
        self.source.0.prefetch(fields.sources());
        self.destination.0.prefetch(fields.destinations());
        self.numbers.iter().for_each(|(field, ..)| field.prefetch(fields));
        for ((field, of, _), classes) in self.numbers.iter().zip(numbers) {
            field.all(fields, &mut classes[..count]);
            of.find(&mut classes[..count]);
        }
        self.source.0.find(fields.sources(), &mut sources[..count]);
        self.destination.0.find(fields.destinations(), &mut destinations[..count]);
    }

    /// Finds the first rule of each packet. `S`: words of a summary; 0: not known at compile time.
    fn find_rules<const S: usize>(&self, classes: &[[u16; BATCH]], found: &mut [u32]) {
        let summary = if S == 0 { self.summary } else { S };
        for (at, found) in found.iter_mut().enumerate().take(BATCH) {
            *found = self.first_rule(summary, &self.rows(summary, classes, at));
        }
    }

    #[inline(always)]
    fn rows<'a>(
        &'a self,
        summary: usize,
        classes: &'a [[u16; BATCH]],
        at: usize,
    ) -> PacketRows<'a> {
        PacketRows {
            source: self.source.1.row(summary, classes[0][at]),
            destination: self.destination.1.row(summary, classes[1][at]),
            classes: &classes[2..],
            at,
        }
    }

    /// Returns the first rule after `after` that matches the packet at `place`.
    pub fn next(&self, fields: &Fields<A>, place: usize, after: u32) -> u32 {
        let mut classes = [[0; BATCH]; FIELDS];
        let [sources, destinations, numbers @ ..] = &mut classes;
        self.source.0.find(&[fields.source(place)], &mut sources[..1]);
        self.destination.0.find(&[fields.destination(place)], &mut destinations[..1]);
        for ((field, of, _), class) in self.numbers.iter().zip(numbers) {
            class[0] = field.one(fields, place);
            of.find(&mut class[..1]);
        }
        let rows = self.rows(self.summary, &classes, 0);
        let mut first = NO_RULE;
        for part in 0..self.summary {
            let mut words = self.words(self.summary, part, &rows);
            while words != 0 {
                let (word, bits) = self.next_word(self.summary, part, words, &rows);
                let rules = rules_of(&self.rules[word * WORD..], bits);
                first = rules.filter(|rule| *rule > after).fold(first, u32::min);
                words &= words - 1;
            }
        }
        first
    }

    /// Returns the first rule in all words that the summaries of a packet's rows have in common.
    #[inline(always)]
    fn first_rule(&self, summary: usize, rows: &PacketRows<'_>) -> u32 {
        let mut first = NO_RULE;
        for part in 0..summary {
            let mut words = self.words(summary, part, rows);
            while words != 0 {
                first = first.min(self.rule_of_next_word(summary, part, words, rows));
                words &= words - 1;
            }
        }
        first
    }

    /// Returns the words in one part of a summary that may have a rule.
    #[inline(always)]
    fn words(&self, summary: usize, part: usize, rows: &PacketRows<'_>) -> u64 {
        let source = self.source.1.words(rows.source, part);
        let mut words = source & self.destination.1.words(rows.destination, part);
        // With few words, checking numbers costs more than the words it excludes.
        if summary == 1 {
            return words;
        }
        for ((_, _, numbers), classes) in self.numbers.iter().zip(rows.classes) {
            words &= numbers.row(classes[rows.at])[part];
        }
        words
    }

    /// Returns the first rule set in all rows, in the first of these words (there is at least one).
    #[inline(always)]
    fn rule_of_next_word(
        &self,
        summary: usize,
        part: usize,
        words: u64,
        rows: &PacketRows<'_>,
    ) -> u32 {
        let (word, bits) = self.next_word(summary, part, words, rows);
        let rule = self.rules[word * WORD + bits.trailing_zeros() as usize % WORD];
        if bits == 0 { NO_RULE } else { rule }
    }

    /// Returns the first of these words (there is at least one), and the bits set in it in all
    /// rows.
    #[inline(always)]
    fn next_word(
        &self,
        summary: usize,
        part: usize,
        words: u64,
        rows: &PacketRows<'_>,
    ) -> (usize, u64) {
        let word = part * WORD + words.trailing_zeros() as usize;
        let mut bits = self.source.1.word(rows.source, summary, word);
        bits &= self.destination.1.word(rows.destination, summary, word);
        for ((_, _, numbers), classes) in self.numbers.iter().zip(rows.classes) {
            bits &= numbers.row(classes[rows.at])[summary + word];
        }
        (word, bits)
    }
}

/// The rows of one packet.
struct PacketRows<'a> {
    source: &'a [u64],
    destination: &'a [u64],
    /// Classes of its numbers, at position `at`.
    classes: &'a [[u16; BATCH]],
    at: usize,
}

/// Rows with few words that are not zero: those of addresses.
struct AddressRows {
    /// For each class: a summary, and the index of its first word.
    rows: Vec<u64>,
    /// The words that are not zero, row by row; the first is all ones.
    words: Vec<u64>,
    /// A summary of the words whose rules have no address condition: they are all ones, and in no
    /// row.
    any: Vec<u64>,
}

impl AddressRows {
    fn new<'a>(words: usize, rows: impl Iterator<Item = &'a [u64]>) -> Self {
        let mut made =
            Self { rows: Vec::new(), words: vec![!0], any: vec![0; words.div_ceil(WORD)] };
        for (class, row) in rows.enumerate() {
            if class == 0 {
                // The row of addresses that no rule names.
                mark(&mut made.any, row);
            }
            let start = made.rows.len();
            made.rows.resize(start + made.any.len() + 1, 0);
            made.rows[start + made.any.len()] = made.words.len() as u64;
            let summary = &mut made.rows[start..start + made.any.len()];
            mark(summary, row);
            summary.iter_mut().zip(&made.any).for_each(|(words, any)| *words &= !any);
            made.words.extend(
                (0..).zip(row).filter(|(at, _)| is_marked(summary, *at)).map(|(_, word)| word),
            );
        }
        made
    }

    #[inline(always)]
    fn row(&self, summary: usize, class: u16) -> &[u64] {
        &self.rows[usize::from(class) * (summary + 1)..][..summary + 1]
    }

    /// Returns a part of the row's summary.
    #[inline(always)]
    fn words(&self, row: &[u64], part: usize) -> u64 {
        row[part] | self.any[part]
    }

    /// Returns a word of the row that is not zero.
    #[inline(always)]
    fn word(&self, row: &[u64], summary: usize, word: usize) -> u64 {
        let (part, bit) = (word / WORD, word % WORD);
        let before = row[..part].iter().map(|words| words.count_ones()).sum::<u32>();
        let before = before + (row[part] & ((1 << bit) - 1)).count_ones();
        let own = row[part] >> bit & 1 != 0;
        let at = if own { row[summary] + u64::from(before) } else { 0 };
        self.words[at as usize]
    }
}

/// Rows of words: those of numbers.
struct NumberRows {
    /// For each class: a summary, then all words.
    rows: Vec<u64>,
    /// Words in a row.
    stride: usize,
}

impl NumberRows {
    fn new<'a>(words: usize, rows: impl Iterator<Item = &'a [u64]>) -> Self {
        let summary = words.div_ceil(WORD);
        let mut made = Self { rows: Vec::new(), stride: summary + words };
        for row in rows {
            let start = made.rows.len();
            made.rows.resize(start + summary, 0);
            mark(&mut made.rows[start..], row);
            made.rows.extend(row);
        }
        made
    }

    #[inline(always)]
    fn row(&self, class: u16) -> &[u64] {
        &self.rows[usize::from(class) * self.stride..][..self.stride]
    }
}

/// Marks the words of a row that are not zero.
fn mark(summary: &mut [u64], row: &[u64]) {
    for (at, _) in row.iter().enumerate().filter(|(_, word)| **word != 0) {
        summary[at / WORD] |= 1 << (at % WORD);
    }
}

fn is_marked(summary: &[u64], at: usize) -> bool {
    summary[at / WORD] >> (at % WORD) & 1 != 0
}
