//! AF_XDP sockets of this process, which DPDK's driver creates and fails to close when its port is closed
//! (DPDK 22.11, `eth_dev_close`: the reference count of memory that is not shared is never 1). As long as
//! one is open the kernel reserves the interface's queue for it, and no other socket can use it.
//!
//! Also handles the BPF maps by which a program finds them: the library below the driver keeps its own open
//! when the interface has vanished and the program cannot be queried any more.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use super::rings::{Rings, SOL_XDP};
use crate::Errno;

/// Socket option that creates the receive ring of a socket.
const XDP_RX_RING: i32 = 2;

/// Identity of a descriptor, by a number that is unique for its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// An AF_XDP socket, by its inode.
    Socket(u64),
    /// A BPF map, by its number.
    Map(u64),
}

/// A descriptor and its identity.
type Descriptor = (RawFd, Kind);

/// Sockets and maps created by a driver; dropping it closes those that are still open.
#[derive(Debug, Default)]
pub(super) struct Sockets(BTreeSet<Descriptor>);

impl Sockets {
    /// Returns the sockets' rings; `None` unless all are found.
    pub(super) fn rings(&self) -> Option<Vec<Rings>> {
        let rings = |&(descriptor, kind): &Descriptor| match kind {
            Kind::Socket(inode) => Some(Rings::of(descriptor, inode)),
            Kind::Map(_) => None,
        };
        self.0.iter().filter_map(rings).collect()
    }
}

impl Sockets {
    /// Returns true if the kernel may still receive by one of them.
    pub(super) fn receive(&self) -> bool {
        self.0
            .iter()
            .any(|&(descriptor, kind)| matches!(kind, Kind::Socket(_)) && is_bound(descriptor))
    }

    /// Returns the map by which an XDP program finds the sockets.
    pub(super) fn map(&self) -> Option<RawFd> {
        let maps = self.0.iter().filter(|(_, kind)| matches!(kind, Kind::Map(_)));
        maps.map(|&(descriptor, _)| descriptor).find(|&map| is_of_sockets(map))
    }

    /// Returns the existing AF_XDP sockets.
    pub(super) fn now() -> BTreeSet<RawFd> {
        let sockets = all().into_iter().filter(|(_, kind)| matches!(kind, Kind::Socket(_)));
        sockets.map(|(descriptor, _)| descriptor).collect()
    }

    /// Runs `make`, and returns the sockets and maps created during it and still open after it. One thread
    /// at a time.
    pub(super) fn of<T>(make: impl FnOnce() -> T) -> (T, Self) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all();
        let made = make();
        (made, Self(all().difference(&before).copied().collect()))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for &(descriptor, kind) in &self.0 {
            // Its creator may have closed it, and the number may belong to another descriptor now.
            if of_descriptor(descriptor) == Some((descriptor, kind)) {
                // SAFETY: a socket or map of a driver that has ended and does not use it any more.
                unsafe { libc::close(descriptor) };
            }
        }
    }
}

fn all() -> BTreeSet<Descriptor> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(of_descriptor).collect()
}

fn of_descriptor(descriptor: RawFd) -> Option<Descriptor> {
    let socket = socket(descriptor, libc::AF_XDP).map(Kind::Socket);
    let kind = socket.or_else(|| map(descriptor).map(Kind::Map))?;
    Some((descriptor, kind))
}

/// Returns true if an AF_XDP socket is bound to a queue of an interface. The kernel refuses rings for a
/// bound socket before it checks their size, and never creates one without entries.
fn is_bound(descriptor: RawFd) -> bool {
    let none = 0u32;
    // SAFETY: a number that may be a descriptor's, a number and its size.
    let result = unsafe {
        let size = size_of::<u32>() as libc::socklen_t;
        libc::setsockopt(descriptor, SOL_XDP, XDP_RX_RING, (&raw const none).cast(), size)
    };
    result < 0 && Errno::last() == Errno::EBUSY
}

/// Returns the number of a BPF map.
fn map(descriptor: RawFd) -> Option<u64> {
    let link = fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
    if link.as_os_str() != "anon_inode:bpf-map" {
        return None;
    }
    info(descriptor, "map_id:")
}

/// Returns true if a BPF map is one of AF_XDP sockets (`BPF_MAP_TYPE_XSKMAP`).
fn is_of_sockets(map: RawFd) -> bool {
    info(map, "map_type:") == Some(17)
}

/// Returns a number that the kernel gives about a descriptor.
fn info(descriptor: RawFd, key: &str) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

/// Returns the inode of a socket of this family.
pub(super) fn socket(descriptor: RawFd, family: i32) -> Option<u64> {
    let (mut domain, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: a number that may be a descriptor's, a number for the answer and its length.
    let result = unsafe {
        let domain = (&raw mut domain).cast();
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN, domain, &mut length)
    };
    if result != 0 || domain != family {
        return None;
    }
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the function writes the structure, or fails; zeros are a value of it.
    let status = unsafe {
        (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| status.assume_init())?
    };
    Some(status.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(domain: i32) -> RawFd {
        // SAFETY: makes a descriptor.
        unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }
    }

    #[test]
    fn what_was_made_is_closed_unless_it_is_another_by_now() {
        let before = made(libc::AF_XDP);
        let ((first, second), sockets) = Sockets::of(|| (made(libc::AF_XDP), made(libc::AF_XDP)));
        assert_eq!(sockets.0.len(), 2, "this test needs a kernel with AF_XDP, and root");
        // The driver closes one itself, and its number is reused.
        // SAFETY: descriptors of ours.
        unsafe { libc::dup2(before, second) };
        drop(sockets);
        assert_eq!(of_descriptor(first), None);
        assert!(of_descriptor(second).is_some() && of_descriptor(before).is_some());
        // SAFETY: descriptors of ours.
        unsafe { (libc::close(second), libc::close(before)) };
    }
}
