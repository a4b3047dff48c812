//! The rings of an AF_PACKET socket: losses in the receive ring, and a frame that the kernel never sends.
//!
//! The kernel counts the packets for which the receive ring had no room, and sets its counter to 0 when it is
//! read. DPDK 22.11 does not read it; later releases do, and add the value to their own counter.
//!
//! If an interface drops a frame and reports it (the other end of a veth has a smaller MTU, or is full), the
//! kernel leaves the frame in the ring, stops, and tries it again at the next call. DPDK's driver takes that
//! for congestion. A frame that is dropped every time keeps all later ones from being sent, for ever:
//!
//! ```text
//!   sent | sent | tried again and again | waits | waits | … | the last one written
//!               ^ head                                          ^ next - 1
//! ```
//! So a frame that has been the head for [`PATIENCE`] is abandoned: with length 0 it is not a
//! frame, and the kernel passes over it. The head is checked after each burst, and as long as one
//! is stuck.

use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A congested NIC has sent a frame by then.
const PATIENCE: Duration = Duration::from_millis(1);

/// `TP_STATUS_SEND_REQUEST`: written, and not taken by the kernel.
const SEND_REQUEST: u32 = 1;

/// Offsets of a frame's status and length in `struct tpacket2_hdr`.
const STATUS: usize = 0;
const LENGTH: usize = 4;

/// The frames from which an open AF_PACKET socket sends, and their number of bytes.
#[derive(Debug)]
pub(crate) struct PacketRing {
    pub(crate) socket: RawFd,
    pub(crate) first: NonNull<u8>,
    pub(crate) frames: u32,
    pub(crate) frame: usize,
    /// Number of abandoned frames.
    pub(crate) given_up: AtomicU64,
    /// Number of packets that the receive ring had no room for, as far as it was read from the kernel.
    pub(crate) missed: AtomicU64,
}

// SAFETY: its words are atomic numbers in memory shared with the kernel, which any thread may use.
unsafe impl Send for PacketRing {}
// SAFETY: as above.
unsafe impl Sync for PacketRing {}

impl PacketRing {
    /// Returns the number of packets that the receive ring had no room for, without those that DPDK's driver counts.
    pub(crate) fn missed(&self) -> u64 {
        let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        // SAFETY: a descriptor, room for the answer and its size.
        let result = unsafe {
            let place = (&raw mut counts).cast();
            libc::getsockopt(self.socket, level, option, place, &mut size)
        };
        let new = if result == 0 { counts.tp_drops.into() } else { 0 };
        self.missed.fetch_add(new, Ordering::Relaxed) + new
    }

    /// # Safety
    /// The rings are mapped: the driver has not closed its port.
    unsafe fn word(&self, frame: u32, offset: usize) -> &AtomicU32 {
        let place = self.frame * (frame % self.frames) as usize + offset;
        // SAFETY: by the caller it is mapped; frames are a multiple of 512 bytes, and their headers are
        // numbers of 32 bits, aligned.
        unsafe { self.first.add(place).cast().as_ref() }
    }

    /// # Safety
    /// As [`Self::word`].
    unsafe fn waits(&self, frame: u32) -> bool {
        // SAFETY: by the caller.
        unsafe { self.word(frame, STATUS) }.load(Ordering::Acquire) == SEND_REQUEST
    }

    /// Returns the first of the frames that wait, up to the one before `next`, which waits.
    ///
    /// # Safety
    /// As [`Self::word`].
    unsafe fn head(&self, next: u32) -> u32 {
        let before = |back: &u32| {
            // SAFETY: by the caller.
            unsafe { self.waits(next + self.frames - back) }
        };
        let waiting = (1..=self.frames).take_while(before).count() as u32;
        (next + self.frames - waiting) % self.frames
    }
}

/// Watches a ring for the only owner of its transmit queue.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Index of the next frame that the driver writes.
    next: u32,
    /// The head of the waiting frames, and since when, in TSC cycles.
    stuck: Option<(u32, u64)>,
    patience: u64,
}

impl Watch {
    /// Creates the watch of a ring that nothing has been written to.
    pub(crate) fn new() -> Self {
        let patience = (crate::tsc_hz() as f64 * PATIENCE.as_secs_f64()) as u64;
        Self { next: 0, stuck: None, patience }
    }

    /// Returns true if a frame waits that the kernel may never send.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.is_some()
    }

    /// Records that the driver has written this many frames.
    ///
    /// # Safety
    /// The ring's driver has not closed its port, and no one else sends by its socket.
    #[inline]
    pub(crate) unsafe fn sent(&mut self, ring: &PacketRing, frames: usize) {
        self.next = (self.next + frames as u32) % ring.frames;
        // SAFETY: by the caller.
        if unsafe { ring.waits(self.next + ring.frames - 1) } {
            // SAFETY: by the caller.
            unsafe { self.go_on(ring, crate::tsc()) };
        } else {
            self.stuck = None;
        }
    }

    /// # Safety
    /// As [`Self::sent`].
    #[inline]
    pub(crate) unsafe fn poll(&mut self, ring: &PacketRing) {
        if self.stuck.is_some() {
            // SAFETY: by the caller.
            unsafe { self.sent(ring, 0) };
        }
    }

    /// Makes the kernel try once more, without the head if its time has ended.
    ///
    /// # Safety
    /// As [`Self::sent`].
    #[cold]
    unsafe fn go_on(&mut self, ring: &PacketRing, now: u64) {
        // SAFETY: by the caller.
        let head = unsafe { ring.head(self.next) };
        match self.stuck {
            Some((known, since)) if known == head => {
                if now.wrapping_sub(since) < self.patience {
                    return;
                }
                // SAFETY: by the caller; the kernel reads the length when this thread calls it, not before.
                unsafe { ring.word(head, LENGTH) }.store(0, Ordering::Release);
                ring.given_up.fetch_add(1, Ordering::Relaxed);
                self.stuck = Some((head, now));
            }
            _ => self.stuck = Some((head, now)),
        }
        // SAFETY: the socket is open by the caller; no bytes are passed, since those to be sent are in the
        // ring.
        unsafe { libc::send(ring.socket, std::ptr::null(), 0, libc::MSG_DONTWAIT) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 512;

    /// Creates a ring of four frames in ordinary memory without a socket: the test acts as the kernel.
    fn ring(memory: &mut [u64]) -> PacketRing {
        let first = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
        PacketRing {
            socket: -1,
            first,
            frames: 4,
            frame: FRAME,
            given_up: 0.into(),
            missed: 0.into(),
        }
    }

    #[test]
    fn a_frame_that_stays_the_head_is_given_up_and_one_that_moves_is_not() {
        let mut memory = vec![0u64; 4 * FRAME / 8];
        let ring = ring(&mut memory);
        let mut watch = Watch { patience: 100, ..Watch::new() };
        // SAFETY: the memory lives until the end of the test.
        unsafe {
            let status = |frame, value| ring.word(frame, STATUS).store(value, Ordering::Relaxed);
            let length = |frame| ring.word(frame, LENGTH).load(Ordering::Relaxed);
            (0..4).for_each(|frame| ring.word(frame, LENGTH).store(60, Ordering::Relaxed));
            // All are sent at once.
            watch.sent(&ring, 3);
            assert_eq!((watch.next, watch.stuck), (3, None));
            // Three more, over the ring's end; none is sent.
            [3, 0, 1].into_iter().for_each(|frame| status(frame, SEND_REQUEST));
            watch.sent(&ring, 3);
            assert_eq!(watch.stuck.map(|(head, _)| head), Some(3));
            // The head moves: the timeout of the next one begins.
            status(3, 0);
            watch.go_on(&ring, 1000);
            watch.go_on(&ring, 1099);
            assert_eq!((watch.stuck, length(0)), (Some((0, 1000)), 60));
            watch.go_on(&ring, 1100);
            assert_eq!((length(0), length(1), ring.given_up.load(Ordering::Relaxed)), (0, 60, 1));
            // The kernel passes over it and sends the last.
            [0, 1].into_iter().for_each(|frame| status(frame, 0));
            watch.poll(&ring);
            assert_eq!((watch.stuck, length(1)), (None, 60));
            // A ring that is full.
            (0..4).for_each(|frame| status(frame, SEND_REQUEST));
            assert_eq!(ring.head(2), 2);
        }
    }
}
