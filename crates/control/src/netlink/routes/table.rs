//! Routing tables: the routes of a prefix in the order in which the kernel tries them, and the
//! table that decides if there are several.
//!
//! As a million routes are held, an IPv4 route takes 16 bytes: its key, its metric, and the number
//! of an [`Info`](super::info::Info) that it shares with all routes that lead the same way.
//!
//! # Several tables
//!
//! Rules look up tables one after the other, and the first that has any route for an address
//! decides, regardless of prefix length. The RIB has one table where the longest prefix decides.
//! Both agree if a route is left out when an earlier table holds a route to the same or a wider
//! prefix. A `throw` route ends the search in its own table: it stands for the routes of the later
//! tables.
//!
//! # Tables of VRFs
//!
//! A VRF's packets are looked up in one table only, so each of its routes is used as it is; no
//! table follows a `throw` route.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use dataplane::interface::VrfId;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use smallvec::SmallVec;

use super::info::{Infos, Resolved};

/// A prefix, ordered by address and then by length: prefixes within it follow it.
pub(super) trait Key: Copy + Ord + std::fmt::Debug {
    /// Bits of an address.
    const BITS: u8;
    fn len(self) -> u8;
    /// Returns the prefix of this length that contains it.
    fn cover(self, len: u8) -> Self;
    /// Returns the last address within it, with full length.
    fn last(self) -> Self;
    fn net(self) -> IpNet;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key4 {
    bits: u32,
    len: u8,
}

impl Key4 {
    pub(super) fn new(net: Ipv4Net) -> Self {
        Self { bits: net.network().to_bits(), len: net.prefix_len() }
    }
}

impl Key for Key4 {
    const BITS: u8 = 32;

    fn len(self) -> u8 {
        self.len
    }

    fn cover(self, len: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
        Self { bits: self.bits & mask, len }
    }

    fn last(self) -> Self {
        let host = u32::MAX.checked_shr(u32::from(self.len)).unwrap_or(0);
        Self { bits: self.bits | host, len: Self::BITS }
    }

    fn net(self) -> IpNet {
        Ipv4Net::new_assert(Ipv4Addr::from_bits(self.bits), self.len).into()
    }
}

/// Stored in halves, because a `u128` would make it 32 bytes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key6 {
    high: u64,
    low: u64,
    len: u8,
}

impl Key6 {
    pub(super) fn new(net: Ipv6Net) -> Self {
        Self::from_bits(net.network().to_bits(), net.prefix_len())
    }

    fn from_bits(bits: u128, len: u8) -> Self {
        Self { high: (bits >> 64) as u64, low: bits as u64, len }
    }

    fn bits(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }
}

impl Key for Key6 {
    const BITS: u8 = 128;

    fn len(self) -> u8 {
        self.len
    }

    fn cover(self, len: u8) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        Self::from_bits(self.bits() & mask, len)
    }

    fn last(self) -> Self {
        let host = u128::MAX.checked_shr(u32::from(self.len)).unwrap_or(0);
        Self::from_bits(self.bits() | host, Self::BITS)
    }

    fn net(self) -> IpNet {
        Ipv6Net::new_assert(Ipv6Addr::from_bits(self.bits()), self.len).into()
    }
}

/// One route of a prefix. The kernel may have several with one metric; the first is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) metric: u32,
    tag: u32,
}

/// Flag: the tag is an index into `Table::many` instead of an info's number.
const MANY: u32 = 1 << 31;
/// Bits of the tag that hold an info's number; the mark is above them.
const INFO_BITS: u32 = 25;
const INFO: u32 = (1 << INFO_BITS) - 1;
/// Number of marks before they wrap around.
pub(super) const MARKS: u8 = 64;

impl Variant {
    /// `mark` is the number, below [`MARKS`], of the latest dump of all routes that contained
    /// it.
    pub(super) fn new(metric: u32, info: u32, mark: u8) -> Self {
        Self { metric, tag: info & INFO | u32::from(mark % MARKS) << INFO_BITS }
    }

    pub(super) fn info(self) -> u32 {
        self.tag & INFO
    }

    pub(super) fn mark(self) -> u8 {
        (self.tag >> INFO_BITS) as u8 % MARKS
    }
}

/// The routes of a prefix in ascending metric.
pub(super) type List = SmallVec<[Variant; 2]>;

/// One routing table of one family.
#[derive(Debug)]
pub(super) struct Table<K> {
    routes: BTreeMap<K, Variant>,
    /// The lists of prefixes with more than one route, which are few.
    many: Vec<Vec<Variant>>,
    free: Vec<u32>,
    /// Number of prefixes of each length.
    lengths: Vec<u32>,
}

impl<K: Key> Table<K> {
    pub(super) fn new() -> Self {
        let lengths = vec![0; usize::from(K::BITS) + 1];
        Self { routes: BTreeMap::new(), many: Vec::new(), free: Vec::new(), lengths }
    }

    pub(super) fn len(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    fn list<'a>(&'a self, slot: &'a Variant) -> &'a [Variant] {
        if slot.tag & MANY == 0 {
            std::slice::from_ref(slot)
        } else {
            &self.many[(slot.tag & !MANY) as usize]
        }
    }

    /// Returns the routes of a prefix, empty if it has none.
    pub(super) fn get(&self, key: K) -> &[Variant] {
        self.routes.get(&key).map_or(&[], |slot| self.list(slot))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (K, &[Variant])> {
        self.routes.iter().map(|(key, slot)| (*key, self.list(slot)))
    }

    /// Returns at most `most` prefixes that follow one.
    pub(super) fn after(&self, key: Option<K>, most: usize) -> Vec<K> {
        let from = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.routes.range((from, Bound::Unbounded)).take(most).map(|(key, _)| *key).collect()
    }

    /// Returns the prefixes within one, including itself.
    fn within(&self, key: K) -> impl Iterator<Item = K> + '_ {
        self.routes.range(key..=key.last()).map(|(key, _)| *key)
    }

    /// Returns the routes of the longest prefix that contains this one, excluding itself.
    fn around(&self, key: K) -> Option<&[Variant]> {
        let shorter = (0..key.len()).rev().filter(|&len| self.lengths[usize::from(len)] > 0);
        shorter.map(|len| self.get(key.cover(len))).find(|list| !list.is_empty())
    }

    /// Sets the routes of a prefix; an empty list removes it.
    pub(super) fn set(&mut self, key: K, list: &[Variant]) {
        let old = self.routes.get(&key).copied();
        if let Some(slot) = old.filter(|slot| slot.tag & MANY != 0) {
            let index = slot.tag & !MANY;
            self.many[index as usize] = Vec::new();
            self.free.push(index);
        }
        let length = &mut self.lengths[usize::from(key.len())];
        match (list, old) {
            ([], None) => {}
            ([], Some(_)) => {
                self.routes.remove(&key);
                *length -= 1;
            }
            (_, old) => {
                *length += u32::from(old.is_none());
                let slot = self.store(list);
                self.routes.insert(key, slot);
            }
        }
    }

    /// Marks the route at a place of a prefix's list.
    pub(super) fn mark(&mut self, key: K, at: usize, mark: u8) {
        let Some(slot) = self.routes.get_mut(&key) else { return };
        let variant = match slot.tag & MANY {
            0 => Some(slot),
            _ => self.many[(slot.tag & !MANY) as usize].get_mut(at),
        };
        if let Some(variant) = variant {
            *variant = Variant::new(variant.metric, variant.info(), mark);
        }
    }

    fn store(&mut self, list: &[Variant]) -> Variant {
        if let [one] = list {
            return *one;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.many.push(Vec::new());
            self.many.len() as u32 - 1
        });
        self.many[index as usize] = list.to_vec();
        Variant { metric: 0, tag: MANY | index }
    }
}

/// Effect of the tables on a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The result of this info.
    Info(u32),
    /// A `throw` route without a route in a later table.
    Unreachable,
}

/// Effects on a prefix, by metric.
pub(super) type Effects = SmallVec<[(u32, Effect); 1]>;

/// The tables of one family and the order in which they are looked up.
#[derive(Debug)]
pub(super) struct Tables<K> {
    pub(super) order: Vec<u32>,
    /// The tables of VRFs other than the default one.
    pub(super) vrfs: BTreeMap<u32, VrfId>,
    pub(super) all: BTreeMap<u32, Table<K>>,
    /// Number of throw routes in all tables.
    pub(super) throws: usize,
}

/// Effect of the earlier tables on a prefix.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Decided,
}

impl<K: Key> Tables<K> {
    pub(super) fn new(order: Vec<u32>) -> Self {
        Self { order, vrfs: BTreeMap::new(), all: BTreeMap::new(), throws: 0 }
    }

    pub(super) fn table(&mut self, id: u32) -> &mut Table<K> {
        self.all.entry(id).or_insert_with(Table::new)
    }

    /// Returns the prefixes whose effects may change with the routes of `key` in this table.
    pub(super) fn affected(&self, id: u32, key: K) -> Affected<K> {
        let Some(place) = self.order.iter().position(|&other| other == id) else {
            return Affected::None;
        };
        if self.throws == 0 && self.before(place, key) == Before::Decided {
            return Affected::None;
        }
        let mut others = Vec::new();
        for (at, other) in self.order.iter().enumerate() {
            let Some(table) = self.all.get(other) else { continue };
            if at != place && !table.is_empty() && (at > place || self.throws > 0) {
                others.extend(table.within(key));
            }
        }
        if others.is_empty() && self.throws == 0 {
            return Affected::Itself;
        }
        others.push(key);
        others.sort_unstable();
        others.dedup();
        Affected::Several(others)
    }

    /// Checks whether the tables before the one at `place` have a route to the prefix or a wider
    /// one. There must be no throw routes.
    fn before(&self, place: usize, key: K) -> Before {
        let tables = self.order[..place].iter().filter_map(|id| self.all.get(id));
        let mut tables = tables.filter(|table| !table.is_empty());
        match tables.any(|table| !table.get(key).is_empty() || table.around(key).is_some()) {
            true => Before::Decided,
            false => Before::Nothing,
        }
    }

    /// Returns the effects on a prefix.
    pub(super) fn effects(&self, key: K, infos: &Infos) -> Effects {
        let mut thrown = false;
        for table in self.order.iter().filter_map(|id| self.all.get(id)) {
            let own = table.get(key);
            let first = own.first().or_else(|| table.around(key).and_then(|list| list.first()));
            let Some(first) = first else { continue };
            if matches!(infos.resolved(first.info()), Resolved::Throw) {
                thrown |= !own.is_empty();
                continue;
            }
            if own.is_empty() && !thrown {
                return Effects::new();
            }
            // A throw route stands for the best route after it, with that route's metric.
            let list = if own.is_empty() { std::slice::from_ref(first) } else { own };
            return effects(list);
        }
        if thrown { Effects::from_slice(&[(0, Effect::Unreachable)]) } else { Effects::new() }
    }

    /// Returns the prefixes of all tables of both orders, for a change of the order.
    pub(super) fn keys_of(&self, orders: [&[u32]; 2]) -> Vec<K> {
        let mut ids: Vec<u32> = orders.concat();
        ids.sort_unstable();
        ids.dedup();
        let tables = ids.iter().filter_map(|id| self.all.get(id));
        let mut keys: Vec<K> = tables.flat_map(|table| table.routes.keys().copied()).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the VRF other than the default one to which a table belongs.
    pub(super) fn vrf_of(&self, table: u32) -> Option<VrfId> {
        self.vrfs.get(&table).copied()
    }

    /// Returns the tables of VRFs.
    pub(super) fn of_vrfs(&self) -> impl Iterator<Item = (&Table<K>, VrfId)> {
        self.vrfs.iter().filter_map(|(id, vrf)| Some((self.all.get(id)?, *vrf)))
    }

    /// Returns the number of routes in the tables that are looked up.
    pub(super) fn count(&self, except: u32) -> usize {
        let others = self.vrfs.keys().filter(|id| !self.order.contains(id));
        let ids = self.order.iter().chain(others).filter(|&&id| id != except);
        ids.filter_map(|id| self.all.get(id)).map(Table::len).sum()
    }
}

/// Returns the effects of a table's routes: of several with one metric, the first is used.
pub(super) fn effects(list: &[Variant]) -> Effects {
    let mut effects = Effects::new();
    for variant in list {
        if effects.last().is_none_or(|(metric, _)| *metric != variant.metric) {
            effects.push((variant.metric, Effect::Info(variant.info())));
        }
    }
    effects
}

/// Returns the [`effects`] of a table after which none is looked up.
pub(super) fn effects_alone(list: &[Variant], infos: &Infos) -> Effects {
    let mut effects = effects(list);
    for (_, effect) in &mut effects {
        if matches!(effect, Effect::Info(number) if *infos.resolved(*number) == Resolved::Throw) {
            *effect = Effect::Unreachable;
        }
    }
    effects
}

/// Result of [`Tables::affected`].
pub(super) enum Affected<K> {
    /// The table is not used, or not for this prefix.
    None,
    /// Only the prefix itself, with the routes of this table alone.
    Itself,
    /// These prefixes, with the routes of all tables.
    Several(Vec<K>),
}
