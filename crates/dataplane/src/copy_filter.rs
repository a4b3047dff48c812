//! Outward filters for multicast packets: each copy is judged by the filter of its egress port.
//!
//! No step sees the copies, because such packets leave the graph at `replicate`. The
//! [`Replicator`](crate::replicate) applies the filter instead, once per copy, before it makes the copy. A copy
//! that the filter rejects is dropped as `filtered` or `policed`: no error is sent for a packet to a group (RFC
//! 1122 3.2.2), so `reject` and `to-host` only drop. A rule's DSCP is written into the port's copies, which are
//! then full copies: one longer than a buffer is dropped as `no-buffer`. A rule's mirror is ignored.
//!
//! Each forwarder's graph has one if an interface has an outward filter, so that it changes with the graph, between
//! two batches.

use crate::batch::{BATCH_MAX, Batch};
use crate::filters::{Gate, Judgement, Leaving, Mark};
use crate::interface::{InterfaceId, MAX_INTERFACES};
use crate::reason::DropReason;
use crate::tables::Tables;

/// See the module's documentation.
pub struct CopyFilter {
    gate: Gate,
    /// Verdicts on the packet judged last, by interface.
    verdicts: Box<[CopyVerdict]>,
}

/// The verdict on a copy: send it with this mark, or drop it.
pub(crate) type CopyVerdict = Result<Mark, DropReason>;

impl CopyFilter {
    /// Creates one from the outward filters of these tables; `None` if there is none.
    pub fn of(tables: &Tables) -> Option<Box<Self>> {
        let gate = Gate::outward_of(&tables.filters, &tables.interfaces.get())?;
        Some(Box::new(Self { gate, verdicts: vec![Ok(Mark::NONE); MAX_INTERFACES].into() }))
    }

    /// Judges the copies of a batch's packet for these egress interfaces.
    pub(crate) fn judge(
        &mut self,
        batch: &Batch,
        slot: usize,
        receivers: impl Iterator<Item = InterfaceId>,
    ) {
        let slot = slot & (BATCH_MAX - 1);
        let (frame, length, from) = (batch.frame(slot), batch.len(slot), batch.interface(slot));
        for to in receivers {
            let packet = Leaving { frame, length, from: from.index() as u16, to, now: batch.now };
            let Some(verdict) = self.verdicts.get_mut(to.index()) else { continue };
            *verdict = match self.gate.judge(&packet) {
                (Judgement::Pass, mark) => Ok(mark),
                (Judgement::Police, _) => Err(DropReason::Policed),
                _ => Err(DropReason::Filtered),
            };
        }
    }

    /// Returns the verdict on the copy for this interface.
    pub(crate) fn verdict(&self, interface: InterfaceId) -> CopyVerdict {
        self.verdicts.get(interface.index()).copied().unwrap_or(Err(DropReason::Filtered))
    }
}
