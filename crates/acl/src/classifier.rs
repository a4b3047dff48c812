//! The classifier: which rule is the first that matches, for a batch of packets at a time.
//!
//! Each field of a packet is looked up by itself: its value belongs to a *class* of values that all rules
//! treat alike, and each class has a row of bits, one for each rule that allows it. The rules that match
//! a packet are the bits that all its rows have (Lakshman and Stiliadis, "High-speed policy-based packet
//! forwarding using efficient multi-dimensional range matching", SIGCOMM 1998). Fields that no rule of
//! the filter asks for are not looked at.
//!
//! ```text
//! source       10.1.2.3  -> class 7  -> 0 1 1 0 1 ...
//! destination  192.0.2.1 -> class 2  -> 1 1 0 0 1 ...   and: rule 1, and 4 behind it
//! to port      22        -> class 1  -> 0 1 1 1 1 ...
//! ```
//!
//! Up to 256 rules are one or four words, in the rules' order. More are words of 64 rules that lie near each other
//! in address space, so that few words have both the packet's source and its destination; a summary of
//! each row, one bit a word, says which (after Baboescu and Varghese, "Scalable packet classification",
//! SIGCOMM 2001, who keep the rules' order, and so have more such words). Of these words the first rule
//! in the filter's order counts. Rows of addresses keep only words that are not zero.
//!
//! A list of prefixes, ports or numbers costs a packet nothing, however long: it is classes, not rules.
//!
//! | cost | |
//! |---|---|
//! | a field of up to 48 ranges | comparisons, no loads |
//! | addresses with more | a lookup in a route table each |
//! | bytes, beyond 256 rules | rows of numbers: classes x rules / 8; rows of addresses: some words a class |

mod few;
mod field;
mod layout;
mod many;

use few::Few;
use layout::Layout;
use many::Many;

use crate::{
    Family, Filter, SetReaders,
    classes::FilterAddress,
    fields::{BATCH, Fields},
};

/// Most rules of a filter.
const RULES_MAX: usize = 1 << 16;

/// Rules in a word.
const WORD: usize = 64;

/// Most rules whose words are all looked at; of more it takes longer than to know which to look at.
const MORE: usize = 256;

/// The place of a rule that is not there.
const NO_RULE: u32 = u32::MAX;

/// A filter that is too large for the classifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter \"{filter}\": {count} {what} for {family}, at most {most}: {way_out}")]
pub struct TooLarge {
    /// The filter.
    pub filter: String,
    /// The family.
    pub family: Family,
    /// What there is too much of.
    pub what: &'static str,
    /// How much there is, or how much had been seen when it was too much.
    pub count: usize,
    /// How much there can be.
    pub most: usize,
    /// What to do.
    pub way_out: &'static str,
}

/// A filter made ready for packets of one family.
pub struct Classifier<A: FilterAddress> {
    form: Form<A>,
    /// The answer where no rule matches.
    none: u32,
}

enum Form<A: FilterAddress> {
    Few(Box<Few<A, 1>>),
    More(Box<Few<A, { MORE / WORD }>>),
    Many(Box<Many<A>>),
}

impl<A: FilterAddress> Classifier<A> {
    /// The classifier of the rules that packets of this family can match. Sets that `sets` does not have are empty.
    ///
    /// # Errors
    /// More rules, classes of addresses, lists of sets or bytes than there can be.
    pub fn new(filter: &Filter, sets: &SetReaders) -> Result<Self, TooLarge> {
        let layout = Layout::<A>::new(filter, sets)?;
        let form = match layout.rules.len() {
            0..=WORD => Form::Few(Box::new(Few::new(layout, filter)?)),
            rules if rules <= MORE => Form::More(Box::new(Few::new(layout, filter)?)),
            _ => Form::Many(Box::new(Many::new(layout, filter)?)),
        };
        Ok(Self { form, none: filter.rules.len() as u32 })
    }

    /// Refuses what [`Self::new`] refuses for its size, without making its route tables.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check(filter: &Filter) -> Result<(), TooLarge> {
        Layout::<A>::new(filter, &SetReaders::none()).map(drop)
    }

    /// The place of the first rule that matches, for each packet; the number of rules where none does.
    #[inline]
    pub fn classify(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        match &self.form {
            Form::Few(few) => few.classify(fields, found),
            Form::More(few) => few.classify(fields, found),
            Form::Many(many) => many.classify(fields, found),
        }
        found.iter_mut().take(fields.len()).for_each(|rule| *rule = self.none.min(*rule));
    }

    /// The place of the first rule behind the rule `after` that matches the packet at `place`; the number of rules
    /// where none does. Packets are looked up one by one: for those whose rule lets them go on to the next.
    pub fn next(&self, fields: &Fields<A>, place: usize, after: u32) -> u32 {
        let found = match &self.form {
            Form::Few(few) => few.next(fields, place, after),
            Form::More(few) => few.next(fields, place, after),
            Form::Many(many) => many.next(fields, place, after),
        };
        self.none.min(found)
    }
}

/// The rules of these bits, in a word's order.
fn rules_of(rules: &[u32], mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        rules.get(bit).copied()
    })
}

#[cfg(test)]
mod tests;
