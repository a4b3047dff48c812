//! `ip4-filter-in`, `ip6-filter-in`, `ip4-filter-out`, `ip6-filter-out`: packet filters of
//! interfaces.
//!
//! Take valid packets; the outward ones, routed packets. A packet is looked up in the filter of its
//! ingress or egress interface: the first matching rule decides, else the filter's default. A rule
//! with a rate accepts that much and drops the rest.
//!
//! | output | packets |
//! |---|---|
//! | `ok` | accepted, or the interface has no filter |
//! | punt `local` | passed to the host by a rule |
//! | punt `reset` | rejected: TCP by a reset, anything else by an error "administratively prohibited" (RFC 1812 5.2.7.1, RFC 4443 3.1) |
//! | drop `filtered` | by a rule or the default; or a fragment whose fields could be hidden |
//! | drop `policed` | more than the rule's rate |
//!
//! Neighbour discovery of the link (RFC 4861: hop limit 255) is never filtered inward: a filter
//! without a rule for it would cut the link off, and no host farther away can send it. Rules with
//! ports, flags or ICMP types never match later fragments, fragments that are too short for them,
//! or chains of extension headers that cannot be followed (RFC 1858, RFC 3128, RFC 7112; see
//! [`acl::key`]); the short ones are dropped regardless of the rules.
//!
//! A rule may copy its packets, as they are here, by a port or for a mirror session. Copies count as replicated; those
//! without a buffer are dropped as `no-buffer` or `mirror-lost`.
//!
//! The steps are in the graph only if an interface has a filter.

use std::sync::Arc;

use acl::Family;

use crate::batch::{BATCH_MAX, Batch, ETHERNET, Group};
use crate::filters::{
    Counted, Direction, Effects, FILTER_IN, Filtered, Guard, Guards, Judged, Judgement, Reader,
    TRACKED, Together, ways,
};
use crate::flows::{FlowTable, Passed};
use crate::graph::{Output, Outputs, Step};
use crate::head::is_neighbour_discovery;
use crate::interface::MAX_INTERFACES;
use crate::mask::Mask;
use crate::mirror_sessions::{self, Mirror};
use crate::reason::{DropReason, PuntReason};
use crate::tables::Tables;

pub(super) const OK: usize = Judgement::Pass as usize;
const TO_HOST: usize = Judgement::ToHost as usize;
const FILTERED: usize = Judgement::Drop as usize;

/// In the order of [`Judgement`].
pub(super) const OUTPUTS: &[Output] = &[
    Output::next("ok"),
    Output::Punt(PuntReason::Local),
    Output::Punt(PuntReason::Reset),
    Output::Drop(DropReason::Filtered),
    Output::Drop(DropReason::Policed),
];

/// See the module's documentation. `A`: the packets' family.
pub struct FilterIn<A: Filtered>(Used<A>);

/// See the module's documentation. `A`: the packets' family.
pub struct FilterOut<A: Filtered>(Used<A>);

/// All filters, each with a block for its counters.
struct Used<A: Filtered> {
    filters: Vec<Option<Counted>>,
    reader: Reader<A>,
    tracking: Tracking,
    /// Copies packets for rules; `None`: there are no mirror sessions.
    mirror: Option<Mirror>,
}

/// The filters of interfaces, and the flow table.
struct Tracking {
    direction: Direction,
    guards: Box<Guards>,
    flows: Option<Arc<FlowTable>>,
}

impl<A: Filtered> Used<A> {
    fn new(direction: Direction, tables: &Tables) -> Self {
        let filters = tables.filters.get();
        let guards = Guard::all(&filters, &tables.interfaces.get());
        Self {
            filters: Counted::all(&filters),
            reader: Reader::of(filters.tables.iter().flatten().map(|table| &**table)),
            tracking: Tracking { direction, guards, flows: filters.flows },
            mirror: mirror_of(tables, direction),
        }
    }

    /// Assigns the packets, all of which have this filter, to their outputs.
    fn decide(&mut self, batch: &mut Batch, number: u8, packets: Mask, out: &mut Outputs) {
        let Self { filters, reader, tracking, mirror } = self;
        let hidden = reader.read(batch, packets);
        let tracked = tracking.look_up(reader, batch, packets);
        if number == TRACKED {
            tracking.note(reader, batch, packets, packets);
            out[OK] |= packets;
            return;
        }
        let filter = filters.get(usize::from(number).wrapping_sub(1)).and_then(Option::as_ref);
        let by = (&mut *reader, mirror.as_mut());
        let decided = judge_all(filter, by, batch, (packets, hidden), number);
        if tracked {
            tracking.note(reader, batch, packets, decided[OK] | decided[TO_HOST]);
        }
        out.iter_mut().zip(decided).for_each(|(out, packets)| *out |= packets);
    }
}

/// Returns a maker of copies for rules that name mirror sessions, of packets of this direction; `None`: there are no
/// sessions.
pub(super) fn mirror_of(tables: &Tables, direction: Direction) -> Option<Mirror> {
    let direction = match direction {
        Direction::In => mirror_sessions::Direction::Inward,
        Direction::Out => mirror_sessions::Direction::Outward,
    };
    (!tables.mirrors.get().is_empty()).then(|| tables.mirror(direction))
}

/// Sorts the packets that `reader` has read by this filter's judgement, in the order of [`OUTPUTS`]. Applies
/// the other effects of rules; `mirror` copies packets for sessions. Packets that are `hidden` are dropped.
#[inline(always)]
pub(super) fn judge_all<A: Filtered>(
    filter: Option<&Counted>,
    (reader, mut mirror): (&mut Reader<A>, Option<&mut Mirror>),
    batch: &mut Batch,
    (packets, hidden): (Mask, Mask),
    number: u8,
) -> [Mask; OUTPUTS.len()] {
    let Some(filter) = filter else {
        // No such filter: a defect, which must let nothing pass.
        let mut decided = [Mask::EMPTY; OUTPUTS.len()];
        decided[FILTERED] = packets;
        return decided;
    };
    let frames = packets.slots().map(|slot| batch.frame(slot));
    filter.table.follow_fragments(&mut reader.fields, batch.now, frames);
    let mut found = [0; BATCH_MAX];
    A::classifier(&filter.table).classify(&reader.fields, &mut found);
    let Together { mut decided, places } =
        reader.judge_together(filter, batch, (packets, hidden), &found);
    for (place, slot) in ways(packets, places) {
        let Judged { judgement, effects } =
            reader.judge(filter, found[place], batch, (place, slot));
        if let Some(effects) = effects {
            if effects.sessions != 0
                && let Some(mirror) = &mut mirror
            {
                mirror.copy_by_rules(batch, slot, effects.sessions);
            }
            let passes = judgement == Judgement::Pass;
            apply(&effects, batch, (slot, number), passes);
        }
        decided[judgement as usize] |= Mask::when(true, slot);
    }
    decided
}

impl Direction {
    /// Returns the guard of a packet's ingress or egress interface.
    #[inline(always)]
    fn guard(self, guards: &Guards, batch: &Batch, slot: usize) -> Guard {
        let interface = match self {
            Self::In => batch.interface(slot).index(),
            Self::Out => usize::from(batch.out_interface[slot]),
        };
        guards[interface & (MAX_INTERFACES - 1)]
    }
}

impl Tracking {
    #[inline(always)]
    fn guard(&self, batch: &Batch, slot: usize) -> Guard {
        self.direction.guard(&self.guards, batch, slot)
    }

    /// Looks up the packets' flows if one of their interfaces tracks them. Inward, all are of one
    /// interface.
    #[inline(always)]
    fn look_up<A: Filtered>(&self, reader: &mut Reader<A>, batch: &Batch, packets: Mask) -> bool {
        let (Some(flows), Reader { fields, lookups, .. }) = (&self.flows, reader) else {
            return false;
        };
        let frame = |slot| move || batch.frame(slot);
        if self.direction == Direction::In {
            let Some(guard) = packets.slots().next().map(|slot| self.guard(batch, slot)) else {
                return false;
            };
            if guard.tracks() {
                let packets = packets.slots().map(|slot| (guard.vrf, frame(slot)));
                lookups.look_up(flows, fields, batch.now, packets);
            }
            return guard.tracks();
        }
        let tracked = !packets.filter(|slot| self.guard(batch, slot).tracks()).is_empty();
        if tracked {
            let packets = packets.slots().map(|slot| (self.guard(batch, slot).vrf, frame(slot)));
            lookups.look_up(flows, fields, batch.now, packets);
        }
        tracked
    }

    /// Updates the flows of packets that pass, or enters them.
    fn note<A: Filtered>(&self, reader: &Reader<A>, batch: &Batch, packets: Mask, passing: Mask) {
        if self.direction == Direction::Out {
            return self.note_by(reader, batch, (packets, passing), |slot| self.guard(batch, slot));
        }
        if let Some(guard) = packets.slots().next().map(|slot| self.guard(batch, slot)) {
            self.note_by(reader, batch, (packets, passing), |_| guard);
        }
    }

    /// `guard`: that of the packet in a slot.
    #[inline(always)]
    fn note_by<A: Filtered>(
        &self,
        reader: &Reader<A>,
        batch: &Batch,
        (packets, passing): (Mask, Mask),
        guard: impl Fn(usize) -> Guard,
    ) {
        let Some(flows) = &self.flows else { return };
        for (place, slot) in packets.slots().enumerate() {
            let guard = guard(slot);
            if passing.has(slot) & guard.tracks() {
                let length = batch.len(slot).saturating_sub(ETHERNET);
                let enters = guard.enters[self.direction as usize];
                let packet = Passed { length, enters, now: batch.now };
                reader.lookups.note(flows, place, packet, || batch.frame(slot));
            }
        }
    }
}

impl<A: Filtered> FilterIn<A> {
    /// Looks packets up in the filters of these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(Used::new(Direction::In, tables))
    }
}

impl<A: Filtered> Step for FilterIn<A> {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mut rest = input;
        while let Some(Group { info, packets, .. }) = batch.first_group(rest) {
            rest = rest.without(packets);
            if !info.features.has(FILTER_IN) {
                out[OK] |= packets;
                continue;
            }
            let discovery = if A::OF == Family::Ip6 {
                packets.filter(|i| is_neighbour_discovery(batch.head(i)))
            } else {
                Mask::EMPTY
            };
            out[OK] |= discovery;
            let number = info.features.get(FILTER_IN);
            self.0.decide(batch, number, packets.without(discovery), out);
        }
    }
}

impl<A: Filtered> FilterOut<A> {
    /// Looks packets up in the filters of these tables.
    pub fn new(tables: &Tables) -> Self {
        Self(Used::new(Direction::Out, tables))
    }

    #[inline(always)]
    fn number(&self, batch: &Batch, slot: usize) -> u8 {
        self.0.tracking.guard(batch, slot).numbers[Direction::Out as usize]
    }
}

impl<A: Filtered> Step for FilterOut<A> {
    fn outputs(&self) -> &[Output] {
        OUTPUTS
    }

    fn process(&mut self, batch: &mut Batch, input: Mask, out: &mut Outputs) {
        let mut rest = input;
        while let Some(first) = rest.slots().next() {
            let number = self.number(batch, first);
            let has_it = |slot| self.number(batch, slot) == number;
            let same = rest.filter(has_it);
            rest = rest.without(same);
            if number == 0 {
                out[OK] |= same;
            } else {
                self.0.decide(batch, number, same, out);
            }
        }
    }
}

/// Applies the effects, beyond the decision, of rules of the filter with this number to the packet of this slot.
fn apply(effects: &Effects, batch: &mut Batch, (slot, number): (usize, u8), passes: bool) {
    let &Effects { mark, mirrors, sessions: _, class: _, categories, target } = effects;
    for port in mirrors.ports() {
        batch.mirror(Mask::when(true, slot), port);
    }
    if !passes {
        return;
    }
    mark.apply(batch, slot);
    batch.categories.add(slot, categories);
    if let Some(target) = target {
        batch.steering.add(slot, number, target);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use acl::{Action, Filter, Matches, Rule};

    use super::*;
    use crate::features::Features;
    use crate::filters::{
        FILTER_OUT, FilterSpec, FilterTable, Filters, Mark, Police, SourceLengths, Treatment,
    };
    use crate::frame::Class;
    use crate::interface::{InterfaceId, InterfaceInfo};
    use crate::steps::Classify;
    use crate::testing::{FrameBuilder, PORT_MAC, TestTables, run_step_on};

    fn rule(matches: Matches, action: Action) -> Rule {
        Rule { name: None, line: 0, matches, action }
    }

    /// UDP to port 53 is dropped, to 54 rejected, to 55 given to the host, to 56 passes once; a port other
    /// than these passes.
    fn tables() -> (Arc<Tables>, Arc<FilterTable>) {
        let to = |port: u16| Matches {
            protocol: vec![17],
            to_port: vec![port..=port],
            ..Matches::default()
        };
        let rules = vec![
            rule(to(53), Action::Drop),
            rule(to(54), Action::Reject),
            rule(to(55), Action::ToHost),
            rule(to(56), Action::Accept),
        ];
        let once = Police { rate: 1, burst: 1, bytes: false, per_source: None, colours: None };
        let filter = Filter { name: "f".into(), rules, default: Action::Accept };
        let mut treatments = vec![Treatment::default(); 4];
        treatments[3].police = Some(once);
        let spec = FilterSpec { filter, treatments, targets: vec![] };
        let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
        let tables = TestTables::every_kind();
        let filters = vec![None, Some(table.clone())];
        tables.filters.set(Filters { tables: filters, flows: None, ..Filters::default() });
        (tables, table)
    }

    fn frames(ip6: bool) -> Vec<Vec<u8>> {
        let frame = |port| {
            let frame = if ip6 { FrameBuilder::ip6() } else { FrameBuilder::ip4() };
            frame.udp(1000, port, b"payload").build()
        };
        [53, 54, 55, 56, 56, 57].map(frame).into()
    }

    fn check(step: &mut dyn Step, ip6: bool, prepare: impl Fn(&mut Batch)) {
        let (result, _) = run_step_on(step, &frames(ip6), prepare);
        assert_eq!(result["filtered"], [0]);
        assert_eq!(result["reset"], [1]);
        assert_eq!(result["local"], [2]);
        assert_eq!(result["policed"], [4]);
        assert_eq!(result["ok"], [3, 5]);
    }

    #[test]
    fn rules_decide_inward_and_count() {
        let (tables, table) = tables();
        let inward = |batch: &mut Batch| batch.own.features = Features::NONE.with(FILTER_IN, 2);
        check(&mut FilterIn::<Ipv4Addr>::new(&tables), false, inward);
        let packets =
            |table: &FilterTable| table.hits().iter().map(|hit| hit.packets).collect::<Vec<_>>();
        assert_eq!(packets(&table), [1, 1, 1, 2, 1], "also of a step that is no more");
        let (other, _) = self::tables();
        check(&mut FilterIn::<Ipv6Addr>::new(&other), true, inward);
        let spec = FilterSpec { treatments: vec![Treatment::default(); 4], ..table.spec().clone() };
        let next = FilterTable::new(&spec, Some(&table), &acl::SetReaders::none()).unwrap();
        assert_eq!(packets(&next), [1, 1, 1, 2, 1], "rules that stay keep what they counted");
    }

    /// Six rules with rates by UDP port: of packets, of bytes, by source, some of them hardly reached.
    fn policed() -> Arc<Tables> {
        let rule = |port: u16| {
            let to_port = vec![port..=port];
            rule(Matches { protocol: vec![17], to_port, ..Matches::default() }, Action::Accept)
        };
        let rules: Vec<_> = (50..56).map(rule).collect();
        let filter = Filter { name: "f".into(), rules, default: Action::Drop };
        let treatment = |number: u64| {
            let (bytes, burst) = (number % 2 == 1, [10, 600, 40, 1500, 3, 100][number as usize]);
            let per_source = (number >= 4).then(SourceLengths::default);
            let police = Police { rate: 1, burst, bytes, per_source, colours: None };
            Treatment { police: Some(police), ..Treatment::default() }
        };
        let spec =
            FilterSpec { filter, treatments: (0..6).map(treatment).collect(), targets: vec![] };
        let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
        let tables = TestTables::every_kind();
        tables.filters.set(Filters { tables: vec![Some(table)], ..Filters::default() });
        tables
    }

    #[test]
    fn a_batch_is_policed_as_its_packets_are_one_by_one() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let tables = [(); 2].map(|()| policed());
            let mut steps = tables.each_ref().map(|tables| FilterIn::<Ipv4Addr>::new(tables));
            for _ in 0..4 {
                let count = random.usize(1..=BATCH_MAX);
                let frame = |_| {
                    let port = 50 + random.u16(..6).min(random.u16(..7));
                    let source = format!("192.0.2.{}", random.u8(1..4));
                    let payload = vec![0; random.usize(..60)];
                    FrameBuilder::ip4().source4(&source).udp(1000, port, &payload).build()
                };
                let frames: Vec<_> = (0..count).map(frame).collect();
                let now = 1 << 40;
                let prepare = |batch: &mut Batch| {
                    batch.now = now;
                    batch.own.features = Features::NONE.with(FILTER_IN, 1);
                };
                let (whole, _) = run_step_on(&mut steps[0], &frames, prepare);
                for (slot, frame) in frames.iter().enumerate() {
                    let (one, _) = run_step_on(&mut steps[1], std::slice::from_ref(frame), prepare);
                    for output in ["ok", "policed", "filtered"] {
                        let is_there = whole[output].contains(&slot);
                        assert_eq!(is_there, !one[output].is_empty(), "{output} of slot {slot}");
                    }
                }
            }
        }
    }

    #[test]
    fn each_source_has_its_rate_and_all_packets_count() {
        let once = Police {
            rate: 1,
            burst: 1,
            bytes: false,
            per_source: Some(SourceLengths::default()),
            colours: None,
        };
        let udp = Matches { protocol: vec![17], ..Matches::default() };
        let filter = Filter {
            name: "f".into(),
            rules: vec![rule(udp, Action::Accept)],
            default: Action::Drop,
        };
        let treatments = vec![Treatment { police: Some(once), ..Treatment::default() }];
        let spec = FilterSpec { filter, treatments, targets: vec![] };
        let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
        let tables = TestTables::every_kind();
        tables.filters.set(Filters { tables: vec![Some(table.clone())], ..Filters::default() });
        let from = |host: u8| {
            FrameBuilder::ip4().source4(&format!("192.0.2.{host}")).udp(1, 2, b"x").build()
        };
        let frames = [1, 2, 1, 9, 3, 2, 1].map(from);
        let mut step = FilterIn::<Ipv4Addr>::new(&tables);
        let (result, batch) = run_step_on(&mut step, &frames, |batch| {
            batch.own.features = Features::NONE.with(FILTER_IN, 1);
            batch.now = 1 << 40;
            // The fourth comes by an interface without a filter, so packets have other places than slots.
            batch.interfaces = vec![InterfaceInfo::NONE; 65];
            batch.set_interface(3, InterfaceId::new(64).unwrap());
        });
        assert_eq!((&result["ok"], &result["policed"]), (&vec![0, 1, 3, 4], &vec![2, 5, 6]));
        let bytes = 6 * (batch.len(0) - ETHERNET) as u64;
        assert_eq!((table.hits()[0].packets, table.hits()[0].bytes), (6, bytes));
    }

    #[test]
    fn an_interface_without_a_filter_lets_all_pass_and_one_with_a_missing_filter_none() {
        let (tables, _) = tables();
        for (number, output) in [(0, "ok"), (1, "filtered"), (9, "filtered")] {
            let mut step = FilterIn::<Ipv4Addr>::new(&tables);
            let (result, _) = run_step_on(&mut step, &frames(false), |batch| {
                batch.own.features = Features::NONE.with(FILTER_IN, number);
            });
            assert_eq!(result[output].len(), 6, "{number}");
        }
    }

    #[test]
    fn outward_the_egress_interface_s_filter_counts() {
        let (tables, _) = tables();
        let mut infos = tables.interfaces.get();
        infos[3].features = Features::NONE.with(FILTER_OUT, 2);
        tables.interfaces.set(infos);
        let by = |number: u16| move |batch: &mut Batch| batch.out_interface = [number; BATCH_MAX];
        check(&mut FilterOut::<Ipv4Addr>::new(&tables), false, by(3));
        let (result, _) =
            run_step_on(&mut FilterOut::<Ipv4Addr>::new(&tables), &frames(false), by(4));
        assert_eq!(result["ok"].len(), 6);
    }

    #[test]
    fn packets_of_one_batch_have_their_interfaces_filters() {
        let (tables, _) = tables();
        let mut step = FilterIn::<Ipv4Addr>::new(&tables);
        let (result, _) = run_step_on(&mut step, &frames(false), |batch| {
            let info = InterfaceInfo {
                features: Features::NONE.with(FILTER_IN, 2),
                ..InterfaceInfo::NONE
            };
            batch.interfaces = vec![InterfaceInfo::NONE; 100];
            batch.interfaces[99] = info;
            // The port's own interface has none; two packets arrived on another.
            for slot in [0, 5] {
                batch.set_interface(slot, InterfaceId::new(99).unwrap());
            }
        });
        assert_eq!((&result["filtered"], &result["ok"]), (&vec![0], &vec![1, 2, 3, 4, 5]));
    }

    #[test]
    fn discovery_of_the_link_is_not_filtered() {
        let (tables, _) = tables();
        let mut step = FilterIn::<Ipv6Addr>::new(&tables);
        let message =
            |kind, ttl| FrameBuilder::ip6().protocol(58).payload(&[kind, 0, 0, 0]).ttl(ttl).build();
        let frames = [message(135, 255), message(135, 254), message(128, 255)];
        let (result, _) = run_step_on(&mut step, &frames, |batch| {
            // A missing filter: only exempt packets pass.
            batch.own.features = Features::NONE.with(FILTER_IN, 1);
        });
        assert_eq!((&result["ok"], &result["filtered"]), (&vec![0], &vec![1, 2]));
    }

    #[test]
    fn a_rule_s_mark_is_written_and_the_checksum_stays_right() {
        for (ip6, dscp) in [(false, 46), (false, 0), (true, 46), (true, 0)] {
            let filter = Filter {
                name: "f".into(),
                rules: vec![rule(Matches::default(), Action::Accept)],
                default: Action::Drop,
            };
            let mark = Mark { dscp: Some(dscp), class: None };
            let mark = Treatment { mark, ..Treatment::default() };
            let spec = FilterSpec { filter, treatments: vec![mark], targets: vec![] };
            let table = FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap();
            let tables = TestTables::every_kind();
            let filters = vec![Some(Arc::new(table))];
            tables.filters.set(Filters { tables: filters, flows: None, ..Filters::default() });
            let frame = if ip6 { FrameBuilder::ip6() } else { FrameBuilder::ip4() };
            let mut frame = frame.udp(1, 2, b"x").build();
            // A codepoint next to expedited forwarding, congestion experienced.
            if ip6 {
                (frame[14], frame[15]) = (0x6b, 0x75);
            } else {
                frame[15] = 0xb7;
                FrameBuilder::fix_ip4_checksum(&mut frame);
            }
            let mut expected = frame.clone();
            if ip6 {
                let class = dscp << 2 | 3;
                (expected[14], expected[15]) = (0x60 | class >> 4, class << 4 | 5);
            } else {
                expected[15] = dscp << 2 | 3;
                FrameBuilder::fix_ip4_checksum(&mut expected);
            }
            let inward = |batch: &mut Batch| batch.own.features = Features::NONE.with(FILTER_IN, 1);
            let (result, batch) = match ip6 {
                true => run_step_on(&mut FilterIn::<Ipv6Addr>::new(&tables), &[frame], inward),
                false => run_step_on(&mut FilterIn::<Ipv4Addr>::new(&tables), &[frame], inward),
            };
            assert_eq!((&result["ok"], batch.frame(0)), (&vec![0], &expected[..]), "{ip6} {dscp}");
        }
    }

    #[test]
    fn a_packet_goes_on_until_a_rule_decides_and_takes_along_what_rules_say() {
        let to = |ports: std::ops::RangeInclusive<u16>| Matches {
            protocol: vec![17],
            to_port: vec![ports],
            ..Matches::default()
        };
        let rules = vec![
            rule(to(53..=54), Action::Continue),
            rule(to(54..=55), Action::Continue),
            rule(to(55..=55), Action::Drop),
            rule(to(54..=54), Action::Accept),
        ];
        let mut treatments = vec![Treatment::default(); 4];
        treatments[0].category = Some(0);
        treatments[0].mark = Mark { dscp: Some(8), class: Some(Class::Voice) };
        treatments[1].category = Some(2);
        treatments[1].target = Some(0);
        treatments[3].mark = Mark { dscp: Some(16), class: None };
        let filter = Filter { name: "f".into(), rules, default: Action::Accept };
        let spec = FilterSpec { filter, treatments, targets: vec![] };
        let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
        let tables = TestTables::every_kind();
        tables.filters.set(Filters {
            tables: vec![Some(table.clone())],
            flows: None,
            ..Filters::default()
        });
        let inward = |batch: &mut Batch| batch.own.features = Features::NONE.with(FILTER_IN, 1);
        let mut step = FilterIn::<Ipv4Addr>::new(&tables);
        let (result, batch) = run_step_on(&mut step, &frames(false), inward);
        // To 53, 54, 55, 56, 56, 57.
        assert_eq!((&result["ok"], &result["filtered"]), (&vec![0, 1, 3, 4, 5], &vec![2]));
        let packets = |category| batch.categories.packets(category);
        assert_eq!([0, 1, 2].map(packets), [Mask(0b11), Mask::EMPTY, Mask(0b10)]);
        assert_eq!([0, 1, 3].map(|slot| batch.head(slot)[15] >> 2), [8, 16, 0]);
        let mut batch = batch;
        let class = |slot| Class::of(&batch.burst.take(slot).unwrap());
        // The last rule with a DSCP sets no class.
        assert_eq!([0, 1, 3].map(class), [Class::Voice, Class::Voice, Class::Default]);
        assert_eq!(batch.steering.packets(), Mask(0b10));
        let hits: Vec<_> = table.hits().iter().map(|hits| hits.packets).collect();
        assert_eq!(hits, [2, 2, 1, 1, 4]);
    }

    #[test]
    fn frames_that_are_no_ip_packets_are_judged_where_they_are_sorted() {
        let of = |ethertype: u16, action| {
            rule(Matches { ethertype: vec![ethertype], ..Matches::default() }, action)
        };
        let mut of_stranger = of(0x88cc, Action::Drop);
        of_stranger.matches.from_mac = vec!["02:00:00:00:99:01".parse().unwrap()];
        let rules = vec![
            of_stranger,
            of(0x88cc, Action::ToHost),
            of(0x8847, Action::Accept),
            of(0x8847, Action::Drop),
            of(0x9000, Action::Accept),
            of(0x0806, Action::Drop),
            rule(Matches::default(), Action::Drop),
        ];
        let once = Police { rate: 1, burst: 1, bytes: false, per_source: None, colours: None };
        let mut treatments = vec![Treatment::default(); rules.len()];
        treatments[4].police = Some(once);
        let filter = Filter { name: "f".into(), rules, default: Action::Drop };
        let spec = FilterSpec { filter, treatments, targets: vec![] };
        let table = Arc::new(FilterTable::new(&spec, None, &acl::SetReaders::none()).unwrap());
        let tables = TestTables::every_kind();
        tables.filters.set(Filters {
            tables: vec![None, Some(table.clone())],
            flows: None,
            ..Filters::default()
        });
        let frame = |ethertype, from| {
            let mut frame = FrameBuilder::ethernet(PORT_MAC, ethertype).payload(&[0; 46]).build();
            frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0x99, from]);
            frame
        };
        let frames = [
            frame(0x88cc, 1),
            frame(0x88cc, 2),
            frame(0x8847, 1),
            frame(0x9000, 1),
            frame(0x9000, 1),
            frame(0x0806, 1),
            frame(0x88f7, 1),
            FrameBuilder::ip4().build(),
        ];
        let with = |number| {
            let prepare = move |batch: &mut Batch| {
                batch.own.features = Features::NONE.with(FILTER_IN, number);
            };
            run_step_on(&mut Classify::new(&tables), &frames, prepare).0
        };
        let result = with(2);
        assert_eq!((&result["filtered"], &result["frame-to-host"]), (&vec![0, 5], &vec![1]));
        assert_eq!((&result["policed"], &result["unknown-ethertype"]), (&vec![4], &vec![2, 3, 6]));
        assert_eq!(result["ip4"], [7], "its filter is behind the sorting");
        let packets: Vec<u64> = table.hits().iter().map(|hit| hit.packets).collect();
        assert_eq!(packets, [1, 1, 1, 0, 2, 1, 0, 0]);
        let free = with(0);
        assert_eq!((free["filtered"].len(), free["arp"].len()), (0, 1));
    }
}
