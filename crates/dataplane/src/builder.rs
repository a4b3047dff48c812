//! Graphs of existing steps, for tests, benchmarks and programs without a configuration.

use std::collections::HashMap;
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::graph::{Graph, Step};
use crate::plan::{Plan, PlanError, Successor};
use crate::tables::Tables;

/// A [`Plan`] together with its steps; the first step added receives every batch.
///
/// ```
/// # use dataplane::builder::GraphBuilder; use dataplane::graph::*; use dataplane::plan::PlanError;
/// # use dataplane::{Batch, Mask};
/// const OUTPUTS: &[Output] = &[Output::next("next")];
/// struct Pass;
/// impl Step for Pass {
///     fn outputs(&self) -> &[Output] { OUTPUTS }
///     fn process(&mut self, _: &mut Batch, input: Mask, out: &mut Outputs) { out[0] = input; }
/// }
/// let mut graph = GraphBuilder::new();
/// graph.add("first", Pass)?;
/// graph.add("second", Pass)?;
/// graph.connect("first", "next", "second")?;
/// graph.transmit("second", "next")?;
/// assert_eq!(graph.build()?.shape().steps.len(), 2);
/// # Ok::<(), PlanError>(())
/// ```
#[derive(Default)]
pub struct GraphBuilder {
    plan: Plan,
    steps: HashMap<String, Box<dyn Step>>,
}

impl GraphBuilder {
    /// Creates a graph without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the steps of a plan, for a router with these tables.
    ///
    /// # Errors
    /// A step cannot be made or left out.
    pub fn of(plan: &Plan, catalogue: &Catalogue, tables: &Arc<Tables>) -> Result<Self, PlanError> {
        let plan = plan.wanted_by(&tables.interfaces.get())?;
        let steps = plan.make(catalogue, (tables, &[]), &mut |_| None)?;
        let names: Vec<_> = plan.names().map(str::to_owned).collect();
        Ok(Self { plan, steps: names.into_iter().zip(steps).collect() })
    }

    /// Adds a step under a name of its own.
    ///
    /// # Errors
    /// There is one of this name, or it has too many outputs.
    pub fn add(&mut self, name: &str, step: impl Step + 'static) -> Result<(), PlanError> {
        self.plan.add_bare(name, step.outputs())?;
        self.steps.insert(name.to_owned(), Box::new(step));
        Ok(())
    }

    /// Inserts a new step before step `before`: all outputs that led there lead to the new one,
    /// whose main output leads to `before`.
    ///
    /// # Errors
    /// A name is not known, or taken already.
    pub fn insert(
        &mut self,
        name: &str,
        step: impl Step + 'static,
        before: &str,
    ) -> Result<(), PlanError> {
        self.plan.insert_bare(before, name, step.outputs())?;
        self.steps.insert(name.to_owned(), Box::new(step));
        Ok(())
    }

    /// Connects an output of step `from` to step `to`.
    ///
    /// # Errors
    /// A name is not known.
    pub fn connect(&mut self, from: &str, output: &str, to: &str) -> Result<(), PlanError> {
        self.lead(from, output, &Successor::Step(to.to_owned()))
    }

    /// Connects an output of step `from` to transmission.
    ///
    /// # Errors
    /// A name is not known.
    pub fn transmit(&mut self, from: &str, output: &str) -> Result<(), PlanError> {
        self.lead(from, output, &Successor::Transmit)
    }

    /// Drops the packets of an output, under
    /// [`DropReason::ByStep`](crate::reason::DropReason::ByStep).
    ///
    /// # Errors
    /// A name is not known.
    pub fn discard(&mut self, from: &str, output: &str) -> Result<(), PlanError> {
        self.lead(from, output, &Successor::Drop)
    }

    /// Connects an output of step `from` to replication.
    ///
    /// # Errors
    /// A name is not known.
    pub fn replicate(&mut self, from: &str, output: &str) -> Result<(), PlanError> {
        self.lead(from, output, &Successor::Replicate)
    }

    fn lead(&mut self, from: &str, output: &str, to: &Successor) -> Result<(), PlanError> {
        self.plan.lead(&format!("{from}.{output}"), to, None)
    }

    /// Checks the form of the graph, but not the facts on its edges, and builds it.
    ///
    /// # Errors
    /// An output without a target, an unreachable step, or a cycle.
    pub fn build(mut self) -> Result<Graph, PlanError> {
        let steps = self.plan.names().filter_map(|name| self.steps.remove(name)).collect();
        self.plan.assemble(steps)
    }
}
