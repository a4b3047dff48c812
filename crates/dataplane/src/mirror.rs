//! Mirroring: copies of packets that leave by another port, beside what becomes of the packets.
//!
//! A step asks for a copy by [`Batch::mirror`](crate::Batch::mirror); the copy is the frame as it is then,
//! and leaves unchanged, with nobody's address rewritten. Copies count as replicated, so that the sum
//! closes: received + originated + replicated = sent + to host + dropped. Of a batch 64 are made at most;
//! those beyond, and those for which there is no buffer, are dropped as `no-buffer`.

use dpdk::{Burst, Mempool};

use crate::batch::BATCH_MAX;
use crate::mask::Mask;
use crate::port::PortId;
use crate::reason::DropReason;
use crate::replicate::Way;

/// The copies of one batch.
pub(crate) struct Copies {
    pool: Mempool,
    packets: Burst,
    out_port: [u16; BATCH_MAX],
    /// Wanted and not made.
    refused: u64,
}

impl Copies {
    /// Takes buffers from this pool.
    pub(crate) fn new(pool: Mempool) -> Self {
        Self { pool, packets: Burst::new(), out_port: [0; BATCH_MAX], refused: 0 }
    }

    /// Copies a frame for a port.
    pub(crate) fn add(&mut self, frame: &[u8], port: PortId) {
        let room = self.packets.len() < BATCH_MAX;
        let copy = if room { self.pool.copy_of(frame) } else { None };
        match copy.map(|copy| self.packets.put(copy)) {
            Some(Ok(slot)) => self.out_port[slot] = port.index() as u16,
            _ => self.refused += 1,
        }
    }

    /// Sends and counts what a batch has left here.
    pub(crate) fn send(&mut self, way: &mut Way<'_>) {
        let all = Mask(self.packets.owned());
        if all.is_empty() && self.refused == 0 {
            return;
        }
        let Way { distribution, now, counters } = way;
        counters.replicated.add(u64::from(all.count()) + self.refused);
        counters.drops.add(DropReason::NoBuffer, std::mem::take(&mut self.refused));
        distribution.accept(&mut self.packets, all, &self.out_port, *now, counters);
    }
}
