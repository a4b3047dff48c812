//! The holder: a process that keeps host interfaces open while there is no router.
//!
//! The kernel removes the carrier of a TAP, even a persistent one (`TUNSETPERSIST`), when its last
//! descriptor is closed, and does not restore it while no process has one
//! (`tun_net_change_carrier`). Without the carrier, the nexthop objects over it are removed with
//! their routes, and BGP's sessions end. So a process must hold a descriptor while the router is
//! killed and started: systemd, if it is configured to (`fd_store.rs`), else this process.
//!
//! ```text
//!   router ---- keep NAME + descriptor, forget NAME, hold SECONDS, ready, stopping ----> holder
//!   router <--- held NAME + descriptor, all; done NAME -------------------------------- holder
//!                  one SOCK_SEQPACKET connection as long as the router lives
//! ```
//!
//! - The router starts it with its first host interface, as `turnpike hold`, and again if it is
//!   killed.
//! - It is found by its socket beside the router's (`/run/turnpike.sock.hold`), so that routers with
//!   sockets of their own have holders of their own. Only the user who runs the router, and root,
//!   get an answer.
//! - A router that ends in order sends `stopping`: everything is released, and the holder ends. When a
//!   router is killed, everything is held for the next one, for a configured number of seconds.
//!   `ready` from a router stops that clock; a router that only tries to start does not.

mod channel;
mod client;
mod process;

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::sys::socket::SockType;

use crate::server::{bind_private, remove_stale};
pub use channel::{Message, holder_socket};
use client::is_served;
pub use client::{Holder, wait_for_end};
pub use process::serve;

/// Default number of seconds for which interfaces are held: BGP's usual hold time (RFC 4271 10
/// suggests 90 s, routing daemons default to 180 s). After it the sessions have ended, with or
/// without holding.
pub const SECONDS: u64 = 180;

/// Creates the socket of a holder that no router has started.
///
/// # Errors
/// Another holder serves it, its file is not a socket, or it cannot be created.
pub fn listen(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    if is_served(path) {
        bail!("holder {shown}: another one holds there already; end it or choose another --socket");
    }
    if fs::symlink_metadata(path).is_ok() {
        remove_stale(path, "--socket")?;
    }
    bind_private(path, SockType::SeqPacket)
        .with_context(|| format!("holder {shown}: the socket cannot be made"))
}

#[cfg(test)]
mod tests;
