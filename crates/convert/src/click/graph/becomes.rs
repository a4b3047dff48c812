//! The steps that elements have become, and the outputs by which packets come to each.

use std::collections::HashSet;

use super::{Devices, Graph};
use crate::click::handlers::{Become, Becomes, by_devices};
use crate::click::pull::Place;

impl Graph<'_> {
    /// What each element becomes in a graph with these steps.
    pub(super) fn becomes(&self, devices: &Devices, printed: &[String]) -> Becomes {
        let mut becomes = by_devices(self.net, devices);
        for element in 0..self.net.flat.elements.len() {
            let step = self.step_of(element).filter(|step| printed.contains(step));
            let counts = self.counts(element, devices);
            let is_there = |place: &String| {
                place
                    .rsplit_once('.')
                    .is_some_and(|(step, _)| printed.iter().any(|one| one == step))
            };
            let counts: Vec<String> = counts.into_iter().filter(is_there).collect();
            let before = becomes.remove(&element).unwrap_or_default();
            becomes.insert(element, Become { step, counts, ..before });
        }
        becomes
    }

    /// The step of an element; that of a shaper or a delay is the queue whose rate or delay it is, that of a part of a
    /// tree is the tree's.
    fn step_of(&self, element: usize) -> Option<String> {
        if let Some(root) = self.trees.root_of(element) {
            return Some(self.net.step_name(root));
        }
        self.own.get(&self.net.queue_of(element).unwrap_or(element)).cloned()
    }

    /// The outputs by which packets come to an element, or from one that receives or makes them.
    fn counts(&self, element: usize, devices: &Devices) -> Vec<String> {
        if self.net.receivers().contains(&element) {
            return self.received(element, devices).into_iter().collect();
        }
        if self.net.makers().contains(&element) {
            return self.own.get(&element).map(|step| format!("{step}.next")).into_iter().collect();
        }
        let (mut open, mut seen) = (self.net.sources(element).to_vec(), HashSet::new());
        let mut places = Vec::new();
        while let Some((from, output)) = open.pop() {
            if !seen.insert((from, output)) {
                continue;
            }
            if let Some(place) = self.part.inlet(from, output) {
                places.push(place);
            } else if !self.is_part(from, output) {
                continue;
            } else if self.net.receivers().contains(&from) {
                places.extend(self.received(from, devices));
            } else if let Some(place) = self.place_of(from, output) {
                places.push(place);
                places.extend(self.copies_of(from, output));
            } else if !self.own.contains_key(&from) {
                open.extend(self.net.sources(from));
            }
        }
        places.sort();
        places.dedup();
        places
    }

    /// Returns true if packets of an output are in this graph: in an IP router not all of them are.
    fn is_part(&self, element: usize, output: usize) -> bool {
        let is_all = self.part.table.is_none();
        is_all || self.part.leads_on(element, output) && self.states.contains_key(&element)
    }

    /// The output of the first step that leads a device's packets on.
    fn received(&self, element: usize, devices: &Devices) -> Option<String> {
        let device = devices.values().find(|device| device.from.contains(&element))?;
        Some(format!("port-switch.{}", device.port))
    }

    /// The output of a step that is an element's output.
    fn place_of(&self, element: usize, output: usize) -> Option<String> {
        if let Some(Place { root, number }) = self.trees.aside(element).filter(|_| output == 1) {
            return Some(format!("{}.early-{number}", self.net.step_name(root)));
        }
        if let Some(Place { root, number }) = self.trees.place(element) {
            return Some(format!("{}.{number}", self.net.step_name(root)));
        }
        let own = self.own.get(&element)?;
        let (name, to) = self.placed.get(own)?.targets.get(output)?;
        if self.back.contains(&(element, output)) {
            return Some(format!("{to}.next"));
        }
        if self.net.class(element) == "PaintTee" && output == 1 {
            return Some(format!("{to}.ok"));
        }
        Some(format!("{own}.{name}"))
    }

    /// The output of the step that copies packets to all of an element's outputs, if there is one.
    fn copies_of(&self, element: usize, output: usize) -> Option<String> {
        let targets = &self.placed.get(self.own.get(&element)?)?.targets;
        let (_, tee) = targets.iter().find(|(name, _)| name == "all")?;
        Some(format!("{tee}.{output}"))
    }
}
