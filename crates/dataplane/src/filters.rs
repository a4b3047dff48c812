//! Packet filters as steps use them: rules made into tables, their policers, and their hits.
//!
//! A filter is made once, when it is configured, and shared by all steps that look packets up in it. It is
//! never changed: a configuration with other rules makes another one, and its graph has it in place of the
//! first (see [`FilterTables`]). Each step counts in a block of its own; what is read is their sum.

mod police;
mod samples;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use acl::{Action, Classifier, Filter, FilterAddress, TooLarge};

use self::police::Policer;
pub use self::police::{Police, Source, SourceLengths};
pub use self::samples::Sample;
use self::samples::Samples;
use crate::counters::{Counter, Traffic};

/// The most filters of a router: their numbers are features of interfaces, of one byte.
pub const FILTERS_MAX: usize = 255;

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
    /// Some of its packets are logged.
    pub log: bool,
}

/// A rule's hits in one step.
#[derive(Debug, Default)]
pub(crate) struct Hit {
    /// Packets, and bytes of IP packets.
    pub traffic: Traffic,
    /// The last packet's time, in TSC cycles.
    pub last: Counter,
}

pub(crate) type Hits = [Hit];

/// A rule's hits in all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleHits {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
    /// The last packet's time, in TSC cycles; 0 if there was none.
    pub last: u64,
}

/// What has been counted by one step: for each rule, and behind them for the default.
struct Blocks {
    /// Of steps that are no more, and of the filter before this one.
    past: Vec<RuleHits>,
    steps: Vec<Arc<Hits>>,
}

/// A filter ready for packets.
pub struct FilterTable {
    spec: FilterSpec,
    ip4: Classifier<Ipv4Addr>,
    ip6: Classifier<Ipv6Addr>,
    /// Of each rule, and behind them the default's.
    verdicts: Box<[Verdict]>,
    policers: Box<[Option<Policer>]>,
    samples: Samples,
    blocks: Mutex<Blocks>,
}

/// What becomes of a rule's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub action: Action,
    /// The rule has more to say than its action.
    pub is_treated: bool,
}

/// A family whose packets filters look up.
pub trait Filtered: FilterAddress {
    /// The filter's classifier for it.
    fn of(table: &FilterTable) -> &Classifier<Self>;

    /// A source address, for rates by source.
    fn source(address: Self::Bits) -> Source;
}

impl Filtered for Ipv4Addr {
    fn of(table: &FilterTable) -> &Classifier<Self> {
        &table.ip4
    }

    fn source(address: u32) -> Source {
        Source::Ip4(address)
    }
}

impl Filtered for Ipv6Addr {
    fn of(table: &FilterTable) -> &Classifier<Self> {
        &table.ip6
    }

    fn source(address: u128) -> Source {
        Source::Ip6(address)
    }
}

impl FilterTable {
    /// A filter of these rules, all of whose actions are terminal; `before` is one that it replaces, from
    /// which rules of the same name and place take over what they counted.
    ///
    /// # Errors
    /// The filter is too large.
    pub fn new(spec: &FilterSpec, before: Option<&Self>) -> Result<Self, TooLarge> {
        let (ip4, ip6) = (Classifier::new(&spec.filter)?, Classifier::new(&spec.filter)?);
        let verdicts = spec.filter.rules.iter().zip(&spec.treatments).map(|(rule, treatment)| {
            Verdict { action: rule.action, is_treated: *treatment != Treatment::default() }
        });
        let default = Verdict { action: spec.filter.default, is_treated: false };
        let hz = dpdk::tsc_hz();
        let seed = RandomState::new().hash_one(0);
        let policer = |of: &Treatment| of.police.map(|police| Policer::new(police, hz, seed));
        let policers = spec.treatments.iter().map(policer);
        let mut past = vec![RuleHits::default(); spec.filter.rules.len() + 1];
        if let Some(before) = before {
            take_over(&mut past, &spec.filter, before);
        }
        Ok(Self {
            spec: spec.clone(),
            ip4,
            ip6,
            verdicts: verdicts.chain([default]).collect(),
            policers: policers.collect(),
            samples: Samples::new(hz),
            blocks: Mutex::new(Blocks { past, steps: Vec::new() }),
        })
    }

    /// How it is configured.
    pub fn spec(&self) -> &FilterSpec {
        &self.spec
    }

    /// A block for a step to count in.
    pub(crate) fn block(&self) -> Arc<Hits> {
        let block: Arc<Hits> = (0..=self.spec.filter.rules.len()).map(|_| Hit::default()).collect();
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let Blocks { past, steps } = &mut *blocks;
        // Those of steps that are no more.
        for gone in steps.extract_if(.., |step| Arc::strong_count(step) == 1) {
            add(past, &gone);
        }
        steps.push(block.clone());
        block
    }

    /// What each rule has matched, and behind them what none has.
    pub fn hits(&self) -> Vec<RuleHits> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = blocks.past.clone();
        blocks.steps.iter().for_each(|step| add(&mut sum, step));
        sum
    }

    /// The next packet for the log.
    pub fn take_sample(&self) -> Option<Sample> {
        self.samples.take()
    }

    /// Keeps a packet for the log, if its rule is logged and there is room.
    #[inline]
    pub(crate) fn log(&self, rule: u32, now: u64, sample: impl FnOnce() -> Sample) {
        if self.spec.treatments.get(rule as usize).is_some_and(|treatment| treatment.log) {
            self.samples.offer(now, sample);
        }
    }

    /// What becomes of packets of this rule.
    #[inline]
    pub(crate) fn verdict(&self, rule: u32) -> Verdict {
        const NONE: Verdict = Verdict { action: Action::Drop, is_treated: false };
        self.verdicts.get(rule as usize).copied().unwrap_or(NONE)
    }

    /// The DSCP that packets of this rule get.
    #[inline]
    pub(crate) fn mark(&self, rule: u32) -> Option<u8> {
        self.spec.treatments.get(rule as usize)?.mark
    }

    /// Whether a packet of this length in bytes and source is within the rule's rate, at `now` in TSC cycles.
    #[inline]
    pub(crate) fn admits(&self, rule: u32, source: Source, length: usize, now: u64) -> bool {
        match self.policers.get(rule as usize) {
            Some(Some(policer)) => policer.admits(source, length, now),
            _ => true,
        }
    }
}

fn add(sum: &mut [RuleHits], block: &Hits) {
    for (sum, hit) in sum.iter_mut().zip(block) {
        sum.packets += hit.traffic.packets.get();
        sum.bytes += hit.traffic.bytes.get();
        sum.last = sum.last.max(hit.last.get());
    }
}

/// What rules of the filter before counted that are in the new one: those of the same name, and those without
/// one that say the same.
fn take_over(past: &mut [RuleHits], filter: &Filter, before: &FilterTable) {
    let old = before.hits();
    let identity = |rule: &acl::Rule| match &rule.name {
        Some(name) => (Some(name.clone()), String::new()),
        None => (None, format!("{} {:?}", rule.matches, rule.action)),
    };
    let rules = before.spec.filter.rules.iter().map(identity);
    let known: HashMap<_, _> = rules.zip(&old).rev().collect();
    for (sum, rule) in past.iter_mut().zip(&filter.rules) {
        if let Some(hits) = known.get(&identity(rule)) {
            *sum = **hits;
        }
    }
    past[filter.rules.len()] = old[before.spec.filter.rules.len()];
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
