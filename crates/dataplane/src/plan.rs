//! The description of a graph: names of steps, their arguments, and the targets of outputs. The
//! default graph is a plan (`default_graph.rs`), configurations compose and change plans, and a
//! plan is printed as the Lua code that creates it. [`Plan::check`] reports the errors of a plan,
//! [`Plan::build`] makes the graph that runs.
//!
//! A place in a plan is written `STEP` or `STEP.OUTPUT`. The *main output* of a step is the first
//! whose target the plan sets (not the slow path or a drop); a step that follows another without
//! naming an output follows the main one.
//!
//! A step can be *conditional* on a [`Feature`]; if no port has it, the step is left out when the
//! graph is built, and its predecessors lead to the successor of its main output.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::catalogue::{Catalogue, Facts, MakeContext, StepSpec};
use crate::features::Feature;
use crate::graph::{Graph, MAX_OUTPUTS, Output, Part, Step, Target};
use crate::interface::InterfaceInfo;
use crate::params::{Args, Given};
use crate::port::PortId;
use crate::reason::{DropOrigin, DropReason};
use crate::steps::ByPort;
use crate::tables::Tables;
use crate::words::suggestion;

/// The target of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Successor {
    /// To the step of this name.
    Step(String),
    /// Out by the packet's egress port.
    Transmit,
    /// To all ports selected by a multicast step.
    Replicate,
    /// Freed and counted as `by-step`.
    Drop,
}

impl Successor {
    /// Reads it as written in plans. The names of the ends are not names of steps.
    pub fn read(text: &str) -> Self {
        match text {
            "transmit" => Self::Transmit,
            "replicate" => Self::Replicate,
            "drop" => Self::Drop,
            name => Self::Step(name.to_owned()),
        }
    }

    /// The name of the step or of the end.
    pub fn name(&self) -> &str {
        match self {
            Self::Step(name) => name,
            Self::Transmit => "transmit",
            Self::Replicate => "replicate",
            Self::Drop => "drop",
        }
    }
}

/// An error of a plan or of a change to it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct PlanError {
    /// The line of the statement that added it, in the configuration; `None` if unknown or if it is
    /// a line of the default graph.
    pub line: Option<usize>,
    /// The error, with the step's name.
    pub message: String,
}

impl PlanError {
    /// An error of the statement on this line.
    pub fn new(line: Option<usize>, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Edge {
    output: String,
    /// Its packets are emitted later, so it may lead back.
    deferred: bool,
    to: Option<Successor>,
    line: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    kind: String,
    args: Args,
    only_if: Option<Feature>,
    line: Option<usize>,
    /// The outputs whose targets the plan sets.
    edges: Vec<Edge>,
    /// The outputs of all kinds together.
    outputs: usize,
}

impl Node {
    fn edge(&mut self, output: &str) -> Option<&mut Edge> {
        self.edges.iter_mut().find(|edge| edge.output == output)
    }

    fn with(self, step: &NewStep<'_>) -> Self {
        let (args, only_if, line) = (step.args.clone(), step.only_if, step.line);
        let edges = self.edges.into_iter().map(|edge| Edge { line, ..edge }).collect();
        Self { args, only_if, line, edges, ..self }
    }

    /// The successor by the main output.
    fn next(&self) -> Option<&Successor> {
        self.edges.first().and_then(|edge| edge.to.as_ref())
    }
}

/// A step to be put into a plan.
#[derive(Clone, Debug)]
pub struct NewStep<'a> {
    /// Its name in the plan.
    pub name: &'a str,
    /// Its kind, from the catalogue.
    pub spec: &'a StepSpec,
    /// Its arguments.
    pub args: Args,
    /// The feature that a port must have for the step to be in the graph; `None`: always.
    pub only_if: Option<Feature>,
    /// The line of the configuration that adds it.
    pub line: Option<usize>,
}

impl<'a> NewStep<'a> {
    /// A step under its kind's name, with these arguments.
    pub fn of(spec: &'a StepSpec, args: Args, line: Option<usize>) -> Self {
        Self { name: spec.name(), spec, args, only_if: None, line }
    }

    fn node(&self, name: String) -> Node {
        node(name, self.spec.name(), &self.spec.outputs(&self.args)).with(self)
    }
}

/// Creates a node whose outputs have no targets yet.
fn node(name: String, kind: &str, outputs: &[Output]) -> Node {
    let edge = |output: &Output| match output {
        Output::Next(name) | Output::Deferred(name) => {
            let deferred = matches!(output, Output::Deferred(_));
            Some(Edge { output: name.to_string(), deferred, to: None, line: None })
        }
        Output::Punt(_) | Output::Drop(_) | Output::DropAs(_) => None,
    };
    Node {
        name,
        kind: kind.to_owned(),
        args: Args::default(),
        only_if: None,
        line: None,
        edges: outputs.iter().filter_map(edge).collect(),
        outputs: outputs.len(),
    }
}

/// A described graph. The first step receives every batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    nodes: Vec<Node>,
}

type Changed = Result<(), PlanError>;

impl Plan {
    /// A plan without steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns true if the plan has a step of this name.
    pub fn has(&self, name: &str) -> bool {
        self.nodes.iter().any(|node| node.name == name)
    }

    /// The names of its steps, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.name.as_str())
    }

    /// The kinds of its steps.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|node| node.kind.as_str())
    }

    /// The steps of this kind: their names, arguments and lines.
    pub fn steps_of(&self, kind: &str) -> impl Iterator<Item = (&str, &Args, Option<usize>)> {
        let of_kind = self.nodes.iter().filter(move |node| node.kind == kind);
        of_kind.map(|node| (node.name.as_str(), &node.args, node.line))
    }

    /// The kind and the arguments of a step.
    pub fn step(&self, name: &str) -> Option<(&str, &Args)> {
        let node = self.nodes.iter().find(|node| node.name == name)?;
        Some((&node.kind, &node.args))
    }

    /// Gives a step another argument beside those that it has; its outputs stay as they are.
    ///
    /// # Errors
    /// There is no such step or parameter, or the value does not fit.
    pub fn set_argument(
        &mut self,
        catalogue: &Catalogue,
        name: &str,
        (key, value): (&str, Given),
    ) -> Changed {
        let at = self.find(name, None)?;
        let node = &mut self.nodes[at];
        let error = |why: String| PlanError::new(None, format!("step \"{name}\": {why}"));
        let spec = catalogue.find(&node.kind);
        let spec =
            spec.ok_or_else(|| error(format!("kind \"{}\" has no parameters", node.kind)))?;
        let given = node.args.given().map(|(name, arg)| (name.to_owned(), arg.given()));
        let given = given.chain([(key.to_owned(), value)]).collect();
        let read = Args::read(spec.params(), &given);
        let args = read.map_err(|wrong| {
            error(wrong.into_iter().map(|(_, why)| why).collect::<Vec<_>>().join("; "))
        })?;
        if spec.outputs(&args) != spec.outputs(&node.args) {
            return Err(error(format!("{key}: it changes the outputs")));
        }
        node.args = args;
        Ok(())
    }

    /// Returns true if a step of this kind has an output that drops packets.
    pub fn can_drop(&self, kind: &str) -> bool {
        let drops = |node: &Node| node.edges.iter().any(|edge| edge.to == Some(Successor::Drop));
        self.nodes.iter().any(|node| node.kind == kind && drops(node))
    }

    /// The plan line by line, regardless of the lines of a configuration: every step with its kind, every
    /// output with its target.
    pub fn described(&self) -> impl Iterator<Item = (String, String)> {
        self.nodes.iter().flat_map(|node| {
            let step = (format!("step \"{}\"", node.name), written(node));
            let successor = |edge: &Edge| {
                let to = edge.to.as_ref().map_or("", Successor::name);
                (format!("{}.{}", node.name, edge.output), format!("\"{to}\""))
            };
            std::iter::once(step).chain(node.edges.iter().map(successor))
        })
    }

    /// Adds a step without predecessors.
    ///
    /// # Errors
    /// There is one of this name.
    pub fn add(&mut self, step: &NewStep<'_>) -> Changed {
        self.put(self.nodes.len(), step.node(step.name.to_owned()))
    }

    /// Adds a step of these outputs that is in no catalogue.
    pub(crate) fn add_bare(&mut self, name: &str, outputs: &[Output]) -> Changed {
        self.put(self.nodes.len(), node(name.to_owned(), name, outputs))
    }

    fn put(&mut self, at: usize, node: Node) -> Changed {
        let Node { name, line, outputs, .. } = &node;
        if self.has(name) {
            let message = format!(
                "step \"{name}\" is in the graph already; give the second one another name"
            );
            return Err(PlanError::new(*line, message));
        }
        let is_other = !matches!(Successor::read(name), Successor::Step(_));
        if is_other || DropOrigin::NAMES.contains(&name.as_str()) || name.contains('.') {
            let others = DropOrigin::NAMES.join("\", \"");
            let message = format!(
                "step \"{name}\": not a name for a step; \"drop\", \"{others}\" and names with a dot mean \
                 something else"
            );
            return Err(PlanError::new(*line, message));
        }
        if *outputs > MAX_OUTPUTS {
            let message = format!("step \"{name}\": {outputs} outputs; at most {MAX_OUTPUTS}");
            return Err(PlanError::new(*line, message));
        }
        self.nodes.insert(at, node);
        Ok(())
    }

    fn find(&self, name: &str, line: Option<usize>) -> Result<usize, PlanError> {
        self.nodes.iter().position(|node| node.name == name).ok_or_else(|| {
            let known = suggestion(name, "known", &self.names().collect::<Vec<_>>());
            PlanError::new(line, format!("step \"{name}\" not found in the graph{known}"))
        })
    }

    /// Step and outputs of a place; all outputs if it names none.
    fn place(&self, place: &str, line: Option<usize>) -> Result<(usize, Vec<String>), PlanError> {
        let (name, output) = match place.split_once('.') {
            Some((name, output)) => (name, Some(output)),
            None => (place, None),
        };
        let at = self.find(name, line)?;
        let node = &self.nodes[at];
        let wanted = |edge: &&Edge| output.is_none_or(|output| edge.output == output);
        let outputs = node.edges.iter().filter(wanted).map(|edge| edge.output.clone());
        let outputs: Vec<_> = outputs.collect();
        if outputs.is_empty() {
            let output = output.unwrap_or_default();
            let outputs: Vec<_> = node.edges.iter().map(|edge| edge.output.as_str()).collect();
            let known = suggestion(output, "known", &outputs);
            let message = format!("step \"{name}\": output \"{output}\" not found{known}");
            return Err(PlanError::new(line, message));
        }
        Ok((at, outputs))
    }

    /// Sets the target of a place, or of its main output; the previous target is forgotten.
    ///
    /// # Errors
    /// A name is unknown.
    pub fn lead(&mut self, from: &str, to: &Successor, line: Option<usize>) -> Changed {
        let (at, outputs) = self.place(from, line)?;
        if let Successor::Step(name) = to {
            self.find(name, line)?;
        }
        if let Some(edge) = self.nodes[at].edge(&outputs[0]) {
            edge.to = Some(to.clone());
            edge.line = line;
        }
        Ok(())
    }

    /// Inserts a step after another, or on one of its outputs. After a step with several outputs there is one
    /// for each of them, called `NAME-OUTPUT`.
    ///
    /// # Errors
    /// A name is not known, or taken already.
    pub fn insert_after(&mut self, place: &str, step: &NewStep<'_>) -> Changed {
        let (at, outputs) = self.place(place, step.line)?;
        let before = self.nodes[at].name.clone();
        let several = outputs.len() > 1;
        for (k, output) in outputs.into_iter().enumerate() {
            let name =
                if several { format!("{}-{output}", step.name) } else { step.name.to_owned() };
            self.put(at + 1 + k, step.node(name.clone()))?;
            let from = self.find(&before, step.line)?;
            let Some(edge) = self.nodes[from].edge(&output) else { continue };
            let next = edge.to.replace(Successor::Step(name.clone()));
            edge.line = step.line;
            self.follow(&name, next, step.line);
        }
        Ok(())
    }

    /// Inserts a step before another, or before the end `transmit`, `replicate` or `drop`: all outputs that led
    /// there lead to the new step.
    ///
    /// # Errors
    /// A name is not known, or taken already.
    pub fn insert_before(&mut self, place: &str, step: &NewStep<'_>) -> Changed {
        self.put_before(place, step.node(step.name.to_owned()))
    }

    /// [`Self::insert_before`] for a step of these outputs that is in no catalogue.
    pub(crate) fn insert_bare(&mut self, place: &str, name: &str, outputs: &[Output]) -> Changed {
        self.put_before(place, node(name.to_owned(), name, outputs))
    }

    fn put_before(&mut self, place: &str, node: Node) -> Changed {
        let (to, line, name) = (Successor::read(place), node.line, node.name.clone());
        let at = match &to {
            Successor::Step(name) => self.find(name, line)?,
            _ => self.nodes.len(),
        };
        self.put(at, node)?;
        let new = Successor::Step(name.clone());
        for edge in self.nodes.iter_mut().flat_map(|node| &mut node.edges) {
            if edge.to.as_ref() == Some(&to) {
                edge.to = Some(new.clone());
                edge.line = line;
            }
        }
        self.follow(&name, Some(to), line);
        Ok(())
    }

    /// Sets the successor by the main output.
    fn follow(&mut self, name: &str, to: Option<Successor>, line: Option<usize>) {
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        if let Some(edge) = node.and_then(|node| node.edges.first_mut()) {
            edge.to = to;
            edge.line = line;
        }
    }

    /// Removes a step: its predecessors lead to the successor of its main output.
    ///
    /// # Errors
    /// The name is not known.
    pub fn remove(&mut self, name: &str, line: Option<usize>) -> Changed {
        let at = self.find(name, line)?;
        let next = self.nodes[at].next().cloned();
        if at == 0 && !matches!(next, Some(Successor::Step(_))) {
            let message = format!("step \"{name}\": the first step, and no step follows it");
            return Err(PlanError::new(line, message));
        }
        let gone = self.nodes.remove(at);
        let line = line.max(gone.edges.first().and_then(|edge| edge.line));
        let gone = Successor::Step(gone.name);
        for edge in self.nodes.iter_mut().flat_map(|node| &mut node.edges) {
            if edge.to.as_ref() == Some(&gone) {
                edge.to = next.clone();
                edge.line = edge.line.max(line);
            }
        }
        if let (0, Some(Successor::Step(next))) = (at, next) {
            let first = self.find(&next, line)?;
            let node = self.nodes.remove(first);
            self.nodes.insert(0, node);
        }
        Ok(())
    }

    /// Returns the plan with this prefix before every name: for one port, beside that for all
    /// others.
    fn prefixed(&self, prefix: &str) -> Self {
        let mut plan = self.clone();
        for node in &mut plan.nodes {
            node.name = format!("{prefix}{}", node.name);
            for edge in &mut node.edges {
                if let Some(Successor::Step(name)) = &mut edge.to {
                    *name = format!("{prefix}{name}");
                }
            }
        }
        plan
    }

    /// Returns the plan without the steps whose features no port has.
    pub(crate) fn wanted_by(&self, ports: &[InterfaceInfo]) -> Result<Self, PlanError> {
        let mut plan = self.clone();
        let is_wanted = |feature| ports.iter().any(|port| port.features.has(feature));
        for node in &self.nodes {
            if node.only_if.is_some_and(|feature| !is_wanted(feature)) {
                plan.remove(&node.name, node.line)?;
            }
        }
        Ok(plan)
    }

    /// Returns the errors of the plan on a router with these ports: unknown kinds, outputs without a target,
    /// unreachable steps, cycles, packets that lack a fact that a step requires.
    ///
    /// # Errors
    /// Everything that was found, in the order of the plan.
    pub fn check(
        &self,
        catalogue: &Catalogue,
        ports: &[InterfaceInfo],
    ) -> Result<(), Vec<PlanError>> {
        let plan = self.wanted_by(ports).map_err(|error| vec![error])?;
        let unknown = plan.unknown(catalogue);
        let order = plan.order().map_err(|errors| [unknown.clone(), errors].concat())?;
        let errors = if unknown.is_empty() { plan.unfit(catalogue, &order) } else { unknown };
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// Returns errors for steps of kinds that the catalogue does not have.
    fn unknown(&self, catalogue: &Catalogue) -> Vec<PlanError> {
        let unknown = self.nodes.iter().filter(|node| catalogue.find(&node.kind).is_none());
        let error = |node: &Node| {
            let known = suggestion(&node.kind, "known", &catalogue.names().collect::<Vec<_>>());
            PlanError::new(node.line, format!("step \"{}\": unknown{known}", node.kind))
        };
        unknown.map(error).collect()
    }

    /// Returns errors for outputs without a target, or with one that does not exist.
    fn dangling(&self) -> Vec<PlanError> {
        let mut errors = Vec::new();
        if self.nodes.is_empty() {
            errors.push(PlanError::new(None, "the graph has no steps; add one"));
        }
        for node in &self.nodes {
            for edge in &node.edges {
                let place = format!("step \"{}\": output \"{}\"", node.name, edge.output);
                let message = match &edge.to {
                    None => format!("{place} leads nowhere; lead it to a step"),
                    Some(Successor::Step(name)) if !self.has(name) => {
                        format!("{place} leads to step \"{name}\", which is not in the graph")
                    }
                    Some(_) => continue,
                };
                errors.push(PlanError::new(edge.line, message));
            }
        }
        errors
    }

    /// Returns the steps in an order in which each follows all its predecessors (Kahn's algorithm);
    /// among candidates the one added first, so that a plan always gives the same graph.
    fn order(&self) -> Result<Vec<usize>, Vec<PlanError>> {
        let dangling = self.dangling();
        if !dangling.is_empty() {
            return Err(dangling);
        }
        let places: HashMap<&str, usize> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
        let step = |edge: &Edge| match &edge.to {
            Some(Successor::Step(name)) => places.get(name.as_str()).copied(),
            _ => None,
        };
        let next = |node: &'_ Node| -> Vec<usize> {
            node.edges.iter().filter(|edge| !edge.deferred).filter_map(step).collect()
        };
        let mut incoming = vec![0; self.nodes.len()];
        self.nodes.iter().flat_map(&next).for_each(|to| incoming[to] += 1);
        // Steps reached by deferred outputs only, and those that make packets.
        let deferred = self.nodes.iter().flat_map(|node| &node.edges).filter(|edge| edge.deferred);
        let deferred: Vec<usize> = deferred.filter_map(step).collect();
        let is_fed = |at: usize| {
            incoming[at] > 0
                || deferred.contains(&at)
                || self.nodes[at].edges.iter().any(|edge| edge.deferred)
        };
        if let Some(lonely) = (1..self.nodes.len()).find(|&at| !is_fed(at)) {
            let Node { name, line, .. } = &self.nodes[lonely];
            let message =
                format!("step \"{name}\": no path leads to it; lead one there or remove it");
            return Err(vec![PlanError::new(line.or(self.newest_line()), message)]);
        }
        let mut ready: BTreeSet<usize> =
            (0..self.nodes.len()).filter(|&at| incoming[at] == 0).collect();
        let mut order = Vec::new();
        while let Some(at) = ready.pop_first() {
            order.push(at);
            for to in next(&self.nodes[at]) {
                incoming[to] -= 1;
                if incoming[to] == 0 {
                    ready.insert(to);
                }
            }
        }
        if order.len() == self.nodes.len() {
            return Ok(order);
        }
        let stuck = (0..self.nodes.len()).filter(|at| !order.contains(at));
        let stuck: Vec<&Node> = stuck.map(|at| &self.nodes[at]).collect();
        let names = stuck.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        // The newest line is the one that closed the cycle.
        let lines = stuck.iter().flat_map(|node| node.edges.iter().map(|edge| edge.line));
        let message = format!("steps {names} form a circle; lead one of them elsewhere");
        Err(vec![PlanError::new(lines.max().flatten(), message)])
    }

    /// The line of the configuration that changed the plan last.
    fn newest_line(&self) -> Option<usize> {
        self.nodes.iter().flat_map(|node| &node.edges).filter_map(|edge| edge.line).max()
    }

    /// Returns the facts that this target requires of packets.
    fn required_by(&self, successor: &Successor, catalogue: &Catalogue) -> Facts {
        match successor {
            Successor::Step(name) => {
                let node = self.nodes.iter().find(|node| node.name == *name);
                let spec = node.and_then(|node| catalogue.find(&node.kind));
                spec.map_or(Facts::FRAME, StepSpec::required)
            }
            Successor::Transmit => Facts::SENDABLE,
            Successor::Replicate => Facts::GROUPED,
            Successor::Drop => Facts::FRAME,
        }
    }

    /// Returns errors for steps whose packets lack required facts.
    fn unfit(&self, catalogue: &Catalogue, order: &[usize]) -> Vec<PlanError> {
        // By step: the facts about its packets, and the newest line on the path to it.
        let mut known: HashMap<&str, (Facts, Option<usize>)> = HashMap::new();
        let mut errors = Vec::new();
        // Nothing is known of packets that are emitted later.
        for edge in self.nodes.iter().flat_map(|node| &node.edges).filter(|edge| edge.deferred) {
            if let Some(successor) = &edge.to {
                known.insert(successor.name(), (Facts::FRAME, edge.line));
            }
        }
        for &at in order {
            let node = &self.nodes[at];
            let Some(spec) = catalogue.find(&node.kind) else { continue };
            let (before, line) = known.get(node.name.as_str()).copied().unwrap_or_default();
            for edge in &node.edges {
                let Some(successor) = &edge.to else { continue };
                let before = if edge.deferred { Facts::FRAME } else { before };
                let (behind, line) = (spec.behind(&edge.output, before), edge.line.max(line));
                let required = self.required_by(successor, catalogue);
                if !behind.satisfy(required) {
                    let (step, output, to) = (&node.name, &edge.output, successor.name());
                    let message = format!(
                        "\"{to}\" requires {required}, but \"{step}.{output}\" provides {behind}"
                    );
                    errors.push(PlanError::new(line, message));
                }
                // One error is enough: later steps need not be reported as well.
                let here = (behind.with(required), line);
                let join = |(facts, newest): &mut (Facts, Option<usize>)| {
                    (*facts, *newest) = (facts.common(here.0), (*newest).max(line));
                };
                known.entry(successor.name()).and_modify(join).or_insert(here);
            }
        }
        errors
    }

    /// Builds the graph that a forwarder runs, for ports of these names. `script` makes the steps that the catalogue only
    /// describes, by kind.
    ///
    /// # Errors
    /// The error in the plan.
    pub fn build(
        &self,
        catalogue: &Catalogue,
        tables: &Arc<Tables>,
        ports: &[String],
        script: &mut dyn FnMut(&str) -> Option<Box<dyn Step>>,
    ) -> Result<Graph, PlanError> {
        let plan = self.wanted_by(&tables.interfaces.get())?;
        let steps = plan.make(catalogue, (tables, ports), script)?;
        plan.assemble(steps)
    }

    /// The names of ports among the arguments of its steps: step, parameter, port and line.
    pub fn ports_named<'a>(
        &'a self,
        catalogue: &'a Catalogue,
    ) -> impl Iterator<Item = (&'a str, &'static str, &'a str, Option<usize>)> {
        self.nodes.iter().flat_map(|node| {
            let spec = catalogue.find(&node.kind);
            let params = spec.map_or(&[][..], StepSpec::params).iter();
            let ports = params.flat_map(|param| {
                node.args.ports(param).iter().map(|port| (param.name(), port.as_str()))
            });
            ports.map(|(param, port)| (node.name.as_str(), param, port, node.line))
        })
    }

    /// The steps, in the order in which they were added.
    pub(crate) fn make(
        &self,
        catalogue: &Catalogue,
        (tables, ports): (&Arc<Tables>, &[String]),
        script: &mut dyn FnMut(&str) -> Option<Box<dyn Step>>,
    ) -> Result<Vec<Box<dyn Step>>, PlanError> {
        let make = |node: &Node| {
            let context = MakeContext { name: &node.name, args: &node.args, tables, ports };
            let spec = catalogue.find(&node.kind);
            let step = spec.and_then(|spec| spec.make(&context)).or_else(|| script(&node.kind));
            step.ok_or_else(|| {
                PlanError::new(node.line, format!("step \"{}\": nothing makes it", node.kind))
            })
        };
        self.nodes.iter().map(make).collect()
    }

    /// The graph of these steps, which are those of the plan in the order in which they were added.
    pub(crate) fn assemble(&self, steps: Vec<Box<dyn Step>>) -> Result<Graph, PlanError> {
        let order = self.order().map_err(first)?;
        let mut places = HashMap::new();
        for (place, &at) in order.iter().enumerate() {
            places.insert(self.nodes[at].name.as_str(), place);
        }
        let mut steps: Vec<_> = steps.into_iter().map(Some).collect();
        let part = |&at: &usize| {
            let (node, step) = (&self.nodes[at], steps[at].take()?);
            Some(targets(node, &*step, &places).map(|targets| Part {
                name: node.name.clone(),
                kind: node.kind.clone(),
                step,
                targets,
            }))
        };
        Ok(Graph::assemble(order.iter().filter_map(part).collect::<Result<_, _>>()?))
    }
}

/// The targets of a step's outputs, by the places of the steps.
fn targets(
    node: &Node,
    step: &dyn Step,
    places: &HashMap<&str, usize>,
) -> Result<Vec<Target>, PlanError> {
    let target = |output: &Output| match output {
        Output::Punt(reason) => Some(Target::SlowPath(*reason)),
        Output::Drop(reason) => Some(Target::Drop(*reason)),
        Output::DropAs(_) => Some(Target::Drop(DropReason::ByStep)),
        Output::Next(name) | Output::Deferred(name) => {
            match node.edges.iter().find(|edge| edge.output == *name)?.to.as_ref()? {
                Successor::Step(name) => {
                    places.get(name.as_str()).map(|&place| Target::Step(place))
                }
                Successor::Transmit => Some(Target::Transmit),
                Successor::Replicate => Some(Target::Replicate),
                Successor::Drop => Some(Target::Drop(DropReason::ByStep)),
            }
        }
    };
    let targets: Option<Vec<_>> = step.outputs().iter().map(target).collect();
    targets.filter(|targets| targets.len() == node.outputs).ok_or_else(|| {
        let message = format!(
            "step \"{}\": its outputs are not those that \"{}\" declares",
            node.name, node.kind
        );
        PlanError::new(node.line, message)
    })
}

/// Returns the first of some errors.
fn first(errors: Vec<PlanError>) -> PlanError {
    let none = || PlanError::new(None, "the graph cannot be built");
    errors.into_iter().next().unwrap_or_else(none)
}

/// The plans of a router: one for all ports, and others for some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plans {
    /// For every port without a plan of its own.
    pub main: Plan,
    /// Ports, and the plan for their packets.
    pub by_port: Vec<(Vec<PortId>, Plan)>,
}

impl Plans {
    /// Returns the result of [`Plan::can_drop`] for any of them.
    pub fn can_drop(&self, kind: &str) -> bool {
        self.main.can_drop(kind) || self.by_port.iter().any(|(_, plan)| plan.can_drop(kind))
    }

    /// Returns the results of [`Plan::check`] for all.
    ///
    /// # Errors
    /// All errors found.
    pub fn check(
        &self,
        catalogue: &Catalogue,
        ports: &[InterfaceInfo],
    ) -> Result<(), Vec<PlanError>> {
        let all = std::iter::once(&self.main).chain(self.by_port.iter().map(|(_, plan)| plan));
        let errors: Vec<_> =
            all.filter_map(|plan| plan.check(catalogue, ports).err()).flatten().collect();
        if self.by_port.len() >= MAX_OUTPUTS {
            let message = format!(
                "{} graphs for single ports; at most {}",
                self.by_port.len(),
                MAX_OUTPUTS - 1
            );
            return Err(vec![PlanError::new(None, message)]);
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// The plans for a router with these ports, with all conditional steps decided.
    ///
    /// # Errors
    /// A step cannot be left out.
    pub fn wanted_by(&self, ports: &[InterfaceInfo]) -> Result<Self, PlanError> {
        let decided = |plan: &Plan| -> Result<Plan, PlanError> {
            let mut plan = plan.wanted_by(ports)?;
            plan.nodes.iter_mut().for_each(|node| node.only_if = None);
            Ok(plan)
        };
        let by_port = self.by_port.iter();
        let by_port = by_port.map(|(ids, plan)| Ok((ids.clone(), decided(plan)?)));
        Ok(Self { main: decided(&self.main)?, by_port: by_port.collect::<Result<_, _>>()? })
    }

    /// The kinds of the steps of all.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.main.kinds().chain(self.by_port.iter().flat_map(|(_, plan)| plan.kinds()))
    }

    /// Builds all plans as one graph, like [`Plan::build`]: if there are plans for ports, its first
    /// step is `by-port`, and their steps are named `PORTS:STEP`, by the ports' names.
    ///
    /// # Errors
    /// The error in a plan.
    pub fn build(
        &self,
        catalogue: &Catalogue,
        tables: &Arc<Tables>,
        port_names: &[String],
        script: &mut dyn FnMut(&str) -> Option<Box<dyn Step>>,
    ) -> Result<Graph, PlanError> {
        if self.by_port.is_empty() {
            return self.main.build(catalogue, tables, port_names, script);
        }
        let name = |port: &PortId| port_names.get(port.index()).map_or("?", String::as_str);
        let prefix = |ports: &[PortId]| ports.iter().map(name).collect::<Vec<_>>().join("+");
        let others = std::iter::once("others".to_owned());
        let names: Vec<String> =
            others.chain(self.by_port.iter().map(|(ports, _)| prefix(ports))).collect();
        let ports = self.by_port.iter().map(|(ports, _)| ports.clone()).collect();
        let mut catalogue = catalogue.clone();
        let by_port = ByPort::spec(&names, ports);
        let mut whole = Plan::new();
        whole.add(&NewStep::of(&by_port, Args::default(), None))?;
        catalogue.add(by_port).map_err(|message| PlanError::new(None, message))?;
        let mut plans = vec![self.main.clone()];
        for ((_, plan), name) in self.by_port.iter().zip(&names[1..]) {
            plans.push(plan.prefixed(&format!("{name}:")));
        }
        for (mut plan, edge) in plans.into_iter().zip(0..) {
            let first = plan.nodes.first().map(|node| Successor::Step(node.name.clone()));
            whole.nodes.append(&mut plan.nodes);
            whole.nodes[0].edges[edge].to = first;
        }
        whole.build(&catalogue, tables, port_names, script)
    }
}

/// As written in a configuration, so that it gives the same plan: a path for each output that no
/// earlier path contains, with steps in the order in which they were added as far as paths permit.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.nodes.first() else { return f.write_str("a graph without steps") };
        writeln!(f, "local graph = turnpike.new_graph {}", written(first))?;
        let mut print = Print { plan: self, steps: BTreeSet::from([0]), edges: BTreeSet::new() };
        let leads_to =
            |edge: &Edge, name: &str| matches!(&edge.to, Some(Successor::Step(to)) if to == name);
        for (at, node) in self.nodes.iter().enumerate().skip(1) {
            let mut edges = self.nodes.iter().flat_map(|node| &node.edges);
            // A step that makes packets.
            if !edges.any(|edge| leads_to(edge, &node.name)) {
                writeln!(f, "graph:add {}", written_as_table(node))?;
                print.steps.insert(at);
            }
        }
        while let Some((from, edge)) = print.start() {
            print.path(f, from, edge)?;
        }
        Ok(())
    }
}

/// The state of printing a plan.
struct Print<'a> {
    plan: &'a Plan,
    /// The steps that have been printed.
    steps: BTreeSet<usize>,
    /// Likewise the outputs, as step and index.
    edges: BTreeSet<(usize, usize)>,
}

impl Print<'_> {
    /// The place of the step that an output leads to.
    fn next(&self, from: usize, edge: usize) -> Option<usize> {
        let Some(Successor::Step(name)) = &self.plan.nodes[from].edges.get(edge)?.to else {
            return None;
        };
        self.plan.nodes.iter().position(|node| node.name == *name)
    }

    /// Returns the output at which the next path begins: one that leads to the first remaining
    /// step; else one that leads to any; else the first of the remaining outputs.
    fn start(&self) -> Option<(usize, usize)> {
        let outputs = |from: usize| (0..self.plan.nodes[from].edges.len()).map(move |k| (from, k));
        let led = |&(from, k): &(usize, usize)| {
            !self.edges.contains(&(from, k)) && self.plan.nodes[from].edges[k].to.is_some()
        };
        let open: Vec<_> = self.steps.iter().flat_map(|&from| outputs(from)).filter(led).collect();
        let fresh = |&&(from, k): &&(usize, usize)| {
            self.next(from, k).filter(|next| !self.steps.contains(next)).is_some()
        };
        let nearest = open.iter().filter(fresh).min_by_key(|(from, k)| self.next(*from, *k));
        nearest.or(open.first()).copied()
    }

    /// Prints a path from an output along the steps that were added one after the other.
    fn path(&mut self, f: &mut fmt::Formatter<'_>, from: usize, edge: usize) -> fmt::Result {
        let nodes = &self.plan.nodes;
        write!(f, "graph:path(\"{}.{}\"", nodes[from].name, nodes[from].edges[edge].output)?;
        let mut at = (from, edge);
        loop {
            self.edges.insert(at);
            let Some(next) = self.next(at.0, at.1).filter(|next| !self.steps.contains(next)) else {
                let end = nodes[at.0].edges[at.1].to.as_ref().map_or("", Successor::name);
                return writeln!(f, ",\n    \"{end}\")");
            };
            self.steps.insert(next);
            write!(f, ",\n    {}", written(&nodes[next]))?;
            // A step that was added earlier than its successor is printed earlier, too.
            let in_order = |on: usize| on == next + 1 || self.steps.contains(&on);
            let led = nodes[next].edges.first().is_some_and(|main| main.to.is_some());
            if !led || !self.next(next, 0).is_none_or(in_order) {
                return writeln!(f, ")");
            }
            at = (next, 0);
        }
    }
}

/// A step as an argument of `graph:add`.
fn written_as_table(node: &Node) -> String {
    let text = written(node);
    if text.starts_with('{') { text } else { format!("{{ {text} }}") }
}

/// A step as an element of a path.
fn written(node: &Node) -> String {
    if node.only_if.is_none() && node.name == node.kind && node.args.given().next().is_none() {
        return format!("\"{}\"", node.name);
    }
    let mut text = format!("{{ \"{}\"", node.kind);
    if node.name != node.kind {
        text += &format!(", as = \"{}\"", node.name);
    }
    for (name, arg) in node.args.given() {
        text += &format!(", {name} = {arg}");
    }
    if let Some(feature) = node.only_if {
        text += &format!(", when = \"{}\"", feature.name());
    }
    text + " }"
}

#[cfg(test)]
mod tests;
