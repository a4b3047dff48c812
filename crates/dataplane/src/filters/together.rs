//! Packets that the same rule decides on, judged together.
//!
//! Most packets of a batch meet few rules, and most rules do nothing but decide. The packets of such a rule are
//! counted once, charged to its rate once, and leave by one output. A rate that admits a number of packets together
//! admits each of them one after the other, so nothing is lost by asking once; only if it refuses are packets charged
//! one by one. Rates by source are charged one by one, after the memory of all of them has been asked for.

use super::police::BySource;
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
            match self.judge_rule(filter, rule, batch, (packets, slots, same)) {
                Some((judgement, refused)) => {
                    decided[judgement as usize] |= slots.without(refused);
                    decided[Judgement::Police as usize] |= refused;
                }
                None => single |= same,
            }
        }
        Together { decided, places: single | rest }
    }

    /// Returns the judgement of a rule on all of its packets, which are counted, and those above the rates of their
    /// sources; `None`: each packet is judged by itself.
    #[inline(always)]
    fn judge_rule(
        &self,
        filter: &Counted,
        rule: u32,
        batch: &Batch,
        (all, slots, places): (Mask, Mask, Mask),
    ) -> Option<(Judgement, Mask)> {
        let Counted { table, hits } = filter;
        let verdict = table.verdict(rule);
        if verdict.is_treated && !verdict.is_only_policed {
            return None;
        }
        let packets = slots.count();
        let bytes = bytes(batch, slots);
        let mut refused = Mask::EMPTY;
        if verdict.is_only_policed
            && let Some(policer) = table.policer(rule)
        {
            if let Some(sources) = policer.by_source() {
                refused = self.charge_sources(sources, batch, (all, places));
            } else if !policer.admits_all(packets as usize, bytes, batch.now) {
                return None;
            }
        }
        count_all(hits, rule, (packets, bytes), batch.now);
        Some((judgement(verdict.action), refused))
    }

    /// Charges the rates of sources for the packets at these places; returns the slots of those that are refused. All
    /// buckets are fetched first.
    fn charge_sources(&self, of: BySource<'_>, batch: &Batch, (all, places): (Mask, Mask)) -> Mask {
        let mut tags = [0; BATCH_MAX];
        for place in places.slots() {
            tags[place] = of.fetch(A::source(self.fields.source(place)));
        }
        let admits = |place: usize, slot: usize| {
            let length = batch.len(slot).saturating_sub(ETHERNET);
            of.admits(tags[place], length, batch.now)
        };
        if all.as_first().is_some() {
            return places.slots().filter(|&slot| !admits(slot, slot)).collect();
        }
        let refused = ways(all, places).filter(|&(place, slot)| !admits(place, slot));
        refused.map(|(_, slot)| slot).collect()
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
