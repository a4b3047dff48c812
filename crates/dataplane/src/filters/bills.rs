//! Rates that are charged once for all of a batch's packets.
//!
//! A rate that admits a number of packets together admits each of them one after the other, so nothing is lost by
//! asking once; only if it refuses are packets charged one by one.

use super::police::Policer;
use super::{Counted, Filtered, Reader};
use crate::batch::{Batch, ETHERNET};
use crate::mask::Mask;

/// Rules of a batch that are charged at once; packets of further rules are charged one by one.
const RULES: usize = 4;

/// The rules that have been asked in a batch, each with true if it was charged for all of its packets.
#[derive(Default)]
pub(crate) struct Bills {
    rules: [(u32, bool); RULES],
    count: usize,
}

impl Bills {
    /// Returns true if the rule has been charged for all of its packets, which `charge` attempts the first time.
    #[inline(always)]
    pub fn is_paid(&mut self, rule: u32, charge: impl FnOnce() -> bool) -> bool {
        let asked = &self.rules[..self.count];
        if let Some((_, is_paid)) = asked.iter().find(|(asked, _)| *asked == rule) {
            return *is_paid;
        }
        let Some(place) = self.rules.get_mut(self.count) else { return false };
        self.count += 1;
        *place = (rule, charge());
        place.1
    }
}

impl<A: Filtered> Reader<A> {
    /// Charges a rule for all packets of the batch that it decides on, or nothing. `found`: the rule of each packet of
    /// `packets`. Of rates by source the buckets are fetched.
    pub fn charge(
        &self,
        filter: &Counted,
        rule: u32,
        batch: &Batch,
        (packets, hidden): (Mask, Mask),
        found: &[u32],
    ) -> bool {
        let Some(policer) = filter.table.policer(rule) else { return true };
        let of_rule = packets.slots().zip(found).enumerate();
        let of_rule = of_rule.filter(|(_, (slot, of))| **of == rule && !hidden.has(*slot));
        if policer.is_by_source() {
            of_rule.for_each(|(place, _)| policer.prefetch(A::source(self.fields.source(place))));
            return false;
        }
        let length = |slot| batch.len(slot).saturating_sub(ETHERNET);
        let (count, bytes) = of_rule
            .fold((0, 0), |(count, bytes), (_, (slot, _))| (count + 1, bytes + length(slot)));
        Policer::admits_all(policer, count, bytes, batch.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_charged_once_in_a_batch() {
        let mut bills = Bills::default();
        let mut charged = Vec::new();
        for rule in [7, 8, 7, 9, 8, 10, 11, 11, 7] {
            let is_paid = bills.is_paid(rule, || {
                charged.push(rule);
                rule != 8
            });
            assert_eq!(is_paid, matches!(rule, 7 | 9 | 10), "{rule}");
        }
        assert_eq!(charged, [7, 8, 9, 10]);
    }
}
