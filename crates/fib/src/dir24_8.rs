//! DIR-24-8: one entry per /24, and a table of 256 for each /24 with longer prefixes.
//!
//! Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory Access Speeds", INFOCOM 1998;
//! here with the 16-bit entries of software routers (MoonRoute, DPDK's `rte_fib`). IPv4 only.
//!
//! ```text
//!  address   |      24 bits      | 8 bits |
//!                     |              |
//!  tbl24     [ entry | entry | ... 2^24 ]
//!                     |              |
//!              0nnn nnnn nnnn nnnn   |    next hop
//!              1ttt tttt tttt tttt --'--> tbl_long[t][8 bits], 16 bits
//! ```
//!
//! A lookup is one load of 2 bytes, two for addresses in a /24 with longer prefixes. The table
//! takes 32 MiB regardless of its contents, so that only part of it stays in the caches: fast for
//! few flows, slow for many destinations. An update stores every entry that its prefix decides: up
//! to 2^(24-length) of them.
//!
//! Entries are stored one by one, each with release ordering; a new table of 256 is filled before
//! its entry is stored, and reused after a grace period.
//!
//! The memory may be lent ([`Lent4`]), so that programs in the kernel read the table as well.
//!
//! Limits: next hops 32,767; 32,768 /24s with prefixes longer than /24 ([`Error::Full`] beyond).
//! Memory that lookups read: 32 MiB, plus 512 bytes per /24 with longer prefixes.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering, fence},
    },
};

use crate::{
    Address, Bits, Change, Error, GracePeriod, Lookup, NO_ROUTE, NextHopId, Prefix, Table,
    arena::{Arena, Room},
    check_changes, check_next_hop, check_room,
    prefetch::prefetch,
    rib::{NodeId, Rib, Slot, SlotRuns},
    runs::Retired,
};

/// Bits of the first table.
const FIRST: u8 = 24;
const ENTRIES: usize = 1 << FIRST;
const GROUP: usize = 256;
const GROUPS: usize = if cfg!(miri) { 16 } else { 1 << 15 };
/// An entry with this bit is a group's number.
const IS_GROUP: u16 = 1 << 15;
/// Addresses looked up together.
const BATCH: usize = 64;

/// Memory of a table that others than this process read and nobody else writes.
#[derive(Clone, Copy, Debug)]
pub struct Lent4 {
    /// An entry for each /24, in the order of addresses.
    pub first: &'static [AtomicU16],
    /// Groups of 256 entries for the addresses of a /24.
    pub long: &'static [AtomicU16],
}

/// The part of the table that readers see.
struct Shared<R> {
    tbl24: R,
    tbl_long: R,
}

#[inline(always)]
fn long_index(entry: u16, address: u32) -> usize {
    usize::from(entry & !IS_GROUP) % GROUPS * GROUP + (address & 0xff) as usize
}

impl<R: Room<AtomicU16>> Shared<R> {
    #[inline(always)]
    fn lookup(&self, address: u32) -> NextHopId {
        let tbl24: &[AtomicU16; ENTRIES] = self.tbl24.array();
        let entry = tbl24[(address >> 8) as usize].load(Ordering::Acquire);
        if entry & IS_GROUP == 0 {
            return entry;
        }
        let tbl_long: &[AtomicU16; GROUPS * GROUP] = self.tbl_long.array();
        tbl_long[long_index(entry, address)].load(Ordering::Relaxed)
    }
}

impl<R: Room<AtomicU16>> Lookup<Ipv4Addr> for Shared<R> {
    fn lookup(&self, address: Ipv4Addr) -> NextHopId {
        self.lookup(address.bits())
    }

    fn lookup_batch(&self, addresses: &[u32], out: &mut [NextHopId]) {
        let tbl24: &[AtomicU16; ENTRIES] = self.tbl24.array();
        for (addresses, out) in addresses.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            for &address in addresses {
                prefetch(tbl24, (address >> 8) as usize);
            }
            let mut any = 0;
            for (&address, out) in addresses.iter().zip(out.iter_mut()) {
                let entry = tbl24[(address >> 8) as usize].load(Ordering::Relaxed);
                *out = entry;
                any |= entry;
            }
            if any & IS_GROUP == 0 {
                continue;
            }
            // Pairs with the release stores of entries: their groups are visible as well.
            fence(Ordering::Acquire);
            for (&address, out) in addresses.iter().zip(out.iter_mut()) {
                if *out & IS_GROUP != 0 {
                    *out = self.tbl_long.all()[long_index(*out, address)].load(Ordering::Relaxed);
                }
            }
        }
    }
}

/// The writer.
pub(crate) struct Dir24<R = Arena<AtomicU16>> {
    shared: Arc<Shared<R>>,
    rib: Rib<u32>,
    /// Number of groups that have ever been in use, and the groups free now.
    groups: usize,
    free_groups: Vec<u16>,
    retired: Retired<u16>,
    /// Prefixes whose range does not yet reflect the routes.
    pending: Vec<(u32, u8)>,
}

impl Dir24 {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        Self::over(Arena::new(ENTRIES), Arena::new(GROUPS * GROUP), grace)
    }
}

impl Dir24<&'static [AtomicU16]> {
    /// Creates a table in lent memory.
    ///
    /// # Errors
    /// It is too small.
    pub fn lent(lent: Lent4, grace: Box<dyn GracePeriod>) -> Result<Self, Error> {
        check_room("dir-24-8", lent.first.len(), ENTRIES)?;
        check_room("dir-24-8", lent.long.len(), GROUPS * GROUP)?;
        let used = lent.first.iter().filter(|entry| entry.load(Ordering::Relaxed) != NO_ROUTE);
        used.for_each(|entry| entry.store(NO_ROUTE, Ordering::Release));
        Ok(Self::over(lent.first, lent.long, grace))
    }
}

impl<R: Room<AtomicU16>> Dir24<R> {
    fn over(tbl24: R, tbl_long: R, grace: Box<dyn GracePeriod>) -> Self {
        Self {
            shared: Arc::new(Shared { tbl24, tbl_long }),
            rib: Rib::new(),
            groups: 0,
            free_groups: Vec::new(),
            retired: Retired::new(grace),
            pending: Vec::new(),
        }
    }

    /// Updates a prefix's range to the routes; returns false if a group was missing.
    fn refresh(&mut self, bits: u32, len: u8) -> bool {
        let len = len.min(FIRST);
        let bits = bits & u32::mask(len);
        let (cover, at) = self.rib.cover(bits, len);
        let first = bits.slice(0, FIRST);
        let mut runs = SlotRuns::new(first, first + (1 << (FIRST - len)), cover);
        self.rib.fill(at, 0, FIRST, cover, &mut runs);
        let mut done = true;
        for (range, slot) in runs.ranges() {
            for entry in range {
                done &= self.store(entry, slot);
            }
        }
        done
    }

    /// Stores an entry; returns false if it needs a group and there is none.
    fn store(&mut self, entry: usize, slot: Slot) -> bool {
        let old = self.shared.tbl24.all()[entry].load(Ordering::Relaxed);
        let new = match slot {
            Slot::Leaf(next_hop) => next_hop,
            Slot::Below(at, cover) => {
                let group = if old & IS_GROUP != 0 { Some(old & !IS_GROUP) } else { self.take() };
                let Some(group) = group else { return false };
                self.store_group(group, at, cover);
                IS_GROUP | group
            }
        };
        if new != old {
            self.shared.tbl24.all()[entry].store(new, Ordering::Release);
            if old & IS_GROUP != 0 {
                self.retired.put(old & !IS_GROUP);
            }
        }
        true
    }

    fn take(&mut self) -> Option<u16> {
        if self.free_groups.is_empty() && self.groups < GROUPS {
            self.groups += 1;
            return Some((self.groups - 1) as u16);
        }
        if self.free_groups.is_empty() {
            self.reclaim();
        }
        self.free_groups.pop()
    }

    /// Updates a group, which may be in use.
    fn store_group(&self, group: u16, at: NodeId, cover: NextHopId) {
        let first = usize::from(group) * GROUP;
        let places = &self.shared.tbl_long.all()[first..first + GROUP];
        for (range, slot) in self.rib.slots(at, FIRST, 8, cover).ranges() {
            // No prefix is longer than /32, so all slots are leaves.
            let (Slot::Leaf(next_hop) | Slot::Below(_, next_hop)) = slot;
            for place in &places[range] {
                if place.load(Ordering::Relaxed) != next_hop {
                    place.store(next_hop, Ordering::Relaxed);
                }
            }
        }
    }

    fn publish(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&(bits, len)| !self.refresh(bits, len));
        self.pending = pending;
        if self.retired.is_due() {
            self.reclaim();
        }
    }

    fn reclaim(&mut self) -> usize {
        let Self { retired, free_groups, .. } = self;
        retired.collect(|group| free_groups.push(group))
    }

    /// Makes a change in the RIB only; returns the next hop before, or [`NO_ROUTE`].
    fn set(&mut self, prefix: Prefix<Ipv4Addr>, next_hop: NextHopId) -> NextHopId {
        let (bits, len) = (prefix.bits(), prefix.len());
        let before = match next_hop {
            NO_ROUTE => self.rib.remove(bits, len),
            _ => self.rib.insert(bits, len, next_hop),
        };
        if before != next_hop {
            self.pending.push((bits, len));
        }
        before
    }

    fn full(&self) -> Error {
        match self.retired.waiting() {
            0 => Error::Full {
                structure: "dir-24-8",
                what: "the number of /24 networks with prefixes longer than /24",
                limit: GROUPS,
            },
            waiting => Error::Stalled { structure: "dir-24-8", waiting },
        }
    }
}

impl<R: Room<AtomicU16> + 'static> Table<Ipv4Addr> for Dir24<R> {
    fn reader(&self) -> Arc<dyn Lookup<Ipv4Addr>> {
        Arc::clone(&self.shared) as _
    }

    fn place(&mut self, node: u32) {
        self.shared.tbl24.place(node);
        self.shared.tbl_long.place(node);
    }

    fn insert(
        &mut self,
        prefix: Prefix<Ipv4Addr>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error> {
        check_next_hop(next_hop)?;
        let before = self.set(prefix, next_hop);
        self.publish();
        if !self.pending.is_empty() {
            let error = self.full();
            self.set(prefix, before);
            self.publish();
            return Err(error);
        }
        Ok(Some(before).filter(|&before| before != NO_ROUTE))
    }

    fn remove(&mut self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
        let before = self.set(prefix, NO_ROUTE);
        self.publish();
        Some(before).filter(|&before| before != NO_ROUTE)
    }

    fn get(&self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
        self.rib.get(prefix.bits(), prefix.len())
    }

    fn len(&self) -> usize {
        self.rib.len()
    }

    fn memory_bytes(&self) -> usize {
        (ENTRIES + self.groups * GROUP) * size_of::<u16>()
    }

    fn writer_bytes(&self) -> usize {
        self.rib.bytes()
    }

    fn apply(&mut self, changes: &[Change<Ipv4Addr>]) -> Result<(), Error> {
        check_changes(changes)?;
        for change in changes {
            match *change {
                Change::Insert { prefix, next_hop } => self.set(prefix, next_hop),
                Change::Remove { prefix } => self.set(prefix, NO_ROUTE),
            };
        }
        self.pending.sort_unstable();
        self.pending.dedup();
        self.publish();
        if self.pending.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv4Addr>, NextHopId)>,
    ) -> Result<(), Error> {
        let mut made = Ok(());
        self.rib.reserve(routes.size_hint().0);
        for (prefix, next_hop) in routes {
            made = check_next_hop(next_hop);
            if made.is_err() {
                break;
            }
            self.set(prefix, next_hop);
        }
        // Rebuild all entries, once.
        self.pending = vec![(0, 0)];
        self.publish();
        made?;
        if self.pending.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    fn collect(&mut self) -> usize {
        self.publish();
        self.reclaim()
    }

    fn name(&self) -> &'static str {
        "dir-24-8"
    }
}
