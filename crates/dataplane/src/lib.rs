//! The packet path: batches, the mask graph, its steps, and the forwarders that run it.
#![forbid(unsafe_code)]

pub mod next_hop;
pub mod port;
pub mod reason;
