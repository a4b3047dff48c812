//! A step whose work is a function in Lua.
//!
//! Takes the packets that the graph passes to its place. Its outputs are those that the script names, and
//! one for packets on which it fails:
//!
//! | output | packets |
//! |---|---|
//! | as named | those of the mask that the function returned for it, or filled; the first mask wins |
//! | drop `by-step` | likewise, by a name of the step's `drops`, under which they are counted as well |
//! | drop `step-failed` | the function raised an error on them, or exceeded its budget |
//! | (lost) drop `step-lost` | those in none of the masks |
//!
//! When a call fails, the batch's packets are passed to the function again one at a time, and only those on
//! which it fails again are dropped; a function that changes packets thus sees some of them twice. A second
//! call of a batch that exceeds its budget drops the rest of the batch. After [`StepSettings::limit`]
//! failures (an overrun counts as ten) the function is not called any more, and [`Policy`] decides.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::batch::Batch;
use dataplane::graph::{Output, Outputs, Step};
use dataplane::mask::Mask;
use dataplane::reason::DropReason;

use crate::state::{JitStatus, LoadError, OUTPUTS_MAX, StateHandle};
use crate::status::StepStatus;

/// Number of failures that an overrun counts as.
const OVERRUN_COUNTS: u64 = 10;

/// Treatment of packets by a disabled step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// They take the first output.
    #[default]
    Bypass,
    /// They are dropped as `step-failed`.
    Drop,
}

/// Configuration of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSettings {
    /// Its name, unique.
    pub name: String,
    /// Its outputs, 1 to 15 with its drops.
    pub outputs: Vec<String>,
    /// The names under which it drops packets: outputs after the others, which only lead to drops.
    pub drops: Vec<String>,
    /// Number of failures after which it is disabled; 0: never.
    pub limit: u64,
    /// Treatment of packets after that.
    pub policy: Policy,
    /// Longest duration of a call, in microseconds of processor time.
    pub budget_us: u64,
}

impl StepSettings {
    /// Returns its outputs as the graph numbers them, the one for failures last.
    pub fn graph_outputs(&self) -> Vec<Output> {
        let next = self.outputs.iter().map(|name| Output::Next(name.clone().into()));
        let drops = self.drops.iter().map(|name| Output::DropAs(name.clone().into()));
        next.chain(drops).chain([Output::Drop(DropReason::StepFailed)]).collect()
    }

    /// Returns the number of outputs that its function assigns packets to; the one for failures follows.
    fn masks(&self) -> usize {
        self.outputs.len() + self.drops.len()
    }
}

/// A step whose work is a function in Lua; see the module's documentation.
pub struct LuaStep {
    settings: StepSettings,
    outputs: Vec<Output>,
    state: StateHandle,
    place: c_int,
    status: Arc<StepStatus>,
    /// Number of failures, with overruns weighted.
    score: u64,
    disabled: bool,
}

impl LuaStep {
    pub(crate) fn new(settings: StepSettings, state: StateHandle, place: c_int) -> Self {
        let outputs = settings.graph_outputs();
        let status = Arc::default();
        Self { settings, outputs, state, place, status, score: 0, disabled: false }
    }

    /// Returns the step's name.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns its status.
    pub fn status(&self) -> Arc<StepStatus> {
        self.status.clone()
    }

    /// Returns the statistics of its forwarder's JIT compiler.
    pub fn jit(&self) -> Arc<JitStatus> {
        self.state.jit()
    }

    /// Discards the compiled code of its forwarder between two calls, to measure the cost of this.
    ///
    /// # Errors
    /// The state has no memory left.
    pub fn flush(&mut self) -> Result<(), LoadError> {
        self.state.flush()
    }

    #[cfg(test)]
    fn interpret_for_tests(&self) {
        self.state.interpret();
    }

    #[cfg(test)]
    fn memory_without_collection(&self) -> usize {
        self.state.memory_without_collection()
    }

    fn call(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) -> Result<(), bool> {
        let count = self.settings.masks().min(OUTPUTS_MAX);
        match self.state.call(self.place, self.settings.budget_us, batch, input) {
            Ok(masks) => {
                let mut rest = input;
                for (out, &mask) in out.iter_mut().zip(masks).take(count) {
                    *out |= rest & Mask(mask);
                    rest = rest.without(Mask(mask));
                }
                Ok(())
            }
            Err((message, overrun)) => {
                self.status.failed(&message, overrun);
                self.score += if overrun { OVERRUN_COUNTS } else { 1 };
                Err(overrun)
            }
        }
    }

    /// Processes the packets one at a time, after a call has failed.
    #[cold]
    fn one_by_one(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs, overrun: bool) {
        let mut overruns = u32::from(overrun);
        let mut failed = Mask::EMPTY;
        // The call for the whole batch is not counted in addition to those for single packets.
        let alone = input.count() == 1;
        for slot in input.slots() {
            let one = Mask::when(true, slot);
            if alone || overruns > 1 || self.worn_out() {
                failed |= one;
                continue;
            }
            if let Err(overrun) = self.call(batch, one, out) {
                failed |= one;
                overruns += u32::from(overrun);
            }
        }
        self.status.dropped.fetch_add(u64::from(failed.count()), Ordering::Relaxed);
        out[self.settings.masks()] |= failed;
        if self.worn_out() {
            self.disabled = true;
            self.status.disabled.store(true, Ordering::Relaxed);
        }
    }

    fn worn_out(&self) -> bool {
        self.settings.limit > 0 && self.score >= self.settings.limit
    }
}

impl Step for LuaStep {
    fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        if self.disabled {
            let output = match self.settings.policy {
                Policy::Bypass => 0,
                Policy::Drop => self.settings.masks(),
            };
            out[output] = input;
        } else if let Err(overrun) = self.call(batch, input, out) {
            self.one_by_one(batch, input, out, overrun);
        }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
