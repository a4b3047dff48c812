//! The service manager keeps the host interfaces' descriptors while the router is restarted.
//!
//! A TAP without a process has no carrier: the kernel then drops nexthop objects over it with their
//! routes, and BGP ends its sessions. As long as somebody holds its descriptor, nobody notices the
//! restart. systemd does that for services with `FileDescriptorStoreMax=`, see `sd_notify(3)`:
//!
//! ```text
//!   router --- FDSTORE=1, FDNAME=tap-NAMESPACE-PORT, the descriptor ---> systemd
//!   systemd --- LISTEN_FDS, LISTEN_FDNAMES, the descriptors ---> the next router
//! ```
//!
//! The namespace is its inode's number, so that an interface of another one is not taken.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};

/// What the manager has kept, and the way to it.
#[derive(Debug, Default)]
pub struct FdStore {
    kept: HashMap<String, OwnedFd>,
    manager: Option<UnixAddr>,
}

impl FdStore {
    /// Takes what the manager has kept for this process, if it was started by one.
    pub fn of_environment() -> Self {
        let kept = dpdk::inherited().into_iter().collect();
        let manager = std::env::var_os("NOTIFY_SOCKET").and_then(|path| match path.as_bytes() {
            [b'@', name @ ..] => UnixAddr::new_abstract(name).ok(),
            path => UnixAddr::new(path).ok(),
        });
        Self { kept, manager }
    }

    /// The descriptor of the interface of this name in the calling thread's namespace, if it was
    /// kept.
    pub fn take(&mut self, interface: &str) -> Option<OwnedFd> {
        self.kept.remove(&name(interface).ok()?)
    }

    /// Has the manager keep it. Without a manager nothing happens.
    ///
    /// # Errors
    /// The manager does not listen.
    pub fn keep(&self, interface: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        // It is not to look at the descriptor: that of an interface that is down is in error.
        let text = format!("FDSTORE=1\nFDPOLL=0\nFDNAME={}\n", name(interface)?);
        self.tell(&text, Some(descriptor))
    }

    /// Has the manager forget that of an interface in the calling thread's namespace.
    ///
    /// # Errors
    /// The manager does not listen.
    pub fn forget(&self, interface: &str) -> io::Result<()> {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={}\n", name(interface)?), None)
    }

    /// Has the manager forget what no port has wanted.
    pub fn forget_the_rest(&mut self) {
        for name in std::mem::take(&mut self.kept).into_keys() {
            // At worst it goes on to keep it.
            let _ = self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None);
        }
    }

    fn tell(&self, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let Some(manager) = &self.manager else { return Ok(()) };
        let numbers: Vec<_> = descriptor.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&numbers)];
        let rights = if numbers.is_empty() { &[][..] } else { &rights[..] };
        let socket = UnixDatagram::unbound()?;
        let text = [IoSlice::new(text.as_bytes())];
        sendmsg(socket.as_raw_fd(), &text, rights, MsgFlags::MSG_NOSIGNAL, Some(manager))?;
        Ok(())
    }
}

/// What the descriptor of an interface of the calling thread's namespace is called.
fn name(interface: &str) -> io::Result<String> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    // A colon would separate it from the next name.
    let interface = interface.replace(':', "_");
    Ok(format!("tap-{namespace}-{interface}"))
}
