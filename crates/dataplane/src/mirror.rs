//! Mirroring: sends copies of packets by another port, independently of the originals.
//!
//! A step requests a copy by [`Batch::mirror`](crate::Batch::mirror); the copy is the frame at that moment, and
//! leaves unchanged, without any address rewritten. Copies count as replicated, so that the sum closes:
//! received + originated + replicated = sent + to host + dropped. At most 64 are made per batch; further ones,
//! and those for which there is no buffer, are dropped as `no-buffer`.

use dpdk::{Mbuf, Mempool};

use crate::port::PortId;
use crate::reason::DropReason;
use crate::replicate::{Egress, Ready};

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

    /// Copies a frame for a port: the bytes of its first buffer, and those of the others.
    pub(crate) fn add<'a>(
        &mut self,
        frame: &[u8],
        rest: impl Iterator<Item = &'a [u8]>,
        port: PortId,
    ) {
        let copy = if self.ready.is_full() { None } else { self.copy_of(frame, rest) };
        if !copy.is_some_and(|copy| self.ready.add(copy, port)) {
            self.refused += 1;
        }
    }

    fn copy_of<'a>(&self, frame: &[u8], rest: impl Iterator<Item = &'a [u8]>) -> Option<Mbuf> {
        let mut copy = self.pool.copy_of(frame)?;
        for bytes in rest {
            copy.append(bytes.len())?.copy_from_slice(bytes);
        }
        Some(copy)
    }

    /// Sends and counts the copies of a batch.
    pub(crate) fn send(&mut self, egress: &mut Egress<'_>) {
        if self.refused > 0 {
            egress.counters.replicated.add(self.refused);
            egress.counters.drops.add(DropReason::NoBuffer, std::mem::take(&mut self.refused));
        }
        let sent = self.ready.send(egress);
        egress.counters.replicated.add(sent as u64);
    }
}
