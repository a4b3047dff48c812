//! Rules with Ethertypes: filtering of frames that are neither IPv4 nor IPv6.
//!
//! `classify` applies them to such frames only, after its work on IP packets, so that these cost nothing more.
//! A filter's default does not apply: a frame that no such rule matches passes as without a filter.

use wire::MacAddr;
use wire::ethernet::EthernetHeader;
use zerocopy::FromBytes;

use super::police::{Colour, SourceKey};
use super::{Counted, FILTER_IN, FilterTable, FilterTables, Hits, Judgement, count_all, judgement};
use crate::batch::{Batch, ETHERNET};

/// Inward filters, for frames other than IP packets.
pub(crate) struct FrameFilters(Vec<Option<Counted>>);

/// A frame of a batch, as used by rules.
struct Frame {
    ethertype: u16,
    to: MacAddr,
    from: MacAddr,
    priority: u8,
    interface: u16,
}

impl FrameFilters {
    /// Creates them from these filters; `None` if none has rules for such frames.
    pub fn of(filters: &FilterTables) -> Option<Box<Self>> {
        let all = Counted::all(&filters.get());
        let asks = |filter: &Counted| !filter.table.frame_rules.is_empty();
        all.iter().flatten().any(asks).then(|| Box::new(Self(all)))
    }

    /// The judgement of this slot's frame by the filter of its ingress interface; `None`: no rule applies.
    pub fn judge(&self, batch: &Batch, slot: usize) -> Option<Judgement> {
        let number = batch.info(slot).features.get(FILTER_IN);
        let filter = self.0.get(usize::from(number).wrapping_sub(1))?.as_ref()?;
        let frame = Frame::of(batch, slot);
        let length = batch.len(slot).saturating_sub(ETHERNET);
        filter.table.judge_frame(&filter.hits, &frame, length, batch.now)
    }
}

impl FilterTable {
    /// Returns the forwarder that a rule selects for this slot's frame, which is no IP packet and has no flow.
    pub(crate) fn forwarder_of_frame(&self, batch: &Batch, slot: usize) -> Option<u16> {
        let rule = self.frame_rule(&Frame::of(batch, slot))?;
        Some(self.spec.treatments.get(rule as usize)?.forwarders?.of_hash(0))
    }

    /// Returns true if rules select forwarders for frames that are no IP packets.
    pub(crate) fn chooses_for_frames(&self) -> bool {
        let treatments = &self.spec.treatments;
        let chooses =
            |rule: &u32| treatments.get(*rule as usize).is_some_and(|of| of.forwarders.is_some());
        self.frame_rules.iter().any(chooses)
    }

    /// Returns true if a rule matches this slot's frame, which is no IP packet.
    pub(crate) fn has_rule_for_frame(&self, batch: &Batch, slot: usize) -> bool {
        self.frame_rule(&Frame::of(batch, slot)).is_some()
    }

    /// Returns true if a rule matches an untagged frame outside a batch, which is no IP packet.
    pub(crate) fn has_rule_for(&self, frame: &[u8], interface: u16) -> bool {
        let Ok((head, _)) = EthernetHeader::ref_from_prefix(frame) else { return false };
        let frame = Frame {
            ethertype: head.ethertype.get(),
            to: head.destination,
            from: head.source,
            priority: 0,
            interface,
        };
        self.frame_rule(&frame).is_some()
    }

    /// Returns the first rule that matches a frame.
    fn frame_rule(&self, frame: &Frame) -> Option<u32> {
        let rules = &self.spec.filter.rules;
        let fits = |rule: &&u32| rules.get(**rule as usize).is_some_and(|rule| frame.fits(rule));
        self.frame_rules.iter().find(fits).copied()
    }

    /// Counts a frame for the first rule that matches it, charges it to the rule's rate, and returns its judgement.
    fn judge_frame(
        &self,
        hits: &Hits,
        frame: &Frame,
        length: usize,
        now: u64,
    ) -> Option<Judgement> {
        let rule = self.frame_rule(frame)?;
        count_all(hits, rule, (1, length), now);
        match self.admits(rule, SourceKey::Ip4(0), length, now) {
            Colour::Red => Some(Judgement::Police),
            _ => Some(judgement(self.verdict(rule).action)),
        }
    }
}

impl Frame {
    fn of(batch: &Batch, slot: usize) -> Self {
        let head = batch.ethernet(slot);
        Self {
            ethertype: head.ethertype.get(),
            to: head.destination,
            from: head.source,
            priority: batch.priority(slot),
            interface: batch.interface(slot).index() as u16,
        }
    }

    fn fits(&self, rule: &acl::Rule) -> bool {
        let of = &rule.matches;
        of.ethertype.contains(&self.ethertype)
            && (of.to_mac.is_empty() || of.to_mac.contains(&self.to))
            && (of.from_mac.is_empty() || of.from_mac.contains(&self.from))
            && (of.priority.is_empty() || of.priority.contains(&self.priority))
            && (of.interface.is_empty() || of.interface.contains(&self.interface))
    }
}
