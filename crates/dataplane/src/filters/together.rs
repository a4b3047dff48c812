//! Packets that the same rule decides on, judged together.
//!
//! Most packets of a batch meet few rules, and most rules do nothing but decide. The packets of such a rule are
//! counted once, charged to its rate once, and leave by one output. A rate that admits a number of packets together
//! admits each of them one after the other, so nothing is lost by asking once; only if it refuses are packets charged
//! one by one.

use super::police::Policer;
use super::{Counted, Filtered, Judgement, Reader, count_all, judgement};
use crate::batch::{BATCH_MAX, Batch, ETHERNET};
use crate::mask::Mask;

/// Rules of a batch whose packets are judged together; the packets of further rules are judged one by one.
const RULES: usize = 8;

/// Judgements that a packet can get.
pub(crate) const JUDGEMENTS: usize = Judgement::Police as usize + 1;

/// Judgements on the packets of a batch.
pub(crate) struct Together {
    /// By [`Judgement`].
    pub decided: [Mask; JUDGEMENTS],
    /// The places of the packets that remain to be judged one by one, in their order.
    pub places: Mask,
}

/// Returns the place and the slot of those of these packets that have a place in `places`.
#[inline(always)]
pub(crate) fn ways(packets: Mask, places: Mask) -> impl Iterator<Item = (usize, usize)> {
    let all = if places.is_empty() { Mask::EMPTY } else { packets };
    all.slots().enumerate().filter(move |(place, _)| places.has(*place))
}

impl<A: Filtered> Reader<A> {
    /// Judges the packets that it has read, as far as one judgement is for all packets of a rule. `found`: the rule of
    /// each packet of `packets`. Those that are hidden are dropped.
    #[inline(always)]
    pub fn judge_together(
        &self,
        filter: &Counted,
        batch: &Batch,
        (packets, hidden): (Mask, Mask),
        found: &[u32; BATCH_MAX],
    ) -> Together {
        let mut decided = [Mask::EMPTY; JUDGEMENTS];
        decided[Judgement::Drop as usize] = hidden;
        let all = Mask::first(packets.count() as usize);
        let mut rest = if hidden.is_empty() { all } else { all.without(places(packets, hidden)) };
        let mut single = Mask::EMPTY;
        for _ in 0..RULES {
            let Some(first) = rest.slots().next() else { break };
            let rule = found[first];
            let same = rest & places_of(found, rule);
            rest = rest.without(same);
            let slots = slots(packets, same);
            match self.judge_rule(filter, rule, batch, (slots, same)) {
                Some(judgement) => decided[judgement as usize] |= slots,
                None => single |= same,
            }
        }
        Together { decided, places: single | rest }
    }

    /// Returns the judgement of a rule on all of its packets, which are counted; `None`: each has its own.
    #[inline(always)]
    fn judge_rule(
        &self,
        filter: &Counted,
        rule: u32,
        batch: &Batch,
        (slots, places): (Mask, Mask),
    ) -> Option<Judgement> {
        let Counted { table, hits } = filter;
        let verdict = table.verdict(rule);
        if verdict.is_treated && !verdict.is_only_policed {
            return None;
        }
        let packets = slots.count();
        let bytes = bytes(batch, slots);
        if verdict.is_only_policed
            && let Some(policer) = table.policer(rule)
            && !self.charge(policer, (packets, bytes), batch.now, places)
        {
            return None;
        }
        count_all(hits, rule, (packets, bytes), batch.now);
        Some(judgement(verdict.action))
    }

    /// Charges a rate for packets with so many bytes together, or nothing. Of rates by source the buckets are fetched.
    fn charge(&self, of: &Policer, (packets, bytes): (u32, usize), now: u64, places: Mask) -> bool {
        if of.is_by_source() {
            places.slots().for_each(|place| of.prefetch(A::source(self.fields.source(place))));
            return false;
        }
        of.admits_all(packets as usize, bytes, now)
    }
}

/// Returns the bytes of these packets.
#[inline(always)]
fn bytes(batch: &Batch, slots: Mask) -> usize {
    let of = |length: &u16| usize::from(length.saturating_sub(ETHERNET as u16));
    match slots.as_first() {
        Some(count) => batch.lens()[..count.min(BATCH_MAX)].iter().map(of).sum(),
        None => slots.slots().map(|slot| of(&batch.lens()[slot])).sum(),
    }
}

/// Returns the places of the packets with this rule. Places without a packet have any rule.
#[inline(always)]
fn places_of(found: &[u32; BATCH_MAX], rule: u32) -> Mask {
    let same = found.iter().enumerate().map(|(at, found)| u64::from(*found == rule) << at);
    Mask(same.fold(0, |all, bit| all | bit))
}

/// Returns the slots of packets at these places among all of them.
#[inline(always)]
fn slots(packets: Mask, places: Mask) -> Mask {
    if packets.as_first().is_some() {
        return places;
    }
    ways(packets, places).map(|(_, slot)| slot).collect()
}

/// Returns the places of some packets among all of them.
#[cold]
fn places(packets: Mask, some: Mask) -> Mask {
    packets
        .slots()
        .enumerate()
        .filter(|(_, slot)| some.has(*slot))
        .map(|(place, _)| place)
        .collect()
}
