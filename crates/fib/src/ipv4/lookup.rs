//! The readers' side of the IPv4 table, and the lookups.
//!
//! A batch's words are prefetched all at once; then each address's word and leaf are loaded one after
//! the other, and the processor's out-of-order execution overlaps those of its neighbours: a leaf's load
//! starts when its own word has arrived, not when all words have.
//!
//! ```text
//!  prefetch  w0 w1 w2 ... w31
//!  then      w0 -> leaf 0
//!               w1 -> leaf 1           nothing waits for the line above it
//!                  w2 -> leaf 2 ...
//! ```
//!
//! For that reason this scalar loop replaced one of AVX-512 gathers. With all data in the caches gathers
//! were up to 1.1 times faster, and 1.2 times for 64 flows; but a gather ends when its slowest element
//! has arrived, and between the work on packets, where the table is cold, they took 1.3 to 1.8 times as
//! long. A loop per stage (all words, then all leaf prefetches, then all leaves) is slower by a fifth
//! everywhere.
//!
//! Callers that can prefetch long before they need the answers (`prefetch_batch`) have a second way, by
//! the *outline*: 128 KiB with the answer of every /16 that has a single one. Two of three random
//! addresses are in such a /16 of a full table, and most of all in a small table; their words, of 4 MiB,
//! are not read. Where the outline does not help, it costs one more load, which hides behind the
//! caller's other work; without such work it does not (see `ipv4.rs`).
//!
//! The same source is compiled twice, and selected once when a reader is made: `Fast` with `popcnt` and
//! BMI2, `Plain` for any processor.

use std::{
    marker::PhantomData,
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering, fence},
    },
};

use crate::{
    Address, Lookup, NextHopId,
    arena::Arena,
    prefetch::prefetch,
    words::{LEAVES, SLOTS, leaf_index},
};

/// Leading bits that choose the block.
pub(super) const BLOCK_BITS: u8 = 19;
pub(super) const BLOCKS: usize = 1 << BLOCK_BITS;

/// Set in a leaf that is the number of a deep table.
pub(super) const DEEP: u16 = 1 << 15;
pub(super) const DEEP_TABLES: usize = if cfg!(miri) { 16 } else { 1 << 15 };
/// Addresses of a deep table, and the words for them.
pub(super) const DEEP_SIZE: usize = 256;
pub(super) const DEEP_WORDS: usize = DEEP_SIZE / SLOTS;
/// Words: one per block, then those of the deep tables.
pub(super) const WORDS: usize = BLOCKS + DEEP_TABLES * DEEP_WORDS;

/// Addresses looked up together.
const BATCH: usize = 64;

/// Entries of the outline, one per /16, and the number of blocks per entry.
pub(super) const OUTLINE_BITS: u8 = 16;
pub(super) const OUTLINE: usize = 1 << OUTLINE_BITS;
pub(super) const OUTLINE_BLOCKS: usize = BLOCKS / OUTLINE;
/// In the outline: the words have more than one answer.
pub(super) const VARIED: u16 = 1 << 15;

/// The part of the table that readers see.
pub(super) struct Shared {
    pub words: Arena<AtomicU64>,
    pub leaves: Arena<AtomicU16>,
    /// The answer of a whole /16, or [`VARIED`].
    pub outline: Arena<AtomicU16>,
}

#[inline(always)]
fn block(address: u32) -> usize {
    (address >> (32 - BLOCK_BITS)) as usize
}

#[inline(always)]
fn outline_index(address: u32) -> usize {
    (address >> (32 - OUTLINE_BITS)) as usize
}

/// Index of an address's word if the outline's entry lacks the answer, else of an arbitrary word, the
/// same each time.
#[inline(always)]
fn word_to_read(entry: u16, address: u32) -> usize {
    if entry & VARIED != 0 { block(address) } else { 0 }
}

/// Returns the index of the word for an address in the deep table that a leaf names.
#[inline(always)]
fn deep_word(leaf: u16, address: u32) -> usize {
    let table = usize::from(leaf & !DEEP) % DEEP_TABLES;
    BLOCKS + table * DEEP_WORDS + (address >> 5) as usize % DEEP_WORDS
}

/// Splits into pieces of the same length, at most 64.
#[inline(always)]
pub(super) fn batches<'a>(
    addresses: &'a [u32],
    out: &'a mut [NextHopId],
) -> impl Iterator<Item = (&'a [u32], &'a mut [NextHopId])> {
    let count = addresses.len().min(out.len());
    addresses[..count].chunks(BATCH).zip(out[..count].chunks_mut(BATCH))
}

impl Shared {
    pub fn new() -> Self {
        Self { words: Arena::new(WORDS), leaves: Arena::new(LEAVES), outline: Arena::new(OUTLINE) }
    }

    /// Requests memory of a NUMA node.
    pub fn place(&self, node: u32) {
        self.words.place(node);
        self.leaves.place(node);
        self.outline.place(node);
    }

    fn one(&self, address: u32) -> NextHopId {
        let (words, leaves) = (self.words.all(), self.leaves.all());
        let word = words[block(address)].load(Ordering::Acquire);
        let leaf = leaves[leaf_index(word, address >> 8)].load(Ordering::Acquire);
        if leaf & DEEP == 0 {
            return leaf;
        }
        let word = words[deep_word(leaf, address)].load(Ordering::Acquire);
        leaves[leaf_index(word, address)].load(Ordering::Relaxed)
    }

    /// Looks up the leaves of at most 64 addresses; returns their OR. With the outline, no word is read
    /// of a /16 whose answer it has, and nothing is prefetched: the caller has done so.
    #[inline(always)]
    fn shallow<const BY_OUTLINE: bool>(&self, addresses: &[u32], out: &mut [NextHopId]) -> u16 {
        let words: &[AtomicU64; WORDS] = self.words.array();
        let leaves: &[AtomicU16; LEAVES] = self.leaves.array();
        let outline: &[AtomicU16; OUTLINE] = self.outline.array();
        if !BY_OUTLINE {
            for &address in addresses {
                prefetch(words, block(address));
            }
        }
        let mut any = 0;
        for (&address, out) in addresses.iter().zip(out) {
            let entry = if BY_OUTLINE {
                // Acquire: a reader that sees several answers for a /16 also sees its words.
                outline[outline_index(address)].load(Ordering::Acquire)
            } else {
                VARIED
            };
            // Acquire: the leaves that the word leads to are visible as well.
            let word = words[word_to_read(entry, address)].load(Ordering::Acquire);
            let leaf = leaves[leaf_index(word, address >> 8)].load(Ordering::Relaxed);
            // Both values are available: a select, not a jump.
            let answer = if entry & VARIED != 0 { leaf } else { entry };
            *out = answer;
            any |= answer;
        }
        any
    }

    /// Looks up the only address of a batch, without what loops over many cost before and after.
    #[inline(always)]
    fn alone<const BY_OUTLINE: bool>(&self, address: u32) -> NextHopId {
        let mut out = [0];
        if self.shallow::<BY_OUTLINE>(&[address], &mut out) & DEEP != 0 {
            self.deepen(&[address], &mut out, 1);
        }
        let [answer] = out;
        answer
    }

    /// Replaces leaves that name deep tables by the answers in these, at the bits of `at`.
    #[inline(always)]
    fn deepen(&self, addresses: &[u32], out: &mut [NextHopId], mut at: u64) {
        let words: &[AtomicU64; WORDS] = self.words.array();
        let leaves: &[AtomicU16; LEAVES] = self.leaves.array();
        // Pairs with the release stores of leaves: their deep tables are visible as well.
        fence(Ordering::Acquire);
        while at != 0 {
            let place = at.trailing_zeros() as usize;
            at &= at - 1;
            if let (Some(&address), Some(out)) = (addresses.get(place), out.get_mut(place)) {
                let word = words[deep_word(*out, address)].load(Ordering::Acquire);
                *out = leaves[leaf_index(word, address)].load(Ordering::Relaxed);
            }
        }
    }
}

/// A table that looks up IPv4 addresses in batches.
pub(super) trait Source: Send + Sync + 'static {
    /// Looks up one address.
    fn lookup(&self, address: u32) -> NextHopId;

    /// Looks up any number of addresses, optionally by the outline first.
    fn lookup_batch<const BY_OUTLINE: bool>(&self, addresses: &[u32], out: &mut [NextHopId]);

    /// Prefetches what looking up these addresses by the outline reads.
    fn prefetch(&self, addresses: &[u32]);
}

impl Source for Shared {
    fn lookup(&self, address: u32) -> NextHopId {
        self.one(address)
    }

    #[inline(always)]
    fn lookup_batch<const BY_OUTLINE: bool>(&self, addresses: &[u32], out: &mut [NextHopId]) {
        if let (&[address], [out, ..]) = (addresses, &mut *out) {
            *out = self.alone::<BY_OUTLINE>(address);
            return;
        }
        for (addresses, out) in batches(addresses, out) {
            if self.shallow::<BY_OUTLINE>(addresses, out) & DEEP != 0 {
                self.deepen(addresses, out, deep_places(out));
            }
        }
    }

    #[inline(always)]
    fn prefetch(&self, addresses: &[u32]) {
        let words: &[AtomicU64; WORDS] = self.words.array();
        let outline: &[AtomicU16; OUTLINE] = self.outline.array();
        match addresses {
            &[address] => prefetch_word(words, outline, address),
            _ => addresses.iter().for_each(|&address| prefetch_word(words, outline, address)),
        }
    }
}

/// Prefetches the word for an address, if the outline lacks the answer.
#[inline(always)]
fn prefetch_word(words: &[AtomicU64; WORDS], outline: &[AtomicU16; OUTLINE], address: u32) {
    let entry = outline[outline_index(address)].load(Ordering::Relaxed);
    prefetch(words, word_to_read(entry, address));
}

/// Returns the places, one bit each, of leaves that name deep tables.
#[inline(always)]
pub(super) fn deep_places(leaves: &[u16]) -> u64 {
    let bits = leaves.iter().enumerate().map(|(at, &leaf)| u64::from(leaf >> 15) << (at % BATCH));
    bits.fold(0, |all, bit| all | bit)
}

/// An implementation of the batch lookup.
pub(super) trait Kernel: Send + Sync + 'static {
    fn lookup_batch<const BY_OUTLINE: bool>(
        source: &impl Source,
        addresses: &[u32],
        out: &mut [NextHopId],
    );
}

/// For any processor.
struct Plain;

impl Kernel for Plain {
    fn lookup_batch<const BY_OUTLINE: bool>(
        source: &impl Source,
        addresses: &[u32],
        out: &mut [NextHopId],
    ) {
        source.lookup_batch::<BY_OUTLINE>(addresses, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "calls functions compiled for a processor that was found to fit")]
mod x86 {
    use super::*;

    /// For processors with `popcnt` and BMI2. Used only after [`Fast::works`].
    pub struct Fast;

    impl Fast {
        pub fn works() -> bool {
            is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
        }
    }

    impl Kernel for Fast {
        fn lookup_batch<const BY_OUTLINE: bool>(
            source: &impl Source,
            addresses: &[u32],
            out: &mut [NextHopId],
        ) {
            // SAFETY: this kernel is only used after `Fast::works` has confirmed that the processor has
            // the instructions that the function is compiled for.
            unsafe { fast::<_, BY_OUTLINE>(source, addresses, out) }
        }
    }

    #[target_feature(enable = "popcnt,bmi1,bmi2")]
    fn fast<S: Source, const BY_OUTLINE: bool>(
        source: &S,
        addresses: &[u32],
        out: &mut [NextHopId],
    ) {
        source.lookup_batch::<BY_OUTLINE>(addresses, out);
    }
}

/// A reader of a table of kind `S` with the kernel `K`.
struct Reader<K, S>(Arc<S>, PhantomData<fn() -> K>);

impl<K: Kernel, S: Source> Lookup<Ipv4Addr> for Reader<K, S> {
    fn lookup(&self, address: Ipv4Addr) -> NextHopId {
        self.0.lookup(address.bits())
    }

    fn lookup_batch(&self, addresses: &[u32], out: &mut [NextHopId]) {
        K::lookup_batch::<false>(&*self.0, addresses, out);
    }

    fn lookup_prefetched(&self, addresses: &[u32], out: &mut [NextHopId]) {
        K::lookup_batch::<true>(&*self.0, addresses, out);
    }

    fn prefetch_batch(&self, addresses: &[u32]) {
        self.0.prefetch(addresses);
    }
}

fn with<K: Kernel>(source: &Arc<impl Source>) -> Arc<dyn Lookup<Ipv4Addr>> {
    Arc::new(Reader::<K, _>(Arc::clone(source), PhantomData))
}

/// Returns the fastest reader for this processor.
pub(super) fn reader(source: &Arc<impl Source>) -> Arc<dyn Lookup<Ipv4Addr>> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if x86::Fast::works() {
            return with::<x86::Fast>(source);
        }
    }
    with::<Plain>(source)
}

/// Returns a reader with each kernel that this processor can run.
#[cfg(test)]
pub(super) fn all_readers(source: &Arc<impl Source>) -> Vec<Arc<dyn Lookup<Ipv4Addr>>> {
    let mut readers = vec![with::<Plain>(source)];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if x86::Fast::works() {
            readers.push(with::<x86::Fast>(source));
        }
    }
    readers
}
