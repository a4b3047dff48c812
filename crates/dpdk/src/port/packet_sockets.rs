//! The sockets of DPDK's AF_PACKET driver, replaced by ones that leave IPv4 fragments alone.
//!
//! The driver joins every socket to a fanout group with the flag `PACKET_FANOUT_FLAG_DEFRAG`, even a
//! single one, and has no setting for it (DPDK 22.11 to 25.11). The kernel then reassembles fragments in
//! transit, which a router must not do (RFC 1812 5.2.6), and the datagram fits no packet buffer. A group's
//! flags are fixed, and a socket leaves its group only when it is closed.
//!
//! So each socket is replaced before the device is started: by one with the same options, rings, interface
//! and hash, without the flag. Its rings are mapped over the driver's, and it takes the number of the
//! driver's descriptor. The driver has used neither yet, and uses and closes both as its own:
//!
//! ```text
//!   driver:      descriptor 23 --> its socket --> rings at 0x7f0c8e000000
//!   afterwards:  descriptor 23 --> our socket --> rings at 0x7f0c8e000000
//! ```
//!
//! Without reassembly the kernel hashes fragments by their addresses only, so those of a datagram arrive
//! on one queue.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use super::Geometry;
use super::packet_ring::PacketRing;
use super::rings::mapping;
use super::sockets::socket;
use crate::Errno;

/// The upper half of `PACKET_FANOUT`'s value holds a group's flags and its method of choosing a socket,
/// the lower half its number.
const DEFRAG: u32 = libc::PACKET_FANOUT_FLAG_DEFRAG << 16;
const UNIQUE_ID: u32 = libc::PACKET_FANOUT_FLAG_UNIQUEID << 16;
const GROUP_NUMBER: u32 = 0xffff;

/// Options that a socket must have before its rings, if the driver has set them.
const OPTIONS: [i32; 4] =
    [libc::PACKET_VERSION, libc::PACKET_LOSS, libc::PACKET_QDISC_BYPASS, libc::PACKET_TIMESTAMP];

/// A socket of the driver.
struct Original {
    descriptor: RawFd,
    address: libc::sockaddr_ll,
    fanout: u32,
    /// Mapping of its rings: the first byte and the one after the last.
    rings: (usize, usize),
}

/// Replaces the driver's sockets on the interface with this index, whose device has not been started, if
/// they make the kernel reassemble fragments. Returns their transmit rings, by queue.
pub(super) fn stop_reassembly(index: u32, ring: &Geometry) -> Result<Vec<PacketRing>, Errno> {
    // The driver creates them in the order of its queues, each with the lowest free number.
    let mut originals = originals(index);
    originals.sort_by_key(|original| original.descriptor);
    if originals.iter().any(|original| original.fanout & DEFRAG != 0) {
        replace(&originals, ring)?;
    }
    originals.iter().map(|original| original.sends_from(ring).ok_or(Errno::EINVAL)).collect()
}

fn replace(originals: &[Original], ring: &Geometry) -> Result<(), Errno> {
    let mut twins: Vec<OwnedFd> = Vec::new();
    for original in originals {
        let twin = original.twin(ring)?;
        // A single socket needs no group.
        if originals.len() > 1 {
            join(&twin, original.fanout, twins.first())?;
        }
        twins.push(twin);
    }
    for (original, twin) in originals.iter().zip(twins) {
        original.replace(&twin)?;
    }
    Ok(())
}

/// Returns the sockets of this process on an interface that have rings.
fn originals(index: u32) -> Vec<Original> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(|descriptor| original(descriptor, index, &maps)).collect()
}

fn original(descriptor: RawFd, index: u32, maps: &str) -> Option<Original> {
    let inode = socket(descriptor, libc::AF_PACKET)?;
    let address = bound_to(descriptor).filter(|to| u32::try_from(to.sll_ifindex) == Ok(index))?;
    let fanout = option(descriptor, libc::PACKET_FANOUT).unwrap_or(0);
    let rings = maps.lines().find_map(|line| mapping(line, inode, 0))?;
    Some(Original { descriptor, address, fanout, rings })
}

impl Original {
    /// Creates a socket with the same settings, in no group.
    fn twin(&self, ring: &Geometry) -> Result<OwnedFd, Errno> {
        // With no protocol it receives nothing before it is bound.
        // SAFETY: makes a descriptor.
        let twin = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if twin < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a descriptor that the kernel has just created for us.
        let twin = unsafe { OwnedFd::from_raw_fd(twin) };
        for name in OPTIONS {
            if let Some(value @ 1..) = option(self.descriptor, name) {
                set(&twin, name, &value)?;
            }
        }
        let wanted = libc::tpacket_req {
            tp_block_size: ring.block as u32,
            tp_block_nr: (self.size() / ring.block) as u32,
            tp_frame_size: ring.frame as u32,
            tp_frame_nr: self.frames(ring),
        };
        set(&twin, libc::PACKET_RX_RING, &wanted)?;
        set(&twin, libc::PACKET_TX_RING, &wanted)?;
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an address and its size, for the call.
        let result =
            unsafe { libc::bind(twin.as_raw_fd(), (&raw const self.address).cast(), size) };
        if result < 0 { Err(Errno::last()) } else { Ok(twin) }
    }

    /// Returns the length of each of its two rings: the receive ring is mapped first, the transmit ring
    /// behind it.
    fn size(&self) -> usize {
        (self.rings.1 - self.rings.0) / 2
    }

    /// Returns the number of frames of each ring, whose blocks are full.
    fn frames(&self, ring: &Geometry) -> u32 {
        (self.size() / ring.frame) as u32
    }

    /// Returns the transmit ring; `None` if it has no frame.
    fn sends_from(&self, ring: &Geometry) -> Option<PacketRing> {
        let first = NonNull::new((self.rings.0 + self.size()) as *mut u8)?;
        let frames = self.frames(ring);
        let (socket, frame) = (self.descriptor, ring.frame);
        let (given_up, missed) = (0.into(), 0.into());
        (frames > 0).then_some(PacketRing { socket, first, frames, frame, given_up, missed })
    }

    /// Replaces the socket by its twin, both the rings and the descriptor's number.
    fn replace(&self, twin: &OwnedFd) -> Result<(), Errno> {
        let (start, end) = self.rings;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_LOCKED | libc::MAP_FIXED;
        // SAFETY: this is the driver's whole mapping of its rings, which it has not begun to use: the
        // device is not started. The twin's rings are as large, are empty too, and are unmapped by the
        // driver when it closes the device.
        let mapped = unsafe {
            libc::mmap(start as *mut _, end - start, protection, flags, twin.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: both are open; this closes the driver's socket, which has no user any more.
        let result = unsafe { libc::dup3(twin.as_raw_fd(), self.descriptor, libc::O_CLOEXEC) };
        if result < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

/// Makes a socket join the group of the first one, or a new group if it is the first. Packets are
/// distributed as by the driver's group.
fn join(twin: &OwnedFd, fanout: u32, first: Option<&OwnedFd>) -> Result<(), Errno> {
    let kind = fanout & !GROUP_NUMBER & !DEFRAG & !UNIQUE_ID;
    let group = match first {
        Some(first) => {
            let of_first = option(first.as_raw_fd(), libc::PACKET_FANOUT);
            kind | of_first.ok_or_else(Errno::last)? & GROUP_NUMBER
        }
        None => kind | UNIQUE_ID,
    };
    set(twin, libc::PACKET_FANOUT, &group)
}

/// Returns the interface and protocol of a packet socket.
fn bound_to(descriptor: RawFd) -> Option<libc::sockaddr_ll> {
    let mut address = MaybeUninit::<libc::sockaddr_ll>::zeroed();
    let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: room for an address and its size.
    let result = unsafe { libc::getsockname(descriptor, address.as_mut_ptr().cast(), &mut size) };
    // SAFETY: written, and zeros are numbers too.
    (result == 0).then(|| unsafe { address.assume_init() })
}

/// Returns a numeric option of a packet socket; `None` if the kernel does not support it.
fn option(descriptor: RawFd, name: i32) -> Option<u32> {
    let (mut value, mut size) = (0_u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: a number and its size, for the call.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_PACKET, name, (&raw mut value).cast(), &mut size)
    };
    (result == 0).then_some(value)
}

/// Sets an option of a packet socket, a number or a structure of numbers.
fn set<T>(socket: &OwnedFd, name: i32, value: &T) -> Result<(), Errno> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: a value and its size, for the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            std::ptr::from_ref(value).cast(),
            size,
        )
    };
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}
