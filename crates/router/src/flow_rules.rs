//! The rules of a port's filter that its device holds.
//!
//! Software has all rules of a filter; the device has those that [`acl::offload`] leaves to it and that it
//! takes. What it is to hold is compared with what it holds pattern by pattern: a pattern that stays is not
//! touched, whichever rule it is of then. New ones go in before old ones go out, so that nothing that is
//! dropped before and after reaches software meanwhile; those that the device had no room for are tried again
//! behind it.
//!
//! ```text
//!   follow: patterns of the filter -> held already | waiting
//!   go_on:  waiting -> held | refused;  of the filter before -> out of the device;  refused -> waiting
//! ```

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use acl::Family;
use acl::offload::{Kept, Offload};
use dataplane::filters::FilterTable;
use dpdk::{FlowCount, FlowRule};
use wire::pattern::Pattern;

/// A device that holds rules.
pub trait Holder {
    /// A rule in it.
    type Rule;

    /// Has it drop what fits a pattern.
    fn add(&self, pattern: &Pattern) -> Result<Self::Rule, Refused>;

    /// Takes a rule out, or says why it stays.
    fn remove(&self, rule: Self::Rule) -> Result<(), (Self::Rule, String)>;

    /// What a rule has dropped; `None`: the device does not count.
    fn count(&self, rule: &Self::Rule) -> Option<FlowCount>;

    /// Whether it counts what a rule drops.
    fn counts(&self, rule: &Self::Rule) -> bool;
}

/// Why a device does not take a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// In words.
    pub why: String,
    /// It takes no rules at all.
    pub is_for_good: bool,
}

impl Holder for dpdk::Port {
    type Rule = FlowRule;

    fn add(&self, pattern: &Pattern) -> Result<FlowRule, Refused> {
        self.add_drop_rule(pattern).map_err(|refusal| Refused {
            why: refusal.to_string(),
            is_for_good: refusal.is_for_good(),
        })
    }

    fn remove(&self, rule: FlowRule) -> Result<(), (FlowRule, String)> {
        self.remove_rule(rule).map_err(|(rule, refusal)| (rule, refusal.to_string()))
    }

    fn count(&self, rule: &FlowRule) -> Option<FlowCount> {
        if rule.is_counted() { self.rule_count(rule).ok() } else { None }
    }

    fn counts(&self, rule: &FlowRule) -> bool {
        rule.is_counted()
    }
}

/// What a device holds of a filter.
pub struct Placed<R> {
    /// The filter; `None`: it is to hold none.
    filter: Option<Arc<FilterTable>>,
    /// By the filter's rules.
    places: Vec<Place<R>>,
    /// Of filters before, which the device is still to let go of.
    leaving: Vec<Held<R>>,
    /// Why it holds nothing of the filter.
    refused: Option<String>,
    /// Something was done of which nobody has been told.
    news: bool,
    /// The device was told to let go of rules, and did not.
    is_stuck: bool,
    /// The rule whose counts are read next.
    next: usize,
}

/// A rule of the filter.
struct Place<R> {
    held: Vec<Held<R>>,
    waiting: VecDeque<Pattern>,
    refused: Vec<(Pattern, String)>,
    kept: Vec<(Family, Kept)>,
}

/// A rule of the device.
struct Held<R> {
    pattern: Pattern,
    rule: R,
    /// What it had counted when it was read last.
    seen: FlowCount,
    is_counted: bool,
}

/// A filter, and what a device can do of each of its rules, or why it is to hold none.
pub type Wanted = (Arc<FilterTable>, Result<Vec<Offload>, String>);

/// Where a rule of a filter is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Device rules that are held.
    pub held: usize,
    /// Device rules that it takes.
    pub wanted: usize,
    /// The device counts what it drops by those that it holds.
    pub is_counted: bool,
    /// Why not all of it is in the device.
    pub why: Vec<String>,
    /// It is a rule that a device could hold, but for these reasons.
    pub drops: bool,
}

/// A device's rules, as the log says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It holds nothing, and why.
    Refused(String),
    /// So many of its rules are held, wholly or in part, by so many device rules.
    Held {
        /// Rules of the filter that drop.
        rules: usize,
        /// Those of which the device holds something.
        held: usize,
        /// Rules of the device.
        device: usize,
    },
}

impl<R> Default for Placed<R> {
    fn default() -> Self {
        Self {
            filter: None,
            places: Vec::new(),
            leaving: Vec::new(),
            refused: None,
            news: false,
            is_stuck: false,
            next: 0,
        }
    }
}

impl<R> Placed<R> {
    /// The filter of which it is to hold rules.
    pub fn filter(&self) -> Option<&Arc<FilterTable>> {
        self.filter.as_ref()
    }

    /// Why it holds nothing of the filter, if it does not.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// There is something to be done by [`Self::go_on`].
    pub fn is_busy(&self) -> bool {
        !self.leaving.is_empty() || self.is_waiting()
    }

    /// There is something to be given to the device.
    pub fn is_waiting(&self) -> bool {
        self.places.iter().any(|place| !place.waiting.is_empty())
    }

    /// There is something to tell by [`Self::take_news`], once nothing waits.
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// From now on it is to hold what a device can do of these rules, or nothing, for a reason.
    pub fn follow(&mut self, filter: Option<Wanted>) {
        let before = std::mem::take(&mut self.places);
        let known = before.into_iter().flat_map(|place| place.held).chain(self.leaving.drain(..));
        let mut known: Vec<Option<Held<R>>> = known.map(Some).collect();
        let places = known.iter().flatten().enumerate();
        let places: HashMap<Pattern, usize> =
            places.map(|(place, held)| (held.pattern, place)).collect();
        let mut take = |pattern: &Pattern| known[*places.get(pattern)?].take();
        (self.filter, self.refused, self.news) = (None, None, filter.is_some());
        if let Some((table, offloads)) = filter {
            let mut seen = HashSet::new();
            let offloads = offloads.unwrap_or_else(|why| {
                self.refused = Some(why);
                Vec::new()
            });
            self.places = offloads
                .into_iter()
                .map(|Offload { patterns, kept }| {
                    let mut place = Place { kept, ..Place::default() };
                    // What an earlier rule drops already needs no second one.
                    for pattern in patterns.into_iter().filter(|pattern| seen.insert(*pattern)) {
                        match take(&pattern) {
                            Some(held) => place.held.push(held),
                            None => place.waiting.push_back(pattern),
                        }
                    }
                    place
                })
                .collect();
            self.filter = Some(table);
        }
        self.leaving = known.into_iter().flatten().collect();
        self.next = 0;
    }

    /// Gives the device what waits, as long as there is time, and takes from it what is not wanted any more,
    /// all of it. Returns why it does not let go of that, once.
    pub fn go_on(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: impl Fn() -> bool,
    ) -> Option<String> {
        self.give(device, &has_time);
        let (before, mut stays) = (self.leaving.len(), None);
        for held in std::mem::take(&mut self.leaving) {
            if let Err((rule, why)) = device.remove(held.rule) {
                self.leaving.push(Held { rule, ..held });
                stays = Some(why);
            }
        }
        if self.leaving.len() < before {
            for place in &mut self.places {
                place.waiting.extend(place.refused.drain(..).map(|(pattern, _)| pattern));
            }
            self.give(device, &has_time);
        }
        let was_stuck = std::mem::replace(&mut self.is_stuck, stays.is_some());
        stays.filter(|_| !was_stuck)
    }

    fn give(&mut self, device: &impl Holder<Rule = R>, has_time: &impl Fn() -> bool) {
        if let Err(why) = self.places.iter_mut().try_for_each(|place| place.give(device, has_time))
        {
            self.refused = Some(why);
            self.places.clear();
        }
    }

    /// What there is to tell, once, when nothing waits any more.
    pub fn take_news(&mut self) -> Option<News> {
        if self.is_busy() || !std::mem::take(&mut self.news) {
            return None;
        }
        if let Some(why) = &self.refused {
            return Some(News::Refused(why.clone()));
        }
        let rules = (0..self.places.len()).filter_map(|rule| self.whereabouts(rule));
        let rules: Vec<_> = rules.filter(|rule| rule.drops).collect();
        Some(News::Held {
            rules: rules.len(),
            held: rules.iter().filter(|rule| rule.held > 0).count(),
            device: rules.iter().map(|rule| rule.held).sum(),
        })
    }

    /// Where a rule of the filter is; `None`: it is not for this port.
    pub fn whereabouts(&self, rule: usize) -> Option<Whereabouts> {
        let place = self.places.get(rule)?;
        let for_others = |(_, kept): &(Family, Kept)| *kept == Kept::OtherPorts;
        let wanted = place.held.len() + place.waiting.len() + place.refused.len();
        if wanted == 0 && !place.kept.is_empty() && place.kept.iter().all(for_others) {
            return None;
        }
        Some(Whereabouts {
            held: place.held.len(),
            wanted,
            is_counted: place.held.iter().all(|held| held.is_counted),
            why: place.why(),
            drops: !place.kept.iter().any(|(_, kept)| *kept == Kept::Action),
        })
    }

    /// Tells of each rule how many packets and bytes of IP packets the device has dropped since it was read
    /// last, as long as there is time.
    pub fn read(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: impl Fn() -> bool,
        mut tell: impl FnMut(&FilterTable, usize, FlowCount),
    ) {
        let Some(filter) = &self.filter else { return };
        let count = self.places.len();
        for _ in 0..count {
            if !has_time() {
                return;
            }
            let rule = self.next % count;
            self.next = rule + 1;
            let held = self.places[rule].held.iter_mut();
            let counts = held.filter_map(|held| held.since(device));
            let add = |sum: FlowCount, one: FlowCount| FlowCount {
                packets: sum.packets + one.packets,
                bytes: sum.bytes.zip(one.bytes).map(|(sum, one)| sum + one),
            };
            let sum = counts.fold(FlowCount { packets: 0, bytes: Some(0) }, add);
            if sum.packets > 0 {
                tell(filter, rule, sum);
            }
        }
    }
}

impl<R> Default for Place<R> {
    fn default() -> Self {
        let (held, waiting, refused) = (Vec::new(), VecDeque::new(), Vec::new());
        Self { held, waiting, refused, kept: Vec::new() }
    }
}

impl<R> Place<R> {
    /// Gives the device what waits. The error of one that takes no rules at all.
    fn give(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: &impl Fn() -> bool,
    ) -> Result<(), String> {
        while let Some(&pattern) = self.waiting.front().filter(|_| has_time()) {
            self.waiting.pop_front();
            match device.add(&pattern) {
                Ok(rule) => {
                    let (seen, is_counted) = (FlowCount::default(), device.counts(&rule));
                    self.held.push(Held { pattern, rule, seen, is_counted });
                }
                Err(Refused { why, is_for_good: false }) => self.refused.push((pattern, why)),
                Err(Refused { why, .. }) => return Err(why),
            }
        }
        Ok(())
    }

    fn why(&self) -> Vec<String> {
        let mut why = Vec::new();
        let both = self.kept.len() == 2 && self.kept[0].1 == self.kept[1].1;
        for (family, kept) in &self.kept[..if both { 1 } else { self.kept.len() }] {
            let alone = both || (self.kept.len() == 1 && self.wanted() == 0);
            why.push(if alone { kept.to_string() } else { format!("{family}: {kept}") });
        }
        for (place, (_, said)) in self.refused.iter().enumerate() {
            if self.refused[..place].iter().all(|(_, before)| before != said) {
                why.push(format!("the device says: {said}"));
            }
        }
        if !self.waiting.is_empty() {
            why.push(format!("{} to be given to the device", self.waiting.len()));
        }
        why
    }

    fn wanted(&self) -> usize {
        self.held.len() + self.waiting.len() + self.refused.len()
    }
}

/// Bytes of an Ethernet header, which devices count.
const ETHERNET: u64 = 14;

impl<R> Held<R> {
    /// What it has counted since it was read last.
    fn since(&mut self, device: &impl Holder<Rule = R>) -> Option<FlowCount> {
        let now = device.count(&self.rule)?;
        let before = std::mem::replace(&mut self.seen, now);
        // A device that was reset begins anew.
        let packets = now.packets.checked_sub(before.packets).unwrap_or(now.packets);
        let bytes = now.bytes.map(|bytes| {
            let since = bytes.checked_sub(before.bytes.unwrap_or(0)).unwrap_or(bytes);
            since.saturating_sub(packets * ETHERNET)
        });
        Some(FlowCount { packets, bytes })
    }
}

#[cfg(test)]
mod tests;
