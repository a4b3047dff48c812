//! The rings between an AF_XDP socket and the kernel, read to count the packets that are in them.
//!
//! The driver returns no packet when it is closed, and none that was to be sent by an interface that
//! vanished. There is no other way to count these: other packets of the same pool wait in the slow path, in
//! rings and for other ports, and counting them as the driver's would free memory in use. The indexes of
//! the four rings run freely from 0, so two differences give the exact number:
//!
//! ```text
//!   filled for receiving, not received:   fill.producer - rx.consumer
//!   given to send, not taken back:        tx.producer - completion.consumer
//! ```
//!
//! The driver does not expose its mappings of the rings (and a bound socket cannot be mapped again), but
//! the kernel lists all mappings of a process with the socket that they belong to.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets of a socket's mappings, which identify the ring (`linux/if_xdp.h`).
const RX: u64 = 0;
const TX: u64 = 0x8000_0000;
const FILL: u64 = 0x1_0000_0000;
const COMPLETION: u64 = 0x1_8000_0000;

pub(super) const SOL_XDP: i32 = 283;
const XDP_MMAP_OFFSETS: i32 = 1;

/// `struct xdp_ring_offset`.
#[repr(C)]
struct RingOffset {
    producer: u64,
    consumer: u64,
    descriptors: u64,
    flags: u64,
}

/// `struct xdp_mmap_offsets`.
#[repr(C)]
struct Offsets {
    rx: RingOffset,
    tx: RingOffset,
    fill: RingOffset,
    completion: RingOffset,
}

/// The indexes of one socket's rings that its driver moves, in the driver's mappings.
#[derive(Debug)]
pub(super) struct Rings {
    filled: NonNull<AtomicU32>,
    received: NonNull<AtomicU32>,
    sent: NonNull<AtomicU32>,
    taken_back: NonNull<AtomicU32>,
}

// SAFETY: the indexes are atomic numbers in memory shared with the kernel, which any thread may load.
unsafe impl Send for Rings {}
// SAFETY: as above.
unsafe impl Sync for Rings {}

impl Rings {
    /// Finds the rings of the socket with this descriptor and inode; `None` if its driver has not mapped
    /// all of them.
    pub(super) fn of(socket: RawFd, inode: u64) -> Option<Self> {
        let offsets = offsets(socket)?;
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let index = |ring: u64, offset: u64| {
            let (start, end) = maps.lines().find_map(|line| mapping(line, inode, ring))?;
            let place = start.checked_add(usize::try_from(offset).ok()?)?;
            let fits = place + size_of::<AtomicU32>() <= end;
            fits.then(|| NonNull::new(place as *mut AtomicU32)).flatten()
        };
        Some(Self {
            filled: index(FILL, offsets.fill.producer)?,
            received: index(RX, offsets.rx.consumer)?,
            sent: index(TX, offsets.tx.producer)?,
            taken_back: index(COMPLETION, offsets.completion.consumer)?,
        })
    }

    /// Returns the number of buffers that wait for received packets.
    ///
    /// # Safety
    /// The driver has not closed its port since [`Rings::of`].
    pub(super) unsafe fn filled(&self) -> usize {
        // SAFETY: by the caller the mappings are there.
        unsafe { difference(self.filled, self.received) }
    }

    /// Returns the number of packets that are being sent, or are sent and not taken back.
    ///
    /// # Safety
    /// As [`Rings::filled`].
    pub(super) unsafe fn unsent(&self) -> usize {
        // SAFETY: by the caller the mappings are there.
        unsafe { difference(self.sent, self.taken_back) }
    }
}

/// # Safety
/// Both are mapped.
unsafe fn difference(ahead: NonNull<AtomicU32>, behind: NonNull<AtomicU32>) -> usize {
    // SAFETY: by the caller; the kernel aligns the indexes of a ring to cache lines.
    let (ahead, behind) = unsafe { (ahead.as_ref(), behind.as_ref()) };
    ahead.load(Ordering::Acquire).wrapping_sub(behind.load(Ordering::Acquire)) as usize
}

/// Returns the offsets of the indexes in each ring's mapping.
fn offsets(socket: RawFd) -> Option<Offsets> {
    let mut offsets = MaybeUninit::<Offsets>::zeroed();
    let mut length = size_of::<Offsets>() as libc::socklen_t;
    // SAFETY: a descriptor, room for the answer and its length.
    let result = unsafe {
        let place = offsets.as_mut_ptr().cast();
        libc::getsockopt(socket, SOL_XDP, XDP_MMAP_OFFSETS, place, &mut length)
    };
    // Linux before 5.4 writes less, in another form.
    let whole = result == 0 && length as usize == size_of::<Offsets>();
    // SAFETY: written whole; and zeros are numbers too.
    whole.then(|| unsafe { offsets.assume_init() })
}

/// Returns the addresses of a line of `/proc/self/maps`, if it is a socket's mapping of this ring.
pub(super) fn mapping(line: &str, inode: u64, ring: u64) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let number: u64 = words.nth(1)?.parse().ok()?;
    let is_socket = words.next()?.starts_with("socket:");
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_socket && offset == ring && number == inode)
        .then(|| Some((address(start)?, address(end)?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_s_mappings_are_told_apart_by_inode_and_offset() {
        let tx = "7f0c8e000000-7f0c8e009000 rw-s 80000000 00:08 81234   socket:[81234]";
        assert_eq!(mapping(tx, 81234, TX), Some((0x7f0c_8e00_0000, 0x7f0c_8e00_9000)));
        assert_eq!(mapping(tx, 81234, RX), None);
        assert_eq!(mapping(tx, 81235, TX), None);
        let file = "7f0c8e000000-7f0c8e009000 rw-s 80000000 00:08 81234   /tmp/socket:[81234]";
        for other in [file, "7f0c8e000000-7f0c8e009000 rw-p 00000000 00:00 0", ""] {
            assert_eq!(mapping(other, 81234, TX), None, "{other}");
        }
    }
}
