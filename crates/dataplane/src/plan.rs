//! A graph as it is described: names of steps, and where their outputs lead. Configurations compose
//! and change plans; [`Plan::check`] says what is wrong with one, [`Plan::build`] makes the graph that
//! runs.
//!
//! A place in a plan is written `STEP` or `STEP.OUTPUT`. The *main output* of a step is the first that
//! leads on (not to the slow path or a drop by itself); what follows a step without a word about the
//! output follows that one.
//!
//! A step can be there *only if* some port asks for it ([`Condition`]); otherwise it is left out when
//! the graph is built, and what leads to it leads to what follows its main output.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::catalogue::{Catalogue, Entry, Facts, intern_outputs};
use crate::graph::{Graph, GraphBuilder, GraphError, MAX_OUTPUTS, Output, Step};
use crate::interface::{InterfaceInfo, ReversePath};
use crate::port::PortId;
use crate::steps::ByPort;
use crate::tables::Tables;
use crate::words::suggestion;

/// When a step is in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// A port wants to know whether sources are reachable.
    ReversePath,
    /// A port redirects.
    Redirects,
}

impl Condition {
    /// All, by the names of the ports' settings.
    pub const NAMED: [(&str, Self); 2] =
        [("reverse_path", Self::ReversePath), ("redirects", Self::Redirects)];

    /// Whether one of these ports asks for it.
    pub fn holds(self, ports: &[InterfaceInfo]) -> bool {
        match self {
            Self::ReversePath => ports.iter().any(|port| port.reverse_path != ReversePath::Any),
            Self::Redirects => ports.iter().any(|port| port.redirects),
        }
    }
}

/// Where an output leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the step of this name.
    Step(String),
    /// Out by the packet's egress port.
    Transmit,
    /// Out by all ports that a multicast step found.
    Replicate,
    /// Freed and counted as `by-step`.
    Drop,
}

impl Way {
    /// As plans write it. The names of the ends are no names of steps.
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

/// What is wrong with a plan or with a change of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The line of the statement that put it there, in the configuration; `None` if that is not known
    /// or if it is a line of the default graph.
    pub line: Option<usize>,
    /// What, with the step's name.
    pub message: String,
}

impl PlanError {
    fn new(line: Option<usize>, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for PlanError {}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Edge {
    output: &'static str,
    to: Option<Way>,
    line: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    kind: String,
    only_if: Option<Condition>,
    line: Option<usize>,
    edges: Vec<Edge>,
}

impl Node {
    fn edge(&mut self, output: &str) -> Option<&mut Edge> {
        self.edges.iter_mut().find(|edge| edge.output == output)
    }

    /// What follows the main output.
    fn next(&self) -> Option<&Way> {
        self.edges.first().and_then(|edge| edge.to.as_ref())
    }
}

/// A step to be put into a plan.
#[derive(Clone, Debug)]
pub struct NewStep<'a> {
    /// Its name in the plan.
    pub name: &'a str,
    /// Its kind, from the catalogue.
    pub entry: &'a Entry,
    /// When it is there; `None`: always.
    pub only_if: Option<Condition>,
    /// The line that says so.
    pub line: Option<usize>,
}

impl<'a> NewStep<'a> {
    /// A step under its kind's name.
    pub fn of(entry: &'a Entry, line: Option<usize>) -> Self {
        Self { name: entry.name(), entry, only_if: None, line }
    }

    fn node(&self, name: String) -> Node {
        let next = |output: &Output| match *output {
            Output::Next(output) => Some(Edge { output, to: None, line: self.line }),
            Output::Punt(_) | Output::Drop(_) | Output::DropAs(_) => None,
        };
        Node {
            name,
            kind: self.entry.name().to_owned(),
            only_if: self.only_if,
            line: self.line,
            edges: self.entry.outputs().iter().filter_map(next).collect(),
        }
    }
}

/// A described graph. The first step gets every batch.
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

    /// The plan has a step of this name.
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

    /// A step of this kind has an output that drops packets.
    pub fn can_drop(&self, kind: &str) -> bool {
        let drops = |node: &Node| node.edges.iter().any(|edge| edge.to == Some(Way::Drop));
        self.nodes.iter().any(|node| node.kind == kind && drops(node))
    }

    /// What the plan says, line by line, whatever lines of a configuration said it: every step with its
    /// kind, every output with where it leads.
    pub fn described(&self) -> impl Iterator<Item = (String, String)> {
        self.nodes.iter().flat_map(|node| {
            let step = (format!("step \"{}\"", node.name), written(node));
            let way = |edge: &Edge| {
                let to = edge.to.as_ref().map_or("", Way::name);
                (format!("{}.{}", node.name, edge.output), format!("\"{to}\""))
            };
            std::iter::once(step).chain(node.edges.iter().map(way))
        })
    }

    /// Adds a step that nothing leads to yet.
    ///
    /// # Errors
    /// There is one of this name.
    pub fn add(&mut self, step: &NewStep<'_>) -> Changed {
        let name = step.name.to_owned();
        self.put(self.nodes.len(), step, name)
    }

    fn put(&mut self, at: usize, step: &NewStep<'_>, name: String) -> Changed {
        if self.has(&name) {
            let message = format!(
                "step \"{name}\" is in the graph already; give the second one another name"
            );
            return Err(PlanError::new(step.line, message));
        }
        if !matches!(Way::read(&name), Way::Step(_)) || name.contains('.') {
            let message = format!(
                "step \"{name}\": not a name for a step; \"transmit\", \"replicate\", \"drop\" and names \
                 with a dot mean something else"
            );
            return Err(PlanError::new(step.line, message));
        }
        self.nodes.insert(at, step.node(name));
        Ok(())
    }

    fn find(&self, name: &str, line: Option<usize>) -> Result<usize, PlanError> {
        self.nodes.iter().position(|node| node.name == name).ok_or_else(|| {
            let known = suggestion(name, "known", &self.names().collect::<Vec<_>>());
            PlanError::new(line, format!("step \"{name}\" not found in the graph{known}"))
        })
    }

    /// Step and outputs of a place; all outputs if it names none.
    fn place(
        &self,
        place: &str,
        line: Option<usize>,
    ) -> Result<(usize, Vec<&'static str>), PlanError> {
        let (name, output) = match place.split_once('.') {
            Some((name, output)) => (name, Some(output)),
            None => (place, None),
        };
        let at = self.find(name, line)?;
        let node = &self.nodes[at];
        let wanted = |edge: &&Edge| output.is_none_or(|output| edge.output == output);
        let outputs: Vec<_> = node.edges.iter().filter(wanted).map(|edge| edge.output).collect();
        if outputs.is_empty() {
            let output = output.unwrap_or_default();
            let outputs: Vec<_> = node.edges.iter().map(|edge| edge.output).collect();
            let known = suggestion(output, "known", &outputs);
            let message = format!("step \"{name}\": output \"{output}\" not found{known}");
            return Err(PlanError::new(line, message));
        }
        Ok((at, outputs))
    }

    /// Leads a place to another; where it led before is forgotten. Without an output it is the main
    /// one's way.
    ///
    /// # Errors
    /// A name is not known.
    pub fn lead(&mut self, from: &str, to: &Way, line: Option<usize>) -> Changed {
        let (at, outputs) = self.place(from, line)?;
        if let Way::Step(name) = to {
            self.find(name, line)?;
        }
        if let Some(edge) = self.nodes[at].edge(outputs[0]) {
            edge.to = Some(to.clone());
            edge.line = line;
        }
        Ok(())
    }

    /// Puts a step behind another, or on one of its outputs. Behind a step with several outputs there
    /// is one for each of them, called `NAME-OUTPUT`.
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
            self.put(at + 1 + k, step, name.clone())?;
            let from = self.find(&before, step.line)?;
            let Some(edge) = self.nodes[from].edge(output) else { continue };
            let next = edge.to.replace(Way::Step(name.clone()));
            edge.line = step.line;
            self.follow(&name, next, step.line);
        }
        Ok(())
    }

    /// Puts a step before another, or before the end `transmit`, `replicate` or `drop`: whatever led there leads to
    /// the new step.
    ///
    /// # Errors
    /// A name is not known, or taken already.
    pub fn insert_before(&mut self, place: &str, step: &NewStep<'_>) -> Changed {
        let to = Way::read(place);
        let at = match &to {
            Way::Step(name) => self.find(name, step.line)?,
            _ => self.nodes.len(),
        };
        self.put(at, step, step.name.to_owned())?;
        let new = Way::Step(step.name.to_owned());
        for edge in self.nodes.iter_mut().flat_map(|node| &mut node.edges) {
            if edge.to.as_ref() == Some(&to) {
                edge.to = Some(new.clone());
                edge.line = step.line;
            }
        }
        self.follow(step.name, Some(to), step.line);
        Ok(())
    }

    /// Sets what follows the main output.
    fn follow(&mut self, name: &str, to: Option<Way>, line: Option<usize>) {
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        if let Some(edge) = node.and_then(|node| node.edges.first_mut()) {
            edge.to = to;
            edge.line = line;
        }
    }

    /// Takes a step out: what led to it leads to what followed its main output.
    ///
    /// # Errors
    /// The name is not known.
    pub fn remove(&mut self, name: &str, line: Option<usize>) -> Changed {
        let at = self.find(name, line)?;
        let next = self.nodes[at].next().cloned();
        if at == 0 && !matches!(next, Some(Way::Step(_))) {
            let message = format!("step \"{name}\": the first step, and no step follows it");
            return Err(PlanError::new(line, message));
        }
        let gone = self.nodes.remove(at);
        let line = line.max(gone.edges.first().and_then(|edge| edge.line));
        let gone = Way::Step(gone.name);
        for edge in self.nodes.iter_mut().flat_map(|node| &mut node.edges) {
            if edge.to.as_ref() == Some(&gone) {
                edge.to = next.clone();
                edge.line = edge.line.max(line);
            }
        }
        if let (0, Some(Way::Step(next))) = (at, next) {
            let first = self.find(&next, line)?;
            let node = self.nodes.remove(first);
            self.nodes.insert(0, node);
        }
        Ok(())
    }

    /// The plan with every name behind this prefix: for one port, beside that for all others.
    fn prefixed(&self, prefix: &str) -> Self {
        let mut plan = self.clone();
        for node in &mut plan.nodes {
            node.name = format!("{prefix}{}", node.name);
            for edge in &mut node.edges {
                if let Some(Way::Step(name)) = &mut edge.to {
                    *name = format!("{prefix}{name}");
                }
            }
        }
        plan
    }

    /// The plan without the steps for which no port asks.
    fn wanted_by(&self, ports: &[InterfaceInfo]) -> Result<Self, PlanError> {
        let mut plan = self.clone();
        for node in &self.nodes {
            if node.only_if.is_some_and(|condition| !condition.holds(ports)) {
                plan.remove(&node.name, node.line)?;
            }
        }
        Ok(plan)
    }

    /// Says what is wrong with the plan on a router with these ports: unknown kinds, outputs that lead
    /// nowhere, steps that nothing leads to, circles, packets of which a step knows too little.
    ///
    /// # Errors
    /// Everything that was found, in the order of the plan.
    pub fn check(
        &self,
        catalogue: &Catalogue,
        ports: &[InterfaceInfo],
    ) -> Result<(), Vec<PlanError>> {
        let plan = self.wanted_by(ports).map_err(|error| vec![error])?;
        let mut errors = plan.dangling(catalogue);
        if errors.is_empty() {
            match plan.order() {
                Ok(order) => errors = plan.unfit(catalogue, &order),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn dangling(&self, catalogue: &Catalogue) -> Vec<PlanError> {
        let mut errors = Vec::new();
        if self.nodes.is_empty() {
            errors.push(PlanError::new(None, "the graph has no steps; add one"));
        }
        for node in &self.nodes {
            if catalogue.find(&node.kind).is_none() {
                let known = suggestion(&node.kind, "known", &catalogue.names().collect::<Vec<_>>());
                let message = format!("step \"{}\": unknown{known}", node.kind);
                errors.push(PlanError::new(node.line, message));
            }
            for edge in &node.edges {
                let place = format!("step \"{}\": output \"{}\"", node.name, edge.output);
                match &edge.to {
                    None => {
                        let message = format!("{place} leads nowhere; lead it to a step");
                        errors.push(PlanError::new(edge.line, message));
                    }
                    Some(Way::Step(name)) if !self.has(name) => {
                        let message =
                            format!("{place} leads to step \"{name}\", which is not in the graph");
                        errors.push(PlanError::new(edge.line, message));
                    }
                    Some(_) => {}
                }
            }
        }
        errors
    }

    /// The steps in an order in which each stands behind all that lead to it.
    fn order(&self) -> Result<Vec<usize>, PlanError> {
        let places: HashMap<&str, usize> =
            self.nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at)).collect();
        let next = |node: &'_ Node| -> Vec<usize> {
            let step = |edge: &Edge| match &edge.to {
                Some(Way::Step(name)) => places.get(name.as_str()).copied(),
                _ => None,
            };
            node.edges.iter().filter_map(step).collect()
        };
        let mut incoming = vec![0; self.nodes.len()];
        self.nodes.iter().flat_map(&next).for_each(|to| incoming[to] += 1);
        if let Some(lonely) = (1..self.nodes.len()).find(|&at| incoming[at] == 0) {
            let Node { name, line, .. } = &self.nodes[lonely];
            let message =
                format!("step \"{name}\": no path leads to it; lead one there or remove it");
            return Err(PlanError::new(line.or(self.newest_line()), message));
        }
        let mut ready: Vec<usize> = (0..self.nodes.len()).filter(|&at| incoming[at] == 0).collect();
        let mut order = Vec::new();
        while let Some(at) = ready.pop() {
            order.push(at);
            for to in next(&self.nodes[at]) {
                incoming[to] -= 1;
                if incoming[to] == 0 {
                    ready.push(to);
                }
            }
        }
        if order.len() == self.nodes.len() {
            return Ok(order);
        }
        let stuck = (0..self.nodes.len()).filter(|at| !order.contains(at));
        let stuck: Vec<&Node> = stuck.map(|at| &self.nodes[at]).collect();
        let names = stuck.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
        // The newest line is the one that closed the circle.
        let lines = stuck.iter().flat_map(|node| node.edges.iter().map(|edge| edge.line));
        let message = format!("steps {names} form a circle; lead one of them elsewhere");
        Err(PlanError::new(lines.max().flatten(), message))
    }

    /// The line of the configuration that changed the plan last.
    fn newest_line(&self) -> Option<usize> {
        self.nodes.iter().flat_map(|node| &node.edges).filter_map(|edge| edge.line).max()
    }

    /// What must be known of packets that go this way.
    fn taken_by(&self, way: &Way, catalogue: &Catalogue) -> Facts {
        match way {
            Way::Step(name) => {
                let node = self.nodes.iter().find(|node| node.name == *name);
                let entry = node.and_then(|node| catalogue.find(&node.kind));
                entry.map_or(Facts::FRAME, Entry::wanted)
            }
            Way::Transmit => Facts::SENDABLE,
            Way::Replicate => Facts::GROUPED,
            Way::Drop => Facts::FRAME,
        }
    }

    /// Steps that take what does not come to them.
    fn unfit(&self, catalogue: &Catalogue, order: &[usize]) -> Vec<PlanError> {
        // By step: what is known of its packets, and the newest line on the way there.
        let mut known: HashMap<&str, (Facts, Option<usize>)> = HashMap::new();
        let mut errors = Vec::new();
        for &at in order {
            let node = &self.nodes[at];
            let Some(entry) = catalogue.find(&node.kind) else { continue };
            let (before, line) = known.get(node.name.as_str()).copied().unwrap_or_default();
            for edge in &node.edges {
                let Some(way) = &edge.to else { continue };
                let (behind, line) = (entry.behind(edge.output, before), edge.line.max(line));
                let takes = self.taken_by(way, catalogue);
                if !behind.satisfy(takes) {
                    let (step, output, to) = (&node.name, edge.output, way.name());
                    let message =
                        format!("\"{to}\" takes {takes}, but \"{step}.{output}\" gives {behind}");
                    errors.push(PlanError::new(line, message));
                }
                // Once is enough: what follows need not complain as well.
                let here = (behind.with(takes), line);
                let join = |(facts, newest): &mut (Facts, Option<usize>)| {
                    (*facts, *newest) = (facts.common(here.0), (*newest).max(line));
                };
                known.entry(way.name()).and_modify(join).or_insert(here);
            }
        }
        errors
    }

    /// Makes the graph that a forwarder runs. `script` makes the steps that the catalogue only
    /// describes, by kind.
    ///
    /// # Errors
    /// What is wrong with the plan.
    pub fn build(
        &self,
        catalogue: &Catalogue,
        tables: &Arc<Tables>,
        script: &mut dyn FnMut(&str) -> Option<Box<dyn Step>>,
    ) -> Result<Graph, PlanError> {
        let plan = self.wanted_by(&tables.interfaces.get())?;
        let mut builder = GraphBuilder::new();
        for node in &plan.nodes {
            let entry = catalogue.find(&node.kind);
            let step = entry.and_then(|entry| entry.make(tables)).or_else(|| script(&node.kind));
            let step = step.ok_or_else(|| {
                PlanError::new(node.line, format!("step \"{}\": nothing makes it", node.kind))
            })?;
            builder.add_boxed(&node.name, &node.kind, step).map_err(|error| native(&error))?;
        }
        for node in &plan.nodes {
            for edge in &node.edges {
                let led = match &edge.to {
                    Some(Way::Step(next)) => builder.connect(&node.name, edge.output, next),
                    Some(Way::Transmit) => builder.transmit(&node.name, edge.output),
                    Some(Way::Replicate) => builder.replicate(&node.name, edge.output),
                    Some(Way::Drop) => builder.discard(&node.name, edge.output),
                    None => Ok(()),
                };
                led.map_err(|error| native(&error))?;
            }
        }
        builder.build().map_err(|error| native(&error))
    }
}

/// The plans of a router: one for all ports, and others for some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plans {
    /// For every port that no other plan is for.
    pub main: Plan,
    /// Ports, and the plan for their packets.
    pub by_port: Vec<(Vec<PortId>, Plan)>,
}

impl Plans {
    /// [`Plan::can_drop`] in one of them.
    pub fn can_drop(&self, kind: &str) -> bool {
        self.main.can_drop(kind) || self.by_port.iter().any(|(_, plan)| plan.can_drop(kind))
    }

    /// [`Plan::check`] of all.
    ///
    /// # Errors
    /// Everything that was found.
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

    /// The plans for a router with these ports: what depends on what ports ask for is decided.
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

    /// [`Plan::build`] of all as one graph: where there are plans for ports, its first step is
    /// `by-port`, and their steps are called `PORTS:STEP`, by the ports' names.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn build(
        &self,
        catalogue: &Catalogue,
        tables: &Arc<Tables>,
        port_names: &[String],
        script: &mut dyn FnMut(&str) -> Option<Box<dyn Step>>,
    ) -> Result<Graph, PlanError> {
        if self.by_port.is_empty() {
            return self.main.build(catalogue, tables, script);
        }
        let name = |port: &PortId| port_names.get(port.index()).map_or("?", String::as_str);
        let prefix = |ports: &[PortId]| ports.iter().map(name).collect::<Vec<_>>().join("+");
        let others = std::iter::once("others".to_owned());
        let names: Vec<String> =
            others.chain(self.by_port.iter().map(|(ports, _)| prefix(ports))).collect();
        let entry = Entry::described(BY_PORT, intern_outputs(&names, &[], &[]));
        let mut whole = Plan::new();
        whole.add(&NewStep::of(&entry, None))?;
        let mut plans = vec![self.main.clone()];
        for ((_, plan), name) in self.by_port.iter().zip(&names[1..]) {
            plans.push(plan.prefixed(&format!("{name}:")));
        }
        for (mut plan, edge) in plans.into_iter().zip(0..) {
            let first = plan.nodes.first().map(|node| Way::Step(node.name.clone()));
            whole.nodes.append(&mut plan.nodes);
            whole.nodes[0].edges[edge].to = first;
        }
        let ports: Vec<_> = self.by_port.iter().map(|(ports, _)| ports.clone()).collect();
        let mut make = |kind: &str| -> Option<Box<dyn Step>> {
            if kind == BY_PORT {
                return Some(Box::new(ByPort::new(entry.outputs(), &ports)));
            }
            script(kind)
        };
        whole.build(catalogue, tables, &mut make)
    }
}

/// The step that sends each port's packets into its plan.
const BY_PORT: &str = "by-port";

fn native(error: &GraphError) -> PlanError {
    PlanError::new(None, error.to_string())
}

/// As a configuration would write it: a path for each output that no path before it has passed.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.nodes.first() else { return f.write_str("a graph without steps") };
        writeln!(f, "local graph = turnpike.new_graph {}", written(first))?;
        let mut said = vec![first.name.as_str()];
        let mut starts: Vec<(&Node, &Edge)> = Vec::new();
        starts.extend(first.edges.iter().rev().map(|edge| (first, edge)));
        while let Some((from, edge)) = starts.pop() {
            let Some(mut way) = edge.to.as_ref() else { continue };
            write!(f, "graph:path(\"{}.{}\"", from.name, edge.output)?;
            while let Some(node) = self.nodes.iter().find(|node| node.name == way.name()) {
                if said.contains(&node.name.as_str()) {
                    break;
                }
                said.push(&node.name);
                write!(f, ",\n    {}", written(node))?;
                starts.extend(node.edges.iter().skip(1).rev().map(|edge| (node, edge)));
                let Some(next) = node.next() else { break };
                way = next;
            }
            writeln!(f, ",\n    \"{}\")", way.name())?;
        }
        Ok(())
    }
}

/// A step as an element of a path.
fn written(node: &Node) -> String {
    if node.only_if.is_none() && node.name == node.kind {
        return format!("\"{}\"", node.name);
    }
    let mut text = format!("{{ \"{}\"", node.kind);
    if node.name != node.kind {
        text += &format!(", as = \"{}\"", node.name);
    }
    if let Some(condition) = node.only_if {
        let name = Condition::NAMED.iter().find(|(_, c)| *c == condition).map_or("", |(n, _)| *n);
        text += &format!(", when = \"{name}\"");
    }
    text + " }"
}

#[cfg(test)]
mod tests;
