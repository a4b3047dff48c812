//! Packet filters as used by steps: compiled rules, their policers, and their hits.
//!
//! A filter is compiled once, when it is configured, and shared by all steps that use it. It never
//! changes: a configuration with other rules makes another filter, and its graph uses that one
//! instead (see [`FilterTables`]). Each step counts in its own block; readers get the sum.

mod forwarders;
mod fragments;
mod frames;
mod gate;
mod mark;
mod police;
mod samples;
mod sieve;
mod together;
mod verdicts;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use acl::{Action, Classifier, Fields, Filter, FilterAddress, Head, Key, SetReaders, TooLarge};

pub use self::forwarders::{FORWARDERS_MAX, Forwarders};
use self::fragments::Fragments;
pub(crate) use self::frames::FrameFilters;
pub use self::gate::Gate;
pub(crate) use self::gate::Leaving;
pub use self::mark::Mark;
use self::police::Policer;
pub use self::police::{
    Colour, Colours, Meter, Police, Precolours, SOURCES, SourceKey, SourceLengths,
};
pub use self::samples::Sample;
use self::samples::Samples;
pub use self::sieve::{SIEVED, Sieve};
pub(crate) use self::together::{Together, ways};
use self::verdicts::{Treated, Verdict, Verdicts};
use crate::batch::{BATCH_MAX, Batch, ETHERNET};
use crate::category::CATEGORIES_MAX;
use crate::counters::{Counter, Traffic};
use crate::features::{Feature, Features};
use crate::flows::{FlowTable, Kept, Lookups};
use crate::interface::{InterfaceInfo, MAX_INTERFACES, VrfId};
use crate::lock::lock;
use crate::mask::Mask;
use crate::mirror_sessions::{MirrorTo, SESSIONS_MAX};
use crate::port::PortSet;
use crate::reason::PuntClass;

/// The number of an interface's filter for packets that come by it.
pub const FILTER_IN: Feature = Feature::number("filter_in", 2);

/// The number of an interface's filter for packets that leave by it.
pub const FILTER_OUT: Feature = Feature::number("filter_out", 3);

/// The name of the filter for packets to the router itself.
pub const ROUTER: &str = "to-router";

/// The most filters of a router: their numbers are features of interfaces, of one byte.
pub const FILTERS_MAX: usize = 254;

/// In place of a filter's number: this interface has no filter in this direction, but its other filter matches
/// states, so that packets that pass here must be tracked.
pub const TRACKED: u8 = 255;

/// A filter as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterSpec {
    /// Its rules.
    pub filter: Filter,
    /// For each rule, its treatment of packets beyond the action.
    pub treatments: Vec<Treatment>,
    /// Targets of rules, by the numbers in their treatments.
    pub targets: Vec<Target>,
}

/// The target of a rule that overrides the route of a packet's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The configured next hop of this name.
    NextHop(String),
    /// The destination's route in this VRF.
    Vrf(VrfId),
}

impl FilterSpec {
    /// Returns true if a rule matches the state of connections.
    pub fn asks_for_state(&self) -> bool {
        self.filter.rules.iter().any(|rule| !rule.matches.state.is_empty())
    }

    /// Returns true if a rule selects forwarders for its packets.
    pub fn chooses_forwarders(&self) -> bool {
        self.treatments.iter().any(|treatment| treatment.forwarders.is_some())
    }
}

/// The treatment of a rule's packets beyond its action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Treatment {
    /// The rate limit; `None`: none.
    pub police: Option<Police>,
    /// The mark for its packets.
    pub mark: Mark,
    /// True if some of its packets are logged.
    pub log: bool,
    /// The destination of a copy of each of its packets.
    pub mirror: Option<MirrorTo>,
    /// The class of its packets, in the filter for packets to the router; `None`: their usual one.
    pub class: Option<PuntClass>,
    /// The number of the category of its packets.
    pub category: Option<u8>,
    /// The index in [`FilterSpec::targets`] of its packets' target.
    pub target: Option<u8>,
    /// The forwarders for its packets, on ports that are spread by software or by rules.
    pub forwarders: Option<Forwarders>,
}

/// A rule's hits in one step.
#[derive(Debug, Default)]
pub(crate) struct Hit {
    /// Packets, and bytes of IP packets.
    pub traffic: Traffic,
    /// The last packet's time, in TSC cycles.
    pub last: Counter,
    /// Packets by [`Colour`], if the rule's meter distinguishes colours.
    pub colours: Option<Box<[Counter; 3]>>,
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
    /// Packets by [`Colour`], if the rule's meter distinguishes colours.
    pub colours: [u64; 3],
}

/// The counters of one step: one for each rule, then the default's.
struct Blocks {
    /// Counts of steps that no longer exist, and of the previous filter.
    past: Vec<RuleHits>,
    /// Those of the previous filter.
    taken: Vec<RuleHits>,
    steps: Vec<Arc<Hits>>,
}

/// A filter ready for packets.
pub struct FilterTable {
    spec: FilterSpec,
    asks_for_state: bool,
    /// Headers of first fragments, if a rule needs them; those of the filter that this one replaces.
    fragments: Option<Arc<Fragments>>,
    ip4: Classifier<Ipv4Addr>,
    ip6: Classifier<Ipv6Addr>,
    /// The verdict of each rule, then the default's.
    verdicts: Verdicts,
    policers: Box<[Option<Policer>]>,
    /// Rules for frames that are neither IPv4 nor IPv6.
    frame_rules: Box<[u32]>,
    samples: Samples,
    blocks: Mutex<Blocks>,
}

/// A family of packets that filters look up.
#[expect(private_bounds, reason = "where flows are is nobody else's business")]
pub trait Filtered: FilterAddress + Kept {
    /// Returns the filter's classifier for it.
    fn classifier(table: &FilterTable) -> &Classifier<Self>;

    /// Returns a source address, for rates by source.
    fn source(address: Self::Bits) -> SourceKey;
}

impl Filtered for Ipv4Addr {
    fn classifier(table: &FilterTable) -> &Classifier<Self> {
        &table.ip4
    }

    fn source(address: u32) -> SourceKey {
        SourceKey::Ip4(address)
    }
}

impl Filtered for Ipv6Addr {
    fn classifier(table: &FilterTable) -> &Classifier<Self> {
        &table.ip6
    }

    fn source(address: u128) -> SourceKey {
        SourceKey::Ip6(address)
    }
}

impl FilterTable {
    /// Makes a filter of these rules, which refer to these sets; `before` is the filter that it replaces, whose
    /// counts are taken over by rules of the same name and place.
    ///
    /// # Errors
    /// The filter is too large.
    pub fn new(
        spec: &FilterSpec,
        before: Option<&Self>,
        sets: &SetReaders,
    ) -> Result<Self, TooLarge> {
        let ip4 = Classifier::new(&spec.filter, sets)?;
        let ip6 = Classifier::new(&spec.filter, sets)?;
        let verdicts = spec
            .filter
            .rules
            .iter()
            .zip(&spec.treatments)
            .map(|(rule, treatment)| (rule.action, treated(rule.action, treatment)));
        let default = (spec.filter.default, Treated::No);
        let hz = dpdk::tsc_hz();
        let seed = RandomState::new().hash_one(0);
        let policer = |of: &Treatment| of.police.map(|police| Policer::new(police, hz, seed));
        let policers = spec.treatments.iter().map(policer);
        let taken = match before {
            Some(before) => taken_over(&spec.filter, before),
            None => vec![RuleHits::default(); spec.filter.rules.len() + 1],
        };
        let known = before.and_then(|before| before.fragments.clone());
        let follows = spec.filter.asks_for_upper_layer();
        Ok(Self {
            fragments: follows.then(|| known.unwrap_or_else(|| Arc::new(Fragments::new(hz)))),
            spec: spec.clone(),
            asks_for_state: spec.asks_for_state(),
            ip4,
            ip6,
            verdicts: Verdicts::new(verdicts.chain([default])),
            policers: policers.collect(),
            frame_rules: frame_rules(&spec.filter),
            samples: Samples::new(hz),
            blocks: Mutex::new(Blocks { past: taken.clone(), taken, steps: Vec::new() }),
        })
    }

    /// The configuration of the filter.
    pub fn spec(&self) -> &FilterSpec {
        &self.spec
    }

    /// Lets later fragments match as the first one of their packet. `frames`: for each packet of `fields` its frame.
    /// `now`: in TSC cycles.
    #[inline(always)]
    pub(crate) fn follow_fragments<'p, A: Filtered>(
        &self,
        fields: &mut Fields<A>,
        now: u64,
        frames: impl Iterator<Item = &'p [u8]>,
    ) {
        if fields.fragments() != 0
            && let Some(fragments) = &self.fragments
        {
            fragments.follow(fields, (now, true), frames);
        }
    }

    /// As [`Self::follow_fragments`], for packets that may be judged again: their headers are not recorded.
    pub(crate) fn lend_to_fragments<'p, A: Filtered>(
        &self,
        fields: &mut Fields<A>,
        now: u64,
        frames: impl Iterator<Item = &'p [u8]>,
    ) {
        if let Some(fragments) = &self.fragments {
            fragments.follow(fields, (now, false), frames);
        }
    }

    /// A block for a step to count in.
    pub(crate) fn block(&self) -> Arc<Hits> {
        let treatments = self.spec.treatments.iter().map(Some).chain([None]);
        let has_colours = |of: Option<&Treatment>| of?.police?.colours;
        let hit = |of| Hit { colours: has_colours(of).map(|_| Box::default()), ..Hit::default() };
        let block: Arc<Hits> = treatments.map(hit).collect();
        let mut blocks = lock(&self.blocks);
        let Blocks { past, steps, .. } = &mut *blocks;
        // Counts of steps that no longer exist.
        for gone in steps.extract_if(.., |step| Arc::strong_count(step) == 1) {
            add(past, &gone);
        }
        steps.push(block.clone());
        block
    }

    /// The hits of each rule, then the packets that matched no rule.
    pub fn hits(&self) -> Vec<RuleHits> {
        let blocks = lock(&self.blocks);
        let mut sum = blocks.past.clone();
        blocks.steps.iter().for_each(|step| add(&mut sum, step));
        sum
    }

    /// Takes over what the filter that this one has replaced counted after this one was made.
    fn follow(&self, before: &Self) {
        let again = taken_over(&self.spec.filter, before);
        let mut blocks = lock(&self.blocks);
        let Blocks { past, taken, .. } = &mut *blocks;
        for ((past, taken), again) in past.iter_mut().zip(&*taken).zip(&again) {
            past.packets += again.packets.saturating_sub(taken.packets);
            past.bytes += again.bytes.saturating_sub(taken.bytes);
            past.last = past.last.max(again.last);
            let colours = again.colours.iter().zip(taken.colours);
            let more = colours.map(|(again, taken)| again.saturating_sub(taken));
            past.colours.iter_mut().zip(more).for_each(|(past, more)| *past += more);
        }
        *taken = again;
    }

    /// The next packet for the log.
    pub fn take_sample(&self) -> Option<Sample> {
        self.samples.take()
    }

    /// Begins or ends the logging of a rule's packets by a command, whatever the configuration says; the number of
    /// rules stands for the default.
    pub fn watch(&self, rule: u32, on: bool) {
        self.verdicts.watch(rule, on);
    }

    /// Stores a packet for the log, if its rule is logged and there is room.
    #[inline]
    pub(crate) fn log(&self, rule: u32, now: u64, sample: impl FnOnce() -> Sample) {
        let treatment = self.spec.treatments.get(rule as usize);
        if treatment.is_some_and(|treatment| treatment.log) || self.verdict(rule).is_watched {
            self.samples.offer(now, sample);
        }
    }

    /// Returns the verdict of this rule.
    #[inline]
    pub(crate) fn verdict(&self, rule: u32) -> Verdict {
        self.verdicts.get(rule)
    }

    /// The meter of a rule.
    #[inline]
    fn policer(&self, rule: u32) -> Option<&Policer> {
        self.policers.get(rule as usize)?.as_ref()
    }

    /// Takes a packet of this length in bytes and source from the rule's rate, at `now` in TSC cycles; green without
    /// one.
    #[inline]
    pub(crate) fn admits(&self, rule: u32, source: SourceKey, length: usize, now: u64) -> Colour {
        self.policer(rule).map_or(Colour::Green, |policer| policer.admits(source, length, now))
    }

    /// [`Self::admits`] for a packet that arrives with a colour.
    #[inline]
    fn colour(&self, rule: u32, source: SourceKey, packet: (usize, Colour), now: u64) -> Colour {
        self.policer(rule).map_or(Colour::Green, |policer| policer.colour(source, packet, now))
    }
}

fn treated(action: Action, treatment: &Treatment) -> Treated {
    let only_policed = Treatment { police: treatment.police, ..Treatment::default() };
    let has_colours = treatment.police.is_some_and(|police| police.colours.is_some());
    match treatment {
        _ if !action.is_terminal() => Treated::Yes,
        _ if *treatment == Treatment::default() => Treated::No,
        _ if *treatment == only_policed && !has_colours => Treated::OnlyPoliced,
        _ => Treated::Yes,
    }
}

/// Returns the indexes of rules for frames that are neither IPv4 nor IPv6.
fn frame_rules(filter: &Filter) -> Box<[u32]> {
    let rules = (0..).zip(&filter.rules).filter(|(_, rule)| !rule.matches.is_ip());
    rules.map(|(place, _)| place).collect()
}

fn add(sum: &mut [RuleHits], block: &Hits) {
    for (sum, hit) in sum.iter_mut().zip(block) {
        sum.packets += hit.traffic.packets.get();
        sum.bytes += hit.traffic.bytes.get();
        sum.last = sum.last.max(hit.last.get());
        if let Some(colours) = &hit.colours {
            sum.colours.iter_mut().zip(&**colours).for_each(|(sum, colour)| *sum += colour.get());
        }
    }
}

/// Returns the counts of this filter's rules in the previous filter: named rules by name, others by matches and
/// action.
fn taken_over(filter: &Filter, before: &FilterTable) -> Vec<RuleHits> {
    let old = before.hits();
    let identity = |rule: &acl::Rule| match &rule.name {
        Some(name) => (Some(name.clone()), String::new()),
        None => (None, format!("{} {:?}", rule.matches, rule.action)),
    };
    let rules = before.spec.filter.rules.iter().map(identity);
    let known: HashMap<_, _> = rules.zip(&old).rev().collect();
    let found = |rule| known.get(&identity(rule)).map_or(RuleHits::default(), |hits| **hits);
    filter.rules.iter().map(found).chain(old.last().copied()).collect()
}

/// The filters of a router. Steps read them when they are made: the maker of graphs announces the
/// new filters before it makes graphs, and confirms afterwards that they are in use.
#[derive(Default)]
pub struct FilterTables {
    next: Mutex<Filters>,
    in_use: Mutex<InUse>,
    /// Number of changes of the filters in use.
    changes: AtomicU64,
}

/// Filters in use.
#[derive(Default)]
struct InUse {
    filters: Filters,
    guards: Option<Arc<Guards>>,
}

/// The filters and their flow table.
#[derive(Clone, Default)]
pub struct Filters {
    /// By their numbers less one.
    pub tables: Vec<Option<Arc<FilterTable>>>,
    /// The flow table, if a filter needs one.
    pub flows: Option<Arc<FlowTable>>,
    /// The names of categories, by their numbers.
    pub categories: Vec<String>,
}

/// A filter, and a block to count its hits in.
#[derive(Clone)]
pub(crate) struct Counted {
    pub table: Arc<FilterTable>,
    pub hits: Arc<Hits>,
}

impl Counted {
    /// Creates it with a block of its own.
    pub fn new(table: Arc<FilterTable>) -> Self {
        Self { hits: table.block(), table }
    }

    /// Creates all of a router's, by their numbers less one.
    pub fn all(filters: &Filters) -> Vec<Option<Self>> {
        filters.tables.iter().cloned().map(|table| table.map(Self::new)).collect()
    }
}

impl FilterTables {
    /// Returns the filters for steps that are made now.
    pub fn get(&self) -> Filters {
        lock(&self.next).clone()
    }

    /// Sets the filters for steps that are made from now on.
    pub fn set(&self, filters: Filters) {
        *lock(&self.next) = filters;
    }

    /// Confirms that the forwarders use the filters set last, with these interfaces: all other
    /// users follow.
    pub fn use_next(&self, interfaces: &[InterfaceInfo]) -> Filters {
        let filters = self.get();
        let guards = Guard::all(&filters, interfaces);
        let guarded = guards.iter().any(|guard| guard.numbers != [0; 2] || guard.tracks());
        let in_use = InUse { filters: filters.clone(), guards: guarded.then(|| guards.into()) };
        let mut before = lock(&self.in_use);
        let before = std::mem::replace(&mut *before, in_use);
        for table in filters.tables.iter().flatten() {
            let mut known = before.filters.tables.iter().flatten();
            let replaced = known.find(|old| old.spec.filter.name == table.spec.filter.name);
            if let Some(old) = replaced.filter(|old| !Arc::ptr_eq(old, table)) {
                table.follow(old);
            }
        }
        self.changes.fetch_add(1, Ordering::Release);
        filters
    }

    /// Returns the number of changes of the filters in use.
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The filters in use, and their guards of interfaces; `None` without any.
    fn in_use(&self) -> Option<(Filters, Arc<Guards>)> {
        let in_use = lock(&self.in_use);
        Some((in_use.filters.clone(), in_use.guards.clone()?))
    }
}

/// Of all interfaces, by their numbers.
pub(crate) type Guards = [Guard; MAX_INTERFACES];

/// The filters of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// The number of its filter for each direction, 0: none.
    pub numbers: [u8; 2],
    /// By direction: true if packets that pass enter their flows, because the filter of the other
    /// direction matches states.
    pub enters: [bool; 2],
    /// Its VRF.
    pub vrf: u16,
}

/// The direction of packets at an interface, inward or outward; index into a [`Guard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    In = 0,
    Out = 1,
}

impl Guard {
    /// Of all interfaces, by their numbers.
    pub fn all(filters: &Filters, interfaces: &[InterfaceInfo]) -> Box<Guards> {
        let asks = |number: u8| {
            let table = filters.tables.get(usize::from(number).wrapping_sub(1));
            table.and_then(Option::as_ref).is_some_and(|table| table.asks_for_state)
        };
        // The router's own packets must be tracked if the filter for packets to it matches states.
        let router_asks = filters
            .tables
            .iter()
            .flatten()
            .any(|table| table.asks_for_state && table.spec.filter.name == ROUTER);
        let mut guards = Box::new([Self::default(); MAX_INTERFACES]);
        for (guard, InterfaceInfo { features, vrf, .. }) in guards.iter_mut().zip(interfaces) {
            guard.numbers = [FILTER_IN, FILTER_OUT].map(|of| Features::get(*features, of));
            guard.enters = [asks(guard.numbers[1]), asks(guard.numbers[0]) || router_asks];
            guard.vrf = vrf.index() as u16;
        }
        guards
    }

    /// Returns true if packets that pass must be tracked.
    #[inline(always)]
    pub fn tracks(&self) -> bool {
        self.enters[0] | self.enters[1]
    }
}

/// A filter's judgement of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Judgement {
    /// Let the packet continue.
    #[default]
    Pass,
    /// Give the packet to the host.
    ToHost,
    /// Reject the packet with an error to its sender.
    Reject,
    /// Drop the packet.
    Drop,
    /// Drop the packet because it exceeds its rule's rate.
    Police,
}

/// The packets that are looked up: their fields, and their flows.
pub(crate) struct Reader<A: Filtered> {
    pub fields: Box<Fields<A>>,
    pub lookups: Lookups<A>,
    /// A filter matches priorities of VLAN tags.
    asks_for_priorities: bool,
}

impl<A: Filtered> Reader<A> {
    /// Creates it for packets that are looked up in these filters.
    pub fn of<'f>(filters: impl Iterator<Item = &'f FilterTable>) -> Self {
        let mut reader = Self {
            fields: Box::default(),
            lookups: Lookups::default(),
            asks_for_priorities: false,
        };
        for FilterTable { spec: FilterSpec { filter, .. }, .. } in filters {
            reader.fields.want(filter);
            reader.asks_for_priorities |= filter.asks_for_priorities();
        }
        reader
    }

    /// Reads the fields of packets of a batch; returns those whose fields are hidden.
    #[inline(always)]
    pub fn read(&mut self, batch: &Batch, packets: Mask) -> Mask {
        self.fields.clear();
        let head = |slot| Head {
            bytes: batch.head(slot),
            length: batch.lens()[slot & (BATCH_MAX - 1)],
            interface: batch.interface(slot).index() as u16,
        };
        let odd = match packets.as_first() {
            Some(count) => self.fields.push_heads(count, (0..count).map(head)),
            None => {
                let count = packets.count() as usize;
                self.fields.push_heads(count, packets.slots().map(head))
            }
        };
        let hidden = match odd {
            0 => Mask::EMPTY,
            _ => self.read_odd(batch, packets, Mask(odd)),
        };
        if self.asks_for_priorities {
            for (place, slot) in packets.slots().enumerate() {
                self.fields.set_priority(place, batch.priority(slot));
            }
        }
        hidden
    }

    /// Reads the packets at the places of `odd`; returns those whose fields are hidden.
    #[inline(never)]
    fn read_odd(&mut self, batch: &Batch, packets: Mask, odd: Mask) -> Mask {
        let mut hidden = Mask::EMPTY;
        for (place, slot) in packets.slots().enumerate().filter(|(place, _)| odd.has(*place)) {
            let frame = (batch.frame(slot), batch.len(slot));
            let interface = batch.interface(slot).index() as u16;
            hidden |= Mask::when(self.fields.put_frame(place, frame, interface), slot);
        }
        hidden
    }

    /// Returns the filter's judgement of the packet in this slot, the one at this place among those read;
    /// `rule` is the first rule that matches.
    #[inline(always)]
    pub fn judge(
        &self,
        filter: &Counted,
        rule: u32,
        batch: &Batch,
        (place, slot): (usize, usize),
    ) -> Judged {
        let packet = self.hitting(rule, batch, (place, slot));
        if filter.table.verdict(rule).is_only_policed {
            return Judged { judgement: self.judge_policed(filter, &packet), effects: None };
        }
        filter.table.judge(&filter.hits, &packet, || {
            let interface = batch.interface(slot).index() as u16;
            let key = A::key(batch.frame(slot), batch.len(slot), interface);
            key.with_priority(batch.priority(slot))
        })
    }

    /// Returns the rules that the packet at this place meets: from its first on, each that lets it continue, and the
    /// last one; the number of rules stands for the default.
    pub fn met<'r>(
        &'r self,
        table: &'r FilterTable,
        place: usize,
        first: u32,
    ) -> impl Iterator<Item = u32> + 'r {
        std::iter::successors(Some(first), move |&rule| {
            let continues = table.verdict(rule).action == Action::Continue;
            let is_rule = (rule as usize) < table.spec.treatments.len();
            let next = || A::classifier(table).next(&self.fields, place, rule);
            (continues && is_rule).then(next)
        })
    }

    /// [`Self::judge`] for a rule that only charges its rate.
    fn judge_policed(
        &self,
        Counted { table, hits }: &Counted,
        packet: &Hitting<'_, A>,
    ) -> Judgement {
        count(hits, packet.rule, packet);
        let source = A::source(self.fields.source(packet.place));
        match table.admits(packet.rule, source, packet.length, packet.now) {
            Colour::Red => Judgement::Police,
            _ => judgement(table.verdict(packet.rule).action),
        }
    }

    /// Returns the packet in a slot, the one at this place among those read, as one that matches a rule.
    #[inline(always)]
    fn hitting(&self, rule: u32, batch: &Batch, (place, slot): (usize, usize)) -> Hitting<'_, A> {
        let length = batch.len(slot).saturating_sub(ETHERNET);
        Hitting { fields: &self.fields, place, rule, length, now: batch.now }
    }
}

/// The judgement of a packet.
pub(crate) struct Judged {
    pub judgement: Judgement,
    /// Further effects of rules on the packet, if any.
    pub effects: Option<Effects>,
}

/// The effects of the matched rules on a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// The mark for the packet.
    pub mark: Mark,
    /// The ports that send copies of it, in its state before the mark.
    pub mirrors: PortSet,
    /// The mirror sessions for which it is copied, one bit each.
    pub sessions: u64,
    /// Its class among packets for the router.
    pub class: Option<PuntClass>,
    /// Its categories, one bit each.
    pub categories: u16,
    /// The index of its target in [`FilterSpec::targets`].
    pub target: Option<u8>,
}

impl Effects {
    /// Adds the effects of another matching rule, whose meter gives the packet this colour.
    fn add(&mut self, treatment: &Treatment, colour: Colour) {
        let Treatment { police, mark, log: _, mirror, class, category, target, forwarders: _ } =
            treatment;
        self.mark = police.map_or(Mark::NONE, |police| police.mark(colour)).or(*mark).or(self.mark);
        match mirror {
            Some(MirrorTo::Port(port)) => self.mirrors.set(*port, true),
            Some(MirrorTo::Session(number)) => {
                self.sessions |= 1 << (usize::from(*number) % SESSIONS_MAX)
            }
            None => {}
        }
        self.class = class.or(self.class);
        self.categories |=
            category.map_or(0, |category| 1 << (usize::from(category) % CATEGORIES_MAX));
        self.target = target.or(self.target);
    }
}

/// A packet that matches a rule.
pub(crate) struct Hitting<'a, A: Filtered> {
    /// The fields of its batch's packets, and its index among them.
    pub fields: &'a Fields<A>,
    pub place: usize,
    /// The first matching rule.
    pub rule: u32,
    /// Bytes of the IP packet.
    pub length: usize,
    /// The time in TSC cycles.
    pub now: u64,
}

impl FilterTable {
    /// Counts a packet for its rule, charges it to the rule's rate, and returns its judgement. `key`: for the log.
    #[inline(always)]
    pub(crate) fn judge<A: Filtered>(
        &self,
        hits: &Hits,
        packet: &Hitting<'_, A>,
        key: impl Fn() -> Key,
    ) -> Judged {
        let verdict = self.verdict(packet.rule);
        if verdict.is_treated {
            return self.treat(hits, packet, key);
        }
        count(hits, packet.rule, packet);
        Judged { judgement: judgement(verdict.action), effects: None }
    }

    /// [`Self::judge`] for a rule with a treatment, and for the rules after it if it lets the packet continue
    /// to them.
    fn treat<A: Filtered>(
        &self,
        hits: &Hits,
        packet: &Hitting<'_, A>,
        key: impl Fn() -> Key,
    ) -> Judged {
        let &Hitting { fields, place, mut rule, length, now } = packet;
        let source = A::source(fields.source(place));
        let mut effects = Effects::default();
        let judgement = loop {
            count(hits, rule, packet);
            let treatment = self.spec.treatments.get(rule as usize);
            let police = treatment.and_then(|treatment| treatment.police);
            let before = police.map_or(Colour::Green, |police| police.precolour(|| key().dscp()));
            let colour = self.colour(rule, source, (length, before), now);
            count_colour(hits, rule, colour);
            let is_policed = police.is_some_and(|police| police.drops(colour));
            let family = A::OF;
            self.log(rule, now, || Sample { rule, family, key: key(), is_policed });
            if let Some(treatment) = treatment {
                effects.add(treatment, colour);
            }
            match self.verdict(rule).action {
                _ if is_policed => break Judgement::Police,
                Action::Continue => rule = A::classifier(self).next(fields, place, rule),
                action => break judgement(action),
            }
        };
        Judged { judgement, effects: Some(effects) }
    }
}

#[inline(always)]
fn count<A: Filtered>(hits: &Hits, rule: u32, packet: &Hitting<'_, A>) {
    count_all(hits, rule, (1, packet.length), packet.now);
}

/// Counts so many packets of so many bytes together for a rule, at `now` in TSC cycles.
#[inline(always)]
fn count_all(hits: &Hits, rule: u32, (packets, bytes): (u32, usize), now: u64) {
    if let Some(hit) = hits.get(rule as usize) {
        hit.traffic.packets.add(packets.into());
        hit.traffic.bytes.add(bytes as u64);
        hit.last.set(now);
    }
}

/// Counts a packet for its colour, if the rule's meter distinguishes colours.
fn count_colour(hits: &Hits, rule: u32, colour: Colour) {
    let colours = hits.get(rule as usize).and_then(|hit| hit.colours.as_ref());
    if let Some(counter) = colours.and_then(|of| of.get(colour as usize)) {
        counter.add(1);
    }
}

/// Returns the judgement of this action.
#[inline(always)]
fn judgement(action: Action) -> Judgement {
    match action {
        // A rule that continues is followed by another, or by the default.
        Action::Accept | Action::Continue => Judgement::Pass,
        Action::Drop => Judgement::Drop,
        Action::Reject => Judgement::Reject,
        Action::ToHost => Judgement::ToHost,
    }
}
