//! The readers' side of the IPv6 table, and the lookups.
//!
//! The batch lookup exists twice, selected once when a reader is made: `Fast` finds the rank of a
//! digit among a node's keys with vector instructions (`ipv6/rank.rs`), `Plain` key by key.

use std::{
    marker::PhantomData,
    net::Ipv6Addr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

use crate::{
    Address, Lookup, NextHopId,
    arena::Arena,
    prefetch::prefetch,
    words::{LEAVES, SLOTS, leaf_index},
};

/// Bits of a digit; the first one is the directory's.
pub(super) const DIGIT: u8 = 16;
/// Values of a digit.
pub(super) const DIGITS: usize = 1 << DIGIT;
/// Words of a slab.
pub(super) const SLAB: usize = DIGITS / SLOTS;
pub(super) const SLABS: usize = if cfg!(miri) { 4 } else { 4096 };
/// Words: one per /16, then the slabs.
const WORDS: usize = DIGITS + SLABS * SLAB;

/// Runs of a node.
pub(super) const FAN_OUT: usize = 11;
/// 32-bit cells of a node: ten keys in five cells, then the answers.
pub(super) const NODE_CELLS: usize = 16;
pub(super) const KEY_CELLS: usize = 5;
pub(super) const NODES: usize = if cfg!(miri) { 1 << 12 } else { 1 << 22 };

/// A next hop, or a node: bit 31 set, bits 28 to 30 its digit, then its number; or a slab: bit 31
/// set, no digit, its first word.
pub(super) type Answer = u32;
pub(super) const IS_NODE: Answer = 1 << 31;
const DIGIT_SHIFT: u32 = 28;
/// No node has digit 0: an answer between [`IS_NODE`] and this is a slab.
const SLAB_END: Answer = IS_NODE | 1 << DIGIT_SHIFT;

pub(super) fn node_answer(number: u32, digit: u8) -> Answer {
    IS_NODE | u32::from(digit) << DIGIT_SHIFT | number
}

/// Returns the answer that is a slab, given its first word.
pub(super) fn slab_answer(first: usize) -> Answer {
    IS_NODE | first as u32
}

/// Returns the first word of an answer's slab.
pub(super) fn slab_of(answer: Answer) -> Option<usize> {
    (IS_NODE..SLAB_END).contains(&answer).then_some((answer & !IS_NODE) as usize)
}

/// Returns the digit of an answer's node.
pub(super) fn node_digit(answer: Answer) -> Option<u8> {
    (answer >= SLAB_END).then_some((answer >> DIGIT_SHIFT) as u8 & 7)
}

/// Returns the number of an answer's node.
#[inline(always)]
pub(super) fn node_number(answer: Answer) -> usize {
    answer as usize % NODES
}

/// A node, one cache line.
pub(super) type Node = [AtomicU32; NODE_CELLS];

/// Returns the index of an address's word.
#[inline(always)]
pub(super) fn word_index(entry: u64, address: u128) -> usize {
    let offset = (address >> 101) as u32 & (entry >> 32) as u32;
    ((address >> 112) as u32).wrapping_add(entry as u32).wrapping_add(offset) as usize
}

/// Returns the offset of an address's word in the slab of its /32.
#[inline(always)]
fn slab_offset(address: u128) -> usize {
    (address >> 85) as usize % SLAB
}

/// Returns the digit of an address that an answer's node compares.
#[inline(always)]
fn digit_of(answer: Answer, address: &u128) -> &u16 {
    // In memory, so that selecting one is a load and not a shift of 128 bits.
    let digits: &[u16; 8] = bytemuck::must_cast_ref(address);
    let place = (answer >> DIGIT_SHIFT) as usize % 8;
    &digits[if cfg!(target_endian = "little") { 7 - place } else { place }]
}

/// Addresses looked up together.
pub(super) const BATCH: usize = 64;

/// The part of the table that readers see.
pub(super) struct Shared {
    /// Per /16: the low half is added to its number to get the (first) word, the high half is the
    /// mask.
    pub directory: Arena<AtomicU64>,
    pub words: Arena<AtomicU64>,
    pub leaves: Arena<AtomicU32>,
    pub nodes: Arena<Node>,
}

impl Shared {
    pub fn new() -> Self {
        Self {
            directory: Arena::new(DIGITS),
            words: Arena::new(WORDS),
            leaves: Arena::new(LEAVES),
            nodes: Arena::new(NODES),
        }
    }

    /// Requests memory of a NUMA node.
    pub fn place(&self, node: u32) {
        self.directory.place(node);
        self.words.place(node);
        self.leaves.place(node);
        self.nodes.place(node);
    }

    fn lookup(&self, address: u128) -> NextHopId {
        let entry = self.directory.all()[(address >> 112) as usize].load(Ordering::Acquire);
        let word = self.words.all()[word_index(entry, address)].load(Ordering::Acquire);
        let leaf = &self.leaves.all()[leaf_index(word, (address >> 96) as u32)];
        let mut answer = leaf.load(Ordering::Acquire);
        if let Some(slab) = slab_of(answer) {
            let word = self.words.all()[slab + slab_offset(address)].load(Ordering::Acquire);
            let leaf = &self.leaves.all()[leaf_index(word, (address >> 80) as u32)];
            answer = leaf.load(Ordering::Acquire);
        }
        walk::<NODES>(self.nodes.array(), answer, address)
    }

    /// Looks up at most 64 addresses.
    #[inline(always)]
    fn chunk<K: Kernel>(&self, addresses: &[u128], out: &mut [NextHopId]) {
        let directory: &[AtomicU64; DIGITS] = self.directory.array();
        let words: &[AtomicU64; WORDS] = self.words.array();
        let leaves: &[AtomicU32; LEAVES] = self.leaves.array();
        let mut places = [0u32; BATCH];
        for (&address, place) in addresses.iter().zip(&mut places) {
            let entry = directory[(address >> 112) as usize].load(Ordering::Relaxed);
            *place = word_index(entry, address) as u32;
            prefetch(words, *place as usize);
        }
        // Each fence pairs with the release stores of the values loaded before it.
        let (mut list, mut count) = ([0u8; BATCH], 0);
        let (mut dense, mut dense_count) = ([0u8; BATCH], 0);
        let lookups = addresses.iter().zip(places.iter_mut()).zip(out.iter_mut());
        for (at, ((&address, place), out)) in lookups.enumerate() {
            // Acquire: the leaf that the word leads to is visible as well. Its load does not wait
            // for the lookups before, so that the processor overlaps them without a prefetch.
            let word = words[*place as usize].load(Ordering::Acquire);
            let leaf = leaf_index(word, (address >> 96) as u32);
            let answer = leaves[leaf].load(Ordering::Relaxed);
            *place = answer;
            *out = answer as NextHopId;
            prefetch(self.nodes.all(), node_number(answer));
            // Appended without a branch: a place written in vain is overwritten.
            let is_dense = slab_of(answer).is_some();
            dense[dense_count % BATCH] = at as u8;
            dense_count += usize::from(is_dense);
            list[count % BATCH] = at as u8;
            count += (answer >> 31) as usize - usize::from(is_dense);
        }
        fence(Ordering::Acquire);
        if dense_count > 0 {
            let dense = &dense[..dense_count.min(BATCH)];
            count = self.resolve_slabs(addresses, out, &mut places, dense, &mut list, count);
        }
        let nodes: &[Node; NODES] = self.nodes.array();
        while count > 0 {
            count = step_all::<K, NODES>(nodes, addresses, out, &mut places, &mut list, count);
        }
    }

    /// Looks up the answers that are slabs; appends those that become nodes to the list, and
    /// returns its length.
    #[inline(always)]
    fn resolve_slabs(
        &self,
        addresses: &[u128],
        out: &mut [NextHopId],
        answers: &mut [Answer; BATCH],
        dense: &[u8],
        list: &mut [u8; BATCH],
        mut count: usize,
    ) -> usize {
        let words: &[AtomicU64; WORDS] = self.words.array();
        let leaves: &[AtomicU32; LEAVES] = self.leaves.array();
        for &at in dense {
            let at = usize::from(at) % BATCH;
            let (Some(&address), Some(out)) = (addresses.get(at), out.get_mut(at)) else { break };
            let place = (answers[at] & !IS_NODE) as usize + slab_offset(address);
            let word = words[place].load(Ordering::Acquire);
            let leaf = leaf_index(word, (address >> 80) as u32);
            let answer = leaves[leaf].load(Ordering::Relaxed);
            answers[at] = answer;
            *out = answer as NextHopId;
            prefetch(self.nodes.all(), node_number(answer));
            list[count % BATCH] = at as u8;
            count += (answer >> 31) as usize;
        }
        fence(Ordering::Acquire);
        count
    }
}

/// A table that looks up by nodes in the end.
pub(super) trait Source: Send + Sync + 'static {
    /// Looks up one address.
    fn lookup(&self, address: u128) -> NextHopId;

    /// Looks up at most 64 addresses.
    fn lookup_chunk<K: Kernel>(&self, addresses: &[u128], out: &mut [NextHopId]);
}

impl Source for Shared {
    fn lookup(&self, address: u128) -> NextHopId {
        self.lookup(address)
    }

    #[inline(always)]
    fn lookup_chunk<K: Kernel>(&self, addresses: &[u128], out: &mut [NextHopId]) {
        self.chunk::<K>(addresses, out);
    }
}

/// Looks up any number of addresses.
#[inline(always)]
fn lookup_all<K: Kernel>(source: &impl Source, addresses: &[u128], out: &mut [NextHopId]) {
    let count = addresses.len().min(out.len());
    let batches = addresses[..count].chunks(BATCH).zip(out[..count].chunks_mut(BATCH));
    for (addresses, out) in batches {
        source.lookup_chunk::<K>(addresses, out);
    }
}

/// Follows an answer to its next hop.
pub(super) fn walk<const N: usize>(
    nodes: &[Node; N],
    mut answer: Answer,
    address: u128,
) -> NextHopId {
    while answer & IS_NODE != 0 {
        answer = step::<Plain, N>(nodes, answer, &address);
    }
    answer as NextHopId
}

/// Returns the answer of a node for an address.
#[inline(always)]
fn step<K: Kernel, const N: usize>(nodes: &[Node; N], answer: Answer, address: &u128) -> Answer {
    let node = &nodes[node_number(answer) % N];
    let rank = K::rank(node, digit_of(answer, address));
    node[(KEY_CELLS + rank) % NODE_CELLS].load(Ordering::Acquire)
}

/// Advances every lookup on the list by one node; returns the number that stay on it.
#[inline(always)]
pub(super) fn step_all<K: Kernel, const N: usize>(
    nodes: &[Node; N],
    addresses: &[u128],
    out: &mut [NextHopId],
    answers: &mut [Answer; BATCH],
    list: &mut [u8; BATCH],
    count: usize,
) -> usize {
    let mut left = 0;
    for index in 0..count.min(BATCH) {
        let at = usize::from(list[index]) % BATCH;
        let (Some(address), Some(out)) = (addresses.get(at), out.get_mut(at)) else { break };
        let answer = step::<K, N>(nodes, answers[at], address);
        answers[at] = answer;
        *out = answer as NextHopId;
        prefetch(nodes, node_number(answer));
        list[left % BATCH] = at as u8;
        left += (answer >> 31) as usize;
    }
    left
}

/// An implementation of the batch lookup.
pub(super) trait Kernel: Send + Sync + 'static {
    /// Counts the keys of a node that are not greater than the digit.
    fn rank(node: &Node, digit: &u16) -> usize;

    fn lookup_batch(source: &impl Source, addresses: &[u128], out: &mut [NextHopId]);
}

/// For any processor.
struct Plain;

impl Kernel for Plain {
    #[inline(always)]
    fn rank(node: &Node, digit: &u16) -> usize {
        let keys = node[..KEY_CELLS].iter().map(|cell| cell.load(Ordering::Relaxed));
        let ranks = keys.map(|pair| (pair as u16 <= *digit, (pair >> 16) as u16 <= *digit));
        ranks.map(|(low, high)| usize::from(low) + usize::from(high)).sum()
    }

    fn lookup_batch(source: &impl Source, addresses: &[u128], out: &mut [NextHopId]) {
        lookup_all::<Self>(source, addresses, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "calls functions compiled for a processor that was found to fit")]
mod x86 {
    use super::*;
    use crate::ipv6::rank;

    /// For processors with `popcnt`, BMI2 and AVX2. Used only after [`Fast::works`].
    pub struct Fast;

    impl Fast {
        pub fn works() -> bool {
            rank::works()
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
        }
    }

    impl Kernel for Fast {
        #[inline(always)]
        fn rank(node: &Node, digit: &u16) -> usize {
            // SAFETY: this kernel is only used after `Fast::works` has confirmed that the processor
            // has the instructions.
            unsafe { rank::rank(node, digit) }
        }

        fn lookup_batch(source: &impl Source, addresses: &[u128], out: &mut [NextHopId]) {
            // SAFETY: this kernel is only used after `Fast::works` has confirmed that the processor
            // has the instructions that the function is compiled for.
            unsafe { fast(source, addresses, out) }
        }
    }

    #[target_feature(enable = "popcnt,bmi1,bmi2,avx2")]
    fn fast(source: &impl Source, addresses: &[u128], out: &mut [NextHopId]) {
        lookup_all::<Fast>(source, addresses, out);
    }
}

/// A reader of a table of kind `S` with the kernel `K`.
struct Reader<K, S>(Arc<S>, PhantomData<fn() -> K>);

impl<K: Kernel, S: Source> Lookup<Ipv6Addr> for Reader<K, S> {
    fn lookup(&self, address: Ipv6Addr) -> NextHopId {
        self.0.lookup(address.bits())
    }

    fn lookup_batch(&self, addresses: &[u128], out: &mut [NextHopId]) {
        K::lookup_batch(&*self.0, addresses, out);
    }
}

fn with<K: Kernel>(source: &Arc<impl Source>) -> Arc<dyn Lookup<Ipv6Addr>> {
    Arc::new(Reader::<K, _>(Arc::clone(source), PhantomData))
}

/// Returns the fastest reader for this processor.
pub(super) fn reader(source: &Arc<impl Source>) -> Arc<dyn Lookup<Ipv6Addr>> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if x86::Fast::works() {
        return with::<x86::Fast>(source);
    }
    with::<Plain>(source)
}

/// Returns a reader with each kernel that this processor can run.
#[cfg(test)]
pub(super) fn all_readers(source: &Arc<impl Source>) -> Vec<Arc<dyn Lookup<Ipv6Addr>>> {
    vec![with::<Plain>(source), reader(source)]
}
