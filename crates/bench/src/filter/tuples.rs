//! Tuple-space search, the classifier of Open vSwitch (Srinivasan, Suri and Varghese, "Packet classification using tuple
//! space search", SIGCOMM 1999), for comparison.
//!
//! Rules with the same mask are one tuple: a hash table of the masked fields. A packet is looked up in one tuple after
//! the other, ordered by their first rules, until no later tuple can have an earlier rule. The fields and entries are those
//! for `rte_acl` ([`acl::rte`]); ranges become masks. The fields of a packet are packed into `N` words.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use acl::rte::{self, Compiled, FieldKind};
use acl::{BATCH, Family, Filter};

/// Most entries of all tuples.
const ENTRIES_MAX: usize = 1 << 20;

/// The rules of packets in batches.
pub(super) trait Search {
    /// Writes the rules of a batch's packets, plus one; 0: none matches.
    fn classify(&self, batch: usize, found: &mut [u32; BATCH]);
}

/// The tuples of a filter for one family, with words enough for its fields.
pub(super) enum Tuples {
    Narrow(Arc<Space<3>>),
    Wide(Arc<Space<7>>),
}

impl Tuples {
    /// Makes them of a filter's rules; `None` if the rules become too many entries.
    pub(super) fn new(filter: &Filter, family: Family) -> Option<Self> {
        let compiled = rte::compile(filter, family).ok()?;
        match groups(&compiled).len() {
            0..=6 => Space::new(&compiled).map(Arc::new).map(Self::Narrow),
            _ => Space::new(&compiled).map(Arc::new).map(Self::Wide),
        }
    }

    /// Packs the fields of packets.
    pub(super) fn pack(&self, keys: &[[u8; rte::KEY]]) -> Box<dyn Search> {
        match self {
            Self::Narrow(space) => Box::new(Packed::new(space, keys)),
            Self::Wide(space) => Box::new(Packed::new(space, keys)),
        }
    }
}

/// Packets for a search.
struct Packed<const N: usize> {
    space: Arc<Space<N>>,
    keys: Vec<Words<N>>,
}

impl<const N: usize> Packed<N> {
    fn new(space: &Arc<Space<N>>, keys: &[[u8; rte::KEY]]) -> Self {
        Self { space: space.clone(), keys: keys.iter().map(|key| space.pack(key)).collect() }
    }
}

impl<const N: usize> Search for Packed<N> {
    fn classify(&self, batch: usize, found: &mut [u32; BATCH]) {
        let keys = self.keys.iter().skip(batch * BATCH);
        for (found, key) in found.iter_mut().zip(keys) {
            *found = self.space.find(key).map_or(0, |rule| rule + 1);
        }
    }
}

/// Fields of a packet, or a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words<const N: usize>([u64; N]);

impl<const N: usize> Words<N> {
    const NONE: Self = Self([0; N]);

    fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & other.0[at]))
    }

    /// Sets bits of a group of 4 bytes.
    fn set(&mut self, group: usize, bits: u32) {
        self.0[group / 2] |= u64::from(bits) << (group % 2 * 32);
    }
}

impl<const N: usize> Hash for Words<N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|word| state.write_u64(*word));
    }
}

/// A fast hash of a few words: rotate, mix, multiply.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table uses the highest and the lowest bits.
        self.0 ^ self.0 >> 32
    }
}

/// Rules with the same mask.
struct Tuple<const N: usize> {
    mask: Words<N>,
    /// The first of its rules.
    first: u32,
    rules: HashMap<Words<N>, u32, BuildHasherDefault<Fold>>,
}

/// See the module's documentation.
pub(super) struct Space<const N: usize> {
    /// Offsets of the groups of 4 bytes in a packet's key.
    groups: Vec<usize>,
    tuples: Vec<Tuple<N>>,
}

/// Offsets of the groups of 4 bytes with a field.
fn groups(compiled: &Compiled) -> Vec<usize> {
    let mut groups: Vec<usize> =
        compiled.fields.iter().map(|field| usize::from(field.offset) & !3).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

impl<const N: usize> Space<N> {
    /// Makes it of the entries for `rte_acl`; `None` if they become too many, or need more words.
    fn new(compiled: &Compiled) -> Option<Self> {
        let groups = groups(compiled);
        if groups.len() > 2 * N {
            return None;
        }
        let mut space = Self { groups, tuples: Vec::new() };
        let (mut places, mut count) = (HashMap::new(), 0);
        for entry in &compiled.entries {
            let mut alternatives = vec![(Words::NONE, Words::NONE)];
            for (field, &values) in compiled.fields.iter().zip(&entry.values) {
                let masks = masks(field, values);
                alternatives = space.times(&alternatives, field, &masks);
            }
            count += alternatives.len();
            if count > ENTRIES_MAX {
                return None;
            }
            for (value, mask) in alternatives {
                space.enter(&mut places, value, mask, entry.rule);
            }
        }
        space.tuples.sort_by_key(|tuple| tuple.first);
        Some(space)
    }

    fn times(
        &self,
        alternatives: &[(Words<N>, Words<N>)],
        field: &rte::Field,
        masks: &[(u32, u32)],
    ) -> Vec<(Words<N>, Words<N>)> {
        let offset = usize::from(field.offset);
        let group = self.groups.iter().position(|&group| group == offset & !3).unwrap_or(0);
        // Of the bytes in network order, the field's are the last of its group but these.
        let shift = (4 - offset % 4 - usize::from(field.size)) * 8;
        let with = |&(mut value, mut mask): &(Words<N>, Words<N>), of: &(u32, u32)| {
            value.set(group, of.0 << shift);
            mask.set(group, of.1 << shift);
            (value, mask)
        };
        alternatives.iter().flat_map(|one| masks.iter().map(move |of| with(one, of))).collect()
    }

    fn enter(
        &mut self,
        places: &mut HashMap<Words<N>, usize>,
        value: Words<N>,
        mask: Words<N>,
        rule: u32,
    ) {
        let place = *places.entry(mask).or_insert_with(|| {
            self.tuples.push(Tuple { mask, first: rule, rules: HashMap::default() });
            self.tuples.len() - 1
        });
        let tuple = &mut self.tuples[place];
        tuple.first = tuple.first.min(rule);
        let first = tuple.rules.entry(value).or_insert(rule);
        *first = rule.min(*first);
    }

    fn pack(&self, key: &[u8; rte::KEY]) -> Words<N> {
        let mut words = Words::NONE;
        for (place, &group) in self.groups.iter().enumerate() {
            let bytes = [key[group], key[group + 1], key[group + 2], key[group + 3]];
            words.set(place, u32::from_be_bytes(bytes));
        }
        words
    }

    /// Returns the first rule that matches.
    fn find(&self, key: &Words<N>) -> Option<u32> {
        let mut best = u32::MAX;
        for tuple in &self.tuples {
            if tuple.first >= best {
                break;
            }
            if let Some(&rule) = tuple.rules.get(&key.and(&tuple.mask)) {
                best = best.min(rule);
            }
        }
        (best != u32::MAX).then_some(best)
    }
}

/// Values and masks that together are a field's part of an entry.
fn masks(field: &rte::Field, (value, second): (u64, u64)) -> Vec<(u32, u32)> {
    let width = u32::from(field.size) * 8;
    let all = u32::MAX >> (32 - width);
    match field.kind {
        FieldKind::Bitmask => vec![(value as u32, second as u32)],
        FieldKind::Mask => {
            let mask = all & u32::MAX.checked_shl(width - second as u32).unwrap_or(0);
            vec![(value as u32 & mask, mask)]
        }
        FieldKind::Range => {
            let (mut next, mut masks) = (value, Vec::new());
            while next <= second {
                // The largest block that begins here and does not go beyond the end.
                let aligned = if next == 0 { width } else { next.trailing_zeros() };
                let size = aligned.min((second - next + 1).ilog2());
                masks.push((next as u32, all & u32::MAX.checked_shl(size).unwrap_or(0)));
                next += 1 << size;
            }
            masks
        }
    }
}

#[cfg(test)]
mod tests {
    use acl::generate::{self, Kind};
    use acl::{Action, Matches, Rule};

    use super::*;

    /// Compares the rules that are found with those of the walk.
    fn compare(filter: &Filter, family: Family, packets: &[generate::Packet]) {
        let tuples = Tuples::new(filter, family).unwrap();
        let keys: Vec<_> = packets.iter().map(|packet| packet.key(family)).collect();
        let bytes: Vec<_> = keys.iter().map(|key| rte::bytes(key, family)).collect();
        let search = tuples.pack(&bytes);
        let mut found = [0; BATCH];
        let mut matched = 0;
        for (batch, keys) in keys.chunks(BATCH).enumerate() {
            search.classify(batch, &mut found);
            for (found, key) in found.iter().zip(keys) {
                let walked = acl::walk(filter, family, key).map_or(0, |rule| rule as u32 + 1);
                assert_eq!(*found, walked, "{} {family}: {key:?}", filter.name);
                matched += usize::from(walked > 0);
            }
        }
        assert!(matched * 3 > keys.len(), "{matched} of {}", keys.len());
    }

    #[test]
    fn the_first_rule_is_found_as_by_the_walk() {
        for kind in Kind::ALL {
            for family in Family::ALL {
                for rules in [1, 10, 300] {
                    let filter = generate::rules(kind, family, rules, 5);
                    compare(&filter, family, &generate::packets(&filter, family, 4096, 6));
                }
            }
        }
    }

    #[test]
    fn all_fields_and_ranges_are_compared() {
        let of = |matches| Rule { name: None, line: 1, matches, action: Action::Accept };
        let tcp = || Matches { protocol: vec![6], ..Matches::default() };
        let rules = vec![
            of(Matches {
                flags: Some(acl::Bits { value: 2, mask: 0x12 }),
                ttl: Some(60..=70),
                ..tcp()
            }),
            of(Matches { to_port: vec![0..=0, 7..=1030, 65535..=65535], dscp: vec![0], ..tcp() }),
            of(Matches { from_port: vec![1..=65534], length: Some(0..=41), ..tcp() }),
            of(Matches { fragment: Some(false), interface: vec![1, 3], ..Matches::default() }),
            of(tcp()),
        ];
        let filter = Filter { name: "fields".into(), rules, default: Action::Drop };
        for family in Family::ALL {
            compare(&filter, family, &generate::packets(&filter, family, 4096, 7));
        }
    }
}
