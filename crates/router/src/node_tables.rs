//! The tables as the forwarders of each NUMA node read them.

use std::sync::Arc;

use dataplane::interface::VrfId;
use dataplane::tables::{Fibs, Tables, VrfTables};
use machine::cpu::Cpus;

use super::owner::Readers;

/// The NUMA nodes with cores, each of which has a copy of the FIBs; none on a machine of one node, where
/// there is nothing to choose.
pub fn nodes_of(cpus: &Cpus) -> Vec<usize> {
    let with_cores = |number: &usize| !cpus.nodes[number].cores.is_empty();
    if cpus.is_numa() {
        cpus.nodes.keys().copied().filter(with_cores).collect()
    } else {
        Vec::new()
    }
}

/// The tables by node.
#[derive(Clone)]
pub struct NodeTables {
    /// Tables of the slow path, and of forwarders on nodes without a copy.
    common: Arc<Tables>,
    nodes: Vec<(usize, Arc<Tables>)>,
    cpus: Arc<Cpus>,
}

impl NodeTables {
    /// Of a machine with these processors; `fibs`: readers of each VRF's, at least of the default one. `make` gets the
    /// routes of the first copy and makes the tables of all units with them; the other copies are those of
    /// [`nodes_of`], in its order.
    pub fn new(
        fibs: &[Readers],
        cpus: &Arc<Cpus>,
        make: impl FnOnce(Arc<VrfTables>) -> Tables,
    ) -> Self {
        let of = |(fib4, fib6): (&Arc<_>, &Arc<_>)| {
            Arc::new(VrfTables::new(Fibs { fib4: Arc::clone(fib4), fib6: Arc::clone(fib6) }))
        };
        let (ip4, ip6) = &fibs[0];
        let common = Arc::new(make(of((&ip4[0], &ip6[0]))));
        let on_node =
            |(node, copy)| (node, Arc::new(Tables { vrfs: of(copy), ..Tables::clone(&common) }));
        let nodes = nodes_of(cpus).into_iter().zip(ip4.iter().zip(ip6)).map(on_node).collect();
        let tables = Self { common, nodes, cpus: cpus.clone() };
        for (number, readers) in (1..).zip(&fibs[1..]) {
            tables.add_vrf(VrfId::new(number), readers);
        }
        tables
    }

    /// Another VRF has tables from now on, with a reader of each copy as in [`Self::new`].
    pub fn add_vrf(&self, vrf: VrfId, (ip4, ip6): &Readers) {
        let mut copies = ip4.iter().zip(ip6);
        let fibs = |(fib4, fib6): (&Arc<_>, &Arc<_>)| -> Fibs {
            Fibs { fib4: Arc::clone(fib4), fib6: Arc::clone(fib6) }
        };
        let first = copies.clone().next().map(fibs);
        first.into_iter().for_each(|fibs| self.common.vrfs.add(vrf, fibs));
        for ((_, tables), copy) in self.nodes.iter().zip(&mut copies) {
            tables.vrfs.add(vrf, fibs(copy));
        }
    }

    /// The same with other FIBs, as in [`Self::new`].
    pub fn with_fibs(&self, fibs: &[Readers]) -> Self {
        Self::new(fibs, &self.cpus, |vrfs| Tables { vrfs, ..Tables::clone(&self.common) })
    }

    /// Returns the NUMA nodes that have copies of the tables: [`nodes_of`].
    pub fn nodes(&self) -> Vec<usize> {
        nodes_of(&self.cpus)
    }

    /// The tables that a forwarder on this core is to read.
    pub fn near(&self, core: usize) -> &Arc<Tables> {
        let node = self.cpus.node_of(core);
        let near = self.nodes.iter().find(|&&(number, _)| Some(number) == node);
        near.map_or(&self.common, |(_, tables)| tables)
    }

    /// Do forwarders on these two cores read the same tables?
    pub fn same(&self, one: usize, other: usize) -> bool {
        Arc::ptr_eq(self.near(one), self.near(other))
    }

    /// Returns the tables that the slow path reads.
    pub fn common(&self) -> &Arc<Tables> {
        &self.common
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dataplane::flow::FlowHash;
    use dataplane::interface::{InterfaceInfos, Mtus};
    use dataplane::next_hop::NextHopTable;
    use dataplane::own::OwnAddresses;
    use fib::{Algorithm, NoReaders, Replicas, Table};

    use super::*;
    use machine::cpu::{Core, Node};

    /// Two nodes with two cores each and one with memory only.
    fn cpus() -> Arc<Cpus> {
        let node =
            |cores: &[usize]| Node { cores: cores.iter().copied().collect(), distances: vec![] };
        let nodes = [(0, node(&[0, 2])), (1, node(&[1, 3])), (2, node(&[]))];
        let core = |number: usize| {
            let siblings = [number].into();
            (number, Core { node: number % 2, package: None, siblings, caches: vec![] })
        };
        Arc::new(Cpus { nodes: nodes.into(), cores: (0..4).map(core).collect::<BTreeMap<_, _>>() })
    }

    #[test]
    fn forwarders_read_the_copy_of_their_node_and_share_the_rest() {
        let cpus = cpus();
        assert_eq!(nodes_of(&cpus), [0, 1]);
        let ip4 = || fib::new_ipv4(Algorithm::Reference, Box::new(NoReaders)).unwrap();
        let ip6 = || fib::new_ipv6(Algorithm::Reference, Box::new(NoReaders)).unwrap();
        let tables = || {
            let (mut fib4, mut fib6) = (Replicas::new(ip4()), Replicas::new(ip6()));
            fib4.push(ip4());
            fib6.push(ip6());
            (fib4.readers(), fib6.readers())
        };
        let readers = tables();
        let all = |vrfs| Tables {
            vrfs,
            next_hops: Arc::new(NextHopTable::new()),
            filters: Arc::default(),
            multicast: Arc::default(),
            named_hops: Arc::default(),
            mirrors: Arc::default(),
            interfaces: Arc::new(InterfaceInfos::new(Vec::new())),
            mtus: Arc::new(Mtus::new(&[])),
            shared: Arc::default(),
            vlans: Arc::default(),
            flows: FlowHash::new(1),
            own: Arc::new(OwnAddresses::new(false)),
        };
        let near = NodeTables::new(std::slice::from_ref(&readers), &cpus, all);
        let common = near.common().clone();
        for (core, node) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
            let tables = near.near(core);
            assert!(Arc::ptr_eq(&tables.vrf(VrfId::DEFAULT).fib4, &readers.0[node]), "core {core}");
            assert!(Arc::ptr_eq(&tables.vrf(VrfId::DEFAULT).fib6, &readers.1[node]), "core {core}");
            assert!(Arc::ptr_eq(&tables.mtus, &common.mtus), "core {core}");
            assert!(Arc::ptr_eq(&tables.next_hops, &common.next_hops), "core {core}");
        }
        assert!(near.same(0, 2) && !near.same(0, 1));
        let (blue, of_blue) = (VrfId::new(1), tables());
        near.add_vrf(blue, &of_blue);
        for (core, node) in [(0, 0), (1, 1)] {
            let tables = near.near(core);
            assert!(Arc::ptr_eq(&tables.vrf(blue).fib4, &of_blue.0[node]), "core {core}");
            assert!(Arc::ptr_eq(&tables.vrf(VrfId::DEFAULT).fib4, &readers.0[node]));
        }
        assert!(Arc::ptr_eq(&near.common().vrf(blue).fib6, &of_blue.1[0]), "the slow path's");
        // An unknown core.
        assert!(Arc::ptr_eq(near.near(9), near.common()));
        let one = Arc::new(Cpus {
            nodes: cpus.nodes.clone().into_iter().take(1).collect(),
            ..Cpus::default()
        });
        assert!(nodes_of(&one).is_empty());
        assert!(NodeTables::new(&[readers], &one, |_| Tables::clone(&common)).same(0, 1));
    }
}
