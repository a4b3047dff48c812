//! The steps of the cases `lua-empty`, `lua-voip` and `rust-voip`, to measure the cost of a step in
//! Lua and of the same one in Rust.

use std::sync::Arc;

use anyhow::Result;
use dataplane::batch::ETHERNET;
use dataplane::graph::{Output, Outputs, Step};
use dataplane::transmit::Discipline;
use dataplane::{Batch, Mask};
use script::{ForwarderLua, LuaStep, Policy, ScriptSource, StepSettings, Watchdog};

/// A rate that no packet exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// Of all packets of the rule.
    Rule,
    /// Of each source.
    Source,
}

/// Extension of a case's graph beyond the default steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    /// Nothing.
    Nothing,
    /// A native step that does nothing.
    Noop,
    /// A step in Lua that does nothing.
    LuaEmpty,
    /// [`LUA_VOIP`].
    LuaVoip,
    /// The same, [`Flushed`].
    LuaFlushed,
    /// [`MarkVoip`].
    RustVoip,
    /// An ingress filter of this many rules, like those of an access list.
    Rules(usize),
    /// The same with ten rules, the first of which accepts all packets, with a rate or without.
    First(Option<Rate>),
    /// The same with ten rules, the first of which accepts packets to a set of this many prefixes.
    Set(usize),
    /// The same with ten rules, the first of which accepts the packets of known connections, as all
    /// packets are.
    State,
    /// A queue in software before the port.
    Queue(Discipline),
    /// A first-in-first-out queue with a rate that is never reached.
    Shape,
    /// A bond of all ports.
    Bond,
    /// VLANs with the tags of the source's frames on all ports.
    Vlans,
    /// The same, and queues with rates that are never reached before the VLANs and many others.
    VlanQueues,
    /// A VRF of the ports besides the default one.
    Vrf,
}

/// A step that does nothing.
pub const LUA_EMPTY: &str = r#"
local turnpike = require "turnpike"
turnpike.step "step" { process = function(batch, mask) return mask end }
"#;

/// Marks packets to SIP's port. No packet of the source is one, so that all cost the same.
pub const LUA_VOIP: &str = r#"
local turnpike = require "turnpike"
turnpike.step "step" {
  outputs = { "next" },
  process = function(batch, mask)
    for i in batch:each(mask) do
      local ip = batch:ip4(i)
      if ip.protocol == 17 and batch:udp(i).dst == 5060 then ip:set_dscp(46) end
    end
    return mask
  end,
}
"#;

/// Calls after which [`Flushed`] has everything compiled again: half a million packets.
const FLUSH_AFTER: u64 = 8192;

/// A step in Lua whose traces are discarded again and again, as LuaJIT does when it runs out of
/// room for them: measures the cost without traces, and their return.
pub struct Flushed {
    step: LuaStep,
    calls: u64,
}

impl From<LuaStep> for Flushed {
    fn from(step: LuaStep) -> Self {
        Self { step, calls: 0 }
    }
}

impl Step for Flushed {
    fn outputs(&self) -> &[Output] {
        self.step.outputs()
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        self.calls += 1;
        if self.calls.is_multiple_of(FLUSH_AFTER) {
            self.step.flush().expect("a benchmark's script leaves memory for a call");
        }
        self.step.process(batch, input, out);
    }
}

/// Creates the step of such a script.
pub fn lua_step(text: &str, watchdog: &Watchdog) -> Result<LuaStep> {
    let settings = StepSettings {
        name: "step".to_owned(),
        outputs: vec!["next".to_owned()],
        drops: Vec::new(),
        limit: 0,
        policy: Policy::Bypass,
        budget_us: 100_000,
    };
    let (shared, peers) = (Arc::default(), Arc::default());
    let source = ScriptSource {
        text,
        file: "bench",
        ports: &[],
        categories: &[],
        shared: &shared,
        peers: &peers,
    };
    Ok(ForwarderLua::load(&source, watchdog)?.into_step(&settings)?)
}

/// The same work as [`LUA_VOIP`].
pub struct MarkVoip;

impl Step for MarkVoip {
    fn outputs(&self) -> &'static [Output] {
        const { &[Output::next("next")] }
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        for i in input.slots() {
            let head = batch.head(i);
            let start = ETHERNET + usize::from(head[ETHERNET] & 15) * 4;
            let first = head[20] & 0x1f == 0 && head[21] == 0;
            if head[23] == 17 && first && batch.len(i) >= start + 8 {
                let frame = batch.frame_mut(i);
                if frame[start + 2..start + 4] == 5060u16.to_be_bytes() {
                    mark(&mut frame[ETHERNET..], 46);
                }
            }
        }
        out[0] = input;
    }
}

/// Sets the DSCP and updates the header's checksum (RFC 1624).
fn mark(header: &mut [u8], dscp: u8) {
    let old = u16::from_be_bytes([header[0], header[1]]);
    header[1] = dscp << 2 | header[1] & 3;
    let new = u16::from_be_bytes([header[0], header[1]]);
    let sum =
        u32::from(!u16::from_be_bytes([header[10], header[11]])) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::mark;

    #[test]
    fn a_mark_keeps_the_checksum() {
        let mut header = [0x45, 0, 0, 46, 1, 2, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = wire::checksum::checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        mark(&mut header, 46);
        assert_eq!((header[1], wire::checksum::checksum(&header)), (46 << 2, 0));
    }
}
