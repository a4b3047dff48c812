//! Poptrie: a multiway trie compressed by counting bits, for IPv4 and IPv6.
//!
//! Asai and Ohara, "Poptrie: A Compressed Trie with Population Count for Fast and Scalable
//! Software IP Routing Table Lookup", SIGCOMM 2015: here with direct pointing of 18 bits (section
//! 3.4), the leaf bit vector (3.3) and lock-free update (3.5). Written from the paper.
//!
//! # The structure
//!
//! ```text
//!  address  | 18 bits: direct | 6 | 6 | 6 | ...
//!
//!  direct   [ leaf | node | leaf | ... 2^18 ]      top bit: a leaf, else a node's number
//!
//!  node     vector   64 bits   bit v: slot v leads to a node, else to a leaf
//!           leafvec  64 bits   bit v: slot v begins a run of equal leaves
//!           base1    32 bits   the first of its child nodes, which lie side by side
//!           base0    32 bits   the first of its leaves
//!
//!  child of slot v   nodes [base1 + popcount(vector  & bits 0 to v) - 1]
//!  leaf of slot v    leaves[base0 + popcount(leafvec & bits 0 to v) - 1]
//! ```
//!
//! # Cost of a lookup
//!
//! One load of 4 bytes if the direct entry is a leaf; else one node of 24 bytes per 6 bits and one
//! leaf of 2 bytes, each load waiting for the previous one, with a branch per step that depends on
//! the address. The paper's algorithm looks up one address at a time, and so do runs of more than 64 here.
//! Shorter ones, as forwarders have, are looked up level by level, the loads of a level side by side.
//! A node whose answers would all be equal is not made (the paper's route aggregation): that keeps
//! more addresses in the direct table, and its branch predictable.
//!
//! # Cost of an update
//!
//! The nodes on the way to the changed prefix are copied, with the arrays they lie in, and the part
//! below the prefix is rebuilt; then the direct entry is stored and the pieces it led to before
//! retire. For prefixes up to /18 each direct entry they cover is rebuilt.
//!
//! # Why readers are not disturbed
//!
//! A node is not changed once it is reachable; a direct entry is one atomic store with release
//! ordering, and readers load it with acquire ordering. Each address is governed by one entry.
//!
//! # Lent memory
//!
//! The memory may be lent ([`Lent6`]), so that programs in the kernel read the table as well.
//!
//! # Limits
//!
//! Next hops: 32,767. Nodes 2^22, leaves 2^25 ([`Error::Full`] beyond). Memory that lookups read:
//! 1 MiB, plus 24 bytes per node and 2 per run of leaves, rounded up to powers of two per array.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{
    Address, Bits, Change, Error, GracePeriod, Lookup, NO_ROUTE, NextHopId, Prefix, Table,
    arena::{Arena, Room},
    buddy::Buddy,
    check_changes, check_next_hop, check_room,
    prefetch::prefetch,
    rib::{NodeId, Rib, Slot, SlotRuns},
    runs::Retired,
};

/// Bits of the direct table.
const DIRECT: u8 = 18;
const ENTRIES: usize = 1 << DIRECT;
/// Bits of a node.
const STEP: u8 = 6;
const SLOTS: usize = 1 << STEP;
const NODES: usize = if cfg!(miri) { 1 << 12 } else { 1 << 22 };
const LEAVES: usize = if cfg!(miri) { 1 << 13 } else { 1 << 25 };
/// Words of a node: vector, leafvec, bases.
const NODE_WORDS: usize = 3;
/// A direct entry with this bit is a leaf.
const IS_LEAF: u32 = 1 << 31;

/// Memory of a table that others than this process read and nobody else writes.
#[derive(Clone, Copy, Debug)]
pub struct Lent6 {
    /// An entry for each value of the first 18 bits.
    pub direct: &'static [AtomicU32],
    /// Room for 2^22 nodes.
    pub nodes: &'static [[AtomicU64; NODE_WORDS]],
    /// Room for 2^25 leaves.
    pub leaves: &'static [AtomicU16],
    /// The first of these nodes and leaves, which others read and which alone are used.
    pub used: (usize, usize),
}

/// The kinds of memory of a table.
trait Rooms: 'static {
    type Direct: Room<AtomicU32>;
    type Nodes: Room<[AtomicU64; NODE_WORDS]>;
    type Leaves: Room<AtomicU16>;
}

/// The table's own memory.
pub(crate) struct Own;

impl Rooms for Own {
    type Direct = Arena<AtomicU32>;
    type Nodes = Arena<[AtomicU64; NODE_WORDS]>;
    type Leaves = Arena<AtomicU16>;
}

/// Lent memory.
pub(crate) struct Lent;

impl Rooms for Lent {
    type Direct = &'static [AtomicU32];
    type Nodes = &'static [[AtomicU64; NODE_WORDS]];
    type Leaves = &'static [AtomicU16];
}

/// The part of the table that readers see.
struct Shared<M: Rooms> {
    direct: M::Direct,
    nodes: M::Nodes,
    leaves: M::Leaves,
}

/// A node's contents.
#[derive(Clone, Copy, Default)]
struct Node {
    vector: u64,
    leafvec: u64,
    /// First leaf and first child.
    base0: u32,
    base1: u32,
}

/// Returns the bits 0 to `slot`.
#[inline(always)]
fn up_to(slot: u32) -> u64 {
    (2u64 << slot).wrapping_sub(1)
}

/// Returns the bits before `slot`.
#[inline(always)]
fn below(slot: u32) -> u64 {
    (1u64 << slot).wrapping_sub(1)
}

impl<M: Rooms> Shared<M> {
    fn new(direct: M::Direct, nodes: M::Nodes, leaves: M::Leaves) -> Self {
        let shared = Self { direct, nodes, leaves };
        for entry in shared.direct.all() {
            entry.store(IS_LEAF | u32::from(NO_ROUTE), Ordering::Relaxed);
        }
        shared
    }

    /// Returns the arrays, with lengths known at compile time: done once, not per address.
    #[inline(always)]
    fn view(&self) -> View<'_> {
        View { direct: self.direct.array(), nodes: self.nodes.array(), leaves: self.leaves.array() }
    }

    fn node(&self, number: u32) -> Node {
        let [vector, leafvec, bases] =
            self.nodes.all()[number as usize].each_ref().map(|word| word.load(Ordering::Relaxed));
        Node { vector, leafvec, base0: bases as u32, base1: (bases >> 32) as u32 }
    }

    fn store_node(&self, number: u32, node: Node) {
        let bases = u64::from(node.base1) << 32 | u64::from(node.base0);
        let words = &self.nodes.all()[number as usize];
        for (word, value) in words.iter().zip([node.vector, node.leafvec, bases]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the leaf of a slot that has one.
    fn leaf(&self, node: Node, slot: usize) -> NextHopId {
        let rank = (node.leafvec & up_to(slot as u32)).count_ones();
        self.leaves.all()[(node.base0 + rank - 1) as usize].load(Ordering::Relaxed)
    }
}

/// View of [`Shared`] for the duration of a lookup.
#[derive(Clone, Copy)]
struct View<'a> {
    direct: &'a [AtomicU32; ENTRIES],
    nodes: &'a [[AtomicU64; NODE_WORDS]; NODES],
    leaves: &'a [AtomicU16; LEAVES],
}

impl View<'_> {
    #[inline(always)]
    fn lookup<B: Bits>(self, address: B) -> NextHopId {
        let entry =
            self.direct[address.slice(0, DIRECT) as usize % ENTRIES].load(Ordering::Acquire);
        if entry & IS_LEAF != 0 {
            return entry as NextHopId;
        }
        self.descend(entry, address.skip(DIRECT))
    }

    /// Finds the leaf below a node, by the bits of the address from the node's level on.
    #[inline(always)]
    fn descend<B: Bits>(self, mut number: u32, mut rest: B) -> NextHopId {
        loop {
            let [vector, leafvec, bases] = &self.nodes[number as usize % NODES];
            let vector = vector.load(Ordering::Relaxed);
            let slot = rest.slice(0, STEP);
            if vector >> slot & 1 == 0 {
                let rank = (leafvec.load(Ordering::Relaxed) & up_to(slot)).count_ones();
                let leaf = (bases.load(Ordering::Relaxed) as u32).wrapping_add(rank);
                return self.leaves[leaf.wrapping_sub(1) as usize % LEAVES].load(Ordering::Relaxed);
            }
            // Up to the slot, which is set, minus one.
            let rank = (vector & below(slot)).count_ones();
            number = ((bases.load(Ordering::Relaxed) >> 32) as u32).wrapping_add(rank);
            rest = rest.skip(STEP);
        }
    }
}

/// Addresses looked up together.
const BATCH: usize = 64;

impl View<'_> {
    /// Prefetches the direct entries of addresses.
    #[inline(always)]
    fn prefetch<B: Bits>(self, addresses: &[B]) {
        for address in addresses {
            prefetch(self.direct, address.slice(0, DIRECT) as usize % ENTRIES);
        }
    }

    /// Looks up at most [`BATCH`] addresses level by level: the loads of a level overlap, those of the next one are
    /// prefetched.
    #[inline(always)]
    fn lookup_together<B: Bits>(self, addresses: &[B], out: &mut [NextHopId]) {
        let mut numbers = [0; BATCH];
        let mut open = 0;
        for (at, ((address, out), number)) in
            addresses.iter().zip(&mut *out).zip(&mut numbers).enumerate()
        {
            let entry =
                self.direct[address.slice(0, DIRECT) as usize % ENTRIES].load(Ordering::Acquire);
            (*out, *number) = (entry as NextHopId, entry);
            let has_node = entry & IS_LEAF == 0;
            open |= u64::from(has_node) << at;
            prefetch(self.nodes, if has_node { entry as usize % NODES } else { 0 });
        }
        let (below_nodes, mut from) = (open, DIRECT);
        while open != 0 {
            for at in places(open) {
                let (number, has_child) =
                    self.step(numbers[at], addresses[at].skip(from).slice(0, STEP));
                numbers[at] = number;
                open ^= u64::from(!has_child) << at;
                prefetch(self.nodes, if has_child { number as usize % NODES } else { 0 });
                prefetch(self.leaves, if has_child { 0 } else { number as usize % LEAVES });
            }
            from += STEP;
        }
        for at in places(below_nodes) {
            out[at] = self.leaves[numbers[at] as usize % LEAVES].load(Ordering::Relaxed);
        }
    }

    /// Returns the number of a node's child at a slot and true, or that of its leaf and false.
    #[inline(always)]
    fn step(self, number: u32, slot: u32) -> (u32, bool) {
        let words = &self.nodes[number as usize % NODES];
        let [vector, leafvec, bases] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let leaf = (bases as u32).wrapping_add((leafvec & up_to(slot)).count_ones());
        let child = ((bases >> 32) as u32).wrapping_add((vector & below(slot)).count_ones());
        let has_child = vector >> slot & 1 != 0;
        (if has_child { child } else { leaf.wrapping_sub(1) }, has_child)
    }
}

/// Returns the places of the bits that are set.
#[inline(always)]
fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(place)
    })
}

/// A reader; `FAST` if the processor has `popcnt` and BMI2, checked once at construction.
struct Reader<M: Rooms, const FAST: bool>(Arc<Shared<M>>);

impl<A: Address, M: Rooms, const FAST: bool> Lookup<A> for Reader<M, FAST> {
    fn lookup(&self, address: A) -> NextHopId {
        self.0.view().lookup(address.bits())
    }

    #[allow(
        unsafe_code,
        reason = "calls a function compiled for a processor that was found to fit"
    )]
    fn lookup_batch(&self, addresses: &[A::Bits], out: &mut [NextHopId]) {
        #[cfg(target_arch = "x86_64")]
        if FAST {
            // SAFETY: `Reader<_, true>` is only made by `reader()`, after it has confirmed that the
            // processor has the instructions that `lookup_all_fast` is compiled for.
            return unsafe { lookup_all_fast(&self.0, addresses, out) };
        }
        lookup_all(&self.0, addresses, out);
    }

    fn prefetch_batch(&self, addresses: &[A::Bits]) {
        self.0.view().prefetch(addresses);
    }
}

#[inline(always)]
fn lookup_all<B: Bits, M: Rooms>(shared: &Shared<M>, addresses: &[B], out: &mut [NextHopId]) {
    let view = shared.view();
    if addresses.len() > BATCH {
        // The paper's loop.
        addresses.iter().zip(out).for_each(|(&address, out)| *out = view.lookup(address));
        return;
    }
    for (addresses, out) in addresses.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
        let count = addresses.len().min(out.len());
        view.lookup_together(&addresses[..count], &mut out[..count]);
    }
}

/// Like [`lookup_all`], compiled for processors since 2013.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt,bmi1,bmi2")]
fn lookup_all_fast<B: Bits, M: Rooms>(shared: &Shared<M>, addresses: &[B], out: &mut [NextHopId]) {
    lookup_all(shared, addresses, out);
}

fn reader<A: Address, M: Rooms>(shared: &Arc<Shared<M>>) -> Arc<dyn Lookup<A>> {
    let shared = Arc::clone(shared);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
    {
        return Arc::new(Reader::<M, true>(shared));
    }
    Arc::new(Reader::<M, false>(shared))
}

/// A piece that waits for its grace period: start and length.
enum Piece {
    Nodes(u32, usize),
    Leaves(u32, usize),
}

/// Error: there is no room for a node or a leaf.
struct NoRoom;

/// A slot while its node is being built.
#[derive(Clone, Copy)]
enum Built {
    Leaf(NextHopId),
    Child(Node),
}

/// The writer.
#[allow(private_bounds, reason = "only the memories of this file")]
pub(crate) struct Poptrie<A: Address, M: Rooms = Own> {
    shared: Arc<Shared<M>>,
    rib: Rib<A::Bits>,
    nodes: Buddy,
    leaves: Buddy,
    /// Pieces made since the last publication, to be given back if it fails.
    fresh: Vec<Piece>,
    /// Pieces replaced since the last publication, to be retired when it has succeeded.
    replaced: Vec<Piece>,
    retired: Retired<Piece>,
    /// Prefixes whose range does not yet reflect the routes.
    pending: Vec<(A::Bits, u8)>,
}

impl<A: Address> Poptrie<A> {
    pub fn new(grace: Box<dyn GracePeriod>) -> Self {
        let shared = Shared::new(Arena::new(ENTRIES), Arena::new(NODES), Arena::new(LEAVES));
        Self::over(shared, (NODES, LEAVES), grace)
    }
}

impl<A: Address> Poptrie<A, Lent> {
    /// Creates a table in lent memory.
    ///
    /// # Errors
    /// It is too small.
    pub fn lent(lent: Lent6, grace: Box<dyn GracePeriod>) -> Result<Self, Error> {
        let Lent6 { direct, nodes, leaves, used } = lent;
        check_room("poptrie", direct.len(), ENTRIES)?;
        check_room("poptrie", nodes.len(), NODES.max(used.0))?;
        check_room("poptrie", leaves.len(), LEAVES.max(used.1))?;
        Ok(Self::over(Shared::new(direct, nodes, leaves), used, grace))
    }
}

#[allow(private_bounds, reason = "only the memories of this file")]
impl<A: Address, M: Rooms> Poptrie<A, M> {
    fn over(
        shared: Shared<M>,
        (nodes, leaves): (usize, usize),
        grace: Box<dyn GracePeriod>,
    ) -> Self {
        Self {
            shared: Arc::new(shared),
            rib: Rib::new(),
            nodes: Buddy::new(nodes),
            leaves: Buddy::new(leaves),
            fresh: Vec::new(),
            replaced: Vec::new(),
            retired: Retired::new(grace),
            pending: Vec::new(),
        }
    }

    // ---- building ---------------------------------------------------------------------------

    /// Builds a node for the bits from `from` on, given the topmost RIB node in its range; a leaf
    /// if all routes there lead to the same next hop.
    fn build(&mut self, at: NodeId, from: u8, cover: NextHopId) -> Result<Built, NoRoom> {
        let runs = self.rib.slots(at, from, STEP, cover);
        let mut built = [Built::Leaf(NO_ROUTE); SLOTS];
        self.build_slots(&runs, from, &mut built)?;
        self.assemble_or_collapse(&built)
    }

    /// Builds the contents of the slots of some runs.
    fn build_slots(
        &mut self,
        runs: &SlotRuns,
        from: u8,
        built: &mut [Built; SLOTS],
    ) -> Result<(), NoRoom> {
        for (range, slot) in runs.ranges() {
            let new = match slot {
                Slot::Leaf(next_hop) => Built::Leaf(next_hop),
                Slot::Below(at, cover) => self.build(at, from + STEP, cover)?,
            };
            built[range].fill(new);
        }
        Ok(())
    }

    /// Returns the node `old` with the part that a prefix covers rebuilt and the rest kept.
    fn rebuild(&mut self, old: Node, from: u8, bits: A::Bits, len: u8) -> Result<Built, NoRoom> {
        let mut built = self.slots_of(old);
        let end = from + STEP;
        let first = bits.slice(from, STEP);
        let below = len.min(end);
        let bits_here = bits & A::Bits::mask(below);
        let (cover, at) = self.rib.cover(bits_here, below);
        match built[first as usize] {
            Built::Child(child) if len > end => {
                built[first as usize] = self.rebuild(child, end, bits, len)?;
            }
            _ => {
                let range = first..first + (1 << (end - below));
                let mut runs = SlotRuns::new(range.start, range.end, cover);
                self.rib.fill(at, from, STEP, cover, &mut runs);
                let dropped = range.start as usize..range.end as usize;
                self.drop_children(&built[dropped]);
                self.build_slots(&runs, from, &mut built)?;
            }
        }
        self.drop_arrays(old);
        self.assemble_or_collapse(&built)
    }

    /// Returns the contents of a node's slots.
    fn slots_of(&self, node: Node) -> [Built; SLOTS] {
        std::array::from_fn(|slot| {
            if node.vector >> slot & 1 == 0 {
                return Built::Leaf(self.shared.leaf(node, slot));
            }
            let rank = (node.vector & up_to(slot as u32)).count_ones();
            Built::Child(self.shared.node(node.base1 + rank - 1))
        })
    }

    /// Returns a leaf if all slots are equal leaves, else a node.
    fn assemble_or_collapse(&mut self, built: &[Built; SLOTS]) -> Result<Built, NoRoom> {
        if let Built::Leaf(first) = built[0]
            && built.iter().all(|slot| matches!(slot, Built::Leaf(leaf) if *leaf == first))
        {
            return Ok(Built::Leaf(first));
        }
        self.assemble(built).map(Built::Child)
    }

    /// Stores the children and the runs of leaves in contiguous arrays.
    fn assemble(&mut self, built: &[Built; SLOTS]) -> Result<Node, NoRoom> {
        let mut node = Node::default();
        let (mut children, mut leaves) = (Vec::new(), Vec::new());
        for (slot, built) in built.iter().enumerate() {
            match *built {
                Built::Child(child) => {
                    node.vector |= 1 << slot;
                    children.push(child);
                }
                Built::Leaf(leaf) if leaves.last() != Some(&leaf) => {
                    node.leafvec |= 1 << slot;
                    leaves.push(leaf);
                }
                Built::Leaf(_) => {}
            }
        }
        if !children.is_empty() {
            node.base1 = self.take_nodes(children.len())?;
            for (number, &child) in (node.base1..).zip(&children) {
                self.shared.store_node(number, child);
            }
        }
        if !leaves.is_empty() {
            node.base0 = self.take_leaves(leaves.len())?;
            let places = &self.shared.leaves.all()[node.base0 as usize..];
            for (place, &leaf) in places.iter().zip(&leaves) {
                place.store(leaf, Ordering::Relaxed);
            }
        }
        Ok(node)
    }

    fn take_nodes(&mut self, len: usize) -> Result<u32, NoRoom> {
        if let Some(first) = self.nodes.allocate(len) {
            self.fresh.push(Piece::Nodes(first, len));
            return Ok(first);
        }
        Err(NoRoom)
    }

    fn take_leaves(&mut self, len: usize) -> Result<u32, NoRoom> {
        if let Some(first) = self.leaves.allocate(len) {
            self.fresh.push(Piece::Leaves(first, len));
            return Ok(first);
        }
        Err(NoRoom)
    }

    /// Notes a node's two arrays as replaced.
    fn drop_arrays(&mut self, node: Node) {
        let (children, leaves) = (node.vector.count_ones(), node.leafvec.count_ones());
        if children > 0 {
            self.replaced.push(Piece::Nodes(node.base1, children as usize));
        }
        if leaves > 0 {
            self.replaced.push(Piece::Leaves(node.base0, leaves as usize));
        }
    }

    /// Notes all pieces below a node as replaced.
    fn drop_tree(&mut self, node: Node) {
        let children = node.vector.count_ones();
        for number in node.base1..node.base1 + children {
            self.drop_tree(self.shared.node(number));
        }
        self.drop_arrays(node);
    }

    fn drop_children(&mut self, slots: &[Built]) {
        for slot in slots {
            if let Built::Child(child) = slot {
                self.drop_tree(*child);
            }
        }
    }

    // ---- publication ------------------------------------------------------------------------

    /// Updates a prefix's range to the routes.
    fn refresh(&mut self, bits: A::Bits, len: u8) -> Result<(), NoRoom> {
        let first = bits.slice(0, DIRECT) as usize;
        if len > DIRECT {
            return self.refresh_part(first, bits, len);
        }
        let range = first..first + (1 << (DIRECT - len));
        let (cover, at) = self.rib.cover(bits, len);
        let mut runs = SlotRuns::new(range.start as u32, range.end as u32, cover);
        self.rib.fill(at, 0, DIRECT, cover, &mut runs);
        runs.ranges().try_for_each(|(range, slot)| self.refresh_entries(range, slot))
    }

    /// Rebuilds direct entries.
    fn refresh_entries(&mut self, entries: Range<usize>, slot: Slot) -> Result<(), NoRoom> {
        for entry in entries {
            let new = match slot {
                Slot::Leaf(next_hop) => Ok(Built::Leaf(next_hop)),
                Slot::Below(at, cover) => self.build(at, DIRECT, cover),
            };
            if let Some(old) = self.root(entry) {
                self.drop_tree(old);
            }
            self.store_entry(entry, new)?;
        }
        Ok(())
    }

    /// Rebuilds the part of a direct entry that a longer prefix covers.
    fn refresh_part(&mut self, entry: usize, bits: A::Bits, len: u8) -> Result<(), NoRoom> {
        let new = match self.root(entry) {
            Some(old) => self.rebuild(old, DIRECT, bits, len),
            None => {
                let (cover, at) = self.rib.cover(bits & A::Bits::mask(DIRECT), DIRECT);
                self.build(at, DIRECT, cover)
            }
        };
        self.store_entry(entry, new)
    }

    /// Returns the node that a direct entry leads to.
    fn root(&self, entry: usize) -> Option<Node> {
        let entry = self.shared.direct.all()[entry].load(Ordering::Relaxed);
        (entry & IS_LEAF == 0).then(|| self.shared.node(entry))
    }

    /// Publishes a direct entry, or gives back the pieces made for it.
    fn store_entry(&mut self, entry: usize, new: Result<Built, NoRoom>) -> Result<(), NoRoom> {
        let place = &self.shared.direct.all()[entry];
        let old = place.load(Ordering::Relaxed);
        let word = match new {
            Ok(Built::Leaf(next_hop)) => Ok(IS_LEAF | u32::from(next_hop)),
            Ok(Built::Child(node)) => self.take_nodes(1).inspect(|&number| {
                self.shared.store_node(number, node);
            }),
            Err(NoRoom) => Err(NoRoom),
        };
        let Ok(word) = word else {
            self.replaced.clear();
            let Self { fresh, nodes, leaves, .. } = self;
            fresh.drain(..).for_each(|piece| release(nodes, leaves, piece));
            return Err(NoRoom);
        };
        self.shared.direct.all()[entry].store(word, Ordering::Release);
        self.fresh.clear();
        if old & IS_LEAF == 0 {
            self.retired.put(Piece::Nodes(old, 1));
        }
        self.replaced.drain(..).for_each(|piece| self.retired.put(piece));
        Ok(())
    }

    /// Publishes all pending ranges; those without room stay pending.
    fn publish(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        pending.retain(|&(bits, len)| {
            self.refresh(bits, len).is_err() && {
                self.reclaim();
                self.refresh(bits, len).is_err()
            }
        });
        self.pending = pending;
        if self.retired.is_due() {
            self.reclaim();
        }
    }

    /// Reclaims pieces that no reader can see any more; returns the number of pieces that still
    /// wait.
    fn reclaim(&mut self) -> usize {
        let Self { retired, nodes, leaves, .. } = self;
        retired.collect(|piece| release(nodes, leaves, piece))
    }

    fn full(&self) -> Error {
        match self.retired.waiting() {
            0 => Error::Full {
                structure: "poptrie",
                what: "the number of nodes or leaves",
                limit: self.nodes.len(),
            },
            waiting => Error::Stalled { structure: "poptrie", waiting },
        }
    }

    /// Makes a change in the RIB only; returns the next hop before, or [`NO_ROUTE`].
    fn set(&mut self, prefix: Prefix<A>, next_hop: NextHopId) -> NextHopId {
        let before = match next_hop {
            NO_ROUTE => self.rib.remove(prefix.bits(), prefix.len()),
            _ => self.rib.insert(prefix.bits(), prefix.len(), next_hop),
        };
        if before != next_hop {
            self.pending.push((prefix.bits(), prefix.len()));
        }
        before
    }
}

fn release(nodes: &mut Buddy, leaves: &mut Buddy, piece: Piece) {
    match piece {
        Piece::Nodes(first, len) => nodes.release(first, len),
        Piece::Leaves(first, len) => leaves.release(first, len),
    }
}

impl<A: Address, M: Rooms> Table<A> for Poptrie<A, M> {
    fn reader(&self) -> Arc<dyn Lookup<A>> {
        reader(&self.shared)
    }

    fn place(&mut self, node: u32) {
        self.shared.direct.place(node);
        self.shared.nodes.place(node);
        self.shared.leaves.place(node);
    }

    fn insert(
        &mut self,
        prefix: Prefix<A>,
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

    fn remove(&mut self, prefix: Prefix<A>) -> Option<NextHopId> {
        let before = self.set(prefix, NO_ROUTE);
        self.publish();
        Some(before).filter(|&before| before != NO_ROUTE)
    }

    fn get(&self, prefix: Prefix<A>) -> Option<NextHopId> {
        self.rib.get(prefix.bits(), prefix.len())
    }

    fn len(&self) -> usize {
        self.rib.len()
    }

    fn memory_bytes(&self) -> usize {
        ENTRIES * size_of::<u32>()
            + self.nodes.used() * NODE_WORDS * size_of::<u64>()
            + self.leaves.used() * size_of::<NextHopId>()
    }

    fn writer_bytes(&self) -> usize {
        self.rib.bytes()
    }

    fn apply(&mut self, changes: &[Change<A>]) -> Result<(), Error> {
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
        routes: &mut dyn Iterator<Item = (Prefix<A>, NextHopId)>,
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
        self.pending = vec![(A::Bits::default(), 0)];
        self.publish();
        made?;
        if self.pending.is_empty() { Ok(()) } else { Err(self.full()) }
    }

    fn collect(&mut self) -> usize {
        self.publish();
        self.reclaim()
    }

    fn name(&self) -> &'static str {
        "poptrie"
    }
}
