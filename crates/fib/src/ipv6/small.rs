//! The IPv6 table of few routes: a root of /16s, and nodes of 16-bit digits below (`small.rs`).
//!
//! The nodes are those of `ipv6.rs`. A change builds the nodes of its /16s anew: in a small table that takes no longer
//! than finding those that could be kept.

use std::{
    net::Ipv6Addr,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering, fence},
    },
};

use super::{
    AnswerRuns,
    lookup::{
        Answer, BATCH, DIGIT, IS_NODE, KEY_CELLS, Kernel, NODE_CELLS, Node, Source, node_number,
        reader, step_all, walk,
    },
    node_cells, splice, tree,
};
use crate::{
    Lookup, NO_ROUTE, NextHopId,
    prefetch::prefetch,
    rib::{NodeId, Slot},
    runs::NoRoom,
    small::{Layout, ROOT_WORDS, Shared, Small},
    words::store_leaves,
};

/// Leaves, in two halves.
const LEAVES: usize = if cfg!(miri) { 1 << 12 } else { 1 << 17 };
const NODES: usize = if cfg!(miri) { 1 << 10 } else { 1 << 16 };

impl Layout for Ipv6Addr {
    type Cell = AtomicU32;
    type Piece = Node;
    const LEAVES: usize = LEAVES;
    const PIECES: usize = NODES;

    fn build(
        table: &mut Small<Self>,
        at: NodeId,
        cover: NextHopId,
        _before: Answer,
    ) -> Result<Answer, NoRoom> {
        below(table, at, 1, cover)
    }

    fn retire(table: &mut Small<Self>, answer: Answer) {
        if answer & IS_NODE == 0 {
            return;
        }
        let number = node_number(answer);
        let cell = |cell: usize| table.shared.pieces.all()[number][cell].load(Ordering::Relaxed);
        let mut below: Vec<_> = (KEY_CELLS..NODE_CELLS).map(cell).collect();
        // Unused places repeat the last answer.
        below.dedup();
        below.into_iter().for_each(|answer| Self::retire(table, answer));
        table.put_back(number as u32);
    }

    fn words(_: &[Node]) -> impl Iterator<Item = &AtomicU64> {
        std::iter::empty()
    }

    fn reader(shared: &Arc<Shared<Self>>) -> Arc<dyn Lookup<Self>> {
        reader(shared)
    }
}

/// Builds the answer for all addresses with one value of the digits before `digit`.
fn below(
    table: &mut Small<Ipv6Addr>,
    at: NodeId,
    digit: u8,
    cover: NextHopId,
) -> Result<Answer, NoRoom> {
    let runs = table.rib.slots(at, DIGIT * digit, DIGIT, cover);
    let mut answers = AnswerRuns::with_capacity(runs.runs.len());
    for &(first, slot) in &runs.runs {
        let answer = match slot {
            Slot::Leaf(next_hop) => next_hop.into(),
            Slot::Below(at, cover) => below(table, at, digit + 1, cover)?,
        };
        splice::append(&mut answers, (first, answer));
    }
    tree(answers, digit, &mut |runs| {
        let number = table.take()?;
        store_leaves(&table.shared.pieces.all()[number as usize], &node_cells(runs));
        Ok(number)
    })
}

impl Shared<Ipv6Addr> {
    #[inline(always)]
    fn root_leaf(
        root: &[AtomicU64; ROOT_WORDS],
        leaves: &[AtomicU32; LEAVES],
        address: u128,
    ) -> Answer {
        // Acquire: the leaf that the word leads to is visible as well.
        let word = root[(address >> 117) as usize].load(Ordering::Acquire);
        Self::leaf(leaves, word, (address >> 112) as u32).load(Ordering::Relaxed)
    }
}

impl Source for Shared<Ipv6Addr> {
    fn lookup(&self, address: u128) -> NextHopId {
        let answer = Self::root_leaf(self.root.array(), self.leaves.array(), address);
        fence(Ordering::Acquire);
        walk::<NODES>(self.pieces.array(), answer, address)
    }

    #[inline(always)]
    fn lookup_chunk<K: Kernel>(&self, addresses: &[u128], out: &mut [NextHopId]) {
        let root: &[AtomicU64; ROOT_WORDS] = self.root.array();
        let leaves: &[AtomicU32; LEAVES] = self.leaves.array();
        let nodes: &[Node; NODES] = self.pieces.array();
        let mut answers = [Answer::from(NO_ROUTE); BATCH];
        let (mut list, mut count) = ([0u8; BATCH], 0);
        let lookups = addresses.iter().zip(answers.iter_mut()).zip(out.iter_mut());
        for (at, ((&address, place), out)) in lookups.enumerate() {
            let answer = Self::root_leaf(root, leaves, address);
            *place = answer;
            *out = answer as NextHopId;
            prefetch(nodes, node_number(answer));
            // Appended without a branch: a place written in vain is overwritten.
            list[count % BATCH] = at as u8;
            count += (answer >> 31) as usize;
        }
        // Pairs with the release stores of the leaves.
        fence(Ordering::Acquire);
        while count > 0 {
            count = step_all::<K, NODES>(nodes, addresses, out, &mut answers, &mut list, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NoReaders, Prefix, ipv6::lookup::all_readers};

    #[test]
    fn every_kernel_finds_each_length_and_the_nodes_come_back() {
        let mut table = Small::<Ipv6Addr>::new(Box::new(NoReaders));
        let nets = ["::/0", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1:2::/64", "fe80::/10"];
        let set = |table: &mut Small<Ipv6Addr>, net: &str, next_hop| {
            table.set(net.parse::<Prefix<Ipv6Addr>>().unwrap(), next_hop);
            assert!(table.publish().is_ok());
        };
        for (net, next_hop) in nets.into_iter().zip(1..) {
            set(&mut table, net, next_hop);
        }
        set(&mut table, "2001:db8:1:2::7/128", 0x7fff);
        let addresses = [
            "::1",
            "2001:db8:9::",
            "2001:db8:1:1::",
            "2001:db8:1:2::8",
            "febf::1",
            "2001:db8:1:2::7",
        ]
        .map(|text| text.parse::<Ipv6Addr>().unwrap().to_bits());
        for reader in all_readers(&table.shared) {
            let mut out = [0; 6];
            reader.lookup_batch(&addresses, &mut out);
            assert_eq!(out, [1, 2, 3, 4, 5, 0x7fff]);
            assert_eq!(addresses.map(|address| reader.lookup(address.into())), out);
        }
        for net in ["2001:db8:1:2::7/128", "2001:db8:1:2::/64", "2001:db8:1::/48", "2001:db8::/32"]
        {
            set(&mut table, net, NO_ROUTE);
        }
        assert_eq!(table.collect(), 0);
        assert_eq!(table.pieces_in_use(), 0);
        assert_eq!(table.reader().lookup("2001:db8::".parse().unwrap()), 1);
    }
}
