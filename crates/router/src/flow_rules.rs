//! Rules of filters that a port's device holds: those that drop, and those that select forwarders. The filters are those
//! of the port's own interface and of VLANs on it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use acl::Family;
use acl::offload::{Kept, Offload};
use dataplane::filters::{FilterTable, Forwarders};
use dataplane::interface::InterfaceId;
use dpdk::{FlowCount, FlowRule};
use wire::ethernet::{ETHERNET_LEN, TAG_LEN};
use wire::pattern::{Frames, Tags};

/// A device that holds rules.
pub trait Holder {
    /// A rule in it.
    type Rule;

    /// Has the device drop packets, or bring them to queues.
    fn add(&self, order: &Order) -> Result<Self::Rule, Refused>;

    /// Removes a rule; on failure, returns it with the reason.
    fn remove(&self, rule: Self::Rule) -> Result<(), (Self::Rule, String)>;

    /// Counts the packets that matched a rule; `None` if the device does not count them.
    fn count(&self, rule: &Self::Rule) -> Option<FlowCount>;

    /// Returns true if the device counts the packets that match a rule.
    fn counts(&self, rule: &Self::Rule) -> bool;
}

/// The fate of packets that match a rule of a device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// They are dropped.
    Drop,
    /// They arrive on these receive queues, of several by the hash of their flow.
    Queues(Vec<u16>),
}

/// A rule for a device.
pub type Order = (Frames, Fate);

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

    fn add(&self, (frames, fate): &Order) -> Result<FlowRule, Refused> {
        let added = match fate {
            Fate::Drop => self.add_drop_rule(frames),
            Fate::Queues(queues) => self.add_queue_rule(frames, queues),
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

/// The rules of filters that a device holds.
pub struct Placed<R> {
    /// The filters; none if the device is to hold no rules.
    parts: Vec<Part<R>>,
    /// The queues to which rules bring packets.
    queues: Queues,
    /// Rules of earlier filters, still to be removed from the device.
    leaving: Vec<Held<R>>,
    /// True if the device has failed to remove rules.
    is_stuck: bool,
    /// The rule whose counts are read next, of all rules of the filters.
    next: usize,
}

/// The filter of one interface.
struct Part<R> {
    interface: InterfaceId,
    filter: Arc<FilterTable>,
    /// By the filter's rules.
    places: Vec<Place<R>>,
    /// The reason for which the device holds nothing of the filter.
    refused: Option<String>,
    /// True if there are changes not reported yet.
    unreported: bool,
}

/// A rule of the filter.
struct Place<R> {
    held: Vec<Held<R>>,
    waiting: VecDeque<Order>,
    refused: Vec<(Order, String)>,
    kept: Vec<(Family, Kept)>,
    /// The forwarders to which it brings packets; `None`: it drops them.
    forwarders: Option<Forwarders>,
    /// The first of these that has no receive queue of the port.
    unserved: Option<u16>,
}

/// A rule of the device.
struct Held<R> {
    order: Order,
    rule: R,
    /// The counters at the last reading.
    seen: FlowCount,
    is_counted: bool,
}

/// A filter of which a device is to hold rules.
pub struct Wanted {
    /// The interface whose packets it filters: the port's own, or a VLAN.
    pub interface: InterfaceId,
    /// The filter.
    pub filter: Arc<FilterTable>,
    /// The offload of each of its rules, or the reason for which the device is to hold none.
    pub offloads: Result<Vec<Offload>, String>,
}

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
    /// It is a rule that selects forwarders and that a device could hold, but for these reasons.
    pub steers: bool,
}

/// A filter's rules in a device, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementReport {
    /// The device holds nothing, for this reason.
    Refused(String),
    /// Numbers of rules held, wholly or in part.
    Held {
        /// Rules of the filter that drop or select forwarders.
        rules: usize,
        /// Those of which the device holds something.
        held: usize,
        /// Rules of the device.
        device: usize,
    },
}

impl<R> Default for Placed<R> {
    fn default() -> Self {
        let (parts, queues, leaving) = (Vec::new(), Vec::new(), Vec::new());
        Self { parts, queues, leaving, is_stuck: false, next: 0 }
    }
}

impl<R> Placed<R> {
    /// Returns the filters of which the device is to hold rules, and their interfaces.
    pub fn filters(&self) -> impl Iterator<Item = (InterfaceId, &Arc<FilterTable>)> {
        self.parts.iter().map(|part| (part.interface, &part.filter))
    }

    /// Returns the queues to which rules bring packets.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Returns the reason for which the device holds nothing of an interface's filter.
    pub fn refused(&self, interface: InterfaceId) -> Option<&str> {
        self.parts.iter().find(|part| part.interface == interface)?.refused.as_deref()
    }

    /// Returns true if [`Self::go_on`] has work to do.
    pub fn is_busy(&self) -> bool {
        !self.leaving.is_empty() || self.is_waiting()
    }

    /// Returns true if rules wait to be added to the device.
    pub fn is_waiting(&self) -> bool {
        self.places().any(|place| !place.waiting.is_empty())
    }

    /// Returns true if [`Self::take_reports`] has reports once nothing waits.
    pub fn has_news(&self) -> bool {
        self.parts.iter().any(|part| part.unreported)
    }

    fn places(&self) -> impl Iterator<Item = &Place<R>> {
        self.parts.iter().flat_map(|part| &part.places)
    }

    fn places_mut(&mut self) -> impl Iterator<Item = &mut Place<R>> {
        self.parts.iter_mut().flat_map(|part| &mut part.places)
    }

    /// Sets the rules that the device is to hold, and the queues of the forwarders that they select.
    pub fn follow(&mut self, wanted: Vec<Wanted>, queues: Queues) {
        let parts = std::mem::take(&mut self.parts).into_iter().flat_map(|part| part.places);
        let held = parts.flat_map(|place| place.held).chain(self.leaving.drain(..));
        let mut known = Known::new(held);
        self.parts = wanted.into_iter().map(|one| Part::new(one, &queues, &mut known)).collect();
        self.queues = queues;
        self.leaving = known.held.into_iter().flatten().collect();
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
            for place in self.places_mut() {
                place.waiting.extend(place.refused.drain(..).map(|(order, _)| order));
            }
            self.give(device, &has_time);
        }
        let was_stuck = std::mem::replace(&mut self.is_stuck, stays.is_some());
        stays.filter(|_| !was_stuck)
    }

    fn give(&mut self, device: &impl Holder<Rule = R>, has_time: &impl Fn() -> bool) {
        let given = self.places_mut().try_for_each(|place| place.give(device, has_time));
        let Err(why) = given else { return };
        for part in &mut self.parts {
            part.refused.get_or_insert_with(|| why.clone());
            part.places.clear();
        }
    }

    /// Returns the reports for the log, once, when nothing waits any more.
    pub fn take_reports(&mut self) -> Vec<(InterfaceId, Arc<FilterTable>, PlacementReport)> {
        if self.is_busy() {
            return Vec::new();
        }
        let new = self.parts.iter_mut().filter_map(|part| {
            let is_new = std::mem::take(&mut part.unreported);
            is_new.then(|| (part.interface, part.filter.clone(), part.report()))
        });
        new.collect()
    }

    /// Returns the state of a rule of an interface's filter; `None` if the rule is not for this interface.
    pub fn whereabouts(&self, interface: InterfaceId, rule: usize) -> Option<Whereabouts> {
        self.parts.iter().find(|part| part.interface == interface)?.whereabouts(rule)
    }

    /// Passes on, for each rule, the packets and bytes of IP packets that the device has dropped or brought to a queue
    /// since the last reading, as long as there is time.
    pub fn read(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: impl Fn() -> bool,
        mut report: impl FnMut(&FilterTable, usize, Count),
    ) {
        let rules = |part: &Part<R>| (0..part.places.len()).collect::<Vec<_>>();
        let parts = self.parts.iter().enumerate();
        let all: Vec<(usize, usize)> = parts
            .flat_map(|(at, part)| rules(part).into_iter().map(move |rule| (at, rule)))
            .collect();
        for _ in 0..all.len() {
            if !has_time() {
                return;
            }
            let (part, rule) = all[self.next % all.len()];
            self.next = self.next % all.len() + 1;
            let Part { filter, places, .. } = &mut self.parts[part];
            let held = places[rule].held.iter_mut();
            let counts = held.filter_map(|held| held.since(device));
            let add = |sum: FlowCount, one: FlowCount| FlowCount {
                packets: sum.packets + one.packets,
                bytes: sum.bytes.zip(one.bytes).map(|(sum, one)| sum + one),
            };
            let sum = counts.fold(FlowCount { packets: 0, bytes: Some(0) }, add);
            if sum.packets > 0 {
                report(filter, rule, (sum, places[rule].forwarders.is_none()));
            }
        }
    }
}

/// Rules that a device holds, by what they order.
struct Known<R> {
    held: Vec<Option<Held<R>>>,
    places: HashMap<Order, usize>,
}

impl<R> Known<R> {
    fn new(held: impl Iterator<Item = Held<R>>) -> Self {
        let held: Vec<_> = held.map(Some).collect();
        let places = held.iter().flatten().enumerate();
        let places = places.map(|(place, held)| (held.order.clone(), place)).collect();
        Self { held, places }
    }

    fn take(&mut self, order: &Order) -> Option<Held<R>> {
        self.held[*self.places.get(order)?].take()
    }
}

impl<R> Part<R> {
    /// Takes what is held already; the rest waits.
    fn new(wanted: Wanted, queues: &Queues, known: &mut Known<R>) -> Self {
        let Wanted { interface, filter, offloads } = wanted;
        let (offloads, refused) = match offloads {
            Ok(offloads) => (offloads, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut seen = HashSet::new();
        let treatments = &filter.spec().treatments;
        let place = |(rule, offload): (usize, Offload)| {
            let forwarders = treatments.get(rule).and_then(|treatment| treatment.forwarders);
            let forwarders = forwarders.filter(|_| offload.steers);
            let mut place = Place { forwarders, kept: offload.kept.clone(), ..Place::default() };
            let fate = match forwarders.map(|of| queues_of(&of, queues)) {
                None => Fate::Drop,
                Some(Ok(queues)) => Fate::Queues(queues),
                Some(Err(unserved)) => {
                    place.unserved = Some(unserved);
                    return place;
                }
            };
            // A pattern of an earlier rule needs no second rule.
            for frames in offload.all().filter(|frames| seen.insert(*frames)) {
                let order = (frames, fate.clone());
                match known.take(&order) {
                    Some(held) => place.held.push(held),
                    None => place.waiting.push_back(order),
                }
            }
            place
        };
        let places = offloads.into_iter().enumerate().map(place).collect();
        Self { interface, places, filter, refused, unreported: true }
    }

    fn report(&self) -> PlacementReport {
        if let Some(why) = &self.refused {
            return PlacementReport::Refused(why.clone());
        }
        let rules = (0..self.places.len()).filter_map(|rule| self.whereabouts(rule));
        let rules: Vec<_> = rules.filter(|rule| rule.drops || rule.steers).collect();
        PlacementReport::Held {
            rules: rules.len(),
            held: rules.iter().filter(|rule| rule.held > 0).count(),
            device: rules.iter().map(|rule| rule.held).sum(),
        }
    }

    fn whereabouts(&self, rule: usize) -> Option<Whereabouts> {
        let place = self.places.get(rule)?;
        let for_others = |(_, kept): &(Family, Kept)| *kept == Kept::OtherPorts;
        let wanted = place.wanted();
        if wanted == 0 && !place.kept.is_empty() && place.kept.iter().all(for_others) {
            return None;
        }
        Some(Whereabouts {
            held: place.held.len(),
            wanted,
            is_counted: place.held.iter().all(|held| held.is_counted),
            why: place.why(),
            drops: place.forwarders.is_none()
                && !place.kept.iter().any(|(_, kept)| *kept == Kept::Action),
            steers: place.forwarders.is_some(),
        })
    }
}

/// Returns the receive queues of forwarders, or the first of these that has none.
fn queues_of(forwarders: &Forwarders, queues: &Queues) -> Result<Vec<u16>, u16> {
    let queue = |&of: &u16| queues.get(usize::from(of)).copied().flatten().ok_or(of);
    forwarders.numbers().iter().map(queue).collect()
}

impl<R> Default for Place<R> {
    fn default() -> Self {
        let (held, waiting, refused) = (Vec::new(), VecDeque::new(), Vec::new());
        let (kept, forwarders, unserved) = (Vec::new(), None, None);
        Self { held, waiting, refused, kept, forwarders, unserved }
    }
}

impl<R> Place<R> {
    /// Gives the device what waits. The error of one that takes no rules at all.
    fn give(
        &mut self,
        device: &impl Holder<Rule = R>,
        has_time: &impl Fn() -> bool,
    ) -> Result<(), String> {
        while has_time()
            && let Some(order) = self.waiting.pop_front()
        {
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
        if let Some(forwarder) = self.unserved {
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

/// Returns the bytes of the Ethernet header and tags of frames, which devices count.
fn header(frames: &Frames) -> u64 {
    let tags = match frames.link.tags {
        Tags::Any | Tags::None => 0,
        Tags::One(_) => 1,
        Tags::Two(..) => 2,
    };
    (ETHERNET_LEN + tags * TAG_LEN) as u64
}

impl<R> Held<R> {
    /// Counts since the last reading.
    fn since(&mut self, device: &impl Holder<Rule = R>) -> Option<FlowCount> {
        let now = device.count(&self.rule)?;
        let before = std::mem::replace(&mut self.seen, now);
        // A device that was reset begins anew.
        let packets = now.packets.checked_sub(before.packets).unwrap_or(now.packets);
        let bytes = now.bytes.map(|bytes| {
            let since = bytes.checked_sub(before.bytes.unwrap_or(0)).unwrap_or(bytes);
            since.saturating_sub(packets * header(&self.order.0))
        });
        Some(FlowCount { packets, bytes })
    }
}

#[cfg(test)]
mod tests;
