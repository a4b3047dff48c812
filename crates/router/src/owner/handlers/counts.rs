//! Counts of elements: those of the ledger, less what they were at the last reset; and their rates.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use control::config::{Config, Element};

use super::Value;
use crate::handlers::{self, Unit, What};
use crate::owner::Owner;
use crate::reports::StepCounts;

/// Samples of counters that are kept, one a second.
const SAMPLES: usize = 2;

/// Counts at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// By the output that is a handler of its own.
    pub(super) output: u64,
    pub(super) at: Instant,
}

/// Packets and bytes of counters, by element.
struct Sample {
    at: Instant,
    counts: HashMap<String, (u64, u64)>,
}

/// Resets and samples of counts.
pub struct Counts {
    since: Instant,
    bases: HashMap<String, Base>,
    samples: VecDeque<Sample>,
}

impl Counts {
    /// Counts from now on.
    pub fn new() -> Self {
        Self { since: Instant::now(), bases: HashMap::new(), samples: VecDeque::new() }
    }

    pub(super) fn base(&self, element: &Element) -> Base {
        let none = Base { packets: 0, bytes: 0, output: 0, at: self.since };
        self.bases.get(&element.name).copied().unwrap_or(none)
    }

    /// The oldest sample of an element, or the last reset.
    pub(super) fn before(&self, element: &Element) -> (u64, u64, Instant) {
        let base = self.base(element);
        let sample = self.samples.iter().find_map(|sample| {
            let (packets, bytes) = sample.counts.get(&element.name)?;
            (sample.at > base.at).then_some((*packets, *bytes, sample.at))
        });
        sample.unwrap_or((base.packets, base.bytes, base.at))
    }

    /// Forgets elements that a configuration does not have, or counts otherwise.
    pub fn keep(&mut self, old: &Config, new: &Config) {
        let of = |config: &'_ Config| -> HashMap<String, (Option<String>, Vec<String>)> {
            let elements = config.elements.iter().cloned();
            elements.map(|element| (element.name, (element.step, element.counts))).collect()
        };
        let (old, new) = (of(old), of(new));
        let stays = |name: &String| new.contains_key(name) && new.get(name) == old.get(name);
        self.bases.retain(|name, _| stays(name));
        for sample in &mut self.samples {
            sample.counts.retain(|name, _| stays(name));
        }
    }
}

impl Owner {
    /// All packets that came to an element.
    pub(super) fn packets(&self, element: &Element) -> Result<u64, String> {
        count(element, &self.forwarding.ledger.by_step()).ok_or_else(|| Self::nothing(element))
    }

    pub(super) fn bytes(&self, element: &Element) -> Result<u64, String> {
        let (_, step) = self.step(element)?;
        Ok(self.forwarding.ledger.by_step().own(step, "bytes"))
    }

    pub(super) fn on_output(&self, element: &Element, output: &str) -> Result<u64, String> {
        match self.step(element) {
            Ok((_, step)) if self.forwarding.ledger.by_step().is_of(step, "to-queue") => {
                Err(format!(
                    "element \"{}\": its scheduler drops for all its queues; see turnpike show counters",
                    element.name
                ))
            }
            Ok((_, step)) => Ok(self.forwarding.ledger.by_step().on_edge(step, output)),
            // A queue in front of a device is the port's and drops nothing itself.
            Err(_) if output == "queue-full" => Ok(0),
            Err(why) => Err(why),
        }
    }

    /// A counter's increase a second since then.
    pub(super) fn rate(
        &self,
        element: &Element,
        unit: Unit,
        (packets, bytes, since): (u64, u64, Instant),
    ) -> Value {
        let count = match unit {
            Unit::Packets => self.packets(element)?.saturating_sub(packets),
            Unit::Bytes => self.bytes(element)?.saturating_sub(bytes),
            Unit::Bits => 8 * self.bytes(element)?.saturating_sub(bytes),
        };
        let seconds = since.elapsed().as_secs_f64().max(1e-3);
        Ok(handlers::number(count as f64 / seconds))
    }

    pub(super) fn reset(&mut self, element: &Element) {
        let outputs = handlers::of(element).filter_map(|handler| match handler.what {
            What::Output(output) => Some(output),
            _ => None,
        });
        let output = outputs.filter_map(|output| self.on_output(element, output).ok()).sum();
        let packets = self.packets(element).unwrap_or_default();
        let bytes = self.bytes(element).unwrap_or_default();
        let base = Base { packets, bytes, output, at: Instant::now() };
        self.counts.bases.insert(element.name.clone(), base);
        if let Some(step) = &element.step {
            self.gauges().reset(step);
        }
    }

    /// Remembers the counters whose rate can be asked for.
    pub(in crate::owner) fn sample_counts(&mut self) {
        let config = self.configurations.current.clone();
        if config.elements.is_empty() {
            return;
        }
        let is_rated = |element: &&Element| {
            let mut all = handlers::of(element);
            element.step.is_some() && all.any(|handler| handler.what.is_rate())
        };
        let by_step = self.forwarding.ledger.by_step();
        let rated = config.elements.iter().filter(is_rated);
        let counts: HashMap<_, _> = rated
            .filter_map(|element| {
                let bytes = by_step.own(element.step.as_deref()?, "bytes");
                Some((element.name.clone(), (count(element, &by_step)?, bytes)))
            })
            .collect();
        if counts.is_empty() {
            return self.counts.samples.clear();
        }
        self.counts.samples.push_back(Sample { at: Instant::now(), counts });
        if self.counts.samples.len() > SAMPLES {
            self.counts.samples.pop_front();
        }
    }
}

/// All packets that came to an element.
pub(super) fn count(element: &Element, by_step: &StepCounts<'_>) -> Option<u64> {
    let step = element.step.as_deref();
    // A counter counts by its own name, wherever its packets come from.
    if let Some(step) = step.filter(|step| by_step.is_of(step, "counter")) {
        return Some(by_step.own(step, "packets"));
    }
    let places = element.counts.iter().filter_map(|place| place.rsplit_once('.'));
    let sum = places.map(|(step, output)| by_step.on_edge(step, output)).sum();
    (step.is_some() || !element.counts.is_empty()).then_some(sum)
}
