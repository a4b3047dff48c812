//! Steps in Lua: LuaJIT on each forwarder, on packet memory.
//!
//! ```lua
//! local voip = turnpike.step "mark-voip" {
//!   outputs = { "next" },
//!   process = function(batch, mask)
//!     for i in batch:each(mask) do
//!       local ip = batch:ip4(i)
//!       if ip.protocol == 17 and batch:udp(i).dst == 5060 then ip:set_dscp(46) end
//!     end
//!     return mask
//!   end,
//! }
//! ```
//!
//! The configuration runs once when it is read, and once more in a Lua state of each forwarder ([`ForwarderLua`]),
//! where only its steps and counters have an effect: each forwarder has its own variables, and shares the objects of
//! `shared.rs` with the others. A step ([`LuaStep`]) calls its function through one C call per batch, without
//! arguments: the batch is described by a structure that Lua reads through its foreign function interface, and the
//! result is written there. `state.rs` justifies the unsafe code, `lua/prelude.lua` defines the functions available to
//! a step, `watchdog.rs` stops steps that do not end, and `pattern.rs` has the library functions that could exceed the
//! time limit.
#![deny(unsafe_code)]

mod missing;
mod pattern;
mod peers;
mod shared;
mod state;
mod status;
mod step;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod watchdog;

pub use missing::way_out;
pub use pattern::install as bound_libraries;
pub use peers::Peers;
pub use shared::{SHARED_SIZE, SharedObjects, SharedSettings};
pub use state::{ForwarderLua, JitStatus, LoadError, LuaSteps, ScriptSource};
pub use status::{COUNTERS_MAX, CounterNames, Failure, ScriptCounters, StepStatus};
pub use step::{LuaStep, Policy, StepSettings};
pub use watchdog::{Watchdog, is_loading_stopped, stop_loading};

/// Functions available to every script: conversion between addresses and numbers.
pub const HELPERS: &str = include_str!("lua/helpers.lua");
