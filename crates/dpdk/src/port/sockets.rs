//! AF_XDP sockets of this process, which DPDK's driver makes and, when its port is closed, forgets to
//! close (DPDK 22.11, `eth_dev_close`: the reference count of memory that is not shared is never 1). As
//! long as one is open the kernel keeps the interface's queue for it, and nobody can have it again.

use std::collections::BTreeSet;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

/// A descriptor, and the inode's number, which no other socket has.
type Socket = (RawFd, u64);

/// Sockets that somebody made; dropping it closes those that are still open.
#[derive(Debug, Default)]
pub(super) struct Sockets(BTreeSet<Socket>);

impl Sockets {
    /// Those that are made meanwhile and still there after it. One thread at a time.
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
        for &(descriptor, inode) in &self.0 {
            // Whoever made it may have closed it, and the number may be another's now.
            if of_descriptor(descriptor) == Some((descriptor, inode)) {
                // SAFETY: an AF_XDP socket of a driver that has ended and does not use it any more.
                unsafe { libc::close(descriptor) };
            }
        }
    }
}

fn all() -> BTreeSet<Socket> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter_map(of_descriptor).collect()
}

/// The socket, if the descriptor is one of AF_XDP.
fn of_descriptor(descriptor: RawFd) -> Option<Socket> {
    let (mut domain, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: a number that may be a descriptor's, a number for the answer and its length.
    let result = unsafe {
        let domain = (&raw mut domain).cast();
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN, domain, &mut length)
    };
    if result != 0 || domain != libc::AF_XDP {
        return None;
    }
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the function writes the structure, or fails; zeros are a value of it.
    let status = unsafe {
        (libc::fstat(descriptor, status.as_mut_ptr()) == 0).then(|| status.assume_init())?
    };
    Some((descriptor, status.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(domain: i32) -> RawFd {
        // SAFETY: makes a descriptor.
        unsafe { libc::socket(domain, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) }
    }

    #[test]
    fn what_was_made_is_closed_unless_it_is_another_by_now() {
        let before = socket(libc::AF_XDP);
        let ((first, second), sockets) =
            Sockets::of(|| (socket(libc::AF_XDP), socket(libc::AF_XDP)));
        assert_eq!(sockets.0.len(), 2, "this test needs a kernel with AF_XDP, and root");
        // The driver closes one by itself, and its number becomes another's.
        // SAFETY: descriptors of ours.
        unsafe { libc::dup2(before, second) };
        drop(sockets);
        assert_eq!(of_descriptor(first), None);
        assert!(of_descriptor(second).is_some() && of_descriptor(before).is_some());
        // SAFETY: descriptors of ours.
        unsafe { (libc::close(second), libc::close(before)) };
    }
}
