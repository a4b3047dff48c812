//! The holder: a process that keeps host interfaces while there is no router.
//!
//! The kernel takes the carrier from a TAP when its last descriptor is closed, a lasting one (`TUNSETPERSIST`)
//! included, and refuses to give it back as long as nobody has one (`tun_net_change_carrier`). With the carrier go
//! the nexthop objects over it with their routes, and BGP's sessions. So somebody must have a descriptor while the
//! router is killed and started: systemd, if it is told to (`router/fd_store.rs`), else this process.
//!
//! ```text
//!   router ---- keep NAME + descriptor, forget NAME, hold SECONDS, ready, stopping ----> holder
//!   router <--- held NAME + descriptor, all; done NAME -------------------------------- holder
//!                  one SOCK_SEQPACKET connection as long as the router lives
//! ```
//!
//! - The router starts it with its first host interface, as `turnpike hold`, and again if it is killed.
//! - It is found by its socket beside the router's (`/run/turnpike.sock.hold`), so that routers with sockets of their
//!   own have holders of their own. Only the user who runs the router, and root, get an answer.
//! - A router that ends in order says `stopping`: everything is let go, and the holder ends. A router that is killed
//!   says nothing: everything is held for the next one, for so many seconds. A router that says `ready` stops that
//!   clock; one that only tries to start does not.

mod channel;
mod client;
mod process;

pub use channel::{Message, holder_socket};
pub use client::{Holder, is_served, wait_for_end};
pub use process::serve;

/// How long interfaces are held, in seconds, unless `run --hold` says otherwise: BGP's usual hold time (RFC 4271 10
/// suggests 90 s, routing daemons default to 180 s). After it the sessions are over, held or not.
pub const SECONDS: u64 = 180;

#[cfg(test)]
mod tests;
