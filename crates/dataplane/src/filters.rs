//! Packet filters as steps use them: rules made into tables, their policers, and their hits.
//!
//! A filter is made once, when it is configured, and shared by all steps that look packets up in it. It is
//! never changed: a configuration with other rules makes another one, and its graph has it in place of the
//! first (see [`FilterTables`]). Each step counts in a block of its own; what is read is their sum.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use acl::key::KEY;
use acl::{Action, Family, Filter, Key};
use dpdk::Eal;
use dpdk::acl::{Acl, AclField, AclMatch};

use crate::batch::BATCH_MAX;
use crate::counters::Traffic;

/// The most filters of a router: their numbers are features of interfaces, of one byte.
pub const FILTERS_MAX: usize = 255;

/// How much of a rule's traffic passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Police {
    /// Packets, or bytes of IP packets, per second.
    pub rate: u64,
    /// Packets or bytes at once, at least 1.
    pub burst: u64,
    /// Counted in bytes.
    pub bytes: bool,
}

/// As configurations write it: `1000 pps, burst 100`.
impl fmt::Display for Police {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, burst, bytes } = self;
        match bytes {
            true => write!(f, "{} bit, burst {} bit", rate * 8, burst * 8),
            false => write!(f, "{rate} pps, burst {burst}"),
        }
    }
}

/// A filter as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterSpec {
    /// Its rules.
    pub filter: Filter,
    /// For each rule, what else becomes of its packets.
    pub treatments: Vec<Treatment>,
}

/// What else a rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// How much of its traffic passes; `None`: all.
    pub police: Option<Police>,
    /// The DSCP that its packets get; `None`: what they have.
    pub mark: Option<u8>,
}

/// A token bucket that several forwarders take from: the time at which it would be full again (the generic
/// cell rate algorithm, ITU-T I.371 annex A).
#[derive(Debug)]
struct Policer {
    full_at: AtomicU64,
    /// TSC cycles for a packet or a byte, times 2^[`SHIFT`].
    cost: u64,
    /// TSC cycles that a burst takes.
    depth: u64,
    bytes: bool,
}

/// Fraction bits of [`Policer::cost`].
const SHIFT: u32 = 16;

impl Policer {
    fn new(police: Police, tsc_hz: u64) -> Self {
        let cycles = |amount: u64, shift: u32| {
            let cycles = ((u128::from(amount) * u128::from(tsc_hz)) << shift)
                / u128::from(police.rate.max(1));
            u64::try_from(cycles).unwrap_or(u64::MAX)
        };
        Self {
            full_at: AtomicU64::new(0),
            cost: cycles(1, SHIFT),
            depth: cycles(police.burst, 0),
            bytes: police.bytes,
        }
    }

    /// Takes what a packet costs; false if there is not enough.
    fn admits(&self, length: usize, now: u64) -> bool {
        let amount = if self.bytes { length as u128 } else { 1 };
        let cost = ((u128::from(self.cost) * amount) >> SHIFT) as u64;
        let taken = |full_at: u64| {
            let next = full_at.max(now) + cost;
            (next - now <= self.depth.max(cost)).then_some(next)
        };
        self.full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

/// A rule's hits in one step, or in all.
pub type Hits = [Traffic];

/// What has been counted by one step: for each rule, and behind them for the default.
struct Blocks {
    /// Of steps that are no more, and of the filter before this one.
    past: Vec<(u64, u64)>,
    steps: Vec<Arc<Hits>>,
}

/// A filter ready for packets.
pub struct FilterTable {
    spec: FilterSpec,
    ip4: Acl<KEY>,
    ip6: Acl<KEY>,
    policers: Box<[Option<Policer>]>,
    blocks: Mutex<Blocks>,
}

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The place of the rule that decided; that of the last and one for the default.
    pub rule: u32,
    /// What becomes of the packet.
    pub action: Action,
}

impl FilterTable {
    /// A filter of these rules, all of whose actions are terminal; `before` is one that it replaces, from
    /// which rules of the same name and place take over what they counted.
    ///
    /// # Errors
    /// Says which rule needs too many entries, or why DPDK refuses the table.
    pub fn new(eal: &Eal, spec: &FilterSpec, before: Option<&Self>) -> Result<Self, String> {
        let name = &spec.filter.name;
        let table = |family| {
            let compiled = acl::compile(&spec.filter, family).map_err(|error| error.to_string())?;
            made(eal, &compiled).map_err(|error| format!("filter \"{name}\": {error}"))
        };
        let (ip4, ip6) = (table(Family::Ip4)?, table(Family::Ip6)?);
        let hz = dpdk::tsc_hz();
        let policer = |of: &Treatment| of.police.map(|police| Policer::new(police, hz));
        let policers = spec.treatments.iter().map(policer);
        let mut past = vec![(0, 0); spec.filter.rules.len() + 1];
        if let Some(before) = before {
            take_over(&mut past, &spec.filter, before);
        }
        Ok(Self {
            spec: spec.clone(),
            ip4,
            ip6,
            policers: policers.collect(),
            blocks: Mutex::new(Blocks { past, steps: Vec::new() }),
        })
    }

    /// How it is configured.
    pub fn spec(&self) -> &FilterSpec {
        &self.spec
    }

    /// A block for a step to count in.
    pub(crate) fn block(&self) -> Arc<Hits> {
        let block: Arc<Hits> =
            (0..=self.spec.filter.rules.len()).map(|_| Traffic::default()).collect();
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let Blocks { past, steps } = &mut *blocks;
        // Those of steps that are no more.
        for gone in steps.extract_if(.., |step| Arc::strong_count(step) == 1) {
            add(past, &gone);
        }
        steps.push(block.clone());
        block
    }

    /// Packets and bytes that each rule has matched, and behind them what none has.
    pub fn hits(&self) -> Vec<(u64, u64)> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = blocks.past.clone();
        blocks.steps.iter().for_each(|step| add(&mut sum, step));
        sum
    }

    /// The verdicts on packets with these keys, as many as there is room for.
    #[inline]
    pub(crate) fn classify(&self, ip6: bool, keys: &[Key], found: &mut [u32; BATCH_MAX]) {
        let table = if ip6 { &self.ip6 } else { &self.ip4 };
        table.classify(keys.iter().map(Key::as_bytes), found);
    }

    /// The verdict for a number from [`Self::classify`].
    #[inline]
    pub(crate) fn verdict(&self, found: u32) -> Verdict {
        let filter = &self.spec.filter;
        match filter.rules.get((found as usize).wrapping_sub(1)) {
            Some(rule) => Verdict { rule: found - 1, action: rule.action },
            None => Verdict { rule: filter.rules.len() as u32, action: filter.default },
        }
    }

    /// The DSCP that packets of this rule get.
    #[inline]
    pub(crate) fn mark(&self, rule: u32) -> Option<u8> {
        self.spec.treatments.get(rule as usize)?.mark
    }

    /// Whether a packet of this length in bytes is within the rule's rate, at `now` in TSC cycles.
    #[inline]
    pub(crate) fn admits(&self, rule: u32, length: usize, now: u64) -> bool {
        match self.policers.get(rule as usize) {
            Some(Some(policer)) => policer.admits(length, now),
            _ => true,
        }
    }
}

fn add(sum: &mut [(u64, u64)], block: &Hits) {
    for ((packets, bytes), traffic) in sum.iter_mut().zip(block) {
        *packets += traffic.packets.get();
        *bytes += traffic.bytes.get();
    }
}

/// What rules of the filter before counted that are in the new one: those of the same name, and those without
/// one that say the same.
fn take_over(past: &mut [(u64, u64)], filter: &Filter, before: &FilterTable) {
    let old = before.hits();
    let rules = &before.spec.filter.rules;
    for (sum, rule) in past.iter_mut().zip(&filter.rules) {
        let same = |other: &acl::Rule| match (&rule.name, &other.name) {
            (Some(one), Some(another)) => one == another,
            (None, None) => rule.matches == other.matches && rule.action == other.action,
            _ => false,
        };
        if let Some(place) = rules.iter().position(same) {
            *sum = old[place];
        }
    }
    past[filter.rules.len()] = old[rules.len()];
}

fn made(eal: &Eal, compiled: &acl::Compiled) -> Result<Acl<KEY>, dpdk::Error> {
    let field = |field: &acl::Field| AclField {
        by: match field.kind {
            acl::FieldKind::Mask => AclMatch::Prefix,
            acl::FieldKind::Range => AclMatch::Range,
            acl::FieldKind::Bitmask => AclMatch::Bits,
        },
        size: field.size,
        offset: field.offset,
        group: field.group,
    };
    let fields: Vec<_> = compiled.fields.iter().map(field).collect();
    let rules: Vec<_> =
        compiled.entries.iter().map(|entry| (entry.values.clone(), entry.rule + 1)).collect();
    Acl::new(eal, &fields, &rules)
}

/// The filters of a router, by their numbers less one. Steps look at them when they are made: whoever makes
/// graphs says before which there are going to be.
#[derive(Default)]
pub struct FilterTables(Mutex<Vec<Option<Arc<FilterTable>>>>);

impl FilterTables {
    /// All of them.
    pub fn get(&self) -> Vec<Option<Arc<FilterTable>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// These are the filters for steps that are made from now on.
    pub fn set(&self, filters: Vec<Option<Arc<FilterTable>>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = filters;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policer_passes_its_rate_and_its_burst() {
        let policer = Policer::new(Police { rate: 1000, burst: 10, bytes: false }, 1_000_000);
        let passed = |from: u64, count: u64, step: u64| {
            (0..count).filter(|n| policer.admits(60, from + n * step)).count()
        };
        assert_eq!(passed(1_000_000, 50, 0), 10, "the burst");
        // A packet takes 1,000 cycles; they come every 500, the first when the bucket is empty.
        assert_eq!(passed(1_000_000, 200, 500), 99);
        assert_eq!(passed(9_000_000, 50, 0), 10, "full again");
        let bytes = Policer::new(Police { rate: 1000, burst: 1500, bytes: true }, 1_000_000);
        assert!(bytes.admits(1500, 0) && !bytes.admits(1, 0) && bytes.admits(1, 1000));
        // One that is longer than the burst passes when the bucket is full, or none of its kind ever would.
        assert!(bytes.admits(9000, 10_000_000) && !bytes.admits(1, 10_000_000));
    }
}
