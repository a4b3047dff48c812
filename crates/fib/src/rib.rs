//! The writer's copy of the routes: a path-compressed binary trie.
//!
//! ```text
//!             [0/0]
//!            /     \
//!      10/8 -> 5    [192.0.0.0/10]          a node without a route exists where two paths part
//!                   /            \
//!        192.0.2.0/24 -> 17    192.32.0.0/11 -> 3
//! ```
//!
//! Tables that compute their pieces from the routes (IPv6 runmap, Poptrie, DIR-24-8) walk it:
//! nodes are in address order, a prefix before those nested in it. At most two nodes per route,
//! 16 bytes (IPv4) or 32 bytes (IPv6) each; a walk passes about log2(routes) nodes. Described by
//! Morrison (PATRICIA, JACM 1968) and Sklower (the BSD routing table, USENIX 1991).

use crate::{Bits, NO_ROUTE, NextHopId};

/// Number of a node; [`NONE`] if there is none.
pub(crate) type NodeId = u32;
/// No node.
pub(crate) const NONE: NodeId = 0;
/// The node of the empty prefix, which always exists.
pub(crate) const ROOT: NodeId = 1;

/// A prefix with a route, or at which paths part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<B> {
    /// First address of the prefix.
    pub bits: B,
    /// The nodes below, by the bit after the prefix.
    pub children: [NodeId; 2],
    /// [`NO_ROUTE`] if the node has no route.
    pub next_hop: NextHopId,
    /// Length of the prefix.
    pub len: u8,
}

/// The routes.
pub(crate) struct Rib<B> {
    nodes: Vec<Node<B>>,
    free: Vec<NodeId>,
    routes: usize,
}

impl<B: Bits> Rib<B> {
    pub fn new() -> Self {
        let empty = Node { bits: B::default(), children: [NONE; 2], next_hop: NO_ROUTE, len: 0 };
        Self { nodes: vec![empty; 2], free: Vec::new(), routes: 0 }
    }

    /// Reserves memory for this many more routes.
    pub fn reserve(&mut self, routes: usize) {
        self.nodes.reserve(2 * routes);
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.routes
    }

    /// Returns the number of bytes in use.
    pub fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<Node<B>>()
    }

    /// Returns a node by its number.
    pub fn node(&self, id: NodeId) -> &Node<B> {
        &self.nodes[id as usize]
    }

    /// Returns the last node on the way to a prefix whose own prefix contains it, with its parent
    /// and its grandparent.
    fn walk(&self, bits: B, len: u8) -> [NodeId; 3] {
        let mut way = [ROOT, NONE, NONE];
        loop {
            let node = self.node(way[0]);
            if node.len == len {
                return way;
            }
            let next = node.children[bits.slice(node.len, 1) as usize];
            if next == NONE || !self.contains(next, bits, len) {
                return way;
            }
            way = [next, way[0], way[1]];
        }
    }

    fn contains(&self, id: NodeId, bits: B, len: u8) -> bool {
        let node = self.node(id);
        node.len <= len && bits & B::mask(node.len) == node.bits
    }

    /// Returns the next hop of a route.
    pub fn get(&self, bits: B, len: u8) -> Option<NextHopId> {
        let node = self.node(self.walk(bits, len)[0]);
        Some(node.next_hop).filter(|&next_hop| node.len == len && next_hop != NO_ROUTE)
    }

    /// Returns the answer for a prefix as a whole: the next hop of the longest route that contains
    /// it, and the topmost node within the prefix ([`NONE`] if there is none).
    pub fn cover(&self, bits: B, len: u8) -> (NextHopId, NodeId) {
        let (mut cover, mut at) = (NO_ROUTE, ROOT);
        loop {
            let node = self.node(at);
            if node.next_hop != NO_ROUTE {
                cover = node.next_hop;
            }
            if node.len == len {
                return (cover, at);
            }
            at = node.children[bits.slice(node.len, 1) as usize];
            if at == NONE || !self.contains(at, bits, len) {
                let inside = at != NONE
                    && self.node(at).len > len
                    && self.node(at).bits & B::mask(len) == bits;
                return (cover, if inside { at } else { NONE });
            }
        }
    }

    /// Passes the routes at and below a node to `see`, in the order of their prefixes.
    pub fn visit(&self, at: NodeId, see: &mut impl FnMut(B, u8, NextHopId)) {
        if at == NONE {
            return;
        }
        let node = self.node(at);
        if node.next_hop != NO_ROUTE {
            see(node.bits, node.len, node.next_hop);
        }
        node.children.iter().for_each(|&child| self.visit(child, see));
    }

    /// Adds or replaces a route; returns the next hop before, or [`NO_ROUTE`].
    pub fn insert(&mut self, bits: B, len: u8, next_hop: NextHopId) -> NextHopId {
        let at = self.walk(bits, len)[0];
        let before = if self.node(at).len == len {
            std::mem::replace(&mut self.nodes[at as usize].next_hop, next_hop)
        } else {
            self.add_below(at, bits, len, next_hop);
            NO_ROUTE
        };
        self.routes += usize::from(before == NO_ROUTE);
        before
    }

    /// Gives an existing route another next hop; returns the one before, or [`NO_ROUTE`] if there
    /// is no such route.
    pub fn replace(&mut self, bits: B, len: u8, next_hop: NextHopId) -> NextHopId {
        let at = self.walk(bits, len)[0];
        let node = &mut self.nodes[at as usize];
        if node.len != len || node.next_hop == NO_ROUTE {
            return NO_ROUTE;
        }
        std::mem::replace(&mut node.next_hop, next_hop)
    }

    /// Returns true if a node and those below it are at most `limit`; visits no more than these.
    pub fn is_at_most(&self, at: NodeId, limit: usize) -> bool {
        let (mut left, mut stack) = (limit, vec![at]);
        while let Some(at) = stack.pop() {
            if at == NONE {
                continue;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            stack.extend(self.node(at).children);
        }
        true
    }

    fn add_below(&mut self, at: NodeId, bits: B, len: u8, next_hop: NextHopId) {
        let side = bits.slice(self.node(at).len, 1) as usize;
        let next = self.node(at).children[side];
        let new = self.take(Node { bits, children: [NONE; 2], next_hop, len });
        if next == NONE {
            self.nodes[at as usize].children[side] = new;
            return;
        }
        let other = *self.node(next);
        let common = (bits ^ other.bits).leading().min(len).min(other.len);
        let other_side = other.bits.slice(common, 1) as usize;
        let top = if common == len {
            self.nodes[new as usize].children[other_side] = next;
            new
        } else {
            let mut children = [new; 2];
            children[other_side] = next;
            let bits = bits & B::mask(common);
            self.take(Node { bits, children, next_hop: NO_ROUTE, len: common })
        };
        self.nodes[at as usize].children[side] = top;
    }

    fn take(&mut self, node: Node<B>) -> NodeId {
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        // Not doubled: there may be thousands of these tries, most of them small.
        if self.nodes.len() == self.nodes.capacity() {
            self.nodes.reserve_exact(16 + self.nodes.len() / 8);
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as NodeId
    }

    /// Removes a route; returns the next hop it had, or [`NO_ROUTE`].
    pub fn remove(&mut self, bits: B, len: u8) -> NextHopId {
        let [at, parent, grandparent] = self.walk(bits, len);
        if self.node(at).len != len || self.node(at).next_hop == NO_ROUTE {
            return NO_ROUTE;
        }
        let before = std::mem::replace(&mut self.nodes[at as usize].next_hop, NO_ROUTE);
        self.routes -= 1;
        self.simplify(at, parent);
        self.simplify(parent, grandparent);
        before
    }

    /// Removes a node that has neither a route nor two children.
    fn simplify(&mut self, at: NodeId, parent: NodeId) {
        let node = *self.node(at);
        if at <= ROOT || node.next_hop != NO_ROUTE || !node.children.contains(&NONE) {
            return;
        }
        let [left, right] = node.children;
        let side = node.bits.slice(self.node(parent).len, 1) as usize;
        self.nodes[parent as usize].children[side] = left.max(right);
        self.free.push(at);
    }
}

/// Contents of a table for one value of some bits of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// All addresses have this next hop.
    Leaf(NextHopId),
    /// Longer routes decide: the topmost node that holds them all, and the answer where none of
    /// them matches.
    Below(NodeId, NextHopId),
}

/// A sequence of slots as runs of equal ones: first slot of each run, ascending.
pub(crate) struct SlotRuns {
    /// First slot and contents of each run.
    pub runs: Vec<(u32, Slot)>,
    /// One past the last slot.
    end: u32,
}

impl SlotRuns {
    /// Creates one run from slot `first` to before `end`.
    pub fn new(first: u32, end: u32, next_hop: NextHopId) -> Self {
        Self { runs: vec![(first, Slot::Leaf(next_hop))], end }
    }

    /// Sets the slots from `first` on to `slot`; `first` never descends.
    fn set(&mut self, first: u32, slot: Slot) {
        if first >= self.end {
            return;
        }
        if self.runs.last().is_some_and(|last| last.0 == first) {
            self.runs.pop();
        }
        if self.runs.last().is_none_or(|last| last.1 != slot) {
            self.runs.push((first, slot));
        }
    }

    /// Iterates over the slots of each run.
    pub fn ranges(&self) -> impl Iterator<Item = (std::ops::Range<usize>, Slot)> + '_ {
        let ends = self.runs.iter().skip(1).map(|next| next.0).chain([self.end]);
        let runs = self.runs.iter().zip(ends);
        runs.map(|(&(first, slot), end)| (first as usize..end as usize, slot))
    }
}

impl<B: Bits> Rib<B> {
    /// Divides the range of a prefix into slots, one for each value of the `count` bits that begin
    /// `from` bits below the top, and fills those for which the routes at and below node `at`
    /// decide.
    ///
    /// `at` lies within a prefix of length `from`, `cover` is the answer for this prefix. The runs must begin
    /// at or before the node's first slot, with `cover`; after the node's last slot they continue with it.
    pub fn fill(&self, at: NodeId, from: u8, count: u8, cover: NextHopId, runs: &mut SlotRuns) {
        if at == NONE {
            return;
        }
        let node = self.node(at);
        let end = from + count;
        let first = node.bits.slice(from, count);
        if node.len >= end {
            runs.set(first, self.slot(at, end, cover));
            runs.set(first + 1, Slot::Leaf(cover));
            return;
        }
        let own = if node.next_hop == NO_ROUTE { cover } else { node.next_hop };
        runs.set(first, Slot::Leaf(own));
        for child in node.children {
            self.fill(child, from, count, own, runs);
        }
        runs.set(first + (1 << (end - node.len)), Slot::Leaf(cover));
    }

    /// Returns the slot for the prefix of length `len` around a node.
    fn slot(&self, at: NodeId, len: u8, cover: NextHopId) -> Slot {
        let node = self.node(at);
        if node.len > len {
            return Slot::Below(at, cover);
        }
        let own = if node.next_hop == NO_ROUTE { cover } else { node.next_hop };
        if node.children == [NONE; 2] { Slot::Leaf(own) } else { Slot::Below(at, own) }
    }

    /// Calls [`Rib::fill`] for the whole range of a prefix: all `2^count` slots below it.
    pub fn slots(&self, at: NodeId, from: u8, count: u8, cover: NextHopId) -> SlotRuns {
        let mut runs = SlotRuns::new(0, 1 << count, cover);
        self.fill(at, from, count, cover, &mut runs);
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// All routes in the order of a walk.
    fn all(rib: &Rib<u32>, at: NodeId, out: &mut Vec<(u32, u8, NextHopId)>) {
        rib.visit(at, &mut |bits, len, next_hop| out.push((bits, len, next_hop)));
    }

    fn longest(model: &BTreeMap<(u32, u8), NextHopId>, bits: u32, len: u8) -> NextHopId {
        let mut lengths = (0..=len).rev();
        lengths.find_map(|l| model.get(&(bits & u32::mask(l), l)).copied()).unwrap_or(NO_ROUTE)
    }

    #[test]
    fn agrees_with_an_ordered_map_under_random_changes() {
        let mut rib = Rib::<u32>::new();
        let mut model = BTreeMap::new();
        let mut seed = 7u64;
        let steps = if cfg!(miri) { 300 } else { 30_000 };
        for step in 0..steps {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let len = (seed >> 59) as u8 % 13 * 2 + (seed >> 33) as u8 % 9;
            // Few distinct bits, so that prefixes nest and meet.
            let bits = ((seed >> 20) as u32 & 0x8421_8421) & u32::mask(len);
            if (seed >> 57) & 3 == 0 {
                let removed = rib.remove(bits, len);
                assert_eq!(removed, model.remove(&(bits, len)).unwrap_or(NO_ROUTE));
            } else {
                let next_hop = (step % 1000) as u16 + 1;
                let before = rib.insert(bits, len, next_hop);
                assert_eq!(before, model.insert((bits, len), next_hop).unwrap_or(NO_ROUTE));
            }
            assert_eq!(rib.len(), model.len());
            assert_eq!(rib.get(bits, len), model.get(&(bits, len)).copied());
            let replaced = rib.replace(bits, len, 7);
            assert_eq!(replaced, model.get(&(bits, len)).copied().unwrap_or(NO_ROUTE));
            rib.replace(bits, len, replaced);
            let probe = (seed >> 13) as u32 & 0x8421_8421 & u32::mask(20);
            let (cover, inside) = rib.cover(probe, 20);
            assert_eq!(cover, longest(&model, probe, 20));
            let mut nested = Vec::new();
            all(&rib, inside, &mut nested);
            let range = (probe, 20)..=(probe | !u32::mask(20), 32);
            let expected = model.range(range).filter(|((_, len), _)| *len >= 20);
            assert_eq!(nested, expected.map(|(&(b, l), &n)| (b, l, n)).collect::<Vec<_>>());
            assert!(rib.is_at_most(inside, 2 * nested.len()));
            assert_eq!(rib.is_at_most(inside, nested.len().saturating_sub(1)), nested.is_empty());
        }
        let mut routes = Vec::new();
        all(&rib, ROOT, &mut routes);
        assert_eq!(routes, model.iter().map(|(&(b, l), &n)| (b, l, n)).collect::<Vec<_>>());
    }

    #[test]
    fn an_emptied_rib_has_no_nodes_left() {
        let mut rib = Rib::<u128>::new();
        let routes: Vec<(u128, u8)> = (0..if cfg!(miri) { 20 } else { 500u128 })
            .map(|i| (i << 97 | i << 64, 64 + (i % 60) as u8))
            .collect();
        routes.iter().for_each(|&(bits, len)| assert_eq!(rib.insert(bits, len, 1), NO_ROUTE));
        routes.iter().for_each(|&(bits, len)| assert_eq!(rib.remove(bits, len), 1));
        assert_eq!(rib.len(), 0);
        assert_eq!(rib.node(ROOT).children, [NONE; 2]);
        assert_eq!(rib.free.len(), rib.nodes.len() - 2);
    }
}
