//! Descriptors inherited at the start of this process, and those that its child processes must not inherit:
//! those kept by the service manager, `sd_listen_fds(3)`, and those opened by DPDK.

use std::env;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first inherited descriptor; those before are standard input, output and error.
const FIRST: RawFd = 3;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Returns the descriptors passed to this process, with their names, which may be empty. None the second time,
/// and none meant for another process.
pub fn inherited() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let ours = number("LISTEN_PID") == Some(std::process::id());
    if !ours || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let count = number("LISTEN_FDS").and_then(|count| RawFd::try_from(count).ok()).unwrap_or(0);
    let numbers = FIRST..FIRST.saturating_add(count.min(4096));
    numbers
        .map(|number| (names.next().unwrap_or_default().to_owned(), number))
        // SAFETY: queries a number, whether or not it is a descriptor.
        .filter(|(_, number)| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0)
        .map(|(name, number)| {
            // SAFETY: it is open, and by LISTEN_FDS and our LISTEN_PID it is ours; this function returns it
            // once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            // SAFETY: sets a flag; child processes must not inherit it.
            unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
            (name, descriptor)
        })
        .collect()
}

/// Marks all descriptors but standard input, output and error to be closed in child processes: DPDK and its
/// drivers leave some of their own open, devices and locked files among them.
///
/// # Errors
/// `/proc` cannot be read.
pub fn close_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(number) = number.filter(|&number| number >= FIRST) {
            // SAFETY: sets a flag, if that is still a descriptor.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
