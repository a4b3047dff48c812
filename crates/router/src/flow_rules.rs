//! Rules of a port's filter that its device holds: those that drop, and those that select a forwarder.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use acl::Family;
use acl::offload::{Kept, Offload};
use dataplane::filters::FilterTable;
use dpdk::{FlowCount, FlowRule};
use wire::pattern::Traffic;

/// A device that holds rules.
pub trait Holder {
    /// A rule in it.
    type Rule;

    /// Has the device drop packets, or bring them to a queue.
    fn add(&self, order: &Order) -> Result<Self::Rule, Refused>;

    /// Removes a rule; on failure, returns it with the reason.
    fn remove(&self, rule: Self::Rule) -> Result<(), (Self::Rule, String)>;

    /// Counts the packets that matched a rule; `None` if the device does not count them.
    fn count(&self, rule: &Self::Rule) -> Option<FlowCount>;

    /// Returns true if the device counts the packets that match a rule.
    fn counts(&self, rule: &Self::Rule) -> bool;
}

/// The fate of packets that match a rule of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// They are dropped.
    Drop,
    /// They arrive on this receive queue.
    Queue(u16),
}

/// A rule for a device.
pub type Order = (Traffic, Fate);

/// The receive queue by which a forwarder gets a port's packets, by forwarder.
pub type Queues = Vec<Option<u16>>;

/// The reason for which a device does not take a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// In words.
    pub why: String,
    /// It takes no rules at all.
    pub is_for_good: bool,
}

impl Holder for dpdk::Port {
    type Rule = FlowRule;

    fn add(&self, (traffic, fate): &Order) -> Result<FlowRule, Refused> {
        let added = match fate {
            Fate::Drop => self.add_drop_rule(traffic),
            Fate::Queue(queue) => self.add_queue_rule(traffic, *queue),
        };
        added.map_err(|refusal| Refused {
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

/// The rules of a filter that a device holds.
pub struct Placed<R> {
    /// The filter; `None` if the device is to hold no rules.
    filter: Option<Arc<FilterTable>>,
    /// The queues to which rules bring packets.
    queues: Queues,
    /// By the filter's rules.
    places: Vec<Place<R>>,
    /// Rules of earlier filters, still to be removed from the device.
    leaving: Vec<Held<R>>,
    /// The reason for which the device holds nothing of the filter.
    refused: Option<String>,
    /// True if there are changes not reported yet.
    unreported: bool,
    /// True if the device has failed to remove rules.
    is_stuck: bool,
    /// The rule whose counts are read next.
    next: usize,
}

/// A rule of the filter.
struct Place<R> {
    held: Vec<Held<R>>,
    waiting: VecDeque<Order>,
    refused: Vec<(Order, String)>,
    kept: Vec<(Family, Kept)>,
    /// The forwarder to which it brings packets; `None`: it drops them.
    forwarder: Option<u16>,
    /// True if that forwarder has no receive queue of the port.
    is_unserved: bool,
}

/// A rule of the device.
struct Held<R> {
    order: Order,
    rule: R,
    /// The counters at the last reading.
    seen: FlowCount,
    is_counted: bool,
}

/// A filter, with the offload of each of its rules, or the reason for which the device is to hold none; and the queues
/// of the forwarders that rules select.
pub type Wanted = (Arc<FilterTable>, Result<Vec<Offload>, String>, Queues);

/// Packets that matched a rule, and true if they were dropped.
pub type Count = (FlowCount, bool);

/// State of a rule of a filter in the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Device rules that are held.
    pub held: usize,
    /// Device rules needed for it.
    pub wanted: usize,
    /// True if the device counts the packets that match its rules.
    pub is_counted: bool,
    /// The reasons for which the device does not hold all of it.
    pub why: Vec<String>,
    /// It is a rule that drops and that a device could hold, but for these reasons.
    pub drops: bool,
    /// It is a rule that selects a forwarder and that a device could hold, but for these reasons.
    pub steers: bool,
}

/// A device's rules, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementReport {
    /// The device holds nothing, for this reason.
    Refused(String),
    /// Numbers of rules held, wholly or in part.
    Held {
        /// Rules of the filter that drop or select a forwarder.
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
            queues: Vec::new(),
            places: Vec::new(),
            leaving: Vec::new(),
            refused: None,
            unreported: false,
            is_stuck: false,
            next: 0,
        }
    }
}

impl<R> Placed<R> {
    /// Returns the filter whose rules the device is to hold.
    pub fn filter(&self) -> Option<&Arc<FilterTable>> {
        self.filter.as_ref()
    }

    /// Returns the queues to which rules bring packets.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Returns the reason for which the device holds nothing of the filter.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Returns true if [`Self::go_on`] has work to do.
    pub fn is_busy(&self) -> bool {
        !self.leaving.is_empty() || self.is_waiting()
    }

    /// Returns true if rules wait to be added to the device.
    pub fn is_waiting(&self) -> bool {
        self.places.iter().any(|place| !place.waiting.is_empty())
    }

    /// Returns true if [`Self::take_report`] has a report once nothing waits.
    pub fn has_news(&self) -> bool {
        self.unreported
    }

    /// Sets the rules that the device is to hold, or the reason for which it is to hold none.
    pub fn follow(&mut self, filter: Option<Wanted>) {
        let before = std::mem::take(&mut self.places);
        let known = before.into_iter().flat_map(|place| place.held).chain(self.leaving.drain(..));
        let mut known: Vec<Option<Held<R>>> = known.map(Some).collect();
        let places = known.iter().flatten().enumerate();
        let places: HashMap<Order, usize> =
            places.map(|(place, held)| (held.order, place)).collect();
        let mut take = |order: &Order| known[*places.get(order)?].take();
        (self.filter, self.refused, self.unreported) = (None, None, filter.is_some());
        self.queues.clear();
        if let Some((table, offloads, queues)) = filter {
            self.queues = queues;
            let queues = &self.queues;
            let mut seen = HashSet::new();
            let offloads = offloads.unwrap_or_else(|why| {
                self.refused = Some(why);
                Vec::new()
            });
            self.places = offloads
                .into_iter()
                .map(|Offload { patterns, frames, forwarder, kept }| {
                    let mut place = Place { kept, forwarder, ..Place::default() };
                    let queue = |of: u16| queues.get(usize::from(of)).copied().flatten();
                    let fate = match forwarder {
                        None => Some(Fate::Drop),
                        Some(forwarder) => queue(forwarder).map(Fate::Queue),
                    };
                    let Some(fate) = fate else {
                        place.is_unserved = true;
                        return place;
                    };
                    // A pattern of an earlier rule needs no second rule.
                    let frames = frames.into_iter().map(Traffic::EtherType);
                    let all = patterns.into_iter().map(Traffic::Ip).chain(frames);
                    for traffic in all.filter(|traffic| seen.insert(*traffic)) {
                        match take(&(traffic, fate)) {
                            Some(held) => place.held.push(held),
                            None => place.waiting.push_back((traffic, fate)),
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

    /// Adds waiting rules to the device as long as there is time, and removes all unwanted ones. Returns the reason for
    /// which the device keeps one, once.
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
                place.waiting.extend(place.refused.drain(..).map(|(order, _)| order));
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

    /// Returns the report for the log, once, when nothing waits any more.
    pub fn take_report(&mut self) -> Option<PlacementReport> {
        if self.is_busy() || !std::mem::take(&mut self.unreported) {
            return None;
        }
        if let Some(why) = &self.refused {
            return Some(PlacementReport::Refused(why.clone()));
        }
        let rules = (0..self.places.len()).filter_map(|rule| self.whereabouts(rule));
        let rules: Vec<_> = rules.filter(|rule| rule.drops || rule.steers).collect();
        Some(PlacementReport::Held {
            rules: rules.len(),
            held: rules.iter().filter(|rule| rule.held > 0).count(),
            device: rules.iter().map(|rule| rule.held).sum(),
        })
    }

    /// Returns the state of a rule of the filter; `None` if the rule is not for this port.
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
            drops: place.forwarder.is_none()
                && !place.kept.iter().any(|(_, kept)| *kept == Kept::Action),
            steers: place.forwarder.is_some(),
        })
    }

    /// Passes on, for each rule, the packets and bytes of IP packets that the device has dropped or brought to a queue
    /// since the last reading, as long as there is time.
    pub fn read(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: impl Fn() -> bool,
        mut report: impl FnMut(&FilterTable, usize, Count),
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
                report(filter, rule, (sum, self.places[rule].forwarder.is_none()));
            }
        }
    }
}

impl<R> Default for Place<R> {
    fn default() -> Self {
        let (held, waiting, refused) = (Vec::new(), VecDeque::new(), Vec::new());
        let (kept, forwarder, is_unserved) = (Vec::new(), None, false);
        Self { held, waiting, refused, kept, forwarder, is_unserved }
    }
}

impl<R> Place<R> {
    /// Gives the device what waits. The error of one that takes no rules at all.
    fn give(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: &impl Fn() -> bool,
    ) -> Result<(), String> {
        while let Some(&order) = self.waiting.front().filter(|_| has_time()) {
            self.waiting.pop_front();
            match device.add(&order) {
                Ok(rule) => {
                    let (seen, is_counted) = (FlowCount::default(), device.counts(&rule));
                    self.held.push(Held { order, rule, seen, is_counted });
                }
                Err(Refused { why, is_for_good: false }) => self.refused.push((order, why)),
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
        if let Some(forwarder) = self.forwarder.filter(|_| self.is_unserved) {
            why.push(format!("forwarder {forwarder} has no receive queue of the port"));
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
    /// Counts since the last reading.
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
