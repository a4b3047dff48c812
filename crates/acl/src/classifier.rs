//! The classifier: finds the first matching rule for a batch of packets at a time.
//!
//! Each field of a packet is looked up separately: its value belongs to a *class* of values that all rules treat
//! alike, and each class has a row of bits, one for each rule that allows it. The rules that match a packet are the
//! bits set in all its rows (Lakshman and Stiliadis, "High-speed policy-based packet forwarding using efficient
//! multi-dimensional range matching", SIGCOMM 1998). Fields that no rule of the filter uses are not looked up.
//!
//! ```text
//! source       10.1.2.3  -> class 7  -> 0 1 1 0 1 ...
//! destination  192.0.2.1 -> class 2  -> 1 1 0 0 1 ...   and: rule 1, and 4 behind it
//! to port      22        -> class 1  -> 0 1 1 1 1 ...
//! ```
//!
//! Up to 256 rules are one to four words, in the rules' order. More rules form words of 64 that are
//! close to each other in address space, so that few words match both the packet's source and its
//! destination; a summary of each row, one bit per word, indicates these words (after Baboescu and
//! Varghese, "Scalable packet classification", SIGCOMM 2001, who keep the rules' order, and so have
//! more such words). Among the matches in these words the first rule in the filter's order is the
//! result. Rows of addresses keep only words that are not zero.
//!
//! A list of prefixes, ports or numbers costs a packet nothing, however long: it adds classes, not rules.
//!
//! IPv4 rules with few conditions in all need no classes: each condition is compared with all packets of the batch at
//! once (`sweep.rs`).
//!
//! | cost | |
//! |---|---|
//! | IPv4, up to 56 tests of up to 64 rules | a comparison a test, for 32 packets at a time |
//! | a field of up to 48 ranges | comparisons, no loads |
//! | addresses with more | a lookup in a route table each |
//! | bytes, beyond 256 rules | rows of numbers: classes x rules / 8; rows of addresses: some words a class |

mod few;
mod field;
mod layout;
mod many;
mod sweep;

use few::Few;
use layout::Layout;
use many::Many;
use sweep::Sweep;

use crate::{
    Family, Filter, SetReaders,
    classes::FilterAddress,
    fields::{BATCH, Fields},
};

/// Most rules of a filter.
const RULES_MAX: usize = 1 << 16;

/// Rules per word.
const WORD: usize = 64;

/// Most rules whose words are all examined; with more, selecting the words by a summary is faster.
const MORE: usize = 256;

/// Marks the absence of a rule.
const NO_RULE: u32 = u32::MAX;

/// Error: a filter is too large for the classifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filter \"{filter}\": {count} {what} for {family}, at most {most}: {way_out}")]
pub struct TooLarge {
    /// The filter.
    pub filter: String,
    /// The family.
    pub family: Family,
    /// The quantity that is too large.
    pub what: &'static str,
    /// Its value, or the value at which counting stopped.
    pub count: usize,
    /// Its limit.
    pub most: usize,
    /// Advice to the operator.
    pub way_out: &'static str,
}

/// A filter compiled for packets of one family.
pub struct Classifier<A: FilterAddress> {
    form: Form<A>,
    /// The result if no rule matches.
    none: u32,
}

enum Form<A: FilterAddress> {
    Sweep(Sweep<A>),
    Few(Box<Few<A, 1>>),
    More(Box<Few<A, { MORE / WORD }>>),
    Many(Box<Many<A>>),
}

impl<A: FilterAddress> Classifier<A> {
    /// Compiles the rules that packets of this family can match. Sets missing in `sets` are empty.
    ///
    /// # Errors
    /// More rules, classes of addresses, lists of sets or bytes than the limits.
    pub fn new(filter: &Filter, sets: &SetReaders) -> Result<Self, TooLarge> {
        let layout = Layout::<A>::new(filter, sets)?;
        let form = match layout.rules.len() {
            0..=WORD => match Sweep::new(layout, filter) {
                Ok(sweep) => Form::Sweep(sweep),
                Err(layout) => Form::Few(Box::new(Few::new(layout, filter)?)),
            },
            rules if rules <= MORE => Form::More(Box::new(Few::new(layout, filter)?)),
            _ => Form::Many(Box::new(Many::new(layout, filter)?)),
        };
        Ok(Self { form, none: filter.rules.len() as u32 })
    }

    /// Checks the limits of [`Self::new`], without building its route tables.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check(filter: &Filter) -> Result<(), TooLarge> {
        Layout::<A>::new(filter, &SetReaders::none()).map(drop)
    }

    /// Finds the index of the first matching rule for each packet; the number of rules if none matches.
    #[inline]
    pub fn classify(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        match &self.form {
            Form::Sweep(sweep) => sweep.classify(fields, found),
            Form::Few(few) => few.classify(fields, found),
            Form::More(few) => few.classify(fields, found),
            Form::Many(many) => many.classify(fields, found),
        }
        found.iter_mut().take(fields.len()).for_each(|rule| *rule = self.none.min(*rule));
    }

    /// Returns the index of the first rule after the rule `after` that matches the packet at `place`; the
    /// number of rules if none does. Works on a single packet: for rules that let packets continue.
    pub fn next(&self, fields: &Fields<A>, place: usize, after: u32) -> u32 {
        let found = match &self.form {
            Form::Sweep(sweep) => sweep.next(fields, place, after),
            Form::Few(few) => few.next(fields, place, after),
            Form::More(few) => few.next(fields, place, after),
            Form::Many(many) => many.next(fields, place, after),
        };
        self.none.min(found)
    }
}

/// Iterates over the rules of these bits, in a word's order.
fn rules_of(rules: &[u32], mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        rules.get(bit).copied()
    })
}

#[cfg(test)]
mod tests;
