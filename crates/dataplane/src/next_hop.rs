//! Next hops: the meaning of FIB results.
//!
//! A FIB maps a prefix to a [`fib::NextHopId`], 15 bits; this table maps the number to the treatment of the
//! packet. An entry is one `u64`, so that a writer changes it with one store and a forwarder sees the old
//! meaning or the new one, never half of each:
//!
//! ```text
//!  63                                              16 15            4 3      0
//! +--------------------------------------------------+---------------+--------+
//! | Forward: destination MAC   Group: first, length   | interface          | kind   |
//! +--------------------------------------------------+---------------+--------+
//! ```
//!
//! The source MAC and the MTU belong to the interface and come from the interface table, which is small enough
//! to stay in the first-level cache. Eight next hops share a cache line. Because routes refer to next hops by
//! number, a neighbour that changes its MAC or vanishes costs one store, whatever the number of routes that use
//! it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use wire::MacAddr;

use crate::interface::{InterfaceId, MAX_INTERFACES};
use crate::lock::lock;

/// Entries in the next-hop table; numbers are 0 to `NEXT_HOPS - 1`.
pub const NEXT_HOPS: usize = 1 << 15;

/// Places for the members of all equal-cost groups together.
pub const GROUP_MEMBERS: usize = 1 << 18;

/// No route: the FIB's result if no prefix matches.
pub const NO_ROUTE: u16 = 0;
/// The router's own: addresses of its interfaces, broadcast, link-local groups.
pub const LOCAL: u16 = 1;
/// Dropped silently.
pub const BLACKHOLE: u16 = 2;
/// A destination that must not appear on a wire (RFC 1812, 5.3.7).
pub const MARTIAN: u16 = 3;
/// Refused with an error to the sender (ICMP "administratively prohibited").
pub const PROHIBITED: u16 = 4;
/// Refused with an error to the sender (ICMP "host unreachable").
pub const UNREACHABLE: u16 = 5;
/// A group: the multicast steps select the interfaces.
pub const MULTICAST: u16 = 6;
/// The first number for next hops made at run time.
pub const FIRST_DYNAMIC: u16 = 16;

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// No route: the slow path sends "network unreachable".
    NoRoute,
    /// For the router itself: to the slow path.
    Local,
    /// To a group: to be replicated.
    Multicast,
    /// Drop silently.
    Blackhole,
    /// Drop: the destination is a martian.
    Martian,
    /// To the slow path, which sends "administratively prohibited".
    Prohibited,
    /// To the slow path, which sends "host unreachable".
    Unreachable,
    /// The destination is on this interface's network, but its MAC is unknown: to the slow path,
    /// which resolves the *destination address*.
    Glean {
        /// The interface whose network holds the destination.
        interface: InterfaceId,
    },
    /// A gateway on this interface whose MAC is unknown: to the slow path, which resolves the
    /// *gateway's address* (found by the next hop's number).
    Unresolved {
        /// The gateway's interface.
        interface: InterfaceId,
    },
    /// Send by this interface to this MAC.
    Forward {
        /// The interface to send by.
        interface: InterfaceId,
        /// The destination address of the frame.
        mac: MacAddr,
    },
    /// Equal-cost paths: a flow's hash selects one of `len` next-hop numbers.
    Group {
        /// Index of the first member in the group-member table.
        first: u32,
        /// Number of members, at least 1.
        len: u16,
    },
}

/// Bits of a word: the kind, the interface, the value.
const KIND_BITS: u64 = 0b111;
const INTERFACE_SHIFT: u32 = 3;
const INTERFACE_BITS: u64 = MAX_INTERFACES as u64 - 1;
const VALUE_SHIFT: u32 = 16;

const _: () = assert!(MAX_INTERFACES == 1 << (VALUE_SHIFT - INTERFACE_SHIFT));

/// Without an interface; the value says which.
const KIND_FIXED: u64 = 0;
const KIND_FORWARD: u64 = 1;
const KIND_GLEAN: u64 = 2;
const KIND_UNRESOLVED: u64 = 3;
const KIND_GROUP: u64 = 4;

/// The word of a next hop without an interface.
const fn fixed(value: u64) -> u64 {
    KIND_FIXED | value << VALUE_SHIFT
}

const WORD_NO_ROUTE: u64 = fixed(0);
const WORD_LOCAL: u64 = fixed(1);
const WORD_BLACKHOLE: u64 = fixed(2);
const WORD_MARTIAN: u64 = fixed(3);
const WORD_PROHIBITED: u64 = fixed(4);
const WORD_UNREACHABLE: u64 = fixed(5);
const WORD_MULTICAST: u64 = fixed(6);

/// A next hop as the table stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed(u64);

impl Packed {
    /// True for [`NextHop::Forward`].
    pub fn is_forward(self) -> bool {
        self.0 & KIND_BITS == KIND_FORWARD
    }

    /// True for [`NextHop::Group`].
    pub fn is_group(self) -> bool {
        self.0 & KIND_BITS == KIND_GROUP
    }

    /// The interface's index; meaningful for `Forward`, `Glean` and `Unresolved`, 0 for the others.
    pub fn interface_index(self) -> u16 {
        ((self.0 >> INTERFACE_SHIFT) & INTERFACE_BITS) as u16
    }

    /// The six bytes of the destination MAC in the low 48 bits, first byte lowest;
    /// meaningful for `Forward`.
    pub fn mac_bits(self) -> u64 {
        self.0 >> VALUE_SHIFT
    }
}

impl From<NextHop> for Packed {
    fn from(hop: NextHop) -> Self {
        let with_interface = |kind: u64, interface: InterfaceId| {
            kind | (interface.index() as u64) << INTERFACE_SHIFT
        };
        Self(match hop {
            NextHop::NoRoute => WORD_NO_ROUTE,
            NextHop::Local => WORD_LOCAL,
            NextHop::Multicast => WORD_MULTICAST,
            NextHop::Blackhole => WORD_BLACKHOLE,
            NextHop::Martian => WORD_MARTIAN,
            NextHop::Prohibited => WORD_PROHIBITED,
            NextHop::Unreachable => WORD_UNREACHABLE,
            NextHop::Glean { interface } => with_interface(KIND_GLEAN, interface),
            NextHop::Unresolved { interface } => with_interface(KIND_UNRESOLVED, interface),
            NextHop::Forward { interface, mac } => {
                let [a, b, c, d, e, f] = mac.0;
                let bits = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
                with_interface(KIND_FORWARD, interface) | bits << VALUE_SHIFT
            }
            NextHop::Group { first, len } => {
                KIND_GROUP | u64::from(first) << VALUE_SHIFT | u64::from(len) << 48
            }
        })
    }
}

impl From<Packed> for NextHop {
    fn from(packed: Packed) -> Self {
        let word = packed.0;
        // A word is only made by `From<NextHop>`, so its interface is valid; interface 0 stands in otherwise.
        let interface = InterfaceId::new(packed.interface_index()).unwrap_or(InterfaceId::FIRST);
        match word & KIND_BITS {
            KIND_FORWARD => {
                let [a, b, c, d, e, f, _, _] = packed.mac_bits().to_le_bytes();
                NextHop::Forward { interface, mac: MacAddr([a, b, c, d, e, f]) }
            }
            KIND_GLEAN => NextHop::Glean { interface },
            KIND_UNRESOLVED => NextHop::Unresolved { interface },
            KIND_GROUP => {
                NextHop::Group { first: (word >> VALUE_SHIFT) as u32, len: (word >> 48) as u16 }
            }
            _ => match word {
                WORD_LOCAL => NextHop::Local,
                WORD_MULTICAST => NextHop::Multicast,
                WORD_BLACKHOLE => NextHop::Blackhole,
                WORD_MARTIAN => NextHop::Martian,
                WORD_PROHIBITED => NextHop::Prohibited,
                WORD_UNREACHABLE => NextHop::Unreachable,
                _ => NextHop::NoRoute,
            },
        }
    }
}

/// The next hops of a router, read by every forwarder, written by the RIB's owner alone.
pub struct NextHopTable {
    /// An array, so that a number of 15 bits needs no bounds check.
    hops: Box<[AtomicU64; NEXT_HOPS]>,
    members: Box<[AtomicU16]>,
    /// Number of times that each number was withdrawn, so that a waiting packet with a number is
    /// not treated as one of the number's next use.
    generations: Box<[AtomicU16]>,
    copy: Option<NextHopCopy>,
}

/// Memory in which others, programs in the kernel, read the table: words by number, and members. It lives as long as the
/// process, and nobody else writes there.
#[derive(Clone, Copy, Debug)]
pub struct NextHopCopy {
    /// [`NEXT_HOPS`] words.
    pub hops: &'static [AtomicU64],
    /// [`GROUP_MEMBERS`] numbers.
    pub members: &'static [AtomicU16],
}

impl NextHopTable {
    /// Creates a table in which the reserved numbers have their meaning and all others have no
    /// route.
    pub fn new() -> Self {
        Self::with_copy(None)
    }

    /// Creates it with a copy, which gets each change at once, after the table itself. Places beyond the end of its memory
    /// are not copied.
    pub fn with_copy(copy: Option<NextHopCopy>) -> Self {
        let table = Self {
            copy,
            hops: Box::new([const { AtomicU64::new(WORD_NO_ROUTE) }; NEXT_HOPS]),
            members: (0..GROUP_MEMBERS).map(|_| AtomicU16::new(NO_ROUTE)).collect(),
            generations: (0..NEXT_HOPS).map(|_| AtomicU16::new(0)).collect(),
        };
        if let Some(copy) = copy {
            copy.hops.iter().for_each(|word| word.store(WORD_NO_ROUTE, Ordering::Release));
        }
        table.set(LOCAL, NextHop::Local);
        table.set(BLACKHOLE, NextHop::Blackhole);
        table.set(MULTICAST, NextHop::Multicast);
        table.set(MARTIAN, NextHop::Martian);
        table.set(PROHIBITED, NextHop::Prohibited);
        table.set(UNREACHABLE, NextHop::Unreachable);
        table
    }

    /// The entry with this number; the top bit of `id` is ignored.
    pub fn get(&self, id: u16) -> Packed {
        Packed(self.hops[usize::from(id) & (NEXT_HOPS - 1)].load(Ordering::Acquire))
    }

    /// Gives the number a new meaning, seen by forwarders from their next load on.
    pub fn set(&self, id: u16, hop: NextHop) {
        let index = usize::from(id) & (NEXT_HOPS - 1);
        let word = Packed::from(hop).0;
        self.hops[index].store(word, Ordering::Release);
        if let Some(copied) = self.copy.and_then(|copy| copy.hops.get(index)) {
            copied.store(word, Ordering::Release);
        }
    }

    /// Withdraws a number, which has no route until it gets another meaning. No forwarder may hold
    /// it any more (wait for a grace period); packets that wait outside of a round may, with its
    /// generation.
    pub fn take_back(&self, id: u16) {
        // First: a reader of the next meaning sees this, too.
        self.generations[usize::from(id) & (NEXT_HOPS - 1)].fetch_add(1, Ordering::Release);
        self.set(id, NextHop::NoRoute);
    }

    /// The generation of the number: its present use.
    pub fn generation(&self, id: u16) -> u16 {
        self.generations[usize::from(id) & (NEXT_HOPS - 1)].load(Ordering::Acquire)
    }

    /// Returns the entry with this number if it is still in the use of this generation.
    pub fn get_of(&self, id: u16, generation: u16) -> Option<Packed> {
        let hop = self.get(id);
        (self.generation(id) == generation).then_some(hop)
    }

    /// Writes a group's members; `first..first + members.len()` must not be read by any group that
    /// a forwarder may still see (wait for a grace period before a range is used again). Returns
    /// false, and writes nothing, if the range exceeds the table.
    pub fn set_members(&self, first: u32, members: &[u16]) -> bool {
        let Some(range) = self.members.get(first as usize..first as usize + members.len()) else {
            return false;
        };
        let store = |range: &[AtomicU16]| {
            for (slot, &member) in range.iter().zip(members) {
                slot.store(member, Ordering::Relaxed);
            }
        };
        store(range);
        self.copy.and_then(|copy| copy.members.get(first as usize..)).into_iter().for_each(store);
        true
    }

    /// Returns true if packets with this next hop, or those of some flows, leave by the interface.
    pub fn leads_by(&self, hop: Packed, interface: InterfaceId) -> bool {
        match NextHop::from(hop) {
            NextHop::Forward { interface: by, .. }
            | NextHop::Glean { interface: by }
            | NextHop::Unresolved { interface: by } => by == interface,
            NextHop::Group { first, len } => {
                let (first, len) = (first as usize, usize::from(len));
                let members = self.members.get(first..first + len).unwrap_or_default();
                members.iter().any(|member| {
                    let hop = self.get(member.load(Ordering::Relaxed));
                    // A group never contains a group.
                    !hop.is_group() && self.leads_by(hop, interface)
                })
            }
            _ => false,
        }
    }

    /// Returns the number of the path that a flow with this hash takes through a group;
    /// [`NO_ROUTE`] for an entry that is not a group.
    pub fn select(&self, group: Packed, hash: u32) -> u16 {
        let NextHop::Group { first, len } = NextHop::from(group) else {
            return NO_ROUTE;
        };
        // Multiply-shift: maps the hash to 0..len without a division.
        let pick = (u64::from(hash) * u64::from(len)) >> 32;
        let index = first as usize + pick as usize;
        self.members.get(index).map_or(NO_ROUTE, |slot| slot.load(Ordering::Relaxed))
    }
}

impl Default for NextHopTable {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of named next hops, written by the control plane.
#[derive(Debug, Default)]
pub struct NamedHops(Mutex<BTreeMap<String, Arc<AtomicU16>>>);

impl NamedHops {
    /// Sets the number of each name; the others lead nowhere.
    pub fn set<'a>(&self, numbers: impl Iterator<Item = (&'a str, u16)>) {
        let mut all = lock(&self.0);
        let numbers: BTreeMap<_, _> = numbers.collect();
        for name in numbers.keys() {
            all.entry((*name).to_owned()).or_insert_with(nowhere);
        }
        for (name, number) in all.iter() {
            number
                .store(numbers.get(name.as_str()).copied().unwrap_or(NO_ROUTE), Ordering::Release);
        }
        // Names that neither the configuration nor a graph uses any more.
        all.retain(|name, number| {
            numbers.contains_key(name.as_str()) || Arc::strong_count(number) > 1
        });
    }

    /// The number of this name, which follows later changes.
    pub(crate) fn number(&self, name: &str) -> Arc<AtomicU16> {
        let mut all = lock(&self.0);
        all.entry(name.to_owned()).or_insert_with(nowhere).clone()
    }
}

fn nowhere() -> Arc<AtomicU16> {
    Arc::new(AtomicU16::new(NO_ROUTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(index: u16) -> InterfaceId {
        InterfaceId::new(index).unwrap()
    }

    #[test]
    fn every_kind_survives_packing() {
        let mac = MacAddr([2, 0x11, 0x22, 0x33, 0x44, 0xff]);
        for hop in [
            NextHop::NoRoute,
            NextHop::Local,
            NextHop::Multicast,
            NextHop::Blackhole,
            NextHop::Martian,
            NextHop::Prohibited,
            NextHop::Unreachable,
            NextHop::Glean { interface: interface(8191) },
            NextHop::Unresolved { interface: interface(7) },
            NextHop::Forward { interface: interface(8191), mac },
            NextHop::Group { first: 262_143, len: 128 },
        ] {
            assert_eq!(NextHop::from(Packed::from(hop)), hop);
        }
    }

    #[test]
    fn a_number_that_was_taken_back_is_another_one() {
        let table = NextHopTable::new();
        let (id, hop) = (FIRST_DYNAMIC, NextHop::Glean { interface: interface(3) });
        table.set(id, hop);
        let first = table.generation(id);
        table.set(id, NextHop::Unresolved { interface: interface(3) });
        assert_eq!(table.get_of(id, first), Some(table.get(id)), "the same next hop has changed");
        table.take_back(id);
        assert_eq!(NextHop::from(table.get(id)), NextHop::NoRoute);
        table.set(id, hop);
        assert_eq!(table.get_of(id, first), None);
        assert_eq!(table.get_of(id, table.generation(id)), Some(table.get(id)));
        assert_eq!(table.generation(id + 1), first, "others are not touched");
    }

    #[test]
    fn a_new_table_knows_the_reserved_numbers() {
        let table = NextHopTable::new();
        assert_eq!(NextHop::from(table.get(NO_ROUTE)), NextHop::NoRoute);
        assert_eq!(NextHop::from(table.get(LOCAL)), NextHop::Local);
        assert_eq!(NextHop::from(table.get(MARTIAN)), NextHop::Martian);
        assert_eq!(NextHop::from(table.get(FIRST_DYNAMIC)), NextHop::NoRoute);
    }

    #[test]
    fn a_group_uses_all_members_evenly_and_keeps_a_hash_on_one() {
        let table = NextHopTable::new();
        assert!(table.set_members(100, &[20, 21, 22]));
        table.set(16, NextHop::Group { first: 100, len: 3 });
        let mut seen = [0u32; 3];
        for step in 0..3000u32 {
            let hash = step.wrapping_mul(0x9e37_79b9);
            let path = table.select(table.get(16), hash);
            assert_eq!(path, table.select(table.get(16), hash));
            seen[usize::from(path) - 20] += 1;
        }
        assert!(seen.iter().all(|&n| (900..1100).contains(&n)), "{seen:?}");
    }

    #[test]
    fn a_copy_has_each_change_of_hops_and_members() {
        let copy = NextHopCopy {
            hops: Box::leak((0..NEXT_HOPS).map(|_| AtomicU64::new(7)).collect()),
            members: Box::leak((0..200).map(|_| AtomicU16::new(7)).collect()),
        };
        let table = NextHopTable::with_copy(Some(copy));
        let word = |number: u16| copy.hops[usize::from(number)].load(Ordering::Relaxed);
        assert_eq!(
            (word(NO_ROUTE), word(LOCAL), word(99)),
            (WORD_NO_ROUTE, WORD_LOCAL, WORD_NO_ROUTE)
        );
        table.set(99, NextHop::Glean { interface: interface(3) });
        assert_eq!(word(99), table.get(99).0);
        table.take_back(99);
        assert_eq!(word(99), WORD_NO_ROUTE);
        assert!(
            table.set_members(198, &[20, 21, 22]),
            "the table has room, and the copy keeps its own"
        );
        let members = |at: usize| copy.members[at].load(Ordering::Relaxed);
        assert_eq!((members(197), members(198), members(199)), (7, 20, 21));
    }

    #[test]
    fn members_outside_the_table_are_refused() {
        let table = NextHopTable::new();
        assert!(!table.set_members(GROUP_MEMBERS as u32 - 1, &[1, 2]));
    }
}
