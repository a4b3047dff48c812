//! The IPv4 table of few routes: a root of /16s, and tables of eight bits below (`small.rs`).
//!
//! ```text
//!  address  | 11 bits: word | 5: slot | 3: word | 5: slot | 3: word | 5: slot |
//!             root                      table     |         table of a /24
//!                                         '-- next hop, or table --'
//! ```
//!
//! A table is a cache line of eight words, as the deep tables of `ipv4.rs`. Nearly all prefixes of a small network end
//! at or above /24, so a lookup takes two loads or four.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering, fence},
    },
};

use super::lookup::{DEEP, Source, batches, deep_places, reader};
use crate::{
    Lookup, NextHopId,
    rib::{NodeId, Slot},
    runs::NoRoom,
    small::{Layout, ROOT_BITS, ROOT_WORDS, Shared, Small},
    words::SLOTS,
};

/// Leaves, in two halves.
const LEAVES: usize = if cfg!(miri) { 1 << 12 } else { 1 << 19 };
const TABLES: usize = if cfg!(miri) { 1 << 6 } else { 1 << 14 };
/// Bits that a table decides, and its words.
const TABLE_BITS: u8 = 8;
const TABLE_WORDS: usize = (1 << TABLE_BITS) / SLOTS;

/// Eight words.
pub(crate) type Table = [AtomicU64; TABLE_WORDS];

impl Layout for Ipv4Addr {
    type Cell = AtomicU16;
    type Piece = Table;
    const LEAVES: usize = LEAVES;
    const PIECES: usize = TABLES;

    fn build(
        table: &mut Small<Self>,
        at: NodeId,
        cover: NextHopId,
        before: u16,
    ) -> Result<u16, NoRoom> {
        build(table, (at, ROOT_BITS), cover, before)
    }

    fn retire(table: &mut Small<Self>, answer: u16) {
        let Some(number) = table_of(answer) else { return };
        for word in 0..TABLE_WORDS {
            // Each table below is the answer of one slot.
            let answers = table.answers_of(word_of(table, number, word));
            answers.iter().for_each(|&answer| Self::retire(table, answer));
        }
        table.put_back(number as u32);
    }

    fn words(pieces: &[Table]) -> impl Iterator<Item = &AtomicU64> {
        pieces.as_flattened().iter()
    }

    fn reader(shared: &Arc<Shared<Self>>) -> Arc<dyn Lookup<Self>> {
        reader(shared)
    }
}

/// Returns the number of the table that an answer leads to.
fn table_of(answer: u16) -> Option<usize> {
    (answer & DEEP != 0).then_some(usize::from(answer & !DEEP))
}

fn word_of(small: &Small<Ipv4Addr>, number: usize, word: usize) -> u64 {
    small.shared.pieces.all()[number][word].load(Ordering::Relaxed)
}

/// Updates the table of a prefix of this length to the routes, or makes one; returns the answer that leads to it.
fn build(
    small: &mut Small<Ipv4Addr>,
    (at, len): (NodeId, u8),
    cover: NextHopId,
    before: u16,
) -> Result<u16, NoRoom> {
    let number = match table_of(before) {
        Some(number) => number,
        None => small.take()? as usize,
    };
    let mut old = [0; 1 << TABLE_BITS];
    for (word, old) in old.chunks_exact_mut(SLOTS).enumerate() {
        old.copy_from_slice(&small.answers_of(word_of(small, number, word)));
    }
    let mut new = old;
    let runs = small.rib.slots(at, len, TABLE_BITS, cover);
    for (slots, slot) in runs.ranges() {
        match slot {
            Slot::Leaf(next_hop) => new[slots].fill(next_hop),
            Slot::Below(at, cover) => {
                let before = old[slots.start];
                new[slots.start] = build(small, (at, len + TABLE_BITS), cover, before)?;
            }
        }
    }
    let ((old, _), (new, _)) = (old.as_chunks::<SLOTS>(), new.as_chunks::<SLOTS>());
    for (word, (old, new)) in old.iter().zip(new).enumerate() {
        small.store(|shared| &shared.pieces.all()[number][word], old, new)?;
    }
    Ok(DEEP | number as u16)
}

/// Returns the answer of a table for the address whose byte is the last one of these.
#[inline(always)]
fn step(tables: &[Table; TABLES], leaves: &[AtomicU16; LEAVES], answer: u16, bytes: u32) -> u16 {
    let table = &tables[usize::from(answer & !DEEP) % TABLES];
    // Acquire, as for each leaf: the parts that it leads to are visible as well.
    let word = table[(bytes >> 5) as usize % TABLE_WORDS].load(Ordering::Acquire);
    Shared::<Ipv4Addr>::leaf(leaves, word, bytes).load(Ordering::Relaxed)
}

impl Shared<Ipv4Addr> {
    #[inline(always)]
    fn root_leaf(
        root: &[AtomicU64; ROOT_WORDS],
        leaves: &[AtomicU16; LEAVES],
        address: u32,
    ) -> u16 {
        let word = root[(address >> 21) as usize].load(Ordering::Acquire);
        Self::leaf(leaves, word, address >> ROOT_BITS).load(Ordering::Relaxed)
    }
}

impl Source for Shared<Ipv4Addr> {
    fn lookup(&self, address: u32) -> NextHopId {
        let (leaves, tables) = (self.leaves.array(), self.pieces.array());
        let mut answer = Self::root_leaf(self.root.array(), leaves, address);
        for bytes in [address >> 8, address] {
            if answer & DEEP == 0 {
                break;
            }
            fence(Ordering::Acquire);
            answer = step(tables, leaves, answer, bytes);
        }
        answer
    }

    #[inline(always)]
    fn lookup_batch<const BY_OUTLINE: bool>(&self, addresses: &[u32], out: &mut [NextHopId]) {
        if let (&[address], [out, ..]) = (addresses, &mut *out) {
            *out = self.lookup(address);
            return;
        }
        let root: &[AtomicU64; ROOT_WORDS] = self.root.array();
        let leaves: &[AtomicU16; LEAVES] = self.leaves.array();
        let tables: &[Table; TABLES] = self.pieces.array();
        for (addresses, out) in batches(addresses, out) {
            let mut any = 0;
            for (&address, out) in addresses.iter().zip(out.iter_mut()) {
                *out = Self::root_leaf(root, leaves, address);
                any |= *out;
            }
            for shift in [8, 0] {
                if any & DEEP == 0 {
                    break;
                }
                // Pairs with the release stores of leaves: the tables that they lead to are visible as well.
                fence(Ordering::Acquire);
                any = deepen(tables, leaves, addresses, out, shift);
            }
        }
    }

    /// All of it is in near caches.
    fn prefetch(&self, _addresses: &[u32]) {}
}

/// Replaces answers that are tables by those in the tables; returns the OR of all that were.
#[inline(always)]
fn deepen(
    tables: &[Table; TABLES],
    leaves: &[AtomicU16; LEAVES],
    addresses: &[u32],
    out: &mut [NextHopId],
    shift: u32,
) -> u16 {
    let (mut any, mut at) = (0, deep_places(out));
    while at != 0 {
        let place = at.trailing_zeros() as usize;
        at &= at - 1;
        if let (Some(&address), Some(out)) = (addresses.get(place), out.get_mut(place)) {
            *out = step(tables, leaves, *out, address >> shift);
            any |= *out;
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NO_ROUTE, NoReaders, Prefix, ipv4::lookup::all_readers};

    fn prefix(text: &str) -> Prefix<Ipv4Addr> {
        text.parse().unwrap()
    }

    fn set(table: &mut Small<Ipv4Addr>, text: &str, next_hop: NextHopId) {
        table.set(prefix(text), next_hop);
        assert!(table.publish().is_ok());
    }

    #[test]
    fn every_kernel_finds_each_length_and_the_tables_come_back() {
        let mut table = Small::<Ipv4Addr>::new(Box::new(NoReaders));
        let nets = ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/23", "10.1.3.128/25"];
        for (net, next_hop) in nets.into_iter().zip(1..) {
            set(&mut table, net, next_hop);
        }
        set(&mut table, "10.1.3.200/32", 0x7fff);
        assert_eq!(table.pieces_in_use(), 2);
        let addresses =
            ["9.9.9.9", "10.2.0.0", "10.1.9.9", "10.1.3.7", "10.1.3.129", "10.1.3.200", "11.0.0.0"]
                .map(|text| text.parse::<Ipv4Addr>().unwrap().to_bits());
        for reader in all_readers(&table.shared) {
            let mut out = [0; 7];
            reader.lookup_batch(&addresses, &mut out);
            assert_eq!(out, [1, 2, 3, 4, 5, 0x7fff, 1]);
            assert_eq!(addresses.map(|address| reader.lookup(address.into())), out);
        }
        set(&mut table, "10.1.3.200/32", NO_ROUTE);
        set(&mut table, "10.1.3.128/25", NO_ROUTE);
        assert_eq!(table.collect(), 0);
        assert_eq!(table.pieces_in_use(), 1);
        set(&mut table, "10.1.2.0/23", NO_ROUTE);
        assert_eq!(table.collect(), 0);
        assert_eq!(table.pieces_in_use(), 0);
        assert_eq!(table.reader().lookup(Ipv4Addr::new(10, 1, 3, 200)), 3);
    }
}
