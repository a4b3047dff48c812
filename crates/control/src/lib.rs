//! The control plane: configuration in Lua, table import, and the routing information base.
#![forbid(unsafe_code)]

pub mod config;
pub mod cores;
pub mod fpm;
pub mod gate;
pub mod import;
pub mod netlink;
pub mod rib;
