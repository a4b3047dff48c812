//! Netlink sockets, and their network namespace.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

use super::Error;

/// Groups of notifications: `RTMGRP_*`, and for later ones `1 << (RTNLGRP_* - 1)`.
pub(super) mod group {
    use linux_raw_sys::netlink::rtnetlink_groups::{
        RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF, RTNLGRP_IPV6_RULE, RTNLGRP_NEXTHOP,
    };
    pub(crate) use linux_raw_sys::netlink::{
        RTMGRP_IPV4_IFADDR as IPV4_IFADDR, RTMGRP_IPV4_MROUTE as IPV4_MROUTE,
        RTMGRP_IPV4_ROUTE as IPV4_ROUTE, RTMGRP_IPV4_RULE as IPV4_RULE,
        RTMGRP_IPV6_IFADDR as IPV6_IFADDR, RTMGRP_IPV6_MROUTE as IPV6_MROUTE,
        RTMGRP_IPV6_ROUTE as IPV6_ROUTE, RTMGRP_LINK as LINK, RTMGRP_NEIGH as NEIGH,
    };

    pub(crate) const IPV4_NETCONF: u32 = 1 << (RTNLGRP_IPV4_NETCONF as u32 - 1);
    pub(crate) const IPV6_NETCONF: u32 = 1 << (RTNLGRP_IPV6_NETCONF as u32 - 1);
    pub(crate) const IPV6_RULE: u32 = 1 << (RTNLGRP_IPV6_RULE as u32 - 1);
    pub(crate) const NEXTHOP: u32 = 1 << (RTNLGRP_NEXTHOP as u32 - 1);
}

/// Moves the calling thread into the network namespace of this file.
///
/// # Errors
/// It cannot be opened or is not a namespace; the error lists the existing ones.
pub fn enter_netns(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|file| enter(&file)).map_err(|error| refused(path, error))
}

/// Opens the network namespace of this file; `None`: that of the process.
///
/// # Errors
/// It cannot be opened; the error lists the existing ones.
pub(super) fn open_netns(path: Option<&Path>) -> Result<File, Error> {
    let path = path.unwrap_or(Path::new("/proc/self/ns/net"));
    File::open(path).map_err(|error| refused(path, error))
}

fn refused(path: &Path, error: io::Error) -> Error {
    Error::Namespace { path: path.into(), error, known: known() }
}

/// Moves the calling thread into an open network namespace.
pub(super) fn enter(namespace: &File) -> io::Result<()> {
    Ok(setns(namespace, CloneFlags::CLONE_NEWNET)?)
}

/// Returns the names of the named namespaces.
fn known() -> String {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Result of a receive call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Number of bytes of the buffer that are messages.
    Bytes(usize),
    /// The datagram was longer than the buffer.
    Truncated,
    /// The kernel has dropped messages because the receive buffer was full.
    Overrun,
    /// There is no datagram now.
    Nothing,
}

impl Socket {
    /// Opens a socket in the thread's namespace that receives the notifications of these groups.
    pub(super) fn open(groups: u32) -> io::Result<Self> {
        Self::of(SockProtocol::NetlinkRoute, groups)
    }

    /// Opens a socket in the thread's namespace for the families of generic netlink.
    pub(super) fn generic() -> io::Result<Self> {
        Self::of(SockProtocol::NetlinkGeneric, 0)
    }

    /// Opens a socket in the thread's namespace that reports on sockets (sock_diag(7)).
    pub(crate) fn diag() -> io::Result<Self> {
        Self::of(SockProtocol::NetlinkSockDiag, 0)
    }

    fn of(protocol: SockProtocol, groups: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Netlink, SockType::Raw, flags, protocol)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
        Ok(Self(fd))
    }

    /// Sets the size of the kernel's receive buffer. Without the privilege to exceed the system's
    /// limit, the limit applies; returns true if it could be exceeded.
    pub(super) fn set_receive_buffer(&self, bytes: usize) -> io::Result<bool> {
        match setsockopt(&self.0, sockopt::RcvBufForce, &bytes) {
            Ok(()) => Ok(true),
            Err(Errno::EPERM) => {
                setsockopt(&self.0, sockopt::RcvBuf, &bytes)?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the time after which a blocking receive gives up.
    pub(crate) fn set_timeout(&self, seconds: i64) -> io::Result<()> {
        Ok(setsockopt(&self.0, sockopt::ReceiveTimeout, &TimeVal::seconds(seconds))?)
    }

    /// Receives the next datagram, blocking if `wait` is true.
    pub(crate) fn receive(&self, buffer: &mut [u8], wait: bool) -> io::Result<Received> {
        let flags =
            MsgFlags::MSG_TRUNC | if wait { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
        loop {
            return match recv(self.0.as_raw_fd(), buffer, flags) {
                Ok(length) if length > buffer.len() => Ok(Received::Truncated),
                Ok(length) => Ok(Received::Bytes(length)),
                Err(Errno::ENOBUFS) => Ok(Received::Overrun),
                Err(Errno::EAGAIN) => Ok(Received::Nothing),
                Err(Errno::EINTR) => continue,
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Sends a request.
    pub(crate) fn send(&self, request: &[u8]) -> io::Result<()> {
        send(self.0.as_raw_fd(), request, MsgFlags::empty())?;
        Ok(())
    }
}
