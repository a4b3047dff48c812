//! Down: a frame that the kernel sent, on its way to the port.
//!
//! The kernel sends up to 64 KiB at once and leaves their segmentation to the interface. Segments are
//! made one by one, as the port's ring has room for them; the next frame is read when the last has left.

use std::io;

use dataplane::reason::DropReason;
use dpdk::{Mbuf, VirtioHeader};
use wire::offload::NetHeader;
use wire::offload::segment::Segments;
use zerocopy::FromBytes;

/// Room for any frame that a host interface can send: an IP packet, Ethernet header and VLAN tags.
pub const FRAME_MOST: usize = 65_536 + 64;

/// A frame of the kernel and its segments that have not left.
pub struct Down {
    frame: Vec<u8>,
    segments: Option<Segments>,
}

impl Down {
    /// Nothing is on the way.
    pub fn new() -> Self {
        Self { frame: vec![0; FRAME_MOST], segments: None }
    }

    /// Whether all of the frame has left.
    pub fn is_empty(&self) -> bool {
        self.segments.as_ref().is_none_or(Segments::is_done)
    }

    /// Reads the next frame; the reason to drop it if its header does not fit.
    ///
    /// # Errors
    /// What reading says.
    pub fn fill(
        &mut self,
        read: impl FnOnce(&mut VirtioHeader, &mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Result<(), DropReason>> {
        let mut header = VirtioHeader::default();
        self.frame.resize(FRAME_MOST, 0);
        let length = read(&mut header, &mut self.frame)?;
        self.frame.truncate(length);
        let header = NetHeader::read_from_bytes(&header).unwrap_or_default();
        let segments = Segments::new(&header, &self.frame);
        let result = segments.as_ref().map(drop).map_err(|_| DropReason::HostMalformed);
        self.segments = segments.ok();
        Ok(result)
    }

    /// Makes the next segment in an empty packet; its length.
    ///
    /// # Errors
    /// The packet's buffer is too small for it: somebody raised the interface's MTU above what the port
    /// can send.
    pub fn next(&mut self, packet: &mut Mbuf) -> Option<Result<usize, DropReason>> {
        let piece = self.segments.as_mut()?.next()?;
        let fits = piece.parts(&self.frame).iter().all(|part| packet.extend(part));
        if !fits {
            return Some(Err(DropReason::TooBig));
        }
        piece.finish(packet.data_mut());
        Some(Ok(piece.len()))
    }
}
