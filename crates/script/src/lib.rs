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
//! The configuration runs once when it is read, and once more in a Lua state of each forwarder
//! ([`ForwarderLua`]), where only its steps and counters mean something: each forwarder has its own
//! variables, and with the others what `shared.rs` has. A step ([`LuaStep`]) calls its function through one C call a batch, without arguments: the
//! batch is described by a structure that Lua reads through its foreign function interface, and the
//! answer is written there. See `state.rs` for what is unsafe in it, `lua/prelude.lua` for what a step
//! can do, `watchdog.rs` for what happens when it does not end, and `pattern.rs` for the library functions that
//! could take longer than that.
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
pub use state::{ForwarderLua, JitStatus, LoadError, LuaSteps, Source};
pub use status::{COUNTERS_MAX, CounterNames, Failure, ScriptCounters, StepStatus};
pub use step::{LuaStep, Policy, StepSettings};
pub use watchdog::{Watchdog, is_loading_stopped, stop_loading};

/// What scripts have wherever they run: addresses to numbers and back.
pub const HELPERS: &str = include_str!("lua/helpers.lua");
