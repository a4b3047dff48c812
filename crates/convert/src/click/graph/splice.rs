//! Elements of an IP router that are no part of the pattern, as steps within the default graph.
//!
//! ```text
//!  … -> click-in (port-switch) -> the elements of each port -> TABLE (ip-lookup) -> those of each output -> ip4-lookup -> …
//!  … -> ip4-rewrite -> click-out (egress-switch) -> the elements in front of each device -> to-port -> transmit
//! ```
//!
//! Elements in front of the table, and between it and the `ARPQuerier`s, see packets in front of `ip4-lookup`: also those
//! that wait for a neighbour's MAC, or are for the router. Where the latter differ by the table's outputs, a table of their
//! own sorts packets. The elements of the pattern itself are *quiet*: they become nothing, as the default graph does their work.

use std::collections::{HashMap, HashSet};

use ::click::Errors;

use super::super::elements::{Piece, State, Step, translate};
use super::super::handlers::Becomes;
use super::super::lua::Statements;
use super::super::net::Net;
use super::super::pull::Trees;
use super::{Devices, Graph, Placed, edges, written};

/// The place of an IP header behind that of Ethernet.
const NETWORK: i64 = 14;

/// The part of an IP router that becomes steps.
#[derive(Debug, Default)]
pub(in super::super) struct Part {
    /// The elements of devices, with their ports.
    pub(in super::super) inward: Vec<(usize, String)>,
    /// The elements that prepend Ethernet headers, with the ports that send.
    pub(in super::super) outward: Vec<(usize, String)>,
    /// Elements of the pattern, with their main outputs.
    pub(in super::super) quiet: HashMap<usize, usize>,
    /// Outputs that lead back into the default graph, with the step there.
    pub(in super::super) led: HashMap<(usize, usize), String>,
    /// Outputs of the table behind which no elements become steps.
    pub(in super::super) direct: HashSet<(usize, usize)>,
    /// The routing table, and the step that sorts packets as it does, if there must be one.
    pub(in super::super) table: Option<(usize, Option<Step>)>,
    /// Ports behind whose table, and ports in front of whose device, there are elements that become steps.
    pub(in super::super) steps_in: HashSet<String>,
    pub(in super::super) steps_out: HashSet<String>,
}

impl Part {
    /// What an element of the pattern becomes; `None` for others.
    pub(super) fn piece(
        &self,
        net: &Net<'_>,
        trees: &Trees,
        element: usize,
        state: State,
    ) -> Option<Result<(Piece, State), String>> {
        if let Some((table, step)) = &self.table
            && *table == element
        {
            let is_there = (state.offset == NETWORK).then_some(());
            let wrong = || {
                format!(
                    "data of packets begin at byte {} of their frame here; expected {NETWORK}, behind one Strip({NETWORK})",
                    state.offset
                )
            };
            let state = State { network: state.network.or(Some(NETWORK)), ..state };
            let piece = match step {
                Some(step) => Piece::Steps(vec![step.clone()]),
                None => Piece::Lead("ip4-lookup"),
            };
            return Some(is_there.ok_or_else(wrong).map(|()| (piece, state)));
        }
        if !self.is_quiet(element) {
            return None;
        }
        let behind = match net.class(element) {
            "IPInputCombo" => {
                let network = Some(state.offset + NETWORK);
                Ok(State { offset: state.offset + NETWORK, network, ..state })
            }
            "PaintTee" | "IPGWOptions" | "FixIPSrc" | "IPFragmenter" | "IPOutputCombo"
            | "IPReassembler" => Ok(state),
            _ => translate(net, trees, element, state).map(|(_, behind)| behind),
        };
        Some(behind.map(|behind| (Piece::Nothing, behind)))
    }

    pub(super) fn is_quiet(&self, element: usize) -> bool {
        self.quiet.contains_key(&element)
    }

    /// The output by which packets go on from an element that becomes nothing.
    pub(super) fn main_output(&self, element: usize) -> usize {
        self.quiet.get(&element).copied().unwrap_or(0)
    }

    /// Returns true for outputs whose packets go on to elements that may become steps.
    pub(super) fn leads_on(&self, element: usize, output: usize) -> bool {
        let is_main = self.quiet.get(&element).is_none_or(|main| *main == output);
        is_main && !self.led.contains_key(&(element, output))
    }

    /// The output of a step of the default graph by which packets come from an element of the pattern.
    pub(super) fn inlet(&self, from: usize, output: usize) -> Option<String> {
        let of = |all: &[(usize, String)], steps: &HashSet<String>, name: &str| {
            let (_, port) = all.iter().find(|(element, _)| *element == from)?;
            steps.contains(port).then(|| format!("{name}.{port}"))
        };
        if output != self.main_output(from) {
            return None;
        }
        of(&self.inward, &self.steps_in, "click-in")
            .or_else(|| of(&self.outward, &self.steps_out, "click-out"))
    }

    /// Checks the elements, and adds their steps to the default graph; returns what each element becomes.
    ///
    /// # Errors
    /// An element whose arguments are wrong, or that cannot be there.
    pub(in super::super) fn splice(
        self,
        net: &Net<'_>,
        devices: &Devices,
        statements: &mut Statements,
    ) -> Result<Becomes, Errors> {
        let mut graph = Graph::new(net)?;
        graph.part = self;
        let begin = |graph: &mut Graph<'_>, from: usize, network: Option<i64>| {
            let output = graph.part.main_output(from);
            let (to, _) = net.target(from, output)?;
            let state = State { network, ..State::default() };
            graph.part.leads_on(from, output).then(|| graph.states.insert(to, state))?;
            Some(to)
        };
        let mut starts = Vec::new();
        for (from, _) in graph.part.inward.clone() {
            starts.extend(begin(&mut graph, from, None));
        }
        for (from, _) in graph.part.outward.clone() {
            starts.extend(begin(&mut graph, from, Some(NETWORK)));
        }
        let order = graph.order(&starts);
        graph.states(&order)?;
        let mut known = Vec::new();
        if !graph.part.steps_in.is_empty() || !graph.part.steps_out.is_empty() {
            graph.steps(&order, devices)?;
            let (inward, outward) = (graph.part.inward.clone(), graph.part.outward.clone());
            let first = ("insert_before(\"ip4-lookup\"", "port-switch", "click-in");
            graph.inlet(first, &inward, true, &mut known, statements);
            let last = ("insert_after(\"ip4-rewrite.transmit\"", "egress-switch", "click-out");
            graph.inlet(last, &outward, false, &mut known, statements);
        }
        let mut becomes = graph.becomes(devices, &known);
        // Elements of the pattern see packets by other ways as well, which nobody counts.
        let without_step = becomes.values_mut().filter(|of| of.step.is_none());
        without_step.for_each(|of| of.counts.clear());
        Ok(becomes)
    }
}

impl Graph<'_> {
    /// Adds a step to the default graph that leads packets of ports to elements, and these elements.
    fn inlet(
        &mut self,
        (call, kind, name): (&str, &'static str, &str),
        from: &[(usize, String)],
        is_inward: bool,
        known: &mut Vec<String>,
        statements: &mut Statements,
    ) {
        let steps = if is_inward { &self.part.steps_in } else { &self.part.steps_out };
        let from: Vec<_> = from.iter().filter(|(_, port)| steps.contains(port)).cloned().collect();
        let Some(line) = from.iter().map(|(element, _)| self.net.line(*element)).min() else {
            return;
        };
        let (mut targets, mut ports) = (Vec::new(), Vec::new());
        for (element, port) in from {
            let output = self.part.main_output(element);
            let state = State::default();
            let to = self.follow(element, output, State { network: Some(NETWORK), ..state });
            if to != "ip4-lookup" && !ports.contains(&port) {
                ports.push(port.clone());
                targets.push((port, to));
            }
        }
        if ports.is_empty() {
            return;
        }
        let step = Step::switch(kind, ports);
        statements.add(format!("turnpike.graph:{call}, {})", written(name, &step)), line);
        known.push(name.to_owned());
        let placed = Placed { step, line, targets };
        let open: Vec<_> = edges(name, &placed).rev().collect();
        self.placed.insert(name.to_owned(), placed);
        self.paths("turnpike.graph", known, open, statements);
    }
}
