//! Few conditions: each is compared with all packets at once, rule by rule from the last to the first, so that the
//! first matching rule is the last to be written. No tables, no branches on packets.

use ipnet::IpNet;

use super::{
    NO_RULE,
    field::{Field, LISTS_MAX},
    layout,
};
use crate::{
    Filter, Matches,
    classes::FilterAddress,
    conditions::{Number, kinds_by_bits},
    fields::{BATCH, Fields},
};

/// Most tests; with more, tables are faster.
const TESTS_MAX: usize = 56;

/// Most columns other than addresses and services.
const OTHERS_MAX: usize = 5;

/// Addresses of both ends, services, and the others.
const COLUMNS: usize = 3 + OTHERS_MAX;
const SOURCES: usize = 0;
const DESTINATIONS: usize = 1;
/// [`Number::Kind`] above, the destination port below: the usual pair is one test.
const SERVICES: usize = 2;

/// Packets that are compared together: as many as fit into half of the vector registers.
const LANES: usize = 32;

type Lanes = [u32; LANES];

/// A field of all packets.
type Column = [u32; BATCH];

/// See the module's documentation. Its rules have up to [`TESTS_MAX`] tests.
pub(super) struct Sweep<A: FilterAddress> {
    /// Fields beyond addresses and services.
    others: Vec<Field<A>>,
    /// From the last to the first.
    rules: Vec<Conditions>,
    /// The index in `rules` of the first one that matches all packets, as no rule behind it is ever found.
    last: usize,
    /// True if the first rule is usually that of all packets: it asks for the state of connections.
    is_usual: bool,
}

/// A rule: all of its conditions hold.
struct Conditions {
    rule: u32,
    all: Vec<Condition>,
}

impl Conditions {
    /// 0 for each packet that the rule matches.
    #[inline(always)]
    fn misses(&self, columns: &[&Lanes; COLUMNS]) -> Lanes {
        let mut misses = [0; LANES];
        for Condition { column, one, others, is_plain } in &self.all {
            let column = columns[column % COLUMNS];
            if *is_plain {
                // Nearly all are: nothing but this stays in registers from one condition to the next.
                each(&mut misses, |misses, at| *misses |= one.differs(column[at]));
                continue;
            }
            let mut miss = [0; LANES];
            each(&mut miss, |miss, at| *miss = one.miss(column[at]));
            for test in others {
                each(&mut miss, |miss, at| *miss = test.miss(column[at]).min(*miss));
            }
            each(&mut misses, |misses, at| *misses |= miss[at]);
        }
        misses
    }

    /// Returns true if the rule matches so many packets, the first ones.
    #[inline(never)]
    fn fits_all(&self, columns: &[&Lanes; COLUMNS], count: usize) -> bool {
        let misses = self.misses(columns).into_iter().enumerate();
        misses.fold(0, |any, (at, miss)| any | if at < count { miss } else { 0 }) == 0
    }
}

/// One of its tests succeeds.
struct Condition {
    column: usize,
    one: Test,
    others: Vec<Test>,
    /// True if there is one test, of equality.
    is_plain: bool,
}

impl Condition {
    fn new(column: usize, tests: impl IntoIterator<Item = Test>) -> Self {
        let mut tests = tests.into_iter();
        // Without any test no packet fits.
        let one = tests.next().unwrap_or(Test { mask: 0, start: 1, width: 0 });
        let others: Vec<_> = tests.collect();
        Self { column, is_plain: others.is_empty() && one.width == 0, one, others }
    }

    /// Adds another condition, if one test does for both; else returns false.
    fn join(&mut self, other: &Self) -> bool {
        let fits = self.column == other.column && self.is_plain && other.is_plain;
        if fits {
            self.one.mask |= other.one.mask;
            self.one.start |= other.one.start;
        }
        fits
    }
}

/// The bits of `mask` are a number from `start` to `start + width`.
#[derive(Clone, Copy)]
struct Test {
    mask: u32,
    start: u32,
    width: u32,
}

impl<A: FilterAddress> Sweep<A> {
    /// Returns the rules of a layout in this form; gives the layout back if they do not fit into it.
    #[allow(clippy::result_large_err, reason = "the layout is what the caller goes on with")]
    pub fn new(layout: layout::Layout<A>, filter: &Filter) -> Result<Self, layout::Layout<A>> {
        let Some(rules) = conditions(&layout, filter) else { return Err(layout) };
        let last = rules.iter().rposition(|rule| rule.all.is_empty()).unwrap_or(0);
        let fields = layout.numbers.into_iter().map(|number| number.field);
        let others = fields.filter(|field| in_services(field).is_none()).collect();
        let first = rules.last().and_then(|first| filter.rules.get(first.rule as usize));
        let is_usual = first.is_some_and(|first| !first.matches.state.is_empty());
        Ok(Self { others, rules, last, is_usual })
    }

    #[inline]
    pub fn classify(&self, fields: &Fields<A>, found: &mut [u32; BATCH]) {
        let Some([sources, destinations]) = fields.words() else { return };
        self.others.iter().for_each(|field| field.prefetch(fields));
        let services = &fields.services();
        let mut made = [[0; BATCH]; OTHERS_MAX];
        for (field, column) in self.others.iter().zip(&mut made) {
            let mut numbers = [0; BATCH];
            field.all(fields, &mut numbers[..fields.padded()]);
            column.iter_mut().zip(numbers).for_each(|(word, number)| *word = number.into());
        }
        let [a, b, c, d, e] = &made;
        let columns: [&Column; COLUMNS] = [sources, destinations, services, a, b, c, d, e];
        let (blocks, _) = found.as_chunks_mut::<LANES>();
        for (block, found) in blocks.iter_mut().enumerate().take(fields.len().div_ceil(LANES)) {
            let columns = columns.map(|column| &column.as_chunks::<LANES>().0[block]);
            let first = self.rules.last().filter(|_| self.is_usual);
            match first.filter(|first| first.fits_all(&columns, fields.len() - block * LANES)) {
                Some(first) => *found = [first.rule; LANES],
                None => self.sweep(&columns, found),
            }
        }
    }

    #[inline(always)]
    fn sweep(&self, columns: &[&Lanes; COLUMNS], found: &mut Lanes) {
        let mut first = [NO_RULE; LANES];
        for conditions in &self.rules[self.last..] {
            let (rule, misses) = (conditions.rule, conditions.misses(columns));
            each(&mut first, |first, at| {
                let fits = misses[at].min(1).wrapping_sub(1);
                *first = *first & !fits | rule & fits;
            });
        }
        *found = first;
    }

    /// Returns the first rule after `after` that matches the packet at `place`.
    pub fn next(&self, fields: &Fields<A>, place: usize, after: u32) -> u32 {
        let number = |condition: &Condition| match condition.column {
            SOURCES => fields.words().map_or(0, |words| words[SOURCES][place % BATCH]),
            DESTINATIONS => fields.words().map_or(0, |words| words[DESTINATIONS][place % BATCH]),
            SERVICES => fields.service(place),
            other => self.others[other - SERVICES - 1].one(fields, place).into(),
        };
        let holds = |condition: &Condition| {
            let number = number(condition);
            condition.one.miss(number) == 0
                || condition.others.iter().any(|test| test.miss(number) == 0)
        };
        let behind = self.rules.iter().rev().filter(|rule| rule.rule > after);
        behind
            .filter(|rule| rule.all.iter().all(holds))
            .map(|rule| rule.rule)
            .next()
            .unwrap_or(NO_RULE)
    }
}

#[inline(always)]
fn each(lanes: &mut Lanes, change: impl Fn(&mut u32, usize)) {
    lanes.iter_mut().enumerate().for_each(|(at, lane)| change(lane, at));
}

impl Test {
    const fn equal(mask: u32, value: u32) -> Self {
        Self { mask, start: value, width: 0 }
    }

    /// The same of a number that is so many bits higher in its column.
    const fn shifted(self, by: u32) -> Self {
        Self { mask: self.mask << by, start: self.start << by, width: self.width << by }
    }

    /// 0 if the test, which is of equality, succeeds.
    #[inline(always)]
    fn differs(&self, number: u32) -> u32 {
        (number ^ self.start) & self.mask
    }

    /// 0 if the test succeeds. Numbers, unlike the results of comparisons, stay in vectors of full width.
    #[inline(always)]
    fn miss(&self, number: u32) -> u32 {
        let Self { mask, start, width } = *self;
        // The same for all packets, so a jump that the processor predicts.
        if width == 0 {
            return self.differs(number);
        }
        (number & mask).wrapping_sub(start).max(width) - width
    }
}

/// Returns the conditions of a layout's rules, from the last to the first; `None`: they do not fit.
fn conditions<A: FilterAddress>(
    layout: &layout::Layout<A>,
    filter: &Filter,
) -> Option<Vec<Conditions>> {
    let others = layout.numbers.iter().filter(|number| in_services(&number.field).is_none());
    if A::lanes(&[A::Bits::default(); BATCH]).is_none() || others.count() > OTHERS_MAX {
        return None;
    }
    let (mut made, mut tests) = (Vec::new(), 0);
    for (bit, &rule) in layout.rules.iter().enumerate().rev().filter(|(_, rule)| **rule != NO_RULE)
    {
        let matches = &filter.rules.get(rule as usize)?.matches;
        let all = all_of(layout, matches, bit as u32)?;
        tests += all.iter().map(|condition| 1 + condition.others.len()).sum::<usize>();
        if tests > TESTS_MAX {
            return None;
        }
        made.push(Conditions { rule, all });
    }
    Some(made)
}

/// Returns the conditions of the rule of this bit.
fn all_of<A: FilterAddress>(
    layout: &layout::Layout<A>,
    matches: &Matches,
    bit: u32,
) -> Option<Vec<Condition>> {
    let mut all = Vec::new();
    for (column, nets) in [(SOURCES, &matches.from), (DESTINATIONS, &matches.to)] {
        if !nets.is_empty() {
            all.push(Condition::new(column, nets.iter().filter_map(prefix)));
        }
    }
    let mut column = SERVICES;
    for number in &layout.numbers {
        let shift = in_services(&number.field);
        column += usize::from(shift.is_none());
        if let Some(any) = tests(number, matches, bit)? {
            let any = any.into_iter().map(|test| test.shifted(shift.unwrap_or(0)));
            let condition = Condition::new(if shift.is_some() { SERVICES } else { column }, any);
            if !all.iter_mut().any(|known: &mut Condition| known.join(&condition)) {
                all.push(condition);
            }
        }
    }
    Some(all)
}

/// Returns a prefix of IPv4.
fn prefix(net: &IpNet) -> Option<Test> {
    let IpNet::V4(net) = net else { return None };
    Some(Test::equal(net.netmask().to_bits(), net.network().to_bits()))
}

/// Returns the place of a number among the bits of [`SERVICES`], if it is there.
fn in_services<A: FilterAddress>(field: &Field<A>) -> Option<u32> {
    match field {
        Field::Number(Number::Kind) => Some(16),
        Field::Number(Number::ToPort) => Some(0),
        _ => None,
    }
}

/// Returns the tests of a field for the rule of this bit, or no condition. `None`: the field has no such form.
fn tests<A: FilterAddress>(
    of: &layout::NumberLayout<A>,
    matches: &Matches,
    bit: u32,
) -> Option<Option<Vec<Test>>> {
    let equal = |(mask, value): (u16, u16)| Test::equal(mask.into(), value.into());
    Some(match &of.field {
        Field::Number(Number::Kind) => {
            kinds_by_bits(matches).map(|kinds| kinds.into_iter().map(equal).collect())
        }
        Field::Number(Number::Flags) => {
            matches.flags.map(|bits| vec![equal((bits.mask.into(), bits.value.into()))])
        }
        Field::Number(number) => number.allowed(matches).map(|ranges| {
            let width = |start: u16, end: u16| u32::from(end.wrapping_sub(start));
            let test = |(start, end): (u16, u16)| Test {
                mask: 0xffff,
                start: start.into(),
                width: width(start, end),
            };
            ranges.into_iter().map(|range| test(range.into_inner())).collect()
        }),
        // The numbers with the bit of the rule's list.
        Field::Sets(_) => {
            let list = (0..LISTS_MAX).find(|list| of.allows(bit, 1 << list) && !of.allows(bit, 0));
            list.map(|list| vec![equal((1 << list, 1 << list))])
        }
        Field::Macs(_) | Field::Routing(_) => return None,
    })
}
