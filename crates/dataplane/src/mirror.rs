//! Mirroring: copies of packets that leave by another port, beside what becomes of the packets.
//!
//! A step asks for a copy by [`Batch::mirror`](crate::Batch::mirror); the copy is the frame as it is then,
//! and leaves unchanged, with nobody's address rewritten. Copies count as replicated, so that the sum
//! closes: received + originated + replicated = sent + to host + dropped. Of a batch 64 are made at most;
//! those beyond, and those for which there is no buffer, are dropped as `no-buffer`.

use dpdk::Mempool;

use crate::port::PortId;
use crate::reason::DropReason;
use crate::replicate::{Ready, Way};

/// The copies of one batch.
pub(crate) struct Copies {
    pool: Mempool,
    ready: Ready,
    /// Wanted and not made.
    refused: u64,
}

impl Copies {
    /// Takes buffers from this pool.
    pub(crate) fn new(pool: Mempool) -> Self {
        Self { pool, ready: Ready::new(), refused: 0 }
    }

    /// Copies a frame for a port.
    pub(crate) fn add(&mut self, frame: &[u8], port: PortId) {
        let copy = if self.ready.is_full() { None } else { self.pool.copy_of(frame) };
        if !copy.is_some_and(|copy| self.ready.add(copy, port)) {
            self.refused += 1;
        }
    }

    /// Sends and counts what a batch has left here.
    pub(crate) fn send(&mut self, way: &mut Way<'_>) {
        if self.refused > 0 {
            way.counters.replicated.add(self.refused);
            way.counters.drops.add(DropReason::NoBuffer, std::mem::take(&mut self.refused));
        }
        let sent = self.ready.send(way);
        way.counters.replicated.add(sent as u64);
    }
}
