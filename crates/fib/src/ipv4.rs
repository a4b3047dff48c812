//! The IPv4 table: run-compressed bitmaps in single words.
//!
//! # The structure
//!
//! The address space is cut into 2^19 *blocks*, one per /19, and a block into 32 *slots*, one per /24.
//! A block is one 64-bit word: a bitmap of the slots that end a run of equal answers, and the position
//! of the answers. Answers (*leaves*) are 16 bits.
//!
//! ```text
//!  address   |        19 bits: block        | 5: slot | 8: low byte |
//!                          |                     |           |
//!  top       [ word | word | word | ... 2^19 ]   |           |
//!                          |                     |           |
//!             base (26 bits)  bitmap (32 bits)   |           |
//!                 |      ...0 0 1 0 0 0 1 0 0    |           |
//!                 |           '---- bits at and above the slot: popcount = 0, 1 or 2
//!                 v                              |           |
//!  leaves    ... [third run][second run][first run] ...      |
//!                    base       base+1      base+2           |
//!                                  |                         |
//!                    0nnn nnnn nnnn nnnn  next hop           |
//!                    1ttt tttt tttt tttt  table t
//!                                  |
//!  words     [ ... | w0 w1 .. w7 | ... ]   low byte: 3 bits choose the word, 5 the slot
//! ```
//!
//! The *outline* has 16 bits per /16: the answer, if all its eight blocks have the same one (`ipv4/lookup.rs`
//! uses it).
//!
//! The words are those of `words.rs`: the leaf of a slot is `base + popcount(bitmap >> slot)`, and
//! a block with one answer needs no leaf of its own: its base is the answer, and the few cache
//! lines of the answers in use are shared by all such blocks. A zeroed table is a valid empty one.
//!
//! A /24 that contains longer prefixes has a *deep table*: eight such words, one cache line, whose
//! slots are single addresses, with leaves in the same array. Most of its runs are long: a table takes
//! 64 bytes and a few leaves, where 256 plain answers would take 512.
//!
//! # Cost of a lookup
//!
//! Two dependent loads (8 and 2 bytes), two more for addresses in a /24 with longer prefixes. Only one
//! branch per batch depends on the addresses: whether any of them needs these two loads; a loop over
//! those that do follows. A batch's cache misses overlap (`ipv4/lookup.rs`).
//!
//! Measured alternatives, on a processor with 2 MiB of second-level cache and the 512,621-route table:
//! words in lines of eight behind a directory of 2^16 entries, one line per /16 with more than one
//! answer, take 1.7 MiB instead of 4.5. With one load more, they are 1.6 times slower where traffic
//! follows the table, and 1.5 times faster for random destinations, which then stay in that cache.
//! Blocks of one /16 with bitmap, ranks and leaves side by side (1.4 MiB) are slower throughout.
//!
//! # Cost of an update
//!
//! The writer keeps the routes in flat arrays: lengths 0 to 19 as a heap (node n has the children
//! 2n and 2n+1), lengths 20 to 24 as a heap of 62 places per block that has any, longer ones as a
//! sorted list per /24. From them it computes the 32 answers of each block that a prefix touches:
//! one block for lengths from 19, 2^(19-length) for shorter ones, where it walks only the blocks
//! that no longer prefix covers. If the block's runs keep their shape, changed leaves are stored in
//! place. Else the new leaves are written to a free place, the word is stored, and the old leaves
//! retire. A block's deep tables are updated the same way before it, word by word; a discarded one
//! retires whole, with the leaves it has by then.
//!
//! # Why readers are not disturbed
//!
//! Bitmap and base are one `u64`, stored with release ordering after the leaves they refer to;
//! readers load it with acquire ordering. So a reader has the old word and the old leaves, which
//! are not reused before its grace period ends, or the new word and the new leaves. Where leaves
//! change in place, each is one atomic store. (An entry of 16 bytes with a 64-bit bitmap, as in the
//! first prototypes, needs a 16-byte atomic store, which stable Rust does not offer; cutting at 19 + 5
//! instead of 18 + 6 bits takes the same 4 MiB and makes the problem disappear.)
//!
//! # Limits
//!
//! Routes: as many as there are prefixes; the leaves have room for the worst case of 2^24 runs of
//! /24s and 2^23 runs in deep tables. Next hops: 32,767. At most 32,768 /24s with prefixes longer
//! than /24 ([`Error::Full`] beyond; those waiting for a grace period count). Memory that lookups
//! read: 4.1 MiB, plus 2 bytes per run of equal /24s within a block, plus 64 bytes and 2 per run
//! for each /24 with longer prefixes: 4.7 MiB for the 512,621 routes of 2014, 7 for a million.
//!
//! # Origin
//!
//! Poptrie (Asai and Ohara, SIGCOMM 2015) has the popcount of a leaf bitmap and the direct
//! index; the flat two-level form, in which the direct index *is* the only bitmap level, is also
//! known from SAIL (Yang et al., SIGCOMM 2014) with uncompressed arrays and from Lulea (Degermark
//! et al., SIGCOMM 1997) with run compression.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use lookup::{
    BLOCK_BITS, BLOCKS, DEEP, DEEP_SIZE, DEEP_TABLES, DEEP_WORDS, OUTLINE, OUTLINE_BLOCKS, Shared,
    VARIED,
};

use crate::{
    Change, Error, GracePeriod, Lookup, NO_ROUTE, NextHopId, Prefix, Table, check_changes,
    check_next_hop,
    runs::Retired,
    words::{Leaves, OldHalf, SLOTS, own_leaves, uniform_next_hop},
};

mod lookup;
mod small;

/// Longest prefix that slots distinguish.
const SLOT_LEN: u8 = 24;

/// The prefixes of lengths 20 to 24 in one block, and its /24s with longer prefixes.
#[derive(Clone)]
struct Record {
    /// A heap: node 1 is the block, node 2n and 2n+1 the halves of node n, 32 to 63 the slots.
    /// Places 2 to 63 hold next hops, 0 where there is no route.
    nodes: [NextHopId; 2 * SLOTS],
    /// Routes in `nodes`.
    routes: u16,
    /// Slots with a deep table.
    deep: u32,
}

impl Record {
    const EMPTY: Record = Record { nodes: [NO_ROUTE; 2 * SLOTS], routes: 0, deep: 0 };

    /// Computes the answers of the slots, given that of the shorter prefixes.
    fn answers(&self, cover: NextHopId) -> [NextHopId; SLOTS] {
        // Level by level: a place without a route inherits from the node above. Written for fixed
        // lengths, so that the compiler makes vector selects of it.
        let level_1 = inherit::<1, 2>(&[cover], &self.nodes);
        let level_2 = inherit::<2, 4>(&level_1, &self.nodes);
        let level_3 = inherit::<4, 8>(&level_2, &self.nodes);
        let level_4 = inherit::<8, 16>(&level_3, &self.nodes);
        inherit::<16, 32>(&level_4, &self.nodes)
    }
}

/// Computes the answers of a level of `M` nodes, given those of the level above.
#[inline(always)]
fn inherit<const N: usize, const M: usize>(
    above: &[NextHopId; N],
    nodes: &[NextHopId; 2 * SLOTS],
) -> [NextHopId; M] {
    std::array::from_fn(|at| match nodes[M + at] {
        NO_ROUTE => above[at / 2],
        next_hop => next_hop,
    })
}

/// The prefixes longer than /24 in one /24.
struct Deep {
    /// Number of its deep table.
    table: u16,
    /// Last byte, length, next hop; sorted, so that a prefix comes before those nested in it.
    routes: Vec<(u8, u8, NextHopId)>,
}

impl Deep {
    /// Computes the answers for all last bytes, given that of the shorter prefixes.
    fn answers(&self, cover: NextHopId) -> [NextHopId; DEEP_SIZE] {
        let mut answers = [cover; DEEP_SIZE];
        for &(first, len, next_hop) in &self.routes {
            let first = usize::from(first);
            answers[first..first + (1 << (32 - len))].fill(next_hop);
        }
        answers
    }
}

/// A piece that waits for its grace period.
enum Piece {
    Leaves { base: u32, len: usize },
    Table { number: u16 },
    Half(OldHalf),
}

/// Position of a prefix in the writer's arrays.
enum Place {
    /// Node of the heap of lengths 0 to 19.
    Short(usize),
    /// Block and node in its record, lengths 20 to 24.
    Middle(usize, usize),
    /// The /24's number, last byte and length, from 25.
    Long(u32, u8, u8),
}

impl Place {
    fn of(prefix: Prefix<Ipv4Addr>) -> Self {
        let (bits, len) = (prefix.bits(), prefix.len());
        let leading = |count: u8| (u64::from(bits) >> (32 - count)) as usize;
        if len <= BLOCK_BITS {
            Place::Short((1 << len) + leading(len))
        } else if len <= SLOT_LEN {
            let depth = len - BLOCK_BITS;
            let node = (1 << depth) + (leading(len) & ((1 << depth) - 1));
            Place::Middle(leading(BLOCK_BITS), node)
        } else {
            Place::Long(bits >> 8, bits as u8, len)
        }
    }
}

const NO_RECORD: u32 = 0;

/// Indices of a deep table's words.
fn table_words(number: u16) -> Range<usize> {
    let first = BLOCKS + usize::from(number) * DEEP_WORDS;
    first..first + DEEP_WORDS
}

/// The writer.
pub(crate) struct Runmap4 {
    shared: Arc<Shared>,
    /// Next hops of the prefixes of lengths 0 to 19 as a heap; node 1 is 0.0.0.0/0.
    short: Vec<NextHopId>,
    /// Per block the answer of the prefixes of lengths 0 to 19.
    cover: Vec<NextHopId>,
    /// Per block the number of its record, or [`NO_RECORD`].
    record_of: Vec<u32>,
    /// Number 0 is not used.
    records: Vec<Record>,
    free_records: Vec<u32>,
    /// By the leading 24 bits.
    deep: HashMap<u32, Deep>,
    free_tables: Vec<u16>,
    /// Number of tables that have ever been in use.
    tables: usize,
    routes: usize,
    leaves: Leaves,
    /// Deep tables without routes whose block is not published yet.
    emptied: Vec<u16>,
    retired: Retired<Piece>,
    /// Blocks whose word does not yet reflect the routes.
    dirty: Vec<u32>,
    is_dirty: Vec<u64>,
}

impl Runmap4 {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        // Address space for one record per block: growing in place, it is never copied, and the unused
        // part takes no memory.
        let mut records = Vec::with_capacity(if cfg!(miri) { 1 } else { BLOCKS + 1 });
        records.push(Record::EMPTY);
        Self {
            shared: Arc::new(Shared::new()),
            short: vec![NO_ROUTE; 2 * BLOCKS],
            cover: vec![NO_ROUTE; BLOCKS],
            record_of: vec![NO_RECORD; BLOCKS],
            records,
            free_records: Vec::new(),
            deep: HashMap::new(),
            free_tables: Vec::new(),
            tables: 0,
            routes: 0,
            leaves: Leaves::new(),
            emptied: Vec::new(),
            retired: Retired::new(grace),
            dirty: Vec::new(),
            is_dirty: vec![0; BLOCKS / 64],
        }
    }

    fn word(&self, index: usize) -> u64 {
        self.shared.words.all()[index].load(Ordering::Relaxed)
    }

    // ---- the routes -------------------------------------------------------------------------

    /// Sets or (with [`NO_ROUTE`]) clears a route in the writer's arrays and marks the blocks
    /// that must be published; returns the next hop before.
    fn set(&mut self, prefix: Prefix<Ipv4Addr>, next_hop: NextHopId) -> Result<NextHopId, Error> {
        let before = match Place::of(prefix) {
            Place::Short(node) => self.set_short(node, next_hop),
            Place::Middle(block, node) => self.set_middle(block, node, next_hop),
            Place::Long(net, last, len) => self.set_long(net, last, len, next_hop)?,
        };
        self.routes += usize::from(next_hop != NO_ROUTE);
        self.routes -= usize::from(before != NO_ROUTE);
        Ok(before)
    }

    fn set_short(&mut self, node: usize, next_hop: NextHopId) -> NextHopId {
        let before = std::mem::replace(&mut self.short[node], next_hop);
        if before != next_hop {
            let answer = self.short_answer(node);
            self.spread(node, answer);
        }
        before
    }

    /// Finds the answer of the longest prefix at or above a node.
    fn short_answer(&self, node: usize) -> NextHopId {
        let ancestors = std::iter::successors(Some(node), |&node| Some(node / 2));
        let mut routes = ancestors.take_while(|&node| node > 0).map(|node| self.short[node]);
        routes.find(|&next_hop| next_hop != NO_ROUTE).unwrap_or(NO_ROUTE)
    }

    /// Gives the blocks below a node a new answer, except where a longer prefix has its own.
    fn spread(&mut self, node: usize, answer: NextHopId) {
        if node >= BLOCKS {
            self.cover[node - BLOCKS] = answer;
            self.mark(node - BLOCKS);
            return;
        }
        for child in [2 * node, 2 * node + 1] {
            if self.short[child] == NO_ROUTE {
                self.spread(child, answer);
            }
        }
    }

    fn set_middle(&mut self, block: usize, node: usize, next_hop: NextHopId) -> NextHopId {
        if self.record_of[block] == NO_RECORD && next_hop == NO_ROUTE {
            return NO_ROUTE;
        }
        let record = self.record_mut(block);
        let before = std::mem::replace(&mut record.nodes[node], next_hop);
        record.routes += u16::from(next_hop != NO_ROUTE);
        record.routes -= u16::from(before != NO_ROUTE);
        self.drop_empty_record(block);
        if before != next_hop {
            self.mark(block);
        }
        before
    }

    fn record_mut(&mut self, block: usize) -> &mut Record {
        if self.record_of[block] == NO_RECORD {
            let number = self.free_records.pop().unwrap_or_else(|| {
                self.records.push(Record::EMPTY);
                (self.records.len() - 1) as u32
            });
            self.record_of[block] = number;
        }
        &mut self.records[self.record_of[block] as usize]
    }

    fn drop_empty_record(&mut self, block: usize) {
        let number = self.record_of[block];
        let record = &self.records[number as usize];
        if number != NO_RECORD && record.routes == 0 && record.deep == 0 {
            self.record_of[block] = NO_RECORD;
            self.free_records.push(number);
        }
    }

    fn set_long(
        &mut self,
        net: u32,
        last: u8,
        len: u8,
        next_hop: NextHopId,
    ) -> Result<NextHopId, Error> {
        let (block, slot) = ((net >> 5) as usize, net % SLOTS as u32);
        if !self.deep.contains_key(&net) {
            if next_hop == NO_ROUTE {
                return Ok(NO_ROUTE);
            }
            let table = self.take_table()?;
            self.deep.insert(net, Deep { table, routes: Vec::new() });
            self.record_mut(block).deep |= 1 << slot;
        }
        let Some(deep) = self.deep.get_mut(&net) else { return Ok(NO_ROUTE) };
        let found = deep.routes.binary_search_by_key(&(last, len), |&(last, len, _)| (last, len));
        let before = match (found, next_hop) {
            (Ok(at), NO_ROUTE) => deep.routes.remove(at).2,
            (Ok(at), _) => std::mem::replace(&mut deep.routes[at].2, next_hop),
            (Err(_), NO_ROUTE) => NO_ROUTE,
            (Err(at), _) => {
                deep.routes.insert(at, (last, len, next_hop));
                NO_ROUTE
            }
        };
        if deep.routes.is_empty() {
            let table = deep.table;
            self.deep.remove(&net);
            self.emptied.push(table);
            self.record_mut(block).deep &= !(1 << slot);
            self.drop_empty_record(block);
        }
        self.mark(block);
        Ok(before)
    }

    /// Takes a deep table that no reader sees.
    fn take_table(&mut self) -> Result<u16, Error> {
        if self.free_tables.is_empty() && self.tables == DEEP_TABLES {
            self.reclaim();
        }
        if let Some(table) = self.free_tables.pop() {
            return Ok(table);
        }
        if self.tables < DEEP_TABLES {
            self.tables += 1;
            return Ok((self.tables - 1) as u16);
        }
        let what = "the number of /24 networks with prefixes longer than /24";
        Err(Error::Full { structure: "runmap", what, limit: DEEP_TABLES })
    }

    /// Adds routes to the writer's arrays; stops at the first that fails.
    fn set_all(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv4Addr>, NextHopId)>,
    ) -> Result<(), Error> {
        for (prefix, next_hop) in routes {
            check_next_hop(next_hop)?;
            self.check_room(prefix)?;
            self.set(prefix, next_hop)?;
        }
        Ok(())
    }

    // ---- publication ------------------------------------------------------------------------

    fn mark(&mut self, block: usize) {
        let (word, bit) = (&mut self.is_dirty[block / 64], 1 << (block % 64));
        if *word & bit == 0 {
            *word |= bit;
            self.dirty.push(block as u32);
        }
    }

    /// Publishes the marked blocks. Those without room, because readers hold back retired leaves, stay
    /// marked for the next time.
    fn publish_all(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|&block| {
            let block = block as usize;
            let done = self.publish(block);
            if done {
                self.is_dirty[block / 64] &= !(1 << (block % 64));
            }
            !done
        });
        self.dirty = dirty;
        if self.dirty.is_empty() {
            let emptied = self.emptied.drain(..);
            emptied.for_each(|number| self.retired.put(Piece::Table { number }));
        }
        if self.retired.is_due() {
            self.reclaim();
            self.compact();
        }
    }

    /// Updates a block's word and leaves to the routes; returns false if there is no room.
    fn publish(&mut self, block: usize) -> bool {
        let cover = self.cover[block];
        let number = self.record_of[block];
        if number == NO_RECORD {
            let word = Leaves::uniform(&self.shared.leaves, cover);
            self.store_word(block, word);
            return true;
        }
        let record = &self.records[number as usize];
        let (mut answers, mut slots) = (record.answers(cover), record.deep);
        while slots != 0 {
            let slot = slots.trailing_zeros();
            slots &= slots - 1;
            if let Some(deep) = self.deep.get(&((block as u32) << 5 | slot)) {
                let answer = &mut answers[slot as usize];
                let (table, below) = (deep.table, deep.answers(*answer));
                *answer = DEEP | table;
                if !self.publish_table(table, &below) {
                    return false;
                }
            }
        }
        self.store_runs(block, &answers)
    }

    /// Updates a deep table to the answers; returns false if there is no room. It may be in use: each
    /// word is replaced separately.
    fn publish_table(&mut self, table: u16, answers: &[NextHopId; DEEP_SIZE]) -> bool {
        let (parts, _) = answers.as_chunks::<SLOTS>();
        table_words(table).zip(parts).all(|(word, part)| self.store_runs(word, part))
    }

    /// Publishes the answers of a word's slots; returns false if there is no room for the leaves.
    fn store_runs(&mut self, index: usize, answers: &[u16; SLOTS]) -> bool {
        if self.leaves.room() < SLOTS {
            self.reclaim();
            self.compact();
        }
        let (before, cells) = (self.word(index), &self.shared.leaves);
        // A slot's deep table belongs to that slot only, so an answer of all slots is a next hop.
        let uniform = |answer| Some(Leaves::uniform(cells, answer));
        let word = self.leaves.word(cells, before, answers, uniform);
        word.inspect(|&word| self.store_word(index, word)).is_some()
    }

    /// Stores a word and retires the leaves of the word before.
    fn store_word(&mut self, index: usize, word: u64) {
        let before = self.word(index);
        if before == word {
            return;
        }
        self.shared.words.all()[index].store(word, Ordering::Release);
        if index < BLOCKS {
            self.outline(index / OUTLINE_BLOCKS);
        }
        if let Some((base, len)) = own_leaves(before) {
            self.retired.put(Piece::Leaves { base, len });
        }
    }

    /// Updates an entry of the outline to its words. Readers who still see the old entry have the old
    /// answer, which was right until its word was stored.
    fn outline(&self, number: usize) {
        let words = &self.shared.words.all()[number * OUTLINE_BLOCKS..][..OUTLINE_BLOCKS];
        let first = words[0].load(Ordering::Relaxed);
        let same = words.iter().all(|word| word.load(Ordering::Relaxed) == first);
        let entry = uniform_next_hop(first).filter(|_| same).unwrap_or(VARIED);
        self.shared.outline.all()[number].store(entry, Ordering::Release);
    }

    // ---- memory -----------------------------------------------------------------------------

    /// Reclaims pieces that no reader can see any more; returns the number of pieces that still wait.
    fn reclaim(&mut self) -> usize {
        let Self { retired, leaves, free_tables, shared, .. } = self;
        retired.collect(|piece| match piece {
            Piece::Leaves { base, len } => leaves.release(base, len),
            Piece::Table { number } => {
                // The leaves retired with the table: no reader finds them by another way.
                for word in &shared.words.all()[table_words(number)] {
                    if let Some((base, len)) = own_leaves(word.swap(0, Ordering::Relaxed)) {
                        leaves.release(base, len);
                    }
                }
                free_tables.push(number);
            }
            Piece::Half(half) => leaves.release_half(&shared.leaves, half),
        })
    }

    /// Closes the gaps between the leaves if there are many gaps.
    fn compact(&mut self) {
        let words = &self.shared.words.all()[..self.words()];
        if let Some(half) = self.leaves.compact(&self.shared.leaves, words) {
            self.retired.put(Piece::Half(half));
        }
    }

    /// Returns the number of words that are or were in use.
    fn words(&self) -> usize {
        BLOCKS + self.tables * DEEP_WORDS
    }

    /// Refuses a change for which there might be no room, before it is made.
    fn check_room(&mut self, prefix: Prefix<Ipv4Addr>) -> Result<(), Error> {
        // Blocks without a record need no leaves; the new prefix may add a record and a table.
        let blocks = (1usize << BLOCK_BITS.saturating_sub(prefix.len())) + self.dirty.len();
        let tables = (blocks * SLOTS).min(self.deep.len() + 1);
        let leaves = blocks.min(self.records.len() + 1) * SLOTS + tables * DEEP_SIZE;
        if self.leaves.room() < leaves {
            self.reclaim();
            self.compact();
        }
        if self.leaves.room() >= leaves {
            return Ok(());
        }
        Err(Error::Stalled { structure: "runmap", waiting: self.retired.waiting() })
    }
}

impl Table<Ipv4Addr> for Runmap4 {
    fn reader(&self) -> Arc<dyn Lookup<Ipv4Addr>> {
        lookup::reader(&self.shared)
    }

    fn place(&mut self, node: u32) {
        self.shared.place(node);
    }

    fn insert(
        &mut self,
        prefix: Prefix<Ipv4Addr>,
        next_hop: NextHopId,
    ) -> Result<Option<NextHopId>, Error> {
        check_next_hop(next_hop)?;
        self.check_room(prefix)?;
        let before = self.set(prefix, next_hop)?;
        self.publish_all();
        Ok(Some(before).filter(|&before| before != NO_ROUTE))
    }

    fn remove(&mut self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
        // Only an insertion can fail for lack of a deep table.
        let before = self.set(prefix, NO_ROUTE).unwrap_or(NO_ROUTE);
        self.publish_all();
        Some(before).filter(|&before| before != NO_ROUTE)
    }

    fn get(&self, prefix: Prefix<Ipv4Addr>) -> Option<NextHopId> {
        let next_hop = match Place::of(prefix) {
            Place::Short(node) => self.short[node],
            Place::Middle(block, node) => self.records[self.record_of[block] as usize].nodes[node],
            Place::Long(net, last, len) => {
                let routes = &self.deep.get(&net)?.routes;
                let found = routes.binary_search_by_key(&(last, len), |r| (r.0, r.1)).ok()?;
                routes[found].2
            }
        };
        Some(next_hop).filter(|&next_hop| next_hop != NO_ROUTE)
    }

    fn len(&self) -> usize {
        self.routes
    }

    fn memory_bytes(&self) -> usize {
        self.words() * size_of::<u64>() + (self.leaves.used() + OUTLINE) * size_of::<u16>()
    }

    fn writer_bytes(&self) -> usize {
        let flat = (self.short.len() + self.cover.len()) * size_of::<NextHopId>()
            + self.record_of.len() * size_of::<u32>()
            + self.is_dirty.len() * size_of::<u64>();
        let deep = self.deep.values().map(|d| d.routes.capacity() * 4 + 48).sum::<usize>();
        flat + self.records.len() * size_of::<Record>() + deep
    }

    fn apply(&mut self, changes: &[Change<Ipv4Addr>]) -> Result<(), Error> {
        check_changes(changes)?;
        let made = changes.iter().try_for_each(|change| match *change {
            Change::Insert { prefix, next_hop } => {
                self.check_room(prefix)?;
                self.set(prefix, next_hop).map(drop)
            }
            Change::Remove { prefix } => self.set(prefix, NO_ROUTE).map(drop),
        });
        self.publish_all();
        made
    }

    fn load(
        &mut self,
        routes: &mut dyn Iterator<Item = (Prefix<Ipv4Addr>, NextHopId)>,
    ) -> Result<(), Error> {
        let made = self.set_all(routes);
        // In address order, so that leaves looked up together are adjacent.
        self.dirty.sort_unstable();
        self.publish_all();
        made
    }

    fn collect(&mut self) -> usize {
        self.reclaim();
        if !self.dirty.is_empty() {
            self.publish_all();
        }
        self.compact();
        self.reclaim()
    }

    fn name(&self) -> &'static str {
        "runmap"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, NoReaders, synthetic::Random};

    fn prefix(text: &str) -> Prefix<Ipv4Addr> {
        text.parse().unwrap()
    }

    #[test]
    fn every_kernel_gives_the_same_answers_at_every_batch_length() {
        let mut table = Runmap4::new(Box::new(NoReaders));
        let mut random = Random::new(1);
        let hosts = if cfg!(miri) { 10 } else { 400 };
        for _ in 0..hosts {
            // Few /16s, so that a good part of the addresses below reaches each kind of leaf.
            let address = Ipv4Addr::from(random.word() as u32 & 0x8001_ffff);
            let len = 14 + random.below(19) as u8;
            let next_hop = 1 + random.below(0x7fff) as u16;
            table.insert(Prefix::covering(address, len), next_hop).unwrap();
        }
        let addresses: Vec<u32> =
            (0..150).map(|_| random.word() as u32 & 0x8001_ffff).chain([0, u32::MAX]).collect();
        for reader in lookup::all_readers(&table.shared) {
            for len in (0..=addresses.len()).step_by(if cfg!(miri) { 37 } else { 1 }) {
                let mut out = vec![0x1234; addresses.len()];
                reader.lookup_batch(&addresses[..len], &mut out);
                let single = |&address: &u32| reader.lookup(Ipv4Addr::from(address));
                let expected: Vec<u16> = addresses[..len].iter().map(single).collect();
                assert_eq!(out[..len], expected);
                assert!(out[len..].iter().all(|&untouched| untouched == 0x1234));
                out.fill(0x1234);
                reader.prefetch_batch(&addresses[..len]);
                reader.lookup_prefetched(&addresses[..len], &mut out);
                assert_eq!(out[..len], expected, "by the outline");
                assert!(out[len..].iter().all(|&untouched| untouched == 0x1234));
            }
            let mut short = [0x1234; 3];
            reader.lookup_batch(&addresses, &mut short[..2]);
            assert_eq!(short[2], 0x1234, "the shorter slice counts");
        }
    }

    #[test]
    fn the_outline_knows_what_has_one_answer_and_nothing_else() {
        let mut table = Runmap4::new(Box::new(NoReaders));
        let entry = |table: &Runmap4, number: usize| {
            table.shared.outline.all()[number].load(Ordering::Relaxed)
        };
        table.insert(prefix("10.0.0.0/8"), 7).unwrap();
        assert_eq!([0x09ff, 0x0a00, 0x0aff, 0x0b00].map(|at| entry(&table, at)), [0, 7, 7, 0]);
        for longer in ["10.1.0.0/17", "10.1.128.0/24", "10.1.255.255/32", "10.1.255.0/24"] {
            table.insert(prefix(longer), 8).unwrap();
            let entries = [0x0a00, 0x0a01, 0x0a02].map(|at| entry(&table, at));
            assert_eq!(entries, [7, VARIED, 7], "{longer}");
            table.remove(prefix(longer));
            assert_eq!(entry(&table, 0x0a01), 7, "{longer}");
        }
        // Two halves that become equal.
        table.insert(prefix("10.1.0.0/17"), 8).unwrap();
        table.insert(prefix("10.1.128.0/17"), 8).unwrap();
        assert_eq!(entry(&table, 0x0a01), 8);
        table.insert(prefix("10.1.0.0/16"), 9).unwrap();
        assert_eq!(entry(&table, 0x0a01), 8);
        table.remove(prefix("10.1.0.0/17"));
        assert_eq!(entry(&table, 0x0a01), VARIED);
    }

    #[test]
    fn deep_tables_run_out_with_an_error_and_come_back() {
        let mut table = Runmap4::new(Box::new(NoReaders));
        let host = |net: usize| Prefix::host(Ipv4Addr::from((net as u32) << 8 | 7));
        for net in 0..DEEP_TABLES {
            table.insert(host(net), 5).unwrap();
        }
        let error = table.insert(host(DEEP_TABLES), 5).unwrap_err();
        assert!(matches!(error, Error::Full { limit: DEEP_TABLES, .. }), "{error}");
        assert_eq!(table.get(host(DEEP_TABLES)), None);
        assert_eq!(table.reader().lookup(host(DEEP_TABLES).address()), NO_ROUTE);
        assert_eq!(table.remove(host(3)), Some(5));
        table.insert(host(DEEP_TABLES), 6).unwrap();
        assert_eq!(table.reader().lookup(host(DEEP_TABLES).address()), 6);
    }

    #[test]
    fn a_deep_table_gives_its_leaves_back_with_itself() {
        let mut table = Runmap4::new(Box::new(NoReaders));
        let net = |number: u32, last: u32| Ipv4Addr::from(0x0a00_0000 | number << 8 | last);
        for round in 0..if cfg!(miri) { 1 } else { 40 } {
            // Every second address has an answer of its own: 256 leaves per table.
            let hosts = (0..4).flat_map(|number| (0..256).step_by(2).map(move |at| (number, at)));
            let route =
                |(number, last)| (Prefix::host(net(number, last)), (1 + last + number) as u16);
            table.load(&mut hosts.clone().map(route)).unwrap();
            let reader = table.reader();
            assert_eq!(reader.lookup(net(3, 200)), 204);
            assert_eq!(reader.lookup(net(3, 201)), NO_ROUTE);
            // All at once, so that the tables have all their leaves when they retire.
            let host = |(number, last)| Change::Remove { prefix: Prefix::host(net(number, last)) };
            table.apply(&hosts.map(host).collect::<Vec<_>>()).unwrap();
            assert_eq!(reader.lookup(net(3, 200)), NO_ROUTE);
            assert_eq!(table.collect(), 0);
            // All are free again: few enough that closing the gaps does not pay.
            let own = table.leaves.used() - Leaves::new().used();
            assert!(own < 4096, "round {round}: {own}");
        }
    }

    #[test]
    fn an_insertion_waits_for_stuck_readers_with_an_error_not_a_wrong_answer() {
        let epochs = crate::Epochs::default();
        let stuck = epochs.register();
        let mut table = Runmap4::new(Box::new(epochs));
        let reader = table.reader();
        let mut random = Random::new(2);
        let mut refused = None;
        // Every change of shape retires leaves that are never reclaimed.
        for _ in 0..40_000_000 {
            let net = Ipv4Addr::from(0x0a00_0000 | random.word() as u32 & 0x1f00);
            let change = table.insert(Prefix::covering(net, 24), 1 + random.below(9) as u16);
            if let Err(error) = change {
                refused = Some((error, net));
                break;
            }
        }
        let (error, net) = refused.expect("the leaves run out");
        assert!(matches!(error, Error::Stalled { .. }), "{error}");
        let before = table.get(Prefix::covering(net, 24));
        assert_eq!(reader.lookup(net), before.unwrap_or(NO_ROUTE), "as before");
        // A removal is accepted, and takes effect once there is room.
        table.remove(Prefix::covering(net, 24));
        stuck.quiescent();
        table.collect();
        assert_eq!(reader.lookup(net), NO_ROUTE);
        stuck.quiescent();
        assert_eq!(table.collect(), 0);
        table.insert(Prefix::covering(net, 24), 3).unwrap();
        assert_eq!(reader.lookup(net), 3);
    }

    #[test]
    fn a_shorter_prefix_changes_what_longer_ones_leave() {
        let mut table = Runmap4::new(Box::new(NoReaders));
        table.insert(prefix("10.0.0.0/8"), 1).unwrap();
        table.insert(prefix("10.1.0.0/21"), 2).unwrap();
        table.insert(prefix("10.1.1.128/25"), 3).unwrap();
        let reader = table.reader();
        let at = |text: &str| reader.lookup(text.parse().unwrap());
        assert_eq!([at("10.200.0.0"), at("10.1.1.1"), at("10.1.1.200")], [1, 2, 3]);
        table.insert(prefix("10.0.0.0/9"), 4).unwrap();
        assert_eq!([at("10.200.0.0"), at("10.100.0.0"), at("10.1.1.1")], [1, 4, 2]);
        table.remove(prefix("10.1.0.0/21"));
        assert_eq!([at("10.1.1.1"), at("10.1.1.200")], [4, 3]);
        assert_eq!(prefix("10.1.1.128/25").bits(), Ipv4Addr::new(10, 1, 1, 128).bits());
    }
}
