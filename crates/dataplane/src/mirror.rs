//! Mirroring: sends copies of packets by another port, independently of the originals.
//!
//! A step requests a copy by [`Batch::mirror`](crate::Batch::mirror); the copy is the frame at that moment, and
//! leaves unchanged, without any address rewritten. Copies count as replicated, so that the sum closes:
//! received + originated + replicated = sent + to host + dropped. At most 64 are made per batch; further ones,
//! and those for which there is no buffer, are dropped as `no-buffer`.

use dpdk::{Mbuf, Mempool};

use crate::outgoing::Outgoing;
use crate::port::PortId;
use crate::tap::Taps;

/// The copies of one batch.
pub(crate) struct Copies {
    pool: Mempool,
    pub(crate) packets: Outgoing,
    /// Copies requested and not made.
    pub(crate) refused: u64,
    /// Copies for mirror sessions.
    pub(crate) taps: Taps,
}

impl Copies {
    /// Takes buffers from this pool.
    pub(crate) fn new(pool: Mempool) -> Self {
        let taps = Taps::new(pool.clone());
        Self { pool, packets: Outgoing::new(), refused: 0, taps }
    }

    /// The pool of buffers for copies.
    pub(crate) fn pool(&self) -> &Mempool {
        &self.pool
    }

    /// Copies a frame for a port: the bytes of its first buffer, and those of the others.
    pub(crate) fn add<'a>(
        &mut self,
        frame: &[u8],
        rest: impl Iterator<Item = &'a [u8]>,
        port: PortId,
    ) {
        let copy = if self.packets.is_full() { None } else { self.copy_of(frame, rest) };
        if copy.is_none_or(|copy| self.packets.add(copy, port).is_err()) {
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
}
