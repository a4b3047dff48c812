//! The layout of a classifier: the bit of each rule, and the classes of each field with their bits.

use std::collections::{BTreeMap, HashMap};

use fib::{Bits, Prefix};
use ipnet::IpNet;

use super::field::{
    End, Field, LISTS_MAX, MACS_MAX, MacField, ROUTING_TYPES_MAX, RoutingField, SETS_VALUES,
    SetLists,
};
use super::{MORE, NO_RULE, RULES_MAX, TooLarge, WORD};
use crate::{
    Filter, Matches, SetReaders,
    classes::{AddressClasses, FilterAddress},
    conditions::{Number, Ranges},
};

/// Most classes of addresses: the number of next hops in a route table.
const ADDRESS_CLASSES_MAX: usize = fib::MAX_NEXT_HOP as usize;

/// Most bytes of one field's bits.
const FIELD_BYTES_MAX: usize = 256 << 20;

/// Fields and classes of the rules of one family.
pub(super) struct Layout<A: FilterAddress> {
    /// The rule of each bit, [`NO_RULE`] for the bits that fill up a word.
    pub rules: Vec<u32>,
    /// `None`: no rule uses it.
    pub source: Option<AddressLayout<A>>,
    pub destination: Option<AddressLayout<A>>,
    /// Numbers used by some rule.
    pub numbers: Vec<NumberLayout<A>>,
}

/// Source or destination.
pub(super) struct AddressLayout<A: FilterAddress> {
    /// In order; addresses in none of the prefixes have class 0.
    pub prefixes: Vec<(Prefix<A>, u16)>,
    /// By class.
    pub bits: Bitmaps,
}

/// A number, or the sets of an address.
pub(super) struct NumberLayout<A: FilterAddress> {
    pub field: Field<A>,
    /// The first value and the class of each range, from 0 on.
    pub ranges: Vec<(u16, u16)>,
    /// By class.
    pub bits: Bitmaps,
}

impl<A: FilterAddress> NumberLayout<A> {
    /// Returns true if the rule of a bit allows a value.
    pub fn allows(&self, bit: u32, value: u16) -> bool {
        let at = self.ranges.partition_point(|(start, _)| *start <= value);
        self.ranges
            .get(at.wrapping_sub(1))
            .is_some_and(|(_, class)| is_set(self.bits.row(*class), bit))
    }
}

/// Selects the addresses of a rule for a field.
type Pick = fn(&Matches) -> &[IpNet];

impl<A: FilterAddress> Layout<A> {
    pub fn new(filter: &Filter, sets: &SetReaders) -> Result<Self, TooLarge> {
        let possible: Vec<u32> = (0u32..)
            .zip(&filter.rules)
            .filter(|(_, rule)| is_possible::<A>(&rule.matches))
            .map(|(place, _)| place)
            .collect();
        if possible.len() > RULES_MAX {
            let way_out = "split it, or join rules that differ in a list";
            return Err(too_large::<A>(filter, "rules", possible.len(), RULES_MAX, way_out));
        }
        let rules = match possible.len() {
            ..=MORE => words(possible).collect(),
            _ => near_each_other::<A>(filter, possible),
        };
        let matches: Vec<Option<&Matches>> =
            rules.iter().map(|&rule| Some(&filter.rules.get(rule as usize)?.matches)).collect();
        let address = |pick: Pick, what| address_layout(filter, &matches, pick, what);
        let mut numbers = Vec::new();
        for number in Number::ALL {
            let allowed = |matches: &Matches| number.allowed(matches);
            if let Some((ranges, bits)) = ranges::<A>(filter, &matches, number.values(), allowed)? {
                numbers.push(NumberLayout { field: Field::Number(number), ranges, bits });
            }
        }
        for end in [End::Source, End::Destination] {
            let Some(of) = MacField::new(end, &matches) else { continue };
            if of.len() > MACS_MAX {
                let way_out = "split the filter, or match addresses";
                return Err(too_large::<A>(filter, "different MACs", of.len(), MACS_MAX, way_out));
            }
            let allowed = |matches: &Matches| of.allowed(matches);
            if let Some((ranges, bits)) = ranges::<A>(filter, &matches, of.len() + 1, allowed)? {
                numbers.push(NumberLayout { field: Field::Macs(of), ranges, bits });
            }
        }
        if let Some(of) = RoutingField::new(&matches) {
            if of.len() > ROUTING_TYPES_MAX {
                let way_out = "match extension = \"routing\", or split the filter";
                let (what, count) = ("different types of routing headers", of.len());
                return Err(too_large::<A>(filter, what, count, ROUTING_TYPES_MAX, way_out));
            }
            let allowed = |matches: &Matches| of.allowed(matches);
            if let Some((ranges, bits)) = ranges::<A>(filter, &matches, of.values(), allowed)? {
                numbers.push(NumberLayout { field: Field::Routing(of), ranges, bits });
            }
        }
        for end in [End::Source, End::Destination] {
            let of = SetLists::<A>::new(end, &matches, sets);
            if of.lists.len() > LISTS_MAX {
                let way_out = "use the same lists in several rules, or split the filter";
                let (what, count) = (end.what(), of.lists.len());
                return Err(too_large::<A>(filter, what, count, LISTS_MAX, way_out));
            }
            let allowed = |matches: &Matches| of.allowed(matches);
            if let Some((ranges, bits)) = ranges::<A>(filter, &matches, SETS_VALUES, allowed)? {
                numbers.push(NumberLayout { field: Field::Sets(of.made), ranges, bits });
            }
        }
        Ok(Self {
            source: address(|matches| &matches.from, "different source addresses")?,
            destination: address(|matches| &matches.to, "different destination addresses")?,
            numbers,
            rules,
        })
    }
}

pub(super) fn too_large<A: FilterAddress>(
    filter: &Filter,
    what: &'static str,
    count: usize,
    most: usize,
    way_out: &'static str,
) -> TooLarge {
    TooLarge { filter: filter.name.clone(), family: A::OF, what, count, most, way_out }
}

/// Builds the classes of a field's addresses for lookups.
pub(super) fn classes<A: FilterAddress>(
    prefixes: &[(Prefix<A>, u16)],
    filter: &Filter,
) -> Result<AddressClasses<A>, TooLarge> {
    AddressClasses::new(prefixes).map_err(|error| {
        let most = match error {
            fib::Error::Full { limit, .. } => limit,
            _ => prefixes.len(),
        };
        too_large::<A>(
            filter,
            "prefixes of its lists",
            prefixes.len(),
            most,
            "give it fewer prefixes",
        )
    })
}

/// Returns true if a packet of the family can match.
fn is_possible<A: FilterAddress>(matches: &Matches) -> bool {
    matches.allows(A::OF)
        && Number::ALL
            .iter()
            .all(|number| number.allowed(matches).is_none_or(|some| !some.is_empty()))
}

/// Pads rules to whole words.
fn words(rules: Vec<u32>) -> impl Iterator<Item = u32> {
    let missing = rules.len().next_multiple_of(WORD) - rules.len();
    rules.into_iter().chain(std::iter::repeat_n(NO_RULE, missing))
}

/// Groups rules that are close to each other in address space into words. Those of a word all have
/// source addresses, or none; likewise destinations. Within a word they are in the filter's order.
fn near_each_other<A: FilterAddress>(filter: &Filter, mut rules: Vec<u32>) -> Vec<u32> {
    rules.sort_by_cached_key(|&rule| nearness::<A>(&filter.rules[rule as usize].matches));
    let same = |one: &u32, other: &u32| {
        let any = |rule: u32| {
            let Matches { from, to, .. } = &filter.rules[rule as usize].matches;
            (from.is_empty(), to.is_empty())
        };
        any(*one) == any(*other)
    };
    let groups = rules.chunk_by_mut(same).flat_map(|group| group.chunks_mut(WORD));
    let in_order = |word: &mut [u32]| {
        word.sort_unstable();
        word.to_vec()
    };
    groups.flat_map(|word| words(in_order(word))).collect()
}

/// Sort key of rules by their place in address space: short prefixes, which hold many addresses,
/// separately, then by the address of the longer prefix.
fn nearness<A: FilterAddress>(matches: &Matches) -> impl Ord {
    let first = |nets: &[IpNet]| nets.iter().find_map(A::prefix);
    let (from, to) = (first(&matches.from), first(&matches.to));
    let length = |prefix: Option<Prefix<A>>| prefix.map_or(0, |prefix| prefix.len());
    // Shorter than a site's, than a network's, or longer; IPv6 networks end at /64.
    let size = |prefix| match u32::from(length(prefix)) * 32 / u32::from(A::Bits::WIDTH.min(64)) {
        ..16 => 0,
        16..22 => 1,
        _ => 2,
    };
    let by_source = length(from) > length(to);
    let (one, other) = if by_source { (from, to) } else { (to, from) };
    let any = (matches.from.is_empty(), matches.to.is_empty());
    (any, by_source, size(one), size(other), one, other)
}

/// Rows of bits, one for each class; a bit for each rule.
pub(super) struct Bitmaps {
    /// Words in a row.
    pub words: usize,
    pub bits: Vec<u64>,
}

impl Bitmaps {
    fn new(words: usize) -> Self {
        Self { words, bits: Vec::new() }
    }

    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        self.bits.chunks_exact(self.words)
    }

    fn row(&self, class: u16) -> &[u64] {
        &self.bits[usize::from(class) * self.words..][..self.words]
    }

    /// Adds a row; returns its class.
    fn push<A: FilterAddress>(&mut self, row: &[u64], filter: &Filter) -> Result<u16, TooLarge> {
        self.bits.extend(row);
        let bytes = self.bits.len() * size_of::<u64>();
        if bytes > FIELD_BYTES_MAX {
            let way_out = "rules that differ in one list only are one rule with a longer list";
            return Err(too_large::<A>(filter, "bytes of tables", bytes, FIELD_BYTES_MAX, way_out));
        }
        Ok((self.bits.len() / self.words - 1) as u16)
    }
}

fn set(row: &mut [u64], bit: u32, on: bool) {
    let word = &mut row[bit as usize / WORD];
    *word = *word & !(1 << (bit % 64)) | u64::from(on) << (bit % 64);
}

fn is_set(row: &[u64], bit: u32) -> bool {
    row[bit as usize / WORD] >> (bit % 64) & 1 != 0
}

/// Adds rows for the rules without a condition on the field, by [`set`].
fn unasked<'a>(rules: &[Option<&'a Matches>], is_asked: impl Fn(&'a Matches) -> bool) -> Vec<u64> {
    let mut row = vec![0; rules.len() / WORD];
    for (bit, matches) in (0..).zip(rules) {
        set(&mut row, bit, matches.is_some_and(|matches| !is_asked(matches)));
    }
    row
}

fn address_layout<A: FilterAddress>(
    filter: &Filter,
    rules: &[Option<&Matches>],
    pick: Pick,
    what: &'static str,
) -> Result<Option<AddressLayout<A>>, TooLarge> {
    // A prefix follows those that hold it.
    let mut asked: BTreeMap<Prefix<A>, Vec<u32>> = BTreeMap::new();
    for (bit, matches) in (0..).zip(rules) {
        for prefix in matches.iter().flat_map(|matches| pick(matches)).filter_map(A::prefix) {
            asked.entry(prefix).or_default().push(bit);
        }
    }
    if asked.is_empty() {
        return Ok(None);
    }
    let mut bits = Bitmaps::new(rules.len() / WORD);
    let base = bits.push::<A>(&unasked(rules, |matches| !pick(matches).is_empty()), filter)?;
    let mut made: HashMap<(u16, Vec<u32>), u16> = HashMap::new();
    let mut around: Vec<(Prefix<A>, u16)> = Vec::new();
    let mut prefixes = Vec::with_capacity(asked.len());
    for (prefix, mut own) in asked {
        while around.pop_if(|(outer, _)| outer.last_bits() < prefix.bits()).is_some() {}
        let outer = around.last().map_or(base, |(_, class)| *class);
        own.dedup();
        own.retain(|&bit| !is_set(bits.row(outer), bit));
        let class = match made.get(&(outer, own.clone())) {
            _ if own.is_empty() => outer,
            Some(&class) => class,
            None => {
                let mut row = bits.row(outer).to_vec();
                own.iter().for_each(|&bit| set(&mut row, bit, true));
                let class = bits.push::<A>(&row, filter)?;
                if usize::from(class) > ADDRESS_CLASSES_MAX {
                    let way_out = "addresses that the same rules are about belong into one list";
                    return Err(too_large::<A>(
                        filter,
                        what,
                        class.into(),
                        ADDRESS_CLASSES_MAX,
                        way_out,
                    ));
                }
                made.insert((outer, own), class);
                class
            }
        };
        around.push((prefix, class));
        prefixes.push((prefix, class));
    }
    Ok(Some(AddressLayout { prefixes, bits }))
}

/// The first value and the class of each range, and the classes' bits.
type Ranged = (Vec<(u16, u16)>, Bitmaps);

/// Returns the ranges of a number's values that rules treat alike; `None`: no rule uses the number.
fn ranges<A: FilterAddress>(
    filter: &Filter,
    rules: &[Option<&Matches>],
    values: usize,
    allowed: impl Fn(&Matches) -> Option<Ranges>,
) -> Result<Option<Ranged>, TooLarge> {
    // Values at which rules begin to allow the number, and at which they end.
    let mut changes: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    let mut row = vec![0; rules.len() / WORD];
    for (bit, matches) in (0..).zip(rules) {
        let Some(matches) = matches else { continue };
        let Some(allowed) = allowed(matches) else {
            set(&mut row, bit, true);
            continue;
        };
        for range in allowed {
            changes.entry((*range.start()).into()).or_default().push((bit, true));
            changes.entry(u32::from(*range.end()) + 1).or_default().push((bit, false));
        }
    }
    if changes.is_empty() {
        return Ok(None);
    }
    changes.entry(0).or_default();
    let mut bits = Bitmaps::new(row.len());
    let mut made: HashMap<Vec<u64>, u16> = HashMap::new();
    let mut ranges = Vec::new();
    for (start, changes) in changes.range(..values as u32) {
        changes.iter().for_each(|&(bit, on)| set(&mut row, bit, on));
        let class = match made.get(&row) {
            Some(&class) => class,
            None => {
                let class = bits.push::<A>(&row, filter)?;
                made.insert(row.clone(), class);
                class
            }
        };
        ranges.push((*start as u16, class));
    }
    Ok(Some((ranges, bits)))
}
